"""nsys exports: every recorded file against the truth, and small hand-written ones for what they do not hold."""

import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import real_nsys
from nsys_exports import DOMAIN, START_END, Export, pid_id, thread_id

from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.results import schema

RECORDED = Path(__file__).parent / "data" / "nsys-2025.3.1"


def by_phase(parsed):
    kernels = parsed.kernels[parsed.kernels["kind"] == "kernel"]
    return {str(phase): int(calls) for phase, calls in kernels.groupby("phase")["calls"].sum().items()}


# --- recorded files --------------------------------------------------------------------------------------------------


def test_kernels_of_autograds_thread_belong_to_the_backward_range_of_the_thread_that_called_it(parser, record_property):
    parsed = reader.parse(parser, RECORDED / "training" / "lm_eager.sqlite")
    in_a_step = {
        "forward": 46,
        "forward > computing attention scores": 16,
        "forward > computing softmax": 4,
        "forward > final matmul": 8,
        "backward": 157,
        "optimizer": 10,
    }
    phases = by_phase(parsed)
    for phase, calls in phases.items():
        record_property("table", [f"h200/lm_eager.sqlite, {phase}", f"{calls} launches"])
    assert phases == {f"step_{n} > {phase}": calls for n in range(3) for phase, calls in in_a_step.items()}
    assert sum(phases.values()) == parsed.origin.launches == 723
    # All backward kernels but the first of each step, which the calling thread launches; 51 memsets are no launches.
    assert parsed.origin.attribution[schema.Placement.OTHER_THREAD] == 468
    assert sum(count or 0 for count in parsed.origin.attribution.values()) == 723


def test_every_case_has_the_same_kernels_in_each_of_its_iterations(parser, tmp_path):
    source = RECORDED / "attention" / "attn_h200.sqlite"
    ranges = parser.parse(source).ranges
    iterations = ranges[ranges["range"].str.endswith(" > iter")]
    assert (iterations["instances"] == 5).all()
    assert len(iterations) == 14
    numbered = tmp_path / "numbered.sqlite"
    shutil.copyfile(source, numbered)
    with closing(sqlite3.connect(numbered)) as database, database:
        database.execute("UPDATE NVTX_EVENTS SET text = 'iter_' || start WHERE text = 'iter'")
    kernels = parser.parse(numbered).kernels
    kernels[["of", "iteration"]] = kernels["phase"].str.split(" > ", expand=True)
    for case, rows in kernels.groupby("of"):
        contents = {tuple(sorted(zip(i["kernel"], i["calls"], strict=True))) for _, i in rows.groupby("iteration")}
        assert rows["iteration"].nunique() == 5, case
        assert len(contents) == 1, case


def test_statistics_are_of_single_launches(parser):
    path = RECORDED / "attention" / "attn_h200.sqlite"
    with closing(sqlite3.connect(path)) as database:
        single = pd.read_sql('SELECT "end" - start AS ns FROM CUPTI_ACTIVITY_KIND_KERNEL', database)
    kernels = parser.parse(path).kernels
    kernels = kernels[kernels["kind"] == "kernel"]
    assert kernels["min_ns"].min() == single["ns"].min()
    assert kernels["max_ns"].max() == single["ns"].max()
    assert kernels["median_ns"].between(kernels["min_ns"], kernels["max_ns"]).all()


# --- where launches belong -------------------------------------------------------------------------------------------


def test_kernels_of_two_processes_with_one_correlation_id_stay_apart(parser, tmp_path):
    export = Export()
    for pid, name in ((1, "one"), (2, "two")):
        export.range(0, 100, f"profpipe:{name}", pid=pid)
        export.launch(10, 5, name, pid=pid)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert dict(zip(parsed.kernels["case"], parsed.kernels["kernel"], strict=True)) == {"one": "one", "two": "two"}
    assert parsed.origin.attributed_ns == 20


