"""Times, flags, kernel shares, costs of switching and numbers by case, each from a few made-up numbers.

golden/times.md and golden/flags.md hold their words.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import step_study
from report_study import (
    ATTENTION,
    FLUSH,
    analyze,
    case_row,
    check_golden,
    check_studies,
    example,
    kernel_row,
    metric_row,
    range_row,
    records,
    tables,
)

from profpipe.analysis import kernels
from profpipe.analysis.case_index import Measure
from profpipe.analysis.findings import Shape, WorkloadFindings
from profpipe.analysis.kernels import CaseRange, ClassTotal, Kernel, KernelTotals
from profpipe.measure.flags import Flag
from profpipe.report import selection
from profpipe.report.document import plain
from profpipe.report.markdown import Markdown
from profpipe.report.sections import cases as cases_section, kernel_share, times
from profpipe.report.units import Unit


def only(data, baseline="a"):
    run: dict[str, Any] = {"pipeline": {"workloads": {"w": {"baseline": {"impl": baseline}}}}}
    (workload,) = analyze(data, run).workloads
    return workload


def timed(
    half: float = 0.1, baseline: str = "a", flags: Mapping[str, list[str]] = {}, **ns: float
) -> WorkloadFindings:  # fmt: skip
    """Implementations with these times in ns, with an interval of ``half`` to either side."""
    cases = [case_row(f"impl={impl}", flags=flags.get(impl, [])) for impl in ns]
    rows = [metric_row(f"impl={impl}", "time", n, ci_low=(1 - half) * n, ci_high=(1 + half) * n)
            for impl, n in ns.items()]  # fmt: skip
    return only(tables(cases, metrics=rows), baseline)


def clocks():
    """Clocks in Hz: the lowest, the median and the highest; ``d`` has a median alone."""
    own = {"a": (1.938e9, 1.98e9, 1.98e9), "b": (1.938e9, 1.98e9, 1.98e9), "c": (1.8e9, 1.9e9, 1.98e9)}
    own["e"] = (1.95e9, 1.95e9, 1.95e9)
    rows = [metric_row(f"impl={impl}", "time", 1000.0) for impl in (*own, "d")]
    rows += [metric_row(f"impl={impl}", name, hz, "Hz") for impl, each in own.items()
             for name, hz in zip(("sm_clock_min", "sm_clock", "sm_clock_max"), each, strict=True)]  # fmt: skip
    rows.append(metric_row("impl=d", "sm_clock", 1.95e9, "Hz"))
    cases = [case_row(f"impl={impl}", flags=["throttled"] if impl in "ade" else []) for impl in (*own, "d")]
    return only(tables(cases, metrics=rows))


def ends():
    rows = [metric_row("impl=a", name, ns) for name, ns in (("time", 4e3), ("time_min", 2e3), ("time_max", 9e3))]
    return only(tables([case_row("impl=a")], metrics=[*rows, metric_row("impl=a", "flops", 8e6, "flop")]))


def switched(**own):
    """An attention kernel of 1000 us in place of the same and of kernels of some us, class -> us."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e7), kernel_row("impl=b", ATTENTION, 10, 1e7)]
    kernels += [kernel_row("impl=b", name, 10, 1e4 * us, kernel_class=name) for name, us in own.items()]
    return only(tables(kernels=kernels, ranges=[range_row(f"impl={impl}", 10) for impl in "ab"]))


def set_before(us):
    """A kernel of 10 us in place of one of 15, and a memset before it."""
    kernels = [kernel_row("impl=a", ATTENTION, 30, 450_000.0), kernel_row("impl=b", ATTENTION, 30, 300_000.0)]
    kernels.append(kernel_row("impl=b", "[CUDA memset]", 30, 30_000.0 * us, kind="memset"))
    return only(tables(kernels=kernels, ranges=[range_row(f"impl={impl}", 30) for impl in "ab"]))


