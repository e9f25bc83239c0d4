"""What a run leaves on disk."""

import csv
import errno
import json
import os
import re
import shutil
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pandas as pd
import pytest

from profpipe.commands import history
from profpipe.errors import ConfigError
from profpipe.results import atomic, database, folders, schema, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import CASES, KERNELS, METRICS, STEPS, TIMELINE, Tables

NOW = datetime(2026, 11, 20, 5, 55, tzinfo=timezone.utc)


def some_tables(run="r", time_ns=1500.0):
    key = {"run": run, "workload": "attention", "case": "n=1", "profiler": "plain"}
    return Tables(
        cases=schema.frame(CASES, [{**key, "status": "ok", "params": '{"n": 1}', "flags": "[]"}]),
        kernels=schema.frame(KERNELS, [{**key, "kernel": 'a<b, "c">', "calls": 3, "total_ns": 10.5, "process": 7}]),
        metrics=schema.frame(METRICS, [{**key, "metric": "time", "value": time_ns, "unit": "ns", "n": 30}]),
        steps=schema.frame(
            STEPS, [{**key, "profiler": "nsys", "step": 1, "state": "steady", "rule": "marker", "wall_ns": 2e6}]
        ),
        modules=schema.frame(schema.MODULES, [{**key, "module": "M.a", "part": "forward", "self_ns": 2e6}]),
        memory=schema.frame(schema.MEMORY, [{**key, "moment": "peak", "part": "parameters", "bytes": 512.0}]),
        timeline=schema.frame(TIMELINE, [{**key, "profiler": "nsys", "rank": 0, "kind": "window", "duration_ns": 2e6}]),
    )


#: The tables that `--csv` writes, and the cases.
STORED = [table.name for table in schema.ALL if not table.parquet_only]


def new_folder(out, name):
    def fill(folder):
        (folder / "raw").mkdir()
        store.save(folder, some_tables(), record())

    return folders.create(out, name, NOW, fill)


def record(**more):
    return replace(Manifest(name="x", started=NOW.isoformat(), ended=None), **more)


def test_tables_come_back_as_they_were_saved(tmp_path):
    saved = some_tables()
    store.save(tmp_path, saved, record())
    assert [path.name for path in tmp_path.glob("*.csv")] == ["cases.csv"]
    loaded, read = store.load(tmp_path)
    for table in schema.ALL:
        pd.testing.assert_frame_equal(getattr(loaded, table.name), getattr(saved, table.name))
        stored = pd.read_parquet(tmp_path / f"{table.name}.parquet")
        assert list(stored.columns) == table.names and len(stored) == len(getattr(saved, table.name))
    assert read == record()


def test_a_csv_file_gives_its_values_back_to_pandas(tmp_path):
    name = 'k<\'a, "b">, é\n2'
    rows = [
        {"kernel": name, "calls": 3, "total_ns": 1e22, "mean_ns": 0.1 + 0.2},
        {"kernel": "", "workload": "a,b", "process": 7},
    ]
    frame = schema.frame(KERNELS, rows)
    store.save_csv(tmp_path, Tables(kernels=frame))
    read = pd.read_csv(tmp_path / "kernels.csv", dtype=frame.dtypes.to_dict(), float_precision="round_trip")
    pd.testing.assert_frame_equal(read.fillna({name: "" for name in frame if frame[name].dtype == object}), frame)


def test_a_number_that_is_none_is_a_missing_one(tmp_path):
    tables = some_tables()
    store.save(tmp_path, tables, record())
    nan = pd.arrays.FloatingArray(np.array([np.nan]), np.array([False]))
    tables.kernels.assign(total_ns=nan).to_parquet(tmp_path / "kernels.parquet")
    assert store.load(tmp_path)[0].kernels["total_ns"].isna().all()


