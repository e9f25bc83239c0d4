"""``items_per_step``: what a step processes, and the items per second that follow from its time."""

import pytest
from program import WITHOUT_TORCH, profpipe, rows

from profpipe.config.loader import load_pipeline
from profpipe.config.quantities import items_of
from profpipe.errors import ConfigError
from profpipe.ingest import job_tables
from profpipe.results import schema


@pytest.mark.parametrize(
    ("expression", "items"),
    [(8192, 8192.0), (0.5, 0.5), ("batch * 1024", 8192.0), ("{batch} * {seqlen} // 3", 1365.0), ("(batch-2)/4", 1.5)],
)
def test_items_are_a_number_or_arithmetic_on_parameters(expression, items):
    assert items_of(expression, {"batch": 8, "seqlen": 512}) == items


def test_a_workload_without_them_has_none():
    assert items_of(None, {}) is None


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("bacth * 2", "there is no parameter 'bacth'. Did you mean 'batch'?"),
        ("batch *", "'batch *' is no number and no arithmetic on parameters"),
        ("__import__('os').getpid()", "may hold numbers, parameters and + - * / // only"),
        ("batch ** 9", "may hold numbers, parameters and + - * / // only"),
        ("batch - 8", "batch - 8 is 0, no positive number. Each case needs a number above 0"),
        ("8 / (batch - 8)", "no positive number"),
        ("batch * impl", "the parameter impl is 'a', no number"),
        ("more * 2", "the parameter more is None, no number"),
        ("-3", "is no positive number"),
        ("0", "is no positive number"),
        ("f<(" * 200, "has 600 characters, more than 300"),
        ("1+" * 5000 + "1", "has 10,001 characters, more than 300"),
        ("1+" * 149, "is no number and no arithmetic on parameters"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(tmp_path, items, message):
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: 1\nworkloads:\n  w:\n    command: [t, '{batch}', '{impl}', '{more}']\n    params: {impl: a}\n"
        f"    matrix: {{batch: [16, 8]}}\n    include: [{{batch: 4, more: 2}}]\n    items_per_step: {items}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path)
    assert "p.yaml:8: workloads.w.items_per_step: " in str(caught.value) and message in str(caught.value)


def metric(name, value, **more):
    own = {"run": "r", "workload": "w", "case": "c", "profiler": "plain", "metric": name, "value": value, "unit": "ns"}
    return {**own, **more}


def test_the_rate_has_the_interval_of_the_time_turned_round():
    time = metric("time", 2e6, n=20, ci_low=1e6, ci_high=4e6)
    others = [metric("step_time", 9e6), metric("time", 3e6, subject="rank 1"), metric("time", 3e6, profiler="nsys")]
    tables = schema.Tables(metrics=schema.frame(schema.METRICS, [time, *others]))
    found = job_tables.add_item_rates(tables, {"c": 1000.0}).metrics.iloc[len(others) + 1 :]
    (row,) = found.to_dict("records")
    assert (row["metric"], row["subject"], row["unit"], row["n"]) == ("items_per_second", "", "1/s", 20)
    assert (row["value"], row["ci_low"], row["ci_high"]) == (5e5, 2.5e5, 1e6)


def test_a_process_without_steps_has_no_rate():
    tables = schema.Tables(metrics=schema.frame(schema.METRICS, [metric("process_wall", 2e9)]))
    assert job_tables.add_item_rates(tables, {"c": 1000.0}) is tables


@pytest.mark.slow
def test_the_page_and_the_table_of_a_script_have_the_items_per_second_of_each_case(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def build(params):\n    return lambda: sum(range(9_000 * params['batch']))\n", encoding="utf-8"
    )
    (tmp_path / "p.yaml").write_text(
        "version: 1\ndefaults: {profilers: [plain], repeats: 9, timing: {budget_s: 0.1}}\nworkloads:\n  w:\n"
        "    script: mine.py\n    matrix: {batch: [1, 2]}\n    baseline: {batch: 1}\n"
        "    items_per_step: batch * 1024\n    item_name: tokens\n",
        encoding="utf-8",
    )
    profpipe(tmp_path, "run", "p.yaml", PYTHONPATH=WITHOUT_TORCH)
    run = tmp_path / "out" / "latest"
    values = {(row["case"], row["metric"]): float(row["value"]) for row in rows(run / "metrics.parquet")}
    for case, items in (("batch=1", 1024), ("batch=2", 2048)):
        assert values[case, "items_per_second"] == pytest.approx(items * 1e9 / values[case, "time"])
    assert "tokens/s" in (run / "SUMMARY.md").read_text(encoding="utf-8")
