"""Every number of each case: times by shape, rates, memory, error, clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from profpipe.analysis.cases import in_words, running_axis, shown, without
from profpipe.analysis.findings.workloads import Axes, CaseResult, Shape, WorkloadFindings
from profpipe.job import Status
from profpipe.measure.flags import Flag
from profpipe.report import selection
from profpipe.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Format,
    Missing,
    Paragraph,
    Placement,
    Section,
    Table,
    Text,
    cell,
    make_table,
)
from profpipe.report.inlines import fill, plural, share_cell
from profpipe.report.labels import DENSE_WORK, case_text
from profpipe.report.units import MISSING, Unit, size_unit, time_unit

#: Columns of a table of times; more are plotted, and listed by case.
_MOST_COLUMNS = 10

_MHZ = Unit("MHz", 1e6)

_POWER_LAG = "Power (W) is read with a delay of 100 ms or more: a short case shows the load of the case before it."

_Value: TypeAlias = "Cell | Text | float | None"


def cases(workload: WorkloadFindings, part: WorkloadFindings) -> Section:
    """Return times and TFLOP/s by shape, then every number of each case of ``part``, the shapes shown in full."""
    tables = list(by_shape(workload))
    timed = [case for shape in part.shapes for case in shape.timed]
    if timed and (workload.basis is None or workload.basis.is_timed or len(workload.cases) > 1):
        shapes = "" if part is workload else f" of {plural(len(part.shapes), 'shape')}"
        tables.append(by_case(workload, timed, f"every number{shapes} by case"))
    notes: list[Block] = []
    if any(case.is_sparse for case in workload.cases):
        notes.append(Paragraph(DENSE_WORK, Placement.DETAILS))
    if any(column.id == "power" for table in tables for column in table.columns):
        notes.append(Paragraph(_POWER_LAG, Placement.DETAILS))
    return Section("cases", "Times, rates, memory and error by case", (*notes, *tables), workload=workload.name)


def by_shape(workload: WorkloadFindings) -> Iterator[Table]:
    """Yield tables with implementations as rows and the running axis as columns; the largest shape's group first.

    Each combination of the other axes has a table of times and, where FLOPs are known, one of TFLOP/s.
    """
    axis = running_axis(shape.axes for shape in workload.shapes)
    if axis is None or not workload.compare:
        return
    groups: dict[Axes, list[Shape]] = {}
    for shape in workload.shapes:
        groups.setdefault(without(shape.axes, axis), []).append(shape)
    if max(map(len, groups.values())) > _MOST_COLUMNS:
        return
    first = without(workload.largest.axes, axis) if workload.largest else ()
    for others in sorted(selection.groups(workload, axis), key=lambda others: others != first):
        shapes = groups[others]
        yield _by_shape(workload, axis, shapes, "time", others)
        if any(case.tflops for shape in shapes for case in shape.cases):
            yield _by_shape(workload, axis, shapes, "TFLOP/s", others)


def _by_shape(workload: WorkloadFindings, axis: str, shapes: Sequence[Shape], quantity: str, others: Axes) -> Table:
    is_time = quantity == "time"
    columns = [Column("variant", workload.compare or "", is_label=True)]
    for i, shape in enumerate(shapes):
        value = shown(dict(shape.axes)[axis])
        unit = time_unit(case.time.ns for case in shape.timed if case.time) if is_time else None
        columns.append(Column(value, f"{'' if i else f'{axis} '}{value}{':' if is_time else ''}", unit))
    cases_of = [{case.variant: case for case in shape.cases} for shape in shapes]
    rows: list[tuple[_Value, ...]] = []
    for variant in workload.variants:
        own = [cases.get(variant) for cases in cases_of]
        # The list of skipped cases says why a variant was skipped in all shapes.
        if all(case is None or case.outcome == Status.SKIPPED for case in own):
            continue
        name = "{} (baseline)" if any(case and case.is_baseline for case in own) else "{}"
        cells = [_time_cell(case, shape, is_time) for case, shape in zip(own, shapes, strict=True)]
        rows.append((fill(name, Code(variant)), *cells))
    title = ", ".join(filter(None, [quantity, in_words(others)]))
    return Table(title, tuple(columns), tuple(tuple(map(cell, row)) for row in rows), title, Placement.DETAILS)


def _time_cell(case: CaseResult | None, shape: Shape, is_time: bool) -> Cell:
    if case is None:
        return Cell(missing=Missing.NOT_REQUESTED)
    if case.time is None:
        return Cell(text=str(case.outcome) or MISSING)
    is_fastest = shape.fastest is not None and case.id == shape.fastest.id
    value = case.time.ns if is_time else case.tflops
    return Cell(value, flags=case.unshared_marks, is_strong=is_fastest, missing=None if value else Missing.NOT_MEASURED)


def by_case(workload: WorkloadFindings, cases: Sequence[CaseResult], title: Text = "") -> Table:
    """Return a row for each timed case: time, spread, rates, memory, error, clock, power, flags."""
    timed = [case for case in cases if case.time]
    unit = time_unit(case.time.ns for case in timed if case.time)
    memory = size_unit(case.values.get("peak_allocated") for case in timed)
    counts = {case.time.n for case in timed if case.time}
    has_counts = len(timed) == 1 or len(counts) > 1
    counted = "samples" if workload.basis is None or workload.basis.is_timed else "iterations"
    quantities: list[tuple[Column, Callable[[CaseResult], _Value]]] = [
        (Column("time", "time", unit), lambda c: c.time.ns if c.time else None),
        (
            Column("interval", "95 % interval"),
            lambda c: _range(unit, c.time.ci_low, c.time.ci_high) if c.time else None,
        ),
        (Column("spread", "p10 to p90"), lambda c: _range(unit, c.time.p10, c.time.p90) if c.time else None),
        (Column("samples", counted, format=Format.COUNT), lambda c: c.time.n if c.time and has_counts else None),
        (Column("speedup", "over baseline", format=Format.RATIO), lambda c: c.speedup),
        (Column("tflops", "TFLOP/s"), lambda c: c.tflops),
        (Column("tflops_done", "effective TFLOP/s"), lambda c: c.tflops_done if c.is_sparse else None),
        (Column("flops_share", "% of peak"), lambda c: _peak_share(c.of_peak_flops)),
        (Column("gbytes_per_s", "GB/s"), lambda c: c.gbytes_per_s),
        (Column("bandwidth_share", "% of bandwidth"), lambda c: _peak_share(c.of_peak_bytes)),
        (Column("peak_allocated", "peak", memory), lambda c: c.values.get("peak_allocated")),
        (Column("error_max", "max error of output"), lambda c: c.values.get("error_max")),
        (Column("error_mean", "mean error of output"), lambda c: c.values.get("error_mean")),
        (Column("graph", "as CUDA graph", unit), lambda c: c.values.get("time_cuda_graph")),
        (Column("clock", "SM", _MHZ), _clock),
        (Column("power", "W"), lambda c: c.values.get("power")),
        (Column("temperature", "degC"), lambda c: c.values.get("temperature")),
    ]
    axes = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    labels = [Column(axis, axis, is_label=True) for axis in axes]
    columns = [*labels, *(column for column, _ in quantities), Column("flags", "flags", is_label=True)]
    rows = [
        (*_labels(case, workload), *(value(case) for _, value in quantities), ", ".join(case.unshared_marks))
        for case in timed
    ]
    table = make_table("cases", columns, rows, title, Placement.DETAILS)
    return table if any(row[-1].text for row in table.rows) else table.without("flags")


def _range(unit: Unit, low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{unit.of(low)} to {unit.of(high)}"


def _peak_share(share: float | None) -> Cell | None:
    """Return a share of a peak; above the peak the number is wrong, so it is flagged."""
    return share_cell(share, Flag.ABOVE_PEAK if share and share > 1 else None)


def _clock(case: CaseResult) -> Cell | None:
    """Return the median SM clock in Hz, and its range where it moved by more than 5 % or explains a flag."""
    clock, low, high = (case.values.get(f"sm_clock{end}") for end in ("", "_min", "_max"))
    if clock is None:
        return None
    moved = low and high and high > low and (Flag.THROTTLED in case.marks or high - low > 0.05 * high)
    return Cell(clock, note=f"({low / 1e6:.0f} to {high / 1e6:.0f})" if moved and low and high else "")


def _labels(case: CaseResult, workload: WorkloadFindings) -> list[Text]:
    labels: list[Text] = [shown(value) for _, value in case.shape]
    if workload.compare:
        labels.append(fill("{} (baseline)" if case.is_baseline else "{}", Code(case.variant)))
    return labels or [case_text(case)]
