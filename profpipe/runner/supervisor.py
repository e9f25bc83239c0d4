"""Start the processes of a run, and end all of them when the runner is gone: a small program beside the runner.

``python -I -S supervisor.py FD``: the runner sends requests through the socket FD. Only the runner holds the other end,
so the kernel closes the socket when the runner ends in any way. Then each descendant of this process gets SIGKILL. The
supervisor is the parent of what the runner starts and adopts orphans (``PR_SET_CHILD_SUBREAPER`` of prctl(2)), so no
process leaves it by a new session, by ignored signals or by a changed environment. If the supervisor itself is killed,
the runner adopts and ends the processes (``process.py``).

Only the standard library is imported, for every run waits for this start. ``child.py`` is the other side.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

#: A request: the size of its body, and with it two descriptors: the output of the process, and where to report.
HEADER = struct.Struct("!Q")
#: The first report: process id, 0 or the errno of a failed start, its cause, and the time.
STARTED = struct.Struct("!iiid")
#: The causes of a failed start: the program, the folder to run it in, or a limit of this process or machine.
PROGRAM, FOLDER, MACHINE = range(3)
#: The second report: the status that waitpid(2) returned, and the time. Times are those of CLOCK_MONOTONIC.
ENDED = struct.Struct("!id")

_PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.005
#: A process that hangs inside a driver does not die of SIGKILL. It is not waited for longer.
_MOST_S = 60.0


def main(control: socket.socket) -> None:
    """Serve the requests of the runner until it closes the socket."""
    control.set_inheritable(False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A supervisor that is stopped does not see that the socket closes, so the kernel continues it then.
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    wakeup, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    # A handler, not SIG_IGN: a program that is started would inherit that, and no profiler could be interrupted.
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    reports: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    is_wanted = True
    while is_wanted:
        for descriptor, _ in poll.poll():
            if descriptor == wakeup:
                os.read(wakeup, 4096)
                reap(reports)
            else:
                is_wanted = serve(control, reports)
    end_descendants(reports)


def serve(control: socket.socket, reports: dict[int, int]) -> bool:
    """Start what the runner asks for; return False where the runner has closed the socket."""
    try:
        header, (output, report) = receive(control)
        body = b""
        while len(body) < header:
            part = control.recv(header - len(body))
            if not part:
                return False
            body += part
    except (OSError, ValueError, struct.error):
        return False
    argv, env, folder = marshal.loads(body)
    try:
        pid = start(argv, env, folder, output, report)
    finally:
        os.close(output)
    if pid:
        reports[pid] = report
    else:
        os.close(report)
    return True


def receive(control: socket.socket) -> tuple[int, tuple[int, int]]:
    """Return the size of the next request and its descriptors. Raises ValueError at the end of the requests."""
    # The descriptors are not for the processes that are started.
    header, descriptors, _, _ = socket.recv_fds(control, HEADER.size, 2, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    output, report = descriptors
    return HEADER.unpack(header)[0], (output, report)


def start(argv: list[str], env: dict[str, str], folder: str | None, output: int, report: int) -> int:
    """Start a process in a new session and report that; return 0 where it cannot be started."""
    us, began = os.getpid(), time.monotonic()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:  # the parent died before the signal was set
            os._exit(1)

    number, cause = errno.EINVAL, PROGRAM
    try:
        started = subprocess.Popen(
            argv,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    except OSError as error:
        # Only the two calls that fail for a reason of the request name a file.
        number = error.errno or errno.EAGAIN
        cause = MACHINE if error.filename is None else FOLDER if error.filename == folder else PROGRAM
    except ValueError:  # a NUL in a word, or = in the name of a variable
        pass
    else:
        # `reap` waits for the process. An object without a returncode would be waited for when the next one is made.
        started.returncode = 0
        tell(report, STARTED.pack(started.pid, 0, PROGRAM, began))
        return started.pid
    tell(report, STARTED.pack(0, number, cause, began))
    return 0


def reap(reports: dict[int, int]) -> None:
    """Report each process that has ended, and remove the orphans that have."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if (report := reports.pop(pid, None)) is not None:
            tell(report, ENDED.pack(status, time.monotonic()))
            os.close(report)


def tell(report: int, message: bytes) -> None:
    with suppress(OSError):  # the runner is gone
        os.write(report, message)


def end_descendants(reports: dict[int, int]) -> None:
    """Send SIGKILL to all descendants until none is left: one look misses a process that forks.

    Without a usable /proc only the processes of ``reports`` and their groups are known.
    """
    deadline = time.monotonic() + _MOST_S
    while time.monotonic() < deadline:
        reap(reports)
        send, left = (os.kill, descendants(os.getpid())) if has_proc() else (os.killpg, set(reports))
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                send(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Yield (pid, state, parent, session) of every process, from proc(5); nothing without a /proc of this process."""
    # pathlib would take a third of the time of this program's start.
    for name in os.listdir("/proc") if has_proc() else ():  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError):  # the process has ended
                with open(f"/proc/{name}/stat", errors="replace") as stream:  # noqa: PTH123
                    # The second field is the name in brackets, which may contain spaces and brackets.
                    state, parent, _, session = stream.read().rpartition(")")[2].split()[:4]
                yield int(name), state, int(parent), int(session)


def descendants(ancestor: int, among: Iterable[tuple[int, str, int, int]] = ()) -> set[int]:
    """Return the living descendants of a process, ``among`` what ``processes`` yielded, or yields now."""
    table = {pid: (state, parent) for pid, state, parent, _ in among or processes()}

    def is_below(pid: int) -> bool:
        while (pid := table.get(pid, ("", 0))[1]) not in (0, ancestor):
            pass
        return pid == ancestor

    return {pid for pid, (state, _) in table.items() if state not in "ZX" and is_below(pid)}


def has_proc() -> bool:
    """Return True if /proc has this process under its number.

    The /proc of another PID namespace, as in a container that mounts the one of its host, has other numbers. A signal
    to one of these would reach an unrelated process.
    """
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115
    except OSError:
        return False


def prctl(option: int, value: object) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
