"""The confidence interval of a median, and when successive times count as stable."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

#: Groups that must agree within the tolerance, and the length of a group.
GROUPS: Final = 3
GROUP_NS: Final = 10e6
_TOLERANCE: Final = 0.02

#: Of what several processes recorded of one case, the worst is the case's, or the end of the range of its samples: by
#: the beginning of a metric's name.
_WORST: Final[Mapping[str, Callable[[float, float], float]]] = {
    "error_": max, "cosine": min, "peak_": max, "time_min": min, "time_max": max,
}  # fmt: skip


def worse_of(metric: str) -> Callable[[float, float], float] | None:
    """Return the function that chooses the worse or outer of two values of ``metric``; None if their median counts."""
    return next((choose for start, choose in _WORST.items() if metric.startswith(start)), None)


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Return the ends of a 95 % confidence interval for the median of ``ordered`` (ascending); None below six samples.

    The number of samples below the true median is binomial(n, 1/2) for any distribution, so the order statistics l
    and n + 1 - l enclose the median with probability 1 - 2 P(B < l); l is the largest with at least 95 %
    (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; Hahn and Meeker, Statistical Intervals,
    section 5.2). Five samples reach only 94 %. The samples are assumed to be independent.
    """
    n, rank, below = len(ordered), 0, 0.0
    while rank < n:
        below += math.exp(math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) - n * math.log(2))
        if below > (1 - 0.95) / 2:
            break
        rank += 1
    return (float(ordered[rank - 1]), float(ordered[n - rank])) if rank else None


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the mean; None below three values.

    From six values on t is an expansion in 1 / degrees of freedom (Abramowitz and Stegun, 26.7.5), within 1 %.
    """
    if len(values) < min(_STUDENT_T):
        return None
    z, df = statistics.NormalDist().inv_cdf(0.975), len(values) - 1
    expansion = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    mean = statistics.mean(values)
    half = _STUDENT_T.get(len(values), expansion) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


#: Student's t for 95 % and 2, 3 and 4 degrees of freedom (Student, Biometrika 6, 1908; scipy.stats.t.ppf(0.975, df)).
_STUDENT_T: Final = {3: 4.303, 4: 3.182, 5: 2.776}


def interval_of_processes(values: Sequence[float]) -> tuple[float, float] | None:
    """Return a 95 % interval for the typical value of a few processes; None below three.

    From six values on it is that of the median by order statistics. Three to five are too few for these: there it is
    Student's interval of the mean, which assumes a normal distribution and for these numbers holds the median too.
    """
    return mean_interval(values) if len(values) <= max(_STUDENT_T) else median_interval(sorted(values))


def relative_half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the median's interval, relative to the median; None where there is no interval."""
    if (interval := median_interval(sorted(values))) is None:
        return None
    width, median = interval[1] - interval[0], statistics.median(values)
    return width / 2 / median if median > 0 else float(width > 0)


def is_stable(times: Sequence[float], expected: Sequence[float] = ()) -> bool:
    """Return True if the last GROUPS of ``times`` agree within 2 %, or only vary around one value.

    ``expected`` counts as earlier times in the first test. The times of a kernel of 15 us varied by 3 % from group to
    group however long the load lasted: of five groups, the last two then lie within the range of the first three,
    extended by the tolerance.
    """
    last = [*expected, *times][-GROUPS:]
    if len(last) == GROUPS and max(last) <= (1 + _TOLERANCE) * min(last):
        return True
    before, latest = times[-GROUPS - 2 : -2], times[-2:]
    return len(before) == GROUPS and (
        min(before) <= (1 + _TOLERANCE) * min(latest) and max(latest) <= (1 + _TOLERANCE) * max(before)
    )
