"""A comparison of a thousand cases: the page stays one that is read, and a file has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_study import made_up, metric_row, tables

from profpipe import load, report
from profpipe.analyze import analyze
from profpipe.findings import WorkloadFindings
from profpipe.page import answer_sheets, excerpt, plots
from profpipe.page.canvas import Plot
from profpipe.tables import Tables, concat

TEMPLATE = load.own_folder("templates") / "SUMMARY.md.j2"

IMPLS = [f"impl_{i}" for i in range(13)]
LENGTHS = [128 * 2**i for i in range(10)]


@pytest.fixture(scope="module")
def large() -> tuple[Tables, dict[str, Any]]:
    """1040 cases."""
    return made_up(IMPLS, LENGTHS, causal=(False, True), mode=("fwd", "fwd_bwd"), dtype=("fp16", "bf16"))


def only(study: tuple[Tables, dict[str, Any]]) -> WorkloadFindings:
    (workload,) = analyze(*study).workloads
    return workload


@pytest.fixture(scope="module")
def page(large: tuple[Tables, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """SUMMARY.md and comparison_results.txt, without pictures."""
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw", lambda findings, folder: {})
        summary = report.render(analyze(*large), *large, folder, TEMPLATE)
    return summary.read_text(encoding="utf-8"), (folder / "comparison_results.txt").read_text(encoding="utf-8")


def test_a_thousand_cases_make_a_page_that_is_still_read(page: tuple[str, str]) -> None:
    text, _ = page
    assert text.startswith("# w · 1040 cases")
    assert len(text) < 200_000 and len(text.splitlines()) < 1500
    opened = text
    while "<details>" in opened:
        head, _, rest = opened.partition("<details>")
        opened = head + rest.partition("</details>")[2]
    assert len(opened.splitlines()) < 250


def test_what_the_page_leaves_out_is_said_and_stands_in_the_file(page: tuple[str, str]) -> None:
    text, whole = page
    assert (
        "Below, 8 of its 80 shapes are shown case by case: the largest `seqlen` for each combination of `causal`,"
        " `mode` and `dtype`. `comparison_results.txt` has all of them."
    ) in text
    for axes in ("seqlen 128, causal, mode fwd, dtype fp16", "seqlen 32768, not causal, mode fwd_bwd, dtype bf16"):
        assert f"\nKernel share (nsys), {axes}\n" in whole and f"<summary>{axes}</summary>" not in text
    assert "Every figure of every profiler" in whole and "What limits it" in whole


def test_of_each_combination_the_largest_shape_is_shown(large: tuple[Tables, dict[str, Any]]) -> None:
    workload = only(large)
    kept = excerpt.shapes(workload)
    assert len(kept) == 8 and {dict(shape.axes)["seqlen"] for shape in kept} == {65536}
    assert workload.largest in kept and len(excerpt.of(workload).points) == 8 * 13


def test_of_many_combinations_those_next_to_the_largest_are_shown() -> None:
    study = made_up(
        ["a", "b", "c"], [512, 1024], causal=(False, True), mode=("fwd", "bwd"), heads=(8, 16), batch=(1, 2)
    )
    workload = only(study)
    kept = [dict(shape.axes) for shape in excerpt.shapes(workload) if shape is not workload.largest]
    assert workload.largest is not None
    main = dict(workload.largest.axes)
    assert all(sum(main[axis] != value for axis, value in axes.items()) <= 2 for axes in kept)
    single = [axes for axes in kept if sum(main[axis] != value for axis, value in axes.items()) == 1]
    assert len(kept) == 7 and len(single) == 4
    assert "`seqlen` for 8 of 16 combinations of `causal`, `mode`, `heads` and `batch`" in excerpt.said(workload, "x")


def test_of_combinations_of_a_single_axis_the_largest_stand_next_to_the_largest() -> None:
    """All differ in it, so that none is nearer than another; the FLOPs of a call tell how large such shapes are."""
    cases = [(f"impl={impl},seqlens={8 * 2**i}x128", 1e3 * 2**i) for impl in "ab" for i in range(12)]
    rows = [metric_row(case, name, number, unit) for case, number in cases
            for name, unit in (("time", "ns"), ("flops", "flop"))]  # fmt: skip
    workload = only((tables(metrics=rows), {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}}}}}))
    assert [dict(others)["seqlens"] for others in excerpt.groups(workload, most=3)] == [
        f"{8 * 2**i}x128" for i in (9, 10, 11)
    ]
    kept = excerpt.shapes(workload, [workload] * 4)
    assert [dict(shape.axes)["seqlens"] for shape in kept] == ["8192x128", "16384x128"]


def test_a_small_comparison_is_shown_whole() -> None:
    workload = only(made_up(["a", "b", "c"], LENGTHS, causal=(False, True)))
    assert excerpt.of(workload) is workload and excerpt.said(workload, "x") == ""


def test_comparisons_that_fill_a_page_together_share_it() -> None:
    small = only(made_up(["a", "b", "c"], LENGTHS, mode=("fwd", "bwd")))
    several = [small] * 4
    kept = excerpt.shapes(small, several)
    assert [dict(shape.axes)["seqlen"] for shape in kept] == [65536, 65536]
    assert len(excerpt.of(small, several).points) == 2 * 3
    assert "Below, 2 of its 20 shapes are shown case by case: the largest `seqlen` for each" in excerpt.said(
        small, "x", several
    )
    assert len(excerpt.shapes(small, [small] * 8)) == 1
    assert "Below, 1 of its 20 shapes is shown case by case: the largest." in excerpt.said(small, "x", [small] * 8)


def test_a_page_of_several_workloads_is_shortened_as_one_and_the_file_has_the_rest(tmp_path: Path) -> None:
    one, run = made_up(["a", "b", "c"], LENGTHS, mode=("fwd", "bwd"))
    parts = [
        Tables(
            **{name: getattr(one, name).assign(workload=workload) for name in ("cases", "kernels", "ranges", "metrics")}
        )
        for workload in ("v", "w")
    ]
    declared = run["pipeline"]["workloads"]["w"]
    run = {**run, "expects": {}, "pipeline": {"workloads": {"v": declared, "w": declared}}}
    data = concat(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw", lambda findings, folder: {})
        summary = report.render(analyze(data, run), data, run, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    assert "Of `v`: Below, 2 of its 20 shapes are shown case by case" in summary
    assert "<summary>seqlen 128, mode bwd</summary>" not in summary and "seqlen 65536, mode" in summary
    whole = (tmp_path / "comparison_results.txt").read_text(encoding="utf-8")
    assert whole.count("Every figure of every profiler") == 2 and "Kernel share (nsys), seqlen 128, mode bwd" in whole


def test_many_shapes_are_answered_by_a_grid_of_winners(page: tuple[str, str]) -> None:
    text, _ = page
    top = text.partition("## ")[0]
    assert "| seqlen | not causal, fwd, fp16 | not causal, fwd, bf16 |" in top
    assert "| 128 | `impl_2` 1.05x | `impl_2` 1.05x |" in top
    assert "<details><summary>with times and marks</summary>" in top


def test_a_grid_says_who_is_level_in_doubt_or_alone() -> None:
    data, run = made_up(["a", "b"], LENGTHS[:7], mode=("fwd", "bwd"), heads=(8, 16))
    rows = data.metrics["metric"] == "time"
    data.metrics.loc[rows & data.metrics["case"].str.startswith("impl=b,seqlen=128,"), "ci_high"] = 1e9
    data.cases.loc[data.cases["case"].str.startswith("impl=b,seqlen=256,"), "flags"] = '["other_process"]'
    data.metrics.loc[rows & data.metrics["case"].str.startswith("impl=a,seqlen=512,"), "metric"] = "unmeasured"
    sheet = answer_sheets.grid(only((data, run)))
    winners = [row[1] for row in sheet.rows]
    assert winners[:3] == ["`b` = `a` 1.02x", "`b` 1.05x, in doubt", "`b`, alone"] and winners[-1] == "`a`, alone"


def test_all_that_are_level_share_a_cell_of_the_grid() -> None:
    data, run = made_up(["a", "b", "c"], LENGTHS[:7], mode=("fwd", "bwd"), heads=(8, 16))
    data.metrics.loc[data.metrics["metric"] == "time", "ci_high"] = 1e9
    assert answer_sheets.grid(only((data, run))).rows[0][1].startswith("`a` = `c` = `b`")


def test_few_shapes_keep_their_lines() -> None:
    assert not answer_sheets.grid(only(made_up(["a", "b"], [512, 1024], causal=(False, True))))


def test_pictures_stand_once_and_first_where_much_is_left_out(
    large: tuple[Tables, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "draw", lambda findings, folder: {"w": [Plot("A picture", "plots/a.png")]})
    for study, is_first in ((large, True), (made_up(["a", "b"], [512, 1024]), False)):
        text = report.render(analyze(*study), *study, tmp_path, TEMPLATE).read_text(encoding="utf-8")
        assert text.count("![A picture](plots/a.png)") == 1
        assert (text.index("## Plots") < text.index("## Kernel share")) is is_first
