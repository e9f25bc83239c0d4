"""Read CSV files of rocprofv2's plugin ``file`` (ROCm/rocprofiler, plugin/file/file.cpp).

``results_X.csv`` holds kernels (--kernel-trace, or counters), ``hcc_ops_trace_X.csv`` kernels and copies (--hip-trace).
Either is read together with ``roctx_trace_X.csv`` (ranges) and ``hip_api_trace_X.csv`` (calls) beside it, which state
no thread and no process. The correlation id of a kernel is that of its HIP call, or 0 where calls were not traced.
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from profpipe.ingest.rocprof import csv_launches, trace, v2_roctx
from profpipe.ingest.rocprof.csv_file import CsvTable, read_beside
from profpipe.results import schema

#: Any other column of results_X.csv is a counter.
_COLUMNS = {
    "Dispatch_ID", "GPU_ID", "Queue_ID", "Queue_Index", "PID", "TID", "GRD", "WGR", "LDS", "SCR", "Grid_Size",
    "Workgroup_Size", "LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size",
    "SIG", "OBJ", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID", "XCC_Index", "",
}  # fmt: skip
_COPY = re.compile(r"Copy|Memcpy")
_FILL = re.compile(r"Fill|Memset")


def _origin(format_: str, notes: tuple[str, ...], **more: Any) -> schema.Origin:
    return schema.Origin(format=format_, tool="rocprof", tool_version="v2", notes=notes, **more)


def read_dispatches(table: CsvTable) -> schema.Tables:
    """Read results_X.csv: kernels, and their counters."""
    columns = {
        "process": "PID",
        "thread": "TID",
        "device": "GPU_ID",
        "stream": "Queue_ID",
        "correlation": "Correlation_ID",
    }
    launches = csv_launches.read(table, **table.all_numbers(columns))
    notes = list(table.notes)
    if table.has("XCC_Index"):
        # With ROCPROFILER_INDIVIDUAL_XCC_MODE a dispatch has a row for each XCC of the GPU.
        dispatch = pd.Series(pd.array(table.numbers("Dispatch_ID"), dtype="Int64"), index=launches.index)
        launches["launch"] = launches.groupby([launches["process"], dispatch], dropna=False).ngroup()
        notes.append("counters are of single XCCs, each of which counts a launch by itself")
    values = csv_launches.read_counters(table, launches, _COLUMNS)
    siblings = _Siblings(table, "results", launches)
    both = pd.concat([launches.drop_duplicates("launch"), siblings.copies()], ignore_index=True)
    origin = _origin(
        "rocprofv2 CSV",
        (*notes, *siblings.notes()),
        details=("device numbers are HSA agent ids",),
        read_with=siblings.names,
    )
    return csv_launches.place_with_counters(siblings.recording(both), values, origin, table)


def read_operations(table: CsvTable) -> schema.Tables:
    """Read hcc_ops_trace_X.csv: kernels and copies."""
    launches = _operations(table)
    if not len(launches):
        raise table.unreadable("no kernels were recorded", "Check that the program used the GPU.")
    siblings = _Siblings(table, "hcc_ops_trace", launches)
    notes = [*table.notes, "it does not say on which GPU, nor in which process", *siblings.notes()]
    if left_out := len(table) - len(launches):
        notes.insert(0, f"{left_out} markers and barriers are no kernels and left out")
    origin = _origin("rocprofv2 hcc_ops_trace CSV", tuple(notes), read_with=siblings.names)
    return csv_launches.place(siblings.recording(launches), origin, table).tables


def read_roctx(table: CsvTable) -> schema.Tables:
    """Read the ranges of a roctx_trace_X.csv alone."""
    found = v2_roctx.read(table.path)
    ranges = found.ranges(pd.NA, pd.NA)
    if not len(ranges):
        what = "; ".join(["no range is in it", *found.notes])
        raise table.unreadable(what, "Give the results_X.csv of the same recording.")
    note = "ranges only: give the results_X.csv of the same recording to see their kernels"
    origin = _origin("rocprofv2 roctx_trace CSV", (*found.notes, note))
    return csv_launches.place(trace.Recording(ranges=ranges), origin, table).tables


def _operations(table: CsvTable) -> pd.DataFrame:
    """Return the launches of hcc_ops_trace_X.csv. Old HIP runtimes name only the operation, not the kernel."""
    texts = list(zip(table.columns["Operation"], table.columns["Kernel_Name"], strict=True))
    named = {"name": [kernel or operation for operation, kernel in texts], "kind": [_kind(*both) for both in texts]}
    columns = {"start": "Start_Timestamp", "end": "Stop_Timestamp", "correlation": "Correlation_ID"}
    launches = trace.records(trace.LAUNCH, {**named, **table.all_numbers(columns)})
    return launches[launches["kind"] != ""].reset_index(drop=True)


def _kind(operation: str, kernel: str) -> str:
    """Return the kind of a launch, empty for markers and barriers."""
    if kernel or "Kernel" in operation:
        return "kernel"
    return "memcpy" if _COPY.match(operation) else "memset" if _FILL.match(operation) else ""


class _Siblings:
    """The other files of the recording. Their ranges and calls belong to the process and thread of all ``launches``."""

    def __init__(self, table: CsvTable, kind: str, launches: pd.DataFrame) -> None:
        name = table.path.name
        self._rest = name.removeprefix(f"{kind}_") if name.startswith(f"{kind}_") else ""
        self._folder = table.path.parent
        self._process = _common_value(launches["process"], pd.NA)
        self._thread = _common_value(launches["thread"], trace.WHOLE_PROCESS)
        self._operations = self._read("hcc_ops_trace", "Operation", "Kernel_Name") if kind == "results" else None
        self._api = self._read("hip_api_trace", "Function", "Correlation_ID")
        marks = self._read("roctx_trace", "ROCTX_ID", "Message")
        self._marks = v2_roctx.read(marks.path) if marks is not None else None
        self.names = tuple(part.path.name for part in (self._operations, self._api, marks) if part is not None)

    def _read(self, kind: str, *needed: str) -> CsvTable | None:
        return read_beside(self._folder / f"{kind}_{self._rest}", needed) if self._rest else None

    def recording(self, launches: pd.DataFrame) -> trace.Recording:
        ranges = self._marks.ranges(self._process, self._thread) if self._marks else trace.records(trace.RANGE, {})
        columns = {"start": "Start_Timestamp", "end": "End_Timestamp", "correlation": "Correlation_ID"}
        calls: dict[str, Any] = {}
        if self._api:
            named = {"name": self._api.columns["Function"], "process": self._process}
            calls = {**self._api.all_numbers(columns), **named}
        return trace.Recording(launches, ranges, trace.records(trace.CALL, calls))

    def copies(self) -> pd.DataFrame:
        if not self._operations:
            return trace.records(trace.LAUNCH, {})
        launches = _operations(self._operations)
        return launches[launches["kind"] != "kernel"].assign(process=self._process).astype({"process": "Int64"})

    def notes(self) -> list[str]:
        if not self._marks:
            return []
        notes = [f"roctx_trace_{self._rest}: {note}" for note in self._marks.notes]
        if not self._api:
            notes.append(
                "kernels are placed by when they ran, for no file says when they were launched: those that ran after "
                "their range was closed are not in it; record with --hip-trace too"
            )
        return notes


def _common_value(values: pd.Series[Any], otherwise: Any) -> Any:
    """Return the one value that all have, which may be NA."""
    different = values.unique()
    return different[0] if len(different) == 1 else otherwise
