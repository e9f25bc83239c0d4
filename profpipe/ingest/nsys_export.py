"""Read columns of an nsys export as numpy arrays, from SQLite or from a folder with a Parquet file per table.

A missing table or column reads as NULL: exporters leave out empty tables, and columns changed with the versions. A NULL
number is the least value of its type, 0 for unsigned types.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from profpipe.ingest import bounds
from profpipe.results import budget

Numbers = npt.NDArray[Any]
Dtypes = Mapping[str, type[np.integer[Any]]]

#: What reading a damaged file can raise. UnicodeDecodeError: SQLite's message quotes bytes that are no text.
FAILURES: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError)

#: The sizes of a grid as one number: with the last two below 2**16 no two grids give the same. To hand over three
#: numbers takes SQLite twice the time.
GRID: Final = "grid"
_SIZES: Final = ("gridX", "gridY", "gridZ")
_BATCH_ROWS: Final = 1 << 16
#: Many long texts may be one in the file.
_BATCH_STRINGS: Final = 1 << 5


class Database:
    """A SQLite file, opened so that nothing is written beside it: the folder may be read-only."""

    def __init__(self, path: Path) -> None:
        self._uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
        with self._opened() as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            tables = database.execute(bounds.SELECT_TABLES).fetchall()
            self._columns = {t: [r[1] for r in database.execute(f"PRAGMA table_info({quoted(t)})")] for (t,) in tables}

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._uri, uri=True)) as database, budget.interrupting(database):
            yield database

    def tables(self) -> list[str]:
        return list(self._columns)

    def columns(self, table: str) -> list[str]:
        """Return the names of ``table``'s columns, none where there is no such table."""
        return _add_grid(self._columns.get(table, []))

    def check_rows(self, table: str, rows: int) -> None:
        """Raise ``DatabaseError`` where ``table`` has not so many rows: a damaged file can hide some.

        An exporter numbers the rows from 1 on. To count them takes half as long as to read them.
        """
        with self._opened() as database:
            try:
                last = database.execute(f"SELECT max(_rowid_) FROM {quoted(table)}").fetchone()[0]
            except sqlite3.OperationalError:  # a table WITHOUT ROWID
                last = None
            if rows != last:
                counted = database.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()[0]
                if rows != counted:
                    raise sqlite3.DatabaseError(f"table {table} counts {counted} rows and gives {rows}")

    def batches(self, table: str, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of ``table``. Close the generator: the driver's cursor must not outlive its connection."""
        chosen = ", ".join(map(_expression, columns))
        # Without the driver's cursors: up to 1.12 they print a traceback after a statement that failed.
        with (
            adbc_driver_sqlite.connect(self._uri) as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
            adbc_driver_manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(f"SELECT {chosen} FROM {quoted(table)}")
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                for batch in reader:
                    budget.check()
                    yield batch


class ParquetFolder:
    """A folder with TABLE.parquet for a table."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def columns(self, table: str) -> list[str]:
        from pyarrow import parquet

        file = self._path / f"{table}.parquet"
        return _add_grid(list(parquet.read_schema(file).names)) if file.is_file() else []

    def check_rows(self, table: str, rows: int) -> None:
        """Do nothing: the reader of Parquet counts the rows."""

    def batches(self, table: str, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        from pyarrow import parquet

        names = [part for name in columns for part in (_SIZES if name == GRID else (name,))]
        with parquet.ParquetFile(self._path / f"{table}.parquet") as file:
            rows = _BATCH_STRINGS if table == "StringIds" else _BATCH_ROWS
            for batch in file.iter_batches(batch_size=rows, columns=names):
                budget.check()
                arrays = [_grid(batch) if name == GRID else batch.column(name) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


Source = Database | ParquetFolder


def _add_grid(columns: list[str]) -> list[str]:
    return [*columns, GRID] if set(_SIZES) <= set(columns) else columns


def _grid(batch: pa.RecordBatch) -> pa.Array:
    high, middle, low = (_signed(batch.column(name)).cast(pa.int64()) for name in _SIZES)
    shift, either = pyarrow.compute.shift_left, pyarrow.compute.bit_wise_or
    return either(either(shift(high, pa.scalar(32)), shift(middle, pa.scalar(16))), low)


def _expression(column: str) -> str:
    if column == GRID:
        return '("gridX" << 32) | ("gridY" << 16) | "gridZ"'
    # The driver takes a column's type from the first rows, and fails at a text after rows of NULL.
    return f"ifnull({quoted(column)}, '')" if column == "text" else quoted(column)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def null(dtype: type[np.integer[Any]]) -> int:
    return int(np.iinfo(dtype).min)


def numbers(column: pa.Array, dtype: type[np.integer[Any]]) -> Numbers:
    """Cast ``column`` to ``dtype``; numbers that are too large become NULL. Raises ArrowInvalid for other values.

    An unsigned ``dtype`` keeps the lowest bits: exporters write some ids of 32 bits with a sign.
    """
    kind = pa.from_numpy_dtype(dtype)
    try:
        fitting = column.cast(kind)
    except pa.ArrowInvalid:
        wide = _signed(column).cast(pa.int64())
        fitting = wide.cast(kind, safe=False)
        if not pa.types.is_unsigned_integer(kind):
            is_whole = pyarrow.compute.equal(fitting.cast(pa.int64()), wide)
            fitting = pyarrow.compute.if_else(is_whole, fitting, pa.scalar(None, kind))
    if fitting.null_count:
        fitting = fitting.fill_null(null(dtype))
    return fitting.to_numpy(zero_copy_only=False)


def _signed(column: pa.Array) -> pa.Array:
    """Give ids of 64 bits a sign, as SQLite has them; Parquet may store them without."""
    return column.view(pa.int64()) if pa.types.is_uint64(column.type) else column


def read_numbers(source: Source, table: str, wanted: Dtypes) -> dict[str, Numbers]:
    """Read the ``wanted`` columns of ``table``."""
    columns = set(source.columns(table))
    present = [name for name in wanted if name in columns]
    parts: dict[str, list[Numbers]] = {name: [np.zeros(0, wanted[name])] for name in present}
    rows = 0
    if present:
        with closing(source.batches(table, present)) as batches:
            for batch in batches:
                rows += batch.num_rows
                for name, column in zip(present, batch.columns, strict=True):
                    parts[name].append(numbers(column, wanted[name]))
        source.check_rows(table, rows)
    # Each part is freed once it is joined: with ten million kernels two copies of all columns would not fit.
    return {
        name: np.concatenate(parts.pop(name)) if name in parts else np.full(rows, null(dtype), dtype)
        for name, dtype in wanted.items()
    }


def read_rows(source: Source, table: str, *names: str) -> list[tuple[str, ...]]:
    """Read columns of a small table as text, empty for NULL. No rows where the table lacks one of the columns."""
    rows: list[tuple[str, ...]] = []
    if set(names) <= set(source.columns(table)):
        with closing(source.batches(table, list(names))) as batches:
            for batch in batches:
                rows += zip(*(_texts(column) for column in batch.columns), strict=True)
    return rows


def _texts(column: pa.Array) -> list[str]:
    """Decode ``column``: side tables hold paths and environments in the encoding of their machine."""
    if not pa.types.is_primitive(column.type) and not pa.types.is_null(column.type):
        return [text.decode("utf-8", "replace") for text in column.cast(pa.binary()).fill_null(b"").to_pylist()]
    return ["" if value is None else str(value) for value in _signed(column).to_pylist()]


def read_lookup(source: Source, table: str, key: str, value: str) -> dict[str, str]:
    return {row[0]: row[1] for row in read_rows(source, table, key, value)}


def read_texts(source: Source, table: str, name: str, rows: int) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return (numbers of the rows' texts, the texts). Text 0 is empty and stands for NULL."""
    code_of_text: dict[str, int] = {"": 0}
    if name not in source.columns(table):
        return np.zeros(rows, dtype=np.int64), list(code_of_text)
    codes = [np.zeros(0, dtype=np.int64)]
    with closing(source.batches(table, [name])) as batches:
        for batch in batches:
            encoded = pyarrow.compute.dictionary_encode(batch.column(0).cast(pa.binary()).fill_null(b""))
            texts = [text.decode("utf-8", "replace") for text in encoded.dictionary.to_pylist()]
            number = np.array([code_of_text.setdefault(text, len(code_of_text)) for text in texts], dtype=np.int64)
            codes.append(number[encoded.indices.to_numpy()])
    return np.concatenate(codes), list(code_of_text)


class Strings:
    """The table ``StringIds``, kept as bytes: captures store process environments of any encoding in it."""

    def __init__(self, source: Source) -> None:
        ids, values = [np.zeros(0, dtype=np.int64)], []
        with closing(source.batches("StringIds", ["id", "value"])) as batches:
            for batch in batches:
                ids.append(numbers(batch.column(0), np.int64))
                values.append(batch.column(1).cast(pa.binary()))
        self._ids = np.concatenate(ids)
        self._order = np.argsort(self._ids)
        self._values = pa.chunked_array(values, type=pa.binary())

    def of(self, ids: Numbers) -> list[str | None]:
        """Return the texts of ``ids``, None for an unknown id."""
        if not len(self._ids):
            return [None] * len(ids)
        at = np.searchsorted(self._ids, ids, sorter=self._order).clip(max=len(self._ids) - 1)
        rows = self._order[at]
        texts = self._values.take(pa.array(rows)).to_pylist()
        is_known = (self._ids[rows] == ids).tolist()
        return [(t or b"").decode("utf-8", "replace") if k else None for t, k in zip(texts, is_known, strict=True)]
