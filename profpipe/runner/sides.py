"""The two sides of an `ab` run: what A and B are, and the pipeline that each of them runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from profpipe import masking, plugins, ranges
from profpipe.config.models import Workload
from profpipe.errors import ConfigError, ToolMissing, did_you_mean
from profpipe.job import Missing, Tool
from profpipe.results import atomic, manifest
from profpipe.results.manifest import NoCaptures, PairsEntry, SideEntry
from profpipe.runner import checkout
from profpipe.runner.request import ExaminedMachine, RunRequest, readable

#: Private, for the pipelines hold the values of environment variables.
SIDES_FILE = Path("raw") / "sides.json"

#: The folder of another interpreter's PYTHONPATH: it holds profpipe and no other package of this interpreter.
LIBRARY: Final = Path("raw") / "library"

#: Folders with code. A resumed run makes them again, because somebody may have changed what is in them.
MADE_ANEW: Final = (LIBRARY, checkout.FOLDER)

#: Time goes into processes and not into samples. Values that the pipeline file or ``--set`` gives are kept.
_BUDGET_S = 0.15
#: At its power limit the clock of an H200 swings with a period of about 1 s. Medians over 0.4 s differ by 1.4 % in one
#: process, over 1 s by 0.4 %.
_SLOWED_S = 1.0
_REPEATS = 10

#: The profilers that record every launch, the one of the lowest cost first.
_CAPTURING: Final = ("nsys", "torch")

PYTHONS = ("python", "python3")


class SpecKind(str, Enum):
    """What a word of ``--a`` or ``--b`` changes."""

    GIT = "git"
    DIR = "dir"
    SET = "set"
    ENV = "env"
    PYTHON = "python"
    CHANGE = "change"

    __str__ = str.__str__


@dataclass(frozen=True)
class Spec:
    """One word of ``--a`` or ``--b``: ``set:impl=fa2``."""

    kind: SpecKind
    value: str

    @classmethod
    def parse(cls, text: str, option: str) -> Spec:
        """Return the spec that ``text`` states. ``option`` is where it stands: ``--a`` or ``--b``."""
        word, colon, value = text.partition(":")
        kinds = [str(kind) for kind in SpecKind]
        if not colon or word not in kinds:
            remedy = "Write git:REV, dir:PATH, set:KEY=VALUE, env:NAME=VALUE, python:PATH or change:NAME."
            is_change = not colon and plugins.find("changes", f"{word}.py") is not None
            hint = did_you_mean(word, kinds) if colon else f"Did you mean change:{word}?" if is_change else ""
            raise ConfigError(option, f"{text!r} describes no side.", hint if hint.startswith("Did") else remedy)
        kind = SpecKind(word)
        if not value or (kind in (SpecKind.SET, SpecKind.ENV) and not value.partition("=")[0].strip()):
            raise ConfigError(option, f"{text!r} has no value.", f"For example: {_EXAMPLES[kind]}")
        if kind in (SpecKind.SET, SpecKind.ENV) and "=" not in value:
            raise ConfigError(option, f"{text!r} is not {word}:NAME=VALUE.", f"For example: {_EXAMPLES[kind]}")
        return cls(kind, value)

    @property
    def published(self) -> str:
        """The text of the spec without the value of a secret variable."""
        name, equals, _ = self.value.partition("=")
        is_variable = self.kind is SpecKind.ENV or ".env." in f".{name}"
        last = name.rpartition(".")[2].strip()
        is_hidden = bool(equals) and (
            (is_variable and masking.is_secret_name(last))
            or masking.is_secret_parameter(last, self.value[len(name) + 1 :])
        )
        return f"{self.kind}:{name}{equals}..." if is_hidden else f"{self.kind}:{masking.mask_printed(self.value)}"

    def published_from(self, folder: Path) -> str:
        """Return ``published`` with a path that is relative to ``folder``, as a command typed there needs it."""
        is_path = self.kind in (SpecKind.DIR, SpecKind.PYTHON) or self.is_file
        is_relative = is_path and not Path(self.value).is_absolute()
        return f"{self.kind}:{os.path.relpath(self.value, folder)}" if is_relative else self.published

    @property
    def is_file(self) -> bool:
        """Whether this is a change in a file of the user."""
        return self.kind is SpecKind.CHANGE and self.value.endswith(".py")


_EXAMPLES: Mapping[SpecKind, str] = {
    SpecKind.GIT: "git:main",
    SpecKind.DIR: "dir:../other-checkout",
    SpecKind.SET: "set:impl=sdpa_flash",
    SpecKind.ENV: "env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
    SpecKind.PYTHON: "python:../other-venv/bin/python",
    SpecKind.CHANGE: "change:tf32",
}


@dataclass(frozen=True)
class PairSide:
    """One side: its request, its interpreter, and the commit of its checkout where it has one.

    ``request.path`` lies in the folder in which the processes of the side run. For a commit this folder exists while
    the run is in progress: ``prefix`` is its path inside the checkout of ``repository``.
    """

    label: str
    specs: tuple[Spec, ...]
    request: RunRequest
    python: str = sys.executable
    repository: Path | None = None
    commit: str = ""
    prefix: str = ""
    #: The shell command that `bisect` runs in a new checkout.
    build: str = ""

    @property
    def params(self) -> set[str]:
        """The names that ``set:`` gives a value on this side."""
        return {spec.value.partition("=")[0].strip() for spec in self.specs if spec.kind is SpecKind.SET}

    @property
    def exchanges_folder(self) -> bool:
        return any(spec.kind in (SpecKind.GIT, SpecKind.DIR) for spec in self.specs)

    def root(self, run_folder: Path) -> Path:
        """Return the top folder of the code of the side: its checkout, or the working tree that holds its folder."""
        if self.repository is not None:
            return self.checkout_folder(run_folder).resolve()
        return checkout.top_folder(self.request.pipeline_dir)

    def checkout_folder(self, run_folder: Path) -> Path:
        return run_folder / checkout.FOLDER / self.label

    def in_checkout(self, run_folder: Path) -> PairSide:
        """Return the side with its checkout, which is made where it does not exist yet."""
        if self.repository is None:
            return self
        target = self.checkout_folder(run_folder)
        checkout.create(self.repository, self.commit, target)
        folder = target / self.prefix
        if not folder.is_dir():
            what = f"commit {self.commit[:12]} has no folder {self.prefix}, in which the pipeline file lies."
            raise ConfigError(f"side {self.label}", what, "Choose a commit that has it.")
        return replace(self, request=self.request.move_to(folder))


def parse_specs(words: Sequence[str], option: str) -> tuple[Spec, ...]:
    """Return the specs of one side. Raises ConfigError for a word that states none, and for two folders."""
    specs = tuple(Spec.parse(word, option) for word in words)
    for kinds in ({SpecKind.GIT, SpecKind.DIR}, {SpecKind.PYTHON}):
        if len(published := [spec.published for spec in specs if spec.kind in kinds]) > 1:
            raise ConfigError(option, f"{' and '.join(published)} contradict each other.", "Give one of them.")
    return specs


def entries(a: PairSide, b: PairSide) -> tuple[SideEntry, SideEntry]:
    """Return what the manifest keeps of the sides."""
    of_a, of_b = (
        SideEntry(tuple(spec.published for spec in side.specs), side.commit, versions)
        for side, versions in zip((a, b), checkout.differing_versions(a.python, b.python), strict=True)
    )
    return of_a, of_b


def overrides(specs: Iterable[Spec]) -> list[str]:
    """Return the ``KEY=VALUE`` of each ``set:``."""
    return [spec.value for spec in specs if spec.kind is SpecKind.SET]


def create(label: str, specs: Sequence[Spec], request: RunRequest) -> PairSide:
    """Return a side. ``request`` is the user's own with ``overrides(specs)``."""
    option = label if len(label) > 1 else f"--{label.lower()}"
    variables = _variables(specs, request, option)
    request, python = _move_to_working_folder(for_pairs(request, variables)), sys.executable
    repository, commit, prefix = None, "", ""
    for spec in specs:
        if spec.kind is SpecKind.GIT:
            repository, commit, prefix = checkout.find(request.pipeline_dir, spec.value, option)
        elif spec.kind is SpecKind.DIR:
            folder = Path(spec.value).resolve()
            if not folder.is_dir():
                raise ConfigError(option, f"{spec.value} is no folder.", "Name the folder to use in place of this one.")
            request = request.move_to(folder)
        elif spec.kind is SpecKind.PYTHON:
            python = _find_python(spec.value, option)
            _check_commands(request, option)
    return PairSide(label, tuple(specs), request, python, repository, commit, prefix)


