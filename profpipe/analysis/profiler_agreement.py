"""Compare the time of a call as each profiler measured it, and find why the times differ."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from profpipe.analysis.case_index import RankResult, find_ranks
from profpipe.analysis.findings import (
    CLOSE,
    CaseResult,
    Explanation,
    LaunchCounts,
    ProfilerTime,
    RecordedWorkload,
)
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import ClassTotal, Counters, KernelBreakdown, KernelTotals, Key, by_preference, rows
from profpipe.analysis.roofline import QUEUE
from profpipe.measure.flags import Flag
from profpipe.results.manifest import Manifest

#: The most between two kernels of one stream when the CPU is ahead of the GPU, and the most that the events take.
_GAP_NS, _EVENTS_NS = 3_000.0, 6_000.0

#: The most that torch.profiler adds to an operator on a CPU: 6 us were measured on a busy one.
_OPERATOR_NS = 10_000.0

#: Shares by which the host's time to issue a call varies, and by which a wait under a profiler may be in the call too.
_ISSUE_VARIES, _WAIT_VARIES = 0.25, 0.25
#: The same for a call whose samples are scattered: it was issued at another moment than the host's time was taken.
_SCATTERED_VARIES = 0.5

#: The most that a cold L2 adds to a launch, and that its write-back does: 60 MB at 3 TB/s.
_COLD_NS = 20_000.0

#: A kernel's mean differs by this from capture to capture: of 186 below 50 us in two runs on an H200, nsys and torch
#: differ by less in 95 %. Launches within one capture differ by as much again, which excuses no mean of 30 of them.
_JITTER_NS = 300.0

#: What ncu adds to a launch: a kernel that counts clock cycles takes 1.18 to 1.25 us longer under ncu 2025.3 than under
#: nsys on an H100, whether it counts 500 cycles or 100,000 (``benchmarks/ncu_launch.py``). A mean may be off as well.
_NCU_LAUNCH_NS = 1_200.0 + _JITTER_NS

#: Copies and sets that take less are no cause.
_LEAST_COPIES_NS = 100.0

#: Below this idle share of its range a call is not limited by the host.
_IDLE = 0.2

#: Clocks at which ncu ran a kernel, newest spelling first.
_NCU_CLOCKS = ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")

#: The share of the peak bandwidth of the GPU's memory under ncu, in %; the first name that a report has.
_NCU_DRAM = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)

#: Two sums of the same times differ by at most this share.
_ROUNDED = 1e-3

_COMMUNICATION = "communication_busy"

#: NVML reports clocks in such steps.
_CLOCK_STEP_HZ = 15e6


class ProfilerConditions:
    """How the profilers of a workload ran.

    ``longest`` holds, by kernel, ncu's mean (ns) and clock (Hz) in its longest launch that agrees with the reference.
    ``flushed`` are the profilers under which the harness empties the caches before a call; none for a command, of which
    no call was timed.
    """

    def __init__(
        self,
        data: RecordedWorkload,
        run: Manifest,
        counters: Mapping[str, Iterable[Counters]],
    ) -> None:
        """``counters`` are ncu's by case, ``run`` is run.json."""
        jobs, self.is_command = run.jobs_of(data.name), data.is_command
        ncu_argv = [str(word) for job in jobs if job.profiler == "ncu" for command in job.argv for word in command]
        self.ncu_locks_clocks = bool(ncu_argv) and not _has_flag(ncu_argv, "--clock-control", "none")
        self.ncu_empties_caches = not _has_flag(ncu_argv, "--cache-control", "none")
        self.flushed = frozenset(() if self.is_command else (job.profiler for job in jobs))
        self.recorded, self.highest_hz = data.recorded, data.gpu.highest_clock
        self.longest = self._longest_launches(counters)

    def number(self, case: str, profiler: str, metric: str) -> float:
        """Return what a profiler's process recorded of a case; 0 where it recorded nothing."""
        number = self.recorded.numbers.get((case, profiler, ""), {}).get(metric)
        return number.value if number else 0.0

    def clocks(self, case: str, profiler: str) -> tuple[float, float, float] | None:
        """Return the lowest, median and highest SM clock (Hz) during a case; None where they were not recorded."""
        low, median, high = (self.number(case, profiler, f"sm_clock{end}") for end in ("_min", "", "_max"))
        return (low, median, high) if min(low, median, high) > 0 else None

    def _longest_launches(self, counters: Mapping[str, Iterable[Counters]]) -> dict[str, tuple[float, float]]:
        """Return by kernel ncu's mean (ns) and clock (Hz) in the longest of its cases in which the reference agrees.

        The reference also agrees where it would at the GPU's highest clock: the GPU keeps that under ncu, not under
        load.
        """
        longest: dict[str, tuple[float, float]] = {}
        for case, row in ((case, row) for case, measured in counters.items() for row in measured):
            reference = next(
                (name for name in self.recorded.profilers if name != "ncu" and (case, name) in self.recorded.totals), ""
            )
            totals = self.recorded.totals.get((case, reference), KernelTotals())
            total, clock = totals.by_name.get(row.kernel, ClassTotal()), _first_of(row, _NCU_CLOCKS)
            if clock and total.calls and total.ns and row.mean_ns:
                seen = self.clocks(case, reference)
                slowdown = min(1.0, seen[1] / self.highest_hz) if seen and self.highest_hz else 1.0
                if any(abs(row.mean_ns / mean - 1) <= CLOSE for mean in (total.mean_ns, slowdown * total.mean_ns)):
                    longest[row.kernel] = max(longest.get(row.kernel, (0.0, 0.0)), (row.mean_ns, clock))
        return longest


