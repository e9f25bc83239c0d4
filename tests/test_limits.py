"""What limits a call, what profilers add to it and what ncu says of its kernels. Numbers are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from report_study import (
    ADD,
    ATTENTION,
    analyze,
    case_row,
    check_golden,
    example,
    kernel_row,
    metric_row,
    range_row,
    records,
    tables,
    texts,
    with_ceilings,
)

from profpipe.analysis.findings import Reason
from profpipe.analysis.kernels import CaseRange, Rule
from profpipe.measure import workload_metrics
from profpipe.report.document import Chart, Document, plain
from profpipe.report.markdown import Markdown
from profpipe.report.pages import paginate
from profpipe.report.sections import explorer, kernels, roofline


def only(data, run=None):
    (workload,) = analyze(data, run or {}).workloads
    return workload


# --- limits ----------------------------------------------------------------------------------------------------------

MACHINE = {"peaks": {"flops": {"fp16": 1e15}, "bytes_per_s": 4e12, "source": "a rule"}}


def limit(flops, moved, *more, machine=MACHINE, **ncu):
    """Of a call of 100 us in one kernel."""
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "fp16"})]
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
    kernels += [kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")] if ncu else []
    numbers = [metric_row("impl=a", "time", 1e5), metric_row("impl=a", "flops", flops, "flop"),
               metric_row("impl=a", "bytes_moved", moved, "byte"), *more]  # fmt: skip
    numbers += [metric_row("impl=a", name, value, "byte/s", profiler="ncu", subject=ATTENTION)
                for name, value in ncu.items()]  # fmt: skip
    data = tables(cases, kernels, [range_row("impl=a", 10)], numbers)
    return only(data, {"machine": machine}).cases[0].limit


def test_the_side_of_the_ridge_says_what_limits():
    busy = limit(flops=5e10, moved=1e6)
    assert (busy.limited_by, busy.flops_share, busy.intensity) == ("compute", 0.5, 5e4)
    streaming = limit(flops=1e9, moved=2e8)
    assert (streaming.limited_by, streaming.bandwidth_share, streaming.intensity) == ("memory", 0.5, 5.0)


def test_bytes_that_ncu_saw_come_before_those_that_a_call_must_move():
    found = limit(5e10, 1e6, **{"dram__bytes.sum.per_second": 2e12})
    assert (found.limited_by, found.dram_bytes, found.bandwidth_share) == ("memory", 2e8, 0.5)


def test_of_launches_that_differ_ncu_must_have_seen_all_to_say_what_a_call_moves():
    def traffic(seen):
        kernels = [kernel_row("impl=a", ATTENTION, 70, 1e6, stddev_ns=2e4),
                   kernel_row("impl=a", ATTENTION, seen, seen * 1e5 / 7, profiler="ncu")]  # fmt: skip
        rate = metric_row("impl=a", "dram__bytes.sum.per_second", 2e12, "byte/s", profiler="ncu", subject=ATTENTION)
        numbers = [metric_row("impl=a", "time", 1e5), rate]
        data = tables([case_row("impl=a")], kernels, [range_row("impl=a", 10)], numbers)
        return only(data, {"machine": MACHINE}).cases[0].limit.dram_bytes

    assert traffic(1) is None and traffic(7) is not None


def test_measured_ceilings_come_before_the_rule():
    ceilings = {"flops": {"fp16": 7e14}, "bytes_per_s": 4e12, "source": "measured"}
    assert limit(flops=4.2e10, moved=1e6, machine={**MACHINE, "ceilings": ceilings}).flops_share == pytest.approx(0.6)


def test_a_host_that_is_slower_than_the_gpu_is_the_limit():
    found = limit(5e10, 1e6, metric_row("impl=a", "issue", 3e5))
    assert (found.limited_by, found.issue_ns, found.gpu_ns) == ("host", 3e5, 1e5)
    assert limit(5e10, 1e6, metric_row("impl=a", "issue", 3e4)).limited_by == "compute"


def test_a_call_flagged_host_bound_is_limited_by_the_host_for_any_length_of_its_kernels():
    """Of two GPUs the sum of the kernels has waiting in it, which the call of 2993 us does not: the host takes 3755."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 5.2e7)]
    several = [metric_row("impl=a", "time_own", 2.993e6, subject="rank 1"), metric_row("impl=a", "time_own", 2.993e6)]

    def found(issue, flags, *more):
        numbers = [metric_row("impl=a", "time", 2.993e6), metric_row("impl=a", "issue", issue), *more]
        numbers += [metric_row("impl=a", "flops", 1.5e12, "flop"), metric_row("impl=a", "bytes_moved", 1e6, "byte")]
        cases = [case_row("impl=a", flags=flags, params={"impl": "a", "dtype": "fp16"})]
        workload = only(tables(cases, kernels, [range_row("impl=a", 10)], numbers), {"machine": MACHINE})
        return workload.cases[0].limit

    assert found(3.755e6, ["host_bound"]).limited_by == found(3.755e6, ["host_bound"], *several).limited_by == "host"
    assert (found(3.755e6, [], *several).limited_by, found(3.755e6, [], *several).gpu_ns) == ("host", 2.993e6)
    assert found(2.5e6, [], *several).limited_by == "compute"
    assert (found(3.755e6, []).limited_by, found(3.755e6, []).gpu_ns) == ("compute", 5.2e6)


