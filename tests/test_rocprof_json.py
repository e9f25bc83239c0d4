"""JSON of rocprof: the recorded trace of v1, and small files written here for what it lacks and for rocprofv3."""

import gzip
import json
from typing import Any

import pytest

from profpipe.errors import UnreadableFile
from profpipe.results.schema import Placement

CASE = "profpipe:impl=fa2"
Record = dict[str, Any]


def placed(found):
    return [(r.process, r.device, r.kind, r.case, r.phase, r.kernel, r.total_ns) for r in found.kernels.itertuples()]


# --- rocprofv3 -------------------------------------------------------------------------------------------------------


def record(start, end, correlation=0, **more):
    return {
        "thread_id": 7,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start,
        "end_timestamp": end,
        **more,
    }


def dispatch(start, end, correlation=0, number=1, kernel=4):
    info = {"kernel_id": kernel, "dispatch_id": number, "agent_id": {"handle": 20}, "queue_id": {"handle": 1}}
    return record(start, end, correlation, dispatch_info=info, stream_id={"handle": 3})


def marker(start, end, correlation, operation=1, kind=1):
    return record(start, end, correlation, kind=kind, operation=operation)


def process(pid=70, messages=None, **buffers):
    """One process as rocprofv3 writes it, with a CPU, a GPU and the kernel `gemm`."""
    operations = ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA", "roctxGetThreadId"]
    return {
        "metadata": {"pid": pid, "init_time": 1, "fini_time": 2, "command": ["python"]},
        "agents": [
            {"id": {"handle": 10}, "type": 1, "name": "EPYC", "product_name": "AMD EPYC"},
            {"id": {"handle": 20}, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X"},
        ],
        "counters": [{"id": {"handle": 8}, "name": "SQ_WAVES"}],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "MARKER_CORE_RANGE_API", "operations": operations},
                {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
                {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA", "roctxRangePop"]},
            ],
            "marker_api": [{"key": key, "value": value} for key, value in (messages or {}).items()],
        },
        "kernel_symbols": [{"kernel_id": 4, "kernel_name": "_Z4gemmPf.kd", "formatted_kernel_name": "gemm(float*)"}],
        "callback_records": {"counter_collection": buffers.pop("counters", [])},
        "buffer_records": buffers,
    }


def v3(path, *processes):
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path


def test_kernels_are_placed_by_the_call_of_their_correlation_id(parser, tmp_path):
    path = v3(
        tmp_path / "x_results.json",
        process(
            messages={1: CASE, 2: "forward", 3: CASE},
            kernel_dispatch=[dispatch(310, 350, 5)],
            hip_api=[record(120, 130, 5)],
            marker_api=[marker(100, 200, 1), marker(110, 150, 2), marker(300, 400, 3)],
        ),
    )
    assert parser.sniff(path)
    found = parser.parse(path)
    assert placed(found) == [(70, 0, "kernel", "impl=fa2", "forward", "gemm(float*)", 40)]
    assert found.origin.attribution == {Placement.API_CALL: 1}
    assert found.origin.device == "AMD Instinct MI300X"
    assert list(found.kernels["stream"]) == [3]


def test_a_gzipped_file_reads_as_the_plain_one_and_a_cut_zip_is_refused(parser, tmp_path):
    plain = v3(tmp_path / "x.json", process(kernel_dispatch=[dispatch(300, 340)]))
    zipped, cut = tmp_path / "x.json.gz", tmp_path / "cut.json.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    cut.write_bytes(zipped.read_bytes()[:-40])
    assert parser.sniff(zipped) and parser.sniff(cut)
    assert placed(parser.parse(zipped)) == placed(parser.parse(plain))
    with pytest.raises(UnreadableFile, match="cut or damaged"):
        parser.parse(cut)


def test_without_calls_kernels_are_placed_by_time_with_a_note(parser, tmp_path):
    dispatches = [dispatch(110, 120, 5), dispatch(300, 310, 6, 2)]
    given = process(messages={1: CASE}, kernel_dispatch=dispatches, marker_api=[marker(100, 200, 1)])
    found = parser.parse(v3(tmp_path / "x.json", given))
    assert [row[3] for row in placed(found)] == ["impl=fa2", ""]
    assert found.origin.attribution == {Placement.RUN_TIME: 1, Placement.NO_RANGE: 1}


