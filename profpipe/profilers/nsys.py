"""Nsight Systems: a timeline of all cases in one report, exported to SQLite with the same nsys.

An old nsys cannot open a newer report, so the export happens on the spot and both files are kept.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from profpipe.job import Ask, Command, Job, Missing, Tool, workload_argv

NAME = "nsys"
KEEPS_ENDED_CASES = False

_VERSION = re.compile(r"version (\d{4}\.\d+\.\d+)")

#: The constructor in which nsys 2022.4 fails on a busy machine: it opens the semaphore (sem_open, ENOENT) by which its
#: agent waits for the workload's process before the agent has made it, ends that process before it runs, and leaves.
_SEMAPHORE_TOO_EARLY = "ProcessWaiterImpl::ProcessWaiterImpl"


def find(ask: Ask) -> Tool | Missing:
    path = shutil.which("nsys")
    if path is None:
        return Missing(NAME, "nsys is not on PATH", "Install Nsight Systems (developer.nvidia.com/nsight-systems).")
    answer = ask([path, "--version"]) or ""
    if match := _VERSION.search(answer):
        return Tool(NAME, match[1], path)
    return Missing(NAME, f"{path} does not start: {_last_line(answer)}", "Install Nsight Systems anew.")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def report(job: Job) -> Path:
    return job.folder / f"{job.stem}.nsys-rep"


def sqlite(job: Job) -> Path:
    return job.folder / f"{job.stem}.sqlite"


def commands(job: Job) -> list[Command]:
    """Profile, then export. No ``--`` before the application: nsys 2022 and 2023 print their usage instead."""
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
        Command(tuple(profile), makes=(report(job),), false_start=_SEMAPHORE_TOO_EARLY),
        Command(tuple(export), makes=(sqlite(job),), runs_workload=False),
    ]


def _capture(job: Job) -> list[str]:
    """From the harness's cudaProfilerStart to its Stop; `stop` keeps the application's exit code.

    Without a GPU nothing would ever start the capture, and a command of the user's may not call cudaProfilerStart:
    both are recorded from beginning to end. So are several processes, all of them into one report: which of their calls
    would begin and end the one capture is documented nowhere. What they do before and after the measured iterations
    then stands outside every case's range.
    """
    if job.script is None or not job.on_gpu or job.processes > 1:
        return []
    return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]


def artifacts(job: Job) -> list[Path]:
    return [sqlite(job), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    """nsys reports most failures only in its output; the exit code is the application's."""
    if _SEMAPHORE_TOO_EARLY in log:
        return (
            "failed",
            "nsys lost its own agent while it started: the machine is too busy. Run again with less beside it.",
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
