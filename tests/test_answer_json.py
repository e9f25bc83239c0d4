"""``--json``: the answer as one short document: ids, numbers in stored units, and sentences of the page."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profpipe import cli
from profpipe.commands import arguments, compare, rendering, run
from profpipe.report import answer_json, bounded_json, document as doc
from profpipe.report.text import write_section, write_text
from profpipe.report.units import PERCENT, SIZES, TIMES, Unit
from profpipe.results import store
from profpipe.stdio import as_json

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
TRAINING = DATA / "nsys-2025.3.1" / "training" / "lm_eager.sqlite"


def of_folder(folder):
    """Return the document of a results folder, and everything that its pages say."""
    report = rendering.read_report(folder, *store.load(folder))
    page = "\n".join([write_text(report.document.title), *map(write_section, report.document.sections)])
    return rendering.as_answer(report), page


def by_id(document):
    found = {each["id"]: each for each in document["findings"]}
    assert len(found) == len(document["findings"])
    return found


@pytest.mark.parametrize("name", ["regression_check", "two_gpus", "auto_profile"])
def test_each_sentence_is_one_of_the_page_and_each_number_has_a_unit(name):
    document, page = of_folder(ROOT / "examples" / name)
    assert (document["format"], document["version"]) == ("profpipe.answer", 1)
    assert len(as_json(document)) <= bounded_json.MOST
    assert all("sentence" in each for each in document["warnings"])
    assert all(
        "sentence" in each
        for each in document["findings"]
        if re.search(r"\.(time|answer|remark\.\d+)$|^verdict$", each["id"])
    )
    assert any("sentence" in each for each in document["findings"])
    for each in [*document["findings"], *document["warnings"]]:
        assert each.get("sentence", "") in page
        assert ("value" in each) == ("unit" in each) and each.get("in", "SUMMARY.md").split("#")[0].endswith(".md")


def test_the_numbers_are_those_of_results_json():
    folder = ROOT / "examples" / "two_gpus"
    report = rendering.read_report(folder, *store.load(folder))
    cases = {(case["workload"], case["case"]): case["time"]["median"] for case in rendering.as_json(report)["cases"]}
    document = rendering.as_answer(report)
    shown = [*document["cases"], {**by_id(document)["parallel.time"], "id": "parallel=ddp", "workload": "parallel"}]
    assert document["cases"]
    for case in shown:
        assert case["value"] == pytest.approx(cases[case["workload"], case["id"]], rel=1e-6) and case["unit"] == "ns"


def test_a_run_of_480_cases_fits_and_says_what_it_leaves_out():
    document, _ = of_folder(ROOT / "examples" / "attention_scaling")
    assert len(as_json(bounded_json.add_folder(document, "out/x" * 100))) <= bounded_json.MOST
    assert len(document["cases"]) + document["left_out"]["cases"] == 480 and document["cases"]
    assert {"lengths.time", "batches.time"} <= set(by_id(document))
    assert document["warnings"][0]["id"] == "warning.failed"


def test_names_of_any_length_and_script_fit():
    name = "\U0001f600\u202e\x1b[2J" * 5_000
    entries = [{"id": name, "sentence": name, "flags": [name] * 50} for _ in range(30)]
    lists = dict.fromkeys(("cases", "files", "findings", "warnings"), entries)
    document = bounded_json.add_folder({"format": name, "title": name, **lists}, "/tmp/" + "d" * 3_000)
    text = as_json(document)
    assert len(text) <= bounded_json.MOST and "u001b" not in text and "u202e" not in text
    assert document["folder"] == "/tmp/" + "d" * 3_000
    assert all(len(document[key]) + document["left_out"][key] == 30 for key in lists)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ingested")
    shutil.copyfile(TRAINING, folder / "lm.sqlite")
    time.sleep(0.3)
    profpipe(folder, "ingest", "lm.sqlite", "--out", "seen", "--json")
    return folder


def profpipe(folder, *words):
    command = [sys.executable, "-X", "importtime", "-m", "profpipe", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def test_a_second_look_answers_from_the_folder_without_pandas(ingested):
    documents = []
    for words in (["report", "seen"], ["ingest", "lm.sqlite", "--out", "seen"]):
        done = profpipe(ingested, *words, "--json")
        assert "pandas" not in done.stderr
        documents.append(json.loads(done.stdout))
    assert documents[0] == documents[1] and documents[0]["folder"] == "seen"
    found = by_id(documents[0])
    # Of the file: 723 kernels of 18.51 ms (expect.json of the recordings).
    assert documents[0]["files"] == [
        {"file": "lm.sqlite", "parser": "nsys_sqlite", "launches": 723, "value": 18510868, "unit": "ns"}
    ]
    page = (ingested / "seen" / "SUMMARY.md").read_text()
    assert found["lm.sqlite.time"]["sentence"] in page.replace("`", "")
    parts = [found[f"lm.sqlite.step.{part}"]["value"] for part in ("compute", "copy", "idle")]
    assert sum(parts) == pytest.approx(found["lm.sqlite.step"]["value"], rel=1e-5)


def test_a_file_without_a_folder_has_the_same_findings(ingested):
    alone = json.loads(profpipe(ingested, "ingest", "lm.sqlite", "--json").stdout)
    stored = json.loads(profpipe(ingested, "report", "seen", "--json").stdout)
    assert alone["findings"] == stored["findings"] and "folder" not in alone
    full = json.loads(profpipe(ingested, "report", "seen", "--json=full").stdout)
    assert full == json.loads((ingested / "seen" / "results.json").read_text())


def test_two_recordings(capsys):
    both = [str(DATA / "reported" / f"compare_{name}" / "trace.json") for name in ("before", "after")]
    assert cli.main(["compare", *both]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert cli.main(["compare", *both, "--json"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert len(text) <= bounded_json.MOST + 1 and document["kind"] == "compare_recordings"
    first = document["findings"][0]
    assert first["value"] == first["b"] - first["a"] and first["unit"] == "ns"
    assert first["sentence"] in page
    assert all(each.get("sentence", "") in page for each in [*document["findings"], *document["warnings"]])
    assert cli.main(["compare", *both, "--json=full"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "profpipe.verdicts"


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        (run, ["--json", "pipeline.yaml"], (arguments.STDOUT, "pipeline.yaml")),
        (run, ["--json=full", "pipeline.yaml"], (arguments.FULL, "pipeline.yaml")),
        (compare, ["--json", "a.json", "A", "B"], ("a.json", ["A", "B"])),
        (compare, ["--json=a.json", "A", "B"], ("a.json", ["A", "B"])),
        (compare, ["--json=full", "A", "B"], (arguments.FULL, ["A", "B"])),
    ],
)
def test_full_is_no_file(command, words, expected):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(words)
    assert (args.json, args.pipeline if command is run else args.runs) == expected


def test_units_are_those_in_which_numbers_are_stored():
    assert {answer_json.stored_unit(unit) for unit in TIMES} == {"ns"}
    assert {answer_json.stored_unit(unit) for unit in SIZES} == {"bytes"}
    units = PERCENT, TIMES[2].per("/step"), Unit("GB/s", 1e9), Unit("GB/s"), Unit("W")
    assert [answer_json.stored_unit(unit) for unit in units] == ["1", "ns/step", "bytes/s", "GB/s", "W"]


@pytest.mark.parametrize(
    ("label", "title", "unit", "of_column", "columns", "row"),
    [
        ("attention us/step", "a", TIMES[1], None, ["part", "a"], ["attention us/step", [2823.204, "us"]]),
        ("attention %", "a", PERCENT, None, ["part", "a"], ["attention %", [282320400, "%"]]),
        ("forward", "MB/s", None, Unit("", 1e6), ["part", "MB/s"], ["forward", 2.823204]),
        ("forward", "time", None, TIMES[1], ["part", "time [ns]"], ["forward", 2823204]),
    ],
)
def test_a_number_has_the_unit_that_stands_beside_it(label, title, unit, of_column, columns, row):
    cells = ((doc.TableCell(text=label), doc.TableCell(2823204.0, unit=unit)),)
    table = doc.TableBlock("t", (doc.label("part"), doc.number("n", title, of_column)), cells)
    (shown,) = answer_json.rows(doc.Section("s", "", (table,)))
    assert (shown["columns"], shown["row"]) == (columns, row)
