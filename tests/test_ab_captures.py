"""Captures of `profpipe ab`: their processes, what a failed or killed one leaves, and the kernels on the page."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
import recorded_nsys
from pair_study import ROOT, environment

from profpipe.analysis import pairs
from profpipe.job import Missing, Tool
from profpipe.results import store
from profpipe.results.manifest import NoCaptures, PairsEntry
from profpipe.runner import sides
from profpipe.runner.request import ExaminedMachine

WORKLOAD = """
PARAMS = {"n": 1}

def build(params):
    count = 20_000 * params["n"]
    return lambda: sum(range(count))
"""
PIPELINE = """
version: 1
name: small
defaults: {warmup: 1, repeats: 5, timeout_s: 60, timing: {budget_s: 0.02}}
workloads:
  sums: {script: sums.py, matrix: {n: [1, 2]}}
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a pipeline, and a program ``nsys`` beside it that gives a recording of an H200."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "sums.py").write_text(WORKLOAD)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    recorded_nsys.install(tmp_path / "bin")
    return folder


def profpipe(project, *words, code=None, **variables):
    """Run a command in the project, which must end with ``code`` where that is given; return the finished process."""
    done = forked.run(project, *words, env={**variables_of(project), **variables})
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def variables_of(project):
    path = os.pathsep.join([str(project.parent / "bin"), os.environ["PATH"]])
    return environment(ROOT / "tests", PATH=path)


def loaded(project):
    return store.load(project / "out" / "latest")


def kernel_rows(project):
    rows = loaded(project)[0].verdicts
    return rows[rows["kernel"] != ""]


@pytest.mark.slow
def test_captures_are_processes_beside_the_timed_ones_and_name_the_kernels(project):
    sides = ("--a", "env:IMPL=flash", "--b", "env:IMPL=cudnn")
    profpipe(project, "ab", *sides, "-p", "nsys", "--pairs", "3", "--captures", "2", code=0)
    data, run = loaded(project)
    assert (run.ab.profiler, run.ab.captures) == ("nsys", 2)
    folders = {job.folder.removeprefix("raw/sums/") for job in run.jobs}
    timed = {f"pair-{pair:02d}/{side}" for pair in (1, 2, 3) for side in "AB"}
    assert folders == timed | {f"pair-{pair:02d}/{side}-nsys" for pair in (1, 2) for side in "AB"}
    # The times are those of the timed processes alone.
    times = data.metrics[data.metrics["metric"] == "time"]
    assert set(times["profiler"]) == {"plain"} and len(times) == 2 * 6
    rows = data.verdicts[data.verdicts["kernel"] == ""]
    assert list(rows["case"]) == ["n=1", "n=2"] and set(rows["pairs"]) == {3}
    exchanged = kernel_rows(project).query("cause == 'exchanged'")
    assert set(exchanged["case"]) == {"n=1", "n=2"}
    assert exchanged["kernel"].str.startswith("pytorch_flash::").all()
    assert exchanged["b_kernel"].str.startswith("cudnn").all()
    for _, own in data.verdicts.groupby("case"):
        assert own.loc[own["kernel"] != "", "part_ns"].sum() == own.loc[own["kernel"] == "", "part_ns"].item()
    page = (project / "out" / "latest" / "SUMMARY.md").read_text()
    assert "nsys recorded the kernels of both sides in 2 pairs" in page
    assert "B - A by kernel" in page and "flash_fwd_kernel` → `cudnn" in page
    assert len(page.splitlines()) <= 150