def _variables(specs: Sequence[Spec], request: RunRequest, option: str) -> dict[str, str]:
    """Return the environment variables of a side: those of ``env:``, and those that apply its changes.

    Raises ConfigError for a change that is not there, and for a workload that cannot be changed from outside.
    """
    variables: dict[str, str] = {}
    paths = []
    for spec in (spec for spec in specs if spec.kind is SpecKind.CHANGE):
        path = find_change(spec)
        if path is None or not path.is_file():
            hint = did_you_mean(spec.value, [path.stem for path in plugins.files("changes", "*.py")])
            raise ConfigError(
                option, f"there is no change {spec.value!r}.", f"{hint} `profpipe list changes` prints all."
            )
        variables |= _read_variables(path, option)
        paths.append(str(path))
    if paths:
        variables[ranges.CHANGES_VARIABLE] = os.pathsep.join(paths)
        chosen = request.workloads or tuple(request.pipeline.workloads)
        for name in (name for name in chosen if name in request.pipeline.workloads):
            workload = request.pipeline.workloads[name]
            if workload.command is None or not workload.hook:
                what = f"change: needs a program that the start-up hook watches, and workload '{name}' is none."
                raise ConfigError(option, what, "Leave the workload out with -w.")
    return {**variables, **dict(spec.value.split("=", 1) for spec in specs if spec.kind is SpecKind.ENV)}


