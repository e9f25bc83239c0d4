"""Charts of a workload: which there are, which marks they hold, and how they are drawn."""

import itertools
import math
import operator
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from report_study import analyze, case_row, check_studies, made_up, metric_row, recorded, tables

from profpipe.analysis.analyze import analyze as analyze_tables
from profpipe.analysis.findings import Findings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import ClassTotal, KernelBreakdown
from profpipe.report import charts as drawings
from profpipe.report.charts import value_range
from profpipe.report.document import Axis, Chart, ChartKind, Mark, Reference, ReferenceKind, Series, plain
from profpipe.report.scales import coloured_keys, key_class, round_sizes, spread, text_width, tick
from profpipe.report.sections.plots import Point, breakdown, chart_id, has_factors, line_chart, pieces, plots, roofline
from profpipe.results import store

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def charts(workload):
    """The charts of a workload by the end of their id."""
    (only,) = workload.workloads if isinstance(workload, Findings) else (workload,)
    return {chart.id.rpartition("-")[2]: chart for chart in plots(only).blocks if isinstance(chart, Chart)}


def chart_of(*series, panels=None, is_log=False, quantity="", references=()):
    y, plots = Axis("y", quantity=quantity, is_log=is_log), {"": series} if panels is None else panels
    return Chart("c", "t", ChartKind.LINES, Axis("x"), y, plots, subtitle="b", references=references)


def line(*points, name="a"):
    return Series(name, name, tuple(Mark(x, y) for x, y in points))


def drawn(chart):
    """The file of a chart, which is well-formed, without the names of SVG's namespace."""
    root = ET.fromstring(drawings.picture(chart))
    for each in root.iter():
        each.tag = each.tag.removeprefix("{http://www.w3.org/2000/svg}")
    return root


def texts(root, kind=""):
    """The texts of a file, or those of a class."""
    return [each.text or "" for each in root.iter("text") if not kind or each.get("class") == kind]


# --- which charts there are ------------------------------------------------------------------------------------------


def described(chart):
    """The words of a chart, and the lines of each panel with the number of their marks."""
    lines = [
        f"{title or 'alone'}: "
        + ", ".join(f"{series.name} {len(series.marks)}{' rejected' * series.is_rejected}" for series in panel)
        for title, panel in chart.panels.items()
    ]
    return [f"{chart.id}: {drawings.heading(chart)}; {plain(chart.caption)}", *lines]


def sweep(bandwidth_share=1.0, flop_rate=None, flags="[]", **axes):
    data, run = made_up(["a", "b"], [512, 2048], **axes)
    (workload,) = analyze(data, run).workloads
    fastest = max(case.gbytes_per_s or 0.0 for case in workload.cases)
    run["machine"]["peaks"]["bytes_per_s"] = fastest * 1e9 / bandwidth_share
    if flop_rate:
        run["machine"]["peaks"]["flops"]["bf16"] = flop_rate
    data.cases.loc[0, "flags"] = flags
    return analyze(data, run)


def inaccurate():
    """SpargeAttn on random inputs would lead every chart of rates, and passes at the shortest length only."""
    ids = [f"impl={impl},seqlen={n}" for impl in ("a", "b") for n in (1, 2)]
    rows = [case_row(case, flags=["inaccurate"] * ("=b" in case)) for case in ids]
    yield "mostly inaccurate", analyze(tables(rows, metrics=[metric_row(case, "time", 5.0) for case in ids]), {})
    ids = [f"impl={impl},seqlen={n}" for impl in ("a", "b_fp8", "c") for n in (1, 2, 3)]
    errors = dict.fromkeys(ids, 0.001) | {"impl=b_fp8,seqlen=2": 0.5, "impl=b_fp8,seqlen=3": 0.5}
    rows = [metric_row(case, "time", 5.0 + i) for i, case in enumerate(ids)]
    rows += [metric_row(case, "error_rel_l1", e, "1") for case, e in errors.items() if case != "impl=c,seqlen=3"]
    flags = {"impl=c,seqlen=3": ["unchecked"]}
    data = tables([case_row(case, flags=flags.get(case, [])) for case in ids], metrics=rows)
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    yield "a speed-up is of accurate cases", analyze(data, run)


