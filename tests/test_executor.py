"""The executor with real processes: outcomes, crashes, time limits, files and interrupts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_profiler import Notes, fake_profiler, job_of
from jobs import change

from profpipe import profilers
from profpipe.errors import Interrupted
from profpipe.job import Case, Cause, Incident, IncidentKind, Missing, Outcome, Status, Tool, Traits
from profpipe.runner import executor, process as process_control, slots
from profpipe.runner.process import GracePeriods

NO_MEMORY = Outcome(Status.OOM, Cause.HOST_MEMORY, "no memory")
HURRIED = GracePeriods(interrupt_s=1.0, terminate_s=0.5, linger_s=0.3)
SEGFAULT = "os.kill(os.getpid(), signal.SIGSEGV)"
HANG = "time.sleep(600)"
OK = "pass"


def carry_out(job, profiler, notes=None):
    (outcome,) = slots.run([job], {"fake": profiler}, notes or Notes(), HURRIED)
    return outcome


def fates(outcome):
    """The status of each case as the report has it: job.jsonl, overridden by the runner's record."""
    lines = (outcome.job.folder / "job.jsonl").read_text().splitlines()
    ended = [event for event in map(json.loads, lines) if event["event"] == "case_ended"]
    return {event["case"]: (event["status"], "") for event in ended} | {
        case: (end.status, end.reason) for case, end in outcome.case_outcomes.items()
    }


def fates_of_runner(outcome):
    return {case: (end.status, end.reason) for case, end in outcome.case_outcomes.items()}


def statuses(outcome):
    found = fates(outcome)
    return [found[case.id][0] for case in outcome.job.cases]


def log_of(outcome):
    return (outcome.job.folder / "log.txt").read_text()


def processes(outcome):
    return sum(line.startswith("$ ") for line in log_of(outcome).splitlines())


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def survivors(outcome):
    pids = [int(line) for line in (outcome.job.folder / "pids").read_text().splitlines()]
    assert pids
    return [pid for pid in pids if is_alive(pid)]


# --- what ends well --------------------------------------------------------------------------------------------------


def test_a_job_with_all_its_files_is_ok_and_its_events_are_reported(tmp_path):
    notes = Notes()
    outcome = carry_out(job_of(tmp_path, OK, OK), fake_profiler(tmp_path), notes)
    assert (outcome.status, outcome.reason, outcome.returncode, outcome.case_outcomes) == ("ok", "", 0, {})
    assert [path.name for path in outcome.files] == ["capture.out", "job.jsonl"]
    assert notes.calls == [
        ("job_started", 1, 1),
        ("case_started", "case=1"),
        ("case_ended", "case=1", "ok"),
        ("case_started", "case=2"),
        ("case_ended", "case=2", "ok"),
        ("job_ended", "ok"),
    ]


def test_the_specification_has_everything_that_the_harness_needs(tmp_path):
    job = job_of(tmp_path, OK, warmup=3, repeats=7, options={"ncu": {"set": "basic"}})
    carry_out(job, fake_profiler(tmp_path))
    specification = json.loads((job.folder / "cases.json").read_text())
    options = specification.pop("options")
    assert options["ncu"]["set"] == "basic" and options["timing"]["budget_s"] == 2.0
    assert specification == {
        "workload": "attention",
        "profiler": "fake",
        "script": str(tmp_path / "unused.py"),
        "cases": [{"id": "case=1", "params": {"do": "pass"}}],
        "warmup": 3,
        "repeats": 7,
        "stem": "capture",
        "part": 1,
        "folder": str(job.folder),
        "processes": 1,
    }


def test_a_missing_tool_skips_its_job_with_the_remedy_and_starts_nothing(tmp_path):
    job = job_of(tmp_path, OK, OK, tool=Missing("nsys", "nsys is not on PATH", "Install it."))
    outcome = carry_out(job, fake_profiler(tmp_path))
    assert (outcome.status, outcome.reason) == ("skipped", "nsys is not on PATH. Install it.")
    assert fates_of_runner(outcome) == {f"case={n}": ("skipped", outcome.reason) for n in (1, 2)}
    assert not job.folder.exists()


def test_an_exit_code_after_the_last_case_does_not_matter_if_all_files_exist(tmp_path):
    outcome = carry_out(job_of(tmp_path, OK, env={"LAST": SEGFAULT}), fake_profiler(tmp_path))
    assert (outcome.status, outcome.returncode, outcome.case_outcomes) == ("ok", -signal.SIGSEGV, {})


