"""What the page says of the marks that profpipe sets."""

from __future__ import annotations

from report_study import case_row, metric_row, tables

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
