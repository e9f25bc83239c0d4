"""Carry out one index of the plan on a node, as a run of that part of the plan.

The run works in a folder of the node. Whenever a job has ended, its files are copied to the folder of the whole run
under a temporary name and renamed, and then the record of the task is.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from profpipe import errors
from profpipe.config.settings import Slurm
from profpipe.errors import ConfigError, Interrupted, ProfpipeError, explain_disk_full
from profpipe.ingest import job_tables
from profpipe.job import Job, ProgressListener
from profpipe.measure import node
from profpipe.results import atomic
from profpipe.results.manifest import GitState, Manifest, NodeEntry
from profpipe.results.schema import Tables
from profpipe.results.tasks import Task, TaskState
from profpipe.runner import fingerprint, session, sides
from profpipe.runner.pairs import ChooseAgain
from profpipe.runner.request import ExaminedMachine, RunRequest
from profpipe.runner.session import Session
from profpipe.runner.slurm import collect, queue, records, submit
from profpipe.runner.slurm.queue import SlurmSilent
from profpipe.runner.slurm.records import TaskRecord

#: The folder of one of several processes of a case.
_OF_PROCESS = re.compile(r"/process-\d+$")


def run(folder: Path, index: int, listener: ProgressListener, choose_again: ChooseAgain) -> TaskState:
    """Carry out the task ``index`` of the run in ``folder``; return what became of it.

    A task whose record is complete is not carried out again. ``choose_again`` is that of the session of an `ab` run.
    """
    plan = records.load_plan(folder)
    if not 0 <= index < len(plan):
        raise ConfigError(str(index), f"is no index of the plan, which has {len(plan)} tasks.")
    earlier = records.read_records(folder, index).get(index)
    if earlier and earlier.task.state is TaskState.DONE:
        listener.message(f"Task {index} is done already, by attempt {earlier.task.attempt} on {earlier.task.node}.")
        return TaskState.DONE
    request = RunRequest.load(folder)
    # Slurm's name of this task: ``4711_7``.
    words = (os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    task = records.begin(folder, plan[index], node.name(), "_".join(filter(None, words)))
    try:
        has_nodes = any(workload.nodes > 1 for workload in request.pipeline.workloads.values())
        # The processes on the other nodes write into the folder too.
        shared = folder / records.FOLDER if has_nodes else None
        with _scratch(request.pipeline.slurm or Slurm(), shared) as scratch:
            request = replace(request, workloads=(task.workload,), profilers=task.profilers, reuse=False)
            opened = _open(folder, task, request, scratch / folder.name, earlier)
            return _carry_out(opened, folder, listener, choose_again)
    except Interrupted:
        raise
    except (ProfpipeError, OSError) as error:
        _save_failure(folder, task, earlier, error)
        raise


def _save_failure(folder: Path, task: Task, earlier: TaskRecord | None, error: Exception) -> None:
    """Write why the attempt failed into its record, which keeps what is measured."""
    # Without the path of the run's folder: the record may be published.
    text = errors.describe_os_error(error) if isinstance(error, OSError) else str(error)
    failed = replace(task, state=TaskState.FAILED, details=text.replace(f"{folder}/", ""))
    path = folder / records.RECORDS
    try:
        last = records.read_records(folder, task.index).get(task.index) or earlier or TaskRecord(Manifest())
        TaskRecord(replace(last.manifest, tasks=(failed,)), last.tables).save(folder)
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


def _open(folder: Path, task: Task, request: RunRequest, place: Path, earlier: TaskRecord | None) -> Session:
    """Return the session of an attempt in the folder ``place``, with the ended jobs of an earlier attempt.

    An attempt at pairs begins anew: both processes of a pair run on one node, which decides the profiler of captures.
    """
    settings, both = Manifest.load(folder).ab, None
    if settings:
        machine, settings = sides.prepare(request, settings)
        a, b = (replace(side, request=replace(side.request, workloads=(task.workload,))) for side in sides.load(folder))
        both, earlier = (a, b), None
    else:
        machine = ExaminedMachine.examine(request)
    begun = session.begin_run(request, machine, settings=settings)
    data, begun = _continue(earlier, begun, task.node)
    opened = Session(request, place, begun, data, both, task)
    opened.machine = machine
    (place / "raw").mkdir(parents=True)
    # The files of earlier attempts are readable where this session looks for them.
    for name in dict.fromkeys("/".join(entry.folder.split("/")[:3]) for entry in begun.jobs):
        link = place / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / name, target_is_directory=True)
    jobs = list(submit.sources(both, machine, place)) if both else opened.plan()
    fingerprint.check_sources(folder, jobs, lambda: records.first_start_s(folder))
    return opened


def _continue(earlier: TaskRecord | None, begun: Manifest, node: str) -> tuple[Tables, Manifest]:
    """Return the tables and the manifest of an attempt on ``node`` with the jobs that an earlier one has ended.

    A job runs on one node as a whole: its cases are compared with each other.
    """
    nodes = {node: NodeEntry(begun.machine, begun.packages, begun.tools)}
    if earlier is None:
        return Tables(), replace(begun, nodes=nodes)
    data, before = collect.tables_of([earlier]), earlier.manifest
    for entry in before.jobs:
        if not session.is_done(entry):
            before = before.without_job(entry.folder)
            # The rows of a case with several processes are those of all of them. The next try replaces its own.
            if not _OF_PROCESS.search(entry.folder):
                data = job_tables.drop_folder(data, entry.folder, (entry.workload, entry.profiler, entry.cases))
    return data, replace(
        begun,
        nodes={**before.nodes, **nodes},
        **{
            name: getattr(before, name)
            for name in ("jobs", "files", "refused", "expects", "incidents", "private_files")
        },
    )


def _carry_out(opened: Session, folder: Path, listener: ProgressListener, choose_again: ChooseAgain) -> TaskState:
    def publish(job: Job) -> None:
        # The case of a reference has its job in another task.
        if not session.is_reference(job):
            _publish(job.folder, folder / job.folder.relative_to(opened.folder))
            _save(opened, folder, TaskState.RUNNING)

    opened.on_stored = publish
    try:
        opened.carry_out(listener, choose_again)
    except Interrupted:
        # Slurm kills the task KillWait seconds after its signal, and scontrol may answer later than that.
        _save(opened, folder, TaskState.STOPPED)
        assert opened.task
        _save(opened, folder, _why_stopped(opened.task))
        raise
    if opened.disk_full_cases:
        _save(opened, folder, TaskState.FAILED, explain_disk_full(" ".join(opened.data.cases["reason"]))[0])
        return TaskState.FAILED
    _save(opened, folder, TaskState.DONE)
    return TaskState.DONE


def _publish(source: Path, target: Path) -> None:
    """Copy the files of a job to the run's folder, where they appear as a whole."""
    if not source.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(atomic.temporary_name(target.name))
    try:
        shutil.copytree(source, temporary, symlinks=True)
        # A job of this attempt that runs again: guided ncu finds more kernels.
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except shutil.Error as error:
        # It lists every file that could not be copied, each with its reason as text.
        numbers = re.findall(r"\[Errno (\d+)\]", str(error))
        raise OSError(int(numbers[0]), os.strerror(int(numbers[0])), str(target)) if numbers else error from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(opened: Session, folder: Path, state: TaskState, details: str = "") -> None:
    """Write the record of this attempt, which holds what earlier ones have measured too.

    Commands have the paths that their files have in the folder of the whole run.
    """
    assert opened.task
    task, shown = opened.task, os.path.relpath(folder, opened.request.pipeline_dir)
    place = str(folder) if shown.startswith("..") else shown
    jobs = tuple(
        replace(
            entry,
            node=entry.node or task.node,
            argv=tuple(tuple(word.replace(str(opened.folder), place) for word in argv) for argv in entry.argv),
        )
        for entry in opened.manifest.jobs
    )
    tasks = (replace(task, state=state, details=details),)
    recorded = replace(opened.manifest, pipeline=None, command=(), planned=(), git=GitState(), jobs=jobs, tasks=tasks)
    TaskRecord(recorded, collect.texts_of(opened.data)).save(folder)


def _why_stopped(task: Task) -> TaskState:
    """Return why Slurm stopped this task, where it says so."""
    job, _, number = task.job.partition("_")
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
