"""`profpipe ab --more`: further pairs of the undecided cases, in a new run and in one that has ended."""

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from xml.etree import ElementTree

import forked
import pandas as pd
import pytest
from pair_study import environment, page_of, run_of, tables_of
from report_study import check_golden

from profpipe import cli
from profpipe.analysis import history, pairs, verdict
from profpipe.analysis.changes import Gate
from profpipe.config.models import read_recorded
from profpipe.measure import rounds
from profpipe.report import ci, results_json
from profpipe.results import pair_blocks, store
from profpipe.results.pair_blocks import PairBlock
from profpipe.results.schema import Verdict

#: Cases by their first block: undecided, decided, different by less than twice the spread of the pairs, the same.
UNDECIDED = [0.98, 1.06, 0.97, 1.05, 1.04, 1.06, 0.99, 1.05]
CLEAR = [1.03 + 0.001 * n for n in range(8)]
UNCLEAR = [1.012, 1.02, 1.09, 1.013, 1.03, 1.10, 1.015, 1.08]
SAME = [1 + 0.0005 * (n - 4) for n in range(8)]
#: Further pairs: clear after the first look, and never.
SLOWER = [1.05 + 0.001 * n for n in range(10)]
SCATTERED = [0.95 + 0.02 * (n * 7 % 10) for n in range(10)]


def numbered(first, further=(), begin=9):
    return dict(enumerate(first, start=1)) | dict(enumerate(further, start=begin))


# --- which cases get further pairs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "settings", "expected"),
    [
        # What is undecided or not clear gets further pairs, until it is decided.
        (dict(zip("abcd", map(numbered, (UNDECIDED, CLEAR, UNCLEAR, SAME)), strict=True)), {}, "ac"),
        ({"a": numbered(UNDECIDED, SLOWER[:9])}, {}, "a"),
        ({"a": numbered(UNDECIDED, SLOWER)}, {}, ""),
        ({"a": numbered(UNDECIDED, SCATTERED)}, {}, "a"),
        # With a gate, only what does not pass it. The one-sided test already places the case below 20 %.
        ({"a": numbered(UNDECIDED), "b": numbered(CLEAR)}, {"gate": 2}, "a"),
        ({"a": numbered(UNDECIDED), "b": numbered(CLEAR)}, {"gate": 20}, ""),
        # The block of the gate may leave a case undecided, or confirm it.
        ({"b": numbered(CLEAR, UNDECIDED)}, {"gate": 1}, "b"),
        ({"b": numbered(CLEAR, UNCLEAR)}, {"gate": 1}, ""),
        # What fails the gate without being clear is measured in further pairs alone.
        ({"b": numbered(CLEAR), "c": numbered(UNCLEAR)}, {"gate": 1, "block": PairBlock.GATE}, "b"),
        ({"b": numbered(CLEAR), "c": numbered(UNCLEAR)}, {"gate": 1}, "c"),
        ({"b": numbered(CLEAR), "c": numbered(UNCLEAR)}, {"gate": 1, "more": 0, "block": PairBlock.GATE}, "bc"),
    ],
)
def test_further_pairs_are_for_cases_that_are_undecided_or_not_clear(ratios, settings, expected):
    settings = {"more": 20, "block": PairBlock.FURTHER} | settings
    block = settings.pop("block")
    assert {case for _, case in pairs.choose_again(tables_of(ratios), run_of(**settings), block)} == set(expected)


def test_a_case_that_failed_gets_no_further_pairs():
    data = tables_of({"a": numbered(UNDECIDED)}, {"a": ("crashed", "pair 3 A: signal 11")}.items())
    assert pairs.choose_again(data, run_of(more=20), PairBlock.FURTHER) == set()


# --- the verdict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("further", "expected"),
    [
        (SLOWER, (Verdict.SLOWER, 10, 10, Verdict.INCONCLUSIVE)),
        # The first block counts until ten further pairs are there.
        (SLOWER[:9], (Verdict.INCONCLUSIVE, 8, 0, None)),
        # Pairs after the look that decides do not count.
        ([*SLOWER, 0.9, 0.9, 0.9, 0.9, 0.9], (Verdict.SLOWER, 10, 10, Verdict.INCONCLUSIVE)),
    ],
)
def test_further_pairs_decide_alone(further, expected):
    found = pairs.analyze(tables_of({"a": numbered(UNDECIDED, further)}), run_of(more=20))
    (case,) = found.cases
    first = case.first.verdict if case.first else None
    assert (case.judgement.verdict, case.judgement.pairs, case.further_pairs, first) == expected
    if case.further_pairs:
        assert case.judgement.ratio == pytest.approx(statistics.median(SLOWER), rel=0.001)
        assert case.log_ratios == pytest.approx([math.log(ratio) for ratio in SLOWER])
    rows = pairs.verdict_rows(found, "r")
    assert (list(rows["further_pairs"]), list(rows["verdict"])) == ([expected[2]], [str(expected[0])])


