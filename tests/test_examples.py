"""The committed runs: each can be run again, is what its pipeline asks for, and shows all of its pictures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profpipe import config, record

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/run.json"))


@pytest.fixture(params=EXAMPLES, ids=lambda folder: folder.name)
def example(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_its_pipeline_runs_as_it_stands_and_asks_for_the_tables_of_the_page(example: Path) -> None:
    asked = record.published(config.load_pipeline(example / "pipeline.yaml"))
    stored = json.loads((example / "run.json").read_text(encoding="utf-8"))["pipeline"]
    assert {key: stored.get(key) for key in ("tables", "plots")} == {key: asked[key] for key in ("tables", "plots")}
    axes = ({name: entry["matrix"] for name, entry in of["workloads"].items()} for of in (stored, asked))
    assert next(axes) == next(axes)


def test_its_page_shows_every_picture_and_links_to_nothing_that_is_not_here(example: Path) -> None:
    page = (example / "SUMMARY.md").read_text(encoding="utf-8")
    links = {target for target in re.findall(r"\]\(([^)]+)\)", page) if "://" not in target}
    assert {target for target in links if not (example / target.partition("#")[0]).exists()} == set()
    assert {f"plots/{path.name}" for path in (example / "plots").glob("*")} == {t for t in links if "plots/" in t}


PIPELINE = """
version: 1
name: mine
workloads:
  w:
    command: [sh, -c, 'exit {code}', sh, --data=FOLDER]
    profilers: [plain]
    matrix: {code: [0, 3]}
"""


def take(run: Path, below: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "take.py"), str(run), "mine", "--below", str(below)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["here", "/home/somebody/data"])
def test_a_run_is_taken_without_raw_files_and_folders_of_its_machine_or_not_at_all(tmp_path: Path, folder: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("FOLDER", folder))
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1, "one case fails"
    run, examples = tmp_path / "out" / "latest", tmp_path / "examples"
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
    assert {"SUMMARY.md", "run.json", "cases.csv", "pipeline.yaml"} <= names and "raw" not in names
    assert str(tmp_path) not in (examples / "mine" / "run.json").read_text()
    assert "exit code 3" in (examples / "mine" / "SUMMARY.md").read_text()
