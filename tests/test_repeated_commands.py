"""``repeats`` of a command: processes of each case, interleaved over the cases, and what a page says of their times."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from program import ROOT, profpipe, rows
from report_study import analyze, case_row, check_studies, kernel_row, metric_row, tables

from profpipe.analysis.case_index import CaseIndex
from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError
from profpipe.ingest import job_tables
from profpipe.job import Tool
from profpipe.measure.statistics import interval_of_processes, median_interval
from profpipe.report.sections import agreement, headline, times
from profpipe.results import schema
from profpipe.runner import plan

#: Each process appends its case to order.txt. The case `slow` takes longer, and `bad` fails in its second process.
PIPELINE = """
version: 1
name: repeated
defaults: {profilers: [plain], warmup: 3, repeats: 7, timing: {seed: 1}}
workloads:
  w:
    command: [sh, -c, "echo {kind} >> order.txt; %s"]
    matrix: {kind: [quick, slow]}
    baseline: {kind: slow}
    repeats: 4
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
SLEEPS = "test {kind} = quick || sleep 0.4"


def write(folder, text):
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def planned(tmp_path, text, **narrowed):
    pipeline = load_pipeline(write(tmp_path, text))
    tools = {name: Tool(name, "1", f"/bin/{name}") for name in ("plain", "nsys")}
    return plan.plan(pipeline, tools, scripts={}, cwd=tmp_path, out=tmp_path / "o", python="python", **narrowed)


# --- the plan --------------------------------------------------------------------------------------------------------


def test_processes_are_interleaved_in_rounds_and_each_round_has_an_order_drawn_with_the_seed(tmp_path):
    text = PIPELINE % ":"
    jobs = planned(tmp_path, text)
    assert [job.repeat for job in jobs] == [1, 1, 2, 2, 3, 3, 4, 4]
    by_round = [tuple(job.cases[0].params["kind"] for job in jobs[i : i + 2]) for i in range(0, 8, 2)]
    assert {frozenset(order) for order in by_round} == {frozenset(("quick", "slow"))} and len(set(by_round)) == 2
    assert planned(tmp_path, text) == jobs
    others = [planned(tmp_path, text.replace("seed: 1", f"seed: {seed}")) for seed in range(2, 9)]
    assert any([job.cases for job in other] != [job.cases for job in jobs] for other in others)


def test_each_process_has_its_folder_and_a_profiler_records_one_process(tmp_path):
    jobs = planned(tmp_path, PIPELINE % ":", profilers=["plain", "nsys"])
    folders = [job.folder.relative_to(tmp_path / "o/raw/w") for job in jobs]
    assert len(set(folders)) == len(folders) == 4 * 2 + 2
    assert Path("plain/1/process-4") in folders and folders[-2:] == [Path("nsys/1"), Path("nsys/2")]


def test_defaults_for_iterations_start_no_further_process_and_are_legal(tmp_path):
    jobs = planned(tmp_path, (PIPELINE % ":").replace("    repeats: 4\n", ""))
    assert [job.captures for job in jobs] == [1, 1] and not any(job.is_repeated for job in jobs)
    pipeline = load_pipeline(tmp_path / "pipeline.yaml", ["repeats=2", "workloads.w.repeats=6"])
    assert pipeline.workloads["w"].repeats == 6


@pytest.mark.parametrize(
    ("line", "overrides", "message"),
    [
        ("warmup: 3", [], ": workloads.w.warmup: has no effect on a command"),
        ("timing: {budget_s: 1}", [], ": workloads.w.timing: has no effect on a command"),
        ("repeats: 0", [], ": workloads.w.repeats: "),
        ("repeats: 4", ["workloads.w.timing.seed=1"], "workloads.w.timing: has no effect on a command"),
    ],
)
def test_settings_of_the_harness_are_refused_for_a_command(tmp_path, line, overrides, message):
    path = write(tmp_path, (PIPELINE % ":").replace("    repeats: 4", f"    {line}"))
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path, overrides)
    assert message in str(caught.value)


