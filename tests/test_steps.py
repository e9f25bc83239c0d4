"""Steps from recordings: loops whose true steps are known, recordings of many tools, and small ones written by hand."""

import gzip
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from jobs import change, make_job
from nsys_exports import Export

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.ingest import job_tables, reader
from profpipe.ingest.groupby import Union
from profpipe.ingest.steps.accounting import find_iteration, states
from profpipe.job import Case, JobOutcome, Outcome, Status, Tool
from profpipe.results.schema import STEP_FIGURES, STEP_PREFIX, STEPS, Tables, empty, frame

ROOT = Path(__file__).resolve().parents[1]
PARTS = ["compute_ns", "communication_ns", "copy_ns", "idle_ns"]
IDLE = ["idle_launch_ns", "idle_blocked_ns", "idle_other_ns"]
KINDS = ("train", "evals", "ddp", "graphs", "accumulate")
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>(float)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def parsed(path, parser="nsys_sqlite", **more):
    tables: Tables = plugins.load_module(ROOT / "parsers" / f"{parser}.py").parse(path, **more)
    return reader.combine([tables])


def only_steps(tables):
    return tables.steps[tables.steps["state"] != "other"]


def metrics(tables):
    """(metric, subject) -> value."""
    return {(row.metric, row.subject): row.value for row in tables.metrics.itertuples()}


# --- loops whose steps are known -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loops(shared_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    return {kind: parsed(unzipped(shared_data / "steps" / f"{kind}.sqlite.gz", folder)) for kind in KINDS}


def unzipped(path, folder):
    out = folder / path.name.removesuffix(".gz")
    with gzip.open(path) as source, out.open("wb") as target:
        shutil.copyfileobj(source, target)
    return out


@pytest.fixture(scope="module")
def truth(shared_data):
    known: dict[str, list[dict[str, Any]]] = json.loads((shared_data / "steps" / "truth.json").read_text())
    return known


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_of_a_known_loop_are_found_with_their_launches_and_times(loops, truth, kind):
    found = only_steps(loops[kind])
    assert (found["rule"] == "pattern").all()
    assert found.groupby("rank").ngroups == len(truth[kind])
    for rank, known in enumerate(truth[kind]):
        own = found[found["rank"] == rank]
        assert own["kernels"].tolist() == known["launches"]
        assert own["kernel_ns"].tolist() == known["kernel_ns"]
        assert own["step"].tolist() == list(range(known["steps"]))
        # The period of the last step ends with its own last kernel.
        assert own["wall_ns"].iloc[3:-1].median() == pytest.approx(known["median_period_ns"], rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_known_loop_equal_its_periods(loops, kind):
    assert_exact(loops[kind].steps)


def assert_exact(steps):
    on_gpu = steps[steps["compute_ns"].notna()]
    assert (on_gpu[PARTS].sum(axis=1) == on_gpu["wall_ns"]).all()
    assert (on_gpu[IDLE].sum(axis=1) == on_gpu["idle_ns"]).all()
    assert (on_gpu[PARTS + IDLE] >= 0).all(axis=None)
    assert (on_gpu["communication_total_ns"] >= on_gpu["communication_ns"]).all()


def test_periods_follow_each_other_without_gaps(loops):
    for tables in loops.values():
        for _, own in tables.steps.groupby("rank"):
            ends = own["start_ns"] + own["wall_ns"]
            assert (ends.iloc[:-1].to_numpy() == own["start_ns"].iloc[1:].to_numpy()).all()


def test_an_evaluation_is_other_work_and_a_pause_is_an_outlier(tmp_path):
    recorded = ROOT / "tests" / "data" / "nsys-2025.3.1" / "loops" / "evals.sqlite.gz"
    tables = parsed(unzipped(recorded, tmp_path))
    other = tables.steps[tables.steps["state"] == "other"]
    # The fifth evaluation comes after the last step.
    assert other["step"].tolist() == [4, 9, 14, 19]
    assert set(other["kernels"]) == {273}
    assert set(only_steps(tables)["kernels"].iloc[1:]) == {285}
    pause = only_steps(tables).set_index("step").loc[12]
    assert pause["state"] == "outlier" and pause["idle_ns"] > 0.2e9
    by_cause = {part: metrics(tables).get((f"step_outlier_idle_{part}", "rank 0 step 12"), 0) for part in IDLE_CAUSES}
    assert max(by_cause, key=lambda part: by_cause[part]) == "launch" and by_cause["launch"] > 0.19e9


IDLE_CAUSES = ("launch", "blocked", "other")


def test_replays_of_a_graph_are_steps_and_the_eager_passes_before_are_not(tmp_path):
    recorded = ROOT / "tests" / "data" / "nsys-2025.3.1" / "loops" / "graphs.sqlite.gz"
    tables = parsed(unzipped(recorded, tmp_path))
    assert only_steps(tables)["kernels"].tolist() == [44] * 30
    assert metrics(tables)["step_coverage", ""] == pytest.approx(89.4, abs=0.1)


def test_the_figures_of_two_ranks_are_means_and_not_sums(loops):
    tables = loops["ddp"]
    numbers, steady = metrics(tables), tables.steps[tables.steps["state"] == "steady"]
    assert numbers["step_time", ""] == steady.groupby("step")["wall_ns"].mean().median()
    medians = steady.groupby("rank")["wall_ns"].median()
    assert [numbers["step_time", f"rank {rank}"] for rank in (0, 1)] == medians.tolist()
    launches = sum(value for (metric, _), value in numbers.items() if metric == "step_launches")
    copies = sum(value for (metric, name), value in numbers.items() if metric == "step_launches" and "[CUDA" in name)
    assert launches - copies == pytest.approx(steady.groupby("rank")["kernels"].mean().mean())
    kernel_ns = {name: value for (metric, name), value in numbers.items() if metric == "step_kernel_time"}
    of_kernels = sum(value for name, value in kernel_ns.items() if "[CUDA" not in name)
    assert of_kernels == pytest.approx(steady.groupby("rank")["kernel_ns"].mean().mean())


VARY = ROOT / "tests" / "data" / "steps_vary"


@pytest.mark.parametrize("kind", ["varlen_infer", "varlen_own", "decode_long"])
def test_steps_whose_launches_vary_are_found_with_their_launches_and_times(tmp_path, kind):
    steps = parsed(unzipped(VARY / f"{kind}.sqlite.gz", tmp_path)).steps
    known = json.loads((VARY / "truth.json").read_text())[kind]
    # A prefill is other work. The first one comes before the first step.
    own = [(kernels, ns) for label, kernels, ns, _ in known if label != "prefill"]
    prefills = [(kernels, ns) for label, kernels, ns, _ in known if label == "prefill"][1:]
    found = steps[steps["state"] != "other"]
    assert list(found[["kernels", "kernel_ns"]].itertuples(index=False, name=None)) == own
    other = steps[steps["state"] == "other"]
    assert list(other[["kernels", "kernel_ns"]].itertuples(index=False, name=None)) == prefills
    last = [(row, following[3]) for row, following in itertools.pairwise(known) if row[0] != "prefill"]
    assert found["wall_ns"].iloc[:-1].median() == pytest.approx(
        np.median([end - row[3] for row, end in last]), rel=0.02
    )


# --- recordings of many tools ----------------------------------------------------------------------------------------


def recordings(folder):
    known = reader.parsers()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".md", ".py")):
        try:
            reader.choose(path, known)
        except UnreadableFile:
            continue
        yield path


