"""Copy the harmless rows of an SQLite file of any tool, and the rules for the databases of rocprof.

Deleting rows in place would leave their text in free pages.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from profpipe.errors import UnreadableFile
from profpipe.ingest.nsys_export import quoted
from profpipe.ingest.rocprof import GUID
from profpipe.results import budget

#: ``PRAGMA application_id`` of a scrubbed database; the last digit is the version of the rules.
_MARK: Final = 0x70705302
_MARK_AT: Final = slice(68, 72)

PRIVATE_COLUMN: Final = re.compile(
    r"environ|env(Var\w*|Id)?$|comm?and_?line|cmd_?line|arg(ument)?s|host_?name|user_?name|working_?dir"
    r"|file_?path|filename|^content",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Schema:
    """The tables of ``source``: the statements that created them, and the declared types of its columns."""

    made: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, database: sqlite3.Connection) -> Schema:
        tables = database.execute("SELECT name, sql FROM source.sqlite_master WHERE type = 'table'").fetchall()
        # The tables of a search tree hold copies of the rows.
        trees = tuple(f"{name}_" for name, sql in tables if sql.upper().startswith("CREATE VIRTUAL"))
        made = {
            name: sql
            for name, sql in tables
            if sql.upper().startswith("CREATE TABLE") and not name.startswith(("sqlite_", *trees))
        }
        columns = {
            name: {row[1]: row[2].upper() for row in database.execute(f"PRAGMA source.table_info({quoted(name)})")}
            for name in made
        }
        return cls(made, columns)

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= set(self.columns.get(table, ()))

    def private_texts(self, table: str) -> list[str]:
        columns = self.columns[table].items()
        return [name for name, kind in columns if kind in ("TEXT", "JSONB") and PRIVATE_COLUMN.search(name)]


class Rules(Protocol):
    """The rules of a format: which of its data is harmless."""

    def prepare(self, database: sqlite3.Connection, schema: Schema) -> None:
        """Create the functions and temporary tables that the conditions and expressions use."""

    def kept(self, schema: Schema, table: str) -> str:
        """Return the SQL condition for harmless rows of ``table``, ``true`` where all are."""

    def changed(self, schema: Schema, table: str) -> dict[str, str]:
        """Return changed columns of the kept rows, and the SQL expression of their new values."""


def copy(path: Path, beside: Path, rules: Rules) -> Counter[str]:
    """Write the harmless data of ``path`` to ``beside``; return by table how many rows were dropped or lost a text."""
    for leftover in ("-journal", "-wal"):
        other = path.with_name(path.name + leftover)
        if other.is_file() and other.stat().st_size:
            remedy = "Close what has it open, or export it again."
            raise UnreadableFile(
                path, f"is being written, or its export was interrupted: {other.name} lies beside it", remedy
            )
    removed: Counter[str] = Counter()
    connection = sqlite3.connect(beside.as_uri(), uri=True, isolation_level=None)
    with closing(connection) as database, budget.interrupting(database):
        for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY", "secure_delete = ON"):
            database.execute(f"PRAGMA {setting}")
        database.execute("ATTACH ? AS source", (f"{path.as_uri()}?mode=ro&immutable=1",))
        database.execute(f"PRAGMA application_id = {_MARK}")
        schema = Schema.of(database)
        database.execute("BEGIN")
        rules.prepare(database, schema)
        for table, sql in schema.made.items():
            database.execute(sql)
            removed[table] += _copy_rows(database, schema, table, rules)
        kinds = "type IN ('index', 'view') AND sql <> ''"
        for (sql,) in database.execute(f"SELECT sql FROM source.sqlite_master WHERE {kinds}").fetchall():
            database.execute(sql)
        database.execute("COMMIT")
    return removed


def _copy_rows(database: sqlite3.Connection, schema: Schema, table: str, rules: Rules) -> int:
    source, keep, changed = f"source.{quoted(table)}", rules.kept(schema, table), rules.changed(schema, table)
    chosen = ", ".join(changed.get(name, quoted(name)) for name in schema.columns[table]) if changed else "*"
    # Without a condition SQLite copies whole cells, several times as fast.
    where = f" WHERE {keep}" if keep != "true" else ""
    copied = database.execute(f"INSERT INTO main.{quoted(table)} SELECT {chosen} FROM {source}{where}").rowcount
    if not where and not changed:
        return 0
    count = f"SELECT count(*) - {copied}, coalesce(sum(({keep}) AND ({differ(changed)})), 0) FROM {source}"
    left_out, blanked = database.execute(count).fetchone()
    return int(left_out + blanked)


def differ(changed: Mapping[str, str]) -> str:
    """Return the SQL condition for rows that change."""
    return " OR ".join(f"{quoted(name)} <> {value}" for name, value in changed.items()) or "false"


def define(database: sqlite3.Connection, name: str, arguments: int, function: Callable[..., Any]) -> None:
    """Register ``function`` in SQL, for the expressions of ``call``."""

    def call_with_texts(*values: Any) -> Any:
        return function(*(value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values))

    database.create_function(name, arguments, call_with_texts, deterministic=True)


def call(function: str, *columns: str) -> str:
    """Return the SQL that calls ``function`` with the texts of ``columns``.

    The texts are passed as bytes: an environment may be in any encoding, and SQLite passes only UTF-8 as text.
    """
    return f"{function}({', '.join(f'CAST({column} AS BLOB)' for column in columns)})"


def is_marked(path: Path) -> bool:
    """Return True for a database that ``copy`` wrote."""
    with path.open("rb") as stream:
        head = stream.read(100)
    return head.startswith(b"SQLite format 3\0") and head[_MARK_AT] == _MARK.to_bytes(4, "big")


# --- paths in texts: the folders of a path name its user --------------------------------------------------------------

_PATH: Final = re.compile(r"(?<![\w.])~?(/[^\s/,;:'\"()]+){2,}/?|\b[A-Za-z]:\\[^\s,;'\"()]+")
#: An absolute path up to its last folder; folders may have blanks in their names. A semicolon or a new line separates
#: the calls of a stack.
_FOLDERS: Final = re.compile(r"(?<![\w.])(~?/|[A-Za-z]:\\)[^;\n]*[/\\]")


def strip_paths(text: Any) -> Any:
    """Replace the paths in ``text``; other values stay."""
    return _PATH.sub("[path]", text) if isinstance(text, str) else text


def strip_folders(text: Any) -> Any:
    """Remove the folders of an absolute path from ``text``; of several paths, all text up to the last folder."""
    return _FOLDERS.sub("", text) if isinstance(text, str) else text


# --- databases of rocprof ---------------------------------------------------------------------------------------------

#: rocpd (rocprofv3) stores the processes' command, environment and output folders, the host with its machine id, the
#: paths of code objects, and the arguments of API calls, which may be texts. Each process has tables whose names end in
#: its GUID. results.db of rocprof v1 has the same columns of texts.
_TEXT_ID: Final = re.compile(r"(^|_)(name|category)_id$")

#: Harmless arguments: numbers, addresses, vectors of them, and names from a header where no text can be passed.
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?|0x[0-9a-fA-F]+|\{(\w+=-?\d+(, )?)*\}|\(null\)|nullptr")
_NAME: Final = re.compile(r"[A-Za-z_][\w:]*")
_POINTER_OR_TEXT: Final = re.compile(r"[*]|char|string", re.IGNORECASE)

#: Table -> column -> SQL of its new value. ``extdata`` may hold any text; for agents, symbols and counters it
#: describes the GPU, the kernels and the counters.
_CHANGED: Final = {
    "rocpd_info_node": {
        "machine_id": "'node ' || rowid", "hash": "rowid", "hostname": "''", "domain_name": "''",
    },
    "rocpd_info_process": {"command": "''", "environment": "'{}'"},
    "rocpd_info_code_object": {"uri": call("strip_paths", "uri"), "extdata": call("strip_paths", "extdata")},
    "rocpd_event": {"call_stack": "'{}'", "line_info": "'{}'", "extdata": call("message_alone", "extdata")},
    "rocpd_arg": {"value": call("harmless_argument", "type", "value")},
}  # fmt: skip
_KEEP_THEIR_EXTDATA: Final = {"rocpd_info_agent", "rocpd_info_kernel_symbol", "rocpd_info_pmc"}
#: ``user_name`` of an agent is the product's name.
_NO_USER: Final = {"rocpd_info_agent"}


def copy_rocprof(path: Path, beside: Path) -> Counter[str]:
    """Copy as ``copy`` does a database of rocprof; count tables by their names without the GUID."""
    removed: Counter[str] = Counter()
    for table, count in copy(path, beside, _Rocprof()).items():
        removed[GUID.sub("", table)] += count
    return removed


class _Rocprof:
    def prepare(self, database: sqlite3.Connection, schema: Schema) -> None:
        database.execute("CREATE TEMP TABLE used (texts TEXT, id INTEGER, PRIMARY KEY (texts, id))")
        for table, column, texts in _text_columns(database, schema):
            chosen = f"SELECT DISTINCT ?, {quoted(column)} FROM source.{quoted(table)}"
            database.execute(f"INSERT OR IGNORE INTO used {chosen} WHERE {quoted(column)} IS NOT NULL", [texts])
        define(database, "strip_paths", 1, strip_paths)
        define(database, "message_alone", 1, _message_alone)
        define(database, "harmless_argument", 2, _harmless_argument)

    def kept(self, schema: Schema, table: str) -> str:
        base = GUID.sub("", table)
        if base == "rocpd_metadata":
            return "tag IN ('schema_version', 'uuid', 'guid')" if schema.has(table, "tag") else "false"
        if base == "rocpd_string":
            texts = table.replace("'", "''")
            return f"id IN (SELECT id FROM used WHERE texts = '{texts}')" if schema.has(table, "id") else "false"
        return "true"

    def changed(self, schema: Schema, table: str) -> dict[str, str]:
        base, columns = GUID.sub("", table), schema.columns[table]
        private = [] if base in _NO_USER else schema.private_texts(table)
        replacements = {name: "'{}'" if columns[name] == "JSONB" else "''" for name in private}
        if base not in _KEEP_THEIR_EXTDATA and "extdata" in columns:
            replacements["extdata"] = "'{}'"
        replacements |= {name: value for name, value in _CHANGED.get(base, {}).items() if name in columns}
        return replacements


def _text_columns(database: sqlite3.Connection, schema: Schema) -> Iterator[tuple[str, str, str]]:
    """Yield (table, column with ids of texts, table of those texts)."""
    for table in schema.made:
        declared = database.execute(f"PRAGMA source.foreign_key_list({quoted(table)})").fetchall()
        text_tables = {row[3]: row[2] for row in declared if row[2].startswith("rocpd_string")}
        guid = GUID.search(table)
        for column in filter(_TEXT_ID.search, schema.columns[table]):
            text_tables.setdefault(column, f"rocpd_string{guid[0] if guid else ''}")
        yield from ((table, column, texts) for column, texts in text_tables.items())


def _message_alone(extdata: Any) -> str:
    """Keep the message of a marker; other data of an event is unknown."""
    try:
        message = json.loads(extdata)["message"]
    except (ValueError, TypeError, KeyError):
        return "{}"
    return json.dumps({"message": message}, separators=(",", ":"))


def _harmless_argument(kind: Any, value: Any) -> Any:
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return value if _NAME.fullmatch(value) and not _POINTER_OR_TEXT.search(str(kind)) else ""
