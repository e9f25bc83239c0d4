"""A task of a run on a cluster, started as its batch script does, and what Slurm answers. No cluster is needed.

The programs of Slurm are stand-ins, which answer as those of Slurm 22.05 do: no test cluster has accounting.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from program import ROOT, profpipe, rows

from profpipe.analysis.cases import comparisons
from profpipe.commands import cluster
from profpipe.config.loader import load_pipeline
from profpipe.errors import ProfpipeError
from profpipe.results import folders
from profpipe.results.manifest import Manifest
from profpipe.results.tasks import Task, TaskState
from profpipe.runner.request import RunRequest
from profpipe.runner.slurm import queue, records, submit
from profpipe.runner.slurm.queue import Submission
from profpipe.runner.slurm.records import TaskRecord

PIPELINE = """\
version: 1
name: sweep
workloads:
  work:
    command: [sh, work.sh, "{n}"]
    hook: false
    profilers: [plain]
    matrix: {n: [1, 2], impl: [a, b]}
    include: []
    env: {IMPL: "{impl}"}
    baseline: {impl: a}
"""


@pytest.fixture
def run(tmp_path):
    """A run of two tasks with two cases each, of which none was submitted. The workload counts its processes."""
    (tmp_path / "work.sh").write_text('echo "$1 $IMPL" >> processes\n', encoding="utf-8")
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    return submit.create(RunRequest.create(load_pipeline(path), path, tmp_path / "out"), ["profpipe"], comparisons)


def processes(run):
    return (run.parents[1] / "processes").read_text(encoding="utf-8").splitlines()


def record_of(run):
    """The record of the first task that counts."""
    return records.read_records(run)[0]


def carry_out(run, index, exit_code=0):
    profpipe(run.parent, "task", run, index, exit_code=exit_code, SLURMD_NODENAME="n1", SLURM_ARRAY_JOB_ID="7",
             SLURM_ARRAY_TASK_ID=str(index))  # fmt: skip


@pytest.mark.slow
def test_tasks_leave_their_files_and_records_and_run_once(run):
    carry_out(run, 0)
    assert processes(run) == ["1 a", "1 b"]
    profpipe(run.parent, "collect", run, "--quiet", exit_code=1)
    assert [(row["case"], row["status"]) for row in rows(run / "cases.csv")] == [
        ("n=1,impl=a", "ok"),
        ("n=1,impl=b", "ok"),
    ]
    carry_out(run, 1)
    carry_out(run, 0)
    assert len(processes(run)) == 4
    assert "exit code 0" not in profpipe(run.parent, "collect", run, "--quiet")
    known = Manifest.load(run)
    assert {job.node for job in known.jobs} == {"n1"} and known.ended
    assert all((run / job.folder / "log.txt").is_file() for job in known.jobs)
    assert [job.folder.split("/")[2] for job in known.jobs] == ["task-0000", "task-0000", "task-0001", "task-0001"]
    assert not list(run.rglob("*.partial"))


@pytest.mark.slow
def test_an_attempt_goes_on_from_the_jobs_that_the_one_before_has_ended(run):
    carry_out(run, 0)
    whole = record_of(run)
    second = whole.manifest.jobs[1]
    cases = json.loads(whole.tables["cases"])
    tables = {**whole.tables, "cases": json.dumps({**cases, "rows": cases["rows"][:1]})}
    known = whole.manifest.without_job(second.folder)
    known = replace(known, tasks=(replace(whole.task, state=TaskState.RUNNING),))
    TaskRecord(known, tables).save(run)
    carry_out(run, 0)
    assert processes(run) == ["1 a", "1 b", "1 b"]
    found = record_of(run)
    assert (found.task.attempt, found.task.state) == (2, TaskState.DONE)
    assert [job.folder.split("/")[2] for job in found.manifest.jobs] == ["task-0000", "task-0000-2"]


@pytest.mark.slow
def test_a_task_that_cannot_write_its_files_says_why_and_runs_again(run):
    (run / "raw" / "work").write_text("in the way", encoding="utf-8")
    carry_out(run, 0, exit_code=1)
    task = record_of(run).task
    assert task.state is TaskState.FAILED and task.details.startswith("raw/work/task-0000")
    (run / "raw" / "work").unlink()
    carry_out(run, 0)
    task = record_of(run).task
    assert (task.attempt, task.state) == (2, TaskState.DONE)


def test_a_task_refuses_code_that_changed_after_the_run_was_submitted(run):
    (run.parents[1] / "work.sh").write_text("true\n", encoding="utf-8")
    carry_out(run, 0, exit_code=2)
    details = record_of(run).task.details
    assert "was submitted with other code" in details and "file work.sh" in details


@pytest.mark.slow
def test_two_collections_at_once_do_no_harm(run):
    for index in range(2):
        carry_out(run, index)
    argv = [sys.executable, "-m", "profpipe", "collect", run, "--quiet"]
    both = [subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True) for _ in range(2)]
    assert [each.wait(timeout=120) for each in both] == [0, 0]
    assert len(rows(run / "cases.csv")) == 4 and Manifest.load(run).ended


# --- what Slurm answers ----------------------------------------------------------------------------------------------


def install(folder, monkeypatch, **programs):
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n# A stand-in of the tests, not Slurm's {name}.\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def test_accounting_is_asked_for_tasks_that_the_controller_has_forgotten(tmp_path, monkeypatch):
    lines = (
        "7_0|COMPLETED|0:0|n1",
        "7_1|TIMEOUT|0:0|n2",
        "7_2|CANCELLED by 1000|0:0|None assigned",
        "7_3|OUT_OF_MEMORY|0:125|n1",
        "7_4|FAILED|0:9|n3",
        "7_5|NODE_FAIL|1:0|n4",
        "7_[6-8%2]|PENDING|0:0|",
    )
    answer = "cat <<EOF\n" + "\n".join(lines) + "\nEOF"
    install(tmp_path, monkeypatch, scontrol=FORGOTTEN, squeue=FORGOTTEN, sacct=answer)
    seen = queue.look_up([Submission(7, tuple(range(10)))])
    assert {index: found.state for index, found in seen.items()} == {
        0: TaskState.FAILED, 1: TaskState.TIME_LIMIT, 2: TaskState.CANCELLED, 3: TaskState.OUT_OF_MEMORY,
        4: TaskState.KILLED, 5: TaskState.NODE_FAILED, **dict.fromkeys((6, 7, 8), TaskState.PENDING),
    }  # fmt: skip
    assert seen[1].node == "n2" and seen[0].details == "exit code 0"


def test_squeue_is_asked_where_scontrol_does_not_answer(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, scontrol="exit 1", squeue="echo '7|3|RUNNING|n1|None'; echo '7|4|PENDING||Priority'")
    assert queue.look_up([Submission(7, (3, 4))]) == {
        3: Task(3, state=TaskState.RUNNING, node="n1", job="7_3"),
        4: Task(4, state=TaskState.PENDING, details="Priority", job="7_4"),
    }  # fmt: skip


def test_a_controller_that_does_not_answer_is_no_answer(run, tmp_path, monkeypatch):
    away = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    install(tmp_path, monkeypatch, scontrol=away, squeue=away, sacct="exit 1", sbatch="touch submitted; echo 8")
    Submission(7, (0, 1)).save(run)
    with pytest.raises(queue.SlurmSilent, match="Unable to contact slurm controller"):
        queue.look_up(queue.read_submissions(run))
    # Tasks that may be running are not submitted again.
    profpipe(run.parent, "resume", run, "--trust", exit_code=1, PATH=os.environ["PATH"])
    assert len(queue.read_submissions(run)) == 1


def test_only_the_last_array_that_has_an_index_says_what_became_of_it(tmp_path, monkeypatch):
    script = """
