"""What limits a call (host, arithmetic or memory), what a profiler adds to it, and ncu's metrics of its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from profpipe.analysis.case_index import LOCAL, RULE, CaseIndex, MetricRow
from profpipe.analysis.findings import CaseResult, Limit, Limiter
from profpipe.analysis.kernels import ClassTotal, Counters, KernelTotals, Rule
from profpipe.measure import machine
from profpipe.measure.flags import Flag
from profpipe.results.manifest import Manifest, PeakRates

#: Spellings of data types in parameters, to those of the machine's rates.
_DTYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32", "float64": "fp64"}

#: The prefix of a metric with the FLOPs of one data type: ``flops.int8``.
OF_TYPE = "flops."

#: Above this idle share of a case's range, launching takes longer than running.
HOST_BOUND = 0.5

#: Below this share of both peaks, the declared FLOPs and bytes do not describe what the call does.
FAR_BELOW = 0.1

#: Launching this many times longer than running makes a call host-bound, as in ``measure.sampling``.
_SLOWER = 1.05

#: About how many launches a CUDA stream queues before the host has to wait.
QUEUE = 1024

#: Metrics of cases with several processes, or with GPUs that communicate.
_DISTRIBUTED = ("time_own", "communication_busy")

_DRAM_RATE = "dram__bytes.sum.per_second"

#: The least share of a call's kernel time that ncu must have measured for its DRAM traffic.
_LEAST_COVERED = 0.9


def rates_of(name: str, run: Manifest) -> tuple[PeakRates, PeakRates]:
    """Return the peaks of a workload's GPU, and the rates for its limits: ceilings where they were measured.

    The GPU is the one that the jobs name. Jobs that name none have the machine's rates.
    """
    described, jobs = run.machine, run.jobs_of(name)
    named = [job for job in jobs if job.devices]
    stated = [job.peaks or described.peaks for job in named or jobs] or [described.peaks]
    unknown = PeakRates(source="unknown: its jobs ran on GPUs of different rates")
    peaks = (stated[0] or PeakRates()) if all(one == stated[0] for one in stated) else unknown
    names = {entry.device for job in named for entry in job.devices} or {gpu.name for gpu in described.gpus or ()}
    ceilings = described.ceilings or PeakRates()
    is_same_gpu = ceilings.device is None or names == {ceilings.device}
    return peaks, ceilings if is_same_gpu and set(ceilings.flops.values()) - {None} else peaks


def data_sheet_of(name: str, run: Manifest) -> tuple[str, Mapping[str, float]]:
    """Return the name of a workload's GPU, and the dense FLOP/s by data type of its data sheet.

    Both are empty where the GPUs of the workload's jobs, or else of the machine, are of several kinds.
    """
    devices = {entry.device for job in run.jobs_of(name) for entry in job.devices}
    gpus = [gpu for gpu in run.machine.gpus or () if not devices or gpu.name in devices]
    rates = [(gpu.name, machine.data_sheet_flops(asdict(gpu))) for gpu in gpus]
    return rates[0] if rates and all(rate == rates[0] for rate in rates) else ("", {})


def flops_rate(rates: PeakRates, params: Mapping[str, Any], work: Mapping[str, float]) -> float | None:
    """Return the FLOP/s for a case with ``params``; None where the rate of any data type is unknown.

    That is the rate of the data type that the case names. Where ``work`` has FLOPs by data type, it is their sum over
    the least time that they take one after the other.
    """
    parts = _read_flops_by_type(work) or {_named_type(params): 1.0}
    of_types = [rates.flops.get(name) for name in parts]
    if len(of_types) == 1:
        return of_types[0]
    least_s = [flop / rate for flop, rate in zip(parts.values(), of_types, strict=True) if rate]
    return sum(parts.values()) / sum(least_s) if len(least_s) == len(parts) else None


def headroom(rates: PeakRates, params: Mapping[str, Any], work: Mapping[str, float]) -> float:
    """Return how many times ``flops_rate`` a case may reach: more than 1 on a GeForce."""
    usual = flops_rate(rates, params, work)
    most = flops_rate(replace(rates, flops={**rates.flops, **rates.flops_in_16_bits}), params, work)
    return most / usual if usual and most else 1.0


def _named_type(params: Mapping[str, Any]) -> str:
    """Return the data type that a case names as ``dtype`` or ``precision``."""
    return dtype_of(str(params.get("dtype") or params.get("precision") or ""))


def dtype_of(name: str) -> str:
    """Return the name of a data type among the machine's rates: ``bf16`` for ``bfloat16``."""
    return _DTYPES.get(name.lower(), name.lower())


