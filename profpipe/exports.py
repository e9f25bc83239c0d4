"""Turns a report that only nsys can read into one of the files that are parsed.

A report begins with the version of nsys that wrote it (``NVIDIA Tegra Profiler Report 2026@4@1@191-…``); those of 2022
and before carry it at their end. An nsys reads the reports of older ones only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from profpipe.errors import Refused
from profpipe.job import Ask, Missing, Tool

_REPORT: Final = b"NVIDIA Tegra Profiler Report "
_STREAM: Final = b"NVIDIA Nsight Systems Stream "
_VERSION: Final = re.compile(rb"(20\d\d)[.@](\d+)[.@](\d+)")
#: In a report of 2022 the version stands among some hundred bytes about the recording, which are the last.
_TAIL_BYTES: Final = 1 << 16
_TOO_OLD: Final = re.compile(r"newer than your current|Version number is invalid|Version not supported", re.IGNORECASE)
#: An nsys that fails half-way leaves what it had written until then: 2022.4 the names of a report of 2023, no kernel.
_FAILED: Final = re.compile(r"Exportation error|ParseException", re.IGNORECASE)


def is_report(path: Path) -> bool:
    """Whether ``path`` is a report of nsys (``.nsys-rep``, before 2021.4 ``.qdrep``), by its content."""
    return path.is_file() and _head(path).startswith(_REPORT)


def is_recording(path: Path) -> bool:
    """Whether ``path`` is what nsys records into and turns into a report at the end (``.qdstrm``)."""
    return path.is_file() and _STREAM in _head(path)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(128)
    except OSError:
        return b""  # whoever reads the file next says why that cannot be done


def version(path: Path) -> str:
    """The version of nsys that wrote a report or recording; empty where the file does not tell."""
    with path.open("rb") as stream:
        head = stream.read(128)
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        found = _VERSION.search(head) or _VERSION.search(stream.read())
    return b".".join(found.groups()).decode() if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def argv(nsys: str, report: str, target: str) -> Sequence[str]:
    return [nsys, "export", "-t", "sqlite", "-q", "true", "-f", "true", "-o", target, report]


def export(report: Path, target: Path, nsys: Tool | Missing, ask: Ask) -> None:
    """Exports ``report`` to the SQLite file ``target``.

    Raises Refused, with what to run where, if it is a recording that never became a report, or nsys is missing here,
    older than the report, or does not make the file.
    """
    writer = f"nsys {version(report)}".strip()
    if is_recording(report):
        raise Refused(report, f"is a recording of {writer} that was not made into a report", _import(report))
    if isinstance(nsys, Missing):
        what = f"is a report of {writer}, which only nsys can read, and {nsys.reason}"
        raise Refused(report, what, _elsewhere(report))
    output = ask(argv(nsys.path, str(report), str(target)))
    if target.is_file() and output is not None and not _FAILED.search(output):
        return
    target.unlink(missing_ok=True)
    ours = f"nsys {nsys.version}, which is here,"
    if output is None:
        raise Refused(report, f"{ours} did not start or did not end its export in time", _elsewhere(report))
    if _TOO_OLD.search(output) or _numbers(version(report)) > _numbers(nsys.version):
        raise Refused(report, f"was written by {writer}; {ours} is too old to read it", _elsewhere(report))
    said = (output.strip().splitlines() or ["it said nothing"])[-1]
    remedy = "It is cut or damaged: copy it anew, or record it again."
    raise Refused(report, f"{ours} cannot export it ({said[:200]})", remedy)


def _elsewhere(report: Path) -> str:
    """What to run on a machine that has what is missing here."""
    target = f"{report.stem}.sqlite"
    command = shlex.join(argv("nsys", report.name, target))
    enough = f"nsys {version(report)} or newer" if version(report) else "a newer nsys"
    return f"Where {enough} is installed: {command}. Then here: profpipe ingest {shlex.quote(target)}."


def _import(recording: Path) -> str:
    command = f"QdstrmImporter -i {shlex.quote(recording.name)}"
    why = "nsys was killed at its end, or its host half lacks a library"
    return f"Record again ({why}), or run {command}, a tool in the folder host-linux-x64 of that nsys."
