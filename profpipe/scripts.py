"""A workload's file: where its name leads, and which parameters it declares."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from profpipe import load


def script_path(script: str, pipeline_path: Path) -> Path | None:
    """The file a workload's ``script`` means: a path relative to the pipeline file, else a name in ``workloads/``."""
    beside = pipeline_path.resolve().parent
    filename = script if script.endswith(".py") else f"{script}.py"
    if (beside / filename).is_file():
        return beside / filename
    return load.find("workloads", filename, beside) if "/" not in script and "\\" not in script else None


def declared_params(script: Path) -> dict[str, Any] | None:
    """The literal ``PARAMS`` of a workload's file: parameter names and defaults. None where it declares none.

    Read from the syntax tree, so that checking a pipeline never runs a user's code and needs no torch.
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
