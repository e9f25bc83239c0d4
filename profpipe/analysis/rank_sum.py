"""The exact rank-sum test of Mann and Whitney for two groups, its estimate and its interval.

Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., sections 4.1 to 4.3. The values of the
two groups are independent and differ in nothing but a shift; nothing else is assumed of their distribution.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from profpipe.analysis.signed_rank import double_ranks


def p_values(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return the one-sided p values (less, greater) of the hypothesis that B is not shifted against A.

    ``less`` is small where the values of B lie below those of A. The p values are exact: they come from the
    distribution of the rank sum of B over all choices of as many values. Equal values share their mean rank. A group
    without a value gives 1.
    """
    ranks = double_ranks([*a, *b])
    observed = sum(ranks[len(a) :])
    choices = _choices(tuple(sorted(ranks)), len(b))
    every = math.comb(len(ranks), len(b))
    return float(choices[: observed + 1].sum() / every), float(choices[observed:].sum() / every)


def two_sided_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p value of the hypothesis of no shift: twice the smaller one, at most 1."""
    return min(1.0, 2 * min(p_values(a, b)))


def shift(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the estimate of Hodges and Lehmann: the median of all differences of a value of B and one of A."""
    return statistics.median(_differences(a, b))


def interval(a: Sequence[float], b: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the ends of the interval of shifts that the two-sided test does not reject.

    Its confidence is at least ``confidence``. Return None where the groups are so small that the test rejects none.
    """
    found = sorted(_differences(a, b))
    tail = (1 - confidence) / 2
    n = len(a) + len(b)
    choices = _choices(tuple(range(2, 2 * n + 1, 2)), len(b))
    smallest = len(b) * (len(b) + 1)
    # The ranks of a test without ties are whole, and doubled here.
    below = np.cumsum(choices[smallest::2]) / math.comb(n, len(b))
    rejected = int((below <= tail).sum())
    return (found[rejected - 1], found[-rejected]) if rejected else None


def smallest_two_sided_p(a: int, b: int) -> float:
    """Return the smallest two-sided p value that groups of these sizes can have."""
    return min(1.0, 2 / math.comb(a + b, a))


def _differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.product(a, b)]


@functools.lru_cache(maxsize=64)
def _choices(doubled_ranks: tuple[int, ...], count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return for each sum from 0 on how many choices of ``count`` ranks have it; exact up to 2**53."""
    # By number of chosen ranks.
    ways = np.zeros((count + 1, sum(doubled_ranks) + 1))
    ways[0, 0] = 1
    for rank in doubled_ranks:
        # From the end: each rank is chosen once at most.
        for chosen in range(count, 0, -1):
            ways[chosen, rank:] += ways[chosen - 1, :-rank]
    own: np.ndarray[Any, np.dtype[np.float64]] = ways[count]
    own.setflags(write=False)
    return own
