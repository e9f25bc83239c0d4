"""Attention in the shapes of known models: the shapes themselves, and the study on a CPU."""

from pathlib import Path

import lazy
import pytest
from program import profpipe, rows
from report_study import read_pages

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "scenarios.yaml"
scenarios = lazy.workload(ROOT / "workloads" / "attention_scenarios.py")
attention = lazy.workload(ROOT / "workloads" / "attention.py")


@pytest.mark.parametrize(
    ("scenario", "width"),
    [
        ("gpt2-small", 768),
        ("gpt3-large", 12288),
        ("bert-base-16", 768),
        ("bert-large-8", 1024),
        ("gpt3", 12288),
        ("bert-base", 768),
        ("bert-large", 1024),
        ("decode", 4096),
    ],
)
def test_heads_times_head_dim_is_the_width_of_the_model(scenario, width):
    shape = scenarios.facts({"scenario": scenario})
    assert shape["heads"][0] * shape["head_dim"][0] == width


def test_the_published_scenarios_have_the_published_shapes():
    published = {
        "gpt2-small": (8, 1024, 12, 64, True), "gpt3-large": (2, 2048, 96, 128, True),
        "bert-base-16": (16, 512, 12, 64, False), "bert-large-8": (8, 512, 16, 64, False),
        "long-8k": (1, 8192, 8, 64, False), "long-16k": (1, 16384, 8, 64, False),
        "inference-32": (32, 512, 8, 64, False),
    }  # fmt: skip
    assert published.keys() == scenarios.PUBLISHED.keys()
    for name, shape in published.items():
        found = scenarios.facts({"scenario": name})
        assert tuple(found[axis][0] for axis in ("batch", "seqlen", "heads", "head_dim", "causal")) == shape
        assert found["queries"] == found["seqlen"] and found["kv_heads"] == found["heads"]


def test_a_scenario_is_attention_in_its_shape():
    gpt3 = {"batch": 1, "seqlen": 2048, "heads": 96, "head_dim": 128, "causal": True, "dtype": "bf16"}
    params = {"impl": "sdpa_flash", "scenario": "gpt3", "mode": "fwd_bwd"}
    assert scenarios.flops(params) == attention.flops({**gpt3, "mode": "fwd_bwd"})
    assert scenarios.bytes_moved(params) == attention.bytes_moved({**gpt3, "mode": "fwd_bwd"})


def test_decoding_is_one_query_of_each_request_over_its_whole_context():
    params = {"impl": "sdpa_flash", "scenario": "decode"}
    assert scenarios.flops(params) == 4 * 64 * 32 * 8192 * 128
    # Keys and values of 8 heads in bf16; the queries are next to nothing.
    assert scenarios.bytes_moved(params) == pytest.approx(2 * 2 * 64 * 8192 * 8 * 128, rel=1e-3)


def test_the_smallest_scenario_agrees_with_the_reference_and_records_its_shape():
    params = {"impl": "sdpa_math", "scenario": "tiny", "dtype": "fp32", "mode": "fwd_bwd"}
    assert scenarios.available(params) is None
    assert scenarios.check(params)["error_max"] < 1e-4
    assert scenarios.facts(params)["kv_heads"] == (2.0, "1")
    assert scenarios.build(params)()[0].shape == (1, 4, 64, 16)


def test_a_reason_with_a_parameter_of_the_scenario_says_so(monkeypatch):
    # A mock: what attention says on a GPU of one that does not take fewer key/value heads, and of a missing package.
    reasons = iter(["Change head_dim, dtype, kv_heads, seqlen or mode.", "flash_attn is not installed."])
    monkeypatch.setattr(scenarios.implementations, "unavailable_reason", lambda case: next(reasons))
    params = {"impl": "fa2", "scenario": "decode"}
    assert scenarios.available(params).endswith("or mode. Here the scenario sets seqlen, kv_heads, head_dim.")
    assert scenarios.available(params) == "flash_attn is not installed."


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_study_names_every_scenario_and_runs_on_a_cpu(tmp_path):
    printed = profpipe(tmp_path, "run", PIPELINE, "--dry-run")
    assert all(f"scenario={name},impl=fa2" in printed for name in scenarios.SCENARIOS if name != "tiny")
    # The mode is not the default; each line has the shape.
    reduced = {"SCENARIOS": "tiny", "IMPLS": "sdpa_flash,sdpa_math", "MODE": "fwd_bwd"}
    reduced |= {"BUDGET_S": "0.05", "REPEATS": "6"}
    profpipe(tmp_path, "run", PIPELINE, "--out", tmp_path, **reduced)
    assert [case["status"] for case in rows(tmp_path / "latest" / "cases.csv")] == ["ok"] * 4
    summary = read_pages(tmp_path / "latest")
    assert "### Time of a call by scenario" in summary
    assert "### The scenarios" in summary and "No case of this run is in this table" not in summary
