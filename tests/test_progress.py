"""Progress of a run: plain lines in a file, one live line on a terminal."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from fake_profiler import job_of
from jobs import change

from profpipe.job import Cause, JobOutcome, Outcome, Status
from profpipe.runner.progress import Display, duration

ROOT = Path(__file__).parents[1]


def test_without_a_terminal_each_event_is_one_plain_line(tmp_path):
    stream, job = io.StringIO(), job_of(tmp_path, "pass", "pass")
    with Display(stream) as display:
        display.job_started(job, 1, 3)
        display.case_started("case=1")
        display.case_ended("case=1", "ok")
        display.message("[bold] is no markup")
        display.job_ended(JobOutcome(job, Outcome(Status.CRASHED, Cause.EXIT, "killed by SIGSEGV")))
    assert stream.getvalue().splitlines() == [
        "[1/3] attention under fake: 2 cases",
        "  case 1 of 2: case=1: ok",
        "  [bold] is no markup",
        "[1/3] attention under fake: crashed (killed by SIGSEGV), 0 s",
    ]


def test_a_case_that_failed_says_why_and_its_job_is_not_called_ok(tmp_path):
    stream, job = io.StringIO(), job_of(tmp_path, "pass", "pass")
    with Display(stream) as display:
        display.job_started(job, 1, 1)
        display.case_ended("case=1", "failed", "ValueError: unknown impl 'fa3'.\nDid you mean 'fa2'?")
        display.case_ended("case=2", "skipped", "needs a GPU")
        display.job_ended(JobOutcome(job, Outcome(Status.OK)))
    assert stream.getvalue().splitlines()[1:] == [
        "  case 1 of 2: case=1: failed (ValueError: unknown impl 'fa3'. Did you mean 'fa2'?)",
        "  case 2 of 2: case=2: skipped",
        "[1/1] attention under fake: 1 of 2 cases not ok, 0 s",
    ]


def test_a_failed_program_shows_its_last_lines_and_a_progress_bar_its_last_state(tmp_path):
    stream, job = io.StringIO(), change(job_of(tmp_path, "pass"), script=None, command=("train",))
    bar = "".join(f"\r{n} %" for n in range(300_000))
    job.folder.mkdir(parents=True)
    (job.folder / "log.txt").write_text(f"$ train\nfirst\n{bar}\nValueError: x\n", encoding="utf-8")
    with Display(stream) as display:
        display.job_started(job, 1, 1)
        display.process_started(len("$ train\n"))
        display.job_ended(JobOutcome(job, Outcome(Status.FAILED, Cause.EXIT, "exit code 1")))
    shown = stream.getvalue().splitlines()
    assert shown[1:-1] == ["  | ValueError: x"] and "first" not in stream.getvalue()


def test_output_is_shown_as_it_comes_a_secret_of_several_lines_as_a_whole_and_none_of_an_earlier_job(tmp_path):
    stream, job = io.StringIO(), job_of(tmp_path, "pass")
    log = job.folder / "log.txt"
    job.folder.mkdir(parents=True)
    log.write_text("of a run before\n", encoding="utf-8")
    with Display(stream, is_verbose=True) as display:
        display.job_started(job, 1, 1)
        display.job_runs(job)
        display.process_started(log.stat().st_size)
        begin, end = "-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----\n"
        for text in ("one\nhalf a ", "line\n", f"{begin}abc", "def\n", f"{end}two\n"):
            with log.open("a", encoding="utf-8") as output:
                output.write(text)
            display.job_runs(job)
    lines = [line.removeprefix("  | ") for line in stream.getvalue().splitlines()[1:]]
    assert lines[:2] == ["one", "half a line"] and lines[-1] == "two" and "abc" not in stream.getvalue()


def test_the_live_line_says_job_case_round_and_time(tmp_path):
    display = Display(io.StringIO())
    assert display.line() == "starting"
    display.job_started(job_of(tmp_path, "pass", "pass"), 2, 6)
    assert display.line() == "[2/6] attention under fake | 0 s so far"
    display.job_started(job_of(tmp_path, "pass", "pass"), 2, 6, ({"": 60.0}, 120.0))
    display.case_started("case=1")
    display.case_ended("case=1", "ok")
    display.case_started("case=2", 2)
    assert display.line() == "[2/6] attention under fake | 0 s so far | about 1 min 20 s left | case 2 of 2: case=2"
    display.case_started("case=2", 1, 2, 4)
    assert display.line().endswith("| case 1 of 2, round 2 of 4: case=2")


def test_a_command_is_shown_with_the_case_that_runs(tmp_path):
    stream, job = io.StringIO(), job_of(tmp_path, "pass", script=None, command=("true",))
    display = Display(stream)
    display.job_started(job, 1, 1)
    assert stream.getvalue() == "[1/1] attention under fake: case=1\n"
    assert display.line().endswith(" | case=1")


def test_on_a_terminal_the_line_is_live_and_the_results_stay():
    program = """
from pathlib import Path
from fake_profiler import job_of
from profpipe.job import Outcome, JobOutcome, Status
from profpipe.runner.progress import Display
job = job_of(Path("."), "pass")
with Display() as display:
    display.job_started(job, 1, 1)
    display.case_started("impl=[fa2]")
    display.job_ended(JobOutcome(job, Outcome(Status.OK)))
"""
    ours, theirs = pty.openpty()
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}", "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run([sys.executable, "-c", program], stderr=theirs, env=env, check=True, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "[1/1] attention under fake: ok, 0 s" in shown
    assert "\x1b[?25l" in shown, "the cursor is hidden while the line is live"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "and is there again afterwards"


def test_rich_is_not_loaded_where_nothing_is_drawn():
    program = "import sys, profpipe.runner.progress as p\nwith p.Display(): pass\nprint('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_time_left_follows_how_fast_the_parts_of_a_job_go(tmp_path, monkeypatch):
    stream, job, now = io.StringIO(), job_of(tmp_path, "pass", "pass"), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    display = Display(stream)
    display.job_started(job, 1, 2, ({"": 4.0, "case=1": 10.0, "case=2": 10.0}, 30.0))
    assert stream.getvalue() == "[1/2] attention under fake: 2 cases, about 54 s left\n"
    # The process is 4 s late, and the whole would take 54 s.
    now[0] += 8
    assert display.left_s(now[0]) == pytest.approx(50 * (1 + 4 / 54))
    # A case that is skipped takes none of its time, and the last visit three times as long as those before.
    display.case_started("case=1", 1, 1, 3)
    display.case_started("case=2", 2, 1, 3)
    display.case_ended("case=2", "skipped")
    display.case_started("case=1", 1, 3, 3)
    now[0] += 6
    assert display.left_s(now[0]) == pytest.approx(32 * (1 + 2 / 44))


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.6, "8 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (3725, "1 h 2 min")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text