@pytest.mark.parametrize("folder", ["tests", pytest.param("shared", marks=pytest.mark.slow)])
def test_in_every_recording_the_four_parts_equal_the_period(folder, request):
    data = ROOT / "tests" / "data" if folder == "tests" else request.getfixturevalue("shared_data")
    with_steps = 0
    for result in reader.ingest(reader.sources_of_paths(recordings(data))):
        if isinstance(result, reader.Read) and len(result.tables.steps):
            assert_exact(result.tables.steps)
            with_steps += 1
    assert with_steps >= (1 if folder == "tests" else 8)


def test_recordings_without_recurring_work_have_no_steps(shared_data):
    # Several implementations of attention, one after the other, each called twenty times.
    assert parsed(shared_data / "h200" / "attn_h200.sqlite").steps.empty
    assert parsed(shared_data / "h200" / "attn_trace.json.gz", "torch_trace").steps.empty


def test_steps_of_the_profiler_keep_their_numbers(shared_data):
    folder = shared_data / "torch_trace" / "facebookresearch__HolisticTraceAnalysis"
    (path,) = folder.glob("rank-0*")
    steps = parsed(path, "torch_trace").steps
    assert steps["step"].tolist() == [101, 102, 103, 104, 105]
    assert steps["kernels"].tolist() == [870] * 5
    assert set(steps["rule"]) == {"framework"}


# --- the partition ---------------------------------------------------------------------------------------------------

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)).map(lambda pair: (pair[0], sum(pair))))


@given(intervals=INTERVALS, times=st.lists(st.integers(-5, 100), min_size=1))
def test_a_union_covers_what_a_count_of_each_ns_covers(intervals, times):
    start, end = (np.array([pair[at] for pair in intervals], dtype=np.int64) for at in (0, 1))
    union = Union(start, end)
    covered = {ns for first, last in intervals for ns in range(first, last)}
    asked = np.array(times, dtype=np.int64)
    assert union.covered_before(asked).tolist() == [sum(ns < time for ns in covered) for time in times]
    bounds = np.array(sorted(times), dtype=np.int64)
    expected = [sum(low <= ns < high for ns in covered) for low, high in itertools.pairwise(bounds)]
    assert union.covered(bounds).tolist() == expected
    touched = covered | {ns + 1 for ns in covered}
    assert union.contains(asked).tolist() == [time in touched for time in times]


#: (start, length, what) of an operation.
WORK = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 20), st.sampled_from(["compute", "communication", "copy", "peer"])),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(work=WORK)
def test_the_parts_of_a_step_equal_a_count_of_each_ns(work, tmp_path_factory):
    export = Export()
    # A second step behind all others gives the first one its end.
    for correlation, (start, length, what) in enumerate([*work, (200, 5, "compute")], start=1):
        begin = 1000 if start == 200 else correlation
        export.call(begin, begin + 1, correlation)
        if what in ("copy", "peer"):
            kind = 10 if what == "peer" else 1
            export.add(
                "CUPTI_ACTIVITY_KIND_MEMCPY", start=1000 + start, end=1000 + start + length, deviceId=0, contextId=1,
                streamId=correlation, correlationId=correlation, globalPid=1 << 48 | 1 << 24, bytes=8, copyKind=kind,
            )  # fmt: skip
        else:
            name = NCCL if what == "communication" else "k"
            export.kernel(1000 + start, 1000 + start + length, correlation, name, streamId=correlation)
    export.range(0, 500, f"{STEP_PREFIX}marker:0")
    export.range(900, 1100, f"{STEP_PREFIX}marker:1")
    step = parsed(export.write_sqlite(tmp_path_factory.mktemp("parts") / "x.sqlite")).steps.iloc[0]
    first = min(start for start, _, _ in work)
    counted = dict.fromkeys(PARTS, 0)
    for ns in range(first, 200):
        running = {what for start, length, what in work if start <= ns < start + length}
        if "compute" in running:
            counted["compute_ns"] += 1
        elif running & {"communication", "peer"}:
            counted["communication_ns"] += 1
        else:
            counted["copy_ns" if running else "idle_ns"] += 1
    assert {part: step[part] for part in PARTS} == counted
    assert step["kernel_ns"] == sum(length for _, length, what in work if what in ("compute", "communication"))


# --- idle time by cause ----------------------------------------------------------------------------------------------


def test_idle_time_has_the_cause_that_the_host_shows(tmp_path):
    export = Export()
    export.range(100, 700, f"{STEP_PREFIX}marker:0")
    export.call(100, 110, 1)
    export.kernel(200, 300, 1)
    # The launch of the next kernel begins after 300, and the host was in no call: it was late.
    export.call(340, 350, 2)
    export.kernel(400, 500, 2)
    # The host waits for the second kernel, and launches the third one when the wait is over.
    export.call(360, 510, 90, name="cudaStreamSynchronize_v3020")
    export.call(520, 530, 3)
    export.kernel(600, 700, 3)
    # Launched in time; it waits for another stream.
    export.call(540, 550, 4)
    export.kernel(750, 800, 4)
    step = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps.iloc[0]
    assert [step[part] for part in IDLE] == [100, 100, 50]
    assert (step["wall_ns"], step["idle_ns"]) == (600, 250)


