"""How the page words the differences between profilers, from made-up ones."""

from __future__ import annotations

import pytest
from report_study import ATTENTION, kernel_row, metric_row, range_row, tables

from profpipe.analyze import analyze
from profpipe.findings import WorkloadFindings
from profpipe.page import agreement_sheets


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


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ({"a": (20.0, 20.0, 25.0)}, ""),
        (
            {"a": (100.0, 101.0, 102.0), "short": (20.0, 30.0, 25.0)},
            "Of calls with 50 us of kernels and more, within 3 % of nsys: CUDA events in 1 of 1 and torch in 1 of 1.",
        ),
        (
            {"a": (100.0, 101.0, 105.0), "b": (100.0, 90.0, 101.0)},
            "Of calls with 50 us of kernels and more, within 3 % of nsys: CUDA events in 1 of 2 and torch in 1 of 2."
            " The larger differences among them are 2, **1 without a known reason**:"
            " launch gaps 1 and **no known reason** 1.",
        ),
        (
            {"a": (100.0, 101.0, 105.0)},
            "Of calls with 50 us of kernels and more, within 3 % of nsys: CUDA events in 0 of 1 and torch in 1 of 1."
            " There is 1 larger difference among them, with a known reason: launch gaps 1.",
        ),
    ],
)
def test_the_section_begins_with_how_many_long_calls_agree(
    cases: dict[str, tuple[float, float, float]], said: str
) -> None:
    assert agreement_sheets.said(workload(**cases)) == said


def test_where_the_others_agree_with_each_other_the_reference_is_called_the_odd_one() -> None:
    rows = agreement_sheets.apart(workload(a=(100.0, 80.0, 100.0, 81.0))).rows
    assert {row[1]: row[3] for row in rows} == {
        "torch, kernels": "**no known reason**; ncu within 3 % of it, so nsys is the odd one",
        "ncu, kernels": "**no known reason**; torch within 3 % of it, so nsys is the odd one",
    }


@pytest.mark.parametrize(
    ("busy_us", "because"),
    [
        (130, "**no known reason** beyond this: overlap makes 70.0 of 90.0 us"),
        (60, "**no known reason** beyond this: overlap alone would make the call 50.0 us shorter than it is"),
    ],
)
def test_no_part_of_a_difference_is_larger_than_all_of_it(busy_us: float, because: str) -> None:
    """Of a call of 110 us, two streams with 100 us of kernels each."""
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6, stream=stream) for stream in (7, 8)]
    ranges = [range_row("impl=a", 10, wall_ns=3e6, busy_ns=1e4 * busy_us)]
    metrics = [metric_row("impl=a", "time", 110_000.0)]
    (found,) = analyze(tables((), kernels, ranges, metrics), {}).workloads
    assert [row[3] for row in agreement_sheets.apart(found).rows] == [because]


def test_a_call_that_takes_as_long_as_other_kernels_tells_nothing_of_them() -> None:
    rows = agreement_sheets.apart(workload(a=(100.0, 80.0, 81.0))).rows
    assert {row[1]: row[3] for row in rows} == dict.fromkeys(("CUDA events", "torch, kernels"), "**no known reason**")


def test_the_least_that_a_profiler_added_is_told_beside_the_most() -> None:
    """Less than nothing: the loop without it was held up, and shares of that case are of little use."""
    walls = {"plain": (100.0, 200.0), "nsys": (130.0, 120.0), "torch": (104.0, None)}
    rows = [
        metric_row(f"impl={case}", "loop_wall", ns, profiler=profiler)
        for profiler, each in walls.items()
        for case, ns in zip("ab", each, strict=True)
        if ns is not None
    ]
    (workload,) = analyze(tables(metrics=[*rows, *(metric_row(f"impl={i}", "time", 1e5) for i in "ab")]), {}).workloads
    sheet = agreement_sheets.overheads(workload)
    assert [sheet.head, *sheet.rows] == [
        ["profiler", "median", "least", "most", "cases marked profiler_overhead"],
        ["`nsys`", "-5.0 %", "-40.0 % (`b`)", "+30.0 % (`a`)", "1 of 2"],
        ["`torch`", "+4.0 %", "–", "+4.0 % (`a`)", "0 of 1"],
    ]
