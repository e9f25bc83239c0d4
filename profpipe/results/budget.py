"""Stop the reader of a file that takes more time or memory than a file of its size explains, and read JSON.

The bounds of single formats refuse what is known to be harmful, early and by name. This budget is for everything else.

Time is CPU time of the process, because waiting for other programs on a busy machine is no property of the file. Three
kinds of work are stopped: Python code and regular expressions of the main thread, by a timer whose handler raises
``TooLarge``; statements of SQLite, by a thread that interrupts them; loops over batches in other threads, by ``check``.
Any other call of a library ends first.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from profpipe.errors import ConfigError

#: Every file gets 10 s of CPU time and 1 s per 50 MB, and 1 GB of memory and 4 times its size. The program itself and
#: the refusal need the rest.
_SECONDS, _BYTES_PER_S = 9.0, 50e6
_BYTES, _BYTES_PER_BYTE = 640 << 20, 4
#: On a busy machine an honest trace of torch takes 1 s per 50 MB, and a text of `nsys stats` 4 s. Larger files get 5 s
#: per 50 MB beyond this size.
_LARGE, _LARGE_BYTES_PER_S = 100e6, 10e6
#: A compressed file counts as if it was unpacked: traces and Parquet shrink to a tenth or less.
_PACKED: Final = 16
_MAGIC: Final = (b"\x1f\x8b", b"PK\x03\x04", b"PAR1")

#: A factor for all budgets.
VARIABLE: Final = "PROFPIPE_BUDGET"
REMEDY: Final = f"Record a shorter part of the program, or allow four times as much: {VARIABLE}=4."

#: Of wall time in the thread, and of CPU time in the timer. The handler may be called while an error is handled, so the
#: next call comes later.
_TICK_S, _TIMER_S, _AGAIN_S = 0.05, 0.1, 1.0
#: Of the largest whole number in 64 bits.
_MOST_DIGITS: Final = 19

#: Of SQLite's virtual machine, a few milliseconds.
_STEPS: Final = 100_000


class TooLarge(Exception):
    """A file passes its budget, or a bound of ``ingest.bounds``. The text says which."""


def allowed(path: Path, times: float = 1) -> tuple[float, float]:
    """Return the seconds of CPU time and the bytes of memory of so many budgets of a file, or of a folder read as one.

    The memory is what the process takes beyond what it had before. Raises ConfigError for a wrong factor in the
    environment.
    """
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    size, factor = sum(_unpacked(file) for file in files), times * _factor()
    seconds = _SECONDS + min(size, _LARGE) / _BYTES_PER_S + max(0, size - _LARGE) / _LARGE_BYTES_PER_S
    return factor * seconds, factor * (_BYTES + _BYTES_PER_BYTE * size)


def _unpacked(file: Path) -> float:
    try:
        size = file.stat().st_size
        if not size:
            return 0  # to read a file of /proc may wait for ever
        with file.open("rb") as stream:
            is_packed = stream.read(4).startswith(_MAGIC)
    except OSError:
        return 0
    return size * _PACKED if is_packed else size


def _factor() -> float:
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0
    if not 0 < factor < float("inf"):
        raise ConfigError(VARIABLE, f"{text!r} is no positive number.", f"Set it to a factor: {VARIABLE}=4.")
    return factor


class _Watch:
    """A thread that compares what reading takes with its budget."""

    def __init__(self, seconds: float, bytes_: float) -> None:
        self._seconds, self._bytes = seconds, bytes_
        self._began_s, self._began_bytes = _cpu_s(), resident_bytes()
        self._ended = threading.Event()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._thread = threading.Thread(target=self._run, name="budget", daemon=True)
        self._before: Any = None
        #: Why the file is refused, empty as long as it is not.
        self.excess = ""

    def start(self) -> None:
        self._thread.start()
        if self._is_main:
            self._before = signal.signal(signal.SIGPROF, self._stop_main)
            # System calls of libraries go on after the signal.
            signal.siginterrupt(signal.SIGPROF, False)
            signal.setitimer(signal.ITIMER_PROF, _TIMER_S, _TIMER_S)

    def end(self) -> None:
        self._ended.set()
        if self._is_main:
            signal.setitimer(signal.ITIMER_PROF, 0)
            # The last signal may arrive after this line, and by default it ends the process.
            signal.signal(signal.SIGPROF, self._before if callable(self._before) else _ignore)
        if self._thread.ident is not None:
            self._thread.join()

    @contextmanager
    def interrupting(self, connection: sqlite3.Connection) -> Iterator[None]:
        with self._lock:
            self._connections.append(connection)
        # Between two calls of this function Python handles no signal, not even Ctrl-C.
        connection.set_progress_handler(lambda: bool(self.excess), _STEPS)
        try:
            yield
        finally:
            # A generator that the budget left unfinished ends when its connection is closed.
            with suppress(sqlite3.ProgrammingError):
                connection.set_progress_handler(None, 0)
            with self._lock:
                self._connections.remove(connection)

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            self.measure()
            if self.excess:
                with self._lock:
                    for connection in self._connections:
                        # One may be closed already, while a generator that read from it still waits for its end.
                        with suppress(sqlite3.ProgrammingError):
                            connection.interrupt()

    def measure(self, needed: float = 0) -> None:
        seconds, more = _cpu_s() - self._began_s, resident_bytes() - self._began_bytes + needed
        if not self.excess and seconds > self._seconds:
            self.excess = f"to read it takes more than {self._seconds:,.0f} s of CPU time"
        elif not self.excess and more > self._bytes:
            self.excess = f"to read it takes more than {self._bytes / 1e6:,.0f} MB of memory"

    def _stop_main(self, *_: object) -> None:
        if _current is not self or self._ended.is_set():
            return
        self.measure()
        if self.excess:
            signal.setitimer(signal.ITIMER_PROF, _AGAIN_S, _AGAIN_S)
            raise TooLarge(self.excess)


def _ignore(*_: object) -> None:
    """Do nothing. Unlike ``SIG_IGN`` it does not pass to the programs that profpipe starts."""


_current: _Watch | None = None


@contextmanager
def limit(path: Path, times: float = 1) -> Iterator[None]:
    """Raise ``TooLarge`` where the body takes more than ``times`` the budget of ``path``.

    A ``limit`` inside another one changes nothing.
    """
    global _current
    if _current is not None:
        yield
        return
    watch = _current = _Watch(*allowed(path, times))
    try:
        watch.start()
        yield
    except TooLarge:
        raise
    except MemoryError as error:
        raise TooLarge("to read it takes more memory than the machine gives") from error
    except Exception as error:
        # An interrupted statement of SQLite looks like a damaged file.
        if watch.excess:
            raise TooLarge(watch.excess) from error
        # SQLite interrupts a statement too where a handler of signals raises: that of Ctrl-C.
        if isinstance(error, sqlite3.OperationalError) and str(error) == "interrupted":
            raise KeyboardInterrupt from None
        raise
    finally:
        # The last tick may raise at the first line. The next one comes a second later.
        try:
            _current = None
        finally:
            _current = None
            watch.end()


def _cpu_s() -> float:
    """Return the CPU time of this process. That of children does not count: a job may end while a file is read."""
    used = os.times()
    return used.user + used.system


def check(needed: float = 0) -> None:
    """Raise ``TooLarge`` where the file that is being read passes its budget, or would with ``needed`` bytes more."""
    # This may run in another thread, and reading may end meanwhile.
    watch = _current
    if watch is not None:
        watch.measure(needed)
        if watch.excess:
            raise TooLarge(watch.excess)


def check_bytes(path: Path, needed: float) -> None:
    """Raise ``TooLarge`` where ``needed`` bytes of memory are more than the budget of ``path``."""
    if needed > (most := allowed(path)[1]):
        raise TooLarge(f"to read it takes more than {most / 1e6:,.0f} MB of memory")


def interrupting(connection: sqlite3.Connection) -> AbstractContextManager[None]:
    """Interrupt the statements of ``connection`` when the budget is spent."""
    watch = _current
    return watch.interrupting(connection) if watch else nullcontext()


def resident_bytes() -> int:
    """Return the memory that the process has now, 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as stream:  # noqa: PTH123 - 20 times a second
            return int(stream.read().split()[1]) * _PAGE
    except OSError:
        return 0


_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def load_json(text: str) -> Any:
    """Return the JSON document. Raises ValueError for text that is none, too deep, or has a number beyond 64 bits."""
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"the number {digits[:_MOST_DIGITS]}... is too large")
    return int(digits)
