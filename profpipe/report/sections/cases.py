"""Every number of each case: times by shape, rates, memory, error, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profpipe.analysis.cases import in_words, running_axis, shown, without
from profpipe.analysis.findings.workloads import Axes, CaseResult, Shape, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.job import Status
from profpipe.measure.flags import Flag
from profpipe.report import document as doc, selection
from profpipe.report.labels import DENSE_WORK, case_text, fill, plural, share_cell, variant_text
from profpipe.report.units import MISSING, NO_CASE, Unit, size_unit, time_unit

#: Columns of a table of times; more are plotted, and listed by case.
_MOST_COLUMNS = 10

_MHZ, _WATT, _CELSIUS = Unit("MHz", 1e6), Unit("W", 1.0), Unit("degC", 1.0)

_POWER_LAG = "Power is read with a delay of 100 ms or more: a short case shows the load of the case before it."


def cases(workload: WorkloadFindings, part: WorkloadFindings) -> doc.Section:
    """Return times and TFLOP/s by shape, then every number of each case of ``part``, the shapes shown in full."""
    tables = list(by_shape(workload))
    timed = [case for shape in part.shapes for case in shape.timed]
    if timed and (workload.basis is None or workload.basis.is_timed or len(workload.cases) > 1):
        shapes = "" if part is workload else f" of {plural(len(part.shapes), 'shape')}"
        tables.append(by_case(workload, timed, f"every number{shapes} by case"))
    has_power = any(column.id == "power" for table in tables for column in table.columns)
    notes = (DENSE_WORK if any(case.is_sparse for case in workload.cases) else "", _POWER_LAG if has_power else "")
    blocks: list[doc.Block] = [*(doc.Paragraph(note, doc.Placement.DETAILS) for note in notes), *tables]
    return doc.make_section("cases", "Times, rates, memory and error by case", blocks, workload=workload.name)


def by_shape(workload: WorkloadFindings) -> Iterator[doc.Table]:
    """Yield tables with implementations as rows and the running axis as columns; the largest shape's group first.

    Each combination of the other axes has a table of times and, where FLOPs are known, one of TFLOP/s.
    """
    axis = running_axis(shape.axes for shape in workload.shapes)
    if axis is None or not workload.compare:
        return
    groups = grouped((without(shape.axes, axis), shape) for shape in workload.shapes)
    if max(map(len, groups.values())) > _MOST_COLUMNS:
        return
    first = without(workload.largest.axes, axis) if workload.largest else ()
    for others in sorted(selection.groups(workload, axis), key=lambda others: others != first):
        shapes = groups[others]
        yield _by_shape(workload, axis, shapes, "time", others)
        if any(case.tflops for shape in shapes for case in shape.cases):
            yield _by_shape(workload, axis, shapes, "TFLOP/s", others)


def _by_shape(workload: WorkloadFindings, axis: str, shapes: Sequence[Shape], quantity: str, others: Axes) -> doc.Table:
    is_time = quantity == "time"
    columns = [doc.label("variant", workload.compare or "")]
    for i, shape in enumerate(shapes):
        value = shown(dict(shape.axes)[axis])
        unit = time_unit(case.time.ns for case in shape.timed if case.time) if is_time else None
        columns.append(doc.Column(value, f"{'' if i else f'{axis} '}{value}{':' if is_time else ''}", unit))
    cases_of = [{case.variant: case for case in shape.cases} for shape in shapes]
    rows: list[tuple[doc.Cell, ...]] = []
    for variant in workload.variants:
        own = [cases.get(variant) for cases in cases_of]
        # The list of skipped cases says why a variant was skipped in all shapes.
        if any(case is not None and case.outcome != Status.SKIPPED for case in own):
            name = "{} (baseline)" if any(case and case.is_baseline for case in own) else "{}"
            cells = (_time_cell(case, shape, is_time) for case, shape in zip(own, shapes, strict=True))
            rows.append((doc.Cell(text=fill(name, doc.Code(variant))), *cells))
    title = ", ".join(filter(None, [quantity, in_words(others)]))
    return doc.Table(title, tuple(columns), tuple(rows), title, doc.Placement.DETAILS)


def _time_cell(case: CaseResult | None, shape: Shape, is_time: bool) -> doc.Cell:
    if case is None:
        return doc.Cell(missing=NO_CASE)
    if case.time is None:
        return doc.Cell(text=str(case.outcome) or MISSING)
    is_fastest = shape.fastest is not None and case.id == shape.fastest.id
    value = case.time.ns if is_time else case.tflops
    return doc.Cell(value, flags=case.unshared_marks, is_strong=is_fastest, missing="" if value else MISSING)


def by_case(workload: WorkloadFindings, cases: Sequence[CaseResult], title: doc.Text = "") -> doc.Table:
    """Return a row for each timed case: time, spread, rates, memory, error, clock, power, flags."""
    timed = [case for case in cases if case.time]
    unit = time_unit(case.ns for case in timed)
    memory = size_unit(case.values.get("peak_allocated") for case in timed)
    host = size_unit(case.values.get("peak_host") for case in timed)
    counts = {case.time.n for case in timed if case.time}
    has_counts = len(timed) == 1 or len(counts) > 1
    counted = "samples" if workload.basis is None or workload.basis.is_timed else "iterations"
    quantities: doc.Columns[CaseResult] = [
        (doc.Column("time", "time", unit), lambda c: c.ns),
        (doc.Column("interval", "95 % interval"), lambda c: _range(c, unit, "ci_low", "ci_high")),
        (doc.Column("range", "min to max"), lambda c: _range(c, unit, "lowest", "highest")),
        (doc.Column("spread", "p10 to p90"), lambda c: _range(c, unit, "p10", "p90")),
        (doc.count("samples", counted), lambda c: c.time.n if c.time and has_counts else None),
        (doc.ratio("speedup", "over baseline"), lambda c: c.speedup),
        (doc.Column("tflops", "TFLOP/s"), lambda c: c.tflops),
        (doc.Column("tflops_done", "effective TFLOP/s"), lambda c: c.tflops_done if c.is_sparse else None),
        (doc.Column("tflops_best", "TFLOP/s at min"), lambda c: c.tflops_best),
        (doc.Column("flops_share", "% of peak"), lambda c: _peak_share(c.of_peak_flops)),
        (doc.Column("gbytes_per_s", "GB/s"), lambda c: c.gbytes_per_s),
        (doc.Column("bandwidth_share", "% of bandwidth"), lambda c: _peak_share(c.of_peak_bytes)),
        (doc.Column("peak_allocated", "peak memory", memory), lambda c: c.values.get("peak_allocated")),
        (doc.Column("peak_host", "peak memory of the host", host), lambda c: c.values.get("peak_host")),
        (doc.Column("error_max", "max error of output"), lambda c: c.values.get("error_max")),
        (doc.Column("error_mean", "mean error of output"), lambda c: c.values.get("error_mean")),
        (doc.Column("graph", "as CUDA graph", unit), lambda c: c.values.get("time_cuda_graph")),
        (doc.Column("clock", "SM clock", _MHZ), _clock),
        (doc.Column("power", "power", _WATT), lambda c: c.values.get("power")),
        (doc.Column("temperature", "temperature", _CELSIUS), lambda c: c.values.get("temperature")),
    ]
    axes = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    labels = [doc.label(axis) for axis in axes]
    columns = [*labels, *(column for column, _ in quantities), doc.words("flags")]
    rows = [
        (*_labels(case, workload), *(value(case) for _, value in quantities), ", ".join(case.unshared_marks))
        for case in timed
    ]
    return doc.make_table("cases", columns, rows, title, doc.Placement.DETAILS)


def _range(case: CaseResult, unit: Unit, *ends: str) -> str | None:
    low, high = (getattr(case.time, end) for end in ends)
    return None if low is None or high is None else f"{unit.of(low)} to {unit.of(high)}"


def _peak_share(share: float | None) -> doc.Cell | None:
    """Return a share of a peak; above the peak the number is wrong, so it is flagged."""
    return share_cell(share, Flag.ABOVE_PEAK if share and share > 1 else None)


def _clock(case: CaseResult) -> doc.Cell | None:
    """Return the median SM clock in Hz, and its range where it moved by more than 5 % or explains a flag."""
    clock, low, high = (case.values.get(f"sm_clock{end}") for end in ("", "_min", "_max"))
    if clock is None:
        return None
    moved = low and high and high > low and (Flag.THROTTLED in case.marks or high - low > 0.05 * high)
    return doc.Cell(clock, note=f"({low / 1e6:.0f} to {high / 1e6:.0f})" if moved and low and high else "")


def _labels(case: CaseResult, workload: WorkloadFindings) -> list[doc.Text]:
    labels: list[doc.Text] = [shown(value) for _, value in case.shape]
    if workload.compare:
        labels.append(fill("{} (baseline)" if case.is_baseline else "{}", variant_text(case)))
    return labels or [case_text(case)]
