"""Tables -> findings. The recorded numbers are an H200's; all others are made up and small enough to check."""

from __future__ import annotations

import sqlite3
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    FLUSH,
    case_row,
    example,
    kernel_row,
    metric_row,
    range_row,
    recorded,
    tables,
)  # fmt: skip

from profpipe.analyze import analyze
from profpipe.findings import Basis, Findings, Shape, WorkloadFindings
from profpipe.page import sheets
from profpipe.page.caveats import doubts
from profpipe.points import order, parse_id
from profpipe.tables import Tables


def declared(**workload: Any) -> dict[str, Any]:
    return {"pipeline": {"workloads": {"w": workload}}}


def only(findings: Findings) -> WorkloadFindings:
    (workload,) = findings.workloads
    return workload


def shape(workload: WorkloadFindings, seqlen: int) -> Shape:
    return next(s for s in workload.shapes if dict(s.axes)["seqlen"] == seqlen)


@pytest.fixture(scope="module")
def h200() -> WorkloadFindings:
    return only(analyze(*recorded()))


# --- the recording ---------------------------------------------------------------------------------------------------

#: variant: attention share %, attention us, direct_copy calls and us, add calls and us, total us, over baseline.
KERNEL_SHARE_2048 = {
    "flash": (81.3, 119.5, 1, 12.4, 1, 15.1, 147.1, 1.00),
    "cudnn": (73.8, 76.5, 1, 12.1, 1, 15.1, 103.7, 1.42),
    "fa2": (66.6, 113.5, 3, 40.9, 1, 16.0, 170.5, 0.86),
    "sage1": (59.4, 90.5, 1, 12.4, 2, 27.9, 152.3, 0.97),
    "efficient": (95.0, 276.9, 0, 0.0, 1, 14.6, 291.5, 0.50),
    "xformers": (95.1, 277.3, 0, 0.0, 1, 14.4, 291.8, 0.50),
    "math": (0.0, 0.0, 4, 51.9, 1, 15.9, 2136.4, 0.07),
}


def test_the_copied_tables_hold_what_the_recording_holds(shared_data: Path) -> None:
    query = """
        SELECT replace(replace(range.text, 'case:', 'impl='), ':', ',seqlen='), count(*), sum(kernel.end - kernel.start)
        FROM CUPTI_ACTIVITY_KIND_KERNEL kernel
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME api USING (correlationId)
        JOIN NVTX_EVENTS range ON range.globalTid = api.globalTid AND range.start <= api.start AND range.end >= api.end
        WHERE range.text LIKE 'case:%' GROUP BY 1"""
    file = shared_data / "h200" / "attn_h200.sqlite"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        truth = {case: (calls, ns) for case, calls, ns in connection.execute(query)}
    sums = recorded()[0].kernels.groupby("case")[["calls", "total_ns"]].sum()
    assert {case: (row["calls"], row["total_ns"]) for case, row in sums.iterrows()} == truth


@pytest.mark.parametrize("variant", KERNEL_SHARE_2048)
def test_kernel_shares_of_an_h200_are_those_of_a_hand_written_query(h200: WorkloadFindings, variant: str) -> None:
    point = next(p for p in shape(h200, 2048).points if p.variant == variant)
    split = point.split
    assert split is not None and split.iterations == 5
    copy, add, attention = split.part("direct_copy"), split.part("add"), split.part("attention")
    shares = [round(100 * attention.ns / split.total.ns, 1), round(attention.ns / 1e3, 1)]
    others = [number for part in (copy, add) for number in (part.calls, round(part.ns / 1e3, 1))]
    found = (*shares, *others, round(split.total.ns / 1e3, 1), round(point.kernel_speedup or 0, 2))
    assert found == KERNEL_SHARE_2048[variant]


def test_the_parts_of_a_call_add_up_to_all_its_kernels(h200: WorkloadFindings) -> None:
    for point in h200.points:
        assert point.split is not None
        assert sum(part.ns for part in point.split.parts.values()) == pytest.approx(point.split.total.ns)
        assert sum(part.ns for part in point.split.classes.values()) == pytest.approx(point.split.total.ns)


def test_sage_is_charged_with_its_quantising_and_the_mean_that_it_subtracts(h200: WorkloadFindings) -> None:
    sage = next(swap for swap in shape(h200, 2048).swaps if swap.variant == "sage1")
    assert (round(sage.attention or 0, 2), round(sage.with_helpers or 0, 2), round(sage.call, 2)) == (1.32, 1.07, 0.97)
    assert sage.faster_kernel_slower_call
    assert [(part, round(ns / 1e3, 1), calls) for part, ns, calls in sage.changes] == [
        ("helpers", 21.5, 3), ("add", 12.8, 1),
    ]  # fmt: skip


def test_what_is_little_of_a_long_call_and_much_of_the_short_one_in_its_place_is_told() -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 10, 50e6), kernel_row("impl=b", ATTENTION, 10, 7e6)]
    kernels += [kernel_row("impl=b", "made up", 50, 0.3e6), kernel_row("impl=b", ADD, 10, 0.1e6)]
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    (found,) = only(analyze(tables(kernels=kernels, ranges=ranges), declared(baseline={"impl": "a"}))).shapes
    assert found.swaps[0].changes == (("rest", 30_000.0, 5.0),)