def test_text_that_looks_like_a_number_or_like_nothing_stays_text(tmp_path):
    odd = schema.frame(
        KERNELS, [{"kernel": name, "workload": "1", "calls": 1} for name in ("nan", "NA", "007", "null")]
    )
    store.save(tmp_path, Tables(kernels=odd), record())
    assert store.load(tmp_path)[0].kernels["kernel"].tolist() == ["nan", "NA", "007", "null"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "x.csv"
    target.write_text("old")

    def half(stream):
        stream.write(b"ha")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic.write(target, half)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"] and target.read_text() == "old"


def test_latest_points_at_the_newest_run_and_two_in_one_second_stay_apart(tmp_path):
    first, second = (new_folder(tmp_path / "out", "a") for _ in range(2))
    assert first.name == "20261120T055500Z-a" and second.name == "20261120T055500Z-a-2"
    assert (tmp_path / "out" / "latest").resolve() == second


def test_a_folder_in_the_place_of_the_link_is_refused_before_a_run_is_made(tmp_path):
    first = new_folder(tmp_path, "a")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    for point in (lambda: new_folder(tmp_path, "b"), lambda: folders.point_latest(tmp_path)):
        with pytest.raises(ConfigError, match=r"latest: is a folder, but .* Rename it"):
            point()
    assert sorted(tmp_path.iterdir()) == [first, tmp_path / "latest"]


def test_a_run_is_found_by_path_by_name_and_as_the_latest(tmp_path):
    out = tmp_path / "out"
    folder = new_folder(out, "a")
    assert folders.find(None, out) == folders.find(folder.name, out) == folders.find(str(folder), out) == folder


def test_a_run_that_was_killed_while_it_was_created_is_ignored(tmp_path):
    first = new_folder(tmp_path, "a")

    def killed(folder):
        store.save(folder, some_tables(), record())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folders.create(tmp_path, "b", NOW, killed)
    assert next(folders.list_unfinished(tmp_path)) == folders.find(None, tmp_path) == first


def test_the_tenth_run_of_a_second_is_newer_than_the_ninth(tmp_path):
    runs = [new_folder(tmp_path, "a") for _ in range(10)]
    assert [folder for folder, _ in folders.list_runs(tmp_path)] == runs[::-1]


def begun_at(hour):
    def fill(folder):
        (folder / "raw").mkdir()
        store.save(folder, some_tables(), record(started=NOW.replace(hour=hour).isoformat()))

    return fill


def test_a_copy_that_is_kept_as_a_baseline_is_never_the_latest(tmp_path):
    first = folders.create(tmp_path, "a", NOW.replace(hour=1), begun_at(1))
    shutil.copytree(first, tmp_path / "baseline")
    folders.point_latest(tmp_path)
    assert folders.find(None, tmp_path) == first, "as new as its copy"
    second = folders.create(tmp_path, "a", NOW.replace(hour=2), begun_at(2))
    assert folders.find(None, tmp_path) == second
    folders.point_latest(tmp_path)
    assert folders.find(None, tmp_path) == second
    assert [folder for folder, _ in folders.list_runs(tmp_path)] == [second, first, tmp_path / "baseline"]


def test_latest_is_the_run_that_was_created_last(tmp_path):
    folders.create(tmp_path, "a", NOW.replace(hour=9), begun_at(9))
    second = folders.create(tmp_path, "a", NOW.replace(hour=2), begun_at(2))
    assert folders.find(None, tmp_path) == second


def test_a_folder_of_ingested_files_is_not_a_run(tmp_path):
    folder = new_folder(tmp_path, "a")
    (tmp_path / "nsys").mkdir()
    store.save(tmp_path / "nsys", some_tables(), Manifest(name="nsys", is_run=False))
    folders.point_latest(tmp_path)
    assert folders.find(None, tmp_path) == next(folders.list_unfinished(tmp_path)) == folder
    assert folders.find("nsys", tmp_path) == tmp_path / "nsys", "by its name it is still found"


def test_a_run_can_be_locked_once(tmp_path):
    folder = new_folder(tmp_path, "a")
    with folders.lock(folder), pytest.raises(ConfigError, match="another profpipe is working"), folders.lock(folder):
        pass
    with folders.lock(folder):
        pass


def test_only_tables_that_changed_are_written_again(tmp_path):
    before = some_tables()
    store.save(tmp_path, before, record())
    stamps = {name: (tmp_path / f"{name}.parquet").stat().st_mtime_ns for name in STORED}
    after = replace(before, kernels=before.kernels.assign(calls=4))
    store.save(tmp_path, after, record(), stored=before)
    assert store.load(tmp_path)[0].kernels["calls"].tolist() == [4]
    changed = [name for name, stamp in stamps.items() if (tmp_path / f"{name}.parquet").stat().st_mtime_ns != stamp]
    assert changed == ["kernels"]


def test_partial_files_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / atomic.temporary_name("kernels.csv")).write_text("ha")
    (tmp_path / ".mine.partial").write_text("a user's")
    (tmp_path / "kernels.csv").write_text("whole")
    atomic.remove_partial_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.partial", "kernels.csv"]


