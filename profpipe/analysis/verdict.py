"""Decide from interleaved pairs of processes whether B is faster than A.

A pair is one process of A and one of B, one right after the other. Each gives one number: log(B / A) of their medians.
Times of one process each cannot decide: memory placement, autotuning and clocks differ from process to process, and an
interval from inside one process does not contain this spread.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from profpipe.results import pair_blocks
from profpipe.results.schema import Verdict

# --- signed rank ------------------------------------------------------------------------------------------------------

# The exact Wilcoxon signed-rank test of paired differences, its estimate and its interval. Source: Hollander, Wolfe and
# Chicken, Nonparametric Statistical Methods, 3rd ed., sections 3.1 to 3.3. The differences are independent and
# symmetric around a common centre; nothing else is assumed of their distribution.


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


def hodges_lehmann(differences: Sequence[float]) -> float:
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


# --- student t --------------------------------------------------------------------------------------------------------

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


# --- the verdict ---------------------------------------------------------------------------------------------------

#: The level of the two-sided test, and of the interval that inverts it.
ALPHA: Final = 0.01
#: The fewest pairs with which the test can reject at all: the smallest two-sided p value of n pairs is 2^(1 - n).
FEWEST_PAIRS: Final = 1 + math.ceil(-math.log2(ALPHA))
#: The level of each of the two tests of equivalence (TOST): the usual 5 %.
ALPHA_SAME: Final = 0.05
#: The levels of both tests at the first look at further pairs. Each later look has half the levels of the look before:
#: together the looks call a case different by chance in 0.4 % at most, however many there are.
ALPHA_FURTHER: Final = 0.002
ALPHA_SAME_FURTHER: Final = 0.02
#: With further pairs a difference counts after a first block of 8 pairs if it is so many standard deviations of its
#: pairs. With more pairs fewer standard deviations have the same t value.
CLEAR_DEVIATIONS: Final = 2.0
#: The smallest difference that may be called one, as a ratio minus 1.
LEAST_FLOOR: Final = 0.01
#: The probability with which the further pairs decide, if the estimate and the spread so far are true.
POWER: Final = 0.8
#: More pairs than these are not worth a forecast.
MOST_PAIRS: Final = 1000

#: How far the largest of 8 values of a normal distribution is from their mean (1.42 standard deviations), by the
#: standard deviation of the sizes of values around 0 (0.603 of that of the values).
_REACH: Final = 1.42 / 0.603

_NORMAL: Final = statistics.NormalDist()


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case and what it rests on.

    ``ratio`` is B / A; below 1 B is faster. It is the estimate of Hodges and Lehmann, or the median of the pairs where
    the two differ by more than the floor: then single slow processes have moved the former. ``ci_low`` and ``ci_high``
    enclose the centre with 99 % confidence; they are None with fewer than 8 pairs. ``floor`` is the smallest difference
    that counts, as a ratio minus 1. ``pairs_more`` is how many further pairs would decide: 0 for a verdict, None for
    more than ``MOST_PAIRS``.
    """

    verdict: Verdict
    ratio: float
    ci_low: float | None
    ci_high: float | None
    p: float
    pairs: int
    floor: float
    pairs_more: int | None
    #: How often chance alone gives FASTER or SLOWER, if A and B are the same and their pairs vary as these do.
    false_rate: float

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.ratio - 1) * 100

    @property
    def resolution(self) -> float | None:
        """The smallest difference that so many pairs like these tell from chance, as a ratio minus 1.

        It is half the width of the interval, or the floor. None without an interval.
        """
        if self.ci_low is None or self.ci_high is None:
            return None
        return max(self.floor, self.ci_high / self.ratio - 1, self.ratio / self.ci_low - 1)


def judge(
    log_ratios: Sequence[float], floor: float = LEAST_FLOOR, alpha: float = ALPHA, alpha_same: float = ALPHA_SAME
) -> Judgement:
    """Return the verdict on a case from log(B / A) of each pair.

    FASTER and SLOWER need the exact signed-rank test at ``alpha``, and both the Hodges-Lehmann estimate and
    the median of the pairs beyond ``floor``. SAME needs both tests of equivalence: the centre is above -floor and below
    +floor, each at ``alpha_same``. Everything else is INCONCLUSIVE. The interval has 99 % at any level.
    Raises ValueError without a pair and for a number that is not finite.
    """
    if not log_ratios or not all(map(math.isfinite, log_ratios)):
        raise ValueError("a verdict needs at least one pair, and finite times in each")
    limit = math.log1p(floor)
    centre, median = hodges_lehmann(log_ratios), statistics.median(log_ratios)
    estimate = centre if abs(centre - median) <= limit else median
    p = two_sided_p(log_ratios)
    if p <= alpha and min(abs(centre), abs(median)) > limit:
        verdict = Verdict.FASTER if estimate < 0 else Verdict.SLOWER
    elif _equivalence_p(log_ratios, limit) <= alpha_same:
        verdict = Verdict.SAME
    else:
        verdict = Verdict.INCONCLUSIVE
    low, high = interval(log_ratios, 1 - ALPHA) or (None, None)
    return Judgement(
        verdict,
        ratio=math.exp(estimate),
        ci_low=None if low is None else math.exp(low),
        ci_high=None if high is None else math.exp(high),
        p=p,
        pairs=len(log_ratios),
        floor=floor,
        pairs_more=_pairs_more(log_ratios, limit, alpha, alpha_same) if verdict is Verdict.INCONCLUSIVE else 0,
        false_rate=_false_rate(log_ratios, limit, alpha),
    )


