"""Chrome traces: without what stands around the events and is not known to be harmless.

A trace names its host, and carries whatever the job added to its metadata. With Python's stack, its events hold the
paths of the program's files, of which the names are left.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from profpipe.formats import jsonstream
from profpipe.scrubbers.paths import without_folders

_KEYS: Final = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds?|trace_id|traceEvents"
    r"|stackFrames|\w+_version|with_(stack|modules|flops)|record_shapes|profile_memory|(hip|roctracer)_\w+"
    r"|DISABLE_CUPTI_LAZY_REINIT|TEARDOWN_CUPTI"
)


_STACK: Final = "Call stack"
#: The first entry of a scrubbed trace; the number counts the rules.
_MARK_KEY: Final = "profpipe_scrubbed"
_OPENING: Final = f'{{\n"{_MARK_KEY}": 1'
_KEY_OF_A_TRACE: Final = re.compile(rb'"(traceEvents|schemaVersion|deviceProperties)"')


def copy(path: Path, beside: Path) -> Counter[str]:
    """Returns how much ``metadata`` was left out, and how many ``events`` lost the folders of a path.

    A trace that is only a list of events stays one, without a mark.
    """
    with path.open("rb") as stream:
        opener: Any = gzip.open if stream.read(2) == b"\x1f\x8b" else open
    removed: Counter[str] = Counter()
    pieces = _list_text if jsonstream.head(path).startswith(b"[") else _kept_text
    # Read as the parser reads it, so that both see the same names.
    with opener(path, "rt", encoding="utf-8-sig", errors="replace") as source, opener(beside, "wt") as target:
        for text in pieces(source, removed):
            target.write(text)
    return removed


def is_marked(path: Path) -> bool:
    """Whether ``path`` is a trace that ``copy`` wrote; few bytes tell, for a run may have hundreds of traces."""
    return jsonstream.head(path, 1 << 12).startswith(_OPENING.encode())


def is_one(path: Path) -> bool:
    """Whether ``path`` begins as a trace of torch does (and not of rocprof), or is so damaged that nobody can tell."""
    if head := jsonstream.head(path):
        return bool(_KEY_OF_A_TRACE.search(head)) and b'"BeginNs"' not in head
    return path.stat().st_size > 0


def _list_text(source: TextIO, removed: Counter[str]) -> Iterator[str]:
    """The events of a trace that has nothing around them."""
    before = "[\n"
    for _, event in jsonstream.items(source, unroll="traceEvents"):
        yield before + json.dumps(_without_folders(event, removed))
        before = ",\n"
    yield "\n]\n" if before == ",\n" else "[]\n"


def _kept_text(source: TextIO, removed: Counter[str]) -> Iterator[str]:
    """The trace in ASCII, an event a line, without what stands around the events and is not known to be harmless."""
    yield _OPENING
    before, inside = ",\n", False
    for key, value in jsonstream.items(source, unroll="traceEvents"):
        if not _KEYS.fullmatch(key):
            removed["metadata"] += key != _MARK_KEY
            continue
        event = key == "traceEvents"
        if event:
            value = _without_folders(value, removed)
        if event and not inside:
            before += '"traceEvents": [\n'
        elif inside and not event:
            before = "\n" + "]" + before
        yield before + ("" if event else f"{json.dumps(key)}: ") + json.dumps(value)
        before, inside = ",\n", event
    yield ("\n]" if inside else "") + "\n}\n"


def _without_folders(event: Any, removed: Counter[str]) -> Any:
    """``event`` with the names alone of the files that its call, or the calls around it, stand in."""
    if not isinstance(event, dict):
        return event
    changed = dict(event)
    if event.get("cat") == "python_function":
        changed["name"] = without_folders(event.get("name"))
    if isinstance(args := event.get("args"), dict) and _STACK in args:
        changed["args"] = {**args, _STACK: without_folders(args[_STACK])}
    removed["events"] += changed != event
    return changed
