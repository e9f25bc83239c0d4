"""Every number of each case: times by shape, rates, memory, clocks, errors and their tolerance, and targets."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from profpipe.analysis.cases import Axes, in_words, running_axis, without
from profpipe.analysis.findings import CaseResult, Shape, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.config.quantities import Grade
from profpipe.job import Status, as_text
from profpipe.measure.flags import Flag
from profpipe.measure.tolerance import MEASURES, TENSORS, bound, cosine, limit_of, parts
from profpipe.report import document as doc, selection
from profpipe.report.labels import DENSE_WORK, case_text, fill, plural, share_cell, variant_text
from profpipe.report.selection import main_cases
from profpipe.report.units import MISSING, NO_CASE, RATIO, Unit, size_unit, time_unit

#: Columns of a table of times; more are plotted, and listed by case.
_MOST_COLUMNS = 10

_MHZ, _WATT, _CELSIUS = Unit("MHz", 1e6), Unit("W", 1.0), Unit("degC", 1.0)

_POWER_LAG = "Power is read with a delay of 100 ms or more: a short case shows the load of the case before it."


def cases(workload: WorkloadFindings, part: WorkloadFindings) -> doc.Section:
    """Return times and TFLOP/s by shape, then every number of each case of ``part``, the shapes shown in full."""
    tables = list(make_shape_tables(workload))
    timed = [case for shape in part.shapes for case in shape.timed]
    if timed and (workload.time_source is None or workload.time_source.is_timed or len(workload.cases) > 1):
        shapes = "" if part is workload else f" of {plural(len(part.shapes), 'shape')}"
        tables.append(make_case_table(workload, timed, f"every number{shapes} by case"))
    has_power = any(column.id == "power" for table in tables for column in table.columns)
    notes = (DENSE_WORK if any(case.is_sparse for case in workload.cases) else "", _POWER_LAG if has_power else "")
    blocks: list[doc.Block] = [*(doc.Paragraph(note, doc.OnPage.DETAILS) for note in notes), *tables]
    return doc.make_section("cases", "Times, rates, memory and error by case", blocks, workload=workload.name)


def make_shape_tables(workload: WorkloadFindings) -> Iterator[doc.TableBlock]:
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
        yield _make_shape_table(workload, axis, shapes, "time", others)
        if any(case.tflops for shape in shapes for case in shape.cases):
            yield _make_shape_table(workload, axis, shapes, "TFLOP/s", others)


def _make_shape_table(
    workload: WorkloadFindings, axis: str, shapes: Sequence[Shape], quantity: str, others: Axes
) -> doc.TableBlock:
    is_time = quantity == "time"
    columns = [doc.label("variant", workload.compare or "")]
    for i, shape in enumerate(shapes):
        value = as_text(dict(shape.axes)[axis])
        unit = time_unit(case.time.ns for case in shape.timed if case.time) if is_time else None
        columns.append(doc.number(value, f"{'' if i else f'{axis} '}{value}{':' if is_time else ''}", unit))
    cases_of = [{case.variant: case for case in shape.cases} for shape in shapes]
    rows: list[tuple[doc.TableCell, ...]] = []
    for variant in workload.variants:
        variant_cases = [cases.get(variant) for cases in cases_of]
        # The list of skipped cases says why a variant was skipped in all shapes.
        if any(case is not None and case.status != Status.SKIPPED for case in variant_cases):
            name = "{} (baseline)" if any(case and case.is_baseline for case in variant_cases) else "{}"
            cells = (_time_cell(case, shape, is_time) for case, shape in zip(variant_cases, shapes, strict=True))
            rows.append((doc.TableCell(text=fill(name, doc.Code(variant))), *cells))
    title = ", ".join(filter(None, [quantity, in_words(others)]))
    return doc.TableBlock(title, tuple(columns), tuple(rows), title, doc.OnPage.DETAILS)


def _time_cell(case: CaseResult | None, shape: Shape, is_time: bool) -> doc.TableCell:
    if case is None:
        return doc.TableCell(missing=NO_CASE)
    if case.time is None:
        return doc.TableCell(text=str(case.status) or MISSING)
    is_fastest = shape.fastest is not None and case.id == shape.fastest.id
    value = case.time.ns if is_time else case.tflops
    return doc.TableCell(value, flags=case.unshared_flags, is_strong=is_fastest, missing="" if value else MISSING)


def make_case_table(workload: WorkloadFindings, cases: Sequence[CaseResult], title: doc.Text = "") -> doc.TableBlock:
    """Return a row per timed case: time, spread, rates, memory, error, clock, power, flags."""
    timed = [case for case in cases if case.time]
    unit = time_unit(case.ns for case in timed)
    memory = size_unit(case.values.get("peak_allocated") for case in timed)
    host = size_unit(case.values.get("peak_host") for case in timed)
    counts = {case.time.n for case in timed if case.time}
    has_counts = len(timed) == 1 or len(counts) > 1
    counted = "samples" if workload.time_source is None or workload.time_source.is_timed else "iterations"
    quantities: doc.Columns[CaseResult] = [
        (doc.number("time", "time", unit), lambda c: c.ns),
        (doc.number("interval", "95 % interval"), lambda c: _range(c, unit, "ci_low", "ci_high")),
        (doc.number("range", "min to max"), lambda c: _range(c, unit, "lowest", "highest")),
        (doc.number("spread", "p10 to p90"), lambda c: _range(c, unit, "p10", "p90")),
        (doc.count("samples", counted), lambda c: c.time.n if c.time and has_counts else None),
        (doc.ratio("speedup", "over baseline"), lambda c: c.speedup),
        (doc.number("tflops", "TFLOP/s"), lambda c: c.tflops),
        (doc.number("tflops_done", "effective TFLOP/s"), lambda c: c.tflops_done if c.is_sparse else None),
        (doc.number("tflops_best", "TFLOP/s at min"), lambda c: c.tflops_best),
        (doc.number("flops_share", "% of peak"), lambda c: _peak_share(c.of_peak_flops)),
        (doc.number("gbytes_per_s", "GB/s"), lambda c: c.gbytes_per_s),
        (doc.number("bandwidth_share", "% of bandwidth"), lambda c: _peak_share(c.of_peak_bytes)),
        (doc.number("peak_allocated", "peak memory", memory), lambda c: c.values.get("peak_allocated")),
        (doc.number("peak_host", "peak memory of the host", host), lambda c: c.values.get("peak_host")),
        (doc.number("error_max", "max error of output"), lambda c: c.values.get("error_max")),
        (doc.number("error_mean", "mean error of output"), lambda c: c.values.get("error_mean")),
        (doc.number("graph", "as CUDA graph", unit), lambda c: c.values.get("time_cuda_graph")),
        (doc.number("clock", "SM clock", _MHZ), _clock),
        (doc.number("power", "power", _WATT), lambda c: c.values.get("power")),
        (doc.number("temperature", "temperature", _CELSIUS), lambda c: c.values.get("temperature")),
    ]
    axes = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    labels = [doc.label(axis) for axis in axes]
    columns = [*labels, *(column for column, _ in quantities), doc.words("flags")]
    rows = [
        (*_labels(case, workload), *(value(case) for _, value in quantities), ", ".join(case.unshared_flags))
        for case in timed
    ]
    return doc.make_table("cases", columns, rows, title, doc.OnPage.DETAILS)


def _range(case: CaseResult, unit: Unit, *ends: str) -> str | None:
    low, high = (getattr(case.time, end) for end in ends)
    return None if low is None or high is None else f"{unit.of(low)} to {unit.of(high)}"


def _peak_share(share: float | None) -> doc.TableCell | None:
    """Return a share of a peak; above the peak the number is wrong, so it is flagged."""
    return share_cell(share, Flag.ABOVE_PEAK if share and share > 1 else None)


def _clock(case: CaseResult) -> doc.TableCell | None:
    """Return the median SM clock in Hz, and its range where it moved by more than 5 % or explains a flag."""
    clock, low, high = (case.values.get(f"sm_clock{end}") for end in ("", "_min", "_max"))
    if clock is None:
        return None
    moved = low and high and high > low and (Flag.THROTTLED in case.flags or high - low > 0.05 * high)
    return doc.TableCell(clock, note=f"({low / 1e6:.0f} to {high / 1e6:.0f})" if moved and low and high else "")


def _labels(case: CaseResult, workload: WorkloadFindings) -> list[doc.Text]:
    labels: list[doc.Text] = [as_text(value) for _, value in case.shape]
    if workload.compare:
        labels.append(fill("{} (baseline)" if case.is_baseline else "{}", variant_text(case)))
    return labels or [case_text(case)]


# --- accuracy ---------------------------------------------------------------------------------------------------------

_TITLES = {
    "error_max": "max error", "error_mean": "mean error", "error_rel_l1": "relative L1", "error_rmse": "RMSE",
    "cosine": "cosine",
}  # fmt: skip
_NAMES = {"out": "out", "dq": "dQ", "dk": "dK", "dv": "dV"}

#: By dtype the relative L1 that rounding leaves between two orders of summation: on an H200, with 1024 and 4096 tokens,
#: seven implementations in fp32 are 1e-7 to 1.6e-6 from a reference in fp32.
_ROUNDING = {"fp32": "1e-6"}

#: Cases outside the tolerance that a sentence names; more are counted.
_NAMED = 4

#: Rows from which on a case has one, its worst tensor, where all are within the tolerance.
_MANY = 30

#: The largest error of a shape is worth the short page if it is this many times the smallest one.
_VARIES = 2.0

#: A case, its tensor ("" where none was compared), and the measures of the tensor by their name.
_Row = tuple[CaseResult, str, Mapping[str, float]]


def accuracy(workload: WorkloadFindings) -> doc.Section:
    """Return the errors of each case; empty where there are no more than the errors that stand with the times.

    The short page has them where a case misses the tolerance, or where errors differ between cases.
    """
    judged = [case.accuracy.flag for case in workload.cases if case.accuracy is not None]
    # Where nothing was compared, the flags of the times say so.
    is_unchecked = set(judged) == {Flag.UNCHECKED}
    if is_unchecked or not (workload.tolerance or any("error_rel_l1" in case.values for case in workload.cases)):
        return doc.Section("accuracy", "", workload=workload.name)
    largest, others = main_cases(workload)
    case_errors = [
        error for case in largest if (error := case.values.get("error_rel_l1", case.values.get("error_max")))
    ]
    varies = max(case_errors, default=0.0) > _VARIES * min(case_errors, default=0.0)
    is_notable = varies or any(case.is_disqualified for case in workload.cases)
    placement = doc.OnPage.SUMMARY if is_notable else doc.OnPage.DETAILS
    if worst := worst_tensors(workload, [*largest, *others], placement):
        tables = [worst, errors(workload, [*largest, *others], "Every tensor", doc.OnPage.DETAILS)]
    else:
        tables = [
            errors(workload, largest, "", placement),
            errors(workload, others, "The other cases", doc.OnPage.DETAILS),
        ]
    notes = [note for note in (_verdicts(workload), _reference_note(workload)) if note]
    summary = doc.join(["Differences from the workload's reference.", *notes], " ", " ")
    return doc.make_section("accuracy", "Accuracy", tables, summary, workload.name, folds_long_tables=True)


def _verdicts(workload: WorkloadFindings) -> doc.Text:
    """Return the limits, how many cases are within them, and which are not."""
    judged = [case for case in workload.cases if case.accuracy is not None]
    missed = [case for case in judged if case.is_disqualified]
    unchecked = [case for case in missed if case.accuracy and case.accuracy.flag == Flag.UNCHECKED]
    outside = [case for case in missed if case not in unchecked]
    if not workload.tolerance:
        wrong = [case for case in judged if case.accuracy and case.accuracy.why]
        return ("No result: ", *_named(wrong), ".") if wrong else ""
    if not judged:
        return ""
    limits = doc.join([f"{measure} {bound(measure, limit)}" for measure, limit in workload.tolerance.items()])
    measures = {measure for case in judged for measure in case.values if measure in MEASURES}
    gradients = ", for gradients as for the output" if any(parts(measure)[1] != "out" for measure in measures) else ""
    within, compared = len(judged) - len(missed), len(judged) - len(unchecked)
    of = plural(compared, "compared case" if unchecked else "case")
    if not missed:
        counted = "Every case is within that"
    elif compared:
        counted = f"{within} of {of} {'is' if within == 1 else 'are'} within that"
    else:
        counted = "No case was compared"
    misses = (" Not: ", *_named(outside), ".") if outside else ()
    rest = (" Not compared: ", *_named(unchecked, with_reason=False), ".") if unchecked else ()
    return ("Allowed: ", *limits, f"{gradients}. {counted}.", *misses, *rest)


def _named(among: Sequence[CaseResult], with_reason: bool = True) -> tuple[doc.Inline, ...]:
    reasons = (f" ({case.accuracy.why})" if with_reason and case.accuracy else "" for case in among)
    return doc.join(map(doc.concat, map(case_text, among), reasons), most=_NAMED)


def _reference_note(workload: WorkloadFindings) -> str:
    """Return the rounding of a reference that has the cases' own dtype: both round, so neither is exact."""
    compared = [case for case in workload.cases if case.values.keys() & set(MEASURES)]
    alike = [case for case in compared if _dtype(case) in _ROUNDING and _dtype(case) == case.params.get("reference")]
    if not alike:
        return ""
    dtype = _dtype(alike[0])
    whose = "The reference is" if len(alike) == len(compared) else f"For the cases in {dtype} the reference is"
    return f"{whose} {dtype} too: a relative L1 of about {_ROUNDING[dtype]} is rounding, in either of the two."


