"""The times of profilers compared: how far they differ, and the causes. All numbers but a real run's are made up.

golden/differences.md says of each study by how much each profiler differs, and why.
"""

import statistics
from typing import Any

import pytest
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    analyze,
    case_row,
    check_golden,
    example,
    kernel_row,
    metric_row,
    range_row,
    tables,
)

from profpipe.report.document import Code, TableCell, plain
from profpipe.report.sections import agreement
from profpipe.report.sections.agreement import WORDING, describe
from profpipe.report.text import write_section, write_table
from profpipe.report.units import MISSING, signed_percent


def only(data, run=None):
    (workload,) = analyze(data, run or {}).workloads
    return workload


def called(kernels, *metrics, flags="", **calls):
    """Ten calls of a case with these kernels."""
    cases = [case_row("impl=a", flags=flags.split())]
    return only(tables(cases, kernels, [range_row("impl=a", 10, **calls)], metrics))


def time(us):
    return metric_row("impl=a", "time", 1e3 * us)


def issue(us):
    return metric_row("impl=a", "issue", 1e3 * us)


def captured(ns=100000.0, **nsys):
    return [kernel_row("impl=a", ATTENTION, 10, 10 * ns, **nsys)]


def two_streams(busy_us):
    """Of a call of 110 us, two streams with 100 us of kernels each."""
    busy = {} if busy_us is None else {"wall_ns": 3e6, "busy_ns": 1e4 * busy_us}
    return called([*captured(stream=7), kernel_row("impl=a", ADD, 10, 1e6, stream=8)], time(110), **busy)


def two_gpus(time_us, *, busy_us, waits_us, own_us=None, communicate=True):
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
    return only(tables([case_row("impl=a")], kernels, ranges, metrics))


def beside_copies(us):
    """Ten launches of 100 us together in a call of 400, beside a memset."""
    memset = kernel_row("impl=a", "memset", 10, 1e4 * us, kind="memset")
    return called([kernel_row("impl=a", ADD, 100, 1e6), memset], time(400))


def one_of_many(counted, is_alone=False):
    """Guided ncu takes one: of six copies of 10 us and one of 60 us a call, the large one, whose time is nsys's."""
    copies = [60_000.0, *[10_000.0] * 6] * 10
    kernels = [kernel_row("impl=a", COPY, 70, sum(copies), stddev_ns=statistics.stdev(copies))]
    kernels += [kernel_row("impl=a", COPY, counted, 60_000.0 if counted == 1 else 120_000.0, profiler="ncu")]
    if not is_alone:
        kernels += [*captured(), kernel_row("impl=a", ATTENTION, 1, 100_000.0, profiler="ncu")]
    return called(kernels, metric_row("impl=a", "iterations", 1, "1", profiler="ncu"))


def held_back(ns, ncu_ns=None, *, bytes_moved=1.0, argv="--clock-control=none", **others):
    """A call of 1.2 ms at 1860 MHz whose kernel takes ``ns`` under nsys."""
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
    return only(tables(cases, kernels, [range_row("impl=a", 10)], metrics), run)


def queued(launches, issue_ms, flags="host_bound"):
    """Launches of 100 us together in a call of 5.1 ms."""
    return called([kernel_row("impl=a", ADD, 10 * launches, 1e6)], time(5100), issue(1e3 * issue_ms), flags=flags)


