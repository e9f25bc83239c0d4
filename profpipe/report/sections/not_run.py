"""Cases without a result: those that failed, those that are still missing, and those that were skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from profpipe.analysis.cases import is_number, shown
from profpipe.analysis.findings.warnings import NotRun
from profpipe.analysis.findings.workloads import CaseResult, Findings
from profpipe.analysis.grouping import grouped
from profpipe.job import Status
from profpipe.report import document as doc
from profpipe.report.labels import names
from profpipe.results.tasks import TaskState

OUTCOMES: Mapping[Status, str] = {
    Status.OOM: "out of memory",
    Status.TIMEOUT: "timed out",
    Status.FAILED: "failed",
    Status.CRASHED: "crashed",
    Status.INTERRUPTED: "interrupted",
    Status.SKIPPED: "skipped",
}

#: What became of a task of a cluster.
TASKS: Mapping[TaskState, str] = {
    TaskState.PENDING: "pending",
    TaskState.RUNNING: "running",
    TaskState.REQUEUED: "requeued",
    TaskState.NODE_FAILED: "node failed",
    TaskState.TIME_LIMIT: "time limit",
    TaskState.CANCELLED: "cancelled",
    TaskState.PREEMPTED: "preempted",
    TaskState.OUT_OF_MEMORY: "host memory",
    TaskState.KILLED: "killed by SIGKILL",
    TaskState.STOPPED: "stopped by a signal",
    TaskState.FAILED: "task failed",
    TaskState.NOT_SUBMITTED: "not submitted",
    TaskState.UNKNOWN: "unknown to Slurm",
}

#: Cases, and groups of cases, that a row names; more are counted.
_NAMED, _GROUPS, _LOGS = 3, 6, 4

_Group = tuple[str, NotRun]


def failures(findings: Findings) -> doc.Section:
    """Return what failed: the cases, the reason and the log."""
    groups = [(OUTCOMES[group.status], group) for group in findings.not_run if group.status.is_failure]
    return doc.make_section("failures", "Failed", [_table("failures", groups, findings)])


def unfinished(findings: Findings) -> doc.Section:
    """Return what an interrupted run lacks."""
    groups = []
    for group in findings.not_run:
        if group.status is Status.INTERRUPTED:
            # Cases that take turns have the samples of earlier rounds.
            has_times = "plain" in group.profilers and any(case.time for case in _cases_of(group, findings))
            groups.append(("not finished" if has_times else OUTCOMES[group.status], group))
    for group in findings.pending:
        not_queued = "cut off" if group.is_cut_off else "not started"
        groups.append((TASKS[group.task_state] if group.task_state else not_queued, group))
    table = _table("unfinished", groups, findings)
    has_reasons = any(group.task_state for _, group in groups)
    return doc.make_section("unfinished", "Not finished", [table if has_reasons else table.without("reason")])


def skipped(findings: Findings) -> doc.Section:
    """Return what was skipped: a row a reason; workloads that skip the same cases share it."""

    def alike(group: NotRun) -> tuple[object, ...]:
        variants = tuple(dict.fromkeys(case.variant for case in _cases_of(group, findings)))
        return (group.reason, group.profilers, *(() if group.is_whole_workload else (variants, len(group.cases))))

    def profilers(group: NotRun) -> doc.Text:
        """Return the profilers of skipped cases that other profilers ran, and of wholly skipped workloads."""
        ran = any(case.time or case.breakdown for case in _cases_of(group, findings))
        return names(group.profilers if ran or group.is_whole_workload else (), _GROUPS)

    columns = [
        (doc.label("workload"), lambda own: names(list(dict.fromkeys(group.workload for group in own)), len(own))),
        (doc.label("cases"), lambda own: name_cases(own[0], findings) or "all cases"),
        (doc.count("number"), lambda own: sum(len(group.cases) for group in own) or None),
        (doc.words("profilers"), lambda own: profilers(own[0])),
        (doc.words("reason"), lambda own: own[0].reason),
    ]
    groups = grouped((alike(group), group) for group in findings.not_run if group.status is Status.SKIPPED)
    table = doc.table_of("skipped", groups.values(), columns)
    return doc.make_section("skipped", "Skipped", [_without_only_workload(table, findings)])


def _table(id: str, groups: Sequence[_Group], findings: Findings) -> doc.Table:
    def cases(group: NotRun) -> doc.Text:
        return "after the last case" if group.is_after_cases else name_cases(group, findings) or "all cases"

    def logs(group: NotRun) -> doc.Text:
        return doc.join((doc.Link(log.rpartition("/")[2] or log, log) for log in group.logs), most=_LOGS)

    columns = [
        (doc.label("outcome"), lambda pair: pair[0]),
        (doc.label("workload"), lambda pair: doc.Code(pair[1].workload)),
        (doc.label("profilers"), lambda pair: names(pair[1].profilers, _GROUPS)),
        (doc.label("cases"), lambda pair: cases(pair[1])),
        (doc.count("number"), lambda pair: len(pair[1].cases) or None),
        (doc.words("nodes"), lambda pair: doc.join(pair[1].nodes, most=_NAMED)),
        (doc.words("reason"), lambda pair: pair[1].reason or ("" if pair[1].task_state else "not recorded")),
        (doc.words("log"), lambda pair: logs(pair[1])),
    ]
    return _without_only_workload(doc.table_of(id, groups, columns), findings)


def _without_only_workload(table: doc.Table, findings: Findings) -> doc.Table:
    return table if len(findings.workloads) > 1 else table.without("workload")


# --- what cases have in common ---------------------------------------------------------------------------------------


def _cases_of(group: NotRun, findings: Findings) -> list[CaseResult]:
    ids = set(group.cases)
    return [case for id, case in findings.cases_of(group.workload).items() if id in ids]


def name_cases(group: NotRun, findings: Findings) -> doc.Text:
    """Return the cases of a group by the parameters that they share; empty for all cases of a workload."""
    if group.is_whole_workload:
        return ""
    every = findings.cases_of(group.workload)
    by_variant = grouped((every[id].variant if id in every else "", id) for id in group.cases)
    own = {variant: [case for case in every.values() if case.variant == variant] for variant in by_variant}
    return doc.join((_named(own[variant], variant, ids) for variant, ids in by_variant.items()), most=_GROUPS)


def _named(own: Sequence[CaseResult], variant: str, ids: Sequence[str]) -> doc.Text:
    """Return a variant and the axes that distinguish the cases ``ids`` among ``own``: ``sage with mode=fwd_bwd``."""
    named = set(ids)
    chosen = [case for case in own if case.id in named]
    if not chosen or len(chosen) < len(ids):
        return names([unquote(id) for id in ids], _NAMED)
    name: doc.Text = doc.Code(variant) if variant else ()
    if len(chosen) == len(own):
        return name or "every case"
    values, every = _values(chosen), _values(own)
    shared = {axis: here for axis, here in values.items() if len(here) == 1}
    some = {axis: here for axis, here in values.items() if here != every[axis] and len(chosen) >= 4}
    for axes in (shared, some):
        among = [case for case in own if all(shown(dict(case.shape)[axis]) in here for axis, here in axes.items())]
        if axes and len(among) == len(chosen):
            return doc.concat(name, " " if name else "", _at(axes))
    each = doc.join((_at(_values([case])) for case in chosen), most=_NAMED)
    return doc.concat(name, " " if name else "", each)


def _at(values: Mapping[str, Mapping[str, object]]) -> doc.Text:
    """Return ``with mode=fwd at seqlen 512 and 2048``: a number follows the name of its axis."""
    numeric = {axis for axis, here in values.items() if all(map(is_number, here.values()))}
    words = doc.join(
        doc.Code(f"{axis}={next(iter(here))}") if len(here) == 1 else doc.concat(doc.Code(axis), " ", names(list(here)))
        for axis, here in values.items()
        if axis not in numeric
    )
    is_single = all(len(here) == 1 for here in values.values())
    sizes = doc.join(
        (doc.concat(f"{axis} ", doc.join(here)) for axis, here in values.items() if axis in numeric),
        last=", " if is_single else " and ",
    )
    return doc.concat("with " if words else "", words, " " if words and sizes else "", "at " if sizes else "", sizes)


def _values(cases: Iterable[CaseResult]) -> dict[str, dict[str, object]]:
    """Return each axis with the values that ``cases`` have on it, by their text."""
    values = grouped(pair for case in cases for pair in case.shape)
    return {axis: {shown(value): value for value in own} for axis, own in values.items()}