@pytest.mark.parametrize(
    ("called", "returned", "begun", "late"),
    [
        # An idle GPU begins a kernel soon after its launch. A launch of a graph takes long itself.
        (40_000, 41_000, 48_000, 18_000),
        (40_000, 440_000, 450_000, 420_000),
        (25_000, 440_000, 450_000, 420_000),
        # The rest of a longer wait has another cause, such as another stream.
        (40_000, 41_000, 5_000_000, 31_000),
        # Launched in time, or a node of a graph whose launch goes on.
        (25_000, 29_000, 48_000, 0),
        (25_000, 60_000, 48_000, 0),
        # A call, or its end, that is not recorded or is wrong.
        (None, None, 48_000, 0),
        (40_000, None, 5_000_000, 30_000),
        (40_000, 2**63 - 1, 5_000_000, 4_970_000),
    ],
)
def test_a_gap_is_late_until_an_idle_gpu_has_begun_what_was_launched(tmp_path, called, returned, begun, late):
    export = Export()
    export.range(100, 48_500, f"{STEP_PREFIX}marker:0")
    export.call(100, 110, 1)
    export.kernel(200, 30_000, 1)
    if called:
        export.call(called, returned, 2)
    export.kernel(begun, begun + 1000, 2)
    step = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps.iloc[0]
    assert [step[part] for part in IDLE] == [late, 0, begun - 30_000 - late]


def test_the_call_of_a_copy_may_wait_for_the_gpu(tmp_path):
    export = Export()
    export.range(100, 40_500, f"{STEP_PREFIX}marker:0")
    export.call(100, 110, 1)
    export.kernel(200, 30_000, 1)
    export.call(40_000, 5_010_000, 2, name="cudaMemcpyAsync_v3020")
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=5_000_000, end=5_001_000, deviceId=0, contextId=1, streamId=7,
               correlationId=2, globalPid=1 << 48 | 1 << 24, bytes=8, copyKind=2)  # fmt: skip
    step = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps.iloc[0]
    assert [step[part] for part in IDLE] == [30_000, 0, 4_940_000]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaDeviceSynchronize_v3020", True),
        ("cuEventSynchronize", True),
        ("hipStreamSynchronize", True),
        ("cudaMemcpy_v3020", True),
        ("cuMemcpyDtoH_v2", True),
        ("hipMemcpyWithStream", True),
        ("cudaMemcpyAsync_v3020", False),
        ("cuMemcpyDtoHAsync_v2", False),
        ("cudaMallocAsync_v11020", False),
        ("cudaEventQuery_v3020", False),
    ],
)
def test_a_call_that_waits_is_known_by_its_name(tmp_path, name, waits):
    export = Export()
    export.range(100, 400, f"{STEP_PREFIX}marker:0")
    export.call(100, 110, 1)
    export.kernel(200, 300, 1)
    export.call(250, 310, 90, name=name)
    export.call(320, 330, 2)
    export.kernel(400, 500, 2)
    step = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps.iloc[0]
    assert (step["idle_blocked_ns"], step["idle_launch_ns"]) == ((100, 0) if waits else (0, 100))


# --- ranges ----------------------------------------------------------------------------------------------------------


def ranged(names, tmp_path, **more):
    """A range of 100 ns for each name, with a launch in it."""
    export = Export()
    for number, name in enumerate(names):
        export.range(100 * number, 100 * number + 100, name)
        export.launch(100 * number + 20, number + 1)
    return parsed(export.write_sqlite(tmp_path / "x.sqlite"), **more)


@pytest.mark.parametrize(
    ("name", "rule", "numbers"),
    [
        (f"{STEP_PREFIX}marker:%d", "marker", [5, 6, 7]),
        (f"{STEP_PREFIX}optimizer:%d", "optimizer", [5, 6, 7]),
        (f"{STEP_PREFIX}forward:%d", "forward", [5, 6, 7]),
        ("ProfilerStep#%d", "framework", [5, 6, 7]),
        ("step_%d", "framework", [5, 6, 7]),
        ("Step %d", "framework", [5, 6, 7]),
        ("iteration %d", "framework", [5, 6, 7]),
        ("training_step_%d", "framework", [5, 6, 7]),
        ("megatron:iteration %d", "framework", [5, 6, 7]),
        ("[pl][profile]run_training_batch", "framework", [0, 1, 2]),
        ("execute_context_%d(64)_generation_3(3)", "framework", [0, 1, 2]),
        ("execute_new_%d_cached_4", "framework", [0, 1, 2]),
        ("gpu_model_runner: forward", "framework", [0, 1, 2]),
        ("v2_gpu_model_runner: forward", "framework", [0, 1, 2]),
        ("step[DECODE bs=%d]", "framework", [0, 1, 2]),
        ("step[EXTEND bs=1 toks=%d]", "framework", [0, 1, 2]),
    ],
)
def test_ranges_with_a_known_name_are_steps(tmp_path, name, rule, numbers):
    steps = ranged([name % n if "%d" in name else name for n in (5, 6, 7)], tmp_path).steps
    assert steps["rule"].tolist() == [rule] * 3
    assert steps["step"].tolist() == numbers
    assert steps["kernels"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "name", ["stepwise_%d", "my step_%d", "ProfilerStep*", "forward %d", "step", "данные %d", "rank0_step", "go %d/9"]
)
def test_ranges_of_the_program_that_recur_and_hold_the_kernels_are_steps_whatever_their_name(tmp_path, name):
    tables = ranged([name % n if "%d" in name else name for n in range(3)], tmp_path)
    assert tables.steps["rule"].tolist() == ["range"] * 3
    assert metrics(tables)["step_range", re.sub(r"%d|\d", "#", name)] == 100


@pytest.mark.parametrize(
    "names", [["layer_0", "layer_1", "layer_2"], ["a", "b", "c"], ["aten::mm"] * 3, ["x 1", "x 1", "x 0"]]
)
def test_ranges_of_parts_of_a_model_of_operators_and_of_different_names_are_no_steps(tmp_path, names):
    assert ranged(names, tmp_path).steps.empty


def test_an_epoch_of_several_steps_is_no_step(tmp_path):
    export = Export()
    for number in range(9):
        export.range(100 * number, 100 * number + 90, "batch")
        export.launch(100 * number + 20, number + 1)
    for epoch in range(3):
        export.range(300 * epoch, 300 * epoch + 295, f"epoch {epoch}")
    assert metrics(parsed(export.write_sqlite(tmp_path / "x.sqlite")))["step_range", "batch"] == 100


