"""Which lines of a Python program take its time: samples of the stacks of its threads, from its start to its end.

``capture.4711.lines.json`` has ``lines``, the ns and the samples of the places where the main thread ran or waited, and
the ``wall_ns`` of the process. ``parsers/python_lines.py`` reads it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any, Dict, List

from profpipe.hook import record
from profpipe.hook.host import PERIOD_S, SWITCH_S, Places


def at_start(given: Dict[str, Any]) -> None:
    """Sample the main thread of this process until it ends, and write the file then."""
    path = os.path.join(given["folder"], f"{given['stem']}.{os.getpid()}.lines.json")
    samples: Dict[int, List[int]] = {}
    places, ended = Places(), threading.Event()
    began, pid, main = time.perf_counter_ns(), os.getpid(), threading.main_thread().ident

    def sample() -> None:
        chance, last = random.Random(0), began
        while not ended.wait(PERIOD_S * (0.5 + chance.random())):
            frame = sys._current_frames().get(main) if main is not None else None
            now = time.perf_counter_ns()
            if frame is not None:
                row = samples.setdefault(places.number(frame)[0], [0, 0])
                # The interpreter's lock may come late: a sample stands for the time since the one before it.
                row[0], row[1], last = row[0] + now - last, row[1] + 1, now
            frame = None

    def finish() -> None:
        ended.set()
        thread.join(1.0)
        if pid == os.getpid() and samples:
            rows = [[places.names.get(number, ""), *row] for number, row in samples.items()]
            content = {"profpipe": "lines", "wall_ns": time.perf_counter_ns() - began, "lines": rows}
            with open(f"{path}.partial", "w", encoding="utf-8") as file:
                file.write(json.dumps(content))
            os.replace(f"{path}.partial", path)

    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    thread = threading.Thread(target=sample, name="profpipe-lines", daemon=True)
    thread.start()
    record.at_end(finish)
