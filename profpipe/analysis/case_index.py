"""The tables of one workload, indexed by case: a sweep has hundreds of cases."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import (
    COPIES,
    CaseRange,
    ClassTotal,
    Kernel,
    KernelBreakdown,
    KernelTotals,
    Key,
    break_down,
    by_preference,
    case_ranges,
    count_ranks,
    rows,
    sum_kernels,
)
from profpipe.measure.statistics import worse_of
from profpipe.results import schema
from profpipe.results.schema import DEVICE_PREFIX, FAILED, PROCESS_WALL, RANK_PREFIX, StepState, Tables

#: The prefix of a metric with the estimate of an ncu rule, and the unit of a local estimate.
RULE, LOCAL = "rule:", "% local"

#: What rows of kind ``cpu_op`` are, where their parser does not say.
CPU_ROWS = "CPU operators"

#: From this share on, a case has the flag profiler_overhead. Loops of 30 iterations repeat within about 3 %.
OVERHEAD = 0.10

#: Metrics that describe one process: those of different profilers must not mix.
OF_ITS_PROCESS = (
    "time", "iterations", "issue", "loop_wall", "rounds", "sm_clock", "power", "temperature", PROCESS_WALL,
)  # fmt: skip

#: The times of a case: of a call, of a step, or of its process.
_TIMES = ("time", "step_time", PROCESS_WALL)

_APART = (schema.RANK_PREFIX, schema.DEVICE_PREFIX)

#: The prefix of metrics of a program's steps.
_STEP = "step_"

#: The prefix of metrics of a whole recording in which no step was found.
_CAPTURE = "capture_"

#: The prefix of metrics of what a recording contradicts itself in.
_CHECK = "check_"


@dataclass(frozen=True)
class Measure:
    """A time per call: the median of ``n`` samples and how far they spread, or a mean over ``n`` iterations.

    That of a steady step is of the mean over the ranks, and ``n`` the number of steady steps.
    """

    ns: float
    n: int | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p10: float | None = None
    p90: float | None = None
    #: The shortest and the longest sample.
    lowest: float | None = None
    highest: float | None = None
    #: The number of processes that repeated the case; the interval is then that of their medians.
    processes: int = 1

    @property
    def calls_per_s(self) -> float | None:
        """None for a sum over an unknown number of calls, which gives no rate."""
        return None if self.ns <= 0 or self.n is None else 1e9 / self.ns

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval in ns."""
        return None if self.ci_low is None or self.ci_high is None else (self.ci_low, self.ci_high)

    @property
    def margin(self) -> float | None:
        """The larger side of the 95 % interval as a share of the time: 0.02 where it goes up to 2 % below or above."""
        if self.interval is None or not self.ns:
            return None
        return max(abs(end - self.ns) for end in self.interval) / self.ns

    def overlaps(self, other: Measure) -> bool:
        """Return True if both 95 % intervals are known and overlap."""
        if self.interval is None or other.interval is None:
            return False
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]


@dataclass(frozen=True)
class TimeSource:
    """The quantity that a workload's times are.

    ``quantity``: ``time`` (measured calls), ``step`` (steady steps of a program), ``wall`` (processes of a command
    without steps), ``kernel`` or ``cpu_op`` (sums).
    """

    profiler: str
    quantity: str
    #: What rows of kind ``cpu_op`` are.
    rows: str = field(default=CPU_ROWS, compare=False)

    @property
    def is_timed(self) -> bool:
        """True if calls, steps or processes were timed, not kernels summed."""
        return self.quantity in ("time", "step", "wall")


@dataclass(frozen=True)
class MetricRow:
    """A row of `metrics`; ``n`` and the interval may be missing."""

    value: float
    unit: str
    n: Any
    ci_low: Any
    ci_high: Any

    @property
    def time(self) -> Measure:
        """The number as a time in ns."""
        n, low, high = (None if pd.isna(value) else float(value) for value in (self.n, self.ci_low, self.ci_high))
        return Measure(self.value, None if n is None else int(n), low, high)


