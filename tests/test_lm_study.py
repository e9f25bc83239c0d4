"""The study of the language model, in a reduced form that any machine runs."""

from pathlib import Path

import lazy
import pytest
import yaml
from program import profpipe, rows
from report_study import read_pages

from profpipe import plugins

pytestmark = lazy.needs("torch")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "transformer_lm.yaml"

_REDUCED = {
    "SIZES": "tiny", "CONTEXT": "16", "BATCH": "1", "VOCAB": "500", "PRECISION": "fp32", "PROFILERS": "plain,torch",
    "MEMORY_SIZES": "tiny", "MEMORY_CONTEXTS": "16", "MEMORY_PRECISION": "fp32", "WARMUP": "1", "REPEATS": "2",
}  # fmt: skip


def test_the_study_lists_its_cases_and_takes_its_sizes_from_the_environment():
    listed = profpipe(ROOT, "list", PIPELINE)
    assert "sizes: transformer_lm, 60 cases under plain, nsys" in listed
    assert "size=2.7B,what=train_step,precision=fp16" in listed
    narrowed = profpipe(ROOT, "list", PIPELINE, SIZES="xl,2.7B", PRECISION="bf16", MEMORY_CONTEXTS="2048")
    assert "sizes: transformer_lm, 8 cases" in narrowed
    assert "size=large,what=train_step,context=2048" in narrowed


def test_the_study_draws_memory_over_the_context_a_line_a_size_and_kind():
    (plot,) = yaml.safe_load(PIPELINE.read_text(encoding="utf-8"))["plots"]
    assert (plot["workload"], plot["over"], plot["lines"], plot["value"]) == (
        "memory", "context", ["size", "what", "precision"], "memory",
    )  # fmt: skip


def test_the_study_is_planned_without_a_gpu():
    planned = profpipe(ROOT, "run", PIPELINE, "--dry-run", PROFILERS="plain")
    assert all(f"# {name} under plain" in planned for name in ("sizes", "contexts", "batches", "compiled", "memory"))


@pytest.mark.exhaustive
def test_the_reduced_study_runs_on_a_cpu(tmp_path):
    chosen = ("-w", "sizes", "-w", "memory", "--set", "defaults.timing.budget_s=0.05")
    profpipe(ROOT, "run", PIPELINE, *chosen, "--out", tmp_path, **_REDUCED)
    run = tmp_path / "latest"
    cases = rows(run / "cases.csv")
    assert {(case["workload"], case["profiler"], case["status"]) for case in cases} == {
        ("sizes", "plain", "ok"), ("sizes", "torch", "ok"), ("memory", "plain", "ok"), ("memory", "memory", "skipped"),
    }  # fmt: skip
    assert len(cases) == 4 + 4 + 2 + 2
    metrics = [row for row in rows(run / "metrics.parquet") if row["workload"] == "sizes"]
    assert {"time", "flops", "parameters", "error_max"} <= {row["metric"] for row in metrics if not row["subject"]}
    assert ("forward > softmax", "flops") in {(row["subject"], row["metric"]) for row in metrics}
    page = read_pages(run)
    passes = page.split("### Passes of a full step, by their kernels\n")[1].split("###")[0]
    assert "| forward | backward | optimizer |" in passes
    arithmetic = page.split("### The sizes, and the arithmetic of a forward pass\n")[1].split("###")[0]
    assert "| precision |" in arithmetic  # one table for all of them
    assert "## Work by phase: sizes\n\nFLOPs and bytes" in page
    assert "Memory by phase" not in page  # there is no record of memory without a GPU


def test_a_model_of_four_layers_can_be_looked_into_by_ncu():
    """A study of guided ncu needs large dimensions and as few layers as possible."""
    workload = plugins.load_module(ROOT / "workloads" / "transformer_lm.py")
    given = {"size": "custom", "d_model": 64, "d_ff": 96, "layers": 4, "heads": 4, "context": 8, "batch": 1}
    assert workload.available(given) is None
    assert workload.build({**given, "what": "train_step"})().ndim == 0
    assert workload.phase_work(given)["forward > softmax"]["flops"] == 5 * 4 * (4 * 8 * 8)
