"""Tables -> findings. The recorded numbers are an H200's; all others are made up and small enough to check."""

import sqlite3
from contextlib import closing

import pytest
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    FLUSH,
    analyze,
    case_row,
    kernel_row,
    metric_row,
    range_row,
    recorded,
    tables,
)  # fmt: skip

from profpipe.analysis.case_index import TimeSource
from profpipe.analysis.cases import order, parse_id
from profpipe.analysis.findings import Findings, Iteration
from profpipe.report.document import plain
from profpipe.report.sections import kernel_share
from profpipe.report.sections.warnings import warnings
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables


def declared(**workload):
    return {"pipeline": {"workloads": {"w": workload}}}


def only(findings):
    (workload,) = findings.workloads
    return workload


def shape(workload, seqlen):
    return next(s for s in workload.shapes if dict(s.axes)["seqlen"] == seqlen)


@pytest.fixture(scope="module")
def h200():
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


def test_the_copied_tables_hold_what_the_recording_holds(shared_data):
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
def test_kernel_shares_of_an_h200_are_those_of_a_hand_written_query(h200, variant):
    point = next(p for p in shape(h200, 2048).cases if p.variant == variant)
    split = point.breakdown
    assert split is not None and split.iterations == 5
    copy, add, attention = split.category("direct_copy"), split.category("add"), split.category("attention")
    shares = [round(100 * attention.ns / split.total.ns, 1), round(attention.ns / 1e3, 1)]
    others = [number for part in (copy, add) for number in (part.calls, round(part.ns / 1e3, 1))]
    found = (*shares, *others, round(split.total.ns / 1e3, 1), round(point.kernel_speedup or 0, 2))
    assert found == KERNEL_SHARE_2048[variant]


def test_sage_is_charged_with_its_quantising_and_the_mean_that_it_subtracts(h200):
    sage = next(swap for swap in shape(h200, 2048).switch_costs if swap.variant == "sage1")
    assert (round(sage.attention or 0, 2), round(sage.with_helpers or 0, 2), round(sage.call, 2)) == (1.32, 1.07, 0.97)
    assert sage.faster_kernel_slower_call
    assert [(part, round(ns / 1e3, 1), calls) for part, ns, calls in sage.changes] == [
        ("helpers", 21.5, 3), ("add", 12.8, 1),
    ]  # fmt: skip


def test_a_cost_that_is_large_for_the_shorter_call_alone_is_listed():
    kernels = [kernel_row("impl=a", ATTENTION, 10, 50e6), kernel_row("impl=b", ATTENTION, 10, 7e6)]
    kernels += [kernel_row("impl=b", "made up", 50, 0.3e6), kernel_row("impl=b", ADD, 10, 0.1e6)]
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    (found,) = only(analyze(tables(kernels=kernels, ranges=ranges), declared(baseline={"impl": "a"}))).shapes
    assert found.switch_costs[0].changes == (("rest", 30_000.0, 5.0),)


