"""Steps that a program marks by hand: ``from profpipe import step, steps``.

Both work in every process. Where nothing is recorded a call costs well under a microsecond.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

from profpipe import ranges
from profpipe.hook import steps as counting

T = TypeVar("T")


class _Marks:
    """What the functions below call: the steps that profpipe records, or ranges for another profiler."""

    steps: Any = None


def step() -> None:
    """Mark the boundary between two steps: call it once in each iteration, always at the same place.

    The first call begins the first step. Steps that a program marks take precedence over those that profpipe finds.
    """
    (_Marks.steps or _choose()).boundary("marker")


def steps(iterable: Iterable[T]) -> Iterator[T]:
    """Yield the items of ``iterable``; each iteration of the loop over them is a step.

    A step lasts until the loop has its next item, so the loading of that item belongs to it. What follows the loop
    belongs to no step, and neither does an iteration that the program leaves by ``break``.
    """
    marks = _Marks.steps or _choose()
    is_complete = False
    try:
        for item in iterable:
            marks.boundary("marker")
            yield item
        marks.close()
        is_complete = True
    finally:
        if not is_complete:
            marks.abandon()


def _choose() -> Any:
    _Marks.steps = counting.of_process() or _Ranges()
    return _Marks.steps


class _Ranges:
    """Ranges around the steps for a profiler that the user started without profpipe: nsys, ncu, torch or rocprof."""

    def __init__(self) -> None:
        self._number = -1
        self._open = ranges.free_ranges()
        self._close: Optional[Callable[[], object]] = None

    def boundary(self, rule: str) -> None:
        if self._close is not None:
            self.close()
        self._number += 1
        if self._open is not None:
            self._close = self._open(f"{ranges.STEP_PREFIX}{rule}:{self._number}")
        elif ranges.is_profiled():
            self._close = ranges.record(f"{ranges.STEP_PREFIX}{rule}:{self._number}")

    def close(self) -> None:
        if self._close is not None:
            close, self._close = self._close, None
            close()

    def abandon(self) -> None:
        self._close = None