def test_each_look_has_half_the_level_of_the_look_before():
    assert [*pair_blocks.looks(24)] == [10, 15, 20] and not pair_blocks.looks(9)
    first = [0.02 + 0.001 * n for n in range(10)]
    assert verdict.judge_further(first).verdict is Verdict.SLOWER
    # One sign of ten differs: p is 4/1024 at least, above 0.2 %.
    one_differs = [-0.0001, *first[1:]]
    judged = verdict.judge_further(one_differs)
    assert (judged.verdict, judged.pairs) == (Verdict.INCONCLUSIVE, 10)
    assert judged.pairs_more % 5 == 0 and judged.pairs_more > 0
    fifteen = verdict.judge_further([*one_differs, *first[:5]])
    assert (fifteen.verdict, fifteen.pairs) == (Verdict.SLOWER, 15)
    assert verdict.judge_further(first[:9]) is None
    # Chance over both looks: 2 of 1024, and less than 0.1 %.
    assert 2 / 1024 < fifteen.false_rate < 2 / 1024 + 0.001


def test_the_forecast_of_further_pairs_holds_at_the_levels_of_the_later_look():
    rng, decided = random.Random(3), []
    for _ in range(100):
        judged = verdict.judge_further([rng.gauss(0.03, 0.034) for _ in range(10)])
        if judged.verdict is Verdict.INCONCLUSIVE and judged.pairs_more and judged.pairs_more <= 40:
            fresh = verdict.judge_further([rng.gauss(0.03, 0.034) for _ in range(10 + judged.pairs_more)])
            decided.append(fresh.verdict is not Verdict.INCONCLUSIVE)
    # The pairs vary from block to block, and so does the forecast.
    assert len(decided) > 20 and statistics.fmean(decided) >= 0.6


def test_a_difference_that_lower_and_lower_levels_never_find_has_no_forecast():
    # Half a standard deviation: 52 pairs would decide it at 0.2 %, and no look does at its own level.
    scattered = [0.02 + 0.04 * statistics.NormalDist().inv_cdf((n + 0.5) / 20) for n in range(20)]
    shuffled = random.Random(1).sample(scattered, 20)
    judged = verdict.judge_further(shuffled)
    assert (judged.verdict, judged.pairs, judged.pairs_more) == (Verdict.INCONCLUSIVE, 20, None)
    at_first_level = verdict.judge(shuffled, alpha=verdict.ALPHA_FURTHER, alpha_same=verdict.ALPHA_SAME_FURTHER)
    assert 20 < at_first_level.pairs_more < 60


