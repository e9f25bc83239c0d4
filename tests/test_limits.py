"""Who wins and what takes a win away; what limits a call; what profilers add; what ncu says. Numbers are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_study import ADD, ATTENTION, case_row, example, kernel_row, metric_row, range_row, tables

from profpipe.analysis.tallies import OwnRange
from profpipe.analyze import analyze
from profpipe.findings import Limit, Win, WorkloadFindings
from profpipe.kernel_findings import Rule
from profpipe.measuring import facts
from profpipe.page import agreement_sheets, kernel_sheets
from profpipe.page.limit_sheets import explained, in_words, limits
from profpipe.page.markdown import Sheet
from profpipe.tables import Tables


def only(data: Tables, run: dict[str, Any] | None = None) -> WorkloadFindings:
    (workload,) = analyze(data, run or {}).workloads
    return workload


# --- wins ------------------------------------------------------------------------------------------------------------


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
def test_a_mark_that_cannot_have_made_the_win_leaves_it(mark: str) -> None:
    assert win([mark], [mark]).verdict == "clear"


@pytest.mark.parametrize("mark", ["other_process", "waited", "above_peak", "throttled", "clock_spread"])
def test_a_mark_that_may_have_made_the_win_takes_it_away(mark: str) -> None:
    found = win([mark], [])
    assert found.verdict == "void" and mark in found.why


@pytest.mark.parametrize("mark", ["other_process", "waited"])
def test_another_process_beside_the_next_takes_the_win_away_too(mark: str) -> None:
    assert win([], [mark]).why == f"that of the next is marked {mark}"
    assert win([], ["above_peak"]).verdict == "clear"


def test_a_lead_beyond_what_the_clocks_differ_by_is_a_win() -> None:
    near = [*clocks("impl=a", sm_clock=1.9e9), *clocks("impl=b", sm_clock=1.7e9)]
    assert win(["throttled"], ["throttled"], *near).verdict == "clear"
    far = [*clocks("impl=a", sm_clock=1.9e9), *clocks("impl=b", sm_clock=1.2e9)]
    assert win([], ["throttled"], *far).why == "that of the next is marked throttled, and the lead may be one of clocks"


def level(**marks: list[str]) -> Win:
    """Of cases with 100 ns, give or take 2."""
    cases = [case_row(f"impl={impl}", flags=own) for impl, own in marks.items()]
    times = [metric_row(f"impl={impl}", "time", 100.0, ci_low=98.0, ci_high=102.0) for impl in marks]
    (shape,) = only(tables(cases, metrics=times)).shapes
    assert shape.win is not None
    return shape.win


def test_equal_times_are_level_whatever_the_clocks_did() -> None:
    found = level(a=["throttled"], b=["throttled", "clock_spread"], c=[])
    assert (found.verdict, found.why, [point.variant for point in found.level]) == ("level", "", ["a", "b", "c"])


def test_a_time_that_is_not_a_cases_own_is_level_with_none() -> None:
    assert level(a=[], b=["other_process"]).verdict == level(a=[], b=["waited"]).verdict == "void"
    assert [point.variant for point in level(a=[], b=[], c=["other_process"]).level] == ["a", "b"]


@pytest.mark.parametrize(("loop_wall", "verdict"), [(150.0, "void"), (250.0, "clear")])
def test_a_case_that_waited_may_be_the_first_where_its_loop_is_not_far_longer(loop_wall: float, verdict: str) -> None:
    """Its samples say less than nothing; an iteration of the loop, flush and all, is the most that it takes."""
    rows = [metric_row("impl=c", "time", 900.0, ci_low=890.0, ci_high=910.0),
            metric_row("impl=c", "loop_wall", loop_wall),
            metric_row("impl=c", "time_own", 100.0, subject="rank 1")]  # fmt: skip
    found = win([], [], *rows)
    assert found.verdict == verdict
    assert found.why == ("the time of c is marked waited, and may be the lower one" if verdict == "void" else "")


def test_what_did_not_run_as_asked_is_not_called_level_with_the_best() -> None:
    own = {"kernel_class": "attention", "kernel_family": "fa2"}
    kernels = [kernel_row("impl=c", "flash::flash_fwd_kernel<64>", 1, 5.0) | own]
    times = [metric_row(f"impl={i}", "time", 100.0, ci_low=98.0, ci_high=102.0) for i in "abc"]
    data = tables([case_row(f"impl={i}") for i in "abc"], kernels, metrics=times)
    (shape,) = only(data, {"expects": {"w": {"impl=c": "cudnn"}}}).shapes
    assert shape.win is not None and [point.variant for point in shape.win.level] == ["a", "b"]


def test_clocks_far_apart_take_a_lead_away_that_they_may_be_without_a_mark_too() -> None:
    """A case of some milliseconds may be over before NVML is read: sage2 at 1939 MHz and cuDNN at 1711 on an H200."""
    apart = [*clocks("impl=a", sm_clock=1.939e9), *clocks("impl=b", sm_clock=0.9e9)]
    assert win([], [], *apart).why == (
        "the GPU ran at 1939 MHz for it and at 900 for the next, which may be all of the lead"
    )
    near = [*clocks("impl=a", sm_clock=1.939e9), *clocks("impl=b", sm_clock=1.711e9)]
    assert win([], [], *near).verdict == "clear", "its lead is larger"
    assert win([], [], *clocks("impl=a", sm_clock=0.9e9), *clocks("impl=b", sm_clock=1.939e9)).verdict == "clear"


def test_where_clocks_moved_their_ends_count() -> None:
    ends = {"sm_clock": 1.7e9, "sm_clock_min": 1.1e9, "sm_clock_max": 1.9e9}
    assert win(["clock_spread"], [], *clocks("impl=a", **ends), *clocks("impl=b", **ends)).verdict == "void"


def third(ns: float, ci: float, flags: Sequence[str] = (), **hz: float) -> Win:
    """Of ``a`` with 100 ns at 1.9 GHz over ``b`` with 150 and over ``c``, whose interval is ``ci`` either way."""
    own = [metric_row("impl=c", "time", ns, ci_low=ns - ci, ci_high=ns + ci), *clocks("impl=c", **hz)]
    cases = [case_row(f"impl={impl}", flags=list(flags) if impl == "c" else []) for impl in "abc"]
    times = [metric_row("impl=a", "time", 100.0, ci_low=99.0, ci_high=101.0), *clocks("impl=a", sm_clock=1.9e9),
             metric_row("impl=b", "time", 150.0, ci_low=149.0, ci_high=151.0)]  # fmt: skip
    (shape,) = only(tables(cases, metrics=[*times, *own])).shapes
    assert shape.win is not None
    return shape.win


def test_not_the_next_alone_may_be_level_with_the_best() -> None:
    """varlen [1633.1, 1638.8] us came third behind [1633.7, 1635.3] and [1635.5, 1639.7] on an H200."""
    assert third(200.0, 40.0).verdict == "clear"
    assert [point.variant for point in third(200.0, 110.0).level] == ["a", "c"]


def test_not_the_next_alone_may_be_the_first_at_like_clocks() -> None:
    assert third(160.0, 1.0, ["throttled"], sm_clock=1.1e9).why == (
        "that of c is marked throttled, and the lead over c may be one of clocks"
    )
    unmarked = "the GPU ran at 1900 MHz for it and at 1100 for c, which may be all of the lead over c"
    assert third(160.0, 1.0, sm_clock=1.1e9).why == unmarked
    assert third(190.0, 1.0, ["throttled"], sm_clock=1.1e9).verdict == "clear", "its lead is larger"
    assert third(190.0, 1.0, ["throttled"]).verdict == "clear", "its clock is not known"


def test_noise_without_an_interval_takes_a_win_away() -> None:
    rows = [metric_row("impl=a", "time", 1.0), metric_row("impl=b", "time", 9.0)]
    (shape,) = only(tables([case_row("impl=a", flags=["noisy"])], metrics=rows)).shapes
    assert shape.win is not None and shape.win.why.startswith("its measurement is marked noisy, and has no interval")


def test_a_mark_of_an_older_run_is_spelled_as_today() -> None:
    assert win(["other-process"], []).verdict == "void"


# --- limits ----------------------------------------------------------------------------------------------------------

MACHINE = {"peaks": {"flops": {"fp16": 1e15}, "bytes_per_s": 4e12, "source": "a rule"}}


def limit(flops: float, moved: float, *more: dict[str, Any], machine: dict[str, Any] = MACHINE, **ncu: float) -> Limit:
    """Of a call of 100 us in one kernel."""
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "fp16"})]
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
    kernels += [kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")] if ncu else []
    numbers = [metric_row("impl=a", "time", 1e5), metric_row("impl=a", "flops", flops, "flop"),
               metric_row("impl=a", "bytes_moved", moved, "byte"), *more]  # fmt: skip
    numbers += [metric_row("impl=a", name, value, "byte/s", profiler="ncu", subject=ATTENTION)
                for name, value in ncu.items()]  # fmt: skip
    data = tables(cases, kernels, [range_row("impl=a", 10)], numbers)
    return only(data, {"machine": machine}).points[0].limit


def test_the_side_of_the_ridge_says_what_limits() -> None:
    busy = limit(flops=5e10, moved=1e6)
    assert (busy.binds, busy.of_flops, busy.intensity) == ("compute", 0.5, 5e4)
    streaming = limit(flops=1e9, moved=2e8)
    assert (streaming.binds, streaming.of_bandwidth, streaming.intensity) == ("memory", 0.5, 5.0)


def test_bytes_that_ncu_saw_come_before_those_that_a_call_must_move() -> None:
    found = limit(5e10, 1e6, **{"dram__bytes.sum.per_second": 2e12})
    assert (found.binds, found.traffic, found.of_bandwidth) == ("memory", 2e8, 0.5)


def test_of_launches_that_differ_ncu_must_have_seen_all_to_say_what_a_call_moves() -> None:
    def traffic(seen: int) -> float | None:
        kernels = [kernel_row("impl=a", ATTENTION, 70, 1e6, stddev_ns=2e4),
                   kernel_row("impl=a", ATTENTION, seen, seen * 1e5 / 7, profiler="ncu")]  # fmt: skip
        rate = metric_row("impl=a", "dram__bytes.sum.per_second", 2e12, "byte/s", profiler="ncu", subject=ATTENTION)
        numbers = [metric_row("impl=a", "time", 1e5), rate]
        data = tables([case_row("impl=a")], kernels, [range_row("impl=a", 10)], numbers)
        return only(data, {"machine": MACHINE}).points[0].limit.traffic

    assert traffic(1) is None and traffic(7) is not None


def test_measured_ceilings_come_before_the_rule() -> None:
    ceilings = {"flops": {"fp16": 7e14}, "bytes_per_s": 4e12, "source": "measured"}
    assert limit(flops=4.2e10, moved=1e6, machine={**MACHINE, "ceilings": ceilings}).of_flops == pytest.approx(0.6)


def test_a_host_that_is_slower_than_the_gpu_is_the_limit() -> None:
    found = limit(5e10, 1e6, metric_row("impl=a", "issue", 3e5))
    assert (found.binds, found.issue_ns, found.gpu_ns) == ("host", 3e5, 1e5)
    assert limit(5e10, 1e6, metric_row("impl=a", "issue", 3e4)).binds == "compute"


def test_a_call_that_is_marked_host_bound_is_limited_by_the_host_however_long_its_kernels_are() -> None:
    """Of two GPUs the sum of the kernels has waiting in it, which the call of 2993 us does not: the host takes 3755."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 5.2e7)]
    several = [metric_row("impl=a", "time_own", 2.993e6, subject="rank 1"), metric_row("impl=a", "time_own", 2.993e6)]

    def found(issue: float, flags: list[str], *more: dict[str, Any]) -> Limit:
        numbers = [metric_row("impl=a", "time", 2.993e6), metric_row("impl=a", "issue", issue), *more]
        numbers += [metric_row("impl=a", "flops", 1.5e12, "flop"), metric_row("impl=a", "bytes_moved", 1e6, "byte")]
        cases = [case_row("impl=a", flags=flags, params={"impl": "a", "dtype": "fp16"})]
        workload = only(tables(cases, kernels, [range_row("impl=a", 10)], numbers), {"machine": MACHINE})
        return workload.points[0].limit

    assert found(3.755e6, ["host_bound"]).binds == found(3.755e6, ["host_bound"], *several).binds == "host"
    assert (found(3.755e6, [], *several).binds, found(3.755e6, [], *several).gpu_ns) == ("host", 2.993e6)
    assert found(2.5e6, [], *several).binds == "compute"
    assert (found(3.755e6, []).binds, found(3.755e6, []).gpu_ns) == ("compute", 5.2e6)


