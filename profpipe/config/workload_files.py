"""Find the file of a workload and read the parameters that it declares."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profpipe import plugins


def script_path(script: str, pipeline_path: Path) -> Path | None:
    """Return the file of ``script``: a path relative to the pipeline file, else a name in ``workloads/``."""
    pipeline_dir = pipeline_path.resolve().parent
    filename = script if script.endswith(".py") else f"{script}.py"
    if (pipeline_dir / filename).is_file():
        return pipeline_dir / filename
    return plugins.find("workloads", filename, pipeline_dir) if "/" not in script and "\\" not in script else None


def declared_params(script: Path) -> dict[str, Any] | None:
    """Return the literal ``PARAMS`` of a workload's file, names and defaults, or None if it declares none.

    The syntax tree is read: validation never runs a user's code and needs no torch.
    """
    for node in ast.parse(script.read_text(encoding="utf-8"), filename=str(script)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "PARAMS" and value is not None:
            declared = ast.literal_eval(value)
            if not isinstance(declared, dict):
                raise ValueError("PARAMS is not a mapping of names to defaults")
            return declared
    return None


#: Functions that can define a name which no statement binds.
_DEFINERS = frozenset({"globals", "locals", "vars", "setattr", "exec"})


@dataclass(frozen=True)
class BuildProblem:
    """Why a workload's file cannot be run. ``line`` is that of its ``build``; None where there is none."""

    what: str
    line: int | None = None


def find_build_problem(script: Path) -> BuildProblem | None:
    """Return why the file has no usable ``build(params)``, as far as its syntax tree says; None if it may have one."""
    found: ast.stmt | None = None
    tree = ast.parse(script.read_text(encoding="utf-8"), filename=str(script))
    for node in _statements(tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" or (alias.asname or alias.name) == "build" for alias in node.names):
                return None
        elif "build" in _defined(node):
            found = node
    if found is None and any(isinstance(node, ast.Name) and node.id in _DEFINERS for node in ast.walk(tree)):
        return None
    if found is None:
        return BuildProblem("has no function 'build'")
    value = getattr(found, "value", None)
    literals = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
    if isinstance(found, (ast.Assign, ast.AnnAssign)) and isinstance(value, literals):
        return BuildProblem("has a 'build' that is no function", found.lineno)
    if isinstance(found, ast.FunctionDef) and not _takes_one_argument(found.args):
        return BuildProblem("has a 'build' that does not take one argument, the parameters of the case", found.lineno)
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is loaded: also those inside ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _statements([child])
                elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    yield from _statements(child.body)


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement binds: a function, a class, or the targets of an assignment."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]


def _takes_one_argument(arguments: ast.arguments) -> bool:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    has_required_keyword = any(default is None for default in arguments.kw_defaults)
    return required <= 1 and bool(positional or arguments.vararg) and not has_required_keyword


def readable_params(script: str | None, pipeline_path: Path) -> dict[str, Any]:
    """Return the ``PARAMS`` of a workload's file; empty if there are none that can be read, which is reported once."""
    path = script_path(script, pipeline_path) if script else None
    try:
        return (declared_params(path) if path else None) or {}
    except (OSError, SyntaxError, ValueError):
        return {}
