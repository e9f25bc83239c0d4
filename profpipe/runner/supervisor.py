"""Run a command for the runner, and end all that it started when it is over, or when the runner is gone.

``python -I -S supervisor.py``: stdin brings the request, and the runner holds the other end open. The kernel closes it
when the runner ends in any way. Then each descendant of this process gets SIGKILL. stdout takes the reports, and stderr
is the output of the command. This process is the parent of the command and adopts orphans (``PR_SET_CHILD_SUBREAPER``
of prctl(2)), so no process leaves it by a new session, by ignored signals or by a changed environment. If the
supervisor itself is killed, the runner adopts and ends the processes (``process.py``).

Only the standard library is imported, for every command waits for this start.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.02
#: A process that hangs inside a driver does not die of SIGKILL. It is not waited for longer.
_MOST_S = 60.0


def main() -> None:
    """Carry out the request, and report the start, the end, and how many processes had to be ended."""
    argv, env, folder, linger_s, kill_s, waits = marshal.load(sys.stdin.buffer)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A supervisor that is stopped does not see that its stdin closes, so the kernel continues it then.
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    # A handler, not SIG_IGN: a program that is started would inherit that, and no profiler could be interrupted.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    us, began = os.getpid(), time.monotonic()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:  # the parent died before the signal was set
            os._exit(1)

    try:
        command = subprocess.Popen(
            argv, env=env, cwd=folder, stdin=subprocess.PIPE if waits else subprocess.DEVNULL, stdout=2,
            start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
    except OSError as error:
        # Only an error of the program or of its folder names a file.
        return report(0, error.errno or errno.EAGAIN, error.filename or "", began)
    except ValueError:  # a NUL in a word, or = in the name of a variable
        return report(0, errno.EINVAL, argv[0], began)
    report(command.pid, 0, "", began)
    threading.Thread(target=end_with_runner, args=[command], daemon=True).start()
    cpu_s, peak, ended = 0.0, 0, 0
    while ended != command.pid:
        ended, status, used = os.wait3(0)
        # wait3(2) counts a process with the children that it waited for. This one adopts those that lost their parent.
        cpu_s, peak = cpu_s + used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss)
    # getrusage(2) counts KiB on Linux and bytes on macOS.
    peak *= 1 if sys.platform == "darwin" else 1024
    report(os.waitstatus_to_exitcode(status), time.monotonic(), cpu_s, peak)
    report(end_remaining(command.pid, linger_s, kill_s))


def report(*values: float | str) -> None:
    with suppress(OSError):  # the runner is gone
        os.write(1, marshal.dumps(values))


def end_with_runner(command: subprocess.Popen[bytes]) -> None:
    """Wait until the runner closes the request, and kill what is left of the command then.

    What the runner writes before that goes to a command that waits for it.
    """
    while said := os.read(0, 4096):
        with suppress(OSError):  # the command has ended
            os.write(command.stdin.fileno(), said)  # type: ignore[union-attr]
    kill_all(command.pid, _MOST_S)
    os._exit(0)


def end_remaining(command: int, linger_s: float, kill_s: float) -> int:
    """End what the command left running, and return how many processes did not end themselves."""
    if wait_until_none_is_left(lambda: find_left(command), linger_s):
        return 0
    left = find_left(command)
    for pid in left:
        send(pid, signal.SIGTERM)
    if not wait_until_none_is_left(lambda: find_left(command), linger_s):
        kill_all(command, kill_s)
    return len(left)


def kill_all(command: int, wait_s: float) -> None:
    """Kill what is left of the command."""
    wait_until_none_is_left(lambda: find_left(command), wait_s, signal.SIGKILL)


def wait_until_none_is_left(find: Callable[[], set[int]], wait_s: float, number: int = 0) -> bool:
    """Return True once ``find`` returns no process. Until then each gets the signal ``number`` again and again.

    One look at the table misses a process that forks.
    """
    deadline = time.monotonic() + wait_s
    while left := find():
        for pid in left if number else ():
            send(pid, number)
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def find_left(command: int) -> set[int]:
    """Return the living descendants. Without a usable /proc only the group of the command is known: ``-command``."""
    with suppress(ChildProcessError):
        while threading.current_thread() is threading.main_thread() and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if has_proc():
        return descendants(os.getpid())
    try:
        os.killpg(command, 0)
    except (ProcessLookupError, PermissionError):
        return set()
    return {-command}


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


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


def descendants(ancestor: int) -> set[int]:
    """Return the living descendants of a process."""
    table = {pid: (state, parent) for pid, state, parent, _ in processes()}

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
    main()
