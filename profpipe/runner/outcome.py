"""Decide what became of an attempt and its cases, from how its processes ended, their files and the log of the job.

An attempt is one process of a job together with the exports that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from profpipe import errors
from profpipe.job import Case, Cause, Job, Outcome, Profiler, Status
from profpipe.runner import failure_reasons
from profpipe.runner.job_log import Attempt, ProcessEnd

OK = Outcome(Status.OK)
INTERRUPTED = Outcome(Status.INTERRUPTED, Cause.INTERRUPTED, "interrupted")
NOT_STARTED = Outcome(Status.INTERRUPTED, Cause.NOT_STARTED, "interrupted before it started")
LARGER_THAN_OOM = Outcome(
    Status.SKIPPED, Cause.LARGER_THAN_OOM, "larger in every dimension than a case that ran out of memory"
)


@dataclass(frozen=True)
class JudgedAttempt:
    """What became of an attempt. ``job`` has the cases and the number of the attempt, ``ends`` those of its commands.

    ``problem`` is None where all files are there and all cases ended. ``recorded`` are the outcomes that the workload's
    process wrote itself, ``outcomes`` those that the runner knows better. ``pending`` are the cases that a later
    process has to run. ``retried`` are those of the pending cases of which files may hold an unfinished attempt.
    ``has_files`` is false where the report was lost with its process. ``unrecoverable`` says that another process would
    end in the same way.
    """

    job: Job
    problem: Outcome | None
    outcomes: Mapping[str, Outcome]
    pending: tuple[Case, ...]
    recorded: Mapping[str, Outcome]
    ends: tuple[ProcessEnd, ...] = ()
    started_a_case: bool = True
    unrecoverable: bool = False
    retried: frozenset[str] = frozenset()
    has_files: bool = True

    @property
    def seconds(self) -> float:
        return sum(end.seconds for end in self.ends)

    @property
    def returncode(self) -> int | None:
        """The exit code of the workload's process."""
        return self.ends[0].returncode if self.ends else None

    def oom_cases(self) -> list[Case]:
        outcomes = {**self.recorded, **self.outcomes}
        return [case for case in self.job.cases if outcomes.get(case.id, OK).status is Status.OOM]


def judge(
    job: Job,
    profiler: Profiler,
    attempt: Attempt,
    read_output: Callable[[ProcessEnd], str],
    *,
    retries_kill: bool = False,
) -> JudgedAttempt:
    """Judge an attempt that has ended. ``read_output`` returns the output of a process.

    With ``retries_kill``, what a SIGKILL from outside took is pending: it says nothing about the case.
    """
    recorded, inside, ends = dict(attempt.ended), attempt.inside, attempt.ends
    if job.script is not None:
        undone = {case.id for case in job.cases if case.id not in recorded}
    else:
        undone = {case.id for case in job.cases if any(end.stopped or end.has_failed for end in ends)}
        inside = job.cases[0].id
    problem = _find_problem(job, profiler, ends, read_output, is_unfinished=bool(undone), inside=inside)
    first = ends[0]
    is_retried = retries_kill and job.script is not None and _is_killed(problem, first)
    outcomes = {inside: problem or OK} if inside and not is_retried else {}
    lost = frozenset[str]()
    if problem and not all(end.is_usable for end in ends):
        profile_lost = [case for case, outcome in recorded.items() if outcome.status is Status.OK]
        is_of_case = inside and job.script is not None and problem.cause is not Cause.INTERRUPTED
        if (is_of_case or is_retried) and first.missing:
            # The case that took the report with it is known, so the others are profiled again without that case.
            lost = frozenset(profile_lost)
        else:
            keeps_status = problem.status in (Status.SKIPPED, Status.INTERRUPTED)
            status = problem.status if keeps_status else Status.FAILED
            outcomes |= dict.fromkeys(profile_lost, replace(problem, status=status, profile_lost=True))
    started_a_case = bool(inside or recorded)
    status = problem.status if problem else Status.OK
    return JudgedAttempt(
        job,
        problem,
        outcomes,
        pending=tuple(case for case in job.cases if case.id in undone | lost and (is_retried or case.id != inside)),
        recorded={case: outcome for case, outcome in recorded.items() if case not in lost},
        ends=tuple(ends),
        started_a_case=started_a_case,
        unrecoverable=first.returncode is None
        or status is Status.SKIPPED
        or (status is Status.TIMEOUT and not started_a_case),
        retried=lost | ({inside} if inside and is_retried else frozenset()),
        has_files=not lost,
    )


def _is_killed(problem: Outcome | None, end: ProcessEnd) -> bool:
    """Return True if a SIGKILL ended the process that neither the runner nor the kernel's OOM killer sent."""
    may_be_killed = problem is not None and problem.cause in (Cause.SIGKILL, Cause.EXIT)
    return may_be_killed and failure_reasons.is_sigkill(end.returncode)


