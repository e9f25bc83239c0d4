"""CSV files of rocprofv2, as its plugin ``file`` writes them (ROCm/rocprofiler, plugin/file/file.cpp).

``results_X.csv`` (kernels, with --kernel-trace or counters) or else ``hcc_ops_trace_X.csv`` (kernels and copies, with
--hip-trace) is read together with ``roctx_trace_X.csv`` (ranges) and ``hip_api_trace_X.csv`` (calls) beside it. Neither
of the latter says its thread or process. A kernel has its call's correlation id where HIP calls were traced, else 0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from profpipe import load, tables
from profpipe.formats import recording
from profpipe.formats.csvfile import Sheet, read

if TYPE_CHECKING:
    import _rocprof_launches
    import _rocprofv2_roctx
else:
    _rocprof_launches = load.module(Path(__file__).with_name("_rocprof_launches.py"))
    _rocprofv2_roctx = load.module(Path(__file__).with_name("_rocprofv2_roctx.py"))

#: Any other column of results_X.csv is a counter.
_COLUMNS = {
    "Dispatch_ID", "GPU_ID", "Queue_ID", "Queue_Index", "PID", "TID", "GRD", "WGR", "LDS", "SCR", "Grid_Size",
    "Workgroup_Size", "LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size",
    "SIG", "OBJ", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID", "XCC_Index", "",
}  # fmt: skip
_COPY = re.compile(r"Copy|Memcpy")
_FILL = re.compile(r"Fill|Memset")


def dispatches(sheet: Sheet) -> tables.Tables:
    """results_X.csv: kernels, and their counters."""
    launches = _rocprof_launches.launches(
        sheet,
        process=sheet.numbers("PID"),
        thread=sheet.numbers("TID"),
        device=sheet.numbers("GPU_ID"),
        correlation=sheet.numbers("Correlation_ID"),
    )
    notes = ["device numbers are HSA agent ids"]
    if sheet.has("XCC_Index"):
        # With ROCPROFILER_INDIVIDUAL_XCC_MODE a dispatch has a row for each of the GPU's parts.
        dispatch = pd.Series(pd.array(sheet.numbers("Dispatch_ID"), dtype="Int64"), index=launches.index)
        launches["launch"] = launches.groupby([launches["process"], dispatch], dropna=False).ngroup()
        notes.append("counters are of single XCCs, each of which counts a launch by itself")
    values = _rocprof_launches.counters(sheet, launches, _COLUMNS)
    beside = _Siblings(sheet.path, "results", launches)
    return _rocprof_launches.with_counters(
        sheet,
        recording.Recording(
            pd.concat([launches.drop_duplicates("launch"), beside.copies()], ignore_index=True),
            beside.ranges,
            beside.calls,
        ),
        values,
        tables.Origin(
            format="rocprofv2 CSV", tool="rocprof", tool_version="v2", notes=(*sheet.notes, *notes, *beside.notes())
        ),
    )


def operations(sheet: Sheet) -> tables.Tables:
    """hcc_ops_trace_X.csv: kernels and copies."""
    launches = _operations(sheet)
    if not len(launches):
        raise _rocprof_launches.refused(sheet, "no kernels were recorded", "See that the program used the GPU.")
    beside = _Siblings(sheet.path, "hcc_ops_trace", launches)
    notes = ["it does not say on which GPU, nor in which process", *beside.notes()]
    if left_out := len(sheet) - len(launches):
        notes.insert(0, f"{left_out} markers and barriers are no kernels and left out")
    return _rocprof_launches.annotated(
        recording.place(
            recording.Recording(launches, beside.ranges, beside.calls),
            tables.Origin(
                format="rocprofv2 hcc_ops_trace CSV", tool="rocprof", tool_version="v2", notes=(*sheet.notes, *notes)
            ),
        ),
        sheet,
    )


def roctx(sheet: Sheet) -> tables.Tables:
    """roctx_trace_X.csv alone: its ranges."""
    found = _rocprofv2_roctx.read(sheet.path)
    ranges = found.ranges(pd.NA, pd.NA)
    if not len(ranges):
        what = "; ".join(["no range is in it", *found.notes])
        raise _rocprof_launches.refused(sheet, what, "Give the results_X.csv of the same recording.")
    note = "ranges only: give the results_X.csv of the same recording to see their kernels"
    origin = tables.Origin(
        format="rocprofv2 roctx_trace CSV", tool="rocprof", tool_version="v2", notes=(*found.notes, note)
    )
    return _rocprof_launches.annotated(recording.place(recording.Recording(ranges=ranges), origin), sheet)


def _operations(sheet: Sheet) -> pd.DataFrame:
    """The launches of hcc_ops_trace_X.csv. Old HIP runtimes give no kernel's name; then its operation stands for it."""
    texts = list(zip(sheet.columns["Operation"], sheet.columns["Kernel_Name"], strict=True))
    launches = recording.records(
        recording.LAUNCH,
        {
            "name": [kernel or operation for operation, kernel in texts],
            "kind": [_kind(operation, kernel) for operation, kernel in texts],
            "start": sheet.numbers("Start_Timestamp"),
            "end": sheet.numbers("Stop_Timestamp"),
            "correlation": sheet.numbers("Correlation_ID"),
        },
    )
    return launches[launches["kind"] != ""].reset_index(drop=True)