#: Ranges (begin, end, name[, thread]) and launches by time -> the columns of `steps`.
RANGED: dict[str, tuple[list[tuple[Any, ...]], list[int], dict[str, list[int | str]]]] = {
    "ranges that overlap because old traces have whole microseconds": (
        [(100 * n, 100 * n + 101, f"ProfilerStep#{n}") for n in range(5)],
        [100 * n + 20 for n in range(5)],
        {"step": [0, 1, 2, 3, 4], "wall_ns": [100, 100, 100, 100, 101]},
    ),
    "a range without an end is no whole step": (
        [(0, 100, "step_0"), (100, 200, "step_1"), (200, None, "step_2")], [20, 120, 220], {"step": [0, 1]},
    ),
    "work between most ranges belongs to the steps": (
        [(100 * n, 100 * n + 50, "[pl][profile]run_training_batch") for n in range(4)],
        [100 * n + at for n in range(4) for at in (20, 70)],
        {"kernels": [2, 2, 2, 1]},
    ),
    "work between a few ranges is other work": (
        [(100 * n, 100 * n + 50, f"step_{n}") for n in range(5)],
        [20, 120, 220, 270, 320, 420],
        {"kernels": [1] * 6, "rule": ["framework"] * 6, "step": [0, 1, 2, 2, 3, 4]},
    ),
    "of several sorts the first one that holds launches applies": (
        [*((200 * n, 200 * n + 200, f"iteration {n}") for n in range(4)),
         *((400 * n, 400 * n + 400, f"{STEP_PREFIX}marker:{n}", 2) for n in range(2)),
         *((-500 + n, -499 + n, f"ProfilerStep#{n}") for n in range(2))],
        [200 * n + at for n in range(4) for at in (20, 120)],
        {"rule": ["marker", "marker"], "kernels": [4, 4]},
    ),
    "a harness that warms up between its cases has no steps": (
        [*((100 * n, 100 * n + 50, "profpipe:impl=a") for n in range(20)),
         *((100 * n + 1, 100 * n + 49, f"step_{n}") for n in range(20))],
        [100 * n + at for n in range(20) for at in (20, 70)],
        {"step": []},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ranges", "launches", "expected"), RANGED.values(), ids=RANGED)
def test_ranges_make_steps(tmp_path, ranges, launches, expected):
    export = Export()
    for begin, end, name, *tid in ranges:
        export.range(begin, end, name, 1, *tid)
    for number, at in enumerate(launches, start=1):
        export.launch(at, number)
    steps = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps
    assert {column: steps[column].tolist() for column in expected} == expected


def test_a_range_that_the_user_names_is_a_step(tmp_path):
    steps = ranged(["batch 8", "batch 9", "other"], tmp_path, step_range=r"batch (?P<n>\d+)").steps
    assert steps["rule"].tolist() == ["marker", "marker"]
    assert steps["step"].tolist() == [8, 9]


def test_the_ranges_of_single_steps_are_one_phase(tmp_path):
    tables = ranged([f"{STEP_PREFIX}optimizer:{n}" for n in range(3)], tmp_path)
    assert tables.kernels["phase"].tolist() == [f"{STEP_PREFIX}optimizer:*"]
    assert tables.ranges["instances"].tolist() == [3]


def test_a_launch_belongs_to_the_step_of_its_call_on_any_thread_and_not_to_when_it_runs(tmp_path):
    export = Export()
    for n in range(3):
        export.range(100 * n, 100 * n + 100, f"step_{n}")
        export.call(100 * n + 20, 100 * n + 22, 2 * n + 1)
        export.kernel(1000 + 100 * n, 1050 + 100 * n, 2 * n + 1)
        export.call(100 * n + 30, 100 * n + 32, 2 * n + 2, tid=9)
        export.kernel(1050 + 100 * n, 1075 + 100 * n, 2 * n + 2)
    steps = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps
    assert steps["kernel_ns"].tolist() == [75, 75, 75]
    # The last one lasts as long as its range.
    assert steps["wall_ns"].tolist() == [100, 100, 100]


# --- patterns --------------------------------------------------------------------------------------------------------

STEP = [f"k{n}" for n in range(20)]
#: In a list of launches: the host does something else for the time of five launches.
PAUSE = ""


class Loop(Export):
    """Launches at every 100 ns, each with a kernel of 50 ns."""

    def __init__(self):
        super().__init__()
        self.launches = 0

    def run(self, *names, **more):
        for name in names:
            self.launches += 1 if name else 5
            if name:
                self.call(100 * self.launches, 100 * self.launches + 2, self.launches)
                self.kernel(100 * self.launches + 5, 100 * self.launches + 55, self.launches, name, **more)

    def steps(self, folder, grids=False):
        also = {"CUPTI_ACTIVITY_KIND_KERNEL": "gridX gridY gridZ"} if grids else None
        return parsed(self.write_sqlite(folder / "x.sqlite", also=also)).steps


def counts(steps):
    found: list[int] = steps.loc[steps["state"] != "other", "kernels"].tolist()
    return found


LAYER = ["norm", "qkv_{}", "attention", "out_{}", "add", "norm", "up_{}", "gelu", "down_{}", "add"]


def forward(length, layers=4):
    """A pass over an input: its length chooses the matrix kernels, and adds some."""
    split = ["split"] if length < 3 else []
    return ["embed", *([*(name.format(length) for name in LAYER), *split] * layers), "norm", f"head_{length}"]


def backward(length, layers=4):
    return ["loss", "loss_back", *([f"back_{length}", "gelu_back", f"weight_{length}", "norm_back", "add"] * layers)]


BY_HAND = ["scale", "subtract"] * 12
TRAINING = [*forward(5), *backward(5), *BY_HAND]


def repeated(count, of):
    return [name for n in range(count) for name in of(n)]


def drawn(seed, kinds, count):
    return [f"r{n}" for n in np.random.default_rng(seed).integers(0, kinds, count)]


def frequent(seed):
    random = np.random.default_rng(seed)
    kinds, number = int(random.integers(3, 60)), int(random.integers(50, 3000))
    return [f"k{n}" for n in random.zipf(1.5, number) % kinds]


DICE = np.random.default_rng(4)


def with_communication(dice):
    step = list(TRAINING)
    for place in sorted(dice.integers(1, len(step), 12).tolist(), reverse=True):
        step.insert(place, NCCL)
    return [PAUSE, *step]


def layered(layers):
    return ["norm", "embed"] + [f"l{n}" for n in range(14)] * layers + ["norm", "head", "argmax"]


#: What is launched -> the kernels of each step, and (step before it, kernels) of other work where that is asked for.
PATTERNS: dict[str, tuple[list[str], list[int], list[tuple[int, int]] | None]] = {
    "a sequence that recurs is a step": (["init", "init", "fill", *STEP * 8, "end"], [20] * 8, None),
    "without an order": (drawn(1, 12, 600), [], []),
    "one repetition is no loop": (STEP, [], []),
    "two repetitions are no loop": (STEP * 2, [], []),
    "a loop of a small part of the time": (drawn(2, 200, 400) + STEP * 10, [], []),
    "frequent kernels without an order, 13": (frequent(13), [], []),
    "frequent kernels without an order, 89": (frequent(89), [], []),
    "frequent kernels without an order, 7": (frequent(7), [], []),
    "a few launches differ": (repeated(12, lambda n: [*STEP[:7], f"length_{n % 3}", *STEP[8:]]), [20] * 12, None),
    "work between repetitions": (
        repeated(40, lambda n: [*STEP, *([f"e{k}" for k in range(9)] if n in (17, 30) else [])]),
        [20] * 40,
        [(17, 9), (30, 9)],
    ),
    "a step ends with the optimizer": (
        ["init"] * 8 + repeated(9, lambda n: [*STEP, *STEP, ADAM, ADAM, *(STEP[:15] if n % 3 == 2 else [])]),
        [42] * 9,
        [(2, 15), (5, 15)],
    ),
    "two optimizers that take turns are one step": (
        [*STEP, ADAM, ADAM, *(f"g{n}" for n in range(14)), ADAM] * 8, [37] * 8, None,
    ),
    "steps at the ends that are not whole": (
        [*STEP[9:], *[ADAM] * 10, *[*STEP, *[ADAM] * 10] * 6, *STEP, *[ADAM] * 5], [30] * 6, None,
    ),
    "a long evaluation between optimizers": (
        repeated(12, lambda n: [*STEP, ADAM, ADAM, *(STEP[:17] * 14 if n == 6 else [])]), [22] * 12, [(6, 238)],
    ),
    "lengths of input that take turns, with an optimizer": (
        repeated(16, lambda n: [*STEP, *[f"length_{n % 4}"] * (n % 4), ADAM, ADAM]), [22, 23, 24, 25] * 4, None,
    ),
    "an evaluation after each fifth step": (
        repeated(20, lambda n: [PAUSE, *TRAINING, *([PAUSE, *forward(5), "accuracy"] if n % 5 == 4 else [])]),
        [len(TRAINING)] * 20,
        [(n, len(forward(5)) + 1) for n in (4, 9, 14)],
    ),
    "the layers of a step, 3": (layered(3) * 12, [14 * 3 + 5] * 12, None),
    "the layers of a step, 12": (layered(12) * 12, [14 * 12 + 5] * 12, None),
    "the layers of a step, 40": (layered(40) * 12, [14 * 40 + 5] * 12, None),
    # No model has so many layers: each of these epochs ends with an evaluation.
    "epochs of 300 steps": (([f"k{n}" for n in range(14)] * 300 + ["norm", "head", "argmax"]) * 4, [14] * 1200, None),
    "communication anywhere in a step": (
        repeated(15, lambda _: with_communication(DICE)),
        [len(TRAINING) + 12] * 15,
        None,
    ),
    "a recording that begins inside a step": ([*TRAINING[40:], *[PAUSE, *TRAINING] * 10], [len(TRAINING)] * 10, None),
}  # fmt: skip


def test_launches_that_recur_in_a_span_of_a_server_are_no_steps(tmp_path):
    loop = Loop()
    loop.run(*repeated(8, forward))
    export = loop.write_sqlite(tmp_path / "x.sqlite")
    parser = reader.choose(export, reader.parsers())
    assert len(reader.parse(parser, export).steps) > 3
    found = reader.parse(parser, export, None)
    assert found.steps.empty and "capture_compute" in set(found.step_figures["metric"])


@pytest.mark.parametrize(("launches", "expected", "other"), PATTERNS.values(), ids=PATTERNS)
def test_launches_that_recur_are_steps(tmp_path, launches, expected, other):
    loop = Loop()
    loop.run(*launches)
    steps = loop.steps(tmp_path)
    assert counts(steps) == expected
    assert set(steps["rule"]) <= {"pattern"}
    work = steps.loc[steps["state"] == "other", ["step", "kernels"]]
    assert other is None or list(work.itertuples(index=False, name=None)) == other


def test_what_a_program_logs_at_each_fifth_step_makes_no_step_of_five(tmp_path):
    loop = Loop()
    loop.run(*repeated(20, lambda n: [*TRAINING, *(["norm_of_gradients"] if n % 5 == 4 else [])]))
    assert len(counts(loop.steps(tmp_path))) == 20


def test_repeated_layers_are_no_steps_if_the_grid_tells_them_apart(tmp_path):
    loop = Loop()
    for _ in range(6):
        for layer in range(4):
            loop.run("a", "b", "c", "d", gridX=layer + 1, gridY=1, gridZ=1)
    assert counts(loop.steps(tmp_path, grids=True)) == [16] * 6


def test_the_branches_of_a_graph_may_run_in_any_order(tmp_path):
    loop = Loop()
    for n in range(10):
        loop.launches += 1
        t = 1000 * loop.launches
        loop.call(t, t + 2, loop.launches)
        for place, name in enumerate(STEP if n % 2 else reversed(STEP)):
            loop.kernel(t + 10 + 20 * place, t + 25 + 20 * place, loop.launches, name)
    assert counts(loop.steps(tmp_path)) == [20] * 10


@pytest.mark.parametrize("lengths", ["random", "turns", "one"])
@pytest.mark.parametrize("kind", ["train", "infer", "accumulate"])
def test_steps_with_inputs_of_any_length_are_found(tmp_path, kind, lengths):
    loop, random = Loop(), np.random.default_rng(3)
    loop.run("init", "init", "fill")
    numbers = {"random": random.integers(0, 9, 100), "turns": np.arange(100) * 2 % 9, "one": np.full(100, 5)}[lengths]
    inputs = iter(numbers.tolist())
    known = []
    for _ in range(18):
        parts = {"train": lambda n: forward(n) + backward(n), "infer": lambda n: [*forward(n), "argmax"]}
        of_input = parts.get(kind, parts["train"])
        step = [name for _ in range(4 if kind == "accumulate" else 1) for name in of_input(next(inputs))]
        step += [] if kind == "infer" else BY_HAND
        loop.run(PAUSE, *step)
        known.append(len(step))
    assert counts(loop.steps(tmp_path)) == known


def test_the_steps_of_ranges_apply_and_another_count_of_the_pattern_is_told(tmp_path):
    """A step that holds the sequence twice, then once, and so on, may not be what the user means."""
    loop = Loop()
    for n, repetitions in enumerate((2, 3, 1, 3, 2)):
        begin = 100 * loop.launches + 50
        for _ in range(repetitions):
            loop.run(*STEP)
        loop.range(begin, begin + 2000 * repetitions, f"step_{n}")
    tables = parsed(loop.write_sqlite(tmp_path / "x.sqlite"))
    assert counts(tables.steps) == [40, 60, 20, 60, 40]
    assert metrics(tables)["step_count_by_pattern", ""] == 11


def test_a_sequence_that_recurs_as_often_in_each_step_agrees_with_its_ranges(tmp_path):
    loop = Loop()
    for n in range(5):
        begin = 100 * loop.launches + 50
        for _ in range(3):
            loop.run(*STEP)
        loop.range(begin, begin + 6000, f"step_{n}")
    tables = parsed(loop.write_sqlite(tmp_path / "x.sqlite"))
    assert counts(tables.steps) == [60] * 5
    assert ("step_count_by_pattern", "") not in metrics(tables)


# --- states ----------------------------------------------------------------------------------------------------------


#: FSDP on two H100s: the second half is quieter by chance.
FSDP_MS = (
    "1027 86.3 106.7 103.7 104.1 126.3 172.3 126.8 94.4 81.3 71.4 72.2 82.8 81.1 82.6 82.4 80.1 80.7 84.8 "
    "94.1 85.3 86.6 178.8"
)
FSDP = [float(ms) for ms in FSDP_MS.split()]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([100.0], "s"),
        ([500, 100.0], "ws"),
        ([100] * 8, "wsssssss"),
        (FSDP, "wssss" + "ooo" + "s" * 14 + "o"),
        # A compiler that works for half of the steps.
        ([900, 400, 390, 410, 395, 405, 398, 100, 101, 99, 100, 102, 98, 100], "wwwwwwwsssssss"),
        ([900, 500, 300, 101, 100, 99, 100, 101, 100, 99, 100], "wwwssssssss"),
        ([900, 100, 101, 99, 100, 300, 100, 101, 99, 100], "wssssossss"),
        ([100, 101, 99, 100, 101, 99, 100, 60, 101], "wssssssos"),
        # One time among slow ones that is right by chance ends no warm-up.
        ([900, 500, 100, 500, 500, 100, 100, 100, 100, 100, 100, 100, 100], "wwwwwssssssss"),
        # Every fourth step waits for one of four workers.
        ([100, 100, 101, 900, 100, 99, 100, 900, 100, 101, 100, 900, 100, 100, 99, 900], "wsssssssssssssss"),
        # Uneven steps, and three evaluations that are ten times as long as those.
        ([100, *[100, 100, 100, 180] * 9, 1500, 100, 2500, 100, 1700], "w" + "s" * 36 + "ososo"),
        # Of few steps the deviation says nothing, and a step twice as long is an outlier still.
        ([100, 100, 100, 105, 210], "wssso"),
        # No deviation at all: a hundredth of the median takes its place.
        ([100, 100, 100, 102, 100, 104, 100, 100], "wssssoss"),
    ],
)
def test_the_state_of_a_step_follows_from_its_time(times, expected):
    assert "".join(state[0] for state in states(np.array(times, dtype=float))) == expected


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_an_outlier_tells_what_it_has_over_the_others(tmp_path):
    export = Export()
    at, correlation = 0, 0
    for n in range(12):
        begin = at
        names = ["a", "b", *(["rare"] * (n == 7))]
        for name in names:
            correlation += 1
            export.call(at + 10, at + 12, correlation)
            length = 500 if (name, n) == ("b", 7) else 100
            export.kernel(at + 20, at + 20 + length, correlation, name)
            at += 20 + length
        at += 1000 if n == 9 else 0
        export.range(begin, at, f"step_{n}")
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert tables.steps.set_index("step").loc[[7, 9], "state"].tolist() == ["outlier", "outlier"]
    numbers = metrics(tables)
    own = {name: value for (name, subject), value in numbers.items() if subject == "rank 0 step 7"}
    assert own == {"step_outlier_kernels": 400, "step_outlier_other_kernels": 100, "step_outlier_idle_launch": 20}
    assert numbers["step_outlier_idle_launch", "rank 0 step 9"] == 1000
    assert numbers["step_kernel_time", "a"] == 100 and numbers["step_launches", "b"] == 1
    assert ("step_kernel_time", "rare") not in numbers


