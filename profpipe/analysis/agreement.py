"""Do the profilers agree? The same call as each of them timed it, and why they differ where that is known.

A reason begins with its kind and a colon, by which reports gather them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profpipe.analysis import by_rank
from profpipe.analysis.limits import QUEUE, loop_walls
from profpipe.analysis.recorded import Recorded
from profpipe.analysis.shares import PREFERENCE
from profpipe.analysis.tallies import Key, Tally
from profpipe.findings import Agreement, Figure, Point, Split
from profpipe.kernel_findings import Counters
from profpipe.rank_findings import OfRank

#: Below this the figures are called the same: events resolve 0.5 us, and clocks move by a percent or two.
CLOSE = 0.03

#: What lies between two kernels of one stream when the CPU is ahead of the GPU, plus what the events themselves cost.
_GAP_NS, _EVENTS_NS = 3_000.0, 6_000.0

#: What torch.profiler takes at most for an operator on a CPU: 6 us were seen, on a busy one.
_OPERATOR_NS = 10_000.0

#: What the host takes to issue a call differs by so much from time to time.
_ISSUE_VARIES = 0.25

#: So much of the time for which a GPU waits for another under a profiler the call as timed may wait as well.
_WAIT_VARIES = 0.25

#: What reading a whole L2 again takes at most: 60 MB at 3 TB/s. More than that for each launch is not the cold cache.
_COLD_NS = 20_000.0

#: A kernel's mean differs that much from capture to capture: of 186 below 50 us in two runs on an H200, nsys and torch
#: differ by less in 95 %. The launches within one capture differ by as much again, which excuses no mean of 30 of them.
_JITTER_NS = 300.0

#: Clocks at which ncu ran a kernel, newest spelling first.
_NCU_CLOCKS = ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")

#: What is said of a call in which the GPU waits for the host.
_PACE, _WAITS = "the host's pace: the time of the call is the host's", "which waits for the GPU inside the call"

#: What two sums of the same times differ by at most, as a share.
_ROUNDED = 1e-3

_COMMUNICATES = "communication_busy"

#: NVML tells clocks in such steps.
_CLOCK_STEP_HZ = 15e6
_RECORDED = ("sm_clock_min", "sm_clock", "sm_clock_max")


@dataclass(frozen=True)
class Recordings:
    """The SM clock during a case, as the GPU counted it or NVML told it: the lowest, the median, the highest, in Hz."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Setting:
    """What is known of how the profilers ran.

    The arguments of ncu; the highest SM clock of the GPU; by kernel the clock that ncu counted in its longest launch,
    where that has one and the reference's time; under which profilers the harness empties the caches before a call;
    what is recorded of the SM clock of a case under a profiler, and the ns of an iteration of its loop, by both; and
    the processes of the cases of several.
    """

    ncu_argv: tuple[str, ...] = ()
    highest_hz: float | None = None
    longest: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    flushed: frozenset[str] = frozenset()
    clocks: Mapping[Key, Recordings] = field(default_factory=dict)
    ranks: Mapping[str, Sequence[OfRank]] = field(default_factory=dict)
    walls: Mapping[Key, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        run: Mapping[str, Any],
        workload: str,
        counters: Mapping[str, Iterable[Counters]],
        recorded: Recorded,
        highest_hz: float | None,
    ) -> Setting:
        jobs = [job for job in run.get("jobs") or () if job.get("workload") == workload]
        of_ncu = [command for job in jobs if job.get("profiler") == "ncu" for command in job.get("argv") or ()]
        declared = ((run.get("pipeline") or {}).get("workloads") or {}).get(workload) or {}
        ranks: dict[str, list[OfRank]] = {}
        for one in by_rank.found(recorded, counters):
            ranks.setdefault(one.case, []).append(one)
        seen = {
            key[:2]: Recordings(*(own[name].value for name in _RECORDED))
            for key, own in recorded.numbers.items()
            if not key[2] and all(name in own and own[name].value > 0 for name in _RECORDED)
        }
        return cls(
            ncu_argv=tuple(str(word) for command in of_ncu for word in command),
            highest_hz=highest_hz,
            longest=_longest(counters, recorded.tallies, seen, highest_hz),
            flushed=frozenset(() if declared.get("command") else (str(job.get("profiler")) for job in jobs)),
            clocks=seen,
            ranks=ranks,
            walls=loop_walls(recorded.numbers),
        )

    @property
    def ncu_locks_clocks(self) -> bool:
        return bool(self.ncu_argv) and "none" not in _values(self.ncu_argv, "--clock-control")

    def ncu_reasons(self, extra_ns: float, launches: float, base: Split) -> list[str]:
        """Why ncu's times are longer by its own settings (Nsight Compute CLI: both controls default to on).

        A call's first kernel finds cold caches under the reference as well, where the harness empties them.
        """
        reasons = []
        colder = min(launches, base.total.calls - 1) if base.profiler in self.flushed else launches
        if extra_ns <= colder * _COLD_NS and "none" not in _values(self.ncu_argv, "--cache-control"):
            reasons.append("cold cache: ncu empties the caches before each replay")
        if self.ncu_locks_clocks:
            reasons.append("base clock: ncu locks it (`--clock-control`)")
        return reasons


