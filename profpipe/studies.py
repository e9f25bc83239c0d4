"""The tables and plots that a pipeline file asks for (`tables:`, `plots:`), filled from what was measured.

Every time in one table is of one basis, and every kernel in it of one profiler, whichever workloads it spans: neither
is ever mixed with another's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profpipe import shares
from profpipe.asked import METRIC_OF, PARTS, Asked, asked
from profpipe.findings import Axes, Basis, Point, Split
from profpipe.points import Layout, is_number, same, shown
from profpipe.recorded import Number, Recorded
from profpipe.study_findings import Cell, Grid, Study
from profpipe.tables import PATH_SEPARATOR
from profpipe.tallies import Key, OwnRange, Tally, own_ranges, tally
from profpipe.tolerance import UNCHECKED

#: Metrics of a process of its own, whatever its profiler: taken from another one they would mix.
OF_ITS_PROCESS = ("time", "iterations", "issue", "loop_wall", "rounds", "sm_clock", "power", "temperature")

#: Rows of a table from which on its first axis makes tables instead, and how many of these there may be.
_ROWS, _TABLES = 24, 9

_VALUE, _PHASE, _WORKLOAD = "value", "phase", "workload"


@dataclass(frozen=True)
class Material:
    """One workload before anything is said of it. ``profiler`` is whose kernels stand for it, where any are known."""

    name: str
    declared: Mapping[str, Any]
    layout: Layout
    recorded: Recorded
    splits: Mapping[str, Mapping[str, Split]]
    basis: Basis | None
    profiler: str | None


#: The cases of a workload with their times on a basis.
PointsOn = Callable[[Material, Basis | None], Mapping[str, Point]]


@dataclass(frozen=True)
class _Request:
    """An entry of `tables`, or of `plots`, where rows are what it runs over and columns its lines.

    ``placed`` are the axes of its rows and columns, ``value`` and ``phase`` among them.
    """

    title: str
    workloads: tuple[str, ...]
    where: Mapping[str, Sequence[Any]]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[Asked, ...]
    phases: tuple[str, ...]
    units: tuple[str, ...]
    profiler: str | None
    is_plot: bool

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _Request:
        """What run.json says. Several values, or phases, become columns where they are given no place."""
        rows = list(entry["rows"]) if "rows" in entry else [entry["over"]]
        columns = list(entry.get("columns") or entry.get("lines") or ())
        values, phases = list(entry["value"]), list(entry.get("phase") or ())
        for axis, several in ((_PHASE, phases), (_VALUE, values)):
            if len(several) > 1 and axis not in rows + columns:
                columns.append(axis)
        return cls(
            title=str(entry["title"]),
            workloads=tuple(entry.get("workload") or ()),
            where=entry.get("where") or {},
            rows=tuple(rows),
            columns=tuple(columns),
            values=tuple(map(asked, values)),
            phases=tuple(phases) or ("",),
            units=tuple(entry.get("unit") or ()),
            profiler=entry.get("profiler"),
            is_plot="over" in entry,
        )

    @property
    def placed(self) -> tuple[str, ...]:
        return (*self.rows, *self.columns)


def tabulate(
    entries: Iterable[Mapping[str, Any]], materials: Sequence[Material], points_on: PointsOn
) -> tuple[Study, ...]:
    """Each of `tables` whose workloads are in this run; ``points_on`` gives their cases with times on a basis."""
    found = []
    for entry in entries:
        asked_for = entry.get("workload") or ()
        own = [material for material in materials if material.name in asked_for or not asked_for]
        if own:
            found.append(_study(_Request.of(_with_lines(entry, own)), own, points_on))
    return tuple(found)


def _with_lines(entry: Mapping[str, Any], materials: Sequence[Material]) -> Mapping[str, Any]:
    """A plot that names no lines has one for each of what is compared, in each workload."""
    if "over" not in entry or entry.get("lines"):
        return entry
    compared = [
        material.layout.compare for material in materials if material.layout.compare not in (None, entry["over"])
    ]
    return {**entry, "lines": [*([_WORKLOAD] if len(materials) > 1 else []), *compared[:1]]}


def _study(request: _Request, materials: Sequence[Material], points_on: PointsOn) -> Study:
    basis, profiler = _basis(request, materials), _kernel_profiler(request, materials)
    asides = [_Workload(m, request, points_on(m, basis), profiler) for m in materials]
    cases = [case for workload in asides for case in workload.cases()]
    whole = [case for case in cases if not case.lacking]
    row_axes, column_axes = _that_vary(request.rows, whole, keep=1), _that_vary(request.columns, whole, keep=0)
    lifted = _lifted(row_axes, whole)
    row_axes = row_axes[len(lifted) :]
    compare = next((m.layout.compare for m in materials if m.layout.compare), None)
    first = _any_split(materials, profiler)
    return Study(
        title=request.title,
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
    )


def _basis(request: _Request, materials: Sequence[Material]) -> Basis | None:
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


def _kernel_profiler(request: _Request, materials: Sequence[Material]) -> str | None:
    if request.profiler and request.profiler != "plain":
        return request.profiler
    return next((material.profiler for material in materials if material.profiler), None)


# --- the cases of a table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A case where the table puts it: ``at`` are its values on all axes, ``lacking`` the placed axes it has none on."""

    at: Mapping[str, Any]
    cells: Mapping[tuple[str, str], Cell]
    lacking: tuple[str, ...]
    is_baseline: bool


