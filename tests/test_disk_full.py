"""A full disk, in the runner or in the workload's process: what it stopped is repeated once there is space.

``/dev/full`` is a file on a full disk; a file system of 300 KiB is one that the runner shares.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from fake_profiler import Notes, fake_profiler, job_of
from jobs import change

from profpipe import errors, plugins, profilers
from profpipe.job import Cause, Traits
from profpipe.results import store
from profpipe.runner import failure_reasons, slots
from profpipe.runner.process import GracePeriods

ROOT = Path(__file__).resolve().parents[1]
#: A torch that cannot be imported: loading the real one costs each process seconds.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "no_torch")])
HURRIED = GracePeriods(interrupt_s=1.0, terminate_s=0.5, linger_s=0.3)

OK = "pass"
WRITE = "(folder / 'large').open('w').write('x' * 100_000)"
EXPORT = "import pathlib, sys; pathlib.Path(sys.argv[1]).with_name('large').open('w').write('x' * 100_000)"
EXPORT += "; pathlib.Path(sys.argv[1]).write_text('exported')"

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def text(path):
    return path.read_text(encoding="utf-8")


def full(job):
    """The file that the job writes, on a disk that is full until it is removed."""
    job.folder.mkdir(parents=True)
    large = job.folder / "large"
    large.symlink_to("/dev/full")
    return large


def carry_out(job, profiler):
    (outcome,) = slots.run([job], {"fake": profiler}, Notes(), HURRIED)
    return outcome


def started(job):
    lines = map(json.loads, (job.folder / "job.jsonl").read_text().splitlines())
    return [line["case"] for line in lines if line["event"] == "case_started"]


def lacking(outcome):
    return [case for case, end in outcome.case_outcomes.items() if end.cause is Cause.DISK_FULL]


def test_only_the_case_that_a_full_disk_stopped_is_repeated(tmp_path):
    job, profiler = job_of(tmp_path, OK, WRITE, OK), fake_profiler(tmp_path, makes_report=False)
    large = full(job)
    first = carry_out(job, profiler)
    assert lacking(first) == ["case=2"] and first.status == "failed"
    assert first.reason.startswith("exit code 1: OSError: [Errno 28] No space left on device")
    large.unlink()
    again = carry_out(job, profiler)
    assert (again.status, again.case_outcomes) == ("ok", {})
    assert started(job) == ["case=1", "case=2", "case=3", "case=2"]
    assert carry_out(job, profiler).status == "ok" and len(started(job)) == 4, "nothing is left to do"


def test_a_case_whose_profile_was_lost_with_its_process_is_profiled_again_at_once(tmp_path):
    job, profiler = job_of(tmp_path, OK, WRITE), fake_profiler(tmp_path, TRAITS=Traits())
    large = full(job)
    assert lacking(carry_out(job, profiler)) == ["case=2"] and started(job) == ["case=1", "case=2", "case=1"]
    large.unlink()
    again = carry_out(job, profiler)
    assert (again.status, again.case_outcomes, started(job)[2:]) == ("ok", {}, ["case=1", "case=2"])


def test_a_case_in_which_the_harness_reports_a_full_disk_is_repeated(tmp_path):
    script = tmp_path / "writes.py"
    script.write_text("def build(params):\n    exec(params['do'])\n    return lambda: None\n")
    write = f"open({str(tmp_path / 'raw/attention/fake/large')!r}, 'w').write('x' * 100_000)"
    timing = {"timing": {"order": "sequential", "budget_s": 0.01}}
    environment = {"PYTHONPATH": PYTHONPATH}
    job = job_of(tmp_path, write, OK, script=script, python=sys.executable, options=timing, env=environment)
    job = change(job, profiler="plain")
    large = full(job)

    def carry_out_plain():
        (outcome,) = slots.run([job], profilers.ALL, Notes(), HURRIED)
        return outcome

    assert carry_out_plain().status == "ok"
    events_text = text(job.folder / "job.jsonl")
    assert '"status": "failed"' in events_text and "No space left on device" in events_text
    large.unlink()
    assert carry_out_plain().status == "ok" and started(job) == ["case=1", "case=2", "case=1"]
    parsed = plugins.load_module(ROOT / "parsers" / "events.py").parse(job.folder / "job.jsonl")
    assert list(parsed.cases["status"]) == ["ok", "ok"]


def test_a_process_that_cannot_write_its_events_has_an_exit_code_for_that(tmp_path):
    (tmp_path / "w.py").write_text("def build(params):\n    return lambda: None\nprint(1)\n")
    (tmp_path / "job.jsonl").symlink_to("/dev/full")
    spec = {"script": str(tmp_path / "w.py"), "profiler": "plain", "cases": [], "options": {}}
    (tmp_path / "cases.json").write_text(json.dumps(spec))
    argv = [sys.executable, "-m", "profpipe.measure.harness", str(tmp_path / "cases.json")]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with Path("/dev/full").open("w") as log:  # where the log is on the same disk
        assert subprocess.run(argv, env=environment, stdout=log, stderr=log).returncode == errors.UNWRITTEN
    assert (
        failure_reasons.describe_disk_full(errors.UNWRITTEN, "")
        == f"exit code {errors.UNWRITTEN}: No space left on device"
    )


def test_while_the_disk_is_full_each_resume_tries_once(tmp_path):
    job, profiler = job_of(tmp_path, WRITE), fake_profiler(tmp_path)
    full(job)
    for times in (1, 2, 3):
        assert lacking(carry_out(job, profiler)) == ["case=1"]
        assert started(job) == ["case=1"] * times


def test_cases_that_never_began_because_of_a_full_disk_are_run(tmp_path):
    job = job_of(tmp_path, OK, OK, env={"FIRST": WRITE})
    large = full(job)
    first = carry_out(job, fake_profiler(tmp_path))
    assert lacking(first) == ["case=1", "case=2"] and "case_started" not in job.log.read_text()
    large.unlink()
    assert carry_out(job, fake_profiler(tmp_path)).status == "ok" and started(job) == ["case=1", "case=2"]


def test_an_export_is_repeated_without_its_workload(tmp_path):
    job, profiler = job_of(tmp_path, OK), fake_profiler(tmp_path, TRAITS=Traits(), exports=(EXPORT,))
    large = full(job)
    assert lacking(carry_out(job, profiler)) == ["case=1"]
    large.unlink()
    again = carry_out(job, profiler)
    assert (again.status, again.case_outcomes, started(job)) == ("ok", {}, ["case=1"])
    assert (job.folder / "capture.export").read_text() == "exported"


def test_the_crash_of_another_case_is_kept(tmp_path):
    job = job_of(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", WRITE)
    large, profiler = full(job), fake_profiler(tmp_path, makes_report=False)
    carry_out(job, profiler)
    large.unlink()
    again = carry_out(job, profiler)
    assert [(case, end.status) for case, end in again.case_outcomes.items()] == [("case=1", "crashed")]
    assert started(job) == ["case=1", "case=2", "case=2"]


def test_a_command_that_a_full_disk_stopped_is_run_again(tmp_path):
    command = (sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write('x' * 100_000)")
    job = job_of(tmp_path, OK)
    large = full(job)
    job = job_of(tmp_path, OK, script=None, command=(*command, str(large)))
    assert lacking(carry_out(job, fake_profiler(tmp_path))) == ["case=1"]
    large.unlink()
    assert carry_out(job, fake_profiler(tmp_path)).status == "ok"


@pytest.mark.parametrize("text", [os.strerror(number) for number in (28, 122, 27)] + ["database or disk is full"])
def test_a_quota_a_file_limit_and_sqlite_count_as_a_full_disk(text):
    assert errors.is_disk_full(f"OSError: [Errno 1] {text}: 'file'") and not errors.is_disk_full("No such file")


# --- a whole run -----------------------------------------------------------------------------------------------------

#: One case fills the disk, and then has more to say than fits into what its record has left of its last block.
FILLS = """
import os, pathlib

