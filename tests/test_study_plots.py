"""`plots:` of a pipeline file: a chart for each value."""

import re

import pytest
from report_study import analyze, case_row, example, made_up, metric_row, tables, write_page

from profpipe import plugins
from profpipe.config.models import Plot
from profpipe.report.charts import lines
from profpipe.report.document import Reference, ReferenceKind
from profpipe.report.markdown import Markdown
from profpipe.report.sections.studies import baseline_name, line_names, study_plot, study_plots

TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"


def asking(run, *wanted):
    """``run`` as it would be with these `plots` in its pipeline file."""
    entries = [Plot.model_validate({"title": "A plot", **entry}).model_dump(mode="json") for entry in wanted]
    return {**run, "pipeline": {"workloads": {"w": {}}, **run.get("pipeline", {}), "plots": entries}}


def only(data, run, **wanted):
    (study,) = analyze(data, asking(run, wanted)).plots
    return study


def groups():
    """One sequence and the same length in groups, whose parameter is not a number; the times are invented."""
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


def chart(study, word):
    found = study_plot(study, next(value for value in study.values if value.name == word))
    assert found is not None
    return found


def panels(study, word):
    return chart(study, word).panels


def test_a_metric_may_be_the_axis_and_workloads_the_lines():
    study = only(
        groups(), {}, workload=["single", "groups"], over="tokens", lines=["workload", "impl"], value=["time", "tflops"]
    )
    (panel,) = panels(study, "tflops").values()
    assert [series.name for series in panel] == ["single, fa2", "single, cudnn", "groups, fa2", "groups, cudnn"]
    assert [mark.x for mark in panel[0].marks] == [128, 256, 512, 1024]
    assert [bool(mark.flags) for mark in panel[3].marks] == [False, True, False, False]


def ticks_of(made, kind="middle"):
    """The labels of the ticks of the horizontal axis, or those of the vertical one (``end``)."""
    return re.findall(rf'class="tick {kind}">([^<]*)<', lines(made, made.series).content)


def test_a_measured_axis_has_round_ticks_and_its_unit():
    for over in ("sparsity", "metric.sparsity"):
        study = only(*example("sparsity_lengths"), workload="reached", over=over, lines="impl", value="time")
        made = chart(study, "time")
        assert made.x.title == f"{over} %"
        assert ticks_of(made) == ["0", "20", "40", "60", "80"]


def test_a_measured_axis_of_times_has_a_unit_at_each_tick():
    study = only(*example("sparsity_lengths"), workload="reached", over="time", lines="impl", value="sparsity")
    made = chart(study, "sparsity")
    assert made.x.title == "time" and ticks_of(made) == [f"{ms} ms" for ms in (10, 20, 30, 40, 50)]


@pytest.mark.parametrize("topk", [(0.1, 0.3, 0.5, 0.7), (0.0625, 0.125, 0.1875)])
def test_the_values_of_a_parameter_are_the_ticks(topk):
    data, run = made_up(["a", "b"], [512], topk=topk)
    made = chart(only(data, run, over="topk", value="memory"), "memory")
    assert made.x.title == "topk" and not made.x.is_log
    assert sorted(ticks_of(made)) == [f"{value:g}" for value in topk]


def test_a_counted_metric_has_no_unit():
    study = only(groups(), {}, workload="single", over="tokens", lines="impl", value="time")
    assert chart(study, "time").x.title == "tokens"


def test_the_compared_values_are_the_lines_where_none_are_named():
    data, run = made_up(["a", "b"], [512, 1024, 2048])
    study = only(data, run, over="seqlen", value="time")
    assert line_names(study) == ["a", "b"] and baseline_name(study) == "a"
    study = only(groups(), {}, workload=["single", "groups"], over="tokens", where={"impl": "fa2"}, value="time")
    assert line_names(study) == ["single", "groups"]


def test_axes_that_a_plot_does_not_name_become_its_panels():
    data, run = made_up(["a", "b"], [512, 1024], causal=(False, True))
    study = only(data, run, over="seqlen", value=["time", "memory"], title="Time & memory")
    assert list(panels(study, "memory")) == ["not causal", "causal"]
    assert [chart(study, word).id for word in ("time", "memory")] == [
        "study-time-memory-time", "study-time-memory-memory",
    ]  # fmt: skip
    assert "Times are the median time of a call." in str(chart(study, "time").caption)