def judge_further(log_ratios: Sequence[float], floor: float = LEAST_FLOOR) -> Judgement | None:
    """Return the verdict on a case that the first block left undecided, from the further pairs alone.

    The pairs are judged after the first 10, 15, 20, ... of them, and the first verdict that is not INCONCLUSIVE stands.
    The levels are ``ALPHA_FURTHER`` and ``ALPHA_SAME_FURTHER``, halved at each later look, so that their sums stay
    below twice these (Bonferroni, with unequal shares). The further pairs are independent of the first block: its false
    verdicts and theirs add up. ``false_rate`` is that of all looks so far. ``pairs_more`` ends at the first later look
    whose levels so many pairs reach; None where that of no look up to ``MOST_PAIRS`` does.
    Return None before the first look. Raises ValueError for a number that is not finite.
    """
    judged, chance = None, 0.0
    for number, count in enumerate(pair_blocks.looks(len(log_ratios))):
        judged = judge(log_ratios[:count], floor, *_levels_of_look(number))
        chance += judged.false_rate
        if judged.verdict is not Verdict.INCONCLUSIVE:
            return replace(judged, false_rate=chance)
    if judged is None:
        return None
    more = _pairs_to_later_look(log_ratios[: judged.pairs], math.log1p(floor))
    return replace(judged, false_rate=chance, pairs_more=more)


def _levels_of_look(number: int) -> tuple[float, float]:
    """Return the levels of both tests at a look at further pairs; the first look has the number 0."""
    return ALPHA_FURTHER / 2**number, ALPHA_SAME_FURTHER / 2**number


def is_clear(judged: Judgement, log_ratios: Sequence[float]) -> bool:
    """Return True if a first block decides a case that may have further pairs.

    FASTER and SLOWER then also need a t value of 5.7: in 8 pairs a difference of ``CLEAR_DEVIATIONS`` standard
    deviations of its pairs, in 32 pairs half of that. Without it, the false verdicts of the first block and of the
    further pairs together would exceed 0.5 % where processes of the same code differ by more than the floor.
    """
    if judged.verdict in (Verdict.FASTER, Verdict.SLOWER) and len(log_ratios) > 1:
        least = CLEAR_DEVIATIONS * math.sqrt(FEWEST_PAIRS / len(log_ratios))
        return abs(math.log(judged.ratio)) >= least * statistics.stdev(log_ratios)
    return judged.verdict is not Verdict.INCONCLUSIVE


def expected_false(judgements: Iterable[Judgement]) -> float:
    """Return the number of FASTER and SLOWER to expect among these cases if nothing had changed.

    The expectations of cases add up, whether or not the cases are independent.
    """
    return sum(judgement.false_rate for judgement in judgements)


def spread(log_ratios: Sequence[float]) -> float:
    """Return how far pairs of the same code lie apart: the standard deviation around 0, as a ratio minus 1.

    It is estimated from the median distance to 0, which single slow processes do not move.
    """
    # Half of a normal distribution lies within 0.6745 standard deviations.
    return math.expm1(statistics.median(map(abs, log_ratios)) / _NORMAL.inv_cdf(0.75))


def scatters(log_ratios: Sequence[float], percent: float | None = None) -> bool:
    """Return True if a first block of pairs like these cannot resolve ``percent``, or 5 % without a gate.

    The interval of 8 pairs reaches from the smallest to the largest. Only the spread of the sizes counts: neither the
    difference nor the signs change it, so that pairs of the same code are as often all positive after this choice as
    before. No gate needs less than the least floor.
    """
    limit = math.log1p(max(LEAST_FLOOR, 0.05 if percent is None else percent / 100))
    return len(log_ratios) > 1 and _REACH * statistics.stdev(map(abs, log_ratios)) > limit


def _equivalence_p(log_ratios: Sequence[float], limit: float) -> float:
    """Return the p value of two one-sided tests: of a centre at or below -limit, and of one at or above it.

    Source: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657, with signed ranks in place of t.
    """
    above_lower = p_values([value + limit for value in log_ratios])[1]
    below_upper = p_values([value - limit for value in log_ratios])[0]
    return max(above_lower, below_upper)


