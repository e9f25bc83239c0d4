"""Read CSV files of rocprofv3 (ROCm/rocprofiler-sdk, source/lib/output).

A kernel_trace.csv states neither its process nor where a kernel was launched. The files of the same stem beside it do:
``X_marker_api_trace.csv``, ``X_hip_api_trace.csv``, ``X_memory_copy_trace.csv`` and ``X_agent_info.csv``.
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from profpipe.ingest import kernel_classes
from profpipe.ingest.rocprof import csv_launches, trace
from profpipe.ingest.rocprof.csv_file import CsvTable, read_beside
from profpipe.results import schema


def _origin(kind: str, table: CsvTable, *notes: str, **more: Any) -> schema.Origin:
    format_ = f"rocprofv3 {kind} CSV"
    return schema.Origin(format=format_, tool="rocprof", tool_version="v3", notes=(*table.notes, *notes), **more)


def read_dispatches(table: CsvTable) -> schema.Tables:
    """Read a kernel_trace.csv, and its siblings."""
    siblings = _Siblings(table)
    process = siblings.process()
    launches = csv_launches.read(
        table,
        process=process,
        thread=table.numbers("Thread_Id"),
        device=siblings.gpus.ordinals(table, "Agent_Id"),
        stream=table.numbers("Stream_Id", "Queue_Id"),
        correlation=table.numbers("Correlation_Id"),
    )
    launches = pd.concat([launches, siblings.copies(process)], ignore_index=True)
    return csv_launches.place(siblings.recording(launches), siblings.origin("kernel_trace", launches), table).tables


def read_counters(table: CsvTable) -> schema.Tables:
    """Read a counter_collection.csv, which has a row for each dispatch and counter."""
    if not len(table):
        remedy = "Name them with --pmc, as rocprofv3-avail lists them."
        raise table.unreadable("no counters were collected", remedy)
    siblings = _Siblings(table)
    device = siblings.gpus.ordinals(table, "Agent_Id")
    named = {"name": table.columns["Kernel_Name"], "kind": "kernel", "device": device}
    rows = trace.records(trace.LAUNCH, {**_numbers(table), **named})
    dispatch = pd.Series(pd.array(table.numbers("Dispatch_Id"), dtype="Int64"), index=rows.index)
    rows["launch"] = rows.groupby([rows["process"], rows["device"], dispatch], dropna=False).ngroup()
    launches = rows.drop_duplicates("launch").reset_index(drop=True)
    values = pd.DataFrame(
        {
            "launch": rows["launch"],
            "subject": rows["name"].map(kernel_classes.normalise),
            "metric": table.columns["Counter_Name"],
            "value": table.columns["Counter_Value"],
        }
    )
    origin = siblings.origin("counter_collection", launches)
    return csv_launches.place_with_counters(siblings.recording(launches), values, origin, table)


def read_calls(table: CsvTable) -> schema.Tables:
    """Read the ranges of a marker_api_trace.csv alone. Traces of other APIs hold nothing for the tables."""
    ranges = _ranges(table)
    if not len(ranges):
        what = "no ranges were recorded" if len(table) else "no calls were recorded"
        raise table.unreadable(f"API calls only; {what} in it", "Give the kernel_trace.csv beside it.")
    note = "ranges only: give the kernel_trace.csv of the same recording to see their kernels"
    origin = _origin("marker_api_trace", table, note)
    return csv_launches.place(trace.Recording(ranges=ranges), origin, table).tables


def _ranges(table: CsvTable) -> pd.DataFrame:
    """Return the ranges of a marker trace; none of the trace of another API."""
    frame = trace.records(trace.RANGE, {"name": table.columns["Function"], **_numbers(table)})
    frame["domain"] = pd.Series(table.columns["Domain"], index=frame.index, dtype=object)
    frame["operation"] = frame["name"]
    return trace.marker_ranges(frame[frame["domain"].astype(str).str.contains("MARKER|ROCTX")])


def _numbers(table: CsvTable) -> dict[str, Any]:
    names = {
        "start": "Start_Timestamp", "end": "End_Timestamp", "process": "Process_Id", "thread": "Thread_Id",
        "correlation": "Correlation_Id",
    }  # fmt: skip
    return table.all_numbers(names)


def read_copies(table: CsvTable) -> schema.Tables:
    """Read a memory_copy_trace.csv alone."""
    if not len(table):
        raise table.unreadable("no copies were recorded", "Pass --memory-copy-trace.")
    gpus = _Gpus(None)
    recording = trace.Recording(_copy_launches(table, gpus))
    origin = _origin("memory_copy_trace", table, "copies only", details=gpus.details())
    return csv_launches.place(recording, origin, table).tables


def _copy_launches(table: CsvTable, gpus: _Gpus) -> pd.DataFrame:
    """Return the copies. The device is the GPU that takes part, between two GPUs the one that receives."""
    source = gpus.ordinals(table, "Source_Agent_Id", "Src_Agent_Id")
    target = gpus.ordinals(table, "Destination_Agent_Id", "Dst_Agent_Id")
    to_host = [direction.upper().endswith("TO_HOST") for direction in table.columns["Direction"]]
    devices = pd.array([a if back else b for back, a, b in zip(to_host, source, target, strict=True)], dtype="Int64")
    where = {"device": devices, "stream": table.numbers("Stream_Id", "Queue_Id"), "process": pd.NA, "thread": pd.NA}
    named = {"name": table.columns["Direction"], "kind": "memcpy"}
    return trace.records(trace.LAUNCH, {**_numbers(table), **named, **where})


class _Gpus:
    """The ordinal of each GPU among all GPUs of the agent_info.csv; the agent's own number without that file.

    ``Agent 4`` is the agent of that Logical_Node_Id, which leaves out agents that the process cannot see, or of that
    Node_Id (--agent-index absolute; up to ROCm 6.3 a bare 4). ``GPU 0`` comes with --agent-index type-relative.
    Source: ROCm/rocprofiler-sdk, source/lib/output/metadata.cpp, get_agent_index.
    """

    def __init__(self, info: CsvTable | None) -> None:
        self._info = info
        self._are_ordinals = False

    def _numbers(self, column: str) -> list[int]:
        assert self._info is not None
        return [-1 if number is pd.NA else int(number) for number in self._info.numbers(column)]

    def ordinals(self, table: CsvTable, *names: str) -> Any:
        """Return the column of ``table`` that has one of ``names``, with ordinals in place of agents."""
        agents = table.numbers(*names)
        style = next((text.rpartition(" ")[0] for text in table.first(*names) or [] if text), "")
        self._are_ordinals |= style == "GPU"
        if self._info is None or style in ("GPU", "CPU"):
            return agents
        known = self._numbers("Logical_Node_Id") if style == "Agent" and self._info.has("Logical_Node_Id") else []
        if not {int(agent) for agent in pd.unique(agents).dropna()} <= set(known):
            known = self._numbers("Node_Id")
        kinds = zip(known, self._info.columns["Agent_Type"], strict=True)
        order = {agent: at for at, agent in enumerate(sorted(agent for agent, kind in kinds if kind == "GPU"))}
        return pd.array([order.get(agent, agent) for agent in agents], dtype="Int64")

    def names(self, launches: pd.DataFrame) -> str:
        """Return the names of the GPUs that ran something, empty without an agent_info.csv."""
        if self._info is None:
            return ""
        names = self._info.first("Product_Name", "Name") or [""] * len(self._info)
        rows = sorted(zip(self._numbers("Node_Id"), self._info.columns["Agent_Type"], names, strict=True))
        gpus = [name for _, kind, name in rows if kind == "GPU"]
        used = [int(ordinal) for ordinal in launches["device"].dropna().unique()]
        return ", ".join(dict.fromkeys(gpus[ordinal] for ordinal in used if ordinal < len(gpus)))

    def details(self) -> tuple[str, ...]:
        """Say what the device numbers are, once all ordinals are known."""
        is_known = self._info is not None or self._are_ordinals
        return () if is_known else ("device numbers are HSA agent ids, which count CPUs too",)


class _Siblings:
    """The files of the same recording beside a kernel_trace.csv or counter_collection.csv."""

    def __init__(self, table: CsvTable) -> None:
        self._table = table
        self._stem = re.sub(r"(kernel_trace|counter_collection)\.csv$", "", table.path.name)
        self._markers = self._read("marker_api_trace.csv", "Function", "Process_Id")
        self._calls = self._read("hip_api_trace.csv", "Function", "Process_Id")
        self._agents = self._read("agent_info.csv", "Node_Id", "Agent_Type")
        self.gpus = _Gpus(self._agents)
        self._copies = self._read("memory_copy_trace.csv", "Direction", "Start_Timestamp")

    def _read(self, suffix: str, *needed: str) -> CsvTable | None:
        if self._stem == self._table.path.name:
            return None
        return read_beside(self._table.path.with_name(f"{self._stem}{suffix}"), needed, csv_launches.UNUSED)

    def process(self) -> Any:
        """Return the one process that the siblings name, NA without siblings."""
        tables = [table for table in (self._markers, self._calls) if table]
        pids = {pid for table in tables for pid in table.numbers("Process_Id") if pid is not pd.NA}
        return pids.pop() if len(pids) == 1 else pd.NA

    def recording(self, launches: pd.DataFrame) -> trace.Recording:
        ranges = _ranges(self._markers) if self._markers else trace.records(trace.RANGE, {})
        calls = {**_numbers(self._calls), "name": self._calls.columns["Function"]} if self._calls else {}
        return trace.Recording(launches, ranges, trace.records(trace.CALL, calls))

    def copies(self, process: Any) -> pd.DataFrame:
        if self._copies is None:
            return trace.records(trace.LAUNCH, {})
        return _copy_launches(self._copies, self.gpus).assign(process=pd.array([process] * len(self._copies), "Int64"))

    def origin(self, kind: str, launches: pd.DataFrame) -> schema.Origin:
        tables = [table for table in (self._markers, self._calls, self._copies, self._agents) if table]
        return _origin(
            kind,
            self._table,
            *(f"{table.path.name}: {note}" for table in tables for note in table.notes),
            device=self.gpus.names(launches),
            details=self.gpus.details(),
            read_with=tuple(table.path.name for table in tables),
        )
