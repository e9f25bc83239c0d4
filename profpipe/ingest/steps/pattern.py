"""Steps without ranges: the shortest sequence of launches that recurs on a device, in the order of the launches.

Optimizer kernels end a step, for most training loops run them once a step. Without them the steps lie around a kernel
that runs once a step, and hold other kernels in equal number. Else they are the repetitions of a sequence of kernels
(name, grid, in a CUDA graph or not). At least three steps, twelve launches and half of the GPU's time in them:
otherwise nothing recurs. TraceLens (inference_iteration_roots.py) has the first and the last limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.groupby import Bools, Int64s, Ints, count_up_to
from profpipe.ingest.operations import Timeline
from profpipe.ingest.steps import windows
from profpipe.ingest.steps.windows import Segments
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
#: Optimizer kernels this near together belong to one call of an optimizer.
_NEAR: Final = 8
_NEAR_SHARE: Final = 0.1
#: Several optimizers that take turns, as in a GAN, are one step.
_MOST_OPTIMIZERS: Final = 8
_ALIKE: Final = 0.99
#: A long recording shows in its last parts what a step holds.
_LAST_PARTS: Final = 1024

# --- anchors ---
#: Most distances between the launches of an anchor differ from the median one by this share at most.
_VARIES: Final = 0.25
_ANCHORS: Final = 16
#: Steps between anchors hold this share of the launches. Layers of a forward and a backward pass may hold half of them.
_LEAST_SHARE: Final = 0.65

# --- repetitions ---
_LEAST_MATCH: Final = 0.5
#: The shortest lag that matches as well as the best one, but for this share, is the period.
_NEARLY_BEST: Final = 0.01
_CANDIDATES: Final = 64
_TRIES: Final = 3
_ENOUGH: Final = 1 << 17
_MOST: Final = 1 << 21

# --- what parts have in common ---
#: A kernel belongs to all steps if its number is the usual one in this share of them.
_REGULAR: Final = 0.9
#: Steps have this share of their kernels in equal number at least; inputs choose the others.
_LEAST_REGULAR: Final = 0.4
#: A part holds the usual kernels but for this share. It may hold others too: up to the second share they count as its.
_MISSING: Final = 0.1
_MORE: Final = 0.25
#: What parts have in common to be compared at first. Where inputs choose many of the kernels, two steps have less in
#: common than a step alone and a step with an evaluation elsewhere.
_COMMON: Final = (0.9, 0.75, 0.5, 0.3)
_LEAST_PARTS: Final = 3

# --- loops inside a step ---
_STRIDES: Final = 0.75
_LEAST_MORE: Final = 0.05
#: What comes after the last layer of a step: the least and the largest share of kernels that no other part holds, and
#: how many there may be beside those of a part; by name, and by name and grid. What an evaluation adds are mostly
#: kernels of the step itself, or all grids are others if its batches have another size.
_OTHER_NAMES: Final = (0.3, np.inf, np.inf)
_OTHER_SHAPES: Final = (0.1, 0.75, 0.25)
#: A step has at most so many equal layers or micro-batches. What comes after more parts is an evaluation.
_MOST_PARTS: Final = 256

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Steps as parts [begin, end) of the sequence of kernels, ascending and without overlap.
_Parts = tuple[Ints, Ints]


def find(timeline: Timeline, is_optimizer: Bools, grid: Ints | None) -> Segments | None:
    """Return the steps on a device, None if nothing recurs.

    ``is_optimizer`` says whether a name of an operation is an optimizer's kernel. ``grid`` numbers
    the grids of the operations, in the order of ``timeline``.
    """
    kernels = np.flatnonzero(timeline.is_kernel)
    if len(kernels) < LEAST_STEPS or timeline.communicates[kernels].all():
        # A process that only communicates, such as a benchmark of NCCL, repeats no step of a program.
        return None
    name, launched = timeline.name[kernels].astype(np.int64), timeline.launched[kernels]
    grids = np.zeros(len(kernels), dtype=np.int64) if grid is None else grid[kernels]
    shapes, _ = pd.factorize(_tokens(name, grids, launched))
    parts = _cut_by_optimizer(name, shapes, np.flatnonzero(is_optimizer[name]))
    if parts is None:
        order = _graph_order(name, launched)
        kernels, name, grids = kernels[order], name[order], grids[order]
        tokens, shapes = _tokens(name, np.zeros_like(grids), launched), _tokens(name, grids, launched)
        parts = _cut_at_anchors(tokens, shapes, ~timeline.communicates[kernels], launched) or _find_repetitions(shapes)
    if parts is None or len(parts[0]) < LEAST_STEPS:
        return None
    segments = _segments(*parts, launched)
    place = segments.place(launched)
    inside = (place >= 0) & segments.is_step[place]
    duration = (timeline.end - timeline.start)[kernels]
    is_loop = segments.steps >= LEAST_STEPS and inside.sum() >= _LEAST_LAUNCHES
    return segments if is_loop and duration[inside].sum() >= LEAST_COVERAGE * duration.sum() else None


def _segments(begin: Ints, end: Ints, launched: Int64s) -> Segments:
    """Return the parts as times of the host. A step ends with its last launch, or where the next one begins."""
    # Repetitions inside one launch, a graph's, are one step.
    alone = np.append(launched[begin[1:]] > launched[begin[:-1]], True)
    begin, end = begin[alone], end[alone]
    first, last = launched[begin], launched[end - 1] + 1
    last[:-1] = np.minimum(last[:-1], first[1:])
    # Copies and sets between two steps in a row belong to the second one.
    first[1:] = np.where(begin[1:] == end[:-1], last[:-1], first[1:])
    steps = np.arange(len(first))
    return windows.add_gaps(
        windows.Segments(StepRule.PATTERN, first, last, steps, np.ones(len(first), dtype=bool)), last
    )


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


def _cut_by_optimizer(name: Tokens, shape: Tokens, places: Ints) -> _Parts | None:
    """Return steps that end with an optimizer's last kernel; ``places`` are those of the optimizers' kernels."""
    far = (distance := np.diff(places))[distance > _NEAR]
    if len(far) < LEAST_STEPS - 1:
        return None
    # A long evaluation makes one distance much longer than a step, and an optimizer of many kernels, some of which are
    # without a known name, has short distances inside.
    tried = [_cut_after_groups(name, shape, places, largest) for largest in (int(far.max()), int(np.median(far)))]
    return max((parts for parts in tried if parts is not None), key=_regularity, default=None)


def _regularity(parts: _Parts) -> float:
    """Return the share of steps that are about as long as the typical one."""
    begin, end = parts
    length, typical = end - begin, np.median(end - begin)
    return float((np.abs(length - typical) <= _LONGER * typical).mean())


def _cut_after_groups(name: Tokens, shape: Tokens, places: Ints, largest: int) -> _Parts | None:
    """Cut after groups of optimizer kernels: the next one is further away than a part of ``largest``."""
    last = np.flatnonzero(np.append(np.diff(places) > max(_NEAR, _NEAR_SHARE * largest), True))
    end = places[last] + 1
    if len(end) < LEAST_STEPS:
        return None
    turn = _turn(shape[places], last)
    size = np.diff(np.concatenate([[-1], last]))
    if size[-1] < (1 - _LONGER) * size[-1 - turn]:
        # The recording ends inside the last optimizer.
        end = end[:-1]
    end = end[turn - 1 :: turn]
    return _trimmed(name, end) if len(end) >= LEAST_STEPS else None


def _turn(shape: Tokens, last: Ints) -> int:
    """Return how many optimizers take turns: after how many groups the same kernels with the same grids recur.

    Only the optimizers' kernels are compared: which others run can take turns too, as the lengths of the input do.
    """
    mark = np.random.default_rng(0).integers(1, 2**63, int(shape.max()) + 1, dtype=np.uint64)[shape]
    group = np.add.reduceat(mark, np.concatenate([[0], last[:-1] + 1]))[len(last) // 3 :]
    for turn in range(1, min(_MOST_OPTIMIZERS, len(group) // 2) + 1):
        if (group[turn:] == group[:-turn]).mean() >= _ALIKE:
            return turn
    return 1


def _trimmed(name: Tokens, end: Ints) -> _Parts:
    """Return the steps up to their ``end``, without what lies before one that holds more than the usual step.

    A first step that holds less than the usual one is left out: the recording began inside it.
    """
    begin = np.concatenate([[0], end[:-1]])
    usual, _ = find_usual(name, begin[-_LAST_PARTS:], end[-_LAST_PARTS:])
    regular, period = np.flatnonzero((usual > 0)[name]), int(usual.sum())
    first, after = np.searchsorted(regular, begin), np.searchsorted(regular, end)
    if not period:
        return begin, end
    more = np.maximum((after - first) / period, (end - begin) / np.median(end - begin))
    longer = np.flatnonzero((more > 1 + _LONGER) & (after >= period))
    ahead = int(np.median(regular[np.minimum(first, len(regular) - 1)] - begin))
    start = np.maximum(regular[after[longer] - period] - ahead, begin[longer])
    whole = shares(name, start, end[longer], usual) >= 1 - _TOLERANCE
    # Where what is more lies inside the step, it begins with the kernel that most steps begin with.
    opening = np.append(np.flatnonzero(name == np.bincount(name[begin]).argmax()), len(name))
    opens = opening[np.searchsorted(opening, begin[longer])]
    begin[longer] = np.where(whole, start, np.where(opens < end[longer], opens, begin[longer]))
    cut = int(after[0] - first[0] < (1 - _LONGER) * period)
    return begin[cut:], end[cut:]


# --- anchors ---------------------------------------------------------------------------------------------------------


def _cut_at_anchors(tokens: Tokens, shapes: Tokens, computes: Bools, launched: Int64s) -> _Parts | None:
    """Return the shortest steps that hold one launch of some kernel, and other kernels in equal number."""
    places = np.flatnonzero(computes)
    tokens, shapes = (pd.factorize(codes[places])[0] for codes in (tokens, shapes))
    # A long recording has its steps in its last part too.
    for start in dict.fromkeys((max(len(tokens) - _ENOUGH, 0), 0)):
        last, last_shapes = tokens[start:], shapes[start:]
        for token, near in _anchors(last):
            anchors = _launches(last, token, near)
            usual, share = find_usual(last, anchors[:-1], anchors[1:])
            if share < _LEAST_SHARE or are_inner(last, last_shapes, anchors):
                continue
            # Only the kernels that all steps launch equally often are compared.
            regular = np.flatnonzero(np.isin(tokens, np.flatnonzero(usual)))
            at = np.searchsorted(regular, _launches(tokens, token, near))
            begin, end = _around(tokens[regular], at[at < len(regular)], places[regular], launched)
            if len(begin) >= LEAST_STEPS and (end - begin).sum() >= LEAST_COVERAGE * len(computes):
                return begin, end
    return None


def _anchors(tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Yield kernels that recur after nearly equal numbers of launches, the most frequent first.

    Beside it is how near launches count as one, as those of an optimizer by hand do.
    """
    anchors: dict[tuple[int, int], tuple[float, int]] = {}
    rows, tokens_known = len(tokens), int(tokens.max()) + 1
    # NumPy sorts 16 bits in linear time.
    order = np.argsort(tokens.astype(np.uint16) if tokens_known <= 1 << 16 else tokens, kind="stable")
    is_first = np.diff(tokens[order], prepend=-1) > 0
    for near, least in ((0, _LEAST_MATCH), (_NEAR, 1 - _LONGER)):
        # The first launch of a kernel follows none.
        places = order[is_first | (np.diff(order, prepend=0) > near)]
        token = tokens[places]
        follows = np.flatnonzero(token[1:] == token[:-1])
        # By kernel, and its distances in ascending order.
        token, distance = np.divmod(np.sort(token[follows] * rows + np.diff(places)[follows]), rows)
        number = np.bincount(token, minlength=tokens_known)
        middle = np.cumsum(number) - (number + 1) // 2, np.cumsum(number) - number // 2 - 1
        # A kernel that runs once has no distance.
        typical = np.append(distance, 0)[np.minimum(middle, len(distance))].mean(axis=0)
        is_near = np.abs(distance - typical[token]) <= _VARIES * typical[token]
        regularity = np.bincount(token, is_near, tokens_known) / np.maximum(number, 1)
        reaches = (typical >= _LEAST_LAUNCHES) & (typical * number >= LEAST_COVERAGE * rows)
        for kernel in np.flatnonzero(reaches & (number >= LEAST_STEPS) & (regularity > least)).tolist():
            key = -int(number[kernel]), near
            if regularity[kernel] > anchors.get(key, (0.0, 0))[0]:
                anchors[key] = float(regularity[kernel]), kernel
    # Of nearly equal numbers a kernel that runs once comes first.
    for key in sorted(anchors, key=lambda key: (-round(4 * math.log2(-key[0])), key[1], key[0]))[:_ANCHORS]:
        yield anchors[key][1], key[1]