def test_the_time_of_uneven_steps_is_their_mean(tmp_path):
    """Every other step waits for a data loader: the median would be one of two kinds of steps."""
    export, at = Export(), 0
    for n in range(21):
        length = 9000 if n % 2 else 1000
        export.range(at, at + length, f"step_{n}")
        export.launch(at + 20, n + 1)
        at += length
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    counted = tables.steps[tables.steps["state"] == "steady"]
    assert len(counted) >= 19 and not (tables.steps["state"] == "outlier").any()
    row = tables.metrics.set_index("metric").loc["step_time"]
    assert row["value"] == pytest.approx(counted["wall_ns"].mean()) and 4000 < row["value"] < 6000
    assert row["ci_low"] < row["value"] < row["ci_high"] and metrics(tables)["step_spread", ""] > 20


def test_copies_have_their_bytes_by_step(tmp_path):
    export = Export()
    for n in range(6):
        export.range(1000 * n, 1000 * n + 1000, f"step_{n}")
        export.launch(1000 * n + 20, 2 * n + 1)
        export.call(1000 * n + 500, 1000 * n + 502, 2 * n + 2, name="cudaMemcpyAsync_v3020")
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=1000 * n + 510, end=1000 * n + 610, deviceId=0, contextId=1, streamId=7,
            correlationId=2 * n + 2, globalPid=1 << 48 | 1 << 24, bytes=4096, copyKind=1,
        )  # fmt: skip
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    numbers = metrics(tables)
    name = "[CUDA memcpy Host-to-Device]"
    values = [numbers[f"step_{what}", name] for what in ("copy_bytes", "kernel_time", "launches")]
    assert values == [4096, 100, 1]
    assert set(tables.steps["copy_ns"]) == {100}


