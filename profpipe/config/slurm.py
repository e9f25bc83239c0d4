"""The key ``slurm`` of a pipeline file: how `profpipe run --slurm` submits the cases to a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from profpipe.config.strict_model import StrictModel

#: Options of sbatch that profpipe sets itself, and why.
_OWN: Final = {
    "--array": "profpipe numbers the tasks; array_limit says how many run at a time",
    "--wrap": "profpipe writes the script",
    "--parsable": "profpipe reads the answer of sbatch",
    "--output": "the output is in the run's folder, below slurm/logs",
    "--error": "the output is in the run's folder, below slurm/logs",
    "--chdir": "a task starts in the folder of the pipeline file",
    "--wait": "profpipe run --slurm --wait follows the run",
    "--ntasks": "a task of the array is one process",
    "--nodes": "a task of the array is one process on one node",
}
#: Their short forms, which hold the value too: `-a0-9`.
_SHORT: Final = {"-a": "--array", "-o": "--output", "-e": "--error", "-D": "--chdir", "-W": "--wait", "-n": "--ntasks",
                 "-N": "--nodes"}  # fmt: skip


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("is not one line of text")
    return text


def _quoted_time(value: object) -> object:
    # YAML 1.1 reads 30:00 as the number 1800, and Slurm takes a number for minutes.
    if isinstance(value, (int, float)):
        raise ValueError('must be in quotes, as YAML takes 30:00 for a number: time: "1:30:00", or "90" for minutes')
    return value


def _words(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"is no list of words: {error}") from None


def check_options(words: Sequence[str]) -> Sequence[str]:
    """Return options of sbatch. Raises ValueError for one that profpipe sets itself, and for no option."""
    for word in map(_one_line, words):
        name = word.partition("=")[0]
        name = name if name.startswith("--") else _SHORT.get(name[:2], name)
        if name in _OWN:
            raise ValueError(f"{name} cannot be given: {_OWN[name]}")
    if words and not words[0].startswith("-"):
        raise ValueError(f"{words[0]!r} is no option of sbatch, which begins with '-'")
    return words


def option_lines(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield each option with the words that follow it: ``["--mem=8G"]``, ``["-A", "physics"]``."""
    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


Line = Annotated[str, AfterValidator(_one_line)]
Words = Annotated[tuple[Line, ...], BeforeValidator(_words)]
Spread = Literal["cases", "comparisons", "all"]


class Slurm(StrictModel):
    """Settings of `profpipe run --slurm`, which runs the cases as tasks of a Slurm array."""

    partition: Line | None = Field(None, description="partition, as for sbatch --partition")
    gres: Line | None = Field(None, description="what a task needs, as for sbatch --gres: 'gpu:1', 'gpu:h100:1'")
    constraint: Line | None = Field(None, description="features of the nodes, as for sbatch --constraint")
    time: Annotated[Line | None, BeforeValidator(_quoted_time)] = Field(
        None, description="time limit of a task, in quotes: '1:30:00', or '90' for minutes"
    )
    array_limit: int | None = Field(None, ge=1, description="most tasks that run at the same time")
    spread: Spread = Field(
        "comparisons",
        description="what may run on different nodes. comparisons: cases that the report compares are one task; cases: "
        "each case is a task; all: each case under each profiler is a task",
    )
    setup: Annotated[tuple[str, ...], BeforeValidator(lambda v: v.splitlines() if isinstance(v, str) else v)] = Field(
        (), description="lines of the batch script before profpipe starts: [module load cuda]"
    )
    launcher: Words = Field((), description="words before the command of a task: [apptainer, exec, --nv, image.sif]")
    python: Line | None = Field(
        None, description="Python with profpipe on the nodes; without it the one that submits the run"
    )
    scratch: Line | None = Field(
        None,
        description="folder on the node for what profilers write; without it $SLURM_TMPDIR, $TMPDIR or /tmp. It may "
        "name variables of the node: '/scratch/$USER'",
    )
    options: Annotated[Words, AfterValidator(check_options)] = Field(
        (), description="further options of sbatch: [--mem=64G, --exclusive]"
    )

    def with_options(self, more: Sequence[str]) -> Slurm:
        """Return the settings with further options. Raises ValueError for a wrong one."""
        document: dict[str, Any] = self.model_dump()
        return type(self).model_validate({**document, "options": [*self.options, *check_options(more)]})
