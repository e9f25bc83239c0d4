"""Find the ranges that a launch belongs to.

The rule is that of ``nsys stats -r nvtx_kern_sum`` (2022.4, its scripts): a launch belongs to the ranges of the calling
thread in which the call begins and ends, whenever the kernel ran. There are two additions, whose launches are counted:

* A launch from a thread without a range around it belongs, by time, to a range of another thread of its process.
  Autograd launches the backward pass from another thread while the caller waits in its ``backward`` range.
* A launch in ranges without a case (hooks push ranges in autograd's thread) belongs to the case that another thread of
  its process has open. So does the range itself, by the time at which it opens.

All times are integers of nanoseconds on one clock of any origin.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profpipe.ingest import bounds
from profpipe.ingest.groupby import Bools, Int64s, Ints, combine, count_up_to, groups
from profpipe.ingest.operations import Spans
from profpipe.results import schema

#: The thread of a launch without a call in the file.
NO_THREAD = np.iinfo(np.int64).min

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Launches:
    """Calls that started work on the GPU; ``is_kernel`` is False for copies and sets."""

    start: Int64s
    end: Int64s
    thread: Int64s
    process: Int64s
    is_kernel: Bools


class Paths:
    """A tree of nested ranges; a node is a path, node 0 the empty one.

    ``case`` and ``phase`` of a node are those of ``schema.split_path``.
    """

    def __init__(self) -> None:
        self.parent = [0]
        self.name = [""]
        self.case = [""]
        self.phase = [""]
        self.in_case = [False]
        self.depth = [0]
        #: How many ranges lie around a node inside its case.
        self._inside = [0]
        self._children: dict[tuple[int, str], int] = {}
        self._is_too_deep = False

    def __len__(self) -> int:
        return len(self.parent)

    def child(self, parent: int, name: str) -> int:
        """Return the node of range ``name`` inside ``parent``.

        A range deeper than ``bounds.DEEPEST`` has the node of the range around it. Paths beyond ``bounds.MOST_PATHS``
        share the node ``bounds.OTHER_RANGES`` of their parent.
        Raises ``TooLarge`` for more cases than ``bounds.MOST_CASES``.
        """
        node = self._children.get((parent, name))
        return self._add(parent, name) if node is None else node

    def _add(self, parent: int, name: str) -> int:
        is_case, given = name.startswith(schema.CASE_PREFIX), (parent, name)
        if is_case:
            # A case keeps its name wherever it lies; of the ranges around it the innermost are left out.
            while self.depth[parent] > bounds.DEEPEST:
                parent, self._is_too_deep = self.parent[parent], True
        elif self._inside[parent] >= bounds.DEEPEST:
            self._is_too_deep = True
            return parent
        elif len(self.parent) > bounds.MOST_PATHS:
            if self.name[parent] == bounds.OTHER_RANGES:
                return parent
            name = bounds.OTHER_RANGES
        elif len(name) > bounds.LONGEST_RANGE:
            name = f"{name[: bounds.LONGEST_RANGE - 1]}…"
        node = self._children.get((parent, name))
        if node is None:
            if len(self.parent) > bounds.MOST_CASES:
                raise bounds.TooLarge(f"it has more than {bounds.MOST_CASES:,} different cases and ranges")
            node = self._children[parent, name] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
            self.case.append(name.removeprefix(schema.CASE_PREFIX) if is_case else self.case[parent])
            self.phase.append("" if is_case else self._phase(parent, schema.range_name(name)))
            # A range named "profpipe:" alone names no case: its rows lie outside all cases.
            self.in_case.append(bool(self.case[-1]))
            self.depth.append(self.depth[parent] + 1)
            self._inside.append(0 if is_case else self._inside[parent] + 1)
        if given != (parent, name) and len(self._children) < bounds.MOST_CASES:
            self._children[given] = node
        return node

    def _phase(self, parent: int, name: str) -> str:
        is_outermost = not parent or self.name[parent].startswith(schema.CASE_PREFIX)
        return name if is_outermost else f"{self.phase[parent]}{schema.PATH_SEPARATOR}{name}"

    def notes(self) -> list[str]:
        """Return what a report says about ranges that share a node."""
        notes = []
        if self._is_too_deep:
            notes.append(
                f"ranges nest more than {bounds.DEEPEST} deep, as where a program pushes without popping; deeper ones "
                "count in the range around them"
            )
        if bounds.OTHER_RANGES in self.name:
            notes.append(f"ranges beyond {bounds.MOST_PATHS:,} different ones are rows named {bounds.OTHER_RANGES}")
        return notes

    def ancestors(self, node: int) -> list[int]:
        """Return the nodes from the outermost range to ``node``."""
        nodes = []
        while node:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]

    def names_of(self, node: int) -> list[str]:
        return [self.name[n] for n in self.ancestors(node)]

    def graft(self, below: int, node: int) -> int:
        """Return the node of ``node``'s ranges inside ``below``."""
        for name in self.names_of(node):
            below = self.child(below, name)
        return below


@dataclass(frozen=True)
class Attribution:
    """``path`` of a launch and ``range_path`` of a range: nodes of ``paths``. ``by_time``: of another thread."""

    paths: Paths
    path: Ints
    range_path: Ints
    by_time: Bools

    @functools.cached_property
    def is_in_case(self) -> Bools:
        """Return for a launch whether it lies in a case."""
        is_in_case: Bools = np.array(self.paths.in_case)[self.path]
        return is_in_case


