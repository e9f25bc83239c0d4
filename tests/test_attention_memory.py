"""The study of attention's memory: what is in use between the passes, a GPU made smaller, and the study on a CPU.

Memory is that of torch's GPU allocator. Where it is missing, the functions of torch.cuda that are asked are replaced,
and the test says so; no kernel runs behind them.
"""

from pathlib import Path

import lazy
import pytest
from program import profpipe, rows
from report_study import read_pages

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "attention_memory.yaml"
attention = lazy.workload(ROOT / "workloads" / "attention.py")
attention_lib = lazy.module("profpipe.workload_lib.attention")
attention_config = lazy.module("profpipe.workload_lib.attention_config")
implementations = lazy.module("profpipe.workload_lib.implementations")

SMALL = {"impl": "plain", "batch": 2, "seqlen": 40, "heads": 4, "head_dim": 16, "dtype": "fp32"}
GIB = 2**30


# --- between the passes ----------------------------------------------------------------------------------------------


def test_memory_before_the_backward_pass_is_what_the_forward_pass_keeps(monkeypatch):
    """The allocator is a counter; the test is about when it is read."""
    seen: list[str] = []

    def prepare(case):
        seen.append("prepared")
        return lambda q, k, v: seen.append(f"called with gradients: {q.requires_grad}") or q + k + v

    def allocated():
        seen.append("read")
        return 300 * seen.count("read")

    row = implementations.Implementation(prepare, lambda case: "", on_cpu=True)
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", row)
    monkeypatch.setattr(attention_config, "device", lambda: "cpu")
    monkeypatch.setattr(attention_lib.torch, "bmm", lambda *_: seen.append("cuBLAS has its workspace"))
    case = attention_lib.case_from({**attention.PARAMS, **SMALL, "impl": "mine", "mode": "bwd"})
    assert attention_lib.memory_before_backward(case, allocated) == 300
    assert seen == ["cuBLAS has its workspace", "read", "prepared", "called with gradients: True", "read"]


def test_a_cpu_and_a_forward_pass_alone_say_nothing_of_it(monkeypatch):
    monkeypatch.setattr(attention_lib, "memory_before_backward", lambda case, allocated: 5)
    monkeypatch.setattr(attention_config, "device", lambda: "cpu")
    assert attention.facts({**SMALL, "mode": "bwd"}) == {}
    monkeypatch.setattr(attention_config, "device", lambda: "cuda")
    assert attention.facts({**SMALL, "mode": "fwd"}) == {}
    assert attention.facts({**SMALL, "mode": "bwd"}) == {"memory_before_backward": (5.0, "byte")}


# --- a smaller GPU ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fractions(monkeypatch):
    """The memory fractions that are set on a GPU of 80 GiB. The device is a mock and runs no kernel."""
    calls: list[float] = []
    monkeypatch.setattr(attention_config, "device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", calls.append)
    monkeypatch.setattr(attention_lib, "iteration", lambda case, phase: lambda: ())
    return calls


def test_a_case_is_built_with_its_own_share_of_the_memory(fractions):
    for cap in (24, 0, 80, 0.5):
        attention.build({**SMALL, "memory_cap_gib": cap})
    assert fractions == [24 / 80, 1.0, 1.0, 0.5 / 80]


def test_the_reference_ignores_the_memory_limit(fractions, monkeypatch):
    produced, calls = {"out": torch.zeros(2, 40, 4, 16)}, []
    monkeypatch.setattr(attention_lib, "results", lambda case: calls.append(list(fractions)) or produced)
    monkeypatch.setattr(attention_config, "draw", lambda case: list(torch.ones(3, 2, 40, 4, 16)))
    attention.build({**SMALL, "memory_cap_gib": 24})
    attention.check({**SMALL, "memory_cap_gib": 24})
    assert calls == [[24 / 80]] and fractions == [24 / 80, 1.0]


def test_an_impossible_memory_cap_is_the_reason_to_skip_a_case(fractions, monkeypatch):
    monkeypatch.setattr(implementations, "unavailable_reason", lambda case: None)
    assert attention.available({**SMALL, "memory_cap_gib": 79.5}) is None
    assert attention.available({**SMALL, "memory_cap_gib": 81}) == (
        "memory_cap_gib 81 is more than this GPU has. Use 0, or less than 80.0."
    )
    monkeypatch.setattr(attention_config, "device", lambda: "cpu")
    assert attention.available({**SMALL, "memory_cap_gib": 24}) == (
        "memory_cap_gib limits torch's memory on a GPU, and torch sees none. Use memory_cap_gib: 0."
    )


# --- the study -------------------------------------------------------------------------------------------------------


def test_the_study_dry_runs_with_its_168_cases(tmp_path):
    printed = profpipe(tmp_path, "run", PIPELINE, "--dry-run")
    assert printed.count("head_dim=") == 2 * 4 * 7 * 3
    assert "mode=bwd,head_dim=16,seqlen=16384,impl=plain_compiled" in printed


@pytest.mark.slow
def test_a_reduced_study_runs_on_a_cpu_with_the_requested_number_of_passes(tmp_path):
    small = {"HEADDIM": "16", "SEQLEN": "32,64", "BATCH": "2", "IMPLS": "plain,tiled", "REPEATS": "7", "BUDGET_S": "20"}
    profpipe(tmp_path, "run", PIPELINE, "--out", tmp_path, **small)
    assert [case["status"] for case in rows(tmp_path / "latest" / "cases.csv")] == ["ok"] * 8
    passes = {row["n"] for row in rows(tmp_path / "latest" / "metrics.parquet") if row["metric"] == "time"}
    assert passes == {"7"}
    summary = read_pages(tmp_path / "latest")
    assert "### Time of a pass" in summary and "In every case: " in summary


@pytest.mark.slow
def test_with_a_memory_limit_the_cases_are_skipped_on_a_cpu_with_the_reason(tmp_path):
    small = {"HEADDIM": "16", "SEQLEN": "32", "IMPLS": "plain", "REPEATS": "1", "MEMORY_CAP_GIB": "24"}
    profpipe(tmp_path, "run", PIPELINE, "--out", tmp_path, **small)
    assert {(case["status"], case["reason"].partition(",")[0]) for case in rows(tmp_path / "latest" / "cases.csv")} == {
        ("skipped", "memory_cap_gib limits torch's memory on a GPU"),
    }  # fmt: skip
    assert "memory_cap_gib=24" in (tmp_path / "latest" / "cases.csv").read_text().replace('""', "").replace(": ", "=")
