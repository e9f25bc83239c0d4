"""Read the largest table of an export while the modules that arrange it are loaded, which takes as long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from profpipe.ingest.nsys import columns, tables
from profpipe.results import budget

#: A smaller file is read in the time that a thread takes to start.
_LARGE: Final = 4 << 20
#: The part of the file's budget that opening it may take. The parser has a whole one afterwards.
_OF_BUDGET: Final = 0.1


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """While entered, ``columns.read_numbers`` takes the kernels of a large SQLite export from another thread.

    It raises what that thread raises. Does nothing for any other file.
    """
    if not _is_large_database(path):
        yield
        return
    is_left = threading.Event()

    def check(needed: float = 0) -> None:
        # The budget of the file begins later than the thread.
        budget.check_bytes(path, needed)
        if is_left.is_set():
            raise budget.TooLarge("it is not read to the end")

    with ThreadPoolExecutor(1) as executor:
        if export := _opened(path):
            wanted = tables.wanted(export, tables.KERNELS)
            read = executor.submit(columns.read_batches, export, tables.KERNELS, wanted, check)
            columns.promised[columns.key(export, tables.KERNELS, wanted)] = read
        try:
            yield
        finally:
            is_left.set()
            columns.promised.clear()


def _is_large_database(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size < _LARGE:
            return False
        with path.open("rb") as stream:
            return stream.read(len(columns.SQLITE_HEAD)) == columns.SQLITE_HEAD
    except OSError:
        return False


def _opened(path: Path) -> columns.Database | None:
    """Return the export if its kernels can be read without counting them; nothing interrupts the thread then."""
    # The parser refuses a damaged or hostile file, and says why.
    with suppress(*columns.FAILURES, budget.TooLarge), budget.limit(path, _OF_BUDGET):
        export = columns.Database(path)
        if tables.KERNELS in export.tables() and export.id_span(tables.KERNELS) is not None:
            return export
    return None
