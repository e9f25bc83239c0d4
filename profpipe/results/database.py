"""``profpipe.db``: the tables of every run in one SQLite database, and the queries of ``profpipe history``."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.errors import ConfigError, is_disk_full
from profpipe.results import schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

FILE = "profpipe.db"

_RUNS = """
select r.*, count(c.run) as cases, coalesce(sum(c.status = 'ok'), 0) as ok
from (select * from runs order by started desc, run desc limit ?) r left join cases c using (run)
group by r.run
order by r.started desc, r.run desc
"""

#: The median times without a profiler of cases that did not fail, with the parameters of the case. A command without
#: steps has the wall time of its process only.
_TIMES = """
select m.workload, m."case", r.run, r.started, m.value, max(c.params) as params
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


#: How far pairs of the same code lie apart in each A-A run: the noise that a difference must exceed.
_SPREADS = "spreads"

#: The variance of all pairs of a case, each run with the weight of its pairs.
_READ_SPREADS = """
select workload, "case", sum(pairs * spread * spread) / sum(pairs) as variance
from spreads where name = ? and device = ? and driver = ?
group by workload, "case"
"""


def store_spreads(out: Path, run: str, manifest: Manifest, spreads: Iterable[tuple[str, str, int, float]]) -> None:
    """Store the spreads of an A-A run, in place of earlier ones of the run.

    ``spreads`` are (workload, case, pairs, spread as a ratio minus 1). They hold for this pipeline, GPU and driver.
    """
    device, driver = manifest.device
    key = {"run": run, "name": manifest.name, "device": device, "driver": driver}
    names = ("workload", "case", "pairs", "spread")
    with _open(out / FILE) as database, database.conn:
        database[_SPREADS].upsert_all(
            ({**key, **dict(zip(names, row, strict=True))} for row in spreads), pk=("run", "workload", "case")
        )


def read_spreads(out: Path, manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return by workload and case how far pairs of the same code lie apart, by A-A runs on this GPU and driver."""
    path = out / FILE
    found: dict[str, dict[str, float]] = {}
    if not path.is_file():
        return found
    with _open(path) as database:
        if database[_SPREADS].exists():
            for row in database.query(_READ_SPREADS, [manifest.name, *manifest.device]):
                found.setdefault(row["workload"], {})[row["case"]] = math.sqrt(row["variance"])
    return found


def store_run(out: Path, folder: Path, data: Tables, manifest: Manifest) -> None:
    """Store the tables of a run in the database of the results folder. They replace earlier rows of the run."""
    with _open(out / FILE) as database, database.conn:
        row = {"run": folder.name, "name": manifest.name, "started": manifest.started, "ended": manifest.ended}
        database["runs"].upsert(row, pk="run")
        for table in (each for each in schema.ALL if not each.is_picture):
            _replace(database, table, folder.name, getattr(data, table.name))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    import sqlite_utils

    database = None
    try:
        database = sqlite_utils.Database(path)
        yield database
    except sqlite3.DatabaseError as error:
        if is_disk_full(str(error)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        raise ConfigError(str(path), f"cannot be used: {error}.", "Move it away.") from None
    finally:
        if database is not None:
            database.close()


def _replace(database: Any, table: schema.Table, run: str, frame: pd.DataFrame) -> None:
    types = {"str": str, "Int64": int, "Float64": float}
    target = database[table.name]
    if not target.exists():
        target.create({column.name: types[column.dtype] for column in table.columns})
        target.create_index(["run", "workload", "case"])
    target.delete_where("run = ?", [run])
    # SQLite knows None, not pandas' NA.
    rows = frame.astype(object).where(frame.notna(), None).assign(run=run)
    target.insert_all(rows.to_dict("records"))


def read_history(out: Path, last: int = 10) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the last runs, newest first, and the times of each case in these runs, oldest first.

    A time is the median in ns without a profiler, of a case that did not fail. A run without times is among the runs
    alone. If runs measured one case with other values of parameters that its name does not hold, the case appears once
    for each set of values, and its name tells them apart.
    """
    path = out / FILE
    if not path.is_file():
        raise ConfigError(str(path), "does not exist yet.", "The first `profpipe run` creates it.")
    with _open(path) as database:
        runs = list(database.query(_RUNS, [last]))
        names = [row["run"] for row in runs]
        query = _TIMES.format(runs=_placeholders(names), failed=_placeholders(schema.FAILED))
        times = list(database.query(query, [*names, *schema.FAILED]))
    return runs, _distinguish(times)


def _placeholders(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))


def _distinguish(times: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ``times``, which are ordered by case, with a name for each set of a case's parameters."""
    found: list[dict[str, Any]] = []
    for _, group in itertools.groupby(times, key=lambda row: (row["workload"], row["case"])):
        rows = [{**row, "params": json.loads(row["params"] or "{}")} for row in group]
        # Files that `profpipe ingest` read have no parameters.
        known = [row["params"] for row in rows if row["params"]]
        names = dict.fromkeys(name for params in known for name in params)
        differing = [name for name in names if any(params.get(name) != known[0].get(name) for params in known)]
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            params = row.pop("params")
            values = ", ".join(f"{name} {params[name]}" for name in differing if name in params)
            row["case"] += f" ({values})" if values else ""
            by_name.setdefault(row["case"], []).append(row)
        found += itertools.chain.from_iterable(by_name.values())
    return found
