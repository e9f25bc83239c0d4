"""CSV files of rocprofv2, as its plugin ``file`` writes them (ROCm/rocprofiler, plugin/file/file.cpp)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import load, tables
from profpipe.csvfile import Sheet

if TYPE_CHECKING:
    import _rocprof_launches
else:
    _rocprof_launches = load.module(Path(__file__).with_name("_rocprof_launches.py"))

#: Any other column is a counter.
_COLUMNS = {
    "Dispatch_ID", "GPU_ID", "Queue_ID", "Queue_Index", "PID", "TID", "GRD", "WGR", "LDS", "SCR", "Grid_Size",
    "Workgroup_Size", "LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size",
    "SIG", "OBJ", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID", "",
}  # fmt: skip


def dispatches(sheet: Sheet) -> tables.Tables:
    launches = _rocprof_launches.launches(
        sheet,
        process=sheet.numbers("PID"),
        thread=sheet.numbers("TID"),
        device=sheet.numbers("GPU_ID"),
    )
    origin = tables.Origin(
        format="rocprofv2 CSV",
        tool="rocprof",
        tool_version="v2",
        notes=(*sheet.notes, "device numbers are HSA agent ids"),
    )
    return _rocprof_launches.with_counters(sheet, launches, origin, _COLUMNS)
