"""Run Nsight Systems: a timeline of all cases in one report, exported to SQLite with the same nsys.

An older nsys cannot open the report, so it is exported at once, and both files are kept.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from profpipe.job import Ask, Command, Job, Missing, Tool, workload_argv

NAME = "nsys"
KEEPS_ENDED_CASES = False

_VERSION = re.compile(r"version (\d{4}\.\d+\.\d+)")

#: nsys 2022.4 can fail at these two places on a busy machine, before the workload runs. In the first it opens a
#: semaphore (sem_open, ENOENT) that its agent has not created yet, in the second its agent has not opened its port.
_AGENT_TOO_LATE = ("ProcessWaiterImpl::ProcessWaiterImpl", "Local Endpoint is not available")


def find(ask: Ask) -> Tool | Missing:
    path = shutil.which("nsys")
    if path is None:
        return Missing(NAME, "nsys is not on PATH", "Install Nsight Systems (developer.nvidia.com/nsight-systems).")
    answer = ask([path, "--version"]) or ""
    if match := _VERSION.search(answer):
        return Tool(NAME, match[1], path)
    last_line = (answer.strip().splitlines() or ["no output"])[-1]
    return Missing(NAME, f"{path} does not start: {last_line}", "Install Nsight Systems again.")


def report(job: Job) -> Path:
    return job.folder / f"{job.stem}.nsys-rep"


def sqlite(job: Job) -> Path:
    return job.folder / f"{job.stem}.sqlite"


def commands(job: Job) -> list[Command]:
    """Return the commands that profile and export. nsys 2022 and 2023 accept no ``--`` before the application."""
    assert isinstance(job.tool, Tool)
    nsys = job.tool.path
    profile = [
        nsys, "profile",
        "-t", "cuda,nvtx" if job.on_gpu else "nvtx",
        "-s", "none", "--cpuctxsw=none",
        *_capture(job),
        "--cuda-graph-trace=node",
        "-f", "true", "-o", str(report(job)),
        *workload_argv(job),
    ]  # fmt: skip
    export = [nsys, "export", "-t", "sqlite", "-q", "true", "-f", "true", "-o", str(sqlite(job)), str(report(job))]
    return [
        Command(tuple(profile), makes=(report(job),), false_starts=_AGENT_TOO_LATE),
        Command(tuple(export), makes=(sqlite(job),), runs_workload=False),
    ]


def _capture(job: Job) -> list[str]:
    """Return the options that capture from cudaProfilerStart to Stop; `stop` keeps the application's exit code.

    Jobs without a GPU and commands may not call cudaProfilerStart, and NVIDIA does not document which of several
    processes starts and ends the capture of their common report. All of these are recorded from beginning to end; work
    before and after the measured iterations is then outside the range of every case.
    """
    if job.script is None or not job.on_gpu or job.processes > 1:
        return []
    return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]


def artifacts(job: Job) -> list[Path]:
    return [sqlite(job), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    """Find nsys's failure in its output: the exit code is the application's."""
    if any(text in log for text in _AGENT_TOO_LATE):
        return (
            "failed",
            "nsys lost its own agent while it started: the machine is too busy. Run again when it has less load.",
        )
    if "Importer error status" in log or "skipping importation of the QDSTRM file" in log:
        return "failed", "nsys could not convert what it recorded: its host half lacks a library. Reinstall nsys."
    if "Failed to create" in log and "File exists" in log:
        return "failed", "nsys could not overwrite an older report. Remove the run's folder and start again."
    if re.search(r"Generated:\s*\Z", log):
        # cudaProfilerStart is called through torch.
        return (
            "failed",
            "the capture range was never entered, so nsys recorded nothing: in the workload's process torch is missing "
            "or sees no GPU. `profpipe doctor` says why.",
        )
    return None