def limits_of(workload):
    """Return the rows of the table of limits as the page writes them."""
    return records(roofline.table(workload, workload.cases, is_one_shape=True))


def test_without_captured_kernels_the_time_of_a_host_bound_call_is_an_upper_bound_of_the_gpu_time():
    rows = [metric_row("impl=a", "time", 2e5), metric_row("impl=a", "issue", 3e5), metric_row("impl=b", "time", 4e5)]
    alone, captured = (
        only(tables([case_row("impl=a"), case_row("impl=b")], kernels, [range_row("impl=a", 10)], rows))
        for kernels in ([], [kernel_row("impl=a", ATTENTION, 10, 1e6)])
    )
    assert limits_of(alone)[0]["GPU time us"] == "200.0 at most" and limits_of(captured)[0]["GPU time us"] == "100.0"


def test_a_host_bound_sum_of_kernels_has_no_upper_bound():
    whole = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
    workload = only(tables([case_row("impl=a", "nsys", flags=["host_bound"])], whole))
    assert workload.cases[0].limit.limited_by == "host"
    assert not any("at most" in cell for row in limits_of(workload) for cell in row.values())


def test_without_peaks_the_limit_is_unknown():
    assert limit(5e10, 1e6, machine={}).limited_by is None


def fp16_cases(variants):
    return [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in variants]


def work(variant, ns, flops, moved=None):
    rows = [metric_row(f"impl={variant}", "time", ns), metric_row(f"impl={variant}", "flops", flops)]
    return rows + ([metric_row(f"impl={variant}", "bytes_moved", moved)] if moved else [])


def far_below_peaks():
    """A call that waits for something else reaches a hundredth of what its kernels could."""
    rows = [row for i in "abc" for row in work(i, 1e5 if i == "a" else 1e7, 5e10, 1e6)]
    return only(tables(fp16_cases("abc"), metrics=rows), {"machine": MACHINE})


def undeclared_bytes():
    rows = [*work("a", 1e5, 5e10), *work("b", 1.25e5, 5e10), *work("c", 1e5, 5e10, 1e6)]
    return only(tables(fp16_cases("abc"), metrics=rows), {"machine": MACHINE})


def sparse():
    """Four tenths of the dense work, over the same bytes."""
    rows = [*work("a", 1e5, 5e10, 1e7), *work("b", 1e5, 5e10, 1e7)]
    rows.append(metric_row("impl=a", "flops_effective", 2e10, "flop"))
    return only(tables(fp16_cases("ab"), metrics=rows), {"machine": MACHINE})


def of_gpus(count):
    busy = [
        metric_row("impl=a", "communication_busy", 1e4, profiler="nsys", subject=f"device {gpu}")
        for gpu in range(count)
    ]
    rows = [metric_row("impl=a", "time", 1e5), metric_row("impl=a", "issue", 3e5), *busy]
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
    return only(tables([case_row("impl=a")], kernels, [range_row("impl=a", 10)], rows))