def one_rank(export, pid, device, period, first=0):
    for n in range(10):
        export.range(period * n, period * n + period, f"step_{first + n}", pid)
        export.call(period * n + 10, period * n + 12, n + 1, pid)
        export.kernel(period * n + 20, period * n + 70, n + 1, "k", pid, deviceId=device)


def test_ranks_are_numbered_by_device_and_a_case_has_their_mean(tmp_path):
    export = Export()
    one_rank(export, 30, 1, 400)
    one_rank(export, 20, 0, 200)
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    ranks = tables.steps[["rank", "process", "device"]].drop_duplicates().to_numpy().tolist()
    assert sorted(ranks) == [[0, 20, 0], [1, 30, 1]]
    numbers = metrics(tables)
    assert [numbers["step_time", subject] for subject in ("rank 0", "rank 1", "")] == [200, 400, 300]
    assert (numbers["step_kernel_time", "k"], numbers["step_launches", "k"]) == (50, 1)


def test_devices_of_one_process_are_one_rank_and_share_its_steps(tmp_path):
    """Layers on two devices: the second one begins when the first has finished, and ends each step."""
    export = Export()
    for n in range(10):
        at = 1000 * n + (100 if n == 5 else 0)
        export.range(1000 * n, 1000 * n + 1000, f"step_{n}")
        for device, begin, end in ((0, 20, 320), (1, 400, 500)):
            correlation = 2 * n + device + 1
            export.call(1000 * n + 10 + device, 1000 * n + 12 + device, correlation)
            export.kernel(at + begin, at + end, correlation, f"k{device}", deviceId=device)
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert set(tables.steps["rank"]) == {0} and set(tables.steps["device"]) == {0, 1}
    assert set(tables.timeline["rank"]) == {0}
    states_of = tables.steps.groupby("step")["state"]
    assert (states_of.nunique() == 1).all() and states_of.first()[5] == "outlier"
    numbers = metrics(tables)
    assert numbers["step_time", ""] == 1000 and ("step_time", "rank 0") not in numbers
    # A kernel of one of the two devices counts half.
    assert (numbers["step_kernel_time", "k0"], numbers["step_kernel_time", "k1"]) == (150, 50)
    assert numbers["step_outlier_idle_launch", "rank 0 device 1 step 4"] == pytest.approx(100)


