"""What parts of the sequence of kernels have in common, in any order, and which parts are only a loop inside a step."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.groupby import Ints

#: A kernel belongs to each step if its number is the usual one in this share of them.
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

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def count(tokens: Tokens, begin: Ints, end: Ints, which: Tokens) -> Ints:
    """Return how often each part [begin, end) holds each of ``which``. The parts ascend and do not overlap."""
    column = np.full(int(tokens.max()) + 1, -1)
    column[which] = np.arange(len(which))
    place = np.flatnonzero(column[tokens] >= 0)
    part = np.searchsorted(begin, place, side="right") - 1
    inside = (part >= 0) & (place < np.append(end, 0)[part])
    cells = part[inside] * len(which) + column[tokens[place[inside]]]
    return np.bincount(cells, minlength=len(begin) * len(which)).reshape(len(begin), len(which))


def shares(tokens: Tokens, begin: Ints, end: Ints, usual: Ints) -> Floats:
    """Return the share of tokens that each part has in common with the usual one; others than its do not count."""
    which = np.flatnonzero(usual)
    held = count(tokens, begin, end, which)
    common: Floats = np.minimum(held, usual[which]).sum(axis=1) / np.maximum(held.sum(axis=1), max(usual.sum(), 1))
    return common


def usual(tokens: Tokens, begin: Ints, end: Ints) -> tuple[Ints, float]:
    """Return how often most parts hold each token, and the share of all tokens in these parts, 0 if there are none.

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
        # More parts count for more than more tokens in each.
        if share**2 * regular.sum() > most**2 * best.sum():
            best, most = regular, share
    found = np.zeros(len(totals), dtype=np.int64)
    found[often] = best
    return found, most


def fours(tokens: Tokens) -> Tokens:
    """Return a number for each token and the three after it: in any order, long parts of any program hold the same."""
    for ahead in (1, 2):
        following = np.append(tokens[ahead:], np.zeros(ahead, dtype=np.int64))
        tokens, _ = pd.factorize(tokens * len(tokens) + following)
    return tokens


def are_inner(names: Tokens, shapes: Tokens, anchors: Ints) -> bool:
    """Return True if the parts between the anchors are a loop inside a step, such as layers."""
    inside, length = slice(anchors[0], anchors[-1]), np.diff(anchors)
    return _has_more(names[inside], length, *_OTHER_NAMES) or _has_more(shapes[inside], length, *_OTHER_SHAPES)


def _has_more(tokens: Tokens, length: Ints, least: float, largest: float, most: float) -> bool:
    """Return True if each part at a regular stride holds all that the usual part holds, and more than that."""
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
    rare &= size * stride >= _STRIDES * parts
    end = np.cumsum(length)
    for each in np.unique(stride[rare]).tolist():
        group = np.flatnonzero(rare & (stride == each))
        one = group[size[group].argmax()]
        odd = np.zeros(parts, dtype=bool)
        odd[place[first[one] : first[one] + size[one]]] = True
        own = group[np.add.reduceat(odd[place].astype(np.int64), first)[group] >= _REGULAR * size[group]]
        held = count(tokens, end - length, end, np.flatnonzero(np.bincount(tokens) >= parts / 2))
        missing = np.maximum(np.floor(np.median(held, axis=0)) - held[odd], 0).sum(axis=1)
        if 2 * len(own) <= len(group) or np.median(missing) > _LEAST_MORE * typical:
            continue
        # The first of several micro-batches has no gradients to add to.
        since = np.arange(parts) - np.maximum.accumulate(np.where(odd, np.arange(parts), -parts))
        over = length / typical - 1
        if any(_differ(over[since == phase]) for phase in range(1, each)):
            return True
        more = float(np.median(length[odd])) - typical
        # Inputs of other lengths add kernels too, but not to these parts alone.
        if _LEAST_MORE * typical <= more <= most * typical and (length[~odd] - typical > more / 2).mean() <= _MISSING:
            added = np.add.reduceat(times, first)[own].sum() / odd.sum()
            if least * more <= added <= largest * more:
                return True
    return False


def _differ(over: Floats) -> bool:
    """Return True if several parts are all longer, or all shorter, than the typical one."""
    return len(over) > _LEAST_PARTS and max((over >= _MISSING).mean(), (over <= -_MISSING).mean()) >= _REGULAR