@pytest.mark.parametrize(
    ("errors", "marks"), [({}, ["unchecked"]), ({"a": 0.01, "b": 0.02}, [""]), ({"a": 0.01, "b": 0.2}, [])]
)
def test_what_nobody_compared_is_swapped_under_a_mark_and_what_is_wrong_is_not(
    errors: dict[str, float], marks: list[str]
) -> None:
    """As a video of CogVideoX, which only nsys ran: nobody compares its results there."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 50e6), kernel_row("impl=b", ATTENTION, 10, 7e6)]
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    found = [metric_row(f"impl={impl}", "error_max", error, "1") for impl, error in errors.items()]
    run = declared(baseline={"impl": "a"}, tolerance={"error_max": 0.05})
    (seen,) = only(analyze(tables(kernels=kernels, ranges=ranges, metrics=found), run)).shapes
    assert [swap.mark for swap in seen.swaps] == marks
    assert [row[0] for row in sheets.swaps(seen).rows] == [f"`b`{f' *{mark}*' if mark else ''}" for mark in marks]


def test_no_swap_gives_more_than_the_share_of_attention_allows(h200: WorkloadFindings) -> None:
    limits = {swap.variant: swap.limit for swap in shape(h200, 2048).swaps}
    assert limits["cudnn"] == pytest.approx(147.066 / (147.066 - 119.546), rel=1e-4)


def test_unfused_attention_has_no_attention_kernel_to_compare(h200: WorkloadFindings) -> None:
    math = next(swap for swap in shape(h200, 2048).swaps if swap.variant == "math")
    assert math.attention is None and math.with_helpers is None and round(math.call, 2) == 0.07


def test_a_gpu_that_waits_for_launches_is_marked_host_bound(h200: WorkloadFindings) -> None:
    fastest = {dict(s.axes)["seqlen"]: s.fastest for s in h200.shapes}
    assert fastest[512] is not None and "host_bound" in fastest[512].marks
    assert fastest[2048] is not None and "host_bound" not in fastest[2048].marks


def test_five_iterations_of_thirty_are_too_few_in_every_case(h200: WorkloadFindings) -> None:
    assert h200.shared_marks == ("too_few_samples",)


def test_flash_in_pytorch_meets_the_expectation_of_fa2() -> None:
    expectations = {e.case: e for e in analyze(*recorded()).expectations}
    assert all(e.met for e in expectations.values())
    assert expectations["impl=flash,seqlen=2048"].own_copy and not expectations["impl=fa2,seqlen=2048"].own_copy


# --- what is compared with what --------------------------------------------------------------------------------------


def test_an_id_is_taken_apart_into_typed_values() -> None:
    assert parse_id("impl=fa2,seqlen=512,causal=true,p=0.5,dtype=none") == {
        "impl": "fa2", "seqlen": 512, "causal": True, "p": 0.5, "dtype": None,
    }  # fmt: skip
    assert parse_id("seqlens=128%2C128,impl=fa2") == {"seqlens": "128,128", "impl": "fa2"}
    assert parse_id("default") == {} and parse_id("") == {}


def test_shapes_are_ordered_by_size_within_their_words() -> None:
    shapes = [(("mode", mode), ("seqlen", n)) for n in (2048, 128) for mode in ("fwd", "bwd")]
    assert [dict(s) for s in order(shapes)] == [
        {"mode": "fwd", "seqlen": 128}, {"mode": "fwd", "seqlen": 2048},
        {"mode": "bwd", "seqlen": 128}, {"mode": "bwd", "seqlen": 2048},
    ]  # fmt: skip


def test_an_axis_with_one_value_is_said_once_and_those_that_vary_make_the_shape() -> None:
    cases = [case_row(f"impl={i},n={n}", params={"impl": i, "n": n, "batch": 2}) for i in "ab" for n in (1, 2)]
    workload = only(analyze(tables(cases), declared()))
    assert (workload.fixed, workload.compare, workload.varying_shape) == ((("batch", 2),), "impl", ("n",))


def test_without_impl_the_axis_of_the_baseline_is_compared() -> None:
    times = [metric_row(f"compile={c},n={n}", "time", ns) for c, n, ns in
             (("false", 1, 10.0), ("true", 1, 5.0), ("false", 2, 30.0), ("true", 2, 10.0))]  # fmt: skip
    workload = only(analyze(tables(metrics=times), declared(baseline={"compile": False})))
    assert workload.compare == "compile"
    assert [point.speedup for s in workload.shapes for point in s.points] == [2.0, 1.0, 3.0, 1.0]


def test_a_value_of_another_axis_than_impl_carries_its_name() -> None:
    times = [metric_row(f"compile={c}", "time", 1.0) for c in ("false", "true")]
    assert only(analyze(tables(metrics=times), declared(baseline={"compile": False}))).variants == (
        "compile=false", "compile=true",
    )  # fmt: skip


def test_without_impl_and_baseline_nothing_is_compared() -> None:
    times = [metric_row(f"size={s},precision={p}", "time", 1.0) for s in "ab" for p in ("fp32", "bf16")]
    workload = only(analyze(tables(metrics=times), declared(matrix={"size": ["a", "b"]})))
    assert workload.compare is None and workload.varying_shape == ("size", "precision")


def test_only_parameters_that_the_pipeline_sets_are_said_of_every_case() -> None:
    cases = [case_row(f"impl={i}", params={"impl": i, "batch": 2, "seed": 0}) for i in "ab"]
    assert only(analyze(tables(cases), declared(params={"batch": 2}))).fixed == (("batch", 2),)
    assert only(analyze(tables(cases), {})).fixed == (("batch", 2), ("seed", 0))


def test_cases_stand_in_the_order_of_the_plan_whatever_order_they_were_measured_in() -> None:
    times = [metric_row(f"impl={i}", "time", 1.0) for i in "bca"]
    run = {"jobs": [{"workload": "w", "cases": ["impl=a", "impl=b", "impl=c"]}]}
    assert only(analyze(tables(metrics=times), run)).variants == ("a", "b", "c")


def test_a_parameter_that_only_some_cases_have_belongs_to_the_implementation() -> None:
    times = [metric_row(c, "time", 1.0) for c in ("impl=a,n=1", "impl=b,n=1,topk=0.5", "impl=b,n=1,topk=0.2")]
    workload = only(analyze(tables(metrics=times), declared(baseline={"impl": "a"})))
    assert workload.variants == ("a", "b topk=0.5", "b topk=0.2")
    assert all(point.speedup == 1.0 for point in workload.points)


def test_what_is_null_of_one_implementation_and_a_number_of_another_belongs_to_the_other() -> None:
    ids = ("impl=a,n=1,topk=none", "impl=b,n=1,topk=0.5", "impl=b,n=1,topk=0.2")
    workload = only(analyze(tables(metrics=_times(*ids)), declared(baseline={"impl": "a", "topk": None})))
    assert workload.variants == ("a", "b topk=0.5", "b topk=0.2")
    assert len(workload.shapes) == 1 and all(point.speedup == 1.0 for point in workload.points)


def test_null_is_a_size_like_others_where_each_implementation_has_both_and_a_word_among_words() -> None:
    ids = [f"impl={impl},window={window}" for impl in "ab" for window in ("none", 128)]
    assert only(analyze(tables(metrics=_times(*ids)), declared())).varying_shape == ("window",)
    words = ("impl=a,mask=none", "impl=b,mask=none", "impl=b,mask=full")
    assert only(analyze(tables(metrics=_times(*words)), declared())).varying_shape == ("mask",)


def _times(*cases: str) -> list[dict[str, Any]]:
    return [metric_row(case, "time", 1.0) for case in cases]


def test_cases_without_a_baseline_have_no_speed_up() -> None:
    workload = only(analyze(tables(metrics=[metric_row("impl=a", "time", 1.0), metric_row("impl=b", "time", 2.0)]), {}))
    assert [point.speedup for point in workload.points] == [None, None]


# --- times -----------------------------------------------------------------------------------------------------------


def two_cases(**b: Any) -> Tables:
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1000.0), kernel_row("impl=b", ATTENTION, 10, 500.0)]
    ranges = [range_row("impl=a", 10), range_row("impl=b", 10)]
    times = [metric_row("impl=a", "time", 200.0, n=30)] + ([metric_row("impl=b", **b)] if b else [])
    return tables(kernels=kernels, ranges=ranges, metrics=times)


def test_timed_calls_come_before_sums_of_kernels() -> None:
    workload = only(analyze(two_cases(metric="time", value=400.0, n=30), declared(baseline={"impl": "a"})))
    assert workload.basis == Basis("plain", "time")
    assert {p.variant: (p.time.ns if p.time else None, p.speedup) for p in workload.points} == {
        "a": (200.0, 1.0), "b": (400.0, 0.5),
    }  # fmt: skip


def test_a_case_without_a_timed_call_never_borrows_its_kernel_time() -> None:
    more = [kernel_row("impl=c", ATTENTION, 10, 10.0), range_row("impl=c", 10)]
    data = two_cases(metric="time", value=400.0)
    whole = tables(
        kernels=[*data.kernels.to_dict("records"), more[0]],
        ranges=[*data.ranges.to_dict("records"), more[1]],
        metrics=data.metrics.to_dict("records"),
    )
    points = {p.variant: p for p in only(analyze(whole, declared(baseline={"impl": "a"}))).points}
    assert points["c"].time is None and points["c"].speedup is None and points["c"].kernel_speedup == 100.0


def test_one_timed_call_among_many_captured_cases_is_not_the_basis() -> None:
    workload = only(analyze(two_cases(), declared(baseline={"impl": "a"})))
    assert workload.basis == Basis("nsys", "kernel")
    assert {p.variant: p.time.ns for p in workload.points if p.time} == {"a": 100.0, "b": 50.0}


def test_the_time_under_a_profiler_is_not_taken_for_the_time_of_a_call() -> None:
    data = tables(metrics=[metric_row("impl=a", "time", 9.0, profiler="torch")])
    assert only(analyze(data, {})).basis is None


def test_without_iterations_everything_is_a_sum_and_gives_no_rate() -> None:
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 10, 1000.0)], metrics=[metric_row("impl=a", "flops", 1e9)])
    point = only(analyze(data, {})).points[0]
    assert point.time is not None and (point.time.ns, point.time.n, point.tflops) == (1000.0, None, None)


def test_the_harness_counts_iterations_where_a_profiler_has_no_ranges() -> None:
    counted = [metric_row("impl=a", "iterations", 4, "1", profiler="nsys")]
    point = only(analyze(tables(kernels=[kernel_row("impl=a", ATTENTION, 4, 400.0)], metrics=counted), {})).points[0]
    assert point.split is not None and (point.split.iterations, point.split.total.ns) == (4, 100.0)


def test_a_command_is_one_iteration_and_its_time_is_the_wall_time() -> None:
    data = tables(kernels=[kernel_row("default", ATTENTION, 7, 700.0)], metrics=[metric_row("default", "time", 5e9)])
    workload = only(analyze(data, declared(command=["python", "train.py"], repeats=30)))
    point = workload.points[0]
    assert workload.basis == Basis("plain", "wall") and point.marks == ()
    assert point.split is not None and point.split.total.calls == 7


def test_launches_without_a_time_are_counted_and_are_no_zeros() -> None:
    workload = only(analyze(tables(kernels=[kernel_row("impl=a", ATTENTION, 3, None)]), {}))
    assert workload.points[0].split is None and workload.launches == {"nsys": 3}


def test_rates_come_from_the_flops_and_bytes_of_one_call() -> None:
    numbers = [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "flops", 5e11, "flop"),
               metric_row("impl=a", "bytes_moved", 2e9, "byte")]  # fmt: skip
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "bfloat16"})]
    run = {"machine": {"peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 1e12}}}
    point = only(analyze(tables(cases, metrics=numbers), run)).points[0]
    assert (point.tflops, point.of_peak_flops, point.gbytes_per_s, point.of_peak_bytes) == (500.0, 0.5, 2000.0, 2.0)
    assert point.marks == ("above_peak",)


def test_a_geforce_may_reach_more_than_its_peak_where_sums_are_kept_in_16_bits() -> None:
    # SageAttention's published 340 TOPS on an RTX 4090, half of it in int8 and half in fp16.
    peaks = {"flops": {"int8": 814e12, "fp16": 203.5e12}, "flops_in_16_bits": {"fp16": 407e12}, "bytes_per_s": 1e12}

    def marks(tflops: float) -> tuple[str, ...]:
        numbers = [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "flops", tflops * 1e9, "flop")]
        numbers += [metric_row("impl=a", f"flops.{name}", tflops * 0.5e9, "flop") for name in ("int8", "fp16")]
        return only(analyze(tables(metrics=numbers), {"machine": {"peaks": peaks}})).points[0].marks

    assert (marks(340), marks(560)) == ((), ("above_peak",))


@pytest.mark.parametrize("zero", ["time", "sm_clock", "kernels"])
def test_a_table_that_was_corrected_by_hand_may_hold_zeros(zero: str) -> None:
    kernels = [kernel_row(case, ATTENTION, 1, 0.0 if zero == "kernels" else 5.0) for case in ("impl=a", "impl=b")]
    values = {"time": 1e6, "sm_clock": 1e9, "sm_clock_min": 1e9, "sm_clock_max": 1e9, "flops": 1e9, "issue": 9e5}
    numbers = [
        metric_row(case, name, 0.0 if name == zero or (case, name) == ("impl=b", "time") else value)
        for case in ("impl=a", "impl=b")
        for name, value in values.items()
    ]
    workload = only(analyze(tables(kernels=kernels, metrics=numbers), declared(baseline={"impl": "a"})))
    assert [point.speedup for point in workload.points if point.id == "impl=b"] == [None]


def test_marks_of_the_harness_are_those_of_the_process_that_gave_the_time() -> None:
    cases = [case_row("impl=a", flags=["noisy"]), case_row("impl=a", "nsys", flags=["profiler_overhead"])]
    workload = only(analyze(tables(cases, metrics=[metric_row("impl=a", "time", 1.0)]), {}))
    assert workload.points[0].marks == ("noisy",)


# --- agreement -------------------------------------------------------------------------------------------------------


def figures(data: Tables, run: dict[str, Any] | None = None) -> dict[str, tuple[float | None, str, bool]]:
    (agreement,) = only(analyze(data, run or {})).agreements
    return {f.profiler: (None if f.difference is None else round(f.difference, 3), f.reason, f.flagged)
            for f in agreement.figures}  # fmt: skip


def captured(ns: float = 100_000.0, **nsys: Any) -> list[dict[str, Any]]:
    return [kernel_row("impl=a", ATTENTION, 10, 10 * ns, **nsys)]


def test_events_a_little_above_the_kernels_are_explained_by_launch_gaps() -> None:
    data = tables(
        kernels=captured(), ranges=[range_row("impl=a", 10)], metrics=[metric_row("impl=a", "time", 106_000.0)]
    )
    assert figures(data) == {"nsys": (None, "", False), "plain": (0.06, "launch gaps: 6.0 us around 1 kernel", False)}


def test_a_difference_that_nothing_explains_is_flagged() -> None:
    data = tables(
        kernels=captured(), ranges=[range_row("impl=a", 10)], metrics=[metric_row("impl=a", "time", 190_000.0)]
    )
    assert figures(data)["plain"] == (0.9, "", True)


@pytest.mark.parametrize(
    ("busy_us", "because"),
    [
        (112, "overlap: 88.0 us of kernels on 2 streams ran beside others"),
        (104, "overlap: 96.0 us of kernels on 2 streams ran beside others"),  # and 6 us are launch gaps
        (130, ""),
        (60, ""),
        (None, ""),
    ],
)
def test_events_below_the_sum_of_kernels_are_explained_by_streams_where_the_time_with_a_kernel_is_that_of_the_call(
    busy_us: float | None, because: str
) -> None:
    kernels = [*captured(stream=7), kernel_row("impl=a", ADD, 10, 1e6, stream=8)]
    busy = {} if busy_us is None else {"wall_ns": 3e6, "busy_ns": 1e4 * busy_us}
    ranges = [range_row("impl=a", 10, **busy)]
    data = tables(kernels=kernels, ranges=ranges, metrics=[metric_row("impl=a", "time", 110_000.0)])
    part = f"overlap makes {200 - busy_us:.1f} of 90.0 us" if busy_us and not because else ""
    part = "overlap alone would make the call 50.0 us shorter than it is" if busy_us == 60 else part
    assert figures(data)["plain"] == (-0.45, because or part, not because)


def two_gpus(time_us: float, *, busy_us: float, waits_us: float, own_us: float | None = None) -> tuple[str, bool]:
    """Why the time of a call is not that of two GPUs: 100 us of attention each, 20 us of communication at least.

    ``waits_us`` are those that GPU 1 communicates beyond that, ``busy_us`` the mean time in which some kernel runs.
    """
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6, process=pid, stream=7) for pid in (1, 2)]
    kernels += [kernel_row("impl=a", "ncclDevKernel_SendRecv", 10, 1e4 * (20 + waits), process=pid, stream=8)
                for pid, waits in ((1, 0), (2, waits_us))]  # fmt: skip
    ranges = [range_row("impl=a", 10, process=pid, wall_ns=9e6, busy_ns=1e4 * busy_us) for pid in (1, 2)]
    metrics = [metric_row("impl=a", "time", 1e3 * time_us), metric_row("impl=a", "time_own", 1e3 * time_us)]
    metrics += [metric_row("impl=a", "time_own", 1e3 * (own_us or time_us), subject="rank 1")]
    metrics += [metric_row("impl=a", name, value, unit, profiler="nsys", subject=f"device {gpu}")
                for gpu, waits in ((0, 0), (1, waits_us))
                for name, value, unit in (("communication_busy", 1e3 * (20 + waits), "ns"),
                                          ("communication_overlap", 0.0, "%"))]  # fmt: skip
    _, because, flagged = figures(tables([case_row("impl=a")], kernels, ranges, metrics))["plain"]
    return because, flagged


def test_a_gpu_that_waits_for_another_makes_the_mean_of_their_kernels_longer() -> None:
    waiting = "waiting: GPU 1 is 0.22 ms in communication, GPU 0 0.02 ms"
    assert two_gpus(125, busy_us=220, waits_us=200) == (waiting, False)
    both = f"{waiting}; overlap: 20.0 us of kernels on 2 streams ran beside others"
    assert two_gpus(101, busy_us=200, waits_us=200) == (both, False)


def test_a_wait_that_is_far_more_than_the_difference_is_no_reason() -> None:
    """The call waits as well: the kernels are 20 us longer than it, and one GPU waits for 200."""
    assert two_gpus(200, busy_us=220, waits_us=200) == ("", True)
    assert two_gpus(200, busy_us=210, waits_us=200) == ("overlap makes 10.0 of 20.0 us", True)


def test_a_call_is_longer_than_the_kernels_where_its_slowest_process_waited_for_the_quickest() -> None:
    waiting = "waiting: the call is that of its slowest process; rank 0 takes 0.4 ms, rank 1 0.12 ms"
    assert two_gpus(400, busy_us=120, waits_us=0, own_us=120) == (waiting, False)
    assert not two_gpus(400, busy_us=120, waits_us=0, own_us=200)[0].startswith("waiting")


def test_where_most_of_what_a_call_has_besides_kernels_are_copies_they_are_the_reason() -> None:
    def because(copies_us: float) -> str:
        kernels = [
            kernel_row("impl=a", ADD, 100, 1e6),
            kernel_row("impl=a", "memset", 10, 1e4 * copies_us, kind="memset"),
        ]
        metrics = [metric_row("impl=a", "time", 400_000.0)]
        return figures(tables(kernels=kernels, ranges=[range_row("impl=a", 10)], metrics=metrics))["plain"][1]

    assert because(270) == "copies and sets: 270.0 us, launch gaps 30.0 us around 10 kernels"
    assert because(290) == "copies and sets: 290.0 us, which the sum of kernels leaves out"


def test_ncu_is_compared_over_the_kernels_that_it_was_told_to_profile() -> None:
    kernels = [
        *captured(),
        kernel_row("impl=a", COPY, 10, 1e6),
        kernel_row("impl=a", ATTENTION, 1, 110_000.0, profiler="ncu"),
    ]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": [["ncu", "--clock-control", "none"]]}]}
    assert figures(data, run)["ncu"] == (0.1, "cold cache: ncu empties the caches before each replay", False)
    (agreement,) = only(analyze(data, run)).agreements
    assert agreement.figures[-1].covered == 0.5


@pytest.mark.parametrize(("counted", "compared"), [(1, False), (7, True)])
def test_one_launch_of_many_that_differ_stands_for_none_of_them(counted: int, compared: bool) -> None:
    """Guided ncu takes one: of six copies of 10 us and one of 60 us a call, the large one, whose time is nsys's."""
    copies = [60_000.0, *[10_000.0] * 6] * 10
    spread = {"stddev_ns": statistics.stdev(copies)}
    kernels = [*captured(), kernel_row("impl=a", COPY, 70, sum(copies), **spread)]
    kernels += [kernel_row("impl=a", ATTENTION, 1, 100_000.0, profiler="ncu")]
    kernels += [kernel_row("impl=a", COPY, counted, 60_000.0 if counted == 1 else 120_000.0, profiler="ncu")]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    assert figures(data, {})["ncu"] == (0.0, "", False)
    (agreement,) = only(analyze(data, {})).agreements
    assert agreement.figures[-1].covered == pytest.approx(1.0 if compared else 100 / 220)
    alone = [row for row in kernels if row["kernel"] == COPY]
    data = tables(kernels=alone, ranges=[range_row("impl=a", 10)], metrics=data.metrics.to_dict("records"))
    assert bool(only(analyze(data, {})).agreements) is compared


