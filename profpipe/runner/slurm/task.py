"""Carry out one index of the plan on a node, by the sessions of a run on one machine.

The session works in a folder of the node. Whenever a job has ended, its files are copied to the run's folder under a
temporary name and renamed, and then the record of the task is.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from profpipe import errors
from profpipe.config.slurm import Slurm
from profpipe.errors import ConfigError, Interrupted, ProfpipeError, explain_disk_full
from profpipe.ingest import job_tables
from profpipe.job import ProgressListener
from profpipe.measure import node
from profpipe.results import manifest, noise
from profpipe.results.manifest import Manifest, NodeEntry, PairsEntry
from profpipe.results.pair_blocks import Block
from profpipe.results.schema import Tables
from profpipe.results.tasks import TaskState
from profpipe.runner import fingerprint, pair_captures, session, sides
from profpipe.runner.pair_session import ChooseAgain, Key
from profpipe.runner.request import Machine, RunRequest
from profpipe.runner.slurm import collect, queue, records
from profpipe.runner.slurm.node_sessions import NodeSession, PairTaskSession, TaskSession, is_done
from profpipe.runner.slurm.plan import FOLDER, ClusterPlan, Task
from profpipe.runner.slurm.queue import SlurmSilent
from profpipe.runner.slurm.records import Record, Start

#: The folder of one of several processes of a case.
_OF_PROCESS = re.compile(r"/process-\d+$")


def run(folder: Path, index: int, listener: ProgressListener, choose_again: ChooseAgain) -> TaskState:
    """Carry out the task ``index`` of the run in ``folder``; return what became of it.

    A task whose record is complete is not carried out again. ``choose_again`` is that of the session of an `ab` run.
    """
    plan = ClusterPlan.load(folder)
    if not 0 <= index < len(plan.tasks):
        raise ConfigError(str(index), f"is no index of the plan, which has {len(plan.tasks)} tasks.")
    known = records.read_record(folder, index)
    if known and known.is_complete:
        listener.message(f"Task {index} is done already, by attempt {known.attempt} on {known.node}.")
        return TaskState.DONE
    request = RunRequest.load(folder)
    began = manifest.utc_now().isoformat(timespec="seconds")
    # Slurm's name of this task: ``4711_7``.
    words = (os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    start = records.begin(folder, index, node.name(), "_".join(filter(None, words)), began)
    try:
        has_nodes = any(own.nodes > 1 for own in request.pipeline.workloads.values())
        # The processes on the other nodes write into the folder too.
        shared = folder / FOLDER if has_nodes else None
        with _scratch(request.pipeline.slurm or Slurm(), shared) as scratch:
            place, task = scratch / folder.name, plan.tasks[index]
            request = replace(request, workloads=(task.workload,), profilers=task.profilers, reuse=False)
            if (pairs := Manifest.load(folder).ab) is None:
                opened: NodeSession = _open(folder, task, start, request, place, known)
            else:
                opened = _open_pairs(folder, task, start, request, place, pairs, choose_again)
            return _carry_out(opened, listener)
    except Interrupted:
        raise
    except (ProfpipeError, OSError) as error:
        _save_failure(folder, start, known, error)
        raise


def _save_failure(folder: Path, start: Start, known: Record | None, error: Exception) -> None:
    """Write why the attempt failed into its record, which keeps what is measured."""
    # Without the path of the run's folder: the record may be published.
    text = errors.describe_os_error(error) if isinstance(error, OSError) else str(error)
    details = text.replace(f"{folder}/", "")
    path = folder / records.RECORDS
    try:
        last = records.read_record(folder, start.index) or known or Record(start.index, start.attempt)
        replace(
            last, attempt=start.attempt, node=start.node, job=start.job, state=TaskState.FAILED, details=details
        ).save(folder)
    except OSError as second:
        print(f"profpipe: {path}: {second.strerror or second}. The record was not written.", file=sys.stderr)


@contextmanager
def _scratch(settings: Slurm, shared: Path | None) -> Iterator[Path]:
    """Yield a new folder of the node, or below the folder that all nodes share. It is removed at the end."""
    given = os.path.expandvars(settings.scratch) if settings.scratch else os.environ.get("SLURM_TMPDIR")
    given = str(shared) if shared else given
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="profpipe-", dir=given or None, ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def _open(
    folder: Path, task: Task, start: Start, request: RunRequest, place: Path, known: Record | None
) -> TaskSession:
    """Return the session of an attempt in the folder ``place``, with the ended jobs of an earlier attempt."""
    machine = Machine.examine(request)
    data, begun = _continue(known, _begin(request, machine, start))
    opened = TaskSession(request, place, begun, data, task=task, shared=folder, start=start)
    opened.machine = machine
    (place / "raw").mkdir(parents=True)
    # The files of earlier attempts are readable where this session looks for them.
    for name in dict.fromkeys("/".join(entry.folder.split("/")[:3]) for entry in begun.jobs):
        link = place / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / name, target_is_directory=True)
    fingerprint.check_sources(folder, opened.plan(), lambda: records.first_start_s(folder))
    return opened


def _open_pairs(
    folder: Path,
    task: Task,
    start: Start,
    request: RunRequest,
    place: Path,
    settings: PairsEntry,
    choose_again: ChooseAgain,
) -> PairTaskSession:
    """Return the session of an attempt at the pairs of a task. The node decides under which profiler captures run."""
    machine, settings = pair_captures.prepare(request, settings)
    begun = _begin(request, machine, start)
    begun = replace(begun, ab=replace(settings, spreads=noise.read_floors(request.out, begun)))
    a, b = (replace(side, request=replace(side.request, workloads=(task.workload,))) for side in sides.load(folder))
    (place / "raw").mkdir(parents=True)

    def choose_later(data: Tables, run: Manifest, block: Block) -> Collection[Key]:
        """Choose no length: the tasks of a run must number their pairs alike."""
        return () if block is Block.FIRST else choose_again(data, run, block)

    opened = PairTaskSession(
        request, place, begun, Tables(), (a, b), choose_later, task=task, shared=folder, start=start
    )
    opened.machine = machine
    return opened


def _begin(request: RunRequest, machine: Machine, start: Start) -> Manifest:
    """Return the manifest of an attempt, which names its node."""
    begun = session.begin_run(request, machine, code=None)
    return replace(begun, nodes={start.node: NodeEntry(begun.machine, begun.packages, begun.tools)})


def _continue(known: Record | None, begun: Manifest) -> tuple[Tables, Manifest]:
    """Return the tables and the manifest of an earlier attempt without the jobs that it did not end.

    A job runs on one node as a whole: its cases are compared with each other.
    """
    if known is None:
        return Tables(), begun
    data, before = collect.tables_of([known]), known.manifest
    for entry in before.jobs:
        if not is_done(entry):
            before = before.without_job(entry.folder)
            # The rows of a case with several processes are those of all of them. The next try replaces its own.
            if not _OF_PROCESS.search(entry.folder):
                data = job_tables.drop_attempt(data, entry.workload, entry.profiler, entry.folder, entry.cases)
    return data, replace(
        begun,
        nodes={**before.nodes, **begun.nodes},
        **{
            name: getattr(before, name)
            for name in ("jobs", "files", "refused", "expects", "incidents", "private_files")
        },
    )


def _carry_out(task: NodeSession, listener: ProgressListener) -> TaskState:
    try:
        task.carry_out(listener)
    except Interrupted:
        # Slurm kills the task KillWait seconds after its signal, and scontrol may answer later than that.
        task.save_record(TaskState.STOPPED)
        task.save_record(_why_stopped(task.start))
        raise
    if task.disk_full_cases:
        task.save_record(TaskState.FAILED, explain_disk_full(" ".join(task.data.cases["reason"]))[0])
        return TaskState.FAILED
    task.save_record(TaskState.DONE)
    return TaskState.DONE


def _why_stopped(start: Start) -> TaskState:
    """Return why Slurm stopped this task, where it says so."""
    job, _, number = start.job.partition("_")
    if not (job.isdigit() and number.isdigit()):
        return TaskState.STOPPED
    try:
        seen = queue.look_up([queue.Submission(int(job), (int(number),))]).get(int(number))
    except SlurmSilent:  # scontrol is missing in a container; `collect` asks again
        return TaskState.STOPPED
    if seen is None or seen.state.is_queued:
        # While Slurm ends a task, its state is COMPLETING, and only the reason tells more.
        return _REASONS.get(seen.details if seen else "", TaskState.STOPPED)
    return seen.state


_REASONS: Final[Mapping[str, TaskState]] = {
    "TimeLimit": TaskState.TIME_LIMIT,
    "NodeDown": TaskState.NODE_FAILED,
    "JobLaunchFailure": TaskState.NODE_FAILED,
}
