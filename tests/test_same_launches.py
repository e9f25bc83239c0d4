"""Whether profilers saw the same launches, as the page says it: on a real run, and on made-up ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_study import ADD, ATTENTION, COPY, example, kernel_row, metric_row, range_row, tables

from profpipe.analyze import analyze
from profpipe.page import same_launches
from profpipe.tables import Tables


def said(data: Tables, run: dict[str, Any] | None = None) -> list[str]:
    return list(same_launches.said(analyze(data, run or {})))


def captured(seen: dict[str, dict[str, int]], **more: Any) -> Tables:
    """Cases of 10 iterations, profiler -> case -> launches of one kernel; ``more`` of each row."""
    kernels = [kernel_row(f"impl={case}", ATTENTION, calls, 1e3 * calls, profiler=profiler, **more)
               for profiler, own in seen.items() for case, calls in own.items()]  # fmt: skip
    return tables((), kernels, [range_row(f"impl={case}", 10, p) for p, own in seen.items() for case in own])


ALL = {"pipeline": {"workloads": {"w": {"ncu": {"kernels": "all", "exclude": "nccl"}}}}}


def test_the_profilers_of_a_real_run_saw_the_same_launches() -> None:
    data, run = example("h200-attention")
    inside = data.kernels[(data.kernels["case"] != "") & (data.kernels["kind"] == "kernel")]
    nsys, ncu = (inside[inside["profiler"] == name] for name in ("nsys", "ncu"))
    cases = f"in {nsys['case'].nunique()} cases, kernel by kernel."
    assert said(data, run) == [
        f"`nsys` and `torch` saw the same launches, {nsys['calls'].sum()} {cases}",
        f"`nsys` and `ncu` saw the same launches of each iteration, {ncu['calls'].sum()} {cases}",
    ]


def test_a_launch_that_one_of_them_lost_is_told_with_its_case() -> None:
    data, run = example("h200-attention")
    kernels = data.kernels.copy()
    row = kernels.index[(kernels["profiler"] == "torch") & (kernels["case"] != "") & (kernels["kind"] == "kernel")][0]
    kernels.loc[row, "calls"] -= 1
    every = kernels.loc[kernels["profiler"] == "nsys", "case"].nunique() - 1
    (found,) = (line for line in said(replace(data, kernels=kernels), run) if "unlike" in line)
    assert found.startswith(f"`nsys` and `torch` saw unlike numbers of launches in 1 of {every} cases: ")
    assert found.endswith(f" (30 and 29). In the other {every - 1} they saw as many, kernel by kernel.")


def test_a_lost_launch_shows_where_one_has_more_iterations_too() -> None:
    kernels = [
        kernel_row("impl=a", ATTENTION, calls, 1e4, profiler=p) for p, calls in (("nsys", 37019), ("torch", 12340))
    ]
    ranges = [range_row("impl=a", n, profiler) for profiler, n in (("nsys", 30), ("torch", 10))]
    assert said(tables((), kernels, ranges)) == [
        "`nsys` and `torch` saw unlike numbers of launches an iteration in 1 of 1 case: `a` (1233.966667 and 1234)."
    ]


def test_the_first_three_of_many_cases_are_named() -> None:
    torch = {"a": 20, "b": 15, "c": 20, "d": 20, "e": 10}
    assert said(captured({"nsys": dict.fromkeys("abcde", 10), "torch": torch})) == [
        "`nsys` and `torch` saw unlike numbers of launches in 4 of 5 cases: `a` (10 and 20),"
        " `b` (10 and 15), `c` (10 and 20) and 1 more. In the other they saw as many, kernel by kernel."
    ]


def test_kernels_by_other_names_are_counted_and_not_compared() -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e4), kernel_row("impl=a", ADD, 10, 1e4, profiler="torch")]
    kernels += [kernel_row("impl=b", COPY, 10, 1e4, profiler=profiler) for profiler in ("nsys", "torch")]
    ranges = [range_row(f"impl={case}", 10, profiler) for case in "ab" for profiler in ("nsys", "torch")]
    assert said(tables((), kernels, ranges)) == [
        "`nsys` and `torch` saw as many launches, 20 in 2 cases, kernel by kernel in 1 of them."
    ]
    assert said(tables((), kernels[:2], ranges)) == [
        "`nsys` and `torch` saw as many launches, 10 in 1 case, though not of the same kernels."
    ]


@pytest.mark.parametrize("run", [{}, {"pipeline": {"workloads": {"w": {"ncu": {"kernels": "guided"}}}}}])
def test_ncu_misses_nothing_where_it_was_told_to_profile_some_kernels(run: dict[str, Any]) -> None:
    assert said(captured({"nsys": {"a": 20}, "ncu": {"a": 10}}), run) == []


def test_ncu_misses_nothing_that_it_was_told_to_leave_out() -> None:
    def with_nccl(name: str) -> list[str]:
        kernels = [kernel_row("impl=a", ATTENTION, 10, 1e4), kernel_row("impl=a", name, 10, 1e4)]
        kernels.append(kernel_row("impl=a", ATTENTION, 1, 1e3, profiler="ncu"))
        metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
        return said(tables((), kernels, [range_row("impl=a", 10)], metrics), ALL)

    same = "`nsys` and `ncu` saw the same launches of each iteration, 1 in 1 case, kernel by kernel."
    assert with_nccl("ncclDevKernel_SendRecv") == [same]
    assert "in 1 of 1 case: `a` (2 and 1)." in with_nccl(ADD)[0]


def test_what_cannot_be_compared_is_not() -> None:
    both = {"nsys": {"a": 10}, "torch": {"a": 20}}
    graphs = captured(both)
    graph = kernel_row("impl=a", "graph", 10, 1e4, kind="graph")
    assert said(replace(graphs, kernels=tables(kernels=[*graphs.kernels.to_dict("records"), graph]).kernels)) == []
    assert said(replace(captured(both), ranges=tables().ranges)) == [], "how many iterations is not known"
    assert said(captured(both, kind="cpu_op")) == said(captured({"nsys": {"a": 10}, "torch": {"b": 10}})) == []


def test_workloads_whose_launches_are_the_same_share_a_sentence() -> None:
    kernels, ranges = [], []
    for workload, profiler in ((w, p) for w in ("forward", "step") for p in ("nsys", "torch")):
        kernels.append({**kernel_row("impl=a", ATTENTION, 10, 1e4, profiler=profiler), "workload": workload})
        ranges.append({**range_row("impl=a", 10, profiler), "workload": workload})
    assert said(tables((), kernels, ranges)) == [
        "`nsys` and `torch` saw the same launches, 20 in 2 cases of `forward` and `step`, kernel by kernel."
    ]
