"""The times of profilers compared: how far they differ, and the causes. All numbers but those of the last
test are made up.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from report_study import ADD, ATTENTION, COPY, analyze, case_row, example, kernel_row, metric_row, range_row, tables

from profpipe.analysis.findings import Agreement, Reason, WorkloadFindings
from profpipe.report.document import Cell, Code, plain
from profpipe.report.sections import agreement
from profpipe.report.sections.agreement import WORDING, describe
from profpipe.report.text import write_section, write_table
from profpipe.report.units import MISSING
from profpipe.results.schema import Tables


class Compared(NamedTuple):
    """The figure of one profiler: its difference, its causes, and whether something remains unexplained."""

    difference: float | None
    causes: tuple[str, ...] = ()
    is_unexplained: bool = False
    numbers: Mapping[str, float | str] = {}


def declared(**workload: Any) -> dict[str, Any]:
    return {"pipeline": {"workloads": {"w": workload}}}


def agreement_of(data: Tables, run: dict[str, Any] | None = None, case: str = "") -> Agreement:
    (workload,) = analyze(data, run or {}).workloads
    (found,) = [each for each in workload.agreements if not case or each.case == case]
    return found


def figures(data: Tables, run: dict[str, Any] | None = None, case: str = "") -> dict[str, Compared]:
    """The figures by profiler; ``numbers`` are those of all their reasons."""
    return {
        figure.profiler: Compared(
            None if figure.difference is None else round(figure.difference, 3),
            tuple(reason.cause for reason in figure.reasons),
            figure.is_unexplained,
            {name: n for reason in figure.reasons for name, n in reason.numbers.items()},
        )
        for figure in agreement_of(data, run, case).figures
    }


UNKNOWN = ((), True)


def verdict(found: Compared) -> tuple[tuple[str, ...], bool]:
    return found.causes, found.is_unexplained


def captured(ns: float = 100_000.0, **nsys: Any) -> list[dict[str, Any]]:
    return [kernel_row("impl=a", ATTENTION, 10, 10 * ns, **nsys)]


def test_events_a_little_above_the_kernels_are_explained_by_launch_gaps() -> None:
    data = tables(
        kernels=captured(), ranges=[range_row("impl=a", 10)], metrics=[metric_row("impl=a", "time", 106_000.0)]
    )
    gaps = pytest.approx({"ns": 6000.0, "kernels": 1.0})
    assert figures(data) == {
        "nsys": Compared(None),
        "plain": Compared(0.06, ("launch gaps",), numbers=gaps),
    }


def test_a_difference_that_nothing_explains_is_flagged() -> None:
    data = tables(
        kernels=captured(), ranges=[range_row("impl=a", 10)], metrics=[metric_row("impl=a", "time", 190_000.0)]
    )
    assert figures(data)["plain"] == Compared(0.9, is_unexplained=True)


@pytest.mark.parametrize(
    ("busy_us", "numbers", "is_explained"),
    [
        (112, {"ns": 88_000.0, "streams": 2}, True),
        (104, {"ns": 96_000.0, "streams": 2}, True),  # and 6 us are launch gaps
        (130, {"ns": 70_000.0, "of_ns": 90_000.0}, False),
        (60, {"excess_ns": 50_000.0}, False),
        (None, {}, False),
    ],
)
def test_overlapping_streams_explain_a_call_that_takes_as_long_as_some_kernel_runs(
    busy_us: float | None, numbers: dict[str, float], is_explained: bool
) -> None:
    kernels = [*captured(stream=7), kernel_row("impl=a", ADD, 10, 1e6, stream=8)]
    busy = {} if busy_us is None else {"wall_ns": 3e6, "busy_ns": 1e4 * busy_us}
    ranges = [range_row("impl=a", 10, **busy)]
    data = tables(kernels=kernels, ranges=ranges, metrics=[metric_row("impl=a", "time", 110_000.0)])
    causes = ("overlap",) if numbers else ()
    assert figures(data)["plain"] == Compared(-0.45, causes, not is_explained, pytest.approx(numbers))


def two_gpus(
    time_us: float, *, busy_us: float, waits_us: float, own_us: float | None = None, communicate: bool = True
) -> Compared:
    """The time of a call of two GPUs: 100 us of attention each, 20 us of communication at least.

    ``waits_us`` are those that GPU 1 communicates beyond that, ``busy_us`` the mean time in which some kernel runs.
    """
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6, process=pid, stream=7) for pid in (1, 2)]
    kernels += [kernel_row("impl=a", "ncclDevKernel_SendRecv", 10, 1e4 * (20 + waits), process=pid, stream=8)
                for pid, waits in ((1, 0), (2, waits_us)) if communicate]  # fmt: skip
    ranges = [range_row("impl=a", 10, process=pid, wall_ns=9e6, busy_ns=1e4 * busy_us) for pid in (1, 2)]
    metrics = [metric_row("impl=a", "time", 1e3 * time_us), metric_row("impl=a", "time_own", 1e3 * time_us)]
    metrics += [metric_row("impl=a", "time_own", 1e3 * (own_us or time_us), subject="rank 1")]
    metrics += [metric_row("impl=a", name, value, unit, profiler="nsys", subject=f"device {gpu}")
                for gpu, waits in ((0, 0), (1, waits_us)) if communicate
                for name, value, unit in (("communication_busy", 1e3 * (20 + waits), "ns"),
                                          ("communication_overlap", 0.0, "%"))]  # fmt: skip
    return figures(tables([case_row("impl=a")], kernels, ranges, metrics))["plain"]


def test_a_gpu_that_waits_for_another_makes_the_mean_of_their_kernels_longer() -> None:
    waiting = two_gpus(125, busy_us=220, waits_us=200)
    assert verdict(waiting) == (("waiting in communication",), False)
    assert waiting.numbers == {"slow": "1", "slow_ns": 220_000.0, "fast": "0", "fast_ns": 20_000.0}
    assert two_gpus(101, busy_us=200, waits_us=200).causes == ("waiting in communication", "overlap")


def test_a_wait_far_longer_than_the_difference_is_not_its_cause() -> None:
    """The call waits as well: the kernels are 20 us longer than it, and one GPU waits for 200."""
    assert verdict(two_gpus(200, busy_us=220, waits_us=200)) == UNKNOWN
    assert verdict(two_gpus(200, busy_us=210, waits_us=200)) == (("overlap",), True)


def test_a_call_is_longer_than_the_kernels_where_its_slowest_process_waited() -> None:
    slowest = two_gpus(400, busy_us=120, waits_us=0, own_us=120)
    assert verdict(slowest) == (("slowest process",), False)
    assert slowest.numbers == {"slow": "0", "slow_ns": 400_000.0, "fast": "1", "fast_ns": 120_000.0}
    assert "slowest process" not in two_gpus(400, busy_us=120, waits_us=0, own_us=200).causes


def test_the_time_of_processes_that_do_not_communicate_is_that_of_the_slowest_gpu() -> None:
    slowest = two_gpus(112, busy_us=100, waits_us=0, own_us=98, communicate=False)
    assert slowest == Compared(0.12, ("slowest process",), numbers=slowest.numbers)
    assert slowest.numbers == {"slow": "0", "slow_ns": 112_000.0, "fast": "1", "fast_ns": 98_000.0}
    other = two_gpus(112, busy_us=100, waits_us=0, own_us=104, communicate=False)
    assert "slowest process" not in other.causes, "the fastest takes longer than the kernels as well"
    other = two_gpus(500, busy_us=100, waits_us=0, own_us=99, communicate=False)
    assert "slowest process" not in other.causes, "the kernels do not take as long in the slowest process"


def test_copies_and_launch_gaps_share_the_time_of_a_call_outside_kernels() -> None:
    def reasons(copies_us: float) -> list[Reason]:
        kernels = [
            kernel_row("impl=a", ADD, 100, 1e6),
            kernel_row("impl=a", "memset", 10, 1e4 * copies_us, kind="memset"),
        ]
        metrics = [metric_row("impl=a", "time", 400_000.0)]
        found = agreement_of(tables(kernels=kernels, ranges=[range_row("impl=a", 10)], metrics=metrics))
        return list(next(figure for figure in found.figures if figure.profiler == "plain").reasons)

    gaps = Reason("launch gaps", {"ns": 30_000.0, "kernels": 10.0})
    assert reasons(270) == [Reason("copies and sets", {"ns": 270_000.0}), gaps]
    assert reasons(290) == [Reason("copies and sets", {"ns": 290_000.0})]


def test_ncu_is_compared_over_the_kernels_that_it_profiled() -> None:
    kernels = [
        *captured(),
        kernel_row("impl=a", COPY, 10, 1e6),
        kernel_row("impl=a", ATTENTION, 1, 110_000.0, profiler="ncu"),
    ]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": [["ncu", "--clock-control", "none"]]}]}
    assert figures(data, run)["ncu"] == Compared(0.1, ("cold cache",))
    assert agreement_of(data, run).figures[-1].covered == 0.5


@pytest.mark.parametrize(("counted", "compared"), [(1, False), (7, True)])
def test_one_launch_of_many_that_differ_stands_for_none_of_them(counted: int, compared: bool) -> None:
    """Guided ncu takes one: of six copies of 10 us and one of 60 us a call, the large one, whose time is nsys's."""
    copies = [60_000.0, *[10_000.0] * 6] * 10
    spread = {"stddev_ns": statistics.stdev(copies)}
    kernels = [*captured(), kernel_row("impl=a", COPY, 70, sum(copies), **spread)]
    kernels += [kernel_row("impl=a", ATTENTION, 1, 100_000.0, profiler="ncu")]
    kernels += [kernel_row("impl=a", COPY, counted, 60_000.0 if counted == 1 else 120_000.0, profiler="ncu")]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    assert figures(data)["ncu"] == Compared(0.0)
    assert agreement_of(data).figures[-1].covered == pytest.approx(1.0 if compared else 100 / 220)
    alone = [row for row in kernels if row["kernel"] == COPY]
    data = tables(kernels=alone, ranges=[range_row("impl=a", 10)], metrics=data.metrics.to_dict("records"))
    (workload,) = analyze(data, {}).workloads
    assert bool(workload.agreements) is compared