#: Ranges (begin, end, name[, thread]) and launches (time[, thread]) -> launches by case and phase.
PLACED: dict[str, tuple[list[tuple[Any, ...]], list[tuple[int, ...]], dict[tuple[str, str], int]]] = {
    "the phase is what is nested inside the case": (
        [(0, 100, "run"), (1, 90, "profpipe:n=1"), (2, 80, "forward"), (3, 70, "softmax")],
        [(10,), (75,), (85,), (95,)],
        {("n=1", "forward > softmax"): 1, ("n=1", "forward"): 1, ("n=1", ""): 1, ("", "run"): 1},
    ),
    "hooks that push ranges in autograd's thread stay inside the case": (
        [(0, 100, "profpipe:a"), (5, 90, "backward"), (20, 40, "MmBackward0", 2)], [(25, 2)],
        {("a", "backward > MmBackward0"): 1},
    ),
    "without a case only the ranges of the launching thread count": (
        [(0, 100, "request 1"), (5, 90, "request 2", 2)], [(25, 2)], {("", "request 2"): 1},
    ),
    "a data loader's range does not take the backward kernels": (
        [(0, 100, "backward"), (20, 60, "load batch", 3)], [(1,), (30, 2)], {("", "backward"): 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ranges", "launches", "expected"), PLACED.values(), ids=PLACED)
def test_launches_belong_to_ranges(parser, tmp_path, ranges, launches, expected):
    export = Export()
    for begin, end, name, *tid in ranges:
        export.range(begin, end, name, 1, *tid)
    for number, (at, *tid) in enumerate(launches, start=1):
        export.launch(at, number, "k", 1, *tid)
    kernels = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).kernels
    assert kernels.groupby(["case", "phase"])["calls"].sum().to_dict() == expected


def test_columns_of_other_versions_may_be_missing_or_more(parser, tmp_path):
    export = Export()
    export.range(0, 100, "forward")
    export.launch(30, 1)
    later = {
        "CUPTI_ACTIVITY_KIND_KERNEL": "greenContextId graphId clusterX qmdLastCtaDone tensorSizeMinusOneElements",
        "NVTX_EVENTS": "jsonText binaryData",
    }
    earlier = ("textId", "endGlobalTid", "domainId", "mangledName")
    for number, changed in enumerate(({"also": later}, {"without": earlier})):
        assert by_phase(parser.parse(export.write_sqlite(tmp_path / f"{number}.sqlite", **changed))) == {"forward": 1}


def test_many_kernels_of_one_graph_launch_belong_where_it_was_launched(parser, tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:graph")
    export.call(10, 20, 9, name="cudaGraphLaunch_v10000")
    for node in range(5):
        export.kernel(200 + 10 * node, 205 + 10 * node, 9, f"node{node}", graphNodeId=node)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert set(parsed.kernels["case"]) == {"graph"}
    assert parsed.origin.launches == 5
    assert parsed.origin.notes == ()


def test_records_of_whole_graphs_are_a_separate_kind_with_a_note_on_hidden_kernels(parser, tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:graph")
    export.call(10, 20, 9, name="cudaGraphLaunch_v10000")
    export.add(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        start=30, end=90, correlationId=9, globalPid=pid_id(1), deviceId=0, streamId=7, graphId=3,
    )  # fmt: skip
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert parsed.kernels[["case", "kind", "kernel", "kernel_class"]].to_numpy().tolist() == [
        ["graph", "graph", "[CUDA graph 3]", "graph"]
    ]
    assert (parsed.origin.launches, parsed.origin.total_ns) == (0, 0)
    assert parsed.ranges["kernel_ns"].tolist() == [60]
    assert any("hide the kernels" in note and "--cuda-graph-trace=node" in note for note in parsed.origin.notes)


def test_a_whole_graph_without_an_id_is_named_by_its_executable_or_by_none(parser, tmp_path):
    export = Export()
    for start, graph, executable in ((10, 3, 8), (30, None, 9), (50, None, None)):
        where = {"correlationId": start, "globalPid": pid_id(1), "deviceId": 0, "streamId": 7}
        ids = {"graphId": graph, "graphExecId": executable}
        export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=start + 10, **where, **ids)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert sorted(parsed.kernels["kernel"]) == ["[CUDA graph 3]", "[CUDA graph 9]", "[CUDA graph]"]
    assert set(parsed.kernels["kernel_class"]) == {"graph"}


def test_a_kernel_without_its_demangled_name_has_the_next_best(parser, tmp_path):
    export = Export()
    export.kernel(0, 10, 1, "void whole<int>(int*)")
    export.kernel(20, 30, 2, "short", demangledName=None)
    export.kernel(40, 50, 3, "_Z7mangledPi", demangledName=None, shortName=None, mangledName=3)
    assert export.string("_Z7mangledPi") == 3
    names = ["mangled(int*)", "short", "whole<int>"]
    assert sorted(parser.parse(export.write_sqlite(tmp_path / "some.sqlite")).kernels["kernel"]) == names
    for row in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row["demangledName"] = None
    assert sorted(parser.parse(export.write_sqlite(tmp_path / "none.sqlite")).kernels["kernel"]) == names


def test_graph_launches_without_any_record_are_missed_aloud(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    export.call(10, 20, 9, name="cudaGraphLaunch_v10000")
    notes = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).origin.notes
    assert any(note.startswith("1 launches of CUDA graphs left no kernel") for note in notes)


def test_a_kernel_launched_before_the_capture_lies_in_no_range(parser, tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:a")
    export.launch(10, 1)
    export.kernel(20, 50, 77)
    export.kernel(60, 65, None)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert (parsed.origin.attributed_ns, parsed.origin.unattributed_ns) == (10, 35)
    assert any(note.startswith("2 kernels (0.000 ms) have no launch call") for note in parsed.origin.notes)


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_ranges_are_named_by_text_or_registered_string_with_their_domain(parser, tmp_path):
    export = Export()
    export.range(0, None, "NCCL", eventType=DOMAIN, domainId=4)
    export.range(0, 100, None, textId=export.string("registered"))
    export.range(10, 90, None, textId=export.string("ncclAllReduce"), domainId=4)
    export.range(20, 80, "aten::mm, op_id = 314290")
    export.launch(30, 1)
    assert by_phase(parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))) == {
        "registered > NCCL:ncclAllReduce > aten::mm": 1
    }


def test_ranges_are_named_though_the_first_hundred_thousand_have_no_text(parser, tmp_path):
    export = Export()
    for start in range(0, 500_000, 4):
        export.range(start, start + 1, None, textId=export.string("registered"))
    export.range(500_000, 600_000, "late")
    export.launch(500_010, 1)
    assert by_phase(parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))) == {"late": 1}


