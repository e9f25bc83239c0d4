"""What is private in an nsys export, of whatever form: its tables have the same names and columns in each.

nsys stores the environment of the profiled process and of every process of the host (as values of ``StringIds``, their
variables separated by NUL bytes), all their names, command lines, and what the program printed. What is not known to be
harmless goes, for later versions store more.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

from profpipe.scrubbers import database as sqlite
from profpipe.scrubbers.database import PRIVATE_COLUMN, Schema, call, quoted
from profpipe.scrubbers.paths import without_folders, without_paths

#: nsys says in its schema which columns are ids of text, from 2022 on and apart from payloads.
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

#: Severity 1 only informs, in words that quote paths and commands; warnings and errors belong to the result.
_WARNING: Final = 2


def prepare(database: sqlite3.Connection, schema: Schema) -> None:
    define(database)
    for table, column in process_columns(schema):
        distinct = f"SELECT DISTINCT {column} >> 24 FROM source.{quoted(table)} WHERE {column} IS NOT NULL"
        database.execute(f"INSERT OR IGNORE INTO working {distinct}")
    for table, column in text_columns(schema):
        chosen, keep = quoted(column), kept(schema, table)
        distinct = f"SELECT DISTINCT {chosen} FROM source.{quoted(table)} WHERE {chosen} IS NOT NULL AND ({keep})"
        database.execute(f"INSERT OR IGNORE INTO {user(table, column)} {distinct}")


def user(table: str, column: str) -> str:
    """The table that the ids in a text column are noted in."""
    return "used_by_code" if table == "ThreadNames" or _CODE.fullmatch(column) else "used"


def define(database: sqlite3.Connection) -> None:
    """The functions, and three tables to be filled: processes at work, and ids of texts that something refers to.

    What call stacks and threads alone refer to may be a path: that of a program or library, and what the program was
    started as.
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
    """``PROCESS_0:ARGUMENT_1`` is an argument."""
    return str(name).rpartition(":")[2]


def _is_switch(name: Any, value: Any) -> bool:
    return not _PRIVATE_SETTING.search(_last(name)) and bool(_SWITCH.fullmatch(str(value)))


def process_columns(schema: Schema) -> Iterator[tuple[str, str]]:
    """Where the processes with kernels, calls or ranges stand. An export lists all others of the host too."""
    for table in schema.made:
        if table.startswith("CUPTI_ACTIVITY_KIND_") or table == "NVTX_EVENTS":
            yield from ((table, column) for column in ("globalPid", "globalTid") if schema.has(table, column))


def text_columns(schema: Schema) -> Iterator[tuple[str, str]]:
    """Columns with ids of ``StringIds``, apart from those whose text is private. Environments are in none of them."""
    for table, sql in schema.made.items():
        declared = _DECLARED_ID.findall(sql)
        for name, kind in schema.columns[table].items():
            is_id = kind in ("INTEGER", "INT", "") and (name in declared or _ID_BY_NAME.search(name))
            if is_id and table not in ("StringIds", "ProcessStreams") and not PRIVATE_COLUMN.search(name):
                yield table, name


def kept(schema: Schema, table: str) -> str:
    """The SQL condition under which a row of ``table`` is harmless."""
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
        # A text with a NUL byte is an environment, even where something else has the same id.
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
