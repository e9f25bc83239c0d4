"""Warnings: one line for each reason not to trust a number, the most serious first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.warnings import DuplicateTimes, Expectation, LaunchCounts, Unattributed, Unseen
from profpipe.analysis.findings.workloads import Findings, WorkloadFindings
from profpipe.job import Status, count_cases
from profpipe.report.document import (
    Bullets,
    Code,
    Format,
    Link,
    Number,
    Section,
    Strong,
    Text,
    concat,
    join,
)
from profpipe.report.labels import case_text, of_workload
from profpipe.report.sections import classification, files
from profpipe.report.sections.not_run import OUTCOMES
from profpipe.report.units import time_unit
from profpipe.results.manifest import Manifest, RefusedFile

#: Cases and duplicates that a warning names; more are counted.
_NAMED = 3


def warnings(findings: Findings, run: Manifest) -> Section:
    """Return the warnings of a run."""
    lines = (
        *_incomplete(findings),
        *_failed(findings),
        *_unexpected_kernels(findings),
        *(_unread(each) for each in run.refused),
        *classification.low_coverage(findings),
        *(_unseen(each, findings) for each in findings.unseen),
        *(_outside(each, findings) for each in findings.unattributed if each.unexplained >= files.LEAST_UNEXPLAINED),
        *(line for workload in findings.workloads for line in _unexplained_differences(workload, findings)),
        *(_lost_launches(each, findings) for each in findings.launch_counts if each.differing),
        *_duplicates(findings.duplicates),
        *files.notes(findings, run, are_warnings=True),
    )
    return Section("warnings", "Warnings", (Bullets(tuple(dict.fromkeys(lines))),) if lines else ())


def _incomplete(findings: Findings) -> Iterator[Text]:
    """Yield how to continue a run that was stopped, and what it lacks."""
    groups = [group for group in findings.not_run if group.status is Status.INTERRUPTED]
    if findings.has_ended and not groups:
        return
    yield concat(
        (Strong("Not complete"), ": ", Code("profpipe resume"), " with this folder continues the run."),
        (" It lacks ", Link("these cases", "#unfinished"), ".") if groups or findings.pending else "",
    )


def _failed(findings: Findings) -> Iterator[Text]:
    counts: Counter[str] = Counter()
    for group in findings.not_run:
        if group.status.is_failure:
            counts[OUTCOMES[group.status]] += max(len(group.cases), 1)
    if counts:
        outcomes = join(f"{count_cases(number)} {outcome}" for outcome, number in counts.items())
        yield concat(Strong(outcomes), ": ", Link("reasons and logs", "#failures"), ".")


def _unexpected_kernels(findings: Findings) -> Iterator[Text]:
    """Yield a line for the cases that requested one kernel family and ran the same other one."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Expectation]] = {}
    for each in findings.expectations:
        if not each.is_met:
            groups.setdefault((each.workload, each.requested, each.found), []).append(each)
    for (workload, requested, found), expectations in groups.items():
        named = join((Code(unquote(each.case)) for each in expectations), most=_NAMED)
        ran = join(map(Code, found)) or "no attention kernel (gemm and softmax)"
        yield concat(
            Strong("Unexpected kernel"), ": ", named, of_workload(workload, findings), " requested ",
            join(map(Code, requested.split("|")), last=" or "), " and ran ", ran, ".",
        )  # fmt: skip


def _unread(refused: RefusedFile) -> Text:
    reason = " ".join(files.as_sentence(text) for text in (refused.what, refused.remedy) if text)
    return concat("Not read: ", Code(refused.source), f": {reason}")


def _unseen(unseen: Unseen, findings: Findings) -> Text:
    cases = {case.id: case for w in findings.workloads if w.name == unseen.workload for case in w.cases}
    named = join((case_text(cases[id]) if id in cases else Code(unquote(id)) for id in unseen.cases), most=_NAMED)
    breakdowns = [cases[id].breakdown for id in unseen.cases if id in cases]
    noun = "operator" if any(each and each.kind == "cpu_op" for each in breakdowns) else "kernel"
    number = count_cases(len(unseen.cases))
    where = of_workload(unseen.workload, findings)
    return concat(Code(unseen.profiler), f" recorded no {noun} of {number}", where, " that ran: ", named, ".")


def _outside(found: Unattributed, findings: Findings) -> Text:
    hint = (
        " ncu knows only the ranges of the launching thread: kernels that autograd's thread launches are in none."
        if found.profiler == "ncu"
        else ""
    )
    return concat(files.outside(found, findings), ".", hint)


def _unexplained_differences(workload: WorkloadFindings, findings: Findings) -> Iterator[Text]:
    """Yield a line for each profiler whose times differ from the reference without a known cause."""
    labels = {case.id: case_text(case) for case in workload.cases}
    flagged: dict[str, list[Text]] = {}
    for agreement in workload.agreements:
        for figure in agreement.figures:
            if figure.is_unexplained:
                difference = Number(figure.difference, format=Format.SIGNED_PERCENT)
                named = concat(labels[agreement.case], " (", difference, ")")
                flagged.setdefault(figure.profiler, []).append(named)
    for profiler, named_cases in flagged.items():
        who: Text = "The time of calls" if profiler == "plain" else Code(profiler)
        yield concat(
            who, " and ", Code(workload.agreements[0].reference), " differ without a known cause in ",
            f"{len(named_cases)} of {count_cases(len(workload.agreements))}",
            of_workload(workload.name, findings), ": ", join(named_cases, most=_NAMED), ".",
        )  # fmt: skip


def _lost_launches(counts: LaunchCounts, findings: Findings) -> Text:
    per = " per iteration" if counts.is_per_iteration else ""
    labels = {case.id: case_text(case) for w in findings.workloads if w.name == counts.workload for case in w.cases}
    named = (
        concat(labels.get(case, Code(unquote(case))), f" ({first:.10g} and {second:.10g})")
        for case, first, second in counts.differing
    )
    number = f"{len(counts.differing)} of {count_cases(counts.cases)}"
    return concat(
        join(map(Code, counts.profilers)), f" recorded different numbers of launches{per} in {number}",
        of_workload(counts.workload, findings), ": ", join(named, most=_NAMED), ".",
    )  # fmt: skip


def _duplicates(pairs: Sequence[DuplicateTimes]) -> Iterator[Text]:
    """Yield one line on the cases that two workloads measured with different times."""
    groups: dict[Any, list[Any]] = {}
    for pair in pairs:
        groups.setdefault(pair.longer, [pair.longer]).append(pair.shorter)
    named = []
    for longer, cases in groups.items():
        unit = time_unit([longer.ns])
        times = join(concat(Number(case.ns, unit), " in ", Code(case.workload)) for case in cases)
        named.append(concat(in_words(longer.axes) or "the only case", ": ", times))
    if named:
        yield concat("The same case has different times in two workloads; trust neither: ",
                     join(named, separator="; ", last="; ", most=_NAMED), ".")  # fmt: skip
