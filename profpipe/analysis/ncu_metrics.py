"""Collect ncu's metrics of each kernel, the estimates of its rules and the pipeline's targets that it misses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from profpipe.analysis.case_index import LOCAL, RULE, CaseIndex, Number
from profpipe.analysis.findings.kernels import Counters, Rule
from profpipe.analysis.kernel_totals import KernelTotals

#: The throughputs that a target may be set for, in % of what the hardware sustains.
THROUGHPUT = {
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}


def collect_counters(
    recorded: CaseIndex, cases: Iterable[str], targets: Mapping[str, float]
) -> dict[str, list[Counters]]:
    """Return ncu's metrics of each kernel by case, most time first; ``targets`` are in % by throughput."""
    found: dict[str, list[Counters]] = {case: [] for case in cases}
    for (case, profiler, kernel), numbers in recorded.numbers.items():
        if profiler == "ncu" and kernel and case in found:
            totals = recorded.totals.get((case, "ncu"), KernelTotals())
            found[case].append(_counters(case, kernel, numbers, totals, targets))
    return {case: sorted(own, key=lambda row: -(row.mean_ns or 0) * row.calls) for case, own in found.items()}


def _counters(
    case: str, kernel: str, numbers: Mapping[str, Number], totals: KernelTotals, targets: Mapping[str, float]
) -> Counters:
    calls, ns = totals.by_name.get(kernel, (0, 0.0))
    values = {name: (number.value, number.unit) for name, number in numbers.items() if not name.startswith(RULE)}
    # A throughput that was not measured misses no target.
    known = {name: values[metric][0] for name, metric in THROUGHPUT.items() if metric in values}
    missed = tuple(name for name, target in targets.items() if name in known and known[name] < target)
    return Counters(case, kernel, int(calls), ns / calls if calls else None, values, _rules(numbers), missed)


def _rules(numbers: Mapping[str, Number]) -> tuple[Rule, ...]:
    """Return the rules that estimate a speed-up, of the whole or of a part, and then those that never do."""
    found: list[Rule] = []
    for metric, number in numbers.items():
        if metric.startswith(RULE):
            is_local = number.unit == LOCAL
            name = metric.removeprefix(RULE).removesuffix(f" {LOCAL}" if is_local else "")
            found.append(Rule(name, None if pd.isna(number.value) else float(number.value), is_local))
    estimates = [rule for rule in found if rule.speedup is not None]
    silent = dict.fromkeys(rule.name for rule in found if rule.speedup is None)
    return (*estimates, *(Rule(name) for name in silent if all(name != rule.name for rule in estimates)))
