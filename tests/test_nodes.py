"""One program on several nodes: srun starts it on two nodes of a real Slurm, on CPUs, with gloo between its ranks."""

import itertools
import os
import re
import socket
import sys
import time
from dataclasses import replace

import forked
import pandas as pd
import pytest
from jobs import change
from program import ROOT, WITHOUT_TORCH, rows

from profpipe.analysis import cluster
from profpipe.analysis.cluster import differences_of_job
from profpipe.analysis.findings import CaseResult
from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError
from profpipe.hook.settings import HookSettings
from profpipe.ingest import reader
from profpipe.job import Missing, Tool
from profpipe.measure import node
from profpipe.profilers import nsys
from profpipe.results import schema
from profpipe.results.manifest import Gpu, JobEntry, Machine, Manifest, NodeEntry
from profpipe.results.schema import Tables
from profpipe.runner import plan
from profpipe.runner.request import RunRequest
from profpipe.runner.slurm import queue, submit

#: Two ranks train together; the second one is late in each step.
TRAIN = """
import os, time, torch
import torch.distributed as dist
rank, size, step = (os.environ[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"))
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store-{step}", rank=int(rank), world_size=int(size))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    model(torch.randn(2, 8)).sum().backward()
    time.sleep(0.02 * int(rank))
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.destroy_process_group()
"""
PIPELINE = f"""\
version: 1
name: two
workloads:
  train:
    command: [{sys.executable}, train.py]
    nodes: 2
    profilers: [plain, torch]
    steps: {{warmup: 2, measure: 8}}
"""


