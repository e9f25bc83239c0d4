"""Put the ranges of a ``roctx_trace_X.csv`` of rocprofv2 together from its calls of roctx.

A row is ``ROCTX_DOMAIN,ID,"message",time``; nothing in the message is escaped. A start and its stop have the number of
their range, from 1 on. A push, a pop and a mark have 0. Pops and stops have no message, and messages of one character
are not written. Neither the call nor its thread is written. Sources: ROCm/rocprofiler, plugin/file/file.cpp;
ROCm/roctracer, src/roctx/roctx.cpp.

Starts find their stops by number. Pushes find their pops as in one thread, and only where all of them do: a mark looks
like a push, and a push of one character like a pop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from profpipe.ingest.rocprof import trace
from profpipe.results import schema

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
    """The ranges of one file by how they were opened, and notes about the others."""

    pushed: list[_Range]
    started: list[_Range]
    notes: tuple[str, ...]

    def ranges(self, process: Any, thread: Any) -> pd.DataFrame:
        """Return columns of ``trace.RANGE``; the file has neither ``process`` nor the ``thread`` that pushed."""
        both = [*self.pushed, *self.started]
        names, starts, ends = ([each[at] for each in both] for at in range(3))
        threads = [thread] * len(self.pushed) + [trace.WHOLE_PROCESS] * len(self.started)
        where = {"process": [process] * len(both), "thread": threads}
        return trace.records(trace.RANGE, {"name": names, "start": starts, "end": ends, **where})


def read(path: Path) -> Roctx:
    # The header stands before the first row.
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
            f"{lost} of its messages are left out: they are marks, or ranges that the file does not distinguish from "
            "marks. Use roctxRangeStart, or rocprofv3, which distinguishes all ranges"
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
    """Group the calls by case: cases never nest, so a mark damages the reading of one case only."""
    group: list[_Call] = []
    for call in calls:
        if call.message.startswith(schema.CASE_PREFIX):
            yield group
            group = []
        group.append(call)
    yield group


def _nested(calls: Iterable[_Call]) -> list[_Range]:
    """Return the ranges up to the last point where all are closed, none where a pop has no push."""
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
