"""Who wins a shape, and which marks take a win away: those that could have made it.

* ``other_process`` and ``above_peak`` always do: nobody knows by how much they moved the time.
* ``throttled`` and ``clock_spread`` do unless the SM clocks of the two cases lie closer together than their times.
* ``noisy`` and ``too_few_samples`` do where a timed call has no interval to tell the two apart by.
* ``host_bound`` takes nothing from a comparison of calls. It voids what one would conclude about kernels from it, which
  is why those are compared by their own times. ``synchronises`` and ``unchecked`` say what else to think of a time, not
  that it is wrong.

Where the pipeline sets a tolerance, a case that is ``inaccurate`` or ``unchecked`` takes no part: what it computes is
not known to be what the others do. The win is that of the fastest accurate one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.findings import Point, Win

_CLOCKS, _UNSURE = ("throttled", "clock_spread"), ("noisy", "too_few_samples")


def judge(points: Sequence[Point], doubted: Mapping[str, str]) -> Win | None:
    """The win among ``points`` of one shape; ``doubted`` says why of cases that did not run what they should have."""
    timed = sorted((p for p in points if p.time), key=lambda p: p.time.ns if p.time else 0.0)
    if not timed:
        return None
    fit = [point for point in timed if not point.barred]
    if not fit:
        return Win(timed[0], next(iter(timed[1:]), None), "void", _unfit(timed))
    best, second, barred = fit[0], next(iter(fit[1:]), None), tuple(timed[: timed.index(fit[0])])
    if second is None:
        return Win(best, None, "only", barred=barred)
    if why := _void(best, second, doubted):
        return Win(best, second, "void", why, barred)
    return Win(best, second, "level" if _level(best, second) else "clear", barred=barred)


def _unfit(timed: Sequence[Point]) -> str:
    """Why none of ``timed`` wins."""
    of_best = timed[0].accuracy.mark if timed[0].accuracy else ""
    others = "" if len(timed) == 1 else ", and no other is accurate"
    return f"its result is {of_best}{others}"


def _void(best: Point, second: Point, doubted: Mapping[str, str]) -> str:
    if best.id in doubted:
        return doubted[best.id]
    for point, fatal in ((best, ("other_process", "above_peak")), (second, ("other_process",))):
        if found := [mark for mark in fatal if mark in point.marks]:
            return _marked(point is best, found)
    for point in (best, second):
        if (found := [mark for mark in _CLOCKS if mark in point.marks]) and not _beyond_clocks(best, second):
            return f"{_marked(point is best, found)}, and the lead may be one of clocks"
        if (found := [mark for mark in _UNSURE if mark in point.marks]) and _has_no_interval(point):
            return f"{_marked(point is best, found)}, and has no interval to tell the two apart by"
    return ""


def _marked(is_best: bool, marks: list[str]) -> str:
    return f"{'its measurement' if is_best else 'that of the next'} is marked {' and '.join(marks)}"


def _beyond_clocks(best: Point, second: Point) -> bool:
    """Whether the lead is larger than what the clocks can account for: a time is at most as 1 / clock."""
    spread = any("clock_spread" in point.marks for point in (best, second))
    high = best.values.get("sm_clock_max" if spread else "sm_clock")
    low = second.values.get("sm_clock_min" if spread else "sm_clock")
    if not high or not low or best.time is None or second.time is None:
        return False
    return second.time.ns / best.time.ns > max(high / low, 1.0)


def _interval(point: Point) -> tuple[float, float] | None:
    time = point.time
    return (time.ci_low, time.ci_high) if time and time.ci_low is not None and time.ci_high is not None else None


def _has_no_interval(point: Point) -> bool:
    """Of a timed call; sums of kernels never have one."""
    return "time" in point.values and _interval(point) is None


def _level(best: Point, second: Point) -> bool:
    one, other = _interval(best), _interval(second)
    return one is not None and other is not None and one[1] >= other[0]
