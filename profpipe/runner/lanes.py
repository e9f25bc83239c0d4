"""The lanes of a run whose jobs run side by side: one GPU each, or places on a machine without a visible GPU.

A group of jobs stays on the lane that its first job was given. The run's folder holds which that is, so that a resumed
run continues there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from profpipe.errors import ConfigError
from profpipe.job import Job
from profpipe.measure import machine
from profpipe.results import atomic
from profpipe.runner.request import readable

FILE: Final = Path("raw") / "lanes.json"

_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Lane:
    """A place where one job runs at a time. ``gpu`` is the value of CUDA_VISIBLE_DEVICES; None leaves the variable."""

    name: str
    gpu: str | None

    def place(self, job: Job) -> Job:
        """Return the job on this lane."""
        variables = {} if self.gpu is None else {_VARIABLE: self.gpu}
        return replace(job, lane=self.name, env={**job.env, **variables})


@dataclass
class Lanes:
    """The lanes of a run, and the number of the lane that each group has."""

    every: tuple[Lane, ...]
    assigned: dict[str, int] = field(default_factory=dict)
    #: The file that keeps the assignment; None where nothing is resumed.
    path: Path | None = None

    def assign(self, group: str, lane: int) -> None:
        if self.assigned.get(group) != lane:
            self.assigned[group] = lane
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                names = [each.name for each in self.every]
                atomic.write_text(self.path, json.dumps({"lanes": names, "groups": self.assigned}, indent=1))

    def assign_name(self, group: str, name: str) -> bool:
        """Assign the group to the lane of this name. Return False where there is none, or the group has another one."""
        names = [each.name for each in self.every]
        if name not in names or self.assigned.get(group, names.index(name)) != names.index(name):
            return False
        self.assign(group, names.index(name))
        return True


def find(count: int, gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> tuple[Lane, ...]:
    """Return ``count`` lanes on the visible ones of ``gpus``. Raises ConfigError where fewer are visible.

    Where no GPU is visible, ``count`` is the number of processes that run side by side on the CPU.
    """
    if not machine.visible(gpus, environment):
        return tuple(Lane(f"place {number + 1}", str(number) if not gpus else None) for number in range(count))
    entries = machine.valid_entries(gpus, environment, count)
    if len(entries) < count:
        what = (
            f"asks for {count} GPUs, and {len(entries)} of this machine {'is' if len(entries) == 1 else 'are'} visible."
        )
        raise ConfigError("gpus", what, f"Set it to {len(entries)}, or change CUDA_VISIBLE_DEVICES.")
    return tuple(Lane(f"GPU {entry}", entry) for entry in entries)


def load(folder: Path, lanes: tuple[Lane, ...]) -> Lanes:
    """Return the lanes of the run in ``folder``. Raises ConfigError where the run was started on other ones."""
    path = folder / FILE
    if not path.exists():
        return Lanes(lanes, path=path)
    with readable(folder, FILE) as document:
        names, groups = list(document["lanes"]), {str(name): int(lane) for name, lane in document["groups"].items()}
        if not all(0 <= lane < len(names) for lane in groups.values()):
            raise ValueError("a group has a lane that does not exist")
    if names != [lane.name for lane in lanes]:
        now = ", ".join(lane.name for lane in lanes)
        what = (
            f"was started on {', '.join(map(str, names))}, and now has {now}: cases that are compared stay on one GPU."
        )
        raise ConfigError(str(folder), what, "Set CUDA_VISIBLE_DEVICES as it was, or start a new run.")
    return Lanes(lanes, groups, path)
