"""A results folder that somebody altered: each command reads it or says what is wrong, and changes nothing outside."""

import os
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_text_from_outside import is_clean

from profpipe import cli
from profpipe.results import store

ROOT = Path(__file__).resolve().parents[1]

WORKLOAD = """
PARAMS = {"n": 1, "impl": "a"}

def build(params):
    return lambda: sum(range(1000 * params["n"]))
"""
PIPELINE = """
version: 1
name: small
defaults: {profilers: [plain], warmup: 1, repeats: 3, timing: {order: sequential, budget_s: 0.02}}
workloads:
  sums: {script: sums.py, matrix: {impl: [a, b], n: [1, 2]}, baseline: {impl: a}}
  echo: {command: [sh, -c, "echo {n}"], matrix: {n: [1]}, hook: false}
tables:
  - {title: Times, workload: sums, rows: impl, columns: n, value: time}
plots:
  - {title: Times, workload: sums, over: n, value: time}
"""


@pytest.fixture(scope="module")
def original(made_once):
    """A results folder with two runs, ``one`` and ``two``, which an honest user made."""
    return made_once("honest", make_runs) / "out"


def make_runs(project):
    (project / "sums.py").write_text(WORKLOAD)
    (project / "pipeline.yaml").write_text(PIPELINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "no_torch")]))
        for name in ("one", "two"):
            assert cli.main(["run", "--quiet"]) == 0
            (project / "out" / "latest").resolve().rename(project / "out" / name)
    (project / "out" / "latest").unlink()
    (project / "out" / "latest").symlink_to("two")
    (project / "out" / "ceilings.json").write_text("{}")


@dataclass(frozen=True)
class Folder:
    """An altered copy of the results folder; ``outside`` is a folder of the user, and must stay as it is."""

    out: Path
    outside: Path

    @property
    def run(self):
        return self.out / "two"


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    made = Folder(tmp_path / "out", tmp_path / "outside")
    shutil.copytree(original, made.out, symlinks=True)
    (made.outside / "plots").mkdir(parents=True)
    for name in ("mine.txt", "plots/mine.png"):
        (made.outside / name).write_text("mine")
    shutil.copytree(original / "two", made.outside / "run", symlinks=True)
    shutil.copy(original / "profpipe.db", made.outside / "profpipe.db")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


# --- what is altered -------------------------------------------------------------------------------------------------

#: Every kind of file and folder in a results folder, relative to the run.
FILES = (
    "run.json", "cases.csv", "cases.parquet", "metrics.parquet", "kernels.parquet", "steps.parquet",
    "SUMMARY.md", "gpu_info.txt",
    "comparison_results.txt", "raw/request.json", "raw/fingerprint.json", "raw/lock",
    "raw/sums/plain/job.jsonl", "raw/sums/plain/log.txt", "raw/sums/plain/cases.json",
    "../profpipe.db", "../.salt", "../ceilings.json",
)  # fmt: skip
FOLDERS = ("plots", "raw", "raw/sums", "raw/sums/plain", "../latest", ".")


def _remove(path):
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def _link(folder, path):
    """Replace a file or folder by a link to one of its kind outside."""
    twin = folder.outside / "run" / path.relative_to(folder.run) if path.is_relative_to(folder.run) else None
    target = twin if twin and twin.exists() else folder.outside / ("run" if path.is_dir() else path.name)
    _remove(path)
    path.symlink_to(target)


def _replaced(make):
    """Return the alteration that puts what ``make`` makes in the place of a file or folder."""

    def alter(folder, path):
        _remove(path)
        make(path)

    return alter


def _other_kind(folder, path):
    is_folder = path.is_dir()
    _remove(path)
    path.write_text("text") if is_folder else path.mkdir()


def _content(new):
    def alter(folder, path):
        path.write_bytes(new(path.read_bytes()))

    return alter


#: What may happen to a file or a folder.
KINDS: Mapping[str, Callable[[Folder, Path], None]] = {
    "link": _link,
    "link to itself": _replaced(lambda path: path.symlink_to(path)),
    "link to a device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "pipe": _replaced(os.mkfifo),
    "other kind": _other_kind,
    "missing": _replaced(lambda path: None),
}
#: What may happen to the content of a file.
CONTENTS: Mapping[str, Callable[[Folder, Path], None]] = {
    "empty": _content(lambda old: b""),
    "half": _content(lambda old: old[: len(old) // 2]),
    "not UTF-8": _content(lambda old: old.replace(b"a", b"\xff\xfe")),
    "NUL": _content(lambda old: old.replace(b"s", b"\0")),
    "control characters": _content(lambda old: old.replace(b"sums", b"\x1b]0;x\x07")),
    "huge numbers": _content(lambda old: old.replace(b"1", b"1" + b"0" * 400)),
    "negative numbers": _content(lambda old: old.replace(b"1", b"-1")),
    "absolute paths": _content(lambda old: old.replace(b"raw/", b"/etc/")),
    "paths out": _content(lambda old: old.replace(b"raw/", b"../../outside/")),
    "dates in the future": _content(lambda old: old.replace(b"202", b"299")),
    "other names": _content(lambda old: old.replace(b"time", b"tiem")),
    "nested JSON": _content(lambda old: b"[" * 100_000 + b"]" * 100_000),
}

# --- what must hold --------------------------------------------------------------------------------------------------

_watched: list[tuple[str, Any]] = []
_is_watching = False


def _audit(event, arguments):
    is_start = event in (
        "profpipe.start", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
    )  # fmt: skip
    is_code = event == "exec" and "/out/" in str(getattr(arguments[0], "co_filename", ""))
    if _is_watching and (is_start or is_code):
        _watched.append((event, arguments))


sys.addaudithook(_audit)


def digest(folder):
    def state(path):
        return path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): state(path) for path in sorted(folder.rglob("*"))}


