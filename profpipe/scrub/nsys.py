"""The rules for private data in an nsys export, SQLite or Parquet: both have the same tables and columns.

nsys (2022 to 2026) stores the environment of the profiled process and of all processes of the host (values of
``StringIds`` with NUL bytes between variables), their names and command lines, and the program's output. Unknown data
is removed, for later versions store more.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from profpipe.errors import UnreadableFile
from profpipe.ingest.nsys_export import quoted
from profpipe.scrub import sqlite
from profpipe.scrub.sqlite import PRIVATE_COLUMN, Schema, call, differ, strip_folders, strip_paths

#: From 2022 on the schema declares the columns with ids of texts, except payloads.
_DECLARED_ID: Final = re.compile(r'^\s*"?(\w+)"?\s+INTEGER\b.*REFERENCES StringIds\(id\)', re.MULTILINE)
_CODE: Final = re.compile("symbol|module", re.IGNORECASE)
_ID_BY_NAME: Final = re.compile(r"(demangled|short|mangled)Name$|nameId$|textId$|^(symbol|module)$", re.IGNORECASE)

_SYSTEM: Final = re.compile(
    r"Cpu(Cores|SpeedMhz|Architecture|Description|Info)|(Nv|Cuda|Ofed)DriverVersion|Os(Description|Name)"
    r"|(Hardware|Software)Platform|SoftwareReleaseVersion|KernelVersion|GpuInfo|\w*ABIs|IsX86BasedDevice"
    r"|LinuxParanoidLevel|ExportLevel|(Has|Supports)\w+"
)
_EXPORT: Final = re.compile(r"EXPORT_((PRODUCT|SCHEMA)_\w+|PLATFORM|ARCH|TIME(_UTC)?)")
_CAPTURE: Final = re.compile(r"CAPTURE_EVENT_TYPE|DEVICE_TYPE|(START|STOP)_TRIGGER|HOW_TO_ATTACH|MODE")
_PRIVATE_SETTING: Final = re.compile(r"ARGUMENT|ENVIRONMENT|COMMAND|DIR|PATH|FILE|HOST|USER|NAME|STRING|DEVICE_ID|UUID")
_SWITCH: Final = re.compile(r"(true|false|-?\d+(\.\d+)?)?")

#: Messages of severity 1 quote paths and commands; warnings and errors belong to the result.
_WARNING: Final = 2


def prepare(database: sqlite3.Connection, schema: Schema) -> None:
    define(database)
    for table, column in process_columns(schema):
        distinct = f"SELECT DISTINCT {column} >> 24 FROM source.{quoted(table)} WHERE {column} IS NOT NULL"
        database.execute(f"INSERT OR IGNORE INTO working {distinct}")
    for table, column in text_columns(schema):
        note_texts(database, schema, table, column)


def note_texts(database: sqlite3.Connection, schema: Schema, table: str, column: str) -> None:
    """Collect the ids of the texts that kept rows of ``table`` use."""
    chosen, keep = quoted(column), kept(schema, table)
    distinct = f"SELECT DISTINCT {chosen} FROM source.{quoted(table)} WHERE {chosen} IS NOT NULL AND ({keep})"
    database.execute(f"INSERT OR IGNORE INTO {user(table, column)} {distinct}")


def user(table: str, column: str) -> str:
    """Return the table that collects the ids of a text column."""
    return "used_by_code" if table == "ThreadNames" or _CODE.fullmatch(column) else "used"


def define(database: sqlite3.Connection) -> None:
    """Create the SQL functions, and three tables: processes at work, and ids of texts in use.

    Texts that only call stacks and threads use may be paths of programs and libraries.
    """
    for table, column in (("working", "process"), ("used", "id"), ("used_by_code", "id")):
        database.execute(f"CREATE TEMP TABLE {table} ({column} INTEGER PRIMARY KEY)")
    functions: dict[str, tuple[int, Callable[..., Any]]] = {
        "describes_system": (1, lambda name: bool(_SYSTEM.fullmatch(str(name)))),
        "describes_export": (2, lambda name, value: bool(_EXPORT.fullmatch(str(name))) or _is_switch(name, value)),
        "describes_capture": (2, lambda name, value: bool(_CAPTURE.fullmatch(_last(name))) or _is_switch(name, value)),
        "file_name": (1, lambda path: re.split(r"[/\\]", path)[-1] if isinstance(path, str) else path),
        "strip_folders": (1, strip_folders),
        "strip_paths": (1, strip_paths),
    }
    for name, (arguments, function) in functions.items():
        sqlite.define(database, name, arguments, function)


def _last(name: Any) -> str:
    """Return ``ARGUMENT_1`` of ``PROCESS_0:ARGUMENT_1``."""
    return str(name).rpartition(":")[2]


def _is_switch(name: Any, value: Any) -> bool:
    return not _PRIVATE_SETTING.search(_last(name)) and bool(_SWITCH.fullmatch(str(value)))


def process_columns(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield (table, column) of processes with kernels, calls or ranges. An export lists all processes of the host."""
    for table in schema.made:
        if table.startswith("CUPTI_ACTIVITY_KIND_") or table == "NVTX_EVENTS":
            yield from ((table, column) for column in ("globalPid", "globalTid") if schema.has(table, column))


