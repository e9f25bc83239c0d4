"""Read the records of memory that a workload kept of its cases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from profpipe.analysis.case_index import Number
from profpipe.analysis.findings.phases import Allocation, Memory, PhaseMemory
from profpipe.analysis.grouping import grouped
from profpipe.results.schema import PATH_SEPARATOR

_RANKED = re.compile(r"allocation:(\d+)")
_POINT = re.compile(r"allocated_at:(\d+)")


def read_memory(
    numbers: Mapping[tuple[str, str, str], Mapping[str, Number]], cases: Iterable[str], folder: str
) -> Iterator[Memory]:
    """Yield the record of each of ``cases`` that has one; ``folder`` is the job's, relative to the run's."""
    own = grouped((case, (subject, found)) for (case, profiler, subject), found in numbers.items()
                  if profiler == "plain" and subject)  # fmt: skip
    for case in cases:
        subjects = dict(own.get(case, ()))
        with_peak = {name: found for name, found in subjects.items() if "peak_allocated" in found}
        if phases := tuple(_phase(name, with_peak[name]) for name in _outer_first(with_peak)):
            kept = {name: found["kept"].value for name, found in subjects.items() if "kept" in found}
            files = tuple((f"{folder}/{name}" if folder else name, size) for name, size in kept.items())
            yield Memory(case, phases, tuple(_allocations(subjects)), files)


def _outer_first(names: Iterable[str]) -> Iterator[str]:
    """Yield ``names`` in their order, each after the ranges around it: other numbers may stand before them."""
    names = list(names)
    steps = (name.split(PATH_SEPARATOR) for name in names)
    around = (PATH_SEPARATOR.join(path[:depth]) for path in steps for depth in range(1, len(path) + 1))
    return (path for path in dict.fromkeys(around) if path in names)


def _phase(name: str, found: Mapping[str, Number]) -> PhaseMemory:
    start = found["allocated_at_start"].value if "allocated_at_start" in found else None
    points = ((match, number.value) for metric, number in found.items() if (match := _POINT.fullmatch(metric)))
    course = sorted((float(match[1]), size) for match, size in points)
    return PhaseMemory(name, start, found["peak_allocated"].value, tuple(course))


def _allocations(subjects: Mapping[str, Mapping[str, Number]]) -> list[Allocation]:
    """Return the allocations in the order of their ranks: the largest first."""
    ranked: dict[int, Allocation] = {}
    for place, found in subjects.items():
        for metric, number in found.items():
            if match := _RANKED.fullmatch(metric):
                held = _count(found.get(f"held:{match[1]}"))
                ranked[int(match[1])] = Allocation(place, number.value, _count(number), held)
    return [ranked[rank] for rank in sorted(ranked)]


def _count(number: Number | None) -> int:
    return 0 if number is None or pd.isna(number.n) else int(number.n)
