"""CSV files of rocprof (v1), rocprofv2 and rocprofv3, every generation: columns are found by name.

The files of one recording that lie beside a file of launches are read with it; each other file stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import load, tables
from profpipe.errors import Refused
from profpipe.formats import recording
from profpipe.formats.csvfile import Sheet, opening, read

if TYPE_CHECKING:
    import _rocprof_launches
    import _rocprofv2_csv
    import _rocprofv3_csv
else:
    _rocprof_launches = load.module(Path(__file__).with_name("_rocprof_launches.py"))
    _rocprofv2_csv = load.module(Path(__file__).with_name("_rocprofv2_csv.py"))
    _rocprofv3_csv = load.module(Path(__file__).with_name("_rocprofv3_csv.py"))

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
    if not path.is_file():
        return False
    names = opening(path)
    return _layout(set(names)) is not None or tuple(n for n in names if n != "Guid")[:2] in _OPENINGS


def parse(path: Path) -> tables.Tables:
    """Kernels, ranges and counters of the file. Raises ``Refused`` where it holds none of them."""
    sheet = read(path, _rocprof_launches.UNUSED)
    layout = _layout(set(sheet.columns))
    if layout is None:
        raise Refused(path, "a rocprof CSV that is cut in its first line", _rocprof_launches.TRACE_AGAIN)
    found = layout(sheet)
    return found.with_columns(profiler="rocprof")


def _layout(names: set[str]) -> Callable[[Sheet], tables.Tables] | None:
    for needed, reader in _LAYOUTS:
        if needed <= names:
            return reader
    return None


def _only_other(sheet: Sheet) -> tables.Tables:
    what = "a rocprofv3 CSV without kernels, ranges or counters"
    raise _rocprof_launches.refused(sheet, what, "Give the kernel_trace.csv beside it.")


def _dispatches_v1(sheet: Sheet) -> tables.Tables:
    if not len(sheet):
        raise _rocprof_launches.refused(sheet, "no kernels were recorded", _V1_AGAIN)
    names = [name.strip('"') for name in sheet.columns["KernelName"]]
    columns = {
        "start": "BeginNs", "end": "EndNs", "process": "pid", "thread": "tid", "device": "gpu-id",
        "dispatched": "DispatchNs",
    }  # fmt: skip
    numbers = {ours: sheet.numbers(theirs) for ours, theirs in columns.items()}
    launches = recording.records(recording.LAUNCH, {"name": names, "kind": "kernel", **numbers})
    launches = _rocprof_launches.numbered(launches)
    values = _rocprof_launches.counters(sheet, launches, _V1_COLUMNS)
    origin = tables.Origin(format="rocprof v1 results CSV", tool="rocprof", tool_version="v1", notes=sheet.notes)
    return _rocprof_launches.with_counters(sheet, recording.Recording(launches), values, origin)


_LAYOUTS: tuple[tuple[set[str], Callable[[Sheet], tables.Tables]], ...] = (
    ({"Kernel_Name", "Counter_Name", "Counter_Value"}, _rocprofv3_csv.counters),
    ({"Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"}, _rocprofv3_csv.dispatches),
    ({"Kernel_Name", "Dispatch_ID", "GPU_ID"}, _rocprofv2_csv.dispatches),
    ({"Index", "KernelName"}, _dispatches_v1),
    ({"Domain", "ROCTX_ID", "Message", "Timestamp"}, _rocprofv2_csv.roctx),
    ({"Domain", "Operation", "Kernel_Name", "Start_Timestamp", "Stop_Timestamp"}, _rocprofv2_csv.operations),
    ({"Domain", "Function", "Start_Timestamp", "End_Timestamp"}, _rocprofv3_csv.calls),
    ({"Kind", "Direction", "Start_Timestamp", "End_Timestamp"}, _rocprofv3_csv.copies),
    ({"Node_Id", "Agent_Type"}, _only_other),
    ({"Kind", "Operation", "Agent_Id"}, _only_other),
)

#: The first two columns of each, by which a file that is cut in its first line is still known.
_OPENINGS = {
    ("Kind", "Agent_Id"), ("Kind", "Direction"), ("Domain", "Function"), ("Correlation_Id", "Dispatch_Id"),
    ("Dispatch_ID", "GPU_ID"), ("Domain", "ROCTX_ID"), ("Domain", "Operation"), ("Index", "KernelName"),
}  # fmt: skip
