"""A results folder may come from somebody else: nothing that it names is run, and no write leaves it."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from report_study import ATTENTION, case_row, kernel_row, metric_row, recorded, tables

from profpipe import cli
from profpipe.errors import ConfigError
from profpipe.results import atomic, database, folders, schema, store
from profpipe.results.manifest import Manifest
from profpipe.runner import checkout, job_cache

CASES = [f"impl={impl},n=4" for impl in ("a", "b")]
WORKLOAD = {"matrix": {"impl": ["a", "b"], "n": [4]}, "baseline": {"impl": "a"}}
RUN = {
    "schema_version": schema.SCHEMA_VERSION,
    "name": "small",
    "started": "2026-11-20T05:55:00+00:00",
    "ended": "2026-11-20T05:56:00+00:00",
    "pipeline": {"name": "small", "workloads": {"w": WORKLOAD}},
    "planned": [{"workload": "w", "profiler": "plain", "cases": CASES}],
    "jobs": [{"workload": "w", "profiler": "plain", "cases": CASES, "folder": "raw/w/plain"}],
}
#: Starts a process where Jinja renders it without its sandbox.
TEMPLATE = "{{ cycler.__init__.__globals__.os.system('touch ' ~ %r) }}\n"


@pytest.fixture
def run(tmp_path):
    """A run of two cases in ``out``; ``outside`` is a folder of the user."""
    folder = tmp_path / "out" / "20261120T055500Z-small"
    (folder / "raw" / "w" / "plain").mkdir(parents=True)
    data = tables(
        cases=[case_row(case) for case in CASES],
        kernels=[kernel_row(case, ATTENTION, 10, 1e6) for case in CASES],
        metrics=[metric_row(case, "time", 1e6) for case in CASES],
    )
    store.save(folder, data, Manifest.parse(RUN))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine.txt").write_text("mine")
    return folder


def report(folder, *options):
    return cli.main(["report", str(folder), "--quiet", *options])


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_template_that_the_run_names_or_brings_along_is_not_rendered(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run)
    mark = tmp_path / "outside" / "mark"
    (run / "templates").mkdir()
    (run / "templates" / "SUMMARY.md.j2").write_text(TEMPLATE % str(mark))
    for name in ("order.json", "request.json"):
        (run / "raw" / name).write_text(json.dumps({"path": str(run / "pipeline.yaml"), "pipeline": {}}))
    assert report(run) == 0
    assert not mark.exists() and "impl" in (run / "SUMMARY.md").read_text()


def test_a_template_is_rendered_in_a_sandbox(run, tmp_path, capsys):
    mark, template = tmp_path / "outside" / "mark", tmp_path / "mine.j2"
    template.write_text(TEMPLATE % str(mark))
    assert report(run, "--template", str(template)) == 1
    assert not mark.exists() and f"{template}: access to attribute '__init__'" in capsys.readouterr().err
    template.write_text("{{ 1 // 0 }}")
    assert report(run, "--template", str(template)) == 1
    assert f"{template}: ZeroDivisionError: integer division or modulo by zero" in capsys.readouterr().err


def test_the_template_of_the_current_folder_or_of_an_option_is_used(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "project" / "templates").mkdir(parents=True)
    (tmp_path / "project" / "templates" / "SUMMARY.md.j2").write_text("of the project: {{ document.title }}")
    (tmp_path / "other.j2").write_text("of an option")
    monkeypatch.chdir(tmp_path / "project")
    assert report(run) == 0 and (run / "SUMMARY.md").read_text().startswith("of the project: w")
    assert report(run, "--template", str(tmp_path / "other.j2")) == 0
    assert (run / "SUMMARY.md").read_text() == "of an option\n"
    assert report(run, "--template", "none.j2") == 2 and "--template: none.j2 is no file" in capsys.readouterr().err


def test_a_folder_of_plots_that_is_a_link_is_not_written_to(run, tmp_path, capsys):
    data, document = recorded()
    store.save(run, data, Manifest.parse({"schema_version": schema.SCHEMA_VERSION, **document}))
    (tmp_path / "outside" / "old.png").write_bytes(b"mine")
    (run / "SUMMARY.md").write_text("![old](plots/old.png)")
    (run / "plots").symlink_to(tmp_path / "outside")
    before = content(tmp_path / "outside")
    assert report(run) == 2 and f"{run / 'plots'}: is a link" in capsys.readouterr().err
    assert content(tmp_path / "outside") == before


def test_links_in_the_place_of_files_are_replaced_and_not_followed(run, tmp_path):
    outside = tmp_path / "outside"
    for name in ("SUMMARY.md", "details.md", "gpu_info.txt", "baseline_benchmark.txt", "comparison_results.txt"):
        (run / name).symlink_to(outside / "mine.txt")
    assert report(run) == 0
    assert content(outside) == {"mine.txt": b"mine"} and not (run / "SUMMARY.md").is_symlink()


def test_a_temporary_file_has_a_new_name_and_is_no_existing_file(tmp_path, monkeypatch):
    assert atomic.temporary_name("x") != atomic.temporary_name("x")
    assert len(os.fsencode(atomic.temporary_name("ä" * 255))) <= 255
    monkeypatch.setattr(atomic, "temporary_name", lambda name: ".foreseen")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / ".foreseen").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(FileExistsError):
        atomic.write_text(tmp_path / "SUMMARY.md", "text")
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_refused(run, tmp_path, kind):
    lock = run / "raw" / "lock"
    {"link": lambda: lock.symlink_to(tmp_path / "outside" / "new"), "pipe": lambda: os.mkfifo(lock),
     "folder": lock.mkdir}[kind]()  # fmt: skip
    with pytest.raises(ConfigError, match="raw/lock: is a link or no regular file") as refused, folders.lock(run):
        pass
    # `collect` waits for a lock that another process holds, and not for this one.
    assert not isinstance(refused.value, folders.InUse)
    assert not (tmp_path / "outside" / "new").exists()


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_database_that_is_no_file_of_the_folder_is_refused(run, tmp_path, suffix, kind):
    path = run.parent / f"{database.FILE}{suffix}"
    {"link": lambda: path.symlink_to(tmp_path / "outside" / "new"), "pipe": lambda: os.mkfifo(path),
     "folder": path.mkdir}[kind]()  # fmt: skip
    with pytest.raises(ConfigError, match=f"{path.name}: is a link or no regular file"), database.connect(run.parent):
        pass
    assert content(tmp_path / "outside") == {"mine.txt": b"mine"}


def test_a_journal_that_names_a_file_of_the_user_is_refused(run, tmp_path):
    """SQLite would remove that file after it has rolled back what the journal holds."""
    with database.connect(run.parent) as opened:
        opened.execute("pragma cache_size = 1")
        opened.execute("pragma cache_spill = 1")
        rows = ((f"{n}", "x" * 3000) for n in range(100))
        opened.conn.executemany("insert into runs (run, name) values (?, ?)", rows)
        journal = (run.parent / f"{database.FILE}-journal").read_bytes()
        state = (run.parent / database.FILE).read_bytes()
        opened.conn.rollback()
    # https://www.sqlite.org/fileformat.html#the_rollback_journal and pager.c, writeSuperJournal
    name = os.fsencode(tmp_path / "outside" / "mine.txt")
    trailer = struct.pack(f">I{len(name)}sII", (1 << 30) // 4096 + 1, name, len(name), sum(name))
    (run.parent / database.FILE).write_bytes(state)
    (run.parent / f"{database.FILE}-journal").write_bytes(journal + trailer + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(ConfigError, match=r"profpipe\.db-journal: names another file"), database.connect(run.parent):
        pass
    assert content(tmp_path / "outside") == {"mine.txt": b"mine"}


def test_checkouts_behind_a_link_are_not_removed(run, tmp_path):
    kept = tmp_path / "outside" / "checkouts" / "A"
    kept.mkdir(parents=True)
    (run / "raw" / "w" / "plain").rmdir()
    (run / "raw" / "w").rmdir()
    (run / "raw").rmdir()
    (run / "raw").symlink_to(tmp_path / "outside")
    checkout.remove_abandoned(run.parent)
    assert kept.is_dir() and not (tmp_path / "outside" / "lock").exists()


def test_the_files_of_a_job_with_a_link_are_not_reused(run, tmp_path):
    entry = Manifest.parse({"jobs": [{"folder": "raw/w/plain", "key": "k", "cases": ["n=1"]}]})
    (run / "raw" / "w" / "plain" / "job.jsonl").touch()
    assert job_cache.find_cached_jobs([(run, entry)])
    (run / "raw" / "w" / "plain" / "log.txt").symlink_to(tmp_path / "outside" / "mine.txt")
    assert job_cache.find_cached_jobs([(run, entry)]) == {}


@pytest.mark.parametrize(
    "module", ["argparse", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pandas", "jinja2"))]
)
def test_python_files_in_the_current_folder_are_not_imported(run, module):
    (run / f"{module}.py").write_text("open('mark', 'w')")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "report", "."], cwd=run, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not (run / "mark").exists() and (run / "SUMMARY.md").exists()


def test_a_number_of_run_json_that_is_a_text_of_many_digits_is_refused(run, capsys):
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "files": [{"launches": "9" * 400}]}))
    assert cli.main(["report", str(run)]) == 2
    assert "files.0.launches is a number beyond 64 bits" in capsys.readouterr().err


def test_a_table_in_parquet_with_damaged_metadata_of_pandas_is_refused(run, capsys):
    file = run / "kernels.parquet"
    table = parquet.read_table(file)
    damaged = table.schema.metadata[b"pandas"].replace(b"pandas_type", b"pandas_tipe")
    parquet.write_table(table.replace_schema_metadata({"pandas": damaged}), file)
    assert cli.main(["report", str(run)]) == 2
    assert f"{file}: is not the table that profpipe wrote: " in capsys.readouterr().err


def test_a_table_of_few_bytes_with_a_long_text_in_many_rows_is_refused(run, capsys):
    file, rows = run / "kernels.parquet", 100_000
    table = parquet.read_table(file).slice(0, 1).take([0] * rows)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["z" * 1_000_000]))
    # `device` should hold numbers.
    for name in ("phase", "device"):
        parquet.write_table(table.set_column(table.column_names.index(name), name, texts), file)
        assert file.stat().st_size < 1_000_000
        assert report(run) == 2
        assert f"{file}: is more than profpipe reads: to read it takes more than" in capsys.readouterr().err


@pytest.mark.parametrize("cell", [["a"], {"a": "b"}, [[1]]])
def test_a_column_of_lists_is_refused(run, capsys, cell):
    file = run / "kernels.parquet"
    table = parquet.read_table(file)
    cells = pa.array([cell] * len(table))
    parquet.write_table(table.set_column(table.column_names.index("phase"), "phase", cells), file)
    assert report(run) == 2
    assert "column phase" in (error := capsys.readouterr().err) and "holds neither texts nor numbers" in error
