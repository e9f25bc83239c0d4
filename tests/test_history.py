"""The history: the trend of each case with its noise, the chart and the command."""

import json
import math
import random
import statistics

import pytest
from program import profpipe
from test_noise import on_gpu, tables

from profpipe import cli
from profpipe.analysis import history
from profpipe.commands.rendering import find_templates
from profpipe.report import html_page
from profpipe.report.sections import history as history_section
from profpipe.report.sections.history import sparkline
from profpipe.results import database, noise
from profpipe.results.manifest import GitState, JobEntry
from profpipe.results.noise import Noise, Sample, Spread, SpreadSource

CALM = (0.1, -0.2, 0.0, 0.3, -0.1, 0.2, -0.3, 0.1, 0.0, -0.1)


def logs(*levels):
    """Return calm values in %, so many on each level."""
    steps = [level for count, level in levels for _ in range(count)]
    return [math.log1p((level + CALM[i % len(CALM)]) / 100) for i, level in enumerate(steps)]


# --- trends ----------------------------------------------------------------------------------------------------------


def row(number, value, **more):
    key = {"run": f"run{number:02d}", "workload": "w", "case": "n=1", "device": "H200", "driver": "580", "torch": "2.9"}
    return {**key, "value": value, "git_commit": f"c{number}", "fingerprint": "one", **more}


def entry(number, name="study"):
    return {"run": f"run{number:02d}", "name": name, "started": f"2026-11-{number:02d}", "ended": "x", "cases": 1,
            "ok": 1}  # fmt: skip


def read_trend(times, known=None):
    runs = [entry(number) for number in range(len(times), 0, -1)]
    model = {("w", "n=1"): known} if known else {}
    (pipeline,) = history.analyze(runs, times, lambda *_: model)
    (trend,) = pipeline.trends
    return trend


def changed(**more):
    """Twelve runs, which take 5 % longer from the seventh on."""
    values = [1000 * math.exp(log) for log in logs((6, 0.0), (6, 5.0))]
    return [row(i, value, **(more if i > 6 else {})) for i, value in enumerate(values, start=1)]


def test_the_level_is_the_median_of_the_runs_and_runs_outside_the_band_are_marked():
    trend = read_trend(changed(), Noise(between=Spread(0.006, 9.0, {SpreadSource.RUNS: 8})))
    assert trend.level_ns == statistics.median(point["time_ns"] for point in trend.points)
    assert all(point["is_outside"] for point in trend.points), "the two halves lie 5 % apart, the level is between them"
    assert not any(point["is_outside"] for point in read_trend(changed()[:6]).points)


def test_the_noise_of_a_trend_is_that_of_its_neighbours_whatever_its_changes():
    rng = random.Random(1)
    values = [rng.gauss(0, 0.01) + (0.5 if i >= 30 else 0.0) for i in range(60)]
    assert history.estimate_sigma(values) == pytest.approx(0.01, rel=0.25)
    assert history.estimate_sigma(values[:4]) is None
    assert history.estimate_sigma([1.0] * 5) == 0.0


def test_the_band_comes_from_runs_of_the_same_code_and_else_from_what_is_known():
    within, between = Spread(0.02, 9.0, {SpreadSource.PAIRS: 8}), Spread(0.06, 4.0, {SpreadSource.RUNS: 5})
    times = changed()
    assert read_trend(times, Noise(within, between)).sources == {SpreadSource.RUNS: 5}
    assert read_trend(times, Noise(within, None)).sources == {SpreadSource.PAIRS: 8}
    assert read_trend(times).sources == {} and read_trend(times[:3]).band is None
    calm = Noise(within=Spread(0.0001, 9.0, {SpreadSource.PAIRS: 8}))
    assert read_trend(times, calm).sources == {}, "neighbouring runs differ by more than processes of one session"
    assert read_trend(times[:3], calm).sources == {SpreadSource.PAIRS: 8}
    wide = read_trend(times, Noise(between=between))
    assert wide.band == pytest.approx(math.expm1(2.5758 * math.log1p(0.06) / math.sqrt(2)), rel=1e-4)
    assert not any(point["is_outside"] for point in wide.points), "5 % are less than runs of the same code differ"


def test_a_last_run_outside_the_band_is_marked():
    times = [row(i, 1000 * math.exp(log)) for i, log in enumerate(logs((8, 0.0), (1, 6.0)), start=1)]
    trend = read_trend(times)
    assert [point["is_outside"] for point in trend.points] == [False] * 8 + [True]
    (line,) = list(history_section.lines([trend], is_ascii=True))[2:]
    assert line.endswith("+5.9 %, outside the band")


def test_pipelines_and_devices_are_not_mixed():
    runs = [entry(3, "other"), entry(2), entry(1)]
    times = [row(1, 100.0), row(2, 200.0, device="A100"), row(3, 300.0)]
    found = history.analyze(runs, times, lambda *_: {})
    assert [(each.name, [(c.device, len(c.points)) for c in each.trends]) for each in found] == [
        ("other", [("H200", 1)]), ("study", [("H200", 1), ("A100", 1)]),
    ]  # fmt: skip


# --- the chart -------------------------------------------------------------------------------------------------------


def test_a_chart_goes_from_the_lowest_to_the_highest_value():
    assert sparkline([1, 1, 2, 8, 8], ascii=False) == "▁▁▂██"
    assert sparkline([1, 1, 2, 8, 8], ascii=True) == "__.@@"


