"""Index the tables of one workload by case: a sweep has hundreds of cases."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from profpipe.analysis.findings.workloads import KernelBreakdown
from profpipe.analysis.kernel_breakdown import break_down
from profpipe.analysis.kernel_totals import CaseRange, KernelTotals, Key, case_ranges, rows, sum_kernels
from profpipe.results.schema import DEVICE_PREFIX, FAILED, PROCESS_PREFIX, PROCESS_WALL, RANK_PREFIX, Tables

#: The prefix of a metric with the estimate of an ncu rule, and the unit of a local estimate.
RULE, LOCAL = "rule:", "% local"

#: Metrics that describe one process: those of different profilers must not mix.
OF_ITS_PROCESS = (
    "time", "iterations", "issue", "loop_wall", "rounds", "sm_clock", "power", "temperature", PROCESS_WALL,
)  # fmt: skip

_APART = (RANK_PREFIX, DEVICE_PREFIX)


@dataclass(frozen=True)
class Number:
    """A row of `metrics`; ``n`` and the interval may be missing."""

    value: float
    unit: str
    n: Any
    ci_low: Any
    ci_high: Any


@dataclass(frozen=True)
class CaseIndex:
    """The tables of one workload by case. Numbers of `plain` of a case that failed are left out: they are no result."""

    tables: Tables
    totals: Mapping[Key, KernelTotals]
    ranges: Mapping[Key, CaseRange]
    #: (case, profiler, subject) -> metric -> its row; of a number recorded twice by a resumed run, the last.
    numbers: Mapping[tuple[str, str, str], Mapping[str, Number]]
    #: (case, profiler) -> subject -> metric -> its row, for one rank or one GPU of several.
    by_rank: Mapping[tuple[str, str], Mapping[str, Mapping[str, Number]]]
    statuses: Mapping[str, Mapping[str, str]]
    flags: Mapping[Key, tuple[str, ...]]

    @classmethod
    def of(cls, tables: Tables) -> CaseIndex:
        statuses: dict[str, dict[str, str]] = {}
        flags: dict[Key, tuple[str, ...]] = {}
        for case, profiler, status, text in rows(tables.cases, "case", "profiler", "status", "flags"):
            statuses.setdefault(case, {})[profiler] = status
            flags[case, profiler] = tuple(json.loads(text or "[]"))
        numbers: dict[tuple[str, str, str], dict[str, Number]] = {}
        by_rank: dict[tuple[str, str], dict[str, dict[str, Number]]] = {}
        # A rule of ncu counts also without an estimate.
        is_known = tables.metrics["value"].notna() | tables.metrics["metric"].str.startswith(RULE)
        names = ("case", "profiler", "subject", "metric", "value", "unit", "n", "ci_low", "ci_high")
        for case, profiler, subject, metric, *row in rows(tables.metrics[is_known], *names):
            failed = profiler == "plain" and statuses.get(case, {}).get(profiler) in FAILED
            if failed and metric.startswith((*OF_ITS_PROCESS, "peak_")):
                continue
            if subject.startswith(PROCESS_PREFIX):
                continue  # the case has the numbers of all its processes
            if subject.startswith(_APART):
                own = by_rank.setdefault((case, profiler), {}).setdefault(subject, {})
            else:
                own = numbers.setdefault((case, profiler, subject), {})
            number = Number(*row)
            # A rule may have both a global and a local estimate.
            own[f"{metric} {LOCAL}" if number.unit == LOCAL else metric] = number
        return cls(tables, sum_kernels(tables.kernels), case_ranges(tables.ranges), numbers, by_rank, statuses, flags)

    @functools.cached_property
    def recorders(self) -> Mapping[str, Set[str]]:
        """The profilers that recorded a metric of a case, by metric."""
        found: dict[str, set[str]] = {}
        for (_, profiler, subject), own in self.numbers.items():
            for metric in own if not subject else ():
                found.setdefault(metric, set()).add(profiler)
        return found

    def breakdowns(self, once: bool) -> dict[str, dict[str, KernelBreakdown]]:
        """Return the kernel breakdowns by case and profiler. ``once``: a command runs one iteration."""
        found: dict[str, dict[str, KernelBreakdown]] = {}
        for (case, profiler), own in self.totals.items():
            own_range = self.ranges.get((case, profiler), CaseRange())
            counted = self.numbers.get((case, profiler, ""), {}).get("iterations") if case else None
            # The instances of the range, else the count of the harness.
            count = own_range.instances or (int(counted.value) if counted else 0) or (1 if once else None)
            if divided := break_down(profiler, own, count, own_range):
                found.setdefault(case, {})[profiler] = divided
        return found