def _has_flag(argv: Sequence[str], flag: str, value: str) -> bool:
    return f"{flag}={value}" in argv or (flag, value) in itertools.pairwise(argv)


def _first_of(row: Counters, names: Iterable[str]) -> float | None:
    return next((row.values[name][0] for name in names if name in row.values), None)


def compare_profilers(
    point: CaseResult,
    breakdowns: Mapping[str, KernelBreakdown],
    conditions: ProfilerConditions,
    counters: Sequence[Counters] = (),
) -> tuple[ProfilerTime, ...]:
    """Return the times of one case, the reference first; empty for fewer than two times.

    ``breakdowns`` are by profiler, and ``counters`` of ncu.

    This is the one place where times of two profilers meet: shares, speed-ups and rates never mix them.
    """
    comparable = [name for name in by_preference(breakdowns) if breakdowns[name].iterations is not None]
    if not comparable:
        return ()
    reference, *others = comparable
    case = _ReferenceCase(point, breakdowns[reference], conditions)
    times: list[ProfilerTime | None] = [ProfilerTime(reference, case.ns)]
    # The kernels of a command are those of its whole process.
    if not conditions.is_command and (timed := point.values.get("time")) is not None:
        times.append(_compare_timed_call(case, timed))
    for name in others:
        if conditions.is_command and case.breakdown.iterations == 1 and breakdowns[name].total.calls != case.calls:
            # A benchmark that runs for a time launches less under a slower profiler: `compare_launches` says so.
            continue
        if name == "ncu":
            times.append(_compare_ncu(case, breakdowns[name], counters))
        else:
            ns = breakdowns[name].total.ns
            is_jitter = case.breakdown.kind == "kernel" and abs(ns - case.ns) <= case.calls * _JITTER_NS
            short = _explain("short kernels", limit_ns=_JITTER_NS) if is_jitter else ()
            times.append(_measure(case, name, ns, short or _clock_reasons(case, name, ns / case.ns)))
    compared = tuple(time for time in times if time)
    return compared if len(compared) > 1 else ()


