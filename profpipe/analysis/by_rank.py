"""The numbers of single processes, and of single GPUs, that ran a case together, from the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from profpipe.analysis.recorded import Number, Recorded
from profpipe.rank_findings import OfRank
from profpipe.tables import DEVICE_PREFIX, RANK_PREFIX

#: The profilers that know single launches, in the order in which they are believed: nsys sees all of the processes.
_OF_LAUNCHES = ("nsys", "torch")

#: What a process calls its own times beside those of the slowest, which are the case's (``measuring.sweep``). Runs of
#: before 0.2 have each process's own as ``time``.
_OWN_TIME = "time_own"


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


def _named(subjects: Mapping[str, Mapping[str, Number]], prefix: str) -> dict[str, Mapping[str, Number]]:
    return {subject.removeprefix(prefix): own for subject, own in subjects.items() if subject.startswith(prefix)}


def _in_order(name: str) -> tuple[int, str]:
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name
