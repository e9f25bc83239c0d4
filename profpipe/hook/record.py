"""The file that the hook writes, and what it says about the process.

It has JSON lines, and a process that makes steps has one file. The first line is ``started``. parsers/hook.py
describes the lines and reads them.
"""

from __future__ import annotations

import atexit
import functools
import json
import mmap
import os
import struct
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Optional, Set, TextIO

from profpipe.hook import clock, settings
from profpipe.hook.settings import HookSettings


class HookRecord:
    """Opened at the first line, so that a process without steps leaves no file.

    ``describe`` gives the fields of the first line. A forked process writes another file. Threads may share a record.
    """

    def __init__(self, path: Callable[[], str], describe: Callable[[], Dict[str, Any]]) -> None:
        self._path, self._describe = path, describe
        self._stream: Optional[TextIO] = None
        self._written: Set[object] = set()
        self._lock = threading.RLock()

    def write(self, event: str, **fields: Any) -> None:
        with self._lock:
            if self._stream is None:
                # Line buffered: what was written survives a crash.
                self._stream = open(self._path(), "a", buffering=1, encoding="utf-8")  # noqa: SIM115
                about = {"pid": os.getpid(), "time_ns": time.time_ns()}
                about.update(self._describe())
                self._stream.write(json.dumps({"hook": "started", **about}) + "\n")
            self._stream.write(json.dumps({"hook": event, **fields}) + "\n")

    def note(self, text: str) -> None:
        """Write a remark for the report, once."""
        if self._is_new(text):
            self.write("note", text=text)

    def error(self, error: BaseException, during: str) -> None:
        """Write an exception of the hook, once for a place. The program goes on as if there were no hook."""
        if self._is_new((type(error), during)):
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            about = {"type": type(error).__name__, "message": str(error), "traceback": "".join(lines)}
            try:
                self.write("error", during=during, **about)
            except OSError as full:  # a full disk must not end the program
                print(f"profpipe: the start-up hook cannot write: {full}", file=sys.stderr)

    def forget(self) -> None:
        """Leave the file to the parent process, after a fork. Another thread may have held the lock."""
        self._stream, self._lock = None, threading.RLock()
        self._written.clear()

    def _is_new(self, remark: object) -> bool:
        with self._lock:
            is_new = remark not in self._written
            self._written.add(remark)
            return is_new


#: A step that is not in the record yet: its number, its start and time in ns, and the words rule, clock and call. The
#: start is 0 where there is no step, and the time is negative where the GPU has not finished it.
PENDING_STEP = struct.Struct("=qqd232s")


class Pending:
    """The steps that are not in the record yet, in a mapped file, so that they survive any end of the process.

    ``put(offset, number, start_ns, wall_ns, words)`` takes 0.2 microseconds. ``profpipe.measure.event_lines`` reads
    what an end left.
    """

    #: Bytes of a step, and of all.
    STEP, ALL = PENDING_STEP.size, PENDING_STEP.size << 8

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            # A hole in the file, which a full disk cannot fill, would end the program by SIGBUS.
            file.write(bytes(self.ALL))
            file.flush()
            self._map = mmap.mmap(file.fileno(), self.ALL)
        self.put = functools.partial(PENDING_STEP.pack_into, self._map)

    def clear(self) -> None:
        self._map[:] = bytes(self.ALL)


def write_whole(path: str, content: bytes) -> None:
    """Write the file whole or not at all: the process may be killed meanwhile."""
    with open(f"{path}.part", "wb") as file:
        file.write(content)
    os.replace(f"{path}.part", path)


# --- the process -----------------------------------------------------------------------------------------------------


def describe(given: HookSettings) -> Dict[str, Any]:
    """Return the fields of the first line of the record."""
    torch = sys.modules.get("torch")
    about: Dict[str, Any] = {
        "profiler": given.profiler,
        "rank": settings.rank(),
        "python": sys.version.split()[0],
        "warmup": given.warmup,
        "torch": str(getattr(torch, "__version__", "")),
    }
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        about["rank"] = distributed.get_rank()
    if given.node:
        about["node"] = given.node
    library = clock.cuda()
    if library is not None:
        about["device_name"] = library.get_device_name(library.current_device())
    return about


#: Seconds after which a process that calls ``os._exit`` ends, whatever the hook still waits for.
_LONGEST_END_S = 330.0


def at_end(finish: Callable[[], None]) -> None:
    """Have ``finish`` called where this process ends, also by ``os._exit`` and in a process of multiprocessing.

    While a process is forked nothing shows yet that it is one of multiprocessing, and forgets such functions before it
    begins its work.
    """
    atexit.register(finish)
    leave = os._exit

    @functools.wraps(leave)
    def finish_and_leave(status: int) -> None:
        try:
            # A GPU that hangs never finishes the last steps.
            last = threading.Timer(_LONGEST_END_S, leave, (status,))
            last.daemon = True
            last.start()
            finish()
        finally:
            leave(status)

    os._exit = finish_and_leave  # type: ignore[assignment]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        _register(finish)
        util.register_after_fork(finish, _register)


def _register(finish: Callable[[], None]) -> None:
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, finish, exitpriority=0)