def test_the_time_of_a_call_whose_kernels_nobody_captured_is_a_bound_of_the_gpus_where_the_host_is_slower() -> None:
    rows = [metric_row("impl=a", "time", 2e5), metric_row("impl=a", "issue", 3e5), metric_row("impl=b", "time", 4e5)]
    alone, captured = (
        only(tables([case_row("impl=a"), case_row("impl=b")], kernels, [range_row("impl=a", 10)], rows))
        for kernels in ([], [kernel_row("impl=a", ATTENTION, 10, 1e6)])
    )
    for workload, written in ((alone, "≤ 200.0"), (captured, "100.0")):
        sheet = limits(workload, workload.points, one_shape=True)
        assert sheet.rows[0][sheet.head.index("GPU us")] == written
        assert ("≤: its kernels were not captured" in explained(workload)) is (workload is alone)


def test_a_time_that_nobody_knows_has_no_bound() -> None:
    whole = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
    workload = only(tables([case_row("impl=a", "nsys", flags=["host_bound"])], whole))
    assert workload.points[0].limit.binds == "host" and "≤" not in explained(workload)


def test_without_peaks_nothing_is_said_to_bind() -> None:
    assert limit(5e10, 1e6, machine={}).binds == ""


def test_cases_that_nothing_known_limits_are_counted() -> None:
    """A call that waits for something else reaches a hundredth of what its kernels could."""
    rows = [metric_row(f"impl={i}", name, value) for i in "abc"
            for name, value in (("time", 1e5 if i == "a" else 1e7), ("flops", 5e10), ("bytes_moved", 1e6))]  # fmt: skip
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in "abc"]
    workload = only(tables(cases, metrics=rows), {"machine": MACHINE})
    assert len(limits(workload, workload.points, one_shape=True).rows) == 1
    told = "2 cases are left out: they stay below a tenth of both peaks, and what limits them is not known."
    assert told in explained(workload)
    assert "left out" not in explained(only(tables(cases[:1], metrics=rows[:3]), {"machine": MACHINE}))


