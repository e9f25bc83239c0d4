"""`profpipe ab`: the sides, the pairs of processes, the gate, a run that is killed, and the page."""

import argparse
import hashlib
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import forked
import markdown_it
import pandas as pd
import pytest
import yaml
from pair_study import ROOT, environment, page_of, run_of, tables_of
from report_study import check_golden

from profpipe import cli, origins
from profpipe.analysis import history, pairs, verdict
from profpipe.analysis.changes import Gate
from profpipe.commands import ab as ab_command, rendering
from profpipe.config import loader
from profpipe.errors import ConfigError
from profpipe.report import ci, pages, render, results_json
from profpipe.report.markdown import Markdown
from profpipe.report.sections import verdicts
from profpipe.results import manifest, manifest_entries, store
from profpipe.results.manifest import SideEntry, Undecided
from profpipe.results.pair_blocks import PairBlock
from profpipe.results.schema import Tables, Verdict
from profpipe.runner import checkout, process, sides
from profpipe.runner.pairs import join_cases
from profpipe.runner.sides import Spec, SpecKind

GOLDEN = ROOT / "tests" / "golden"

WORKLOAD = """
import os

PARAMS = {"n": 1, "extra": 0}

def build(params):
    if os.environ.get("FAILS") == str(params["n"]):
        raise RuntimeError("asked to fail")
    count = 2000 * params["n"] * (100 + params["extra"] + int(os.environ.get("EXTRA", 0)))
    return lambda: sum(range(count // 100))
"""
#: The time of a process is from 0.2 to 20 ms.
SCATTERS = """
import random, time

PARAMS = {"n": 1, "extra": 0}
seconds = 2e-4 * 100 ** random.random()

def build(params):
    return lambda: time.sleep(seconds)
"""
PIPELINE = """
version: 1
name: small
defaults: {warmup: 1, repeats: 5, timeout_s: 60, timing: {budget_s: 0.02}}
workloads:
  sums:
    script: sums.py
    profilers: [plain, nsys]
    matrix: {n: [1, 2]}
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a pipeline, in a repository."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "sums.py").write_text(WORKLOAD)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    git(folder, "init", "--quiet")
    commit(folder, "one")
    return folder


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder, message):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def ab(folder, *arguments, code=None, **variables):
    """Run the command in ``folder``, which must end with ``code`` where that is given; return the finished process."""
    done = forked.run(folder, "ab", *arguments, env={**environment(), **variables})
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def loaded(folder):
    return store.load(folder / "out" / "latest")


def verdicts_of(folder):
    rows = loaded(folder)[0].verdicts
    return dict(zip(rows["case"], rows["verdict"], strict=True))


# --- verdicts --------------------------------------------------------------------------------------------------------


def around(percent, spread=0.2, count=8):
    return [1 + (percent + spread * (2 * i / (count - 1) - 1)) / 100 for i in range(count)]


FOUR = {"a": around(3), "b": around(-4), "c": around(0.1), "d": around(2, spread=4)}


def test_each_case_has_its_verdict_and_its_row_in_the_table():
    found = pairs.analyze(tables_of(FOUR), run_of())
    expected = [Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.INCONCLUSIVE]
    assert [case.judgement.verdict for case in found.cases] == expected
    rows = pairs.verdict_rows(found, "r").set_index("case")
    assert rows.loc["a", "verdict"] == "slower"
    assert rows.loc["a", "ratio"] == pytest.approx(1.03, abs=0.001)
    assert rows.loc["a", "a_ns"] == 1e6 and rows.loc["a", "b_ns"] == pytest.approx(1.03e6, rel=0.001)
    assert rows.loc["d", "pairs_more"] > 0 and rows.loc["a", "pairs_more"] == 0


def test_a_pair_counts_only_with_both_processes():
    data = tables_of({"a": around(3)})
    without = data.metrics[data.metrics["subject"] != "pair 8 B"]
    found = pairs.analyze(Tables(data.cases, metrics=without), run_of())
    assert found.cases[0].judgement.pairs == 7
    assert found.cases[0].judgement.verdict is Verdict.INCONCLUSIVE


NOISY, WIDE = around(2, spread=4), {"w": {"c": 0.05}}


@pytest.mark.parametrize(
    ("ratios", "settings", "expected", "named"),
    [
        ({"a": around(3), "c": around(0)}, {"gate": 1}, Gate.FAILED, ["a"]),
        ({"a": around(3), "c": around(0)}, {"gate": 2.5}, Gate.FAILED, ["a"]),
        ({"a": around(3), "c": around(0)}, {"gate": 3.5}, Gate.PASSED, []),
        # The user says what an inconclusive case counts as. One that is clearly below the gate passes it.
        ({"d": NOISY}, {"gate": 1}, Gate.UNDECIDED, ["d"]),
        ({"d": NOISY}, {"gate": 1, "undecided": Undecided.PASS}, Gate.PASSED, ["d"]),
        ({"d": NOISY}, {"gate": 1, "undecided": Undecided.FAIL}, Gate.FAILED, ["d"]),
        ({"d": NOISY}, {"gate": 8}, Gate.PASSED, []),
        # A case that is the same within a wide floor does not pass a narrow gate.
        ({"c": around(1, spread=4)}, {"gate": 6, "spreads": WIDE}, Gate.PASSED, []),
        ({"c": around(1, spread=4)}, {"gate": 1, "spreads": WIDE}, Gate.UNDECIDED, ["c"]),
        # Only what fails twice fails the gate.
        ({"a": [*around(3), *around(3.2)]}, {"gate": 2}, Gate.FAILED, ["a"]),
        ({"a": [*around(3), *around(0.1)]}, {"gate": 2}, Gate.PASSED, []),
        ({}, {"gate": 5, "undecided": Undecided.PASS}, Gate.UNDECIDED, []),
    ],
)
def test_a_gate_fails_passes_or_is_undecided_and_names_its_cases(ratios, settings, expected, named):
    found = pairs.analyze(tables_of(ratios), run_of(**settings))
    assert (found.gate.verdict, [case.case for case in (*found.gate.failed, *found.gate.open)]) == (expected, named)


CRASH = ("crashed", "signal 11")


@pytest.mark.parametrize(
    ("ratios", "failures", "marks", "expected"),
    [
        # A case without times passes no gate, unless it was skipped.
        ({"d": around(0), "e": []}, {"e": CRASH}, "", Gate.UNDECIDED),
        ({"d": around(0), "e": []}, {"e": ("ok", "")}, "", Gate.UNDECIDED),
        ({"d": around(0), "e": []}, {"e": ("skipped", "")}, "", Gate.PASSED),
        # One that fails or is inaccurate on B alone fails the gate.
        ({"e": around(0)}, {"e": CRASH}, "B failed", Gate.FAILED),
        ({"e": around(0)}, {"e": CRASH}, "A failed", Gate.UNDECIDED),
        ({"e": around(0)}, {"e": CRASH}, "B failed,A failed", Gate.UNDECIDED),
        ({"e": around(-5)}, {}, "B inaccurate", Gate.FAILED),
        ({"e": around(-5)}, {}, "A inaccurate,B inaccurate", Gate.PASSED),
    ],
)
def test_a_case_that_failed_decides_a_gate_by_the_side_on_which_it_did(ratios, failures, marks, expected):
    marked = [("e", *mark.split()) for mark in marks.split(",") if mark]
    found = pairs.analyze(tables_of(ratios, failures.items(), marked), run_of(1, Undecided.PASS))
    assert found.gate.verdict is expected


@pytest.mark.parametrize("lacks", ["A", "B"])
def test_a_case_whose_steps_one_side_lacks_leaves_the_gate_undecided(lacks):
    both = tables_of({"a": around(0)})
    steps = both.metrics[~both.metrics["subject"].str.endswith(lacks)]
    metrics = pd.concat([both.metrics.assign(metric="process_wall"), steps], ignore_index=True)
    found = pairs.analyze(Tables(both.cases, metrics=metrics), run_of(5, Undecided.PASS))
    assert (found.gate.verdict, [case.case for case in found.gate.open]) == (Gate.UNDECIDED, ["a"])


def test_first_pairs_that_chose_the_length_are_no_part_of_a_verdict():
    ratios = {"a": [1.5, 0.6, 1.4, 0.7, *around(3)]}
    found = pairs.analyze(tables_of(ratios), run_of(pairs=12, longer=("w",)))
    assert found.cases[0].judgement.verdict is Verdict.SLOWER and found.cases[0].judgement.pairs == 8
    assert pairs.analyze(tables_of(ratios), run_of(pairs=12)).cases[0].judgement.verdict is Verdict.INCONCLUSIVE
    for gate, chosen in ((None, {("w", "a")}), (5, {("w", "a")}), (300, set())):
        assert pairs.choose_again(tables_of(ratios), run_of(gate, pairs=8), PairBlock.FIRST) == chosen


@pytest.mark.parametrize("ratios", [around(2, spread=40), [0.3, 4, 0.5, 3, 0.4, 2, 0.6, 5]])
def test_a_page_says_what_the_machine_resolves_where_no_pairs_on_offer_decide(ratios):
    data, run = tables_of({"d": ratios}), run_of()
    found = pairs.analyze(data, run)
    page = "".join(map(Markdown().section, render.build_pairs(found, data, run).sections))
    resolved = float(f"{100 * found.cases[0].judgement.resolution:.2g}")
    words = f"Differences below {resolved:g} % are within the noise for `w/d`: pin the clock, close"
    assert f"{words} other programs, or measure" in page
    assert "e+" not in page
    assert "over 20" in page and "To measure inconclusive cases alone" not in page


@pytest.mark.exhaustive
def test_pairs_are_longer_after_first_ones_that_scatter(project):
    (project / "sums.py").write_text(SCATTERS)
    assert ab(project, "--aa", "--pairs", "8", "--captures", "0").returncode in (0, 5)
    data, run = loaded(project)
    assert run.ab.longer == ("sums",) and run.ab.pairs == 12
    assert set(data.metrics["subject"]) == {f"pair {n} {side}" for n in range(1, 13) for side in "AB"}
    assert set(data.verdicts["pairs"]) == {8}
    page = (project / "out" / "latest" / "SUMMARY.md").read_text()
    assert "The first 4 pairs of `sums` scattered. The later ones are longer and alone count." in page


def test_a_gate_of_a_run_without_an_end_is_undecided():
    unfinished = replace(run_of(5, Undecided.PASS), ended=None)
    assert pairs.analyze(tables_of({"a": around(0)}), unfinished).gate.verdict is Gate.UNDECIDED


def test_what_fails_the_gate_is_measured_again_whatever_the_second_block_has_so_far():
    once, calm = tables_of({"a": around(3)}), tables_of({"a": [*around(3), *around(0.1)]})
    assert pairs.choose_again(once, run_of(2), PairBlock.GATE) == {("w", "a")}
    assert pairs.choose_again(once, run_of(4), PairBlock.GATE) == set()
    assert pairs.choose_again(calm, run_of(2), PairBlock.GATE) == {("w", "a")}
    (case,) = pairs.analyze(calm, run_of(2)).cases
    assert (case.first.verdict, case.judgement.verdict) == (Verdict.SLOWER, Verdict.SAME)


@pytest.mark.parametrize(
    ("sides", "undecided", "code"),
    [
        ("B", Undecided.PASS, 4),
        ("A", Undecided.PASS, 1),
        ("A", Undecided.REPORT, 1),
        ("A", Undecided.FAIL, 4),
        ("AB", Undecided.REPORT, 1),
        ("", Undecided.PASS, 0),
        ("", Undecided.REPORT, 5),
        ("", Undecided.FAIL, 4),
    ],
)
def test_the_exit_code_names_a_failed_gate_then_a_failed_case_then_an_undecided_gate(tmp_path, sides, undecided, code):
    failures = {"c": ("crashed", "signal 11")} if sides else {}
    marks = [("c", side, "failed") for side in sides]
    data = tables_of({"c": around(0), "d": around(2, spread=4)}, failures.items(), marks)
    assert rendering.judge(tmp_path, data, run_of(1, undecided)).exit_code == code


def test_a_report_shows_the_verdicts_that_are_known(tmp_path):
    data, run = tables_of({"c": around(3)}), run_of(1)
    known = replace(pairs.analyze(data, run), cases=())
    assert rendering.write_report(tmp_path, data, run, pair_findings=known).pairs is known
    assert list(history.sample_run("r", data, run_of(is_aa=True), known)) == []


def test_a_known_spread_between_processes_raises_the_floor_of_its_case_and_the_headline_says_what_it_hides():
    found = pairs.analyze(tables_of({"c": around(2), "d": around(2)}), run_of(spreads={"w": {"c": 0.03, "d": 0.004}}))
    assert [case.judgement.verdict for case in found.cases] == [Verdict.SAME, Verdict.SLOWER]
    assert [case.judgement.floor for case in found.cases] == [0.03, 0.01]
    pages = {}
    for spread in (0.25, 0.02):
        run = run_of(spreads={"w": {"c": spread}})
        findings = pairs.analyze(tables_of({"c": around(20), "d": around(0)}), run)
        pages[spread] = Markdown().section(verdicts.headline(findings, run))
    expected = "known to differ by up to 25.0 % here: smaller differences of `w/c` do not count, also for `same`."
    assert expected in pages[0.25] and "known to differ" not in pages[0.02]


def test_no_case_has_times_where_all_failed():
    findings = pairs.analyze(tables_of({"c": []}, {"c": ("failed", "no torch")}.items()), run_of())
    assert "**No case has a pair of times: 1 case failed.**" in Markdown().section(
        verdicts.headline(findings, run_of())
    )


def test_the_page_of_verdicts_is_the_golden_one(regenerate):
    data = tables_of(FOUR | {"e": around(0)}, {"e": ("oom", "pair 1 B: out of memory")}.items(), [("e", "B", "failed")])
    run = run_of(2, seed=7)
    check_golden("verdicts.md", page_of(data, run), regenerate)


def test_the_page_says_which_figure_to_read_where_a_load_moves_the_medians_and_not_the_ratio():
    data = tables_of({"c": [1.02, 1.0, 1.01, 0.99, 1.03, 8.0, 9.0, 10.0]})
    in_loaded_pairs = data.metrics["subject"].str.fullmatch("pair [123] [AB]")
    data.metrics.loc[in_loaded_pairs, "value"] *= 9
    findings = pairs.analyze(data, run_of())
    assert findings.cases[0].judgement.ratio == pytest.approx(math.sqrt(1.02 * 1.03)), "not the 10 of slow processes"
    assert "Where B - A does not fit A and B" in Markdown().section(verdicts.verdicts(findings.cases, run_of()))
    calm = pairs.analyze(tables_of({"c": around(3)}), run_of())
    assert "does not fit" not in Markdown().section(verdicts.verdicts(calm.cases, run_of()))


@pytest.mark.slow
def test_the_benchmark_counts_the_verdicts_of_runs_and_draws_pairs_anew(tmp_path):
    def printed(kind, *runs):
        for name, ratios, run in runs:
            (tmp_path / kind / name).mkdir(parents=True)
            store.save(tmp_path / kind / name, tables_of(ratios), run)
        folders = (tmp_path / kind / "aa", tmp_path / kind / "b")
        argv = [sys.executable, str(ROOT / "benchmarks" / "verdicts.py"), "--runs", *folders]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    text = printed("first", ("aa", {"c": around(0)}, run_of(1, is_aa=True)), ("b", {"c,change=3": around(3)}, run_of()))
    assert "| A-A | 1 | 0 | 0 | 1 | 0 | 0 |" in text and "| +3 % | 1 | 0 | 1 | 0 | 0 | 1 |" in text
    assert "Gates of A-A runs: 1 passed" in text and "further pairs" not in text
    assert "False verdicts in 10000 blocks of 8 pairs, resampled in each case: 0.00 %" in text
    same, slower = [1 + 0.0001 * n for n in range(10)], {"c,change=5": [*NOISY, *around(5, count=10)]}
    text = printed(
        "further", ("aa", {"c": [*NOISY, *same]}, run_of(is_aa=True, more=10)), ("b", slower, run_of(more=10))
    )
    assert "| A-A | 1 | 0 | 0 | 1 | 0 | 1 |" in text
    assert "| +5 % | c,change=5 | inconclusive, +2.0 % | 10 | slower, +5.0 % |" in text
    assert "False verdicts in 10000 blocks of 8 pairs, resampled" in text
    assert "False verdicts in 10000 blocks of 10 further pairs, resampled in each case: 0.00 %" in text


# --- CI --------------------------------------------------------------------------------------------------------------


def many(count):
    ratios = {
        f"batch={n},impl=flash": around(3 if n % 3 == 0 else 0, spread=4 if n % 3 == 1 else 0.2) for n in range(count)
    }
    return pairs.analyze(tables_of(ratios), run_of(2)), tables_of(ratios)


def test_junit_has_a_test_for_each_case_with_what_fails_and_what_is_undecided():
    data = tables_of({"a": around(3), "c": around(0), "d": around(2, spread=4)})
    suite = ElementTree.fromstring(ci.junit(pairs.analyze(data, run_of(2)), "small")).find("testsuite")
    assert suite.attrib == {"name": "w", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    assert suite.find("testcase[@name='a']/failure").get("message") == "w/a: slower, +3.0 %"
    assert suite.find("testcase[@name='d']/skipped") is not None
    assert suite.find("testcase[@name='c']").get("time") == "0.001000000"
    strict = ElementTree.fromstring(ci.junit(pairs.analyze(data, run_of(2, Undecided.FAIL)), "small"))
    assert strict.find("testsuite").get("failures") == "2"
    without_gate = ElementTree.fromstring(ci.junit(pairs.analyze(data, run_of()), "small"))
    assert without_gate.find("testsuite").get("failures") == "0"
    crashed = tables_of({"a": around(0), "c": around(0)}, {"a": ("crashed", "signal 11")}.items())
    for run in (run_of(), run_of(2, Undecided.PASS)):
        suite = ElementTree.fromstring(ci.junit(pairs.analyze(crashed, run), "small")).find("testsuite")
        assert (suite.get("errors"), suite.get("skipped")) == ("1", "0")
        assert suite.find("testcase[@name='a']/error").get("message") == "w/a: crashed"


def test_github_gets_an_error_for_what_fails_and_a_warning_for_what_is_undecided():
    found = pairs.analyze(tables_of({"a": around(3), "c": around(0), "d": around(2, spread=4)}), run_of(2))
    assert list(ci.workflow_commands(found)) == [
        "::error title=profpipe gate of 2 %25::w/a: slower, +3.0 %25",
        "::warning title=profpipe gate of 2 %25::w/d: inconclusive, +2.0 %25",
    ]
    expected = "gate=failed\ncases=3\nfaster=0\nslower=1\nsame=1\ninconclusive=1\nfolder=/out/run\n"
    assert ci.outputs(found, "/out/run") == expected
    # A line end in the name of a folder begins no further output.
    assert ci.outputs(found, "/out\ngate=passed").splitlines()[-1] == "folder=/out<U+000A>gate=passed"


def test_github_shows_ten_annotations_and_the_last_one_says_how_many_more_cases_there_are():
    found, _ = many(60)
    shown = list(ci.workflow_commands(found))
    assert len([each for each in shown if each.startswith("::error")]) == 10
    assert shown[9] == "::error title=profpipe gate of 2 %25::11 more cases: see the job summary"


DOCUMENTED = re.compile(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", re.MULTILINE)


def test_the_json_document_has_what_the_documentation_says():
    failed = {"e": ("oom", "pair 1 B: out of memory")}.items()
    data = tables_of(FOUR | {"e": [], "f": around(0)}, failed, [("e", "B", "failed"), ("f", "B", "inaccurate")])
    run = run_of(2, seed=7, spreads={"w": {"c": 0.02}})
    found = pairs.analyze(data, run)
    data = replace(data, verdicts=pairs.verdict_rows(found, "r"))
    # A missing number is null: JSON has no NaN.
    document = json.loads(json.dumps(results_json.verdict_document(found, data, run, "SUMMARY.md", 4), allow_nan=False))
    assert (document["format"], document["version"], document["exit_code"]) == ("profpipe.verdicts", 1, 4)
    assert document["gate"] == {
        "percent": 2, "inconclusive": "report", "result": "failed", "failed": 3, "undecided": 1,
    }  # fmt: skip
    cases = {case["case"]: case for case in document["cases"]}
    assert [case["verdict"] for case in cases.values()] == ["slower", "faster", "same", "inconclusive", None, "same"]
    assert cases["a"]["ratio"] == pytest.approx(1.03, abs=0.001) and cases["c"]["floor"] == 0.02
    assert cases["e"]["failure"] == {"status": "oom", "reason": "pair 1 B: out of memory", "is_of_b_alone": True}
    assert [warning["kind"] for warning in document["warnings"]] == ["failed", "inaccurate"]
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8").partition("## The JSON document")[2]
    page = page.partition("## Which kernels")[0]
    documented = {name for row in DOCUMENTED.findall(page) for name in re.findall(r"[a-z_]+", row)}
    assert documented >= {*document, *document["cases"][0]}
    assert set(document["cases"][0]) | set(document) >= documented


def test_the_page_of_200_cases_has_at_most_150_lines(tmp_path):
    found, data = many(200)
    document = render.build_pairs(found, data, run_of(2))
    pages.write(document, tmp_path, ROOT / "templates" / "SUMMARY.md.j2")
    page = (tmp_path / "SUMMARY.md").read_text()
    assert len(page.splitlines()) <= 150
    assert "67 slower" in page and "more rows: [details.md]" in page
    assert (tmp_path / "details.md").read_text().count("`batch=") > 50


@pytest.mark.parametrize(
    ("count", "letters", "folded"),
    [
        (200, 1, 170),
        (200, 20_000, 0),
        pytest.param(4000, 1, 1000, marks=pytest.mark.slow),
        pytest.param(4000, 600, 200, marks=pytest.mark.slow),
    ],
)
def test_the_job_summary_is_below_1_mib_and_begins_with_the_answer_and_the_slower_cases(count, letters, folded):
    found, data = many(200)
    name = "é" * letters
    copies = count // 200
    cases = [replace(case, case=f"{name}={i},{case.case}") for i in range(copies) for case in found.cases]
    found = replace(found, cases=tuple(cases))
    summary = ci.job_summary(render.build_pairs(found, data, run_of(2)), found, "out/run")
    assert len(summary.encode()) < 1 << 20
    assert summary.startswith("# B against A")
    assert summary.endswith("All cases: `verdicts.parquet`, `details.md` and `report.html` in `out/run`.\n")
    visible, *folds = summary.split("<details>")
    assert f"**B compared with A, {count} cases: {67 * copies} slower" in visible
    assert "inconclusive |" not in visible
    assert [fold.count("\n| `") for fold in folds] == ([folded, 0] if folded else [])
    assert summary.count("</details>") == len(folds)
    if folded:
        assert visible.count("| **slower** |") == 30
        assert ("rows are left out here" in summary) == (count > 200)


def test_github_renders_the_tables_and_folds_of_the_job_summary():
    found, data = many(200)
    summary = ci.job_summary(render.build_pairs(found, data, run_of(2)), found, "out/run")
    html = markdown_it.MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(summary)
    assert html.count("<table>") == 2 and html.count("<details>") == 2
    assert html.count("<tr>") == 200 + 2
    assert "|" not in re.sub(r"<[^>]*>", "", html)


def test_the_example_for_github_uses_options_that_exist():
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "profpipe.yml").read_text())
    steps = workflow["jobs"]["compare"]["steps"]
    assert workflow["permissions"] == {"contents": "read"}
    (at,) = [number for number, step in enumerate(steps) if step.get("id") == "ab"]
    command = steps[at]["run"].replace("\\\n", " ")
    program, name, *words = shlex.split(command[command.index("profpipe ab") :])
    assert (program, name) == ("profpipe", "ab")
    parser = argparse.ArgumentParser()
    ab_command.add_arguments(parser)
    args = parser.parse_args(words)
    assert (args.pipeline, args.a, args.gate, args.github, args.inconclusive) == (
        "$PIPELINE",
        ["git:$base"],
        2,
        True,
        "pass",
    )
    # Nothing after the comparison fails the job, and each such step runs also where the gate failed.
    assert [(step["continue-on-error"], "always()" in step["if"]) for step in steps[at + 1 :]] == [(True, True)] * 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_scripts_of_the_workflow_compare_a_branch_with_its_base_and_comment(project, tmp_path):
    """The scripts run as GitHub runs them. A stand-in for `gh` keeps the comment; no GitHub is here."""
    base = git(project, "rev-parse", "HEAD")
    (project / "sums.py").write_text(WORKLOAD.replace("2000", "20000"))
    commit(project, "slower")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "profpipe").write_text(f'#!/bin/sh\nexec {sys.executable} -m profpipe "$@"\n')
    (tools / "gh").write_text('#!/bin/sh\necho "$@" > words\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "profpipe.yml").read_text())["jobs"]["compare"]
    compare, comment = (step["run"] for step in workflow["steps"] if "run" in step)
    variables = environment() | {"PATH": f"{tools}:{os.environ['PATH']}", "PIPELINE": "pipeline.yaml", "BASE": base}
    variables |= {name: str(tmp_path / name) for name in ("OUT", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    ran = subprocess.run(["bash", "-e", "-c", compare], cwd=project, env=variables, capture_output=True, text=True)
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert json.loads((project / "profpipe.json").read_text())["gate"]["result"] == "failed"
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text().startswith("# B against A")
    outputs = dict(line.split("=", 1) for line in (tmp_path / "GITHUB_OUTPUT").read_text().splitlines())
    assert outputs["gate"] == "failed" and Path(outputs["folder"], "report.html").exists()
    variables |= {"NUMBER": "7", "FOLDER": outputs["folder"], "RUN": "https://example.org/run"}
    subprocess.run(["bash", "-e", "-c", comment], cwd=project, env=variables, check=True)
    assert (project / "words").read_text().startswith("pr comment 7 ")
    text = (project / "comment.md").read_text()
    assert "**Gate of 2 %:** failed by" in text and text.endswith("[All cases](https://example.org/run)\n")
    assert len(text) < 65_536 and "| case |" not in text


# --- the sides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected", "published"),
    [
        ("set:impl=fa2", Spec(SpecKind.SET, "impl=fa2"), "set:impl=fa2"),
        ("env:A=b:c=d", Spec(SpecKind.ENV, "A=b:c=d"), "env:A=b:c=d"),
        ("git:HEAD~2", Spec(SpecKind.GIT, "HEAD~2"), "git:HEAD~2"),
        ("dir:/a/b", Spec(SpecKind.DIR, "/a/b"), "dir:/a/b"),
        # The value of a secret variable is not published.
        ("env:HF_TOKEN=abc", Spec(SpecKind.ENV, "HF_TOKEN=abc"), "env:HF_TOKEN=..."),
        ("set:workloads.w.env.HF_TOKEN=abc", Spec(SpecKind.SET, "workloads.w.env.HF_TOKEN=abc"),
         "set:workloads.w.env.HF_TOKEN=..."),
    ],
)  # fmt: skip
def test_a_side_is_described_by_a_kind_and_a_value(text, expected, published):
    assert Spec.parse(text, "--a") == expected
    assert expected.published == published


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["main"], "--b: 'main' describes no side. Write git:REV"),
        (["gti:main"], "--b: 'gti:main' describes no side. Did you mean 'git'?"),
        (["set:impl"], "--b: 'set:impl' is not set:NAME=VALUE. For example: set:impl=sdpa_flash"),
        (["env:=1"], "--b: 'env:=1' has no value."),
        (["git:"], "--b: 'git:' has no value. For example: git:main"),
        (["git:main", "dir:x"], "--b: git:main and dir:x contradict each other"),
    ],
)
def test_words_that_describe_no_side_are_refused_with_what_to_write(words, message):
    with pytest.raises(ConfigError) as caught:
        sides.parse_specs(words, "--b")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([], ["extra=3"], [("n=1", "n=1", "n=1,extra=3"), ("n=2", "n=2", "n=2,extra=3")]),
        (["n=1"], ["n=4"], [("default", "n=1", "n=4")]),
        (["n=1,2"], ["n=1,2", "extra=1"], [("n=1", "n=1", "n=1,extra=1"), ("n=2", "n=2", "n=2,extra=1")]),
        (["n=1,2"], ["n=1"], None),
        (["n=1,2"], ["n=3,4"], None),
    ],
)
def test_cases_join_without_the_parameters_that_differ_between_the_sides(project, a, b, expected):
    both = [loader.load_pipeline(project / "pipeline.yaml", words) for words in (a, b)]
    if expected is None:
        with pytest.raises(ConfigError, match="A and B must have the same cases"):
            join_cases(*both)
    else:
        assert [(name, x.id, y.id) for name, x, y in join_cases(*both)["sums"]] == expected


def test_a_package_is_foreign_if_its_file_belongs_to_another_root_than_that_of_the_side():
    roots = ["/repo/out/run/raw/checkouts/A", "/repo"]
    files = {
        "pkg": "/repo/src/pkg/__init__.py",
        "pkg.part": "/repo/src/pkg/part.py",
        "own": "/repo/out/run/raw/checkouts/A/own.py",
        "numpy": "/repo/.venv/lib/python3.12/site-packages/numpy/__init__.py",
        "profpipe.job": "/repo/profpipe/job.py",
        "elsewhere": "/repository/elsewhere.py",
        "built_in": None,
    }
    assert dict(origins.foreign_packages(files, roots)) == {"pkg": "src/pkg/__init__.py"}
    assert dict(origins.foreign_packages(files, roots[::-1])) == {"own": "own.py"}


def test_the_page_and_the_document_name_the_packages_that_a_side_loaded_from_elsewhere():
    run = run_of()
    run = replace(run, ab=replace(run.ab, a=SideEntry(("git:main",), foreign_modules={"pkg": "src/pkg/__init__.py"})))
    findings = pairs.analyze(tables_of({"c": around(0)}), run)
    page = Markdown().section(verdicts.headline(findings, run))
    expected = "loaded code from outside its folder, so both sides may run the same code: "
    assert f"- **A** {expected}`pkg` (`src/pkg/__init__.py`)." in page and "**B**" not in page
    warnings = results_json.verdict_document(findings, tables_of({}), run, "", 0)["warnings"]
    assert [each["kind"] for each in warnings] == ["foreign_modules"] and expected in warnings[0]["text"]


@pytest.mark.slow
def test_a_side_that_imports_a_package_from_the_users_folder_is_reported(project):
    (project / "src" / "pkg").mkdir(parents=True)
    (project / "src" / "pkg" / "__init__.py").write_text("")
    (project / "sums.py").write_text("import pkg\n" + WORKLOAD)
    (project / "program.py").write_text("import pkg\n")
    (project / "pipeline.yaml").write_text(PIPELINE + "  program: {command: [python, program.py]}\n")
    commit(project, "with a package below src")
    path = os.pathsep.join([environment()["PYTHONPATH"], str(project / "src")])
    for workload in ("sums", "program"):
        ab(project, "--a", "git:HEAD", "--pairs", "1", "-w", workload, PYTHONPATH=path)
        settings = loaded(project)[1].ab
        assert settings.a.foreign_modules == {"pkg": "src/pkg/__init__.py"} and settings.b.foreign_modules == {}
    # Relative to the folder of the side, the package is that of the commit.
    ab(project, "--a", "git:HEAD", "--pairs", "1", "-w", "sums", "--set", "workloads.sums.env.PYTHONPATH=src")
    assert loaded(project)[1].ab.a.foreign_modules == {}
    assert verdicts_of(project) == {"n=1": "inconclusive", "n=2": "inconclusive"}


# --- checkouts -------------------------------------------------------------------------------------------------------


def state_of(folder):
    """Return the hash of every file of a repository, its index and its objects included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "out" not in path.parts)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_checkout_of_a_folder_has_its_commit_alone(project, tmp_path):
    (project / "sub").mkdir()
    (project / "sub" / "data.txt").write_text("old")
    old = commit(project, "two")
    (project / "sub" / "data.txt").write_text("not committed")
    before = state_of(project)
    repository, found, prefix = checkout.find(project / "sub", "HEAD", "--a")
    assert (found, prefix) == (old, "sub/")
    checkout.create(repository, found, tmp_path / "copy")
    assert (tmp_path / "copy" / "sub" / "data.txt").read_text() == "old"
    assert git(tmp_path / "copy", "status", "--porcelain") == ""
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{project}", "shallow")
    repository, found, _ = checkout.find(tmp_path / "shallow", "HEAD", "--a")
    checkout.create(repository, found, tmp_path / "of_shallow")
    assert found == old and (tmp_path / "of_shallow" / "sums.py").exists()
    assert state_of(project) == before