def short_and_long(short, long, slow_hz=1730000000.0, under_nsys=None):
    """A kernel of 100 us, ``short`` ns under ncu, which runs 1 ms in another case: ``long`` ns.

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
    return only(data, run)


def first_kernel(*jobs, argv="--clock-control=none", ns=105000.0, **workload):
    """A kernel of 100 us that takes ``ns`` under ncu."""
    kernels = [*captured(), kernel_row("impl=a", ATTENTION, 1, ns, profiler="ncu")]
    metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
    run: dict[str, Any] = {"jobs": [{"workload": "w", "profiler": name, "argv": [argv.split()]} for name in jobs]}
    run |= {"pipeline": {"workloads": {"w": workload}}} if workload else {}
    return only(tables((), kernels, [range_row("impl=a", 10)], metrics), run)


def half_seen():
    """ncu profiled one of two kernels."""
    kernels = [*captured(), kernel_row("impl=a", COPY, 10, 1e6)]
    kernels.append(kernel_row("impl=a", ATTENTION, 1, 110_000.0, profiler="ncu"))
    return of_ncu(kernels, 10)


def of_ncu(kernels, calls, dram=None, caches="none"):
    """Kernels under nsys, which saw ``calls`` calls, and under ncu, for which ``caches`` is set.

    ``dram`` is the share of the memory's peak bandwidth that ncu counts in the kernel, in %.
    """
    argv = [["--clock-control=none", f"--cache-control={caches}"]]
    run = {"jobs": [{"workload": "w", "profiler": "ncu", "argv": argv}]}
    metrics = [metric_row("impl=a", "iterations", 1, "1", profiler="ncu")]
    if dram is not None:
        name = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
        metrics.append(metric_row("impl=a", name, dram, "%", profiler="ncu", subject=ATTENTION))
    return only(tables((), kernels, [range_row("impl=a", calls)], metrics), run)


def added_by_ncu(ns, added_ns, launches=1):
    """Kernels of ``ns`` that take ``added_ns`` longer under ncu, in calls of so many launches."""
    under_ncu = kernel_row("impl=a", ATTENTION, launches, launches * (ns + added_ns), profiler="ncu")
    return of_ncu([kernel_row("impl=a", ATTENTION, 10 * launches, 10 * launches * ns), under_ncu], 10)


def one_launch(ncu, nsys=(91200.0, 106560.0), calls=30, **other):
    """ncu's launches, in ns, against those of nsys, 93 us in the mean and within ``nsys``."""
    of_nsys = {"min_ns": nsys[0], "max_ns": nsys[1], "stddev_ns": 3_500.0}
    kernels = [kernel_row("impl=a", ATTENTION, calls, 93_000.0 * calls, **of_nsys)]
    ends = {"min_ns": min(ncu), "max_ns": max(ncu), "profiler": "ncu"}
    kernels.append(kernel_row("impl=a", ATTENTION, len(ncu), sum(ncu), **ends))
    for name, ns in other.items():
        spread = {"min_ns": 95_000.0, "max_ns": 110_000.0, "stddev_ns": 4_000.0}
        kernels.append(kernel_row("impl=a", name, calls, 100_000.0 * calls, **spread))
        kernels.append(kernel_row("impl=a", name, 1, ns, profiler="ncu"))
    return of_ncu(kernels, calls)


def to_write_back(**ncu):
    """ncu is 2.6 us shorter. 44 % of the traffic take more than that."""
    kernels = [
        kernel_row("impl=a", ATTENTION, 30, 30 * 29_730.0),
        kernel_row("impl=a", ATTENTION, 1, 27_100.0, profiler="ncu"),
    ]
    return of_ncu(kernels, 30, **ncu)


def operators(**interval):
    cpu = {"kind": "cpu_op", "profiler": "torch", "kernel_class": "gemm"}
    kernels = [kernel_row("n=1", "aten::bmm", 2, 50.0, **cpu)]
    call = metric_row("n=1", "time", 100.0, **{"ci_low": 40.0, "ci_high": 200.0, "n": 9, **interval})
    return only(tables([case_row("n=1")], kernels, [range_row("n=1", 1, "torch")], [call]))


def moved(mark, ns):
    """A call of 100 us whose samples lie between 98 and 110."""
    spread = [metric_row("impl=a", "time_p10", 98_000.0), metric_row("impl=a", "time_p90", 110_000.0)]
    call = metric_row("impl=a", "time", 100_000.0, ci_low=99_500.0, ci_high=100_500.0, n=83)
    return called(captured(ns), call, *spread, flags=mark)


