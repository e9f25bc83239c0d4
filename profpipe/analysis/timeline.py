"""Arrange the table `timeline` as lanes, and merge events that are too short to be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.analysis.findings.timeline import CaseTimeline, Event, Gap, Lane, LaneKind, RankTimeline
from profpipe.analysis.kernel_breakdown import PREFERENCE
from profpipe.results.schema import KINDS, EventKind

#: Boxes of all timelines of a run.
MOST_BOXES: Final = 20_000
#: The fewest boxes of one timeline, whatever the number of cases.
_LEAST_BOXES: Final = 300

_WINDOWS: Final = (EventKind.STEP.value, EventKind.ITERATION.value, EventKind.BEGINNING.value)
_IDLE: Final = (EventKind.IDLE_LAUNCH.value, EventKind.IDLE_BLOCKED.value, EventKind.IDLE_OTHER.value)
_HOST: Final = (EventKind.LAUNCH.value, EventKind.WAIT.value)

#: Streams with less than this share of the time of operations stand on one lane, if there are several of them.
_SMALL_STREAM: Final = 0.01
#: Gaps of a rank that are listed.
_GAPS: Final = 5


def find_timelines(timeline: pd.DataFrame, steps: pd.DataFrame, workloads: int = 1) -> tuple[CaseTimeline, ...]:
    """Return the timeline of each case of one of ``workloads``, from the profiler that the kernel times come from."""
    found = []
    for case, own in timeline.groupby("case", sort=False):
        known = set(own["profiler"])
        profiler = next((name for name in PREFERENCE if name in known), None) or sorted(known)[0]
        chosen = own[own["profiler"] == profiler]
        of_case = steps[(steps["case"] == case) & (steps["profiler"] == profiler)]
        found.append(_of_case(str(case), profiler, chosen, of_case))
    most = max(MOST_BOXES // max(workloads * len(found), 1), _LEAST_BOXES)
    return tuple(_merged(each, most) for each in found)


def _of_case(case: str, profiler: str, rows: pd.DataFrame, steps: pd.DataFrame) -> CaseTimeline:
    # Without steps the processes of a case have no ranks. Each process and device is one.
    by_place = rows.groupby(["rank", "source", "process", "device"], sort=True, dropna=False)
    ranks = tuple(_of_rank(own, number) for number, (_, own) in enumerate(by_place))
    windows = rows[rows["kind"].isin(_WINDOWS)]
    kind = str(windows["kind"].iloc[0])
    first = min(rank.start_ns for rank in ranks)
    end = max(rank.start_ns + rank.duration_ns for rank in ranks)
    shown = windows.merge(steps[["source", "process", "device", "step", "state", "wall_ns"]], how="left",
                          on=["source", "process", "device", "step"])  # fmt: skip
    is_cut = shown["duration_ns"] < shown["wall_ns"]
    whole = float(shown.loc[is_cut, "wall_ns"].max()) if kind == EventKind.STEP.value and is_cut.any() else None
    moved = tuple(_moved(rank, first) for rank in ranks)
    return CaseTimeline(case, profiler, kind, end - first, moved, whole, windows["source"].nunique() == 1)


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


def _of_rank(rows: pd.DataFrame, number: int) -> RankTimeline:
    """Return the timeline of one process and device; ``number`` is its rank where the rows have none."""
    (window,) = rows[rows["kind"].isin(_WINDOWS)].to_dict("records")
    rows = rows.sort_values("start_ns", kind="stable")
    return RankTimeline(
        rank=number if pd.isna(window["rank"]) else int(window["rank"]),
        process=_number(window["process"]),
        device=_number(window["device"]),
        step=_number(window["step"]),
        start_ns=float(window["start_ns"]),
        duration_ns=float(window["duration_ns"]),
        lanes=tuple(_lanes(rows)),
        gaps=tuple(_gaps(rows)),
    )


def _number(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _lanes(rows: pd.DataFrame) -> Iterator[Lane]:
    """Yield the threads of the host, the one with most calls first, then idle time, then streams by their time."""
    host = rows[rows["kind"].isin(_HOST)]
    yield from (_lane(LaneKind.HOST, *each) for each in _split(host, "thread", host["kind"].map(lambda _: 1)))
    idle = rows[rows["kind"].isin(_IDLE)]
    if len(idle):
        yield _lane(LaneKind.IDLE, None, idle)
    operations = rows[rows["kind"].isin(KINDS)]
    streams = _split(operations, "stream", operations["duration_ns"])
    least = _SMALL_STREAM * operations["duration_ns"].sum()
    small = [own for _, own in streams[1:] if own["duration_ns"].sum() < least]
    if len(small) < 2:
        small = []
    yield from (_lane(LaneKind.STREAM, *each) for each in streams[: len(streams) - len(small)])
    if small:
        yield replace(_lane(LaneKind.STREAM, None, pd.concat(small).sort_values("start_ns")), others=len(small))


def _split(rows: pd.DataFrame, column: str, weight: Any) -> list[tuple[int | None, pd.DataFrame]]:
    """Return (number, rows) for each thread or stream, that with the largest sum of ``weight`` first."""
    groups = [(_number(number), own) for number, own in rows.groupby(column, sort=True, dropna=False)]
    sums = weight.groupby(rows[column], dropna=False).sum()
    return sorted(groups, key=lambda each: -float(sums.loc[pd.NA if each[0] is None else each[0]]))


def _lane(kind: LaneKind, number: int | None, rows: pd.DataFrame) -> Lane:
    # Launches have the colour of what they launch; waits and gaps have that of their kind.
    key = rows["kernel_class"].where(~rows["kind"].isin([*_IDLE, EventKind.WAIT.value]), rows["kind"])
    columns = (rows["start_ns"], rows["duration_ns"], rows["name"], key, rows["launched_ns"], rows["bytes"])
    events = tuple(
        Event(float(start), float(duration), name, of, _float(launched), _float(size), busy_ns=float(duration))
        for start, duration, name, of, launched, size in zip(*(c.tolist() for c in columns), strict=True)
    )
    sums = rows["duration_ns"].groupby(key, sort=False).agg(["size", "sum"])
    totals = {str(of): (int(n), float(ns)) for of, n, ns in sums.itertuples()}
    return Lane(kind, number, events, totals=totals)


def _float(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _gaps(rows: pd.DataFrame) -> Iterator[Gap]:
    """Yield the largest gaps with the operations around them."""
    operations = rows[rows["kind"].isin(KINDS)]
    waits = rows[rows["kind"] == EventKind.WAIT.value]
    ends = (operations["start_ns"] + operations["duration_ns"]).to_numpy(dtype=float)
    starts, names = operations["start_ns"].to_numpy(dtype=float), operations["name"].tolist()
    gaps = rows[rows["kind"].isin(_IDLE)].nlargest(_GAPS, "duration_ns")
    for gap in gaps.itertuples():
        begin, end = float(gap.start_ns), float(gap.start_ns + gap.duration_ns)
        before, after = np.flatnonzero(ends <= begin), np.flatnonzero(starts >= end)
        around = waits[(waits["start_ns"] <= begin) & (waits["start_ns"] + waits["duration_ns"] >= begin)]
        yield Gap(
            begin,
            float(gap.duration_ns),
            str(gap.kind),
            after=names[before[ends[before].argmax()]] if len(before) else "",
            before=names[after[0]] if len(after) else "",
            wait=str(around["name"].iloc[0]) if len(around) else "",
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
    merged: list[Event] = []
    group: list[Event] = []

    def close() -> None:
        if group:
            merged.append(_merge(group))
            group.clear()

    for event in lane.events:
        if event.duration_ns >= shortest:
            close()
            merged.append(event)
        elif group and event.start_ns // shortest == group[0].start_ns // shortest:
            group.append(event)
        else:
            close()
            group.append(event)
    close()
    return replace(lane, events=tuple(merged))


def _merge(events: Sequence[Event]) -> Event:
    """Return one event in place of ``events``, with the key that has most of their time."""
    if len(events) == 1:
        return events[0]
    time: dict[str, float] = {}
    for event in events:
        time[event.key] = time.get(event.key, 0.0) + event.busy_ns
    key = max(time, key=lambda each: time[each])
    name = next(event.name for event in events if event.key == key)
    start = events[0].start_ns
    end = max(event.start_ns + event.duration_ns for event in events)
    return Event(start, end - start, name, key, count=len(events), busy_ns=sum(time.values()))
