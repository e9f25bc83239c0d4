"""What a process left behind: the files that it made, and what it printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from profpipe.job import Command, Job

#: What changes when a file is made anew: time, size and number of the file.
Stamp = tuple[int, int, int]

#: How much of a process's output is searched for the reason of a failure, from its end.
_LOG_TAIL_BYTES = 1 << 20


def stamps(command: Command, job: Job) -> dict[Path, Stamp | None]:
    """The files that ``command`` is to make, as they are now."""
    found = job.folder.rglob(command.makes_like) if command.makes_like else ()
    return {path: _stamp(path) for path in (*command.makes, *found)}


def missing(command: Command, job: Job, before: Mapping[Path, Stamp | None]) -> tuple[str, ...]:
    """Names of what the command should have made: what is not there, or is as it was ``before``."""
    new = {path for path, stamp in stamps(command, job).items() if stamp and stamp != before.get(path)}
    names = [path.name for path in command.makes if path not in new]
    if command.makes_like and not new - set(command.makes):
        names.append(command.makes_like)
    return tuple(names)


def lacking(command: Command, job: Job) -> tuple[str, ...]:
    """Names of what the command should have made and is not there now, whoever made or removed it."""
    return missing(command, job, {})


def _stamp(path: Path) -> Stamp | None:
    """None while there is nothing in the file, or folder.

    No clock is compared with a file's: file systems round their times, and a server's clock is another one.
    """
    try:
        stat = path.stat()
        empty = not any(path.iterdir()) if path.is_dir() else not stat.st_size
    except OSError:
        return None
    return None if empty else (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def output(log: Path, span: tuple[int, int]) -> str:
    """What a process printed, which is the part ``span`` of the job's log."""
    begin, end = span
    with log.open("rb") as stream:
        stream.seek(max(begin, end - _LOG_TAIL_BYTES))
        return stream.read(end - stream.tell()).decode(errors="replace")
