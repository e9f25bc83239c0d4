"""The study of CogVideoX, in a reduced form that any machine runs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers", reason="the package diffusers is not installed")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "cogvideox.yaml"

_REDUCED = {
    "SIZE": "tiny", "FRAMES": "9", "HEIGHT": "32", "WIDTH": "48", "STEPS": "2", "DTYPE": "fp32",
    "IMPLS": "sdpa_flash,sdpa_math,fa2", "WARMUP": "1", "STEP_WARMUP": "1", "STEP_REPEATS": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip


def _profpipe(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _rows(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / "latest" / f"{table}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_study_plans_a_video_and_a_step_of_each_implementation() -> None:
    listed = _profpipe("list", PIPELINE)
    assert "video: cogvideox, 9 cases under plain, nsys" in listed
    assert "step: cogvideox, 9 cases under plain, torch, nsys" in listed
    assert "18 cases" in _profpipe("list", PIPELINE, COMPILE="false,true")
    _profpipe("run", PIPELINE, "--dry-run")


def test_the_reduced_study_runs_on_a_cpu(tmp_path: Path) -> None:
    only = ("-w", "video", "-p", "plain", "-p", "torch", "--set", "defaults.timing.budget_s=0.05")
    _profpipe("run", PIPELINE, *only, "--out", tmp_path, **_REDUCED, PROFILERS="plain,torch")
    cases = {(case["profiler"], json.loads(case["params"])["impl"]): case for case in _rows(tmp_path, "cases")}
    assert {key: case["status"] for key, case in cases.items()} == {
        (profiler, impl): "skipped" if impl == "fa2" else "ok"
        for profiler in ("plain", "torch")
        for impl in ("sdpa_flash", "sdpa_math", "fa2")
    }
    entered = {(row["range"], row["instances"]) for row in _rows(tmp_path, "ranges")}
    assert {("denoising", "1"), ("denoising > transformer", "2"), ("denoising > transformer > attention", "4"),
            ("denoising > scheduler", "2"), ("decode", "1")} <= entered  # fmt: skip
    metrics = {row["metric"] for row in _rows(tmp_path, "metrics")}
    assert {"time", "flops", "parameters", "tokens", "attention_calls", "error_rel_l1", "cosine"} <= metrics
    summary = (tmp_path / "latest" / "SUMMARY.md").read_text()
    assert "weights random" in summary
    for title in ("Kernels of one video", "Where a video's time goes", "direct_copy calls", "add calls"):
        assert title in summary
