"""Read snapshots of torch's allocator: pickles of ``torch.cuda.memory._dump_snapshot``, and those of the start-up hook."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

from profpipe.ingest import memory
from profpipe.results import schema

FORMATS = ("memory snapshots of torch (pickle)",)


def sniff(path: Path) -> bool:
    """Return True for a pickle that names the parts of a snapshot at its begin."""
    with path.open("rb") as file:
        head = file.read(2)
    with gzip.open(path) if head == b"\x1f\x8b" else path.open("rb") as file:
        start = file.read(4096)
    return start[:1] == b"\x80" and (b"segments" in start or b"device_traces" in start)


def parse(path: Path) -> schema.Tables:
    """Return the table `memory`."""
    return memory.make_tables(read_snapshot(path), memory.read_facts(path), FORMATS[0])


def read_snapshot(path: Path) -> dict[str, Any]:
    with gzip.open(path) if path.open("rb").read(2) == b"\x1f\x8b" else path.open("rb") as file:
        return pickle.load(file)
