"""Nothing outlives the runner: what it started ends within two seconds, whatever it ignores and wherever it hides."""

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_profiler import Notes, fake_profiler, job_of
from jobs import change

from profpipe.job import Command, Tool
from profpipe.runner import process, slots, supervisor
from profpipe.runner.process import GRACE, GracePeriods

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

#: Writes its process id once it ignores every signal that can be ignored.
STUBBORN = """
import os, pathlib, signal, sys, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
pathlib.Path(sys.argv[1] + ".tmp").write_text(str(os.getpid()))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
time.sleep(600)
"""
#: A grandchild, one in another session, and a daemon without the environment of its job.
HIDDEN = """
{python} {stubborn} {folder}/grandchild &
setsid {python} {stubborn} {folder}/session &
(setsid env -i {python} {stubborn} {folder}/daemon &) &
exec {python} {stubborn} {folder}/child
"""
NAMES = ("grandchild", "session", "daemon", "child")
RUNNER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fake_profiler import Notes, fake_profiler, job_of
from profpipe.runner import slots
folder = Path({folder!r})
job = job_of(folder, "pass", script=None, command=("sh", "-c", {script!r}))
(outcome,) = slots.run([job], {{"fake": fake_profiler(folder)}}, Notes())
print(outcome.status, outcome.reason, outcome.returncode)
"""
#: A command that is no job and may be long, such as an export.
CALLER = """
from profpipe.runner import process
process.ask(["sh", "-c", {script!r}], timeout_s=600.0)
"""


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids, wait_s):
    """The processes that live after ``wait_s`` seconds."""
    deadline = time.monotonic() + wait_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def supervisor_of(runner):
    # A thread of the runner started it.
    (pid,) = " ".join(p.read_text() for p in Path(f"/proc/{runner.pid}/task").glob("*/children")).split()
    return int(pid)


@pytest.fixture
def started(request, tmp_path):
    """A runner, and the processes of its job or of another command, all of which ignore signals."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    script = HIDDEN.format(python=sys.executable, stubborn=tmp_path / "stubborn.py", folder=tmp_path)
    text = getattr(request, "param", RUNNER).format(tests=str(ROOT / "tests"), folder=str(tmp_path), script=script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runner = subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not all((tmp_path / name).exists() for name in NAMES):
        assert runner.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    pids = [int((tmp_path / name).read_text()) for name in NAMES]
    yield runner, pids
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGKILL)
    runner.kill()
    runner.communicate()


@pytest.mark.parametrize("started", [RUNNER, CALLER], ids=["job", "call"], indirect=True)
def test_what_a_killed_runner_started_is_gone_within_two_seconds(started):
    runner, pids = started
    runner.kill()
    assert wait_until_gone(pids, 2.0) == []


def test_a_supervisor_that_is_stopped_ends_what_it_started_when_the_runner_is_killed(started):
    runner, pids = started
    os.kill(supervisor_of(runner), signal.SIGSTOP)
    runner.kill()
    assert wait_until_gone(pids, 2.0) == []


@pytest.mark.slow
def test_what_the_supervisor_started_ends_with_it_and_the_runner_goes_on(started):
    runner, pids = started
    os.kill(supervisor_of(runner), signal.SIGKILL)
    output, _ = runner.communicate(timeout=30)
    assert output.startswith("crashed killed by SIGKILL") and runner.returncode == 0
    assert wait_until_gone(pids, 0.0) == []


