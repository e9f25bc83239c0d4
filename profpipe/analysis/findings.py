"""The findings of the analysis as plain values, without wording.

Times are nanoseconds, sizes bytes, shares between 0 and 1. ``None`` means not measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from profpipe.analysis.case_index import CPU_ROWS, CaseIndex, Measure, RankResult, TimeSource
from profpipe.analysis.cases import Axes, CaseAxes
from profpipe.analysis.kernels import (
    Counters,
    KernelBreakdown,
    KernelRow,
    Phase,
    SwitchCost,
)
from profpipe.analysis.steps import StepFindings
from profpipe.analysis.timeline import CaseTimeline
from profpipe.config.quantities import Grade, StudyValue
from profpipe.job import Status, as_text
from profpipe.measure.tolerance import ToleranceResult
from profpipe.results.manifest import JobEntry, PeakRates
from profpipe.results.schema import CAPTURE_LAUNCH
from profpipe.results.tasks import TaskState

if TYPE_CHECKING:
    from profpipe.config.models import Plot, Table, Workload
    from profpipe.config.settings import Target

# --- agreement --------------------------------------------------------------------------------------------------------

#: Up to this difference two times are the same: events resolve 0.5 us, and clocks move by a percent or two.
CLOSE = 0.03


#: A cause, such as ``launch gaps``, and its numbers by name.
#: Times are in ns, clocks in Hz, shares between 0 and 1; some numbers are names of profilers, GPUs and ranks.
Explanation: TypeAlias = "tuple[str, Mapping[str, float | str]]"


@dataclass(frozen=True)
class ProfilerTime:
    """One profiler's time per call of a case, and its difference to the reference.

    ``difference`` is None for the reference, and where no kernel is common to both. ``covered`` is the share of the
    reference's kernel time that the comparison is over. ``is_unexplained``: the difference is too large to pass and
    ``explanations`` explain it in part or not at all.
    """

    profiler: str
    ns: float
    difference: float | None = None
    explanations: tuple[Explanation, ...] = ()
    is_unexplained: bool = False
    covered: float = 1.0

    @property
    def is_close(self) -> bool:
        return self.difference is not None and abs(self.difference) <= CLOSE


# --- studies ----------------------------------------------------------------------------------------------------------


class NoValue(str, Enum):
    """Why a case that ran has no value. Other cells without a value hold the status of their case."""

    INACCURATE = "inaccurate"
    UNCHECKED = "unchecked"
    BASELINE_INACCURATE = "baseline inaccurate"
    BASELINE_UNCHECKED = "baseline unchecked"
    BASELINE_ELSEWHERE = "baseline on an unlike node"
    UNFUSED = "unfused"
    IN_GRAPHS = "inside CUDA graphs"

    __str__ = str.__str__


@dataclass(frozen=True)
class StudyCell:
    """A number in its stored unit, or a word; without either, ``missing`` is a status or a ``NoValue``."""

    value: float | str | None = None
    missing: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """One table: ``cells`` by row and column; None where the pipeline file has no such case.

    ``others`` are the values of the axes that the table does not name. A row or a column has a value for each axis.
    ``skipped`` are the numbers of rows and columns that are left out, because all their cases were skipped.
    """

    others: Axes
    rows: tuple[tuple[Any, ...], ...]
    columns: tuple[tuple[Any, ...], ...]
    cells: tuple[tuple[StudyCell | None, ...], ...]
    skipped: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Study:
    """The ``entry`` of `tables` or `plots` of the pipeline file and its grids, the largest first.

    Requested are ``row_axes``, those of a plot being what it runs over, and ``column_axes``, those of a plot being its
    lines; filled, a study has those of them that vary. Among its axes are ``value`` and ``phase`` where several were
    requested.
    """

    entry: Table | Plot
    values: tuple[StudyValue, ...]
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    grids: tuple[Grid, ...] = ()
    #: The number of grids that are left out because all their cases were skipped.
    skipped_grids: int = 0
    #: The values that no case has though some ran, and why cells lack them. A table leaves them out, a plot does not.
    absent: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: The requested ranges in which no case has anything.
    empty_phases: tuple[str, ...] = ()
    #: The flags of all cases, where there are several.
    shared_flags: tuple[str, ...] = ()
    #: The axes that have one value in all cells.
    fixed: Axes = ()
    #: The stored unit of each value.
    units: Mapping[str, str] = field(default_factory=dict)
    #: The stored unit of the first axis of the rows where that is a metric: its values were measured.
    row_unit: str | None = None
    time_source: TimeSource | None = None
    kernel_profiler: str | None = None
    #: That of any case under ``kernel_profiler``: all of them share their kind.
    breakdown: KernelBreakdown | None = None
    #: The compared axis, and the values that baselines have on it.
    compare: str | None = None
    baselines: tuple[Any, ...] = ()
    #: By axis, the number of cases that are left out because they have no value on it.
    cases_without_axis: Mapping[str, int] = field(default_factory=dict)
    #: By measure, the tolerance of the results, where all workloads have the same.
    tolerance: Mapping[str, float] = field(default_factory=dict)
    #: Whether a case leaves out a part of the work that its FLOP/s count.
    has_sparse_cases: bool = False

    @property
    def is_plot(self) -> bool:
        return "over" in self.entry.axes

    @property
    def has_cases(self) -> bool:
        return bool(self.grids or self.skipped_grids or self.absent)

    @property
    def is_per_call(self) -> bool:
        """True if kernel times are per call."""
        return self.breakdown is None or self.breakdown.iterations is not None

    @property
    def is_cpu(self) -> bool:
        return self.breakdown is not None and self.breakdown.kind == "cpu_op"

    @property
    def is_by_profiler(self) -> bool:
        """True if profilers are an axis: then each has its times, plain of calls and the others of their kernels."""
        return any("profiler" in axes for axes in self.entry.axes.values())

    @property
    def placed(self) -> tuple[str, ...]:
        """The axes of the rows and columns, ``value`` and ``phase`` among them."""
        return (*self.row_axes, *self.column_axes)

    def cells(
        self, grids: Sequence[Grid] | None = None
    ) -> Iterator[tuple[Mapping[str, Any], StudyValue, StudyCell | None]]:
        """Yield each cell of ``grids`` (default: all) with its place on the axes and its value."""
        for grid in self.grids if grids is None else grids:
            for row, cells in zip(grid.rows, grid.cells, strict=True):
                for column, cell in zip(grid.columns, cells, strict=True):
                    yield self.place(row, column), self.value_at(row, column), cell

    def place(self, row: Sequence[Any], column: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((*self.row_axes, *self.column_axes), (*row, *column), strict=True))

    def value_at(self, row: Sequence[Any], column: Sequence[Any]) -> StudyValue:
        name = self.place(row, column).get("value")
        return next((value for value in self.values if value.name == name), self.values[0])


# --- warnings ---------------------------------------------------------------------------------------------------------

#: The share of the kernel time below which kernels without a class change no conclusion.
_LEAST_BLUR: Final = 0.01


@dataclass(frozen=True)
class NotRun:
    """Cases without a result that ended alike. ``logs`` are relative to the run.

    ``is_whole_workload``: these are all cases of the workload. ``is_after_cases``: a job failed after its last case,
    and there are no ``cases``. ``is_cut_off``: the run was killed while the job ran, so some of the cases may have been
    measured and not read yet.
    """

    workload: str
    status: Status
    reason: str
    profilers: tuple[str, ...]
    cases: tuple[str, ...]
    is_whole_workload: bool = False
    logs: tuple[str, ...] = ()
    is_after_cases: bool = False
    is_cut_off: bool = False
    #: Set where tasks of a cluster lack the cases: why, and the nodes on which they stopped.
    task_state: TaskState | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """The kernel family that a case requests, and the families that ran, most time first.

    ``is_pytorch_copy``: PyTorch's build of the family ran.
    """

    workload: str
    case: str
    requested: str
    found: tuple[str, ...]
    is_met: bool
    is_pytorch_copy: bool = False


@dataclass(frozen=True)
class ClassCoverage:
    """The share of kernel time that a rule classifies, and the largest names without a class: (name, share).

    ``kind`` is ``kernel`` or ``cpu_op``; ``minimum`` the share that the pipeline file requires; ``attention`` the share
    of attention where a case requests a kernel family, else None.
    """

    workload: str
    profiler: str
    kind: str
    classified: float
    largest: tuple[tuple[str, float], ...] = ()
    minimum: float | None = None
    attention: float | None = None

    @property
    def is_too_low(self) -> bool:
        return self.minimum is not None and self.classified < self.minimum

    @property
    def blurs_attention(self) -> bool:
        """True if kernels without a class, 1 % of the time or more, could change attention's share by a tenth."""
        return self.attention is not None and 1 - self.classified >= max(_LEAST_BLUR, self.attention / 10)


