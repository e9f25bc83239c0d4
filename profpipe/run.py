"""[Job] -> [Outcome]: the only module that starts processes.

A job's commands run one after the other, each in a session of its own, under a time limit, with its output in
``log.txt``. Whether they did their work is judged by the files that they made and by the cases in ``events.jsonl``,
never by the exit code alone. A case that takes its process down is recorded, and the cases after it go on in another.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from profpipe import ending, environment, reasons
from profpipe.ending import Interrupts, Patience
from profpipe.errors import Interrupted
from profpipe.events import Events
from profpipe.job import Case, Command, Job, Missing, Outcome, Profiler, Watch

#: (status, reason): what became of a case, or of a job.
Fate = tuple[str, str]
_Look = Callable[[], "Fate | None"]

_OK: Fate = ("ok", "")
_INTERRUPTED: Fate = ("failed", "interrupted")
_NOT_BEGUN: Fate = ("skipped", "interrupted before it started")
_LOOK_EVERY_S = 0.2
#: How much of a process's output is searched for the reason of a failure, from its end.
_LOG_TAIL_BYTES = 1 << 20


def run(
    jobs: Sequence[Job], profilers: Mapping[str, Profiler], watch: Watch, patience: Patience = ending.PATIENCE
) -> Iterator[Outcome]:
    """Yields each job's outcome when the job has ended, so that the caller can store it before the next one starts.

    Ctrl-C, SIGTERM and SIGHUP end the running process so that its report is still written; its job's outcome is
    yielded like any other, and then errors.Interrupted is raised. One that comes between two jobs, while the caller
    works, waits until the caller asks for the next outcome.
    """
    with Interrupts() as interrupts, ending.adopted_orphans():
        desk = _Desk(watch, patience, interrupts)
        for index, job in enumerate(jobs, start=1):
            watch.job_started(job, index, len(jobs))
            outcome = _carry_out(job, profilers[job.profiler], desk)
            watch.job_ended(outcome)
            yield outcome
            if interrupts.count:
                raise Interrupted(f"Interrupted after {index} of {len(jobs)} jobs.")


def ask(argv: Sequence[str], timeout_s: float = 20.0) -> str | None:
    """What a short command prints (stdout and stderr), or None where it cannot be started or does not end in time."""
    # A file and not a pipe: a grandchild that survives would hold the pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as output:
        try:
            process = _start(argv, environment.passed_on(os.environ), output)
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
    """What every step of a run needs beside its job."""

    watch: Watch
    patience: Patience
    interrupts: Interrupts


# --- one job: as many parts as its crashes make necessary ------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One process of a job, with the exports after it. ``rest`` are the cases it left undone and did not die in."""

    job: Job
    trouble: Fate | None
    fates: Mapping[str, Fate]
    rest: tuple[Case, ...]
    began_a_case: bool
    seconds: float
    returncode: int | None

    @property
    def hopeless(self) -> bool:
        """Whether another process for the rest would meet the same end."""
        status = self.trouble[0] if self.trouble else ""
        return self.returncode is None or status == "skipped" or (status == "timeout" and not self.began_a_case)


def _carry_out(job: Job, profiler: Profiler, desk: _Desk) -> Outcome:
    if isinstance(job.tool, Missing):
        return _skipped(job, str(job.tool))
    parts = [_run_part(job, profiler, desk)]
    while (last := parts[-1]).rest and not (last.hopeless or _stuck(parts) or desk.interrupts.count):
        why = ": ".join(last.trouble or ())
        desk.watch.message(f"{_name(job)}: {why}. Cases that go on in a new process: {len(last.rest)}")
        parts.append(_run_part(replace(job, cases=last.rest, part=last.job.part + 1), profiler, desk))
    return _outcome(job, parts, profiler, interrupted=desk.interrupts.count > 0)


def _stuck(parts: Sequence[_Part]) -> bool:
    """Twice in a row not one case was begun. Once may be chance: nsys 2022.4 now and then loses its own agent."""
    return len(parts) > 1 and not any(part.began_a_case for part in parts[-2:])


