"""Which ranges a launch belongs to.

The rule is NVIDIA's own (the scripts behind ``nsys stats -r nvtx_kern_sum``): a launch belongs to the ranges of the
thread that made the call, if the call begins and ends inside them; when the kernel ran on the GPU plays no role. Two
additions, both counted so that a report can say how many launches they placed:

* A launch from a thread without a range around it belongs, by time, to a range of another thread of its process.
  Autograd launches the whole backward pass from a thread of its own while the caller waits in its ``backward`` range.
* A launch whose own ranges name no case (hooks push ranges in autograd's thread) is put below the case that another
  thread of its process has open, for all work of a process between a case's begin and end is that case's. So is the
  range itself, by the time at which it opens.

All times are integers of nanoseconds on one clock, of any origin, negative ones included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profpipe import tables
from profpipe.formats.grouping import Bools, Int64s, Ints, combine, groups

#: The thread of a launch whose call is not in the file.
NO_THREAD = np.iinfo(np.int64).min

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Ranges:
    """Instances of ranges; ``name`` indexes ``names``. No two processes may have threads of one id."""

    start: Int64s
    end: Int64s
    thread: Int64s
    process: Int64s
    name: Ints
    names: Sequence[str]


@dataclass(frozen=True)
class Launches:
    """Calls that started work on the GPU; ``is_kernel`` tells kernels, and whole graphs, from copies and sets."""

    start: Int64s
    end: Int64s
    thread: Int64s
    process: Int64s
    is_kernel: Bools


class Paths:
    """Every path of nested ranges as a node of a tree; node 0 is the empty path."""

    def __init__(self) -> None:
        self.parent = [0]
        self.name = [""]
        self.in_case = [False]
        self.depth = [0]
        self._children: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self.parent)

    def child(self, parent: int, name: str) -> int:
        """The node of range ``name`` opened inside ``parent``."""
        node = self._children.get((parent, name))
        if node is None:
            node = self._children[parent, name] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
            self.in_case.append(self.in_case[parent] or name.startswith(tables.CASE_PREFIX))
            self.depth.append(self.depth[parent] + 1)
        return node

    def ancestors(self, node: int) -> list[int]:
        """The nodes from the outermost range to ``node`` itself."""
        found = []
        while node:
            found.append(node)
            node = self.parent[node]
        return found[::-1]

    def names_of(self, node: int) -> list[str]:
        return [self.name[n] for n in self.ancestors(node)]

    def graft(self, below: int, node: int) -> int:
        """``node``'s ranges as if opened inside ``below``."""
        for name in self.names_of(node):
            below = self.child(below, name)
        return below


@dataclass(frozen=True)
class Attribution:
    """``path`` of each launch, ``range_path`` of each range: nodes of ``paths``. ``by_time``: not by its own thread."""

    paths: Paths
    path: Ints
    range_path: Ints
    by_time: Bools

    def cases_and_phases(self, paths: Ints) -> tuple[list[str], list[str]]:
        """(case, phase) of each of ``paths``."""
        split = [tables.split_path(self.paths.names_of(int(node))) for node in paths]
        return [case for case, _ in split], [phase for _, phase in split]


@dataclass(frozen=True)
class _Timeline:
    """What is open in one thread ``since`` each of its times: the path, its first end, its innermost range's start."""

    process: int
    since: Int64s
    path: Ints
    until: Int64s
    opened: Int64s
    start: Int64s
    end: Int64s
    name: list[str]

    def at(self, start: Int64s, end: Int64s, paths: Paths) -> tuple[Ints, Int64s]:
        """Path and opening time of the innermost range around each call; path 0 where there is none."""
        where = np.searchsorted(self.since, start, side="right") - 1
        path, opened = self.path[where], self.opened[where]
        # A call that outlives a range it began in. A thread waits for its own calls, so this happens with the ranges of
        # other threads only: seldom enough for a search one by one.
        for i in np.flatnonzero(end > self.until[where]):
            around = np.flatnonzero((self.start <= start[i]) & (self.end >= end[i]))
            path[i] = 0
            for r in around:
                path[i] = paths.child(int(path[i]), self.name[r])
            opened[i] = self.start[around[-1]] if len(around) else _NEVER
        return path, opened


def attribute(ranges: Ranges, launches: Launches) -> Attribution:
    """The path of each launch: its ranges outermost first, in the order in which they were opened."""
    paths = Paths()
    range_path = np.zeros(len(ranges.start), dtype=np.int32)
    timelines: dict[int, _Timeline] = {}
    for thread, rows in groups(ranges.thread):
        timelines[thread], range_path[rows] = _timeline(ranges, rows, paths)
    path = np.zeros(len(launches.start), dtype=np.int32)
    for thread, rows in groups(launches.thread):
        if thread in timelines:
            path[rows], _ = timelines[thread].at(launches.start[rows], launches.end[rows], paths)
    working = set(pd.unique(launches.thread[launches.is_kernel]).tolist())
    by_time = _place_by_time(launches, path, timelines, working, paths)
    in_case = np.array(paths.in_case)
    with_cases = {thread: timeline for thread, timeline in timelines.items() if in_case[timeline.path].any()}
    opened = Launches(ranges.start, ranges.start, ranges.thread, ranges.process, np.zeros(len(range_path), dtype=bool))
    _place_by_time(opened, range_path, with_cases, working, paths)
    return Attribution(paths, path, range_path, by_time)


