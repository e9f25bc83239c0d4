"""What a task leaves on the shared file system: a file when it begins, and its record, which is renamed into place.

No file has two writers, and no step needs a lock between nodes. A task that Slurm starts again is another attempt with
its own files. The record of an attempt is written again after each job, so that a task which is killed loses one job.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from profpipe.errors import ConfigError
from profpipe.results import atomic, budget, manifest
from profpipe.results.manifest import Manifest
from profpipe.results.tasks import TaskState
from profpipe.runner.slurm.plan import FOLDER

STARTS: Final = FOLDER / "starts"
RECORDS: Final = FOLDER / "records"

_NAME: Final = re.compile(r"(\d+)-(\d+)\.json")
_MAX_ATTEMPT: Final = 1000


@dataclass(frozen=True)
class Start:
    """An attempt that began: its node, Slurm's name for it, and the time (ISO 8601, UTC)."""

    index: int
    attempt: int
    node: str = ""
    job: str = ""
    began: str = ""


@dataclass(frozen=True)
class Record:
    """What an attempt at a task has measured so far.

    ``state`` is DONE where every job of the task has ended, RUNNING while it goes on, and else why it ended before.
    ``manifest`` lacks what all tasks share. ``tables`` are the tables as CSV by
    name, ``pictures`` those that are Parquet, in base64.
    """

    index: int
    attempt: int
    node: str = ""
    job: str = ""
    state: TaskState = TaskState.RUNNING
    #: The error with which profpipe ended.
    details: str = ""
    manifest: Manifest = field(default_factory=Manifest)
    tables: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return self.state is TaskState.DONE

    def picture(self, name: str) -> bytes:
        return base64.b64decode(self.pictures[name])

    def save(self, folder: Path) -> None:
        """Write the record of the run in ``folder`` under a temporary name, and rename it into place."""
        document = {**vars(self), "manifest": self.manifest.as_json()}
        path = folder / RECORDS / _file_name(self.index, self.attempt)
        atomic.write_private(path, json.dumps(document).encode())

    @classmethod
    def load(cls, path: Path) -> Record:
        """Raises ConfigError where the file is no record."""
        try:
            document = budget.load_json(atomic.read_regular(path).decode())
            found = manifest.parse(cls, {**document, "manifest": Manifest.parse(document["manifest"])})
            if (found.index, found.attempt) != _numbers(path):
                raise ValueError("it is of another task or attempt")
            return found
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"is not the record that profpipe wrote: {error}."
            raise ConfigError(str(path), what, "Remove it; `profpipe resume` then runs the task again.") from None


def as_text(content: bytes) -> str:
    """Return the content of a picture as a record holds it."""
    return base64.b64encode(content).decode()


def make_folders(folder: Path) -> None:
    for name in (STARTS, RECORDS):
        (folder / name).mkdir(parents=True, exist_ok=True)


def begin(folder: Path, index: int, node: str, job: str, began: str) -> Start:
    """Write that an attempt begins, and return it with its number, which no other attempt has.

    The file is made with ``O_EXCL``, which shared file systems carry out on the server.
    """
    for attempt in range(1, _MAX_ATTEMPT + 1):
        start = Start(index, attempt, node, job, began)
        with suppress(FileExistsError):
            path = folder / STARTS / _file_name(index, attempt)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(asdict(start), stream)
            return start
    raise ConfigError(str(folder), f"task {index} was started {_MAX_ATTEMPT} times.", "Start a new run.")


def first_start_s(folder: Path) -> float:
    """Return when the first attempt of any task began, in seconds as the file server has them."""
    paths = (folder / STARTS / _file_name(*numbers) for numbers in _list(folder / STARTS))
    return min((path.stat().st_mtime for path in paths), default=0.0)


def list_starts(folder: Path) -> set[tuple[int, int]]:
    """Return index and attempt of each attempt that began."""
    return set(_list(folder / STARTS))


def read_starts(folder: Path) -> dict[int, Start]:
    """Return the last attempt of each task that began. One whose file is not whole yet has no node."""
    last: dict[int, int] = {}
    for index, attempt in list_starts(folder):
        last[index] = max(attempt, last.get(index, 0))
    return {index: read_start(folder, index, attempt) for index, attempt in last.items()}


def read_start(folder: Path, index: int, attempt: int) -> Start:
    """Return what is known of an attempt that began; without its node where its file is not whole yet."""
    try:
        content = atomic.read_regular(folder / STARTS / _file_name(index, attempt))
        return manifest.parse(Start, budget.load_json(content.decode()))
    except (OSError, ValueError):  # it is being written, or its writer was killed
        return Start(index, attempt)


def list_records(folder: Path) -> frozenset[tuple[str, int]]:
    """Return name and time of change of each record, to find out whether there are newer ones."""
    found = (folder / RECORDS / _file_name(*numbers) for numbers in _list(folder / RECORDS))
    return frozenset((path.name, path.stat().st_mtime_ns) for path in found)


def read_records(folder: Path) -> dict[int, Record]:
    """Return the record that counts of each task: the last complete one, else the last one.

    An attempt goes on from the record that it finds, so the last record holds what earlier ones have.
    """
    attempts: dict[int, list[int]] = {}
    for index, attempt in _list(folder / RECORDS):
        attempts.setdefault(index, []).append(attempt)
    return {index: _choose(folder, index, sorted(own, reverse=True)) for index, own in sorted(attempts.items())}


def read_record(folder: Path, index: int) -> Record | None:
    """Return the record of a task that counts; None where it has none."""
    own = sorted((attempt for other, attempt in _list(folder / RECORDS) if other == index), reverse=True)
    return _choose(folder, index, own) if own else None


def _choose(folder: Path, index: int, attempts: list[int]) -> Record:
    every = (Record.load(folder / RECORDS / _file_name(index, attempt)) for attempt in attempts)
    last = next(every)
    return last if last.is_complete else next((record for record in every if record.is_complete), last)


def _list(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield index and attempt of each file. Names of temporary files begin with a dot."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    yield from (_numbers(Path(name)) for name in names if _NAME.fullmatch(name))


def _numbers(path: Path) -> tuple[int, int]:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path.name} is no name of a record")
    return int(found[1]), int(found[2])


def _file_name(index: int, attempt: int) -> str:
    return f"{index:04d}-{attempt}.json"
