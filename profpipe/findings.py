"""What the analysis found, as plain values: no frame, no file, no wording.

They stand below the stages so that ``analyze`` can make them and ``report`` can word them without knowing each other.
Times are nanoseconds, sizes bytes, shares between 0 and 1. ``None`` means that nobody measured it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profpipe.concerns import Coverage, Expectation, Launches, NotRun, Twice, Unattributed, Unseen
from profpipe.kernel_findings import Counters, KernelRow, Phase
from profpipe.phase_findings import HostPhase, Memory, PhaseWork
from profpipe.rank_findings import OfRank
from profpipe.study_findings import Study
from profpipe.tolerance import Verdict

Axes = tuple[tuple[str, Any], ...]

#: From this share on a case under a profiler is marked profiler_overhead. Loops of 30 iterations repeat within some
#: 3 %; a tenth is well outside of that, and what was computed from wall time (idle shares) is off by up to as much.
OVERHEAD = 0.10


#: From this share of a call on a difference of one of its parts is told.
CHANGE = 0.02

#: Shapes with as much work take as long from this share of the longest time on: clocks alone move it by less.
_AS_LONG = 0.9


@dataclass(frozen=True)
class Measure:
    """A time per call: the median of ``n`` samples and how far they spread, or a mean over ``n`` iterations."""

    ns: float
    n: int | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    p10: float | None = None
    p90: float | None = None
    cv_percent: float | None = None

    @property
    def margin(self) -> float | None:
        """The larger side of the 95 % interval as a share of the time: 0.02 where it goes up to 2 % below or above."""
        if self.ci_low is None or self.ci_high is None or not self.ns:
            return None
        return max(self.ci_high - self.ns, self.ns - self.ci_low) / self.ns


@dataclass(frozen=True)
class Part:
    """Launches and kernel time, both per call."""

    calls: float = 0.0
    ns: float = 0.0


@dataclass(frozen=True)
class Split:
    """The kernel time of one case under one profiler, divided into what the kernels do.

    ``iterations`` is None where the profiler does not say how often the case ran: then everything is the sum over all
    of them. ``kind`` is ``kernel``, or ``cpu_op`` where the numbers are the self time of CPU operators. ``idle`` is
    the part of the case's range, or of the time from its first kernel to the last where that is longer, in which no
    kernel ran.
    """

    profiler: str
    kind: str
    iterations: int | None
    parts: Mapping[str, Part]
    total: Part
    #: The same time by kernel class.
    classes: Mapping[str, Part] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    idle: float | None = None
    #: Per call: the time in which some kernel ran, and that of the case's range, which the host opens and closes.
    busy_ns: float | None = None
    range_ns: float | None = None
    #: What is in no part of its own, by kernel class.
    rest: Mapping[str, Part] = field(default_factory=dict)
    #: Per call: from the first kernel's start to the last one's end; what lies between kernels is in it.
    span_ns: float | None = None
    #: Copies and sets that are no kernels, and not in ``total``.
    copies: Part = Part()

    def part(self, name: str) -> Part:
        return self.parts.get(name, Part())

    def least_change(self, other: Split) -> float:
        """From which difference on, in ns, a part of the two calls is told: what is little of a long one may be much of
        the short one that replaces it.
        """
        return CHANGE * min(self.total.ns, other.total.ns)

    @property
    def fused(self) -> bool:
        """Whether an attention kernel ran, rather than gemm, softmax and gemm."""
        return self.part("attention").ns > 0


@dataclass(frozen=True)
class Basis:
    """What the times of a workload are.

    ``quantity``: ``time`` (measured calls), ``wall`` (processes of a command), ``kernel`` or ``cpu_op`` (sums).
    """

    profiler: str
    quantity: str

    @property
    def timed(self) -> bool:
        """Whether calls were timed, rather than their kernels summed."""
        return self.quantity in ("time", "wall")


@dataclass(frozen=True)
class Limit:
    """What keeps a call from being faster.

    ``binds``: ``host`` where issuing takes longer than running, else ``compute`` or ``memory``, by the side of the
    roofline's ridge on which the call's FLOP per byte lie; empty where that is unknown. ``of_flops`` and
    ``of_bandwidth`` are the shares of the two rates that it reaches. ``issue_ns`` is what the host takes to issue a
    call, ``gpu_ns`` the GPU's time for it. ``traffic`` are the bytes of a call that ncu saw at the DRAM, which may be
    more than a call must move. ``dtypes`` are the data types that it is held against, where they are not the one that
    the case names; ``ridge`` is the roofline's for it.
    """

    binds: str = ""
    of_flops: float | None = None
    issue_ns: float | None = None
    gpu_ns: float | None = None
    intensity: float | None = None
    traffic: float | None = None
    of_bandwidth: float | None = None
    dtypes: tuple[str, ...] = ()
    ridge: float | None = None


@dataclass(frozen=True)
class Point:
    """One case: where it stands in the comparison, and what is known of it."""

    id: str
    params: Mapping[str, Any]
    variant: str
    shape: Axes
    marks: tuple[str, ...] = ()
    #: What became of it, where that left it without a time.
    fate: str = ""
    time: Measure | None = None
    split: Split | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    tflops: float | None = None
    of_peak_flops: float | None = None
    gbytes_per_s: float | None = None
    of_peak_bytes: float | None = None
    speedup: float | None = None
    is_baseline: bool = False
    #: Why its baseline's result is none that it could be held against: ``inaccurate``, ``unchecked``.
    baseline_mark: str = ""
    #: Those of its marks that not every timed case of the workload carries.
    own_marks: tuple[str, ...] = ()
    #: The same from the kernels of one profiler, whatever the basis of ``time`` is.
    kernel_speedup: float | None = None
    limit: Limit = Limit()
    #: Whether its result is within the tolerance, where the pipeline sets one and it has a time.
    accuracy: Verdict | None = None

    @property
    def barred(self) -> bool:
        """Whether its time is no answer: under a tolerance its result misses it, or nobody compared it."""
        return self.accuracy is not None and bool(self.accuracy.mark)

    @property
    def is_sparse(self) -> bool:
        """Whether it leaves out a part of the work that ``tflops`` counts."""
        return "flops_effective" in self.values and bool(self.values.get("flops"))

    @property
    def tflops_done(self) -> float | None:
        """TFLOP/s of the work that is done: of a sparse call less than of the dense one that it stands for."""
        if self.tflops is None or not self.is_sparse:
            return self.tflops
        return self.tflops * self.values["flops_effective"] / self.values["flops"]


@dataclass(frozen=True)
class Win:
    """Who is fastest in a shape, and whether it may be called that.

    ``verdict``: ``clear``; ``level`` where the 95 % interval of another overlaps that of the best; ``void`` where a
    mark could have made the win, which ``why`` says; ``only`` where nothing else has a time. Those whose result is
    outside the tolerance do not take part; ``barred`` are those of them that took less time than the best. ``level``
    are the best and all whose intervals overlap with its own, where that is the verdict.
    """

    best: Point
    second: Point | None
    verdict: str
    why: str = ""
    barred: tuple[Point, ...] = ()
    level: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Swap:
    """What putting ``variant`` in the baseline's place changes; ratios above 1 are faster.

    All but ``measured_call`` come from one profiler's kernels.
    ``limit`` is Amdahl's: the speed-up of the call if the attention kernel took no time at all.
    ``changes`` are the parts that cost more or less than in the baseline: (part, difference in ns per call, in calls);
    ``copies`` among them are no kernels, and in no ratio of theirs.
    ``mark``: ``unchecked`` where the pipeline sets a tolerance and one of the two results was not held to it.
    """

    variant: str
    attention: float | None
    with_helpers: float | None
    call: float
    measured_call: float | None
    limit: float | None
    changes: tuple[tuple[str, float, float], ...] = ()
    mark: str = ""

    @property
    def faster_kernel_slower_call(self) -> bool:
        """One percent either way is not called a difference."""
        call = self.measured_call if self.measured_call is not None else self.call
        return self.attention is not None and self.attention > 1.01 and call < 0.99


@dataclass(frozen=True)
class Shape:
    """All cases that differ in the compared axis only; the fastest first, those without a time last."""

    axes: Axes
    points: tuple[Point, ...]
    swaps: tuple[Swap, ...] = ()
    win: Win | None = None

    @property
    def timed(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.time is not None)

    @property
    def longest_ns(self) -> float:
        """The longest time of its cases."""
        return max((point.time.ns for point in self.points if point.time), default=0.0)

    @property
    def fastest(self) -> Point | None:
        """The lowest time of those that may be called fast."""
        return next((point for point in self.timed if not point.barred), None)

    @property
    def baseline(self) -> Point | None:
        return next((point for point in self.points if point.is_baseline), None)

    @property
    def size(self) -> float:
        """The product of its numbers; where it has none (``size small``, ``seqlens 8x128``) the FLOPs of a call.

        Shares (``dropout 0.1``) are no sizes, and a zero stands for a default.
        """
        numbers = [v for _, v in self.axes if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if numbers:
            return math.prod((max(number, 1.0) for number in numbers), start=1.0)
        return max((point.values.get("flops") or 1.0 for point in self.points), default=1.0)


@dataclass(frozen=True)
class Figure:
    """One profiler's time per call of a case, and its difference to the reference.

    ``reason`` begins with its kind: ``launch gaps: 3.5 us around 1 kernel``. ``covered`` is the share of the
    reference's kernel time that the comparison is over, where that is not all. ``flagged``: the difference is too large
    to pass, and nothing explains all of it; ``reason`` may then say what explains a part.
    """

    profiler: str
    ns: float
    difference: float | None = None
    reason: str = ""
    flagged: bool = False
    covered: float = 1.0


@dataclass(frozen=True)
class Agreement:
    """The same call as each profiler timed it; ``reference`` names the one the others are compared with."""

    point: Point
    reference: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Overhead:
    """What a profiler added to the loop of a case: the wall time of an iteration over that without it, less 1."""

    case: str
    profiler: str
    share: float

    @property
    def marked(self) -> bool:
        return self.share > OVERHEAD


@dataclass(frozen=True)
class WorkloadFindings:
    """One workload (or one ingested file): its axes, its shapes and everything that was computed from them."""

    name: str
    #: Parameters with one value, and those whose values differ between cases.
    fixed: Axes
    varying: tuple[str, ...]
    compare: str | None
    baseline: Mapping[str, Any]
    basis: Basis | None
    kernel_profiler: str | None
    shapes: tuple[Shape, ...]
    #: Launches by profiler, also of those without a time.
    launches: Mapping[str, int] = field(default_factory=dict)
    #: Launches without a time, by case and profiler.
    untimed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Values of the compared axis, in the order in which the cases were planned.
    variants: tuple[str, ...] = ()
    #: Marks that every timed case carries.
    shared_marks: tuple[str, ...] = ()
    asked_samples: int | None = None
    top: tuple[KernelRow, ...] = ()
    phases: tuple[Phase, ...] = ()
    phase_work: tuple[PhaseWork, ...] = ()
    #: Of cases without kernels.
    host_phases: tuple[HostPhase, ...] = ()
    memory: tuple[Memory, ...] = ()
    ranks: tuple[OfRank, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    overheads: tuple[Overhead, ...] = ()
    counters: tuple[Counters, ...] = ()
    #: What a good kernel reaches, in % of the hardware's peak: {"memory": 80, "sm": 90}.
    targets: Mapping[str, float] = field(default_factory=dict)
    #: FLOP per byte above which arithmetic rather than memory limits, by data type; and what the rates are taken from.
    ridges: Mapping[str, float] = field(default_factory=dict)
    rates_from: str = ""
    #: Whether those rates were measured on such a machine, rather than computed from its data sheet.
    rates_measured: bool = False
    #: The highest SM clock of its GPU, in Hz.
    highest_clock: float | None = None
    #: By measure, how far a result may be from its reference; empty where the pipeline does not say.
    tolerance: Mapping[str, float] = field(default_factory=dict)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for shape in self.shapes for point in shape.points)

    @property
    def varying_shape(self) -> tuple[str, ...]:
        """The axes of its shapes."""
        return tuple(axis for axis, _ in self.shapes[0].axes) if self.shapes else ()

    @property
    def iterated(self) -> bool:
        """Whether kernel times are per call; else they are sums over everything that was recorded."""
        return all(point.split.iterations is not None for point in self.points if point.split)

    @property
    def largest(self) -> Shape | None:
        """The shape with the most work: the largest product of its numbers.

        Of equals those with most to compare, and of these the one with the longest time: the first of those as long.
        """
        ranks = [(shape.size, len(shape.timed)) for shape in self.shapes]
        equals = [shape for shape, rank in zip(self.shapes, ranks, strict=True) if rank == max(ranks)]
        longest = max((shape.longest_ns for shape in equals), default=0.0)
        return next((shape for shape in equals if shape.longest_ns >= _AS_LONG * longest), None)


@dataclass(frozen=True)
class Findings:
    """Everything the report says, before it is worded."""

    workloads: tuple[WorkloadFindings, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    unattributed: tuple[Unattributed, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    launches: tuple[Launches, ...] = ()
    twice: tuple[Twice, ...] = ()
    #: The tables and the plots that the pipeline file names.
    studies: tuple[Study, ...] = ()
    plots: tuple[Study, ...] = ()

    @property
    def cases(self) -> int:
        return sum(1 for workload in self.workloads for point in workload.points if point.id)

    @property
    def failed(self) -> bool:
        """Whether anything ended as it should not: a case, an expectation, the coverage that was asked for."""
        return self.is_unmet or any(group.status not in ("ok", "skipped") for group in self.not_run)

    @property
    def is_unmet(self) -> bool:
        """Whether what the pipeline or a workload asks for was not met, however well its cases ended."""
        return any(not e.met for e in self.expectations) or any(c.too_low for c in self.coverage)
