"""Do the profilers agree? How far their times of the same call differ, and why."""

from __future__ import annotations

import statistics
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.findings.agreement import CLOSE, Agreement, Cause, Figure, Reason
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.labels import case_text
from profpipe.report.sections import ranks
from profpipe.report.units import percent, signed_percent, time_unit

#: Kernels above this are long enough for launch gaps and cold caches to be a small part of them.
_LONG_NS = 50_000.0

#: A comparison that covers at least this share of the kernel time is one of all of it.
_WHOLE = 0.995

_UNKNOWN = doc.Strong("no known reason")

#: A profiler's time of a case, and the times of the case that it belongs to.
_Pair = tuple[Agreement, Figure]


def agreement(workload: WorkloadFindings) -> doc.Section:
    """Return how far the profilers agree; empty where a single one timed each case."""
    if not workload.agreements:
        return doc.Section("agreement", "", workload=workload.name)
    tables = [by_profiler(workload), differences(workload), all_figures(workload), overheads(workload)]
    blocks = tuple(doc.fold_if_long(table) for table in tables if table.rows)
    return doc.Section("agreement", "Do the profilers agree?", blocks, _summary(workload), workload.name)


def _summary(workload: WorkloadFindings) -> doc.Text:
    """Return how far long calls agree, by profiler, and what makes the larger differences."""
    reference, means = workload.agreements[0].reference, ranks.means_note(workload)
    long = {profiler: own for profiler, pairs in _pairs(workload).items() if (own := _long(pairs))}
    far = [pair for own in long.values() for pair in own if not pair[1].is_close]
    words: list[doc.Text] = [f"{means} "] if means else []
    if long:
        work = "operators" if _is_cpu(workload) else "kernels"
        within = doc.join([f"{_quantity(name, workload)} in {_within(own)}" for name, own in long.items()])
        words += [f"Of calls with at least 50 us of {work}, within 3 % of {reference}: ", within, ". "]
    if far:
        words += [f"{len(far)} differ{'s' if len(far) == 1 else ''} by more: ", _causes(far), ". "]
    return tuple(inline for text in (*words, "Differences up to 3 % need no reason.") for inline in doc.inlines(text))


def by_profiler(workload: WorkloadFindings) -> doc.Table:
    """Return a row a profiler: how many cases are within 3 % of the reference, the largest difference, the causes."""
    labels = {point.id: case_text(point) for point in workload.cases}

    def largest(pairs: Sequence[_Pair]) -> doc.Cell | None:
        known = [(found.case, figure.difference) for found, figure in pairs if figure.difference is not None]
        case, difference = max(known, key=lambda pair: abs(pair[1]), default=("", None))
        return None if difference is None else doc.Cell(difference, note=("(", *doc.inlines(labels[case]), ")"))

    columns = [
        doc.label("profiler", f"compared with {workload.agreements[0].reference}"),
        doc.Column("within", "within 3 %"),
        doc.signed_percent("largest", "largest difference"),
        doc.Column("long_within", "above 50 us: within 3 %"),
        doc.signed_percent("long_largest", "largest"),
        doc.words("causes", "causes above 3 %"),
    ]
    rows = []
    for name, pairs in _pairs(workload).items():
        long = _long(pairs)
        of_long = (_within(long), largest(long)) if 0 < len(long) < len(pairs) else ("", "")
        far = [pair for pair in pairs if not pair[1].is_close]
        rows.append([_title(name, workload), _within(pairs), largest(pairs), *of_long, _causes(far)])
    return doc.make_table("profilers", columns, rows)


def differences(workload: WorkloadFindings) -> doc.Table:
    """Return each difference of more than 3 % with its reason; those without one first, then the largest."""
    labels = {point.id: case_text(point) for point in workload.cases}
    pairs = [pair for own in _pairs(workload).values() for pair in own if not pair[1].is_close]
    pairs.sort(key=lambda pair: (not pair[1].is_unexplained, -abs(pair[1].difference or 0.0)))
    columns = [
        doc.label("case"),
        doc.label("profiler", "timed by"),
        doc.signed_percent("difference"),
        doc.words("reason"),
    ]
    rows = [[labels[a.case], _title(f.profiler, workload), f.difference, _why(a, f)] for a, f in pairs]
    return doc.make_table("differences", columns, rows, f"The {len(rows)} differences above 3 %", doc.Placement.DETAILS)


def all_figures(workload: WorkloadFindings) -> doc.Table:
    """Return a row a case: the reference's kernels, and how far each other figure is off."""
    points = {point.id: point for point in workload.cases}
    unit = time_unit(found.figures[0].ns for found in workload.agreements)
    others = list(_pairs(workload))
    columns = [
        doc.label("case"),
        doc.Column(
            "ns",
            workload.agreements[0].reference if workload.agreements else "",
            replace(unit, name=f"{unit.name}/call"),
        ),
        doc.Column("busy_ns", "some kernel runs", unit),
        doc.Column("span_ns", "first to last kernel", unit),
        doc.Column("range_ns", "host in its range", unit),
        *(doc.signed_percent(name, _title(name, workload)) for name in others),
    ]
    rows = []
    for found in workload.agreements:
        by_name = {figure.profiler: figure for figure in found.figures[1:]}
        point = points[found.case]
        span = (point.breakdown.span_ns, point.breakdown.range_ns) if point.breakdown else (None, None)
        figures = [_difference(by_name[name]) if name in by_name else None for name in others]
        rows.append([case_text(point), found.figures[0].ns, _busy_ns(point), *span, *figures])
    return doc.make_table("figures", columns, rows, "Every figure", doc.Placement.DETAILS)