def _skipped(job: Job, reason: str) -> Outcome:
    return Outcome(job, "skipped", reason, ended_by_runner=tuple((case.id, "skipped", reason) for case in job.cases))


def _outcome(job: Job, parts: Sequence[_Part], profiler: Profiler, *, interrupted: bool) -> Outcome:
    fates = {case: fate for part in parts for case, fate in part.fates.items()}
    fates |= {case.id: _NOT_BEGUN if interrupted else parts[-1].trouble or _OK for case in parts[-1].rest}
    status, reason = next((part.trouble for part in parts if part.trouble), _OK)
    made = dict.fromkeys(path for part in parts for path in profiler.artifacts(part.job) if path.exists())
    return Outcome(
        job,
        status,
        reason,
        seconds=sum(part.seconds for part in parts),
        returncode=parts[-1].returncode,
        files=tuple(made),
        ended_by_runner=tuple((case, *fate) for case, fate in fates.items()),
    )


def _name(job: Job) -> str:
    return f"{job.workload} under {job.profiler}"


# --- one part: the workload's process, then what exports its report ---------------------------------------------------


def _run_part(job: Job, profiler: Profiler, desk: _Desk) -> _Part:
    job.folder.mkdir(parents=True, exist_ok=True)
    if job.script:
        _write_whole(job.spec, json.dumps(_spec(job), indent=1))
    events = Events(job.folder / "events.jsonl", desk.watch)
    ends: list[_End] = []
    for command in profiler.commands(job):
        ends.append(_run_process(command, job, events, desk))
        if not ends[-1].usable or desk.interrupts.count > 1:
            break
    return _judge(job, profiler, events, ends)


def _spec(job: Job) -> dict[str, object]:
    """What ``profpipe.harness`` reads."""
    return {
        "workload": job.workload,
        "profiler": job.profiler,
        "script": str(job.script),
        "cases": [{"id": case.id, "params": dict(case.params)} for case in job.cases],
        "warmup": job.warmup,
        "repeats": job.repeats,
        "options": dict(job.options),
        "stem": job.stem,
        "part": job.part,
    }


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _judge(job: Job, profiler: Profiler, events: Events, ends: Sequence[_End]) -> _Part:
    """What became of the part and its cases: from how its processes ended, what they made, and events.jsonl."""
    if job.script is not None:
        undone = tuple(case for case in job.cases if case.id not in events.ended)
        inside = events.inside
    else:
        undone = job.cases if any(end.cause or end.returncode for end in ends) else ()
        inside = job.cases[0].id
    trouble = _trouble(job, profiler, ends, unfinished=bool(undone), inside=inside)
    fates = {inside: trouble or _OK} if inside else {}
    if trouble and not all(end.usable for end in ends):
        status = "skipped" if trouble[0] == "skipped" else "failed"
        fates |= {case: (status, f"no profile: {trouble[1]}") for case, was in events.ended.items() if was == "ok"}
    return _Part(
        job,
        trouble,
        fates,
        rest=tuple(case for case in undone if case.id != inside),
        began_a_case=bool(inside or events.ended),
        seconds=sum(end.seconds for end in ends),
        returncode=next(end.returncode for end in ends if end.command.runs_workload),
    )


def _trouble(
    job: Job, profiler: Profiler, ends: Sequence[_End], *, unfinished: bool, inside: str | None
) -> Fate | None:
    """Why the part is not what it should be; None for one whose files are all there and whose cases all ended.

    An exit code is no trouble by itself: a harness that dies after its last case has left everything that we want.
    """
    bad = next((end for end in ends if end.cause or not end.usable), ends[0] if unfinished else None)
    if bad is None:
        return None
    if bad.cause == _INTERRUPTED:
        return _INTERRUPTED
    status, reason = bad.cause or profiler.diagnose(bad.log) or _found_out(bad, in_case=bool(job.script and inside))
    return status, f"{reason} (log: {job.portable(str(job.folder / 'log.txt'))})"


