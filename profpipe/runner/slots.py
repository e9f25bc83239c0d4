"""[Job] -> [JobOutcome]: run jobs one after the other, or side by side on slots.

A slot runs one job at a time, pinned to one GPU. On a machine without a visible GPU it is a place for one process. A
group of jobs stays on the slot that its first job was given. The run's folder holds which that is, so that a resumed
run continues there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from profpipe.errors import ConfigError, Interrupted
from profpipe.job import Case, Job, JobOutcome, Profiler, ProgressListener
from profpipe.measure import machine
from profpipe.results import atomic
from profpipe.runner import executor, process
from profpipe.runner.executor import Context
from profpipe.runner.prestart import Prestart
from profpipe.runner.process import GracePeriods, InterruptCounter
from profpipe.runner.request import readable

FILE: Final = Path("raw") / "slots.json"

_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
#: In place of the number of a slot: the job runs alone.
_ALONE: Final = -1


#: By name of a slot: the value of CUDA_VISIBLE_DEVICES for its jobs; None leaves the variable.
Gpus = Mapping[str, str | None]


@dataclass
class Slots:
    """The slots of a run, and the number of the slot that each group has."""

    gpus: Gpus
    assigned: dict[str, int] = field(default_factory=dict)
    #: The file that keeps the assignment; None where nothing is resumed.
    path: Path | None = None

    def assign(self, group: str, slot: int) -> None:
        if self.assigned.get(group) != slot:
            self.assigned[group] = slot
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                atomic.write_text(self.path, json.dumps({"slots": [*self.gpus], "groups": self.assigned}, indent=1))

    def assign_name(self, group: str, name: str) -> bool:
        """Assign the group to the slot of this name. Return False where there is none, or the group has another one."""
        names = [*self.gpus]
        if name not in names or self.assigned.get(group, names.index(name)) != names.index(name):
            return False
        self.assign(group, names.index(name))
        return True

    def place(self, job: Job, slot: int) -> Job:
        """Return the job on the slot of this number, which its group has from now on."""
        self.assign(job.group, slot)
        name, gpu = [*self.gpus.items()][slot]
        env = job.launch.env if gpu is None else {**job.launch.env, _VARIABLE: gpu}
        return replace(job, launch=replace(job.launch, slot=name, env=env))


def find(count: int, gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> Gpus:
    """Return ``count`` slots on the visible ones of ``gpus``. Raises ConfigError where fewer are visible.

    Where no GPU is visible, ``count`` is the number of processes that run side by side on the CPU.
    """
    if not machine.visible(gpus, environment):
        return {f"place {number + 1}": str(number) if not gpus else None for number in range(count)}
    entries = machine.valid_entries(gpus, environment, count)
    if len(entries) < count:
        is_are = "is" if len(entries) == 1 else "are"
        what = f"asks for {count} GPUs, and {len(entries)} of this machine {is_are} visible."
        raise ConfigError("gpus", what, f"Set it to {len(entries)}, or change CUDA_VISIBLE_DEVICES.")
    return {f"GPU {entry}": entry for entry in entries}


def count_visible(gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> int:
    """Return how many of ``gpus`` are visible. Raises ConfigError where none is."""
    if not machine.visible(gpus, environment):
        what = "asks for all GPUs, and none is visible."
        raise ConfigError("--gpus all", what, "With a number, so many processes run side by side on the CPU.")
    return len(machine.valid_entries(gpus, environment, len(gpus)))


def load(folder: Path, slots: Gpus) -> Slots:
    """Return the slots of the run in ``folder``. Raises ConfigError where the run was started on other ones."""
    path = folder / FILE
    if not path.exists():
        return Slots(slots, path=path)
    with readable(folder, FILE) as document:
        names, groups = list(document["slots"]), {str(name): int(slot) for name, slot in document["groups"].items()}
        if not all(0 <= slot < len(names) for slot in groups.values()):
            raise ValueError("a group has a slot that does not exist")
    if names != [*slots]:
        now = ", ".join(slots)
        what = (
            f"was started on {', '.join(map(str, names))}, and now has {now}: cases that are compared stay on one GPU."
        )
        raise ConfigError(str(folder), what, "Set CUDA_VISIBLE_DEVICES as it was, or start a new run.")
    return Slots(slots, groups, path)


def run(
    jobs: Sequence[Job],
    profilers: Mapping[str, Profiler],
    listener: ProgressListener,
    grace: GracePeriods = process.GRACE,
    oom_cases: Mapping[tuple[str, str], Iterable[Case]] | None = None,
    narrow: Callable[[Job], Job | None] = lambda job: job,
    numbers: tuple[int, int] | None = None,
    prestart: Prestart | None = None,
    overlaps: Callable[[Job, Job], bool] = lambda ended, job: False,
    slots: Slots | None = None,
    estimate: Callable[[Job, Sequence[Job]], tuple[Mapping[str, float], float] | None] = lambda job, waiting: None,
) -> Generator[JobOutcome, None, None]:
    """Yield the outcome of each job when it has ended. The next job starts when the caller asks for the next outcome.

    Where ``overlaps(ended, next)`` is true, the next job starts first and runs while the caller handles the outcome.
    With ``slots``, jobs of groups run side by side, and a slot whose job has ended waits for the caller. A job without
    a group runs when all jobs before it have ended, and those after it wait.

    The executor carries out each job in another thread: a caller that reads large files can be interrupted in the main
    thread only. What ends a job ends the processes below the supervisor of its command only.

    Ctrl-C, SIGTERM and SIGHUP end the running processes so that they can still write their reports. The outcomes of
    their jobs are yielded, and then errors.Interrupted is raised. When the caller closes the generator, the running
    jobs are killed.

    ``oom_cases`` are the cases that ran out of memory before, by workload and profiler. ``narrow`` returns a job with
    the cases that are still needed when its turn comes, and None where there is none. ``numbers`` are those of the
    first job and of the last one, where ``jobs`` are a part of a run. ``prestart`` starts the processes of later jobs.
    ``estimate`` returns the seconds of each part of a job and of all after it, from the jobs that wait.
    """
    first, last = numbers or (1, len(jobs))
    slots = slots or Slots({})
    with (
        InterruptCounter() as interrupts,
        process.adopt_orphans(),
        ThreadPoolExecutor(len(slots.gpus) or 1) as threads,
    ):
        earlier_oom = {key: list(cases) for key, cases in (oom_cases or {}).items()}
        context = Context(listener, grace, interrupts, earlier_oom, prestart or Prestart(), profilers)
        waiting = list(enumerate(jobs, start=first))
        #: The number and the slot of each job that runs.
        busy: dict[Future[JobOutcome], tuple[int, int]] = {}
        stopped: list[int] = []
        number, ended = first - 1, None
        try:
            while True:
                used = {slot for _, slot in busy.values()}
                place_and_slot = None if interrupts.count else _find_next(waiting, used, slots)
                if place_and_slot is not None and (ended is None or overlaps(ended.job, waiting[place_and_slot[0]][1])):
                    place, slot = place_and_slot
                    index, planned = waiting.pop(place)
                    context.upcoming[:] = [job for _, job in waiting]
                    if job := narrow(planned):
                        job = job if slot == _ALONE else slots.place(job, slot)
                        job_context = replace(context, listener=listener.slot(job.launch.slot))
                        job_context.listener.job_started(job, index, last, estimate(job, context.upcoming))
                        busy[threads.submit(_carry_out, job, profilers, job_context)] = index, slot
                    continue
                if ended is not None:
                    yield ended
                    ended = None
                    continue
                if not busy:
                    break
                done = min(wait(busy, return_when=FIRST_COMPLETED).done, key=busy.__getitem__)
                number, _ = busy.pop(done)
                ended = done.result()
                stopped += [number] if ended.interrupted else []
        finally:
            if busy:
                interrupts.count = max(interrupts.count, 2)
        if interrupts.count:
            when = f"in job {' and '.join(map(str, sorted(stopped)))}" if stopped else f"after job {number}"
            raise Interrupted(f"Interrupted {when if number else 'before job 1'} of {last}.")


def _find_next(waiting: Sequence[tuple[int, Job]], used: set[int], slots: Slots) -> tuple[int, int] | None:
    """Return the place of the next job among those that wait, and its slot; None where none can start now."""
    if _ALONE in used:
        return None
    free = [slot for slot in range(len(slots.gpus)) if slot not in used]
    for place, (_, job) in enumerate(waiting):
        if not job.group or not slots.gpus:
            return None if used or place else (place, _ALONE)
        for slot in free:
            if slots.assigned.get(job.group, slot) == slot:
                return place, slot
    return None


def _carry_out(job: Job, profilers: Mapping[str, Profiler], context: Context) -> JobOutcome:
    ended = executor.carry_out(job, profilers[job.profiler], context)
    context.listener.job_ended(ended)
    return ended
