"""Recordings after public bug reports: what is true of each, and what a page must not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profpipe.commands import ingest
from profpipe.results import store
from profpipe.results.schema import Check

DATA = Path(__file__).parent / "data" / "reported"
GOLDEN = Path(__file__).parent / "golden" / "reported.md"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expect.json").read_text(encoding="utf-8"))
NAMES = (
    "graph_deferred.json", "last_step.json", "layers_as_steps.sqlite", "merged_ranks.json",
    "one_process_four_gpus.sqlite", "own_range.sqlite", "rank_without_kernels.sqlite", "rocm_late_end.json",
)  # fmt: skip
PARTS = ["compute_ns", "communication_ns", "copy_ns", "idle_ns"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The results of ``profpipe ingest FILE --out DIR`` by the name of the file."""
    found = {name: tmp_path_factory.mktemp("reported") / "out" for name in NAMES}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(DATA)
        for name, out in found.items():
            assert ingest.read_files([Path(name)], out) == 0
    return found


def tables(folders, name):
    return store.load(folders[name])[0]


def first_screen(folder):
    """The page up to its first section after the warnings."""
    page = (folder / "SUMMARY.md").read_text(encoding="utf-8")
    return page.partition("\n## Where")[0]


def steps_of(folders, name):
    steps = tables(folders, name).steps
    return steps[steps["state"] != "other"]


def checks_of(folders, name):
    metrics = tables(folders, name).metrics
    own = metrics[metrics["metric"].str.startswith("check_")]
    return {row.metric: (row.value, row.n, row.subject) for row in own.itertuples()}


def test_the_first_screens_are_as_recorded(folders, regenerate):
    found = "\n\n".join(f"<!-- {name} -->\n{first_screen(folders[name]).strip()}" for name in NAMES) + "\n"
    if regenerate:
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_no_launch_is_lost_and_no_time_but_that_of_late_ends(folders, name):
    known, kernels = EXPECTED[name], tables(folders, name).kernels
    kernels = kernels[kernels["kind"] == "kernel"]
    total = known.get("total_ns") or 1000 * (known.get("total_us") or known.get("true_total_us") or 0)
    assert kernels["calls"].sum() == known["kernels"]
    # The page may round the end of a clipped kernel by the gap to the next one.
    assert kernels["total_ns"].sum() == pytest.approx(total or kernels["total_ns"].sum(), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "rule", "count", "step_us"),
    [
        ("last_step.json", "framework", 3, 50_000),
        ("layers_as_steps.sqlite", "pattern", 20, 670),
        ("merged_ranks.json", "framework", 6, 610),
        ("one_process_four_gpus.sqlite", "pattern", 10, 2733),
        ("own_range.sqlite", "range", 12, 640),
        ("rocm_late_end.json", "framework", 6, 2020),
    ],
)
def test_the_steps_are_those_that_are_true(folders, name, rule, count, step_us):
    steps = steps_of(folders, name)
    assert set(steps["rule"]) == {rule}
    for _, own in steps.groupby(["process", "device"]):
        steady = own[own["state"] == "steady"]
        assert len(own) == count and steady["wall_ns"].median() == pytest.approx(1000 * step_us, rel=0.001)
    assert (steps[PARTS].sum(axis=1) == steps["wall_ns"]).all()


def test_the_end_of_a_kernel_is_no_later_than_the_next_one_of_its_stream_begins(folders):
    name = "rocm_late_end.json"
    known, kernels = EXPECTED[name], tables(folders, name).kernels
    removed, n, kernel = checks_of(folders, name)[Check.LATE_END.value]
    assert removed == pytest.approx(1000 * (known["sum_as_recorded_us"] - known["true_total_us"]), rel=1e-4)
    assert (n, kernel) == (1, "fmha_bwd_hd128_bf16_causal_a32")
    share = kernels.groupby("kernel_class")["total_ns"].sum() / kernels["total_ns"].sum()
    assert {name: round(value, 2) for name, value in share.items()} == known["share_of_step"]
    assert "322 ms" not in first_screen(folders[name])


def test_ranks_that_a_merger_put_into_one_trace_stay_apart(folders):
    known, steps = EXPECTED["merged_ranks.json"], steps_of(folders, "merged_ranks.json")
    steady = steps[steps["state"] == "steady"].groupby("rank")
    assert steady.ngroups == known["ranks"]
    assert (steady["kernel_ns"].median() == 1000 * known["kernel_us_per_step_and_rank"]).all()
    for part in ("compute", "communication"):
        found = {str(rank): ns / 1000 for rank, ns in steady[f"{part}_ns"].median().items()}
        assert found == known[f"{part}_us"]


def test_a_step_is_not_judged_whose_kernels_ran_after_it(folders):
    name = "graph_deferred.json"
    burst = EXPECTED[name]["in_the_burst"]["us"] / EXPECTED[name]["total_us"]
    assert checks_of(folders, name)[Check.OUTSIDE_STEPS.value][0] == pytest.approx(100 * burst)
    page = (folders[name] / "SUMMARY.md").read_text(encoding="utf-8")
    assert "96.0 % of the kernel time" in page and "idle time is unknown" in page
    assert "97.5 %" not in page and "40.0x" not in page and steps_of(folders, name).empty


def test_a_process_whose_kernels_were_not_recorded_is_named(folders):
    name = "rank_without_kernels.sqlite"
    launches = EXPECTED[name]["launch_calls"]["1001"]
    assert checks_of(folders, name)[Check.LOST_KERNELS.value] == (launches, launches, "process 1001")
    assert steps_of(folders, name).empty


def test_the_devices_of_a_process_are_no_ranks_and_share_its_steps(folders):
    steps = steps_of(folders, "one_process_four_gpus.sqlite")
    assert steps["process"].nunique() == 1 and steps["device"].nunique() == 4
    assert set(steps["rank"]) == {0}


def test_the_range_and_the_stride_that_make_a_step_are_said(folders):
    assert "at the program's own range `train_step`" in (folders["own_range.sqlite"] / "SUMMARY.md").read_text()
    layers = (folders["layers_as_steps.sqlite"] / "SUMMARY.md").read_text()
    assert "recurs 5 times in a step" in layers
