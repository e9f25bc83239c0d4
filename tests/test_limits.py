"""What limits a call, what profilers add to it and what ncu says of its kernels. Numbers are made up.

golden/limits.md holds the sections.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from report_study import (
    ADD,
    ATTENTION,
    analyze,
    case_row,
    check_studies,
    example,
    kernel_row,
    metric_row,
    range_row,
    tables,
    with_ceilings,
)

from profpipe.analysis.kernels import CaseRange
from profpipe.measure import workload_metrics
from profpipe.report.document import Chart, Document, plain
from profpipe.report.pages import paginate
from profpipe.report.sections import cases, kernels, plots, roofline


def only(data, run=None):
    (workload,) = analyze(data, run or {}).workloads
    return workload


# --- limits ----------------------------------------------------------------------------------------------------------

MACHINE = {"peaks": {"flops": {"fp16": 1e15}, "bytes_per_s": 4e12, "source": "a rule"}}


def call(flops, moved, *more, kernels=100000.0, time=100000.0, flags="", machine=MACHINE, **ncu):
    """A call of 100 us, or ``time`` ns, in one kernel of ``kernels`` ns."""
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "fp16"}, flags=flags.split())]
    rows = [kernel_row("impl=a", ATTENTION, 10, 10 * kernels)]
    rows += [kernel_row("impl=a", ATTENTION, 1, kernels, profiler="ncu")] if ncu else []
    numbers = [metric_row("impl=a", "time", time), metric_row("impl=a", "flops", flops, "flop"),
               metric_row("impl=a", "bytes_moved", moved, "byte"), *more]  # fmt: skip
    numbers += [metric_row("impl=a", name, value, "byte/s", profiler="ncu", subject=ATTENTION)
                for name, value in ncu.items()]  # fmt: skip
    return only(tables(cases, rows, [range_row("impl=a", 10)], numbers), {"machine": machine})


def seen_by_ncu(launches):
    """Launches that differ, of which ncu saw one or all of a call."""
    kernels = [kernel_row("impl=a", ATTENTION, 70, 1e6, stddev_ns=2e4),
               kernel_row("impl=a", ATTENTION, launches, launches * 1e5 / 7, profiler="ncu")]  # fmt: skip
    rate = metric_row("impl=a", "dram__bytes.sum.per_second", 2e12, "byte/s", profiler="ncu", subject=ATTENTION)
    numbers = [*work("a", 1e5, 5e10), rate]
    return only(tables(fp16_cases("a"), kernels, [range_row("impl=a", 10)], numbers), {"machine": MACHINE})


def of_two_gpus(issue, flags="", is_one=False):
    """The sum of the kernels has waiting in it, which the call of 2993 us does not: the host takes 3755."""
    own = [metric_row("impl=a", "time_own", 2.993e6, subject="rank 1"), metric_row("impl=a", "time_own", 2.993e6)]
    more = [metric_row("impl=a", "issue", issue), *([] if is_one else own)]
    return call(1.5e12, 1e6, *more, kernels=5.2e6, time=2.993e6, flags=flags)


def captured(kernels):
    rows = [metric_row("impl=a", "time", 2e5), metric_row("impl=a", "issue", 3e5), metric_row("impl=b", "time", 4e5)]
    return only(tables([case_row("impl=a"), case_row("impl=b")], kernels, [range_row("impl=a", 10)], rows))


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


def test_the_sections_of_limits_read_as_in_the_golden_file(regenerate):
    kernel = [kernel_row("impl=a", ATTENTION, 10, 1e6)]
    ceilings = {**MACHINE, "ceilings": {"flops": {"fp16": 7e14}, "bytes_per_s": 4e12, "source": "measured"}}
    rate = {"dram__bytes.sum.per_second": 2e12}
    nowhere = tables(fp16_cases("ab"), metrics=[*work("a", 1e5, 5e10), *work("b", 1e5, 5e10)])
    workloads = {
        "an H200": only(*example("h200-attention")),
        "an H200 with measured ceilings": only(*with_ceilings(*example("h200-attention"))),
        "above the ridge": call(5e10, 1e6), "below the ridge": call(1e9, 2e8),
        "bytes that ncu saw come before those that a call must move": call(5e10, 1e6, **rate),
        "ncu saw one of seven launches that differ": seen_by_ncu(1), "ncu saw all of them": seen_by_ncu(7),
        "measured ceilings come before the rule": call(4.2e10, 1e6, machine=ceilings),
        "a host that is slower than the GPU": call(5e10, 1e6, metric_row("impl=a", "issue", 3e5), kernels=9e4),
        "a host that is faster": call(5e10, 1e6, metric_row("impl=a", "issue", 3e4)),
        "flagged host-bound, though its kernels take longer": of_two_gpus(3.755e6, "host_bound", is_one=True),
        "flagged host-bound, on two GPUs": of_two_gpus(3.755e6, "host_bound"),
        "not flagged, on two GPUs": of_two_gpus(3.755e6), "a faster host, on two GPUs": of_two_gpus(2.5e6),
        "not flagged, on one GPU": of_two_gpus(3.755e6, is_one=True),
        "without kernels the time of a host-bound call is an upper bound": captured([]),
        "with kernels it is not": captured(kernel),
        "a host-bound sum of kernels has no upper bound":
            only(tables([case_row("impl=a", "nsys", flags=["host_bound"])], kernel)),
        "without peaks": call(5e10, 1e6, machine={}), "far below both peaks": far_below_peaks(),
        "a lone call far below both": call(5e8, 1e4),
        "far below by FLOPs, near by the bytes that ncu saw": call(5e8, 1e4, **rate),
        "bytes are not declared": undeclared_bytes(), "no bytes are": only(nowhere, {"machine": MACHINE}),
        "sparse work": sparse(), "two GPUs": of_gpus(2),
        "one GPU": of_gpus(1), "measured traffic": traffic(True), "declared bytes": traffic(False),
        "memory-bound": memory_bound(), "host-bound": host_bound(), "a data type without a peak": unknown_peak(),
        "a slowed loop, whose range ends before its kernels": slowed_by_nsys(),
        "slowed loops of several causes": limited(a=10.0, b=300.0),
        # 6e10 at 2e15 take 30 us, 2e10 at 1e15 take 20 us: of the 100 us that is half, where fp16 alone gave 1.6.
        "two data types": of_types({"int8": 6e10, "fp8": 2e10}, {"fp16": 5e14, "int8": 2e15, "fp8": 1e15}),
        "another data type": of_types({"int8": 8e10}, {"int8": 2e15}),
        "a data type of two without a rate": of_types({"int8": 4e10, "fp8": 4e10}, {"fp16": 5e14, "int8": 2e15}),
        "one part in the data type of the case": of_types({"bf16": 5e10}, {"bf16": 1e15}, dtype="bfloat16"),
    }  # fmt: skip
    studies = (
        (name, [*roofline.summary(workload)], roofline.limits(workload, workload),
         *([cases.make_case_table(workload, workload.cases)] if "data type" in name else []))
        for name, workload in workloads.items()
    )  # fmt: skip
    check_studies("limits.md", studies, regenerate)


def test_flops_by_data_type_are_written_with_their_sum(tmp_path):
    written: list[dict[str, Any]] = []
    work = {"int8": 3.0, "fp8": 1.0}
    workload = SimpleNamespace(flops=lambda params: work, phase_work=lambda params: {"attention": {"flops": work}})
    assert workload_metrics.write(workload, {}, lambda event, **fields: written.append(fields), {}) == []
    assert {(row["subject"], row["metric"]): row["value"] for row in written} == {
        ("", "flops"): 4.0, ("", "flops.int8"): 3.0, ("", "flops.fp8"): 1.0,
        ("attention", "flops"): 4.0, ("attention", "flops.int8"): 3.0, ("attention", "flops.fp8"): 1.0,
    }  # fmt: skip
    assert {row["unit"] for row in written} == {"flop"}


# --- profilers -------------------------------------------------------------------------------------------------------


def test_the_loop_under_a_profiler_against_the_loop_alone_is_its_overhead():
    walls = {"plain": 100.0, "torch": 104.0, "nsys": 130.0}
    rows = [metric_row("impl=a", "loop_wall", ns, profiler=profiler) for profiler, ns in walls.items()]
    found = only(tables([case_row("impl=a")], metrics=rows)).recorded.overheads
    assert found == pytest.approx({("impl=a", "torch"): 0.04, ("impl=a", "nsys"): 0.3})


def test_kernel_times_of_a_profiler_that_slowed_the_case_carry_the_mark():
    walls = [metric_row("impl=a", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1.0), ("nsys", 2.0))]
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 9.0)], ranges=[range_row("impl=a", 1)], metrics=walls)
    assert only(data).cases[0].flags == ("profiler_overhead",)


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
    (found,) = only(tables(metrics=rows), run).kernels.counters
    assert found.missed == ("sm",) and found.rules == (("Occupancy", 12.5, True), ("SOLBottleneck", None, False))
    assert not [name for name in found.values if name.startswith("rule:")]


def test_a_speed_up_that_ncu_estimates_of_a_part_is_marked_local():
    def estimates(*rules):
        ncu = {"profiler": "ncu", "subject": ATTENTION}
        workload = only(tables(metrics=[metric_row("impl=a", f"rule:{name}", *rest, **ncu) for name, *rest in rules]))
        return plain(kernels.rules(workload.kernels.counters, workload.cases).rows[0][-1].text)

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
    rule_rows = [(c.case, c.kernel, f"rule:{name}", "% local" if is_local else "%")
            for c in workload.kernels.counters for name, rate, is_local in c.rules if rate is not None]  # fmt: skip
    assert set(rule_rows) == set(names) and {"%", "% local"} == {unit for *_, unit in rule_rows}


# --- phases ----------------------------------------------------------------------------------------------------------


def test_a_phase_has_the_time_of_what_is_nested_in_it():
    kernels = [kernel_row("impl=a", ATTENTION, 2, 60.0, phase="forward"),
               kernel_row("impl=a", ADD, 4, 20.0, phase="forward > loss"),
               kernel_row("impl=a", ADD, 2, 20.0, phase="backward")]  # fmt: skip
    phases = only(tables(kernels=kernels, ranges=[range_row("impl=a", 2)])).phases.kernels
    assert {p.phase: (p.calls, p.ns, p.share) for p in phases} == {
        "forward": (3.0, 40.0, 0.8), "forward > loss": (2.0, 10.0, 0.2), "backward": (1.0, 10.0, 0.2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("operators_ms", "loop_ms", "explanations"),
    [
        (1.3, 1.1, (("profiler overhead", {"profiler": "torch"}),)),  # 30 operators, 10 us each
        (3.0, 2.4, (("profiler overhead", {"profiler": "torch", "loop_ns": 2.4e6, "alone_ns": 1.1e6}),)),
        (3.0, 1.2, ()),  # the machine may have been busy
    ],
)
def test_the_profiler_explains_slower_operators_only_as_far_as_it_costs(operators_ms, loop_ms, explanations):
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    walls = [metric_row("impl=a", "loop_wall", ms * 1e6, profiler=p) for p, ms in (("plain", 1.1), ("torch", loop_ms))]
    data = tables(
        kernels=[kernel_row("impl=a", "aten::mm", 30, operators_ms * 1e6, **cpu)],
        ranges=[range_row("impl=a", 1, "torch")],
        metrics=[*walls, metric_row("impl=a", "time", 1e6, ci_low=0.99e6, ci_high=1.01e6)],
    )
    (figure,) = [f for times in only(data).agreements.values() for f in times if f.profiler == "plain"]
    assert (figure.explanations, figure.is_unexplained) == (explanations, not explanations)


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


def test_each_roof_of_the_chart_names_the_cases_below_it():
    workload = only(*example("h200-attention"))
    (chart,) = plots.roofline(workload).blocks
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
