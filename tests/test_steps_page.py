"""The page of a program with steps: made-up runs in golden files, and cells and findings of single sections."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsys_exports import Export
from report_study import (
    DATA,
    analyze,
    case_row,
    check_golden,
    kernel_row,
    metric_row,
    range_row,
    read_pages,
    records,
    texts,
    write_page,
)
from step_study import (
    COMPILED,
    ELEMENTWISE,
    GEMM,
    HTOD,
    NCCL,
    compiled,
    step_kernels,
    step_metrics,
    step_row,
    step_tables,
    two_ranks,
)

from profpipe import plugins
from profpipe.analysis.findings import Iteration, WorkloadFindings
from profpipe.analysis.steps import CaseSteps, OutlierCause, StepPart, StepParts
from profpipe.cli import main
from profpipe.commands import ingest
from profpipe.ingest import reader
from profpipe.report import document as doc
from profpipe.report.markdown import Markdown
from profpipe.report.sections import headline, kernel_share, recording, step_times, steps, warnings
from profpipe.results.manifest import Manifest
from profpipe.results.schema import StepState, Tables

TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"

STUDIES = {"compiled": compiled, "two_ranks": two_ranks}


def only(study: tuple[Tables, dict[str, Any]]) -> WorkloadFindings:
    (workload,) = analyze(*study).workloads
    return workload


def steps_of(workload: WorkloadFindings, case: str = "") -> CaseSteps:
    own = workload.steps.of(case)
    assert own is not None
    return own


def parts_of(workload: WorkloadFindings, case: str = "") -> StepParts:
    parts = steps_of(workload, case).parts
    assert parts is not None
    return parts


def tables_of(section: doc.Section) -> dict[str, doc.Table]:
    return {table.id: table for table in section.tables()}


@pytest.mark.parametrize("name", STUDIES)
def test_the_pages_are_the_golden_ones(name: str, tmp_path: Path, regenerate: bool) -> None:
    data, run = STUDIES[name]()
    summary = write_page(analyze(data, run), data, run, tmp_path, TEMPLATE)
    assert len(summary.read_text().splitlines()) <= 150
    check_golden(f"pages-steps-{name}.md", read_pages(tmp_path), regenerate)


# --- where a step goes -----------------------------------------------------------------------------------------------


def test_the_four_parts_of_the_table_and_of_the_bars_add_up_to_the_step() -> None:
    workload = only(compiled())
    section = steps.steps(workload)
    rows = {doc.plain(row[0].text): [cell.value for cell in row[1:]] for row in tables_of(section)["parts"].rows}
    named = ("compute", "exposed copies", "idle")
    for i, ns in enumerate((33.2e6, 26.9e6)):
        assert sum(rows[name][i] or 0.0 for name in named) == rows["step (mean)"][i] == ns
    (chart,) = (block for block in section.blocks if isinstance(block, doc.Chart))
    assert len(chart.panels) == 1
    assert [sum(series.marks[i].y for series in chart.series) for i in (0, 1)] == [33.2e6, 26.9e6]


def test_more_cases_than_fit_side_by_side_have_further_tables_on_the_second_page() -> None:
    names = [f"batch={n}" for n in range(1, 10)]
    rows = [step_row(name, n, (6e6, 0, 0, 2e6, 0, 0)) for name in names for n in range(6)]
    metrics = [row for name in names for row in step_metrics(name, 8e6)]
    tables = tables_of(steps.steps(only((step_tables(metrics=metrics, steps=rows), {}))))
    assert {id: (len(tables[id].columns), tables[id].placement.value) for id in tables if id != "found"} == {
        "parts": (7, "summary"), "parts 2": (4, "details"), "gains": (7, "summary"), "gains 2": (4, "details"),
    }  # fmt: skip


def test_kernels_that_overlap_share_the_time_in_which_the_gpu_computes() -> None:
    """30 ms of kernels ran in 20 ms."""
    kernels, metrics = step_kernels("", {GEMM: (10, 20e6), ELEMENTWISE: (10, 10e6), NCCL: (1, 5e6)})
    rows = [step_row("", step, (20e6, 1e6, 0, 0, 0, 0)) for step in range(6)]
    parts = parts_of(only((step_tables(kernels=kernels, metrics=metrics, steps=rows), {})))
    assert parts.classes == {"gemm": pytest.approx(20e6 * 2 / 3), "elementwise": pytest.approx(20e6 / 3)}


def test_what_could_be_gained_is_amdahls_bound() -> None:
    workload = only(two_ranks())
    (row,) = (r for r in records(tables_of(steps.steps(workload))["parts"]) if "idle**" in r[""])
    # Rank 0 waits for the idle time of rank 1, so that it would not wait without it.
    assert row["speed-up without it, at most"] == "1.27x"
    parts = StepParts(dict.fromkeys(StepPart, 0.0) | {StepPart.COMPUTE: 30.0, StepPart.IDLE_LAUNCH: 70.0})
    assert parts.speedup_without(70.0) == pytest.approx(1 / (1 - 0.7))


@pytest.mark.parametrize(
    ("parts", "idle", "gemm", "bounds"),
    [
        ((9.999e6, 0, 0, 0, 0, 1e3), "1.00x", "", set()),
        ((1e5, 0, 0, 9.9e6, 0, 0), "100x", None, {"without idle time"}),
        ((9.8e6, 0, 0, 0, 0, 2e5), "1.02x", "50.0x", {"without idle time", "if gemm took no time"}),
    ],
    ids=["one class and nothing else", "nearly all idle", "nearly all of one class"],
)
def test_a_class_of_kernels_that_is_the_whole_step_has_no_bound(
    parts: tuple[float, ...], idle: str, gemm: str | None, bounds: set[str]
) -> None:
    kernels, metrics = step_kernels("", {GEMM: (10, parts[0])})
    rows = [step_row("", step, parts) for step in range(6)]
    workload = only((step_tables(kernels=kernels, metrics=[*step_metrics("", 1e7), *metrics], steps=rows), {}))
    found = {row[""]: row["speed-up without it, at most"] for row in records(tables_of(steps.steps(workload))["parts"])}
    assert (found["**idle**"], found.get("compute: gemm")) == (idle, gemm)
    (case,) = workload.cases
    remark = doc.plain(steps.remark(workload, case))
    assert {name for name in ("without idle time", "if gemm took no time") if name in remark} == bounds
    assert ("Upper bounds" in remark) == bool(bounds)


def test_two_cases_have_a_bound_where_one_of_them_is_a_single_class() -> None:
    cases = {"n=1": (9.999e6, 0, 0, 0, 0, 1e3), "n=2": (5e6, 0, 0, 0, 0, 5e6)}
    rows = [step_row(case, step, parts) for case, parts in cases.items() for step in range(6)]
    of_cases = [step_kernels(case, {GEMM: (10, parts[0])}) for case, parts in cases.items()]
    metrics = [row for case, (_, own) in zip(cases, of_cases, strict=True) for row in [*step_metrics(case, 1e7), *own]]
    data = step_tables(kernels=[row for own, _ in of_cases for row in own], metrics=metrics, steps=rows)
    gains = records(tables_of(steps.steps(only((data, {}))))["gains"])
    assert gains == [
        {"": "without idle time", "n 1": "1.00x", "n 2": "2.00x"},
        {"": "if gemm took no time", "n 1": "–", "n 2": "2.00x"},
    ]


def test_idle_time_that_the_profiler_adds_is_no_gain() -> None:
    rows = [step_row("", step, (60.0, 0.0, 0.0, 30.0, 4.0, 6.0)) for step in range(8)]
    metrics = [*step_metrics("", 100.0), *step_metrics("", 72.0, "plain")]
    own = steps_of(only((step_tables(steps=rows, metrics=metrics), {})))
    assert own.parts_without_profiler is not None and own.parts is not None
    assert own.parts_without_profiler.ns == {**own.parts.ns, StepPart.IDLE_LAUNCH: 2.0}
    assert own.parts_without_profiler.wall_ns == 72.0


def test_an_idle_gap_without_a_recorded_cause_is_other_idle_time() -> None:
    rows = [step_row("", n, (6e6, 0, 0, 0, 0, 4e6), idle_launch_ns=None, idle_blocked_ns=None) for n in range(6)]
    parts = parts_of(only((step_tables(steps=rows, metrics=step_metrics("", 10e6)), {})))
    assert (parts.ns[StepPart.IDLE_OTHER], parts.wall_ns) == (4e6, 10e6)


def test_uneven_steps_are_a_warning() -> None:
    """Every other step waits for a data loader."""
    rows = [step_row("", n, (5e6, 0, 0, 80e6 if n % 2 else 4e6, 0, 0)) for n in range(20)]
    spread = metric_row("", "step_spread", 90.0, "%", profiler="nsys")
    workload = only((step_tables(steps=rows, metrics=[*step_metrics("", 47e6), spread]), {}))
    (warning,) = steps.warnings(workload)
    assert (
        Markdown()
        .text(warning)
        .startswith(
            "Steps of `w` are uneven, so their time is the mean and not the median."
            " Half of them take up to 47.0 ms; the longest steady step, 1, takes 85.0 ms (nsys)."
        )
    )


def test_copies_have_their_direction_their_size_and_their_bandwidth() -> None:
    (copy,) = records(tables_of(steps.steps(only(two_ranks())))["copies"])
    assert copy == {
        "copies and sets of a step": "Host-to-Device", "number": "2", "time us": "100.0", "size KiB": "1172",
        "GB/s": "12.0",
    }  # fmt: skip


def test_the_profiler_of_the_parts_says_how_much_longer_it_makes_a_step() -> None:
    metrics = [*step_metrics("", 10e6, "plain"), *step_metrics("", 13e6, "torch")]
    rows = [step_row("", n, (9e6, 0, 0, 4e6, 0, 0), "torch") for n in range(6)]
    kernels, more = step_kernels("", {GEMM: (1, 9e6)}, "torch")
    workload = only((step_tables(kernels=kernels, metrics=metrics + more, steps=rows), {}))
    (context, *_) = texts(steps.steps(workload))
    assert "Under torch a step takes 30.0 % longer than without a profiler" in context


def growing(recorded: range, rule: str = "optimizer", longer: float = 1.1, missing: int = -1) -> WorkloadFindings:
    """A program whose steps grow by 1 ms each. torch records some of them, and makes each ``longer``."""
    of_plain = [n for n in range(100) if n != missing]
    rows = [step_row("", n, (5e6 + n * 1e6, 0, 0, 0, 0, 0), "plain") for n in of_plain]
    rows += [{**step_row("", n, (longer * (5e6 + n * 1e6), 0, 0, 0, 0, 0), "torch"), "rule": rule} for n in recorded]
    times = [*step_metrics("", 54.5e6, "plain"), *step_metrics("", 16.5e6, "torch")]
    return only((step_tables(metrics=[*times, metric_row("", "step_spread", 60.0, "%")], steps=rows), {}))


def test_of_uneven_steps_the_same_ones_give_the_overhead_of_a_profiler() -> None:
    workload = growing(range(5, 15))
    assert dict(steps_of(workload).overheads) == {"torch": pytest.approx(0.1)}
    context = doc.plain(step_times.by_profiler(workload).summary)
    assert context == (
        "Each profiler's own overhead: torch +10.0 %. Of uneven steps, only those with the same numbers are compared:"
        " their mean with the profiler over that without."
    )
    (row,) = records(tables_of(step_times.by_profiler(workload))["step_times"])
    assert row == {"without a profiler ms": "54.5", "torch ms": "16.5 (+10.0 %: 15.9 over 14.5)"}


def test_a_difference_of_uneven_steps_within_its_interval_is_no_overhead() -> None:
    context = doc.plain(step_times.by_profiler(growing(range(5, 15), longer=1.0)).summary)
    assert context.endswith("The 95 % interval of the difference to torch contains 0: no overhead was measured.")


@pytest.mark.parametrize("other", [{"rule": "pattern"}, {"missing": 7}], ids=["by another rule", "not in both"])
def test_uneven_steps_that_are_not_the_same_give_no_overhead(other: dict[str, Any]) -> None:
    workload = growing(range(5, 15), **other)
    own = steps_of(workload)
    assert dict(own.overheads) == {} and own.parts_without_profiler == own.parts
    context = doc.plain(step_times.by_profiler(workload).summary)
    assert context == "Steps are uneven and not the same under each profiler, so what each profiler adds is unknown."


def test_markers_and_launches_that_disagree_on_the_number_of_steps_are_a_warning() -> None:
    data, run = compiled()
    row = metric_row("compile=true", "step_count_by_pattern", 96.0, "1", profiler="nsys")
    changed = step_tables(data.cases, data.kernels, [*data.metrics.to_dict("records"), row], data.steps)
    lines = texts(warnings.warnings(analyze(changed, run), Manifest.parse(run)))
    assert len([line for line in lines if "24. Its launches recur 96 times" in line]) == 1


def test_steps_by_pattern_whose_outliers_take_most_of_the_time_are_doubted(tmp_path: Path) -> None:
    """Three iterations of ten equal layers, each after a pause: two pauses are too few for a stride."""
    export, at = Export(), 0
    for layer in range(30):
        for part in range(2):
            export.launch(at, 2 * layer + part + 1, f"k{part}", lasts=80)
            at += 100
        at += 4000 if layer % 10 == 9 else 0
    export.write_sqlite(tmp_path / "x.sqlite")
    ingest.read_files([tmp_path / "x.sqlite"], tmp_path / "out")
    page = (tmp_path / "out" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "The GPU is idle in outliers for" in page and "Mark the steps." in page


def test_ranges_that_are_opened_for_each_step_are_one_phase() -> None:
    kernels, metrics = step_kernels("", {GEMM: (1, 8e6)}, steps=1)
    rows = [row | {"phase": f"ProfilerStep#{n} > forward"} for n in (101, 102, 103) for row in kernels]
    steps_rows = [step_row("", n, (8e6, 0, 0, 0, 0, 0)) for n in range(6)]
    workload = only((step_tables(kernels=rows, metrics=[*metrics, *step_metrics("", 8e6)], steps=steps_rows), {}))
    assert [(phase.phase, phase.ns) for phase in workload.phases] == [
        ("ProfilerStep#N", 24e6),
        ("ProfilerStep#N > forward", 24e6),
    ]


# --- headline --------------------------------------------------------------------------------------------------------


def test_the_winner_is_named_from_the_times_of_steps_and_not_of_processes() -> None:
    """The compiled program starts much more slowly: its process takes longer."""
    data, run = compiled()
    slow = [metric_row("compile=true", "process_wall", 9e10), metric_row("compile=false", "process_wall", 3e10)]
    metrics = data.metrics[data.metrics["metric"] != "process_wall"].to_dict("records")
    workload = only((step_tables(data.cases, data.kernels, [*metrics, *slow], data.steps), run))
    assert workload.basis is not None and (workload.basis.profiler, workload.basis.quantity) == ("plain", "step")
    assert texts(headline.headline(workload))[0] == (
        "**`compile=true` is fastest: 26.9 ms per step, 1.23x over `compile=false` (baseline).**"
    )


def test_without_a_run_without_profiler_the_steps_of_a_profiler_are_the_times() -> None:
    workload = only(two_ranks())
    assert workload.basis is not None and (workload.basis.profiler, workload.basis.quantity) == ("nsys", "step")
    (answer, *_) = texts(headline.headline(workload))
    assert answer == "**A step takes 16.6 ms (95 % interval ±0.2 %, 22 steady steps, 2 ranks, under nsys).**"


def test_cases_of_which_only_some_have_steps_are_not_compared_by_kernels() -> None:
    data, run = compiled()
    is_eager = data.metrics["case"] == "compile=false"
    without = data.metrics[~(is_eager & data.metrics["metric"].str.startswith("step_"))]
    workload = only((step_tables(data.cases, data.kernels, without, data.steps[data.steps["case"] != "compile=false"]),
                     run))  # fmt: skip
    eager, fast = sorted(workload.cases, key=lambda case: case.id)
    assert (eager.time, eager.breakdown) == (None, None)
    assert [Markdown().text(line) for line in steps.warnings(workload)] == [
        "No steps were found in 1 of 2 cases, which the tables of steps and kernels leave out: `compile=false`."
    ]
    assert fast.time is not None and fast.breakdown is not None and fast.speedup is None


def test_a_process_without_a_rank_is_rank_0() -> None:
    rows = [step_row("", n, 10e6, "plain", rank=None) for n in range(6)]
    workload = only((step_tables([case_row("")], metrics=step_metrics("", 10e6, "plain"), steps=rows), COMPILED))
    assert [rank.rank for rank in steps_of(workload).ranks] == [0]


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_figures_of_a_case_are_means_over_its_ranks() -> None:
    workload = only(two_ranks())
    (case,) = workload.cases
    assert case.breakdown is not None and (case.breakdown.total.ns, case.breakdown.ranks) == (15.2e6, 2)
    assert case.breakdown.category("gemm").calls == 98
    assert parts_of(workload).ns[StepPart.COMMUNICATION] == pytest.approx((4.2e6 + 1.0e6) / 2)
    note, _ = texts(kernel_share.kernel_share(workload))
    assert note == "Kernel times are means over 2 ranks; communication includes waiting for the others."


def test_of_ranks_that_end_a_step_together_the_slowest_is_the_one_that_does_not_wait() -> None:
    assert texts(step_times.ranks(only(two_ranks()))) == [
        "Rank 1 is the slowest in 22 of 22 steps: without exposed communication its step takes 3.20 ms longer than that"
        " of rank 0.",
        "The other waits for rank 1 in 22 of 22 steps.",
    ]


def test_a_rank_with_longer_steps_is_named_with_its_distance_from_the_mean() -> None:
    rows = [step_row("", n, (ns, 0, 0, 0, 0, 0), rank=rank) for n in range(6) for rank, ns in enumerate((9e6, 11e6))]
    workload = only((step_tables(steps=rows, metrics=step_metrics("", 10e6, ranks=(9e6, 11e6))), {}))
    (sentence,) = texts(step_times.ranks(workload))
    assert sentence == "Rank 1 is the slowest: 11.0 ms a step, 10.0 % above the mean of 10.0 ms."


def test_ranks_whose_intervals_overlap_are_not_told_apart() -> None:
    rows = [step_row("", n, (ns, 0, 0, 0, 0, 0), rank=rank) for n in range(6) for rank, ns in enumerate((9e6, 11e6))]
    metrics = [
        metric_row("", "step_time", ns, subject=subject, profiler="nsys", ci_low=8e6, ci_high=12e6, n=6)
        for subject, ns in (("", 10e6), ("rank 0", 9e6), ("rank 1", 11e6))
    ]
    (sentence,) = texts(step_times.ranks(only((step_tables(steps=rows, metrics=metrics), {}))))
    assert sentence == "The ranks are equally fast."


def test_a_rank_that_is_the_slowest_in_half_of_the_steps_is_not_called_so() -> None:
    rows = [
        step_row("", n, (9e6 if n % 2 == rank else 11e6, 0, 0, 0, 0, 0), rank=rank) for n in range(6) for rank in (0, 1)
    ]
    workload = only((step_tables(steps=rows, metrics=step_metrics("", 10e6, ranks=(9e6, 11e6))), {}))
    assert texts(step_times.ranks(workload)) == ["The ranks are equally fast."]


def waiting(
    parts: Callable[[int, int], tuple[float, ...]], plain: float | None = None, steps: int = 12, ranks: int = 2
) -> WorkloadFindings:
    """A program on several ranks, whose ``parts`` of a step in ms are by rank and step."""
    rows = [
        step_row("", n, [1e6 * ms for ms in parts(rank, n)], rank=rank, process=rank)
        for rank in range(ranks)
        for n in range(steps)
    ]
    wall = statistics.mean(row["wall_ns"] for row in rows)
    times = [*step_metrics("", wall, n=steps), *(step_metrics("", 1e6 * plain, "plain") if plain else [])]
    return only((step_tables(metrics=times, steps=rows), {"name": "waits", "is_run": False}))


def first_sentence(workload: WorkloadFindings) -> str:
    return Markdown().text(headline.answer(workload))


def late_in_turn(rank: int, step: int) -> tuple[float, ...]:
    """One rank launches 30 ms late: its GPU is idle before the step, and the other waits in the step."""
    return (20, 2 if step % 2 == rank else 32, 0, 0 if step % 2 == rank else 30, 0, 0)


def test_the_first_sentence_says_that_ranks_are_late_in_turn() -> None:
    workload = waiting(late_in_turn)
    assert first_sentence(workload) == (
        "A step takes 52.0 ms (95 % interval ±0.2 %, 12 steady steps, 2 ranks, under nsys), host-bound:"
        " in each step one rank launches late and the other waits (28.8 % of the step)."
    )
    assert texts(step_times.ranks(workload)) == [
        "The ranks are equally fast.",
        "The other waits for rank 0 in 6 of 12 steps and for rank 1 in 6.",
    ]
    cells = {row[""]: row["speed-up without it, at most"] for row in records(tables_of(steps.steps(workload))["parts"])}
    # Without late launches nothing waits: 22 ms of 53 are left. A faster network removes 2 ms.
    assert cells["**idle**"] == "2.36x" and cells["**exposed communication**"] == ""
    assert cells["exposed communication: transfer, at most"] == "1.04x"


@pytest.mark.parametrize(
    ("late", "why"),
    [
        ((50, 2, 0, 0, 0, 0), "compute differs: rank 2 computes longer and the others wait"),
        ((20, 2, 30, 0, 0, 0), "copies differ: rank 2 copies longer and the others wait"),
        ((20, 2, 0, 30, 0, 0), "host-bound: rank 2 launches late and the others wait"),
        ((20, 2, 0, 0, 30, 0), "host-bound: rank 2 launches late after a synchronising call and the others wait"),
        ((20, 2, 0, 0, 0, 30), "rank 2 is late, for an unknown cause, and the others wait"),
    ],
    ids=["compute", "copies", "launches", "blocked", "unknown"],
)
def test_the_first_sentence_says_why_the_others_wait(late: tuple[float, ...], why: str) -> None:
    workload = waiting(lambda rank, step: late if rank == 2 else (20, 32, 0, 0, 0, 0), ranks=3)
    assert f", {why} (38.5 % of the step)." in first_sentence(workload)


def test_without_the_copies_that_a_rank_is_late_for_the_others_do_not_wait() -> None:
    workload = waiting(lambda rank, step: (20, 2, 30, 0, 0, 0) if rank else (20, 32, 0, 0, 0, 0))
    cells = {row[""]: row["speed-up without it, at most"] for row in records(tables_of(steps.steps(workload))["parts"])}
    assert cells["**exposed copies**"] == "2.36x"
    assert cells["exposed communication: waiting for other ranks"] == "1.41x"


def test_waiting_that_is_less_than_the_transfer_is_not_in_the_first_sentence() -> None:
    workload = waiting(lambda rank, step: (20, 20 if rank else 26, 0, 0, 0, 0 if rank else 6))
    assert first_sentence(workload).endswith("under nsys).")


def test_what_the_profiler_adds_is_taken_from_waiting_as_from_late_launches() -> None:
    own = steps_of(waiting(late_in_turn, plain=42.0))
    parts = own.parts_without_profiler
    assert own.parts is not None and parts is not None and parts.waiting_ns is not None
    # 10 of 52 ms, in proportion to the 15 ms of either.
    assert (own.parts.waiting_ns, own.parts.ns[StepPart.IDLE_LAUNCH]) == (15e6, 15e6)
    assert (parts.waiting_ns, parts.ns[StepPart.IDLE_LAUNCH]) == (10e6, 10e6)
    assert (parts.transfer_ns, parts.wall_ns) == (2e6, 42e6)


def test_shares_of_a_step_under_a_profiler_say_so_where_its_overhead_is_in_no_part() -> None:
    workload = waiting(late_in_turn, plain=15.0)
    sentence = first_sentence(workload)
    assert sentence.startswith("A step takes 15.0 ms (")
    assert sentence.endswith("the other waits (28.8 % of the 52.0 ms of a mean step under nsys).")
    remark = Markdown().text(steps.remark(workload, workload.cases[0]))
    assert remark.startswith(
        "Of the 52.0 ms of a mean step under nsys, 38.5 % is compute, 28.8 % waiting for other ranks, "
    )


def test_steps_without_a_profiler_stand_beside_a_recording_that_lost_records() -> None:
    """The page does not say that no step is known, for plain has steps."""
    rows = [{**step_row("", n, (5e6, 0, 0, 0, 0, 0)), "profiler": "plain"} for n in range(9)]
    time = metric_row("", "step_time", 5e6, n=9, profiler="plain")
    lost = metric_row("", "check_lost_kernels", 6, subject="process 1", n=38, profiler="nsys")
    remarks = texts(headline.headline(only((step_tables(steps=rows, metrics=[time, lost]), {}))))
    assert remarks[0].startswith("**A step takes 5.00 ms (9 steady steps")
    assert remarks[2] == (
        "Process 1 made 38 launches, and 6 of them have no kernel in the file: records were lost. "
        "The recording of nsys gives no figure of a step."
    )


def test_few_steady_steps_stand_beside_the_number_of_all() -> None:
    rows = [step_row("", n, (5e7, 0, 0, 0, 0, 0), state="steady" if n else "warmup") for n in range(3)]
    time = metric_row("", "step_time", 5e7, n=2, profiler="nsys")
    workload = only((step_tables(metrics=[time], steps=rows), {"is_run": False}))
    assert first_sentence(workload) == "A step takes 50.0 ms (2 of 3 steps, under nsys)."


def test_gpus_of_one_process_are_no_ranks() -> None:
    rows = [
        step_row("", n, (1e6, 0, 0, 0, 0, 1.7e6 - 1e5 * device), device=device) for device in range(4) for n in range(8)
    ]
    workload = only((step_tables(metrics=step_metrics("", 2.7e6, n=8), steps=rows), {"is_run": False}))
    assert first_sentence(workload).endswith("8 steady steps, 4 GPUs of one process, under nsys).")
    section = step_times.ranks(workload)
    rows_shown = records(tables_of(section)["ranks"])
    assert [row["GPU"] for row in rows_shown] == [*"0123"] and "rank" not in rows_shown[0]
    summary = Markdown().text(section.summary)
    assert doc.plain(section.title) == "GPUs" and not [
        block for block in section.blocks if isinstance(block, doc.Bullets)
    ]
    assert "GPUs of one process share its steps." in summary and "rank" not in summary


# --- two recorded ranks with a known lateness ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def late_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CaseSteps, list[list[float]]]]:
    """FullyShardedDataParallel on two H100s, recorded by nsys 2025.5. One rank in turn slept 30 ms before its step.

    The values are the steps and by rank and step the seconds that it slept. Of the recordings nine steps are left, with
    their kernels, copies, launches and calls that wait.
    """
    found, folder = {}, tmp_path_factory.mktemp("late")
    for name in ("fsdp1_late", "fsdp_late"):
        path = folder / f"{name}.sqlite"
        path.write_bytes(gzip.decompress((DATA / "steps_vary" / f"{name}.sqlite.gz").read_bytes()))
        (read,) = reader.ingest(reader.sources_of_paths([path]))
        assert isinstance(read, reader.Read)
        (workload,) = analyze(reader.combine([read.tables]), {"is_run": False}).workloads
        late = json.loads((DATA / "steps_vary" / f"{name}.late.json").read_text())
        found[name] = (workload.steps.cases[0], late)
    return found


def waits_of(own: CaseSteps) -> dict[int, dict[int, float]]:
    """By step and rank, how long the rank waited in ms."""
    waits = own.rows.pivot(index="step", columns="rank", values="waiting_ns").dropna() / 1e6
    return {int(step): row.to_dict() for step, row in waits.iterrows()}


def test_the_rank_that_is_waited_for_is_the_one_that_slept(
    late_ranks: dict[str, tuple[CaseSteps, list[list[float]]]],
) -> None:
    own, late = late_ranks["fsdp1_late"]
    waits = waits_of(own)
    assert len(waits) >= 6
    for step, by_rank in waits.items():
        slept = 0 if late[0][step] else 1
        # The host of the other one had time to launch ahead.
        assert by_rank[slept] == 0 and 30 < by_rank[1 - slept] < 50
    assert {rank.rank: rank.waited_for for rank in own.ranks} == {
        rank: sum(late[rank][step] > 0 for step in waits) for rank in (0, 1)
    }
    assert own.wait_cause is StepPart.IDLE_LAUNCH
    assert steps.waiting(own)[0] == "host-bound: in each step one rank launches late and the other waits"


def test_the_other_rank_waits_longer_by_the_time_that_a_rank_slept(
    late_ranks: dict[str, tuple[CaseSteps, list[list[float]]]],
) -> None:
    """The host of rank 1 is the later one in each step, by 30 ms more in those in which it slept."""
    own, late = late_ranks["fsdp_late"]
    waits = waits_of(own)
    assert all(by_rank[1] == 0 for by_rank in waits.values())
    slept, awake = (
        statistics.median(by_rank[0] for step, by_rank in waits.items() if (late[1][step] > 0) == is_late)
        for is_late in (True, False)
    )
    assert slept - awake == pytest.approx(30, abs=3)
    assert steps.waiting(own)[0] == "host-bound: rank 1 launches late and the other waits"


def test_kernels_of_a_command_without_steps_are_means_over_its_processes() -> None:
    """A process that touches the GPU of another one for a moment is no further rank."""
    rows = [kernel_row("", GEMM, 100, 155e6, kernel_class="gemm", process=p, device=d) for p, d in ((1, 0), (2, 1))]
    stray = kernel_row("", ELEMENTWISE, 1, 2e3, kernel_class="elementwise", process=2, device=0)
    run = {"pipeline": {"workloads": {"w": {"command": ["torchrun", "train.py"]}}}}
    workload = only((step_tables([case_row("", "nsys")], [*rows, stray]), run))
    (case,) = workload.cases
    assert workload.iteration is Iteration.PROCESS
    assert case.breakdown is not None and case.breakdown.ranks == 2
    assert (case.breakdown.category("gemm").ns, case.breakdown.category("gemm").calls) == (155e6, 100)
    assert workload.top[0].ns == 155e6


# --- outliers, profilers, every step ---------------------------------------------------------------------------------


def test_an_outlier_is_listed_with_what_is_in_it() -> None:
    workload = only(compiled())
    (outlier,) = steps_of(workload, "compile=false").outliers
    assert (outlier.step, outlier.causes) == (21, (OutlierCause.IDLE_LAUNCH,))
    assert outlier.wall_ns - outlier.median_ns == 2e8
    sentences = texts(step_times.outliers(workload))
    why = "200.0 ms more idle time because the host launched late."
    assert f"`compile=false`: step 21 took 233.2 ms, the median 33.2 ms: {why}" in sentences


def test_an_outlier_of_several_ranks_is_one_step_and_stands_at_the_ranks_in_which_it_differs() -> None:
    """The mean over the ranks decides. In step 8 rank 1 took as long as in other steps."""
    rows = [
        step_row("", n, (8e7 if n % 2 == rank else 3e7, 0, 0, 0, 0, 0), rank=rank) for n in range(8) for rank in (0, 1)
    ]
    rows += [step_row("", 8, (ns, 0, 0, 0, 0, 0), state="outlier", rank=rank) for rank, ns in enumerate((2e8, 3e7))]
    workload = only((step_tables(metrics=step_metrics("", 5.5e7, n=8), steps=rows), {}))
    section = step_times.outliers(workload)
    assert Markdown().text(section.summary).startswith("1 step beyond three median absolute deviations.")
    assert [(each.rank, each.step) for each in steps_of(workload).outliers] == [(0, 8)]


def test_each_profiler_stands_beside_the_time_without_one() -> None:
    section = step_times.by_profiler(only(compiled()))
    assert (
        section.summary and doc.plain(section.summary) == "Each profiler's own overhead: nsys +0.8 % and torch +4.1 %."
    )
    first = records(tables_of(section)["step_times"])[0]
    assert first == {
        "case": "`compile=true`", "without a profiler ms": "26.9", "nsys ms": "27.1 (+0.8 %)",
        "torch ms": "28.0 (+4.1 %)",
    }  # fmt: skip


def test_every_step_is_listed_with_its_state_on_the_second_page() -> None:
    section = step_times.every_step(only(two_ranks()))
    (table,) = tables_of(section).values()
    assert table.placement is doc.Placement.DETAILS and len(table.rows) == 48
    states = [doc.plain(row[2].text) for row in table.rows[:24]]
    assert states == [StepState.WARMUP, *["steady"] * 20, "outlier", "steady", "steady"]


def test_timing_without_a_profiler_alone_gives_times_and_no_parts() -> None:
    rows = [step_row("", n, 10e6, "plain") for n in range(6)]
    workload = only((step_tables([case_row("")], metrics=step_metrics("", 10e6, "plain"), steps=rows), COMPILED))
    assert steps_of(workload).parts is None and not steps.steps(workload)
    answer, rate = texts(headline.headline(workload))
    assert answer == "**A step takes 10.0 ms (95 % interval ±0.2 %, 22 steady steps).**"
    assert rate == "819200 tokens per second."


# --- no steps --------------------------------------------------------------------------------------------------------


def captured(*ranks: tuple[float, ...]) -> list[dict[str, Any]]:
    """The parts of a recording without steps, by rank."""
    return [
        metric_row("", f"capture_{part.value}", ns, subject=f"rank {rank}", profiler="nsys")
        for rank, own in enumerate(ranks)
        for part, ns in zip(StepPart, own, strict=True)
    ]


def without_steps(*ranks: tuple[float, ...]) -> WorkloadFindings:
    kernels, _ = step_kernels("", {ELEMENTWISE: (5, 89e6), HTOD: (10, 285e6)}, steps=1)
    return only((step_tables(kernels=kernels, metrics=captured(*ranks)), {}))


def test_a_recording_without_steps_shows_its_idle_time_and_its_copies() -> None:
    workload = without_steps((89e6, 0, 285e6, 0, 726e6, 0))
    assert texts(headline.headline(workload)) == [
        "**In 1100 ms the GPU was idle 66.0 % (after synchronising calls of the host, with nothing queued), "
        "copied while no kernel ran 25.9 % and computed 8.1 % of the time.**",
        "5 kernel launches, 89.0 ms in all: elementwise 100 % of it.",
        "Copies and sets took 285.0 ms beside 89.0 ms of kernels.",
    ]
    section = recording.recording(workload)
    (reason,) = texts(section)
    assert reason.startswith("No steps were found: no marker and no range of the program or a framework says where")
    assert records(tables_of(section)["recording"]) == [{
        "recorded ms": "1100", "compute ms": "89.0 (8.1 %)", "exposed copies ms": "285.0 (25.9 %)",
        "idle: after a synchronising call ms": "726.0 (66.0 %)",
    }]  # fmt: skip
    assert records(tables_of(section)["copies"]) == [
        {"copies and sets": "Host-to-Device", "number": "10", "time ms": "285.0"}
    ]


def test_the_recording_of_several_gpus_has_a_row_for_each() -> None:
    table = tables_of(recording.recording(without_steps((8e6, 0, 0, 0, 0, 2e6), (1e6, 0, 0, 9e6, 0, 0))))["recording"]
    assert [row["rank"] for row in records(table)] == ["0", "1"]
    assert [row["idle: the host launched late ms"] for row in records(table)] == ["0 (0 %)", "9.00 (90.0 %)"]


def test_a_file_with_sums_alone_says_that_neither_steps_nor_idle_time_can_be_found() -> None:
    (reason,) = texts(recording.recording(without_steps()))
    assert (
        reason == "No steps: the file does not say when each launch ran, so neither steps nor idle time can be found."
    )


def test_measured_calls_of_a_script_have_no_such_section() -> None:
    data, run = compiled()
    assert not recording.recording(only((data, run)))
    kernels = [kernel_row("impl=a", GEMM, 30, 3e6)]
    assert not recording.recording(only((step_tables(kernels=kernels, ranges=[range_row("impl=a", 30)]), {})))


# --- recordings ------------------------------------------------------------------------------------------------------


def ingested(recording_: Path, folder: Path) -> tuple[list[str], str]:
    """Run `profpipe ingest` on a recording; return the lines of SUMMARY.md, and both pages."""
    plain_file = folder / recording_.name.removesuffix(".gz")
    with gzip.open(recording_) as packed, plain_file.open("wb") as file:
        shutil.copyfileobj(packed, file)
    assert main(["ingest", str(plain_file), "--out", str(folder / "out")]) == 0
    return (folder / "out" / "SUMMARY.md").read_text().splitlines(), read_pages(folder / "out")


def cell(lines: list[str], label: str, column: int = 1) -> float:
    """Return the number in the first row that begins with ``label``."""
    row = next(line for line in lines if line.startswith(f"| {label} |"))
    return float(row.split("|")[1 + column].replace("*", "").split()[0])


@pytest.mark.parametrize("kind", ["train", "evals", "ddp", "graphs", "accumulate"])
def test_the_page_of_a_loop_has_its_true_step_time_and_kernels(kind: str, tmp_path: Path, shared_data: Path) -> None:
    """Of two ranks, the figures are means: nothing on the page is their sum."""
    truth = json.loads((shared_data / "steps" / "truth.json").read_text())[kind]
    lines, page = ingested(shared_data / "steps" / f"{kind}.sqlite.gz", tmp_path)
    found = re.match(r"\*\*A step takes ([\d.]+) (us|ms) ", lines[2])
    assert found and len(lines) <= 150
    step_ns = float(found[1]) * {"us": 1e3, "ms": 1e6}[found[2]]
    assert step_ns == pytest.approx(statistics.mean(own["median_period_ns"] for own in truth), rel=0.03)
    assert cell(lines, "launches") == pytest.approx(statistics.mean(own["median_launches"] for own in truth), abs=0.5)
    total, unit = next(
        (float(m[2]), {"us": 1e3, "ms": 1e6}[m[1]])
        for line in lines
        if (m := re.match(r"\| \*\*Total (us|ms)/step\*\* \| \*\*([\d.]+)", line))
    )
    if kind == "ddp":
        # Its kernels wait for each other, so that their means over steps are far from their medians.
        kernels = [statistics.mean(own["kernel_ns"][3:]) for own in truth]
        assert total * unit == pytest.approx(statistics.mean(kernels), rel=0.1)
        assert "Kernel times are means over 2 ranks" in page
    else:
        assert total * unit == pytest.approx(truth[0]["median_kernel_ns"], rel=0.01)
    parts = [cell(lines, f"**{name}**") for name in ("compute", "exposed copies", "idle")]
    parts += [cell(lines, "**exposed communication**")] if kind == "ddp" else []
    assert sum(parts) == pytest.approx(cell(lines, "**step (mean)**"), rel=0.01)


def test_the_page_of_a_loop_counts_evaluations_and_names_the_pause(tmp_path: Path) -> None:
    lines, page = ingested(DATA / "nsys-2025.3.1" / "loops" / "evals.sqlite.gz", tmp_path)
    assert any(
        line.startswith("- Step 12 took 209.0 ms, the median 8.85 ms: 200.2 ms more idle time") for line in lines
    )
    assert page.count("| between steps |") == 4


def test_a_recording_in_which_nothing_recurs_shows_where_its_time_goes(tmp_path: Path) -> None:
    """Two processes, one with a GPU that the host keeps waiting, one with a copy."""
    export = Export()
    for n, start in enumerate((0, 1000, 3000)):
        export.launch(start, n, name=f"kernel {n}", lasts=100)
    export.launch(500, 9, name="kernel 9", pid=2, lasts=300)
    path = export.write_sqlite(tmp_path / "x.sqlite")
    assert main(["ingest", str(path), "--out", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "SUMMARY.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| rank", "| 0 |", "| 1 |"))]
    assert rows == [
        "| rank | recorded us | compute us | idle: the host launched late us |",
        "| 0 | 3.10 | 0.3 (9.7 %) | 2.80 (90.3 %) |",
        "| 1 | 0.3 | 0.3 (100 %) | 0 (0 %) |",
    ]


# --- a run -----------------------------------------------------------------------------------------------------------

LOOP = """
import sys, time
from profpipe import step
for _ in range(20):
    time.sleep(float(sys.argv[1]))
    step()
"""

LOOPS = """
version: 1
workloads:
  loop:
    command: [PYTHON, loop.py, "{seconds}"]
    profilers: [plain]
    matrix: {seconds: [0.01, 0.02]}
    baseline: {seconds: 0.02}
    items_per_step: 10
    item_name: words
"""


def test_a_run_names_the_program_with_the_shorter_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "pipeline.yaml").write_text(LOOPS.replace("PYTHON", sys.executable))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "pipeline.yaml", "--out", "out", "--quiet"]) == 0
    lines = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text().splitlines()
    answer = re.match(r"\*\*`seconds=0.01` is fastest: ([\d.]+) ms per step, ([\d.]+)x over `seconds=0.02`", lines[2])
    assert answer and float(answer[1]) == pytest.approx(10, rel=0.3) and float(answer[2]) > 1.3
    assert cell(lines, "`seconds=0.01`", 3) == pytest.approx(10 / (float(answer[1]) / 1e3), rel=0.01)
    assert any("A step begins at the program's own marker." in line for line in lines)