def test_a_first_block_of_more_pairs_is_clear_at_the_same_t_value():
    def is_clear(count, deviations):
        ratios = [0.05 + sign * 0.01 for sign in (-1, 1)] * (count // 2)
        shift = deviations * statistics.stdev(ratios) - 0.05
        moved = [value + shift for value in ratios]
        return verdict.is_clear(replace(verdict.judge(ratios), ratio=math.exp(statistics.fmean(moved))), moved)

    assert is_clear(8, 2.01) and not is_clear(8, 1.99)
    assert is_clear(32, 1.01) and not is_clear(32, 0.99)


def test_a_gate_decides_after_the_further_pairs():
    same = [1 + 0.0002 * (n - 5) for n in range(10)]
    # With a gate the pairs 9 to 16 are those of a case that fails it.
    for further, gate, judged in (
        ((), Gate.UNDECIDED, Verdict.INCONCLUSIVE),
        (SLOWER, Gate.FAILED, Verdict.SLOWER),
        (same, Gate.PASSED, Verdict.SAME),
    ):
        found = pairs.analyze(tables_of({"a": numbered(UNDECIDED, further, 17)}), run_of(2, more=20))
        assert (found.gate.verdict, found.cases[0].judgement.verdict) == (gate, judged)
        assert found.cases[0].further_pairs == len(further)


def test_the_expected_false_verdicts_count_both_blocks_and_the_noise_model_learns_from_the_first():
    first, both = tables_of({"a": numbered(UNDECIDED)}), tables_of({"a": numbered(UNDECIDED, SLOWER)})
    expected = pairs.analyze(first, run_of(more=20)).false_verdicts + 2 / 1024
    assert pairs.analyze(both, run_of(more=20)).false_verdicts == pytest.approx(expected)
    (sample,) = history.sample_run("r", both, run_of(is_aa=True, more=20))
    assert sample.spread == pytest.approx(verdict.spread([math.log(ratio) for ratio in UNDECIDED]))
    assert sample.n == 8


# --- what is written -------------------------------------------------------------------------------------------------


def decided_and_not():
    ratios = {
        "a": numbered(UNDECIDED, SLOWER),
        "b": numbered(CLEAR),
        "c": numbered(UNCLEAR, SCATTERED),
        "d": numbered(SAME),
    }
    return tables_of(ratios), run_of(more=20, seed=7)


def test_the_page_with_further_pairs_is_the_golden_one_and_that_of_a_command_says_nothing_of_visits(regenerate):
    data, run = decided_and_not()
    check_golden("further_pairs.md", page_of(data, run), regenerate)
    of_command = replace(run, pipeline=read_recorded({"workloads": {"w": {"command": ["python", "train.py"]}}}))
    assert "visits" in page_of(data, run) and "visits" not in page_of(data, of_command)


def test_the_json_document_and_the_messages_say_how_many_further_pairs_decided():
    data, run = decided_and_not()
    found = pairs.analyze(data, run)
    document = json.loads(json.dumps(results_json.verdict_document(found, data, run, "SUMMARY.md", 0), allow_nan=False))
    assert document["more"] == 20
    cases = {case["case"]: case for case in document["cases"]}
    assert {name: case["further_pairs"] for name, case in cases.items()} == {"a": 10, "b": 0, "c": 10, "d": 0}
    assert cases["a"]["first_block"]["verdict"] == "inconclusive" and cases["b"]["first_block"] is None
    suite = ElementTree.fromstring(ci.junit(found, "small"))
    texts = {test.get("name"): test.findtext("system-out") for test in suite.iter("testcase")}
    assert texts["a"] == "w/a: slower, +5.4 % (decided by 10 further pairs)"
    assert texts["c"].endswith("(after 10 further pairs)") and "further" not in texts["b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ab", "--aa", "--more", "4"), "--more: 4 further pairs are too few to decide a case. Ask for at least 10."),
        (("ab", "--aa", "--more", "2000"), "--more: 2000 pairs are too many for an exact test."),
        (("resume", "out/x", "--more", "9"), "--more: 9 further pairs are too few to decide a case."),
    ],
)
def test_a_number_of_further_pairs_that_decides_nothing_is_refused(tmp_path, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*arguments]) == 2
    assert capsys.readouterr().err.startswith(f"profpipe: {message}")


@pytest.mark.parametrize(
    ("further", "more", "offered"),
    [
        ((), 0, 20),
        ([1.049, 0.9999, *SLOWER[2:]], 10, 30),
        (SLOWER, 10, None),
        # No number of pairs up to 1000 would decide.
        (SCATTERED, 10, None),
    ],
)
def test_the_page_offers_more_pairs_where_they_may_decide(further, more, offered):
    page = page_of(tables_of({"a": numbered(UNDECIDED, further)}), run_of(more=more))
    lines = [line for line in page.splitlines() if "profpipe resume" in line]
    command = f"profpipe resume out/20261123T100000Z-small-ab --more {offered}"
    offer = f"- To measure inconclusive cases alone, in up to 20 more pairs: `{command}`."
    assert lines == ([offer] if offered else [])


# --- the command -----------------------------------------------------------------------------------------------------

