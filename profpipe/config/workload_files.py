"""Find the file of a workload and read the parameters that it declares."""

from __future__ import annotations

import ast
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


def readable_params(script: str | None, pipeline_path: Path) -> dict[str, Any]:
    """Return the ``PARAMS`` of a workload's file; empty if there are none that can be read, which is reported once."""
    path = script_path(script, pipeline_path) if script else None
    try:
        return (declared_params(path) if path else None) or {}
    except (OSError, SyntaxError, ValueError):
        return {}
