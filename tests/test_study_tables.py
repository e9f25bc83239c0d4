"""`tables:` of a pipeline file -> tables of the report. Of the example every number is computed again from its CSVs."""

import cProfile
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import report_study
import yaml
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    analyze,
    case_row,
    check_golden,
    every_table,
    kernel_row,
    metric_row,
    range_row,
    tables,
    write_page,
)

from profpipe import plugins
from profpipe.config.models import Table
from profpipe.config.quantities import OTHER_CLASSES
from profpipe.report.document import Details, Paragraph, plain
from profpipe.report.markdown import Markdown
from profpipe.report.sections.studies import study_table
from profpipe.report.text import write_section
from profpipe.results.schema import Tables

EXAMPLE = Path(__file__).parents[1] / "examples" / "h200-attention"
TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"


def asking(run, *wanted):
    """``run`` as run.json carries it with these `tables` in its pipeline file."""
    entries = [json.loads(Table.model_validate({"title": "A table", **own}).model_dump_json()) for own in wanted]
    return {**run, "pipeline": {"workloads": {"w": {}}, **run.get("pipeline", {}), "tables": entries}}


def only(data, run, **wanted):
    (study,) = analyze(data, asking(run, wanted)).studies
    return study


def rows_of(study, grid=0):
    """The head and the rows of a table as Markdown."""
    table = list(every_table(study_table(study)))[grid]
    lines = Markdown().table(replace(table, title="")).splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [rows[0], *rows[2:]]


def cell(study, row, column=()):
    grid = study.grids[0]
    found = grid.cells[grid.rows.index(row)][grid.columns.index(column)]
    assert found is not None
    return found.value if found.value is not None else found.missing


# --- every kind of value, of a real run ------------------------------------------------------------------------------

CASE = "impl={impl},mode={mode},batch=2,heads=16,seqlen={seqlen}"


@pytest.fixture(scope="module")
def example():
    return report_study.example("h200-attention")


@pytest.fixture(scope="module")
def by_hand():
    return {name: pd.read_parquet(EXAMPLE / f"{name}.parquet") for name in ("kernels", "metrics", "ranges")}


def metric_by_hand(by_hand, case, metric):
    rows = by_hand["metrics"]
    chosen = rows[(rows["case"] == case) & (rows["profiler"] == "plain") & (rows["metric"] == metric)]
    return float(chosen["value"].iloc[0])


@pytest.mark.parametrize(
    ("word", "metric"), [("time", "time"), ("p10", "time_p10"), ("p90", "time_p90"), ("memory", "peak_allocated"),
                         ("memory_reserved", "peak_reserved"), ("error_max", "error_max"), ("flops", "flops")],
)  # fmt: skip
def test_a_measured_value_is_the_row_of_the_metrics_table(example, by_hand, word, metric):
    study = only(*example, where={"mode": "fwd"}, rows="impl", columns="seqlen", value=word)
    for impl in ("sdpa_flash", "sage"):
        truth = metric_by_hand(by_hand, CASE.format(impl=impl, mode="fwd", seqlen=2048), metric)
        assert cell(study, (impl,), (2048,)) == truth


@pytest.mark.parametrize("impl", ["sdpa_cudnn", "xformers"])
def test_rates_are_of_the_measured_time_alone(example, by_hand, impl):
    words = ["throughput", "tflops", "bandwidth", "speedup"]
    study = only(*example, where={"mode": "fwd_bwd", "seqlen": 8192}, rows="impl", value=words)
    case = CASE.format(impl=impl, mode="fwd_bwd", seqlen=8192)
    seconds = metric_by_hand(by_hand, case, "time") / 1e9
    base = metric_by_hand(by_hand, CASE.format(impl="sdpa_flash", mode="fwd_bwd", seqlen=8192), "time") / 1e9
    truth = [1 / seconds, metric_by_hand(by_hand, case, "flops") / seconds / 1e12,
             metric_by_hand(by_hand, case, "bytes_moved") / seconds / 1e9, base / seconds]  # fmt: skip
    assert [cell(study, (impl,), (word,)) for word in words] == pytest.approx(truth)


