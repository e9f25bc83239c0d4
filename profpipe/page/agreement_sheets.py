"""Findings -> the tables that compare profilers with one another: in sum, each difference, each figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from profpipe.findings import Agreement, Figure, Point, WorkloadFindings
from profpipe.page import rank_sheets
from profpipe.page.markdown import Sheet, code, escape, listed
from profpipe.page.quantities import MISSING, percent, ratio, signed_percent, time_unit
from profpipe.page.wording import case_label

#: Differences up to this need no reason, as in ``agreement``.
CLOSE = 0.03

#: Kernels above this are long enough for launch gaps and cold caches to be a small part of them.
_LONG_NS = 50_000.0


def in_sum(workload: WorkloadFindings) -> Sheet:
    """A row a profiler: how many cases are within 3 % of the reference, how far the largest is off, and why."""
    reference = workload.agreements[0].reference if workload.agreements else ""
    rows = []
    for profiler, own in _by_profiler(workload.agreements).items():
        long = _long(own)
        rows.append(
            [
                _called(profiler, own[0][0].point),
                _within(own),
                _largest(own),
                _within(long) if long and len(long) < len(own) else "",
                _largest(long) if long and len(long) < len(own) else "",
                _kinds(own),
            ]
        )
    head = [
        f"against {reference}",
        "within 3 %",
        "largest difference",
        "above 50 us: within 3 %",
        "largest",
        "larger ones, by reason",
    ]
    return Sheet(head, rows, words=frozenset({head[2], head[4], head[5]})).without_empty()


def said(workload: WorkloadFindings) -> str:
    """How far the long calls agree, by profiler, and what is left without a reason there; of GPUs that first."""
    return " ".join(part for part in (rank_sheets.means(workload), _long_calls(workload)) if part)


def _long_calls(workload: WorkloadFindings) -> str:
    by_profiler = {profiler: _long(own) for profiler, own in _by_profiler(workload.agreements).items()}
    found = [pair for own in by_profiler.values() for pair in own]
    if not found:
        return ""
    reference, larger = found[0][0].reference, [pair for pair in found if _larger(pair[1])]
    close = [
        f"{_called(profiler, own[0][0].point).partition(',')[0]} in {_within(own)}"
        for profiler, own in by_profiler.items()
        if own
    ]
    cpu = any(pair[0].point.split and pair[0].point.split.kind == "cpu_op" for pair in found)
    work = "operators" if cpu else "kernels"
    first = f"Of calls with 50 us of {work} and more, within 3 % of {reference}: {listed(close)}."
    if not larger:
        return first
    unknown, every = sum(figure.flagged for _, figure in larger), len(larger)
    if every == 1:
        reason = "**without a known reason**." if unknown else f"with a known reason: {_kinds(larger)}."
        return f"{first} There is 1 larger difference among them, {reason}"
    reasons = f"**{unknown} without a known reason**" if unknown else "each with a known reason"
    return f"{first} The larger differences among them are {every}, {reasons}: {_kinds(larger)}."


def apart(workload: WorkloadFindings) -> Sheet:
    """Each difference of more than 3 %, with its reason; those without one first, then the largest."""
    found = [
        (a, f) for own in _by_profiler(workload.agreements).values() for a, f in own if _larger(f)
    ]  # fmt: skip
    found.sort(key=lambda pair: (not pair[1].flagged, -abs(pair[1].difference or 0.0)))
    rows = [
        [case_label(a.point), _called(f.profiler, a.point), signed_percent(f.difference), _because(f, a)]
        for a, f in found
    ]
    return Sheet(["case", "as timed by", "difference", "because"], rows, labels=2, words=frozenset({"because"}))


def everything(workload: WorkloadFindings) -> Sheet:
    """A row a case: the reference's kernels, and how far each other figure is off."""
    found = workload.agreements
    unit = time_unit(agreement.figures[0].ns for agreement in found)
    others = list(_by_profiler(found))
    columns: list[tuple[str, Callable[[Agreement], str]]] = [
        (f"{found[0].reference if found else ''}: {unit.name}/call", lambda a: unit.of(a.figures[0].ns)),
        ("some kernel runs", lambda a: unit.of(_busy(a))),
        ("first to last kernel", lambda a: unit.of(a.point.split.span_ns if a.point.split else None)),
        ("host in its range", lambda a: unit.of(a.point.split.range_ns if a.point.split else None)),
        *((_called(name, found[0].point), _difference(name)) for name in others),
    ]
    rows = [[case_label(a.point), *(cell(a) for _, cell in columns)] for a in found]
    return Sheet(["case", *(title for title, _ in columns)], rows).without_empty()


def _busy(agreement: Agreement) -> float | None:
    """The time in which some kernel ran, where that is not the sum of them all."""
    split = agreement.point.split
    if split is None or split.busy_ns is None or abs(split.busy_ns / split.total.ns - 1) < 0.001:
        return None
    return split.busy_ns


