"""The study of the language model, in a reduced form that any machine runs."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "transformer_lm.yaml"

_REDUCED = {
    "SIZES": "tiny", "SIZE": "tiny", "CONTEXT": "16", "CONTEXTS": "16", "BATCH": "1", "PRECISION": "fp32,bf16",
    "COMPILE": "false", "WARMUP": "1", "REPEATS": "2",
}  # fmt: skip


def _profpipe(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_study_lists_its_cases_and_takes_its_sizes_from_the_environment() -> None:
    listed = _profpipe("list", PIPELINE)
    assert "sizes: transformer_lm, 27 cases under plain, torch, nsys" in listed
    assert "size=large,what=train_step,precision=fp16" in listed
    narrowed = _profpipe("list", PIPELINE, SIZES="xl,2.7B", PRECISION="bf16", CONTEXTS="2048")
    assert "sizes: transformer_lm, 6 cases" in narrowed
    assert "size=2.7B,context=2048" in narrowed


def test_the_reduced_study_runs_on_a_cpu(tmp_path: Path) -> None:
    _profpipe("run", PIPELINE, "-p", "plain", "--set", "defaults.timing.budget_s=0.05", "--out", tmp_path, **_REDUCED)
    with (tmp_path / "latest" / "cases.csv").open(newline="") as stream:
        cases = list(csv.DictReader(stream))
    assert {case["workload"] for case in cases} == {"sizes", "contexts", "compiled", "memory"}
    assert {case["status"] for case in cases} == {"ok"}
    assert len(cases) == 6 + 4 + 4 + 1
    with (tmp_path / "latest" / "metrics.csv").open(newline="") as stream:
        metrics = {row["metric"] for row in csv.DictReader(stream) if row["workload"] == "sizes"}
    assert {"time", "flops", "parameters", "error_max", "error_mean"} <= metrics
