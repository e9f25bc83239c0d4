"""``profpipe.db``: the tables of every run in one SQLite database, and the queries of ``profpipe history``."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe.errors import ConfigError, is_disk_full
from profpipe.results import atomic, budget, schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

FILE = "profpipe.db"

#: The number that SQLite keeps in the file as ``user_version``. Increase it where a table changes.
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
#: Tables that a message names.
_MOST_NAMED: Final = 4

#: In the folder of a run that could not be stored: its name.
_MISSING: Final = Path("raw") / "not-in-history"
#: Endings of the files that SQLite writes beside the database.
_COMPANIONS: Final = ("-journal", "-wal", "-shm")
#: The last bytes of a journal that names another journal, which SQLite would remove wherever it lies. profpipe changes
#: one database at a time, and then there is none.
_NAMES_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
#: A run may take the budget of its database once more for so many rows, which take a fifth of it.
_ROWS: Final = 100_000
#: SQLITE_BUSY and SQLITE_LOCKED.
_LOCKED: Final = re.compile(r"database( table| schema)? is locked", re.IGNORECASE)

_RUNS = """
select r.*, count(c.run) as cases, coalesce(sum(c.status = 'ok'), 0) as ok
from (select * from runs order by started desc, run desc limit ?) r left join cases c using (run)
group by r.run
order by r.started desc, r.run desc
"""

#: The median times without a profiler of cases that did not fail, with the parameters of the case. A command without
#: steps has the wall time of its process only.
_TIMES = """
select m.workload, m."case", r.run, r.name, r.started, r.device, r.driver, r.torch, r.git_commit, m.value,
  max(c.params) as params
from metrics m join runs r using (run)
left join cases c
  on c.run = m.run and c.workload = m.workload and c."case" = m."case" and c.profiler = m.profiler
where m.profiler = 'plain' and m.subject = '' and r.run in ({runs}) and (m.metric = 'time' or (
  m.metric = 'process_wall' and not exists (
    select 1 from metrics t where t.run = m.run and t.workload = m.workload and t."case" = m."case"
    and t.profiler = 'plain' and t.subject = '' and t.metric = 'time')))
group by m.rowid
having coalesce(sum(c.status in ({failed})), 0) = 0
order by m.workload, m."case", r.started, r.run
"""

_FINGERPRINTS = 'select run, workload, "case", fingerprint from fingerprints where run in ({runs})'


def store_run(out: Path, folder: Path, data: Tables, manifest: Manifest) -> None:
    """Store the tables of a run in the database of the results folder. They replace earlier rows of the run."""
    rows = sum(len(getattr(data, table.name)) for table in schema.ALL)
    with connect(out, rows) as database, database.conn:
        # One transaction: a disk that fails leaves no run without its cases.
        database.execute("begin immediate")
        database["runs"].upsert(_describe_run(folder.name, manifest), pk="run")
        for table in schema.ALL:
            _replace(database, table, folder.name, getattr(data, table.name))
        database["fingerprints"].delete_where("run = ?", [folder.name])
        database["fingerprints"].insert_all(_fingerprints(folder.name, data, manifest))


def _describe_run(run: str, manifest: Manifest) -> dict[str, Any]:
    """Return the row of a run in the table ``runs``."""
    device, driver = manifest.device
    named = {"run": run, "name": manifest.name, "started": manifest.started, "ended": manifest.ended}
    torch = manifest.packages.get("torch") or ""
    return {**named, "device": device, "driver": driver, "torch": torch, "git_commit": manifest.git.commit}


def _fingerprints(run: str, data: Tables, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield for each case a hash of all that its times without a profiler depend on, and which row has such a time.

    That row is the first process where several repeat the case. A job that another run measured is no new sample.
    """
    keys: dict[tuple[str, str], list[str]] = {}
    for job in manifest.jobs:
        for case in job.cases if job.profiler == "plain" else ():
            keys.setdefault((job.workload, case), []).append("" if job.reused_from else job.key)
    times = data.metrics[(data.metrics["profiler"] == "plain") & data.metrics["metric"].isin(schema.TIMES)]
    known: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for workload, case, metric, subject in times[["workload", "case", "metric", "subject"]].itertuples(index=False):
        known.setdefault((workload, case), set()).add((metric, subject))
    for key, own in keys.items():
        rows = known.get(key, set())
        places = [(metric, subject) for metric in schema.TIMES for subject in (f"{schema.PROCESS_PREFIX}1", "")]
        place = next((each for each in places if each in rows), None)
        if place and all(own):
            text = "\n".join(sorted(own))
            fingerprint = hashlib.sha256(text.encode()).hexdigest()[:32]
            named = dict(zip(("workload", "case", "metric", "subject"), (*key, *place), strict=True))
            yield {"run": run, **named, "fingerprint": fingerprint}


