"""`tables:` of a pipeline file -> tables of the report. Of the example every number is computed again from its CSVs."""

from __future__ import annotations

import cProfile
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import report_study
import yaml
from report_study import ADD, ATTENTION, COPY, analyze, case_row, kernel_row, metric_row, range_row, tables, write_page

from profpipe import plugins
from profpipe.analysis.findings.workloads import Study
from profpipe.config.kernel_categories import OTHER_CLASSES
from profpipe.config.models import Table
from profpipe.report.document import Details, Paragraph, plain
from profpipe.report.markdown import Markdown
from profpipe.report.sections.studies import study_table
from profpipe.report.text import write_section
from profpipe.results.schema import Tables

EXAMPLE = Path(__file__).parents[1] / "examples" / "h200-attention"
TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"


def asking(run: dict[str, Any], *wanted: dict[str, Any]) -> dict[str, Any]:
    """``run`` as it would be with these `tables` in its pipeline file."""
    entries = [Table.model_validate({"title": "A table", **entry}).model_dump(mode="json") for entry in wanted]
    return {**run, "pipeline": {**run.get("pipeline", {}), "tables": entries}}


def only(data: Tables, run: dict[str, Any], **wanted: Any) -> Study:
    (study,) = analyze(data, asking(run, wanted)).studies
    return study


def rows_of(study: Study, grid: int = 0) -> list[list[str]]:
    """The head and the rows of a table as Markdown."""
    table = list(study_table(study).tables())[grid]
    lines = Markdown().table(replace(table, title="")).splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [rows[0], *rows[2:]]


def summary_of(study: Study) -> str:
    return plain(study_table(study).summary)


def note_of(study: Study) -> str:
    """The text below the first table."""
    return " ".join(plain(block.content) for block in study_table(study).blocks if isinstance(block, Paragraph))


def titles_of(study: Study) -> list[tuple[str, bool]]:
    """The title of each table, and whether it is folded."""
    blocks = [block for block in study_table(study).blocks if not isinstance(block, Paragraph)]
    return [(plain(b.summary), True) if isinstance(b, Details) else (plain(b.title), False) for b in blocks]


def cell(study: Study, row: tuple[Any, ...], column: tuple[Any, ...] = ()) -> Any:
    grid = study.grids[0]
    found = grid.cells[grid.rows.index(row)][grid.columns.index(column)]
    assert found is not None
    return found.value if found.value is not None else found.missing


# --- every kind of value, of a real run ------------------------------------------------------------------------------

CASE = "impl={impl},mode={mode},batch=2,heads=16,seqlen={seqlen}"


@pytest.fixture(scope="module")
def example() -> tuple[Tables, dict[str, Any]]:
    return report_study.example("h200-attention")


@pytest.fixture(scope="module")
def by_hand() -> dict[str, pd.DataFrame]:
    return {name: pd.read_parquet(EXAMPLE / f"{name}.parquet") for name in ("kernels", "metrics", "ranges")}


def metric_by_hand(by_hand: dict[str, pd.DataFrame], case: str, metric: str) -> float:
    rows = by_hand["metrics"]
    chosen = rows[(rows["case"] == case) & (rows["profiler"] == "plain") & (rows["metric"] == metric)]
    return float(chosen["value"].iloc[0])


@pytest.mark.parametrize(
    ("word", "metric"), [("time", "time"), ("p10", "time_p10"), ("p90", "time_p90"), ("memory", "peak_allocated"),
                         ("memory_reserved", "peak_reserved"), ("error_max", "error_max"), ("flops", "flops")],
)  # fmt: skip
def test_a_measured_value_is_the_row_of_the_metrics_table(
    example: Any, by_hand: dict[str, pd.DataFrame], word: str, metric: str
) -> None:
    study = only(*example, where={"mode": "fwd"}, rows="impl", columns="seqlen", value=word)
    for impl in ("sdpa_flash", "sage"):
        truth = metric_by_hand(by_hand, CASE.format(impl=impl, mode="fwd", seqlen=2048), metric)
        assert cell(study, (impl,), (2048,)) == truth


@pytest.mark.parametrize("impl", ["sdpa_cudnn", "xformers"])
def test_rates_are_of_the_measured_time_alone(example: Any, by_hand: dict[str, pd.DataFrame], impl: str) -> None:
    words = ["throughput", "tflops", "bandwidth", "speedup"]
    study = only(*example, where={"mode": "fwd_bwd", "seqlen": 8192}, rows="impl", value=words)
    case = CASE.format(impl=impl, mode="fwd_bwd", seqlen=8192)
    seconds = metric_by_hand(by_hand, case, "time") / 1e9
    base = metric_by_hand(by_hand, CASE.format(impl="sdpa_flash", mode="fwd_bwd", seqlen=8192), "time") / 1e9
    truth = [1 / seconds, metric_by_hand(by_hand, case, "flops") / seconds / 1e12,
             metric_by_hand(by_hand, case, "bytes_moved") / seconds / 1e9, base / seconds]  # fmt: skip
    assert [cell(study, (impl,), (word,)) for word in words] == pytest.approx(truth)


