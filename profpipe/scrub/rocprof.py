"""The rules for private data in the databases of rocprof: rocpd (rocprofv3), and results.db of rocprof v1.

rocpd stores each process's command, environment and output folders, the host with its machine id, the paths of code
objects, and the arguments of API calls, which may be texts. Each process has tables whose names end in its GUID.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from profpipe.scrub import sqlite
from profpipe.scrub.paths import without_paths
from profpipe.scrub.sqlite import Schema, call, quoted

_GUID: Final = re.compile(r"_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}$")
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
    "rocpd_info_code_object": {"uri": call("without_paths", "uri"), "extdata": call("without_paths", "extdata")},
    "rocpd_event": {"call_stack": "'{}'", "line_info": "'{}'", "extdata": call("message_alone", "extdata")},
    "rocpd_arg": {"value": call("harmless_argument", "type", "value")},
}  # fmt: skip
_KEEP_THEIR_EXTDATA: Final = {"rocpd_info_agent", "rocpd_info_kernel_symbol", "rocpd_info_pmc"}
#: ``user_name`` of an agent is the product's name.
_NO_USER: Final = {"rocpd_info_agent"}


def copy(path: Path, beside: Path) -> Counter[str]:
    """Copy as ``sqlite.copy`` does; count tables by their names without the GUID."""
    removed: Counter[str] = Counter()
    for table, count in sqlite.copy(path, beside, _Rules()).items():
        removed[_GUID.sub("", table)] += count
    return removed


class _Rules:
    def prepare(self, database: sqlite3.Connection, schema: Schema) -> None:
        database.execute("CREATE TEMP TABLE used (texts TEXT, id INTEGER, PRIMARY KEY (texts, id))")
        for table, column, texts in _text_columns(database, schema):
            chosen = f"SELECT DISTINCT ?, {quoted(column)} FROM source.{quoted(table)}"
            database.execute(f"INSERT OR IGNORE INTO used {chosen} WHERE {quoted(column)} IS NOT NULL", [texts])
        sqlite.define(database, "without_paths", 1, without_paths)
        sqlite.define(database, "message_alone", 1, _message_alone)
        sqlite.define(database, "harmless_argument", 2, _harmless_argument)

    def kept(self, schema: Schema, table: str) -> str:
        base = _GUID.sub("", table)
        if base == "rocpd_metadata":
            return "tag IN ('schema_version', 'uuid', 'guid')" if schema.has(table, "tag") else "false"
        if base == "rocpd_string":
            texts = table.replace("'", "''")
            return f"id IN (SELECT id FROM used WHERE texts = '{texts}')" if schema.has(table, "id") else "false"
        return "true"

    def changed(self, schema: Schema, table: str) -> dict[str, str]:
        base, columns = _GUID.sub("", table), schema.columns[table]
        private = [] if base in _NO_USER else schema.private_texts(table)
        found = {name: "'{}'" if columns[name] == "JSONB" else "''" for name in private}
        if base not in _KEEP_THEIR_EXTDATA and "extdata" in columns:
            found["extdata"] = "'{}'"
        found |= {name: value for name, value in _CHANGED.get(base, {}).items() if name in columns}
        return found


def _text_columns(database: sqlite3.Connection, schema: Schema) -> Iterator[tuple[str, str, str]]:
    """Yield (table, column with ids of texts, table of those texts)."""
    for table in schema.made:
        declared = database.execute(f"PRAGMA source.foreign_key_list({quoted(table)})").fetchall()
        found = {row[3]: row[2] for row in declared if row[2].startswith("rocpd_string")}
        guid = _GUID.search(table)
        for column in filter(_TEXT_ID.search, schema.columns[table]):
            found.setdefault(column, f"rocpd_string{guid[0] if guid else ''}")
        yield from ((table, column, texts) for column, texts in found.items())


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
