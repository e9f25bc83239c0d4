"""Who may import whom: the stages hand each other plain values and know nothing of one another."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: What every part may speak of; these modules import one another only.
WORDS = {
    "asked",
    "concerns",
    "errors",
    "findings",
    "intervals",
    "job",
    "kernel_findings",
    "load",
    "phase_findings",
    "rank_findings",
    "study_findings",
    "tables",
    "tolerance",
}

#: One means a line: a module, and the modules that only it is made of.
MEANS = {
    "config": {"config", "document", "mistakes", "pipeline", "scripts", "table_mistakes"},
    "device": {"device", "gpus"},
    "environment": {"environment"},
    "exports": {"exports"},
    "formats": {"formats"},
    "kernels": {"kernel_names", "kernels"},
    "points": {"points"},
    "sizes": {"sizes"},
    "timing": {"measuring", "ranges", "timing"},
}

#: One stage a line: likewise. A folder holds what only its stage, or means, is made of.
STAGES = {
    "analyze": {"analysis", "analyze"},
    "ceilings": {"ceilings"},
    "compare": {"compare"},
    "doctor": {"doctor"},
    "guide": {"guide"},
    "harness": {"harness"},
    "history": {"history"},
    "ingest": {"ingest", "parsing"},
    "plan": {"plan"},
    "profilers": {"profilers"},
    "progress": {"progress"},
    "record": {"record"},
    "report": {"page", "report"},
    "reuse": {"reuse"},
    "scrub": {"scrub", "scrubbers"},
    "run": {"run", "running"},
    "store": {"store"},
}

#: The program itself, which calls the stages in order.
TOP = {"__main__", "cli", "order", "privacy", "reading", "unchanged", "workflow"}

ALL_MEANS = set().union(*MEANS.values())

#: The harness lives in the workload's process, so it has no more than it needs there.
HARNESS = {
    "device", "errors", "gpus", "intervals", "job", "load", "measuring", "ranges", "sizes", "timing", "tolerance",
}  # fmt: skip
#: What reads files: the tables, the names of kernels, and the ways into a format that several parsers share.
PARSERS = {"errors", "formats", "intervals", "kernels", "load", "tables"}
WORKLOADS = {"errors", "load", "ranges"}


def room_of(name: str) -> tuple[set[str], set[str]]:
    """(the modules that ``name`` is made with, all that it may import)."""
    if name in WORDS:
        return WORDS, WORDS
    for means in MEANS.values():
        if name in means:
            return means, means | WORDS
    for stage in STAGES.values():
        if name in stage:
            return stage, stage | (HARNESS if "harness" in stage else ALL_MEANS | WORDS)
    if name in TOP:
        return TOP, TOP | ALL_MEANS | WORDS | set().union(*STAGES.values())
    pytest.fail(f"profpipe/{name}.py has no place here yet: which means or stage is it a part of?")


def imported(path: Path) -> Iterator[str]:
    """The dotted names that ``path`` imports anywhere, those for type checking included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def engine_modules(path: Path) -> set[str]:
    """The modules of the engine that ``path`` imports: ``from profpipe.tables import frame`` is ``tables``."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("profpipe.")} - {"__version__"}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", files("profpipe"), ids=label)
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    name = path.relative_to(ROOT / "profpipe").parts[0].removesuffix(".py")
    if name == "__init__":
        assert not engine_modules(path)
        return
    _, allowed = room_of(name)
    assert engine_modules(path) <= allowed


@pytest.mark.parametrize("path", files("parsers"), ids=label)
def test_a_parser_knows_the_tables_and_no_stage(path: Path) -> None:
    assert engine_modules(path) <= PARSERS


@pytest.mark.parametrize("path", files("workloads"), ids=label)
def test_a_workload_knows_its_ranges_and_how_to_fail(path: Path) -> None:
    assert engine_modules(path) <= WORKLOADS


def test_no_two_modules_import_each_other() -> None:
    files_of = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files("profpipe")}
    graph = {}
    for name, path in files_of.items():
        # `from profpipe.page import sheets` and `from profpipe.page.sheets import cases` need the same module.
        needs = {part for found in imported(path) for part in (found, found.rpartition(".")[0])}
        graph[name] = needs & files_of.keys() - {name}
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}
    assert not graph, f"a circle among {sorted(graph)}"


#: What starts a process, by dotted name.
STARTS = re.compile(
    r"subprocess\.(run|call|check_\w+|Popen|get\w+)|os\.(system|popen|fork\w*|exec\w+|spawn\w+|posix_spawn\w*)"
)


def started(path: Path) -> Iterator[str]:
    """The calls in ``path`` that start a process; annotations such as ``subprocess.Popen[bytes]`` are none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Call) and STARTS.fullmatch(ast.unparse(node.func)):
            yield f"{label(path)}:{node.lineno}: {ast.unparse(node.func)}"


def test_one_module_starts_processes_and_never_through_a_shell() -> None:
    everywhere = [path for folder in ("profpipe", "parsers", "workloads") for path in files(folder)]
    assert {call.split(":")[0] for path in everywhere for call in started(path)} == {"profpipe/run.py"}
    names = {name for path in everywhere if path.name != "run.py" for name in imported(path)}
    # Under another name a call would not be found above.
    assert not {name for name in names if re.match(r"subprocess\.|multiprocessing|pty|os\.", name)}
    assert "shell=" not in (ROOT / "profpipe" / "run.py").read_text(encoding="utf-8")


def loaded_by(statement: str) -> set[str]:
    """The top-level packages in memory after ``statement``, in a process of its own."""
    program = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split())


def test_the_harness_brings_no_pandas_into_the_process_of_the_workload() -> None:
    assert not loaded_by("import profpipe.harness") & {"numpy", "pandas", "pydantic", "rich", "torch", "yaml"}


def test_a_mistake_in_a_pipeline_is_told_without_loading_pandas(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkload: {}\n", encoding="utf-8")
    told = f"from profpipe.cli import main\nassert main(['run', {str(tmp_path / 'pipeline.yaml')!r}]) == 2"
    assert not loaded_by(told) & {"matplotlib", "pandas", "torch"}


def test_help_is_shown_without_loading_torch_or_pandas() -> None:
    show_help = (
        "import contextlib\nfrom profpipe.cli import main\nwith contextlib.suppress(SystemExit): main(['--help'])"
    )
    assert not loaded_by(show_help) & {"matplotlib", "pandas", "torch"}
