"""Find the numbers of the single processes, and of the single GPUs, that ran a case together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from profpipe.analysis.case_index import CaseIndex, Number
from profpipe.analysis.findings import RankResult
from profpipe.measure.statistics import worse_of
from profpipe.results.schema import DEVICE_PREFIX, RANK_PREFIX

#: The profilers that know single launches, the most trusted first: nsys sees all processes.
_LAUNCH_PROFILERS = ("nsys", "torch", "jax")

#: The metric of a rank's times; ``time`` has those of the slowest rank, which are the case's (``measure.rounds``). Runs
#: before 0.2 have each process's own as ``time``.
_OWN_TIME = "time_own"

#: The median, lowest and highest clock of a GPU.
_CLOCKS = "sm_clock"

#: By how much the samples must be longer than the loop: of 51 cases of two GPUs 43 were at most 1.05 times as long, and
#: the eight that had waited at least 1.14 times.
_LONGER = 1.1


def find_ranks(recorded: CaseIndex, cases: Iterable[str]) -> Iterator[RankResult]:
    """Yield each process of those of ``cases`` that several ran, or in which a GPU communicated with others."""
    for case in cases:
        timed = _by_name(recorded, case, "plain", RANK_PREFIX)
        if timed:
            timed = {"0": recorded.numbers.get((case, "plain", ""), {}), **timed}
        seen = {p: _by_name(recorded, case, p, DEVICE_PREFIX) for p in _LAUNCH_PROFILERS}
        profiler, devices = next(((p, own) for p, own in seen.items() if own), ("", {}))
        for name in sorted({*timed, *devices}, key=_by_number):
            rows = {**timed.get(name, {}), **devices.get(name, {})}
            if _OWN_TIME in rows:
                rows["time"] = rows[_OWN_TIME]
            yield RankResult(case, name, {metric: number.value for metric, number in rows.items()}, profiler)


def worst_numbers(recorded: CaseIndex, case: str) -> dict[str, float]:
    """Return the errors, cosines, memory peaks and clocks of ``case`` that are worse in another process than the first.

    A ring leaves its first process the part of a causal sequence that is nearly exact, and the largest memory decides
    whether the case fits. The time of a case is that of its slowest process, so the lowest clocks go with it.
    """
    first = recorded.numbers.get((case, "plain", ""), {})
    found: dict[str, float] = {}
    for own in _by_name(recorded, case, "plain", RANK_PREFIX).values():
        for metric, number in own.items():
            worse = min if metric.startswith(_CLOCKS) else worse_of(metric)
            if worse and metric in first:
                found[metric] = worse(found.get(metric, first[metric].value), number.value)
    return found


def has_waited(recorded: CaseIndex, case: str) -> bool:
    """Return True if the samples of a case of several processes contain waiting of one process for another.

    They are then longer than an iteration of the loop around the call, though the loop also flushes the cache. Runs
    before 0.2 held GPUs for different times where one process was late: 3.1 ms for a call of 1.1 ms.
    """
    own = recorded.numbers.get((case, "plain", ""), {})
    if "time" not in own or "loop_wall" not in own or not _by_name(recorded, case, "plain", RANK_PREFIX):
        return False
    return own["time"].value > _LONGER * own["loop_wall"].value


def _by_name(recorded: CaseIndex, case: str, profiler: str, prefix: str) -> dict[str, Mapping[str, Number]]:
    subjects = recorded.by_rank.get((case, profiler), {})
    return {subject.removeprefix(prefix): own for subject, own in subjects.items() if subject.startswith(prefix)}


def _by_number(name: str) -> tuple[int, str]:
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name
