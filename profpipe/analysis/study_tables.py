"""Fill the tables and plots of a pipeline file (`tables:`, `plots:`).

The cases become one tidy frame with a row for each case, phase and value. All times of a table have one basis, and
all kernels come from one profiler, also in a table of several workloads.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from profpipe.analysis import kernels
from profpipe.analysis.case_index import OF_ITS_PROCESS, CaseIndex, MetricRow, TimeSource, worst_numbers
from profpipe.analysis.cases import is_number
from profpipe.analysis.findings import CaseResult, Grid, NoValue, RecordedWorkload, Study, StudyCell
from profpipe.analysis.kernels import CaseRange, ClassTotal, KernelBreakdown, KernelTotals, Key, rows, sum_kernels
from profpipe.config.quantities import BY_NAME, CATEGORIES, METRIC_NAMES, Source, StudyValue, parse_value
from profpipe.job import as_text
from profpipe.measure.flags import Flag
from profpipe.results.schema import PATH_SEPARATOR

if TYPE_CHECKING:
    from profpipe.config.models import Plot, Table

#: Axes of a table that are no parameters of its cases.
VALUE, PHASE, WORKLOAD, PROFILER = "value", "phase", "workload", "profiler"

#: Columns of the frame that are no axes: the number of the case, its result, the placed axes without a value, the cell.
_CASE, _RESULT, _MISSING_AXES, _CELL = "#case", "#result", "#missing", "#cell"
_NO_AXES = (PHASE, VALUE, _CASE, _RESULT, _MISSING_AXES, _CELL)

#: A table with more rows than these is divided by its first axis, into so many tables at most.
_ROWS, _TABLES = 24, 9

_BASELINE_REASONS = {
    Flag.INACCURATE: NoValue.BASELINE_INACCURATE,
    Flag.UNCHECKED: NoValue.BASELINE_UNCHECKED,
    Flag.UNLIKE_NODES: NoValue.BASELINE_ELSEWHERE,
}

#: The cases of a workload with their times on a basis.
ResultsOn = Callable[[RecordedWorkload, TimeSource | None], Mapping[str, CaseResult]]


def fill_studies(
    entries: Iterable[Table | Plot], workloads: Sequence[RecordedWorkload], results_on: ResultsOn
) -> tuple[Study, ...]:
    """Return each entry of `tables` or `plots` whose workloads are in this run, filled."""
    chosen = [(entry, [w for w in workloads if w.name in entry.workload or not entry.workload]) for entry in entries]
    return tuple(_fill(_read_request(entry, data), data, results_on) for entry, data in chosen if data)


def _read_request(entry: Table | Plot, workloads: Sequence[RecordedWorkload]) -> Study:
    """Return an entry of run.json. Several values, or phases, become columns where the entry does not place them.

    A plot that names no lines has one for each value of the compared axis, in each workload.
    """
    rows, given = entry.axes.values()
    columns = [*given]
    if "over" in entry.axes and not columns:
        compared = [data.compare for data in workloads if data.compare not in (None, *rows)]
        columns = [*([WORKLOAD] if len(workloads) > 1 else []), *filter(None, compared[:1])]
    for axis, several in ((PHASE, entry.phase), (VALUE, entry.value)):
        if len(several) > 1 and axis not in rows + columns:
            columns.append(axis)
    return Study(
        entry,
        tuple(map(parse_value, entry.value)),
        tuple(rows),
        tuple(columns),
    )


def _fill(request: Study, workloads: Sequence[RecordedWorkload], results_on: ResultsOn) -> Study:
    time_source = _choose_time_source(request, workloads)
    profiler: str | None = request.entry.profiler if request.entry.profiler != "plain" else None
    profiler = profiler or next((data.kernel_profiler for data in workloads if data.kernel_profiler), None)
    if request.is_by_profiler:
        readers = [reader for data in workloads for reader in _readers_by_profiler(data, request, results_on)]
        time_source = profiler = None
    else:
        readers = [_Reader(data, request, results_on(data, time_source), profiler) for data in workloads]
    # Axes that name no row or column: those of `where`, and those that are fixed.
    unplaced = (*request.entry.where, *(axis for data in workloads for axis, _ in data.fixed))
    records = _read_frame(readers, (*request.placed, *unplaced))
    frame = records[~records[_MISSING_AXES].astype(bool)]
    cases = frame.drop_duplicates(_CASE)
    rows, columns = _varying(frame, request.row_axes) or request.row_axes[:1], _varying(frame, request.column_axes)
    dividing = _dividing_axes(frame, rows)
    rows = rows[len(dividing) :]
    compare = next((data.compare for data in workloads if data.compare), None)
    absent = {value.name: why for value in request.values if (why := _why_absent(frame, value))}
    grids = _grids(request, frame, (rows, columns), dividing, () if request.is_plot else tuple(absent))
    # The axes with one value: placed ones and those of `where` first, then what the pipeline file fixes.
    named = dict.fromkeys((*request.placed, *unplaced))
    others = [axis for axis in named if axis not in (*dividing, *rows, *columns, VALUE, PHASE, WORKLOAD)]
    compared = cases[compare] if compare in cases else [None] * len(cases)
    baselines = [at for at, result in zip(compared, cases[_RESULT], strict=True) if result.is_baseline]
    limits = [data.tolerance.items() for data in workloads]
    return replace(
        request,
        row_axes=rows,
        column_axes=columns,
        grids=tuple(grid for grid in grids if grid.rows),
        skipped_grids=sum(not grid.rows for grid in grids),
        absent=absent,
        empty_phases=_empty_phases(frame, (*rows, *columns)),
        shared_flags=_shared_flags(request, frame),
        fixed=tuple((axis, frame[axis].iloc[0]) for axis in others if _count(frame, [axis]) == 1),
        units={value.name: _stored_unit(value, workloads) for value in request.values},
        row_unit=_unit_of_axis(rows[0], workloads) if rows else None,
        time_source=time_source,
        kernel_profiler=profiler,
        breakdown=_any_breakdown(workloads, profiler),
        compare=compare,
        baselines=tuple(dict.fromkeys(baselines)),
        cases_without_axis=Counter(records.drop_duplicates(_CASE)[_MISSING_AXES].explode().dropna()),
        tolerance=dict(pair for pair in limits[0] if all(pair in tolerances for tolerances in limits)),
        has_sparse_cases=any(result.is_sparse for result in cases[_RESULT]),
    )


def _shared_flags(request: Study, frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the flags of all cases that ran, where there are several."""
    first = next((value.name for value in request.values if value.source is Source.CALL), None)
    ran = [cell.flags for cell in frame.loc[frame[VALUE] == first, _CELL] if cell.flags or cell.value is not None]
    return tuple(flag for flag in ran[0] if all(flag in flags for flags in ran)) if len(ran) > 1 else ()


