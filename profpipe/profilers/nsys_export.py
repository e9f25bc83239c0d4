"""Export a report of nsys, which only nsys can read, to SQLite.

Since 2023 a report begins with the version of nsys that wrote it (``NVIDIA Tegra Profiler Report 2026@4@1@191-…``).
Reports of 2020 to 2022 have it near their end. nsys reads the reports of the same and older versions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from profpipe.errors import UnreadableFile
from profpipe.job import Ask, Missing, Tool

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
    return path.is_file() and _head(path).startswith(_REPORT)


def is_recording(path: Path) -> bool:
    """Return True for a ``.qdstrm``, which nsys records into and converts to a report at the end."""
    return path.is_file() and _STREAM in _head(path)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(128)
    except OSError:
        return b""  # the parser reports why the file cannot be read


def version(path: Path) -> str:
    """Return the version of nsys that wrote a report or recording, empty where it is unknown."""
    with path.open("rb") as stream:
        found = _HEAD_VERSION.search(stream.read(128))
        if not found:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            found = _TAIL_VERSION.search(stream.read())
    return found["version"].decode().replace("@", ".") if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def argv(nsys: str, report: str, target: str) -> Sequence[str]:
    return [nsys, "export", "-t", "sqlite", "-q", "true", "-f", "true", "-o", target, report]


def export(report: Path, target: Path, nsys: Tool | Missing, ask: Ask) -> None:
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
    output = ask(argv(nsys.path, str(report), str(target)))
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
    command = shlex.join(argv("nsys", report.name, target))
    enough = f"nsys {version(report)} or newer" if version(report) else "a newer nsys"
    return f"Where {enough} is installed: {command}. Then here: profpipe ingest {shlex.quote(target)}."


def _import(recording: Path) -> str:
    command = f"QdstrmImporter -i {shlex.quote(recording.name)}"
    why = "nsys was killed at its end, or its host half lacks a library"
    return f"Record again ({why}), or run {command}, a tool in the folder host-linux-x64 of that nsys."
