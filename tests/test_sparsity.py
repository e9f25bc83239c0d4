"""The study of sparse attention: its cases everywhere, its dense part on a CPU, and how work that is left out counts.

SpargeAttn needs a GPU. What its cases would report is reported by a workload that is written here.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from program import WITHOUT_TORCH, profpipe, rows
from report_study import analyze, case_row, metric_row, read_pages, tables

from profpipe.report.labels import DENSE_WORK

ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "sparsity.yaml"

#: Leaves out a share of its work and takes the same time as the dense case.
WORKLOAD = """
import time

PARAMS = {"impl": "dense", "dtype": "fp16", "left_out": 0.0}

def build(params):
    return lambda: time.sleep(0.001)

def flops(params):
    return 4e9

def facts(params):
    if params["impl"] == "dense":
        return {}
    return {"sparsity": (100 * params["left_out"], "%"), "flops_effective": (4e9 * (1 - params["left_out"]), "flop")}
"""

STUDY = """
version: 1
name: mine
workloads:
  sparse:
    script: mine.py
    profilers: [plain]
    warmup: 1
    repeats: 6
    timing: {rounds: 1, budget_s: 0.1}
    matrix: {impl: [sparse], left_out: [0.5, 0.75]}
    include: [{impl: dense, left_out: 0.0}]
    baseline: {impl: dense, left_out: 0.0}
tables:
  - {title: Work, rows: [impl, left_out], value: [sparsity, tflops, tflops_effective, speedup]}
"""


@pytest.mark.slow
def test_the_study_dry_runs_with_its_thresholds_and_dense_cases(tmp_path):
    printed = profpipe(tmp_path, "run", PIPELINE, "--dry-run")
    for case in (
        "inputs=local,impl=sparge_fp8,topk=0.1",
        "inputs=normal,impl=sage2,topk=none",
        "inputs=local,impl=sdpa_flash",
    ):
        assert case in printed
    assert "cdfthreshd=0.98,simthreshd1=0.3" in printed


def test_the_table_of_time_has_the_parts_and_their_total():
    """The difference to the total is in no named part; ``rest`` would leave out additions and softmax."""
    (table,) = [t for t in yaml.safe_load(PIPELINE.read_text(encoding="utf-8"))["tables"]
                if t["title"] == "Where the time goes"]  # fmt: skip
    assert "kernels.time" in table["value"] and "rest.time" not in table["value"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_its_dense_part_runs_on_a_cpu_and_the_rest_says_what_it_needs(tmp_path):
    pytest.importorskip("torch")
    small = {
        "SEQLEN": "128",
        "NHEADS": "2",
        "HEADDIM": "16",
        "DTYPE": "bf16",
        "REPEATS": "6",
        "TOPK": "0.5",
        "BUDGET_S": "0.1",
        "LENGTHS": "128",
        "REACHED_TOPK": "0.5",
    }
    profpipe(tmp_path, "run", PIPELINE, "-p", "plain", "--out", tmp_path, CDFTHRESHD="0.9", **small)
    cases = rows(tmp_path / "latest" / "cases.csv")
    ran = [case for case in cases if case["status"] == "ok"]
    assert {(json.loads(case["params"])["impl"], json.loads(case["params"])["inputs"]) for case in ran} == {
        ("sdpa_flash", "local"),
        ("sdpa_flash", "normal"),
    }
    assert {case["status"] for case in cases} == {"ok", "skipped"}
    skipped = {json.loads(case["params"])["impl"]: case["reason"] for case in cases if case["status"] == "skipped"}
    assert "69120 or 82944 tokens" in skipped.pop("sta")
    assert all("needs a GPU" in reason for reason in skipped.values())


@pytest.mark.slow
def test_skipped_work_counts_in_the_dense_rate_and_not_in_the_effective_rate(tmp_path):
    (tmp_path / "mine.py").write_text(WORKLOAD)
    (tmp_path / "mine.yaml").write_text(STUDY)
    profpipe(tmp_path, "run", "mine.yaml", PYTHONPATH=WITHOUT_TORCH)
    metrics = rows(tmp_path / "out" / "latest" / "metrics.parquet")
    found = {(row["case"], row["metric"]): float(row["value"]) for row in metrics if row["value"]}
    assert found["impl=sparse,left_out=0.75", "sparsity"] == 75
    pages = (tmp_path / "out" / "latest" / page for page in ("SUMMARY.md", "details.md"))
    summary = "".join(page.read_text(encoding="utf-8") for page in pages)
    lines = [[cell.strip() for cell in line.split("|")] for line in summary.splitlines() if line.startswith("|")]
    head = next(line for line in lines if "effective TFLOP/s" in line)
    row = next(line for line in lines[lines.index(head) :] if "0.75" in line)
    # A mark may stand behind a number.
    rates = (row[head.index(name)].split()[0] for name in ("TFLOP/s", "effective TFLOP/s"))
    dense_equivalent, effective = map(float, rates)
    assert effective == pytest.approx(dense_equivalent / 4, rel=0.02)
    assert summary.count(DENSE_WORK) == 2, "beside the study's table and beside the cases"
    by_case = next(line for line in lines if "time us" in " ".join(line) and "effective TFLOP/s" in line)
    assert by_case.index("effective TFLOP/s") == by_case.index("TFLOP/s") + 1


#: A stand-in for attention on a GPU, which this machine lacks: SpargeAttn leaves out what topk requests.
ATTENTION = """
import time