def _launches(tokens: Tokens, token: int, near: int) -> Ints:
    """Return the places of a kernel, but for those that follow one by ``near`` or fewer places."""
    places = np.flatnonzero(tokens == token)
    return places[np.diff(places, prepend=-len(tokens)) > near]


def _around(tokens: Tokens, at: Ints, places: Ints, launched: Int64s) -> _Parts:
    """Return the steps around the anchors ``at``, as parts of all kernels: ``tokens`` lie at ``places``."""
    length = np.diff(at)
    period = int(np.median(length))
    middle = at[np.abs(length - period).argmin()]
    sequence = tokens[middle : middle + period]
    usual = np.bincount(sequence, minlength=int(tokens.max()) + 1)
    lead = _lead(tokens, at, sequence, np.diff(launched[places], prepend=launched[0]))
    begin = (at - lead)[at >= lead]
    whole = np.zeros(len(begin), dtype=bool)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        reach = np.minimum(begin[half] + period, np.append(begin[half][1:], len(tokens)))
        whole[half] = shares(tokens, begin[half], reach, usual) >= 1 - _TOLERANCE
    # Work with the same anchor that holds less, such as a prefill, begins after the step before it, and ends with an
    # anchor that ends a step.
    reaches_back = ~whole[1:] & (whole[:-1] | (2 * lead > period))
    begin[1:] = np.maximum(begin[1:], np.where(reaches_back, begin[:-1] + period, 0))
    # One that begins later may pass the next one, which then holds nothing.
    begin = np.maximum.accumulate(begin)
    reach = np.append(begin[1:], len(tokens))
    window = np.minimum(begin + period, reach)
    joins = shares(tokens, begin, reach, usual) >= 1 - _LONGER
    # What follows a whole step is other work, unless it lies inside the step.
    whole = shares(tokens, begin, window, usual) >= 1 - _TOLERANCE
    missing = np.maximum(usual - count(tokens, begin, reach, np.arange(len(usual))), 0).sum(axis=1)
    holds = (missing <= _TOLERANCE * period) & (reach - begin <= 2 * period)
    four = fours(tokens)
    usual_fours = np.bincount(four[middle : middle + period], minlength=int(four.max()) + 1)
    is_step = (joins | whole | holds) & (shares(four, begin, window, usual_fours) >= _LEAST_MATCH)
    end = np.where(joins | ~whole, reach, window)[is_step]
    begin = begin[is_step]
    return _add_varying(places[begin], places[end - 1] + 1, begin[1:] == end[:-1])


