"""Steps without ranges: the shortest sequence of launches that recurs on a device, in the order of the launches.

Optimizer kernels end a step, for most training loops run them once in each. Without them the steps are the repetitions
of a sequence of kernels (name, grid, in a CUDA graph or not). At least three steps, twelve launches and half of the
GPU's time in them: otherwise nothing recurs. TraceLens (inference_iteration_roots.py) has the first and the last limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.groupby import Bools, Int64s, Ints
from profpipe.ingest.steps import segments
from profpipe.ingest.steps.operations import Timeline
from profpipe.ingest.steps.segments import Segments
from profpipe.results.schema import StepRule

LEAST_STEPS: Final = 3
#: A kernel that a short program launches five times is no loop.
_LEAST_LAUNCHES: Final = 12
LEAST_COVERAGE: Final = 0.5
#: What may differ between two steps: other lengths of the input choose other kernels.
_TOLERANCE: Final = 0.05
#: A step longer than the typical one by more than this holds work before it, such as an evaluation.
_LONGER: Final = 0.1

# --- optimizer kernels ---
#: Optimizer kernels this near to each other belong to one call of an optimizer.
_NEAR: Final = 8
_NEAR_SHARE: Final = 0.1
#: Several optimizers that take turns, as in a GAN, are one step.
_MOST_OPTIMIZERS: Final = 8
_ALIKE: Final = 0.99

# --- repetitions ---
_LEAST_MATCH: Final = 0.5
#: The shortest lag that matches as well as the best one, but for this share, is the period.
_NEARLY_BEST: Final = 0.01
_CANDIDATES: Final = 64
_TRIES: Final = 3
_ENOUGH: Final = 1 << 17
_MOST: Final = 1 << 21

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Parts:
    """Steps as parts [begin, end) of the sequence of kernels, ascending and without overlap."""

    begin: Ints
    end: Ints


def find(timeline: Timeline, is_optimizer: Bools, grid: Ints | None) -> Segments | None:
    """Return the steps on a device, None if nothing recurs.

    ``is_optimizer`` says for each name of an operation whether it is an optimizer's kernel. ``grid`` is a number for
    the grid of each operation, in the order of ``timeline``.
    """
    kernels = np.flatnonzero(timeline.is_kernel)
    if len(kernels) < LEAST_STEPS:
        return None
    name, launched = timeline.name[kernels].astype(np.int64), timeline.launched[kernels]
    optimizes = is_optimizer[name]
    parts = None
    if optimizes.any():
        parts = _by_optimizer(name, np.flatnonzero(optimizes))
    if parts is None:
        kernels = kernels[_graph_order(name, launched)]
        grids = np.zeros(len(kernels), dtype=np.int64) if grid is None else grid[kernels]
        parts = _by_repetition(_tokens(timeline.name[kernels], grids, launched))
    if parts is None or len(parts.begin) < LEAST_STEPS:
        return None
    found = _segments(parts, launched)
    place = found.place(launched)
    inside = (place >= 0) & found.is_step[place]
    duration = (timeline.end - timeline.start)[kernels]
    is_loop = found.steps >= LEAST_STEPS and inside.sum() >= _LEAST_LAUNCHES
    return found if is_loop and duration[inside].sum() >= LEAST_COVERAGE * duration.sum() else None


def _segments(parts: _Parts, launched: Int64s) -> Segments:
    """Return the parts as times of the host. A step ends with its last launch, or where the next one begins."""
    # Repetitions inside one launch, a graph's, are one step.
    alone = np.append(launched[parts.begin[1:]] > launched[parts.begin[:-1]], True)
    parts = _Parts(parts.begin[alone], parts.end[alone])
    begin, last = launched[parts.begin], launched[parts.end - 1] + 1
    end = np.append(np.minimum(last[:-1], begin[1:]), last[-1])
    # Copies and sets between two steps that follow each other belong to the second one.
    joined = parts.begin[1:] == parts.end[:-1]
    begin = np.append(begin[0], np.where(joined, end[:-1], begin[1:]))
    return segments.with_gaps(StepRule.PATTERN, begin, end, np.arange(len(begin)))


def _graph_order(name: Int64s, launched: Int64s) -> Ints:
    """Return the order in which the kernels of one launch, a graph's, come by name: branches run in any order."""
    if (launched[1:] != launched[:-1]).all():
        return np.arange(len(name))
    return np.lexsort((name, launched))


