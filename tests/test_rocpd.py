"""Databases of rocprof: the recorded ones, and small ones written here for markers, copies, counters and GUIDs."""

import json
import sqlite3
from contextlib import closing

import pytest
from seed_files import ROCPD

from profpipe.errors import UnreadableFile
from profpipe.results.schema import Placement

CASE = "profpipe:impl=fa2"
GUID = "00000000-0000-0000-0000-00000000000a"
OTHER_GUID = "00000000-0000-0000-0000-00000000000b"


class Rocpd:
    """Writes a rocpd database of one or several processes."""

    def __init__(self, path):
        self.path = path
        self._database = sqlite3.connect(path)
        self._guid = ""

    def process(self, guid, pid):
        """Begins the tables of another process, with thread 7, a CPU, a GPU and the kernel ``gemm``."""
        self._guid = guid
        for table, columns in ROCPD.items():
            named = ", ".join(f'"{column.strip()}"' for column in columns.split(","))
            self._database.execute(f'CREATE TABLE "{self._name(table)}" (id INTEGER PRIMARY KEY, guid TEXT, {named})')
        self.add("info_process", pid)
        self.add("info_thread", 7)
        self.add("info_agent", "CPU", 0, "EPYC", "AMD EPYC")
        self.add("info_agent", "GPU", 0, "gfx942", "AMD Instinct MI300X")
        self.add("info_kernel_symbol", "_Z4gemmPf.kd", "gemm(float*)")
        return self

    def _name(self, table):
        return f"rocpd_{table}_{self._guid.replace('-', '_')}"

    def add(self, table, *values):
        marks = ", ".join("?" * (len(values) + 1))
        named = ", ".join(f'"{column.strip()}"' for column in ROCPD[table].split(","))
        statement = f'INSERT INTO "{self._name(table)}" (guid, {named}) VALUES ({marks})'
        return self._database.execute(statement, (self._guid, *values)).lastrowid or 0

    def event(self, category, stack=0, **extdata):
        return self.add("event", self.add("string", category), stack, json.dumps(extdata))

    def region(self, category, name, start, end, stack=0, **extdata):
        event = self.event(category, stack, **extdata)
        self.add("region", 1, 1, self.add("string", name), start, end, event)
        return self

    def range(self, message, start, end, operation="roctxThreadRangeA"):
        return self.region("MARKER_CORE_RANGE_API", operation, start, end, message=message)

    def launch(self, start, end, stack=0, kernel=1, **counters):
        event = self.event("KERNEL_DISPATCH", stack)
        self.add("kernel_dispatch", 1, 1, 2, kernel, 3, start, end, event)
        for name, value in counters.items():
            self.add("pmc_event", event, self.add("info_pmc", name, name, ""), value)
        return self

    def written(self):
        self._database.commit()
        self._database.close()
        return self.path


@pytest.fixture
def rocpd(tmp_path):
    return Rocpd(tmp_path / "x_results.db").process(GUID, 70)


def rows(found):
    return [(r.process, r.device, r.stream, r.case, r.phase, r.kernel, r.calls) for r in found.kernels.itertuples()]


def test_the_recorded_database_has_its_kernels_placed_with_their_gpu(parser, shared_data):
    found = parser.parse(shared_data / "rocprof" / "HGLiu1998__batched_gemm" / "14_results.db")
    assert (found.origin.launches, found.origin.total_ns) == (301, 3954208)
    assert found.origin.device == "AMD Instinct MI300X"
    assert sorted(found.kernels["calls"]) == [150, 151]
    assert set(found.kernels["kernel_class"]) == {"gemm", "memset"}
    assert set(found.kernels["device"]) == {0} and set(found.kernels["process"]) == {14}


def test_a_kernel_stands_where_its_call_was_made_though_it_ran_later(parser, rocpd):
    rocpd.range(CASE, 100, 200).range("forward", 110, 150).range(CASE, 300, 400)
    rocpd.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 120, 130, stack=5).launch(310, 350, stack=5)
    found = parser.parse(rocpd.written())
    assert rows(found) == [(70, 0, 3, "impl=fa2", "forward", "gemm(float*)", 1)]
    assert found.origin.attribution == {Placement.API_CALL: 1}
    assert [(r.range, r.instances, r.kernels, r.kernel_ns) for r in found.ranges.itertuples()] == [
        ("", 2, 1, 40),
        ("forward", 1, 1, 40),
    ]


