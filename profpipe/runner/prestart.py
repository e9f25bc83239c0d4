"""Start the processes of later jobs ahead: they import torch and the harness beside another job, and wait.

To start Python and import torch takes seconds in which the GPU has nothing to do. A process that waits has no context
on the GPU, has loaded no workload and read no specification. It is used if the job then needs the same command,
environment and folder. Otherwise, or if it has died, the job's process is started as usual.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from profpipe.errors import ConfigError
from profpipe.job import WAIT_VARIABLE, Job
from profpipe.measure import machine
from profpipe.runner import process
from profpipe.runner.process import Child, GracePeriods

#: The imports keep one core busy, and files and memory. With fewer cores for each job that runs, they would take time
#: from the job that measures. The variable sets another number.
_LEAST_CORES: Final = 8
_CORES_VARIABLE: Final = "PROFPIPE_LEAST_CORES"
#: How many wait for each job that runs at once. Under plain only a process that was not started ahead may start others,
#: so one of so many and one pays for its imports.
PER_SLOT: Final = 2
#: Nothing reads it before a process uses the GPU, so it is given to the process when that goes on.
_LATE: Final = "CUDA_VISIBLE_DEVICES"


def has_spare_cores(jobs: int = 1) -> bool:
    """Return True if work beside ``jobs`` that run at once takes no time from them."""
    text = os.environ.get(_CORES_VARIABLE, str(_LEAST_CORES))
    if not text.isdecimal():
        raise ConfigError(_CORES_VARIABLE, f"is {text!r}, which is no number of cores.", "For example: 8")
    return machine.usable_cores() >= jobs * int(text)


@dataclass(frozen=True)
class Start:
    """All that a process gets when it is started."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path

    def is_same(self, other: Start) -> bool:
        env, other_env = ({n: v for n, v in start.env.items() if n != _LATE} for start in (self, other))
        return (*self.argv, self.cwd) == (*other.argv, other.cwd) and env == other_env


@dataclass
class Prestart:
    """The processes that were started ahead, at most ``most``; leaving it as a context manager ends them.

    ``following`` are the jobs that are likely to come after those that the executor knows. The threads of slots share
    this object.
    """

    most: int = 0
    following: Sequence[Job] = ()
    _waiting: dict[Path, tuple[Start, Child]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Prestart:
        return self

    def __exit__(self, *_: object) -> None:
        for spec in [*self._waiting]:
            self._end(spec)

    def start(self, upcoming: Iterable[tuple[Job, Start]], grace: GracePeriods) -> None:
        """Start the first process of ``upcoming`` that is not started, and end those that are not among the first."""
        with self._lock:
            needed = {job.spec: start for job, start in itertools.islice(upcoming, self.most)}
            for spec in self._waiting.keys() - needed.keys():
                self._end(spec)
            for spec in needed.keys() - self._waiting.keys():
                first = needed[spec]
                env = {**first.env, WAIT_VARIABLE: "1"}
                # Where no process can be started, the start of the job says why.
                with suppress(OSError, process.SupervisorError):
                    output = tempfile.TemporaryFile()  # noqa: SIM115
                    child = process.start(first.argv, env, output, first.cwd, grace, waits=True)
                    self._waiting[spec] = first, child

    def take(self, job: Job, start: Start, output: IO[bytes]) -> Child | None:
        """Let the process of ``job`` go on; None where there is none for ``start``. It writes into ``log.txt``.

        What it has written while it waited goes to ``output``, which is that file.
        """
        with self._lock:
            if job.spec not in self._waiting:
                return None
            first, child = self._waiting[job.spec]
            if first.is_same(start) and child.poll() is None:
                child.copy_output(output)
                if child.go_on([str(job.folder / "log.txt"), start.env.get(_LATE)]):
                    del self._waiting[job.spec]
                    return child
            self._end(job.spec)
            return None

    def _end(self, spec: Path) -> None:
        _, child = self._waiting.pop(spec)
        child.kill()
        child.output.close()


def finish(taken: Child | None, log: IO[bytes]) -> None:
    """Append to ``log`` what a process wrote after it was taken and before it opened that file, such as a traceback."""
    if taken:
        # On a full disk the files of the job show what happened.
        with taken.output, suppress(OSError):
            taken.copy_output(log)