def test_a_case_whose_bytes_nobody_declares_stays_in_the_table_without_a_limit() -> None:
    rows = [metric_row(f"impl={i}", name, value) for i, ns in (("a", 1e5), ("b", 1.25e5), ("c", 1e5))
            for name, value in (("time", ns), ("flops", 5e10))]  # fmt: skip
    rows.append(metric_row("impl=c", "bytes_moved", 1e6))
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in "abc"]
    workload = only(tables(cases, metrics=rows), {"machine": MACHINE})
    table = limits(workload, workload.points, one_shape=True)
    assert {row[0]: row[-1] for row in table.rows} == {"`a`": "–", "`b`": "–", "`c`": "arithmetic"}
    told = (
        "–: the bytes of the call are not declared, so whether memory would limit it is not known "
        "(2 cases, 40.0 to 50.0 % of the peak FLOP/s)."
    )
    assert told in explained(workload) and "left out" not in explained(workload)
    nowhere = only(tables(cases[:2], metrics=rows[:4]), {"machine": MACHINE})
    assert not limits(nowhere, nowhere.points, one_shape=True)


def test_that_kernel_times_are_means_over_gpus_is_said_where_several_were_seen() -> None:
    def said(*gpus: int) -> tuple[str, str]:
        busy = [
            metric_row("impl=a", "communication_busy", 1e4, profiler="nsys", subject=f"device {gpu}") for gpu in gpus
        ]
        kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
        rows = [metric_row("impl=a", "time", 1e5), metric_row("impl=a", "issue", 3e5), *busy]
        workload = only(tables([case_row("impl=a")], kernels, [range_row("impl=a", 10)], rows))
        return explained(workload), agreement_sheets.said(workload)

    means = "Kernel times of several GPUs are means over them; communication has waiting for the others in it."
    assert all(one.startswith(means) for one in said(0, 1))
    assert not any(means in one for one in said(0))