def _longest(
    counters: Mapping[str, Iterable[Counters]],
    tallies: Mapping[Key, Tally],
    clocks: Mapping[Key, Recordings],
    highest_hz: float | None,
) -> dict[str, tuple[float, float]]:
    """By kernel ncu's mean and clock, in ns and Hz, in the longest of its cases in which the reference agrees.

    It agrees as well where it would at the GPU's highest clock, which the GPU keeps under ncu and not under load.
    """
    found: dict[str, tuple[float, float]] = {}
    for case, row in ((case, row) for case, own in counters.items() for row in own):
        reference = next((name for name in PREFERENCE if name != "ncu" and (case, name) in tallies), "")
        clock, mean = _counted(row), _mean(row.kernel, tallies.get((case, reference), Tally()))
        if clock and mean and row.mean_ns:
            seen = clocks.get((case, reference))
            held = min(1.0, seen.median / highest_hz) if seen and highest_hz else 1.0
            if any(abs(row.mean_ns / each - 1) <= CLOSE for each in (mean, held * mean)):
                found[row.kernel] = max(found.get(row.kernel, (0.0, 0.0)), (row.mean_ns, clock))
    return found


def _mean(kernel: str, own: Tally) -> float | None:
    """Of its launches."""
    calls, ns = own.by_name.get(kernel, (0.0, 0.0))
    return ns / calls if calls else None


def _counted(row: Counters) -> float | None:
    return next((row.values[name][0] for name in _NCU_CLOCKS if name in row.values), None)


def _values(argv: Sequence[str], flag: str) -> list[str]:
    after = [value for name, value in itertools.pairwise(argv) if name == flag]
    return after + [argument.partition("=")[2] for argument in argv if argument.startswith(f"{flag}=")]


def agree(
    point: Point,
    splits: Mapping[str, Split],
    tallies: Mapping[Key, Tally],
    setting: Setting,
    counters: Iterable[Counters] = (),
) -> Agreement | None:
    """The figures for one case; ``splits`` by profiler, ``counters`` of ncu. None for fewer than two.

    Shares, speed-ups and rates never mix these figures; this comparison is the one place where they meet.
    """
    comparable = {name: s for name, s in splits.items() if s.iterations is not None}
    reference = next((name for name in PREFERENCE if name in comparable), None)
    if reference is None:
        return None
    base, own = comparable[reference], tallies[point.id, reference]
    clocks = _Clocks.of(point, reference, base, own, setting)
    figures = [Figure(reference, base.total.ns)]
    if (timed := point.values.get("time")) is not None:
        figures.append(_events(point, timed, base, own, setting, clocks))
    for name in PREFERENCE:
        if name == "ncu" and name in comparable and name != reference:
            counted = {row.kernel: clock for row in counters if (clock := _counted(row))}
            figure = _ncu(tallies[point.id, name], comparable[name], own, base, setting, point, clocks, counted)
            figures += [figure] if figure else []
        elif name in comparable and name != reference:
            figures.append(_kernels(name, comparable[name].total.ns, point, base, setting, clocks))
    return Agreement(point, reference, tuple(figures)) if len(figures) > 1 else None


