"""Run Nsight Compute: hardware counters of each kernel in one iteration of a case.

ncu replays every kernel several times, and by default locks the clock to its base: times are comparable with those of
other profilers only with ``--clock-control none``.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from profpipe.job import WHOLE, Command, Job, Missing, RunTool, Tool, Traits, workload_argv

NAME = "ncu"
TRAITS = Traits(
    one_process="ncu replays one kernel at a time, and a kernel that waits for another process would wait forever",
    no_span=(
        "ncu records steps, and `capture` asks for a span of time",
        "Use nsys, torch or rocprof, or remove `capture`.",
    ),
    process_s=7.0,
    case_s=2.2,
    # Guided, it replays three kernels, each in its process.
    program=4.0,
)

_VERSION = re.compile(r"Version (\d+\.\d+\.\d+)")

_PERMISSION = (
    "the driver gives performance counters to administrators only (ERR_NVGPUCTRPERM). On the host, load the nvidia "
    "module with NVreg_RestrictProfilingToAdminUsers=0, or start the container with --cap-add=SYS_ADMIN."
)


def find(ask: RunTool) -> Tool | Missing:
    path = shutil.which("ncu")
    if path is None:
        return Missing(NAME, "ncu is not on PATH", "Install Nsight Compute (developer.nvidia.com/nsight-compute).")
    if importlib.util.find_spec("ncu_report") is None:
        what = "the Python package ncu-report, which reads its reports, is not installed"
        return Missing(NAME, what, "Install it: pip install 'profpipe[ncu]'.")
    answer = ask([path, "--version"]) or ""
    if match := _VERSION.search(answer):
        return Tool(NAME, match[1], path)
    return Missing(NAME, f"{path} does not start", "Install Nsight Compute again.")


def report(job: Job) -> Path:
    return job.folder / f"{job.stem}.ncu-rep"


def commands(job: Job) -> list[Command]:
    assert isinstance(job.tool, Tool)
    by_hook = job.is_hooked and (job.settings.ncu.kernels != "guided" or bool(job.guided and job.guided.by_step))
    whole = Command(_argv(job, []), makes=(report(job),), env=WHOLE)
    if not job.script and not by_hook:
        return [whole]
    # The harness calls cudaProfilerStart around the measured iteration, the start-up hook around one step.
    argv = _argv(job, ["--profile-from-start", "off"])
    return [Command(argv, makes=(report(job),), fallback=whole if by_hook else None)]


def _argv(job: Job, start: Sequence[str]) -> tuple[str, ...]:
    assert isinstance(job.tool, Tool)
    settings = job.settings.ncu
    return (
        job.tool.path,
        "--nvtx",
        "--set", settings.set,
        *(word for section in settings.sections for word in ("--section", section)),
        "--clock-control", "none",
        *(["--import-source", "yes"] if settings.source else []),
        *_kernels(job),
        *start,
        "-f", "-o", str(report(job)),
        *workload_argv(job),
    )  # fmt: skip


def _kernels(job: Job) -> list[str]:
    """Return the filter on names. Kernels that wait for another process would hang: ncu runs one kernel at a time.

    Guided, the filter is ``--kernel-id`` with the chosen invocations, one list for all kernels. ncu 2025.3.1 counts
    invocations by name from cudaProfilerStart (its documentation: by name, grid, block and shared memory). Launches
    that the list takes in addition are left out of the tables (``ingest/ncu.py``). ``--filter-mode
    per-launch-config`` does not count by name: of all kernels of one shape it would take the first.
    """
    guided, unwanted, wanted = job.guided, job.settings.ncu.exclude, job.settings.ncu.kernels
    assert guided or wanted != "guided", "the runner chooses the kernels by another profiler's capture"
    wanted = guided.pattern if guided else wanted
    parts = [f"(?!.*(?:{unwanted}))" if unwanted else "", "" if wanted == "all" else f".*(?:{wanted})"]
    if not any(parts):
        return []
    pattern = f"^{''.join(parts)}"
    if guided:
        # Colons divide the parts of --kernel-id.
        pattern = pattern.replace("(?:", "(").replace(":", ".")
        numbers = [str(number) for number in guided.invocations]
        invocations = numbers[0] if len(numbers) == 1 else f"^({'|'.join(numbers)})$"
        return ["--kernel-name-base", "demangled", "--kernel-id", f"::regex:{pattern}:{invocations}"]
    return ["--kernel-name-base", "demangled", "--kernel-name", f"regex:{pattern}"]


def artifacts(job: Job) -> list[Path]:
    return [report(job), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    if "ERR_NVGPUCTRPERM" in log:
        return "skipped", _PERMISSION
    if "resource was unavailable" in log.lower():
        return "failed", "another tool holds the counters. Stop it (dcgmi profiling --pause), then run again."
    if "LibraryNotLoaded" in log:
        why = "ncu cannot load its counter library: the container lacks part of the driver, or ncu is too old."
        return "skipped", why
    if "No kernels were profiled" in log:
        why = "ncu profiled no kernel: none ran in the measured region, or the filter in ncu.kernels finds none."
        return "failed", why
    return None