def test_more_than_a_cold_cache_can_cost_is_flagged() -> None:
    kernels = [*captured(), kernel_row("impl=a", ATTENTION, 1, 190_000.0, profiler="ncu")]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": [["ncu", "--clock-control=none"]]}]}
    assert figures(data, run)["ncu"] == (0.9, "", True)
    run["jobs"][0]["argv"] = [["ncu"]]
    assert figures(data, run)["ncu"] == (0.9, "base clock: ncu locks it (`--clock-control`)", False)


def held_back(
    ns: float,
    ncu_ns: float | None = None,
    *,
    bytes_moved: float = 1.0,
    argv: str = "--clock-control=none",
    **others: Any,
) -> tuple[float | None, str, bool]:
    """The figure of ncu, else of the events, for a call of 1.2 ms at 1860 MHz whose kernel takes ``ns`` under nsys."""
    clocks = {"sm_clock": 1.86e9, "sm_clock_min": 1.785e9, "sm_clock_max": 1.98e9}
    metrics = [metric_row("impl=a", name, value, "Hz") for name, value in clocks.items()]
    metrics += [
        metric_row("impl=a", name, hz, "Hz", profiler="nsys")
        for name, hz in zip(("sm_clock_min", "sm_clock", "sm_clock_max"), others.get("under_nsys", ()), strict=False)
    ]
    metrics += [metric_row("impl=a", "time", 1.2e6), metric_row("impl=a", "flops", 1e12, "flop")]
    metrics += [metric_row("impl=a", "bytes_moved", bytes_moved, "byte")]
    kernels = captured(ns)
    if ncu_ns:
        metrics += [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
        kernels += [kernel_row("impl=a", ATTENTION, 1, ncu_ns, profiler="ncu")]
    cases = [case_row("impl=a", flags=others.get("flags", ["throttled"]), params={"dtype": "bf16", "impl": "a"})]
    run = {
        "machine": {
            "gpus": [{"max_sm_clock_hz": 1_980_000_000}],
            "peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 5e12},
        },
        "jobs": [{"workload": "w", "profiler": "ncu", "argv": [["ncu", argv]]}],
    }
    found = figures(tables(cases, kernels, [range_row("impl=a", 10)], metrics), run)
    return found["ncu" if ncu_ns else "plain"]


def test_a_call_that_the_power_cap_slowed_is_longer_than_its_kernel_at_a_higher_clock() -> None:
    because = (
        "clock: 1860 MHz (1785 to 1980) while timed, throttled;"
        " by time x clock 1962 to 1977 MHz under nsys, not recorded; at most 1980"
    )
    assert held_back(1_129_000.0) == (0.063, because, False)


@pytest.mark.parametrize(
    ("launches", "issue_ms", "explained"),
    [(1500, 5.0, True), (1500, 2.0, False), (900, 5.0, False), (1500, 30.0, False)],
)
def test_more_launches_than_can_be_queued_go_at_the_pace_of_the_host(
    launches: int, issue_ms: float, explained: bool
) -> None:
    kernels = [kernel_row("impl=a", ADD, 10 * launches, 10 * 0.1e6)]
    metrics = [metric_row("impl=a", "time", 5.1e6), metric_row("impl=a", "issue", issue_ms * 1e6)]
    found = figures(tables([case_row("impl=a", flags=["host_bound"])], kernels, [range_row("impl=a", 10)], metrics), {})
    _, because, flagged = found["plain"]
    assert flagged is not explained
    said = (
        "the host's pace: the time of the call is the host's, "
        f"which takes 5.0 ms to issue {launches} launches, of which about 1024 can be queued ahead"
    )
    assert because == (said if explained else "")


def test_a_clock_that_was_recorded_under_the_profiler_confirms_the_reason_or_refutes_it() -> None:
    # By the medians the call took 0.6 % more cycles; by the range alone the kernel's clock may have been 1962 MHz.
    told = "clock: recorded 1860 MHz while timed, 1965 MHz under nsys; by time x clock +0.6 %"
    difference, because, flagged = held_back(1_129_000.0, under_nsys=(1.95e9, 1.965e9, 1.98e9))
    assert because == told and not flagged
    _, because, flagged = held_back(1_129_000.0, under_nsys=(1.86e9, 1.875e9, 1.98e9))
    assert "1962 to 1977 MHz under nsys, recorded 1860 to 1980 MHz; at most 1980" in because and not flagged
    assert held_back(1_129_000.0, under_nsys=(1.84e9, 1.875e9, 1.89e9)) == (difference, "", True)


def test_clocks_that_were_recorded_are_the_reason_where_no_mark_says_that_one_was_held_back() -> None:
    def slower_under_nsys(ns: float, hz: float, **others: Any) -> tuple[float | None, str, bool]:
        return held_back(ns, flags=[], under_nsys=(hz, hz, hz), **others)

    told = "clock: recorded 1860 MHz while timed, 1770 MHz under nsys; by time x clock +0.9 %"
    assert slower_under_nsys(1_250_000.0, 1.77e9) == (-0.04, told, False)
    assert slower_under_nsys(1_250_000.0, 1.83e9) == (-0.04, "", True)  # less than half of it
    assert slower_under_nsys(1_350_000.0, 1.77e9) == (-0.111, "", True)  # nor that much
    assert slower_under_nsys(1_250_000.0, 1.95e9) == (-0.04, "", True)  # the other way
    assert slower_under_nsys(1_250_000.0, 1.77e9, bytes_moved=5.5e9) == (-0.04, "", True)  # memory has its own clock


def test_times_that_are_the_same_to_the_nanosecond_need_no_clock() -> None:
    clocks = {"flags": [], "under_nsys": (1.85e9, 1.85e9, 1.85e9)}
    assert held_back(1_200_000.0, **clocks) == (0.0, "", False)
    assert held_back(1_200_000.0, 1_200_000.0, **clocks) == (0.0, "", False)


def test_ncu_is_shorter_where_the_others_clock_was_recorded_below_the_highest() -> None:
    def under(hz: float, ncu_ns: float, **others: Any) -> tuple[float | None, str, bool]:
        return held_back(1_200_000.0, ncu_ns, flags=[], under_nsys=(hz, hz, hz), **others)

    told = (
        "clock: recorded 1860 MHz under nsys, at most 1980;"
        " under ncu the GPU rests between kernels, and its clock is inferred, not measured"
    )
    assert under(1.86e9, 1_134_000.0) == (-0.055, told, False)
    assert under(1.86e9, 1_080_000.0) == (-0.1, "", True)  # the highest would not do
    assert under(1.95e9, 1_134_000.0) == (-0.055, "", True)
    assert under(1.86e9, 1_134_000.0, argv="--set=basic") == (-0.055, "", True)  # ncu locks a lower clock
    assert under(1.86e9, 1_134_000.0, bytes_moved=5.5e9) == (-0.055, "", True)


def test_no_clock_excuses_more_than_the_gpu_can_reach() -> None:
    assert held_back(1_080_000.0) == (0.111, "", True)  # it would take 2051 MHz
    assert held_back(1_300_000.0) == (-0.077, "", True)  # 1717 MHz, and the case was never seen below 1785


def test_a_clock_is_the_reason_only_where_it_was_held_back_and_arithmetic_limits_the_call() -> None:
    assert held_back(1_129_000.0, flags=[]) == (0.063, "", True)
    assert held_back(1_129_000.0, bytes_moved=5.5e9) == (0.063, "", True)


def test_ncu_is_shorter_where_its_kernel_ran_at_a_clock_that_the_power_cap_forbade_to_the_others() -> None:
    because = (
        "clock: 1860 MHz (1785 to 1980) while timed, throttled; by time x clock 1846 to 1860 MHz under nsys,"
        " not recorded and 1953 to 1968 MHz under ncu, not recorded; at most 1980"
    )
    assert held_back(1_200_000.0, 1_134_000.0) == (-0.055, because, False)
    assert held_back(1_200_000.0, 1_080_000.0) == (-0.1, "", True)  # 2051 MHz at least
    assert held_back(1_200_000.0, 1_134_000.0, argv="--set=basic") == (-0.055, "", True)  # ncu locks a lower clock


def short_and_long(
    short: float, long: float, slow_hz: float = 1.73e9, under_nsys: float | None = None
) -> tuple[float | None, str, bool]:
    """ncu's figure of a kernel of 100 us, ``short`` ns under ncu, which runs 1 ms in another case: ``long`` ns.

    ``under_nsys`` is the clock in the other case, in Hz.
    """
    kernels, metrics = [], []
    if under_nsys:
        names = ("sm_clock_min", "sm_clock", "sm_clock_max")
        metrics += [metric_row("impl=b", name, under_nsys, "Hz", profiler="nsys") for name in names]
    for case, ns, seen, hz in (("impl=a", 1e5, short, slow_hz), ("impl=b", 1e6, long, 1.79e9)):
        kernels += [kernel_row(case, ATTENTION, 10, 10 * ns), kernel_row(case, ATTENTION, 1, seen, profiler="ncu")]
        metrics.append(metric_row(case, "iterations", 1, "1", profiler="ncu"))
        metrics.append(
            metric_row(case, "gpc__cycles_elapsed.avg.per_second", hz, "Hz", profiler="ncu", subject=ATTENTION)
        )
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10), range_row("impl=b", 10)], metrics=metrics)
    jobs = [{"workload": "w", "profiler": profiler, "argv": [["--clock-control=none"]]} for profiler in ("nsys", "ncu")]
    run = {"jobs": jobs, "machine": {"gpus": [{"max_sm_clock_hz": 1_980_000_000}]}}
    figure = next(a for a in only(analyze(data, run)).agreements if a.point.id == "impl=a").figures[-1]
    return round(figure.difference or 0, 3), figure.reason, figure.flagged


