"""The nodes of a cluster: are they alike, and how far does a case vary on them? Its tasks: what is unfinished?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import pandas as pd

from profpipe.analysis.findings import Differences, Nodes, NodeSpread, NotRun, differences_of
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import rows
from profpipe.job import Status
from profpipe.results.manifest import Gpu, JobEntry, Manifest, NodeEntry
from profpipe.results.schema import NODE_PREFIX, TIMES, Tables
from profpipe.results.tasks import Task, TaskState

_TORCH = "torch"


def read_nodes(tables: Tables, run: Manifest, workload: str, profiler: str) -> Nodes:
    """Return the nodes whose times under ``profiler`` the report compares."""
    if not run.nodes:
        return Nodes()
    # The nodes of a program on several ones are one place: ``node1, node2``.
    places = [(job, ", ".join(_nodes_of(job))) for job in run.jobs_of(workload) if _nodes_of(job)]
    by_case = grouped((case, place) for job, place in places if job.profiler == profiler for case in job.cases)
    of_cases = {case: tuple(dict.fromkeys(case_places)) for case, case_places in by_case.items()}
    facts = {name: dict(_facts(entry)) for name, entry in run.nodes.items()}
    for job, place in places:
        if place not in facts:
            node_facts = grouped(fact for node in _nodes_of(job) for fact in facts.get(node, {}).items())
            facts[place] = {name: "; ".join(dict.fromkeys(values)) for name, values in node_facts.items()}
    within = {case: differences_of_job(run, job) for job in run.jobs_of(workload) for case in job.cases}
    return Nodes(of_cases, facts, _find_spread(tables.metrics, of_cases), within)


def differences_of_job(run: Manifest, job: JobEntry) -> Differences:
    """Return the facts in which the nodes of one program differ, with their values; none for like nodes."""
    return differences_of([dict(_facts(run.nodes[node])) for node in _nodes_of(job) if node in run.nodes])


def _nodes_of(job: JobEntry) -> list[str]:
    return sorted(set((job.rank_nodes or {}).values())) or list(filter(None, [job.node]))


def _facts(entry: NodeEntry) -> Iterator[tuple[str, str]]:
    """Yield what two nodes must have in common for a comparison. A node may have more GPUs of the same kind."""
    gpus = list(dict.fromkeys(map(_describe, entry.machine.gpus or ())))
    yield "GPU", ", ".join(gpus)
    yield "driver", ", ".join(dict.fromkeys(gpu.driver or "" for gpu in entry.machine.gpus or ()))
    yield "CPU", entry.machine.cpu
    yield _TORCH, entry.packages.get(_TORCH) or ""


def _describe(gpu: Gpu) -> str:
    """Return the name of a GPU with what may be set otherwise on another one: memory of a MIG slice, power, clock."""
    facts = [
        gpu.name,
        f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "",
        f"{gpu.sm_count} SMs" if gpu.sm_count else "",
        f"{gpu.max_sm_clock_hz / 1e6:.0f} MHz" if gpu.max_sm_clock_hz else "",
        f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else "",
        "MIG" if gpu.mig else "",
    ]
    return " ".join(filter(None, facts))


def _find_spread(metrics: pd.DataFrame, of_cases: Mapping[str, tuple[str, ...]]) -> NodeSpread | None:
    """Return the largest spread of a case that several nodes timed.

    These are the times of a reference that each task takes, and the time that the case has in its own task.
    """
    plain = metrics[(metrics["profiler"] == "plain") & metrics["metric"].isin(TIMES)]
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for case, metric, subject, value in rows(plain, "case", "metric", "subject", "value"):
        if subject.startswith(NODE_PREFIX):
            times.setdefault((case, metric), {}).setdefault(subject.removeprefix(NODE_PREFIX), []).append(value)
    for case, metric, subject, value in rows(plain, "case", "metric", "subject", "value"):
        if not subject and (case, metric) in times and len(nodes := of_cases.get(case, ())) == 1:
            times[case, metric].setdefault(nodes[0], []).append(value)
    # A step or call is the better time than the process around it.
    spreads = [
        NodeSpread(case, max(medians) / min(medians) - 1, len(medians))
        for metric in reversed(TIMES)
        for (case, of_metric), by_node in times.items()
        if of_metric == metric
        and len(medians := [statistics.median(node_times) for node_times in by_node.values()]) > 1
        if min(medians) > 0
    ]
    return spreads[-1] if spreads else None


# --- tasks -------------------------------------------------------------------------------------------------------


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
            tuple(dict.fromkeys(case for _, case in task_cases)),
            logs=tuple(dict.fromkeys(f"slurm/logs/{task.job}.txt" for task, _ in task_cases if task.attempt)),
            task_state=state,
            nodes=tuple(dict.fromkeys(task.node for task, _ in task_cases if task.node)),
        )
        for (workload, state, details, profilers), task_cases in lacking.items()
    )


def open_tasks(run: Manifest) -> Iterator[Task]:
    """Yield the tasks that are not done."""
    return (task for task in run.tasks if task.state is not TaskState.DONE)