def _dtype(case: CaseResult) -> str:
    return as_text(case.params["dtype"]) if "dtype" in case.params else ""


# --- tables ----------------------------------------------------------------------------------------------------------


def errors(
    workload: WorkloadFindings, among: Sequence[CaseResult], title: str, placement: doc.OnPage
) -> doc.TableBlock:
    """Return a row a case and tensor: whether it is within the tolerance, else what it misses."""
    rows = [row for case in among if case.time for row in _rows(case, workload)]
    return _table(workload, "of", rows, title, placement)


def worst_tensors(
    workload: WorkloadFindings, among: Sequence[CaseResult], placement: doc.OnPage
) -> doc.TableBlock | None:
    """Return a row a case, its tensor that is nearest to a limit, where many rows are all within the tolerance.

    None where there are few, or where a case is outside, or has one tensor only.
    """
    by_case = [(case, list(_rows(case, workload))) for case in among if case.time]
    is_within = bool(workload.tolerance) and not any(case.is_disqualified for case, _ in by_case)
    if sum(len(rows) for _, rows in by_case) <= max(_MANY, len(by_case)) or not is_within:
        return None
    worst = [max(rows, key=lambda row: _used(row[2], workload.tolerance)) for _, rows in by_case if rows]
    return _table(workload, "worst", worst, "The worst tensor of each case", placement)