def test_more_than_a_cold_cache_can_cost_is_flagged() -> None:
    kernels = [*captured(), kernel_row("impl=a", ATTENTION, 1, 190_000.0, profiler="ncu")]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": [["ncu", "--clock-control=none"]]}]}
    assert figures(data, run)["ncu"] == Compared(0.9, is_unexplained=True)
    run["jobs"][0]["argv"] = [["ncu"]]
    assert figures(data, run)["ncu"] == Compared(0.9, ("locked clock",))


def held_back(
    ns: float,
    ncu_ns: float | None = None,
    *,
    bytes_moved: float = 1.0,
    argv: str = "--clock-control=none",
    **others: Any,
) -> Compared:
    """The figure of ncu, else of the events, for a call of 1.2 ms at 1860 MHz whose kernel takes ``ns`` under nsys."""
    clocks = {"sm_clock": 1.86e9, "sm_clock_min": 1.785e9, "sm_clock_max": 1.98e9}
    metrics = [metric_row("impl=a", name, value, "Hz") for name, value in clocks.items()]
    metrics += [
        metric_row("impl=a", name, hz, "Hz", profiler="nsys")
        for name, hz in zip(("sm_clock_min", "sm_clock", "sm_clock_max"), others.get("under_nsys", ()), strict=False)
    ]
    metrics += [metric_row("impl=a", "time", 1.2e6), metric_row("impl=a", "flops", 1e12, "flop")]
    metrics += [metric_row("impl=a", "bytes_moved", bytes_moved, "byte")]
    kernels = captured(ns)
    if ncu_ns:
        metrics += [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
        kernels += [kernel_row("impl=a", ATTENTION, 1, ncu_ns, profiler="ncu")]
    cases = [case_row("impl=a", flags=others.get("flags", ["throttled"]), params={"dtype": "bf16", "impl": "a"})]
    run = {
        "machine": {
            "gpus": [{"max_sm_clock_hz": 1_980_000_000}],
            "peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 5e12},
        },
        "jobs": [{"workload": "w", "profiler": "ncu", "argv": [["ncu", argv]]}],
    }
    found = figures(tables(cases, kernels, [range_row("impl=a", 10)], metrics), run)
    return found["ncu" if ncu_ns else "plain"]


THROTTLED = ("throttled clock", "derived clock")


def mhz(found: Compared, *names: str) -> tuple[int, ...]:
    return tuple(round(float(found.numbers[name]) / 1e6) for name in names)


def test_a_call_that_the_power_cap_slowed_is_longer_than_its_kernel_at_a_higher_clock() -> None:
    found = held_back(1_129_000.0)
    assert (found.difference, *verdict(found)) == (0.063, THROTTLED, False)
    assert (found.numbers["marks"], found.numbers["profiler"]) == ("throttled", "nsys")
    assert mhz(found, "hz", "highest_hz", "low", "high") == (1860, 1980, 1962, 1977)


@pytest.mark.parametrize(
    ("launches", "issue_ms", "explained"),
    [(1500, 5.0, True), (1500, 2.0, False), (900, 5.0, False), (1500, 30.0, False)],
)
def test_more_launches_than_can_be_queued_go_at_the_pace_of_the_host(
    launches: int, issue_ms: float, explained: bool
) -> None:
    kernels = [kernel_row("impl=a", ADD, 10 * launches, 10 * 0.1e6)]
    metrics = [metric_row("impl=a", "time", 5.1e6), metric_row("impl=a", "issue", issue_ms * 1e6)]
    data = tables([case_row("impl=a", flags=["host_bound"])], kernels, [range_row("impl=a", 10)], metrics)
    found = figures(data)["plain"]
    assert verdict(found) == ((("host-bound",), False) if explained else UNKNOWN)
    assert found.numbers == ({"issue_ns": issue_ms * 1e6, "launches": launches, "queue": 1024} if explained else {})


@pytest.mark.parametrize(
    ("issue_ms", "flags", "explained"),
    [(4.0, ["noisy"], True), (3.3, ["noisy"], False), (4.0, [], False)],
    ids=["scattered", "scattered, and far off", "not scattered"],
)
def test_a_scattered_call_may_differ_more_from_the_time_that_the_host_needs(
    issue_ms: float, flags: list[str], explained: bool
) -> None:
    metrics = [metric_row("impl=a", "time", 5.1e6), metric_row("impl=a", "issue", issue_ms * 1e6)]
    kernels = [kernel_row("impl=a", ATTENTION, 10 * 1500, 10 * 0.1e6)]
    data = tables([case_row("impl=a", flags=flags)], kernels, [range_row("impl=a", 10)], metrics)
    assert verdict(figures(data)["plain"]) == ((("host-bound",), False) if explained else UNKNOWN)


def test_a_clock_that_was_recorded_under_the_profiler_confirms_the_reason_or_refutes_it() -> None:
    # By the medians the call took 0.6 % more cycles; by the range alone the kernel's clock may have been 1962 MHz.
    found = held_back(1_129_000.0, under_nsys=(1.95e9, 1.965e9, 1.98e9))
    assert verdict(found) == (("clock",), False)
    assert mhz(found, "hz", "reference_hz") == (1860, 1965) and found.numbers["cycles"] == pytest.approx(
        0.006, abs=5e-4
    )
    found = held_back(1_129_000.0, under_nsys=(1.86e9, 1.875e9, 1.98e9))
    assert verdict(found) == (THROTTLED, False)
    assert mhz(found, "low", "high", "recorded_low", "recorded_high") == (1962, 1977, 1860, 1980)
    assert verdict(held_back(1_129_000.0, under_nsys=(1.84e9, 1.875e9, 1.89e9))) == UNKNOWN


def test_recorded_clocks_are_the_cause_also_without_a_flag() -> None:
    def slower_under_nsys(ns: float, hz: float, **others: Any) -> Compared:
        return held_back(ns, flags=[], under_nsys=(hz, hz, hz), **others)

    found = slower_under_nsys(1_250_000.0, 1.77e9)
    assert (found.difference, *verdict(found)) == (-0.04, ("clock",), False)
    assert mhz(found, "hz", "reference_hz") == (1860, 1770)
    assert verdict(slower_under_nsys(1_250_000.0, 1.83e9)) == UNKNOWN  # less than half of it
    assert verdict(slower_under_nsys(1_350_000.0, 1.77e9)) == UNKNOWN  # nor that much
    assert verdict(slower_under_nsys(1_250_000.0, 1.95e9)) == UNKNOWN  # the other way
    assert verdict(slower_under_nsys(1_250_000.0, 1.77e9, bytes_moved=5.5e9)) == UNKNOWN  # memory has its own clock


def test_equal_times_need_no_clock() -> None:
    clocks = {"flags": [], "under_nsys": (1.85e9, 1.85e9, 1.85e9)}
    assert held_back(1_200_000.0, **clocks) == Compared(0.0)
    assert held_back(1_200_000.0, 1_200_000.0, **clocks) == Compared(0.0)


def test_ncu_is_shorter_where_the_reference_ran_below_the_highest_clock() -> None:
    def under(hz: float, ncu_ns: float, **others: Any) -> Compared:
        return held_back(1_200_000.0, ncu_ns, flags=[], under_nsys=(hz, hz, hz), **others)

    found = under(1.86e9, 1_134_000.0)
    assert (found.difference, *verdict(found)) == (-0.055, ("clock below its highest",), False)
    assert mhz(found, "hz", "highest_hz") == (1860, 1980)
    assert verdict(under(1.86e9, 1_080_000.0)) == UNKNOWN  # the highest would not do
    assert verdict(under(1.95e9, 1_134_000.0)) == UNKNOWN
    assert verdict(under(1.86e9, 1_134_000.0, argv="--set=basic")) == UNKNOWN  # ncu locks a lower clock
    assert verdict(under(1.86e9, 1_134_000.0, bytes_moved=5.5e9)) == UNKNOWN


def test_a_clock_above_the_highest_of_the_gpu_is_not_a_cause() -> None:
    assert verdict(held_back(1_080_000.0)) == UNKNOWN  # it would take 2051 MHz
    assert verdict(held_back(1_300_000.0)) == UNKNOWN  # 1717 MHz, and the case never ran below 1785


def test_a_clock_is_the_cause_only_where_it_was_throttled_and_arithmetic_limits_the_call() -> None:
    assert verdict(held_back(1_129_000.0, flags=[])) == UNKNOWN
    assert verdict(held_back(1_129_000.0, bytes_moved=5.5e9)) == UNKNOWN


def test_ncu_is_shorter_where_its_kernel_ran_at_a_clock_that_the_power_cap_forbade_to_the_others() -> None:
    found = held_back(1_200_000.0, 1_134_000.0)
    assert (found.difference, *verdict(found)) == (-0.055, (*THROTTLED, "derived clock"), False)
    assert found.numbers["profiler"] == "ncu" and mhz(found, "low", "high") == (1953, 1968)
    assert verdict(held_back(1_200_000.0, 1_080_000.0)) == UNKNOWN  # 2051 MHz at least
    assert verdict(held_back(1_200_000.0, 1_134_000.0, argv="--set=basic")) == UNKNOWN  # ncu locks a lower clock


def short_and_long(short: float, long: float, slow_hz: float = 1.73e9, under_nsys: float | None = None) -> Compared:
    """ncu's figure of a kernel of 100 us, ``short`` ns under ncu, which runs 1 ms in another case: ``long`` ns.

    ``under_nsys`` is the clock in the other case, in Hz.
    """
    kernels, metrics = [], []
    if under_nsys:
        names = ("sm_clock_min", "sm_clock", "sm_clock_max")
        metrics += [metric_row("impl=b", name, under_nsys, "Hz", profiler="nsys") for name in names]
    for case, ns, seen, hz in (("impl=a", 1e5, short, slow_hz), ("impl=b", 1e6, long, 1.79e9)):
        kernels += [kernel_row(case, ATTENTION, 10, 10 * ns), kernel_row(case, ATTENTION, 1, seen, profiler="ncu")]
        metrics.append(metric_row(case, "iterations", 1, "1", profiler="ncu"))
        metrics.append(
            metric_row(case, "gpc__cycles_elapsed.avg.per_second", hz, "Hz", profiler="ncu", subject=ATTENTION)
        )
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10), range_row("impl=b", 10)], metrics=metrics)
    jobs = [{"workload": "w", "profiler": profiler, "argv": [["--clock-control=none"]]} for profiler in ("nsys", "ncu")]
    run = {"jobs": jobs, "machine": {"gpus": [{"max_sm_clock_hz": 1_980_000_000}]}}
    return figures(data, run, "impl=a")["ncu"]


