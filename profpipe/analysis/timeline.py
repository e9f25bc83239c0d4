"""Arrange the table `timeline` as lanes, and merge events that are too short to be seen. Times are nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import by_preference, rows
from profpipe.results.schema import KINDS, EventKind, StepState

#: Boxes of all timelines of a run, and timelines of a workload.
MOST_BOXES: Final = 20_000
MOST_TIMELINES: Final = 50
#: The fewest boxes of one timeline, whatever the number of cases.
_LEAST_BOXES: Final = 300

_WINDOWS: Final = (EventKind.STEP.value, EventKind.ITERATION.value, EventKind.BEGINNING.value)
_IDLE: Final = (EventKind.IDLE_LAUNCH.value, EventKind.IDLE_BLOCKED.value, EventKind.IDLE_OTHER.value)
_HOST: Final = (EventKind.LAUNCH.value, EventKind.WAIT.value)
_PROGRAM: Final = (EventKind.NAMED_WAIT.value, EventKind.LINE.value)

#: What identifies a step.
_STEP: Final = ("case", "profiler", "source", "process", "device", "step")

#: Streams with less than this share of the time of operations stand on one lane, if there are several of them.
_SMALL_STREAM: Final = 0.01
#: Gaps of a rank that are listed.
_GAPS: Final = 5
#: The clocks of host and GPU differ where at least this share of the operations begins before its launch.
_SYSTEMATIC: Final = 0.01

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[Any]
Objects = npt.NDArray[Any]


class LaneKind(str, Enum):
    """What a lane shows."""

    PROGRAM = "program"  # the waits that have a name, and the lines of the program
    HOST = "host"  # launches and waits of a thread
    STREAM = "stream"  # operations of the GPU
    IDLE = "idle"  # the time in which nothing runs on the device


@dataclass(frozen=True)
class Event:
    """An operation, a call of the host, idle time, or what the program did.

    ``key`` is the kernel class; of a launch, of the kernel that it launches; else the kind of the event.
    ``launched_ns`` is when the launch call of an operation began. ``count`` events were merged, since they are too
    short to be seen; ``busy_ns`` is then the sum of their times.
    """

    start_ns: float
    duration_ns: float
    name: str
    key: str
    launched_ns: float | None = None
    bytes: float | None = None
    count: int = 1
    busy_ns: float = 0.0


@dataclass(frozen=True)
class Lane:
    """Events in the order of their start. ``number`` is the thread or stream, None where it is unknown.

    ``others`` is how many streams with little work share the lane. ``totals`` are the number of events and the sum of
    their times by key, whatever was merged.
    """

    kind: LaneKind
    number: int | None
    events: tuple[Event, ...]
    others: int = 0
    totals: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gap:
    """Idle time, and the operations around it. ``cause`` is ``idle_launch``, ``idle_blocked`` or ``idle_other``.

    ``wait`` is the call in which the host waited as the gap began.
    """

    start_ns: float
    duration_ns: float
    cause: str
    after: str = ""
    before: str = ""
    wait: str = ""


@dataclass(frozen=True)
class RankTimeline:
    """The lanes of one process and device: the program first, then threads of the host, idle time and streams.

    ``step`` is the number of the step or of the iteration. The window is the time that is shown.
    """

    rank: int
    process: int | None
    device: int | None
    step: int | None
    duration_ns: float
    lanes: tuple[Lane, ...]
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class CaseTimeline:
    """What ran when in one case, as ``profiler`` recorded it. Times count from the start of the first window.

    ``kind`` is ``step``, ``iteration`` or ``beginning``. ``step_ns`` is the whole time of the step where the window
    shows its beginning only. Without ``has_one_clock`` each rank begins at 0, since each rank was recorded in
    another file. Events shorter than ``merged_below_ns`` were merged with their neighbours; 0: none. ``shift_ns`` is
    the largest shift of operations and idle time behind their launches. ``early_ns`` is the longest time by which an
    operation still begins before its launch.
    """

    case: str
    profiler: str
    kind: str
    duration_ns: float
    ranks: tuple[RankTimeline, ...]
    step_ns: float | None = None
    has_one_clock: bool = True
    merged_below_ns: float = 0.0
    shift_ns: float = 0.0
    early_ns: float = 0.0


def find_timelines(
    timeline: pd.DataFrame, steps: pd.DataFrame, order: Sequence[str] = (), workloads: int = 1
) -> tuple[CaseTimeline, ...]:
    """Return the timelines of one of ``workloads``: of its first cases by ``order``, if there are very many.

    The events of a case are those of the profiler that its kernel times come from.
    """
    pairs = timeline[["case", "profiler"]].drop_duplicates()
    recorded = grouped((case, profiler) for case, profiler in rows(pairs, "case", "profiler"))
    place = {case: number for number, case in enumerate(order)}
    cases = sorted(recorded, key=lambda case: place.get(case, len(place)))[:MOST_TIMELINES]
    walls = steps[steps["case"].isin(cases) & (steps["state"] != StepState.OTHER.value)].dropna(subset="wall_ns")
    whole = {tuple(step): float(wall) for *step, wall in rows(_plain(walls), *_STEP, "wall_ns")}
    most = max(MOST_BOXES // max(workloads * len(cases), 1), _LEAST_BOXES)
    timelines = []
    for case in cases:
        profiler = by_preference(recorded[case])[0]
        case_rows = timeline[(timeline["case"] == case) & (timeline["profiler"] == profiler)]
        if own_timeline := _build_timeline(case, profiler, case_rows, whole, most):
            timelines.append(own_timeline)
    return tuple(timelines)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with None for missing values."""
    return frame.astype(object).where(frame.notna(), None)