def _used(measures: Mapping[str, float], limits: Mapping[str, float]) -> float:
    """Return the largest share of a limit that a tensor takes."""
    used = 0.0
    for measure, value in measures.items():
        if (limit := limit_of(measure, limits)) is not None:
            off, allowed = (1 - value, 1 - limit) if measure.startswith("cosine") else (value, limit)
            used = max(used, off / allowed if allowed else 0.0)
    return used


def _rows(case: CaseResult, workload: WorkloadFindings) -> Iterator[_Row]:
    """Yield one row per tensor that was compared, or one that says that none was."""
    measures = {measure: value for measure, value in case.values.items() if measure in MEASURES}
    compared = {parts(measure)[1] for measure in measures}
    for tensor in TENSORS:
        if tensor in compared:
            yield case, tensor, {measure: value for measure, value in measures.items() if parts(measure)[1] == tensor}
    if not compared and workload.tolerance:
        yield case, "", {}


def _table(
    workload: WorkloadFindings, of: str, rows: Sequence[_Row], title: str, placement: doc.OnPage
) -> doc.TableBlock:
    labels = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    columns = [
        *(doc.label(label) for label in labels),
        doc.label("tensor", of),
        *(doc.number(name, name_of) for name, name_of in _TITLES.items()),
        doc.percent("checked", "compared"),
        doc.words("verdict", "within tolerance"),
    ]
    cells = []
    for case, tensor, measures in rows:
        by_name = {
            parts(measure)[0]: cosine(value) if measure.startswith("cosine") else value
            for measure, value in measures.items()
        }
        shape: list[doc.Text] = [as_text(value) for _, value in case.shape]
        names = shape + ([doc.Code(case.variant)] if workload.compare else []) or [doc.Code(case.id)]
        checked = case.values["checked"] / 100 if tensor and "checked" in case.values else None
        verdict = _verdict(case, tensor)
        cells.append([*names, _NAMES.get(tensor, "–"), *(by_name.get(name) for name in _TITLES), checked, verdict])
    return doc.make_table("errors", columns, cells, title, placement)


