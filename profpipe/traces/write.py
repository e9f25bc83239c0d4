"""Write a trace as JSON in the format of Chrome, or in the format of Perfetto. ui.perfetto.dev opens both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from profpipe.traces.build import Process, Slices, Track


def write_json(processes: Sequence[Process], stream: IO[bytes]) -> None:
    """Write the processes. Times are microseconds with three decimals, as the format wants them."""
    # Not with displayTimeUnit ns: trace processors before 2023 then take the times for nanoseconds.
    stream.write(b'{"traceEvents":[')
    separator = b"\n"
    for number, process in enumerate(processes, start=1):
        for event in _json_events(number, process):
            stream.write(separator + json.dumps(event, separators=(",", ":")).encode())
            separator = b",\n"
    stream.write(b"\n]}\n")


def _json_events(pid: int, process: Process) -> Iterator[dict[str, Any]]:
    # The numbers of tracks and processes are ours: two containers may use one process id.
    about = {"ph": "M", "pid": pid}
    yield {**about, "name": "process_name", "args": {"name": process.name}}
    yield {**about, "name": "process_sort_index", "args": {"sort_index": pid}}
    for number, (name, slices) in enumerate(process.tracks, start=1):
        yield {**about, "name": "thread_name", "tid": number, "args": {"name": name}}
        yield {**about, "name": "thread_sort_index", "tid": number, "args": {"sort_index": number}}
        yield from _json_slices(slices, {"pid": pid, "tid": number}, pid)


def _json_slices(slices: Slices, place: dict[str, Any], space: int) -> Iterator[dict[str, Any]]:
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


# --- the format of Perfetto: track events in protobuf messages, made by the package ``perfetto`` ----------------------

#: Number of the one sequence of packets.
_SEQUENCE = 1


def write_perfetto(processes: Sequence[Process], stream: IO[bytes]) -> None:
    """Write the processes. Raises ImportError without the package ``perfetto``."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    writer = _Writer(messages, stream)
    for number, process in enumerate(processes, start=1):
        writer.write_process(number, process)


class _Writer:
    """Texts are written once, with a number; later packets hold the number."""

    def __init__(self, messages: Any, stream: IO[bytes]) -> None:
        self._messages, self._stream = messages, stream
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._details: dict[str, int] = {}
        self._tracks = 0
        self._is_begun = False

    def write_process(self, number: int, process: Process) -> None:
        descriptor = self._new_track()
        descriptor.process.pid = number
        descriptor.process.process_name = process.name
        descriptor.child_ordering = self._messages.TrackDescriptor.EXPLICIT
        parent = descriptor.uuid
        self._write(track_descriptor=descriptor)
        for rank, track in enumerate(process.tracks):
            self._write_track(parent, rank, track, number)

    def _new_track(self) -> Any:
        self._tracks += 1
        return self._messages.TrackDescriptor(uuid=self._tracks)

    def _write_track(self, parent: int, rank: int, track: Track, space: int) -> None:
        descriptor = self._new_track()
        name, slices = track
        descriptor.name, descriptor.parent_uuid, descriptor.sibling_order_rank = name, parent, rank
        self._write(track_descriptor=descriptor)
        used = self._intern(slices)
        event_of = self._messages.TrackEvent
        for time, row, begins in slices.events():
            if begins:
                event = event_of(type=event_of.TYPE_SLICE_BEGIN, track_uuid=descriptor.uuid)
                event.name_iid = used[0][slices.name[row]]
                event.category_iids.append(used[1][slices.category[row]])
                if flow := int(slices.flow[row]):
                    event.flow_ids.append(space << 40 | flow)
                event.debug_annotations.extend(self._annotations(slices, row))
            else:
                event = event_of(type=event_of.TYPE_SLICE_END, track_uuid=descriptor.uuid)
            self._write(timestamp=time, track_event=event)

    def _annotations(self, slices: Slices, row: int) -> Iterator[Any]:
        for key, values in slices.details.items():
            value = values[row]
            if value is not None:
                kind = {str: "string_value", float: "double_value"}.get(type(value), "int_value")
                yield self._messages.DebugAnnotation(name_iid=self._details[key], **{kind: value})

    def _intern(self, slices: Slices) -> tuple[dict[int, int], dict[int, int]]:
        """Write the texts of ``slices`` that are new, and return the numbers of its names and categories."""
        new = self._messages.InternedData()
        used_numbers: list[dict[int, int]] = []
        for codes, texts, number_of, entries in (
            (slices.name, slices.names, self._names, new.event_names),
            (slices.category, slices.categories, self._categories, new.event_categories),
        ):
            used = {code: texts[code] for code in dict.fromkeys(codes.tolist())}
            _add(used.values(), number_of, entries)
            used_numbers.append({code: number_of[text] for code, text in used.items()})
        _add(slices.details, self._details, new.debug_annotation_names)
        self._write(interned_data=new)
        return used_numbers[0], used_numbers[1]

    def _write(self, **content: Any) -> None:
        packet = self._messages.TracePacket(trusted_packet_sequence_id=_SEQUENCE, **content)
        packet.sequence_flags = packet.SEQ_NEEDS_INCREMENTAL_STATE
        if not self._is_begun:
            packet.sequence_flags = packet.SEQ_INCREMENTAL_STATE_CLEARED
            self._is_begun = True
        self._stream.write(self._messages.Trace(packet=[packet]).SerializeToString())


def _add(texts: Any, number_of: dict[str, int], entries: Any) -> None:
    for text in texts:
        if text not in number_of:
            number_of[text] = len(number_of) + 1
            entries.add(iid=number_of[text], name=text)
