"""What the analysis found, as plain values: no frame, no file, no wording.

They stand below the stages so that ``analyze`` can make them and ``report`` can word them without knowing each other.
Times are nanoseconds, sizes bytes, shares between 0 and 1. ``None`` means that nobody measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Axes = tuple[tuple[str, Any], ...]


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
    the part of the case's range in which no kernel ran.
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

    def part(self, name: str) -> Part:
        return self.parts.get(name, Part())

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
    #: Those of its marks that not every timed case of the workload carries.
    own_marks: tuple[str, ...] = ()
    #: The same from the kernels of one profiler, whatever the basis of ``time`` is.
    kernel_speedup: float | None = None


@dataclass(frozen=True)
class Swap:
    """What putting ``variant`` in the baseline's place changes; ratios above 1 are faster.

    All but ``measured_call`` come from one profiler's kernels.
    ``limit`` is Amdahl's: the speed-up of the call if the attention kernel took no time at all.
    ``changes`` are the parts that cost more or less than in the baseline: (part, difference in ns per call, in calls).
    """

    variant: str
    attention: float | None
    with_helpers: float | None
    call: float
    measured_call: float | None
    limit: float | None
    changes: tuple[tuple[str, float, float], ...] = ()

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

    @property
    def timed(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.time is not None)

    @property
    def fastest(self) -> Point | None:
        return self.timed[0] if self.timed else None

    @property
    def baseline(self) -> Point | None:
        return next((point for point in self.points if point.is_baseline), None)

    @property
    def runner_up(self) -> Point | None:
        return self.timed[1] if len(self.timed) > 1 else None


@dataclass(frozen=True)
class Figure:
    """One profiler's time per call of a case, and its difference to the reference.

    ``flagged``: the difference is too large to pass, and ``reason`` does not explain it.
    """

    profiler: str
    ns: float
    difference: float | None = None
    reason: str = ""
    flagged: bool = False


@dataclass(frozen=True)
class Agreement:
    """The same call as each profiler timed it; ``reference`` names the one the others are compared with."""

    point: Point
    reference: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class KernelRow:
    """One kernel of one case; calls and time per call, ``share`` of the case's kernel time."""

    case: str
    kernel: str
    kernel_class: str
    family: str
    calls: float
    ns: float
    share: float
    phase: str = ""


@dataclass(frozen=True)
class Phase:
    """Kernel time of one phase of a case, nested phases included, per call."""

    case: str
    phase: str
    instances: int | None
    kernels: float | None
    ns: float
    share: float | None


@dataclass(frozen=True)
class Counters:
    """ncu's figures of one kernel of one case: metric name to (value, unit)."""

    case: str
    kernel: str
    kernel_class: str
    calls: int
    mean_ns: float | None
    values: Mapping[str, tuple[float, str]]


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
    #: Values of the compared axis, in the order in which the cases were planned.
    variants: tuple[str, ...] = ()
    #: Marks that every timed case carries.
    shared_marks: tuple[str, ...] = ()
    asked_samples: int | None = None
    top: tuple[KernelRow, ...] = ()
    phases: tuple[Phase, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    counters: tuple[Counters, ...] = ()

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
        """The shape with the most work: the largest product of its numbers; the first of equals."""
        return max(self.shapes, key=_size, default=None)


def _size(shape: Shape) -> float:
    product = 1.0
    for _, value in shape.axes:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            product *= value
    return product


@dataclass(frozen=True)
class NotRun:
    """Cases that share a fate: what became of them and why. ``log`` is where to read more, relative to the run."""

    workload: str
    status: str
    reason: str
    profilers: tuple[str, ...]
    cases: tuple[str, ...]
    #: True where these are all cases of the workload.
    whole_job: bool = False
    logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """The kernel family a case asked for, and those that ran, most time first. ``own_copy``: PyTorch's build of it."""

    workload: str
    case: str
    asked: str
    found: tuple[str, ...]
    met: bool
    own_copy: bool = False


@dataclass(frozen=True)
class Coverage:
    """The share of kernel time that some rule classified, and the largest names that none did: (name, share)."""

    workload: str
    profiler: str
    kind: str
    total_ns: float
    classified: float
    largest: tuple[tuple[str, float], ...] = ()
    minimum: float | None = None

    @property
    def too_low(self) -> bool:
        return self.minimum is not None and self.classified < self.minimum


@dataclass(frozen=True)
class Unattributed:
    """Kernel time of a profiler that lies outside every case; ``flush_ns`` of it is the harness's own cache flush."""

    workload: str
    profiler: str
    ns: float
    share: float
    flush_ns: float = 0.0

    @property
    def unexplained(self) -> float:
        """The share of all kernel time that is outside every case and no flush."""
        return self.share * (1 - self.flush_ns / self.ns) if self.ns else 0.0


@dataclass(frozen=True)
class Findings:
    """Everything the report says, before it is worded."""

    workloads: tuple[WorkloadFindings, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    unattributed: tuple[Unattributed, ...] = ()

    @property
    def cases(self) -> int:
        return sum(1 for workload in self.workloads for point in workload.points if point.id)

    @property
    def failed(self) -> bool:
        """Whether anything ended as it should not: a case, an expectation, the coverage that was asked for."""
        ended_badly = any(group.status not in ("ok", "skipped") for group in self.not_run)
        return ended_badly or any(not e.met for e in self.expectations) or any(c.too_low for c in self.coverage)
