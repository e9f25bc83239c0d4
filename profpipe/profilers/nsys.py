"""Run Nsight Systems: a timeline of all cases in one report, exported to SQLite with the same nsys.

An older nsys cannot open the report, so it is exported at once, and both files are kept.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from profpipe.job import WHOLE, Ask, Command, Job, Missing, Tool, capture_end_s, on_nodes, workload_argv

NAME = "nsys"
KEEPS_ENDED_CASES = False

_VERSION = re.compile(r"version (\d{4}\.\d+\.\d+)")

#: nsys 2022.4 can fail in these ways on a busy machine, before the workload runs. In the first it opens a semaphore
#: (sem_open, ENOENT) that its agent has not created yet, in the second its agent has not opened its port. In the third
#: its agent closes their connection, and nsys prints only this.
FALSE_START = re.compile(
    r"ProcessWaiterImpl::ProcessWaiterImpl|Local Endpoint is not available"
    r"|\A\s*(?:End of file|Connection reset by peer)\s*\Z"
)


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
    if job.nodes > 1:
        return [_on_nodes(job, job.tool.path)]
    nsys = job.tool.path
    capture = _capture(job)
    profile = Command(
        _profile(nsys, job, capture),
        makes=(report(job),),
        false_start=FALSE_START,
        ends_after_s=capture_end_s(job),
        is_ended_by_tool=True,
    )
    if capture and job.is_hooked:
        # Where no step begins, nsys writes no file at all.
        whole = replace(profile, argv=_profile(nsys, job, []), env=WHOLE)
        profile = replace(profile, otherwise=whole)
    export = [nsys, "export", "-t", "sqlite", "-q", "true", "-f", "true", "-o", str(sqlite(job)), str(report(job))]
    return [profile, Command(tuple(export), makes=(sqlite(job),), runs_workload=False)]


def _on_nodes(job: Job, nsys: str) -> Command:
    """Return the command that profiles each task of srun by itself, on its node, and exports the report there.

    nsys replaces ``%q{NAME}`` by a variable of the environment that srun gives to the task.
    """
    report = job.folder / f"{job.stem}.%q{{SLURMD_NODENAME}}.task%q{{SLURM_PROCID}}"
    capture = _capture(job)

    def command(capture: Sequence[str]) -> tuple[str, ...]:
        return on_nodes(job, _profile(nsys, job, [*capture, "--export=sqlite"], report))

    found = Command(
        command(capture),
        makes_like=_exports(job),
        makes_count=job.nodes * job.tasks_per_node,
        false_start=FALSE_START,
        ends_after_s=capture_end_s(job),
        is_ended_by_tool=True,
    )
    whole = replace(found, argv=command([]), env=WHOLE)
    return replace(found, otherwise=whole) if capture and job.is_hooked else found


def _exports(job: Job) -> str:
    """Return the glob of the exports of tasks: ``capture.node1.task0.sqlite``."""
    return f"{job.stem}.*.task*.sqlite"


def _profile(nsys: str, job: Job, capture: Sequence[str], target: Path | None = None) -> tuple[str, ...]:
    return (
        nsys, "profile",
        "-t", "cuda,nvtx" if job.on_gpu else "nvtx",
        "-s", "none", "--cpuctxsw=none",
        *capture,
        "--cuda-graph-trace=node",
        "-f", "true", "-o", str(target or report(job)),
        *workload_argv(job),
    )  # fmt: skip


def _capture(job: Job) -> list[str]:
    """Return the options that capture from cudaProfilerStart to Stop; `stop` keeps the application's exit code.

    In a command the start-up hook calls them at the first and the last chosen step, and of several processes the last
    one ends the common capture. Jobs without a GPU do not call cudaProfilerStart, and NVIDIA does not document which of
    several ranks of a harness starts and ends the capture. These are recorded from beginning to end; work before and
    after the measured iterations is then outside the range of every case.
    """
    if times := job.options.get("capture"):
        return [f"--delay={times['after_s']:g}", f"--duration={times['for_s']:g}"]
    if not (job.script or job.is_hooked) or not job.on_gpu or job.processes > 1:
        return []
    return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]


def artifacts(job: Job) -> list[Path]:
    """Return the export, of several nodes one of each task, and the records of the harness or the start-up hook."""
    exports = sorted(job.folder.glob(_exports(job))) if job.nodes > 1 else [sqlite(job)]
    return [*exports, *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    """Find nsys's failure in its output: the exit code is the application's."""
    if FALSE_START.search(log):
        why = "nsys lost its own agent while it started: the machine is too busy. Run again when it has less load."
        return "failed", why
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
