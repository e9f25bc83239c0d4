"""The request of the user for a run, the machine that carries it out, and the jobs that follow from the two."""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from profpipe import masking, profilers
from profpipe.config import validation
from profpipe.config.models import SAVED, Pipeline
from profpipe.config.program import Program
from profpipe.config.yaml import shown
from profpipe.errors import ConfigError, one_line
from profpipe.job import Job, Missing, Scalar, Tool
from profpipe.measure import machine, measured_peaks
from profpipe.measure.machine import Gpu
from profpipe.plugins import script_path
from profpipe.results import atomic, folders, manifest
from profpipe.runner import plan, process, secret_values
from profpipe.runner.slurm import queue

#: Private, for it holds the pipeline with the values of its environment variables. A resumed run needs them.
REQUEST_FILE = Path("raw") / "request.json"
#: Names that versions before 1.0 gave to files of a run.
_OLD_NAMES: Final = {"request.json": "order.json", "fingerprint.json": "basis.json"}

#: The file also has the pipeline and its path. A file of an older version may lack some of these fields.
_SAVED = ("workloads", "profilers", "reuse", "captures", "secrets", "hidden", "comparisons", "ncu_cases")

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
    #: Secrets, and words of commands that hold them, and the published text for each.
    secrets: Mapping[str, str] = field(default_factory=dict)
    #: The pipeline file of a program from the command line, which the run's folder will hold; empty for any other.
    text: str = ""
    #: The values of secret parameters, by the digests that the pipeline has in their place.
    hidden: Mapping[str, Scalar] = field(default_factory=dict)
    #: Where jobs run side by side: by workload, the groups of cases that the report compares with each other.
    comparisons: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    #: By workload, the cases whose kernels ncu counts, where these are not all.
    ncu_cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Whether the pipeline file lies in the folder of the run.
    is_in_run: bool = False
    #: Settings of the saved request that this version does not know.
    unknown: tuple[str, ...] = ()

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
        read_salt: Callable[[Path], bytes] = folders.make_salt,
        program: Program | None = None,
    ) -> RunRequest:
        """Return the request with digests in place of secret parameters, and with everything that must be masked.

        ``path`` is the pipeline file; of a ``program`` from the command line, the file that its run will have.
        """
        secrets = secret_values.of_variables(path) if program is None else program.secrets
        masked = secret_values.mask_commands(pipeline, path) if program is None else program.public
        where = path.resolve(), out.resolve()
        repeated = _set_repeats(pipeline, captures)
        shown, hidden = secret_values.hide(repeated, secrets, functools.cache(lambda: read_salt(where[1])))
        text = "" if program is None else program.text
        made = cls(shown, *where, tuple(workloads), tuple(profilers), reuse, captures, {**secrets}, text, hidden)
        return made.with_secrets(secret_values.of_commands(shown, masked, hidden))

    def with_secrets(self, more: Mapping[str, str]) -> RunRequest:
        """Return the request with further secrets, those of its environment blocks and its hidden parameters."""
        blocks = secret_values.of_environment_blocks(self.pipeline, self.secrets)
        params = {str(value): digest for digest, value in self.hidden.items() if str(value) not in self.secrets}
        words = secret_values.of_words(self.pipeline)
        made = replace(self, secrets={**words, **blocks, **params, **self.secrets, **more})
        masking.remember(made.secrets)
        return made

    @property
    def pipeline_dir(self) -> Path:
        return self.path.parent

    @property
    def plugin_dir(self) -> Path | None:
        """The folder whose ``parsers/`` and ``templates/`` are used; None where that would be the run's folder."""
        return None if self.text or self.is_in_run else self.pipeline_dir

    def move_to(self, folder: Path) -> RunRequest:
        """Return the request with its pipeline file in ``folder``."""
        return replace(self, path=folder / self.path.name)

    def placed_in(self, folder: Path) -> RunRequest:
        """Return the request of the run in ``folder``."""
        return replace(self, path=folder / PIPELINE_FILE, is_in_run=True) if self.text else self

    def save(self, folder: Path) -> None:
        if self.text:
            atomic.write_text(folder / PIPELINE_FILE, self.text)
        target = folder / REQUEST_FILE
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_private(target, json.dumps(self.as_json()).encode())

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _SAVED},
            # Only what the user gives: where the user gives no number of steps, plain may choose it.
            "pipeline": self.pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "path": PIPELINE_FILE if self.text else str(self.path),
        }

    @classmethod
    def load(cls, folder: Path) -> RunRequest:
        """Load the request of the run in ``folder``. The file and the environment may have changed since."""
        with readable(folder, REQUEST_FILE) as document:
            return cls.parse(document, folder)

    @classmethod
    def parse(cls, document: Mapping[str, Any], folder: Path) -> RunRequest:
        """Return the request that ``as_json`` describes, of the run in ``folder``."""
        pipeline, unknown = _parse_pipeline(document["pipeline"])
        validation.check_points(pipeline, str(folder / REQUEST_FILE))
        values = {
            **{name: document[name] for name in _SAVED if name in document},
            "pipeline": pipeline,
            "path": folder.resolve() / document["path"],
            "out": folder.parent.resolve(),
            "is_in_run": document["path"] == PIPELINE_FILE,
            "unknown": unknown,
        }
        made = manifest.parse(cls, values)
        masking.remember(made.secrets)
        return made