class _ReferenceCase:
    """A case under the profiler that the others are compared with."""

    def __init__(self, point: CaseResult, breakdown: KernelBreakdown, conditions: ProfilerConditions) -> None:
        self.point, self.breakdown, self.conditions = point, breakdown, conditions
        self.profiler, self.ns, self.calls = breakdown.profiler, breakdown.total.ns, breakdown.total.calls
        self.totals = conditions.recorded.totals[point.id, breakdown.profiler]
        #: The most that launch gaps and the events themselves take.
        self.gaps_ns = self.calls * _GAP_NS + _EVENTS_NS
        #: A call that arithmetic limits takes as many cycles at each clock.
        self.is_compute_bound = point.limit.limited_by == "compute"

    def clocks(self, profiler: str) -> tuple[float, float, float] | None:
        return self.conditions.clocks(self.point.id, profiler)

    def ranks(self) -> list[RankResult]:
        """Return the processes and GPUs that ran the case together."""
        return list(find_ranks(self.conditions.recorded, [self.point.id]))


#: The explanations of a difference that explain all of it; empty where nothing does.
_Explanations = tuple[Explanation, ...]


def _explain(cause: str, **numbers: float | str) -> _Explanations:
    return ((cause, numbers),)


def _measure(
    case: _ReferenceCase, profiler: str, ns: float, explanations: _Explanations, part: _Explanations = ()
) -> ProfilerTime:
    """Return the time of ``profiler``; ``part`` explains some of the difference where no reason explains it all."""
    difference = ns / case.ns - 1
    if abs(difference) <= CLOSE:
        return ProfilerTime(profiler, ns, difference)
    return ProfilerTime(profiler, ns, difference, explanations or part, is_unexplained=not explanations)


# --- clocks ----------------------------------------------------------------------------------------------------------


def _clock_reasons(case: _ReferenceCase, profiler: str, ratio: float) -> _Explanations:
    return _recorded_clock(case, profiler, ratio) or _throttled(case, profiler, ratio)


def _recorded_clock(case: _ReferenceCase, profiler: str, ratio: float) -> _Explanations:
    """Return the recorded clocks as the reason why ``profiler`` has ``ratio`` times the reference's time.

    A call that arithmetic limits takes as many cycles at each clock. So the clocks are the reason where they differ by
    at least half of what the times do, and where the remaining difference in cycles needs no reason.
    """
    clock, base = case.clocks(profiler), case.clocks(case.profiler)
    if abs(ratio - 1) <= CLOSE or not case.is_compute_bound or clock is None or base is None:
        return ()
    hz, reference_hz = clock[1], base[1]
    cycles = ratio * hz / reference_hz - 1
    if abs(cycles) > CLOSE or (reference_hz / hz - 1) / (ratio - 1) < 0.5:
        return ()
    reference = case.profiler
    return _explain("clock", profiler=profiler, hz=hz, reference=reference, reference_hz=reference_hz, cycles=cycles)


def _reference_below_highest(case: _ReferenceCase, ratio: float) -> _Explanations:
    """Return the reference's clock as the reason why ncu, under which the GPU rests between kernels, is faster."""
    base, highest = case.clocks(case.profiler), case.conditions.highest_hz
    if 1 - ratio <= CLOSE or not case.is_compute_bound or base is None or highest is None:
        return ()
    share = base[1] / highest
    if ratio < share * (1 - CLOSE) or (1 - share) / (1 - ratio) < 0.5:
        return ()
    return _explain("clock below its highest", reference=case.profiler, hz=base[1], highest_hz=highest)


