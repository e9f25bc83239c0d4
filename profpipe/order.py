"""What a run is asked to do, and the machine that it does it on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profpipe import ceilings, device, document, environment, gpus, plan, profilers, run, store
from profpipe.errors import ConfigError
from profpipe.gpus import Gpu
from profpipe.job import Missing, Tool
from profpipe.pipeline import Pipeline, Workload

#: What a resumed run needs and nobody else may see: the pipeline with the values of its environment variables.
ORDER = Path("raw") / "order.json"


@dataclass(frozen=True)
class Order:
    """What the user asked for: a pipeline, the part of it to run, and where the results go."""

    pipeline: Pipeline
    path: Path
    out: Path
    workloads: tuple[str, ...]
    profilers: tuple[str, ...]
    #: Whether jobs that an earlier run has done are taken from it.
    reuse: bool = False
    #: Words of commands that hold the values of secret variables, and what is published in their place.
    secrets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        path: Path,
        out: Path,
        workloads: Sequence[str],
        names: Sequence[str],
        reuse: bool = False,
    ) -> Order:
        secrets = _secrets(pipeline, path)
        return cls(pipeline, path.resolve(), out.resolve(), tuple(workloads), tuple(names), reuse, secrets)

    @property
    def beside(self) -> Path:
        return self.path.parent

    def save(self, folder: Path) -> None:
        kept = {
            "pipeline": self.pipeline.model_dump(mode="json", by_alias=True),
            "path": str(self.path),
            "workloads": self.workloads,
            "profilers": self.profilers,
            "reuse": self.reuse,
            "secrets": dict(self.secrets),
        }
        target = folder / ORDER
        target.parent.mkdir(parents=True, exist_ok=True)
        store.write_private(target, json.dumps(kept).encode())

    @classmethod
    def load(cls, folder: Path) -> Order:
        try:
            kept = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        except OSError:
            raise ConfigError(str(folder), "cannot be resumed: its raw/ is gone.", "Start it again.") from None
        pipeline = Pipeline.model_validate(kept["pipeline"])
        chosen = tuple(kept["workloads"]), tuple(kept["profilers"]), kept.get("reuse", False)
        # The file and the environment may say something else by now.
        return cls(pipeline, Path(kept["path"]), folder.parent.resolve(), *chosen, kept.get("secrets", {}))


class _Hidden(Mapping[str, str]):
    """The environment, with the names of secret variables in place of their values."""

    def __getitem__(self, name: str) -> str:
        return f"${{{name}}}" if environment.is_secret(name) else os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def _secrets(pipeline: Pipeline, path: Path) -> dict[str, str]:
    """Each word of a command that a secret variable is put into, and the same word with the variable's name.

    Also as it is for each case. A default that the file gives such a variable is hidden like a value.
    """
    shown = _hidden(pipeline, path)
    if not shown:
        return {}
    public = pipeline.model_copy(update={"workloads": {**pipeline.workloads, **shown}})
    tools = {name: Missing(name, "", "") for name in profilers.ALL}
    where: dict[str, Any] = {"scripts": {}, "cwd": path.parent, "out": path.parent, "python": ""}
    jobs = (plan.plan(of, tools, **where, workloads=[*shown]) for of in (pipeline, public))
    commands = [(a.command, b.command) for a, b in zip(*jobs, strict=True)]
    commands += [(pipeline.workloads[name].command or (), shown[name].command or ()) for name in shown]
    return {word: told for a, b in commands for word, told in zip(a, b, strict=True) if word and word != told}


def _hidden(pipeline: Pipeline, path: Path) -> dict[str, Workload]:
    """The workloads whose commands take values from secret variables, with the names in place of these."""
    entries = document.read(path, document.shown(path)).get("workloads") if path.is_file() else None
    found = {}
    for name, entry in (entries or {}).items():
        written, command = (entry or {}).get("command"), pipeline.workloads[name].command or ()
        if not isinstance(written, list) or len(written) != len(command):
            continue  # given otherwise, as by --set, and then by nothing of the environment's
        told = [
            str(document.substituted(word, _Hidden(), path.name)) if _is_secret(word) else given
            for word, given in zip(written, command, strict=True)
        ]
        if tuple(told) != command:
            found[name] = pipeline.workloads[name].model_copy(update={"command": tuple(told)})
    return found


def _is_secret(word: Any) -> bool:
    return any(map(environment.is_secret, document.placeholders(word)))


@dataclass(frozen=True)
class Machine:
    """What is here to run on."""

    tools: Mapping[str, Tool | Missing]
    #: With what tells one of them from the others, which ``described``, being published, has not.
    gpus: Sequence[Gpu]
    described: Mapping[str, Any]

    @classmethod
    def examine(cls, order: Order) -> Machine:
        named = [name for workload in order.pipeline.workloads.values() for name in workload.profilers]
        wanted = {*named, *order.profilers}
        tools = {name: module.find(run.ask) for name, module in profilers.ALL.items() if name in wanted}
        here = device.nvidia_gpus()
        described = {**device.machine(here), "peaks": gpus.peaks_of_job(here, os.environ, ())}
        if measured := ceilings.load(order.out / ceilings.FILE, here):
            described["ceilings"] = measured
        return cls(tools, here, described)
