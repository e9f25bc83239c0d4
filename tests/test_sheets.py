"""The tables of SUMMARY.md, each from a few numbers that are made up."""

from __future__ import annotations

from typing import Any

from report_study import case_row, metric_row, tables

from profpipe.analyze import analyze
from profpipe.findings import WorkloadFindings
from profpipe.page import sheets
from profpipe.tables import Tables


def only(data: Tables, baseline: str) -> WorkloadFindings:
    run: dict[str, Any] = {"pipeline": {"workloads": {"w": {"baseline": {"impl": baseline}}}}}
    (workload,) = analyze(data, run).workloads
    return workload


def test_a_win_of_the_baseline_shows_the_marks_of_the_next() -> None:
    cases = [case_row("impl=a"), case_row("impl=b", flags=["noisy", "synchronises"]), case_row("impl=c")]
    rows = [metric_row(f"impl={impl}", "time", ns, ci_low=0.9 * ns, ci_high=1.1 * ns)
            for impl, ns in (("a", 1000.0), ("b", 2000.0), ("c", 3000.0))]  # fmt: skip
    data = tables(cases, metrics=rows)
    assert sheets.answers(only(data, "a")).rows[0][-1] == "`b`: **noisy**, **synchronises**"
    assert "marks" not in sheets.answers(only(data, "c")).head
