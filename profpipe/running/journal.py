"""What a job's processes have come to, on disk before anything else happens, so that no later runner does it again.

``parts.json`` in the job's folder holds one entry a part, in order. It is written whole: before a part's process
starts, and each time that one of the part's processes has ended. So after a kill at any point:

* an entry without ends: the workload's process was running. What its profiler keeps of it is all there is.
* an entry with ends, but fewer than the part has commands: the exports that are missing are to be made.
* an entry with all its ends: nothing is left to do; what became of its cases follows from it and its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from profpipe.job import JOURNAL

NAME = JOURNAL


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended. ``missing`` are names of files in the job's folder, ``log`` is the span of its output."""

    returncode: int | None
    seconds: float
    cause: tuple[str, str] | None
    missing: tuple[str, ...]
    log: tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A part: its cases, and from events.jsonl what they came to and the case that its process was in last.

    ``begins_at``: how long events.jsonl was before it. A process that was interrupted may have gone on for a while and
    written of cases that this part has once more. None in runs of before this was kept.
    """

    part: int
    cases: tuple[str, ...]
    ended: Mapping[str, str]
    inside: str | None
    ends: tuple[ProcessEnd, ...] = ()
    begins_at: int | None = None


def read(folder: Path) -> list[Entry]:
    """The entries of the job in ``folder``; none where no runner has begun it."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [_entry(document) for document in json.loads(text)]


def _entry(document: Mapping[str, object]) -> Entry:
    ends = tuple(_end(**end) for end in document["ends"])  # type: ignore[attr-defined]
    return Entry(**{**document, "cases": tuple(document["cases"]), "ends": ends})  # type: ignore[arg-type]


def _end(cause: Sequence[str] | None, missing: Sequence[str], log: Sequence[int], **rest: float) -> ProcessEnd:
    fate = (cause[0], cause[1]) if cause else None
    return ProcessEnd(cause=fate, missing=tuple(missing), log=(log[0], log[1]), **rest)  # type: ignore[arg-type]


def write(folder: Path, entry: Entry) -> None:
    """Puts ``entry`` behind those of the parts before it, in place of what was there."""
    entries = [known for known in read(folder) if known.part < entry.part]
    write_whole(folder / NAME, json.dumps([asdict(each) for each in [*entries, entry]], indent=1))


def write_whole(path: Path, text: str) -> None:
    """Writes beside ``path`` and renames: whoever reads it sees the old text or the new one."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