def under_nsys(hz, ns=1250000.0, **others):
    return held_back(ns, flags=[], under_nsys=(hz, hz, hz), **others)


def below_highest(hz, ncu_ns, **others):
    return held_back(1_200_000.0, ncu_ns, flags=[], under_nsys=(hz, hz, hz), **others)


#: A call that memory limits, because it copies much. The memory has another clock.
MEMORY: dict[str, Any] = {"bytes_moved": 5.5e9}
LOCKED: dict[str, Any] = {"argv": "--set=basic"}
IDLE: dict[str, Any] = {"wall_ns": 4e6, "busy_ns": 1e6}


def studies():
    yield "The time of a call", {
        "6 us more than the kernel": called(captured(), time(106)), "90 us more": called(captured(), time(190)),
        "within the interval": operators(), "outside": operators(ci_low=90.0),
        "within the spread of a clock that moved": moved("clock_spread", 105_000.0),
        "beyond it": moved("clock_spread", 115_000.0), "of a clock that did not": moved("throttled", 105_000.0),
        "copies of 270 of 300 us": beside_copies(270), "of 290": beside_copies(290),
    }  # fmt: skip
    yield (
        "Two streams of 100 us in a call of 110",
        {f"some kernel runs for {us} us": two_streams(us) for us in (112, 104, 130, 60, None)},
    )
    yield "Two GPUs that communicate", {
        "one waits 200 us": two_gpus(125, busy_us=220, waits_us=200),
        "and its streams overlap": two_gpus(101, busy_us=200, waits_us=200),
        "the call waits as well": two_gpus(200, busy_us=220, waits_us=200),
        "and its streams overlap a little": two_gpus(200, busy_us=210, waits_us=200),
        "the slowest process waited": two_gpus(400, busy_us=120, waits_us=0, own_us=120),
        "it is not far slower than the other": two_gpus(400, busy_us=120, waits_us=0, own_us=200),
    }  # fmt: skip
    yield "Two GPUs that do not", {
        "the slowest of them": two_gpus(112, busy_us=100, waits_us=0, own_us=98, communicate=False),
        "the fastest takes longer than the kernels as well":
            two_gpus(112, busy_us=100, waits_us=0, own_us=104, communicate=False),
        "the kernels do not take as long in the slowest process":
            two_gpus(500, busy_us=100, waits_us=0, own_us=99, communicate=False),
    }  # fmt: skip
    yield "A host that issues launches", {
        "more than can be queued": queued(1500, 5.0), "and is faster than the call": queued(1500, 2.0),
        "fewer than can be queued": queued(900, 5.0), "and takes far longer than the call": queued(1500, 30.0),
        "in scattered calls": queued(1500, 4.0, "noisy"), "far off": queued(1500, 3.3, "noisy"),
        "in others": queued(1500, 4.0, ""), "in an idle range": called(captured(), time(190), **IDLE),
        "ahead": called(captured(), time(190), issue(400), flags="host_bound", **IDLE),
        "far longer than a call that waits": called(captured(), time(190), issue(400), flags="synchronises", **IDLE),
        "as long as a call that waits": called(captured(), time(190), issue(200), flags="synchronises", **IDLE),
    }  # fmt: skip
    capped = held_back(1_129_000.0)
    yield "A call that the power cap slowed", {
        "its kernel ran at a higher clock": capped,
        "by the recorded medians": held_back(1_129_000.0, under_nsys=(1.95e9, 1.965e9, 1.98e9)),
        "by their range alone": held_back(1_129_000.0, under_nsys=(1.86e9, 1.875e9, 1.98e9)),
        "the recorded clock was lower": held_back(1_129_000.0, under_nsys=(1.84e9, 1.875e9, 1.89e9)),
        "it would take 2051 MHz": held_back(1_080_000.0),
        "1717 MHz, and the case never ran below 1785": held_back(1_300_000.0),
        "without the flag": held_back(1_129_000.0, flags=[]), "limited by memory": held_back(1_129_000.0, **MEMORY),
        "ncu's kernel ran at a clock that the cap forbade": held_back(1_200_000.0, 1_134_000.0),
        "2051 MHz at least": held_back(1_200_000.0, 1_080_000.0),
        "ncu locks a lower clock": held_back(1_200_000.0, 1_134_000.0, **LOCKED),
    }  # fmt: skip
    yield "A lower clock under nsys", {
        "1770 MHz": under_nsys(1.77e9), "less than half of it": under_nsys(1.83e9),
        "nor that much": under_nsys(1.77e9, 1_350_000.0), "the other way": under_nsys(1.95e9),
        "limited by memory": under_nsys(1.77e9, **MEMORY),
        "the same time": under_nsys(1.85e9, 1_200_000.0),
        "the same time under ncu": under_nsys(1.85e9, 1_200_000.0, ncu_ns=1_200_000.0),
    }  # fmt: skip
    yield "ncu is shorter where the reference ran below the highest clock", {
        "1860 MHz": below_highest(1.86e9, 1_134_000.0), "the highest would not do": below_highest(1.86e9, 1_080_000.0),
        "1950 MHz": below_highest(1.95e9, 1_134_000.0),
        "ncu locks a lower clock": below_highest(1.86e9, 1_134_000.0, **LOCKED),
        "limited by memory": below_highest(1.86e9, 1_134_000.0, **MEMORY),
    }  # fmt: skip
    yield "ncu counts a lower clock than in longer launches", {
        "that agree": short_and_long(103_700.0, 1_001_000.0),
        "the clock makes a third of it": short_and_long(110_000.0, 1_001_000.0),
        "that do not agree": short_and_long(103_700.0, 1_100_000.0),
        "it does not": short_and_long(103_700.0, 1_001_000.0, 1.79e9),
        # ncu's launch is the faster one, for under nsys the power cap held the clock at 1.80 of 1.98 GHz.
        "that are shorter": short_and_long(103_700.0, 920_000.0),
        "that would agree at the highest clock": short_and_long(103_700.0, 920_000.0, under_nsys=1.8e9),
    }  # fmt: skip
    yield "ncu and its caches", {
        "it profiled one of two kernels": half_seen(), "it is far longer": first_kernel("ncu", ns=190_000.0),
        "and locks the clock": first_kernel("ncu", ns=190_000.0, argv="ncu"),
        "the harness empties the caches for both": first_kernel("nsys", "ncu"),
        "a command empties none": first_kernel("nsys", "ncu", command=["./a.out"]),
        "ncu alone empties them": first_kernel("ncu"),
        "data to write back": to_write_back(dram=44.0, caches="all"),
        "its traffic takes 2.4 us": to_write_back(dram=9.0, caches="all"),
        "ncu left the caches alone": to_write_back(dram=44.0), "unknown traffic": to_write_back(caches="all"),
    }  # fmt: skip
    yield (
        "One launch of many that differ",
        {
            "stands for none": one_of_many(1),
            "all do": one_of_many(7),
            "alone": one_of_many(1, is_alone=True),
            "all alone": one_of_many(7, is_alone=True),
        },
    )
    yield "What ncu adds to a launch", {
        f"{added} ns to {launches} of {ns:.0f}": added_by_ncu(ns, added, launches)
        for ns, added, launches in (
            (1e4, 1210, 1), (1e4, 1210, 7), (1e4, 1790, 1), (1e4, 1810, 1), (6e4, 2990, 1), (6e4, 3010, 1),
            (1e4, -1210, 1), (5e3, 290, 1),
        )
    }  # fmt: skip
    unknown_ends = [kernel_row("impl=a", ATTENTION, 30, 2_790_000.0)]
    unknown_ends.append(kernel_row("impl=a", ATTENTION, 1, 98_560.0, profiler="ncu"))
    yield "A single launch of ncu", {
        "within the range of the reference": one_launch([98_560.0]),
        "longer than any": one_launch([99_700.0], nsys=(91_200.0, 99_600.0)),
        "more than two standard deviations from the mean": one_launch([100_500.0]),
        "two that are both longer are no chance": one_launch([98_560.0] * 2),
        "as many under either": one_launch([98_560.0], calls=1),
        "beside another kernel that is longer": one_launch([98_560.0], b=107_000.0),
        "beside a shorter one": one_launch([99_900.0], b=99_900.0),
        "a reference without a shortest and longest time": of_ncu(unknown_ends, 30),
    }  # fmt: skip
    yield (
        "Profilers that agree with each other",
        {
            "the reference is the outlier": workload(a=(100.0, 80.0, 100.0, 81.0)),
            "a call that takes as long makes none": workload(a=(100.0, 80.0, 81.0)),
        },
    )


