"""What became of a part and of its cases: from how its processes ended, what they made, and events.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profpipe import errors
from profpipe.job import Case, Command, Job, Profiler
from profpipe.running import reasons
from profpipe.running.events import NO_ROOM

#: (status, reason): what became of a case, or of a job.
Fate = tuple[str, str]

OK: Fate = ("ok", "")
INTERRUPTED: Fate = ("failed", "interrupted")
NOT_BEGUN: Fate = ("skipped", "interrupted before it started")
NOT_ENDED: Fate = ("skipped", "interrupted")


@dataclass(frozen=True)
class End:
    """How one process ended. ``cause`` is set where that was not by itself: a limit, an interrupt, no start at all."""

    command: Command
    returncode: int | None
    seconds: float
    cause: Fate | None
    missing: tuple[Path, ...]
    log: str

    @property
    def usable(self) -> bool:
        """Whether it left what comes after it something to work on."""
        if self.returncode is None or self.missing:
            return False
        return self.command.runs_workload or self.returncode == 0


@dataclass(frozen=True)
class Part:
    """One process of a job, with the exports after it. ``rest`` are the cases it left undone and did not die in.

    ``statuses`` are those that the workload's process wrote down itself, ``fates`` what we know better. ``again`` are
    cases of which files may hold an attempt that was not finished, or is lost, because a kill, an interrupt or another
    case's crash came between: a later part has them once more. ``has_files`` is false for a part whose report died with
    its process, ``hopeless`` says that another process for the rest would meet the same end.
    """

    job: Job
    trouble: Fate | None
    fates: Mapping[str, Fate]
    rest: tuple[Case, ...]
    statuses: Mapping[str, str]
    began_a_case: bool = True
    seconds: float = 0.0
    returncode: int | None = None
    hopeless: bool = False
    again: frozenset[str] = frozenset()
    has_files: bool = True

    def exhausted(self) -> list[Case]:
        """The cases that ran out of memory."""
        found = {**self.statuses, **{case: fate[0] for case, fate in self.fates.items()}}
        return [case for case in self.job.cases if found.get(case.id) == "oom"]


def judge(job: Job, profiler: Profiler, ends: Sequence[End], statuses: Mapping[str, str], inside: str | None) -> Part:
    """``statuses`` and ``inside`` are what events.jsonl told: the cases that ended, and the one that did not."""
    if job.script is not None:
        undone = tuple(case for case in job.cases if case.id not in statuses)
    else:
        undone = job.cases if any(end.cause or end.returncode for end in ends) else ()
        inside = job.cases[0].id
    trouble = _trouble(job, profiler, ends, unfinished=bool(undone), inside=inside)
    fates = {inside: trouble or OK} if inside else {}
    lost = frozenset[str]()
    if trouble and not all(end.usable for end in ends):
        unprofiled = [case for case, was in statuses.items() if was == "ok"]
        if inside and job.script is not None and trouble != INTERRUPTED and ends[0].missing:
            # The case that took the report with it is known, and they are profiled without it.
            lost = frozenset(unprofiled)
        else:
            status = "skipped" if trouble[0] == "skipped" else "failed"
            fates |= dict.fromkeys(unprofiled, (status, f"no profile: {trouble[1]}"))
    began_a_case, returncode = bool(inside or statuses), ends[0].returncode
    status = trouble[0] if trouble else ""
    return Part(
        job,
        trouble,
        fates,
        rest=tuple(case for case in job.cases if (case in undone or case.id in lost) and case.id != inside),
        statuses={case: was for case, was in statuses.items() if case not in lost},
        began_a_case=began_a_case,
        seconds=sum(end.seconds for end in ends),
        returncode=returncode,
        hopeless=returncode is None or status == "skipped" or (status == "timeout" and not began_a_case),
        again=lost,
        has_files=not lost,
    )


def _trouble(job: Job, profiler: Profiler, ends: Sequence[End], *, unfinished: bool, inside: str | None) -> Fate | None:
    """Why the part is not what it should be; None for one whose files are all there and whose cases all ended.

    An exit code is no trouble by itself: a harness that dies after its last case has left everything that we want.
    """
    bad = next((end for end in ends if end.cause or not end.usable), ends[0] if unfinished else None)
    if bad is None:
        return None
    if bad.cause == INTERRUPTED:
        return INTERRUPTED
    own = bad.cause or _no_room(bad, job) or profiler.diagnose(bad.log)
    status, reason = own or _found_out(bad, in_case=bool(job.script and inside))
    return status, f"{reason} (log: {job.portable(str(job.folder / 'log.txt'))})"


def _no_room(end: End, job: Job) -> Fate | None:
    # A command of the user's own may end with any code.
    returncode = 1 if end.returncode == errors.UNWRITTEN and job.script is None else end.returncode
    reason = reasons.of_no_room(returncode or 0, end.log)
    return ("failed", reason) if reason else None


def _found_out(end: End, *, in_case: bool) -> Fate:
    """What a process says that neither was ended by us nor is understood by its profiler."""
    returncode = end.returncode or 0
    if end.missing and not returncode:
        return "failed", reasons.of_missing(end.missing[0], end.log)
    died = in_case or reasons.killed_by(returncode)
    return "crashed" if died else "failed", reasons.of_exit(returncode, end.log)


# --- a part that a runner before us left -----------------------------------------------------------------------------


def cut_off(job: Job, statuses: Mapping[str, str], *, keeps_ended_cases: bool) -> Part:
    """A part whose process ran when its runner was killed. ``statuses`` are of the cases that ended until then.

    Where the profiler writes its report only at the end, there is none, and nothing of the part counts.
    """
    kept = {case: status for case, status in statuses.items() if keeps_ended_cases and status != NO_ROOM}
    rest = tuple(case for case in job.cases if case.id not in kept)
    again = frozenset(case.id for case in rest)
    return Part(job, None, {}, rest=rest, statuses=dict(kept), again=again, has_files=keeps_ended_cases)


def gone_on_with(part: Part) -> Part:
    """``part`` for a run that goes on: what the user's stopping it cost, or want of room, is to be done after all."""
    stopped = part.trouble == INTERRUPTED
    lost = {case for case, (_, reason) in part.fates.items() if stopped or errors.lacks_room(reason)}
    lost |= {case for case, status in part.statuses.items() if status == NO_ROOM}
    mended = stopped or bool(part.trouble and errors.lacks_room(part.trouble[1]))
    if not (lost or mended):
        return part
    rest = tuple(case for case in part.job.cases if case.id in lost or case in part.rest)
    again = {case.id for case in rest} if stopped else lost
    return replace(
        part,
        trouble=None if mended else part.trouble,
        fates={case: fate for case, fate in part.fates.items() if case not in lost},
        rest=rest,
        statuses={case: status for case, status in part.statuses.items() if case not in again},
        hopeless=False,
        again=frozenset(again),
        began_a_case=True,
    )


def taken_together(parts: Sequence[Part]) -> list[Part]:
    """``parts``, the last of which leaves what any of them has left and no later one has had."""
    if not parts:
        return []
    left: dict[str, Case] = {}
    for part in parts:
        for case in part.job.cases:
            left.pop(case.id, None)
        left |= {case.id: case for case in part.rest}
    last = parts[-1]
    of_others = left.keys() - {case.id for case in last.rest}
    return [*parts[:-1], replace(last, rest=tuple(left.values()), hopeless=last.hopeless and not of_others)]
