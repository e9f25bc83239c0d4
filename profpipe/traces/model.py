"""A trace: processes with tracks, and tracks with slices. Writers turn it into a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from profpipe.ingest.groupby import Bools, Int64s, Ints


@dataclass(frozen=True)
class Slices:
    """Slices of one track, times in ns; ``name`` indexes ``names`` and ``category`` indexes ``categories``.

    Slices with the same number in ``flow`` are joined by an arrow; 0 stands for none. ``details`` are values by name
    for each slice, None where there is no value.
    """

    start: Int64s
    end: Int64s
    name: Ints
    names: Sequence[str]
    category: Ints
    categories: Sequence[str]
    flow: Int64s
    details: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def only(self, rows: Ints | Bools) -> Slices:
        """Return the slices ``rows``."""
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        details = {name: [values[row] for row in chosen.tolist()] for name, values in self.details.items()}
        columns = {key: getattr(self, key)[chosen] for key in ("start", "end", "name", "category", "flow")}
        return replace(self, **columns, details=details)

    def lanes(self, may_nest: bool) -> Iterator[Slices]:
        """Yield the slices in as few parts as needed, so that in each of them none overlaps with another one.

        With ``may_nest`` one may lie inside another one. The slices of a part are ordered by start, the longest first.
        """
        order = np.lexsort((-self.end, self.start))
        open_ends: list[list[int]] = []
        lane_of = np.zeros(len(order), dtype=np.int64)
        for at, (start, end) in enumerate(zip(self.start[order].tolist(), self.end[order].tolist(), strict=True)):
            for ends in open_ends:
                while ends and ends[-1] <= start:
                    ends.pop()
            free = (n for n, ends in enumerate(open_ends) if not ends or (may_nest and end <= ends[-1]))
            if (lane := next(free, len(open_ends))) == len(open_ends):
                open_ends.append([])
            open_ends[lane].append(end)
            lane_of[at] = lane
        for lane in range(len(open_ends)):
            yield self.only(order[lane_of == lane])

    def events(self) -> Iterator[tuple[int, int, bool]]:
        """Yield (time, row, whether it begins) in the order of time, for slices of one of the ``lanes``."""
        stack: list[tuple[int, int]] = []
        for row, (start, end) in enumerate(zip(self.start.tolist(), self.end.tolist(), strict=True)):
            while stack and stack[-1][0] <= start:
                ended, which = stack.pop()
                yield ended, which, False
            stack.append((end, row))
            yield start, row, True
        while stack:
            ended, which = stack.pop()
            yield ended, which, False


@dataclass(frozen=True)
class Track:
    """A row of the trace. Tracks stand in the order in which they are given."""

    name: str
    slices: Slices


@dataclass(frozen=True)
class Process:
    """A group of tracks: one process of a program. ``pid`` is None where the recording does not say."""

    name: str
    pid: int | None
    tracks: tuple[Track, ...]

    @property
    def first_ns(self) -> int:
        """The start of the first slice."""
        return min(int(track.slices.start.min()) for track in self.tracks)

    def since(self, time_ns: int) -> Process:
        """Return the process with times since ``time_ns``."""

        def moved(slices: Slices) -> Slices:
            return replace(slices, start=slices.start - time_ns, end=slices.end - time_ns)

        return replace(self, tracks=tuple(replace(track, slices=moved(track.slices)) for track in self.tracks))

    @property
    def slices(self) -> int:
        return sum(len(track.slices) for track in self.tracks)