def studies():
    def timed(*names):
        return analyze(tables(metrics=[metric_row(name, "time", 5.0) for name in names]), {})

    yield "a recording without FLOPs", analyze(*recorded())
    yield "no numeric axis", timed("impl=a,mode=fwd", "impl=a,mode=bwd", "impl=b,mode=fwd", "impl=b,mode=bwd")
    yield "no case near the bandwidth", sweep(0.05)
    yield "a case near the bandwidth", sweep(0.5)
    yield "another axis", sweep(causal=(False, True))
    yield "12 combinations of other axes", sweep(causal=(False, True), mode=("fwd", "bwd"), heads=(4, 8, 16))
    lone = (f"size={s},what={w},n={n}" for s in ("small", "large", "xl") for w in ("fwd", "step") for n in (1, 2))
    yield "values of another axis instead of a comparison", timed(*lone)
    yield "a flag that every case has", sweep(flop_rate=1.0)
    yield "a flag that one case has too", sweep(flop_rate=1.0, flags='["noisy"]')
    yield from inaccurate()
    data, run = made_up(["a", "b", "c"], [512, 2048])
    other = metric_row("impl=a,seqlen=2048", "time", 1e5, subject="rank 1")
    several = tables(*(frame.to_dict("records") for frame in (data.cases, data.kernels, data.ranges)),
                     metrics=[*data.metrics.to_dict("records"), other])  # fmt: skip
    yield "two GPUs", analyze(several, run)
    yield (
        "CPU operators",
        analyze(replace(several, kernels=several.kernels.assign(kind="cpu_op", profiler="torch")), run),
    )


def test_the_charts_of_a_workload_are_the_golden_ones(regenerate):
    found = ((name, *map(described, charts(findings).values())) for name, findings in studies())
    check_studies("charts.md", found, regenerate)


def test_a_file_name_has_no_special_characters():
    assert chart_id("a/b c", "time") == "a-b-c-time" and chart_id("..", "time") == "workload-time"


# --- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "is_log"),
    [([128, 256, 512, 1024], True), ([1, 2, 8], True), ([100, 200, 300, 400, 500], False), ([1, 3], False),
     ([0, 10, 100], False), ([512, 65536], True), ([16, 32, 64, 80, 96, 128], False)],
)  # fmt: skip
def test_an_axis_that_doubles_is_logarithmic(values, is_log):
    assert has_factors(values) is is_log


@pytest.mark.parametrize(("spans_decades", "values", "is_log"), [
    (True, (1.0, 30.0), True), (True, (1.0, 5.0), False), (False, (1.0, 30.0), False), (True, (0.0, 30.0), False),
])  # fmt: skip
def test_values_over_decades_have_a_logarithmic_axis(spans_decades, values, is_log):
    points = [Point((), "a", Mark(x, y)) for x, y in enumerate(values)]
    chart = line_chart("c", "t", Axis("x"), Axis("y"), points, ("a",), spans_decades=spans_decades)
    assert chart and chart.y.is_log is is_log


@pytest.mark.parametrize("is_log", [False, True])
def test_every_mark_of_every_panel_is_inside_the_common_scale(is_log):
    series = Series("a", "a", (Mark(1, 300.0), Mark(2, 420.0, low=390.0, high=500.0), Mark(1, 90.0)))
    low, high = value_range(chart_of(series, is_log=is_log))
    assert low < 90.0 and 500.0 < high < 600.0
    level = (Reference(ReferenceKind.LEVEL, 1000.0),)
    assert value_range(chart_of(series, is_log=is_log, references=level))[1] >= 1000.0
    assert value_range(chart_of(line((1, -2.0), (2, 3.0))))[0] < -2.0


