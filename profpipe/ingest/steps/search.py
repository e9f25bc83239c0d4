"""Find the steps of a recording and account for them, by process and device."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest import bounds, host
from profpipe.ingest.groupby import Int64s, Ints, Union
from profpipe.ingest.host import Host
from profpipe.ingest.operations import Operations, Spans, Timeline, timeline
from profpipe.ingest.steps import accounting, excerpt, figures, pattern, reconcile, windows
from profpipe.ingest.steps.accounting import Accounts
from profpipe.ingest.steps.windows import Segments
from profpipe.results import schema
from profpipe.results.schema import Check, StepRule, StepState

#: Rules whose steps are not compared with the launches that recur: the program or its user says what a step is.
_SURE = (StepRule.MARKER, StepRule.OPTIMIZER, StepRule.FORWARD)
#: Rules by which a regular number of steps may be one iteration of the program.
_MAY_BE_PARTS = (StepRule.OPTIMIZER, StepRule.FRAMEWORK, StepRule.RANGE)
#: A row of ``schema.STEP_FIGURES`` without its place.
Figure = dict[str, Any]
#: A process and one of its devices.
Place = tuple[int, int]
#: Starts, ends and launching threads of idle times.
Gaps = tuple[Int64s, Int64s, Ints]
#: Spans that may be waits with a name, calls of the operating system, and places.
ReadHost = tuple[Spans, Spans, Spans]


def find(
    operations: Operations,
    ranges: Spans,
    waits: Spans,
    pids: Callable[[Int64s], Any] | None = None,
    unclosed: int | None = None,
    step_range: str | None = "",
    read_hook: Callable[[int], Mapping[str, Any] | None] | None = None,
    read_host: Callable[[], ReadHost] | None = None,
) -> schema.Tables:
    """Find the steps of processes and devices, among the operations outside all cases.

    Return the tables `steps`, `step_figures` and `timeline`. ``pids`` turns the numbers of processes into process ids,
    negative where unknown; without it the numbers stay.

    The devices of a process share its steps. A process with cases has no steps by pattern: what it runs between its
    cases only prepares them. Of a recording that contradicts itself (``reconcile``), and of a device without steps, the
    figures are the parts of the whole recording. ``unclosed`` and ``step_range`` are those of ``windows.find``;
    where ``step_range`` is None, nothing is a step by pattern. ``read_hook`` returns what the start-up hook saw of a
    process, by its pid, and ``read_host`` what the recording has of the host (``recording.Recording``).
    """
    by_process = windows.find(ranges, unclosed, step_range or "")
    with_cases = set(pd.unique(operations.process[operations.in_case]).tolist()) if operations.in_case.any() else set()
    origin = int(operations.start.min()) if len(operations.start) else 0
    shown = excerpt.Excerpts(operations, waits)
    accounted: dict[Place, Accounts] = {}
    step_figures: list[Figure] = []
    checks: list[Figure] = []
    whole: list[tuple[Place, Timeline]] = []
    for process, rows in operations.processes():
        lines = {device: timeline(operations, of_device) for device, of_device in rows.items()}
        sorts, has_cases = by_process.get(process, ()), process in with_cases
        chosen, more = _choose(
            operations, ranges, sorts, process, lines, has_cases=has_cases, finds_pattern=step_range is not None
        )
        uncovered = list(reconcile.of_coverage(chosen, lines.values())) if chosen else []
        if uncovered and chosen and chosen.rule is StepRule.PATTERN:
            # What recurs on one device alone, and in less than half of the kernel time, is no step.
            chosen, uncovered = None, []
        checks += [{"device": -1, **check, "process": process} for check in uncovered]
        waiting = shown.waiting(process)
        by_device = {
            device: accounting.account(line, chosen, waiting, origin) for device, line in lines.items() if chosen
        }
        outside = [
            {**check, "process": process, "device": device}
            for device, own_steps in by_device.items()
            if own_steps
            for check in reconcile.of_windows(own_steps, origin)
        ]
        if outside and chosen and chosen.rule is StepRule.PATTERN:
            # Iterations that overlap on several streams, or are all launched at once, are no steps.
            by_device, outside = {}, []
        checks += outside
        for device, line in lines.items():
            if own_steps := by_device.get(device):
                accounted[process, device] = own_steps
                step_figures += [{**figure, "process": process, "device": device} for figure in more]
            if not has_cases:
                whole.append(((process, device), line))
    checks += [{"process": -1, "device": -1, **check} for check in operations.checks]
    if any(Check(check["metric"]).forbids_steps for check in checks):
        accounted, step_figures = {}, []
    steps = _agreed_steps(accounted)
    window = None
    for (process, device), accounts in accounted.items():
        mine = steps[(steps["process"] == process) & (steps["device"] == device)]
        place: dict[str, Any] = {"process": process, "device": device}
        window = excerpt.choose_step(mine, origin, window)
        step_figures += [{**figure, **place} for figure in figures.measure_device(operations, accounts, mine, origin)]
        see = functools.partial(
            _see_host, ranges, shown.waits(process), process, pids, read_hook, read_host, accounts.segments.begin
        )
        seen, causes = _find_causes(accounts, mine, shown.waiting(process), see, origin)
        shown.add(accounts.line, window, seen, **place)
        step_figures += [{**figure, **place} for figure in causes]
    for (process, device), line in whole:
        if (process, device) not in accounted:
            place = {"process": process, "device": device}
            parts = accounting.account(line, windows.everything(line.launched), shown.waiting(process), origin)
            step_figures += [{**figure, **place} for figure in figures.measure_recording(parts)]
            shown.add(line, excerpt.choose_beginning(line, origin), **place)
    if with_cases:
        shown.add_cases(ranges)
    return _tables(
        pids,
        steps=steps,
        step_figures=schema.frame(schema.STEP_FIGURES, [*checks, *step_figures]),
        timeline=shown.table(),
    )


_STEP_NAME: Final = re.compile(rf"(?:[^:]+:)?{re.escape(schema.STEP_PREFIX)}\w+:(\d{{1,18}})\b")


def _see_host(
    ranges: Spans,
    waits: Spans,
    process: int,
    pids: Callable[[Int64s], Any] | None,
    read_hook: Callable[[int], Mapping[str, Any] | None] | None,
    read_host: Callable[[], ReadHost] | None,
    begins: Int64s,
    gaps: Gaps,
    launching: Collection[int] = (),
    call_name: str = schema.SYNCHRONISING,
) -> Host | None:
    """Return what the start-up hook saw of a process whose steps it marked, else what the recording says of it."""
    names = ranges.recorded or ranges.names
    matches = [_STEP_NAME.match(name) for name in names] if pids and read_hook else []
    numbers = np.array([*(int(match[1]) if match else -1 for match in matches), -1], dtype=np.int64)
    if pids and read_hook and (numbers >= 0).any():
        rows = np.flatnonzero((ranges.process == process) & (numbers[ranges.name] >= 0))
        content = read_hook(int(pids(np.array([process]))[0])) if len(rows) else None
        if content is not None:
            return host.place(content, numbers[ranges.name[rows]], ranges.start[rows], waits, launching, call_name)
    return host.read_recording(read_host(), waits, process, begins, gaps, launching) if read_host else None


def _find_causes(
    accounts: Accounts,
    mine: pd.DataFrame,
    waiting: Union,
    see: Callable[[Gaps, Collection[int]], Host | None],
    origin: int,
) -> tuple[Host | None, list[Figure]]:
    """Return what the host did, and the causes of idle time before late launches in the steady steps of a device."""
    line = accounts.line
    steady = mine[mine["state"] == StepState.STEADY.value].sort_values("start_ns")
    begin = steady["start_ns"].to_numpy(dtype=np.int64) + origin
    until = begin + steady["wall_ns"].to_numpy(dtype=np.int64)
    if steady.empty:
        return None, []
    # The time of a last step after the last operation is an estimate. Of a single step it is the time in its range that
    # is before the first operation and after the last one.
    last, of_last = int(line.end.max()), accounts.segments.place(line.launched).max()
    first, ended = int(accounts.segments.begin[of_last]), int(accounts.segments.end[of_last])
    is_whole = until <= last
    is_single = not is_whole.any()
    spans = (begin, np.maximum(until, ended)) if is_single else (begin[is_whole], until[is_whole])
    start, end, cause, following = accounting.gaps(line, Union(line.start, line.end), waiting)
    wanted = np.flatnonzero((cause > 0) & (host.find_span(*spans, start) >= 0))
    _, launching = line.operations.read_calls(line.rows)
    thread = launching[following[wanted]]
    before = [(first + max(last - ended, 0), begin[0], launching[0])] if is_single else []
    after = [(last, max(last, ended), launching[-1])] if is_single else []
    edges = [np.array(rows, dtype=np.int64).reshape(-1, 3).T for rows in (before, after)]
    # From its call on, the launch itself keeps the GPU waiting, whatever the host does then.
    called = line.launched[following[wanted]].clip(start[wanted], end[wanted])
    pieces = np.column_stack([start[wanted], called, called, end[wanted]]).reshape(-1, 2).T
    inside = (*pieces, np.repeat(np.asarray(thread), 2))
    start, end, thread = (np.concatenate([edges[0][i], part, edges[1][i]]) for i, part in enumerate(inside))
    is_launch = np.array([False] * len(before) + [False, True] * len(wanted) + [False] * len(after), dtype=bool)
    spans = (edges[0][0], spans[1]) if is_single else spans
    seen = see((start, end, thread), set(pd.unique(np.asarray(launching)).tolist())) if len(start) else None
    return seen, list(host.causes(seen, start, end, thread, spans, is_launch=is_launch)) if seen else []


def _agreed_steps(accounted: Mapping[Place, Accounts]) -> pd.DataFrame:
    """Return the rows of all devices, on which a step has the same state."""
    if not accounted:
        return schema.empty(schema.STEPS)
    frames = [
        accounts.frame.assign(process=process, device=device) for (process, device), accounts in accounted.items()
    ]
    together = pd.concat(frames, ignore_index=True)
    together["state"] = accounting.unify_states(together.assign(rank=together["process"]))
    return schema.frame(schema.STEPS, together)


def _tables(pids: Callable[[Int64s], Any] | None, **frames: pd.DataFrame) -> schema.Tables:
    tables: dict[str, Any] = {name: _fill_pids(frame, pids) for name, frame in frames.items()} if pids else dict(frames)
    return schema.Tables(**tables)


def _fill_pids(frame: pd.DataFrame, pids: Callable[[Int64s], Any]) -> pd.DataFrame:
    """Return the rows with the process ids, and without the numbers that are negative where unknown."""
    process = pd.Series(pd.array(pids(frame["process"].to_numpy(dtype=np.int64)), dtype="Int64"), index=frame.index)
    numbers = {name: frame[name].where(frame[name] >= 0) for name in ("device", "stream", "thread") if name in frame}
    return frame.assign(process=process.where(process >= 0), **numbers)


def _choose(
    operations: Operations,
    ranges: Spans,
    sorts: Sequence[Segments],
    process: int,
    lines: Mapping[int, Timeline],
    *,
    has_cases: bool,
    finds_pattern: bool,
) -> tuple[Segments | None, list[Figure]]:
    """Return the steps of a process by the first rule that applies, and figures that say more of the rule."""
    launched = np.sort(np.concatenate([line.launched for line in lines.values()]))
    holding = (segments for segments in sorts if (segments.place(launched) >= 0).any())
    chosen = next((windows.segments_of(segments, launched) for segments in holding), None)
    if chosen is not None and not chosen.steps:
        # Calls of which none is a step.
        return None, []
    if has_cases:
        return chosen, []
    rows: list[Figure] = []
    if chosen is None:
        kernels = [(line.launched[line.is_kernel], (line.end - line.start)[line.is_kernel]) for line in lines.values()]
        recurring = windows.recurring(ranges, process, *map(np.concatenate, zip(*kernels, strict=True)))
        if recurring is not None:
            name, share, sort = recurring
            chosen = windows.segments_of(sort, launched)
            rows.append({"metric": schema.STEP_RANGE, "subject": name, "value": share, "unit": "%", "n": sort.steps})
    if chosen is not None and chosen.rule in _MAY_BE_PARTS:
        chosen, more = _join_parts(chosen, lines)
        rows += more
    is_sure = chosen is not None and chosen.rule in _SURE
    by_pattern = _find_pattern(operations, lines) if finds_pattern and not is_sure else None
    if chosen is None and by_pattern is not None:
        chosen, more = _join_parts(by_pattern, lines)
        rows += more
    elif chosen is not None and by_pattern is not None and not _agree(chosen, by_pattern):
        rows.append({"metric": figures.COUNT_BY_PATTERN, "value": float(by_pattern.steps), "unit": "1"})
    return chosen, rows


def _find_pattern(operations: Operations, lines: Mapping[int, Timeline]) -> Segments | None:
    """Return the steps in which the launches of a process recur.

    Of several devices the order of the launches on all of them is looked at. Where threads launch on each, it need not
    recur, and the longest steps of a single device are taken: a device may see only equal layers of a model.
    """
    if len(lines) > 1 and (together := _find_line_pattern(operations, _joined(operations, lines), len(lines))):
        return together
    tried = (_find_line_pattern(operations, line) for line in lines.values())
    return min((steps for steps in tried if steps is not None), key=lambda steps: steps.steps, default=None)


def _find_line_pattern(operations: Operations, line: Timeline, devices: int = 1) -> Segments | None:
    grid = None if operations.grid is None else operations.grid[line.rows]
    segments = pattern.find(line, np.tile(operations.are_optimizers, devices), grid)
    # So many repetitions, of a kernel or a few, are a loop inside the steps that a user means.
    return segments if segments is None or segments.steps <= bounds.MOST_PATTERN_STEPS else None


def _joined(operations: Operations, lines: Mapping[int, Timeline]) -> Timeline:
    """Return the operations of several devices as one line, on which a name has another number on another device."""
    joined = timeline(operations, np.concatenate([line.rows for line in lines.values()]))
    _, device = np.unique(operations.device[joined.rows], return_inverse=True)
    return replace(joined, name=joined.name + device * len(operations.names))


def _join_parts(segments: Segments, lines: Mapping[int, Timeline]) -> tuple[Segments, list[Figure]]:
    """Return the steps, and figures of how many of ``segments`` are one step.

    Equal layers recur too. Where the time to the next one is longer after one in four, say, and always by the same,
    the host begins a step there. By other rules a longer step holds other work at its begin, and begins an iteration.
    """
    line = max(lines.values(), key=lambda line: len(line.rows))
    at = segments.place(line.launched)
    inside = np.flatnonzero((at >= 0) & line.is_kernel)
    first = np.full(len(segments.begin), np.iinfo(np.int64).max)
    np.minimum.at(first, at[inside], line.start[inside])
    steps = np.flatnonzero(segments.is_step & (first < np.iinfo(np.int64).max))
    wall_ns, is_pattern = np.diff(first[steps]).astype(np.float64), segments.rule is StepRule.PATTERN
    stride = (accounting.regular_stride if is_pattern else accounting.find_iteration)(wall_ns)
    if stride is None or len(steps) != len(segments.begin):
        return segments, []
    offset, length = stride
    last = np.arange(offset if is_pattern else offset + length - 1, len(steps), length)
    joined = segments.joined(last, length)
    of = {"n": joined.steps, "subject": ""}
    more: list[Figure] = [{**of, "metric": schema.STEP_STRIDE, "value": float(length), "unit": "1"}]
    if not is_pattern:
        more.append({**of, "metric": schema.STEP_PART, "value": float(np.median(wall_ns)), "unit": "ns"})
    return joined, more


def _agree(chosen: Segments, by_pattern: Segments) -> bool:
    """Return True where all steps hold as many repetitions of the launches, one or several."""
    begins = by_pattern.begin[by_pattern.is_step]
    at = chosen.place(begins)
    at = at[(at >= 0) & chosen.is_step[np.maximum(at, 0)]]
    counts = np.bincount(at, minlength=len(chosen.begin))[chosen.is_step]
    inner = counts[1:-1] if len(counts) > 2 else counts
    return bool(len(inner) and np.mean(inner == np.median(inner)) >= 1 - reconcile.TOLERANCE and np.median(inner) >= 1)


#: Ranges that backends of torch.distributed open on their own threads while a collective runs on the CPU.
_COLLECTIVE: Final = re.compile(r"(gloo|mpi|ucc):")


def _collectives(ranges: Spans, process: int) -> Ints:
    names = [number for number, name in enumerate(ranges.names) if _COLLECTIVE.match(name)]
    return np.flatnonzero(np.isin(ranges.name, names) & (ranges.process == process))


def _divide_host(operations: Operations, ranges: Spans, process: int, bounds: Int64s) -> dict[str, Any]:
    """Return the parts of steps without a GPU: operators, communication while none runs, and the rest, which is idle.

    They are the columns of `steps`; none where the process ran no collective.
    """
    rows = _collectives(ranges, process)
    if not len(rows):
        return {}
    ops = np.flatnonzero((operations.process == process) & ~operations.are_collective[operations.name])
    spans = (ranges.start[rows], operations.start[ops]), (ranges.end[rows], operations.end[ops])
    computes = Union(operations.start[ops], operations.end[ops]).covered(bounds)
    exposed = Union(*map(np.concatenate, spans)).covered(bounds) - computes
    total = Union(ranges.start[rows], ranges.end[rows]).covered(bounds)
    rest = np.diff(bounds) - exposed - computes
    parts = {"communication_ns": exposed, "communication_total_ns": total, "compute_ns": computes}
    idle = {"idle_ns": rest, "idle_launch_ns": 0, "idle_blocked_ns": 0, "idle_other_ns": rest}
    return {**parts, "copy_ns": 0, **idle}


def find_on_host(
    operations: Operations,
    ranges: Spans,
    pids: Callable[[Int64s], Any],
    step_range: str = "",
    read_hook: Callable[[int], Mapping[str, Any] | None] | None = None,
    read_host: Callable[[], ReadHost] | None = None,
) -> schema.Tables:
    """Return the steps of a recording without a GPU: their periods on the host, from one range to the next one."""
    by_process = windows.find(ranges, step_range=step_range)
    origin = min((int(sorts[0].begin[0]) for sorts in by_process.values()), default=0)
    frames, causes = [], []
    for process, (first, *_) in by_process.items():
        wall = np.append(np.diff(first.begin), first.end[-1] - first.begin[-1])
        columns = {"step": first.step, "start_ns": first.begin - origin, "wall_ns": wall}
        columns |= _divide_host(operations, ranges, process, np.append(first.begin, first.begin[-1] + wall[-1]))
        state = np.full(len(wall), StepState.OTHER.value, dtype=object)
        state[first.is_step] = accounting.states(wall[first.is_step].astype(np.float64))
        kind = "" if first.kind is None else first.kind
        frames.append(
            pd.DataFrame({**columns, "process": process, "rule": first.rule.value, "state": state, "kind": kind})
        )
        steady = np.flatnonzero(state == StepState.STEADY.value)
        spans = first.begin[steady], first.begin[steady] + wall[steady]
        gaps = *spans, np.zeros(len(steady), dtype=np.int64)
        collectives = ranges.of(_collectives(ranges, process))
        see = functools.partial(_see_host, ranges, collectives, process, pids, read_hook, read_host, first.begin)
        seen = see(gaps, call_name=schema.COLLECTIVE) if len(steady) else None
        if seen:
            rows = np.flatnonzero((operations.process == process) & ~operations.are_collective[operations.name])
            busy = Union(operations.start[rows], operations.end[rows])
            of_steps = host.causes(seen, *gaps, spans, busy)
            causes += [{**figure, "process": process, "device": -1} for figure in of_steps]
    steps = schema.frame(schema.STEPS, pd.concat(frames, ignore_index=True) if frames else {})
    return _tables(pids, steps=steps, step_figures=schema.frame(schema.STEP_FIGURES, causes))