def find_change(spec: Spec) -> Path | None:
    """Return the file of a change; None for another spec, and where there is none of that name."""
    if spec.kind is not SpecKind.CHANGE:
        return None
    if spec.is_file:
        return Path(spec.value).resolve()
    return plugins.find("changes", f"{spec.value}.py") if spec.value.isidentifier() else None


def _read_variables(path: Path, option: str) -> dict[str, str]:
    """Return ``VARIABLES`` of a change. Raises ConfigError for a file that cannot be executed, and for other values."""
    try:
        variables = dict(getattr(plugins.load_module(path), "VARIABLES", {}))
    except Exception as error:  # the file of a user may raise anything
        raise ConfigError(
            option, f"{path} cannot be loaded: {type(error).__name__}: {error}.", "Fix the file."
        ) from None
    if not all(isinstance(text, str) for text in (*variables, *variables.values())):
        raise ConfigError(option, f"VARIABLES in {path} has a value that is no text.", 'Write {"NAME": "VALUE"}.')
    return variables


def for_pairs(request: RunRequest, variables: Mapping[str, str] = MappingProxyType({})) -> RunRequest:
    """Return the request with short processes, without profilers, and with the variables of a side."""
    workloads = {name: _shorten_workload(workload, variables) for name, workload in request.pipeline.workloads.items()}
    pipeline = request.pipeline.model_copy(update={"workloads": workloads})
    return replace(request, pipeline=pipeline, profilers=("plain",)).with_secrets({})


def working_folder(request: RunRequest) -> Path:
    """Return the folder that a side exchanges."""
    return _move_to_working_folder(request).pipeline_dir


def _move_to_working_folder(request: RunRequest) -> RunRequest:
    """Return the request at the folder in which its commands run, where this is outside that of the pipeline file.

    A file in the folder of a run is such a file: the folder that a side exchanges is that of the program.
    """
    chosen = request.workloads or tuple(request.pipeline.workloads)
    places = {request.pipeline.workloads[name].cwd or "" for name in chosen if name in request.pipeline.workloads}
    if len(places) != 1 or Path(place := places.pop()).parts[:1] != (os.pardir,):
        return request
    workloads = {
        name: workload.model_copy(update={"cwd": None} if workload.cwd == place else {})
        for name, workload in request.pipeline.workloads.items()
    }
    pipeline = request.pipeline.model_copy(update={"workloads": workloads})
    return replace(request, pipeline=pipeline, path=(request.pipeline_dir / place).resolve() / request.path.name)


def _shorten_workload(workload: Workload, variables: Mapping[str, str]) -> Workload:
    """Return the workload with the variables of a side, and with short processes unless the user asks for others."""
    given, timing = workload.model_fields_set, workload.timing
    short = {"budget_s": _BUDGET_S, "slowed_s": _SLOWED_S, "rounds": 1}
    changed: dict[str, Any] = {
        "profilers": ["plain"],
        "env": {**workload.env, **variables},
        "timing": timing.model_copy(update={k: v for k, v in short.items() if k not in timing.model_fields_set}),
        # One side must not decide which cases the other one runs.
        "skip_larger_after_oom": False,
    }
    if workload.command is not None:
        changed["repeats"] = 1
    elif "repeats" not in given:
        changed["repeats"] = _REPEATS
    return workload.model_copy(update=changed)