def said(workload):
    """Return by how much each profiler differs from the reference, and why."""
    rows = [(plain(row[1].text), row[2].value, plain(row[3].text)) for row in agreement.differences(workload).rows]
    causes = [f"{who} {'' if by is None else signed_percent(by)}: {why}" for who, by, why in rows]
    covered = [figure.covered for times in workload.agreements.values() for figure in times]
    return " | ".join(causes) or (f"within 3 %, of {min(covered):.0%} of the time" if covered else "not compared")


def test_each_difference_has_its_reasons_as_in_the_golden_file(regenerate):
    parts = [
        "\n".join([f"# {name}", "", *(f"- {which}: {said(workload)}" for which, workload in variants.items())])
        for name, variants in studies()
    ]
    check_golden("differences.md", "\n\n".join(parts) + "\n", regenerate)


def test_short_launches_of_the_real_run_that_are_longer_than_any_under_nsys_are_explained_by_what_ncu_adds():
    data, run = example("h200-attention")
    (workload,) = analyze(data, run).workloads
    cudnn, xformers = (f"impl={impl},mode=fwd,batch=2,heads=16,seqlen=512" for impl in ("sdpa_cudnn", "xformers"))
    found = {case: f for case, times in workload.agreements.items() for f in times if f.profiler == "ncu"}
    assert {case: [cause for cause, _ in found[case].explanations] for case in (cudnn, xformers)} == {
        cudnn: ["launch under ncu"],
        xformers: ["launch under ncu"],
    }
    assert not any(f.is_unexplained for times in workload.agreements.values() for f in times)
    kernels = data.kernels[data.kernels["kind"] == "kernel"].set_index(["case", "profiler"])
    seen, under_nsys = kernels.loc[(cudnn, "ncu")], kernels.loc[(cudnn, "nsys")]
    assert seen["total_ns"] > under_nsys["mean_ns"] + 2 * under_nsys["stddev_ns"]
    assert kernels.loc[(xformers, "ncu"), "total_ns"] > kernels.loc[(xformers, "nsys"), "max_ns"]


