"""Start and end the processes of a run, through the supervisor that ends them all when the runner is gone.

A process group does not contain all processes of a job: nsys (2022.4 to 2025.3) puts the application and its agent into
their own sessions. So each descendant of this process in another session belongs to the job. Processes that something
else starts for the job (a container's daemon, a batch system) are out of reach. Where there is no /proc, or the one of
another PID namespace, only the process group is ended.

Each command of a job has a supervisor, and so has each other command that may be long. It ends these processes with the
command, and when the runner is killed (``supervisor.py``). If the supervisor is killed, the runner adopts the processes
(Linux's "child subreaper") and ends them. If both are killed at once, the next runner finds what they left by a
variable in the environment, and ends that (``kill_leftovers``) before it starts a process that writes into the same
files.
"""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, Any, Final

from profpipe.errors import ProfpipeError
from profpipe.job import Job
from profpipe.masking import has_secret_form, is_secret_name
from profpipe.runner import supervisor

#: Every process of a job has this environment variable. Its value is the job's folder.
JOB_VARIABLE = "PROFPIPE_JOB"

#: An option of prctl(2).
_PR_GET_CHILD_SUBREAPER = 37
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STEP_S = 0.05
#: A command that may take longer than this has a supervisor, so that it ends when the runner is killed. To start a
#: supervisor takes longer than most short commands.
_SHORT_S: Final = 60.0
#: The exit code of a process whose supervisor was killed: SIGKILL ends the process too.
_LOST: Final = -9
#: The processes that this process has started itself and that it waits for.
_own: Final[set[int]] = set()
#: Held until a process that was just started is among them.
_own_lock: Final = threading.Lock()


class SupervisorError(ProfpipeError):
    """No process can be started, whatever its program is."""


@dataclass(frozen=True)
class GracePeriods:
    """How long each step of ending a process may take. A process that ignores all signals costs 10 s at most."""

    interrupt_s: float = 5.0
    terminate_s: float = 2.5
    #: How long a profiler whose workload has ended may take to write its report.
    report_s: float = 60.0
    #: How long a server may take to end after SIGTERM.
    server_s: float = 7.5
    #: How long the processes that a job leaves running (nsys's agent, data loader workers) may take to end themselves.
    linger_s: float = 1.0
    #: How long to wait for a process that does not even die of SIGKILL because it hangs inside a driver.
    kill_s: float = 5.0


GRACE = GracePeriods()


# --- start -----------------------------------------------------------------------------------------------------------