def test_ncu_is_longer_where_it_counts_a_lower_clock_than_in_longer_launches_that_agree() -> None:
    found = short_and_long(103_700.0, 1_001_000.0)
    assert (found.difference, *verdict(found)) == (0.037, ("lower clock under ncu",), False)
    assert mhz(found, "hz", "longer_hz") == (1730, 1790)
    assert found.numbers["share"] == pytest.approx(0.035, abs=5e-4)
    assert verdict(short_and_long(110_000.0, 1_001_000.0)) == UNKNOWN  # the clock makes a third of it
    assert verdict(short_and_long(103_700.0, 1_100_000.0)) == UNKNOWN  # the long ones do not agree either
    assert verdict(short_and_long(103_700.0, 1_001_000.0, 1.79e9)) == UNKNOWN


def test_a_longer_launch_that_would_agree_at_the_highest_clock_gives_ncus_clock_as_well() -> None:
    """ncu's launch is the faster one, for under nsys the power cap held the clock at 1.80 of 1.98 GHz."""
    assert verdict(short_and_long(103_700.0, 920_000.0)) == UNKNOWN
    found = short_and_long(103_700.0, 920_000.0, under_nsys=1.8e9)
    assert found.causes == ("lower clock under ncu",) and mhz(found, "hz", "longer_hz") == (1730, 1790)