def _tokens(name: Ints, grid: Ints, launched: Int64s) -> Tokens:
    same = np.concatenate([[False], launched[1:] == launched[:-1], [False]])
    in_graph = same[1:] | same[:-1]
    return (name.astype(np.int64) * (int(grid.max(initial=0)) + 1) + grid) * 2 + in_graph


# --- optimizer kernels -----------------------------------------------------------------------------------------------


def _by_optimizer(name: Tokens, places: Ints) -> _Parts | None:
    """Return steps that each end with an optimizer's last kernel; ``places`` are those of the optimizers' kernels."""
    distance = np.diff(places)
    far = distance[distance > _NEAR]
    if len(far) < LEAST_STEPS - 1:
        return None
    # A long evaluation makes one distance much longer than a step, and an optimizer of many kernels, some of which are
    # not known as such, has short distances inside.
    tried = [_at_ends(name, places, distance, largest) for largest in (int(far.max()), int(np.median(far)))]
    found = [parts for parts in tried if parts is not None]
    return max(found, key=lambda parts: _regularity(parts.end - parts.begin), default=None)


def _regularity(length: Ints) -> float:
    """Return the share of steps whose length is nearly the median one."""
    return float((np.abs(length - np.median(length)) <= _LONGER * np.median(length)).mean())


def _at_ends(name: Tokens, places: Ints, distance: Ints, largest: int) -> _Parts | None:
    """Cut after each group of optimizer kernels: the next one is further away than a part of ``largest``."""
    last = np.flatnonzero(np.append(distance > max(_NEAR, _NEAR_SHARE * largest), True))
    end = places[last] + 1
    if len(end) < LEAST_STEPS:
        return None
    # Compared without what lies before a step: an evaluation after each fifth one is no turn of five.
    turn = _turn(name, _trimmed(name, end))
    size = np.diff(np.concatenate([[-1], last]))
    if size[-1] < (1 - _LONGER) * size[-1 - turn]:
        # The recording ends inside the last optimizer.
        end = end[:-1]
    end = end[turn - 1 :: turn]
    return _trimmed(name, end) if len(end) >= LEAST_STEPS else None


