"""Read a memory snapshot that ``torch.cuda.memory._dump_snapshot`` wrote, in another process with limits."""

from __future__ import annotations

import marshal
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from profpipe.errors import UnreadableFile
from profpipe.ingest import unpickle
from profpipe.results import atomic, budget

_REMEDY = "Nothing of it was executed. Write a snapshot by torch.cuda.memory._dump_snapshot."
#: A process that passes its limit of CPU time gets one of these.
_OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
_LONGEST = 200


def read_snapshot(path: Path) -> dict[str, Any]:
    """Return the snapshot in a pickle, plain or gzipped: ``unpickle.SNAPSHOT`` has its keys and types.

    Lists and dicts that the file shares are shared. Raises UnreadableFile for another or a damaged file, and TooLarge
    for one that takes more than the budget of its size.
    """
    seconds, most_bytes = budget.allowed(path)
    command = [sys.executable, "-I", "-S", str(unpickle.__file__), str(math.ceil(seconds)), str(int(most_bytes))]
    with atomic.open_regular(path) as file:
        ended = subprocess.run(command, stdin=file, capture_output=True, start_new_session=True)
    if ended.returncode in _OUT_OF_TIME:
        raise budget.TooLarge(f"to read it takes more than {seconds:,.0f} s of CPU time")
    if ended.returncode:
        what = f"is damaged: it ends the process that reads it (exit code {ended.returncode})"
        raise UnreadableFile(path, what, _REMEDY)
    kind, answer = marshal.loads(ended.stdout)
    if kind == unpickle.TOO_LARGE:
        raise budget.TooLarge(answer)
    if kind == unpickle.REFUSED:
        raise UnreadableFile(path, f"is no memory snapshot of torch: {ascii(answer)[1:-1][:_LONGEST]}", _REMEDY)
    return dict(answer)