def _timeline(ranges: Ranges, rows: Ints, paths: Paths) -> tuple[_Timeline, Ints]:
    """The timeline of one thread, and the path of each of its ranges."""
    opening = np.lexsort((-ranges.end[rows], ranges.start[rows]))
    start, end = ranges.start[rows][opening], ranges.end[rows][opening]
    name = [ranges.names[code] for code in ranges.name[rows][opening].tolist()]
    since, path, until, opened, own = _sweep(start, end, name, paths)
    range_path = np.zeros(len(rows), dtype=np.int32)
    range_path[opening] = own
    process = int(ranges.process[rows[0]])
    return _Timeline(process, since, path, until, opened, start, end, name), range_path


def _sweep(start: Int64s, end: Int64s, name: list[str], paths: Paths) -> tuple[Int64s, Ints, Int64s, Int64s, Ints]:
    """Opens and closes ranges (ordered by start) in order of time and notes what is open after each step."""
    count = len(start)
    rank = np.arange(count)
    # A range holds a call that begins at the very nanosecond of its end, so it closes one later, unless another opens
    # in that nanosecond: then it is over, not around the other. At one time ranges close before others open, and the
    # innermost closes first.
    when = np.concatenate([end + 1, start])
    opens = np.repeat([0, 1], count)
    order = np.lexsort((np.concatenate([-rank, rank]), opens, when))
    starts, ends = start.tolist(), end.tolist()
    own = np.zeros(count, dtype=np.int32)
    path, until, opened = [0], [_NEVER], [_NEVER]
    stack: list[int] = []
    open_path, open_until = [0], [_NEVER]
    closed = [False] * count

    def push(r: int) -> None:
        stack.append(r)
        open_path.append(paths.child(open_path[-1], name[r]))
        open_until.append(min(open_until[-1], ends[r]))

    def close(r: int) -> None:
        # Start/end ranges, and push/pop ranges of two domains, may close before one that was opened inside them.
        depth = len(stack) - 1 if stack[-1] == r else stack.index(r)
        inner = stack[depth + 1 :]
        del stack[depth:], open_path[depth + 1 :], open_until[depth + 1 :]
        closed[r] = True
        for other in inner:
            push(other)

    for step in order.tolist():
        r = step % count
        if step >= count:
            while open_until[-1] <= starts[r]:
                close(next(other for other in reversed(stack) if ends[other] <= starts[r]))
            push(r)
            own[r] = open_path[-1]
        elif not closed[r]:
            close(r)
        path.append(open_path[-1])
        until.append(open_until[-1])
        opened.append(starts[stack[-1]] if stack else _NEVER)
    since = np.concatenate([[np.iinfo(np.int64).min], when[order]]).astype(np.int64)
    return since, np.array(path, dtype=np.int32), np.array(until), np.array(opened), own


def _place_by_time(
    launches: Launches, path: Ints, timelines: dict[int, _Timeline], working: set[int], paths: Paths
) -> Bools:
    """Gives launches without a range, or without a case, of their own the path of another thread; changes ``path``.

    ``working`` are the threads that launch kernels. Says which launches were moved.
    """
    moved = np.zeros(len(path), dtype=bool)
    in_case = np.array(paths.in_case)
    rows = np.flatnonzero(~in_case[path] & (launches.thread != NO_THREAD))
    hosts_of: dict[int, list[int]] = {}
    for thread, timeline in sorted(timelines.items(), key=lambda item: item[0]):
        hosts_of.setdefault(timeline.process, []).append(thread)
    for process, group in groups(launches.process[rows]):
        if process in hosts_of:
            hosts = {t: (timelines[t], t in working) for t in hosts_of[process]}
            _move(launches, rows[group], hosts, path, moved, paths)
    return moved


def _move(
    launches: Launches,
    rows: Ints,
    hosts: dict[int, tuple[_Timeline, bool]],
    path: Ints,
    moved: Bools,
    paths: Paths,
) -> None:
    start, end, own = launches.start[rows], launches.end[rows], path[rows]
    best = np.zeros(len(rows), dtype=np.int32)
    best_rank = np.full(len(rows), -1)
    best_opened = np.full(len(rows), np.iinfo(np.int64).min)
    for thread, (timeline, works) in hosts.items():
        found, opened = timeline.at(start, end, paths)
        cased = np.array(paths.in_case)[found]
        # Several threads may have a range around the launch. A case says that its whole process works for it, so it
        # goes first. Then a thread that launches kernels itself: a data loader's or a logger's range is no cause of a
        # backward kernel. Then the range opened last, for who waits for the launch has just opened it. Then the thread
        # of the lowest id, which is the process's first.
        rank = 2 * cased + works
        usable = (found != 0) & (cased | (own == 0)) & (launches.thread[rows] != thread)
        better = usable & ((rank > best_rank) | ((rank == best_rank) & (opened > best_opened)))
        best[better], best_rank[better], best_opened[better] = found[better], rank[better], opened[better]
    found_rows = np.flatnonzero(best)
    code, firsts = combine(own[found_rows], best[found_rows])
    grafts = [paths.graft(int(best[i]), int(own[i])) for i in found_rows[firsts]]
    path[rows[found_rows]] = np.array(grafts, dtype=np.int32)[code]
    moved[rows[found_rows]] = True