@dataclass(frozen=True)
class Unattributed:
    """Kernel time of a profiler outside every case; ``flush_ns`` of it is the cache flush of the harness.

    ``has_setup``: the capture of a run of profpipe holds set-up and warm-up of the cases too.
    """

    workload: str
    profiler: str
    ns: float
    share: float
    flush_ns: float = 0.0
    has_setup: bool = False

    @property
    def unexplained(self) -> float:
        """The share of all kernel time outside every case that is neither set-up nor flush."""
        if self.has_setup:
            return 0.0
        return self.share * (1 - self.flush_ns / self.ns) if self.ns else 0.0


@dataclass(frozen=True)
class LaunchCounts:
    """How many launches two profilers recorded of the ``cases`` of a workload that both captured.

    ``number`` is the first one's: of all iterations, or of one where ``is_per_iteration`` because the profilers
    recorded different numbers of iterations. In ``same_by_kernel`` cases every kernel has the same count.
    ``differing`` are the cases with another total: (case, the first one's count, the second one's).
    """

    workload: str
    profilers: tuple[str, str]
    number: float
    is_per_iteration: bool
    cases: int
    same_by_kernel: int
    differing: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class DuplicateCase:
    """A timed case of a workload: its parameters that vary there, and its median time."""

    workload: str
    case: str
    ns: float
    axes: tuple[tuple[str, Any], ...] = ()


