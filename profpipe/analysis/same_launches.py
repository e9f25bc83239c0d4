"""Did the profilers see the same launches? A recorder may lose events, and says no more than that it might have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profpipe.analysis.shares import PREFERENCE
from profpipe.analysis.study_cases import Material
from profpipe.analysis.tallies import Key, rows
from profpipe.concerns import Launches

#: Launches by kernel.
_Counts = Mapping[str, int]


@dataclass(frozen=True)
class _Case:
    """A case under two profilers: launches by kernel over all iterations, and how many of these each saw."""

    id: str
    counts: tuple[_Counts, _Counts]
    iterations: tuple[int, int]

    @property
    def whole(self) -> tuple[_Counts, _Counts]:
        """By kernel, each times the other's iterations: whole numbers compare, shares of a launch do not."""
        (ours, theirs), (n, m) = self.counts, self.iterations
        return {name: m * calls for name, calls in ours.items()}, {name: n * calls for name, calls in theirs.items()}

    @property
    def as_many(self) -> bool:
        ours, theirs = self.whole
        return sum(ours.values()) == sum(theirs.values())

    @property
    def in_all(self) -> tuple[int, int]:
        ours, theirs = (sum(own.values()) for own in self.counts)
        return ours, theirs

    @property
    def per_iteration(self) -> tuple[float, float]:
        ours, theirs = (number / n for number, n in zip(self.in_all, self.iterations, strict=True))
        return ours, theirs


def counted(material: Material) -> Iterator[Launches]:
    """Every other profiler that records each launch, against the one that comes first."""
    counts = _counts(material)
    seen = {profiler for _, profiler in counts}
    first, *others = [name for name in PREFERENCE if name in seen and _sees_all(name, material)] or [""]
    for other in others:
        if cases := list(_cases((first, other), counts, material)):
            yield _summed((first, other), cases, material.name)


def _sees_all(profiler: str, material: Material) -> bool:
    """ncu replays what it was told to, which may be some of the kernels."""
    return profiler != "ncu" or _ncu(material).get("kernels") == "all"


def _ncu(material: Material) -> Mapping[str, Any]:
    return material.declared.get("ncu") or {}


def _counts(material: Material) -> dict[Key, dict[str, int]]:
    """Launches by kernel, also those without a time, which tallies leave out.

    Of no case with whole graphs: behind one any number of kernels may be.
    """
    key, table = ["case", "profiler", "kernel"], material.recorded.tables.kernels
    table = table[table["case"] != ""]
    sums = table[table["kind"] == "kernel"].groupby(key, sort=False)["calls"].sum().reset_index()
    found: dict[Key, dict[str, int]] = {}
    for case, profiler, kernel, calls in rows(sums, *key, "calls"):
        found.setdefault((case, profiler), {})[kernel] = int(calls)
    graphs = set(rows(table[table["kind"] == "graph"], "case", "profiler"))
    return {pair: own for pair, own in found.items() if pair not in graphs}


def _cases(pair: tuple[str, str], counts: Mapping[Key, _Counts], material: Material) -> Iterator[_Case]:
    """Those that both captured, where it is known how many iterations; without what ncu was told to leave out."""
    unwanted = str(_ncu(material).get("exclude") or "") if "ncu" in pair else ""
    for case, splits in material.splits.items():
        n, m = (splits[name].iterations if name in splits else None for name in pair)
        if n and m and all((case, name) in counts for name in pair):
            ours, theirs = (_without(counts[case, name], unwanted) for name in pair)
            yield _Case(case, (ours, theirs), (n, m))


def _without(counts: _Counts, unwanted: str) -> _Counts:
    return {name: calls for name, calls in counts.items() if not unwanted or not re.search(unwanted, name)}


def _summed(pair: tuple[str, str], cases: list[_Case], workload: str) -> Launches:
    alike = all(case.iterations[0] == case.iterations[1] for case in cases)
    numbers = [(case.id, *(case.in_all if alike else case.per_iteration)) for case in cases]
    differing = tuple(number for case, number in zip(cases, numbers, strict=True) if not case.as_many)
    by_kernel = sum(case.whole[0] == case.whole[1] for case in cases)
    return Launches(workload, pair, sum(ours for _, ours, _ in numbers), not alike, len(cases), by_kernel, differing)
