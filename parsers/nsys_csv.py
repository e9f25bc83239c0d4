"""What `nsys stats` prints: CSV, TSV, and its two kinds of text tables, of every version since 2020.

A file may hold several reports, and the same kernels in several of them. Layouts: nsys 2022.4 and 2023.4 as run, 2020
and 2024 as recorded. Numbers may carry thousands separators and decimal commas, for the text tables follow the locale.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from profpipe import errors, kernels, load, tables

if TYPE_CHECKING:
    import _nsys_kernel_rows
    import _nsys_printed
    import _nsys_range_rows
else:
    _nsys_kernel_rows = load.module(Path(__file__).with_name("_nsys_kernel_rows.py"))
    _nsys_printed = load.module(Path(__file__).with_name("_nsys_printed.py"))
    _nsys_range_rows = load.module(Path(__file__).with_name("_nsys_range_rows.py"))

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


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        content = file.read(_SNIFFED_BYTES)
    text = _nsys_printed.decode(content)
    return "\0" not in text[:4096] and _nsys_printed.holds_tables(text.split("\n"))


def parse(path: Path) -> tables.Tables:
    """Kernels, copies and ranges. Raises ``Refused`` where there are none, and where a table is cut or damaged."""
    try:
        return _parse(_nsys_printed.decode(path.read_bytes()).split("\n"))
    except _nsys_printed.Damaged as damage:
        raise errors.Refused(path, str(damage), _REMEDY) from damage


def _parse(lines: list[str]) -> tables.Tables:
    found, remarks = _nsys_printed.tables_in(lines)
    version = next((m for line in lines[:_SNIFFED_LINES] if (m := _VERSION.search(line))), None)
    lines.clear()
    notes: list[str] = []
    chosen = []
    for capture in dict.fromkeys(table.made_from for table in found):
        chosen += _choose([table for table in found if table.made_from == capture], notes)
    ranges = _nsys_range_rows.read(found)
    if not chosen and ranges.empty:
        raise _nsys_printed.Damaged(_why_empty(found, remarks))
    frame = _nsys_kernel_rows.merge(chosen)
    own = frame[frame["kind"] == "kernel"]
    total = float(own["total_ns"].sum()) if len(own) else None
    return tables.Tables(
        kernels=kernels.annotate(frame).assign(profiler="nsys"),
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
            notes=(*notes, *_notes(frame, found)),
        ),
    )


def _why_empty(found: Sequence[_nsys_printed.Table], remarks: list[str]) -> str:
    if remarks:
        return f"holds no kernels, only nsys' own words ({_nsys_printed.printable(remarks[0])})"
    return "holds no kernels" if found else "holds only banners, no table"


# --- which of the tables is believed ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Offer:
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


def _choose(found: Sequence[_nsys_printed.Table], notes: list[str]) -> list[pd.DataFrame]:
    """Of the tables that one capture's kernels are told in, those of one kind, so that none counts twice."""
    offers = [offer for kind in _KERNEL_TABLES if (offer := _offer(kind, found))]
    if not offers:
        return _copies(found)
    best = _best(offers, notes)
    if best.launches and not best.total_ns:
        raise _nsys_printed.Damaged("all times are rounded to zero")
    if best.resolution_ns > _COARSE_NS:
        notes.append(f"times are rounded to {best.resolution_ns / 1000:g} us in the file")
    # A trace and a cuda_gpu_sum hold the copies themselves.
    return [best.frame] if best.kind in ("trace", "gpu_sum") else [best.frame, *_copies(found)]


def _copies(found: Sequence[_nsys_printed.Table]) -> list[pd.DataFrame]:
    copies = _nsys_kernel_rows.read(table for table in found if table.kind == "memory_sum").frame
    return [copies] if len(copies) else []


def _best(offers: list[_Offer], notes: list[str]) -> _Offer:
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
    return best


def _offer(kind: str, found: Sequence[_nsys_printed.Table]) -> _Offer | None:
    """The kernels as tables of ``kind`` tell them."""
    rows = _nsys_kernel_rows.read(table for table in found if table.kind == kind)
    if not (rows.frame["kind"] == "kernel").any():
        return None
    return _Offer(kind, rows.frame, rows.resolution_ns)


# --- what a reader must know -----------------------------------------------------------------------------------------


def _device(found: Sequence[_nsys_printed.Table]) -> str:
    named = {
        cell for table in found if table.kind == "trace" and table.has("device") for cell in table.column("device")
    }
    return ", ".join(sorted({re.sub(r"\s*\(\d+\)$", "", name) for name in named} - {""}))


def _notes(frame: pd.DataFrame, found: Sequence[_nsys_printed.Table]) -> list[str]:
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
            share = float(np.nansum(table.numbers("time")))
            # Each percentage is rounded to a tenth.
            if share < 99.9 - 0.05 * len(table.cells):
                notes.append(f"the table was cut: its rows make up {share:.1f} % of the kernel time")
    return notes