def test_a_first_kernel_whose_caches_the_harness_empties_is_not_slower_for_a_cold_cache() -> None:
    kernels = [*captured(), kernel_row("impl=a", ATTENTION, 1, 105_000.0, profiler="ncu")]
    data = tables(kernels=kernels, ranges=[range_row("impl=a", 10)],
                  metrics=[metric_row("impl=a", "iterations", 1, "1", profiler="ncu")])  # fmt: skip
    jobs = [{"workload": "w", "profiler": name, "argv": [["--clock-control=none"]]} for name in ("nsys", "ncu")]
    assert figures(data, {"jobs": jobs})["ncu"] == Compared(0.05, is_unexplained=True)
    of_a_command = {**declared(command=["./a.out"]), "jobs": jobs}
    cold = Compared(0.05, ("cold cache",))
    assert figures(data, of_a_command)["ncu"] == figures(data, {"jobs": jobs[1:]})["ncu"] == cold


def of_ncu(kernels: list[dict[str, Any]], calls: int, dram: float | None = None, caches: str = "none") -> Compared:
    """ncu's figure for kernels under nsys, which saw ``calls`` calls, and under ncu, for which ``caches`` is set.

    ``dram`` is the share of the memory's peak bandwidth that ncu counts in the kernel, in %.
    """
    argv = [["--clock-control=none", f"--cache-control={caches}"]]
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": argv}]}
    metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
    if dram is not None:
        name = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
        metrics.append(metric_row("impl=a", name, dram, "%", profiler="ncu", subject=ATTENTION))
    return figures(tables((), kernels, [range_row("impl=a", calls)], metrics), run)["ncu"]


