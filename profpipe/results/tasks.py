"""The tasks of a run on a cluster: which cases each has, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TaskState(str, Enum):
    """What became of a task of an array. ``run.json`` stores the value."""

    #: The record says that every job of the task has ended.
    DONE = "done"
    PENDING = "pending"
    RUNNING = "running"
    #: The task was requeued and waits again.
    REQUEUED = "requeued"
    NODE_FAILED = "node_failed"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    #: SIGKILL ended the task.
    KILLED = "killed"
    #: A signal stopped the task, and Slurm does not say why.
    STOPPED = "stopped"
    #: profpipe itself ended with an error.
    FAILED = "failed"
    #: No array has the task.
    NOT_SUBMITTED = "not_submitted"
    #: It has no record, and Slurm does not know it any more.
    UNKNOWN = "unknown"

    # From Python 3.12 on the text of a mixed-in member would be `TaskState.DONE`.
    __str__ = str.__str__

    @property
    def is_queued(self) -> bool:
        """Return True if Slurm still works on the task, so that it must not be submitted again."""
        return self in (TaskState.PENDING, TaskState.RUNNING, TaskState.REQUEUED)


@dataclass(frozen=True)
class Task:
    """A task of the array, from its plan to its end: cases of a workload, and the profilers that run them.

    ``index`` is its place in the plan. ``reference`` is a case that each task of the workload times under plain, where
    cases that are compared with each other may run on different nodes: it shows how far the nodes lie apart. It is
    empty for no such case, and for the task that has the case itself.

    ``attempt`` is the last one that began, 0 for none. ``details`` is text of Slurm or of an error: why the task waits,
    how it ended. ``job`` is Slurm's name for it, ``4711_7``.
    """

    index: int = -1
    workload: str = ""
    cases: tuple[str, ...] = ()
    profilers: tuple[str, ...] = ()
    reference: str = ""
    state: TaskState = TaskState.UNKNOWN
    details: str = ""
    attempt: int = 0
    node: str = ""
    job: str = ""

    @property
    def label(self) -> str:
        """The name of the folder with the jobs of the attempt, below that of their workload: ``task-0007-2``."""
        return f"task-{self.index:04d}{f'-{self.attempt}' if self.attempt > 1 else ''}"
