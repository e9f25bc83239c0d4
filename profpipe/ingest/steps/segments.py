"""Parts of the host's time: steps, and other work between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profpipe.ingest.groupby import Bools, Int64s, Ints
from profpipe.results.schema import StepRule


@dataclass(frozen=True)
class Segments:
    """Parts of the host's time in ns, [begin, end), ascending and without overlap; all follow one rule.

    ``step`` is the number of each step, and for other work that of the step before it. ``has_last_end`` is False where
    nothing says when the last step ends.
    """

    rule: StepRule
    begin: Int64s
    end: Int64s
    step: Int64s
    is_step: Bools
    has_last_end: bool = False

    def place(self, launched: Int64s) -> Ints:
        """Return the segment of each launch, -1 for launches outside all of them."""
        at = np.searchsorted(self.begin, launched, side="right") - 1
        return np.where((at >= 0) & (launched < self.end[at]), at, -1)

    @property
    def steps(self) -> int:
        return int(self.is_step.sum())

    def joined(self, last: Ints, stride: int) -> Segments:
        """Return the steps of which each is ``stride`` of these. ``last`` are the last ones of each."""
        begin = np.concatenate([[max(int(last[0]) - stride + 1, 0)], last[:-1] + 1])
        number = np.arange(len(last))
        return Segments(self.rule, self.begin[begin], self.end[last], number, np.ones(len(last), dtype=bool))


def everything(launched: Int64s) -> Segments:
    """Return one part that holds all launches of a device."""
    ends = np.array([launched.min()]), np.array([launched.max() + 1])
    return Segments(StepRule.PATTERN, *ends, np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool))


def with_gaps(rule: StepRule, begin: Int64s, end: Int64s, step: Int64s, has_last_end: bool = False) -> Segments:
    """Return the steps, and the time between two steps as other work."""
    gaps = np.flatnonzero(end[:-1] < begin[1:])
    order = np.argsort(np.concatenate([begin, end[gaps]]), kind="stable")
    return Segments(
        rule,
        np.concatenate([begin, end[gaps]])[order],
        np.concatenate([end, begin[gaps + 1]])[order],
        np.concatenate([step, step[gaps]])[order],
        np.repeat([True, False], [len(begin), len(gaps)])[order],
        has_last_end,
    )