def _readers_by_profiler(data: RecordedWorkload, request: Study, results_on: ResultsOn) -> Iterator[_Reader]:
    """Yield a reader for each profiler that recorded the workload: plain has calls, each other one their kernels."""
    if any("time" in numbers for (_, *key), numbers in data.recorded.numbers.items() if key == ["plain", ""]):
        yield _Reader(data, request, results_on(data, TimeSource("plain", "time")), None, "plain")
    for name in data.recorded.profilers:
        if (breakdown := _any_breakdown([data], name)) is not None:
            yield _Reader(data, request, results_on(data, TimeSource(name, breakdown.kind)), name, name)


def _choose_time_source(request: Study, workloads: Sequence[RecordedWorkload]) -> TimeSource | None:
    """Return the basis of the table's times: that of the workloads, or of the requested profiler."""
    if request.entry.profiler is None:
        return next((data.time_source for data in workloads if data.time_source), None)
    if request.entry.profiler == "plain":
        sources = (data.time_source for data in workloads if data.time_source and data.time_source.profiler == "plain")
        return next(sources, TimeSource("plain", "time"))
    breakdown = _any_breakdown(workloads, request.entry.profiler)
    return TimeSource(breakdown.profiler, breakdown.kind) if breakdown else None


def _any_breakdown(workloads: Sequence[RecordedWorkload], profiler: str | None) -> KernelBreakdown | None:
    """Return the breakdown of any case under ``profiler``: all of them share their kind."""
    breakdowns = (data.breakdowns.get(case, {}).get(profiler or "") for data in workloads for case in data.params)
    return next(filter(None, breakdowns), None)


