"""Merge the records of the tasks into the tables and the manifest of the run. Nothing here waits for a task."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.errors import ConfigError
from profpipe.results import atomic, manifest, schema, store
from profpipe.results.manifest import JobEntry, Machine, Manifest, NodeEntry, PairsEntry, ToolEntry
from profpipe.results.schema import Tables
from profpipe.results.tasks import TaskEntry, TaskState
from profpipe.runner.request import REQUEST_FILE
from profpipe.runner.slurm import node_sessions, queue, records, script
from profpipe.runner.slurm.plan import ClusterPlan, Task
from profpipe.runner.slurm.queue import Seen
from profpipe.runner.slurm.records import Record, Start

#: What each task has in its manifest, and what the manifest of the run joins.
_JOINED = ("jobs", "files", "refused", "incidents")


def collect(folder: Path, seen: Mapping[int, Seen] | None) -> tuple[Tables, Manifest]:
    """Read what the tasks of the run in ``folder`` have left, and return its tables and its manifest.

    ``seen`` is what Slurm said before, None where it did not answer: a task that ends after that has its record. The
    caller saves both. The manifest has an end where every task is done.
    """
    begun, plan = Manifest.load(folder), ClusterPlan.load(folder)
    found = records.read_records(folder)
    tasks = describe_tasks(folder, plan, found, seen, begun.tasks)
    if seen is not None:
        _remove_partial_folders(folder, tasks, found.values())
    own = [record for index, record in found.items() if index < len(plan.tasks)]
    data = tables_of(own)
    known = _merge(begun, own)
    is_done = all(task.state is TaskState.DONE for task in tasks)
    ended = (begun.ended or manifest.utc_now().isoformat(timespec="seconds")) if is_done else None
    return data, replace(known, tasks=tuple(tasks), ended=ended, private_files=_private_files(folder, own))


# --- the tables ------------------------------------------------------------------------------------------------------


def tables_of(found: Sequence[Record]) -> Tables:
    """Return the rows of several records in their order."""
    frames: dict[str, Any] = {
        table.name: (_read_pictures if table.is_picture else _read_rows)(table, found) for table in schema.ALL
    }
    return Tables(**frames)


def _read_rows(table: schema.Table, found: Sequence[Record]) -> pd.DataFrame:
    """Return the rows of a table. To read all rows as one file takes a tenth of the time of one file a task."""
    head, parts = "", []
    for record in found:
        text = record.tables.get(table.name, "")
        own, _, rows = text.partition("\n")
        if text and (head or own) != own:
            what = f"has other columns in the record of task {record.index} than in those before"
            raise ConfigError(f"table {table.name}", f"{what}: another profpipe wrote it.", "Start a new run.")
        head = head or own
        parts.append(rows)
    if not head:
        return schema.empty(table)
    return store.parse_csv(f"{head}\n{''.join(parts)}".encode(), table, f"table {table.name} in the records")


def _read_pictures(table: schema.Table, found: Sequence[Record]) -> pd.DataFrame:
    parts = [
        pd.read_parquet(io.BytesIO(record.picture(table.name))) for record in found if table.name in record.pictures
    ]
    return schema.frame(table, pd.concat(parts, ignore_index=True)) if parts else schema.empty(table)


# --- the manifest ----------------------------------------------------------------------------------------------------


def _merge(begun: Manifest, found: Sequence[Record]) -> Manifest:
    """Return the manifest of the run with the jobs, files and nodes of the records."""
    joined: dict[str, Any] = {
        name: tuple(each for record in found for each in getattr(record.manifest, name)) for name in _JOINED
    }
    expects: dict[str, Mapping[str, str | None]] = {}
    nodes: dict[str, NodeEntry] = {}
    for record in found:
        nodes.update(record.manifest.nodes)
        for workload, families in record.manifest.expects.items():
            expects[workload] = {**expects.get(workload, {}), **families}
    if begun.ab is not None:
        joined["ab"] = _join_pairs(begun.ab, [record.manifest.ab for record in found if record.manifest.ab])
    if not nodes:
        return replace(begun, **joined)
    machine = _machine_of(list(nodes.values()))
    joined["jobs"] = tuple(_with_peaks(entry, machine, nodes) for entry in joined["jobs"])
    first = next(iter(nodes.values()))
    tools = _tools_of(list(nodes.values()))
    return replace(begun, **joined, expects=expects, nodes=nodes, machine=machine, packages=first.packages, tools=tools)


def _join_pairs(begun: PairsEntry, own: Sequence[PairsEntry]) -> PairsEntry:
    """Return the settings with the captures that the nodes chose, and with what each task found out about its sides."""
    if not own:
        return begun
    chosen = next((each for each in own if each.captures), own[0])
    joined = replace(begun, captures=chosen.captures, profiler=chosen.profiler, no_captures=chosen.no_captures)
    spreads: dict[str, dict[str, float]] = {}
    for each in own:
        for workload, of_cases in each.spreads.items():
            spreads.setdefault(workload, {}).update(of_cases)
        a, b = (
            replace(side, foreign_modules={**side.foreign_modules, **other.foreign_modules})
            for side, other in ((joined.a, each.a), (joined.b, each.b))
        )
        joined = replace(joined, a=a, b=b)
    return replace(joined, spreads=spreads)


def _machine_of(nodes: Sequence[NodeEntry]) -> Machine:
    """Return the machine of the first node, with the GPUs of other names that other nodes have."""
    first = nodes[0].machine
    gpus = list(first.gpus or ())
    for gpu in (gpu for node in nodes for gpu in node.machine.gpus or ()):
        if gpu.name not in {known.name for known in gpus}:
            gpus.append(gpu)
    return first if first.gpus is None and not gpus else replace(first, gpus=tuple(gpus))


def _with_peaks(entry: JobEntry, machine: Machine, nodes: Mapping[str, NodeEntry]) -> JobEntry:
    """Return the job with the peak rates of its node, if they differ from those of the run's machine."""
    node = nodes.get(entry.node or "")
    if entry.peaks is not None or node is None or node.machine.peaks == machine.peaks:
        return entry
    return replace(entry, peaks=node.machine.peaks)


