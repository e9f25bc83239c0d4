"""How long a run takes, before it runs, and the part of it that fits into a budget: real runs on the CPU."""

import json
import os
import re
import shlex
from pathlib import Path

import forked
import pytest
from program import WITHOUT_TORCH

from profpipe import plugins
from profpipe.results.manifest import Manifest
from profpipe.runner.request import RunRequest

PIPELINE = """
version: 1
name: naps
defaults: {profilers: [plain], timing: {budget_s: 0.3}}
workloads:
  naps:
    script: naps
    repeats: 5
    matrix: {ms: [10, 20]}
"""
NAPS = """
import time

def build(params):
    return lambda: time.sleep(params["ms"] / 1e3)
"""
ENV = {**os.environ, "PYTHONPATH": WITHOUT_TORCH, "CUDA_VISIBLE_DEVICES": ""}


def profpipe(folder, *words, exit_code=0):
    """Return what profpipe prints on both streams."""
    done = forked.run(folder, *words, env=ENV)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout, done.stderr


def total_s(text):
    """Return the seconds of ``2 cases in 1 job, about 1 min 5 s (...)``."""
    found = re.search(r" jobs?, about (?:(\d+) min )?(\d+) s \(", text)
    assert found, text
    return 60 * float(found[1] or 0) + float(found[2])


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "naps.py").write_text(NAPS)
    return tmp_path


@pytest.mark.slow
def test_a_damaged_record_spoils_no_estimate(project):
    profpipe(project, "run", "-q")
    record = (project / "out" / "latest").resolve() / "run.json"
    text = re.sub(r'^( "seconds"): [\d.]+', r"\1: Infinity", record.read_text(), flags=re.MULTILINE)
    assert "Infinity" in text
    record.write_text(text)
    assert total_s(profpipe(project, "run", "--dry-run")[0]) < 60


def test_a_profiler_that_is_missing_counts_as_no_measurement(project):
    printed, _ = profpipe(project, "run", "--dry-run", "-p", "plain,rocprof")
    assert printed.startswith("# 2 cases in 2 jobs, about ") and "(no case measured before: a rough figure)" in printed


def test_a_run_says_how_long_it_takes_first_from_a_model_and_then_from_the_run_before(project):
    printed, _ = profpipe(project, "run", "--dry-run")
    assert re.search(r"^# naps under plain: 2 cases, about \d+ s, in ", printed, re.MULTILINE)
    assert "2 cases in 1 job, about" in printed and "(no case measured before: a rough figure)" in printed
    assert not (project / "out").exists()
    _, progress = profpipe(project, "run")
    assert progress.startswith("2 cases in 1 job, about ")
    job = Manifest.load(project / "out" / "latest").jobs[0]
    printed, _ = profpipe(project, "run", "--dry-run")
    assert "(measured before)" in printed
    own = re.search(r"profpipe itself with tables and report: about (\d+) s", printed)
    assert own and total_s(printed) == pytest.approx(job.seconds + float(own[1]), abs=1.1)
    # A new case takes as long as the others, and what a process costs is known.
    printed, _ = profpipe(project, "run", "--dry-run", "--set", "ms=10,20,30")
    assert "3 cases in 1 job" in printed and "(2 cases measured before)" in printed
    printed, _ = profpipe(project, "run", "--dry-run", "-p", "plain,torch")
    assert "2 cases in 2 jobs" in printed and "(measured before in part)" in printed
    # Other settings are another measurement, and a damaged record is none.
    assert "no case measured before" in profpipe(project, "run", "--dry-run", "--set", "repeats=9")[0]
    record = (project / "out" / "latest").resolve() / "run.json"
    record.write_text(record.read_text().replace('"profiler": "plain"', '"profiler": "of another version"'))
    assert "no case measured before" in profpipe(project, "run", "--dry-run")[0]
    record.write_text("{")
    assert "no case measured before" in profpipe(project, "run", "--dry-run")[0]