def _stored_unit(value: StudyValue, workloads: Sequence[RecordedWorkload]) -> str:
    """Return the stored unit of a value; of a metric the unit in its rows."""
    return _unit_of_metric(value.subject, workloads) if value.source is Source.METRIC else value.unit


def _unit_of_axis(axis: str, workloads: Sequence[RecordedWorkload]) -> str | None:
    """Return the unit of a metric that is an axis; None for a parameter, and for what no case has."""
    if any(axis in params for data in workloads for params in data.params.values()):
        return None
    return _unit_of_metric(axis.removeprefix("metric."), workloads) or None


def _unit_of_metric(name: str, workloads: Sequence[RecordedWorkload]) -> str:
    """Return the unit in the rows of a metric; empty where no case has it."""
    numbers = (_find_number(data.recorded, case, name) for data in workloads for case in data.params)
    return next((number.unit for number in numbers if number), "")


# --- the frame -------------------------------------------------------------------------------------------------------


def _read_frame(readers: Iterable[_Reader], axes: Iterable[str]) -> pd.DataFrame:
    """Return a row for each case, phase and value, with the axes of the case and the cell."""
    records = [{**record, _CASE: i} for i, case in enumerate(c for r in readers for c in r.read()) for record in case]
    named = dict.fromkeys([WORKLOAD, *axes, *itertools.chain(*records)])
    columns = [*(axis for axis in named if axis not in _NO_AXES), *_NO_AXES]
    # pandas would write NaN where a case does not have an axis.
    return pd.DataFrame([{**dict.fromkeys(columns), **record} for record in records], columns=columns, dtype=object)


def _why_absent(frame: pd.DataFrame, value: StudyValue) -> frozenset[str]:
    """Return why no case has ``value`` though some ran; empty where a case has it.

    The speedup of a baseline over itself is no result where the other cases are inaccurate or unchecked.
    """
    cells = list(frame.loc[frame[VALUE] == value.name, _CELL])
    reasons = frozenset(cell.missing for cell in cells)
    is_disqualified = not reasons.isdisjoint((NoValue.INACCURATE, NoValue.UNCHECKED))
    numbers = {cell.value for cell in cells} - ({1.0} if value.name == "speedup" and is_disqualified else set())
    return reasons if numbers == {None} and (is_disqualified or "" in reasons) else frozenset()


def _empty_phases(frame: pd.DataFrame, axes: Sequence[str]) -> tuple[str, ...]:
    """Return the requested ranges in which no case has anything."""
    if PHASE not in axes:
        return ()
    is_filled = frame[_CELL].map(lambda cell: cell.value is not None or bool(cell.missing))
    filled = set(frame.loc[is_filled.astype(bool), PHASE])
    return tuple(phase for phase in frame[PHASE].unique() if phase and phase not in filled)


# --- rows and columns ------------------------------------------------------------------------------------------------


def _varying(frame: pd.DataFrame, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis in (VALUE, PHASE) or _count(frame, [axis]) > 1)


def _count(frame: pd.DataFrame, axes: Sequence[str]) -> int:
    """Return how many combinations of values ``axes`` have; None counts as a value."""
    return len(frame[list(axes)].drop_duplicates()) if axes else min(1, len(frame))


def _dividing_axes(frame: pd.DataFrame, row_axes: Sequence[str]) -> tuple[str, ...]:
    """Return the leading axes of the rows that divide a table which would be too long."""
    length, dividing = _count(frame, [axis for axis in row_axes if axis not in (VALUE, PHASE)]), 0
    for depth, axis in enumerate(row_axes[:-1], 1):
        is_short = length <= _ROWS * _count(frame, row_axes[:dividing])
        if is_short or axis in (VALUE, PHASE) or _count(frame, row_axes[:depth]) > _TABLES:
            break
        dividing = depth
    return tuple(row_axes[:dividing])


