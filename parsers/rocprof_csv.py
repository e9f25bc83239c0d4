"""Read CSV files of rocprof (v1), rocprofv2 and rocprofv3; columns are found by name.

A kernel_trace.csv of rocprofv3 states neither its process nor where a kernel was launched. The files of the same stem
beside it do: ``X_marker_api_trace.csv``, ``X_hip_api_trace.csv``, ``X_memory_copy_trace.csv`` and ``X_agent_info.csv``.
Each other file stands for itself. Sources: the CSV writers of ROCm/rocprofiler (v1, v2) and of ROCm/rocprofiler-sdk
(v3, source/lib/output).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, rocprof
from profpipe.ingest.rocprof import CsvTable
from profpipe.results import schema

FORMATS = (
    "rocprof v1 results.csv",
    "rocprofv2 results.csv",
    "rocprofv3 CSV: kernel_trace, marker_api_trace, memory_copy_trace, counter_collection",
)

_TRACE_AGAIN: Final = "Record again with `rocprofv3 --kernel-trace --marker-trace --hip-trace -f csv -- COMMAND`."
_GIVE_TRACE: Final = "Give the kernel_trace.csv beside it."

#: Columns that enter no table. They are not read, for a trace has a million rows.
_UNUSED: Final = {
    "Kernel_Id", "Private_Segment_Size", "Group_Segment_Size", "LDS_Block_Size", "Scratch_Size",
    "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size", "Grid_Size", "Guid", "queue-index",
    "grd", "wgr", "lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", "Percentage",
    *(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"),
}  # fmt: skip
#: Columns of v1 and v2 that describe a dispatch; any other is a counter.
_DISPATCH: Final = {
    "Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr", "vgpr",
    "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "DispatchNs", "BeginNs", "EndNs",
    "CompleteNs", "DurationNs",
    "Dispatch_ID", "GPU_ID", "Queue_ID", "Queue_Index", "PID", "TID", "GRD", "WGR", "LDS", "SCR", "Grid_Size",
    "Workgroup_Size", "LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size",
    "SIG", "OBJ", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID", "XCC_Index", "",
}  # fmt: skip
_V1: Final = {
    "start": "BeginNs", "end": "EndNs", "process": "pid", "thread": "tid", "device": "gpu-id", "stream": "queue-id",
    "dispatched": "DispatchNs",
}  # fmt: skip
_V2: Final = {
    "start": "Start_Timestamp", "end": "End_Timestamp", "process": "PID", "thread": "TID", "device": "GPU_ID",
    "stream": "Queue_ID", "correlation": "Correlation_ID",
}  # fmt: skip
_V3: Final = {
    "start": "Start_Timestamp", "end": "End_Timestamp", "process": "Process_Id", "thread": "Thread_Id",
    "correlation": "Correlation_Id",
}  # fmt: skip


def sniff(path: Path) -> bool:
    """Return True for a CSV file with the columns of a layout of rocprof, or the first two of them."""
    names = rocprof.read_header(path)
    return _layout(set(names)) is not None or tuple(n for n in names if n != "Guid")[:2] in _OPENINGS


def parse(path: Path, step_range: str = "") -> schema.Tables:
    """Read kernels, ranges, steps and counters. Raises ``UnreadableFile`` where the file holds none of them.

    ``step_range`` is a regular expression for the ranges that are steps.
    """
    table = rocprof.read_csv(path, _UNUSED)
    layout = _layout(set(table.columns))
    if layout is None:
        raise UnreadableFile(path, "a rocprof CSV that is cut in its first line", _TRACE_AGAIN)
    tables = layout(table, step_range)
    if not len(tables.kernels) and not len(tables.ranges):
        raise table.unreadable("no row of it is whole", _TRACE_AGAIN)
    return tables


def _layout(names: set[str]) -> Callable[[CsvTable, str], schema.Tables] | None:
    return next((reader for needed, reader in _LAYOUTS if needed <= names), None)


def _refuse(table: CsvTable, step_range: str) -> schema.Tables:
    raise table.unreadable("a rocprofv3 CSV without kernels, ranges or counters", _GIVE_TRACE)


def _refuse_v2(table: CsvTable, step_range: str) -> schema.Tables:
    what = "a trace of rocprofv2 without the numbers of its launches, which profpipe does not read"
    raise table.unreadable(what, "Give the results_X.csv of the same recording, or record with rocprofv3.")


# --- rocprof v1 and rocprofv2 ----------------------------------------------------------------------------------------


def _read_v1(table: CsvTable, step_range: str) -> schema.Tables:
    if not len(table):
        remedy = "Record again with `rocprof --timestamp on -o results.csv COMMAND`."
        raise table.unreadable("no kernels were recorded", remedy)
    names = [name.strip('"') for name in table.columns["KernelName"]]
    origin = schema.Origin(format="rocprof v1 results CSV", tool="rocprof", tool_version="v1", notes=table.notes)
    return _build_tables(table, origin, _launches(table, names, _V1), step_range)


def _read_v2(table: CsvTable, step_range: str) -> schema.Tables:
    _check_rows(table)
    launches, notes = _launches(table, table.columns["Kernel_Name"], _V2), list(table.notes)
    if table.has("XCC_Index"):
        # With ROCPROFILER_INDIVIDUAL_XCC_MODE a dispatch has a row for an XCC of the GPU.
        dispatch = pd.Series(pd.array(table.numbers("Dispatch_ID"), dtype="Int64"), index=launches.index)
        launches["launch"] = launches.groupby([launches["process"], dispatch], dropna=False).ngroup()
        notes.append("counters are of single XCCs, each of which counts a launch by itself")
    origin = schema.Origin(
        format="rocprofv2 CSV", tool="rocprof", tool_version="v2", notes=tuple(notes),
        details=("device numbers are HSA agent ids",),
    )  # fmt: skip
    return _build_tables(table, origin, launches, step_range)


def _check_rows(table: CsvTable) -> None:
    if not len(table):
        raise table.unreadable("no kernels were recorded", "Pass --kernel-trace, and check that the GPU was used.")


def _launches(table: CsvTable, names: list[str], columns: dict[str, str]) -> pd.DataFrame:
    """Return the launches, one a row, with the number ``launch`` to which counters refer."""
    rows = rocprof.records(rocprof.LAUNCH, {"name": names, "kind": "kernel", **table.all_numbers(columns)})
    return rows.assign(launch=pd.array(range(len(rows)), dtype="Int64"))


def _build_tables(table: CsvTable, origin: schema.Origin, rows: pd.DataFrame, step_range: str) -> schema.Tables:
    """Return the tables of ``rows``, those of the file; a column that describes no dispatch is a counter."""
    names = [name for name in table.columns if name not in _DISPATCH]
    values = pd.DataFrame({name: pd.to_numeric(pd.Series(table.columns[name]), errors="coerce") for name in names})
    values = values.assign(launch=rows["launch"], subject=rows["name"].map(kernel_classes.normalise))
    counted = values.melt(["launch", "subject"], var_name="metric")
    launches = rows.drop_duplicates("launch").reset_index(drop=True)
    if launches["start"].isna().all():
        return rocprof.count_only(launches, origin, counted)
    return rocprof.tables(origin, launches, step_range=step_range, counted=counted, key=["launch"])


# --- rocprofv3 -------------------------------------------------------------------------------------------------------


def _read_v3(table: CsvTable, step_range: str) -> schema.Tables:
    """Read a kernel_trace.csv, and its siblings."""
    _check_rows(table)
    siblings = _Siblings(table)
    process = siblings.process()
    place = {
        "process": process,
        "device": siblings.ordinals(table, "Agent_Id"),
        "stream": table.numbers("Stream_Id", "Queue_Id"),
    }
    named = {"name": table.columns["Kernel_Name"], "kind": "kernel"}
    launches = rocprof.records(rocprof.LAUNCH, {**table.all_numbers(_V3), **named, **place})
    launches = pd.concat([launches, siblings.copies(process)], ignore_index=True)
    origin = siblings.origin("kernel_trace", launches)
    return rocprof.tables(origin, launches, siblings.ranges(), siblings.calls(), step_range)


def _read_v3_counters(table: CsvTable, step_range: str) -> schema.Tables:
    """Read a counter_collection.csv, which has a row for a dispatch and counter."""
    if not len(table):
        raise table.unreadable("no counters were collected", "Name them with --pmc, as rocprofv3-avail lists them.")
    siblings = _Siblings(table)
    named = {"name": table.columns["Kernel_Name"], "kind": "kernel", "device": siblings.ordinals(table, "Agent_Id")}
    rows = rocprof.records(rocprof.LAUNCH, {**table.all_numbers(_V3), **named})
    dispatch = pd.Series(pd.array(table.numbers("Dispatch_Id"), dtype="Int64"), index=rows.index)
    rows["launch"] = rows.groupby([rows["process"], rows["device"], dispatch], dropna=False).ngroup()
    launches = rows.drop_duplicates("launch").reset_index(drop=True)
    subject = rows["name"].map(kernel_classes.normalise)
    values = {"metric": table.columns["Counter_Name"], "value": table.columns["Counter_Value"]}
    counted = pd.DataFrame({"launch": rows["launch"], "subject": subject, **values})
    origin = siblings.origin("counter_collection", launches)
    if launches["start"].isna().all():
        return rocprof.count_only(launches, origin, counted)
    return rocprof.tables(origin, launches, siblings.ranges(), siblings.calls(), step_range, counted, ["launch"])


def _read_v3_ranges(table: CsvTable, step_range: str) -> schema.Tables:
    """Read the ranges of a marker_api_trace.csv alone. Traces of other APIs hold nothing for the tables."""
    ranges = _ranges(table)
    if not len(ranges):
        what = "no ranges were recorded" if len(table) else "no calls were recorded"
        raise table.unreadable(f"API calls only; {what} in it", _GIVE_TRACE)
    note = "ranges only: give the kernel_trace.csv of the same recording to see their kernels"
    origin = _v3_origin("marker_api_trace", table, note)
    return rocprof.tables(origin, rocprof.records(rocprof.LAUNCH, {}), ranges)


def _read_v3_copies(table: CsvTable, step_range: str) -> schema.Tables:
    """Read a memory_copy_trace.csv alone."""
    if not len(table):
        raise table.unreadable("no copies were recorded", "Pass --memory-copy-trace.")
    alone = _Siblings(table)
    launches = alone.copies_of(table)
    origin = _v3_origin("memory_copy_trace", table, "copies only", details=alone.details())
    return rocprof.tables(origin, launches, step_range=step_range)


def _v3_origin(kind: str, table: CsvTable, *notes: str, **more: Any) -> schema.Origin:
    format_ = f"rocprofv3 {kind} CSV"
    return schema.Origin(format=format_, tool="rocprof", tool_version="v3", notes=(*table.notes, *notes), **more)


def _ranges(table: CsvTable) -> pd.DataFrame:
    """Return the ranges of a marker trace; none of the trace of another API."""
    frame = rocprof.records(rocprof.RANGE, {"name": table.columns["Function"], **table.all_numbers(_V3)})
    frame["domain"] = pd.Series(table.columns["Domain"], index=frame.index, dtype=object)
    frame["operation"] = frame["name"]
    return rocprof.marker_ranges(frame[frame["domain"].astype(str).str.contains("MARKER|ROCTX")])


class _Siblings:
    """The files of the same recording beside a kernel_trace.csv or counter_collection.csv."""

    def __init__(self, table: CsvTable) -> None:
        self._table = table
        self._stem = re.sub(r"(kernel_trace|counter_collection)\.csv$", "", table.path.name)
        self._markers = self._read("marker_api_trace.csv", "Function", "Process_Id")
        self._calls = self._read("hip_api_trace.csv", "Function", "Process_Id")
        self._copies = self._read("memory_copy_trace.csv", "Direction", "Start_Timestamp")
        self._agents = self._read("agent_info.csv", "Node_Id", "Agent_Type")
        self._are_ordinals = False

    def _read(self, suffix: str, *needed: str) -> CsvTable | None:
        """Read another file of the recording, None where it is missing, empty or lacks a column."""
        path = self._table.path.with_name(f"{self._stem}{suffix}")
        if self._stem == self._table.path.name or not path.is_file() or not path.stat().st_size:
            return None
        table = rocprof.read_csv(path, _UNUSED)
        return table if table.has(*needed) else None

    def process(self) -> Any:
        """Return the one process that the siblings name, NA without siblings."""
        tables = [table for table in (self._markers, self._calls) if table]
        pids = {pid for table in tables for pid in table.numbers("Process_Id") if pid is not pd.NA}
        return pids.pop() if len(pids) == 1 else pd.NA

    def ranges(self) -> pd.DataFrame | None:
        return _ranges(self._markers) if self._markers else None

    def calls(self) -> pd.DataFrame | None:
        if not self._calls:
            return None
        named = {"name": self._calls.columns["Function"]}
        return rocprof.records(rocprof.CALL, {**self._calls.all_numbers(_V3), **named})

    def copies(self, process: Any) -> pd.DataFrame:
        if self._copies is None:
            return rocprof.records(rocprof.LAUNCH, {})
        return self.copies_of(self._copies).assign(process=pd.array([process] * len(self._copies), "Int64"))

    def copies_of(self, table: CsvTable) -> pd.DataFrame:
        """Return the copies. The device is the GPU that takes part, between two GPUs the one that receives."""
        source = self.ordinals(table, "Source_Agent_Id", "Src_Agent_Id")
        target = self.ordinals(table, "Destination_Agent_Id", "Dst_Agent_Id")
        to_host = [direction.upper().endswith("TO_HOST") for direction in table.columns["Direction"]]
        devices = pd.array([a if back else b for back, a, b in zip(to_host, source, target, strict=True)], "Int64")
        where = {"device": devices, "stream": table.numbers("Stream_Id", "Queue_Id"), "process": pd.NA, "thread": pd.NA}
        named = {"name": table.columns["Direction"], "kind": "memcpy"}
        return rocprof.records(rocprof.LAUNCH, {**table.all_numbers(_V3), **named, **where})

    def origin(self, kind: str, launches: pd.DataFrame) -> schema.Origin:
        tables = [table for table in (self._markers, self._calls, self._copies, self._agents) if table]
        return _v3_origin(
            kind,
            self._table,
            *(f"{table.path.name}: {note}" for table in tables for note in table.notes),
            device=self._gpus_of(launches),
            details=self.details(),
            read_with=tuple(table.path.name for table in tables),
        )

    # --- the ordinal of a GPU among all GPUs of the agent_info.csv; without that file the number of the agent

    def ordinals(self, table: CsvTable, *names: str) -> Any:
        """Return the column of ``table`` that has one of ``names``, with ordinals in place of agents.

        ``Agent 4`` is the agent of that Logical_Node_Id, which leaves out agents that the process cannot see, or of
        that Node_Id (--agent-index absolute; up to ROCm 6.3 a bare 4). ``GPU 0`` comes with --agent-index
        type-relative. Source: ROCm/rocprofiler-sdk, source/lib/output/metadata.cpp, get_agent_index.
        """
        agents = table.numbers(*names)
        style = next((text.rpartition(" ")[0] for text in table.first(*names) or [] if text), "")
        self._are_ordinals |= style == "GPU"
        if self._agents is None or style in ("GPU", "CPU"):
            return agents
        has_logical = style == "Agent" and self._agents.has("Logical_Node_Id")
        ids = _numbers(self._agents, "Logical_Node_Id") if has_logical else []
        if not {int(agent) for agent in pd.unique(agents).dropna()} <= set(ids):
            ids = _numbers(self._agents, "Node_Id")
        kinds = zip(ids, self._agents.columns["Agent_Type"], strict=True)
        order = {agent: at for at, agent in enumerate(sorted(agent for agent, kind in kinds if kind == "GPU"))}
        return pd.array([order.get(agent, agent) for agent in agents], dtype="Int64")

    def _gpus_of(self, launches: pd.DataFrame) -> str:
        """Return the names of the GPUs that ran something, empty without an agent_info.csv."""
        if self._agents is None:
            return ""
        names = self._agents.first("Product_Name", "Name") or [""] * len(self._agents)
        node = _numbers(self._agents, "Node_Id")
        rows = sorted(zip(node, self._agents.columns["Agent_Type"], names, strict=True))
        gpus = [name for _, kind, name in rows if kind == "GPU"]
        used = [int(ordinal) for ordinal in launches["device"].dropna().unique()]
        return ", ".join(dict.fromkeys(gpus[ordinal] for ordinal in used if ordinal < len(gpus)))

    def details(self) -> tuple[str, ...]:
        """Say what the device numbers are, once all ordinals are clear."""
        is_known = self._agents is not None or self._are_ordinals
        return () if is_known else ("device numbers are HSA agent ids, which count CPUs too",)


def _numbers(agents: CsvTable, column: str) -> list[int]:
    return [-1 if number is pd.NA else int(number) for number in agents.numbers(column)]


_LAYOUTS: tuple[tuple[set[str], Callable[[CsvTable, str], schema.Tables]], ...] = (
    ({"Kernel_Name", "Counter_Name", "Counter_Value"}, _read_v3_counters),
    ({"Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"}, _read_v3),
    ({"Kernel_Name", "Dispatch_ID", "GPU_ID"}, _read_v2),
    ({"Index", "KernelName"}, _read_v1),
    ({"Domain", "ROCTX_ID", "Message", "Timestamp"}, _refuse_v2),
    ({"Domain", "Operation", "Kernel_Name", "Start_Timestamp", "Stop_Timestamp"}, _refuse_v2),
    ({"Domain", "Function", "Start_Timestamp", "End_Timestamp"}, _read_v3_ranges),
    ({"Kind", "Direction", "Start_Timestamp", "End_Timestamp"}, _read_v3_copies),
    ({"Node_Id", "Agent_Type"}, _refuse),
    ({"Kind", "Operation", "Agent_Id"}, _refuse),
)

#: The first two columns of a layout, which name a file that is cut in its first line.
_OPENINGS = {
    ("Kind", "Agent_Id"), ("Kind", "Direction"), ("Domain", "Function"), ("Correlation_Id", "Dispatch_Id"),
    ("Dispatch_ID", "GPU_ID"), ("Domain", "ROCTX_ID"), ("Domain", "Operation"), ("Index", "KernelName"),
}  # fmt: skip