# --- captures --------------------------------------------------------------------------------------------------------


def prepare(request: RunRequest, settings: PairsEntry) -> tuple[ExaminedMachine, PairsEntry]:
    """Return the machine with the profilers of a new `ab` run, and the settings with that of the captures."""
    machine = examine(request, settings)
    has_commands = any(workload.command for workload in request.pipeline.workloads.values())
    settings = choose_captures(settings, machine, has_commands)
    used = ("plain", settings.profiler)
    return replace(machine, tools={name: tool for name, tool in machine.tools.items() if name in used}), settings


def examine(request: RunRequest, settings: PairsEntry | None) -> ExaminedMachine:
    """Return the machine with the profilers of a run; of an `ab` run with those that the captures may use."""
    if settings is None:
        return ExaminedMachine.examine(request)
    wanted = () if settings.no_captures else (settings.profiler,) if settings.profiler else _CAPTURING
    return ExaminedMachine.examine(replace(request, profilers=("plain", *wanted)))


def choose_captures(settings: PairsEntry, machine: ExaminedMachine, pipeline_has_commands: bool) -> PairsEntry:
    """Return the settings with the profiler of the captures, or why there are none.

    Without a GPU no kernels run. The Python of a command may have torch where that of profpipe has none. Raises
    ToolMissing for a profiler that the user names and that is missing.
    """
    profiler, why = "", settings.no_captures
    if settings.profiler and not why:
        tool = machine.tools[settings.profiler]
        if isinstance(tool, Missing) and not (tool.name == "torch" and pipeline_has_commands):
            raise ToolMissing(str(tool))
        return settings
    if not why and not machine.described["gpus"]:
        why = NoCaptures.NO_GPU
    elif not why and isinstance(machine.tools["nsys"], Tool):
        profiler = "nsys"
    elif not why and (isinstance(machine.tools["torch"], Tool) or pipeline_has_commands):
        profiler = "torch"
    else:
        why = why or NoCaptures.NO_PROFILER
    captures = settings.captures if profiler else 0
    return replace(settings, captures=captures, profiler=profiler, no_captures=why)


# --- the interpreter -------------------------------------------------------------------------------------------------


def _find_python(text: str, option: str) -> str:
    # Not resolved: the link in a virtual environment is what selects its packages.
    path = Path(text).absolute()
    if path.is_dir():
        raise ConfigError(option, f"python:{text} is a folder.", f"Name its interpreter: python:{text}/bin/python")
    if not path.is_file():
        raise ConfigError(option, f"python:{text} does not exist.", "Name the file of an interpreter.")
    return str(path)


def _check_commands(request: RunRequest, option: str) -> None:
    chosen = request.workloads or tuple(request.pipeline.workloads)
    for name, workload in request.pipeline.workloads.items():
        if name in chosen and workload.command is not None and workload.command[0] not in PYTHONS:
            what = f"python: changes nothing for workload '{name}', whose command begins with {workload.command[0]}."
            raise ConfigError(option, what, "Begin the command with `python`, or leave the workload out with -w.")


# --- on disk ---------------------------------------------------------------------------------------------------------


def save(folder: Path, sides: Sequence[PairSide]) -> None:
    """Save the sides for a resumed run."""
    requests = ({**side.request.as_json(), "path": str(side.request.path)} for side in sides)
    document = [
        {**vars(side), "request": request, "specs": [vars(spec) for spec in side.specs]}
        for side, request in zip(sides, requests, strict=True)
    ]
    (folder / SIDES_FILE).parent.mkdir(parents=True, exist_ok=True)
    atomic.write_private(folder / SIDES_FILE, json.dumps(document, default=str).encode())


def load(folder: Path) -> tuple[PairSide, PairSide]:
    """Load A and B of the run in ``folder``."""
    a, b, *_ = load_all(folder)
    return a, b


def load_all(folder: Path) -> tuple[PairSide, ...]:
    """Load A and B, and for `profpipe try` a side with each change."""
    with readable(folder, SIDES_FILE) as document:
        requests = (RunRequest.parse(entry["request"], folder) for entry in document)
        return tuple(
            manifest.parse(PairSide, {**entry, "request": request})
            for entry, request in zip(document, requests, strict=True)
        )