def added_by_ncu(ns: float, added_ns: float, launches: int = 1) -> Compared:
    """Kernels of ``ns`` that take ``added_ns`` longer under ncu, in calls of so many launches."""
    under_ncu = kernel_row("impl=a", ATTENTION, launches, launches * (ns + added_ns), profiler="ncu")
    return of_ncu([kernel_row("impl=a", ATTENTION, 10 * launches, 10 * launches * ns), under_ncu], 10)


def test_what_ncu_adds_to_a_launch_is_a_cause_where_it_makes_half_of_the_difference() -> None:
    found = added_by_ncu(10_000.0, 1_210.0)
    assert found == Compared(0.121, ("launch under ncu",), numbers={"limit_ns": 1500.0})
    assert verdict(added_by_ncu(10_000.0, 1_210.0, launches=7)) == (("launch under ncu",), False)
    assert verdict(added_by_ncu(10_000.0, 1_790.0)) == (("launch under ncu",), False), "less than 3 % are left"
    assert verdict(added_by_ncu(10_000.0, 1_810.0)) == UNKNOWN, "more than 3 % are left"
    assert verdict(added_by_ncu(60_000.0, 2_990.0)) == (("launch under ncu",), False)
    assert verdict(added_by_ncu(60_000.0, 3_010.0)) == UNKNOWN, "less than half of it"
    assert verdict(added_by_ncu(10_000.0, -1_210.0)) == UNKNOWN, "ncu adds time"
    assert added_by_ncu(5_000.0, 290.0).causes == ("short kernels",), "a mean varies by as much"