class Child:
    """A process that a supervisor started. ``returncode`` is that of Popen: negative for a signal.

    ``began`` and ``ended`` are times of ``time.monotonic``, which the supervisor took. ``used`` has the CPU time of the
    process and of those that it waited for, in seconds, and the peak of the memory of one of them, in bytes. ``output``
    is the file that it was started with.
    """

    def __init__(self, owner: subprocess.Popen[bytes], pid: int, began: float, output: IO[bytes]) -> None:
        self.supervisor, self.pid, self.began, self.ended, self.output = owner, pid, began, began, output
        self.returncode: int | None = None
        self.used: tuple[float, ...] = ()
        self._copied = 0

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.wait(0.0)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until the process has ended, or for a number of seconds; return its exit code, or None."""
        if self.returncode is None and self._has_report(seconds):
            self.returncode, self.ended, *used = _read_report(self.supervisor) or (_LOST, time.monotonic())
            self.used = tuple(used)
        return self.returncode

    def is_alone(self, seconds: float) -> bool:
        """Return True if the process, which has ended, left nothing running. Wait for that so many seconds at most."""
        return self._has_report(seconds)

    def end_remaining(self, grace: GracePeriods) -> int:
        """Wait until what the process left running is gone; return how many processes did not end themselves."""
        left = 0
        if self.returncode is not None and self._has_report(2 * grace.linger_s + grace.kill_s):
            report = _read_report(self.supervisor)
            left = report[0] if report else _kill_adopted(grace.kill_s)
        self._close(grace.kill_s)
        return left

    def kill(self, wait_s: float = GRACE.kill_s) -> None:
        """End the process and all its descendants at once."""
        kill_group(self, wait_s)
        self._close(wait_s)

    def go_on(self, message: object) -> bool:
        """Send ``message`` to a process that waits for it (``start``); return False where that has failed.

        The time in which it waited does not count.
        """
        try:
            self.supervisor.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
            self.supervisor.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            return False
        self.began = time.monotonic()
        return True

    def copy_output(self, target: IO[bytes]) -> None:
        """Append what the process has written into ``output`` since the last call."""
        # The process writes at the position in the file, which pread does not move.
        number = self.output.fileno()
        text = os.pread(number, os.fstat(number).st_size - self._copied, self._copied)
        target.write(text)
        target.flush()
        self._copied += len(text)

    def _has_report(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self.supervisor.stdout, select.POLLIN)  # type: ignore[arg-type]
        return bool(poll.poll(None if seconds is None else max(0.0, seconds * 1e3)))

    def _close(self, wait_s: float) -> None:
        """Close the request, at which the supervisor ends what is left, and wait for the supervisor."""
        with suppress(BrokenPipeError):
            self.supervisor.stdin.close()  # type: ignore[union-attr]
        with suppress(subprocess.TimeoutExpired):
            self.supervisor.wait(wait_s)
            _own.discard(self.supervisor.pid)


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    output: IO[bytes],
    cwd: Path | None = None,
    grace: GracePeriods = GRACE,
    waits: bool = False,
) -> Child:
    """Start a program in a new session, without input, with both output streams to ``output``.

    A program that ``waits`` reads from its standard input what ``Child.go_on`` sends.
    Raises OSError where the program cannot be started, and SupervisorError where none can. Audit hooks
    (``sys.addaudithook``) get the event ``profpipe.start`` with ``argv``.
    """
    sys.audit("profpipe.start", argv)
    command = [sys.executable, "-I", "-S", supervisor.__file__]
    folder = None if cwd is None else os.fspath(cwd)
    request = marshal.dumps(([*map(os.fspath, argv)], dict(env), folder, grace.linger_s, grace.kill_s, waits))
    owner = _popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
    with suppress(BrokenPipeError):
        owner.stdin.write(request)  # type: ignore[union-attr]
        owner.stdin.flush()  # type: ignore[union-attr]
    report = _read_report(owner)
    if not (report and report[0]):
        owner.wait()
        _own.discard(owner.pid)
    if report is None:
        what = "The supervisor of the processes ends before it starts one. To see why, run"
        raise SupervisorError(f"{what}: {shlex.join(command)}")
    pid, number, name, began = report
    if pid:
        return Child(owner, pid, began, output)
    if not name:
        raise SupervisorError(f"No process can be started: {os.strerror(number)}")
    raise OSError(number, os.strerror(number), name)


def _popen(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a new session. Raises SupervisorError where that is not the fault of the program."""
    try:
        with _own_lock:
            started = subprocess.Popen(argv, start_new_session=True, **options)
            _own.add(started.pid)
    except OSError as error:
        if error.filename is None or argv[0] == sys.executable:
            raise SupervisorError(f"No process can be started: {error}") from error
        raise
    return started


def _read_report(owner: subprocess.Popen[bytes]) -> tuple[Any, ...] | None:
    """Return the next report of a supervisor; None where it has ended."""
    try:
        # Not through the buffer, which would hide a further report from poll(2).
        report: tuple[Any, ...] = marshal.load(owner.stdout.raw)  # type: ignore[union-attr]
    except EOFError:
        return None
    return report


def call(
    argv: Sequence[str], env: Mapping[str, str], timeout_s: float, cwd: Path | None = None
) -> tuple[int | None, str]:
    """Return the exit code and the output (stdout and stderr) of a command; no code where it takes too long.

    Raises OSError where the command cannot be started, and SupervisorError where none can.
    """
    # A file, not a pipe: a grandchild that survives would keep the pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as output:
        if timeout_s > _SHORT_S:
            command = start(argv, env, output, cwd)
            try:
                returncode = command.wait(timeout_s)
            finally:
                command.kill()
        else:
            returncode = _call_unsupervised(argv, env, output, timeout_s, cwd)
        output.seek(0)
        return returncode, output.read().decode(errors="replace")


