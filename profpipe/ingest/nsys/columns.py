"""Read columns of a profiler's tables as numpy arrays, from SQLite or from a folder with a Parquet file per table.

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
#: A column, or three ones that are read as one number: with the last two below 2**16, as the sizes of a grid are, no
#: two combinations give the same. To hand over three numbers takes SQLite twice the time.
Column = str | tuple[str, str, str]
Dtypes = Mapping[Any, type[np.integer[Any]]]

#: What reading a damaged file can raise. UnicodeDecodeError: SQLite's message quotes bytes that are no text.
FAILURES: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError)

_BATCH_ROWS: Final = 1 << 16
#: Many long texts may be one in the file.
_BATCH_STRINGS: Final = 1 << 5


class Database:
    """A SQLite file, opened so that nothing is written beside it: the folder may be read-only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
        with self._opened() as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            found = database.execute(bounds.SELECT_TABLES).fetchall()
            self._columns = {t: [r[1] for r in database.execute(f"PRAGMA table_info({_quoted(t)})")] for (t,) in found}

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._uri, uri=True)) as database, budget.interrupting(database):
            yield database

    def tables(self) -> list[str]:
        return list(self._columns)

    def columns(self, table: str) -> list[str]:
        """Return the names of ``table``'s columns, none where there is no such table."""
        return self._columns.get(table, [])

    def count_rows(self, table: str) -> int:
        with self._opened() as database:
            return int(database.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])

    def most_rows(self, table: str) -> int:
        """Return how many rows ``table`` has at most: counting takes SQLite half as long as reading them.

        An exporter numbers the rows from 1 on. The last number is the count where a file can hold so many rows.
        """
        with self._opened() as database:
            try:
                last = database.execute(f"SELECT max(_rowid_) FROM {_quoted(table)}").fetchone()[0]
            except sqlite3.OperationalError:  # a table WITHOUT ROWID
                last = None
        # A row has a pointer, its length, its number and a type for each column (sqlite.org/fileformat.html).
        least_bytes = 5 + len(self.columns(table))
        is_possible = isinstance(last, int) and 0 < last <= self._path.stat().st_size // least_bytes
        return last if is_possible else self.count_rows(table)

    def batches(self, table: str, columns: Sequence[Column]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of ``table``. Close the generator: the driver's cursor must not outlive its connection."""
        chosen = ", ".join(map(_expression, columns))
        # Without the driver's cursors: up to 1.12 they print a traceback after a statement that failed.
        with (
            adbc_driver_sqlite.connect(self._uri) as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
            adbc_driver_manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(f"SELECT {chosen} FROM {_quoted(table)}")
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                for batch in reader:
                    budget.check()
                    yield batch


class ParquetFolder:
    """A folder with TABLE.parquet for each table."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def columns(self, table: str) -> list[str]:
        from pyarrow import parquet

        file = self._path / f"{table}.parquet"
        return list(parquet.read_schema(file).names) if file.is_file() else []

    def count_rows(self, table: str) -> int:
        from pyarrow import parquet

        return int(parquet.read_metadata(self._path / f"{table}.parquet").num_rows)

    most_rows = count_rows

    def batches(self, table: str, columns: Sequence[Column]) -> Generator[pa.RecordBatch, None, None]:
        from pyarrow import parquet

        names = [name for column in columns for name in names_of(column)]
        with parquet.ParquetFile(self._path / f"{table}.parquet") as file:
            rows = _BATCH_STRINGS if table == "StringIds" else _BATCH_ROWS
            for batch in file.iter_batches(batch_size=rows, columns=names):
                budget.check()
                found = [_read_from(batch, column) for column in columns]
                yield pa.RecordBatch.from_arrays(found, names=[" ".join(names_of(column)) for column in columns])


Source = Database | ParquetFolder


def names_of(column: Column) -> tuple[str, ...]:
    """Return the names of the columns that are read as ``column``."""
    return (column,) if isinstance(column, str) else column


def _read_from(batch: pa.RecordBatch, column: Column) -> pa.Array:
    if isinstance(column, str):
        return batch.column(column)
    high, middle, low = (_signed(batch.column(name)).cast(pa.int64()) for name in column)
    shift, either = pyarrow.compute.shift_left, pyarrow.compute.bit_wise_or
    return either(either(shift(high, pa.scalar(32)), shift(middle, pa.scalar(16))), low)


def _expression(column: Column) -> str:
    if isinstance(column, tuple):
        high, middle, low = map(_quoted, column)
        return f"({high} << 32) | ({middle} << 16) | {low}"
    # The driver takes a column's type from the first rows, and fails at a text after rows of NULL.
    return f"ifnull({_quoted(column)}, '')" if column == "text" else _quoted(column)


def _quoted(name: str) -> str:
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
        fitting = _fitting(column, kind)
    if fitting.null_count:
        fitting = fitting.fill_null(null(dtype))
    return fitting.to_numpy(zero_copy_only=False)


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    wide = _signed(column).cast(pa.int64())
    cut = wide.cast(kind, safe=False)
    if pa.types.is_unsigned_integer(kind):
        return cut
    is_whole = pyarrow.compute.equal(cut.cast(pa.int64()), wide)
    return pyarrow.compute.if_else(is_whole, cut, pa.scalar(None, kind))


def _signed(column: pa.Array) -> pa.Array:
    """Give ids of 64 bits a sign, as SQLite has them; Parquet may store them without."""
    return column.view(pa.int64()) if pa.types.is_uint64(column.type) else column


def read_numbers(source: Source, table: str, wanted: Dtypes) -> dict[Any, Numbers]:
    """Read the ``wanted`` columns of ``table`` batch by batch into arrays of their final length."""
    known = set(source.columns(table))
    present = [column for column in wanted if known.issuperset(names_of(column))]
    rows = source.most_rows(table) if present else 0
    found, given = _read_at_most(rows, source, table, wanted, present)
    if given != rows:
        counted = source.count_rows(table)
        if given != counted:
            raise sqlite3.DatabaseError(f"table {table} counts {counted} rows and gives {given}")
        if given > rows:
            # The last row has not the highest number: the file is damaged in the order of its rows only.
            found, _ = _read_at_most(counted, source, table, wanted, present)
        else:
            found = {name: values[:given].copy() for name, values in found.items()}
    return found


def _read_at_most(
    rows: int, source: Source, table: str, wanted: Dtypes, present: Sequence[Column]
) -> tuple[dict[Any, Numbers], int]:
    """Return the columns with room for ``rows`` rows, and how many rows the table gives; further ones are left out."""
    budget.check(8 * rows * len(wanted))
    found = {
        name: np.empty(rows, dtype) if name in present else np.full(rows, null(dtype), dtype)
        for name, dtype in wanted.items()
    }
    at = 0
    if present:
        with closing(source.batches(table, present)) as batches:
            for batch in batches:
                part = slice(at, at := at + batch.num_rows)
                if at <= rows:
                    for name, column in zip(present, batch.columns, strict=True):
                        found[name][part] = numbers(column, wanted[name])
    return found, at


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
    """Return (number of each row's text, the texts). Text 0 is empty and stands for NULL."""
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
        """Return the text of each of ``ids``, None for an unknown id."""
        if not len(self._ids):
            return [None] * len(ids)
        at = np.searchsorted(self._ids, ids, sorter=self._order).clip(max=len(self._ids) - 1)
        rows = self._order[at]
        found = self._values.take(pa.array(rows)).to_pylist()
        known = (self._ids[rows] == ids).tolist()
        return [(t or b"").decode("utf-8", "replace") if k else None for t, k in zip(found, known, strict=True)]
