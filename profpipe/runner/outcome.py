"""Decide what became of an attempt and its cases, from how its processes ended, their files and ``events.jsonl``.

An attempt is one process of a job together with the exports that follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from profpipe import errors
from profpipe.job import Case, CaseOutcome, Cause, Command, Job, Profiler, Status
from profpipe.runner import failure_reasons
from profpipe.runner.journal import ProcessEnd

OK = CaseOutcome(Status.OK)
INTERRUPTED = CaseOutcome(Status.INTERRUPTED, Cause.INTERRUPTED, "interrupted")
NOT_STARTED = CaseOutcome(Status.INTERRUPTED, Cause.NOT_STARTED, "interrupted before it started")
LARGER_THAN_OOM = CaseOutcome(
    Status.SKIPPED, Cause.LARGER_THAN_OOM, "larger in every dimension than a case that ran out of memory"
)


@dataclass(frozen=True)
class CommandEnd:
    """How one command ended; ``log`` is its output."""

    command: Command
    end: ProcessEnd
    log: str

    @property
    def is_usable(self) -> bool:
        """Return True if the next command has something to work on."""
        returncode = self.end.returncode
        return returncode is not None and not self.end.missing and (self.command.runs_workload or returncode == 0)


@dataclass(frozen=True)
class Attempt:
    """One process of a job, with the exports that follow it.

    ``problem`` is None where all files are there and all cases ended. ``recorded`` are the outcomes that the workload's
    process wrote itself, ``outcomes`` those that the runner knows better. ``pending`` are the cases that a later
    process has to run. ``retried`` are those of the pending cases of which files may hold an unfinished attempt.
    ``has_files`` is false where the report was lost with its process. ``unrecoverable`` says that another process would
    end in the same way.
    """

    job: Job
    problem: CaseOutcome | None
    outcomes: Mapping[str, CaseOutcome]
    pending: tuple[Case, ...]
    recorded: Mapping[str, CaseOutcome]
    started_a_case: bool = True
    seconds: float = 0.0
    returncode: int | None = None
    unrecoverable: bool = False
    retried: frozenset[str] = frozenset()
    has_files: bool = True

    def oom_cases(self) -> list[Case]:
        known = {**self.recorded, **self.outcomes}
        return [case for case in self.job.cases if known.get(case.id, OK).status is Status.OOM]


def judge(
    job: Job,
    profiler: Profiler,
    ends: Sequence[CommandEnd],
    recorded: Mapping[str, CaseOutcome],
    inside: str | None,
    *,
    retries_kill: bool = False,
) -> Attempt:
    """Judge an attempt whose commands ended as in ``ends``.

    ``recorded`` are the cases that ended according to events.jsonl; ``inside`` is the case that started and did not.
    With ``retries_kill``, what a SIGKILL from outside took is pending: it says nothing about the case.
    """
    if job.script is not None:
        undone = {case.id for case in job.cases if case.id not in recorded}
    else:
        failed = any(e.end.stopped or e.command.has_failed(e.end.returncode, e.end.seconds) for e in ends)
        undone = {case.id for case in job.cases if failed}
        inside = job.cases[0].id
    problem = _find_problem(job, profiler, ends, is_unfinished=bool(undone), inside=inside)
    first = ends[0].end
    is_retried = retries_kill and job.script is not None and _is_killed(problem, first)
    outcomes = {inside: problem or OK} if inside and not is_retried else {}
    lost = frozenset[str]()
    if problem and not all(end.is_usable for end in ends):
        unprofiled = [case for case, outcome in recorded.items() if outcome.status is Status.OK]
        is_of_case = inside and job.script is not None and problem.cause is not Cause.INTERRUPTED
        if (is_of_case or is_retried) and first.missing:
            # The case that took the report with it is known, so the others are profiled again without that case.
            lost = frozenset(unprofiled)
        else:
            keeps_status = problem.status in (Status.SKIPPED, Status.INTERRUPTED)
            status = problem.status if keeps_status else Status.FAILED
            outcomes |= dict.fromkeys(unprofiled, replace(problem, status=status, is_unprofiled=True))
    started_a_case, returncode = bool(inside or recorded), first.returncode
    status = problem.status if problem else Status.OK
    return Attempt(
        job,
        problem,
        outcomes,
        pending=tuple(case for case in job.cases if case.id in undone | lost and (is_retried or case.id != inside)),
        recorded={case: outcome for case, outcome in recorded.items() if case not in lost},
        started_a_case=started_a_case,
        seconds=sum(each.end.seconds for each in ends),
        returncode=returncode,
        unrecoverable=returncode is None
        or status is Status.SKIPPED
        or (status is Status.TIMEOUT and not started_a_case),
        retried=lost | ({inside} if inside and is_retried else frozenset()),
        has_files=not lost,
    )


def _is_killed(problem: CaseOutcome | None, end: ProcessEnd) -> bool:
    """Return True if a SIGKILL ended the process that neither the runner nor the kernel's OOM killer sent."""
    may_be_killed = problem is not None and problem.cause in (Cause.SIGKILL, Cause.EXIT)
    return may_be_killed and failure_reasons.is_sigkill(end.returncode)


