"""What share of a call its kernels have: attention, its helpers, copies, additions and other classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.workloads import CaseResult, ClassTotal, KernelBreakdown, Shape, WorkloadFindings
from profpipe.report.document import (
    NO_UNIT,
    Block,
    Cell,
    Code,
    Column,
    Format,
    Paragraph,
    Placement,
    Section,
    Strong,
    Table,
    Text,
    join,
)
from profpipe.report.inlines import fill, percent
from profpipe.report.labels import case_text
from profpipe.report.sections import other_classes, ranks
from profpipe.report.units import Unit, time_unit

#: Cases whose classes stand side by side.
_CASES_A_TABLE = 6

#: Rows of a table: label and cells.
_Row: TypeAlias = "tuple[Text, list[Cell]]"


def kernel_share(workload: WorkloadFindings) -> Section:
    """Return a table for each shape, that of the largest first; without a comparison, tables by kernel class."""
    tables = list(_by_shape(workload) if workload.compare else _by_case(workload))
    if not tables:
        return Section("kernel_share", "", workload=workload.name)
    blocks: list[Block] = [Paragraph(text) for text in (ranks.means_note(workload), _context(workload)) if text]
    return Section("kernel_share", "Kernel share", (*blocks, *tables), workload=workload.name)


def _context(workload: WorkloadFindings) -> Text:
    profiler = workload.kernel_profiler
    if any(case.breakdown and case.breakdown.kind == "cpu_op" for case in workload.cases):
        return f"Self time of CPU operators per call ({profiler}); copy: the class of copying operators."
    if not workload.is_per_call:
        return f"Sums over all iterations ({profiler}): the file does not say how many there were."
    text = (
        f"Kernel time per call ({profiler}). direct_copy: PyTorch's {{}}, which changes layout or type; add: the class"
        " of additions."
    )
    if any(map(_has_smoothing, workload.cases)):
        text += " Helpers of SageAttention and SpargeAttn include the mean of K."
    return fill(text, Code("direct_copy_kernel"))


def _has_smoothing(case: CaseResult) -> bool:
    """Return True if the helpers hold more kernels than the class of helpers: the mean of K is a reduction."""
    if case.breakdown is None:
        return False
    helpers, own = case.breakdown.categories.get("helpers"), case.breakdown.classes.get("attention_aux")
    return helpers is not None and helpers.calls > (own.calls if own else 0)


def _by_shape(workload: WorkloadFindings) -> Iterator[Table]:
    for shape in sorted(workload.shapes, key=lambda shape: shape is not workload.largest):
        if table := by_category(shape, workload.is_per_call, _placement(shape, workload)):
            yield table


def _placement(shape: Shape, workload: WorkloadFindings) -> Placement:
    return Placement.SUMMARY if shape is workload.largest else Placement.DETAILS


def _by_case(workload: WorkloadFindings) -> Iterator[Table]:
    cases = [case for shape in workload.shapes for case in shape.cases if case.breakdown]
    for i in range(0, len(cases), _CASES_A_TABLE):
        yield by_class(cases[i : i + _CASES_A_TABLE], Placement.DETAILS if i else Placement.SUMMARY)


def by_category(shape: Shape, is_per_call: bool = True, placement: Placement = Placement.SUMMARY) -> Table | None:
    """Return implementations as columns, the baseline first, then the fastest; categories of kernels as rows."""
    cases = sorted(
        (c for c in shape.cases if c.breakdown),
        key=lambda c: (not c.is_baseline, c.breakdown.total.ns if c.breakdown else 0),
    )
    breakdowns = [case.breakdown for case in cases if case.breakdown]
    if not breakdowns:
        return None
    if any(b.is_fused for b in breakdowns):
        unit = time_unit(part.ns for b in breakdowns for name, part in b.categories.items() if name != "rest")
    else:
        unit = time_unit(b.total.ns for b in breakdowns)
    rows = list(category_rows(breakdowns, unit, is_per_call))
    if len(cases) > 1 and any(case.kernel_speedup is not None for case in cases):
        rows.append(("over baseline", [Cell(case.kernel_speedup, format=Format.RATIO) for case in cases]))
    return _table(
        f"share {in_words(shape.axes)}".strip(), [_head(c) for c in cases], rows, in_words(shape.axes), placement
    )


def _head(case: CaseResult) -> Text:
    name: Text = Code(case.variant or case.id) if case.variant or case.id else "whole capture"
    return fill("{} (baseline)", name) if case.is_baseline else name


def _table(id: str, heads: Sequence[Text], rows: Iterable[_Row], title: Text, placement: Placement) -> Table:
    columns = (Column("row", "", is_label=True), *(Column(str(i), head) for i, head in enumerate(heads)))
    cells = tuple((Cell(text=label), *cells) for label, cells in rows)
    return Table(id, columns, cells, title, placement, is_divisible=False)


def category_rows(breakdowns: Sequence[KernelBreakdown], unit: Unit, is_per_call: bool = True) -> Iterator[_Row]:
    """Yield the rows of a table of categories. ``unit`` is that of all times."""
    per = f"{unit.name}/call" if is_per_call else unit.name
    copy = "copy" if breakdowns[0].kind == "cpu_op" else "direct_copy"

    def times(label: str, totals: Iterable[ClassTotal]) -> _Row:
        return f"{label} {per}", [Cell(total.ns or None, unit=unit) for total in totals]

    def category(label: str, name: str) -> _Row:
        return times(label, (b.category(name) for b in breakdowns))

    def calls(label: str, name: str) -> _Row:
        return f"{label} calls", [Cell(b.category(name).calls, format=Format.COUNT) for b in breakdowns]

    def present(row: _Row) -> Iterator[_Row]:
        if not all(cell.is_empty for cell in row[1]):
            yield row

    if any(b.is_fused for b in breakdowns):
        yield "Attn %", [_attention_share(b) for b in breakdowns]
        yield category("Attn", "attention")
        yield from present(category("Attn helpers", "helpers"))
    yield from present(category("gemm", "gemm"))
    yield from present(category("softmax", "softmax"))
    yield calls(copy, "direct_copy")
    yield category(copy, "direct_copy")
    yield calls("add", "add")
    yield category("add", "add")
    names = other_classes.classes(breakdowns)
    for name in names:
        yield times(other_classes.named(name), (other_classes.of(b, name) for b in breakdowns))
    yield from present(times("everything else", (other_classes.left(b, names) for b in breakdowns)))
    yield from present(category("whole graphs", "graph"))
    yield Strong(f"Total {per}"), [Cell(b.total.ns, unit=unit, is_strong=True) for b in breakdowns]


def _attention_share(breakdown: KernelBreakdown) -> Cell:
    if breakdown.is_fused:
        return Cell(breakdown.category("attention").ns / breakdown.total.ns, format=Format.PERCENT)
    return Cell(text="unfused" if breakdown.category("softmax").ns else "–")


def by_class(cases: Sequence[CaseResult], placement: Placement = Placement.SUMMARY) -> Table:
    """Return cases as columns and kernel classes as rows, the largest class first."""
    breakdowns = [case.breakdown for case in cases if case.breakdown]
    largest: dict[str, float] = {}
    for name, part in ((name, part) for b in breakdowns for name, part in b.classes.items()):
        largest[name] = max(largest.get(name, 0.0), part.ns)
    unit = time_unit(b.total.ns for b in breakdowns)
    labels = [case_text(case) for case in cases]
    heads: list[Text] = [fill(f"{{}}: {unit.name}", label) for label in labels] if len(labels) > 1 else [unit.name]
    rows: list[_Row] = []
    for name in sorted(largest, key=lambda name: -largest[name]):
        rows.append((name, [_class_cell(b.classes.get(name), b, unit) for b in breakdowns]))
    rows.append((Strong("total"), [Cell(b.total.ns, unit=unit, is_strong=True) for b in breakdowns]))
    noun = "launches" if breakdowns[0].kind == "kernel" else "calls"
    rows.append((noun, [Cell(b.total.calls, format=Format.COUNT, unit=NO_UNIT) for b in breakdowns]))
    title = join(labels, most=2) if placement is Placement.DETAILS else ""
    return _table(f"classes {cases[0].id}", heads, rows, title, placement)


def _class_cell(part: ClassTotal | None, breakdown: KernelBreakdown, unit: Unit) -> Cell:
    if part is None:
        return Cell()
    return Cell(part.ns, unit=unit, note=fill("({})", percent(part.ns / breakdown.total.ns)))
