"""The tables of SUMMARY.md, each from a few numbers that are made up."""

from __future__ import annotations

from typing import Any

import pytest
from report_study import ATTENTION, FLUSH, case_row, example, kernel_row, metric_row, range_row, tables

from profpipe.analysis import shares
from profpipe.analysis.tallies import Kernel, OwnRange, Tally
from profpipe.analyze import analyze
from profpipe.findings import Measure, Part, Split, WorkloadFindings
from profpipe.page import marks, remainder, sheets
from profpipe.page.markdown import Sheet
from profpipe.page.quantities import Unit
from profpipe.tables import Tables


def only(data: Tables, baseline: str) -> WorkloadFindings:
    run: dict[str, Any] = {"pipeline": {"workloads": {"w": {"baseline": {"impl": baseline}}}}}
    (workload,) = analyze(data, run).workloads
    return workload


def test_a_win_of_the_baseline_shows_the_marks_of_the_next() -> None:
    cases = [case_row("impl=a"), case_row("impl=b", flags=["noisy", "synchronises"]), case_row("impl=c")]
    rows = [metric_row(f"impl={impl}", "time", ns, ci_low=0.9 * ns, ci_high=1.1 * ns)
            for impl, ns in (("a", 1000.0), ("b", 2000.0), ("c", 3000.0))]  # fmt: skip
    data = tables(cases, metrics=rows)
    assert sheets.answers(only(data, "a")).rows[0][-1] == "`b`: **noisy**, **synchronises**"
    assert "marks" not in sheets.answers(only(data, "c")).head


def test_marks_that_the_baseline_shares_with_the_fastest_are_those_of_both() -> None:
    def row(**times: float) -> list[str]:
        cases = [case_row(f"impl={impl}", flags=["host_bound"] if impl in ("base", "a") else []) for impl in times]
        rows = [metric_row(f"impl={impl}", "time", ns, ci_low=ns - 10, ci_high=ns + 10) for impl, ns in times.items()]
        return sheets.answers(only(tables(cases, metrics=rows), "base")).rows[0]

    assert row(base=2000.0, a=1000.0, b=3000.0)[-1] == "both: **host_bound**"
    beside = row(base=1005.0, a=1000.0, b=3000.0)
    assert (beside[0], beside[-1]) == ("level: `a` and `base`", "both: **host_bound**")
    beside = row(base=2000.0, a=1000.0, b=1005.0)
    assert (beside[0], beside[-1]) == ("level: `a` and `b`", "**host_bound**; baseline: **host_bound**")


def test_those_that_take_no_part_for_the_same_marks_share_them() -> None:
    times = {"base": 9000.0, **{name: 1000.0 * n for n, name in enumerate("abcd", start=1)}}
    cases = [case_row(f"impl={impl}", flags=["inaccurate"] if impl != "base" else []) for impl in times]
    data = tables(cases, metrics=[metric_row(f"impl={impl}", "time", ns) for impl, ns in times.items()])
    assert sheets.answers(only(data, "base")).rows[0][-1] == "`a`, `b` and 2 more: **inaccurate**"


def test_an_interval_is_as_wide_as_its_larger_side() -> None:
    lopsided = Measure(62.5, ci_low=56.1, ci_high=80.0)
    assert lopsided.margin == 0.28 and Measure(62.5, ci_low=42.5, ci_high=63.0).margin == 0.32
    assert Measure(62.5).margin is None
    data = tables(metrics=[metric_row("impl=a", "time", 62.5, ci_low=56.1, ci_high=80.0)])
    assert sheets.answers(only(data, "a")).rows[0][2] == "±28.0 %"


def test_the_interval_stands_behind_the_time_that_it_belongs_to() -> None:
    """Behind the speed-up it would be read as that of the speed-up."""
    data = tables(metrics=[metric_row(f"impl={impl}", "time", ns, ci_low=0.9 * ns, ci_high=1.1 * ns)
                           for impl, ns in (("a", 1000.0), ("base", 2000.0))])  # fmt: skip
    sheet = sheets.answers(only(data, "base"))
    assert sheet.head == ["fastest", "time us", "95 % interval", "over baseline"]
    assert sheet.rows == [["`a`", "1.00", "±10.0 %", "2.00x"]]