def overheads(workload: WorkloadFindings) -> Sheet:
    """What each profiler added to the loop of the cases."""
    labels = {point.id: case_label(point) for point in workload.points}
    rows = []
    for profiler in dict.fromkeys(o.profiler for o in workload.overheads):
        own = [o for o in workload.overheads if o.profiler == profiler]
        # The least may be negative: then the loop without a profiler was the one that something held up.
        least, most = (
            f"{_added(o.share)} ({labels.get(o.case, code(o.case))})"
            for o in (end(own, key=lambda o: o.share) for end in (min, max))
        )
        median, marked = _added(statistics.median(o.share for o in own)), sum(o.marked for o in own)
        rows.append([code(profiler), median, least if len(own) > 1 else MISSING, most, f"{marked} of {len(own)}"])
    head = ["profiler", "median", "least", "most", "cases marked profiler_overhead"]
    return Sheet(head, rows, words=frozenset({"least", "most"})).without_empty()


def _added(share: float) -> str:
    return signed_percent(share) if share < 9.995 else f"{ratio(share + 1)} the time"


def _by_profiler(agreements: Iterable[Agreement]) -> dict[str, list[tuple[Agreement, Figure]]]:
    """All figures but the reference's own."""
    found: dict[str, list[tuple[Agreement, Figure]]] = {}
    for agreement in agreements:
        for figure in agreement.figures[1:]:
            found.setdefault(figure.profiler, []).append((agreement, figure))
    return found


def _long(own: Sequence[tuple[Agreement, Figure]]) -> list[tuple[Agreement, Figure]]:
    return [(agreement, figure) for agreement, figure in own if agreement.figures[0].ns >= _LONG_NS]


def _larger(figure: Figure) -> bool:
    return figure.difference is None or abs(figure.difference) > CLOSE


def _within(own: Sequence[tuple[Agreement, Figure]]) -> str:
    close = sum(f.difference is not None and abs(f.difference) <= CLOSE for _, f in own)
    return f"{close} of {len(own)}"


def _largest(own: Sequence[tuple[Agreement, Figure]]) -> str:
    known = [(a, f) for a, f in own if f.difference is not None]
    if not known:
        return MISSING
    agreement, figure = max(known, key=lambda pair: abs(pair[1].difference or 0.0))
    return f"{signed_percent(figure.difference)} ({case_label(agreement.point)})"


def _kinds(own: Sequence[tuple[Agreement, Figure]]) -> str:
    """``launch gaps 12, no known reason 1``: the differences above 3 % by the kind of their reason."""
    kinds: dict[str, int] = {}
    for _, figure in own:
        if _larger(figure):
            kind = "**no known reason**" if figure.flagged else escape(figure.reason.partition(":")[0])
            kinds[kind] = kinds.get(kind, 0) + 1
    return listed(f"{kind} {n}" for kind, n in sorted(kinds.items(), key=lambda item: -item[1]))


def _because(figure: Figure, agreement: Agreement) -> str:
    whole = figure.covered >= 0.995
    covered = "" if whole else f"over the kernels that both saw, {percent(figure.covered)} % of the time"
    unknown = figure.flagged and (not figure.reason or figure.difference is not None)
    known_part = f" beyond this: {escape(figure.reason)}" if unknown and figure.reason else ""
    reason = f"**no known reason**{known_part}" if unknown else escape(figure.reason)
    return "; ".join(
        part for part in (reason, _against(figure, agreement) if unknown and whole else "", covered) if part
    )


def _against(figure: Figure, agreement: Agreement) -> str:
    """Where kernels that were flagged too take as long: no reason, but it tells where to look for one."""
    kernels = [f for f in agreement.figures[1:] if f.flagged and f.covered >= 0.995 and f.profiler != "plain"]
    same = [f.profiler for f in kernels if f is not figure and abs(f.ns / figure.ns - 1) <= CLOSE]
    odd = figure in kernels and same
    return f"{listed(same)} within 3 % of it, so {agreement.reference} is the odd one" if odd else ""


def _difference(profiler: str) -> Callable[[Agreement], str]:
    def cell(agreement: Agreement) -> str:
        figure = next((f for f in agreement.figures[1:] if f.profiler == profiler), None)
        if figure is None:
            return MISSING
        covered = f" (over {percent(figure.covered)} %)" if figure.covered < 0.995 else ""
        mark = " **?**" if figure.flagged else ""
        return f"{signed_percent(figure.difference)}{covered}{mark}"

    return cell


def _called(profiler: str, point: Point) -> str:
    cpu = bool(point.split and point.split.kind == "cpu_op")
    if profiler == "plain":
        return "time of a call" if cpu else "CUDA events"
    return f"{profiler}, {'operators' if cpu else 'kernels'}"