def _grids(
    request: Study,
    frame: pd.DataFrame,
    axes: tuple[Sequence[str], Sequence[str]],
    dividing: Sequence[str],
    absent: Sequence[str],
) -> list[Grid]:
    """Return a grid for each combination of the dividing axes, and of those that would put two cases in a cell."""
    placed = [axis for axis in (*dividing, *axes[0], *axes[1]) if axis not in (VALUE, PHASE)]
    left = [*dividing, *_colliding_axes(frame, placed)]
    kept = frame[~frame[VALUE].isin(absent)]
    parts = [part for _, part in kept.groupby(left, sort=False, dropna=False)] if left else [kept]
    grids = [_pivot(request, part, left, axes) for part in parts if not part.empty]
    return sorted(grids, key=lambda grid: -math.prod((v for _, v in grid.others if is_number(v)), start=1.0))


def _colliding_axes(frame: pd.DataFrame, placed: Sequence[str]) -> list[str]:
    """Return the axes in which cases differ that would share a cell."""
    cases = frame.drop_duplicates(_CASE).drop(columns=list(_NO_AXES))
    if len(cases) == _count(cases, placed):
        return []
    axes = [axis for axis in cases.columns if axis not in placed]
    return [axis for axis in axes if _count(cases, [*placed, axis]) > _count(cases, placed)]


def _pivot(request: Study, part: pd.DataFrame, left: Sequence[str], axes: tuple[Sequence[str], Sequence[str]]) -> Grid:
    """Return the cells by row and column; a table leaves out those that hold skipped cases alone."""
    keys = [pd.Series(list(map(tuple, part[list(names)].to_numpy())), index=part.index) for names in axes]
    is_skipped = part[_CELL].map(lambda c: c.value is None and c.missing == "skipped" and not request.is_plot)
    lost = [is_skipped.astype(bool).groupby(key, sort=False).transform("all") for key in keys]
    order = {VALUE: [value.name for value in request.values], PHASE: list(request.entry.phase) or [""]}
    rows, columns = (
        _order_places(key[~is_lost], part, names, order) for key, is_lost, names in zip(keys, lost, axes, strict=True)
    )
    cells = dict(zip(zip(*keys, strict=True), part[_CELL], strict=True))
    return Grid(
        others=tuple((axis, part[axis].iloc[0]) for axis in left),
        rows=rows,
        columns=columns,
        cells=tuple(tuple(cells.get((row, column)) for column in columns) for row in rows),
        skipped=(keys[0][lost[0]].nunique(), keys[1][lost[1]].nunique()),
    )


def _order_places(
    places: Iterable[tuple[Any, ...]], part: pd.DataFrame, axes: Sequence[str], order: Mapping[str, Sequence[Any]]
) -> tuple[tuple[Any, ...], ...]:
    """Return each place once: axis by axis, numbers by size, and words as they were planned or requested."""
    positions = []
    for axis in axes:
        values = order.get(axis) or list(dict.fromkeys(part[axis]))
        values = sorted(values) if axis not in order and all(map(is_number, values)) else values
        positions.append({value: i for i, value in enumerate(values)})
    return tuple(sorted(set(places), key=lambda place: [at[value] for at, value in zip(positions, place, strict=True)]))


# --- one value of one case -------------------------------------------------------------------------------------------


def _read_totals(data: RecordedWorkload, phase: str) -> Mapping[Key, KernelTotals]:
    """Return the kernel totals of a workload inside one phase; without one, of everything."""
    if not phase:
        return data.recorded.totals
    kernels = data.recorded.tables.kernels
    inside = [path for path in kernels["phase"].unique() if _is_within(path, phase)]
    return sum_kernels(kernels[kernels["phase"].isin(inside)])


def _read_ranges(data: RecordedWorkload, phase: str) -> dict[Key, dict[str, float]]:
    """Return how often the ranges of one phase were entered, and their ns on the host and with a busy GPU, in all."""
    ranges = data.recorded.tables.ranges
    # The range itself, not one nested in it: its time would count twice.
    within = [path for path in ranges["range"].unique() if _is_within(path, phase)]
    paths = [p for p in within if not _is_within(p.rpartition(PATH_SEPARATOR)[0], phase)] if phase else [""]
    figures = {"instances": "calls", "wall_ns": "time", "busy_ns": "busy"}
    sums: dict[Key, dict[str, float]] = {}
    for case, profiler, *numbers in rows(ranges[ranges["range"].isin(paths)], "case", "profiler", *figures):
        # Of several processes, and of several ranges of that name, the sum: missing where one of them is.
        case_sums = sums.setdefault((case, profiler), dict.fromkeys(figures.values(), 0.0))
        for name, number in zip(case_sums, numbers, strict=True):
            case_sums[name] += math.nan if pd.isna(number) else float(number)
    return sums