def _false_rate(log_ratios: Sequence[float], limit: float, alpha: float) -> float:
    """Return the probability of FASTER or SLOWER over random signs of these differences; an upper bound.

    No assignment of signs moves the median or the estimate further from 0 than all signs alike.
    """
    sizes = list(map(abs, log_ratios))
    if min(hodges_lehmann(sizes), statistics.median(sizes)) <= limit:
        return 0.0
    return rejection_rate(len(log_ratios), alpha)


def _pairs_more(log_ratios: Sequence[float], limit: float, alpha: float, alpha_same: float) -> int | None:
    """Return how many more pairs decide with probability ``POWER``; None for more than ``MOST_PAIRS``.

    Up to two pairs show no variation: then the least number that can decide is returned.
    """
    if len(log_ratios) < 3:
        return FEWEST_PAIRS - len(log_ratios)
    wanted = _pairs_wanted(log_ratios, limit)(alpha, alpha_same)
    if wanted > MOST_PAIRS:
        return None
    # The normal approximation asks for up to one pair more than the exact test.
    return max(1, math.floor(wanted) - len(log_ratios), FEWEST_PAIRS - len(log_ratios))


def _pairs_to_later_look(log_ratios: Sequence[float], limit: float) -> int | None:
    """Return how many more pairs lead to the first look that decides with probability ``POWER``.

    Each look has lower levels than the look before. Where they fall faster than pairs add evidence, no look decides:
    then None is returned, as for more than ``MOST_PAIRS``.
    """
    wanted, done = _pairs_wanted(log_ratios, limit), len(log_ratios)
    for number, count in enumerate(pair_blocks.looks(MOST_PAIRS)):
        # The normal approximation asks for up to one pair more than the exact test.
        if count > done and wanted(*_levels_of_look(number)) < count + 1:
            return count - done
    return None


def _pairs_wanted(log_ratios: Sequence[float], limit: float) -> Callable[[float, float], float]:
    """Return a function that says how many pairs decide at some levels with probability ``POWER``.

    The pairs are taken to vary as these do, single slow processes included. There are three pairs at least.
    """
    centre, median = hodges_lehmann(log_ratios), statistics.median(log_ratios)
    size = min(abs(centre), abs(median)) if centre * median > 0 else 0.0
    power = _NORMAL.inv_cdf(POWER)
    if size > limit:
        sizes = [math.copysign(value, value * centre) for value in log_ratios]
        beyond = [value - limit for value in sizes]
        least = max(_pairs_above_0(beyond, power)(0.0), _pairs_with_median_above_0(beyond, power))
        differs = _pairs_above_0(sizes, power)
        return lambda alpha, _: max(least, differs(-_NORMAL.inv_cdf(alpha / 2)))
    # In the middle of the floor either of the two tests of equivalence can miss.
    power = _NORMAL.inv_cdf((1 + POWER) / 2) if size < limit / 2 else power
    above_lower = _pairs_above_0([value + limit for value in log_ratios], power)
    below_upper = _pairs_above_0([limit - value for value in log_ratios], power)
    return lambda _, alpha_same: max(test(-_NORMAL.inv_cdf(alpha_same)) for test in (above_lower, below_upper))


def _pairs_above_0(values: Sequence[float], power: float) -> Callable[[float], float]:
    """Return a function of a level: with how many values like these the signed-rank test places their centre above 0.

    The level and ``power`` are quantiles of the normal distribution. The share of sums of two values above 0, and how
    far it varies, come from the values: ranks alone count, so that one slow process counts as one.
    Source: Noether, J. Am. Stat. Assoc. 82 (1987) 645, with the variance under the alternative (Lehmann,
    Nonparametrics, appendix 4).
    """
    n = len(values)
    # A sum of 0 counts half.
    above = [sum((a + b > 0) + (a + b == 0) / 2 for j, b in enumerate(values) if j != i) for i, a in enumerate(values)]
    share = sum(above) / (n * (n - 1))
    of_two_sums = sum(count * (count - 1) for count in above) / (n * (n - 1) * (n - 2))
    deviation = 2 * math.sqrt(max(0.0, of_two_sums - share**2))
    return lambda level: _quotient(level / math.sqrt(3) + power * deviation, share - 0.5) ** 2


def _pairs_with_median_above_0(values: Sequence[float], power: float) -> float:
    """Return how many values like these have a median above 0; ``power`` is a quantile of the normal distribution.

    The share of values above 0 is interpolated between them, so that it is above a half where the median is above 0.
    """
    ordered = sorted(values)
    above = len(ordered) - bisect.bisect_left(ordered, 0.0)
    if 0 < above < len(ordered):
        low, high = ordered[-above - 1], ordered[-above]
        share = (above - 0.5 + high / (high - low)) / len(ordered)
    else:
        share = float(above > 0)
    return _quotient(power * math.sqrt(share * (1 - share)), share - 0.5) ** 2


def _quotient(value: float, by: float) -> float:
    return value / by if by > 0 else math.inf