def test_ncu_is_shorter_where_it_empties_caches_that_hold_data_to_write_back() -> None:
    kernels = [
        kernel_row("impl=a", ATTENTION, 30, 30 * 29_730.0),
        kernel_row("impl=a", ATTENTION, 1, 27_100.0, profiler="ncu"),
    ]
    found = of_ncu(kernels, 30, dram=44.0, caches="all")
    numbers = pytest.approx({"reference": "nsys", "limit_ns": 0.44 * 27_100.0}, abs=0.1)
    assert found == Compared(-0.088, ("clean cache under ncu",), numbers=numbers)
    assert verdict(of_ncu(kernels, 30, dram=9.0, caches="all")) == UNKNOWN, (
        "its traffic takes 2.4 us, and 2.6 are missing"
    )
    assert verdict(of_ncu(kernels, 30, dram=44.0)) == UNKNOWN, "ncu left the caches alone"
    assert verdict(of_ncu(kernels, 30, caches="all")) == UNKNOWN, "the traffic is not known"


def one_launch(
    ncu: list[float], nsys: tuple[float, float] = (91_200.0, 106_560.0), calls: int = 30, **other: Any
) -> Compared:
    """ncu's launches, in ns, against those of nsys, 93 us in the mean and within ``nsys``."""
    of_nsys = {"min_ns": nsys[0], "max_ns": nsys[1], "stddev_ns": 3_500.0}
    kernels = [kernel_row("impl=a", ATTENTION, calls, 93_000.0 * calls, **of_nsys)]
    ends = {"min_ns": min(ncu), "max_ns": max(ncu), "profiler": "ncu"}
    kernels.append(kernel_row("impl=a", ATTENTION, len(ncu), sum(ncu), **ends))
    for name, ns in other.items():
        spread = {"min_ns": 95_000.0, "max_ns": 110_000.0, "stddev_ns": 4_000.0}
        kernels.append(kernel_row("impl=a", name, calls, 100_000.0 * calls, **spread))
        kernels.append(kernel_row("impl=a", name, 1, ns, profiler="ncu"))
    found = of_ncu(kernels, calls)
    assert found.difference is not None and found.difference > 0.03
    return found


