"""Recorded memory: its peak by phase, the largest allocations, the files for the viewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.kernels import Memory
from profpipe.report import document as doc
from profpipe.report.labels import case_text
from profpipe.report.sections.plots import Point, line_chart
from profpipe.report.units import size_unit
from profpipe.results.schema import PATH_SEPARATOR

#: Phases that stand side by side; of more only the outer ones.
_PHASES = 8

#: Allocations of a case that are listed.
_ALLOCATIONS = 6

#: A case and its record.
_Pair = tuple[CaseResult, Memory]


def memory(workload: WorkloadFindings) -> doc.Section:
    """Return the peak of each phase and what held it; empty where no case recorded its memory."""
    by_case = {record.case: record for record in workload.memory}
    pairs = [(case, by_case[case.id]) for case in workload.cases if case.id in by_case]
    summary = (
        "One iteration of each case, recorded apart from its timing: the memory allocated when it began, the peak of"
        " each phase with its nested phases, and the lines that held most of the peak."
    )
    if any(record.files for _, record in pairs):
        summary += " The records open in the viewer at pytorch.org/memory_viz."
    blocks = [peaks(pairs), course(workload, pairs), allocations(pairs), files(pairs)]
    return doc.make_section("memory", "Memory by phase", blocks, summary, workload.name, folds_long_tables=True)


def course(workload: WorkloadFindings, pairs: Sequence[_Pair]) -> doc.Chart | None:
    """Return the memory over the iteration with the highest peak, a panel for each variant; None without a record."""
    with_course = [pair for pair in pairs if any(phase.course for phase in pair[1].phases)]
    if not with_course:
        return None
    highest, compare = max(with_course, key=lambda pair: pair[1].peak)[0], workload.compare
    shown = [(case, record) for case, record in with_course if case.shape == highest.shape]
    shown.sort(key=lambda pair: not pair[0].is_baseline)

    points = [
        Point(((compare, case.params.get(compare)),) if compare else (), phase.phase, doc.Mark(at / 1000, size))
        for case, record in shown
        for phase in record.phases
        for at, size in phase.course
    ]
    chart = line_chart(
        f"{workload.name}-memory-course",
        "Memory over one iteration",
        doc.Axis("ms since the iteration began", is_measured=True),
        doc.Axis("allocated", None, quantity="byte"),
        points,
        tuple(dict.fromkeys(point.line for point in points)),
        spans_decades=False,
        panels=dict.fromkeys(point.panel for point in points),
        subtitle=in_words((*workload.fixed, *highest.shape)),
        notes=("Times are the host's, which allocates before the GPU runs the kernels.",),
    )
    return replace(chart, placement=doc.Placement.DETAILS) if chart else None


def peaks(pairs: Sequence[_Pair]) -> doc.Table:
    """Return cases as rows: the memory before, and the peak of each phase, the highest of a case in bold."""
    names = list(dict.fromkeys(phase.phase for _, record in pairs for phase in record.phases))
    if len(names) > _PHASES:
        names = [name for name in names if PATH_SEPARATOR not in name]
    unit = size_unit(phase.peak for _, record in pairs for phase in record.phases)
    columns = [doc.label("case"), doc.Column("before", "before", unit), *(doc.Column(n, n, unit) for n in names)]
    rows: list[list[doc.Content]] = []
    for case, record in pairs:
        peak = {phase.phase: doc.Cell(phase.peak, is_strong=phase.peak == record.peak) for phase in record.phases}
        rows.append([case_text(case), record.phases[0].start, *(peak.get(name, "") for name in names)])
    return doc.make_table("peaks", columns, rows, "Peak by phase", doc.Placement.DETAILS)


def allocations(pairs: Sequence[_Pair]) -> doc.Table:
    """Return the allocations that hold most of the peak of each case."""
    rows = []
    for case, record in pairs:
        held = sorted((one for one in record.allocations if one.held), key=lambda one: -one.held * one.size)
        rows += [(case_text(case) if i == 0 else "", one, record.peak) for i, one in enumerate(held[:_ALLOCATIONS])]
    unit = size_unit(one.size for _, one, _ in rows)
    columns = [
        (doc.label("case"), lambda row: row[0]),
        (doc.label("place", "allocated in"), lambda row: doc.Code(row[1].place)),
        (doc.Column("size", "each", unit), lambda row: row[1].size),
        (doc.count("count", "times"), lambda row: row[1].count),
        (doc.Column("held", "held at the peak", unit), lambda row: row[1].held * row[1].size),
        (doc.percent("share", "of the peak"), lambda row: row[1].held * row[1].size / row[2]),
    ]
    return doc.table_of("allocations", rows, columns, "Largest allocations", doc.Placement.DETAILS)


def files(pairs: Sequence[_Pair]) -> doc.Table:
    """Return the records for torch's viewer."""
    kept = [(case, path, size) for case, record in pairs for path, size in record.files]
    columns = [doc.label("case"), doc.label("file"), doc.Column("size", "", size_unit(size for _, _, size in kept))]
    rows = [[case_text(case), doc.Code(path), size] for case, path, size in kept]
    return doc.make_table("files", columns, rows, "Files for the viewer", doc.Placement.DETAILS)
