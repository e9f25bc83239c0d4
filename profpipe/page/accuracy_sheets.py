"""How far results are from their reference, and which of them are within the tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profpipe.findings import Point, WorkloadFindings
from profpipe.page.markdown import Sheet, code, escape, listed
from profpipe.page.quantities import MISSING, number, percent
from profpipe.page.wording import case_label, cases
from profpipe.points import shown
from profpipe.tolerance import MEASURES, TENSORS, UNCHECKED, bound, cosine, limit_of, parts

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

#: Rows that all say that they are within the tolerance, from which on a case has one.
_MANY = 30


def compared(workload: WorkloadFindings) -> bool:
    """Whether there is more to say than the largest and the mean error, which stand with the times."""
    return bool(workload.tolerance) or any("error_rel_l1" in point.values for point in workload.points)


def said(workload: WorkloadFindings) -> str:
    """The limits, how many cases are within them, and which are not; what the reference is no better than."""
    return " ".join(part for part in (_judged(workload), _like_the_reference(workload)) if part)


def _judged(workload: WorkloadFindings) -> str:
    judged = [point for point in workload.points if point.accuracy is not None]
    if not workload.tolerance:
        wrong = [f"{case_label(p)} ({escape(p.accuracy.why)})" for p in judged if p.accuracy and p.accuracy.why]
        return f"No result: {listed(wrong, most=_NAMED)}." if wrong else ""
    if not judged:
        return ""
    limits = listed(f"{measure} {bound(measure, limit)}" for measure, limit in workload.tolerance.items())
    of_all = ", for gradients as for the output" if _has_gradients(judged) else ""
    missed = [point for point in judged if point.barred]
    unchecked = [point for point in missed if point.accuracy and point.accuracy.mark == UNCHECKED]
    outside = [point for point in missed if point not in unchecked]
    told = [_within_that(len(judged) - len(missed), len(judged) - len(unchecked), every=not unchecked)]
    if outside:
        misses = [f"{case_label(p)} ({escape(p.accuracy.why)})" for p in outside if p.accuracy]
        told.append(f"Not: {listed(misses, most=_NAMED)}")
    if unchecked:
        told.append(f"Not compared: {listed(map(case_label, unchecked), most=_NAMED)}")
    return f"Allowed: {escape(limits)}{of_all}. {'. '.join(told)}."


def _within_that(within: int, compared: int, every: bool) -> str:
    """How many of those that were compared, which is ``every`` one or not; the others are named for themselves."""
    if not compared:
        return "No case was compared"
    if every and within == compared:
        return "Every case is within that"
    of = cases(compared) if every else f"{compared} compared case{'' if compared == 1 else 's'}"
    return f"{within} of {of} {'is' if within == 1 else 'are'} within that"


def _like_the_reference(workload: WorkloadFindings) -> str:
    """Of cases of the reference's own dtype: both round, so the difference is not the error of one of them."""
    own = [point for point in workload.points if point.values.keys() & set(MEASURES)]
    alike = [point for point in own if _dtype(point) in _ROUNDING and _dtype(point) == point.params.get("reference")]
    if not alike:
        return ""
    dtype = _dtype(alike[0])
    whose = "The reference is" if len(alike) == len(own) else f"For the cases in {dtype} the reference is"
    return (
        f"{whose} {dtype} too, so a relative L1 of about {_ROUNDING[dtype]} is that of rounding, in either of the two."
    )


def _dtype(point: Point) -> str:
    return shown(point.params["dtype"]) if "dtype" in point.params else ""


def _has_gradients(points: Sequence[Point]) -> bool:
    return any(parts(measure)[1] != "out" for point in points for measure in point.values if measure in MEASURES)


def accuracy(workload: WorkloadFindings, points: Sequence[Point]) -> Sheet:
    """A row a case and tensor; whether it is within the tolerance, and else what it misses."""
    return _sheet(workload, "of", [(p, row) for p in points if p.time for row in _rows(p, workload)])


def worst(workload: WorkloadFindings, points: Sequence[Point]) -> Sheet:
    """Of many rows of which each is within the tolerance, one a case: its tensor that is nearest to what is allowed.

    Empty where there are few, or where a case is outside, or has one tensor only.
    """
    told = [(point, list(_rows(point, workload))) for point in points if point.time]
    many = sum(len(rows) for _, rows in told)
    within = bool(workload.tolerance) and not any(point.barred for point, _ in told)
    if many <= max(_MANY, len(told)) or not within:
        return Sheet([], [])
    return _sheet(workload, "worst", [(p, rows[_nearest(p, workload.tolerance)]) for p, rows in told if rows])


def _sheet(workload: WorkloadFindings, of: str, told: Sequence[tuple[Point, Sequence[str]]]) -> Sheet:
    labels = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    head = [*map(escape, labels), of, *_TITLES.values(), "% compared", "within tolerance"]
    rows = [[*_labels(point, workload), *row] for point, row in told]
    return Sheet(head, rows, labels=len(labels) + 1, words=frozenset({"within tolerance"})).without_empty()


def _labels(point: Point, workload: WorkloadFindings) -> list[str]:
    shape = [escape(shown(value)) for _, value in point.shape]
    return shape + ([code(point.variant)] if workload.compare else []) or [code(point.id)]


def _tensors(point: Point) -> list[str]:
    """Those that were compared."""
    found = {parts(measure)[1] for measure in point.values if measure in MEASURES}
    return [tensor for tensor in TENSORS if tensor in found]


def _nearest(point: Point, limits: Mapping[str, float]) -> int:
    """Which of the tensors of a case takes most of what is allowed of any measure."""
    used = dict.fromkeys(_tensors(point), 0.0)
    for measure, value in point.values.items():
        if measure in MEASURES and (limit := limit_of(measure, limits)) is not None:
            off, allowed = (1 - value, 1 - limit) if measure.startswith("cosine") else (value, limit)
            tensor = parts(measure)[1]
            used[tensor] = max(used[tensor], off / allowed if allowed else 0.0)
    return list(used).index(max(used, key=used.__getitem__))


def _rows(point: Point, workload: WorkloadFindings) -> Iterator[list[str]]:
    """One for each tensor that was compared; one that says so where none was."""
    found = {parts(m): (m, value) for m, value in point.values.items() if m in MEASURES}
    share = percent(point.values["checked"] / 100) if "checked" in point.values else MISSING
    tensors = _tensors(point)
    for tensor in tensors:
        own = [found.get((name, tensor)) for name in _TITLES]
        yield [_NAMES[tensor], *(_number(*pair) if pair else MISSING for pair in own), share, _within(point, tensor)]
    if not tensors and workload.tolerance:
        yield [MISSING] * (len(_TITLES) + 2) + [f"**{UNCHECKED}**"]


def _number(measure: str, value: float) -> str:
    return cosine(value) if measure.startswith("cosine") else number(value)


def _within(point: Point, tensor: str) -> str:
    if point.accuracy is None:
        return MISSING
    misses = [miss for miss in point.accuracy.misses if parts(miss.measure)[1] == tensor]
    if misses:
        return "**no**: " + ", ".join(f"{_TITLES[parts(m.measure)[0]]} {bound(m.measure, m.limit)}" for m in misses)
    return f"**{UNCHECKED}**" if point.accuracy.mark == UNCHECKED else "yes"