def test_ncu_is_longer_where_it_counts_a_lower_clock_than_in_longer_launches_that_agree() -> None:
    because = "clock: 1730 MHz under ncu, 1790 MHz in longer launches of the same, where both agree; that makes 3.5 %"
    assert short_and_long(103_700.0, 1_001_000.0) == (0.037, because, False)
    assert short_and_long(110_000.0, 1_001_000.0) == (0.1, "", True)  # the clock makes a third of it
    assert short_and_long(103_700.0, 1_100_000.0) == (0.037, "", True)  # the long ones do not agree either
    assert short_and_long(103_700.0, 1_001_000.0, 1.79e9) == (0.037, "", True)


def test_a_longer_launch_that_would_agree_at_the_highest_clock_tells_ncus_clock_as_well() -> None:
    """ncu's launch is the faster one, for under nsys the power cap held the clock at 1.80 of 1.98 GHz."""
    assert short_and_long(103_700.0, 920_000.0)[1:] == ("", True)
    assert short_and_long(103_700.0, 920_000.0, under_nsys=1.8e9)[1].startswith("clock: 1730 MHz under ncu, 1790 MHz")


def test_a_first_kernel_whose_caches_the_harness_empties_is_not_slower_for_a_cold_cache() -> None:
    kernels = [*captured(), kernel_row("impl=a", ATTENTION, 1, 105_000.0, profiler="ncu")]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    jobs = [{"workload": "w", "profiler": name, "argv": [["--clock-control=none"]]} for name in ("nsys", "ncu")]
    assert figures(data, {"jobs": jobs})["ncu"] == (0.05, "", True)
    of_a_command = {**declared(command=["./a.out"]), "jobs": jobs}
    cold = (0.05, "cold cache: ncu empties the caches before each replay", False)
    assert figures(data, of_a_command)["ncu"] == figures(data, {"jobs": jobs[1:]})["ncu"] == cold


