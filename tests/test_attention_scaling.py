"""The study of attention over length and batch: its cases everywhere, a reduced form on a CPU."""

from pathlib import Path

import pytest
from program import profpipe, rows
from report_study import read_pages

ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "attention_scaling.yaml"

#: Lengths and batches that a CPU does in a moment, and the two implementations that it has in each torch.
REDUCED = {
    "SEQLEN": "32,64",
    "BATCH": "1,2",
    "BATCH_SEQLEN": "32",
    "NHEADS": "2",
    "HEADDIM": "16",
    "DTYPE": "bf16",
    "MODE": "fwd_bwd",
    "IMPLS": "sdpa_math,sdpa_flash",
    "BUDGET_S": "0.05",
}


def test_the_study_has_every_length_mask_pass_type_and_implementation_once(tmp_path):
    printed = profpipe(tmp_path, "list", PIPELINE).splitlines()
    lengths = {line.strip() for line in printed if "seqlen=" in line}
    assert "lengths: attention, 880 cases under plain" in printed
    assert len(lengths) == 880 == 10 * 2 * 2 * (13 + 9)
    assert "dtype=bf16,mode=fwd_bwd,causal=true,seqlen=65536,impl=fa3" in lengths
    # Implementations without a backward pass have no such cases.
    assert not [line for line in lengths if "fwd_bwd" in line and ("sage" in line or "sparge" in line)]
    assert "batches: attention, 88 cases under plain, torch" in printed


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_reduced_form_runs_on_a_cpu_with_its_tables(tmp_path):
    pytest.importorskip("torch")
    profpipe(tmp_path, "run", PIPELINE, "-p", "plain", "--out", tmp_path, **REDUCED)
    cases = rows(tmp_path / "latest" / "cases.csv")
    assert len(cases) == 2 * 2 * 2 + 2 * 2
    assert {case["status"] for case in cases} == {"ok"}
    summary = read_pages(tmp_path / "latest")
    for title in ("TFLOP/s of forward and backward over the length", "The batch, peak memory"):
        assert f"### {title}" in summary
    # The environment narrows the study; this table has all its cases: 2 masks x 2 lengths, and its head.
    latency = summary.split("### Latency over the length\n")[1].split("###")[0]
    assert len([line for line in latency.splitlines() if line.startswith("|")]) == 2 + 4
    assert "Forward and backward over the length: TFLOP/s" in summary
    assert "inaccurate" not in summary
