"""A trace, and how it is made from a recording: ranges, calls, steps, idle time and the streams of the devices.

A trace has processes, these have tracks, and tracks have slices. ``write`` turns it into a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest import operations
from profpipe.ingest.groupby import Bools, Int64s, Ints, Union, groups
from profpipe.ingest.recording import Recording
from profpipe.ingest.steps import excerpt, search
from profpipe.ingest.steps.accounting import gaps
from profpipe.results.schema import StepState


@dataclass(frozen=True)
class Slices:
    """Slices of one track, times in ns; ``name`` indexes ``names`` and ``category`` indexes ``categories``.

    Slices with the same number in ``flow`` are joined by an arrow; 0 stands for none. ``details`` are values by name
    for a slice, None where there is no value.
    """

    start: Int64s
    end: Int64s
    name: Ints
    names: Sequence[str]
    category: Ints
    categories: Sequence[str]
    flow: Int64s
    details: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def only(self, rows: Ints | Bools) -> Slices:
        """Return the slices ``rows``."""
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        details = {name: [values[row] for row in chosen.tolist()] for name, values in self.details.items()}
        name, category = self.name[chosen], self.category[chosen]
        flow = self.flow[chosen]
        return Slices(self.start[chosen], self.end[chosen], name, self.names, category, self.categories, flow, details)

    def lanes(self, may_nest: bool) -> Iterator[Slices]:
        """Yield the slices in as few parts as needed, so that in none of them one overlaps with another one.

        With ``may_nest`` one may lie inside another one. The slices of a part are ordered by start, the longest first.
        """
        order = np.lexsort((-self.end, self.start))
        open_ends: list[list[int]] = []
        lane_of = np.zeros(len(order), dtype=np.int64)
        for at, (start, end) in enumerate(zip(self.start[order].tolist(), self.end[order].tolist(), strict=True)):
            for ends in open_ends:
                while ends and ends[-1] <= start:
                    ends.pop()
            free = (n for n, ends in enumerate(open_ends) if not ends or (may_nest and end <= ends[-1]))
            if (lane := next(free, len(open_ends))) == len(open_ends):
                open_ends.append([])
            open_ends[lane].append(end)
            lane_of[at] = lane
        for lane in range(len(open_ends)):
            yield self.only(order[lane_of == lane])

    def events(self) -> Iterator[tuple[int, int, bool]]:
        """Yield (time, row, whether it begins) in the order of time, for slices of one of the ``lanes``."""
        stack: list[tuple[int, int]] = []
        for row, (start, end) in enumerate(zip(self.start.tolist(), self.end.tolist(), strict=True)):
            while stack and stack[-1][0] <= start:
                ended, which = stack.pop()
                yield ended, which, False
            stack.append((end, row))
            yield start, row, True
        while stack:
            ended, which = stack.pop()
            yield ended, which, False


#: A row of the trace, with its name. Tracks stand in the order in which they are given.
Track = tuple[str, Slices]


@dataclass(frozen=True)
class Process:
    """A group of tracks: one process of a program. ``pid`` is None where the recording does not say."""

    name: str
    pid: int | None
    tracks: tuple[Track, ...]

    @property
    def first_ns(self) -> int:
        """The start of the first slice."""
        return min(int(slices.start.min()) for _, slices in self.tracks)

    def since(self, time_ns: int) -> Process:
        """Return the process with times since ``time_ns``."""
        tracks = (
            (name, replace(slices, start=slices.start - time_ns, end=slices.end - time_ns))
            for name, slices in self.tracks
        )
        return Process(self.name, self.pid, tuple(tracks))

    @property
    def slices(self) -> int:
        return sum(len(slices) for _, slices in self.tracks)


# --- what a recording holds -------------------------------------------------------------------------------------------

#: The causes of idle time, by the number that ``_idle`` gives them.
IDLE: Final = ("idle: cause unknown", "idle: the host launched late", "idle: after a synchronising call")
#: Categories of slices that are no operations; those have their kernel class.
RANGE, STEP, IDLE_TIME, LAUNCH, WAIT, CALL = "range", "step", "idle", "launch", "wait", "call"

_STEP_COLUMNS: Final = (
    "wall_ns", "compute_ns", "communication_ns", "copy_ns", "idle_launch_ns", "idle_blocked_ns", "idle_other_ns",
    "kernels",
)  # fmt: skip
_ALWAYS: Final = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)


class Builder:
    """The tracks of one recording.

    ``classes`` are the classes of kernels by their names, as in the tables of the run. ``step_range`` is the user's
    regular expression for ranges that are steps.
    """

    def __init__(self, recording: Recording, classes: Mapping[str, str], step_range: str | None = "") -> None:
        self._recording = recording
        done = recording.operations
        class_of_name = [classes.get(name) for name in done.table_names[0]]
        number = done.table_names[1]
        self._classes = [class_of_name[code] or done.classes[at] for at, code in enumerate(number.tolist())]
        self._origin = int(done.start.min()) if len(done.start) else 0
        given = recording.ranges, recording.waits
        #: Rows of the table `steps`, by the numbers of processes.
        self.steps = search.find(done, *given, unclosed=recording.latest, step_range=step_range).steps

    def processes(
        self, name: Callable[[int | None, list[int]], str], case: str | None = None, step: int | str | None = None
    ) -> Iterator[Process]:
        """Yield the processes that hold something; ``name`` makes their names from the process id and the devices.

        Wanted are a ``case`` of its ranges, and a ``step``, a number or ``steady`` for a typical one; None: all.
        """
        done = self._recording.operations
        for process, rows in groups(done.process):
            low, high = self._window(process, step)
            chosen = rows[(done.start[rows] < high) & (done.end[rows] > low)]
            if case is not None:
                chosen = chosen[self._cases(chosen) == case]
            if not len(chosen):
                continue
            host = _Host(self._recording, process, chosen, low, high, case)
            tracks = [*host.ranges(), *host.calls()]
            devices = [device for device, _ in groups(done.device[rows])]
            for device, of_device in groups(done.device[rows]):
                mine = rows[of_device]
                prefix = f"GPU {device} " if device >= 0 else "GPU "
                tracks += self._device(process, device, mine, np.isin(mine, chosen), (low, high), prefix)
            pid = int(self._recording.pids(np.array([process]))[0])
            process_id = pid if pid >= 0 else None
            yield Process(name(process_id, devices), process_id, tuple(tracks)).since(-self._recording.offset_ns)

    def _cases(self, rows: Ints) -> Any:
        placed = self._recording.placed
        return np.array(placed.paths.case, dtype=object)[placed.path[rows]]

    def _window(self, process: int, step: int | str | None) -> tuple[int, int]:
        """Return the time of the wanted step of a process; with the launches of its operations."""
        if step is None:
            return _ALWAYS
        steps = self.steps[self.steps["process"] == process]
        if step == StepState.STEADY.value:
            steps = steps[steps["state"] == StepState.STEADY.value]
            if len(steps):
                # As on the timeline of the report: the typical step of the first device, where it is steady here.
                number = self._typical_step
                steps = steps[steps["step"] == (number if (steps["step"] == number).any() else _typical(steps))]
        else:
            steps = steps[(steps["step"] == step) & (steps["state"] != StepState.OTHER.value)]
        if steps.empty:
            return _ALWAYS[1], _ALWAYS[0]
        low = int(steps["start_ns"].min()) + self._origin
        return low, int((steps["start_ns"] + steps["wall_ns"]).max()) + self._origin

    @cached_property
    def _typical_step(self) -> int:
        """The number of the step that is typical on the first device with steady steps."""
        return _typical(self.steps[self.steps["state"] == StepState.STEADY.value])

    def _device(
        self, process: int, device: int, rows: Ints, chosen: Bools, window: tuple[int, int], prefix: str
    ) -> Iterator[Track]:
        low, high = window
        steps = self.steps[(self.steps["process"] == process) & (self.steps["device"] == device)]
        begin = steps["start_ns"].to_numpy(dtype=np.int64) + self._origin
        steps = steps[(begin < high) & (begin >= low)]
        if len(steps):
            yield f"{prefix}steps", self._step_slices(steps)
        idle = self._idle(process, rows, chosen, window)
        if len(idle):
            yield f"{prefix}idle", idle
        chosen_rows = rows[chosen]
        streams = self._recording.operations.stream[chosen_rows]
        for stream, of_stream in sorted(groups(streams), key=lambda group: group[0]):
            title = f"{prefix}stream {stream}" if stream >= 0 else f"{prefix}operations"
            for number, lane in enumerate(self._operations(chosen_rows[of_stream]).lanes(may_nest=False), start=1):
                yield (title if number == 1 else f"{title} ({number})"), lane

    def _step_slices(self, steps: pd.DataFrame) -> Slices:
        start = steps["start_ns"].to_numpy(dtype=np.int64) + self._origin
        is_other = (steps["state"] == StepState.OTHER.value).to_numpy()
        names = [f"{'other work after step' if other else 'step'} {number}"
                 for other, number in zip(is_other.tolist(), steps["step"].tolist(), strict=True)]  # fmt: skip
        details: dict[str, list[Any]] = {key: steps[key].tolist() for key in ("state", "rule")}
        details |= {key: [None if pd.isna(v) else int(v) for v in steps[key]] for key in _STEP_COLUMNS}
        count = len(steps)
        wall = steps["wall_ns"].to_numpy(dtype=np.int64)
        return Slices(start, start + wall, np.arange(count), names, _zeros(count), (STEP,), _zeros(count), details)

    def _idle(self, process: int, rows: Ints, chosen: Bools, window: tuple[int, int]) -> Slices:
        """Return the gaps of a device between its chosen operations."""
        line = operations.timeline(self._recording.operations, rows)
        waits = self._recording.waits
        in_process = waits.process == process
        anything = Union(line.start, line.end)
        opened, closed, cause, _ = gaps(line, anything, Union(waits.start[in_process], waits.end[in_process]))
        following = anything.firsts[1:] if anything.order is None else anything.order[anything.firsts[1:]]
        of_line = np.isin(line.rows, rows[chosen])
        # A gap after the last operation of a case belongs to what follows.
        ends = np.sort(line.end[of_line])
        # A gap may be divided in two.
        gap = np.searchsorted(anything.end[:-1], opened, side="right") - 1
        begin = anything.end[gap]
        at = np.searchsorted(ends, begin).clip(max=max(len(ends) - 1, 0))
        kept = of_line[following[gap]] | (closed >= window[1])
        kept &= (ends[at] == begin) & (opened >= window[0]) & (opened < window[1]) & (closed > opened)
        start, end = opened[kept], np.minimum(closed[kept], window[1])
        return Slices(start, end, cause[kept], IDLE, _zeros(len(start)), (IDLE_TIME,), _zeros(len(start)))

    def _operations(self, rows: Ints) -> Slices:
        done = self._recording.operations
        names, number = done.table_names
        duration = done.end[rows] - done.start[rows]
        details: dict[str, list[Any]] = {}
        if any(self._recording.placed.paths.case):
            details["case"] = [case or None for case in self._cases(rows).tolist()]
        has_launch = done.launched[rows] != operations.UNKNOWN
        queued = (done.start[rows] - done.launched[rows]).tolist()
        details["ns_since_launch"] = [ns if is_known else None for ns, is_known in zip(queued, has_launch, strict=True)]
        if done.sizes is not None and (sizes := done.sizes[rows]).any():
            details["bytes"] = [size or None for size in sizes.tolist()]
            rates = (sizes / np.maximum(duration, 1)).tolist()
            details["GB/s"] = [round(rate, 2) if rate else None for rate in rates]
        flow = self._flows(rows)
        name = done.name[rows]
        return Slices(done.start[rows], done.end[rows], number[name], names, name, self._classes, flow, details)

    def _flows(self, rows: Ints) -> Int64s:
        """Return the number of the arrow to an operation: of a graph to its first one."""
        call = self._recording.call[rows]
        order = np.lexsort((self._recording.operations.start[rows], call))
        firsts = order[np.concatenate([[True], np.diff(call[order]) != 0])] if len(order) else order
        flow = _zeros(len(rows))
        flow[firsts] = call[firsts] + 1
        return flow


def _typical(steady: pd.DataFrame) -> int:
    """Return the number of the step that is typical on the first device of these steps."""
    place = ["process", "device"]
    first = steady[(steady[place] == steady[place].iloc[0]).all(axis=1)]
    return int(first["step"].iloc[excerpt.typical(first["wall_ns"].to_numpy(dtype=float))])


class _Host:
    """The tracks of the threads of one process: its ranges, and its calls of the API."""

    def __init__(self, recording: Recording, process: int, chosen: Ints, low: int, high: int, case: str | None) -> None:
        self._recording, self._process, self._chosen = recording, process, chosen
        self._low, self._high = low, high
        if case is not None:
            # The calls and ranges of a case are those in the time of its ranges.
            ranges = recording.ranges
            code = [i for i, name in enumerate(ranges.names) if name == f"profpipe:{case}"]
            in_case = np.isin(ranges.name, code) & (ranges.process == process)
            self._of_case: Union | None = Union(ranges.start[in_case], ranges.end[in_case])
        else:
            self._of_case = None

    def _shown(self, start: Int64s, end: Int64s, process: Int64s) -> Bools:
        shown: Bools = (process == self._process) & (start < self._high) & (end > self._low)
        return shown if self._of_case is None else shown & self._of_case.contains(start)

    def ranges(self) -> Iterator[Track]:
        """Yield the ranges of a thread, with the names that the program gave them."""
        given = self._recording.ranges
        rows = np.flatnonzero(self._shown(given.start, given.end, given.process))
        start, end = given.start[rows].clip(min=self._low), given.end[rows].clip(max=self._high)
        names = list(given.recorded or given.names)
        nothing = _zeros(len(rows))
        slices = Slices(start, end, given.name[rows], names, nothing, (RANGE,), nothing)
        yield from self._lay_out_threads("ranges", self._recording.tids(given.thread[rows]), slices)

    def calls(self) -> Iterator[Track]:
        """Yield the calls of a thread; those that launched something have an arrow to it."""
        calls = self._recording.calls
        launching = np.zeros(len(calls.start), dtype=bool)
        called = self._recording.call[self._chosen]
        launching[called[called >= 0]] = True
        rows = np.flatnonzero(self._shown(calls.start, calls.end, calls.process) | launching)
        waiting = np.array([*map(operations.is_waiting_call, calls.names), False])[calls.name[rows]]
        category = np.where(launching[rows], 0, np.where(waiting, 1, 2))
        flow = np.where(launching[rows], rows + 1, 0)
        categories = (LAUNCH, WAIT, CALL)
        slices = Slices(calls.start[rows], calls.end[rows], calls.name[rows], calls.names, category, categories, flow)
        yield from self._lay_out_threads("API calls", calls.thread[rows], slices)

    def _lay_out_threads(self, title: str, threads: Any, slices: Slices) -> Iterator[Track]:
        by_thread: Sequence[tuple[int, Ints]] = groups(np.asarray(threads, dtype=np.int64))
        for thread, rows in sorted(by_thread, key=lambda group: -len(group[1])):
            of = f"thread {thread} {title}" if thread >= 0 else title
            for number, lane in enumerate(slices.only(rows).lanes(may_nest=True), start=1):
                yield (of if number == 1 else f"{of} ({number})"), lane


def _zeros(count: int) -> Int64s:
    return np.zeros(count, dtype=np.int64)
