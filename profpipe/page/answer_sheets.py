"""Who is fastest, as a grid: for comparisons with more shapes than one reads line by line."""

from __future__ import annotations

from profpipe.findings import Shape, WorkloadFindings
from profpipe.page import excerpt
from profpipe.page.answers import level_names
from profpipe.page.markdown import Sheet, code, escape
from profpipe.page.quantities import ratio
from profpipe.points import is_number, running_axis, shown


def grid(workload: WorkloadFindings) -> Sheet:
    """The running axis as rows, the combinations of the others as columns; empty where lines do, or no axis runs."""
    axis = running_axis(shape.axes for shape in workload.shapes)
    if axis is None or len(workload.shapes) <= excerpt.SHAPES:
        return Sheet([], [])
    columns = excerpt.by_group(workload, axis, excerpt.groups(workload, axis))
    if len(columns) < 2:
        return Sheet([], [])
    values = sorted({value for own in columns.values() for value in own if is_number(value)})
    head = [escape(axis), *(excerpt.column(others) for others in columns)]
    rows = [[escape(shown(value)), *(_winner(own.get(value)) for own in columns.values())] for value in values]
    return Sheet(head, rows, labels=len(head))


def _winner(shape: Shape | None) -> str:
    """`` `fa3` 2.02x ``: the winner and its lead over the baseline; those that are level share the cell."""
    if shape is None:
        return ""
    win = shape.win
    if win is None:
        return "–"
    name = code(win.best.variant)
    if win.verdict == "level":
        name = " = ".join(level_names(win))
    lead = f" {ratio(win.best.speedup)}" if win.best.speedup is not None and not win.best.is_baseline else ""
    return name + lead + {"void": ", in doubt", "only": ", alone"}.get(win.verdict, "")