def mark_missing(folder: Path) -> None:
    """Note in the run's ``folder`` that it could not be stored, so that the next command stores it."""
    (folder / "raw").mkdir(exist_ok=True)
    atomic.write_text(folder / _MISSING, folder.name)


def find_missing(out: Path) -> list[Path]:
    """Return the folders of the runs that could not be stored. A copy of such a run is none of them."""
    marks = (path for path in out.glob(f"[!.]*/{_MISSING}") if path.is_file() and not path.is_symlink())
    folders = (path.parents[1] for path in sorted(marks) if path.read_bytes() == os.fsencode(path.parents[1].name))
    return [folder for folder in folders if not folder.is_symlink()]


def unmark(folder: Path) -> None:
    """Remove the note of ``mark_missing``."""
    atomic.remove(folder / _MISSING)


@contextmanager
def connect(out: Path, rows: int = 0) -> Iterator[Any]:
    """Open the database of a results folder, which is made where there is none.

    The budget of the file is for everything until the database is closed; ``rows`` is how many rows will be written.
    Raises ConfigError where the file is no database of profpipe or one of another version, or the budget is spent.
    """
    import sqlite_utils

    path, database = out / FILE, None
    _check_files(path)
    try:
        database = sqlite_utils.Database(path)
        with budget.limit(path, 1 + rows / _ROWS), budget.interrupting(database.conn):
            _prepare(database, path)
            yield database
    except budget.TooLarge as error:
        raise ConfigError(str(path), f"is more than profpipe reads: {error}.", "Move it away.") from None
    except sqlite3.DatabaseError as error:
        if is_disk_full(str(error)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        if _LOCKED.search(str(error)):
            raise ConfigError(str(path), "is in use by another program.", "Try again when that has ended.") from None
        raise ConfigError(str(path), f"cannot be used: {error}.", "Move it away.") from None
    finally:
        if database is not None:
            database.close()


def _prepare(database: Any, path: Path) -> None:
    """Create the tables of a new database. Raises ConfigError for a database that this version did not make."""
    _check_schema(database, path)
    wanted = {
        **_COMMON,
        **{table.name: {column.name: _TYPES[column.dtype] for column in table.columns} for table in schema.ALL},
    }
    # The version is read last: another process may create the tables meanwhile.
    is_new, version = not database.table_names(), database.execute("pragma user_version").fetchone()[0]
    if is_new and version == 0:
        with database.conn:
            # Another process may create the same database: wait for it, then look at what it left to do.
            database.execute("begin immediate")
            for name, columns in wanted.items() if not database.table_names() else ():
                _create(database, name, columns)
            database.execute(f"pragma user_version = {VERSION}")
        version = VERSION
    known, names = {name: _columns(database, name) for name in wanted}, sorted(database.table_names())
    if names and not {"run", "name", "started", "ended"} <= known["runs"]:
        what = f"is a database of another program: it has the tables {', '.join(names[:_MOST_NAMED])}."
        raise ConfigError(str(path), what, "Move it away, or choose another --out.")
    if version != VERSION or any(not set(columns) <= known[name] for name, columns in wanted.items()):
        what = f"is of another version of profpipe (schema {version}; this one writes {VERSION})."
        raise ConfigError(str(path), what, "Use that version, or move the file away: the next run makes a new one.")


def _check_schema(database: Any, path: Path) -> None:
    """Raise ConfigError for what profpipe never makes: SQLite would run its code while it reads or writes a table."""
    for kind, name, sql in database.execute("select type, name, sql from sqlite_master"):
        if sql is not None and not _PLAIN.fullmatch(" ".join(str(sql).split())):
            what = f"is not what profpipe wrote: the {kind} {str(name)[:80]} is none of its tables and indexes."
            raise ConfigError(str(path), what, "Move the file away, or choose another --out.")


def _columns(database: Any, table: str) -> set[str]:
    return set(database[table].columns_dict) if database[table].exists() else set()


def _create(database: Any, name: str, columns: dict[str, type]) -> None:
    table = database[name]
    table.create(columns, pk=_KEYS.get(name))
    of_tables = () if name in _COMMON else (("run", "workload", "case"),)
    for index in _INDEXES.get(name, of_tables):
        table.create_index(index)


def _check_files(path: Path) -> None:
    """Raise ConfigError where SQLite would change a file outside of the folder of the database ``path``."""
    for suffix in ("", *_COMPANIONS):
        atomic.check_regular(path.with_name(path.name + suffix))
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists() and journal.read_bytes().endswith(_NAMES_JOURNAL):
        what = "names another file, which SQLite would remove: profpipe did not write it."
        raise ConfigError(str(journal), what, f"Move it and {path.name} away.")


def _replace(database: Any, table: schema.Table, run: str, frame: pd.DataFrame) -> None:
    target = database[table.name]
    target.delete_where("run = ?", [run])
    # SQLite knows None, not pandas' NA.
    rows = frame.astype(object).where(frame.notna(), None).assign(run=run)
    target.insert_all(rows.to_dict("records"))


def read_history(out: Path, last: int = 10) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the last runs, newest first, and the times of each case in these runs, oldest first.

    A time is the median in ns without a profiler, of a case that did not fail. A run without times is among the runs
    alone. If runs measured one case with other values of parameters that its name does not hold, the case appears once
    for each set of values, and its name shows the values.
    """
    path = out / FILE
    if not path.is_file():
        raise ConfigError(str(path), "does not exist yet.", "The first `profpipe run` creates it.")
    with connect(out) as database:
        runs = list(database.query(_RUNS, [last]))
        names = [row["run"] for row in runs]
        query = _TIMES.format(runs=_placeholders(names), failed=_placeholders(schema.FAILED))
        times = list(database.query(query, [*names, *schema.FAILED]))
        # Joined here: the index of the table finds all rows of a run for each of its times.
        rows = database.execute(_FINGERPRINTS.format(runs=_placeholders(names)), names)
        known = {tuple(key): fingerprint for *key, fingerprint in rows}
        for row in times:
            row["fingerprint"] = known.get((row["run"], row["workload"], row["case"]))
    try:
        _check_types([*runs, *times])
        return runs, _distinguish(times)
    except ValueError as error:
        raise ConfigError(str(path), f"cannot be used: {error}.", "Move it away.") from None


#: Columns that are no text. SQLite stores any value in any column.
_NUMBERS: Final = ("value", "cases", "ok")


def _check_types(rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError for a value that profpipe did not write."""
    for row in rows:
        for name, value in row.items():
            fits = isinstance(value, (int, float) if name in _NUMBERS else str)
            if not fits and (value is not None or name == "run"):
                raise ValueError(f"column {name} holds a {type(value).__name__}")


def _placeholders(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))


def _distinguish(times: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ``times``, which are ordered by case, with a name for each set of a case's parameters."""
    found: list[dict[str, Any]] = []
    for _, group in itertools.groupby(times, key=lambda row: (row["workload"], row["case"])):
        rows = [{**row, "params": budget.load_json(row["params"] or "{}")} for row in group]
        if wrong := next((row["params"] for row in rows if not isinstance(row["params"], dict)), None):
            raise ValueError(f"parameters are a {type(wrong).__name__}")
        # Files that `profpipe ingest` read have no parameters.
        known = [row["params"] for row in rows if row["params"]]
        names = dict.fromkeys(name for params in known for name in params)
        differing = [name for name in names if any(params.get(name) != known[0].get(name) for params in known)]
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            params = row.pop("params")
            values = ", ".join(f"{name} {params[name]}" for name in differing if name in params)
            row["case_id"] = row["case"]
            row["case"] += f" ({values})" if values else ""
            by_name.setdefault(row["case"], []).append(row)
        found += itertools.chain.from_iterable(by_name.values())
    return found
