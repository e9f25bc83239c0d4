"""The log of a job, ``job.jsonl``. The runner and the workload's process append to it, and the state is its replay.

The harness writes the events of ``measure/event_lines.py``. The runner writes three more:

* ``attempt``: a process is about to run some cases. An attempt without an end was running when its runner was killed.
* ``stopping``: the runner is about to end the process. What the workload writes after this is no result.
* ``ended``: a command of the attempt has ended. The first command is the workload's, the others are exports.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profpipe.errors import is_disk_full
from profpipe.job import LOG, Cause, Outcome, ProgressListener, Status
from profpipe.masking import mask_printed
from profpipe.measure import event_lines
from profpipe.measure.event_lines import Damage
from profpipe.results import atomic, manifest

#: More visits than any case has rounds.
_ALL = sys.maxsize
#: From the second attempt on, files carry its number.
_NUMBERED = re.compile(r"-(\d{1,6})\.")


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended. ``missing`` are file names in the job's folder; ``log`` is the span of its output in bytes.

    ``stopped`` is set where the runner ended the process, or could not start it. ``is_usable``: the next command has
    something to work on. ``has_failed``: the exit code says that the workload did not end well. ``used`` is that of
    ``process.Child``.
    """

    returncode: int | None
    seconds: float
    stopped: Outcome | None
    missing: tuple[str, ...]
    log: tuple[int, int]
    is_usable: bool
    has_failed: bool
    used: tuple[float, ...] = ()


@dataclass
class Attempt:
    """A process of the job and its exports, as the log tells.

    ``cases`` is None where the log lost the line with them. ``ended`` has the cases that ended, ``inside`` is the last
    case that the process turned to and that has not ended: the case in which the process died.
    """

    part: int
    cases: Collection[str] | None
    ended: dict[str, Outcome] = field(default_factory=dict)
    inside: str | None = None
    ends: list[ProcessEnd] = field(default_factory=list)
    is_stopping: bool = False


