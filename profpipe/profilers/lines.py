"""Sample the lines of a Python program 200 times a second, inside its processes: for those without torch and a GPU."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from profpipe.job import Command, Job, Missing, RunTool, Tool, Traits, workload_argv

NAME = "lines"
TRAITS = Traits(
    title="samples of Python's lines",
    keeps_ended_cases=True,
    inside=Path(__file__).parents[1] / "hook" / "lines.py",
    suffix=".lines.json",
    needs_hook=True,
    no_script="lines are sampled in commands only",
    one_process="samples of lines are of one process",
    no_span=("samples of lines have no span of time", "Leave out the capture."),
    process_s=2.0,
    program=1.1,
)


def find(ask: RunTool) -> Tool | Missing:
    """Return Python's version: the samples need nothing else."""
    return Tool(NAME, platform.python_version())


def commands(job: Job) -> list[Command]:
    return [Command(workload_argv(job), makes_like=f"{job.stem}.*{TRAITS.suffix}")]


def artifacts(job: Job) -> list[Path]:
    """Return the samples of the processes of a command."""
    return [*sorted(job.folder.glob(f"{job.stem}.*{TRAITS.suffix}")), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    match = re.search(r"^profpipe: (nothing was recorded: .+?)\.?$", log, re.MULTILINE)
    return ("skipped", match[1]) if match else None