def _turn(name: Tokens, parts: _Parts) -> int:
    """Return how many optimizers take turns: after how many parts a part recurs, looking at the last two thirds."""
    # A part is compared by its hash: the sum of a random number for each name times the place in the part.
    mark = np.random.default_rng(0).integers(1, 2**63, int(name.max()) + 1, dtype=np.uint64)[name]
    marks, placed = (
        np.concatenate([np.zeros(1, np.uint64), np.cumsum(values)])
        for values in (mark, mark * np.arange(1, len(name) + 1, dtype=np.uint64))
    )
    begin, end = parts.begin, parts.end
    part = placed[end] - placed[begin] - begin.astype(np.uint64) * (marks[end] - marks[begin])
    part = part[len(part) // 3 :]
    for turn in range(1, min(_MOST_OPTIMIZERS, len(part) // 2) + 1):
        if (part[turn:] == part[:-turn]).mean() >= _ALIKE:
            return turn
    return 1


def _trimmed(name: Tokens, end: Ints) -> _Parts:
    """Return the steps up to each ``end``, without what lies before one that is longer than the typical step.

    A first step that is shorter than the typical one is left out: the recording began inside it.
    """
    begin = np.concatenate([[0], end[:-1]])
    length = end - begin
    typical = int(np.bincount(length).argmax())
    opening = int(np.bincount(name[begin[length == typical]]).argmax())
    for step in np.flatnonzero(length > (1 + _LONGER) * typical).tolist():
        starts = begin[step] + np.flatnonzero(name[begin[step] : end[step]] == opening)
        if len(starts):
            off = np.abs(end[step] - starts - typical)
            begin[step] = starts[off.argmin()] if off.min() <= _LONGER * typical else starts[0]
    whole = np.ones(len(begin), dtype=bool)
    whole[0] = length[0] >= (1 - _LONGER) * typical
    return _Parts(begin[whole], end[whole])


# --- repetitions -----------------------------------------------------------------------------------------------------


def _by_repetition(tokens: Tokens) -> _Parts | None:
    """Return the repetitions of the shortest sequence that recurs often enough."""
    tokens, _ = pd.factorize(tokens)
    settled = tokens[len(tokens) // 3 :]
    longest = len(settled) // 2
    # Two interruptions of a loop recur after the time between them, but only once: a shorter sequence recurs more.
    for _ in range(_TRIES):
        # A long recording has the period in its last part too.
        period = _period(settled[-_ENOUGH:], longest) or _period(settled[-_MOST:], longest)
        if not period:
            break
        parts = _repetitions(tokens, period)
        if len(parts.begin) >= LEAST_STEPS and len(parts.begin) * period >= LEAST_COVERAGE * len(tokens):
            return parts
        longest = period - 1
    return None


def _period(tokens: Tokens, longest: int) -> int:
    """Return the smallest lag up to ``longest`` at which the tokens equal themselves nearly as well as at any, or 0.

    Each kernel gets a random phase. The autocorrelation of the phases is the share of equal kernels, and noise of about
    the inverse root of the length; the Fourier transform gives all lags at once. The best lags are compared exactly.
    """
    n = len(tokens)
    longest = min(longest, n // 2)
    if longest < 1:
        return 0
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(int(tokens.max()) + 1))
    phase = phases.astype(np.complex64)[tokens]
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.fft(phase, size)
    power = spectrum.real**2 + spectrum.imag**2
    # The real part of the inverse transform of real numbers is that of their transform, which takes half the time.
    match = np.fft.rfft(power).real[1 : longest + 1] / (size * (n - np.arange(1, longest + 1)))
    noise = 3 / np.sqrt(n)
    likely = np.flatnonzero(match >= (1 - _NEARLY_BEST) * match.max() - 2 * noise)[:_CANDIDATES] + 1
    exact: list[float] = []
    for lag in likely.tolist():
        exact.append(float(np.mean(tokens[lag:] == tokens[:-lag])))
        if exact[-1] >= 1 - _NEARLY_BEST:
            # No lag can be better by more than that.
            break
    best = max(exact)
    if best < _LEAST_MATCH:
        return 0
    period = int(likely[np.argmax(np.array(exact) >= (1 - _NEARLY_BEST) * best)])
    # Lengths of input that take turns make the period several steps long: equal parts of it differ in little.
    parts = [lag for lag in range(1, period) if period % lag == 0]
    equal = (lag for lag in parts if np.mean(tokens[lag:] == tokens[:-lag]) >= (1 - _TOLERANCE) * best)
    return next(equal, period)


def _repetitions(tokens: Tokens, period: int) -> _Parts:
    """Return the parts that equal the repeated sequence, but for the tolerance."""
    allowed = int(_TOLERANCE * period)
    # The places from which the tokens of a period recur a period later.
    wrong = np.concatenate([[0], np.cumsum(tokens[period:] != tokens[:-period])])
    recurs = np.flatnonzero(wrong[period:] - wrong[:-period] <= allowed)
    if not len(recurs):
        return _Parts(recurs, recurs)
    sequence = _sequence(tokens, recurs, period, allowed)
    # The rarest kernel of those that each repetition holds shows where the sequence can begin.
    counts = np.bincount(tokens)[sequence]
    anchor = int(np.where(counts >= min(len(recurs) / period, counts.max()), counts, len(tokens)).argmin())
    starts = np.flatnonzero(tokens == sequence[anchor]) - anchor
    starts = starts[(starts >= 0) & (starts + period <= len(tokens))]
    kept, reached = [], 0
    for start in starts[_differences(tokens, starts, sequence) <= allowed].tolist():
        if start >= reached:
            kept.append(start)
            reached = start + period
    begin = np.array(kept, dtype=np.int64)
    return _Parts(begin, begin + period)


def _sequence(tokens: Tokens, recurs: Ints, period: int, allowed: int) -> Tokens:
    """Return a sequence from the middle of the longest run of repetitions. It begins as the run does."""
    runs = np.split(recurs, np.flatnonzero(np.diff(recurs) > allowed + 1) + 1)
    run = max(runs, key=len)
    # The tolerance lets a run begin too early: its first repetition begins after the last kernel that differs.
    zone = np.arange(run[0], run[0] + allowed)
    differing = zone[tokens[zone] != tokens[zone + period]]
    begin = int(differing[-1]) + 1 if len(differing) else int(run[0])
    middle = begin + (int(run[-1]) - begin) // 2 // period * period
    return tokens[middle : middle + period]


def _differences(tokens: Tokens, starts: Ints, sequence: Tokens) -> Ints:
    """Return in how many places the tokens from each of ``starts`` differ from ``sequence``."""
    if len(starts) < len(sequence):
        found = [np.count_nonzero(tokens[start : start + len(sequence)] != sequence) for start in starts.tolist()]
        return np.array(found, dtype=np.int64)
    differences = np.zeros(len(starts), dtype=np.int64)
    for place, token in enumerate(sequence.tolist()):
        differences += tokens[starts + place] != token
    return differences
