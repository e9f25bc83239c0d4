"""Follows a job's ``events.jsonl`` while the harness appends to it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from profpipe.errors import lacks_room
from profpipe.job import Watch

#: The status here of a case that failed for want of room. It did end; a run that goes on has it once more.
NO_ROOM: Final = "no room"


class Events:
    """Which cases a process began and ended, read from the lines appended since this object was made.

    The harness writes a case's start whenever it turns to the case, and its end once; ``inside`` is the case it turned
    to last, as long as that has not ended. When the process dies, that is the case it died in. Where a part is taken up
    after its process has ended, both are given.
    """

    def __init__(
        self, path: Path, watch: Watch, ended: dict[str, str] | None = None, inside: str | None = None
    ) -> None:
        self.ended, self.inside = ended or {}, inside
        #: Whether a process has said that it is there, with its torch imported.
        self.started = False
        self.inside_since = 0.0
        #: When it last came any further: to a case, or to the end of one (``time.monotonic``).
        self.progressed_at = time.monotonic()
        self._path, self._watch = path, watch
        #: Where in the file its first line will stand, in bytes.
        self.begins_at = self._unread = _close_last_line(path)

    def read(self) -> None:
        """Takes in what was appended, whole lines only; the rest of a line comes with the next call."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._unread)
                lines, newline, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._unread += len(lines) + len(newline)
        for line in lines.splitlines():
            if (event := _event(line)) is None:
                self._watch.message(f"{self._path}: no event, passed over: {line[:80]!r}")
            else:
                self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        case = event.get("case", "")
        if event.get("event") in ("started", "case_started", "case_ended"):
            self.progressed_at = time.monotonic()
        if event.get("event") == "started":
            self.started = True
        elif event.get("event") == "case_started" and case not in self.ended:
            self.inside, self.inside_since = case, time.monotonic()
            self._watch.case_started(case)
        elif event.get("event") == "case_ended":
            self.ended[case] = _status(event)
            self.inside = None if self.inside == case else self.inside
            self._watch.case_ended(case, event["status"], str(event.get("reason") or ""))


def statuses(path: Path, begin: int = 0, end: int | None = None) -> dict[str, str]:
    """What became of each case that has ended, by the processes that wrote these bytes of ``path``."""
    return {event["case"]: _status(event) for event in _written(path, begin, end) if event.get("event") == "case_ended"}


def begun(path: Path) -> frozenset[str]:
    """The cases that any process has turned to."""
    return frozenset(event["case"] for event in _written(path) if event.get("event") == "case_started")


def _written(path: Path, begin: int = 0, end: int | None = None) -> list[dict[str, Any]]:
    lines = path.read_bytes()[begin:end].splitlines() if path.is_file() else []
    return [event for line in lines if (event := _event(line))]


def _status(event: Mapping[str, Any]) -> str:
    return NO_ROOM if lacks_room(str(event.get("reason") or "")) else str(event["status"])


def _event(line: bytes) -> dict[str, Any] | None:
    """A library that prints into our file, or a process killed in the midst of a line, must not end the run."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _close_last_line(path: Path) -> int:
    """Ends a line that a killed process left unfinished, or the next would be lost with it; returns the file's size."""
    if not path.exists():
        return 0
    with path.open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - 1, 0))
        if stream.read(1) not in (b"", b"\n"):
            stream.write(b"\n")
        return stream.tell()
