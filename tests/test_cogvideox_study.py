"""The study of CogVideoX, in a reduced form that any machine runs."""

import json
from pathlib import Path

import lazy
import pytest
from program import profpipe, rows
from report_study import read_pages

pytestmark = lazy.needs("torch", "diffusers")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "cogvideox.yaml"

_REDUCED = {
    "SIZE": "tiny", "FRAMES": "9", "HEIGHT": "32", "WIDTH": "48", "STEPS": "2", "DTYPE": "fp32",
    "IMPLS": "sdpa_flash,sdpa_math,fa2", "WARMUP": "1", "STEP_WARMUP": "1", "STEP_REPEATS": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.mark.slow
def test_the_study_plans_a_video_and_a_step_of_each_implementation():
    listed = profpipe(ROOT, "list", PIPELINE)
    assert "video: cogvideox, 13 cases under plain, nsys" in listed
    assert "step: cogvideox, 13 cases under plain, torch, nsys" in listed
    assert "26 cases" in profpipe(ROOT, "list", PIPELINE, COMPILE="false,true")
    profpipe(ROOT, "run", PIPELINE, "--dry-run")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_reduced_study_runs_on_a_cpu(tmp_path):
    only = ("-w", "video", "-p", "plain", "-p", "torch", "--set", "defaults.timing.budget_s=0.05")
    profpipe(ROOT, "run", PIPELINE, *only, "--out", tmp_path, **_REDUCED, PROFILERS="plain,torch")
    cases = {
        (case["profiler"], json.loads(case["params"])["impl"]): case for case in rows(tmp_path / "latest" / "cases.csv")
    }
    assert {key: case["status"] for key, case in cases.items()} == {
        (profiler, impl): "skipped" if impl == "fa2" else "ok"
        for profiler in ("plain", "torch")
        for impl in ("sdpa_flash", "sdpa_math", "fa2")
    }
    entered = {(row["range"], row["instances"]) for row in rows(tmp_path / "latest" / "ranges.parquet")}
    assert {("denoising", "1"), ("denoising > transformer", "2"), ("denoising > transformer > attention", "4"),
            ("denoising > scheduler", "2"), ("decode", "1")} <= entered  # fmt: skip
    metrics = {row["metric"] for row in rows(tmp_path / "latest" / "metrics.parquet")}
    assert {"time", "flops", "parameters", "tokens", "attention_calls", "error_rel_l1", "cosine"} <= metrics
    summary = read_pages(tmp_path / "latest")
    assert "weights random" in summary
    for title in ("Kernels of one video", "Where a video's time goes", "direct_copy calls", "add calls"):
        assert title in summary