def test_each_outcome_is_there_before_the_next_job_starts(tmp_path):
    jobs = [job_of(tmp_path, OK, folder=tmp_path / str(number)) for number in range(2)]
    outcomes = slots.run(jobs, {"fake": fake_profiler(tmp_path)}, Notes(), HURRIED)
    assert next(outcomes).job is jobs[0]
    assert not jobs[1].folder.exists()
    assert next(outcomes).job is jobs[1]


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_a_segfault_in_the_second_of_four_cases_costs_that_case_only(tmp_path):
    job, notes = job_of(tmp_path, OK, f"print('illegal memory access', flush=True); {SEGFAULT}", OK, OK), Notes()
    outcome = carry_out(job, fake_profiler(tmp_path, makes_report=False), notes)
    assert statuses(outcome) == ["ok", "crashed", "ok", "ok"]
    assert fates(outcome)["case=2"][1] == "killed by SIGSEGV: illegal memory access"
    assert outcome.case_outcomes["case=2"].log == "raw/attention/fake/log.txt"
    assert (outcome.status, outcome.returncode, processes(outcome)) == ("crashed", 0, 2)
    assert "A new process runs the remaining cases: 2" in notes.messages[0]


def test_the_pending_cases_of_a_crashed_job_are_a_second_attempt_with_separate_files(tmp_path):
    outcome = carry_out(job_of(tmp_path, SEGFAULT, OK), fake_profiler(tmp_path, makes_report=False))
    assert [path.name for path in outcome.files] == ["job.jsonl", "capture-2.out"]
    second = json.loads((outcome.job.folder / "cases-2.json").read_text())
    assert ([case["id"] for case in second["cases"]], second["part"], second["stem"]) == (["case=2"], 2, "capture-2")


def test_a_case_that_ended_before_a_crash_is_profiled_again_if_the_report_is_lost(tmp_path):
    outcome = carry_out(job_of(tmp_path, OK, SEGFAULT, OK), fake_profiler(tmp_path, makes_report=True))
    assert statuses(outcome) == ["ok", "crashed", "ok"]
    second = json.loads((outcome.job.folder / "cases-2.json").read_text())
    assert [case["id"] for case in second["cases"]] == ["case=1", "case=3"] and processes(outcome) == 2
    assert [path.name for path in outcome.files] == ["capture-2.out", "job.jsonl"]


def test_a_workload_that_leaves_with_exit_code_zero_inside_a_case_has_crashed(tmp_path):
    outcome = carry_out(job_of(tmp_path, "os._exit(0)", OK), fake_profiler(tmp_path, makes_report=False))
    assert statuses(outcome) == ["crashed", "ok"]
    assert fates(outcome)["case=1"][1].startswith("exit code 0")
    again = carry_out(job_of(tmp_path / "b", OK, "os._exit(0)"), fake_profiler(tmp_path, makes_report=True))
    assert statuses(again) == ["ok", "failed"], "the first case is profiled again"


def test_an_unfinished_line_of_a_killed_process_does_not_damage_the_next_line(tmp_path):
    half = "open(folder / 'job.jsonl', 'a').write('{\"event\": \"case_en'); "
    outcome, notes = None, Notes()
    outcome = carry_out(
        job_of(tmp_path, f"stream = {half}{SEGFAULT}", OK), fake_profiler(tmp_path, makes_report=False), notes
    )
    assert [calls for calls in notes.calls if calls[0] == "case_ended"] == [("case_ended", "case=2", "ok")]
    assert outcome.case_outcomes["case=1"].status == "crashed"


def test_a_process_that_dies_twice_before_any_case_is_not_started_again(tmp_path):
    job = job_of(tmp_path, OK, OK, env={"FIRST": "raise ImportError('no libcudart.so.12')"})
    outcome = carry_out(job, fake_profiler(tmp_path))
    assert processes(outcome) == 2
    assert [end.status for end in outcome.case_outcomes.values()] == ["failed", "failed"]
    assert outcome.reason == "exit code 1: ImportError: no libcudart.so.12"


def test_a_process_that_dies_once_before_any_case_gets_a_second_chance(tmp_path):
    once = "if spec['part'] == 1: sys.exit('Connection to the Agent lost.')"
    outcome = carry_out(job_of(tmp_path, OK, env={"FIRST": once}), fake_profiler(tmp_path))
    assert statuses(outcome) == ["ok"] and outcome.status == "ok"
    reason = "exit code 1: Connection to the Agent lost."
    assert outcome.incidents == (Incident(IncidentKind.RESTARTED, "log.txt", reason),)


