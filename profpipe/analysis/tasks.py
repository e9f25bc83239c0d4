"""Find what the tasks of a run on a cluster lack, and why."""

from __future__ import annotations

from collections.abc import Iterator

from profpipe.analysis.findings.warnings import NotRun
from profpipe.analysis.kernel_totals import rows
from profpipe.job import Status
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables
from profpipe.results.tasks import TaskEntry, TaskState

_Key = tuple[str, TaskState, str, tuple[str, ...]]


def find_unfinished(tables: Tables, run: Manifest) -> tuple[NotRun, ...]:
    """Return the cases that tasks have not ended: those that stopped for the same reason are one group."""
    ended = {
        (workload, case, profiler)
        for workload, case, profiler, status in rows(tables.cases, "workload", "case", "profiler", "status")
        # A case of an `ab` run has a row after its first process.
        if status != Status.INTERRUPTED and run.ab is None
    }
    tasks: dict[_Key, list[TaskEntry]] = {}
    cases: dict[_Key, dict[str, None]] = {}
    for task in open_tasks(run):
        for profilers, names in _missing(task, ended):
            key = (task.workload, task.state, task.details, profilers)
            tasks.setdefault(key, []).append(task)
            cases.setdefault(key, {}).update(dict.fromkeys(names))
    return tuple(
        NotRun(
            key[0],
            Status.INTERRUPTED,
            key[2],
            key[3],
            tuple(cases[key]),
            logs=tuple(f"slurm/logs/{task.job}.txt" for task in own if task.attempt),
            task_state=key[1],
            nodes=tuple(dict.fromkeys(task.node for task in own if task.node)),
        )
        for key, own in tasks.items()
    )


def open_tasks(run: Manifest) -> Iterator[TaskEntry]:
    """Yield the tasks that are not done."""
    return (task for task in run.tasks if task.state is not TaskState.DONE)


def _missing(task: TaskEntry, ended: set[tuple[str, str, str]]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the cases that the same profilers lack."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for case in task.cases:
        lacking = tuple(name for name in task.profilers if (task.workload, case, name) not in ended)
        if lacking:
            groups.setdefault(lacking, []).append(case)
    yield from groups.items()
