"""The log of a job: it is followed while a process writes it, and a job that a killed runner left continues from it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fake_profiler import Notes, fake_profiler, job_of

from profpipe.errors import ConfigError
from profpipe.job import Cause, Outcome, Status, Traits
from profpipe.runner import slots
from profpipe.runner.job_log import JobLog, ProcessEnd
from profpipe.runner.outcome import INTERRUPTED
from profpipe.runner.process import JOB_VARIABLE, GracePeriods

HURRIED = GracePeriods(interrupt_s=1.0, terminate_s=0.5, linger_s=0.3)
OK = "pass"
EXPORT = "import sys; open(sys.argv[1], 'w').write('exported')"
ROOT = Path(__file__).resolve().parents[1]

ENDED_WELL = ProcessEnd(0, 1.0, None, (), (0, 0), is_usable=True, has_failed=False)
STOPPED = replace(ENDED_WELL, returncode=-2, stopped=INTERRUPTED, has_failed=True)


def line(event, **fields):
    return json.dumps({"event": event, **fields}) + "\n"


def attempt(part, *cases):
    return line("attempt", part=part, cases=cases)


def began(*cases):
    return "".join(line("case_started", case=case) for case in cases)


def ended(*cases):
    """Each case began and ended."""
    return "".join(began(case) + line("case_ended", case=case, status="ok") for case in cases)


def ends(part, *processes):
    return "".join(line("ended", part=part, command=n, **asdict(end)) for n, end in enumerate(processes))


BOTH = ("case=1", "case=2")
DONE = attempt(1, *BOTH) + ended(*BOTH)


# --- following the log -----------------------------------------------------------------------------------------------


def follow(folder, before=""):
    """The log of a job with what an earlier runner left in it."""
    notes = Notes()
    if before:
        (folder / "job.jsonl").write_text(before)
    return JobLog(folder, notes), notes


def write(log, text):
    with log.path.open("a") as stream:
        stream.write(text)
    log.read()


def test_a_partial_line_is_read_when_it_is_complete(tmp_path):
    log, notes = follow(tmp_path)
    own = log.begin(1, ["a"])
    oom = line("case_ended", case="a", status="oom")
    write(log, began("a") + oom[:20])
    assert (own.inside, own.ended) == ("a", {})
    write(log, oom[20:])
    assert (own.inside, own.ended) == (None, {"a": Outcome(Status.OOM, Cause.WORKLOAD)})
    assert notes.calls == [("case_started", "a"), ("case_ended", "a", "oom")]


def test_a_replay_gives_the_same_state_and_tells_the_listener_nothing(tmp_path):
    log, _ = follow(tmp_path)
    stopped = Outcome(Status.TIMEOUT, Cause.JOB_TIMEOUT, "not done after 3 s", log="raw/log.txt")
    end = ProcessEnd(-9, 1.5, stopped, ("capture.out",), (7, 90), is_usable=False, has_failed=True)
    first = log.begin(1, ["a", "b"])
    write(log, ended("a") + began("b"))
    log.stop()
    write(log, ended("b"))
    log.end(first, 0, end)
    log.begin(2, ["b"])
    log.end(first, 1, ENDED_WELL)
    again, notes = follow(tmp_path)
    assert again.attempts == log.attempts and (again.started, notes.calls) == ({"a", "b"}, [])
    assert (first.ended, first.inside, first.ends) == ({"a": Outcome(Status.OK)}, "b", [end, ENDED_WELL])
    log.end(first, 0, ENDED_WELL)
    assert first.ends == [ENDED_WELL], "later ends are those of exports of another report"


def test_an_unfinished_last_line_does_not_damage_the_next_line(tmp_path):
    before = attempt(1, "a") + began("a") + ended("a")[-20:].strip()
    log, notes = follow(tmp_path, before)
    assert log.begin(2, ["a"]).part == 2 and not log.is_damaged
    assert log.path.read_text() == before + "\n" + attempt(2, "a") and notes.messages == []


@pytest.mark.parametrize("name", ["mine.txt", "new.txt"])
def test_the_log_is_not_written_through_a_link(tmp_path, name):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "job.jsonl").symlink_to(name)
    with pytest.raises(ConfigError, match=r"job\.jsonl: is a link or no regular file"):
        JobLog(tmp_path, Notes()).begin(1, ["a"])
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_last_started_case_is_the_current_one(tmp_path):
    log, _ = follow(tmp_path, attempt(1, "a", "b") + began("a", "b", "a") + line("case_ended", case="b", status="ok"))
    assert log.attempts[-1].inside == "a"


def test_a_line_that_is_not_an_event_is_ignored_with_a_message(tmp_path):
    log, notes = follow(tmp_path)
    log.begin(1, ["a"])
    write(log, 'Segmentation fault\n7\n[1]\n{"event": "case_ended", "case": "b"}\n' + ended("a"))
    assert list(log.attempts[-1].ended) == ["a"] and len(notes.messages) == 4


STARTED = line("started") + line("order", rounds=3)


def test_interleaved_rounds_count_the_cases_of_each_round(tmp_path):
    log, notes = follow(tmp_path)
    write(log, STARTED + began(*"abba"))
    assert notes.visits == [("a", 1, 1, 3), ("b", 2, 1, 3), ("b", 1, 2, 3), ("a", 2, 2, 3)]


def test_a_resumed_process_continues_the_count_of_rounds(tmp_path):
    log, notes = follow(tmp_path, attempt(1, *"abc") + STARTED + began(*"abcab") + ended("a"))
    log.begin(2, ["b", "c"])
    restored = line("samples", case="b", metric="time", round=1, unit="ns", values=[1])
    write(log, STARTED + restored + began("c", "b"))
    assert notes.visits == [("c", 3, 1, 3), ("b", 2, 2, 3)]


# --- a job that a killed runner left ---------------------------------------------------------------------------------


def left_behind(job, log, *files):
    """The job's folder as a killed runner left it."""
    job.folder.mkdir(parents=True)
    (job.folder / "log.txt").touch()
    (job.folder / "job.jsonl").write_text(log)
    for name in files:
        (job.folder / name).write_text("measured")


