"""A comparison of a thousand cases: the page stays one that is read, and a file has the rest."""

import pytest
from report_study import analyze, grid, made_up, metric_row, tables, write_page

from profpipe import plugins
from profpipe.report import selection
from profpipe.report.document import Bullets, TableBlock, plain
from profpipe.report.sections import headline, times
from profpipe.results.schema import Tables, concat

TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"

IMPLS = [f"impl_{i}" for i in range(13)]
LENGTHS = [128 * 2**i for i in range(10)]


@pytest.fixture(scope="module")
def large():
    """1040 cases."""
    return made_up(IMPLS, LENGTHS, causal=(False, True), mode=("fwd", "fwd_bwd"), dtype=("fp16", "bf16"))


def note(workload, page=()):
    return plain(selection.note(workload, page))


def only(study):
    (workload,) = analyze(*study).workloads
    return workload


@pytest.fixture(scope="module")
def page(large, tmp_path_factory):
    """SUMMARY.md and comparison_results.txt."""
    folder = tmp_path_factory.mktemp("large")
    write_page(analyze(*large), *large, folder, TEMPLATE)
    pages = "\n".join((folder / name).read_text(encoding="utf-8") for name in ("SUMMARY.md", "details.md"))
    return pages, (folder / "comparison_results.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_thousand_cases_make_a_page_that_is_still_read(page):
    text, _ = page
    assert text.startswith("# w · 1040 cases")
    assert len(text) < 300_000 and len(text.splitlines()) < 3000


@pytest.mark.slow
def test_the_page_counts_the_rows_that_only_the_text_file_has(page):
    text, whole = page
    assert (
        "Below, 8 of 80 shapes are shown case by case: the largest `seqlen` for each combination of `causal`,"
        " `mode` and `dtype`. `comparison_results.txt` has all shapes."
    ) in text
    for axes in ("seqlen 128, causal, mode fwd, dtype fp16", "seqlen 32768, not causal, mode fwd_bwd, dtype bf16"):
        assert f"\nKernel share (nsys), {axes}\n" in whole and f"<summary>{axes}</summary>" not in text
    assert "Every figure" in whole and "What limits it" in whole


@pytest.mark.slow
def test_of_each_combination_the_largest_shape_is_shown(large):
    workload = only(large)
    kept = selection.shapes(workload)
    assert len(kept) == 8 and {dict(shape.axes)["seqlen"] for shape in kept} == {65536}
    assert workload.largest in kept and len(selection.select(workload).cases) == 8 * 13


def test_of_many_combinations_those_next_to_the_largest_are_shown():
    study = made_up(
        ["a", "b", "c"], [512, 1024], causal=(False, True), mode=("fwd", "bwd"), heads=(8, 16), batch=(1, 2)
    )
    workload = only(study)
    kept = [dict(shape.axes) for shape in selection.shapes(workload) if shape is not workload.largest]
    assert workload.largest is not None
    main = dict(workload.largest.axes)
    assert all(sum(main[axis] != value for axis, value in axes.items()) <= 2 for axes in kept)
    single = [axes for axes in kept if sum(main[axis] != value for axis, value in axes.items()) == 1]
    assert len(kept) == 7 and len(single) == 4
    assert "seqlen for 8 of 16 combinations of causal, mode, heads and batch" in note(workload)


def test_of_combinations_of_a_single_axis_the_largest_stand_next_to_the_largest():
    """All shapes differ in it, so none is nearer than another; the FLOPs of a call give their size."""
    cases = [(f"impl={impl},seqlens={8 * 2**i}x128", 1e3 * 2**i) for impl in "ab" for i in range(12)]
    rows = [metric_row(case, name, number, unit) for case, number in cases
            for name, unit in (("time", "ns"), ("flops", "flop"))]  # fmt: skip
    workload = only((tables(metrics=rows), {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}}}}}))
    assert [dict(others)["seqlens"] for others in selection.groups(workload, most=3)] == [
        f"{8 * 2**i}x128" for i in (9, 10, 11)
    ]
    kept = selection.shapes(workload, [workload] * 4)
    assert [dict(shape.axes)["seqlens"] for shape in kept] == ["8192x128", "16384x128"]


