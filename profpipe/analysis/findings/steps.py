"""Findings on the steps of a program: what one step costs, and where its time goes.

A rank is a process. A figure of a case is the mean over its GPUs, never their sum. Times are nanoseconds, sizes bytes,
shares between 0 and 1. ``None`` means not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from profpipe.results.schema import Check, StepRule, StepState


class StepPart(str, Enum):
    """A part of a step. The parts of a step add up to its time; the column of `steps` is ``<part>_ns``."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"  # while nothing computes
    COPY = "copy"  # while no kernel runs
    IDLE_LAUNCH = "idle_launch"  # the host launched too late
    IDLE_BLOCKED = "idle_blocked"  # the host waited for the GPU when the idle time began
    IDLE_OTHER = "idle_other"  # a dependency, or not recorded


#: A profiler's overhead is known to this share of a step.
_NEAR = 0.02

IDLE_PARTS = (StepPart.IDLE_LAUNCH, StepPart.IDLE_BLOCKED, StepPart.IDLE_OTHER)


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
class StepParts:
    """The mean of steady steps by part. Unlike medians, means of the parts add up to the mean of the whole.

    ``classes`` divides the part ``COMPUTE`` by kernel class; where kernels overlap, each class has its share.
    """

    ns: Mapping[StepPart, float]
    classes: Mapping[str, float] = field(default_factory=dict)
    #: The time in which communication runs, that beside computation included.
    communication_total_ns: float | None = None
    #: The part of ``COMMUNICATION`` that other ranks or GPUs do not have in the same step: waiting for them. None where
    #: one GPU alone is known. The rest is the transfer, at most.
    waiting_ns: float | None = None

    @property
    def wall_ns(self) -> float:
        return sum(self.ns.values())

    @property
    def idle_ns(self) -> float:
        return sum(self.ns[part] for part in IDLE_PARTS)

    @property
    def transfer_ns(self) -> float:
        return self.ns[StepPart.COMMUNICATION] - (self.waiting_ns or 0.0)

    def share(self, ns: float) -> float:
        """Return ``ns`` as a share of the step."""
        return ns / self.wall_ns if self.wall_ns else 0.0

    def speedup_without(self, ns: float) -> float:
        """Return how many times as fast a step would be at most if ``ns`` of it took no time.

        Amdahl's law with an infinite speed-up of the share f = ns / wall: 1 / (1 - f). It is an upper bound, because
        what runs beside that part may appear in its place.
        """
        return self.wall_ns / max(self.wall_ns - ns, 1.0)


@dataclass(frozen=True)
class CopyTraffic:
    """Copies or sets of one direction in a steady step. ``name`` is the profiler's name of the operation."""

    name: str
    calls: float
    ns: float
    bytes: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.ns * 1e9 if self.bytes is not None and self.ns else None


@dataclass(frozen=True)
class RankSteps:
    """The steady steps of one rank, or of one device of a rank with several.

    They are their median time, the mean of their parts, and the peak memory in bytes. ``device`` is None where the rank
    has one.
    """

    rank: int
    time: Measure
    device: int | None = None
    #: In how many of the steady steps others wait for this one; and in how many it is the slowest: the one that takes
    #: the longest without exposed communication.
    waited_for: int = 0
    slowest_in: int = 0
    parts: StepParts | None = None
    peak_memory: float | None = None
    #: The node of a cluster on which the rank ran; empty on one machine.
    node: str = ""

    @property
    def own_ns(self) -> float | None:
        """The mean step without exposed communication, which contains the wait for slower ranks."""
        return self.parts.wall_ns - self.parts.ns[StepPart.COMMUNICATION] if self.parts else None


class OutlierCause(str, Enum):
    """What an outlier has more of than the median steady step; the metric is ``step_outlier_<cause>``."""

    IDLE_LAUNCH = "idle_launch"
    IDLE_BLOCKED = "idle_blocked"
    IDLE_OTHER = "idle_other"
    COPIES = "copies"
    COMMUNICATION = "communication"
    KERNELS = "kernels"  # the same kernels took longer
    OTHER_KERNELS = "other_kernels"  # kernels that no steady step has


@dataclass(frozen=True)
class StepOutlier:
    """A step beyond three median absolute deviations. ``excess`` is in ns over the median steady step, by cause."""

    rank: int
    step: int
    wall_ns: float
    median_ns: float
    excess: Mapping[OutlierCause, float] = field(default_factory=dict)
    device: int | None = None

    @property
    def causes(self) -> tuple[OutlierCause, ...]:
        """The causes that are at least a fifth of the excess, the largest first."""
        least = 0.2 * abs(self.wall_ns - self.median_ns)
        return tuple(sorted((c for c in self.excess if self.excess[c] >= least), key=lambda c: -self.excess[c]))


@dataclass(frozen=True)
class StepRow:
    """A row of the table `steps`."""

    rank: int
    step: int
    state: StepState
    wall_ns: float
    kernels: int | None
    parts: StepParts | None = None
    device: int | None = None


@dataclass(frozen=True)
class UnevenSteps:
    """How uneven steady steps are under one profiler; times in ns, each the mean over the ranks.

    ``spread`` is that of ``step_spread``, as a share of the median.
    """

    spread: float
    median_ns: float
    #: The number of the longest steady step, and its time.
    longest: int
    longest_ns: float


@dataclass(frozen=True)
class SameSteps:
    """The mean time in ns of steady steps under a profiler, and of the steps with the same numbers without one.

    ``differs`` is False where Student's 95 % interval of the mean difference contains 0.
    """

    ns: float
    without_ns: float
    differs: bool


