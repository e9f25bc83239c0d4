"""Which case wins a shape, and which flags make that inconclusive. Numbers are made up."""

from dataclasses import replace
from typing import Any

import pytest
from program import profpipe
from report_study import analyze, case_row, kernel_row, metric_row, tables

from profpipe.analysis.case_results import judge_win
from profpipe.analysis.findings import Doubt, DoubtCause, Nodes, NodeSpread

Rows = list[dict[str, Any]]


def case(impl, ns, ci=1.0, flags="", rank=None, **more):
    """Return the rows of a case of ``ns``, whose interval is ``ci`` either way, with more metrics, also of rank 1."""
    id, interval = f"impl={impl}", {} if ci is None else {"ci_low": ns - ci, "ci_high": ns + ci}
    own = [metric_row(id, "time", ns, **interval), *(metric_row(id, name, value) for name, value in more.items())]
    own += [metric_row(id, name, value, subject="rank 1") for name, value in (rank or {}).items()]
    return [case_row(id, flags=flags.split())], own


def judged(*own, kernels=None, **run):
    rows, metrics = ([row for one in part for row in one] for part in zip(*own, strict=True))
    (workload,) = analyze(tables(rows, kernels or [], metrics=metrics), run).workloads
    (shape,) = workload.shapes
    assert shape.win is not None
    return shape.win, workload.cases


def flagged(impl, *flags):
    return (Doubt(DoubtCause.FLAGGED, (impl,), flags),)


def clocks(a, b, *hz):
    return (Doubt(DoubtCause.CLOCKS, (a, b), clocks_hz=hz),)


A, B = case("a", 100), case("b", 150)
#: The fastest at 1.9 GHz.
FAST = case("a", 100, sm_clock=1.9e9)
HARMLESS = ("host_bound", "too_few_samples", "synchronises", "unchecked", "profiler_overhead", "noisy")
HARMFUL = ("other_process", "waited", "above_peak", "throttled", "clock_spread")
MOVED = {"sm_clock": 1.7e9, "sm_clock_min": 1.1e9, "sm_clock_max": 1.9e9}

#: What holds, the cases, and the doubts; a win without a doubt is clear.
WINS: list[tuple[str, tuple[tuple[Rows, Rows], ...], tuple[Doubt, ...]]] = [
    *((f"{flag} has no effect on the lead", (case("a", 100, flags=flag), case("b", 150, flags=flag)), ())
      for flag in HARMLESS),
    *((f"{flag} may explain the lead", (case("a", 100, flags=flag), B), flagged("a", flag)) for flag in HARMFUL),
    *((f"{flag} during the second case", (A, case("b", 150, flags=flag)), flagged("b", flag))
      for flag in ("other_process", "waited")),
    ("the second case is above the peak", (A, case("b", 150, flags="above_peak")), ()),
    ("the lead is larger than the difference of the clocks",
     (case("a", 100, flags="throttled", sm_clock=1.9e9), case("b", 150, flags="throttled", sm_clock=1.7e9)), ()),
    ("the lead is smaller than the difference of the clocks",
     (FAST, case("b", 150, flags="throttled", sm_clock=1.2e9)), flagged("b", "throttled")),
    ("a case that waited may be the fastest",
     (A, B, case("c", 900, 10, loop_wall=150.0, rank={"time_own": 100.0})),
     (Doubt(DoubtCause.MAY_BE_FASTER, ("c",)),)),
    ("the loop of a case that waited is far longer",
     (A, B, case("c", 900, 10, loop_wall=250.0, rank={"time_own": 100.0})), ()),
    # A case of some milliseconds may be over before NVML is read: sage2 at 1939 MHz and cuDNN at 1711 on an H200.
    ("clocks differ without a flag", (case("a", 100, sm_clock=1.939e9), case("b", 150, sm_clock=0.9e9)),
     clocks("a", "b", 1.939e9, 0.9e9)),
    ("clocks differ by less than the lead", (case("a", 100, sm_clock=1.939e9), case("b", 150, sm_clock=1.711e9)), ()),
    ("the fastest had the lower clock", (case("a", 100, sm_clock=0.9e9), case("b", 150, sm_clock=1.939e9)), ()),
    ("of several GPUs the slowest clock counts",
     (case("a", 100, sm_clock=1.939e9), case("b", 150, sm_clock=1.939e9, rank={"sm_clock": 0.9e9})),
     clocks("a", "b", 1.939e9, 0.9e9)),
    ("both cases ran at the same slowest clock",
     (case("a", 100, sm_clock=1.939e9, rank={"sm_clock": 0.9e9}),
      case("b", 150, sm_clock=1.939e9, rank={"sm_clock": 0.9e9})), ()),
    ("the range of the clocks counts where they moved",
     (case("a", 100, flags="clock_spread", **MOVED), case("b", 150, **MOVED)), flagged("a", "clock_spread")),
    ("a case behind the second has a wide interval that does not reach the best", (FAST, B, case("c", 200, 40)), ()),
    ("a case behind the second may be the fastest at the same clock",
     (FAST, B, case("c", 160, flags="throttled", sm_clock=1.1e9)), flagged("c", "throttled")),
    ("a case behind the second had another clock without a flag", (FAST, B, case("c", 160, sm_clock=1.1e9)),
     clocks("a", "c", 1.9e9, 1.1e9)),
    ("a case behind the second is far behind", (FAST, B, case("c", 190, flags="throttled", sm_clock=1.1e9)), ()),
    ("the clock of a case behind the second is not known", (FAST, B, case("c", 190, flags="throttled")), ()),
    ("a case behind the second ran beside another process", (A, B, case("c", 160, flags="shared_host")),
     flagged("c", "shared_host")),
    ("a noisy time has no interval", (case("a", 1, None, "noisy"), case("b", 9, None)),
     (Doubt(DoubtCause.NO_INTERVAL, ("a",), ("noisy",)),)),
    ("a noisy winner of too few samples has an interval", (case("a", 100, flags="noisy too_few_samples"), B),
     flagged("a", "noisy", "too_few_samples")),
    ("a noisy second case of too few samples has an interval", (A, case("b", 150, flags="noisy too_few_samples")),
     flagged("b", "noisy", "too_few_samples")),
]  # fmt: skip