EVERY_REASON = [
    ("launch gaps", {"ns": 6000.0, "kernels": 3.0}),
    ("copies and sets", {"ns": 117_000.0}),
    ("host-bound", {"issue_ns": 5e6, "launches": 1500.0, "queue": 1024}),
    ("host-bound", {"idle": 0.75}),
    ("host-bound", {}),
    ("synchronisation", {"issue_ns": 2e5}),
    ("synchronisation", {}),
    ("between operators", {}),
    ("profiler overhead", {"profiler": "torch", "loop_ns": 2.4e6, "alone_ns": 1.1e6}),
    ("profiler overhead", {"profiler": "torch"}),
    ("overlap", {"ns": 88_000.0, "streams": 2}),
    ("overlap", {"ns": 70_000.0, "of_ns": 90_000.0}),
    ("overlap", {"excess_ns": 50_000.0}),
    ("waiting in communication", {"slow": "1", "slow_ns": 2.2e5, "fast": "0", "fast_ns": 2e4}),
    ("slowest process", {"slow": "0", "slow_ns": 4e5, "fast": "1", "fast_ns": 1.2e5}),
    ("clock", {"profiler": "ncu", "hz": 1.86e9, "reference": "nsys", "reference_hz": 1.965e9, "cycles": 0.006}),
    ("clock below its highest", {"reference": "nsys", "hz": 1.86e9, "highest_hz": 1.98e9}),
    ("throttled clock", {"hz": 1.86e9, "low": 1.78e9, "high": 1.98e9, "marks": "throttled", "highest_hz": 2e9}),
    ("derived clock", {"profiler": "nsys", "low": 1.962e9, "high": 1.977e9}),
    (
        "derived clock",
        {"profiler": "nsys", "low": 1.962e9, "high": 1.977e9, "recorded_low": 1.86e9, "recorded_high": 1.98e9},
    ),
    ("lower clock under ncu", {"hz": 1.73e9, "longer_hz": 1.79e9, "share": 0.035}),
    ("launch under ncu", {"limit_ns": 1500.0}),
    ("locked clock", {}),
    ("cold cache", {}),
    ("clean cache under ncu", {"reference": "nsys", "limit_ns": 11_924.0}),
    ("spread", {"p10": 98_000.0, "p90": 110_000.0}),
    ("spread", {"ci_low": 99_500.0, "ci_high": 100_500.0}),
    ("spread", {}),
    ("short kernels", {"limit_ns": 300.0}),
    ("single launch", {"ns": 9856.0, "low": 9120.0, "high": 10656.0, "launches": 30.0, "reference": "nsys"}),
]