def test_a_range_without_an_end_lasts_until_the_captures_end(parser, tmp_path):
    export = Export()
    export.range(0, None, "open")
    export.launch(30, 1)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert by_phase(parsed) == {"open": 1}
    assert parsed.ranges["wall_ns"].tolist() == [45]
    assert parsed.origin.notes == ("1 ranges have no end and are taken to last until the capture's end",)


def test_a_range_that_ends_in_another_thread_belongs_to_none(parser, tmp_path):
    export = Export()
    export.range(0, 100, "wanders", eventType=START_END, endGlobalTid=thread_id(1, 2))
    export.range(5, 95, "stays", eventType=START_END, endGlobalTid=thread_id(1, 1))
    export.launch(30, 1)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert by_phase(parsed) == {"stays": 1}
    assert any("end in another thread" in note for note in parsed.origin.notes)


def test_busy_time_counts_kernels_that_overlap_once(parser, tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:a")
    for correlation, (start, end) in enumerate([(100, 200), (150, 160), (190, 240), (300, 310)], start=1):
        export.call(10 * correlation, 10 * correlation + 1, correlation)
        export.kernel(start, end, correlation, streamId=correlation)
    ranges = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).ranges
    assert ranges[["kernels", "kernel_ns", "busy_ns", "span_ns"]].to_numpy().tolist() == [[4, 170, 150, 210]]


