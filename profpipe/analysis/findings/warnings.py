"""What limits the trust in a run: cases without results, unexpected and unknown kernels, unattributed time.

Times are nanoseconds, shares between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from profpipe.job import Status
from profpipe.results.tasks import TaskState

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
class Coverage:
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
class Unseen:
    """Cases that ended well, and of which a profiler recorded no kernel although it did of others."""

    workload: str
    profiler: str
    cases: tuple[str, ...]


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
class TimedCase:
    """A timed case of a workload: its parameters that vary there, and its median time."""

    workload: str
    case: str
    ns: float
    axes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class DuplicateTimes:
    """A case of two workloads whose times differ by more than their intervals and clocks explain."""

    longer: TimedCase
    shorter: TimedCase
