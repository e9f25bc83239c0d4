"""CSV files of rocprof: every recorded one, and small ones written here for what those lack."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.results import schema
from profpipe.results.schema import Placement

KERNEL_TRACE = [
    "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name",
    "Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "Scratch_Size", "VGPR_Count",
    "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z", "Grid_Size_X",
    "Grid_Size_Y", "Grid_Size_Z",
]  # fmt: skip
API_TRACE = ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"]
COPY_TRACE = [
    "Kind", "Direction", "Stream_Id", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", "Start_Timestamp",
    "End_Timestamp",
]  # fmt: skip
COUNTERS = [
    "Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id", "Grid_Size", "Kernel_Id",
    "Kernel_Name", "Workgroup_Size", "LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count",
    "Counter_Name", "Counter_Value", "Start_Timestamp", "End_Timestamp",
]  # fmt: skip
CASE = "profpipe:impl=fa2"

Row = dict[str, Any]
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def parsers():
    names = ("rocprof_csv.py", "rocprof_stats.py", "rocpd.py", "rocprof_json.py")
    return [plugins.load_module(plugins.builtin_folder("parsers") / name) for name in names]


@pytest.fixture
def write(tmp_path):
    def written(name, columns, *rows):
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval=0, quoting=csv.QUOTE_NONNUMERIC)
            writer.writeheader()
            writer.writerows(rows)
        return path

    return written


def kernel(name, start, end, correlation=0, thread=7, agent="Agent 2"):
    return {
        "Kind": "KERNEL_DISPATCH",
        "Agent_Id": agent,
        "Stream_Id": 1,
        "Thread_Id": thread,
        "Dispatch_Id": correlation,
        "Kernel_Name": name,
        "Correlation_Id": correlation,
        "Start_Timestamp": start,
        "End_Timestamp": end,
    }


def call(domain, name, start, end, correlation=0, thread=7, pid=70):
    return {
        "Domain": domain,
        "Function": name,
        "Process_Id": pid,
        "Thread_Id": thread,
        "Correlation_Id": correlation,
        "Start_Timestamp": start,
        "End_Timestamp": end,
    }


def marker(name, start, end, **where):
    return call("MARKER_CORE_RANGE_API", name, start, end, **where)


def placed(found):
    return {row.kernel: (row.case, row.phase) for row in found.kernels.itertuples()}


def test_trace_and_statistics_of_one_recording_agree_by_kernel(parsers, shared_data):
    folder = shared_data / "rocprof" / "jyohukuchan__sLLM"
    trace = parsers[0].parse(folder / "ck-m8_kernel_trace.csv").kernels.groupby("kernel")[["calls", "total_ns"]].sum()
    stats = parsers[1].parse(folder / "ck-m8_kernel_stats.csv").kernels.groupby("kernel")[["calls", "total_ns"]].sum()
    assert trace.sort_index().equals(stats.sort_index())


def test_two_generations_of_the_tool_spell_one_kernel_alike(parsers, shared_data):
    folder = shared_data / "rocprof" / "vjelic__aiter-glog-fork"
    v2 = set(parsers[0].parse(folder / "results_430889.csv").kernels["kernel"])
    assert "at::vectorized_elementwise_kernel<4, at::FillFunctor<int>, std::array<char*, 1>>" in v2
    v1 = [set(parser.parse(folder / name).kernels["kernel"]) for parser, name in zip(
        (parsers[0], parsers[1], parsers[2], parsers[3]),
        ("results.csv", "results.stats.csv", "results.db", "results.json"),
        strict=True,
    )]  # fmt: skip
    assert v1[0] == v1[1] == v1[2] == v1[3]


def test_kernels_are_placed_by_the_call_that_launched_them(parser, write):
    write(
        "a_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200), marker("forward", 110, 150), marker(CASE, 300, 400)
    )
    write("a_hip_api_trace.csv", API_TRACE, call("HIP_RUNTIME_API", "hipLaunchKernel", 120, 130, correlation=5))
    # It ran in the second iteration, but the first one launched it.
    path = write("a_kernel_trace.csv", KERNEL_TRACE, kernel("gemm", 310, 350, correlation=5))
    found = parser.parse(path)
    assert placed(found) == {"gemm": ("impl=fa2", "forward")}
    assert found.origin.attribution[Placement.API_CALL] == 1
    assert found.kernels["process"][0] == 70
    ranges = found.ranges.set_index("range")
    assert list(ranges["instances"]) == [2, 1] and list(ranges["kernel_ns"]) == [40, 40]


def test_without_the_calls_kernels_are_placed_by_time_with_a_note(parser, write):
    write("a_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200), marker("forward", 110, 150))
    rows = [kernel("in", 120, 130, 1), kernel("late", 160, 170, 2), kernel("out", 220, 230, 3)]
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, *rows))
    assert placed(found) == {"in": ("impl=fa2", "forward"), "late": ("impl=fa2", ""), "out": ("", "")}
    assert found.origin.attribution == {Placement.RUN_TIME: 2, Placement.NO_RANGE: 1}
    assert (found.origin.attributed_ns, found.origin.unattributed_ns) == (20, 10)


def test_a_backward_kernel_of_another_thread_belongs_to_the_case_by_time(parser, write):
    write("a_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200), marker("backward", 110, 190))
    write("a_hip_api_trace.csv", API_TRACE, call("HIP_RUNTIME_API", "hipLaunchKernel", 120, 130, 5, thread=8))
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, kernel("k", 140, 150, 5, thread=8)))
    assert placed(found) == {"k": ("impl=fa2", "backward")}
    assert found.origin.attribution[Placement.OF_OTHER_THREAD] == 1


def test_files_of_another_stem_are_of_another_recording(parser, write):
    write("b_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200))
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, kernel("k", 120, 130, 1)))
    assert placed(found) == {"k": ("", "")}
    assert found.origin.attribution == {Placement.NO_RANGES: found.origin.launches}


def test_copies_are_rows_of_a_separate_kind_and_not_launches(parser, write):
    copy = {
        "Kind": "MEMORY_COPY", "Direction": "MEMORY_COPY_HOST_TO_DEVICE", "Source_Agent_Id": "Agent 0",
        "Destination_Agent_Id": "Agent 2", "Start_Timestamp": 10, "End_Timestamp": 30,
    }  # fmt: skip
    alone = parser.parse(write("a_memory_copy_trace.csv", COPY_TRACE, copy))
    assert (alone.origin.launches, alone.origin.total_ns) == (0, None)
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, kernel("k", 40, 50, 1)))
    assert (found.origin.launches, found.origin.total_ns) == (1, 10)
    for rows in (alone.kernels, found.kernels[found.kernels["kind"] == "memcpy"]):
        assert [(r.kernel, r.kernel_class, r.calls, r.total_ns, r.device) for r in rows.itertuples()] == [
            ("MEMORY_COPY_HOST_TO_DEVICE", "memcpy", 1, 20, 2)
        ]


def test_agents_become_gpu_ordinals_where_the_agent_info_says_which_they_are(parser, write):
    columns = ["Node_Id", "Agent_Type", "Name", "Product_Name"]
    rows = [
        {"Node_Id": 0, "Agent_Type": "CPU", "Name": "EPYC", "Product_Name": "AMD EPYC"},
        {"Node_Id": 4, "Agent_Type": "GPU", "Name": "gfx942", "Product_Name": "AMD Instinct MI300X"},
        {"Node_Id": 5, "Agent_Type": "GPU", "Name": "gfx942", "Product_Name": "Another"},
    ]
    write("a_agent_info.csv", columns, *rows)
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, kernel("k", 40, 50, 1, agent="Agent 4")))
    assert list(found.kernels["device"]) == [0]
    assert found.origin.device == "AMD Instinct MI300X"


@pytest.mark.parametrize(
    ("agent", "device"),
    [("Agent 2", "Second"), ("Agent 9", "Second"), (9, "Second"), ("GPU 1", "Second"), ("Agent 1", "First")],
)
def test_agents_are_numbered_as_the_process_sees_them_or_by_node_or_among_the_gpus(parser, write, agent, device):
    """In a container the nodes of the other GPUs are hidden and the logical numbers close up."""
    columns = ["Node_Id", "Logical_Node_Id", "Agent_Type", "Product_Name"]
    agents = [(0, 0, "CPU", "AMD EPYC"), (5, 1, "GPU", "First"), (9, 2, "GPU", "Second")]
    write("a_agent_info.csv", columns, *(dict(zip(columns, row, strict=True)) for row in agents))
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, kernel("k", 40, 50, 1, agent=agent)))
    assert found.origin.device == device
    assert list(found.kernels["device"]) == [["First", "Second"].index(device)]


def test_a_marker_file_alone_gives_its_ranges_and_says_nothing_of_the_gpu(parser, write, shared_data):
    found = parser.parse(write("a_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200), marker("mark", 120, 120)))
    assert [(r.case, r.range, r.instances, r.wall_ns) for r in found.ranges.itertuples()] == [("impl=fa2", "", 1, 100)]
    assert found.ranges["kernel_ns"].isna().all() and found.kernels.empty
    real = shared_data / "rocprof" / "jyohukuchan__sLLM" / "aq4-p3-diagnostic_marker_api_trace.csv"
    assert parser.parse(real).ranges["instances"].sum() == 12


def test_calls_that_open_and_close_a_range_do_not_repeat_it(parser, write):
    rows = [
        call("MARKER_CORE_API", "forward", 100, 101, 1),
        call("MARKER_CORE_RANGE_API", "forward", 100, 200, 1),
        call("MARKER_NAME_API", "roctxNameOsThread", 210, 220, 2),
    ]
    found = parser.parse(write("a_marker_api_trace.csv", API_TRACE, *rows))
    assert [(r.range, r.instances, r.wall_ns) for r in found.ranges.itertuples()] == [("forward", 1, 100)]


def test_ranges_of_rocm_6_are_in_the_older_domain(parser, write):
    rows = [call("MARKER_CORE_API", "forward", 100, 200), call("MARKER_CONTROL_API", "roctxProfilerPause", 1, 9)]
    found = parser.parse(write("a_marker_api_trace.csv", API_TRACE, *rows))
    assert list(found.ranges["range"]) == ["forward"]


def test_a_range_of_the_whole_process_holds_kernels_of_every_thread(parser, write):
    write("a_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200, thread=0))
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, kernel("k", 120, 130, 1)))
    assert placed(found) == {"k": ("impl=fa2", "")}


def test_counters_of_a_dispatch_are_metrics_of_its_kernel_and_case(parser, write):
    write("a_marker_api_trace.csv", API_TRACE, marker(CASE, 100, 200))
    rows = [
        {**kernel("k(int*)", start, start + 10, dispatch), "Process_Id": 70, "Dispatch_Id": dispatch,
         "Counter_Name": name, "Counter_Value": value}
        for dispatch, start in ((1, 110), (2, 130))
        for name, value in (("SQ_WAVES", 16 * dispatch), ("GRBM_COUNT", 1))
    ]  # fmt: skip
    rows = [{key: value for key, value in row.items() if key in COUNTERS} for row in rows]
    found = parser.parse(write("a_counter_collection.csv", COUNTERS, *rows))
    assert (found.origin.launches, found.origin.total_ns) == (2, 20)
    assert [(m.case, m.subject, m.metric, m.value, m.n) for m in found.metrics.itertuples()] == [
        ("impl=fa2", "k(int*)", "SQ_WAVES", 24, 2),
        ("impl=fa2", "k(int*)", "GRBM_COUNT", 1, 2),
    ]


def test_a_dispatch_that_is_counted_by_each_part_of_the_gpu_is_one_launch(parser, tmp_path):
    columns = "Dispatch_ID,GPU_ID,PID,TID,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID,XCC_Index,SQ_WAVES"
    rows = [f"0,2,70,7,scale(),110,120,0,{part},{waves}" for part, waves in ((0, 10.0), (1, 30.0))]
    path = tmp_path / "results_9.csv"
    # rocprofv2 writes an empty line below the columns.
    path.write_text("\n".join([columns, "", *rows, ""]), encoding="utf-8")
    found = parser.parse(path)
    assert (found.origin.launches, found.origin.total_ns) == (1, 10)
    (metric,) = found.metrics.itertuples()
    assert (metric.metric, metric.value, metric.n) == ("SQ_WAVES", 20, 2)


@pytest.mark.parametrize(
    "columns",
    ["Domain,ROCTX_ID,Message,Timestamp", "Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID"],
)
def test_traces_of_rocprofv2_are_refused_with_the_file_to_give(parser, tmp_path, columns):
    path = tmp_path / "trace_9.csv"
    path.write_text(f"{columns}\n\n", encoding="utf-8")
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match=r"results_X\.csv"):
        parser.parse(path)


def test_counters_without_time_stamps_count_launches_and_leave_times_missing(parser, shared_data):
    found = parser.parse(shared_data / "rocprof" / "ROCm__rocprofiler-sdk" / "counter_collection.csv")
    assert (found.origin.launches, found.origin.total_ns, int(found.kernels["calls"].sum())) == (7, None, 7)
    assert found.kernels["total_ns"].isna().all()
    assert {(m.metric, m.value) for m in found.metrics.itertuples()} == {("SQ_WAVES", 16384)}
    v1 = parser.parse(shared_data / "rocprof" / "amd__HPCTrainingExamples" / "seismic_bankconflicts.csv")
    assert (v1.origin.launches, set(v1.metrics["metric"])) == (1024, {"LDSBankConflict", "LDSInsts"})
    assert int(v1.metrics.loc[v1.metrics["metric"] == "LDSInsts", "n"].sum()) == 1024


def test_time_stamps_with_a_fraction_are_times_to_the_ns(parser, write):
    columns = ["Dispatch_ID", "GPU_ID", "Kernel_Name", "SQ_WAVES", "Start_Timestamp", "End_Timestamp"]
    averaged = ("1700000000000000100.4", "1700000000000007100.6")
    rows: list[Row] = [dict(zip(columns, (0, 2, "copy(float*)", 64.0, *averaged), strict=True))]
    found = parser.parse(write("pmc_perf.csv", columns, *rows))
    assert (found.origin.launches, found.origin.total_ns) == (1, 7001)
    assert list(found.metrics["value"]) == [64]


def test_statistics_of_calls_are_refused_as_no_gpu_time(parsers, shared_data):
    path = shared_data / "rocprof" / "ROCm__rocprofiler-sdk" / "hip_stats.csv"
    with pytest.raises(UnreadableFile, match="statistics of API calls or whole domains"):
        parsers[1].parse(path)


def test_statistics_of_markers_are_known_by_the_files_name(parsers, write):
    path = write("a_marker_api_stats.csv", ["Name", "Calls", "TotalDurationNs"], {"Name": "forward", "Calls": 3})
    with pytest.raises(UnreadableFile, match="statistics of API calls"):
        parsers[1].parse(path)


@pytest.mark.parametrize(
    ("rows", "what"), [([], "no kernels were recorded"), ([{"Name": "k", "Calls": "x"}], "no row of it is whole")]
)
def test_statistics_without_a_whole_row_are_refused(parsers, write, rows, what):
    with pytest.raises(UnreadableFile, match=what):
        parsers[1].parse(write("a_kernel_stats.csv", ["Name", "Calls", "TotalDurationNs"], *rows))


def test_statistics_of_copies_are_copies(parsers, write):
    columns = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"]
    row = {"Name": "CopyHostToDevice", "Calls": 3, "TotalDurationNs": 30, "AverageNs": 10, "Percentage": 100}
    found = parsers[1].parse(write("results.copy_stats.csv", columns, row))
    assert [(r.kind, r.kernel_class, r.calls) for r in found.kernels.itertuples()] == [("memcpy", "memcpy", 3)]
    assert found.origin.launches == 0


def test_columns_are_found_by_name_in_any_order(parser, write):
    mixed = [*KERNEL_TRACE[::-1], "A_New_Column"]
    assert parser.parse(write("x.csv", mixed, kernel("k", 1, 5))).origin.total_ns == 4


def test_a_guid_column_in_front_changes_nothing(parser, write):
    assert parser.parse(write("x.csv", ["Guid", *KERNEL_TRACE], kernel("k", 1, 5))).origin.total_ns == 4


def test_byte_order_mark_and_dos_line_ends_change_nothing(parser, write):
    path = write("x.csv", KERNEL_TRACE, kernel("k", 1, 5))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    assert parser.sniff(path) and parser.parse(path).origin.total_ns == 4


def test_a_row_cut_at_the_end_is_left_out_and_counted(parser, write):
    path = write("x.csv", KERNEL_TRACE, kernel("k", 1, 5), kernel("k", 6, 9))
    path.write_bytes(path.read_bytes()[:-30])
    found = parser.parse(path)
    assert found.origin.launches == 1
    assert "1 row cut or torn, left out" in found.origin.notes


@pytest.mark.parametrize("others", ['"', ""])
def test_a_quote_that_is_never_closed_takes_no_more_than_the_rows_that_it_swallows(parser, write, others):
    """Without a closing quote the csv module reads 128 KiB as one cell."""
    path = write("a_kernel_trace.csv", KERNEL_TRACE, *(kernel("k", at, at + 1, at) for at in range(1, 5001)))
    lines = path.read_text(encoding="utf-8").replace('"', others).splitlines(keepends=True)
    lines[10] = lines[10].replace(f"{others}k{others}", '"k')
    path.write_text("".join(lines), encoding="utf-8")
    found = parser.parse(path)
    assert found.origin.launches > 2000 and found.origin.launches + torn_rows(found) == 5000


def torn_rows(found):
    (note,) = (note for note in found.origin.notes if "cut or torn" in note)
    return int(note.split()[0])


def test_dispatches_without_time_stamps_are_left_out_and_counted(parser, write):
    path = write("x.csv", KERNEL_TRACE, kernel("k", 10, 50), kernel("k", 0, 0), kernel("k", 60, 20))
    found = parser.parse(path)
    assert (found.origin.launches, found.origin.total_ns) == (1, 40)
    assert "2 launches with an impossible time left out" in found.origin.notes


@pytest.mark.parametrize("columns", [KERNEL_TRACE, COUNTERS, ["Dispatch_ID", "GPU_ID", "Kernel_Name"], COPY_TRACE])
def test_a_header_without_rows_says_what_to_pass(parser, write, columns):
    path = write("x.csv", columns)
    assert parser.sniff(path)
    with pytest.raises(
        UnreadableFile, match=r"no (kernels were recorded|counters|copies).*--(kernel-trace|pmc|memory)"
    ):
        parser.parse(path)


def test_a_file_cut_in_its_header_is_refused_as_such(parser, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('"Kind","Agent_Id","Queue_I')
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match="cut in its first line"):
        parser.parse(path)


@pytest.mark.parametrize("name", ["a_hip_api_trace.csv", "a_agent_info.csv"])
def test_side_files_without_kernels_or_ranges_are_refused_with_the_file_to_give(parser, write, name):
    columns = API_TRACE if "api" in name else ["Node_Id", "Agent_Type"]
    path = write(name, columns, call("HIP_RUNTIME_API", "hipMalloc", 1, 2) if "api" in name else {"Node_Id": 1})
    with pytest.raises(UnreadableFile, match=r"kernel_trace\.csv"):
        parser.parse(path)


@pytest.mark.parametrize(("name", "step_range"), [("profpipe.step:marker:%d", ""), ("batch %d", r"batch (?P<n>\d+)")])
def test_ranges_of_steps_make_steps_with_the_waits_of_the_host(parser, write, name, step_range):
    api = "HIP_RUNTIME_API"
    steps = [(number, 1000 * number) for number in range(4)]
    write("a_marker_api_trace.csv", API_TRACE, *(marker(name % n, t, t + 1000) for n, t in steps))
    launches = [
        call(api, "hipLaunchKernel", t + at, t + at + 5, n * 2 + k) for n, t in steps for k, at in ((1, 10), (2, 300))
    ]
    write(
        "a_hip_api_trace.csv",
        API_TRACE,
        *launches,
        *(call(api, "hipStreamSynchronize", t + 20, t + 290) for _, t in steps),
    )
    kernels = [kernel("gemm", t + at, t + at + 100, n * 2 + k) for n, t in steps for k, at in ((1, 50), (2, 400))]
    found = parser.parse(write("a_kernel_trace.csv", KERNEL_TRACE, *kernels), step_range=step_range).steps
    assert found["rule"].tolist() == ["marker"] * 4 and found["step"].tolist() == [0, 1, 2, 3]
    assert found["wall_ns"].tolist() == [1000] * 4 and set(found["kernels"]) == {2}
    # The host waited until 290 and launched at 300 what ran at 400; from 500 on it was late for the next step, which it
    # launched at 1010 and which ran at 1050, or launched nothing more.
    assert found["idle_blocked_ns"].tolist() == [250] * 4
    assert found["idle_launch_ns"].tolist() == [550] * 4
    assert set(found["process"]) == {70} and set(found["profiler"]) == {"rocprof"}


def test_kernels_that_ran_one_by_one_for_counters_have_no_steps(parser, write):
    columns = ["Dispatch_ID", "GPU_ID", "Kernel_Name", "SQ_WAVES", "Start_Timestamp", "End_Timestamp"]
    rows = [
        {"Dispatch_ID": n, "GPU_ID": 2, "Kernel_Name": f"k{n % 4}", "SQ_WAVES": 1, "Start_Timestamp": 100 * n + 1,
         "End_Timestamp": 100 * n + 50}
        for n in range(40)
    ]  # fmt: skip
    assert parser.parse(write("results_a.csv", columns, *rows)).steps.empty
    without = [{key: value for key, value in row.items() if key != "SQ_WAVES"} for row in rows]
    uncounted = [name for name in columns if name != "SQ_WAVES"]
    assert parser.parse(write("results_b.csv", uncounted, *without)).steps["kernels"].tolist() == [4] * 10


_V1_CSV = {"Kernel_Name": "KernelName", "Start_Timestamp": "BeginNs", "End_Timestamp": "EndNs", "Queue_Id": "queue-id"}
_V2_CSV = {
    "Agent_Id": "GPU_ID",
    "Queue_Id": "Queue_ID",
    "Correlation_Id": "Correlation_ID",
    "Dispatch_Id": "Dispatch_ID",
}


@pytest.mark.parametrize(
    ("columns", "renamed"),
    [
        pytest.param([name for name in KERNEL_TRACE if name != "Stream_Id"], {}, id="v3 before streams"),
        pytest.param(["Index", *_V1_CSV.values(), "gpu-id"], _V1_CSV, id="v1"),
        pytest.param(
            [*_V2_CSV.values(), "PID", "TID", "Kernel_Name", "Start_Timestamp", "End_Timestamp"], _V2_CSV, id="v2"
        ),
    ],
)
def test_a_kernel_ends_no_later_than_the_next_one_of_its_queue_begins(parser, write, columns, renamed):
    rows = [kernel("k", 100 * at, 100 * at + (5000 if at == 3 else 90), at + 1, agent="2") for at in range(12)]
    rows = [{name: value for key, value in row.items() if (name := renamed.get(key, key)) in columns} for row in rows]
    found = parser.parse(write("results_kernel_trace.csv", columns, *rows))
    assert found.kernels["total_ns"].sum() == 11 * 90 + 100
    late = found.step_figures[found.step_figures["metric"] == schema.Check.LATE_END.value]
    assert late[["value", "n", "subject"]].values.tolist() == [[4900, 1, "k"]]


def test_a_recorded_loop_of_kernels_has_steps(shared_data):
    parser = plugins.load_module(plugins.builtin_folder("parsers") / "rocpd.py")
    steps = parser.parse(shared_data / "rocprof" / "HGLiu1998__batched_gemm" / "14_results.db").steps
    assert set(steps["rule"]) == {"pattern"}
    assert (steps[["compute_ns", "communication_ns", "copy_ns", "idle_ns"]].sum(axis=1) == steps["wall_ns"]).all()
    assert steps["kernels"].sum() >= 298