@pytest.mark.slow
def test_only_cases_that_differ_are_recorded_after_the_pairs(project):
    slow = 'count = 20_000 * params["n"] * (5 if params["n"] == 2 and "SLOW" in os.environ else 1)'
    text = WORKLOAD.replace('count = 20_000 * params["n"]', slow)
    (project / "sums.py").write_text(f"import os\n{text}")
    profpipe(project, "ab", "--b", "env:SLOW=1", "-p", "nsys", "--pairs", "8", code=0)
    run = loaded(project)[1]
    captures = [job for job in run.jobs if job.profiler == "nsys"]
    # After all pairs, as many as are recorded of every case where the user asks for it.
    assert run.jobs[-6:] == tuple(captures) and {job.cases for job in captures} == {("n=2",)}
    assert [job.folder[-14:-7] for job in captures[::2]] == ["pair-01", "pair-02", "pair-03"]
    assert set(kernel_rows(project)["case"]) == {"n=2"}
    page = (project / "out" / "latest" / "SUMMARY.md").read_text()
    assert "After the pairs nsys records the kernels of faster and slower cases, in 3 pairs" in page
    assert "No kernel explains" not in page
    # A case that is to be recorded later, as after further pairs, gets the next numbers.
    manifest = project / "out" / "latest" / "run.json"
    record = json.loads(manifest.read_text())
    record["ab"]["captures_all"], record["ended"] = True, None
    manifest.write_text(json.dumps(record))
    profpipe(project, "resume", code=0)
    data, run = loaded(project)
    later = [job for job in run.jobs if job.profiler == "nsys"][6:]
    assert len(later) == 6 and {job.cases for job in later} == {("n=1",)}
    assert {job.folder[-14:-7] for job in later} == {"pair-04", "pair-05", "pair-06"}
    calls = data.kernels.groupby(["source", "case"])["calls"].sum()
    assert len(calls) == 12 and set(calls) == {15}


