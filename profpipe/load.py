"""The one door through which workloads, parsers and templates are found and loaded: by path.

A file in the folder beside the user's ``pipeline.yaml`` comes before the engine's own of the same name, so that a user
adds or replaces one by adding one file.
"""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent


def own_folder(kind: str) -> Path:
    """The engine's own ``parsers``, ``workloads`` or ``templates``: in the package when installed, else beside it."""
    installed = _PACKAGE / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def folders(kind: str, beside: Path | None = None) -> list[Path]:
    """Where files of ``kind`` are looked for, in order; ``beside`` is the folder of the user's pipeline file."""
    users = [beside / kind] if beside is not None else []
    return [folder for folder in dict.fromkeys([*users, own_folder(kind)]) if folder.is_dir()]


def find(kind: str, filename: str, beside: Path | None = None) -> Path | None:
    """The first file of that name, the user's before ours."""
    return next((f / filename for f in folders(kind, beside) if (f / filename).is_file()), None)


def files(kind: str, pattern: str, beside: Path | None = None) -> Iterator[Path]:
    """All files of ``kind`` that match, one for each name, the user's before ours."""
    seen: set[str] = set()
    for folder in folders(kind, beside):
        for path in sorted(folder.glob(pattern)):
            if path.name not in seen and not path.name.startswith("_"):
                seen.add(path.name)
                yield path


def module(path: Path) -> ModuleType:
    """The module at ``path``, executed once for each path and process.

    A part (``_x.py``) that does not lie beside a file of the user's is the engine's own of that name, so that a copy of
    one of our files can be changed without copying its parts.
    """
    path = path.resolve()
    if path.name.startswith("_") and not path.exists():
        path = own_folder(path.parent.name) / path.name
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
