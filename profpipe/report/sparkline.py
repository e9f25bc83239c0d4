"""A course as one line of characters: a chart for terminals and text pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
#: The same for terminals without UTF-8: from low to high.
_ASCII: Final = "_.-=+*#@"


def sparkline(values: Sequence[float], changes: Collection[int] = (), least_range: float = 0.0, *, ascii: bool) -> str:
    """Return a character for each value, with ``|`` before the positions in ``changes``.

    The lowest character is the lowest value and the highest character the highest one. Values that differ by less than
    ``least_range`` fill only a part of the height, around its middle: noise is not drawn as large as a change.
    """
    marks = _ASCII if ascii else _BLOCKS
    low, high = min(values), max(values)
    missing = max(0.0, least_range - (high - low))
    low, high = low - missing / 2, high + missing / 2
    top = len(marks) - 1
    chosen = [marks[round((value - low) / (high - low) * top) if high > low else top // 2] for value in values]
    return "".join(f"|{mark}" if i in changes else mark for i, mark in enumerate(chosen))
