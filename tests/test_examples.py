"""The committed runs: each can be repeated, matches its pipeline file and shows all its pictures."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pandas as pd
import pytest
from report_study import read_pages

from profpipe import cli
from profpipe.config import loader
from profpipe.report.pages import MOST_LINES
from profpipe.results import manifest_entries, store

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/run.json"))
#: What `profpipe report` writes beside an example, which only one of them keeps.
IGNORED_BY_GIT = ("report.html", "results.json")
COMMITTED = (ROOT / "examples" / "two_gpus" / "report.html",)


@pytest.fixture(params=EXAMPLES, ids=lambda folder: folder.name)
def example(request):
    assert isinstance(request.param, Path)
    return request.param


def test_its_pipeline_runs_as_it_stands_and_asks_for_the_tables_of_the_page(example):
    published = manifest_entries.published(loader.load_pipeline(example / "pipeline.yaml"))
    current = published.model_dump(mode="json", by_alias=True)
    stored = json.loads((example / "run.json").read_text(encoding="utf-8"))["pipeline"]
    assert {key: stored.get(key) for key in ("tables", "plots")} == {key: current[key] for key in ("tables", "plots")}
    axes = ({name: entry["matrix"] for name, entry in of["workloads"].items()} for of in (stored, current))
    assert next(axes) == next(axes)


def test_its_pages_show_every_picture_and_link_only_to_files_that_exist(example):
    links = set(re.findall(r"\]\(([^)]+)\)", read_pages(example)))
    files = {target for target in links if "://" not in target and not target.startswith("#")}
    assert {target for target in files if not (example / target.partition("#")[0]).exists()} == set()
    assert {f"plots/{path.name}" for path in (example / "plots").glob("*")} == {t for t in files if "plots/" in t}


def test_its_summary_has_at_most_150_lines(example):
    assert len((example / "SUMMARY.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_examples_take_at_most_7_mb_together():
    paths = (path for path in (ROOT / "examples").rglob("*") if path.name not in IGNORED_BY_GIT or path in COMMITTED)
    assert sum(path.stat().st_size for path in paths if path.is_file()) <= 7e6


#: The examples that are rendered for every change; one has four profilers, one several workloads and study tables.
QUICK = ("h200-attention", "sparsity_lengths")
#: With those that CI renders: steps of programs, pairs and ranks.
OF_CI = (*QUICK, "own_program", "regression_check", "two_gpus")
MARKS = {True: pytest.mark.slow, False: pytest.mark.exhaustive}


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=() if path.name in QUICK else [MARKS[path.name in OF_CI]]) for path in EXAMPLES],
    ids=lambda folder: folder.name,
)
def test_its_pages_are_those_that_the_present_code_writes(example, tmp_path, capsys):
    copy = shutil.copytree(example, tmp_path / example.name)
    for page in [*copy.glob("*.md"), *copy.glob("*.txt"), *copy.glob("*.html")]:
        page.unlink()
    # 1: a case failed; 4: the gate of an `ab` run failed.
    assert cli.main(["report", str(copy), "--quiet"]) in ((4,) if example.name == "regression_check" else (0, 1))
    said = "profpipe: nothing was measured now. In the stored run of 2026-11-26 the gate of 2 % failed: bench/default"
    assert capsys.readouterr().err.startswith(said) == (example.name == "regression_check")
    assert_begins_with_its_answer(copy)
    committed = [path for path in example.iterdir() if path.suffix in (".md", ".txt", ".html")]
    differing = [path.name for path in committed if path.read_bytes() != (copy / path.name).read_bytes()]
    assert not differing, f"render them again: profpipe report examples/{example.name}"


def assert_begins_with_its_answer(folder):
    """Assert that both pages begin with the answer in bold type; of several workloads with one in a line for each."""
    first = (folder / "SUMMARY.md").read_text(encoding="utf-8").split("\n\n")[1]
    answer = re.compile(r"\*\*.+\*\*|- `.+`: \*\*.+\*\*")
    assert all(map(answer.fullmatch, first.splitlines())), first
    main = (folder / "report.html").read_text(encoding="utf-8").partition("<main")[2]
    shown = html.unescape(re.sub(r"<[^>]*>", "", main[main.index("<strong>") : main.index("</strong>")]))
    bold = first.splitlines()[0].partition("**")[2].rpartition("**")[0]
    assert shown == html.unescape(re.sub(r"[`\\]", "", bold))
    assert not {"<table", "<figure", "<details"} & set(re.findall(r"<\w+", main[: main.index("<strong>")]))


#: A path below a home or a work folder, anywhere in a text.
OF_A_MACHINE = re.compile(r"(?<![\w./-])/(?:home|root|Users|work|workspace|mnt|scratch|tmp|var|opt)/[^\s\"')]*")


def test_none_of_its_texts_holds_a_folder_of_the_machine_that_made_it(example):
    paths = [path for path in example.rglob("*") if path.is_file()]
    texts = {path.name: path.read_text("utf-8") for path in paths if path.suffix != ".parquet"}
    texts |= {path.name: pd.read_parquet(path).to_csv() for path in paths if path.suffix == ".parquet"}
    assert {name: found for name, text in texts.items() if (found := OF_A_MACHINE.findall(text))} == {}


PIPELINE = """
version: 1
name: mine
workloads:
  w:
    command: [sh, -c, 'exit {code}', sh, --data=FOLDER]
    profilers: [plain]
    matrix: {code: [0, 3]}
"""


def take(run, below):
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "take.py"), str(run), "mine", "--below", str(below)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["here", "/home/somebody/data"])
def test_a_run_is_copied_without_raw_files_and_refused_if_it_names_a_folder_of_its_machine(tmp_path, folder):
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("FOLDER", folder))
    done = forked.run(tmp_path, "run", env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1, "one case fails"
    run, examples = tmp_path / "out" / "latest", tmp_path / "examples"
    before = store.load(run)[0].cases
    assert "pipeline.yaml is missing" in take(run, examples).stderr
    (examples / "mine").mkdir(parents=True)
    shutil.copy(tmp_path / "pipeline.yaml", examples / "mine")
    (examples / "mine" / "kernels.csv").write_text("of the run before\n")
    done = take(run, examples)
    names = {path.name for path in (examples / "mine").iterdir()}
    if folder.startswith("/"):
        assert done.returncode == 1 and "--data=/home/somebody/data" in done.stderr
        assert names == {"pipeline.yaml", "kernels.csv"}
        return
    assert done.returncode == 0, done.stderr
    assert {"SUMMARY.md", "run.json", "cases.parquet", "pipeline.yaml"} <= names and "raw" not in names
    assert str(tmp_path) not in (examples / "mine" / "run.json").read_text()
    assert "exit code 3" in (examples / "mine" / "SUMMARY.md").read_text()
    pd.testing.assert_frame_equal(store.load(examples / "mine")[0].cases, before)
    jobs = json.loads((examples / "mine" / "run.json").read_text())["jobs"]
    assert [(job["reason"], job["log"]) for job in jobs][1] == ("exit code 3", "raw/w/plain/2/log.txt")
    (run / "notes.txt").write_text("see\n/home/somebody/notes\n")
    done = take(run, examples)
    assert done.returncode == 1 and "notes.txt names a folder of this machine: /home/somebody/notes" in done.stderr
