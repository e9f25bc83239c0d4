"""What ncu measured of each kernel, which of its own rules spoke of it, which of the pipeline's targets it misses."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from profpipe.analysis.recorded import LOCAL, RULE, Number, Recorded
from profpipe.analysis.tallies import Tally
from profpipe.kernel_findings import Counters, Rule

#: The throughputs that a target may be set for, in % of what the hardware sustains.
THROUGHPUT = {
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}


def of_case(recorded: Recorded, case: str, targets: Mapping[str, float]) -> list[Counters]:
    """ncu's metrics of each kernel of ``case``, most time first."""
    timed = recorded.tallies.get((case, "ncu"), Tally()).work
    sums = {kernel.name: (kernel.kernel_class, calls, ns) for kernel, (calls, ns) in timed.items()}
    found = []
    for (of_case, profiler, kernel), numbers in recorded.numbers.items():
        if of_case == case and profiler == "ncu" and kernel:
            cls, calls, ns = sums.get(kernel, ("", 0, 0.0))
            values = {name: (one.value, one.unit) for name, one in numbers.items() if not name.startswith(RULE)}
            mean_ns, missed = ns / calls if calls else None, _missed(values, targets)
            found.append(Counters(case, kernel, cls, int(calls), mean_ns, values, _rules(numbers), missed))
    return sorted(found, key=lambda row: -(row.mean_ns or 0) * row.calls)


def _rules(numbers: Mapping[str, Number]) -> tuple[Rule, ...]:
    """Those that estimate a speed-up, of the whole or of a part, and those that never do."""
    said = [_rule(name, one) for name, one in numbers.items() if name.startswith(RULE)]
    estimates = [rule for rule in said if rule.speedup is not None]
    silent = {rule.name: Rule(rule.name) for rule in said if rule.speedup is None}
    return (*estimates, *(rule for name, rule in silent.items() if name not in {one.name for one in estimates}))


def _rule(metric: str, one: Number) -> Rule:
    local = one.unit == LOCAL
    name = metric.removeprefix(RULE).removesuffix(f" {LOCAL}") if local else metric.removeprefix(RULE)
    return Rule(name, None if pd.isna(one.value) else float(one.value), local)


def _missed(values: Mapping[str, tuple[float, str]], targets: Mapping[str, float]) -> tuple[str, ...]:
    """The targets that the kernel stays below; of a throughput that was not measured nothing is said."""
    known = {name: values[metric][0] for name, metric in THROUGHPUT.items() if metric in values}
    return tuple(name for name, target in targets.items() if name in known and known[name] < target)
