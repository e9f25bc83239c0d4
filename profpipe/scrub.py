"""Copies of exports without what says who ran them, where, and with what secrets.

Kernels, ranges, calls, and the description of GPU, driver and operating system stay, so that the file is parsed to the
same tables. What each format holds, and what of it goes, is in ``scrubbers``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from profpipe.errors import Refused
from profpipe.scrubbers import chrome_trace, database, nsys, nsys_folder, rocprof


def scrub(path: Path, parser: str) -> dict[str, int]:
    """Puts a scrubbed copy in the place of ``path``, which the parser of that name reads, whole or not at all.

    Returns how much was removed: rows by table, or ``metadata`` and ``events`` of a trace. A trace that is only a
    list of events, of which none has anything to lose, is not touched.
    Raises Refused where the file is of no kind that can be scrubbed, is damaged, or may not be replaced.
    """
    copy = _COPIES.get((parser, path.is_dir()))
    if copy is None:
        what = "It scrubs nsys SQLite and Parquet exports, databases of rocprof, and Chrome traces."
        raise Refused(path, "is no export that profpipe can scrub", what)
    if not path.stat().st_mode & 0o222:
        raise Refused(path, "is read-only", "Scrub a copy of it, or make it writable (chmod u+w).")
    # Through a link to what it points at: the text is there.
    place = path.resolve()
    beside = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        _make(beside, folder=place.is_dir())
        removed = +copy(place, beside)
        if removed or is_scrubbed(beside):
            _put(beside, place)
    except OSError as error:
        raise Refused(path, f"cannot be replaced: {error.strerror or error}", "Scrub a copy elsewhere.") from error
    except (sqlite3.Error, zlib.error, EOFError, ValueError, RecursionError) as error:
        what = f"damaged or cut short, cannot be scrubbed ({error})"
        raise Refused(path, what, "Export it or record it again.") from error
    finally:
        _remove(beside)
    return dict(removed)


def is_scrubbed(path: Path) -> bool:
    """Whether ``scrub`` wrote ``path``: a database, a folder of tables, or a trace."""
    if path.is_dir():
        return nsys_folder.is_marked(path)
    return database.is_marked(path) or chrome_trace.is_marked(path)


def may_be_private(path: Path) -> bool:
    """Whether the file ``path`` is of a kind that ``scrub`` takes, by its name and beginning, and not scrubbed yet."""
    if path.name.endswith((".json", ".json.gz")):
        return not chrome_trace.is_marked(path) and chrome_trace.is_one(path)
    return path.suffix in (".sqlite", ".db") and not database.is_marked(path)


def _make(beside: Path, folder: bool) -> None:
    """Empty, and for nobody else to look into."""
    if folder:
        beside.mkdir(mode=0o700)
    else:
        beside.touch(mode=0o600)


def _put(beside: Path, place: Path) -> None:
    """A folder's files one by one: a kill between two leaves the others as they were, and all of them readable."""
    if place.is_dir():
        for file in sorted(beside.iterdir()):
            file.replace(place / file.name)
    else:
        shutil.copymode(place, beside)
        beside.replace(place)


def _remove(beside: Path) -> None:
    if beside.is_dir():
        shutil.rmtree(beside)
    else:
        with suppress(FileNotFoundError):
            beside.unlink()


def _copy_nsys(path: Path, beside: Path) -> Counter[str]:
    return database.copy(path, beside, nsys)


#: By the name of the parser that reads it, and whether it is a folder.
_COPIES: Final[Mapping[tuple[str, bool], Callable[[Path, Path], Counter[str]]]] = {
    ("nsys_sqlite", False): _copy_nsys,
    ("nsys_sqlite", True): nsys_folder.copy,
    ("rocpd", False): rocprof.copy,
    ("torch_trace", False): chrome_trace.copy,
}

#: The names of the parsers whose files can be scrubbed.
PARSERS: Final = frozenset(parser for parser, _ in _COPIES)