def _compared(profiler: str, ns: float, base: Split, because: str = "", part: str = "") -> Figure:
    """``part`` is what explains some of the difference, where nothing explains all of it."""
    difference = ns / base.total.ns - 1
    apart = abs(difference) > CLOSE
    return Figure(profiler, ns, difference, (because or part) if apart else "", flagged=apart and not because)


def _kernels(profiler: str, ns: float, point: Point, base: Split, setting: Setting, clocks: _Clocks | None) -> Figure:
    within = base.kind == "kernel" and abs(ns - base.total.ns) <= base.total.calls * _JITTER_NS
    ratio = ns / base.total.ns
    other = _recorded(profiler, ratio, point, base.profiler, setting) or (
        clocks.explain(profiler, ratio) if clocks else ""
    )
    return _compared(profiler, ns, base, "short kernels: less than 0.3 us a launch" if within else other)


# --- clocks ----------------------------------------------------------------------------------------------------------


def _recorded(profiler: str, ratio: float, point: Point, reference: str, setting: Setting) -> str:
    """The clocks that were recorded as the reason why ``profiler`` has ``ratio`` times the reference's time.

    Where arithmetic limits a call it takes as many cycles at each clock. So the clocks are the reason where they differ
    by at least half of what the times do, and times clock differ by no more than needs a reason.
    """
    own, base = (setting.clocks.get((point.id, name)) for name in (profiler, reference))
    if abs(ratio - 1) <= CLOSE or point.limit.binds != "compute" or own is None or base is None:
        return ""
    faster, cycles = base.median / own.median, ratio * own.median / base.median
    if abs(cycles - 1) > CLOSE or (faster - 1) / (ratio - 1) < 0.5:
        return ""
    where = "while timed" if profiler == "plain" else f"under {profiler}"
    recorded = f"{own.median / 1e6:.0f} MHz {where}, {base.median / 1e6:.0f} MHz under {reference}"
    return f"clock: recorded {recorded}; by time x clock {100 * (cycles - 1):+.1f} %"


def _held_down(ratio: float, point: Point, reference: str, setting: Setting) -> str:
    """The reference's clock as the reason why ncu, under which the GPU rests between kernels, is faster."""
    base, highest = setting.clocks.get((point.id, reference)), setting.highest_hz
    if 1 - ratio <= CLOSE or point.limit.binds != "compute" or base is None or highest is None:
        return ""
    if ratio < base.median / highest * (1 - CLOSE) or (1 - base.median / highest) / (1 - ratio) < 0.5:
        return ""
    seen = f"recorded {base.median / 1e6:.0f} MHz under {reference}, at most {highest / 1e6:.0f}"
    # The clock that ncu counts is another, so that of its kernels is nowhere measured.
    return f"clock: {seen}; under ncu the GPU rests between kernels, and its clock is inferred, not measured"


