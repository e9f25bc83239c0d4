"""CSV files of rocprof (v1), rocprofv2 and rocprofv3, every generation: columns are found by name.

A kernel_trace.csv of rocprofv3 says neither which process it is of nor where a kernel was launched; that stands in the
files beside it with the same stem (``X_marker_api_trace.csv``, ``X_hip_api_trace.csv``, ``X_memory_copy_trace.csv``,
``X_agent_info.csv``), which are parts of one recording and are read with it. Each other file stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe import kernels, recording, tables
from profpipe.csvfile import Sheet, opening, read
from profpipe.errors import Refused

FORMATS = (
    "rocprof v1 results.csv",
    "rocprofv2 results CSV",
    "rocprofv3 CSV: kernel_trace, marker_api_trace, memory_copy_trace, counter_collection",
)

_TRACE_AGAIN = "Record again with `rocprofv3 --kernel-trace --marker-trace --hip-trace -f csv -- COMMAND`."
_V1_AGAIN = "Record again with `rocprof --timestamp on -o results.csv COMMAND`."

#: Columns of the files that list dispatches one by one; any other column of theirs is a counter.
_V1_COLUMNS = {
    "Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr", "vgpr",
    "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "DispatchNs", "BeginNs", "EndNs",
    "CompleteNs", "DurationNs", "",
}  # fmt: skip
_V2_COLUMNS = {
    "Dispatch_ID", "GPU_ID", "Queue_ID", "Queue_Index", "PID", "TID", "GRD", "WGR", "LDS", "SCR", "Grid_Size",
    "Workgroup_Size", "LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size",
    "SIG", "OBJ", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID", "",
}  # fmt: skip

#: What describes a launch but enters no table: left unread, for a trace has a million rows.
_UNUSED = {
    "Queue_Id", "Kernel_Id", "Private_Segment_Size", "Group_Segment_Size", "LDS_Block_Size", "Scratch_Size",
    "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size", "Grid_Size", "Guid", "queue-id", "queue-index",
    "grd", "wgr", "lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", "Percentage",
    *(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"),
}  # fmt: skip


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    names = opening(path)
    return _layout(set(names)) is not None or tuple(n for n in names if n != "Guid")[:2] in _OPENINGS


def parse(path: Path) -> tables.Tables:
    """Kernels, ranges and counters of the file. Raises ``Refused`` where it holds none of them."""
    sheet = read(path, _UNUSED)
    layout = _layout(set(sheet.columns))
    if layout is None:
        raise Refused(path, "a rocprof CSV that is cut in its first line", _TRACE_AGAIN)
    found = layout(sheet)
    return found.with_columns(profiler="rocprof")


# --- which file it is ------------------------------------------------------------------------------------------------


def _layout(names: set[str]) -> Callable[[Sheet], tables.Tables] | None:
    for needed, reader in _LAYOUTS:
        if needed <= names:
            return reader
    return None


def _refused(sheet: Sheet, what: str, remedy: str) -> Refused:
    return Refused(sheet.path, "; ".join([what, *sheet.notes]), remedy)


def _only_other(sheet: Sheet) -> tables.Tables:
    raise _refused(sheet, "a rocprofv3 CSV without kernels, ranges or counters", "Give the kernel_trace.csv beside it.")


# --- launches one by one ---------------------------------------------------------------------------------------------


def _kernels(sheet: Sheet, **place: Any) -> pd.DataFrame:
    """The launches of rocprofv2 and v3, which name and time them alike; ``place`` is where they ran, by column."""
    if not len(sheet):
        raise _refused(sheet, "no kernels were recorded", "Pass --kernel-trace, and see that the program used the GPU.")
    named = {"name": sheet.columns["Kernel_Name"], "kind": "kernel"}
    times = {"start": sheet.numbers("Start_Timestamp"), "end": sheet.numbers("End_Timestamp")}
    return recording.records(recording.LAUNCH, {**named, **times, **place})


def _dispatches_v3(sheet: Sheet) -> tables.Tables:
    siblings = _Siblings(sheet.path)
    process = siblings.process()
    launches = _kernels(
        sheet,
        process=process,
        thread=sheet.numbers("Thread_Id"),
        device=siblings.ordinals(sheet.numbers("Agent_Id")),
        stream=sheet.numbers("Stream_Id"),
        correlation=sheet.numbers("Correlation_Id"),
    )
    launches = pd.concat([launches, siblings.copies(process)], ignore_index=True)
    placed = recording.place(
        recording.Recording(launches, siblings.ranges(), siblings.calls()),
        tables.Origin(
            format="rocprofv3 kernel_trace CSV",
            tool="rocprof",
            tool_version="v3",
            device=siblings.device(launches),
            notes=(*sheet.notes, *siblings.notes()),
        ),
    )
    return _annotated(placed, sheet)


def _annotated(placed: recording.Placed, sheet: Sheet) -> tables.Tables:
    found = placed.tables
    if not len(found.kernels) and not len(found.ranges):
        raise _refused(sheet, "no row of it is whole", _TRACE_AGAIN)
    return replace(found, kernels=kernels.annotate(found.kernels))


class _Siblings:
    """The files of the same recording beside a kernel_trace.csv or counter_collection.csv; absent ones are empty."""

    def __init__(self, path: Path) -> None:
        self._stem = re.sub(r"(kernel_trace|counter_collection)\.csv$", "", path.name)
        self._folder = path.parent
        self._named = path.name != self._stem
        self._markers = self._sheet("marker_api_trace.csv", "Function", "Process_Id")
        self._calls = self._sheet("hip_api_trace.csv", "Function", "Process_Id")
        self._agents = self._sheet("agent_info.csv", "Node_Id", "Agent_Type")
        self._copies = self._sheet("memory_copy_trace.csv", "Direction", "Start_Timestamp")

    def _sheet(self, suffix: str, *needed: str) -> Sheet | None:
        path = self._folder / f"{self._stem}{suffix}"
        if not self._named or not path.is_file() or not path.stat().st_size:
            return None
        sheet = read(path, _UNUSED)
        return sheet if sheet.has(*needed) else None

    def process(self) -> Any:
        """The one process that the siblings name; NA without siblings."""
        sheets = [sheet for sheet in (self._markers, self._calls) if sheet]
        pids = {pid for sheet in sheets for pid in sheet.numbers("Process_Id") if pid is not pd.NA}
        return pids.pop() if len(pids) == 1 else pd.NA

    def ranges(self) -> pd.DataFrame:
        return _ranges(self._markers) if self._markers else recording.no_ranges()

    def calls(self) -> pd.DataFrame:
        return recording.records(recording.CALL, _times(self._calls)) if self._calls else recording.no_calls()

    def copies(self, process: Any) -> pd.DataFrame:
        if self._copies is None:
            return recording.no_launches()
        return _copy_launches(self._copies, self.ordinals).assign(
            process=pd.array([process] * len(self._copies), "Int64")
        )

    def ordinals(self, agents: Any) -> Any:
        """Which GPU each agent is, counted from 0; the agent's own number where no agent_info.csv lies beside."""
        if self._agents is None:
            return agents
        order = {agent: ordinal for ordinal, (agent, _) in enumerate(self._gpus())}
        return pd.array([order.get(agent, agent) for agent in agents], dtype="Int64")

    def _gpus(self) -> list[tuple[int, str]]:
        if self._agents is None:
            return []
        names = self._agents.first("Product_Name", "Name") or [""] * len(self._agents)
        rows = zip(self._agents.columns["Agent_Type"], self._agents.numbers("Node_Id"), names, strict=True)
        return sorted((int(agent), name) for kind, agent, name in rows if kind == "GPU" and agent is not pd.NA)

    def device(self, launches: pd.DataFrame) -> str:
        gpus = self._gpus()
        used = [int(ordinal) for ordinal in launches["device"].dropna().unique()]
        return ", ".join(dict.fromkeys(gpus[ordinal][1] for ordinal in used if ordinal < len(gpus)))

    def notes(self) -> tuple[str, ...]:
        sheets = [sheet for sheet in (self._markers, self._calls, self._copies, self._agents) if sheet]
        notes = [f"read with it: {sheet.path.name}" for sheet in sheets]
        notes += [f"{sheet.path.name}: {note}" for sheet in sheets for note in sheet.notes]
        if self._agents is None:
            notes.append("device numbers are HSA agent ids, which count CPUs too")
        return tuple(notes)


