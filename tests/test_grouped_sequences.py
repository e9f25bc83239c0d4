"""The study of packed groups: its cases, its variables, and a reduced run on a CPU."""

import json
from pathlib import Path

import lazy
import pytest
from program import profpipe, rows
from report_study import read_pages

pytestmark = lazy.needs("torch")
ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "pipelines" / "grouped_sequences.yaml"

_REDUCED = {
    "IMPLS": "sdpa_loop,fa2", "HEADS_IMPLS": "sdpa_loop,sdpa_nested", "API_IMPL": "sdpa_loop", "APIS": "varlen,func",
    "SINGLES": "8;16", "SEQLENS": "8;8,8", "HEADS_SEQLENS": "2x8", "API_SEQLENS": "8,4",
    "QHEADS": "4", "KVHEADS": "2", "HEADDIM": "16", "DTYPE": "fp32", "WARMUP": "1", "REPEATS": "2",
}  # fmt: skip
_BRIEFLY = ("--set", "defaults.timing.budget_s=0.02", "--set", "defaults.timing.rounds=1")


def _groups(listed):
    """The cases of the workload ``groups`` without the implementation, each once."""
    section = listed.partition("groups: ")[2].partition("heads: ")[0].splitlines()[1:]
    return list(dict.fromkeys(line.strip().partition(",")[2] for line in section if line.strip()))


def test_the_study_runs_dry_everywhere():
    listed = profpipe(ROOT, "run", PIPELINE, "--dry-run")
    for workload in ("single", "groups", "heads", "api_forms"):
        assert workload in listed


def test_one_group_of_two_sequences_comes_from_the_environment_as_it_is_written():
    listed = profpipe(ROOT, "list", PIPELINE, SEQLENS="128,128", QHEADS="32", KVHEADS="8")
    assert _groups(listed) == ["qheads=32,kvheads=8,head_dim=128,seqlens=128%2C128"]
    several = profpipe(ROOT, "list", PIPELINE, SEQLENS="128;128,64", KVHEADS="1,32")
    assert _groups(several) == [
        f"qheads=32,kvheads={heads},head_dim=128,seqlens={lengths}"
        for heads in (1, 32)
        for lengths in ("128", "128%2C64")
    ]


def test_set_gives_groups_as_the_environment_does():
    listed = profpipe(
        ROOT, "run", PIPELINE, "--dry-run", "-w", "groups", "-p", "plain", "--set", "seqlens=64,32", IMPLS="fa2"
    )
    assert "1 case" in listed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a reduced run."""
    out = tmp_path_factory.mktemp("out")
    profpipe(ROOT, "run", PIPELINE, "-p", "plain", "--out", out, *_BRIEFLY, **_REDUCED)
    return out / "latest"


@pytest.mark.exhaustive
@pytest.mark.exhaustive
def test_the_reduced_study_runs_on_a_cpu_and_skips_what_cannot(run):
    cases = {(row["workload"], row["case"]): (row["status"], row["reason"]) for row in rows(run / "cases.csv")}
    assert len(cases) == 4 + 4 + 2 * 3 * 2 + 2 * 2
    skipped = {key: reason for key, (status, reason) in cases.items() if status == "skipped"}
    assert {status for status, _ in cases.values()} == {"ok", "skipped"}
    for (workload, case), reason in skipped.items():
        if workload == "heads":
            assert case.startswith("impl=sdpa_nested,kvheads=") and "Use kvheads: 32." in reason
        else:
            assert "impl=fa2" in case or "api=func" in case
            assert " Use " in reason


@pytest.mark.exhaustive
def test_the_total_length_is_recorded_of_every_case_that_ran(run):
    metrics = [row for row in rows(run / "metrics.parquet") if row["workload"] == "groups"]
    values = {(row["case"], row["metric"]): float(row["value"]) for row in metrics}
    case = "impl=sdpa_loop,qheads=4,kvheads=2,head_dim=16,seqlens=8%2C8"
    assert (values[case, "tokens"], values[case, "sequences"]) == (16, 2)
    assert values[case, "flops"] == 4 * 4 * 16 * (8 * 8 + 8 * 8)
    assert values[case, "error_max"] < 1e-5
    params = {row["case"]: json.loads(row["params"]) for row in rows(run / "cases.csv") if row["workload"] == "groups"}
    assert params[case]["seqlens"] == "8,8"


@pytest.mark.exhaustive
def test_the_report_has_one_sequence_beside_a_group_of_the_same_length(run):
    report = read_pages(run)
    table = report.partition("### One sequence or a group of short ones")[2].partition("###")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert rows == ["tokens", "---", "8", "16"]
    assert "time us, single | time us, groups" in table.replace("ms", "us")
    assert "| 8,8 | `sdpa_loop` |" in report
    assert "%2C" not in report.partition("## The command behind each number")[0]


@pytest.mark.exhaustive
def test_the_report_draws_the_rates_over_the_total_length(run):
    drawn = {picture.stem.removeprefix("study-") for picture in (run / "plots").glob("study-*.svg")}
    plots = ("one-sequence-or-a-group-of-short-ones", "groups-by-implementation")
    assert drawn == {f"{plot}-{value}" for plot in plots for value in ("time", "tflops", "bandwidth")}
