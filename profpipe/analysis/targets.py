"""Collect what each case reaches of the quantities that the pipeline file sets targets for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from profpipe.analysis.findings.kernels import Counters
from profpipe.analysis.findings.targets import Target, TargetFindings
from profpipe.analysis.findings.workloads import CaseResult
from profpipe.analysis.ncu_metrics import THROUGHPUT
from profpipe.analysis.steps import CaseSteps
from profpipe.measure.flags import Flag


def compare(
    declared: Mapping[str, Any],
    cases: Mapping[str, CaseResult],
    counters: Mapping[str, Iterable[Counters]],
    steps: Mapping[str, CaseSteps],
) -> TargetFindings:
    """Return the targets of a workload, ``declared`` in the pipeline file, and what each case with a time reaches."""
    targets = {name: Target(limits["good"], limits.get("poor")) for name, limits in declared.items() if limits}
    timed = {id: case for id, case in cases.items() if targets and case.time}
    found = {id: _values(case, counters.get(id, ()), steps.get(id)) for id, case in timed.items()}
    values = {id: {name: own[name] for name in own if name in targets} for id, own in found.items()}
    return TargetFindings(targets, values)


def _values(case: CaseResult, counters: Iterable[Counters], steps: CaseSteps | None) -> dict[str, float]:
    """Return the known quantities of a case in the units of the targets, without rates above the peak."""
    is_wrong = Flag.ABOVE_PEAK in case.marks
    bandwidth, sm = case.limit.bandwidth_share, THROUGHPUT["sm"]
    # The mean over the kernels that ncu measured, weighted by their time.
    known = [(row.mean_ns * row.calls, row.values[sm][0]) for row in counters if row.mean_ns and sm in row.values]
    all_ns = sum(ns for ns, _ in known)
    # The share of a call, or of a step without its profiler, in which a kernel or a copy runs.
    parts = steps.parts_without_profiler if steps else None
    idle = parts.idle_ns / parts.wall_ns if parts is not None and parts.wall_ns else case.idle_share
    found = {
        "tflops": None if is_wrong else case.tflops_done,
        "gpu_busy": None if idle is None else 100 * (1 - idle),
        "memory_bandwidth": None if is_wrong or bandwidth is None else 100 * bandwidth,
        "sm": sum(ns * percent for ns, percent in known) / all_ns if all_ns else None,
        "speedup": None if case.is_baseline else case.speedup,
    }
    return {name: value for name, value in found.items() if value is not None}
