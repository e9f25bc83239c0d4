"""Start and end the processes of a run, through the supervisor that ends them all when the runner is gone.

A process group does not contain all processes of a job: nsys (2022.4 to 2025.3) puts the application and its agent into
their own sessions. So each descendant of this process in another session belongs to the job. Processes that something
else starts for the job (a container's daemon, a batch system) are out of reach. Where there is no /proc, or the one of
another PID namespace, only the process group is ended.

Threads that run jobs side by side have separate supervisors: the processes of a job are those below its supervisor. If
the runner is killed, the supervisor ends all descendants (``supervisor.py``). If the supervisor is killed, the runner
adopts its descendants (Linux's "child subreaper"). If both are killed at once, the next runner finds what they left by
a variable in the environment, and ends that (``kill_leftovers``) before it starts a process that writes into the same
files.
"""

from __future__ import annotations

import atexit
import ctypes
import marshal
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from types import FrameType, MappingProxyType
from typing import IO, Any, Final

from profpipe.errors import ProfpipeError
from profpipe.runner import environment, supervisor
from profpipe.runner.supervisor import ENDED, HEADER, STARTED

# --- start -----------------------------------------------------------------------------------------------------------

#: How long the end of this process waits for its supervisor, which has nothing left to end then.
_LAST_S: Final = 2.0
#: The exit code of a process whose supervisor was killed: SIGKILL ends the process too.
_LOST: Final = -9


class SupervisorError(ProfpipeError):
    """No process can be started, whatever its program is."""


class Child:
    """A process that the supervisor started. ``returncode`` is that of Popen: negative for a signal.

    ``began`` and ``ended`` are times of ``time.monotonic``, which the supervisor took.
    """

    def __init__(self, pid: int, began: float, report: int) -> None:
        self.pid, self.began, self.ended = pid, began, began
        self.returncode: int | None = None
        self._report = report

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.wait(0.0)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until the process has ended, or for a number of seconds; return its exit code, or None."""
        if self.returncode is None and _is_readable(self._report, seconds):
            try:
                status, self.ended = ENDED.unpack(_read(self._report, ENDED))
                self.returncode = os.waitstatus_to_exitcode(status)
            except EOFError:
                self.returncode, self.ended = _LOST, time.monotonic()
            os.close(self._report)
        return self.returncode


#: The values of ``supervisor.STARTED``, and the descriptor from which the end of the process is read.
_Report = tuple[tuple[Any, ...], int]


class _Supervisor:
    """The supervisor of this process, which is started at the first use."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv, null = [*_command(), str(theirs.fileno())], subprocess.DEVNULL
            try:
                # No stream of this process: a pipe that reads the output would wait for the supervisor.
                self._process = subprocess.Popen(
                    argv, stdin=null, stdout=null, stderr=null, start_new_session=True, pass_fds=[theirs.fileno()]
                )
            except BaseException:
                ours.close()
                raise
        self.owner, self.pid = os.getpid(), self._process.pid
        self._socket, self._lock = ours, threading.Lock()

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], folder: str | None) -> _Report:
        """Return what the supervisor reports about the start, and the descriptor of further reports.

        Raises ConnectionError where the supervisor has ended.
        """
        body = marshal.dumps(([*map(os.fspath, argv)], dict(env), folder))
        ours, theirs = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [HEADER.pack(len(body))], [output.fileno(), theirs])
                self._socket.sendall(body)
        except BaseException:
            # A part of a request may have been sent.
            self._socket.close()
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        try:
            return STARTED.unpack(_read(ours, STARTED)), ours
        except EOFError:
            os.close(ours)
            raise BrokenPipeError from None

    @property
    def is_usable(self) -> bool:
        """Return True if this process may send requests: a fork must not keep the socket of its parent open."""
        return self.owner == os.getpid() and self._socket.fileno() >= 0

    def stop(self) -> None:
        """Close the socket, at which the supervisor ends what is left of its processes."""
        self._socket.close()
        if self.owner == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_S)


#: The common supervisor, and those of threads inside ``separate_supervisor`` by the number of the thread.
_current: dict[int, _Supervisor] = {}
_COMMON: Final = 0
_separate: set[int] = set()
_lock: Final = threading.Lock()