def traffic(is_measured):
    rows = [*work("a", 1e5, 5e10, 1e6), metric_row("impl=b", "time", 2e5)]
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6), kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")]
    rate = metric_row("impl=a", "dram__bytes.sum.per_second", 1e11, "byte/s", profiler="ncu", subject=ATTENTION)
    data = tables(fp16_cases("ab"), kernels, [range_row("impl=a", 10)], [*rows, rate] if is_measured else rows)
    return only(data, {"machine": MACHINE})


def memory_bound():
    rows = [*work("a", 1e5, 1e9, 2e8), *work("b", 2e5, 1e9, 2e8)]
    return only(tables(fp16_cases("ab"), metrics=rows), {"machine": MACHINE})


def host_bound():
    rows = [*work("a", 1e5, 5e10, 1e6), *work("b", 2e5, 5e10, 1e6), metric_row("impl=a", "issue", 3e5)]
    return only(tables(fp16_cases("ab"), metrics=rows), {"machine": MACHINE})


def unknown_peak():
    cases = [*fp16_cases("a"), case_row("impl=b", params={"impl": "b", "dtype": "int4"})]
    return only(tables(cases, metrics=[*work("a", 1e5, 5e10, 2e8), *work("b", 1e5, 5e10, 2e8)]), {"machine": MACHINE})


def slowed_by_nsys():
    data = tables(
        fp16_cases("a"),
        [kernel_row("impl=a", ATTENTION, 10, 8e6)],
        [range_row("impl=a", 10, wall_ns=1e6, busy_ns=8e6, span_ns=10e6)],
        [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "issue", 2e6)]
        + [metric_row("impl=a", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1e6), ("nsys", 2e6))],
    )
    return only(data)


def test_the_section_of_limits_reads_as_in_the_golden_file(regenerate):
    workloads = {
        "an H200": only(*example("h200-attention")),
        "an H200 with measured ceilings": only(*with_ceilings(*example("h200-attention"))),
        "far below both peaks": far_below_peaks(),
        "bytes are not declared": undeclared_bytes(), "sparse work": sparse(), "two GPUs": of_gpus(2),
        "one GPU": of_gpus(1), "measured traffic": traffic(True), "declared bytes": traffic(False),
        "memory-bound": memory_bound(), "host-bound": host_bound(), "a data type without a peak": unknown_peak(),
        "a slowed loop": slowed_by_nsys(), "two data types": of_types(
            {"int8": 6e10, "fp8": 2e10}, {"fp16": 5e14, "int8": 2e15, "fp8": 1e15}),
        "another data type": of_types({"int8": 8e10}, {"int8": 2e15}),
    }  # fmt: skip
    parts = []
    for name, workload in workloads.items():
        section = roofline.limits(workload, workload)
        lines = [Markdown().text(text) for text in (*roofline.summary(workload), section.summary) if text]
        lines += texts(section)
        parts.append("\n".join([f"## {name}", "", *(f"- {line}" for line in lines)]))
    check_golden("limits.md", "\n\n".join(parts) + "\n", regenerate)


def test_a_case_far_below_both_peaks_has_no_row():
    assert len(limits_of(far_below_peaks())) == 1


def test_a_case_without_declared_bytes_has_a_row_without_a_limit():
    assert {row["impl"]: row["limited by"] for row in limits_of(undeclared_bytes())} == {
        "`a`": "–", "`b`": "–", "`c`": "arithmetic",
    }  # fmt: skip
    nowhere = only(tables(fp16_cases("ab"), metrics=[*work("a", 1e5, 5e10), *work("b", 1e5, 5e10)]),
                   {"machine": MACHINE})  # fmt: skip
    assert not limits_of(nowhere)


def test_the_rates_of_sparse_work_count_what_is_done_of_it():
    rows = [(row["effective TFLOP/s"], row["FLOP/byte"]) for row in limits_of(sparse())]
    assert rows == [("200.0", "2000"), ("500.0", "5000")]