@dataclass(frozen=True)
class _Clocks:
    """The SM clocks of timed calls that the GPU held back, all in Hz, and what they tell of the kernels' own.

    A call that arithmetic limits takes as many cycles at each clock, so kernels of ``ns`` ran at the clock of the timed
    call times its time over ``ns``: ``reference`` is that of the profiler ``name``, as a range, for what lies around
    the kernels in a call is known by its limit only. ``low`` is the lowest that the GPU was seen at in the case, and
    ``highest`` what it can reach. ``seen`` is what was recorded under a profiler: what is worked out must lie between
    its lowest and its highest. Runs of before 0.2 have it of timed calls only.

    ncu counts a clock of its own, not the one NVML tells: on an H200 it counts 1.79 GHz in attention kernels of 1 ms
    and more where NVML says 1.98, and their times are the same within some 1 %. So the two are never compared.
    """

    name: str
    marks: str
    timed: float
    low: float
    high: float
    highest: float
    reference: tuple[float, float]
    seen: Mapping[str, Recordings]

    @classmethod
    def of(cls, point: Point, name: str, base: Split, own: Tally, setting: Setting) -> _Clocks | None:
        """None where no clock held the call back, or its time says too little of its kernels'.

        That is where the kernels ran on several streams, where they are so short that what lies around them is more
        than the difference that needs a reason, and where anything but arithmetic limits them.
        """
        marks = [mark for mark in ("throttled", "clock_spread") if mark in point.marks]
        numbers = [point.values.get(name) for name in ("time", "sm_clock", "sm_clock_min", "sm_clock_max")]
        if not marks or not all(numbers) or point.limit.binds != "compute" or len(own.streams) > 1:
            return None
        ns, timed, low, high = (float(number or 0.0) for number in numbers)
        around = base.total.calls * _GAP_NS + _EVENTS_NS + base.copies.ns
        if around > CLOSE * ns:
            return None
        reference = timed * (ns - around) / base.total.ns, timed * ns / base.total.ns
        seen = {profiler: clocks for (case, profiler), clocks in setting.clocks.items() if case == point.id}
        return cls(name, " and ".join(marks), timed, low, high, setting.highest_hz or high, reference, seen)

    def explain(self, profiler: str, ratio: float) -> str:
        """The clocks as the reason why ``profiler`` has ``ratio`` times the reference's time, if the GPU has them."""
        of_kernels = {self.name: self.reference}
        if profiler != "plain":
            of_kernels[profiler] = self.reference[0] / ratio, self.reference[1] / ratio
        if not all(self._possible(name, clock) for name, clock in of_kernels.items()):
            return ""
        worked_out = " and ".join(self._told(name, clock) for name, clock in of_kernels.items())
        spread = f"{self.low / 1e6:.0f} to {self.high / 1e6:.0f}"
        held = f"{self.timed / 1e6:.0f} MHz ({spread}) while timed, {self.marks}"
        return f"clock: {held}; by time x clock {worked_out}; at most {self.highest / 1e6:.0f}"

    def _possible(self, name: str, clock: tuple[float, float]) -> bool:
        own = self.seen.get(name)
        low, high = (own.low, own.high) if own else (self.low, self.highest)
        return clock[1] >= low - _CLOCK_STEP_HZ and clock[0] <= high + _CLOCK_STEP_HZ

    def _told(self, name: str, clock: tuple[float, float]) -> str:
        own = self.seen.get(name)
        seen = f"recorded {self._mhz((own.low, own.high))}" if own else "not recorded"
        return f"{self._mhz(clock)} under {name}, {seen}"

    def _mhz(self, clock: tuple[float, float]) -> str:
        least, most = (f"{min(hz, self.highest) / 1e6:.0f}" for hz in clock)
        return f"{least} MHz" if least == most else f"{least} to {most} MHz"


# --- timed calls -----------------------------------------------------------------------------------------------------


def _events(point: Point, ns: float, base: Split, own: Tally, setting: Setting, clocks: _Clocks | None) -> Figure:
    ranks, part = setting.ranks.get(point.id, ()), ""
    if ns < base.total.ns:
        because, part = _why_shorter(point, ns, base, own, setting)
    else:
        because = _why_longer(point, ns, base, ranks)
    because = because or _recorded("plain", ns / base.total.ns, point, base.profiler, setting)
    because = because or (clocks.explain("plain", ns / base.total.ns) if clocks else "")
    spread = _spread(point, base)
    return _compared("plain", ns, base, (spread or because) if base.kind == "cpu_op" else (because or spread), part)


def _spread(point: Point, base: Split) -> str:
    """Where the call's own time is known so poorly that the difference need not be one.

    The interval is of the median among these samples. Where the clock moved while they were taken it may have been
    another for as many calls under the profiler, and then so is the median: what some of the samples took is possible.
    """
    time = point.time
    if time is None or "time" not in point.values:
        return ""
    low, high = time.p10 or math.inf, time.p90 or 0.0
    if "clock_spread" in point.marks and low <= base.total.ns <= high:
        between = f"{low / 1e6:.4g} to {high / 1e6:.4g} ms"
        return f"spread: the clock moved, and it lies within p10 to p90 of the call's samples, {between}"
    if time.ci_low is None or time.ci_high is None:
        few = "too_few_samples" in point.marks
        return "spread: the call's time has too few samples for an interval" if few else ""
    inside = time.ci_low <= base.total.ns <= time.ci_high
    return "spread: it lies within the 95 % interval of the call's time" if inside else ""


