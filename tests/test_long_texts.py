"""Texts of any length in tables: pages and text files stay small, and the tables keep the whole text."""

import json
import shutil
import time
from pathlib import Path

import hostile_folders
import pandas as pd
import pytest

from profpipe import cli
from profpipe.report import text
from profpipe.results import schema, store


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hostile_folders.make_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture
def tables(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "tables"))


def test_a_name_of_ten_megabytes_widens_no_other_row(tables, capsys):
    names = ["k" * 10_000_000, *(f"kernel_{i}" for i in range(2_000))]
    kernels = pd.read_parquet(tables / "kernels.parquet").iloc[:1]
    many = kernels.loc[kernels.index.repeat(len(names))].assign(kernel=names)
    many.to_parquet(tables / "kernels.parquet")
    begin = time.process_time()
    assert cli.main(["report", str(tables), "--quiet"]) == 0, capsys.readouterr().err
    assert time.process_time() - begin < 8
    written = [path for path in tables.iterdir() if path.suffix in (".md", ".html", ".txt", ".json")]
    assert max(path.stat().st_size for path in written) < 2_000_000
    assert "… (10,000,000 characters" in (tables / "nsys_stats.txt").read_text()
    # What the user has measured stays as it is.
    assert store.load(tables)[0].kernels["kernel"].tolist() == names


def test_long_texts_keep_their_beginning_and_stay_different():
    long = "x" * text.LONGEST
    params = json.dumps({"short": 1, "path": long + "a", "items": [long + "b", True]})
    cases = schema.frame(schema.CASES, [{"case": long + end, "status": "ok", "params": params} for end in ("a", "b")])
    data = schema.Tables(cases=cases)
    shown = text.shorten_tables(data).cases
    assert shown["case"].nunique() == 2 and shown["case"].str.len().max() == text.LONGEST
    found = json.loads(shown["params"].iloc[0])
    assert found["short"] == 1 and found["items"][1] is True and found["path"] != found["items"][0]
    assert data.cases["case"].iloc[0] == long + "a"
    short = schema.Tables(cases=cases.assign(case="c", params="{}"))
    assert text.shorten_tables(short) is short


def _write(tables, name, frame):
    frame.to_parquet(tables / f"{name}.parquet")


@pytest.mark.parametrize(
    ("column", "text", "why"),
    [
        ("status", "fine", "'fine' is none of ok, oom"),
        ("flags", "[[1]]", "is no JSON list of texts"),
        ("flags", json.dumps([str(i) for i in range(1_001)]), "has more than 1,000 flags"),
        ("seconds", "1e308", "the number 1e+308 is too large"),
        ("params", json.dumps(dict.fromkeys(map(str, range(1_001)))), "has more than 1,000 params"),
    ],
    ids=["status", "flags", "many flags", "seconds", "params"],
)
def test_a_cell_that_no_run_has_is_refused_with_its_place(tables, column, text, why, capsys):
    value = float(text) if column == "seconds" else text
    case = schema.frame(schema.CASES, [{"case": "n=1", "status": "ok", "flags": "[]", "params": "{}", column: value}])
    _write(tables, "cases", case)
    assert cli.main(["report", str(tables)]) == 2
    error = capsys.readouterr().err
    assert f"row 2, column {column}: " in error and why in error and "cases.parquet" in error


def test_a_fact_of_the_user_may_be_infinite(tables):
    """As the PSNR of equal pictures."""
    case = schema.frame(schema.CASES, [{"case": "n=1", "status": "ok", "flags": "[]", "params": "{}"}])
    fact = schema.frame(schema.METRICS, [{"case": "n=1", "metric": "psnr", "value": float("inf"), "unit": "dB"}])
    for name, frame in (("cases", case), ("metrics", fact)):
        _write(tables, name, frame)
    assert store.load(tables)[0].metrics["value"].tolist() == [float("inf")]
    assert cli.main(["report", str(tables)]) == 0