def test_marks_and_the_calls_around_a_range_are_not_ranges(parser, tmp_path):
    markers = [marker(10, 60, 1), marker(12, 13, 2, operation=0), marker(10, 11, 1, operation=1, kind=3)]
    found = parser.parse(v3(tmp_path / "x.json", process(messages={1: "forward", 2: "here"}, marker_api=markers)))
    assert [(r.range, r.instances, r.wall_ns) for r in found.ranges.itertuples()] == [("forward", 1, 50)]


def test_a_process_range_holds_what_every_thread_launched(parser, tmp_path):
    given = process(
        messages={1: CASE}, kernel_dispatch=[dispatch(110, 120)], marker_api=[marker(100, 200, 1, operation=2)]
    )
    assert placed(parser.parse(v3(tmp_path / "x.json", given)))[0][3] == "impl=fa2"


def test_two_processes_with_one_correlation_id_stay_apart(parser, tmp_path):
    def one(pid, case, end):
        markers, calls = [marker(100, 200, 1)], [record(120, 130, 5)]
        return process(pid, {1: case}, kernel_dispatch=[dispatch(300, end, 5)], hip_api=calls, marker_api=markers)

    found = parser.parse(v3(tmp_path / "x.json", one(70, CASE, 310), one(71, "profpipe:impl=sage", 330)))
    assert [(row[0], row[3], row[6]) for row in placed(found)] == [(70, "impl=fa2", 10), (71, "impl=sage", 30)]


def test_two_processes_with_one_pid_stay_apart_with_their_counters(parser, tmp_path):
    """As in two containers: each counts its dispatches and calls from 1."""

    def one(case, end, waves):
        counted = {"records": [{"counter_id": {"handle": 8}, "value": waves}], "dispatch_data": dispatch(300, end, 5)}
        buffers = {"kernel_dispatch": [dispatch(300, end, 5)], "hip_api": [record(120, end - 170, 5)]}
        return process(70, {1: case}, **buffers, marker_api=[marker(100, end - 150, 1)], counters=[counted])

    found = parser.parse(v3(tmp_path / "x.json", one(CASE, 310, 3), one("profpipe:impl=sage", 330, 4)))
    assert sorted((row[0], row[3], row[6]) for row in placed(found)) == [(70, "impl=fa2", 10), (70, "impl=sage", 30)]
    assert sorted((m.case, m.value) for m in found.metrics.itertuples()) == [("impl=fa2", 3), ("impl=sage", 4)]
    assert sorted((r.process, r.case, r.kernels) for r in found.ranges.itertuples()) == [
        (70, "impl=fa2", 1),
        (70, "impl=sage", 1),
    ]


def test_the_first_releases_wrote_one_object_and_called_the_records_dispatches(parser, tmp_path):
    given = process(kernel_dispatches=[dispatch(10, 30, kernel=0)])
    given["kernel_symbols"] = [{"formatted_kernel_name": "old(int)"}]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": given}))
    assert placed(parser.parse(path)) == [(70, 0, "kernel", "", "", "old(int)", 20)]


def test_copies_are_rows_of_a_separate_kind_and_not_launches(parser, tmp_path):
    moved = record(10, 25, kind=2, operation=1, src_agent_id={"handle": 10}, dst_agent_id={"handle": 20})
    found = parser.parse(v3(tmp_path / "x.json", process(kernel_dispatch=[dispatch(40, 50)], memory_copy=[moved])))
    assert placed(found)[1] == (70, 0, "memcpy", "", "", "MEMORY_COPY_HOST_TO_DEVICE", 15)
    assert (found.origin.launches, found.origin.total_ns) == (1, 10)


def test_counters_become_metrics_of_their_kernel_and_case(parser, tmp_path):
    def counted(number, *values):
        parts = [{"counter_id": {"handle": 8}, "value": value} for value in values]
        return {"dispatch_data": dispatch(110 * number, 110 * number + 10, 0, number), "records": parts}

    given = process(messages={1: CASE}, counters=[counted(1, 2, 3), counted(2, 7)], marker_api=[marker(100, 300, 1)])
    found = parser.parse(v3(tmp_path / "x.json", given))
    assert [(m.case, m.subject, m.metric, m.value, m.n) for m in found.metrics.itertuples()] == [
        ("impl=fa2", "gemm(float*)", "SQ_WAVES", 6, 2)
    ]
    assert (found.origin.launches, found.origin.total_ns) == (2, 20)


