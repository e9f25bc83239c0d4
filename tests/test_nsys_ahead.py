"""The kernels of a large nsys export are read while modules load: the tables and the refusals stay the same."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.ingest import registry
from profpipe.ingest.nsys import ahead, columns, tables
from profpipe.results import schema

EXPORT = Path(__file__).parent / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"


@pytest.fixture(scope="module")
def parser() -> ModuleType:
    return plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A real export whose kernels were recorded many times."""
    path = tmp_path / "large.sqlite"
    shutil.copyfile(EXPORT, path)
    with closing(sqlite3.connect(path)) as database:
        for _ in range(8):
            database.execute(f"INSERT INTO {tables.KERNELS} SELECT * FROM {tables.KERNELS}")
        database.commit()
    assert path.stat().st_size > 5e6
    return path


def test_the_tables_are_those_of_a_file_that_is_read_at_once(parser: ModuleType, large: Path) -> None:
    alone = parser.parse(large)
    with ahead.reading(large):
        assert len(columns.promised) == 1
        beside = parser.parse(large)
        assert not columns.promised
    assert alone.origin == beside.origin and alone.origin.launches > 90_000
    for table in schema.ALL:
        pd.testing.assert_frame_equal(getattr(alone, table.name), getattr(beside, table.name))


def test_a_damaged_file_is_refused_for_the_same_reason(parser: ModuleType, large: Path) -> None:
    content = bytearray(large.read_bytes())
    content[len(content) // 2 : len(content) * 3 // 4] = bytes(len(content) // 4)
    large.write_bytes(content)
    reasons = []
    for reading in (ahead.reading, lambda path: ahead.reading(path / "no such file")):
        with pytest.raises(UnreadableFile) as refused, reading(large):
            registry.parse(parser, large)
        reasons.append(str(refused.value))
    assert reasons[0] == reasons[1] and "damaged or cut short" in reasons[0]


def test_more_memory_than_the_budget_is_refused(
    parser: ModuleType, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFPIPE_BUDGET", "0.001")
    with ahead.reading(large), pytest.raises(UnreadableFile, match="more than profpipe reads: to read it takes more"):
        registry.parse(parser, large)


def test_a_file_that_is_refused_before_is_not_read_to_the_end(large: Path) -> None:
    before = threading.active_count()
    with ahead.reading(large):
        (read,) = columns.promised.values()
    assert not columns.promised and threading.active_count() == before and read.done()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {0} WHERE rowid % 3 = 1",
        "UPDATE {0} SET rowid = rowid - 20000",
        "UPDATE {0} SET rowid = rowid + 4611686018427387904 WHERE rowid > 10",
        "ALTER TABLE {0} ADD COLUMN RowId INTEGER",
        "CREATE TABLE copy (i INTEGER PRIMARY KEY, start INTEGER, end INTEGER, demangledName INTEGER, "
        "deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER) WITHOUT ROWID;"
        "INSERT INTO copy SELECT rowid, start, end, demangledName, deviceId, streamId, correlationId, globalPid "
        "FROM {0}; DROP TABLE {0}; ALTER TABLE copy RENAME TO {0}",
    ],
    ids=["holes", "negative ids", "a hole of 64 bits", "a column named rowid", "no ids"],
)
def test_all_rows_are_read_whatever_their_ids_are(large: Path, change: str) -> None:
    with closing(sqlite3.connect(large)) as database:
        database.executescript(change.format(tables.KERNELS))
        (rows, total) = database.execute(f'SELECT count(*), sum("end" - start) FROM {tables.KERNELS}').fetchone()
    export = columns.Database(large)
    read = columns.read_numbers(export, tables.KERNELS, tables.wanted(export, tables.KERNELS))
    assert {len(values) for values in read.values()} == {rows}
    assert (read["end"] - read["start"]).sum() == total


def test_a_table_whose_ids_do_not_bound_its_rows_is_left_to_the_budget_of_the_parser(large: Path) -> None:
    with closing(sqlite3.connect(large)) as database:
        database.execute(f"UPDATE {tables.KERNELS} SET rowid = rowid + {2**40} WHERE rowid > 10")
        database.commit()
    with ahead.reading(large):
        assert not columns.promised
