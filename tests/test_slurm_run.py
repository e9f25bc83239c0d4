"""A sweep of 40 cases on a real Slurm: it is disturbed in every way, resumed, and equals a run on one machine."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import forked
import pytest
from program import WITHOUT_TORCH, rows
from slurm_cluster import Cluster

from profpipe.results.manifest import Manifest
from profpipe.results.tasks import TaskState

#: The cases of one n wait until the file `go-N` exists.
WORKLOAD = """
import time
from pathlib import Path

PARAMS = {"impl": "a", "n": 1}


def build(params):
    while not Path(__file__).with_name(f"go-{params['n']}").exists():
        time.sleep(0.05)
    return lambda: sum(range(100))
"""
PIPELINE = """\
version: 1
name: sweep
defaults: {warmup: 1, repeats: 3, timing: {budget_s: 0.05, rounds: 1}}
workloads:
  work:
    script: work.py
    profilers: [plain]
    matrix: {n: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], impl: [a, b, c, d]}
    baseline: {impl: a}
slurm: {time: "10", options: ['--comment=a "b" \\ c #d']}
"""
#: What the tables of two runs of the same cases have in common.
COMMON = {"cases": ("workload", "case", "profiler", "status", "reason", "params"),
          "metrics": ("workload", "case", "profiler", "subject", "metric", "unit")}  # fmt: skip
#: Metrics that a case has where a call is shorter than the budget, and where there are two samples.
BY_CHANCE = ("loop_wall", "time_cv")
TABLES = ("cases", "kernels", "ranges", "metrics", "steps", "verdicts")


@dataclass
class Sweep:
    """A project folder, and the cluster that runs it."""

    folder: Path
    cluster: Cluster

    def profpipe(self, *words, exit_code=0):
        env = {**os.environ, **self.cluster.environment, "PYTHONPATH": WITHOUT_TORCH, "CUDA_VISIBLE_DEVICES": ""}
        done = forked.run(self.folder, *words, env=env)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout

    def release(self, *numbers):
        for number in numbers:
            (self.folder / f"go-{number}").touch()

    @property
    def run(self):
        return (self.folder / "out" / "latest").resolve()

    @property
    def job(self):
        """The array that was submitted first."""
        return min((path.stem for path in (self.run / "slurm" / "submissions").iterdir()), key=int)

    def state(self, index):
        return self.cluster.run("squeue", "-h", "--states=all", f"--jobs={self.job}_{index}", "--format=%T").strip()

    def node(self, index):
        return self.cluster.run("squeue", "-h", "--states=all", f"--jobs={self.job}_{index}", "--format=%N").strip()

    def tasks(self):
        return Manifest.load(self.run).tasks


@pytest.fixture
def sweep(tmp_path, slurm):
    (tmp_path / "work.py").write_text(WORKLOAD, encoding="utf-8")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
    yield Sweep(tmp_path, slurm)
    slurm.clear()


def wait_for(is_true, describe=str, seconds=90):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.1)


def process_of(run, index):
    """The process of a task."""
    words = f"task\0{run}\0{index}\0".encode()
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.read_bytes().endswith(words)]
    return int(found[0].parent.name)


def common(run):
    """The rows of each table without times and facts of the host."""
    tables = {name: rows(run / f"{name}.parquet") for name in TABLES}
    assert not any(tables[name] for name in TABLES if name not in COMMON)
    tables["metrics"] = [row for row in tables["metrics"] if row["metric"] not in BY_CHANCE]
    return {name: sorted(tuple(row[column] for column in COMMON[name]) for row in tables[name]) for name in COMMON}


def test_a_disturbed_sweep_loses_nothing_and_equals_a_run_on_one_machine(sweep):
    run_on_cluster = sweep.profpipe("run", "--slurm")
    assert "Submitted 10 tasks as job " in run_on_cluster and "collect" in run_on_cluster
    assert sweep.cluster.run("squeue", "-h", f"--jobs={sweep.job}_0", "--format=%k").strip() == 'a "b" \\ c #d'
    wait_for(lambda: len(list((sweep.run / "slurm" / "starts").glob("*.json"))) == 8)

    # Two tasks run on each node. One loses its node and may not start again, the other one is started again.
    lost, requeued = (index for index in range(8) if sweep.node(index) == "node2")
    killed, late, cancelled, *others = (index for index in range(8) if sweep.node(index) != "node2")
    sweep.cluster.run("scontrol", "update", f"JobId={sweep.job}_{late}", "EndTime=now+2")
    sweep.cluster.run("scontrol", "update", f"JobId={sweep.job}_{lost}", "Requeue=0")
    os.kill(process_of(sweep.run, killed), signal.SIGKILL)
    sweep.cluster.set_down("node2")
    sweep.cluster.set_up("node2")
    sweep.release(*others, requeued)
    wait_for(lambda: sweep.state(late) == "TIMEOUT")
    # It would wait two minutes. On the same node Slurm may still remove what its first start left.
    restart = ("StartTime=now", "ExcNodeList=node2")
    sweep.cluster.run("scontrol", "update", f"JobId={sweep.job}_{requeued}", *restart)
    wait_for(
        lambda: sweep.state(requeued) == "COMPLETED",
        lambda: sweep.cluster.run("scontrol", "show", "job", f"{sweep.job}_{requeued}"),
    )
    wait_for(lambda: all(sweep.state(index) == "COMPLETED" for index in others))
    wait_for(lambda: sweep.state(8) == sweep.state(9) == "RUNNING")

    # In the middle: three tasks run, and the array is cancelled.
    sweep.profpipe("collect", "latest", "--quiet", exit_code=1)
    states = {task.index: task.state for task in sweep.tasks()}
    assert {states.pop(index) for index in (8, 9, cancelled)} == {TaskState.RUNNING}
    assert states == {
        killed: TaskState.KILLED, late: TaskState.TIME_LIMIT, lost: TaskState.NODE_FAILED,
        **dict.fromkeys([*others, requeued], TaskState.DONE),
    }  # fmt: skip
    page = (sweep.run / "SUMMARY.md").read_text(encoding="utf-8")
    for words in ("running", "killed by SIGKILL", "time limit", "node failed", "Not complete"):
        assert words in page
    sweep.cluster.run("scancel", sweep.job)
    wait_for(lambda: all(sweep.state(index) == "CANCELLED" for index in (8, 9, cancelled)))
    sweep.profpipe("collect", "latest", "--quiet", exit_code=1)
    assert {task.state for task in sweep.tasks() if task.index in (8, 9, cancelled)} == {TaskState.CANCELLED}
    assert len(rows(sweep.run / "cases.csv")) >= 4 * (len(others) + 1)

    sweep.release(*range(10))
    before = {path.name for path in (sweep.run / "slurm" / "submissions").iterdir()}
    sweep.profpipe("resume", "latest", "--wait", "--quiet", "--", "--partition=urgent")
    (again,) = {path.name for path in (sweep.run / "slurm" / "submissions").iterdir()} - before
    submitted = (sweep.run / "slurm" / "submissions" / again).read_text(encoding="utf-8")
    assert f'"indices": {sorted((killed, late, lost, cancelled, 8, 9))}' in submitted
    known = Manifest.load(sweep.run)
    assert {task.state for task in known.tasks} == {TaskState.DONE} and known.ended
    attempts = {task.index: task.attempt for task in known.tasks}
    assert attempts == {i: 1 if i in others else 2 for i in range(10)}
    assert set(known.nodes) <= {"node1", "node2", "node3", "node4"} and len(known.nodes) > 1
    assert sorted(case for job in known.jobs for case in job.cases) == sorted(
        case for planned in known.planned for case in planned.cases
    )
    assert all((sweep.run / job.log).is_file() and job.node in known.nodes for job in known.jobs)
    on_cluster = common(sweep.run)
    assert len(on_cluster["cases"]) == 40

    sweep.profpipe("run", "--out", "local", "--quiet")
    assert common(sweep.folder / "local" / "latest") == on_cluster


PAIRS = """\
version: 1
name: pairs
workloads:
  work:
    command: [sh, -c, "sleep {seconds} # {n}"]
    hook: false
    profilers: [plain]
    matrix: {seconds: [0], n: [1, 2]}
