"""The rules for private data in an nsys export, SQLite or Parquet: both have the same tables and columns.

nsys (2022 to 2026) stores the environment of the profiled process and of every process of the host (values of
``StringIds`` with NUL bytes between variables), their names and command lines, and the program's output. Unknown data
is removed, for later versions store more.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

from profpipe.scrub import sqlite
from profpipe.scrub.paths import without_folders, without_paths
from profpipe.scrub.sqlite import PRIVATE_COLUMN, Schema, call, quoted

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
        "without_folders": (1, without_folders),
        "without_paths": (1, without_paths),
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
    for of, column, function in (("DIAGNOSTIC_EVENT", "text", "without_paths"), ("PROCESSES", "name", "file_name")):
        if table == of and schema.has(table, column):
            columns[column] = call(function, column)
    if table == "StringIds" and schema.has(table, "id", "value"):
        columns["value"] = f"CASE WHEN id IN used THEN value ELSE {call('without_folders', 'value')} END"
    return columns
