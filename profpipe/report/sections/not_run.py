"""Cases without a result: those that failed, those that are still missing, and those that were skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from profpipe.analysis.cases import in_words, is_number, shown
from profpipe.analysis.findings.warnings import NotRun
from profpipe.analysis.findings.workloads import Axes, CaseResult, Findings, WorkloadFindings
from profpipe.job import Status
from profpipe.report.document import Code, Column, Format, Link, Section, Table, Text, concat, join, make_table

OUTCOMES: Mapping[Status, str] = {
    Status.OOM: "out of memory",
    Status.TIMEOUT: "timed out",
    Status.FAILED: "failed",
    Status.CRASHED: "crashed",
    Status.INTERRUPTED: "interrupted",
    Status.SKIPPED: "skipped",
}

#: Cases, and groups of cases, that a row names; more are counted.
_NAMED, _GROUPS, _LOGS = 3, 6, 4

_Group = tuple[str, NotRun]


def failures(findings: Findings) -> Section:
    """Return what failed: the cases, the reason and the log."""
    groups = [(OUTCOMES[group.status], group) for group in findings.not_run if group.status.is_failure]
    return Section("failures", "Failed", (_table("failures", groups, findings),) if groups else ())


def unfinished(findings: Findings) -> Section:
    """Return what an interrupted run lacks."""
    groups = [(_progress(group, findings), group) for group in findings.not_run if group.status is Status.INTERRUPTED]
    for each in findings.pending:
        outcome = "cut off" if each.is_cut_off else "not started"
        group = NotRun(each.workload, Status.INTERRUPTED, "", each.profilers, each.cases, not each.cases)
        groups.append((outcome, group))
    table = _table("unfinished", groups, findings).without("reason")
    return Section("unfinished", "Not finished", (table,) if groups else ())


def skipped(findings: Findings) -> Section:
    """Return what was skipped: a row a reason; workloads that skip the same cases share it."""
    groups: dict[tuple[object, ...], list[NotRun]] = {}
    for group in findings.not_run:
        if group.status is Status.SKIPPED:
            same = () if group.is_whole_workload else (_variants(group, findings), len(group.cases))
            groups.setdefault((group.reason, group.profilers, *same), []).append(group)
    rows = []
    for same_groups in groups.values():
        first = same_groups[0]
        rows.append((
            join(Code(name) for name in dict.fromkeys(group.workload for group in same_groups)),
            name_cases(first, findings) or "all cases",
            sum(len(group.cases) for group in same_groups) or None,
            join(map(Code, _skipping(first, findings)), most=_GROUPS),
            first.reason,
        ))  # fmt: skip
    columns = (
        *_WORKLOAD,
        _CASES,
        _NUMBER,
        Column("profilers", "profilers", is_words=True),
        Column("reason", "reason", is_words=True),
    )
    table = _without_only_workload(make_table("skipped", columns, rows), findings)
    return Section("skipped", "Skipped", (table,) if rows else ())


_WORKLOAD = (Column("workload", "workload", is_label=True),)
_CASES = Column("cases", "cases", is_label=True)
_NUMBER = Column("number", "number", format=Format.COUNT)


def _table(id: str, groups: Sequence[_Group], findings: Findings) -> Table:
    columns = (
        Column("outcome", "outcome", is_label=True),
        *_WORKLOAD,
        Column("profilers", "profilers", is_label=True),
        _CASES,
        _NUMBER,
        Column("reason", "reason", is_words=True),
        Column("log", "log", is_words=True),
    )
    rows = [
        (
            outcome,
            Code(group.workload),
            join(map(Code, group.profilers), most=_GROUPS),
            "after the last case" if group.is_after_cases else name_cases(group, findings) or "all cases",
            len(group.cases) or None,
            group.reason or "not recorded",
            join((Link(log.rpartition("/")[2] or log, log) for log in group.logs), most=_LOGS),
        )
        for outcome, group in groups
    ]
    return _without_only_workload(make_table(id, columns, rows), findings)


def _without_only_workload(table: Table, findings: Findings) -> Table:
    return table if len(findings.workloads) > 1 else table.without("workload")


def _progress(group: NotRun, findings: Findings) -> str:
    """Return how far interrupted cases came: cases that take turns have the samples of earlier rounds."""
    has_times = "plain" in group.profilers and any(case.time for case in _cases_of(group, findings))
    return "not finished" if has_times else OUTCOMES[group.status]


def _skipping(group: NotRun, findings: Findings) -> tuple[str, ...]:
    """Return the profilers of skipped cases where other profilers ran the cases, or where every case was skipped."""
    ran = any(case.time or case.breakdown for case in _cases_of(group, findings))
    return group.profilers if ran or group.is_whole_workload else ()


# --- what cases have in common ---------------------------------------------------------------------------------------


def _workload(group: NotRun, findings: Findings) -> WorkloadFindings | None:
    return next((workload for workload in findings.workloads if workload.name == group.workload), None)


def _cases_of(group: NotRun, findings: Findings) -> list[CaseResult]:
    workload, ids = _workload(group, findings), set(group.cases)
    return [case for case in workload.cases if case.id in ids] if workload else []


def _variants(group: NotRun, findings: Findings) -> tuple[str, ...]:
    return tuple(dict.fromkeys(case.variant for case in _cases_of(group, findings)))


def name_cases(group: NotRun, findings: Findings) -> Text:
    """Return the cases of a group by the parameters that they share; empty for all cases of a workload."""
    if group.is_whole_workload:
        return ""
    workload = _workload(group, findings)
    variants = {case.id: case.variant for case in workload.cases} if workload else {}
    by_variant: dict[str, list[str]] = {}
    for case in group.cases:
        by_variant.setdefault(variants.get(case, ""), []).append(case)
    return join((_named(workload, variant, cases) for variant, cases in by_variant.items()), most=_GROUPS)


def _named(workload: WorkloadFindings | None, variant: str, cases: Sequence[str]) -> Text:
    """Return a variant and the axes that distinguish these cases: ``sage with mode=fwd_bwd``."""
    own = [case for case in workload.cases if case.variant == variant] if workload else []
    chosen = [case for case in own if case.id in set(cases)]
    if not chosen or len(chosen) < len(cases):
        return join((Code(unquote(case)) for case in cases), most=_NAMED)
    name: Text = Code(variant) if variant else ()
    if len(chosen) == len(own):
        return name or "every case"
    common = tuple(pair for pair in chosen[0].shape if all(_has(case, pair) for case in chosen))
    if common and sum(all(_has(case, pair) for pair in common) for case in own) == len(chosen):
        return concat(name, " " if name else "", _at(common))
    if values := _distinguishing_values(chosen, own):
        return concat(name, " " if name else "", values)
    return concat(name, " " if name else "", join((_at(case.shape) for case in chosen), most=_NAMED))


def _has(case: CaseResult, pair: tuple[str, object]) -> bool:
    return any(axis == pair[0] and shown(value) == shown(pair[1]) for axis, value in case.shape)


def _at(axes: Axes) -> Text:
    """Return ``with mode=fwd at seqlen 512``: a number follows the name of its axis."""
    words = join(Code(f"{axis}={shown(value)}") for axis, value in axes if not is_number(value))
    numbers = in_words(tuple(pair for pair in axes if is_number(pair[1])))
    return concat("with " if words else "", words, " " if words and numbers else "", f"at {numbers}" if numbers else "")


def _distinguishing_values(chosen: Sequence[CaseResult], own: Sequence[CaseResult]) -> Text:
    """Return ``at seqlen 32768 and 65536`` where ``chosen`` are all cases with these values; else an empty text."""
    if len(chosen) < 4:
        return ""
    values, every = _values(chosen), _values(own)
    some = {axis: here for axis, here in values.items() if here != every[axis]}
    among = [case for case in own if all(shown(value) in values.get(axis, ()) for axis, value in case.shape)]
    if len(among) != len(chosen) or not some:
        return ""
    numeric = {axis for axis, value in chosen[0].shape if is_number(value)}
    words = join(concat(Code(axis), " ", join(map(Code, here))) for axis, here in some.items() if axis not in numeric)
    sizes = join(concat(f"{axis} ", join(here)) for axis, here in some.items() if axis in numeric)
    return concat("with " if words else "", words, " " if words and sizes else "", "at " if sizes else "", sizes)


def _values(cases: Iterable[CaseResult]) -> dict[str, tuple[str, ...]]:
    """Return each axis with the values that ``cases`` have on it."""
    found: dict[str, dict[str, None]] = {}
    for case in cases:
        for axis, value in case.shape:
            found.setdefault(axis, {})[shown(value)] = None
    return {axis: tuple(values) for axis, values in found.items()}
