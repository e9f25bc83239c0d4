"""Find the files that hold a secret: recordings of profilers hold what a program printed or named."""

from __future__ import annotations

import gzip
import mmap
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 20


def holds_any(path: Path, texts: Iterable[str]) -> bool:
    """Return True if the file ``path`` holds one of ``texts``, also where it is compressed. A damaged file may."""
    wanted = [text.encode("utf-8", "surrogatepass") for text in texts]
    if not wanted or not path.stat().st_size:
        return False
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if any(content.find(text) >= 0 for text in wanted):
            return True
        head = content[:4]
    if head[:2] == b"\x1f\x8b":
        return _any_in(_unzipped(path), wanted)
    return head == b"PAR1" and _any_in(_texts_of_parquet(path), wanted)


def _any_in(pieces: Iterable[bytes], wanted: list[bytes]) -> bool:
    kept, longest = b"", max(map(len, wanted))
    for piece in pieces:
        window = kept + piece
        if any(text in window for text in wanted):
            return True
        kept = window[-longest:]
    return False


def _unzipped(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except (OSError, EOFError, zlib.error):
        return  # what is behind the damage cannot be read by anybody else either


def _texts_of_parquet(path: Path) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for column in batch.columns:
                    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                        yield "\n".join(filter(None, column.unique().to_pylist())).encode()
    except (OSError, pa.ArrowException):
        return
