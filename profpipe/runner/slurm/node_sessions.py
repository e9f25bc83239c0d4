"""The sessions of a task: those of a run on one machine, which copy to the run's folder what they have measured."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from profpipe.job import Case, Job, JobOutcome, ProgressListener
from profpipe.results import atomic, schema, store
from profpipe.results.manifest import GitState, JobEntry
from profpipe.results.schema import Tables
from profpipe.results.tasks import TaskState
from profpipe.runner import fingerprint, session
from profpipe.runner.pair_session import PairSession
from profpipe.runner.request import Machine
from profpipe.runner.session import Session
from profpipe.runner.sides import Side
from profpipe.runner.slurm import records
from profpipe.runner.slurm.plan import Task
from profpipe.runner.slurm.records import Record, Start

#: The folder of the process that times the reference.
_REFERENCE: Final = "reference"


def label(index: int, attempt: int) -> str:
    """Return the name of the folder with the jobs of an attempt, below that of their workload: ``task-0007-2``."""
    return f"task-{index:04d}{f'-{attempt}' if attempt > 1 else ''}"


def is_done(entry: JobEntry) -> bool:
    return not entry.interrupted and not session.disk_full_cases(entry)


def jobs_of_sides(both: tuple[Side, Side], machine: Machine, folder: Path) -> Iterator[Job]:
    """Yield the jobs of the sides whose code is not that of a commit, under the name of the side and the workload."""
    for side in both:
        if side.repository is None:
            for job in session.plan_jobs(side.request, machine, folder):
                yield replace(job, workload=f"{side.label} {job.workload}")


@dataclass(kw_only=True)
class NodeSession(Session):
    """The session of one attempt at a task. ``shared`` is the run's folder, ``folder`` that of the node."""

    task: Task
    shared: Path
    start: Start

    @property
    def _label(self) -> str:
        return label(self.task.index, self.start.attempt)

    def _store(self, outcome: JobOutcome, key: str) -> None:
        super()._store(outcome, "")
        folder = self._name(outcome.job.folder)
        self.manifest = replace(
            self.manifest,
            jobs=tuple(
                replace(entry, node=self.start.node, argv=self._published(entry.argv))
                if entry.folder == folder
                else entry
                for entry in self.manifest.jobs
            ),
        )
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
        except shutil.Error as error:
            # It lists every file that could not be copied, each with its reason as text.
            numbers = re.findall(r"\[Errno (\d+)\]", str(error))
            raise OSError(int(numbers[0]), os.strerror(int(numbers[0])), str(target)) if numbers else error from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def save_record(self, state: TaskState, details: str = "") -> None:
        """Write the record of this attempt, which holds what earlier ones have measured too."""
        known = replace(self.manifest, pipeline=None, command=(), planned=(), git=GitState())
        rows = [(table, frame) for table in schema.ALL if len(frame := getattr(self.data, table.name))]
        texts = {table.name: store.as_csv(frame).decode() for table, frame in rows if not table.is_picture}
        pictures = {t.name: records.as_text(store.as_parquet(frame)) for t, frame in rows if t.is_picture}
        start = self.start
        Record(start.index, start.attempt, start.node, start.job, state, details, known, texts, pictures).save(
            self.shared
        )


@dataclass(kw_only=True)
class TaskSession(NodeSession):
    """The session of an attempt that goes on where an earlier one has ended jobs."""

    def plan(self) -> list[Job]:
        """Return the jobs of the task. Those that an earlier attempt ended have its folder."""
        planned = session.plan_jobs(self.request, self.machine, self.folder, self.task.cases)
        workload = self.folder / "raw" / self.task.workload
        own = workload / self._label
        return self._with_ended([replace(job, folder=own / job.folder.relative_to(workload)) for job in planned])

    def _with_ended(self, own: Sequence[Job]) -> list[Job]:
        """Return jobs of this attempt. Those that an earlier attempt ended have its folder."""
        ended = {
            "/".join(entry.folder.split("/")[3:]): self.folder / entry.folder
            for entry in self.manifest.jobs
            if entry.workload == self.task.workload and is_done(entry)
        }
        names = ["/".join(self._name(job.folder).split("/")[3:]) for job in own]
        return [replace(job, folder=ended.get(name, job.folder)) for job, name in zip(own, names, strict=True)]

    def _run_jobs(self, planned: Sequence[Job], listener: ProgressListener) -> None:
        # The plan lacks the jobs of guided ncu, whose folders depend on the captures.
        super()._run_jobs(self._with_ended(planned), listener)

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
        if outcome.job.folder.name != _REFERENCE:
            super()._store(outcome, key)
            return
        # The case has its job in another task.
        Session._store(self, outcome, "")
        self.manifest = self.manifest.without_job(self._name(outcome.job.folder))


@dataclass(kw_only=True)
class PairTaskSession(NodeSession, PairSession):
    """The session of an attempt at the pairs of a case, which begins anew: both processes of a pair run on one node."""

    @cached_property
    def _joined(self) -> dict[str, list[tuple[str, Case, Case]]]:
        every = super()._joined
        return {name: [own for own in cases if own[0] in self.task.cases] for name, cases in every.items()}

    def _jobs_of(self, side: Side, profiler: str) -> list[Job]:
        place = 1 if side.label == "A" else 2
        wanted = {own[place].id for cases in self._joined.values() for own in cases}  # type: ignore[union-attr]
        return [job for job in super()._jobs_of(side, profiler) if job.cases[0].id in wanted]

    def _folder_of_pair(self, job: Job, pair: int) -> Path:
        workload = self.folder / "raw" / job.workload
        return workload / self._label / super()._folder_of_pair(job, pair).relative_to(workload)

    def _record_sources(self) -> None:
        """Check instead that the code is that with which the run was submitted."""
        jobs = list(jobs_of_sides(self.sides, self.machine, self.folder))
        fingerprint.check_sources(self.shared, jobs, lambda: records.first_start_s(self.shared))
