"""Findings -> the tables of recorded memory: its peak by phase, the largest allocations, the files for the viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profpipe.findings import Point, WorkloadFindings
from profpipe.page.markdown import Sheet, code, escape
from profpipe.page.quantities import Unit, percent, size_unit
from profpipe.page.wording import case_label
from profpipe.phase_findings import Allocation, Memory
from profpipe.tables import PATH_SEPARATOR

#: Phases that stand side by side; of more only the outer ones.
_PHASES = 8


def peaks(workload: WorkloadFindings) -> Sheet:
    """Cases as rows; what they held before, and the peak of each phase, the highest of a case marked."""
    told = list(_told(workload))
    names = list(dict.fromkeys(phase.phase for _, memory in told for phase in memory.phases))
    if len(names) > _PHASES:
        names = [name for name in names if PATH_SEPARATOR not in name]
    unit = size_unit(phase.peak for _, memory in told for phase in memory.phases)
    rows = []
    for point, memory in told:
        by_name = {phase.phase: phase for phase in memory.phases}
        cells = [_marked(by_name[name].peak, memory, unit) if name in by_name else "" for name in names]
        rows.append([case_label(point), unit.of(memory.phases[0].start), *cells])
    return Sheet(["case", f"before {unit.name}", *(f"{escape(name)} {unit.name}" for name in names)], rows)


def _marked(peak: float, memory: Memory, unit: Unit) -> str:
    return f"**{unit.of(peak)}**" if peak == memory.peak else unit.of(peak)


def allocations(workload: WorkloadFindings, among: Sequence[Point], most: int) -> Sheet:
    """Of each case the ``most`` that hold most of its peak: where, how large and often, and how much of it they are."""
    told = [(point, memory, _holding(memory)[:most]) for point, memory in _told(workload) if point in among]
    unit = size_unit(one.size for _, _, largest in told for one in largest)
    rows = []
    for point, memory, largest in told:
        for i, one in enumerate(largest):
            held = one.held * one.size
            rows.append([case_label(point) if i == 0 else "", code(one.place), unit.of(one.size), str(one.count),
                         unit.of(held), percent(held / memory.peak)])  # fmt: skip
    head = ["case", "allocated in", f"{unit.name} each", "times", f"held at the peak {unit.name}", "% of the peak"]
    return Sheet(head, rows, labels=2).without_empty()


def _holding(memory: Memory) -> list[Allocation]:
    """What was allocated at the peak, that which held most of it first."""
    return sorted((one for one in memory.allocations if one.held), key=lambda one: -one.held * one.size)


def files(workload: WorkloadFindings) -> Sheet:
    """The records themselves, for torch's viewer."""
    kept = [(point, path, size) for point, memory in _told(workload) for path, size in memory.files]
    unit = size_unit(size for _, _, size in kept)
    rows = [[case_label(point), code(path), unit.of(size)] for point, path, size in kept]
    return Sheet(["case", "file", unit.name], rows, labels=2)


def explained(workload: WorkloadFindings) -> str:
    """What stands in the tables, and what to do with the files."""
    told = [memory for _, memory in _told(workload)]
    if not told:
        return ""
    said = [
        "One iteration of each case, recorded apart from its timing: what was allocated when it began, the most that "
        "each phase held, nested phases included, and the lines that held most of the peak."
    ]
    if any(memory.files for memory in told):
        said.append("The records open in the viewer at pytorch.org/memory_viz.")
    return " ".join(said)


def _told(workload: WorkloadFindings) -> Iterator[tuple[Point, Memory]]:
    """Cases with a record, in the order of the shapes."""
    by_case = {memory.case: memory for memory in workload.memory}
    return ((point, by_case[point.id]) for point in workload.points if point.id in by_case)
