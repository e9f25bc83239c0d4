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
from profpipe.profilers import ncu, nsys, plain, rocprof, torch

#: In the order of the report: times without a profiler first, the slowest tool last.
_BUILT_IN: Final[Mapping[str, Profiler]] = {
    "plain": plain,
    "torch": torch,
    "nsys": nsys,
    "ncu": ncu,
    "rocprof": rocprof,
}

#: The names that the module of a profiler defines.
_PARTS: Final = ("NAME", "TRAITS", "find", "commands", "artifacts", "diagnose")


def _load(name: str, path: Path) -> Profiler:
    """Return the profiler of a package. Raises ConfigError for a module that cannot be loaded or is no profiler."""
    try:
        module: Any = plugins.load_module(path)
    except Exception as error:  # the code of a package may raise anything
        raise ConfigError(str(path), f"cannot be loaded: {one_line(error)}.", "Mend it, or uninstall it.") from error
    if missing := [part for part in _PARTS if not hasattr(module, part)]:
        raise ConfigError(str(path), f"is no profiler: it has no {missing[0]}.", "CONTRIBUTING.md has an example.")
    if name != module.NAME:
        raise ConfigError(
            str(path), f"has the NAME {module.NAME!r}, and its entry point {name!r}.", "Give both one name."
        )
    loaded: Profiler = module
    return loaded


_OF_PACKAGES = {filename.removesuffix(".py"): path for filename, path in plugins.installed("profilers").items()}

#: By name. A package replaces no built-in profiler.
ALL: Final[Mapping[str, Profiler]] = {
    **_BUILT_IN,
    **{name: _load(name, path) for name, path in _OF_PACKAGES.items() if name not in _BUILT_IN},
}


def traits(name: str) -> Traits:
    """Return the traits of a profiler; where it is not installed, those of any tool."""
    return ALL[name].TRAITS if name in ALL else Traits()
