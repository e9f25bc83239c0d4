"""What `nsys stats` prints: CSV, TSV, and its two kinds of text tables, of every version since 2020.

A file may hold several reports with banners between them, and the same kernels in several of them. What a table is, its
columns say; the banners give only what it was made from. Layouts: nsys 2022.4 and 2023.4 as run, 2020 and 2024 as
recorded. Numbers may carry thousands separators and decimal commas, for the text tables follow the locale.
"""

from __future__ import annotations

import codecs
import csv
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe import attribution, errors, kernels, tables

FORMATS = (
    "nsys stats reports: CSV, TSV and text tables (gpukernsum, cuda_gpu_kern_sum, cuda_gpu_trace, nvtx_sum, ...)",
)

_REMEDY: Final = (
    "Make it again from a report that holds kernels: nsys stats -q -r cuda_gpu_kern_sum -f csv -o OUT REPORT.nsys-rep "
    "(gpukernsum before 2023), or export to SQLite, which holds more."
)
_SNIFFED_BYTES: Final = 1 << 20
_SNIFFED_LINES: Final = 10_000
#: Columns of traces that no table has a place for; kept out of memory.
_UNREAD: Final = {
    "corrid", "grdx", "grdy", "grdz", "blkx", "blky", "blkz", "reg/trd", "stcsmem", "dymsmem", "bytes", "throughput",
    "thru", "srcmemkd", "dstmemkd", "ctx", "greenctx", "blockxyz",
}  # fmt: skip
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

_MADE_FROM = re.compile(r"\s*Processing \[(.*)\] with \[(?:.*[/\\])?(\w+)(?:\.py)?[^\]]*\]")
_TITLE = re.compile(r"\s*\*\* .*\((\w+)[^)]*\):\s*$")
_REMARK = re.compile(r"\s*(SKIPPED|ERROR)\b:?.*")
_RULER = re.compile(r"\s*-{2,}(\s+-{2,})+\s*$")
_BOX = re.compile(r"\s*\+(-+\+)+\s*$")
_LIKE_HEADER = re.compile(r"Total Time|Duration|Kernel Name")
_VERSION = re.compile(r"nsight[-_ ]?systems?[^\]\n]*?[/\\-](\d{4}\.\d+(?:\.\d+)*)", re.IGNORECASE)
_CUT: Final = ("…", "...", "\u00e2\u20ac\u00a6", "\ufffd")

#: ns in a unit, as headers write it: `Total Time (ns)`, `Duration(nsec)`, `Start:ts_ns`.
_UNITS: Final = {
    "ns": 1.0, "nsec": 1.0, "nanoseconds": 1.0, "us": 1e3, "µs": 1e3, "usec": 1e3, "microseconds": 1e3, "ms": 1e6,
    "msec": 1e6, "milliseconds": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9,
}  # fmt: skip
_ALIASES: Final = {
    "average": "avg", "minimum": "min", "maximum": "max", "median": "med", "operations": "count", "calls": "num calls",
}  # fmt: skip
_STATISTICS: Final = {"avg": "mean_ns", "med": "median_ns", "min": "min_ns", "max": "max_ns", "stddev": "stddev_ns"}
#: Where kernels are read from, the finest first: single launches, by launch shape, by name.
_KERNEL_TABLES: Final = {
    "trace": "cuda_gpu_trace (single launches)",
    "exec_trace": "cuda_kern_exec_trace (single launches)",
    "grid_sum": "the kernel summary by launch shape",
    "kernel_sum": "the kernel summary",
    "gpu_sum": "cuda_gpu_sum",
    "exec_sum": "cuda_kern_exec_sum (means only)",
}
#: Times rounded more coarsely than this do not tell short kernels apart.
_COARSE_NS: Final = 1000.0


class _Damaged(Exception):
    """What is wrong with the file, for the line that refuses it."""