def test_the_limit_names_its_cause_and_a_slowed_loop_is_flagged():
    whole = limited(a=10.0, b=300.0)
    rows = limits_of(whole)
    assert [row["limited by"] for row in rows] == ["arithmetic", "the host", "–"]
    assert all(row["GPU idle %"].endswith("*profiler_overhead*") for row in rows)


def limited(**issue_us):
    """Calls of 100 us with the host's time to issue them, and ``lacks``, which declares no bytes."""
    variants = [*issue_us, "lacks"]
    rows = [metric_row(f"impl={i}", "issue", 1e3 * us) for i, us in issue_us.items()]
    rows += [row for i in variants for row in work(i, 1e5, 5e10, None if i == "lacks" else 1e6)]
    for i in variants:
        rows += [metric_row(f"impl={i}", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1e6), ("nsys", 2e6))]
    kernels = [kernel_row(f"impl={i}", ATTENTION, 10, 1e6) for i in variants]
    ranges = [range_row(f"impl={i}", 10, wall_ns=2e6, busy_ns=1e6) for i in variants]
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in variants]
    return only(tables(cases, kernels, ranges, rows), {"machine": MACHINE})


def of_types(work, rates, dtype="fp16"):
    """A call of 100 us named ``a`` whose FLOPs are known by data type, and how it is spelled in the tables."""
    numbers = [metric_row("impl=a", "time", 1e5), metric_row("impl=a", "flops", sum(work.values()), "flop")]
    numbers += [metric_row("impl=a", "bytes_moved", 1e6, "byte")]
    numbers += [metric_row("impl=a", f"flops.{name}", flop, "flop") for name, flop in work.items()]
    cases = [case_row("impl=a", params={"impl": "a", "dtype": dtype}), case_row("impl=b", params={"impl": "b"})]
    numbers += [metric_row("impl=b", "time", 2e5)]
    return only(tables(cases, metrics=numbers), {"machine": {"peaks": {"flops": rates, "bytes_per_s": 4e12}}})


def test_a_call_in_several_data_types_is_compared_with_the_sum_of_the_times_of_its_parts():
    """6e10 at 2e15 take 30 us, 2e10 at 1e15 take 20 us: of the 100 us that is half, where fp16 alone would give 1.6."""
    found = of_types({"int8": 6e10, "fp8": 2e10}, {"fp16": 5e14, "int8": 2e15, "fp8": 1e15})
    point = next(p for p in found.cases if p.variant == "a")
    assert point.tflops == 800 and point.of_peak_flops == pytest.approx(0.5) and point.marks == ()
    assert point.limit.flops_share == pytest.approx(0.5) and point.limit.limited_by == "compute"
    assert point.limit.dtypes == ("int8", "fp8") and point.limit.ridge == pytest.approx(400)


def test_without_the_rate_of_one_data_type_there_is_no_share_of_the_peak():
    found = of_types({"int8": 4e10, "fp8": 4e10}, {"fp16": 5e14, "int8": 2e15})
    point = next(p for p in found.cases if p.variant == "a")
    assert (point.tflops, point.of_peak_flops, point.limit.flops_share, point.limit.ridge) == (800, None, None, None)


def test_one_part_in_the_data_type_of_the_case_is_as_one_number():
    found = of_types({"bf16": 5e10}, {"bf16": 1e15}, dtype="bfloat16")
    point = next(p for p in found.cases if p.variant == "a")
    assert (point.limit.flops_share, point.limit.dtypes) == (0.5, ())


def test_flops_by_data_type_are_written_with_their_sum(tmp_path):
    written: list[dict[str, Any]] = []
    work = {"int8": 3.0, "fp8": 1.0}
    workload = SimpleNamespace(flops=lambda params: work, phase_work=lambda params: {"attention": {"flops": work}})
    assert workload_metrics.write(workload, {}, tmp_path, lambda event, **fields: written.append(fields), {}) == []
    assert {(row["subject"], row["metric"]): row["value"] for row in written} == {
        ("", "flops"): 4.0, ("", "flops.int8"): 3.0, ("", "flops.fp8"): 1.0,
        ("attention", "flops"): 4.0, ("attention", "flops.int8"): 3.0, ("attention", "flops.fp8"): 1.0,
    }  # fmt: skip
    assert {row["unit"] for row in written} == {"flop"}


