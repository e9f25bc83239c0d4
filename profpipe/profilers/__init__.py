"""The profilers: modules that implement ``job.Profiler``. They build commands and never run them.

Installed packages add theirs by entry points of the group ``profpipe.profilers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from profpipe import plugins
from profpipe.errors import ConfigError, one_line
from profpipe.job import Profiler, Traits
from profpipe.profilers import lines, memory, ncu, nsys, plain, rocprof, torch

#: In the order of the report: times without a profiler first, the slowest tool last.
_BUILT_IN: Final[dict[str, Profiler]] = {
    "plain": plain,
    "torch": torch,
    "memory": memory,
    "lines": lines,
    "nsys": nsys,
    "ncu": ncu,
    "rocprof": rocprof,
}

#: The names that the module of a profiler defines.
_PARTS: Final = ("NAME", "TRAITS", "find", "commands", "artifacts", "diagnose")


def _load(name: str, path: Path) -> Any:
    """Return the profiler of a package. Raises ConfigError for a module that cannot be loaded or is no profiler."""
    try:
        module: Any = plugins.load_module(path)
    except Exception as error:  # the code of a package may raise anything
        raise ConfigError(str(path), f"cannot be loaded: {one_line(error)}.", "Fix it, or uninstall it.") from error
    missing = next((f"it has no {part}" for part in _PARTS if not hasattr(module, part)), "")
    if missing or name != module.NAME:
        what = f"is no profiler: {missing or f'its NAME is not {name!r}, as the entry point has it'}."
        raise ConfigError(str(path), what, "CONTRIBUTING.md has an example.")
    return module


#: By name. A package replaces no built-in profiler.
ALL: Final[Mapping[str, Profiler]] = _BUILT_IN | {
    name: _load(name, path)
    for filename, path in plugins.installed("profilers").items()
    if (name := filename.removesuffix(".py")) not in _BUILT_IN
}


def find_traits(name: str) -> Traits:
    """Return the traits of a profiler; where it is not installed, those of any tool."""
    return ALL[name].TRAITS if name in ALL else Traits()