def test_a_new_run_removes_what_killed_ones_left_an_hour_ago(tmp_path):
    run = new_folder(tmp_path, "killed")
    (tmp_path / "link").symlink_to(tmp_path.parent)
    names = [".latest", ".20260101T000000Z-a", f"{run.name}/.cases.csv", f"{run.name}/.mine", "link/.kept"]
    left = [tmp_path / f"{name}.0123456789abcdef.partial" for name in names]
    for path in left:
        path.mkdir() if "Z-a" in path.name else path.touch()
        os.utime(path, (0, 0))
    os.utime(left[3])
    folders.remove_litter(tmp_path)
    assert [path.exists() for path in left] == [False, False, False, True, True]


def test_a_number_is_the_same_after_any_number_of_readings(tmp_path):
    value = 0.1 + 0.2 + 1e-13
    saved = Tables(metrics=schema.frame(METRICS, [{"metric": "time", "value": value * 10**n} for n in range(-20, 20)]))
    store.save(tmp_path, saved, record())
    loaded, _ = store.load(tmp_path)
    assert loaded.metrics["value"].tolist() == saved.metrics["value"].tolist()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        folders.find("nothing", tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        Manifest.load(tmp_path)


def test_a_run_of_another_schema_is_refused_rather_than_misread(tmp_path):
    store.save(tmp_path, some_tables(), record())
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(ConfigError, match="was written with schema 99"):
        store.load(tmp_path)


def test_a_table_that_was_damaged_is_named(tmp_path):
    store.save(tmp_path, some_tables(), record())
    (tmp_path / "kernels.parquet").write_text("PAR1")
    with pytest.raises(ConfigError, match=r"kernels\.parquet: is not the table that profpipe wrote"):
        store.load(tmp_path)


def test_csv_files_are_not_read_and_go_where_the_rows_change(tmp_path):
    before = some_tables()
    store.save(tmp_path, before, record())
    store.save_csv(tmp_path, before)
    assert {path.stem for path in tmp_path.glob("*.csv")} == set(STORED)
    (tmp_path / "kernels.csv").write_text("calls\nmany\n")
    assert store.load(tmp_path)[0].kernels["calls"].tolist() == before.kernels["calls"].tolist()
    store.save(tmp_path, replace(before, kernels=before.kernels.assign(calls=4)), record(), stored=before)
    assert {path.stem for path in tmp_path.glob("*.csv")} == {*STORED} - {"kernels"}


def test_a_run_of_a_version_without_steps_has_none(tmp_path):
    store.save(tmp_path, some_tables(), record(ended="2026-11-20T06:00:00+00:00"))
    (tmp_path / "steps.parquet").unlink()
    loaded, _ = store.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.steps, schema.empty(schema.STEPS))
    pd.testing.assert_frame_equal(loaded.kernels, some_tables().kernels)


@pytest.mark.parametrize("name", [table.name for table in schema.ALL if not table.is_new])
def test_a_missing_table_is_refused(tmp_path, name):
    store.save(tmp_path, some_tables(), record())
    (tmp_path / f"{name}.csv").unlink(missing_ok=True)
    (tmp_path / f"{name}.parquet").unlink()
    with pytest.raises(ConfigError, match=rf"{name}\.parquet: is missing\. Restore the file"):
        store.load(tmp_path)


def test_the_rows_of_a_picture_are_stored_as_jobs_end_and_are_no_csv(tmp_path):
    store.save(tmp_path, some_tables(), record())
    assert (tmp_path / "timeline.parquet").is_file() and not (tmp_path / "timeline.csv").exists()
    store.save(tmp_path, Tables(), record())
    assert not (tmp_path / "timeline.parquet").exists()
    assert store.load(tmp_path)[0].timeline.empty


