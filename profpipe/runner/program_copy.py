"""A copy of a program's folder for each process of `profpipe try`, so that the user's files stay as they are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from profpipe import ranges
from profpipe.errors import ConfigError
from profpipe.job import Job, ProgressListener
from profpipe.runner import checkout

#: The start-up hook loads it like a change.
OBSERVER: Final = Path(ranges.__file__).with_name("hook") / "observe.py"
#: Nothing is sent to a service, and nothing is downloaded in each process again.
_VARIABLES: Final = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}
#: A larger folder would fill the disk and the time. It holds data, which belong elsewhere.
_MOST_BYTES: Final = 10 * 2**30
#: What a link leads to is copied up to this size.
_MOST_LINKED: Final = 2**30
#: Entries beside the folder that the program reaches by ``../data``.
_MOST_BESIDE: Final = 1000


def run(
    session: Any,
    jobs: Sequence[Job],
    listener: ProgressListener,
    seed: int,
    *,
    observe: Mapping[str, Any] = MappingProxyType({}),
    numbers: tuple[int, int] | None = None,
    later: Sequence[Job] = (),
) -> None:
    """Run the jobs that are not done, each in a copy of its folder, which is removed afterwards.

    ``observe`` is what ``profpipe.hook.observe`` does beside noting: ``watch`` or ``switches``.
    """
    left = [job for job in jobs if not session.is_done(job)]
    copied: list[Job] = []
    try:
        for job in left:
            copied.append(_place_copy(job, session.folder))
            copied[-1] = _move_to_copy(job, copied[-1], session.request.out, {"seed": seed, **observe})
        session.run_jobs(copied, listener, numbers, later=later)
    finally:
        for job in copied:
            remove(job)


def _place_copy(job: Job, run_folder: Path) -> Job:
    """Return the job in the place of its copy, which is not made yet."""
    name = job.launch.cwd.resolve().name or "root"
    place = run_folder.resolve() / checkout.FOLDER / "-".join(job.label.split()) / name
    return replace(job, launch=replace(job.launch, cwd=place))


def _move_to_copy(job: Job, placed: Job, out: Path, observe: Mapping[str, Any]) -> Job:
    """Return the job of a program in a fresh copy of its folder, with the settings of the observer.

    Raises ConfigError for a folder that cannot be copied.
    """
    source, target = job.launch.cwd.resolve(), placed.launch.cwd
    if out.resolve() == source:
        what = f"{out} is the folder of the program, of which copies are made."
        raise ConfigError("--out", what, "Name another folder.")
    remove(placed)
    _copy(source, target, out.resolve())
    words = list(job.command)
    # The shell may name the folder by a link to it.
    spellings = [Path(text) for text in (source, job.launch.cwd, os.environ.get("PWD", source))]
    for spelling in dict.fromkeys(path for path in spellings if path.resolve() == source):
        words = [word.replace(f"{spelling}{os.sep}", f"{target}{os.sep}") for word in words]
    paths = [str(OBSERVER), *filter(None, [job.launch.env.get(ranges.CHANGES_VARIABLE)])]
    variables = {
        **_VARIABLES,
        ranges.CHANGES_VARIABLE: os.pathsep.join(paths),
        ranges.OBSERVE_VARIABLE: json.dumps(observe),
    }
    launch = replace(placed.launch, env={**job.launch.env, **variables}, shown_from=source)
    return replace(job, command=tuple(words), launch=launch)


def remove(job: Job) -> None:
    """Remove the copy in which the job ran."""
    shutil.rmtree(job.launch.cwd.parent, ignore_errors=True)


def _copy(source: Path, target: Path, out: Path) -> None:
    """Copy a folder: files and folders, and what links lead to where that is small; the rest becomes links."""
    left, waiting = _MOST_BYTES, [(source, target)]
    while waiting:
        folder, copy = waiting.pop()
        copy.mkdir(parents=True)
        for entry in os.scandir(folder):
            path, size = Path(entry.path), 0
            if path == out or not (entry.is_file() or entry.is_dir() or entry.is_symlink()):
                continue
            is_folder, is_inside = entry.is_dir(), path.resolve().is_relative_to(source)
            if entry.is_symlink() and is_inside:
                (copy / entry.name).symlink_to(path.readlink())
            elif (path / "pyvenv.cfg").is_file() or not os.access(path, os.R_OK):
                (copy / entry.name).symlink_to(path.resolve())
            elif entry.is_symlink() and (size := _measure(path, _MOST_LINKED)) > _MOST_LINKED:
                # It holds data. The program may write there, and the page then says so.
                (copy / entry.name).symlink_to(path.resolve())
            elif is_folder:
                waiting.append((path, copy / entry.name))
            else:
                left -= size or path.stat().st_size
                if left < 0:
                    what = f"holds more than {_MOST_BYTES // 2**30} GiB, and each process starts in a copy of it."
                    raise ConfigError(str(source), what, "Start the program in a folder without its data.")
                shutil.copy(path, copy / entry.name)
    # The program may reach what lies beside the folder by `../data`.
    beside = list(source.parent.iterdir()) if source.parent != source and os.access(source.parent, os.R_OK) else []
    for path in beside if len(beside) <= _MOST_BESIDE else ():
        if path != source:
            (target.parent / path.name).symlink_to(path)


def _measure(path: Path, most: int) -> int:
    """Return the bytes of a file or of what a folder holds; more than ``most`` counts no further."""
    size, waiting = 0, [path]
    while waiting and size <= most:
        place = waiting.pop()
        if place.is_dir():
            waiting += place.iterdir() if os.access(place, os.R_OK) else []
        elif place.is_file():
            size += place.stat().st_size
    return size
