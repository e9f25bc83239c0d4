"""The order in which cases take turns, so that a drift of the machine affects all of them alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def rounds(items: Sequence[_T], count: int, seed: int) -> Iterator[tuple[int, list[_T]]]:
    """Yield (number from 1, items in random order) for each of ``count`` rounds.

    Equal arguments give equal orders. A single round keeps the order of ``items``.
    """
    for number in range(1, count + 1):
        order = list(items)
        if count > 1:
            random.Random(f"{seed}/{number}").shuffle(order)
        yield number, order
