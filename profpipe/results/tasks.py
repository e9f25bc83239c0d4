"""The tasks of a run on a cluster, as ``run.json`` keeps them: which cases each has, and what became of it."""

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
class TaskEntry:
    """A task of the array: ``index`` is its index in the plan, ``attempt`` the last one that began, 0 for none.

    ``details`` is text of Slurm or of an error: why the task waits, how it ended. ``job`` is Slurm's name for it,
    ``4711_7``.
    """

    index: int
    workload: str = ""
    cases: tuple[str, ...] = ()
    profilers: tuple[str, ...] = ()
    state: TaskState = TaskState.UNKNOWN
    details: str = ""
    attempt: int = 0
    node: str = ""
    job: str = ""
