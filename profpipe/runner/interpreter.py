"""The versions in another interpreter: what may explain that a program is faster there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from profpipe.measure.machine import PACKAGES
from profpipe.runner import process

#: The versions that explain most differences.
_FIRST: Final = ("Python", "torch", "CUDA of torch", "HIP of torch", *PACKAGES)

#: Does not import torch, which takes seconds: its version.py is a few assignments.
_PROGRAM: Final = """
import json, pathlib, platform, re, sys
from importlib import metadata, util
found = {"Python": platform.python_version()}
for package in metadata.distributions():
    # The first one on sys.path is the one that is imported.
    found.setdefault(re.sub("[-_.]+", "-", package.metadata["Name"] or "").lower(), package.version)
spec = util.find_spec("torch")
path = pathlib.Path(spec.origin or "").with_name("version.py") if spec else None
if path and path.is_file():
    for name, version in re.findall(r"^(cuda|hip)\\b.*?=\\s*['\\"]([^'\\"]+)", path.read_text(), re.MULTILINE):
        found[f"{name.upper()} of torch"] = version
print(json.dumps({name: version for name, version in found.items() if name}))
"""


def differing_versions(a: str, b: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions in the interpreters ``a`` and ``b`` that differ: Python, torch, its CUDA, and packages.

    Both have the same names, those that explain most first; a version is empty where the package is missing. Both are
    empty where one interpreter cannot be asked.
    """
    if a == b or not (of_a := _versions(a)) or not (of_b := _versions(b)):
        return {}, {}
    names = sorted(name for name in {*of_a, *of_b} if of_a.get(name) != of_b.get(name))
    names.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    return tuple({name: own.get(name, "") for name in names} for own in (of_a, of_b))  # type: ignore[return-value]


def _versions(python: str) -> Mapping[str, str]:
    lines = (process.ask_python(["-c", _PROGRAM], python) or "").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