def _find_problem(
    job: Job, profiler: Profiler, ends: Sequence[CommandEnd], *, is_unfinished: bool, inside: str | None
) -> CaseOutcome | None:
    """Return why the attempt is incomplete, or None where all files are there and all cases ended.

    An exit code alone is no problem: a harness that dies after its last case has left all results.
    """
    bad = next((each for each in ends if each.end.stopped or not each.is_usable), ends[0] if is_unfinished else None)
    if bad is None:
        return None
    found = bad.end.stopped or _find_disk_full(bad, job)
    if found and found.cause is Cause.INTERRUPTED:
        return found
    if not found and (diagnosis := profiler.diagnose(bad.log)):
        found = CaseOutcome(Status(diagnosis[0]), Cause.PROFILER, diagnosis[1])
    found = found or _explain_exit(bad, job, in_case=bool(job.script and inside))
    return replace(found, log=job.portable(str(job.folder / "log.txt")))


def _find_disk_full(ended: CommandEnd, job: Job) -> CaseOutcome | None:
    # A command of the user may end with any code, so only the harness's code has a meaning.
    returncode = ended.end.returncode or 0
    returncode = 1 if returncode == errors.UNWRITTEN and job.script is None else returncode
    details = failure_reasons.describe_disk_full(returncode, ended.log)
    return CaseOutcome(Status.FAILED, Cause.DISK_FULL, details) if details else None


def _explain_exit(ended: CommandEnd, job: Job, *, in_case: bool) -> CaseOutcome:
    returncode = ended.end.returncode or 0
    if ended.end.missing and not returncode:
        details = failure_reasons.describe_missing_file(job.folder / ended.end.missing[0], ended.log)
        return CaseOutcome(Status.FAILED, Cause.FILE_MISSING, details)
    status = Status.CRASHED if in_case or failure_reasons.signal_name(returncode) else Status.FAILED
    return CaseOutcome(status, Cause.EXIT, failure_reasons.describe_exit(returncode, ended.log))


def cut_off(job: Job, recorded: Mapping[str, CaseOutcome], *, keeps_ended_cases: bool) -> Attempt:
    """Return the attempt whose process was running when its runner was killed.

    Where the profiler writes its report only at the end, there is no report, and no case of the attempt counts.
    """
    kept = {case: end for case, end in recorded.items() if keeps_ended_cases and end.cause is not Cause.DISK_FULL}
    pending = tuple(case for case in job.cases if case.id not in kept)
    retried = frozenset(case.id for case in pending)
    return Attempt(job, None, {}, pending=pending, recorded=kept, retried=retried, has_files=keeps_ended_cases)


def as_resumed(attempt: Attempt) -> Attempt:
    """Return ``attempt`` with the cases pending that an interrupt or a full disk stopped."""
    problem = attempt.problem
    was_stopped = problem is not None and problem.cause is Cause.INTERRUPTED
    lost = {c for c, outcome in attempt.outcomes.items() if was_stopped or outcome.cause is Cause.DISK_FULL}
    lost |= {c for c, outcome in attempt.recorded.items() if outcome.cause is Cause.DISK_FULL}
    is_solved = was_stopped or (problem is not None and problem.cause is Cause.DISK_FULL)
    if not (lost or is_solved):
        return attempt
    pending = tuple(case for case in attempt.job.cases if case.id in lost or case in attempt.pending)
    retried = {case.id for case in pending} if was_stopped else lost
    return replace(
        attempt,
        problem=None if is_solved else problem,
        outcomes={case: outcome for case, outcome in attempt.outcomes.items() if case not in lost},
        pending=pending,
        recorded={case: outcome for case, outcome in attempt.recorded.items() if case not in retried},
        unrecoverable=False,
        retried=frozenset(retried),
        started_a_case=True,
    )


def merge_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return ``attempts``, where the last one has all cases pending that no later attempt has run."""
    if not attempts:
        return []
    pending: dict[str, Case] = {}
    for attempt in attempts:
        for case in attempt.job.cases:
            pending.pop(case.id, None)
        pending |= {case.id: case for case in attempt.pending}
    last = attempts[-1]
    of_others = pending.keys() - {case.id for case in last.pending}
    unrecoverable = last.unrecoverable and not of_others
    return [*attempts[:-1], replace(last, pending=tuple(pending.values()), unrecoverable=unrecoverable)]
