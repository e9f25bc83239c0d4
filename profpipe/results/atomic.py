"""Write files whole or not at all: under a temporary name in the same folder, which is then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Call ``fill`` with a temporary path and rename the file that it writes to ``path``."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        fill(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read at any time."""

    def fill(temporary: Path) -> None:
        temporary.touch(mode=0o600)  # before there is anything to read
        temporary.write_bytes(content)

    write(path, fill)


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run's folder and in the folders of its jobs."""
    for path in (*folder.glob(".*-[0-9]*"), *folder.glob("raw/**/.*.json-[0-9]*")):
        path.unlink()
