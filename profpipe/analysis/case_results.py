"""Give each case of a workload its time, rates, flags, speed-up and grades, and decide which case is the fastest.

Some flags make the decision inconclusive:

* ``other_process``, ``waited`` and ``above_peak`` always do: the size of their effect on a time is unknown.
* ``throttled`` and ``clock_spread`` do, unless the times of the two cases differ by more than their SM clocks. Clocks
  that differ without a flag count as well. The best case is compared with every other case.
* A case with a single sample wins nothing and loses to none: how far its time varies is unknown.
* ``noisy`` and ``too_few_samples`` do where a timed call has no confidence interval. Both together always do: the
  interval of a few scattered samples misses the median too often.
* ``shared_host`` of a slower case does: another process may have made it slower, and by how much is unknown.
* ``host_bound`` does not: the measured calls are compared. Kernels are compared by their own times. ``synchronises``
  and ``unchecked`` do not make a time wrong either.
* Cases of nodes that are unlike are not compared. On like nodes the lead must be larger than the spread between them.

A case that is ``inaccurate`` takes no part. Neither does one that is ``unchecked`` where the pipeline sets a tolerance:
its result is not known to be the result of the other cases. The winner is the fastest accurate case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from profpipe.analysis import roofline
from profpipe.analysis.case_index import (
    OF_ITS_PROCESS,
    CaseIndex,
    Measure,
    MetricRow,
    TimeSource,
    has_waited,
    worst_numbers,
)
from profpipe.analysis.findings import (
    CaseResult,
    Doubt,
    DoubtCause,
    Nodes,
    RecordedWorkload,
    Win,
    WinVerdict,
)
from profpipe.analysis.kernels import Counters, KernelBreakdown
from profpipe.analysis.roofline import THROUGHPUT
from profpipe.analysis.steps import CaseSteps
from profpipe.job import Status
from profpipe.measure.flags import Flag
from profpipe.measure.tolerance import ToleranceResult, judge, limit_of, worst
from profpipe.results.manifest import Manifest, PeakRates
from profpipe.results.schema import CAPTURE_LAUNCH, FAILED, PROCESS_WALL

if TYPE_CHECKING:
    from profpipe.config.settings import Target

#: The metric of each quantity that is measured without a profiler. A command without steps has only its process.
_TIMED: Final = {"time": "time", "wall": PROCESS_WALL}


def choose_time_source(index: CaseIndex) -> TimeSource | None:
    """Return the first quantity that at least half as many cases have as any other.

    First come the steps of a program, without a profiler, then under one; then measured calls, the wall times of
    processes, and the kernel sums of the profilers. Launches of a kernel that is repeated are no steps.
    """
    profilers = ("plain", *index.profilers)
    repeated = {key for key, numbers in index.step_numbers.items() if CAPTURE_LAUNCH in numbers}
    with_steps = {
        name: {case for case, profiler in index.step_times.keys() - repeated if profiler == name} for name in profilers
    }
    counts = {TimeSource(name, "step"): len(cases) for name, cases in with_steps.items()}
    plain = [
        numbers
        for (case, *key), numbers in index.numbers.items()
        if key == ["plain", ""] and case not in with_steps["plain"]
    ]
    counts |= {
        TimeSource("plain", quantity): sum(name in numbers for numbers in plain) for quantity, name in _TIMED.items()
    }
    for profiler in index.profilers:
        seen = [by_profiler[profiler] for by_profiler in index.breakdowns.values() if profiler in by_profiler]
        if seen:
            counts[TimeSource(profiler, seen[0].kind)] = len(seen)
    return next((source for source, count in counts.items() if count and 2 * count > max(counts.values())), None)


def case_results(data: RecordedWorkload, source: TimeSource | None, run: Manifest) -> dict[str, CaseResult]:
    """Return every case of the workload by its id."""
    jobs = run.jobs_of(data.name) if source and source.is_timed else []
    beside = {case for job in jobs if source and job.lane and job.profiler == source.profiler for case in job.cases}
    slowed = data.recorded.slowed_cases(source.profiler) if source else set()
    cases = {id: _read_case(data, id, source, id in beside, id in slowed) for id in data.params}
    if data.nodes.of_cases:
        cases = {id: replace(case, flags=(*case.flags, *_node_flags(case, cases, data))) for id, case in cases.items()}
    shared = _find_shared_flags(cases.values())
    # A ratio of two single processes says nothing.
    is_single = bool(source and source.quantity == "wall") and any(c.time and c.time.n == 1 for c in cases.values())
    results = {}
    for id, case in cases.items():
        call, kernel, mark = _NO_SPEEDUP if is_single else _compare(case, baseline_of(case, cases, data))
        unshared = tuple(flag for flag in case.flags if flag not in shared)
        results[id] = replace(case, unshared_flags=unshared, speedup=call, kernel_speedup=kernel, baseline_flag=mark)
    return results


def _node_flags(case: CaseResult, cases: Mapping[str, CaseResult], data: RecordedWorkload) -> list[Flag]:
    """Return the flag of a case that the report compares with cases of other nodes."""
    base = baseline_of(case, cases, data)
    timed = [other for other in cases.values() if other.time and (other.shape == case.shape or other is base)]
    if len(timed) < 2 or len(data.nodes.of(timed)) < 2:
        return []
    return [Flag.UNLIKE_NODES if data.nodes.differences(timed) else Flag.SEVERAL_NODES]


def _find_shared_flags(cases: Iterable[CaseResult]) -> tuple[str, ...]:
    """Return the flags that every timed case has; none for a single case."""
    timed = [case.flags for case in cases if case.time]
    return tuple(flag for flag in timed[0] if all(flag in flags for flags in timed)) if len(timed) > 1 else ()


def baseline_of(case: CaseResult, cases: Mapping[str, CaseResult], data: RecordedWorkload) -> CaseResult | None:
    name = data.baseline_of(case.id)
    return None if name is None else cases.get(name)


def are_comparable(base: CaseResult, case: CaseResult) -> bool:
    """Return True if both have kernel sums, or both sums of CPU operators, which stand in for lost kernels."""
    return bool(base.breakdown and case.breakdown and base.breakdown.kind == case.breakdown.kind)


def _read_case(
    data: RecordedWorkload, id: str, source: TimeSource | None, is_beside: bool, is_slowed: bool
) -> CaseResult:
    """Return one case with its time, rates and flags; it ran beside others, or a profiler made its loop far slower."""
    index, breakdowns, statuses = data.recorded, data.breakdowns.get(id, {}), data.recorded.statuses.get(id, {})
    status = statuses.get(source.profiler, Status.OK) if source else Status.OK
    # An interrupted case has not failed: its samples count.
    time = None if source is None or status in FAILED else _time(index, id, breakdowns, source)
    values, params = _values(index, id), data.params[id]
    of_flops, of_bytes = _peak_shares(time, values, params, data.gpu.peaks)
    case = CaseResult(
        id=id,
        params=params,
        variant=data.variant(id),
        shape=data.shape(id),
        status="" if time else next((s for s in (status, *statuses.values()) if s != Status.OK), ""),
        time=time,
        breakdown=breakdowns.get(data.kernel_profiler or ""),
        values=values,
        of_peak_flops=of_flops,
        of_peak_bytes=of_bytes,
        is_baseline=data.baseline_of(id) == id,
        accuracy=_accuracy(index, id, values, data.tolerance) if time else None,
    )
    case = replace(case, flags=_flags(data, case, source))
    flags = list(case.flags)
    if source is not None and source.is_timed and Flag.HOST_BOUND not in flags and roofline.starves(case):
        flags.append(Flag.HOST_BOUND)
    # The time of a case that ran beside others has a flag where the host sets it. Only on a GPU the launch was timed.
    # Programs are timed as a whole, by the step or the process.
    if is_beside and time and ({Flag.HOST_BOUND, Flag.SYNCHRONISES} & set(flags) or "issue" not in values):
        flags.append(Flag.SHARED_HOST)
    return replace(case, flags=(*flags, *([Flag.PROFILER_OVERHEAD] if is_slowed else [])))


def _time(index: CaseIndex, case: str, breakdowns: Mapping[str, KernelBreakdown], source: TimeSource) -> Measure | None:
    if not source.is_timed:
        breakdown = breakdowns.get(source.profiler)
        return Measure(breakdown.total.ns, breakdown.iterations) if breakdown else None
    numbers: Mapping[str, MetricRow] = index.numbers.get((case, source.profiler, ""), {})
    time = (
        index.step_times.get((case, source.profiler))
        if source.quantity == "step"
        else numbers.get(_TIMED[source.quantity])
    )
    if time is None:
        return None
    names = ("time_p10", "time_p90", "time_min", "time_max")
    p10, p90, lowest, highest = (numbers[name].value if name in numbers else None for name in names)
    if source.quantity == "step":
        lowest, highest = index.range_of_steps(case, source.profiler)
    elif source.quantity == "wall" and (walls := index.process_walls.get((case, source.profiler))):
        lowest, highest = min(walls), max(walls)
    processes = index.process_counts.get((case, source.profiler), 1)
    return replace(time.time, p10=p10, p90=p90, lowest=lowest, highest=highest, processes=processes)


def _values(index: CaseIndex, case: str) -> dict[str, float]:
    """Return every number of the case itself; those of `plain` first, then of the other profilers' processes.

    Errors, memory and SM clocks of several processes are the worst of them. ``issue`` is at most the time of an
    iteration of the loop: versions before 0.2 recorded more.
    """
    values: dict[str, float] = {}
    for profiler in ("plain", *index.profilers):
        for metric, number in index.numbers.get((case, profiler, ""), {}).items():
            if profiler == "plain" or not metric.startswith(OF_ITS_PROCESS):
                values.setdefault(metric, number.value)
    if "issue" in values:
        values["issue"] = min(values["issue"], values.get("loop_wall", math.inf))
    return values | worst_numbers(index, case)


def _peak_shares(
    time: Measure | None, values: Mapping[str, float], params: Mapping[str, Any], peaks: PeakRates
) -> tuple[float | None, float | None]:
    """Return the shares of the peak rates that a case reaches: of the FLOP/s, and of the bytes/s."""
    if time is None or time.calls_per_s is None:
        return None, None
    # The dense equivalent of sparse work may exceed the peak; the work that is done may not.
    done, moved, per_s = values.get("flops_effective", values.get("flops")), values.get("bytes_moved"), time.calls_per_s
    peak_flops, peak_bytes = roofline.flops_rate(peaks, params, values), peaks.bytes_per_s
    return (
        done * per_s / peak_flops if done and peak_flops else None,
        moved * per_s / peak_bytes if moved and peak_bytes else None,
    )


def _flags(data: RecordedWorkload, case: CaseResult, source: TimeSource | None) -> tuple[str, ...]:
    """Return the flags that the harness set under the basis, and those that only the whole run shows."""
    if source is None:
        return ()
    flags = list(data.recorded.flags.get((case.id, source.profiler), ()))
    n, requested = case.time.n if case.time else None, data.declared.repeats if data.declared else 0
    if requested and n is not None and _lacks_samples(case, source, requested, is_command=data.is_command):
        flags.append(Flag.TOO_FEW_SAMPLES)
    if source.quantity == "kernel" and (case.idle_share or 0.0) > roofline.HOST_BOUND:
        flags.append(Flag.HOST_BOUND)
    if source.is_timed and has_waited(data.recorded, case.id):
        flags.append(Flag.WAITED)
    peak_share = (case.of_peak_flops or 0) / roofline.headroom(data.gpu.peaks, case.params, case.values)
    if max(peak_share, case.of_peak_bytes or 0) > 1:
        flags.append(Flag.ABOVE_PEAK)
    if case.accuracy is not None:
        # The tolerance of this run replaces the flag that the process stored.
        flags = [flag for flag in flags if flag != Flag.INACCURATE] + [case.accuracy.flag] * bool(case.accuracy.flag)
    return tuple(dict.fromkeys(flags))


def _lacks_samples(case: CaseResult, source: TimeSource, requested: int, *, is_command: bool) -> bool:
    """Return True if there are fewer samples than requested, or several processes of a command without interval."""
    n = (case.time and case.time.n) or 0
    if not is_command:
        return n < requested
    lacks_interval = case.time is None or case.time.interval is None
    return source.quantity == "wall" and requested > 1 and (n < requested or lacks_interval)


def _accuracy(
    index: CaseIndex, case: str, values: Mapping[str, float], limits: Mapping[str, float]
) -> ToleranceResult | None:
    """Judge the result of a timed case by its error metrics; without a tolerance, by its stored flag."""
    verdict, is_flagged = judge(values, limits), Flag.INACCURATE in index.flags.get((case, "plain"), ())
    # A NaN is stored as the worst value of its measure, which looks like a number where the measure has no limit.
    nans = [m for m, value in values.items() if value == worst(m) and limit_of(m, limits) is None]
    if is_flagged and not verdict.flag and (nans or not limits):
        return ToleranceResult(Flag.INACCURATE, f"not a number: {', '.join(nans)}" if nans else "")
    return verdict if limits or verdict.flag else None


#: The speed-up of the time, that of the kernels, and why there is none because of the baseline.
_Speedup: TypeAlias = "tuple[float | None, float | None, str]"
_NO_SPEEDUP: Final[_Speedup] = (None, None, "")


def _compare(case: CaseResult, base: CaseResult | None) -> _Speedup:
    """Return the speed-ups. There is none where a result is outside the tolerance: the computations differ."""
    if base is None or case.is_disqualified:
        return _NO_SPEEDUP
    if base is not case and Flag.UNLIKE_NODES in case.flags:
        return None, None, Flag.UNLIKE_NODES
    if base.is_disqualified:
        return None, None, base.accuracy.flag if base.accuracy else ""
    kernel = call = None
    # A table from elsewhere may hold a time of 0.
    if base.time and case.time and case.time.ns > 0:
        call = base.time.ns / case.time.ns
    if are_comparable(base, case) and base.breakdown and case.breakdown and case.breakdown.total.ns > 0:
        kernel = base.breakdown.total.ns / case.breakdown.total.ns
    return call, kernel, ""


# --- winner -----------------------------------------------------------------------------------------------------------

#: A run without a cluster.
_ONE_MACHINE = Nodes()

#: Flags of a time that another process has changed.
_SHARED_GPU = (Flag.OTHER_PROCESS, Flag.WAITED)
_CLOCKS = (Flag.THROTTLED, Flag.CLOCK_SPREAD)
_SCATTERED = (Flag.NOISY, Flag.TOO_FEW_SAMPLES)

#: From this ratio of two SM clocks on, cases count as run at different clocks, also without a flag.
_DIFFERENT_CLOCKS = 1.02


def judge_win(
    cases: Sequence[CaseResult],
    unreliable: Mapping[str, DoubtCause],
    nodes: Nodes = _ONE_MACHINE,
) -> Win | None:
    """Return the win among ``cases`` of one shape; ``unreliable`` gives cases that did not run as expected."""
    timed = sorted((case for case in cases if case.time), key=lambda case: case.ns or 0.0)
    if not timed:
        return None
    eligible = [case for case in timed if not case.is_disqualified]
    if not eligible:
        flags = tuple(dict.fromkeys(case.accuracy.flag for case in timed if case.accuracy))
        cause = DoubtCause.NOT_COMPARED if flags == (Flag.UNCHECKED,) else DoubtCause.INACCURATE
        doubt = Doubt(cause, tuple(case.variant for case in timed), flags[:1])
        return Win(timed[0], next(iter(timed[1:]), None), WinVerdict.INCONCLUSIVE, (doubt,))
    best, *others = eligible
    disqualified = tuple(timed[: timed.index(best)])
    if not others:
        return Win(best, None, WinVerdict.UNOPPOSED, disqualified=disqualified)
    second = others[0]
    if refusal := nodes.refuse(eligible):
        return Win(best, second, WinVerdict.INCONCLUSIVE, (refusal,), disqualified)
    if unusable := (*_unusable_times(best, second, unreliable), *_possibly_faster(best, others[1:])):
        return Win(best, second, WinVerdict.INCONCLUSIVE, unusable, disqualified)
    usable = [case for case in others if case.id not in unreliable and not set(_SHARED_GPU) & set(case.flags)]
    if tied := tuple(case for case in usable if best.time and case.time and best.time.overlaps(case.time)):
        return Win(best, second, WinVerdict.TIE, disqualified=disqualified, tied=(best, *tied))
    # A slower case may be the fastest at the same clock, where its clock is known.
    clocked = [case for case in others[1:] if _clocks(best, case)]
    doubts = (
        *(doubt for case in others for doubt in nodes.doubt(best, case)),
        *_clock_doubts(best, second),
        *(doubt for case in others for doubt in _flagged(case, (Flag.SHARED_HOST,))),
        *_scatter_doubts(best, second),
        *(doubt for case in clocked for doubt in _clock_doubts(best, case)),
    )
    return Win(best, second, WinVerdict.INCONCLUSIVE if doubts else WinVerdict.CLEAR, doubts, disqualified)


def _unusable_times(best: CaseResult, second: CaseResult, unreliable: Mapping[str, DoubtCause]) -> Iterator[Doubt]:
    """Yield why the two times cannot be compared at all."""
    for case in (best, second):
        if case.id in unreliable:
            yield Doubt(unreliable[case.id], (case.variant,))
    single = [c for c in (best, second) if c.time and c.time.n == 1 and not c.time.interval]
    yield from (Doubt(DoubtCause.ONE_SAMPLE, (case.variant,)) for case in single)
    for case, fatal in ((best, (*_SHARED_GPU, Flag.ABOVE_PEAK)), (second, _SHARED_GPU)):
        yield from _flagged(case, fatal)


def _flagged(
    case: CaseResult,
    flags: Iterable[Flag],
    cause: DoubtCause = DoubtCause.FLAGGED,
    ratios: tuple[float, ...] = (),
) -> Iterator[Doubt]:
    if case_flags := tuple(flag for flag in flags if flag in case.flags):
        yield Doubt(cause, (case.variant,), case_flags, ratios=ratios)


def _possibly_faster(best: CaseResult, others: Iterable[CaseResult]) -> Iterator[Doubt]:
    """Yield the cases that waited for another process and whose own time may be lower than the best one.

    The loop around such a call gives an upper bound of its time. Above twice the best time, the flush of the cache
    between the calls cannot explain the difference.
    """
    upper = 2 * best.time.ns if best.time else 0.0
    waited = [c.variant for c in others if Flag.WAITED in c.flags and c.values.get("loop_wall", 0.0) < upper]
    if waited:
        yield Doubt(DoubtCause.MAY_BE_FASTER, tuple(waited))


def _scatter_doubts(best: CaseResult, second: CaseResult) -> Iterator[Doubt]:
    """Yield flags of a timed call whose samples do not separate it from the other. Sums of kernels have no interval."""
    for case in (best, second):
        is_timed = "time" in case.values or PROCESS_WALL in case.values
        lacks_interval = is_timed and (case.time is None or case.time.interval is None)
        if lacks_interval or set(_SCATTERED) <= set(case.flags):
            yield from _flagged(case, _SCATTERED, DoubtCause.NO_INTERVAL if lacks_interval else DoubtCause.FLAGGED)


def _clock_doubts(best: CaseResult, other: CaseResult) -> Iterator[Doubt]:
    """Yield why the SM clocks may explain the lead. A short case can end before NVML is read, and then has no flag."""
    clocks = _clocks(best, other)
    ratios: tuple[float, ...] = ()
    if clocks and best.time and other.time:
        # A time scales at most with 1 / clock.
        if other.time.ns > best.time.ns * max(clocks[0] / clocks[1], 1.0):
            return
        ratios = (other.time.ns / best.time.ns, clocks[0] / clocks[1]) if best.time.ns else ()
    flagged = [doubt for case in (best, other) for doubt in _flagged(case, _CLOCKS, ratios=ratios)]
    yield from flagged
    if not flagged and clocks and clocks[0] > _DIFFERENT_CLOCKS * clocks[1]:
        yield Doubt(DoubtCause.CLOCKS, (best.variant, other.variant), clocks_hz=clocks, ratios=ratios)


def _clocks(best: CaseResult, other: CaseResult) -> tuple[float, float] | None:
    """Return the median SM clocks in Hz; where clocks moved, the highest of the best and the lowest of the other."""
    moved = any(Flag.CLOCK_SPREAD in case.flags for case in (best, other))
    high = best.values.get("sm_clock_max" if moved else "sm_clock")
    low = other.values.get("sm_clock_min" if moved else "sm_clock")
    return (high, low) if high and low else None


# --- targets ----------------------------------------------------------------------------------------------------------


def with_grades(
    case: CaseResult, targets: Mapping[str, Target], counters: Iterable[Counters], steps: CaseSteps | None
) -> CaseResult:
    """Add what a timed case reaches of the quantities that have a target, and its grades."""
    reached = _reached(case, counters, steps) if targets and case.time else {}
    grades = {name: (reached[name], target.judge(reached[name])) for name, target in targets.items() if name in reached}
    return replace(case, grades=grades)


def _reached(case: CaseResult, counters: Iterable[Counters], steps: CaseSteps | None) -> dict[str, float]:
    """Return the known quantities of a case in the units of the targets, without rates above the peak."""
    is_wrong = Flag.ABOVE_PEAK in case.flags
    bandwidth, sm = case.limit.bandwidth_share, THROUGHPUT["sm"]
    # The mean over the kernels that ncu measured, weighted by their time.
    measured_kernels = [
        (row.mean_ns * row.calls, row.values[sm][0]) for row in counters if row.mean_ns and sm in row.values
    ]
    all_ns = sum(ns for ns, _ in measured_kernels)
    # The share of a call, or of a step without its profiler, in which a kernel or a copy runs.
    parts = steps.parts_without_profiler if steps else None
    idle = parts.idle_ns / parts.wall_ns if parts is not None and parts.wall_ns else case.idle_share
    quantities = {
        "tflops": None if is_wrong else case.tflops_done,
        "gpu_busy": None if idle is None else 100 * (1 - idle),
        "memory_bandwidth": None if is_wrong or bandwidth is None else 100 * bandwidth,
        "sm": sum(ns * percent for ns, percent in measured_kernels) / all_ns if all_ns else None,
        "speedup": None if case.is_baseline else case.speedup,
    }
    return {name: value for name, value in quantities.items() if value is not None}