def _read_flops_by_type(work: Mapping[str, float]) -> dict[str, float]:
    """Return FLOPs by data type, from metrics such as ``flops.int8``; empty where a workload declares one number."""
    flops = {name.removeprefix(OF_TYPE): flop for name, flop in work.items() if name.startswith(OF_TYPE) and flop > 0}
    return {_DTYPES.get(name, name): flop for name, flop in flops.items()}


def limit(recorded: CaseIndex, case: CaseResult, rates: PeakRates, counters: Iterable[Counters]) -> Limit:
    """Return what limits ``case``, of whose kernels ncu measured ``counters``.

    The declared bytes are the least that a call must move, and an unfused call moves more. So measured traffic decides;
    without it, a call that stays far below both peaks has no known limit.
    """
    issue, gpu_ns, flops = case.values.get("issue"), _gpu_ns(case), case.values.get("flops")
    moved, per_s = case.values.get("bytes_moved"), (case.gbytes_per_s or 0.0) * 1e9 or None
    dram_bytes, dram_bytes_per_s = _dram(recorded, case, counters) or (None, None)
    if dram_bytes:
        moved, per_s = dram_bytes, dram_bytes_per_s
    peak, memory = flops_rate(rates, case.params, case.values), rates.bytes_per_s
    ridge = peak / memory if peak and memory else None
    bandwidth_share = per_s / memory if per_s and memory else None
    done = case.values.get("flops_effective", flops)
    flops_share = case.tflops * 1e12 / peak * (done / flops) if case.tflops and peak and flops and done else None
    intensity = done / moved if done and moved else None
    limited_by = None
    if _is_host_bound(case, issue, gpu_ns):
        limited_by = Limiter.HOST
    elif intensity and ridge and (dram_bytes or max(flops_share or 0.0, bandwidth_share or 0.0) >= FAR_BELOW):
        limited_by = Limiter.COMPUTE if intensity > ridge else Limiter.MEMORY
    types = tuple(_read_flops_by_type(case.values))
    dtypes = () if types == (_named_type(case.params),) else types
    return Limit(limited_by, flops_share, issue, gpu_ns, intensity, dram_bytes, bandwidth_share, dtypes, ridge)


def _gpu_ns(case: CaseResult) -> float | None:
    """Return the kernel time of a call; where it is unknown, the time of the call.

    Kernels of several processes include waiting for each other, so there it is the time of the call as well.
    """
    timed = case.values.get("time")
    is_single = timed is None or case.values.keys().isdisjoint(_DISTRIBUTED)
    breakdown = case.breakdown
    if is_single and breakdown and breakdown.kind == "kernel" and breakdown.iterations is not None:
        return breakdown.total.ns
    return timed


def starves(case: CaseResult) -> bool:
    """Return True if the GPU waits for launches even though as many calls were queued as the queue holds."""
    breakdown, issue, time = case.breakdown, case.values.get("issue"), case.values.get("time")
    if breakdown is None or breakdown.kind != "kernel" or not breakdown.iterations or issue is None or time is None:
        return False
    is_slower = min(issue, time) > _SLOWER * breakdown.total.ns
    return breakdown.total.calls > QUEUE and is_slower and Flag.SYNCHRONISES not in case.flags


