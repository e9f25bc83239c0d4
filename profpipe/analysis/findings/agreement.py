"""How far profilers differ in the time of one case, and why: causes with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

#: Up to this difference two times are the same: events resolve 0.5 us, and clocks move by a percent or two.
CLOSE = 0.03


class Cause(str, Enum):
    """What makes the times of two profilers differ. Behind each stand the numbers that it has; [some are optional]."""

    LAUNCH_GAPS = "launch gaps"  # ns, kernels
    COPIES = "copies and sets"  # ns
    HOST_BOUND = "host-bound"  # [issue_ns, launches, queue; idle]
    SYNCHRONISATION = "synchronisation"  # [issue_ns]
    BETWEEN_OPERATORS = "between operators"
    PROFILER_OVERHEAD = "profiler overhead"  # profiler [loop_ns, alone_ns]
    OVERLAP = "overlap"  # ns, streams [of_ns: it explains a part; excess_ns: it would explain more]
    COMMUNICATION = "waiting in communication"  # slow, slow_ns, fast, fast_ns: GPUs and their time in communication
    SLOWEST_RANK = "slowest process"  # slow, slow_ns, fast, fast_ns: ranks and their time of the call
    CLOCK = "clock"  # recorded: profiler, hz, reference, reference_hz [cycles: the difference that is left]
    BELOW_HIGHEST = "clock below its highest"  # reference, hz, highest_hz: recorded; under ncu the GPU rests
    THROTTLED = "throttled clock"  # hz, low, high, marks, highest_hz: recorded while the call was timed
    DERIVED_CLOCK = "derived clock"  # profiler, low, high [recorded_low, recorded_high]: by time x clock
    NCU_CLOCK = "lower clock under ncu"  # hz, longer_hz: in longer launches, share: of the time that is lost
    NCU_LAUNCH = "launch under ncu"  # limit_ns: what ncu adds to a launch, at most
    LOCKED_CLOCK = "locked clock"
    COLD_CACHE = "cold cache"
    CLEAN_CACHE = "clean cache under ncu"  # reference, limit_ns: the most that the write-back takes
    SPREAD = "spread"  # [p10, p90 where the clock moved; ci_low, ci_high]: the time that the call may have
    SHORT_KERNELS = "short kernels"  # limit_ns: the difference of a launch
    SINGLE_LAUNCH = "single launch"  # ns, under ncu; low, high, launches, reference


@dataclass(frozen=True)
class Reason:
    """A cause and its numbers by name: times in ns, clocks in Hz, shares between 0 and 1, names of profilers."""

    cause: Cause
    numbers: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One profiler's time per call of a case, and its difference to the reference.

    ``difference`` is None for the reference, and where no kernel is common to both. ``covered`` is the share of the
    reference's kernel time that the comparison is over. ``is_unexplained``: the difference is too large to pass and
    ``reasons`` explain it in part or not at all.
    """

    profiler: str
    ns: float
    difference: float | None = None
    reasons: tuple[Reason, ...] = ()
    is_unexplained: bool = False
    covered: float = 1.0

    @property
    def is_close(self) -> bool:
        return self.difference is not None and abs(self.difference) <= CLOSE


@dataclass(frozen=True)
class Agreement:
    """The times of one case by profiler; the first figure is the ``reference`` that the others are compared with."""

    case: str
    reference: str
    figures: tuple[Figure, ...]