def _verdict(case: CaseResult, tensor: str) -> doc.Text | None:
    if not tensor:
        return doc.Strong(str(Flag.UNCHECKED))
    if case.accuracy is None:
        return None
    misses = [(m, limit) for m, _, limit in case.accuracy.misses if parts(m)[1] == tensor]
    if misses:
        limits = ", ".join(f"{_TITLES[parts(m)[0]]} {bound(m, limit)}" for m, limit in misses)
        return (doc.Strong("no"), f": {limits}")
    return doc.Strong(str(Flag.UNCHECKED)) if case.accuracy.flag == Flag.UNCHECKED else "yes"


# --- targets ----------------------------------------------------------------------------------------------------------

#: By quantity: its name, its unit behind a number, and what measures it.
_QUANTITIES: Mapping[str, tuple[str, str, str]] = {
    "tflops": ("TFLOP/s", "", "needs a workload that states its FLOPs"),
    "gpu_busy": ("GPU busy", " %", "needs nsys or torch on a GPU"),
    "memory_bandwidth": ("memory bandwidth", " %", "needs ncu, or a workload that states its bytes"),
    "sm": ("SM throughput", " %", "needs ncu"),
    "speedup": ("over baseline", "x", "needs a baseline with a time"),
}


def targets(workload: WorkloadFindings, part: WorkloadFindings) -> doc.Section:
    """Return the targets with how many cases reach each, and the grades by case.

    The largest shape is on the short page, the other cases of ``part`` (the shapes shown in full) on the long one.
    """
    largest = list(workload.largest.timed) if workload.largest else []
    ids = {case.id for case in largest}
    others = [case for case in part.cases if case.time and case.id not in ids]
    title = in_words(largest[0].shape) if largest and others else ""
    counts = doc.Bullets(tuple(_counts(workload, name) for name in workload.targets))
    # The cases of the short page have one shape, which the title names: they differ in the compared value alone.
    tables = (
        make_grade_table("targets", workload, largest, title, workload.compare),
        make_grade_table("other_targets", workload, others, "other cases", placement=doc.OnPage.DETAILS),
    )
    blocks = (counts, *tables)
    return doc.make_section("targets", "Targets", blocks, workload=workload.name)