def test_noise_is_not_drawn_as_large_as_a_change_and_equal_values_are_in_the_middle():
    assert set(sparkline([100.0, 101.0, 100.5], least_range=10.0, ascii=True)) <= set("=+-")
    assert sparkline([5.0, 5.0], ascii=True) == "=="


def test_the_lines_and_the_page_of_a_trend():
    trend = read_trend(changed())
    head, _, line = history_section.lines([trend], is_ascii=True)
    assert head.startswith("course of each case, the oldest run first")
    assert line.split()[0] == "w/n=1" and line.isascii() and "+-1.0 %" in line
    assert line.endswith("+2.2 %, outside the band")
    page = history_section.markdown([history.PipelineHistory("study", (), (trend,))])
    assert "## History of study" in page and "outside the band" in page and "neighbouring runs" in page


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path):
    """A results folder with twelve runs of one case, which changed at the seventh, and their noise."""
    out = tmp_path / "out"
    out.mkdir()
    for number, time in enumerate(changed(), start=1):
        job = JobEntry(workload="w", profiler="plain", cases=("c",), key="new" if number > 6 else "old")
        run = on_gpu(started=f"2026-11-{number:02d}T00:00:00+00:00", jobs=(job,), git=GitState(f"commit{number > 6}"))
        name = f"run{number:02d}"
        database.store_run(out, out / name, tables(name, {"": time["value"]}), run)
    noise.store(out, on_gpu(), [Sample(SpreadSource.RUNS, "print", "w", "c", 12, 9.0, 0.004)], "run12")
    return out


def test_history_prints_trends_over_more_runs_than_it_lists(results, capsys):
    assert cli.main(["history", "-n", "2", "--out", str(results)]) == 0
    printed = capsys.readouterr().out
    assert "run12" in printed and "run10" not in printed and "outside the band" in printed
    assert "±1.0 %" in printed


def test_history_of_thousands_of_cases_takes_no_quadratic_time(results):
    count = 20_000
    with database.connect(results) as db, db.conn:
        row = dict(next(db["cases"].rows_where("run = 'run12' and time_ns is not null")))
        db["cases"].insert_all({**row, "case": f"c{number}"} for number in range(count))
    _, times = database.read_history(results)
    assert len(times) > count and all(row["fingerprint"] for row in times)


@pytest.mark.slow
def test_a_terminal_without_utf8_gets_ascii(results):
    printed = profpipe(results.parent, "history", PYTHONIOENCODING="ascii:backslashreplace")
    assert printed.isascii() and "outside the band" in printed and "\\" not in printed


def test_history_as_json_and_as_a_page(results, tmp_path, capsys):
    assert cli.main(["history", "--json", "--out", str(results)]) == 0
    (pipeline,) = json.loads(capsys.readouterr().out)["pipelines"]
    (trend,) = pipeline["courses"]
    assert pipeline["name"] == "study" and len(trend["points"]) == 12 and trend["sources"] == {"runs": 12}
    page = tmp_path / "history.md"
    assert cli.main(["history", "--page", str(page), "--out", str(results)]) == 0
    assert "12 runs of the same code" in page.read_text(encoding="utf-8")


# --- the page of a results folder ------------------------------------------------------------------------------------


def test_the_page_lists_runs_with_links_and_draws_trends_with_their_band(results, capsys):
    (results / "run12").mkdir()
    (results / "run12" / "report.html").write_text("a report")
    (results / "run11").mkdir()
    (results / "run11" / "SUMMARY.md").write_text("a report")
    assert cli.main(["history", "--html", "--out", str(results)]) == 0
    page = results / "profpipe.html"
    assert capsys.readouterr().out == f"{page}\n"
    made = page.read_text(encoding="utf-8")
    assert 'href="run12/report.html"' in made and 'href="run11/SUMMARY.md"' in made and 'href="run10' not in made
    drawing = made[made.index('class="plot course"') :]
    drawing = drawing[: drawing.index("</svg>")]
    assert drawing.count('class="band"') == 1 and drawing.count('class="ref level"') == 1
    assert drawing.count('class="mark hollow"') == 12, "between the levels of the two halves no run lies in the band"
    assert "Content-Security-Policy" in made and "12 runs of the same code" in made


def test_the_page_goes_where_the_user_wants_and_its_links_lead_from_there(results, tmp_path):
    (results / "run12").mkdir()
    (results / "run12" / "report.html").write_text("a report")
    target = tmp_path / "pages" / "all.html"
    target.parent.mkdir()
    assert cli.main(["history", "--html", str(target), "--out", str(results)]) == 0
    assert 'href="../out/run12/report.html"' in target.read_text(encoding="utf-8")
    assert cli.main(["history", "--html", str(tmp_path), "--out", str(results)]) == 2


def test_names_from_outside_are_text_on_the_page(tmp_path):
    hostile = "<script>alert(1)</script>"
    runs = [{**entry(n), "run": f"{hostile}{n}", "name": hostile} for n in range(7, 0, -1)]
    times = [row(n, 100.0, run=f"{hostile}{n}", workload=hostile, case=f"{hostile}=\u202e1") for n in range(1, 8)]
    found = history.analyze(runs, times, lambda *_: {})
    made = html_page.render(history_section.document(found, hostile, lambda run: ""), find_templates())
    assert hostile not in made and "\u202e" not in made and "&lt;script&gt;alert(1)" in made