def test_a_process_that_is_killed_between_two_cases_costs_no_case(tmp_path):
    kill = "write('case_ended', case='case=1', status='ok'); os.kill(os.getpid(), signal.SIGKILL)"
    outcome = carry_out(job_of(tmp_path, kill, OK, OK), fake_profiler(tmp_path, makes_report=False))
    assert (statuses(outcome), outcome.status) == (["ok"] * 3, "ok")
    assert [incident.kind for incident in outcome.incidents] == [IncidentKind.RESTARTED]


#: Counts its starts in a file; the first few of them fail as nsys does.
FALSE_STARTS = """
import pathlib, sys
with open("starts", "a") as stream:
    print("started", file=stream)
if len(pathlib.Path("starts").read_text().splitlines()) <= {}:
    sys.exit("lost my agent")
"""


def test_a_tool_that_fails_by_chance_before_it_runs_the_workload_is_started_again(tmp_path):
    job, notes = job_of(tmp_path, OK, OK, env={"FIRST": FALSE_STARTS.format(3)}), Notes()
    outcome = carry_out(job, fake_profiler(tmp_path, retry_pattern=re.compile("lost my agent")), notes)
    assert (outcome.status, outcome.returncode, statuses(outcome)) == ("ok", 0, ["ok", "ok"])
    assert processes(outcome) == 4 and len(notes.messages) == 3
    assert [path.name for path in outcome.files] == ["capture.out", "job.jsonl"], "one part, not four"


@pytest.mark.parametrize(("fails", "status", "count"), [(1, "ok", 2), (99, "failed", 4)])
def test_a_command_is_started_again_after_a_false_start_of_its_tool_but_not_forever(tmp_path, fails, status, count):
    job = job_of(tmp_path, OK, script=None, command=(sys.executable, "-c", FALSE_STARTS.format(fails)))
    outcome = carry_out(job, fake_profiler(tmp_path, retry_pattern=re.compile("lost my agent")))
    assert (outcome.status, processes(outcome)) == (status, count)
    assert outcome.reason.startswith("exit code 1: lost my agent" if status == "failed" else "")


def test_a_start_that_began_a_case_is_not_repeated(tmp_path):
    job = job_of(tmp_path, "sys.exit('lost my agent')")
    outcome = carry_out(job, fake_profiler(tmp_path, retry_pattern=re.compile("lost my agent")))
    assert (statuses(outcome), processes(outcome)) == (["crashed"], 1)


def test_a_job_that_the_profiler_skips_is_not_tried_again(tmp_path):
    explains = ("skipped", "ERR_NVGPUCTRPERM: counters are locked. Ask the host's administrator.")
    job = job_of(tmp_path, OK, env={"FIRST": "sys.exit(1)"})
    outcome = carry_out(job, fake_profiler(tmp_path, explains=explains))
    assert (outcome.status, processes(outcome)) == ("skipped", 1)
    assert explains[1] in outcome.reason


def test_an_executable_that_is_not_there_fails_its_job_at_once(tmp_path):
    job = job_of(tmp_path, OK, script=None, command=("no-such-program",))
    outcome = carry_out(job, fake_profiler(tmp_path))
    assert (outcome.status, outcome.returncode) == ("failed", None)
    assert "could not be started" in outcome.reason
    assert "no-such-program" in outcome.reason


# --- files -----------------------------------------------------------------------------------------------------------


def test_exit_code_zero_without_the_expected_file_is_a_failure(tmp_path):
    outcome = carry_out(
        job_of(tmp_path, OK, env={"LAST": "(folder / 'capture.out').unlink()"}), fake_profiler(tmp_path)
    )
    assert (outcome.status, outcome.returncode) == ("failed", 0)
    assert outcome.reason == "capture.out was not made"
    assert fates(outcome)["case=1"] == ("failed", f"no profile: {outcome.reason}")


HALF = "import sys; open(sys.argv[1], 'w').write('half'); sys.exit('cannot read the report')"


@pytest.mark.parametrize(
    ("last", "exports", "reason", "count"),
    [
        # A file from before, and an empty one.
        ("", ("pass",), "capture.export was not made", 2),
        ("(folder / 'capture.out').write_text('')", (), "capture.out was not made", 1),
        # A missing report is not exported.
        ("(folder / 'capture.out').unlink()", ("pass",), "capture.out was not made", 1),
        ("", (HALF,), "exit code 1: cannot read the report", 2),
    ],
)
def test_a_file_that_the_command_did_not_make_well_is_a_failure(tmp_path, last, exports, reason, count):
    job = job_of(tmp_path, OK, env={"LAST": last})
    job.folder.mkdir(parents=True)
    (job.folder / "capture.export").write_text("of an earlier run")
    outcome = carry_out(job, fake_profiler(tmp_path, exports=exports))
    assert outcome.status == "failed" and outcome.reason.startswith(reason)
    assert processes(outcome) == count


