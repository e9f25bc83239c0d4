"""Who holds the memory of a case, and what would fit. Sizes are in bytes; the frames have columns of ``memory``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from profpipe.results.schema import UNUSED_MEMORY

#: Parts that libraries choose by the shapes: they follow no line.
_UNSTEADY = ("temporary", "rounding")
#: Of these parts the module, or the function, with this share of the peak is named.
_LEADING = 0.25
_NAMED = ("activations", "kept", "temporary")


class CaseMemory(NamedTuple):
    """The memory of a case on the device with the highest peak; of a failure, on the one where the last one was.

    ``rows`` are those of a moment. ``facts`` are the sizes without a holder, such as the ``capacity``.
    """

    case: str
    #: Pairs of a process and a GPU that have one.
    places: int
    rows: Mapping[str, pd.DataFrame]
    facts: Mapping[str, float]

    def at(self, moment: str) -> pd.DataFrame:
        """Return the rows of a moment, as they were written: the largest first. They are empty where it has none."""
        return self.rows.get(moment, next(iter(self.rows.values())).iloc[:0])

    def sum_parts(self, moment: str) -> pd.Series:
        """Return the sizes of the parts in use, the largest first."""
        rows = self.at(moment)
        return rows[~rows["part"].isin(UNUSED_MEMORY)].groupby("part")["bytes"].sum().sort_values(ascending=False)


def find_memory(table: pd.DataFrame, case: str) -> CaseMemory | None:
    """Return the memory of ``case``; None where none was recorded."""
    rows = table[table["case"] == case]
    peaks = rows[(rows["moment"] == "peak") & ~rows["part"].isin(UNUSED_MEMORY)]
    if peaks.empty:
        return None
    place = ["source", "device"]
    highest = peaks.groupby(place, dropna=False)["bytes"].sum().idxmax()
    failures = rows.loc[rows["moment"] == "failure", place].drop_duplicates()
    last = tuple(failures.iloc[-1]) if len(failures) else highest
    by_moment: dict[str, pd.DataFrame] = {}
    for moment, of_moment in rows.groupby("moment"):
        source, device = last if moment in ("failure", "failure_block", "asked", "advice", "fact") else highest
        by_moment[str(moment)] = of_moment[(of_moment["source"] == source) & (of_moment["device"] == device)]
    facts = by_moment.get("fact", rows.iloc[:0])
    places = len(peaks[["process", "device"]].drop_duplicates())
    return CaseMemory(case, places, by_moment, dict(zip(facts["part"], facts["bytes"].astype(float), strict=True)))


def find_leading(memory: CaseMemory) -> tuple[str, str, str, float]:
    """Return the largest part of the peak, its deepest module with a quarter of the peak, the line, and the share."""
    parts = memory.sum_parts("peak")
    part, rows = str(parts.idxmax()), memory.at("peak")[memory.at("peak")["part"] == parts.idxmax()]
    paths = rows["name"].where(rows["part"].isin(_NAMED), "").str.split(".")
    for depth in range(paths.str.len().max(), -1, -1):
        sums = rows["bytes"].groupby(paths.str[:depth].str.join(".")).sum() / parts.sum()
        if sums.max() >= _LEADING or not depth:
            break
    inside = rows[paths.str[:depth].str.join(".") == sums.idxmax()].sort_values("bytes")
    return part, str(sums.idxmax()), str(inside["place"].iloc[-1]), float(sums.max())


class Fit(NamedTuple):
    """The largest value that fits: between ``least``, with as much unused memory as now, and ``most``.

    For ``most`` nothing is unused, and temporary memory grows as slowly as the two values allow.
    ``fixed`` bytes do not grow, and ``slope`` bytes come with one more of the value, ``growing`` by part.
    """

    least: int
    most: int
    fixed: float
    slope: float
    growing: Mapping[str, float]


def find_fit(cases: Sequence[tuple[float, CaseMemory]]) -> Fit | None:
    """Return what fits by the two largest values of an axis; None where the peak does not grow between them."""
    measured = sorted(cases, key=lambda pair: pair[0])[-2:]
    if len({value for value, _ in measured}) < 2:
        return None
    (low, small), (high, large) = ((value, memory.sum_parts("peak")) for value, memory in measured)
    small, large = small.align(large, fill_value=0.0)
    growing = (large - small) / (high - low)
    slope, room = float(growing.sum()), measured[1][1].facts.get("room", 0.0)
    slowly = growing.mask(
        growing.index.isin(_UNSTEADY), pd.concat([growing, small / low, large / high], axis=1).min(axis=1)
    )
    if slope <= 0 or not room or low <= 0:
        return None
    peaks = (memory.at("peak") for _, memory in measured)
    reserved = [rows[rows["part"] != "outside"]["bytes"].sum() for rows in peaks]
    unused = max(reserved[0] / small.sum(), reserved[1] / large.sum())
    # The larger one has run.
    least = max(int(high + (room / unused - large.sum()) / slope), int(high))
    most = int(high + (room - large.sum()) / slowly.sum())
    fixed = float(large.sum()) - slope * high
    parts = {str(part): float(size) for part, size in growing.sort_values(ascending=False).items()}
    return Fit(least, most, fixed, slope, {part: size for part, size in parts.items() if size > slope / 100})
