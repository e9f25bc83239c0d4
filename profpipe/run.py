"""[Job] -> [Outcome]: the only module that starts processes.

A job's commands run one after the other, each in a session of its own, under a time limit, with its output in
``log.txt``. Whether they did their work is judged by the files that they made and by the cases in ``events.jsonl``,
never by the exit code alone. A case that takes its process down is recorded, and the cases after it go on in another.

A job that an earlier runner began, and did not live to finish, is taken up where its journal says (``journal.py``).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO

from profpipe import environment, sizes
from profpipe.errors import Interrupted, lacks_room
from profpipe.job import Case, Command, Job, Missing, Outcome, Profiler, Watch
from profpipe.running import ending, events, journal, made, oomkiller, reasons, verdict
from profpipe.running.ending import Interrupts, Patience
from profpipe.running.events import Events
from profpipe.running.journal import Entry, ProcessEnd
from profpipe.running.verdict import End, Fate, Part

_Look = Callable[[], "Fate | None"]

_LOOK_EVERY_S = 0.2
#: How often a process is started whose tool fails by chance before it lets the workload run.
_STARTS = 4


def run(
    jobs: Sequence[Job],
    profilers: Mapping[str, Profiler],
    watch: Watch,
    patience: Patience = ending.PATIENCE,
    exhausted: Mapping[tuple[str, str], Iterable[Case]] | None = None,
    meanwhile: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Yields each job's outcome when the job has ended, before the next one starts.

    Ctrl-C, SIGTERM and SIGHUP end the running process so that its report is still written; its job's outcome is
    yielded like any other, and then errors.Interrupted is raised. One that comes between two jobs, while the caller
    works, waits until the caller asks for the next outcome.

    ``exhausted`` are cases that ran out of memory before this run, by workload and profiler. ``meanwhile`` does a
    little of whatever the caller has left to do, and says whether it did. It is called from when a process that imports
    a workload was started until that says that it is there: for some seconds it imports torch. What was begun then may
    last into the loading of the workload and the making of its first inputs, and is to be over before they are.
    """
    with Interrupts() as interrupts, ending.adopted_orphans():
        known = {key: list(cases) for key, cases in (exhausted or {}).items()}
        desk = _Desk(watch, patience, interrupts, known, meanwhile)
        for index, job in enumerate(jobs, start=1):
            watch.job_started(job, index, len(jobs))
            outcome = _carry_out(job, profilers[job.profiler], desk)
            watch.job_ended(outcome)
            yield outcome
            if interrupts.count:
                when = "in" if outcome.interrupted else "after"
                raise Interrupted(f"Interrupted {when} job {index} of {len(jobs)}.")


