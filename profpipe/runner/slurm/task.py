"""Carry out one index of the plan on a node, by the same session as a run on one machine.

The session works in a folder of the node. Whenever a job has ended, its files are copied to the run's folder under a
temporary name and renamed, and then the record of the task is.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from profpipe import errors
from profpipe.config.slurm import Slurm
from profpipe.errors import ConfigError, Interrupted, ProfpipeError
from profpipe.ingest import reader
from profpipe.job import Job, JobOutcome, ProgressListener
from profpipe.measure import machine as machine_info
from profpipe.results import atomic, manifest, schema, store
from profpipe.results.manifest import GitState, JobEntry, Manifest, NodeEntry
from profpipe.results.schema import Tables
from profpipe.results.tasks import TaskState
from profpipe.runner import fingerprint, session
from profpipe.runner.request import Machine, RunRequest
from profpipe.runner.session import Session
from profpipe.runner.slurm import collect, queue, records
from profpipe.runner.slurm.plan import ClusterPlan, Task
from profpipe.runner.slurm.records import Record, Start

#: The folder of a run that the jobs of an attempt are in, below that of their workload: ``task-0007``, ``task-0007-2``.
_PREFIX = "task-"
#: The folder of the process that times the reference.
_REFERENCE: Final = "reference"
#: The folder of one of several processes of a case.
_OF_PROCESS = re.compile(r"/process-\d+$")


def run(folder: Path, index: int, listener: ProgressListener) -> TaskState:
    """Carry out the task ``index`` of the run in ``folder``; return what became of it.

    A task whose record is complete is not carried out again.
    """
    plan = ClusterPlan.load(folder)
    if not 0 <= index < len(plan.tasks):
        raise ConfigError(str(index), f"is no index of the plan, which has {len(plan.tasks)} tasks.")
    known = records.read_record(folder, index)
    if known and known.is_complete:
        listener.message(f"Task {index} is done already, by attempt {known.attempt} on {known.node}.")
        return TaskState.DONE
    request = RunRequest.load(folder)
    node = os.environ.get("SLURMD_NODENAME") or platform.node()
    began = manifest.utc_now().isoformat(timespec="seconds")
    start = records.begin(folder, index, node, _own_job(), began)
    try:
        with _scratch(request.pipeline.slurm or Slurm()) as scratch:
            task = _open(folder, plan.tasks[index], start, request, scratch / folder.name, known)
            return _carry_out(task, listener)
    except Interrupted:
        raise
    except (ProfpipeError, OSError) as error:
        _save_failure(folder, start, known, error)
        raise


def _save_failure(folder: Path, start: Start, known: Record | None, error: Exception) -> None:
    """Write why the attempt failed into its record, which keeps what is measured."""
    details = errors.describe_os_error(error) if isinstance(error, OSError) else str(error)
    path = folder / records.RECORDS
    try:
        last = records.read_record(folder, start.index) or known or Record(start.index, start.attempt)
        replace(
            last, attempt=start.attempt, node=start.node, job=start.job, state=TaskState.FAILED, details=details
        ).save(folder)
    except OSError as second:
        print(f"profpipe: {path}: {second.strerror or second}. The record was not written.", file=sys.stderr)


def _own_job() -> str:
    """Return Slurm's name of this task: ``4711_7``."""
    words = (os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    return "_".join(filter(None, words))


@contextmanager
def _scratch(settings: Slurm) -> Iterator[Path]:
    """Yield a new folder of the node, which is removed at the end."""
    given = os.path.expandvars(settings.scratch) if settings.scratch else os.environ.get("SLURM_TMPDIR")
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="profpipe-", dir=given or None, ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def _open(
    folder: Path, task: Task, start: Start, request: RunRequest, place: Path, known: Record | None
) -> TaskSession:
    """Return the session of an attempt in the folder ``place``, with the ended jobs of an earlier attempt."""
    request = replace(request, workloads=(task.workload,), profilers=task.profilers, reuse=False)
    machine = Machine.examine(request)
    (place / "raw").mkdir(parents=True)
    begun = manifest.begin_run(
        request.pipeline,
        now=manifest.utc_now(),
        machine=machine.described,
        packages=machine_info.packages(),
        tools=machine.tools,
        git=GitState(),
        command=(),
        secrets=request.secrets,
    )
    own = NodeEntry(begun.machine, begun.packages, begun.tools)
    data, begun = _continue(known, replace(begun, nodes={start.node: own}))
    opened = TaskSession(request, place, begun, data, task, folder, start)
    opened.machine = machine
    _link_earlier(folder, place, begun)
    fingerprint.check_sources(folder, opened.plan())
    return opened


def _continue(known: Record | None, begun: Manifest) -> tuple[Tables, Manifest]:
    """Return the tables and the manifest of an earlier attempt without the jobs that it did not end.

    A job runs on one node as a whole: its cases are compared with each other.
    """
    if known is None:
        return Tables(), begun
    data, before = collect.tables_of([known]), known.manifest
    for entry in before.jobs:
        if not _is_done(entry):
            before = before.without_job(entry.folder)
            # The rows of a case with several processes are those of all of them. The next try replaces its own.
            if not _OF_PROCESS.search(entry.folder):
                data = reader.drop_attempt(data, entry.workload, entry.profiler, entry.folder, entry.cases)
    return data, replace(
        begun,
        nodes={**before.nodes, **begun.nodes},
        **{
            name: getattr(before, name)
            for name in ("jobs", "files", "refused", "expects", "incidents", "private_files")
        },
    )


def _is_done(entry: JobEntry) -> bool:
    return not entry.interrupted and not session.disk_full_cases(entry)


def _link_earlier(folder: Path, place: Path, begun: Manifest) -> None:
    """Make the files of earlier attempts readable where this session looks for them."""
    for name in dict.fromkeys("/".join(entry.folder.split("/")[:3]) for entry in begun.jobs):
        link = place / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / name, target_is_directory=True)