def test_without_calls_a_kernel_is_placed_by_its_time_with_a_note(parser, rocpd):
    found = parser.parse(rocpd.range(CASE, 100, 200).launch(110, 150, stack=5).launch(310, 350).written())
    assert sorted(row[3] for row in rows(found)) == ["", "impl=fa2"]
    assert found.origin.attribution == {Placement.RUN_TIME: 1, Placement.NO_RANGE: 1}
    assert (found.origin.attributed_ns, found.origin.unattributed_ns) == (40, 40)


def test_a_marker_without_a_message_has_its_name_and_marks_are_not_ranges(parser, rocpd):
    rocpd.region("MARKER_CORE_API", "forward", 10, 20).region("MARKER_CORE_API", "mark", 12, 12)
    rocpd.region("MARKER_CORE_API", "roctxMarkA", 13, 14, message="here")
    torn = rocpd.add("event", rocpd.add("string", "MARKER_CORE_API"), 0, "{")
    rocpd.add("region", 1, 1, rocpd.add("string", "torn"), 30, 34, torn)
    found = parser.parse(rocpd.written())
    assert [(r.range, r.wall_ns) for r in found.ranges.itertuples()] == [("forward", 10), ("torn", 4)]
    assert found.origin.total_ns is None


def test_a_range_of_the_whole_process_holds_what_any_thread_launched(parser, rocpd):
    found = parser.parse(rocpd.range(CASE, 100, 200, operation="roctxProcessRangeA").launch(110, 150).written())
    assert rows(found)[0][3] == "impl=fa2"


def test_kernels_of_two_processes_with_one_stack_id_stay_apart(parser, rocpd):
    rocpd.range(CASE, 100, 200).region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 120, 130, stack=5).launch(300, 310, 5)
    rocpd.process(OTHER_GUID, 71).range("profpipe:impl=sage", 100, 200)
    rocpd.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 140, 150, stack=5).launch(400, 430, 5)
    found = parser.parse(rocpd.written())
    assert [(row[0], row[3]) for row in rows(found)] == [(70, "impl=fa2"), (71, "impl=sage")]
    assert found.origin.total_ns == 40


def test_kernels_of_two_processes_with_one_pid_stay_apart(parser, rocpd):
    """As in two containers; their calls overlap, and the second one's range would hold the first one's kernel."""
    rocpd.range(CASE, 100, 200).region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 120, 130, stack=5).launch(300, 310, 5)
    rocpd.process(OTHER_GUID, 70).range("profpipe:impl=sage", 110, 200)
    rocpd.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 140, 150, stack=5).launch(400, 430, 5)
    found = parser.parse(rocpd.written())
    assert sorted((r.process, r.case, r.total_ns) for r in found.kernels.itertuples()) == [
        (70, "impl=fa2", 10),
        (70, "impl=sage", 30),
    ]
    assert sorted((r.process, r.case, r.kernels, r.kernel_ns) for r in found.ranges.itertuples()) == [
        (70, "impl=fa2", 1, 10),
        (70, "impl=sage", 1, 30),
    ]


def test_a_dispatch_whose_kernel_or_thread_is_missing_still_counts(parser, rocpd):
    """The view `kernels` of the same file drops it: its joins are inner ones."""
    found = parser.parse(rocpd.launch(10, 30, kernel=99).launch(40, 50).written())
    assert (found.origin.launches, found.origin.total_ns) == (2, 30)
    assert {row[5] for row in rows(found)} == {"[kernel without a name]", "gemm(float*)"}


def test_a_copy_is_a_row_of_its_gpu_and_no_launch(parser, rocpd):
    name = rocpd.add("string", "MEMORY_COPY_DEVICE_TO_HOST")
    rocpd.add("memory_copy", 1, 1, name, 2, 1, 3, 10, 25, rocpd.event("MEMORY_COPY"))
    found = parser.parse(rocpd.launch(40, 50).written())
    copy = found.kernels[found.kernels["kind"] == "memcpy"].iloc[0]
    assert (copy["kernel_class"], copy["total_ns"], copy["device"]) == ("memcpy", 15, 0)
    assert found.origin.launches == 1


def test_counters_are_summed_over_the_gpus_units_and_averaged_over_launches(parser, rocpd):
    rocpd.range(CASE, 5, 100).launch(10, 20, SQ_WAVES=3.0).launch(30, 40, SQ_WAVES=5.0)
    rocpd.add("pmc_event", 3, 1, 7.0)
    found = parser.parse(rocpd.written())
    assert [(m.case, m.subject, m.metric, m.value, m.n, m.unit) for m in found.metrics.itertuples()] == [
        ("impl=fa2", "gemm(float*)", "SQ_WAVES", (3 + 5 + 7) / 2, 2, "1")
    ]


