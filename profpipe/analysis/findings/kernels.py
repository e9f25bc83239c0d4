"""Findings on single kernels and phases. Times are in ns, shares between 0 and 1."""

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
