"""The study of accuracy: its fp64 reference, what that covers of a long sequence, and a run whose fastest is wrong.

All on a CPU. A fast and wrong implementation is one that is written here.
"""

import json
import math
import re
from pathlib import Path

import lazy
import pytest
import yaml
from program import profpipe, rows
from report_study import read_pages

torch = lazy.module("torch")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "accuracy.yaml"
attention = lazy.workload(ROOT / "workloads" / "attention.py")
accuracy = lazy.module("profpipe.workload_lib.accuracy")
attention_lib = lazy.module("profpipe.workload_lib.attention")
implementations = lazy.module("profpipe.workload_lib.implementations")

SMALL = {"batch": 2, "seqlen": 40, "heads": 4, "kv_heads": 2, "head_dim": 16, "mode": "fwd_bwd", "reference": "fp64"}
#: Operations of one key/value head of SMALL, forward and backward.
OF_ONE_HEAD = 12 * 2 * 40 * 40 * 16

pytestmark = [lazy.needs("torch"), pytest.mark.usefixtures("on_the_cpu")]


# --- the reference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [0, 7])
def test_fp64_is_exact_where_fp32_is_not(causal, queries):
    """The implementation computes in fp64 and is rounded to fp32 at the end alone: half a unit of fp32's last place."""

    def prepare(case):
        exact = implementations.IMPLEMENTATIONS["plain"].prepare(case)
        return lambda q, k, v: exact(q.double(), k.double(), v.double()).to(q.dtype)

    row = implementations.Implementation(prepare, lambda case: "", on_cpu=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(implementations.IMPLEMENTATIONS, "mine", row)
        params = {**SMALL, "impl": "mine", "dtype": "fp32", "causal": causal, "queries": queries}
        in_fp64, in_fp32 = (attention.check({**params, "reference": name}) for name in ("fp64", "fp32"))
    assert all(0 < in_fp64[f"error_rel_l1{tensor}"] < 2**-24 for tensor in ("", "_dq", "_dk", "_dv"))
    assert all(in_fp64[f"error_rel_l1{t}"] < in_fp32[f"error_rel_l1{t}"] for t in ("", "_dq", "_dk", "_dv"))


def test_all_of_a_short_sequence_is_compared():
    assert accuracy.checked_heads(attention_lib.case_from({**attention.PARAMS, **SMALL}), "fp64", backward=True) == [
        (1, slice(2, 4), slice(1, 2)), (1, slice(0, 2), slice(0, 1)),
        (0, slice(2, 4), slice(1, 2)), (0, slice(0, 2), slice(0, 1)),
    ]  # fmt: skip
    assert attention.facts(SMALL) == {}


def test_of_a_long_one_whole_heads_are_compared_the_last_one_always(monkeypatch):
    case = attention_lib.case_from({**attention.PARAMS, **SMALL})
    monkeypatch.setitem(accuracy.FLOPS, "fp64", 2 * OF_ONE_HEAD)
    assert accuracy.checked_heads(case, "fp64", backward=True) == [
        (1, slice(2, 4), slice(1, 2)), (0, slice(2, 4), slice(1, 2)),
    ]  # fmt: skip
    assert attention.facts(SMALL) == {"checked": (50, "%")}
    monkeypatch.setitem(accuracy.FLOPS, "fp64", 1.0)
    assert accuracy.checked_heads(case, "fp64", backward=True) == [(1, slice(2, 4), slice(1, 2))]
    assert attention.facts({**SMALL, "reference": "fp32"}) == {}


def test_a_long_fp32_reference_is_of_some_heads_too(monkeypatch):
    params = {**SMALL, "reference": "fp32"}
    every = attention.check(params)
    monkeypatch.setitem(accuracy.FLOPS, "fp32", 2 * OF_ONE_HEAD)
    assert attention.facts(params) == {"checked": (50, "%")}
    half = attention.check(params)
    assert half.keys() == every.keys() and half != every
    assert all(half[f"error_max{t}"] <= every[f"error_max{t}"] for t in ("", "_dq", "_dk", "_dv"))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_of_the_heads_that_are_compared_are_whole(monkeypatch, dtype):
    every = attention.check({**SMALL, "dtype": dtype, "causal": True})
    monkeypatch.setitem(accuracy.FLOPS, "fp64", OF_ONE_HEAD)
    one = attention.check({**SMALL, "dtype": dtype, "causal": True})
    assert one.keys() == every.keys() and one != every
    assert all(one[f"error_rel_l1{t}"] < 2 * every[f"error_rel_l1{t}"] for t in ("", "_dq", "_dk", "_dv"))
    assert all(one[f"error_max{t}"] <= every[f"error_max{t}"] for t in ("", "_dq", "_dk", "_dv"))


def test_what_is_wrong_in_the_last_head_alone_is_found_in_any_case(monkeypatch):
    def prepare(case):
        exact = implementations.IMPLEMENTATIONS["plain"].prepare(case)

        def forward(q, k, v):
            out = exact(q, k, v).clone()
            out[-1, -1, -1] = math.nan
            return out

        return forward

    row = implementations.Implementation(prepare, lambda case: "", on_cpu=True)
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", row)
    monkeypatch.setitem(accuracy.FLOPS, "fp64", 1.0)
    assert attention.check({**SMALL, "impl": "mine", "mode": "fwd"})["error_max"] == math.inf


# --- the study -------------------------------------------------------------------------------------------------------


def test_the_study_dry_runs_with_every_implementation_and_dtype(tmp_path):
    printed = profpipe(tmp_path, "run", PIPELINE, "--dry-run")
    # Sliding tile attention has separate lengths and is not exact.
    any_length = {name: row for name, row in implementations.IMPLEMENTATIONS.items() if not row.lengths}
    exact = [name for name, row in any_length.items() if row.has_backward]
    quantised = [name for name, row in any_length.items() if not row.has_backward]
    assert all(f"causal=true,seqlen=4096,impl={name}" in printed for name in exact)
    assert all(f"inputs=local,causal=true,seqlen=4096,impl={name}" in printed for name in quantised)
    assert all(f"raw/{workload}/plain" in printed for workload in ("fp32", "fp16", "bf16", "quantised"))


def test_the_first_table_says_what_its_workloads_allow():
    pipeline = yaml.safe_load(PIPELINE.read_text(encoding="utf-8"))
    note = pipeline["tables"][0]["note"]
    for measure, printed in (("error_rel_l1", r"at most ([^;]*);"), ("cosine", r"at least (.*?)\. ")):
        limits = re.findall(r"0\.\d+", re.search(printed, note)[1])
        assert [float(limit) for limit in limits] == [w["tolerance"][measure] for w in pipeline["workloads"].values()]


@pytest.mark.slow
def test_what_runs_on_a_cpu_is_within_the_tolerance_of_its_dtype(tmp_path):
    small = {"SEQLEN": "72", "NHEADS": "2", "HEADDIM": "16", "CAUSAL": "true", "REPEATS": "1", "BUDGET_S": "0.05"}
    impls = {"IMPLS": "sdpa_math,sdpa_flash,plain,tiled,fa2", "QUANTISED": "sdpa_math,sage1", "INPUTS": "local"}
    profpipe(tmp_path, "run", PIPELINE, "-w", "bf16", "-w", "quantised", "--out", tmp_path, **small, **impls)
    cases = rows(tmp_path / "latest" / "cases.csv")
    assert [case["status"] for case in cases] == [*["ok"] * 4, "skipped", "ok", "skipped"]
    assert not [case for case in cases if {"inaccurate", "unchecked"} & set(json.loads(case["flags"] or "[]"))]
    measured = {row["metric"] for row in rows(tmp_path / "latest" / "metrics.parquet") if row["workload"] == "bf16"}
    names = {f"{m}{t}" for m in ("error_max", "error_rmse", "cosine") for t in ("", "_dq", "_dk", "_dv")}
    assert names <= measured
    summary = read_pages(tmp_path / "latest")
    for gradient in "qkv":
        assert f"### The gradient of {gradient}" in summary
    assert "| bf16 | `tiled` | pass |" in summary and "| quantised | `sage1` |" not in summary
    assert "Every case is within that." in summary.partition("## Accuracy: bf16")[2]


WORKLOAD = """
import time

PARAMS = {"impl": "a"}
SECONDS = {"a": 0.06, "b": 0.01, "c": 0.003, "d": 0.001}  # far apart, for a busy machine

def build(params):
    return lambda: time.sleep(SECONDS[params["impl"]])

def check(params):
    if params["impl"] == "d":
        raise MemoryError("the reference does not fit")
    return {"error_rel_l1": 0.08 if params["impl"] == "c" else 0.001, "cosine": 0.999}
"""

STUDY = """
version: 1
name: mine
workloads:
  w:
    script: mine.py
    profilers: [plain]
    warmup: 1
    repeats: 8
    timing: {rounds: 1, budget_s: 2, most: 8}
    matrix: {impl: [a, b, c, d]}
    baseline: {impl: a}
    tolerance: {error_rel_l1: 0.05, cosine: 0.99}
"""


@pytest.mark.slow
def test_a_run_names_the_fastest_accurate_one_and_marks_what_is_faster_and_wrong(tmp_path):
    (tmp_path / "mine.py").write_text(WORKLOAD)
    (tmp_path / "mine.yaml").write_text(STUDY)
    profpipe(tmp_path, "run", "mine.yaml")
    run = tmp_path / "out" / "latest"
    flags = {row["case"]: json.loads(row["flags"] or "[]") for row in rows(run / "cases.csv")}
    assert "inaccurate" in flags["impl=c"] and "unchecked" in flags["impl=d"]
    assert not {"inaccurate", "unchecked"} & {*flags["impl=a"], *flags["impl=b"]}
    events = map(json.loads, (run / "raw" / "w" / "plain" / "job.jsonl").read_text().splitlines())
    notes = [event["text"] for event in events if event["event"] == "note" and event["case"] == "impl=c"]
    assert "inaccurate: error_rel_l1 is 0.08, at most 0.05" in notes
    summary = read_pages(run)
    assert summary.partition("**")[2].startswith("`b` is the fastest accurate one: ")
    assert "is **inaccurate** (`c`: error_rel_l1 is 0.08, at most 0.05)." in summary
    assert "is **unchecked** (`d`: nothing was compared for error_rel_l1 and cosine)." in summary
