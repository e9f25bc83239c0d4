"""Quantiles of Student's t distribution, for any number of degrees of freedom."""

from __future__ import annotations

import functools
import math
import statistics
from typing import Final

#: Intervals of Simpson's rule, and halvings of the bracket: both far finer than the four digits that are used.
_STEPS: Final = 200
_HALVINGS: Final = 60
#: Above so many degrees of freedom the quantiles of a normal distribution are the same in three digits.
_MANY: Final = 1000


@functools.lru_cache(maxsize=1024)
def quantile(probability: float, degrees: float) -> float:
    """Return the value that Student's t exceeds with ``1 - probability``; ``probability`` is above 0.5.

    With t = sqrt(d) tan(x) the density is proportional to cos(x) ** (d - 1), which Simpson's rule integrates
    (Abramowitz and Stegun, 26.7.3 to 26.7.4). Below one degree of freedom the value is that of one.
    """
    if degrees > _MANY:
        return statistics.NormalDist().inv_cdf(probability)
    d = max(1.0, degrees)
    scale = math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = 0.5 + scale * _integral(middle, d - 1)
        low, high = (middle, high) if below < probability else (low, middle)
    return math.sqrt(d) * math.tan(low)


def _integral(end: float, power: float) -> float:
    """Return the integral of cos(x) ** ``power`` from 0 to ``end``."""
    width = end / _STEPS
    weights = (1 if i in (0, _STEPS) else 4 if i % 2 else 2 for i in range(_STEPS + 1))
    return width / 3 * sum(weight * math.cos(i * width) ** power for i, weight in enumerate(weights))
