"""What was found of the ranges of a workload: the work that they are given, and the memory that they hold.

Plain values. Times are nanoseconds, sizes bytes, shares between 0 and 1; ``None`` means that nobody measured it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseWork:
    """A phase of a case whose work its workload declares, per call: the time of its kernels beside that work.

    ``moved`` are the bytes that it must move at least. ``of_time`` and ``of_work`` are its shares of the time and of
    the FLOPs of all such phases of the case; ``of_flops`` and ``of_bandwidth`` the shares of the machine's rates that
    it reaches. ``ridge`` is the FLOP per byte from which arithmetic limits rather than memory, ``binds`` which of them
    does: ``compute``, ``memory``, or empty where that is unknown.
    """

    case: str
    phase: str
    ns: float
    flops: float | None = None
    moved: float | None = None
    of_time: float | None = None
    of_work: float | None = None
    of_flops: float | None = None
    of_bandwidth: float | None = None
    ridge: float | None = None
    binds: str = ""

    @property
    def intensity(self) -> float | None:
        """FLOP per byte."""
        return self.flops / self.moved if self.flops and self.moved else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops * 1e9 / self.ns if self.flops else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.moved * 1e9 / self.ns if self.moved else None


@dataclass(frozen=True)
class HostPhase:
    """How long the host was inside a range of a case in which no profiler saw a kernel; nested ranges included.

    ``entered`` and ``ns`` are per call where the case was iterated (``per_call``), else of the whole process; ``share``
    is of the call.
    """

    case: str
    phase: str
    profiler: str
    entered: float
    ns: float
    share: float | None = None
    per_call: bool = False


@dataclass(frozen=True)
class PhaseMemory:
    """What a phase of a case found allocated, held at its peak (nested phases included), and left."""

    phase: str
    start: float | None
    peak: float
    end: float | None


@dataclass(frozen=True)
class Allocation:
    """Allocations of one size from one place in a source: their size, how many there were, how many at the peak."""

    place: str
    size: float
    count: int
    held: int = 0


@dataclass(frozen=True)
class Memory:
    """The record of one iteration of a case: its phases in order, its largest allocations, the files that hold it.

    ``files``: path in the run's folder, and size.
    """

    case: str
    phases: tuple[PhaseMemory, ...]
    allocations: tuple[Allocation, ...] = ()
    files: tuple[tuple[str, float], ...] = ()

    @property
    def peak(self) -> float:
        return max(phase.peak for phase in self.phases)
