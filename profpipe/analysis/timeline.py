"""Arrange the table `timeline` as lanes, and merge events that are too short to be seen."""

from __future__ import annotations

import bisect
import heapq
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pandas as pd

from profpipe.analysis.findings.timeline import CaseTimeline, Event, Gap, Lane, LaneKind, RankTimeline
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_breakdown import PREFERENCE
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
_PLACE: Final = ("case", "profiler", "source", "process", "device", "step")

#: Streams with less than this share of the time of operations stand on one lane, if there are several of them.
_SMALL_STREAM: Final = 0.01
#: Gaps of a rank that are listed.
_GAPS: Final = 5

#: A row of a table, with None for missing values.
_Row: TypeAlias = "Mapping[str, Any]"
_Rows: TypeAlias = "Sequence[_Row]"


def find_timelines(
    timeline: pd.DataFrame, steps: pd.DataFrame, order: Sequence[str] = (), workloads: int = 1
) -> tuple[CaseTimeline, ...]:
    """Return the timelines of one of ``workloads``: of its first cases by ``order``, if there are very many.

    The events of a case are those of the profiler that its kernel times come from.
    """
    recorded = timeline[["case", "profiler"]].drop_duplicates()
    rank = {case: number for number, case in enumerate(order)}
    cases = sorted(recorded["case"].unique(), key=lambda case: rank.get(case, len(rank)))[:MOST_TIMELINES]
    known = {case: set(own["profiler"]) for case, own in recorded.groupby("case", sort=False)}
    chosen = {case: next((name for name in PREFERENCE if name in known[case]), min(known[case])) for case in cases}
    every = _records(timeline[timeline["case"].isin(cases)])
    by_case = grouped((row["case"], row) for row in every if row["profiler"] == chosen[row["case"]])
    # The time of each step, by the place of its rows.
    own = steps.loc[steps["case"].isin(cases) & (steps["state"] != StepState.OTHER.value), [*_PLACE, "wall_ns"]]
    whole = {_place(row): float(row["wall_ns"]) for row in _records(own) if row["wall_ns"] is not None}
    most = max(MOST_BOXES // max(workloads * len(cases), 1), _LEAST_BOXES)
    found = (_of_case(case, chosen[case], by_case[case], whole) for case in cases)
    return tuple(_merged(each, most) for each in found if each is not None)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    # to_dict("records") looks at the type of each value.
    names, columns = list(map(str, frame)), (_values(column) for _, column in frame.items())
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pd.Series[Any]) -> list[Any]:
    missing = column.isna()
    if not missing.any():
        return column.tolist()
    return [None if is_missing else value for value, is_missing in zip(column.tolist(), missing.tolist(), strict=True)]


def _place(row: _Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in _PLACE)


def _of_case(case: str, profiler: str, rows: _Rows, whole: Mapping[tuple[Any, ...], float]) -> CaseTimeline | None:
    """Return the timeline of a case; None where no process has one window, as in an altered file."""
    # Without steps the processes of a case may have no ranks. Each process and device is one.
    place_of = operator.itemgetter("rank", "source", "process", "device")
    by_place = grouped((place_of(row), row) for row in rows)
    known = [place for place, own in by_place.items() if sum(row["kind"] in _WINDOWS for row in own) == 1]
    if not known:
        return None
    places = sorted(known, key=lambda place: tuple((value is None, value or 0) for value in place))
    ranks = [_of_rank(by_place[place], number) for number, place in enumerate(places)]
    windows = [row for place in places for row in by_place[place] if row["kind"] in _WINDOWS]
    first = min(rank.start_ns for rank in ranks)
    end = max(rank.start_ns + rank.duration_ns for rank in ranks)
    cut = [ns for row in windows if (ns := whole.get(_place(row), 0.0)) > row["duration_ns"]]
    kind = windows[0]["kind"]
    moved = tuple(_moved(rank, first) for rank in ranks)
    step_ns = max(cut) if cut and kind == EventKind.STEP.value else None
    has_one_clock = len({row["source"] for row in windows}) == 1
    return CaseTimeline(case, profiler, kind, end - first, moved, step_ns, has_one_clock)


def _moved(rank: RankTimeline, first: float) -> RankTimeline:
    """Return the rank with times since ``first``."""
    if not first:
        return rank

    def moved(event: Event) -> Event:
        launched = None if event.launched_ns is None else event.launched_ns - first
        return replace(event, start_ns=event.start_ns - first, launched_ns=launched)

    lanes = tuple(replace(lane, events=tuple(map(moved, lane.events))) for lane in rank.lanes)
    gaps = tuple(replace(gap, start_ns=gap.start_ns - first) for gap in rank.gaps)
    return replace(rank, start_ns=rank.start_ns - first, lanes=lanes, gaps=gaps)