def ask(argv: Sequence[str], timeout_s: float = 20.0, env: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """What a short command prints (stdout and stderr), or None where it cannot be started or does not end in time.

    ``env`` comes on top of the filtered environment.
    """
    # A file and not a pipe: a grandchild that survives would hold the pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as output:
        try:
            process = _start(argv, {**environment.passed_on(os.environ), **env}, output)
        except OSError:
            return None
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            ending.kill_group(process)
        output.seek(0)
        return output.read().decode(errors="replace")


@dataclass(frozen=True)
class _Desk:
    """What every step of a run needs beside its job. ``exhausted`` grows: the cases that ran out of memory so far."""

    watch: Watch
    patience: Patience
    interrupts: Interrupts
    exhausted: dict[tuple[str, str], list[Case]]
    meanwhile: Callable[[], bool]


# --- one job: as many parts as its crashes make necessary ------------------------------------------------------------


def _carry_out(job: Job, profiler: Profiler, desk: _Desk) -> Outcome:
    if isinstance(job.tool, Missing):
        return _skipped(job, str(job.tool))
    parts = _taken_up(job, profiler, desk)
    too_large: dict[str, Fate] = {}
    while (rest := parts[-1].rest if parts else job.cases) and not _is_over(parts, desk):
        too_large |= _too_large(job, rest, parts, desk)
        rest = tuple(case for case in rest if case.id not in too_large)
        if not rest:
            break
        if parts:
            why = ": ".join(parts[-1].trouble or ("begun before",))
            desk.watch.message(f"{_name(job)}: {why}. Cases that go on in a new process: {len(rest)}")
        number = parts[-1].job.part + 1 if parts else job.part
        parts.append(_run_part(replace(job, cases=rest, part=number), profiler, desk))
    _note_exhausted(job, parts, desk)
    return _outcome(job, parts, too_large, profiler, interrupted=desk.interrupts.count > 0)


def _is_over(parts: Sequence[Part], desk: _Desk) -> bool:
    """Whether no further process makes sense.

    Twice in a row not one case was begun: once may be chance, for a tool now and then loses its own agent.
    """
    stuck = len(parts) > 1 and not any(part.began_a_case for part in parts[-2:])
    return bool(parts) and (parts[-1].hopeless or stuck or desk.interrupts.count > 0)


def _too_large(job: Job, cases: Sequence[Case], parts: Sequence[Part], desk: _Desk) -> dict[str, Fate]:
    """Those of ``cases`` that are larger in every dimension than one that ran out of memory, here or in another job."""
    if not job.options.get("skip_larger_after_oom", False):
        return {}
    _note_exhausted(job, parts, desk)
    exhausted = desk.exhausted.get((job.workload, job.profiler), ())
    # As the harness says it of cases in its own process.
    fate = "skipped", "larger in every dimension than a case that ran out of memory"
    return {c.id: fate for c in cases if any(sizes.larger(c.params, smaller.params) for smaller in exhausted)}


def _note_exhausted(job: Job, parts: Sequence[Part], desk: _Desk) -> None:
    known = desk.exhausted.setdefault((job.workload, job.profiler), [])
    known += [case for part in parts for case in part.exhausted() if case not in known]


def _skipped(job: Job, reason: str) -> Outcome:
    return Outcome(job, "skipped", reason, ended_by_runner=tuple((case.id, "skipped", reason) for case in job.cases))


def _outcome(
    job: Job, parts: Sequence[Part], too_large: Mapping[str, Fate], profiler: Profiler, *, interrupted: bool
) -> Outcome:
    """``parts`` may be none: where every case is too large to be tried."""
    fates = {case: fate for part in parts for case, fate in part.fates.items()}
    if parts:
        # In rounds a case is left and turned to again.
        begun = events.begun(_events(job)) if interrupted else frozenset()
        for case in parts[-1].rest:
            if interrupted:
                fates[case.id] = verdict.NOT_ENDED if case.id in begun else verdict.NOT_BEGUN
            else:
                fates[case.id] = parts[-1].trouble or verdict.OK
    fates |= too_large
    status, reason = next((part.trouble for part in parts if part.trouble), verdict.OK)
    made = {part.job.part: _files(part, profiler) for part in parts}
    again = {
        path: part.again for part in parts if part.again for path in made[part.job.part] if path not in job.records
    }
    return Outcome(
        job,
        status,
        reason,
        seconds=sum(part.seconds for part in parts),
        last_s=parts[-1].seconds if parts else 0.0,
        returncode=parts[-1].returncode if parts else None,
        files=tuple(dict.fromkeys(path for paths in made.values() for path in paths)),
        ended_by_runner=tuple((case, *fate) for case, fate in fates.items()),
        interrupted=interrupted,
        attempted_again=again,
    )


def _files(part: Part, profiler: Profiler) -> list[Path]:
    return [path for path in profiler.artifacts(part.job) if path.exists()] if part.has_files else []


def _events(job: Job) -> Path:
    return job.folder / "events.jsonl"


def _name(job: Job) -> str:
    return f"{job.workload} under {job.profiler}"


# --- one part: the workload's process, then what exports its report ---------------------------------------------------


def _run_part(job: Job, profiler: Profiler, desk: _Desk) -> Part:
    job.folder.mkdir(parents=True, exist_ok=True)
    seen = Events(_events(job), desk.watch)
    entry = Entry(job.part, tuple(case.id for case in job.cases), {}, None, begins_at=seen.begins_at)
    journal.write(job.folder, entry)
    if job.script:
        journal.write_whole(job.spec, json.dumps(_spec(job), indent=1))
    return _run_commands(job, profiler, seen, entry, desk)


def _run_commands(job: Job, profiler: Profiler, seen: Events, entry: Entry, desk: _Desk) -> Part:
    """Runs those of the part's commands that have no end yet, as long as each leaves the next one something."""
    commands, ends = profiler.commands(job), list(entry.ends)
    for command in commands[len(ends) :]:
        if ends and (desk.interrupts.count > 1 or not _end(job, commands[len(ends) - 1], ends[-1]).usable):
            break
        ends.append(_run_process(command, job, seen, desk))
        journal.write(job.folder, replace(entry, ended=seen.ended, inside=seen.inside, ends=tuple(ends)))
    known = [_end(job, command, end) for command, end in zip(commands, ends, strict=False)]
    return verdict.judge(job, profiler, known, seen.ended, seen.inside)


def _end(job: Job, command: Command, end: ProcessEnd) -> End:
    missing = tuple(job.folder / name for name in end.missing)
    log = made.output(job.folder / "log.txt", end.log)
    return End(command, end.returncode, end.seconds, end.cause, missing, log)


def _taken_up(job: Job, profiler: Profiler, desk: _Desk) -> list[Part]:
    """The parts that an earlier runner left, as far as they count, with the exports that it still owed."""
    entries, parts = journal.read(job.folder), []
    if entries:
        ending.end_leftovers(ending.MARK, str(job.folder), desk.patience.kill_s)
    for entry, following in itertools.zip_longest(entries, entries[1:]):
        of_part = replace(job, part=entry.part, cases=tuple(case for case in job.cases if case.id in entry.cases))
        commands = profiler.commands(of_part)
        removed = bool(entry.ends) and _is_removed(commands, entry, of_part, profiler)
        if removed:
            desk.watch.message(f"{_name(job)}: what its process had left was removed; its cases are run again")
        if entry.ends and not removed:
            seen = Events(_events(job), desk.watch, dict(entry.ended), entry.inside)
            kept = replace(entry, ends=tuple(_kept_ends(commands, entry, job)))
            parts.append(verdict.gone_on_with(_run_commands(of_part, profiler, seen, kept, desk)))
        else:
            known = events.statuses(_events(job), entry.begins_at or 0, following.begins_at if following else None)
            statuses = {case.id: known[case.id] for case in of_part.cases if case.id in known}
            keeps = profiler.KEEPS_ENDED_CASES and not removed
            parts.append(verdict.cut_off(of_part, statuses, keeps_ended_cases=keeps))
    return verdict.taken_together(parts)


def _is_removed(commands: Sequence[Command], entry: Entry, job: Job, profiler: Profiler) -> bool:
    """Whether neither what the workload's process made is there any more nor what the exports made of it.

    Of a profiler that leaves files of its own beside the records, as torch's traces, none of these is left. One that
    died may never have had them.
    """
    if entry.ends[0].returncode is None or entry.ends[0].missing:
        return False
    own = [path for path in profiler.artifacts(job) if path not in job.records]
    had_own = bool(own) and len(commands) == 1 and entry.ends[0].returncode == 0 and "ok" in entry.ended.values()
    none_left = had_own and not any(path.exists() for path in own)
    return none_left or all(made.lacking(command, job) for command in (commands[0], commands[-1]))


def _kept_ends(commands: Sequence[Command], entry: Entry, job: Job) -> list[ProcessEnd]:
    """An export that was interrupted, lacked room or was removed since is made anew, and what comes after it.

    The workload's process, always the first, is not: whoever deletes a report may still have its export.
    """

    def stands(command: Command, end: ProcessEnd) -> bool:
        failed = end.returncode or end.missing
        stopped = end.cause == verdict.INTERRUPTED or bool(failed and lacks_room(made.output(log, end.log)))
        return not stopped and bool(failed or not made.lacking(command, job))

    log = job.folder / "log.txt"
    exports = zip(commands[1:], entry.ends[1:], strict=False)
    return [entry.ends[0], *(end for _, end in itertools.takewhile(lambda pair: stands(*pair), exports))]


def _spec(job: Job) -> dict[str, object]:
    """What ``profpipe.harness`` reads."""
    return {
        "workload": job.workload,
        "profiler": job.profiler,
        "script": str(job.script),
        "cases": [{"id": case.id, "params": dict(case.params)} for case in job.cases],
        "warmup": job.warmup,
        "repeats": job.repeats,
        "processes": job.processes,
        "options": dict(job.options),
        "stem": job.stem,
        "part": job.part,
        "folder": str(job.folder),
    }


# --- one process -----------------------------------------------------------------------------------------------------


def _run_process(command: Command, job: Job, seen: Events, desk: _Desk) -> ProcessEnd:
    """Runs the command to its end; again where its tool made a false start, of which only the seconds stay."""
    lost_s = 0.0
    for start in range(1, _STARTS + 1):
        end = _run_once(command, job, seen, desk)
        began = seen.ended or seen.inside or desk.interrupts.count
        if start == _STARTS or began or not _is_false_start(command, job, end):
            break
        lost_s += end.seconds
        desk.watch.message(f"{_name(job)}: {job.profiler} failed before it let the workload run, and is started again")
    return replace(end, seconds=end.seconds + lost_s)


def _is_false_start(command: Command, job: Job, end: ProcessEnd) -> bool:
    failed = bool(end.returncode) and end.cause is None
    return bool(failed and command.false_start and command.false_start in made.output(job.folder / "log.txt", end.log))


def _run_once(command: Command, job: Job, seen: Events, desk: _Desk) -> ProcessEnd:
    before = made.stamps(command, job)
    env = {**environment.passed_on(os.environ), **job.env, **command.env, ending.MARK: str(job.folder)}
    returncode, seconds, oom_kills = None, 0.0, oomkiller.kills()
    cause: Fate | None
    with (job.folder / "log.txt").open("ab") as log:
        # Not the environment: it is the one thing in a log that nobody means to share.
        log.write(f"$ {job.shown(command)}\n".encode())
        log.flush()
        output_begin = log.tell()
        spared, began = ending.descendants(), time.monotonic()
        try:
            process = _start(command.argv, env, log, job.cwd)
        except OSError as error:
            cause = "failed", job.masked(f"could not be started: {error}")
        else:
            meanwhile = functools.partial(_use_start, job, seen, desk)
            cause, ended = _attend(process, _watchful(command, job, seen, desk), spared, desk, meanwhile)
            returncode, seconds = process.returncode, ended - began
            if cause is None:
                seen.read()
                # An export that is killed says nothing of the case that the workload's process died in.
                if command.runs_workload and (seen.inside or job.script is None):
                    cause = _want_of_memory(job, returncode, oom_kills, output_begin)
        output_end = log.seek(0, os.SEEK_END)
    return ProcessEnd(returncode, seconds, cause, made.missing(command, job, before), (output_begin, output_end))


def _want_of_memory(job: Job, returncode: int | None, kills_before: int | None, output_begin: int) -> Fate | None:
    """torchrun ends with a code of its own, and tells in its output which of its processes died of what."""
    if job.processes == 1:
        return oomkiller.fate(returncode, kills_before)
    log = job.folder / "log.txt"
    rank, code = reasons.first_failure(made.output(log, (output_begin, log.stat().st_size))) or (0, None)
    fate = oomkiller.fate(code, kills_before)
    return (fate[0], f"rank {rank}: {fate[1]}") if fate else None


def _start(
    argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=ending.bound_to_us(),
    )


def _attend(
    process: subprocess.Popen[bytes],
    look: _Look,
    spared: set[int],
    desk: _Desk,
    meanwhile: Callable[[], bool],
) -> tuple[Fate | None, float]:
    """Stays with the process until it and all that it started are gone.

    Returns why it was ended, if it was, and when (``time.monotonic``): itself, not what it left running.
    """
    cause, ended = None, 0.0
    try:
        with ending.waiting(process) as wait:
            while process.returncode is None and not (cause := look()):
                wait(0.0 if meanwhile() else _LOOK_EVERY_S)
                ended = time.monotonic()
        if cause:
            hint = " (Ctrl-C again kills it)" if cause == verdict.INTERRUPTED else ""
            desk.watch.message(f"{cause[1]}; waiting for the process to write its report and end{hint}")
            ending.ask_to_end(process, desk.patience, hurry=lambda: desk.interrupts.count > 1)
            ended = time.monotonic()
    except BaseException:
        ending.kill(process, spared, desk.patience)
        raise
    if left := ending.clear(process, spared, desk.patience):
        desk.watch.message(f"Processes left running, now ended: {left}")
    return cause, ended


def _use_start(job: Job, seen: Events, desk: _Desk) -> bool:
    """Does a little of what the caller has left to do, while that disturbs no measurement; whether it did."""
    imports = job.script is not None and not (seen.started or seen.ended or seen.inside)
    return imports and desk.meanwhile()


def _watchful(command: Command, job: Job, seen: Events, desk: _Desk) -> _Look:
    """A look at the clock, the user and the events, which tells why the process is to be ended now, if it is.

    Events are not read after that: what a workload writes about being interrupted is no result of its case.
    """
    # After a limit or an interrupt an export saves what the workload has to show: neither of them ends that as well.
    case_timeout_s = job.options.get("case_timeout_s") if command.runs_workload else None
    limits = [(job.timeout_s, "timeout_s")]
    if case_timeout_s and job.script is None:
        limits.append((case_timeout_s, "case_timeout_s"))
    limit_s, of = min(limits)
    began = time.monotonic()
    borne = 0 if command.runs_workload else desk.interrupts.count

    def look() -> Fate | None:
        seen.read()
        if desk.interrupts.count > borne:
            return verdict.INTERRUPTED
        # However many cases there are: as long as one after the other ends, none of them is to blame.
        if time.monotonic() > max(began, seen.progressed_at) + limit_s:
            return "timeout", f"not done after {limit_s:g} s ({of})"
        if case_timeout_s and seen.inside and time.monotonic() - seen.inside_since > case_timeout_s:
            return "timeout", f"case not done after {case_timeout_s:g} s (case_timeout_s)"
        return None

    return look
