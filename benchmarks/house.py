"""Print the size of a checkout: code, concepts, names, tests, and the files of a run. Compare checkouts with it.

    python benchmarks/house.py [CHECKOUT | REVISION ...] [--run]

Lines of code are lines of profpipe, parsers and workloads that hold more than a comment, a docstring or an import,
after `ruff format` with the settings of this checkout, so that joined lines gain nothing. Functions include methods.
Lines of tests are all lines of the Python files in tests. Words without a meaning count wherever they stand in profpipe
and parsers, also in comments. Fields, names and options are those of profpipe. An arrow leads from a package to another
one that it imports anywhere, also for type checking. `--run` starts a run of four cases of attention under plain and
torch with the code of each checkout and counts the files in its folder, without those in raw/.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("profpipe", "parsers", "workloads")

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Words that name any value, and so none.
WORDS = re.compile(r"\b(own|found|each|known|every)\b")
#: A function is a verb and its object, not "_of_group".
PREPOSITION = re.compile(r"_*(of|with|by|without|in|for)_")

#: What tests/test_house.py holds. A commit that raises a figure above its bound argues for the new bound.
BOUNDS = {
    "lines of code": 43_414,
    "dataclasses": 217,
    "class names used more than once": 5,
    "fields of the largest class": 34,
    "lines with dataclasses.replace": 214,
    "own, found, each, known, every": 995,
    "functions named by a preposition": 40,
    "reads of Job.options as a dict": 0,
    "lines of tests": 49_575,
}

#: Four cases under two profilers, without a GPU.
PIPELINE = """
version: 1
name: four
defaults: {warmup: 1, repeats: 3, profilers: [plain, torch], timing: {budget_s: 0.1}}
workloads:
  attention:
    script: attention
    params: {dtype: fp32, batch: 1, heads: 1, head_dim: 32}
    matrix: {seqlen: [64, 128], impl: [sdpa_math, sdpa_flash]}
    baseline: {impl: sdpa_math}
"""


def code_lines(source: str, tree: ast.Module) -> int:
    """Return the number of lines with code; every line of a text in several lines counts, unless it is a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        without: ast.AST | None = None
        if isinstance(node, ast.Import | ast.ImportFrom):
            without = node
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            without = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
        if isinstance(without, ast.stmt):
            lines.difference_update(range(without.lineno, (without.end_lineno or without.lineno) + 1))
    return len(lines)


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def count_names(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Return the figures of the classes and names of profpipe, by the trees of its files."""
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    classes = [node for _, node in nodes if isinstance(node, ast.ClassDef)]
    calls = [(path, node) for path, node in nodes if isinstance(node, ast.Call)]
    replaces = ("replace", "dataclasses.replace")
    replaced = {(path, node.lineno) for path, node in calls if ast.unparse(node.func) in replaces}
    options = [(path, ast.unparse(node)) for path, node in nodes if isinstance(node, ast.Attribute)]
    return {
        "fields of the largest class": max(_fields(node, classes) for node in classes),
        "lines with dataclasses.replace": len(replaced),
        "functions named by a preposition": sum(
            isinstance(node, _FUNCTIONS) and bool(PREPOSITION.match(node.name)) for _, node in nodes
        ),
        "reads of Job.options as a dict": sum(
            text == "job.options" or (text == "self.options" and path.name == "job.py") for path, text in options
        ),
    }


def _fields(node: ast.ClassDef, classes: list[ast.ClassDef]) -> int:
    """Return the fields of a class with those of its bases; of bases with one name, the larger counts."""
    bases = [ast.unparse(base) for base in node.bases]
    inherited = [_fields(base, classes) for base in classes if base.name in bases and base.name != node.name]
    return sum(isinstance(child, ast.AnnAssign) for child in node.body) + max(inherited, default=0)


def figures(checkout: Path) -> dict[str, int]:
    """Return the rows of the table for the code and the tests of ``checkout``."""
    counts: Counter[str] = Counter()
    arrows: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder:
        for name in FOLDERS:
            shutil.copytree(checkout / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--config", str(ROOT / "pyproject.toml"), folder]
        if subprocess.run(ruff).returncode:
            sys.exit("ruff format failed: run this with the Python of .venv, which `make setup` makes.")
        paths = [path for name in FOLDERS for path in sorted(Path(folder, name).rglob("*.py"))]
        # A package is a folder of profpipe, parsers or workloads, and a module at the top of profpipe.
        package_of = {path: _package(path.relative_to(folder)) for path in paths}
        names = set(package_of.values())
        trees: dict[Path, ast.Module] = {}
        for path in paths:
            source = path.read_text(encoding="utf-8")
            tree = trees[path] = ast.parse(source, filename=str(path))
            nodes = list(ast.walk(tree))
            if path.relative_to(folder).parts[0] != "workloads":
                counts["own, found, each, known, every"] += len(WORDS.findall(source))
            counts["lines of code"] += code_lines(source, tree)
            counts["modules"] += 1
            counts["dataclasses"] += sum(
                any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
                for node in nodes
                if isinstance(node, ast.ClassDef)
            )
            counts["functions"] += sum(isinstance(node, _FUNCTIONS) for node in nodes)
            targets = {word.split(".")[1] for word in imported(tree) if word.startswith("profpipe.")} & names
            arrows |= {(package_of[path], target) for target in targets - {package_of[path]}}
        classes = Counter(
            node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        )
        counts["class names used more than once"] = sum(count > 1 for count in classes.values())
        counts.update(
            count_names({path: trees[path] for path in paths if path.is_relative_to(Path(folder, "profpipe"))})
        )
    tests = (checkout / "tests").rglob("*.py")
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests)
    return {**counts, "lines of tests": lines, "packages": len(names), "arrows between packages": len(arrows)}


def _package(path: Path) -> str:
    return path.with_suffix("").parts[1] if path.parts[0] == "profpipe" else path.parts[0]


@contextmanager
def tree_of(checkout: str) -> Iterator[Path]:
    """Yield a folder as it is, and what git has of a revision of this checkout as a folder."""
    if Path(checkout).is_dir():
        yield Path(checkout).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", checkout], stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def files_of_a_run(checkout: Path) -> int:
    """Return how many files the folder of a run of four cases holds, made by the code of ``checkout``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "profpipe", "run", "--quiet"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            encoding="utf-8",
        )
        if done.returncode:
            sys.exit(f"{checkout}: the run of four cases failed\n{done.stdout}{done.stderr}")
        run = Path(folder, "out", "latest").resolve()
        paths = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
        return sum(path.parts[0] != "raw" for path in paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", default=[str(ROOT)], metavar="CHECKOUT")
    parser.add_argument("--run", action="store_true", help="start a run of four cases and count its files")
    options = parser.parse_args()
    columns = []
    for name in options.checkouts:
        with tree_of(name) as checkout:
            column = figures(checkout)
            if options.run:
                column["files of a run of four cases, without raw/"] = files_of_a_run(checkout)
        columns.append(column)
    print(f"| | {' | '.join(Path(name).name for name in options.checkouts)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{column[name]:,}' for column in columns)} |")


if __name__ == "__main__":
    main()
