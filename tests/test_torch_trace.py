"""Traces of torch.profiler: real ones of CUDA, ROCm and CPU, and small ones written here for what those lack."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from profpipe import ranges
from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, reader
from profpipe.results import schema
from profpipe.results.schema import Placement
from profpipe.runner import plan

DATA = Path(__file__).parent / "data"
H200 = DATA / "torch-2.11" / "attention_h200.json.gz"
CPU = DATA / "torch-2.13" / "training_cpu.json.gz"

Event = dict[str, Any]
Write = Callable[..., Path]


@pytest.fixture
def trace(tmp_path):
    """Writes events as a trace and gives its path."""

    def write(*events, **top):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": list(events)}))
        return path

    return write


def event(cat, name, ts, dur, *, tid=1, pid=100, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def annotation(name, ts, dur, **where):
    return event("user_annotation", name, ts, dur, **where)


def launch(correlation, ts, **where):
    return event("cuda_runtime", where.pop("name", "cudaLaunchKernel"), ts, 5, correlation=correlation, **where)


def kernel(name, correlation, ts, dur, **args):
    known = {} if correlation is None else {"correlation": correlation}
    return event("kernel", name, ts, dur, pid=0, tid=7, device=0, stream=7, **known, **args)


def places(parsed):
    frame = parsed.kernels
    return dict(zip(frame["kernel"], zip(frame["case"], frame["phase"], strict=True), strict=True))


def test_kernels_of_a_real_cuda_trace_carry_process_device_stream_and_the_gpu_has_its_name(parser):
    parsed = reader.parse(parser, H200)
    assert parsed.origin.device == "NVIDIA H200"
    assert (parsed.kernels["process"] == 5856).all() and (parsed.kernels["device"] == 0).all()
    assert set(parsed.kernels["kind"]) == {"kernel", "memset"}
    attention = parsed.kernels[parsed.kernels["kernel_class"] == "attention"]
    assert attention["calls"].tolist() == [6, 6, 6, 6]
    assert set(attention["kernel_family"]) == {"fa2", "cudnn", "sage1"}


def test_backward_kernels_of_a_real_training_run_belong_to_the_phase_that_called_backward(parser, shared_data):
    """Autograd launched 2780 of the 4350 kernels from its thread."""
    (path,) = (shared_data / "torch_trace").glob("*/rank-0.*.pt.trace.json.gz")
    parsed = parser.parse(path)
    kernels = parsed.kernels[parsed.kernels["kind"] == "kernel"]
    by_phase = kernels["calls"].groupby(kernels["phase"].str.split(" > ").str[1]).sum()
    assert by_phase.to_dict() == {"## forward ##": 1495, "## backward ##": 2810, "## optimizer ##": 45}
    assert Placement.OTHER_THREAD in parsed.origin.attribution


def test_a_trace_without_gpu_events_gives_operators_by_self_time(parser):
    parsed = parser.parse(CPU)
    assert set(parsed.kernels["kind"]) == {"cpu_op"} and parsed.kernels["device"].isna().all()
    assert set(parsed.kernels["case"]) == {"size=64", "size=32"}
    assert set(parsed.kernels["phase"]) == {"forward", "backward"}
    assert parsed.origin.launches == 0 and "self time" in parsed.origin.without_kernels
    # Three matmuls forward; aten::linear and the like call aten::mm, whose time is counted once.
    forward = parsed.kernels[(parsed.kernels["case"] == "size=64") & (parsed.kernels["phase"] == "forward")]
    assert forward.loc[forward["kernel"] == "aten::mm", "calls"].tolist() == [3]
    # Self times of operators on one thread cannot add up to more than the ranges around them.
    outer = parsed.ranges[parsed.ranges["range"] == ""]
    assert parsed.kernels["total_ns"].sum() <= outer["wall_ns"].sum()


def test_a_range_of_a_case_counts_its_iterations_and_says_nothing_of_a_gpu_that_was_not_traced(parser):
    ranges = parser.parse(CPU).ranges
    assert ranges.loc[ranges["range"] == "", "instances"].tolist() == [3, 3]
    assert set(ranges["range"]) == {"", "forward", "backward"}
    assert ranges[["kernel_ns", "kernels", "busy_ns"]].isna().all(axis=None)


def test_names_that_torch_changes_are_restored(parser, tmp_path):
    torch = pytest.importorskip("torch")
    phases = ["größe", "a\\b", 'say "b"', "two\nlines", "tab\tand 5%", "softmax {q} ~ 50%"]
    case = plan.case_id({"impl": "größe", "path": 'a\\b "c"'})
    ranges.use("torch")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for phase in phases:
                with ranges.annotate(schema.CASE_PREFIX + case), ranges.annotate(phase):
                    torch.ones(3).sum()
    finally:
        ranges.use("plain")
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    parsed = parser.parse(tmp_path / "trace.json")
    assert set(parsed.kernels["phase"]) == set(phases) and set(parsed.kernels["case"]) == {case}
    assert set(parsed.ranges["range"]) == {"", *phases}


def test_self_time_leaves_out_children_and_not_what_runs_on_other_threads(parser, trace):
    parsed = parser.parse(
        trace(
            event("cpu_op", "outer", 0, 100),
            event("cpu_op", "inner", 10, 30),
            event("cpu_op", "innermost", 15, 5),
            event("cpu_op", "inner", 50, 20),
            event("cpu_op", "elsewhere", 10, 30, tid=2),
        )
    )
    times = dict(zip(parsed.kernels["kernel"], parsed.kernels["total_ns"], strict=True))
    assert times == {"outer": 50e3, "inner": 45e3, "innermost": 5e3, "elsewhere": 30e3}


def test_case_and_phase_come_from_the_ranges_around_the_launch_not_around_the_kernel(parser, trace):
    parsed = parser.parse(
        trace(
            annotation("profpipe:n=1", 0, 100),
            annotation("forward", 10, 20),
            launch(1, 15),
            launch(2, 50),
            kernel("in_forward", 1, 60, 10),
            kernel("in_case", 2, 200, 10),
        )
    )
    assert places(parsed) == {"in_forward": ("n=1", "forward"), "in_case": ("n=1", "")}
    ranges = parsed.ranges.set_index("range")
    assert ranges.loc["", ["kernels", "kernel_ns", "busy_ns"]].tolist() == [2, 20e3, 20e3]
    assert ranges.loc["forward", ["kernels", "kernel_ns", "instances", "wall_ns"]].tolist() == [1, 10e3, 1, 20e3]


def test_all_kernels_of_a_graph_launch_belong_to_where_the_graph_was_launched(parser, trace):
    parsed = parser.parse(
        trace(
            annotation("profpipe:n=1", 0, 100),
            launch(9, 10, name="cudaGraphLaunch"),
            kernel("a", 9, 20, 1),
            kernel("b", 9, 22, 1),
            kernel("a", 9, 24, 1),
        )
    )
    assert parsed.kernels["case"].tolist() == ["n=1", "n=1"] and parsed.origin.launches == 3
    assert any("3 kernels come from 1 graph launches" in note for note in parsed.origin.notes)


def test_a_graph_launch_without_kernels_gives_a_note_on_hidden_gpu_time(parser, trace):
    parsed = parser.parse(trace(launch(1, 0), launch(2, 10, name="hipGraphLaunch"), kernel("a", 1, 20, 1)))
    assert any("1 of 2 launches have no kernel" in note for note in parsed.origin.notes)


def test_a_kernel_without_correlation_is_joined_to_its_operator_by_external_id(parser, trace):
    parsed = parser.parse(
        trace(
            annotation("profpipe:n=1", 0, 100),
            event("cpu_op", "aten::mm", 10, 20, **{"External id": 5}),
            kernel("gemm", None, 200, 10, **{"External id": 5}),
        )
    )
    assert places(parsed) == {"gemm": ("n=1", "")} and parsed.kernels["process"].tolist() == [100]
    assert parsed.origin.attribution[Placement.OF_EXTERNAL_ID] == 1


def test_a_kernel_whose_launch_is_not_in_the_trace_stays_outside_every_case(parser, trace):
    parsed = parser.parse(trace(annotation("profpipe:n=1", 0, 100), kernel("early", 77, 10, 10)))
    assert places(parsed) == {"early": ("", "")} and parsed.kernels["process"].isna().all()
    assert parsed.origin.unattributed_ns == 10e3 and parsed.origin.attribution[Placement.NO_CALL] == 1


def test_a_correlation_id_that_two_processes_share_is_not_trusted(parser, trace):
    parsed = parser.parse(
        trace(
            annotation("profpipe:a", 0, 100, pid=1),
            annotation("profpipe:b", 0, 100, pid=2),
            launch(1, 10, pid=1),
            launch(1, 10, pid=2),
            kernel("k", 1, 50, 10),
        )
    )
    assert places(parsed) == {"k": ("", "")}


def test_an_external_id_that_two_processes_share_is_not_trusted_either(parser, trace):
    """Ranks of a merged trace count both ids from the same beginning."""
    of_a_rank = [
        [
            annotation(f"profpipe:{name}", 0, 100, pid=pid),
            event("cpu_op", "aten::mm", 10, 20, pid=pid, **{"External id": 5}),
            launch(9, 15, pid=pid, **{"External id": 5}),
            kernel(f"gemm_{name}", 9, 50, 10, **{"External id": 5}),
        ]
        for name, pid in (("a", 1), ("b", 2))
    ]
    parsed = parser.parse(trace(*of_a_rank[0], *of_a_rank[1]))
    assert places(parsed) == {"gemm_a": ("", ""), "gemm_b": ("", "")}
    assert parsed.kernels["process"].isna().all() and parsed.origin.unattributed_ns == 20e3
    assert parsed.origin.attribution == {Placement.SHARED_ID: 2}
    assert not any("graph launches" in note for note in parsed.origin.notes)


def test_kernels_without_a_correlation_id_come_from_no_graph(parser, trace):
    parsed = parser.parse(trace(kernel("a", 0, 10, 5), kernel("b", 0, 20, 5)))
    assert parsed.origin.launches == 2 and not parsed.origin.notes


def test_the_gpu_projection_of_annotations_does_not_count_as_kernel_time(parser, trace):
    parsed = parser.parse(
        trace(launch(1, 0), kernel("k", 1, 10, 10), event("gpu_user_annotation", "profpipe:n=1", 10, 500, pid=0, tid=7))
    )
    assert parsed.origin.total_ns == 10e3 and len(parsed.kernels) == 1


def test_steps_of_the_profiler_are_one_range_not_one_each(parser, trace):
    steps = [annotation(f"ProfilerStep#{n}", 100 * n, 90) for n in range(5)]
    launches = [launch(n + 1, 100 * n + 10) for n in range(5)]
    parsed = parser.parse(trace(*steps, *launches, *(kernel("k", n + 1, 100 * n + 20, 10) for n in range(5))))
    assert parsed.ranges[["range", "instances"]].values.tolist() == [["ProfilerStep#*", 5]]
    assert places(parsed) == {"k": ("", "ProfilerStep#*")}


def test_a_note_names_steps_with_different_numbers_of_kernels(parser, trace):
    def notes_of(*kernels_of_steps):
        events, correlation = [], 0
        for step, count in enumerate(kernels_of_steps):
            events.append(annotation(f"ProfilerStep#{step}", 1000 * step, 900))
            for n in range(count):
                correlation += 1
                events += [launch(correlation, 1000 * step + 10 * n), kernel("k", correlation, 1000 * step + 950, 1)]
        between_steps = launch(correlation + 1, 990), kernel("k", correlation + 1, 995, 1)
        notes = parser.parse(trace(*events, *between_steps)).origin.notes
        return [note for note in notes if "steps" in note]

    assert notes_of(10, 10, 10) == []
    (note,) = notes_of(3, 10, 0)
    assert note.startswith("the 3 steps of the profiler launched different numbers of kernels, from 0 to 10")


def test_capitalised_categories_of_torch_1_8_mean_the_same(parser, trace):
    parsed = parser.parse(
        trace(
            event("Operator", "ProfilerStep#1", 0, 100),
            event("Runtime", "cudaLaunchKernel", 10, 5, correlation="3"),
            event("Kernel", "k", 50, 10, pid=0, tid=7, correlation="3"),
            event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 70, 2, pid=0, tid=7, correlation="9"),
        )
    )
    assert places(parsed)["k"] == ("", "ProfilerStep#*") and parsed.origin.launches == 1
    assert set(parsed.kernels["kind"]) == {"kernel", "memcpy"}
    assert (parsed.kernels["device"] == 0).all() and (parsed.kernels["stream"] == 7).all()


def test_epoch_microseconds_keep_the_nanoseconds_of_durations(parser, trace):
    start = 1712195495519689.0
    parsed = parser.parse(
        trace(annotation("profpipe:n=1", start, 100), launch(1, start + 10), kernel("k", 1, start, 3.776))
    )
    assert parsed.kernels["total_ns"].tolist() == [3776] and parsed.kernels["case"].tolist() == ["n=1"]


def test_a_first_event_of_an_impossible_time_throws_away_no_other(parser, trace):
    start = 1712195495519689.0
    others = [launch(1, start + 10), kernel("k", 1, start + 30, 3.776), kernel("k", 1, start + 40, 3.776)]
    parsed = parser.parse(trace(kernel("bad", 7, 0, 1), annotation("profpipe:n=1", start, 100), *others))
    assert places(parsed) == {"k": ("n=1", "")} and parsed.kernels["total_ns"].tolist() == [2 * 3776]
    assert "1 events with an impossible time dropped" in parsed.origin.notes


def test_events_before_the_metadata_and_an_array_in_place_of_the_object_are_read(parser, tmp_path):
    events = [launch(1, 0), kernel("k", 1, 10, 10)]
    path = tmp_path / "array.json"
    path.write_text(json.dumps(events))
    assert parser.sniff(path) and parser.parse(path).origin.launches == 1
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "NVIDIA X"}]}, indent=2))
    assert parser.parse(path).origin.device == "NVIDIA X"


def test_a_name_with_half_a_surrogate_pair_can_be_written_to_a_table(parser, trace):
    parsed = parser.parse(trace(annotation("r\ud800", 0, 50), launch(1, 0), kernel("k\udce9", 1, 10, 10)))
    assert places(parsed) == {"k?": ("", "r?")}


def test_a_trace_that_was_cut_while_it_was_written_is_refused_with_its_size(parser, tmp_path):
    text = gzip.decompress(H200.read_bytes())
    for length in (200, len(text) // 2, len(text) - 3):
        path = tmp_path / "cut.json"
        path.write_bytes(text[:length])
        assert parser.sniff(path)
        with pytest.raises(UnreadableFile, match=rf"cut or damaged \({length:,} bytes.*Record the trace again"):
            parser.parse(path)


def test_a_zip_that_was_cut_is_refused(parser, tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(H200.read_bytes()[:9000])
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match="cut or damaged"):
        parser.parse(path)


def test_a_trace_of_nothing_is_refused_not_summed_to_zero(parser, trace):
    with pytest.raises(UnreadableFile, match="without GPU events, operators or ranges"):
        parser.parse(trace(event("Trace", "PyTorch Profiler (0)", 0, 10)))


@pytest.mark.parametrize("pid", [None, "main", 1e300, 10**30, 1.5])
def test_a_process_and_a_thread_without_a_number_are_read(parser, trace, pid):
    marked, kernel = annotation("profpipe:impl=fa2", 10, 900), event("kernel", "k", 100, 350, correlation=1)
    for wrong, attributed_ns in ({"pid": pid}, 0), ({"tid": pid}, 350_000):
        parsed = parser.parse(trace(marked | wrong, launch(1, 20), kernel))
        assert (parsed.origin.total_ns, parsed.origin.attributed_ns) == (350_000, attributed_ns)
        parsed = parser.parse(trace(marked | wrong, launch(1, 20) | wrong, kernel))
        assert (parsed.origin.total_ns, parsed.origin.attributed_ns) == (350_000, 350_000)


def test_the_tables_hold_the_schema(parser):
    for path in (H200, CPU):
        parsed = parser.parse(path)
        for table in schema.ALL:
            frame: pd.DataFrame = getattr(parsed, table.name)
            assert list(frame.columns) == table.names
        assert (parsed.kernels["profiler"] == "torch").all() and (parsed.ranges["profiler"] == "torch").all()


def test_single_launches_come_in_the_order_of_their_calls_with_grid_and_iteration(parser, trace):
    """The second call's kernel ran first, on another stream."""
    shape = {"grid": [32, 2, 16], "block": [128, 1, 1]}
    path = trace(
        annotation("profpipe:n=1", 0, 40),
        annotation("profpipe:n=1", 100, 40),
        launch(1, 110), launch(2, 120), launch(3, 10),
        kernel("b", 2, 125, 5, **shape), kernel("a", 1, 131, 9, **shape), kernel("a", 3, 20, 1, **shape),
    )  # fmt: skip
    found = parser.launches(path)
    assert found["kernel"].tolist() == ["a", "a", "b"] and found["iteration"].tolist() == [0, 1, 1]
    assert found["duration_ns"].tolist() == [1000, 9000, 5000] and (found["case"] == "n=1").all()
    assert set(found["grid"]) == {"32x2x16"} and set(found["block"]) == {"128x1x1"}