def test_a_small_comparison_is_shown_whole():
    workload = only(made_up(["a", "b", "c"], LENGTHS, causal=(False, True)))
    assert selection.select(workload) is workload and note(workload) == ""


def test_comparisons_that_fill_a_page_together_share_it():
    small = only(made_up(["a", "b", "c"], LENGTHS, mode=("fwd", "bwd")))
    several = [small] * 4
    kept = selection.shapes(small, several)
    assert [dict(shape.axes)["seqlen"] for shape in kept] == [65536, 65536]
    assert len(selection.select(small, several).cases) == 2 * 3
    assert "Below, 2 of 20 shapes are shown case by case: the largest seqlen for each" in note(small, several)
    assert len(selection.shapes(small, [small] * 8)) == 1
    assert "Below, 1 of 20 shapes is shown case by case: the largest." in note(small, [small] * 8)


def test_a_page_of_several_workloads_is_shortened_as_one_and_the_file_has_the_rest(tmp_path):
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
    write_page(analyze(data, run), data, run, tmp_path, TEMPLATE)
    summary = "".join((tmp_path / name).read_text(encoding="utf-8") for name in ("SUMMARY.md", "details.md"))
    assert "Below, 2 of 20 shapes are shown case by case" in summary
    assert "<summary>seqlen 128, mode bwd</summary>" not in summary and "seqlen 65536, mode" in summary
    whole = (tmp_path / "comparison_results.txt").read_text(encoding="utf-8")
    assert whole.count("Every figure") == 2 and "Kernel share (nsys), seqlen 128, mode bwd" in whole


@pytest.mark.slow
def test_many_shapes_are_answered_by_a_grid_of_winners(page):
    text, _ = page
    top = "".join(text.split("## ")[:2])
    assert "| seqlen | not causal, fwd, fp16 | not causal, fwd, bf16 |" in top
    assert "| 128 | `impl_2` 1.05x | `impl_2` 1.05x |" in top


def test_a_grid_names_ties_doubtful_wins_and_unopposed_cases():
    data, run = made_up(["a", "b"], LENGTHS[:7], mode=("fwd", "bwd"), heads=(8, 16))
    rows = data.metrics["metric"] == "time"
    data.metrics.loc[rows & data.metrics["case"].str.startswith("impl=b,seqlen=128,"), "ci_high"] = 1e9
    data.cases.loc[data.cases["case"].str.startswith("impl=b,seqlen=256,"), "flags"] = '["other_process"]'
    data.metrics.loc[rows & data.metrics["case"].str.startswith("impl=a,seqlen=512,"), "metric"] = "unmeasured"
    winners = [row[1] for row in grid(times.winner_grid(only((data, run))))[1:]]
    assert winners[:3] == ["tie: `b` and `a` 1.02x", "`b` 1.05x, in doubt", "`b`, alone"]
    assert winners[-1] == "`a`, alone"
    first = headline.headline(only((data, run)), title="At a glance")
    sentences = [plain(item) for block in first.blocks if isinstance(block, Bullets) for item in block.items]
    assert sentences[0] == "In doubt at seqlen 256, mode fwd, heads 8: b has the flag other_process."
    assert sentences[2].startswith("2 other winners in doubt: the times say why.")


def test_all_that_are_level_share_a_cell_of_the_grid():
    data, run = made_up(["a", "b", "c"], LENGTHS[:7], mode=("fwd", "bwd"), heads=(8, 16))
    data.metrics.loc[data.metrics["metric"] == "time", "ci_high"] = 1e9
    assert grid(times.winner_grid(only((data, run))))[1][1].startswith("tie: `a`, `c` and `b`")


def test_few_shapes_keep_their_lines_and_several_workloads_have_the_winners_beside_their_answer():
    workload = only(made_up(["a", "b"], [512, 1024], causal=(False, True)))
    assert [block.id for block in times.times(workload).blocks if isinstance(block, TableBlock)] == ["fastest"]
    winners = times.winner_grid(workload)
    assert [column.id for column in winners.columns] == ["seqlen", "not causal", "causal"] and len(winners.rows) == 2
    assert not times.winner_grid(only(made_up(["a", "b"], [512, 1024])))