def kernels_by_hand(by_hand: dict[str, pd.DataFrame], case: str, profiler: str) -> pd.DataFrame:
    rows = by_hand["kernels"]
    own = rows[(rows["case"] == case) & (rows["profiler"] == profiler) & (rows["kind"] == "kernel")]
    return own.assign(calls=own["calls"].astype(float), total_ns=own["total_ns"].astype(float))


@pytest.mark.parametrize("profiler", [None, "torch"])
def test_values_of_kernels_are_sums_of_the_kernels_table(
    example: Any, by_hand: dict[str, pd.DataFrame], profiler: str | None
) -> None:
    words = ["attention.share", "attention.time", "direct_copy.calls", "direct_copy.time", "kernels.time",
             "kernels.calls", "elementwise.calls", "kernel:direct_copy_kernel.calls",
             "kernel:nowhere.calls"]  # fmt: skip
    study = only(*example, where={"mode": "fwd_bwd", "seqlen": 512}, rows="value", columns="impl", value=words,
                 profiler=profiler)  # fmt: skip
    own = kernels_by_hand(by_hand, CASE.format(impl="sdpa_flash", mode="fwd_bwd", seqlen=512), profiler or "nsys")
    attention = own[own["kernel_class"] == "attention"]
    copies = own[own["kernel"].str.contains("direct_copy_kernel", regex=False)]
    total, runs = own["total_ns"].sum(), 30
    truth = [attention["total_ns"].sum() / total, attention["total_ns"].sum() / runs, copies["calls"].sum() / runs,
             copies["total_ns"].sum() / runs, total / runs, own["calls"].sum() / runs,
             own.loc[own["kernel_class"] == "elementwise", "calls"].sum() / runs,
             copies["calls"].sum() / runs, 0]  # fmt: skip
    assert [cell(study, (word,), ("sdpa_flash",)) for word in words] == pytest.approx(truth)
    assert study.kernel_profiler == (profiler or "nsys")


def test_the_most_launched_kernel_is_named_and_counted(example: Any, by_hand: dict[str, pd.DataFrame]) -> None:
    words = ["most_launched.name", "most_launched.calls", "most_launched.time", "most_launched.share"]
    study = only(*example, where={"mode": "fwd", "seqlen": 512}, rows="impl", value=words)
    own = kernels_by_hand(by_hand, CASE.format(impl="sdpa_math", mode="fwd", seqlen=512), "nsys")
    sums = own.groupby("kernel")[["calls", "total_ns"]].sum().sort_values(["calls", "total_ns"])
    name, calls, ns = sums.index[-1], sums["calls"].iloc[-1], sums["total_ns"].iloc[-1]
    assert cell(study, ("sdpa_math",), ("most_launched.name",)) == name
    found = [cell(study, ("sdpa_math",), (word,)) for word in words[1:]]
    assert found == pytest.approx([calls / 30, ns / 30, ns / own["total_ns"].sum()])
    (row,) = [row for row in rows_of(study) if row[0] == "`sdpa_math`"]
    assert row[1] == "`unrolled_elementwise_kernel<…direct_copy_kernel_cuda…>`"


def test_kernels_and_ranges_of_a_phase_are_those_launched_in_it(example: Any, by_hand: dict[str, pd.DataFrame]) -> None:
    words = ["kernels.time", "range.time", "range.busy", "range.calls", "attention.share"]
    study = only(*example, where={"mode": "fwd_bwd", "seqlen": 512}, rows="impl", columns=["phase", "value"],
                 value=words, phase=["forward", "backward"])  # fmt: skip
    case = CASE.format(impl="fa2", mode="fwd_bwd", seqlen=512)
    own = kernels_by_hand(by_hand, case, "nsys")
    own = own[own["phase"] == "backward"]
    ranges = by_hand["ranges"]
    opened = ranges[(ranges["case"] == case) & (ranges["profiler"] == "nsys") & (ranges["range"] == "backward")].iloc[0]
    attention = own.loc[own["kernel_class"] == "attention", "total_ns"].sum() / own["total_ns"].sum()
    truth = [own["total_ns"].sum() / 30, float(opened["wall_ns"]) / 30, float(opened["busy_ns"]) / 30, 1, attention]
    assert [cell(study, ("fa2",), ("backward", word)) for word in words] == pytest.approx(truth)


