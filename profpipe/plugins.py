"""Finds, reads and loads workloads, parsers, templates and studies by path; nothing else loads files by path.

A file in the folder beside the user's ``pipeline.yaml`` takes precedence over the built-in file of the same name, so a
user adds or replaces a workload, parser or template by adding one file. Installed packages add theirs by entry points
of the groups ``profpipe.parsers`` and ``profpipe.workloads``, each of which names a module.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import importlib.util
import symtable
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from profpipe.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent


def builtin_folder(kind: str) -> Path:
    """Return the built-in folder ``parsers``, ``workloads``, ``templates`` or ``pipelines``.

    It stands in the installed package, or in a checkout beside it.
    """
    installed = _PACKAGE / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def folders(kind: str, pipeline_dir: Path | None = None) -> list[Path]:
    """Return the folders with files of ``kind``, the user's (in ``pipeline_dir``) first."""
    users = [pipeline_dir / kind] if pipeline_dir is not None else []
    return [folder for folder in dict.fromkeys([*users, builtin_folder(kind)]) if folder.is_dir()]


@functools.cache
def installed(kind: str) -> Mapping[str, Path]:
    """Return the modules of entry points by the name of a file, ``NAME.py``. Only packages around them are imported.

    An entry point whose module is not there raises ConfigError, which names the package.
    """
    from importlib import metadata

    modules = {}
    for entry in metadata.entry_points(group=f"profpipe.{kind}"):
        try:
            spec = importlib.util.find_spec(entry.module)
        except Exception:  # the package around the module is imported, and may raise anything
            spec = None
        if spec is None or spec.origin is None:
            package = entry.dist.name if entry.dist else "a package"
            what = f"names the module {entry.module!r} for profpipe.{kind}, which cannot be imported."
            raise ConfigError(package, what, f"Install {package} again, or uninstall it.")
        modules[f"{entry.name}.py"] = Path(spec.origin)
    return modules


def current_folder() -> Path | None:
    """Return the current folder if it is that of the user's pipeline file, whose ``parsers/`` serve `profpipe ingest`.

    A results folder has a pipeline file too. It and what lies below it are data, whose files never run.
    """
    here = Path.cwd()
    return here if (here / "pipeline.yaml").is_file() and not is_in_results(here) else None


def is_in_results(folder: Path) -> bool:
    """Return True for a results folder and what lies below one: data, of which nothing runs and no settings count."""
    return any((place / "run.json").exists() for place in (folder, *folder.parents))


def find(kind: str, filename: str, pipeline_dir: Path | None = None) -> Path | None:
    """Return the first file of that name: the user's, the built-in one, or that of an installed package."""
    paths = (folder / filename for folder in folders(kind, pipeline_dir))
    return next((path for path in paths if path.is_file()), None) or installed(kind).get(filename)


def files(kind: str, pattern: str, pipeline_dir: Path | None = None) -> Iterator[Path]:
    """Yield all files of ``kind`` that match, one for each name: the user's, built-in ones, those of packages."""
    named = [(path.name, path) for folder in folders(kind, pipeline_dir) for path in sorted(folder.glob(pattern))]
    named += ((name, path) for name, path in installed(kind).items() if fnmatch.fnmatch(name, pattern))
    first: dict[str, Path] = {}
    for name, path in named:
        first.setdefault(name, path)
    yield from (path for name, path in first.items() if not name.startswith(("_", ".")))


def pipeline_path(name: str | None) -> Path:
    """Return the pipeline file of that path, else the built-in study of that name; the default is pipeline.yaml."""
    path = Path(name or "pipeline.yaml")
    study = builtin_folder("pipelines") / f"{path}.yaml"
    return study if len(path.parts) == 1 and not path.exists() and study.is_file() else path


def load_module(path: Path) -> ModuleType:
    """Return the module at ``path``; a process executes each path once."""
    path = path.resolve()
    name = f"profpipe_loaded_{path.parent.name}_{path.stem}_{zlib.crc32(bytes(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up in sys.modules while the class body is executed.
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[name]
        raise
    return loaded


