"""``run --captures N``: several processes of each case, interleaved over all workloads, and the times of the case."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import pytest
from program import WITHOUT_TORCH, profpipe, rows

from profpipe import cli
from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError
from profpipe.ingest import job_tables
from profpipe.job import Tool
from profpipe.measure.statistics import interval_of_processes
from profpipe.results import schema
from profpipe.runner import plan
from profpipe.runner.request import RunRequest

#: Each process appends its case to order.txt. The case n=3 fails in the second process that builds it.
WORKLOAD = """
import time
from pathlib import Path

PARAMS = {"n": 1}

def build(params):
    with Path("order.txt").open("a") as stream:
        stream.write(f"{params['n']} ")
    if params["n"] == 3 and Path("order.txt").read_text().split().count("3") == 2:
        raise RuntimeError("asked to fail")
    time.sleep(0.1)
    return lambda: sum(range(1000 * params["n"]))
"""
PIPELINE = """
version: 1
name: captured
defaults: {profilers: [plain, nsys], warmup: 1, repeats: 5, timing: {budget_s: 0.02, rounds: 1, seed: 1}}
workloads:
  sums: {script: sums.py, matrix: {n: [1, 2]}}
  program: {command: [sh, -c, "printf '{kind} ' >> order.txt"], matrix: {kind: [quick, other]}, repeats: 9}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "sums.py").write_text(WORKLOAD, encoding="utf-8")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
    return tmp_path


def planned(project, captures):
    request = RunRequest.create(
        load_pipeline(project / "pipeline.yaml"), project / "pipeline.yaml", project, captures=captures
    )
    tools = {name: Tool(name, "1", f"/bin/{name}") for name in ("plain", "nsys")}
    where: dict[str, Any] = {"scripts": {"sums": project / "sums.py"}, "cwd": project, "out": project / "o"}
    return plan.plan(request.pipeline, tools, python="python", captures=request.captures, **where)


def test_the_first_process_of_every_workload_comes_before_the_second_of_any(project):
    jobs = [job for job in planned(project, 4) if job.profiler == "plain"]
    assert [job.repeat for job in jobs] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    rounds = [[job.title + job.cases[0].id for job in jobs[i : i + 3]] for i in range(0, 12, 3)]
    assert len({frozenset(each) for each in rounds}) == 1 and len({tuple(each) for each in rounds}) > 1
    assert len({job.folder for job in jobs}) == 12 and {job.captures for job in jobs} == {4}
    assert {job.settings.repeats for job in jobs if job.script} == {5}, "the iterations of a script stay"


def test_another_profiler_runs_once_and_after_the_captures(project):
    jobs = planned(project, 4)
    assert [job.profiler for job in jobs[12:]] == ["nsys"] * 3
    assert not any(job.is_repeated for job in jobs[12:])


def test_one_capture_is_one_process_also_of_a_command_with_repeats(project):
    assert len(planned(project, 1)) == 6 and not any(job.is_repeated for job in planned(project, 1))
    assert sum(job.profiler == "plain" for job in planned(project, None)) == 1 + 2 * 9


def test_the_number_of_captures_is_kept_for_resume_and_a_run_of_an_earlier_version_has_none(project):
    path = project / "pipeline.yaml"
    RunRequest.create(load_pipeline(path), path, project, captures=3).save(project / "run")
    assert RunRequest.load(project / "run").captures == 3
    file = project / "run/raw/request.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in document.items() if key != "captures"}))
    assert RunRequest.load(project / "run").captures is None


def times_of(run, case):
    return {
        row["subject"]: row for row in rows(run / "metrics.parquet") if (row["case"], row["metric"]) == (case, "time")
    }


@pytest.mark.slow
def test_the_time_of_a_case_is_the_median_of_its_processes_and_the_interval_holds_their_spread(project):
    profpipe(project, "run", "-p", "plain", "--captures", "3", PYTHONPATH=WITHOUT_TORCH)
    run = project / "out" / "latest"
    words = (project / "order.txt").read_text().split()
    assert {word: words.count(word) for word in words} == {"1": 3, "2": 3, "quick": 3, "other": 3}
    found = times_of(run, "n=2")
    assert list(found) == ["", "process 1", "process 2", "process 3"]
    single = [float(found[f"process {number}"]["value"]) for number in (1, 2, 3)]
    assert float(found[""]["value"]) == statistics.median(single)
    interval = float(found[""]["ci_low"]), float(found[""]["ci_high"])
    assert interval == pytest.approx(interval_of_processes(single))
    page = (run / "SUMMARY.md").read_text(encoding="utf-8")
    assert "in 3 processes" in page and "over 3 processes" in page


