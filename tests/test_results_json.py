"""results.json: the figures of the tables, under the names that docs/tables.md lists."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from report_study import ATTENTION, COPY, analyze, case_row, kernel_row, metric_row, tables

from profpipe import cli
from profpipe.report import results_json
from profpipe.results import store
from profpipe.results.manifest import Manifest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "h200-attention"


def written(data, run):
    text = results_json.text(
        results_json.document(analyze(data, run), data, Manifest.parse({"name": "made-up", **run}))
    )
    return dict(json.loads(text))


@pytest.fixture(scope="module")
def example():
    data, manifest = store.load(EXAMPLE)
    from profpipe.analysis import analyze as analysis

    return dict(json.loads(results_json.text(results_json.document(analysis.analyze(data, manifest), data, manifest))))


def test_every_case_of_a_run_is_an_object_in_a_line_with_the_numbers_of_the_tables(example):
    metrics = pd.read_parquet(EXAMPLE / "metrics.parquet").query("profiler == 'plain' and subject == ''")
    cases = pd.read_parquet(EXAMPLE / "cases.parquet")
    assert (example["format"], example["version"]) == ("profpipe.results", 1)
    assert {case["case"] for case in example["cases"]} == set(cases["case"])
    for case in example["cases"]:
        own = metrics[metrics["case"] == case["case"]].set_index("metric")["value"]
        assert (case["time"]["median"] if case["time"] else None) == own.get("time")
        assert (case["time"] or {}).get("p90") == own.get("time_p90")
        assert case["memory"]["peak_allocated"] == own.get("peak_allocated")
        assert (case["error"] or {}).get("error_max") == own.get("error_max")
        if case["tflops"]:
            assert case["tflops"] == pytest.approx(own["flops"] / own["time"] / 1e3)
        for profiler, end in case["profilers"].items():
            row = cases[(cases["case"] == case["case"]) & (cases["profiler"] == profiler)].iloc[0]
            assert end.get("status") == row["status"] and end.get("reason", "") == row["reason"]


def test_the_shares_of_a_case_are_those_of_its_kernels(example):
    kernels = pd.read_parquet(EXAMPLE / "kernels.parquet").query("profiler == 'nsys' and kind == 'kernel'")
    shown = [case for case in example["cases"] if case["kernels"]]
    assert len(shown) == 39
    for case in shown:
        own = kernels[kernels["case"] == case["case"]].groupby("kernel_class")["total_ns"].sum()
        assert case["kernels"]["profiler"] == "nsys"
        assert case["kernels"]["shares"] == pytest.approx((own / own.sum()).to_dict())
        assert case["kernels"]["time"] * case["kernels"]["iterations"] == pytest.approx(own.sum())


def keys(case):
    for name, value in case.items():
        yield name
        if name in ("time", "memory", "energy", "price", "kernels"):
            yield from (f"{name}.{inner}" for inner in value)


def test_the_documentation_has_every_key_of_a_case_and_no_other(example):
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    rows = text.partition("<!-- results -->\n")[2].partition("<!-- /results -->")[0].splitlines()[2:]
    documented = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    case = next(case for case in example["cases"] if case["kernels"])
    assert sorted({*documented, "memory", "energy", "price"}) == sorted(keys(case))


def test_a_failed_case_has_its_reason_and_nulls_and_numbers_that_json_lacks_are_null():
    rows = [metric_row("impl=a", "time", 1e3), metric_row("impl=a", "error_max", float("inf"), "1")]
    cases = [case_row("impl=a", params={"impl": "a", "scale": float("nan")}),
             case_row("impl=b", status="oom", reason="out of memory")]  # fmt: skip
    first, second = written(tables(cases, metrics=rows), {})["cases"]
    assert (first["params"]["scale"], first["error"]) == (None, {"error_max": None})
    assert second["time"] is None and second["kernels"] is None and second["tflops"] is None
    assert second["profilers"] == {"plain": {"status": "oom", "reason": "out of memory"}}


def test_kernels_alone_have_their_sums():
    kernels = [kernel_row("impl=a", ATTENTION, 3, 3e6), kernel_row("impl=a", COPY, 1, 1e6)]
    (case,) = written(tables([case_row("impl=a", "nsys")], kernels), {})["cases"]
    assert case["kernels"]["shares"] == {"attention": 0.75, "copy": 0.25}


@pytest.mark.slow
def test_report_writes_the_document_beside_the_tables(tmp_path):
    data, manifest = store.load(EXAMPLE)
    run = tmp_path / "run"
    run.mkdir()
    store.save(run, data, manifest)
    assert cli.main(["report", str(run), "--quiet"]) == 0
    assert len(json.loads((run / "results.json").read_text())["cases"]) == 42
