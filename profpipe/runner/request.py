"""The request of the user for a run, and the machine that carries it out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profpipe import profilers
from profpipe.config import yaml
from profpipe.config.models import Pipeline, Workload
from profpipe.config.program import Program
from profpipe.errors import ConfigError, one_line
from profpipe.job import Missing, Tool
from profpipe.measure import machine, measured_peaks, visible_gpus
from profpipe.measure.visible_gpus import Gpu
from profpipe.results import atomic
from profpipe.runner import environment, executor, plan

#: Private, for it holds the pipeline with the values of its environment variables. A resumed run needs them.
REQUEST_FILE = Path("raw") / "order.json"

#: In the folder of a run of a program from the command line.
PIPELINE_FILE = "pipeline.yaml"


@dataclass(frozen=True)
class RunRequest:
    """A pipeline, the part of it to run, and the results folder. ``create`` also finds the secrets."""

    pipeline: Pipeline
    path: Path
    out: Path
    workloads: tuple[str, ...] = ()
    profilers: tuple[str, ...] = ()
    #: Whether jobs that an earlier run has done are reused.
    reuse: bool = False
    #: The number of processes of each case under plain, where the command line gives it.
    captures: int | None = None
    #: Words of commands that hold the values of secret variables, and the published words for them.
    secrets: Mapping[str, str] = field(default_factory=dict)
    #: The pipeline file of a program from the command line, which the run's folder will hold; empty for any other.
    text: str = ""
    #: Whether the pipeline file lies in the folder of the run.
    is_in_run: bool = False

    @classmethod
    def create(
        cls,
        pipeline: Pipeline,
        path: Path,
        out: Path,
        workloads: Sequence[str] = (),
        profilers: Sequence[str] = (),
        reuse: bool = False,
        captures: int | None = None,
    ) -> RunRequest:
        pipeline = _with_repeats(pipeline, captures)
        secrets = _find_secrets(pipeline, path.parent, _mask_commands(pipeline, path))
        chosen = tuple(workloads), tuple(profilers)
        return cls(pipeline, path.resolve(), out.resolve(), *chosen, reuse, captures, secrets)

    @classmethod
    def of_program(
        cls, program: Program, path: Path, out: Path, reuse: bool = False, captures: int | None = None
    ) -> RunRequest:
        """Return the request for a program from the command line, whose pipeline file will be ``path``."""
        pipeline = _with_repeats(program.pipeline, captures)
        secrets = _find_secrets(pipeline, path.parent, program.public)
        where = pipeline, path.resolve(), out.resolve()
        return cls(*where, reuse=reuse, captures=captures, secrets=secrets, text=program.text)

    @property
    def pipeline_dir(self) -> Path:
        return self.path.parent

    @property
    def plugin_dir(self) -> Path | None:
        """The folder whose ``parsers/`` and ``templates/`` are used; None where that would be the run's folder."""
        return None if self.text or self.is_in_run else self.pipeline_dir

    def placed_in(self, folder: Path) -> RunRequest:
        """Return the request of the run in ``folder``."""
        return replace(self, path=folder / PIPELINE_FILE, is_in_run=True) if self.text else self

    def save(self, folder: Path) -> None:
        if self.text:
            atomic.write_text(folder / PIPELINE_FILE, self.text)
        document = {
            "pipeline": self.pipeline.model_dump(mode="json", by_alias=True),
            "path": PIPELINE_FILE if self.text else str(self.path),
            "workloads": self.workloads,
            "profilers": self.profilers,
            "reuse": self.reuse,
            "captures": self.captures,
            "secrets": dict(self.secrets),
        }
        target = folder / REQUEST_FILE
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_private(target, json.dumps(document).encode())

    @classmethod
    def load(cls, folder: Path) -> RunRequest:
        """Load the request of the run in ``folder``. The file and the environment may have changed since."""
        with readable(folder, REQUEST_FILE) as document:
            return cls(
                Pipeline.model_validate(document["pipeline"]),
                folder.resolve() / document["path"],
                folder.parent.resolve(),
                tuple(map(str, document["workloads"])),
                tuple(map(str, document["profilers"])),
                bool(document["reuse"]),
                # Runs of earlier versions have none.
                document.get("captures"),
                {str(word): str(public) for word, public in document["secrets"].items()},
                is_in_run=document["path"] == PIPELINE_FILE,
            )


