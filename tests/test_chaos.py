"""A sample of the faults of benchmarks/chaos.py: after `resume`, a disturbed run equals an undisturbed one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Most of a dozen faults on two cores; on a slow machine fewer are tried.
FAULTS, SECONDS = 12, 5


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux") or not shutil.which("cc"), reason="needs Linux and cc")
def test_after_a_fault_a_resumed_run_equals_an_undisturbed_one(tmp_path):
    words = ["--faults", "100", "--part", f"1/{100 // FAULTS}", "--seconds", str(SECONDS)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), *words], env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in done.stdout.splitlines()[2:]]
    assert sum(int(row[0]) for row in rows) > 0
    assert all(row[2:] == ["0", "0", "0"] for row in rows), done.stdout
