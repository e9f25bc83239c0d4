"""Comparisons of cases that ran on several nodes of a cluster. Numbers are made up."""

import pytest
from report_study import analyze, case_row, every_table, metric_row, tables

from profpipe.analysis.findings import Doubt, DoubtCause, NodeSpread
from profpipe.measure.flags import Flag
from profpipe.report.sections import environment, times
from profpipe.report.text import write_text
from profpipe.results.manifest import Manifest

H100 = {"name": "NVIDIA H100 80GB HBM3", "driver": "580.1", "memory_bytes": 80 << 30, "max_sm_clock_hz": 1_980_000_000}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "driver": "580.1", "memory_bytes": 80 << 30, "max_sm_clock_hz": 1_410_000_000}


def node(gpu, count=1, torch="2.11"):
    return {"machine": {"gpus": [gpu] * count, "cpu": "CPU"}, "packages": {"torch": torch}}


def on_nodes(second, *more, b_ns=150.0):
    """``a``, the baseline, with 100 ns on n1, and ``b`` on n2, which is ``second``."""
    jobs = [
        {"workload": "w", "profiler": "plain", "cases": [f"impl={x}"], "node": n} for x, n in (("a", "n1"), ("b", "n2"))
    ]
    pipeline = {"workloads": {"w": {"matrix": {"impl": ["a", "b"]}, "baseline": {"impl": "a"}}}}
    run = {"jobs": jobs, "nodes": {"n1": node(H100), "n2": second}, "pipeline": pipeline}
    times = [metric_row("impl=a", "time", 100.0, ci_low=99.0, ci_high=101.0),
             metric_row("impl=b", "time", b_ns, ci_low=b_ns - 1, ci_high=b_ns + 1)]  # fmt: skip
    cases = [case_row("impl=a"), case_row("impl=b")]
    return analyze(tables(cases, metrics=[*times, *more]), run), run


def only_win(findings):
    ((shape,),) = (workload.shapes for workload in findings.workloads)
    assert shape.win is not None
    return shape.win


#: The reference, 4 % slower on the second node.
REFERENCE = metric_row("impl=a", "time", 104.0, subject="node n2")


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (node(A100), "GPU NVIDIA H100 80GB HBM3 80 GiB 1980 MHz and NVIDIA A100-SXM4-80GB 80 GiB 1410 MHz"),
        (node({**H100, "driver": "550.9"}), "driver 580.1 and 550.9"),
        (node({**H100, "power_limit_w": 350.0}), "NVIDIA H100 80GB HBM3 80 GiB 1980 MHz 350 W"),
        (node(H100, torch="2.9"), "torch 2.11 and 2.9"),
    ],
)
def test_unlike_nodes_are_not_compared(second, text):
    findings, _ = on_nodes(second, REFERENCE)
    win = only_win(findings)
    assert win.verdict == "inconclusive" and [doubt.cause for doubt in win.doubts] == [DoubtCause.UNLIKE_NODES]
    words = write_text(times.doubt_of(win))
    assert words.startswith("its cases ran on unlike nodes: ") and text in words
    assert [case.speedup for case in findings.workloads[0].cases if not case.is_baseline] == [None]
    assert all(Flag.UNLIKE_NODES in case.flags for case in findings.workloads[0].cases)


def test_like_nodes_have_a_mark_and_the_spread_between_them():
    findings, _ = on_nodes(node(H100, count=8), REFERENCE)
    assert only_win(findings).verdict == "clear"
    assert findings.workloads[0].nodes.spread == NodeSpread("impl=a", pytest.approx(0.04), 2)
    assert all(Flag.SEVERAL_NODES in case.flags for case in findings.workloads[0].cases)
    (line,) = times.explanations(findings.workloads)
    assert write_text(line) == (
        "several_nodes (every case): the cases that the report compares ran on different nodes of the same kind: impl=a"
        " varies by 4.0 % between 2 of them. A smaller lead is not reported as a win."
    )


def test_the_case_that_varies_between_nodes_is_named_with_the_letters_of_its_values():
    doubt = Doubt(DoubtCause.NODE_SPREAD, ("a", "b"), spread=NodeSpread("impl=%C3%BC", 0.04, 2))
    assert write_text(times.doubt_text(doubt)).endswith("and impl=ü varies by 4.0 % between 2 nodes")


def test_a_lead_within_the_spread_of_the_nodes_or_an_unknown_one_is_no_win():
    win = only_win(on_nodes(node(H100), REFERENCE, b_ns=103.5)[0])
    assert win.verdict == "inconclusive"
    assert (
        write_text(times.doubt_of(win)) == "a and b ran on different nodes, and impl=a varies by 4.0 % between 2 nodes"
    )
    win = only_win(on_nodes(node(H100))[0])
    assert win.verdict == "inconclusive"
    assert write_text(times.doubt_of(win)) == "a and b ran on different nodes, and how far these lie apart is not known"


def test_cases_of_one_node_have_no_mark():
    findings, run = on_nodes(node(H100), REFERENCE)
    run["jobs"] = [{**job, "node": "n1"} for job in run["jobs"]]
    times = [metric_row(f"impl={x}", "time", t, ci_low=t - 1, ci_high=t + 1) for x, t in (("a", 100.0), ("b", 103.5))]
    findings = analyze(tables([case_row("impl=a"), case_row("impl=b")], metrics=times), run)
    assert only_win(findings).verdict == "clear" and not any(case.flags for case in findings.workloads[0].cases)


def test_the_environment_lists_like_nodes_in_one_row():
    run = {"nodes": {"n1": node(H100), "n2": node(H100, count=8), "n3": node(A100)}}
    table = next(table for table in every_table(environment.environment(Manifest.parse(run))) if table.id == "nodes")
    assert [write_text(row[0].text) for row in table.rows] == ["n1 and n2", "n3"]