def of_cases(workload: WorkloadFindings) -> dict[str, dict[str, str]]:
    """The table of every number by case, by what its first column names."""
    sheet = sheets.cases(workload, workload.points)
    return {row[0]: dict(zip(sheet.head, row, strict=True)) for row in sheet.rows}


def test_a_throttled_case_shows_the_clocks_that_it_is_marked_for() -> None:
    clocks = {"a": (1.938e9, 1.98e9, 1.98e9), "b": (1.938e9, 1.98e9, 1.98e9), "c": (1.8e9, 1.9e9, 1.98e9)}
    clocks["e"] = (1.95e9, 1.95e9, 1.95e9)
    rows = [metric_row(f"impl={impl}", "time", 1000.0) for impl in (*clocks, "d")]
    rows += [metric_row(f"impl={impl}", name, hz, "Hz") for impl, own in clocks.items()
             for name, hz in zip(("sm_clock_min", "sm_clock", "sm_clock_max"), own, strict=True)]  # fmt: skip
    rows.append(metric_row("impl=d", "sm_clock", 1.95e9, "Hz"))
    cases = [case_row(f"impl={impl}", flags=["throttled"] if impl in "ade" else []) for impl in (*clocks, "d")]
    found = {name: row["SM MHz"] for name, row in of_cases(only(tables(cases, metrics=rows), "a")).items()}
    assert found == {
        "`a` (baseline)": "1980 (1938 to 1980)",
        "`b`": "1980",
        "`c`": "1900 (1800 to 1980)",
        "`d`": "1950",
        "`e`": "1950",
    }


def test_the_throttled_cases_of_the_h200_run_show_how_far_the_clock_went() -> None:
    (workload,) = analyze(*example("h200-attention")).workloads
    sheet = sheets.cases(workload, workload.points)
    clock, marked = sheet.head.index("SM MHz"), [row for row in sheet.rows if "throttled" in row[-1]]
    assert len(marked) == 7 and all(" to " in row[clock] for row in marked)


def test_that_power_lags_is_said_where_it_is_shown() -> None:
    time = [metric_row("impl=a", "time", 1000.0)]
    with_power, without = (only(tables(metrics=rows), "a") for rows in
                           ([*time, metric_row("impl=a", "power", 300.0, "W")], time))  # fmt: skip
    said = sheets.said_of_cases([sheets.cases(with_power, with_power.points)])
    assert said.startswith("W: what the driver tells lags by 100 ms")
    assert sheets.said_of_cases([sheets.cases(without, without.points)]) == ""


def test_of_shapes_with_as_much_work_the_one_that_takes_longest_is_the_largest() -> None:
    def largest(*cases: tuple[str, str, float]) -> object:
        names = [f"impl={impl},what={what}" for impl, what, _ in cases]
        rows = [metric_row(name, "time", ns) for name, (_, _, ns) in zip(names, cases, strict=True)]
        found = only(tables(metrics=rows + [metric_row(name, "flops", 1e9, "flop") for name in names]), "a").largest
        return found and dict(found.axes)["what"]

    both = [("a", "backward", 5e6), ("b", "backward", 1e6), ("a", "step", 7e6), ("b", "step", 1e6)]
    assert largest(*both) == "step"
    assert largest(*both[:2], ("a", "step", 5.1e6), both[3]) == "backward", "clocks differ by as much"
    assert largest(*both[:3]) == "backward", "in the other there is nothing to compare"


def test_times_of_the_fastest_have_one_unit() -> None:
    data = tables(metrics=[metric_row(f"impl=a,n={n}", "time", ns) for n, ns in ((1, 7e6), (2, 3e7), (3, 5e7))])
    sheet = sheets.answers(only(data, "a"))
    assert sheet.head[2] == "time ms" and [row[2] for row in sheet.rows] == ["7.00", "30.0", "50.0"]