@pytest.mark.parametrize(
    ("errors", "flags"), [({}, ["unchecked"]), ({"a": 0.01, "b": 0.02}, [""]), ({"a": 0.01, "b": 0.2}, [])]
)
def test_an_unchecked_case_has_a_flag_in_the_switch_costs_and_an_inaccurate_case_is_left_out(errors, flags):
    """A video of CogVideoX runs under nsys only, which compares no results."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 50e6), kernel_row("impl=b", ATTENTION, 10, 7e6)]
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    found = [metric_row(f"impl={impl}", "error_max", error, "1") for impl, error in errors.items()]
    run = declared(baseline={"impl": "a"}, tolerance={"error_max": 0.05})
    (seen,) = only(analyze(tables(kernels=kernels, ranges=ranges, metrics=found), run)).shapes
    assert [swap.flag for swap in seen.switch_costs] == flags
    rows = kernel_share.table(seen).rows
    assert [row[0].flags for row in rows] == [(flag,) if flag else () for flag in flags]


def test_flash_in_pytorch_meets_the_expectation_of_fa2():
    expectations = {e.case: e for e in analyze(*recorded()).expectations}
    assert all(e.is_met for e in expectations.values())
    assert (
        expectations["impl=flash,seqlen=2048"].is_pytorch_copy
        and not expectations["impl=fa2,seqlen=2048"].is_pytorch_copy
    )


def test_a_kernel_without_a_time_meets_an_expectation():
    untimed = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, None, profiler="ncu")])
    (found,) = analyze(untimed, {"expects": {"w": {"impl=a": "fa2"}}}).expectations
    assert found.is_met and found.found == ("fa2",)


# --- what is compared with what --------------------------------------------------------------------------------------


def test_an_id_is_taken_apart_into_typed_values():
    assert parse_id("impl=fa2,seqlen=512,causal=true,p=0.5,dtype=none") == {
        "impl": "fa2", "seqlen": 512, "causal": True, "p": 0.5, "dtype": None,
    }  # fmt: skip
    assert parse_id("seqlens=128%2C128,impl=fa2") == {"seqlens": "128,128", "impl": "fa2"}
    assert parse_id("default") == {} and parse_id("") == {}
    assert parse_id("n=1" + "0" * 400) == {"n": "1" + "0" * 400}, "a table holds no such number"


def test_shapes_are_ordered_by_size_within_their_words():
    shapes = [(("mode", mode), ("seqlen", n)) for n in (2048, 128) for mode in ("fwd", "bwd")]
    assert [dict(s) for s in order(shapes)] == [
        {"mode": "fwd", "seqlen": 128}, {"mode": "fwd", "seqlen": 2048},
        {"mode": "bwd", "seqlen": 128}, {"mode": "bwd", "seqlen": 2048},
    ]  # fmt: skip


def test_an_axis_with_one_value_is_fixed_and_the_axes_that_vary_make_the_shape():
    cases = [case_row(f"impl={i},n={n}", params={"impl": i, "n": n, "batch": 2}) for i in "ab" for n in (1, 2)]
    workload = only(analyze(tables(cases), declared()))
    assert (workload.fixed, workload.compare, workload.varying_shape) == ((("batch", 2),), "impl", ("n",))


def test_without_impl_the_axis_of_the_baseline_is_compared():
    times = [metric_row(f"compile={c},n={n}", "time", ns) for c, n, ns in
             (("false", 1, 10.0), ("true", 1, 5.0), ("false", 2, 30.0), ("true", 2, 10.0))]  # fmt: skip
    workload = only(analyze(tables(metrics=times), declared(baseline={"compile": False})))
    assert workload.compare == "compile"
    assert [point.speedup for s in workload.shapes for point in s.cases] == [2.0, 1.0, 3.0, 1.0]


def test_a_value_of_another_axis_than_impl_carries_its_name():
    times = [metric_row(f"compile={c}", "time", 1.0) for c in ("false", "true")]
    assert only(analyze(tables(metrics=times), declared(baseline={"compile": False}))).variants == (
        "compile=false", "compile=true",
    )  # fmt: skip


def test_without_impl_and_baseline_nothing_is_compared():
    times = [metric_row(f"size={s},precision={p}", "time", 1.0) for s in "ab" for p in ("fp32", "bf16")]
    workload = only(analyze(tables(metrics=times), declared(matrix={"size": ["a", "b"]})))
    assert workload.compare is None and workload.varying_shape == ("size", "precision")


def test_only_parameters_that_the_pipeline_sets_are_listed_as_common_to_all_cases():
    cases = [case_row(f"impl={i}", params={"impl": i, "batch": 2, "seed": 0}) for i in "ab"]
    assert only(analyze(tables(cases), declared(params={"batch": 2}))).fixed == (("batch", 2),)
    assert only(analyze(tables(cases), {})).fixed == (("batch", 2), ("seed", 0))


def test_cases_are_in_the_order_of_the_plan_in_any_order_of_measurement():
    times = [metric_row(f"impl={i}", "time", 1.0) for i in "bca"]
    run = {"jobs": [{"workload": "w", "cases": ["impl=a", "impl=b", "impl=c"]}]}
    assert only(analyze(tables(metrics=times), run)).variants == ("a", "b", "c")


def test_a_parameter_that_only_some_cases_have_belongs_to_the_implementation():
    times = [metric_row(c, "time", 1.0) for c in ("impl=a,n=1", "impl=b,n=1,topk=0.5", "impl=b,n=1,topk=0.2")]
    workload = only(analyze(tables(metrics=times), declared(baseline={"impl": "a"})))
    assert workload.variants == ("a", "b topk=0.5", "b topk=0.2")
    assert all(point.speedup == 1.0 for point in workload.cases)


def test_what_is_null_of_one_implementation_and_a_number_of_another_belongs_to_the_other():
    ids = ("impl=a,n=1,topk=none", "impl=b,n=1,topk=0.5", "impl=b,n=1,topk=0.2")
    workload = only(analyze(tables(metrics=_times(*ids)), declared(baseline={"impl": "a", "topk": None})))
    assert workload.variants == ("a", "b topk=0.5", "b topk=0.2")
    assert len(workload.shapes) == 1 and all(point.speedup == 1.0 for point in workload.cases)


def test_null_is_a_size_like_others_where_each_implementation_has_both_and_a_word_among_words():
    ids = [f"impl={impl},window={window}" for impl in "ab" for window in ("none", 128)]
    assert only(analyze(tables(metrics=_times(*ids)), declared())).varying_shape == ("window",)
    words = ("impl=a,mask=none", "impl=b,mask=none", "impl=b,mask=full")
    assert only(analyze(tables(metrics=_times(*words)), declared())).varying_shape == ("mask",)


def _times(*cases):
    return [metric_row(case, "time", 1.0) for case in cases]


def test_cases_without_a_baseline_have_no_speed_up():
    workload = only(analyze(tables(metrics=[metric_row("impl=a", "time", 1.0), metric_row("impl=b", "time", 2.0)]), {}))
    assert [point.speedup for point in workload.cases] == [None, None]


# --- times -----------------------------------------------------------------------------------------------------------


def two_cases(**b):
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1000.0), kernel_row("impl=b", ATTENTION, 10, 500.0)]
    ranges = [range_row("impl=a", 10), range_row("impl=b", 10)]
    times = [metric_row("impl=a", "time", 200.0, n=30)] + ([metric_row("impl=b", **b)] if b else [])
    return tables(kernels=kernels, ranges=ranges, metrics=times)


def test_timed_calls_come_before_sums_of_kernels():
    workload = only(analyze(two_cases(metric="time", value=400.0, n=30), declared(baseline={"impl": "a"})))
    assert workload.time_source == TimeSource("plain", "time")
    assert {p.variant: (p.time.ns if p.time else None, p.speedup) for p in workload.cases} == {
        "a": (200.0, 1.0), "b": (400.0, 0.5),
    }  # fmt: skip


def test_a_case_without_a_timed_call_never_borrows_its_kernel_time():
    more = [kernel_row("impl=c", ATTENTION, 10, 10.0), range_row("impl=c", 10)]
    data = two_cases(metric="time", value=400.0)
    whole = tables(
        kernels=[*data.kernels.to_dict("records"), more[0]],
        ranges=[*data.ranges.to_dict("records"), more[1]],
        metrics=data.metrics.to_dict("records"),
    )
    points = {p.variant: p for p in only(analyze(whole, declared(baseline={"impl": "a"}))).cases}
    assert points["c"].time is None and points["c"].speedup is None and points["c"].kernel_speedup == 100.0


def test_one_timed_call_among_many_captured_cases_is_not_the_basis():
    workload = only(analyze(two_cases(), declared(baseline={"impl": "a"})))
    assert workload.time_source == TimeSource("nsys", "kernel")
    assert {p.variant: p.time.ns for p in workload.cases if p.time} == {"a": 100.0, "b": 50.0}


def test_the_time_under_a_profiler_is_not_taken_for_the_time_of_a_call():
    data = tables(metrics=[metric_row("impl=a", "time", 9.0, profiler="torch")])
    assert only(analyze(data, {})).time_source is None


def test_without_iterations_everything_is_a_sum_and_gives_no_rate():
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 10, 1000.0)], metrics=[metric_row("impl=a", "flops", 1e9)])
    point = only(analyze(data, {})).cases[0]
    assert point.time is not None and (point.time.ns, point.time.n, point.tflops) == (1000.0, None, None)


def test_the_harness_counts_iterations_where_a_profiler_has_no_ranges():
    counted = [metric_row("impl=a", "iterations", 4, "1", profiler="nsys")]
    point = only(analyze(tables(kernels=[kernel_row("impl=a", ATTENTION, 4, 400.0)], metrics=counted), {})).cases[0]
    assert point.breakdown is not None and (point.breakdown.iterations, point.breakdown.total.ns) == (4, 100.0)


def test_a_command_is_one_iteration_and_its_time_is_the_wall_time():
    walls = [metric_row("default", "process_wall", 5e9, n=1)]
    data = tables(kernels=[kernel_row("default", ATTENTION, 7, 700.0)], metrics=walls)
    workload = only(analyze(data, declared(command=["python", "train.py"], repeats=1)))
    point = workload.cases[0]
    assert workload.time_source == TimeSource("plain", "wall") and point.flags == ()
    assert point.breakdown is not None and point.breakdown.total.calls == 7


def test_launches_without_a_time_are_counted_and_their_time_is_missing():
    workload = only(analyze(tables(kernels=[kernel_row("impl=a", ATTENTION, 3, None)]), {}))
    assert workload.cases[0].breakdown is None and workload.launches == {"nsys": 3}


def test_rates_come_from_the_flops_and_bytes_of_one_call():
    numbers = [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "flops", 5e11, "flop"),
               metric_row("impl=a", "bytes_moved", 2e9, "byte")]  # fmt: skip
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "bfloat16"})]
    run = {"machine": {"peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 1e12}}}
    point = only(analyze(tables(cases, metrics=numbers), run)).cases[0]
    assert (point.tflops, point.of_peak_flops, point.gbytes_per_s, point.of_peak_bytes) == (500.0, 0.5, 2000.0, 2.0)
    assert point.flags == ("above_peak",)


def test_a_geforce_may_reach_more_than_its_peak_where_sums_are_kept_in_16_bits():
    # SageAttention's published 340 TOPS on an RTX 4090, half of it in int8 and half in fp16.
    peaks = {"flops": {"int8": 814e12, "fp16": 203.5e12}, "flops_in_16_bits": {"fp16": 407e12}, "bytes_per_s": 1e12}

    def flags(tflops):
        numbers = [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "flops", tflops * 1e9, "flop")]
        numbers += [metric_row("impl=a", f"flops.{name}", tflops * 0.5e9, "flop") for name in ("int8", "fp16")]
        return only(analyze(tables(metrics=numbers), {"machine": {"peaks": peaks}})).cases[0].flags

    assert (flags(340), flags(560)) == ((), ("above_peak",))


@pytest.mark.parametrize("zero", ["time", "sm_clock", "kernels"])
def test_a_table_that_was_corrected_by_hand_may_hold_zeros(zero):
    kernels = [kernel_row(case, ATTENTION, 1, 0.0 if zero == "kernels" else 5.0) for case in ("impl=a", "impl=b")]
    values = {"time": 1e6, "sm_clock": 1e9, "sm_clock_min": 1e9, "sm_clock_max": 1e9, "flops": 1e9, "issue": 9e5}
    numbers = [
        metric_row(case, name, 0.0 if name == zero or (case, name) == ("impl=b", "time") else value)
        for case in ("impl=a", "impl=b")
        for name, value in values.items()
    ]
    workload = only(analyze(tables(kernels=kernels, metrics=numbers), declared(baseline={"impl": "a"})))
    assert [point.speedup for point in workload.cases if point.id == "impl=b"] == [None]


def test_marks_of_the_harness_are_those_of_the_process_that_gave_the_time():
    cases = [case_row("impl=a", flags=["noisy"]), case_row("impl=a", "nsys", flags=["profiler_overhead"])]
    workload = only(analyze(tables(cases, metrics=[metric_row("impl=a", "time", 1.0)]), {}))
    assert workload.cases[0].flags == ("noisy",)


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "oom", "crashed", "timeout"])
def test_what_was_measured_of_a_case_that_failed_then_wins_nothing(status):
    """Of one that was interrupted it is shown: of that the run says that it was stopped."""
    rows = [case_row("impl=a", status=status), case_row("impl=b"), case_row("impl=c", status="skipped")]
    metrics = [metric_row(f"impl={i}", "time", ns) for i, ns in (("a", 1e6), ("b", 3e6), ("c", 2e6))]
    (workload,) = analyze(tables(rows, metrics=metrics), declared(baseline={"impl": "b"})).workloads
    times = {point.id: (point.time and point.time.ns, point.status) for point in workload.cases}
    assert times == {"impl=a": (None, status), "impl=b": (3e6, ""), "impl=c": (2e6, "")}
    (shape,) = workload.shapes
    assert shape.win is not None and shape.win.best.id == "impl=c"


def test_where_the_timed_cases_failed_the_kernels_that_a_profiler_saw_compare_them():
    """The time of a failed case is not compared with the profiler's and has no limit."""
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
    assert workload.time_source == TimeSource("nsys", "kernel") and not workload.recorded.overheads
    assert [point.time and point.time.ns for point in workload.cases] == [1e5, 2e5, 3e5]
    assert not any("issue" in point.values for point in workload.cases)
    assert all([time.profiler for time in times] == ["nsys"] for times in workload.agreements.values())