@pytest.mark.parametrize(("cases", "doubts"), [each[1:] for each in WINS], ids=[each[0] for each in WINS])
def test_a_lead_is_a_win_unless_something_else_may_have_made_it(cases, doubts):
    win, _ = judged(*cases)
    assert (win.verdict, win.doubts) == ("inconclusive" if doubts else "clear", doubts)


def test_fewer_samples_than_requested_count_as_the_flag():
    requested = {"workloads": {"w": {"repeats": 31}}}
    assert judged(case("a", 100, 10, "noisy"), B, pipeline=requested)[0].verdict == "inconclusive"


def test_overlapping_intervals_are_a_tie_at_any_clock_also_with_a_case_behind_the_second():
    """varlen [1633.1, 1638.8] us came third behind [1633.7, 1635.3] and [1635.5, 1639.7] on an H200."""
    win, _ = judged(
        case("a", 100, 2, "throttled"), case("b", 100, 2, "throttled clock_spread"), case("c", 200, 110), case("d", 150)
    )
    assert (win.verdict, win.doubts, [tied.variant for tied in win.tied]) == ("tie", (), ["a", "b", "c"])


def test_a_time_with_another_process_takes_no_part_in_a_tie():
    flags = ("", "", "other_process", "waited")
    a, b, c, waited = (case(impl, 100, 2, flag) for impl, flag in zip("abcc", flags, strict=True))
    assert judged(a, c)[0].verdict == judged(a, waited)[0].verdict == "inconclusive"
    assert [tied.variant for tied in judged(a, b, c)[0].tied] == ["a", "b"]


def test_a_case_with_the_wrong_kernels_takes_no_part_in_a_tie():
    own = {"kernel_class": "attention", "kernel_family": "fa2"}
    kernels = [kernel_row("impl=c", "flash::flash_fwd_kernel<64>", 1, 5.0) | own]
    cases = (case(impl, 100, 2) for impl in "abc")
    win, _ = judged(*cases, kernels=kernels, expects={"w": {"impl=c": "cudnn"}})
    assert [tied.variant for tied in win.tied] == ["a", "b"]


@pytest.mark.parametrize(("ratio", "is_doubted"), [(0.5, False), (0.7, True)])
def test_a_case_behind_the_second_counts_on_another_node(ratio, is_doubted):
    _, cases = judged(A, B, case("c", 160))
    spread = NodeSpread("impl=a", ratio, 2)
    nodes = Nodes({"impl=a": ("node1",), "impl=b": ("node1",), "impl=c": ("node2",)}, spread=spread)
    found = judge_win((*cases[:2], replace(cases[2], flags=())), {}, nodes=nodes)
    assert found and found.doubts == (Doubt(DoubtCause.NODE_SPREAD, ("a", "c"), spread=spread),) * is_doubted


ALGORITHMS = """
import numpy, time, torch
def build(params):
    if params["algo"] == "numpy":
        return lambda: time.sleep(0.002)
    matrix = torch.ones(64, 64)
    return lambda: (time.sleep(0.04), matrix @ matrix)
"""


@pytest.mark.slow
@pytest.mark.parametrize("profilers", ["plain", "plain,torch"])
def test_a_case_without_operators_is_the_fastest_whichever_profilers_run(tmp_path, profilers):
    (tmp_path / "algorithms.py").write_text(ALGORITHMS)
    matrix = "{script: algorithms, matrix: {algo: [numpy, torch]}, baseline: {algo: torch}}"
    (tmp_path / "pipeline.yaml").write_text(f"version: 1\nworkloads:\n  both: {matrix}\n")
    printed = profpipe(tmp_path, "run", "-p", profilers, "--set", "timing.budget_s=0.6")
    assert "algo=numpy is fastest" in " ".join(printed.split())