class _Workload:
    """The part of a table that one workload fills."""

    def __init__(
        self, material: Material, request: _Request, points: Mapping[str, Point], profiler: str | None
    ) -> None:
        self._material, self._request, self._points, self._profiler = material, request, points, profiler
        self._seen = {phase: _Seen.of(material, phase) for phase in request.phases}

    def cases(self) -> Iterator[_Case]:
        for point in self._points.values():
            at = self._at(point)
            if all(any(same(at.get(axis), value) for value in wanted) for axis, wanted in self._request.where.items()):
                cells = {
                    (phase, value.word): self._cell(point, value, phase)
                    for phase in self._request.phases
                    for value in self._request.values
                }
                yield _Case(self._named(point, at), cells, self._lacking(at), point.is_baseline)

    def _at(self, point: Point) -> dict[str, Any]:
        """Its parameters, and the metrics that the table takes for axes."""
        at: dict[str, Any] = {_WORKLOAD: self._material.name}
        at |= {axis: value if isinstance(value, Hashable) else shown(value) for axis, value in point.params.items()}
        for axis in (*self._request.placed, *self._request.where):
            if axis not in at and (number := self._number(point, axis)):
                at[axis] = int(number.value) if float(number.value).is_integer() else number.value
        return at

    def _named(self, point: Point, at: Mapping[str, Any]) -> dict[str, Any]:
        """The same with what only some cases set beside the compared value: ``sparge topk=0.5``."""
        compare, placed = self._material.layout.compare, self._request.placed
        extra = [f"{a}={shown(at[a])}" for a in self._material.layout.extra if a in at and a not in placed]
        if compare is None or compare not in at or not extra:
            return dict(at)
        return {**at, compare: " ".join([shown(at[compare]), *extra])}

    def _lacking(self, at: Mapping[str, Any]) -> tuple[str, ...]:
        """Metrics that stand for axes are missing where a case did not come so far as to write them."""
        known = {_VALUE, _PHASE, *self._material.layout.axes}
        return tuple(axis for axis in self._request.placed if axis not in at and axis not in known)

    # --- one value of one case ---------------------------------------------------------------------------------------

    def _cell(self, point: Point, value: Asked, phase: str) -> Cell:
        if value.of == "kernels":
            found, fate = self._of_kernels(point, value, phase)
            statuses = self._material.recorded.statuses.get(point.id, {})
            own = statuses.get(self._profiler or "", "ok")
            return Cell(found, "" if found is not None else fate or (own if own != "ok" else point.fate))
        if value.of == "call":
            # In a table once a case: its further numbers are of the same measurement.
            first = next(asked for asked in self._request.values if asked.of == "call")
            marks = point.own_marks if self._request.is_plot or value == first else ()
            return Cell(_of_call(point, value.subject), point.fate, marks)
        found = self._passed(point) if value.word == "passed" else self._metric(point, value)
        return Cell(found, "" if found is not None else point.fate)

    def _metric(self, point: Point, value: Asked) -> float | None:
        number = self._number(point, METRIC_OF.get(value.subject, value.subject))
        return number.value if number else None

    def _number(self, point: Point, metric: str) -> Number | None:
        return number_of(self._material.recorded, point.id, metric.removeprefix("metric."))

    def _passed(self, point: Point) -> str | None:
        """Whether its result is within the tolerance that the workload sets, where it was compared with a reference."""
        if point.accuracy is None or point.accuracy.mark == UNCHECKED:
            return None
        return "fail" if point.accuracy.mark else "pass"

    def _of_kernels(self, point: Point, value: Asked, phase: str) -> tuple[float | str | None, str]:
        """(what was seen, or None; why there is none, where that is known)."""
        split = self._material.splits.get(point.id, {}).get(self._profiler or "")
        if split is None:
            return None, ""
        key, runs = (point.id, split.profiler), split.iterations or 1
        seen = self._seen[phase]
        if value.subject == "range":
            own = seen.ranges.get(key)
            return (_of_range(own, value.figure, runs) if own else None), ""
        if (own_tally := seen.tallies.get(key)) is None:
            return None, ""
        if phase:
            narrowed = shares.split(split.profiler, own_tally, split.iterations, OwnRange())
            if narrowed is None:
                return None, ""
            split = narrowed
        if value.subject == "most_launched":
            return _most_launched(own_tally, value.figure, runs), ""
        if split.part("graph").ns and value.subject not in ("kernels", "graph"):
            return None, "inside CUDA graphs"
        if value.subject == "attention" and not split.fused and split.part("softmax").ns:
            return None, "unfused"
        return _of_split(split, value), ""