#: Up to this multiple of the lowest peak memory, cases count as needing the same.
_AS_MUCH = 1.01

#: From this share of the longest time on, shapes count as equally long: clocks alone change times by less.
_AS_LONG = 0.9


class Iteration(str, Enum):
    """What the kernel times of a workload are of."""

    CALL = "call"  # a measured call of a script
    STEP = "step"  # a steady step of a program
    PROCESS = "process"  # a command without steps, from its start to its end
    CAPTURE = "capture"  # a file with an unknown number of iterations


class Limiter(str, Enum):
    """What keeps a call from being faster."""

    HOST = "host"  # issuing the call takes longer than running it
    COMPUTE = "compute"  # more FLOP per byte than the ridge of the roofline
    MEMORY = "memory"  # fewer


@dataclass(frozen=True)
class Limit:
    """The limit of a call; ``limited_by`` is None where it is unknown.

    ``flops_share`` and ``bandwidth_share`` are the shares of the machine's rates that the call reaches. ``issue_ns``
    is the host's time to issue it, ``gpu_ns`` the GPU's time to run it. ``intensity`` and ``ridge`` are FLOP per byte.
    ``dram_bytes`` is the DRAM traffic that ncu measured. ``dtypes`` are the data types of the rates, where these are
    not the type that the case names.
    """

    limited_by: Limiter | None = None
    flops_share: float | None = None
    issue_ns: float | None = None
    gpu_ns: float | None = None
    intensity: float | None = None
    dram_bytes: float | None = None
    bandwidth_share: float | None = None
    dtypes: tuple[str, ...] = ()
    ridge: float | None = None