def _is_host_bound(case: CaseResult, issue: float | None, gpu_ns: float | None) -> bool:
    """Return True if launching takes longer than running. The flag of the timed call decides where it is set."""
    if Flag.HOST_BOUND in case.flags:
        return True
    if issue is not None and gpu_ns is not None:
        return issue > _SLOWER * gpu_ns
    return (case.idle_share or 0.0) > HOST_BOUND


def _dram(recorded: CaseIndex, case: CaseResult, counters: Iterable[Counters]) -> tuple[float, float] | None:
    """Return the DRAM bytes of a call and the bytes/s while its kernels run, as ncu measured them.

    None where ncu measured too small a share of the call's kernels.
    """
    if case.breakdown is None or not case.breakdown.iterations:
        return None
    totals = recorded.totals[case.id, case.breakdown.profiler].by_name
    moved = seconds = 0.0
    for row in counters:
        total, rate = totals.get(row.kernel), row.values.get(_DRAM_RATE)
        if total and rate and row.mean_ns:
            launches = total.calls / case.breakdown.iterations
            # ncu may have profiled one launch of many, which represents the others only if all do the same work.
            if row.calls >= launches or not total.has_high_variance:
                kernel_s = row.mean_ns / 1e9 * launches
                seconds += kernel_s
                moved += rate[0] * kernel_s
    covered = seconds * 1e9 / case.breakdown.total.ns
    return (moved, moved / seconds) if seconds and covered >= _LEAST_COVERED else None


# --- ncu metrics ------------------------------------------------------------------------------------------------------

#: The throughputs that a target may be set for, in % of what the hardware sustains.
THROUGHPUT = {
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}


def collect_counters(
    recorded: CaseIndex, cases: Iterable[str], targets: Mapping[str, float]
) -> dict[str, list[Counters]]:
    """Return ncu's metrics of each kernel by case, most time first; ``targets`` are in % by throughput."""
    counters: dict[str, list[Counters]] = {case: [] for case in cases}
    for (case, profiler, kernel), numbers in recorded.numbers.items():
        if profiler == "ncu" and kernel and case in counters:
            totals = recorded.totals.get((case, "ncu"), KernelTotals())
            counters[case].append(_counters(case, kernel, numbers, totals, targets))
    return {
        case: sorted(case_counters, key=lambda row: -(row.mean_ns or 0) * row.calls)
        for case, case_counters in counters.items()
    }


def _counters(
    case: str, kernel: str, numbers: Mapping[str, MetricRow], totals: KernelTotals, targets: Mapping[str, float]
) -> Counters:
    total = totals.by_name.get(kernel, ClassTotal())
    values = {name: (number.value, number.unit) for name, number in numbers.items() if not name.startswith(RULE)}
    # A throughput that was not measured misses no target.
    throughputs = {name: values[metric][0] for name, metric in THROUGHPUT.items() if metric in values}
    missed = tuple(name for name, target in targets.items() if name in throughputs and throughputs[name] < target)
    return Counters(
        case, kernel, int(total.calls), total.mean_ns if total.calls else None, values, _rules(numbers), missed
    )


def _rules(numbers: Mapping[str, MetricRow]) -> tuple[Rule, ...]:
    """Return the rules that estimate a speed-up, of the whole or of a part, and then those that never do."""
    rules: list[Rule] = []
    for metric, number in numbers.items():
        if metric.startswith(RULE):
            is_local = number.unit == LOCAL
            name = metric.removeprefix(RULE).removesuffix(f" {LOCAL}" if is_local else "")
            rules.append((name, None if pd.isna(number.value) else float(number.value), is_local))
    estimates = [rule for rule in rules if rule[1] is not None]
    silent = dict.fromkeys(name for name, speedup, _ in rules if speedup is None)
    return (*estimates, *((name, None, False) for name in silent if all(name != other for other, *_ in estimates)))
