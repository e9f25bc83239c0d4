"""Find the steps of a recording and account for them, by process and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from profpipe.ingest import attribution, bounds
from profpipe.ingest.groupby import Int64s, Ints
from profpipe.ingest.steps import excerpt, pattern, segments, windows
from profpipe.ingest.steps.accounting import Accounts, account
from profpipe.ingest.steps.figures import COUNT_BY_PATTERN, of_device, of_recording
from profpipe.ingest.steps.operations import Calls, Operations, Timeline, timeline
from profpipe.ingest.steps.segments import Segments
from profpipe.ingest.steps.states import of_ranks as states_of_ranks, states
from profpipe.results import schema
from profpipe.results.schema import StepState


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

    A process with cases has no steps by pattern: what it runs between its cases only prepares them. Of another device
    without steps the figures are the parts of the whole recording. ``unclosed`` and ``own`` are those of
    ``windows.find``.
    """
    operations = operations.reading_once()
    by_process = windows.find(ranges, unclosed, own)
    with_cases = set(pd.unique(operations.process[operations.in_case]).tolist()) if operations.in_case.any() else set()
    origin = int(operations.start.min()) if len(operations.start) else 0
    steps, figures = [], []
    devices: list[tuple[Ints, Accounts, int | None]] = []
    shown, window = excerpt.Excerpts(operations, waits), None
    for process, device, rows in operations.devices():
        own_line = timeline(operations, rows)
        by_ranges = _by_windows(own_line, by_process.get(process, ()))
        by_pattern = None if process in with_cases else _by_pattern(operations, own_line)
        chosen = by_ranges or by_pattern
        accounts = account(own_line, chosen, shown.waiting(process), origin) if chosen else None
        place = {"process": process, "device": device}
        if chosen is None or accounts is None:
            if process not in with_cases:
                whole = account(own_line, segments.everything(own_line.launched), shown.waiting(process), origin)
                figures.append(pd.DataFrame(of_recording(whole)).assign(**place))
                shown.add(own_line, excerpt.of_beginning(own_line, origin), **place)
            continue
        steps.append(_with_states(accounts).assign(**place))
        is_doubtful = by_ranges and by_pattern and by_pattern.steps != by_ranges.steps
        devices.append((rows, accounts, by_pattern.steps if by_pattern and is_doubtful else None))
    if steps:
        together = pd.concat(steps, ignore_index=True)
        together = together.assign(state=states_of_ranks(together.assign(rank=together["process"])))
        steps = [own for _, own in together.groupby(np.repeat(range(len(steps)), [len(frame) for frame in steps]))]
    for frame, (rows, accounts, count) in zip(steps, devices, strict=True):
        # Made again: those of all devices at a time would take as much memory as the operations.
        own_line = timeline(operations, rows)
        place = {"process": int(frame["process"].iloc[0]), "device": int(frame["device"].iloc[0])}
        window = excerpt.of_step(frame, origin, window)
        shown.add(own_line, window, **place)
        found = of_device(operations, own_line, accounts, frame)
        if count is not None:
            found.append({"metric": COUNT_BY_PATTERN, "value": float(count), "unit": "1"})
        figures.append(pd.DataFrame(found).assign(**place))
    if with_cases:
        shown.add_cases(ranges)
    return Found(
        schema.frame(schema.STEPS, pd.concat(steps, ignore_index=True) if steps else {}),
        schema.frame(schema.STEP_FIGURES, pd.concat(figures, ignore_index=True) if figures else {}),
        shown.table(),
    )


def _by_windows(own: Timeline, sorts: Sequence[Segments]) -> Segments | None:
    """Return the steps by the first sort of ranges that hold launches."""
    holding = (each for each in sorts if (each.place(own.launched) >= 0).any())
    return next((windows.segments_of(each, own.launched) for each in holding), None)


def _by_pattern(operations: Operations, own: Timeline) -> Segments | None:
    grid = None if operations.grid is None else operations.grid[own.rows]
    found = pattern.find(own, operations.are_optimizers, grid)
    # So many repetitions, of a kernel or a few, are a loop inside the steps that a user means.
    return found if found is None or found.steps <= bounds.MOST_PATTERN_STEPS else None


def _with_states(accounts: Accounts) -> pd.DataFrame:
    frame = accounts.frame
    is_step = frame.pop("is_step").to_numpy()
    state = np.full(len(frame), StepState.OTHER.value, dtype=object)
    state[is_step] = states(frame["wall_ns"].to_numpy(dtype=np.float64)[is_step])
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