def test_a_plot_of_memory_has_ticks_of_whole_units():
    made = chart(only(*made_up(["a", "b"], [512, 2048, 65536]), over="seqlen", value="memory"), "memory")
    assert " ".join(ticks_of(made, "end")) == "16 MiB 32 MiB 64 MiB 128 MiB 256 MiB 512 MiB 1 GiB 2 GiB"


@pytest.mark.parametrize(("word", "is_log"), [("error_rel_l1", True), ("cosine", False)])
def test_errors_have_a_logarithmic_scale(word, is_log):
    cases = [case_row(f"impl=a,n={n}", params={"impl": "a", "n": n}) for n in (1, 2, 4)]
    data = tables(cases, metrics=[metric_row(f"impl=a,n={n}", word, 0.003 * 30.0**n, "1") for n in (1, 2, 4)])
    assert chart(only(data, {}, over="n", lines="impl", value=word), word).y.is_log is is_log


def test_cases_without_a_speedup_are_named_below_the_chart():
    cases, metrics = [], []
    for i, impl in enumerate(("a", "b", "c"), 1):
        for n in (1, 2, 4):
            cases.append(case_row(f"impl={impl},n={n}", params={"impl": impl, "n": n}))
            metrics += [metric_row(f"impl={impl},n={n}", "time", 1000.0 * n / i, n=9)]
            if (impl, n) != ("b", 4):
                metrics.append(metric_row(f"impl={impl},n={n}", "error_rel_l1", 0.2 if impl == "c" else 0.001, "1"))
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    study = only(tables(cases, metrics=metrics), run, over="n", value=["speedup", "time"])
    note = "Not shown: 3 cases marked inaccurate (c) and 1 case marked unchecked (b)."
    assert str(chart(study, "speedup").caption).endswith(note)
    assert "Not shown" not in str(chart(study, "time").caption)


@pytest.mark.parametrize(("limits", "references"), [
    ({"error_rel_l1": 0.05}, (Reference(ReferenceKind.LIMIT, 0.05, "at most 0.05"),)), ({"cosine": 0.9}, ()), ({}, ()),
])  # fmt: skip
def test_a_plot_of_errors_has_a_line_at_the_tolerance(limits, references):
    cases = [case_row(f"impl=a,n={n}", params={"impl": "a", "n": n}) for n in (1, 2)]
    data = tables(cases, metrics=[metric_row(f"impl=a,n={n}", "error_rel_l1", 0.001 * n, "1") for n in (1, 2)])
    run = {"pipeline": {"workloads": {"w": {"tolerance": limits}}}}
    found = chart(only(data, run, over="n", lines="impl", value="error_rel_l1"), "error_rel_l1")
    assert found.references == references
    names = re.findall(r'class="tick">([^<]*)<', lines(found, found.series).content)
    assert names == [reference.name for reference in references]


def test_a_flag_of_every_case_makes_no_mark_hollow():
    rows = [case_row(f"impl={impl},n={n}", flags=["host_bound"], params={"impl": impl, "n": n})
            for impl in "ab" for n in (1, 2)]  # fmt: skip
    times = [metric_row(row["case"], "time", 5.0, n=9) for row in rows]
    found = chart(only(tables(rows, metrics=times), {}, over="n", lines="impl", value="time"), "time")
    assert not any(mark.flags for mark in found.marks)


def test_fewer_than_two_numbers_give_no_chart_and_are_named():
    data, run = made_up(["a", "b"], [512, 1024])
    one = only(data, run, over="seqlen", where={"seqlen": 512}, value="time", title="By <length>")
    none = only(data, run, over="impl", value="time", title="By impl")
    assert Markdown().section(study_plots([one, none])) == (
        "## Requested plots\n\nNot drawn, because they have fewer than two numbers: By &lt;length> and By impl."
    )


def test_plots_stand_on_the_page(tmp_path):
    data, run = made_up(["a", "b"], [512, 1024])
    run = asking(run, {"over": "seqlen", "value": "kernels.time", "title": "Kernels by <length>"})
    text = write_page(analyze(data, run), data, run, tmp_path, TEMPLATE).read_text(encoding="utf-8")
    assert "![Kernels by &lt;length>](plots/study-kernels-by-length-kernels.time.svg)" in text
    assert "Kernels of nsys, per call." in text
    assert (tmp_path / "plots" / "study-kernels-by-length-kernels.time.svg").stat().st_size > 2_000
