"""What benchmarks share: they import profpipe and start `profpipe run` of this checkout, with its harness."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def sets(values: Mapping[str, object] | Iterable[str]) -> list[str]:
    """Return the options that set ``values``, which are names with values, or texts such as ``batch=2``."""
    pairs = [f"{name}={value}" for name, value in values.items()] if isinstance(values, Mapping) else values
    return [word for pair in pairs for word in ("--set", pair)]


def run(pipeline: Path, out: Path, options: Sequence[str], allowed: Collection[int] = (0,)) -> Path:
    """Run ``pipeline`` from its folder; return the folder of the run. Another exit code than ``allowed`` ends this."""
    start([str(pipeline.resolve()), "--out", str(out.resolve()), *options], pipeline.resolve().parent, allowed)
    return (out / "latest").resolve()


def start(words: Sequence[str], folder: Path, allowed: Collection[int] = (0,)) -> None:
    """Start ``profpipe run`` with ``words`` in ``folder``. Another exit code than ``allowed`` ends this."""
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "run", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode not in allowed:
        sys.exit(done.stdout + done.stderr)