def _of_rank(rows: _Rows, number: int) -> RankTimeline:
    """Return the timeline of one process and device; ``number`` is its rank where the rows have none."""
    (window,) = (row for row in rows if row["kind"] in _WINDOWS)
    ordered = sorted(rows, key=lambda row: row["start_ns"])
    return RankTimeline(
        rank=number if window["rank"] is None else window["rank"],
        process=window["process"],
        device=window["device"],
        step=window["step"],
        start_ns=float(window["start_ns"]),
        duration_ns=float(window["duration_ns"]),
        lanes=tuple(_lanes(ordered)),
        gaps=tuple(_gaps(ordered)),
    )


def _lanes(rows: _Rows) -> Iterator[Lane]:
    """Yield the threads of the host, the one with most calls first, then idle time, then streams by their time."""
    host = grouped((row["thread"], row) for row in rows if row["kind"] in _HOST)
    for thread, own in sorted(host.items(), key=lambda each: -len(each[1])):
        yield _lane(LaneKind.HOST, thread, own)
    if idle := [row for row in rows if row["kind"] in _IDLE]:
        yield _lane(LaneKind.IDLE, None, idle)
    streams = grouped((row["stream"], row) for row in rows if row["kind"] in KINDS)
    time = {stream: sum(row["duration_ns"] for row in own) for stream, own in streams.items()}
    ordered = sorted(streams, key=lambda stream: -time[stream])
    small = [stream for stream in ordered[1:] if time[stream] < _SMALL_STREAM * sum(time.values())]
    if len(small) < 2:
        small = []
    yield from (_lane(LaneKind.STREAM, stream, streams[stream]) for stream in ordered if stream not in small)
    if small:
        others = sorted((row for stream in small for row in streams[stream]), key=lambda row: row["start_ns"])
        yield replace(_lane(LaneKind.STREAM, None, others), others=len(small))


def _lane(kind: LaneKind, number: int | None, rows: _Rows) -> Lane:
    events = tuple(map(_event, rows))
    times = grouped((event.key, event.duration_ns) for event in events)
    return Lane(kind, number, events, totals={key: (len(own), sum(own)) for key, own in times.items()})


def _event(row: _Row) -> Event:
    # Launches have the colour of what they launch; waits and gaps have that of their kind.
    is_host = row["kind"] in _IDLE or row["kind"] == EventKind.WAIT.value
    duration = float(row["duration_ns"])
    return Event(
        float(row["start_ns"]), duration, row["name"], row["kind"] if is_host else row["kernel_class"],
        row["launched_ns"], row["bytes"], busy_ns=duration,
    )  # fmt: skip


def _gaps(rows: _Rows) -> Iterator[Gap]:
    """Yield the largest gaps with the operations around them."""
    operations = [row for row in rows if row["kind"] in KINDS]
    starts = [row["start_ns"] for row in operations]
    ended = sorted((row["start_ns"] + row["duration_ns"], row["name"]) for row in operations)
    ends = [end for end, _ in ended]
    waits = [row for row in rows if row["kind"] == EventKind.WAIT.value]
    idle = (row for row in rows if row["kind"] in _IDLE)
    for gap in heapq.nlargest(_GAPS, idle, key=lambda row: row["duration_ns"]):
        begin, end = float(gap["start_ns"]), float(gap["start_ns"] + gap["duration_ns"])
        last, following = bisect.bisect_right(ends, begin) - 1, bisect.bisect_left(starts, end)
        around = (row["name"] for row in waits if row["start_ns"] <= begin <= row["start_ns"] + row["duration_ns"])
        yield Gap(
            begin,
            end - begin,
            gap["kind"],
            after=ended[last][1] if last >= 0 else "",
            before=operations[following]["name"] if following < len(operations) else "",
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
        replace(rank, lanes=tuple(_merge_lane(lane, shortest) for lane in rank.lanes)) for rank in timeline.ranks
    )
    return replace(timeline, ranks=ranks, merged_below_ns=shortest)


def _merge_lane(lane: Lane, shortest: float) -> Lane:
    def slot(place: tuple[int, Event]) -> tuple[str, float]:
        number, event = place
        return ("long", number) if event.duration_ns >= shortest else ("short", event.start_ns // shortest)

    groups = itertools.groupby(enumerate(lane.events), slot)
    return replace(lane, events=tuple(_merge([event for _, event in group]) for _, group in groups))


def _merge(events: Sequence[Event]) -> Event:
    """Return one event in place of ``events``, with the key that has most of their time."""
    if len(events) == 1:
        return events[0]
    time = {key: sum(own) for key, own in grouped((event.key, event.busy_ns) for event in events).items()}
    key = max(time, key=lambda each: time[each])
    name = next(event.name for event in events if event.key == key)
    start = events[0].start_ns
    end = max(event.start_ns + event.duration_ns for event in events)
    return Event(start, end - start, name, key, count=len(events), busy_ns=sum(time.values()))
