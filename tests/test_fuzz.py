"""Mutated exports of every kind are read or refused, and never end in a traceback. `make fuzz` runs an hour of it."""

from __future__ import annotations

import gzip
import os
import random
import time
from pathlib import Path

import pytest
from damage import mutated

from profpipe.errors import UnreadableFile
from profpipe.ingest import registry

DATA = Path(__file__).parent / "data"
SECONDS = float(os.environ.get("PROFPIPE_FUZZ_S", "20"))
#: A larger file takes longer to read than to damage in an interesting way.
LARGEST = 2_000_000
#: Bytes that mean something in JSON, CSV and SQLite.
BYTES = b"\x00\xff\n\r\t \"',;:{}[]()<>\\-0179eE_.\x80"


def samples() -> list[Path]:
    return sorted(path for path in DATA.rglob("*") if path.is_file() and 0 < path.stat().st_size < LARGEST)


@pytest.mark.slow
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    seed = int(os.environ.get("PROFPIPE_FUZZ_SEED", "1"))
    dice, known, files = random.Random(seed), registry.parsers(), samples()
    inputs, longest = 0, 0.0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        original = files[inputs % len(files)]
        data = original.read_bytes()
        is_zip = data.startswith(b"\x1f\x8b")
        changed = mutated(gzip.decompress(data) if is_zip else data, dice, BYTES, ends=0.5)
        path = tmp_path / original.name
        path.write_bytes(gzip.compress(changed, 1) if is_zip else changed)
        begin = time.process_time()
        try:
            registry.parse(registry.choose(path, known), path)
        except UnreadableFile as refused:
            assert "fails on it" not in refused.what, f"{original}, input {inputs} of seed {seed}: {refused}"
        longest = max(longest, time.process_time() - begin)
        inputs += 1
    print(f"{inputs} inputs of {len(files)} files, tracebacks 0, longest {longest:.1f} s")
    assert inputs >= len(files) and longest < 20
