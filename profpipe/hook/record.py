"""The file that the hook writes: JSON lines, one file for each process that makes steps.

The first line is ``started``. parsers/hook.py describes the lines and reads them.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from typing import Any, Callable, Dict, Optional, Set, TextIO


class Record:
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
        """Write an exception of the hook, once for each place. The program goes on as if there were no hook."""
        if self._is_new((type(error), during)):
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            self.write("error", type=type(error).__name__, message=str(error), during=during, traceback="".join(lines))

    def forget(self) -> None:
        """Leave the file to the parent process, after a fork. Another thread may have held the lock."""
        self._stream, self._lock = None, threading.RLock()
        self._written.clear()

    def _is_new(self, remark: object) -> bool:
        with self._lock:
            is_new = remark not in self._written
            self._written.add(remark)
            return is_new
