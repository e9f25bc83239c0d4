"""Follow a job's ``events.jsonl`` while the harness appends to it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from profpipe.errors import is_disk_full
from profpipe.job import CaseOutcome, Cause, ProgressListener, Status, Visit
from profpipe.masking import mask_printed
from profpipe.measure import event_lines
from profpipe.measure.event_lines import Damage
from profpipe.results import atomic

#: More visits than any case has rounds.
_ALL = sys.maxsize


class EventLog:
    """The cases that a process started and ended, from the lines appended since this object was made.

    The harness writes ``case_started`` whenever it turns to a case, and ``case_ended`` once. ``inside`` is the last
    case that it turned to and that has not ended: the case in which a process died. ``ended`` and ``inside`` are given
    where the process has already ended and only its exports are left.
    """

    def __init__(
        self,
        path: Path,
        listener: ProgressListener,
        ended: dict[str, CaseOutcome] | None = None,
        inside: str | None = None,
    ) -> None:
        self.ended, self.inside = ended or {}, inside
        self.inside_since = 0.0
        #: Time of the last progress: the start or the end of a case (``time.monotonic``).
        self.progressed_at = time.monotonic()
        self._rounds = 1
        #: By case: how often the processes of this job turned to it, and _ALL for a case that has ended.
        self._visits: dict[str, int] = {}
        self._path, self._listener = path, listener
        for event in event_lines.read(path)[0]:
            self._count_visit(event)
        #: Where the first line of this object begins in the file, in bytes.
        self.begins_at = self._unread = _close_last_line(path)

    def read(self) -> None:
        """Read the whole lines that were appended. A partial line is read by a later call."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._unread)
                lines, newline, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._unread += len(lines) + len(newline)
        for line in lines.splitlines():
            event = event_lines.parse(line)
            if isinstance(event, Damage):
                shown = mask_printed(line.decode(errors="backslashreplace"))[:80]
                self._listener.message(f"{self._path}: ignored a line that is no event: {shown!r}")
            else:
                self._take(event)

    def _count_visit(self, event: dict[str, Any]) -> None:
        """Follow the rounds of each case. A new process writes the samples of the rounds that it takes over."""
        kind, case = event.get("event"), event.get("case", "")
        if kind == "started":
            self._visits = {case: visits for case, visits in self._visits.items() if visits == _ALL}
        elif kind == "samples":
            self._visits[case] = max(self._visits.get(case, 0), event.get("round") or 1)
        elif kind == "case_started" and self._visits.get(case) != _ALL:
            self._visits[case] = self._visits.get(case, 0) + 1
        elif kind == "case_ended":
            self._visits[case] = _ALL

    def _take(self, event: dict[str, Any]) -> None:
        kind, case = event.get("event"), event.get("case", "")
        self._count_visit(event)
        if kind in ("started", "case_started", "case_ended"):
            self.progressed_at = time.monotonic()
        if kind == "order":
            self._rounds = int(event.get("rounds") or 1)
        elif kind == "case_started" and case not in self.ended:
            self.inside, self.inside_since = case, time.monotonic()
            turn = min(self._visits[case], self._rounds)
            # A case is in the table from its first visit on.
            number = len(self._visits) if turn == 1 else sum(visits >= turn for visits in self._visits.values())
            self._listener.case_started(case, Visit(number, turn, self._rounds))
        elif kind == "case_ended":
            self.ended[case] = outcome = _outcome(event)
            self.inside = None if self.inside == case else self.inside
            self._listener.case_ended(case, outcome.status, outcome.details)


def read_outcomes(path: Path, begin: int = 0, end: int | None = None) -> dict[str, CaseOutcome]:
    """Return the outcome of each case that ended, from the bytes ``begin`` to ``end`` of ``path``."""
    events, _ = event_lines.read(path, begin, end)
    return {event["case"]: _outcome(event) for event in events if event["event"] == "case_ended"}


def read_started(path: Path) -> frozenset[str]:
    """Return the cases that any process turned to."""
    return frozenset(event["case"] for event in event_lines.read(path)[0] if event["event"] == "case_started")


def _outcome(event: dict[str, Any]) -> CaseOutcome:
    details, status = event.get("reason") or "", Status(event["status"])
    if status is Status.OK:
        return CaseOutcome(status)
    return CaseOutcome(status, Cause.DISK_FULL if is_disk_full(details) else Cause.WORKLOAD, details)


def _close_last_line(path: Path) -> int:
    """End the line that a killed process left unfinished, and return the file's size in bytes.

    Raises ConfigError where ``path`` is a link or no regular file.
    """
    if not os.path.lexists(path):
        return 0
    with atomic.open_to_append(path) as stream, path.open("rb") as written:
        if stream.tell():
            written.seek(-1, os.SEEK_END)
        if written.read(1) not in (b"", b"\n"):
            stream.write(b"\n")
        return stream.tell()