@pytest.mark.slow
def test_a_capture_that_fails_costs_no_verdict_and_is_not_tried_again(project):
    profpipe(project, "ab", "--b", "env:FAILS=1", "-p", "nsys", "--pairs", "2", "--captures", "2", code=0)
    data, run = loaded(project)
    assert list(data.verdicts["case"]) == ["n=1", "n=2"] and set(data.verdicts["pairs"]) == {2}
    assert len([job for job in run.jobs if job.folder.endswith("B-nsys")]) == 1
    plain = data.cases[data.cases["profiler"] == "plain"]
    assert set(plain["status"]) == {"ok"}
    failed = pairs.analyze(data, run).failed_captures
    assert [(each.case, each.status) for each in failed] == [("n=1", "failed"), ("n=2", "failed")]
    assert failed[0].reason.startswith("pair ") and "the driver refused" in failed[0].reason
    page = (project / "out" / "latest" / "SUMMARY.md").read_text()
    assert "## Captures that failed" in page and "the driver refused" in page


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_is_killed_in_a_capture_goes_on_with_it(project):
    waits = project / "go"
    words = ["ab", "--b", f"env:WAITS={waits}", "-p", "nsys", "--pairs", "2", "--captures", "2"]
    child = subprocess.Popen(
        [sys.executable, "-m", "profpipe", *words],
        cwd=project, env=variables_of(project), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list((project / "out").glob("[!.]*-ab/raw/sums/pair-01/B-nsys/log.txt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    waits.touch()
    profpipe(project, "resume", code=0)
    data, run = loaded(project)
    assert len(run.jobs) == len({job.folder for job in run.jobs}) == 8
    # Each capture has the recording once: 5 iterations of 3 kernels in each case.
    calls = data.kernels.groupby(["source", "case"])["calls"].sum()
    assert len(calls) == 8 and set(calls) == {15}
    assert set(kernel_rows(project)["cause"]) == {"unchanged", "not_in_kernels"}


@pytest.mark.slow
def test_without_a_gpu_or_by_choice_there_are_no_captures(project):
    for words, reason in (((), NoCaptures.NO_GPU), (("-p", "none"), NoCaptures.NOT_REQUESTED)):
        done = profpipe(project, "ab", "--b", "env:X=1", "--pairs", "1", *words, code=0)
        run = loaded(project)[1]
        assert (run.ab.captures, run.ab.no_captures, len(run.jobs)) == (0, reason, 2)
        assert ("there is no GPU" in done.stdout) is (reason is NoCaptures.NO_GPU)


NSYS, TORCH = Tool("nsys", "2025.3.1", "/usr/bin/nsys"), Tool("torch", "2.11.0")
NO_NSYS, NO_TORCH = Missing("nsys", "nsys is not on PATH", "Install it."), Missing("torch", "no torch", "Install it.")


@pytest.mark.parametrize(
    ("nsys_tool", "torch_tool", "gpus", "has_commands", "expected"),
    [
        (NSYS, TORCH, 1, False, ("nsys", 3, None)),
        (NO_NSYS, TORCH, 1, False, ("torch", 3, None)),
        # The Python of a command may have torch.
        (NO_NSYS, NO_TORCH, 1, True, ("torch", 3, None)),
        (NO_NSYS, NO_TORCH, 1, False, ("", 0, NoCaptures.NO_PROFILER)),
        (NSYS, TORCH, 0, True, ("", 0, NoCaptures.NO_GPU)),
    ],
)
def test_the_profiler_of_captures_is_nsys_else_torch_and_none_without_a_gpu(
    nsys_tool, torch_tool, gpus, has_commands, expected
):
    machine = ExaminedMachine({"nsys": nsys_tool, "torch": torch_tool}, (), {"gpus": [{"name": "GPU"}] * gpus})
    found = sides.choose_captures(PairsEntry(captures=3), machine, has_commands)
    assert (found.profiler, found.captures, found.no_captures) == expected
    if torch_tool is TORCH:
        # What the user names is used without a GPU too.
        assert sides.choose_captures(PairsEntry(captures=2, profiler="torch"), machine, has_commands).captures == 2


def test_a_profiler_that_is_requested_and_missing_is_an_error(project):
    (project.parent / "bin" / "nsys").unlink()
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "nsys").exists())
    done = profpipe(project, "ab", "--b", "env:X=1", "-p", "nsys", PATH=path)
    assert done.returncode == 3
    assert "nsys is not on PATH" in done.stderr and not list((project / "out").glob("*-ab"))


@pytest.mark.slow
def test_a_real_nsys_without_a_gpu_records_no_kernels_and_costs_no_verdict(project, nsys):
    (project.parent / "bin" / "nsys").unlink()
    path = os.pathsep.join([str(nsys.parent), os.environ["PATH"]])
    profpipe(project, "ab", "--b", "env:X=1", "-p", "nsys", "--pairs", "1", "--captures", "1", PATH=path, code=0)
    data, run = loaded(project)
    assert {job.folder: str(job.status) for job in run.jobs}["raw/sums/pair-01/A-nsys"] == "ok"
    assert len(data.ranges) == 4 and data.kernels.empty
    assert list(data.verdicts["kernel"]) == ["", ""]


TORCH = """
import os
import torch

PARAMS = {"size": 64}

def build(params):
    a = torch.randn(params["size"], params["size"])
    adds = os.environ.get("ADDS")

    def call():
        b = torch.mm(a, a)
        return b.add(a) if adds else b

    return call
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_torch_names_the_operators_of_a_cpu(project):
    pytest.importorskip("torch")
    (project / "torch_sums.py").write_text(TORCH)
    pipeline = {"version": 1, "name": "t", "workloads": {"mm": {"script": "torch_sums.py", "matrix": {"size": [64]}}}}
    (project / "pipeline.yaml").write_text(json.dumps(pipeline))
    words = ("--b", "env:ADDS=1", "-p", "torch", "--pairs", "1", "--captures", "1")
    profpipe(project, "ab", *words, PYTHONPATH=str(ROOT), code=0)
    rows = kernel_rows(project).set_index("kernel")
    assert (rows.loc["aten::add", "cause"], rows.loc["aten::add", "b_calls"]) == ("appeared", 1)
    assert rows.loc["aten::mm", "a_calls"] == 1


TRAINING = """
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_command_with_steps_has_the_kernels_of_its_steady_steps(project, stub_torch):
    (project / "train.py").write_text(TRAINING)
    train = {"command": [sys.executable, "train.py"], "steps": {"warmup": 5}}
    (project / "pipeline.yaml").write_text(json.dumps({"version": 1, "name": "t", "workloads": {"train": train}}))
    words = ("--a", "env:RECORDING=evals", "--b", "env:RECORDING=graphs", "-p", "nsys", "--pairs", "1")
    words += ("--captures", "1")
    profpipe(project, "ab", *words, PYTHONPATH=os.pathsep.join([*stub_torch, str(ROOT), str(ROOT / "tests")]), code=0)
    data, run = loaded(project)
    (case,) = pairs.analyze(data, run).cases
    assert case.metric == "time" and case.kernels is not None
    # The sums of a steady step, as the metrics of each capture state them.
    times = data.metrics[data.metrics["metric"] == "step_kernel_time"]
    for side, own in (("A", [k.a.ns for k in case.kernels.kernels]), ("B", [k.b.ns for k in case.kernels.kernels])):
        expected = times.loc[times["subject"].str.startswith(f"pair 1 {side} "), "value"].sum()
        assert expected > 0 and sum(own) == pytest.approx(expected, abs=1)
    assert {"appeared", "vanished"} <= set(kernel_rows(project)["cause"])
