"""README and CONTRIBUTING are executed: their files are written, their commands run, their output compared.

CONTRIBUTING.md, "Documentation that is run", says how blocks are marked. Each page runs from top to bottom in a copy of
the checkout, so an example may build on the one before.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md")

#: Commands that CI itself is, or that need a network; everything else on the pages is run here.
OUTSIDE = re.compile(r"git clone |cd profpipe$|make (check|test|lint|setup|nsys)\b|\.ci/run|pip install ")

#: Sizes for commands that give none of their own, so that a page takes seconds on a CPU.
SMALL = {"BATCH": "1", "SEQLEN": "64,128", "NHEADS": "2", "WARMUP": "1", "REPEATS": "3"}

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\n\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``language``, the ``file`` that it is or changes, and where it stands."""

    language: str
    file: str
    body: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    for match in _FENCE.finditer(text):
        if _NOT_RUN.search(text[: match.start()]):
            continue
        language, _, rest = match["info"].partition(" ")
        yield Block(language, rest.partition("file=")[2].strip(), match["body"], text[: match.start()].count("\n") + 1)


@dataclass(frozen=True)
class Session:
    """A page being run: the copy of the checkout, and the environment of its commands."""

    folder: Path
    env: dict[str, str]

    def run(self, block: Block) -> None:
        if block.language == "diff":
            self.change(block)
        elif block.file:
            self.write(block)
        elif block.language == "console":
            for command, expected in _commands(block.body):
                self.call(command, expected, block.line)

    def write(self, block: Block) -> None:
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body, encoding="utf-8")

    def change(self, block: Block) -> None:
        path, lines = self.folder / block.file, block.body.splitlines()
        before, after = ("\n".join(line[1:] for line in lines if line[:1] in signs) for signs in (" -", " +"))
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"line {block.line}: {block.file} does not hold these lines once:\n{before}"
        path.write_text(text.replace(before, after), encoding="utf-8")

    def call(self, command: str, expected: list[str], line: int) -> None:
        if OUTSIDE.match(command):
            return
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"line {line}: `{command}` ended with {done.returncode}:\n{printed}"
        for wanted in expected:
            found = any(fnmatch.fnmatchcase(given, wanted.replace("[", "[[]")) for given in printed.splitlines())
            assert found, f"line {line}: `{command}` did not print `{wanted}` but:\n{printed}"


def _commands(body: str) -> Iterator[tuple[str, list[str]]]:
    """(command, the lines of output shown below it)."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, *output = part.replace("\\\n", "").splitlines()
        yield command, [line.rstrip() for line in output if line.strip()]


def _program(folder: Path, name: str, *argv: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {" ".join(argv)} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A copy of the checkout in which `profpipe` and `python` mean the copy, and pip finds no index."""
    folder, programs = tmp_path / "profpipe", tmp_path / "bin"
    ignored = shutil.ignore_patterns(".*", "out", "build", "dist", "*.egg-info", "__pycache__", "data")
    shutil.copytree(ROOT, folder, ignore=ignored)
    programs.mkdir()
    _program(programs, "python", sys.executable)
    _program(programs, "profpipe", sys.executable, "-m", "profpipe")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(folder), "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "TORCH": ""}
    return Session(folder, {**os.environ, **SMALL, **own})


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the examples run torch, which is not installed here")
@pytest.mark.parametrize("page", PAGES)
def test_every_example_on_the_page_works(page: str, session: Session) -> None:
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        session.run(block)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_the_page_links_to_exists(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_shown_output_of_a_command_is_compared(session: Session) -> None:
    session.run(Block("console", "", "$ echo one two\none *\n", 1))
    with pytest.raises(AssertionError, match="did not print `three`"):
        session.run(Block("console", "", "$ echo one two\nthree\n", 1))


def test_a_command_that_fails_fails_the_page(session: Session) -> None:
    with pytest.raises(AssertionError, match="ended with 1"):
        session.run(Block("console", "", "$ false\n", 1))
