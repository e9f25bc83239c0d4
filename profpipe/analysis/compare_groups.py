"""Compare the runs of two groups, case by case: processes that are not paired, so in whatever order they were measured.

The unit is the process: the median of its samples. Processes of one run share the state of the machine in that run, so
where runs hold several processes, the difference must also stand out between the runs. A drift of the machine looks
like a difference where all runs of A came before those of B, so a verdict needs runs that take turns, or a difference
beyond the known spread between runs.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from profpipe.analysis import rank_sum, student_t
from profpipe.analysis.compare_runs import (
    Comparison,
    Key,
    Run,
    TimedCase,
    are_devices_different,
    compare_cases,
    plain_processes,
    timed_cases,
    where_inaccurate,
)
from profpipe.analysis.verdict import ALPHA_SAME, LEAST_FLOOR, Gate, judge_gate
from profpipe.results.noise import Model, Noise
from profpipe.results.schema import Tables, Verdict

#: The level of the two-sided tests. It is half of that of pairs: at 1 % up to 0.9 % of the verdicts would be false
#: where processes vary by 1 %, for the floor holds back fewer of them.
ALPHA: Final = 0.005
#: The confidence of the interval of the ratio.
CONFIDENCE: Final = 0.99
#: The largest imbalance in time: 0 where the runs of A and B are on average equally late, 1 where all of A came first.
MOST_IMBALANCE: Final = 0.5

_UNKNOWN: Final = Noise()


class Hindrance(Enum):
    """Why no difference could be decided, whatever its size."""

    #: Even without any overlap the p value is too large.
    TOO_FEW_PROCESSES = "too_few_processes"
    #: The runs of one side came mostly before those of the other, and how far runs differ is not known.
    NOT_INTERLEAVED = "not_interleaved"
    #: The runs used GPUs of different models.
    UNLIKE_GPUS = "unlike_gpus"
    #: Each side is one run of several processes: how far runs differ is not known.
    ONE_RUN_A_SIDE = "one_run_a_side"


@dataclass(frozen=True)
class Side:
    """A case in the runs of a side: the times of the processes of each run in ns."""

    runs: tuple[tuple[float, ...], ...]

    @property
    def logs(self) -> list[float]:
        return [math.log(time) for time in itertools.chain.from_iterable(self.runs)]

    @property
    def median_ns(self) -> float:
        return statistics.median(itertools.chain.from_iterable(self.runs))


@dataclass(frozen=True)
class GroupChange:
    """A case in both groups. ``ratio`` is B / A with its 99 % interval, ``floor`` the smallest difference that counts.

    ``p_slower`` is the one-sided p value of the hypothesis that B is slower by the gate or more; None without a gate.
    """

    name: str
    a: Side
    b: Side
    verdict: Verdict
    ratio: float
    ci_low: float | None
    ci_high: float | None
    p: float
    floor: float
    hindrance: Hindrance | None = None
    #: The sides on which a run's result was outside the tolerance: ``A``, ``B`` or both.
    inaccurate_in: tuple[str, ...] = ()
    p_slower: float | None = None

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.ratio - 1) * 100

    def judge_gate(self, percent: float) -> Gate:
        """Return what the case means for a gate of ``percent``."""
        return Gate.FAILED if self.inaccurate_in == ("B",) else judge_gate(self, percent, self.p_slower)


@dataclass(frozen=True)
class GroupComparison(Comparison[GroupChange]):
    """Two groups of runs. ``imbalance`` is by their start: -1 (all of B first) to 1."""

    runs: tuple[int, int] = (0, 0)
    imbalance: float = 0.0


def compare_groups(
    a: Sequence[Run], b: Sequence[Run], noise: Model = MappingProxyType({}), gate: float | None = None
) -> GroupComparison:
    """Compare the cases of the runs of A with those of B. ``noise`` is what is known of their spread on this machine.

    A case counts in the runs in which it has a time. One that ran on unlike GPUs gets no verdict. ``gate`` is a
    percentage.
    """
    manifests_a, manifests_b = ([run for _, run in runs] for runs in (a, b))
    starts = [(after.started, before.started) for before, after in itertools.product(manifests_a, manifests_b)]
    # The share of pairs of runs in which B is later, less the others.
    imbalance = sum((after > before) - (after < before) for after, before in starts) / len(starts)
    processes_a, processes_b = ([_times(data) for data, _ in runs] for runs in (a, b))

    def judge_case(name: str, key: Key, before: Sequence[TimedCase], after: Sequence[TimedCase]) -> GroupChange:
        sides = [Side(tuple(run[key] for run in side if key in run)) for side in (processes_a, processes_b)]
        judged = judge(name, sides[0], sides[1], imbalance, noise.get(key, _UNKNOWN), gate)
        if are_devices_different(key, [*manifests_a, *manifests_b]):
            judged = replace(judged, verdict=Verdict.INCONCLUSIVE, hindrance=Hindrance.UNLIKE_GPUS, p_slower=None)
        return replace(judged, inaccurate_in=where_inaccurate(before, after))

    found = compare_cases(a, b, judge_case)
    return GroupComparison(**vars(found), runs=(len(a), len(b)), imbalance=imbalance)


def _times(data: Tables) -> Mapping[Key, tuple[float, ...]]:
    """Return the times of the processes of each case; of a case that one process measured, its time."""
    single = {key: (case.time.ns,) for key, case in timed_cases(data).items()}
    return single | {key: tuple(times) for key, times in plain_processes(data).items()}


def judge(
    name: str, a: Side, b: Side, imbalance: float, noise: Noise = _UNKNOWN, gate: float | None = None
) -> GroupChange:
    """Return the verdict on a case.

    FASTER and SLOWER need the exact rank-sum test of the processes at 0.5 %, the Hodges-Lehmann shift and the
    difference of the medians beyond the floor, and, where runs hold several processes or do not take turns, a
    difference of the runs by Student's t at 0.5 %. SAME needs both tests of equivalence at 5 %, on processes and on
    runs. Everything else is INCONCLUSIVE.
    """
    floor = max([LEAST_FLOOR, *(each.spread for each in (noise.of_runs,) if each)])
    limit, logs_a, logs_b = math.log1p(floor), a.logs, b.logs
    shift, p = rank_sum.shift(logs_a, logs_b), rank_sum.two_sided_p(logs_a, logs_b)
    least = min(abs(shift), abs(math.log(b.median_ns / a.median_ns)))
    verdict, hindrance = Verdict.INCONCLUSIVE, None
    margin = _run_margin(a, b, imbalance, noise, ALPHA / 2)
    if margin == math.inf:
        hindrance = Hindrance.NOT_INTERLEAVED if abs(imbalance) > MOST_IMBALANCE else Hindrance.ONE_RUN_A_SIDE
    elif rank_sum.smallest_two_sided_p(len(logs_a), len(logs_b)) > ALPHA:
        hindrance = Hindrance.TOO_FEW_PROCESSES
    if hindrance is None and p <= ALPHA and least > limit and abs(shift) > margin:
        verdict = Verdict.FASTER if shift < 0 else Verdict.SLOWER
    elif _is_same(a, b, imbalance, noise, limit):
        verdict = Verdict.SAME
    interval = rank_sum.interval(logs_a, logs_b, CONFIDENCE)
    return GroupChange(
        name, a, b, verdict, math.exp(shift),
        ci_low=math.exp(interval[0]) if interval else None,
        ci_high=math.exp(interval[1]) if interval else None,
        p=p, floor=floor, hindrance=hindrance if verdict is Verdict.INCONCLUSIVE else None,
        p_slower=None if gate is None else _p_slower(a, b, imbalance, noise, math.log1p(gate / 100)),
    )  # fmt: skip


def _run_margin(a: Side, b: Side, imbalance: float, noise: Noise, tail: float) -> float:
    """Return the difference that runs of the same code exceed with probability ``tail`` on each side.

    It is 0 where each run is one process, for the test of the processes is then one of the runs. The variance of a run
    is pooled from the runs here and from known runs of the same code. Infinite where neither shows it.
    Runs that do not take turns differ by what changed between the two groups. So a group counts as one run then, and
    only known runs of the same code show the spread.
    """
    if abs(imbalance) > MOST_IMBALANCE:
        known = noise.between
        return student_t.quantile(1 - tail, known.degrees) * math.log1p(known.spread) if known else math.inf
    if all(len(run) == 1 for run in (*a.runs, *b.runs)):
        return 0.0
    own = [[math.log(statistics.median(run)) for run in side.runs] for side in (a, b) if len(side.runs) > 1]
    samples = [(statistics.variance(logs), len(logs) - 1.0) for logs in own]
    if noise.between:
        # Its spread is that of a difference of two runs.
        samples.append((math.log1p(noise.between.spread) ** 2 / 2, noise.between.degrees))
    degrees = sum(own_degrees for _, own_degrees in samples)
    if not degrees:
        return math.inf
    variance = sum(value * own_degrees for value, own_degrees in samples) / degrees
    return student_t.quantile(1 - tail, degrees) * math.sqrt(variance * (1 / len(a.runs) + 1 / len(b.runs)))


def _is_same(a: Side, b: Side, imbalance: float, noise: Noise, limit: float) -> bool:
    """Return True if both one-sided tests place the shift within the floor, for the processes and for the runs."""
    logs_a, logs_b = a.logs, b.logs
    above = rank_sum.p_values(logs_a, [value + limit for value in logs_b])[1]
    below = rank_sum.p_values(logs_a, [value - limit for value in logs_b])[0]
    margin = _run_margin(a, b, imbalance, noise, ALPHA_SAME)
    return max(above, below) <= ALPHA_SAME and abs(rank_sum.shift(logs_a, logs_b)) + margin <= limit


def _p_slower(a: Side, b: Side, imbalance: float, noise: Noise, limit: float) -> float:
    """Return the one-sided p value of B being slower by ``limit`` or more; 1 where the runs do not exclude it."""
    if rank_sum.shift(a.logs, b.logs) + _run_margin(a, b, imbalance, noise, ALPHA_SAME) > limit:
        return 1.0
    return rank_sum.p_values(a.logs, [value - limit for value in b.logs])[0]
