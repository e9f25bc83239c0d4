"""Findings on single kernels, and on the ranges of a workload: their time, work and memory.

Times are in ns, sizes in bytes, shares between 0 and 1. None: not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelRow:
    """One kernel of one case. Calls and time are per call; ``share`` is of the case's kernel time."""

    case: str
    kernel: str
    kernel_class: str
    family: str
    calls: float
    ns: float
    share: float


@dataclass(frozen=True)
class Phase:
    """The launches and kernel time of one phase of a case per call, nested phases included."""

    case: str
    phase: str
    calls: float
    ns: float
    share: float


@dataclass(frozen=True)
class Rule:
    """A rule of ncu that applies to a kernel, and the speed-up in % that ncu estimates, if any.

    ``SpeedupType`` of the NvRules API: a global estimate is the reduction of the run time. An ``is_local`` estimate is
    the increase of one unit's efficiency.
    """

    name: str
    speedup: float | None = None
    is_local: bool = False


@dataclass(frozen=True)
class Counters:
    """The metrics that ncu measured of one kernel of one case: name to (value, unit).

    ``rules`` are the rules of ncu that apply. ``missed`` are the targets of the pipeline file that it does not reach.
    """

    case: str
    kernel: str
    calls: int
    mean_ns: float | None
    values: Mapping[str, tuple[float, str]]
    rules: tuple[Rule, ...] = ()
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PhaseWork:
    """The kernel time of a phase per call, and the work that its workload declares for it.

    ``bytes_moved`` is the least that the phase must move. ``of_time`` and ``of_work`` are shares of the time and of the
    FLOPs of all such phases of the case. ``of_flops`` and ``of_bandwidth`` are shares of the machine's rates. Above
    ``ridge`` FLOP per byte, arithmetic is the limit. ``limited_by`` is ``compute``, ``memory``, or empty (unknown).
    """

    case: str
    phase: str
    ns: float
    flops: float | None = None
    bytes_moved: float | None = None
    of_time: float | None = None
    of_work: float | None = None
    of_flops: float | None = None
    of_bandwidth: float | None = None
    ridge: float | None = None
    limited_by: str = ""

    @property
    def intensity(self) -> float | None:
        """FLOP per byte."""
        return self.flops / self.bytes_moved if self.flops and self.bytes_moved else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops * 1e9 / self.ns if self.flops else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes_moved * 1e9 / self.ns if self.bytes_moved else None


@dataclass(frozen=True)
class HostPhase:
    """The host's time in a range of a case without kernels, nested ranges included.

    ``instances`` and ``ns`` are per call if ``is_per_call``, else of the whole process. ``share`` is of the call.
    """

    case: str
    phase: str
    profiler: str
    instances: float
    ns: float
    share: float | None = None
    is_per_call: bool = False


@dataclass(frozen=True)
class PhaseMemory:
    """The allocated memory of a phase: when it began, its peak (nested phases included), and when it ended.

    ``course``: us since the iteration began, and the most bytes since the point before.
    """

    phase: str
    start: float | None
    peak: float
    end: float | None
    course: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Allocation:
    """The allocations of one size from one line of source. ``held``: how many of them were alive at the peak."""

    place: str
    size: float
    count: int
    held: int = 0


@dataclass(frozen=True)
class Memory:
    """The memory of one iteration of a case: its phases in order, and its largest allocations.

    ``files`` are the records: path in the run's folder, and size.
    """

    case: str
    phases: tuple[PhaseMemory, ...]
    allocations: tuple[Allocation, ...] = ()
    files: tuple[tuple[str, float], ...] = ()

    @property
    def peak(self) -> float:
        return max(phase.peak for phase in self.phases)
