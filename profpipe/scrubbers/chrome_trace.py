"""Chrome traces: without what stands around the events and is not known to be harmless.

A trace names its host, and carries whatever the job added to its metadata.
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

_KEYS: Final = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds?|trace_id|traceEvents"
    r"|stackFrames|\w+_version|with_(stack|modules|flops)|record_shapes|profile_memory|(hip|roctracer)_\w+"
    r"|DISABLE_CUPTI_LAZY_REINIT|TEARDOWN_CUPTI"
)


def copy(path: Path, beside: Path) -> Counter[str]:
    """Returns how much ``metadata`` was left out."""
    with path.open("rb") as stream:
        opener: Any = gzip.open if stream.read(2) == b"\x1f\x8b" else open
    removed: Counter[str] = Counter()
    # Read as the parser reads it, so that both see the same names.
    with opener(path, "rt", encoding="utf-8-sig", errors="replace") as source, opener(beside, "wt") as target:
        for text in _kept_text(source, removed):
            target.write(text)
    return removed


def _kept_text(source: TextIO, removed: Counter[str]) -> Iterator[str]:
    """The trace in ASCII, an event a line, without what stands around the events and is not known to be harmless."""
    before, inside = "{\n", False
    for key, value in jsonstream.items(source, unroll="traceEvents"):
        if not _KEYS.fullmatch(key):
            removed["metadata"] += 1
            continue
        event = key == "traceEvents"
        if event and not inside:
            before += '"traceEvents": [\n'
        elif inside and not event:
            before = "\n" + "]" + before
        yield before + ("" if event else f"{json.dumps(key)}: ") + json.dumps(value)
        before, inside = ",\n", event
    yield ("\n]" if inside else "") + ("\n}\n" if before != "{\n" else "{}\n")