def _times(sheet: Sheet) -> dict[str, Any]:
    return {
        "start": sheet.numbers("Start_Timestamp"),
        "end": sheet.numbers("End_Timestamp"),
        "process": sheet.numbers("Process_Id"),
        "thread": sheet.numbers("Thread_Id"),
        "correlation": sheet.numbers("Correlation_Id"),
    }


def _dispatches_v2(sheet: Sheet) -> tables.Tables:
    launches = _kernels(
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
    return _with_counters(sheet, launches, origin, _V2_COLUMNS)


def _dispatches_v1(sheet: Sheet) -> tables.Tables:
    if not len(sheet):
        raise _refused(sheet, "no kernels were recorded", _V1_AGAIN)
    names = [name.strip('"') for name in sheet.columns["KernelName"]]
    launches = recording.records(
        recording.LAUNCH,
        {
            "name": names,
            "kind": "kernel",
            "start": sheet.numbers("BeginNs"),
            "end": sheet.numbers("EndNs"),
            "process": sheet.numbers("pid"),
            "thread": sheet.numbers("tid"),
            "device": sheet.numbers("gpu-id"),
            "dispatched": sheet.numbers("DispatchNs"),
        },
    )
    origin = tables.Origin(format="rocprof v1 results CSV", tool="rocprof", tool_version="v1", notes=sheet.notes)
    return _with_counters(sheet, launches, origin, _V1_COLUMNS)


def _with_counters(sheet: Sheet, launches: pd.DataFrame, origin: tables.Origin, known: set[str]) -> tables.Tables:
    """Tables of dispatches with their counters, one column each, and with or without times."""
    counters = [name for name in sheet.columns if name not in known]
    values = pd.DataFrame({name: pd.to_numeric(pd.Series(sheet.columns[name]), errors="coerce") for name in counters})
    long = values.assign(subject=launches["name"].map(kernels.normalise)).melt(["subject"], var_name="metric")
    if launches["start"].isna().all():
        return _untimed(launches, long, origin)
    found = _annotated(recording.place(recording.Recording(launches), origin), sheet)
    return replace(found, metrics=recording.counters(long))


def _untimed(launches: pd.DataFrame, values: pd.DataFrame, origin: tables.Origin) -> tables.Tables:
    found = recording.count_only(launches, origin)
    return replace(found, kernels=kernels.annotate(found.kernels), metrics=recording.counters(values))


def _counters_v3(sheet: Sheet) -> tables.Tables:
    """The long form: a row for each dispatch and counter."""
    if not len(sheet):
        raise _refused(sheet, "no counters were collected", "Name them with --pmc, as rocprofv3-avail lists them.")
    siblings = _Siblings(sheet.path)
    rows = recording.records(
        recording.LAUNCH,
        {
            "name": sheet.columns["Kernel_Name"],
            "kind": "kernel",
            "start": sheet.numbers("Start_Timestamp"),
            "end": sheet.numbers("End_Timestamp"),
            "process": sheet.numbers("Process_Id"),
            "thread": sheet.numbers("Thread_Id"),
            "device": siblings.ordinals(sheet.numbers("Agent_Id")),
            "correlation": sheet.numbers("Correlation_Id"),
        },
    )
    rows["dispatch"] = pd.array(sheet.numbers("Dispatch_Id"), dtype="Int64")
    launches = rows.drop_duplicates(["process", "device", "dispatch"]).reset_index(drop=True)
    long = pd.DataFrame(
        {
            "subject": rows["name"].map(kernels.normalise),
            "metric": sheet.columns["Counter_Name"],
            "value": sheet.columns["Counter_Value"],
        }
    )
    origin = tables.Origin(
        format="rocprofv3 counter_collection CSV",
        tool="rocprof",
        tool_version="v3",
        device=siblings.device(launches),
        notes=(*sheet.notes, *siblings.notes()),
    )
    if launches["start"].isna().all():
        return _untimed(launches, long, origin)
    placed = recording.place(recording.Recording(launches, siblings.ranges(), siblings.calls()), origin)
    case_of = placed.launches.set_index(["process", "device", "dispatch"])["case"].to_dict()
    keys = zip(rows["process"], rows["device"], rows["dispatch"], strict=True)
    long["case"] = [case_of.get(key, "") for key in keys]
    return replace(_annotated(placed, sheet), metrics=recording.counters(long))


# --- ranges and copies -----------------------------------------------------------------------------------------------


def _calls(sheet: Sheet) -> tables.Tables:
    """A marker_api_trace.csv alone: its ranges. The trace of another API holds nothing that the tables have."""
    ranges = _ranges(sheet)
    if not len(ranges):
        what = "no ranges were recorded" if len(sheet) else "no calls were recorded"
        raise _refused(sheet, f"API calls only; {what} in it", "Give the kernel_trace.csv beside it.")
    origin = tables.Origin(
        format="rocprofv3 marker_api_trace CSV",
        tool="rocprof",
        tool_version="v3",
        notes=(*sheet.notes, "ranges only: give the kernel_trace.csv of the same recording to see their kernels"),
    )
    return _annotated(recording.place(recording.Recording(ranges=ranges), origin), sheet)


def _ranges(sheet: Sheet) -> pd.DataFrame:
    """The ranges of a marker trace; none of the trace of another API."""
    frame = recording.records(recording.RANGE, {"name": sheet.columns["Function"], **_times(sheet)})
    frame["domain"] = pd.Series(sheet.columns["Domain"], index=frame.index, dtype=object)
    frame["operation"] = frame["name"]
    return recording.marker_ranges(frame[frame["domain"].astype(str).str.contains("MARKER|ROCTX")])


def _copies(sheet: Sheet) -> tables.Tables:
    if not len(sheet):
        raise _refused(sheet, "no copies were recorded", "Pass --memory-copy-trace.")
    origin = tables.Origin(
        format="rocprofv3 memory_copy_trace CSV",
        tool="rocprof",
        tool_version="v3",
        notes=(*sheet.notes, "copies only", "device numbers are HSA agent ids, which count CPUs too"),
    )
    launches = _copy_launches(sheet, lambda agents: agents)
    return _annotated(recording.place(recording.Recording(launches), origin), sheet)


def _copy_launches(sheet: Sheet, ordinals: Callable[[Any], Any]) -> pd.DataFrame:
    """A copy is of the GPU that takes part in it; between GPUs of the one that receives."""
    source = sheet.numbers("Source_Agent_Id", "Src_Agent_Id")
    target = sheet.numbers("Destination_Agent_Id", "Dst_Agent_Id")
    to_host = [direction.upper().endswith("TO_HOST") for direction in sheet.columns["Direction"]]
    agents = pd.array([a if back else b for back, a, b in zip(to_host, source, target, strict=True)], dtype="Int64")
    return recording.records(
        recording.LAUNCH,
        {
            "name": sheet.columns["Direction"],
            "kind": "memcpy",
            "start": sheet.numbers("Start_Timestamp"),
            "end": sheet.numbers("End_Timestamp"),
            "device": ordinals(agents),
            "stream": sheet.numbers("Stream_Id"),
            "correlation": sheet.numbers("Correlation_Id"),
        },
    )


_LAYOUTS: tuple[tuple[set[str], Callable[[Sheet], tables.Tables]], ...] = (
    ({"Kernel_Name", "Counter_Name", "Counter_Value"}, _counters_v3),
    ({"Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"}, _dispatches_v3),
    ({"Kernel_Name", "Dispatch_ID", "GPU_ID"}, _dispatches_v2),
    ({"Index", "KernelName"}, _dispatches_v1),
    ({"Domain", "Function", "Start_Timestamp", "End_Timestamp"}, _calls),
    ({"Kind", "Direction", "Start_Timestamp", "End_Timestamp"}, _copies),
    ({"Node_Id", "Agent_Type"}, _only_other),
    ({"Kind", "Operation", "Agent_Id"}, _only_other),
)

#: The first two columns of each, by which a file that is cut in its first line is still known.
_OPENINGS = {
    ("Kind", "Agent_Id"), ("Kind", "Direction"), ("Domain", "Function"), ("Correlation_Id", "Dispatch_Id"),
    ("Dispatch_ID", "GPU_ID"), ("Index", "KernelName"),
}  # fmt: skip