def _lead(tokens: Tokens, at: Ints, sequence: Tokens, gap: Int64s) -> int:
    """Return how many tokens of a step come before its anchor: it begins as the loop does, or ends as the loop does.

    Between two steps the host does more than between two kernels. ``gap`` is the time before a launch.
    """
    period = len(sequence)
    before = tokens[max(at[0] - period, 0) : at[0]][::-1]
    after = tokens[at[-1] : at[-1] + period]
    back = int(np.append(before == sequence[::-1][: len(before)], False).argmin()) % period
    onward = int(np.append(after == sequence[: len(after)], False).argmin()) % period
    leads = back, (period - onward) % period
    return max(leads, key=lambda lead: float(np.median(gap[(at - lead)[at >= lead]])))


def _add_varying(begin: Ints, end: Ints, follows: Bools) -> _Parts:
    """Add the kernels between two steps in a row to the second one, as many as there usually are."""
    between = begin[1:] - end[:-1]
    ahead = int(np.median(between[follows])) if follows.any() else 0
    follows = follows & (between <= ahead + _TOLERANCE * np.median(end - begin))
    begin = np.maximum(begin - ahead, np.concatenate([[0], end[:-1]]))
    begin[1:][follows] = end[:-1][follows]
    return begin, end


# --- repetitions -----------------------------------------------------------------------------------------------------


