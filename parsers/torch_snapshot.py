"""Read snapshots of torch's allocator, which ``torch.cuda.memory._dump_snapshot`` or the start-up hook wrote."""

from __future__ import annotations

import json
from pathlib import Path

from profpipe.ingest import json_stream, memory, torch_snapshot
from profpipe.results import schema

FORMATS = ("memory snapshots of torch (pickle)",)


def sniff(path: Path) -> bool:
    """Return True for a pickle that names the parts of a snapshot at its begin."""
    start = json_stream.read_head(path, 1 << 14)
    return start[:1] == b"\x80" and (b"segments" in start or b"device_traces" in start)


def parse(path: Path) -> schema.Tables:
    """Return the table `memory`, with the facts that the start-up hook adds to a snapshot."""
    snapshot = torch_snapshot.read_snapshot(path)
    return memory.make_tables(snapshot, json.loads(snapshot.get("profpipe", "{}")), FORMATS[0])