@dataclass(frozen=True)
class _Events:
    """Rows of `timeline` as arrays, in the order of their start: a step has tens of thousands.

    ``start`` and ``launched`` count from the start of the first window. A missing number is NaN; ``thread`` and
    ``stream`` index ``threads`` and ``streams``. ``key`` is that of ``Event``; ``lane`` is the kind of its lane.
    """

    start: Floats
    duration: Floats
    launched: Floats
    bytes: Floats
    kind: Objects
    lane: Objects
    name: Objects
    key: Objects
    thread: Ints
    threads: Sequence[int | None]
    stream: Ints
    streams: Sequence[int | None]

    @classmethod
    def of(cls, ordered: pd.DataFrame, first: float) -> _Events:
        names = ("start_ns", "duration_ns", "launched_ns", "bytes")
        start, duration, launched, size = (ordered[name].to_numpy(np.float64, na_value=np.nan) for name in names)
        kind, name, key = (ordered[column].to_numpy(object) for column in ("kind", "name", "kernel_class"))
        by_kind = {LaneKind.PROGRAM: _PROGRAM, LaneKind.HOST: _HOST, LaneKind.IDLE: _IDLE}
        lanes = {kind: lane.value for lane, kinds in by_kind.items() for kind in kinds}
        lane = ordered["kind"].map({**lanes, **dict.fromkeys(KINDS, LaneKind.STREAM.value)}).to_numpy(object)
        # Launches have the colour of what they launch; waits and gaps have that of their kind.
        key = np.where(ordered["kind"].isin([*_IDLE, *_PROGRAM, EventKind.WAIT.value]), kind, key)
        numbers: list[Any] = []
        for column in ("thread", "stream"):
            code, values = pd.factorize(ordered[column], use_na_sentinel=False)
            numbers += [code, [None if pd.isna(value) else int(value) for value in values]]
        return cls(start - first, duration, launched - first, size, kind, lane, name, key, *numbers)


