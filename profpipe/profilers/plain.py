"""Run without a profiler: CUDA events around each iteration, ``perf_counter`` on a CPU."""

from __future__ import annotations

import os
from pathlib import Path

from profpipe import ranges
from profpipe.job import Command, Job, Missing, RunTool, Tool, Traits, capture_end_s, on_nodes, workload_argv

NAME = "plain"
TRAITS = Traits(keeps_ended_cases=True, process_s=6.0, case_s=0.8, program=1.0)


def find(ask: RunTool) -> Tool | Missing:
    """Return the tool, which is always present."""
    return Tool(NAME, version="")


def commands(job: Job) -> list[Command]:
    makes = tuple(job.records[:1]) if job.script else ()
    # The start-up hook makes a file for each change that has reached the program.
    paths = filter(None, job.launch.env.get(ranges.CHANGES_VARIABLE, "").split(os.pathsep))
    makes += tuple(job.folder / f"hook.{job.stem}.change.{Path(path).stem}" for path in paths)
    return [Command(on_nodes(job, workload_argv(job)), makes, ends_after_s=capture_end_s(job))]


def artifacts(job: Job) -> list[Path]:
    """Return the records of the harness, or of the start-up hook of a command."""
    return job.records


def diagnose(log: str) -> tuple[str, str] | None:
    return None
