"""Arrange the table `timeline` as lanes, and merge events that are too short to be seen. Times are nanoseconds."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import pandas as pd

from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import PREFERENCE, rows
from profpipe.results.schema import KINDS, EventKind, StepState

#: Boxes of all timelines of a run, and timelines of a workload.
MOST_BOXES: Final = 20_000
MOST_TIMELINES: Final = 50
#: The fewest boxes of one timeline, whatever the number of cases.
_LEAST_BOXES: Final = 300

_WINDOWS: Final = (EventKind.STEP.value, EventKind.ITERATION.value, EventKind.BEGINNING.value)
_IDLE: Final = (EventKind.IDLE_LAUNCH.value, EventKind.IDLE_BLOCKED.value, EventKind.IDLE_OTHER.value)
_HOST: Final = (EventKind.LAUNCH.value, EventKind.WAIT.value)

#: What identifies a step.
_STEP: Final = ("case", "profiler", "source", "process", "device", "step")

#: Streams with less than this share of the time of operations stand on one lane, if there are several of them.
_SMALL_STREAM: Final = 0.01
#: Gaps of a rank that are listed.
_GAPS: Final = 5


class LaneKind(str, Enum):
    """What a lane shows."""

    HOST = "host"  # launches and waits of a thread
    STREAM = "stream"  # operations of the GPU
    IDLE = "idle"  # the time in which nothing runs on the device


@dataclass(frozen=True)
class Event:
    """An operation, a call of the host, or idle time.

    ``key`` is the kernel class; of a launch, of the kernel that it launches; of a call that waits and of idle time, the
    kind of the event. ``launched_ns`` is when the launch call of an operation began. ``count`` events were merged,
    since they are too short to be seen; ``busy_ns`` is then the sum of their times.
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
    """The lanes of one process and device: the threads of the host first, then idle time and streams.

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
    another file. Events shorter than ``merged_below_ns`` were merged with their neighbours; 0: none.
    """

    case: str
    profiler: str
    kind: str
    duration_ns: float
    ranks: tuple[RankTimeline, ...]
    step_ns: float | None = None
    has_one_clock: bool = True
    merged_below_ns: float = 0.0


