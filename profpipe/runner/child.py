"""Start processes through the supervisor of this runner, which ends them all when the runner is gone.

Threads that run jobs side by side have separate supervisors: the processes of a job are those below its supervisor.
"""

from __future__ import annotations

import atexit
import marshal
import os
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import IO, Any, Final

from profpipe.errors import ProfpipeError
from profpipe.runner import supervisor
from profpipe.runner.supervisor import ENDED, HEADER, STARTED

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