@dataclass(frozen=True)
class CaseIndex:
    """The tables of one workload by case. Numbers of `plain` of a case that failed are left out: they are no result.

    ``totals`` are those of a steady step where a case has steps (``step_totals``), else of the whole recording
    (``capture_totals``). Those of a command, and of steps, on several ranks are means over them.
    """

    tables: Tables
    capture_totals: Mapping[Key, KernelTotals]
    ranges: Mapping[Key, CaseRange]
    #: (case, profiler, subject) -> metric -> its row; of a number recorded twice by a resumed run, the last.
    numbers: Mapping[tuple[str, str, str], Mapping[str, MetricRow]]
    #: (case, profiler) -> subject -> metric -> its row, for one rank or one GPU of several.
    by_rank: Mapping[tuple[str, str], Mapping[str, Mapping[str, MetricRow]]]
    statuses: Mapping[str, Mapping[str, str]]
    flags: Mapping[Key, tuple[str, ...]]
    #: (case, profiler) -> metric -> subject -> its row, of the metrics of steps, and of recordings.
    step_numbers: Mapping[Key, Mapping[str, Mapping[str, MetricRow]]]
    #: The GPUs, or processes without one, whose mean the totals are, where they are means.
    rank_counts: Mapping[Key, int]
    #: The processes behind the times of a case that several processes repeated.
    process_counts: Mapping[Key, int]
    #: The wall times of the processes that repeated a command.
    process_walls: Mapping[Key, tuple[float, ...]]
    #: Whether a case without steps runs one iteration: a command that was recorded as a whole.
    runs_once: bool

    @classmethod
    def of(cls, tables: Tables, is_command: bool = False, runs_once: bool = False) -> CaseIndex:
        statuses: dict[str, dict[str, str]] = {}
        flags: dict[Key, tuple[str, ...]] = {}
        for case, profiler, status, text in rows(tables.cases, "case", "profiler", "status", "flags"):
            statuses.setdefault(case, {})[profiler] = status
            flags[case, profiler] = tuple(json.loads(text or "[]"))
        numbers: dict[tuple[str, str, str], dict[str, MetricRow]] = {}
        by_rank: dict[tuple[str, str], dict[str, dict[str, MetricRow]]] = {}
        steps: dict[Key, dict[str, dict[str, MetricRow]]] = {}
        processes: dict[Key, set[str]] = {}
        walls: dict[Key, tuple[float, ...]] = {}
        # A rule of ncu counts also without an estimate.
        is_known = tables.metrics["value"].notna() | tables.metrics["metric"].str.startswith(RULE)
        names = ("case", "profiler", "subject", "metric", "value", "unit", "n", "ci_low", "ci_high")
        for case, profiler, subject, metric, *row in rows(tables.metrics[is_known], *names):
            failed = profiler == "plain" and statuses.get(case, {}).get(profiler) in FAILED
            if failed and metric.startswith((*OF_ITS_PROCESS, "peak_", _STEP)):
                continue
            if subject.startswith(schema.PROCESS_PREFIX) and not metric.startswith(_CHECK):
                # The case has the numbers of all its processes.
                if metric in _TIMES:
                    processes.setdefault((case, profiler), set()).add(" ".join(subject.split()[:2]))
                if metric == PROCESS_WALL:
                    walls[case, profiler] = (*walls.get((case, profiler), ()), MetricRow(*row).value)
                continue
            if metric.startswith((_STEP, _CAPTURE, _CHECK)):
                steps.setdefault((case, profiler), {}).setdefault(metric, {})[subject] = MetricRow(*row)
                continue
            if subject.startswith(_APART):
                subject_numbers = by_rank.setdefault((case, profiler), {}).setdefault(subject, {})
            else:
                subject_numbers = numbers.setdefault((case, profiler, subject), {})
            number = MetricRow(*row)
            # A rule may have both a global and a local estimate.
            subject_numbers[f"{metric} {LOCAL}" if number.unit == LOCAL else metric] = number
        counts = count_ranks(tables.kernels) if is_command else {}
        places = tables.steps[["case", "profiler", "rank", "device"]].drop_duplicates()
        in_steps = places.groupby(["case", "profiler"], sort=False).size()
        counts |= {(str(case), str(profiler)): int(n) for (case, profiler), n in in_steps.items()}
        sums = sum_kernels(tables.kernels)
        totals = {key: kernel_totals.divided_by(counts.get(key, 1)) for key, kernel_totals in sums.items()}
        repeated = {key: len(subjects) for key, subjects in processes.items()}
        ranges = case_ranges(tables.ranges)
        return cls(tables, totals, ranges, numbers, by_rank, statuses, flags, steps, counts, repeated, walls, runs_once)

    @functools.cached_property
    def profilers(self) -> Sequence[str]:
        """The profilers that recorded kernels or numbers of any case, by preference."""
        return by_preference(key[1] for part in (self.capture_totals, self.numbers, self.step_numbers) for key in part)

    @functools.cached_property
    def step_times(self) -> Mapping[Key, MetricRow]:
        """The time of a steady step, as the mean over ranks."""
        times = ((key, numbers.get("step_time", {})) for key, numbers in self.step_numbers.items())
        return {key: subjects[""] for key, subjects in times if "" in subjects}

    def range_of_steps(self, case: str, profiler: str) -> tuple[float | None, float | None]:
        """Return the wall times in ns of the shortest and the longest steady step of any rank."""
        steps = self.tables.steps
        case_steps = steps[(steps["case"] == case) & (steps["profiler"] == profiler)]
        walls = case_steps.loc[case_steps["state"] == StepState.STEADY.value, "wall_ns"].dropna()
        return (float(walls.min()), float(walls.max())) if len(walls) else (None, None)

    @functools.cached_property
    def copies(self) -> Mapping[str, str]:
        """The names of copies and sets, which are no kernels, and their kinds."""
        kernels = self.tables.kernels
        return dict(rows(kernels[kernels["kind"].isin(COPIES)], "kernel", "kind"))

    @functools.cached_property
    def step_totals(self) -> Mapping[Key, KernelTotals]:
        """The kernels of a steady step, as the mean over ranks."""
        return {
            key: self._step_totals(self.capture_totals[key], numbers)
            for key, numbers in self.step_numbers.items()
            if "step_kernel_time" in numbers and key in self.capture_totals
        }

    def _step_totals(self, capture: KernelTotals, numbers: Mapping[str, Mapping[str, MetricRow]]) -> KernelTotals:
        launches = numbers.get("step_launches", {})
        times = {
            name: ClassTotal(launches[name].value if name in launches else 0.0, number.value)
            for name, number in numbers["step_kernel_time"].items()
        }
        sums = {Kernel(name, "", "", self.copies[name]): total for name, total in times.items() if name in self.copies}
        # A name may have several classes: a kernel of a convolution is one by its operator. The steps divide like the
        # whole recording, and their launches vary like its launches.
        for kernel, part in capture.work.items():
            name = kernel.name
            if name in times and name not in self.copies and part.ns:
                whole = capture.by_name[name]
                share, calls = part.ns / whole.ns, times[name].calls
                squares = whole.squares * share * calls / whole.calls if part.calls else 0.0
                sums[kernel] = replace(whole, calls=share * calls, ns=share * times[name].ns, squares=squares)
        return KernelTotals(sums, capture.streams)

    @functools.cached_property
    def totals(self) -> Mapping[Key, KernelTotals]:
        """The kernels of a steady step where a profiler found steps in any case, else of the whole recording.

        A step and a whole recording are not compared: a case without steps beside others with steps has no totals.
        """
        with_steps = {profiler for _, profiler in self.step_totals}
        whole = {key: totals for key, totals in self.capture_totals.items() if key[1] not in with_steps}
        return {**whole, **self.step_totals}

    def count_launches(self, kernels: pd.DataFrame, by: str | list[str]) -> dict[Any, int]:
        """Count kernel launches by the columns ``by``; copies and sets are none."""
        launched = kernels[kernels["kind"].isin(["kernel", "graph"])]
        return {key: int(calls) for key, calls in launched.groupby(by, sort=False)["calls"].sum().items()}

    @functools.cached_property
    def overheads(self) -> Mapping[Key, float]:
        """What a profiler added to the loop of a case, as a share of its wall time without it."""
        of_cases = ((key[:2], numbers) for key, numbers in self.numbers.items() if not key[2])
        walls = {key: numbers["loop_wall"].value for key, numbers in of_cases if "loop_wall" in numbers}
        alone = {case: wall for (case, profiler), wall in walls.items() if profiler == "plain" and wall}
        return {key: wall / alone[key[0]] - 1 for key, wall in walls.items() if key[1] != "plain" and key[0] in alone}

    def slowed_cases(self, profiler: str | None) -> set[str]:
        """Return the cases whose loop ``profiler`` has made far slower."""
        return {case for (case, name), share in self.overheads.items() if name == profiler and share > OVERHEAD}

    @functools.cached_property
    def recorders(self) -> Mapping[str, Set[str]]:
        """The profilers that recorded a metric of a case, by metric."""
        of_cases = ((profiler, numbers) for (_, profiler, subject), numbers in self.numbers.items() if not subject)
        by_metric = grouped((metric, profiler) for profiler, numbers in of_cases for metric in numbers)
        return {metric: set(profilers) for metric, profilers in by_metric.items()}

    def iterations(self, case: str, profiler: str) -> int:
        """Return the iterations of a case that a profiler recorded; 0 where they are not known."""
        counted = self.numbers.get((case, profiler, ""), {}).get("iterations") if case else None
        # The instances of the range, else the count of the harness.
        return self.ranges.get((case, profiler), CaseRange()).instances or (int(counted.value) if counted else 0)

    @functools.cached_property
    def breakdowns(self) -> Mapping[str, Mapping[str, KernelBreakdown]]:
        """The kernel breakdowns by case and profiler: of a steady step, of a call, or of everything."""
        by_case: dict[str, dict[str, KernelBreakdown]] = {}
        for (case, profiler), totals in self.totals.items():
            is_single = self.runs_once or (case, profiler) in self.step_totals
            count = self.iterations(case, profiler) or (1 if is_single else None)
            if divided := break_down(profiler, totals, count, self.ranges.get((case, profiler), CaseRange())):
                ranks = self.rank_counts.get((case, profiler), 1)
                by_case.setdefault(case, {})[profiler] = replace(divided, ranks=ranks)
        return by_case


