"""The section that compares the profilers, from made-up times."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_study import ATTENTION, analyze, kernel_row, metric_row, range_row, tables

from profpipe.analysis.findings.workloads import WorkloadFindings
from profpipe.report.document import Cell, Code, plain
from profpipe.report.sections import agreement
from profpipe.report.text import write_section, write_table
from profpipe.report.units import MISSING


def workload(**cases: tuple[float, ...]) -> WorkloadFindings:
    """One kernel in each case, in us: under nsys, under torch, the call by events, and under ncu."""
    kernels, ranges, metrics = [], [], []
    for name, (nsys, torch, call, *ncu) in cases.items():
        case = f"impl={name}"
        for profiler, us in (("nsys", nsys), ("torch", torch), *(("ncu", us) for us in ncu)):
            kernels.append(kernel_row(case, ATTENTION, 10, 1e4 * us, profiler=profiler))
            ranges.append(range_row(case, 10, profiler))
        metrics.append(metric_row(case, "time", 1e3 * call))
    (found,) = analyze(tables((), kernels, ranges, metrics), {}).workloads
    return found


EVERYTHING = {"a": (100.0, 101.0, 105.0, 130.0), "b": (100.0, 90.0, 101.0), "short": (20.0, 30.0, 25.0)}


def test_the_section_reads_as_in_the_golden_file(regenerate: bool) -> None:
    golden = Path(__file__).parent / "golden" / "agreement.txt"
    text = write_section(agreement.agreement(workload(**EVERYTHING))) + "\n"
    if regenerate:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_one_profiler_alone_makes_no_section() -> None:
    (found,) = analyze(tables((), [kernel_row("impl=a", ATTENTION, 1, 5.0)], [range_row("impl=a", 1)]), {}).workloads
    assert not agreement.agreement(found)


def test_short_calls_are_counted_apart() -> None:
    within = {row[0].text: [plain(cell.text) for cell in row[1::2]] for row in by_profiler().rows}
    assert within["torch, kernels"] == ["1 of 3", "1 of 2", "no known reason 2"]


def by_profiler() -> agreement.Table:
    return agreement.by_profiler(workload(**EVERYTHING))


def reasons(found: WorkloadFindings) -> dict[str, str]:
    return {plain(row[1].text): plain(row[3].text) for row in agreement.differences(found).rows}


def test_where_the_others_agree_with_each_other_the_reference_is_called_the_outlier() -> None:
    assert reasons(workload(a=(100.0, 80.0, 100.0, 81.0))) == {
        "torch, kernels": "no known reason; ncu within 3 % of it: nsys is the outlier",
        "ncu, kernels": "no known reason; torch within 3 % of it: nsys is the outlier",
    }


def test_a_call_that_takes_as_long_as_other_kernels_makes_no_outlier() -> None:
    found = reasons(workload(a=(100.0, 80.0, 81.0)))
    assert found == dict.fromkeys(("CUDA events", "torch, kernels"), "no known reason")


@pytest.mark.parametrize(("busy_us", "part"), [(130, "70 us of the 90 us"), (60, "50 us shorter than it is")])
def test_no_part_of_a_difference_is_larger_than_all_of_it(busy_us: float, part: str) -> None:
    """Of a call of 110 us, two streams with 100 us of kernels each."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6, stream=stream) for stream in (7, 8)]
    ranges = [range_row("impl=a", 10, wall_ns=3e6, busy_ns=1e4 * busy_us)]
    metrics = [metric_row("impl=a", "time", 110_000.0)]
    (found,) = analyze(tables((), kernels, ranges, metrics), {}).workloads
    (reason,) = reasons(found).values()
    assert reason.startswith("no known reason beyond this: overlap: ") and reason.endswith(part)


def test_the_smallest_and_the_largest_profiler_overhead_are_shown() -> None:
    """Less than nothing: the loop without it was held up, and shares of that case are of little use."""
    walls = {"plain": (100.0, 200.0), "nsys": (130.0, 120.0), "torch": (104.0, None)}
    rows = [
        metric_row(f"impl={case}", "loop_wall", ns, profiler=profiler)
        for profiler, each in walls.items()
        for case, ns in zip("ab", each, strict=True)
        if ns is not None
    ]
    times = [metric_row(f"impl={i}", "time", 1e5) for i in "ab"]
    (found,) = analyze(tables(metrics=[*rows, *times]), {}).workloads
    nsys, torch = agreement.overheads(found).rows
    assert [cell.value for cell in nsys[1:4]] == pytest.approx([-0.05, -0.4, 0.3])
    assert (nsys[0].text, plain(nsys[2].note), nsys[4].text) == (Code("nsys"), "(b)", "1 of 2")
    assert torch[2] == Cell(missing=MISSING) and torch[4].text == "0 of 1"


def test_a_profiler_that_makes_the_loop_many_times_as_long_is_shown_as_a_factor() -> None:
    rows = [metric_row("impl=a", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1e5), ("torch", 12e5))]
    (found,) = analyze(tables(metrics=[*rows, metric_row("impl=a", "time", 1e5)]), {}).workloads
    assert "12.0x the time" in write_table(agreement.overheads(found))