# --- profilers -------------------------------------------------------------------------------------------------------


def test_the_loop_under_a_profiler_against_the_loop_alone_is_its_overhead():
    walls = {"plain": 100.0, "torch": 104.0, "nsys": 130.0}
    rows = [metric_row("impl=a", "loop_wall", ns, profiler=profiler) for profiler, ns in walls.items()]
    found = only(tables([case_row("impl=a")], metrics=rows)).overheads
    assert found == pytest.approx({("impl=a", "torch"): 0.04, ("impl=a", "nsys"): 0.3})


def test_kernel_times_of_a_profiler_that_slowed_the_case_carry_the_mark():
    walls = [metric_row("impl=a", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1.0), ("nsys", 2.0))]
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 9.0)], ranges=[range_row("impl=a", 1)], metrics=walls)
    assert only(data).cases[0].marks == ("profiler_overhead",)


def test_numbers_of_a_profilers_process_are_not_taken_for_the_cases_own():
    rows = [metric_row("impl=a", name, 7.0, profiler="torch") for name in ("issue", "loop_wall", "sm_clock", "flops")]
    assert only(tables(metrics=rows)).cases[0].values == {"flops": 7.0}


# --- ncu -------------------------------------------------------------------------------------------------------------


def test_a_kernel_below_a_target_misses_it_and_the_rules_are_named():
    ncu = {"profiler": "ncu", "subject": ATTENTION}
    memory, sm = "gpu__compute_memory_throughput", "sm__throughput"
    rows = [metric_row("impl=a", f"{name}.avg.pct_of_peak_sustained_elapsed", value, "%", **ncu)
            for name, value in ((memory, 85.0), (sm, 40.0))]  # fmt: skip
    rows += [metric_row("impl=a", "rule:Occupancy", 12.5, "% local", **ncu)]
    rows += [metric_row("impl=a", "rule:SOLBottleneck", float("nan"), "%", **ncu)]
    run = {"pipeline": {"workloads": {"w": {"ncu": {"targets": {"memory": 80, "sm": 90}}}}}}
    (found,) = only(tables(metrics=rows), run).counters
    assert found.missed == ("sm",) and found.rules == (Rule("Occupancy", 12.5, is_local=True), Rule("SOLBottleneck"))
    assert not [name for name in found.values if name.startswith("rule:")]


def test_a_speed_up_that_ncu_estimates_of_a_part_is_marked_local():
    def estimates(*rules):
        ncu = {"profiler": "ncu", "subject": ATTENTION}
        workload = only(tables(metrics=[metric_row("impl=a", f"rule:{name}", *rest, **ncu) for name, *rest in rules]))
        return plain(kernels.rules(workload.counters, workload.cases).rows[0][-1].text)

    stall, nothing = ("CPIStall", 40.0, "% local"), float("nan")
    both = estimates(stall, ("Imbalance", 5.0, "%"), ("Imbalance", 30.0, "% local"), ("SOLBottleneck", nothing, "%"))
    assert both == "Imbalance 5.00 %, CPIStall 40.0 % (local), Imbalance 30.0 % (local), SOLBottleneck"
    assert estimates(("CPIStall", nothing, "%"), stall) == "CPIStall 40.0 % (local)", "the rule has two rows"
    assert estimates(("Imbalance", 5.0, "%")) == "Imbalance 5.00 %"


def test_each_estimate_of_the_real_run_is_of_what_its_unit_says():
    data, run = example("h200-attention")
    workload, rows = only(data, run), data.metrics[data.metrics["metric"].str.startswith("rule:")]
    estimates = rows[rows["value"].notna()]
    names = zip(*(estimates[key] for key in ("case", "subject", "metric", "unit")), strict=True)
    rule_rows = [(c.case, c.kernel, f"rule:{r.name}", "% local" if r.is_local else "%")
            for c in workload.counters for r in c.rules if r.speedup is not None]  # fmt: skip
    assert set(rule_rows) == set(names) and {"%", "% local"} == {unit for *_, unit in rule_rows}


