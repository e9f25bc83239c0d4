"""torch.profiler, inside the workload's process: one chrome trace a case."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from profpipe.job import Ask, Command, Job, Missing, Tool, workload_argv

NAME = "torch"
KEEPS_ENDED_CASES = True


def find(ask: Ask) -> Tool | Missing:
    """torch by its metadata: importing it would cost seconds in a process that does not need it."""
    try:
        return Tool(NAME, metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Missing(NAME, "torch is not installed", "Install it as pytorch.org says for this machine.")


def commands(job: Job) -> list[Command]:
    return [Command(workload_argv(job), makes=(job.folder / "events.jsonl",))]


def artifacts(job: Job) -> list[Path]:
    """A trace for each case that was measured; a skipped case leaves none."""
    numbers = range(1, len(job.cases) + 1)
    return [job.folder / f"{job.stem}.{number}.pt.trace.json.gz" for number in numbers] + [job.folder / "events.jsonl"]


def diagnose(log: str) -> tuple[str, str] | None:
    # PROFILERS: pytorch#117935, one CUPTI client a process.
    if "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in log:
        return "failed", "another profiler holds CUPTI in this process. Do not run profpipe under nsys or ncu."
    return None