def text_columns(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield (table, column) of ids of ``StringIds``, except private texts. No such column holds an environment."""
    for table, sql in schema.made.items():
        declared = _DECLARED_ID.findall(sql)
        for name, kind in schema.columns[table].items():
            is_id = kind in ("INTEGER", "INT", "") and (name in declared or _ID_BY_NAME.search(name))
            if is_id and table not in ("StringIds", "ProcessStreams") and not PRIVATE_COLUMN.search(name):
                yield table, name


def kept(schema: Schema, table: str) -> str:
    """Return the SQL condition for harmless rows of ``table``."""
    is_used = "(id IN used OR id IN used_by_code)"
    conditions = {
        "META_DATA_CAPTURE": (("name", "value"), call("describes_capture", "name", "value")),
        "META_DATA_EXPORT": (("name", "value"), call("describes_export", "name", "value")),
        "EXPORT_META_DATA": (("name", "value"), call("describes_export", "name", "value")),
        "TARGET_INFO_SYSTEM_ENV": (("name",), call("describes_system", "name")),
        "PROCESSES": (("globalPid",), "globalPid >> 24 IN working"),
        "ThreadNames": (("globalTid",), "globalTid >> 24 IN working"),
        "DIAGNOSTIC_EVENT": (("severity",), f"severity >= {_WARNING}"),
        "ProcessStreams": ((), "false"),
        "ANALYSIS_FILE": ((), "false"),
        # A text with a NUL byte is an environment, even if its id is in use.
        "StringIds": (("id", "value"), f"{is_used} AND NOT instr(CAST(value AS BLOB), x'00')"),
    }
    if table not in conditions:
        return "true"
    needed, condition = conditions[table]
    return condition if schema.has(table, *needed) else "false"


def changed(schema: Schema, table: str) -> dict[str, str]:
    columns = dict.fromkeys(schema.private_texts(table), "''")
    for of, column, function in (("DIAGNOSTIC_EVENT", "text", "strip_paths"), ("PROCESSES", "name", "file_name")):
        if table == of and schema.has(table, column):
            columns[column] = call(function, column)
    if table == "StringIds" and schema.has(table, "id", "value"):
        columns["value"] = f"CASE WHEN id IN used THEN value ELSE {call('strip_folders', 'value')} END"
    return columns


# --- folders with a Parquet file per table: the same rules, in an SQLite in memory; other tables stay as they are -----

#: The mark in the metadata of the file with the texts; its value is the version of the rules.
_PARQUET_MARK: Final = {b"profpipe_scrubbed": b"2"}
_TEXTS: Final = "StringIds"


def copy_parquet(path: Path, beside: Path) -> Counter[str]:
    """Write the changed files of an export that is a folder to ``beside``; return what ``copy`` of a database returns.

    Raises UnreadableFile where the folder holds other files, ValueError where a table is damaged.
    """
    if others := [file.name for file in sorted(path.iterdir()) if file.suffix != ".parquet" or not file.is_file()]:
        raise UnreadableFile(path, f"holds more than an export's tables: {others[0]}", "Move it elsewhere first.")
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            return _copy({file.stem: file for file in sorted(path.iterdir())}, beside, database)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def is_marked_parquet(path: Path) -> bool:
    """Return True for a folder that ``copy_parquet`` wrote."""
    try:
        metadata = parquet.read_schema(path / f"{_TEXTS}.parquet").metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return _PARQUET_MARK.items() <= metadata.items()


def _copy(files: dict[str, Path], beside: Path, database: sqlite3.Connection) -> Counter[str]:
    database.execute("ATTACH ':memory:' AS source")
    for table, file in files.items():
        columns = ", ".join(f"{quoted(f.name)} {_declared(f.type)}" for f in parquet.read_schema(file))
        database.execute(f"CREATE TABLE source.{quoted(table)} ({columns})")
    schema = Schema.of(database)
    define(database)
    loaded = [table for table in files if kept(schema, table) != "true" or changed(schema, table)]
    for table in loaded:
        _load(database, table, parquet.read_table(files[table]))
    for table, column in process_columns(schema):
        _note(database, "working", {number >> 24 for number in _distinct(files[table], column)})
    for table, column in text_columns(schema):
        if table in loaded:
            note_texts(database, schema, table, column)
        else:
            _note(database, user(table, column), _distinct(files[table], column))
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
    distinct: set[int] = set()
    with parquet.ParquetFile(file) as rows:
        for batch in rows.iter_batches(columns=[column]):
            numbers = batch.column(0).drop_null().cast(pa.int64(), safe=False)
            distinct.update(np.unique(numbers.to_numpy(zero_copy_only=False)).tolist())
    return distinct


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
    keep, new = kept(schema, table), changed(schema, table)
    chosen = ", ".join(["rowid - 1", differ(new), *new.values()])
    kept_rows = database.execute(f"SELECT {chosen} FROM source.{quoted(table)} WHERE {keep} ORDER BY rowid").fetchall()
    stay = rows.take(pa.array([row[0] for row in kept_rows], pa.int64()))
    for at, field in enumerate(rows.schema):
        if field.name in new:
            number = 2 + list(new).index(field.name)
            texts = [row[number] for row in kept_rows] if _is_text(field.type) else [None] * len(kept_rows)
            stay = stay.set_column(at, field, pa.array(texts, _plain(field.type)).cast(field.type))
        elif pa.types.is_dictionary(field.type):
            # Otherwise the dictionary keeps the values of dropped rows.
            stay = stay.set_column(at, field, stay.column(at).cast(_plain(field.type)).cast(field.type))
    if table == _TEXTS:
        stay = stay.replace_schema_metadata({**(stay.schema.metadata or {}), **_PARQUET_MARK})
    parquet.write_table(stay, target)
    return rows.num_rows - len(kept_rows) + sum(bool(row[1]) for row in kept_rows)
