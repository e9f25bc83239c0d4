"""``roctx_trace_X.csv`` of rocprofv2: a row for each call of roctx, out of which the ranges are put together.

A row is ``ROCTX_DOMAIN,ID,"message",time`` (ROCm/rocprofiler, plugin/file/file.cpp, where nothing in the message is
escaped; ROCm/roctracer, src/roctx/roctx.cpp). A start and its stop have the number of their range, counted from 1; a
push, a pop and a mark have 0. Pops and stops have no message. Which call it was, and in which thread, is not written,
and messages of one character are left out.

So starts find their stops by number. Pushes find their pops as in one thread, and only where all of them do: a mark
looks like a push, and a push of one character like a pop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from profpipe import tables
from profpipe.formats import recording

_BEGIN = re.compile(r"^(?=(?:\d+,)?ROCTX_DOMAIN,)", re.MULTILINE)
#: In 2023 the number of the record stood before it.
_ROW = re.compile(r'(?:\d+,)?ROCTX_DOMAIN,(\d+),(?:"(.*)")?,(\d{1,19})\s*', re.DOTALL | re.ASCII)


class _Call(NamedTuple):
    number: int
    message: str
    ns: int


class _Range(NamedTuple):
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Roctx:
    """The ranges of one file by how they were opened, and what a reader must know of the others."""

    pushed: list[_Range]
    started: list[_Range]
    notes: tuple[str, ...]

    def ranges(self, process: Any, thread: Any) -> pd.DataFrame:
        """Columns of ``recording.RANGE``; the file says neither ``process`` nor the ``thread`` that pushed."""
        both = [*self.pushed, *self.started]
        names, starts, ends = ([each[at] for each in both] for at in range(3))
        threads = [thread] * len(self.pushed) + [recording.WHOLE_PROCESS] * len(self.started)
        where = {"process": [process] * len(both), "thread": threads}
        return recording.records(recording.RANGE, {"name": names, "start": starts, "end": ends, **where})


def read(path: Path) -> Roctx:
    # What stands before the first row is the header.
    _, *rows = _BEGIN.split(path.read_text(encoding="utf-8-sig", errors="replace"))
    whole = [row for row in map(_ROW.fullmatch, rows) if row and int(row[3]) < 2**63]
    calls = sorted((_Call(int(row[1]), row[2] or "", int(row[3])) for row in whole), key=lambda call: call.ns)
    pushed = [each for group in _by_case(c for c in calls if not c.number) for each in _nested(group)]
    started = list(_numbered(c for c in calls if c.number))
    notes = []
    if torn := len(rows) - len(whole):
        notes.append(f"{torn} row{'s' * (torn > 1)} cut or torn, left out")
    if pushed:
        notes.append("it does not say in which thread a range was pushed: they are read as those of one thread")
    if lost := sum(bool(call.message) for call in calls) - len(pushed) - len(started):
        notes.append(
            f"{lost} of its messages are left out, for they are marks, or ranges that cannot be told from marks in it: "
            "those by roctxRangeStart can, and rocprofv3 tells them all"
        )
    return Roctx(pushed, started, tuple(notes))


def _numbered(calls: Iterable[_Call]) -> Iterator[_Range]:
    opened: dict[int, _Call] = {}
    for call in calls:
        if call.message:
            opened[call.number] = call
        elif start := opened.pop(call.number, None):
            yield _Range(start.message, start.ns, call.ns)


def _by_case(calls: Iterable[_Call]) -> Iterator[list[_Call]]:
    """The calls from one case's range to the next: these never nest, so a mark spoils the reading of one only."""
    group: list[_Call] = []
    for call in calls:
        if call.message.startswith(tables.CASE_PREFIX):
            yield group
            group = []
        group.append(call)
    yield group


def _nested(calls: Iterable[_Call]) -> list[_Range]:
    """The ranges up to where the last of them all are closed; none where a pop has no push."""
    closed: list[_Range] = []
    waiting: list[_Range] = []
    opened: list[_Call] = []
    for call in calls:
        if call.message:
            opened.append(call)
        elif not opened:
            return []
        else:
            push = opened.pop()
            waiting.append(_Range(push.message, push.ns, call.ns))
            if not opened:
                closed += waiting
                waiting = []
    return closed
