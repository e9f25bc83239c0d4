"""`tables:` in a pipeline file: valid entries, and the error for each mistake before anything runs."""

import pytest

from profpipe import plugins
from profpipe.config import loader, quantities
from profpipe.errors import ConfigError

PIPELINE = """
version: 1
workloads:
  lm:
    script: transformer_lm
    params: {batch: 4}
    matrix: {size: "${SIZES:-small,medium}", what: [forward, train_step], compile: [false, true]}
  own:
    script: mine.py
    params: {n: 1}
tables:
"""

MINE = """
from pathlib import Path
from profpipe import plugins
_part = plugins.load_module(Path(__file__).with_name("_part.py"))
PARAMS = {"n": 1}
def build(params): return lambda: None
def facts(params): return {"tokens_seen": (1.0, "1")}
"""


def read(tmp_path, *tables, env=None, part="tables"):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "_part.py").write_text('def facts(): return {"pages_read": (1.0, "1")}\n')
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        PIPELINE.replace("tables:", f"{part}:") + "".join(f"  - {{title: A table, {table}}}\n" for table in tables)
    )
    return loader.load_pipeline(path, (), env or {})


def refusal(tmp_path, table, part="tables"):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, table, part=part)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_single_words_are_lists_and_everything_but_rows_and_value_may_be_left_out(tmp_path):
    (table,) = read(tmp_path, "workload: lm, rows: size, value: time").tables
    assert (table.rows, table.value, table.columns, table.unit, table.phase) == (["size"], ["time"], [], [], [])


@pytest.mark.parametrize(
    "table",
    [
        "workload: lm, rows: [size, batch], columns: what, value: [time, memory], unit: [ms, GiB]",
        "workload: lm, rows: size, where: {what: forward, compile: true, batch: 4}, value: gemm.share",
        "workload: lm, rows: size, columns: phase, phase: [forward, backward], value: kernels.time",
        "workload: lm, rows: value, columns: size, value: [most_launched.name, copy.calls, error_rel_l1_dq, cosine]",
        "workload: lm, rows: size, value: metric.of_my_own",
        "workload: own, rows: tokens_seen, where: {tokens_seen: 3}, value: [pages_read, flops]",
        "workload: [lm, own], rows: workload, value: time, profiler: nsys",
        "workload: lm, rows: size, where: {what: [forward]}, value: parameters, unit: million",
    ],
)
def test_a_table_may_show_what_its_workload_measures(tmp_path, table):
    assert read(tmp_path, table).tables


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("rows: size, value: time", "tables.0: needs 'workload', for there are several. Known: lm, own."),
        ("workload: ml, rows: size, value: time", "tables.0.workload: there is no workload 'ml'."),
        (
            "workload: lm, rows: sise, value: time",
            "tables.0.rows: 'sise' is no axis and no metric. Did you mean 'size'?",
        ),
        ("workload: lm, rows: size, value: tiem", "tables.0.value: 'tiem' is not known. Did you mean 'time'?"),
        (
            "workload: lm, rows: size, value: atention.share",
            "tables.0.value: 'atention.share' is not known. Did you mean 'attention.share'?",
        ),
        ("workload: own, rows: n, value: page_read", "'page_read' is not known. Did you mean 'pages_read'?"),
        ("workload: lm, rows: size, value: zzzz", "A metric that its workload names otherwise: metric.zzzz"),
        ("workload: lm, rows: size, value: batch", "tables.0.value: 'batch' is an axis. Put it among rows or columns."),
        (
            "workload: lm, rows: size, where: {what: forwad}, value: time",
            "tables.0.where.what: no case has forwad. Did you mean 'forward'?",
        ),
        ("workload: lm, rows: size, where: {compile: 1}, value: time", "tables.0.where.compile: no case has 1."),
        ("workload: lm, rows: size, where: {wht: forward}, value: time", "Did you mean 'what'?"),
        ("workload: lm, rows: size, columns: size, value: time", "'size' is also under rows."),
        ("workload: lm, rows: size, value: time, unit: mss", "tables.0.unit: 'mss' is no unit. Did you mean 'ms'?"),
        ("workload: lm, rows: size, value: time, unit: GiB", "tables.0.unit: nothing here is measured in GiB."),
        ("workload: lm, rows: size, value: time, phase: forward", "tables.0.phase: narrows values of kernels"),
        ("workload: lm, rows: size, value: [time, add.calls], phase: forward", "'time' is not known by phase."),
        ("workload: lm, rows: [size, phase], value: kernels.time", "has 'phase' among its axes and names none."),
        ("workload: lm, rows: size, value: add.calls, profiler: plain", "tables.0.profiler: plain sees no kernels"),
        ("workload: lm, rows: size, value: p10, profiler: nsys", "only plain times single calls"),
        ("workload: lm, rows: size, value: time, profiler: nsis", "'nsis' is not known. Did you mean 'nsys'?"),
        ("workload: lm, rows: [], value: time", "tables.0.rows: is empty"),
        ("workload: lm, row: size, value: time", "tables.0: unknown key 'row'. Did you mean 'rows'?"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_nearest_word(tmp_path, table, expected):
    assert expected in refusal(tmp_path, table)


@pytest.mark.parametrize(
    ("plot", "expected"),
    [
        (
            "workload: lm, over: bach, value: time",
            "plots.0.over: 'bach' is no axis and no metric. Did you mean 'batch'?",
        ),
        ("workload: lm, over: batch, lines: value, value: time", "plots.0.lines: 'value' is no axis and no metric."),
        ("workload: lm, over: batch, lines: batch, value: time", "plots.0.lines: 'batch' is also under over."),
        ("workload: lm, over: batch, rows: size, value: time", "plots.0: unknown key 'rows'."),
        ("workload: lm, value: time", "plots.0.over: is missing."),
    ],
)
def test_a_mistake_in_a_plot_is_named_with_its_place(tmp_path, plot, expected):
    assert expected in refusal(tmp_path, plot, part="plots")


def test_a_plot_needs_only_an_axis_and_a_value(tmp_path):
    (plot,) = read(tmp_path, "workload: [lm, own], over: tokens_seen, value: [time, tflops]", part="plots").plots
    assert (plot.over, plot.lines, plot.value) == ("tokens_seen", [], ["time", "tflops"])


def test_a_value_that_the_environment_removes_is_accepted(tmp_path):
    table = "workload: lm, rows: what, where: {size: medium}, value: time"
    assert read(tmp_path, table, env={"SIZES": "large"}).tables
    assert read(tmp_path, table.replace("medium", "large"), env={"SIZES": "large"}).tables
    assert "no case has large" in refusal(tmp_path, table.replace("medium", "large"))


def test_a_table_can_show_each_category_and_each_class_of_kernels_on_the_gpu():
    document = plugins.kernel_classes()
    subjects = {*document["categories"], *document["classes"]} - {"memcpy", "memset"}
    assert subjects <= quantities.KERNEL_VALUES.keys()


def test_every_known_name_is_parsed():
    for word in quantities.known_names():
        found = quantities.parse_value(word)
        assert found.source == ("metric" if word in quantities.METRICS else found.source) and found.name == word
    unknown = quantities.parse_value("attention.speed")
    assert (unknown.source, unknown.subject) == (quantities.Source.METRIC, "attention.speed")
