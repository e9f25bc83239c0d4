"""Run Nsight Systems: a timeline of all cases in one report, exported to SQLite with the same nsys.

An older nsys cannot open the report, so it is exported at once, and both files are kept.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from profpipe.errors import UnreadableFile
from profpipe.job import WHOLE, Command, Job, Missing, RunTool, Tool, Traits, capture_end_s, on_nodes, workload_argv

NAME = "nsys"
TRAITS = Traits(span_s=30.0, guides_ncu=True)

_VERSION = re.compile(r"version (\d{4}\.\d+\.\d+)")

#: nsys 2022.4 can fail in these ways on a busy machine, before the workload runs. In the first it opens a semaphore
#: (sem_open, ENOENT) that its agent has not created yet, in the second its agent has not opened its port. In the third
#: its agent closes their connection, and nsys prints only this.
FALSE_START = re.compile(
    r"ProcessWaiterImpl::ProcessWaiterImpl|Local Endpoint is not available"
    r"|\A\s*(?:End of file|Connection reset by peer)\s*\Z"
)


#: nsys ends after the recording, and the program goes on. The exit code of nsys is 0 then.
_KEEPS_RUNNING = "--kill=none"


def find(ask: RunTool) -> Tool | Missing:
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
    """Return the commands that profile and export. On several nodes each task of srun exports its own report."""
    capture = _capture(job)
    common: dict[str, Any] = {"makes": (report(job),)}
    if job.launch.nodes > 1:
        common = {"makes_like": _exports(job), "makes_count": job.launch.nodes * job.launch.tasks_per_node}
    common |= {
        "retry_pattern": FALSE_START,
        "ends_after_s": capture_end_s(job),
        "is_ended_by_tool": True,
        "may_outlive_tool": _KEEPS_RUNNING in capture,
    }
    # Where no step begins, nsys writes no file at all.
    fallback = Command(_profile(job, []), **common, env=WHOLE) if capture and job.is_hooked else None
    profile = Command(_profile(job, capture), **common, fallback=fallback)
    if job.launch.nodes > 1:
        return [profile]
    assert isinstance(job.tool, Tool)
    export = _export_argv(job.tool.path, report(job), sqlite(job))
    return [profile, Command(export, makes=(sqlite(job),), runs_workload=False)]


def _export_argv(nsys: str, report: Path | str, target: Path | str) -> tuple[str, ...]:
    return (nsys, "export", "-t", "sqlite", "-q", "true", "-f", "true", "-o", str(target), str(report))


def _exports(job: Job) -> str:
    """Return the glob of the exports of tasks: ``capture.node1.task0.sqlite``."""
    return f"{job.stem}.*.task*.sqlite"


def _profile(job: Job, capture: Sequence[str]) -> tuple[str, ...]:
    """Return the command that profiles. nsys 2022 and 2023 accept no ``--`` before the application.

    nsys replaces ``%q{NAME}`` by a variable of the environment that srun gives to the task.
    """
    assert isinstance(job.tool, Tool)
    target = report(job)
    if job.launch.nodes > 1:
        target = job.folder / f"{job.stem}.%q{{SLURMD_NODENAME}}.task%q{{SLURM_PROCID}}"
    argv = (
        job.tool.path, "profile",
        "-t", "cuda,nvtx" if job.launch.on_gpu else "nvtx",
        "-s", "none", "--cpuctxsw=none",
        *capture,
        *(["--export=sqlite"] if job.launch.nodes > 1 else []),
        "--cuda-graph-trace=node",
        "-f", "true", "-o", str(target),
        *workload_argv(job),
    )  # fmt: skip
    return on_nodes(job, argv)


def _capture(job: Job) -> list[str]:
    """Return the options that capture from cudaProfilerStart to Stop; `stop` keeps the application's exit code.

    In a command the start-up hook calls them at the first and the last chosen step, and of several processes the last
    one ends the common capture. Jobs without a GPU do not call cudaProfilerStart, and NVIDIA does not document which of
    several ranks of a harness starts and ends the capture. These are recorded from beginning to end; work before and
    after the measured iterations is then outside the range of every case.
    """
    span = job.settings.capture
    if span and not span.is_whole:
        options = [f"--delay={span.after_s:g}", f"--duration={span.for_s:g}"]
        return [*options, _KEEPS_RUNNING] if span.goes_on else options
    if not (job.script or job.is_hooked) or not job.launch.on_gpu or job.processes > 1:
        return []
    return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]


def artifacts(job: Job) -> list[Path]:
    """Return the export, of several nodes one of each task, and the records of the harness or the start-up hook."""
    exports = sorted(job.folder.glob(_exports(job))) if job.launch.nodes > 1 else [sqlite(job)]
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


# --- export a report, which only nsys can read, to SQLite -------------------------------------------------------------

#: Since 2023 a report begins with the version of nsys that wrote it (``NVIDIA Tegra Profiler Report 2026@4@1@191-…``).
#: Reports of 2020 to 2022 have it near their end. nsys reads the reports of the same and older versions.
_REPORT: Final = b"NVIDIA Tegra Profiler Report "
_STREAM: Final = b"NVIDIA Nsight Systems Stream "
_HEAD_VERSION: Final = re.compile(rb"(?:%s|%s)(?P<version>20\d\d[.@]\d+[.@]\d+)" % (_REPORT, _STREAM))
#: Two fields in a row (numbers 6 and 7 of a protobuf message: tag, length, text) with the same version. A version alone
#: is not enough: a report also has the command lines of other processes, which may contain version numbers.
_TAIL_VERSION: Final = re.compile(rb"2(.)((?P<version>20\d\d\.\d+\.\d+)\.\d+-\w+):\1\2", re.DOTALL)
#: The two fields are among the last few hundred bytes of a report of 2020 to 2022; the command line of nsys follows.
_TAIL_BYTES: Final = 1 << 16
_TOO_OLD: Final = re.compile(r"newer than your current|Version number is invalid|Version not supported", re.IGNORECASE)
#: nsys that fails half-way leaves a part of its output: 2022.4 the names of a report of 2023, without kernels.
_FAILED: Final = re.compile(r"Exportation error|ParseException", re.IGNORECASE)


def is_report(path: Path) -> bool:
    """Return True where the content of ``path`` is a report of nsys (``.nsys-rep``, before 2021.4 ``.qdrep``)."""
    return _head(path).startswith(_REPORT)


def is_recording(path: Path) -> bool:
    """Return True for a ``.qdstrm``, which nsys records into and converts to a report at the end."""
    return _STREAM in _head(path)


def _head(path: Path) -> bytes:
    try:
        # What has no size, as a pipe or a file of /proc, may never have anything to read.
        if not path.is_file() or not path.stat().st_size:
            return b""
        with path.open("rb") as stream:
            return stream.read(128)
    except OSError:
        return b""  # the parser reports why the file cannot be read


def version(path: Path) -> str:
    """Return the version of nsys that wrote a report or recording, empty where it is unknown."""
    with path.open("rb") as stream:
        match = _HEAD_VERSION.search(stream.read(128))
        if not match:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            match = _TAIL_VERSION.search(stream.read())
    return match["version"].decode().replace("@", ".") if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def export(report: Path, target: Path, nsys: Tool | Missing, ask: RunTool) -> None:
    """Export ``report`` to the SQLite file ``target``.

    Raises UnreadableFile, with the command to run elsewhere, if the recording never became a report, or if nsys is
    missing, is older than the report, or fails.
    """
    writer = f"nsys {version(report)}".strip()
    if is_recording(report):
        raise UnreadableFile(report, f"is a recording of {writer} that was not made into a report", _import(report))
    if isinstance(nsys, Missing):
        what = f"is a report of {writer}, which only nsys can read, and {nsys.reason}"
        raise UnreadableFile(report, what, _elsewhere(report))
    output = ask(_export_argv(nsys.path, report, target))
    if target.is_file() and output is not None and not _FAILED.search(output):
        return
    target.unlink(missing_ok=True)
    ours = f"nsys {nsys.version}, which is here,"
    if output is None:
        raise UnreadableFile(report, f"{ours} did not start or did not end its export in time", _elsewhere(report))
    if _TOO_OLD.search(output) or _numbers(version(report)) > _numbers(nsys.version):
        raise UnreadableFile(report, f"was written by {writer}; {ours} is too old to read it", _elsewhere(report))
    last_line = (output.strip().splitlines() or ["no output"])[-1]
    remedy = "It is cut or damaged: copy it again, or record it again."
    raise UnreadableFile(report, f"{ours} cannot export it ({last_line[:200]})", remedy)


def _elsewhere(report: Path) -> str:
    """Return the remedy: the command to run on a machine with a suitable nsys."""
    target = f"{report.stem}.sqlite"
    command = shlex.join(_export_argv("nsys", report.name, target))
    enough = f"nsys {version(report)} or newer" if version(report) else "a newer nsys"
    return f"Where {enough} is installed: {command}. Then here: profpipe ingest {shlex.quote(target)}."


def _import(recording: Path) -> str:
    command = f"QdstrmImporter -i {shlex.quote(recording.name)}"
    why = "nsys was killed at its end, or its host half lacks a library"
    return f"Record again ({why}), or run {command}, a tool in the folder host-linux-x64 of that nsys."