def test_cases_with_the_same_failure_are_listed_with_the_profilers_under_which_each_failed():
    rows = [case_row(f"n={n}", profiler) for n in (1, 2, 3) for profiler in ("plain", "torch")]
    for n, profiler in ((1, "plain"), (2, "torch"), (3, "plain"), (3, "torch")):
        rows = [
            {**row, "status": "failed", "reason": "boom"}
            if (row["case"], row["profiler"]) == (f"n={n}", profiler)
            else row
            for row in rows
        ]
    found = analyze(tables(rows), {}).not_run
    assert {(group.profilers, group.cases, group.is_whole_workload) for group in found} == {
        (("plain",), ("n=1",), False), (("torch",), ("n=2",), False), (("plain", "torch"), ("n=3",), False),
    }  # fmt: skip


def test_kernels_are_not_compared_with_cpu_operators():
    """The trace of one case has lost its GPU events; its operators are left."""
    operators = kernel_row("impl=b", "aten::mm", 1, 2e5, kind="cpu_op", profiler="torch")
    kernels = [kernel_row("impl=a", ATTENTION, 1, 1e6, profiler="torch"), operators]
    cases = [case_row(f"impl={i}", "torch") for i in "ab"]
    ranges = [range_row(f"impl={i}", 1, profiler="torch") for i in "ab"]
    (workload,) = analyze(tables(cases, kernels, ranges), declared(baseline={"impl": "a"})).workloads
    (b,) = (point for point in workload.cases if point.id == "impl=b")
    assert b.breakdown is not None and b.kernel_speedup is None and not workload.shapes[0].switch_costs