def test_steps_have_the_same_state_on_all_ranks_and_the_numbers_that_all_have(tmp_path):
    """Rank 1 lacks the first two steps, and one of its steps takes longer."""
    lengths = [[100] * 14, [300, 300, *[100] * 5, 400, *[100] * 6]]
    files = [trace(tmp_path, rank, "k", own, first=2 * rank) for rank, own in enumerate(lengths)]
    sources = [reader.InputFile(path, path.name, "run", "w", "torch", "c") for path in files]
    results = [result for result in reader.ingest(sources) if isinstance(result, reader.Read)]
    steps = reader.combine(result.tables for result in results).steps
    by_state = {state: set(own["step"]) for state, own in steps.groupby("state")}
    steady = {*range(4, 14)} - {9}
    assert by_state == {"unmatched": {0, 1, 14, 15}, "warmup": {2, 3}, "outlier": {9}, "steady": steady}
    assert (steps.groupby("step")["state"].nunique() == 1).all()


def test_ranks_without_a_common_number_have_no_steady_step(tmp_path):
    export = Export()
    for rank, pid in enumerate((20, 30)):
        one_rank(export, pid, rank, 200, first=20 * rank)
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert set(tables.steps["state"]) == {"unmatched"} and set(tables.timeline["rank"]) == {0, 1}
    assert ("step_time", "") not in metrics(tables)


def test_the_warmup_that_the_user_declared_stays_on_several_ranks():
    place = {"workload": "w", "case": "c", "profiler": "plain", "rule": "optimizer"}
    rows = [
        {**place, "source": f"rank{rank}", "process": rank, "step": n, "wall_ns": 100.0, "state": state}
        for rank in range(2)
        for n, state in enumerate(["warmup"] * 4 + ["steady"] * 6)
    ]
    steps = reader.combine([Tables(steps=frame(STEPS, rows))]).steps
    assert steps["state"].tolist() == [row["state"] for row in rows]


def test_the_time_of_ranks_that_wait_in_turn_is_even():
    """The mean over the ranks is 60 in each step, while each rank has steps of 30 and 90."""
    place = {"workload": "w", "case": "c", "profiler": "nsys", "rule": "optimizer", "source": "s", "state": "steady"}
    rows = [
        {**place, "process": rank, "step": n, "wall_ns": 90.0 if n % 2 == rank else 30.0}
        for rank in range(2)
        for n in range(12)
    ]
    numbers = metrics(reader.combine([Tables(steps=frame(STEPS, rows))]))
    assert (numbers["step_time", ""], numbers["step_spread", ""]) == (60, pytest.approx(1.0, abs=0.5))


@pytest.mark.parametrize(("steps", "has_interval"), [(4, False), (5, True)])
def test_fewer_than_five_steady_steps_have_no_interval(steps, has_interval):
    place = {"workload": "w", "case": "c", "profiler": "nsys", "source": "s", "process": 1, "state": "steady"}
    rows = [{**place, "step": n, "wall_ns": 100.0 * (1 + n)} for n in range(steps)]
    row = reader.combine([Tables(steps=frame(STEPS, rows))]).metrics.set_index("metric").loc["step_time"]
    assert (pd.notna(row["ci_low"]), pd.notna(row["ci_high"])) == (has_interval, has_interval)


def test_figures_of_checks_become_metrics_as_they_are():
    place = {"run": "r", "workload": "w", "case": "", "profiler": "nsys", "source": "s", "process": 7}
    value = {"metric": "check_late_end", "subject": "stream 7", "value": 3.0, "unit": "1", "n": 2}
    figures = frame(STEP_FIGURES, [{**place, **value}])
    steps = [
        {**place, "process": pid, "step": n, "state": "steady", "wall_ns": 1.0} for pid in (7, 8) for n in range(3)
    ]
    for tables in (Tables(step_figures=figures), Tables(step_figures=figures, steps=frame(STEPS, steps))):
        found = reader.combine([tables]).metrics
        (row,) = found[found["metric"] == "check_late_end"].to_dict("records")
        assert {name: row[name] for name in value} == value and (row["run"], row["workload"]) == ("r", "w")


