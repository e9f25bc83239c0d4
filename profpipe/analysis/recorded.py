"""The tables of one workload, looked up once by case, so that each question about a case is a dictionary's."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from profpipe.analysis.shares import split
from profpipe.analysis.tallies import Key, OwnRange, Tally, own_ranges, rows, tally
from profpipe.concerns import status_told
from profpipe.findings import Split
from profpipe.tables import DEVICE_PREFIX, FAILED, RANK_PREFIX, Tables

#: What the name of a metric begins with that holds the estimate of one of ncu's rules, and the unit of a local one.
RULE, LOCAL = "rule:", "% local"

#: Metrics of a process of its own, whatever its profiler: taken from another one they would mix.
OF_ITS_PROCESS = ("time", "iterations", "issue", "loop_wall", "rounds", "sm_clock", "power", "temperature")

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
class Recorded:
    """What the tables hold of one workload by case, looked up once: a sweep has hundreds of cases.

    What was measured without a profiler of a case that then failed is no result of it, and is not among the numbers.
    """

    tables: Tables
    tallies: Mapping[Key, Tally]
    ranges: Mapping[Key, OwnRange]
    #: (case, profiler, subject) -> metric -> its row; of a number recorded twice (a resumed run) the last.
    numbers: Mapping[tuple[str, str, str], Mapping[str, Number]]
    #: (case, profiler) -> subject -> metric -> its row: of a single one of several processes, or of its GPU.
    apart: Mapping[tuple[str, str], Mapping[str, Mapping[str, Number]]]
    statuses: Mapping[str, Mapping[str, str]]
    flags: Mapping[Key, tuple[str, ...]]

    @classmethod
    def of(cls, tables: Tables) -> Recorded:
        statuses: dict[str, dict[str, str]] = {}
        flags: dict[Key, tuple[str, ...]] = {}
        for case, profiler, status, reason, text in rows(tables.cases, "case", "profiler", "status", "reason", "flags"):
            statuses.setdefault(case, {})[profiler] = status_told(status, reason)
            # Runs of before 0.2 wrote host-bound, later ones host_bound.
            flags[case, profiler] = tuple(str(flag).replace("-", "_") for flag in json.loads(text or "[]"))
        numbers: dict[tuple[str, str, str], dict[str, Number]] = {}
        apart: dict[tuple[str, str], dict[str, dict[str, Number]]] = {}
        # A rule of ncu speaks also where it estimates no speed-up.
        told = tables.metrics["value"].notna() | tables.metrics["metric"].str.startswith(RULE)
        m = tables.metrics[told]
        names = ("case", "profiler", "subject", "metric", "value", "unit", "n", "ci_low", "ci_high")
        for case, profiler, subject, metric, *row in rows(m, *names):
            failed = profiler == "plain" and statuses.get(case, {}).get(profiler) in FAILED
            if failed and metric.startswith((*OF_ITS_PROCESS, "peak_")):
                continue
            if subject.startswith(_APART):
                own = apart.setdefault((case, profiler), {}).setdefault(subject, {})
            else:
                own = numbers.setdefault((case, profiler, subject), {})
            number = Number(*row)
            # A rule may estimate both the whole and a part.
            own[f"{metric} {LOCAL}" if number.unit == LOCAL else metric] = number
        return cls(tables, tally(tables.kernels), own_ranges(tables.ranges), numbers, apart, statuses, flags)

    @functools.cached_property
    def recorders(self) -> Mapping[str, Set[str]]:
        """The profilers whose processes recorded a metric of any case itself, by metric."""
        found: dict[str, set[str]] = {}
        for (_, profiler, subject), own in self.numbers.items():
            for metric in own if not subject else ():
                found.setdefault(metric, set()).add(profiler)
        return found

    def splits(self, once: bool) -> dict[str, dict[str, Split]]:
        """Kernel time by case and profiler; ``once``: a command, whose process is its one iteration."""
        found: dict[str, dict[str, Split]] = {}
        for (case, profiler), own in self.tallies.items():
            own_range = self.ranges.get((case, profiler), OwnRange())
            count = self._iterations(case, profiler) or (1 if once else None)
            if divided := split(profiler, own, count, own_range):
                found.setdefault(case, {})[profiler] = divided
        return found

    def _iterations(self, case: str, profiler: str) -> int | None:
        """How often a case ran: the instances of its own range, else what the harness counted."""
        own_range = self.ranges.get((case, profiler))
        if own_range and own_range.instances:
            return own_range.instances
        said = self.numbers.get((case, profiler, ""), {}).get("iterations")
        return int(said.value) if said and case else None
