"""Warnings: one line for each reason not to trust a number, the most serious first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.warnings import DuplicateTimes, LaunchCounts, Unseen
from profpipe.analysis.findings.workloads import Findings, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.job import Incident, IncidentKind, Status, count_cases
from profpipe.report import document as doc
from profpipe.report.inlines import fill
from profpipe.report.labels import case_text, case_texts, of_workload
from profpipe.report.sections import classification, files, steps
from profpipe.report.sections.not_run import OUTCOMES
from profpipe.report.units import time_unit
from profpipe.results.manifest import Manifest, RefusedFile

#: Cases and duplicates that a warning names; more are counted.
_NAMED = 3


def warnings(findings: Findings, run: Manifest) -> doc.Section:
    """Return the warnings of a run."""
    lines = (
        *_incomplete(findings),
        *_failed(findings),
        *_unexpected_kernels(findings),
        *map(_unread, run.refused),
        *map(_incident, run.incidents),
        *classification.low_coverage(findings),
        *(_unseen(each, findings) for each in findings.unseen),
        *_outside(findings),
        *(line for workload in findings.workloads for line in _unexplained_differences(workload, findings)),
        *(_lost_launches(each, findings) for each in findings.launch_counts if each.differing),
        *(line for workload in findings.workloads for line in steps.warnings(workload)),
        *_duplicates(findings.duplicates),
        *files.notes(findings, run, are_warnings=True),
    )
    return doc.make_section("warnings", "Warnings", [doc.Bullets(tuple(dict.fromkeys(lines)))])


def _incomplete(findings: Findings) -> Iterator[doc.Text]:
    """Yield how to continue a run that was stopped, and what it lacks."""
    groups = [group for group in findings.not_run if group.status is Status.INTERRUPTED]
    if findings.has_ended and not groups:
        return
    if any(group.task_state for group in findings.pending):
        yield _lacking_tasks(findings)
        return
    yield doc.concat(
        (doc.Strong("Not complete"), ": ", doc.Code("profpipe resume"), " with this folder continues the run."),
        (" It lacks ", doc.Link("these cases", "#unfinished"), ".") if groups or findings.pending else "",
    )


def _lacking_tasks(findings: Findings) -> doc.Text:
    """Return how to go on with a run on a cluster: collect it again, or submit what is missing."""
    states = [group.task_state for group in findings.pending if group.task_state]
    ways = []
    if any(state.is_queued for state in states):
        ways.append(doc.concat(doc.Code("profpipe collect"), " reads what its tasks have done by then"))
    if any(not state.is_queued for state in states):
        ways.append(doc.concat(doc.Code("profpipe resume"), " submits again what has stopped"))
    return doc.concat(
        doc.Strong("Not complete"), ": ", doc.join(ways), ". It lacks ", doc.Link("these cases", "#unfinished"), "."
    )


def _failed(findings: Findings) -> Iterator[doc.Text]:
    failed = [group for group in findings.not_run if group.status.is_failure]
    counts = grouped((OUTCOMES[group.status], max(len(group.cases), 1)) for group in failed)
    if counts:
        outcomes = doc.join(f"{count_cases(sum(numbers))} {outcome}" for outcome, numbers in counts.items())
        yield doc.concat(doc.Strong(outcomes), ": ", doc.Link("reasons and logs", "#failures"), ".")


def _unexpected_kernels(findings: Findings) -> Iterator[doc.Text]:
    """Yield a line for the cases that requested one kernel family and ran the same other one."""
    groups = grouped(
        ((each.workload, each.requested, each.found), each.case) for each in findings.expectations if not each.is_met
    )
    for (workload, requested, found), cases in groups.items():
        named = doc.join((doc.Code(unquote(case)) for case in cases), most=_NAMED)
        ran = doc.join(map(doc.Code, found)) or "no attention kernel (gemm and softmax)"
        yield doc.concat(
            doc.Strong("Unexpected kernel"), ": ", named, of_workload(workload, findings), " requested ",
            doc.join(map(doc.Code, requested.split("|")), last=" or "), " and ran ", ran, ".",
        )  # fmt: skip


def _unread(refused: RefusedFile) -> doc.Text:
    what, remedy = files.as_sentence(refused.what), files.as_sentence(refused.remedy)
    return doc.concat("Not read: ", doc.Code(refused.source), ": ", f"{what} {remedy}".strip())


def _unseen(unseen: Unseen, findings: Findings) -> doc.Text:
    cases = findings.cases_of(unseen.workload)
    named = doc.join(
        (case_text(cases[id]) if id in cases else doc.Code(unquote(id)) for id in unseen.cases), most=_NAMED
    )
    noun = "operator" if any(cases[id].is_on_cpu for id in unseen.cases if id in cases) else "kernel"
    number = count_cases(len(unseen.cases))
    where = of_workload(unseen.workload, findings)
    return doc.concat(doc.Code(unseen.profiler), f" recorded no {noun} of {number}", where, " that ran: ", named, ".")


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
}


def _incident(incident: Incident) -> doc.Text:
    what, meaning = _INCIDENTS[incident.kind]
    details = f" ({' '.join(incident.details.split())})" if incident.details else ""
    return doc.concat(doc.Code(incident.source), f": {what}{details}. {meaning}")


def _outside(findings: Findings) -> Iterator[doc.Text]:
    hint = " ncu knows only the ranges of the launching thread: kernels that autograd's thread launches are in none."
    for found in findings.unattributed:
        if found.unexplained >= files.LEAST_UNEXPLAINED:
            yield doc.concat(files.outside(found, findings), ".", hint if found.profiler == "ncu" else "")


def _unexplained_differences(workload: WorkloadFindings, findings: Findings) -> Iterator[doc.Text]:
    """Yield a line for each profiler whose times differ from the reference without a known cause."""
    labels = case_texts(workload.cases)
    unexplained = grouped(
        (figure.profiler, (labels[each.case], doc.Number(figure.difference, format=doc.Format.SIGNED_PERCENT)))
        for each in workload.agreements
        for figure in each.figures
        if figure.is_unexplained
    )
    for profiler, own in unexplained.items():
        who: doc.Text = "The time of calls" if profiler == "plain" else doc.Code(profiler)
        yield doc.concat(
            who, " and ", doc.Code(workload.agreements[0].reference), " differ without a known cause in ",
            f"{len(own)} of {count_cases(len(workload.agreements))}", of_workload(workload.name, findings), ": ",
            doc.join((fill("{} ({})", *case) for case in own), most=_NAMED), ".",
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
        of_workload(counts.workload, findings), ": ", doc.join(named, most=_NAMED), ".",
    )  # fmt: skip


def _duplicates(pairs: Sequence[DuplicateTimes]) -> Iterator[doc.Text]:
    """Yield one line on the cases that two workloads measured with different times."""
    named = []
    for longer, shorter in grouped((pair.longer, pair.shorter) for pair in pairs).items():
        unit = time_unit([longer.ns])
        times = doc.join(fill("{} in {}", doc.Number(c.ns, unit), doc.Code(c.workload)) for c in (longer, *shorter))
        named.append(doc.concat(in_words(longer.axes) or "the only case", ": ", times))
    if named:
        yield doc.concat("The same case has different times in two workloads; trust neither: ",
                     doc.join(named, separator="; ", last="; ", most=_NAMED), ".")  # fmt: skip