"""


def test_all_pairs_of_a_case_run_on_one_node_and_a_case_without_a_record_is_resumed(sweep):
    (sweep.folder / "pipeline.yaml").write_text(PAIRS, encoding="utf-8")
    sweep.profpipe("ab", "--b", "set:seconds=0.3", "--pairs", "2", "--slurm", "--wait", "--quiet")
    run = sweep.run
    verdicts = rows(run / "verdicts.parquet")
    assert [(row["case"], row["pairs"]) for row in verdicts] == [("n=1", "2"), ("n=2", "2")]
    assert all(float(row["ratio"]) > 2 for row in verdicts)
    nodes = {job.node for job in Manifest.load(run).jobs if "task-0000" in job.folder}
    assert len(nodes) == 1 and len(list((run / "raw" / "work" / "task-0000" / "pair-02").rglob("log.txt"))) == 2

    (run / "slurm" / "records" / "0001-1.json").unlink()
    sweep.profpipe("collect", "latest", "--quiet", exit_code=1)
    assert "task failed" in (run / "SUMMARY.md").read_text(encoding="utf-8")
    assert [row["case"] for row in rows(run / "verdicts.parquet")] == ["n=1"]
    sweep.profpipe("resume", "latest", "--wait", "--quiet")
    assert [row["case"] for row in rows(run / "verdicts.parquet")] == ["n=1", "n=2"]
    assert Manifest.load(run).tasks[1].attempt == 2 and Manifest.load(run).ended
