"""``profpipe.db``: the cases and verdicts of all runs, the noise of cases, and the queries of ``profpipe history``."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe.errors import ConfigError, is_disk_full
from profpipe.results import atomic, budget, schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

FILE = "profpipe.db"

#: The number that SQLite keeps in the file as ``user_version``. Increase it where a table changes.
VERSION: Final = 2

_TYPES: Final = {"str": str, "Int64": int, "Float64": float}
_KEY: Final = ["workload", "case"]
NOISE_KEY: Final = ("source", "origin", "workload", "case", "name", "device", "driver")


def _columns(table: schema.Table) -> dict[str, type]:
    return {column.name: _TYPES[column.dtype] for column in table.columns}


#: The tables: their columns, primary key and indexes. Of each case of a run ``cases`` has the times in ns without a
#: profiler, of the case and of the first process that repeats it, and a hash of what they depend on.
_TABLES: Final[dict[str, tuple[dict[str, type], tuple[str, ...] | None, tuple[tuple[str, ...], ...]]]] = {
    "runs": (
        dict.fromkeys(("run", "name", "started", "ended", "device", "driver", "torch", "git_commit"), str),
        ("run",),
        (),
    ),
    "cases": (
        {**_columns(schema.CASES), "time_ns": float, "first_ns": float, "fingerprint": str},
        None,
        (("run", "workload", "case"), ("fingerprint",)),
    ),
    "verdicts": (_columns(schema.VERDICTS), None, (("run", "workload", "case"),)),
    "noise": (
        {**dict.fromkeys((*NOISE_KEY, "run"), str), "n": int, "degrees": float, "spread": float},
        NOISE_KEY,
        (),
    ),
}

#: In the folder of a run that could not be stored: its name.
_MISSING: Final = Path("raw") / "not-in-history"
#: Endings of the files that SQLite writes beside the database.
_COMPANIONS: Final = ("-journal", "-wal", "-shm")
#: The last bytes of a journal that names another journal, which SQLite would remove wherever it lies. profpipe changes
#: one database at a time, and then there is none.
_NAMES_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
#: SQLITE_BUSY and SQLITE_LOCKED.
_LOCKED: Final = re.compile(r"database( table| schema)? is locked", re.IGNORECASE)
#: Tables that a message names.
_MOST_NAMED: Final = 4

_RUNS = """
select r.*, count(c.run) as cases, coalesce(sum(c.status = 'ok'), 0) as ok
from (select * from runs order by started desc, run desc limit ?) r left join cases c using (run)
group by r.run
order by r.started desc, r.run desc
"""

_TIMES = """
select c.workload, c."case", r.run, r.name, r.started, r.device, r.driver, r.torch, r.git_commit, c.time_ns as value,
  c.params, c.fingerprint
