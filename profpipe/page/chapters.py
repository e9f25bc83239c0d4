"""Findings of one workload -> what the template shows of it: sentences, tables, and which of them are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profpipe.findings import Findings, Point, Shape, WorkloadFindings
from profpipe.page import (
    accuracy_sheets,
    agreement_sheets,
    answer_sheets,
    answers,
    excerpt,
    kernel_sheets,
    limit_sheets,
    marks,
    memory_sheets,
    phase_sheets,
    rank_sheets,
    sheets,
    wording,
)
from profpipe.page.canvas import Plot
from profpipe.page.markdown import Sheet, escape, listed
from profpipe.page.wording import DENSE_WORK
from profpipe.points import shown

#: Tables longer than this are folded.
_LONG = 24

#: Kernels of a lone case, of each case on the open page, and in the folded table; the tables on disk have every one.
_ALL_KERNELS, _FIRST_KERNELS, _FOLDED_KERNELS, _LEAST_SHARE = 8, 3, 2, 0.1


#: Allocations of a case that are listed.
_ALLOCATIONS = 6

#: Differences between profilers that the page of a large comparison lists, and the file that has what it leaves out.
_DIFFERENCES, WHOLE = 40, "comparison_results.txt"

#: Cases whose classes stand side by side.
_ABREAST = 6


@dataclass(frozen=True)
class Block:
    """A table and where it goes: folded ones open at a click on their title. ``said`` stands above it."""

    title: str
    sheet: Sheet
    folded: bool = False
    said: str = ""


@dataclass(frozen=True)
class Chapter:
    """One workload, ready for the template."""

    workload: WorkloadFindings
    suffix: str
    answer: list[str]
    answers: Sheet
    #: The same line by line, where ``answers`` is a grid; and what is left out below.
    all_answers: list[Block]
    excerpt: str
    samples: str
    marks: list[str]
    shares: list[Block]
    helpers_said: str
    swaps: list[Block]
    swaps_said: str
    limits: list[Block]
    limits_said: str
    limited: str
    agreement: list[Block]
    agreement_said: str
    overheads: Sheet
    accuracy: list[Block]
    accuracy_said: str
    cases: list[Block]
    cases_said: str
    kernels: list[Block]
    targets: str
    ncu: list[Block]
    phases: list[Block]
    host_phases: list[Block]
    host_phases_said: str
    phase_work: list[Block]
    phase_work_said: list[str]
    memory: list[Block]
    memory_said: str
    ranks: list[Block]
    ranks_said: str
    means: str
    plots: Sequence[Plot]
    largest: str
    fixed: str
    quantity: str
    #: Whether shares are of CPU operators, and whether its calls were timed where there is no GPU.
    cpu: bool
    timed_on_cpu: bool


def chapter(
    workload: WorkloadFindings, findings: Findings, drawn: Mapping[str, Sequence[Plot]], without_gpu: bool
) -> Chapter:
    """Everything that the page says of ``workload``; ``without_gpu``: the run's machine has none."""
    alone, part = len(findings.workloads) < 2, excerpt.of(workload, findings.workloads)
    grid = answer_sheets.grid(workload) if workload.compare else Sheet([], [])
    lines = sheets.answers(workload) if workload.compare else Sheet([], [])
    limits, cases = list(_limits(part)), list(_cases(workload, part))
    swaps = _by_shape(part, sheets.swaps)
    return Chapter(
        workload=workload,
        suffix="" if alone else f": {escape(workload.name)}",
        answer=answers.answer(workload, alone),
        answers=grid or lines,
        all_answers=[Block("with times and marks", lines, folded=True)] if grid else [],
        excerpt=excerpt.said(workload, WHOLE, findings.workloads),
        samples=sheets.samples(workload),
        marks=marks.explained(workload),
        shares=list(_shares(part)),
        helpers_said=_SMOOTHED if any(map(_smooths, workload.points)) else "",
        swaps=swaps,
        swaps_said=sheets.changes_said(block.sheet for block in swaps),
        limits=limits,
        limits_said=limit_sheets.explained(part, [block.sheet for block in limits]),
        limited=limit_sheets.in_words(workload) if workload.compare else "",
        agreement=list(_agreement(workload, part)),
        agreement_said=agreement_sheets.said(workload),
        overheads=agreement_sheets.overheads(workload),
        accuracy=list(_accuracy(part)) if accuracy_sheets.compared(workload) else [],
        accuracy_said=accuracy_sheets.said(workload),
        cases=cases,
        cases_said=_said_of_cases(workload, cases),
        kernels=list(_kernels(part)),
        targets=", ".join(f"{kernel_sheets.target_named(name)} {at:g} %" for name, at in workload.targets.items()),
        ncu=list(_ncu(part)),
        phases=list(_phases(part)),
        host_phases=list(_in_two(workload, phase_sheets.on_host)),
        host_phases_said=phase_sheets.said_on_host(workload),
        phase_work=list(_in_two(workload, phase_sheets.work)),
        phase_work_said=phase_sheets.explained(workload),
        memory=list(_memory(workload)),
        memory_said=memory_sheets.explained(workload),
        ranks=list(_ranks(workload, part)),
        ranks_said=rank_sheets.explained(workload),
        means=rank_sheets.means(workload),
        plots=drawn.get(workload.name, ()),
        largest=wording.axes(workload.largest.axes) if workload.largest else "",
        fixed=escape(", ".join(f"{axis} {shown(value)}" for axis, value in workload.fixed)),
        quantity=wording.quantity(workload.basis),
        cpu=_of_operators(workload),
        timed_on_cpu=without_gpu and workload.basis is not None and workload.basis.timed,
    )


