"""Find what the tasks of a run on a cluster lack, and why."""

from __future__ import annotations

from collections.abc import Iterator

from profpipe.analysis.findings.workloads import NotRun
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_totals import rows
from profpipe.job import Status
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables
from profpipe.results.tasks import Task, TaskState


def find_unfinished(tables: Tables, run: Manifest) -> tuple[NotRun, ...]:
    """Return the cases that tasks have not ended: those that stopped for the same reason are one group."""
    ended = {
        (workload, case, profiler)
        for workload, case, profiler, status in rows(tables.cases, "workload", "case", "profiler", "status")
        # A case of an `ab` run has a row after its first process.
        if status != Status.INTERRUPTED and run.ab is None
    }
    lacking = grouped(
        ((task.workload, task.state, task.details, profilers), (task, case))
        for task in open_tasks(run)
        for case in task.cases
        if (profilers := tuple(name for name in task.profilers if (task.workload, case, name) not in ended))
    )
    return tuple(
        NotRun(
            workload,
            Status.INTERRUPTED,
            details,
            profilers,
            tuple(dict.fromkeys(case for _, case in own)),
            logs=tuple(dict.fromkeys(f"slurm/logs/{task.job}.txt" for task, _ in own if task.attempt)),
            task_state=state,
            nodes=tuple(dict.fromkeys(task.node for task, _ in own if task.node)),
        )
        for (workload, state, details, profilers), own in lacking.items()
    )


def open_tasks(run: Manifest) -> Iterator[Task]:
    """Yield the tasks that are not done."""
    return (task for task in run.tasks if task.state is not TaskState.DONE)