def start(argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], cwd: Path | None = None) -> Child:
    """Start a program in a new session, without input, with both output streams to ``output``.

    Raises OSError where the program cannot be started, and SupervisorError where none can. A supervisor that something
    has killed is replaced. Audit hooks (``sys.addaudithook``) get the event ``profpipe.start`` with ``argv``.
    """
    sys.audit("profpipe.start", argv)
    folder = None if cwd is None else os.fspath(cwd)
    (pid, number, cause, began), report = _request(argv, env, output, folder)
    if number:
        os.close(report)
        if cause == supervisor.MACHINE:
            raise SupervisorError(f"No process can be started: {os.strerror(number)}")
        raise OSError(number, os.strerror(number), folder if cause == supervisor.FOLDER else argv[0])
    return Child(pid, began, report)


def _request(argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], folder: str | None) -> _Report:
    for _ in range(2):
        current = _supervisor()
        try:
            return current.start(argv, env, output, folder)
        except ConnectionError:
            current.stop()
        except OSError as error:
            raise SupervisorError(f"No process can be started: {error}") from error
    what = "The supervisor of the processes ends before it starts one. To see why, run"
    raise SupervisorError(f"{what}: {shlex.join(_command())}")


@contextmanager
def separate_supervisor() -> Iterator[None]:
    """While entered, this thread starts its processes through a supervisor that no other thread uses."""
    thread = threading.get_ident()
    _separate.add(thread)
    try:
        yield
    finally:
        _separate.discard(thread)
        with _lock:
            if found := _current.pop(thread, None):
                found.stop()


def supervisor_pid() -> int:
    """Return the process id of the supervisor of this thread, which is started where none runs."""
    return _supervisor().pid


def other_supervisor_pids() -> set[int]:
    """Return the process ids of the supervisors that this thread does not use."""
    own, us = _key(), os.getpid()
    return {each.pid for key, each in list(_current.items()) if key != own and each.owner == us}


def _command() -> list[str]:
    return [sys.executable, "-I", "-S", supervisor.__file__]


def _key() -> int:
    thread = threading.get_ident()
    return thread if thread in _separate else _COMMON


def _supervisor() -> _Supervisor:
    key = _key()
    with _lock:
        if (found := _current.get(key)) and found.is_usable:
            return found
        if found:
            found.stop()
        try:
            _current[key] = _Supervisor()
        except OSError as error:
            _current.pop(key, None)
            raise SupervisorError(f"The supervisor of the processes cannot be started: {error}") from error
        return _current[key]


@atexit.register
def _stop_all() -> None:
    while _current:
        _current.popitem()[1].stop()


def _is_readable(descriptor: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds * 1e3)))


