"""Finds and loads workloads, parsers and templates by path; nothing else loads files by path.

A file in the folder beside the user's ``pipeline.yaml`` takes precedence over the built-in file of the same name, so a
user adds or replaces a workload, parser or template by adding one file.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def builtin_folder(kind: str) -> Path:
    """Return the built-in ``parsers``, ``workloads`` or ``templates``: in the installed package, or beside it."""
    installed = _PACKAGE / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def folders(kind: str, pipeline_dir: Path | None = None) -> list[Path]:
    """Return the folders with files of ``kind``, the user's (in ``pipeline_dir``) first."""
    users = [pipeline_dir / kind] if pipeline_dir is not None else []
    return [folder for folder in dict.fromkeys([*users, builtin_folder(kind)]) if folder.is_dir()]


def find(kind: str, filename: str, pipeline_dir: Path | None = None) -> Path | None:
    """Return the first file of that name, the user's before the built-in one."""
    paths = (folder / filename for folder in folders(kind, pipeline_dir))
    return next((path for path in paths if path.is_file()), None)


def files(kind: str, pattern: str, pipeline_dir: Path | None = None) -> Iterator[Path]:
    """Yield all files of ``kind`` that match, one for each name, the user's before the built-in one."""
    seen: set[str] = set()
    for folder in folders(kind, pipeline_dir):
        for path in sorted(folder.glob(pattern)):
            if path.name not in seen and not path.name.startswith("_"):
                seen.add(path.name)
                yield path


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
