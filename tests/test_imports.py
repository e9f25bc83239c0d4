"""The rule of imports: stages pass plain values to each other, and a stage imports only the stages below it."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Every module may import these, and other modules of the same package.
EVERYBODY = {"errors", "job", "masking", "origins", "plugins", "ranges", "stdio"}

#: What else the modules of a package may import. The order is that of the stages, from the last to the first.
MAY_IMPORT = {
    "cli": {"commands"},
    "commands": {
        "runner",
        "report",
        "analysis",
        "scrub",
        "traces",
        "ingest",
        "results",
        "config",
        "profilers",
        "measure",
    },
    "runner": {"scrub", "ingest", "results", "config", "profilers", "measure"},
    "report": {"analysis", "results", "config", "measure"},
    "analysis": {"results", "config", "measure"},
    "scrub": {"ingest", "results", "profilers"},
    "traces": {"ingest", "results"},
    "ingest": {"results", "measure"},
    "results": {"config", "measure"},
    "config": {"measure"},
    "profilers": set(),
    # Both run inside the workload's process.
    "measure": {"hook"},
    "hook": set(),
    "changes": {"hook"},
    # For the types of the settings, not at run time.
    "job": {"config"},
    # The marks of a program, and its access to results; both are imported at their first use.
    "__init__": {"commands", "hook"},
    "workload_lib": set(),
    # The public files of the checkout.
    "parsers": {"ingest", "results", "measure"},
    "workloads": {"workload_lib"},
}


@functools.cache
def syntax(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path):
    """Yield the dotted names that ``path`` imports anywhere, including imports for type checking."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_imported(path):
    """Return the packages and root modules of profpipe that ``path`` imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("profpipe.")} - {"__version__"}


def files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def label(path):
    return path.relative_to(ROOT).as_posix()


def package_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "profpipe" else parts[0]


@pytest.mark.parametrize("path", [*files("profpipe"), *files("parsers"), *files("workloads")], ids=label)
def test_a_module_imports_only_the_packages_below_its_own(path):
    package = package_of(path)
    if package == "__main__":
        assert packages_imported(path) == {"cli"}
        return
    allowed = MAY_IMPORT.get(package, set()) | EVERYBODY | {package}
    assert packages_imported(path) <= allowed


def test_the_top_of_the_package_holds_ten_modules_at_most():
    assert len(list((ROOT / "profpipe").glob("*.py"))) <= 10


def test_no_two_modules_import_each_other():
    files_of = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files("profpipe")}
    graph = {}
    for name, path in files_of.items():
        # `from a import b` and `from a.b import c` need the same module.
        needs = {part for found in imported(path) for part in (found, found.rpartition(".")[0])}
        graph[name] = needs & files_of.keys() - {name}
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}
    assert not graph, f"a circle among {sorted(graph)}"


#: Functions that start a process.
STARTS = re.compile(
    r"subprocess\.(run|call|check_\w+|Popen|get\w+)|os\.(system|popen|fork\w*|exec\w+|spawn\w+|posix_spawn\w*)"
)


def started(path):
    """Yield the calls in ``path`` that start a process. Annotations are no calls."""
    for node in ast.walk(syntax(path)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if STARTS.fullmatch(
                f"{module}.{name}"
            ):
                yield f"{label(path)}:{node.lineno}: {module}.{name}"


#: Starts the supervisor, which starts everything else; and Python, to demangle a name or load a pickle under limits.
STARTERS = {
    f"profpipe/{name}.py"
    for name in ("runner/process", "runner/supervisor", "ingest/kernel_names", "ingest/torch_snapshot")
}


def test_few_modules_start_processes_and_never_through_a_shell():
    everywhere = [path for folder in ("profpipe", "parsers", "workloads") for path in files(folder)]
    assert {call.split(":")[0] for path in everywhere for call in started(path)} == STARTERS
    names = {name for path in everywhere if label(path) not in STARTERS for name in imported(path)}
    # The check above would not find a call under another name.
    assert not {name for name in names if re.match(r"subprocess\.|multiprocessing|pty|os\.", name)}
    assert not any("shell=" in (ROOT / name).read_text(encoding="utf-8") for name in STARTERS)


def test_the_supervisor_of_processes_starts_without_packages():
    tree = ast.parse((ROOT / "profpipe/runner/supervisor.py").read_text(encoding="utf-8"))
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert names <= {"ctypes", "errno", "marshal", "os", "signal", "subprocess", "sys", "threading", "time"}


def loaded_by(statement):
    """Return the top-level packages that a new process has loaded after ``statement``."""
    program = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split())


def test_the_harness_does_not_import_pandas():
    assert not loaded_by("import profpipe.measure.harness") & {"numpy", "pandas", "pydantic", "rich", "torch", "yaml"}


def test_a_mistake_in_a_pipeline_is_reported_without_loading_pandas(tmp_path):
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkload: {}\n", encoding="utf-8")
    code = f"from profpipe.cli import main\nassert main(['run', {str(tmp_path / 'pipeline.yaml')!r}]) == 2"
    assert not loaded_by(code) & {"pandas", "torch"}


def test_help_is_shown_without_loading_torch_or_pandas():
    show_help = (
        "import contextlib\nfrom profpipe import cli\nfor words in ([], *([name] for name in cli.COMMANDS)):\n"
        "    with contextlib.suppress(SystemExit):\n        cli.main([*words, '--help'])"
    )
    assert not loaded_by(show_help) & {"numpy", "pandas", "pyarrow", "pydantic", "torch"}