def one_launch(ncu: list[float], nsys: tuple[float, float] = (9_120.0, 10_656.0), calls: int = 30, **other: Any) -> str:
    """Why ncu's launches, in ns, are longer than those of nsys, 9.3 us in the mean and within ``nsys``."""
    of_nsys = {"min_ns": nsys[0], "max_ns": nsys[1], "stddev_ns": 350.0}
    kernels = [kernel_row("impl=a", ATTENTION, calls, 9_300.0 * calls, **of_nsys)]
    ends = {"min_ns": min(ncu), "max_ns": max(ncu), "profiler": "ncu"}
    kernels.append(kernel_row("impl=a", ATTENTION, len(ncu), sum(ncu), **ends))
    for name, ns in other.items():
        spread = {"min_ns": 9_500.0, "max_ns": 11_000.0, "stddev_ns": 400.0}
        kernels.append(kernel_row("impl=a", name, calls, 10_000.0 * calls, **spread))
        kernels.append(kernel_row("impl=a", name, 1, ns, profiler="ncu"))
    argv = [["--clock-control=none", "--cache-control=none"]]
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": argv}]}
    metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
    difference, because, flagged = figures(tables((), kernels, [range_row("impl=a", calls)], metrics), run)["ncu"]
    assert difference is not None and difference > 0.03 and flagged is not bool(because)
    return because


