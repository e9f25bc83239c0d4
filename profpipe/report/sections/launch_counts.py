"""How many launches two profilers recorded of the same cases."""

from __future__ import annotations

from profpipe.analysis.findings.workloads import Findings
from profpipe.report import document as doc
from profpipe.report.inlines import names


def launch_counts(findings: Findings) -> doc.Section:
    """Return a row for each two profilers: their common cases, and in how many each kernel has the same count."""
    columns = [
        (doc.label("profilers"), lambda counts: names(counts.profilers)),
        (doc.label("workload"), lambda counts: doc.Code(counts.workload)),
        (doc.count("launches"), lambda counts: counts.number),
        (doc.words("per", "of"), lambda counts: "one iteration" if counts.is_per_iteration else "all iterations"),
        (doc.count("cases"), lambda counts: counts.cases),
        (doc.count("same_total", "same total"), lambda counts: counts.cases - len(counts.differing)),
        (doc.count("same_by_kernel", "same by kernel"), lambda counts: counts.same_by_kernel),
    ]
    table = doc.table_of("launch_counts", findings.launch_counts, columns, placement=doc.Placement.DETAILS)
    table = table if len(findings.workloads) > 1 else table.without("workload")
    return doc.make_section("launch_counts", "Launches that two profilers recorded", [table])
