"""How a job's processes come to an end: the signals we receive, and those we send. Starts no process.

A process group is not enough to find them all: nsys (2022.4 to 2025.3) puts the application and its own agent into
sessions of their own. So while jobs run, this process adopts orphans (Linux's "child subreaper"), and whatever descends
from it in another session than its own belongs to the job. Out of reach stays a process that something else starts for
the job (a container's daemon, a batch system). Where there is no /proc, only the process group is ended.

When this process itself is killed, Linux ends the process that it started last (``bound_to_us``). What that one started
may run on; the next runner knows it by a variable in its environment and ends it (``end_leftovers``) before it starts
another that would write into the same files.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from profpipe.errors import ProfpipeError

#: The environment variable by which every process of a job is known; its value is the job's folder.
MARK = "PROFPIPE_JOB"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_ASKED_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STEP_S = 0.05


@dataclass(frozen=True)
class Patience:
    """How long each step of an ending may take. A profiler writes its report after SIGINT, which can take a while."""

    interrupt_s: float = 60.0
    terminate_s: float = 10.0
    #: What a job leaves running after its end (nsys's agent, data loader workers) may end by itself for so long.
    linger_s: float = 1.0
    #: How long to look for a process that does not even die of SIGKILL: one that hangs inside a driver.
    kill_s: float = 5.0


PATIENCE = Patience()


class Interrupts:
    """Counts Ctrl-C, SIGTERM and SIGHUP while entered, instead of raising KeyboardInterrupt in the midst of a write.

    The first asks to stop, the second to kill; a third raises, for the case that nobody looks at the count. Signals
    reach the main thread only, so in any other thread this counts nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            # nohup ignores SIGHUP and means it. An ignored SIGINT comes from a shell's `&`, and a SIGINT that is
            # ignored here is ignored by every child too, so that no profiler could be asked for its report.
            wanted = [s for s in _ASKED_TO_STOP if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
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
def adopted_orphans() -> Iterator[None]:
    """While entered, a descendant whose parent dies becomes our child instead of init's, and so stays known."""
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int(0)
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def bound_to_us() -> Callable[[], None] | None:
    """What a new process calls between fork and exec, so that it gets SIGTERM when this one dies, however it dies.

    nsys (2022.4 to 2025.3) then stops its application. Linux sends the signal when the thread that forked ends, so a
    thread that starts a process has to stay until that has ended; ``run`` does.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, us = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != us:  # we died before the signal was asked for
            os._exit(1)

    return bind


def end_leftovers(variable: str, value: str, wait_s: float) -> None:
    """Kills every process that has ``variable=value`` in its environment: the job's that a killed runner left.

    Raises ProfpipeError where one does not die, for it may still write.
    """
    if not _wait_until(lambda: not _kill_all(_marked(variable, value)), wait_s):
        left = ", ".join(map(str, sorted(_marked(variable, value))))
        raise ProfpipeError(f"{value}: process {left} of the run before still works here. End it first.")


def _marked(variable: str, value: str) -> set[int]:
    entry, found = os.fsencode(f"{variable}={value}"), set()
    for pid, state, _, _ in _process_table():
        with suppress(OSError):  # it ended while we looked, or is another user's
            if state not in "ZX" and entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def _kill_all(pids: set[int]) -> set[int]:
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    return pids


def descendants() -> set[int]:
    """The living processes below this one that are in another session than its own. Zombies of ours are reaped."""
    us, our_session = os.getpid(), os.getsid(0)
    parents: dict[int, int] = {}
    elsewhere = set()
    for pid, state, parent, session in _process_table():
        parents[pid] = parent
        if session == our_session:
            continue
        if state not in "ZX":
            elsewhere.add(pid)
        elif parent == us:
            _reap(pid)
    return {pid for pid in elsewhere if _is_below(us, pid, parents)}


@contextmanager
def waiting(process: subprocess.Popen[bytes]) -> Iterator[Callable[[float], None]]:
    """How to wait until the process has ended and is reaped, or for so many seconds.

    Linux says at once that a process has ended (pidfd_open, of Linux 5.3); ``Popen.wait`` with a limit looks only every
    50 ms, and all of that would be told as time of a command.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no Linux, an older one, or a sandbox that does not have it
        yield lambda seconds: _wait_looking(process, seconds)
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)

        def wait(seconds: float) -> None:
            if poll.poll(seconds * 1e3):
                process.wait()

        yield wait
    finally:
        os.close(descriptor)


def _wait_looking(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def ask_to_end(process: subprocess.Popen[bytes], patience: Patience, hurry: Callable[[], bool]) -> None:
    """Ends the process's group so that a profiler can still write its report.

    SIGINT first: nsys then stops the application and finalises its report, whereas SIGKILL leaves no report and a
    running application. As soon as ``hurry()`` is true, SIGKILL follows at once.
    """
    for number, wait_s in ((signal.SIGINT, patience.interrupt_s), (signal.SIGTERM, patience.terminate_s)):
        _signal_group(process.pid, number)
        if _wait_until(lambda: process.poll() is not None, wait_s, unless=hurry):
            return
        if hurry():
            break
    kill_group(process)


def clear(process: subprocess.Popen[bytes], spared: Collection[int], patience: Patience) -> int:
    """Ends what an ended process left running, however it ended; returns how many would not go by themselves.

    ``spared`` are the descendants that were there before the process started.
    """

    def gone() -> bool:
        return not descendants() - set(spared)

    if _wait_until(gone, patience.linger_s):
        return 0
    left = descendants() - set(spared)
    for pid in left:
        _signal(pid, signal.SIGTERM)
    if not _wait_until(gone, patience.linger_s):
        _kill(spared, patience.kill_s)
    _signal_group(process.pid, signal.SIGKILL)
    return len(left)


def kill(process: subprocess.Popen[bytes], spared: Collection[int], patience: Patience) -> None:
    """Ends the process and everything below it at once."""
    kill_group(process)
    _kill(spared, patience.kill_s)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and those of its group at once."""
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _kill(spared: Collection[int], wait_s: float) -> None:
    """SIGKILL until nothing is left: a process that forks is not caught by one look at the table."""

    def none_left() -> bool:
        left = descendants() - set(spared)
        for pid in left:
            _signal(pid, signal.SIGKILL)
        return not left

    _wait_until(none_left, wait_s)


def _wait_until(true: Callable[[], bool], wait_s: float, unless: Callable[[], bool] = lambda: False) -> bool:
    deadline = time.monotonic() + wait_s
    while not true():
        if time.monotonic() > deadline or unless():
            return False
        time.sleep(_STEP_S)
    return True


def _process_table() -> Iterator[tuple[int, str, int, int]]:
    """(pid, state, parent, session) of every process, from proc(5)'s stat; nothing where there is no /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            # The second field is the name in brackets, which may itself hold spaces and brackets.
            state, parent, _, session, *_ = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.name), state, int(parent), int(session)


def _is_below(ancestor: int, pid: int, parents: dict[int, int]) -> bool:
    while pid := parents.get(pid, 0):
        if pid == ancestor:
            return True
    return False


def _reap(zombie: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(zombie, os.WNOHANG)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
