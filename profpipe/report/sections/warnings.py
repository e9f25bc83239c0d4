"""Warnings, one line per reason not to trust a number, and the cases without a result.

The most serious warning comes first. Cases without a result failed, are still missing, or were skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from profpipe.analysis.cases import in_words, is_number
from profpipe.analysis.findings import CaseResult, DuplicateCase, Findings, LaunchCounts, NotRun, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.job import Incident, IncidentKind, Status, as_text, count_cases
from profpipe.report import document as doc
from profpipe.report.labels import add_workload, case_text, case_texts, fill, names
from profpipe.report.sections import agreement, environment, kernels, steps
from profpipe.report.units import SIGNED_PERCENT, time_unit
from profpipe.results.manifest import Manifest, RefusedFile
from profpipe.results.tasks import TaskState

#: Cases and duplicates that a warning names; more are counted.
_NAMED = 3


def warnings(findings: Findings, run: Manifest) -> doc.Section:
    """Return the warnings of a run."""
    lines = dict.fromkeys(line for _, line in list_warnings(findings, run))
    return doc.make_section("warnings", "Warnings", [doc.Bullets(tuple(lines))])


def list_warnings(findings: Findings, run: Manifest) -> Iterator[tuple[str, doc.Text]]:
    """Yield each warning with what it is about, a word for programs such as ``uneven``."""
    kinds = {
        "incomplete": _incomplete(findings, run),
        "failed": _failed(findings),
        "unexpected_kernel": _unexpected_kernels(findings),
        "not_read": map(_unread, run.refused),
        "incident": map(_incident, run.incidents),
        "classified": kernels.low_coverage(findings),
        "unseen": _unseen(findings),
        "outside": _outside(findings),
        "differ": (line for workload in findings.workloads for line in _unexplained_differences(workload, findings)),
        "launches": (
            _lost_launches(launch_count, findings) for launch_count in findings.launch_counts if launch_count.differing
        ),
    }
    yield from ((kind, line) for kind, lines in kinds.items() for line in lines)
    yield from (pair for workload in findings.workloads for pair in steps.warnings(workload))
    yield from (("duplicates", line) for line in _duplicates(findings.duplicates))
    yield from (("file", line) for line in environment.notes(findings, run, are_warnings=True))


def _incomplete(findings: Findings, run: Manifest) -> Iterator[doc.Text]:
    """Yield how to continue a run that was stopped, and what it lacks."""
    groups = [group for group in findings.not_run if group.status is Status.INTERRUPTED]
    if findings.has_ended and not groups:
        return
    if any(group.task_state for group in findings.pending):
        yield _lacking_tasks(findings, run)
        return
    yield doc.concat(
        (doc.Strong("Not complete"), ": ", doc.Code(environment.command_on(run, "resume")), " continues the run."),
        (" It lacks ", doc.Link("these cases", "#unfinished"), ".") if groups or findings.pending else "",
    )


def _lacking_tasks(findings: Findings, run: Manifest) -> doc.Text:
    """Return how to go on with a run on a cluster: collect it again, or submit what is missing."""
    states = [group.task_state for group in findings.pending if group.task_state]
    ways = []
    if any(state.is_queued for state in states):
        ways.append(
            doc.concat(doc.Code(environment.command_on(run, "collect")), " reads what its tasks have done by then")
        )
    if any(not state.is_queued for state in states):
        ways.append(doc.concat(doc.Code(environment.command_on(run, "resume")), " submits again what has stopped"))
    return doc.concat(
        doc.Strong("Not complete"), ": ", doc.join(ways), ". It lacks ", doc.Link("these cases", "#unfinished"), "."
    )


def _failed(findings: Findings) -> Iterator[doc.Text]:
    failed = [group for group in findings.not_run if group.status.is_failure]
    counts = grouped((_word(group.status, _OUTCOMES), max(len(group.cases), 1)) for group in failed)
    if counts:
        outcomes = doc.join(f"{count_cases(sum(numbers))} {outcome}" for outcome, numbers in counts.items())
        more = doc.Link("reasons and logs", "#failures")
        only, *others = dict.fromkeys(group.reason for group in failed)
        if only and not others and all(group.status is Status.FAILED for group in failed):
            yield doc.concat(doc.Strong(outcomes), ": ", only.rstrip("."), " (", more, ").")
        else:
            yield doc.concat(doc.Strong(outcomes), ": ", more, ".")


def _unexpected_kernels(findings: Findings) -> Iterator[doc.Text]:
    """Yield a line for the cases that requested one kernel family and ran the same other one."""
    groups = grouped(
        ((expectation.workload, expectation.requested, expectation.found), expectation.case)
        for expectation in findings.expectations
        if not expectation.is_met
    )
    for (workload, requested, families), cases in groups.items():
        named = doc.join((doc.Code(unquote(case)) for case in cases), most=_NAMED)
        ran = doc.join(map(doc.Code, families)) or "no attention kernel (gemm and softmax)"
        yield doc.concat(
            doc.Strong("Unexpected kernel"), ": ", named, add_workload(workload, findings), " requested ",
            doc.join(map(doc.Code, requested.split("|")), last=" or "), " and ran ", ran, ".",
        )  # fmt: skip


def _unread(refused: RefusedFile) -> doc.Text:
    what, remedy = environment.as_sentence(refused.what), environment.as_sentence(refused.remedy)
    return doc.concat("Not read: ", doc.Code(refused.source), ": ", f"{what} {remedy}".strip())


def _unseen(findings: Findings) -> Iterator[doc.Text]:
    for (workload, profiler), ids in findings.unseen.items():
        cases = findings.cases_of(workload)
        named = doc.join((case_text(cases[id]) if id in cases else doc.Code(unquote(id)) for id in ids), most=_NAMED)
        noun = "operator" if any(cases[id].is_on_cpu for id in ids if id in cases) else "kernel"
        what = f" recorded no {noun} of {count_cases(len(ids))}"
        yield doc.concat(doc.Code(profiler), what, add_workload(workload, findings), " that ran: ", named, ".")


#: What happened, and what it means for the results.
_INCIDENTS: Mapping[IncidentKind, tuple[str, str]] = {
    IncidentKind.RESTARTED: ("a process ended before its last case", "Another process ran the cases that were left."),
    IncidentKind.DAMAGED_JOURNAL: (
        "some lines of this record of the job could not be read",
        "Cases without an end in it ran again.",
    ),
    IncidentKind.UNKNOWN_SETTINGS: (
        "the run was started by a version with settings that this one does not know",
        "They were left out.",
    ),
    IncidentKind.ENDED: ("the program did not end by itself", "The figures are of what it did until then."),
    IncidentKind.LEFT_OUT: ("measures what did not fit into the budget", "It takes the other jobs from this run."),
}


def _incident(incident: Incident) -> doc.Text:
    what, meaning = _INCIDENTS[incident.kind]
    details = f" ({' '.join(incident.details.split())})" if incident.details else ""
    return doc.concat(doc.Code(incident.source), f": {what}{details}. {meaning}")


def _outside(findings: Findings) -> Iterator[doc.Text]:
    hint = " ncu knows only the ranges of the launching thread: kernels that autograd's thread launches are in none."
    for unattributed in findings.unattributed:
        if unattributed.unexplained >= environment.LEAST_UNEXPLAINED:
            yield doc.concat(
                environment.outside(unattributed, findings), ".", hint if unattributed.profiler == "ncu" else ""
            )


def _unexplained_differences(workload: WorkloadFindings, findings: Findings) -> Iterator[doc.Text]:
    """Yield a line per profiler whose times differ from the reference without a known cause."""
    labels = case_texts(workload.cases)
    unexplained = grouped(
        (time.profiler, (labels[case], doc.Amount(time.difference, SIGNED_PERCENT)))
        for case, times in workload.agreements.items()
        for time in times
        if time.is_unexplained
    )
    reference = agreement.find_reference(workload)
    for profiler, differing in unexplained.items():
        who: doc.Text = "The time of calls" if profiler == "plain" else doc.Code(profiler)
        yield doc.concat(
            who, " and ", doc.Code(reference), " differ without a known cause in ",
            f"{len(differing)} of {count_cases(len(workload.agreements))}", add_workload(workload.name, findings), ": ",
            doc.join((fill("{} ({})", *case) for case in differing), most=_NAMED), ".",
        )  # fmt: skip


def _lost_launches(counts: LaunchCounts, findings: Findings) -> doc.Text:
    per = " per iteration" if counts.is_per_iteration else ""
    labels = case_texts(findings.cases_of(counts.workload).values())
    named = (
        doc.concat(labels.get(case, doc.Code(unquote(case))), f" ({first:.10g} and {second:.10g})")
        for case, first, second in counts.differing
    )
    number = f"{len(counts.differing)} of {count_cases(counts.cases)}"
    return doc.concat(
        doc.join(map(doc.Code, counts.profilers)), f" recorded different numbers of launches{per} in {number}",
        add_workload(counts.workload, findings), ": ", doc.join(named, most=_NAMED), ".",
    )  # fmt: skip


def _duplicates(pairs: Sequence[tuple[DuplicateCase, DuplicateCase]]) -> Iterator[doc.Text]:
    """Yield one line on the cases that two workloads measured with different times."""
    named = []
    for longer, shorter in grouped(pairs).items():
        unit = time_unit([longer.ns])
        times = doc.join(fill("{} in {}", doc.Amount(c.ns, unit), doc.Code(c.workload)) for c in (longer, *shorter))
        named.append(doc.concat(in_words(longer.axes) or "the only case", ": ", times))
    if named:
        yield doc.concat("The same case has different times in two workloads; trust neither: ",
                     doc.join(named, separator="; ", last="; ", most=_NAMED), ".")  # fmt: skip


# --- not run ----------------------------------------------------------------------------------------------------------

#: The words for outcomes, and for tasks of a cluster, where they differ from the values. `failed` is in both.
_OUTCOMES: Mapping[str, str] = {Status.OOM: "out of memory", Status.TIMEOUT: "timed out"}
_TASKS: Mapping[str, str] = {
    TaskState.OUT_OF_MEMORY: "host memory",
    TaskState.KILLED: "killed by SIGKILL",
    TaskState.STOPPED: "stopped by a signal",
    TaskState.FAILED: "task failed",
    TaskState.UNKNOWN: "unknown to Slurm",
}

#: Cases, and groups of cases, that a row names; more are counted.
_NAMED, _GROUPS, _LOGS = 3, 6, 4

_Group = tuple[str, NotRun]


def _word(state: Status | TaskState, words: Mapping[str, str]) -> str:
    return words.get(state, state.value.replace("_", " "))


def failures(findings: Findings) -> doc.Section:
    """Return what failed: the cases, the reason and the log."""
    groups = [(_word(group.status, _OUTCOMES), group) for group in findings.not_run if group.status.is_failure]
    return doc.make_section("failures", "Failed", [_table("failures", groups, findings)])


def unfinished(findings: Findings) -> doc.Section:
    """Return what an interrupted run lacks."""
    groups = []
    for group in findings.not_run:
        if group.status is Status.INTERRUPTED:
            # Cases that take turns have the samples of earlier rounds.
            has_times = "plain" in group.profilers and any(case.time for case in _cases_of(group, findings))
            groups.append(("not finished" if has_times else _word(group.status, _OUTCOMES), group))
    for group in findings.pending:
        not_queued = "cut off" if group.is_cut_off else "not started"
        groups.append((_word(group.task_state, _TASKS) if group.task_state else not_queued, group))
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
        (doc.label("workload"), lambda row: names(list(dict.fromkeys(group.workload for group in row)), len(row))),
        (doc.label("cases"), lambda row: name_cases(row[0], findings) or "all cases"),
        (doc.count("number"), lambda row: sum(len(group.cases) for group in row) or None),
        (doc.words("profilers"), lambda row: profilers(row[0])),
        (doc.words("reason"), lambda row: row[0].reason),
    ]
    groups = grouped((alike(group), group) for group in findings.not_run if group.status is Status.SKIPPED)
    table = doc.table_of("skipped", groups.values(), columns)
    return doc.make_section("skipped", "Skipped", [_drop_only_workload(table, findings)])


def _table(id: str, groups: Sequence[_Group], findings: Findings) -> doc.TableBlock:
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
    return _drop_only_workload(doc.table_of(id, groups, columns), findings)


def _drop_only_workload(table: doc.TableBlock, findings: Findings) -> doc.TableBlock:
    return table if len(findings.workloads) > 1 else table.without("workload")


# --- what cases have in common ---------------------------------------------------------------------------------------


def _cases_of(group: NotRun, findings: Findings) -> list[CaseResult]:
    ids = set(group.cases)
    return [case for id, case in findings.cases_of(group.workload).items() if id in ids]


def name_cases(group: NotRun, findings: Findings) -> doc.Text:
    """Return the cases of a group by the parameters that they share; empty for all cases of a workload."""
    if group.is_whole_workload:
        return ""
    all_cases = findings.cases_of(group.workload)
    by_variant = grouped((all_cases[id].variant if id in all_cases else "", id) for id in group.cases)
    variant_cases = {
        variant: [case for case in all_cases.values() if case.variant == variant] for variant in by_variant
    }
    return doc.join((_named(variant_cases[variant], variant, ids) for variant, ids in by_variant.items()), most=_GROUPS)


def _named(variant_cases: Sequence[CaseResult], variant: str, ids: Sequence[str]) -> doc.Text:
    """Return a variant and the axes that distinguish the cases ``ids`` from its others: ``sage with mode=fwd_bwd``."""
    named = set(ids)
    chosen = [case for case in variant_cases if case.id in named]
    if not chosen or len(chosen) < len(ids):
        return names([unquote(id) for id in ids], _NAMED)
    name: doc.Text = doc.Code(variant) if variant else ()
    if len(chosen) == len(variant_cases):
        return name or "every case"
    values, all_values = _values(chosen), _values(variant_cases)
    shared = {axis: here for axis, here in values.items() if len(here) == 1}
    some = {axis: here for axis, here in values.items() if here != all_values[axis] and len(chosen) >= 4}
    for axes in (shared, some):
        among = [
            case
            for case in variant_cases
            if all(as_text(dict(case.shape)[axis]) in here for axis, here in axes.items())
        ]
        if axes and len(among) == len(chosen):
            return doc.concat(name, " " if name else "", _at(axes))
    listed = doc.join((_at(_values([case])) for case in chosen), most=_NAMED)
    return doc.concat(name, " " if name else "", listed)


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
    return {axis: {as_text(value): value for value in axis_values} for axis, axis_values in values.items()}
