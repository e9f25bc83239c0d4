"""Where a step goes by the modules of the program: by their classes, and the most expensive ones."""

from __future__ import annotations

from profpipe.analysis.findings import WorkloadFindings
from profpipe.analysis.modules import CaseModules, ModuleTime, find_modules
from profpipe.report import document as doc
from profpipe.report.labels import case_text
from profpipe.report.units import step_unit

#: Classes and modules that are listed. modules.parquet has all of them.
_MOST_TYPES, MOST_MODULES = 12, 10
#: Cases whose modules stand on the long page.
_CASES = 12

_COMPILED = (
    " Functions of torch.compile call no modules: (compiled) marks one whose time holds that of the modules inside."
)


def modules(workload: WorkloadFindings) -> doc.Section:
    """Return the time of the modules of the first case in full, of others folded; empty where none were recorded."""
    ordered = sorted(workload.cases, key=lambda case: not case.is_baseline)
    table = workload.recorded.tables.modules
    found = [(case, own) for case in ordered[: _CASES + 1] if (own := find_modules(table, case.id))]
    if not found:
        return doc.Section("modules", "", workload=workload.name)
    (first, own), *others = found
    which = doc.concat(" of ", case_text(first)) if len(workload.cases) > 1 else ()
    blocks: list[doc.Block] = [
        doc.Paragraph(_context(own, workload.is_on_cpu, which)),
        by_type(own),
        most_expensive(own),
    ]
    blocks += [doc.Details(case_text(case), (by_type(each), most_expensive(each))) for case, each in others]
    return doc.make_section("modules", "Where in the model", blocks, workload=workload.name)


def _context(own: CaseModules, is_on_cpu: bool, which: doc.Text) -> doc.Text:
    """Return what the figures are means of, and what adds up to all time of a step."""
    noun = "CPU time of operators" if is_on_cpu else "kernel time"
    steps = "one step" if own.steps == 1 else f"{own.steps} steps"
    ranks = f" and {own.processes} processes" if own.processes > 1 else ""
    is_compiled = any(each.is_compiled for each in (*own.types, own.outside))
    return doc.concat(
        f"{noun[0].upper()}{noun[1:]} of each module in a step", which,
        f": means over {steps}{ranks} that torch.profiler recorded after the others. The backward pass counts for the"
        " module whose forward pass it derives. The first table adds up to ",
        doc.Number(own.total_ns, step_unit([own.total_ns])),
        f", all {noun} of a step. In the second the time of a module holds that of the modules that it calls.",
        _COMPILED if is_compiled else "",
    )  # fmt: skip


def by_type(own: CaseModules) -> doc.Table:
    """Return the time by class of modules, that of the optimizer, and the rest; without the time of inner modules."""
    optimizer = ModuleTime("the optimizer", "", 0, own.optimizer_ns, 0.0, own.optimizer_ns)
    rows = [each for each in own.types[:_MOST_TYPES] if each.ns] + [optimizer] * bool(own.optimizer_ns)
    if further := own.types[_MOST_TYPES:]:
        sums = [sum(values) for values in zip(*((t.forward_ns, t.backward_ns, t.own_ns) for t in further), strict=True)]
        rows.append(ModuleTime(f"{len(further)} other classes", "", sum(t.count for t in further), *sums))
    rows += [own.outside] if own.outside.ns else []
    unit = step_unit(each.ns for each in rows).per("/step")
    columns: doc.Columns[ModuleTime] = [
        (doc.label("type", "class"), lambda each: _name(each, each.type or each.name or "outside modules")),
        (doc.count("count", "modules"), lambda each: each.count or None),
        (doc.Column("forward", "forward", unit), lambda each: None if each is optimizer else each.forward_ns),
        (doc.Column("backward", "backward", unit), lambda each: None if each is optimizer else each.backward_ns),
        (doc.Column("ns", "", unit), lambda each: each.ns),
        (doc.percent("share", ""), lambda each: each.ns / own.total_ns if own.total_ns else None),
    ]
    return doc.table_of(f"module_types {own.case}", rows, columns)


def most_expensive(own: CaseModules) -> doc.Table:
    """Return the modules with the most time, with that of the modules inside them."""
    rows = own.modules[:MOST_MODULES]
    unit = step_unit(each.ns for each in rows).per("/step")
    columns: doc.Columns[ModuleTime] = [
        (doc.label("module"), lambda each: doc.Code(each.name)),
        (doc.label("type", "class"), lambda each: _name(each, each.type)),
        (doc.count("count", "modules"), lambda each: each.count),
        (doc.Column("forward", "forward", unit), lambda each: each.forward_ns),
        (doc.Column("backward", "backward", unit), lambda each: each.backward_ns),
        (doc.Column("ns", "", unit), lambda each: each.ns),
        (doc.percent("share", ""), lambda each: each.ns / own.total_ns if own.total_ns else None),
        (doc.percent("own", "without inner"), lambda each: each.own_ns / own.total_ns if own.total_ns else None),
    ]
    table = doc.table_of(f"expensive_modules {own.case}", rows, columns, "The most expensive modules")
    return table if any(each.count > 1 for each in rows) else table.without("count")


def _name(each: ModuleTime, name: str) -> doc.Text:
    words: doc.Text = doc.Code(name) if each.type else name
    return doc.concat(words, " (compiled)" if each.is_compiled else "")