case $4 in 7) task=0-2 state=FAILED;; 8) task=1 state=PENDING;; esac
echo "JobId=$4 ArrayJobId=$4 ArrayTaskId=$task JobState=$state Reason=Resources ExitCode=1:0"
"""
    install(tmp_path, monkeypatch, scontrol=script)
    seen = queue.look_up([Submission(7, (10, 11, 12), offset=10), Submission(8, (11,), offset=10)])
    assert {index: found.state for index, found in seen.items()} == {
        10: TaskState.FAILED, 11: TaskState.PENDING, 12: TaskState.FAILED,
    }  # fmt: skip


def test_more_tasks_than_an_array_may_have_are_several_arrays(tmp_path, monkeypatch):
    sbatch = f'echo "$@" >> {tmp_path}/calls; echo $((100 + $(wc -l < {tmp_path}/calls)))'
    install(tmp_path, monkeypatch, scontrol="echo 'MaxArraySize            = 10'", sbatch=sbatch)
    monkeypatch.setattr("secrets.token_hex", lambda size: "word")
    made = queue.submit(tmp_path, Path("job.sh"), range(25), "%4", ["--mem=1G"])
    assert [(each.job, len(each.indices), each.offset) for each in made] == [(101, 10, 0), (102, 10, 10), (103, 5, 20)]
    assert (tmp_path / "calls").read_text().splitlines() == [
        "--parsable --array=0-9%4 --mem=1G job.sh 0 word",
        "--parsable --array=0-9%4 --mem=1G job.sh 10 word",
        "--parsable --array=0-4%4 --mem=1G job.sh 20 word",
    ]
    assert queue.read_submissions(tmp_path) == made
    assert json.loads((tmp_path / "slurm" / "submissions" / "103.json").read_text())["offset"] == 20


@pytest.mark.parametrize(
    ("sbatch", "is_kept", "message"),
    [
        ("kill -9 $$", True, "`profpipe resume` looks for it"),
        ("echo Socket timed out on send/recv operation >&2; exit 1", True, "looks for it"),
        ("echo sbatch: error: invalid partition >&2; exit 1", False, "sbatch refused the array: .*invalid partition"),
    ],
)
def test_a_run_whose_array_may_be_in_the_queue_keeps_its_folder(tmp_path, monkeypatch, sbatch, is_kept, message):
    install(tmp_path, monkeypatch, scontrol="exit 1", sbatch=sbatch)
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    (tmp_path / "work.sh").touch()
    request = RunRequest.create(load_pipeline(path), path, tmp_path / "out")
    with pytest.raises(ProfpipeError, match=message):
        cluster.start(request, ["profpipe"], argparse.Namespace())
    assert any((tmp_path / "out").glob("*/slurm/plan.json")) is is_kept


def test_a_run_that_a_resume_has_submitted_is_not_submitted_again(run, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, scontrol="exit 1", sbatch=f"touch {tmp_path}/called; exit 1")

    def resumed(*_):
        # In place of a `resume` between the making of the folder and its lock.
        Submission(8, (0, 1)).save(run)
        return run

    monkeypatch.setattr(submit, "create", resumed)
    assert cluster.start(RunRequest.load(run), [], argparse.Namespace(wait=False, json=None, quiet=True)) == 0
    assert not (tmp_path / "called").exists()


def test_a_run_on_which_another_process_works_keeps_its_folder(run, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, sbatch="exit 1")
    monkeypatch.setattr(submit, "create", lambda *_: run)
    monkeypatch.setattr(cluster, "_LOCK_S", 0.1)
    with folders.lock(run), pytest.raises(folders.InUse):
        cluster.start(RunRequest.load(run), [], argparse.Namespace())
    assert (run / "slurm" / "plan.json").exists()


def test_an_array_whose_number_is_lost_is_found_before_another_one_is_submitted(run, tmp_path, monkeypatch):
    lost = f'echo "$@" > {tmp_path}/call; kill -9 $$'
    install(tmp_path, monkeypatch, scontrol="exit 1", squeue="exit 1", sacct="exit 1", sbatch=lost)
    with pytest.raises(queue.SubmissionUnknown):
        queue.submit(run, Path("job.sh"), range(2), "", [])
    token = (tmp_path / "call").read_text().split()[-1]
    with pytest.raises(queue.SlurmSilent, match="does not say whether"):
        queue.adopt(run)
    # The accounting has it. A task of another array of the run does not count.
    Submission(7, (1,)).save(run)
    records.begin(run, Task(1), "n1", "7_1")
    install(tmp_path, monkeypatch, squeue="echo '7|job.sh 0 another'", sacct=f"echo '8_[0-1]|sbatch job.sh 0 {token}'")
    begun = (run / queue.SUBMISSIONS / "begun.json").read_text()
    assert (found := queue.adopt(run)) and (found.job, found.indices) == (8, (0, 1))
    assert queue.read_submissions(run)[-1] == found and queue.adopt(run) is None
    (run / queue.SUBMISSIONS / "begun.json").write_text(begun)
    install(tmp_path, monkeypatch, sacct="exit 1")
    assert queue.adopt(run) is None
    records.begin(run, Task(0), "n1", "9_0")
    assert (found := queue.adopt(run)) and found.job == 9


@pytest.mark.slow
def test_of_two_resumes_at_once_one_submits(run, tmp_path, monkeypatch):
    known = "[ -f submitted ] && echo JobId=8 ArrayJobId=8 ArrayTaskId=0-1 JobState=PENDING"
    # The array is in the queue, although its number is lost.
    lost = 'touch submitted; echo 8 >> numbers; echo "$@" > call; echo Socket timed out >&2; exit 1'
    queued = f'cd {tmp_path}; [ -f submitted ] && echo "8|job.sh $(cat call)"; true'
    submit_slowly = f"cd {tmp_path}; sleep 0.5; {lost}"
    install(tmp_path, monkeypatch, scontrol=f"cd {tmp_path}; {known}", squeue=queued, sbatch=submit_slowly)
    argv = [sys.executable, "-m", "profpipe", "resume", run, "--trust", "--quiet"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(argv, env=env, text=True, stdout=subprocess.DEVNULL) for _ in range(2)]
    # The second one collects, and lacks both tasks.
    assert sorted(each.wait(timeout=120) for each in both) == [0, 1]
    assert (tmp_path / "numbers").read_text() == "8\n"
