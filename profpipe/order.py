"""What a run is asked to do, and the machine that it does it on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profpipe import ceilings, device, gpus, profilers, run, store
from profpipe.errors import ConfigError
from profpipe.gpus import Gpu
from profpipe.job import Missing, Tool
from profpipe.pipeline import Pipeline

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
        return cls(pipeline, path.resolve(), out.resolve(), tuple(workloads), tuple(names), reuse)

    @property
    def beside(self) -> Path:
        return self.path.parent

    def save(self, folder: Path) -> None:
        document = {
            "pipeline": self.pipeline.model_dump(mode="json", by_alias=True),
            "path": str(self.path),
            "workloads": self.workloads,
            "profilers": self.profilers,
            "reuse": self.reuse,
        }
        target = folder / ORDER
        target.parent.mkdir(parents=True, exist_ok=True)
        store.write_private(target, json.dumps(document).encode())

    @classmethod
    def load(cls, folder: Path) -> Order:
        try:
            document = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        except OSError:
            raise ConfigError(str(folder), "cannot be resumed: its raw/ is gone.", "Start it again.") from None
        pipeline = Pipeline.model_validate(document["pipeline"])
        chosen = document["workloads"], document["profilers"], document.get("reuse", False)
        return cls.of(pipeline, Path(document["path"]), folder.parent, *chosen)


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