PARAMS = {"n": 1, "write": 0}

def build(params):
    return lambda: sum(range(100))

def expects(params):
    out = pathlib.Path(__file__).with_name("out")
    if params["n"] == 1 or os.statvfs(out).f_blocks * os.statvfs(out).f_frsize > 2**20:
        return ""
    try:
        (out / "fill").write_bytes(bytes(2**20))
    except OSError:
        pass
    return "x" * 10_000
"""
PIPELINE = """
version: 1
name: small
defaults: {profilers: [plain], warmup: 1, repeats: 5, timeout_s: 60, timing: {order: sequential, budget_s: 0.05}}
workloads:
  sums: {script: sums.py, matrix: {n: [1, 2, 3]}, params: {write: 120000}}
"""
ONE_WRITES = """
import pathlib

PARAMS = {"n": 1, "write": 0}

def build(params):
    if params["n"] == 2:
        pathlib.Path(__file__).with_name("large").write_bytes(bytes(params["write"]))
    return lambda: sum(range(100))
"""
#: In the project's folder, with a small disk as ``out``: a run, more room, and the resumed run.
ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=300k none out
set +e
{python} -m profpipe run >first.txt 2>&1
echo $? >first.code
cp out/latest/run.json first.json
mount -o remount,size=100m out
{python} -m profpipe resume >second.txt 2>&1
echo $? >second.code
cp -r "$(readlink -f out/latest)" result
"""


