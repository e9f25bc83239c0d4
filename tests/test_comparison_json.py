"""``profpipe compare --json``: the same document as that of ``profpipe ab``, from stored runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from profpipe import cli
from profpipe.analysis import pairs
from profpipe.report import results_json
from profpipe.results import schema, store
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.schema import CASES, METRICS, Tables

ROOT = Path(__file__).resolve().parents[1]


def save_run(folder: Path, number: int, status: str = "ok", params: str = "{}", **times: float) -> Path:
    """Store a run that started at the minute ``number``, with the times of its cases in ns."""
    key = {"run": folder.name, "workload": "w", "profiler": "plain"}
    reason = "" if status == "ok" else f"it {status}"
    ended = {"status": status, "reason": reason, "params": params, "flags": "[]"}
    cases = [{**key, "case": case, **ended} for case in times]
    rows = [
        {**key, "case": case, "subject": "", "metric": "time", "unit": "ns", "n": 9, "value": time,
         "ci_low": time * 0.999, "ci_high": time * 1.001}
        for case, time in times.items()
    ]  # fmt: skip
    folder.mkdir()
    started = f"2026-11-23T10:{number:02}:00+00:00"
    run = Manifest(name="w", started=started, ended=started)
    store.save(folder, Tables(cases=schema.frame(CASES, cases), metrics=schema.frame(METRICS, rows)), run)
    return folder


def document_of(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    code = cli.main(["compare", *map(str, argv)])
    return code, json.loads(capsys.readouterr().out)


def cases_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert document["format"] == "profpipe.verdicts" and document["version"] == 1
    return {case["case"]: case for case in document["cases"]}


def test_two_runs_have_differences_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = save_run(tmp_path / "a", 1, slow=1e6, same=2e6, gone=3e6)
    b = save_run(tmp_path / "b", 2, slow=1.1e6, same=2e6)
    code, document = document_of(capsys, a, b, "--gate", "5", "--json")
    assert (code, document["exit_code"], document["kind"]) == (5, 5, "compare")
    assert document["a"] == {"runs": [str(a)]} and document["gate"]["result"] == "undecided"
    cases = cases_of(document)
    assert cases["slow"]["ratio"] == pytest.approx(1.1) and cases["slow"]["difference_ns"] == pytest.approx(1e5)
    assert [cases[name]["verdict"] for name in cases] == [None] * 3
    assert [cases[name]["gate"] for name in ("slow", "same", "gone")] == ["undecided", "passed", "undecided"]
    assert [cases[name].get("is_beyond_noise") for name in ("slow", "same", "gone")] == [None, False, None]
    assert document["warnings"] == [
        {"kind": "not_compared", "text": "w/gone: has a time in A and none of the same kind in B"}
    ]


def test_a_gate_counts_what_failed_or_has_other_parameters_and_nothing_is_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = save_run(tmp_path / "a", 1, c=1e6, params='{"x": 1}')
    other = save_run(tmp_path / "other", 2, c=1e6, params='{"x": 2}')
    crashed = save_run(tmp_path / "crashed", 3, "crashed", c=1e6)
    empty = save_run(tmp_path / "empty", 4)
    found = []
    for first, second, expected in ((a, other, 4), (a, crashed, 4), (empty, a, 5)):
        code, document = document_of(capsys, "--gate", "5", "--json", "-", first, second)
        assert code == document["exit_code"] == expected
        found.append(document)
    of_other, of_crashed, of_none = found
    assert (of_other["gate"]["result"], of_other["gate"]["failed"]) == ("failed", 1)
    assert cases_of(of_other)["c"]["differing_params"] == {"x": ["1", "2"]}
    assert (of_crashed["gate"]["result"], of_crashed["gate"]["failed"]) == ("failed", 1)
    failure = {"status": "crashed", "reason": "it crashed", "is_of_b_alone": True}
    assert cases_of(of_crashed)["c"]["failure"] == failure
    assert (of_none["gate"]["result"], of_none["cases"]) == ("undecided", [])


def test_the_keys_are_those_of_ab_and_the_further_ones_are_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [save_run(tmp_path / name, i, c=1e6) for i, name in enumerate("ab")]
    _, of_two = document_of(capsys, *runs, "--json")
    data, run = Tables(), Manifest(name="w", ab=PairsEntry())
    of_ab = results_json.verdict_document(pairs.analyze(data, run), data, run, "", 0)
    assert set(of_two) == set(of_ab)
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8").partition("## The JSON document")[2]
    words = set(re.findall(r"`(\w+)`", page.partition("## Which kernels")[0]))
    assert words >= {*of_two, *of_two["cases"][0]}