@pytest.mark.slow
def test_a_case_that_fails_in_one_process_is_left_out_of_the_later_ones(project):
    path = project / "pipeline.yaml"
    path.write_text(path.read_text().replace("n: [1, 2]", "n: [3, 1]"), encoding="utf-8")
    words = ("run", "-p", "plain", "-w", "sums", "--captures", "4")
    profpipe(project, *words, exit_code=1, PYTHONPATH=WITHOUT_TORCH)
    words = (project / "order.txt").read_text().split()
    assert (words.count("3"), words.count("1")) == (2, 4)
    cases = {row["case"]: row for row in rows(project / "out/latest/cases.csv")}
    assert cases["n=1"]["status"] == "ok" and cases["n=3"]["status"] == "failed"
    assert cases["n=3"]["reason"].startswith("process 2 of 4: ") and "asked to fail" in cases["n=3"]["reason"]
    assert len(times_of(project / "out/latest", "n=1")) == 1 + 4


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_run_continues_with_the_processes_that_it_lacks(project):
    argv = [sys.executable, "-m", "profpipe", "run", "-p", "plain", "-w", "sums", "--captures", "5"]
    environment = {**os.environ, "PYTHONPATH": WITHOUT_TORCH, "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.Popen(argv, cwd=project, env=environment, stderr=subprocess.DEVNULL)
    order, deadline = project / "order.txt", time.monotonic() + 60
    while time.monotonic() < deadline and not (order.exists() and len(order.read_text().split()) >= 5):
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 5 <= len(order.read_text().split()) < 10
    profpipe(project, "resume", PYTHONPATH=WITHOUT_TORCH)
    # The case that was running when its runner died is measured again, and the other one where its process had not
    # ended.
    assert 10 <= len(order.read_text().split()) <= 12
    assert len(times_of(project / "out/latest", "n=1")) == len(times_of(project / "out/latest", "n=2")) == 1 + 5


@pytest.mark.slow
def test_a_program_from_the_command_line_is_captured_too(project):
    # An argument that is secret changes nothing.
    program = ("sh", "-c", "printf x >> order.txt", "--password", "hunter2hunter2")
    profpipe(project, "run", "-p", "plain", "--captures", "3", "--", *program)
    assert (project / "order.txt").read_text() == "xxx"
    walls = [row for row in rows(project / "out/latest/metrics.parquet") if row["metric"] == "process_wall"]
    assert [row["subject"] for row in walls] == ["", "process 1", "process 2", "process 3"]


# --- merging ---------------------------------------------------------------------------------------------------------


def of_process(flags="[]", **metrics):
    key = {"run": "r", "workload": "w", "profiler": "plain"}
    numbers = [{**key, "case": case, "metric": name, "value": value, "n": 5}
               for case in ("a", "b") for name, value in metrics.items()]  # fmt: skip
    cases = [{**key, "case": case, "status": "ok", "seconds": 1.0, "flags": flags} for case in ("a", "b")]
    return schema.Tables(metrics=schema.frame(schema.METRICS, numbers), cases=schema.frame(schema.CASES, cases))


def test_each_case_of_a_process_is_merged_apart_and_has_the_worst_errors_and_the_flags_of_all_processes():
    first = {"time": 3, "time_min": 2, "time_max": 4, "error_max": 0.5, "cosine": 0.9}
    second = {"time": 5, "time_min": 1, "time_max": 3, "error_max": 0.1, "cosine": 0.8}
    stored = job_tables.merge_processes(schema.Tables(), of_process('["noisy"]', **first), 1, 2)
    merged = job_tables.merge_processes(stored, of_process('["throttled"]', **second), 2, 2)
    own = merged.metrics[merged.metrics["subject"] == ""]
    assert {(row["case"], row["metric"]): row["value"] for row in own.to_dict("records")} == {
        (case, name): value
        for case in ("a", "b")
        for name, value in {"time": 4, "time_min": 1, "time_max": 4, "error_max": 0.5, "cosine": 0.8}.items()
    }
    assert list(merged.cases["flags"]) == ['["noisy", "throttled"]'] * 2


def test_a_process_that_was_stopped_early_keeps_the_times_of_the_others():
    stored = job_tables.merge_processes(schema.Tables(), of_process(time=3), 1, 2)
    fresh = of_process(time=5)
    stopped = schema.Tables(cases=fresh.cases, metrics=fresh.metrics[fresh.metrics["case"] == "a"])
    merged = job_tables.merge_processes(stored, stopped, 2, 2).metrics
    own = merged[merged["subject"] == ""]
    assert dict(zip(own["case"], own["value"], strict=True)) == {"a": 4.0, "b": 3.0}


#: (a change of the saved request, the error)
TOO_MUCH: tuple[tuple[dict[str, object], str], ...] = (
    ({"captures": 10**15}, "--captures: asks for 3,000,000,000,000,000 processes, more than 100,000"),
    ({"captures": 10**30}, "captures is a number beyond 64 bits"),
    ({"matrix": {name: list(range(100)) for name in "abcd"}}, "has 100,000,000 points, more than 100,000"),
    ({"gpus": 10**15}, "its gpus is wrong (less_than_equal)"),
    ({"processes": "9223372036854775807"}, "its workloads is wrong (less_than_equal)"),
)


@pytest.mark.slow
def test_a_saved_request_that_asks_for_more_than_any_run_is_refused(project, capsys):
    assert cli.main(["run", str(project / "pipeline.yaml"), "-p", "plain", "--out", str(project / "out")]) == 0
    (file,) = (project / "out").glob("2*/raw/request.json")
    saved = file.read_text()
    for change, where in TOO_MUCH:
        document = json.loads(saved)
        place = {"captures": document, "gpus": document["pipeline"]}
        place.get(next(iter(change)), document["pipeline"]["workloads"]["sums"]).update(change)
        file.write_text(json.dumps(document))
        capsys.readouterr()
        assert cli.main(["resume", str(file.parent.parent)]) == 2
        assert where in capsys.readouterr().err


def test_more_processes_than_any_run_has_are_refused(project):
    with pytest.raises(ConfigError, match=r"--captures: asks for 300,000,000 processes, more than 100,000"):
        planned(project, 10**8)
