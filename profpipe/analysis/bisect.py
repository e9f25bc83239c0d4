"""Find the commit that made a program slower or faster: what to measure next, and what the pairs so far say.

The hypotheses are "the first commit that changes the time is k". Each has a probability: a measurement can be wrong, so
no half of the commits is ever discarded. A commit that cannot be measured is joined with the next one that can.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profpipe.analysis import verdict
from profpipe.analysis.verdict import FEWEST_PAIRS, Judgement
from profpipe.results.manifest import BisectEntry, BisectKind, BisectPairs
from profpipe.results.schema import Verdict

#: The probability at which the search ends and the commit is measured against its parent.
CERTAIN: Final = 0.95
#: Pairs of the search, without those of the two verdicts.
MOST_PAIRS: Final = 100
#: Commits that were not measured are listed from this probability on.
LEAST_SHOWN: Final = 0.01

#: Pairs of one commit and GOOD: so many that the whole difference is so many standard deviations of their mean.
_DEVIATIONS: Final = 3.0
#: Pairs are never taken for more precise than this, as a log ratio.
_LEAST_SPREAD: Final = 0.002
#: Single processes may be far off: Student's t with so few degrees of freedom forgives them.
_DEGREES: Final = 4
#: Half of a 99 % interval, and the rest of the whole difference that counts, in standard errors.
_HALF_INTERVAL: Final = 2.576
_REST: Final = 3.0
#: A smaller part of the whole difference may be the drift between its pairs and those of the step.
_LEAST_REST: Final = 0.1

#: A commit has none or all of the whole difference with these shares of its probability; else one of the other parts,
#: for several commits may have changed the time. From ``_LEAST_PART`` on it lies behind the first of them.
_PARTS: Final = np.array([0.0, 1.0, *np.arange(-0.5, 1.51, 0.125)])
_SHARES: Final = np.array([0.8, 0.8, *[0.2 / (len(_PARTS) - 2)] * (len(_PARTS) - 2)])
_LEAST_PART: Final = 0.25


@dataclass(frozen=True)
class Bisection:
    """What the pairs so far say. Commits have their numbers in the record, from 0 for GOOD.

    ``whole`` is the verdict on BAD against GOOD. ``probabilities`` has by commit how likely it is the first that
    changes the time; commits that cannot be separated have equal ones. ``remaining`` are the commits that hold
    ``CERTAIN`` together. ``step`` is the verdict on the last of them against the last one before them that can be
    measured, from ``step_pairs``. ``part`` is the part of the whole difference that the step makes, where it leaves
    some of it for other commits. ``question`` is what to measure next, in ``pairs``; None at the end.
    """

    whole: Judgement | None = None
    probabilities: tuple[float, ...] = ()
    remaining: tuple[int, ...] = ()
    step: Judgement | None = None
    step_pairs: BisectPairs | None = None
    part: float | None = None
    question: BisectPairs | None = None
    pairs: int = FEWEST_PAIRS

    @property
    def is_different(self) -> bool:
        return self.whole is not None and self.whole.verdict in (Verdict.FASTER, Verdict.SLOWER)

    @property
    def culprit(self) -> int | None:
        """The commit that is named: one that makes the same difference to its parent, in fresh pairs."""
        is_confirmed = self.whole and self.step and self.step.verdict is self.whole.verdict
        return self.remaining[0] if is_confirmed and len(self.remaining) == 1 else None


def analyze(entry: BisectEntry) -> Bisection:
    """Return what the comparisons of a record say, and what to measure next."""
    last, floor = len(entry.commits) - 1, max(verdict.LEAST_FLOOR, entry.gate / 100)
    of_whole = [pairs for pairs in entry.comparisons if pairs.kind is BisectKind.WHOLE]
    if not of_whole:
        return Bisection(question=BisectPairs(BisectKind.WHOLE, 0, last))
    whole = _judge(of_whole[0], floor)
    if whole.verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return Bisection(whole)
    change, spread = math.log(whole.ratio), max(_LEAST_SPREAD, statistics.stdev(of_whole[0].log_ratios))
    ends = [0, *(number for number in range(1, last + 1) if number not in entry.skipped)]
    posterior = _find_posterior(ends, entry.comparisons, change, spread, math.log1p(floor))
    groups = [range(before + 1, end + 1) for before, end in itertools.pairwise(ends)]
    likely, held = list[int](), 0.0
    for place in sorted(range(len(groups)), key=lambda i: -posterior[i]):
        likely += groups[place] if held < CERTAIN else ()
        held += posterior[place]
    best = posterior.index(max(posterior))
    steps = [p for p in entry.comparisons if p.kind is BisectKind.STEP and (p.a, p.b) == (ends[best], ends[best + 1])]
    step = _judge(steps[0], floor) if steps else None
    question, count = None, FEWEST_PAIRS
    if posterior[best] >= CERTAIN:
        question = None if steps else BisectPairs(BisectKind.STEP, ends[best], ends[best + 1])
    elif sum(len(p.log_ratios) for p in entry.comparisons if p.kind is BisectKind.LEVEL) < MOST_PAIRS:
        before = list(itertools.accumulate(posterior))[:-1]
        split = min(range(len(before)), key=lambda i: abs(before[i] - 0.5))
        question = BisectPairs(BisectKind.LEVEL, 0, ends[split + 1])
        count = min(math.ceil((_DEVIATIONS * spread / change) ** 2), FEWEST_PAIRS)
    shared = (p / len(numbers) for numbers, p in zip(groups, posterior, strict=True) for _ in numbers)
    part = _find_part(of_whole[0], steps[0], whole, step) if step else None
    return Bisection(
        whole, (0.0, *shared), tuple(sorted(likely)), step, steps[0] if steps else None, part, question, count
    )


def measure_levels(entry: BisectEntry, whole: Judgement | None) -> dict[int, tuple[float, float, float, int]]:
    """Return by commit its time as a ratio to GOOD, the ends of its 99 % interval, and its pairs.

    BAD has the interval of ``whole``, its verdict. One pair has no spread, so the others take that of GOOD and BAD.
    """
    ratios: dict[int, list[float]] = {}
    for pairs in entry.comparisons:
        if pairs.kind is not BisectKind.STEP:
            ratios.setdefault(pairs.b, []).extend(pairs.log_ratios)
    spread = statistics.pstdev(entry.comparisons[0].log_ratios) if entry.comparisons else 0.0
    levels = {}
    for number, log_ratios in sorted(ratios.items()):
        centre, half = statistics.median(log_ratios), _HALF_INTERVAL * spread / math.sqrt(len(log_ratios))
        ends = math.exp(centre - half), math.exp(centre + half)
        if whole and number == len(entry.commits) - 1:
            ends = whole.ci_low or ends[0], whole.ci_high or ends[1]
        levels[number] = math.exp(centre), *ends, len(log_ratios)
    return levels


def _judge(pairs: BisectPairs, floor: float) -> Judgement:
    further = verdict.judge_further(pairs.log_ratios, floor) if pairs.further_pairs else None
    return further or verdict.judge(pairs.log_ratios, floor)


def _find_part(of_whole: BisectPairs, of_step: BisectPairs, whole: Judgement, step: Judgement) -> float | None:
    """Return the part of the whole difference that the step makes; None where the rest may be chance."""
    both = (of_whole.log_ratios, of_step.log_ratios)
    error = math.sqrt(sum(statistics.pvariance(ratios) / len(ratios) for ratios in both))
    change, of_commit = math.log(whole.ratio), math.log(step.ratio)
    least = max(math.log1p(step.floor), _LEAST_REST * abs(change), _REST * error)
    return of_commit / change if abs(change - of_commit) > least else None


def _find_posterior(
    ends: Sequence[int], comparisons: Sequence[BisectPairs], change: float, spread: float, limit: float
) -> list[float]:
    """Return the probability that the first change lies behind each of ``ends`` and not behind the next one.

    Before any measurement each commit is as likely. ``change`` is the whole difference, ``spread`` the standard
    deviation of a pair and ``limit`` the least difference of interest, as log ratios.
    """
    behind, log_p = np.array(ends[1:]), np.log(np.diff(ends))
    has_changed = np.maximum(_LEAST_PART, min(1.0, limit / abs(change))) <= _PARTS
    joined: dict[tuple[int, int], list[float]] = {}
    for pairs in comparisons:
        if pairs.kind is not BisectKind.WHOLE:
            joined.setdefault((pairs.a, pairs.b), []).extend(pairs.log_ratios)
    for (a, b), log_ratios in joined.items():
        z = (np.array(log_ratios)[:, None] - change * _PARTS) / spread
        log_t = np.log(_SHARES) - (_DEGREES + 1) / 2 * np.log1p(z**2 / _DEGREES).sum(axis=0)
        same, changed = np.logaddexp.reduce(log_t[~has_changed]), np.logaddexp.reduce(log_t[has_changed])
        log_p = log_p + np.where((behind > a) & (behind <= b), changed, same)
    p = np.exp(log_p - log_p.max())
    return [float(value) for value in p / p.sum()]