def test_every_kernel_of_a_real_trace_is_a_single_launch_with_its_grid(parser):
    found = parser.launches(H200)
    assert len(found) == parser.parse(H200).origin.launches == 120
    assert found["duration_ns"].sum() == parser.parse(H200).origin.total_ns
    with gzip.open(H200, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    grids = sorted("x".join(map(str, e["args"]["grid"])) for e in events if e.get("cat") == "kernel")
    assert sorted(found["grid"]) == grids


def test_a_trace_whose_kernels_have_no_grids_has_no_single_launches(parser, trace):
    assert parser.launches(trace(launch(1, 10), kernel("a", 1, 20, 5))).empty
    assert parser.launches(CPU).empty


GEMM = "volta_sgemm_64x64_nn"


def classes(parsed):
    frame = parsed.kernels.sort_values(["kernel", "kernel_class"])
    return list(zip(frame["kernel"], frame["kernel_class"], frame["calls"], strict=True))


@pytest.mark.parametrize(
    "operator",
    [
        "aten::convolution", "aten::_convolution", "aten::cudnn_convolution", "aten::cudnn_convolution_add_relu",
        "aten::miopen_convolution", "aten::convolution_backward", "aten::cudnn_convolution_transpose", "aten::conv2d",
        "aten::slow_conv2d_forward", "aten::_conv_depthwise2d",
    ],
)  # fmt: skip
def test_a_kernel_that_a_convolution_launched_is_one_whatever_its_name(parser, trace, operator):
    path = trace(
        event("cpu_op", operator, 10, 20, **{"External id": 5}),
        event("cpu_op", "aten::mm", 40, 20, **{"External id": 6}),
        # With the id at the kernel, with the id at the call, and at neither.
        kernel(GEMM, None, 200, 10, **{"External id": 5}),
        launch(8, 15, **{"External id": 5}),
        kernel(GEMM, 8, 220, 10),
        launch(9, 45, **{"External id": 6}),
        kernel(GEMM, 9, 240, 10),
    )
    assert classes(parser.parse(path)) == [(GEMM, "conv", 2), (GEMM, "gemm", 1)]


def test_without_ids_a_kernel_belongs_to_the_convolution_around_its_call(parser, trace):
    path = trace(
        event("cpu_op", "aten::conv2d", 5, 60),
        event("cpu_op", "aten::cudnn_convolution", 10, 20),
        launch(8, 15),
        kernel(GEMM, 8, 220, 10),
        # Of the bias, in another operator, and of another thread.
        event("cpu_op", "aten::add_", 40, 20),
        launch(9, 45),
        kernel("bias", 9, 240, 10),
        launch(10, 15, tid=2),
        kernel(GEMM, 10, 260, 10),
    )
    assert classes(parser.parse(path)) == [("bias", "elementwise", 1), (GEMM, "conv", 1), (GEMM, "gemm", 1)]


def test_other_work_inside_a_convolution_keeps_its_class(parser, trace):
    path = trace(
        event("cpu_op", "aten::convolution_backward", 10, 50, **{"External id": 5}),
        event("cpu_op", "aten::mm", 20, 10, **{"External id": 6}),
        launch(9, 25, **{"External id": 6}),
        kernel(GEMM, 9, 240, 10, **{"External id": 6}),
        launch(10, 40, name="cudaMemsetAsync", **{"External id": 5}),
        event("gpu_memset", "Memset (Device)", 260, 5, pid=0, tid=7, correlation=10, **{"External id": 5}),
    )
    assert classes(parser.parse(path)) == [("Memset (Device)", "memset", 1), (GEMM, "gemm", 1)]


def test_a_rule_of_the_user_goes_before_the_operator(tmp_path, parser, trace):
    path = trace(
        event("cpu_op", "aten::cudnn_convolution", 10, 20, **{"External id": 5}),
        kernel(GEMM, None, 200, 10, **{"External id": 5}),
        kernel("winograd_like", None, 220, 10, **{"External id": 5}),
    )
    rules = kernel_classes.user_rules([{"class": "other", "pattern": "sgemm_64x64", "family": "mine"}])
    found = kernel_classes.annotate(parser.parse(path).kernels, rules)
    assert dict(zip(found["kernel"], found["kernel_class"], strict=True)) == {GEMM: "other", "winograd_like": "conv"}


def test_convolutions_of_a_recorded_training_keep_the_sums(parser, shared_data):
    folder = shared_data / "torch_trace" / "facebookresearch__HolisticTraceAnalysis"
    (path,) = folder.glob("rank-0*")
    kernels = parser.parse(path).kernels
    by_class = kernels.groupby("kernel_class")["calls"].sum()
    # Of 430 kernels named sgemm 405 compute convolutions, and 35 copies and 30 scalings prepare them.
    assert (by_class["conv"], by_class["gemm"], by_class["copy"], by_class["elementwise"]) == (1940, 25, 10, 1340)