@pytest.mark.parametrize(
    ("low", "high", "is_log", "written"),
    [(2.0e6, 9.0e9, True, ["4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB", "4 GiB"]),
     (5.0e6, 1.1e8, True, ["8 MiB", "16 MiB", "32 MiB", "64 MiB"]),
     (900.0, 9.0e9, True, ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB"]),
     (0.0, 6.0e8, False, ["0", "128 MiB", "256 MiB", "384 MiB", "512 MiB"]),
     (0.0, 0.05, False, ["0"])],
)  # fmt: skip
def test_a_scale_of_bytes_has_ticks_at_powers_of_two(low, high, is_log, written):
    assert [tick(size, Axis("", quantity="byte")) for size in round_sizes(low, high, is_log)] == written


@pytest.mark.parametrize(("value", "quantity", "written"), [
    (5e5, "ns", "500 us"), (1e6, "ns", "1 ms"), (0.0, "ns", "0"), (1.4, "x", "1.4x"), (0.25, "share", "25"),
])  # fmt: skip
def test_each_tick_has_a_unit(value, quantity, written):
    assert tick(value, Axis("", quantity=quantity)) == written


# --- drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8, 20])
def test_every_line_has_another_combination_of_colour_dash_and_marker(count):
    chart = charts(analyze(*made_up([f"v{i}" for i in range(count)], [512, 2048])))["time"]
    looks = {}
    for group in drawn(chart).iter("g"):
        if name := group.findtext("text[@class='end-label']"):
            # The marker without its place.
            (mark,) = (each.get("d", "").partition("m")[2] for each in group if each.get("class") == "mark")
            looks[name] = group.get("class"), mark
    assert len(set(looks.values())) == len(looks) == count


def test_a_rejected_line_is_grey():
    rejected = replace(line((1, 1.0), (2, 2.0)), is_rejected=True)
    text = drawings.picture(chart_of(rejected))
    assert 'class="series s0 rejected"' in text and ".rejected{color: #565d67 !important;}" in text


def test_the_picture_grows_with_forty_lines():
    few, many = (
        drawn(charts(analyze(*made_up([f"variant_{i}" for i in range(n)], [512, 2048, 8192])))["speedup"])
        for n in (2, 40)
    )
    assert float(few.get("height", 0)) < float(many.get("height", 0)) < 2 * float(few.get("height", 0))
    names = sorted(float(each.get("y", 0)) for each in many.iter("text") if each.get("class") == "end-label")
    assert len(names) == 40 and all(b - a > 12 for a, b in itertools.pairwise(names))


@pytest.mark.parametrize("columns", [2, 3])
def test_numbers_under_neighbouring_panels_do_not_touch(columns):
    lengths = [2.0**n for n in range(10, 18)]
    panels = {f"n {n}": (line(*((length, 1.0) for length in lengths)),) for n in range(columns)}
    ends = []
    chart = chart_of(panels=panels)
    for group in drawn(replace(chart, x=replace(chart.x, is_log=True))).findall("./g/g"):
        left = float(group.get("transform", "").partition("(")[2].partition(" ")[0])
        ends += [(left + float(each.get("x", 0)) - text_width(each.text or "") / 2,
                  left + float(each.get("x", 0)) + text_width(each.text or "") / 2)
                 for each in group.iter("text") if each.get("class") == "tick middle"]  # fmt: skip
    ends.sort()
    assert len(ends) > 2 * columns and all(right[0] - left[1] > 8 for left, right in itertools.pairwise(ends))


def test_a_panel_that_is_higher_than_the_first_is_not_cut():
    panels = {f"n {n}": (line((1, height), (2, height / 2)),) for n, height in ((1, 10.0), (2, 1000.0))}
    chart = chart_of(panels=panels, references=(Reference(ReferenceKind.PEAK, 12.0),))
    for panel in panels.values():
        drawing = drawings.lines(chart, panel)
        places = [float(y) for y in re.findall(r'd="M[\d.]+ (-?[\d.]+)m', drawing.content)]
        assert len(places) == 2 and all(0 < y < drawing.height for y in places)


def test_names_stand_where_the_lines_end():
    root = drawn(charts(analyze(*made_up(["a", "b"], [512, 2048])))["time"])
    names, ends = {}, {}
    for group in root.iter("g"):
        marks = [each.get("d", "").partition("m")[0] for each in group if each.get("class", "").startswith("mark")]
        text = group.find("text[@class='end-label']")
        if text is not None:
            names[group.get("class")] = float(text.get("y", 0))
        elif marks:
            ends[group.get("class")] = float(marks[-1].split(" ")[1])
    assert len(names) == 2 and all(abs(y - ends[each]) < 30 for each, y in names.items())


def test_a_legend_names_the_lines_of_all_panels():
    panels = {f"n {n}": tuple(line((1, 1.0), (2, 2.0), name=name) for name in names)
              for n, names in enumerate((("p",), ("p", "q"), ("r",)))}  # fmt: skip
    shown = texts(drawn(chart_of(panels=panels)))
    assert [shown.count(name) for name in ("p", "q", "r", "n 0", "n 1", "n 2")] == [1] * 6


def test_a_single_mark_and_a_flagged_one_beside_a_course_are_seen():
    course = [Mark(float(x), 1.0) for x in range(40)]
    flagged = replace(course[7], flags=("noisy",))
    plain = chart_of(Series("", "a", tuple(course)))
    both = (Series("", "a", (*course[:7], flagged, *course[8:])), Series("", "b", (Mark(20.0, 1.5),)))
    counts = []
    for chart in (plain, chart_of(*both)):
        picture = drawings.lines(chart, chart.series).content
        counts.append((picture.count("a1 1 0 1 0 2 0"), picture.count('class="mark"'), picture.count("mark hollow")))
    assert counts == [(40, 40, 0), (39, 40, 1)]


def test_a_roofline_names_its_points_and_no_name_is_on_another_or_on_a_point():
    for workload in analyze_tables(*store.load(EXAMPLES / "sparsity_lengths")).workloads:
        (chart,) = roofline(workload).blocks
        assert isinstance(chart, Chart)
        root = ET.fromstring(f"<svg>{drawings.lines(chart, chart.series).content}</svg>")
        boxes = [(float(each.get("x", 0)), float(each.get("y", 0)) - 12, text_width(each.text or ""), each.text)
                 for each in root.iter("text") if each.get("class") == "tick halo"]  # fmt: skip
        names = [name for *_, name in boxes]
        # One has no room.
        assert len(set(names)) == len(names) >= len(chart.series) - 1 and {*names} <= {s.name for s in chart.series}
        for (left, top, width, _), (other, upper, _, _) in itertools.permutations(boxes, 2):
            assert not (left <= other < left + width and abs(top - upper) < 15)
        points = [tuple(map(float, re.findall(r"[\d.]+", each.get("d", ""))[:2]))
                  for each in root.iter("path") if "mark" in each.get("class", "").split()]  # fmt: skip
        assert len(points) == len(chart.marks)
        for (left, top, width, _), (x, y) in itertools.product(boxes, points):
            assert not (left < x < left + width and top < y < top + 15)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "<script>alert(1)</script>", "\"' onload='x' data-x=\"y\"", "</style>&]]>", "漢字"]
)
@pytest.mark.parametrize("kind", [ChartKind.LINES, ChartKind.STACKED_BARS, ChartKind.INTERVALS, ChartKind.TREND])
def test_a_file_needs_no_other_and_shows_names_as_text(kind, name):
    marks = (Mark(0, 1e6, 0.9e6, 1.2e6, case=name), Mark(1, 4e6, 3e6, 5e6, ("noisy",), name))
    axis = Axis(name, labels=(name, name), cases=(name, name))
    panels = {name: (Series(name, name, marks), Series("gemm", "gemm", marks))}
    root = drawn(Chart("c", name, kind, axis, Axis(name, quantity="ns"), panels, subtitle=name))
    names = {each.tag for each in root.iter()}
    assert names <= {"svg", "style", "g", "rect", "path", "line", "text"}
    attributes = {key for each in root.iter() for key in each.attrib}
    assert not [key for key in attributes if key.startswith(("data-", "on")) or "href" in key]
    assert name in texts(root, "title") and name in texts(root, "panel-title")
    style = root.findtext("style") or ""
    assert not re.search(r"url\(|@import|var\(|light-dark|--", style) and "prefers-color-scheme:dark" in style