def project(folder, workload):
    (folder / "sums.py").write_text(workload)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return folder


def profpipe(folder, *arguments):
    return forked.run(folder, *arguments, env={**os.environ, "PYTHONPATH": PYTHONPATH})


@pytest.mark.slow
def test_a_run_that_a_full_disk_stopped_names_the_resume_command(tmp_path):
    large = project(tmp_path, ONE_WRITES) / "large"
    large.symlink_to("/dev/full")
    done = profpipe(tmp_path, "run")
    assert done.returncode == 1 and "1 case failed because the disk was full. Free some" in done.stderr
    folder = (tmp_path / "out" / "latest").resolve()
    data, record = store.load(folder)
    assert record.ended is None and list(data.cases["status"]) == ["ok", "failed", "ok"]
    assert "No space left on device" in text(folder / "SUMMARY.md")
    large.unlink()
    # Earlier versions recorded such a run as ended. If it is named, it is resumed.
    replace(record, ended="2026-11-20T05:55:33+00:00").save(folder)
    assert profpipe(tmp_path, "resume", folder.name).returncode == 0
    data, record = store.load(folder)
    assert record.ended and list(data.cases["status"]) == ["ok"] * 3
    events = map(json.loads, text(folder / "raw/sums/plain/job.jsonl").splitlines())
    assert [event["case"] for event in events if event["event"] == "case_started"] == ["n=1", "n=2", "n=3", "n=2"]
    assert "has nothing left to do" in profpipe(tmp_path, "resume", folder.name).stdout


#: A file longer than the limit: Python ignores the signal, and another program ends by it.
TOO_LONG = """
import resource
import signal
import sys

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
if "killed" in sys.argv:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
with open("long", "wb") as file:
    file.write(bytes(1 << 21))
    file.flush()
    file.write(bytes(1 << 21))
"""


@pytest.mark.parametrize(("argument", "reason"), [("", "File too large"), ("killed", "killed by SIGXFSZ: File too la")])
def test_the_limit_of_a_files_size_is_not_called_a_full_disk(tmp_path, argument, reason):
    (tmp_path / "long.py").write_text(TOO_LONG)
    done = profpipe(tmp_path, "run", "-p", "plain", "--", sys.executable, "long.py", argument)
    assert (
        "1 case failed because a file reached the limit of its size. Raise the limit (ulimit -f), then" in done.stderr
    )
    data, _ = store.load((tmp_path / "out" / "latest").resolve())
    assert set(data.cases["status"]) == {"failed"} and reason in data.cases["reason"].iloc[0]


def in_own_namespace(folder, script):
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script], cwd=folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path):
    (tmp_path / "out").mkdir()
    try:
        allowed = in_own_namespace(tmp_path, "mount -t tmpfs -o size=300k none out").returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("a file system of a user's own cannot be mounted here (unshare --map-root-user --mount)")
    return tmp_path


@pytest.mark.slow
def test_a_run_whose_disk_was_full_is_finished_once_there_is_space(small_disk):
    done = in_own_namespace(project(small_disk, FILLS), ON_A_SMALL_DISK.format(python=sys.executable))
    assert done.returncode == 0, done.stderr
    printed = text(small_disk / "first.txt")
    assert text(small_disk / "first.code") == "1\n" and "Traceback" not in printed and "resume" in printed, printed
    assert json.loads(text(small_disk / "first.json"))["ended"] is None
    assert text(small_disk / "second.code") == "0\n", text(small_disk / "second.txt")
    data, record = store.load(small_disk / "result")
    assert list(data.cases["status"]) == ["ok"] * 3 and record.ended and record.refused == ()
    plain = small_disk / "result/raw/sums/plain"
    case_starts = re.findall(r'"case_started", "case": "(n=\d)"', text(plain / "job.jsonl"))
    assert case_starts[0] == "n=1" and case_starts.count("n=1") == 1, "cases that ended well were not measured again"
    assert case_starts[-2:] == ["n=2", "n=3"]