def test_set_reaches_the_scripts_and_leaves_the_commands_beside_them(tmp_path):
    (tmp_path / "mine.py").write_text("def build(params):\n    return lambda: None\n", encoding="utf-8")
    path = write(tmp_path, (PIPELINE % ":") + "  s: {script: mine.py}\n")
    pipeline = load_pipeline(path, ["warmup=1"])
    assert (pipeline.workloads["s"].warmup, pipeline.workloads["w"].warmup) == (1, 3)


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_time_of_a_case_is_the_median_over_its_processes_with_an_interval(tmp_path):
    write(tmp_path, PIPELINE % SLEEPS)
    profpipe(tmp_path, "run", "--out", "o")
    assert sorted((tmp_path / "order.txt").read_text().split()) == ["quick"] * 4 + ["slow"] * 4
    metrics = [row for row in rows(tmp_path / "o/latest/metrics.parquet") if row["case"] == "kind=slow"]
    assert {row["metric"] for row in metrics} == {"process_wall", "process_cpu", "peak_host"}
    merged, *single = [row for row in metrics if row["metric"] == "process_wall"]
    assert (merged["subject"], merged["n"]) == ("", "4")
    assert [row["subject"] for row in single] == [f"process {number}" for number in (1, 2, 3, 4)]
    walls = [float(row["value"]) for row in single]
    assert float(merged["value"]) == pytest.approx(statistics.median(walls)) and min(walls) > 0.4e9
    assert float(merged["ci_low"]) < float(merged["value"]) < float(merged["ci_high"])
    page = (tmp_path / "o/latest/SUMMARY.md").read_text()
    assert "`kind=quick` is fastest" in page and "of process wall time" in page and "over 4 processes" in page
    details = (tmp_path / "o/latest/details.md").read_text()
    assert details.count("w under plain, 4 processes") == 2


def test_a_case_that_fails_in_one_process_has_failed_and_starts_no_other(tmp_path):
    second = "test {kind} = quick || test $(grep -c slow order.txt) -lt 2"
    write(tmp_path, PIPELINE % second)
    done = forked.run(tmp_path, "run", "--out", "o", env=ENVIRONMENT)
    assert done.returncode == 1
    assert sorted((tmp_path / "order.txt").read_text().split()) == ["quick"] * 4 + ["slow"] * 2
    cases = {row["case"]: row for row in rows(tmp_path / "o/latest/cases.csv")}
    assert cases["kind=quick"]["status"] == "ok" and cases["kind=slow"]["status"] == "failed"
    assert cases["kind=slow"]["reason"].startswith("process 2 of 4: ")
    page = (tmp_path / "o/latest/SUMMARY.md").read_text()
    assert "is fastest" not in page and "process 2 of 4" in page


