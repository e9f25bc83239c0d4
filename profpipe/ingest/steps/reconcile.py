"""Hold a recording against itself. Where it contradicts itself, no step is found in it.

Each check is one or more rows of ``schema.STEP_FIGURES`` whose metric is that of a ``schema.Check``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from profpipe.ingest.groupby import Bools, Int64s, Ints, combine, count_up_to, groups
from profpipe.ingest.operations import Timeline
from profpipe.ingest.steps.accounting import Accounts
from profpipe.ingest.steps.windows import Segments
from profpipe.results.schema import Check, StepRule

#: The share of kernel time, launches or kernels from which a contradiction counts.
TOLERANCE: Final = 0.05
#: A smaller number of kernels in so many replays of a graph, or more, is another graph.
_SAME_REPLAYS: Final = 3
#: Most replays of a graph whose identity is not recorded have one number of kernels.
_MOST_REPLAYS: Final = 0.8

Row = dict[str, Any]


def clip_late_ends(start: Int64s, end: Int64s, place: Sequence[Ints], launch: Ints) -> tuple[Ints, Int64s]:
    """Set the ends of kernels that are recorded too late to the start of the next kernel, in place.

    Return the rows of these kernels and the ns removed from each. A kernel of a stream that runs on after the next one
    of that stream has ended is recorded with a wrong end: ROCm's profiler loses the end of some kernels. Programmatic
    dependent launch lets a kernel begin before the one before it ends, but not end before it.

    ``place`` are numbers of process, device and stream; the stream is negative where it is unknown. ``launch`` numbers
    the launch calls, and is not positive where they are unknown. The kernels of one call are those of a graph, whose
    branches overlap: the next kernel is the first one of the next call.
    """
    stream, recorded = place[-1], end.copy()
    late_rows = [np.zeros(0, dtype=np.int64)]
    for _, rows in groups(combine(*place)[0]):
        if stream[rows[0]] < 0:
            continue
        if (start[rows][1:] < start[rows][:-1]).any():
            rows = rows[np.argsort(start[rows], kind="stable")]
        # Kernels whose call is unknown have one each.
        call = np.where(launch[rows] > 0, launch[rows], -1 - np.arange(len(rows)))
        first = np.flatnonzero(call[1:] != call[:-1]) + 1
        here = rows[: first[-1] if len(first) else 0]
        following = rows[first[count_up_to(first, np.arange(len(here)))]]
        late = (end[here] > end[following]) & (start[following] > start[here])
        late_rows.append(here[late])
        end[here[late]] = start[following[late]]
    clipped = np.concatenate(late_rows)
    return clipped, recorded[clipped] - end[clipped]


def _are_of_graphs(launch: Ints) -> Bools:
    """Return which kernels share their launch call with others."""
    shared = np.zeros(len(launch), dtype=bool)
    launched = np.flatnonzero(launch >= 0)
    codes, firsts = combine(launch[launched])
    shared[launched] = np.bincount(codes, minlength=len(firsts))[codes] > 1
    return shared


def of_shared_ids(shared: int, kernels: int) -> Iterator[Row]:
    """Yield how many of the ``kernels`` have an id that several processes use, where these are too many."""
    if shared > TOLERANCE * kernels:
        yield _row(Check.SHARED_IDS, shared, "1", kernels)


def of_late_ends(removed_ns: Int64s, name: Ints, names: Sequence[str]) -> Iterator[Row]:
    """Yield by name the kernels that ``clip_late_ends`` clipped, and the ns that it removed."""
    for code, rows in groups(name):
        yield {**_row(Check.LATE_END, removed_ns[rows].sum(), "ns", len(rows)), "subject": names[code]}


def are_captured(thread: Ints, time: Ints, begins: tuple[Ints, Ints], ends: tuple[Ints, Ints]) -> Bools:
    """Return which launches built a graph and ran nothing.

    Between the begin and the end of a stream capture, the launches of a thread become nodes of a graph. ``begins`` and
    ``ends`` are the threads and the times of the calls that begin and end a capture.
    """
    captured = np.zeros(len(thread), dtype=bool)
    for tid in np.unique(begins[0]):
        on_thread = thread == tid
        begun, ended = (np.searchsorted(np.sort(at[of == tid]), time[on_thread]) for of, at in (begins, ends))
        captured[on_thread] = begun > ended
    return captured


def may_run_later(time: Ints, start: Ints, launched: Ints) -> Bools:
    """Return which of the launches at ``time`` may have run after the end of the recording, or of a slice of it.

    ``start`` and ``launched`` are when the operations in the file began and were launched, of those whose launch is
    known. A launch may run later where it lies no further from the end than the last operations from their launches.
    """
    if not len(start):
        return np.zeros(len(time), dtype=bool)
    last = np.argsort(start, kind="stable")[-max(int(TOLERANCE * len(start)), 1) :]
    late: Bools = time >= start[last[-1]] - (start - launched)[last].max()
    return late


def of_lost_kernels(launches: int, kernels: int) -> Iterator[Row]:
    """Yield how many ``launches`` of a process have no kernel in the file, where these are too many."""
    lost = launches - kernels
    if launches and lost > TOLERANCE * launches:
        yield _row(Check.LOST_KERNELS, lost, "1", launches)


def of_replays(graph: Ints, launch: Ints, name: Ints) -> Iterator[Row]:
    """Yield the kernels that replays of a graph lack. ``graph``, ``launch`` and ``name`` have a row for each kernel.

    ``graph`` is negative where the tool does not name it. Then only replays that hold a part of the kernels that most
    replays have, or else the largest one, count, and not three that lack the same ones, which are another graph.
    """
    in_graph = np.flatnonzero((launch >= 0) & (_are_of_graphs(launch) | (graph >= 0)))
    for identity, of_graph in groups(graph[in_graph]):
        kernels = in_graph[of_graph]
        replay, firsts = combine(launch[kernels])
        size = np.bincount(replay, minlength=len(firsts))
        sizes, counts = np.unique(size, return_counts=True)
        is_known = counts.max() > 1 and counts.max() >= _MOST_REPLAYS * len(size)
        usual = int(sizes[counts.argmax()] if identity < 0 and is_known else sizes[-1])
        # The capture may begin inside the first replay, and end inside the last one: these may lack some.
        inner = np.setdiff1d(np.arange(len(size)), [replay[0], replay[-1]])
        fewer = inner[size[inner] < usual]
        if identity < 0 and len(fewer):
            whole = name[kernels[replay == int(np.flatnonzero(size == usual)[0])]]
            # A part that recurs is a graph, unless nearly all replays are alike.
            fewer = _lacking(name[kernels], replay, fewer, whole, _SAME_REPLAYS if is_known else 2)
        if len(fewer):
            yield _row(Check.REPLAYS, (usual - size[fewer]).sum(), "1", len(inner))


def _lacking(name: Ints, replay: Ints, fewer: Ints, whole: Ints, same: int) -> Ints:
    """Return which of the replays ``fewer`` hold a part of the kernels ``whole``, a part less than ``same`` times."""
    order = np.argsort(replay, kind="stable")
    first, last = (np.searchsorted(replay[order], fewer, side) for side in ("left", "right"))
    spans = zip(fewer.tolist(), first.tolist(), last.tolist(), strict=True)
    parts = {number: np.sort(name[order[begin:end]]).tobytes() for number, begin, end in spans}
    times = Counter(parts.values())
    counts = Counter(whole.tolist())
    lacking = [
        number
        for number, part in parts.items()
        if times[part] < same and not Counter(np.frombuffer(part, dtype=name.dtype).tolist()) - counts
    ]
    return np.array(lacking, dtype=np.int64)


def of_windows(accounts: Accounts, origin: int) -> Iterator[Row]:
    """Yield the share of the kernel time that steps launched and that did not run in their time, in %.

    The last step has no later one that bounds it, and is left out. ``origin`` is that of ``account``.
    """
    line, steps = accounts.line, accounts.frame
    begin = steps["start_ns"].to_numpy() + origin
    chosen = np.flatnonzero(line.is_kernel & (accounts.row >= 0))
    duration = (line.end - line.start)[chosen]
    ran = count_up_to(begin, line.start[chosen]) - 1
    # Of a kernel that ran after the last step had ended, -1.
    ran[line.start[chosen] >= begin[-1] + steps["wall_ns"].iloc[-1]] = -1
    by_launch = steps["kernel_ns"].to_numpy()[:-1]
    by_time = np.bincount(ran + 1, weights=duration, minlength=len(begin) + 1)[1:-1]
    missing = float(np.maximum(by_launch - by_time, 0).sum())
    if missing > TOLERANCE * by_launch.sum():
        yield _row(Check.OUTSIDE_STEPS, 100 * missing / by_launch.sum(), "%", len(by_launch))


def of_coverage(steps: Segments, lines: Iterable[Timeline]) -> Iterator[Row]:
    """Yield the share of the kernel time of a process that lies in its steps, in %, where it is too small.

    ``lines`` are its devices. The user's own markers are not judged.
    """
    if steps.rule in (StepRule.MARKER, StepRule.FORWARD):
        return
    total = inside = 0
    for line in lines:
        at = steps.place(line.launched)
        duration = np.where(line.is_kernel, line.end - line.start, 0)
        total += int(duration.sum())
        inside += int(duration[(at >= 0) & steps.is_step[np.maximum(at, 0)]].sum())
    if 2 * inside < total:
        yield _row(Check.COVERAGE, 100 * inside / total, "%", steps.steps)


def _row(check: Check, value: float, unit: str, n: int) -> Row:
    return {"metric": check.value, "subject": "", "value": float(value), "unit": unit, "n": int(n)}