@contextmanager
def readable(folder: Path, name: Path) -> Iterator[Any]:
    """Yield the JSON document in the file ``name`` of a run. Raises ConfigError where it is not what profpipe wrote."""
    try:
        yield json.loads((folder / name).read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(str(folder), f"cannot be resumed: its {name} is gone.", "Start it again.") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"is not the file that profpipe wrote: {one_line(error)}."
        raise ConfigError(str(folder / name), what, "Start the run again.") from None


def _with_repeats(pipeline: Pipeline, captures: int | None) -> Pipeline:
    """Return the pipeline with as many processes of each command: ``repeats`` of a command means the same."""
    if captures is None:
        return pipeline
    commands = {name: own for name, own in pipeline.workloads.items() if own.command is not None}
    repeated = {name: own.model_copy(update={"repeats": captures}) for name, own in commands.items()}
    return pipeline.model_copy(update={"workloads": {**pipeline.workloads, **repeated}})


def _find_secrets(pipeline: Pipeline, folder: Path, masked: Mapping[str, Workload]) -> dict[str, str]:
    """Return each word of a command that contains a secret, with the same word that names the variable instead.

    ``masked`` are the workloads with such words, and with the names in their place. The words are also given as filled
    in for each case. A default in the file for such a variable is secret too.
    """
    if not masked:
        return {}
    public = pipeline.model_copy(update={"workloads": {**pipeline.workloads, **masked}})
    tools = {name: Missing(name, "", "") for name in profilers.ALL}
    where: dict[str, Any] = {"scripts": {}, "cwd": folder, "out": folder, "python": ""}
    jobs = (plan.plan(each, tools, **where, workloads=[*masked]) for each in (pipeline, public))
    commands = [(a.command, b.command) for a, b in zip(*jobs, strict=True)]
    commands += [(pipeline.workloads[name].command or (), masked[name].command or ()) for name in masked]
    return {word: public for a, b in commands for word, public in zip(a, b, strict=True) if word and word != public}


def _mask_commands(pipeline: Pipeline, path: Path) -> dict[str, Workload]:
    """Return the workloads whose commands contain secret variables, with the names in place of the values."""
    public = {name: f"${{{name}}}" if environment.is_secret(name) else value for name, value in os.environ.items()}
    entries = yaml.read(path, yaml.shown(path)).get("workloads") if path.is_file() else None
    masked = {}
    for name, entry in (entries or {}).items():
        written, command = (entry or {}).get("command"), pipeline.workloads[name].command or ()
        if not isinstance(written, list) or len(written) != len(command):
            continue  # the command comes from --set, and not from the environment
        words = [
            str(yaml.substituted(word, public, path.name))
            if any(map(environment.is_secret, yaml.placeholders(word)))
            else given
            for word, given in zip(written, command, strict=True)
        ]
        if tuple(words) != command:
            masked[name] = pipeline.workloads[name].model_copy(update={"command": tuple(words)})
    return masked


@dataclass(frozen=True)
class Machine:
    """The profilers and GPUs of this machine. ``gpus`` have serial numbers, which the published text has not."""

    tools: Mapping[str, Tool | Missing]
    gpus: Sequence[Gpu]
    described: Mapping[str, Any]

    @classmethod
    def examine(cls, request: RunRequest) -> Machine:
        named = [name for workload in request.pipeline.workloads.values() for name in workload.profilers]
        wanted = {*named, *request.profilers}
        tools = {name: module.find(executor.ask) for name, module in profilers.ALL.items() if name in wanted}
        gpus = machine.nvidia_gpus()
        described = {**machine.machine(gpus), "peaks": visible_gpus.peaks_of_job(gpus, os.environ, ())}
        if measured := measured_peaks.load(request.out / measured_peaks.FILE, gpus):
            described["ceilings"] = measured
        return cls(tools, gpus, described)