def _throttled(case: _ReferenceCase, profiler: str, ratio: float) -> _Explanations:
    """Return a clock that was held back as the reason why ``profiler`` has ``ratio`` times the reference's time.

    A call that arithmetic limits takes as many cycles at each clock, so kernels of ``ns`` ran at the clock of the timed
    call times its time over ``ns``. The result is a range, because the time around the kernels is known by its limit
    only. It must lie within what was recorded under the profiler, else within what the GPU can reach. Runs before 0.2
    recorded clocks of timed calls only.

    The time says too little of the kernels where they ran on several streams, where they are so short that the time
    around them exceeds the difference that needs a reason, and where something other than arithmetic limits them.

    ncu counts another clock than NVML: on an H200 it counts 1.79 GHz in attention kernels of 1 ms and more where NVML
    reports 1.98, and the times are the same within 1 %. So the two are never compared.
    """
    flags = tuple(flag for flag in (Flag.THROTTLED, Flag.CLOCK_SPREAD) if flag in case.point.flags)
    numbers = [case.point.values.get(name) for name in ("time", "sm_clock", "sm_clock_min", "sm_clock_max")]
    if not flags or not all(numbers) or not case.is_compute_bound or len(case.totals.streams) > 1:
        return ()
    ns, timed, low, high = (float(number or 0.0) for number in numbers)
    around = case.gaps_ns + case.breakdown.copies.ns
    if around > CLOSE * ns:
        return ()
    highest = case.conditions.highest_hz or high
    clocks = {case.profiler: (timed * (ns - around) / case.ns, timed * ns / case.ns)}
    if profiler != "plain":
        clocks[profiler] = clocks[case.profiler][0] / ratio, clocks[case.profiler][1] / ratio
    held = " and ".join(flags)
    explanations = _explain("throttled clock", hz=timed, low=low, high=high, marks=held, highest_hz=highest)
    for name, (least, most) in clocks.items():
        recorded = case.clocks(name)
        lower, _, upper = recorded or (low, timed, highest)
        if most < lower - _CLOCK_STEP_HZ or least > upper + _CLOCK_STEP_HZ:
            return ()
        seen = {"recorded_low": lower, "recorded_high": upper} if recorded else {}
        derived = {"low": min(least, highest), "high": min(most, highest)}
        explanations += _explain("derived clock", profiler=name, **derived, **seen)
    return explanations


# --- timed calls -----------------------------------------------------------------------------------------------------


def _compare_timed_call(case: _ReferenceCase, ns: float) -> ProfilerTime:
    explanations, part = _why_shorter(case, ns) if ns < case.ns else (_why_longer(case, ns), ())
    explanations, spread = explanations or _clock_reasons(case, "plain", ns / case.ns), _spread(case)
    is_cpu = case.breakdown.kind == "cpu_op"
    return _measure(case, "plain", ns, (spread or explanations) if is_cpu else (explanations or spread), part)


def _spread(case: _ReferenceCase) -> _Explanations:
    """Return the spread of the call's time if the kernels' time lies within it.

    The interval is of the median among these samples. Where the clock moved while they were taken, the profiler's calls
    may have met another clock, and the median moves with it: a time that some of the samples had is possible.
    """
    flags, time = case.point.flags, case.point.time
    if time is None or "time" not in case.point.values:
        return ()
    if Flag.CLOCK_SPREAD in flags and time.p10 and time.p90 and time.p10 <= case.ns <= time.p90:
        return _explain("spread", p10=time.p10, p90=time.p90)
    if time.interval is None:
        return _explain("spread") if Flag.TOO_FEW_SAMPLES in flags else ()
    low, high = time.interval
    return _explain("spread", ci_low=low, ci_high=high) if low <= case.ns <= high else ()


def _why_shorter(case: _ReferenceCase, ns: float) -> tuple[_Explanations, _Explanations]:
    """Return why the call is shorter than the sum of its kernels, and what explains a part where nothing explains all.

    Kernels that run at once count once in the time in which some kernel runs, and each in the sum. A GPU that waits for
    another runs a kernel of communication, longer in some captures than in others. The remainder must be the call's
    time, as kernels in a row would be: a wait that the call has in it as well is no reason.
    """
    breakdown, streams, difference = case.breakdown, len(case.totals.streams), case.ns - ns
    if breakdown.kind == "cpu_op":
        return _operator_overhead(case, ns), ()
    at_once = case.ns - breakdown.busy_ns if streams > 1 and breakdown.busy_ns else 0.0
    overlap = _explain("overlap", ns=at_once, streams=streams) if at_once > _ROUNDED * case.ns else ()
    if overlap and _explains(case, ns, at_once):
        return overlap, ()
    at_once = at_once if overlap else 0.0
    waited, waiting = _communication_wait(case)
    if waited and _explains(case, ns, at_once + waited, _WAIT_VARIES):
        return (waiting + overlap if waited >= at_once else overlap + waiting), ()
    if not overlap:
        return (), ()
    if clock := _recorded_clock(case, "plain", ns / (case.ns - at_once)):
        return overlap + clock, ()
    if at_once > difference:
        return (), _explain("overlap", excess_ns=at_once - difference)
    return (), _explain("overlap", ns=at_once, of_ns=difference)


