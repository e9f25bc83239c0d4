"""Compares a case's differences from the reference with the limits of the pipeline file.

The workload's process and the analysis of a run both judge the results of ``check``, so that all stages know which
cases miss a limit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Literal, get_args

from profpipe.measure.flags import Flag

#: The names under which ``check`` returns a difference: of the output, and of the gradients of q, k and v.
Measure = Literal[
    "error_max", "error_mean", "error_rel_l1", "error_rmse", "cosine",
    "error_max_dq", "error_mean_dq", "error_rel_l1_dq", "error_rmse_dq", "cosine_dq",
    "error_max_dk", "error_mean_dk", "error_rel_l1_dk", "error_rmse_dk", "cosine_dk",
    "error_max_dv", "error_mean_dv", "error_rel_l1_dv", "error_rmse_dv", "cosine_dv",
]  # fmt: skip
MEASURES: Final[tuple[str, ...]] = get_args(Measure)

TENSORS: Final = ("out", "dq", "dk", "dv")

#: Differences in the unit of the tensor.
_ABSOLUTE = ("error_max", "error_mean", "error_rmse")
_LARGEST_FINITE = sys.float_info.max

#: Misses that a text names; more are counted.
_NAMED_MISSES = 2
#: Characters shown of a value that is not a number.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ToleranceResult:
    """A case under a tolerance: ``flag`` is empty where the case passes, and ``why`` says why it does not.

    ``misses`` are the measures outside their limits, with their values and their limits.
    """

    flag: Flag | Literal[""] = ""
    why: str = ""
    misses: tuple[tuple[str, float, float], ...] = ()


def judge(checked: Mapping[str, Any], limits: Mapping[str, float]) -> ToleranceResult:
    """Compare ``checked``, the metrics of a case, with ``limits``.

    A limit applies to the output, and to gradients that have no separate limit. A case passes only if something was
    compared for all limits, or the limit is that of a gradient that the case does not compute; else it is
    ``unchecked``. An infinite difference or a NaN never passes, also without a limit. A measure that is text is
    ``unchecked``; None is too where there is a limit for it.
    """
    numbers: dict[str, Any] = {m: value for m, value in checked.items() if m in MEASURES and isinstance(value, Real)}
    misses = []
    for m, value in numbers.items():
        limit = _effective_limit(m, value, limits)
        # A NaN meets no limit.
        if limit is not None and not (value >= limit if _is_cosine(m) else value <= limit):
            misses.append((m, value, limit))
    if misses:
        texts = [f"{m} is {shown(m, value)}, {bound(m, limit)}" for m, value, limit in sorted(misses, key=_rank)]
        more = len(texts) - _NAMED_MISSES
        texts[_NAMED_MISSES:] = [f"and {more} more"] if more > 0 else []
        return ToleranceResult(Flag.INACCURATE, "; ".join(texts), tuple(misses))
    given = [m for m, value in checked.items() if value is not None or limit_of(m, limits) is not None]
    if not_numbers := [m for m in given if m in MEASURES and m not in numbers]:
        shown_values = (f"{m} is not a number: {repr(checked[m])[:_SHOWN_CHARACTERS]}" for m in not_numbers)
        return ToleranceResult(Flag.UNCHECKED, "; ".join(shown_values))
    unused = [m for m in limits if not _applies(m, numbers)]
    if limits and (unused or not numbers):
        return ToleranceResult(Flag.UNCHECKED, f"nothing was compared for {' and '.join(unused or limits)}")
    return ToleranceResult()


def _rank(miss: tuple[str, float, float]) -> tuple[bool, float]:
    """Order misses: errors by their multiple of the limit, the worst first, then cosines."""
    measure, value, limit = miss
    return _is_cosine(measure), -(value / limit if limit else math.inf)


def limit_of(measure: str, limits: Mapping[str, float]) -> float | None:
    """Return the limit of the measure, else that of the output; None where neither is set."""
    return limits.get(measure, limits.get(parts(measure)[0]))


def parts(measure: str) -> tuple[str, str]:
    """Split ``error_rel_l1_dq`` into (``error_rel_l1``, ``dq``); without a suffix the tensor is ``out``."""
    name, _, suffix = measure.rpartition("_")
    return (name, suffix) if suffix in TENSORS else (measure, "out")


def bound(measure: str, limit: float) -> str:
    """Return what a limit allows: ``at most 0.05``, ``at least 0.99``."""
    if limit == _LARGEST_FINITE:
        return "at most a finite number"
    return f"{'at least' if _is_cosine(measure) else 'at most'} {limit:.12g}"


def worst(measure: str) -> float:
    """Return the worst value of a measure, which stands for NaN."""
    return -1.0 if _is_cosine(measure) else math.inf


def shown(measure: str, value: float) -> str:
    """Format a measure: three digits of an error, and of a cosine as many as ``cosine`` gives."""
    return cosine(value) if _is_cosine(measure) else f"{value:.3g}"


def cosine(value: float) -> str:
    """Format a cosine with as many digits as distinguish it from 1, up to nine."""
    if value in (0, 1) or not abs(value) < 1:
        return f"{value:.3g}"
    if value > 1 - 1e-9:
        return "> 0.999999999"
    return f"{value:.{min(9, max(3, 1 - math.floor(math.log10(1 - value))))}f}"


def _is_cosine(measure: str) -> bool:
    return measure.startswith("cosine")


def _effective_limit(measure: str, value: float, limits: Mapping[str, float]) -> float | None:
    """Return ``limit_of``; where there is none, the largest finite number for NaN and absolute errors.

    Relative errors have none then: against a reference of zeros, any error is infinite.
    """
    if (limit := limit_of(measure, limits)) is not None:
        return limit
    return _LARGEST_FINITE if math.isnan(value) or parts(measure)[0] in _ABSOLUTE else None


def _applies(limited: str, numbers: Mapping[str, float]) -> bool:
    """Return True if a limit has a measure to apply to, or limits a gradient that the case does not compute."""
    name, tensor = parts(limited)
    if tensor == "out":
        return any(parts(m)[0] == name for m in numbers)
    return limited in numbers or all(parts(m)[1] != tensor for m in numbers)