def _parse_pipeline(document: Any) -> tuple[Pipeline, tuple[str, ...]]:
    """Return a saved pipeline without the settings that this version does not know, and the names of these settings.

    Raises ValueError where the document is no pipeline.
    """
    document = copy.deepcopy(document)
    unknown: list[str] = []
    while True:
        try:
            return Pipeline.model_validate(document, context=SAVED), tuple(unknown)
        except ValidationError as error:
            places = [problem["loc"] for problem in error.errors() if problem["type"] == "extra_forbidden"]
            removed = [".".join(map(str, place)) for place in places if _remove(document, place)]
            if not removed:
                raise
            unknown += removed


def _remove(document: Any, place: Sequence[str | int]) -> bool:
    """Remove the key at ``place`` of a JSON document; return False where there is none."""
    for key in place[:-1]:
        try:
            document = document[key]
        except (LookupError, TypeError):
            continue  # the place also names the kind of a value
    if not isinstance(document, dict) or place[-1] not in document:
        return False
    del document[place[-1]]
    return True


def find_saved(folder: Path, name: Path) -> Path:
    """Return the path of the file ``name`` of a run, which may have its old name."""
    path = folder / name
    old = path.with_name(_OLD_NAMES.get(path.name, path.name))
    return old if old.is_file() and not path.exists() else path


@contextmanager
def readable(folder: Path, name: Path) -> Iterator[Any]:
    """Yield the JSON document in the file ``name`` of a run. Raises ConfigError where it is not what profpipe wrote."""
    try:
        yield json.loads(atomic.read_regular(find_saved(folder, name)).decode())
    except OSError:
        raise ConfigError(str(folder), f"cannot be resumed: its {name} is gone.", "Start it again.") from None
    except ValidationError as error:
        # Without the values and the keys of the document, which may be secrets.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = first["loc"][0] if first["loc"] else "document"
        what = f"is not the file that profpipe wrote: its {field} is wrong ({first['type']})."
        raise ConfigError(str(folder / name), what, "Start the run again.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"is not the file that profpipe wrote: {one_line(error)}."
        raise ConfigError(str(folder / name), what, "Start the run again.") from None


def _set_repeats(pipeline: Pipeline, captures: int | None) -> Pipeline:
    """Return the pipeline with as many processes of each command: ``repeats`` of a command means the same."""
    if captures is None:
        return pipeline
    commands = {name: workload for name, workload in pipeline.workloads.items() if workload.command is not None}
    repeated = {name: workload.model_copy(update={"repeats": captures}) for name, workload in commands.items()}
    return pipeline.model_copy(update={"workloads": {**pipeline.workloads, **repeated}})


@dataclass(frozen=True)
class ExaminedMachine:
    """The profilers and GPUs of this machine. ``gpus`` have serial numbers, which the published text has not."""

    tools: Mapping[str, Tool | Missing]
    gpus: Sequence[Gpu]
    described: Mapping[str, Any]

    @classmethod
    def examine(cls, request: RunRequest) -> ExaminedMachine:
        named = [name for workload in request.pipeline.workloads.values() for name in workload.profilers]
        wanted = {*named, *request.profilers}
        if unknown := [name for name in named if name not in profilers.ALL]:
            # A saved pipeline may come from another machine.
            what = f"the profiler '{unknown[0]}' is not installed here."
            raise ConfigError(shown(request.path), what, "Install the package that adds it.")
        tools = {name: module.find(process.ask) for name, module in profilers.ALL.items() if name in wanted}
        gpus = machine.nvidia_gpus()
        described = {**machine.machine(gpus), "peaks": machine.peaks_of_job(gpus, os.environ, ())}
        if measured := measured_peaks.load(request.out / measured_peaks.FILE, gpus):
            described["ceilings"] = measured
        return cls(tools, gpus, described)


def plan_jobs(
    request: RunRequest,
    machine: ExaminedMachine,
    folder: Path,
    wanted: Collection[str] | None = None,
    profilers: Sequence[str] = (),
) -> list[Job]:
    """Return the jobs of ``request``, or those of the ``wanted`` cases, with their files below ``folder``.

    They are under its profilers, or under ``profilers``.
    """
    return plan.plan(
        request.pipeline,
        machine.tools,
        scripts=dict(_find_scripts(request)),
        cwd=request.pipeline_dir,
        out=folder,
        python=sys.executable,
        env={"PYTHONPATH": process.python_path()},
        on_gpu=bool(machine.described["gpus"]),
        workloads=request.workloads,
        profilers=profilers or request.profilers,
        hidden=request.hidden,
        captures=request.captures,
        wanted=wanted,
        allocated=queue.allocated_nodes(os.environ),
        comparisons=request.comparisons,
        ncu_cases=request.ncu_cases,
        secrets=request.secrets,
    )


def _find_scripts(request: RunRequest) -> Iterator[tuple[str, Path]]:
    """Yield each chosen workload that has a file, and the file."""
    for name, workload in request.pipeline.workloads.items():
        if workload.script is None or (request.workloads and name not in request.workloads):
            continue
        script = script_path(workload.script, request.path)
        if script is None:
            where = f"{shown(request.path)}: workloads.{name}.script"
            remedy = f"Put it back into {request.pipeline_dir}."
            raise ConfigError(where, f"the file of '{workload.script}' is gone.", remedy)
        yield name, script