@dataclass(frozen=True)
class CaseResult:
    """One case: its place in the comparison, and its numbers."""

    id: str
    params: Mapping[str, Any]
    variant: str
    shape: Axes
    flags: tuple[str, ...] = ()
    #: The status of a case without a time.
    status: str = ""
    time: Measure | None = None
    breakdown: KernelBreakdown | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    of_peak_flops: float | None = None
    of_peak_bytes: float | None = None
    speedup: float | None = None
    is_baseline: bool = False
    #: Why there is no speed-up over the baseline: its result is ``inaccurate`` or ``unchecked``.
    baseline_flag: str = ""
    #: The flags that not every timed case of the workload has.
    unshared_flags: tuple[str, ...] = ()
    #: The speed-up from the kernel times of one profiler, whatever the basis of ``time``.
    kernel_speedup: float | None = None
    limit: Limit = Limit()
    #: The verdict on the result of a timed case, where the pipeline sets a tolerance.
    accuracy: ToleranceResult | None = None
    #: What a timed case reaches of the quantities that have a target, and its grade. Quantities: ``tflops`` in TFLOP/s;
    #: ``gpu_busy``, ``memory_bandwidth`` and ``sm`` in %; ``speedup`` as a ratio.
    grades: Mapping[str, tuple[float, Grade]] = field(default_factory=dict)

    @property
    def ns(self) -> float | None:
        """The time of the case; None without one."""
        return self.time.ns if self.time else None

    @property
    def tflops(self) -> float | None:
        flops, per_s = self.values.get("flops"), self.time and self.time.calls_per_s
        return flops * per_s / 1e12 if flops and per_s else None

    @property
    def gbytes_per_s(self) -> float | None:
        moved, per_s = self.values.get("bytes_moved"), self.time and self.time.calls_per_s
        return moved * per_s / 1e9 if moved and per_s else None

    @property
    def tflops_best(self) -> float | None:
        """TFLOP/s of the shortest sample."""
        if self.tflops is None or self.time is None or not self.time.lowest:
            return None
        return self.tflops * self.time.ns / self.time.lowest

    @property
    def peak_memory(self) -> float | None:
        """The most bytes that PyTorch had allocated on the GPU."""
        return self.values.get("peak_allocated")

    @property
    def is_on_cpu(self) -> bool:
        """True if a profiler recorded CPU operators of the case and no kernel."""
        return self.breakdown is not None and self.breakdown.kind == "cpu_op"

    @property
    def idle_share(self) -> float | None:
        return self.breakdown.idle_share if self.breakdown else None

    @property
    def is_disqualified(self) -> bool:
        """True if a tolerance is set and the result misses it or was not compared: the case cannot win."""
        return self.accuracy is not None and bool(self.accuracy.flag)

    @property
    def is_sparse(self) -> bool:
        """True if the case leaves out a part of the work that ``tflops`` counts."""
        return "flops_effective" in self.values and bool(self.values.get("flops"))

    @property
    def tflops_done(self) -> float | None:
        """TFLOP/s of the work that is done; for sparse work less than ``tflops``."""
        if self.tflops is None or not self.is_sparse:
            return self.tflops
        return self.tflops * self.values["flops_effective"] / self.values["flops"]


class WinVerdict(str, Enum):
    """Whether the fastest case of a shape may be called that."""

    CLEAR = "clear"
    TIE = "tie"  # the 95 % interval of another case overlaps
    INCONCLUSIVE = "inconclusive"  # a flag could have made the win
    UNOPPOSED = "unopposed"  # no other case has a time


class DoubtCause(str, Enum):
    """Why the lowest time is not reported as the fastest. The first two are about what a case ran."""

    WRONG_KERNELS = "wrong_kernels"  # kernels of another family ran
    CONTRADICTED = "contradicted"  # the same case took a different time in another workload
    NOT_COMPARED = "not_compared"  # no result was compared with the reference
    INACCURATE = "inaccurate"  # no case is accurate; the flag is that of the lowest time
    FLAGGED = "flagged"  # flags of the case could have made the lead
    NO_INTERVAL = "no_interval"  # the same, and its time has no 95 % interval
    ONE_SAMPLE = "one_sample"  # how far the time varies is unknown
    MAY_BE_FASTER = "may_be_faster"  # the cases waited for another process: their own times may be lower than the best
    CLOCKS = "clocks"  # the SM clocks of two cases, in Hz, could explain the lead of the first
    UNLIKE_NODES = "unlike_nodes"  # the cases ran on nodes of a cluster that differ
    NODE_SPREAD = "node_spread"  # the nodes of the two cases vary by as much as the lead, or by an unknown share


