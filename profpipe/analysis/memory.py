"""Who holds the memory of a case at its peak and where an allocation failed, what grows, and what would fit.

Sizes are in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from profpipe.results.schema import UNUSED_PARTS, MemoryMoment, MemoryPart

#: Modules whose paths differ in numbers only are one holder.
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
#: The deepest module with this share of the peak is named.
_LEADING = 0.25


@dataclass(frozen=True)
class Holder:
    """Blocks of one part. ``name`` is a module, a function or a type of data; ``place`` the line of most of them."""

    part: MemoryPart
    name: str
    place: str
    size: float
    blocks: int

    @property
    def is_unused(self) -> bool:
        return self.part in UNUSED_PARTS


@dataclass(frozen=True)
class MemoryAt:
    """What a device holds at one moment: its holders and its largest blocks, the largest first."""

    holders: tuple[Holder, ...]
    blocks: tuple[Holder, ...]

    @cached_property
    def allocated(self) -> float:
        return sum(holder.size for holder in self.holders if not holder.is_unused)

    @property
    def reserved(self) -> float:
        return sum(holder.size for holder in self.holders if holder.part is not MemoryPart.OUTSIDE)

    def part(self, part: MemoryPart) -> float:
        return sum(holder.size for holder in self.holders if holder.part is part)

    @property
    def parts(self) -> list[tuple[MemoryPart, float]]:
        """The parts in use, the largest first."""
        sizes = {part: self.part(part) for part in MemoryPart if part not in UNUSED_PARTS}
        return sorted(((part, size) for part, size in sizes.items() if size), key=lambda pair: -pair[1])

    @property
    def leading(self) -> Holder | None:
        """The deepest module, or the part, that holds a quarter of the memory in use; None where none does."""
        candidates: dict[tuple[MemoryPart, str], list[Holder]] = {}
        for holder in self.holders:
            names = holder.name.split(".") if holder.part in (MemoryPart.ACTIVATIONS, MemoryPart.KEPT) else [""]
            for depth in range(1, len(names) + 1):
                candidates.setdefault((holder.part, ".".join(names[:depth])), []).append(holder)
        large = [
            (name.count("."), sum(h.size for h in held), part, name, held)
            for (part, name), held in candidates.items()
            if part not in UNUSED_PARTS and sum(h.size for h in held) >= _LEADING * self.allocated
        ]
        if not large:
            return None
        _, size, part, name, held = max(large, key=lambda row: row[:2])
        return Holder(part, name, max(held, key=lambda h: h.size).place, size, sum(h.blocks for h in held))


@dataclass(frozen=True)
class CaseMemory:
    """The memory of a case on the device with the highest peak.

    ``failure`` is what was held when the last allocation failed, ``asked`` what each of them wanted, ``advice`` what
    would free memory. ``growth`` is what each step leaves behind by line, and ``growth_last`` the last of it. ``points``
    are ns, pass and bytes by part.
    """

    case: str
    peak: MemoryAt
    failure: MemoryAt | None
    asked: tuple[Holder, ...]
    free: float
    largest_free: float
    advice: tuple[Holder, ...]
    growth: tuple[Holder, ...]
    growth_last: Holder | None
    capacity: float
    room: float
    points: tuple[tuple[float, str, Mapping[MemoryPart, float]], ...]


def find_memory(table: pd.DataFrame, case: str) -> CaseMemory | None:
    """Return the memory of ``case``; None where none was recorded."""
    rows = table[table["case"] == case]
    if rows.empty:
        return None
    is_used = (rows["moment"] == MemoryMoment.PEAK.value) & ~rows["part"].isin([part.value for part in UNUSED_PARTS])
    place = ["source", "device"]
    peaks = rows[is_used].groupby(place, dropna=False)["bytes"].sum()
    failed = rows[rows["moment"] == MemoryMoment.ASKED.value]
    if peaks.empty:
        return None
    of = peaks.idxmax()
    # The snapshot at the last failure has what was held then.
    of_failure = failed.groupby(place, dropna=False).size().index[-1] if len(failed) else of

    def take(moment: MemoryMoment, key: tuple[str, int] = of) -> pd.DataFrame:
        is_there = (rows["source"] == key[0]) & (rows["device"] == key[1])
        return rows[is_there & (rows["moment"] == moment.value)]

    failure = MemoryAt(
        _join_alike(take(MemoryMoment.FAILURE, of_failure)), _read(take(MemoryMoment.FAILURE_BLOCK, of_failure))
    )
    points = take(MemoryMoment.TIME)
    growth_last = _read(take(MemoryMoment.GROWTH_LAST))
    return CaseMemory(
        case,
        MemoryAt(_join_alike(take(MemoryMoment.PEAK)), _read(take(MemoryMoment.PEAK_BLOCK))),
        failure if failure.holders else None,
        _read(take(MemoryMoment.ASKED, of_failure).sort_values("at_ns"), is_sorted=False),
        float(take(MemoryMoment.FREE, of_failure)["bytes"].sum()),
        float(take(MemoryMoment.LARGEST_FREE, of_failure)["bytes"].sum()),
        _read(take(MemoryMoment.ADVICE, of_failure)),
        _read(take(MemoryMoment.GROWTH)),
        growth_last[0] if growth_last else None,
        float(take(MemoryMoment.CAPACITY)["bytes"].sum()),
        float(take(MemoryMoment.ROOM)["bytes"].sum()),
        tuple(_read_point(group) for _, group in points.groupby("at_ns")),
    )


def _read_point(rows: pd.DataFrame) -> tuple[float, str, Mapping[MemoryPart, float]]:
    sizes = {MemoryPart(part): float(size) for part, size in zip(rows["part"], rows["bytes"], strict=True)}
    return float(rows["at_ns"].iloc[0]), str(rows["name"].iloc[0]), sizes


def _read(rows: pd.DataFrame, is_sorted: bool = True) -> tuple[Holder, ...]:
    holders = [
        Holder(MemoryPart(row.part), str(row.name_), str(row.place), float(row.bytes), int(row.blocks or 0))
        for row in rows.rename(columns={"name": "name_"}).fillna({"blocks": 0}).itertuples()
    ]
    return tuple(sorted(holders, key=lambda holder: -holder.size) if is_sorted else holders)


def _join_alike(rows: pd.DataFrame) -> tuple[Holder, ...]:
    """Return the holders, those whose names differ in numbers as one."""
    groups: dict[tuple[MemoryPart, str], list[Holder]] = {}
    for holder in _read(rows):
        groups.setdefault((holder.part, _NUMBER.sub(".*", holder.name)), []).append(holder)
    joined = (
        Holder(part, name if len(held) > 1 else held[0].name, held[0].place, sum(h.size for h in held),
               sum(h.blocks for h in held))
        for (part, name), held in groups.items()
    )  # fmt: skip
    return tuple(sorted(joined, key=lambda holder: (-holder.size, holder.part, holder.name)))


# --- what fits -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """The largest value of ``axis`` that fits: between ``least``, with as much unused memory as now, and ``most``.

    ``fixed`` bytes do not grow, and ``slope`` bytes come with each 1 of the axis, ``growing`` by part.
    """

    axis: str
    least: int
    most: int
    fixed: float
    slope: float
    growing: tuple[tuple[MemoryPart, float], ...]


def find_fit(axis: str, cases: Iterable[tuple[float, CaseMemory]]) -> Fit | None:
    """Return what fits by the two largest values of ``axis``; None where the peak does not grow between them."""
    measured: Sequence[tuple[float, CaseMemory]] = sorted(cases, key=lambda pair: pair[0])[-2:]
    if len(measured) < 2 or measured[0][0] == measured[1][0]:
        return None
    (low, small), (high, large) = measured
    slope = (large.peak.allocated - small.peak.allocated) / (high - low)
    if slope <= 0 or large.room <= 0:
        return None
    fixed = large.peak.allocated - slope * high
    unused = max(memory.peak.reserved / memory.peak.allocated for memory in (small, large))
    least, most = ((share - fixed) / slope for share in (large.room / unused, large.room))
    parts = [(part, (large.peak.part(part) - small.peak.part(part)) / (high - low)) for part, _ in large.peak.parts]
    growing = tuple((part, size) for part, size in parts if size > 0.01 * slope)
    return Fit(axis, int(least), int(most), fixed, slope, growing)