WORKLOAD = """
import random
import time
from pathlib import Path

PARAMS = {"n": 1}
#: The case 1 scatters from process to process.
SECONDS = random.uniform(0.001, 0.003)

def build(params):
    # Each visit writes a line.
    with Path(__file__).with_name("visits").open("a") as stream:
        print(params["n"], file=stream)
    seconds = 0.002 if params["n"] == 2 else SECONDS
    return lambda: time.sleep(seconds)
"""
PIPELINE = """
version: 1
name: small
defaults: {warmup: 1, repeats: 10, timeout_s: 60, timing: {budget_s: 0.02}}
workloads:
  naps: {script: naps, profilers: [plain], matrix: {n: [1, 2]}}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "naps.py").write_text(WORKLOAD)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def further_subjects(data, case, begin):
    rows = data.metrics[(data.metrics["case"] == case) & (data.metrics["metric"] == "time")]
    return {subject for subject in rows["subject"] if int(subject.split()[1]) >= begin}


@pytest.mark.slow
def test_a_finished_run_gets_further_pairs_of_its_undecided_cases_with_several_visits(project):
    done = forked.run(project, "ab", "--aa", "--seed", "1", env=environment())
    assert done.returncode == 0, done.stderr
    run = project / "out" / "latest"
    assert f"profpipe resume out/{run.resolve().name} --more 20" in (run / "SUMMARY.md").read_text()
    before = store.load(run)
    (project / "visits").unlink()
    done = forked.run(project, "resume", "out/latest", "--more", "10", "--json=full", env=environment())
    assert done.returncode == 0, done.stderr
    assert "measuring what is undecided, in 10 further pairs (at most 10): " in done.stderr
    data, manifest = store.load(run)
    assert manifest.ended and manifest.ab.more == 10
    undecided = pairs.choose_again(*before, PairBlock.FURTHER)
    begin = pair_blocks.first_further(manifest.ab)
    subjects = {f"pair {number} {side}" for number in range(begin, begin + 10) for side in "AB"}
    assert ("naps", "n=1") in undecided
    for case in ("n=1", "n=2"):
        assert further_subjects(data, case, begin) == (subjects if ("naps", case) in undecided else set())
    assert (project / "visits").read_text().splitlines().count("1") == 20 * pair_blocks.VISITS
    document = json.loads(done.stdout)
    assert {case["case"]: case["further_pairs"] for case in document["cases"]}["n=1"] == 10
    # The time of a process is the mean of the medians of its visits.
    events = run / "raw" / "naps" / f"pair-{begin:02d}" / "A" / "job.jsonl"
    measured = rounds.load_earlier_rounds(events, {"n=1"})["n=1"]["time"]
    mean = statistics.fmean(statistics.median(values_ns) for values_ns, _ in measured.values())
    rows = data.metrics[(data.metrics["subject"] == f"pair {begin} A") & (data.metrics["case"] == "n=1")]
    assert len(measured) == pair_blocks.VISITS and list(rows["value"]) == pytest.approx([mean])
    again = forked.run(project, "resume", "out/latest", "--more", "10", env=environment())
    assert again.returncode == 0 and "has nothing left to do" in again.stdout
    assert "--more counts these too: ask for at least 15." in again.stdout or "No case needs" in again.stdout
    without = forked.run(project, "resume", "--more", "20", env=environment())
    assert without.returncode == 2 and "Name a run that has ended: profpipe resume RUN --more 20" in without.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_is_killed_in_its_further_pairs_goes_on(project):
    argv = [sys.executable, "-m", "profpipe"]
    quiet = {"cwd": project, "env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*argv, "ab", "--aa", "--seed", "1", "--more", "10"], start_new_session=True, **quiet)
    deadline = time.monotonic() + 200
    while not list(project.glob("out/*-ab/raw/naps/pair-12")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    time.sleep(random.Random(1).uniform(0.1, 0.3))
    done = forked.run(project, "resume", env=environment(), timeout=400)
    assert done.returncode == 0, done.stderr
    data, manifest = store.load(project / "out" / "latest")
    begin = pair_blocks.first_further(manifest.ab)
    subjects = {f"pair {number} {side}" for number in range(begin, begin + 10) for side in "AB"}
    assert further_subjects(data, "n=1", begin) == subjects
    assert len({job.folder for job in manifest.jobs}) == len(manifest.jobs) == 2 * (begin + 9)
    assert {case.case: case.further_pairs for case in pairs.analyze(data, manifest).cases}["n=1"] == 10


@pytest.mark.slow
def test_further_pairs_are_refused_for_a_run_without_pairs(project):
    assert forked.run(project, "run", env=environment()).returncode == 0
    done = forked.run(project, "resume", "out/latest", "--more", "10", env=environment())
    assert done.returncode == 2 and "--more: is for a run of `profpipe ab`" in done.stderr


def test_a_process_that_took_steps_as_iterations_is_compared_by_the_step():
    """Of a loader with workers each 16th step may be long: in one of 16 processes such steps were an iteration."""
    data = tables_of({"x": [0.25] * 7 + [4.0]})
    row = data.metrics.iloc[[-1]].assign(metric="step_stride", value=16.0)
    (case,) = pairs.analyze(replace(data, metrics=pd.concat([data.metrics, row])), run_of()).cases
    assert case.verdict is Verdict.FASTER and case.judgement.ratio == pytest.approx(0.25) and case.b_ns == 250_000