def test_a_file_from_before_that_is_made_anew_counts(tmp_path):
    job = job_of(tmp_path, OK)
    job.folder.mkdir(parents=True)
    (job.folder / "capture.out").write_text("measured")
    assert carry_out(job, fake_profiler(tmp_path)).status == "ok"


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_case_that_hangs_ends_at_the_time_limit_and_the_other_cases_run(tmp_path):
    job = job_of(tmp_path, OK, HANG, OK, timeout_s=8.0)
    outcome = carry_out(job, fake_profiler(tmp_path, makes_report=False))
    assert statuses(outcome) == ["ok", "timeout", "ok"]
    assert fates(outcome)["case=2"][1] == "not done after 8 s (timeout_s)"


@pytest.mark.slow
def test_a_sweep_whose_cases_all_end_may_take_longer_than_one_of_them_may(tmp_path):
    job = job_of(tmp_path, *["time.sleep(1.5)"] * 6, timeout_s=8.0)
    outcome = carry_out(job, fake_profiler(tmp_path))
    assert (outcome.status, processes(outcome)) == ("ok", 1) and outcome.seconds > job.settings.timeout_s


def test_an_export_killed_for_lack_of_memory_does_not_change_the_status_of_a_crashed_case(tmp_path, monkeypatch):
    """Stand in for the kernel's OOM killer: every killed process counts as killed for memory."""
    monkeypatch.setattr(
        executor.failure_reasons, "explain_sigkill", lambda code, before: NO_MEMORY if code == -9 else None
    )
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    outcome = carry_out(job_of(tmp_path, SEGFAULT), fake_profiler(tmp_path, makes_report=False, exports=(killed,)))
    assert statuses(outcome) == ["crashed"]


def test_a_log_begins_with_the_command_without_its_secrets(tmp_path):
    command = (sys.executable, "-c", "pass", "--token=hunter2")
    job = job_of(tmp_path, OK, script=None, command=command, secrets={"--token=hunter2": "--token=${TOKEN}"})
    assert carry_out(job, fake_profiler(tmp_path)).status == "ok"
    log = (job.folder / "log.txt").read_text()
    assert "hunter2" not in log and "'--token=${TOKEN}'" in log.splitlines()[0]
    nowhere = change(job, command=("/no/hunter2",), secrets={"/no/hunter2": "/no/${TOKEN}"}, folder=tmp_path / "other")
    assert "'/no/${TOKEN}'" in carry_out(nowhere, fake_profiler(tmp_path)).reason


@pytest.mark.slow
def test_the_time_limit_of_a_case_does_not_end_the_export(tmp_path):
    job = job_of(tmp_path, OK, HANG, OK, options={"case_timeout_s": 2.0})
    export = "import sys; open(sys.argv[1], 'w').write('exported')"
    outcome = carry_out(job, fake_profiler(tmp_path, makes_report=False, exports=(export,)))
    assert statuses(outcome) == ["ok", "timeout", "ok"]
    assert "case not done after 2 s (case_timeout_s)" in outcome.reason
    assert "capture.export" in [path.name for path in outcome.files]


def test_a_process_that_hangs_before_any_case_is_not_started_again(tmp_path):
    outcome = carry_out(job_of(tmp_path, OK, timeout_s=0.5, env={"FIRST": HANG}), fake_profiler(tmp_path))
    assert (outcome.status, processes(outcome)) == ("timeout", 1)
    assert [(case, end.status) for case, end in outcome.case_outcomes.items()] == [("case=1", "timeout")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "own_session",
    [
        pytest.param(False, id="in the process group", marks=pytest.mark.slow),
        pytest.param(True, id="in another session"),
    ],
)
def test_at_the_time_limit_even_a_grandchild_that_ignores_signals_is_ended(tmp_path, own_session):
    do = f"ignore_polite_signals(); stubborn_child({own_session}); {HANG}"
    outcome = carry_out(job_of(tmp_path, do, options={"case_timeout_s": 4.0}), fake_profiler(tmp_path))
    assert (outcome.status, outcome.returncode) == ("timeout", -signal.SIGKILL)
    assert survivors(outcome) == []


def test_processes_that_a_successful_workload_leaves_running_are_ended(tmp_path):
    outcome = carry_out(job_of(tmp_path, "stubborn_child(False); stubborn_child(True)"), fake_profiler(tmp_path))
    assert outcome.status == "ok"
    assert survivors(outcome) == []


