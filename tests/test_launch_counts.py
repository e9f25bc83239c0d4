"""Whether two profilers recorded the same launches: on a real run, and on made-up ones."""

from dataclasses import replace

import pytest
from report_study import ADD, ATTENTION, COPY, analyze, example, kernel_row, metric_row, range_row, tables

from profpipe.analysis.findings import LaunchCounts
from profpipe.report.markdown import Markdown
from profpipe.report.sections import environment, warnings
from profpipe.results.manifest import Manifest


def compared(data, run=None):
    return analyze(data, run or {}).launch_counts


def captured(seen, **more):
    """Cases of 10 iterations, profiler -> case -> launches of one kernel; ``more`` of each row."""
    kernels = [kernel_row(f"impl={case}", ATTENTION, calls, 1e3 * calls, profiler=profiler, **more)
               for profiler, own in seen.items() for case, calls in own.items()]  # fmt: skip
    return tables((), kernels, [range_row(f"impl={case}", 10, p) for p, own in seen.items() for case in own])


ALL = {"pipeline": {"workloads": {"w": {"ncu": {"kernels": "all", "exclude": "nccl"}}}}}


def test_the_profilers_of_a_real_run_recorded_the_same_launches():
    data, run = example("h200-attention")
    inside = data.kernels[(data.kernels["case"] != "") & (data.kernels["kind"] == "kernel")]
    nsys, ncu = (inside[inside["profiler"] == name] for name in ("nsys", "ncu"))
    cases = nsys["case"].nunique()
    both = {"workload": "attention", "cases": cases, "same_by_kernel": cases}
    assert compared(data, run) == (
        LaunchCounts(profilers=("nsys", "torch"), number=nsys["calls"].sum(), is_per_iteration=False, **both),
        LaunchCounts(profilers=("nsys", "ncu"), number=ncu["calls"].sum(), is_per_iteration=True, **both),
    )


def test_a_lost_launch_is_a_warning_with_its_case():
    data, run = example("h200-attention")
    kernels = data.kernels.copy()
    row = kernels.index[(kernels["profiler"] == "torch") & (kernels["case"] != "") & (kernels["kind"] == "kernel")][0]
    kernels.loc[row, "calls"] -= 1
    findings = analyze(replace(data, kernels=kernels), run)
    (bullets,) = warnings.warnings(findings, Manifest.parse(run)).blocks
    (line,) = (line for line in Markdown().block(bullets).splitlines() if "numbers of launches" in line)
    cases = kernels.loc[kernels["profiler"] == "nsys", "case"].nunique() - 1
    assert line.startswith(f"- `nsys` and `torch` recorded different numbers of launches in 1 of {cases} cases: ")
    assert line.endswith(" (30 and 29).")


def test_counts_are_compared_per_iteration_where_a_profiler_has_more_iterations():
    kernels = [
        kernel_row("impl=a", ATTENTION, calls, 1e4, profiler=p) for p, calls in (("nsys", 37019), ("torch", 12340))
    ]
    ranges = [range_row("impl=a", n, profiler) for profiler, n in (("nsys", 30), ("torch", 10))]
    (counts,) = compared(tables((), kernels, ranges))
    assert counts.is_per_iteration and counts.differing == (("impl=a", pytest.approx(1233.966667), 1234),)


def test_a_table_shows_in_how_many_cases_the_counts_are_the_same():
    torch = {"a": 20, "b": 15, "c": 20, "d": 20, "e": 10}
    findings = analyze(captured({"nsys": dict.fromkeys("abcde", 10), "torch": torch}), {})
    assert Markdown().section(environment.launch_counts(findings)).splitlines()[-1] == (
        "| `nsys` and `torch` | 50 | all iterations | 5 | 1 | 1 |"
    )
    (bullets,) = warnings.warnings(findings, Manifest()).blocks
    assert "in 4 of 5 cases: `a` (10 and 20), `b` (10 and 15), `c` (10 and 20) and 1 more." in Markdown().block(bullets)


def test_kernels_with_other_names_count_in_the_total_only():
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e4), kernel_row("impl=a", ADD, 10, 1e4, profiler="torch")]
    kernels += [kernel_row("impl=b", COPY, 10, 1e4, profiler=profiler) for profiler in ("nsys", "torch")]
    ranges = [range_row(f"impl={case}", 10, profiler) for case in "ab" for profiler in ("nsys", "torch")]
    (counts,) = compared(tables((), kernels, ranges))
    assert (counts.number, counts.cases, counts.same_by_kernel, counts.differing) == (20, 2, 1, ())


@pytest.mark.parametrize("run", [{}, {"pipeline": {"workloads": {"w": {"ncu": {"kernels": "guided"}}}}}])
def test_ncu_is_not_compared_where_it_profiles_selected_kernels(run):
    assert compared(captured({"nsys": {"a": 20}, "ncu": {"a": 10}}), run) == ()


@pytest.mark.parametrize(("name", "is_same"), [("ncclDevKernel_SendRecv", True), (ADD, False)])
def test_kernels_that_ncu_excludes_do_not_count(name, is_same):
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e4), kernel_row("impl=a", name, 10, 1e4)]
    kernels.append(kernel_row("impl=a", ATTENTION, 1, 1e3, profiler="ncu"))
    metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
    (counts,) = compared(tables((), kernels, [range_row("impl=a", 10)], metrics), ALL)
    assert counts.differing == (() if is_same else (("impl=a", 2, 1),))


def test_cases_without_comparable_counts_are_left_out():
    both = {"nsys": {"a": 10}, "torch": {"a": 20}}
    graphs = captured(both)
    graph = kernel_row("impl=a", "graph", 10, 1e4, kind="graph")
    assert compared(replace(graphs, kernels=tables(kernels=[*graphs.kernels.to_dict("records"), graph]).kernels)) == ()
    assert compared(replace(captured(both), ranges=tables().ranges)) == (), "the number of iterations is unknown"
    assert compared(captured(both, kind="cpu_op")) == ()
    assert compared(captured({"nsys": {"a": 10}, "torch": {"b": 10}})) == ()
