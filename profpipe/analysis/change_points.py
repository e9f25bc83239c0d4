"""Find the runs at which the time of a case changed and stayed changed.

Optimal partitioning (Jackson et al., IEEE Signal Process. Lett. 12 (2005) 105; PELT of Killick, Fearnhead and Eckley,
2012, prunes the same search): of all divisions into segments, take the one with the least cost plus a penalty for each
change. The cost is the sum of distances to the median of the segment, in units of the noise: a single slow run costs
little (Fearnhead and Rigaill, J. Am. Stat. Assoc. 114 (2019) 169). A segment has at least three runs, so a change must
persist.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

#: The fewest runs on a level.
SHORTEST: Final = 3
#: What a change costs, in units of the noise, and the smallest change in these units. By simulation no course of
#: 6 to 40 runs without a change gets one where the noise is known. Where the course itself shows it, 2 of 100 courses
#: do if their noise is bimodal, and fewer than 1 of 100 with other noise.
PENALTY: Final = 8.0
SMALLEST: Final = 2.5
#: Where runs of the same code take exactly the same time, the unit of the costs.
_LEAST_SIGMA: Final = 1e-9

#: The quantile of the distances of neighbours that gives the noise, and that of a normal distribution of spread 1.
_QUANTILE: Final = 0.85
_OF_NORMAL: Final = statistics.NormalDist().inv_cdf((1 + _QUANTILE) / 2)


def find(values: Sequence[float], sigma: float, floor: float) -> list[int]:
    """Return the position of the first value of each level after the first one.

    ``sigma`` is the standard deviation of one value around its level. Changes of the median by less than ``floor``, or
    by less than 2.5 ``sigma``, are left out. All are of logs of times.
    """
    if len(values) < 2 * SHORTEST:
        return []
    costs, unit = _segment_costs(values), max(sigma, _LEAST_SIGMA)
    best: list[float] = [-PENALTY]
    starts = [0]
    for end in range(1, len(values) + 1):
        candidates = [
            (best[start] + costs[start][end] / unit + PENALTY, start)
            for start in range(end - SHORTEST + 1)
            if start == 0 or start >= SHORTEST
        ]
        cost, start = min(candidates, default=(math.inf, 0))
        best.append(cost)
        starts.append(start)
    found: list[int] = []
    end = len(values)
    while starts[end]:
        end = starts[end]
        found.insert(0, end)
    return _beyond(values, found, max(floor, SMALLEST * sigma))


def estimate_sigma(values: Sequence[float]) -> float | None:
    """Return the standard deviation of one value around its level, from the distances of neighbours; None below five.

    It is their 85th percentile: a change of level enters in one distance, and two levels that alternate by chance, as
    of memory placed in one of two ways, count as noise.
    """
    if len(values) <= SHORTEST + 1:
        return None
    return float(np.quantile(np.abs(np.diff(values)), _QUANTILE)) / _OF_NORMAL / math.sqrt(2)


def _segment_costs(values: Sequence[float]) -> list[list[float]]:
    """Return by start and end (exclusive) the sum of the distances of the values to their median."""
    costs = []
    for start in range(len(values)):
        ordered: list[float] = []
        row = [0.0] * (len(values) + 1)
        for end in range(start + 1, len(values) + 1):
            bisect.insort(ordered, values[end - 1])
            half = len(ordered) // 2
            row[end] = sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0
        costs.append(row)
    return costs


def _beyond(values: Sequence[float], found: Sequence[int], floor: float) -> list[int]:
    """Return the changes without those below ``floor``, the smallest first: what it leaves is judged again."""
    kept = list(found)
    while kept:
        ends = [0, *kept, len(values)]
        sizes = [_size(values[a:b], values[b:c]) for a, b, c in zip(ends, ends[1:], ends[2:], strict=False)]
        if min(sizes) > floor:
            break
        del kept[sizes.index(min(sizes))]
    return kept


def _size(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the distance of two levels; 0 where fewer than three values of one are nearer to it than to the other."""
    levels = statistics.median(before), statistics.median(after)
    middle, is_up = sum(levels) / 2, levels[1] > levels[0]
    low, high = (before, after) if is_up else (after, before)
    supported = min(sum(value < middle for value in low), sum(value > middle for value in high))
    return abs(levels[1] - levels[0]) if supported >= SHORTEST else 0.0
