"""CSV files of rocprofv3.

A kernel_trace.csv says neither which process it is of nor where a kernel was launched; that stands in the files beside
it with the same stem (``X_marker_api_trace.csv``, ``X_hip_api_trace.csv``, ``X_memory_copy_trace.csv``,
``X_agent_info.csv``), which are parts of one recording and are read with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from profpipe import kernels, load, tables
from profpipe.formats import recording
from profpipe.formats.csvfile import Sheet, read

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
        device=siblings.gpus.ordinals(sheet, "Agent_Id"),
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
            device=siblings.gpus.named(launches),
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
            "device": siblings.gpus.ordinals(sheet, "Agent_Id"),
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
        device=siblings.gpus.named(launches),
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
    gpus = _Gpus(None)
    launches = _copy_launches(sheet, gpus)
    origin = tables.Origin(
        format="rocprofv3 memory_copy_trace CSV",
        tool="rocprof",
        tool_version="v3",
        notes=(*sheet.notes, "copies only", *gpus.notes()),
    )
    return _rocprof_launches.annotated(recording.place(recording.Recording(launches), origin), sheet)


def _copy_launches(sheet: Sheet, gpus: _Gpus) -> pd.DataFrame:
    """A copy is of the GPU that takes part in it; between GPUs of the one that receives."""
    source = gpus.ordinals(sheet, "Source_Agent_Id", "Src_Agent_Id")
    target = gpus.ordinals(sheet, "Destination_Agent_Id", "Dst_Agent_Id")
    to_host = [direction.upper().endswith("TO_HOST") for direction in sheet.columns["Direction"]]
    devices = pd.array([a if back else b for back, a, b in zip(to_host, source, target, strict=True)], dtype="Int64")
    return recording.records(
        recording.LAUNCH,
        {
            "name": sheet.columns["Direction"],
            "kind": "memcpy",
            "start": sheet.numbers("Start_Timestamp"),
            "end": sheet.numbers("End_Timestamp"),
            "device": devices,
            "stream": sheet.numbers("Stream_Id"),
            "correlation": sheet.numbers("Correlation_Id"),
        },
    )


class _Gpus:
    """Which GPU an agent is, counted from 0, by the agent_info.csv; its own number where there is none.

    A trace says ``Agent 4`` for the agent of that Logical_Node_Id, which leaves out what the process cannot see, or of
    that Node_Id (--agent-index absolute, and up to ROCm 6.3 as a bare 4), and ``GPU 0`` with type-relative
    (ROCm/rocprofiler-sdk, source/lib/output/metadata.cpp, get_agent_index).
    """

    def __init__(self, info: Sheet | None) -> None:
        self._info = info
        self._are_ordinals = False

    def _numbers(self, column: str) -> list[int]:
        assert self._info is not None
        return [-1 if number is pd.NA else int(number) for number in self._info.numbers(column)]

    def ordinals(self, sheet: Sheet, *names: str) -> Any:
        """The column of ``sheet`` that has one of ``names``, with ordinals in place of agents."""
        agents = sheet.numbers(*names)
        style = next((text.rpartition(" ")[0] for text in sheet.first(*names) or [] if text), "")
        self._are_ordinals |= style == "GPU"
        if self._info is None or style in ("GPU", "CPU"):
            return agents
        known = self._numbers("Logical_Node_Id") if style == "Agent" and self._info.has("Logical_Node_Id") else []
        if not {int(agent) for agent in pd.unique(agents).dropna()} <= set(known):
            known = self._numbers("Node_Id")
        kinds = zip(known, self._info.columns["Agent_Type"], strict=True)
        order = {agent: at for at, agent in enumerate(sorted(agent for agent, kind in kinds if kind == "GPU"))}
        return pd.array([order.get(agent, agent) for agent in agents], dtype="Int64")

    def named(self, launches: pd.DataFrame) -> str:
        """Names of the GPUs that ran something; empty where no file tells them."""
        if self._info is None:
            return ""
        names = self._info.first("Product_Name", "Name") or [""] * len(self._info)
        rows = sorted(zip(self._numbers("Node_Id"), self._info.columns["Agent_Type"], names, strict=True))
        gpus = [name for _, kind, name in rows if kind == "GPU"]
        used = [int(ordinal) for ordinal in launches["device"].dropna().unique()]
        return ", ".join(dict.fromkeys(gpus[ordinal] for ordinal in used if ordinal < len(gpus)))

    def notes(self) -> tuple[str, ...]:
        """Asked when all ordinals have been."""
        if self._info is not None or self._are_ordinals:
            return ()
        return ("device numbers are HSA agent ids, which count CPUs too",)


class _Siblings:
    """The files of the same recording beside a kernel_trace.csv or counter_collection.csv; absent ones are empty."""

    def __init__(self, path: Path) -> None:
        self._stem = re.sub(r"(kernel_trace|counter_collection)\.csv$", "", path.name)
        self._folder = path.parent
        self._named = path.name != self._stem
        self._markers = self._sheet("marker_api_trace.csv", "Function", "Process_Id")
        self._calls = self._sheet("hip_api_trace.csv", "Function", "Process_Id")
        self._agents = self._sheet("agent_info.csv", "Node_Id", "Agent_Type")
        self.gpus = _Gpus(self._agents)
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
        return _copy_launches(self._copies, self.gpus).assign(process=pd.array([process] * len(self._copies), "Int64"))

    def notes(self) -> tuple[str, ...]:
        sheets = [sheet for sheet in (self._markers, self._calls, self._copies, self._agents) if sheet]
        notes = [f"read with it: {sheet.path.name}" for sheet in sheets]
        notes += [f"{sheet.path.name}: {note}" for sheet in sheets for note in sheet.notes]
        return (*notes, *self.gpus.notes())


def _times(sheet: Sheet) -> dict[str, Any]:
    return {
        "start": sheet.numbers("Start_Timestamp"),
        "end": sheet.numbers("End_Timestamp"),
        "process": sheet.numbers("Process_Id"),
        "thread": sheet.numbers("Thread_Id"),
        "correlation": sheet.numbers("Correlation_Id"),
    }