def test_a_damaged_picture_is_named_with_a_way_out(tmp_path):
    store.save(tmp_path, some_tables(), record())
    (tmp_path / "timeline.parquet").write_text("PAR1")
    with pytest.raises(ConfigError, match=r"timeline\.parquet: is not the table .* Remove it"):
        store.load(tmp_path)


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("params", '[["impl": 1]', "row 2, column params: Expecting"),
        ("params", "[1]", "row 2, column params: is no JSON mapping"),
        ("flags", "noisy", "row 2, column flags: Expecting value"),
        ("flags", "{}", "row 2, column flags: is no JSON list"),
    ],
)
def test_a_cell_with_wrong_json_is_named(tmp_path, column, text, message):
    store.save(tmp_path, Tables(cases=some_tables().cases.assign(**{column: text})), record())
    with pytest.raises(ConfigError, match=rf"cases\.parquet: is not the table that profpipe wrote: {message}"):
        store.load(tmp_path)


def test_the_latest_unfinished_run_is_found(tmp_path):
    done, open_ = (new_folder(tmp_path, name) for name in ("a", "b"))
    store.save(done, some_tables(), record(ended="2026-11-20T06:00:00+00:00"))
    assert list(folders.list_unfinished(tmp_path)) == [open_]
    store.save(open_, some_tables(), record(ended="2026-11-20T06:00:00+00:00"))
    assert list(folders.list_unfinished(tmp_path)) == []


def test_a_run_dated_in_the_future_is_not_the_newest_one(tmp_path):
    now, future = (new_folder(tmp_path, name) for name in ("a", "b"))
    store.save(now, some_tables(), record(ended=None))
    store.save(future, some_tables(), record(ended=None, started="2099-01-01T00:00:00+00:00"))
    assert list(folders.list_unfinished(tmp_path)) == [now, future]
    folders.point_latest(tmp_path)
    assert (tmp_path / "latest").resolve() == now


def test_history_keeps_each_run_once_and_shows_how_a_time_moved(tmp_path):
    for number, time_ns in enumerate((1500.0, 1500.0, 1800.0)):
        folder = tmp_path / f"run{number}"
        run_record = record(started=f"2026-11-2{number}T00:00:00+00:00", ended="x")
        for _ in range(2):  # the second time as after `profpipe resume`
            database.store_run(tmp_path, folder, some_tables(folder.name, time_ns), run_record)
    runs, times = database.read_history(tmp_path)
    assert [row["run"] for row in runs] == ["run2", "run1", "run0"]
    assert [row["value"] for row in times] == [1500.0, 1500.0, 1800.0]
    text = history.text(runs, times)
    assert "attention/n=1" in text and "+20.0% since the run before" in text and "1 of 1" in text


def test_history_has_a_table_for_each_pipeline(tmp_path):
    for number, (name, time_ns) in enumerate((("study", 1500.0), ("training", 2e9), ("study", 3000.0))):
        run_record = record(name=name, started=f"2026-11-2{number}T00:00:00+00:00", ended="x")
        database.store_run(tmp_path, tmp_path / f"run{number}", some_tables(f"run{number}", time_ns), run_record)
    study, training = history.text(*database.read_history(tmp_path)).split("\n\nPipeline ")
    assert study.startswith("Pipeline study\n") and "run1" not in study and "in us" in study
    assert study.endswith("attention/n=1  1.50  3.00  +100.0% since the run before")
    assert training.startswith("training\n") and "run0" not in training
    assert training.endswith("attention/n=1  2000")


@pytest.mark.parametrize("status", ["failed", "oom", "crashed", "timeout"])
def test_the_history_has_no_times_of_failed_cases(tmp_path, status):
    data = some_tables("run", 1500.0)
    data = replace(data, cases=data.cases.assign(status=status))
    database.store_run(tmp_path, tmp_path / "run", data, record(started="2026-11-20T00:00:00+00:00", ended="x"))
    runs, times = database.read_history(tmp_path)
    assert [(row["cases"], row["ok"]) for row in runs] == [(1, 0)] and times == []
    stopped = replace(data, cases=data.cases.assign(status="interrupted"))
    database.store_run(tmp_path, tmp_path / "run", stopped, record(started="2026-11-20T00:00:00+00:00", ended="x"))
    assert [row["value"] for row in database.read_history(tmp_path)[1]] == [1500.0]


