"""Pictures: that they are drawn, tell their lines apart and place their labels. How they look, a person judges."""

from __future__ import annotations

import itertools
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_study import case_row, made_up, metric_row, recorded, tables

from profpipe.analyze import analyze
from profpipe.findings import Part, Split
from profpipe.page import bars, lines, plots, study_plots
from profpipe.page.canvas import GREY, spread


def size(path: Path) -> tuple[int, int]:
    """Width and height from a PNG's header."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_a_sweep_gets_time_rate_bandwidth_and_shares(tmp_path: Path) -> None:
    drawn = plots.draw(analyze(*made_up(["a", "b", "c"], [512, 2048])), tmp_path)["w"]
    names = ("speedup", "time", "tflops", "bandwidth", "share")
    assert [plot.path for plot in drawn] == [f"plots/w-{name}.png" for name in names]
    assert all(size(tmp_path / plot.path)[0] > 1000 for plot in drawn)
    assert "The machine's peak is 1000 TFLOP/s." in drawn[2].caption


def test_a_recording_without_flops_gets_no_empty_picture(tmp_path: Path) -> None:
    drawn = plots.draw(analyze(*recorded()), tmp_path)["attention"]
    assert [Path(plot.path).stem for plot in drawn] == ["attention-speedup", "attention-time", "attention-share"]


def test_nothing_numeric_to_run_over_gives_no_lines(tmp_path: Path) -> None:
    data = tables(metrics=[metric_row(f"impl=a,mode={mode}", "time", 1.0) for mode in ("fwd", "bwd")])
    assert plots.draw(analyze(data, {}), tmp_path) == {"w": []} and not (tmp_path / "plots").exists()


@pytest.mark.parametrize("count", [2, 8, 20])
def test_every_implementation_has_a_look_of_its_own(count: int) -> None:
    (workload,) = analyze(*made_up([f"v{i}" for i in range(count)], [512, 2048])).workloads
    looks = [tuple(style.values()) for style in plots._styles(workload).values()]
    assert len(set(looks)) == count


def test_forty_lines_fit_and_the_picture_grows_with_them(tmp_path: Path) -> None:
    few, many = (analyze(*made_up([f"variant_{i}" for i in range(n)], [512, 2048, 8192])) for n in (2, 40))
    heights = []
    for name, findings in (("few", few), ("many", many)):
        drawn = plots.draw(findings, tmp_path / name)["w"]
        heights.append(size(tmp_path / name / drawn[0].path)[1])
    assert heights[0] < heights[1] < 2 * heights[0]


def test_other_axes_become_panels_of_one_picture(tmp_path: Path) -> None:
    findings = analyze(*made_up(["a", "b", "c"], [512, 2048], causal=(False, True)))
    (workload,) = findings.workloads
    quantity = next(iter(plots._quantities(workload)))
    panels = list(plots._panels(workload, "seqlen", quantity))
    assert [panel.others for panel in panels] == [(("causal", False),), (("causal", True),)]
    assert len(plots.draw(findings, tmp_path)["w"]) == 5


def test_of_many_combinations_eight_are_drawn_and_the_caption_says_so(tmp_path: Path) -> None:
    study = made_up(["a", "b"], [512, 2048], causal=(False, True), mode=("fwd", "bwd"), heads=(4, 8, 16))
    drawn = plots.draw(analyze(*study), tmp_path)["w"]
    assert len(drawn) == 4 and "8 of 12 combinations of the other axes." in drawn[1].caption


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [([128, 256, 512, 1024], True), ([1, 2, 8], True), ([100, 200, 300, 400, 500], False), ([1, 3], False),
     ([0, 10, 100], False), ([512, 65536], True), ([16, 32, 64, 80, 96, 128], False)],
)  # fmt: skip
def test_an_axis_that_doubles_is_logarithmic(values: list[float], logarithmic: bool) -> None:
    assert lines.doubles(values) is logarithmic


@pytest.mark.parametrize("logarithmic", [False, True])
def test_every_dot_of_every_panel_is_inside_the_scale_that_they_share(logarithmic: bool) -> None:
    dots = [lines.Dot(1, 300.0), lines.Dot(2, 420.0, low=390.0, high=500.0), lines.Dot(1, 90.0)]
    low, high = lines.limits(dots, None, logarithmic)
    assert low < 90.0 and 500.0 < high < 600.0
    assert lines.limits(dots, 1000.0, logarithmic)[1] >= 1000.0
    assert lines.limits([lines.Dot(1, -2.0), lines.Dot(2, 3.0)], None, False)[0] < -2.0


@pytest.mark.parametrize(
    ("low", "high", "logarithmic", "written"),
    [(2.0e6, 9.0e9, True, ["4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB", "4 GiB"]),
     (5.0e6, 1.1e8, True, ["8 MiB", "16 MiB", "32 MiB", "64 MiB"]),
     (900.0, 9.0e9, True, ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB"]),
     (0.0, 6.0e8, False, ["0", "128 MiB", "256 MiB", "384 MiB", "512 MiB"]),
     (0.0, 0.05, False, ["0"])],
)  # fmt: skip
def test_a_scale_of_bytes_is_read_in_powers_of_two(
    low: float, high: float, logarithmic: bool, written: list[str]
) -> None:
    assert [study_plots.size_tick(size) for size in lines.round_sizes(low, high, logarithmic)] == written


@pytest.mark.parametrize("columns", [2, 3])
def test_numbers_under_neighbouring_panels_do_not_touch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(lines, "save", lambda figure, path: seen.append(figure))
    series = lines.Series("a", {"color": "black", "marker": "o"}, (lines.Dot(8192, 1.0), lines.Dot(131072, 2.0)))
    panels = [lines.Panel((("n", n),), (series,)) for n in range(columns)]
    lines.draw(lines.Picture("t", "b", "x", str, decades=False), panels, tmp_path / "p.png")
    seen[0].canvas.draw()
    ends = [sorted((extent.x0, extent.x1) for label in axes.get_xticklabels() if label.get_text()
                   for extent in [label.get_window_extent()]) for axes in seen[0].axes]  # fmt: skip
    assert all(right[0][0] - left[-1][1] > 10 for left, right in itertools.pairwise(ends))


def test_a_panel_that_is_higher_than_the_first_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(lines, "save", lambda figure, path: seen.append(figure))
    style = {"color": "black", "marker": "o"}
    panels = [
        lines.Panel((("n", n),), (lines.Series("a", style, (lines.Dot(1, height), lines.Dot(2, height / 2))),))
        for n, height in ((1, 10.0), (2, 1000.0))
    ]
    picture = lines.Picture("t", "b", "x", str, decades=False, unit="u", peak=12.0)
    lines.draw(picture, panels, tmp_path / "p.png")
    assert [axes.get_ylim()[1] >= 1000.0 for axes in seen[0].axes] == [True, True]


def test_the_level_that_divides_good_from_bad_is_in_the_picture_though_all_are_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(lines, "save", lambda figure, path: seen.append(figure))
    series = lines.Series("a", {"color": "black", "marker": "o"}, (lines.Dot(1, 0.3), lines.Dot(2, 0.5)))
    picture = lines.Picture("t", "b", "x", str, decades=False, level=1.0)
    lines.draw(picture, [lines.Panel((), (series,))], tmp_path / "p.png")
    assert seen[0].axes[0].get_ylim()[1] > 1.0


def test_rates_start_at_zero_and_times_may_span_decades() -> None:
    (workload,) = analyze(*made_up(["a", "b"], [128, 65536])).workloads
    assert {quantity.name: quantity.decades for quantity in plots._quantities(workload)} == {
        "speedup": False, "time": True, "tflops": False, "bandwidth": False,
    }  # fmt: skip


def test_bars_tell_classes_apart_as_the_table_of_shares_does() -> None:
    (workload,) = analyze(*recorded()).workloads
    splits = [point.split for point in workload.points if point.split]
    labels = [piece.label for piece in bars.pieces(splits)]
    assert labels == ["attention", "helpers", "direct_copy", "add", "gemm", "softmax", "elementwise", "other copies",
                      "reduction"]  # fmt: skip
    for split in splits:
        assert sum(piece.of(split).ns for piece in bars.pieces(splits)) == pytest.approx(split.total.ns)


def test_what_is_too_thin_to_see_in_every_bar_is_drawn_with_everything_else() -> None:
    def split(**parts: float) -> Split:
        own = {name: Part(1.0, ns) for name, ns in parts.items()}
        return Split("nsys", "kernel", 1, own, Part(len(own), sum(parts.values())))

    thin = split(attention=9900.0, helpers=30.0, add=30.0, gemm=40.0)
    thick = split(attention=9000.0, gemm=1000.0)
    assert [piece.label for piece in bars.pieces([thin, thick])] == ["attention", "gemm", "everything else"]
    assert [piece.of(thin).ns for piece in bars.pieces([thin, thick])] == [9900.0, 40.0, 60.0]
    assert [piece.label for piece in bars.pieces([split(attention=9990.0, add=10.0)])] == ["attention"]


def test_bars_say_that_they_are_of_kernels_and_how_many_gpus_they_are_the_mean_of(tmp_path: Path) -> None:
    data, run = made_up(["a", "b", "c"], [512, 2048])
    (*_, bar) = plots.draw(analyze(data, run), tmp_path)["w"]
    assert (bar.title, bar.caption) == ("Kernel time of a call, seqlen 2048", "")
    other = [metric_row("impl=a,seqlen=2048", "time", 1e5, subject="rank 1")]
    several = tables(*(frame.to_dict("records") for frame in (data.cases, data.kernels, data.ranges)),
                     metrics=[*data.metrics.to_dict("records"), *other])  # fmt: skip
    (*_, bar) = plots.draw(analyze(several, run), tmp_path)["w"]
    assert bar.caption == "A bar is the mean of the 2 GPUs that ran the case; where two kernels overlap, both count."
    on_cpu = several.kernels.assign(kind="cpu_op", profiler="torch")
    (*_, bar) = plots.draw(analyze(replace(several, kernels=on_cpu), run), tmp_path)["w"]
    assert (bar.title, bar.caption) == ("Self time of CPU operators of a call, seqlen 2048", "")


@pytest.mark.parametrize(("share", "drawn"), [(0.05, False), (0.5, True)])
def test_bandwidth_is_drawn_only_where_a_case_comes_near_it(share: float, drawn: bool) -> None:
    data, run = made_up(["a", "b"], [512, 2048])
    (workload,) = analyze(data, run).workloads
    fastest = max(point.gbytes_per_s or 0.0 for point in workload.points)
    run["machine"]["peaks"]["bytes_per_s"] = fastest * 1e9 / share
    (workload,) = analyze(data, run).workloads
    assert ("bandwidth" in {quantity.name for quantity in plots._quantities(workload)}) is drawn


def test_names_of_a_legend_that_do_not_fit_beside_each_other_go_into_rows() -> None:
    assert bars.abreast(["add", "gemm"], 5.0) == 2
    assert bars.abreast(["elementwise"] * 9, 5.0) == 4
    assert bars.abreast(["x" * 99], 5.0) == 1


def test_without_a_comparison_the_values_of_another_axis_are_the_lines() -> None:
    names = [f"size={s},what={w},n={n}" for s in ("small", "large", "xl") for w in ("fwd", "step") for n in (1, 2)]
    (workload,) = analyze(tables(metrics=[metric_row(name, "time", 5.0) for name in names]), {}).workloads
    quantity = next(iter(plots._quantities(workload)))
    panels = list(plots._panels(workload, "n", quantity))
    assert [(panel.others, [line.label for line in panel.lines]) for panel in panels] == [
        ((("what", "fwd"),), ["small", "large", "xl"]), ((("what", "step"),), ["small", "large", "xl"]),
    ]  # fmt: skip


def test_a_name_with_a_letter_that_no_font_here_has_is_drawn_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.draw(analyze(*made_up(["\U0001f680", "b"], [512, 2048])), tmp_path)
    assert (tmp_path / "plots" / "w-time.png").is_file()


def test_a_marked_case_is_drawn_hollow(tmp_path: Path) -> None:
    data, run = made_up(["a", "b"], [512, 2048])
    run["machine"]["peaks"]["flops"]["bf16"] = 1.0
    drawn = plots.draw(analyze(data, run), tmp_path)["w"]
    assert "Hollow" not in drawn[0].caption  # every case is above that peak, which is said once
    data.cases.loc[0, "flags"] = '["noisy"]'
    assert "Hollow: the case carries a mark." in plots.draw(analyze(data, run), tmp_path)["w"][0].caption


def test_a_line_most_of_whose_cases_are_inaccurate_is_grey_and_called_that() -> None:
    """SpargeAttn on random inputs would lead every picture of rates."""
    looks = lines.styles(["a", "b", "c"])
    named = lines.rejected(looks, {"a": [False, True], "b": [True, True, False]})
    assert named["a"] == ("a", looks["a"]) and named["c"] == ("c", looks["c"])
    label, look = named["b"]
    assert label == "b (inaccurate)" and look == {**looks["b"], "color": GREY, "zorder": 1}
    ids = [f"impl={impl},seqlen={n}" for impl in ("a", "b") for n in (1, 2)]
    rows = [case_row(case, flags=["inaccurate"] * ("=b" in case)) for case in ids]
    (workload,) = analyze(tables(rows, metrics=[metric_row(case, "time", 5.0) for case in ids]), {}).workloads
    quantity = next(q for q in plots._quantities(workload) if q.name == "time")
    (panel,) = plots._panels(workload, "seqlen", quantity)
    assert [line.label for line in panel.lines] == ["a", "b (inaccurate)"]


def test_of_speed_ups_a_line_is_of_its_accurate_cases_and_the_caption_counts_the_others(tmp_path: Path) -> None:
    """SpargeAttn on random inputs passes at the shortest length alone: the dot that it has is an accurate one."""
    ids = [f"impl={impl},seqlen={n}" for impl in ("a", "b_fp8", "c") for n in (1, 2, 3)]
    errors = dict.fromkeys(ids, 0.001) | {"impl=b_fp8,seqlen=2": 0.5, "impl=b_fp8,seqlen=3": 0.5}
    rows = [metric_row(case, "time", 5.0 + i) for i, case in enumerate(ids)]
    rows += [metric_row(case, "error_rel_l1", e, "1") for case, e in errors.items() if case != "impl=c,seqlen=3"]
    flags = {"impl=c,seqlen=3": ["unchecked"]}
    data = tables([case_row(case, flags=flags.get(case, [])) for case in ids], metrics=rows)
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    (workload,) = analyze(data, run).workloads
    speedup, time, *_ = plots._quantities(workload)
    labels = [[line.label for panel in plots._panels(workload, "seqlen", q) for line in panel.lines]
              for q in (speedup, time)]  # fmt: skip
    assert labels == [["a", "b_fp8", "c"], ["a", "b_fp8 (inaccurate)", "c"]]
    drawn = plots.draw(analyze(data, run), tmp_path)["w"]
    said = "Not shown: 2 cases marked inaccurate (b_fp8) and 1 case marked unchecked (c)."
    assert [said in plot.caption for plot in drawn] == [True, False]


def test_the_same_findings_give_the_same_bytes(tmp_path: Path) -> None:
    findings = analyze(*recorded())
    for name in ("one", "two"):
        plots.draw(findings, tmp_path / name)
    for path in (tmp_path / "one").rglob("*.png"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_names_stand_where_the_lines_end_though_nobody_asked_for_the_limits_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = analyze(*made_up(["a", "b"], [512, 2048]))
    plots.draw(findings, tmp_path / "one")
    monkeypatch.setattr(lines, "_peak_line", lambda axes, picture: None)  # which asks for them, and here draws nothing
    plots.draw(findings, tmp_path / "two")
    time, again = (tmp_path / folder / "plots" / "w-time.png" for folder in ("one", "two"))
    assert time.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("columns", "b"),
    [(["ab", "a"], "b (left only)"), (["a", "ab"], "b"), (["b", "ab", "a"], "b (left and middle only)")],
)
def test_a_name_beside_a_panel_without_its_line_says_where_that_is(
    columns: list[str], b: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(lines, "save", lambda figure, path: seen.append(figure))
    dots, style = (lines.Dot(1, 1.0), lines.Dot(2, 2.0)), {"color": "black", "marker": "o"}
    panels = [
        lines.Panel((("n", n),), tuple(lines.Series(label, style, dots) for label in labels))
        for n, labels in enumerate(columns)
    ]
    lines.draw(lines.Picture("t", "b", "x", str, decades=False), panels, tmp_path / "p.png")
    assert {text.get_text() for text in seen[0].axes[len(columns) - 1].texts} == {"a", b}


@given(st.lists(st.floats(0, 400), min_size=1, max_size=30))
def test_labels_never_overlap_never_leave_and_never_change_their_order(wanted: list[float]) -> None:
    placed = spread(wanted, gap=14, low=0, high=400)
    room = min(14, 400 / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    ordered = [placed[i] for i in order]
    assert all(after - before >= room - 1e-6 for before, after in itertools.pairwise(ordered))
    assert min(placed) >= -1e-6 and max(placed) <= 400 + 1e-6


def test_labels_with_room_stay_where_they_belong() -> None:
    assert spread([100, 10, 50], gap=14, low=0, high=400) == [100, 10, 50]