def test_times_of_a_requested_profiler_are_its_kernels_and_so_is_the_speedup(
    example: Any, by_hand: dict[str, pd.DataFrame]
) -> None:
    study = only(
        *example, where={"mode": "fwd", "seqlen": 2048}, rows="impl", value=["time", "speedup"], profiler="torch"
    )
    sums = {impl: kernels_by_hand(by_hand, CASE.format(impl=impl, mode="fwd", seqlen=2048), "torch")["total_ns"].sum()
            for impl in ("sdpa_flash", "sage")}  # fmt: skip
    truth = [sums["sage"] / 30, sums["sdpa_flash"] / sums["sage"]]
    assert [cell(study, ("sage",), (word,)) for word in ("time", "speedup")] == pytest.approx(truth)
    assert "Times are the kernel time per call (torch)." in summary_of(study)


# --- layout of a table -----------------------------------------------------------------------------------------------


def test_a_table_of_an_h200_run_has_the_requested_rows_and_columns(example: Any) -> None:
    study = only(*example, where={"mode": "fwd", "impl": ["sdpa_flash", "sage"]}, rows="impl", columns="seqlen",
                 value="time", unit="ms")  # fmt: skip
    fixed = "mode fwd, batch 2, heads 16, kv_heads 0, head_dim 64, dtype fp16, causal false"
    assert summary_of(study) == f"Median time of a call in ms. In every case: {fixed}."
    assert rows_of(study) == [
        ["impl", "seqlen 512", "2048", "8192"],
        ["`sdpa_flash` (baseline)", "0.0175 *host_bound*", "0.124", "1.82 *throttled*"],
        ["`sage`", "0.0497 *host_bound*", "0.136", "1.45"],
    ]


def test_a_case_without_a_number_says_what_became_of_it(example: Any) -> None:
    study = only(*example, where={"impl": ["sage", "fa2"], "seqlen": 512}, rows="mode", columns="impl", value="memory")
    assert rows_of(study)[2] == ["fwd_bwd", "20.1", "skipped"]


def test_rows_columns_and_tables_of_skipped_cases_alone_are_counted_and_not_shown(example: Any) -> None:
    study = only(
        *example, where={"impl": "sage", "seqlen": 512}, rows="mode", value=["time", "kernels.calls", "memory"]
    )
    assert [row[0] for row in rows_of(study)] == ["mode", "fwd"]
    assert note_of(study) == "Not shown: 1 row of skipped cases."
    study = only(*example, where={"mode": "fwd_bwd"}, rows="seqlen", columns="impl", value="time")
    assert "`sage`" not in rows_of(study)[0]
    assert note_of(study) == "Not shown: 1 column of skipped cases."
    study = only(*example, where={"mode": "fwd_bwd", "impl": "sage"}, rows="seqlen", value="time")
    assert not titles_of(study) and note_of(study) == "Not shown: 1 table of skipped cases."


def test_attention_without_a_fused_kernel_is_shown_as_unfused(example: Any) -> None:
    study = only(*example, where={"mode": "fwd", "seqlen": 512}, rows="impl", value="attention.share")
    assert cell(study, ("sdpa_math",)) == "unfused" and cell(study, ("fa2",)) == 1.0


def test_an_axis_that_would_put_two_cases_in_a_cell_makes_tables_the_largest_open(example: Any) -> None:
    study = only(*example, rows="impl", columns="mode", value="time")
    assert titles_of(study) == [
        ("seqlen 8192", False), ("seqlen 2048", True), ("seqlen 512", True),
    ]  # fmt: skip


def test_what_the_study_says_of_a_table_stands_above_it(example: Any) -> None:
    study = only(*example, rows="seqlen", columns="impl", value="time", note="Read this | first.")
    assert summary_of(study).startswith("Read this | first. ")
    assert "Read this | first." in write_section(study_table(study))


def test_an_axis_with_one_value_is_dropped_and_named_above(example: Any) -> None:
    study = only(*example, where={"seqlen": 512}, rows=["seqlen", "impl"], columns=["mode", "causal"], value="time")
    assert (study.row_axes, study.column_axes) == (("impl",), ("mode",))
    assert "seqlen 512" in summary_of(study) and "causal false" in summary_of(study)


def test_the_only_column_of_rows_with_different_values_has_the_name_of_the_case(example: Any) -> None:
    study = only(
        *example, where={"seqlen": 512, "mode": "fwd", "impl": "fa2"}, rows="value", columns="impl",
        value=["time", "memory"],
    )  # fmt: skip
    head, *rows = rows_of(study)
    assert head == ["", "`fa2`"]
    assert [row[0] for row in rows] == ["time us", "peak memory KiB"]


def test_the_flags_of_a_case_stand_once_beside_its_numbers(example: Any) -> None:
    study = only(*example, where={"mode": "fwd_bwd", "seqlen": 8192}, rows="impl", value=["time", "tflops", "memory"])
    (row,) = (row for row in rows_of(study) if row[0] == "`xformers`")
    assert row == ["`xformers`", "3857 *throttled, clock_spread*", "498.8", "324.0"]