class JobLog:
    """The log in the folder of a job. The listener hears of the events that are appended from now on."""

    def __init__(self, folder: Path, listener: ProgressListener) -> None:
        self.path = folder / LOG
        self.attempts: list[Attempt] = []
        #: The cases that any process turned to.
        self.started: set[str] = set()
        #: Whether a line is no event, other than the last one of a process that was killed.
        self.is_damaged = False
        self.inside_since = 0.0
        self._rounds = 1
        #: By case: how often the processes of this job turned to it, and _ALL for a case that has ended.
        self._visits: dict[str, int] = {}
        self._unread = 0
        self._listener: ProgressListener | None = None
        events, bad = event_lines.read(self.path)
        self.is_damaged = any(line.damage is not Damage.CUT for line in bad)
        for event in events:
            self._take(event)
        if self.path.exists():
            self._unread = self.path.stat().st_size
        self._listener = listener
        #: Time of the last progress: the start or the end of a case (``time.monotonic``).
        self.progressed_at = time.monotonic()

    def begin(self, part: int, cases: Collection[str]) -> Attempt:
        """Note that the process of an attempt is about to start, and return the attempt."""
        self._append("attempt", part=part, cases=list(cases))
        return self.attempts[-1]

    def stop(self) -> None:
        """Note that the runner is about to end the process of the last attempt."""
        self._append("stopping")

    def end(self, attempt: Attempt, number: int, end: ProcessEnd) -> None:
        """Note how a command of an attempt ended. ``number`` counts its commands from 0."""
        self._append("ended", part=attempt.part, command=number, **dataclasses.asdict(end))

    def last_part(self) -> int:
        """Return the number of the last attempt. A damaged log may lack an attempt that has left files."""
        matches = (_NUMBERED.search(path.name) for path in self.path.parent.iterdir()) if self.is_damaged else ()
        numbers = [int(number[1]) for number in matches if number]
        return max([*numbers, *(attempt.part for attempt in self.attempts)], default=0)

    def read(self) -> None:
        """Read the whole lines that were appended. A partial line is read by a later call."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._unread)
                lines, newline, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._unread += len(lines) + len(newline)
        for line in lines.splitlines():
            event = event_lines.parse(line)
            if not isinstance(event, Damage):
                self._take(event)
            elif line.strip() and self._listener:
                shown = mask_printed(line.decode(errors="backslashreplace"))[:80]
                self._listener.message(f"{self.path}: ignored a line that is no event: {shown!r}")

    def _append(self, kind: str, **fields: Any) -> None:
        """Append an event of the runner. Raises ConfigError where the log is a link or no regular file."""
        line = json.dumps({"event": kind, **fields}).encode() + b"\n"
        with atomic.open_to_append(self.path) as stream, self.path.open("rb") as written:
            if stream.tell():
                written.seek(-1, os.SEEK_END)
            # A process that was killed may have left its last line without an end.
            is_cut = written.read(1) not in (b"", b"\n")
            stream.write(b"\n" + line if is_cut else line)
        self.read()

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "attempt":
            self.attempts.append(Attempt(event["part"], frozenset(event["cases"])))
        elif kind == "ended":
            self._take_end(event)
        elif kind == "stopping" and self.attempts:
            self.attempts[-1].is_stopping = True
        else:
            if not self.attempts or (kind == "started" and self.attempts[-1].ends):
                self.is_damaged = True
                self.attempts.append(Attempt(self.last_part() + 1, None))
            if not self.attempts[-1].is_stopping:
                self._take_progress(event, self.attempts[-1])

    def _take_end(self, event: dict[str, Any]) -> None:
        """Take the end of a command in place of the ends that an earlier runner noted of it and of later ones."""
        try:
            (attempt,) = (attempt for attempt in self.attempts if attempt.part == event["part"])
            if event["command"] > len(attempt.ends):
                raise ValueError("the end of an earlier command is missing")
            attempt.ends[event["command"] :] = [manifest.parse(ProcessEnd, event)]
        except ValueError:
            self.is_damaged = True

    def _take_progress(self, event: dict[str, Any], attempt: Attempt) -> None:
        kind, case = event["event"], event.get("case", "")
        self._count_visit(kind, case, event)
        if kind in ("started", "case_started", "case_ended"):
            self.progressed_at = time.monotonic()
        if kind == "order":
            self._rounds = int(event.get("rounds") or 1)
        elif kind == "case_started":
            self.started.add(case)
            if case not in attempt.ended:
                attempt.inside, self.inside_since = case, time.monotonic()
                turn = min(self._visits[case], self._rounds)
                # A case is in the table from its first visit on.
                number = len(self._visits) if turn == 1 else sum(visits >= turn for visits in self._visits.values())
                if self._listener:
                    self._listener.case_started(case, number, turn, self._rounds)
        elif kind == "case_ended":
            attempt.ended[case] = outcome = _outcome(event)
            attempt.inside = None if attempt.inside == case else attempt.inside
            if self._listener:
                self._listener.case_ended(case, outcome.status, outcome.details)

    def _count_visit(self, kind: str, case: str, event: dict[str, Any]) -> None:
        """Follow the rounds of each case. A new process writes the samples of the rounds that it takes over."""
        if kind == "started":
            self._visits = {case: visits for case, visits in self._visits.items() if visits == _ALL}
        elif kind == "samples":
            self._visits[case] = max(self._visits.get(case, 0), event.get("round") or 1)
        elif kind == "case_started" and self._visits.get(case) != _ALL:
            self._visits[case] = self._visits.get(case, 0) + 1
        elif kind == "case_ended":
            self._visits[case] = _ALL


def _outcome(event: dict[str, Any]) -> Outcome:
    details, status = event.get("reason") or "", Status(event["status"])
    if status is Status.OK:
        return Outcome(status)
    return Outcome(status, Cause.DISK_FULL if is_disk_full(details) else Cause.WORKLOAD, details)