def _find_repetitions(tokens: Tokens) -> _Parts | None:
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
        begin = _repetitions(tokens, period)
        if len(begin) >= LEAST_STEPS and len(begin) * period >= LEAST_COVERAGE * len(tokens):
            return begin, begin + period
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


def _repetitions(tokens: Tokens, period: int) -> Ints:
    """Return where the parts begin that equal the repeated sequence, but for the tolerance."""
    allowed = int(_TOLERANCE * period)
    # The places from which the tokens of a period recur a period later.
    wrong = np.concatenate([[0], np.cumsum(tokens[period:] != tokens[:-period])])
    recurs = np.flatnonzero(wrong[period:] - wrong[:-period] <= allowed)
    if not len(recurs):
        return recurs
    sequence = _sequence(tokens, recurs, period, allowed)
    # The rarest kernel of those that all repetitions hold shows where the sequence can begin.
    counts = np.bincount(tokens)[sequence]
    anchor = int(np.where(counts >= min(len(recurs) / period, counts.max()), counts, len(tokens)).argmin())
    starts = np.flatnonzero(tokens == sequence[anchor]) - anchor
    starts = starts[(starts >= 0) & (starts + period <= len(tokens))]
    kept, reached = [], 0
    for start in starts[_differences(tokens, starts, sequence) <= allowed].tolist():
        if start >= reached:
            kept.append(start)
            reached = start + period
    return np.array(kept, dtype=np.int64)


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
    """Return in how many places the tokens from one of ``starts`` on differ from ``sequence``."""
    if len(starts) < len(sequence):
        parts = (tokens[start : start + len(sequence)] for start in starts.tolist())
        return np.array([np.count_nonzero(part != sequence) for part in parts], dtype=np.int64)
    differences = np.zeros(len(starts), dtype=np.int64)
    for place, token in enumerate(sequence.tolist()):
        differences += tokens[starts + place] != token
    return differences