@dataclass(frozen=True)
class NodeSpread:
    """How far the times of ``case`` on like ``nodes`` lie apart: the longest over the shortest, minus 1."""

    case: str
    ratio: float
    nodes: int


@dataclass(frozen=True)
class Doubt:
    """A reason why the lowest time is not reported as the fastest, and the cases, flags and clocks that it is about.

    ``ratios`` are the lead and how far the clocks differ. ``differences`` has each fact in which nodes differ, with its
    values. ``spread`` is None where it is not known.
    """

    cause: DoubtCause
    variants: tuple[str, ...]
    flags: tuple[str, ...] = ()
    clocks_hz: tuple[float, ...] = ()
    differences: Differences = ()
    spread: NodeSpread | None = None
    ratios: tuple[float, ...] = field(default=(), compare=False)


#: Facts with more than one value among nodes, and these values.
Differences = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Nodes:
    """The nodes that measured the cases of a workload. Without a cluster there are none.

    ``of_cases`` has the nodes of each case, ``facts`` what decides whether two nodes are alike: GPU, driver, clocks,
    torch. ``spread`` is None where no case ran on several nodes.
    """

    of_cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    spread: NodeSpread | None = None
    #: Of each case that one program ran on several nodes: the facts in which these differ.
    within: Mapping[str, Differences] = field(default_factory=dict)

    def of(self, cases: Iterable[CaseResult]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for case in cases for node in self.of_cases.get(case.id, ())))

    def differences(self, cases: Iterable[CaseResult]) -> Differences:
        """Return each fact in which the nodes of the cases differ, with its values; none for like nodes."""
        return differences_of([self.facts.get(node, {}) for node in self.of(cases)])

    def refuse(self, cases: Iterable[CaseResult]) -> Doubt | None:
        """Return why cases cannot be compared at all: their nodes are unlike."""
        compared = list(cases)
        if not (differences := self.differences(compared)):
            return None
        return Doubt(DoubtCause.UNLIKE_NODES, tuple(case.variant for case in compared), differences=differences)

    def doubt(self, best: CaseResult, other: CaseResult) -> Iterator[Doubt]:
        """Yield why like nodes could have made the lead of ``best``: they vary by as much, or by an unknown share."""
        if len(self.of((best, other))) < 2 or not best.ns or not other.ns:
            return
        if self.spread is None or other.ns <= best.ns * (1 + self.spread.ratio):
            yield Doubt(DoubtCause.NODE_SPREAD, (best.variant, other.variant), spread=self.spread)


def differences_of(all_facts: Sequence[Mapping[str, str]]) -> Differences:
    names = dict.fromkeys(name for facts in all_facts for name in facts)
    values = ((name, tuple(dict.fromkeys(facts.get(name, "") for facts in all_facts))) for name in names)
    return tuple((name, distinct) for name, distinct in values if len(distinct) > 1)


@dataclass(frozen=True)
class Win:
    """The fastest case of a shape, and whether it may be called that.

    ``doubts`` are the reasons of an inconclusive verdict, the most important one first. Cases whose result is outside
    the tolerance take no part; ``disqualified`` are those of them with a lower time than the best. ``tied`` are the
    best and the cases whose 95 % intervals overlap the best one's.
    """

    best: CaseResult
    second: CaseResult | None
    verdict: WinVerdict
    doubts: tuple[Doubt, ...] = ()
    disqualified: tuple[CaseResult, ...] = ()
    tied: tuple[CaseResult, ...] = ()

    @property
    def lead(self) -> float:
        """The time of the next case over that of the best; 1 without a next case."""
        return self.second.ns / self.best.ns if self.second and self.second.ns and self.best.ns else 1.0


#: Words of the names of passes, and of what they are parts of.
_PASSES = frozenset({"forward", "backward", "fwd", "bwd", "optimizer"})
_WHOLES = frozenset({"step", "iteration", "total", "whole", "e2e", "request", "generate"})
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")


def _is_part(words: frozenset[str], whole: frozenset[str]) -> bool:
    """Return True for the words of a part: ``forward`` is one of ``forward_backward`` and of ``train_step``."""
    is_pass = words & _PASSES and not whole & _PASSES
    return words < whole <= _PASSES or bool(is_pass or (whole & _WHOLES and not words & _WHOLES))


