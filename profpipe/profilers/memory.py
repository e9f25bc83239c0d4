"""Record the history of torch's allocator inside the workload's process: who holds the memory of the GPU, and when."""

from __future__ import annotations

import re
from pathlib import Path

from profpipe.job import Artifact, Command, Job, Missing, RunTool, Tool, Traits, on_nodes, workload_argv
from profpipe.profilers import torch

NAME = "memory"
TRAITS = Traits(
    title="torch's memory history",
    keeps_ended_cases=True,
    inside=Path(__file__).parents[1] / "hook" / "memory.py",
    suffix=".memory.pickle",
    needs_hook=True,
    needs_torch=True,
    no_span=("the history of memory has no span of time", "Leave out the capture."),
    process_s=8.0,
    program=1.2,
)


def find(ask: RunTool) -> Tool | Missing:
    """Return the version of torch, whose allocator keeps the history."""
    tool = torch.find(ask)
    return Tool(NAME, tool.version) if isinstance(tool, Tool) else Missing(NAME, tool.reason, tool.remedy)


def commands(job: Job) -> list[Command]:
    if job.script is not None:
        return [Command(workload_argv(job), makes=(job.records[0],))]
    return [Command(on_nodes(job, workload_argv(job)), makes_like=f"{job.stem}.*{TRAITS.suffix}")]


def artifacts(job: Job) -> list[Artifact]:
    """Return the snapshots of all processes, with those of failed allocations; of a script, those of its cases."""
    if job.script is None:
        return [*sorted(job.folder.glob(f"{job.stem}.*{TRAITS.suffix}")), *job.records]
    return [*job.case_files(TRAITS.suffix), *job.case_files(f".oom{TRAITS.suffix}"), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    match = re.search(r"^profpipe: (nothing was recorded: .+?)\.?$", log, re.MULTILINE)
    # A program without a GPU is nothing for this profiler.
    return ("skipped" if "no process used" in match[1] else "failed", match[1]) if match else None
