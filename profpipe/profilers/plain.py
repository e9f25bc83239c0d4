"""Run without a profiler: CUDA events around each iteration, ``perf_counter`` on a CPU."""

from __future__ import annotations

from pathlib import Path

from profpipe.job import Ask, Command, Job, Missing, Tool, workload_argv

NAME = "plain"
KEEPS_ENDED_CASES = True


def find(ask: Ask) -> Tool | Missing:
    """Return the tool, which is always present."""
    return Tool(NAME, version="")


def commands(job: Job) -> list[Command]:
    return [Command(workload_argv(job), makes=tuple(artifacts(job)[:1]))]


def artifacts(job: Job) -> list[Path]:
    """Return the harness's records. A command has none: its result is its wall time."""
    return job.records if job.script else []


def diagnose(log: str) -> tuple[str, str] | None:
    return None
