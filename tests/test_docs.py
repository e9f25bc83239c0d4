"""The documentation is executed: its files are written, its commands run, their output compared.

CONTRIBUTING.md, "Tests and documentation", says how blocks are marked. Each page runs from top to bottom in its own
copy of the checkout, so a block may use files of the blocks before it.
"""

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from profpipe import cli
from profpipe.config.models import Pipeline
from profpipe.measure.flags import Flag

ROOT = Path(__file__).resolve().parents[1]
DOCS = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")))
EXECUTED = ("README.md", "CONTRIBUTING.md", *DOCS)
LINKED = (*EXECUTED, "CHANGELOG.md", "SECURITY.md", "examples/README.md", "benchmarks/README.md")

#: Commands that CI itself is, or that need a network; everything else on the pages is run here.
OUTSIDE = re.compile(r"cd profpipe$|make (check|test|lint|setup|nsys)\b|\.ci/run|pip install (?!\./)")

#: Sizes for commands that set none, so that a page takes seconds on a CPU.
SMALL = {"BATCH": "1", "SEQLEN": "64,128", "NHEADS": "2", "WARMUP": "1", "REPEATS": "3"}

#: Measures each case for a moment instead of 2 s.
SHORT_RUN = 'if [ "$1" = run ]; then shift; set -- run --set timing.budget_s=0.1 "$@"; fi'

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\n\s*\Z")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: ``language``, the ``file`` that the block is or changes, and its line on the page."""

    language: str
    file: str
    body: str
    line: int


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text):
    for match in _FENCE.finditer(text):
        if _NOT_RUN.search(text[: match.start()]):
            continue
        language, _, rest = match["info"].partition(" ")
        yield Block(language, rest.partition("file=")[2].strip(), match["body"], text[: match.start()].count("\n") + 1)


#: The pages that CI runs. `make nightly` runs the others.
OF_CI = ("README.md", "CONTRIBUTING.md", "docs/ingest.md")


def pages_with_commands():
    """Yield the pages to run. A page that makes a virtual environment or measures takes more than 10 s."""
    for page in EXECUTED:
        commands = "".join(block.body for block in blocks(text_of(page)) if block.language == "console")
        is_slow = re.search(r"^\$ (?!.*--dry-run)(?!.*\|\| true).*profpipe run |auto_profile", commands, re.MULTILINE)
        if commands:
            marks = pytest.mark.slow if page in OF_CI else pytest.mark.exhaustive
            yield pytest.param(page, marks=marks if is_slow or page not in OF_CI else ())


@dataclass(frozen=True)
class Session:
    """A page being run: the copy of the checkout, and the environment of its commands."""

    folder: Path
    env: dict[str, str]

    def run(self, block):
        if block.language == "diff":
            self.change(block)
        elif block.file:
            self.write(block)
        elif block.language == "console":
            for command, expected in _commands(block.body):
                self.call(command, expected, block.line)

    def write(self, block):
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body, encoding="utf-8")

    def change(self, block):
        path, lines = self.folder / block.file, block.body.splitlines()
        before, after = ("\n".join(line[1:] for line in lines if line[:1] in signs) for signs in (" -", " +"))
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"line {block.line}: {block.file} does not hold these lines once:\n{before}"
        path.write_text(text.replace(before, after), encoding="utf-8")

    def call(self, command, expected, line):
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


def _commands(body):
    """Yield each command and the lines of output shown below it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, *output = part.replace("\\\n", "").splitlines()
        yield command, [line.rstrip() for line in output if line.strip()]


def _program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def session(tmp_path):
    """Copy the checkout; `profpipe` and `python` mean the copy, and pip finds no index and installs beside it."""
    folder, programs = tmp_path / "profpipe", tmp_path / "bin"
    ignored = shutil.ignore_patterns(".*", "out", "build", "dist", "*.egg-info", "__pycache__", "examples")
    shutil.copytree(ROOT, folder, ignore=ignored)
    programs.mkdir()
    _program(programs, "python", f'exec {sys.executable} "$@"')
    _program(programs, "profpipe", f'{SHORT_RUN}\nexec {sys.executable} -m profpipe "$@"')
    install = f"install --quiet --no-deps --no-build-isolation --target {folder / 'site'}"
    _program(programs, "pip", f'shift\nexec {sys.executable} -m pip {install} "$@"')
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    own = {
        "PATH": path,
        "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'site'}",
        "PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",
        "TORCH": "",
    }
    return Session(folder, {**os.environ, **SMALL, **own})


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the examples run torch, which is not installed here")
@pytest.mark.parametrize("page", list(pages_with_commands()))
def test_every_example_on_the_page_works(page, session):
    for block in blocks(text_of(page)):
        session.run(block)


@pytest.mark.parametrize("page", LINKED)
def test_every_link_of_the_page_leads_to_a_file_and_a_heading(page):
    broken = []
    for path, anchor in _LINK.findall(text_of(page)):
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(f"{path}#{anchor}")
    assert not broken


def anchors(text):
    """Return the anchors of the headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def fragments():
    for page in EXECUTED:
        for block in blocks(text_of(page)):
            if block.language == "yaml" and not block.file:
                yield f"{page}:{block.line}", block.body


@pytest.mark.parametrize("fragment", [pytest.param(body, id=place) for place, body in fragments()])
def test_a_fragment_of_a_pipeline_file_has_only_known_keys(fragment):
    given = yaml.safe_load(fragment)
    file = given if "workloads" in given else {"defaults": given, "workloads": {"any": {"script": "any"}}}
    Pipeline.model_validate({"version": 1, **file})


@pytest.mark.parametrize("page", EXECUTED)
def test_every_source_file_that_the_page_names_exists(page):
    text = text_of(page)
    named = set(re.findall(r"`([\w./]+/\w+\.(?:py|sh|toml|yaml))`", text)) - {block.file for block in blocks(text)}
    assert not [name for name in named if not (ROOT / name).exists() and not (ROOT / "profpipe" / name).exists()]


def test_the_page_of_commands_names_every_command_and_option(capsys):
    page = text_of("docs/cli.md")
    assert [name for name in cli.COMMANDS if f"`profpipe {name}" not in page] == []
    options = {"--debug", "--setup", "--help"}
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.main([command, "--help-all" if command in ("run", "ab", "try") else "--help"])
        options |= set(re.findall(r"--[a-z]+(?:-[a-z]+)*", capsys.readouterr().out.partition("examples:")[0]))
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", page)) == options


def test_the_page_of_flags_explains_every_flag():
    explained = re.findall(r"^\| `(\w+)` \|", text_of("docs/validity-flags.md"), re.MULTILINE)
    assert sorted(explained) == sorted(flag.value for flag in Flag)


def test_the_readme_stays_short_enough_to_read():
    assert len(text_of("README.md").splitlines()) <= 100


def test_the_shown_output_of_a_command_is_compared(session):
    session.run(Block("console", "", "$ echo one two\none *\n", 1))
    with pytest.raises(AssertionError, match="did not print `three`"):
        session.run(Block("console", "", "$ echo one two\nthree\n", 1))


def test_a_command_that_fails_fails_the_page(session):
    with pytest.raises(AssertionError, match="ended with 1"):
        session.run(Block("console", "", "$ false\n", 1))