# --- what parts have in common ---------------------------------------------------------------------------------------


def count(tokens: Tokens, begin: Ints, end: Ints, which: Tokens) -> Ints:
    """Return how often each part [begin, end) holds each of ``which``. The parts ascend and do not overlap."""
    column = np.full(int(tokens.max()) + 1, -1)
    column[which] = np.arange(len(which))
    place = np.flatnonzero(column[tokens] >= 0)
    part = count_up_to(begin, place) - 1
    inside = (part >= 0) & (place < np.append(end, 0)[part])
    cells = part[inside] * len(which) + column[tokens[place[inside]]]
    return np.bincount(cells, minlength=len(begin) * len(which)).reshape(len(begin), len(which))


def shares(tokens: Tokens, begin: Ints, end: Ints, usual: Ints) -> Floats:
    """Return the share of tokens that a part has in common with the usual one; others than its do not count."""
    which = np.flatnonzero(usual)
    held = count(tokens, begin, end, which)
    common: Floats = np.minimum(held, usual[which]).sum(axis=1) / np.maximum(held.sum(axis=1), max(usual.sum(), 1))
    return common


def find_usual(tokens: Tokens, begin: Ints, end: Ints) -> tuple[Ints, float]:
    """Return how often most parts hold a token, and the share of all tokens in these parts, 0 if there are none.

    Tokens whose number varies from part to part count as 0.
    """
    totals, length = np.bincount(tokens), end - begin
    often = np.flatnonzero(totals >= len(begin) / 2)
    held = count(tokens, begin, end, often)
    median = np.median(held, axis=0)
    common = np.minimum(held, median).sum(axis=1) / np.maximum(held.sum(axis=1), max(median.sum(), 1))
    best, most = np.zeros(len(often)), 0.0
    for least in _COMMON:
        alike = held[common >= least]
        if not len(alike):
            continue
        regular = np.where((alike == median).mean(axis=0) >= _REGULAR, median, 0)
        holds = length[np.minimum(held, regular).sum(axis=1) >= (1 - _MISSING) * regular.sum()]
        if len(holds) < _LEAST_PARTS or regular.sum() < _LEAST_REGULAR * np.median(holds):
            continue
        share = float(np.minimum(holds, (1 + _MORE) * np.median(holds)).sum() / len(tokens))
        # More parts count for more than more tokens in one.
        if share**2 * regular.sum() > most**2 * best.sum():
            best, most = regular, share
    usual = np.zeros(len(totals), dtype=np.int64)
    usual[often] = best
    return usual, most