def test_a_single_launch_of_ncu_within_the_range_of_the_reference_is_a_cause() -> None:
    found = one_launch([98_560.0])
    assert verdict(found) == (("single launch",), False)
    assert found.numbers == {"ns": 98_560.0, "low": 91_200.0, "high": 106_560.0, "launches": 30.0, "reference": "nsys"}
    assert verdict(one_launch([99_700.0], nsys=(91_200.0, 99_600.0))) == UNKNOWN, "longer than any"
    assert verdict(one_launch([100_500.0])) == UNKNOWN, "more than two standard deviations from the mean"
    assert verdict(one_launch([98_560.0] * 2)) == UNKNOWN, "two that are both longer are no chance"
    assert verdict(one_launch([98_560.0], calls=1)) == UNKNOWN, "as many"


def test_two_kernels_that_are_both_longer_are_not_explained_by_single_launches() -> None:
    assert verdict(one_launch([98_560.0], b=107_000.0)) == UNKNOWN
    found = one_launch([99_900.0], b=99_900.0)
    assert found.causes == ("single launch",) and found.numbers["ns"] == 99_900.0, "the shorter one makes none"


def test_launches_without_a_shortest_and_longest_time_explain_nothing() -> None:
    under_ncu = kernel_row("impl=a", ATTENTION, 1, 98_560.0, profiler="ncu")
    found = of_ncu([kernel_row("impl=a", ATTENTION, 30, 2_790_000.0), under_ncu], 30)
    assert found == Compared(0.06, is_unexplained=True)


def test_short_launches_of_the_real_run_that_are_longer_than_any_under_nsys_are_explained_by_what_ncu_adds() -> None:
    data, run = example("h200-attention")
    (workload,) = analyze(data, run).workloads
    cudnn, xformers = (f"impl={impl},mode=fwd,batch=2,heads=16,seqlen=512" for impl in ("sdpa_cudnn", "xformers"))
    found = {a.case: f for a in workload.agreements for f in a.figures if f.profiler == "ncu"}
    assert {case: [each.cause for each in found[case].reasons] for case in (cudnn, xformers)} == {
        cudnn: ["launch under ncu"],
        xformers: ["launch under ncu"],
    }
    assert not any(f.is_unexplained for a in workload.agreements for f in a.figures)
    kernels = data.kernels[data.kernels["kind"] == "kernel"].set_index(["case", "profiler"])
    seen, under_nsys = kernels.loc[(cudnn, "ncu")], kernels.loc[(cudnn, "nsys")]
    assert seen["total_ns"] > under_nsys["mean_ns"] + 2 * under_nsys["stddev_ns"]
    assert kernels.loc[(xformers, "ncu"), "total_ns"] > kernels.loc[(xformers, "nsys"), "max_ns"]


def test_a_call_that_was_queued_ahead_is_not_longer_because_of_the_host() -> None:
    times = [metric_row("impl=a", "time", 190_000.0), metric_row("impl=a", "issue", 400_000.0)]
    idle = range_row("impl=a", 10, wall_ns=4e6, busy_ns=1e6)
    found = figures(tables(kernels=captured(), ranges=[idle], metrics=times[:1]))["plain"]
    assert found == Compared(0.9, ("host-bound",), numbers={"idle": 0.75})
    data = tables([case_row("impl=a", flags=["host_bound"])], captured(), [idle], times)
    assert figures(data)["plain"] == Compared(0.9, is_unexplained=True)
    data = tables([case_row("impl=a", flags=["synchronises"])], captured(), [idle], times)
    assert figures(data)["plain"] == Compared(0.9, is_unexplained=True)  # the host takes far longer than the call
    times[1] = metric_row("impl=a", "issue", 200_000.0)
    data = tables([case_row("impl=a", flags=["synchronises"])], captured(), [idle], times)
    assert figures(data)["plain"] == Compared(0.9, ("synchronisation",), numbers={"issue_ns": 200_000.0})


