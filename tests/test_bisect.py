"""``profpipe bisect``: which of the commits made a program slower."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from program import WITHOUT_TORCH, profpipe

from profpipe import plugins
from profpipe.analysis import bisect
from profpipe.results import folders
from profpipe.results.manifest import BisectEntry, BisectKind, BisectPairs, Manifest
from profpipe.runner import checkout

ROOT = Path(__file__).resolve().parents[1]

#: What the program sleeps, in seconds: the difference is far larger than the noise of a loaded machine.
FAST, SLOW = 0.01, 0.15
#: A subject that would be a command of a terminal, markup and HTML.
SUBJECT = "Change {} \x1b[31m `x` <script>alert(1)</script> {{}} |"


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def make_repository(folder, programs):
    """Make a repository with a commit for each text of the program; return the hashes."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number, text in enumerate(programs):
        (folder / "bench.sh").write_text(f"# commit {number}\n{text}\n", encoding="utf-8")
        git(folder, "add", "bench.sh")
        git(folder, "commit", "--quiet", "--message", SUBJECT.format(number))
    return git(folder, "log", "--reverse", "--format=%H").split()


def run_bisect(folder, *words, exit_code=0):
    program = ("--", "sh", "bench.sh", "--password", "hunter2")
    return profpipe(folder, "bisect", *words, *program, exit_code=exit_code, PYTHONPATH=WITHOUT_TORCH)


def state_of(folder):
    """Return the content of each file of the repository, but those that git itself keeps of what was looked at."""
    paths = [path for path in folder.rglob("*") if path.is_file() and folder / "out" not in path.parents]
    return {path: path.read_bytes() for path in paths}


# --- the statistics ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulation():
    return plugins.load_module(ROOT / "benchmarks" / "bisections.py")


def simulate(simulation, kind, seed, deviation=0.02):
    rng = random.Random(seed)
    steps = simulation.plant(kind, rng)
    findings, count = simulation.search(simulation.find_levels(steps), lambda: rng.gauss(0.0, deviation))
    return simulation.judge(findings, steps), findings, count


def test_one_slow_commit_of_32_is_named(simulation):
    ends = [simulate(simulation, "one of 10 %", seed) for seed in range(20)]
    assert [end for end, *_ in ends].count("right") >= 18 and "wrong" not in [end for end, *_ in ends]
    assert sum(count for *_, count in ends) / len(ends) < 80
    assert sum(findings.part is not None for _, findings, _ in ends) <= 2


def test_without_a_slow_commit_none_is_named(simulation):
    assert {simulate(simulation, "none", seed)[0] for seed in range(20)} <= {"no difference", "undecided"}


def test_of_two_slow_commits_one_is_named_and_more_is_left(simulation):
    ends = [simulate(simulation, "two of 6 %", seed) for seed in range(20)]
    named = [findings for end, findings, _ in ends if end == "right"]
    assert len(named) >= 18 and sum(findings.part is not None for findings in named) >= len(named) - 2
    assert all(0.3 < findings.part < 0.7 for findings in named if findings.part)


def test_the_gate_is_the_least_difference_of_interest():
    entry = BisectEntry((("a", ""), ("b", ""), ("c", "")))
    question = bisect.analyze(entry).question
    entry = replace(entry, comparisons=(replace(question, log_ratios=(0.03, 0.031, 0.029, 0.03) * 2),))
    assert bisect.analyze(entry).is_different
    assert bisect.analyze(entry).question.kind is BisectKind.LEVEL
    assert not bisect.analyze(replace(entry, gate=5.0)).is_different


def test_a_search_ends_where_its_pairs_contradict_each_other():
    rng, entry = random.Random(1), BisectEntry(tuple((str(i), "") for i in range(9)))
    while question := (findings := bisect.analyze(entry)).question:
        is_whole = question.kind is BisectKind.WHOLE
        ratios = [rng.gauss(0.1, 0.01) if is_whole else rng.choice((0.0, 0.1)) for _ in range(8)]
        entry = replace(entry, comparisons=(*entry.comparisons, replace(question, log_ratios=tuple(ratios))))
    assert findings.culprit is None and findings.remaining
    assert sum(len(pairs.log_ratios) for pairs in entry.comparisons) <= bisect.MOST_PAIRS + 40


