"""Take the traces that a command writes itself with torch.profiler: ``collect: "log/*.json"``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from profpipe.job import Job
from profpipe.runner.artifacts import Stamp, stamp_of


def stamp(job: Job) -> dict[Path, Stamp | None]:
    """Return the files that are there before the command starts, with their state."""
    return {path: stamp_of(path) for path in _find(job)}


def collect(job: Job, before: Mapping[Path, Stamp | None]) -> None:
    """Copy the files that the command wrote since ``before`` into the folder of ``job``. They stay where they are."""
    written = [path for path in _find(job) if stamp_of(path) != before.get(path)]
    for number, path in enumerate(written, start=1):
        shutil.copy2(path, job.folder / f"{job.stem}.collected.{number}.{path.name}")


def _find(job: Job) -> Iterator[Path]:
    pattern = job.options.get("collect")
    if not pattern or job.script is not None or job.profiler != "torch":
        return
    root = Path(Path(pattern).anchor or job.cwd)
    yield from sorted(path for path in root.glob(pattern.removeprefix(Path(pattern).anchor)) if path.is_file())