from cases c join runs r using (run)
where c.time_ns is not null and c.status not in ({failed}) and r.run in ({runs})
order by c.workload, c."case", r.started, r.run
"""


def store_run(out: Path, folder: Path, data: Tables, manifest: Manifest) -> None:
    """Store a run in the database of the results folder, in place of earlier rows of the run."""
    device, driver = manifest.device
    about = {"name": manifest.name, "started": manifest.started, "ended": manifest.ended, "device": device}
    about |= {"driver": driver, "torch": manifest.packages.get("torch") or "", "git_commit": manifest.git.commit}
    with connect(out) as database, database.conn:
        # One transaction: a disk that fails leaves no run without its cases.
        database.execute("begin immediate")
        database["runs"].upsert({"run": folder.name, **about}, pk="run")
        for name, frame in (("cases", _cases(data, manifest)), ("verdicts", data.verdicts)):
            database[name].delete_where("run = ?", [folder.name])
            # SQLite knows None, not pandas' NA.
            rows = frame.astype(object).where(frame.notna(), None).assign(run=folder.name)
            database[name].insert_all(rows.to_dict("records"))


def _cases(data: Tables, manifest: Manifest) -> pd.DataFrame:
    """Return the rows of `cases` with their times without a profiler, and what these depend on."""
    times = data.metrics[(data.metrics["profiler"] == "plain") & data.metrics["metric"].isin(schema.TIMES)]
    times = times.assign(place=times["metric"].map(schema.TIMES.index)).sort_values("place", kind="stable")
    is_own, is_first = times["subject"] == "", times["subject"] == f"{schema.PROCESS_PREFIX}1"
    # A case that one process measured has no subject for it.
    first = times[is_own | is_first].assign(is_own=is_own).sort_values(["place", "is_own"], kind="stable")
    columns = {"time_ns": times[is_own].drop_duplicates(_KEY), "first_ns": first.drop_duplicates(_KEY)}
    fingerprints = _fingerprints(manifest)
    keys = data.cases[_KEY].itertuples(index=False, name=None)
    of_cases: Any = [fingerprints.get(key) for key in keys]
    cases = data.cases.assign(fingerprint=of_cases)
    for name, rows in columns.items():
        cases = cases.merge(rows[[*_KEY, "value"]].rename(columns={"value": name}), on=_KEY, how="left")
    is_plain = cases["profiler"] == "plain"
    return cases.assign(**{name: cases[name].where(is_plain) for name in (*columns, "fingerprint")})


def _fingerprints(manifest: Manifest) -> dict[tuple[str, ...], str]:
    """Return, by workload and case, a hash of all that the times of the case without a profiler depend on.

    A job that another run measured is no new sample, and a job without a key may depend on anything.
    """
    keys: dict[tuple[str, ...], list[str]] = {}
    for job in manifest.jobs:
        for case in job.cases if job.profiler == "plain" else ():
            keys.setdefault((job.workload, case), []).append("" if job.reused_from else job.key)
    return {
        case: hashlib.sha256("\n".join(sorted(job_keys)).encode()).hexdigest()[:32]
        for case, job_keys in keys.items()
        if all(job_keys)
    }


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
def connect(out: Path) -> Iterator[Any]:
    """Open the database of a results folder, which is made where there is none.

    The budget of the file is for everything until the database is closed. Raises ConfigError where the file is no
    database of profpipe or one of another version, or the budget is spent.
    """
    import sqlite_utils

    path, database = out / FILE, None
    _check_files(path)
    try:
        database = sqlite_utils.Database(path)
        with budget.limit(path), budget.interrupting(database.conn):
            _prepare(database, path)
            yield database
    except budget.TooLarge as error:
        raise ConfigError(str(path), f"is more than profpipe reads: {error}.", "Move it away.") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if is_disk_full(str(error)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        if _LOCKED.search(str(error)):
            raise ConfigError(str(path), "is in use by another program.", "Try again when that has ended.") from None
        raise ConfigError(str(path), f"cannot be used: {error}.", "Move it away.") from None
    finally:
        if database is not None:
            database.close()


def _check_files(path: Path) -> None:
    """Raise ConfigError where SQLite would change a file outside of the folder of the database ``path``."""
    for suffix in ("", *_COMPANIONS):
        file = path.with_name(path.name + suffix)
        # Another process may end its transaction meanwhile, which removes the journal.
        with suppress(FileNotFoundError, NotADirectoryError):
            atomic.check_regular(file)
            if suffix == "-journal" and file.read_bytes().endswith(_NAMES_JOURNAL):
                what = "names another file, which SQLite would remove: profpipe did not write it."
                raise ConfigError(str(file), what, f"Move it and {path.name} away.")


def _prepare(database: Any, path: Path) -> None:
    """Create the tables of a new database. Raises ConfigError for a database that this version did not make.

    SQLite runs the code of views, triggers and expressions while it reads or writes a table, so nothing may be there
    but what ``_create`` makes.
    """
    if not _described(database) and not _version(database):
        with database.conn:
            # Another process may create the same database: wait for it, then look at what it left to do.
            database.execute("begin immediate")
            if not _described(database):
                _create(database)
    statements, version = _described(database), _version(database)
    if statements == _expected() and version == VERSION:
        return
    names = sorted(name for kind, name in statements if kind == "table")
    runs = statements.get(("table", "runs")) or ""
    if statements and not all(name in runs for name in ("run", "name", "started", "ended")):
        what = f"is a database of another program: it has the tables {', '.join(names[:_MOST_NAMED])}."
        raise ConfigError(str(path), what, "Move it away, or choose another --out.")
    what = f"is of another version of profpipe (schema {version}; this one writes {VERSION})."
    raise ConfigError(str(path), what, "Use that version, or move the file away: the next run makes a new one.")


def _described(database: Any) -> dict[tuple[str, str], str | None]:
    """Return the statement that made each table, index, view and trigger of the database."""
    rows = database.execute("select type, name, sql from sqlite_master").fetchall()
    return {(str(kind), str(name)[:80]): sql for kind, name, sql in rows}


def _version(database: Any) -> int:
    return int(database.execute("pragma user_version").fetchone()[0])


@functools.cache
def _expected() -> dict[tuple[str, str], str | None]:
    """Return what ``_described`` returns of a new database."""
    import sqlite_utils

    database = sqlite_utils.Database(memory=True)
    _create(database)
    return _described(database)


def _create(database: Any) -> None:
    for name, (columns, key, indexes) in _TABLES.items():
        table = database[name].create(columns, pk=key)
        for index in indexes:
            table.create_index(index)
    database.execute(f"pragma user_version = {VERSION}")


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
        times = list(database.query(query, [*schema.FAILED, *names]))
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
    """Return ``times``, which are ordered by case, with a name per set of a case's parameters."""
    named_rows: list[dict[str, Any]] = []
    for _, group in itertools.groupby(times, key=lambda row: (row["workload"], row["case"])):
        rows = [{**row, "params": budget.load_json(row["params"] or "{}")} for row in group]
        if wrong := next((row["params"] for row in rows if not isinstance(row["params"], dict)), None):
            raise ValueError(f"parameters are a {type(wrong).__name__}")
        # Files that `profpipe ingest` read have no parameters.
        parameter_sets = [row["params"] for row in rows if row["params"]]
        names = dict.fromkeys(name for params in parameter_sets for name in params)
        differing = [
            name for name in names if any(params.get(name) != parameter_sets[0].get(name) for params in parameter_sets)
        ]
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            params = row.pop("params")
            values = ", ".join(f"{name} {params[name]}" for name in differing if name in params)
            row["case_id"] = row["case"]
            row["case"] += f" ({values})" if values else ""
            by_name.setdefault(row["case"], []).append(row)
        named_rows += itertools.chain.from_iterable(by_name.values())
    return named_rows
