"""The cases of a study's table or plot: where each stands on its axes, and every value that is asked of it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from profpipe.analysis import by_rank, shares
from profpipe.analysis.recorded import OF_ITS_PROCESS, Number, Recorded
from profpipe.analysis.tallies import Key, OwnRange, Tally, rows, tally
from profpipe.asked import METRIC_OF, PARTS, Asked, asked
from profpipe.findings import Basis, Point, Split
from profpipe.points import Layout, same, shown
from profpipe.study_findings import BASELINE, Cell
from profpipe.tables import PATH_SEPARATOR
from profpipe.tolerance import UNCHECKED

#: What stands among axes and is none.
VALUE, PHASE, WORKLOAD = "value", "phase", "workload"


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


@dataclass(frozen=True)
class Request:
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
    note: str = ""
    first: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Request:
        """What run.json says. Several values, or phases, become columns where they are given no place."""
        rows = list(entry["rows"]) if "rows" in entry else [entry["over"]]
        columns = list(entry.get("columns") or entry.get("lines") or ())
        values, phases = list(entry["value"]), list(entry.get("phase") or ())
        for axis, several in ((PHASE, phases), (VALUE, values)):
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
            note=str(entry.get("note") or ""),
            first=bool(entry.get("first")),
        )

    @property
    def placed(self) -> tuple[str, ...]:
        return (*self.rows, *self.columns)


@dataclass(frozen=True)
class Case:
    """A case where the table puts it: ``at`` are its values on all axes, ``lacking`` the placed axes it has none on."""

    at: Mapping[str, Any]
    cells: Mapping[tuple[str, str], Cell]
    lacking: tuple[str, ...]
    is_baseline: bool
    is_sparse: bool = False


class CasesOf:
    """The part of a table that one workload fills."""

    def __init__(self, material: Material, request: Request, points: Mapping[str, Point], profiler: str | None) -> None:
        self._material, self._request, self._points, self._profiler = material, request, points, profiler
        self._seen = {phase: _Seen.of(material, phase) for phase in request.phases}

    def cases(self) -> Iterator[Case]:
        for point in self._points.values():
            at = self._at(point)
            if all(any(same(at.get(axis), value) for value in wanted) for axis, wanted in self._request.where.items()):
                cells = {
                    (phase, value.word): self._cell(point, value, phase)
                    for phase in self._request.phases
                    for value in self._request.values
                }
                yield Case(self._named(point, at), cells, self._lacking(at), point.is_baseline, point.is_sparse)

    def _at(self, point: Point) -> dict[str, Any]:
        """Its parameters, and the metrics that the table takes for axes."""
        at: dict[str, Any] = {WORKLOAD: self._material.name}
        at |= {axis: value if isinstance(value, Hashable) else shown(value) for axis, value in point.params.items()}
        for axis in (*self._request.placed, *self._request.where):
            if axis not in at and (number := self._number(point, axis)):
                at[axis] = int(number.value) if float(number.value).is_integer() else number.value
        return at

    def _named(self, point: Point, at: Mapping[str, Any]) -> dict[str, Any]:
        """The same with what only some cases set beside the compared value: ``sparge topk=0.5``."""
        compare = self._material.layout.compare
        extra = self._material.layout.options(at, besides=self._request.placed)
        if compare is None or compare not in at or not extra:
            return dict(at)
        return {**at, compare: " ".join([shown(at[compare]), *extra])}

    def _lacking(self, at: Mapping[str, Any]) -> tuple[str, ...]:
        """Metrics that stand for axes are missing where a case did not come so far as to write them."""
        known = {VALUE, PHASE, *self._material.layout.axes}
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
            marks = point.marks if self._request.is_plot or value == first else ()
            found = _of_call(point, value.subject)
            return Cell(found, _without(point, value.subject) if found is None else point.fate, marks)
        found = self._passed(point) if value.word == "passed" else self._metric(point, value)
        return Cell(found, "" if found is not None else _without(point, value.word) or self._stopped(point))

    def _stopped(self, point: Point) -> str:
        """What became of a case whose time another profiler has, where a metric of its own is recorded."""
        status = self._material.recorded.statuses.get(point.id, {}).get("plain", "ok")
        return "" if status == "ok" else status

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
    """The kernels and ranges of a workload, those in one phase: (instances, wall ns, busy ns) of a range, over all."""

    tallies: Mapping[Key, Tally]
    ranges: Mapping[Key, tuple[float, ...]]

    @classmethod
    def of(cls, material: Material, phase: str) -> _Seen:
        recorded = material.recorded
        kernels, ranges = recorded.tables.kernels, recorded.tables.ranges
        opened = {path for path in ranges["range"].unique() if (_opens(path, phase) if phase else not path)}
        found: dict[Key, tuple[float, ...]] = {}
        names = ("case", "profiler", "instances", "wall_ns", "busy_ns")
        for case, profiler, *figures in rows(ranges[ranges["range"].isin(opened)], *names):
            # Of several processes, and of several ranges of that name, the sum: missing where one of them is.
            before = found.get((case, profiler), (0.0, 0.0, 0.0))
            known = (math.nan if pd.isna(figure) else float(figure) for figure in figures)
            found[case, profiler] = tuple(map(sum, zip(before, known, strict=True)))
        if not phase:
            return cls(recorded.tallies, found)
        inside = {path for path in kernels["phase"].unique() if _within(path, phase)}
        return cls(tally(kernels[kernels["phase"].isin(inside)]), found)


def _within(path: str, phase: str) -> bool:
    """Whether the steps of ``phase`` are all in ``path``, in their order: ``forward > softmax`` is at any depth."""
    steps = iter(path.split(PATH_SEPARATOR))
    return all(wanted in steps for wanted in phase.split(PATH_SEPARATOR))


def _opens(path: str, phase: str) -> bool:
    """Whether ``path`` is the range itself, not one nested in it: its time would count twice."""
    return _within(path, phase) and not _within(path.rpartition(PATH_SEPARATOR)[0], phase)


def number_of(recorded: Recorded, case: str, metric: str) -> Number | None:
    """What `plain` and, where it is silent, another profiler's process recorded for the case itself.

    Of errors and memory of several processes it is the worst.
    """
    for profiler in ("plain", *shares.PREFERENCE):
        number = recorded.numbers.get((case, profiler, ""), {}).get(metric)
        if number is not None and (not metric.startswith(OF_ITS_PROCESS) or profiler == _only(recorded, metric)):
            worst = by_rank.worst(recorded, case).get(metric) if profiler == "plain" else None
            return number if worst is None else replace(number, value=worst)
    return None


def _only(recorded: Recorded, metric: str) -> str | None:
    """Whose ``metric`` stands for all cases: that of `plain`, else of the first profiler that recorded any."""
    known = recorded.recorders.get(metric, ())
    return next((profiler for profiler in ("plain", *shares.PREFERENCE) if profiler in known), None)


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


def _without(point: Point, name: str) -> str:
    """Why a case has no such value: what became of it, or of its comparison with the reference."""
    if name in ("speedup", "passed") and point.barred and point.accuracy is not None:
        return point.accuracy.mark
    if name == "speedup" and point.baseline_mark and not point.fate:
        return f"{BASELINE} {point.baseline_mark}"
    return point.fate


def _of_range(own: tuple[float, ...], figure: str, runs: int) -> float | None:
    total = dict(zip(("calls", "time", "busy"), own, strict=True))[figure]
    return None if math.isnan(total) else total / runs


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