def test_a_program_on_two_nodes_is_one_case_with_its_ranks_by_node(tmp_path, slurm):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    env = {**os.environ, **slurm.environment, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = forked.run(tmp_path, "run", "--slurm", "--wait", "--quiet", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = (tmp_path / "out" / "latest").resolve()
    script = (folder / "slurm" / "job.sh").read_text()
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in script
    run = Manifest.load(folder)
    assert {job.profiler: (job.status, job.rank_nodes) for job in run.jobs} == dict.fromkeys(
        ("plain", "torch"), ("ok", {0: "node1", 1: "node2"})
    )
    assert set(run.nodes) == {"node1", "node2"} and all(node.packages["torch"] for node in run.nodes.values())
    steps = pd.DataFrame(rows(folder / "steps.parquet"))
    per_rank = steps[steps["profiler"] == "plain"].groupby("rank")["step"].apply(list)
    assert per_rank.index.tolist() == ["0", "1"] and per_rank["0"] == per_rank["1"] == list(map(str, range(11)))
    traces = {path.name for path in folder.glob("raw/train/**/*.pt.trace.json.gz")}
    assert traces == {"capture.node1.rank0.pt.trace.json.gz", "capture.node2.rank1.pt.trace.json.gz"}
    page = (folder / "SUMMARY.md").read_text()
    assert "Clocks of different nodes are not compared: steps of ranks are matched by their numbers." in page
    assert re.search(r"\| 0 \| node1 \| .*\n\| 1 \| node2 \|", page) and "2 ranks" in page
    # Nothing is left of the folder in which the tasks worked: it is in the run's folder, which all nodes share.
    assert not list((folder / "slurm").glob("profpipe-*"))


#: In an allocation of two nodes: the runner is killed while both tasks of the first case wait, and then resumed.
IN_ALLOCATION = """\
{python} -m profpipe run --quiet & run=$!
until [ "$(cat started 2>/dev/null | wc -l)" = 2 ]; do sleep 0.1; done
kill -KILL $run
{python} -m profpipe resume --quiet & run=$!
until [ "$(wc -l < started)" = 4 ]; do sleep 0.1; done
touch go
wait $run
echo "exit code $?"
squeue --steps --noheader --jobs=$SLURM_JOB_ID --format="left %j"
touch finished
"""


@pytest.mark.exhaustive
def test_what_a_killed_runner_and_a_time_limit_leave_on_the_nodes_is_ended(tmp_path, slurm):
    waits = "echo $SLURMD_NODENAME >> started; until [ -e go ]; do sleep 0.1; done; echo $SLURMD_NODENAME >> ended"
    hangs = "trap '' INT TERM; echo $SLURMD_NODENAME >> hung; sleep 600 & wait; sleep 600"
    (tmp_path / "pipeline.yaml").write_text(
        f"version: 1\nworkloads:\n  waits: {{command: [sh, -c, {waits!r}], nodes: 2, profilers: [plain]}}\n"
        f'  hangs: {{command: [sh, -c, "{hangs}"], nodes: 2, profilers: [plain], timeout_s: 2}}\n'
    )
    env = {"PYTHONPATH": WITHOUT_TORCH, "CUDA_VISIBLE_DEVICES": ""}
    exports = " ".join(f"{name}={value}" for name, value in env.items())
    text = f"#!/bin/bash\nexport {exports}\n{IN_ALLOCATION.format(python=sys.executable)}"
    (tmp_path / "job.sh").write_text(text)
    # `sbatch --wait` looks at the queue less and less often.
    slurm.run("sbatch", "--nodes=2", f"--chdir={tmp_path}", "--output=log.txt", tmp_path / "job.sh")
    deadline = time.monotonic() + 240
    while not (tmp_path / "finished").exists():
        assert time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
        time.sleep(0.1)
    log = (tmp_path / "log.txt").read_text()
    assert "exit code 1" in log and re.findall("left (.*)", log) == ["batch"], log
    jobs = {job.workload: job for job in Manifest.load((tmp_path / "out" / "latest").resolve()).jobs}
    assert {name: job.status for name, job in jobs.items()} == {"waits": "ok", "hangs": "timeout"}
    written = {name: sorted((tmp_path / name).read_text().split()) for name in ("started", "ended", "hung")}
    both = ["node1", "node2"]
    assert written == {"started": sorted(both * 2), "ended": both, "hung": both}


# --- without a cluster -----------------------------------------------------------------------------------------------


def planned(folder, text, **options):
    (folder / "p.yaml").write_text(text)
    tools = {name: Tool(name, "1", f"/bin/{name}") for name in ("plain", "torch", "nsys", "ncu")}
    pipeline = load_pipeline(folder / "p.yaml")
    return plan.plan(pipeline, tools, scripts={}, cwd=folder, out=folder, python="python", **options)


def workload(settings):
    return f"version: 1\nworkloads: {{w: {{command: [./a.out], profilers: [plain, nsys, ncu], {settings}}}}}\n"


def test_outside_of_an_allocation_and_in_a_small_one_the_workload_is_skipped_with_the_remedy(tmp_path):
    for allocated, has in ((None, "profpipe runs in no allocation of Slurm"), (1, "the allocation has 1")):
        for job in planned(tmp_path, workload("nodes: 2"), allocated=allocated):
            assert isinstance(job.tool, Missing)
            assert str(job.tool) == (
                f"the workload needs 2 nodes, and {has}. Use --slurm, or start profpipe in a job of `sbatch --nodes 2`."
            )
    plain, recorded, replayed = planned(tmp_path, workload("nodes: 2"), allocated=2)
    assert isinstance(plain.tool, Tool) and isinstance(recorded.tool, Tool)
    assert isinstance(replayed.tool, Missing) and "a kernel that waits" in replayed.tool.reason


def test_nsys_records_and_exports_each_task_on_its_node(tmp_path):
    settings = "nodes: 2, tasks_per_node: 4, srun: [--cpus-per-task=8]"
    job = change(planned(tmp_path, workload(settings), allocated=2)[1], on_gpu=True)
    (command,) = nsys.commands(job)
    srun, profile, target = (" ".join(command.argv).partition(word)[0] for word in ("/bin/nsys", "-o ", "./a.out"))
    assert srun.startswith("srun --nodes=2 --ntasks=8 --ntasks-per-node=4 ") and srun.endswith("--cpus-per-task=8 ")
    assert "--export=sqlite" in profile
    assert target.endswith(f"-o {job.folder}/capture.%q{{SLURMD_NODENAME}}.task%q{{SLURM_PROCID}} ")
    assert (command.makes_like, command.makes_count) == ("capture.*.task*.sqlite", 8)
    job.folder.mkdir(parents=True)
    for name in ("capture.node2.task1.sqlite", "capture.node1.task0.sqlite", "capture-2.node1.task0.sqlite"):
        (job.folder / name).touch()
    assert [path.name for path in nsys.artifacts(job)] == ["capture.node1.task0.sqlite", "capture.node2.task1.sqlite"]


def test_ranks_that_files_do_not_state_follow_the_tasks_and_not_the_process_ids(tmp_path):
    def steps_of(task, device, process):
        place = {"source": f"raw/w/nsys/capture.node{task}.task{task}.sqlite", "process": process, "device": device}
        case = {"workload": "w", "case": "default", "profiler": "nsys", "state": "steady", "rule": "pattern"}
        made = [{**place, **case, "step": step, "start_ns": 0.0, "wall_ns": 1.0 + task} for step in range(3)]
        return Tables(steps=schema.frame(schema.STEPS, made))

    # Twelve nodes with two processes of one GPU each, which have falling ids.
    read = [steps_of(task, device, 100 - 2 * task - device) for task in range(12) for device in range(2)]
    steps = reader.combine(read).steps
    found = steps[["source", "device", "rank"]].drop_duplicates()
    ranks = {(int(re.findall(r"task(\d+)", s)[0]), int(d)): int(r) for s, d, r in found.itertuples(index=False)}
    assert ranks == {(task, device): 2 * task + device for task in range(12) for device in range(2)}


def test_programs_on_other_nodes_are_not_compared_in_silence_and_unlike_nodes_are_named():
    gpus = {"node1": "H100", "node2": "H100", "node3": "A100"}
    known = {name: NodeEntry(Machine(gpus=(Gpu(name=gpu),)), {"torch": "2.9"}) for name, gpu in gpus.items()}
    pairs = {"a": ("node1", "node2"), "b": ("node2", "node1"), "c": ("node1", "node3")}
    jobs = tuple(
        JobEntry(workload="w", profiler="plain", cases=(case,), node=nodes[0], rank_nodes=dict(enumerate(nodes)))
        for case, nodes in pairs.items()
    )
    run = Manifest(jobs=jobs, nodes=known)
    found = cluster.read_nodes(Tables(), run, "w", "plain")
    cases = {case: CaseResult(case, {}, case, ()) for case in pairs}
    assert found.of(cases.values()) == ("node1, node2", "node1, node3")
    assert not found.differences([cases["a"], cases["b"]])
    assert found.differences([cases["a"], cases["c"]]) == (("GPU", ("H100", "H100; A100")),)
    assert [differences_of_job(run, job) for job in jobs] == [(), (), (("GPU", ("H100", "A100")),)]


@pytest.mark.parametrize(
    ("slurm_name", "host", "name", "place"),
    [
        ("gpu.one", "gpu", "gpu.one", "gpu-one."),
        ("", "gpu1.cluster.example", "gpu1", "gpu1."),
        ("", "10.0.0.1", "10.0.0.1", "10-0-0-1."),
    ],
)
def test_a_rank_has_the_node_name_that_its_facts_have(monkeypatch, slurm_name, host, name, place):
    monkeypatch.setenv("SLURMD_NODENAME", slurm_name)
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    given = {"folder": "f", "stem": "capture", "profiler": "plain", "nodes": 2}
    steps = {"warmup": 1, "measure": 1, "stop": False, "forward": False}
    rank = HookSettings({**given, "steps": steps})
    assert (rank.node, rank.place) == (node.describe()["node"], place) == (name, place)


def test_the_lines_of_nodes_with_many_gpus_may_arrive_in_turns():
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-0123", "driver": "575.57.08", "sm_count": 132, "power_limit_w": 700.0}
    lines = [
        list(node.as_lines({"node": name, "machine": {"gpus": [gpu] * 8}, "packages": {"torch": "2.9"}}))
        for name in ("node1", "node2")
    ]
    assert len(lines[0]) > 1 and max(map(len, lines[0])) < 1024  # bytes that srun passes on at a time
    mixed = ["srun: lines of srun", *itertools.chain.from_iterable(zip(*lines, strict=True))]
    found = queue.describe_nodes(2, lambda argv, env: "\n".join(mixed))
    assert {name: len(entry.machine.gpus or ()) for name, entry in found.items()} == {"node1": 8, "node2": 8}
    # Descriptions that profpipe did not write, and one that lacks a part, are left out.
    wrong = ('{"node":"n1"}', "5", '{"gpus":5}', '{"node":"n4","machine":{"gpus":5},"packages":{}}')
    mixed[-1:] = [f"profpipe-node n{number} {text}" for number, text in enumerate(wrong, 1)]
    assert list(queue.describe_nodes(2, lambda argv, env: "\n".join(mixed))) == ["node1"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{script: w.py, nodes: 2}", "are for a 'command', which srun starts"),
        ("{command: [a], tasks_per_node: 2}", "Set 'nodes' too"),
        ("{command: [a], nodes: 2, capture: {after_s: 1, for_s: 1}}", "'capture' is for a command on one node"),
    ],
)
def test_nodes_are_for_commands(tmp_path, settings, message):
    (tmp_path / "w.py").write_text("def build(params): ...\n")
    with pytest.raises(ConfigError, match=message):
        planned(tmp_path, f"version: 1\nworkloads: {{w: {settings}}}\n")


def test_workloads_with_different_nodes_are_no_array(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\nworkloads: {a: {command: [x], nodes: 2}, b: {command: [x]}}\n")
    request = RunRequest.create(load_pipeline(path), path, tmp_path)
    with pytest.raises(ConfigError, match="Submit each of them alone: -w NAME"):
        submit.write_script(request, tmp_path, 2)
    assert "--nodes=2" in submit.write_script(replace(request, workloads=("a",)), tmp_path, 1)
