"""The tables of SUMMARY.md, each from a few numbers that are made up."""

from __future__ import annotations

from typing import Any

from report_study import ATTENTION, case_row, kernel_row, metric_row, range_row, tables

from profpipe.analyze import analyze
from profpipe.findings import WorkloadFindings
from profpipe.page import marks, sheets
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


def test_kernels_are_said_to_be_compared_below_only_where_some_were_captured() -> None:
    cases = [case_row(f"impl={impl}", flags=["host_bound"]) for impl in "ab"]
    rows = [metric_row("impl=a", "time", 1000.0), metric_row("impl=b", "time", 2000.0)]
    captured = tables(cases, [kernel_row("impl=a", ATTENTION, 10, 5e3)], [range_row("impl=a", 10)], rows)
    (said,) = marks.explained(only(captured, "a"))
    assert said.endswith("What is compared here are calls; kernels are compared by their own times below.")
    (said,) = marks.explained(only(tables(cases, metrics=rows), "a"))
    assert said.endswith("What is compared here are calls.")
