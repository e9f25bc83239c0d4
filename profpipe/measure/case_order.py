"""In which order cases take turns, and which cases are too large to try.

A drift of the machine then affects all cases alike. A case is skipped if a smaller one ran out of memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

# --- turns -----------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")


def rounds(items: Sequence[_T], count: int, seed: int) -> Iterator[tuple[int, list[_T]]]:
    """Yield (number from 1, items in random order) for ``count`` rounds.

    Equal arguments give equal orders. A single round keeps the order of ``items``.
    """
    for number in range(1, count + 1):
        order = list(items)
        if count > 1:
            random.Random(f"{seed}/{number}").shuffle(order)
        yield number, order


# --- cases that are larger -------------------------------------------------------------------------------------------

#: Parameters that are numbers and no dimensions.
_NO_DIMENSIONS = {"memory_cap_gib", "seed"}


def is_larger(params: Mapping[str, Any], oom_params: Mapping[str, Any]) -> bool:
    """Return True if a case with ``params`` is larger in every dimension than the one that ran out of memory.

    All numbers are at least as large, one is larger, and all other values are equal. True and False are not numbers,
    and neither are a seed and a memory limit: a larger one needs no more memory. Cases with different parameters are
    not comparable. Nor is 0 with another number: 0 often means that the workload chooses ("as many as heads"), which
    may be more than any number.
    """
    if params.keys() != oom_params.keys():
        return False
    any_larger = False
    for name, value in params.items():
        other = oom_params[name]
        if name not in _NO_DIMENSIONS and is_number(value) and is_number(other):
            if not (value >= other and bool(value) == bool(other)):
                return False
            any_larger |= value > other
        elif type(value) is not type(other) or value != other:
            return False
    return any_larger


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