def _build_timeline(
    case: str, profiler: str, case_rows: pd.DataFrame, whole: Mapping[Any, float], most: int
) -> CaseTimeline | None:
    """Return the timeline of a case; None where no process has one window, as in an altered file.

    Neighbours that are shorter than a pixel of a wide page are merged, until at most ``most`` boxes are left. A lane of
    width w has at most w / r events longer than r, and w / r groups of shorter ones.
    """
    case_rows = case_rows.sort_values("start_ns", kind="stable").reset_index(drop=True)
    # Without steps the processes of a case may have no ranks. Each process and device is one.
    code = case_rows.groupby(["rank", "source", "process", "device"], dropna=False, sort=False).ngroup().to_numpy()
    windows: Iterator[Any] = _plain(case_rows[case_rows["kind"].isin(_WINDOWS)]).itertuples()
    by_place = grouped((code[row.Index], row) for row in windows)
    shown = [place_windows[0] for place_windows in by_place.values() if len(place_windows) == 1]
    if not shown:
        return None
    shown.sort(key=lambda row: [(v is None, v or 0) for v in (row.rank, row.source, row.process, row.device)])
    first = float(min(window.start_ns for window in shown))
    duration = float(max(window.start_ns + window.duration_ns for window in shown)) - first
    cut = [
        ns for window in shown
        if (ns := whole.get(tuple(getattr(window, name) for name in _STEP), 0.0)) > window.duration_ns
    ]  # fmt: skip
    events = _Events.of(case_rows, first)
    places = [np.flatnonzero(code == code[window.Index]) for window in shown]
    early = [_early_ns(events, rows) for rows in places]
    shifts = [ns if is_systematic and ns < duration else 0.0 for ns, is_systematic in early]
    for of_place, shift in zip(places, shifts, strict=True):
        is_of_host = np.isin(events.lane[of_place], [LaneKind.HOST.value, LaneKind.PROGRAM.value])
        events.start[of_place[~is_of_host]] += shift
    duration += max(shifts)
    lanes = [list(_lanes(events, rows)) for rows in places]
    boxes = [len(rows) for of_rank in lanes for _, _, rows, _ in of_rank]
    shortest = 2 * len(boxes) * duration / most if sum(boxes) > most else 0.0
    ranks = tuple(
        RankTimeline(
            # The rank is the number of the place where the rows have none.
            rank=number if window.rank is None else window.rank,
            process=window.process,
            device=window.device,
            step=window.step,
            duration_ns=float(window.duration_ns),
            lanes=tuple(_lane(events, shortest, *lane) for lane in lanes[number]),
            gaps=tuple(_gaps(events, places[number])),
        )
        for number, window in enumerate(shown)
    )
    step_ns = max(cut) if cut and shown[0].kind == EventKind.STEP.value else None
    has_one_clock = len({window.source for window in shown}) == 1
    left = max(ns - shift for (ns, _), shift in zip(early, shifts, strict=True))
    kind = shown[0].kind
    return CaseTimeline(case, profiler, kind, duration, ranks, step_ns, has_one_clock, shortest, max(shifts), left)


def _early_ns(events: _Events, rows: Ints) -> tuple[float, bool]:
    """Return by how much an operation begins before its launch at most, and whether the clocks are the cause."""
    early = (events.launched - events.start)[rows]
    early = early[~np.isnan(early)]
    return float(early.max(initial=0.0)), bool(np.count_nonzero(early > 0) >= _SYSTEMATIC * len(early))


