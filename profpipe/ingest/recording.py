"""What one file recorded, event by event; and the tables, the single launches and the trace that are made from it.

Each parser of events gives a ``Recording``. What follows is the same for all tools: late ends are corrected, launches
are placed in ranges, and the tables are summed up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest import attribution, bounds, host, kernel_classes, launch_tables
from profpipe.ingest.attribution import Attribution, Launches
from profpipe.ingest.groupby import Int64s, Ints, factorize, labelled
from profpipe.ingest.operations import Operations, Spans
from profpipe.ingest.steps import reconcile, search
from profpipe.results import schema

_NOTHING: Final = np.zeros(0, dtype=np.int64)
_KERNEL: Final = schema.KINDS.index("kernel")


@dataclass(frozen=True)
class Recording:
    """The operations of the GPUs, the calls and ranges of the host, and what joins them; times in ns on one clock.

    ``operations`` have the classes that the file itself states, mostly none. ``launches`` are their calls. ``waits``
    are the calls in which the host waited for the GPU. ``pids`` turns numbers of processes into process ids, ``tids``
    the threads of ``ranges`` into thread ids; both are negative where they are unknown. ``origin`` has no sums yet;
    ``count`` returns how many launches were placed in which way. ``latest`` is the end that the parser gave to ranges
    without one. Without ``on_gpu`` the GPU was not recorded. ``offset_ns`` leads from the clock of the file to one that
    files of several processes share.

    ``read_shapes`` returns ``grid`` and ``block`` of the kernels, None where the file has none. ``read_calls`` returns
    all calls, and the rows of the operations' calls, -1 where the call is not in the file. ``traced``
    fills in ``calls``, and the row ``call`` of an operation.

    ``read_host`` returns what the host did: spans that may be waits with a name, calls of the operating system, and
    places, with thread ids. Without it they are those of ``ranges``.
    """

    operations: Operations
    launches: Launches
    ranges: Spans
    waits: Spans
    pids: Callable[[Int64s], Any]
    tids: Callable[[Int64s], Any]
    origin: schema.Origin
    count: Callable[[Attribution], Mapping[schema.Placement, int]]
    latest: int | None = None
    on_gpu: bool = True
    finds_steps: bool = True
    offset_ns: int = 0
    read_host: Callable[[], tuple[Spans, Spans, Spans]] | None = None
    read_shapes: Callable[[], pd.DataFrame | None] = lambda: None
    read_calls: Callable[[], tuple[Spans, Ints]] = lambda: (Spans.none(), _NOTHING)
    calls: Spans = field(default_factory=Spans.none)
    call: Ints = field(default_factory=lambda: _NOTHING)

    @cached_property
    def placed(self) -> Attribution:
        """Return the ranges in which the launches lie."""
        return attribution.attribute(self.ranges, self.launches)


def corrected(recording: Recording) -> Recording:
    """Correct the ends of kernels that are recorded too late, in place, and note them; fold names beyond the bound.

    Any negative number of a device or stream is the unknown one.
    """
    work, origin = recording.operations, recording.origin
    device, stream = np.maximum(work.device, -1), np.maximum(work.stream, -1)
    rows = np.flatnonzero(work.kind == _KERNEL)
    place = [values[rows] for values in (recording.launches.process, device, stream)]
    end = work.end[rows]
    late, removed = reconcile.clip_late_ends(work.start[rows], end, place, work.correlation[rows].astype(np.int64))
    work.end[rows[late]] = end[late]
    checks = [*reconcile.of_late_ends(removed, work.name[rows[late]], work.names), *work.checks]
    name, names, folded = bounds.fold_names(work.name, list(work.names), work.end - work.start)
    if folded:
        origin = replace(origin, notes=(*origin.notes, bounds.note_of_names(folded)))
    # The ids of the launches are not needed any more: of ten million kernels 40 MB.
    columns: dict[str, Any] = {"device": device, "stream": stream, "name": name, "correlation": _NOTHING}
    return replace(recording, operations=replace(work, **columns, names=names, checks=checks), origin=origin)


def tables(recording: Recording, step_range: str | None = "", folder: Path | None = None) -> schema.Tables:
    """Return the tables. ``step_range`` is that of ``reader.InputFile``.

    ``folder`` is that of the file, in which the start-up hook may have left what it saw of a process.
    """
    read_hook = functools.partial(host.read, folder) if folder else None
    read_host = recording.read_host or functools.partial(_read_ranges, recording.ranges, recording.tids)
    work, launches, ranges = recording.operations, recording.launches, recording.ranges
    waits, pids, latest = recording.waits, recording.pids, recording.latest
    finds_steps, on_gpu, read_shapes = recording.finds_steps, recording.on_gpu, recording.read_shapes
    with ThreadPoolExecutor(max_workers=1) as executor:
        # numpy works without the interpreter's lock, so that two parts run at the same time. One thread for all of them
        # takes the least memory: what a thread frees, glibc does not give to the others.
        classes = executor.submit(kernel_classes.classes, work.names)
        placed = recording.placed
        # Not in the other thread, which would go on after a refusal of this one.
        range_rows = launch_tables.range_rows(ranges, launches, placed, work.start, work.end, pids, on_gpu)
        # After the sums of the ranges, which need as much memory.
        kernels = executor.submit(_kernel_rows, work, launches.process, placed, pids)
        # What needs no classes is done before them.
        origin = _origin(recording)
        # A gigabyte of ten million kernels, which nothing needs any more.
        del recording, launches
        work = _classified(work, classes.result(), placed)
        steps, metrics = schema.Tables(), schema.empty(schema.METRICS)
        if finds_steps and on_gpu:
            metrics = launch_tables.overlap_rows(work, placed, pids, range_rows)
            steps = search.find(work, ranges, waits, pids, latest, step_range, read_hook, read_host)
        elif finds_steps and work.checks:
            lost = [{**check, "process": pids(np.array([check["process"]]))[0]} for check in work.checks]
            steps = schema.Tables(step_figures=schema.frame(schema.STEP_FIGURES, lost))
        elif finds_steps:
            steps = search.find_on_host(work, ranges, pids, step_range or "", read_hook, read_host)
    if finds_steps and on_gpu and steps.steps.empty and not work.in_case.any():
        metrics = schema.concat_rows(schema.METRICS, [metrics, launch_tables.wait_rows(waits)])
    # A benchmark repeats a kernel, and maybe a memset before it: its cases are compared by their kernels, not by steps.
    is_pattern = (steps.steps["rule"] == schema.StepRule.PATTERN.value).all()
    repeats_kernel = steps.steps.empty or bool(is_pattern and steps.steps["kernels"].median() <= 1)
    if finds_steps and on_gpu and repeats_kernel and not work.in_case.any():
        rows = np.flatnonzero(work.kind == _KERNEL)
        name, codes = np.unique(work.name[rows], return_inverse=True)
        if 0 < len(name) <= launch_tables.MOST_CONFIGURED:
            names = np.array([kernel_classes.normalise(work.names[code]) for code in name], dtype=object)[codes]
            configured = launch_tables.configuration_rows(names, (work.end - work.start)[rows], read_shapes())
            metrics = schema.concat_rows(schema.METRICS, [metrics, configured])
            # It is launched with other blocks in turn: a launch is no step.
            if len(configured) > len(name) and len(steps.steps):
                steps = search.find(work, ranges, waits, pids, latest, None)
                metrics = schema.concat_rows(schema.METRICS, [metrics, launch_tables.wait_rows(waits)])
    return schema.Tables(
        kernels=kernels.result(),
        ranges=range_rows,
        metrics=metrics,
        steps=steps.steps,
        step_figures=steps.step_figures,
        timeline=steps.timeline,
        origin=origin,
    ).set_columns(profiler=origin.tool)


def _read_ranges(ranges: Spans, tids: Callable[[Any], Any]) -> tuple[Spans, Spans, Spans]:
    by_tid = replace(ranges, thread=tids(ranges.thread), names=ranges.recorded or ranges.names)
    return by_tid, Spans.none(), by_tid


def _classified(work: Operations, classes: Sequence[str], placed: Attribution) -> Operations:
    stated = work.classes or [""] * len(classes)
    together = [stated_class or rule_class for stated_class, rule_class in zip(stated, classes, strict=True)]
    return replace(work, classes=together, in_case=placed.is_in_case)


def _kernel_rows(work: Operations, process: Int64s, placed: Attribution, pids: Callable[[Any], Any]) -> pd.DataFrame:
    """Return rows of `kernels`."""

    def numbered(column: Ints, to_ids: Callable[[Any], Any] = lambda values: values) -> Any:
        codes, values = factorize(column)
        # Negative numbers stand for NULL.
        return labelled(codes, [int(number) if number >= 0 else None for number in to_ids(values)])

    # Without a name for the launches, which ``kernel_rows`` frees as soon as it can.
    rows = launch_tables.kernel_rows(
        pd.DataFrame(
            {
                "case": labelled(placed.path, placed.paths.case),
                "process": numbered(process, pids),
                "device": numbered(work.device),
                "stream": numbered(work.stream),
                "phase": labelled(placed.path, placed.paths.phase),
                "kind": labelled(work.kind, schema.KINDS),
                "kernel": labelled(work.name, work.names),
                "duration_ns": np.subtract(work.end, work.start, dtype=np.float64),
                **({"kernel_class": labelled(work.name, work.classes)} if work.classes else {}),
            },
            copy=False,
        )
    )
    return kernel_classes.annotate(rows)


def _origin(recording: Recording) -> schema.Origin:
    """Return the origin with the sums of all kernels, how they were placed, and what makes them doubtful."""
    work, placed = recording.operations, recording.placed
    is_kernel = work.kind == _KERNEL
    duration = work.end - work.start
    total, attributed = (int(duration.sum(where=rows)) for rows in (is_kernel, is_kernel & placed.is_in_case))
    return replace(
        recording.origin,
        launches=int(is_kernel.sum()),
        total_ns=float(total),
        attributed_ns=float(attributed),
        unattributed_ns=float(total - attributed),
        attribution=recording.count(placed),
        notes=(*recording.origin.notes, *placed.paths.notes()),
    )


def launches(recording: Recording) -> pd.DataFrame:
    """Return the single kernels in the order of their calls (``launch_tables.COLUMNS``), none without shapes."""
    work, shapes = recording.operations, recording.read_shapes()
    if shapes is None:
        return launch_tables.no_launches()
    rows = np.flatnonzero(work.kind == _KERNEL)
    names = np.array([kernel_classes.normalise(name) for name in work.names], dtype=object)
    seen = shapes.assign(kernel=names[work.name[rows]], duration_ns=(work.end - work.start)[rows])
    return launch_tables.order_launches(
        recording.ranges, recording.launches, recording.placed, rows, seen, work.start[rows]
    )


def traced(recording: Recording) -> Recording:
    """Return the recording with the classes and cases of the operations, and with all calls."""
    work = _classified(recording.operations, kernel_classes.classes(recording.operations.names), recording.placed)
    calls, call = recording.read_calls()
    return replace(recording, operations=work, calls=calls, call=call)


def count_kernels(placed: Attribution, counted: Any) -> dict[schema.Placement, int]:
    """Return how many of the ``counted`` launches lie in a range of their thread, of another one, and in none."""
    is_placed, by_time = placed.path[counted] != 0, placed.by_time[counted]
    counts = {
        schema.Placement.THREAD: is_placed & ~by_time,
        schema.Placement.OTHER_THREAD: is_placed & by_time,
        schema.Placement.NO_RANGE: ~is_placed,
    }
    return {how: int(rows.sum()) for how, rows in counts.items() if rows.any()}
