"""Scrub Chrome traces: keep the events, and only harmless metadata.

A trace names its host, and has all metadata that the job added. With Python's stack its events hold the paths of the
program's files, of which the names stay. Other programs add arguments of any name, such as ``host`` and ``environ``.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from profpipe.ingest import json_stream
from profpipe.scrub.sqlite import strip_folders

_KEYS: Final = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds?|trace_id|traceEvents"
    r"|stackFrames|\w+_version|with_(stack|modules|flops)|record_shapes|profile_memory|(hip|roctracer)_\w+"
    r"|DISABLE_CUPTI_LAZY_REINIT|TEARDOWN_CUPTI"
)
#: Keys that other programs add to the arguments of events and to the description of the job.
_PRIVATE_KEY: Final = re.compile(
    r"(?i:(host|user|node|domain)[-_ ]?name|host|user|env(iron(ment)?)?|argv|(cmd|command)([-_ ]?line)?|cwd)"
)
_STACK: Final = "Call stack"
#: The first entry of a scrubbed trace; its value is the version of the rules.
_MARK_KEY: Final = "profpipe_scrubbed"
_OPENING: Final = f'{{\n"{_MARK_KEY}": 1'
_KEY_OF_A_TRACE: Final = re.compile(rb'"(traceEvents|schemaVersion|deviceProperties)"')


def copy(path: Path, beside: Path) -> Counter[str]:
    """Copy the trace; return how many entries of ``metadata`` were dropped, and how many ``events`` lost folders.

    A trace that is only a list of events stays one, without a mark.
    """
    opener: Any = gzip.open if json_stream.is_zipped(path) else open
    removed: Counter[str] = Counter()
    pieces = _list_text if json_stream.read_head(path).startswith(b"[") else _kept_text
    with json_stream.open_text(path) as source, opener(beside, "wt") as target:
        target.writelines(pieces(source, removed))
    return removed


def is_marked(path: Path) -> bool:
    """Return True for a trace that ``copy`` wrote. Reads only its beginning: a run may have hundreds of traces."""
    return json_stream.read_head(path, 1 << 12).startswith(_OPENING.encode())


def is_torch_trace(path: Path) -> bool:
    """Return True where ``path`` begins as a trace of torch, not of rocprof, or is too damaged to see which."""
    if head := json_stream.read_head(path):
        return bool(_KEY_OF_A_TRACE.search(head)) and b'"BeginNs"' not in head
    return path.stat().st_size > 0


def _list_text(source: TextIO, removed: Counter[str]) -> Iterator[str]:
    """Yield the text of a trace that is only a list of events."""
    before = "[\n"
    for _, event in json_stream.items(source, unroll="traceEvents"):
        yield before + json.dumps(_scrub_event(event, removed))
        before = ",\n"
    yield "\n]\n" if before == ",\n" else "[]\n"


def _kept_text(source: TextIO, removed: Counter[str]) -> Iterator[str]:
    """Yield the text of the trace in ASCII, an event a line, with harmless metadata only."""
    yield _OPENING
    before, inside = ",\n", False
    for key, value in json_stream.items(source, unroll="traceEvents"):
        if not _KEYS.fullmatch(key):
            removed["metadata"] += key != _MARK_KEY
            continue
        event = key == "traceEvents"
        value = _scrub_event(value, removed) if event else _drop_private(value)
        if event and not inside:
            before += '"traceEvents": [\n'
        elif inside and not event:
            before = "\n" + "]" + before
        yield before + ("" if event else f"{json.dumps(key)}: ") + json.dumps(value)
        before, inside = ",\n", event
    yield ("\n]" if inside else "") + "\n}\n"


def _drop_private(value: Any) -> Any:
    """Return ``value`` without what stands behind a private key at any depth."""
    if isinstance(value, dict):
        return {key: _drop_private(part) for key, part in value.items() if not _PRIVATE_KEY.fullmatch(key)}
    return list(map(_drop_private, value)) if isinstance(value, list) else value


def _scrub_event(event: Any, removed: Counter[str]) -> Any:
    """Return ``event`` without private arguments, and with file names in place of the paths of its calls."""
    if not isinstance(event, dict):
        return event
    changed = dict(event)
    if event.get("cat") == "python_function":
        changed["name"] = strip_folders(event.get("name"))
    if isinstance(args := _drop_private(event.get("args")), dict):
        changed["args"] = args | {_STACK: strip_folders(args[_STACK])} if _STACK in args else args
    removed["events"] += changed != event
    return changed
