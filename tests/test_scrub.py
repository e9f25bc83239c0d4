"""What must not be in a scrubbed export, and that nothing else is missing from it."""

import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import forked
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nsys_exports import Export, pid_id, thread_id

from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.results import schema, store
from profpipe.scrub import exports

DATA = Path(__file__).parent / "data"
ATTENTION = DATA / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"
CPU_TRACE = DATA / "torch-2.13" / "training_cpu.json.gz"
ROOT = Path(__file__).parents[1]

#: Represents all secrets: no scrubbed file may hold this word.
SECRET = "hunter2"


def parsed(path):
    (result,) = reader.ingest([reader.InputFile(path, "file")])
    assert isinstance(result, reader.Read), result
    return result.tables.set_columns(workload="")


def scrubbed(path):
    return exports.scrub(path, reader.name_of(reader.choose(path, reader.parsers())))


def check_same_tables(before, after):
    for table in schema.ALL:
        pd.testing.assert_frame_equal(getattr(before, table.name), getattr(after, table.name))
    assert before.origin == after.origin


def writable_copy(path, folder):
    copy = folder / path.name
    shutil.copyfile(path, copy)
    return copy


def content(path):
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw


def profpipe(folder, *arguments, **environment):
    return forked.run(folder, *arguments, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})


# --- recorded files --------------------------------------------------------------------------------------------------


def recorded(shared_data):
    """Every recorded export and trace that is read, but not the Git LFS pointers among them."""
    paths = (path for path in sorted(shared_data.rglob("*")) if path.name.endswith((".sqlite", ".json.gz", ".db")))
    return [path for path in paths if path.stat().st_size > 1000]


@pytest.mark.slow
@pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_recorded_export_is_parsed_to_the_same_tables_and_a_second_time_nothing_is_removed(
    shared_data, tmp_path, each
):
    paths = recorded(shared_data)
    assert len(paths) >= 15
    for path in paths[::each]:
        copy = writable_copy(path, tmp_path)
        (before,) = reader.ingest([reader.InputFile(copy, "file")])
        scrubbed(copy)
        (after,) = reader.ingest([reader.InputFile(copy, "file")])
        if isinstance(before, reader.Read) and isinstance(after, reader.Read):
            check_same_tables(before.tables, after.tables)
        else:
            assert before == after
        assert not scrubbed(copy), path