def test_a_span_is_from_the_first_to_the_last_kernel_of_an_iteration(parser, tmp_path):
    """Not of the pauses between iterations, however far the GPU is behind the host; only a case's own range has one."""
    export = Export()
    for begin in (0, 100):
        export.range(begin, begin + 50, "profpipe:a")
        export.range(begin + 1, begin + 40, "forward")
    kernels = [(10, 200, 220), (20, 240, 260), (110, 500, 510), (120, 505, 590)]
    for correlation, (launched, start, end) in enumerate(kernels, start=1):
        export.call(launched, launched + 1, correlation)
        export.kernel(start, end, correlation)
    ranges = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).ranges.set_index("range")
    assert ranges.loc["", "span_ns"] == (260 - 200) + (590 - 500)
    assert ranges["span_ns"].isna().tolist() == [False, True]


def test_domains_without_ranges_point_to_the_nvtx_package_that_old_nsys_does_not_see(parser, tmp_path):
    export = Export()
    export.range(0, None, "NVTX", eventType=DOMAIN, domainId=1)
    export.launch(30, 1)
    (note,) = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).origin.notes
    assert "nvtx<0.2.12" in note


PROGRAM = """
import nvtx
for _ in range(3):
    with nvtx.annotate("profpipe:impl=a"), nvtx.annotate("forward"), nvtx.annotate("own", domain="library"):
        pass
"""


def test_ranges_recorded_and_exported_by_a_real_nsys_are_read(parser, nsys, tmp_path):
    real_nsys.record(nsys, tmp_path / "x.nsys-rep", sys.executable, "-c", PROGRAM)
    export = [nsys, "export", "-t", "sqlite", "-q", "true", "-o", tmp_path / "x.sqlite", tmp_path / "x.nsys-rep"]
    subprocess.run(export, check=True, capture_output=True, timeout=120)
    parsed = parser.parse(tmp_path / "x.sqlite")
    rows = parsed.ranges[["case", "range", "instances", "kernels"]].to_numpy().tolist()
    assert rows == [["impl=a", "", 3, 0], ["impl=a", "forward", 3, 0], ["impl=a", "forward > library:own", 3, 0]]
    assert parsed.origin.tool_version
    assert parsed.origin.without_kernels == "no kernels in this file"


# --- metadata of the file --------------------------------------------------------------------------------------------


def test_an_export_of_2020_names_its_gpu_in_a_separate_table(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    export.add("TARGET_INFO_CUDA_GPU", name="NVIDIA GeForce RTX 3080", deviceId=0)
    origin = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).origin
    assert (origin.device, origin.tool_version) == ("NVIDIA GeForce RTX 3080", "")


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA"])
def test_either_meta_table_gives_the_version(parser, tmp_path, table):
    export = Export()
    export.launch(0, 1)
    export.add(table, name="EXPORT_PRODUCT_VERSION", value="2022.2.1.31")
    export.add(table, name="EXPORT_SCHEMA_VERSION", value="2.9.1")
    origin = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).origin
    assert (origin.tool_version, origin.format) == ("2022.2.1.31", "nsys export, schema 2.9.1")


def test_the_gpu_is_named_by_cudas_ordinal_not_by_the_order_on_the_bus(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    export.add("TARGET_INFO_GPU", id=0, name="slow", cuDevice=1)
    export.add("TARGET_INFO_GPU", id=1, name="fast", cuDevice=0)
    assert parser.parse(export.write_sqlite(tmp_path / "a.sqlite")).origin.device == "fast"
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=1)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=2)
    assert parser.parse(export.write_sqlite(tmp_path / "b.sqlite")).origin.device == "slow"


def test_records_that_end_before_they_begin_are_left_out_and_counted(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    export.kernel(0, 0, 1)
    export.kernel(50, 40, 1)
    export.kernel(50, None, 1)  # type: ignore[arg-type]
    origin = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).origin
    assert (origin.launches, origin.total_ns) == (1, 10)
    assert origin.notes == ("3 records end before they begin, or have no time, and were left out",)