def test_a_supervisor_that_cannot_run_is_named_as_the_reason(tmp_path):
    """As where Python needs PYTHONHOME, which ``-I`` ignores."""
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    program = (
        f"import sys; sys.executable = {str(tmp_path / 'python')!r}\n"
        "from profpipe.runner import process\n"
        "process.start(['true'], {}, open('log', 'wb'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("profpipe.runner.process.SupervisorError: The supervisor of the processes ends before it")
    assert last.endswith(f"{tmp_path}/python -I -S {supervisor.__file__}")


def test_a_runner_without_free_descriptors_is_no_missing_program(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (log.fileno() + 1, before[1]))
        try:
            with pytest.raises(process.SupervisorError, match=r"No process can be started: .*Too many open files"):
                process.start(["true"], {}, log)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_end_of_a_process_that_is_not_reported_is_not_waited_for_without_a_limit(tmp_path):
    """As where a process hangs inside a driver and survives SIGKILL. Here the stopped supervisor reports no end."""
    with (tmp_path / "log").open("wb") as log:
        started = process.start(["sleep", "600"], dict(os.environ), log)
    os.kill(started.supervisor.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        started.kill(0.2)
        assert started.returncode is None and 0.2 <= time.monotonic() - began < 2
    finally:
        os.kill(started.supervisor.pid, signal.SIGCONT)
    assert started.wait(5.0) == -signal.SIGKILL


def test_what_a_program_started_ends_with_it_also_where_its_supervisor_was_killed(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        started = process.start(["sh", "-c", "sleep 600 & echo $! && sleep 600"], dict(os.environ), log)
    while not (tmp_path / "log").read_text():
        time.sleep(0.02)
    os.kill(started.supervisor.pid, signal.SIGKILL)
    started.kill()
    assert wait_until_gone([int((tmp_path / "log").read_text())], 2.0) == []


def test_a_program_that_cannot_be_started_is_named(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            process.start(["no-such-program"], {}, log)
        with pytest.raises(NotADirectoryError, match="log"):
            process.start(["true"], dict(os.environ), log, tmp_path / "log")
        with pytest.raises(OSError, match="Invalid argument"):
            process.start(["true", "a\0b"], dict(os.environ), log)


def test_words_and_variables_of_any_bytes_and_length_reach_a_program(tmp_path):
    word, value = os.fsdecode(b"\xff\xe9 \n'"), "x" * 100_000
    program = "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1] + str(len(os.environ['LONG']))))"
    assert process.ask([sys.executable, "-c", program, word], env={"LONG": value}) == os.fsencode(
        word + "100000"
    ).decode(errors="replace")


def test_a_program_has_the_signals_and_descriptors_of_a_shell():
    program = (
        "import os, signal; "
        "print([s.name for s in signal.Signals if signal.getsignal(s) == signal.SIG_IGN], "
        "[fd for fd in range(99) if os.path.exists(f'/proc/self/fd/{fd}')])"
    )
    # Python ignores two signals itself, and what a shell starts by `&` ignores two others.
    ignored = [s.name for s in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if signal.getsignal(s) is signal.SIG_IGN]
    assert process.ask([sys.executable, "-c", program]) == f"{[*ignored, 'SIGPIPE', 'SIGXFSZ']} [0, 1, 2]\n"


def test_the_processes_in_the_proc_of_another_namespace_are_not_taken_for_those_of_a_job(tmp_path):
    """The runner is process 1 of its namespace, and /proc is the one of its host, where all descend from process 1."""
    isolated = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    program = (
        "from profpipe.runner import process, supervisor\n"
        "print(process.ask(['echo', 'ran']).strip(), supervisor.has_proc(), "
        "supervisor.descendants(1))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [*isolated, sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "ran False set()", done.stderr


#: A runner that ends while a process and its child run, and what is left of the two after at most two seconds.
ENDED_RUNNER = """
{python} -c 'import os, time; from profpipe.runner import process
process.start(["sh", "-c", "sleep 600 & echo $! >b; echo $$ >a; wait"], dict(os.environ), open("log", "wb"))
while not (os.path.exists("a") and os.path.getsize("a")): time.sleep(0.01)
os._exit(0)'
for i in $(seq 40); do
  kill -0 $(cat a) 2>/dev/null || kill -0 $(cat b) 2>/dev/null || exit 0
  sleep 0.05
done
exit 1
"""


def test_where_proc_is_of_another_namespace_the_process_groups_of_a_killed_runner_end(tmp_path):
    isolated = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    words = [*isolated, "sh", "-c", ENDED_RUNNER.format(python=sys.executable)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, env=environment, cwd=tmp_path, timeout=30).returncode == 0


# --- patience --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_ignores_all_signals_costs_ten_seconds(tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    command = (sys.executable, str(tmp_path / "stubborn.py"), str(tmp_path / "pid"))
    job, began = job_of(tmp_path, "pass", script=None, command=command, timeout_s=0.5), time.monotonic()
    (outcome,) = slots.run([job], {"fake": fake_profiler(tmp_path)}, Notes())
    assert outcome.status == "timeout" and time.monotonic() - began < 10.5
    assert GRACE.interrupt_s + GRACE.terminate_s + 2 * GRACE.linger_s <= 10


#: A tool whose workload ends at SIGINT, and that then needs longer for its report than others are waited for.
#: It is a program of the shell, which starts well within the time limit of half a second.
TOOL = """#!/bin/sh
trap : INT
report=$1
shift
"$@"
sleep 1.5
printf report > "$report"
"""


@pytest.mark.slow
def test_a_profiler_whose_workload_has_ended_is_waited_for(tmp_path):
    report, tool = tmp_path / "report", tmp_path / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    workload = ("sleep", "600")
    job = job_of(tmp_path, "pass", script=None, command=workload, timeout_s=0.5, tool=Tool("fake", "1", str(tool)))

    def commands(job):
        return [Command((str(tool), str(report), *job.command), (report,))]

    profiler = fake_profiler(tmp_path)
    profiler.commands = commands  # type: ignore[method-assign]
    patient = GracePeriods(interrupt_s=0.7, terminate_s=0.2, linger_s=0.2, report_s=30.0)
    executed = list(slots.run([job], {"fake": profiler}, Notes(), patient))
    assert executed[0].status == "timeout" and report.read_text() == "report"
    report.unlink()
    again = change(job, folder=tmp_path / "again")
    list(slots.run([again], {"fake": profiler}, Notes(), replace(patient, report_s=0.0)))
    assert not report.exists()
