"""Merge the records of the tasks into the tables and the manifest of the run. Nothing here waits for a task."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.errors import ConfigError
from profpipe.results import atomic, budget, manifest, schema, store
from profpipe.results.manifest import JobEntry, Machine, Manifest, NodeEntry, PairsEntry, ToolEntry
from profpipe.results.schema import Tables
from profpipe.results.tasks import Task, TaskState
from profpipe.runner.request import REQUEST_FILE
from profpipe.runner.slurm import queue, records, submit
from profpipe.runner.slurm.records import TaskRecord

#: What each task has in its manifest, and what the manifest of the run joins.
_JOINED = ("jobs", "files", "refused", "incidents")


def collect(folder: Path, seen: Mapping[int, Task] | None) -> tuple[Tables, Manifest]:
    """Read what the tasks of the run in ``folder`` have left, and return its tables and its manifest.

    ``seen`` is what Slurm said before, None where it did not answer: a task that ends after that has its record. The
    caller saves both. The manifest has an end where every task is done.
    """
    begun, plan = Manifest.load(folder), records.load_plan(folder)
    records_by_index = records.read_records(folder)
    tasks = describe_tasks(folder, plan, records_by_index, seen, begun.tasks)
    kept = [record for index, record in records_by_index.items() if index < len(plan)]
    is_done = all(task.state is TaskState.DONE for task in tasks)
    if is_done:
        _remove_partial_folders(folder)
    ended = (begun.ended or manifest.utc_now().isoformat(timespec="seconds")) if is_done else None
    private_files = _private_files(folder, kept)
    return tables_of(kept), _merge(begun, kept, tasks=tuple(tasks), ended=ended, private_files=private_files)


# --- the tables ------------------------------------------------------------------------------------------------------


def tables_of(task_records: Sequence[TaskRecord]) -> Tables:
    """Return the rows of several records in their order."""
    frames: dict[str, Any] = {
        table.name: (_read_parquet if table.parquet_only else _read_rows)(table, task_records) for table in schema.ALL
    }
    return Tables(**frames)


def texts_of(data: Tables) -> dict[str, str]:
    """Return the tables that have rows as a record holds them."""
    rows = [(table, frame) for table in schema.ALL if len(frame := getattr(data, table.name))]
    return {
        table.name: base64.b64encode(store.as_parquet(frame)).decode() if table.parquet_only else store.as_rows(frame)
        for table, frame in rows
    }


def _read_rows(table: schema.Table, task_records: Sequence[TaskRecord]) -> pd.DataFrame:
    """Return the rows of a table in all records."""
    where, rows = f"table {table.name} in the records", []
    for record in task_records:
        if table.name in record.tables:
            try:
                document = budget.load_json(record.tables[table.name])
                columns, record_rows = document["columns"], list(document["rows"])
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(where, f"is not what profpipe wrote: {error}.", "Start a new run.") from None
            if columns != table.names:
                what = f"has other columns in the record of task {record.task.index} than in this version"
                raise ConfigError(f"table {table.name}", f"{what}: another profpipe wrote it.", "Start a new run.")
            rows += record_rows
    return store.from_rows(rows, table, where) if rows else schema.empty(table)


def _read_parquet(table: schema.Table, task_records: Sequence[TaskRecord]) -> pd.DataFrame:
    contents = (base64.b64decode(record.tables[table.name]) for record in task_records if table.name in record.tables)
    parts = [pd.read_parquet(io.BytesIO(content)) for content in contents]
    return schema.frame(table, pd.concat(parts, ignore_index=True)) if parts else schema.empty(table)


# --- the manifest ----------------------------------------------------------------------------------------------------


def _merge(begun: Manifest, task_records: Sequence[TaskRecord], **joined: Any) -> Manifest:
    """Return the manifest of the run with what is ``joined`` and the jobs, files and nodes of the records."""
    for name in _JOINED:
        joined[name] = tuple(entry for record in task_records for entry in getattr(record.manifest, name))
    expects: dict[str, Mapping[str, str | None]] = {}
    nodes: dict[str, NodeEntry] = {}
    for record in task_records:
        nodes.update(record.manifest.nodes)
        for workload, families in record.manifest.expects.items():
            expects[workload] = {**expects.get(workload, {}), **families}
    if begun.ab is not None:
        joined["ab"] = _join_pairs(begun.ab, [record.manifest.ab for record in task_records if record.manifest.ab])
    if not nodes:
        return replace(begun, **joined)
    machine = _machine_of(list(nodes.values()))
    joined["jobs"] = tuple(_add_peaks(entry, machine, nodes) for entry in joined["jobs"])
    first = next(iter(nodes.values()))
    tools = _tools_of(list(nodes.values()))
    return replace(begun, **joined, expects=expects, nodes=nodes, machine=machine, packages=first.packages, tools=tools)


def _join_pairs(begun: PairsEntry, entries: Sequence[PairsEntry]) -> PairsEntry:
    """Return the settings with the captures that the nodes chose, and with what each task found out about its sides."""
    if not entries:
        return begun
    chosen = next((entry for entry in entries if entry.captures), entries[0])
    modules = {**begun.a.foreign_modules}, {**begun.b.foreign_modules}
    spreads: dict[str, dict[str, float]] = {}
    for entry in entries:
        for workload, of_cases in entry.spreads.items():
            spreads.setdefault(workload, {}).update(of_cases)
        for of_side, side in zip(modules, (entry.a, entry.b), strict=True):
            of_side.update(side.foreign_modules)
    a, b = (replace(side, foreign_modules=m) for side, m in zip((begun.a, begun.b), modules, strict=True))
    choice = {name: getattr(chosen, name) for name in ("captures", "profiler", "no_captures")}
    return replace(begun, **choice, spreads=spreads, a=a, b=b)


def _machine_of(nodes: Sequence[NodeEntry]) -> Machine:
    """Return the machine of the first node, with the GPUs of other names that other nodes have."""
    first = nodes[0].machine
    gpus = list(first.gpus or ())
    for gpu in (gpu for node in nodes for gpu in node.machine.gpus or ()):
        if gpu.name not in {listed.name for listed in gpus}:
            gpus.append(gpu)
    return first if first.gpus is None and not gpus else replace(first, gpus=tuple(gpus))


def _add_peaks(entry: JobEntry, machine: Machine, nodes: Mapping[str, NodeEntry]) -> JobEntry:
    """Return the job with the peak rates of its node, if they differ from those of the run's machine."""
    node = nodes.get(entry.node or "")
    if entry.peaks is not None or node is None or node.machine.peaks == machine.peaks:
        return entry
    return replace(entry, peaks=node.machine.peaks)


