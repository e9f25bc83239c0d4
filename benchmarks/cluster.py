"""Measures what a run on a cluster costs the machine that submits and collects it. The cluster is simulated.

    python benchmarks/cluster.py [--tasks 10,100,1000] [--kernels 30]

No Slurm is needed: the programs `sbatch`, `scontrol`, `squeue` and `sacct` on PATH are stand-ins, which answer at once
as Slurm does and run nothing. The records of the tasks are made up too. Each task has one case under plain and torch,
with so many kernels. Times are CPU seconds of this process and of the stand-ins, which a busy machine changes little.

* plan: reading the pipeline file, finding the tasks, making the run's folder with plan and batch script.
* submit: one array by `sbatch`.
* queue: asking what became of the tasks while none has a record.
* read: reading all records and joining their tables.
* collect: all of `profpipe collect`, with the queue, the tables, the pages and the history.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import profpipe_run  # noqa: F401

from profpipe.analysis.cases import comparisons
from profpipe.commands import cluster
from profpipe.config.loader import load_pipeline
from profpipe.results import schema, store
from profpipe.results.manifest import Gpu, JobEntry, Machine, Manifest, NodeEntry
from profpipe.results.tasks import Task, TaskState
from profpipe.runner.request import RunRequest
from profpipe.runner.slurm import collect, queue, records, submit
from profpipe.runner.slurm.records import TaskRecord

#: Each says that it is none of Slurm's. All tasks wait.
STAND_INS = {
    "sbatch": "echo 4711",
    "scontrol": 'case "$*" in *config*) echo "MaxArraySize = 10001";; *) echo "JobId=4711 ArrayJobId=4711'
    ' ArrayTaskId=0-$LAST JobState=PENDING Reason=Resources Restarts=0 NodeList=";; esac',
    "squeue": "exit 1",
    "sacct": "exit 1",
}
PIPELINE = """\
version: 1
name: simulated
workloads:
  w:
    command: [echo, "{{impl}}", "{{n}}"]
    profilers: [plain, torch]
    matrix: {{n: [{sizes}], impl: [a, b]}}
    baseline: {{impl: a}}
slurm: {{spread: cases}}
"""
NODES = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="10,100,1000")
    parser.add_argument("--kernels", type=int, default=30)
    args = parser.parse_args()
    print("simulated tasks  plan s  submit s  queue s  read s  collect s  records MiB")
    for tasks in map(int, args.tasks.split(",")):
        with tempfile.TemporaryDirectory(prefix="profpipe-cluster-") as name:
            print(measure(Path(name).resolve(), tasks, args.kernels), flush=True)


def measure(folder: Path, tasks: int, kernels: int) -> str:
    """Return a line with the times of a run of so many tasks."""
    _install(folder / "bin", tasks)
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE.format(sizes=", ".join(map(str, range(tasks // 2)))), encoding="utf-8")
    request, plan_s = timed(lambda: RunRequest.create(load_pipeline(path), path, folder / "out"))
    run, create_s = timed(lambda: submit.create(request, ["profpipe", "run", "--slurm"], comparisons))
    plan = records.load_plan(run)
    _, submit_s = timed(lambda: submit.submit(run, request, range(len(plan))))
    _, queue_s = timed(lambda: queue.look_up(queue.read_submissions(run)))
    for task in plan:
        simulated_record(run.name, task, kernels).save(run)
    size = sum(file.stat().st_size for file in (run / records.RECORDS).iterdir()) / 2**20
    _, read_s = timed(lambda: collect.collect(run, {}))
    output = argparse.Namespace(quiet=True, json=False, csv=False)
    with redirect_stdout(sys.stderr):
        _, collect_s = timed(lambda: cluster.collect(run, output))
    times = f"{plan_s + create_s:7.2f} {submit_s:9.2f} {queue_s:8.2f} {read_s:7.2f} {collect_s:10.2f}"
    return f"{tasks:15} {times} {size:12.1f}"


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    began = sum(os.times()[:4])
    result = act()
    return result, sum(os.times()[:4]) - began


def _install(folder: Path, tasks: int) -> None:
    """Put the stand-ins first on PATH."""
    folder.mkdir()
    for name, line in STAND_INS.items():
        script = folder / name
        script.write_text(
            f"#!/bin/sh\n# A stand-in of benchmarks/cluster.py, not Slurm's {name}.\nLAST={tasks - 1}\n{line}\n"
        )
        script.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def simulated_record(run: str, task: Task, kernels: int) -> TaskRecord:
    """Return the record of a task that ended well: made-up times of its case under plain and torch."""
    (case,) = task.cases
    key = {"run": run, "workload": task.workload, "case": case}
    raw = f"raw/{task.workload}/task-{task.index:04d}"
    cases = [
        {**key, "profiler": name, "status": "ok", "params": "{}", "seconds": 2.0, "flags": "[]"}
        for name in task.profilers
    ]
    ns = 1e5 + 100 * task.index
    times = {"time": ns, "time_p10": 0.99 * ns, "time_p90": 1.01 * ns, "time_min": 0.98 * ns, "time_max": 1.1 * ns}
    metrics = [
        {**key, "profiler": "plain", "metric": name, "value": value, "unit": "ns", "n": 30, "ci_low": 0.999 * value,
         "ci_high": 1.001 * value} for name, value in times.items()
    ]  # fmt: skip
    launches = [
        {**key, "profiler": "torch", "source": f"{raw}/torch/trace.json", "kind": "kernel", "kernel": f"kernel_{i}",
         "kernel_class": "gemm", "calls": 30, "total_ns": ns, "mean_ns": ns / 30} for i in range(kernels)
    ]  # fmt: skip
    tables = {schema.CASES: cases, schema.METRICS: metrics, schema.KERNELS: launches}
    texts = {table.name: store.as_rows(schema.frame(table, own)) for table, own in tables.items()}
    node = f"n{task.index % NODES}"
    gpu = Gpu("Simulated GPU", "1.0", memory_bytes=80 << 30)
    known = Manifest(
        jobs=tuple(
            JobEntry(task.workload, name, task.cases, folder=f"{raw}/{name}", node=node) for name in task.profilers
        ),
        nodes={node: NodeEntry(Machine((gpu,), "Simulated CPU"))},
        tasks=(replace(task, state=TaskState.DONE, attempt=1, node=node, job=f"4711_{task.index}"),),
    )
    return TaskRecord(known, texts)


if __name__ == "__main__":
    main()
