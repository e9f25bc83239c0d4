"""What a step costs on one device of one process, and which steps count: rows of the table `steps`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.groupby import Int64s, Ints, Union, count_up_to
from profpipe.ingest.operations import Timeline
from profpipe.ingest.steps.windows import Segments
from profpipe.results.schema import LEAST_REST, StepState

#: Steps further from the median than so many median absolute deviations are outliers.
DEVIATIONS: Final = 3
#: Makes the median absolute deviation of normal times their standard deviation (scipy.stats.median_abs_deviation).
_NORMAL: Final = 1.4826
#: The least deviation, relative to the median: equal times would make any other time an outlier.
_LEAST_DEVIATION: Final = 0.01
#: So many outliers are exceptions, or this share of the steps. More that differ by half of the median are a second kind
#: of step, such as every fourth one that waits for one of four workers of a data loader: then only those are left out
#: that take ten times the median, such as an evaluation.
_MOST_OUTLIERS: Final = 2
_LARGEST_SHARE: Final = 0.1
_OTHER_KIND: Final = 0.5
_FAR: Final = 9.0
#: The deviation of fewer steps says little: an outlier is one that differs by half of the median.
_FEWEST_OF_DEVIATION: Final = 6
#: A warm-up of a larger share of the steps has to stand out from the spread of all of them.
_LONG_WARMUP: Final = 1 / 3

#: An idle H200 begins a kernel 1 to 3 us after the end of its launch call, an MI300 14 to 19 us after it, in ns. What
#: begins later waited for something else.
_LATENCY: Final = 20_000

#: Share of the time by which the long steps are longer, where one begins an iteration.
_LEAST_LONGER: Final = 0.02

#: Long steps are regular from so many on, where these shares have one distance, and an excess this near to the median.
_LEAST_REGULAR: Final = 3
_REGULAR: Final = 0.9
_EQUAL: Final = 0.5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Accounts:
    """Rows of `steps` of one device without their keys, and the rows of the operations of ``line``; -1 outside all.

    ``segments`` are those of the process.
    """

    line: Timeline
    frame: pd.DataFrame
    row: Ints
    segments: Segments


def account(timeline: Timeline, segments: Segments, waits: Union, origin: int) -> Accounts | None:
    """Return one row for a segment in which the device ran something, None where it ran nothing in any.

    The period of a segment goes from its first operation to the first one of the next segment. The last one ends with
    its last operation, but lasts at least as long as its range, where it has one: until then the host launched
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
    is_step = segments.is_step[code[firsts]]
    frame["step"], frame["rule"], frame["state"] = (
        segments.step[code[firsts]],
        segments.rule.value,
        StepState.OTHER.value,
    )
    frame["kind"] = "" if segments.kind is None else segments.kind[code[firsts]]
    frame.loc[is_step, "state"] = states(frame["wall_ns"].to_numpy(dtype=np.float64)[is_step])
    if is_step[-1] and not segments.has_last_end:
        frame.loc[len(frame) - 1, "state"] = StepState.LAST.value
    return Accounts(timeline, frame, row, segments)


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


def gaps(timeline: Timeline, anything: Union, waits: Union) -> tuple[Int64s, Int64s, Ints, Ints]:
    """Return start, end, cause and the next operation of each time in which nothing runs; ``anything`` is what runs.

    A gap that a late launch ends is divided ``_LATENCY`` after the call, when an idle GPU has begun what was launched.
    The cause before it is 1, or 2 where the host sat in a call that waits for the GPU as the gap began. After it, and
    where no call is late, the cause is 0: another one, or one that is not recorded. What was launched in time and ran
    later waited for something else.
    """
    opened, closed = anything.end[:-1], anything.start[1:]
    following = anything.firsts[1:] if anything.order is None else anything.order[anything.firsts[1:]]
    is_launched, launched = timeline.is_launched[following], timeline.launched[following]
    called = np.where(is_launched, launched, opened).clip(opened, closed)
    # The call of a graph may take long. That of a copy may wait for the GPU.
    ends, _ = timeline.operations.read_calls(timeline.rows[following])
    returned = np.where(timeline.copies[following], launched, ends)
    late = is_launched & ((called > opened) | (returned > opened) & (returned <= closed))
    begun = np.where(late, (returned.clip(called, closed) + _LATENCY).clip(max=closed), called)
    waited = waits.contains(opened)
    start, end = np.concatenate([opened[late], begun]), np.concatenate([begun[late], closed])
    cause = np.concatenate([1 + waited[late], np.zeros(len(begun), dtype=np.int64)])
    order = np.argsort(start, kind="stable")
    return start[order], end[order], cause[order], np.concatenate([following[late], following])[order]


