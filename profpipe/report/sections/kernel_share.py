"""What share of a call its kernels have, by category and class, and what switching the implementation costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from profpipe.analysis.case_index import CPU_ROWS
from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Iteration, Shape, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import CHANGE, ClassTotal, KernelBreakdown, SwitchCost
from profpipe.report import document as doc
from profpipe.report.labels import (
    PART_NAMES,
    case_text,
    duration,
    fill,
    iteration,
    make_time_cell,
    means_note,
    per_iteration,
)
from profpipe.report.units import COUNT, PERCENT, RATIO, Unit, time_unit
from profpipe.results.schema import PYTHON_LINES

#: Cases whose classes stand side by side.
_CASES_A_TABLE = 6

#: What follows the unit of a time of a step.
_STEP = "/step"

_OF = {Iteration.CALL: "per call", Iteration.STEP: "of a steady step", Iteration.PROCESS: "of the whole recording"}

#: Rows of a table: label and cells.
_Row: TypeAlias = "tuple[doc.Text, list[doc.TableCell]]"


def kernel_share(workload: WorkloadFindings) -> doc.Section:
    """Return the table of the largest shape, and the others to choose from; without a comparison, by kernel class."""
    shapes = sorted(workload.shapes, key=lambda shape: shape is not workload.largest)
    if workload.compare:
        tables = [make_share_table(shape, per_iteration(workload)) for shape in shapes]
    else:
        cases = [case for shape in workload.shapes for case in shape.cases if case.breakdown]
        starts = range(0, len(cases), _CASES_A_TABLE)
        make = _make_step_table if workload.iteration is Iteration.STEP else make_class_table
        tables = [make(cases[i : i + _CASES_A_TABLE], is_titled=len(starts) > 1) for i in starts]
    choice = doc.choose_table("share", "shape" if workload.compare else "cases", tables)
    notes = [means_note(workload), _context(workload)] if choice else []
    # Lines have one class.
    blocks = [*map(doc.Paragraph, notes), choice] if workload.cpu_rows != PYTHON_LINES else []
    return doc.make_section("kernel_share", "Kernel share", blocks, workload=workload.name)


def _context(workload: WorkloadFindings) -> doc.Text:
    profiler = workload.kernel_profiler
    if workload.is_on_cpu:
        of = _OF.get(workload.iteration, "of the whole recording")
        copy = "; copy: the class of copying operators" if workload.cpu_rows == CPU_ROWS else ""
        text = f"Self time of {workload.cpu_rows} {of} ({profiler}){copy}."
        if workload.steps and workload.iteration is not Iteration.STEP:
            text += " The times are sums over all recorded steps ({}), because no CPU operator is assigned to a step."
            return fill(text, doc.Code("steps.measure"))
        return text
    if workload.iteration is Iteration.CAPTURE:
        return f"Sums over the whole recording ({profiler}): the file does not say how many iterations it has."
    text = f"Kernel time {_OF[workload.iteration]} ({profiler}). direct_copy: PyTorch's {{}}, which changes layout or"
    text += " type; add: the class of additions."
    breakdowns = [case.breakdown for case in workload.cases if case.breakdown]
    # The mean of K is a reduction, and no kernel of the class of helpers.
    if any(b.category("helpers").calls > b.classes.get("attention_aux", ClassTotal()).calls for b in breakdowns):
        text += " Helpers of SageAttention and SpargeAttn include the mean of K."
    return fill(text, doc.Code("direct_copy_kernel"))


def make_share_table(shape: Shape, per: str = "/call", title: doc.Text | None = None) -> doc.TableBlock:
    """Return implementations as columns, the baseline first, then the fastest; categories of kernels as rows.

    ``per`` follows the unit of a time. The default title is the shape. Without kernels the table has no rows.
    """
    pairs = [(case, case.breakdown) for case in shape.cases if case.breakdown]
    pairs.sort(key=lambda pair: (not pair[0].is_baseline, pair[1].total.ns))
    breakdowns, axes = [breakdown for _, breakdown in pairs], in_words(shape.axes)
    if any(b.is_fused for b in breakdowns):
        unit = time_unit(part.ns for b in breakdowns for name, part in b.categories.items() if name != "rest")
    else:
        unit = time_unit(b.total.ns for b in breakdowns)
    rows = list(category_rows(breakdowns, unit, per)) if breakdowns else []
    if len(pairs) > 1 and any(case.kernel_speedup is not None for case, _ in pairs):
        rows.append(("over baseline", [doc.TableCell(case.kernel_speedup, unit=RATIO) for case, _ in pairs]))
    names = [doc.Code(case.variant or case.id) if case.variant or case.id else "whole capture" for case, _ in pairs]
    heads = [
        fill("{} (baseline)", name) if case.is_baseline else name for name, (case, _) in zip(names, pairs, strict=True)
    ]
    return _table(f"share {axes}".strip(), heads, rows, axes if title is None else title)


def _table(id: str, heads: Sequence[doc.Text], rows: Iterable[_Row], title: doc.Text) -> doc.TableBlock:
    columns = (doc.label("row", ""), *(doc.number(str(i), head) for i, head in enumerate(heads)))
    return doc.TableBlock(
        id, columns, tuple((doc.cell(label), *cells) for label, cells in rows), title, is_divisible=False
    )


def category_rows(breakdowns: Sequence[KernelBreakdown], unit: Unit, per: str = "/call") -> Iterator[_Row]:
    """Yield the rows of a table of categories. ``unit`` is that of all times, and ``per`` follows it."""
    noun = "launches" if per == _STEP else "calls"
    copy = "copy" if breakdowns[0].kind == "cpu_op" else "direct_copy"

    def times(label: str, totals: Iterable[ClassTotal], is_optional: bool = False) -> Iterator[_Row]:
        cells = [doc.TableCell(total.ns or None, unit=unit) for total in totals]
        if not is_optional or not all(cell.is_empty for cell in cells):
            yield f"{label} {unit.name}{per}", cells

    def category(label: str, name: str, is_optional: bool = False) -> Iterator[_Row]:
        return times(label, (b.category(name) for b in breakdowns), is_optional)

    def calls(label: str, name: str) -> _Row:
        return f"{label} {noun}", [doc.TableCell(b.category(name).calls, unit=COUNT) for b in breakdowns]

    def share(b: KernelBreakdown) -> doc.TableCell:
        if b.is_fused:
            return doc.TableCell(b.category("attention").ns / b.total.ns, unit=PERCENT)
        return doc.TableCell(text="unfused" if b.category("softmax").ns else "–")

    if any(b.is_fused for b in breakdowns):
        yield "attention %", list(map(share, breakdowns))
        yield from category("attention", "attention")
        yield from category("attention helpers", "helpers", is_optional=True)
    yield from category("gemm", "gemm", is_optional=True)
    yield from category("softmax", "softmax", is_optional=True)
    yield calls(copy, "direct_copy")
    yield from category(copy, "direct_copy")
    yield calls("add", "add")
    yield from category("add", "add")
    names = other_classes(breakdowns)
    for name in names:
        yield from times(class_name(name, breakdowns[0].kind), (b.other_class(name) for b in breakdowns))
    yield from times("everything else", (b.other_classes_without(names) for b in breakdowns), is_optional=True)
    yield from category("whole graphs", "graph", is_optional=True)
    yield (
        doc.Strong(f"Total {unit.name}{per}"),
        [doc.TableCell(b.total.ns, unit=unit, is_strong=True) for b in breakdowns],
    )
    if per == _STEP:
        yield "launches", [doc.TableCell(b.total.calls, unit=COUNT) for b in breakdowns]


def _make_step_table(cases: Sequence[CaseResult], is_titled: bool) -> doc.TableBlock:
    """Return cases as columns and categories of kernels as rows, of programs that are not compared."""
    breakdowns = [case.breakdown for case in cases if case.breakdown]
    heads = [case_text(case) if case.id else "a step" for case in cases]
    rows = category_rows(breakdowns, time_unit(b.total.ns for b in breakdowns), _STEP)
    return _table(f"share {cases[0].id}".strip(), heads, rows, doc.join(heads, most=2) if is_titled else "")


def make_class_table(cases: Sequence[CaseResult], is_titled: bool = True) -> doc.TableBlock:
    """Return cases as columns and kernel classes as rows, the largest class first."""
    breakdowns = [case.breakdown for case in cases if case.breakdown]
    unit = time_unit(b.total.ns for b in breakdowns)

    def cell(part: ClassTotal | None, total: ClassTotal) -> doc.TableCell:
        return make_time_cell(part.ns, part.ns / total.ns, unit) if part else doc.TableCell()

    times = grouped((name, part.ns) for b in breakdowns for name, part in b.classes.items())
    rows: list[_Row] = [
        (name, [cell(b.classes.get(name), b.total) for b in breakdowns])
        for name in sorted(times, key=lambda name: -max(times[name]))
    ]
    rows.append((doc.Strong("total"), [doc.TableCell(b.total.ns, unit=unit, is_strong=True) for b in breakdowns]))
    calls = [doc.TableCell(b.total.calls, unit=COUNT) for b in breakdowns]
    rows.append(("launches" if breakdowns[0].kind == "kernel" else "calls", calls))
    labels = [case_text(case) for case in cases]
    heads: list[doc.Text] = [fill(f"{{}}: {unit.name}", label) for label in labels] if len(labels) > 1 else [unit.name]
    return _table(f"classes {cases[0].id}", heads, rows, doc.join(labels, most=2) if is_titled else "")


# --- kernels without a category, by class: together they are often the largest part of a call -------------------------

#: From this share of any call's kernel time on, a class has a row.
_LEAST_SHARE = 0.05

_NAMES: Mapping[str, str] = {"copy": "other copies", "other": "own kernels"}


def other_classes(splits: Sequence[KernelBreakdown]) -> list[str]:
    """Return the classes without a category that are 5 % of any of these calls, the largest first."""
    shares = grouped((name, part.ns / split.total.ns) for split in splits for name, part in split.other_classes.items())
    kept = (name for name in shares if max(shares[name]) >= _LEAST_SHARE)
    return sorted(kept, key=lambda name: -max(shares[name]))


def class_name(name: str, kind: str = "kernel") -> str:
    """Return the name of a class in tables; the class of copies holds those that are no direct_copy."""
    return "other operators" if (name, kind) == ("other", "cpu_op") else _NAMES.get(name, name)


# --- what switching the implementation costs -------------------------------------------------------------------------

TITLE = "Cost of switching implementation"

#: Changes that are named; more are counted.
_MOST_CHANGES = 3

#: A change of a call: name, ns and launches.
_Change = tuple[str, float, float]


def switch_cost(workload: WorkloadFindings) -> doc.Section:
    """Return the table of the largest shape, and the others to choose from."""
    shapes = sorted((s for s in workload.shapes if s.switch_costs), key=lambda shape: shape is not workload.largest)
    if not shapes:
        return doc.Section("switch_cost", "", workload=workload.name)
    noun, of = "operator" if any(case.is_on_cpu for case in workload.shapes[0].cases) else "kernel", iteration(workload)
    tables = [table(shape, of) for shape in shapes]
    is_measured = any(cost.measured_call is not None for shape in workload.shapes for cost in shape.switch_costs)
    measured = f" measured {of}: without a profiler." if is_measured else ""
    context = f"Speed-ups per {of} from {noun} times ({workload.kernel_profiler}).{measured}"
    changes = [cost for shape in workload.shapes for cost in shape.switch_costs if cost.changes]
    if changes:
        context += f" Other changes: from {100 * CHANGE:g} % of the shorter {of} on, the {_MOST_CHANGES} largest."
    if any(name == "copies" for cost in changes for name, _, _ in cost.changes):
        context += f" {PART_NAMES['copies'].capitalize()} are memcpy and memset."
    choice = doc.choose_table("switch", "shape", tables)
    blocks = (doc.Paragraph(means_note(workload)), doc.Paragraph(context), choice)
    return doc.make_section("switch_cost", TITLE, blocks, workload=workload.name)


def table(shape: Shape, of: str = "call", title: doc.Text | None = None) -> doc.TableBlock:
    """Return a row per implementation, the fastest first. ``of`` is what the times are of, such as a step.

    The default title is the shape.
    """
    base, is_cpu = shape.baseline, any(case.is_on_cpu for case in shape.cases)
    noun = "operator" if is_cpu else "kernel"
    breakdowns = {case.variant: case.breakdown for case in shape.cases if case.breakdown}
    unfused = {name for name, split in breakdowns.items() if not split.is_fused and split.category("softmax").ns > 0}

    before = base.breakdown if base else None
    columns = [
        (doc.label("variant", fill("instead of {}", doc.Code(base.variant) if base else "its baseline")),
         lambda c: doc.TableCell(text=doc.Code(c.variant), flags=tuple(filter(None, [c.flag])))),
        (doc.ratio("attention", f"attention {noun}"),
         lambda c: doc.TableCell(text="unfused") if c.variant in unfused else c.attention),
        (doc.ratio("with_helpers", "with its helpers"),
         lambda c: doc.TableCell() if c.variant in unfused else c.with_helpers),
        (doc.ratio("kernels", f"all {noun}s of a {of}"), lambda c: c.call),
        (doc.ratio("call", f"measured {of}"), lambda c: c.measured_call),
        (doc.ratio("amdahl", "if attention took no time"), lambda c: None if c.attention is None else c.amdahl_limit),
        (doc.words("changes", f"other changes per {of}"),
         lambda c: _changes_text(_changes(c, before, breakdowns), is_cpu)),
    ]  # fmt: skip
    costs, axes = sorted(shape.switch_costs, key=lambda cost: -cost.call), in_words(shape.axes)
    return doc.table_of(f"switch {axes}".strip(), costs, columns, axes if title is None else title)


def _changes(cost: SwitchCost, before: KernelBreakdown | None, shown: Mapping[str, KernelBreakdown]) -> list[_Change]:
    """Return what costs more or less than in the baseline, largest first; classes as the table of shares has them."""
    split, names = shown[cost.variant], other_classes(list(shown.values()))
    changes = [(PART_NAMES[name], ns, calls) for name, ns, calls in cost.changes]
    if before is None or not names:
        return changes
    pairs = [(class_name(name, split.kind), split.other_class(name), before.other_class(name)) for name in names]
    pairs.append((PART_NAMES["rest"], split.other_classes_without(names), before.other_classes_without(names)))
    changes = [change for change in changes if change[0] != PART_NAMES["rest"]]
    changes += [
        (name, after.ns - former.ns, after.calls - former.calls)
        for name, after, former in pairs
        if abs(after.ns - former.ns) >= before.least_change(split)
    ]
    return sorted(changes, key=lambda change: -abs(change[1]))


def _changes_text(changes: Sequence[_Change], is_cpu: bool) -> doc.Text:
    """Return the largest changes with their launches, and how many more there are."""
    unit = time_unit(ns for _, ns, _ in changes)
    parts: list[doc.Text] = []
    for name, ns, calls in changes[:_MOST_CHANGES]:
        noun = ("call" if is_cpu else "launch") + ("" if abs(calls) < 1.5 else "s" if is_cpu else "es")
        more = f" ({abs(calls):.0f} {'more' if calls > 0 else 'fewer'} {noun})" if abs(calls) >= 0.5 else ""
        parts.append(doc.concat(f"{name} {'+' if ns > 0 else '-'}", duration(abs(ns), unit), more))
    if len(changes) > len(parts):
        return fill(f"{{}} and {len(changes) - len(parts)} smaller", doc.join(parts, last=", "))
    return doc.join(parts, last=", ")