@pytest.fixture
def crowded(project, tmp_path):
    """A detached worktree of a repository with a submodule, LFS pointers and changes of every kind; and the state."""
    (tmp_path / "library").mkdir()
    git(tmp_path / "library", "init", "--quiet")
    (tmp_path / "library" / "version.txt").write_text("1")
    commit(tmp_path / "library", "one")
    git(project, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    (project / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (project / "weights.bin").write_text(POINTER)
    (project / ".gitignore").write_text("out/\n")
    commit(project, "two")
    git(project, "worktree", "add", "--quiet", "--detach", str(tmp_path / "worktree"))
    worktree = tmp_path / "worktree"
    git(worktree, "submodule", "--quiet", "update", "--init")
    for folder in (project, worktree):
        (folder / "sums.py").write_text(WORKLOAD.replace("2000", "2100"))
        (folder / "untracked.txt").write_text("untracked")
        (folder / "staged.txt").write_text("staged")
        git(folder, "add", "staged.txt")
        (folder / "lib" / "version.txt").write_text("changed")
        # `git status` would write the index again for it.
        os.utime(folder / "pipeline.yaml")
    return project, worktree


POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


@pytest.mark.slow
def test_nothing_of_a_repository_with_changes_submodules_and_worktrees_is_touched(crowded):
    before = [state_of(folder) for folder in crowded]
    seen = []
    for folder, revision in zip(crowded, ("HEAD", "HEAD~1"), strict=True):
        ab(folder, "--a", f"git:{revision}", "--pairs", "1", PYTHONDONTWRITEBYTECODE="1", code=0)
        seen.append(loaded(folder)[1].ab.a.commit)
    assert seen == [git(crowded[0], "rev-parse", "HEAD"), git(crowded[0], "rev-parse", "HEAD~1")]
    assert [state_of(folder) for folder in crowded] == before
    assert len(git(crowded[0], "worktree", "list").splitlines()) == 2


def test_a_checkout_has_the_submodules_at_their_commits_and_the_pointers_of_lfs(crowded, tmp_path):
    (crowded[0] / "lib" / "version.txt").write_text("2")
    commit(crowded[0] / "lib", "two")
    git(crowded[0], "commit", "--quiet", "--message", "with a later submodule", "lib")
    for folder, revision, version in (
        (crowded[0], "HEAD", "2"),
        (crowded[0], "HEAD~1", "1"),
        (crowded[1], "HEAD", "1"),
    ):
        before, copy = state_of(folder), tmp_path / f"{folder.name}-{revision}"
        repository, found, _ = checkout.find(folder, revision, "--a")
        checkout.create(repository, found, copy)
        assert (copy / "lib" / "version.txt").read_text() == version
        assert (copy / "weights.bin").read_text() == POINTER and not (copy / "untracked.txt").exists()
        assert state_of(folder) == before


def test_a_link_that_gitmodules_names_is_no_submodule(project, tmp_path):
    git(tmp_path, "clone", "--quiet", str(project), "other")
    (project / "link").symlink_to(tmp_path / "other")
    (project / ".gitmodules").write_text('[submodule "link"]\n\tpath = link\n\turl = ./link\n')
    before, found = state_of(tmp_path / "other"), commit(project, "a link")
    checkout.create(project, found, tmp_path / "copy")
    assert (tmp_path / "copy" / "link").is_symlink() and state_of(tmp_path / "other") == before


@pytest.mark.slow
@pytest.mark.parametrize("key", ["filter.lfs.smudge", "filter.lfs.process", "core.fsmonitor", "core.hooksPath"])
def test_git_starts_no_program_in_a_checkout(crowded, tmp_path, monkeypatch, key):
    """Not even one that the user configured: git-lfs would fetch, and a relative path is a file of the commit."""
    home, program = tmp_path / "home", f"touch {tmp_path / 'ran'}; exit 1"
    home.mkdir()
    for folder in (tmp_path / "library", crowded[0]):
        (folder / "hooks").mkdir()
        for hook in ("post-checkout", "post-index-change", "reference-transaction"):
            (folder / "hooks" / hook).write_text(f"#!/bin/sh\n{program}\n")
            (folder / "hooks" / hook).chmod(0o755)
        commit(folder, "hooks")
    for name, value in ((key, "hooks" if key == "core.hooksPath" else program), ("filter.lfs.required", "true")):
        subprocess.run(["git", "config", "--file", home / ".gitconfig", name, value], check=True)
    git(crowded[0] / "lib", "pull", "--quiet", str(tmp_path / "library"))
    monkeypatch.setenv("HOME", str(home))
    repository, found, _ = checkout.find(crowded[0], "HEAD", "--a")
    checkout.create(repository, found, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "weights.bin", (0, 0))
    assert manifest_entries.git_state(process.ask, tmp_path / "copy") == manifest.GitState(found, False)
    assert (tmp_path / "copy" / "weights.bin").read_text() == POINTER
    assert not (tmp_path / "ran").exists()


def test_a_commit_whose_objects_a_partial_clone_lacks_is_refused_and_nothing_is_fetched(project, tmp_path):
    first = git(project, "rev-parse", "HEAD")
    (project / "sums.py").write_text(WORKLOAD.replace("2000", "2100"))
    commit(project, "two")
    git(project, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", f"file://{project}", "partial")
    before = state_of(tmp_path / "partial")
    repository, found, _ = checkout.find(tmp_path / "partial", first, "--a")
    with pytest.raises(ConfigError, match=f"commit {first[:12]} cannot be checked out: .*dir:FOLDER"):
        checkout.create(repository, found, tmp_path / "copy")
    done = ab(tmp_path / "partial", "--a", f"git:{first}")
    assert (done.returncode, done.stdout) == (2, "") and f"commit {first[:12]} cannot be checked out" in done.stderr
    # The run that could not begin is gone, so `resume` has nothing to do.
    assert [path.name for path in (tmp_path / "partial" / "out").iterdir()] == []
    assert state_of(tmp_path / "partial") == before
    assert not (tmp_path / "copy").exists()


def test_a_revision_that_does_not_exist_is_refused(project, tmp_path):
    with pytest.raises(ConfigError, match="--a: git:nowhere names no commit of"):
        checkout.find(project, "nowhere", "--a")
    with pytest.raises(ConfigError, match="--a: git:--all names no commit of"):
        checkout.find(project, "--all", "--a")
    with pytest.raises(ConfigError, match=f"git:HEAD needs a git repository that holds {tmp_path}: .*dir:PATH"):
        checkout.find(tmp_path, "HEAD", "--a")


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--a, --b: neither --a nor --b is given. For example: --a git:main. To measure"),
        (("--a", "set:n=1", "--b", "set:n=1"), "--a, --b: --a and --b are the same."),
        (("--aa", "--b", "set:n=1"), "--aa: runs A on both sides"),
        (("--b", "env:X=1", "--inconclusive", "fail"), "--inconclusive: has no meaning without --gate."),
        (("--b", "dir:nowhere"), "--b: nowhere is no folder."),
        (("--b", "python:nowhere"), "--b: python:nowhere does not exist."),
        (("--b", "git:nowhere"), "--b: git:nowhere names no commit of"),
        (("--b", "set:n=1"), "workload 'sums': "),
        (
            ("--aa", "--gate", "5", "--pairs", "7"),
            "--gate: cannot decide with --pairs 7: 8 pairs are the least that can",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_runs(project, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert cli.main(["ab", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"profpipe: {message}")
    assert not (project / "out").exists()


@pytest.mark.slow
def test_a_change_is_found_in_its_direction_and_fails_the_gate_after_a_second_block(project):
    # Processes that sleep, long enough for a busy machine. The outputs of the step can be written, the summary cannot:
    # that is a warning.
    sleeps = {"command": ["sh", "-c", "sleep 0.$EXTRA # {n}"], "hook": False, "env": {"EXTRA": "1"}}
    sleeps |= {"profilers": ["plain"], "matrix": {"n": [1]}}
    (project / "pipeline.yaml").write_text(json.dumps({"version": 1, "name": "small", "workloads": {"sums": sleeps}}))
    github = {"GITHUB_OUTPUT": str(project / "outputs"), "GITHUB_STEP_SUMMARY": str(project / "no" / "summary")}
    words = ("--gate", "5", "--seed", "3", "--junit", "junit.xml", "--github")
    done = ab(project, "--b", "env:EXTRA=5", *words, **github, code=4)
    assert (project / "outputs").read_text().startswith("gate=failed\n")
    assert "profpipe: --github: GITHUB_STEP_SUMMARY: No such file or directory." in done.stderr
    assert ElementTree.parse(project / "junit.xml").getroot().find("testsuite").get("failures") == "1"
    assert verdicts_of(project) == {"n=1": "slower"}
    assert "the gate of 5 % failed: sums/n=1" in done.stderr
    again = forked.run(project, "resume", "out/latest", "--json", env=environment())
    assert again.returncode == 4 and "nothing was measured now." in again.stderr
    data, run = loaded(project)
    # On a busy machine the first pairs scatter, and longer ones follow.
    count = 12 if run.ab.longer else 8
    assert set(data.metrics["subject"]) == {f"pair {n} {side}" for n in range(1, 2 * count + 1) for side in "AB"}
    assert len(run.jobs) == 4 * count and run.ended
    assert run.ab.b.specs == ("env:EXTRA=5",)
    # The order is drawn: some pairs begin with A, others with B.
    firsts = [job.folder[-1] for job in run.jobs[::2]]
    assert {"A", "B"} == set(firsts)


@pytest.mark.slow
def test_an_a_a_run_is_the_floor_of_later_runs(project):
    done = ab(project, "--aa", "--pairs", "2", code=0)
    assert "Both sides are the same, 2 cases: 0 slower" in done.stdout
    first = pairs.analyze(*loaded(project))
    (project / "out" / "latest").unlink()
    assert ab(project, "--b", "env:EXTRA=1", "--pairs", "1").returncode == 0
    _, run = loaded(project)
    expected = {case.case: verdict.spread(case.log_ratios) for case in first.cases}
    assert run.ab.spreads == {"sums": pytest.approx(expected)}


@pytest.mark.slow
def test_a_case_that_fails_is_not_tried_in_later_pairs_and_the_others_go_on(project):
    done = ab(project, "--b", "env:FAILS=2", "--pairs", "3")
    assert done.returncode == 1
    data, run = loaded(project)
    assert dict(zip(data.cases["case"], data.cases["status"], strict=True)) == {"n=1": "ok", "n=2": "failed"}
    assert data.cases["reason"].iloc[1].startswith("pair 1 B: ")
    tried = [job.folder for job in run.jobs if "n=2" in job.cases]
    found = pairs.analyze(data, run)
    assert [case.failure and case.failure.is_of_b_alone for case in found.cases] == [None, True]
    assert sorted(tried) == ["raw/sums/pair-01/A", "raw/sums/pair-01/B"]


@pytest.mark.slow
def test_a_commit_a_folder_and_an_interpreter_are_sides(project, tmp_path):
    def code(name, count):
        return WORKLOAD.replace("    return", f"    print('code: {name}')\n    return").replace("2000", count)

    (project / "sums.py").write_text(code("committed", "2000"))
    git(project, "commit", "--quiet", "--all", "--message", "two")
    (project / "sums.py").write_text(code("present", "60000"))
    other = tmp_path / "other"
    shutil.copytree(project, other)
    (other / "sums.py").write_text(code("other", "1800000"))
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    pairs_and_seed = ("--pairs", "1", "--seed", "1")
    for a, b, ran in (
        (["git:HEAD"], [], {"A": "committed", "B": "present"}),
        (["git:HEAD"], [f"dir:{other}"], {"A": "committed", "B": "other"}),
        ([f"dir:{other}"], [f"python:{link}"], {"A": "other", "B": "present"}),
    ):
        words = [word for flag, specs in (("--a", a), ("--b", b)) for spec in specs for word in (flag, spec)]
        ab(project, *words, *pairs_and_seed, code=0)
        data, run = loaded(project)
        # Thirty times the work and more: the bound also holds on a busy machine.
        ratios = data.verdicts["ratio"] if ran["A"] == "committed" else 1 / data.verdicts["ratio"]
        assert len(ratios) == 2 and ratios.min() > 3
        for side, name in ran.items():
            log = project / "out" / "latest" / "raw" / "sums" / "pair-01" / side / "log.txt"
            assert set(re.findall(r"code: (\w+)", log.read_text())) == {name}
        assert not (project / "out" / "latest" / checkout.FOLDER).exists()
        assert str(project) not in (project / "out" / "latest" / "run.json").read_text()
    assert run.ab.b.specs == (f"python:{link}",)
    assert [job.argv[0][0] for job in run.jobs if job.folder.endswith("B")] == [str(link)]


@pytest.mark.slow
def test_a_command_is_compared_by_the_time_of_its_process(project):
    (project / "work.py").write_text("import sys\nsum(range(int(sys.argv[1])))\n")
    pipeline = 'version: 1\nname: c\nworkloads: {prog: {command: [python, work.py, "{n}"], matrix: {n: [2000000]}}}\n'
    (project / "pipeline.yaml").write_text(pipeline)
    done = ab(project, "--b", "set:n=20000000", "--pairs", "2", "--json=full", code=0)
    (row,) = json.loads(done.stdout)["cases"]
    assert row["case"] == "default" and row["pairs"] == 2
    assert row["b_ns"] > row["a_ns"] > 1e6


MARKED = """
import sys
import time
from profpipe import steps

time.sleep(1)
for _ in steps(range(40)):
    sum(range(int(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_command_with_steps_is_compared_by_its_step_time(project):
    (project / "train.py").write_text(MARKED)
    train = {"command": [sys.executable, "train.py", "{batch}"], "matrix": {"batch": [64]}}
    (project / "pipeline.yaml").write_text(json.dumps({"version": 1, "name": "t", "workloads": {"train": train}}))
    ab(project, "--b", "env:OMP_NUM_THREADS=1", "--pairs", "1", code=0)
    data, _ = loaded(project)
    walls = data.metrics[data.metrics["metric"] == "process_wall"]["value"]
    # The start takes most of the process, and a step far less than a thousandth of that.
    assert len(walls) == 2 and data.verdicts["a_ns"].iloc[0] < walls.min() / 20


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_point_leaves_the_repository_alone_and_goes_on(project):
    (project / "sums.py").write_text(WORKLOAD.replace("2000", "2100"))
    before = state_of(project)
    undisturbed = ab(project, "--a", "git:HEAD", "--pairs", "3", "--seed", "1", "--out", "../undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    rng, argv = random.Random(11), [sys.executable, "-m", "profpipe"]
    quiet = {"cwd": project, "env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = ["ab", "--a", "git:HEAD", "--pairs", "3", "--seed", "1"]
    kills = 0
    # As a process that was killed long ago while it made the folder of its run left it.
    left = project / "out" / ".20261123T100000Z-small-ab.0123456789abcdef.partial"
    (left / "raw").mkdir(parents=True)
    os.utime(left, (0, 0))
    while True:
        has_run = any((project / "out").glob("[!.]*-ab"))
        child = subprocess.Popen([*argv, *(["resume"] if has_run else start)], start_new_session=True, **quiet)
        try:
            child.wait(rng.uniform(0.3, 2.5) if kills < 3 else 200)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            kills += 1
        assert {path: state for path, state in state_of(project).items() if "__pycache__" not in path} == before
        assert len(git(project, "worktree", "list").splitlines()) == 1
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        time.sleep(0.1)
    assert kills > 1
    data, run = loaded(project)
    assert list(data.verdicts["pairs"]) == [3, 3]
    assert len({job.folder for job in run.jobs}) == len(run.jobs) == 6
    assert set(data.cases["status"]) == {"ok"}
    assert math.isfinite(data.verdicts["ratio"].sum())
    assert not (project / "out" / "latest" / checkout.FOLDER).exists()
    out, other = project / "out", project.parent / "undisturbed"
    assert not left.exists()
    assert apart_from_times(out / "latest") == apart_from_times(other / "latest")


def apart_from_times(folder):
    """Return what two runs have in common if only their times differ: cases, processes in order, metrics, and files."""
    data, run = store.load(folder)
    jobs = [(job.folder, job.cases, job.argv[0][:3], str(job.status)) for job in run.jobs]
    metrics = data.metrics[["workload", "case", "profiler", "subject", "metric", "unit"]].sort_values("subject")
    cases = data.cases.drop(columns=["run", "seconds", "flags"])
    # A process that replaces a killed one has a second list of cases.
    again = re.compile(r"cases-\d+\.json")
    paths = [path for path in folder.rglob("*") if path.is_file() and not again.fullmatch(path.name)]
    files = {str(path.relative_to(folder)) for path in paths}
    return jobs, metrics.to_dict("records"), cases.to_dict("records"), files, run.ab, run.planned


@pytest.mark.slow
def test_a_resumed_run_refuses_other_code(project):
    child = subprocess.Popen(
        [sys.executable, "-m", "profpipe", "ab", "--b", "env:EXTRA=5"], cwd=project, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list((project / "out").glob("[!.]*-ab/raw/sums/pair-02")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    (project / "sums.py").write_text(WORKLOAD.replace("2000", "2100"))
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "resume"], cwd=project, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "was started with other code or settings" in done.stderr


@pytest.mark.slow
def test_the_page_names_the_versions_of_another_interpreter_that_differ(project, tmp_path):
    interpreters = {}
    for name, version, cuda, more in (("old", "2.7.0", "12.6", "1.0"), ("new", "2.8.0", "12.8", "")):
        venv.create(tmp_path / name, with_pip=False)
        (packages,) = (tmp_path / name / "lib").glob("python*/site-packages")
        # A stand-in: no second torch is installed here.
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").write_text("raise SystemExit('is not imported')\n")
        (packages / "torch" / "version.py").write_text(f"cuda: Optional[str] = '{cuda}'\nhip = None\n")
        for package, own in (("torch", version), ("A_Tool", more)):
            if own:
                info = packages / f"{package}-{own}.dist-info"
                info.mkdir()
                (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {own}\n")
        interpreters[name] = tmp_path / name / "bin" / "python"
    (project / "bench.py").write_text("print(sum(range(10)))\n")
    sides_of_both = ("--a", f"python:{interpreters['old']}", "--b", f"python:{interpreters['new']}")
    ab(project, *sides_of_both, "--pairs", "1", "--", "python", "bench.py", PYTHONPATH=str(ROOT), code=0)
    expected = (
        "torch 2.7.0 in A and 2.8.0 in B; CUDA of torch 12.6 in A and 12.8 in B; a-tool 1.0 in A and missing in B."
    )
    page = (project / "out" / "latest" / "SUMMARY.md").read_text()
    assert f"- Versions that differ and may explain a difference: {expected}\n" in page
    _, run = loaded(project)
    assert [job.argv[0][0] for job in run.jobs if job.folder.endswith("B")] == [str(interpreters["new"])]
    assert run.ab.b.versions == {"torch": "2.8.0", "CUDA of torch": "12.8", "a-tool": ""}