def _tools_of(nodes: Iterable[NodeEntry]) -> dict[str, ToolEntry]:
    """Return each profiler as the first node has it that is not without it."""
    tools: dict[str, ToolEntry] = {}
    for node in nodes:
        for name, tool in node.tools.items():
            if name not in tools or (tools[name].missing and not tool.missing):
                tools[name] = tool
    return tools


def _remove_partial_folders(folder: Path) -> None:
    """Remove the files of jobs that killed tasks had copied in part. A task that is not done may still be copying."""
    for place in (folder / "raw").glob("*/task-*"):
        if place.resolve().is_relative_to(folder.resolve()):
            atomic.remove_partial_folders(place)


def _private_files(folder: Path, task_records: Iterable[TaskRecord]) -> tuple[str, ...]:
    private_names = {name for record in task_records for name in record.manifest.private_files or ()}
    named = (str(name) for name in (REQUEST_FILE, submit.SCRIPT) if (folder / name).is_file())
    return tuple(sorted({*private_names, *named}))


# --- the tasks -------------------------------------------------------------------------------------------------------


def describe_tasks(
    folder: Path,
    plan: Sequence[Task],
    records_by_index: Mapping[int, TaskRecord],
    seen: Mapping[int, Task] | None,
    before: Sequence[Task] = (),
) -> list[Task]:
    """Return what became of each task, by its record, by Slurm, and else by ``before``, what an earlier command saw.

    Slurm forgets tasks where it has no accounting.
    """
    submissions = queue.read_submissions(folder)
    # The last attempt counts.
    starts = {start.index: start for start in records.read_starts(folder)}
    # A task that was in the queue may still be, unless Slurm says otherwise.
    earlier_tasks = {task.index: task for task in before if seen is None or not task.state.is_queued}
    described = []
    for task in plan:
        record, start = records_by_index.get(task.index), starts.get(task.index)
        job = queue.name_of(submissions, task.index)
        recorded, said = record.task if record else None, (seen or {}).get(task.index)
        described.append(_describe(task, recorded, start, job, said, earlier_tasks.get(task.index)))
    return described


def _describe(
    task: Task, record: Task | None, start: Task | None, job: str, seen: Task | None, before: Task | None
) -> Task:
    """Return a task by what is known of its last attempt. ``job`` is Slurm's name of the task, empty for none."""
    if record and record.state is TaskState.DONE:
        return record
    task = replace(task, attempt=start.attempt, node=start.node, job=start.job) if start else task
    if not job:
        return replace(task, state=TaskState.NOT_SUBMITTED)
    is_latest = bool(record and start and (record.attempt, start.job) == (start.attempt, job))
    knows_why = record and is_latest and record.state not in (TaskState.RUNNING, TaskState.STOPPED)
    # The first of these counts.
    sources = (
        seen if seen and seen.state.is_queued else None,
        record if knows_why else None,
        seen if seen and seen.state is not TaskState.UNKNOWN else None,
        record if record and is_latest and record.state is TaskState.STOPPED else None,
        before if before and before.job == job else None,
    )
    last = next(filter(None, sources), Task())
    is_waiting = last.state.is_queued and last.state is not TaskState.RUNNING
    node = "" if is_waiting else last.node or task.node
    return replace(task, state=last.state, details=last.details, node=node, job=job)
