"""A job that a killed runner left unfinished: nothing that is done is repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_profiler import FakeProfiler, Notes, fake_profiler, job_of

from profpipe.job import CaseOutcome, Cause, Job, JobOutcome, Status
from profpipe.runner import executor, journal
from profpipe.runner.journal import Entry, ProcessEnd
from profpipe.runner.outcome import INTERRUPTED
from profpipe.runner.process import JOB_VARIABLE, GracePeriods

ENDED = CaseOutcome(Status.OK)
HURRIED = GracePeriods(interrupt_s=1.0, terminate_s=0.5, linger_s=0.3)
OK = "pass"
ENDED_WELL = ProcessEnd(returncode=0, seconds=1.0, stopped=None, missing=(), log=(0, 0))
EXPORT = "import sys; open(sys.argv[1], 'w').write('exported')"
ROOT = Path(__file__).resolve().parents[1]


def left_behind(job: Job, *entries: Entry, events: str = "", files: tuple[str, ...] = ()) -> None:
    """The job's folder as a killed runner left it."""
    job.folder.mkdir(parents=True)
    (job.folder / "log.txt").touch()
    for entry in entries:
        journal.write(job.folder, entry)
    lines = [
        {"event": event, "case": case, **({"status": "ok"} if event == "case_ended" else {})}
        for event, case in (word.split(":") for word in events.split())
    ]
    (job.folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in files:
        (job.folder / name).write_text("measured")


def take_up(job: Job, profiler: FakeProfiler) -> JobOutcome:
    (outcome,) = executor.run([job], {"fake": profiler}, Notes(), HURRIED)
    return outcome


def started(outcome: JobOutcome) -> list[str]:
    lines = map(json.loads, (outcome.job.folder / "events.jsonl").read_text().splitlines())
    return [line["case"] for line in lines if line["event"] == "case_started"]


def commands_run(outcome: JobOutcome) -> int:
    return sum(line.startswith("$ ") for line in (outcome.job.folder / "log.txt").read_text().splitlines())


def names(outcome: JobOutcome) -> list[str]:
    return [path.name for path in outcome.files]


BEGUN = Entry(1, ("case=1", "case=2"), {}, None)
DONE = Entry(1, ("case=1", "case=2"), {"case=1": ENDED, "case=2": ENDED}, None, (ENDED_WELL,))


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    end = ProcessEnd(
        -9,
        1.5,
        CaseOutcome(Status.TIMEOUT, Cause.JOB_TIMEOUT, "not done after 3 s", log="raw/log.txt"),
        ("capture.out",),
        (7, 90),
    )
    entries = [Entry(1, ("a", "b"), {"a": ENDED}, "b", (end, ENDED_WELL)), Entry(2, ("b",), {}, None)]
    for entry in entries:
        journal.write(tmp_path, entry)
    assert journal.read(tmp_path) == entries
    journal.write(tmp_path, entries[0])
    assert journal.read(tmp_path) == entries[:1]
    assert journal.read(tmp_path / "nowhere") == []


def test_a_runner_killed_before_its_process_began_leaves_all_cases_pending(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, BEGUN)
    outcome = take_up(job, fake_profiler(tmp_path))
    assert (outcome.status, started(outcome), names(outcome)) == (
        "ok", ["case=1", "case=2"], ["events.jsonl", "capture-2.out"],
    )  # fmt: skip


def test_cases_that_ended_are_kept_where_the_profiler_keeps_them(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, BEGUN, events="case_started:case=1 case_ended:case=1 case_started:case=2")
    outcome = take_up(job, fake_profiler(tmp_path))
    assert started(outcome) == ["case=1", "case=2", "case=2"]
    assert (outcome.status, outcome.case_outcomes) == ("ok", {})


def test_a_process_that_ended_its_last_case_before_the_kill_is_not_started_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, BEGUN, events="case_started:case=1 case_ended:case=1 case_started:case=2 case_ended:case=2")
    outcome = take_up(job, fake_profiler(tmp_path))
    assert (outcome.status, commands_run(outcome)) == ("ok", 0)


def test_a_report_that_was_lost_with_its_process_is_made_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, BEGUN, events="case_started:case=1 case_ended:case=1", files=("capture.export",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False, exports=(EXPORT,)))
    assert started(outcome) == ["case=1", "case=1", "case=2"]
    assert names(outcome) == ["capture-2.out", "capture-2.export", "events.jsonl"]


def test_an_existing_report_is_exported_without_its_workload(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, DONE, files=("capture.out",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False, exports=(EXPORT,)))
    assert (outcome.status, started(outcome), commands_run(outcome)) == ("ok", [], 1)
    assert "capture.export" in names(outcome)


def test_a_job_with_all_its_files_starts_no_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, DONE, files=("capture.out",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False))
    assert (outcome.status, outcome.seconds, commands_run(outcome)) == ("ok", 1.0, 0)


def test_the_time_of_a_command_is_the_time_of_its_last_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, script=None, command=(sys.executable, "-c", ""))
    stopped = ProcessEnd(-2, 60.0, INTERRUPTED, (), (0, 0))
    left_behind(job, Entry(1, ("case=1",), {}, None, (stopped,)))
    outcome = take_up(job, fake_profiler(tmp_path))
    assert (outcome.status, outcome.seconds > 60) == ("ok", True)
    assert 0 < outcome.last_s < 60 and outcome.last_s == pytest.approx(outcome.seconds - 60)