@pytest.mark.parametrize(
    "changed",
    [
        {"commits": [["a", ""]]},
        {"skipped": {"7": "no"}},
        {"comparisons": [{"kind": "level", "a": 0, "b": 9, "log_ratios": [0.1]}]},
        {"comparisons": [{"kind": "level", "a": 0, "b": 1, "log_ratios": []}]},
        {"comparisons": [{"kind": "level", "a": 0, "b": 1, "log_ratios": [1e308]}]},
        {"comparisons": [{"kind": "level", "a": 0, "b": 1, "log_ratios": [float("nan")]}]},
        {"comparisons": [{"kind": "level", "a": 0, "b": 1, "log_ratios": [0.1] * 1001}]},
    ],
)
def test_a_record_that_cannot_be_is_refused(changed):
    document = {"jobs": [], "bisect": {"commits": [["a", ""], ["b", ""]], **changed}}
    with pytest.raises(ValueError):
        Manifest.parse(document)
    kept = {"jobs": [], "bisect": {"commits": [["a", ""], ["b", ""]]}}
    assert Manifest.parse(kept).bisect == BisectEntry((("a", ""), ("b", "")))


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commit_is_named_and_others_are_skipped(tmp_path):
    project = tmp_path / "project"
    programs = [f"sleep {SLOW if number >= 4 else FAST}" for number in range(8)]
    programs[2] = "echo broken; exit 3"
    hashes = make_repository(project, programs)
    before = state_of(project)
    build = "grep -q 'commit 6' bench.sh && exit 125; touch built; test ! -e .git/index.lock"
    printed = run_bisect(project, "HEAD~7..", "--build", build, "--gate", "5")
    assert f"{hashes[4][:12]} makes it slower" in printed and "\x1b" not in printed
    assert {path: text for path, text in state_of(project).items() if path in before} == before
    assert len(git(project, "worktree", "list").splitlines()) == 1
    run = (project / "out" / "latest").resolve()
    assert not (run / checkout.FOLDER).exists() and run.name.endswith("-bench-bisect")
    page = (run / "SUMMARY.md").read_text(encoding="utf-8")
    assert re.search(r"\[\d+ pairs\]\(runs/[\w-]+/SUMMARY.md\)", page)
    assert "bench.sh (+2 -2)" in page and "plots/path.svg" in page and (run / "plots" / "path.svg").is_file()
    assert "<script>alert" not in (run / "report.html").read_text(encoding="utf-8")
    entry = Manifest.load(run).bisect
    assert [commit for commit, _ in entry.commits] == hashes
    assert set(entry.skipped) <= {2, 6} and all("exit code" in why for why in entry.skipped.values())
    answer = json.loads(profpipe(project, "report", "out/latest", "--json"))
    assert answer["kind"] == "bisect" and answer["commit"] == hashes[4] and answer["exit_code"] == 0
    full = json.loads(profpipe(project, "resume", "out/latest", "--json=full"))
    assert full["step"]["verdict"] == "slower" and full["remaining"] == [hashes[4]]
    assert full["comparisons"][-1]["kind"] == "step" and full["comparisons"][-1]["a"] == 3
    first = (run / "pipeline.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# Repeats the run in this folder: profpipe bisect pipeline.yaml 'HEAD~7..' --build ")
    public = [path for path in run.rglob("*") if path.is_file() and path.name not in ("request.json", "sides.json")]
    assert [path for path in public if b"hunter2" in path.read_bytes()] == []
    # What a resumed run starts is known to the list of this user's runs: a changed build is not.
    sides = run / "raw" / "sides.json"
    sides.write_text(sides.read_text(encoding="utf-8").replace("touch built", "touch /tmp/x"), encoding="utf-8")
    done = forked.run(project, "resume", "out/latest")
    assert done.returncode == 2 and "built by: grep -q 'commit 6' bench.sh && exit 125; touch /tmp/x" in done.stderr


@pytest.mark.slow
def test_commits_beside_a_skipped_one_remain(tmp_path):
    project = tmp_path / "project"
    hashes = make_repository(project, [f"sleep {FAST}", "exit 3", f"sleep {SLOW}"])
    printed = run_bisect(project, f"{hashes[0]}..{hashes[2]}", exit_code=5)
    assert f"What remains: {hashes[1][:12]} or {hashes[2][:12]}." in printed.replace("\n", " ")
    assert f"Skipped {hashes[1][:12]}: pair 1 B: exit code 3" in printed.replace("\n", " ")


@pytest.mark.slow
def test_no_difference_names_no_commit_and_an_end_must_run(tmp_path):
    project = tmp_path / "project"
    make_repository(project, [f"sleep {FAST}", f"sleep {FAST}", "exit 3"])
    printed = run_bisect(project, "HEAD~2..HEAD~1", exit_code=5)
    assert "no commit is searched. BAD against GOOD: " in printed.replace("\n", " ")
    done = forked.run(project, "bisect", "HEAD~2..", "--", "sh", "bench.sh")
    assert done.returncode == 1 and "exit code 3" in done.stderr and "GOOD and BAD must run" in done.stderr


