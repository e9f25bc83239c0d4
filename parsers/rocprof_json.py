"""Read JSON of rocprof, plain or gzipped: results.json of v1 (a Chrome trace) and _results.json of rocprofv3.

v1 has sections in place of processes (``GPU0``, ``COPY``, ``Markers and Ranges``), numbers as text, no ids of calls:
kernels are placed by the time of their dispatch, else by the time at which they ran. rocprofv3 has an object for each
process, whose records refer to ids; two processes may have the same pid, as in two containers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import json_stream, kernel_classes, rocprof
from profpipe.results import schema

FORMATS = ("results.json of rocprof v1", "_results.json of rocprofv3")

_RECORD_AGAIN = "Record again, and let the program end by itself: rocprof writes the file as it ends."
_TOP = "rocprofiler-sdk-tool"
_GPU = re.compile(r"^GPU\d+$")
#: The beginning of v1. A trace of torch has `sort_index` in the arguments of another event.
_LABEL = re.compile(rb'"process_name",\s*"sort_index"')

Record = Mapping[str, Any]


def sniff(path: Path) -> bool:
    """Return True for JSON that begins as a trace of rocprof v1 or v3."""
    head = json_stream.read_head(path)
    if head.startswith(b"{") and f'"{_TOP}"'.encode() in head[:4096]:
        return True
    is_trace = head.startswith(b"{") and b'"traceEvents"' in head[:4096]
    # A v1 file of an interrupted writer can begin in the middle.
    is_v1 = _LABEL.search(head) is not None or b'"BeginNs"' in head
    return is_v1 and (is_trace or head.startswith(b',{"'))


def parse(path: Path, step_range: str = "") -> schema.Tables:
    """Read kernels, copies, ranges, steps and counters. Raises ``UnreadableFile`` where the text is cut or has none.

    ``step_range`` is a regular expression for the ranges that are steps.
    """
    try:
        with json_stream.open_text(path) as file:
            given = json.load(file)
    except json_stream.FAILURES as error:
        size = f"{path.stat().st_size:,} bytes"
        raise UnreadableFile(path, f"a rocprof JSON that is cut or damaged ({size}; {error})", _RECORD_AGAIN) from error
    try:
        found = _v3(given[_TOP], step_range) if _TOP in given else _v1(given["traceEvents"], step_range)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UnreadableFile(path, f"a rocprof JSON with a malformed record ({error!r})", _RECORD_AGAIN) from error
    return rocprof.refuse_empty(found, path)


def _rows(columns: Iterable[str], rows: Iterable[Record]) -> pd.DataFrame:
    """Make a frame of ``columns``; values that a row lacks are NA."""
    given = list(rows)
    return rocprof.records(columns, {name: [row.get(name) for row in given] for name in columns})


# --- rocprofv3 -------------------------------------------------------------------------------------------------------


def _v3(processes: Any, step_range: str) -> schema.Tables:
    # Before ROCm 6.2 one object, since then a list with one for each process.
    given = processes if isinstance(processes, list) else [processes]
    parts = [_Process(number, process) for number, process in enumerate(given)]
    launches = _rows((*rocprof.LAUNCH, "dispatch"), (row for part in parts for row in part.launches()))
    markers = _rows(rocprof.RANGE, rows := [row for part in parts for row in part.markers()])
    for name in ("domain", "operation"):
        markers[name] = pd.Series([row[name] for row in rows], index=markers.index, dtype=object)
    ranges = rocprof.marker_ranges(markers)
    calls = _rows(rocprof.CALL, (row for part in parts for row in part.calls()))
    devices = dict.fromkeys(name for part in parts for name in part.devices())
    origin = schema.Origin(
        format="rocprofv3 JSON",
        tool="rocprof",
        tool_version=next((part.version() for part in parts if part.version()), "v3"),
        device=", ".join(devices),
    )
    rows = [row for part in parts for row in part.counters()]
    counted = pd.DataFrame(rows, columns=["space", "dispatch", "subject", "metric", "value"])
    keys = {name: pd.array(counted[name], dtype="Int64") for name in ("space", "dispatch")}
    return rocprof.tables(origin, launches, ranges, calls, step_range, counted.assign(**keys), [*keys])


class _Process:
    """One process: its records with resolved ids."""

    def __init__(self, number: int, given: Record) -> None:
        self._given, self._number = given, number
        self.pid = given.get("metadata", {}).get("pid")
        self._buffers = given.get("buffer_records", {})
        self._strings = given.get("strings", {})
        self._agents = {agent["id"]["handle"]: agent for agent in given.get("agents", [])}
        gpus = [handle for handle, agent in self._agents.items() if agent.get("type") == 2]
        self._ordinals = {handle: ordinal for ordinal, handle in enumerate(gpus)}
        symbols = given.get("kernel_symbols", [])
        listed = symbols.values() if isinstance(symbols, dict) else symbols
        self._kernels = {symbol.get("kernel_id", place): symbol for place, symbol in enumerate(listed)}
        self._used: set[Any] = set()

    def version(self) -> str:
        build = self._given.get("metadata", {}).get("build_spec", {})
        numbers = [build.get(f"version_{part}") for part in ("major", "minor", "patch")]
        return "rocprofiler-sdk " + ".".join(str(n) for n in numbers if n is not None) if numbers[0] is not None else ""

    def devices(self) -> Iterator[str]:
        """Yield the names of the GPUs that ran something. Call it after ``launches``."""
        for handle, agent in self._agents.items():
            if handle in self._used and (name := agent.get("product_name") or agent.get("name")):
                yield str(name)

    def _records(self, *names: str) -> list[Record]:
        return next((self._buffers[name] for name in names if self._buffers.get(name)), [])

    def launches(self) -> Iterator[Record]:
        dispatches = self._records("kernel_dispatch", "kernel_dispatches")
        counted = [record.get("dispatch_data", {}) for record in self._counter_records()]
        for record in dispatches or counted:
            info = record["dispatch_info"]
            device = info.get("agent_id", {}).get("handle")
            self._used.add(device)
            yield {
                **self._common(record),
                "name": self._name(info["kernel_id"]),
                "kind": "kernel",
                "device": self._ordinals.get(device),
                "dispatch": info.get("dispatch_id"),
            }
        for record in self._records("memory_copy", "memory_copies"):
            ends = [record.get(end, {}).get("handle") for end in ("dst_agent_id", "src_agent_id")]
            name = self._operation(record)
            yield {
                **self._common(record),
                "name": name or "MEMORY_COPY",
                "kind": "memcpy",
                "device": next((self._ordinals[end] for end in ends if end in self._ordinals), None),
            }

    def _common(self, record: Record) -> dict[str, Any]:
        return {
            "start": record.get("start_timestamp"),
            "end": record.get("end_timestamp"),
            "space": self._number,
            "process": self.pid,
            "thread": record.get("thread_id"),
            "stream": record.get("stream_id", {}).get("handle"),
            "correlation": record.get("correlation_id", {}).get("internal"),
        }

    def _name(self, kernel_id: Any) -> str:
        symbol = self._kernels.get(kernel_id, {})
        spellings = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name", "truncated_kernel_name")
        return next((symbol[key] for key in spellings if symbol.get(key)), rocprof.UNNAMED)

    def _kind(self, record: Record) -> Record:
        kinds = self._strings.get("buffer_records", [])
        kind = record.get("kind")
        return kinds[kind] if isinstance(kind, int) and kind < len(kinds) else {}

    def _operation(self, record: Record) -> str:
        operations, operation = self._kind(record).get("operations", []), record.get("operation")
        return operations[operation] if isinstance(operation, int) and operation < len(operations) else ""

    def calls(self) -> Iterator[Record]:
        # HIP first: a HIP call makes HSA calls, and the user's launch is the HIP call.
        for record in (*self._records("hip_api"), *self._records("hsa_api")):
            yield {**self._common(record), "name": self._operation(record)}

    def markers(self) -> Iterator[Record]:
        messages = {entry["key"]: entry["value"] for entry in self._strings.get("marker_api", [])}
        for record in self._records("marker_api"):
            common = self._common(record)
            message = messages.get(common["correlation"])
            if message is not None:
                domain, operation = self._kind(record).get("kind", ""), self._operation(record)
                yield {**common, "name": message, "domain": domain, "operation": operation}

    def _counter_records(self) -> list[Record]:
        return self._given.get("callback_records", {}).get("counter_collection", [])

    def counters(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each dispatch and counter, summed over the units of the GPU."""
        names = {counter["id"]["handle"]: counter["name"] for counter in self._given.get("counters", [])}
        for record in self._counter_records():
            info = record["dispatch_data"]["dispatch_info"]
            sums: dict[str, float] = {}
            for value in record.get("records", []):
                name = names.get(value["counter_id"]["handle"], "")
                sums[name] = sums.get(name, 0.0) + value["value"]
            for name, total in sums.items():
                subject = kernel_classes.normalise(self._name(info["kernel_id"]))
                key = {"space": self._number, "dispatch": info["dispatch_id"]}
                yield {**key, "subject": subject, "metric": name, "value": total}


