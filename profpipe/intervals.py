"""How well a median is known."""

from __future__ import annotations

import math
from collections.abc import Sequence


def of_median(ordered: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Ends of a confidence interval for the median of ``ordered`` (ascending); None below six samples.

    The number of samples below the true median is binomial(n, 1/2) whatever their distribution, so the order
    statistics l and n + 1 - l enclose it with probability 1 - 2 P(B < l); l is the largest with at least
    ``confidence`` (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; Hahn and Meeker, Statistical
    Intervals, section 5.2). Five samples reach only 94 %. It assumes that the samples are independent.
    """
    n, rank, below = len(ordered), 0, 0.0
    while rank < n:
        below += math.exp(math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) - n * math.log(2))
        if below > (1 - confidence) / 2:
            break
        rank += 1
    return (float(ordered[rank - 1]), float(ordered[n - rank])) if rank else None
