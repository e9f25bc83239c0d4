"""Make rows of ``kernels`` from the kernel tables of ``nsys stats``: single launches, or sums by name or shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest import launch_tables
from profpipe.ingest.nsys import stats_output
from profpipe.results import schema

_STATISTICS: Final = {"avg": "mean_ns", "med": "median_ns", "min": "min_ns", "max": "max_ns", "stddev": "stddev_ns"}
_LAUNCHES: Final = ("trace", "exec_trace")
#: The column of a launch's time, or of the mean, in tables without a total.
_TIMES: Final = {"trace": "duration", "exec_trace": "kernel dur", "exec_sum": "kavg"}


@dataclass(frozen=True)
class Rows:
    """Rows of ``kernels`` from tables of one ``kind``, and the resolution of their printed times.

    ``of_launches``: the printed times are of single launches, or their mean.
    """

    kind: str
    frame: pd.DataFrame
    resolution_ns: float
    of_launches: bool = False

    @cached_property
    def totals(self) -> tuple[int, float]:
        return int(self.frame["calls"].sum()), float(self.frame["total_ns"].sum())

    @cached_property
    def kernels(self) -> pd.DataFrame:
        return self.frame[self.frame["kind"] == "kernel"]

    @property
    def launches(self) -> int:
        return int(self.kernels["calls"].sum())

    def repeat(self, other: Rows) -> bool:
        """Return True where both are the same report, printed under two names, or in two formats or units."""
        if self.totals == other.totals:
            return True
        if self.totals[0] != other.totals[0] or self.resolution_ns == other.resolution_ns:
            return False
        keys = ["kernel", "kind", "calls"]
        mine, theirs = (rows.frame.sort_values([*keys, "total_ns"], ignore_index=True) for rows in (self, other))
        if not mine[keys].equals(theirs[keys]):
            return False
        rounded = (self.resolution_ns + other.resolution_ns) / 2 * (mine["calls"] if self.of_launches else 1)
        return bool(((mine["total_ns"] - theirs["total_ns"]).abs() <= rounded).all())


def read(kind: str, found: Iterable[stats_output.Table]) -> Rows:
    """Return rows of ``kernels`` from the tables of ``kind`` of one capture. Raises ``Damaged`` for a contradiction.

    A report that was printed twice counts once, at its finest resolution.
    """
    known: list[Rows] = []
    times = _TIMES.get(kind, "total time")
    finest_first = sorted(
        (table for table in found if table.kind == kind), key=lambda table: table.resolution_ns(times)
    )
    for table in finest_first:
        frame = _read_launches(table) if kind in _LAUNCHES else _read_summary(table)
        rows = Rows(kind, frame, table.resolution_ns(times), kind in _TIMES)
        if not any(rows.repeat(other) for other in known):
            known.append(rows)
    if not known:
        return Rows(kind, schema.empty(schema.KERNELS), 0.0)
    return Rows(kind, pd.concat([rows.frame for rows in known]), max(rows.resolution_ns for rows in known))


def _read_launches(table: stats_output.Table) -> pd.DataFrame:
    names = table.column("name" if table.kind == "trace" else "kernel name")
    launches = pd.DataFrame({"duration_ns": table.times(_TIMES[table.kind])})
    launches["kernel"] = pd.Categorical(names)
    launches["kind"] = pd.Categorical([_kind_of(text) for text in names])
    for key, column in (("process", "pid"), ("device", "devid"), ("stream", "strm")):
        if table.has(column):
            launches[key] = pd.array(table.whole_numbers(column), dtype="Float64").astype("Int64")
    if table.has("device") and table.kind == "trace":
        ordinals = pd.Series(table.column("device")).str.extract(stats_output.DEVICE_ORDINAL)[0]
        launches["device"] = pd.to_numeric(ordinals).astype("Int64")
    if launches["duration_ns"].isna().any():
        raise stats_output.Damaged("a launch has no duration")
    return launch_tables.kernel_rows(launches)


def _read_summary(table: stats_output.Table) -> pd.DataFrame:
    name = next(c for c in ("kernel name", "name", "operation") if table.has(c))
    calls = table.whole_numbers(next(c for c in ("instances", "count") if table.has(c)))
    data: dict[str, Any] = {"kernel": table.column(name), "calls": calls}
    prefix = "k" if table.kind == "exec_sum" else ""
    for statistic, column in _STATISTICS.items():
        if table.has(prefix + statistic):
            data[column] = table.times(prefix + statistic)
    data["total_ns"] = data["mean_ns"] * calls if prefix else table.times("total time")
    data["kind"] = [_kind_of(text) for text in data["kernel"]]
    frame = pd.DataFrame(data)
    if table.has("category"):
        # cuda_api_gpu_sum counts the calls that launched the kernels too.
        frame = frame[~pd.Series(table.column("category")).str.contains("API")]
    _check(frame, table)
    frame["calls"] = frame["calls"].astype("Int64")
    frame.loc[frame["calls"] < 2, "stddev_ns"] = np.nan
    return schema.frame(schema.KERNELS, frame)


def _check(frame: pd.DataFrame, table: stats_output.Table) -> None:
    """Raise ``Damaged`` where a row of a summary is not whole, or its numbers contradict each other."""
    if frame[["calls", "total_ns"]].isna().any(axis=None) or (frame["calls"] < 1).any():
        raise stats_output.Damaged("a row has no time or no launches")
    if table.has("avg"):
        # This also finds a wrong decimal mark. nsys 2020 cuts the mean to whole ns.
        slack = frame["calls"] * max(table.resolution_ns("avg"), 1.0) + table.resolution_ns("total time")
        off = (frame["mean_ns"] * frame["calls"] - frame["total_ns"]).abs() > slack + 1e-9 * frame["total_ns"]
        if off.any():
            kernel = stats_output.printable(frame["kernel"][off].iloc[0])
            raise stats_output.Damaged(f"launches times mean are not the total in the row of {kernel!r}")


def _kind_of(name: str) -> str:
    """Distinguish copies and sets (``[CUDA memcpy HtoD]``, ``[CUDA memset]``) from kernels by their name."""
    if not name.startswith("[CUDA "):
        return "kernel"
    return "memset" if "memset" in name else "memcpy"


def merge(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Merge the rows of a kernel: a summary by launch shape has several, and so have two captures in one file."""
    if not parts:
        return schema.empty(schema.KERNELS)
    frame = pd.concat(parts)
    keys = [key for key in launch_tables.LAUNCH_KEYS if key in frame.columns]
    grouped = frame.groupby(keys, sort=False, dropna=False)
    merged = grouped.agg(
        calls=("calls", "sum"),
        total_ns=("total_ns", "sum"),
        median_ns=("median_ns", "first"),
        min_ns=("min_ns", lambda values: values.min(skipna=False)),
        max_ns=("max_ns", lambda values: values.max(skipna=False)),
    )
    merged["mean_ns"] = merged["total_ns"] / merged["calls"]
    several, alone = grouped.size() > 1, grouped["stddev_ns"].first()
    merged["stddev_ns"] = _common_stddev(frame, keys, merged).where(several, alone)
    merged.loc[several, "median_ns"] = pd.NA
    return schema.frame(schema.KERNELS, merged.reset_index())


def _common_stddev(frame: pd.DataFrame, keys: list[str], merged: pd.DataFrame) -> pd.Series[Any]:
    """Return the standard deviation from the squares inside each part and those of the parts' means."""
    mean = merged["mean_ns"].reindex(pd.MultiIndex.from_frame(frame[keys])).array
    inside = (frame["calls"] - 1) * frame["stddev_ns"].where(frame["calls"] > 1, 0.0) ** 2
    squares = inside + frame["calls"] * (frame["mean_ns"] - mean) ** 2
    total = squares.groupby([frame[key] for key in keys], sort=False, dropna=False).agg(
        lambda values: values.sum(skipna=False)
    )
    return ((total / (merged["calls"] - 1)) ** 0.5).where(merged["calls"] > 1)