def fours(tokens: Tokens) -> Tokens:
    """Return a number for a token and the three after it: in any order, long parts of any program hold the same."""
    for ahead in (1, 2):
        following = np.append(tokens[ahead:], np.zeros(ahead, dtype=np.int64))
        tokens, _ = pd.factorize(tokens * len(tokens) + following)
    return tokens


def are_inner(names: Tokens, shapes: Tokens, anchors: Ints) -> bool:
    """Return True if the parts between the anchors are a loop inside a step, such as layers."""
    inside, length = slice(anchors[0], anchors[-1]), np.diff(anchors)
    return _has_more(names[inside], length, *_OTHER_NAMES) or _has_more(shapes[inside], length, *_OTHER_SHAPES)


def _has_more(tokens: Tokens, length: Ints, least: float, largest: float, most: float) -> bool:
    """Return True if all parts at a regular stride hold all that the usual part holds, and more than that."""
    parts, typical = len(length), float(np.median(length))
    pairs = tokens * parts + np.repeat(np.arange(parts), length)
    pairs, times = np.unique(pairs, return_counts=True)
    token, place = np.divmod(pairs, parts)
    first = np.flatnonzero(np.diff(token, prepend=-1))
    size = np.diff(np.append(first, len(pairs)))
    distance = np.diff(place, append=0)
    # The distance in the middle stands for the token's; the last one leads to another token.
    stride = distance[first + np.maximum(size - 2, 0) // 2]
    equal = np.add.reduceat((distance == np.repeat(stride, size)).astype(np.int64), first)
    rare = (size >= _LEAST_PARTS) & (size <= (parts + 1) / 2) & (stride > 1) & (equal >= _STRIDES * (size - 1))
    rare &= (size * stride >= _STRIDES * parts) & (stride <= _MOST_PARTS)
    end = np.cumsum(length)
    for period in np.unique(stride[rare]).tolist():
        group = np.flatnonzero(rare & (stride == period))
        one = group[size[group].argmax()]
        odd = np.zeros(parts, dtype=bool)
        odd[place[first[one] : first[one] + size[one]]] = True
        odd_tokens = group[np.add.reduceat(odd[place].astype(np.int64), first)[group] >= _REGULAR * size[group]]
        held = count(tokens, end - length, end, np.flatnonzero(np.bincount(tokens) >= parts / 2))
        missing = np.maximum(np.floor(np.median(held, axis=0)) - held[odd], 0).sum(axis=1)
        if 2 * len(odd_tokens) <= len(group) or np.median(missing) > _LEAST_MORE * typical:
            continue
        # The first of several micro-batches has no gradients to add to.
        since = np.arange(parts) - np.maximum.accumulate(np.where(odd, np.arange(parts), -parts))
        over = length / typical - 1
        if any(_differ(over[since == phase]) for phase in range(1, period)):
            return True
        more = float(np.median(length[odd])) - typical
        # Inputs of other lengths add kernels too, but not to these parts alone.
        if _LEAST_MORE * typical <= more <= most * typical and (length[~odd] - typical > more / 2).mean() <= _MISSING:
            added = np.add.reduceat(times, first)[odd_tokens].sum() / odd.sum()
            if least * more <= added <= largest * more:
                return True
    return False


def _differ(over: Floats) -> bool:
    """Return True if several parts are all longer, or all shorter, than the typical one."""
    return len(over) > _LEAST_PARTS and max((over >= _MISSING).mean(), (over <= -_MISSING).mean()) >= _REGULAR
