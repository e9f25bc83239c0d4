"""The batch script of a run, as text."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from profpipe import __version__
from profpipe.config.settings import Slurm, option_lines
from profpipe.errors import ConfigError
from profpipe.runner import environment
from profpipe.runner.slurm.plan import FOLDER

FILE: Final = FOLDER / "job.sh"
LOGS: Final = FOLDER / "logs"

#: What sbatch reads in a line `#SBATCH` as it stands. A quote, a backslash, a space or `#` has a meaning there.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:;=@%&|()\[\]*+/^~{}<>?!$-]+")


def write(settings: Slurm, folder: Path, name: str, tasks: int, cwd: Path, shape: tuple[int, int] = (1, 1)) -> str:
    """Return the batch script for the run in ``folder``: task i of the array runs index i of the plan.

    ``cwd`` is the folder in which the tasks start. ``shape`` is the number of nodes of a task, and that of processes on
    each node. The first word after the name of the script is added to the index, for a run with more tasks than an
    array may have. A second one identifies the array in the queue.
    """
    directives = _directives(settings, folder, name, tasks, shape)
    lines = [
        "#!/bin/bash",
        f"# Written by profpipe {__version__}. Task i of the array runs index i of plan.json in this folder.",
        *(f"#SBATCH {' '.join(map(_directive_word, words))}" for words in directives),
        f"cd {shlex.quote(str(cwd))} || exit",
        *settings.setup,
    ]
    # A container has another Python, and its own profpipe.
    if settings.python is None:
        lines.append(f"export PYTHONPATH={shlex.quote(environment.python_path())}")
    # Import profpipe from where it is, not from the folder of the task. The interpreter of a container may be older.
    safe = ["-P"] if settings.python is None and sys.version_info >= (3, 11) else []
    words = [*settings.launcher, settings.python or sys.executable, *safe, "-m", "profpipe", "task", str(folder)]
    # exec: signals of Slurm reach profpipe, which then ends its processes and writes what they have measured.
    lines.append(f'exec {shlex.join(words)} "$((SLURM_ARRAY_TASK_ID + ${{1:-0}}))"')
    return "\n".join(lines) + "\n"


def _directives(
    settings: Slurm, folder: Path, name: str, tasks: int, shape: tuple[int, int]
) -> Iterator[Sequence[str]]:
    """Yield the words of each line `#SBATCH`."""
    yield [f"--job-name=profpipe-{name}"]
    yield [f"--array={indices(range(tasks))}{limit(settings)}"]
    # In a path sbatch replaces patterns such as ``%j``.
    logs = str(folder / LOGS).replace("%", "%%")
    yield [f"--output={logs}/%A_%a.txt"]
    yield ["--open-mode=append"]
    if shape != (1, 1):
        yield [f"--nodes={shape[0]}"]
        yield [f"--ntasks-per-node={shape[1]}"]
    for option in ("partition", "gres", "constraint", "time"):
        if (value := getattr(settings, option)) is not None:
            yield [f"--{option}={value}"]
    yield from option_lines(settings.options)


def limit(settings: Slurm) -> str:
    """Return the end of an array specification that limits how many tasks run at the same time."""
    return f"%{settings.array_limit}" if settings.array_limit else ""


def indices(numbers: Sequence[int]) -> str:
    """Return indices in ascending order as sbatch takes them: ``0-3,7,9-10``."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _directive_word(word: str) -> str:
    """Return a word as sbatch reads it in a line `#SBATCH`. Raises ConfigError for one that ends the line."""
    if not word.isprintable():
        raise ConfigError(repr(word), "cannot stand in a batch script.", "Choose another --out.")
    if _PLAIN.fullmatch(word):
        return word
    name, equals, value = word.partition("=") if _PLAIN.match(word) else ("", "", word)
    return f'{name}{equals}"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
