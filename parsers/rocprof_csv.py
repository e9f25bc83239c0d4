"""Read CSV files of rocprof (v1), rocprofv2 and rocprofv3; columns are found by name.

A file of launches is read together with the other files of its recording beside it. Each other file stands for itself.
Sources: the CSV writers of ROCm/rocprofiler (v1, v2) and ROCm/rocprofiler-sdk (v3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest.rocprof import csv_launches, trace, v2_csv, v3_csv
from profpipe.ingest.rocprof.csv_file import CsvTable, read, read_header
from profpipe.results import schema

FORMATS = (
    "rocprof v1 results.csv",
    "rocprofv2 CSV: results, hcc_ops_trace, roctx_trace",
    "rocprofv3 CSV: kernel_trace, marker_api_trace, memory_copy_trace, counter_collection",
)

_V1_AGAIN = "Record again with `rocprof --timestamp on -o results.csv COMMAND`."

#: Columns of v1 that describe a dispatch; any other is a counter.
_V1_COLUMNS = {
    "Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr", "vgpr",
    "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "DispatchNs", "BeginNs", "EndNs",
    "CompleteNs", "DurationNs", "",
}  # fmt: skip


def sniff(path: Path) -> bool:
    """Return True for a CSV file with the columns of a layout of rocprof, or the first two of them."""
    names = read_header(path)
    return _layout(set(names)) is not None or tuple(n for n in names if n != "Guid")[:2] in _OPENINGS


def parse(path: Path, step_range: str = "") -> schema.Tables:
    """Read kernels, ranges, steps and counters. Raises ``UnreadableFile`` where the file holds none of them.

    ``step_range`` is a regular expression for the ranges that are steps.
    """
    table = read(path, csv_launches.UNUSED)
    layout = _layout(set(table.columns))
    if layout is None:
        raise UnreadableFile(path, "a rocprof CSV that is cut in its first line", csv_launches.TRACE_AGAIN)
    return layout(replace(table, step_range=step_range)).with_columns(profiler="rocprof")


def _layout(names: set[str]) -> Callable[[CsvTable], schema.Tables] | None:
    return next((reader for needed, reader in _LAYOUTS if needed <= names), None)


def _refuse(table: CsvTable) -> schema.Tables:
    what = "a rocprofv3 CSV without kernels, ranges or counters"
    raise table.unreadable(what, "Give the kernel_trace.csv beside it.")


def _read_v1(table: CsvTable) -> schema.Tables:
    if not len(table):
        raise table.unreadable("no kernels were recorded", _V1_AGAIN)
    names = [name.strip('"') for name in table.columns["KernelName"]]
    columns = {
        "start": "BeginNs", "end": "EndNs", "process": "pid", "thread": "tid", "device": "gpu-id", "stream": "queue-id",
        "dispatched": "DispatchNs",
    }  # fmt: skip
    named = {"name": names, "kind": "kernel", **table.all_numbers(columns)}
    launches = csv_launches.numbered(trace.records(trace.LAUNCH, named))
    values = csv_launches.read_counters(table, launches, _V1_COLUMNS)
    origin = schema.Origin(format="rocprof v1 results CSV", tool="rocprof", tool_version="v1", notes=table.notes)
    return csv_launches.place_with_counters(trace.Recording(launches), values, origin, table)


_LAYOUTS: tuple[tuple[set[str], Callable[[CsvTable], schema.Tables]], ...] = (
    ({"Kernel_Name", "Counter_Name", "Counter_Value"}, v3_csv.read_counters),
    ({"Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"}, v3_csv.read_dispatches),
    ({"Kernel_Name", "Dispatch_ID", "GPU_ID"}, v2_csv.read_dispatches),
    ({"Index", "KernelName"}, _read_v1),
    ({"Domain", "ROCTX_ID", "Message", "Timestamp"}, v2_csv.read_roctx),
    ({"Domain", "Operation", "Kernel_Name", "Start_Timestamp", "Stop_Timestamp"}, v2_csv.read_operations),
    ({"Domain", "Function", "Start_Timestamp", "End_Timestamp"}, v3_csv.read_calls),
    ({"Kind", "Direction", "Start_Timestamp", "End_Timestamp"}, v3_csv.read_copies),
    ({"Node_Id", "Agent_Type"}, _refuse),
    ({"Kind", "Operation", "Agent_Id"}, _refuse),
)

#: The first two columns of each layout, by which a file that is cut in its first line is known.
_OPENINGS = {
    ("Kind", "Agent_Id"), ("Kind", "Direction"), ("Domain", "Function"), ("Correlation_Id", "Dispatch_Id"),
    ("Dispatch_ID", "GPU_ID"), ("Domain", "ROCTX_ID"), ("Domain", "Operation"), ("Index", "KernelName"),
}  # fmt: skip