# --- doubt -----------------------------------------------------------------------------------------------------------


def test_an_implementation_that_ran_another_kernel_fails_its_expectation():
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 1.0), kernel_row("impl=b", COPY, 1, 1.0)])
    run = {"expects": {"w": {"impl=a": "cudnn|fa3", "impl=b": "math"}}}
    findings = analyze(data, run)
    assert [(e.case, e.requested, e.found, e.is_met) for e in findings.expectations] == [
        ("impl=a", "cudnn|fa3", ("fa2",), False), ("impl=b", "math", (), True),
    ]  # fmt: skip
    assert findings.failed


def test_a_name_that_two_projects_share_meets_the_expectation_of_either():
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 1.0, kernel_family="sage2|sparge")])
    (expectation,) = analyze(data, {"expects": {"w": {"impl=a": "sage2"}}}).expectations
    assert expectation.is_met


def test_the_cache_flush_of_the_harness_is_outside_every_case_and_explained():
    data = tables(
        kernels=[kernel_row("impl=a", ATTENTION, 1, 60.0), kernel_row("", FLUSH, 1, 30.0), kernel_row("", ADD, 1, 10.0)]
    )
    (outside,) = analyze(data, {}).unattributed
    assert (outside.ns, outside.share, outside.flush_ns) == (40.0, 0.4, 30.0)
    assert outside.unexplained == pytest.approx(0.1)