def _explains(case: _ReferenceCase, ns: float, less: float, varies: float = 0.0) -> bool:
    """Return True if the sum of kernels without ``less`` is a call of ``ns``, and ``less`` most of the difference.

    The remainder may be 3 % off or longer by launch gaps; where ``less`` varies, by that share of the difference.
    """
    difference = case.ns - ns
    longer = max(CLOSE * ns, case.gaps_ns + case.breakdown.copies.ns, varies * difference)
    return -CLOSE * ns <= less - difference <= longer and 2 * less >= difference


def _operator_overhead(case: _ReferenceCase, ns: float) -> _Explanations:
    """Return why CPU operators take longer under their profiler: its cost for each, or what the loop shows."""
    longer, profiler = case.ns - ns, case.profiler
    if longer <= case.calls * _OPERATOR_NS:
        return _explain("profiler overhead", profiler=profiler)
    alone, under = (case.conditions.number(case.point.id, name, "loop_wall") for name in ("plain", profiler))
    if alone > 0 and under - alone >= longer / 2:
        return _explain("profiler overhead", profiler=profiler, loop_ns=under, alone_ns=alone)
    return ()


def _communication_wait(case: _ReferenceCase) -> tuple[float, _Explanations]:
    """Return what waiting for one another adds to the mean over the GPUs (ns), and the reason.

    Each GPU waits for as long as it communicates more than the GPU that communicates least, unless it computes then.
    """
    ranks = [rank for rank in case.ranks() if rank.profiler == case.profiler and _COMMUNICATION in rank.numbers]
    if len(ranks) < 2:
        return 0.0, ()
    least, *_, most = sorted(ranks, key=lambda rank: rank.numbers[_COMMUNICATION])
    shortest, longest = least.numbers[_COMMUNICATION], most.numbers[_COMMUNICATION]
    waits = 0.0
    for rank in ranks:
        busy, overlap = rank.numbers[_COMMUNICATION], rank.numbers.get("communication_overlap", 0.0)
        waits += min(busy - shortest, busy * (1 - overlap / 100))
    explanations = _explain(
        "waiting in communication", slow=most.name, slow_ns=longest, fast=least.name, fast_ns=shortest
    )
    return waits / len(ranks), explanations


def _why_longer(case: _ReferenceCase, ns: float) -> _Explanations:
    extra, copies = ns - case.ns, case.breakdown.copies.ns
    if case.breakdown.kind == "cpu_op":
        return _explain("between operators")
    of_copies = _explain("copies and sets", ns=copies) if copies >= _LEAST_COPIES_NS else ()
    if copies and extra <= 1.1 * copies + _EVENTS_NS / 6:
        return _explain("copies and sets", ns=copies)
    if extra <= case.gaps_ns + copies:
        gaps = _explain("launch gaps", ns=extra - copies, kernels=case.calls)
        return of_copies + gaps if copies > extra / 2 else gaps + of_copies
    return _slowest_process(case, ns) or _host_bound(case, ns)


def _slowest_process(case: _ReferenceCase, ns: float) -> _Explanations:
    """Return why a call of several processes is longer than the mean of their kernels: it ends with the last of them.

    So it is where the fastest takes no longer than the kernels, and the slowest as long as the call. Processes that
    communicate wait for the slowest one. Where they do not, the mean of their times must be that of their kernels.
    """
    ranks = case.ranks()
    times = sorted((rank.numbers["time"], rank.name) for rank in ranks if "time" in rank.numbers)
    if len(times) < 2:
        return ()
    (least, fast), (most, slow) = times[0], times[-1]
    if least > (1 + CLOSE) * (case.breakdown.busy_ns or case.ns) or ns > (1 + CLOSE) * most:
        return ()
    mean = sum(time for time, _ in times) / len(times)
    if not any(_COMMUNICATION in rank.numbers for rank in ranks) and mean - case.ns > max(
        CLOSE * case.ns, case.gaps_ns
    ):
        return ()
    return _explain("slowest process", slow=slow, slow_ns=most, fast=fast, fast_ns=least)