@functools.cache
def kernel_classes() -> Mapping[str, Any]:
    """Load the engine's ``parsers/kernel_classes.yaml``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with (builtin_folder("parsers") / "kernel_classes.yaml").open(encoding="utf-8") as file:
        document: Mapping[str, Any] = yaml.load(file, Loader=loader)
    return document


# --- what the file of a workload declares, from its syntax tree: no code of a user runs ------------------------------


def script_path(script: str, pipeline_path: Path) -> Path | None:
    """Return the file of ``script``: a path relative to the pipeline file, else a name in ``workloads/``."""
    pipeline_dir = pipeline_path.resolve().parent
    filename = script if script.endswith(".py") else f"{script}.py"
    if (pipeline_dir / filename).is_file():
        return pipeline_dir / filename
    return find("workloads", filename, pipeline_dir) if "/" not in script and "\\" not in script else None


def parse_source(script: Path) -> ast.Module:
    """Return the syntax tree of a file. Raises OSError, SyntaxError or ValueError where it cannot be read."""
    return ast.parse(script.read_text(encoding="utf-8"), filename=str(script))


def declared_params(script: Path, constant: str = "PARAMS") -> dict[str, Any] | None:
    """Return the literal ``PARAMS`` of a workload's file, names and defaults, or None if it declares none."""
    declared = read_constant(script, constant)
    if declared is not None and not isinstance(declared, dict):
        raise ValueError(f"{constant} is not a mapping of names")
    return declared


def read_constant(script: Path, constant: str) -> Any:
    """Return the literal value of a name in a file that is not executed, or None if it has none."""
    for node in parse_source(script).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == constant and value is not None:
            return ast.literal_eval(value)
    return None


def declared_needs(script: Path) -> dict[str, dict[Any, str]]:
    """Return the literal ``NEEDS_GPU`` of a workload's file.

    By parameter: the values that run on no CPU, and the package that each needs too, or an empty text.
    """
    needs = declared_params(script, "NEEDS_GPU") or {}
    packages = [
        package for values in needs.values() for package in (values.values() if isinstance(values, dict) else [0])
    ]
    if not all(isinstance(package, str) for package in packages):
        raise ValueError("NEEDS_GPU is not a mapping of parameters to values and packages")
    return needs


def readable_params(script: str | None, pipeline_path: Path) -> dict[str, Any]:
    """Return the ``PARAMS`` of a workload's file; empty if there are none that can be read, which is reported once."""
    path = script_path(script, pipeline_path) if script else None
    try:
        return (declared_params(path) if path else None) or {}
    except (OSError, SyntaxError, ValueError):
        return {}


#: Functions that can define a name which no statement binds.
_DEFINERS = frozenset({"globals", "locals", "vars", "setattr", "exec"})
_LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)


def find_build_problem(script: Path) -> tuple[str, int | None] | None:
    """Return why the file has no usable ``build(params)``, and the line of its ``build``; None if it may have one."""
    tree = parse_source(script)
    aliases = [node for node in ast.walk(tree) if isinstance(node, ast.alias)]
    if any(alias.name == "*" or "build" in (alias.name, alias.asname) for alias in aliases):
        return None
    bindings = [node for node in tree.body if "build" in _bound(node)]
    if not bindings:
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        # `build` may be defined inside an `if`, but not inside another function.
        is_bound = "build" in symtable.symtable(ast.unparse(tree), str(script), "exec").get_identifiers()
        return None if is_bound or names & _DEFINERS else ("has no function 'build'", None)
    last = bindings[-1]
    if any(isinstance(node, ast.stmt) and "build" in _bound(node) and node not in bindings for node in ast.walk(tree)):
        return None
    if isinstance(last, (ast.Assign, ast.AnnAssign)) and isinstance(last.value, _LITERALS):
        return "has a 'build' that is no function", last.lineno
    if isinstance(last, ast.FunctionDef) and not _takes_one_argument(last.args):
        return "has a 'build' that does not take one argument, the parameters of the case", last.lineno
    return None


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement binds: a function, a class, or assigned names."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]


def _takes_one_argument(arguments: ast.arguments) -> bool:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    has_required_keyword = any(default is None for default in arguments.kw_defaults)
    return required <= 1 and bool(positional or arguments.vararg) and not has_required_keyword
