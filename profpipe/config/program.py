"""A pipeline of one program, from the command line: ``profpipe run -- python train.py --batch 8``."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from profpipe import masking
from profpipe.config import loader
from profpipe.config.models import Pipeline, Workload
from profpipe.config.yaml import PLACEHOLDER, as_list, word as read_word
from profpipe.errors import ConfigError, did_you_mean

#: The profilers of a program unless `-p` names others. One that is missing becomes a row with the remedy.
PROFILERS: Final = ("plain", "torch", "nsys")

#: What a file name or a module that starts other programs is not named after.
_LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")


@dataclass(frozen=True)
class Program:
    """A program and its pipeline. ``text`` is the pipeline file that repeats the run, without secrets."""

    pipeline: Pipeline
    text: str
    #: The arguments as the text has them, with ``${NAME}`` in place of secrets.
    masked: tuple[str, ...]
    #: Secrets, and ``${NAME}`` for each.
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def public(self) -> dict[str, Workload]:
        """The workload with the masked arguments; empty where they have no secret."""
        workload = self.pipeline.workloads[self.name]
        if workload.command == self.masked:
            return {}
        return {self.name: workload.model_copy(update={"command": self.masked})}


def read_program(
    words: Sequence[str],
    path: Path,
    *,
    profilers: Sequence[str] = (),
    overrides: Sequence[str] = (),
    variables: Sequence[str] = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    repeat: Sequence[str] = ("profpipe", "run"),
    env: Mapping[str, str] = os.environ,
    name: str = "",
) -> Program:
    """Return the program ``words``, started in the current folder.

    ``path`` is where the pipeline file will be. ``overrides`` are ``KEY=VALUE`` as for ``--set``, where a key in braces
    in the words becomes an axis of the matrix. ``variables`` are ``NAME`` or ``NAME=VALUE`` for the environment of the
    program, ``settings`` further keys of the workload. ``name`` is that of the run, by default that of the program.
    ``repeat`` is the command that repeats the run of the pipeline
    file. Raises ConfigError if the program is missing or an option is wrong.
    """
    command = " ".join(repeat[:2])
    words = _startable(words, env, command)
    name, overrides = _named(name, overrides)
    masked, secrets = mask(words, env)
    environment = {**env, **secrets}
    name = name or name_of(words)
    workload: dict[str, Any] = {
        "command": [_escape(word, secrets) for word in masked],
        "cwd": os.path.relpath(Path.cwd(), path.parent.resolve()),
        "profilers": list(profilers or PROFILERS),
        **settings,
    }
    if given := dict(_environment(variables, env)):
        workload["env"] = given
    document: dict[str, Any] = {"version": 1, "name": name, "workloads": {name: workload}}
    _check_names(overrides, words)
    # The keys of ``--set`` that stand in braces in the program's words.
    keys = [override.partition("=")[0].strip() for override in overrides]
    if axes := [key for key in dict.fromkeys(keys) if any(f"{{{key}}}" in word for word in words)]:
        workload["matrix"] = dict.fromkeys(axes)
    for assignment in overrides:
        loader.override(document, assignment, path)
    if axes:
        workload["matrix"] = {axis: as_list(workload["matrix"][axis], read_word) for axis in axes}
        varying = [axis for axis, values in workload["matrix"].items() if isinstance(values, list) and len(values) > 1]
        # Cases that run side by side are not compared: those with a common baseline stay on one GPU.
        if not document.get("gpus"):
            workload["baseline"] = {axis: workload["matrix"][axis][0] for axis in varying[:1]}
    pipeline = loader.load_document(document, path, environment, where=f"{command} --")
    values = {secret: f"${{{key}}}" for key, text in secrets.items() for secret in (text, *masking.secret_parts(text))}
    values |= {secret: f"${{{key}}}" for key in given for secret in masking.secrets_in_variable(key, env.get(key, ""))}
    hidden = _hide_values(document, secrets)
    text = _format_pipeline(document, {*secrets, *hidden} - env.keys(), repeat)
    return Program(pipeline, text, tuple(masked), values)


def _hide_values(document: dict[str, Any], taken: Collection[str]) -> list[str]:
    """Replace the secret parameters in ``document`` by variables; return the names of these."""
    names: list[str] = []

    def is_secret(name: str, value: Any) -> bool:
        return masking.is_secret_parameter(name, value) or masking.has_secret_form(str(value))

    def hide(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [hide(name, item) for item in value]
        if not is_secret(name, value) or PLACEHOLDER.search(str(value)):
            return value
        names.append(_new_name(_variable(name), {*names, *taken}))
        return f"${{{names[-1]}}}"

    for workload in document["workloads"].values():
        # The baseline repeats a value of the matrix.
        if baseline := workload.get("baseline"):
            workload["baseline"] = {name: value for name, value in baseline.items() if not is_secret(name, value)}
        for part in ("matrix", "params"):
            if part in workload:
                workload[part] = {name: hide(name, value) for name, value in workload[part].items()}
    return names


def name_of(words: Sequence[str]) -> str:
    """Return the name of a program: ``train`` for ``torchrun --nproc-per-node 2 train.py``."""
    modules = [word for option, word in itertools.pairwise(words) if option == "-m" and word not in _LAUNCHERS]
    scripts = [word for word in words if Path(word).suffix in (".py", ".sh", ".pyz")]
    stem = Path(scripts[0]).stem if scripts else modules[0].rpartition(".")[2] if modules else Path(words[0]).name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).lstrip("_.-")
    return "program" if name in ("", "lock") or name.endswith(".json") else name


def mask(words: Sequence[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return ``words`` with ``${NAME}`` in place of secrets, and the values by name.

    Secrets are the values of variables with a secret name, those of options such as ``--password``, and what looks like
    a secret by its form.
    """
    hidden = {
        name: value
        for name, value in env.items()
        if len(value) >= masking.SHORTEST and masking.is_secret_name(name) and masking.secrets_in_variable(name, value)
    }
    secrets: dict[str, str] = {}
    masked: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        public = word
        for name, value in hidden.items():
            if value in public:
                public, secrets[name] = _replaced(public, value, name), value
        option, equals, value = word.partition("=")
        if public == word and equals and value and masking.is_secret_option(option, value):
            public, secrets[_variable(option)] = f"{option}=${{{_variable(option)}}}", value
        elif public == word and word and masking.is_secret_option(before, word) and not word.startswith("--"):
            public, secrets[_variable(before)] = f"${{{_variable(before)}}}", word
        parts = [(part, "") for part in masking.secret_parts(public)]
        parts += [(part, masking.BEFORE_VALUE) for part in masking.assigned_secrets(public, before)]
        for part, behind in parts:
            name = _new_name("SECRET", secrets)
            replaced = _replaced(public, part, name, behind)
            if replaced != public:
                public, secrets[name] = replaced, PLACEHOLDER.sub(lambda m: secrets.get(m[1], m[0]), part)
        masked.append(public)
    return masked, secrets