def kernels_by_hand(by_hand, case, profiler):
    rows = by_hand["kernels"]
    own = rows[(rows["case"] == case) & (rows["profiler"] == profiler) & (rows["kind"] == "kernel")]
    return own.assign(calls=own["calls"].astype(float), total_ns=own["total_ns"].astype(float))


@pytest.mark.parametrize("profiler", [None, "torch"])
def test_values_of_kernels_are_sums_of_the_kernels_table(example, by_hand, profiler):
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


def test_the_most_launched_kernel_is_named_and_counted(example, by_hand):
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


def test_kernels_and_ranges_of_a_phase_are_those_launched_in_it(example, by_hand):
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


def test_times_of_a_requested_profiler_are_its_kernels_and_so_is_the_speedup(example, by_hand):
    study = only(
        *example, where={"mode": "fwd", "seqlen": 2048}, rows="impl", value=["time", "speedup"], profiler="torch"
    )
    sums = {impl: kernels_by_hand(by_hand, CASE.format(impl=impl, mode="fwd", seqlen=2048), "torch")["total_ns"].sum()
            for impl in ("sdpa_flash", "sage")}  # fmt: skip
    truth = [sums["sage"] / 30, sums["sdpa_flash"] / sums["sage"]]
    assert [cell(study, ("sage",), (word,)) for word in ("time", "speedup")] == pytest.approx(truth)
    assert "Times are the kernel time per call (torch)." in plain(study_table(study).summary)


# --- tables as they are written --------------------------------------------------------------------------------------


def lm():
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


def timed(*cases, **more):
    """One sample of 5 ns of each case."""
    return [metric_row(case, "time", 5.0, n=1, **more) for case in cases]


def judged(errors, flags=(), skipped=()):
    """Cases by their error, None if not compared; the tolerance is 0.05, and `a` is the baseline."""
    cases = [case_row(case, flags=list(flags)) for case in errors]
    cases += [case_row(case, status="skipped") for case in skipped]
    rows = [metric_row(case, "time", 100.0 / i, n=9) for i, case in enumerate(errors, 1)]
    rows += [metric_row(case, "error_rel_l1", error, "1") for case, error in errors.items() if error is not None]
    entry = {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}
    return tables(cases, metrics=rows), {"pipeline": {"workloads": {"w": entry}}}


def interrupted():
    """A case that `plain` did not reach has the kernel time of nsys."""
    kernels = [kernel_row(f"impl={impl}", ADD, 10, 5e6) for impl in "abc"]
    cases = [case_row(f"impl={impl}", profiler) for impl in "ab" for profiler in ("plain", "nsys")]
    cases += [case_row("impl=c", "plain", "interrupted"), case_row("impl=c", "nsys")]
    ranges = [range_row(f"impl={impl}", 10) for impl in "abc"]
    return tables(cases, kernels, ranges, [metric_row("impl=a", "loop_wall", 8e5)])


def without_tokens():
    data = lm()
    gone = (data.metrics["case"] == "size=large") & (data.metrics["metric"] == "tokens")
    return Tables(data.cases, data.kernels, data.ranges, data.metrics[~gone])


def without_busy_time():
    data = lm()
    data.ranges["busy_ns"] = pd.NA
    return data


def without_softmax():
    """The largest size has no range `softmax`."""
    data = lm()
    kept = (own[(own["case"] != "size=large") | (own[path] != "forward > softmax")]
            for own, path in ((data.kernels, "phase"), (data.ranges, "range")))  # fmt: skip
    return Tables(data.cases, *kept, data.metrics)


def of_ranks():
    rows = [*timed("n=1"), metric_row("n=1", "error_rel_l1", 0.0005, "1")]
    rows += [metric_row("n=1", "error_rel_l1", 0.002, "1", subject="rank 1"), metric_row("n=1", "heads", 12.0, "1")]
    rows += [metric_row("n=1", "peak_allocated", 2.0**30, "byte")]
    return tables(metrics=[*rows, metric_row("n=1", "peak_allocated", 2.0**31, "byte", subject="rank 1")])


def loops(*profilers, plain=False):
    rows = [metric_row(f"n={n}", "loop_wall", n * 1e9, profiler=p) for n in (1, 2) for p in profilers]
    rows += [metric_row("n=1", "loop_wall", 5e8)] if plain else []
    return tables([case_row(f"n={n}", "nsys") for n in (1, 2)], metrics=rows)


