"""Files of the hostile corpus are read or refused, in little time and memory. `make hostile` reads all of them."""

import faulthandler
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from profpipe import cli
from profpipe.results import store

ROOT = Path(__file__).resolve().parents[1]

#: On a slow machine fewer files are tried.
SECONDS = 8
#: Of the files that are made: one of each of the attacks that bounds and the budget are for.
DRAWN = (
    "nsys SQLite: an endless view",
    "nsys SQLite: 10^14 rows",
    "rocpd: an endless view",
    "torch trace, gzip: a zip of zips",
)


def failures(tmp_path, *options):
    """Return the lines of failures, and the number of files."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "hostile.py"), *options], capture_output=True, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    files = int(re.findall(r"^\| all \| (\d+) ", done.stdout, re.MULTILINE)[0])
    return ([] if done.returncode == 0 else done.stderr.splitlines()), files


@pytest.mark.slow
def test_a_sample_of_the_corpus_is_read_or_refused(tmp_path):
    found, files = failures(tmp_path, "--small", "--seconds", str(SECONDS), "--match", "kept: |" + "|".join(DRAWN))
    assert found == [] and files > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_whole_corpus_is_read_or_refused(tmp_path):
    # It takes half an hour, longer than pytest waits for a test.
    faulthandler.cancel_dump_traceback_later()
    found, files = failures(tmp_path)
    assert found == [] and files >= 1_500


@pytest.mark.parametrize("field", ["device", "stream", "correlation"])
@pytest.mark.parametrize("number", [-3, 2**63 - 1, 1e30])
def test_a_number_that_no_device_has_is_unknown(tmp_path, field, number):
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 100.0 * i, "dur": 5.0, "pid": 0, "tid": 7,
         "args": {"device": 0, "stream": 7, "correlation": i + 1, **({field: number} if i == 5 else {})}}
        for i in range(6)
    ]  # fmt: skip
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert cli.main(["ingest", str(trace), "--out", str(tmp_path / "out")]) == 0
    kernels = store.load(tmp_path / "out")[0].kernels
    assert kernels["calls"].sum() == 6
    assert field == "correlation" or sorted(kernels[field].dropna()) == [7 if field == "stream" else 0]


def test_a_file_without_a_size_is_never_waited_for(tmp_path, capsys):
    """Such as /proc/kmsg, which root may read."""
    (tmp_path / "capture.json").symlink_to("/proc/self/status")
    os.mkfifo(tmp_path / "pipe.json")
    assert cli.main(["ingest", *map(str, tmp_path.iterdir())]) == 1
    refused = capsys.readouterr().err
    assert "capture.json: is empty. " in refused and "pipe.json: is neither a file nor a folder. " in refused


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_too_little_memory_is_said_in_a_sentence(error, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(store, "load", lambda folder: (_ for _ in ()).throw(error))
    (tmp_path / "run.json").write_text("{}")
    assert cli.main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "profpipe: the memory is exhausted. Free some, raise its limit (ulimit -v), or read less.\n"
    )