def test_a_crashed_case_is_not_repeated_and_the_pending_cases_continue(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, "os.kill(os.getpid(), signal.SIGSEGV)", OK)
    crashed = ProcessEnd(-11, 1.0, None, (), (0, 0))
    entries = (
        Entry(1, ("case=1", "case=2", "case=3"), {"case=1": ENDED}, "case=2", (crashed,)),
        Entry(2, ("case=3",), {}, None),
    )
    left_behind(job, *entries, files=("capture.out",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False))
    assert started(outcome) == ["case=3"]
    assert [(case, end.status) for case, end in outcome.case_outcomes.items()] == [("case=2", "crashed")]
    assert names(outcome) == ["capture.out", "events.jsonl", "capture-3.out"]


def test_interrupted_cases_are_repeated_and_their_unfinished_attempts_are_listed(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK, OK)
    stopped = ProcessEnd(-2, 1.0, INTERRUPTED, (), (0, 0))
    left_behind(
        job, Entry(1, ("case=1", "case=2", "case=3"), {"case=1": ENDED}, "case=2", (stopped,)), files=("capture.out",)
    )
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False))
    assert (outcome.status, outcome.case_outcomes, started(outcome)) == ("ok", {}, ["case=2", "case=3"])
    assert outcome.attempted_again == {job.folder / "capture.out": {"case=2", "case=3"}}


def test_late_events_of_an_interrupted_process_do_not_end_cases_of_the_next_one(tmp_path: Path) -> None:
    """It ignored the interrupt. The next process was in its first case when its runner was killed."""
    job = job_of(tmp_path, OK, OK)
    stopped = ProcessEnd(-2, 1.0, INTERRUPTED, (), (0, 0))
    unread = "case_started:case=1 case_ended:case=1 case_started:case=2 case_ended:case=2"
    first = Entry(1, BEGUN.cases, {}, "case=1", (stopped,), begins_at=0)
    left_behind(job, first, events=unread)
    begins_at = (job.folder / "events.jsonl").stat().st_size
    journal.write(job.folder, Entry(2, BEGUN.cases, {}, None, begins_at=begins_at))
    with (job.folder / "events.jsonl").open("a") as stream:
        stream.write(json.dumps({"event": "case_started", "case": "case=1"}) + "\n")
    outcome = take_up(job, fake_profiler(tmp_path))
    assert (outcome.status, outcome.case_outcomes) == ("ok", {})
    assert started(outcome) == ["case=1", "case=2", "case=1", "case=1", "case=2"]
    offsets = [entry.begins_at for entry in journal.read(job.folder)]
    assert offsets == [0, begins_at, begins_at + len('{"event": "case_started", "case": "case=1"}\n')]


def test_an_export_that_was_interrupted_is_made_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    stopped = ProcessEnd(-2, 1.0, INTERRUPTED, ("capture.export",), (0, 0))
    entry = Entry(1, DONE.cases, DONE.ended, None, (ENDED_WELL, stopped))
    left_behind(job, entry, files=("capture.out",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False, exports=(EXPORT,)))
    assert (outcome.status, started(outcome), outcome.case_outcomes) == ("ok", [], {})


def test_an_export_that_was_removed_since_is_made_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, Entry(1, DONE.cases, DONE.ended, None, (ENDED_WELL, ENDED_WELL)), files=("capture.out",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False, exports=(EXPORT,)))
    assert (outcome.status, started(outcome), commands_run(outcome)) == ("ok", [], 1)
    assert "capture.export" in names(outcome)


def test_a_removed_report_is_not_needed_if_its_export_exists(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    left_behind(job, Entry(1, DONE.cases, DONE.ended, None, (ENDED_WELL, ENDED_WELL)), files=("capture.export",))
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False, exports=(EXPORT,)))
    assert (outcome.status, commands_run(outcome)) == ("ok", 0)


def test_cases_without_any_files_are_run_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    ended = "case_started:case=1 case_ended:case=1 case_started:case=2 case_ended:case=2"
    left_behind(job, Entry(1, DONE.cases, DONE.ended, None, (ENDED_WELL, ENDED_WELL)), events=ended)
    outcome = take_up(job, fake_profiler(tmp_path, KEEPS_ENDED_CASES=False, exports=(EXPORT,)))
    assert (outcome.status, started(outcome)[2:]) == ("ok", ["case=1", "case=2"])
    assert names(outcome) == ["capture-2.out", "capture-2.export", "events.jsonl"]


def test_cases_whose_traces_were_removed_are_run_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK, OK)
    ended = "case_started:case=1 case_ended:case=1 case_started:case=2 case_ended:case=2"
    left_behind(job, DONE, events=ended)
    # Like torch.profiler, whose process must write only its records.
    outcome = take_up(job, fake_profiler(tmp_path, makes_report=False))
    assert (outcome.status, started(outcome)[2:]) == ("ok", ["case=1", "case=2"])
    assert "capture-2.out" in names(outcome)


# --- processes that outlive their runner -----------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(true: object, wait_s: float = 120.0) -> bool:
    deadline = time.monotonic() + wait_s
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_process_that_a_killed_runner_left_is_ended_before_another_starts(tmp_path: Path) -> None:
    job = job_of(tmp_path, OK)
    left_behind(job, Entry(1, ("case=1",), {}, None))
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
def test_a_process_does_not_outlive_a_runner_that_is_killed(tmp_path: Path) -> None:
    write = "pathlib.Path(folder / 'pid.tmp').write_text(str(os.getpid())); (folder / 'pid.tmp').rename(folder / 'pid')"
    runner = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests")!r})
from fake_profiler import Notes, fake_profiler, job_of
from profpipe.runner import executor as run
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