@pytest.mark.parametrize("text", [
    "=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1", "'=1", "''=1", "'a", "a=1", "\x1b[31m", "\x9b", "\u202e",
    "<U+001B>", "<U+001B", "<<U+003C>", "'<U+001B>", "\x1b=", "'\x1b",
])  # fmt: skip
def test_a_text_of_a_csv_file_runs_nothing(tmp_path, text):
    data = some_tables(time_ns=-1.5)
    data = replace(data, kernels=data.kernels.assign(kernel=text, run=""), cases=data.cases.assign(reason=text))
    store.save(tmp_path, data, record())
    store.save_csv(tmp_path, data)
    with (tmp_path / "kernels.csv").open(newline="", encoding="utf-8") as stream:
        cell = next(csv.DictReader(stream))["kernel"]
    assert not re.match("[=+@\t\r\n＝-]", cell) and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", cell)
    assert (cell == text) is (text in ("'a", "a=1", "<U+001B"))
    read = store.load(tmp_path)[0]
    assert read.kernels["kernel"].tolist() == read.cases["reason"].tolist() == [text]
    assert read.metrics["value"].tolist() == [-1.5]


def test_a_run_that_cannot_be_stored_as_a_whole_is_not_stored_in_part(tmp_path):
    too_large = pd.DataFrame({"pairs": pd.Series([2**70], dtype=object)})
    data = replace(some_tables("run", 1e6), verdicts=too_large)
    with pytest.raises(OverflowError):
        database.store_run(tmp_path, tmp_path / "run", data, record(started="2026-11-20T00:00:00+00:00", ended="x"))
    assert database.read_history(tmp_path) == ([], [])


def test_times_with_different_parameters_have_different_rows(tmp_path):
    for number, (head_dim, time_ns) in enumerate(((128, 1000.0), (64, 480.0), (128, 1100.0), (None, 1200.0))):
        data = some_tables(f"run{number}", time_ns)
        params = "" if head_dim is None else json.dumps({"n": 1, "head_dim": head_dim})
        data = replace(data, cases=data.cases.assign(params=params))
        run_record = record(started=f"2026-11-2{number}T00:00:00+00:00", ended="x")
        database.store_run(tmp_path, tmp_path / f"run{number}", data, run_record)
    # Each run has a column, also a run without such a case.
    lines = history.text(*database.read_history(tmp_path)).splitlines()
    assert [line.rstrip() for line in lines if line.startswith("attention/")] == [
        "attention/n=1 (head_dim 128)  1.00     -  1.10     -",
        "attention/n=1 (head_dim 64)      -  0.48     -     -",
        "attention/n=1                    -     -     -  1.20",
    ]


def test_history_without_a_database_names_the_command_that_creates_it(tmp_path):
    with pytest.raises(ConfigError, match="The first `profpipe run` creates it"):
        database.read_history(tmp_path)


def test_a_file_that_is_not_a_database_is_named(tmp_path):
    (tmp_path / database.FILE).write_text("no database, but longer than the header of one" * 10)
    with pytest.raises(ConfigError, match=r"profpipe\.db: cannot be used: file is not a database"):
        database.read_history(tmp_path)
    with pytest.raises(ConfigError, match=r"profpipe\.db: cannot be used"):
        database.store_run(tmp_path, tmp_path / "run", Tables(), Manifest())


def test_a_database_with_a_text_that_is_no_utf_8_is_named(tmp_path):
    with database.connect(tmp_path):
        pass
    path = tmp_path / database.FILE
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE\x82TABLE", 1))
    with pytest.raises(ConfigError, match=r"profpipe\.db: cannot be used: "):
        database.read_history(tmp_path)


def test_a_folder_in_the_place_of_the_database_is_named(tmp_path):
    (tmp_path / database.FILE).mkdir()
    with pytest.raises(ConfigError, match=r"profpipe\.db: is a link or no regular file"):
        database.store_run(tmp_path, tmp_path / "run", Tables(), Manifest())


def test_a_missing_value_is_null_in_the_database_and_not_zero(tmp_path):
    import sqlite3

    database.store_run(tmp_path, tmp_path / "r", some_tables(), record())
    row = sqlite3.connect(tmp_path / database.FILE).execute("select seconds, time_ns from cases").fetchone()
    assert row == (None, 1500.0)


def test_a_folder_that_takes_no_results_is_refused_and_nothing_is_left_in_it(tmp_path):
    def full(folder):
        (folder / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConfigError, match=r"cannot hold results: No space left on device\. Nothing was run"):
        folders.create(tmp_path, "a", datetime(2026, 1, 1, tzinfo=timezone.utc), full)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot hold results"):
        folders.create(tmp_path / "file", "a", datetime(2026, 1, 1, tzinfo=timezone.utc), full)
