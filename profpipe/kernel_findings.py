"""What was found of single kernels and phases, as plain values. Times are nanoseconds, shares between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    """Launches and kernel time of one phase of a case, nested phases included, both per call."""

    case: str
    phase: str
    calls: float
    ns: float
    share: float


@dataclass(frozen=True)
class Rule:
    """A rule of ncu that spoke of a kernel, and the speed-up in % that it estimates, where it does.

    NvRules API, ``SpeedupType``: of the whole it is the proportional reduction in run time; ``local``, the proportional
    increase in efficiency of the hardware's usage, the problem viewed in isolation.
    """

    name: str
    speedup: float | None = None
    local: bool = False


@dataclass(frozen=True)
class Counters:
    """ncu's figures of one kernel of one case: metric name to (value, unit).

    ``rules`` are the rules of ncu that spoke of it; ``missed`` are those of the pipeline's targets that it does not
    reach.
    """

    case: str
    kernel: str
    kernel_class: str
    calls: int
    mean_ns: float | None
    values: Mapping[str, tuple[float, str]]
    rules: tuple[Rule, ...] = ()
    missed: tuple[str, ...] = ()