def _idle(timeline: Timeline, anything: Union, waits: Union, bounds: Int64s) -> list[Int64s]:
    """Return by period the idle time before late launches, and that which began while the host waited."""
    start, end, cause, _ = gaps(timeline, anything, waits)
    # A period begins with an operation, so no gap reaches over its ends.
    period = count_up_to(bounds, start) - 1
    periods = len(bounds) - 1
    inside = (period >= 0) & (period < periods)
    weights = (end - start)[inside]
    sums = np.bincount(period[inside] + periods * cause[inside], weights=weights, minlength=3 * periods)
    return list(np.rint(sums).astype(np.int64).reshape(3, periods)[1:])


# --- which steps count -----------------------------------------------------------------------------------------------


def states(wall_ns: Floats, least_warmup: int = 0) -> npt.NDArray[Any]:
    """Return the states of the steps, in their order.

    The warm-up lasts until the time settles, and at least one step where there are several.
    """
    state = np.full(len(wall_ns), StepState.STEADY.value, dtype=object)
    warm = max(count_warmup(wall_ns), least_warmup)
    state[:warm] = StepState.WARMUP.value
    rest = wall_ns[warm:]
    if len(rest):
        median, deviation = spread(rest)
        distance = np.abs(rest - median)
        is_outlier = distance > DEVIATIONS * deviation
        for limit in (_OTHER_KIND, _FAR):
            is_other_kind = is_outlier & (distance > limit * median)
            if is_other_kind.sum() <= max(_MOST_OUTLIERS, _LARGEST_SHARE * len(rest)):
                is_all = limit == _OTHER_KIND and len(rest) >= _FEWEST_OF_DEVIATION
                state[warm:][is_outlier if is_all else is_other_kind] = StepState.OUTLIER.value
                break
    return state