def test_kernels_outside_every_case_leave_the_times_of_a_run_those_of_calls():
    kernels = [kernel_row("impl=a", ATTENTION, 10, 60.0), kernel_row("impl=a", "[CUDA memset]", 10, 6.0, kind="memset")]
    data = tables(kernels=[*kernels, kernel_row("", ADD, 1, 40.0)], ranges=[range_row("impl=a", 10)])
    (workload,) = analyze(data, {}).workloads
    assert workload.iteration is Iteration.CALL
    assert (workload.steps.without_steps, workload.steps.copies) == ((), {})


def test_set_up_in_the_capture_of_a_run_gives_no_warning():
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 60.0), kernel_row("", ADD, 1, 40.0)])
    run = {"jobs": [{"workload": "w", "profiler": "nsys", "cases": ["impl=a"]}]}
    (outside,) = analyze(data, run).unattributed
    assert outside.has_setup and outside.unexplained == 0


@pytest.mark.parametrize("profiler", ["ncu", "torch"])
def test_kernels_outside_every_case_are_a_doubt_where_nothing_but_iterations_is_captured(profiler):
    rows = [kernel_row("impl=a", ATTENTION, 1, 60.0), kernel_row("", FLUSH, 1, 10.0), kernel_row("", ADD, 1, 30.0)]
    data = tables(kernels=[{**row, "profiler": profiler} for row in rows])
    run = {"jobs": [{"workload": "w", "profiler": profiler, "cases": ["impl=a"]}]}
    findings = analyze(data, run)
    (outside,) = findings.unattributed
    assert not outside.has_setup and outside.unexplained == pytest.approx(0.3)
    (bullets,) = warnings(findings, Manifest.parse(run)).blocks
    (line,) = (text for item in bullets.items if "outside every case" in (text := plain(item)))
    assert ("launching thread" in line) == (profiler == "ncu")