def test_the_limit_of_the_winner_is_said_in_words() -> None:
    rows = [metric_row(f"impl={i}", name, value) for i in "ab"
            for name, value in (("time", 1e5), ("flops", 5e10), ("bytes_moved", 1e6))]  # fmt: skip
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in "ab"]
    assert in_words(only(tables(cases, metrics=rows), {"machine": MACHINE})) == (
        "There `a` reaches 500.0 TFLOP/s, 50.0 % of the peak of arithmetic; by the bytes that it must move at least, "
        "that is the nearer of the roofline's two roofs."
    )


def test_of_sparse_work_the_limits_are_of_what_is_done_of_it() -> None:
    """Four tenths of the dense work, over the same bytes."""
    numbers = (("time", 1e5), ("flops", 5e10), ("bytes_moved", 1e7))
    rows = [metric_row(f"impl={i}", name, value) for i in "ab" for name, value in numbers]
    sparse = [*rows, metric_row("impl=a", "flops_effective", 2e10, "flop")]
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in "ab"]
    workload = only(tables(cases, metrics=sparse), {"machine": MACHINE})
    said = "`a` reaches 200.0 TFLOP/s of the work that it does (500.0 of the dense work), 20.0 % of the peak"
    assert said in in_words(workload)
    table = limits(workload, workload.points, one_shape=True)
    row, dense = (dict(zip(table.head, cells, strict=True)) for cells in table.rows)
    told = [(cells["effective TFLOP/s"], cells["FLOP/byte"]) for cells in (row, dense)]
    assert told == [("200.0", "2000"), ("500.0", "5000")]


