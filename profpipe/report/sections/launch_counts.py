"""How many launches two profilers recorded of the same cases."""

from __future__ import annotations

from profpipe.analysis.findings.workloads import Findings
from profpipe.report.document import Code, Column, Format, Placement, Section, join, make_table


def launch_counts(findings: Findings) -> Section:
    """Return a row for each two profilers: their common cases, and in how many each kernel has the same count."""
    columns = (
        Column("profilers", "profilers", is_label=True),
        Column("workload", "workload", is_label=True),
        Column("launches", "launches", format=Format.COUNT),
        Column("per", "of", is_words=True),
        Column("cases", "cases", format=Format.COUNT),
        Column("same_total", "same total", format=Format.COUNT),
        Column("same_by_kernel", "same by kernel", format=Format.COUNT),
    )
    rows = [
        (
            join(map(Code, counts.profilers)),
            Code(counts.workload),
            counts.number,
            "one iteration" if counts.is_per_iteration else "all iterations",
            counts.cases,
            counts.cases - len(counts.differing),
            counts.same_by_kernel,
        )
        for counts in findings.launch_counts
    ]
    table = make_table("launch_counts", columns, rows, placement=Placement.DETAILS)
    table = table if len(findings.workloads) > 1 else table.without("workload")
    return Section("launch_counts", "Launches that two profilers recorded", (table,) if rows else ())