def _counts(workload: WorkloadFindings, name: str) -> doc.Text:
    """Return a target in words, and how many cases are good, fair and poor."""
    target, (title, unit, needs) = workload.targets[name], _QUANTITIES[name]
    limits = f"good from {target.good:g}{unit}"
    limits += "" if target.poor is None else f", poor below {target.poor:g}{unit}"
    timed = [case for case in workload.cases if case.time]
    grades = [case.grades[name][1] for case in timed if name in case.grades]
    if not grades:
        return fill(f"{{}}: {limits}. No case has a value: it {needs}.", doc.Strong(title))
    counts = ", ".join(f"{grades.count(grade)} {grade.value}" for grade in Grade if grade in grades)
    missing = len(timed) - len(grades)
    without = f"; {missing} without a value" if missing else ""
    return fill(f"{{}} ({limits}): of {plural(len(grades), 'case')} {counts}{without}.", doc.Strong(title))


def make_grade_table(
    id: str,
    workload: WorkloadFindings,
    cases: Sequence[CaseResult],
    title: str,
    compare: str | None = None,
    placement: doc.OnPage = doc.OnPage.SUMMARY,
) -> doc.TableBlock:
    """Return a row per case, named by ``compare`` alone or in full: what it reaches of each target, its grade."""

    def reached(case: CaseResult, name: str) -> doc.TableCell | None:
        if name not in case.grades:
            return None
        (reached, grade), unit = case.grades[name], RATIO if name == "speedup" else None
        return doc.TableCell(reached, is_strong=grade is Grade.GOOD, unit=unit, note=grade.value)

    columns: doc.Columns[CaseResult] = [
        (doc.label("case", compare or "case"), variant_text if compare else case_text),
        *((doc.number(name, _QUANTITIES[name][0] + _QUANTITIES[name][1].replace("x", "")),
           functools.partial(reached, name=name)) for name in workload.targets),
    ]  # fmt: skip
    return doc.table_of(id, [case for case in cases if case.grades], columns, title, placement)