def _read(descriptor: int, message: Struct) -> bytes:
    found = b""
    while len(found) < message.size:
        part = os.read(descriptor, message.size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def ask(
    argv: Sequence[str],
    env: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = 20.0,
    cwd: Path | None = None,
) -> str | None:
    """Return the output (stdout and stderr) of a short command; None if it cannot be started or does not end in time.

    ``env`` is added to the filtered environment, and ``cwd`` is the folder in which the command starts. Raises
    SupervisorError where no command can be started.
    """
    # A file, not a pipe: a grandchild that survives would keep the pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as output:
        try:
            asked = start(argv, {**environment.filter_variables(os.environ), **env}, output, cwd)
        except OSError:
            return None
        try:
            if asked.wait(timeout_s) is None:
                return None
        finally:
            kill_group(asked)
        output.seek(0)
        return output.read().decode(errors="replace")


def ask_python(words: Sequence[str], python: str = sys.executable, timeout_s: float = 20.0) -> str | None:
    """Return the output of a Python process of profpipe's own, as ``ask`` does. ``words`` follow ``python``.

    Python imports from the folder in which it starts, so it starts in that of profpipe: other interpreters may be too
    old for options that prevent this.
    """
    env = {"PYTHONPATH": environment.own_python_path()}
    return ask([python, *words], env, timeout_s, environment.ROOT)


# --- end -------------------------------------------------------------------------------------------------------------

#: Every process of a job has this environment variable. Its value is the job's folder.
JOB_VARIABLE = "PROFPIPE_JOB"

#: An option of prctl(2).
_PR_GET_CHILD_SUBREAPER = 37
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STEP_S = 0.05


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
    if not _kill_all(lambda: _find_marked(job_folder), wait_s):
        left = ", ".join(map(str, sorted(_find_marked(job_folder))))
        raise ProfpipeError(
            f"{job_folder}: process {left} of an earlier run still writes here. End that process first."
        )


def _find_marked(job_folder: Path) -> set[int]:
    entry, found = os.fsencode(f"{JOB_VARIABLE}={job_folder}"), set()
    for pid, state, _, _ in supervisor.processes():
        with suppress(OSError):  # the process has ended, or belongs to another user
            if state not in "ZX" and entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def is_running(argv: Sequence[str], except_pid: int) -> bool:
    """Return True if a descendant of this process runs the command ``argv``, other than ``except_pid``.

    The kernel puts the interpreter of a script, and at most one argument for it, before the words of the command.
    """
    words = [os.fsencode(word) for word in argv]
    for pid in find_descendants() - {except_pid}:
        with suppress(OSError):  # the process has ended
            running = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            if running[-len(words) :] == words and len(running) <= len(words) + 2:
                return True
    return False


def find_descendants() -> set[int]:
    """Return the living descendants of this process in other sessions, and reap its zombies there.

    The supervisors are not among them, and neither are the processes that another thread runs.
    """
    us, our_session, every = os.getpid(), os.getsid(0), [*supervisor.processes()]
    elsewhere = [process for process in every if process[3] != our_session]
    for pid, state, parent, _ in elsewhere:
        if state in "ZX" and parent == us:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    found, others = supervisor.descendants(us, every), other_supervisor_pids()
    foreign = others.union(*(supervisor.descendants(other, every) for other in others))
    return {pid for pid, *_ in elsewhere if pid in found} - foreign - {supervisor_pid()}


def stop(
    process: Child, grace: GracePeriods, is_urgent: Callable[[], bool], is_reporting: Callable[[], bool] = lambda: False
) -> None:
    """End the process group so that a profiler can still write its report; at once when ``is_urgent()`` is true.

    SIGINT first: nsys then stops the application and finishes its report. SIGKILL leaves no report and a running
    application. While ``is_reporting()`` is true the profiler is waited for longer.
    """

    def has_ended() -> bool:
        return process.poll() is not None

    _signal(process.pid, signal.SIGINT, os.killpg)
    ended = _wait_until(has_ended, grace.interrupt_s, unless=is_urgent)
    if not ended and not is_urgent() and is_reporting():
        ended = _wait_until(has_ended, grace.report_s, unless=is_urgent)
    if not ended and not is_urgent():
        _signal(process.pid, signal.SIGTERM, os.killpg)
        ended = _wait_until(has_ended, grace.terminate_s, unless=is_urgent)
    if not ended:
        kill_group(process, grace.kill_s)


def terminate(process: Child, grace: GracePeriods, is_urgent: Callable[[], bool]) -> None:
    """End the process group of a server as a service manager would: SIGTERM, and time to finish. nsys does the same."""
    _signal(process.pid, signal.SIGTERM, os.killpg)
    if not _wait_until(lambda: process.poll() is not None, grace.server_s, unless=is_urgent):
        kill_group(process, grace.kill_s)


def end_remaining(process: Child, spared: Collection[int], grace: GracePeriods) -> int:
    """End the processes that an ended process left running, and return how many did not end themselves.

    ``spared`` are the descendants that existed before the process started.
    """

    def find_left() -> set[int]:
        return find_descendants() - set(spared)

    if _wait_until(lambda: not find_left(), grace.linger_s):
        return 0
    left = find_left()
    for pid in left:
        _signal(pid, signal.SIGTERM)
    if not _wait_until(lambda: not find_left(), grace.linger_s):
        _kill_all(find_left, grace.kill_s)
    _signal(process.pid, signal.SIGKILL, os.killpg)
    return len(left)


def kill_tree(process: Child, spared: Collection[int], grace: GracePeriods) -> None:
    """End the process and all descendants at once."""
    kill_group(process, grace.kill_s)
    _kill_all(lambda: find_descendants() - set(spared), grace.kill_s)


def kill_group(process: Child, wait_s: float = GRACE.kill_s) -> None:
    """End the process and its group at once. One that hangs inside a driver still runs after ``wait_s`` seconds."""
    _signal(process.pid, signal.SIGKILL, os.killpg)
    process.wait(wait_s)


def _kill_all(find: Callable[[], set[int]], wait_s: float) -> bool:
    """Repeat SIGKILL until ``find`` returns no process, for one look at the table misses a process that forks."""

    def none_left() -> bool:
        left = find()
        for pid in left:
            _signal(pid, signal.SIGKILL)
        return not left

    return _wait_until(none_left, wait_s)


def _wait_until(is_true: Callable[[], bool], wait_s: float, unless: Callable[[], bool] = lambda: False) -> bool:
    deadline = time.monotonic() + wait_s
    while not is_true():
        if time.monotonic() > deadline or unless():
            return False
        time.sleep(_STEP_S)
    return True


def _signal(pid: int, number: signal.Signals, send: Callable[[int, int], None] = os.kill) -> None:
    """Send a signal to a process, or to the process group that it leads (``os.killpg``)."""
    with suppress(ProcessLookupError, PermissionError):
        send(pid, number)