def test_all_that_are_level_are_named_or_counted() -> None:
    rows = [metric_row(f"impl={impl}", "time", 1e3, ci_low=990.0, ci_high=1010.0) for impl in "abcd"]
    assert sheets.answers(only(tables(metrics=rows[:3]), "a")).rows[0][0] == "level: `a`, `b` and `c`"
    assert sheets.answers(only(tables(metrics=rows), "a")).rows[0][0] == "level: `a`, `b` and 2 more"


def test_a_case_that_waited_for_another_process_says_what_that_is() -> None:
    data = tables([case_row("impl=a", flags=["waited"])], metrics=[metric_row("impl=a", "time", 1000.0)])
    (said,) = marks.explained(only(data, "a"))
    assert said.startswith(
        "**waited** (every case): the samples are more than 10 % longer than an iteration of the loop"
    )


def test_times_that_are_shorter_than_a_loop_takes_are_said_to_be_of_calls_queued_ahead() -> None:
    data = tables([case_row("impl=a", flags=["host_bound"])], metrics=[metric_row("impl=a", "time", 1000.0)])
    (said,) = marks.explained(only(data, "a"))
    assert "Times are of calls queued ahead; in a loop they go at the host's pace" in said


def test_kernels_are_said_to_be_compared_below_only_where_some_were_captured() -> None:
    cases = [case_row(f"impl={impl}", flags=["host_bound"]) for impl in "ab"]
    rows = [metric_row("impl=a", "time", 1000.0), metric_row("impl=b", "time", 2000.0)]
    captured = tables(cases, [kernel_row("impl=a", ATTENTION, 10, 5e3)], [range_row("impl=a", 10)], rows)
    (said,) = marks.explained(only(captured, "a"))
    assert said.endswith("What is compared here are calls; kernels are compared by their own times below.")
    (said,) = marks.explained(only(tables(cases, metrics=rows), "a"))
    assert said.endswith("What is compared here are calls.")


# --- what a call does beside its parts -------------------------------------------------------------------------------


def split(**own: tuple[str, float]) -> Split:
    """Of kernels, name -> (class, ns), one launch each."""
    tally = Tally()
    for name, (cls, ns) in own.items():
        tally.add(Kernel(name, cls, "sage2" if cls == "attention" else "", "kernel"), "", 1.0, ns, 0.0)
    found = shares.split("nsys", tally, 1, OwnRange())
    assert found is not None
    return found


def test_a_class_beside_the_parts_has_a_row_from_5_percent_of_any_call_on() -> None:
    few = split(attn=("attention", 960.0), fill=("elementwise", 40.0))
    many = split(attn=("attention", 900.0), fill=("elementwise", 55.0), odd=("other", 45.0))
    rows = {first: numbers for first, *numbers in sheets._share_rows([few, many], Unit("ns", 1.0), "ns/call")}
    assert rows["elementwise ns/call"] == ["40.0", "55.0"]
    assert rows["everything else ns/call"] == ["", "45.0"]


def test_classes_beside_the_parts_hold_no_kernel_that_is_in_a_part() -> None:
    found = split(attn=("attention", 500.0), quantise=("attention_aux", 10.0), MeanOps=("reduction", 90.0),
                  sum=("reduction", 100.0), direct_copy_kernel=("copy", 140.0), cat=("copy", 160.0))  # fmt: skip
    assert remainder.classes([found]) == ["copy", "reduction"]
    assert [remainder.of(found, name).ns for name in ("copy", "reduction")] == [160.0, 100.0]
    assert remainder.left(found, ["copy", "reduction"]) == Part()
    assert remainder.named("copy") == "other copies"


def test_a_direct_copy_that_a_rule_of_the_users_own_classes_otherwise_stays_out_of_the_rest() -> None:
    found = split(direct_copy_kernel=("elementwise", 300.0), cat=("copy", 100.0), fill=("elementwise", 600.0))
    assert remainder.classes([found]) == ["elementwise", "copy"]
    assert remainder.of(found, "elementwise").ns == 600.0 and remainder.left(found, ["copy"]).ns == 600.0