def test_a_launch_of_ncu_that_may_be_one_of_the_others_is_chance() -> None:
    assert one_launch([9_856.0]) == "one launch: 9.856 us under ncu, 9.12 to 10.66 us in the 30 under nsys"
    assert one_launch([9_970.0], nsys=(9_120.0, 9_960.0)) == "", "longer than any"
    assert one_launch([10_050.0]) == "", "more than two standard deviations from the mean"
    assert one_launch([9_856.0] * 2) == "", "two that are both longer are no chance"
    assert one_launch([9_856.0], calls=1) == "", "as many"


def test_that_two_kernels_both_happen_to_be_longer_is_no_chance() -> None:
    assert one_launch([9_856.0], b=10_700.0) == ""
    assert one_launch([9_990.0], b=9_990.0).startswith("one launch: 9.99 us"), "the shorter one makes none of it"


def test_of_launches_without_a_shortest_and_a_longest_nothing_is_said() -> None:
    kernels = [
        kernel_row("impl=a", ATTENTION, 30, 279_000.0),
        kernel_row("impl=a", ATTENTION, 1, 9_856.0, profiler="ncu"),
    ]
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": [["--clock-control=none", "--cache-control=none"]]}]}
    metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
    assert figures(tables((), kernels, [range_row("impl=a", 30)], metrics), run)["ncu"] == (0.06, "", True)


@pytest.mark.parametrize("status", ["failed", "oom", "crashed", "timeout"])
def test_what_was_measured_of_a_case_that_failed_then_wins_nothing(status: str) -> None:
    """Of one that was interrupted it is shown: of that the run says that it was stopped."""
    rows = [case_row("impl=a", status=status), case_row("impl=b"), case_row("impl=c", status="skipped")]
    metrics = [metric_row(f"impl={i}", "time", ns) for i, ns in (("a", 1e6), ("b", 3e6), ("c", 2e6))]
    (workload,) = analyze(tables(rows, metrics=metrics), declared(baseline={"impl": "b"})).workloads
    times = {point.id: (point.time and point.time.ns, point.fate) for point in workload.points}
    assert times == {"impl=a": (None, status), "impl=b": (3e6, ""), "impl=c": (2e6, "")}
    (shape,) = workload.shapes
    assert shape.win is not None and shape.win.best.id == "impl=c"


def test_where_the_timed_cases_failed_the_kernels_that_a_profiler_saw_compare_them() -> None:
    """Nor is a time that is no result held against the profiler's, or named as what limits the case."""
    names = [f"impl={i}" for i in "abc"]
    rows = [case_row(name, profiler, "crashed" if profiler == "plain" else "ok")
            for name in names for profiler in ("plain", "nsys")]  # fmt: skip
    metrics = [metric_row(name, metric, ns) for name in names for metric, ns in (("time", 9e6), ("issue", 9e7))]
    metrics += [
        metric_row(name, "loop_wall", 9e6, profiler=profiler) for name in names for profiler in ("plain", "nsys")
    ]
    kernels = [kernel_row(name, ATTENTION, 10, ns) for name, ns in zip(names, (1e6, 2e6, 3e6), strict=True)]
    data = tables(rows, kernels, [range_row(name, 10) for name in names], metrics)
    (workload,) = analyze(data, declared(baseline={"impl": "b"})).workloads
    assert workload.basis == Basis("nsys", "kernel") and not workload.overheads
    assert [point.time and point.time.ns for point in workload.points] == [1e5, 2e5, 3e5]
    assert not any("issue" in point.values for point in workload.points)
    assert all([figure.profiler for figure in each.figures] == ["nsys"] for each in workload.agreements)


def test_of_cases_that_failed_alike_each_is_named_with_its_own_profilers() -> None:
    rows = [case_row(f"n={n}", profiler) for n in (1, 2, 3) for profiler in ("plain", "torch")]
    for n, profiler in ((1, "plain"), (2, "torch"), (3, "plain"), (3, "torch")):
        rows = [
            {**row, "status": "failed", "reason": "boom"}
            if (row["case"], row["profiler"]) == (f"n={n}", profiler)
            else row
            for row in rows
        ]
    found = analyze(tables(rows), {}).not_run
    assert {(group.profilers, group.cases, group.whole_job) for group in found} == {
        (("plain",), ("n=1",), False), (("torch",), ("n=2",), False), (("plain", "torch"), ("n=3",), False),
    }  # fmt: skip


