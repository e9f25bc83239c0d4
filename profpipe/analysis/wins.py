"""Who wins a shape, and which marks take a win away: those that could have made it.

* ``other_process``, ``waited`` and ``above_peak`` always do: nobody knows by how much they moved the time.
* What is level after that stays level: no win is left that one of the others could have made.
* ``throttled`` and ``clock_spread`` do unless the SM clocks of the two cases lie closer together than their times;
  and so do clocks that lie further apart without a mark. Every case behind the best is asked, as for what is level.
* ``noisy`` and ``too_few_samples`` do where a timed call has no interval to tell the two apart by.
* ``host_bound`` takes nothing from a comparison of calls. It voids what one would conclude about kernels from it, which
  is why those are compared by their own times. ``synchronises`` and ``unchecked`` say what else to think of a time, not
  that it is wrong.

A case that is ``inaccurate`` takes no part, nor one that is ``unchecked`` where the pipeline sets a tolerance: what it
computes is not known to be what the others do. The win is that of the fastest accurate one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from profpipe.findings import Point, Win
from profpipe.tolerance import UNCHECKED

#: Of the best and of the next alike: the time is not its own.
_OTHERS = ("other_process", "waited")
_CLOCKS, _UNSURE = ("throttled", "clock_spread"), ("noisy", "too_few_samples")

#: SM clocks this far apart are told without a mark too.
_UNLIKE_CLOCKS = 1.02


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
    if why := _void(best, second, doubted) or _may_be_first(best, fit[2:]):
        return Win(best, second, "void", why, barred)
    if beside := tuple(_beside(best, fit[1:], doubted)):
        return Win(best, second, "level", barred=barred, level=(best, *beside))
    why = _in_doubt(best, second) or _of_others(best, fit[2:])
    return Win(best, second, "void" if why else "clear", why, barred)


def _unfit(timed: Sequence[Point]) -> str:
    """Why none of ``timed`` wins."""
    of_best, *_ = marks = [point.accuracy.mark if point.accuracy else "" for point in timed]
    if set(marks) == {UNCHECKED}:
        return "no result was compared with the reference"
    others = "" if len(timed) == 1 else ", and no other is accurate"
    return f"its result is {of_best}{others}"


def _void(best: Point, second: Point, doubted: Mapping[str, str]) -> str:
    """Why nothing can be said of the two times, not even that they are level."""
    for point in (best, second):
        if point.id in doubted:
            why = doubted[point.id]
            return why if point is best else re.sub(r"\bit\b", "the next", why, count=1)
    for point, fatal in ((best, (*_OTHERS, "above_peak")), (second, _OTHERS)):
        if found := [mark for mark in fatal if mark in point.marks]:
            return _marked(point is best, found)
    return ""


def _may_be_first(best: Point, others: Iterable[Point]) -> str:
    """A case whose samples hold waiting takes less than they say: no more than an iteration of the loop, flush and all.

    How much less is not known; where the loop takes twice what the best does, it is not the flush alone.
    """
    most = 2 * best.time.ns if best.time else 0.0
    waited = [p.variant for p in others if "waited" in p.marks and p.values.get("loop_wall", 0.0) < most]
    return f"the time of {' and '.join(waited)} is marked waited, and may be the lower one" if waited else ""


def _in_doubt(best: Point, second: Point) -> str:
    """Why the lead of the best may be none."""
    if why := _by_clocks(best, second, "the next"):
        return why
    for point in (best, second):
        if (found := [mark for mark in _UNSURE if mark in point.marks]) and _has_no_interval(point):
            return f"{_marked(point is best, found)}, and has no interval to tell the two apart by"
    return ""


def _by_clocks(best: Point, other: Point, called: str, over: str = "") -> str:
    """Why the lead may be one of clocks. A case may be over before NVML is read, and so have no mark."""
    if _beyond_clocks(best, other):
        return ""
    for point in (best, other):
        if found := [mark for mark in _CLOCKS if mark in point.marks]:
            return f"{_marked(point is best, found, called)}, and the lead{over} may be one of clocks"
    high, low = _clocks(best, other) or (0.0, 0.0)
    if high <= _UNLIKE_CLOCKS * low:
        return ""
    ran = f"the GPU ran at {high / 1e6:.0f} MHz for it and at {low / 1e6:.0f} for {called}"
    return f"{ran}, which may be all of the lead{over}"


def _of_others(best: Point, others: Iterable[Point]) -> str:
    """Why one behind the next may be the fastest at like clocks, of those whose clocks are known."""
    known = (other for other in others if _clocks(best, other))
    found = (_by_clocks(best, other, other.variant, f" over {other.variant}") for other in known)
    return next(filter(None, found), "")


def _marked(is_best: bool, marks: list[str], called: str = "the next") -> str:
    return f"{'its measurement' if is_best else f'that of {called}'} is marked {' and '.join(marks)}"


def _beyond_clocks(best: Point, second: Point) -> bool:
    """Whether the lead is larger than what the clocks can account for: a time is at most as 1 / clock."""
    clocks = _clocks(best, second)
    if clocks is None or best.time is None or second.time is None:
        return False
    return second.time.ns > best.time.ns * max(clocks[0] / clocks[1], 1.0)


def _clocks(best: Point, other: Point) -> tuple[float, float] | None:
    """The highest of the best and the lowest of the other, in Hz, where clocks moved; their medians otherwise."""
    spread = any("clock_spread" in point.marks for point in (best, other))
    high = best.values.get("sm_clock_max" if spread else "sm_clock")
    low = other.values.get("sm_clock_min" if spread else "sm_clock")
    return (high, low) if high and low else None


def _interval(point: Point) -> tuple[float, float] | None:
    time = point.time
    return (time.ci_low, time.ci_high) if time and time.ci_low is not None and time.ci_high is not None else None


def _has_no_interval(point: Point) -> bool:
    """Of a timed call; sums of kernels never have one."""
    return "time" in point.values and _interval(point) is None


def _beside(best: Point, others: Iterable[Point], doubted: Mapping[str, str]) -> Iterator[Point]:
    """Those that are level with the best, by times of their own."""
    own = (point for point in others if point.id not in doubted and not set(_OTHERS) & set(point.marks))
    return (point for point in own if _level(best, point))


def _level(best: Point, second: Point) -> bool:
    one, other = _interval(best), _interval(second)
    return one is not None and other is not None and one[1] >= other[0]