def _found_out(end: _End, *, in_case: bool) -> Fate:
    """What a process says that neither was ended by us nor is understood by its profiler."""
    returncode = end.returncode or 0
    if end.missing and not returncode:
        return "failed", reasons.of_missing(end.missing[0], end.log)
    died = in_case or reasons.killed_by(returncode)
    return "crashed" if died else "failed", reasons.of_exit(returncode, end.log)


# --- one process -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _End:
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


def _run_process(command: Command, job: Job, events: Events, desk: _Desk) -> _End:
    before = {path: _stamp(path) for path in command.makes}
    env = {**environment.passed_on(os.environ), **job.env, **command.env}
    began, returncode = time.monotonic(), None
    cause: Fate | None
    with (job.folder / "log.txt").open("ab") as log:
        # Not the environment: it is the one thing in a log that nobody means to share.
        log.write(f"$ {shlex.join(command.argv)}\n".encode())
        log.flush()
        output_begin = log.tell()
        spared = ending.descendants()
        try:
            process = _start(command.argv, env, log, job.cwd)
        except OSError as error:
            cause = "failed", f"could not be started: {error}"
        else:
            cause = _attend(process, _watchful(command, job, events, desk), spared, desk)
            returncode = process.returncode
            if cause is None:
                events.read()
    seconds = time.monotonic() - began
    missing = tuple(path for path, stamp in before.items() if _stamp(path) in (None, stamp))
    return _End(command, returncode, seconds, cause, missing, _tail(job.folder / "log.txt", output_begin))


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
    )


def _attend(process: subprocess.Popen[bytes], look: _Look, spared: set[int], desk: _Desk) -> Fate | None:
    """Stays with the process until it and all that it started are gone; returns why it was ended, if it was."""
    cause: Fate | None = None
    try:
        while process.returncode is None and not (cause := look()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_EVERY_S)
        if cause:
            hint = " (Ctrl-C again kills it)" if cause == _INTERRUPTED else ""
            desk.watch.message(f"{cause[1]}; waiting for the process to write its report and end{hint}")
            ending.ask_to_end(process, desk.patience, hurry=lambda: desk.interrupts.count > 1)
    except BaseException:
        ending.kill(process, spared, desk.patience)
        raise
    if left := ending.clear(process, spared, desk.patience):
        desk.watch.message(f"Processes left running, now ended: {left}")
    return cause


def _watchful(command: Command, job: Job, events: Events, desk: _Desk) -> _Look:
    """A look at the clock, the user and the events, which tells why the process is to be ended now, if it is.

    Events are not read after that: what a workload writes about being interrupted is no result of its case.
    """
    deadline = time.monotonic() + job.timeout_s
    # After a limit or an interrupt an export saves what the workload has to show: neither of them ends that as well.
    case_timeout_s = job.options.get("case_timeout_s") if command.runs_workload else None
    borne = 0 if command.runs_workload else desk.interrupts.count

    def look() -> Fate | None:
        events.read()
        if desk.interrupts.count > borne:
            return _INTERRUPTED
        if time.monotonic() > deadline:
            return "timeout", f"not done after {job.timeout_s:g} s (timeout_s)"
        if case_timeout_s and events.inside and time.monotonic() - events.inside_since > case_timeout_s:
            return "timeout", f"case not done after {case_timeout_s:g} s (case_timeout_s)"
        return None

    return look


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is made anew; None while there is nothing in it.

    No clock is compared with a file's: file systems round their times, and a server's clock is another one.
    """
    try:
        stat = path.stat()
        empty = not any(path.iterdir()) if path.is_dir() else not stat.st_size
    except OSError:
        return None
    return None if empty else (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _tail(path: Path, begin: int) -> str:
    with path.open("rb") as stream:
        stream.seek(max(begin, path.stat().st_size - _LOG_TAIL_BYTES))
        return stream.read().decode(errors="replace")
