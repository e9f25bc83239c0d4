"""Findings -> sentences: whether the profilers saw the same launches, which answers one that may have lost some."""

from __future__ import annotations

from collections.abc import Iterator

from profpipe.concerns import Launches
from profpipe.findings import Findings
from profpipe.page.markdown import code, listed
from profpipe.page.quantities import count
from profpipe.page.wording import case_id, case_label, cases


def said(findings: Findings) -> Iterator[str]:
    """Those that did together for all workloads; then a sentence for each two that did not."""
    same: dict[tuple[tuple[str, str], bool], list[Launches]] = {}
    for seen in findings.launches:
        if seen.same:
            same.setdefault((seen.profilers, seen.per_iteration), []).append(seen)
    alone = len(findings.workloads) < 2
    for alike in same.values():
        yield f"{_both(alike[0])} saw the same launches{_number(alike, alone)}, kernel by kernel."
    for seen in findings.launches:
        if seen.differing:
            yield _unlike(seen, findings, alone)
        elif not seen.same:
            yield f"{_both(seen)} saw as many launches{_number([seen], alone)}, {_each(seen)}."


def _both(seen: Launches) -> str:
    return " and ".join(map(code, seen.profilers))


def _number(alike: list[Launches], alone: bool) -> str:
    """`` of each iteration, 239 in 39 cases``: the launches of several workloads."""
    per = " of each iteration" if alike[0].per_iteration else ""
    of = "" if alone else f" of {listed((code(seen.workload) for seen in alike), most=3)}"
    return f"{per}, {count(sum(seen.number for seen in alike))} in {cases(sum(seen.cases for seen in alike))}{of}"


def _each(seen: Launches) -> str:
    """Of cases with as many launches, in how many these are of the same kernels; names may be a tool's own."""
    if seen.by_kernel == seen.cases - len(seen.differing):
        return "kernel by kernel"
    return f"kernel by kernel in {seen.by_kernel} of them" if seen.by_kernel else "though not of the same kernels"


def _unlike(seen: Launches, findings: Findings, alone: bool) -> str:
    labels = {point.id: case_label(point) for w in findings.workloads if w.name == seen.workload for point in w.points}
    named = listed(
        (f"{labels.get(case, case_id(case))} ({ours:.10g} and {theirs:.10g})" for case, ours, theirs in seen.differing),
        most=3,
    )
    where = f"{len(seen.differing)} of {cases(seen.cases)}" + ("" if alone else f" of {code(seen.workload)}")
    others = seen.cases - len(seen.differing)
    rest = f" In the other{f' {others}' if others > 1 else ''} they saw as many, {_each(seen)}." if others else ""
    per = " an iteration" if seen.per_iteration else ""
    return f"{_both(seen)} saw unlike numbers of launches{per} in {where}: {named}.{rest}"