# --- the processes and GPUs that ran a case together ------------------------------------------------------------------

#: The profilers that know single launches, the most trusted first: nsys sees all processes.
_LAUNCH_PROFILERS = ("nsys", "torch", "jax")

#: The metric of a rank's times; ``time`` has those of the slowest rank, which are the case's (``measure.rounds``). Runs
#: before 0.2 have each process's own as ``time``.
_OWN_TIME = "time_own"

#: The median, lowest and highest clock of a GPU.
_CLOCKS = "sm_clock"

#: By how much the samples must be longer than the loop: of 51 cases of two GPUs 43 were at most 1.05 times as long, and
#: the eight that had waited at least 1.14 times.
_LONGER = 1.1


@dataclass(frozen=True)
class RankResult:
    """One of the processes that ran a case together. ``name`` is its rank, and the number of its GPU.

    ``numbers`` are by metric, in ns, bytes and %: time, memory and errors without a profiler, and the communication
    and its overlap with computation under ``profiler``.
    """

    case: str
    name: str
    numbers: Mapping[str, float]
    profiler: str = ""


def find_ranks(recorded: CaseIndex, cases: Iterable[str]) -> Iterator[RankResult]:
    """Yield each process of those of ``cases`` that several ran, or in which a GPU communicated with others."""
    for case in cases:
        timed = _select_numbers(recorded, case, "plain", RANK_PREFIX)
        if timed:
            timed = {"0": recorded.numbers.get((case, "plain", ""), {}), **timed}
        seen = {p: _select_numbers(recorded, case, p, DEVICE_PREFIX) for p in _LAUNCH_PROFILERS}
        profiler, devices = next(((p, devices) for p, devices in seen.items() if devices), ("", {}))
        for name in sorted({*timed, *devices}, key=_make_sort_key):
            rows = {**timed.get(name, {}), **devices.get(name, {})}
            if _OWN_TIME in rows:
                rows["time"] = rows[_OWN_TIME]
            yield RankResult(case, name, {metric: number.value for metric, number in rows.items()}, profiler)