@dataclass(frozen=True)
class CaseSteps:
    """The steps of one case. ``profiler`` recorded the parts; it is empty where no profiler did.

    ``times`` are by profiler. ``counts`` are by state, the fewest and the most of its ranks. ``pattern_count`` is the
    number of steps that the recurring launches show, where it is another one than ``rule`` found.
    """

    case: str
    profiler: str
    rule: StepRule
    times: Mapping[str, Measure]
    counts: Mapping[StepState, tuple[int, int]]
    #: The number of steps of the rank with the most: warm-up, steady ones and outliers.
    steps: int = 0
    #: The number of different steps by profiler.
    all_steps: Mapping[str, int] = field(default_factory=dict)
    coverage: float | None = None
    pattern_count: int | None = None
    #: By profiler, where steps are uneven under one.
    uneven: Mapping[str, UnevenSteps] = field(default_factory=dict)
    #: Of uneven steps: those that a profiler recorded, by profiler.
    same_steps: Mapping[str, SameSteps] = field(default_factory=dict)
    parts: StepParts | None = None
    copies: tuple[CopyTraffic, ...] = ()
    ranks: tuple[RankSteps, ...] = ()
    #: Why others wait for a rank in most of the time that they wait; None where that is unknown.
    wait_cause: StepPart | None = None
    outliers: tuple[StepOutlier, ...] = ()
    rows: tuple[StepRow, ...] = ()
    #: Of a program on unlike nodes: the facts in which these differ, such as the GPU, with their values.
    unlike_nodes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: The program's own range that is the step; empty by another rule.
    range_name: str = ""
    #: The recurrences of a sequence of launches that are one step.
    stride: int = 1

    def count(self, state: StepState) -> tuple[int, int]:
        """Return the fewest and the most steps in ``state`` of a rank."""
        return self.counts.get(state, (0, 0))

    @property
    def processes(self) -> int:
        """The number of ranks."""
        return len({rank.rank for rank in self.ranks})

    @property
    def parts_without_profiler(self) -> StepParts | None:
        """Return ``parts`` without the time that the profiler adds, where the step without a profiler is known.

        Kernels and copies take the same time under a profiler, while the host launches later, and other ranks wait for
        it. So time goes until the parts add up to the step without a profiler: first that of late launches and the
        waiting in proportion, then other idle time. If that is too little, the parts stay as they are.
        """
        without = self._without_profiler(self.profiler)
        if self.parts is None or without is None:
            return self.parts
        ns, waiting = dict(self.parts.ns), self.parts.waiting_ns or 0.0
        added = max(self.parts.wall_ns - without, 0.0)
        late = ns[StepPart.IDLE_LAUNCH] + waiting
        taken = min(late, added)
        of_waiting = taken * waiting / late if late else 0.0
        ns[StepPart.COMMUNICATION] -= of_waiting
        ns[StepPart.IDLE_LAUNCH] -= taken - of_waiting
        added -= taken
        for part in IDLE_PARTS[1:]:
            taken = min(ns[part], added)
            ns[part], added = ns[part] - taken, added - taken
        if added > _NEAR * without:
            return self.parts
        return replace(self.parts, ns=ns, waiting_ns=self.parts.waiting_ns and waiting - of_waiting)

    @property
    def overheads(self) -> Iterator[tuple[str, float]]:
        """Yield what each profiler adds to a step, as a share of the step without a profiler."""
        for name, time in self.times.items():
            if name != "plain" and (without := self._without_profiler(name)):
                own = self.same_steps[name].ns if self.uneven else time.ns
                yield name, own / without - 1

    def has_measured_overhead(self, profiler: str) -> bool:
        """Return True where a step under ``profiler`` differs from one without it by more than the uncertainty."""
        if self.uneven:
            return profiler in self.same_steps and self.same_steps[profiler].differs
        return "plain" in self.times and not self.times["plain"].overlaps(self.times[profiler])

    def _without_profiler(self, profiler: str) -> float | None:
        """Return the time in ns, without a profiler, of steps like those that ``profiler`` recorded, if it is known.

        Even steps are all alike. Uneven steps are not: the first ones of a program may be short.
        """
        if self.uneven:
            return self.same_steps[profiler].without_ns if profiler in self.same_steps else None
        return self.times["plain"].ns if "plain" in self.times else None


@dataclass(frozen=True)
class Recording:
    """A whole recording of a case in which no step was found, on one GPU, from its first operation to its last.

    ``rank`` is the number of the process, with the device where a process has several: ``0, GPU 1``.
    """

    case: str
    rank: str
    parts: StepParts


@dataclass(frozen=True)
class Contradiction:
    """What the recording of a profiler contradicts itself in: a number, of how many, and of which kernel or process."""

    case: str
    profiler: str
    check: Check
    subject: str
    value: float
    n: int


@dataclass(frozen=True)
class StepFindings:
    """The steps of one workload, and the recordings in which none was found.

    ``without_steps`` are the cases that a profiler recorded and in which no step was found. ``copies`` are theirs by
    case, as the mean over ranks of a command, else as sums. ``has_launches`` is False where a file has sums only, and
    where its launches ran ``one_by_one`` for the profiler to read its counters.
    """

    cases: tuple[CaseSteps, ...] = ()
    without_steps: tuple[str, ...] = ()
    recordings: tuple[Recording, ...] = ()
    copies: Mapping[str, tuple[CopyTraffic, ...]] = field(default_factory=dict)
    has_launches: bool = True
    one_by_one: bool = False
    #: Items of a step, as the pipeline file states them, by case; and their name in the plural: tokens.
    items: Mapping[str, float] = field(default_factory=dict)
    item_name: str = ""
    contradictions: tuple[Contradiction, ...] = ()

    def of(self, case: str) -> CaseSteps | None:
        return next((own for own in self.cases if own.case == case), None)

    def __bool__(self) -> bool:
        return bool(self.cases)