def test_what_a_swap_changes_is_told_by_the_classes_of_the_table_of_shares() -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 10, 10e6), kernel_row("impl=b", ATTENTION, 10, 5e6)]
    kernels += [kernel_row("impl=b", FLUSH, 30, 4e6), kernel_row("impl=b", "cat", 20, 3e6, kernel_class="copy")]
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    (shape,) = only(tables(kernels=kernels, ranges=ranges), "a").shapes
    assert sheets.swaps(shape).rows[0][-1] == (
        "elementwise +400.0 us (3 more launches), other copies +300.0 us (2 more launches)"
    )


def swapped(**own: float) -> Sheet:
    """An attention kernel of 1000 us in place of the same and of kernels of some us, class -> us."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e7), kernel_row("impl=b", ATTENTION, 10, 1e7)]
    kernels += [kernel_row("impl=b", name, 10, 1e4 * us, kernel_class=name) for name, us in own.items()]
    data = tables(kernels=kernels, ranges=[range_row(f"impl={impl}", 10) for impl in "ab"])
    return sheets.swaps(only(data, "a").shapes[0])


def test_what_a_swap_changes_beyond_the_three_largest_is_counted() -> None:
    many = swapped(add=100.0, gemm=300.0, softmax=200.0, attention_aux=50.0, other=30.0)
    (row,) = many.rows
    assert row[-1] == (
        "gemm +300.0 us (1 more launch), softmax +200.0 us (1 more launch), add +100.0 us (1 more launch) and 2 smaller"
    )
    assert "differences of 2 % of the shorter of the two calls and more, the 3 largest by name." in sheets.changes_said(
        [many]
    )
    assert swapped(add=100.0).rows[0][-1] == "add +100.0 us (1 more launch)"
    nothing = swapped(add=19.0)
    assert "what else changes, per call" not in nothing.head and not sheets.changes_said([nothing])


def set_before(us: float) -> WorkloadFindings:
    """A kernel of 10 us in place of one of 15, and a memset before it."""
    kernels = [kernel_row("impl=a", ATTENTION, 30, 450_000.0), kernel_row("impl=b", ATTENTION, 30, 300_000.0)]
    kernels.append(kernel_row("impl=b", "[CUDA memset]", 30, 30_000.0 * us, kind="memset"))
    return only(tables(kernels=kernels, ranges=[range_row(f"impl={impl}", 30) for impl in "ab"]), "a")


def test_copies_and_sets_that_are_no_kernels_are_told_beside_them() -> None:
    sheet = sheets.swaps(set_before(0.8).shapes[0])
    assert sheet.rows[0][3] == "1.50x" and sheet.rows[0][-1] == "copies and sets (no kernels) +800.0 ns (1 more launch)"
    said = sheets.changes_said([sheet])
    assert "Copies and sets (no kernels) are memcpy and memset, which are not among all kernels of a call." in said
    assert "what else changes, per call" not in sheets.swaps(set_before(0.1).shapes[0]).head
    assert "memset" not in sheets.changes_said([swapped(add=100.0)])


def test_the_real_run_tells_the_set_of_cudnn() -> None:
    data, run = example("h200-attention")
    (workload,) = analyze(data, run).workloads
    own = data.kernels[(data.kernels["profiler"] == "nsys") & (data.kernels["kind"] == "memset")]
    for shape in workload.shapes:
        (swap,) = (swap for swap in shape.swaps if swap.variant == "sdpa_cudnn")
        case = next(point for point in shape.points if point.variant == "sdpa_cudnn")
        rows = own[own["case"] == case.id]
        assert case.split is not None and len(rows)
        ns = rows["total_ns"].sum() / case.split.iterations
        told = [change for part, change, _ in swap.changes if part == "copies"]
        assert told == ([pytest.approx(ns)] if ns >= 0.02 * case.split.total.ns else [])
