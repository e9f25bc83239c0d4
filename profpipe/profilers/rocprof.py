"""Run rocprofv3, else rocprof (v1), else rocprofv2, of whose files only the launches are read.

The command lines follow AMD's sources and documentation; they were never run on AMD hardware.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from profpipe.job import REGIONS_ONLY, WHOLE, Command, Job, Missing, RunTool, Tool, Traits, capture_end_s, workload_argv

NAME = "rocprof"

#: ROCm does not add its tools to PATH.
_ROCM = Path("/opt/rocm/bin")

#: Record a span of time (start:duration:repeat), or what lies between roctxProfilerResume and roctxProfilerPause.
PERIOD, REGIONS = "--collection-period", "--selected-regions"

TRAITS = Traits(
    one_process="the output of rocprof for several processes is not read yet",
    no_span=(
        "this rocprof cannot record a span of time",
        "rocprofv3 of ROCm 6.4 or newer can (--collection-period).",
    ),
    span_option=PERIOD,
)

#: The period begins when rocprofv3 has loaded its library in the program, a little after the start of the command.
_START_S = 5.0

_GENERATIONS = ("rocprofv3", "rocprof", "rocprofv2")


def find(ask: RunTool) -> Tool | Missing:
    for variant in _GENERATIONS:
        path = shutil.which(variant) or shutil.which(variant, path=str(_ROCM))
        if path is not None:
            # Options that only newer versions have: since ROCm 6.4 a period, later the regions of the program.
            text = ask([path, "--help"]) or "" if variant == "rocprofv3" else ""
            options = tuple(option for option in (PERIOD, REGIONS) if option in text)
            return Tool(NAME, _version(ask, path, variant), path, variant, options)
    return Missing(NAME, "no rocprof on PATH or in /opt/rocm/bin", "It belongs to ROCm, for AMD GPUs.")


def _version(ask: RunTool, path: str, variant: str) -> str:
    """Return the tool's version. Only rocprofv3 from ROCm 7 on has --version; ROCm's version is in a file."""
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", ask([path, "--version"]) or "") if variant == "rocprofv3" else None
    if match:
        return match[1]
    info = Path("/opt/rocm/.info/version")
    return f"ROCm {info.read_text(encoding='utf-8').strip()}" if info.is_file() else ""


def commands(job: Job) -> list[Command]:
    """Trace HIP, so that a file has the call of each kernel; else ranges are known by time only.

    rocprofv3 gets the option for CSV: from ROCm 7 on its default is a database. Its ``--stats`` alone records nothing.
    In v1 ``--hip-trace`` implies time stamps, and writes the kernels' ranges.
    """
    assert isinstance(job.tool, Tool)
    env = {} if job.tool.variant == "rocprofv3" else {"PROFPIPE_ROCTX": "libroctx64"}
    makes, ends_after_s = _MAKES[job.tool.variant].format(job.stem), capture_end_s(job)
    if (span := job.settings.capture) and ends_after_s is not None:
        period = [PERIOD, f"{span.after_s:g}:{span.for_s:g}:1", f"{PERIOD}-unit", "sec"]
        return [Command(_argv(job, period), makes_like=makes, env=env, ends_after_s=ends_after_s + _START_S)]
    if not job.is_hooked or REGIONS not in job.tool.options:
        return [Command(_argv(job), makes_like=makes, env=env)]
    # Where no step begins, nothing is recorded.
    whole = Command(_argv(job), makes_like=makes, env={**env, **WHOLE})
    return [Command(_argv(job, [REGIONS]), makes_like=makes, env={**env, **REGIONS_ONLY}, fallback=whole)]


def _argv(job: Job, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command line. ``chosen`` are the options of rocprofv3 that record a part of the process."""
    assert isinstance(job.tool, Tool)
    folder = str(job.folder)
    options = {
        "rocprofv3": [
            "--kernel-trace", "--memory-copy-trace", "--marker-trace", "--hip-trace", "--stats", *chosen,
            "-d", folder, "-o", job.stem, "-f", "csv", "--",
        ],
        "rocprofv2": ["--kernel-trace", "--roctx-trace", "--hip-trace", "-d", folder, "-o", job.stem],
        "rocprof": ["--hip-trace", "--roctx-trace", "-o", f"{folder}/{job.stem}.csv"],
    }  # fmt: skip
    return (job.tool.path, *options[job.tool.variant], *workload_argv(job))


#: Patterns of the files that the tools write.
_MAKES = {"rocprofv3": "{}*_kernel_trace.csv", "rocprofv2": "*{}*.csv", "rocprof": "{}*"}

#: Formats of a recording, of which one is read: the others are its sums, or the same launches again.
_FULLEST_FIRST = (
    r"_kernel_trace\.csv$",
    r"\.db$",
    r"^[^._]*\.csv$|^results_",
    r"\.json$",
    r"[._](kernel_)?stats\.csv$",
    r"_marker_api_trace\.csv$",
)


def artifacts(job: Job) -> list[Path]:
    """Return the fullest format below the folder: the path may hold host name and process id."""
    # rocprofv2 writes results_capture.csv.
    ours = re.compile(rf"(results_)?{job.stem}(?!-\d)")
    left = [path for path in sorted(job.folder.rglob("*")) if ours.match(path.name)]
    forms = ([path for path in left if re.search(form, path.name)] for form in _FULLEST_FIRST)
    return [*next(filter(None, forms), []), *job.records]


def diagnose(log: str) -> tuple[str, str] | None:
    if "rocm_agent_enumerator" in log:
        why = "rocprof did not start the workload: it found no rocm_agent_enumerator. Complete the ROCm install."
        return "skipped", why
    return None