def test_processes_of_other_programs_keep_running(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    others = [subprocess.Popen(sleep, start_new_session=own_session) for own_session in (False, True)]
    try:
        carry_out(job_of(tmp_path, OK), fake_profiler(tmp_path))
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_an_event_that_a_workload_writes_after_its_interrupt_is_not_a_result(tmp_path):
    catch = f"""
try:
    {HANG}
except KeyboardInterrupt:
    write("case_ended", case="case=1", status="failed")
    sys.exit(1)
"""
    outcome = carry_out(job_of(tmp_path, catch, options={"case_timeout_s": 0.3}), fake_profiler(tmp_path))
    assert statuses(outcome) == ["timeout"]


def test_a_case_that_is_killed_from_outside_may_have_been_out_of_memory(tmp_path):
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    outcome = carry_out(job_of(tmp_path, kill, OK), fake_profiler(tmp_path, makes_report=False))
    assert statuses(outcome) == ["crashed", "ok"]
    assert "killed by SIGKILL, perhaps out of host memory" in outcome.reason
    assert processes(outcome) == 3, "the case had a second chance"


@pytest.mark.parametrize("makes_report", [False, True])
def test_a_case_that_something_killed_once_is_run_again(tmp_path, makes_report):
    kill = "spec['part'] == 1 and os.kill(os.getpid(), signal.SIGKILL)"
    outcome = carry_out(job_of(tmp_path, OK, kill, OK), fake_profiler(tmp_path, makes_report=makes_report))
    assert (statuses(outcome), outcome.status, processes(outcome)) == (["ok"] * 3, "ok", 2)
    assert [incident.kind for incident in outcome.incidents] == [IncidentKind.RESTARTED]
    again = carry_out(outcome.job, fake_profiler(tmp_path, makes_report=makes_report))
    assert (again.status, processes(again)) == ("ok", 2), "a resumed run starts nothing"


def sized(below, *sizes, **fields):
    """A job whose cases run out of memory, and take their process with them, from n=2 on."""
    do = "if case['params']['n'] >= 2: write('case_ended', case=case['id'], status='oom'); os._exit(1)"
    cases = tuple(Case(f"n={n}", {"n": n, "do": do}) for n in sizes)
    return job_of(below, cases=cases, **fields)


@pytest.mark.parametrize(("skips", "expected"), [(True, ["oom", "skipped", "ok"]), (False, ["oom", "oom", "ok"])])
def test_a_case_larger_than_one_that_ran_out_of_memory_is_skipped_unless_that_is_turned_off(tmp_path, skips, expected):
    job = sized(tmp_path, 2, 3, 1, options={"skip_larger_after_oom": skips})
    outcome = carry_out(job, fake_profiler(tmp_path, makes_report=False))
    assert statuses(outcome) == expected
    if skips:
        assert fates(outcome)["n=3"][1] == "larger in every dimension than a case that ran out of memory"


def test_a_case_that_ran_out_of_memory_in_one_job_is_known_to_the_next(tmp_path):
    options = {"skip_larger_after_oom": True}
    jobs = [sized(tmp_path, n, folder=tmp_path / str(n), options=options) for n in (2, 3, 1)]
    profiler = {"fake": fake_profiler(tmp_path, makes_report=False)}
    outcomes = list(slots.run(jobs, profiler, Notes(), HURRIED))
    assert [[end.status for end in outcome.case_outcomes.values()] for outcome in outcomes] == [[], ["skipped"], []]
    before = {("attention", "fake"): [Case("n=0.5", {**jobs[2].cases[0].params, "n": 0.5})]}
    (outcome,) = slots.run([change(jobs[2], folder=tmp_path / "later")], profiler, Notes(), HURRIED, before)
    (end,) = outcome.case_outcomes.values()
    assert (end.status, end.cause) == (Status.SKIPPED, Cause.LARGER_THAN_OOM)


# --- environment and log ---------------------------------------------------------------------------------------------


def test_a_job_sees_what_it_needs_of_the_environment_and_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_hidden")
    monkeypatch.setenv("MY_APP_SETTING", "hidden too")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    show = "print(json.dumps(dict(os.environ)))"
    outcome = carry_out(job_of(tmp_path, show, env={"DATA": "given", "API_KEY": "named"}), fake_profiler(tmp_path))
    seen = json.loads(log_of(outcome).splitlines()[1])
    assert not {"HF_TOKEN", "MY_APP_SETTING"} & seen.keys()
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["DATA"], seen["API_KEY"]) == ("1", "given", "named")
    assert seen["PATH"] == os.environ["PATH"]