@dataclass(frozen=True)
class _Timeline:
    """One thread's open path ``since`` a time, ``until`` its first end, and its innermost range's start (opened)."""

    process: int
    since: Int64s
    path: Ints
    until: Int64s
    opened: Int64s
    start: Int64s
    end: Int64s
    name: list[str]

    def at(self, start: Int64s, end: Int64s, paths: Paths) -> tuple[Ints, Int64s]:
        """Return path and opening time of the innermost range around a call, path 0 where there is none."""
        where = count_up_to(self.since, start) - 1
        path, opened = self.path[where], self.opened[where]
        # A call can outlive a range of another thread. That is rare, so these calls are searched one by one.
        for i in np.flatnonzero(end > self.until[where]):
            around = np.flatnonzero((self.start <= start[i]) & (self.end >= end[i]))
            path[i] = 0
            for r in around:
                path[i] = paths.child(int(path[i]), self.name[r])
            opened[i] = self.start[around[-1]] if len(around) else _NEVER
        return path, opened


def attribute(ranges: Spans, launches: Launches) -> Attribution:
    """Return the paths of launches and ranges: the ranges around it in the order of their opening."""
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


def _timeline(ranges: Spans, rows: Ints, paths: Paths) -> tuple[_Timeline, Ints]:
    """Return the timeline of one thread, and the paths of its ranges."""
    opening = np.lexsort((-ranges.end[rows], ranges.start[rows]))
    start, end = ranges.start[rows][opening], ranges.end[rows][opening]
    name = [ranges.names[code] for code in ranges.name[rows][opening].tolist()]
    since, path, until, opened, swept_path = _sweep(start, end, name, paths)
    range_path = np.zeros(len(rows), dtype=np.int32)
    range_path[opening] = swept_path
    process = int(ranges.process[rows[0]])
    return _Timeline(process, since, path, until, opened, start, end, name), range_path


def _sweep(start: Int64s, end: Int64s, name: list[str], paths: Paths) -> tuple[Int64s, Ints, Int64s, Int64s, Ints]:
    """Open and close ranges (ordered by start) in the order of time; return the open path after a step."""
    count = len(start)
    rank = np.arange(count)
    # A range holds a call that begins in the nanosecond of its end, so it closes one later. It does not hold one that
    # opens in that nanosecond. At one time ranges close before others open, the innermost first.
    when = np.concatenate([end + 1, start])
    opens = np.repeat([0, 1], count)
    order = np.lexsort((np.concatenate([-rank, rank]), opens, when))
    starts, ends = start.tolist(), end.tolist()
    node = [0] * count
    path, until, opened = [0], [_NEVER], [_NEVER]
    stack: list[int] = []
    open_path, open_until = [0], [_NEVER]
    closed = [False] * count

    def push(r: int) -> None:
        stack.append(r)
        open_path.append(paths.child(open_path[-1], name[r]))
        open_until.append(min(open_until[-1], ends[r]))

    def close(r: int) -> None:
        # Start/end ranges, and push/pop ranges of two domains, may close before a range inside them.
        depth = len(stack) - 1 if stack[-1] == r else stack.index(r)
        inner = stack[depth + 1 :]
        del stack[depth:], open_path[depth + 1 :], open_until[depth + 1 :]
        closed[r] = True
        for other in inner:
            push(other)

    for step in order.tolist():
        if step >= count:
            r = step - count
            while open_until[-1] <= starts[r]:
                close(next(other for other in reversed(stack) if ends[other] <= starts[r]))
            push(r)
            node[r] = open_path[-1]
        elif stack and stack[-1] == step:
            # As ``close``: nearly all ranges end in the order of their nesting.
            del stack[-1], open_path[-1], open_until[-1]
            closed[step] = True
        elif not closed[step]:
            close(step)
        path.append(open_path[-1])
        until.append(open_until[-1])
        opened.append(starts[stack[-1]] if stack else _NEVER)
    since = np.concatenate([[np.iinfo(np.int64).min], when[order]]).astype(np.int64)
    return since, np.array(path, dtype=np.int32), np.array(until), np.array(opened), np.array(node, dtype=np.int32)


def _place_by_time(
    launches: Launches, path: Ints, timelines: dict[int, _Timeline], working: set[int], paths: Paths
) -> Bools:
    """Give launches without a range or case the path of another thread, in place, and return which were moved.

    ``working`` are the threads that launch kernels.
    """
    moved = np.zeros(len(path), dtype=bool)
    in_case = np.array(paths.in_case)
    is_movable = ~in_case[path] if in_case.any() else path == 0
    rows = np.flatnonzero(is_movable & (launches.thread != NO_THREAD))
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
    start, end, launch_path = launches.start[rows], launches.end[rows], path[rows]
    best = np.zeros(len(rows), dtype=np.int32)
    best_rank = np.full(len(rows), -1)
    best_opened = np.full(len(rows), np.iinfo(np.int64).min)
    for thread, (timeline, works) in hosts.items():
        thread_path, opened = timeline.at(start, end, paths)
        cased = np.array(paths.in_case)[thread_path]
        # Several threads may have a range around the launch. A case comes first: its whole process works for it. Then a
        # thread that launches kernels: a data loader's range is no cause of a backward kernel. Then the range that was
        # opened last, as by a thread that waits for the launch. Then the lowest id, which is the first thread's.
        rank = 2 * cased + works
        usable = (thread_path != 0) & (cased | (launch_path == 0)) & (launches.thread[rows] != thread)
        better = usable & ((rank > best_rank) | ((rank == best_rank) & (opened > best_opened)))
        best[better], best_rank[better], best_opened[better] = thread_path[better], rank[better], opened[better]
    moved_rows = np.flatnonzero(best)
    code, firsts = combine(launch_path[moved_rows], best[moved_rows])
    grafts = [paths.graft(int(best[i]), int(launch_path[i])) for i in moved_rows[firsts]]
    path[rows[moved_rows]] = np.array(grafts, dtype=np.int32)[code]
    moved[rows[moved_rows]] = True