def test_what_describes_the_machine_and_the_recording_stays(shared_data, tmp_path):
    copy = writable_copy(shared_data / "h200" / "lm_eager.sqlite", tmp_path)
    scrubbed(copy)
    with closing(sqlite3.connect(copy)) as database:
        system = dict(database.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
        capture = dict(database.execute("SELECT name, value FROM META_DATA_CAPTURE"))
        export = dict(database.execute("SELECT name, value FROM META_DATA_EXPORT"))
        names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    assert {"NvDriverVersion", "CudaDriverVersion", "OsDescription", "CpuDescription"} <= set(system)
    assert "START_TRIGGER" in capture and "EXPORT_SCHEMA_VERSION" in export
    assert not {"Hostname", "DeviceEnvironment"} & set(system)
    assert {"PROCESSES", "ProcessStreams"} <= names  # empty, for other readers look for them


# --- planted secrets -------------------------------------------------------------------------------------------------


def plant(path):
    """Write SECRET to every place where nsys 2022 to 2026 stores private data."""
    environment = f"HOME=/root\0MY_TOKEN={SECRET}\0"
    with closing(sqlite3.connect(path)) as database:
        some_call = database.execute("SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
        rows = {
            "StringIds (id, value)": [
                (900001, environment),
                (900002, f"/tmp/streams/{SECRET}_stdout.log"),
                (900003, f"printed {SECRET}"),
                (900004, f"thread of {SECRET}"),
            ],
            "META_DATA_CAPTURE (name, value)": [
                ("PROCESS_0:ENVIRONMENT_VARIABLE", f'MY_TOKEN="{SECRET}"'),
                ("PROCESS_0:ARGUMENT_7", f"--password={SECRET}"),
                ("PROCESS_1:COMMAND", f"/home/{SECRET}/bin/python"),
                ("PROCESS_0:WORKING_DIR", f"/home/{SECRET}"),
                ("PROCESS_0:USER_NAME", SECRET),
                ("DEVICE_DISPLAY_NAME", SECRET),
                ("SOMETHING_OF_2027", f"made with {SECRET}"),
            ],
            "META_DATA_EXPORT (name, value)": [("EXPORT_HOST", SECRET), ("EXPORT_PARAM_INPUT_PATH", f"/{SECRET}/x")],
            "TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value)": [
                (1, "Local", "DeviceEnvironment", 610, f"HOME=/root;MY_TOKEN={SECRET}"),
                (1, "Local", "Hostname", 619, SECRET),
                (1, "Local", "SomethingOf2027", 999, SECRET),
            ],
            "PROCESSES (globalPid, pid, name)": [(pid_id(4242), 4242, f"server --key={SECRET}")],
            "ThreadNames (nameId, priority, globalTid)": [(900004, 20, thread_id(4242, 4243))],
            "ProcessStreams (globalPid, filenameId, contentId)": [(pid_id(4242), 900002, 900003)],
            "ANALYSIS_FILE (id, filename, contentId, globalPid)": [(7, f"/{SECRET}/stdout.log", 900003, 1)],
            "DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text)": [
                (1, 1, 1, 1, f"Process {SECRET} was launched by the profiler"),
                (2, 1, 1, 2, f"CUDA events were lost in /home/{SECRET}/app, see ~/{SECRET}/log.txt."),
            ],
        }
        for table, values in rows.items():
            declared = re.sub(r"\b(name|value|text|filename|devStateName)\b", r"\1 TEXT", table)
            database.execute(f"CREATE TABLE IF NOT EXISTS {re.sub(r'(?<=[a-z])(?=[,)])', ' INTEGER', declared)}")
            marks = ", ".join("?" * len(values[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        database.execute("CREATE TABLE OSRT_FILE_ACCESS_DESCRIPTORS (fileAccessId INTEGER, filePath TEXT)")
        database.execute(f"INSERT INTO OSRT_FILE_ACCESS_DESCRIPTORS VALUES (1, '/home/{SECRET}/data')")
        # A call has the same id; the environment is removed nevertheless.
        database.execute("CREATE TABLE LATER_EVENTS (nameId INTEGER, argumentsId INTEGER, commandLine TEXT)")
        database.execute(f"INSERT INTO LATER_EVENTS VALUES (900001, 900003, 'python --password={SECRET}')")
        database.execute("INSERT INTO LATER_EVENTS VALUES (?, NULL, NULL)", (some_call,))
        database.execute("CREATE TABLE forgotten (text TEXT)")
        database.executemany("INSERT INTO forgotten VALUES (?)", [(f"{SECRET} " * 500,)] * 50)
        database.commit()
        database.execute("DROP TABLE forgotten")
        database.commit()


def test_no_byte_of_a_planted_secret_is_left_not_even_in_free_pages(tmp_path):
    copy = writable_copy(ATTENTION, tmp_path)
    before = parsed(copy)
    plant(copy)
    assert SECRET.encode() in copy.read_bytes()
    removed = scrubbed(copy)
    assert SECRET.encode() not in copy.read_bytes()
    planted = {
        "PROCESSES": 1, "ThreadNames": 1, "ProcessStreams": 1, "ANALYSIS_FILE": 1, "DIAGNOSTIC_EVENT": 2,
        "OSRT_FILE_ACCESS_DESCRIPTORS": 1, "LATER_EVENTS": 1,
    }  # fmt: skip
    assert {table: removed[table] for table in planted} == planted
    assert removed["META_DATA_CAPTURE"] >= 7 and removed["StringIds"] >= 4
    after = parsed(copy)
    assert after.origin.notes == ("nsys: CUDA events were lost in [path], see [path]",)
    check_same_tables(before, replace(after, origin=before.origin))


def test_a_text_in_another_encoding_than_utf_8_keeps_no_secret_in_the_export(tmp_path):
    copy = writable_copy(ATTENTION, tmp_path)
    plant(copy)
    latin = "CAST(CAST({} AS BLOB) || x'20e9e8ff' AS TEXT)"
    with closing(sqlite3.connect(copy)) as database:
        for table, column in (
            ("META_DATA_CAPTURE", "value"), ("META_DATA_CAPTURE", "name"), ("META_DATA_EXPORT", "value"),
            ("TARGET_INFO_SYSTEM_ENV", "name"), ("PROCESSES", "name"), ("DIAGNOSTIC_EVENT", "text"),
        ):  # fmt: skip
            database.execute(f"UPDATE {table} SET {column} = {latin.format(column)} WHERE {column} LIKE '%{SECRET}%'")
        database.execute(f"UPDATE PROCESSES SET name = {latin.format('name')}")
        database.commit()
    removed = scrubbed(copy)
    assert SECRET.encode() not in copy.read_bytes() and removed["META_DATA_CAPTURE"] >= 7
    assert parsed(copy).origin.notes == ("nsys: CUDA events were lost in [path], see [path] \ufffd\ufffd\ufffd",)
    assert not scrubbed(copy)


def test_scrubbing_an_export_leaves_no_other_file(tmp_path):
    copy = writable_copy(ATTENTION, tmp_path)
    scrubbed(copy)
    assert [path.name for path in tmp_path.iterdir()] == [copy.name]


def test_processes_that_took_part_keep_their_names_without_the_folder(tmp_path):
    export = Export()
    export.launch(10, 1, pid=7)
    path = export.write_sqlite(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)")
        rows = [(pid_id(7), 7, f"/home/{SECRET}/bin/python3"), (pid_id(8), 8, SECRET)]
        database.executemany("INSERT INTO PROCESSES VALUES (?, ?, ?)", rows)
        database.commit()
    assert scrubbed(path)["PROCESSES"] == 2
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT pid, name FROM PROCESSES").fetchall() == [(7, "python3")]


def with_paths(path):
    """An export whose call stacks, threads and one range name folders."""
    export = Export()
    export.launch(10, 1, pid=7)
    ids = {
        text: export.string(text)
        for text in (
            f"/home/{SECRET} x/app/train",
            f"python /home/{SECRET}/t.py",
            "operator/(A, B)",
            "[vdso]",
            "/data/in",
        )
    }
    binary, thread, division, vdso, range_name = ids.values()
    export.write_sqlite(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER)")
        stack = [(1, division, binary), (2, range_name, vdso)]
        database.executemany("INSERT INTO SAMPLING_CALLCHAINS VALUES (?, ?, ?)", stack)
        database.execute("CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)")
        database.execute("INSERT INTO ThreadNames VALUES (?, 20, ?)", (thread, thread_id(7, 7)))
        database.execute("CREATE TABLE MARKERS (textId INTEGER)")
        database.execute("INSERT INTO MARKERS VALUES (?)", (range_name,))
        database.commit()
    return path


def test_call_stacks_and_threads_keep_the_names_of_files_without_their_folders(tmp_path):
    path = with_paths(tmp_path / "export.sqlite")
    folder = in_folder(path)
    before = parsed(path)
    assert scrubbed(path)["StringIds"] == scrubbed(folder)["StringIds"] == 2
    assert SECRET.encode() not in path.read_bytes() + held(folder)
    check_same_tables(before, parsed(path))
    with closing(sqlite3.connect(path)) as database:
        texts = {text for (text,) in database.execute("SELECT value FROM StringIds")}
    assert {"train", "python t.py", "operator/(A, B)", "[vdso]", "/data/in"} <= texts
    assert set(pq.read_table(folder / "StringIds.parquet")["value"].to_pylist()) == texts
    assert not scrubbed(path) and not scrubbed(folder)


def test_a_real_recording_with_call_stacks_loses_the_folders_of_its_user(shared_data, tmp_path):
    path = writable_copy(shared_data / "nsys" / "p4arth__cuda-perf-sandbox" / "report1.sqlite", tmp_path)
    assert b"/home/p4arth" in path.read_bytes()
    scrubbed(path)
    assert b"p4arth" not in path.read_bytes()


def test_indexes_views_page_size_and_permissions_are_kept_and_search_trees_left_out(tmp_path):
    export = Export()
    export.launch(10, 1)
    path = export.write_sqlite(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE INDEX by_start ON CUPTI_ACTIVITY_KIND_KERNEL (start)")
        database.execute("CREATE VIRTUAL TABLE tree USING rtree (id, low, high)")
        database.execute("INSERT INTO tree VALUES (1, 2, 3)")
        database.commit()
    path.chmod(0o640)
    before = parsed(path)
    scrubbed(path)
    check_same_tables(before, parsed(path))
    assert path.stat().st_mode & 0o777 == 0o640
    with closing(sqlite3.connect(path)) as database:
        names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    assert "by_start" in names and not any(name.startswith("tree") for name in names)


# --- folders of Parquet files ----------------------------------------------------------------------------------------


def in_folder(path):
    """The tables of a SQLite export as nsys writes them into a folder, a Parquet file each."""
    folder = path.with_suffix(".parquetdir")
    folder.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.text_factory = bytes
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            name = table.decode()
            declared = database.execute(f'PRAGMA table_info("{name}")').fetchall()
            rows = database.execute(f'SELECT * FROM "{name}"').fetchall()
            columns = {}
            for number, (_, column, kind, *_) in enumerate(declared):
                as_arrow = {b"INTEGER": pa.int64(), b"REAL": pa.float64()}.get(kind.upper(), pa.string())
                columns[column.decode()] = pa.array([row[number] for row in rows], as_arrow)
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def held(folder):
    return b"".join(str(pq.read_table(file).to_pylist()).encode() + file.read_bytes() for file in folder.iterdir())


def test_no_planted_secret_is_left_in_a_folder_and_it_is_read_to_the_same_tables(tmp_path):
    path = writable_copy(ATTENTION, tmp_path)
    plant(path)
    folder = in_folder(path)
    before, large = parsed(folder), folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    stamp = large.stat().st_mtime_ns, large.stat().st_ino
    assert SECRET.encode() in held(folder) and not exports.is_scrubbed(folder)
    removed = scrubbed(folder)
    assert SECRET.encode() not in held(folder) and exports.is_scrubbed(folder)
    expected = scrubbed(path)
    # Without the schema of the SQLite export it is unknown which numbers are ids of texts.
    assert removed.pop("StringIds") >= expected.pop("StringIds") and removed == expected
    after = parsed(folder)
    for table in schema.ALL:
        pd.testing.assert_frame_equal(getattr(before, table.name), getattr(after, table.name))
        pd.testing.assert_frame_equal(
            getattr(after, table.name), getattr(parsed(path).set_columns(source="file"), table.name)
        )
    assert (large.stat().st_mtime_ns, large.stat().st_ino) == stamp, "what is harmless is not written again"
    assert not scrubbed(folder)
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, folder.name}


def test_a_folders_types_and_permissions_stay(tmp_path):
    folder = in_folder(writable_copy(ATTENTION, tmp_path))
    calls = folder / "PROCESSES.parquet"
    table = pa.table(
        {
            "globalPid": pa.array([pid_id(1), 2**64 - 5], pa.uint64()),
            "name": pa.array([f"/{SECRET}/python", SECRET]).dictionary_encode(),
            "commandLine": pa.array([SECRET, None], pa.large_string()),
            "arguments": pa.array([[SECRET], []], pa.list_(pa.string())),
        }
    )
    pq.write_table(table, calls)
    calls.chmod(0o640)
    pq.write_table(pa.table({"globalTid": [thread_id(1, 1)], "nameId": [1]}), folder / "NVTX_EVENTS.parquet")
    scrubbed(folder)
    kept = pq.read_table(calls)
    assert SECRET.encode() not in held(folder) and kept.schema == table.schema and calls.stat().st_mode & 0o777 == 0o640
    assert kept.to_pylist() == [{"globalPid": pid_id(1), "name": "python", "commandLine": "", "arguments": None}]


def test_a_folder_that_is_damaged_or_holds_more_than_tables_is_refused_and_left_as_it_was(tmp_path):
    folder = in_folder(writable_copy(ATTENTION, tmp_path))
    (folder / "notes.txt").write_text(SECRET)
    with pytest.raises(UnreadableFile, match=r"more than an export's tables: notes\.txt"):
        scrubbed(folder)
    (folder / "notes.txt").unlink()
    damaged = folder / "StringIds.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    before = held_bytes(folder)
    with pytest.raises(UnreadableFile, match="damaged or cut short"):
        scrubbed(folder)
    assert held_bytes(folder) == before and len(list(tmp_path.iterdir())) == 2


def held_bytes(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- databases of rocprof --------------------------------------------------------------------------------------------


def rocpd(shared_data, folder):
    return writable_copy(shared_data / "rocprof" / "HGLiu1998__batched_gemm" / "14_results.db", folder)


def test_a_rocpd_database_loses_host_command_environment_and_paths(shared_data, tmp_path):
    path = rocpd(shared_data, tmp_path)
    before = parsed(path)
    private = [b"banff-cyxtera", b"66a0384146474b3e96c75a0b6e9a9181", b"/workspace/", b"LD_PRELOAD", b"./batched_gemm"]
    assert all(text in path.read_bytes() for text in private)
    removed = scrubbed(path)
    assert not [text for text in private if text in path.read_bytes()]
    assert removed["rocpd_info_node"] == removed["rocpd_info_process"] == 1
    check_same_tables(before, parsed(path))
    assert exports.is_scrubbed(path) and not scrubbed(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM kernels").fetchone() == (301,), "its own views still work"
        assert database.execute("SELECT hostname, command FROM processes").fetchone() == ("", "")
        (agent,) = database.execute("SELECT extdata FROM rocpd_info_agent WHERE type = 'GPU' LIMIT 1").fetchone()
        assert json.loads(agent)["cu_count"] == 304


def test_no_byte_of_a_secret_planted_into_a_rocpd_database_is_left(shared_data, tmp_path):
    path = rocpd(shared_data, tmp_path)
    guid = "_00008fe4_d5df_75df_9c0d_78bdba3692bd"
    marker = json.dumps({"message": "forward", "who": SECRET})
    with closing(sqlite3.connect(path)) as database:
        for statement in (
            f"INSERT INTO rocpd_string{guid} (string) VALUES ('{SECRET}')",
            f"INSERT INTO rocpd_metadata{guid} (tag, value) VALUES ('user', '{SECRET}')",
            f"UPDATE rocpd_info_node{guid} SET domain_name = '{SECRET}'",
            f'UPDATE rocpd_info_thread{guid} SET extdata = \'{{"a": "{SECRET}"}}\'',
            f"UPDATE rocpd_info_code_object{guid} SET uri = 'file:///home/{SECRET}/a.co#offset=1'",
            f'UPDATE rocpd_info_code_object{guid} SET extdata = \'{{"uri": "file:///home/{SECRET}/a.co"}}\'',
            f"UPDATE rocpd_event{guid} SET call_stack = '[\"{SECRET}\"]', line_info = '[\"{SECRET}.py\"]'",
            f"UPDATE rocpd_event{guid} SET extdata = '{marker}' WHERE id = 1",
            f"UPDATE rocpd_arg{guid} SET type = 'char const*', value = '{SECRET}' WHERE id = 1",
            f"UPDATE rocpd_arg{guid} SET type = 'struct', value = '{{name={SECRET}}}' WHERE id = 2",
            f"UPDATE rocpd_region{guid} SET extdata = '{SECRET}'",
            f"CREATE TABLE rocpd_later{guid} (command_line TEXT)",
            f"INSERT INTO rocpd_later{guid} VALUES ('{SECRET}')",
        ):
            database.execute(statement)
        kept = database.execute(f"SELECT count(*), count(DISTINCT value) FROM rocpd_arg{guid}").fetchone()
        database.commit()
    scrubbed(path)
    assert SECRET.encode() not in path.read_bytes()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(f"SELECT extdata FROM rocpd_event{guid}").fetchone() == ('{"message":"forward"}',)
        assert database.execute(f"SELECT uri FROM rocpd_info_code_object{guid}").fetchone() == ("file://[path]",)
        values = {value for (value,) in database.execute(f"SELECT value FROM rocpd_arg{guid}")}
        assert {"HostToDevice", "4194304", "0x2013f8", "{z=128, y=1, x=4}", "(null)"} <= values
        assert kept[0] == database.execute(f"SELECT count(*) FROM rocpd_arg{guid}").fetchone()[0]


def test_a_text_in_another_encoding_than_utf_8_keeps_no_secret_in_a_rocpd_database(shared_data, tmp_path):
    path, guid = rocpd(shared_data, tmp_path), "_00008fe4_d5df_75df_9c0d_78bdba3692bd"
    marker = json.dumps({"who": SECRET, "message": "caf?"}).encode().replace(b"?", b"\xe9")
    with closing(sqlite3.connect(path)) as database:
        event = f"UPDATE rocpd_event{guid} SET extdata = CAST(? AS TEXT) WHERE id = 1"
        call = f"UPDATE rocpd_arg{guid} SET type = 'char const*', value = CAST(? AS TEXT) WHERE id = 1"
        code = f"UPDATE rocpd_info_code_object{guid} SET uri = CAST(? AS TEXT)"
        for statement, value in (
            (event, marker), (call, SECRET.encode() + b"\xe9"), (code, f"file:///home/{SECRET}/".encode() + b"\xe9.co"),
        ):  # fmt: skip
            database.execute(statement, [value])
        database.commit()
    scrubbed(path)
    assert SECRET.encode() not in path.read_bytes() and not scrubbed(path)
    with closing(sqlite3.connect(path)) as database:
        assert json.loads(database.execute(f"SELECT extdata FROM rocpd_event{guid}").fetchone()[0]) == {
            "message": "caf\ufffd"
        }


def test_a_database_of_rocprof_v1_loses_the_arguments_of_its_calls(shared_data, tmp_path):
    path = writable_copy(shared_data / "rocprof" / "vjelic__aiter-glog-fork" / "results.db", tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute('CREATE TABLE HIP ("BeginNs" INTEGER, "EndNs" INTEGER, "pid" INTEGER, "args" TEXT)')
        database.execute(f"INSERT INTO HIP VALUES (1, 2, 3, '( file={SECRET})')")
        database.commit()
    before = parsed(path)
    assert scrubbed(path) == {"HIP": 1} and SECRET.encode() not in path.read_bytes()
    check_same_tables(before, parsed(path))


# --- what cannot be scrubbed -----------------------------------------------------------------------------------------


def test_a_read_only_file_and_one_that_is_being_written_are_refused_and_left_alone(tmp_path):
    copy = writable_copy(ATTENTION, tmp_path)
    untouched = copy.read_bytes()
    copy.chmod(0o444)
    with pytest.raises(UnreadableFile, match="is read-only"):
        exports.scrub(copy, "nsys_sqlite")
    copy.chmod(0o644)
    for leftover in ("-wal", "-journal"):
        leftover_file = tmp_path / (copy.name + leftover)
        leftover_file.write_bytes(b"rows")
        with pytest.raises(UnreadableFile, match="is being written"):
            exports.scrub(copy, "nsys_sqlite")
        leftover_file.unlink()
    assert copy.read_bytes() == untouched and len(list(tmp_path.iterdir())) == 1


def test_a_damaged_export_is_refused_and_left_as_it_was(tmp_path):
    for path in (ATTENTION, CPU_TRACE):
        copy = writable_copy(path, tmp_path)
        damaged = path.read_bytes()[: path.stat().st_size // 2]
        copy.write_bytes(damaged)
        with pytest.raises(UnreadableFile, match="damaged or cut short"):
            scrubbed(copy)
        assert copy.read_bytes() == damaged
    assert len(list(tmp_path.iterdir())) == 2


def test_through_a_symbolic_link_the_file_itself_is_scrubbed(tmp_path):
    (tmp_path / "there").mkdir()
    copy = writable_copy(ATTENTION, tmp_path / "there")
    plant(copy)
    link = tmp_path / "here.sqlite"
    link.symlink_to(copy)
    scrubbed(link)
    assert link.is_symlink() and SECRET.encode() not in copy.read_bytes()


@pytest.mark.slow
def test_the_command_counts_removals_and_continues_after_a_file_that_it_cannot_scrub(tmp_path):
    copy = writable_copy(ATTENTION, tmp_path)
    plant(copy)
    (tmp_path / "notes.csv").write_text("a,b\n")
    (tmp_path / "old.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2025@3@1@90-123v0.\n")
    (tmp_path / "folder").mkdir()
    bad = ["notes.csv", "old.nsys-rep", "folder", "missing.sqlite"]
    done = profpipe(tmp_path, "scrub", *bad, copy.name)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == bad
    assert done.stdout.startswith(f"{copy.name}: removed ") and "1 of PROCESSES" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    again = profpipe(tmp_path, "scrub", copy.name)
    assert (again.returncode, again.stdout) == (0, f"{copy.name}: nothing to remove\n")


def test_a_damaged_export_of_a_run_is_listed_among_its_private_files(tmp_path):
    raw = tmp_path / "raw" / "attention" / "nsys"
    raw.mkdir(parents=True)
    scrubbed(writable_copy(ATTENTION, raw))
    (raw / "capture-2.sqlite").write_bytes(ATTENTION.read_bytes()[:100_000])
    (raw / "capture.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 1.\n")
    (raw / "other_results.db").write_bytes(ATTENTION.read_bytes()[:100_000])
    (raw / "job.jsonl").write_text('{"event": "started"}\n')
    done = exports.scrub_exports(sorted(raw.iterdir()), tmp_path)
    assert done == {raw / ATTENTION.name: True, raw / "capture-2.sqlite": False, raw / "other_results.db": False}
    private = ["capture-2.sqlite", "capture.nsys-rep", "other_results.db"]
    found = exports.find_private_files(tmp_path, tmp_path / "raw")
    assert found == [f"raw/attention/nsys/{name}" for name in private]


def test_a_trace_of_a_run_that_could_not_be_scrubbed_is_listed_among_its_private_files(tmp_path):
    raw = tmp_path / "raw" / "attention" / "torch"
    raw.mkdir(parents=True)
    trace = content(CPU_TRACE)
    cut = {
        "cut.json": trace[: len(trace) // 2],
        "cut.json.gz": CPU_TRACE.read_bytes()[: CPU_TRACE.stat().st_size // 2],
        "damaged.json.gz": CPU_TRACE.read_bytes()[:10] + b"damaged",
    }
    harmless = {
        "cases.json": b'{"cases": []}', "nothing.json": b"", "rocprof.json": b'{ "traceEvents":[{},{"BeginNs":"1"}]}',
        "whole.json": trace, "zipped.json.gz": CPU_TRACE.read_bytes(), "clean.json": b'{"traceEvents": []}',
    }  # fmt: skip
    for name, data in (cut | harmless).items():
        (raw / name).write_bytes(data)
    done = exports.scrub_exports(sorted(raw.iterdir()), tmp_path)
    assert {path.name for path, is_done in done.items() if is_done} == {"clean.json", "whole.json", "zipped.json.gz"}
    found = exports.find_private_files(tmp_path, tmp_path / "raw")
    assert found == [f"raw/attention/torch/{name}" for name in cut]
    assert exports.is_scrubbed(raw / "zipped.json.gz") and not exports.is_scrubbed(raw / "cut.json")


# --- Chrome traces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_a_trace_loses_its_host_and_the_environment_of_its_job_and_no_event(tmp_path, zipped):
    trace = json.loads(content(CPU_TRACE))
    before = {
        "schemaVersion": trace.pop("schemaVersion"),
        "host_name": f"{SECRET}.example.com",
        "PT_PROFILER_JOB_NAME": SECRET,
        "environment": {"MY_TOKEN": SECRET, "traceEvents": [1]},
    }
    text = json.dumps({**before, **trace, "traceName": f"/home/{SECRET}/trace.json", "username": SECRET}, indent=1)
    path = tmp_path / ("trace.json.gz" if zipped else "trace.json")
    path.write_bytes(gzip.compress(text.encode()) if zipped else b"\xef\xbb\xbf" + text.encode())
    read = parsed(path)
    assert scrubbed(path) == {"metadata": 5}
    assert SECRET.encode() not in content(path)
    assert path.read_bytes().startswith(b"\x1f\x8b") == zipped
    kept = json.loads(content(path))
    assert kept["traceEvents"] == trace["traceEvents"] and "deviceProperties" in kept
    check_same_tables(read, parsed(path))


@pytest.mark.parametrize("only_events", [True, False])
def test_the_python_stack_of_a_trace_keeps_the_names_of_files_without_their_folders(tmp_path, only_events):
    calls = [
        f"/home/{SECRET} x/train.py(12): main",
        "torch/nn/modules/module.py(7): forward",
        f"C:\\{SECRET}\\a.py(3): f",
    ]
    common = {"ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    added = [
        *({**common, "cat": "python_function", "name": call, "args": {"Python id": 1}} for call in calls),
        {**common, "cat": "cpu_op", "name": "/not/python", "args": {"Call stack": ";".join(calls), "Host": SECRET}},
    ]
    added[0]["args"]["job"] = [{"environ": {"A": SECRET}}]
    trace = json.loads(content(CPU_TRACE))
    trace["traceEvents"] += added
    trace["distributedInfo"] = {"backend": "nccl", "hostname": SECRET}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace["traceEvents"] if only_events else trace))
    read = parsed(path)
    assert scrubbed(path)["events"] == 3 and not scrubbed(path)
    assert SECRET not in path.read_text()
    kept = json.loads(path.read_text())
    *stack, operator = (kept if only_events else kept["traceEvents"])[-4:]
    short = ["train.py(12): main", calls[1], "a.py(3): f"]
    assert [event["name"] for event in stack] == short
    assert (operator["name"], operator["args"]) == ("/not/python", {"Call stack": ";".join(short)})
    check_same_tables(read, parsed(path))


def test_a_trace_that_is_only_a_list_of_events_without_a_stack_is_not_touched(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(json.loads(content(CPU_TRACE))["traceEvents"]))
    text = path.read_bytes()
    assert scrubbed(path) == {} and path.read_bytes() == text


# --- a real nsys -----------------------------------------------------------------------------------------------------

PROGRAM = f"""
import sys, nvtx
print("standard output says {SECRET}")
print("standard error says {SECRET}", file=sys.stderr)
with nvtx.annotate("forward"):
    pass
"""


@pytest.mark.slow
def test_a_run_under_a_real_nsys_leaves_no_secret_in_its_export_and_says_which_files_still_hold_it(nsys, tmp_path):
    pytest.importorskip("nvtx")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pipeline.yaml").write_text(
        "version: 1\nname: secret\nworkloads:\n  program:\n    profilers: [nsys]\n"
        f"    command: ['{sys.executable}', program.py, --password, {SECRET}]\n    env: {{MY_TOKEN: {SECRET}}}\n"
    )
    done = profpipe(tmp_path, "run", PATH=f"{nsys.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "out" / "latest").resolve()
    raw = folder / "raw" / "program" / "nsys"
    assert SECRET.encode() in (raw / "capture.nsys-rep").read_bytes()
    assert SECRET.encode() not in (raw / "capture.sqlite").read_bytes()
    data, record = store.load(folder)
    assert list(data.ranges["range"]) == ["forward"]
    assert record.files[0].scrubbed is True
    assert {"raw/program/nsys/capture.nsys-rep", "raw/program/nsys/log.txt"} <= set(record.private_files)
    listed = {file.path: file.bytes for file in record.jobs[0].files}
    assert listed["raw/program/nsys/capture.sqlite"] == (raw / "capture.sqlite").stat().st_size


def test_nsys_itself_still_reads_a_scrubbed_export(nsys, tmp_path):
    copy = writable_copy(ATTENTION, tmp_path)
    scrubbed(copy)
    stats = [nsys, "stats", "-q", "-f", "csv", "-r", "gpukernsum", copy]
    done = subprocess.run(stats, capture_output=True, text=True, timeout=60)
    assert "fmha_cutlassF_f16_aligned_64x64_rf_sm80" in done.stdout, done.stdout + done.stderr
