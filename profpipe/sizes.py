"""Which of two cases asks for more: decides what is not tried again after a case ran out of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Parameters that are numbers and no dimensions.
_NO_SIZES = {"memory_cap_gib", "seed"}


def larger(params: Mapping[str, Any], oom_params: Mapping[str, Any]) -> bool:
    """Whether a case with ``params`` is larger in every dimension than one that ran out of memory with ``oom_params``.

    Every number is at least as large, one is larger, and all that is no number is the same. True and False count as no
    numbers, and neither do a seed and a limit of memory: the larger of two asks for no more. Cases with different
    parameters are not comparable, and neither is a case with itself. Nor is a 0 with another number: it often stands
    for what a workload chooses by itself ("as many as heads"), which may be more than any number.
    """
    if params.keys() != oom_params.keys():
        return False
    sized = {name for name, value in params.items() if _is_number(value) and _is_number(oom_params[name])} - _NO_SIZES
    numbers = [(params[name], oom_params[name]) for name in params if name in sized]
    others = [(params[name], oom_params[name]) for name in params if name not in sized]
    return (
        all(type(value) is type(other) and value == other for value, other in others)
        and all(value >= other and bool(value) == bool(other) for value, other in numbers)
        and any(value > other for value, other in numbers)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
