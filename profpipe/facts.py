"""What is true of a case whoever measures it: its work, its own numbers, and how far its result is from a reference.

Asked of the workload after the case was timed. Its times stand whatever becomes of these questions.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profpipe.errors import one_line

Write = Callable[..., None]
#: Name, value and unit; a value that is None is not written.
Metric = tuple[str, float | None, str]


def write(workload: Any, params: Mapping[str, Any], folder: Path, events: Write) -> list[str]:
    """Asks the workload and writes what it says; returns the validity marks that follow from it.

    ``folder`` is the job's, below which a workload may keep files of the case (``snapshot``); ``events(event,
    **fields)`` appends to the record of the case. ``unchecked``: its result could not be compared with the reference.
    """
    case = _Case(workload, params, events)
    case.tell("flops", lambda flops: [("flops", flops, "flop")])
    case.tell("bytes_moved", lambda moved: [("bytes_moved", moved, "byte")])
    case.tell("facts", lambda facts: [(metric, value, unit) for metric, (value, unit) in facts.items()])
    checked = case.tell("check", lambda found: [(metric, value, "1") for metric, value in found.items()])
    case.keep(folder)
    return [] if checked else ["unchecked"]


class _Case:
    """One case of a workload, being asked."""

    def __init__(self, workload: Any, params: Mapping[str, Any], events: Write) -> None:
        self._workload, self._params, self._events = workload, params, events

    def tell(self, name: str, rows: Callable[[Any], list[Metric]]) -> bool:
        """Writes what the workload's function ``name``, if it has one, says; False where it failed."""
        if (function := getattr(self._workload, name, None)) is None:
            return True
        try:
            for metric, value, unit in rows(function(self._params)):
                if value is not None:
                    self._events("metric", subject="", metric=metric, value=value, unit=unit, n=1)
        except Exception as error:  # as for the case itself: recorded, and not the end
            self._failed(name, error)
            return False
        return True

    def keep(self, folder: Path) -> None:
        """Files that the workload wants kept of the case (``snapshot``), in ``folder``; an empty one is not left."""
        if (snapshot := getattr(self._workload, "snapshot", None)) is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in snapshot(self._params, folder):
                self._events("note", text=f"kept: snapshots/{folder.name}/{file.name}")
            if not any(folder.iterdir()):
                folder.rmdir()
        except Exception as error:  # likewise
            self._failed("snapshot", error)

    def _failed(self, during: str, error: Exception) -> None:
        self._events("error", during=during, reason=one_line(error), traceback=traceback.format_exc())
