"""Read what `nsys stats` prints: CSV, TSV, and its two kinds of text tables, of all versions since 2020.

A file may hold several reports, and the same kernels in several of them. Text tables have the thousands separators and
decimal commas of the locale. Sources: nsys 2022.4 and 2023.4 as run, 2020 and 2024 as recorded by others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe import errors
from profpipe.ingest import attribution, bounds, foreign_files, kernel_classes, launch_tables, nsys_stats
from profpipe.results import schema

FORMATS = (
    "nsys stats reports: CSV, TSV and text tables (gpukernsum, cuda_gpu_kern_sum, cuda_gpu_trace, nvtx_sum, ...)",
)

_REMEDY: Final = (
    "Make it again from a report that holds kernels: nsys stats -q -r cuda_gpu_kern_sum -f csv -o OUT REPORT.nsys-rep "
    "(gpukernsum before 2023), or export to SQLite, which holds more."
)
_SNIFFED_BYTES: Final = 1 << 20
_SNIFFED_LINES: Final = 10_000

_VERSION = re.compile(r"nsight[-_ ]?systems?[^\]\n]*?[/\\-](\d{4}\.\d+(?:\.\d+)*)", re.IGNORECASE)
_CUT: Final = ("…", "...", "\u00e2\u20ac\u00a6", "\ufffd")

#: Tables with kernels, the finest first.
_KERNEL_TABLES: Final = {
    "trace": "cuda_gpu_trace (single launches)",
    "exec_trace": "cuda_kern_exec_trace (single launches)",
    "grid_sum": "the kernel summary by launch shape",
    "kernel_sum": "the kernel summary",
    "gpu_sum": "cuda_gpu_sum",
    "exec_sum": "cuda_kern_exec_sum (means only)",
}
#: Coarser times do not distinguish short kernels.
_COARSE_NS: Final = 1000.0


def sniff(path: Path) -> bool:
    """Return True for text with a banner or a table of `nsys stats`."""
    with path.open("rb") as file:
        content = file.read(_SNIFFED_BYTES)
    if content.startswith(bounds.SQLITE_HEAD):
        return False  # Decoding a megabyte of what is no text is slow.
    text = nsys_stats.decode(content)
    return "\0" not in text[:4096] and nsys_stats.holds_tables(text.split("\n"))


def parse(path: Path) -> schema.Tables:
    """Read kernels, copies and ranges. Raises ``UnreadableFile`` where a file has none, or a table is damaged."""
    try:
        return _parse(nsys_stats.decode(path.read_bytes()).split("\n"))
    except nsys_stats.Damaged as damage:
        foreign_files.refuse(path)
        raise errors.UnreadableFile(path, str(damage), _REMEDY) from damage


def _parse(lines: list[str]) -> schema.Tables:
    tables, remarks = nsys_stats.tables_in(lines)
    version = next((m for line in lines[:_SNIFFED_LINES] if (m := _VERSION.search(line))), None)
    lines.clear()
    notes: list[str] = []
    chosen = []
    for capture in dict.fromkeys(table.made_from for table in tables):
        chosen += _choose([table for table in tables if table.made_from == capture], notes)
    ranges = _range_rows(tables)
    if not chosen and ranges.empty:
        remark = f", only nsys' own words ({nsys_stats.printable(remarks[0])})" if remarks else ""
        raise nsys_stats.Damaged(f"holds no kernels{remark}" if tables or remark else "holds only banners, no table")
    frame = _merge(chosen)
    kernels = frame[frame["kind"] == "kernel"]
    total = float(kernels["total_ns"].sum()) if len(kernels) else None
    named = {
        cell for table in tables if table.kind == "trace" and table.has("device") for cell in table.column("device")
    }
    return schema.Tables(
        kernels=kernel_classes.annotate(frame).assign(profiler="nsys"),
        ranges=ranges.assign(profiler="nsys"),
        origin=schema.Origin(
            format="nsys stats reports",
            tool="nsys",
            tool_version=version[1] if version else "",
            launches=int(kernels["calls"].sum()),
            total_ns=total,
            attributed_ns=None if total is None else 0.0,
            unattributed_ns=total,
            attribution={schema.Placement.NOT_SHOWN: None} if len(kernels) else {},
            device=", ".join(sorted({nsys_stats.DEVICE_ORDINAL.sub("", name) for name in named} - {""})),
            notes=(*notes, *_notes(frame, tables)),
            without_kernels="" if (frame["kind"] == "kernel").any() else "no kernels in this file",
        ),
    )


def _choose(tables: Sequence[nsys_stats.StatsTable], notes: list[str]) -> list[pd.DataFrame]:
    """Choose the tables of one kind, so that no kernel of the capture counts twice."""
    read = (_kernel_rows(kind, tables) for kind in _KERNEL_TABLES)
    offers = [rows for rows in read if len(rows.kernels)]
    copies = _kernel_rows("memory_sum", tables).frame
    if not offers:
        return [copies] if len(copies) else []
    best = _best(offers, notes)
    if best.launches and not best.kernels["total_ns"].sum():
        raise nsys_stats.Damaged("all times are rounded to zero")
    if best.resolution_ns > _COARSE_NS:
        notes.append(f"times are rounded to {best.resolution_ns / 1000:g} us in the file")
    # A trace and a cuda_gpu_sum include the copies.
    return [best.frame] if best.kind in ("trace", "gpu_sum") or not len(copies) else [best.frame, copies]


def _best(offers: list[_KernelRows], notes: list[str]) -> _KernelRows:
    # A trace in seconds shows 0.0000 for most kernels; a summary in the same file has more digits.
    offers.sort(key=lambda offer: offer.resolution_ns > _COARSE_NS)
    best = offers[0]
    for other in offers[1:]:
        missing = other.launches - best.launches
        if missing > 0:
            notes.append(f"{_KERNEL_TABLES[best.kind]} lacks {missing} of the launches that another table counts")
            best = other
    if len(offers) > 1:
        others = ", ".join(_KERNEL_TABLES[offer.kind] for offer in offers if offer is not best)
        notes.append(f"kernels are from {_KERNEL_TABLES[best.kind]}; not counted again: {others}")
    return best


def _notes(frame: pd.DataFrame, tables: Sequence[nsys_stats.StatsTable]) -> list[str]:
    notes = []
    cut = frame["kernel"].astype(str).str.endswith(_CUT)
    if cut.any():
        notes.append(
            f"{cut.sum()} kernel names are cut with an ellipsis: kernels that begin alike may share a row, and some "
            "cannot be classified; the CSV format has whole names"
        )
    if any(table.kind == "range_kernels" for table in tables) and not (frame["kind"] == "kernel").any():
        notes.append("nvtx_kern_sum credits a kernel to every range around it, so it gives no total of all kernels")
    for table in tables:
        if table.kind in ("grid_sum", "kernel_sum") and table.has("time"):
            share = float(np.nansum(table.numbers("time")))
            # Each percentage is rounded to a tenth.
            if share < 99.9 - 0.05 * len(table.cells):
                notes.append(f"the table was cut: its rows make up {share:.1f} % of the kernel time")
    return notes


# --- kernels: single launches, or sums by name or shape --------------------------------------------------------------

_STATISTICS: Final = {"avg": "mean_ns", "med": "median_ns", "min": "min_ns", "max": "max_ns", "stddev": "stddev_ns"}
_LAUNCHES: Final = ("trace", "exec_trace")
#: The column of a launch's time, or of the mean, in tables without a total.
_TIMES: Final = {"trace": "duration", "exec_trace": "kernel dur", "exec_sum": "kavg"}


@dataclass(frozen=True)
class _KernelRows:
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

    def repeat(self, other: _KernelRows) -> bool:
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


def _kernel_rows(kind: str, tables: Iterable[nsys_stats.StatsTable]) -> _KernelRows:
    """Return rows of ``kernels`` from the tables of ``kind`` of one capture. Raises ``Damaged`` for a contradiction.

    A report that was printed twice counts once, at its finest resolution.
    """
    distinct: list[_KernelRows] = []
    times = _TIMES.get(kind, "total time")
    finest_first = sorted(
        (table for table in tables if table.kind == kind), key=lambda table: table.resolution_ns(times)
    )
    for table in finest_first:
        frame = _read_launches(table) if kind in _LAUNCHES else _read_summary(table)
        rows = _KernelRows(kind, frame, table.resolution_ns(times), kind in _TIMES)
        if not any(rows.repeat(other) for other in distinct):
            distinct.append(rows)
    if not distinct:
        return _KernelRows(kind, schema.empty(schema.KERNELS), 0.0)
    return _KernelRows(kind, pd.concat([rows.frame for rows in distinct]), max(rows.resolution_ns for rows in distinct))


def _read_launches(table: nsys_stats.StatsTable) -> pd.DataFrame:
    names = table.column("name" if table.kind == "trace" else "kernel name")
    launches = pd.DataFrame({"duration_ns": table.times(_TIMES[table.kind])})
    launches["kernel"] = pd.Categorical(names)
    launches["kind"] = pd.Categorical([_kind_of(text) for text in names])
    for key, column in (("process", "pid"), ("device", "devid"), ("stream", "strm")):
        if table.has(column):
            launches[key] = pd.array(table.whole_numbers(column), dtype="Float64").astype("Int64")
    if table.has("device") and table.kind == "trace":
        ordinals = pd.Series(table.column("device")).str.extract(nsys_stats.DEVICE_ORDINAL)[0]
        launches["device"] = pd.to_numeric(ordinals).astype("Int64")
    if launches["duration_ns"].isna().any():
        raise nsys_stats.Damaged("a launch has no duration")
    return launch_tables.kernel_rows(launches)


def _read_summary(table: nsys_stats.StatsTable) -> pd.DataFrame:
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


def _check(frame: pd.DataFrame, table: nsys_stats.StatsTable) -> None:
    """Raise ``Damaged`` where a row of a summary is not whole, or its numbers contradict each other."""
    if frame[["calls", "total_ns"]].isna().any(axis=None) or (frame["calls"] < 1).any():
        raise nsys_stats.Damaged("a row has no time or no launches")
    if table.has("avg"):
        # This also finds a wrong decimal mark. nsys 2020 cuts the mean to whole ns.
        slack = frame["calls"] * max(table.resolution_ns("avg"), 1.0) + table.resolution_ns("total time")
        off = (frame["mean_ns"] * frame["calls"] - frame["total_ns"]).abs() > slack + 1e-9 * frame["total_ns"]
        if off.any():
            kernel = nsys_stats.printable(frame["kernel"][off].iloc[0])
            raise nsys_stats.Damaged(f"launches times mean are not the total in the row of {kernel!r}")


def _kind_of(name: str) -> str:
    """Distinguish copies and sets (``[CUDA memcpy HtoD]``, ``[CUDA memset]``) from kernels by their name."""
    if not name.startswith("[CUDA "):
        return "kernel"
    return "memset" if "memset" in name else "memcpy"


def _merge(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
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
    """Return the standard deviation from the squares inside the parts and those of the parts' means."""
    mean = merged["mean_ns"].reindex(pd.MultiIndex.from_frame(frame[keys])).array
    inside = (frame["calls"] - 1) * frame["stddev_ns"].where(frame["calls"] > 1, 0.0) ** 2
    squares = inside + frame["calls"] * (frame["mean_ns"] - mean) ** 2
    total = squares.groupby([frame[key] for key in keys], sort=False, dropna=False).agg(
        lambda values: values.sum(skipna=False)
    )
    return ((total / (merged["calls"] - 1)) ** 0.5).where(merged["calls"] > 1)