def worst_numbers(recorded: CaseIndex, case: str) -> dict[str, float]:
    """Return the errors, cosines, memory peaks and clocks of ``case`` that are worse in another process than the first.

    A ring leaves its first process the part of a causal sequence that is nearly exact, and the largest memory decides
    whether the case fits. The time of a case is that of its slowest process, so the lowest clocks go with it.
    """
    first = recorded.numbers.get((case, "plain", ""), {})
    worst: dict[str, float] = {}
    for numbers in _select_numbers(recorded, case, "plain", RANK_PREFIX).values():
        for metric, number in numbers.items():
            worse = min if metric.startswith(_CLOCKS) else worse_of(metric)
            if worse and metric in first:
                worst[metric] = worse(worst.get(metric, first[metric].value), number.value)
    return worst


def has_waited(recorded: CaseIndex, case: str) -> bool:
    """Return True if the samples of a case of several processes contain waiting of one process for another.

    They are then longer than an iteration of the loop around the call, though the loop also flushes the cache. Runs
    before 0.2 held GPUs for different times where one process was late: 3.1 ms for a call of 1.1 ms.
    """
    numbers = recorded.numbers.get((case, "plain", ""), {})
    if "time" not in numbers or "loop_wall" not in numbers or not _select_numbers(recorded, case, "plain", RANK_PREFIX):
        return False
    return numbers["time"].value > _LONGER * numbers["loop_wall"].value


def _select_numbers(recorded: CaseIndex, case: str, profiler: str, prefix: str) -> dict[str, Mapping[str, MetricRow]]:
    subjects = recorded.by_rank.get((case, profiler), {})
    return {
        subject.removeprefix(prefix): numbers for subject, numbers in subjects.items() if subject.startswith(prefix)
    }


def _make_sort_key(name: str) -> tuple[int, str]:
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name
