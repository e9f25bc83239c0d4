"""rocprof, three generations: rocprofv3 where it is, else rocprofv2, else rocprof (v1).

Never run on AMD hardware by this project: the command lines follow AMD's sources and documentation.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from profpipe.job import Ask, Command, Job, Missing, Tool, workload_argv

NAME = "rocprof"
KEEPS_ENDED_CASES = False

#: ROCm does not put its tools on PATH by itself.
_ROCM = Path("/opt/rocm/bin")

_GENERATIONS = ("rocprofv3", "rocprofv2", "rocprof")


def find(ask: Ask) -> Tool | Missing:
    for variant in _GENERATIONS:
        path = shutil.which(variant) or shutil.which(variant, path=str(_ROCM))
        if path is not None:
            return Tool(NAME, _version(ask, path, variant), path, variant)
    return Missing(NAME, "no rocprof on PATH or in /opt/rocm/bin", "It belongs to ROCm, for AMD GPUs.")


def _version(ask: Ask, path: str, variant: str) -> str:
    """Only rocprofv3 of ROCm 7 and later has --version; ROCm's own version stands in a file."""
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", ask([path, "--version"]) or "") if variant == "rocprofv3" else None
    if match:
        return match[1]
    info = Path("/opt/rocm/.info/version")
    return f"ROCm {info.read_text(encoding='utf-8').strip()}" if info.is_file() else ""


def commands(job: Job) -> list[Command]:
    assert isinstance(job.tool, Tool)
    return [Command(tuple(_ARGV[job.tool.variant](job)))]


def _v3(job: Job) -> list[str]:
    """CSV asked for by name: from ROCm 7 on the default is a database. ``--stats`` alone records nothing."""
    assert isinstance(job.tool, Tool)
    return [
        job.tool.path, "--kernel-trace", "--memory-copy-trace", "--marker-trace", "--hip-trace", "--stats",
        "-d", str(job.folder), "-o", job.stem, "-f", "csv", "--", *workload_argv(job),
    ]  # fmt: skip


def _v2(job: Job) -> list[str]:
    assert isinstance(job.tool, Tool)
    trace = ["--kernel-trace", "--roctx-trace"]
    return [job.tool.path, *trace, "-d", str(job.folder), "-o", job.stem, *workload_argv(job)]


def _v1(job: Job) -> list[str]:
    """``--hip-trace`` implies ``--stats``, which implies time stamps; with it the kernels' ranges are written too."""
    assert isinstance(job.tool, Tool)
    csv = str(job.folder / f"{job.stem}.csv")
    return [job.tool.path, "--hip-trace", "--roctx-trace", "-o", csv, *workload_argv(job)]


_ARGV = {"rocprofv3": _v3, "rocprofv2": _v2, "rocprof": _v1}


def artifacts(job: Job) -> list[Path]:
    """What the tool left, wherever below the folder: host name and process id are part of its paths."""
    found = [path for pattern in ("*.csv", "*.db", "*.json") for path in sorted(job.folder.rglob(pattern))]
    ours = [path for path in found if re.match(rf"{job.stem}(?!-\d)", path.name)]
    kept = [path for path in ours if not _supporting(path, ours)]
    return [*kept, job.folder / "events.jsonl"]


def _supporting(path: Path, found: list[Path]) -> bool:
    """Sums and side traces of a recording whose single launches are read already."""
    traced = any(other.name.endswith("_kernel_trace.csv") for other in found)
    database = any(other.suffix == ".db" for other in found)
    if traced:
        return not path.name.endswith("_kernel_trace.csv")
    return database and path.suffix != ".db"


def diagnose(log: str) -> tuple[str, str] | None:
    if "rocm_agent_enumerator" in log:
        return (
            "skipped",
            "rocprof did not start the workload: it found no rocm_agent_enumerator. Complete the ROCm install.",
        )
    return None