def _carry_out(task: TaskSession, listener: ProgressListener) -> TaskState:
    try:
        task.carry_out(listener)
    except Interrupted:
        task.save_record(_why_stopped(task.start))
        raise
    if task.disk_full_cases:
        task.save_record(TaskState.FAILED, "The disk was full.")
        return TaskState.FAILED
    task.save_record(TaskState.DONE)
    return TaskState.DONE


def _why_stopped(start: Start) -> TaskState:
    """Return why Slurm stopped this task, where it says so."""
    job, _, number = start.job.partition("_")
    if not (job.isdigit() and number.isdigit()):
        return TaskState.STOPPED
    seen = queue.look_up([queue.Submission(int(job), (int(number),))]).get(int(number))
    if seen is None or seen.state.is_queued:
        # While Slurm ends a task, its state is COMPLETING, and only the reason tells more.
        return _REASONS.get(seen.details if seen else "", TaskState.STOPPED)
    return seen.state


_REASONS: Final[Mapping[str, TaskState]] = {
    "TimeLimit": TaskState.TIME_LIMIT,
    "NodeDown": TaskState.NODE_FAILED,
    "JobLaunchFailure": TaskState.NODE_FAILED,
}


@dataclass
class TaskSession(Session):
    """The session of one attempt at a task. ``shared`` is the run's folder, ``folder`` that of the node."""

    task: Task
    shared: Path
    start: Start

    def plan(self) -> list[Job]:
        """Return the jobs of the task. Those that an earlier attempt ended have its folder."""
        planned = session.plan_jobs(self.request, self.machine, self.folder, self.task.cases)
        raw = self.folder / "raw" / self.task.workload
        ended = {
            "/".join(entry.folder.split("/")[3:]): self.folder / entry.folder
            for entry in self.manifest.jobs
            if entry.workload == self.task.workload and _is_done(entry)
        }
        names = [str(job.folder.relative_to(raw)) for job in planned]
        return [
            replace(job, folder=ended.get(name, raw / self._label / name))
            for job, name in zip(planned, names, strict=True)
        ]

    @property
    def _label(self) -> str:
        again = f"-{self.start.attempt}" if self.start.attempt > 1 else ""
        return f"{_PREFIX}{self.task.index:04d}{again}"

    def carry_out(self, listener: ProgressListener) -> None:
        """Run every job that is not done, and time the reference on this node."""
        super().carry_out(listener)
        self._run_jobs(self._reference_jobs(), listener)

    def _reference_jobs(self) -> list[Job]:
        """Return one process of the reference; none where the task has no reference, or has timed it here already."""
        timed = self.data.metrics["subject"].isin([self._node_subject])
        if not self.task.reference or timed.any():
            return []
        request = replace(self.request, profilers=("plain",), captures=None)
        planned = session.plan_jobs(request, self.machine, self.folder, [self.task.reference])
        folder = self.folder / "raw" / self.task.workload / self._label / _REFERENCE
        return [replace(job, folder=folder, repeat=1, captures=1, interleaved=()) for job in planned[:1]]

    @property
    def _node_subject(self) -> str:
        return f"{schema.NODE_PREFIX}{self.start.node}"

    def _merged(self, job: Job, fresh: Tables) -> Tables:
        """Return the stored rows with those of a job; of the reference with its time on this node only."""
        if job.folder.name != _REFERENCE:
            return super()._merged(job, fresh)
        is_time = fresh.metrics["metric"].isin(schema.TIMES) & (fresh.metrics["subject"] == "")
        times = Tables(metrics=fresh.metrics[is_time].assign(subject=self._node_subject))
        return replace(self.data, metrics=schema.concat([self.data, times]).metrics)

    def _store(self, outcome: JobOutcome, key: str) -> None:
        super()._store(outcome, "")
        folder = self._name(outcome.job.folder)
        if outcome.job.folder.name == _REFERENCE:
            # The case has its job in another task.
            self.manifest = self.manifest.without_job(folder)
            return
        self.manifest = replace(self.manifest, jobs=tuple(
            replace(entry, node=self.start.node, argv=self._published(entry.argv)) if entry.folder == folder else entry
            for entry in self.manifest.jobs
        ))  # fmt: skip
        self._publish(outcome.job.folder)
        self.save_record(TaskState.RUNNING)

    def _published(self, commands: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        """Return commands with the paths that their files have in the run's folder."""
        shown = os.path.relpath(self.shared, self.request.pipeline_dir)
        place = str(self.shared) if shown.startswith("..") else shown
        return tuple(tuple(word.replace(str(self.folder), place) for word in argv) for argv in commands)

    def _publish(self, folder: Path) -> None:
        """Copy the files of a job to the run's folder, where they appear as a whole."""
        if not folder.is_dir():
            return
        target = self.shared / folder.relative_to(self.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(atomic.temporary_name(target.name))
        try:
            shutil.copytree(folder, temporary, symlinks=True)
            # A job of this attempt that runs again: guided ncu finds more kernels.
            if target.exists():
                shutil.rmtree(target)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def save_record(self, state: TaskState, details: str = "") -> None:
        """Write the record of this attempt, which holds what earlier ones have measured too."""
        known = replace(self.manifest, pipeline={}, command=(), planned=(), git=GitState())
        texts = {
            table.name: store.as_csv(frame).decode()
            for table in schema.ALL
            if len(frame := getattr(self.data, table.name)) and not table.is_picture
        }
        pictures = {
            table.name: records.as_text(store.as_parquet(frame))
            for table in schema.ALL
            if len(frame := getattr(self.data, table.name)) and table.is_picture
        }
        start = self.start
        Record(start.index, start.attempt, start.node, start.job, state, details, known, texts, pictures).save(
            self.shared
        )
