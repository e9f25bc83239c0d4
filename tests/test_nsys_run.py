"""The pipeline under a real nsys, on a machine that needs no GPU: the ranges of the cases arrive in the tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profpipe.results import store

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run_under_nsys(nsys, made_once):
    pytest.importorskip("torch")
    # A space in the path, as users have them.
    return (made_once("under nsys", lambda out: run_pipeline(nsys, out)) / "latest").resolve()


def run_pipeline(nsys, out):
    overrides = ["impl=sdpa_math", "mode=fwd_bwd", "batch=1", "heads=2", "seqlen=64,128", "repeats=3", "warmup=1"]
    sets = [word for override in overrides for word in ("--set", override)]
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "run", str(ROOT / "pipeline.yaml"), "-p", "nsys", "--out", str(out), *sets],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{nsys.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_iteration_of_each_case_is_a_range_with_its_phases(run_under_nsys):
    data, _ = store.load(run_under_nsys)
    assert set(data.cases["status"]) == {"ok"}
    ranges = data.ranges.set_index(["case", "range"])["instances"].to_dict()
    cases = [f"impl=sdpa_math,mode=fwd_bwd,batch=1,heads=2,seqlen={seqlen}" for seqlen in (64, 128)]
    for case in cases:
        assert {name: ranges[case, name] for name in ("", "forward", "backward")} == {
            "": 3,
            "forward": 3,
            "backward": 3,
        }


def test_the_record_names_the_tool_and_the_files_that_it_left(run_under_nsys):
    _, record = store.load(run_under_nsys)
    assert record.tools["nsys"].version.count(".") == 2
    (job,) = record.jobs
    assert [Path(file.path).name for file in job.files] == ["capture.sqlite", "job.jsonl"]
    assert (run_under_nsys / "raw" / "attention" / "nsys" / "capture.nsys-rep").stat().st_size > 0
    files = [run_under_nsys / name for name in record.private_files]
    assert {path.name for path in files} == {"capture.nsys-rep", "log.txt", "request.json", "fingerprint.json"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


def test_the_summary_says_which_files_still_hold_the_environment(run_under_nsys):
    assert "`.nsys-rep` files hold the environment" in (run_under_nsys / "details.md").read_text()