def _call_unsupervised(
    argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], timeout_s: float, cwd: Path | None
) -> int | None:
    """Return the exit code of a short command; None where it takes too long."""
    sys.audit("profpipe.start", argv)
    called = _popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        called.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        returncode = called.returncode
        supervisor.send(-called.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            called.wait(GRACE.kill_s)
            _own.discard(called.pid)
    return returncode


def ask(
    argv: Sequence[str],
    env: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = 20.0,
    cwd: Path | None = None,
) -> str | None:
    """Return the output (stdout and stderr) of a command; None if it cannot be started or does not end in time.

    ``env`` is added to the filtered environment, and ``cwd`` is the folder in which the command starts. Raises
    SupervisorError where no command can be started.
    """
    try:
        returncode, output = call(argv, {**filter_variables(os.environ), **env}, timeout_s, cwd)
    except OSError:
        return None
    return None if returncode is None else output


def ask_python(words: Sequence[str], python: str = sys.executable, timeout_s: float = 20.0) -> str | None:
    """Return the output of a Python process of profpipe's own, as ``ask`` does. ``words`` follow ``python``.

    Python imports from the folder in which it starts, so it starts in that of profpipe: other interpreters may be too
    old for options that prevent this.
    """
    env = {"PYTHONPATH": own_python_path()}
    return ask([python, *words], env, timeout_s, ROOT)


# --- the environment ------------------------------------------------------------------------------------------------

# A command gets all variables, as in the shell that started profpipe. A script, a command with ``clean_env: true`` and
# the tools that profpipe asks get listed names only, and no name that looks like a secret.
#
# To filter keeps no secret out of a report of nsys: nsys 2022.4 and 2025.3 write the environment of every process of
# the machine that they may read into it, the user's shell among them. So the report stays private, and exports are
# scrubbed. ncu writes no environment into its report.

_NEEDED = re.compile(
    r"""
    (PATH | HOME | USER | LOGNAME | SHELL | TERM | TZ | LANG | LANGUAGE | TMPDIR | LD_LIBRARY_PATH | LD_PRELOAD
    | VIRTUAL_ENV | CONDA_PREFIX | CONDA_DEFAULT_ENV | XDG_(CACHE|CONFIG|DATA)_HOME | MPLBACKEND
    | CC | CXX | LIBRARY_PATH | CPATH | (C|CPLUS)_INCLUDE_PATH
    | SSL_CERT_(FILE|DIR) | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE) $
    | LC_ | PYTHON | PROFPIPE_(?!LEAST_CORES$)
    | CUDA | CUDNN_ | CUBLAS | NVIDIA_ | NSYS_ | NCU_ | NCCL_
    | ROCM | HIP | HSA | ROCR | ROCPROF | MIOPEN_ | GPU_ | AMD_
    | TORCH | PYTORCH_ | TRITON | XFORMERS_ | FLASH_ | OMP_ | MKL_ | KMP_ | OPENBLAS_
    | HF_ | TRANSFORMERS_ | DIFFUSERS_ | TOKENIZERS_ | ACCELERATE_ | DEEPSPEED_ | NVTE_ | VLLM_ | WANDB_
    | JAX_ | XLA_ | TF_(?!VAR_) | KERAS_ | NUMBA_ | CUPY_ | NUMEXPR_ | GOMP_ | MALLOC_
    | OMPI_MCA_(?!ess|orte|pmix) | OPAL_ | PRTE_MCA_ | MPICH_ | I_MPI_ | UCX_ | UCC_ | FI_ | HCOLL_ | GLOO_ | NVSHMEM_
    """,
    re.VERBOSE,
)


#: What differs between two shells of one user, or two runs of a CI, and changes no number.
_OF_SESSION = re.compile(
    r"""
    (_ | PWD | OLDPWD | SHLVL | HOSTNAME | MAIL | PS[1-4] | DISPLAY | WAYLAND_DISPLAY | WINDOWID | COLUMNS | LINES
    | STY | EDITOR | PAGER | LS_COLORS | COLORTERM | INVOCATION_ID | JOURNAL_STREAM | MANAGERPID | XAUTHORITY | CI
    | KRB5CCNAME | PROMPT_COMMAND | PROFPIPE_LEAST_CORES | ENVIRONMENT
    | ZELLIJ\w* | \w*SESSION\w* | \w+_WINDOW_?ID | \w+_SCREEN) $
    | CI_ | GITHUB_ | GITLAB_ | JENKINS_ | BUILDKITE_ | RUNNER_
    | SSH_ | TMUX | XDG_ | DBUS_ | TERM | LESS | HIST | SUDO_ | VSCODE_ | GPG_ | SLURM | PYTEST_
    """,
    re.VERBOSE,
)


def job_variables(job: Job, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the part of ``environment`` that a job's processes get.

    The variables under ``env`` in a pipeline file are added later and not filtered, for the user named them.
    """
    variables = dict(environment) if _gets_all(job) else filter_variables(environment)
    if variables.get("PYTHONDONTWRITEBYTECODE") and "PYTHONPYCACHEPREFIX" not in variables:
        # Images of containers set it. Each process would compile the modules of torch again, which takes a second.
        cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "profpipe" / "bytecode"
        return {**variables, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    return variables


def relevant_variables(job: Job, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of ``job_variables`` on which the job's numbers may depend, without secrets."""
    if not _gets_all(job):
        return filter_variables(environment)
    return {
        name: value
        for name, value in environment.items()
        if not (_OF_SESSION.match(name) or is_secret_name(name) or has_secret_form(value))
    }


def _gets_all(job: Job) -> bool:
    return job.script is None and not job.settings.clean_env


def filter_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the listed variables of ``environment`` without secrets."""
    return {name: value for name, value in environment.items() if _NEEDED.match(name) and not is_secret_name(name)}


def left_out(environment: Iterable[str], passed: Iterable[str]) -> list[str]:
    """Return the names in ``environment`` that are not ``passed``, without those that a shell sets itself."""
    return sorted({*environment} - {*passed} - {"_", "PWD", "OLDPWD", "SHLVL"})


#: The folder that holds the package profpipe.
ROOT: Final = Path(__file__).resolve().parents[2]


def python_path() -> str:
    """Return the PYTHONPATH with which ``python -m profpipe`` finds this profpipe, installed or not.

    An empty entry stands for the current folder.
    """
    given = os.environ.get("PYTHONPATH")
    entries = given.split(os.pathsep) if given else []
    return os.pathsep.join(dict.fromkeys([str(ROOT), *(entry or os.curdir for entry in entries)]))


def own_python_path() -> str:
    """Return ``PYTHONPATH`` without the current folder and the folders that are relative to it.

    The current folder may be a results folder of somebody else.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.path.realpath(os.curdir)
    return os.pathsep.join(entry for entry in given if entry.startswith(os.sep) and os.path.realpath(entry) != here)


# --- end -------------------------------------------------------------------------------------------------------------


class InterruptCounter:
    """Count Ctrl-C, SIGTERM and SIGHUP while entered, so that no KeyboardInterrupt breaks a write.

    The first signal asks to stop, the second to kill, and a third raises, in case the count is not read. Signals reach
    the main thread only, so in another thread the count stays 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> InterruptCounter:
        if threading.current_thread() is threading.main_thread():
            # nohup ignores SIGHUP on purpose. An ignored SIGINT comes from a shell's `&`: children would inherit it,
            # and no profiler could be interrupted to write its report.
            wanted = [s for s in _STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._receive) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """While entered, a descendant whose parent dies becomes a child of this process instead of init."""
    before = ctypes.c_int(0)
    supervisor.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, before.value)


def kill_leftovers(job_folder: Path, wait_s: float) -> None:
    """Kill every process of the job in ``job_folder``, which a killed runner left.

    Raises ProfpipeError if a process does not die, for it may still write.
    """
    if not supervisor.wait_until_none_is_left(lambda: _find_marked(job_folder), wait_s, signal.SIGKILL):
        left = ", ".join(map(str, sorted(_find_marked(job_folder))))
        raise ProfpipeError(
            f"{job_folder}: process {left} of an earlier run still writes here. End that process first."
        )


def _find_marked(job_folder: Path) -> set[int]:
    entry, pids = os.fsencode(f"{JOB_VARIABLE}={job_folder}"), set()
    for pid, state, _, _ in supervisor.processes():
        with suppress(OSError):  # the process has ended, or belongs to another user
            if state not in "ZX" and entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                pids.add(pid)
    return pids - {os.getpid()}


def is_running(argv: Sequence[str], started: Child) -> bool:
    """Return True if a process below that of ``started`` runs the command ``argv``.

    The kernel puts the interpreter of a script, and at most one argument for it, before the words of the command.
    """
    words = [os.fsencode(word) for word in argv]
    for pid in supervisor.descendants(started.supervisor.pid) - {started.pid}:
        with suppress(OSError):  # the process has ended
            running = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            if running[-len(words) :] == words and len(running) <= len(words) + 2:
                return True
    return False


def _kill_adopted(wait_s: float) -> int:
    """Kill what this process has adopted from a supervisor that was killed, and return how many processes."""
    us, our_session, killed = os.getpid(), os.getsid(0), set[int]()

    def find() -> set[int]:
        adopted = set()
        with _own_lock:
            foreign = [row for row in supervisor.processes() if row[0] not in _own]
        for pid, state, parent, session in foreign:
            if parent == us and session != our_session:
                if state in "ZX":
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                else:
                    adopted.add(pid)
        killed.update(adopted)
        return adopted

    supervisor.wait_until_none_is_left(find, wait_s, signal.SIGKILL)
    return len(killed)


def stop(
    process: Child, grace: GracePeriods, is_urgent: Callable[[], bool], is_reporting: Callable[[], bool] = lambda: False
) -> None:
    """End the process group so that a profiler can still write its report; at once when ``is_urgent()`` is true.

    SIGINT first: nsys then stops the application and finishes its report. SIGKILL leaves no report and a running
    application. While ``is_reporting()`` is true the profiler is waited for longer.
    """

    def has_ended() -> bool:
        return process.poll() is not None

    supervisor.send(-process.pid, signal.SIGINT)
    ended = _wait_until(has_ended, grace.interrupt_s, unless=is_urgent)
    if not ended and not is_urgent() and is_reporting():
        ended = _wait_until(has_ended, grace.report_s, unless=is_urgent)
    if not ended and not is_urgent():
        supervisor.send(-process.pid, signal.SIGTERM)
        ended = _wait_until(has_ended, grace.terminate_s, unless=is_urgent)
    if not ended:
        kill_group(process, grace.kill_s)


def terminate(process: Child, grace: GracePeriods, is_urgent: Callable[[], bool]) -> None:
    """End the process group of a server as a service manager would: SIGTERM, and time to finish. nsys does the same."""
    supervisor.send(-process.pid, signal.SIGTERM)
    if not _wait_until(lambda: process.poll() is not None, grace.server_s, unless=is_urgent):
        kill_group(process, grace.kill_s)


def kill_group(process: Child, wait_s: float = GRACE.kill_s) -> None:
    """End the group of a process at once. One that hangs inside a driver still runs after ``wait_s`` seconds."""
    if process.poll() in (None, _LOST):
        supervisor.send(-process.pid, signal.SIGKILL)
    process.wait(wait_s)


def _wait_until(is_true: Callable[[], bool], wait_s: float, unless: Callable[[], bool] = lambda: False) -> bool:
    deadline = time.monotonic() + wait_s
    while not is_true():
        if time.monotonic() > deadline or unless():
            return False
        time.sleep(_STEP_S)
    return True