def test_a_case_that_ended_well_without_a_kernel_gives_a_warning():
    cases = [case_row(case, profiler) for profiler in ("plain", "nsys", "ncu") for case in ("impl=a", "impl=b")]
    kernels = [kernel_row("impl=a", ATTENTION, 1, 60.0, profiler=profiler) for profiler in ("nsys", "ncu")]
    assert analyze(tables(cases, kernels), {}).unseen == {("w", "nsys"): ("impl=b",)}


def test_what_a_profiler_saw_nothing_of_is_called_the_fastest_as_without_that_profiler():
    cases = [case_row(case, profiler) for profiler in ("plain", "nsys") for case in ("impl=a", "impl=b")]
    times = [metric_row("impl=a", "time", 900.0), metric_row("impl=b", "time", 1.0)]
    win = only(analyze(tables(cases, [kernel_row("impl=a", ATTENTION, 1, 60.0)], (), times), {})).shapes[0].win
    alone = only(analyze(tables(cases[:2], (), (), times), {})).shapes[0].win
    assert win is not None and alone is not None and win.best.variant == "b"
    assert (win.verdict, win.doubts) == (alone.verdict, alone.doubts)


def test_coverage_names_what_no_rule_knows_and_fails_below_the_minimum():
    kernels = [kernel_row("impl=a", ATTENTION, 1, 90.0), kernel_row("impl=a", "mystery", 1, 10.0)]
    run = {"pipeline": {"workloads": {"w": {}}, "coverage": {"min_classified": 0.95}}}
    findings = analyze(tables(kernels=kernels), run)
    (coverage,) = findings.coverage
    assert (coverage.classified, coverage.largest, coverage.is_too_low) == (0.9, (("mystery", 0.1),), True)
    assert findings.failed


def test_cases_with_the_same_outcome_are_grouped_and_so_are_jobs_without_cases():
    cases = [case_row(c, p, "skipped", "not installed") for p in ("plain", "nsys") for c in ("impl=a", "impl=b")]
    cases.append(case_row("impl=c"))
    jobs = [{"workload": "w", "profiler": "ncu", "status": "failed", "reason": "no permission", "log": "raw/log.txt"}]
    first, second = analyze(tables(cases), {"jobs": jobs}).not_run
    assert (first.profilers, first.cases, first.is_whole_workload) == (("plain", "nsys"), ("impl=a", "impl=b"), False)
    assert (second.status, second.profilers, second.logs) == ("failed", ("ncu",), ("raw/log.txt",))


def test_cpu_operators_that_only_dispatch_are_not_classified_as_attention():
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    rows = [kernel_row("impl=a", "aten::_scaled_dot_product_attention_math", 1, 5.0, **cpu, kernel_class="attention"),
            kernel_row("impl=a", "aten::bmm", 2, 50.0, **cpu, kernel_class="gemm"),
            kernel_row("impl=a", "aten::copy_", 2, 10.0, **cpu, kernel_class="copy")]  # fmt: skip
    split = only(analyze(tables(kernels=rows), {})).cases[0].breakdown
    assert split is not None and split.kind == "cpu_op" and not split.is_fused
    assert {name: part.ns for name, part in split.categories.items()} == {
        "rest": 5.0,
        "gemm": 50.0,
        "direct_copy": 10.0,
    }


def test_empty_tables_give_empty_findings():
    assert analyze(Tables(), {}) == Findings()


