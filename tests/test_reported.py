"""Recordings after public bug reports: what is true of each, and what a page must not say."""

import json
from pathlib import Path
from typing import Any

import pytest
from nsys_exports import Export

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
def folders(made_once):
    """The results of ``profpipe ingest FILE --out DIR`` by the name of the file."""
    made = made_once("reported", read_all)
    return {name: made / str(number) for number, name in enumerate(NAMES)}


def read_all(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(DATA)
        for number, name in enumerate(NAMES):
            assert ingest.read_files([Path(name)], folder / str(number)) == 0


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


REPORTED4 = DATA.parent / "reported4"


def said(tmp_path, *paths):
    """The page of recordings as one line."""
    assert ingest.read_files(list(paths), tmp_path / "out") == 0
    return " ".join((tmp_path / "out" / "SUMMARY.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("name", "says", "never"),
    [
        ("late_launch/trace.json", ["idle: cause unknown | 44.9"], ["mostly because the host launched late"]),
        ("comm_only/nccl.sqlite", ["communication 100 %", "took 5000 ms", "other 39 is 950.0 us"], []),
        (
            "pipeline_bubble/two_stages.sqlite",
            ["19.6 % waiting in SendRecv (the bubble of a pipeline", "transfer, at most | 0.6 |"],
            ["20.4 % exposed transfer", "1.26x without transfer", "waiting for other ranks"],
        ),
        ("no_global_pid/one_process.sqlite", ["28 steady steps"], ["records were lost", "no launch call"]),
        ("variant/trace.json", ["9 kernel launches"], ["its variant"]),
    ],
)
def test_what_was_false_is_not_said(tmp_path, name, says, never):
    page = said(tmp_path, REPORTED4 / name)
    assert [text for text in says if text not in page] == [text for text in never if text in page] == []


@pytest.mark.parametrize(
    ("uuids", "ordinals", "idle"), [("aa", (0, 0), "19.5 %"), ("aa", (0, 1), "19.5 %"), ("ab", (0, 0), "59.2 %")]
)
def test_a_gpu_is_idle_where_no_process_runs_anything_on_it(tmp_path, uuids, ordinals, idle):
    export = Export()
    for number, uuid in enumerate(dict.fromkeys(uuids)):
        export.add("TARGET_INFO_GPU", id=number, name="H200", uuid=uuid)
    for pid, (uuid, ordinal) in enumerate(zip(uuids, ordinals, strict=True), 1):
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId="ab".index(uuid), cudaId=ordinal, pid=pid)
        for at in range(30):
            begin, correlation = 100_000 * at + 40_000 * pid, 100 * pid + at
            export.call(begin, begin + 2000, correlation, pid, pid)
            export.kernel(begin + 5000, begin + 45_000, correlation, f"k{at}", pid, deviceId=ordinal)
    page = said(tmp_path, export.write_sqlite(tmp_path / "x.sqlite", also={"TARGET_INFO_GPU": "uuid"}))
    assert f"was idle {idle}" in page and ("processes share a GPU" in page) is (uuids == "aa")


def test_a_slice_of_a_longer_recording_lost_nothing(tmp_path):
    export = Export()
    # Launched each 10 us, a kernel takes 14 us: the GPU lags behind. The slice is the time from 2 to 4 ms.
    for at in range(400):
        launched, started = 1_000_000 + 10_000 * at, 1_005_000 + 14_000 * at
        if 2_000_000 <= launched <= 4_000_000:
            export.call(launched, launched + 4000, at + 1)
        if 2_000_000 <= started <= 4_000_000:
            export.kernel(started, started + 14_000, at + 1, f"k{at % 4}")
    page = said(tmp_path, export.write_sqlite(tmp_path / "x.sqlite"))
    assert "or this slice of it, began" in page and "records were lost" not in page


def test_traces_of_the_ranks_of_one_job_are_ranks(tmp_path):
    for rank in (0, 1):
        events = []
        for step in range(8):
            at = 1000.0 * step
            of = {"ph": "X", "pid": 100, "tid": 100, "args": {"correlation": step + 1, "device": 0, "stream": 7}}
            events += [
                {**of, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 990.0},
                {**of, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10, "dur": 5.0},
                {**of, "cat": "kernel", "name": "gemm", "ts": at + 20, "dur": 500.0 + 100 * rank},
            ]
        top = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(top))
    page = said(tmp_path, tmp_path / "rank0.json", tmp_path / "rank1.json")
    assert "2 ranks" in page and "different programs" not in page
