"""Job -> JobOutcome: run the processes of a job.

The commands of a job run one after the other, each in its own session, under a time limit, with the output in
``log.txt``. The files that a command made and the cases in the log of the job decide whether it succeeded, never the
exit code alone. A case that takes its process down is recorded, and the cases after it run in a new process.

A job that an earlier runner did not finish continues where its log says (``job_log.py``).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from profpipe.errors import is_disk_full
from profpipe.job import (
    LOG,
    Case,
    Cause,
    Command,
    Incident,
    IncidentKind,
    Job,
    JobOutcome,
    Missing,
    Outcome,
    Profiler,
    ProgressListener,
    Status,
    Tool,
    cases_of_files,
    revealed,
    workload_argv,
)
from profpipe.measure import case_order
from profpipe.profilers import find_traits
from profpipe.results import atomic, raw_files
from profpipe.runner import (
    artifacts,
    failure_reasons,
    outcome,
    prestart,
    process,
)
from profpipe.runner.job_log import Attempt, JobLog, ProcessEnd
from profpipe.runner.outcome import JudgedAttempt
from profpipe.runner.prestart import Prestart, Start
from profpipe.runner.process import Child, GracePeriods, InterruptCounter, SupervisorError
from profpipe.runner.slurm import queue

_POLL_S = 0.2
#: How often a command is started whose tool fails by chance before the workload runs, and the pause after the first
#: of these failures. Each further pause is longer by this: the cause is a busy machine.
_MAX_STARTS, _RESTART_PAUSE_S = 4, 0.2


@dataclass(frozen=True)
class Context:
    """The arguments that all steps of a job share. ``oom_cases`` grows during the run."""

    listener: ProgressListener
    grace: GracePeriods
    interrupts: InterruptCounter
    oom_cases: dict[tuple[str, str], list[Case]]
    prestart: Prestart
    profilers: Mapping[str, Profiler]
    #: The jobs that have not been started.
    upcoming: list[Job] = field(default_factory=list)

    def prestart_next(self) -> None:
        """Start the processes of the next jobs that the harness runs alone, and that no earlier runner has begun."""

        def starts() -> Iterator[tuple[Job, Start]]:
            for job in (*self.upcoming, *self.prestart.following):
                if job.script and job.processes == 1 and isinstance(job.tool, Tool) and not os.path.lexists(job.log):
                    command = self.profilers[job.profiler].commands(job)[0]
                    if command.argv == workload_argv(job):
                        yield job, _start(command, job)

        self.prestart.start(starts(), self.grace)


# --- one job: as many attempts as its crashes require ----------------------------------------------------------------


def carry_out(job: Job, profiler: Profiler, context: Context) -> JobOutcome:
    if isinstance(job.tool, Missing):
        skipped, ids = Outcome(Status.SKIPPED, Cause.TOOL_MISSING, str(job.tool)), [case.id for case in job.cases]
        causes = dict.fromkeys(ids, Cause.TOOL_MISSING)
        return JobOutcome(job, skipped, case_outcomes=dict.fromkeys(ids, skipped), causes=causes)
    if os.path.lexists(job.log):
        process.kill_leftovers(job.folder, context.grace.kill_s)
        queue.end_steps(job, process.ask, context.grace.kill_s)
    log = JobLog(job.folder, context.listener)
    damage = (Incident(IncidentKind.DAMAGED_JOURNAL, LOG),) if log.is_damaged else ()
    results = _load_results(job, profiler, log, context)
    pruned: dict[str, Outcome] = {}
    while (pending := results[-1].pending if results else job.cases) and not _is_over(results, context):
        pruned |= dict.fromkeys(_cases_larger_than_oom(job, pending, results, context), outcome.LARGER_THAN_OOM)
        pending = tuple(case for case in pending if case.id not in pruned)
        if not pending:
            break
        if results:
            problem = results[-1].problem
            why = f"{problem.status}: {problem.reason}" if problem else "started before"
            context.listener.message(f"{job.title}: {why}. A new process runs the remaining cases: {len(pending)}")
        results.append(_run_attempt(job.select_cases(pending, log.last_part() + 1), profiler, log, context))
    _remember_oom(job, results, context)
    return _merge_results(job, results, pruned, profiler, log, damage, interrupted=context.interrupts.count > 0)


def _is_over(results: Sequence[JudgedAttempt], context: Context) -> bool:
    """Return True if another process makes no sense.

    One process that starts no case may be chance, for a tool sometimes loses its agent. Two in a row are not.
    """
    is_stuck = len(results) > 1 and not any(result.started_a_case for result in results[-2:])
    return bool(results) and (results[-1].unrecoverable or is_stuck or context.interrupts.count > 0)


def _cases_larger_than_oom(
    job: Job, cases: Sequence[Case], results: Sequence[JudgedAttempt], context: Context
) -> Iterator[str]:
    """Yield the ids of ``cases`` that are larger in every dimension than a case that ran out of memory in any job."""
    if not job.settings.skip_larger_after_oom:
        return
    _remember_oom(job, results, context)
    smaller = context.oom_cases.get((job.workload, job.profiler), ())
    yield from (c.id for c in cases if any(case_order.is_larger(c.params, other.params) for other in smaller))


def _remember_oom(job: Job, results: Sequence[JudgedAttempt], context: Context) -> None:
    oom_cases = context.oom_cases.setdefault((job.workload, job.profiler), [])
    oom_cases += [case for result in results for case in result.oom_cases() if case not in oom_cases]


def _merge_results(
    job: Job,
    results: Sequence[JudgedAttempt],
    pruned: Mapping[str, Outcome],
    profiler: Profiler,
    log: JobLog,
    damage: Sequence[Incident],
    *,
    interrupted: bool,
) -> JobOutcome:
    """Merge the results of all attempts, and the ``damage`` to the log.

    There is no result where every case is too large to be tried.
    """
    outcomes = {case: ended for result in results for case, ended in result.outcomes.items()}
    for case in results[-1].pending if results else ():
        if interrupted:
            # In rounds the harness leaves a case and turns to it again.
            outcomes[case.id] = outcome.INTERRUPTED if case.id in log.started else outcome.NOT_STARTED
        else:
            outcomes[case.id] = results[-1].problem or outcome.OK
    outcomes |= pruned
    files = {
        result.job.part: {
            path: case for path, case in cases_of_files(profiler.artifacts(result.job)).items() if path.exists()
        }
        for result in results
        # A program that was stopped is run again whole.
        if result.has_files and not (job.script is None and result.pending and result is not results[-1])
    }
    attempted_again = {
        path: result.retried
        for result in results
        if result.retried
        for path in files.get(result.job.part, ())
        if path not in job.records
    }
    recorded = {case: ended for result in results for case, ended in result.recorded.items()}
    restarts = [result for result in results[:-1] if result.problem and not result.outcomes]
    reasons = [result.problem.reason for result in restarts if result.problem]
    incidents = [*damage, *(Incident(IncidentKind.RESTARTED, "log.txt", reason) for reason in reasons)]
    if job.script is None and results and not results[-1].problem:
        ended_by = failure_reasons.ended_by(results[-1].returncode, job.command)
        incidents += [Incident(IncidentKind.ENDED, "log.txt", f"{ended_by} ended it")] if ended_by else []
    problems = (result.problem for result in results if result.problem and result not in restarts)
    return JobOutcome(
        job,
        end=next(problems, outcome.OK),
        seconds=sum(result.seconds for result in results),
        last_s=results[-1].seconds if results else 0.0,
        used=results[-1].ends[0].used if results and results[-1].ends else (),
        returncode=results[-1].returncode if results else None,
        files={path: case for of_part in files.values() for path, case in of_part.items()},
        interrupted=interrupted,
        attempted_again=attempted_again,
        case_outcomes=outcomes,
        causes={case: ended.cause for case, ended in {**recorded, **outcomes}.items() if ended.cause},
        incidents=tuple(incidents),
    )


# --- one attempt: the workload's process, then the exports of its report ---------------------------------------------


def _run_attempt(job: Job, profiler: Profiler, log: JobLog, context: Context) -> JudgedAttempt:
    # Recordings hold the environment. Until the private files are known, only their owner may enter the folder.
    job.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    attempt = log.begin(job.part, [case.id for case in job.cases])
    if job.script:
        atomic.write_private(job.spec, json.dumps(_specification(job), indent=1).encode())
    return _run_commands(job, profiler, attempt, log, context)


def _run_commands(job: Job, profiler: Profiler, attempt: Attempt, log: JobLog, context: Context) -> JudgedAttempt:
    """Run the commands of the attempt that have no end yet, as long as each leaves a usable file for the next one."""
    commands, ends = profiler.commands(job), attempt.ends
    for number in range(len(ends), len(commands)):
        if ends and (context.interrupts.count > 1 or not ends[-1].is_usable):
            break
        log.end(attempt, number, _run_command(commands[number], job, log, context))
    was_killed = any(
        earlier.part < attempt.part
        and earlier.inside == attempt.inside
        and any(failure_reasons.is_sigkill(first.returncode) for first in earlier.ends[:1])
        for earlier in log.attempts
    )
    read_output = functools.partial(_read_output, job)
    return outcome.judge(job, profiler, attempt, read_output, retries_kill=not was_killed)


def _read_output(job: Job, end: ProcessEnd) -> str:
    # From here on the output reaches tables, pages and the terminal. The file itself is private.
    return job.masked(artifacts.read_output(job.folder / "log.txt", end.log))


def _load_results(job: Job, profiler: Profiler, log: JobLog, context: Context) -> list[JudgedAttempt]:
    """Return the results of an earlier runner that still count, and make the exports that are missing."""
    results = []
    for attempt in list(log.attempts):
        cases = job.cases if attempt.cases is None else [case for case in job.cases if case.id in attempt.cases]
        attempt_job = job.select_cases(cases, attempt.part)
        commands = profiler.commands(attempt_job)
        removed = bool(attempt.ends) and _is_removed(commands, attempt, attempt_job, profiler)
        if removed:
            context.listener.message(f"{job.title}: the files of a process were removed; its cases run again")
        if attempt.ends and not removed:
            attempt.ends[:] = _valid_ends(commands, attempt, job)
            results.append(outcome.as_resumed(_run_commands(attempt_job, profiler, attempt, log, context)))
        else:
            # Which files an attempt left is not known where the log has lost its begin.
            has_own_files = attempt.cases is None and bool(
                cases_of_files(profiler.artifacts(attempt_job)).keys() - job.records
            )
            keeps = profiler.TRAITS.keeps_ended_cases and not removed and not has_own_files
            results.append(outcome.cut_off(attempt_job, attempt.ended, keeps_ended_cases=keeps))
    return outcome.with_all_pending(results)


def _is_removed(commands: Sequence[Command], attempt: Attempt, job: Job, profiler: Profiler) -> bool:
    """Return True if neither the report nor the exports of a finished process exist any more.

    A profiler such as torch writes files in addition to the records. All of these files must be gone.
    """
    first = attempt.ends[0]
    if first.returncode is None or first.missing:
        return False
    profiler_files = [path for path in cases_of_files(profiler.artifacts(job)) if path not in job.records]
    has_ok = any(ended.status is Status.OK for ended in attempt.ended.values())
    had_own = bool(profiler_files) and len(commands) == 1 and first.returncode == 0 and has_ok
    none_left = had_own and not any(path.exists() for path in profiler_files)
    return none_left or all(artifacts.find_missing(command, job) for command in (commands[0], commands[-1]))


def _valid_ends(commands: Sequence[Command], attempt: Attempt, job: Job) -> list[ProcessEnd]:
    """Return the ends up to the first export that was interrupted, found the disk full or was removed since.

    The end of the workload's process always stays: a user may delete a report and keep its export.
    """

    def is_valid(command: Command, end: ProcessEnd) -> bool:
        if end.stopped and end.stopped.cause is Cause.INTERRUPTED:
            return False
        if end.returncode or end.missing:
            return not is_disk_full(_read_output(job, end))
        return not artifacts.find_missing(command, job)

    exports = zip(commands[1:], attempt.ends[1:], strict=False)
    return [attempt.ends[0], *(end for _, end in itertools.takewhile(lambda pair: is_valid(*pair), exports))]


def _describe_case(case: Case, job: Job) -> dict[str, object]:
    """Return what the harness needs of a case: what it publishes, and the values of secret parameters."""
    hidden = {
        name: value for name, value in revealed(case.params, job.launch.hidden).items() if value != case.params[name]
    }
    return {"id": case.id, "params": dict(case.params), **({"hidden": hidden} if hidden else {})}


def _specification(job: Job) -> dict[str, object]:
    """Return what ``profpipe.measure.harness`` reads."""
    traits = find_traits(job.profiler)
    names = ("workload", "profiler", "warmup", "repeats", "processes", "stem", "part")
    values = {**vars(job.settings), **vars(job), "stem": job.stem}
    return {
        **{name: values[name] for name in names},
        "script": str(job.script),
        "folder": str(job.folder),
        "cases": [_describe_case(case, job) for case in job.cases],
        "options": job.dump_settings(),
        **({"inside": str(traits.inside), "suffix": traits.suffix} if traits.inside else {}),
        **({"ranges": traits.ranges} if traits.ranges else {}),
        **({"secrets": dict(job.launch.secrets)} if job.launch.secrets else {}),
    }


# --- one command -----------------------------------------------------------------------------------------------------


def _run_command(command: Command, job: Job, log: JobLog, context: Context) -> ProcessEnd:
    """Run the command to its end, and again after a false start of its tool. The seconds of all starts add up."""
    lost_s = 0.0
    for start in range(1, _MAX_STARTS + 1):
        end = _start_and_wait(command, job, log, context)
        has_begun = log.attempts[-1].ended or log.attempts[-1].inside or context.interrupts.count
        has_failed = bool(end.returncode or end.missing) and end.stopped is None
        if start == _MAX_STARTS or command.retry_pattern is None or not has_failed or has_begun:
            break
        if not command.retry_pattern.search(_read_output(job, end)):
            break
        lost_s += end.seconds
        context.listener.message(f"{job.title}: {job.profiler} failed before it ran the workload; starting it again")
        time.sleep(start * _RESTART_PAUSE_S)
    if command.fallback and end.missing and not end.returncode and not end.stopped and not context.interrupts.count:
        why = artifacts.explain_missing_records(job, end.seconds) or "no step was recorded"
        context.listener.message(f"{job.title}: {why.rstrip('.')}. Running it again to record the whole process")
        lost_s += end.seconds
        end = _start_and_wait(command.fallback, job, log, context)
    return replace(end, seconds=end.seconds + lost_s)


def _start(command: Command, job: Job) -> Start:
    mark = {process.JOB_VARIABLE: str(job.folder)}
    env = {**process.job_variables(job), **queue.step_variables(job), **job.launch.env, **command.env, **mark}
    return Start(
        command.argv, {**env, **artifacts.variables(job, env)} if command.runs_workload else env, job.launch.cwd
    )


def _start_and_wait(command: Command, job: Job, log: JobLog, context: Context) -> ProcessEnd:
    before, start = artifacts.stamp_files(command, job), _start(command, job)
    earlier_traces = artifacts.stamp_collected(job)
    returncode, seconds, used, oom_kills = None, 0.0, tuple[float, ...](), failure_reasons.count_kills()
    stopped: Outcome | None
    with atomic.open_to_append(job.folder / "log.txt", 0o600) as output:
        # Without the values of the environment, which may be secrets: a log is often shared.
        output.write(f"$ {job.shown(command)}\n".encode(errors="backslashreplace"))
        if command.runs_workload and job.script is None and (names := process.left_out(os.environ, start.env)):
            output.write(raw_files.LEFT_OUT.encode() + ", ".join(names).encode("unicode_escape") + b"\n")
        output.flush()
        output_begin = output.tell()
        try:
            # A workload that outlives its tool is a process that the tool left running.
            linger_s = job.settings.timeout_s if command.may_outlive_tool else context.grace.linger_s
            grace = replace(context.grace, linger_s=linger_s)
            taken = context.prestart.take(job, start, output) if command.runs_workload else None
            started = taken or process.start(start.argv, start.env, output, start.cwd, grace)
        except (OSError, SupervisorError) as error:
            stopped = _failed(job, Cause.NOT_STARTABLE, f"could not be started: {error}")
        else:
            context.listener.process_started(output_begin)
            # Processes import beside the imports of a process that has just been started, and never beside the samples
            # that the process of this slot takes without a profiler.
            if command.runs_workload and (taken is None or job.profiler != "plain"):
                context.prestart_next()
            stopped, was_due, ended = _attend(started, command, job, log, context)
            prestart.finish(taken, output)
            # What a server returns when the runner ends it says nothing.
            returncode, seconds = 0 if was_due else started.returncode, ended - started.began
            used = started.used
            artifacts.complete_records(job)
            if stopped or was_due or (returncode or 0) < 0:
                queue.end_steps(job, process.ask, context.grace.kill_s)
            if stopped is None and command.runs_workload and _is_interrupted_too(returncode, context):
                stopped = outcome.INTERRUPTED
            if stopped is None and not was_due:
                log.read()
                # The death of an export says nothing about the case in which the workload's process died.
                if command.runs_workload and (log.attempts[-1].inside or job.script is None):
                    stopped = _explain_sigkill(job, returncode, oom_kills, output_begin)
        if command.runs_workload:
            try:
                artifacts.collect(job, earlier_traces)
            except OSError as error:
                stopped = stopped or _failed(job, Cause.FILE_MISSING, f"a file of collect: cannot be copied: {error}")
        # A program that failed has its own reason, which is the end of its output.
        has_ended = command.runs_workload and returncode == 0
        if has_ended and (why := artifacts.explain_missing_records(job, seconds)):
            output.seek(0, os.SEEK_END)
            output.write(f"\nprofpipe: {why}\n".encode())
            output.flush()
        output_end = output.seek(0, os.SEEK_END)
    missing = artifacts.find_missing(command, job, before)
    is_usable = returncode is not None and not missing and (command.runs_workload or returncode == 0)
    # A process of a pair must come to its end: a signal would decide its time, and a gate would pass.
    was_ended = not job.label and failure_reasons.ended_by(returncode, job.command)
    has_failed = command.has_failed(returncode, seconds) and not was_ended
    return ProcessEnd(returncode, seconds, stopped, missing, (output_begin, output_end), is_usable, has_failed, used)


def _failed(job: Job, cause: Cause, details: str) -> Outcome:
    """Return the outcome of a command that the runner could not start or whose files it could not copy."""
    return Outcome(Status.FAILED, Cause.DISK_FULL if is_disk_full(details) else cause, job.masked(details))


def _is_interrupted_too(returncode: int | None, context: Context) -> bool:
    """Return True if a signal ended the process that this runner got too: Slurm sends SIGTERM to all of a task.

    The process may get the signal first.
    """
    if returncode and -returncode in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) and not context.interrupts.count:
        time.sleep(_POLL_S)
    return bool(returncode and context.interrupts.count)


def _explain_sigkill(job: Job, returncode: int | None, kills_before: int | None, begin: int) -> Outcome | None:
    """Return the outcome of a process that SIGKILL ended, where it left no result.

    torchrun's output says which of its processes died.
    """
    if job.processes == 1:
        killed = failure_reasons.explain_sigkill(returncode, kills_before)
        is_known = failure_reasons.ended_by(returncode, job.command) != "SIGKILL" or artifacts.has_results(job)
        return None if killed and killed.cause is Cause.SIGKILL and job.script is None and is_known else killed
    log = job.folder / "log.txt"
    rank, code = failure_reasons.first_failure(artifacts.read_output(log, (begin, log.stat().st_size))) or (0, None)
    killed = failure_reasons.explain_sigkill(code, kills_before)
    return replace(killed, details=f"rank {rank}: {killed.details}") if killed else None


def _attend(
    started: Child, command: Command, job: Job, log: JobLog, context: Context
) -> tuple[Outcome | None, bool, float]:
    """Wait until the process and all its descendants are gone.

    Returns why the runner stopped the process, or None; whether it ended the process because its work was done; and
    when the process itself ended (``time.monotonic``).
    """
    stop, was_due, ended = None, False, started.began
    find_stop, began = _stop_condition(command, job, log, context), time.monotonic()
    try:
        while started.returncode is None and not (stop := find_stop()):
            # A server has done its work and would go on for ever.
            if was_due := artifacts.is_over(command, job, time.monotonic() - began):
                break
            started.wait(_POLL_S)
            context.listener.job_runs(job)
        while command.may_outlive_tool and not (stop or was_due or started.is_alone(_POLL_S)):
            context.listener.job_runs(job)
            stop = find_stop()
        ended = started.ended
        if was_due:
            ended = time.monotonic()
            process.terminate(started, context.grace, is_urgent=lambda: context.interrupts.count > 0)
        if stop:
            hint = " (Ctrl-C again kills it)" if stop.cause is Cause.INTERRUPTED else ""
            log.stop()
            context.listener.message(f"{stop.reason}; waiting for the process to write its report{hint}")
            is_reporting = functools.partial(_is_reporting, command, job, started)
            process.stop(started, context.grace, lambda: context.interrupts.count > 1, is_reporting)
            ended = time.monotonic()
    except BaseException:
        started.kill(context.grace.kill_s)
        raise
    left = started.end_remaining(context.grace)
    if started.returncode is None:
        context.listener.message(f"Process {started.pid} still runs after SIGKILL: it hangs inside a driver")
    elif left:
        context.listener.message(f"Ended processes that were still running: {left}")
    return stop, was_due, ended


def _is_reporting(command: Command, job: Job, started: Child) -> bool:
    """Return True if ``started`` is a tool whose workload has ended: it writes its report."""
    has_tool = command.runs_workload and isinstance(job.tool, Tool) and bool(job.tool.path)
    return has_tool and not process.is_running(workload_argv(job), started)


def _stop_condition(command: Command, job: Job, log: JobLog, context: Context) -> Callable[[], Outcome | None]:
    """Return a function that reads the events and says whether the process must stop: a time limit, or an interrupt."""
    # After a limit or an interrupt, an export still saves the results. Neither of them stops the export.
    case_timeout_s = job.settings.case_timeout_s if command.runs_workload else None
    limits = [(job.settings.timeout_s, "timeout_s")]
    if case_timeout_s and job.script is None:
        limits.append((case_timeout_s, "case_timeout_s"))
    limit_s, setting = min(limits)
    began = time.monotonic()
    ignored = 0 if command.runs_workload else context.interrupts.count

    def find_stop() -> Outcome | None:
        log.read()
        now = time.monotonic()
        if context.interrupts.count > ignored:
            return outcome.INTERRUPTED
        # The limit restarts at each case, so a job of many cases does not time out while they end one by one.
        if now > max(began, log.progressed_at) + limit_s:
            return Outcome(Status.TIMEOUT, Cause.JOB_TIMEOUT, f"not done after {limit_s:g} s ({setting})")
        if case_timeout_s and log.attempts[-1].inside and now - log.inside_since > case_timeout_s:
            details = f"case not done after {case_timeout_s:g} s (case_timeout_s)"
            return Outcome(Status.TIMEOUT, Cause.CASE_TIMEOUT, details)
        return None

    return find_stop