def commands(folder):
    raw = folder.run / "raw" / "sums" / "plain"
    found = {
        "report": ["report", str(folder.run)],
        "compare with": ["compare", str(folder.run), str(folder.out / "one"), "--out", str(folder.out)],
        "compare": ["compare", str(folder.out / "one"), str(folder.run), "--out", str(folder.out), "--gate", "5"],
        "history": ["history", "--out", str(folder.out)],
        "ingest": ["ingest", str(raw / "job.jsonl"), str(raw), "--out", str(folder.out / "ingested")],
        "resume": ["resume", str(folder.run)],
        "resume the latest": ["resume", "--out", str(folder.out)],
    }
    for later in ("trace", "collect"):
        if later in cli.COMMANDS:
            found[later] = [later, str(folder.run)]
    return found


def check(folder, command, capsys):
    """Run a command on the folder: it ends with an exit code of the documentation, and with nothing else."""
    global _is_watching
    before = digest(folder.outside)
    _watched.clear()
    _is_watching = True
    try:
        code = cli.main(commands(folder)[command])
    except SystemExit as end:
        code = int(str(end.code))
    finally:
        _is_watching = False
    printed = capsys.readouterr()
    assert "internal error" not in printed.err and "Traceback" not in printed.err, printed.err
    assert code in (0, 1, 2, 4, 5), printed.err
    assert is_clean(printed.out + printed.err)
    assert digest(folder.outside) == before
    # A few questions to the tools of this machine are not what the folder names.
    started = [each for each in _watched if "--version" not in str(each)]
    assert not started
    return code


NAMES = ("report", "compare with", "compare", "history", "ingest", "resume", "resume the latest", "trace")


#: How many alterations, drawn with a fixed seed, are among the quick tests, those of CI, and all tests.
#: PROFPIPE_TEST_ALTERATIONS=all tries every one, which takes a quarter of an hour.
_QUICK, _OF_CI, _DRAWN = 8, 16, 160


def _marks(i, quick, of_ci):
    return () if i < quick else pytest.mark.slow if i < of_ci else pytest.mark.exhaustive


def _is_read(command, place):
    """Return False for what a command never looks at."""
    is_shared = place == "." or place.startswith("../")
    return {"history": is_shared, "ingest": place == "." or place.startswith("raw")}.get(command, True)


def _every_alteration():
    """Return (command, place, kind) for each that is drawn."""
    altered = [
        (place, kind) for place in (*FILES, *FOLDERS) for kind in (*KINDS, *(CONTENTS if place in FILES else ()))
    ]
    every = [(name, place, kind) for name in NAMES for place, kind in altered if _is_read(name, place)]
    random.Random(22).shuffle(every)
    drawn = every if os.environ.get("PROFPIPE_TEST_ALTERATIONS") == "all" else every[:_DRAWN]
    return [pytest.param(*each, marks=_marks(i, _QUICK, _OF_CI)) for i, each in enumerate(drawn)]


@pytest.mark.parametrize(("command", "place", "kind"), _every_alteration())
def test_an_altered_folder_is_read_or_refused(folder, command, place, kind, capsys):
    if command not in commands(folder):
        pytest.skip("there is no such command")
    path = folder.run / place
    {**KINDS, **CONTENTS}[kind](folder, path.resolve() if place == "." else Path(os.path.normpath(path)))
    check(folder, command, capsys)


# --- cells of tables -------------------------------------------------------------------------------------------------

#: (example, table, column, text, in every row): cells that once ended a report with an internal error.
FOUND = (
    ("own_program", "cases", "status", "x", False),
    ("h200-attention", "cases", "flags", "[1]", False),
    ("own_program", "steps", "rule", "x", False),
    ("own_program", "steps", "profiler", "x", True),
    ("own_program", "steps", "compute_ns", "-1", False),
    ("own_program", "metrics", "value", "-1", True),
    ("own_program", "metrics", "value", "1e308", True),
    ("own_program", "kernels", "kernel_class", "{}", True),
    ("h200-attention", "kernels", "case", "x", False),
    ("h200-attention", "kernels", "process", "1e308", False),
    ("h200-attention", "kernels", "total_ns", "1e308", True),
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Copies of examples with all their tables."""
    below = tmp_path_factory.mktemp("examples")
    for name in ("own_program", "h200-attention"):
        folder = Path(shutil.copytree(ROOT / "examples" / name, below / name))
        store.save(folder, *store.load(folder))
    return below


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", pytest.param("compare", marks=pytest.mark.exhaustive)])
def test_any_cell_of_a_table_may_be_altered(examples, tmp_path, command, capsys):
    for example, table, column, text, is_everywhere in FOUND:
        folder = tmp_path / "folder"
        shutil.copytree(examples / example, folder)
        path = folder / f"{table}.parquet"
        if path.is_file() and len(rows := pd.read_parquet(path)):
            known = rows[column].astype(object).where(rows[column].notna(), None)
            cells = [None if value is None else str(value) for value in known]
            rows[column] = [text] * len(rows) if is_everywhere else [text, *cells[1:]]
            rows.to_parquet(path, index=False)
            words = [str(folder)] if command == "report" else [str(examples / example), str(folder)]
            code = cli.main([command, *words])
            printed = capsys.readouterr()
            cell = f"{example} {table} {column} {text!r}"
            assert code in (0, 1, 2) and "internal error" not in printed.err, f"{cell}: {printed.err}"
            assert is_clean(printed.out + printed.err)
        shutil.rmtree(folder)
