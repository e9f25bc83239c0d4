"""Which case wins a shape, and which flags make that inconclusive. Numbers are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from report_study import analyze, case_row, kernel_row, metric_row, tables

from profpipe.analysis.case_results import judge_win
from profpipe.analysis.cluster import Nodes
from profpipe.analysis.findings.workloads import Doubt, DoubtCause, NodeSpread, Win, WorkloadFindings
from profpipe.results.schema import Tables


def only(data: Tables, run: dict[str, Any] | None = None) -> WorkloadFindings:
    (workload,) = analyze(data, run or {}).workloads
    return workload


def win(a_marks: list[str], b_marks: list[str], *more: dict[str, Any], **run: Any) -> Win:
    """Of ``a`` with 100 ns over ``b`` with 150."""
    cases = [case_row("impl=a", flags=a_marks), case_row("impl=b", flags=b_marks)]
    times = [metric_row("impl=a", "time", 100.0, ci_low=99.0, ci_high=101.0),
             metric_row("impl=b", "time", 150.0, ci_low=149.0, ci_high=151.0)]  # fmt: skip
    (shape,) = only(tables(cases, metrics=[*times, *more]), run).shapes
    assert shape.win is not None
    return shape.win


def clocks(case: str, **hz: float) -> list[dict[str, Any]]:
    return [metric_row(case, name, value, "Hz") for name, value in hz.items()]


@pytest.mark.parametrize(
    "mark", ["host_bound", "too_few_samples", "synchronises", "unchecked", "profiler_overhead", "noisy"]
)
def test_a_flag_without_effect_on_the_lead_leaves_the_win(mark: str) -> None:
    assert win([mark], [mark]).verdict == "clear"


@pytest.mark.parametrize("mark", ["other_process", "waited", "above_peak", "throttled", "clock_spread"])
def test_a_flag_that_may_explain_the_lead_makes_the_win_inconclusive(mark: str) -> None:
    found = win([mark], [])
    assert found.verdict == "inconclusive" and found.doubts == (Doubt(DoubtCause.FLAGGED, ("a",), (mark,)),)


@pytest.mark.parametrize("mark", ["other_process", "waited"])
def test_another_process_during_the_second_case_makes_the_win_inconclusive(mark: str) -> None:
    assert win([], [mark]).doubts == (Doubt(DoubtCause.FLAGGED, ("b",), (mark,)),)
    assert win([], ["above_peak"]).verdict == "clear"


def test_a_lead_larger_than_the_difference_of_the_clocks_is_a_win() -> None:
    near = [*clocks("impl=a", sm_clock=1.9e9), *clocks("impl=b", sm_clock=1.7e9)]
    assert win(["throttled"], ["throttled"], *near).verdict == "clear"
    far = [*clocks("impl=a", sm_clock=1.9e9), *clocks("impl=b", sm_clock=1.2e9)]
    assert win([], ["throttled"], *far).doubts == (Doubt(DoubtCause.FLAGGED, ("b",), ("throttled",)),)


def tie(**marks: list[str]) -> Win:
    """Of cases with 100 ns, give or take 2."""
    cases = [case_row(f"impl={impl}", flags=own) for impl, own in marks.items()]
    times = [metric_row(f"impl={impl}", "time", 100.0, ci_low=98.0, ci_high=102.0) for impl in marks]
    (shape,) = only(tables(cases, metrics=times)).shapes
    assert shape.win is not None
    return shape.win


def test_overlapping_intervals_are_a_tie_at_any_clock() -> None:
    found = tie(a=["throttled"], b=["throttled", "clock_spread"], c=[])
    assert (found.verdict, found.doubts, [case.variant for case in found.tied]) == ("tie", (), ["a", "b", "c"])


def test_a_time_with_another_process_takes_no_part_in_a_tie() -> None:
    assert tie(a=[], b=["other_process"]).verdict == tie(a=[], b=["waited"]).verdict == "inconclusive"
    assert [point.variant for point in tie(a=[], b=[], c=["other_process"]).tied] == ["a", "b"]


@pytest.mark.parametrize(("loop_wall", "verdict"), [(150.0, "inconclusive"), (250.0, "clear")])
def test_a_case_that_waited_may_be_the_fastest_if_its_loop_is_not_far_longer(loop_wall: float, verdict: str) -> None:
    """Its samples say less than nothing; an iteration of the loop, flush and all, is the most that it takes."""
    rows = [metric_row("impl=c", "time", 900.0, ci_low=890.0, ci_high=910.0),
            metric_row("impl=c", "loop_wall", loop_wall),
            metric_row("impl=c", "time_own", 100.0, subject="rank 1")]  # fmt: skip
    found = win([], [], *rows)
    assert found.verdict == verdict
    assert found.doubts == ((Doubt(DoubtCause.MAY_BE_FASTER, ("c",)),) if verdict == "inconclusive" else ())


def test_a_case_with_the_wrong_kernels_takes_no_part_in_a_tie() -> None:
    own = {"kernel_class": "attention", "kernel_family": "fa2"}
    kernels = [kernel_row("impl=c", "flash::flash_fwd_kernel<64>", 1, 5.0) | own]
    times = [metric_row(f"impl={i}", "time", 100.0, ci_low=98.0, ci_high=102.0) for i in "abc"]
    data = tables([case_row(f"impl={i}") for i in "abc"], kernels, metrics=times)
    (shape,) = only(data, {"expects": {"w": {"impl=c": "cudnn"}}}).shapes
    assert shape.win is not None and [point.variant for point in shape.win.tied] == ["a", "b"]


def test_different_clocks_without_a_flag_make_the_win_inconclusive_too() -> None:
    """A case of some milliseconds may be over before NVML is read: sage2 at 1939 MHz and cuDNN at 1711 on an H200."""
    apart = [*clocks("impl=a", sm_clock=1.939e9), *clocks("impl=b", sm_clock=0.9e9)]
    assert win([], [], *apart).doubts == (Doubt(DoubtCause.CLOCKS, ("a", "b"), clocks_hz=(1.939e9, 0.9e9)),)
    near = [*clocks("impl=a", sm_clock=1.939e9), *clocks("impl=b", sm_clock=1.711e9)]
    assert win([], [], *near).verdict == "clear", "its lead is larger"
    assert win([], [], *clocks("impl=a", sm_clock=0.9e9), *clocks("impl=b", sm_clock=1.939e9)).verdict == "clear"


def test_of_several_gpus_the_clock_of_the_slowest_one_counts() -> None:
    """The time of a case is that of its slowest process."""
    first = [*clocks("impl=a", sm_clock=1.939e9), *clocks("impl=b", sm_clock=1.939e9)]
    slow = metric_row("impl=b", "sm_clock", 0.9e9, subject="rank 1")
    assert win([], [], *first, slow).doubts == (Doubt(DoubtCause.CLOCKS, ("a", "b"), clocks_hz=(1.939e9, 0.9e9)),)
    both = metric_row("impl=a", "sm_clock", 0.9e9, subject="rank 1")
    assert win([], [], *first, slow, both).verdict == "clear", "both cases ran at the same clock"


def test_the_range_of_the_clocks_counts_where_they_moved() -> None:
    ends = {"sm_clock": 1.7e9, "sm_clock_min": 1.1e9, "sm_clock_max": 1.9e9}
    assert win(["clock_spread"], [], *clocks("impl=a", **ends), *clocks("impl=b", **ends)).verdict == "inconclusive"


def third(ns: float, ci: float, flags: Sequence[str] = (), **hz: float) -> Win:
    """Of ``a`` with 100 ns at 1.9 GHz over ``b`` with 150 and over ``c``, whose interval is ``ci`` either way."""
    own = [metric_row("impl=c", "time", ns, ci_low=ns - ci, ci_high=ns + ci), *clocks("impl=c", **hz)]
    cases = [case_row(f"impl={impl}", flags=list(flags) if impl == "c" else []) for impl in "abc"]
    times = [metric_row("impl=a", "time", 100.0, ci_low=99.0, ci_high=101.0), *clocks("impl=a", sm_clock=1.9e9),
             metric_row("impl=b", "time", 150.0, ci_low=149.0, ci_high=151.0)]  # fmt: skip
    (shape,) = only(tables(cases, metrics=[*times, *own])).shapes
    assert shape.win is not None
    return shape.win


def test_a_case_behind_the_second_may_tie_with_the_best() -> None:
    """varlen [1633.1, 1638.8] us came third behind [1633.7, 1635.3] and [1635.5, 1639.7] on an H200."""
    assert third(200.0, 40.0).verdict == "clear"
    assert [point.variant for point in third(200.0, 110.0).tied] == ["a", "c"]


def test_a_case_behind_the_second_may_be_the_fastest_at_the_same_clock() -> None:
    assert third(160.0, 1.0, ["throttled"], sm_clock=1.1e9).doubts == (
        Doubt(DoubtCause.FLAGGED, ("c",), ("throttled",)),
    )
    assert third(160.0, 1.0, sm_clock=1.1e9).doubts == (Doubt(DoubtCause.CLOCKS, ("a", "c"), clocks_hz=(1.9e9, 1.1e9)),)
    assert third(190.0, 1.0, ["throttled"], sm_clock=1.1e9).verdict == "clear", "its lead is larger"
    assert third(190.0, 1.0, ["throttled"]).verdict == "clear", "its clock is not known"


def test_a_case_behind_the_second_counts_on_another_node_and_beside_another_process() -> None:
    rows = [case_row("impl=a"), case_row("impl=b"), case_row("impl=c", flags=["shared_host"])]
    medians = {"impl=a": 100.0, "impl=b": 150.0, "impl=c": 160.0}
    times = [metric_row(case, "time", ns, ci_low=ns - 1, ci_high=ns + 1) for case, ns in medians.items()]
    cases = only(tables(rows, metrics=times)).cases
    found = judge_win(cases, {})
    assert found and found.doubts == (Doubt(DoubtCause.FLAGGED, ("c",), ("shared_host",)),)
    of_cases = {"impl=a": ("node1",), "impl=b": ("node1",), "impl=c": ("node2",)}
    for ratio, count in ((0.5, 0), (0.7, 1)):
        spread = NodeSpread("impl=a", ratio, 2)
        found = judge_win((*cases[:2], replace(cases[2], marks=())), {}, nodes=Nodes(of_cases, spread=spread))
        assert found and found.doubts == (Doubt(DoubtCause.NODE_SPREAD, ("a", "c"), spread=spread),) * count


def test_a_noisy_time_without_an_interval_makes_the_win_inconclusive() -> None:
    rows = [metric_row("impl=a", "time", 1.0), metric_row("impl=b", "time", 9.0)]
    (shape,) = only(tables([case_row("impl=a", flags=["noisy"])], metrics=rows)).shapes
    assert shape.win is not None and shape.win.doubts == (Doubt(DoubtCause.NO_INTERVAL, ("a",), ("noisy",)),)


@pytest.mark.parametrize("is_winner", [True, False])
def test_a_noisy_time_of_too_few_samples_makes_no_winner_although_it_has_an_interval(is_winner: bool) -> None:
    both = ["noisy", "too_few_samples"]
    found = win(both, []) if is_winner else win([], both)
    assert found.verdict == "inconclusive"
    assert found.doubts == (Doubt(DoubtCause.FLAGGED, ("a" if is_winner else "b",), tuple(both)),)


def test_a_winner_that_is_noisy_and_has_fewer_samples_than_requested_is_not_called_the_fastest() -> None:
    cases = [case_row("impl=a", flags=["noisy"]), case_row("impl=b")]
    times = [metric_row("impl=a", "time", 100.0, ci_low=90.0, ci_high=110.0, n=12),
             metric_row("impl=b", "time", 150.0, ci_low=149.0, ci_high=151.0, n=30)]  # fmt: skip
    run = {"pipeline": {"workloads": {"w": {"repeats": 30}}}}
    (shape,) = only(tables(cases, metrics=times), run).shapes
    assert shape.win is not None and shape.win.verdict == "inconclusive"
