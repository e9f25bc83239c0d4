"""Which lines of a Python program take its time: samples of the stack of its main thread, from its start to its end.

``capture.4711.lines.json`` has ``lines``: the places where the main thread ran or waited, their ns and their samples,
and ``others_ns``: the CPU time of the other threads.
``parsers/python_lines.py`` reads it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Dict, List

from profpipe.hook import record
from profpipe.hook.host import SWITCH_S, Places, sample_times


class LineSampler:
    """Samples the main thread of this process from its making on. ``write`` ends it."""

    def __init__(self, path: str) -> None:
        self._path, self._pid = path, os.getpid()
        self._samples: Dict[int, List[int]] = {}
        self._places, self._ended = Places(), threading.Event()
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._thread = threading.Thread(target=self._sample, name="profpipe-lines", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        last, main = time.perf_counter_ns(), threading.main_thread().ident or 0
        for now in sample_times(self._ended):
            frame = sys._current_frames().get(main)
            if frame is not None:
                row = self._samples.setdefault(self._places.number(frame)[0], [0, 0])
                # The interpreter's lock may come late: a sample stands for the time since the one before it.
                row[0], row[1], last = row[0] + now - last, row[1] + 1, now
            # A frame that is kept during the wait would keep the variables of its function.
            frame = None

    def write(self) -> None:
        self._ended.set()
        self._thread.join(1.0)
        if self._pid == os.getpid() and self._samples:
            rows = [[self._places.names.get(number, ""), *row] for number, row in self._samples.items()]
            is_main = threading.current_thread() is threading.main_thread()
            others_ns = time.process_time_ns() - time.thread_time_ns() if is_main else 0
            content = {"profpipe": "lines", "lines": rows, "others_ns": others_ns}
            record.write_whole(self._path, json.dumps(content).encode())


def at_start(given: Dict[str, Any]) -> None:
    """Sample this process of a command until it ends."""
    path = os.path.join(given["folder"], f"{given['stem']}.{os.getpid()}.lines.json")
    record.at_end(LineSampler(path).write)