def _difference(figure: Figure) -> doc.Cell:
    covered = f"over {percent(figure.covered)} %" if figure.covered < _WHOLE else ""
    return doc.Cell(
        figure.difference, note=(f"{covered} ".lstrip(), doc.Strong("?")) if figure.is_unexplained else covered
    )


def _busy_ns(point: CaseResult) -> float | None:
    """Return the time in which some kernel ran, where that is not the sum of them all."""
    split = point.breakdown
    if split is None or split.busy_ns is None or abs(split.busy_ns / split.total.ns - 1) < 0.001:
        return None
    return split.busy_ns


def overheads(workload: WorkloadFindings) -> doc.Table:
    """Return what each profiler added to the wall time of a case's loop."""
    labels = {point.id: case_text(point) for point in workload.cases}
    columns = [
        doc.label("profiler"),
        *(doc.signed_percent(id) for id in ("median", "least", "most")),
        doc.Column("marked", ("cases marked ", doc.Code("profiler_overhead"))),
    ]
    rows: list[list[doc.Cell | doc.Text | None]] = []
    for profiler in dict.fromkeys(overhead.profiler for overhead in workload.overheads):
        own = sorted((o for o in workload.overheads if o.profiler == profiler), key=lambda o: o.share)
        # The least may be negative: then something else held up the loop without a profiler.
        least, most = (_added(o.share, labels.get(o.case, doc.Code(o.case))) for o in (own[0], own[-1]))
        median, marked = (
            _added(statistics.median(o.share for o in own)),
            f"{sum(o.is_large for o in own)} of {len(own)}",
        )
        rows.append([doc.Code(profiler), median, least if len(own) > 1 else None, most, marked])
    return doc.make_table("overheads", columns, rows, "Time that a profiler adds to the loop", doc.Placement.DETAILS)


def _added(share: float, case: doc.Text = "") -> doc.Cell:
    note = ("(", *doc.inlines(case), ")") if case else ()
    return (
        doc.Cell(share, note=note)
        if share < 9.995
        else doc.Cell(share + 1, format=doc.Format.RATIO, note=("the time ", *note))
    )


def _pairs(workload: WorkloadFindings) -> dict[str, list[_Pair]]:
    """Return by profiler every figure but the reference's own."""
    found: dict[str, list[_Pair]] = {}
    for each in workload.agreements:
        for figure in each.figures[1:]:
            found.setdefault(figure.profiler, []).append((each, figure))
    return found


def _long(pairs: Sequence[_Pair]) -> list[_Pair]:
    return [pair for pair in pairs if pair[0].figures[0].ns >= _LONG_NS]


def _within(pairs: Sequence[_Pair]) -> str:
    return f"{sum(figure.is_close for _, figure in pairs)} of {len(pairs)}"


def _is_cpu(workload: WorkloadFindings) -> bool:
    return any(point.breakdown and point.breakdown.kind == "cpu_op" for point in workload.cases)


def _quantity(profiler: str, workload: WorkloadFindings) -> str:
    if profiler == "plain":
        return "time of a call" if _is_cpu(workload) else "CUDA events"
    return profiler


def _title(profiler: str, workload: WorkloadFindings) -> str:
    work = "" if profiler == "plain" else ", operators" if _is_cpu(workload) else ", kernels"
    return f"{_quantity(profiler, workload)}{work}"


# --- reasons ---------------------------------------------------------------------------------------------------------