@dataclass(frozen=True)
class _Seen:
    """The kernels and ranges of a workload, those in one phase."""

    tallies: Mapping[Key, Tally]
    ranges: Mapping[Key, OwnRange]

    @classmethod
    def of(cls, material: Material, phase: str) -> _Seen:
        recorded = material.recorded
        if not phase:
            return cls(recorded.tallies, recorded.ranges)
        kernels, ranges = recorded.tables.kernels, recorded.tables.ranges
        inside = {path for path in kernels["phase"].unique() if _within(path, phase)}
        opened = {path for path in ranges["range"].unique() if _opens(path, phase)}
        return cls(
            tally(kernels[kernels["phase"].isin(inside)]),
            own_ranges(ranges[ranges["range"].isin(opened)].assign(range="")),
        )


def _within(path: str, phase: str) -> bool:
    """Whether the steps of ``phase`` are all in ``path``, in their order: ``forward > softmax`` is at any depth."""
    steps = iter(path.split(PATH_SEPARATOR))
    return all(wanted in steps for wanted in phase.split(PATH_SEPARATOR))


def _opens(path: str, phase: str) -> bool:
    """Whether ``path`` is the range itself, not one nested in it: its time would count twice."""
    return _within(path, phase) and not _within(path.rpartition(PATH_SEPARATOR)[0], phase)


def number_of(recorded: Recorded, case: str, metric: str) -> Number | None:
    """What `plain` and, where it is silent, another profiler's process recorded for the case itself."""
    for profiler in ("plain", *shares.PREFERENCE):
        number = recorded.numbers.get((case, profiler, ""), {}).get(metric)
        if number is not None and (profiler == "plain" or not metric.startswith(OF_ITS_PROCESS)):
            return number
    return None


def _of_call(point: Point, name: str) -> float | None:
    if point.time is None:
        return None
    per_s = 1e9 / point.time.ns if point.time.ns and point.time.n is not None else None
    # What a sparse implementation does not leave out of its `flops`.
    effective = point.values.get("flops_effective")
    return {
        "time": point.time.ns,
        "p10": point.time.p10,
        "p90": point.time.p90,
        "throughput": per_s,
        "tflops": point.tflops,
        "tflops_effective": effective * per_s / 1e12 if effective is not None and per_s else None,
        "bandwidth": point.gbytes_per_s,
        "speedup": point.speedup,
    }[name]


def _of_range(own: OwnRange, figure: str, runs: int) -> float | None:
    total = {"time": own.wall_ns, "busy": own.busy_ns, "calls": own.instances}[figure]
    return total / runs if total else None


def _of_split(split: Split, value: Asked) -> float | None:
    if value.subject == "kernels":
        part = split.total
    elif value.subject in PARTS:
        part = split.part(value.subject)
    else:
        part = split.classes.get(value.subject, shares.Part())
    return {"time": part.ns, "calls": part.calls, "share": part.ns / split.total.ns}[value.figure]


def _most_launched(own: Tally, figure: str, runs: int) -> float | str | None:
    """Of the kernel with the most launches, the one with the most time where several have as many."""
    sums: dict[str, tuple[float, float]] = {}
    for kernel, (calls, ns) in own.work.items():
        before = sums.get(kernel.name, (0.0, 0.0))
        sums[kernel.name] = before[0] + calls, before[1] + ns
    if not sums:
        return None
    name, (calls, ns) = max(sums.items(), key=lambda item: item[1])
    figures: dict[str, float | str] = {"name": name, "calls": calls / runs, "time": ns / runs}
    return figures.get(figure, ns / own.total_ns)