def test_kernels_are_not_held_against_cpu_operators() -> None:
    """The trace of one case has lost its GPU events: what is left of it are its operators."""
    operators = kernel_row("impl=b", "aten::mm", 1, 2e5, kind="cpu_op", profiler="torch")
    kernels = [kernel_row("impl=a", ATTENTION, 1, 1e6, profiler="torch"), operators]
    cases = [case_row(f"impl={i}", "torch") for i in "ab"]
    ranges = [range_row(f"impl={i}", 1, profiler="torch") for i in "ab"]
    (workload,) = analyze(tables(cases, kernels, ranges), declared(baseline={"impl": "a"})).workloads
    (b,) = (point for point in workload.points if point.id == "impl=b")
    assert b.split is not None and b.kernel_speedup is None and not workload.shapes[0].swaps


def test_one_launch_of_the_real_run_that_is_longer_than_any_under_nsys_is_no_chance() -> None:
    data, run = example("h200-attention")
    (workload,) = analyze(data, run).workloads
    flagged = [(a.point.id, f) for a in workload.agreements for f in a.figures if f.flagged]
    assert [(case, figure.profiler) for case, figure in flagged] == [
        ("impl=sdpa_cudnn,mode=fwd,batch=2,heads=16,seqlen=512", "ncu")
    ]
    rows = data.kernels[(data.kernels["case"] == flagged[0][0]) & (data.kernels["kind"] == "kernel")]
    own, ncu = (rows[rows["profiler"] == name].iloc[0] for name in ("nsys", "ncu"))
    assert ncu["calls"] == 1 and ncu["total_ns"] > own["max_ns"] and flagged[0][1].reason == ""


def test_a_call_that_was_queued_ahead_is_not_longer_for_the_hosts_sake() -> None:
    times = [metric_row("impl=a", "time", 190_000.0), metric_row("impl=a", "issue", 400_000.0)]
    idle, pace = (
        range_row("impl=a", 10, wall_ns=4e6, busy_ns=1e6),
        "the host's pace: the time of the call is the host's",
    )
    assert figures(tables(kernels=captured(), ranges=[idle], metrics=times[:1]))["plain"] == (
        0.9, f"{pace}; no kernel runs in 75 % of the range", False,
    )  # fmt: skip
    data = tables([case_row("impl=a", flags=["host_bound"])], captured(), [idle], times)
    assert figures(data)["plain"] == (0.9, "", True)
    data = tables([case_row("impl=a", flags=["synchronises"])], captured(), [idle], times)
    assert figures(data)["plain"] == (0.9, "", True)  # issuing it takes the host far longer than the call
    times[1] = metric_row("impl=a", "issue", 200_000.0)
    data = tables([case_row("impl=a", flags=["synchronises"])], captured(), [idle], times)
    told = f"{pace}, which waits for the GPU inside the call and takes 0.2 ms to issue it"
    assert figures(data)["plain"] == (0.9, told, False)


# --- doubt -----------------------------------------------------------------------------------------------------------


def test_an_implementation_that_ran_another_kernel_fails_its_expectation() -> None:
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 1.0), kernel_row("impl=b", COPY, 1, 1.0)])
    run = {"expects": {"w": {"impl=a": "cudnn|fa3", "impl=b": "math"}}}
    findings = analyze(data, run)
    assert [(e.case, e.asked, e.found, e.met) for e in findings.expectations] == [
        ("impl=a", "cudnn|fa3", ("fa2",), False), ("impl=b", "math", (), True),
    ]  # fmt: skip
    assert findings.failed


def test_a_name_that_two_projects_share_meets_the_expectation_of_either() -> None:
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 1.0, kernel_family="sage2|sparge")])
    (expectation,) = analyze(data, {"expects": {"w": {"impl=a": "sage2"}}}).expectations
    assert expectation.met


def test_the_cache_flush_of_the_harness_is_outside_every_case_and_explained() -> None:
    data = tables(
        kernels=[kernel_row("impl=a", ATTENTION, 1, 60.0), kernel_row("", FLUSH, 1, 30.0), kernel_row("", ADD, 1, 10.0)]
    )
    (outside,) = analyze(data, {}).unattributed
    assert (outside.ns, outside.share, outside.flush_ns) == (40.0, 0.4, 30.0)
    assert outside.unexplained == pytest.approx(0.1)


def test_set_up_in_the_same_capture_is_no_doubt_in_a_run_of_our_own() -> None:
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 60.0), kernel_row("", ADD, 1, 40.0)])
    run = {"jobs": [{"workload": "w", "profiler": "nsys", "cases": ["impl=a"]}]}
    (outside,) = analyze(data, run).unattributed
    assert outside.own_run and outside.unexplained == 0


@pytest.mark.parametrize("profiler", ["ncu", "torch"])
def test_kernels_outside_every_case_are_a_doubt_where_nothing_but_iterations_is_captured(profiler: str) -> None:
    rows = [kernel_row("impl=a", ATTENTION, 1, 60.0), kernel_row("", FLUSH, 1, 10.0), kernel_row("", ADD, 1, 30.0)]
    data = tables(kernels=[{**row, "profiler": profiler} for row in rows])
    run = {"jobs": [{"workload": "w", "profiler": profiler, "cases": ["impl=a"]}]}
    findings = analyze(data, run)
    (outside,) = findings.unattributed
    assert not outside.own_run and outside.unexplained == pytest.approx(0.3)
    (doubt,) = (line for line in doubts(findings, run, alone=True) if "outside every case" in line)
    assert ("launching thread alone" in doubt) == (profiler == "ncu")


def test_a_call_timed_too_poorly_to_differ_is_said_to_be_that() -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    kernels = [kernel_row("n=1", "aten::bmm", 2, 50.0, **cpu, kernel_class="gemm")]
    wide = metric_row("n=1", "time", 100.0, ci_low=40.0, ci_high=200.0, n=9)
    for metric, because in ((wide, "spread: "), ({**wide, "ci_low": 90.0}, "between operators: ")):
        data = tables([case_row("n=1")], kernels, [range_row("n=1", 1, "torch")], [metric])
        (agreement,) = only(analyze(data, {})).agreements
        assert agreement.figures[1].reason.startswith(because)


@pytest.mark.parametrize(
    ("mark", "ns", "explained"),
    [("clock_spread", 105_000.0, True), ("clock_spread", 115_000.0, False), ("throttled", 105_000.0, False)],
)
def test_what_some_samples_took_while_the_clock_moved_is_no_other_time(mark: str, ns: float, explained: bool) -> None:
    spread = [metric_row("impl=a", "time_p10", 98_000.0), metric_row("impl=a", "time_p90", 110_000.0)]
    time = metric_row("impl=a", "time", 100_000.0, ci_low=99_500.0, ci_high=100_500.0, n=83)
    rows = [case_row("impl=a", flags=[mark])]
    found = figures(tables(rows, captured(ns), [range_row("impl=a", 10)], [time, *spread]))["plain"]
    told = "spread: the clock moved, and it lies within p10 to p90 of the call's samples, 0.098 to 0.11 ms"
    assert found == (round(100_000 / ns - 1, 3), told if explained else "", not explained)


def test_a_case_that_ran_well_without_a_kernel_is_told() -> None:
    cases = [case_row(case, profiler) for profiler in ("plain", "nsys", "ncu") for case in ("impl=a", "impl=b")]
    kernels = [kernel_row("impl=a", ATTENTION, 1, 60.0, profiler=profiler) for profiler in ("nsys", "ncu")]
    (unseen,) = analyze(tables(cases, kernels), {}).unseen
    assert (unseen.profiler, unseen.cases) == ("nsys", ("impl=b",))