def trace(folder, rank, kernel, period, first=0):
    """A trace of torch.profiler of one rank of two, with six steps or one of each length."""
    events: list[dict[str, Any]] = []
    lengths = [period] * 6 if isinstance(period, int) else period
    starts = itertools.accumulate(lengths, initial=0)
    for n, (t, length) in enumerate(zip(starts, lengths, strict=False), start=first):
        base = {"ph": "X", "pid": 100 + rank, "tid": 1}
        events.append({**base, "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": t, "dur": length})
        args = {"correlation": n + 1}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": t + 1, "dur": 2, "args": args}
        events.append({**base, **call})
        gpu = {"device": 0, "stream": 7, **args}
        events.append(
            {"ph": "X", "cat": "kernel", "name": kernel, "ts": t + 5, "dur": 10, "pid": 0, "tid": 7, "args": gpu}
        )
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}))
    return path


def test_the_files_of_a_job_are_ranks_of_one_case(tmp_path):
    files = [trace(tmp_path, 1, "common", 200), trace(tmp_path, 0, "alone", 100)]
    sources = [reader.InputFile(path, path.name, "run", "w", "torch", "c") for path in files]
    results = [result for result in reader.ingest(sources) if isinstance(result, reader.Read)]
    tables = reader.combine(result.tables for result in results)
    assert set(tables.steps["case"]) == {"c"} and set(tables.steps["run"]) == {"run"}
    assert tables.steps.groupby("source")["rank"].first().to_dict() == {"rank0.json": 0, "rank1.json": 1}
    numbers = metrics(tables)
    assert [numbers["step_time", subject] for subject in ("rank 0", "rank 1", "")] == [1e5, 2e5, 1.5e5]
    # Each kernel runs on one of the two ranks.
    assert (numbers["step_launches", "common"], numbers["step_kernel_time", "alone"]) == (0.5, 5e3)
    own = tables.metrics[tables.metrics["metric"].str.startswith("step")]
    assert set(own["workload"]) == {"w"} and set(own["profiler"]) == {"torch"} and set(own["case"]) == {"c"}


def test_the_range_of_a_pipeline_file_is_read_from_the_job(tmp_path):
    export = Export()
    for number in range(3):
        export.range(100 * number, 100 * number + 100, f"batch {number}")
        export.launch(100 * number + 20, number + 1)
    path = export.write_sqlite(tmp_path / "capture.sqlite")
    case = Case("default", {})
    job = make_job("w", "nsys", (case,), path.parent, Tool("nsys", "1"), "python", tmp_path, command=("x",))
    job = change(job, options={"steps": {"range": r"batch \d+", "warmup": 0}})
    outcome = JobOutcome(job, Outcome(Status.OK), files={path: ""})
    (result,) = reader.ingest(job_tables.sources_of_job(outcome, tmp_path))
    assert isinstance(result, reader.Read)
    assert result.tables.steps[["case", "rule"]].to_numpy().tolist() == [["default", "marker"]] * 3


def test_a_step_is_the_time_of_a_program_under_plain():
    place = {"workload": "w", "case": "c", "source": "s", "process": 1, "state": "steady"}
    rows = [{**place, "step": n, "wall_ns": 100.0 + n} for n in range(9)]
    for profiler in ("plain", "nsys"):
        found = reader.combine([Tables(steps=frame(STEPS, [{**row, "profiler": profiler} for row in rows]))]).metrics
        by_metric = found.set_index("metric")[["value", "n", "ci_low", "ci_high"]]
        assert by_metric.loc["step_time"].tolist() == [104, 9, 101, 107]
        assert ("time" in by_metric.index) == (profiler == "plain")
        assert profiler == "nsys" or by_metric.loc["time"].equals(by_metric.loc["step_time"])


def test_files_of_different_workloads_keep_their_own_ranks(tmp_path):
    sources = reader.sources_of_paths([trace(tmp_path, 1, "k", 200), trace(tmp_path, 0, "k", 100)])
    tables = reader.combine(result.tables for result in reader.ingest(sources) if isinstance(result, reader.Read))
    times = tables.metrics[tables.metrics["metric"] == "step_time"].set_index("workload")["value"].to_dict()
    assert times == {"rank1.json": 2e5, "rank0.json": 1e5}


def test_a_trace_without_a_gpu_has_the_periods_of_its_steps():
    tables = parsed(ROOT / "tests" / "data" / "torch-2.13" / "training_cpu.json.gz", "torch_trace")
    assert tables.steps.empty or tables.steps["compute_ns"].isna().all()


def test_steps_on_a_cpu_last_from_one_range_to_the_next(tmp_path):
    events = []
    for n in range(4):
        base = {"ph": "X", "pid": 100, "tid": 1}
        name = f"{STEP_PREFIX}optimizer:{n}"
        events.append({**base, "cat": "user_annotation", "name": name, "ts": 100 * n, "dur": 90})
        events.append({**base, "cat": "cpu_op", "name": "aten::mm", "ts": 100 * n + 10, "dur": 50})
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    tables = parsed(path, "torch_trace")
    assert tables.steps["wall_ns"].tolist() == [1e5, 1e5, 1e5, 9e4]
    assert tables.steps["rule"].tolist() == ["optimizer"] * 4
    assert tables.steps[[*PARTS, "kernels"]].isna().all(axis=None)
    assert metrics(tables)["step_time", ""] == 1e5


def test_a_file_without_steps_has_an_empty_table(tmp_path):
    export = Export()
    export.launch(10, 1)
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    pd.testing.assert_frame_equal(tables.steps, empty(STEPS))
    assert not tables.metrics["metric"].str.startswith("step").any()


@pytest.mark.parametrize(("longer_ms", "expected"), [(1.0, None), (1.7, None), (30.0, (9, 10))])
def test_a_loss_that_is_printed_begins_no_iteration_and_an_evaluation_does(longer_ms, expected):
    # nanoGPT on an H200: 36 processes, of which one had iterations of ten steps.
    walls = np.random.default_rng(0).normal(16.78, 0.01, 104)
    walls[9::10] += longer_ms
    assert find_iteration(walls * 1e6) == expected
