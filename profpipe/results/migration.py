"""The tables of ``profpipe.db``, and the steps that bring a database of an earlier version up to date."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from profpipe.errors import ConfigError
from profpipe.results import schema
from profpipe.results.manifest import Manifest

#: The number that SQLite keeps in the file as ``user_version``. Increase it where a table changes in another way than
#: by a new column. Databases before 0.2 have 0.
VERSION: Final = 1

_TYPES: Final = {"str": str, "Int64": int, "Float64": float}

#: Tables of the whole results folder, by name: their columns.
_COMMON: Final[dict[str, dict[str, type]]] = {
    "runs": dict.fromkeys(("run", "name", "started", "ended", "device", "driver", "torch", "git_commit"), str),
    #: Of each case of a run: a hash of what its time depends on, and which row of `metrics` has the time.
    "fingerprints": dict.fromkeys(("run", "workload", "case", "metric", "subject", "fingerprint"), str),
    "noise": {
        **dict.fromkeys(("source", "origin", "workload", "case", "name", "device", "driver", "run"), str),
        "n": int,
        "degrees": float,
        "spread": float,
    },
}
_KEYS: Final = {
    "runs": ("run",),
    "noise": ("source", "origin", "workload", "case", "name", "device", "driver"),
}
NOISE_KEY: Final = _KEYS["noise"]
_INDEXES: Final = {"fingerprints": (("run",), ("fingerprint",))}

_NAME: Final = r"""(?:\w+|"[^"]+"|\[[^]]+\])"""
_NAMES: Final = rf"\( *{_NAME}(?:, *{_NAME})* *\)"
_COLUMN: Final = rf"{_NAME}(?: (?:TEXT|INTEGER|FLOAT|REAL))?(?: PRIMARY KEY)?"
#: A table or an index without anything that SQLite computes: no check, default, generated column or expression. White
#: space counts as one space.
_PLAIN: Final = re.compile(
    rf"CREATE TABLE {_NAME} ?\( ?{_COLUMN}(?:, ?{_COLUMN})*(?:, ?PRIMARY KEY {_NAMES})? ?\)"
    rf"|CREATE INDEX {_NAME} ON {_NAME} ?{_NAMES}",
    re.IGNORECASE,
)

#: Earlier versions kept A-A pairs alone, as a median distance to 0 (efficiency 0.37).
_MOVE_SPREADS: Final = """
insert or replace into noise (source, origin, workload, "case", name, device, driver, run, n, degrees, spread)
select 'pairs', run, workload, "case", name, device, driver, run, pairs, 0.37 * pairs, spread from spreads
"""


def migrate(database: Any, path: Path) -> None:
    """Create the tables and columns that are missing. Raises ConfigError for a database that is not profpipe's."""
    version = database.execute("pragma user_version").fetchone()[0]
    _check_schema(database, path)
    names = set(database.table_names())
    if version > VERSION:
        what = f"is of a later version of profpipe (schema {version}; this one knows {VERSION})."
        raise ConfigError(str(path), what, "Update profpipe, or move the file away.")
    if names and not {"run", "name", "started", "ended"} <= _columns(database, "runs"):
        what = f"is a database of another program: it has the tables {', '.join(sorted(names)[:_MOST_NAMED])}."
        raise ConfigError(str(path), what, "Move it away, or choose another --out.")
    wanted = {
        **_COMMON,
        **{table.name: {column.name: _TYPES[column.dtype] for column in table.columns} for table in schema.ALL},
    }
    if version == VERSION and not any(_find_lacking(database, wanted).values()):
        return
    with database.conn:
        # Another process may change the same database: wait for it, then look at what it left to do.
        database.execute("begin immediate")
        names, lacking = set(database.table_names()), _find_lacking(database, wanted)
        for name, columns in wanted.items():
            _complete(database, name, columns, lacking[name])
        if "device" in lacking["runs"] and "runs" in names:
            # The machine and the commit of runs that an earlier version stored, where their folders still exist.
            for (run,) in database.execute("select run from runs").fetchall():
                with suppress(ConfigError):
                    database["runs"].upsert(describe_run(run, Manifest.load(path.parent / run)), pk="run")
        if "spreads" in names:
            database.execute(_MOVE_SPREADS)
            database["spreads"].drop()
        database.execute(f"pragma user_version = {VERSION}")


def _check_schema(database: Any, path: Path) -> None:
    """Raise ConfigError for what profpipe never makes: SQLite would run its code while it reads or writes a table."""
    for kind, name, sql in database.execute("select type, name, sql from sqlite_master"):
        if sql is not None and not _PLAIN.fullmatch(" ".join(str(sql).split())):
            what = f"is not what profpipe wrote: the {kind} {str(name)[:80]} is none of its tables and indexes."
            raise ConfigError(str(path), what, "Move the file away, or choose another --out.")


def _find_lacking(database: Any, wanted: dict[str, dict[str, type]]) -> dict[str, set[str]]:
    return {name: set(columns) - _columns(database, name) for name, columns in wanted.items()}


def describe_run(run: str, manifest: Manifest) -> dict[str, Any]:
    """Return the row of a run in the table ``runs``."""
    device, driver = manifest.device
    named = {"run": run, "name": manifest.name, "started": manifest.started, "ended": manifest.ended}
    torch = manifest.packages.get("torch") or ""
    return {**named, "device": device, "driver": driver, "torch": torch, "git_commit": manifest.git.commit}


#: Tables that a message names.
_MOST_NAMED: Final = 4


def _columns(database: Any, table: str) -> set[str]:
    return set(database[table].columns_dict) if database[table].exists() else set()


def _complete(database: Any, name: str, columns: dict[str, type], lacking: set[str]) -> None:
    table = database[name]
    if table.exists():
        for column in columns:
            if column in lacking:
                table.add_column(column, columns[column])
        return
    table.create(columns, pk=_KEYS.get(name))
    of_tables = () if name in _COMMON else (("run", "workload", "case"),)
    for index in _INDEXES.get(name, of_tables):
        table.create_index(index)
