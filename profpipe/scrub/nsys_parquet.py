"""Scrub nsys exports that are folders with a Parquet file per table, by the rules of ``nsys`` in an SQLite in memory.

Only tables with private data are loaded and written again.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from profpipe.errors import UnreadableFile
from profpipe.scrub import nsys
from profpipe.scrub.sqlite import Schema, differ, quoted

#: The mark in the metadata of the file with the texts; its value is the version of the rules.
_MARK: Final = {b"profpipe_scrubbed": b"2"}
_TEXTS: Final = "StringIds"


def copy(path: Path, beside: Path) -> Counter[str]:
    """Write the changed files to ``beside``; return by table how many rows were dropped or lost a text.

    Raises UnreadableFile where the folder holds other files, ValueError where a table is damaged.
    """
    if others := [file.name for file in sorted(path.iterdir()) if file.suffix != ".parquet" or not file.is_file()]:
        raise UnreadableFile(path, f"holds more than an export's tables: {others[0]}", "Move it elsewhere first.")
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            return _copy({file.stem: file for file in sorted(path.iterdir())}, beside, database)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def is_marked(path: Path) -> bool:
    """Return True for a folder that ``copy`` wrote."""
    try:
        metadata = parquet.read_schema(path / f"{_TEXTS}.parquet").metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return _MARK.items() <= metadata.items()


def _copy(files: dict[str, Path], beside: Path, database: sqlite3.Connection) -> Counter[str]:
    database.execute("ATTACH ':memory:' AS source")
    for table, file in files.items():
        columns = ", ".join(f"{quoted(f.name)} {_declared(f.type)}" for f in parquet.read_schema(file))
        database.execute(f"CREATE TABLE source.{quoted(table)} ({columns})")
    schema = Schema.of(database)
    nsys.define(database)
    loaded = [table for table in files if nsys.kept(schema, table) != "true" or nsys.changed(schema, table)]
    for table in loaded:
        _load(database, table, parquet.read_table(files[table]))
    for table, column in nsys.process_columns(schema):
        _note(database, "working", {number >> 24 for number in _distinct(files[table], column)})
    for table, column in nsys.text_columns(schema):
        if table in loaded:
            nsys.note_texts(database, schema, table, column)
        else:
            _note(database, nsys.user(table, column), _distinct(files[table], column))
    removed: Counter[str] = Counter()
    for table in loaded:
        target = beside / files[table].name
        removed[table] = _write(database, schema, table, parquet.read_table(files[table]), target)
        shutil.copymode(files[table], target)
    return removed


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _declared(kind: pa.DataType) -> str:
    kind = _plain(kind)
    if pa.types.is_integer(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) or pa.types.is_boolean(kind) else "TEXT"


def _note(database: sqlite3.Connection, table: str, numbers: Iterable[int]) -> None:
    database.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?)", ((number,) for number in numbers))


def _distinct(file: Path, column: str) -> set[int]:
    found: set[int] = set()
    with parquet.ParquetFile(file) as rows:
        for batch in rows.iter_batches(columns=[column]):
            known = batch.column(0).drop_null().cast(pa.int64(), safe=False)
            found.update(np.unique(known.to_numpy(zero_copy_only=False)).tolist())
    return found


def _load(database: sqlite3.Connection, table: str, rows: pa.Table) -> None:
    marks = ", ".join("?" * rows.num_columns)
    columns = [list(_values(column)) for column in rows.columns]
    database.executemany(f"INSERT INTO source.{quoted(table)} VALUES ({marks})", zip(*columns, strict=True))


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield values for SQLite: unsigned numbers wrap, as in nsys's SQLite exports, and nested values are NULL.

    Environments may be in any encoding, so texts are decoded from bytes.
    """
    column = column.cast(_plain(column.type))
    if pa.types.is_integer(column.type):
        yield from column.cast(pa.int64(), safe=False).to_pylist()
    elif pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        yield from column.to_pylist()
    elif _is_text(column.type):
        for value in column.cast(pa.large_binary()).to_pylist():
            yield value if value is None else value.decode("utf-8", "replace")
    else:
        yield from [None] * len(column)


def _is_text(kind: pa.DataType) -> bool:
    return _plain(kind) in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _write(database: sqlite3.Connection, schema: Schema, table: str, rows: pa.Table, target: Path) -> int:
    keep, changed = nsys.kept(schema, table), nsys.changed(schema, table)
    chosen = ", ".join(["rowid - 1", differ(changed), *changed.values()])
    found = database.execute(f"SELECT {chosen} FROM source.{quoted(table)} WHERE {keep} ORDER BY rowid").fetchall()
    stay = rows.take(pa.array([row[0] for row in found], pa.int64()))
    for at, field in enumerate(rows.schema):
        if field.name in changed:
            number = 2 + list(changed).index(field.name)
            texts = [row[number] for row in found] if _is_text(field.type) else [None] * len(found)
            stay = stay.set_column(at, field, pa.array(texts, _plain(field.type)).cast(field.type))
        elif pa.types.is_dictionary(field.type):
            # Otherwise the dictionary keeps the values of dropped rows.
            stay = stay.set_column(at, field, stay.column(at).cast(_plain(field.type)).cast(field.type))
    if table == _TEXTS:
        stay = stay.replace_schema_metadata({**(stay.schema.metadata or {}), **_MARK})
    parquet.write_table(stay, target)
    return rows.num_rows - len(found) + sum(bool(row[1]) for row in found)