def other_classes():
    kernels = [kernel_row("impl=a", ATTENTION, 10, 10e6), kernel_row("impl=b", ATTENTION, 10, 5e6)]
    kernels += [kernel_row("impl=b", FLUSH, 30, 4e6), kernel_row("impl=b", "cat", 20, 3e6, kernel_class="copy")]
    return only(tables(kernels=kernels, ranges=[range_row(f"impl={impl}", 10) for impl in "ab"]))


def studies():
    noisy = {"b": ["noisy", "synchronises"]}
    fastest, every, switch = times.fastest_by_shape, times.times, kernel_share.switch_cost
    yield "A win of the baseline shows the flags of the next", fastest(timed(flags=noisy, a=1e3, b=2e3, c=3e3))
    yield (
        "A win over the baseline shows none of the next",
        fastest(timed(baseline="c", flags=noisy, a=1e3, b=2e3, c=3e3)),
    )
    shared = {"base": ["host_bound"], "a": ["host_bound"]}
    yield ("Flags that the baseline shares with the fastest are those of both",
           fastest(timed(0.005, "base", shared, base=2e3, a=1e3, b=3e3)),
           fastest(timed(0.005, "base", shared, base=1005.0, a=1e3, b=3e3)))  # fmt: skip
    wrong = {name: ["inaccurate"] for name in "abcd"}
    yield ("Disqualified cases with the same flags share them",
           fastest(timed(0.1, "base", wrong, base=9e3, a=1e3, b=2e3, c=3e3, d=4e3)))  # fmt: skip
    lopsided = tables(metrics=[metric_row("impl=a", "time", 62.5, ci_low=56.1, ci_high=80.0)])
    yield "An interval is as wide as its larger side", fastest(only(lopsided))
    doubted = timed(0.1, "b", {"a": ["other_process"]}, a=1e3, b=2e3)
    yield "One shape has a row for each case, and a doubt", every(doubted)
    long = tables(metrics=[metric_row(f"impl=a,n={n}", "time", ns) for n, ns in ((1, 7e6), (2, 3e7), (3, 5e7))])
    yield "Times of the fastest have one unit", fastest(only(long))
    yield "Three tied cases are named", fastest(timed(0.01, a=1e3, b=1e3, c=1e3))
    yield "Of four two are counted", fastest(timed(0.01, a=1e3, b=1e3, c=1e3, d=1e3))
    for name, workload in (
        ("A throttled case, or one whose clock moved, shows the range of its clock", clocks()),
        ("The shortest and longest sample stand beside the median, with the rate of the shortest", ends()),
        ("Tables without the ends of the samples show no column for them", timed(a=4e3)),
        ("The delay of the power is explained where power is shown", only(tables(
            metrics=[metric_row("impl=a", "time", 1e3), metric_row("impl=a", "power", 300.0, "W")]))),
    ):  # fmt: skip
        yield name, cases_section.cases(workload, workload)
    yield "Changes have the classes of the table of shares", switch(other_classes())
    many = switched(add=100.0, gemm=300.0, softmax=200.0, attention_aux=50.0, other=30.0)
    yield "Changes beyond the three largest are counted", switch(many)
    yield "A single change", switch(switched(add=100.0))
    yield "A change of less than 2 % is none", switch(switched(add=19.0))
    yield "Copies and sets without kernels are listed as changes", switch(set_before(0.8))
    yield "A short one is not", switch(set_before(0.1))


def test_times_and_switching_costs_read_as_in_the_golden_file(regenerate):
    check_studies("times.md", studies(), regenerate)


def test_an_interval_is_as_wide_as_its_larger_side():
    assert Measure(62.5, ci_low=56.1, ci_high=80.0).margin == 0.28
    assert Measure(62.5, ci_low=42.5, ci_high=63.0).margin == 0.32 and Measure(62.5).margin is None