def test_a_difference_within_the_interval_of_the_calls_time_is_spread() -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch"}
    kernels = [kernel_row("n=1", "aten::bmm", 2, 50.0, **cpu, kernel_class="gemm")]
    wide = metric_row("n=1", "time", 100.0, ci_low=40.0, ci_high=200.0, n=9)
    for metric, cause in ((wide, "spread"), ({**wide, "ci_low": 90.0}, "between operators")):
        data = tables([case_row("n=1")], kernels, [range_row("n=1", 1, "torch")], [metric])
        assert agreement_of(data).figures[1].reasons[0].cause == cause


@pytest.mark.parametrize(
    ("mark", "ns", "explained"),
    [("clock_spread", 105_000.0, True), ("clock_spread", 115_000.0, False), ("throttled", 105_000.0, False)],
)
def test_a_difference_within_the_spread_of_the_samples_is_explained_where_the_clock_moved(
    mark: str, ns: float, explained: bool
) -> None:
    spread = [metric_row("impl=a", "time_p10", 98_000.0), metric_row("impl=a", "time_p90", 110_000.0)]
    time = metric_row("impl=a", "time", 100_000.0, ci_low=99_500.0, ci_high=100_500.0, n=83)
    rows = [case_row("impl=a", flags=[mark])]
    found = figures(tables(rows, captured(ns), [range_row("impl=a", 10)], [time, *spread]))["plain"]
    assert found.difference == round(100_000 / ns - 1, 3)
    assert verdict(found) == ((("spread",), False) if explained else UNKNOWN)
    assert found.numbers == ({"p10": 98_000.0, "p90": 110_000.0} if explained else {})


EVERY_REASON = [
    Reason("launch gaps", {"ns": 6000.0, "kernels": 3.0}),
    Reason("copies and sets", {"ns": 117_000.0}),
    Reason("host-bound", {"issue_ns": 5e6, "launches": 1500.0, "queue": 1024}),
    Reason("host-bound", {"idle": 0.75}),
    Reason("host-bound"),
    Reason("synchronisation", {"issue_ns": 2e5}),
    Reason("synchronisation"),
    Reason("between operators"),
    Reason("profiler overhead", {"profiler": "torch", "loop_ns": 2.4e6, "alone_ns": 1.1e6}),
    Reason("profiler overhead", {"profiler": "torch"}),
    Reason("overlap", {"ns": 88_000.0, "streams": 2}),
    Reason("overlap", {"ns": 70_000.0, "of_ns": 90_000.0}),
    Reason("overlap", {"excess_ns": 50_000.0}),
    Reason("waiting in communication", {"slow": "1", "slow_ns": 2.2e5, "fast": "0", "fast_ns": 2e4}),
    Reason("slowest process", {"slow": "0", "slow_ns": 4e5, "fast": "1", "fast_ns": 1.2e5}),
    Reason("clock", {"profiler": "ncu", "hz": 1.86e9, "reference": "nsys", "reference_hz": 1.965e9, "cycles": 0.006}),
    Reason("clock below its highest", {"reference": "nsys", "hz": 1.86e9, "highest_hz": 1.98e9}),
    Reason("throttled clock", {"hz": 1.86e9, "low": 1.78e9, "high": 1.98e9, "marks": "throttled", "highest_hz": 2e9}),
    Reason("derived clock", {"profiler": "nsys", "low": 1.962e9, "high": 1.977e9}),
    Reason(
        "derived clock",
        {"profiler": "nsys", "low": 1.962e9, "high": 1.977e9, "recorded_low": 1.86e9, "recorded_high": 1.98e9},
    ),
    Reason("lower clock under ncu", {"hz": 1.73e9, "longer_hz": 1.79e9, "share": 0.035}),
    Reason("launch under ncu", {"limit_ns": 1500.0}),
    Reason("locked clock"),
    Reason("cold cache"),
    Reason("clean cache under ncu", {"reference": "nsys", "limit_ns": 11_924.0}),
    Reason("spread", {"p10": 98_000.0, "p90": 110_000.0}),
    Reason("spread", {"ci_low": 99_500.0, "ci_high": 100_500.0}),
    Reason("spread"),
    Reason("short kernels", {"limit_ns": 300.0}),
    Reason("single launch", {"ns": 9856.0, "low": 9120.0, "high": 10656.0, "launches": 30.0, "reference": "nsys"}),
]


def test_every_reason_is_worded_as_in_the_golden_file(regenerate: bool) -> None:
    golden = Path(__file__).parent / "golden" / "reasons.md"
    text = "".join(f"- {plain(describe(reason))}\n" for reason in EVERY_REASON)
    if regenerate:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert {reason.cause for reason in EVERY_REASON} == WORDING.keys()


# --- the section -----------------------------------------------------------------------------------------------------


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