def _units(request: _Request, materials: Sequence[Material]) -> dict[str, str]:
    """The stored unit of each value; of a metric what its rows say."""
    units = {value.word: value.unit for value in request.values}
    for value in request.values:
        if value.of == "metric":
            of_cases = (number_of(m.recorded, case, value.subject) for m in materials for case in m.layout.params)
            units[value.word] = next((number.unit for number in of_cases if number), "")
    return units


# --- rows and columns ------------------------------------------------------------------------------------------------


def _that_vary(axes: Sequence[str], cases: Sequence[_Case], keep: int) -> tuple[str, ...]:
    """The axes with several values among ``cases``, and at least the first ``keep``."""
    varying = [a for a in axes if a in (_VALUE, _PHASE) or len({_key(case.at.get(a)) for case in cases}) > 1]
    return tuple(varying or axes[:keep])


def _key(value: Any) -> tuple[str, str]:
    return type(value).__name__, str(value)


def _fixed(request: _Request, materials: Sequence[Material], cases: Sequence[_Case], axes: Sequence[str]) -> Axes:
    """What all cells share: of the placed axes and those of `where` first, then what the pipeline file fixes."""
    named = dict.fromkeys([*request.placed, *request.where, *(a for m in materials for a, _ in m.layout.fixed)])
    found = []
    for axis in named:
        values = {_key(case.at.get(axis)): case.at.get(axis) for case in cases}
        if axis not in axes and axis not in (_VALUE, _PHASE, _WORKLOAD) and len(values) == 1:
            found.append((axis, next(iter(values.values()))))
    return tuple(found)


def _lifted(row_axes: Sequence[str], cases: Sequence[_Case]) -> tuple[str, ...]:
    """The leading axes of the rows that make tables of their own instead, where one table would be too long."""
    rows = {tuple(_key(case.at.get(axis)) for axis in row_axes) for case in cases}
    lifted: tuple[str, ...] = ()
    for depth, axis in enumerate(row_axes[:-1], 1):
        tables = {row[:depth] for row in rows}
        enough = len(rows) <= _ROWS * len({row[: len(lifted)] for row in rows})
        if enough or axis in (_VALUE, _PHASE) or len(tables) > _TABLES:
            break
        lifted = tuple(row_axes[:depth])
    return lifted


def _grids(
    request: _Request,
    cases: Sequence[_Case],
    row_axes: Sequence[str],
    column_axes: Sequence[str],
    lifted: Sequence[str],
) -> Iterator[Grid]:
    """A grid for each combination of the lifted axes, and of those that would else put two cases in a cell."""
    left = (*lifted, *_left_over(request, cases, (*lifted, *row_axes, *column_axes)))
    groups: dict[tuple[Any, ...], list[_Case]] = {}
    for case in cases:
        groups.setdefault(tuple(case.at.get(axis) for axis in left), []).append(case)
    made = [
        _grid(request, tuple(zip(left, others, strict=True)), own, row_axes, column_axes)
        for others, own in groups.items()
    ]
    yield from sorted(made, key=lambda grid: -_size(grid.others))


def _size(others: Axes) -> float:
    return math.prod((value for _, value in others if is_number(value)), start=1.0)


def _left_over(request: _Request, cases: Sequence[_Case], axes: Sequence[str]) -> tuple[str, ...]:
    """The axes in which cases differ that would share a cell."""
    cells: dict[tuple[Any, ...], list[_Case]] = {}
    for case in cases:
        cells.setdefault(tuple(_key(case.at.get(axis)) for axis in axes), []).append(case)
    differing: dict[str, None] = {}
    for own in cells.values():
        if len(own) > 1:
            every = dict.fromkeys(axis for case in own for axis in case.at)
            differing |= dict.fromkeys(a for a in every if len({_key(case.at.get(a)) for case in own}) > 1)
    return tuple(differing)


def _grid(
    request: _Request, others: Axes, cases: Sequence[_Case], row_axes: Sequence[str], column_axes: Sequence[str]
) -> Grid:
    spots: dict[tuple[tuple[Any, ...], tuple[Any, ...]], Cell] = {}
    for case in cases:
        for (phase, word), cell in case.cells.items():
            at = {**case.at, _PHASE: phase, _VALUE: word}
            spots[tuple(at.get(a) for a in row_axes), tuple(at.get(a) for a in column_axes)] = cell
    words = {_VALUE: [value.word for value in request.values], _PHASE: list(request.phases)}
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