def test_the_throttled_cases_of_the_h200_run_show_the_range_of_their_clocks():
    (workload,) = analyze(*example("h200-attention")).workloads
    rows = records(cases_section.make_case_table(workload, workload.cases))
    flagged = [row for row in rows if "throttled" in row["flags"]]
    assert len(flagged) == 7 and all(" to " in row["SM clock MHz"] for row in flagged)


def test_the_size_of_a_shape_is_computed_a_few_times_however_many_shapes_there_are(monkeypatch):
    names = [f"impl={impl},n={n}" for n in range(1, 301) for impl in ("a", "b")]
    found = only(tables(metrics=[metric_row(name, "time", 1e6) for name in names]))
    calls, size = itertools.count(), Shape.size.fget
    monkeypatch.setattr(Shape, "size", property(lambda shape: (next(calls), size(shape))[1]))
    assert 0 < len(selection.shapes(found)) < 300
    assert next(calls) < 10 * 300


def test_of_shapes_with_the_same_work_the_longest_is_the_largest():
    def largest(*cases):
        names = [f"impl={impl},what={what}" for impl, what, _ in cases]
        rows = [metric_row(name, "time", ns) for name, (_, _, ns) in zip(names, cases, strict=True)]
        found = only(tables(metrics=rows + [metric_row(name, "flops", 1e9, "flop") for name in names])).largest
        return found and dict(found.axes)["what"]

    both = [("a", "pack", 5e6), ("b", "pack", 1e6), ("a", "sort", 7e6), ("b", "sort", 1e6)]
    assert largest(*both) == "sort"
    assert largest(*both[:2], ("a", "sort", 5.1e6), both[3]) == "pack", "clocks differ by as much"
    assert largest(*both[:3]) == "pack", "in the other there is nothing to compare"


# --- flags -----------------------------------------------------------------------------------------------------------


def flagged(flag, run=None, **clocks):
    """A flagged case with these metrics in MHz, and one without a flag."""
    cases = [case_row("impl=a", flags=[flag]), case_row("impl=b")]
    rows = [metric_row("impl=a", "time", 1000.0, n=12), metric_row("impl=b", "time", 2000.0, n=40)]
    rows += [metric_row("impl=a", name, 1e6 * mhz, "Hz") for name, mhz in clocks.items()]
    (workload,) = analyze(tables(cases, metrics=rows), run or {}).workloads
    return workload


def test_each_flag_is_explained_in_one_line_as_in_the_golden_file(regenerate):
    gpus = [{"name": name, "max_sm_clock_hz": hz} for name, hz in (("H200", 1980e6), ("L4", 2040e6))]
    jobs = [{"workload": "w", "profiler": "plain", "devices": [{"device": "H200"}]}]
    clocks = {"sm_clock": 1845.0, "sm_clock_min": 1695.0}
    tolerance = {"pipeline": {"workloads": {"w": {"tolerance": {"error_rel_l1": 0.1}}}}}
    kernels = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 5e3)], ranges=[range_row("impl=a", 1, wall_ns=1e5,
                                                                                         busy_ns=5e3)])  # fmt: skip
    (idle,) = analyze(kernels, {}).workloads
    workloads = [
        *(flagged(str(flag)) for flag in Flag), flagged("my_flag"), idle, flagged("unchecked", tolerance),
        flagged("throttled", {"machine": {"gpus": gpus}, "jobs": jobs}, **clocks),
        flagged("throttled", {"machine": {"gpus": gpus}}, **clocks),
        flagged("x", {"pipeline": {"workloads": {"w": {"repeats": 30}}}}),
        *(analyze(*example(name)).workloads[0] for name in ("h200-attention", "scenarios", "context_parallel")),
    ]  # fmt: skip
    lines = [f"- {Markdown().text(text)}" for workload in workloads for text in times.explanations([workload])]
    check_golden("flags.md", "\n".join(lines) + "\n", regenerate)


# --- kernel shares and the cost of switching -------------------------------------------------------------------------