def find_timelines(
    timeline: pd.DataFrame, steps: pd.DataFrame, order: Sequence[str] = (), workloads: int = 1
) -> tuple[CaseTimeline, ...]:
    """Return the timelines of one of ``workloads``: of its first cases by ``order``, if there are very many.

    The events of a case are those of the profiler that its kernel times come from.
    """
    own = timeline[["case", "profiler"]].drop_duplicates()
    recorded = grouped((case, profiler) for case, profiler in rows(own, "case", "profiler"))
    place = {case: number for number, case in enumerate(order)}
    cases = sorted(recorded, key=lambda case: place.get(case, len(place)))[:MOST_TIMELINES]
    walls = steps[steps["case"].isin(cases) & (steps["state"] != StepState.OTHER.value)].dropna(subset="wall_ns")
    whole = {tuple(step): float(wall) for *step, wall in rows(_plain(walls), *_STEP, "wall_ns")}
    most = max(MOST_BOXES // max(workloads * len(cases), 1), _LEAST_BOXES)
    found = []
    for case in cases:
        profiler = next((name for name in PREFERENCE if name in recorded[case]), min(recorded[case]))
        own = timeline[(timeline["case"] == case) & (timeline["profiler"] == profiler)]
        if own_timeline := _of_case(case, profiler, own, whole):
            found.append(_merged(own_timeline, most))
    return tuple(found)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with None for missing values."""
    return frame.astype(object).where(frame.notna(), None)


def _of_case(case: str, profiler: str, own: pd.DataFrame, whole: Mapping[Any, float]) -> CaseTimeline | None:
    """Return the timeline of a case; None where no process has one window, as in an altered file."""
    # Without steps the processes of a case may have no ranks. Each process and device is one.
    ordered: Iterator[Any] = _plain(own.sort_values("start_ns", kind="stable")).itertuples(index=False)
    by_place = grouped(((row.rank, row.source, row.process, row.device), row) for row in ordered)
    windows = {place: [row for row in found if row.kind in _WINDOWS] for place, found in by_place.items()}
    places = [place for place, found in windows.items() if len(found) == 1]
    if not places:
        return None
    places.sort(key=lambda place: tuple((value is None, value or 0) for value in place))
    shown = [windows[place][0] for place in places]
    first = float(min(window.start_ns for window in shown))
    end = float(max(window.start_ns + window.duration_ns for window in shown))
    cut = [
        ns for window in shown
        if (ns := whole.get(tuple(getattr(window, name) for name in _STEP), 0.0)) > window.duration_ns
    ]  # fmt: skip
    kind = shown[0].kind
    return CaseTimeline(
        case,
        profiler,
        kind,
        end - first,
        tuple(_of_rank(by_place[place], windows[place][0], number, first) for number, place in enumerate(places)),
        max(cut) if cut and kind == EventKind.STEP.value else None,
        len({window.source for window in shown}) == 1,
    )


def _of_rank(found: Sequence[Any], window: Any, number: int, first: float) -> RankTimeline:
    """Return the timeline of one process and device since ``first``; it is rank ``number`` where the rows have none."""
    return RankTimeline(
        rank=number if window.rank is None else window.rank,
        process=window.process,
        device=window.device,
        step=window.step,
        duration_ns=float(window.duration_ns),
        lanes=tuple(_lanes(found, first)),
        gaps=tuple(_gaps(found, first)),
    )


def _lanes(found: Sequence[Any], first: float) -> Iterator[Lane]:
    """Yield the threads of the host, the one with most calls first, then idle time, then streams by their time."""

    def lane(kind: LaneKind, number: int | None, own: Sequence[Any], others: int = 0) -> Lane:
        events = tuple(_event(row, first) for row in own)
        times = grouped((event.key, event.duration_ns) for event in events)
        return Lane(kind, number, events, others, {key: (len(each), sum(each)) for key, each in times.items()})

    host = grouped((row.thread, row) for row in found if row.kind in _HOST)
    for thread, own in sorted(host.items(), key=lambda each: -len(each[1])):
        yield lane(LaneKind.HOST, thread, own)
    if idle := [row for row in found if row.kind in _IDLE]:
        yield lane(LaneKind.IDLE, None, idle)
    streams = grouped((row.stream, row) for row in found if row.kind in KINDS)
    time = {stream: sum(row.duration_ns for row in own) for stream, own in streams.items()}
    ordered = sorted(streams, key=lambda stream: -time[stream])
    small = {stream for stream in ordered[1:] if time[stream] < _SMALL_STREAM * sum(time.values())}
    if len(small) < 2:
        small = set()
    yield from (lane(LaneKind.STREAM, stream, streams[stream]) for stream in ordered if stream not in small)
    if small:
        others = [row for row in found if row.kind in KINDS and row.stream in small]
        yield lane(LaneKind.STREAM, None, others, len(small))


def _event(row: Any, first: float) -> Event:
    # Launches have the colour of what they launch; waits and gaps have that of their kind.
    is_host, duration = row.kind in _IDLE or row.kind == EventKind.WAIT.value, float(row.duration_ns)
    launched = None if row.launched_ns is None else row.launched_ns - first
    return Event(
        float(row.start_ns) - first, duration, row.name, row.kind if is_host else row.kernel_class, launched, row.bytes,
        busy_ns=duration,
    )  # fmt: skip


def _gaps(found: Sequence[Any], first: float) -> Iterator[Gap]:
    """Yield the largest gaps with the operations around them."""
    operations = [row for row in found if row.kind in KINDS]
    starts = [row.start_ns for row in operations]
    ended = sorted((row.start_ns + row.duration_ns, row.name) for row in operations)
    ends = [end for end, _ in ended]
    waits = [row for row in found if row.kind == EventKind.WAIT.value]
    idle = (row for row in found if row.kind in _IDLE)
    for gap in heapq.nlargest(_GAPS, idle, key=lambda row: row.duration_ns):
        begin, end = float(gap.start_ns), float(gap.start_ns + gap.duration_ns)
        last, following = bisect.bisect_right(ends, begin) - 1, bisect.bisect_left(starts, end)
        around = (row.name for row in waits if row.start_ns <= begin <= row.start_ns + row.duration_ns)
        yield Gap(
            begin - first,
            end - begin,
            gap.kind,
            after=ended[last][1] if last >= 0 else "",
            before=operations[following].name if following < len(operations) else "",
            wait=next(around, ""),
        )


# --- merging ---------------------------------------------------------------------------------------------------------


def _merged(timeline: CaseTimeline, most: int) -> CaseTimeline:
    """Merge neighbours that are shorter than a pixel of a wide page, until at most ``most`` boxes are left.

    A lane of width w has at most w / r events longer than r, and w / r groups of shorter ones.
    """
    lanes = [lane for rank in timeline.ranks for lane in rank.lanes]
    if sum(len(lane.events) for lane in lanes) <= most:
        return timeline
    shortest = 2 * len(lanes) * timeline.duration_ns / most
    ranks = tuple(
        replace(rank, lanes=tuple(replace(lane, events=tuple(_merge(lane, shortest))) for lane in rank.lanes))
        for rank in timeline.ranks
    )
    return replace(timeline, ranks=ranks, merged_below_ns=shortest)


def _merge(lane: Lane, shortest: float) -> Iterator[Event]:
    """Yield the long events, and one event in place of short neighbours, with the key that has most of their time."""

    def slot(place: tuple[int, Event]) -> tuple[str, float]:
        number, event = place
        return ("long", number) if event.duration_ns >= shortest else ("short", event.start_ns // shortest)

    for _, group in itertools.groupby(enumerate(lane.events), slot):
        events = [event for _, event in group]
        if len(events) == 1:
            yield events[0]
            continue
        time = {key: sum(own) for key, own in grouped((event.key, event.busy_ns) for event in events).items()}
        key = max(time, key=lambda each: time[each])
        name = next(event.name for event in events if event.key == key)
        start, end = events[0].start_ns, max(event.start_ns + event.duration_ns for event in events)
        yield Event(start, end - start, name, key, count=len(events), busy_ns=sum(time.values()))