def take_up(job, profiler):
    (outcome,) = slots.run([job], {"fake": profiler}, Notes(), HURRIED)
    return outcome


def started(outcome, before=""):
    """The cases that were started since the log was ``before``."""
    lines = map(json.loads, outcome.job.log.read_text().removeprefix(before).splitlines())
    return [line["case"] for line in lines if line["event"] == "case_started"]


def commands_run(outcome):
    return sum(line.startswith("$ ") for line in (outcome.job.folder / "log.txt").read_text().splitlines())


def names(outcome):
    return [path.name for path in outcome.files]


NO_KEEP: dict[str, Any] = {"TRAITS": Traits()}
EXPORTS: dict[str, Any] = {**NO_KEEP, "exports": (EXPORT,)}
CUT = DONE.replace(line("case_ended", case="case=2", status="ok"), "")


@pytest.mark.parametrize(
    ("log", "files", "profiler", "cases", "commands", "left"),
    [
        # Its process had not begun.
        (attempt(1, *BOTH), (), {}, BOTH, 1, ["job.jsonl", "capture-2.out"]),
        # The profiler keeps the files of a case that ended, or not.
        (CUT, (), {}, ["case=2"], 1, ["job.jsonl", "capture-2.out"]),
        (CUT, ("capture.export",), EXPORTS, BOTH, 2, ["capture-2.out", "capture-2.export", "job.jsonl"]),
        # The last case had ended before the kill.
        (DONE, (), {}, [], 0, ["job.jsonl"]),
        # The report is there, and perhaps its export, which may have been interrupted or removed.
        (DONE + ends(1, ENDED_WELL), ("capture.out",), NO_KEEP, [], 0, ["capture.out", "job.jsonl"]),
        *(
            (DONE + ends(1, *found), ("capture.out",), EXPORTS, [], 1, ["capture.out", "capture.export", "job.jsonl"])
            for found in ([ENDED_WELL], [ENDED_WELL, replace(STOPPED, missing=("capture.export",))], [ENDED_WELL] * 2)
        ),
        # The report was removed, and its export exists; both were removed; the trace of a process was removed.
        (DONE + ends(1, *[ENDED_WELL] * 2), ("capture.export",), EXPORTS, [], 0, ["capture.export", "job.jsonl"]),
        (DONE + ends(1, *[ENDED_WELL] * 2), (), EXPORTS, BOTH, 2, ["capture-2.out", "capture-2.export", "job.jsonl"]),
        (DONE + ends(1, ENDED_WELL), (), {"makes_report": False}, BOTH, 1, ["job.jsonl", "capture-2.out"]),
    ],
)
def test_what_is_done_is_not_repeated(tmp_path, log, files, profiler, cases, commands, left):
    job = job_of(tmp_path, OK, OK)
    left_behind(job, log, *files)
    outcome = take_up(job, fake_profiler(tmp_path, **profiler))
    assert (outcome.status, outcome.case_outcomes) == ("ok", {})
    assert (started(outcome, log), commands_run(outcome)) == (list(cases), commands)
    assert sorted(names(outcome)) == sorted(left)


def test_the_time_of_a_command_is_the_time_of_its_last_process(tmp_path):
    job = job_of(tmp_path, OK, script=None, command=(sys.executable, "-c", ""))
    left_behind(job, attempt(1, "case=1") + ends(1, replace(STOPPED, seconds=60.0)))
    outcome = take_up(job, fake_profiler(tmp_path))
    assert (outcome.status, outcome.seconds > 60) == ("ok", True)
    assert 0 < outcome.last_s < 60 and outcome.last_s == pytest.approx(outcome.seconds - 60)


def test_a_crashed_case_is_not_repeated_and_the_pending_cases_continue(tmp_path):
    job = job_of(tmp_path, OK, "os.kill(os.getpid(), signal.SIGSEGV)", OK)
    crashed = replace(ENDED_WELL, returncode=-11, has_failed=True)
    log = attempt(1, *BOTH, "case=3") + ended("case=1") + began("case=2") + ends(1, crashed) + attempt(2, "case=3")
    left_behind(job, log, "capture.out")
    outcome = take_up(job, fake_profiler(tmp_path, **NO_KEEP))
    assert started(outcome, log) == ["case=3"]
    assert [(case, end.status) for case, end in outcome.case_outcomes.items()] == [("case=2", "crashed")]
    assert sorted(names(outcome)) == ["capture-3.out", "capture.out", "job.jsonl"]