def _kind(operation: str, kernel: str) -> str:
    """Empty for markers and barriers."""
    if kernel or "Kernel" in operation:
        return "kernel"
    return "memcpy" if _COPY.match(operation) else "memset" if _FILL.match(operation) else ""


class _Siblings:
    """What lies beside a file of ``launches``: ranges and calls, of its process and thread where there is but one."""

    def __init__(self, path: Path, kind: str, launches: pd.DataFrame) -> None:
        self._rest = path.name.removeprefix(f"{kind}_") if path.name.startswith(f"{kind}_") else ""
        self._folder = path.parent
        self._process = _only(launches["process"], pd.NA)
        self._thread = _only(launches["thread"], recording.WHOLE_PROCESS)
        self._operations = self._sheet("hcc_ops_trace", "Operation", "Kernel_Name") if kind == "results" else None
        self._api = self._sheet("hip_api_trace", "Function", "Correlation_ID")
        marks = self._sheet("roctx_trace", "ROCTX_ID", "Message")
        self._marks = _rocprofv2_roctx.read(marks.path) if marks is not None else None
        self._read = [sheet for sheet in (self._operations, self._api, marks) if sheet is not None]

    def _sheet(self, kind: str, *needed: str) -> Sheet | None:
        path = self._folder / f"{kind}_{self._rest}"
        if not self._rest or not path.is_file():
            return None
        sheet = read(path)
        return sheet if sheet.has(*needed) else None

    @property
    def ranges(self) -> pd.DataFrame:
        return self._marks.ranges(self._process, self._thread) if self._marks else recording.no_ranges()

    @property
    def calls(self) -> pd.DataFrame:
        if not self._api:
            return recording.no_calls()
        times = {"start": self._api.numbers("Start_Timestamp"), "end": self._api.numbers("End_Timestamp")}
        where = {"process": self._process, "correlation": self._api.numbers("Correlation_ID")}
        return recording.records(recording.CALL, {**times, **where})

    def copies(self) -> pd.DataFrame:
        if not self._operations:
            return recording.no_launches()
        launches = _operations(self._operations)
        return launches[launches["kind"] != "kernel"].assign(process=self._process).astype({"process": "Int64"})

    def notes(self) -> tuple[str, ...]:
        notes = [f"read with it: {sheet.path.name}" for sheet in self._read]
        if self._marks:
            notes += [f"roctx_trace_{self._rest}: {note}" for note in self._marks.notes]
            if not self._api:
                notes.append(
                    "kernels are placed by when they ran, for no file says when they were launched: those that ran "
                    "after their range was closed are not in it; record with --hip-trace too"
                )
        return tuple(notes)


def _only(values: pd.Series[Any], otherwise: Any) -> Any:
    """The one value that all have, NA included."""
    different = values.unique()
    return different[0] if len(different) == 1 else otherwise
