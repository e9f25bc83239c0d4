"""Read sums by kernel: stats.csv of rocprof (v1) and kernel_stats.csv of rocprofv3.

The same columns hold sums of API calls (``hip_stats``) and of whole domains, which are no GPU time, and of copies.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.ingest import kernel_classes
from profpipe.ingest.rocprof import CsvTable, read_csv, read_header
from profpipe.results import schema

FORMATS = ("rocprof v1 stats.csv", "rocprofv3 kernel_stats CSV")

_COLUMNS = {"Name", "Calls", "TotalDurationNs"}

_STATISTICS = {
    "total_ns": "TotalDurationNs", "mean_ns": "AverageNs", "min_ns": "MinNs", "max_ns": "MaxNs", "stddev_ns": "StdDev",
}  # fmt: skip

_API = re.compile(r"^(__)?(hip|hsa|roctx|rccl|nccl[A-Z]|rocdec|rocjpeg)[A-Z_]")
_DOMAINS = {"KERNEL_DISPATCH", "HIP_API", "HSA_API", "MARKER_API", "MEMORY_COPY", "HIP", "HSA", "MARKER"}
_COPY = re.compile(r"^(Copy\w*To|Memcpy|async-copy|MEMORY_COPY|(HOST|DEVICE)_TO_(HOST|DEVICE))")
_FILL = re.compile(r"^(Fill|Memset)")
#: A marker's message can be any text, so only the file's name distinguishes its statistics from those of kernels.
_API_STATS = re.compile(r"(marker|hip|hsa|rccl|domain)(_api|_compiler\w*|_runtime\w*)?_stats\.csv$")


def sniff(path: Path) -> bool:
    return set(read_header(path)) >= _COLUMNS


def parse(path: Path) -> schema.Tables:
    """Read the sums of the kernels. Raises ``UnreadableFile`` where they are of neither kernels nor copies."""
    table = read_csv(path)
    names = [name.strip('"') for name in table.columns["Name"]]
    if not names:
        raise table.unreadable("no kernels were recorded", "Pass --kernel-trace beside --stats.")
    api = sum(bool(_API.match(name)) for name in names)
    if api == len(names) or set(names) <= _DOMAINS or _API_STATS.search(table.path.name):
        what = "statistics of API calls or whole domains on the CPU, without GPU times"
        raise table.unreadable(what, "Give the kernel_stats.csv.")
    columns: dict[str, Any] = {ours: _floats(table, theirs) for ours, theirs in _STATISTICS.items()}
    kinds = ["memcpy" if _COPY.match(name) else "memset" if _FILL.match(name) else "kernel" for name in names]
    columns |= {"kind": kinds, "kernel": names, "calls": table.numbers("Calls")}
    frame = schema.frame(schema.KERNELS, columns)
    frame = frame[frame["calls"].notna() & frame["total_ns"].notna()].reset_index(drop=True)
    if frame.empty:
        remedy = "Record again with `rocprofv3 --kernel-trace --stats -f csv -- COMMAND`."
        raise table.unreadable("no row of it is whole", remedy)
    frame.loc[frame["calls"] < 2, "stddev_ns"] = pd.NA
    of_kernels = frame[frame["kind"] == "kernel"]
    total = float(of_kernels["total_ns"].sum())
    origin = schema.Origin(
        format="rocprofv3 kernel_stats CSV" if table.has("MinNs") else "rocprof v1 stats CSV",
        tool="rocprof",
        tool_version="v3" if table.has("MinNs") else "v1",
        launches=int(of_kernels["calls"].sum()),
        total_ns=total,
        attributed_ns=0.0,
        unattributed_ns=total,
        attribution={schema.Placement.NOT_SHOWN: None},
        notes=table.notes,
    )
    return schema.Tables(kernels=kernel_classes.annotate(frame), origin=origin).set_columns(profiler="rocprof")


def _floats(table: CsvTable, name: str) -> pd.Series[Any]:
    texts = table.first(name)
    values = pd.Series([pd.NA] * len(table) if texts is None else texts, dtype=object)
    return pd.to_numeric(values, errors="coerce").astype("Float64")
