"""Run jobs side by side: one on each lane, those of a group on the same lane in their order.

Each job is carried out by the executor in a thread. What ends a job ends the processes below the supervisor of its
command only. The jobs are started, and their outcomes are handled, by the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from profpipe.errors import Interrupted
from profpipe.job import Case, Job, JobOutcome, Profiler, ProgressListener
from profpipe.runner import executor, process
from profpipe.runner.executor import Context
from profpipe.runner.lanes import Lanes
from profpipe.runner.process import GracePeriods, InterruptCounter

#: In place of the number of a lane: the job runs alone.
_ALONE = -1

_Waiting = list[tuple[int, Job]]


def run(
    jobs: Sequence[Job],
    profilers: Mapping[str, Profiler],
    listener: ProgressListener,
    lanes: Lanes,
    grace: GracePeriods = process.GRACE,
    oom_cases: Mapping[tuple[str, str], Iterable[Case]] | None = None,
    narrow: Callable[[Job], Job | None] = lambda job: job,
) -> Iterator[JobOutcome]:
    """Yield the outcome of each job when it has ended. The lane of that job waits until the caller asks for the next.

    A job without a group runs when all jobs before it have ended, and those after it wait. An interrupt ends all
    running jobs; their outcomes are yielded, and then errors.Interrupted is raised. The other parameters are those of
    ``executor.run``.
    """
    with InterruptCounter() as interrupts, process.adopt_orphans():
        known = {key: list(cases) for key, cases in (oom_cases or {}).items()}
        context = Context(listener, grace, interrupts, known)
        waiting: _Waiting = list(enumerate(jobs, start=1))
        stopped: list[int] = []
        with _Workers(profilers, context, lanes, len(jobs)) as workers:
            while True:
                if not interrupts.count:
                    _fill(workers, waiting, lanes, narrow)
                if not workers.busy:
                    break
                number, ended = workers.take()
                stopped += [number] if ended.interrupted else []
                yield ended
        if interrupts.count:
            which = f"in job {' and '.join(map(str, sorted(stopped)))}" if stopped else "between two jobs"
            raise Interrupted(f"Interrupted {which} of {len(jobs)}.")


def _fill(workers: _Workers, waiting: _Waiting, lanes: Lanes, narrow: Callable[[Job], Job | None]) -> None:
    """Start the next job of each free lane."""
    for lane in (*range(len(lanes.every)), _ALONE):
        while workers.is_free(lane) and (found := _find_next(waiting, lane, lanes)) is not None:
            number, planned = waiting.pop(found)
            if job := narrow(planned):
                workers.start(number, job, lane)


def _find_next(waiting: _Waiting, lane: int, lanes: Lanes) -> int | None:
    """Return the place of the next job for a lane among those that wait; None where there is none."""
    if lane == _ALONE:
        return 0 if waiting and not waiting[0][1].group else None
    for place, (_, job) in enumerate(waiting):
        if not job.group:
            return None
        if lanes.assigned.get(job.group, lane) == lane:
            return place
    return None


class _Workers:
    """The threads of the running jobs. When the caller leaves early, the jobs are killed."""

    def __init__(self, profilers: Mapping[str, Profiler], context: Context, lanes: Lanes, total: int) -> None:
        self._profilers, self._context, self._lanes, self._total = profilers, context, lanes, total
        self._threads = ThreadPoolExecutor(len(lanes.every))
        #: The number and the lane of each job that runs.
        self.busy: dict[Future[JobOutcome], tuple[int, int]] = {}

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self.busy:
            self._context.interrupts.count = max(self._context.interrupts.count, 2)
        self._threads.shutdown()

    def is_free(self, lane: int) -> bool:
        used = {busy for _, busy in self.busy.values()}
        return not used if lane == _ALONE else not {lane, _ALONE} & used

    def start(self, number: int, job: Job, lane: int) -> None:
        """Start a job in a thread. ``lane`` is a number among the lanes."""
        listener = self._context.listener
        if lane != _ALONE:
            self._lanes.assign(job.group, lane)
            job = self._lanes.every[lane].place(job)
            listener = listener.lane(job.lane)
        listener.job_started(job, number, self._total)
        self.busy[self._threads.submit(self._work, job, replace(self._context, listener=listener))] = number, lane

    def take(self) -> tuple[int, JobOutcome]:
        """Wait for the next job that ends; return its number and its outcome. Raises what its thread raised."""
        ended = min(wait(self.busy, return_when=FIRST_COMPLETED).done, key=self.busy.__getitem__)
        number, _ = self.busy.pop(ended)
        return number, ended.result()

    def _work(self, job: Job, context: Context) -> JobOutcome:
        ended = executor.carry_out(job, self._profilers[job.profiler], context)
        context.listener.job_ended(ended)
        return ended