@dataclass
class _Table:
    """One table as printed, without the columns that nothing is read from; ``scale``: ns of each column's unit."""

    kind: str
    made_from: str
    columns: list[str]
    scale: dict[str, float]
    cells: list[list[str]] = field(default_factory=list)

    def column(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in self.cells]

    def has(self, *names: str) -> bool:
        return set(names) <= set(self.columns)


# --- text -> tables as printed ---------------------------------------------------------------------------------------


def _decode(content: bytes) -> str:
    # PowerShell writes redirected output as UTF-16.
    encoding = next((name for bom, name in _BOMS if content.startswith(bom)), "utf-8")
    return content.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        content = file.read(_SNIFFED_BYTES)
    text = _decode(content)
    if "\0" in text[:4096]:
        return False
    lines = text.split("\n")
    return any(_MADE_FROM.match(line) or _TITLE.match(line) or _header(lines, i) for i, line in enumerate(lines))


def _header(lines: Sequence[str], at: int) -> tuple[_Table, _Layout] | None:
    """The table whose header is line ``at``, and how its rows are laid out; None where it is no header."""
    line = lines[at]
    if len(line) > 4096 or not _LIKE_HEADER.search(line):
        return None
    below = lines[at + 1] if at + 1 < len(lines) else ""
    layouts = [_Layout(delimiter=d) for d in ",;\t" if d in line]
    if _RULER.match(below):
        layouts = [_Layout(slices=tuple(m.span() for m in re.finditer("-+", below)))]
    elif _BOX.match(below):
        layouts = [_Layout(delimiter="|")]
    for layout in layouts:
        named = [_column(cell) for cell in layout.split(line)]
        columns = [name for name, _ in named]
        if kind := _kind(set(columns)):
            units = {name: unit for name, unit in named if unit}
            # Before 2021 only the total has its unit written; the others are in the same.
            default = next(iter(units.values()), 1.0)
            kept = tuple(i for i, name in enumerate(columns) if name not in _UNREAD)
            read = [columns[i] for i in kept]
            table = _Table(kind, "", read, {name: units.get(name, default) for name in read})
            return table, replace(layout, width=len(columns), kept=kept)
    return None


@dataclass(frozen=True)
class _Layout:
    """How a table's lines are divided: by a delimiter, or at the places that the ruler below the header marks."""

    delimiter: str = ""
    slices: tuple[tuple[int, int], ...] = ()
    width: int = 0
    kept: tuple[int, ...] = ()

    def split(self, line: str) -> list[str]:
        if self.delimiter == "|":
            return [cell.strip() for cell in line.strip().strip("|").split("|")]
        if self.delimiter:
            return next(csv.reader([line], delimiter=self.delimiter), [])
        # The last column is as wide as its widest value, or cut by whoever copied it.
        ends = [end for _, end in self.slices[:-1]] + [len(line)]
        return [line[start:end].strip() for (start, _), end in zip(self.slices, ends, strict=True)]

    def fits(self, line: str) -> bool:
        """Whether ``line`` is blank between the columns."""
        gaps = zip(self.slices, self.slices[1:], strict=False)
        return all(not line[end:start].strip() for (_, end), (start, _) in gaps)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:100]


def _column(cell: str) -> tuple[str, float | None]:
    """(name in one spelling, ns of its unit): ``Avg (ns)``, ``Time(%)``, ``Duration(nsec)``, ``Start:ts_ns``."""
    found = re.fullmatch(r"(.*?)\s*(?:\(([^)]*)\)|:\w+_(\S+))?", cell.strip().strip('"'))
    assert found is not None
    name = found[1].lower()
    return _ALIASES.get(name, name), _UNITS.get(found[2] or found[3] or "")


