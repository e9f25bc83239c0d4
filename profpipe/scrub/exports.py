"""Replace exports by copies without environment, command lines, host and user.

Kernels, ranges, calls, and the description of GPU, driver and operating system stay: the parser makes the same tables.
The modules beside this one hold the rules of each format.
"""

from __future__ import annotations

import functools
import secrets
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.scrub import chrome_trace, nsys, nsys_parquet, rocprof, sqlite

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
                # One by one, so that a kill leaves each of them whole.
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
        return nsys_parquet.is_marked(path)
    return sqlite.is_marked(path) or chrome_trace.is_marked(path)


def may_be_private(path: Path) -> bool:
    """Return True where ``scrub`` takes the file ``path``, by its name and beginning, and it is not scrubbed yet."""
    if path.name.endswith((".json", ".json.gz")):
        return not chrome_trace.is_marked(path) and chrome_trace.is_torch_trace(path)
    return path.suffix in (".sqlite", ".db") and not sqlite.is_marked(path)


#: (name of the parser, whether the export is a folder) -> function.
_COPIES: Final[Mapping[tuple[str, bool], Callable[[Path, Path], Counter[str]]]] = {
    ("nsys_sqlite", False): functools.partial(sqlite.copy, rules=nsys),
    ("nsys_sqlite", True): nsys_parquet.copy,
    ("rocpd", False): rocprof.copy,
    ("torch_trace", False): chrome_trace.copy,
}

#: The names of the parsers whose files can be scrubbed.
PARSERS: Final = frozenset(parser for parser, _ in _COPIES)