def _is_within(path: str, phase: str) -> bool:
    """Return True if the steps of ``phase`` are all in ``path``, in their order and at any depth."""
    steps = iter(path.split(PATH_SEPARATOR))
    return all(wanted in steps for wanted in phase.split(PATH_SEPARATOR))


class _Reader:
    """Reads the cases that one workload gives to a table."""

    def __init__(
        self,
        data: RecordedWorkload,
        request: Study,
        results: Mapping[str, CaseResult],
        profiler: str | None,
        axis: str | None = None,
    ) -> None:
        """``profiler`` gives the kernels; ``axis`` is the value of the axis ``profiler``, where the table has one."""
        self._data, self._request, self._results, self._profiler = data, request, results, profiler
        self._axis, self._phases = axis, request.entry.phase or ("",)
        self._totals = {phase: _read_totals(data, phase) for phase in self._phases}
        self._ranges = {phase: _read_ranges(data, phase) for phase in self._phases}

    def read(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the records of each case that `where` selects, one for each phase and value."""
        axes_of_cases = itertools.chain.from_iterable(self._data.params.values())
        request, possible_axes = self._request, {VALUE, PHASE, PROFILER, *axes_of_cases}
        for result in self._results.values():
            axes = self._axes(result)
            # A value may come from a case's name.
            if all(as_text(axes.get(axis)) in map(as_text, values) for axis, values in request.entry.where.items()):
                # A metric that is an axis is missing where the case ended before it was written.
                missing = tuple(axis for axis in request.placed if axis not in axes and axis not in possible_axes)
                shared = {**self._add_options(axes), _RESULT: result, _MISSING_AXES: missing}
                yield [
                    {**shared, PHASE: phase, VALUE: value.name, _CELL: self._cell(result, value, phase)}
                    for phase in self._phases
                    for value in request.values
                ]

    def _axes(self, result: CaseResult) -> dict[str, Any]:
        """Return the parameters of a case, and the metrics that the table takes for axes."""
        axes: dict[str, Any] = {WORKLOAD: self._data.name}
        axes |= {} if self._axis is None else {PROFILER: self._axis}
        axes |= {
            name: param if isinstance(param, Hashable) else as_text(param) for name, param in result.params.items()
        }
        for axis in (*self._request.placed, *self._request.entry.where):
            if axis not in axes and (number := self._number(result, axis)):
                axes[axis] = int(number.value) if float(number.value).is_integer() else number.value
        return axes

    def _add_options(self, axes: dict[str, Any]) -> dict[str, Any]:
        """Add to the compared value what only some cases set: ``sparge topk=0.5``."""
        compare = self._data.compare
        extra = self._data.options(axes, drop_axes=self._request.placed)
        if compare is None or compare not in axes or not extra:
            return axes
        return {**axes, compare: " ".join([as_text(axes[compare]), *extra])}

    def _cell(self, result: CaseResult, value: StudyValue, phase: str) -> StudyCell:
        statuses = self._data.recorded.statuses.get(result.id, {})
        if value.source is Source.KERNELS:
            kernel_value = self._kernel_value(result, value, phase)
            status = statuses.get(self._profiler or "", "ok")
            if isinstance(kernel_value, NoValue):
                return StudyCell(missing=kernel_value)
            return StudyCell(
                kernel_value, "" if kernel_value is not None else status if status != "ok" else result.status
            )
        if value.source is Source.CALL:
            # A table shows the flags of a case once: its further numbers are of the same measurement.
            first = next(other for other in self._request.values if other.source is Source.CALL)
            flags = result.flags if self._request.is_plot or value == first else ()
            number = _call_value(result, value.subject)
            return StudyCell(number, _no_value(result, value.subject) if number is None else result.status, flags)
        other: float | str | None = None
        if value.name != "passed":
            metric = self._number(result, METRIC_NAMES.get(value.subject, value.subject))
            other = metric.value if metric else None
        elif result.accuracy is not None and result.accuracy.flag != Flag.UNCHECKED:
            other = "fail" if result.accuracy.flag else "pass"
        # Another profiler may have the time of a case whose own metric is missing.
        plain = statuses.get("plain", "ok")
        stopped = "" if plain == "ok" else plain
        return StudyCell(other, "" if other is not None else _no_value(result, value.name) or stopped)

    def _number(self, result: CaseResult, metric: str) -> MetricRow | None:
        return _find_number(self._data.recorded, result.id, metric.removeprefix("metric."))

    def _kernel_value(self, result: CaseResult, value: StudyValue, phase: str) -> float | str | NoValue | None:
        breakdown = self._data.breakdowns.get(result.id, {}).get(self._profiler or "")
        if breakdown is None:
            return None
        key, runs = (result.id, breakdown.profiler), breakdown.iterations or 1
        if value.subject == "range":
            total = self._ranges[phase].get(key, {}).get(value.figure, math.nan)
            return None if math.isnan(total) else total / runs
        totals = self._totals[phase].get(key)
        if totals is not None and phase:
            breakdown = kernels.break_down(breakdown.profiler, totals, breakdown.iterations, CaseRange())
        if totals is None or breakdown is None:
            return None
        if value.subject == "most_launched":
            # Of several kernels with as many launches, the one with the most time.
            launched_kernels = [(total.calls, total.ns, name) for name, total in totals.by_name.items()]
            calls, ns, name = max(launched_kernels, key=lambda kernel: kernel[:2], default=(0.0, 0.0, ""))
            figures: dict[str, float | str] = {"name": name, "calls": calls / runs, "time": ns / runs}
            return figures.get(value.figure, ns / totals.total_ns) if name else None
        if breakdown.category("graph").ns and value.subject not in ("kernels", "graph"):
            return NoValue.IN_GRAPHS
        if value.subject == "attention" and not breakdown.is_fused and breakdown.category("softmax").ns:
            return NoValue.UNFUSED
        if value.subject == "kernels":
            part = breakdown.total
        elif value.subject.startswith(BY_NAME):
            text = value.subject.removeprefix(BY_NAME)
            part = sum((total for name, total in totals.by_name.items() if text in name), ClassTotal()) / runs
        elif value.subject in CATEGORIES:
            part = breakdown.category(value.subject)
        else:
            part = breakdown.classes.get(value.subject, ClassTotal())
        return {"time": part.ns, "calls": part.calls, "share": part.ns / breakdown.total.ns}[value.figure]


def _find_number(index: CaseIndex, case: str, metric: str) -> MetricRow | None:
    """Return what `plain`, else another profiler's process, recorded for the case itself.

    Of errors and memory of several processes it is the worst. A metric of a process is of one profiler for all cases:
    `plain`, else the first that recorded any.
    """
    profilers: Sequence[str] = ("plain", *index.profilers)
    if metric.startswith(OF_ITS_PROCESS):
        profilers = [name for name in profilers if name in index.recorders.get(metric, ())][:1]
    for profiler in profilers:
        number = index.numbers.get((case, profiler, ""), {}).get(metric)
        if number is not None:
            worst = worst_numbers(index, case).get(metric) if profiler == "plain" else None
            return number if worst is None else replace(number, value=worst)
    return None


def _call_value(result: CaseResult, name: str) -> float | None:
    if result.time is None:
        return None
    per_s = 1e9 / result.time.ns if result.time.ns and result.time.n is not None else None
    # What a sparse implementation does not leave out of its `flops`.
    effective = result.values.get("flops_effective")
    return {
        "time": result.time.ns,
        "p10": result.time.p10,
        "p90": result.time.p90,
        "min": result.time.lowest,
        "max": result.time.highest,
        "throughput": per_s,
        "tflops": result.tflops,
        "tflops_best": result.tflops_best,
        "tflops_effective": effective * per_s / 1e12 if effective is not None and per_s else None,
        "bandwidth": result.gbytes_per_s,
        "speedup": result.speedup,
    }[name]


def _no_value(result: CaseResult, name: str) -> str:
    """Return why a case has no such value: its status, or that of its comparison with the reference."""
    if name in ("speedup", "passed") and result.is_disqualified and result.accuracy is not None:
        return result.accuracy.flag
    if name == "speedup" and result.baseline_flag and not result.status:
        return _BASELINE_REASONS[Flag(result.baseline_flag)]
    return result.status