@pytest.mark.slow
def test_a_killed_run_continues_with_the_processes_that_it_lacks(tmp_path):
    write(tmp_path, PIPELINE % "sleep 0.2")
    argv = [sys.executable, "-m", "profpipe", "run", "--out", "o"]
    child = subprocess.Popen(argv, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    order = tmp_path / "order.txt"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (order.exists() and len(order.read_text().split()) >= 4):
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(order.read_text().split())
    assert 4 <= before < 8
    profpipe(tmp_path, "resume", "--out", "o")
    # The process that was running when its runner died is started again, and no other.
    assert 8 <= len(order.read_text().split()) <= 9
    merged = [row for row in rows(tmp_path / "o/latest/metrics.parquet") if not row["subject"]]
    assert {row["n"] for row in merged} == {"4"} and len(merged) == 6
    jobs = json.loads((tmp_path / "o/latest/run.json").read_text())["jobs"]
    assert len({job["folder"] for job in jobs}) == len(jobs) == 8


@pytest.mark.slow
def test_reuse_takes_each_process_once_and_none_where_another_case_takes_turns(tmp_path):
    path = write(tmp_path, PIPELINE % ":")
    profpipe(tmp_path, "run", "--out", "o")
    profpipe(tmp_path, "run", "--out", "o", "--reuse")
    assert len((tmp_path / "order.txt").read_text().split()) == 8
    _, second = sorted(path for path in (tmp_path / "o").glob("2*"))
    assert len({row["value"] for row in rows(second / "metrics.parquet")}) > 4
    path.write_text(path.read_text().replace("[quick, slow]", "[quick, slow, other]"))
    profpipe(tmp_path, "run", "--out", "o", "--reuse")
    assert len((tmp_path / "order.txt").read_text().split()) == 8 + 12


@pytest.mark.slow
def test_history_and_compare_have_the_wall_times_of_commands(tmp_path):
    write(tmp_path, PIPELINE % ":")
    profpipe(tmp_path, "run", "--out", "o")
    result = json.loads(profpipe(tmp_path, "run", "--out", "o", "--json=full"))
    assert all(case["time"]["median"] > 0 and case["time"]["ci_low"] is not None for case in result["cases"])
    a, b = sorted(path.name for path in (tmp_path / "o").glob("2*"))
    assert "w/kind=slow" in profpipe(tmp_path, "compare", a, b, "--out", "o")
    assert "kind=slow" in profpipe(tmp_path, "history", "--out", "o")


#: Steps of some 10 ms: what else the machine does is small beside them, and they are even.
TRAIN = """
import time
import torch
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    weight.square().sum().backward()
    time.sleep(0.01)
    optimizer.step()
"""


@pytest.mark.usefixtures("stub_torch")
def test_a_program_with_steps_has_the_time_of_a_step_its_rate_and_its_wall_time(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    settings = ["--set", "repeats=2", "--set", "items_per_step=100", "--warmup-steps", "3"]
    profpipe(tmp_path, "run", "-p", "plain", *settings, "--", sys.executable, "train.py")
    run = tmp_path / "out" / "latest"
    metrics = {(row["subject"], row["metric"]): row for row in rows(run / "metrics.parquet")}
    times = [float(metrics[subject, "time"]["value"]) for subject in ("process 1", "process 2")]
    assert float(metrics["", "time"]["value"]) == pytest.approx(statistics.mean(times))
    assert int(metrics["", "time"]["n"]) == sum(int(metrics[f"process {n}", "time"]["n"]) for n in (1, 2))
    assert float(metrics["", "items_per_second"]["value"]) == pytest.approx(100e9 / statistics.mean(times))
    assert metrics["", "process_wall"]["n"] == "2"
    assert len({row["process"] for row in rows(run / "steps.parquet")}) == 2
    page = (run / "SUMMARY.md").read_text(encoding="utf-8")
    # On a busy machine the steps may be so uneven that their mean says nothing. Then the answer is of half of them.
    value, low, high = (float(metrics["", "time"][name] or "nan") for name in ("value", "ci_low", "ci_high"))
    is_vague = max(high - value, value - low) > 0.5 * value
    assert ("**Half of the steps take" if is_vague else "**A step takes") in page and "process wall time" not in page


# --- merging ---------------------------------------------------------------------------------------------------------


def test_three_to_five_processes_have_students_interval_and_more_that_of_order_statistics():
    assert interval_of_processes([1.0, 2.0]) is None
    low, high = interval_of_processes([1.0, 2.0, 4.0]) or (0.0, 0.0)
    mean, spread = 7 / 3, statistics.stdev([1.0, 2.0, 4.0])
    assert (low, high) == pytest.approx((mean - 4.303 * spread / 3**0.5, mean + 4.303 * spread / 3**0.5))
    six = [3.0, 1.0, 2.0, 5.0, 4.0, 9.0]
    assert interval_of_processes(six) == median_interval(sorted(six)) == (1.0, 9.0)


@pytest.mark.parametrize("values", [[1.0, 1.0, 100.0], [1.0, 50.0, 50.0, 50.0], [0.0, 0.0, 0.0, 7.0, 9.0]])
def test_the_interval_of_few_processes_holds_their_median(values):
    low, high = interval_of_processes(values) or (0.0, 0.0)
    assert low <= statistics.median(values) <= high


def of_process(number, time, **more):
    """The tables of one process with steps: a step time with its interval, and an outlier of that process."""
    key = {"run": "r", "workload": "w", "case": "c", "profiler": "plain"}
    metrics = [
        {**key, "metric": "time", "value": time, "unit": "ns", "n": 20, "ci_low": time - 1, "ci_high": time + 1},
        {**key, "metric": "time", "subject": "rank 1", "value": time + 5, "unit": "ns", "n": 20},
        {**key, "metric": "step_outlier_copies", "subject": "rank 0 step 7", "value": 1.0, "unit": "ns"},
    ]
    cases = [{**key, "status": "ok", "reason": "", "flags": "[]", "params": "{}", **more}]
    return schema.Tables(cases=schema.frame(schema.CASES, cases), metrics=schema.frame(schema.METRICS, metrics))


def merged(times):
    stored = schema.Tables()
    for number, value in enumerate(times, start=1):
        stored = job_tables.merge_processes(stored, of_process(number, value), number, len(times))
    return stored.metrics.set_index(["metric", "subject"])


def test_steps_of_several_processes_have_the_interval_between_processes_not_within_one():
    metrics = merged([100.0, 110.0, 120.0])
    case = metrics.loc["time", ""]
    assert (case["value"], case["n"]) == (110.0, 60)
    assert case["ci_low"] == pytest.approx(110 - 4.303 * 10 / 3**0.5)
    assert metrics.loc["time", "rank 1"]["value"] == 115.0
    assert metrics.loc["time", "process 2"]["value"] == 110.0
    assert metrics.loc["time", "process 3 rank 1"]["value"] == 125.0


def test_two_processes_have_the_interval_that_holds_both_of_theirs():
    case = merged([100.0, 110.0]).loc["time", ""]
    assert (case["ci_low"], case["ci_high"]) == (99.0, 111.0)


def test_outliers_stay_those_of_their_process():
    subjects = merged([100.0, 110.0]).loc["step_outlier_copies"].index
    assert set(subjects) == {"process 1 rank 0 step 7", "process 2 rank 0 step 7"}


def test_a_process_that_runs_again_replaces_its_first_numbers():
    stored = job_tables.merge_processes(schema.Tables(), of_process(1, 100.0), 1, 12)
    stored = job_tables.merge_processes(stored, of_process(12, 300.0), 12, 12)
    stored = job_tables.merge_processes(stored, of_process(1, 200.0), 1, 12)
    metrics = stored.metrics.set_index(["metric", "subject"])
    assert metrics.loc["time", ""]["value"] == 250.0 and metrics.loc["time", "process 1"]["value"] == 200.0


def test_numbers_of_single_processes_are_no_kernels_or_phases_of_the_case():
    index = CaseIndex.of(job_tables.merge_processes(schema.Tables(), of_process(1, 100.0), 1, 2))
    assert {subject for _, _, subject in index.numbers} == {""} and index.numbers["c", "plain", ""]["time"].value == 100


# --- the page --------------------------------------------------------------------------------------------------------


def wall(case, value, n=1, **more):
    return metric_row(case, "process_wall", value, n=n, **more)


def workload(metrics, kernels=None, **own):
    declared = {"command": ["python", "t.py", "{k}"], "matrix": {"k": [1, 2]}, "baseline": {"k": 1}, **own}
    data = tables([case_row("k=1"), case_row("k=2")], kernels or [], metrics=metrics)
    (found,) = analyze(data, {"pipeline": {"workloads": {"w": declared}}}).workloads
    return found


def studies():
    one = workload([wall("k=1", 3e9), wall("k=2", 1e9)], repeats=1)
    yield "One process of each case shows the wall time and no winner", headline.headline(one), times.times(one)
    second = workload([wall("k=1", 3e9), wall("k=2", 1e9, 5, ci_low=0.9e9, ci_high=1.1e9)], repeats=5)
    yield "A single sample of the second case is enough for a doubt", headline.headline(second)
    two = workload([wall("k=1", 3e9, 2), wall("k=2", 1e9, 2)], repeats=2)
    yield "Two processes have no interval and name no winner", headline.headline(two), times.times(two)
    apart = [wall("k=1", 3e9, 3, ci_low=2.9e9, ci_high=3.1e9), wall("k=2", 1e9, 3, ci_low=0.9e9, ci_high=1.1e9)]
    yield "Processes with intervals apart name a winner", headline.headline(workload(apart, repeats=3))
    near = [wall("k=1", 3e9, 3, ci_low=1e9, ci_high=5e9), apart[1]]
    yield "Overlapping ones are a tie", headline.headline(workload(near, repeats=3))
    steps = [metric_row(f"k={k}", "time", 1e6 * k, n=20, ci_low=0.99e6 * k, ci_high=1.01e6 * k) for k in (1, 2)]
    both = workload([*steps, wall("k=1", 9e9), wall("k=2", 3e9)], repeats=1)
    yield "The time of steps comes before the wall time of processes", headline.headline(both)
    kernels = [kernel_row(f"k={k}", "ampere_sgemm", 9, k * 1e6) for k in (1, 2)]
    for metric in ("process_wall", "time"):
        compared = workload([metric_row(f"k={k}", metric, 5e9, n=20) for k in (1, 2)], kernels)
        yield f"No {metric} of a command is compared with its kernels", agreement.agreement(compared)
    yield "The kernel sum of one process wins nothing", headline.headline(workload([], kernels))


def test_commands_read_as_in_the_golden_file(regenerate):
    check_studies("commands.md", studies(), regenerate)