def _replaced(word: str, part: str, name: str, behind: str = "") -> str:
    """Return ``word`` with ``${name}`` for ``part`` where it follows ``behind``, but not inside a placeholder."""
    pattern = rf"\$\{{\w+\}}|({behind}){re.escape(part)}"
    return re.sub(pattern, lambda m: m[0] if m[1] is None else f"{m[1]}${{{name}}}", word)


def _new_name(stem: str, taken: Collection[str]) -> str:
    numbered = (f"{stem}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([stem], numbered) if name not in taken)


def _variable(option: str) -> str:
    return re.sub(r"^(?=[0-9])|[^A-Za-z0-9]", "_", option.strip("-")).upper()


def _named(name: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name that ``--name`` or ``--set name=`` gives, and the other overrides. Raises ConfigError."""
    pairs = [(override.partition("="), override) for override in overrides]
    name = name or next((value.strip() for (key, _, value), _ in pairs if key.strip() == "name"), "")
    if name and name_of([name]) != name:
        remedy = f"Use letters, digits, '_', '.' and '-': --name {name_of([name])}"
        raise ConfigError("--name", f"{name!r} is no name of a folder.", remedy)
    return name, [override for (key, _, _), override in pairs if key.strip() != "name"]


def _startable(words: Sequence[str], env: Mapping[str, str], command: str) -> Sequence[str]:
    """Return ``words``, with ``python`` before a Python file. Raises ConfigError if there is no such program."""
    where = f"{command} --"
    if not words:
        raise ConfigError(where, "no program after '--'.", f"For example: {where} python train.py --batch 8")
    program = words[0]
    if shutil.which(program, path=env.get("PATH")):
        return words
    if Path(program).suffix in (".yaml", ".yml"):
        raise ConfigError(where, f"'{program}' is no program.", f"To run a pipeline file: {command} {program}")
    if Path(program).is_file() and Path(program).suffix == ".py":
        return ["python" if shutil.which("python", path=env.get("PATH")) else sys.executable, *words]
    if Path(program).is_file():
        starter = "./" if os.access(program, os.X_OK) else "sh "
        raise ConfigError(where, f"'{program}' cannot be started.", f"Try: {where} {starter}{program} ...")
    remedy = f"Is it spelled right, and on PATH? The program comes first: {where} python train.py"
    raise ConfigError(where, f"there is no program '{program}'.", remedy)


def _escape(word: str, secrets: Mapping[str, str]) -> str:
    """Keep ``${NAME}`` of the user as it is: a pipeline file would replace it."""
    return PLACEHOLDER.sub(lambda m: m[0] if m[1] in secrets else m[0].replace("${", "${DOLLAR:-$}{", 1), word)


def _environment(variables: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for text in variables:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ConfigError("--env", f"{text!r} is not NAME or NAME=VALUE.", "For example: --env DATA_DIR=/data")
        if not equals and name not in env:
            raise ConfigError("--env", f"{name} is not set.", f"Write --env {name}=VALUE.")
        if equals and (masking.has_secret_form(value) or (masking.is_secret_name(name) and value)):
            raise ConfigError("--env", f"{name} looks secret.", f"Set it in the shell and write --env {name}.")
        yield name, value if equals else f"${{{name}}}"


def _check_names(overrides: Sequence[str], words: Sequence[str]) -> None:
    """Raise ConfigError for a name that is neither a setting nor in braces among the words."""
    in_braces = re.findall(r"\{(\w+)\}", " ".join(words))
    names = [*in_braces, *Pipeline.model_fields, *Workload.model_fields]
    for name in (override.partition("=")[0].strip() for override in overrides):
        if name and "." not in name and name not in names:
            hint = did_you_mean(name, names)
            remedy = f"Write {{{name}}} where its value goes: python train.py {{{name}}}"
            remedy = f"{hint} {remedy}" if hint.startswith("Did") else remedy
            raise ConfigError("--set", f"'{name}' is no setting, and no argument is {{{name}}}.", remedy)


def _format_pipeline(document: Mapping[str, Any], missing: Collection[str], repeat: Sequence[str]) -> str:
    """Return the pipeline file. ``missing`` are variables that stand for words of the command line."""
    head = [f"# Repeats the run in this folder: {shlex.join([*repeat[:2], 'pipeline.yaml', *repeat[2:]])}"]
    if missing:
        head.append(f"# Set {', '.join(sorted(missing))} before: the value was given on the command line.")
    body = yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    return "\n".join(head) + "\n" + body