def _lanes(events: _Events, rows: Ints) -> Iterator[tuple[LaneKind, int | None, Ints, int]]:
    """Yield kind, number, rows and other streams of each lane.

    What the program did comes first, then the threads of the host, the one with most calls before the others, then idle
    time, then the streams by their time.
    """

    def divided(kind: LaneKind, number: Ints) -> list[tuple[int, Ints]]:
        kind_rows = rows[events.lane[rows] == kind.value]
        return [(code, kind_rows[number[kind_rows] == code]) for code in pd.unique(number[kind_rows]).tolist()]

    if len(program := rows[events.lane[rows] == LaneKind.PROGRAM.value]):
        yield LaneKind.PROGRAM, None, program, 0
    for thread, thread_rows in sorted(divided(LaneKind.HOST, events.thread), key=lambda lane: -len(lane[1])):
        yield LaneKind.HOST, events.threads[thread], thread_rows, 0
    if len(idle := rows[events.lane[rows] == LaneKind.IDLE.value]):
        yield LaneKind.IDLE, None, idle, 0
    streams = divided(LaneKind.STREAM, events.stream)
    time = {stream: float(events.duration[stream_rows].sum()) for stream, stream_rows in streams}
    streams.sort(key=lambda lane: -time[lane[0]])
    small = {stream for stream, _ in streams[1:] if time[stream] < _SMALL_STREAM * sum(time.values())}
    if len(small) < 2:
        small = set()
    yield from (
        (LaneKind.STREAM, events.streams[stream], stream_rows, 0)
        for stream, stream_rows in streams
        if stream not in small
    )
    if small:
        others = np.sort(np.concatenate([stream_rows for stream, stream_rows in streams if stream in small]))
        yield LaneKind.STREAM, None, others, len(small)


def _lane(events: _Events, shortest: float, kind: LaneKind, number: int | None, rows: Ints, others: int) -> Lane:
    """Return the lane, with one event in place of neighbours that are ``shortest`` or shorter.

    Such an event has the key that has most of their time, and the name of the first one with that key.
    """
    start, duration = events.start[rows], events.duration[rows]
    code, keys = pd.factorize(events.key[rows])
    totals = zip(keys.tolist(), np.bincount(code).tolist(), np.bincount(code, weights=duration).tolist(), strict=True)
    alone = np.ones(len(rows), dtype=bool)
    if shortest:
        slot, is_short = start // shortest, duration < shortest
        alone[1:] = ~(is_short[1:] & is_short[:-1] & (slot[1:] == slot[:-1]))
    heads = np.flatnonzero(alone)
    count = np.diff(heads, append=len(rows))
    # By box and key: the first row and the time. The key with the most time comes first, of equals the earlier one.
    box = np.repeat(np.arange(len(heads)), count) * len(keys) + code
    cell, at, of_cell = np.unique(box, return_index=True, return_inverse=True)
    order = np.lexsort((at, -np.bincount(of_cell, weights=duration), cell // len(keys)))
    chosen = at[order[np.unique(cell[order] // len(keys), return_index=True)[1]]]
    lasts = np.maximum.reduceat(start + duration, heads) - start[heads]
    details = events.launched[rows[heads]], events.bytes[rows[heads]]
    columns = (
        start[heads],
        np.where(count == 1, duration[heads], lasts),
        events.name[rows[chosen]],
        events.key[rows[chosen]],
        *(np.where((count == 1) & ~np.isnan(detail), detail.astype(object), np.array(None)) for detail in details),
        count,
        np.add.reduceat(duration, heads),
    )
    boxes = tuple(map(Event, *(column.tolist() for column in columns)))
    return Lane(kind, number, boxes, others, {key: (calls, ns) for key, calls, ns in totals})


def _gaps(events: _Events, rows: Ints) -> Iterator[Gap]:
    """Yield the largest gaps with the operations around them."""
    operations = rows[events.lane[rows] == LaneKind.STREAM.value]
    starts, ends = events.start[operations], (events.start + events.duration)[operations]
    waits = rows[events.kind[rows] == EventKind.WAIT.value]
    idle = rows[events.lane[rows] == LaneKind.IDLE.value]
    for gap in idle[np.argsort(-events.duration[idle], kind="stable")[:_GAPS]].tolist():
        begin = float(events.start[gap])
        end = begin + float(events.duration[gap])
        before = ends[ends <= begin]
        following = int(np.searchsorted(starts, end))
        around = waits[(events.start[waits] <= begin) & (begin <= (events.start + events.duration)[waits])]
        yield Gap(
            begin,
            end - begin,
            events.kind[gap],
            after=max(events.name[operations[ends == before.max()]]) if len(before) else "",
            before=events.name[operations[following]] if following < len(operations) else "",
            wait=events.name[around[0]] if len(around) else "",
        )
