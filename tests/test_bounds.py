"""Files that are hostile, damaged or merely very large: each is read or refused in little time and memory."""

import gzip
import json
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from nsys_exports import Export

import profpipe
from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError, UnreadableFile
from profpipe.ingest import bounds, kernel_classes, kernel_names, reader
from profpipe.report.labels import shorten


def read(path):
    return reader.parse(reader.choose(path, reader.parsers()), path)


def doubling_name(times):
    """Return a mangled name of ``P<P<...>, P<...>>``, whose substitutions double its length ``times`` times."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1PIiiE" + "".join(f"S_IS{digits[i]}_S{digits[i]}_E" for i in range(times))


@pytest.mark.slow
def test_a_mangled_name_whose_substitutions_double_stays_as_it_is():
    for times in (24, 30):
        name = doubling_name(times)
        assert len(name) < 320 and kernel_names.normalise(name) == name
    assert kernel_names.normalise(doubling_name(1)) == "f(P<int, int>, P<P<int, int>, P<int, int>>)"


@pytest.fixture
def low_bounds(monkeypatch):
    """Lower the bounds, since to write a file with many names takes longer than to read it."""
    monkeypatch.setattr(bounds, "MOST_NAMES", 1_000)
    monkeypatch.setattr(bounds, "MOST_PATHS", 1_000)
    monkeypatch.setattr(bounds, "MOST_CASES", 3_000)


@pytest.mark.parametrize(
    "name",
    [
        "x<" + "1" * 50_000 + ">(int)",
        "x<const " + "a " * 25_000 + ">()",
        "::".join(["ns"] * 12_000) + "<int>(int)",
        "f(" + "operator " * 6_000,
        "x<(" + "'lambda" * 7_000 + ">(",
    ],
    ids=["digits", "const", "namespaces", "operators", "lambdas"],
)
def test_a_name_of_50_000_characters_is_classified_and_shortened_at_once(name):
    begin = time.process_time()
    assert kernel_names.normalise(name) == name.strip()
    assert kernel_classes.classes([name]) == ["other"]
    assert len(shorten(name)) <= 100
    assert time.process_time() - begin < 2


def test_pushes_without_pops_are_read_and_noted(tmp_path):
    """nsys gives a range that is never popped no end."""
    export = Export()
    for i in range(20_000):
        export.range(10 * i, None, f"step {i}")
        export.launch(10 * i + 2, i + 1)
    begin = time.process_time()
    tables = read(export.write_sqlite(tmp_path / "nested.sqlite"))
    assert time.process_time() - begin < 8
    assert len(tables.ranges) == bounds.DEEPEST
    deepest = tables.ranges.iloc[-1]
    assert deepest["instances"] == 20_000 - bounds.DEEPEST + 1 and deepest["kernels"] == 20_000 - bounds.DEEPEST + 1
    assert tables.ranges.iloc[0]["kernels"] == 20_000 and tables.kernels["calls"].sum() == 20_000
    assert any(f"nest more than {bounds.DEEPEST} deep" in note for note in tables.origin.notes)


def test_a_case_below_ranges_without_pops_keeps_its_kernels(tmp_path):
    export = Export()
    for i in range(300):
        export.range(100 * i, None, "leak")
        export.range(100 * i + 10, 100 * i + 50, f"profpipe:impl=k{i % 2}")
        export.range(100 * i + 20, 100 * i + 40, "forward")
        export.launch(100 * i + 22, i + 1)
    tables = read(export.write_sqlite(tmp_path / "leak.sqlite"))
    calls = tables.kernels.groupby(["case", "phase"])["calls"].sum().to_dict()
    assert calls == {("impl=k0", "forward"): 150, ("impl=k1", "forward"): 150}


@pytest.mark.usefixtures("low_bounds")
def test_many_names_of_kernels_are_folded_and_no_time_is_lost(tmp_path):
    export = Export()
    count = bounds.MOST_NAMES + 500
    for i in range(count):
        export.launch(100 * i, i + 1, f"kern_{i}", lasts=5 if i % 2 else 7)
    tables = read(export.write_sqlite(tmp_path / "names.sqlite"))
    assert len(tables.kernels) == bounds.MOST_NAMES and tables.kernels["calls"].sum() == count
    assert tables.kernels["total_ns"].sum() == tables.origin.total_ns
    folded = tables.kernels[tables.kernels["kernel"] == bounds.OTHER_KERNELS]
    assert folded["calls"].tolist() == [501] and folded["max_ns"].tolist() == [5.0]
    assert f"501 names of kernels beyond the {bounds.MOST_NAMES - 1:,}" in "".join(tables.origin.notes)


@pytest.mark.usefixtures("low_bounds")
def test_many_names_in_a_trace_of_torch_are_folded(tmp_path):
    count = bounds.MOST_NAMES + 500
    events = [
        {"ph": "X", "cat": "kernel", "name": f"kern_{i}", "ts": 10 * i, "dur": 2, "pid": 0, "tid": 7,
         "args": {"device": 0, "stream": 7, "correlation": i + 1}}
        for i in range(count)
    ]  # fmt: skip
    events.append({"ph": "X", "cat": "user_annotation", "name": "all", "ts": 0, "dur": 10 * count, "pid": 1, "tid": 1})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    tables = read(path)
    assert len(tables.kernels) == bounds.MOST_NAMES and tables.kernels["calls"].sum() == count
    assert set(tables.ranges["range"]) == {"all"}
    assert any(bounds.OTHER_KERNELS in note for note in tables.origin.notes)


@pytest.mark.usefixtures("low_bounds")
def test_many_names_of_ranges_are_folded(tmp_path):
    export = Export()
    count = bounds.MOST_PATHS + 500
    for i in range(count):
        export.range(100 * i, 100 * i + 50, f"request {i}")
        export.launch(100 * i + 10, i + 1)
    tables = read(export.write_sqlite(tmp_path / "ranges.sqlite"))
    assert len(tables.ranges) == bounds.MOST_PATHS + 1 and tables.ranges["instances"].sum() == count
    assert tables.ranges.set_index("range").loc[bounds.OTHER_RANGES, "kernels"] == 500


@pytest.mark.usefixtures("low_bounds")
def test_more_cases_than_any_run_has_are_refused(tmp_path):
    export = Export()
    for i in range(3_200):
        export.range(100 * i, 100 * i + 50, f"profpipe:i={i}")
    with pytest.raises(UnreadableFile, match="more than 3,000 different cases"):
        read(export.write_sqlite(tmp_path / "cases.sqlite"))


def test_a_job_with_more_cases_than_any_run_has_is_refused(tmp_path, low_bounds):
    cases = "".join(f'{{"event": "case_started", "case": "n={i}"}}\n' for i in range(3_001))
    (tmp_path / "job.jsonl").write_text('{"event": "started"}\n' + cases)
    with pytest.raises(UnreadableFile, match="more than profpipe reads: it has more than 3,000 cases"):
        read(tmp_path / "job.jsonl")


# --- hostile files ---------------------------------------------------------------------------------------------------


def test_views_and_virtual_tables_of_an_export_are_not_read(tmp_path):
    path = Export().write_sqlite(tmp_path / "views.sqlite")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i + 1 AS 'end' FROM n"
    with closing(sqlite3.connect(path)) as database:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_GPU"):
            database.execute(f"CREATE VIEW {table} AS {endless}")
        database.execute("CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_MEMCPY USING fts5(start)")
        database.commit()
    begin = time.process_time()
    assert not len(read(path).kernels)
    assert time.process_time() - begin < 5


def test_views_in_place_of_all_tables_are_no_export(tmp_path):
    with closing(sqlite3.connect(tmp_path / "views.sqlite")) as database:
        database.execute(
            "CREATE VIEW StringIds AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT i FROM n"
        )
        database.commit()
    with pytest.raises(UnreadableFile, match="in no format"):
        read(tmp_path / "views.sqlite")


def test_a_text_of_line_ends_is_refused_before_it_is_split(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_LINES", 1_000_000)
    path = tmp_path / "ncu.csv"
    path.write_bytes(b"==PROF== Connected\n" + b"\n" * 2_000_000)
    with pytest.raises(UnreadableFile, match="more than 1,000,000 lines"):
        read(path)


@pytest.mark.parametrize(("head", "filling"), [(b"==PROF== Connected\n", b" "), (b'{"traceEvents": [', b" ")])
def test_a_zip_that_holds_far_more_than_its_size_is_refused(tmp_path, head, filling):
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(190):
            file.write(filling * (1 << 20))
    with pytest.raises(UnreadableFile, match="unzips to more than"):
        read(path)


SQLITE = Path(__file__).parent / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder in which temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_gzipped_database_is_read_like_the_plain_one(tmp_path, temporary):
    path = tmp_path / "attn_h200.sqlite.gz"
    path.write_bytes(gzip.compress(SQLITE.read_bytes()))
    packed, plain = profpipe.read(path), profpipe.read(SQLITE)
    assert not packed.manifest.refused and packed.manifest.files[0].source == str(path)
    times = [side.kernels[["kernel", "calls", "total_ns"]] for side in (packed, plain)]
    assert times[0].equals(times[1])
    assert profpipe.compare(path, SQLITE).results["cases"]
    assert not list(temporary.iterdir())


def write_bomb(path):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(bounds.SQLITE_HEAD)
        for _ in range(190):
            file.write(bytes(1 << 20))


@pytest.mark.parametrize(
    ("write", "room", "why"),
    [
        (write_bomb, None, "it unzips to more than 1[0-9]{2} MiB"),
        (write_bomb, 40 << 20, "it unzips to more than half of the free space of "),
        (lambda path: path.write_bytes(gzip.compress(SQLITE.read_bytes())[:-2000]), None, "is a gzip file that is cut"),
        (
            lambda path: path.write_bytes(gzip.compress(bounds.SQLITE_HEAD + bytes(5000))),
            None,
            "no format that profpipe",
        ),
        (lambda path: path.write_bytes(gzip.compress(b"hello")), None, "is compressed"),
    ],
)
def test_a_hostile_gzipped_database_is_refused_and_leaves_nothing(tmp_path, temporary, monkeypatch, write, room, why):
    path = tmp_path / "bomb.sqlite.gz"
    write(path)
    if room:
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=room))
    with pytest.raises(UnreadableFile, match=why) as caught:
        profpipe.read(path)
    assert caught.value.path == path and not list(temporary.iterdir())


def test_a_trace_of_entries_that_are_no_events_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_OTHER_ENTRIES", 10_000)
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + "{}," * 20_000 + "{}]}")
    with pytest.raises(UnreadableFile, match="more than 10,000 entries without a phase"):
        read(path)


# --- pipeline files --------------------------------------------------------------------------------------------------

HEAD = "version: 1\nworkloads:\n  w:\n    command: [echo, '{a}']\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 30)),
         "more than 50,000 values"),
        (HEAD + f"    matrix: {{a: [{', '.join(map(str, range(100_000)))}]}}\n", "more than 524,288 characters"),
        (HEAD + "    matrix: {" + ", ".join(f"a{i}: [1,2,3,4,5,6,7,8,9,10]" for i in range(12)) + "}\n",
         "has 1,000,000,000,000 points"),
        (HEAD + "".join(f"    key{i}: 1\n" for i in range(3_000)), "2,9.. more mistakes"),
    ],
    ids=["aliases", "values", "points", "keys"],
)  # fmt: skip
def test_a_pipeline_file_of_bombs_is_refused_at_once(tmp_path, text, what):
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    begin = time.process_time()
    with pytest.raises(ConfigError, match=what):
        load_pipeline(path)
    assert time.process_time() - begin < 10


def test_a_file_of_sums_with_very_many_kernels_is_refused(tmp_path):
    rows = "".join(f'"kern_{i}","1",350,"350","0","350","350","0"\n' for i in range(100_001))
    head = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
    (tmp_path / "x_kernel_stats.csv").write_text(head + rows)
    with pytest.raises(UnreadableFile, match="more than profpipe reads: it names more than 100,000 kernels"):
        read(tmp_path / "x_kernel_stats.csv")
