"""Read JSON whose numbers fit into the columns of the tables."""

from __future__ import annotations

import json
from typing import Any, Final

#: Of the largest whole number in 64 bits.
_MOST_DIGITS: Final = 19


def loads(text: str) -> Any:
    """Return the JSON document. Raises ValueError for text that is none, too deep, or has a number beyond 64 bits."""
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"the number {digits[:_MOST_DIGITS]}... is too large")
    return int(digits)