def _host_bound(case: _ReferenceCase, ns: float) -> _Explanations:
    """Return the host as the reason why a call takes longer than its kernels.

    A call is queued whole before it begins, unless it waits for the GPU or has more launches than the queue holds.
    Where the host issues the others more slowly than the GPU runs them, the call takes no longer than the host takes to
    issue it, and no less than the host takes for the launches that the queue does not hold.
    Runs without a recorded ``issue`` did not queue calls ahead, and the host's time was in theirs.
    """
    flags, idle = case.point.flags, case.breakdown.idle_share or 0.0
    synchronises, issue = Flag.SYNCHRONISES in flags, case.point.values.get("issue")
    if issue is None:
        if synchronises:
            return _explain("synchronisation")
        if idle > _IDLE:
            return _explain("host-bound", idle=idle)
        return _explain("host-bound") if Flag.HOST_BOUND in flags else ()
    late = 1.0 if synchronises else 1 - QUEUE / max(case.calls, 1.0)
    varies = _SCATTERED_VARIES if Flag.NOISY in flags else _ISSUE_VARIES
    if late <= 0 or not (1 - varies) * late * issue <= ns <= (1 + varies) * issue:
        return ()
    if synchronises:
        return _explain("synchronisation", issue_ns=issue)
    return _explain("host-bound", issue_ns=issue, launches=case.calls, queue=QUEUE)


# --- ncu -------------------------------------------------------------------------------------------------------------


def _compare_ncu(case: _ReferenceCase, breakdown: KernelBreakdown, counters: Sequence[Counters]) -> ProfilerTime | None:
    """Compare ncu with the reference over the kernels that both saw; ``counters`` are those of this case.

    ncu may have profiled one launch of a kernel, whose time then stands for all in a call. Where launches differ it
    does not, and the kernel is left out. None where no kernel is left.
    """
    totals = case.conditions.recorded.totals[case.point.id, "ncu"]
    ours, launches, by_kernel, has_varying = 0.0, 0.0, dict[str, float](), False
    runs, ncu_runs = case.breakdown.iterations or 1, breakdown.iterations or 1
    for name, total in case.totals.by_name.items():
        under_ncu = totals.by_name.get(name, ClassTotal())
        if not total.calls or not under_ncu.calls:
            continue
        if under_ncu.calls / ncu_runs < total.calls / runs and total.has_high_variance:
            has_varying = True
            continue
        ours, launches = ours + total.ns / runs, launches + total.calls / runs
        by_kernel[name] = under_ncu.mean_ns * total.calls / runs
    if not ours:
        return None if has_varying else ProfilerTime("ncu", totals.total_ns, is_unexplained=True, covered=0.0)
    theirs, covered = sum(by_kernel.values()), ours / case.ns
    difference = theirs / ours - 1
    if abs(difference) <= CLOSE:
        return ProfilerTime("ncu", theirs, difference, covered=covered)
    explanations: _Explanations = ()
    if difference > 0:
        explanations = _why_ncu_is_slower(case, by_kernel, ours, launches, counters)
    # ncu runs one kernel at a time, and the GPU rests between them: its clock is the higher one, or the one it locks.
    elif not case.conditions.ncu_locks_clocks and covered > 1 - CLOSE:
        ratio = theirs / ours
        explanations = (
            _reference_below_highest(case, ratio)
            or _throttled(case, "ncu", ratio)
            or _cleaner_caches(case, by_kernel, ours, counters)
        )
    if not explanations and abs(theirs - ours) <= launches * _JITTER_NS:
        explanations = _explain("short kernels", limit_ns=_JITTER_NS)
    explanations = explanations or _single_launch(case, by_kernel, totals)
    return ProfilerTime("ncu", theirs, difference, explanations, not explanations, covered)


