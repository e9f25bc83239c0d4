"""Columns of a profiler's database as numbers, whether SQLite stores them or a folder with a Parquet file a table.

A table or column that the file lacks is NULL throughout, for exporters leave out what is empty and columns came and
went with the versions. A NULL number is the least value of its type (0 for unsigned ones).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

Numbers = npt.NDArray[Any]
Dtypes = Mapping[str, type[np.integer[Any]]]

#: What reading a damaged file can raise; the last where SQLite's own message quotes bytes that are no text.
FAILURES: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError)

SQLITE_HEAD: Final = b"SQLite format 3\0"
_BATCH_ROWS: Final = 1 << 16


class Source(Protocol):
    """Tables by name."""

    def columns(self, table: str) -> list[str]:
        """The names of ``table``'s columns; empty where there is no such table."""

    def batches(self, table: str, columns: list[str]) -> Generator[pa.RecordBatch, None, None]:
        """The rows of ``table``; to be closed, for the driver's cursor must not outlive its connection."""


class Database:
    """A SQLite file, opened so that nothing is written beside it: it may be read-only, or another user's."""

    def __init__(self, path: Path) -> None:
        self._uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
        with closing(sqlite3.connect(self._uri, uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            found = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
            self._columns = {t: [r[1] for r in database.execute(f"PRAGMA table_info({_quoted(t)})")] for (t,) in found}

    def tables(self) -> list[str]:
        return list(self._columns)

    def columns(self, table: str) -> list[str]:
        return self._columns.get(table, [])

    def batches(self, table: str, columns: list[str]) -> Generator[pa.RecordBatch, None, None]:
        # The driver takes a column's type from the first rows: a text that is NULL in all of them would fail later.
        chosen = ", ".join(f"ifnull({_quoted(c)}, '')" if c == "text" else _quoted(c) for c in columns)
        # Not through the driver's cursors: up to 1.12 one whose statement failed prints a traceback when collected.
        with (
            adbc_driver_sqlite.connect(self._uri) as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
            adbc_driver_manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(f"SELECT {chosen} FROM {_quoted(table)}")
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from reader


class ParquetFolder:
    """A folder with TABLE.parquet for each table."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def columns(self, table: str) -> list[str]:
        from pyarrow import parquet

        file = self._path / f"{table}.parquet"
        return list(parquet.read_schema(file).names) if file.is_file() else []

    def batches(self, table: str, columns: list[str]) -> Generator[pa.RecordBatch, None, None]:
        from pyarrow import parquet

        with parquet.ParquetFile(self._path / f"{table}.parquet") as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def null(dtype: type[np.integer[Any]]) -> int:
    return int(np.iinfo(dtype).min)


def numbers(column: pa.Array, dtype: type[np.integer[Any]]) -> Numbers:
    """``column`` as numbers of ``dtype``, of which too large ones are NULL; raises ArrowInvalid on what is no number.

    Of a ``dtype`` without sign the lowest bits are kept: exporters write some ids of 32 bits with a sign.
    """
    kind = pa.from_numpy_dtype(dtype)
    try:
        fitting = column.cast(kind)
    except pa.ArrowInvalid:
        fitting = _fitting(column, kind)
    return fitting.fill_null(null(dtype)).to_numpy(zero_copy_only=False)


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    wide = _signed(column).cast(pa.int64())
    cut = wide.cast(kind, safe=False)
    if pa.types.is_unsigned_integer(kind):
        return cut
    is_whole = pyarrow.compute.equal(cut.cast(pa.int64()), wide)
    return pyarrow.compute.if_else(is_whole, cut, pa.scalar(None, kind))


def _signed(column: pa.Array) -> pa.Array:
    """Ids of 64 bits as SQLite has them, which knows no others; Parquet may have them without a sign."""
    return column.view(pa.int64()) if pa.types.is_uint64(column.type) else column


def read_numbers(source: Source, table: str, wanted: Dtypes) -> dict[str, Numbers]:
    """The wanted columns of ``table``, read in batches so that only the narrow numbers are ever held."""
    present = [name for name in wanted if name in source.columns(table)]
    parts: dict[str, list[Numbers]] = {name: [] for name in present}
    rows = 0
    if present:
        with closing(source.batches(table, present)) as batches:
            for batch in batches:
                rows += batch.num_rows
                for name, column in zip(present, batch.columns, strict=True):
                    parts[name].append(numbers(column, wanted[name]))
    return {
        name: np.concatenate(parts.pop(name)) if parts.get(name) else np.full(rows, null(dtype), dtype)
        for name, dtype in wanted.items()
    }


def read_rows(source: Source, table: str, *names: str) -> list[tuple[str, ...]]:
    """Columns of a small table as text, empty for NULL; no rows where the table lacks one of them."""
    rows: list[tuple[str, ...]] = []
    if set(names) <= set(source.columns(table)):
        with closing(source.batches(table, list(names))) as batches:
            for batch in batches:
                rows += zip(*(_texts(column) for column in batch.columns), strict=True)
    return rows


def _texts(column: pa.Array) -> list[str]:
    """``column`` as text of any encoding: side tables hold paths and environments as the machine had them."""
    if not pa.types.is_primitive(column.type) and not pa.types.is_null(column.type):
        return [text.decode("utf-8", "replace") for text in column.cast(pa.binary()).fill_null(b"").to_pylist()]
    return ["" if value is None else str(value) for value in _signed(column).to_pylist()]


def read_lookup(source: Source, table: str, key: str, value: str) -> dict[str, str]:
    return {row[0]: row[1] for row in read_rows(source, table, key, value)}


def read_texts(source: Source, table: str, name: str, rows: int) -> tuple[npt.NDArray[np.int64], list[str]]:
    """(number of each row's text, the texts); text 0 is empty, and what NULL becomes."""
    known: dict[str, int] = {"": 0}
    if name not in source.columns(table):
        return np.zeros(rows, dtype=np.int64), list(known)
    codes = [np.zeros(0, dtype=np.int64)]
    with closing(source.batches(table, [name])) as batches:
        for batch in batches:
            encoded = pyarrow.compute.dictionary_encode(batch.column(0).cast(pa.binary()).fill_null(b""))
            texts = [text.decode("utf-8", "replace") for text in encoded.dictionary.to_pylist()]
            number = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
            codes.append(number[encoded.indices.to_numpy()])
    return np.concatenate(codes), list(known)


class Strings:
    """A table of numbered strings, kept as bytes: captures store process environments of any encoding in it."""

    def __init__(self, source: Source, table: str, number: str, value: str) -> None:
        ids, values = [np.zeros(0, dtype=np.int64)], []
        with closing(source.batches(table, [number, value])) as batches:
            for batch in batches:
                ids.append(numbers(batch.column(0), np.int64))
                values.append(batch.column(1).cast(pa.binary()))
        self._ids = np.concatenate(ids)
        self._order = np.argsort(self._ids)
        self._values = pa.chunked_array(values, type=pa.binary())

    def of(self, ids: Numbers) -> list[str | None]:
        """The text of each of ``ids``; None for an id that the table does not have."""
        if not len(self._ids):
            return [None] * len(ids)
        at = np.searchsorted(self._ids, ids, sorter=self._order).clip(max=len(self._ids) - 1)
        rows = self._order[at]
        found = self._values.take(pa.array(rows)).to_pylist()
        known = (self._ids[rows] == ids).tolist()
        return [(t or b"").decode("utf-8", "replace") if k else None for t, k in zip(found, known, strict=True)]

    def ids_with(self, part: str) -> npt.NDArray[np.int64]:
        """Ids of the strings that contain ``part``."""
        found = pyarrow.compute.match_substring(self._values, part).fill_null(False)
        return self._ids[found.to_numpy().astype(bool)]
