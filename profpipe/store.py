"""``out/<run>/`` and the history database. Every file is written beside its place and renamed: whole or not at all."""

from __future__ import annotations

import csv
import errno
import fcntl
import functools
import itertools
import json
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe import tables
from profpipe.concerns import has_failed
from profpipe.errors import ConfigError, lacks_room
from profpipe.tables import Tables

DATABASE = "profpipe.db"
#: For nobody else to read: with it, what is hashed into the records of the runs beside it could be tried out.
_SALT = ".salt"

#: Before pandas 3.1 numbers are read with an error in the last digit, and what a resumed run reads it writes again.
_EXACT: Any = {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}


#: The last row of a table is looked for in so many bytes.
_TAIL_BYTES = 1 << 16
#: Which columns hold JSON, and of what kind.
_JSON: Mapping[str, type] = {"params": dict, "flags": list}
_JSON_WORDS: Mapping[type, str] = {dict: "mapping", list: "list"}
#: How the name of a run's folder begins.
_TIME = re.compile(r"\d{8}T\d{6}Z")
_MEND = "Put back the file as it was written; where there is no copy, start the run again."


def folder_name(name: str, now: datetime) -> str:
    return f"{now:%Y%m%dT%H%M%SZ}-{name}"


def new_folder(out: Path, name: str, now: datetime, fill: Callable[[Path], object]) -> Path:
    """Makes ``out/<UTC time>-<name>/`` with what ``fill`` writes into it, and points ``out/latest`` at it.

    The folder appears with its content or not at all, so that each one that is there can be resumed.
    """
    _check_latest(out)
    stem = folder_name(name, now)
    beside = out / f".{stem}-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        fill(beside)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        why = error.strerror or str(error)
        raise ConfigError(str(out), f"cannot hold results: {why}.", "Nothing was run. Choose another --out.") from None
    for number in range(1, 1000):
        folder = out / (stem if number == 1 else f"{stem}-{number}")
        try:
            beside.rename(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            continue  # a run of the same name was started in the same second
        _point(out / "latest", folder)
        return folder
    raise ConfigError(str(out), f"holds a thousand runs named {stem}.", "Choose another --out.")


def _check_latest(out: Path) -> None:
    """Raises ConfigError where ``out/latest`` is a folder, as after ``cp -rL``: no link can take its place."""
    latest = out / "latest"
    if latest.is_dir() and not latest.is_symlink():
        remedy = "Rename it, or remove it if it is a copy of a run beside it."
        raise ConfigError(str(latest), "is a folder, and a link to the newest run has to stand there.", remedy)


def point_latest(out: Path) -> None:
    """Points ``out/latest`` at the newest run."""
    _check_latest(out)
    _point(out / "latest", newest_first(out)[0])


def _runs(out: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folders of runs below ``out`` with their records, but for those whose record is damaged.

    One whose name begins with a dot was never finished being made; one whose record tells of no jobs holds what
    ``profpipe ingest`` read.
    """
    for path in out.glob("*/run.json"):
        if path.parent.is_symlink() or path.parent.name.startswith("."):
            continue
        try:
            record = read_record(path.parent)
        except ConfigError:
            continue
        if "jobs" in record:
            yield path.parent, record


def _age(folder: Path, record: Mapping[str, Any]) -> tuple[str, bool, int, str]:
    """Sorts runs by age: by when they were started, then by the number that those of one second carry.

    A copy under another name is older than what it is a copy of.
    """
    time, _, name = folder.name.partition("-")
    number = re.search(r"-(\d+)$", name)
    return str(record.get("started") or ""), bool(_TIME.fullmatch(time)), int(number[1]) if number else 1, folder.name


def _point(link: Path, folder: Path) -> None:
    beside = link.with_name(f".{link.name}-{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.name, target_is_directory=True)
    beside.replace(link)


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Calls ``fill`` with a path beside ``path`` and renames the result into place."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        fill(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """As ``write``; nobody else may read the file, at no time."""

    def fill(beside: Path) -> None:
        beside.touch(mode=0o600)  # before there is anything to read
        beside.write_bytes(content)

    write(path, fill)


def salt(out: Path) -> bytes:
    """Random bytes that belong to the results folder ``out``, made when they are first asked for.

    Empty where they may not be read, for the folder is somebody else's.
    """
    path = out / _SALT
    beside = path.with_name(f"{_SALT}.{secrets.token_hex(4)}")
    try:
        if not path.exists():
            write_private(beside, secrets.token_bytes(32))
            _link_if_free(beside, path)
        return path.read_bytes()
    except PermissionError:
        return b""
    finally:
        beside.unlink(missing_ok=True)


def _link_if_free(source: Path, target: Path) -> None:
    """Of two runs that begin together the first one's file stands."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        source.replace(target)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While entered, no other profpipe works on the run in ``folder``; raises ConfigError where one does already.

    The kernel gives the lock back when this process dies, however it dies.
    """
    with (folder / "raw" / "lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(str(folder), "another profpipe is at work on this run.", "Wait until it ends.") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise  # these say that the file system has no locks: some that clusters use have none
        yield


def tidy(folder: Path) -> None:
    """Removes what a kill left of files that were being written."""
    for half in folder.glob(".*-[0-9]*"):
        half.unlink()


def save(folder: Path, data: Tables, record: Mapping[str, Any], stored: Tables | None = None) -> None:
    """The four tables as CSV, and then ``run.json``: what that says is done is in the tables.

    Tables that are the same objects as in ``stored`` are there already and not written again.
    """
    for table in tables.ALL:
        frame: pd.DataFrame = getattr(data, table.name)
        if stored is None or frame is not getattr(stored, table.name):
            write(folder / f"{table.name}.csv", functools.partial(_write_csv, frame))
    save_record(folder, record)


def save_parquet(folder: Path, data: Tables) -> None:
    """The four tables once more, with their types; made once, when a run has ended."""
    for table in tables.ALL:
        frame: pd.DataFrame = getattr(data, table.name)
        write(folder / f"{table.name}.parquet", functools.partial(frame.to_parquet, index=False))


def save_record(folder: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=1, default=str) + "\n"
    write(folder / "run.json", lambda path: path.write_text(text, encoding="utf-8"))


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    """The bytes that ``frame.to_csv(path, index=False)`` writes, in two thirds of its time."""
    columns = (
        frame[name].tolist()
        if frame[name].dtype == object
        else frame[name].to_numpy(dtype=object, na_value="").tolist()
        for name in frame.columns
    )
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(frame.columns)
        writer.writerows(zip(*columns, strict=True))


def load(folder: Path) -> tuple[Tables, dict[str, Any]]:
    """What ``save`` wrote. The CSV files are read, for they are what a person may have corrected."""
    record = read_record(folder)
    version = record.get("schema_version")
    if version != tables.SCHEMA_VERSION:
        reads = f"this profpipe reads schema {tables.SCHEMA_VERSION}."
        raise ConfigError(str(folder), f"was written with schema {version};", reads)
    cases, kernels, ranges, metrics = (_read(folder / f"{table.name}.csv", table, record) for table in tables.ALL)
    return Tables(cases, kernels, ranges, metrics), record


def read_record(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(str(folder), "is not a run: it has no run.json.", "Name a folder below out/.") from None
    except ValueError as error:
        raise ConfigError(str(path), f"is not JSON: {error}.") from None
    if not isinstance(record, dict):
        raise ConfigError(str(path), "is not a run's record.")
    return record


def _read(path: Path, table: tables.Table, record: Mapping[str, Any]) -> pd.DataFrame:
    if not path.is_file():
        return _read_parquet(path, table, record)
    # Text stays text: a kernel named "nan" or a workload named "1" is not a number.
    # float64 and not Float64, which pandas 2 reads by way of text, with an error in the last digit.
    as_read = {"str": "object", "Float64": "float64"}
    types = {column.name: as_read.get(column.dtype, column.dtype) for column in table.columns}
    missing = {name: [""] for name, dtype in types.items() if dtype != "object"}
    try:
        _check_end(path)
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=missing, **_EXACT)
        _check_json(frame)
        return tables.frame(table, frame)
    except (ValueError, csv.Error, pd.errors.ParserError) as error:
        raise ConfigError(str(path), f"is not the table that profpipe wrote: {error}.", _MEND) from None


def _read_parquet(absent: Path, table: tables.Table, record: Mapping[str, Any]) -> pd.DataFrame:
    """The table whose CSV file is gone, which no table is without: even an empty one has a file."""
    path = absent.with_suffix(".parquet")
    # A run writes it when it ends. Until then it may be of an earlier end, before what a resumed run has added.
    if not (path.is_file() and (record.get("ended") or "jobs" not in record)):
        raise ConfigError(str(absent), "is missing.", _MEND)
    try:
        return tables.frame(table, pd.read_parquet(path))
    except (ValueError, OSError) as error:
        raise ConfigError(str(path), f"cannot be read, and {absent.name} is missing: {error}.", _MEND) from None


def _check_end(path: Path) -> None:
    """Raises ValueError where the file was cut: pandas takes what a row lacks for missing values."""
    with path.open("rb") as stream:
        head = stream.readline()
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = stream.read().decode("utf-8", "replace")
    if tail and not tail.endswith("\n"):
        raise ValueError("it is cut off, for its last line has no end")
    _, whole, last = tail[:-1].rpartition("\n")
    # With an odd number of quotes it is the rest of a text of several lines.
    if whole and last.count('"') % 2 == 0 and len(next(csv.reader([last]), ())) < head.count(b",") + 1:
        raise ValueError("it is cut off, for its last row is too short")


def _check_json(frame: pd.DataFrame) -> None:
    """Raises ValueError that names the cell: a spreadsheet's first row is the head."""
    for name, kind in _JSON.items():
        for row, text in enumerate(frame.get(name, ()), start=2):
            try:
                fits = not text or isinstance(json.loads(text), kind)
            except ValueError as error:
                raise ValueError(f"row {row}, column {name}: {error}") from None
            if not fits:
                raise ValueError(f"row {row}, column {name}: is no JSON {_JSON_WORDS[kind]}")


def resolve(name: str | None, out: Path) -> Path:
    """The folder of a run given by path, by its name below ``out``, or (None) the latest."""
    candidates = [out / "latest"] if name is None else [Path(name), out / name]
    for candidate in candidates:
        if (candidate / "run.json").is_file():
            return candidate.resolve()
    raise ConfigError(str(candidates[0]), "is not a run's folder.", "`profpipe history` lists the runs.")


def newest_first(out: Path) -> list[Path]:
    return [folder for folder, _ in records(out)]


def records(out: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The runs below ``out`` with their records, the newest first, but for those whose record is damaged."""
    yield from sorted(_runs(out), key=lambda run: _age(*run), reverse=True)


def unfinished(out: Path) -> Path:
    """The latest run below ``out`` that has not ended."""
    for folder, record in records(out):
        if not record.get("ended"):
            return folder.resolve()
    raise ConfigError(str(out), "holds no unfinished run.", "`profpipe history` lists the runs.")


# --- history ---------------------------------------------------------------------------------------------------------


def remember(out: Path, folder: Path, data: Tables, record: Mapping[str, Any]) -> None:
    """Puts the run's tables into ``out/profpipe.db``, in place of an earlier state of the same run."""
    with _database(out / DATABASE) as database, database.conn:
        summary = {key: record.get(key) for key in ("name", "started", "ended")}
        database["runs"].upsert({"run": folder.name, **summary}, pk="run")
        for table in tables.ALL:
            _replace(database, table, folder.name, getattr(data, table.name))


@contextmanager
def _database(path: Path) -> Iterator[Any]:
    import sqlite_utils

    database = None
    try:
        database = sqlite_utils.Database(path)
        yield database
    except sqlite3.DatabaseError as error:
        if lacks_room(str(error)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        raise ConfigError(str(path), f"cannot be used: {error}.", "Move it away.") from None
    finally:
        if database is not None:
            database.close()


def _replace(database: Any, table: tables.Table, run: str, frame: pd.DataFrame) -> None:
    types = {"str": str, "Int64": int, "Float64": float}
    target = database[table.name]
    if not target.exists():
        target.create({column.name: types[column.dtype] for column in table.columns})
        target.create_index(["run", "workload", "case"])
    target.delete_where("run = ?", [run])
    # SQLite knows None, not pandas' NA.
    rows = frame.astype(object).where(frame.notna(), None).assign(run=run)
    target.insert_all(rows.to_dict("records"))


def history(out: Path, last: int = 10) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the last runs, newest first; the times of each case in them, oldest first) from the history database.

    A time is the median in ns without a profiler, of a case that did not fail; runs without one are not among the
    times. Times of one case with other parameters than its name holds are of as many cases, each named with what tells
    it from the others.
    """
    path = out / DATABASE
    if not path.is_file():
        raise ConfigError(str(path), "does not exist yet.", "It is made by the first `profpipe run`.")
    with _database(path) as database:
        runs = list(database.query("select * from runs order by started desc, run desc limit ?", [last]))
        marks, names = ",".join("?" * len(runs)), [row["run"] for row in runs]
        times = list(
            database.query(
                'select m.workload, m."case", r.run, r.started, m.value, (select max(c.params) from cases c where'
                ' c.run = m.run and c.workload = m.workload and c."case" = m."case" and c.profiler = m.profiler) params'
                " from metrics m join runs r using (run)"
                f" where m.metric = 'time' and m.profiler = 'plain' and m.subject = '' and r.run in ({marks})"
                ' order by m.workload, m."case", r.started, r.run',
                names,
            )
        )
        ends = database.query(f"select * from cases where profiler = 'plain' and run in ({marks})", names)
        failed = {tuple(row[k] for k in _OWN) for row in ends if has_failed(row["status"], row["reason"])}
        counted = database.query("select run, count(*) cases, sum(status = 'ok') ok from cases group by run")
        counts = {row["run"]: row for row in counted}
    counted_runs = [{**row, **{k: counts.get(row["run"], {}).get(k) for k in ("cases", "ok")}} for row in runs]
    return counted_runs, _told_apart(row for row in times if tuple(row[k] for k in _OWN) not in failed)


#: What names a case in the history.
_OWN = ("run", "workload", "case")


def _told_apart(times: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``times``, which are ordered by case, with a name of its own for each of a case's sets of parameters."""
    told: list[dict[str, Any]] = []
    for _, group in itertools.groupby(times, key=lambda row: (row["workload"], row["case"])):
        rows = [({**row}, json.loads(row["params"] or "{}")) for row in group]
        for row, _ in rows:
            del row["params"]
        # Of files that were read nobody knows them, and they tell nothing apart.
        known = [params for _, params in rows if params]
        names = list(dict.fromkeys(name for params in known for name in params))
        differ = [name for name in names if any(params.get(name) != known[0].get(name) for params in known)]
        named: dict[str, list[dict[str, Any]]] = {}
        for row, params in rows:
            what = ", ".join(f"{name} {params[name]}" for name in differ if name in params)
            named.setdefault(what, []).append({**row, "case": f"{row['case']} ({what})" if what else row["case"]})
        told += [row for alike in named.values() for row in alike]
    return told
