"""The cases whose kernels ncu counts: the largest shape of each variant, or all."""

import os
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from program import WITHOUT_TORCH
from report_study import analyze, case_row, example, tables

from profpipe.analysis.cases import comparisons, select_largest
from profpipe.commands.execution import choose_ncu_cases
from profpipe.config.loader import load_pipeline
from profpipe.config.models import Workload
from profpipe.job import Tool
from profpipe.report.sections import kernels, warnings
from profpipe.results.manifest import Manifest
from profpipe.results.schema import ALL
from profpipe.runner import plan
from profpipe.runner.request import RunRequest
from profpipe.runner.slurm import submit

ROOT = Path(__file__).parents[1]
PIPELINE = """
version: 1
name: naps
workloads:
  naps: {script: naps, profilers: [plain, ncu], matrix: {impl: [a, b], n: [1, 2, 3]}}
"""
LARGEST = ["impl=a,n=3", "impl=b,n=3"]
SMALLER = ["impl=a,n=1", "impl=a,n=2", "impl=b,n=1", "impl=b,n=2"]
ENV = {**os.environ, "PYTHONPATH": WITHOUT_TORCH, "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("workload", "largest"),
    [
        ({"matrix": {"impl": ["a", "b"], "n": [3, 1, 2]}}, LARGEST),
        ({"matrix": {"impl": ["a"]}}, ["impl=a"]),
        ({"matrix": {"impl": ["a"], "kind": ["x", "y"]}}, ["impl=a,kind=x", "impl=a,kind=y"]),
        ({"matrix": {"impl": ["a"], "causal": [True, False], "batch": [1, 2, 3], "seqlen": [64, 128]}},
         [f"impl=a,causal={c},batch={n},seqlen=128" for c in ("true", "false") for n in (1, 2, 3)]),
        # A variant that has no such shape is counted at its own largest one.
        ({"matrix": {"impl": ["a", "b"], "n": [1, 2]}, "exclude": [{"impl": ["b"], "n": [2]}]},
         ["impl=a,n=2", "impl=b,n=1"]),
        ({"matrix": {"impl": ["a"], "n": [1, 2]}, "include": [{"impl": "s", "topk": 0.5, "n": 1},
                                                             {"impl": "s", "topk": 0.5, "n": 2}]},
         ["impl=a,n=2", "impl=s,n=2,topk=0.5"]),
    ],
)  # fmt: skip
def test_ncu_counts_each_variant_at_the_largest_value_of_the_running_axis(workload, largest):
    declared = Workload.model_validate({"script": "w", **workload})
    assert sorted(select_largest(plan.cases(declared), declared)) == sorted(largest)


def test_of_the_default_study_ncu_counts_eight_of_24_cases():
    pipeline = load_pipeline(ROOT / "pipeline.yaml", env={})
    chosen = choose_ncu_cases(RunRequest(pipeline, ROOT / "pipeline.yaml", ROOT)).ncu_cases["attention"]
    assert len(chosen) == 8 and all(name.endswith("seqlen=2048") for name in chosen)
    command = {"command": ["echo", "{n}"], "matrix": {"n": [1, 2]}}
    programs = pipeline.model_copy(update={"workloads": {"w": Workload.model_validate(command)}})
    assert not choose_ncu_cases(RunRequest(programs, ROOT, ROOT)).ncu_cases


@pytest.mark.parametrize("option", [[], ["--ncu-all"], ["--set", "ncu.shapes=all"]])
def test_a_run_is_planned_saved_and_reused_with_the_chosen_cases(tmp_path, option):
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "naps.py").write_text("def build(params):\n    return lambda: None\n")
    count = 6 if option else 2
    words = ["run", *option, "--set", "timing.budget_s=0.01", "--set", "repeats=1"]
    printed = forked.run(tmp_path, *words, "--dry-run", env=ENV).stdout
    assert "6 cases in 2 jobs" in printed and f"naps under ncu: {count} cases" in printed
    forked.run(tmp_path, *words, env=ENV)
    folder = (tmp_path / "out" / "latest").resolve()
    request = RunRequest.load(folder)
    assert ([*request.ncu_cases.get("naps", ())] or LARGEST) == LARGEST and bool(request.ncu_cases) is not bool(option)
    # The times of another choice are reused: the key of a job has its cases, and not what ncu counts.
    forked.run(tmp_path, *words, "--reuse", "--set", f"ncu.shapes={'largest' if option else 'all'}", env=ENV)
    assert [job.profiler for job in Manifest.load(tmp_path / "out" / "latest").jobs if job.reused_from] == ["plain"]


def test_on_a_cluster_no_task_is_for_a_case_that_ncu_leaves_out(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"{PIPELINE}slurm: {{spread: all}}\n")
    (tmp_path / "naps.py").write_text("def build(params):\n    return lambda: None\n")
    request = choose_ncu_cases(RunRequest.create(load_pipeline(path), path, tmp_path / "out"))
    tasks = submit.plan_tasks(request, comparisons)
    assert [task.cases[0] for task in tasks if task.profilers == ("ncu",)] == LARGEST
    assert len(tasks) == 8
    tools = {name: Tool(name, "1") for name in ("plain", "ncu")}
    place = {"scripts": {"naps": path}, "cwd": tmp_path, "out": tmp_path, "python": "python"}
    narrowed = {"ncu_cases": request.ncu_cases, "wanted": SMALLER}
    assert [job.profiler for job in plan.plan(request.pipeline, tools, **place, **narrowed)] == ["plain"]


def test_the_page_says_what_ncu_left_out_and_warns_of_nothing():
    data, run = example("auto_profile")
    before = analyze(data, run)
    assert before.workloads[0].kernels.uncounted == 0
    largest = set(data.cases["case"][data.cases["case"].str.endswith("seqlen=4096")])
    frames = {table.name: getattr(data, table.name) for table in ALL}
    kept = {
        name: rows[(rows["profiler"] != "ncu") | rows["case"].isin(largest)] if "profiler" in rows else rows
        for name, rows in frames.items()
    }
    for job in run["jobs"]:
        if job["profiler"] == "ncu":
            job["cases"] = [case for case in job["cases"] if case in largest]
    after = analyze(replace(data, **kept), run)
    ran = set(data.cases["case"][data.cases["status"] == "ok"])
    workload, uncounted = after.workloads[0], len(ran - largest)
    assert workload.kernels.uncounted == uncounted > 0
    summary = kernels.kernels(workload).summary
    assert f"{uncounted} cases of smaller shapes not counted by ncu: --ncu-all counts them." in str(summary)
    assert "not counted" not in str(kernels.kernels(before.workloads[0]).summary)
    recorded = Manifest.parse(run)
    assert warnings.warnings(after, recorded) == warnings.warnings(before, Manifest.parse(example("auto_profile")[1]))
    assert warnings.skipped(after) == warnings.skipped(before) and after.pending == before.pending == ()
    agreements, agreements_before = (findings.workloads[0].agreements for findings in (after, before))
    counted = largest & agreements.keys()
    assert counted and all(agreements[case] == agreements_before[case] for case in counted)


def test_a_profiler_that_is_missing_was_skipped_for_all_cases():
    ended = [case_row(f"impl=a,n={n}") for n in (1, 2, 3)]
    job = {"workload": "w", "profiler": "ncu", "status": "skipped", "reason": "no ncu", "cases": ["impl=a,n=3"]}
    findings = analyze(tables([*ended, case_row("impl=a,n=3", "ncu", "skipped", "no ncu")]), {"jobs": [job]})
    assert [(group.profilers, group.is_whole_workload) for group in findings.not_run] == [(("ncu",), True)]