# --- rocprof v1 ------------------------------------------------------------------------------------------------------


def _v1(events: list[Record], step_range: str) -> schema.Tables:
    sections = {str(e.get("pid")): e["args"]["name"] for e in events if e.get("name") == "process_name"}
    done = [event for event in events if event.get("ph") == "X" and "BeginNs" in event.get("args", {})]
    named: dict[str, list[Record]] = {}
    for event in done:
        named.setdefault(sections.get(str(event.get("pid")), ""), []).append(event)
    on_gpu = [event for section, part in named.items() if _GPU.match(section) for event in part]
    # With --hip-trace activities (dev-id) and dispatches (gpu-id) are the same launches.
    activities = [event for event in on_gpu if "dev-id" in event["args"]]
    kernels_there = [_v1_launch(event, "kernel") for event in activities or on_gpu]
    copies = [_v1_launch(event, rocprof.kind_of_copy(event["name"])) for event in named.get("COPY", [])]
    marked = [_v1_range(event) for event in named.get("Markers and Ranges", [])]
    launches = _rows(rocprof.LAUNCH, [*kernels_there, *copies])
    # A mark is 1 ns long.
    ranges = _rows(rocprof.RANGE, [row for row in marked if row["end"] - row["start"] > 1])
    lost = sum(event.get("ph") == "X" for event in events) - len(done)
    notes = (f"{lost} events without times left out",) if lost else ()
    origin = schema.Origin(format="rocprof v1 JSON", tool="rocprof", tool_version="v1", notes=notes)
    return rocprof.tables(origin, launches, ranges, step_range=step_range)


def _v1_numbers(args: Record, *names: str) -> int | None:
    return next((int(args[name]) for name in names if str(args.get(name, "")).isdigit()), None)


def _v1_record(event: Record) -> dict[str, Any]:
    args = event["args"]
    return {
        "name": event["name"].strip('"'),
        "start": int(args["BeginNs"]),
        "end": int(args["EndNs"]),
        "process": _v1_numbers(args, "pid"),
        "thread": _v1_numbers(args, "tid"),
    }


def _v1_launch(event: Record, kind: str) -> Record:
    args = event["args"]
    return {
        **_v1_record(event),
        "kind": kind,
        "device": _v1_numbers(args, "dev-id", "gpu-id"),
        "stream": _v1_numbers(args, "stream-id"),
        "dispatched": _v1_numbers(args, "DispatchNs"),
    }


def _v1_range(event: Record) -> dict[str, Any]:
    """Return a range. Start/stop ranges have lane 0 and belong to no thread."""
    record = _v1_record(event)
    return {**record, "thread": rocprof.WHOLE_PROCESS} if str(event.get("tid")) == "0" else record
