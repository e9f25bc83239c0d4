"""Recorded memory: its peak by phase, the largest allocations, the files for the viewer."""

from __future__ import annotations

from collections.abc import Sequence

from profpipe.analysis.findings.phases import Memory
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.report.document import (
    Cell,
    Code,
    Column,
    Format,
    Placement,
    Section,
    Table,
    Text,
    fold_if_long,
    make_table,
)
from profpipe.report.labels import case_text
from profpipe.report.units import size_unit
from profpipe.results.schema import PATH_SEPARATOR

#: Phases that stand side by side; of more only the outer ones.
_PHASES = 8

#: Allocations of a case that are listed.
_ALLOCATIONS = 6

#: A case and its record.
_Pair = tuple[CaseResult, Memory]


def memory(workload: WorkloadFindings) -> Section:
    """Return the peak of each phase and what held it; empty where no case recorded its memory."""
    by_case = {record.case: record for record in workload.memory}
    pairs = [(case, by_case[case.id]) for case in workload.cases if case.id in by_case]
    if not pairs:
        return Section("memory", "", workload=workload.name)
    summary = (
        "One iteration of each case, recorded apart from its timing: the memory allocated when it began, the peak of"
        " each phase with its nested phases, and the lines that held most of the peak."
    )
    if any(record.files for _, record in pairs):
        summary += " The records open in the viewer at pytorch.org/memory_viz."
    tables = [peaks(pairs), allocations(pairs), files(pairs)]
    blocks = tuple(fold_if_long(table) for table in tables if table.rows)
    return Section("memory", "Memory by phase", blocks, summary, workload.name)


def peaks(pairs: Sequence[_Pair]) -> Table:
    """Return cases as rows: the memory before, and the peak of each phase, the highest of a case in bold."""
    names = list(dict.fromkeys(phase.phase for _, record in pairs for phase in record.phases))
    if len(names) > _PHASES:
        names = [name for name in names if PATH_SEPARATOR not in name]
    unit = size_unit(phase.peak for _, record in pairs for phase in record.phases)
    columns = [Column("case", "case", is_label=True), Column("before", "before", unit)]
    rows: list[list[Cell | Text | float | None]] = []
    for case, record in pairs:
        peak = {phase.phase: Cell(phase.peak, is_strong=phase.peak == record.peak) for phase in record.phases}
        rows.append([case_text(case), record.phases[0].start, *(peak.get(name, "") for name in names)])
    columns += [Column(name, name, unit) for name in names]
    return make_table("peaks", columns, rows, "Peak by phase", Placement.DETAILS)


def allocations(pairs: Sequence[_Pair], most: int = _ALLOCATIONS) -> Table:
    """Return the ``most`` allocations that hold most of the peak of each case."""
    held = {case.id: [one for one in record.allocations if one.held] for case, record in pairs}
    largest = {id: sorted(own, key=lambda one: -one.held * one.size)[:most] for id, own in held.items()}
    unit = size_unit(one.size for own in largest.values() for one in own)
    columns = [
        Column("case", "case", is_label=True),
        Column("place", "allocated in", is_label=True),
        Column("size", "each", unit),
        Column("count", "times", format=Format.COUNT),
        Column("held", "held at the peak", unit),
        Column("share", "of the peak", format=Format.PERCENT),
    ]
    rows = [
        [case_text(case) if i == 0 else "", Code(one.place), one.size, float(one.count), one.held * one.size,
         one.held * one.size / record.peak]
        for case, record in pairs
        for i, one in enumerate(largest[case.id])
    ]  # fmt: skip
    return make_table("allocations", columns, rows, "Largest allocations", Placement.DETAILS)


def files(pairs: Sequence[_Pair]) -> Table:
    """Return the records for torch's viewer."""
    kept = [(case, path, size) for case, record in pairs for path, size in record.files]
    columns = [
        Column("case", "case", is_label=True),
        Column("file", "file", is_label=True),
        Column("size", "", size_unit(size for _, _, size in kept)),
    ]
    rows = [[case_text(case), Code(path), size] for case, path, size in kept]
    return make_table("files", columns, rows, "Files for the viewer", Placement.DETAILS)