def test_classes_of_kernels_and_parts_of_a_step_have_colours_that_differ():
    series = tuple(Series(key, key, (Mark(0, 1e6),)) for key in sorted(coloured_keys()))
    chart = Chart("c", "t", ChartKind.STACKED_BARS, Axis("", labels=("a",)), Axis("ns"), {"": series})
    for style in (drawn(chart).findtext("style") or "").split("@media (prefers-color-scheme:dark)"):
        found = dict(re.findall(r"\.(k-\w+)\{color: (#\w{6})", style))
        assert found.keys() == set(map(key_class, coloured_keys()))
        # What is drawn in one colour is never in one bar, or stands for one thing.
        same = [names for names in grouped((colour, name) for name, colour in found.items()).values() if len(names) > 1]
        assert {frozenset(names) for names in same} == {
            frozenset(f"k-{name}" for name in names.split())
            for names in ("helpers attention_aux graph", "conv sparse", "communication step_communication",
                          "memcpy step_copy", "named_wait step_idle_blocked")
        }  # fmt: skip
        # To all readers, and to those who see no green or no red.
        for seen, least in ((NORMAL, 0.08), (DEUTERANOPIA, 0.04), (PROTANOPIA, 0.05)):
            colours = [lightness_and_hue(colour, seen) for colour in set(found.values())]
            assert min(math.dist(a, b) for a, b in itertools.combinations(colours, 2)) > least


#: What is left of red, green and blue for the colour-blind, by Machado, Oliveira and Fernandes (2009).
NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