def _causes(far: Sequence[_Pair]) -> doc.Text:
    """Return ``launch gaps 12 and no known reason 1``: the number of differences by cause."""
    counts: dict[str, int] = {}
    for _, figure in far:
        cause = "" if figure.is_unexplained else figure.reasons[0].cause.value
        counts[cause] = counts.get(cause, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return doc.join([f"{cause} {n}" if cause else (_UNKNOWN, f" {n}") for cause, n in ordered])


def _why(found: Agreement, figure: Figure) -> doc.Text:
    """Return why a figure differs, or that nothing explains it and what may help to find out."""
    parts: list[doc.Text] = [describe(reason) for reason in figure.reasons]
    if figure.difference is None:
        parts = ["no kernel name in common"]
    elif figure.is_unexplained:
        parts = [(_UNKNOWN, " beyond this: ", *doc.join(parts, "; ", "; ")) if parts else _UNKNOWN]
        if same := _also_unexplained(found, figure):
            parts.append((*doc.join(same), f" within 3 % of it: {found.reference} is the outlier"))
    if figure.covered < _WHOLE:
        parts.append(f"over the kernels that both profiled, {percent(figure.covered)} % of the time")
    return doc.join(parts, "; ", "; ")


def _also_unexplained(found: Agreement, figure: Figure) -> list[str]:
    """Return the profilers whose kernels take as long as ``figure`` and have no reason either.

    Their agreement is no reason, but shows where to look for one. The time of a call may agree by chance.
    """
    kernels = [f for f in found.figures[1:] if f.is_unexplained and f.covered >= _WHOLE and f.profiler != "plain"]
    if figure not in kernels:
        return []
    return [f.profiler for f in kernels if f is not figure and abs(f.ns / figure.ns - 1) <= CLOSE]


#: How a cause is worded: the first text whose numbers are all known. What follows a colon is a unit of ``_Quantity``.
_WORDING: Mapping[Cause, Sequence[doc.Text]] = {
    Cause.LAUNCH_GAPS: ["{ns:us} around {kernels:kernels}"],
    Cause.COPIES: ["{ns:us}, which the sum of kernels leaves out"],
    Cause.HOST_BOUND: [
        "the host takes {issue_ns:ms} to issue {launches:count} launches, of which about {queue:count} can be queued",
        "no kernel runs in {idle:%} of the range",
        "",
    ],
    Cause.SYNCHRONISATION: [
        "the call waits for the GPU, and the host takes {issue_ns:ms} to issue it",
        "the call waits for the GPU",
    ],
    Cause.BETWEEN_OPERATORS: ["the call takes time outside of all operators"],
    Cause.PROFILER_OVERHEAD: [
        "the loop takes {loop_ns:ms} an iteration under {profiler}, {alone_ns:ms} without",
        "{profiler} slows each operator",
    ],
    Cause.OVERLAP: [
        "{ns:us} of the {of_ns:us}",
        "alone it would make the call {excess_ns:us} shorter than it is",
        "{ns:us} of kernels on {streams:count} streams ran beside others",
    ],
    Cause.COMMUNICATION: ["{slow_ns:ms} on GPU {slow}, {fast_ns:ms} on GPU {fast}"],
    Cause.SLOWEST_RANK: ["rank {slow} takes {slow_ns:ms}, rank {fast} {fast_ns:ms}"],
    Cause.CLOCK: [
        "{hz:MHz} recorded under {profiler}, {reference_hz:MHz} under {reference}; the cycles differ by {cycles:+%}"
    ],
    Cause.BELOW_HIGHEST: [
        "{hz:MHz} of {highest_hz:MHz} recorded under {reference}; between kernels of ncu the GPU rests"
    ],
    Cause.THROTTLED: ["{hz:MHz} ({low:MHz} to {high:MHz}) in timed calls, {marks}; at most {highest_hz:MHz}"],
    Cause.DERIVED_CLOCK: [
        "{low:MHz} to {high:MHz} under {profiler} by time x clock (recorded {recorded_low:MHz} to {recorded_high:MHz})",
        "{low:MHz} to {high:MHz} under {profiler} by time x clock (not recorded)",
    ],
    Cause.NCU_CLOCK: ["{hz:MHz}, and {longer_hz:MHz} in longer launches that agree; that makes {share:%}"],
    Cause.LOCKED_CLOCK: [("ncu locks the base clock (", doc.Code("--clock-control"), ")")],
    Cause.COLD_CACHE: ["ncu empties the caches before each replay"],
    Cause.SPREAD: [
        "the clock moved; the kernels' time lies within p10 to p90 of the call's, {p10:ms} to {p90:ms}",
        "the kernels' time lies within the 95 % interval of the call's, {ci_low:ms} to {ci_high:ms}",
        "the call's time has too few samples for an interval",
    ],
    Cause.SHORT_KERNELS: ["less than {limit_ns:us} a launch"],
    Cause.SINGLE_LAUNCH: [
        "{ns:us} under ncu; {low:us} to {high:us} in the {launches:count} launches under {reference}"
    ],
}


class _Quantity(float):
    """A number that is formatted by its unit: ``f"{_Quantity(2e6):ms}"``."""

    def __format__(self, unit: str) -> str:
        match unit:
            case "MHz":
                return f"{self / 1e6:.0f} MHz"
            case "%":
                return f"{percent(self)} %"
            case "+%":
                return signed_percent(self)
            case "kernels":
                return f"{float(self):.0f} kernel{'' if self == 1 else 's'}"
            case "count":
                return f"{float(self):.0f}"
        return f"{self / {'us': 1e3, 'ms': 1e6}[unit]:.4g} {unit}"


def describe(reason: Reason) -> doc.Text:
    """Return a cause and its numbers in words."""
    numbers = {name: n if isinstance(n, str) else _Quantity(n) for name, n in reason.numbers.items()}
    wording = next(text for text in _WORDING[reason.cause] if _fields(text) <= numbers.keys())
    detail = wording.format(**numbers) if isinstance(wording, str) else wording
    return (f"{reason.cause.value}: ", *doc.inlines(detail)) if detail else reason.cause.value


def _fields(wording: doc.Text) -> set[str]:
    return {name for _, name, *_ in string.Formatter().parse(wording) if name} if isinstance(wording, str) else set()
