"""What each step costs on one device of one process: rows of the table `steps`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from profpipe.ingest.groupby import Bools, Int64s, Ints, Union
from profpipe.ingest.operations import Timeline
from profpipe.ingest.steps.windows import Segments


@dataclass(frozen=True)
class Accounts:
    """Rows of `steps` without their keys and states, and the row of each operation (-1: outside all steps)."""

    frame: pd.DataFrame
    row: Ints


def account(timeline: Timeline, segments: Segments, waits: Union, origin: int) -> Accounts | None:
    """Return one row for each segment in which the device ran something, None where it ran nothing in any.

    The period of a segment goes from its first operation to the first one of the next segment. The last one ends with
    its own last operation, but lasts at least as long as its range, where it has one: until then the host launched
    nothing more. ``origin`` is subtracted from the start; all times are ns. ``waits`` are those of the process.
    """
    placed = segments.place(timeline.launched)
    inside = np.flatnonzero(placed >= 0)
    if not len(inside):
        return None
    code = placed[inside]
    firsts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    row = np.full(len(placed), -1)
    row[inside] = np.cumsum(np.bincount(firsts, minlength=len(code))) - 1
    last = int(code[-1])
    least = int(segments.end[last] - segments.begin[last]) if segments.has_last_end and segments.is_step[last] else 0
    frame = _periods(timeline, inside, firsts, waits, least)
    kernels = np.flatnonzero((row >= 0) & timeline.is_kernel)
    duration = (timeline.end - timeline.start)[kernels]
    frame["kernel_ns"] = np.bincount(row[kernels], weights=duration, minlength=len(frame))
    frame["kernels"] = np.bincount(row[kernels], minlength=len(frame))
    frame["start_ns"] -= origin
    frame["step"], frame["is_step"] = segments.step[code[firsts]], segments.is_step[code[firsts]]
    return Accounts(frame.assign(rule=segments.rule.value), row)


def _periods(timeline: Timeline, inside: Ints, firsts: Ints, waits: Union, least: int) -> pd.DataFrame:
    """Return period and partition; ``firsts`` are the places in ``inside`` at which a segment begins.

    ``least`` is how long the last period lasts at least.
    """
    begin = np.minimum.reduceat(timeline.start[inside], firsts)
    # A later step cannot begin first; where an operation was launched late but ran early, its step begins with it.
    begin = np.minimum.accumulate(begin[::-1])[::-1]
    bounds = np.append(begin, timeline.end[inside[firsts[-1] :]].max())
    computes = ~timeline.communicates & ~timeline.copies
    compute = Union(timeline.start[computes], timeline.end[computes])
    communicates = timeline.communicates
    anything = Union(timeline.start, timeline.end)
    if communicates.any():
        communication = Union(timeline.start[communicates], timeline.end[communicates]).covered(bounds)
        both = computes | communicates
        not_copy = Union(timeline.start[both], timeline.end[both]).covered(bounds)
    else:
        communication, not_copy = np.zeros(len(begin), dtype=np.int64), compute.covered(bounds)
    wall, busy = np.diff(bounds), anything.covered(bounds)
    late, blocked = _idle(timeline, anything, waits, bounds)
    rest = max(least - int(wall[-1]), 0)
    wall[-1] += rest
    late[-1] += rest
    return pd.DataFrame(
        {
            "start_ns": begin,
            "wall_ns": wall,
            "compute_ns": compute.covered(bounds),
            "communication_ns": not_copy - compute.covered(bounds),
            "copy_ns": busy - not_copy,
            "idle_ns": wall - busy,
            "idle_launch_ns": late,
            "idle_blocked_ns": blocked,
            "idle_other_ns": wall - busy - late - blocked,
            "communication_total_ns": communication,
        }
    )


@dataclass(frozen=True)
class Gaps:
    """The times in which nothing runs on a device, and their causes; in ns, [start, end), ascending.

    ``is_late``: the host launched too late. ``is_blocked``: the host waited for the GPU. Without either the cause is
    another one, or not recorded.
    """

    start: Int64s
    end: Int64s
    is_late: Bools
    is_blocked: Bools


def gaps(timeline: Timeline, anything: Union, waits: Union) -> Gaps:
    """Return the gaps between the operations, of which ``anything`` is the union.

    A launch is late if its call began after the device went idle. If the host then sat in a call that waits for the
    GPU, this call is the cause. A launch in time that ran later waited for something else.
    """
    opened, closed = anything.end[:-1], anything.start[1:]
    following = anything.firsts[1:] if anything.order is None else anything.order[anything.firsts[1:]]
    late = timeline.is_launched[following] & (timeline.launched[following] > opened)
    waited = late & waits.contains(opened)
    return Gaps(opened, closed, late & ~waited, waited)


def _idle(timeline: Timeline, anything: Union, waits: Union, bounds: Int64s) -> tuple[Int64s, Int64s]:
    """Return by period the idle time before late launches, and that which began while the host waited."""
    found = gaps(timeline, anything, waits)
    # A period begins with an operation, so no gap reaches over its ends.
    period = np.searchsorted(bounds, found.start, side="right") - 1
    known = (period >= 0) & (period < len(bounds) - 1)

    def summed(cause: Bools) -> Int64s:
        chosen = cause & known
        weights = (found.end - found.start)[chosen]
        sums = np.bincount(period[chosen], weights=weights, minlength=len(bounds) - 1)
        return np.rint(sums).astype(np.int64)

    return summed(found.is_late), summed(found.is_blocked)