def v1(path, **contents):
    """A results.db of rocprof v1: for each table its columns and rows."""
    with closing(sqlite3.connect(path)) as database:
        for table, (columns, lines) in contents.items():
            named = columns.split()
            database.execute(f"CREATE TABLE {table} ({', '.join(f'{c!r}' for c in named)})".replace("'", '"'))
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(named))})", lines)
        database.commit()
    return path


OPS = "BeginNs EndNs dev-id queue-id Name pid tid roctx-range stream-id Index Data __section __lane"
HIP = "BeginNs EndNs pid tid Name args Index Data __section __lane"
ROCTX = "BeginNs EndNs pid tid Name Index __section __lane"
KERN = "Index KernelName gpu-id pid tid DispatchNs BeginNs EndNs CompleteNs DurationNs"


def test_v1_kernels_are_placed_by_the_hip_call_of_their_index(parser, tmp_path):
    path = v1(
        tmp_path / "results.db",
        OPS=(
            OPS,
            [
                (310, 350, 1, 0, "gemm", 70, 7, "forward", 2, 5, "", 7, 2),
                (360, 365, 1, 0, '"<barrier packet>"', 70, 7, "", 2, 6, "", 519, 2),
            ],
        ),
        KERN=(KERN, [(0, '"gemm.kd"', 1, 70, 7, 305, 310, 350, 355, 40)]),
        HIP=(HIP, [(120, 130, 70, 7, "hipLaunchKernel", "", 5, "", 2, 7)]),
        COPY=(OPS, [(10, 30, 0, 0, "CopyHostToDevice", 70, 7, "", 0, 9, "", 1, 0)]),
        rocTX=(
            ROCTX,
            [
                (100, 200, 70, 7, CASE, 1, 0, 7),
                (110, 150, 70, 7, "forward", 2, 0, 7),
                (5, 6, 70, 7, "mark", 3, 0, 7),
            ],
        ),
    )  # fmt: skip
    assert parser.sniff(path)
    found = parser.parse(path)
    assert rows(found) == [(70, 1, 2, "impl=fa2", "forward", "gemm", 1), (70, 0, 0, "", "", "CopyHostToDevice", 1)]
    assert (found.origin.launches, found.origin.total_ns) == (1, 40)
    assert found.origin.notes == ("1 barrier packets are no kernels and left out",)
    assert sorted(found.ranges["range"]) == ["", "forward"]


def test_v1_kernels_without_hip_calls_are_placed_by_their_dispatch(parser, tmp_path):
    path = v1(
        tmp_path / "results.db",
        KERN=(KERN, [(0, '"gemm.kd"', 1, 70, 7, 120, 310, 350, 355, 40)]),
        rocTX=(ROCTX, [(100, 200, 70, 7, CASE, 1, 0, 7)]),
    )
    found = parser.parse(path)
    assert rows(found)[0][3:6] == ("impl=fa2", "", "gemm")
    assert found.origin.attribution == {Placement.DISPATCH: 1}


def test_v1_kernels_without_time_stamps_are_only_counted(parser, tmp_path):
    path = v1(tmp_path / "results.db", KERN=("Index KernelName pid", [(0, "a", 1), (1, "a", 1)]))
    found = parser.parse(path)
    assert (found.origin.launches, found.origin.total_ns, list(found.kernels["calls"])) == (2, None, [2])


def test_a_database_without_kernels_says_what_to_pass(parser, rocpd):
    with pytest.raises(UnreadableFile, match=r"no kernels were recorded.*--kernel-trace"):
        parser.parse(rocpd.region("HIP_RUNTIME_API_EXT", "hipMalloc", 1, 2).written())


def test_a_cut_database_is_refused_with_the_reason(parser, shared_data, tmp_path):
    data = (shared_data / "rocprof" / "HGLiu1998__batched_gemm" / "14_results.db").read_bytes()
    path = tmp_path / "cut.db"
    path.write_bytes(data[: len(data) // 3])
    assert parser.sniff(path)
    with pytest.raises(UnreadableFile, match="damaged or cut short"):
        parser.parse(path)


def test_values_that_are_no_times_are_refused(parser, rocpd):
    with pytest.raises(UnreadableFile, match="holds values that are no times or ids"):
        parser.parse(rocpd.launch("x", 20).written())  # type: ignore[arg-type]


def test_reading_a_read_only_file_leaves_no_other_file(parser, rocpd):
    path = rocpd.launch(10, 20).written()
    path.chmod(0o444)
    parser.parse(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
