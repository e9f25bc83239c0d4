"""Find the steps of a recording and account for them, by process and device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from profpipe.ingest import attribution, bounds
from profpipe.ingest.groupby import Int64s
from profpipe.ingest.operations import Calls, Operations, Timeline, timeline
from profpipe.ingest.steps import excerpt, pattern, reconcile, windows
from profpipe.ingest.steps.accounting import Accounts, account
from profpipe.ingest.steps.figures import COUNT_BY_PATTERN, of_device, of_ranks, of_recording, regular_stride, states
from profpipe.ingest.steps.windows import Segments
from profpipe.results import schema
from profpipe.results.schema import Check, StepRule, StepState

#: A row of ``schema.STEP_FIGURES`` without its place.
Figure = dict[str, Any]
#: The process and the device, what ran there, its steps, and whether the end of the last one is known.
_Account = tuple[dict[str, int], Timeline, Accounts, bool]


@dataclass(frozen=True)
class Found:
    """Rows of `steps`, ``schema.STEP_FIGURES`` and `timeline`, by the numbers of processes that the parser gave."""

    steps: pd.DataFrame = field(default_factory=lambda: schema.empty(schema.STEPS))
    figures: pd.DataFrame = field(default_factory=lambda: schema.empty(schema.STEP_FIGURES))
    timeline: pd.DataFrame = field(default_factory=lambda: schema.empty(schema.TIMELINE))

    def of_processes(self, pids: Callable[[Int64s], Any]) -> Found:
        """Return the rows with the process ids, and without the devices, that are negative where unknown."""
        return Found(*(_known(frame, pids) for frame in (self.steps, self.figures, self.timeline)))

    def tables(self, **columns: Any) -> dict[str, pd.DataFrame]:
        """Return the rows by the names of their tables in ``schema.Tables``, with values for some columns."""
        frames = {"steps": self.steps, "step_figures": self.figures, "timeline": self.timeline}
        known = {name: {key: columns[key] for key in columns if key in frame} for name, frame in frames.items()}
        return {name: frame.assign(**known[name]) for name, frame in frames.items()}


def _known(frame: pd.DataFrame, pids: Callable[[Int64s], Any]) -> pd.DataFrame:
    process = pd.Series(pd.array(pids(frame["process"].to_numpy(dtype=np.int64)), dtype="Int64"), index=frame.index)
    numbers = {name: frame[name].where(frame[name] >= 0) for name in ("device", "stream", "thread") if name in frame}
    return frame.assign(process=process.where(process >= 0), **numbers)


def find(
    operations: Operations,
    ranges: attribution.Ranges,
    waits: Calls,
    unclosed: int | None = None,
    own: str = "",
) -> Found:
    """Find the steps of each process and device, among the operations outside all cases.

    The devices of a process share its steps. A process with cases has no steps by pattern: what it runs between its
    cases only prepares them. Of a recording that contradicts itself (``reconcile``), and of a device without steps, the
    figures are the parts of the whole recording. ``unclosed`` and ``own`` are those of ``windows.find``.
    """
    operations = operations.reading_once()
    by_process = windows.find(ranges, unclosed, own)
    with_cases = set(pd.unique(operations.process[operations.in_case]).tolist()) if operations.in_case.any() else set()
    origin = int(operations.start.min()) if len(operations.start) else 0
    shown = excerpt.Excerpts(operations, waits)
    lines = [
        (process, {device: timeline(operations, rows) for device, rows in by_device.items()})
        for process, by_device in operations.processes()
    ]
    accounted, checks, figures = _account(operations, ranges, by_process, lines, with_cases, shown, origin)
    checks += map(dict, operations.checks)
    window = None
    if any(Check(check["metric"]).forbids_steps for check in checks):
        accounted, figures = [], []
    steps = [_with_states(accounts, ends).assign(**place) for place, _, accounts, ends in accounted]
    if steps:
        together = pd.concat(steps, ignore_index=True)
        together = together.assign(state=of_ranks(together.assign(rank=together["process"])))
        steps = [own for _, own in together.groupby(np.repeat(range(len(steps)), [len(frame) for frame in steps]))]
    for frame, (place, line, accounts, _) in zip(steps, accounted, strict=True):
        window = excerpt.of_step(frame, origin, window)
        shown.add(line, window, **place)
        figures += [{**figure, **place} for figure in of_device(operations, line, accounts, frame)]
    with_steps = {(place["process"], place["device"]) for place, *_ in accounted}
    for process, own_lines in lines:
        for device, line in own_lines.items():
            if process not in with_cases and (process, device) not in with_steps:
                whole = account(line, windows.everything(line.launched), shown.waiting(process), origin)
                place = {"process": process, "device": device}
                figures += [{**figure, **place} for figure in of_recording(whole)]
                shown.add(line, excerpt.of_beginning(line, origin), **place)
    if with_cases:
        shown.add_cases(ranges)
    return Found(
        schema.frame(schema.STEPS, pd.concat(steps, ignore_index=True) if steps else {}),
        schema.frame(schema.STEP_FIGURES, [*({"process": -1, "device": -1, **check} for check in checks), *figures]),
        shown.table(),
    )


def _account(
    operations: Operations,
    ranges: attribution.Ranges,
    by_process: Mapping[int, Sequence[Segments]],
    lines: Sequence[tuple[int, Mapping[int, Timeline]]],
    with_cases: Collection[int],
    shown: excerpt.Excerpts,
    origin: int,
) -> tuple[list[_Account], list[Figure], list[Figure]]:
    """Return the steps of each process on each of its devices, what contradicts them, and what says more of them."""
    accounted: list[_Account] = []
    checks: list[Figure] = []
    figures: list[Figure] = []
    for process, own_lines in lines:
        sorts = by_process.get(process, ())
        chosen, found = _choose(operations, ranges, sorts, process, own_lines, process in with_cases)
        if chosen is None:
            continue
        placed = [(line, chosen.place(line.launched)) for line in own_lines.values()]
        uncovered = list(reconcile.of_coverage(chosen, placed))
        if uncovered and chosen.rule is StepRule.PATTERN:
            # What recurs on one device alone, and in less than half of the kernel time, is no step.
            continue
        checks += [{**check, "process": process} for check in uncovered]
        for device, line in own_lines.items():
            place = {"process": process, "device": device}
            accounts = account(line, chosen, shown.waiting(process), origin)
            if accounts is not None:
                accounted.append((place, line, accounts, chosen.has_last_end))
                checks += [{**check, **place} for check in reconcile.of_windows(line, accounts, origin)]
                figures += [{**figure, **place} for figure in found]
    return accounted, checks, figures


def _choose(
    operations: Operations,
    ranges: attribution.Ranges,
    sorts: Sequence[Segments],
    process: int,
    lines: Mapping[int, Timeline],
    has_cases: bool,
) -> tuple[Segments | None, list[Figure]]:
    """Return the steps of a process by the first rule that applies, and figures that say more of the rule."""
    launched = np.sort(np.concatenate([line.launched for line in lines.values()]))
    chosen, found = _by_windows(launched, sorts), []
    if chosen is None and not has_cases:
        kernels = [(line.launched[line.is_kernel], (line.end - line.start)[line.is_kernel]) for line in lines.values()]
        own = windows.recurring(ranges, process, *map(np.concatenate, zip(*kernels, strict=True)))
        if own is not None:
            name, share, sort = own
            chosen = windows.segments_of(sort, launched)
            found.append({"metric": schema.STEP_RANGE, "subject": name, "value": share, "unit": "%", "n": sort.steps})
    by_pattern = None if has_cases else _by_pattern(operations, lines)
    if chosen is None and by_pattern is not None:
        chosen, stride = _without_parts(by_pattern, lines)
        if stride > 1:
            found.append(
                {"metric": schema.STEP_STRIDE, "subject": "", "value": float(stride), "unit": "1", "n": chosen.steps}
            )
    elif chosen is not None and by_pattern is not None and not _agree(chosen, by_pattern):
        found.append({"metric": COUNT_BY_PATTERN, "value": float(by_pattern.steps), "unit": "1"})
    return chosen, found


def _by_windows(launched: Int64s, sorts: Sequence[Segments]) -> Segments | None:
    """Return the steps by the first sort of ranges that hold launches, which ``launched`` gives in their order."""
    holding = (each for each in sorts if (each.place(launched) >= 0).any())
    return next((windows.segments_of(each, launched) for each in holding), None)


def _by_pattern(operations: Operations, lines: Mapping[int, Timeline]) -> Segments | None:
    """Return the steps in which the launches of a process recur.

    Of several devices the order of the launches on all of them is looked at. Where threads launch on each, it need not
    recur, and the longest steps of a single device are taken: a device may see only equal layers of a model.
    """
    if len(lines) > 1 and (together := _in_launches(operations, _joined(operations, lines), len(lines))):
        return together
    found = (_in_launches(operations, line) for line in lines.values())
    return min((each for each in found if each is not None), key=lambda each: each.steps, default=None)


def _in_launches(operations: Operations, line: Timeline, devices: int = 1) -> Segments | None:
    grid = None if operations.grid is None else operations.grid[line.rows]
    found = pattern.find(line, np.tile(operations.are_optimizers, devices), grid)
    # So many repetitions, of a kernel or a few, are a loop inside the steps that a user means.
    return found if found is None or found.steps <= bounds.MOST_PATTERN_STEPS else None


def _joined(operations: Operations, lines: Mapping[int, Timeline]) -> Timeline:
    """Return the operations of several devices as one line, on which a name has another number on each device."""
    names = len(operations.names)
    parts = [replace(line, name=line.name + number * names) for number, line in enumerate(lines.values())]
    columns = {each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Timeline)}
    order = np.argsort(columns["launched"], kind="stable")
    return Timeline(**{name: values[order] for name, values in columns.items()})


def _without_parts(found: Segments, lines: Mapping[int, Timeline]) -> tuple[Segments, int]:
    """Return the steps, and how many of ``found`` are one step.

    Equal layers recur too. Where the time to the next one is longer after each fourth one, say, and always by the same,
    the host begins a step there.
    """
    line = max(lines.values(), key=lambda line: len(line.rows))
    at = found.place(line.launched)
    inside = np.flatnonzero((at >= 0) & line.is_kernel)
    first = np.full(len(found.begin), np.iinfo(np.int64).max)
    np.minimum.at(first, at[inside], line.start[inside])
    steps = np.flatnonzero(found.is_step & (first < np.iinfo(np.int64).max))
    stride = regular_stride(np.diff(first[steps]).astype(np.float64))
    if stride is None or len(steps) != len(found.begin):
        return found, 1
    offset, length = stride
    last = np.arange(offset, len(steps), length)
    return found.joined(last, length), length


def _agree(chosen: Segments, by_pattern: Segments) -> bool:
    """Return True where each step holds as many repetitions of the launches, one or several."""
    begins = by_pattern.begin[by_pattern.is_step]
    at = chosen.place(begins)
    at = at[(at >= 0) & chosen.is_step[np.maximum(at, 0)]]
    counts = np.bincount(at, minlength=len(chosen.begin))[chosen.is_step]
    inner = counts[1:-1] if len(counts) > 2 else counts
    return bool(len(inner) and np.mean(inner == np.median(inner)) >= 1 - reconcile.TOLERANCE and np.median(inner) >= 1)


def _with_states(accounts: Accounts, has_last_end: bool) -> pd.DataFrame:
    frame = accounts.frame
    is_step = frame.pop("is_step").to_numpy()
    state = np.full(len(frame), StepState.OTHER.value, dtype=object)
    state[is_step] = states(frame["wall_ns"].to_numpy(dtype=np.float64)[is_step])
    if is_step[-1] and not has_last_end:
        state[-1] = StepState.LAST.value
    return frame.assign(state=state)


def find_on_host(ranges: attribution.Ranges, own: str = "") -> Found:
    """Return the steps of a recording without a GPU: their periods on the host, from one range to the next one."""
    by_process = windows.find(ranges, own=own)
    origin = min((int(sorts[0].begin[0]) for sorts in by_process.values()), default=0)
    found = []
    for process, (first, *_) in by_process.items():
        wall = np.append(np.diff(first.begin), first.end[-1] - first.begin[-1])
        columns = {"step": first.step, "start_ns": first.begin - origin, "wall_ns": wall}
        state = states(wall.astype(np.float64))
        found.append(pd.DataFrame({**columns, "process": process, "rule": first.rule.value, "state": state}))
    return Found(steps=schema.frame(schema.STEPS, pd.concat(found, ignore_index=True))) if found else Found()
