"""What casts doubt on a run, as plain values; ``findings`` holds what was found in it.

Times are nanoseconds, shares between 0 and 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from profpipe.tables import FAILED

#: What the runner writes of cases that a Ctrl-C stopped, or kept from beginning.
_STOPPED = re.compile(r"(no profile: )?interrupted( before it started)?")


def status_told(status: str, reason: str) -> str:
    """The status of a case as the report has it: who is stopped by the user has neither failed nor been skipped."""
    return "interrupted" if status != "ok" and _STOPPED.fullmatch(reason) else status


def has_failed(status: str, reason: str) -> bool:
    """Whether what was measured of a case until it ended is no result of it."""
    return status_told(status, reason) in FAILED


@dataclass(frozen=True)
class NotRun:
    """Cases that share a fate: what became of them and why. ``logs`` are where to read more, relative to the run.

    A job that met its trouble after its last case has no ``cases`` here, and is ``after_cases``.
    """

    workload: str
    status: str
    reason: str
    profilers: tuple[str, ...]
    cases: tuple[str, ...]
    #: True where these are all cases of the workload.
    whole_job: bool = False
    logs: tuple[str, ...] = ()
    after_cases: bool = False


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
    """Kernel time of a profiler that lies outside every case; ``flush_ns`` of it is the harness's own loop."""

    workload: str
    profiler: str
    ns: float
    share: float
    flush_ns: float = 0.0
    #: Of a harness's own run, in a capture that holds set-up and warm-up of the cases too.
    own_run: bool = False

    @property
    def unexplained(self) -> float:
        """The share of all kernel time that is outside every case and neither set-up nor flush of a run of our own."""
        if self.own_run:
            return 0.0
        return self.share * (1 - self.flush_ns / self.ns) if self.ns else 0.0


@dataclass(frozen=True)
class Unseen:
    """Cases that ran well under a profiler which yet shows no kernel of them, while it does of others."""

    workload: str
    profiler: str
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Launches:
    """How many launches two profilers saw of the ``cases`` of a workload that both captured.

    ``number`` is the first one's, over all iterations, or ``per_iteration`` where they did not see as many of these. In
    ``by_kernel`` cases there are as many of each kernel. ``differing`` are those with more or fewer: the case, and the
    number of each of the two, likewise.
    """

    workload: str
    profilers: tuple[str, str]
    number: float
    per_iteration: bool
    cases: int
    by_kernel: int
    differing: tuple[tuple[str, float, float], ...] = ()

    @property
    def same(self) -> bool:
        return self.by_kernel == self.cases


@dataclass(frozen=True)
class Visit:
    """A timed case of a workload: its parameters that vary there, and its median time."""

    workload: str
    case: str
    ns: float
    axes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Twice:
    """One case that two workloads of a run measured, and whose times differ by more than their intervals and clocks."""

    longer: Visit
    shorter: Visit

    @property
    def factor(self) -> float:
        return self.longer.ns / self.shorter.ns