# --- rocprof v1 ------------------------------------------------------------------------------------------------------


def event(section, name, begin, end, tid=7, **args):
    texts = {key.replace("_", "-"): str(value) for key, value in args.items() if key != "DispatchNs"}
    texts |= {key: str(value) for key, value in args.items() if key == "DispatchNs"}
    return {
        "ph": "X", "name": name, "pid": str(section), "tid": str(tid), "ts": str(begin // 1000), "dur": "1",
        "args": {"BeginNs": str(begin), "EndNs": str(end), "pid": "70", "tid": "7", **texts},
    }  # fmt: skip


def v1(path, *events):
    sections = {0: "Markers and Ranges", 1: "COPY", 2: "CPU HIP API", 6: "GPU0", 518: "GPU Barriers0"}
    labels = [
        {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": place}
        for place, (pid, name) in enumerate(sections.items())
    ]
    path.write_text(json.dumps({"traceEvents": [{}, *labels, *events], "otherData": {}}))
    return path


def test_the_recorded_trace_has_the_kernels_of_the_database_of_the_same_run(parser, shared_data):
    path = shared_data / "rocprof" / "vjelic__aiter-glog-fork" / "results.json"
    assert parser.sniff(path)
    found = parser.parse(path)
    assert (found.origin.launches, found.origin.total_ns) == (10, 4870186)
    assert set(found.kernels["device"]) == {1} and set(found.kernels["process"]) == {22806}


def test_v1_kernels_are_placed_by_dispatch_where_it_is_given(parser, tmp_path):
    path = v1(
        tmp_path / "results.json",
        event(0, CASE, 100, 200),
        event(0, "forward", 110, 150),
        event(0, "mark", 111, 112),
        event(6, "gemm.kd", 310, 350, gpu_id=0, DispatchNs=120),
    )
    found = parser.parse(path)
    assert placed(found) == [(70, 0, "kernel", "impl=fa2", "forward", "gemm", 40)]
    assert found.origin.attribution == {Placement.DISPATCH: 1}
    assert sorted(found.ranges["range"]) == ["", "forward"]


def test_v1_activities_and_dispatches_of_the_same_kernels_count_once(parser, tmp_path):
    path = v1(
        tmp_path / "results.json",
        event(6, "gemm", 310, 350, gpu_id=0, DispatchNs=120),
        event(6, "gemm", 310, 350, dev_id=0, stream_id=2),
        event(518, "<barrier packet>", 350, 360, dev_id=0),
        event(1, "CopyHostToDevice", 10, 20, dev_id=0),
        event(2, "hipLaunchKernel", 100, 110),
    )
    found = parser.parse(path)
    assert (found.origin.launches, found.origin.total_ns) == (1, 40)
    assert sorted(found.kernels["kind"]) == ["kernel", "memcpy"]


def test_v1_start_stop_ranges_are_of_the_whole_process(parser, tmp_path):
    path = v1(tmp_path / "x.json", event(0, CASE, 100, 200, tid=0), event(6, "gemm", 110, 120, gpu_id=0, tid=8))
    assert placed(parser.parse(path))[0][3] == "impl=fa2"


# --- refusing --------------------------------------------------------------------------------------------------------


def test_a_file_without_its_beginning_is_refused(parser, shared_data):
    path = shared_data / "rocprof" / "amd__HPCTrainingExamples" / "seismic_R4_results.json"
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match="cut or damaged"):
        parser.parse(path)


def test_a_cut_file_is_refused(parser, tmp_path):
    path = v3(tmp_path / "x.json", process(kernel_dispatch=[dispatch(1, 9)]))
    path.write_text(path.read_text()[:-40])
    with pytest.raises(UnreadableFile, match="cut or damaged"):
        parser.parse(path)


@pytest.mark.parametrize("processes", [[], [process()]])
def test_a_file_without_kernels_says_what_to_pass(parser, tmp_path, processes):
    with pytest.raises(UnreadableFile, match=r"no kernels were recorded.*--kernel-trace"):
        parser.parse(v3(tmp_path / "x.json", *processes))