@pytest.mark.slow
def test_a_pipeline_file_with_one_case(tmp_path):
    project = tmp_path / "project"
    hashes = make_repository(project, [f"sleep {FAST}", f"sleep {SLOW}"])
    text = "version: 1\nname: small\nworkloads:\n  shell:\n    command: [sh, bench.sh]\n"
    (project / "small.yaml").write_text(text, encoding="utf-8")
    words = ["bisect", f"{hashes[0]}..{hashes[1]}", "small.yaml", "-q"]
    profpipe(project, *words, PYTHONPATH=WITHOUT_TORCH)
    assert bisect.analyze(Manifest.load(project / "out" / "latest").bisect).culprit == 1
    several = text.replace("bench.sh]", "bench.sh, '{n}']") + "    matrix: {n: [1, 2]}\n"
    (project / "small.yaml").write_text(several, encoding="utf-8")
    # The command in the pipeline file of a run has them in this order.
    done = forked.run(project, "bisect", "small.yaml", words[1])
    assert done.returncode == 2 and "searches by one case, and the pipeline has 2." in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("main",), "profpipe bisect: 'main' is no range of commits. For example: v1.2..main"),
        (("HEAD~1...HEAD",), "profpipe bisect: 'HEAD~1...HEAD' is no range of commits."),
        (("nowhere..HEAD",), "GOOD: git:nowhere names no commit of "),
        (("HEAD..HEAD~1",), "GOOD..BAD: is the wrong way round: BAD comes before GOOD."),
        (("HEAD..HEAD",), "GOOD..BAD: GOOD ("),
        (("HEAD~1..HEAD", "--more", "3"), "--more: 3 further pairs are too few"),
    ],
)
def test_a_wrong_range_is_refused_before_anything_runs(tmp_path, words, message):
    project = tmp_path / "project"
    make_repository(project, ["true", "true"])
    done = forked.run(project, "bisect", *words, "--", "sh", "bench.sh")
    assert done.returncode == 2 and done.stderr.startswith(f"profpipe: {message}"), done.stderr
    assert not [*(project / "out").glob("2*")]


def test_the_commits_are_those_of_the_first_parents(tmp_path):
    project = tmp_path / "project"
    hashes = make_repository(project, ["true", "true"])
    git(project, "checkout", "--quiet", "-b", "side", hashes[0])
    git(project, "commit", "--quiet", "--allow-empty", "--message", "of the side")
    side = git(project, "rev-parse", "HEAD")
    git(project, "checkout", "--quiet", "-")
    git(project, "checkout", "--quiet", "--detach", hashes[1])
    git(project, "merge", "--quiet", "--no-ff", "--message", "joined", "side")
    merged = git(project, "rev-parse", "HEAD")
    assert [commit for commit, _ in checkout.list_commits(project, hashes[0], merged)] == [*hashes, merged]
    with pytest.raises(checkout.ConfigError, match="none of the first parents"):
        checkout.list_commits(project, side, merged)


@pytest.mark.slow
def test_a_search_that_is_killed_at_any_point_goes_on(tmp_path):
    project = tmp_path / "project"
    make_repository(project, [f"sleep {SLOW if number >= 3 else FAST}" for number in range(5)])
    before, rng = state_of(project), random.Random(7)
    variables = {**os.environ, "PYTHONPATH": WITHOUT_TORCH, "CUDA_VISIBLE_DEVICES": ""}
    quiet = {"cwd": project, "env": variables, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    argv, kills = [sys.executable, "-m", "profpipe"], 0
    while True:
        has_run = any((project / "out").glob("[!.]*-bisect"))
        words = ["resume"] if has_run else ["bisect", "HEAD~4..", "--", "sh", "bench.sh"]
        child = subprocess.Popen([*argv, *words], start_new_session=True, **quiet)
        try:
            child.wait(rng.uniform(1.0, 6.0) if kills < 3 else 200)
        except subprocess.TimeoutExpired:
            # The second time as by the user, who may stop it too.
            os.killpg(child.pid, signal.SIGINT if kills == 1 else signal.SIGKILL)
            child.wait()
            kills += 1
        assert {path: text for path, text in state_of(project).items() if path in before} == before
        if child.returncode == 0:
            break
        assert child.returncode in (-signal.SIGKILL, 130)
        time.sleep(0.1)
    assert kills == 3
    (run,) = (project / "out").glob("[!.]*-bisect")
    entry = Manifest.load(run).bisect
    assert bisect.analyze(entry).culprit == 3
    replace(Manifest.load(run), bisect=replace(entry, comparisons=entry.comparisons[:-1])).save(run)
    assert " probably makes it slower. " in profpipe(project, "report", str(run), exit_code=5)
    # No measurement was made twice: each run of `ab` is in the record.
    assert sorted(each.name for each, _ in folders.list_runs(run / "runs")) == sorted(x.run for x in entry.comparisons)


def test_an_agent_is_told_the_commit(tmp_path):
    pytest.importorskip("mcp")
    from profpipe.commands.mcp import Library
    from profpipe.results import store
    from profpipe.results.schema import Tables

    pairs = BisectPairs(BisectKind.WHOLE, 0, 1, (0.1, 0.11, 0.09, 0.1) * 2)
    step = replace(pairs, kind=BisectKind.STEP, remarks=("bench.sh (+2 -2)",))
    entry = BisectEntry((("a" * 40, "one"), ("b" * 40, SUBJECT)), comparisons=(pairs, step))
    run = Manifest(name="bench", started="2026-11-20T05:55:00+00:00", ended="2026-11-20T05:56:00+00:00", bisect=entry)
    folder = tmp_path / "out" / "20261120T055500Z-bench-bisect"
    folder.mkdir(parents=True)
    store.save(folder, Tables(), run)
    summary = Library([tmp_path / "out"]).summary("out/20261120T055500Z-bench-bisect")
    assert summary["commit"] == "b" * 40 and summary["kind"] == "bisect"
    assert summary["findings"][0]["sentence"].startswith("bbbbbbbbbbbb makes it slower, +10.5 %")
