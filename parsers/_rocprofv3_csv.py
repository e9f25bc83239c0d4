"""CSV files of rocprofv3.

A kernel_trace.csv says neither which process it is of nor where a kernel was launched; that stands in the files beside
it with the same stem (``X_marker_api_trace.csv``, ``X_hip_api_trace.csv``, ``X_memory_copy_trace.csv``,
``X_agent_info.csv``), which are parts of one recording and are read with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from profpipe import kernels, load, recording, tables
from profpipe.csvfile import Sheet, read

if TYPE_CHECKING:
    import _rocprof_launches
else:
    _rocprof_launches = load.module(Path(__file__).with_name("_rocprof_launches.py"))


def dispatches(sheet: Sheet) -> tables.Tables:
    siblings = _Siblings(sheet.path)
    process = siblings.process()
    launches = _rocprof_launches.launches(
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
    return _rocprof_launches.annotated(placed, sheet)


def counters(sheet: Sheet) -> tables.Tables:
    """The long form: a row for each dispatch and counter."""
    if not len(sheet):
        raise _rocprof_launches.refused(
            sheet, "no counters were collected", "Name them with --pmc, as rocprofv3-avail lists them."
        )
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
    dispatch = pd.Series(pd.array(sheet.numbers("Dispatch_Id"), dtype="Int64"), index=rows.index)
    rows["launch"] = rows.groupby([rows["process"], rows["device"], dispatch], dropna=False).ngroup()
    launches = rows.drop_duplicates("launch").reset_index(drop=True)
    values = pd.DataFrame(
        {
            "launch": rows["launch"],
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
    everything = recording.Recording(launches, siblings.ranges(), siblings.calls())
    return _rocprof_launches.with_counters(sheet, everything, values, origin)


def calls(sheet: Sheet) -> tables.Tables:
    """A marker_api_trace.csv alone: its ranges. The trace of another API holds nothing that the tables have."""
    ranges = _ranges(sheet)
    if not len(ranges):
        what = "no ranges were recorded" if len(sheet) else "no calls were recorded"
        raise _rocprof_launches.refused(sheet, f"API calls only; {what} in it", "Give the kernel_trace.csv beside it.")
    origin = tables.Origin(
        format="rocprofv3 marker_api_trace CSV",
        tool="rocprof",
        tool_version="v3",
        notes=(*sheet.notes, "ranges only: give the kernel_trace.csv of the same recording to see their kernels"),
    )
    return _rocprof_launches.annotated(recording.place(recording.Recording(ranges=ranges), origin), sheet)


def _ranges(sheet: Sheet) -> pd.DataFrame:
    """The ranges of a marker trace; none of the trace of another API."""
    frame = recording.records(recording.RANGE, {"name": sheet.columns["Function"], **_times(sheet)})
    frame["domain"] = pd.Series(sheet.columns["Domain"], index=frame.index, dtype=object)
    frame["operation"] = frame["name"]
    return recording.marker_ranges(frame[frame["domain"].astype(str).str.contains("MARKER|ROCTX")])


def copies(sheet: Sheet) -> tables.Tables:
    if not len(sheet):
        raise _rocprof_launches.refused(sheet, "no copies were recorded", "Pass --memory-copy-trace.")
    origin = tables.Origin(
        format="rocprofv3 memory_copy_trace CSV",
        tool="rocprof",
        tool_version="v3",
        notes=(*sheet.notes, "copies only", "device numbers are HSA agent ids, which count CPUs too"),
    )
    launches = _copy_launches(sheet, lambda agents: agents)
    return _rocprof_launches.annotated(recording.place(recording.Recording(launches), origin), sheet)


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
        sheet = read(path, _rocprof_launches.UNUSED)
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