def test_every_reason_is_worded_as_in_the_golden_file(regenerate):
    check_golden("reasons.md", "".join(f"- {plain(describe(*reason))}\n" for reason in EVERY_REASON), regenerate)
    assert {cause for cause, _ in EVERY_REASON} == WORDING.keys()


# --- the section -----------------------------------------------------------------------------------------------------


def workload(**cases):
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


def test_the_section_reads_as_in_the_golden_file(regenerate):
    check_golden("agreement.txt", write_section(agreement.agreement(workload(**EVERYTHING))) + "\n", regenerate)


def test_one_profiler_alone_makes_no_section():
    (found,) = analyze(tables((), [kernel_row("impl=a", ATTENTION, 1, 5.0)], [range_row("impl=a", 1)]), {}).workloads
    assert not agreement.agreement(found)


def test_the_smallest_and_the_largest_profiler_overhead_are_shown():
    """No profiler adds less than nothing: the loop without it was held up."""
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
    assert [cell.value or cell.text for cell in nsys[1:4]] == ["none", "none", pytest.approx(0.3)]
    assert (nsys[0].text, plain(nsys[2].note), nsys[4].text) == (Code("nsys"), "(b)", "1 of 2")
    assert torch[2] == TableCell(missing=MISSING) and torch[4].text == "0 of 1"


def test_a_profiler_that_makes_the_loop_many_times_as_long_is_shown_as_a_factor():
    rows = [metric_row("impl=a", "loop_wall", ns, profiler=p) for p, ns in (("plain", 1e5), ("torch", 12e5))]
    (found,) = analyze(tables(metrics=[*rows, metric_row("impl=a", "time", 1e5)]), {}).workloads
    assert "12.0x the time" in write_table(agreement.overheads(found))


@pytest.mark.parametrize(("calls", "number"), [(100, 1), (90, 0)])
def test_a_program_that_launches_less_under_a_profiler_is_not_compared_by_its_time(calls, number):
    """As a benchmark does that runs for a time: its whole recordings hold other work."""
    rows = [kernel_row("", "k", n, 1e6 * n, profiler=name) for name, n in (("nsys", 100), ("torch", calls))]
    run = {"name": "w", "pipeline": {"workloads": {"w": {"command": ["./bench"]}}}}
    assert len(only(tables(kernels=rows), run).agreements) == number
