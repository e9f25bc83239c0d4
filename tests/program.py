"""Run profpipe as a process on the CPU, and read the tables that it writes."""

import csv
import io
import os
from pathlib import Path

import forked
import pandas as pd

from profpipe.results import store

ROOT = Path(__file__).resolve().parents[1]

#: The PYTHONPATH of a run whose workloads need no torch: their processes start at once.
WITHOUT_TORCH = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'no_torch'}"


def profpipe(folder, *arguments, exit_code=0, **environment):
    """Run profpipe in ``folder`` and return what it prints; fail unless it exits with ``exit_code``."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **environment}
    done = forked.run(folder, *arguments, env=variables)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


def rows(file):
    """Of a table, as text."""
    if file.suffix == ".parquet":
        written = io.BytesIO()
        store.write_csv(pd.read_parquet(file), written)
        text = written.getvalue().decode()
    else:
        text = file.read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text, newline="")))
