"""Files of the hostile corpus are read or refused, in little time and memory. `make hostile` reads all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: On a slow machine fewer files are tried.
SECONDS = 15
#: Of the files that are made: one of each of the attacks that bounds and the budget are for.
DRAWN = (
    "nsys SQLite: an endless view",
    "nsys SQLite: 10^14 rows",
    "rocpd: an endless view",
    "torch trace, gzip: a zip of zips",
)


def failures(tmp_path: Path, *options: str) -> tuple[list[str], int]:
    """Return the lines of failures, and the number of files."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "hostile.py"), *options], capture_output=True, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    files = int(re.findall(r"^\| all \| (\d+) ", done.stdout, re.MULTILINE)[0])
    return ([] if done.returncode == 0 else done.stderr.splitlines()), files


@pytest.mark.slow
def test_a_sample_of_the_corpus_is_read_or_refused(tmp_path: Path) -> None:
    found, files = failures(tmp_path, "--small", "--seconds", str(SECONDS), "--match", "kept: |" + "|".join(DRAWN))
    assert found == [] and files > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_whole_corpus_is_read_or_refused(tmp_path: Path) -> None:
    found, files = failures(tmp_path)
    assert found == [] and files >= 1_500
