"""Copies of exports without what says who ran them, where, and with what secrets.

nsys stores the environment of the profiled process and of every process of the host (as values of ``StringIds``, their
variables separated by NUL bytes), all their names, command lines, and what the program printed. A Chrome trace names
its host, and carries whatever the job added to its metadata.

What is not known to be harmless goes, for later versions store more. Kernels, ranges, calls, and the description of
GPU, driver and operating system stay, so that the file is parsed to the same tables. The copy is made row by row from
what stays, rather than by deleting from the original, whose free pages would still hold the text.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from profpipe import jsonstream
from profpipe.errors import Refused

#: In the header of a scrubbed database (``PRAGMA application_id``); the last digit counts the rules below.
_MARK: Final = 0x70705301
_MARK_AT: Final = slice(68, 72)

#: Who, where and what: of columns with text, and of columns with ids of text.
_PRIVATE_COLUMN: Final = re.compile(
    r"environ|env(Var\w*|Id)?$|comm?and_?line|cmd_?line|arg(ument)?s|host_?name|user_?name|working_?dir"
    r"|file_?path|filename|^content",
    re.IGNORECASE,
)
#: nsys says in its schema which columns are ids of text, from 2022 on and apart from payloads.
_DECLARED_ID: Final = re.compile(r'^\s*"?(\w+)"?\s+INTEGER\b.*REFERENCES StringIds\(id\)', re.MULTILINE)
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
_PATH_IN_TEXT: Final = re.compile(r"(?<![\w.])~?(/[^\s/,;:'\"()]+){2,}/?|\b[A-Za-z]:\\[^\s,;'\"()]+")

#: Severity 1 only informs, in words that quote paths and commands; warnings and errors belong to the result.
_WARNING: Final = 2

_TRACE_KEYS: Final = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds?|trace_id|traceEvents"
    r"|stackFrames|\w+_version|with_(stack|modules|flops)|record_shapes|profile_memory|(hip|roctracer)_\w+"
    r"|DISABLE_CUPTI_LAZY_REINIT|TEARDOWN_CUPTI"
)


def scrub(path: Path, parser: str) -> dict[str, int]:
    """Puts a scrubbed copy in the place of ``path``, which the parser of that name reads, whole or not at all.

    Returns how much was removed: rows by table, or ``metadata`` of a trace, which is not touched where it is none.
    Raises Refused where the file is of no kind that can be scrubbed, is damaged, or may not be replaced.
    """
    copy = _COPIES.get(parser)
    if copy is None or path.is_dir():
        raise Refused(path, "is no export that profpipe can scrub", "It scrubs nsys SQLite exports and Chrome traces.")
    if not path.stat().st_mode & 0o222:
        raise Refused(path, "is read-only", "Scrub a copy of it, or make it writable (chmod u+w).")
    # Through a link to what it points at: the text is there.
    place = path.resolve()
    beside = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        beside.touch(mode=0o600)
        removed = +copy(place, beside)
        if removed or copy is _copy_database:
            shutil.copymode(place, beside)
            beside.replace(place)
    except OSError as error:
        raise Refused(path, f"cannot be replaced: {error.strerror or error}", "Scrub a copy elsewhere.") from error
    except (sqlite3.Error, zlib.error, EOFError, ValueError, RecursionError) as error:
        what = f"damaged or cut short, cannot be scrubbed ({error})"
        raise Refused(path, what, "Export it or record it again.") from error
    finally:
        beside.unlink(missing_ok=True)
    return dict(removed)


def is_scrubbed(path: Path) -> bool:
    """Whether ``path`` is a database that ``scrub`` wrote."""
    with path.open("rb") as stream:
        head = stream.read(100)
    return head.startswith(b"SQLite format 3\0") and head[_MARK_AT] == _MARK.to_bytes(4, "big")


# --- nsys exports ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Schema:
    """The tables of an export: the statement that made each, and the declared type of each of its columns."""

    made: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, database: sqlite3.Connection) -> _Schema:
        found = database.execute("SELECT name, sql FROM source.sqlite_master WHERE type = 'table'").fetchall()
        # A search tree that somebody made of the export holds its rows once more.
        trees = tuple(f"{name}_" for name, sql in found if sql.upper().startswith("CREATE VIRTUAL"))
        made = {
            name: sql
            for name, sql in found
            if sql.upper().startswith("CREATE TABLE") and not name.startswith(("sqlite_", *trees))
        }
        columns = {
            name: {row[1]: row[2].upper() for row in database.execute(f"PRAGMA source.table_info({_quoted(name)})")}
            for name in made
        }
        return cls(made, columns)

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= set(self.columns.get(table, ()))

    def ids_of_text(self, table: str) -> list[str]:
        """Columns with ids of ``StringIds``, apart from those whose text is private."""
        declared = _DECLARED_ID.findall(self.made[table])
        return [
            name
            for name, kind in self.columns[table].items()
            if kind in ("INTEGER", "INT", "") and (name in declared or _ID_BY_NAME.search(name))
            if table not in ("StringIds", "ProcessStreams") and not _PRIVATE_COLUMN.search(name)
        ]

    def private_texts(self, table: str) -> list[str]:
        return [name for name, kind in self.columns[table].items() if kind == "TEXT" and _PRIVATE_COLUMN.search(name)]


def _copy_database(path: Path, beside: Path) -> Counter[str]:
    for leftover in ("-journal", "-wal"):
        other = path.with_name(path.name + leftover)
        if other.is_file() and other.stat().st_size:
            remedy = "Close what has it open, or export it again."
            raise Refused(path, f"is being written, or its export was interrupted: {other.name} lies beside it", remedy)
    removed: Counter[str] = Counter()
    with closing(sqlite3.connect(beside.as_uri(), uri=True, isolation_level=None)) as database:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY", "secure_delete = ON"):
            database.execute(f"PRAGMA {setting}")
        database.execute("ATTACH ? AS source", (f"{path.as_uri()}?mode=ro&immutable=1",))
        database.execute(f"PRAGMA application_id = {_MARK}")
        _define_functions(database)
        schema = _Schema.of(database)
        database.execute("BEGIN")
        _find_processes(database, schema)
        _find_used_texts(database, schema)
        for table, sql in schema.made.items():
            database.execute(sql)
            removed[table] += _copy_rows(database, schema, table)
        for (sql,) in database.execute("SELECT sql FROM source.sqlite_master WHERE type = 'index' AND sql <> ''"):
            database.execute(sql)
        database.execute("COMMIT")
    return removed


def _define_functions(database: sqlite3.Connection) -> None:
    functions: dict[str, tuple[int, Callable[..., Any]]] = {
        "describes_system": (1, lambda name: bool(_SYSTEM.fullmatch(str(name)))),
        "describes_export": (2, lambda name, value: bool(_EXPORT.fullmatch(str(name))) or _is_switch(name, value)),
        "describes_capture": (2, lambda name, value: bool(_CAPTURE.fullmatch(_last(name))) or _is_switch(name, value)),
        "file_name": (1, lambda path: path.rpartition("/")[2] if isinstance(path, str) else path),
        "without_paths": (1, lambda text: _PATH_IN_TEXT.sub("[path]", text) if isinstance(text, str) else text),
    }
    for name, (arguments, function) in functions.items():
        database.create_function(name, arguments, function, deterministic=True)


def _last(name: Any) -> str:
    """``PROCESS_0:ARGUMENT_1`` is an argument."""
    return str(name).rpartition(":")[2]


def _is_switch(name: Any, value: Any) -> bool:
    return not _PRIVATE_SETTING.search(_last(name)) and bool(_SWITCH.fullmatch(str(value)))


def _find_processes(database: sqlite3.Connection, schema: _Schema) -> None:
    """The processes with kernels, calls or ranges. An export lists all others of the host too."""
    database.execute("CREATE TEMP TABLE working (process INTEGER PRIMARY KEY)")
    for table in schema.made:
        if table.startswith("CUPTI_ACTIVITY_KIND_") or table == "NVTX_EVENTS":
            for column in ("globalPid", "globalTid"):
                if schema.has(table, column):
                    distinct = f"SELECT DISTINCT {column} >> 24 FROM source.{_quoted(table)} WHERE {column} IS NOT NULL"
                    database.execute(f"INSERT OR IGNORE INTO working {distinct}")


def _find_used_texts(database: sqlite3.Connection, schema: _Schema) -> None:
    """The ids of the texts that rows which stay refer to. Environments are referred to by none."""
    database.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table in schema.made:
        keep = _kept_rows(schema, table)
        for column in map(_quoted, schema.ids_of_text(table)):
            distinct = f"SELECT DISTINCT {column} FROM source.{_quoted(table)} WHERE {column} IS NOT NULL AND ({keep})"
            database.execute(f"INSERT OR IGNORE INTO used {distinct}")


def _kept_rows(schema: _Schema, table: str) -> str:
    """The SQL condition under which a row of ``table`` is harmless."""
    conditions = {
        "META_DATA_CAPTURE": (("name", "value"), "describes_capture(name, value)"),
        "META_DATA_EXPORT": (("name", "value"), "describes_export(name, value)"),
        "EXPORT_META_DATA": (("name", "value"), "describes_export(name, value)"),
        "TARGET_INFO_SYSTEM_ENV": (("name",), "describes_system(name)"),
        "PROCESSES": (("globalPid",), "globalPid >> 24 IN working"),
        "ThreadNames": (("globalTid",), "globalTid >> 24 IN working"),
        "DIAGNOSTIC_EVENT": (("severity",), f"severity >= {_WARNING}"),
        "ProcessStreams": ((), "false"),
        "ANALYSIS_FILE": ((), "false"),
        # A text with a NUL byte is an environment, even where something else has the same id.
        "StringIds": (("id", "value"), "id IN used AND NOT instr(CAST(value AS BLOB), x'00')"),
    }
    if table not in conditions:
        return "true"
    needed, condition = conditions[table]
    return condition if schema.has(table, *needed) else "false"


def _copy_rows(database: sqlite3.Connection, schema: _Schema, table: str) -> int:
    """Copies what is harmless of ``table``; returns how many rows were left out or lost a text."""
    source, keep = f"source.{_quoted(table)}", _kept_rows(schema, table)
    changed = dict.fromkeys(schema.private_texts(table), "''")
    for of, column, function in (("DIAGNOSTIC_EVENT", "text", "without_paths"), ("PROCESSES", "name", "file_name")):
        if table == of and schema.has(table, column):
            changed[column] = f"{function}({column})"
    chosen = ", ".join(changed.get(name, _quoted(name)) for name in schema.columns[table]) if changed else "*"
    # Without a condition SQLite copies whole cells, which is several times as fast.
    where = f" WHERE {keep}" if keep != "true" else ""
    copied = database.execute(f"INSERT INTO main.{_quoted(table)} SELECT {chosen} FROM {source}{where}").rowcount
    if not where and not changed:
        return 0
    differ = " OR ".join(f"{_quoted(name)} <> {value}" for name, value in changed.items()) or "false"
    count = f"SELECT count(*) - {copied}, coalesce(sum(({keep}) AND ({differ})), 0) FROM {source}"
    left_out, blanked = database.execute(count).fetchone()
    return int(left_out + blanked)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- Chrome traces ---------------------------------------------------------------------------------------------------


def _copy_trace(path: Path, beside: Path) -> Counter[str]:
    with path.open("rb") as stream:
        opener: Any = gzip.open if stream.read(2) == b"\x1f\x8b" else open
    removed: Counter[str] = Counter()
    # Read as the parser reads it, so that both see the same names.
    with opener(path, "rt", encoding="utf-8-sig", errors="replace") as source, opener(beside, "wt") as target:
        for text in _kept_text(source, removed):
            target.write(text)
    return removed


def _kept_text(source: TextIO, removed: Counter[str]) -> Iterator[str]:
    """The trace in ASCII, an event a line, without what stands around the events and is not known to be harmless."""
    before, inside = "{\n", False
    for key, value in jsonstream.items(source, unroll="traceEvents"):
        if not _TRACE_KEYS.fullmatch(key):
            removed["metadata"] += 1
            continue
        event = key == "traceEvents"
        if event and not inside:
            before += '"traceEvents": [\n'
        elif inside and not event:
            before = "\n" + "]" + before
        yield before + ("" if event else f"{json.dumps(key)}: ") + json.dumps(value)
        before, inside = ",\n", event
    yield ("\n]" if inside else "") + ("\n}\n" if before != "{\n" else "{}\n")


_COPIES: Final[Mapping[str, Callable[[Path, Path], Counter[str]]]] = {
    "nsys_sqlite": _copy_database,
    "torch_trace": _copy_trace,
}

#: The names of the parsers whose files can be scrubbed.
PARSERS: Final = frozenset(_COPIES)
