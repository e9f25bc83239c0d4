"""The committed runs: each can be run again, is what its pipeline asks for, and shows all of its pictures."""

from __future__ import annotations

import json
import re
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
