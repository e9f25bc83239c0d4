"""Read the tables that ``nsys stats`` prints as columns of text: CSV, TSV and two kinds of text tables.

A file may hold several reports, banners and the output of other programs. The columns say what a table is, the banner
which capture it was made from.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from profpipe.ingest import printed

#: Columns of traces that enter no table. They are not kept in memory.
_UNREAD: Final = {
    "corrid", "grdx", "grdy", "grdz", "blkx", "blky", "blkz", "reg/trd", "stcsmem", "dymsmem", "bytes", "throughput",
    "thru", "srcmemkd", "dstmemkd", "ctx", "greenctx", "blockxyz",
}  # fmt: skip

_MADE_FROM = re.compile(r"\s*Processing \[(.*)\] with \[(?:.*[/\\])?(\w+)(?:\.py)?[^\]]*\]")
_TITLE = re.compile(r"\s*\*\* .*\((\w+)[^)]*\):\s*$")
_REMARK = re.compile(r"\s*(SKIPPED|ERROR)\b:?.*")
_RULER = re.compile(r"\s*-{2,}(\s+-{2,})+\s*$")
_BOX = re.compile(r"\s*\+(-+\+)+\s*$")
_LIKE_HEADER = re.compile(r"Total Time|Duration|Kernel Name")

#: ns in a unit, as headers write it: `Total Time (ns)`, `Duration(nsec)`, `Start:ts_ns`.
_UNITS: Final = {
    "ns": 1.0, "nsec": 1.0, "nanoseconds": 1.0, "us": 1e3, "µs": 1e3, "usec": 1e3, "microseconds": 1e3, "ms": 1e6,
    "msec": 1e6, "milliseconds": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9,
}  # fmt: skip
_ALIASES: Final = {
    "average": "avg", "minimum": "min", "maximum": "max", "median": "med", "operations": "count", "calls": "num calls",
}  # fmt: skip

#: A float holds all whole numbers up to here.
_LARGEST_WHOLE: Final = 2**53
#: The ordinal behind the name of a device: `NVIDIA H200 (0)`.
DEVICE_ORDINAL: Final = re.compile(r"\s*\(([0-9]{1,9})\)\s*$")

Floats = npt.NDArray[np.float64]
#: The begin and the end of a column in a line.
Slices = tuple[tuple[int, int], ...]


class Damaged(Exception):
    """The file cannot be read; the message says what is wrong with it."""


@dataclass
class StatsTable:
    """A table as printed, without unread columns; ``scale``: ns of a column's unit, ``mark``: the decimal mark.

    ``delimiter`` or ``slices`` divides its lines into ``width`` cells, of which those numbered ``kept`` are read.
    """

    kind: str
    columns: list[str]
    scale: dict[str, float]
    delimiter: str
    slices: Slices
    width: int
    kept: tuple[int, ...]
    made_from: str = ""
    cells: list[list[str]] = field(default_factory=list)
    mark: str = "."

    def column(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in self.cells]

    def has(self, *names: str) -> bool:
        return set(names) <= set(self.columns)

    def numbers(self, name: str) -> Floats:
        """Return a column of numbers, NaN for missing ones. Raises ``Damaged`` for any other text."""
        return np.array([self._number(cell) for cell in self.column(name)], dtype=np.float64)

    def _number(self, cell: str) -> float:
        if is_missing(cell):
            return np.nan
        value = printed.number(cell, self.mark)
        if value is None:
            raise Damaged(f"{printable(cell)!r} stands where a number should")
        return value

    def whole_numbers(self, name: str) -> Floats:
        """Return a column of whole numbers, NaN for missing ones. Raises ``Damaged`` for fractions and beyond 2^53."""
        values = self.numbers(name)
        present = values[~np.isnan(values)]
        broken = present[(np.abs(present) > _LARGEST_WHOLE) | (present % 1 != 0)]
        if broken.size:
            raise Damaged(f"{broken[0]:g} stands in the column {name!r}, where a whole number up to 2^53 should")
        return values

    def times(self, name: str) -> Floats:
        """Return a column of times in ns. Products like 2475.687 us * 1000 are rounded to the ns that they were."""
        return np.round(self.numbers(name) * self.scale[name], 3)

    def resolution_ns(self, name: str) -> float:
        """Return the ns of the last printed digit of a column of times."""
        decimals = max((len(c.rpartition(self.mark)[2]) if self.mark in c else 0 for c in self.column(name)), default=0)
        return float(self.scale[name]) / 10.0**decimals


def is_missing(cell: str) -> bool:
    return cell.lower() in {"", "none", "nan", "-", "n/a"}


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:100])


def decode(content: bytes) -> str:
    return printed.decode(content).replace("\r\n", "\n").replace("\r", "\n")


def holds_tables(lines: Sequence[str]) -> bool:
    """Return True where one of ``lines`` is a banner of nsys or the header of a table."""
    return any(_MADE_FROM.match(line) or _TITLE.match(line) or _header(lines, i) for i, line in enumerate(lines))


# --- headers ---------------------------------------------------------------------------------------------------------


def _split(line: str, delimiter: str, slices: Slices) -> list[str]:
    """Divide a line by ``delimiter``, or else at ``slices``, where the ruler below the header has its gaps."""
    if delimiter == "|":
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    if delimiter:
        try:
            return next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error as error:
            raise Damaged(f"a row cannot be divided: {error}") from error
    # The last column is as wide as its widest value, or was cut by a copy.
    ends = [end for _, end in slices[:-1]] + [len(line)]
    return [line[start:end].strip() for (start, _), end in zip(slices, ends, strict=True)]


def _header(lines: Sequence[str], at: int) -> StatsTable | None:
    """Return the table whose header is line ``at``, None where it is no header."""
    line = lines[at]
    if len(line) > 4096 or not _LIKE_HEADER.search(line):
        return None
    below = lines[at + 1] if at + 1 < len(lines) else ""
    layouts: list[tuple[str, Slices]] = [(delimiter, ()) for delimiter in ",;\t" if delimiter in line]
    if _RULER.match(below):
        layouts = [("", tuple(match.span() for match in re.finditer("-+", below)))]
    elif _BOX.match(below):
        layouts = [("|", ())]
    for layout in layouts:
        named = [_column(cell) for cell in _split(line, *layout)]
        columns = [name for name, _ in named]
        if kind := _kind(set(columns)):
            units = {name: unit for name, unit in named if unit}
            # Before 2021 only the total has a unit, which holds for all columns.
            default = next(iter(units.values()), 1.0)
            kept = tuple(i for i, name in enumerate(columns) if name not in _UNREAD)
            read = [columns[i] for i in kept]
            return StatsTable(
                kind, read, {name: units.get(name, default) for name in read}, *layout, len(columns), kept
            )
    return None


def _column(cell: str) -> tuple[str, float | None]:
    """Return (name in one spelling, ns of its unit) of ``Avg (ns)``, ``Time(%)`` or ``Start:ts_ns``."""
    match = re.fullmatch(r"(.*?)\s*(?:\(([^)]*)\)|:\w+_(\S+))?", cell.strip().strip('"'))
    assert match is not None
    name = match[1].lower()
    return _ALIASES.get(name, name), _UNITS.get(match[2] or match[3] or "")


def _kind(columns: set[str]) -> str:
    """Return the kind of a table of these columns, empty for unknown ones."""
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


# --- rows ------------------------------------------------------------------------------------------------------------


def tables_in(lines: Sequence[str]) -> tuple[list[StatsTable], list[str]]:
    """Return all tables, and nsys's remarks (``SKIPPED: ...``) about missing ones. Raises ``Damaged`` at a torn row."""
    tables: list[StatsTable] = []
    remarks: list[str] = []
    made_from, report = "", ""
    current: StatsTable | None = None
    for at, line in enumerate(lines):
        if current and line[:1].isdigit():
            # Only a row begins with a digit: this skips the other tests for most of a million lines.
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
            # MPI, OpenGL and OpenMP summaries have the columns of kernels and ranges; only their banner differs.
            if not report or report.startswith(("cuda", "gpu", "kern", "nvtx", "apigpu")):
                header.made_from = made_from
                tables.append(header)
            continue
        if current and not _append(line, current, is_last=at == len(lines) - 1):
            current = None
    tables = [table for table in tables if table.cells]
    # The text tables follow the locale, so the numbers of all tables prove one decimal mark.
    mark = printed.decimal_mark(cell for table in tables for row in table.cells[:200] for cell in row)
    for table in tables:
        table.mark = mark
    return tables, remarks


def _append(line: str, table: StatsTable, is_last: bool) -> bool:
    """Add the row ``line``. Return False where it is none: other output may follow a table without a blank line."""
    cells, wanted = _split(line, table.delimiter, table.slices), table.width
    if len(cells) > wanted and table.delimiter:
        # A name with commas that has lost its quotes; it is the last column.
        cells = [*cells[: wanted - 1], table.delimiter.join(cells[wanted - 1 :])]
    gaps = zip(table.slices, table.slices[1:], strict=False)
    is_blank_between = all(not line[end:start].strip() for (_, end), (start, _) in gaps)
    whole = len(cells) == wanted and bool(cells[-1]) and is_blank_between
    if not whole and is_last:
        # Printed output ends with a line break.
        raise Damaged(f"is cut short in its last row, {printable(line.strip())!r}")
    if not whole and len(cells) > 1 and not table.slices:
        raise Damaged(f"a row has {len(cells)} of {wanted} columns, {printable(line.strip())!r}")
    if whole:
        # One string for a name, not one a row.
        table.cells.append([sys.intern(cells[i].strip()) for i in table.kept])
    return whole