def _why_ncu_is_slower(
    case: _ReferenceCase, by_kernel: Mapping[str, float], ours: float, launches: float, counters: Sequence[Counters]
) -> _Explanations:
    """Return ncu's clock, what it adds to a launch, and its controls of cache and clock, both on by default.

    A call's first kernel finds cold caches under the reference as well, where the harness empties them. What ncu adds
    to the launches is a cause where it makes at least half of the difference, and what is left needs none.
    """
    conditions, extra_ns = case.conditions, sum(by_kernel.values()) - ours
    added_ns, jitter_ns = launches * _NCU_LAUNCH_NS, launches * _JITTER_NS
    colder = min(launches, case.calls - 1) if case.profiler in conditions.flushed else launches
    explanations = _counted_below_longer(case, by_kernel, ours, counters)
    if jitter_ns < extra_ns <= 2 * added_ns and extra_ns - added_ns <= CLOSE * ours:
        explanations += _explain("launch under ncu", limit_ns=_NCU_LAUNCH_NS)
    if extra_ns <= colder * _COLD_NS and conditions.ncu_empties_caches:
        explanations += _explain("cold cache")
    return explanations + (_explain("locked clock") if conditions.ncu_locks_clocks else ())


def _cleaner_caches(
    case: _ReferenceCase, by_kernel: Mapping[str, float], ours: float, counters: Iterable[Counters]
) -> _Explanations:
    """Return that ncu begins each kernel with caches that hold nothing to write back.

    The harness empties the caches by writing to a buffer, as ``do_bench`` does, and a kernel leaves its results there.
    What comes into the cache then waits until as much has been written to memory. On an H100 the forward call of fa2 on
    16 sequences of 128 tokens took 34.6 us, and 28.2 us where a kernel had read another buffer in between. ``ours`` and
    ``by_kernel`` are ns per call. The wait is at most the time that the kernel's own traffic takes at the peak
    bandwidth, which is its share of that peak.
    """
    if not case.conditions.ncu_empties_caches:
        return ()
    shares = {row.kernel: (_first_of(row, _NCU_DRAM) or 0.0) / 100 for row in counters}
    waits = sum(min(_COLD_NS, ns * shares.get(name, 0.0)) for name, ns in by_kernel.items())
    if ours - sum(by_kernel.values()) > waits:
        return ()
    return _explain("clean cache under ncu", reference=case.profiler, limit_ns=waits)


def _counted_below_longer(
    case: _ReferenceCase, by_kernel: Mapping[str, float], ours: float, counters: Iterable[Counters]
) -> _Explanations:
    """Return the clock that ncu counts, where it is below that of longer launches by as much as the times are.

    A GPU at rest does not begin a kernel at its full clock: on an H200 ncu counts 1.72 to 1.74 GHz in attention kernels
    of 0.1 ms and 1.79 GHz in those of 1 ms, whose times are nsys's. ``by_kernel`` are ncu's times, in ns per call.
    """
    longest, clocks = case.conditions.longest, {row.kernel: _first_of(row, _NCU_CLOCKS) for row in counters}
    total = cycles = full = lost = 0.0
    for name, ns in by_kernel.items():
        if name in longest and (clock := clocks.get(name)):
            longer = longest[name][1]
            total, cycles, full = total + ns, cycles + ns * clock, full + ns * longer
            lost += ns * (1 - clock / longer)
    theirs = sum(by_kernel.values())
    if not total or lost < (theirs - ours) / 2 or abs((theirs - lost) / ours - 1) > CLOSE:
        return ()
    return _explain("lower clock under ncu", hz=cycles / total, longer_hz=full / total, share=lost / ours)


