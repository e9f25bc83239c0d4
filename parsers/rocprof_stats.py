"""Sums by kernel: stats.csv of rocprof (v1) and kernel_stats.csv of rocprofv3.

The same columns hold sums of API calls (``hip_stats``) and of whole domains, which are no GPU time, and of copies.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe import kernels, tables
from profpipe.errors import Refused
from profpipe.formats.csvfile import Sheet, opening, read

FORMATS = ("rocprof v1 stats.csv", "rocprofv3 kernel_stats CSV")

_COLUMNS = {"Name", "Calls", "TotalDurationNs"}

_API = re.compile(r"^(__)?(hip|hsa|roctx|rccl|nccl[A-Z]|rocdec|rocjpeg)[A-Z_]")
_DOMAINS = {"KERNEL_DISPATCH", "HIP_API", "HSA_API", "MARKER_API", "MEMORY_COPY", "HIP", "HSA", "MARKER"}
_COPY = re.compile(r"^(Copy\w*To|Memcpy|async-copy|MEMORY_COPY|(HOST|DEVICE)_TO_(HOST|DEVICE))")
_FILL = re.compile(r"^(Fill|Memset)")
#: Messages of markers can be called anything, so only the file's name tells their statistics from kernels'.
_API_STATS = re.compile(r"(marker|hip|hsa|rccl|domain)(_api|_compiler\w*|_runtime\w*)?_stats\.csv$")


def sniff(path: Path) -> bool:
    return path.is_file() and set(opening(path)) >= _COLUMNS


def parse(path: Path) -> tables.Tables:
    """The sums of each kernel. Raises ``Refused`` where they are of something else than kernels and copies."""
    sheet = read(path)
    names = [name.strip('"') for name in sheet.columns["Name"]]
    if not names:
        raise _refused(sheet, "no kernels were recorded", "Pass --kernel-trace beside --stats.")
    api = sum(bool(_API.match(name)) for name in names)
    if api == len(names) or set(names) <= _DOMAINS or _API_STATS.search(sheet.path.name):
        raise _refused(
            sheet,
            "statistics of API calls or whole domains on the CPU, without GPU times",
            "Give the kernel_stats.csv.",
        )
    frame = tables.frame(
        tables.KERNELS,
        {
            "kind": [_kind(name) for name in names],
            "kernel": names,
            "calls": sheet.numbers("Calls"),
            "total_ns": _floats(sheet, "TotalDurationNs"),
            "mean_ns": _floats(sheet, "AverageNs"),
            "min_ns": _floats(sheet, "MinNs"),
            "max_ns": _floats(sheet, "MaxNs"),
            "stddev_ns": _floats(sheet, "StdDev"),
        },
    )
    frame = frame[frame["calls"].notna() & frame["total_ns"].notna()].reset_index(drop=True)
    if frame.empty:
        raise _refused(
            sheet, "no row of it is whole", "Record again with `rocprofv3 --kernel-trace --stats -f csv -- COMMAND`."
        )
    frame.loc[frame["calls"] < 2, "stddev_ns"] = pd.NA
    of_kernels = frame[frame["kind"] == "kernel"]
    total = float(of_kernels["total_ns"].sum())
    origin = tables.Origin(
        format="rocprofv3 kernel_stats CSV" if sheet.has("MinNs") else "rocprof v1 stats CSV",
        tool="rocprof",
        tool_version="v3" if sheet.has("MinNs") else "v1",
        launches=int(of_kernels["calls"].sum()),
        total_ns=total,
        attributed_ns=0.0,
        unattributed_ns=total,
        attribution="sums over the whole recording, of which no launch can be placed",
        notes=sheet.notes,
    )
    return tables.Tables(kernels=kernels.annotate(frame), origin=origin).with_columns(profiler="rocprof")


def _kind(name: str) -> str:
    return "memcpy" if _COPY.match(name) else "memset" if _FILL.match(name) else "kernel"


def _floats(sheet: Sheet, name: str) -> pd.Series[Any]:
    texts = sheet.first(name)
    values = pd.Series([pd.NA] * len(sheet) if texts is None else texts, dtype=object)
    return pd.to_numeric(values, errors="coerce").astype("Float64")


def _refused(sheet: Sheet, what: str, remedy: str) -> Refused:
    return Refused(sheet.path, "; ".join([what, *sheet.notes]), remedy)