# --- ranges: only traces say how they nest ---------------------------------------------------------------------------

_KEYS: Final = ["process", "case", "range"]
_INSIDE: Final = ["kernels", "kernel_ns"]
_VALUES: Final = ["instances", "wall_ns", *_INSIDE]


def _range_rows(tables: Sequence[nsys_stats.StatsTable]) -> pd.DataFrame:
    """Return the sums of the ranges over all captures; a value that one capture lacks is missing."""
    captures = dict.fromkeys(table.made_from for table in tables)
    parts = [_merge_reports([table for table in tables if table.made_from == capture]) for capture in captures]
    if not (parts := [part for part in parts if len(part)]):
        return schema.empty(schema.RANGES)
    rows = pd.concat(parts).reindex(columns=[*_KEYS, *_VALUES])
    summed = rows.groupby(_KEYS, sort=False, dropna=False).agg(lambda values: values.sum(skipna=False))
    return schema.frame(schema.RANGES, summed.reset_index())


def _merge_reports(tables: Sequence[nsys_stats.StatsTable]) -> pd.DataFrame:
    """Return wall times from traces, else from sums; with the kernels where a report has them."""
    traces = [_read_trace(table) for table in tables if table.kind == "range_trace"]
    sums = [_read_sum(table) for table in tables if table.kind == "range_sum"]
    inside = [table for table in tables if table.kind == "range_kernels"]
    # Several reports hold the same ranges, and one may have been printed twice, by its old name and its new one.
    walls = _together(traces or sums).drop_duplicates(_KEYS)
    kernels = _together(_once(inside))
    if walls.empty:
        return kernels.groupby(_KEYS, sort=False, dropna=False)[_INSIDE].sum().reset_index()
    keys = ["process", "name"] if walls["process"].notna().all() else ["name"]
    joined = walls.drop(columns=_INSIDE).join(kernels.groupby(keys, sort=False)[_INSIDE].sum(), on=keys)
    # A sum by name cannot be divided among several ranges of this name.
    joined.loc[walls.duplicated(keys, keep=False), _INSIDE] = float("nan")
    return joined