def test_failed_calls_and_warnings_about_cuda_are_passed_on(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    export.call(20, 21, 2, returnValue=700)
    export.call(30, 31, 3, returnValue=600, name="cudaEventQuery_v3020")
    diagnostics = [
        (1, "Number of CUDA events collected: 3."),
        (2, "Not all CUDA events\nmight have been collected."),
        (3, "Unable to configure the collection of CPU IP samples"),
        (2, "No CUDA events collected. Does the process use CUDA?"),
    ]
    for severity, text in diagnostics:
        export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text, globalPid=0)
    helper = "CUDA profiling might have not been started correctly."
    export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=2, text=helper, globalPid=pid_id(99))
    origin = parser.parse(export.write_sqlite(tmp_path / "x.sqlite")).origin
    assert origin.notes == ("1 CUDA calls failed: cudaLaunchKernel returned 700 (1x)",)
    assert origin.details == ("nsys: Not all CUDA events might have been collected.",)


def test_a_text_of_another_encoding_in_a_side_table_refuses_no_export(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    export.add("META_DATA_EXPORT", name="EXPORT_PARAM_INPUT_FILE", value="latin")
    export.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2025.3.1")
    export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=3, text="latin", globalPid=0)
    path = export.write_sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        latin = "CAST(x'43554441202fe9e8ff' AS TEXT)"
        database.execute(f"UPDATE META_DATA_EXPORT SET value = {latin} WHERE value = 'latin'")
        database.execute(f"UPDATE DIAGNOSTIC_EVENT SET text = {latin}")
    origin = parser.parse(path).origin
    assert (origin.launches, origin.tool_version) == (1, "2025.3.1")
    assert origin.notes == ("nsys: CUDA /\ufffd\ufffd\ufffd",)


def test_copies_and_sets_are_rows_of_separate_kinds_and_not_launches(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    place = {"deviceId": 0, "streamId": 7, "globalPid": pid_id(1)}
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=20, end=50, correlationId=2, copyKind=1, **place)
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=60, end=65, correlationId=3, **place)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    rows = parsed.kernels.set_index("kind")[["kernel", "kernel_class", "total_ns"]].T.to_dict("list")
    assert rows["memcpy"] == ["[CUDA memcpy Host-to-Device]", "memcpy", 30]
    assert rows["memset"] == ["[CUDA memset]", "memset", 5]
    assert (parsed.origin.launches, parsed.origin.total_ns) == (1, 10)


def test_an_id_of_more_than_32_bits_refuses_no_export(parser, tmp_path):
    """CUPTI's id of no stream is 2^32 - 1, and ids of 32 bits come with a sign from some exporters."""
    export = Export()
    export.range(0, 100, "profpipe:n=1")
    export.launch(10, 1, "plain")
    for correlation, name in ((-5, "negative"), (2**32 + 5, "large")):
        export.launch(20, correlation, name)
    export.kernel(60, 70, 1, "nowhere", streamId=2**32 - 1, deviceId=2**40)
    copy = {"deviceId": 0, "streamId": 2**32 - 1, "globalPid": pid_id(1), "copyKind": 11, "correlationId": 0}
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=80, end=90, **copy)
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert (parsed.origin.launches, parsed.origin.attributed_ns) == (4, 40)
    places = parsed.kernels.set_index("kernel")[["device", "stream"]]
    assert places.loc[["plain", "negative", "large"]].to_numpy().tolist() == [[0, 7]] * 3
    assert places.loc["nowhere"].isna().all() and places.loc["[CUDA memcpy Unified Host-to-Device]"].isna().any()


