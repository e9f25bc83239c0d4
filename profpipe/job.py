"""The plain values that the stages hand to each other: Case, Tool, Job, Command, Outcome.

They stand below every stage, so that no stage needs to import another to speak of the same thing.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

Scalar = str | int | float | bool | None

#: In a job's folder since a runner began it; ``running/journal.py`` says what it holds.
JOURNAL = "parts.json"

#: What is encoded in a case's name for the sake of torch's traces: all that is no ASCII, backslashes and quotes.
_LETTERS = re.compile(r"(?:%[89A-F][0-9A-F])+|%5C|%22")


@dataclass(frozen=True)
class Case:
    """One point of a workload's matrix. ``params`` holds all parameters, fixed ones included."""

    id: str
    params: Mapping[str, Scalar]


def as_text(value: Scalar) -> str:
    """A parameter's value in a case's name, and in the words of a command."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def readable(case: str) -> str:
    """A case's name with its letters as they are written. What would separate it, a comma in a value, stays encoded."""
    return _LETTERS.sub(lambda found: text if (text := unquote(found[0])).isprintable() else found[0], case)


@dataclass(frozen=True)
class Tool:
    """A profiler that is here. ``path`` is its executable (empty: a Python library), ``variant`` which generation."""

    name: str
    version: str
    path: str = ""
    variant: str = ""


@dataclass(frozen=True)
class Missing:
    """A profiler or a package that cannot be used here: why, and how to mend it."""

    name: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}"


@dataclass(frozen=True)
class Job:
    """One workload under one profiler, with all its cases unless it asks for ``isolate: true``: a process, or several.

    ``folder`` receives everything the job leaves. Exactly one of ``script`` (a module with ``build``, run by the
    harness) and ``command`` (any argv, one case) is set. ``part`` counts the processes that this job needed so far:
    what a crash left undone continues as part 2, and its files carry the number.
    """

    workload: str
    profiler: str
    cases: tuple[Case, ...]
    folder: Path
    tool: Tool | Missing
    python: str
    cwd: Path
    script: Path | None = None
    command: tuple[str, ...] = ()
    warmup: int = 10
    repeats: int = 30
    timeout_s: float = 900.0
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    on_gpu: bool = False
    part: int = 1
    #: How many processes run the cases together.
    processes: int = 1
    #: Words of commands that nobody else may see, and what stands in their place.
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """The name of this part's files: ``capture``, then ``capture-2``."""
        return "capture" if self.part == 1 else f"capture-{self.part}"

    @property
    def spec(self) -> Path:
        """The specification that this part's harness reads: ``cases.json``, then ``cases-2.json``."""
        return self.folder / ("cases.json" if self.part == 1 else f"cases-{self.part}.json")

    @property
    def records(self) -> list[Path]:
        """What the harness writes: the record of the job, and what its further processes measured, each of its own."""
        others = (f"events.rank{rank}.jsonl" for rank in range(1, self.processes))
        return [self.folder / name for name in ("events.jsonl", *others)]

    def shown(self, command: Command) -> str:
        """``command`` as it is typed, but for secrets."""
        return shlex.join(self.secrets.get(word, word) for word in command.argv)

    def masked(self, text: str) -> str:
        """``text``, which may name words of a command, without secrets."""
        for word, told in self.secrets.items():
            text = text.replace(word, told)
        return text

    def portable(self, argument: str) -> str:
        """``argument`` as it may stand in a report: the same command when typed in ``cwd``.

        Paths below ``cwd`` are relative to it, and a program that PATH finds by its name has no folder.
        """
        if Path(argument).is_absolute() and shutil.which(Path(argument).name) == argument:
            return Path(argument).name
        return argument.replace(f"{self.cwd}/", "")


@dataclass(frozen=True)
class Command:
    """One process to start: ``argv`` (never a shell string), the environment added to the filtered one, what it makes.

    ``makes`` are the files without which the command failed, whatever its exit code says. Where the tool chooses their
    names, ``makes_like`` is a glob that finds one at least, anywhere below the job's folder. ``runs_workload`` is false
    for an export after the process that runs the workload. ``false_start`` is what the tool prints where, by chance, it
    failed before it let the workload run: starting it again is then all there is to do.
    """

    argv: tuple[str, ...]
    makes: tuple[Path, ...] = ()
    makes_like: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    runs_workload: bool = True
    false_start: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a job. ``status`` and ``reason`` are the job's: ``ok``, or the first trouble that it met.

    Every case has its own fate in ``events.jsonl`` or in ``ended_by_runner``; where it has both, the latter counts.
    """

    job: Job
    status: str
    reason: str = ""
    seconds: float = 0.0
    #: Of ``seconds`` those of the last part: a try before it that was interrupted is no time of a command.
    last_s: float = 0.0
    returncode: int | None = None
    files: tuple[Path, ...] = ()
    #: Whether the user stopped the job before it was done.
    interrupted: bool = False
    #: By file: the cases of which it holds an attempt that was cut off, and that a later part made again.
    attempted_again: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    #: (case id, status, reason) of cases whose end the workload's process could not write itself, or whose profile
    #: was lost after they had ended well.
    ended_by_runner: tuple[tuple[str, str, str], ...] = ()


#: Runs an argv for a moment and gives its output (stdout and stderr), or None where it cannot be started.
Ask = Callable[[Sequence[str]], str | None]


class Profiler(Protocol):
    """A module of ``profpipe/profilers``. It builds commands and never runs them."""

    NAME: str
    #: Whether a case that ended is on disk even if the process dies later. A report is written only at the end.
    KEEPS_ENDED_CASES: bool

    def find(self, ask: Ask) -> Tool | Missing:
        """The tool and its version, or why it is not here and how to mend that."""

    def commands(self, job: Job) -> list[Command]:
        """What to start, in order, to carry out ``job``."""

    def artifacts(self, job: Job) -> list[Path]:
        """The files to read afterwards; only those that exist hold something."""

    def diagnose(self, log: str) -> tuple[str, str] | None:
        """(status, reason with remedy) for a failure that the tool's output explains; else None."""


def workload_argv(job: Job) -> tuple[str, ...]:
    """The argv of the workload's own process, which a profiler's command line ends with."""
    if job.script is None:
        return job.command
    harness = ("-m", "profpipe.harness", str(job.spec))
    if job.processes == 1:
        return (job.python, *harness)
    # --local-addr: else torchrun looks up this machine's own name, which in a container may lead nowhere.
    torchrun = ("torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    return (job.python, "-m", *torchrun, "--nproc-per-node", str(job.processes), *harness)


class Watch(Protocol):
    """Is told what happens while a run goes on. ``progress.Display`` shows it to the user."""

    def job_started(self, job: Job, index: int, total: int) -> None:
        """``index`` counts from 1 to ``total``."""

    def case_started(self, case: str) -> None:
        """A case of the current job began."""

    def case_ended(self, case: str, status: str, reason: str = "") -> None:
        """The workload's process wrote down what became of a case, and why."""

    def job_ended(self, outcome: Outcome) -> None:
        """The current job is over, well or not."""

    def message(self, text: str) -> None:
        """Something the user should know now."""
