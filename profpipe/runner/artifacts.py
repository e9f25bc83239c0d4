"""The files that a process made, those that ``collect: "log/*.json"`` names, and its output."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from profpipe.job import Command, Job
from profpipe.results import atomic, raw_files

#: Time, size and inode of a file. They change when the file is made again.
Stamp = tuple[int, int, int]

#: How much of a process's output is read, from its end.
_LOG_TAIL_BYTES = 1 << 20
#: How much of it is published.
_PUBLIC_BYTES = 1 << 14


def stamp_files(command: Command, job: Job) -> dict[Path, Stamp | None]:
    """Return the files that ``command`` is to make, with their present state."""
    found = job.folder.rglob(command.makes_like) if command.makes_like else ()
    return {path: stamp_of(path) for path in (*command.makes, *found)}


def find_missing(
    command: Command, job: Job, before: Mapping[Path, Stamp | None] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the names of the files that the command did not make: absent ones, or unchanged since ``before``."""
    new = {path for path, stamp in stamp_files(command, job).items() if stamp and stamp != before.get(path)}
    names = [path.name for path in command.makes if path not in new]
    if command.makes_like and len(new - set(command.makes)) < command.makes_count:
        names.append(command.makes_like)
    return tuple(names)


def stamp_of(path: Path) -> Stamp | None:
    """Return None for an empty or absent file or folder.

    No clock is compared with a file's time: file systems round their times, and a file server has another clock.
    """
    try:
        stat = path.stat()
        is_empty = not any(path.iterdir()) if path.is_dir() else not stat.st_size
    except OSError:
        return None
    return None if is_empty else (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def stamp_collected(job: Job) -> dict[Path, Stamp | None]:
    """Return the traces of ``collect:`` that are there before the command starts, with their state."""
    return {path: stamp_of(path) for path in _find_collected(job)}


def collect(job: Job, before: Mapping[Path, Stamp | None]) -> None:
    """Copy the traces that the command wrote since ``before`` into the folder of ``job``. They stay where they are."""
    written = [path for path in _find_collected(job) if stamp_of(path) != before.get(path)]
    for number, path in enumerate(written, start=1):
        shutil.copy2(path, job.folder / f"{job.stem}.collected.{number}.{path.name}")


def _find_collected(job: Job) -> Iterator[Path]:
    pattern = job.options.get("collect")
    if not pattern or job.script is not None or job.profiler != "torch":
        return
    root = Path(Path(pattern).anchor or job.cwd)
    yield from sorted(path for path in root.glob(pattern.removeprefix(Path(pattern).anchor)) if path.is_file())


def publish_output(job: Job) -> None:
    """Write the end of the job's output without secrets into its folder, where report.html finds it."""
    log = job.folder / "log.txt"
    if log.is_file():
        size = log.stat().st_size
        # Masked before it is cut: the first line of a private key may be above the cut.
        text = job.masked(read_output(log, (0, size))).encode(errors="replace")
        if len(text) > _PUBLIC_BYTES:
            text = text[-_PUBLIC_BYTES:].partition(b"\n")[2]
        atomic.write_bytes(job.folder / raw_files.OUTPUT, text)


def read_output(log: Path, span: tuple[int, int]) -> str:
    """Return the output of one process: the bytes ``span`` of the job's log, at most the whole lines of the last MiB.

    A part of a line could be a part of a secret, which the masking does not recognise.
    """
    begin, end = span
    with log.open("rb") as stream:
        stream.seek(max(begin, end - _LOG_TAIL_BYTES))
        if stream.tell() > begin:
            stream.readline()
        return stream.read(max(0, end - stream.tell())).decode(errors="replace")