def test_cases_that_cannot_run_take_no_time(project):
    printed, _ = profpipe(project, "run", "--dry-run")
    naps = project / "naps.py"
    naps.write_text(f"{NAPS}\nNEEDS_GPU = {{'ms': {{10: '', 20: 'no_such_package'}}}}\n")
    assert total_s(printed) - total_s(profpipe(project, "run", "--dry-run")[0]) >= 2
    naps.write_text(f"{NAPS}\ndef available(params):\n    return 'no nap' if params['ms'] == 20 else None\n")
    profpipe(project, "run")
    assert "torch: 1 case, about 2 s, in " in profpipe(project, "run", "--dry-run", "-p", "torch", "--set", "ms=20")[0]
    naps.write_text(f"{NAPS}\nNEEDS_GPU = {{'ms': [10]}}\n")
    assert "NEEDS_GPU is not a mapping" in profpipe(project, "run", "--dry-run", exit_code=2)[1]


def test_workloads_say_which_implementations_need_a_gpu_or_a_package():
    from profpipe.workload_lib import implementations as dense, varlen

    for name, module in (("attention", dense), ("varlen", varlen)):
        needs = plugins.declared_needs(Path(__file__).parents[1] / "workloads" / f"{name}.py")["impl"]
        rows = {impl: row for impl, row in module.IMPLEMENTATIONS.items() if not row.on_cpu}
        assert needs == {impl: row.package.partition(".")[0].replace("torch", "") for impl, row in rows.items()}


@pytest.mark.slow
def test_the_length_of_a_program_is_not_made_up(tmp_path):
    (tmp_path / "slow.py").write_text("import sys, time\ntime.sleep(float(sys.argv[1]))\nsys.exit(len(sys.argv) > 2)\n")
    words = ("-p", "plain", "--set", "s=1.5", "--", "python", "slow.py", "{s}")
    unknown = "1 case in 1 job; no estimate: slow has never run here"
    assert unknown in profpipe(tmp_path, "run", "--dry-run", *words)[0]
    printed = profpipe(tmp_path, "run", "--budget", "1m", *words, exit_code=2)[1]
    assert "this program has never run here, so there is no estimate. Run it once" in printed
    # A run that failed says nothing about the length of one that does not.
    profpipe(tmp_path, "run", *words, "fail", exit_code=1)
    assert "no estimate" in profpipe(tmp_path, "run", "--dry-run", *words, "fail")[0]
    progress = profpipe(tmp_path, "run", "-p", "plain", "--set", "repeats=2", *words[2:])[1]
    assert progress.startswith(unknown.replace("1 job", "2 jobs")) and "process 1 of 2: s=1.5\n" in progress
    assert re.search(r"process 2 of 2: s=1.5, about [1-5] s left\n", progress)
    printed = profpipe(tmp_path, "run", "--dry-run", *words)[0]
    assert re.search(r"slow under plain: 1 case, about [12] s, in ", printed) and "(measured before)" in printed
    # Another argument is another case of the same program.
    printed = profpipe(tmp_path, "run", "--dry-run", *words[:3], "s=1,1.5", *words[4:])[0]
    assert "2 cases in 2 jobs" in printed and "(1 case measured before)" in printed


@pytest.mark.slow
def test_a_budget_leaves_out_repeats_and_says_how_to_measure_them(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1)\n")
    run, program = ("run", "-p", "plain", "--set", "repeats=5"), ("--", "python", "slow.py")
    profpipe(tmp_path, "run", "-p", "plain", *program)
    printed, _ = profpipe(tmp_path, "run", "-p", "plain", "--dry-run", *program)
    once_s, one_s = total_s(printed), Manifest.load(tmp_path / "out" / "latest").jobs[0].seconds
    assert "takes about" in profpipe(tmp_path, *run, "--budget", "1s", *program, exit_code=2)[1]
    printed, progress = profpipe(tmp_path, *run, "--budget", f"{once_s + 2.5 * one_s:.1f}s", *program)
    folder = (tmp_path / "out" / "latest").resolve()
    kept = len(Manifest.load(folder).jobs)
    assert 1 < kept < 5 and f"processes {kept + 1} and later of each case under plain" in progress
    command = re.search(r"To measure it too: profpipe (.+)", progress)
    assert command and "--budget" not in command[1] and "--reuse" in command[1]
    page = (folder / "SUMMARY.md").read_text()
    assert "measures what did not fit into the budget (processes" in page and f"`profpipe {command[1]}`" in page
    # A resumed run has the same choice.
    assert RunRequest.load(folder).pipeline.workloads["slow"].repeats == kept
    profpipe(tmp_path, *shlex.split(command[1]))
    assert len(Manifest.load(tmp_path / "out" / "latest").jobs) == 5


