"""Read JSON of rocprof, plain or gzipped: results.json of v1 (a Chrome trace) and _results.json of rocprofv3.

v1 has sections in place of processes (``GPU0``, ``COPY``, ``Markers and Ranges``), numbers as text, no ids of calls:
kernels are placed by the time of their dispatch, else by the time at which they ran. rocprofv3 has an object for a
process, whose records refer to ids; two processes may have the same pid, as in two containers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_NONE: Record = {}


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
        tables = _v3(given[_TOP], step_range) if _TOP in given else _v1(given["traceEvents"], step_range)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UnreadableFile(path, f"a rocprof JSON with a malformed record ({error!r})", _RECORD_AGAIN) from error
    return rocprof.refuse_empty(tables, path)


def _rows(columns: Iterable[str], rows: Iterable[Record]) -> pd.DataFrame:
    """Make a frame of ``columns``; values that a row lacks are NA."""
    given = list(rows)
    return rocprof.records(columns, {name: [row.get(name) for row in given] for name in columns})


# --- rocprofv3 -------------------------------------------------------------------------------------------------------


def _v3(processes: Any, step_range: str) -> schema.Tables:
    # Before ROCm 6.2 one object, since then a list with one for a process.
    given = processes if isinstance(processes, list) else [processes]
    parts = [_Process(number, process) for number, process in enumerate(given)]
    launched = _joined([columns for part in parts for columns in part.launches()])
    launches = rocprof.records((*rocprof.LAUNCH, "dispatch"), launched)
    marked = _joined([part.markers() for part in parts])
    markers = rocprof.records(rocprof.RANGE, marked)
    for name in ("domain", "operation"):
        markers[name] = pd.Series(marked.get(name, []), index=markers.index, dtype=object)
    ranges = rocprof.marker_ranges(markers)
    calls = rocprof.records(rocprof.CALL, _joined([part.calls() for part in parts]))
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


def _joined(parts: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the columns of ``parts`` one below the other."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]} if parts else {}


def _name(symbol: Record) -> str:
    spellings = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name", "truncated_kernel_name")
    return next((symbol[key] for key in spellings if symbol.get(key)), rocprof.UNNAMED)


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
        self._kernels = {symbol.get("kernel_id", place): _name(symbol) for place, symbol in enumerate(listed)}
        self._operations: dict[tuple[Any, Any], str] = {}
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

    def launches(self) -> list[dict[str, list[Any]]]:
        """Return the columns of the kernels and those of the copies."""
        counted = [record.get("dispatch_data", {}) for record in self._counter_records()]
        dispatches = self._records("kernel_dispatch", "kernel_dispatches") or counted
        infos = [record["dispatch_info"] for record in dispatches]
        devices = [info.get("agent_id", {}).get("handle") for info in infos]
        self._used.update(devices)
        kernels = {
            **self._common(dispatches),
            "name": [self._kernels.get(info["kernel_id"], rocprof.UNNAMED) for info in infos],
            "kind": ["kernel"] * len(infos),
            "device": [self._ordinals.get(device) for device in devices],
            "dispatch": [info.get("dispatch_id") for info in infos],
        }
        copies = self._records("memory_copy", "memory_copies")
        ends = ([record.get(end, {}).get("handle") for end in ("dst_agent_id", "src_agent_id")] for record in copies)
        copied = {
            **self._common(copies),
            "name": [self._operation(record) or "MEMORY_COPY" for record in copies],
            "kind": ["memcpy"] * len(copies),
            "device": [next((self._ordinals[end] for end in pair if end in self._ordinals), None) for pair in ends],
            "dispatch": [None] * len(copies),
        }
        return [kernels, copied]

    def _common(self, records: Sequence[Record]) -> dict[str, list[Any]]:
        """Return the columns that all records have."""
        return {
            "start": [record.get("start_timestamp") for record in records],
            "end": [record.get("end_timestamp") for record in records],
            "space": [self._number] * len(records),
            "process": [self.pid] * len(records),
            "thread": [record.get("thread_id") for record in records],
            "stream": [record.get("stream_id", _NONE).get("handle") for record in records],
            "correlation": [record.get("correlation_id", _NONE).get("internal") for record in records],
        }

    def _kind(self, record: Record) -> Record:
        kinds = self._strings.get("buffer_records", [])
        kind = record.get("kind")
        return kinds[kind] if isinstance(kind, int) and kind < len(kinds) else {}

    def _operation(self, record: Record) -> str:
        key = record.get("kind"), record.get("operation")
        if key not in self._operations:
            operations, operation = self._kind(record).get("operations", []), key[1]
            is_known = isinstance(operation, int) and operation < len(operations)
            self._operations[key] = operations[operation] if is_known else ""
        return self._operations[key]

    def calls(self) -> dict[str, list[Any]]:
        # HIP first: a HIP call makes HSA calls, and the user's launch is the HIP call.
        records = [*self._records("hip_api"), *self._records("hsa_api")]
        return {**self._common(records), "name": list(map(self._operation, records))}

    def markers(self) -> dict[str, list[Any]]:
        messages = {entry["key"]: entry["value"] for entry in self._strings.get("marker_api", [])}
        named = [(record, messages.get(record.get("correlation_id", _NONE).get("internal"))) for record in
                 self._records("marker_api")]  # fmt: skip
        records = [record for record, message in named if message is not None]
        return {
            **self._common(records),
            "name": [message for _, message in named if message is not None],
            "domain": [self._kind(record).get("kind", "") for record in records],
            "operation": list(map(self._operation, records)),
        }

    def _counter_records(self) -> list[Record]:
        return self._given.get("callback_records", {}).get("counter_collection", [])

    def counters(self) -> Iterator[dict[str, Any]]:
        """Yield a row for a dispatch and counter, summed over the units of the GPU."""
        names = {counter["id"]["handle"]: counter["name"] for counter in self._given.get("counters", [])}
        for record in self._counter_records():
            info = record["dispatch_data"]["dispatch_info"]
            sums: dict[str, float] = {}
            for value in record.get("records", []):
                name = names.get(value["counter_id"]["handle"], "")
                sums[name] = sums.get(name, 0.0) + value["value"]
            for name, total in sums.items():
                subject = kernel_classes.normalise(self._kernels.get(info["kernel_id"], rocprof.UNNAMED))
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