def _why_shorter(point: Point, ns: float, base: Split, own: Tally, setting: Setting) -> tuple[str, str]:
    """(Why the sum of the kernels is longer than the call, or what makes a part of that if it is no reason for all).

    Kernels that run at once are once in the time in which some kernel runs, and each in the sum. A GPU that waits for
    another runs a kernel of communication, longer in some captures than in others. What is left without these must be
    the call's time, as kernels in a row would: a wait that the call has in it as well is no reason.
    """
    if base.kind == "cpu_op":
        return _operators(point, ns, base, setting), ""
    at_once = base.total.ns - base.busy_ns if len(own.streams) > 1 and base.busy_ns else 0.0
    at_once = at_once if at_once > _ROUNDED * base.total.ns else 0.0
    overlap = f"overlap: {at_once / 1e3:.1f} us of kernels on {len(own.streams)} streams ran beside others"
    if at_once and _is_left(ns, at_once, base):
        return overlap, ""
    waited, waiting = _waiting(setting.ranks.get(point.id, ()), base)
    if waited and _is_left(ns, at_once + waited, base, _WAIT_VARIES):
        reasons = sorted([(at_once, overlap), (waited, waiting)], reverse=True)
        return "; ".join(reason for share, reason in reasons if share), ""
    if not at_once:
        return "", ""
    clock = _recorded("plain", ns / (base.total.ns - at_once), point, base.profiler, setting)
    return (f"{overlap}; {clock}", "") if clock else ("", _part(at_once, base.total.ns - ns))


def _part(at_once: float, difference: float) -> str:
    """What overlap makes of the difference, both in ns; where it is more than all of it, a part it is not."""
    if at_once > difference:
        return f"overlap alone would make the call {(at_once - difference) / 1e3:.1f} us shorter than it is"
    return f"overlap makes {at_once / 1e3:.1f} of {difference / 1e3:.1f} us"


def _operators(point: Point, ns: float, base: Split, setting: Setting) -> str:
    """Why CPU operators take longer under their profiler: by what it costs at each, or by what it was seen to cost."""
    longer, walls = base.total.ns - ns, setting.walls
    if longer <= base.total.calls * _OPERATOR_NS:
        return "overhead: the profiler's own cost for each operator"
    alone, under = (walls.get((point.id, profiler), 0.0) for profiler in ("plain", base.profiler))
    if not alone or under - alone < longer / 2:
        return ""
    return f"overhead: the loop took {under / 1e6:.3g} ms an iteration under {base.profiler}, {alone / 1e6:.3g} without"


def _is_left(ns: float, less: float, base: Split, varies: float = 0.0) -> bool:
    """Whether a call of ``ns`` is what is left of the sum of its kernels, and ``less`` at least half of the difference.

    As everywhere it may be 3 % off, or longer by launch gaps; where ``less`` varies, by that share of the difference.
    """
    difference, gaps = base.total.ns - ns, base.total.calls * _GAP_NS + _EVENTS_NS
    longer = max(CLOSE * ns, gaps + base.copies.ns, varies * difference)
    return -CLOSE * ns <= less - difference <= longer and 2 * less >= difference


def _waiting(ranks: Sequence[OfRank], base: Split) -> tuple[float, str]:
    """(What waiting for one another adds to the mean over the GPUs in ns, and in words); (0, "") where none is known.

    It is what each communicates for longer than the one that does least, unless it computes beside it.
    """
    told = [one for one in ranks if one.profiler == base.profiler and _COMMUNICATES in one.numbers]
    if len(told) < 2:
        return 0.0, ""
    least, *_, most = sorted(told, key=lambda one: one.numbers[_COMMUNICATES])
    waits = [min(one.numbers[_COMMUNICATES] - least.numbers[_COMMUNICATES], _in_the_open(one)) for one in told]
    longest, shortest = (f"{one.numbers[_COMMUNICATES] / 1e6:.2g} ms" for one in (most, least))
    said = f"waiting: GPU {most.name} is {longest} in communication, GPU {least.name} {shortest}"
    return sum(waits) / len(waits), said


def _in_the_open(one: OfRank) -> float:
    """The time in which a GPU communicates and does not compute, in ns."""
    return one.numbers[_COMMUNICATES] * (1 - one.numbers.get("communication_overlap", 0.0) / 100)


