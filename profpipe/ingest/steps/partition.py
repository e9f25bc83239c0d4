"""Divide time by what runs in it: unions of intervals, exact in whole ns."""

from __future__ import annotations

import numpy as np

from profpipe.ingest.groupby import Bools, Int64s, Ints


class Union:
    """The union of intervals [start, end), which may touch, overlap and come in any order."""

    def __init__(self, start: Int64s, end: Int64s) -> None:
        self.order: Ints | None = None
        if (start[1:] < start[:-1]).any():
            self.order = np.argsort(start, kind="stable")
            start, end = start[self.order], end[self.order]
        reached = np.maximum.accumulate(end) if len(end) else end
        #: The first interval of each merged one, in the order of ``order``.
        self.firsts = np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]])) if len(start) else start[:0]
        self.start: Int64s = start[self.firsts]
        self.end: Int64s = reached[np.append(self.firsts[1:], len(start)) - 1] if len(start) else end
        self._before = np.concatenate([[0], np.cumsum(self.end - self.start)]).astype(np.int64)

    def covered_before(self, time: Int64s) -> Int64s:
        """Return how many ns before each ``time`` lie in the union."""
        if not len(self.start):
            return np.zeros(len(time), dtype=np.int64)
        at = np.searchsorted(self.start, time, side="right")
        over = np.maximum(self.end[at - 1] - time, 0)
        covered: Int64s = self._before[at] - np.where(at > 0, over, 0)
        return covered

    def contains(self, time: Int64s) -> Bools:
        """Return for each ``time`` whether it lies in the union, its end included.

        A call that returns in the ns in which the GPU went idle waited for it.
        """
        if not len(self.start):
            return np.zeros(len(time), dtype=bool)
        at = np.searchsorted(self.start, time, side="right")
        inside: Bools = (at > 0) & (self.end[at - 1] >= time)
        return inside

    def covered(self, bounds: Int64s) -> Int64s:
        """Return the ns in the union between each of the ascending ``bounds`` and the next one."""
        return np.diff(self.covered_before(bounds))