def _once(inside: Iterable[nsys_stats.StatsTable]) -> list[pd.DataFrame]:
    """Return the rows of a report once, at its finest resolution."""
    keys = ["process", "name", "kernels"]
    kept: list[tuple[float, pd.DataFrame]] = []
    for table in sorted(inside, key=lambda table: table.resolution_ns("total time")):
        resolution_ns, frame = table.resolution_ns("total time"), _read_range_kernels(table)
        frame = frame.sort_values([*keys, "kernel_ns"], ignore_index=True)
        for finer_ns, other in kept:
            rounded = 0.0 if finer_ns == resolution_ns else (finer_ns + resolution_ns) / 2
            if frame[keys].equals(other[keys]) and ((frame["kernel_ns"] - other["kernel_ns"]).abs() <= rounded).all():
                break
        else:
            kept.append((resolution_ns, frame))
    return [frame for _, frame in kept]


def _together(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Join frames to the columns ``_KEYS``, ``_VALUES`` and ``name``, the range without those around it."""
    given = list(frames)
    return (pd.concat(given) if given else pd.DataFrame()).reindex(columns=[*_KEYS, "name", *_VALUES])


def _read_sum(table: nsys_stats.StatsTable) -> pd.DataFrame:
    frame = _bare(table.column("range"))
    frame["instances"] = table.whole_numbers("instances")
    frame["wall_ns"] = table.times("total time")
    return frame.groupby(["case", "range", "name"], sort=False).sum().reset_index()


def _read_range_kernels(table: nsys_stats.StatsTable) -> pd.DataFrame:
    """Return kernels by range from nvtx_kern_sum, which counts a kernel in all ranges around it, as our tables do."""
    frame = _bare(table.column("nvtx range"))
    frame["process"] = table.whole_numbers("pid") if table.has("pid") else float("nan")
    frame["kernels"] = table.whole_numbers("kern inst")
    frame["kernel_ns"] = table.times("total time")
    return frame[[not nsys_stats.is_missing(text) for text in table.column("nvtx range")]]


def _read_trace(table: nsys_stats.StatsTable) -> pd.DataFrame:
    paths = _paths(table)
    frame = pd.DataFrame([schema.split_path(path) for path in paths], columns=["case", "range"])
    frame["name"] = [path[-1] for path in paths]
    frame["process"] = table.whole_numbers("pid") if table.has("pid") else float("nan")
    frame["wall_ns"] = table.times("duration")
    grouped = frame.groupby([*_KEYS, "name"], sort=False, dropna=False)["wall_ns"]
    return grouped.agg(instances="count", wall_ns="sum").reset_index()


def _name(text: str) -> str:
    """Remove the colon behind the empty name of the default domain (nsys 2024)."""
    return schema.range_name(text.removeprefix(":"))


def _bare(texts: list[str]) -> pd.DataFrame:
    """Return ``name``, ``case`` and ``range`` of ranges without parents."""
    names = [_name(text) for text in texts]
    frame = pd.DataFrame([schema.split_path([name]) for name in names], columns=["case", "range"])
    return frame.assign(name=names)


def _paths(table: nsys_stats.StatsTable) -> list[list[str]]:
    """Return by row the names of its range and the ranges around it, outermost first."""
    parents = dict(zip(table.column("rangeid"), table.column("parentid"), strict=True))
    names = dict(zip(table.column("rangeid"), table.column("name"), strict=True))
    paths = attribution.Paths()
    node: dict[str, int] = {}
    for number in names:
        chain = [number]
        while chain[-1] not in node and (parent := parents.get(chain[-1])) in names and parent not in chain:
            chain.append(parent)
        for link in reversed(chain):
            if link not in node:
                node[link] = paths.child(node.get(parents[link], 0), _name(names[link]))
    return [paths.names_of(node[number]) for number in table.column("rangeid")]
