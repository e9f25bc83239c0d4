"""The numbers of single processes, and of single GPUs, that ran a case together, from the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from profpipe.analysis.recorded import Number, Recorded
from profpipe.rank_findings import OfRank
from profpipe.tables import DEVICE_PREFIX, RANK_PREFIX

#: The profilers that know single launches, in the order in which they are believed: nsys sees all of the processes.
_OF_LAUNCHES = ("nsys", "torch")

#: What a process calls its own times beside those of the slowest, which are the case's (``measuring.sweep``). Runs of
#: before 0.2 have each process's own as ``time``.
_OWN_TIME = "time_own"

#: By how much the samples must be longer than the loop: of 51 cases of two GPUs 43 were at most 1.05 times as long, and
#: the eight that had waited at least 1.14 times.
_LONGER = 1.1


def found(recorded: Recorded, cases: Iterable[str]) -> Iterator[OfRank]:
    """Each process of those of ``cases`` that several ran, or in which a GPU communicated with others."""
    for case in cases:
        timed = _named(recorded.apart.get((case, "plain"), {}), RANK_PREFIX)
        if timed:
            timed = {"0": recorded.numbers.get((case, "plain", ""), {}), **timed}
        seen = {p: _named(recorded.apart.get((case, p), {}), DEVICE_PREFIX) for p in _OF_LAUNCHES}
        profiler = next((p for p in _OF_LAUNCHES if seen[p]), "")
        devices = seen.get(profiler, {})
        for name in sorted({*timed, *devices}, key=_in_order):
            rows = {**timed.get(name, {}), **devices.get(name, {})}
            if _OWN_TIME in rows:
                rows["time"] = rows[_OWN_TIME]
            yield OfRank(case, name, {metric: number.value for metric, number in rows.items()}, profiler)


#: Of what several processes recorded of one call, the worst is the case's: by the beginning of a metric's name.
_WORST: Final[Mapping[str, Callable[[float, float], float]]] = {"error_": max, "cosine": min, "peak_": max}


def worst(recorded: Recorded, case: str) -> dict[str, float]:
    """What the other processes of a case recorded that is worse than the first's: errors, cosines and peaks of memory.

    A ring leaves its first process the part of a causal sequence that is nearly exact, and the largest memory is what
    decides whether the case fits.
    """
    first = recorded.numbers.get((case, "plain", ""), {})
    found: dict[str, float] = {}
    for own in _named(recorded.apart.get((case, "plain"), {}), RANK_PREFIX).values():
        for metric, number in own.items():
            worse = next((of for start, of in _WORST.items() if metric.startswith(start)), None)
            if worse and metric in first:
                found[metric] = worse(found.get(metric, first[metric].value), number.value)
    return found


def waited(recorded: Recorded, case: str) -> bool:
    """Whether the samples of a case of several processes hold waiting of one for another.

    They are then longer than an iteration of the loop around the call, though that has the flush in it as well. Runs
    of before 0.2 held GPUs for unlike times where one process was late: 3.1 ms for a call of 1.1 ms.
    """
    own = recorded.numbers.get((case, "plain", ""), {})
    if "time" not in own or "loop_wall" not in own or not _named(recorded.apart.get((case, "plain"), {}), RANK_PREFIX):
        return False
    return own["time"].value > _LONGER * own["loop_wall"].value


def _named(subjects: Mapping[str, Mapping[str, Number]], prefix: str) -> dict[str, Mapping[str, Number]]:
    return {subject.removeprefix(prefix): own for subject, own in subjects.items() if subject.startswith(prefix)}


def _in_order(name: str) -> tuple[int, str]:
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name