def unify_states(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return the states of rows of `steps` of one case: a step has the same state on all ranks and devices.

    The mean over the ranks decides, since it does not depend on which rank waits for which: of two ranks that are late
    in turn, one has steps of 30 and 80 ms and the other has 80 and 30 ms. The warm-up is at least as long as the
    shortest one that the rows have, which may be the user's. A step that is an outlier on all ranks stays one. Steps
    that some ranks lack are ``unmatched``. The rows of one device stay as they are.
    """
    state: pd.Series[Any] = rows["state"]
    if len(rows[["rank", "device"]].drop_duplicates()) < 2:
        return state
    walls = walls_by_rank(rows)
    # The end of the last step is unknown on all ranks where it is on one.
    last = walls.dropna().index.intersection(rows.loc[state == StepState.LAST.value, "step"])
    common = walls.dropna().drop(index=last)
    warm = rows[(state == StepState.WARMUP.value) & rows["step"].isin(common.index)]
    least = warm.groupby("rank")["step"].nunique().reindex(walls.columns, fill_value=0).min()
    agreed = pd.Series(StepState.UNMATCHED.value, index=walls.index)
    agreed[last] = StepState.LAST.value
    agreed[common.index] = states(common.mean(axis=1).to_numpy(), int(least))
    are_outliers = (state == StepState.OUTLIER.value).groupby(rows["step"]).all()
    agreed[(agreed == StepState.STEADY.value) & are_outliers.reindex(agreed.index, fill_value=False)] = (
        StepState.OUTLIER.value
    )
    return state.where(state == StepState.OTHER.value, rows["step"].map(agreed))


def walls_by_rank(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the times in ns of the steps of a case: a row for a number, a column for a rank."""
    walls = (_walls(rank_rows).rename(rank) for rank, rank_rows in rows.groupby("rank", sort=True))
    return pd.concat(walls, axis=1).sort_index().astype(np.float64)


def _walls(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return the times of the steps of one rank by their numbers.

    The step of a process with several devices begins with the first operation on any of them.
    """
    is_other = rows["state"] == StepState.OTHER.value
    if rows["device"].nunique(dropna=False) < 2:
        return rows[~is_other].groupby("step")["wall_ns"].mean()
    ends = rows.assign(is_other=is_other, end_ns=rows["start_ns"] + rows["wall_ns"])
    whole = ends.groupby(["step", "is_other"]).agg({"start_ns": "min", "end_ns": "max"}).sort_values("start_ns")
    following = whole["start_ns"].shift(-1).fillna(whole["end_ns"])
    return (following - whole["start_ns"]).xs(False, level="is_other")


def count_warmup(wall_ns: Floats) -> int:
    """Return the change point: before which step the time has settled, at least 1 where there are several steps.

    A time is settled if it is no outlier beside the second half. From the first such step on whose two successors at
    least one is settled too, the program counts as warm. A second half that is quieter by chance makes no warm-up of
    more than a third of the steps: then times may vary as much as those of all steps but the first.
    """
    half = len(wall_ns) // 2
    if not half:
        return 0
    median, deviation = spread(wall_ns[half:])
    warm = _count_unsettled(wall_ns, median, deviation)
    if warm > _LONG_WARMUP * len(wall_ns):
        warm = _count_unsettled(wall_ns, median, max(deviation, spread(wall_ns[1:])[1]))
    return warm


def _count_unsettled(wall_ns: Floats, median: float, deviation: float) -> int:
    half = len(wall_ns) // 2
    settled = np.abs(wall_ns - median) <= DEVIATIONS * deviation
    after = np.append(settled[1:], [True, True])
    stays = settled & (after[: len(settled)] | after[1 : len(settled) + 1])
    return 1 + int(np.argmax(np.append(stays[1:half], True)))


def spread(wall_ns: Floats) -> tuple[float, float]:
    """Return the median, and the median absolute deviation from it, scaled for normal times."""
    median = float(np.median(wall_ns))
    return median, max(_NORMAL * float(np.median(np.abs(wall_ns - median))), _LEAST_DEVIATION * median)


def find_iteration(wall_ns: Floats) -> tuple[int, int] | None:
    """Return (the first step of an iteration, steps of an iteration), None where a step is the iteration.

    An iteration begins with an outlier, such as a step with a rollout or an evaluation before it. The outliers recur at
    a stride, and steady steps alone would leave out a tenth of the time. They are longer by a fiftieth of all time: a
    loop that prints its loss in each tenth step has steps.
    """
    outlier_ns = wall_ns[states(wall_ns) == StepState.OUTLIER.value]
    longer_ns = float((outlier_ns - np.median(wall_ns)).sum()) if len(outlier_ns) else 0.0
    is_far = outlier_ns.sum() > LEAST_REST * wall_ns.sum() and longer_ns > _LEAST_LONGER * wall_ns.sum()
    return regular_stride(wall_ns, are_equal=False) if is_far else None


def regular_stride(wall_ns: Floats, are_equal: bool = True) -> tuple[int, int] | None:
    """Return (the first long step, how many steps lie from one to the next), None where long steps are not regular.

    Long steps are outliers, at one distance, three of them at least; with ``are_equal`` they are longer
    by nearly the same.
    """
    if len(wall_ns) < 2 * _LEAST_REGULAR:
        return None
    median, deviation = spread(wall_ns)
    excess = np.sort((wall_ns - median)[1:])
    # Half of the time of all excesses is in those that are at least as long as this one. The first step compiles.
    usual = excess[np.searchsorted(np.cumsum(np.maximum(excess, 0)), np.maximum(excess, 0).sum() / 2)]
    long = np.flatnonzero(wall_ns - median > max(DEVIATIONS * deviation, _EQUAL * usual))
    long = long[long > 0] if len(long) > _LEAST_REGULAR else long
    distance = np.diff(long)
    if len(long) < _LEAST_REGULAR or distance.min() < 2:
        return None
    length = int(np.median(distance))
    excess = wall_ns[long] - median
    is_regular = (distance == length).mean() >= _REGULAR and long[0] < length and len(wall_ns) - long[-1] <= length
    is_equal = (np.abs(excess - np.median(excess)) <= _EQUAL * np.median(excess)).mean() >= _REGULAR
    return (int(long[0]), length) if is_regular and (is_equal or not are_equal) else None
