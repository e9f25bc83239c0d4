"""Print the size of a checkout: code, concepts, tests, and the files that a run leaves. Compare two checkouts with it.

    python benchmarks/house.py [CHECKOUT ...] [--run]

Lines of code are lines of profpipe, parsers and workloads that hold more than a comment, a docstring or an import,
after `ruff format` with the settings of this checkout, so that joined lines gain nothing. Functions include methods.
Lines of tests are all lines of the Python files in tests. An arrow leads from a package to another one that it imports
anywhere, also for type checking. `--run` starts a run of four cases of attention under plain and torch with the
code of each checkout and counts the files in its folder, without those in raw/.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
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
        for path in paths:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source, filename=str(path))
            nodes = list(ast.walk(tree))
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
    tests = (checkout / "tests").rglob("*.py")
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests)
    return {**counts, "lines of tests": lines, "packages": len(names), "arrows between packages": len(arrows)}


def _package(path: Path) -> str:
    return path.with_suffix("").parts[1] if path.parts[0] == "profpipe" else path.parts[0]


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
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="CHECKOUT")
    parser.add_argument("--run", action="store_true", help="start a run of four cases and count its files")
    options = parser.parse_args()
    columns = []
    for checkout in (path.resolve() for path in options.checkouts):
        column = figures(checkout)
        if options.run:
            column["files of a run of four cases, without raw/"] = files_of_a_run(checkout)
        columns.append(column)
    print(f"| | {' | '.join(path.resolve().name for path in options.checkouts)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{column[name]:,}' for column in columns)} |")


if __name__ == "__main__":
    main()