H200: Any = report_study.example
EAGER: dict[str, Any] = {"workload": "eager", "rows": "size"}
OPTIONS = ["impl=sparge,topk=0.5", "impl=sparge,topk=0.7"]
KERNELS = [kernel_row("n=1", ATTENTION, 1, 23e9), kernel_row("n=1", COPY, 1, 5e6), kernel_row("n=1", ADD, 1, 4e6)]
LONG = [f"mask={m},dtype={d},n={n},impl={i}" for m in "cn" for d in ("a", "b") for n in range(1, 11) for i in "xy"]
BASELINE_AT_2 = {"impl=a,n=1": 0.001, "impl=b,n=1": 0.001, "impl=a,n=2": 0.2, "impl=b,n=2": 0.001}


def studies():
    """What a table shows, the run, and the entry of `tables`. A run is its tables, or its tables and its record."""
    return [
        ("The requested rows and columns of a real run, in the requested unit", H200("h200-attention"),
         {"where": {"mode": "fwd", "impl": ["sdpa_flash", "sage"]}, "rows": "impl", "columns": "seqlen",
          "value": "time", "unit": "ms"}),
        ("A case without a number says what became of it", H200("h200-attention"),
         {"where": {"impl": ["sage", "fa2"], "seqlen": 512}, "rows": "mode", "columns": "impl", "value": "memory"}),
        ("Rows of skipped cases alone are counted", H200("h200-attention"),
         {"where": {"impl": "sage", "seqlen": 512}, "rows": "mode", "value": ["time", "kernels.calls", "memory"]}),
        ("Columns of skipped cases alone are counted", H200("h200-attention"),
         {"where": {"mode": "fwd_bwd"}, "rows": "seqlen", "columns": "impl", "value": "time"}),
        ("Tables of skipped cases alone are counted", H200("h200-attention"),
         {"where": {"mode": "fwd_bwd", "impl": "sage"}, "rows": "seqlen", "value": "time"}),
        ("Attention without a fused kernel is unfused", H200("h200-attention"),
         {"where": {"mode": "fwd", "seqlen": 512}, "rows": "impl", "value": "attention.share"}),
        ("An axis that would put two cases in a cell makes tables, the largest open", H200("h200-attention"),
         {"rows": "impl", "columns": "mode", "value": "time", "note": "Read this | first."}),
        ("An axis with one value is dropped and named above", H200("h200-attention"),
         {"where": {"seqlen": 512}, "rows": ["seqlen", "impl"], "columns": ["mode", "causal"], "value": "time"}),
        ("The only column of rows with different values has the name of the case", H200("h200-attention"),
         {"where": {"seqlen": 512, "mode": "fwd", "impl": "fa2"}, "rows": "value", "columns": "impl",
          "value": ["time", "memory"]}),
        ("The flags of a case stand once beside its numbers", H200("h200-attention"),
         {"where": {"mode": "fwd_bwd", "seqlen": 8192}, "rows": "impl", "value": ["time", "tflops", "memory"]}),
        ("A table by profiler says what the times of each are", H200("h200-attention"),
         {"where": {"mode": "fwd", "impl": "fa2"}, "rows": "seqlen", "columns": ["impl", "profiler"], "value": "time"}),
        ("A fact is an axis, and its rows stand in the order of its numbers", lm(),
         {"workload": "eager", "rows": ["tokens", "size"], "value": ["time", "parameters", "sparsity"]}),
        ("Several workloads stand side by side", lm(),
         {"workload": ["eager", "compiled"], "rows": "tokens", "columns": "workload", "value": "time"}),
        ("A phase is a range at any depth with what is nested in it", lm(),
         {**EAGER, "columns": "phase", "phase": ["forward", "softmax", "forward > softmax"], "value": "kernels.calls"}),
        ("The time of a range is not that of ranges nested in it", lm(),
         {**EAGER, "columns": "phase", "phase": ["forward", "softmax", "forward > softmax"], "value": "range.time"}),
        ("A range in which nothing was seen is named, and its cells are missing and not zero", lm(),
         {**EAGER, "columns": "phase", "phase": ["forward", "optimizer"], "value": "add.time"}),
        ("A range that some cases have is not named", without_softmax(),
         {**EAGER, "columns": "phase", "phase": ["forward", "softmax"], "value": "add.time"}),
        ("The host's time of a range is known where the GPU's is not", without_busy_time(),
         {**EAGER, "phase": "forward", "value": ["range.time", "range.busy"]}),
        ("A dash says that none was recorded, and an interrupted case says that", interrupted(),
         {"rows": "impl", "value": ["time", "loop_wall"], "unit": ["us"]}),
        ("Cases without a fact that is an axis are counted", without_tokens(),
         {"workload": "eager", "rows": "tokens", "value": "time"}),
        ("Only the numbers of a case itself are its metrics",
         tables(metrics=[*timed("n=1"), metric_row("n=1", "flops", 7.0, "flop", subject="softmax")]),
         {"rows": "n", "value": ["time", "flops"]}),
        ("A cell of which the pipeline file has no case says so",
         tables(metrics=timed("impl=a,mode=fwd", "impl=a,mode=bwd", "impl=b,mode=fwd")),
         {"rows": "mode", "columns": "impl", "value": "time"}),
        ("Errors and memory of several processes are the worst ones, and what is counted has no decimals", of_ranks(),
         {"rows": "n", "value": ["error_rel_l1", "memory", "metric.heads"], "unit": ["GiB"]}),
        ("Options of some cases follow the compared value", tables(metrics=timed("impl=fa2", *OPTIONS)),
         {"rows": "impl", "value": "time"}),
        ("No option is shown of a case that has none", tables(metrics=timed("impl=fa2,topk=none", *OPTIONS)),
         {"rows": "impl", "value": "time"}),
        ("Kernels inside whole graphs are unknown and not absent",
         tables(kernels=[kernel_row("n=1", "graph 1", 5, 50.0, kind="graph", kernel_class="graph")]),
         {"rows": "n", "value": ["attention.time", "kernels.time"]}),
        ("All times of kernels have one unit", tables(kernels=KERNELS),
         {"rows": "n", "value": ["attention.time", "direct_copy.time", "kernels.time"]}),
        ("A cell says why it has no speed-up, and a baseline is as fast as itself",
         judged({"impl=a": 0.001, "impl=b": 0.2, "impl=c": None, "impl=d": 0.001}),
         {"rows": "impl", "value": ["speedup", "passed", "error_rel_l1"]}),
        ("A table of verdicts says how many passed",
         judged({"impl=a,n=1": 1e-3, "impl=b,n=1": 0.2, "impl=a,n=2": 2e-3, "impl=b,n=2": None}),
         {"rows": "n", "columns": "impl", "value": "passed"}),
        ("A baseline that was not compared gives no speed-up", judged({"impl=a": None, "impl=d": 0.001}),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("An inaccurate baseline gives none of its size alone", judged(BASELINE_AT_2),
         {"rows": ["n", "impl"], "value": "speedup"}),
        ("Nor is it the reason why a row is skipped", judged(BASELINE_AT_2, skipped=("impl=c,n=2",)),
         {"rows": ["n", "impl"], "value": "speedup"}),
        ("No case passes or fails without a tolerance", judged({"impl=a": 0.001, "impl=b": 0.2})[0],
         {"rows": "impl", "value": ["passed", "error_rel_l1"]}),
        ("Nor beside one that was recorded as inaccurate",
         tables([case_row("impl=a"), case_row("impl=b", flags=["inaccurate"])],
                metrics=[*timed("impl=a", "impl=b"), metric_row("impl=a", "error_rel_l1", 0.001, "1")]),
         {"rows": "impl", "value": "passed"}),
        ("No case was compared", judged({"impl=a": None, "impl=b": None}),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("No case is within the tolerance", judged({"impl=a": 0.2, "impl=b": 0.2}),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("No case but the baseline was compared", judged({"impl=a": 0.001, "impl=b": None}),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("No case but the baseline is within the tolerance", judged({"impl=a": 0.001, "impl=b": 0.2}),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("Each case but the baseline is inaccurate or unchecked",
         judged({"impl=a": 0.001, "impl=b": None, "impl=c": 0.2}),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("A flag of all cases is written once below the table",
         judged({"impl=a": 0.001, "impl=b": 0.2}, ("host_bound",)),
         {"rows": "impl", "value": ["time", "speedup"]}),
        ("The flag of the only case stands with its time", judged({"impl=a": 0.001}, ("host_bound",)),
         {"rows": "impl", "value": "time"}),
        ("The wall time of a loop is nsys's if plain ran none of the cases", loops("nsys", "torch"),
         {"rows": "n", "value": ["metric.loop_wall", "memory"]}),
        ("So it is if no other profiler ran them", loops("nsys"),
         {"rows": "n", "value": ["metric.loop_wall", "memory"]}),
        ("The wall time of a loop is plain's if it ran one of the cases", loops("nsys", "torch", plain=True),
         {"rows": "n", "value": "metric.loop_wall"}),
        ("More tables than nine are counted",
         tables(metrics=timed(*(f"impl={i},n={n}" for i in "ab" for n in range(12)))),
         {"rows": "impl", "value": "time"}),
        ("A table that no case of the run is in says so", tables(metrics=timed("precision=fp32,n=1")),
         {"where": {"precision": "bf16"}, "rows": "n", "value": "time"}),
        ("A value of `where` may come from a case's name",
         tables(metrics=timed("causal=true,n=1", "causal=false,n=1", "causal=true,n=2", "causal=true,n=3")),
         {"where": {"causal": True, "n": [1, "2"]}, "rows": "n", "value": "time"}),
        ("A long table is parted by its first axis", tables(metrics=timed(*LONG)),
         {"rows": ["mask", "dtype", "n"], "columns": "impl", "value": "time"}),
        ("A short one is not", tables(metrics=timed(*LONG)),
         {"rows": ["mask", "dtype", "n"], "where": {"n": [1, 2, 3]}, "columns": "impl", "value": "time"}),
    ]  # fmt: skip


def test_tables_are_written_as_in_the_golden_file(regenerate):
    written = []
    for shown, run, wanted in studies():
        data, record = (run, {}) if isinstance(run, Tables) else run
        section = study_table(only(data, record, **wanted))
        written.append(write_section(replace(section, title=shown)) + "\n")
    check_golden("study_tables.txt", "\n".join(written), regenerate)


def test_the_text_file_has_every_row_of_a_long_table():
    study = only(tables(metrics=timed(*(f"n={n}" for n in range(130)))), {}, rows="n", value="time")
    lines = [line.split() for line in write_section(study_table(study)).splitlines()]
    assert [line[0] for line in lines if line[1:] == ["5.00"]] == [str(n) for n in range(130)]


def test_old_runs_without_tables_have_none(example):
    data, run = example
    before = {key: value for key, value in run["pipeline"].items() if key not in ("tables", "plots")}
    assert analyze(data, {**run, "pipeline": before}).studies == ()


def test_only_the_first_table_of_a_study_is_open():
    study = only(*report_study.example("h200-attention"), rows="impl", columns="mode", value="time")
    blocks = [block for block in study_table(study).blocks if not isinstance(block, Paragraph)]
    assert [isinstance(block, Details) for block in blocks] == [False, True, True]


def test_a_table_that_the_study_is_about_follows_the_answer(example, tmp_path):
    data, run = example
    entries = [
        {"title": "Second", "rows": ["impl"], "columns": [], "value": ["memory"]},
        {"title": "The question", "first": True, "rows": ["seqlen"], "columns": ["impl"], "value": ["time"]},
    ]
    options = {**run, "pipeline": {**run["pipeline"], "tables": entries}}
    page = write_page(analyze(data, options), data, options, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings[1:3] == ["## The question", "## Times"]
    assert "### Second" in headings and page.count("## The question\n") == 1
    assert page.index("`xformers` is fastest") < page.index("## The question") < page.index("## Study tables")


def test_tables_stand_behind_the_answer_and_in_the_text_file(tmp_path):
    run = asking({}, {"workload": "eager", "title": "By <size>", "rows": "size", "value": "time"},
                 {"title": "By range", "note": "Read <b>*this*</b> | first.", "rows": "size", "columns": "phase",
                  "phase": ["forward > softmax", "a <b>`*range*`</b>"], "value": "add.time"},
                 {"workload": "gone", "title": "Of none that was run", "rows": "size", "value": "time"})  # fmt: skip
    data = lm()
    text = write_page(analyze(data, run), data, run, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    section = text.partition("## Study tables\n")[2].partition("\n## ")[0]
    assert section.lstrip().startswith("### By &lt;size>\n\nTimes are the median time of a call.")
    assert "| small | 10.0 |" in section and "Of none" not in text
    assert r"Read &lt;b>\*this\*&lt;/b> \| first." in section and "| forward > softmax |" in section
    assert "Nothing was recorded in the range ``a <b>`*range*`</b>``." in section
    assert text.index("## Study tables") < text.index("## Kernel share")
    plain = (tmp_path / "comparison_results.txt").read_text(encoding="utf-8")
    assert plain.startswith("By <size>\n=====") and "small      10.0" in plain


OF_PARTS = [
    (path.stem, table["title"], table["value"])
    for path in sorted((EXAMPLE.parents[1] / "pipelines").glob("*.yaml"))
    for table in yaml.safe_load(path.read_text(encoding="utf-8")).get("tables", [])
    if "rest.time" in table["value"]
]


@pytest.mark.parametrize(("pipeline", "title", "words"), OF_PARTS)
def test_in_a_table_with_the_rest_the_parts_add_up_to_all_kernels(pipeline, title, words):
    classes = ["attention", "add", "gemm", "softmax", *OTHER_CLASSES]
    kernels = [kernel_row("n=1", f"k{i}", 1, 2.0**i, kernel_class=name) for i, name in enumerate(classes)]
    study = only(tables(kernels=[*kernels, kernel_row("n=1", COPY, 1, 0.5)]), {}, rows="n", value=words)
    times = [cell(study, (1,), (word,)) for word in words if word.endswith(".time") and word != "kernels.time"]
    assert sum(times) == 2.0 ** len(classes) - 0.5, (pipeline, title)


@pytest.mark.slow
def test_the_work_for_a_table_grows_with_its_cases_and_not_with_their_square():
    few, many = (python_calls(lambda n=n: table_of(n)) for n in (40, 400))
    assert many < 15 * few


def table_of(rows):
    """Make a table with ``rows`` rows and five columns, one case a cell."""
    names = [f"impl={impl},n={n}" for impl in "abcde" for n in range(rows)]
    data = tables(metrics=[metric_row(name, "time", 5.0, n=1) for name in names])
    (study,) = analyze(data, asking({}, {"rows": "n", "columns": "impl", "value": ["time", "throughput"]})).studies
    assert len(study.grids[0].rows) == rows and len(list(every_table(study_table(study)))) == 1


def python_calls(work):
    """Return how many functions of Python ``work`` calls: a measure of work that does not depend on load."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


# --- profilers as an axis --------------------------------------------------------------------------------------------


def test_each_profiler_has_a_column_with_its_own_times(example, by_hand):
    study = only(*example, where={"mode": "fwd", "impl": "fa2"}, rows="seqlen", columns="profiler", value="time")
    assert study.grids[0].columns == (("plain",), ("nsys",), ("torch",), ("ncu",)) and study.time_source is None
    case = CASE.format(impl="fa2", mode="fwd", seqlen=2048)
    assert cell(study, (2048,), ("plain",)) == metric_by_hand(by_hand, case, "time")
    for profiler, iterations in (("nsys", 30), ("torch", 30), ("ncu", 1)):
        own = kernels_by_hand(by_hand, case, profiler)
        assert cell(study, (2048,), (profiler,)) == pytest.approx(own["total_ns"].sum() / iterations)


def test_rates_of_a_profiler_are_of_its_own_time(example):
    options = {"where": {"mode": "fwd", "impl": "fa2"}, "rows": "seqlen", "columns": "profiler"}
    times, rates = (only(*example, value=value, **options) for value in ("time", "tflops"))
    flops = {
        cell(times, (2048,), (name,)) * cell(rates, (2048,), (name,)) for name in ("plain", "nsys", "ncu", "torch")
    }
    assert max(flops) == pytest.approx(min(flops))
