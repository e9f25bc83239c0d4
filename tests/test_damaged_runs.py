"""One bad line makes no run unfinishable: what is good is kept, what is not is reported on the page."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import hostile_folders
import pytest

from profpipe import cli
from profpipe.errors import ConfigError
from profpipe.job import IncidentKind
from profpipe.results import database, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables
from profpipe.runner import fingerprint
from profpipe.runner.request import REQUEST_FILE

ROOT = Path(__file__).resolve().parents[1]

WORKLOAD = "def build(params):\n    return lambda: sum(range(100))\n"
PIPELINE = """
version: 1
name: small
defaults: {profilers: [plain], warmup: 0, repeats: 3, timing: {order: sequential, budget_s: 0.02, rounds: 1}}
workloads:
  sums: {script: sums.py, matrix: {n: [1, 2, 3]}}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "sums.py").write_text(WORKLOAD)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def profpipe(project, *words):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "no_torch")))
    environment = {**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": str(project / "state")}
    return subprocess.run(
        [sys.executable, "-m", "profpipe", *words], cwd=project, env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


def unfinished(project, monkeypatch):
    """A run of which no job counts as done, as if its runner had been killed after its process ended."""
    assert profpipe(project, "run").returncode == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    folder = (project / "out" / "latest").resolve()
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "ended": None, "jobs": [], "files": []}))
    return folder


def change_request(folder, **settings):
    document = json.loads((folder / REQUEST_FILE).read_text())
    document["pipeline"] |= settings
    document["pipeline"]["workloads"]["sums"]["colour"] = "red"
    document["later"] = True
    (folder / REQUEST_FILE).write_text(json.dumps(document))
    fingerprint.remember(folder)


@pytest.mark.slow
def test_a_run_with_damaged_files_of_each_kind_is_finished(project, monkeypatch):
    folder = unfinished(project, monkeypatch)
    events = folder / "raw/sums/plain/job.jsonl"
    first, *rest = events.read_text().splitlines()
    bad = [
        "[1]",
        '{"event": "case_ended"}',
        '{"event": ["started"]}',
        "7",
        "\x00\x01",
        '{"event": "samples", "case": 1}',
    ]
    events.write_text("\n".join([first, *bad, *rest]) + "\n")
    change_request(folder, later={"setting": [1]})
    done = profpipe(project, "resume")
    assert done.returncode == 0, done.stdout + done.stderr
    data, run = store.load(folder)
    assert list(data.cases["status"]) == ["ok"] * 3 and run.ended
    assert [incident.kind for incident in run.incidents] == [
        IncidentKind.UNKNOWN_SETTINGS,
        IncidentKind.DAMAGED_JOURNAL,
    ]
    started = [line for line in events.read_text().splitlines() if '"case_started"' in line]
    assert len(started) == 3, "no case was measured again"
    page = (folder / "SUMMARY.md").read_text()
    for text in ("workloads.sums.colour, later", "some lines of this record", "is not a JSON object"):
        assert text in page


@pytest.mark.slow
def test_a_value_that_is_no_pipeline_is_still_refused(project, monkeypatch):
    folder = unfinished(project, monkeypatch)
    change_request(folder, workloads={"sums": {"script": 7}})
    done = profpipe(project, "resume")
    assert done.returncode == 2 and "is not the file that profpipe wrote" in done.stderr


# --- the history -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_found_the_database_locked_is_entered_by_the_next_command(project):
    (project / "out").mkdir()
    with database.connect(project / "out"):
        pass
    with closing(sqlite3.connect(project / "out" / database.FILE)) as other:
        other.execute("begin exclusive")
        done = profpipe(project, "run")
        assert done.returncode == 0 and "in use by another program" in done.stderr, done.stderr
        assert "the next command enters it" in done.stderr
        assert profpipe(project, "history").returncode == 2
    run = (project / "out" / "latest").resolve()
    shown = profpipe(project, "history")
    assert shown.returncode == 0 and run.name in shown.stdout
    assert database.find_missing(project / "out") == []


def test_a_copy_of_a_run_is_not_entered(tmp_path):
    folder = tmp_path / "copy" / "raw"
    folder.mkdir(parents=True)
    Manifest(name="x").save(folder.parent)
    database.mark_missing(folder.parent)
    assert database.find_missing(tmp_path) == [folder.parent]
    folder.parent.rename(tmp_path / "baseline")
    assert database.find_missing(tmp_path) == []


FOREIGN = {
    "a view": "create table runs (run, name, started, ended); create view cases as select * from runs",
    "a view of runs": "create table t (run, name, started, ended); create view runs as select * from t",
    "other keys": "create table runs (id integer primary key, run, name, started, ended)",
    "checked columns": "create table runs (run primary key, name, started, ended check (ended = 'never'))",
    "a trigger": "create table runs (run, name, started, ended); create trigger t after insert on runs begin "
    "select 1; end",
    "an index of an expression": "create table runs (run, name, started, ended); create index i on runs (abs(run))",
    "an index of a quoted function": "create table runs (run, name, started, ended); "
    'create index i on runs ("abs"(run))',
    "a generated column": "create table runs (run, name, started, ended, x as (zeroblob(run)))",
    "a default": "create table runs (run, name, started, ended, x default (randomblob(9)))",
    "a virtual table": "create table runs (run, name, started, ended); create virtual table cases using fts5(run)",
    "another program": "create table messages (text)",
    "a later version": "create table runs (run, name, started, ended); pragma user_version = 99",
}


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN)
def test_a_database_of_another_schema_is_named_and_not_changed(tmp_path, script):
    path = tmp_path / database.FILE
    with closing(sqlite3.connect(path)) as other:
        other.executescript(script)
    with pytest.raises(ConfigError, match=re.escape(database.FILE)):
        database.store_run(tmp_path, tmp_path / "r", Tables(), Manifest(name="r", ended="2026-01-01"))


@pytest.mark.slow
def test_a_sample_beyond_any_number_ends_no_report(tmp_path):
    out = hostile_folders.make_run(tmp_path)
    run = next(path for path in out.iterdir() if path.is_dir() and path.name != "latest")
    events = run / "raw" / "sums" / "plain" / "job.jsonl"
    text, found = re.subn(r'("values": \[)', r"\g<1>1e999, ", events.read_text())
    assert found
    events.write_text(text)
    assert cli.main(["report", str(run), "--quiet"]) in (0, 1)
