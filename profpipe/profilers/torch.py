"""Run torch.profiler inside the workload's process: one Chrome trace for each case and process."""

from __future__ import annotations

import re
from pathlib import Path

from profpipe.job import Command, Job, Missing, RunTool, Tool, Traits, capture_end_s, on_nodes, workload_argv

NAME = "torch"

#: The line of the log in which the runner explains what the start-up hook did not record.
_NOTHING_RECORDED = (
    r"^profpipe: ((?:no step|nothing) was recorded: (the program made |the program ended |no operator )?.+)$"
)
TRAITS = Traits(
    title="torch.profiler",
    keeps_ended_cases=True,
    needs_hook=True,
    needs_torch=True,
    # It keeps all events in memory, and a host launches up to 200,000 kernels a second: 2 million in 10 s.
    span_s=10.0,
    guides_ncu=True,
    process_s=6.0,
    program=1.1,
)


def find(ask: RunTool) -> Tool | Missing:
    """Find torch by its metadata: importing it takes seconds."""
    from importlib import metadata  # which takes 10 ms to import

    try:
        return Tool(NAME, metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Missing(NAME, "torch is not installed", "Install it as pytorch.org says for this machine.")


def commands(job: Job) -> list[Command]:
    if job.script is None:
        count = 1 if job.settings.collect else job.launch.nodes * job.launch.tasks_per_node
        return [
            Command(
                on_nodes(job, workload_argv(job)),
                makes_like=_traces_of_command(job),
                makes_count=count,
                ends_after_s=capture_end_s(job),
            )
        ]
    return [Command(workload_argv(job), makes=(job.records[0],))]


def _traces_of_command(job: Job) -> str:
    """Return the glob of the traces of the start-up hook, or of those that the program writes itself."""
    return f"{job.stem}.collected.*" if job.settings.collect else f"{job.stem}.*.pt.trace.json.gz"


def artifacts(job: Job) -> list[Path]:
    """Return the traces of all cases; a skipped case leaves none. A command has one for each process."""
    if job.script is None:
        return [*sorted(job.folder.glob(_traces_of_command(job))), *job.records]
    # A skipped case leaves no gap in the numbers, and each trace names its case.
    return [*(path for path, _ in job.case_files(".pt.trace.json.gz")), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    # PROFILERS: pytorch#117935, one CUPTI client a process.
    if "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in log:
        return "failed", "another profiler holds CUPTI in this process. Do not run profpipe under nsys or ncu."
    if match := re.search(_NOTHING_RECORDED, log, re.MULTILINE):
        # A program without torch is nothing for this profiler; one that ended too early needs other settings.
        return "failed" if match[2] else "skipped", match[1].removesuffix(".")
    return None
