"""The events of one step, which the timeline of a report shows: rows of the table `timeline`, by process and device."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest import host
from profpipe.ingest.groupby import Bools, Int64s, Ints, Union, groups
from profpipe.ingest.operations import Operations, Spans, Timeline, timeline
from profpipe.ingest.steps.accounting import gaps
from profpipe.results import schema
from profpipe.results.schema import EventKind, StepState

#: Operations of a device, and calls of the host, that are kept at most: the file stays small, and no picture shows
#: more. There can be hundreds of cases.
_MOST: Final = 10_000
_MOST_OF_CASE: Final = 2_000
#: A time that is typical is within this share of the median.
_NEAR: Final = 0.02
#: So much of a recording without steps is kept.
_BEGINNING_NS: Final = 2_000_000_000

_IDLE: Final = (EventKind.IDLE_OTHER.value, EventKind.IDLE_LAUNCH.value, EventKind.IDLE_BLOCKED.value)

_NEVER: Final = Union(np.zeros(0, np.int64), np.zeros(0, np.int64))

#: Columns of rows, an array or one value for all of them.
Rows = Mapping[str, Any]


@dataclass(frozen=True)
class Window:
    """The part of a recording that is kept, [begin, end) in ns; ``kind`` says what it is, ``step`` is its number.

    ``origin`` is the time from which the rows count. ``most`` bounds the rows.
    """

    kind: EventKind
    begin: int
    end: int
    origin: int
    step: float = np.nan
    most: int = _MOST


def choose_step(steps: pd.DataFrame, first: int, like: Window | None) -> Window:
    """Return the window of a typical steady step.

    It is the step of ``like``, the window of another device, where that step is steady here too. ``steps`` are those of
    the device, with ``start_ns`` since ``first``. Where no step is steady, any step serves.
    """
    states = (StepState.STEADY, StepState.OUTLIER, StepState.WARMUP, StepState.UNMATCHED, StepState.OTHER)
    chosen = steps[steps["state"] == next(state.value for state in states if (steps["state"] == state.value).any())]
    is_same = chosen["step"] == (like.step if like else np.nan)
    row = chosen[is_same].iloc[0] if is_same.any() else chosen.iloc[typical(chosen["wall_ns"].to_numpy(dtype=float))]
    begin = int(row["start_ns"]) + first
    origin = like.origin if like and is_same.any() else begin
    return Window(EventKind.STEP, begin, begin + int(row["wall_ns"]), origin, float(row["step"]))


def typical(wall_ns: Any) -> int:
    """Return which of the times in their order is typical: of those near the median, the one in the middle.

    So the files of ranks that step together mostly give the same step.
    """
    distance = np.abs(wall_ns - np.median(wall_ns))
    near = np.flatnonzero(distance <= max(_NEAR * float(np.median(wall_ns)), float(distance.min())))
    return int(near[len(near) // 2])


def choose_beginning(timeline: Timeline, first: int) -> Window:
    """Return the window of the first two seconds of a recording, which begins at ``first``."""
    last = min(first + _BEGINNING_NS, int(timeline.end.max()))
    return Window(EventKind.BEGINNING, first, last, first)


def _choose_iteration(line: Timeline, starts: Int64s, ends: Int64s) -> Window | None:
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    which = int(np.argsort(ends - starts, kind="stable")[len(starts) // 2])
    first, last = np.searchsorted(line.launched, [starts[which], ends[which]])
    if first == last:
        return None
    begin, end = int(line.start[first:last].min()), int(line.end[first:last].max())
    if which + 1 < len(starts):
        following = int(np.searchsorted(line.launched, starts[which + 1]))
        if following < len(line.launched) and line.launched[following] < ends[which + 1]:
            end = max(end, int(line.start[following]))
    return Window(EventKind.ITERATION, begin, end, begin, float(which), _MOST_OF_CASE)


#: The largest float that fits into 64 bits: a number of a damaged file may round to one that does not.
_LARGEST: Final = 2.0**63 - 1024


class Excerpts:
    """Collects the rows of `timeline` of one recording."""

    def __init__(self, operations: Operations, waits: Spans) -> None:
        self._operations = operations
        self._waits = {process: waits.of(rows) for process, rows in groups(waits.process)}
        self._waiting = {process: Union(spans.start, spans.end) for process, spans in self._waits.items()}
        self._parts: list[Rows] = []

    def waits(self, process: int) -> Spans:
        """Return the calls in which the host waited for the GPU in ``process``."""
        return self._waits.get(process, Spans.none())

    def waiting(self, process: int) -> Union:
        """Return when the host waited for the GPU in ``process``."""
        return self._waiting.get(process, _NEVER)

    def add(self, line: Timeline, window: Window, seen: host.Host | None = None, **place: Any) -> None:
        """Add the operations, calls and gaps of a device in ``window``. Of too many, the window ends earlier.

        ``seen`` is what the program did meanwhile, and ``place`` are the columns that say whose they are.
        """
        # The operation that begins at the end of the window closes its last gap.
        near = np.flatnonzero((line.start <= window.end) & (line.end > window.begin))
        end = window.end
        if len(near) > window.most:
            end = int(np.partition(line.start[near], window.most)[window.most])
            near = near[line.start[near] <= end]
        part = timeline(self._operations, line.rows[near])
        opened, closed, cause, _ = gaps(part, Union(part.start, part.end), self.waiting(place["process"]))
        if len(part.end) and (last := int(part.end.max())) < end:
            # The last step of the recording: the host launched nothing more in it.
            opened, closed, cause = np.append(opened, last), np.append(closed, end), np.append(cause, 1)
        # The operation that closes the last gap may begin after the end.
        closed = np.minimum(closed, end)
        shown = (opened < end) & (closed > opened)
        calls = np.flatnonzero(line.is_launched & (line.launched >= window.begin) & (line.launched < end))
        waits = self.waits(place["process"])
        rows = (
            _rows(window, np.array([window.begin]), np.array([end]), window.kind.value),
            _operation_rows(window, self._operations, part, np.flatnonzero(part.start < end)),
            _launches(window, self._operations, line, calls[: window.most], waits),
            _wait_rows(window, waits, (waits.start < end) & (waits.end > window.begin)),
            _rows(window, opened[shown], closed[shown], np.array(_IDLE, dtype=object)[cause[shown]]),
            *([_program_rows(window, seen, end)] if seen else []),
        )
        self._parts += [{**columns, **place} for columns in rows if len(columns["start_ns"])]

    def add_cases(self, ranges: Spans) -> None:
        """Add an iteration of each case on each device. An iteration is an instance of the range of its case.

        The one whose time on the host is the median is shown, from its first operation to the first one of the next.
        """
        operations = self._operations
        in_case = np.flatnonzero(operations.in_case)
        cases = {code: name for code, name in enumerate(ranges.names) if name.startswith(schema.CASE_PREFIX)}
        instances = np.flatnonzero(np.isin(ranges.name, list(cases)))
        for process, of_process in groups(ranges.process[instances]):
            process_rows = instances[of_process]
            by_case = [(cases[code], process_rows[rows]) for code, rows in groups(ranges.name[process_rows])]
            rows = in_case[operations.process[in_case] == process]
            for device, of_device in groups(operations.device[rows]):
                line = timeline(operations, rows[of_device])
                for name, of_case in by_case:
                    if window := _choose_iteration(line, ranges.start[of_case], ranges.end[of_case]):
                        case = name.removeprefix(schema.CASE_PREFIX)
                        self.add(line, window, process=process, device=device, case=case)

    def table(self) -> pd.DataFrame:
        texts = {column.name for column in schema.TIMELINE.columns if column.dtype == "str"}
        columns = {}
        for name in dict.fromkeys(key for part in self._parts for key in part):
            missing, dtype = ("", object) if name in texts else (np.nan, np.float64)
            values = (np.broadcast_to(part.get(name, missing), len(part["start_ns"])) for part in self._parts)
            columns[name] = np.concatenate([part.astype(dtype) for part in values])
            if dtype is np.float64:
                columns[name] = columns[name].clip(-_LARGEST, _LARGEST)
        return schema.frame(schema.TIMELINE, columns)


def _rows(window: Window, start: Int64s, end: Int64s, kind: Any, **more: Any) -> Rows:
    times = {"start_ns": start - window.origin, "duration_ns": end - start}
    return {**times, "kind": kind, "step": window.step, **more}


def _operation_rows(window: Window, operations: Operations, part: Timeline, shown: Ints) -> Rows:
    rows = part.rows[shown]
    sizes = np.full(len(rows), np.nan)
    if (copies := part.copies[shown]).any() and operations.sizes is not None:
        sizes[copies] = operations.sizes[rows[copies]]
    return _rows(
        window,
        part.start[shown],
        part.end[shown],
        np.array(schema.KINDS, dtype=object)[operations.kind[rows]],
        **_named(operations, part.name[shown]),
        stream=operations.stream[rows],
        launched_ns=np.where(part.is_launched[shown], part.launched[shown] - window.origin, np.nan),
        bytes=sizes,
    )


def _named(operations: Operations, name: Ints) -> Rows:
    names, number = operations.table_names
    texts = np.array(names, dtype=object)[number[name]]
    return {"name": texts, "kernel_class": np.array(operations.classes, dtype=object)[name]}


def _launches(window: Window, operations: Operations, line: Timeline, rows: Ints, waits: Spans) -> Rows:
    """Return the launch calls of ``rows``: one of a graph with many operations, none that waits as well."""
    start, firsts = np.unique(line.launched[rows], return_index=True)
    is_alone = ~np.isin(start, waits.start)
    start, rows = start[is_alone], rows[firsts[is_alone]]
    end, thread = operations.read_calls(line.rows[rows])
    named = _named(operations, line.name[rows])
    return _rows(window, start, np.maximum(end, start), EventKind.LAUNCH.value, **named, thread=thread)


def _program_rows(window: Window, seen: host.Host, end: int) -> Rows:
    events = list(itertools.islice(host.list_events(seen, window.begin, end), window.most))
    start, until, name, is_wait = (np.array([event[i] for event in events], dtype=object) for i in range(4))
    kind = np.where(is_wait.astype(bool), EventKind.NAMED_WAIT.value, EventKind.LINE.value)
    return _rows(window, start.astype(np.int64), until.astype(np.int64), kind.astype(object), name=name)


def _wait_rows(window: Window, waits: Spans, shown: Bools) -> Rows:
    rows = np.flatnonzero(shown)[: window.most]
    names = np.array([*waits.names, ""], dtype=object)[waits.name[rows]]
    start, end, thread = waits.start[rows], waits.end[rows], waits.thread[rows]
    return _rows(window, start, end, EventKind.WAIT.value, name=names, thread=thread)
