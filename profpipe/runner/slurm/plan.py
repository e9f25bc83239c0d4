"""The plan of a run on a cluster: which cases and profilers each index of the array has.

The plan is data in the run's folder. A task reads its index, and the command that collects reads all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from profpipe.config.models import Pipeline, Workload
from profpipe.config.settings import Spread
from profpipe.errors import ConfigError
from profpipe.job import Case
from profpipe.results import atomic, budget, manifest
from profpipe.runner import plan
from profpipe.runner.request import RunRequest

#: In the run's folder: everything that belongs to Slurm.
FOLDER: Final = Path("slurm")
FILE: Final = FOLDER / "plan.json"

#: Returns the cases of a workload in groups that the report compares with each other.
Compared = Callable[[Sequence[Case], Workload], Sequence[Sequence[str]]]

#: The profilers whose captures name the kernels that guided ncu replays.
_GUIDES: Final = ("nsys", "torch")


@dataclass(frozen=True)
class Task:
    """One index of the array: cases of a workload, and the profilers that run them.

    ``reference`` is a case that each task of the workload times under plain, where cases that are compared with each
    other may run on different nodes: it shows how far the nodes lie apart. Empty for no such case, and for the task
    that has the case itself.
    """

    index: int
    workload: str
    cases: tuple[str, ...]
    profilers: tuple[str, ...]
    reference: str = ""


@dataclass(frozen=True)
class ClusterPlan:
    """The tasks of a run by their index, from 0 on."""

    spread: Spread
    tasks: tuple[Task, ...]

    @classmethod
    def create(cls, request: RunRequest, spread: Spread, compared: Compared) -> ClusterPlan:
        """Return the plan of ``request``; its tasks have the order of the workloads and cases in the file."""
        found = [part for name in _chosen(request) for part in _parts(request, name, spread, compared)]
        return cls(spread, tuple(Task(index, *part) for index, part in enumerate(found)))

    @classmethod
    def of_pairs(cls, pipeline: Pipeline, names: Mapping[str, Sequence[str]]) -> ClusterPlan:
        """Return the plan of an `ab` run. ``names`` has by workload the names that its cases have on both sides.

        All pairs of a case are one task, and so are the cases that share their processes.
        """
        groups: list[tuple[str, tuple[str, ...]]] = []
        for name, cases in names.items():
            workload = pipeline.workloads[name]
            is_split = workload.isolate or workload.command is not None
            groups += [(name, (case,)) for case in cases] if is_split else [(name, tuple(cases))]
        return cls("comparisons", tuple(Task(index, *group, ("plain",)) for index, group in enumerate(groups)))

    def save(self, folder: Path) -> None:
        (folder / FOLDER).mkdir(exist_ok=True)
        atomic.write_text(folder / FILE, self.as_text())

    def as_text(self) -> str:
        """Return the content of plan.json: a line for each task."""
        tasks = ",\n".join(f"  {json.dumps(asdict(task))}" for task in self.tasks)
        return f'{{"version": 1, "spread": {json.dumps(self.spread)}, "tasks": [\n{tasks}\n]}}\n'

    @classmethod
    def load(cls, folder: Path) -> ClusterPlan:
        """Read the plan of the run in ``folder``. Raises ConfigError where it has none that can be read."""
        path = folder / FILE
        try:
            document = budget.load_json(atomic.read_regular(path).decode())
            found = manifest.parse(cls, document)
            for index, task in enumerate(found.tasks):
                if task.index != index:
                    raise ValueError(f"task {index} has the index {task.index}")
            return found
        except FileNotFoundError:
            remedy = "`profpipe report` and `profpipe resume` are for runs of one machine."
            raise ConfigError(str(folder), "is no run on a cluster.", remedy) from None
        except ValueError as error:
            raise ConfigError(str(path), f"is not the plan that profpipe wrote: {error}.", "Start a new run.") from None


def is_cluster_run(folder: Path) -> bool:
    return (folder / FILE).is_file()


def _chosen(request: RunRequest) -> Iterator[str]:
    return (name for name in request.pipeline.workloads if not request.workloads or name in request.workloads)


def _parts(
    request: RunRequest, name: str, spread: Spread, compared: Compared
) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...], str]]:
    """Yield workload, cases, profilers and reference of each task of a workload."""
    workload = request.pipeline.workloads[name]
    profilers = tuple(dict.fromkeys(request.profilers or workload.profilers))
    cases = plan.cases(workload)
    groups = compared(cases, workload)
    if spread == "comparisons":
        yield from ((name, tuple(group), profilers, "") for group in groups)
        return
    reference = _reference(groups, cases, workload)
    for case in cases:
        for group in _apart(profilers, workload) if spread == "all" else [profilers]:
            has_other = "plain" in group and case.id != reference
            yield name, (case.id,), group, reference if has_other else ""


def _reference(groups: Sequence[Sequence[str]], cases: Sequence[Case], workload: Workload) -> str:
    """Return the baseline of the first comparison, or its first case; empty where nothing is compared."""
    first = next((set(group) for group in groups if len(group) > 1), set())
    baseline = workload.baseline or {}
    own = [case for case in cases if case.id in first]
    is_baseline = (case for case in own if all(case.params.get(name) == value for name, value in baseline.items()))
    return next(is_baseline, own[0]).id if own else ""


def _apart(profilers: Sequence[str], workload: Workload) -> list[tuple[str, ...]]:
    """Return each profiler alone. Guided ncu stays with the captures that name its kernels."""
    guided = "ncu" in profilers and workload.ncu.kernels == "guided"
    together = tuple(name for name in profilers if guided and name in (*_GUIDES, "ncu"))
    alone: list[tuple[str, ...]] = [(name,) for name in profilers if name not in together]
    return [*alone, together] if together else alone
