"""What the page says of the marks that profpipe sets."""

from __future__ import annotations

from typing import Any

import pytest
from report_study import case_row, example, metric_row, tables

from profpipe.analyze import analyze
from profpipe.page import marks


def said_of(mark: str) -> list[str]:
    data = tables([case_row("impl=a", flags=[mark])], metrics=[metric_row("impl=a", "time", 1000.0)])
    (workload,) = analyze(data, {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}}}}}).workloads
    return marks.explained(workload)


def test_a_call_that_has_no_graph_is_not_said_to_be_marked_by_its_workload() -> None:
    (said,) = said_of("not_captured")
    assert said.startswith("**not_captured** (every case): the call could not be captured into a CUDA graph")
    assert said_of("own_mark") == ["**own_mark** (every case): set by the workload."]


def throttled(run: dict[str, Any], **clocks: tuple[float, float]) -> str:
    """What is said of cases with these median and lowest SM clocks, in MHz; the last one carries no mark."""
    *marked, _ = clocks
    cases = [case_row(f"impl={impl}", flags=["throttled"] if impl in marked else []) for impl in clocks]
    rows = [metric_row(f"impl={impl}", "time", 1000.0) for impl in clocks]
    rows += [metric_row(f"impl={impl}", name, mhz * 1e6, "Hz") for impl, own in clocks.items()
             for name, mhz in zip(("sm_clock", "sm_clock_min"), own, strict=True)]  # fmt: skip
    (workload,) = analyze(tables(cases, metrics=rows), run).workloads
    (said,) = marks.explained(workload)
    return said


def test_throttled_says_to_which_clocks_and_what_they_mean_for_a_lead() -> None:
    h200, l4 = ({"name": name, "max_sm_clock_hz": hz} for name, hz in (("H200", 1980e6), ("L4", 2040e6)))
    ran = [{"workload": "w", "profiler": "plain", "devices": [{"device": "H200"}]}]
    said = throttled({"machine": {"gpus": [h200]}}, a=(1845, 1695), b=(1980, 1938), c=(1500, 1400))
    assert said == (
        "**throttled** (2 of 3 cases): the GPU ran below its highest clock while this was measured (at 1845 to "
        "1980 of 1980 MHz in the median, 1695 at the lowest): held down by power or heat, or not yet back from it. A "
        "lead that the clocks of the two cases could explain is not called a win; a winner that ran at the lower clock "
        "would lead by as much or more at the other's, not by less."
    )
    one = {"a": (1845, 1845), "b": (1980, 1980)}
    assert "(at 1845 of 1980 MHz in the median)" in throttled({"machine": {"gpus": [h200, l4]}, "jobs": ran}, **one)
    assert "(at 1845 MHz in the median)" in throttled({"machine": {"gpus": [h200, l4]}}, **one), (
        "which one is not known"
    )
    assert "(at 1845 MHz in the median)" in throttled({}, **one)
    assert "while this was measured: held down by" in said_of("throttled")[0]


@pytest.mark.parametrize(
    ("name", "clocks"),
    [
        ("h200-attention", "(at 1799 to 1964 of 1980 MHz in the median, 1770 at the lowest)"),
        ("cogvideox_step", "(at 1838 to 1951 of 1980 MHz in the median, 1799 at the lowest)"),
    ],
)
def test_the_clocks_of_a_real_run_are_told(name: str, clocks: str) -> None:
    (workload,) = analyze(*example(name)).workloads
    assert any(clocks in said for said in marks.explained(workload) if said.startswith("**throttled**"))