PARAMS = {"impl": "", "inputs": "", "batch": 1, "heads": 1, "head_dim": 1, "seqlen": 1, "dtype": "", "causal": False,
          "topk": None, "cdfthreshd": None, "simthreshd1": None, "pvthreshd": None}

def build(params):
    return lambda: time.sleep(1e-4 * (params["topk"] or 2))

def flops(params):
    return 1e9 * params["seqlen"]

def facts(params):
    if params["topk"] is None:
        return {}
    left_out = 1 - params["topk"]
    return {"sparsity": (100 * left_out, "%"), "sparsity_requested": (100 * left_out, "%"),
            "flops_effective": (flops(params) * params["topk"], "flop")}

def check(params):
    return {"error_rel_l1": 0.01, "cosine": 1.0}
"""


@pytest.mark.slow
def test_sparse_attention_stands_beside_dense_by_length_and_by_the_share_that_was_left_out(tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "attention.py").write_text(ATTENTION)
    (tmp_path / "sparsity.yaml").write_text(PIPELINE.read_text(encoding="utf-8"))
    small = {"LENGTHS": "1024,2048", "DENSE": "sdpa_flash,fa2", "REACHED_TOPK": "1.0,0.5", "REPEATS": "6"}
    small |= {"BUDGET_S": "0.05", "WARMUP": "1", "IMPLS": "sparge_fp8", "PYTHONPATH": WITHOUT_TORCH}
    profpipe(tmp_path, "run", "sparsity.yaml", "-w", "lengths,reached", "-p", "plain", **small)
    run = tmp_path / "out" / "latest"
    assert {case["status"] for case in rows(run / "cases.csv")} == {"ok"} and len(rows(run / "cases.csv")) == 20
    pages = read_pages(run)
    table = next(line for line in pages.splitlines() if line.startswith("| causal | seqlen | `"))
    assert "`sparge_fp8 topk=1.0`" in table and "`sparge_fp8 topk=0.7`" in table and "`fa2`" in table
    assert "Time by the share that was left out" in pages
    # By length and by sparsity, time and TFLOP/s each have a picture.
    assert len(set(re.findall(r"plots/[\w.-]*(?:over-the-length|left-out)[\w.-]*", pages))) == 4


def test_only_work_that_is_done_is_compared_with_the_peak():
    """900 TFLOP/s of dense attention in the same time, on a machine that gives 500: a tenth of it was done."""
    numbers = [metric_row("impl=a", "time", 1e6), metric_row("impl=a", "flops", 9e11, "flop")]
    cases = [case_row("impl=a", params={"impl": "a", "dtype": "fp16"})]
    run = {"machine": {"peaks": {"flops": {"fp16": 5e14}}}}
    sparse = [*numbers, metric_row("impl=a", "flops_effective", 9e10, "flop")]
    for metrics, share, flags in ((numbers, 1.8, ("above_peak",)), (sparse, 0.18, ())):
        (workload,) = analyze(tables(cases, metrics=metrics), run).workloads
        (point,) = workload.cases
        assert point.tflops == 900
        assert point.of_peak_flops == pytest.approx(share)
        assert point.limit.flops_share == pytest.approx(share)
        assert point.flags == flags
