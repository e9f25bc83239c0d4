"""Every recorded file against totals that were computed without this project's code; the table ends the test output."""

import json
from pathlib import Path

import pytest

from profpipe.ingest import reader
from profpipe.ingest.reader import InputFile, Read, Refusal
from profpipe.results.schema import Placement

EXPECT = Path(__file__).resolve().parents[2] / "shared" / "data" / "expect.json"
FILES = sorted(json.loads(EXPECT.read_text())) if EXPECT.is_file() else []


def read(path):
    (result,) = reader.ingest([InputFile(path, path.name)])
    return result


def kernel_sums(data):
    kernels = data.kernels[data.kernels["kind"] == "kernel"]
    return int(kernels["calls"].sum()), kernels["total_ns"].sum(min_count=1)


@pytest.mark.skipif(not FILES, reason=f"no recorded profiler files: {EXPECT} is not there")
@pytest.mark.parametrize("name", FILES)
def test_launches_and_total_time_equal_the_truth(name, record_property):
    expected, result = json.loads(EXPECT.read_text())[name], read(EXPECT.parent / name)
    if expected.get("error"):
        assert isinstance(result, Refusal) and result.what and result.remedy
        record_property("table", [name, "refused", result.what])
        return
    assert isinstance(result, Read), str(result)
    able = [reader.name_of(parser) for parser in reader.parsers() if parser.sniff(EXPECT.parent / name)]
    assert able == [result.parser]
    launches, total_ns = kernel_sums(result.tables)
    origin = result.tables.origin
    assert launches == origin.launches == expected["kernels"]
    if expected["total_ns"] is None:
        assert origin.total_ns is None
    elif expected["kernels"]:
        assert total_ns == pytest.approx(expected["total_ns"], abs=0.51 * launches)
        assert origin.attributed_ns + origin.unattributed_ns == pytest.approx(origin.total_ns)
    assert not (result.tables.ranges["busy_ns"] > result.tables.ranges["kernel_ns"]).any()
    if launches and result.parser in ("nsys_sqlite", "torch_trace"):
        placed = [count for how, count in origin.attribution.items() if how is not Placement.OF_EXTERNAL_ID]
        assert sum(placed) == launches
    for kernel, calls, ns in expected.get("top", ()):
        check_top(result.tables.kernels, kernel, calls, ns)
    shown = "not in the file" if expected["total_ns"] is None else f"{expected['total_ns']:,} ns"
    record_property("table", [name, f"{launches:,} launches", shown])


def check_top(frame, kernel, calls, ns):
    from profpipe.ingest.kernel_classes import normalise

    same = frame[frame["kernel"] == normalise(kernel)]
    assert (int(same["calls"].sum()), same["total_ns"].sum()) == (calls, pytest.approx(ns))