def _slowest(ns: float, base: Split, ranks: Sequence[OfRank]) -> str:
    """Why a call of several processes is longer than their kernels: it is over when the last of them is.

    So it is where the quickest takes no longer than the kernels, and the slowest as long as the call.
    """
    own = sorted((one.numbers["time"], one.name) for one in ranks if "time" in one.numbers)
    if len(own) < 2 or not any(_COMMUNICATES in one.numbers for one in ranks):
        return ""
    (least, quick), (most, slow) = own[0], own[-1]
    if least > (1 + CLOSE) * (base.busy_ns or base.total.ns) or ns > (1 + CLOSE) * most:
        return ""
    times = f"rank {slow} takes {most / 1e6:.3g} ms, rank {quick} {least / 1e6:.3g} ms"
    return f"waiting: the call is that of its slowest process; {times}"


def _why_longer(point: Point, ns: float, base: Split, ranks: Sequence[OfRank]) -> str:
    extra, calls, copies = ns - base.total.ns, base.total.calls, base.copies.ns
    if base.kind == "cpu_op":
        return "between operators: time that no operator's self time holds"
    if copies and extra <= 1.1 * copies + _EVENTS_NS / 6:
        return f"copies and sets: {copies / 1e3:.1f} us, which the sum of kernels leaves out"
    if extra <= calls * _GAP_NS + _EVENTS_NS + copies:
        around = f"around {calls:.0f} kernel{'s' if calls > 1 else ''}"
        if copies > extra / 2:
            return f"copies and sets: {copies / 1e3:.1f} us, launch gaps {(extra - copies) / 1e3:.1f} us {around}"
        beside = f", {copies / 1e3:.1f} us of copies and sets among them" if copies >= 100 else ""
        return f"launch gaps: {extra / 1e3:.1f} us {around}{beside}"
    return _slowest(ns, base, ranks) or _waits(point, ns, base)


def _waits(point: Point, ns: float, base: Split) -> str:
    """Why a call may hold more than its kernels: it is queued whole before it begins, unless it waits for the GPU.

    More launches than the queue holds cannot all be queued before. Where the host issues them more slowly than the GPU
    runs them, its pace is in the rest of the call, and then the call takes no longer than the host does to issue it,
    and no less than it does for what the queue does not hold: the call's time is the host's there.
    Before there was an ``issue`` to record, calls were not queued ahead, and the host's pace was in their times.
    """
    waits, issue, calls = "synchronises" in point.marks, point.values.get("issue"), base.total.calls
    if issue is not None:
        late = 1.0 if waits else 1 - QUEUE / max(calls, 1.0)
        if late <= 0 or not (1 - _ISSUE_VARIES) * late * issue <= ns <= (1 + _ISSUE_VARIES) * issue:
            return ""
        takes = f"takes {issue / 1e6:.1f} ms to issue"
        queued = f"which {takes} {calls:.0f} launches, of which about {QUEUE} can be queued ahead"
        return f"{_PACE}, {f'{_WAITS} and {takes} it' if waits else queued}"
    if waits:
        return f"{_PACE}, {_WAITS}"
    if base.idle is not None and base.idle > 0.2:
        return f"{_PACE}; no kernel runs in {100 * base.idle:.0f} % of the range"
    return f"{_PACE}; it is host_bound" if "host_bound" in point.marks else ""


# --- ncu -------------------------------------------------------------------------------------------------------------