def split(**own):
    """Of kernels, name -> (class, ns), one launch each."""
    tally = KernelTotals()
    for name, (cls, ns) in own.items():
        tally.sums[Kernel(name, cls, "sage2" if cls == "attention" else "", "kernel")] = ClassTotal(1.0, ns)
    found = kernels.break_down("nsys", tally, 1, CaseRange())
    assert found is not None
    return found


def test_another_class_has_a_row_from_5_percent_of_any_call_on():
    few = split(attn=("attention", 960.0), fill=("elementwise", 40.0))
    many = split(attn=("attention", 900.0), fill=("elementwise", 55.0), odd=("other", 45.0))
    rows = {plain(label): [cell.value for cell in cells] for label, cells in
            kernel_share.category_rows([few, many], Unit("ns", 1.0))}  # fmt: skip
    assert rows["elementwise ns/call"] == [40.0, 55.0]
    assert rows["everything else ns/call"] == [None, 45.0]


def test_other_classes_hold_no_kernel_of_a_category():
    found = split(attn=("attention", 500.0), quantise=("attention_aux", 10.0), MeanOps=("reduction", 90.0),
                  sum=("reduction", 100.0), direct_copy_kernel=("copy", 140.0), cat=("copy", 160.0))  # fmt: skip
    assert kernel_share.other_classes([found]) == ["copy", "reduction"]
    assert [found.other_class(name).ns for name in ("copy", "reduction")] == [160.0, 100.0]
    assert found.other_classes_without(["copy", "reduction"]) == ClassTotal()
    assert kernel_share.class_name("copy") == "other copies"


def test_a_direct_copy_stays_a_direct_copy_under_a_users_rule():
    found = split(direct_copy_kernel=("elementwise", 300.0), cat=("copy", 100.0), fill=("elementwise", 600.0))
    assert kernel_share.other_classes([found]) == ["elementwise", "copy"]
    assert found.other_class("elementwise").ns == 600.0 and found.other_classes_without(["copy"]).ns == 600.0


def test_the_h200_run_has_the_memset_of_cudnn_as_a_change():
    data, run = example("h200-attention")
    (workload,) = analyze(data, run).workloads
    own = data.kernels[(data.kernels["profiler"] == "nsys") & (data.kernels["kind"] == "memset")]
    for shape in workload.shapes:
        (swap,) = (swap for swap in shape.switch_costs if swap.variant == "sdpa_cudnn")
        case = next(point for point in shape.cases if point.variant == "sdpa_cudnn")
        rows = own[own["case"] == case.id]
        assert case.breakdown is not None and len(rows)
        ns = rows["total_ns"].sum() / case.breakdown.iterations
        copies = [change for part, change, _ in swap.changes if part == "copies"]
        assert copies == ([pytest.approx(ns)] if ns >= 0.02 * case.breakdown.total.ns else [])


def test_the_ends_of_steps_are_those_of_steady_steps_of_the_profiler_that_times_them():
    data, run = step_study.compiled()
    (workload,) = analyze(data, run).workloads
    rows = [row for row in data.steps.to_dict("records") if (row["profiler"], row["state"]) == ("plain", "steady")]
    for case in workload.cases:
        own = [row["wall_ns"] for row in rows if row["case"] == case.id]
        assert own and case.time and (case.time.lowest, case.time.highest) == (min(own), max(own))


def test_the_ends_of_processes_are_those_of_their_wall_times():
    walls = [metric_row("", "process_wall", ns, subject=f"process {i}") for i, ns in enumerate((4e9, 3e9, 5e9), 1)]
    data = tables([case_row("")], metrics=[metric_row("", "process_wall", 4e9, n=3), *walls])
    (workload,) = analyze(data, {"pipeline": {"workloads": {"w": {"command": ["true"]}}}}).workloads
    time = workload.cases[0].time
    assert time and (time.lowest, time.highest) == (3e9, 5e9)