def test_a_budget_takes_what_fits_the_cheapest_profiler_first_and_ncu_last():
    from profpipe.config.models import Pipeline
    from profpipe.errors import ConfigError
    from profpipe.runner import estimate

    costs = {"plain": 10.0, "nsys": 30.0, "torch": 20.0, "ncu": 5.0}
    workload = {"script": "x", "profilers": list(costs)}
    pipeline = Pipeline.model_validate(
        {"version": 1, "workloads": {"w": workload, "n": {**workload, "profilers": ["nsys"]}}}
    )
    request = RunRequest(pipeline, Path("p.yaml"), Path("out"), captures=3)

    def seconds(part):
        own = [p for each in part.pipeline.workloads.values() for p in each.profilers]
        return sum(costs[p] * (part.captures or 1 if p == "plain" else 1) for p in own)

    def chosen(budget_s):
        part, left = estimate.fit(request, budget_s, seconds)
        return part.pipeline.workloads["w"].profilers, part.captures, left

    assert seconds(request) == 115
    assert chosen(115) == (list(costs), 3, [])
    assert chosen(114) == (list(costs), 2, ["processes 3 and later of each case under plain"])
    # A workload without plain has its first profiler.
    once = "processes 2 and later of each case under plain"
    assert chosen(94) == (["plain", "nsys", "torch"], 1, ["ncu", once])
    assert chosen(89) == (["plain", "torch", "ncu"], 3, ["nsys of w"])
    assert chosen(40) == (["plain"], 1, ["nsys of w", "torch", "ncu", once])
    with pytest.raises(ConfigError, match="one process of each case takes about 40 s"):
        chosen(39)


def test_a_budget_keeps_guided_ncu_only_with_a_capture_that_guides_it():
    from profpipe.config.models import Pipeline
    from profpipe.runner import estimate

    costs = {"plain": 10.0, "nsys": 30.0, "torch": 20.0, "ncu": 5.0}
    workload = {"command": ["./program"], "profilers": list(costs)}
    pipeline = Pipeline.model_validate({"version": 1, "workloads": {"w": workload}})
    assert pipeline.workloads["w"].ncu.kernels == "guided"

    def seconds(part):
        return sum(costs[profiler] for profiler in part.pipeline.workloads["w"].profilers)

    for budget_s, kept in ((16, ["plain"]), (35, ["plain", "torch", "ncu"]), (64, ["plain", "nsys", "torch"])):
        part, left = estimate.fit(RunRequest(pipeline, Path("p.yaml"), Path("out")), budget_s, seconds)
        assert part.pipeline.workloads["w"].profilers == kept
        assert left == [profiler for profiler in costs if profiler not in kept]


@pytest.mark.parametrize("text", ["10", "0s", "m", "-5s", "1d", "nan h"])
def test_a_budget_has_a_unit(tmp_path, text):
    assert "is no time. For example: 90s, 10m or 1h" in profpipe(tmp_path, "run", f"--budget={text}", exit_code=2)[1]


@pytest.mark.slow
def test_long_cases_run_first_on_several_slots(tmp_path):
    workload = {"command": ["sleep", "{s}"], "matrix": {"s": [0.1, 0.2, 1.5]}}
    document = {
        "version": 1,
        "gpus": 2,
        "defaults": {"profilers": ["plain"], "parallel": True},
        "workloads": {"w": workload},
    }
    (tmp_path / "pipeline.yaml").write_text(json.dumps(document))

    def starts():
        progress = profpipe(tmp_path, "run")[1]
        return re.findall(r"\] w under plain: s=([\d.]+)(?:, about \d+ s left)?$", progress, re.MULTILINE)

    assert starts() == ["0.1", "0.2", "1.5"]
    assert starts()[0] == "1.5"