#: The subject of a metric of a launch configuration.
_CONFIGURATION = re.compile(r"(.*)<<<(.*), (.*)>>>", re.DOTALL)


@dataclass(frozen=True)
class Shape:
    """All cases that differ only in the compared axis; the fastest first, those without a time last."""

    axes: Axes
    cases: tuple[CaseResult, ...]
    switch_costs: tuple[SwitchCost, ...] = ()
    win: Win | None = None

    @property
    def timed(self) -> tuple[CaseResult, ...]:
        return tuple(point for point in self.cases if point.time is not None)

    @property
    def fastest(self) -> CaseResult | None:
        """The case with the lowest time of those that are not disqualified."""
        return next((point for point in self.timed if not point.is_disqualified), None)

    @property
    def lowest_memory(self) -> tuple[CaseResult, ...]:
        """The cases with the lowest peak memory of those that may win; empty where all have the same.

        Peaks within 1 % count as the same: allocators round sizes up.
        """
        candidates = [case for case in self.timed if case.peak_memory and not case.is_disqualified]
        lowest = min((case.peak_memory or 0.0 for case in candidates), default=0.0)
        lowest_cases = tuple(case for case in candidates if (case.peak_memory or 0.0) <= _AS_MUCH * lowest)
        return lowest_cases if len(lowest_cases) < len(candidates) else ()

    @property
    def baseline(self) -> CaseResult | None:
        return next((point for point in self.cases if point.is_baseline), None)

    @property
    def size(self) -> float:
        """The product of the numbers; without any (``size small``), the FLOPs of a call.

        Numbers below 1 (``dropout 0.1``, or 0 for a default) do not count.
        """
        numbers = [v for _, v in self.axes if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if numbers:
            return math.prod((max(number, 1.0) for number in numbers), start=1.0)
        return max((point.values.get("flops") or 1.0 for point in self.cases), default=1.0)


@dataclass(frozen=True)
class WorkloadGpu:
    """The GPU of a workload, and what it costs."""

    #: Its peak rates, and the rates for its limits: those that were measured on such a GPU, if any were.
    peaks: PeakRates
    rates: PeakRates
    #: Its name, and the dense FLOP/s of the data sheet by data type; empty for several kinds of GPUs.
    data_sheet: tuple[str, Mapping[str, float]]
    #: The maximum SM clock in Hz.
    highest_clock: float | None
    #: EUR for an hour; None where the user does not say.
    price: float | None
    is_absent: bool

    @property
    def rates_measured(self) -> bool:
        """True if the rates were measured on such a machine, not computed from its data sheet."""
        return self.rates is not self.peaks

    @property
    def ridges(self) -> dict[str, float]:
        """The FLOP per byte by data type above which arithmetic is the limit."""
        rates = {name: rate for name, rate in self.rates.flops.items() if rate is not None}
        return {name: rate / self.rates.bytes_per_s for name, rate in rates.items()} if self.rates.bytes_per_s else {}


@dataclass(frozen=True)
class RecordedWorkload(CaseAxes):
    """One workload or one ingested file: its tables, indexed by case, and what its times are of.

    ``kernel_profiler`` names the profiler whose kernel times represent it.
    """

    name: str
    #: The workload in the pipeline file; None for ingested files.
    declared: Workload | None
    jobs: Sequence[JobEntry]
    recorded: CaseIndex
    time_source: TimeSource | None
    kernel_profiler: str | None
    #: The nodes of a cluster that measured its times.
    nodes: Nodes
    gpu: WorkloadGpu

    @property
    def breakdowns(self) -> Mapping[str, Mapping[str, KernelBreakdown]]:
        """The kernels by case and profiler."""
        return self.recorded.breakdowns

    @property
    def is_command(self) -> bool:
        return self.declared is not None and self.declared.is_command

    @property
    def cpu_rows(self) -> str:
        """What its rows of kind ``cpu_op`` are."""
        return self.time_source.rows if self.time_source else CPU_ROWS

    @property
    def variants(self) -> tuple[str, ...]:
        """The values of the compared axis, in the order in which the cases were planned."""
        return tuple(dict.fromkeys(map(self.variant, self.params)))

    @property
    def launches(self) -> Mapping[str, int]:
        """The launches by profiler, also those without a time."""
        return self.recorded.count_launches(self.recorded.tables.kernels, "profiler")

    @property
    def untimed(self) -> Mapping[tuple[str, str], int]:
        """The launches without a time, by case and profiler."""
        kernels = self.recorded.tables.kernels
        return self.recorded.count_launches(kernels[kernels["total_ns"].isna()], ["case", "profiler"])

    @property
    def targets(self) -> Mapping[str, Target]:
        """What the pipeline file expects of a case, by quantity."""
        return {name: target for name, target in (self.declared.targets if self.declared else ()) if target}

    @property
    def tolerance(self) -> Mapping[str, float]:
        """The largest error allowed, by measure; empty without a tolerance."""
        return self.declared.limits if self.declared else {}

    @property
    def timed_quantity(self) -> str:
        """What the times of its cases are of: ``step``; empty without times."""
        return self.time_source.quantity if self.time_source else ""

    @cached_property
    def iteration(self) -> Iteration:
        """What the kernel times of the workload are of."""
        profiler = self.kernel_profiler or ""
        if any(name == profiler for _, name in self.recorded.step_totals):
            return Iteration.STEP
        if self.is_command:
            return Iteration.PROCESS
        # Kernels outside every case have no iterations, also in a run of calls.
        breakdowns = [
            by_profiler[profiler] for case, by_profiler in self.breakdowns.items() if case and profiler in by_profiler
        ]
        return (
            Iteration.CALL
            if breakdowns and all(breakdown.iterations is not None for breakdown in breakdowns)
            else Iteration.CAPTURE
        )

    @property
    def is_per_call(self) -> bool:
        """True if kernel times are per call, not of a step or of everything."""
        return self.iteration is Iteration.CALL


@dataclass(frozen=True)
class KernelFindings:
    """The longest kernels of each case, and the counters of ncu."""

    top: tuple[KernelRow, ...]
    counters: tuple[Counters, ...]
    #: How many kernels of a case the report shows; None where the pipeline file does not say.
    shown: int | None
    #: How many cases ncu did not count, because they are smaller ones.
    uncounted: int = 0


@dataclass(frozen=True)
class PhaseFindings:
    """The phases of each case.

    ``work`` are those with FLOPs or bytes, and ``host`` those of cases without kernels.
    """

    kernels: tuple[Phase, ...]
    work: tuple[Phase, ...]
    host: tuple[Phase, ...]


@dataclass(frozen=True)
class WorkloadFindings(RecordedWorkload):
    """A workload and what is found in its tables."""

    shapes: tuple[Shape, ...]
    kernels: KernelFindings
    phases: PhaseFindings
    steps: StepFindings
    timelines: tuple[CaseTimeline, ...]
    ranks: tuple[RankResult, ...]
    #: By case, its times under each profiler; the first one is the reference for the others.
    agreements: Mapping[str, tuple[ProfilerTime, ...]]

    @property
    def cases(self) -> tuple[CaseResult, ...]:
        return tuple(point for shape in self.shapes for point in shape.cases)

    @property
    def is_on_cpu(self) -> bool:
        """True if a profiler recorded CPU operators of a case and no kernel."""
        return any(case.is_on_cpu for case in self.cases)

    @property
    def varying_shape(self) -> tuple[str, ...]:
        """The names of the shapes' axes."""
        return tuple(axis for axis, _ in self.shapes[0].axes) if self.shapes else ()

    @cached_property
    def launch_times(self) -> Mapping[str, Mapping[tuple[str, str, str], Measure]]:
        """Of each case of a command without steps: the median time of a launch by kernel, grid and block, in order."""
        if self.timed_quantity != "wall":
            return {}
        by_case = {}
        for case in self.cases:
            of_case = self.recorded.step_numbers.get((case.id, self.kernel_profiler or ""), {}).get(CAPTURE_LAUNCH, {})
            launches = [(_CONFIGURATION.fullmatch(name), number.time) for name, number in of_case.items()]
            ordered = sorted(((match, time) for match, time in launches if match), key=lambda pair: pair[1].ns)
            by_case[case.id] = {(match[1], match[2], match[3]): time for match, time in ordered}
        return {case: times for case, times in by_case.items() if times}

    @cached_property
    def whole(self) -> tuple[str, str] | None:
        """The axis whose values are parts of the work and the whole, and the whole: ``what`` and ``train_step``.

        The words of the values say which is the whole, and no part takes longer. A forward pass beside both passes is
        inference, and no part.
        """
        for axis in self.varying_shape:
            values = dict.fromkeys(as_text(dict(shape.axes)[axis]) for shape in self.shapes)
            words = {value: frozenset(word.lower() for word in _WORD.findall(value)) for value in values}
            for value, of_whole in words.items():
                has_parts = len(words) > (1 if of_whole & _WHOLES else 2)
                # The first value that is no part ends the search: an axis may have very many.
                are_parts = all(_is_part(of_part, of_whole) for name, of_part in words.items() if name != value)
                if has_parts and are_parts and self._is_longest(axis, value):
                    return axis, value
        return None

    def _is_longest(self, axis: str, whole: str) -> bool:
        """Return True if each case takes no longer with another value of ``axis`` than with ``whole``."""
        times = {(shape.axes, case.variant): case.time.ns for shape in self.shapes for case in shape.timed if case.time}
        at_whole = (tuple((name, whole if name == axis else value) for name, value in axes) for axes, _ in times)
        pairs = [(ns, times.get((axes, key[1]))) for axes, (key, ns) in zip(at_whole, times.items(), strict=True)]
        are_no_longer = [part <= (1 + CLOSE) * ns for part, ns in pairs if ns is not None]
        return bool(are_no_longer) and all(are_no_longer)

    @cached_property
    def wholes(self) -> tuple[Shape, ...]:
        """The shapes that are no part of another one."""
        return tuple(shape for shape in self.shapes if not self.whole or self.whole in shape.axes)

    @cached_property
    def largest(self) -> Shape | None:
        """The shape with the largest ``size``, no part; of equals the one with most timed cases, then the longest."""
        ranks = [(shape.size, len(shape.timed)) for shape in self.wholes]
        highest = max(ranks, default=None)
        equals = [shape for shape, rank in zip(self.wholes, ranks, strict=True) if rank == highest]
        times = [max((case.time.ns for case in shape.timed if case.time), default=0.0) for shape in equals]
        return next((s for s, ns in zip(equals, times, strict=True) if ns >= _AS_LONG * max(times)), None)


@dataclass(frozen=True)
class Findings:
    """All findings of a run."""

    workloads: tuple[WorkloadFindings, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    #: Cases that a run which has not ended has no row of.
    pending: tuple[NotRun, ...] = ()
    has_ended: bool = True
    expectations: tuple[Expectation, ...] = ()
    coverage: tuple[ClassCoverage, ...] = ()
    unattributed: tuple[Unattributed, ...] = ()
    #: By workload and profiler, the cases that ended well and of which the profiler recorded no kernel.
    unseen: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    launch_counts: tuple[LaunchCounts, ...] = ()
    #: Cases of two workloads whose times differ by more than intervals and clocks explain; the longer comes first.
    duplicates: tuple[tuple[DuplicateCase, DuplicateCase], ...] = ()
    #: The tables and the plots that the pipeline file names.
    studies: tuple[Study, ...] = ()
    plots: tuple[Study, ...] = ()

    def cases_of(self, workload: str) -> dict[str, CaseResult]:
        """Return the cases of a workload by id; empty where no workload has this name."""
        return {case.id: case for candidate in self.workloads if candidate.name == workload for case in candidate.cases}

    @property
    def case_count(self) -> int:
        return sum(1 for workload in self.workloads for point in workload.cases if point.id)

    @property
    def failed(self) -> bool:
        """True if a case failed, or an expectation or the required coverage was not met."""
        return self.expectations_failed or any(group.status not in ("ok", "skipped") for group in self.not_run)

    @property
    def expectations_failed(self) -> bool:
        """True if an expectation of a workload, or the coverage that the pipeline requires, was not met."""
        return any(not e.is_met for e in self.expectations) or any(c.is_too_low for c in self.coverage)