def test_ids_of_64_bits_without_a_sign_are_those_that_sqlite_has_with_one(parser, tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:n=1")
    export.launch(10, 1)
    expected = parser.parse(export.write_parquet(tmp_path / "signed"))
    folder = export.write_parquet(tmp_path / "unsigned")
    for file in folder.glob("*.parquet"):
        table = pq.read_table(file)
        for name in {"globalPid", "globalTid"} & set(table.column_names):
            ids = pa.array([value.as_py() | 1 << 63 for value in table[name]], pa.uint64())
            table = table.set_column(table.column_names.index(name), name, ids)
        pq.write_table(table, file)
    found = parser.parse(folder)
    assert found.kernels.equals(expected.kernels) and found.ranges.equals(expected.ranges)
    assert found.origin.attributed_ns == 10


def test_a_file_with_no_kernels_says_so(parser, tmp_path):
    export = Export()
    export.string("anything")
    export.range(0, 50, "forward")
    parsed = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    assert parsed.kernels.empty
    assert parsed.ranges["range"].tolist() == ["forward"]
    assert parsed.origin.without_kernels == "no kernels in this file"


def test_a_parquet_export_gives_the_same_tables_as_the_sqlite_export(parser, tmp_path):
    export = Export()
    export.range(-50, 100, "profpipe:a")
    export.range(0, 60, None, textId=export.string("forward"))
    for correlation in range(1, 20):
        export.launch(4 * correlation - 40, correlation, f"k{correlation % 3}")
    one = parser.parse(export.write_sqlite(tmp_path / "x.sqlite"))
    folder = export.write_parquet(tmp_path / "x.parquetdir")
    assert parser.sniff(folder)
    other = parser.parse(folder)
    pd.testing.assert_frame_equal(one.kernels, other.kernels)
    pd.testing.assert_frame_equal(one.ranges, other.ranges)
    assert one.origin == other.origin


# --- refusing --------------------------------------------------------------------------------------------------------


def refusal(parser, path):
    assert parser.sniff(path), "its own file, if damaged"
    with pytest.raises(UnreadableFile) as refused:
        parser.parse(path)
    text = str(refused.value)
    assert "\n" not in text
    assert "nsys export" in text
    return text


def test_a_truncated_export_is_refused(parser, tmp_path):
    path = tmp_path / "cut.sqlite"
    path.write_bytes((RECORDED / "training" / "lm_eager.sqlite").read_bytes()[:100_000])
    assert "cut short" in refusal(parser, path)


def test_a_parquet_export_with_a_broken_table_is_refused(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    folder = export.write_parquet(tmp_path / "x")
    table = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table.write_bytes(table.read_bytes()[:300])
    assert "cut short" in refusal(parser, folder)


def test_an_export_with_a_journal_file_was_interrupted(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    path = export.write_sqlite(tmp_path / "x.sqlite")
    (tmp_path / "x.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9")
    assert "interrupted" in refusal(parser, path)


def test_a_schema_whose_text_is_not_valid_text_is_refused(parser, tmp_path):
    # SQLite's message quotes the bytes, and Python cannot decode the message.
    export = Export()
    export.launch(0, 1)
    path = export.write_sqlite(tmp_path / "x.sqlite")
    path.write_bytes(
        path.read_bytes().replace(b'"CUPTI_ACTIVITY_KIND_RUNTIME" (', b'"CUPTI_ACTIVITY_KIND_RUNTIM\xeb$ (', 1)
    )
    assert "cannot be read" in refusal(parser, path)


def test_rows_whose_ids_descend_by_damage_are_all_read(parser, tmp_path):
    export = Export()
    for correlation in range(3):
        export.launch(100 * correlation, correlation + 1)
    path = export.write_sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        (page,) = database.execute(query).fetchone()
    content, first = bytearray(path.read_bytes()), (page - 1) * size + 8
    # The pointers to the three rows follow the header of the page, two bytes each.
    content[first : first + 2], content[first + 4 : first + 6] = (
        content[first + 4 : first + 6],
        content[first : first + 2],
    )
    path.write_bytes(content)
    parsed = reader.parse(parser, path)
    assert parsed.origin.launches == 3


def three_launches(folder):
    export = Export()
    for correlation in range(1, 4):
        export.launch(100 * correlation, correlation)
    return export.write_sqlite(folder / "x.sqlite")


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {0} WHERE correlationId = 2",
        "UPDATE {0} SET rowid = 10 * correlationId",
        "UPDATE {0} SET rowid = 9223372036854775807 WHERE correlationId = 3",
        "UPDATE {0} SET rowid = -correlationId",
    ],
    ids=["a gap", "numbers beyond the rows", "the largest number", "negative numbers"],
)
def test_the_numbers_of_rows_need_not_count_them(parser, tmp_path, change):
    path = three_launches(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            database.execute(change.format(table))
        database.commit()
    parsed = reader.parse(parser, path)
    assert parsed.origin.launches == (2 if change.startswith("DELETE") else 3)


def test_tables_may_have_a_key_instead_of_numbers_of_rows(parser, tmp_path):
    path = three_launches(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            (schema_text,) = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            database.execute(f"ALTER TABLE {table} RENAME TO old")
            database.execute(schema_text[:-1] + ", PRIMARY KEY (correlationId)) WITHOUT ROWID")
            database.execute(f"INSERT INTO {table} SELECT * FROM old")
            database.execute("DROP TABLE old")
        database.commit()
    parsed = reader.parse(parser, path)
    assert parsed.origin.launches == 3


def test_an_export_that_was_killed_lacks_its_first_page(parser, tmp_path):
    # As `nsys export` 2022.4 leaves it when it is killed.
    path = tmp_path / "x.sqlite"
    content = (RECORDED / "training" / "lm_eager.sqlite").read_bytes()
    path.write_bytes(bytes(4096) + content[4096:])
    assert "interrupted" in refusal(parser, path)
    path.write_bytes(bytes(10_000))
    assert not parser.sniff(path)


def test_kernels_without_any_name_are_refused(parser, tmp_path):
    export = Export()
    export.launch(0, 1)
    del export.rows["StringIds"]
    assert "StringIds" in refusal(parser, export.write_sqlite(tmp_path / "a.sqlite"))
    export.rows["StringIds"] = [{"id": 99, "value": "other"}]
    assert "no kernel's name" in refusal(parser, export.write_sqlite(tmp_path / "b.sqlite"))


def test_a_read_only_export_is_read_without_leaving_a_file(parser, tmp_path):
    folder = tmp_path / "50 % #1? of it"
    folder.mkdir()
    export = Export()
    export.launch(0, 1)
    path = export.write_sqlite(folder / "x y.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert parser.parse(path).origin.launches == 1
        assert [p.name for p in folder.iterdir()] == ["x y.sqlite"]
        assert path.read_bytes() == before
    finally:
        folder.chmod(0o755)


# --- single launches -------------------------------------------------------------------------------------------------


def test_every_kernel_of_a_real_export_is_a_single_launch_with_its_grid(parser):
    path = RECORDED / "attention" / "attn_h200.sqlite"
    found = parser.launches(path)
    assert len(found) == 380 and found["duration_ns"].sum() == parser.parse(path).origin.total_ns
    rows = sqlite3.connect(path).execute(
        "select gridX || 'x' || gridY || 'x' || gridZ, blockX || 'x' || blockY || 'x' || blockZ, end - start"
        " from CUPTI_ACTIVITY_KIND_KERNEL"
    )
    assert Counter(rows.fetchall()) == Counter(zip(found["grid"], found["block"], found["duration_ns"], strict=True))


def test_single_launches_come_in_the_order_of_their_calls_and_count_the_iterations_of_their_process(parser, tmp_path):
    export = Export()
    for pid in (1, 2):
        for begin in (100, 200):
            export.range(begin, begin + 50, "profpipe:n=1", pid=pid)
    export.call(210, 212, 1)
    export.call(220, 222, 2)
    shape = dict.fromkeys(("gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
    export.kernel(240, 245, 1, "late", gridX=2, **shape)
    export.kernel(230, 239, 2, "early", gridX=3, **shape)
    export.kernel(9, 5, 3, "impossible", gridX=4, **shape)
    export.call(110, 112, 4, pid=2)
    export.kernel(115, 119, 4, "first", pid=2, gridX=5, **shape)
    path = tmp_path / "e.sqlite"
    kinds = {"CUPTI_ACTIVITY_KIND_KERNEL": "gridX gridY gridZ blockX blockY blockZ"}
    found = parser.launches(export.write_sqlite(path, also=kinds))
    assert found["kernel"].tolist() == ["first", "late", "early"] and found["iteration"].tolist() == [0, 1, 1]
    assert found["grid"].tolist() == ["5x1x1", "2x1x1", "3x1x1"] and (found["case"] == "n=1").all()


def test_an_export_without_grids_has_no_single_launches(parser, tmp_path):
    export = Export()
    export.launch(10, 1)
    assert parser.launches(export.write_sqlite(tmp_path / "e.sqlite")).empty
