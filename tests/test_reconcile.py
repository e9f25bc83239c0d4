"""What a recording contradicts itself in, by files that do, and what looks alike and is right."""

import json
from pathlib import Path

import pandas as pd
import pytest
from nsys_exports import Export

from profpipe import plugins
from profpipe.commands import ingest
from profpipe.ingest import reader
from profpipe.results.schema import Check, Tables

ROOT = Path(__file__).resolve().parents[1]
REPORTED = Path(__file__).parent / "data" / "reported"
STEP_NS = 10_000


def parsed(path, parser="nsys_sqlite"):
    tables: Tables = plugins.load_module(ROOT / "parsers" / f"{parser}.py").parse(path)
    return reader.combine([tables])


def checks(tables):
    own = tables.metrics[tables.metrics["metric"].str.startswith("check_")]
    return {row.metric: (row.value, row.n) for row in own.itertuples()}


def loop(steps=8, kernels=4, ranges=True):
    """Steps, with a range or without, of equal kernels that run at once."""
    export = Export()
    for step in range(steps):
        if ranges:
            export.range(STEP_NS * step, STEP_NS * (step + 1), f"step_{step}")
        for kernel in range(kernels):
            export.launch(STEP_NS * step + 100 * kernel + 10, 1 + step * kernels + kernel, f"k{kernel}")
    return export


def graphs(counts, graph=7):
    """One replay of a CUDA graph in each step, with so many kernels; the tool may not say which graph."""
    export = Export()
    for step, count in enumerate(counts):
        export.range(STEP_NS * step, STEP_NS * (step + 1), f"step_{step}")
        export.call(STEP_NS * step + 10, STEP_NS * step + 12, step + 1, name="cudaGraphLaunch_v10000")
        for kernel in range(count):
            begin = STEP_NS * step + 20 + 10 * kernel
            node = None if graph is None else (graph << 32) + kernel
            export.kernel(begin, begin + 8, step + 1, f"k{kernel % 5}", graphNodeId=node)
    return export


def test_a_loop_without_a_contradiction_has_steps_and_no_check(tmp_path):
    tables = parsed(loop().write_sqlite(tmp_path / "x.sqlite"))
    assert not checks(tables) and len(tables.steps) == 8


def test_the_end_of_a_kernel_is_set_to_the_start_of_the_next_one_of_its_stream(tmp_path):
    export = loop()
    late = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]
    late["end"] += 5 * STEP_NS
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert checks(tables) == {Check.LATE_END.value: (5 * STEP_NS - 90, 1)}
    assert tables.kernels["total_ns"].sum() == 32 * 10 + 90 and len(tables.steps) == 8


@pytest.mark.parametrize(
    ("stream", "overlap"),
    [pytest.param(8, 5 * STEP_NS, id="another stream"), pytest.param(7, 93, id="programmatic dependent launch")],
)
def test_kernels_may_overlap_on_two_streams_and_with_the_next_one_of_their_stream(tmp_path, stream, overlap):
    export = loop()
    kernel = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]
    kernel["streamId"], kernel["end"] = stream, kernel["end"] + overlap
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert Check.LATE_END.value not in checks(tables)
    assert tables.kernels["total_ns"].sum() == 32 * 10 + overlap


def test_branches_of_a_graph_overlap_on_one_stream(tmp_path):
    export = graphs([6] * 8)
    for kernel in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][::6]:
        kernel["end"] += 30
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert not checks(tables) and len(tables.steps) == 8


def test_a_kernel_of_a_graph_ends_before_the_next_replay_begins(tmp_path):
    export = graphs([6] * 8)
    late = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][6 * 3 + 2]
    late["end"] += 5 * STEP_NS
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    # The next replay begins 9972 ns after the true end.
    assert checks(tables) == {Check.LATE_END.value: (5 * STEP_NS - 9972, 1)} and len(tables.steps) == 8