def _of_operators(workload: WorkloadFindings) -> bool:
    return any(point.split and point.split.kind == "cpu_op" for point in workload.points)


def _by_shape(workload: WorkloadFindings, sheet_of: Callable[[Shape], Sheet]) -> list[Block]:
    """A table a shape: the largest open, the others folded."""
    ordered = sorted(workload.shapes, key=lambda shape: shape is not workload.largest)
    made = [(shape, sheet_of(shape)) for shape in ordered]
    made = [(shape, sheet) for shape, sheet in made if sheet]
    return [Block(wording.axes(shape.axes), sheet, folded=i > 0) for i, (shape, sheet) in enumerate(made)]


#: Said where the helpers of a case hold more than the class of that name.
_SMOOTHED = (
    "Helpers of SageAttention and SpargeAttn are also the mean of K, which PyTorch computes in a kernel that otherwise "
    "is in the class of reductions."
)


def _smooths(point: Point) -> bool:
    if point.split is None:
        return False
    helpers, own = point.split.parts.get("helpers"), point.split.classes.get("attention_aux")
    return helpers is not None and helpers.calls > (own.calls if own else 0)


def _cases(workload: WorkloadFindings, part: WorkloadFindings) -> Iterator[Block]:
    """Times and TFLOP/s by shape, those of the largest group open; then every number of each case of ``part``."""
    pivots = sheets.pivots(workload)
    opened = 2 if len(pivots) > 1 and pivots[1][0].startswith("TFLOP/s") else 1
    for i, (title, sheet) in enumerate(pivots):
        yield Block(title, sheet, folded=i >= opened)
    timed = [point for shape in part.shapes for point in shape.timed]
    if timed and (workload.basis is None or workload.basis.timed or len(workload.points) > 1):
        shapes = "1 shape" if len(part.shapes) == 1 else f"{len(part.shapes)} shapes"
        title = "every number by case" if part is workload else f"every number of {shapes} by case"
        yield Block(title, sheets.cases(workload, timed), folded=bool(pivots) or len(timed) > _LONG)


def _said_of_cases(workload: WorkloadFindings, cases: Sequence[Block]) -> str:
    dense = DENSE_WORK if any(point.is_sparse for point in workload.points) else ""
    return " ".join(filter(None, [dense, sheets.said_of_cases(block.sheet for block in cases)]))


def _accuracy(workload: WorkloadFindings) -> Iterator[Block]:
    largest, others = _open_points(workload)
    if worst := accuracy_sheets.worst(workload, [*largest, *others]):
        yield Block("the worst tensor of each case", worst, folded=len(worst.rows) > 2 * _LONG)
        yield Block("every tensor", accuracy_sheets.accuracy(workload, [*largest, *others]), folded=True)
        return
    opened = accuracy_sheets.accuracy(workload, largest)
    if opened:
        yield Block("", opened, folded=len(opened.rows) > 2 * _LONG)
    if rest := accuracy_sheets.accuracy(workload, others):
        yield Block("the other cases" if opened else "cases", rest, folded=bool(opened) or len(rest.rows) > _LONG)


def _shares(workload: WorkloadFindings) -> Iterator[Block]:
    if workload.compare:
        yield from _by_shape(workload, lambda shape: sheets.kernel_share(shape, workload.iterated))
        return
    points = [point for shape in workload.shapes for point in shape.points if point.split]
    for i in range(0, len(points), _ABREAST):
        group = points[i : i + _ABREAST]
        title = "" if i == 0 else listed((wording.case_label(p) for p in group), most=2)
        yield Block(title, sheets.classes(group), folded=i > 0)


def _open_points(workload: WorkloadFindings) -> tuple[list[Point], list[Point]]:
    """(cases of the largest shape, all others), both as shapes are ordered."""
    largest = list(workload.largest.points) if workload.largest else []
    if not workload.compare and len(workload.points) <= _LONG:
        largest = [point for shape in workload.shapes for point in shape.points]
    return largest, [point for shape in workload.shapes for point in shape.points if point not in largest]


def _one_shape(points: Sequence[Point]) -> bool:
    return len({point.shape for point in points}) == 1


def _limits(workload: WorkloadFindings) -> Iterator[Block]:
    largest, others = _open_points(workload)
    opened = limit_sheets.limits(workload, largest, one_shape=_one_shape(largest))
    if opened:
        yield Block("", opened)
    if rest := limit_sheets.limits(workload, others, one_shape=False):
        yield Block("the other cases" if opened else "cases", rest, folded=bool(opened) or len(rest.rows) > _LONG)


