"""What replacing the baseline's implementation changes: the kernel, its helpers, the whole call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.workloads import Shape, WorkloadFindings
from profpipe.analysis.kernels import CHANGE, KernelBreakdown, SwitchCost
from profpipe.report import document as doc
from profpipe.report.labels import PART_NAMES, duration, fill, iteration, means_note
from profpipe.report.sections.kernel_share import class_name, other_classes
from profpipe.report.units import time_unit

TITLE = "Cost of switching implementation"

#: Changes that are named; more are counted.
_MOST_CHANGES = 3

#: A change of a call: name, ns and launches.
_Change = tuple[str, float, float]


def switch_cost(workload: WorkloadFindings) -> doc.Section:
    """Return a table for each shape, that of the largest first."""
    shapes = sorted((s for s in workload.shapes if s.switch_costs), key=lambda shape: shape is not workload.largest)
    if not shapes:
        return doc.Section("switch_cost", "", workload=workload.name)
    noun, of = "operator" if any(case.is_on_cpu for case in workload.shapes[0].cases) else "kernel", iteration(workload)
    pages = (doc.Placement.SUMMARY if shape is workload.largest else doc.Placement.DETAILS for shape in shapes)
    tables = [table(shape, placement, of) for shape, placement in zip(shapes, pages, strict=True)]
    is_measured = any(cost.measured_call is not None for shape in workload.shapes for cost in shape.switch_costs)
    measured = f" measured {of}: without a profiler." if is_measured else ""
    context = f"Speed-ups per {of} from {noun} times ({workload.kernel_profiler}).{measured}"
    changes = [cost for shape in workload.shapes for cost in shape.switch_costs if cost.changes]
    if changes:
        context += f" Other changes: from {100 * CHANGE:g} % of the shorter {of} on, the {_MOST_CHANGES} largest."
    if any(name == "copies" for cost in changes for name, _, _ in cost.changes):
        context += f" {PART_NAMES['copies'].capitalize()} are memcpy and memset."
    blocks: list[doc.Block] = [doc.Paragraph(means_note(workload)), doc.Paragraph(context), *tables]
    return doc.make_section("switch_cost", TITLE, blocks, workload=workload.name)


def table(shape: Shape, placement: doc.Placement = doc.Placement.SUMMARY, of: str = "call") -> doc.Table:
    """Return a row for each implementation, the fastest first. ``of`` is what the times are of, such as a step."""
    base, is_cpu = shape.baseline, any(case.is_on_cpu for case in shape.cases)
    noun = "operator" if is_cpu else "kernel"
    breakdowns = {case.variant: case.breakdown for case in shape.cases if case.breakdown}
    unfused = {name for name, own in breakdowns.items() if not own.is_fused and own.category("softmax").ns > 0}

    before = base.breakdown if base else None
    columns = [
        (doc.label("variant", fill("instead of {}", doc.Code(base.variant) if base else "its baseline")),
         lambda c: doc.Cell(text=doc.Code(c.variant), flags=tuple(filter(None, [c.mark])))),
        (doc.ratio("attention", f"attention {noun}"),
         lambda c: doc.Cell(text="unfused") if c.variant in unfused else c.attention),
        (doc.ratio("with_helpers", "with its helpers"),
         lambda c: doc.Cell() if c.variant in unfused else c.with_helpers),
        (doc.ratio("kernels", f"all {noun}s of a {of}"), lambda c: c.call),
        (doc.ratio("call", f"measured {of}"), lambda c: c.measured_call),
        (doc.ratio("amdahl", "if attention took no time"), lambda c: None if c.attention is None else c.amdahl_limit),
        (doc.words("changes", f"other changes per {of}"),
         lambda c: _changes_text(_changes(c, before, breakdowns), is_cpu)),
    ]  # fmt: skip
    costs, title = sorted(shape.switch_costs, key=lambda cost: -cost.call), in_words(shape.axes)
    return doc.table_of(f"switch {title}".strip(), costs, columns, title, placement)


def _changes(cost: SwitchCost, before: KernelBreakdown | None, shown: Mapping[str, KernelBreakdown]) -> list[_Change]:
    """Return what costs more or less than in the baseline, largest first; classes as the table of shares has them."""
    own, names = shown[cost.variant], other_classes(list(shown.values()))
    changes = [(PART_NAMES[name], ns, calls) for name, ns, calls in cost.changes]
    if before is None or not names:
        return changes
    pairs = [(class_name(name, own.kind), own.other_class(name), before.other_class(name)) for name in names]
    pairs.append((PART_NAMES["rest"], own.other_classes_without(names), before.other_classes_without(names)))
    changes = [change for change in changes if change[0] != PART_NAMES["rest"]]
    changes += [
        (name, after.ns - former.ns, after.calls - former.calls)
        for name, after, former in pairs
        if abs(after.ns - former.ns) >= before.least_change(own)
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
