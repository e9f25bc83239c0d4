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
    shown = [(case, case_modules) for case in ordered[: _CASES + 1] if (case_modules := find_modules(table, case.id))]
    if not shown:
        return doc.Section("modules", "", workload=workload.name)
    (first, case_modules), *others = shown
    which = doc.concat(" of ", case_text(first)) if len(workload.cases) > 1 else ()
    blocks: list[doc.Block] = [
        doc.Paragraph(_context(case_modules, workload.is_on_cpu, which)),
        make_type_table(case_modules),
        most_expensive(case_modules),
    ]
    blocks += [
        doc.Details(case_text(case), (make_type_table(other_modules), most_expensive(other_modules)))
        for case, other_modules in others
    ]
    return doc.make_section("modules", "Where in the model", blocks, workload=workload.name)


def _context(case_modules: CaseModules, is_on_cpu: bool, which: doc.Text) -> doc.Text:
    """Return what the figures are means of, and what adds up to all time of a step."""
    noun = "CPU time of operators" if is_on_cpu else "kernel time"
    steps = "one step" if case_modules.steps == 1 else f"{case_modules.steps} steps"
    ranks = f" and {case_modules.processes} processes" if case_modules.processes > 1 else ""
    is_compiled = any(row.is_compiled for row in (*case_modules.types, case_modules.outside))
    return doc.concat(
        f"{noun[0].upper()}{noun[1:]} of each module in a step", which,
        f": means over {steps}{ranks} that torch.profiler recorded after the others. The backward pass counts for the"
        " module whose forward pass it derives. The first table adds up to ",
        doc.Amount(case_modules.total_ns, step_unit([case_modules.total_ns])),
        f", all {noun} of a step. In the second the time of a module holds that of the modules that it calls.",
        _COMPILED if is_compiled else "",
    )  # fmt: skip


def make_type_table(case_modules: CaseModules) -> doc.TableBlock:
    """Return the time by class of modules, that of the optimizer, and the rest; without the time of inner modules."""
    optimizer = ModuleTime("the optimizer", "", 0, case_modules.optimizer_ns, 0.0, case_modules.optimizer_ns)
    rows = [row for row in case_modules.types[:_MOST_TYPES] if row.ns] + [optimizer] * bool(case_modules.optimizer_ns)
    if further := case_modules.types[_MOST_TYPES:]:
        sums = [sum(values) for values in zip(*((t.forward_ns, t.backward_ns, t.own_ns) for t in further), strict=True)]
        rows.append(ModuleTime(f"{len(further)} other classes", "", sum(t.count for t in further), *sums))
    rows += [case_modules.outside] if case_modules.outside.ns else []
    unit = step_unit(row.ns for row in rows).per("/step")
    columns: doc.Columns[ModuleTime] = [
        (doc.label("type", "class"), lambda row: _name(row, row.type or row.name or "outside modules")),
        (doc.count("count", "modules"), lambda row: row.count or None),
        (doc.number("forward", "forward", unit), lambda row: None if row is optimizer else row.forward_ns),
        (doc.number("backward", "backward", unit), lambda row: None if row is optimizer else row.backward_ns),
        (doc.number("ns", "", unit), lambda row: row.ns),
        (doc.percent("share", ""), lambda row: row.ns / case_modules.total_ns if case_modules.total_ns else None),
    ]
    return doc.table_of(f"module_types {case_modules.case}", rows, columns)


def most_expensive(case_modules: CaseModules) -> doc.TableBlock:
    """Return the modules with the most time, with that of the modules inside them."""
    rows = case_modules.modules[:MOST_MODULES]
    unit = step_unit(module.ns for module in rows).per("/step")
    columns: doc.Columns[ModuleTime] = [
        (doc.label("module"), lambda module: doc.Code(module.name)),
        (doc.label("type", "class"), lambda module: _name(module, module.type)),
        (doc.count("count", "modules"), lambda module: module.count),
        (doc.number("forward", "forward", unit), lambda module: module.forward_ns),
        (doc.number("backward", "backward", unit), lambda module: module.backward_ns),
        (doc.number("ns", "", unit), lambda module: module.ns),
        (doc.percent("share", ""), lambda module: module.ns / case_modules.total_ns if case_modules.total_ns else None),
        (
            doc.percent("own", "without inner"),
            lambda module: module.own_ns / case_modules.total_ns if case_modules.total_ns else None,
        ),
    ]
    table = doc.table_of(f"expensive_modules {case_modules.case}", rows, columns, "The most expensive modules")
    return table if any(module.count > 1 for module in rows) else table.without("count")


def _name(row: ModuleTime, name: str) -> doc.Text:
    words: doc.Text = doc.Code(name) if row.type else name
    return doc.concat(words, " (compiled)" if row.is_compiled else "")
