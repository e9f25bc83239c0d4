"""Write a trace as JSON in the format of Chrome, which ui.perfetto.dev opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from profpipe.traces.model import Process, Slices


def write(processes: Sequence[Process], stream: IO[bytes]) -> None:
    """Write the processes. Times are microseconds with three decimals, as the format wants them."""
    # Not with displayTimeUnit ns: trace processors before 2023 then take the times for nanoseconds.
    stream.write(b'{"traceEvents":[')
    separator = b"\n"
    for number, process in enumerate(processes, start=1):
        for event in _events(number, process):
            stream.write(separator + json.dumps(event, separators=(",", ":")).encode())
            separator = b",\n"
    stream.write(b"\n]}\n")


def _events(pid: int, process: Process) -> Iterator[dict[str, Any]]:
    # The numbers of tracks and processes are ours: two containers may use one process id.
    about = {"ph": "M", "pid": pid}
    yield {**about, "name": "process_name", "args": {"name": process.name}}
    yield {**about, "name": "process_sort_index", "args": {"sort_index": pid}}
    for number, track in enumerate(process.tracks, start=1):
        yield {**about, "name": "thread_name", "tid": number, "args": {"name": track.name}}
        yield {**about, "name": "thread_sort_index", "tid": number, "args": {"sort_index": number}}
        yield from _slices(track.slices, {"pid": pid, "tid": number}, pid)


def _slices(slices: Slices, place: dict[str, Any], space: int) -> Iterator[dict[str, Any]]:
    columns = (slices.start, slices.end, slices.name, slices.category, slices.flow)
    for row, (start, end, name, category, flow) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        details = {key: values[row] for key, values in slices.details.items() if values[row] is not None}
        more = {"args": details} if details else {}
        text, sort = slices.names[name], slices.categories[category]
        yield {**place, "ph": "X", "name": text, "cat": sort, "ts": start / 1000, "dur": (end - start) / 1000, **more}
        if flow:
            # A call begins an arrow, and the operation that it launched ends it.
            arrow = {"ph": "s"} if sort in ("launch", "wait", "call") else {"ph": "f", "bp": "e"}
            yield {**place, **arrow, "name": "launch", "cat": "launch", "id": f"{space}.{flow}", "ts": start / 1000}