def lightness_and_hue(colour, seen):
    """The place of a colour in OKLab, where equal distances look equal (bottosson.github.io/posts/oklab)."""
    parts = [part / 255 for part in bytes.fromhex(colour[1:])]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    r, g, b = (min(max(sum(map(operator.mul, row, linear)), 0.0), 1.0) for row in seen)
    long, m, s = ((x * r + y * g + z * b) ** (1 / 3) for x, y, z in (
        (0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005)))  # fmt: skip
    return (0.2104542553 * long + 0.7936177850 * m - 0.0040720468 * s,
            1.9779984951 * long - 2.4285922050 * m + 0.4505937099 * s,
            0.0259040371 * long + 0.7827717662 * m - 0.8086757660 * s)  # fmt: skip


def test_the_same_findings_give_the_same_bytes():
    one, two = (charts(analyze(*recorded())) for _ in range(2))
    assert [drawings.picture(chart) for chart in one.values()] == [drawings.picture(chart) for chart in two.values()]


@given(st.lists(st.floats(0, 400), min_size=1, max_size=30))
def test_labels_never_overlap_never_leave_and_never_change_their_order(wanted):
    placed = spread(wanted, gap=14, low=0, high=400)
    room = min(14, 400 / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    ordered = [placed[i] for i in order]
    assert all(after - before >= room - 1e-6 for before, after in itertools.pairwise(ordered))
    assert min(placed) >= -1e-6 and max(placed) <= 400 + 1e-6


def test_labels_with_room_stay_where_they_belong():
    assert spread([100, 10, 50], gap=14, low=0, high=400) == [100, 10, 50]


# --- stacked bars ----------------------------------------------------------------------------------------------------


def test_bars_have_the_classes_of_the_table_of_shares():
    (workload,) = analyze(*recorded()).workloads
    breakdowns = [case.breakdown for case in workload.cases if case.breakdown]
    found = pieces(breakdowns)
    assert [name for name, *_ in found if name] == [
        "attention", "helpers", "direct_copy", "add", "gemm", "softmax", "elementwise", "other copies", "reduction",
    ]  # fmt: skip
    sums = [sum(times) for times in zip(*(times for *_, times in found), strict=True)]
    assert sums == pytest.approx([each.total.ns for each in breakdowns])


def test_pieces_that_are_too_thin_to_see_are_drawn_with_everything_else():
    def split(**categories):
        own = {name: ClassTotal(1.0, ns) for name, ns in categories.items()}
        return KernelBreakdown("nsys", "kernel", 1, own, ClassTotal(len(own), sum(categories.values())))

    thin = split(attention=9900.0, helpers=30.0, add=30.0, gemm=40.0)
    thick = split(attention=9000.0, gemm=1000.0)
    found = [(name, times[0]) for name, _, times in pieces([thin, thick])]
    assert found == [("attention", 9900.0), ("gemm", 40.0), ("everything else", 60.0)]
    assert [name for name, *_ in pieces([split(attention=9990.0, add=10.0)])] == ["attention", ""]


def test_bars_have_one_scale():
    series = Series("gemm", "gemm", tuple(Mark(i, ns) for i, ns in enumerate((1e3, 2e3, 9e4))))
    chart = Chart("c", "t", ChartKind.STACKED_BARS, Axis("", labels=("a", "b", "c")), Axis("ns"), {"": (series,)})
    assert drawings.bar_labels(chart) == ["1000", "2000", "90000"]
    widths = [float(each.get("width", "0")) for each in drawn(chart).findall("./g/g//rect[@y][@class='piece']")]
    assert widths[:3] == pytest.approx([4.0, 8.0, 360.0], abs=0.1)


def test_bars_are_as_long_as_the_times_that_the_headline_compares():
    workload = analyze_tables(*store.load(EXAMPLES / "transformer_lm")).workloads[0]
    assert workload.largest
    chart = breakdown(workload, workload.largest)
    assert drawings.bar_labels(chart) == ["132.0 ms", "168.8 ms", "190.6 ms"]
    assert [round(mark.y / 1e6, 1) for mark in chart.series[-1].marks] == [75.7, 111.0, 7.0]


@pytest.mark.parametrize(("names", "rows"), [(["add", "gemm"], 1), (["elementwise"] * 9, 5), (["x" * 99] * 2, 2)])
def test_a_legend_too_wide_for_one_row_has_several_rows(names, rows):
    series = tuple(Series(name, f"{i}", (Mark(0, 1e6),)) for i, name in enumerate(names))
    chart = Chart("c", "t", ChartKind.STACKED_BARS, Axis("", labels=("a",)), Axis("ns"), {"": series})
    places = [each.get("transform", "").split(" ")[1] for each in drawn(chart).findall("./g/g[@class]")]
    assert len(places) == len(names) and len(set(places)) == rows