def _tools_of(nodes: Iterable[NodeEntry]) -> dict[str, ToolEntry]:
    """Return each profiler as the first node has it that is not without it."""
    found: dict[str, ToolEntry] = {}
    for node in nodes:
        for name, tool in node.tools.items():
            if name not in found or (found[name].missing and not tool.missing):
                found[name] = tool
    return found


def _remove_partial_folders(folder: Path, tasks: Iterable[TaskEntry], found: Iterable[Record]) -> None:
    """Remove the files of jobs that killed tasks had copied in part.

    A task in the queue may still be copying, and so may one that the user has submitted without profpipe.
    """
    submissions = queue.read_submissions(folder)
    complete = {(record.index, record.attempt) for record in found if record.is_complete}
    over = {task.index: task.workload for task in tasks if not task.state.is_queued}
    for index, attempt in records.list_starts(folder) - complete:
        job = records.read_start(folder, index, attempt).job
        if index in over and job in queue.names_of(submissions, index):
            place = folder / "raw" / over[index] / node_sessions.label(index, attempt)
            if place.resolve().is_relative_to(folder.resolve()):
                atomic.remove_partial_folders(place)


def _private_files(folder: Path, found: Iterable[Record]) -> tuple[str, ...]:
    own = {name for record in found for name in record.manifest.private_files or ()}
    named = (str(name) for name in (REQUEST_FILE, script.FILE) if (folder / name).is_file())
    return tuple(sorted({*own, *named}))


# --- the tasks -------------------------------------------------------------------------------------------------------


def describe_tasks(
    folder: Path,
    plan: ClusterPlan,
    found: Mapping[int, Record],
    seen: Mapping[int, Seen] | None,
    before: Sequence[TaskEntry] = (),
) -> list[TaskEntry]:
    """Return what became of each task, by its record, by Slurm, and else by ``before``, what an earlier command saw.

    Slurm forgets tasks where it has no accounting.
    """
    submissions, starts = queue.read_submissions(folder), records.read_starts(folder)
    # A task that was in the queue may still be, unless Slurm says otherwise.
    known = {entry.index: entry for entry in before if seen is None or not entry.state.is_queued}
    return [
        _describe(
            task,
            found.get(task.index),
            (seen or {}).get(task.index),
            starts.get(task.index),
            queue.name_of(submissions, task.index),
            known.get(task.index),
        )
        for task in plan.tasks
    ]


def _describe(
    task: Task, record: Record | None, seen: Seen | None, start: Start | None, job: str, before: TaskEntry | None
) -> TaskEntry:
    entry = TaskEntry(task.index, task.workload, task.cases, task.profilers, job=job)
    if start is not None:
        entry = replace(entry, attempt=start.attempt, node=start.node, job=start.job or job)
    if record is not None and record.is_complete:
        return replace(entry, state=TaskState.DONE, attempt=record.attempt, node=record.node, job=record.job)
    if not job:
        return replace(entry, state=TaskState.NOT_SUBMITTED)
    if seen is not None and seen.state.is_queued:
        node = seen.node if seen.state is TaskState.RUNNING else ""
        return replace(entry, state=seen.state, details=seen.details, node=node, job=job)
    is_latest = record is not None and start is not None and record.attempt == start.attempt and start.job == job
    knows_why = record is not None and is_latest and record.state not in (TaskState.RUNNING, TaskState.STOPPED)
    if record is not None and knows_why:
        return replace(entry, state=record.state, details=record.details)
    if seen is not None and seen.state is not TaskState.UNKNOWN:
        return replace(entry, state=seen.state, details=seen.details, node=seen.node or entry.node, job=job)
    if record is not None and is_latest and record.state is TaskState.STOPPED:
        return replace(entry, state=record.state)
    if before is not None and before.job == job:
        return replace(entry, state=before.state, details=before.details, node=before.node, job=job)
    return replace(entry, state=TaskState.UNKNOWN)
