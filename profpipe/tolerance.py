"""How far a result may be from its reference: the limits that a pipeline file sets, and which results miss them.

What a workload's ``check`` says is held against them in the workload's process and again when a run is analysed, so a
case that misses one is known as such wherever it is spoken of.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Literal, get_args

#: The names under which ``check`` gives a difference: of the output, and of the gradients of q, k and v.
Measure = Literal[
    "error_max", "error_mean", "error_rel_l1", "error_rmse", "cosine",
    "error_max_dq", "error_mean_dq", "error_rel_l1_dq", "error_rmse_dq", "cosine_dq",
    "error_max_dk", "error_mean_dk", "error_rel_l1_dk", "error_rmse_dk", "cosine_dk",
    "error_max_dv", "error_mean_dv", "error_rel_l1_dv", "error_rmse_dv", "cosine_dv",
]  # fmt: skip
MEASURES: Final[tuple[str, ...]] = get_args(Measure)

TENSORS: Final = ("out", "dq", "dk", "dv")

INACCURATE, UNCHECKED = "inaccurate", "unchecked"

#: Differences in the tensor's own unit.
_ABSOLUTE = ("error_max", "error_mean", "error_rmse")
_FINITE = sys.float_info.max

#: Misses that a sentence names; more are counted.
_NAMED = 2
#: Characters of a value that is no number.
_BRIEF = 60


@dataclass(frozen=True)
class Miss:
    """A measure outside its limit: an error above it, a cosine below it."""

    measure: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.measure} is {shown(self.measure, self.value)}, {bound(self.measure, self.limit)}"


@dataclass(frozen=True)
class Verdict:
    """What became of a case under a tolerance: ``mark`` is empty where it passes; ``why`` says why it does not."""

    mark: str = ""
    why: str = ""
    misses: tuple[Miss, ...] = ()


def judge(checked: Mapping[str, Any], limits: Mapping[str, float]) -> Verdict:
    """Holds what a case's check gave against ``limits``; other metrics of the case may be among it.

    A limit holds for the output and for the gradients that have none of their own. A case passes only what was
    compared: where a limit had nothing to hold for, the case is ``unchecked``, unless it is that of a gradient which
    the case does not compute. An infinite difference, or a NaN, passes no case, also without a limit. What is no number
    at all, but text, was not compared, likewise; without a limit None is as good as a measure that is not told.
    """
    found: dict[str, float] = {m: value for m, value in checked.items() if m in MEASURES and _is_number(value)}
    misses = [Miss(m, value, limit) for m, value in found.items() if (limit := _limit(m, value, limits)) is not None]
    misses = [miss for miss in misses if not _met(miss)]
    if misses:
        return Verdict(INACCURATE, _listed(misses), tuple(misses))
    told = [m for m, value in checked.items() if value is not None or limit_of(m, limits) is not None]
    if odd := [m for m in told if m in MEASURES and m not in found]:
        return Verdict(UNCHECKED, "; ".join(f"{m} is no number: {repr(checked[m])[:_BRIEF]}" for m in odd))
    idle = [m for m in limits if not _has_work(m, found)]
    if limits and (idle or not found):
        return Verdict(UNCHECKED, f"nothing was compared for {' and '.join(idle or limits)}")
    return Verdict()


def limit_of(measure: str, limits: Mapping[str, float]) -> float | None:
    """The measure's own limit, else that of the output; None where neither is set."""
    return limits.get(measure, limits.get(parts(measure)[0]))


def _limit(measure: str, value: float, limits: Mapping[str, float]) -> float | None:
    """``limit_of``; where none is set, what no result exceeds. Relative to a reference of zeros, any error does."""
    checked = math.isnan(value) or parts(measure)[0] in _ABSOLUTE
    return (_FINITE if checked else None) if (limit := limit_of(measure, limits)) is None else limit


def parts(measure: str) -> tuple[str, str]:
    """``error_rel_l1_dq`` as (``error_rel_l1``, ``dq``); without a suffix the tensor is ``out``."""
    name, _, suffix = measure.rpartition("_")
    return (name, suffix) if suffix in TENSORS else (measure, "out")


def bound(measure: str, limit: float) -> str:
    """``at most 0.05``, ``at least 0.99``: what a limit allows, in words."""
    if limit == _FINITE:
        return "at most a finite number"
    return f"{'at least' if _is_cosine(measure) else 'at most'} {limit:.12g}"


def worst(measure: str) -> float:
    """The value that a wrong result has: the worst there is."""
    return -1.0 if _is_cosine(measure) else math.inf


def shown(measure: str, value: float) -> str:
    """Three digits of an error, and of a cosine as many as it needs."""
    return cosine(value) if _is_cosine(measure) else f"{value:.3g}"


def cosine(value: float) -> str:
    """As many digits as tell it from 1, up to nine."""
    if value in (0, 1) or not abs(value) < 1:
        return f"{value:.3g}"
    if value > 1 - 1e-9:
        return "> 0.999999999"
    return f"{value:.{min(9, max(3, 1 - math.floor(math.log10(1 - value))))}f}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _is_cosine(measure: str) -> bool:
    return measure.startswith("cosine")


def _met(miss: Miss) -> bool:
    """Whether it is none after all. A NaN meets no limit."""
    return miss.value >= miss.limit if _is_cosine(miss.measure) else miss.value <= miss.limit


def _has_work(measure: str, found: Mapping[str, float]) -> bool:
    name, tensor = parts(measure)
    if tensor == "out":
        return any(parts(m)[0] == name for m in found)
    return measure in found or all(parts(m)[1] != tensor for m in found)


def _listed(misses: Iterable[Miss]) -> str:
    """The worst first: errors by how many times their limit they are, then cosines."""
    ordered = sorted(misses, key=lambda miss: (_is_cosine(miss.measure), -_times(miss)))
    named = "; ".join(map(str, ordered[:_NAMED]))
    more = len(ordered) - _NAMED
    return f"{named}; and {more} more" if more > 0 else named


def _times(miss: Miss) -> float:
    return miss.value / miss.limit if miss.limit else math.inf