def test_that_memory_does_not_limit_is_said_only_where_its_traffic_was_measured() -> None:
    rows = [metric_row("impl=a", name, value) for name, value in (("flops", 5e10), ("bytes_moved", 1e6))]
    rows += [metric_row("impl=a", "time", 1e5), metric_row("impl=b", "time", 2e5)]
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6), kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")]
    rate = metric_row("impl=a", "dram__bytes.sum.per_second", 1e11, "byte/s", profiler="ncu", subject=ATTENTION)
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in "ab"]
    seen, unseen = (only(tables(cases, kernels, [range_row("impl=a", 10)], metrics), {"machine": MACHINE})
                    for metrics in ([*rows, rate], rows))  # fmt: skip
    assert in_words(seen).endswith("50.0 % of the peak of arithmetic; that is the nearer of the roofline's two roofs.")
    assert "memory may be the nearer roof where arithmetic is named" not in explained(seen)
    assert in_words(unseen).endswith(
        "by the bytes that it must move at least, that is the nearer of the roofline's two roofs."
    )
    assert "memory may be the nearer roof where arithmetic is named" in explained(unseen)


def test_the_limit_is_the_nearer_of_two_roofs_on_the_page_of_the_h200_run() -> None:
    """ncu has its kernel far below both: arithmetic is not what holds it at 63 % of its ceiling."""
    workload = only(*example("h200-attention"))
    assert in_words(workload) == (
        "There `sdpa_cudnn` reaches 448.4 TFLOP/s, 63.0 % of the measured ceiling of arithmetic; that is the nearer of "
        "the roofline's two roofs."
    )
    assert explained(workload).startswith(
        "By the roofline: the nearer of its two roofs is named, arithmetic for a call with more FLOP per byte than the "
        "machine's measured ceilings have (166.4 for fp16, 188.1 for int8 and fp16, 12.0 for fp32), memory for one "
        "with less. How far it stays below both is up to its kernels."
    )


def test_a_call_that_memory_limits_is_held_against_its_bandwidth() -> None:
    numbers = {"a": 1e5, "b": 2e5}
    rows = [metric_row(f"impl={i}", name, value) for i, ns in numbers.items()
            for name, value in (("time", ns), ("flops", 1e9), ("bytes_moved", 2e8))]  # fmt: skip
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in numbers]
    assert in_words(only(tables(cases, metrics=rows), {"machine": MACHINE})).endswith(
        " % of the peak of memory bandwidth; that is the nearer of the roofline's two roofs."
    )


def of_types(work: dict[str, float], rates: dict[str, float], dtype: str = "fp16") -> WorkloadFindings:
    """A call of 100 us named ``a`` whose FLOPs are known by data type, and how it is spelled in the tables."""
    numbers = [metric_row("impl=a", "time", 1e5), metric_row("impl=a", "flops", sum(work.values()), "flop")]
    numbers += [metric_row("impl=a", "bytes_moved", 1e6, "byte")]
    numbers += [metric_row("impl=a", f"flops.{name}", flop, "flop") for name, flop in work.items()]
    cases = [case_row("impl=a", params={"impl": "a", "dtype": dtype}), case_row("impl=b", params={"impl": "b"})]
    numbers += [metric_row("impl=b", "time", 2e5)]
    return only(tables(cases, metrics=numbers), {"machine": {"peaks": {"flops": rates, "bytes_per_s": 4e12}}})