def test_a_table_that_the_study_is_about_opens_the_page(example: Any, tmp_path: Path) -> None:
    data, run = example
    entries = [
        {"title": "Second", "rows": ["impl"], "columns": [], "value": ["memory"]},
        {"title": "The question", "first": True, "rows": ["seqlen"], "columns": ["impl"], "value": ["time"]},
    ]
    options = {**run, "pipeline": {**run["pipeline"], "tables": entries}}
    page = write_page(analyze(data, options), data, options, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings[1:3] == ["## The question", "## Answer"]
    assert "### Second" in headings and page.count("## The question\n") == 1
    assert page.index("## The question") < page.index("**Fastest: `xformers`") < page.index("## Study tables")


def test_old_runs_without_tables_have_none(example: Any) -> None:
    data, run = example
    before = {key: value for key, value in run["pipeline"].items() if key not in ("tables", "plots")}
    assert analyze(data, {**run, "pipeline": before}).studies == ()


# --- made up: facts, workloads, phases, tolerances -------------------------------------------------------------------


def lm() -> Tables:
    """Two workloads of a language model, three sizes, with invented numbers."""
    cases, kernels, ranges, metrics = [], [], [], []
    for workload, factor in (("eager", 1.0), ("compiled", 0.5)):
        for i, size in enumerate(("small", "medium", "large"), 1):
            case, own = f"size={size}", {"workload": workload}
            cases += [case_row(case, p, params={"size": size, "batch": 4}, **own) for p in ("plain", "nsys")]
            metrics += [metric_row(case, "time", i * factor * 1e7, n=10, **own),
                        metric_row(case, "tokens", 1024.0 * i, "1", **own),
                        metric_row(case, "parameters", i * 1.1e8, "1", **own),
                        metric_row(case, "sparsity", 25.0 * i, "%", **own)]  # fmt: skip
            for path, kernel, calls in (
                ("forward", COPY, 20),
                ("forward > softmax", ATTENTION, 10),
                ("backward", ADD, 60),
            ):
                kernels.append(kernel_row(case, kernel, calls, calls * i * 1e5, phase=path, **own))
                ranges.append({**range_row(case, 10, **own), "range": path, "wall_ns": 5e6, "busy_ns": 4e6})
            ranges.append(range_row(case, 10, wall_ns=5e7, busy_ns=4e7, **own))
    return tables(cases, kernels, ranges, metrics)


def test_a_fact_is_an_axis_and_its_rows_stand_in_the_order_of_its_numbers() -> None:
    study = only(lm(), {}, workload="eager", rows=["tokens", "size"], value=["time", "parameters", "sparsity"])
    assert rows_of(study) == [
        ["tokens", "size", "time ms", "parameters million", "sparsity %"],
        ["1024", "small", "10.0", "110.0", "25.0"],
        ["2048", "medium", "20.0", "220.0", "50.0"],
        ["3072", "large", "30.0", "330.0", "75.0"],
    ]


def test_several_workloads_stand_side_by_side() -> None:
    study = only(lm(), {}, workload=["eager", "compiled"], rows="tokens", columns="workload", value="time")
    assert rows_of(study)[:2] == [["tokens", "eager", "compiled"], ["1024", "10.0", "5.00"]]


def test_a_phase_is_a_range_at_any_depth_with_what_is_nested_in_it() -> None:
    options = {
        "workload": "eager",
        "rows": "size",
        "columns": "phase",
        "phase": ["forward", "softmax", "forward > softmax"],
    }
    study = only(lm(), {}, value="kernels.calls", **options)
    assert rows_of(study)[:2] == [["size", "forward", "softmax", "forward &gt; softmax"], ["small", "3", "1", "1"]]
    study = only(lm(), {}, value="range.time", **options)
    assert [cell(study, ("small",), (phase,)) for phase in options["phase"]] == [5e5, 5e5, 5e5]


def test_a_range_in_which_nothing_was_seen_is_named_and_one_that_some_cases_have_is_not() -> None:
    options = {"workload": "eager", "rows": "size", "columns": "phase", "value": "add.time"}
    text = summary_of(only(lm(), {}, **options, phase=["forward", "optimiser"]))
    assert text.endswith("Nothing was recorded in the range optimiser.")
    assert "Nothing was recorded" not in summary_of(only(lm(), {}, **options, phase=["forward", "softmax"]))


def test_a_phase_that_a_case_does_not_have_is_missing_and_not_zero() -> None:
    study = only(
        lm(), {}, workload="eager", rows="size", columns="phase", phase=["forward", "optimizer"], value="add.time"
    )
    assert rows_of(study)[1] == ["small", "0", "–"]


def test_a_dash_says_that_none_was_recorded_and_a_case_that_was_interrupted_says_that() -> None:
    """A case that `plain` did not reach has the kernel time of nsys."""
    kernels = [kernel_row(f"impl={impl}", ADD, 10, 5e6) for impl in "abc"]
    ranges = [range_row(f"impl={impl}", 10) for impl in "abc"]
    wall = metric_row("impl=a", "loop_wall", 8e5)
    stopped = case_row("impl=c", "plain", "interrupted", "interrupted before it started")
    cases = [*(case_row(f"impl={impl}", profiler) for impl in "ab" for profiler in ("plain", "nsys")),
             stopped, case_row("impl=c", "nsys")]  # fmt: skip
    study = only(tables(cases, kernels, ranges, [wall]), {}, rows="impl", value=["time", "loop_wall"], unit=["us"])
    assert [row[2] for row in rows_of(study)[1:]] == ["800.0", "–", "interrupted"]
    assert note_of(study) == "–: not recorded for that case."


def test_cases_without_a_fact_that_is_an_axis_are_counted() -> None:
    data = lm()
    gone = (data.metrics["case"] == "size=large") & (data.metrics["metric"] == "tokens")
    data = Tables(data.cases, data.kernels, data.ranges, data.metrics[~gone])
    study = only(data, {}, workload="eager", rows="tokens", value="time")
    assert len(rows_of(study)) == 3
    assert note_of(study) == "1 case without tokens is left out."


def test_only_the_numbers_of_a_case_itself_are_its_metrics() -> None:
    data = tables(
        metrics=[metric_row("n=1", "time", 5.0, n=1), metric_row("n=1", "flops", 7.0, "flop", subject="softmax")]
    )
    study = only(data, {}, rows="n", value=["time", "flops"])
    assert rows_of(study)[1] == ["1", "5.00"]
    assert "No case has flops." in summary_of(study)


def test_a_cell_of_which_the_pipeline_file_has_no_case_says_so() -> None:
    names = ["impl=a,mode=fwd", "impl=a,mode=bwd", "impl=b,mode=fwd"]
    data = tables(metrics=[metric_row(name, "time", 5.0, n=1) for name in names])
    study = only(data, {}, rows="mode", columns="impl", value="time")
    assert rows_of(study)[1:] == [["fwd", "5.00", "5.00"], ["bwd", "5.00", "no case"]]


def test_errors_and_memory_of_several_processes_are_the_worst_ones_in_tables_too() -> None:
    numbers = {"time": 5.0, "error_rel_l1": 0.0005, "peak_allocated": 2.0**30}
    rows = [metric_row("n=1", name, value, "byte" if "peak" in name else "1", n=1) for name, value in numbers.items()]
    rows += [metric_row("n=1", "error_rel_l1", 0.002, "1", subject="rank 1", n=1)]
    rows += [metric_row("n=1", "peak_allocated", 2.0**31, "byte", subject="rank 1", n=1)]
    study = only(tables(metrics=rows), {}, rows="n", value=["error_rel_l1", "memory"], unit=["GiB"])
    assert rows_of(study)[1] == ["1", "0.002", "2.00"]


@pytest.mark.parametrize(
    ("reasons", "why"),
    [(["unchecked"], ": none was compared with the reference"), (["inaccurate"], ": none is within the tolerance"),
     (["unchecked", "inaccurate"], ": each is inaccurate or unchecked")],
)  # fmt: skip
def test_one_sentence_gives_the_reason_why_no_case_has_a_speedup(reasons: list[str], why: str) -> None:
    rows = [metric_row(f"impl={i}", "time", 5.0, n=1) for i in range(len(reasons) + 1)]
    rows += [
        metric_row(f"impl={i}", "error_max", 1.0, "1") for i, reason in enumerate(reasons, 1) if reason == "inaccurate"
    ]
    rows.append(metric_row("impl=0", "error_max", 0.01, "1"))
    entry = {"baseline": {"impl": 0}, "tolerance": {"error_max": 0.1}}
    run = {"pipeline": {"workloads": {"w": entry}}}
    summary = summary_of(only(tables(metrics=rows), run, rows="impl", value=["time", "speedup"]))
    assert f"No case has speedup{why}." in summary


def test_what_is_counted_has_no_decimals() -> None:
    rows = [metric_row("n=1", "heads", 12.0, "1", n=1), metric_row("n=1", "error_max", 0.25, "1", n=1)]
    study = only(tables(metrics=rows), {}, rows="n", value=["metric.heads", "error_max"])
    assert rows_of(study)[1] == ["1", "12", "0.25"]


def test_options_of_some_cases_follow_the_compared_value() -> None:
    ids = ["impl=fa2", "impl=sparge,topk=0.5", "impl=sparge,topk=0.7"]
    data = tables(metrics=[metric_row(case, "time", 1000.0 * i, n=1) for i, case in enumerate(ids, 1)])
    assert [row[0] for row in rows_of(only(data, {}, rows="impl", value="time"))[1:]] == [
        "`fa2`", "`sparge topk=0.5`", "`sparge topk=0.7`",
    ]  # fmt: skip
    nulls = tables(metrics=[metric_row(c, "time", 5.0, n=1) for c in ["impl=fa2,topk=none", *ids[1:]]])
    assert rows_of(only(nulls, {}, rows="impl", value="time"))[1][0] == "`fa2`"


def test_kernels_inside_whole_graphs_are_unknown_and_not_absent() -> None:
    data = tables(kernels=[kernel_row("n=1", "graph 1", 5, 50.0, kind="graph", kernel_class="graph")])
    study = only(data, {}, rows="n", value=["attention.time", "kernels.time"])
    assert rows_of(study)[1] == ["1", "inside CUDA graphs", "50.0"]


def test_a_case_passes_or_fails_by_the_tolerance_of_its_workload() -> None:
    rows = [metric_row(f"impl={impl}", "time", 5.0, n=1) for impl in "ab"]
    rows += [metric_row("impl=a", "error_rel_l1", 1e-3, "1"), metric_row("impl=b", "error_rel_l1", 0.2, "1")]
    data = tables([case_row("impl=a"), case_row("impl=b", flags=["inaccurate"])], metrics=rows)
    run = {"pipeline": {"workloads": {"w": {"tolerance": {"error_rel_l1": 0.05}}}}}
    assert [row[:3] for row in rows_of(only(data, run, rows="impl", value=["passed", "error_rel_l1"]))] == [
        ["impl", "within tolerance", "error_rel_l1"], ["`a`", "pass", "0.001"], ["`b`", "**fail**", "0.2"],
    ]  # fmt: skip
    assert rows_of(only(data, {}, rows="impl", value="passed"))[1] == ["`a`", "–"]


def test_a_table_of_verdicts_says_how_many_passed() -> None:
    errors = {"impl=a,n=1": 1e-3, "impl=b,n=1": 0.2, "impl=a,n=2": 2e-3}
    rows = [metric_row(case, "time", 5.0, n=1) for case in (*errors, "impl=b,n=2")]
    rows += [metric_row(case, "error_rel_l1", error, "1") for case, error in errors.items()]
    run = {"pipeline": {"workloads": {"w": {"tolerance": {"error_rel_l1": 0.05}}}}}
    text = summary_of(only(tables(metrics=rows), run, rows="n", columns="impl", value="passed"))
    assert text.startswith("2 of the 3 compared cases are within the tolerance.")


def judged(errors: dict[str, float | None], words: list[str], flags: tuple[str, ...] = ()) -> Study:
    """Implementations by their error, None if not compared; the tolerance is 0.05, `a` is the baseline."""
    cases = [case_row(f"impl={impl}", flags=list(flags), params={"impl": impl}) for impl in errors]
    rows = [metric_row(f"impl={impl}", "time", 100.0 / i, n=9) for i, impl in enumerate(errors, 1)]
    rows += [metric_row(f"impl={i}", "error_rel_l1", error, "1") for i, error in errors.items() if error is not None]
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    return only(tables(cases, metrics=rows), run, rows="impl", value=words)


def test_a_cell_says_why_it_has_no_speedup_and_a_baseline_is_as_fast_as_itself() -> None:
    found = rows_of(judged({"a": 0.001, "b": 0.2, "c": None, "d": 0.001}, ["speedup", "passed"]))
    assert [row[1:] for row in found[1:]] == [
        ["1.00x", "pass"], ["inaccurate", "**fail**"], ["unchecked", "unchecked"], ["4.00x", "pass"],
    ]  # fmt: skip


def test_a_doubtful_baseline_gives_no_speedup() -> None:
    text = summary_of(judged({"a": None, "d": 0.001}, ["time", "speedup"]))
    assert "No case has speedup: the baseline was not compared with the reference." in text
    params = [{"impl": impl, "n": n} for n in (1, 2) for impl in "ab"]
    ids = [f"impl={one['impl']},n={one['n']}" for one in params]
    rows = [metric_row(case, "time", 100.0 if "impl=a" in case else 50.0, n=9) for case in ids]
    rows += [metric_row(case, "error_rel_l1", 0.2 if case == "impl=a,n=2" else 0.001, "1") for case in ids]
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    cases = [case_row(case, params=own) for case, own in zip(ids, params, strict=True)]
    study = only(tables(cases, metrics=rows), run, rows=["n", "impl"], value=["speedup"])
    assert [row[-1] for row in rows_of(study)[1:]] == ["1.00x", "2.00x", "inaccurate", "baseline inaccurate"]
    data = tables([*cases, case_row("impl=c,n=2", "plain", "skipped", params={"impl": "c", "n": 2})], metrics=rows)
    skipped = only(data, run, rows=["n", "impl"], value=["speedup"])
    assert note_of(skipped) == "Not shown: 1 row of skipped cases.", "no baseline is the reason"


@pytest.mark.parametrize(
    ("error", "why"), [(None, "none was compared with the reference"), (0.2, "none is within the tolerance")]
)
def test_a_table_without_any_speedup_says_why(error: float | None, why: str) -> None:
    study = judged({"a": error, "b": error}, ["time", "speedup"])
    assert f"No case has speedup: {why}." in summary_of(study)
    assert [len(row) for row in rows_of(study)] == [2, 2, 2]


def test_a_flag_of_all_cases_is_written_once_below_the_table() -> None:
    study = judged({"a": 0.001, "b": 0.2}, ["time", "speedup"], flags=("host_bound",))
    assert note_of(study) == "Every case: host_bound."
    assert [row[1] for row in rows_of(study)[1:]] == ["100.0", "50.0 *inaccurate*"]
    assert note_of(judged({"a": 0.001, "b": 0.2}, ["time"])) == ""
    alone = judged({"a": 0.001}, ["time"], flags=("host_bound",))
    assert rows_of(alone)[1][1] == "100.0 *host_bound*" and note_of(alone) == ""


def test_all_times_of_kernels_in_a_table_have_one_unit() -> None:
    kernels = [kernel_row("n=1", ATTENTION, 1, 23e9), kernel_row("n=1", COPY, 1, 5e6), kernel_row("n=1", ADD, 1, 4e6)]
    study = only(tables(kernels=kernels), {}, rows="n", value=["attention.time", "direct_copy.time", "kernels.time"])
    assert rows_of(study)[0][1:] == ["attention s", "direct_copy s", "all kernels s"]


OF_PARTS = [
    (path.stem, table["title"], table["value"])
    for path in sorted((EXAMPLE.parents[1] / "pipelines").glob("*.yaml"))
    for table in yaml.safe_load(path.read_text(encoding="utf-8")).get("tables", [])
    if "rest.time" in table["value"]
]


@pytest.mark.parametrize(("pipeline", "title", "words"), OF_PARTS)
def test_in_a_table_with_the_rest_the_parts_add_up_to_all_kernels(pipeline: str, title: str, words: list[str]) -> None:
    classes = ["attention", "add", "gemm", "softmax", *OTHER_CLASSES]
    kernels = [kernel_row("n=1", f"k{i}", 1, 2.0**i, kernel_class=name) for i, name in enumerate(classes)]
    study = only(tables(kernels=[*kernels, kernel_row("n=1", COPY, 1, 0.5)]), {}, rows="n", value=words)
    times = [cell(study, (1,), (word,)) for word in words if word.endswith(".time") and word != "kernels.time"]
    assert sum(times) == 2.0 ** len(classes) - 0.5, (pipeline, title)


@pytest.mark.parametrize("others", [(), ("torch",)])
def test_the_wall_time_of_a_loop_is_of_one_profiler_for_all_cases(others: tuple[str, ...]) -> None:
    """The times are nsys's if plain ran none of the cases, and plain's if it ran one."""
    rows = [metric_row(f"n={n}", "loop_wall", n * 1e9, profiler=p) for n in (1, 2) for p in ("nsys", *others)]
    ran = tables([case_row(f"n={n}", "nsys") for n in (1, 2)], metrics=rows)
    study = only(ran, {}, rows="n", value=["metric.loop_wall", "memory"])
    assert rows_of(study) == [["n", "wall time ms"], ["1", "1000"], ["2", "2000"]]
    plain = metric_row("n=1", "loop_wall", 5e8)
    data = tables(ran.cases.to_dict("records"), metrics=[*ran.metrics.to_dict("records"), plain])
    assert [row[1] for row in rows_of(only(data, {}, rows="n", value="metric.loop_wall"))[1:]] == ["500.0", "–"]


def test_more_tables_than_nine_are_counted() -> None:
    data = tables(metrics=[metric_row(f"impl={i},n={n}", "time", 5.0, n=1) for i in "ab" for n in range(12)])
    study = only(data, {}, rows="impl", value="time")
    assert len(titles_of(study)) == 9 and note_of(study).startswith("3 more tables like these, by n, are left out")


def test_a_table_that_no_case_of_the_run_is_in_says_so() -> None:
    data = tables(metrics=[metric_row("precision=fp32,n=1", "time", 5.0, n=1)])
    study = only(data, {}, where={"precision": "bf16"}, rows="n", value="time")
    assert not titles_of(study) and summary_of(study) == "No case of this run is in this table."


def test_tables_stand_behind_the_answer_and_in_the_text_file(tmp_path: Path) -> None:
    run = asking({}, {"workload": "eager", "title": "By <size>", "rows": "size", "value": "time"},
                 {"workload": "gone", "title": "Of none that was run", "rows": "size", "value": "time"})  # fmt: skip
    data = lm()
    text = write_page(analyze(data, run), data, run, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    section = text.partition("## Study tables\n")[2].partition("\n## ")[0]
    assert section.lstrip().startswith("### By &lt;size&gt;\n\nTimes are the median time of a call.")
    assert "| small | 10.0 |" in section and "Of none" not in text
    assert text.index("## Study tables") < text.index("## Kernel share")
    plain = (tmp_path / "comparison_results.txt").read_text(encoding="utf-8")
    assert plain.startswith("By <size>\n=====") and "small      10.0" in plain


def test_run_json_carries_the_tables(example: Any) -> None:
    _, run = example
    run = json.loads(json.dumps(asking(run, {"rows": "impl", "value": "time"})))
    assert analyze(example[0], run).studies[0].values[0].name == "time"


def test_a_long_table_is_parted_by_its_first_axis() -> None:
    names = [f"mask={m},dtype={d},n={n},impl={i}" for m in "cn" for d in ("a", "b") for n in range(1, 11) for i in "xy"]
    data = tables(metrics=[metric_row(name, "time", 5.0, n=1) for name in names])
    study = only(data, {}, rows=["mask", "dtype", "n"], columns="impl", value="time")
    assert study.row_axes == ("dtype", "n") and [len(grid.rows) for grid in study.grids] == [20, 20]
    assert titles_of(study) == [("mask c", False), ("mask n", True)]
    whole = only(data, {}, rows=["mask", "dtype", "n"], where={"n": [1, 2, 3]}, columns="impl", value="time")
    assert whole.row_axes == ("mask", "dtype", "n") and len(whole.grids) == 1


def test_the_host_s_time_of_a_range_is_known_where_the_gpu_s_is_not() -> None:
    data = lm()
    data.ranges["busy_ns"] = pd.NA
    study = only(data, {}, workload="eager", rows="size", phase="forward", value=["range.time", "range.busy"])
    assert rows_of(study)[1] == ["small", "500.0"]
    assert "No case has range.busy." in summary_of(study)


def test_the_text_file_has_every_row_of_a_long_table() -> None:
    data = tables(metrics=[metric_row(f"n={n}", "time", 5.0, n=1) for n in range(130)])
    study = only(data, {}, rows="n", value="time")
    assert len(rows_of(study)) == 131 and "\n129     5.00" in write_section(study_table(study))


@pytest.mark.slow
def test_the_work_for_a_table_grows_with_its_cases_and_not_with_their_square() -> None:
    few, many = (python_calls(lambda n=n: table_of(n)) for n in (40, 400))
    assert many < 15 * few


def table_of(rows: int) -> None:
    """Make a table with ``rows`` rows and five columns, one case a cell."""
    names = [f"impl={impl},n={n}" for impl in "abcde" for n in range(rows)]
    data = tables(metrics=[metric_row(name, "time", 5.0, n=1) for name in names])
    (study,) = analyze(data, asking({}, {"rows": "n", "columns": "impl", "value": ["time", "throughput"]})).studies
    assert len(study.grids[0].rows) == rows and len(list(study_table(study).tables())) == 1


def python_calls(work: Callable[[], None]) -> int:
    """Return how many functions of Python ``work`` calls: a measure of work that does not depend on load."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


# --- profilers as an axis --------------------------------------------------------------------------------------------


def test_each_profiler_has_a_column_with_its_own_times(example: Any, by_hand: dict[str, pd.DataFrame]) -> None:
    study = only(*example, where={"mode": "fwd", "impl": "fa2"}, rows="seqlen", columns="profiler", value="time")
    assert study.grids[0].columns == (("plain",), ("nsys",), ("torch",), ("ncu",)) and study.basis is None
    case = CASE.format(impl="fa2", mode="fwd", seqlen=2048)
    assert cell(study, (2048,), ("plain",)) == metric_by_hand(by_hand, case, "time")
    for profiler, iterations in (("nsys", 30), ("torch", 30), ("ncu", 1)):
        own = kernels_by_hand(by_hand, case, profiler)
        assert cell(study, (2048,), (profiler,)) == pytest.approx(own["total_ns"].sum() / iterations)


def test_rates_of_a_profiler_are_of_its_own_time(example: Any) -> None:
    options = {"where": {"mode": "fwd", "impl": "fa2"}, "rows": "seqlen", "columns": "profiler"}
    times, rates = (only(*example, value=value, **options) for value in ("time", "tflops"))
    flops = {
        cell(times, (2048,), (name,)) * cell(rates, (2048,), (name,)) for name in ("plain", "nsys", "ncu", "torch")
    }
    assert max(flops) == pytest.approx(min(flops))


def test_a_table_by_profiler_says_what_the_times_of_each_are(example: Any) -> None:
    study = only(*example, where={"mode": "fwd"}, rows="seqlen", columns=["impl", "profiler"], value="time")
    assert "plain: the median time of a call; the others: the sum of its kernels" in plain(study_table(study).summary)
