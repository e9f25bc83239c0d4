"""`plots:` of a pipeline file -> pictures. How they look, a person judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_study import case_row, made_up, metric_row, tables

from profpipe import load, report
from profpipe.analyze import analyze
from profpipe.page import lines, study_plots
from profpipe.pipeline import Plot
from profpipe.study_findings import Study
from profpipe.tables import Tables

TEMPLATE = load.own_folder("templates") / "SUMMARY.md.j2"


def asking(run: dict[str, Any], *wanted: dict[str, Any]) -> dict[str, Any]:
    """``run`` as it would be with these `plots` in its pipeline file."""
    entries = [Plot.model_validate({"title": "A plot", **entry}).model_dump(mode="json") for entry in wanted]
    return {**run, "pipeline": {**run.get("pipeline", {}), "plots": entries}}


def only(data: Tables, run: dict[str, Any], **wanted: Any) -> Study:
    (study,) = analyze(data, asking(run, wanted)).plots
    return study


def groups() -> Tables:
    """One sequence against the same length in groups, whose parameter is no number; invented times."""
    cases, metrics = [], []
    for workload, group in (("single", 1), ("groups", 128)):
        for tokens in (128, 256, 512, 1024):
            value = str(tokens) if group == 1 else "%2C".join(["128"] * (tokens // 128))
            for impl, factor in (("fa2", 1.0), ("cudnn", 0.7)):
                case, own = f"impl={impl},seqlens={value}", {"workload": workload}
                cases.append(case_row(case, flags=["noisy"] if tokens == 256 else [], **own))
                metrics += [metric_row(case, "time", factor * tokens**1.5 * 10 / group**0.25, n=9, **own),
                            metric_row(case, "flops", 1e6 * tokens, "flop", **own),
                            metric_row(case, "tokens", float(tokens), "1", **own)]  # fmt: skip
    return tables(cases, metrics=metrics)


def panels(study: Study, word: str) -> list[lines.Panel]:
    value = next(value for value in study.values if value.word == word)
    looks = lines.styles(study_plots._names(study), study_plots._baseline(study))
    named = study_plots._rejected(study, value, looks)
    return [panel for grid in study.grids if (panel := study_plots._panel(study, grid, value, named))]


def test_a_fact_is_what_a_plot_runs_over_and_workloads_are_lines() -> None:
    study = only(
        groups(), {}, workload=["single", "groups"], over="tokens", lines=["workload", "impl"], value=["time", "tflops"]
    )
    (panel,) = panels(study, "tflops")
    assert [line.label for line in panel.lines] == ["single, fa2", "single, cudnn", "groups, fa2", "groups, cudnn"]
    assert [dot.x for dot in panel.lines[0].dots] == [128, 256, 512, 1024]
    assert [dot.hollow for dot in panel.lines[3].dots] == [False, True, False, False]


def test_lines_are_what_is_compared_where_none_are_named() -> None:
    data, run = made_up(["a", "b"], [512, 1024, 2048])
    study = only(data, run, over="seqlen", value="time")
    assert study_plots._names(study) == ["a", "b"] and study_plots._baseline(study) == "a"
    study = only(groups(), {}, workload=["single", "groups"], over="tokens", where={"impl": "fa2"}, value="time")
    assert study_plots._names(study) == ["single", "groups"]


def test_what_a_plot_does_not_name_becomes_its_panels(tmp_path: Path) -> None:
    data, run = made_up(["a", "b"], [512, 1024], causal=(False, True))
    study = only(data, run, over="seqlen", value=["time", "memory"], title="Time & memory")
    assert [panel.others for panel in panels(study, "memory")] == [(("causal", False),), (("causal", True),)]
    drawn = study_plots.draw(study, tmp_path)
    assert [plot.path for plot in drawn] == ["plots/study-time-memory-time.png", "plots/study-time-memory-memory.png"]
    assert all((tmp_path / plot.path).stat().st_size > 10_000 for plot in drawn)
    assert drawn[0].caption.startswith("Times are the median time of a call.")


def test_a_plot_of_memory_has_ticks_of_whole_units_inside_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(lines, "save", lambda figure, path: seen.append(figure))
    study_plots.draw(only(*made_up(["a", "b"], [512, 2048, 65536]), over="seqlen", value="memory"), tmp_path)
    (axes,) = seen[0].axes
    seen[0].canvas.draw()
    labels = [label for label in axes.get_yticklabels() if label.get_text()]
    assert " ".join(label.get_text() for label in labels) == (
        "16 MiB 32 MiB 64 MiB 128 MiB 256 MiB 512 MiB 1 GiB 2 GiB"
    )
    assert min(label.get_window_extent().x0 for label in labels) > 5


@pytest.mark.parametrize(("word", "logarithmic"), [("error_rel_l1", True), ("cosine", False)])
def test_errors_have_a_scale_on_which_those_that_pass_can_be_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, logarithmic: bool
) -> None:
    cases = [case_row(f"impl=a,n={n}", params={"impl": "a", "n": n}) for n in (1, 2, 4)]
    data = tables(cases, metrics=[metric_row(f"impl=a,n={n}", word, 0.003 * 30.0**n, "1") for n in (1, 2, 4)])
    drawn: list[lines.Picture] = []
    monkeypatch.setattr(lines, "draw", lambda picture, shown, path: drawn.append(picture))
    study_plots.draw(only(data, {}, over="n", lines="impl", value=word), tmp_path)
    assert [picture.decades for picture in drawn] == [logarithmic]


def test_cases_that_are_not_in_a_plot_of_speedups_are_named_beside_it(tmp_path: Path) -> None:
    cases, metrics = [], []
    for i, impl in enumerate(("a", "b", "c"), 1):
        for n in (1, 2, 4):
            cases.append(case_row(f"impl={impl},n={n}", params={"impl": impl, "n": n}))
            metrics += [metric_row(f"impl={impl},n={n}", "time", 1000.0 * n / i, n=9)]
            if (impl, n) != ("b", 4):
                metrics.append(metric_row(f"impl={impl},n={n}", "error_rel_l1", 0.2 if impl == "c" else 0.001, "1"))
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    study = only(tables(cases, metrics=metrics), run, over="n", value=["speedup", "time"])
    by_speedup, by_time = study_plots.draw(study, tmp_path)
    assert by_speedup.caption.endswith("Not shown: 3 cases marked inaccurate (c) and 1 case marked unchecked (b).")
    assert "Not shown" not in by_time.caption


def test_a_plot_of_errors_has_a_line_at_what_the_tolerance_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case_row(f"impl=a,n={n}", params={"impl": "a", "n": n}) for n in (1, 2)]
    data = tables(cases, metrics=[metric_row(f"impl=a,n={n}", "error_rel_l1", 0.001 * n, "1") for n in (1, 2)])
    drawn: list[Any] = []
    monkeypatch.setattr(lines, "draw", lambda picture, shown, path: drawn.append(shown))
    for limits in ({"error_rel_l1": 0.05}, {"cosine": 0.9}, {}):
        run = {"pipeline": {"workloads": {"w": {"tolerance": limits}}}}
        study_plots.draw(only(data, run, over="n", lines="impl", value="error_rel_l1"), tmp_path)
    ((with_limit,), (other,), (none,)) = drawn
    assert [(line.label, [(dot.x, dot.y) for dot in line.dots]) for line in with_limit.lines[1:]] == [
        ("at most 0.05", [(1.0, 0.05), (2.0, 0.05)]),
    ]  # fmt: skip
    assert len(other.lines) == len(none.lines) == 1


def test_a_mark_of_every_case_makes_no_dot_hollow() -> None:
    rows = [case_row(f"impl={impl},n={n}", flags=["host_bound"], params={"impl": impl, "n": n})
            for impl in "ab" for n in (1, 2)]  # fmt: skip
    times = [metric_row(row["case"], "time", 5.0, n=9) for row in rows]
    (panel,) = panels(only(tables(rows, metrics=times), {}, over="n", lines="impl", value="time"), "time")
    assert not any(dot.hollow for line in panel.lines for dot in line.dots)


def test_fewer_than_two_numbers_give_no_picture(tmp_path: Path) -> None:
    data, run = made_up(["a", "b"], [512, 1024])
    assert study_plots.draw(only(data, run, over="seqlen", where={"seqlen": 512}, value="time"), tmp_path) == []
    assert study_plots.draw(only(data, run, over="impl", value="time"), tmp_path) == []
    assert not (tmp_path / "plots").exists()


def asked_of(tmp_path: Path, plot: dict[str, Any]) -> str:
    """What the page says of a study with that plot."""
    data, run = made_up(["a", "b"], [512, 1024])
    run = asking(run, plot)
    text = report.render(analyze(data, run), data, run, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    return text.partition("## What the study asked\n")[2].partition("\n## ")[0]


def test_plots_stand_with_the_tables_of_the_study(tmp_path: Path) -> None:
    told = asked_of(tmp_path, {"over": "seqlen", "value": "kernels.time", "title": "Kernels by <length>"})
    assert "![Kernels by &lt;length&gt;](plots/study-kernels-by-length-kernels.time.png)" in told
    assert "Kernels as nsys saw them, per call." in told


def test_a_plot_that_has_nothing_to_stand_over_is_named(tmp_path: Path) -> None:
    told = asked_of(tmp_path, {"over": "impl", "value": "kernels.time", "title": "Kernels by <impl>"})
    assert "Not drawn, for what they ask for stands over fewer than two numbers: Kernels by &lt;impl&gt;." in told
