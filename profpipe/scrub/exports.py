"""Remove private data from the files and tables of a run: exports, files that hold secrets, and texts in tables.

An export is replaced by a copy without environment, command lines, host and user.

Kernels, ranges, calls, and the description of GPU, driver and operating system stay: the parser makes the same tables.
The modules beside this one hold the rules of the formats.
"""

from __future__ import annotations

import functools
import gzip
import mmap
import secrets
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe import masking
from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.results import schema
from profpipe.results.schema import Tables
from profpipe.scrub import chrome_trace, nsys, sqlite

#: To write a compressed copy takes longer than to read.
_BUDGETS: Final = 4


def scrub(path: Path, parser: str) -> dict[str, int]:
    """Replace ``path``, a file of the parser of that name, by a scrubbed copy, whole or not at all.

    Return what was removed: rows by table, or ``metadata`` and ``events`` of a trace. A list of events without private
    data is not touched. Raises UnreadableFile where the format is unknown, or the file damaged or read-only.
    """
    copy = _COPIES.get((parser, path.is_dir()))
    if copy is None:
        what = "It scrubs nsys SQLite and Parquet exports, databases of rocprof, and Chrome traces."
        raise UnreadableFile(path, "is no export that profpipe can scrub", what)
    if not path.stat().st_mode & 0o222:
        raise UnreadableFile(path, "is read-only", "Scrub a copy of it, or make it writable (chmod u+w).")
    place = path.resolve()
    # The name is unpredictable, so another user cannot have put a link there.
    beside = place.with_name(f".{place.name[:40]}.{secrets.token_hex(8)}.partial")
    try:
        # Readable by its owner only.
        beside.mkdir(mode=0o700) if place.is_dir() else beside.touch(mode=0o600, exist_ok=False)
        with reader.within_budget(path, _BUDGETS):
            removed = +copy(place, beside)
        if removed or is_scrubbed(beside):
            if place.is_dir():
                # One by one, so that a kill leaves them whole.
                for file in sorted(beside.iterdir()):
                    file.replace(place / file.name)
            else:
                shutil.copymode(place, beside)
                beside.replace(place)
    except OSError as error:
        raise UnreadableFile(
            path, f"cannot be replaced: {error.strerror or error}", "Scrub a copy elsewhere."
        ) from error
    except (sqlite3.Error, zlib.error, EOFError, ValueError, RecursionError) as error:
        what = f"damaged or cut short, cannot be scrubbed ({error})"
        raise UnreadableFile(path, what, "Export it or record it again.") from error
    finally:
        shutil.rmtree(beside) if beside.is_dir() else beside.unlink(missing_ok=True)
    return dict(removed)


def is_scrubbed(path: Path) -> bool:
    """Return True where ``scrub`` wrote ``path``."""
    if path.is_dir():
        return nsys.is_marked_parquet(path)
    return sqlite.is_marked(path) or chrome_trace.is_marked(path)


def may_be_private(path: Path) -> bool:
    """Return True where ``scrub`` takes the file ``path``, by its name and beginning, and it is not scrubbed yet."""
    if path.name.endswith((".json", ".json.gz")):
        return not chrome_trace.is_marked(path) and chrome_trace.is_torch_trace(path)
    return path.suffix in (".sqlite", ".db") and not sqlite.is_marked(path)


#: (name of the parser, whether the export is a folder) -> function.
_COPIES: Final[Mapping[tuple[str, bool], Callable[[Path, Path], Counter[str]]]] = {
    ("nsys_sqlite", False): functools.partial(sqlite.copy, rules=nsys),
    ("nsys_sqlite", True): nsys.copy_parquet,
    ("rocpd", False): sqlite.copy_rocprof,
    ("torch_trace", False): chrome_trace.copy,
}

#: The names of the parsers whose files can be scrubbed.
PARSERS: Final = frozenset(parser for parser, _ in _COPIES)


# --- the files of a job, and of a run ---------------------------------------------------------------------------------

#: The output of the processes of a job: it may hold whatever a program prints.
LOG = "log.txt"

#: Reports of nsys, the recordings behind them, reports of ncu, and snapshots of memory: nothing can be removed from
#: these.
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep", ".memory.pickle")


def scrub_exports(files: Iterable[Path], pipeline_dir: Path | None) -> dict[Path, bool]:
    """Scrub the exports among ``files`` and return by file whether it is scrubbed. A damaged one stays as it was."""
    parsers = reader.parsers(pipeline_dir)
    scrubbed = {}
    for path in files:
        try:
            parser = reader.name_of(reader.choose(path, parsers))
        except UnreadableFile:
            continue  # the reader reports a file that cannot be read
        if parser in PARSERS:
            with suppress(UnreadableFile):
                scrubbed[path] = False
                if not is_scrubbed(path):
                    scrub(path, parser)
                scrubbed[path] = True
    return scrubbed


def find_private_files(run_folder: Path, below: Path, secrets: Iterable[str] = ()) -> list[str]:
    """Return the files in the folder ``below`` of a run that may hold private data, and let only their owner read them.

    These are logs, reports, exports and traces that are not scrubbed, and files that hold one of ``secrets``.
    """
    texts = list(secrets)
    files = (path for path in below.rglob("*") if path.is_file() and not path.is_symlink())
    private = [path for path in files if _is_private(path) or holds_any(path, texts)]
    for path in private:
        path.chmod(0o600)
    return sorted(str(path.relative_to(run_folder)) for path in private)


def _is_private(path: Path) -> bool:
    return path.name == LOG or path.name.endswith(_REPORT_SUFFIXES) or may_be_private(path)


# --- files that hold a secret: recordings hold what a program printed or named ----------------------------------------

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


# --- tables: a program may print secrets, or name its ranges after them -----------------------------------------------


def mask_tables(tables: Tables, secrets: Mapping[str, str]) -> Tables:
    """Return ``tables`` without the ``secrets``, and cases without what looks like a secret by its form.

    Kernel names are not searched for forms: a template argument may look like one. A table without a secret stays the
    same object.
    """
    masker = masking.masker(secrets)
    frames: dict[str, Any] = {
        table.name: _masked(getattr(tables, table.name), table, masker, with_forms=table is schema.CASES)
        for table in schema.PARSED
    }
    origin = tables.origin
    notes, details = (tuple(map(masker.mask, texts)) for texts in (origin.notes, origin.details))
    return replace(tables, **frames, origin=replace(origin, notes=notes, details=details))


def _masked(frame: pd.DataFrame, table: schema.Table, masker: masking.Masker, with_forms: bool) -> pd.DataFrame:
    changed = {}
    for column in table.columns:
        if column.dtype == "str" and len(frame):
            codes, distinct = pd.factorize(frame[column.name])
            texts = [masker.mask(text) if with_forms else masker.mask_known(text) for text in map(str, distinct)]
            if any(a != b for a, b in zip(texts, distinct, strict=True)):
                changed[column.name] = pd.Series(texts, dtype=object).reindex(codes).set_axis(frame.index)
    return frame.assign(**changed) if changed else frame