@pytest.mark.parametrize(
    ("counts", "graph", "lost"),
    [
        ([6, 6, 6, 4, 6, 6, 6, 6], 7, 2),
        ([6, 6, 6, 4, 6, 6, 6, 6], None, 2),
        # The capture began in the first replay and ended in the last one.
        ([2, 6, 6, 6, 6, 6, 6, 3], 7, 0),
        # Another graph, of fewer kernels, in every third step.
        ([6, 6, 4, 6, 6, 4, 6, 6, 4, 6, 6, 4, 6, 6, 6, 6, 6, 6, 6, 6, 6], None, 0),
        ([6] * 8, 7, 0),
        # The first replay shows what the second one lacks.
        ([6, 4, 3], 7, 2),
        ([6, 4, 3], None, 2),
    ],
)
def test_replays_of_one_graph_hold_the_same_kernels(tmp_path, counts, graph, lost):
    tables = parsed(graphs(counts, graph).write_sqlite(tmp_path / "x.sqlite"))
    found = checks(tables).get(Check.REPLAYS.value)
    assert found == ((lost, len(counts) - 2) if lost else None)
    assert tables.steps.empty == bool(lost)


def test_launches_without_a_kernel_are_lost_records(tmp_path):
    export = loop()
    for launch in range(6):
        export.call(50_000 + launch, 50_001 + launch, 500 + launch)
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert checks(tables) == {Check.LOST_KERNELS.value: (6, 38)} and tables.steps.empty


def test_a_trace_without_any_kernel_of_its_launches_has_lost_them(tmp_path):
    """The ranges of its steps are on the host, whose time is no step of the program."""
    trace = json.loads((REPORTED / "last_step.json").read_text(encoding="utf-8"))
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") != "kernel"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    tables = parsed(path, "torch_trace")
    assert checks(tables) == {Check.LOST_KERNELS.value: (60, 60)} and tables.steps.empty


def test_launches_that_failed_or_built_a_graph_have_no_kernel(tmp_path):
    export = loop()
    export.call(50_000, 50_001, 900, name="cudaStreamBeginCapture_v10000")
    for launch in range(6):
        export.call(50_010 + launch, 50_011 + launch, 500 + launch)
    export.call(50_020, 50_021, 901, name="cudaStreamEndCapture_v10000")
    for launch in range(6):
        export.call(50_030 + launch, 50_031 + launch, 600 + launch, returnValue=2)
    assert not checks(parsed(export.write_sqlite(tmp_path / "x.sqlite")))


def test_kernels_that_ran_after_their_steps_leave_their_idle_time_unknown(tmp_path):
    export = loop()
    for kernel in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if kernel["demangledName"] != export.string("k0"):
            kernel["start"], kernel["end"] = kernel["start"] + 10 * STEP_NS, kernel["end"] + 10 * STEP_NS
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    # Three of four kernels of each of the steps but the last.
    assert checks(tables) == {Check.OUTSIDE_STEPS.value: (75, 7)} and tables.steps.empty


def test_launches_that_recur_and_ran_after_the_next_ones_are_no_steps(tmp_path):
    """As iterations do that overlap on several streams. The parts of the whole recording are still known."""
    export = loop(ranges=False)
    for kernel in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if kernel["demangledName"] != export.string("k0"):
            kernel["start"], kernel["end"] = kernel["start"] + 10 * STEP_NS, kernel["end"] + 10 * STEP_NS
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert not checks(tables) and tables.steps.empty
    assert "capture_idle_launch" in set(tables.step_figures["metric"])


def test_a_gpu_that_runs_behind_the_host_by_two_steps_contradicts_nothing(tmp_path):
    export = loop()
    for kernel in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        kernel["start"], kernel["end"] = kernel["start"] + 2 * STEP_NS, kernel["end"] + 2 * STEP_NS
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert not checks(tables) and set(tables.steps["wall_ns"]) == {STEP_NS}


def test_ranges_of_a_framework_that_hold_less_than_half_of_the_kernel_time_are_no_steps(tmp_path):
    export = loop()
    for launch in range(40):
        # A program that goes on after its profiled steps.
        export.launch(100_000 + 1000 * launch, 500 + launch, f"other{launch}", lasts=20)
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    assert checks(tables)[Check.COVERAGE.value] == (pytest.approx(100 * 320 / 1120), 8) and tables.steps.empty


