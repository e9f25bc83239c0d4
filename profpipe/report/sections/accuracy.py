"""How far results are from their reference, and which of them are within the tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.cases import shown
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.measure.flags import Flag
from profpipe.measure.tolerance import MEASURES, TENSORS, bound, cosine, limit_of, parts
from profpipe.report import document as doc
from profpipe.report.labels import case_text, plural
from profpipe.report.selection import main_cases

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
    """Return the errors of each case; empty where there is no more than the errors that stand with the times.

    The short page has them where a case misses the tolerance, or where errors differ between cases.
    """
    if not (workload.tolerance or any("error_rel_l1" in case.values for case in workload.cases)):
        return doc.Section("accuracy", "", workload=workload.name)
    largest, others = main_cases(workload)
    found = [error for case in largest if (error := case.values.get("error_rel_l1", case.values.get("error_max")))]
    varies = max(found, default=0.0) > _VARIES * min(found, default=0.0)
    is_notable = varies or any(case.is_disqualified for case in workload.cases)
    placement = doc.Placement.SUMMARY if is_notable else doc.Placement.DETAILS
    if worst := worst_tensors(workload, [*largest, *others]):
        first, second = worst, errors(workload, [*largest, *others], "Every tensor")
    else:
        first, second = errors(workload, largest), errors(workload, others, "The other cases")
    tables = [replace(first, placement=placement), replace(second, placement=doc.Placement.DETAILS)]
    notes = [note for note in (_verdicts(workload), _reference_note(workload)) if note]
    summary = doc.join(["Differences from the workload's reference.", *notes], " ", " ")
    return doc.make_section("accuracy", "Accuracy", tables, summary, workload.name, folds_long_tables=True)


def _verdicts(workload: WorkloadFindings) -> doc.Text:
    """Return the limits, how many cases are within them, and which are not."""
    judged = [case for case in workload.cases if case.accuracy is not None]
    missed = [case for case in judged if case.is_disqualified]
    unchecked = [case for case in missed if case.accuracy and case.accuracy.mark == Flag.UNCHECKED]
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
    own = [case for case in workload.cases if case.values.keys() & set(MEASURES)]
    alike = [case for case in own if _dtype(case) in _ROUNDING and _dtype(case) == case.params.get("reference")]
    if not alike:
        return ""
    dtype = _dtype(alike[0])
    whose = "The reference is" if len(alike) == len(own) else f"For the cases in {dtype} the reference is"
    return f"{whose} {dtype} too: a relative L1 of about {_ROUNDING[dtype]} is rounding, in either of the two."


def _dtype(case: CaseResult) -> str:
    return shown(case.params["dtype"]) if "dtype" in case.params else ""


# --- tables ----------------------------------------------------------------------------------------------------------


def errors(workload: WorkloadFindings, among: Sequence[CaseResult], title: str = "") -> doc.Table:
    """Return a row a case and tensor: whether it is within the tolerance, else what it misses."""
    return _table(workload, "of", [row for case in among if case.time for row in _rows(case, workload)], title)


def worst_tensors(workload: WorkloadFindings, among: Sequence[CaseResult]) -> doc.Table | None:
    """Return a row a case, its tensor that is nearest to a limit, where many rows are all within the tolerance.

    None where there are few, or where a case is outside, or has one tensor only.
    """
    by_case = [(case, list(_rows(case, workload))) for case in among if case.time]
    is_within = bool(workload.tolerance) and not any(case.is_disqualified for case, _ in by_case)
    if sum(len(rows) for _, rows in by_case) <= max(_MANY, len(by_case)) or not is_within:
        return None
    worst = [max(rows, key=lambda row: _used(row[2], workload.tolerance)) for _, rows in by_case if rows]
    return _table(workload, "worst", worst, "The worst tensor of each case")


def _used(measures: Mapping[str, float], limits: Mapping[str, float]) -> float:
    """Return the largest share of a limit that a tensor takes."""
    used = 0.0
    for measure, value in measures.items():
        if (limit := limit_of(measure, limits)) is not None:
            off, allowed = (1 - value, 1 - limit) if measure.startswith("cosine") else (value, limit)
            used = max(used, off / allowed if allowed else 0.0)
    return used


def _rows(case: CaseResult, workload: WorkloadFindings) -> Iterator[_Row]:
    """Yield one row for each tensor that was compared, or one that says that none was."""
    found = {measure: value for measure, value in case.values.items() if measure in MEASURES}
    compared = {parts(measure)[1] for measure in found}
    for tensor in TENSORS:
        if tensor in compared:
            yield case, tensor, {measure: value for measure, value in found.items() if parts(measure)[1] == tensor}
    if not compared and workload.tolerance:
        yield case, "", {}


def _table(workload: WorkloadFindings, of: str, rows: Sequence[_Row], title: str) -> doc.Table:
    labels = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    columns = [
        *(doc.label(label) for label in labels),
        doc.label("tensor", of),
        *(doc.Column(name, name_of) for name, name_of in _TITLES.items()),
        doc.percent("checked", "compared"),
        doc.words("verdict", "within tolerance"),
    ]
    cells = []
    for case, tensor, measures in rows:
        by_name = {
            parts(measure)[0]: cosine(value) if measure.startswith("cosine") else value
            for measure, value in measures.items()
        }
        shape: list[doc.Text] = [shown(value) for _, value in case.shape]
        names = shape + ([doc.Code(case.variant)] if workload.compare else []) or [doc.Code(case.id)]
        checked = case.values["checked"] / 100 if tensor and "checked" in case.values else None
        verdict = _verdict(case, tensor)
        cells.append([*names, _NAMES.get(tensor, "–"), *(by_name.get(name) for name in _TITLES), checked, verdict])
    return doc.make_table("errors", columns, cells, title)


def _verdict(case: CaseResult, tensor: str) -> doc.Text | None:
    if not tensor:
        return doc.Strong(str(Flag.UNCHECKED))
    if case.accuracy is None:
        return None
    misses = [miss for miss in case.accuracy.misses if parts(miss.measure)[1] == tensor]
    if misses:
        limits = ", ".join(f"{_TITLES[parts(m.measure)[0]]} {bound(m.measure, m.limit)}" for m in misses)
        return (doc.Strong("no"), f": {limits}")
    return doc.Strong(str(Flag.UNCHECKED)) if case.accuracy.mark == Flag.UNCHECKED else "yes"
