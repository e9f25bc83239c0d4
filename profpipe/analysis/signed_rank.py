"""The exact Wilcoxon signed-rank test of paired differences, its estimate and its interval.

Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., sections 3.1 to 3.3. The differences
are independent and symmetric around a common centre; nothing else is assumed of their distribution.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def p_values(differences: Sequence[float]) -> tuple[float, float]:
    """Return the one-sided p values (less, greater) of the hypothesis that the centre is 0.

    ``less`` is small where the centre lies below 0. The p values are exact: they come from the distribution of the sum
    of positive ranks over all assignments of signs. Differences of 0 are left out, equal ones share their mean rank, as
    in ``scipy.stats.wilcoxon(zero_method="wilcox")``. Without a difference both p values are 1.
    """
    values = [value for value in differences if value]
    ranks = _double_ranks(list(map(abs, values)))
    positive = sum(rank for value, rank in zip(values, ranks, strict=True) if value > 0)
    below = _cumulative(tuple(sorted(ranks)))
    return float(below[positive]), float(below[sum(ranks) - positive])


def two_sided_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of the hypothesis that the centre is 0: twice the smaller one, at most 1."""
    return min(1.0, 2 * min(p_values(differences)))


def centre(differences: Sequence[float]) -> float:
    """Return the estimate of Hodges and Lehmann: the median of the means of all pairs of differences."""
    return statistics.median(_walsh_means(differences))


def interval(differences: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the ends of the interval of centres that the two-sided test does not reject.

    Its confidence is at least ``confidence``. Return None where there are too few differences: the test then rejects no
    centre at all.
    """
    means = sorted(_walsh_means(differences))
    tail = (1 - confidence) / 2
    below = _cumulative(tuple(range(2, 2 * len(differences) + 1, 2)))
    # The ranks of a test without ties are whole, and doubled here.
    rejected = int((below[::2] <= tail).sum())
    return (means[rejected - 1], means[-rejected]) if rejected else None


def smallest_two_sided_p(count: int) -> float:
    """Return the smallest two-sided p value that ``count`` differences can have."""
    return min(1.0, 2.0 ** (1 - count))


def rejection_rate(count: int, alpha: float) -> float:
    """Return how often the two-sided test at ``alpha`` rejects where the centre is 0: at most ``alpha``.

    The sum of ranks is discrete: eight differences reject in 2 of 256 assignments of signs at ``alpha`` 0.01.
    """
    below = _cumulative(tuple(range(2, 2 * count + 1, 2)))
    return 2 * float(below[below <= alpha / 2].max(initial=0.0))


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, from 2. Equal values share their mean rank, which may be a half."""
    ordered = sorted(values)
    # The first rank of a value and its last one.
    return [bisect.bisect_left(ordered, value) + 1 + bisect.bisect_right(ordered, value) for value in values]


def _walsh_means(differences: Sequence[float]) -> list[float]:
    return [(a + b) / 2 for a, b in itertools.combinations_with_replacement(differences, 2)]


@functools.lru_cache(maxsize=64)
def _cumulative(doubled_ranks: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return P(S <= s) for s from 0 on, where S adds each of the ranks with probability 1/2.

    Up to 53 ranks all values are whole multiples of a power of 2, so nothing is rounded; beyond, 1e-13 of a value is.
    """
    below = np.ones(1)
    for rank in doubled_ranks:
        # Each rank is either left out or added.
        longer = np.zeros(len(below) + rank)
        longer[: len(below)] = below
        longer[rank:] += below
        below = longer / 2
    return np.cumsum(below)
