"""CSV files of rocprofv2 with ranges.

There is no public recording, so the files here are made up. They follow AMD's sources: `plugin/file/file.cpp` of
ROCm/rocprofiler (the columns, the empty line below them, quotes without escapes, no message of one character) and
`src/roctx/roctx.cpp` of ROCm/roctracer (which calls have a message and a number).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from profpipe import plugins
from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.results import schema
from profpipe.results.schema import Placement

RESULTS = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID"
)
ROCTX = "Domain,ROCTX_ID,Message,Timestamp\n\n"
HIP = "Domain,Function,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"
OPERATIONS = "Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID\n\n"
CASE = "profpipe:impl=fa2"

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def parser() -> ModuleType:
    return plugins.load_module(plugins.builtin_folder("parsers") / "rocprof_csv.py")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, *parts: str) -> Path:
        path = tmp_path / name
        path.write_text("".join(parts), encoding="utf-8")
        return path

    return written


def dispatch(number: int, name: str, start: int, end: int, correlation: int = 0, thread: int = 7) -> str:
    return f'{number},2,1,70,{thread},256,256,0,0,12,4,32,64,"{name}",{start},{end},{correlation}\n'


def message(text: str, ns: int, number: int = 0) -> str:
    """A mark, a push or a start: the file does not distinguish them."""
    return f'ROCTX_DOMAIN,{number},"{text}",{ns}\n' if len(text) > 1 else end(ns, number)


def end(ns: int, number: int = 0) -> str:
    """A pop or a stop."""
    return f"ROCTX_DOMAIN,{number},,{ns}\n"


def kernels(*rows: str) -> str:
    return "".join([RESULTS, "\n", *rows])


def places(found: schema.Tables) -> dict[str, tuple[str, str]]:
    return {row.kernel: (row.case, row.phase) for row in found.kernels.itertuples()}


def ranges(found: schema.Tables) -> dict[tuple[str, str], float]:
    """(case, path) -> instances and wall time."""
    return {(row.case, row.range): (row.instances, row.wall_ns) for row in found.ranges.itertuples()}


def read(parser: ModuleType, path: Path) -> schema.Tables:
    assert parser.sniff(path)
    return reader.parse(parser, path)


def test_kernels_are_placed_in_the_ranges_of_the_file_of_the_same_run(parser: ModuleType, write: Write) -> None:
    write(
        "roctx_trace_capture.csv",
        ROCTX, message(CASE, 100), message("forward", 200), end(300), end(400), message(CASE, 500), end(600),
    )  # fmt: skip
    path = write(
        "results_capture.csv",
        kernels(dispatch(0, "warm_up()", 10, 20), dispatch(1, "inner()", 210, 220), dispatch(2, "outer()", 510, 530)),
    )
    found = read(parser, path)
    assert places(found) == {"warm_up()": ("", ""), "inner()": ("impl=fa2", "forward"), "outer()": ("impl=fa2", "")}
    assert ranges(found) == {("impl=fa2", ""): (2, 400), ("impl=fa2", "forward"): (1, 100)}
    assert (found.origin.attributed_ns, found.origin.unattributed_ns) == (30, 10)
    assert found.origin.attribution == {Placement.RUN_TIME: 2, Placement.NO_RANGE: 1}
    notes = " ".join(found.origin.notes)
    assert "roctx_trace_capture.csv" in found.origin.read_with and "record with --hip-trace too" in notes
    assert "it does not say in which thread a range was pushed" in notes


def test_with_the_hip_calls_of_the_same_run_kernels_are_placed_by_their_launch(
    parser: ModuleType, write: Write
) -> None:
    write("roctx_trace_9.csv", ROCTX, message(CASE, 100), end(400))
    write("hip_api_trace_9.csv", HIP, 'HIP_API_DOMAIN,"hipLaunchKernel",110,120,5\n')
    path = write("results_9.csv", kernels(dispatch(0, "late()", 5000, 5100, correlation=5)))
    found = read(parser, path)
    assert places(found) == {"late()": ("impl=fa2", "")}
    assert found.origin.attribution == {Placement.API_CALL: 1}
    assert not any("--hip-trace" in note for note in found.origin.notes)


def test_ranges_of_unknown_thread_hold_kernels_of_several_by_time(parser: ModuleType, write: Write) -> None:
    write("roctx_trace_9.csv", ROCTX, message(CASE, 100), end(400))
    launched = kernels(dispatch(0, "one()", 110, 120, thread=7), dispatch(1, "other()", 130, 140, thread=8))
    found = read(parser, write("results_9.csv", launched))
    assert places(found) == {"one()": ("impl=fa2", ""), "other()": ("impl=fa2", "")}
    assert found.origin.attribution[Placement.OF_OTHER_THREAD] == 2


def test_started_ranges_end_where_their_number_is_stopped(parser: ModuleType, write: Write) -> None:
    path = write(
        "roctx_trace_9.csv",
        ROCTX,
        message("copying", 100, number=1), message("computing", 200, number=2), end(300, number=1), end(500, number=2),
    )  # fmt: skip
    assert ranges(read(parser, path)) == {
        ("", "copying"): (1, 200),
        ("", "copying > computing"): (1, 300),
    }


def test_a_mark_makes_only_the_ranges_of_its_case_unreliable(parser: ModuleType, write: Write) -> None:
    path = write(
        "roctx_trace_9.csv",
        ROCTX,
        message("profpipe:a=1", 100), message("forward", 110), end(120), end(200),
        message("profpipe:a=2", 300), message("epoch done", 310), end(400),
        message("profpipe:a=3", 500), end(600), message("a mark behind it", 610),
    )  # fmt: skip
    found = read(parser, path)
    assert ranges(found) == {("a=1", ""): (1, 100), ("a=1", "forward"): (1, 10), ("a=3", ""): (1, 100)}
    assert any("3 of its messages are left out" in note for note in found.origin.notes)


def test_a_range_whose_name_of_one_character_is_lost_leaves_no_wrong_time(parser: ModuleType, write: Write) -> None:
    """Its push looks like a pop, and would end the range around it."""
    path = write(
        "roctx_trace_9.csv",
        ROCTX,
        message("profpipe:a=1", 100), message("x", 110), end(120), end(200), message("profpipe:a=2", 300), end(400),
    )  # fmt: skip
    assert ranges(read(parser, path)) == {("a=2", ""): (1, 100)}


def test_a_run_that_was_killed_keeps_the_cases_that_ended(parser: ModuleType, write: Write) -> None:
    calls = [message("profpipe:a=1", 100), end(200), message("profpipe:a=2", 300), message("forward", 310)]
    found = read(parser, write("roctx_trace_9.csv", ROCTX, *calls, 'ROCTX_DOMAIN,0,"back'))
    assert ranges(found) == {("a=1", ""): (1, 100)}
    assert "1 row cut or torn, left out" in found.origin.notes


@pytest.mark.parametrize("text", ['say "hi", twice', "two\nlines", "comma, comma", 'ends in "', "ROCTX_DOMAIN,0,,1"])
def test_messages_of_any_text_are_read_though_nothing_is_escaped(parser: ModuleType, write: Write, text: str) -> None:
    found = read(parser, write("roctx_trace_9.csv", ROCTX, message(text, 100), end(200)))
    assert ranges(found) == {("", schema.range_name(text)): (1, 100)}


def test_rows_are_put_in_order_of_time(parser: ModuleType, write: Write) -> None:
    """Buffers of several sessions are written one after the other."""
    rows = [message("inner", 200), end(300), message("outer", 100), end(400)]
    assert set(ranges(read(parser, write("roctx_trace_9.csv", ROCTX, *rows)))) == {("", "outer"), ("", "outer > inner")}


def test_the_record_numbers_of_2023_are_removed(parser: ModuleType, write: Write) -> None:
    rows = ["Record_ID,Domain,ROCTX_ID,Message,Timestamp\n\n", f"1,{message('forward', 100)}", f"2,{end(300)}"]
    assert ranges(read(parser, write("roctx_trace_9.csv", *rows))) == {("", "forward"): (1, 200)}


def test_a_file_of_marks_is_refused_with_the_file_to_give(parser: ModuleType, write: Write) -> None:
    with pytest.raises(UnreadableFile, match=r"no range is in it; 1 of its messages.*results_X\.csv"):
        parser.parse(write("roctx_trace_9.csv", ROCTX, message("only a mark", 100)))


def test_a_trace_of_hip_operations_gives_kernels_copies_and_fills(parser: ModuleType, write: Write) -> None:
    write("roctx_trace_9.csv", ROCTX, message(CASE, 100), end(400))
    write("hip_api_trace_9.csv", HIP, 'HIP_API_DOMAIN,"hipLaunchKernel",110,120,5\n')
    path = write(
        "hcc_ops_trace_9.csv",
        OPERATIONS,
        'HIP_OPS_DOMAIN,"KernelExecution","scale(float*)",1000,1100,5\n',
        'HIP_OPS_DOMAIN,"CopyHostToDevice",,210,220,6\n',
        'HIP_OPS_DOMAIN,"FillBuffer",,230,240,7\n',
        'HIP_OPS_DOMAIN,"Marker",,250,260,8\n',
    )
    found = read(parser, path)
    kinds = {row.kernel: (row.kind, row.case) for row in found.kernels.itertuples()}
    assert kinds == {
        "scale(float*)": ("kernel", "impl=fa2"),
        "CopyHostToDevice": ("memcpy", "impl=fa2"),
        "FillBuffer": ("memset", "impl=fa2"),
    }
    assert found.origin.launches == 1 and any(note.startswith("1 markers and barriers") for note in found.origin.notes)


def test_the_file_of_operations_adds_copies_and_no_kernels(parser: ModuleType, write: Write) -> None:
    write(
        "hcc_ops_trace_9.csv",
        OPERATIONS,
        'HIP_OPS_DOMAIN,"KernelExecution","scale()",110,120,5\n',
        'HIP_OPS_DOMAIN,"CopyDeviceToHost",,210,220,6\n',
    )
    found = read(parser, write("results_9.csv", kernels(dispatch(0, "scale()", 110, 120, correlation=5))))
    assert dict(zip(found.kernels["kernel"], found.kernels["calls"], strict=True)) == {
        "scale()": 1,
        "CopyDeviceToHost": 1,
    }


def test_a_dispatch_that_is_counted_by_each_part_of_the_gpu_is_one_launch(parser: ModuleType, write: Write) -> None:
    write("roctx_trace_9.csv", ROCTX, message(CASE, 100), end(400))
    row = dispatch(0, "scale()", 110, 120).rstrip("\n")
    path = write("results_9.csv", f"{RESULTS},XCC_Index,SQ_WAVES\n\n", f"{row},0,10.0\n", f"{row},1,30.0\n")
    found = read(parser, path)
    assert (found.origin.launches, found.origin.total_ns) == (1, 10)
    (metric,) = found.metrics.itertuples()
    assert (metric.case, metric.metric, metric.value, metric.n) == ("impl=fa2", "SQ_WAVES", 20, 2)


def test_files_of_another_recording_are_not_read(parser: ModuleType, write: Write) -> None:
    write("roctx_trace_8.csv", ROCTX, message(CASE, 100), end(400))
    found = read(parser, write("results_9.csv", kernels(dispatch(0, "scale()", 110, 120))))
    assert places(found) == {"scale()": ("", "")} and found.ranges.empty


@pytest.mark.slow
def test_damaged_calls_are_refused_or_read_but_never_break_the_parser(parser: ModuleType, tmp_path: Path) -> None:
    calls = [
        message(CASE, 100),
        message("forward, deep", 200),
        end(300),
        end(400),
        message("copy", 500, 1),
        end(600, 1),
    ]
    whole = (ROCTX + "".join(calls * 3)).encode()
    dice = random.Random("rocprofv2")
    path = tmp_path / "roctx_trace_9.csv"
    for _ in range(200):
        data = bytearray(whole[: dice.randrange(40, len(whole))])
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(34, len(data))] = dice.choice(b'0123456789,"\n\0\xff-eA')
        path.write_bytes(data)
        if not parser.sniff(path):
            continue
        try:
            found = parser.parse(path)
        except UnreadableFile as refused:
            assert refused.what and refused.remedy
        else:
            assert len(found.ranges) and (found.ranges["wall_ns"] >= 0).all()