def test_a_call_in_several_data_types_is_held_against_the_time_that_its_parts_take_one_after_the_other() -> None:
    """6e10 at 2e15 take 30 us, 2e10 at 1e15 take 20 us: of the 100 us that is half, where fp16 alone would give 1.6."""
    found = of_types({"int8": 6e10, "fp8": 2e10}, {"fp16": 5e14, "int8": 2e15, "fp8": 1e15})
    point = next(p for p in found.points if p.variant == "a")
    assert point.tflops == 800 and point.of_peak_flops == pytest.approx(0.5) and point.marks == ()
    assert point.limit.of_flops == pytest.approx(0.5) and point.limit.binds == "compute"
    assert point.limit.dtypes == ("int8", "fp8") and point.limit.ridge == pytest.approx(400)


def test_without_the_rate_of_one_data_type_nothing_is_held_against_the_others() -> None:
    found = of_types({"int8": 4e10, "fp8": 4e10}, {"fp16": 5e14, "int8": 2e15})
    point = next(p for p in found.points if p.variant == "a")
    assert (point.tflops, point.of_peak_flops, point.limit.of_flops, point.limit.ridge) == (800, None, None, None)


def test_one_part_in_the_data_type_of_the_case_is_as_one_number() -> None:
    found = of_types({"bf16": 5e10}, {"bf16": 1e15}, dtype="bfloat16")
    point = next(p for p in found.points if p.variant == "a")
    assert (point.limit.of_flops, point.limit.dtypes) == (0.5, ())
    assert in_words(found).startswith("There `a` reaches 500.0 TFLOP/s, 50.0 % of the peak of arithmetic; ")


def test_the_data_types_are_named_beside_the_peak() -> None:
    found = of_types({"int8": 6e10, "fp8": 2e10}, {"fp16": 5e14, "int8": 2e15, "fp8": 1e15})
    assert in_words(found).startswith("There `a` reaches 800.0 TFLOP/s, 50.0 % of the peak of int8 and fp8 arithmetic;")
    said = explained(found)
    assert "400.0 for int8 and fp8)" in said
    assert "`a` computes in int8 and fp8, and is held against the rates of these, one after the other." in said
    alone = explained(of_types({"int8": 8e10}, {"int8": 2e15}))
    assert "`a` computes in int8, and is held against the rate of that." in alone


def test_flops_by_data_type_are_written_beside_their_sum(tmp_path: Path) -> None:
    written: list[dict[str, Any]] = []
    work = {"int8": 3.0, "fp8": 1.0}
    workload = SimpleNamespace(flops=lambda params: work, phase_work=lambda params: {"attention": {"flops": work}})
    assert facts.write(workload, {}, tmp_path, lambda event, **fields: written.append(fields), {}) == []
    assert {(row["subject"], row["metric"]): row["value"] for row in written} == {
        ("", "flops"): 4.0, ("", "flops.int8"): 3.0, ("", "flops.fp8"): 1.0,
        ("attention", "flops"): 4.0, ("attention", "flops.int8"): 3.0, ("attention", "flops.fp8"): 1.0,
    }  # fmt: skip
    assert {row["unit"] for row in written} == {"flop"}


# --- profilers -------------------------------------------------------------------------------------------------------


def test_the_loop_under_a_profiler_against_the_loop_alone_is_its_overhead() -> None:
    walls = {"plain": 100.0, "torch": 104.0, "nsys": 130.0}
    rows = [metric_row("impl=a", "loop_wall", ns, profiler=profiler) for profiler, ns in walls.items()]
    found = only(tables([case_row("impl=a")], metrics=rows)).overheads
    assert {o.profiler: (round(o.share, 2), o.marked) for o in found} == {"torch": (0.04, False), "nsys": (0.3, True)}