def _find_problem(
    job: Job,
    profiler: Profiler,
    ends: Sequence[ProcessEnd],
    read_output: Callable[[ProcessEnd], str],
    *,
    is_unfinished: bool,
    inside: str | None,
) -> Outcome | None:
    """Return why the attempt is incomplete, or None where all files are there and all cases ended.

    An exit code alone is no problem: a harness that dies after its last case has left all results.
    """
    bad = next((end for end in ends if end.stopped or not end.is_usable), ends[0] if is_unfinished else None)
    if bad is None:
        return None
    output = read_output(bad)
    problem = bad.stopped or _find_disk_full(bad, output, job)
    if problem and problem.cause is Cause.INTERRUPTED:
        return problem
    if not problem and (diagnosis := profiler.diagnose(output)):
        problem = Outcome(Status(diagnosis[0]), Cause.PROFILER, diagnosis[1])
    problem = problem or _explain_exit(bad, output, job, in_case=bool(job.script and inside))
    return replace(problem, log=job.portable(str(job.folder / "log.txt")))


def _find_disk_full(end: ProcessEnd, output: str, job: Job) -> Outcome | None:
    # A command of the user may end with any code, so only the harness's code has a meaning.
    returncode = end.returncode or 0
    returncode = 1 if returncode == errors.UNWRITTEN and job.script is None else returncode
    details = failure_reasons.describe_disk_full(returncode, output)
    return Outcome(Status.FAILED, Cause.DISK_FULL, details) if details else None


def _explain_exit(end: ProcessEnd, output: str, job: Job, *, in_case: bool) -> Outcome:
    returncode = end.returncode or 0
    if end.missing and not returncode:
        details = failure_reasons.describe_missing_file(job.folder / end.missing[0], output)
        return Outcome(Status.FAILED, Cause.FILE_MISSING, details)
    ended_by = failure_reasons.ended_by(returncode, job.command) if job.script is None else ""
    if end.missing and ended_by:
        is_whole = job.settings.capture and job.settings.capture.is_whole
        remedy = ". A span in its middle can be recorded: --capture AFTER:FOR" if is_whole else ""
        details = f"{ended_by} ended the program before {job.profiler} had written what it recorded{remedy}"
        return Outcome(Status.FAILED, Cause.FILE_MISSING, details)
    details = failure_reasons.describe_exit(returncode, output)
    if details_of_memory := failure_reasons.describe_gpu_memory(details):
        return Outcome(Status.OOM, Cause.GPU_MEMORY, details_of_memory)
    status = Status.CRASHED if in_case or failure_reasons.signal_name(returncode) else Status.FAILED
    return Outcome(status, Cause.EXIT, details)


def cut_off(job: Job, ended: Mapping[str, Outcome], *, keeps_ended_cases: bool) -> JudgedAttempt:
    """Return the result of an attempt whose process was running when its runner was killed.

    Where the profiler writes its report only at the end, there is no report, and no case of the attempt counts.
    """
    kept = {
        case.id: ended[case.id]
        for case in job.cases
        if keeps_ended_cases and case.id in ended and ended[case.id].cause is not Cause.DISK_FULL
    }
    pending = tuple(case for case in job.cases if case.id not in kept)
    retried = frozenset(case.id for case in pending)
    return JudgedAttempt(job, None, {}, pending=pending, recorded=kept, retried=retried, has_files=keeps_ended_cases)


def as_resumed(result: JudgedAttempt) -> JudgedAttempt:
    """Return ``result`` with the cases pending that an interrupt or a full disk stopped."""

    def are_full(outcomes: Mapping[str, Outcome]) -> set[str]:
        return {case for case, outcome in outcomes.items() if outcome.cause is Cause.DISK_FULL}

    def without(outcomes: Mapping[str, Outcome], cases: Collection[str]) -> dict[str, Outcome]:
        return {case: outcome for case, outcome in outcomes.items() if case not in cases}

    cause = result.problem.cause if result.problem else Cause.NONE
    was_stopped = cause is Cause.INTERRUPTED
    lost = are_full(result.recorded) | (set(result.outcomes) if was_stopped else are_full(result.outcomes))
    is_solved = was_stopped or cause is Cause.DISK_FULL
    if not (lost or is_solved):
        return result
    pending = tuple(case for case in result.job.cases if case.id in lost or case in result.pending)
    retried = {case.id for case in pending} if was_stopped else lost
    return replace(
        result,
        problem=None if is_solved else result.problem,
        outcomes=without(result.outcomes, lost),
        pending=pending,
        recorded=without(result.recorded, retried),
        unrecoverable=False,
        retried=frozenset(retried),
        started_a_case=True,
    )


def with_all_pending(results: Sequence[JudgedAttempt]) -> list[JudgedAttempt]:
    """Return ``results``, where the last one has all cases pending that no later attempt has run."""
    if not results:
        return []
    pending: dict[str, Case] = {}
    for result in results:
        for case in result.job.cases:
            pending.pop(case.id, None)
        pending |= {case.id: case for case in result.pending}
    last = results[-1]
    of_others = pending.keys() - {case.id for case in last.pending}
    unrecoverable = last.unrecoverable and not of_others
    return [*results[:-1], replace(last, pending=tuple(pending.values()), unrecoverable=unrecoverable)]