def test_interrupted_cases_are_repeated_and_their_unfinished_attempts_are_listed(tmp_path):
    job = job_of(tmp_path, OK, OK, OK)
    log = attempt(1, *BOTH, "case=3") + ended("case=1") + began("case=2") + line("stopping") + ends(1, STOPPED)
    left_behind(job, log, "capture.out")
    outcome = take_up(job, fake_profiler(tmp_path, **NO_KEEP))
    assert (outcome.status, outcome.case_outcomes, started(outcome, log)) == ("ok", {}, ["case=2", "case=3"])
    assert outcome.attempted_again == {job.folder / "capture.out": {"case=2", "case=3"}}


def test_late_events_of_an_interrupted_process_do_not_end_cases(tmp_path):
    """It ignored the interrupt. The next process was in its first case when its runner was killed."""
    job = job_of(tmp_path, OK, OK)
    first = attempt(1, *BOTH) + began("case=1") + line("stopping") + ended(*BOTH) + ends(1, STOPPED)
    left_behind(job, first + attempt(2, *BOTH) + began("case=1"))
    outcome = take_up(job, fake_profiler(tmp_path))
    assert (outcome.status, outcome.case_outcomes) == ("ok", {})
    assert started(outcome, first) == ["case=1", "case=1", "case=2"]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[1]\n" + began("case=1"),
        attempt(1, *BOTH).replace("1", '"one"', 1),
        attempt(1, *BOTH) + "[" * 100_000 + "\n",
        attempt(1, *BOTH) + line("ended", part=1, command=7),
        attempt(1, *BOTH) + line("ended", part=1, command=0),
        attempt(1, *BOTH) + line("ended", part=9, command=0, **asdict(ENDED_WELL)),
    ],
)
def test_a_damaged_log_costs_no_case_that_ended(tmp_path, damaged):
    job = job_of(tmp_path, OK, OK)
    log = damaged + ended("case=1")
    left_behind(job, log)
    profiler = fake_profiler(tmp_path, makes_report=False)
    profiler.artifacts = lambda job: [job.log]  # type: ignore[method-assign]
    outcome = take_up(job, profiler)
    assert (outcome.status, started(outcome, log)) == ("ok", ["case=2"])
    assert [each.kind for each in outcome.incidents] == ["damaged_journal"]


def test_the_cases_of_a_process_whose_begin_was_lost_belong_to_an_attempt_of_all_cases(tmp_path):
    crashed = replace(ENDED_WELL, returncode=-11)
    lost = attempt(1, *BOTH) + began("case=1") + ends(1, crashed) + "7\n" + line("started") + ended("case=2")
    log, _ = follow(tmp_path, lost)
    assert [(each.part, each.cases, each.inside) for each in log.attempts] == [(1, {*BOTH}, "case=1"), (2, None, None)]
    assert log.is_damaged and list(log.attempts[1].ended) == ["case=2"]


# --- processes that outlive their runner -----------------------------------------------------------------------------


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(true, wait_s=120.0):
    deadline = time.monotonic() + wait_s
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_process_that_a_killed_runner_left_is_ended_before_another_starts(tmp_path):
    job = job_of(tmp_path, OK)
    left_behind(job, attempt(1, "case=1"))
    ignore = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )
    theirs, others = (
        subprocess.Popen(
            [sys.executable, "-c", ignore], env={**os.environ, JOB_VARIABLE: str(value)},
            stdout=subprocess.PIPE, start_new_session=True,
        )
        for value in (job.folder, tmp_path)
    )  # fmt: skip
    try:
        for process in (theirs, others):
            assert process.stdout and process.stdout.readline()
        take_up(job, fake_profiler(tmp_path))
        assert (is_alive(theirs.pid), is_alive(others.pid)) == (False, True)
    finally:
        for process in (theirs, others):
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other kernels have no signal for a parent's death")
def test_a_process_does_not_outlive_a_runner_that_is_killed(tmp_path):
    write = "pathlib.Path(folder / 'pid.tmp').write_text(str(os.getpid())); (folder / 'pid.tmp').rename(folder / 'pid')"
    runner = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests")!r})
from fake_profiler import Notes, fake_profiler, job_of
from profpipe.runner import slots as run
folder = Path({str(tmp_path)!r})
job = job_of(folder, {f"{write}; time.sleep(600)"!r})
list(run.run([job], {{"fake": fake_profiler(folder)}}, Notes()))
"""
    process = subprocess.Popen([sys.executable, "-c", runner], env={**os.environ, "PYTHONPATH": str(ROOT)})
    pid_file = job_of(tmp_path, OK).folder / "pid"
    assert wait_until(pid_file.exists)
    process.kill()
    process.wait()
    assert wait_until(lambda: not is_alive(int(pid_file.read_text())))