def _ncu(
    ncu: Tally,
    split: Split,
    own: Tally,
    base: Split,
    setting: Setting,
    point: Point,
    clocks: _Clocks | None,
    counted: Mapping[str, float],
) -> Figure | None:
    """ncu against the reference over the kernels that both saw: it may have been told to profile some of them only.

    ncu's mean of a kernel stands for all its launches in a call, for it may have profiled one of them; where these are
    unlike, it does not, and the kernel is left out; None where none is left. ``counted`` are the clocks that it saw, by
    kernel.
    """
    seen, theirs, ours, launches = ncu.by_name, 0.0, 0.0, 0.0
    by_kernel: dict[str, float] = {}
    unlike = False
    for name, (calls, ns) in own.by_name.items():
        if name not in seen or not calls or not seen[name][0]:
            continue
        if seen[name][0] / (split.iterations or 1) < calls / (base.iterations or 1) and own.unlike(name):
            unlike = True
        else:
            ours += ns / (base.iterations or 1)
            by_kernel[name] = seen[name][1] / seen[name][0] * calls / (base.iterations or 1)
            theirs += by_kernel[name]
            launches += calls / (base.iterations or 1)
    if not ours and unlike:
        return None
    if not ours:
        return Figure("ncu", ncu.total_ns, None, "no kernel name in common", flagged=True, covered=0.0)
    difference, covered, reasons = theirs / ours - 1, ours / base.total.ns, list[str]()
    if difference > 0:
        reasons = [reason for reason in [_slower_clock(by_kernel, ours, counted, setting)] if reason]
        reasons += setting.ncu_reasons(theirs - ours, launches, base)
    # ncu runs one kernel at a time, and the GPU rests between them: its clock is the higher one, or the one it locks.
    elif not setting.ncu_locks_clocks and covered > 1 - CLOSE:
        reason = _held_down(theirs / ours, point, base.profiler, setting)
        reason = reason or (clocks.explain("ncu", theirs / ours) if clocks else "")
        reasons = [reason] if reason else []
    if abs(theirs - ours) <= launches * _JITTER_NS and not reasons:
        reasons = ["short kernels: less than 0.3 us a launch"]
    apart = abs(difference) > CLOSE
    if apart and not reasons:
        reasons = [reason for reason in [_chance(by_kernel, ncu, own, base.profiler)] if reason]
    because = "; ".join(reasons) if apart else ""
    return Figure("ncu", theirs, difference, because, flagged=apart and not reasons, covered=covered)


def _chance(by_kernel: Iterable[str], ncu: Tally, own: Tally, reference: str) -> str:
    """That ncu's figure stands on a single launch, which may as well be one of the reference's.

    It is of the one kernel that makes up the difference, which is that or those that ncu saw longer where it is longer
    in all, or shorter: several that all happen to be so are no chance. Its time must lie between the reference's
    shortest and longest of the same kernel and, for one odd launch makes that wide, not far from the mean.
    """
    seen, known = ncu.by_name, own.by_name
    off = {name: seen[name][1] / seen[name][0] - known[name][1] / known[name][0] for name in by_kernel}
    total = sum(each * known[name][0] for name, each in off.items())
    making = [name for name, each in off.items() if each * total > 0]
    if len(making) != 1 or seen[making[0]][0] != 1 or known[making[0]][0] == 1:
        return ""
    (name,), ns, ends = making, seen[making[0]][1], own.span(making[0])
    if ends is None or not all(low <= ns <= high for low, high in (ends, own.usual(name))):
        return ""
    least, most = (f"{end / 1e3:.4g}" for end in ends)
    return (
        f"one launch: {ns / 1e3:.4g} us under ncu, {least} to {most} us in the {known[name][0]:.0f} under {reference}"
    )


def _slower_clock(by_kernel: Mapping[str, float], ours: float, counted: Mapping[str, float], setting: Setting) -> str:
    """The clock that ncu counts, where it is below that of longer launches of the same kernels by what the times are.

    A GPU at rest does not begin a kernel at its full clock: on an H200 ncu counts 1.72 to 1.74 GHz in attention kernels
    of 0.1 ms and 1.79 GHz in those of 1 ms, whose times are nsys's. ``by_kernel`` are ncu's times, in ns per call.
    """
    known = {name: ns for name, ns in by_kernel.items() if name in counted and name in setting.longest}
    cycles = sum(ns * counted[name] for name, ns in known.items())
    full = sum(ns * setting.longest[name][1] for name, ns in known.items())
    lost = sum(ns * (1 - counted[name] / setting.longest[name][1]) for name, ns in known.items())
    theirs, of_known = sum(by_kernel.values()), sum(known.values())
    if lost < (theirs - ours) / 2 or abs((theirs - lost) / ours - 1) > CLOSE:
        return ""
    longer = f"{full / of_known / 1e6:.0f} MHz in longer launches of the same, where both agree"
    return f"clock: {cycles / of_known / 1e6:.0f} MHz under ncu, {longer}; that makes {100 * lost / ours:.1f} %"