@pytest.mark.parametrize("apart", [1000, 0], ids=["process ids", "one process id"])
def test_ranks_of_a_merged_trace_without_a_name_for_their_rank_have_no_steps(tmp_path, apart):
    """The launch numbers repeat, and nothing says whose kernel is whose."""
    trace = json.loads((REPORTED / "merged_ranks.json").read_text(encoding="utf-8"))
    numbers: dict[str, int] = {}

    def anonymous(event):
        rank, _, pid = event["pid"].rpartition(" ")
        own = numbers.setdefault(rank, len(numbers))
        return {**event, "pid": 5000 + apart * own if int(pid) else 0}

    trace["traceEvents"] = [anonymous(event) for event in trace["traceEvents"]]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    tables = parsed(path, "torch_trace")
    assert checks(tables)[Check.SHARED_IDS.value] == (240, 240) and tables.steps.empty
    ingest.read_files([path], tmp_path / "out")
    # Four GPUs look like one, which says nothing of what each did.
    page = (tmp_path / "out" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "their process is unknown" in page and "the GPU computed" not in page


def test_ranks_have_the_order_of_their_numbers(tmp_path):
    text = (REPORTED / "merged_ranks.json").read_text(encoding="utf-8")
    for rank, name in enumerate(("rank1", "rank2", "rank9", "rank10")):
        text = text.replace(f"[TP0{rank}-DP00-PP00-EP0{rank}]", name)
    path = tmp_path / "merged.json"
    path.write_text(text, encoding="utf-8")
    steps = parsed(path, "torch_trace").steps
    steady = steps[steps["state"] == "steady"].groupby("rank")["compute_ns"].median()
    assert steady.to_dict() == {0: 500_000, 1: 450_000, 2: 400_000, 3: 350_000}


def test_ranks_of_containers_with_one_process_id_stay_apart(tmp_path):
    text = (REPORTED / "merged_ranks.json").read_text(encoding="utf-8")
    for rank in range(4):
        text = text.replace(f"] 500{rank}", "] 1")
    path = tmp_path / "merged.json"
    path.write_text(text, encoding="utf-8")
    steps = parsed(path, "torch_trace").steps
    assert steps.groupby("rank").size().tolist() == [6, 6, 6, 6]
    assert steps.loc[steps["state"] == "steady"].groupby("rank")["compute_ns"].median().tolist() == [
        500_000, 450_000, 400_000, 350_000,
    ]  # fmt: skip


def test_long_steps_at_a_regular_stride_are_kept_where_their_excess_is_not_equal(tmp_path):
    """A logging pause of changing length after each fifth step makes no step of five."""
    export, at, correlation = Export(), 0, 0
    for step in range(40):
        for kernel in range(20):
            correlation += 1
            export.launch(at, correlation, f"k{kernel}", lasts=50)
            at += 60
        at += {4: 50 + 4000 * (step % 3)}.get(step % 5, 0)
    steps = parsed(export.write_sqlite(tmp_path / "x.sqlite")).steps
    assert len(steps) == 40 and (steps["rule"] == "pattern").all()


def test_no_recording_at_hand_contradicts_itself_but_those_that_were_made_to(shared_data, capsys):
    """Checks on real recordings of many tools: each alarm would be a false one."""
    kinds = ("nsys", "h200", "rocprof", "torch_trace")
    paths = [path for kind in kinds for path in sorted((shared_data / kind).rglob("*")) if path.is_file()]
    read = [result for result in reader.ingest(reader.sources_of_paths(paths)) if isinstance(result, reader.Read)]
    figures = pd.concat([result.tables.step_figures for result in read])
    assert len(read) > 30
    assert figures[figures["metric"].str.startswith("check_")].empty


def test_gpus_of_one_process_without_steps_are_no_ranks_and_have_a_mean(tmp_path):
    export = Export()
    for launch in range(20):
        export.call(1000 * launch, 1000 * launch + 2, launch + 1)
        busy = 100 if launch % 2 else 300
        export.kernel(1000 * launch + 5, 1000 * launch + 5 + busy, launch + 1, f"k{launch}", deviceId=launch % 2)
    ingest.read_files([export.write_sqlite(tmp_path / "x.sqlite")], tmp_path / "out")
    page = (tmp_path / "out" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "**Mean of 2 GPUs: of 18.2 us a GPU was idle 89.0 % (because the host launched late)" in page
    assert "| GPU | recorded us |" in page and "| GPU 0 |" in page and "rank" not in page