def test_kernel_times_of_a_profiler_that_slowed_the_case_carry_the_mark() -> None:
    walls = [metric_row("impl=a", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1.0), ("nsys", 2.0))]
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 9.0)], ranges=[range_row("impl=a", 1)], metrics=walls)
    assert only(data).points[0].marks == ("profiler_overhead",)


def test_numbers_of_a_profilers_process_are_not_taken_for_the_cases_own() -> None:
    rows = [metric_row("impl=a", name, 7.0, profiler="torch") for name in ("issue", "loop_wall", "sm_clock", "flops")]
    assert only(tables(metrics=rows)).points[0].values == {"flops": 7.0}


# --- ncu -------------------------------------------------------------------------------------------------------------


def test_a_kernel_below_a_target_misses_it_and_the_rules_are_named() -> None:
    ncu = {"profiler": "ncu", "subject": ATTENTION}
    memory, sm = "gpu__compute_memory_throughput", "sm__throughput"
    rows = [metric_row("impl=a", f"{name}.avg.pct_of_peak_sustained_elapsed", value, "%", **ncu)
            for name, value in ((memory, 85.0), (sm, 40.0))]  # fmt: skip
    rows += [metric_row("impl=a", "rule:Occupancy", 12.5, "% local", **ncu)]
    rows += [metric_row("impl=a", "rule:SOLBottleneck", float("nan"), "%", **ncu)]
    run = {"pipeline": {"workloads": {"w": {"ncu": {"targets": {"memory": 80, "sm": 90}}}}}}
    (found,) = only(tables(metrics=rows), run).counters
    assert found.missed == ("sm",) and found.rules == (Rule("Occupancy", 12.5, local=True), Rule("SOLBottleneck"))
    assert not [name for name in found.values if name.startswith("rule:")]


def test_a_speed_up_that_ncu_estimates_of_a_part_is_not_told_as_one_of_the_kernel() -> None:
    def sheet(*said: tuple[str, float, str]) -> Sheet:
        ncu = {"profiler": "ncu", "subject": ATTENTION}
        workload = only(tables(metrics=[metric_row("impl=a", f"rule:{name}", *rest, **ncu) for name, *rest in said]))
        return kernel_sheets.rules(workload.counters, workload.points)

    stall, nothing = ("CPIStall", 40.0, "% local"), float("nan")
    both = sheet(stall, ("Imbalance", 5.0, "%"), ("Imbalance", 30.0, "% local"), ("SOLBottleneck", nothing, "%"))
    assert (
        both.rows[0][-1] == "`Imbalance` 5.00 %, `CPIStall` 40.0 % (local), `Imbalance` 30.0 % (local), `SOLBottleneck`"
    )
    assert "not how much faster the kernel would be" in kernel_sheets.rules_said(both)
    assert sheet(("CPIStall", nothing, "%"), stall).rows[0][-1] == "`CPIStall` 40.0 % (local)", "it speaks twice"
    whole = sheet(("Imbalance", 5.0, "%"))
    assert whole.rows[0][-1] == "`Imbalance` 5.00 %" and not kernel_sheets.rules_said(whole)


def test_each_estimate_of_the_real_run_is_of_what_its_unit_says() -> None:
    data, run = example("h200-attention")
    workload, rows = only(data, run), data.metrics[data.metrics["metric"].str.startswith("rule:")]
    estimates = rows[rows["value"].notna()]
    names = zip(*(estimates[key] for key in ("case", "subject", "metric", "unit")), strict=True)
    told = [(c.case, c.kernel, f"rule:{r.name}", "% local" if r.local else "%")
            for c in workload.counters for r in c.rules if r.speedup is not None]  # fmt: skip
    assert set(told) == set(names) and {"%", "% local"} == {unit for *_, unit in told}


# --- phases ----------------------------------------------------------------------------------------------------------


def test_a_phase_has_the_time_of_what_is_nested_in_it() -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 2, 60.0, phase="forward"),
               kernel_row("impl=a", ADD, 4, 20.0, phase="forward > loss"),
               kernel_row("impl=a", ADD, 2, 20.0, phase="backward")]  # fmt: skip
    phases = only(tables(kernels=kernels, ranges=[range_row("impl=a", 2)])).phases
    assert {p.phase: (p.calls, p.ns, p.share) for p in phases} == {
        "forward": (3.0, 40.0, 0.8), "forward > loss": (2.0, 10.0, 0.2), "backward": (1.0, 10.0, 0.2),
    }  # fmt: skip