def test_the_largest_of_shapes_without_a_number_is_the_one_with_the_most_work():
    rows = []
    for size, work in (("small", 1e9), ("large", 9e9), ("medium", 3e9)):
        for impl in ("a", "b"):
            rows += [
                metric_row(f"size={size},impl={impl}", name, value) for name, value in (("time", 5.0), ("flops", work))
            ]
    (workload,) = analyze(tables(metrics=rows), {}).workloads
    assert workload.largest.axes == (("size", "large"),)


def test_shares_and_zeros_make_no_shape_smaller():
    ids = [f"impl=a,n={n},dropout={share},kv_heads={heads}" for n, share, heads in ((1, 0.5, 8), (9, 0.1, 0))]
    workload = only(analyze(tables(metrics=_times(*ids)), declared()))
    assert [shape.size for shape in workload.shapes] == [8.0, 9.0]


def test_each_rank_has_its_time_and_the_case_has_the_time_of_the_slowest_rank():
    rows = [metric_row("impl=a", "time", 9.0), metric_row("impl=a", "time_own", 5.0)]
    rows += [metric_row("impl=a", name, value, subject="rank 1") for name, value in (("time", 9.0), ("time_own", 8.0))]
    found = only(analyze(tables(metrics=rows), {}))
    assert found.cases[0].values["time"] == 9.0
    assert {own.name: own.numbers["time"] for own in found.ranks} == {"0": 5.0, "1": 8.0}
    before = [metric_row("impl=a", "time", 5.0), metric_row("impl=a", "time", 8.0, subject="rank 1")]
    found_ranks = only(analyze(tables(metrics=before), {})).ranks
    assert {own.name: own.numbers["time"] for own in found_ranks} == {"0": 5.0, "1": 8.0}, "as older runs have it"


def test_of_errors_and_memory_of_several_processes_the_worst_is_the_cases():
    own = {"error_rel_l1": 0.0005, "cosine": 0.999, "peak_allocated": 7.0, "issue": 3.0}
    other = {"error_rel_l1": 0.002, "cosine": 0.99, "peak_allocated": 9.0, "issue": 4.0, "error_max": 1.0}
    rows = [metric_row("impl=a", name, value) for name, value in own.items()]
    rows += [metric_row("impl=a", name, value, subject="rank 1") for name, value in other.items()]
    rows += [metric_row("impl=a", "error_rel_l1", 0.001, subject="rank 2")]
    values = only(analyze(tables(metrics=[*rows, metric_row("impl=a", "time", 1.0)]), {})).cases[0].values
    assert values == {**own, "error_rel_l1": 0.002, "cosine": 0.99, "peak_allocated": 9.0, "time": 1.0}


@pytest.mark.parametrize(("time", "processes", "flags"), [(1.14, 2, ("waited",)), (1.05, 2, ()), (1.14, 1, ())])
def test_samples_that_are_longer_than_the_loop_around_them_hold_waiting_for_another_process(time, processes, flags):
    """The loop includes the flush. A single process never waits for another, so the clock or the host has changed."""
    rows = [metric_row("impl=a", "time", time), metric_row("impl=a", "loop_wall", 1.0)]
    rows += [metric_row("impl=a", "time_own", time, subject=f"rank {rank}") for rank in range(1, processes)]
    assert only(analyze(tables([case_row("impl=a")], metrics=rows), {})).cases[0].flags == flags


def test_the_data_type_is_shown_where_only_the_default_of_the_workload_sets_it():
    cases = [case_row(f"seqlen={n}", params={"seqlen": n, "dtype": "fp16", "seed": 0}) for n in (1, 2)]
    run = {"pipeline": {"workloads": {"w": {"matrix": {"seqlen": [1, 2]}}}}}
    assert only(analyze(tables(cases, metrics=_times("seqlen=1", "seqlen=2")), run)).fixed == (("dtype", "fp16"),)


@pytest.mark.parametrize(
    ("launches", "issue", "flags"), [(1500, 80e6, ("host_bound",)), (900, 80e6, ()), (1500, 28e6, ())]
)
def test_a_call_that_waits_for_launches_which_no_queue_holds_is_host_bound(launches, issue, flags):
    """The harness compares the time to issue a call with the time of the call, which the host limits here."""
    kernels = [kernel_row("impl=a", ADD, 10 * launches, 10 * 27e6)]
    metrics = [metric_row("impl=a", "time", 70e6), metric_row("impl=a", "issue", issue)]
    found = only(analyze(tables([case_row("impl=a")], kernels, [range_row("impl=a", 10)], metrics), {}))
    assert found.cases[0].flags == flags
