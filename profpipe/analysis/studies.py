"""The tables and plots that a pipeline file asks for (`tables:`, `plots:`), filled from what was measured.

Every time in one table is of one basis, and every kernel in it of one profiler, whichever workloads it spans: neither
is ever mixed with another's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from profpipe.analysis.study_cases import PHASE, VALUE, WORKLOAD, Case, CasesOf, Material, Request, number_of
from profpipe.findings import Axes, Basis, Point, Split
from profpipe.points import is_number
from profpipe.study_findings import Cell, Grid, Study

#: Rows of a table from which on its first axis makes tables instead, and how many of these there may be.
_ROWS, _TABLES = 24, 9

#: The cases of a workload with their times on a basis.
PointsOn = Callable[[Material, Basis | None], Mapping[str, Point]]


def tabulate(
    entries: Iterable[Mapping[str, Any]], materials: Sequence[Material], points_on: PointsOn
) -> tuple[Study, ...]:
    """Each of `tables` whose workloads are in this run; ``points_on`` gives their cases with times on a basis."""
    found = []
    for entry in entries:
        asked_for = entry.get("workload") or ()
        own = [material for material in materials if material.name in asked_for or not asked_for]
        if own:
            found.append(_study(Request.of(_with_lines(entry, own)), own, points_on))
    return tuple(found)


def _with_lines(entry: Mapping[str, Any], materials: Sequence[Material]) -> Mapping[str, Any]:
    """A plot that names no lines has one for each of what is compared, in each workload."""
    if "over" not in entry or entry.get("lines"):
        return entry
    compared = [
        material.layout.compare for material in materials if material.layout.compare not in (None, entry["over"])
    ]
    return {**entry, "lines": [*([WORKLOAD] if len(materials) > 1 else []), *compared[:1]]}


def _study(request: Request, materials: Sequence[Material], points_on: PointsOn) -> Study:
    basis, profiler = _basis(request, materials), _kernel_profiler(request, materials)
    asides = [CasesOf(m, request, points_on(m, basis), profiler) for m in materials]
    cases = [case for workload in asides for case in workload.cases()]
    whole = [case for case in cases if not case.lacking]
    row_axes, column_axes = _that_vary(request.rows, whole, keep=1), _that_vary(request.columns, whole, keep=0)
    lifted = _lifted(row_axes, whole)
    row_axes = row_axes[len(lifted) :]
    compare = next((m.layout.compare for m in materials if m.layout.compare), None)
    first = _any_split(materials, profiler)
    return Study(
        title=request.title,
        note=request.note,
        first=request.first,
        workloads=tuple(material.name for material in materials),
        values=request.values,
        phases=tuple(phase for phase in request.phases if phase),
        row_axes=row_axes,
        column_axes=column_axes,
        grids=tuple(_grids(request, whole, row_axes, column_axes, lifted)),
        fixed=_fixed(request, materials, whole, (*lifted, *row_axes, *column_axes)),
        units=_units(request, materials),
        wanted=request.units,
        basis=(basis.profiler, basis.quantity) if basis else None,
        kernel_profiler=profiler,
        iterated=first is None or first.iterations is not None,
        cpu=first is not None and first.kind == "cpu_op",
        compare=compare,
        baselines=tuple(dict.fromkeys(case.at.get(compare or "") for case in whole if case.is_baseline)),
        lacking=Counter(axis for case in cases for axis in case.lacking),
        tolerance=_tolerance(materials),
        sparse=any(case.is_sparse for case in whole),
    )


def _tolerance(materials: Sequence[Material]) -> dict[str, float]:
    """The limits that all of the workloads share."""
    first, *others = (material.declared.get("tolerance") or {} for material in materials)
    return {measure: limit for measure, limit in first.items() if all(o.get(measure) == limit for o in others)}


def _basis(request: Request, materials: Sequence[Material]) -> Basis | None:
    """What the times of the table are: the workloads' own basis, or the asked profiler's."""
    if request.profiler is None:
        return next((m.basis for m in materials if m.basis), None)
    if request.profiler == "plain":
        return Basis("plain", "wall" if any(m.declared.get("command") for m in materials) else "time")
    split = _any_split(materials, request.profiler)
    return Basis(split.profiler, split.kind) if split else None


def _any_split(materials: Sequence[Material], profiler: str | None) -> Split | None:
    """Of any case under ``profiler``: what they have in common."""
    splits = (m.splits.get(case, {}).get(profiler or "") for m in materials for case in m.layout.params)
    return next(filter(None, splits), None)


def _kernel_profiler(request: Request, materials: Sequence[Material]) -> str | None:
    if request.profiler and request.profiler != "plain":
        return request.profiler
    return next((material.profiler for material in materials if material.profiler), None)


def _units(request: Request, materials: Sequence[Material]) -> dict[str, str]:
    """The stored unit of each value; of a metric what its rows say."""
    units = {value.word: value.unit for value in request.values}
    for value in request.values:
        if value.of == "metric":
            of_cases = (number_of(m.recorded, case, value.subject) for m in materials for case in m.layout.params)
            units[value.word] = next((number.unit for number in of_cases if number), "")
    return units


# --- rows and columns ------------------------------------------------------------------------------------------------


def _that_vary(axes: Sequence[str], cases: Sequence[Case], keep: int) -> tuple[str, ...]:
    """The axes with several values among ``cases``, and at least the first ``keep``."""
    varying = [a for a in axes if a in (VALUE, PHASE) or len({_key(case.at.get(a)) for case in cases}) > 1]
    return tuple(varying or axes[:keep])


def _key(value: Any) -> tuple[str, str]:
    return type(value).__name__, str(value)


def _fixed(request: Request, materials: Sequence[Material], cases: Sequence[Case], axes: Sequence[str]) -> Axes:
    """What all cells share: of the placed axes and those of `where` first, then what the pipeline file fixes."""
    named = dict.fromkeys([*request.placed, *request.where, *(a for m in materials for a, _ in m.layout.fixed)])
    found = []
    for axis in named:
        values = {_key(case.at.get(axis)): case.at.get(axis) for case in cases}
        if axis not in axes and axis not in (VALUE, PHASE, WORKLOAD) and len(values) == 1:
            found.append((axis, next(iter(values.values()))))
    return tuple(found)


def _lifted(row_axes: Sequence[str], cases: Sequence[Case]) -> tuple[str, ...]:
    """The leading axes of the rows that make tables of their own instead, where one table would be too long."""
    rows = {tuple(_key(case.at.get(axis)) for axis in row_axes) for case in cases}
    lifted: tuple[str, ...] = ()
    for depth, axis in enumerate(row_axes[:-1], 1):
        tables = {row[:depth] for row in rows}
        enough = len(rows) <= _ROWS * len({row[: len(lifted)] for row in rows})
        if enough or axis in (VALUE, PHASE) or len(tables) > _TABLES:
            break
        lifted = tuple(row_axes[:depth])
    return lifted


def _grids(
    request: Request,
    cases: Sequence[Case],
    row_axes: Sequence[str],
    column_axes: Sequence[str],
    lifted: Sequence[str],
) -> Iterator[Grid]:
    """A grid for each combination of the lifted axes, and of those that would else put two cases in a cell."""
    left = (*lifted, *_left_over(request, cases, (*lifted, *row_axes, *column_axes)))
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(tuple(case.at.get(axis) for axis in left), []).append(case)
    made = [
        _grid(request, tuple(zip(left, others, strict=True)), own, row_axes, column_axes)
        for others, own in groups.items()
    ]
    yield from sorted(made, key=lambda grid: -_size(grid.others))


def _size(others: Axes) -> float:
    return math.prod((value for _, value in others if is_number(value)), start=1.0)


def _left_over(request: Request, cases: Sequence[Case], axes: Sequence[str]) -> tuple[str, ...]:
    """The axes in which cases differ that would share a cell."""
    cells: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        cells.setdefault(tuple(_key(case.at.get(axis)) for axis in axes), []).append(case)
    differing: dict[str, None] = {}
    for own in cells.values():
        if len(own) > 1:
            every = dict.fromkeys(axis for case in own for axis in case.at)
            differing |= dict.fromkeys(a for a in every if len({_key(case.at.get(a)) for case in own}) > 1)
    return tuple(differing)


def _grid(
    request: Request, others: Axes, cases: Sequence[Case], row_axes: Sequence[str], column_axes: Sequence[str]
) -> Grid:
    spots: dict[tuple[tuple[Any, ...], tuple[Any, ...]], Cell] = {}
    for case in cases:
        for (phase, word), cell in case.cells.items():
            at = {**case.at, PHASE: phase, VALUE: word}
            spots[tuple(at.get(a) for a in row_axes), tuple(at.get(a) for a in column_axes)] = cell
    words = {VALUE: [value.word for value in request.values], PHASE: list(request.phases)}
    rows = _ordered([row for row, _ in spots], row_axes, words)
    columns = _ordered([column for _, column in spots], column_axes, words)
    cells = tuple(tuple(spots.get((row, column)) for column in columns) for row in rows)
    return Grid(others, tuple(rows), tuple(columns), cells)


def _ordered(
    places: Iterable[tuple[Any, ...]], axes: Sequence[str], words: Mapping[str, Sequence[str]]
) -> list[tuple[Any, ...]]:
    """Each place once: axis by axis, numbers by size, and words as they were planned or asked for."""
    distinct = list(dict.fromkeys(places))
    ranks: list[dict[Any, float]] = []
    for i, axis in enumerate(axes):
        values = words.get(axis) or list(dict.fromkeys(place[i] for place in distinct))
        if axis not in words and all(map(is_number, values)):
            values = sorted(values)
        ranks.append({value: rank for rank, value in enumerate(values)})
    return sorted(distinct, key=lambda place: [rank[value] for rank, value in zip(ranks, place, strict=True)])