def test_a_call_far_below_both_peaks_is_not_said_to_be_limited_by_what_it_must_do() -> None:
    assert limit(flops=5e8, moved=1e4).binds == ""
    assert limit(5e8, 1e4, **{"dram__bytes.sum.per_second": 2e12}).binds == "memory"


def test_a_case_of_a_data_type_without_a_known_peak_is_left_out_for_that() -> None:
    rows = [metric_row(f"impl={i}", name, value) for i in "ab"
            for name, value in (("time", 1e5), ("flops", 5e10), ("bytes_moved", 2e8))]  # fmt: skip
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "fp16"})]
    cases.append(case_row("impl=b", params={"impl": "b", "dtype": "int4"}))
    said = explained(only(tables(cases, metrics=rows), {"machine": MACHINE}))
    assert "1 case of data types whose peak is not known is left out." in said and "below a tenth of both" not in said


def test_without_a_known_bandwidth_nothing_is_said_of_data_types() -> None:
    rows = [metric_row("impl=a", name, value) for name, value in (("time", 1e5), ("flops", 5e10), ("bytes_moved", 2e8))]
    machine = {"peaks": {"flops": {"fp16": 1e15}}}
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "fp16"})]
    said = explained(only(tables(cases, metrics=rows), {"machine": machine}))
    assert "1 case of a GPU whose memory bandwidth is not known is left out." in said and "data types" not in said


@pytest.mark.parametrize(
    ("operators_ms", "loop_ms", "because"),
    [
        (1.3, 1.1, "overhead: the profiler's own cost for each operator"),  # 30 of them, 10 us each
        (3.0, 2.4, "overhead: the loop took 2.4 ms an iteration under torch, 1.1 without"),
        (3.0, 1.2, ""),  # the machine was busy meanwhile, or anything else: nobody knows
    ],
)
def test_operators_that_take_longer_than_the_call_are_put_down_to_the_profiler_only_as_far_as_it_costs(
    operators_ms: float, loop_ms: float, because: str
) -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    walls = [metric_row("impl=a", "loop_wall", ms * 1e6, profiler=p) for p, ms in (("plain", 1.1), ("torch", loop_ms))]
    data = tables(
        kernels=[kernel_row("impl=a", "aten::mm", 30, operators_ms * 1e6, **cpu)],
        ranges=[range_row("impl=a", 1, "torch")],
        metrics=[*walls, metric_row("impl=a", "time", 1e6, ci_low=0.99e6, ci_high=1.01e6)],
    )
    (figure,) = [f for a in only(data).agreements for f in a.figures if f.profiler == "plain"]
    assert (figure.reason, figure.flagged) == (because, not because)


# --- the GPU that waits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wall_ms", "busy_ms", "span_ms", "idle"),
    [
        (4.0, 1.0, 2.0, 0.75),  # the host waits in the range for its kernels
        (1.0, 2.0, 2.5, 0.2),  # it has ended long before they have
        (1.0, 2.0, 2.0, 0.0),  # one kernel, or several with no gap
        (1.0, 2.0, 0.0, None),  # an export of which only sums are known
        (1.0, 0.0, 0.0, None),  # no kernel
    ],
)
def test_the_idle_share_is_of_the_range_or_of_its_kernels_where_these_outlast_it(
    wall_ms: float, busy_ms: float, span_ms: float, idle: float | None
) -> None:
    own = OwnRange(10, 1e6 * wall_ms, 1e6 * busy_ms, 1e6 * span_ms)
    assert own.idle == (None if idle is None else pytest.approx(idle))


def test_where_the_host_does_not_wait_the_gaps_between_kernels_are_told_and_explained() -> None:
    data = tables(
        [case_row("impl=a", params={"impl": "a", "dtype": "fp16"})],
        [kernel_row("impl=a", ATTENTION, 10, 8e6)],
        [range_row("impl=a", 10, wall_ns=1e6, busy_ns=8e6, span_ns=10e6)],
        [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "issue", 2e6)],
    )
    (workload,) = analyze(data, {}).workloads
    sheet = limits(workload, workload.points, one_shape=False)
    assert sheet.rows[0][sheet.head.index("GPU idle %")] == "20.0"
    assert "Idle is the part of a call's range" in explained(workload)