# --- phases ----------------------------------------------------------------------------------------------------------


def test_a_phase_has_the_time_of_what_is_nested_in_it():
    kernels = [kernel_row("impl=a", ATTENTION, 2, 60.0, phase="forward"),
               kernel_row("impl=a", ADD, 4, 20.0, phase="forward > loss"),
               kernel_row("impl=a", ADD, 2, 20.0, phase="backward")]  # fmt: skip
    phases = only(tables(kernels=kernels, ranges=[range_row("impl=a", 2)])).phases
    assert {p.phase: (p.calls, p.ns, p.share) for p in phases} == {
        "forward": (3.0, 40.0, 0.8), "forward > loss": (2.0, 10.0, 0.2), "backward": (1.0, 10.0, 0.2),
    }  # fmt: skip


def test_a_call_far_below_both_peaks_is_limited_by_neither():
    assert limit(flops=5e8, moved=1e4).limited_by is None
    assert limit(5e8, 1e4, **{"dram__bytes.sum.per_second": 2e12}).limited_by == "memory"


@pytest.mark.parametrize(
    ("operators_ms", "loop_ms", "reasons"),
    [
        (1.3, 1.1, (Reason("profiler overhead", {"profiler": "torch"}),)),  # 30 operators, 10 us each
        (3.0, 2.4, (Reason("profiler overhead", {"profiler": "torch", "loop_ns": 2.4e6, "alone_ns": 1.1e6}),)),
        (3.0, 1.2, ()),  # the machine may have been busy
    ],
)
def test_the_profiler_explains_slower_operators_only_as_far_as_it_costs(operators_ms, loop_ms, reasons):
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    walls = [metric_row("impl=a", "loop_wall", ms * 1e6, profiler=p) for p, ms in (("plain", 1.1), ("torch", loop_ms))]
    data = tables(
        kernels=[kernel_row("impl=a", "aten::mm", 30, operators_ms * 1e6, **cpu)],
        ranges=[range_row("impl=a", 1, "torch")],
        metrics=[*walls, metric_row("impl=a", "time", 1e6, ci_low=0.99e6, ci_high=1.01e6)],
    )
    (figure,) = [f for a in only(data).agreements for f in a.figures if f.profiler == "plain"]
    assert (figure.reasons, figure.is_unexplained) == (reasons, not reasons)


# --- the GPU that waits ----------------------------------------------------------------------------------------------


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
def test_the_idle_share_is_of_the_range_or_of_its_kernels_where_these_outlast_it(wall_ms, busy_ms, span_ms, idle):
    own = CaseRange(10, 1e6 * wall_ms, 1e6 * busy_ms, 1e6 * span_ms)
    assert own.idle_share == (None if idle is None else pytest.approx(idle))


def test_gaps_between_kernels_count_as_idle_where_the_range_ends_first():
    assert limits_of(slowed_by_nsys())[0]["GPU idle %"] == "20.0 *profiler_overhead*"


def test_each_roof_of_the_chart_names_the_cases_below_it():
    workload = only(*example("h200-attention"))
    (chart,) = explorer.roofline(workload).blocks
    assert isinstance(chart, Chart)
    assert [reference.name for reference in chart.references] == [
        "1071 TFLOP/s: sdpa_cudnn and 4 more", "1427 TFLOP/s: sage", "67 TFLOP/s: sdpa_math"
    ]  # fmt: skip


def test_no_words_about_a_table_stay_on_a_page_that_has_not_the_table():
    workload = only(*example("h200-attention"))
    document = Document("run", (roofline.limits(workload, workload),))
    for lines, ids in ((150, ["limits", "details"]), (12, ["details"])):
        summary, details = paginate(document, lines)
        assert [section.id for section in summary.sections] == ids
        assert bool(details.sections[0].summary) is (ids == ["details"])