def _kind(columns: set[str]) -> str:
    """What a table of these columns is; empty where it is none that we know."""
    has = columns.issuperset
    if has({"start", "duration", "name"}):
        return "trace" if columns & {"grdx", "strm"} else "range_trace" if has({"parentid", "rangeid"}) else "other"
    if "kernel name" in columns:
        shapes = {"exec_trace": {"kernel dur"}, "exec_sum": {"kavg", "count"}, "range_kernels": {"nvtx range"}}
        return next((kind for kind, needed in shapes.items() if has(needed)), "")
    if "total time" not in columns:
        return ""
    if has({"instances", "category", "operation"}):
        return "gpu_sum"
    if has({"count", "operation"}):
        return "memory_sum"
    if has({"instances", "name"}) and not columns & {"source", "style"}:
        return "grid_sum" if "gridxyz" in columns else "kernel_sum"
    return "range_sum" if has({"instances", "range"}) else "other"


def _tables_in(lines: Sequence[str]) -> tuple[list[_Table], list[str]]:
    """All tables, and nsys' own remarks (``SKIPPED: ...``) where it made none."""
    found: list[_Table] = []
    remarks: list[str] = []
    made_from, report = "", ""
    current: tuple[_Table, _Layout] | None = None
    for at, line in enumerate(lines):
        if current and line[:1].isdigit():
            # Nothing but a row begins with a digit: of a million lines few need a closer look.
            pass
        elif banner := _MADE_FROM.match(line):
            made_from, report, current = banner[1], banner[2], None
        elif title := _TITLE.match(line):
            report, current = title[1], None
        elif _REMARK.match(line):
            remarks.append(line.strip())
            current = None
        elif not line.strip():
            current = None
        elif _RULER.match(line) or _BOX.match(line):
            continue
        elif header := _header(lines, at):
            current = header
            # MPI, OpenGL and OpenMP summaries have the columns of kernels and ranges; their banner tells them apart.
            if not report or report.startswith(("cuda", "gpu", "kern", "nvtx", "apigpu")):
                header[0].made_from = made_from
                found.append(header[0])
            continue
        if current and not _append(line, *current, is_last=at == len(lines) - 1):
            current = None
    return [table for table in found if table.cells], remarks


def _append(line: str, table: _Table, layout: _Layout, is_last: bool) -> bool:
    """Adds the row that ``line`` is; False where it is none: other output may follow a table without a blank line."""
    cells, wanted = layout.split(line), layout.width
    if len(cells) > wanted and layout.delimiter:
        # A name with commas that somebody has unquoted; it stands last.
        cells = [*cells[: wanted - 1], layout.delimiter.join(cells[wanted - 1 :])]
    whole = len(cells) == wanted and bool(cells[-1]) and layout.fits(line)
    if not whole and is_last:
        # What a program prints ends with a line break; this file does not.
        raise _Damaged(f"is cut short in its last row, {_printable(line.strip())!r}")
    if not whole and len(cells) > 1 and not layout.slices:
        raise _Damaged(f"a row has {len(cells)} of {wanted} columns, {_printable(line.strip())!r}")
    if whole:
        # One string for each name, not one a row.
        table.cells.append([sys.intern(cells[i].strip()) for i in layout.kept])
    return whole


# --- numbers ---------------------------------------------------------------------------------------------------------

_NUMERAL = re.compile(r"[+-]?\d[\d.,]*(?:[eE][+-]?\d+)?$")
_FLOAT = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?$")
#: Blanks and apostrophes only ever group digits.
_GROUPING = re.compile(r"(?<=\d)['\u2019\u00a0\u202f ](?=\d{3})")
_MISSING: Final = {"", "none", "nan", "-", "n/a"}


def _decimal_mark(found: list[_Table]) -> str:
    """``.`` or ``,``: what the file's numbers show. `64.000` alone may be 64 or 64000; its neighbours tell."""
    votes = {".": 0, ",": 0}
    for table in found:
        for row in table.cells[:200]:
            for cell in row:
                token = _GROUPING.sub("", cell)
                if _NUMERAL.match(token) and (mark := _shown_mark(token)):
                    votes[mark] += 1
    return "," if votes[","] > votes["."] else "."