def test_what_a_profiler_saw_nothing_of_is_not_called_the_fastest() -> None:
    cases = [case_row(case, profiler) for profiler in ("plain", "nsys") for case in ("impl=a", "impl=b")]
    times = [metric_row("impl=a", "time", 900.0), metric_row("impl=b", "time", 1.0)]
    win = only(analyze(tables(cases, [kernel_row("impl=a", ATTENTION, 1, 60.0)], (), times), {})).shapes[0].win
    assert win is not None and (win.best.variant, win.verdict, win.why) == ("b", "void", "nsys saw nothing of it run")


def test_coverage_names_what_no_rule_knows_and_fails_below_the_minimum() -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 1, 90.0), kernel_row("impl=a", "mystery", 1, 10.0)]
    run = {"pipeline": {"coverage": {"min_classified": 0.95}}}
    findings = analyze(tables(kernels=kernels), run)
    (coverage,) = findings.coverage
    assert (coverage.classified, coverage.largest, coverage.too_low) == (0.9, (("mystery", 0.1),), True)
    assert findings.failed


def test_cases_of_one_fate_are_told_together_and_jobs_without_cases_too() -> None:
    cases = [case_row(c, p, "skipped", "not installed") for p in ("plain", "nsys") for c in ("impl=a", "impl=b")]
    cases.append(case_row("impl=c"))
    jobs = [{"workload": "w", "profiler": "ncu", "status": "failed", "reason": "no permission", "log": "raw/log.txt"}]
    first, second = analyze(tables(cases), {"jobs": jobs}).not_run
    assert (first.profilers, first.cases, first.whole_job) == (("plain", "nsys"), ("impl=a", "impl=b"), False)
    assert (second.status, second.profilers, second.logs) == ("failed", ("ncu",), ("raw/log.txt",))


def test_cpu_operators_that_only_dispatch_are_no_attention() -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    rows = [kernel_row("impl=a", "aten::_scaled_dot_product_attention_math", 1, 5.0, **cpu, kernel_class="attention"),
            kernel_row("impl=a", "aten::bmm", 2, 50.0, **cpu, kernel_class="gemm"),
            kernel_row("impl=a", "aten::copy_", 2, 10.0, **cpu, kernel_class="copy")]  # fmt: skip
    split = only(analyze(tables(kernels=rows), {})).points[0].split
    assert split is not None and split.kind == "cpu_op" and not split.fused
    assert {name: part.ns for name, part in split.parts.items()} == {"rest": 5.0, "gemm": 50.0, "direct_copy": 10.0}


def test_nothing_at_all_is_analysed_without_a_word() -> None:
    assert analyze(Tables(), {}) == Findings()


def test_the_largest_of_shapes_without_a_number_is_the_one_with_the_most_work() -> None:
    rows = []
    for size, work in (("small", 1e9), ("large", 9e9), ("medium", 3e9)):
        for impl in ("a", "b"):
            rows += [
                metric_row(f"size={size},impl={impl}", name, value) for name, value in (("time", 5.0), ("flops", work))
            ]
    (workload,) = analyze(tables(metrics=rows), {}).workloads
    assert workload.largest.axes == (("size", "large"),)


def test_shares_and_zeros_make_no_shape_smaller() -> None:
    ids = [f"impl=a,n={n},dropout={share},kv_heads={heads}" for n, share, heads in ((1, 0.5, 8), (9, 0.1, 0))]
    workload = only(analyze(tables(metrics=_times(*ids)), declared()))
    assert [shape.size for shape in workload.shapes] == [8.0, 9.0]


def test_a_process_of_several_has_its_own_time_and_the_case_that_of_the_slowest() -> None:
    rows = [metric_row("impl=a", "time", 9.0), metric_row("impl=a", "time_own", 5.0)]
    rows += [metric_row("impl=a", name, value, subject="rank 1") for name, value in (("time", 9.0), ("time_own", 8.0))]
    found = only(analyze(tables(metrics=rows), {}))
    assert found.points[0].values["time"] == 9.0
    assert {own.name: own.numbers["time"] for own in found.ranks} == {"0": 5.0, "1": 8.0}
    before = [metric_row("impl=a", "time", 5.0), metric_row("impl=a", "time", 8.0, subject="rank 1")]
    told = only(analyze(tables(metrics=before), {})).ranks
    assert {own.name: own.numbers["time"] for own in told} == {"0": 5.0, "1": 8.0}, "as older runs have it"


def test_of_errors_and_memory_of_several_processes_the_worst_is_the_cases() -> None:
    own = {"error_rel_l1": 0.0005, "cosine": 0.999, "peak_allocated": 7.0, "issue": 3.0}
    other = {"error_rel_l1": 0.002, "cosine": 0.99, "peak_allocated": 9.0, "issue": 4.0, "error_max": 1.0}
    rows = [metric_row("impl=a", name, value) for name, value in own.items()]
    rows += [metric_row("impl=a", name, value, subject="rank 1") for name, value in other.items()]
    rows += [metric_row("impl=a", "error_rel_l1", 0.001, subject="rank 2")]
    values = only(analyze(tables(metrics=[*rows, metric_row("impl=a", "time", 1.0)]), {})).points[0].values
    assert values == {**own, "error_rel_l1": 0.002, "cosine": 0.99, "peak_allocated": 9.0, "time": 1.0}


@pytest.mark.parametrize(("time", "processes", "marks"), [(1.14, 2, ("waited",)), (1.05, 2, ()), (1.14, 1, ())])
def test_samples_that_are_longer_than_the_loop_around_them_hold_waiting_for_another_process(
    time: float, processes: int, marks: tuple[str, ...]
) -> None:
    """The loop has the flush in it too. A process alone waits for nobody: there the clock or the host has changed."""
    rows = [metric_row("impl=a", "time", time), metric_row("impl=a", "loop_wall", 1.0)]
    rows += [metric_row("impl=a", "time_own", time, subject=f"rank {rank}") for rank in range(1, processes)]
    assert only(analyze(tables([case_row("impl=a")], metrics=rows), {})).points[0].marks == marks


def test_the_data_type_is_told_where_only_the_workloads_default_sets_it() -> None:
    cases = [case_row(f"seqlen={n}", params={"seqlen": n, "dtype": "fp16", "seed": 0}) for n in (1, 2)]
    run = {"pipeline": {"workloads": {"w": {"matrix": {"seqlen": [1, 2]}}}}}
    assert only(analyze(tables(cases, metrics=_times("seqlen=1", "seqlen=2")), run)).fixed == (("dtype", "fp16"),)


@pytest.mark.parametrize(
    ("launches", "issue", "marks"), [(1500, 80e6, ("host_bound",)), (900, 80e6, ()), (1500, 28e6, ())]
)
def test_a_call_that_waits_for_launches_which_no_queue_holds_is_host_bound(
    launches: int, issue: float, marks: tuple[str, ...]
) -> None:
    """The harness compares what issuing takes with the call's own time, which is then that of the host."""
    kernels = [kernel_row("impl=a", ADD, 10 * launches, 10 * 27e6)]
    metrics = [metric_row("impl=a", "time", 70e6), metric_row("impl=a", "issue", issue)]
    found = only(analyze(tables([case_row("impl=a")], kernels, [range_row("impl=a", 10)], metrics), {}))
    assert found.points[0].marks == marks