def _agreement(workload: WorkloadFindings, part: WorkloadFindings) -> Iterator[Block]:
    if not workload.agreements:
        return
    yield Block("", agreement_sheets.in_sum(workload))
    apart = agreement_sheets.apart(workload)
    if apart:
        one, every = len(apart.rows) == 1, len(apart.rows)
        title = "the difference above 3 %, with" if one else f"the {every} differences above 3 %, each with"
        if part is not workload and every > _DIFFERENCES:
            title = f"the {_DIFFERENCES} largest of {every} differences above 3 %, each with"
            apart = apart.first(_DIFFERENCES)
        yield Block(f"{title} its reason", apart, folded=len(apart.rows) > 4)
    yield Block("every figure", agreement_sheets.everything(part), folded=True)


def _phases(workload: WorkloadFindings) -> Iterator[Block]:
    """The largest shape that has several phases open, the others folded; without a comparison all in one."""
    if not workload.compare:
        sheet = kernel_sheets.phases(workload, [p for shape in workload.shapes for p in shape.points])
        if sheet:
            yield Block("by case", sheet, len(sheet.rows) > _LONG)
        return
    told = [shape for shape in workload.shapes if kernel_sheets.phases(workload, shape.points)]
    largest = workload.largest if workload.largest in told else max(told, key=lambda shape: shape.size, default=None)
    others = [point for shape in told if shape is not largest for point in shape.points]
    for title, points in (("", largest.points if largest else ()), ("the other cases", others)):
        if sheet := kernel_sheets.phases(workload, points):
            yield Block(title, sheet, folded=bool(title))


def _in_two(
    workload: WorkloadFindings, sheet_of: Callable[[WorkloadFindings, Sequence[Point]], Sheet]
) -> Iterator[Block]:
    """The largest shape's cases, open unless they are many, and all others folded."""
    largest, others = _open_points(workload)
    if opened := sheet_of(workload, largest):
        yield Block("", opened, folded=len(opened.rows) > _LONG)
    if rest := sheet_of(workload, others):
        yield Block("the other cases" if opened else "cases", rest, folded=bool(opened) or len(rest.rows) > _LONG)


def _ranks(workload: WorkloadFindings, part: WorkloadFindings) -> Iterator[Block]:
    if sheet := rank_sheets.ranks(workload, part.points):
        yield Block("each process", sheet, folded=len(sheet.rows) > _LONG)


def _memory(workload: WorkloadFindings) -> Iterator[Block]:
    peaks, files = memory_sheets.peaks(workload), memory_sheets.files(workload)
    if peaks:
        yield Block("peak by phase", peaks, folded=len(peaks.rows) > _LONG)
    largest, others = _open_points(workload)
    for title, points in (("largest allocations", largest), ("largest allocations of the other cases", others)):
        if sheet := memory_sheets.allocations(workload, points, most=_ALLOCATIONS):
            yield Block(title, sheet, folded=points is others or len(sheet.rows) > _LONG)
    if files:
        yield Block("files for the viewer", files, folded=len(files.rows) > 1)


def _kernels(workload: WorkloadFindings) -> Iterator[Block]:
    largest, others = _open_points(workload)
    limit = _FIRST_KERNELS if len(workload.points) > 1 else _ALL_KERNELS
    opened = kernel_sheets.top(workload, largest, limit=limit, one_shape=_one_shape(largest))
    # They may be of one shape too, which is not the heading's.
    rest = kernel_sheets.top(workload, others, limit=_FOLDED_KERNELS, one_shape=False, least=_LEAST_SHARE)
    rest = rest.without("top stall", "misses")
    if opened:
        yield Block("", opened)
    if rest:
        noun = "operators" if _of_operators(workload) else "kernels"
        yield Block(f"the first {_FOLDED_KERNELS} {noun} of each other case, from 10 % on", rest, folded=True)
    if names := kernel_sheets.full_names(workload, [opened, rest]):
        yield Block("full names", names, folded=True)


def _ncu(workload: WorkloadFindings) -> Iterator[Block]:
    """ncu's further figures and its rules, for the first kernels of the largest cases."""
    largest, _ = _open_points(workload)
    shown_kernels = {
        (point.id, row.kernel)
        for point in largest
        for row in [r for r in workload.top if r.case == point.id][:_FIRST_KERNELS]
    }
    place = {point.id: i for i, point in enumerate(largest)}
    rows = sorted(
        (row for row in workload.counters if (row.case, row.kernel) in shown_kernels), key=lambda r: place[r.case]
    )
    further = kernel_sheets.counters(rows, largest, kernel_sheets.FURTHER_FIGURES)
    if len(further.head) > 3:
        yield Block("further figures of ncu", further, folded=True, said=kernel_sheets.clocks_said(further))
    if sheet := kernel_sheets.rules(rows, largest):
        yield Block("what ncu's own rules say", sheet, folded=True, said=kernel_sheets.rules_said(sheet))
