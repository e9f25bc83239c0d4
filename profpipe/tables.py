"""The schema of the four tables: one declaration drives checking, loading and documentation.

Times are nanoseconds and sizes bytes, converted once, in the parser, from the units that the file states. A value that
the tool did not give is missing (``NA``), never zero and never a default of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import pandas as pd

#: Raised whenever a column changes; stored in ``run.json`` so that an old run is read by the rules it was written by.
SCHEMA_VERSION: Final = 1

#: The range around each iteration of a case: ``profpipe:impl=fa2,seqlen=512``. Its instances count the iterations.
CASE_PREFIX: Final = "profpipe:"

#: Before the name of a range that torch's traces would have spoiled; the rest is the name, percent-encoded.
ENCODED_PREFIX: Final = "profpipe%"

#: Before the number of one of several processes, or of the GPU it ran on, where a metric is of that one alone.
RANK_PREFIX: Final = "rank "
DEVICE_PREFIX: Final = "device "

#: Between the ranges of a path, outermost first.
PATH_SEPARATOR: Final = " > "

STATUSES: Final = ("ok", "oom", "failed", "crashed", "timeout", "skipped")
#: Of a case that did not come to its end: what was measured of it until then is no result.
FAILED: Final = ("oom", "failed", "crashed", "timeout")
KINDS: Final = ("kernel", "memcpy", "memset", "graph", "cpu_op")


@dataclass(frozen=True)
class Column:
    """One column: ``dtype`` is ``str``, ``Int64`` or ``Float64`` (pandas' nullable types)."""

    name: str
    dtype: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def _key(*, profiler: str = "plain, torch, nsys, ncu or rocprof") -> tuple[Column, ...]:
    return (
        Column("run", "str", "name of the run's folder; empty for files read by `profpipe ingest`"),
        Column("workload", "str", "entry of pipeline.yaml; for `profpipe ingest` the file's name"),
        Column("case", "str", "point of the workload's matrix; empty: outside every case range"),
        Column("profiler", "str", profiler),
    )


CASES: Final = Table(
    "cases",
    "one workload's case under one profiler",
    (
        *_key(),
        Column("status", "str", "ok, oom, failed, crashed, timeout or skipped"),
        Column("reason", "str", "why it is not ok, and what to do about it"),
        Column("params", "str", "all parameters of the case, as a JSON object"),
        Column("seconds", "Float64", "wall time of the case in its process, set-up and warm-up included"),
        Column("flags", "str", "JSON list of validity marks"),
    ),
)

KERNELS: Final = Table(
    "kernels",
    "one kernel name, launch context and case",
    (
        *_key(),
        Column("source", "str", "the file, relative to the run's folder"),
        Column("process", "Int64", "process id; NA where the tool does not say"),
        Column("device", "Int64", "device ordinal in that process; NA where the tool does not say"),
        Column("stream", "Int64", "stream; NA where the tool does not say"),
        Column("phase", "str", "path of the user's ranges inside the case, outermost first, joined by ` > `"),
        Column("kind", "str", "as the tool recorded it: kernel, memcpy, memset, graph (a whole CUDA graph), cpu_op"),
        Column("kernel", "str", "name, demangled and spelt the same for every tool"),
        Column("kernel_class", "str", "what it does: attention, gemm, copy, add, ..."),
        Column("kernel_family", "str", "whose implementation: fa2, cudnn, sage1, ...; or empty"),
        Column("calls", "Int64", "launches"),
        Column("total_ns", "Float64", "sum of the launches' times"),
        Column("mean_ns", "Float64", "mean of single launches"),
        Column("median_ns", "Float64", "median of single launches; NA where the export has only sums"),
        Column("min_ns", "Float64", "shortest launch"),
        Column("max_ns", "Float64", "longest launch"),
        Column("stddev_ns", "Float64", "standard deviation (n - 1) of single launches; NA for fewer than two"),
    ),
)

RANGES: Final = Table(
    "ranges",
    "one range path and case",
    (
        *_key(),
        Column("source", "str", "the file, relative to the run's folder"),
        Column("process", "Int64", "process id; NA where the tool does not say"),
        Column("range", "str", "path of ranges inside the case; empty: the case's own range"),
        Column("instances", "Int64", "times the range was entered"),
        Column("wall_ns", "Float64", "sum of the instances' durations on the CPU"),
        Column("kernel_ns", "Float64", "sum of the kernels launched in it, nested ranges included, on any thread"),
        Column("kernels", "Int64", "number of those launches"),
        Column("busy_ns", "Float64", "union of those kernels' intervals: overlap counted once"),
        Column(
            "span_ns",
            "Float64",
            "of a case's own range: from the first kernel's start to the last one's end, by instance",
        ),
    ),
)

METRICS: Final = Table(
    "metrics",
    "one number",
    (
        *_key(),
        Column(
            "subject",
            "str",
            "empty: the case; else a kernel's name, the path of a range, a line of the source, a kept file, `rank 1`, "
            "`device 0`",
        ),
        Column("metric", "str", "name of the quantity"),
        Column("value", "Float64", "its value, in `unit`"),
        Column("unit", "str", "ns, byte, byte/s, flop, flop/s, %, 1, or the unit that the tool states"),
        Column("n", "Int64", "number of samples behind the value"),
        Column("ci_low", "Float64", "lower end of the 95 % confidence interval"),
        Column("ci_high", "Float64", "upper end of the 95 % confidence interval"),
    ),
)

ALL: Final = (CASES, KERNELS, RANGES, METRICS)

_EMPTY_OF: Final[Mapping[str, Any]] = {"str": "", "Int64": pd.NA, "Float64": pd.NA}


@dataclass(frozen=True)
class Origin:
    """What a file says of itself, and the two sums that prove nothing was lost or counted twice.

    ``launches`` and ``total_ns`` are counted straight from the file: every device kernel (kind ``kernel``), and no
    copies, sets or whole graphs. ``attributed_ns`` is the part of ``total_ns`` inside a case range, ``unattributed_ns``
    the rest; they add up to ``total_ns``. ``None``: the file does not say.
    """

    format: str = ""
    tool: str = ""
    tool_version: str = ""
    launches: int = 0
    total_ns: float | None = None
    attributed_ns: float | None = None
    unattributed_ns: float | None = None
    #: How launches were placed in ranges, in words for the report: "by the launching thread", "by time", ...
    attribution: str = ""
    #: The GPU's name where the file states it.
    device: str = ""
    #: What a reader must know: kernels hidden in graphs, ranges without an end, dropped rows, ...
    notes: tuple[str, ...] = ()


def empty(table: Table) -> pd.DataFrame:
    """A frame of ``table``'s columns and types without rows."""
    return frame(table, {})


def frame(table: Table, data: Mapping[str, Any] | Iterable[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """``data`` (columns, or rows) as a checked frame of ``table``: its columns, order and types; absent ones missing.

    Raises ``ValueError`` on a column that the table does not have, so that a typo never becomes a lost column.
    """
    given = data if isinstance(data, pd.DataFrame) else pd.DataFrame(_columns_of(data))
    if unknown := set(given.columns) - set(table.names):
        raise ValueError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    return pd.DataFrame({column.name: _cast(given, column) for column in table.columns})


def _columns_of(data: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Any:
    return data if isinstance(data, Mapping) else list(data)


def _cast(given: pd.DataFrame, column: Column) -> pd.Series[Any]:
    dtype: Any = "object" if column.dtype == "str" else column.dtype
    if column.name not in given.columns:
        return pd.Series(_EMPTY_OF[column.dtype], dtype=dtype, index=given.index)
    values = given[column.name]
    if column.dtype == "str":
        # NA in a text column would compare unequal to itself in every group-by; text is empty instead.
        return values.astype(object).where(values.notna(), "")
    return values.astype(dtype)


@dataclass(frozen=True)
class Tables:
    """The four tables, and where they came from."""

    cases: pd.DataFrame = field(default_factory=lambda: empty(CASES))
    kernels: pd.DataFrame = field(default_factory=lambda: empty(KERNELS))
    ranges: pd.DataFrame = field(default_factory=lambda: empty(RANGES))
    metrics: pd.DataFrame = field(default_factory=lambda: empty(METRICS))
    origin: Origin = field(default_factory=Origin)

    def with_columns(self, **values: str) -> Tables:
        """The same tables with whole columns set where they exist: ``run=``, ``workload=``, ``source=``, ..."""
        changed: dict[str, Any] = {}
        for table in ALL:
            old: pd.DataFrame = getattr(self, table.name)
            changed[table.name] = old.assign(**{k: v for k, v in values.items() if k in old.columns})
        return replace(self, **changed)


def concat(parts: Sequence[Tables]) -> Tables:
    """All rows of all parts; the origins stay with their files."""
    merged: dict[str, Any] = {}
    for table in ALL:
        frames = [f for part in parts if len(f := getattr(part, table.name))]
        merged[table.name] = pd.concat(frames, ignore_index=True) if frames else empty(table)
    return Tables(**merged)


def names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Tables) if f.name != "origin")


_COUNTERS = re.compile(r", (?:op_id|seq) = \d+")


def range_name(text: str) -> str:
    """A range's name without the counters that ``emit_nvtx`` appends (``aten::mm, op_id = 314290``).

    Every call would otherwise be a range of its own.
    """
    return _COUNTERS.sub("", text)


def split_path(path: Sequence[str]) -> tuple[str, str]:
    """(case, phase) of a launch inside ranges ``path``, outermost first.

    The innermost ``profpipe:`` range gives the case; only what is nested inside it is phase. Without one the case is
    empty and the phase is the whole path.
    """
    for depth in range(len(path) - 1, -1, -1):
        if path[depth].startswith(CASE_PREFIX):
            return path[depth].removeprefix(CASE_PREFIX), join_path(path[depth + 1 :])
    return "", join_path(path)


def join_path(path: Sequence[str]) -> str:
    return PATH_SEPARATOR.join(range_name(name) for name in path)


#: What identifies a row of `kernels` within one file.
LAUNCH_KEYS: Final = ("case", "process", "device", "stream", "phase", "kind", "kernel")


def summarise(launches: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``kernels`` (without class and family) from single launches.

    ``launches`` has one row a launch: ``duration_ns`` and any of ``LAUNCH_KEYS`` (a key that is absent is missing in
    the result; categoricals are cheapest). The statistics are of single launches; ``stddev_ns`` uses n - 1.
    """
    if launches.empty:
        return empty(KERNELS)
    keys = [key for key in LAUNCH_KEYS if key in launches.columns]
    codes, first_rows = _combinations([launches[key] for key in keys], len(launches))
    duration = launches["duration_ns"].to_numpy(dtype=np.float64)
    codes, duration = _sorted_within(codes, duration)
    start = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    count = np.diff(np.r_[start, len(codes)])
    total = np.add.reduceat(duration, start)
    mean = total / count
    result = launches[keys].iloc[first_rows].reset_index(drop=True)
    for key in keys:
        if isinstance(result[key].dtype, pd.CategoricalDtype):
            result[key] = result[key].astype(object)
    result["calls"] = count
    result["total_ns"], result["mean_ns"] = total, mean
    result["median_ns"] = (duration[start + (count - 1) // 2] + duration[start + count // 2]) / 2
    result["min_ns"], result["max_ns"] = duration[start], duration[start + count - 1]
    # In place, for with ten million launches each copy is 80 MB.
    duration -= np.repeat(mean, count)
    squares = np.add.reduceat(np.square(duration, out=duration), start)
    result["stddev_ns"] = np.sqrt(squares / np.maximum(count - 1, 1))
    result.loc[count < 2, "stddev_ns"] = np.nan
    return frame(KERNELS, result)


def _combinations(keys: list[pd.Series[Any]], rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(number of each row's combination of keys, first row of each combination), numbered in order of appearance."""
    codes, size = np.zeros(rows, dtype=np.int64), 1
    for key in keys:
        if isinstance(key.dtype, pd.CategoricalDtype):
            # Its codes are what factorizing would find; -1 is missing.
            code, values = key.cat.codes.to_numpy().astype(np.int64) + 1, len(key.cat.categories) + 1
        else:
            code, found = pd.factorize(key, use_na_sentinel=False)
            values = len(found)
        if size * values > 2**62:
            codes, kept = pd.factorize(codes)
            size = len(kept)
        codes *= values
        codes += code
        size *= values
    codes, kept = pd.factorize(codes)
    first_rows = np.zeros(len(kept), dtype=np.int64)
    first_rows[codes[::-1]] = np.arange(rows - 1, -1, -1)
    return codes, first_rows


def _sorted_within(
    codes: np.ndarray[Any, Any], duration: np.ndarray[Any, np.dtype[np.float64]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.float64]]]:
    """Both ordered by code, and by duration within each code."""
    low, high = float(duration.min()), float(duration.max())
    bits = int(codes.max()).bit_length()
    if low >= 0 and high < 2.0 ** (62 - bits) and np.array_equal(duration, np.rint(duration)):
        # Whole ns packed below their code: sorting plain integers is ten times as fast as a sort by two keys.
        shift = 62 - bits
        packed = codes << shift
        packed |= duration.astype(np.int64)
        packed.sort()
        return packed >> shift, (packed & ((1 << shift) - 1)).astype(np.float64)
    order = np.lexsort((duration, codes))
    return codes[order], duration[order]


def documentation() -> str:
    """The tables as Markdown, for the README; made from the declaration so that it cannot drift."""
    blocks = []
    for table in ALL:
        rows = [f"| `{c.name}` | {c.dtype} | {c.meaning} |" for c in table.columns]
        head = ["| column | type | meaning |", "| --- | --- | --- |"]
        blocks.append("\n".join([f"`{table.name}`: {table.row}", "", *head, *rows]))
    return "\n\n".join(blocks)