def test_processes_keep_compiled_modules_where_the_shell_forbids_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    show = "print(json.dumps([sys.dont_write_bytecode, sys.pycache_prefix]))"
    outcome = carry_out(job_of(tmp_path, show), fake_profiler(tmp_path))
    assert json.loads(log_of(outcome).splitlines()[1]) == [False, str(tmp_path / "cache" / "profpipe" / "bytecode")]


def test_the_log_names_each_process_and_not_its_environment(tmp_path):
    export = "open(__import__('sys').argv[1], 'w').write('x'); print('exported')"
    job = job_of(tmp_path, "print('out'); print('err', file=sys.stderr)", env={"API_KEY": "not to be seen"})
    outcome = carry_out(job, fake_profiler(tmp_path, exports=(export,)))
    log = log_of(outcome)
    assert "not to be seen" not in log
    headers = [line for line in log.splitlines() if line.startswith("$ ")]
    assert headers[0] == f"$ {sys.executable} {tmp_path}/workload.py {job.spec}"
    assert log.index(headers[0]) < log.index("err") < log.index(headers[1]) < log.index("exported\n", log.index("err"))


# --- commands without a harness --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("print('done')", "ok", ""),
        ("raise ValueError('batch too large')", "failed", "exit code 1: ValueError: batch too large"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crashed", "killed by SIGKILL"),
    ],
)
def test_the_exit_code_of_a_command_decides_about_its_case(tmp_path, program, status, reason):
    job = job_of(tmp_path, OK, script=None, command=(sys.executable, "-c", program))
    outcome = carry_out(job, fake_profiler(tmp_path))
    assert outcome.status == status
    assert outcome.reason.startswith(reason)
    assert fates_of_runner(outcome) == {"case=1": (status, outcome.reason)}
    assert {path.name for path in job.folder.iterdir()} == {"log.txt", "job.jsonl"}
    assert processes(outcome) == 1


def of_command(folder, *argv):
    job = job_of(folder, OK, script=None, command=argv, folder=folder / "command")
    return carry_out(job, fake_profiler(folder))


def test_the_end_of_a_process_is_noticed_without_polling(monkeypatch, tmp_path):
    def sleep(seconds):
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr(time, "sleep", sleep)
    with (tmp_path / "log.txt").open("wb") as log:
        started = process_control.start(["sleep", "0.1"], dict(os.environ), log)
    assert started.wait(60.0) == 0 and 0.1 <= started.ended - started.began < 60


def test_the_time_of_a_command_ends_with_its_process_and_not_with_its_children(tmp_path, monkeypatch):
    clear = process_control.Child.end_remaining

    def slowly(*given):
        time.sleep(0.5)
        return clear(*given)

    monkeypatch.setattr(process_control.Child, "end_remaining", slowly)
    began = time.monotonic()
    outcome = of_command(tmp_path, "sh", "-c", "sleep 9 & true")
    assert 0 < outcome.last_s < time.monotonic() - began - 0.5


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------

RUNNER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from fake_profiler import Notes as Listener, fake_profiler, job_of
from profpipe import errors
from profpipe.runner import slots as run
from profpipe.runner.process import GracePeriods
from profpipe.errors import Interrupted

folder, do, interrupt_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
jobs = [job_of(folder, "pass", do, "pass"), job_of(folder, "pass", folder=folder / "next")]
export = "import sys; open(sys.argv[1], 'w').write('exported')"
profiler = fake_profiler(folder, makes_report=False, exports=(export,))

class Notes(Listener):
    def message(self, text):
        if "waiting for the process" in text:
            (folder / "stopping").touch()

try:
    for outcome in run.run(jobs, {"fake": profiler}, Notes(), GracePeriods(interrupt_s, terminate_s=interrupt_s)):
        print(outcome.status, outcome.reason, outcome.returncode)
        for case, end in outcome.case_outcomes.items():
            print(case, end.status, end.reason)
        print(*(path.name for path in outcome.files))
except errors.Interrupted as error:
    print(error)
    sys.exit(error.exit_code)
