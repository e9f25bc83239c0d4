"""What a run on a cluster has on the shared file system: its plan, and of each task the attempts and their records.

No file has two writers, and no step needs a lock between nodes. A task that Slurm starts again is another attempt with
its own files: one when it begins, and its record, which is renamed into place. The record is written again after each
job, so that a task which is killed loses one job.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from profpipe.errors import ConfigError
from profpipe.results import atomic, budget, manifest
from profpipe.results.manifest import Manifest
from profpipe.results.tasks import Task, TaskState

#: In the run's folder: everything that belongs to Slurm.
FOLDER: Final = Path("slurm")
PLAN: Final = FOLDER / "plan.json"
STARTS: Final = FOLDER / "starts"
RECORDS: Final = FOLDER / "records"

_NAME: Final = re.compile(r"(\d+)-(\d+)\.json")
_MAX_ATTEMPT: Final = 1000
#: What plan.json has of a task. The rest comes with its attempts.
_PLANNED: Final = ("index", "workload", "cases", "profilers", "reference")


# --- the plan --------------------------------------------------------------------------------------------------------


def is_cluster_run(folder: Path) -> bool:
    return (folder / PLAN).is_file()


def save_plan(folder: Path, tasks: Sequence[Task]) -> None:
    """Write the tasks of the run in ``folder``, a line for each, and make the folders for what they leave."""
    for name in (STARTS, RECORDS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps({name: getattr(task, name) for name in _PLANNED}) for task in tasks)
    atomic.write_text(folder / PLAN, f'{{"version": 1, "tasks": [\n{lines}\n]}}\n')


def load_plan(folder: Path) -> tuple[Task, ...]:
    """Read the tasks of the run in ``folder`` by their index. Raises ConfigError where it has no plan to be read."""
    path = folder / PLAN
    try:
        document = budget.load_json(atomic.read_regular(path).decode())
        tasks = tuple(manifest.parse(Task, task) for task in document["tasks"])
        for index, task in enumerate(tasks):
            if task.index != index:
                raise ValueError(f"task {index} has the index {task.index}")
        return tasks
    except FileNotFoundError:
        remedy = "`profpipe report` and `profpipe resume` are for runs of one machine."
        raise ConfigError(str(folder), "is no run on a cluster.", remedy) from None
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(str(path), f"is not the plan that profpipe wrote: {error}.", "Start a new run.") from None


# --- attempts --------------------------------------------------------------------------------------------------------


def begin(folder: Path, task: Task, node: str, job: str) -> Task:
    """Write that an attempt begins on ``node``, and return the task with its number, which no other attempt has.

    ``job`` is the name of the task for Slurm. The file is made with ``O_EXCL``, which shared file systems carry out on
    the server.
    """
    for attempt in range(1, _MAX_ATTEMPT + 1):
        begun = replace(task, attempt=attempt, state=TaskState.RUNNING, node=node, job=job)
        with suppress(FileExistsError):
            path = folder / STARTS / _file_name(begun.index, attempt)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(asdict(begun), stream)
            return begun
    raise ConfigError(str(folder), f"task {task.index} was started {_MAX_ATTEMPT} times.", "Start a new run.")


def first_start_s(folder: Path) -> float:
    """Return when the first attempt of any task began, in seconds as the file server has them."""
    paths = (folder / STARTS / _file_name(*numbers) for numbers in _list(folder / STARTS))
    return min((path.stat().st_mtime for path in paths), default=0.0)


def read_starts(folder: Path) -> list[Task]:
    """Return each attempt that began. One whose file is not whole yet has no node."""
    return [_read_start(folder, *numbers) for numbers in sorted(_list(folder / STARTS))]


def _read_start(folder: Path, index: int, attempt: int) -> Task:
    try:
        content = atomic.read_regular(folder / STARTS / _file_name(index, attempt))
        return manifest.parse(Task, budget.load_json(content.decode()))
    except (OSError, ValueError):  # it is being written, or its writer was killed
        return Task(index, attempt=attempt)


# --- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskRecord:
    """What an attempt at a task has measured so far.

    ``manifest`` has the task alone and lacks what all tasks share. The task is DONE where every job of it has ended,
    RUNNING while it goes on, and else its state says why it ended before. ``tables`` has the content of each table by
    name: CSV, or Parquet in base64 where a table is never written as CSV.
    """

    manifest: Manifest
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return self.manifest.tasks[0]

    def save(self, folder: Path) -> None:
        """Write the record of the run in ``folder`` under a temporary name, and rename it into place."""
        document = {"manifest": self.manifest.as_json(), "tables": self.tables}
        path = folder / RECORDS / _file_name(self.task.index, self.task.attempt)
        atomic.write_private(path, json.dumps(document, default=dict).encode())

    @classmethod
    def load(cls, path: Path) -> TaskRecord:
        """Raises ConfigError where the file is no record."""
        try:
            document = budget.load_json(atomic.read_regular(path).decode())
            record = manifest.parse(cls, {**document, "manifest": Manifest.parse(document["manifest"])})
            if [(task.index, task.attempt) for task in record.manifest.tasks] != [_numbers(path.name)]:
                raise ValueError("it is of another task or attempt")
            return record
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"is not the record that profpipe wrote: {error}."
            raise ConfigError(str(path), what, "Remove it; `profpipe resume` then runs the task again.") from None


def list_records(folder: Path) -> frozenset[tuple[str, int]]:
    """Return name and time of change of each record, to find out whether there are newer ones."""
    paths = (folder / RECORDS / _file_name(*numbers) for numbers in _list(folder / RECORDS))
    return frozenset((path.name, path.stat().st_mtime_ns) for path in paths)


def read_records(folder: Path, wanted: int | None = None) -> dict[int, TaskRecord]:
    """Return the record that counts of each task, or of the ``wanted`` one: the last complete one, else the last one.

    An attempt goes on from the record that it finds, so the last record holds what earlier ones have.
    """
    attempts: dict[int, list[int]] = {}
    for index, attempt in sorted(_list(folder / RECORDS)):
        if wanted in (None, index):
            attempts.setdefault(index, []).append(attempt)
    return {index: _choose(folder, index, numbers) for index, numbers in attempts.items()}


def _choose(folder: Path, index: int, attempts: list[int]) -> TaskRecord:
    newest_first = (TaskRecord.load(folder / RECORDS / _file_name(index, attempt)) for attempt in reversed(attempts))
    last = next(newest_first)
    is_done = last.task.state is TaskState.DONE
    return last if is_done else next((record for record in newest_first if record.task.state is TaskState.DONE), last)


# --- names of files --------------------------------------------------------------------------------------------------


def _list(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield index and attempt of each file. Names of temporary files begin with a dot."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    yield from filter(None, map(_numbers, names))


def _numbers(name: str) -> tuple[int, int] | None:
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def _file_name(index: int, attempt: int) -> str:
    return f"{index:04d}-{attempt}.json"