def _single_launch(case: _ReferenceCase, by_kernel: Iterable[str], ncu: KernelTotals) -> _Explanations:
    """Return that ncu's time rests on a single launch, which may as well be one of the reference's.

    One kernel alone must make the difference: that two kernels both happen to be longer is no chance. Its time must lie
    between the reference's shortest and longest launch and, because one odd launch widens that, near the mean.
    """
    seen, reference_totals = ncu.by_name, case.totals.by_name
    off = {name: seen[name].mean_ns - reference_totals[name].mean_ns for name in by_kernel}
    total = sum(difference * reference_totals[name].calls for name, difference in off.items())
    deciding = [name for name, difference in off.items() if difference * total > 0]
    if len(deciding) != 1 or seen[deciding[0]].calls != 1 or reference_totals[deciding[0]].calls == 1:
        return ()
    ns, launches = seen[deciding[0]].ns, reference_totals[deciding[0]]
    span = launches.least, launches.most
    # Without both ends some launches are unknown.
    if not all(map(math.isfinite, span)) or not all(low <= ns <= high for low, high in (span, launches.typical_range)):
        return ()
    return _explain(
        "single launch", ns=ns, low=launches.least, high=launches.most, launches=launches.calls, reference=case.profiler
    )


# --- launches: a profiler may lose events, and warns only that it might have ------------------------------------------

#: Launches by kernel.
_Counts = Mapping[str, int]


def compare_launches(data: RecordedWorkload) -> Iterator[LaunchCounts]:
    """Compare each profiler that records every launch with the first of them."""
    counts, ncu = _counts(data), data.declared.ncu if data.declared else None
    seen = {profiler for _, profiler in counts}
    # ncu profiles selected kernels, unless the pipeline file asks for all.
    complete = [name for name in by_preference(seen) if (name != "ncu" or (ncu and ncu.kernels == "all"))]
    for other in complete[1:]:
        excluded = ncu.exclude if ncu and other == "ncu" else ""
        if launch_counts := _compare_pair((complete[0], other), counts, data, excluded):
            yield launch_counts


def _counts(data: RecordedWorkload) -> dict[Key, _Counts]:
    """Return launches by kernel, without cases that have whole graphs: a graph hides the number of its kernels."""
    key, table = ["case", "profiler", "kernel"], data.recorded.tables.kernels
    table = table[table["case"] != ""]
    sums = table[table["kind"] == "kernel"].groupby(key, sort=False)["calls"].sum().reset_index()
    by_pair = grouped((tuple(pair), (kernel, int(calls))) for *pair, kernel, calls in rows(sums, *key, "calls"))
    graphs = set(rows(table[table["kind"] == "graph"], "case", "profiler"))
    return {pair: dict(launches) for pair, launches in by_pair.items() if pair not in graphs}


def _compare_pair(
    pair: tuple[str, str], counts: Mapping[Key, _Counts], data: RecordedWorkload, excluded: str
) -> LaunchCounts | None:
    """Compare the cases that both captured with known iterations, without the kernels whose name fits ``excluded``."""
    runs: dict[str, tuple[int, int]] = {}
    # Profilers record different parts of a program with steps.
    with_steps = {case for case, _ in data.recorded.step_totals}
    for case, breakdowns in ((id, by_profiler) for id, by_profiler in data.breakdowns.items() if id not in with_steps):
        n, m = (breakdowns[name].iterations if name in breakdowns else None for name in pair)
        if n and m and all((case, name) in counts for name in pair):
            runs[case] = n, m
    is_per_iteration = any(n != m for n, m in runs.values())
    number, same_by_kernel, differing = 0.0, 0, []
    for case, (n, m) in runs.items():
        ours, theirs = (
            {kernel: calls for kernel, calls in counts[case, name].items()
             if not (excluded and re.search(excluded, kernel))}
            for name in pair
        )  # fmt: skip
        first, second = sum(ours.values()), sum(theirs.values())
        shown = (first / n, second / m) if is_per_iteration else (first, second)
        number += shown[0]
        # Times the other's iterations, the counts are whole numbers that can be compared.
        same_by_kernel += {k: m * calls for k, calls in ours.items()} == {k: n * calls for k, calls in theirs.items()}
        if m * first != n * second:
            differing.append((case, *shown))
    if not runs:
        return None
    return LaunchCounts(data.name, pair, number, is_per_iteration, len(runs), same_by_kernel, tuple(differing))