def _shown_mark(token: str) -> str:
    """The decimal mark that this numeral proves; empty where it proves none."""
    marks = [c for c in token if c in ".,"]
    if not marks:
        return ""
    other = {".": ",", ",": "."}
    if len(set(marks)) == 2:
        return marks[-1]
    if len(marks) > 1:
        return other[marks[0]]
    before, after = re.split("[.,]", token)
    return marks[0] if len(after) != 3 or len(before.lstrip("+-")) > 3 or before.lstrip("+-") == "0" else ""


def _number(cell: str, mark: str) -> float:
    """The number in ``cell``, NaN where it is missing."""
    if cell.lower() in _MISSING:
        return np.nan
    token = _GROUPING.sub("", cell).replace("," if mark == "." else ".", "").replace(mark, ".")
    if not _FLOAT.match(token):
        raise _Damaged(f"{_printable(cell)!r} stands where a number should")
    return float(token)


def _numbers(table: _Table, name: str, mark: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([_number(cell, mark) for cell in table.column(name)], dtype=np.float64)


def _times(table: _Table, name: str, mark: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of times in ns; products like 2475.687 us * 1000 are brought back to the ns that they were."""
    return np.round(_numbers(table, name, mark) * table.scale[name], 3)


def _resolution_ns(table: _Table, name: str, mark: str) -> float:
    """The ns of the last digit that a column of times prints."""
    decimals = max((len(c.rpartition(mark)[2]) if mark in c else 0 for c in table.column(name)), default=0)
    return float(table.scale[name]) / 10.0**decimals


# --- the tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kernels:
    """Rows of ``kernels`` from one kind of table of one capture, and how finely their times are printed."""

    kind: str
    frame: pd.DataFrame
    resolution_ns: float

    @property
    def own(self) -> pd.DataFrame:
        return self.frame[self.frame["kind"] == "kernel"]

    @property
    def total_ns(self) -> float:
        return float(self.own["total_ns"].sum())

    @property
    def launches(self) -> int:
        return int(self.own["calls"].sum())


def parse(path: Path) -> tables.Tables:
    try:
        return _parse(_decode(path.read_bytes()).split("\n"))
    except _Damaged as damage:
        raise errors.Refused(path, str(damage), _REMEDY) from damage


def _parse(lines: list[str]) -> tables.Tables:
    found, remarks = _tables_in(lines)
    version = next((m for line in lines[:_SNIFFED_LINES] if (m := _VERSION.search(line))), None)
    lines.clear()
    mark = _decimal_mark(found)
    notes: list[str] = []
    chosen = []
    for capture in dict.fromkeys(table.made_from for table in found):
        chosen += _choose([table for table in found if table.made_from == capture], mark, notes)
    ranges = _ranges(found, mark)
    if not chosen and ranges.empty:
        raise _Damaged(_why_empty(found, remarks))
    frame = pd.concat([part.frame for part in chosen]) if chosen else tables.empty(tables.KERNELS)
    merged = _merge(frame) if chosen else frame
    own = merged[merged["kind"] == "kernel"]
    total = float(own["total_ns"].sum()) if len(own) else None
    return tables.Tables(
        kernels=kernels.annotate(merged).assign(profiler="nsys"),
        ranges=ranges.assign(profiler="nsys"),
        origin=tables.Origin(
            format="nsys stats reports",
            tool="nsys",
            tool_version=version[1] if version else "",
            launches=int(own["calls"].sum()),
            total_ns=total,
            attributed_ns=None if total is None else 0.0,
            unattributed_ns=total,
            attribution="none: these reports do not say in which range a kernel was launched",
            device=_device(found),
            notes=(*notes, *_notes(merged, found, mark)),
        ),
    )


def _why_empty(found: list[_Table], remarks: list[str]) -> str:
    if remarks:
        return f"holds no kernels, only nsys' own words ({_printable(remarks[0])})"
    return "holds no kernels" if found else "holds only banners, no table"


def _choose(found: list[_Table], mark: str, notes: list[str]) -> list[_Kernels]:
    """Of the tables that one capture's kernels are told in, those of one kind, so that none counts twice."""
    offers = [offer for kind in _KERNEL_TABLES if (offer := _offer(kind, found, mark))]
    if not offers:
        memory = _read([table for table in found if table.kind == "memory_sum"], mark)
        return [_Kernels("memory_sum", memory, 1.0)] if len(memory) else []
    # A trace in seconds shows 0.0000 for most kernels; a summary in the same file shows more.
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
    if best.launches and not best.total_ns:
        raise _Damaged("all times are rounded to zero")
    if best.resolution_ns > _COARSE_NS:
        notes.append(f"times are rounded to {best.resolution_ns / 1000:g} us in the file")
    if best.kind in ("trace", "gpu_sum"):
        return [best]
    copies = _read([table for table in found if table.kind in ("memory_sum",)], mark)
    return [best, _Kernels("memory_sum", copies, 1.0)] if len(copies) else [best]


def _offer(kind: str, found: list[_Table], mark: str) -> _Kernels | None:
    """The kernels as tables of ``kind`` tell them; a report that was printed twice (`base` names) counts once."""
    tables_of_kind = [table for table in found if table.kind == kind]
    known: dict[tuple[int, float], pd.DataFrame] = {}
    for table in tables_of_kind:
        frame = _read([table], mark)
        known.setdefault((int(frame["calls"].sum()), float(frame["total_ns"].sum())), frame)
    frame = pd.concat(known.values()) if known else pd.DataFrame()
    if frame.empty or not (frame["kind"] == "kernel").any():
        return None
    time = {"trace": "duration", "exec_trace": "kernel dur", "exec_sum": "kavg"}.get(kind, "total time")
    return _Kernels(kind, frame, max(_resolution_ns(table, time, mark) for table in tables_of_kind))


def _read(found: list[_Table], mark: str) -> pd.DataFrame:
    """Rows of ``kernels`` from tables of one kind."""
    read = [_read_launches(t, mark) if t.kind in ("trace", "exec_trace") else _read_summary(t, mark) for t in found]
    return pd.concat(read) if read else tables.empty(tables.KERNELS)


def _read_launches(table: _Table, mark: str) -> pd.DataFrame:
    time, name = ("duration", "name") if table.kind == "trace" else ("kernel dur", "kernel name")
    names = table.column(name)
    launches = pd.DataFrame({"duration_ns": _times(table, time, mark)})
    launches["kernel"] = pd.Categorical(names)
    launches["kind"] = pd.Categorical([_kind_of(text) for text in names])
    for key, column in (("process", "pid"), ("device", "devid"), ("stream", "strm")):
        if table.has(column):
            launches[key] = pd.array(_numbers(table, column, mark), dtype="Float64").astype("Int64")
    if table.has("device") and table.kind == "trace":
        ordinals = pd.Series(table.column("device")).str.extract(r"\((\d+)\)\s*$")[0]
        launches["device"] = pd.to_numeric(ordinals).astype("Int64")
    if launches["duration_ns"].isna().any():
        raise _Damaged("a launch has no duration")
    return tables.summarise(launches)


def _read_summary(table: _Table, mark: str) -> pd.DataFrame:
    name = next(c for c in ("kernel name", "name", "operation") if table.has(c))
    calls = _numbers(table, next(c for c in ("instances", "count") if table.has(c)), mark)
    data: dict[str, Any] = {"kernel": table.column(name), "calls": calls}
    prefix = "k" if table.kind == "exec_sum" else ""
    for statistic, column in _STATISTICS.items():
        if table.has(prefix + statistic):
            data[column] = _times(table, prefix + statistic, mark)
    data["total_ns"] = data["mean_ns"] * calls if prefix else _times(table, "total time", mark)
    data["kind"] = [_kind_of(text) for text in data["kernel"]]
    frame = pd.DataFrame(data)
    if table.has("category"):
        # cuda_api_gpu_sum counts the calls that launched the kernels too.
        frame = frame[~pd.Series(table.column("category")).str.contains("API")]
    if frame[["calls", "total_ns"]].isna().any(axis=None) or (frame["calls"] < 1).any():
        raise _Damaged("a row has no time or no launches")
    if (frame["calls"] % 1 != 0).any():
        raise _Damaged("a row has a broken number of launches")
    if table.has("avg"):
        # Also finds a decimal mark that was taken for the other. nsys 2020 cuts the mean to whole ns.
        slack = frame["calls"] * max(_resolution_ns(table, "avg", mark), 1.0)
        slack += _resolution_ns(table, "total time", mark)
        off = (frame["mean_ns"] * frame["calls"] - frame["total_ns"]).abs() > slack + 1e-9 * frame["total_ns"]
        if off.any():
            raise _Damaged(
                f"launches times mean are not the total in the row of {_printable(frame['kernel'][off].iloc[0])!r}"
            )
    frame["calls"] = frame["calls"].astype("Int64")
    frame.loc[frame["calls"] < 2, "stddev_ns"] = np.nan
    return tables.frame(tables.KERNELS, frame)


def _kind_of(name: str) -> str:
    """``[CUDA memcpy HtoD]``, ``[CUDA Unified Memory memcpy HtoD]``, ``[CUDA memset]``, or a kernel's name."""
    if not name.startswith("[CUDA "):
        return "kernel"
    return "memset" if "memset" in name else "memcpy"


def _merge(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each kernel: a summary by launch shape has several, and so have two captures in one file."""
    keys = [key for key in tables.LAUNCH_KEYS if key in frame.columns]
    grouped = frame.groupby(keys, sort=False, dropna=False)
    merged = grouped.agg(
        calls=("calls", "sum"),
        total_ns=("total_ns", "sum"),
        median_ns=("median_ns", "first"),
        min_ns=("min_ns", lambda values: values.min(skipna=False)),
        max_ns=("max_ns", lambda values: values.max(skipna=False)),
    )
    merged["mean_ns"] = merged["total_ns"] / merged["calls"]
    # Squares around the common mean: those inside each part, and those of the parts' means.
    mean = merged["mean_ns"].reindex(pd.MultiIndex.from_frame(frame[keys])).array
    inside = (frame["calls"] - 1) * frame["stddev_ns"].where(frame["calls"] > 1, 0.0) ** 2
    squares = inside + frame["calls"] * (frame["mean_ns"] - mean) ** 2
    total = squares.groupby([frame[key] for key in keys], sort=False, dropna=False).agg(
        lambda values: values.sum(skipna=False)
    )
    merged["stddev_ns"] = ((total / (merged["calls"] - 1)) ** 0.5).where(merged["calls"] > 1)
    several = grouped.size() > 1
    alone = grouped["stddev_ns"].first()
    merged["stddev_ns"] = merged["stddev_ns"].where(several, alone)
    merged.loc[several, "median_ns"] = pd.NA
    return tables.frame(tables.KERNELS, merged.reset_index())


def _ranges(found: list[_Table], mark: str) -> pd.DataFrame:
    """Ranges from NVTX reports; only traces say how they nest, so summaries give their bare names."""
    traces = [_trace_ranges(table, mark) for table in found if table.kind == "range_trace"]
    sums = [_sum_ranges(table, mark) for table in found if table.kind == "range_sum"]
    inside = [_range_kernels(table, mark) for table in found if table.kind == "range_kernels"]
    walls = pd.concat(traces or sums or [tables.empty(tables.RANGES)])
    if not inside:
        return tables.frame(tables.RANGES, walls.drop_duplicates(["case", "process", "range"]))
    kernel_columns = pd.concat(inside).groupby(["case", "range"], sort=False)[["kernels", "kernel_ns"]].sum()
    if walls.empty:
        return tables.frame(tables.RANGES, kernel_columns.reset_index())
    walls = walls.drop(columns=["kernels", "kernel_ns"]).drop_duplicates(["case", "range"])
    return tables.frame(tables.RANGES, walls.join(kernel_columns, on=["case", "range"], how="left"))


def _split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(case, range) of ranges by name alone; nsys 2024 puts the empty name of the default domain before a colon."""
    split = [tables.split_path([name.removeprefix(":")]) for name in names]
    return [case for case, _ in split], [rest for _, rest in split]


def _sum_ranges(table: _Table, mark: str) -> pd.DataFrame:
    cases, names = _split(table.column("range"))
    frame = pd.DataFrame({"case": cases, "range": names})
    frame["instances"] = _numbers(table, "instances", mark)
    frame["wall_ns"] = _times(table, "total time", mark)
    summed = frame.groupby(["case", "range"], sort=False).sum().reset_index()
    return tables.frame(tables.RANGES, summed)


def _range_kernels(table: _Table, mark: str) -> pd.DataFrame:
    """Kernels by range from nvtx_kern_sum, which credits a kernel to every range around it: inclusive, as here."""
    cases, names = _split(table.column("nvtx range"))
    frame = pd.DataFrame({"case": cases, "range": names, "kernels": _numbers(table, "kern inst", mark)})
    frame["kernel_ns"] = _times(table, "total time", mark)
    return frame[[text.lower() not in _MISSING for text in table.column("nvtx range")]]


def _trace_ranges(table: _Table, mark: str) -> pd.DataFrame:
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
                node[link] = paths.child(node.get(parents[link], 0), tables.range_name(names[link].removeprefix(":")))
    split = [tables.split_path(paths.names_of(node[number])) for number in table.column("rangeid")]
    frame = pd.DataFrame(split, columns=["case", "range"])
    frame["process"] = _numbers(table, "pid", mark) if table.has("pid") else np.nan
    frame["wall_ns"] = _times(table, "duration", mark)
    grouped = frame.groupby(["process", "case", "range"], sort=False, dropna=False)["wall_ns"]
    return tables.frame(tables.RANGES, grouped.agg(instances="count", wall_ns="sum").reset_index())


# --- what a reader must know -----------------------------------------------------------------------------------------


def _device(found: list[_Table]) -> str:
    named = {
        cell for table in found if table.kind == "trace" and table.has("device") for cell in table.column("device")
    }
    return ", ".join(sorted({re.sub(r"\s*\(\d+\)$", "", name) for name in named} - {""}))


def _notes(frame: pd.DataFrame, found: list[_Table], mark: str) -> list[str]:
    notes = [] if (frame["kind"] == "kernel").any() else ["no kernels in this file"]
    cut = frame["kernel"].astype(str).str.endswith(_CUT)
    if cut.any():
        notes.append(
            f"{cut.sum()} kernel names are cut with an ellipsis: kernels that begin alike may share a row, and some "
            "cannot be classified; the CSV format has whole names"
        )
    if any(table.kind == "range_kernels" for table in found) and not (frame["kind"] == "kernel").any():
        notes.append("nvtx_kern_sum credits a kernel to every range around it, so it gives no total of all kernels")
    for table in found:
        if table.kind in ("grid_sum", "kernel_sum") and table.has("time"):
            share = float(np.nansum(_numbers(table, "time", mark)))
            # Each percentage is rounded to a tenth.
            if share < 99.9 - 0.05 * len(table.cells):
                notes.append(f"the table was cut: its rows make up {share:.1f} % of the kernel time")
    return notes
