"""Record how far a job is, so that a later runner repeats nothing.

``parts.json`` in the job's folder holds one entry for each attempt, in order. It is replaced as a whole before the
process of an attempt starts, and each time that one of its commands has ended. So after a kill at any point:

* An entry without ends: the workload's process was running.
* An entry with fewer ends than the attempt has commands: the missing exports are still to be made.
* An entry with all ends: nothing is left to do. The outcomes follow from the entry and its files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from profpipe.job import JOURNAL, CaseOutcome
from profpipe.results import atomic, manifest


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended. ``missing`` are file names in the job's folder; ``log`` is the span of its output in bytes.

    ``stopped`` is set where the runner ended the process, or could not start it.
    """

    returncode: int | None
    seconds: float
    stopped: CaseOutcome | None
    missing: tuple[str, ...]
    log: tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """An attempt: its cases, the outcomes in events.jsonl, and the case that its process was in last.

    ``begins_at`` is the size of events.jsonl before the attempt. A process that was interrupted may have written later
    about cases that this attempt has again.
    """

    part: int
    cases: tuple[str, ...]
    ended: Mapping[str, CaseOutcome]
    inside: str | None
    ends: tuple[ProcessEnd, ...] = ()
    begins_at: int = 0


def read(folder: Path) -> list[Entry]:
    """Return the entries of the job in ``folder``; none if no runner has started it.

    Of a damaged journal, the entries before the damage are returned.
    """
    return load(folder)[0]


def load(folder: Path) -> tuple[list[Entry], bool]:
    """Return the entries of the job in ``folder``, and whether something else stands in the journal."""
    entries: list[Entry] = []
    try:
        for document in json.loads(atomic.read_regular(folder / JOURNAL).decode()):
            entries.append(manifest.parse(Entry, document))
    except FileNotFoundError:
        return [], False
    except (ValueError, TypeError, RecursionError):
        return entries, True
    return entries, False


def last_part(folder: Path) -> int:
    """Return the number of the last attempt that left a file in ``folder``: files carry it from the second one on."""
    found = (re.search(r"-(\d{1,6})\.", path.name) for path in folder.iterdir())
    return max((int(number[1]) for number in found if number), default=1)


def write(folder: Path, entry: Entry) -> None:
    """Put ``entry`` after the entries of earlier attempts, in place of later ones."""
    entries = [known for known in read(folder) if known.part < entry.part]
    atomic.write_text(folder / JOURNAL, json.dumps([asdict(each) for each in [*entries, entry]], indent=1))
