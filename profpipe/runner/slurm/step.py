"""Commands on several nodes: srun starts them as a job step of the allocation in which profpipe runs.

The processes of a step are not descendants of profpipe: slurmstepd on each node is their parent. Where srun is killed,
the step goes on, and scancel ends it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from profpipe.job import Job
from profpipe.masking import is_secret_name
from profpipe.measure import node
from profpipe.results import manifest
from profpipe.results.manifest import NodeEntry
from profpipe.runner import environment

#: Returns the output of a command with further variables; None if it cannot be started.
Ask = Callable[[Sequence[str], Mapping[str, str]], str | None]

_PAUSE_S: Final = 0.2


def allocated_nodes(environment: Mapping[str, str]) -> int | None:
    """Return the number of nodes of the allocation of this process; None outside of an allocation."""
    count = environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", ""))
    return int(count) if "SLURM_JOB_ID" in environment and count.isdecimal() else None


def variables(job: Job) -> dict[str, str]:
    """Return the variables that srun needs to find the allocation; none for a job on one machine."""
    return slurm_variables() if job.nodes > 1 else {}


def slurm_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SLURM") and not is_secret_name(name)}


def end(job: Job, ask: Ask, wait_s: float) -> None:
    """End the steps of the job that this allocation still has, and wait until they are gone."""
    allocation = os.environ.get("SLURM_JOB_ID")
    if job.nodes == 1 or allocation is None:
        return
    deadline = time.monotonic() + wait_s
    while running := _find(allocation, job, ask):
        ask(["scancel", "--signal=KILL", *running], variables(job))
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)


def describe_nodes(nodes: int, ask: Ask) -> dict[str, NodeEntry]:
    """Return the nodes of the allocation on which commands run, by name.

    Those that do not answer, or whose description is wrong, are missing.
    """
    tasks = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--input=none")
    # As in process.ask_python: nothing is imported from the current folder.
    argv = ["srun", *tasks, f"--chdir={environment.ROOT}", sys.executable, "-m", "profpipe.measure.node"]
    answer = ask(argv, {**slurm_variables(), "PYTHONPATH": environment.own_python_path()}) or ""
    found = {}
    for each in node.from_lines(answer.splitlines()):
        try:
            machine = manifest.parse(manifest.Machine, each["machine"])
            found[str(each["node"])] = NodeEntry(machine, dict(each["packages"]))
        except (ValueError, LookupError, TypeError):  # it is not what profpipe writes
            continue
    return dict(sorted(found.items()))


def _find(allocation: str, job: Job, ask: Ask) -> list[str]:
    """Return the steps of the job: ``["4711.0"]``."""
    argv = ["squeue", "--steps", f"--jobs={allocation}", "--noheader", "--format=%i %j"]
    lines = (line.strip().partition(" ") for line in (ask(argv, variables(job)) or "").splitlines())
    return [step for step, _, name in lines if name == str(job.folder)]