"""


def interrupted(tmp_path, do, *signals, prepare="pass", interrupt_s=60.0):
    """(exit code, printed lines) of a real runner that gets ``signals`` while its second case does ``do``."""
    script = tmp_path / "runner.py"
    script.write_text(RUNNER, encoding="utf-8")
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    argv = [
        sys.executable,
        str(script),
        str(tmp_path),
        f"{prepare}; (folder / 'inside').touch(); {do}",
        str(interrupt_s),
    ]
    # Tests that run under nohup pass the signal on as ignored, and the runner rightly leaves it so.
    restore_sighup = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731
    runner = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, preexec_fn=restore_sighup)
    folder = tmp_path / "raw" / "attention" / "fake"
    while not (folder / "inside").exists():
        assert runner.poll() is None, "the runner ended before its second case"
        time.sleep(0.02)
    for number in signals:
        runner.send_signal(number)
        # Two pending signals of one number count as one, so the runner handles the first before the second is sent.
        while not (tmp_path / "stopping").exists():
            assert runner.poll() is None, "the runner ended without a message"
            time.sleep(0.02)
    output, _ = runner.communicate(timeout=120)
    return runner.returncode, output.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_after_an_interrupt_the_report_is_exported_and_no_case_is_started(tmp_path, number):
    code, lines = interrupted(tmp_path, HANG, number)
    assert code == 130
    assert lines == [
        f"interrupted interrupted {-signal.SIGINT}",
        "case=2 interrupted interrupted",
        "case=3 interrupted interrupted before it started",
        "capture.export job.jsonl",
        "Interrupted in job 1 of 2.",
    ]
    assert not (tmp_path / "next").exists()


def test_a_case_interrupted_between_two_rounds_is_not_reported_as_not_started(tmp_path):
    turned_to = (f"write('case_started', case='case={n}')" for n in (3, 2))
    code, lines = interrupted(tmp_path, f"{'; '.join(turned_to)}; {HANG}", signal.SIGINT)
    assert code == 130 and lines[1:3] == ["case=2 interrupted interrupted", "case=3 interrupted interrupted"]


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait_for_a_workload_that_ignores_the_first(tmp_path):
    prepare = "ignore_polite_signals(); stubborn_child(True)"
    # The grace period is an hour, so only the second signal can end this.
    code, lines = interrupted(tmp_path, HANG, signal.SIGINT, signal.SIGINT, prepare=prepare, interrupt_s=3600)
    assert code == 130
    assert lines[0] == f"interrupted interrupted {-signal.SIGKILL}"
    pid = int((tmp_path / "raw" / "attention" / "fake" / "pids").read_text())
    assert not is_alive(pid)


def test_an_interrupt_while_the_caller_works_waits_until_it_asks_for_more(tmp_path):
    before = signal.getsignal(signal.SIGINT)  # ignored, where a shell without job control started the tests
    jobs = [job_of(tmp_path, OK, folder=tmp_path / str(number)) for number in range(2)]
    outcomes = slots.run(jobs, {"fake": fake_profiler(tmp_path)}, Notes(), HURRIED)
    assert next(outcomes).status == "ok"
    os.kill(os.getpid(), signal.SIGINT)
    (tmp_path / "stored").write_text("what the caller was about to write")
    with pytest.raises(Interrupted, match="Interrupted after job 1 of 2"):
        next(outcomes)
    assert not jobs[1].folder.exists()
    assert signal.getsignal(signal.SIGINT) is before, "the caller's own handler is back"


# --- a job runs while the caller handles the outcome of the one before ------------------------------------------------


def overlapped(tmp_path, *programs, places=0):
    """Outcomes of jobs of which each starts before the outcome of the one before it is handled."""
    group = {"group": "one"} if places else {}
    jobs = [job_of(tmp_path, do, folder=tmp_path / str(n), **group) for n, do in enumerate(programs)]
    profiler, options = {"fake": fake_profiler(tmp_path)}, {"overlaps": lambda ended, following: True}
    if places:
        own = slots.Slots({f"place {n}": None for n in range(places)})
        return jobs, slots.run(jobs, profiler, Notes(), HURRIED, slots=own, **options)
    return jobs, slots.run(jobs, profiler, Notes(), HURRIED, **options)


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("places", [0, 1])
def test_the_next_job_runs_while_the_caller_handles_an_outcome(tmp_path, places):
    jobs, outcomes = overlapped(tmp_path, OK, OK, OK, places=places)
    seen = []
    for number, outcome in enumerate(outcomes):
        seen.append(outcome.job.folder)
        if number < 2:
            wait_for(jobs[number + 1].log)
    assert seen == [job.folder for job in jobs]


@pytest.mark.parametrize("places", [0, 1])
def test_an_interrupt_while_the_caller_works_ends_the_job_that_runs_beside_it(tmp_path, places):
    jobs, outcomes = overlapped(tmp_path, OK, f"(folder / 'inside').touch(); {HANG}", OK, places=places)
    assert next(outcomes).status == "ok"
    wait_for(jobs[1].folder / "inside")
    os.kill(os.getpid(), signal.SIGINT)
    second = next(outcomes)
    assert second.job.folder == jobs[1].folder and second.interrupted
    with pytest.raises(Interrupted, match="Interrupted in job 2 of 3"):
        next(outcomes)
    assert not jobs[2].folder.exists()


@pytest.mark.parametrize("places", [0, 1])
def test_a_caller_that_leaves_early_leaves_no_job_behind(tmp_path, places):
    jobs, outcomes = overlapped(tmp_path, OK, f"(folder / 'pids').write_text(str(os.getpid())); {HANG}", places=places)
    next(outcomes)
    wait_for(jobs[1].folder / "pids")
    outcomes.close()
    assert not is_alive(int((jobs[1].folder / "pids").read_text()))


# --- ask -------------------------------------------------------------------------------------------------------------


def test_ask_returns_both_streams_of_a_command_for_any_exit_code():
    program = "import sys; print('2022.4', flush=True); print('warning', file=sys.stderr); sys.exit(3)"
    assert process_control.ask([sys.executable, "-c", program]) == "2022.4\nwarning\n"


def test_ask_gives_none_for_a_command_that_is_not_there():
    assert process_control.ask(["no-such-profiler", "--version"]) is None


def test_ask_gives_none_for_a_command_that_does_not_end_although_a_child_holds_its_output():
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert process_control.ask([sys.executable, "-c", program], timeout_s=0.5) is None


# --- a real nsys -----------------------------------------------------------------------------------------------------


class RealNsys:
    """The shipped nsys profiler, with the fake workload in place of the harness, and arguments replaced."""

    NAME = "nsys"
    TRAITS = Traits()

    def __init__(self, script, changes=None):
        self.script, self.changes = script, changes or {}
        self.find, self.artifacts, self.diagnose = (getattr(profilers.ALL["nsys"], name) for name in self._TAKEN)

    _TAKEN = ("find", "artifacts", "diagnose")

    def commands(self, job):
        profile, export = profilers.ALL["nsys"].commands(job)
        argv = [self.changes.get(word, word) for word in profile.argv]
        begin = argv.index("-m")
        return [replace(profile, argv=(*argv[:begin], str(self.script), *argv[begin + 2 :])), export]


def under_nsys(tmp_path, nsys, *todo, changes=None, **fields):
    script = fake_profiler(tmp_path).script
    job = job_of(tmp_path, *todo, profiler="nsys", tool=Tool("nsys", "", str(nsys)), **fields)
    (outcome,) = slots.run([job], {"nsys": RealNsys(script, changes)}, Notes(), GracePeriods())
    return outcome


def test_nsys_leaves_a_report_and_its_export(tmp_path, nsys):
    outcome = under_nsys(tmp_path, nsys, OK)
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert [path.name for path in outcome.files] == ["capture.sqlite", "job.jsonl"]


def test_a_report_that_nsys_writes_elsewhere_is_noticed(tmp_path, nsys):
    wanted = str(tmp_path / "raw" / "attention" / "fake" / "capture.nsys-rep")
    changes = {wanted: str(tmp_path / "no-such-folder" / "capture.nsys-rep")}
    outcome = under_nsys(tmp_path, nsys, OK, changes=changes)
    assert (outcome.status, outcome.returncode) == ("failed", 0)
    assert "nsys-report-" in outcome.reason
    assert "instead of capture.nsys-rep" in outcome.reason


def test_a_capture_range_that_is_never_entered_is_noticed(tmp_path, nsys):
    outcome = under_nsys(tmp_path, nsys, OK, on_gpu=True)
    assert (outcome.status, outcome.returncode) == ("failed", 0)
    assert "capture range was never entered" in outcome.reason


@pytest.mark.slow
def test_a_workload_that_hangs_under_nsys_leaves_a_report_and_no_process(tmp_path, nsys):
    do = f"ignore_polite_signals(); stubborn_child(True); {HANG}"
    outcome = under_nsys(tmp_path, nsys, OK, do, options={"case_timeout_s": 5.0})
    assert statuses(outcome) == ["ok", "timeout"]
    assert (outcome.job.folder / "capture.sqlite").exists()
    assert survivors(outcome) == []
    pids = [json.loads(line).get("pid") for line in (outcome.job.folder / "job.jsonl").read_text().splitlines()]
    assert not [pid for pid in pids if pid and is_alive(pid)], "nsys puts the workload into another session"


@pytest.mark.slow
def test_a_segfault_under_nsys_costs_one_case_and_the_others_keep_their_profile(tmp_path, nsys):
    outcome = under_nsys(tmp_path, nsys, OK, SEGFAULT, OK)
    assert statuses(outcome) == ["ok", "crashed", "ok"]
    assert "killed by SIGSEGV" in fates(outcome)["case=2"][1]
    assert [path.name for path in outcome.files] == ["capture.sqlite", "job.jsonl", "capture-2.sqlite"]
