"""Read what `nsys stats` prints: CSV, TSV, and its two kinds of text tables, of every version since 2020.

A file may hold several reports, and the same kernels in several of them. Text tables have the thousands separators and
decimal commas of the locale. Sources: nsys 2022.4 and 2023.4 as run, 2020 and 2024 as recorded by others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from profpipe import errors
from profpipe.ingest import bounds, foreign_files, kernel_classes
from profpipe.ingest.nsys import kernel_rows, range_rows, stats_output
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
    text = stats_output.decode(content)
    return "\0" not in text[:4096] and stats_output.holds_tables(text.split("\n"))


def parse(path: Path) -> schema.Tables:
    """Read kernels, copies and ranges. Raises ``UnreadableFile`` where a file has none, or a table is damaged."""
    try:
        return _parse(stats_output.decode(path.read_bytes()).split("\n"))
    except stats_output.Damaged as damage:
        foreign_files.refuse(path)
        raise errors.UnreadableFile(path, str(damage), _REMEDY) from damage


def _parse(lines: list[str]) -> schema.Tables:
    found, remarks = stats_output.tables_in(lines)
    version = next((m for line in lines[:_SNIFFED_LINES] if (m := _VERSION.search(line))), None)
    lines.clear()
    notes: list[str] = []
    chosen = []
    for capture in dict.fromkeys(table.made_from for table in found):
        chosen += _choose([table for table in found if table.made_from == capture], notes)
    ranges = range_rows.read(found)
    if not chosen and ranges.empty:
        remark = f", only nsys' own words ({stats_output.printable(remarks[0])})" if remarks else ""
        raise stats_output.Damaged(f"holds no kernels{remark}" if found or remark else "holds only banners, no table")
    frame = kernel_rows.merge(chosen)
    own = frame[frame["kind"] == "kernel"]
    total = float(own["total_ns"].sum()) if len(own) else None
    named = {cell for each in found if each.kind == "trace" and each.has("device") for cell in each.column("device")}
    return schema.Tables(
        kernels=kernel_classes.annotate(frame).assign(profiler="nsys"),
        ranges=ranges.assign(profiler="nsys"),
        origin=schema.Origin(
            format="nsys stats reports",
            tool="nsys",
            tool_version=version[1] if version else "",
            launches=int(own["calls"].sum()),
            total_ns=total,
            attributed_ns=None if total is None else 0.0,
            unattributed_ns=total,
            attribution={schema.Placement.NOT_SHOWN: None} if len(own) else {},
            device=", ".join(sorted({stats_output.DEVICE_ORDINAL.sub("", name) for name in named} - {""})),
            notes=(*notes, *_notes(frame, found)),
            without_kernels="" if (frame["kind"] == "kernel").any() else "no kernels in this file",
        ),
    )


def _choose(found: Sequence[stats_output.Table], notes: list[str]) -> list[pd.DataFrame]:
    """Choose the tables of one kind, so that no kernel of the capture counts twice."""
    read = (kernel_rows.read(kind, found) for kind in _KERNEL_TABLES)
    offers = [rows for rows in read if len(rows.kernels)]
    copies = kernel_rows.read("memory_sum", found).frame
    if not offers:
        return [copies] if len(copies) else []
    best = _best(offers, notes)
    if best.launches and not best.kernels["total_ns"].sum():
        raise stats_output.Damaged("all times are rounded to zero")
    if best.resolution_ns > _COARSE_NS:
        notes.append(f"times are rounded to {best.resolution_ns / 1000:g} us in the file")
    # A trace and a cuda_gpu_sum include the copies.
    return [best.frame] if best.kind in ("trace", "gpu_sum") or not len(copies) else [best.frame, copies]


def _best(offers: list[kernel_rows.Rows], notes: list[str]) -> kernel_rows.Rows:
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


def _notes(frame: pd.DataFrame, found: Sequence[stats_output.Table]) -> list[str]:
    notes = []
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
