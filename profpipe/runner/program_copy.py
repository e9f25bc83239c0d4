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
    copied = [move_to_copy(job, session.folder, session.request.out, {"seed": seed, **observe}) for job in left]
    try:
        session.run_jobs(copied, listener, numbers, later=later)
    finally:
        for job in copied:
            remove(job)


def move_to_copy(job: Job, run_folder: Path, out: Path, observe: Mapping[str, Any]) -> Job:
    """Return the job of a program in a fresh copy of its folder, with the settings of the observer.

    ``remove`` removes the copy. Raises ConfigError for a folder that is too large.
    """
    source = job.launch.cwd.resolve()
    target = run_folder.resolve() / checkout.FOLDER / "-".join(job.label.split()) / (source.name or "root")
    shutil.rmtree(target.parent, ignore_errors=True)
    _copy(source, target, out.resolve())
    inside = f"{source}{os.sep}"
    words = tuple(f"{target}/{word.removeprefix(inside)}" if word.startswith(inside) else word for word in job.command)
    paths = [str(OBSERVER), *filter(None, [job.launch.env.get(ranges.CHANGES_VARIABLE)])]
    variables = {
        **_VARIABLES,
        ranges.CHANGES_VARIABLE: os.pathsep.join(paths),
        ranges.OBSERVE_VARIABLE: json.dumps(observe),
    }
    launch = replace(job.launch, cwd=target, env={**job.launch.env, **variables}, shown_from=source)
    return replace(job, command=words, launch=launch)


def remove(job: Job) -> None:
    """Remove the copy in which the job ran."""
    shutil.rmtree(job.launch.cwd.parent, ignore_errors=True)


def _copy(source: Path, target: Path, out: Path) -> None:
    size = 0

    def leave_out(folder: str, names: list[str]) -> list[str]:
        """Return the results folder and virtual environments; add up the rest."""
        nonlocal size
        left = [name for name in names if (path := Path(folder, name)) == out or (path / "pyvenv.cfg").is_file()]
        size += sum(Path(folder, name).lstat().st_size for name in names if name not in left)
        if size > _MOST_BYTES:
            what = f"holds more than {_MOST_BYTES // 2**30} GiB, and each process starts in a copy of it."
            raise ConfigError(str(source), what, "Start the program in a folder without its data.")
        return left

    shutil.copytree(source, target, symlinks=True, ignore=leave_out)
    for entry in sorted(source.iterdir()):
        if entry != out and not (target / entry.name).exists() and not (target / entry.name).is_symlink():
            (target / entry.name).symlink_to(entry)
    beside = [entry for entry in source.parent.iterdir() if entry != source] if source.parent != source else []
    for entry in beside if len(beside) <= _MOST_BESIDE else ():
        (target.parent / entry.name).symlink_to(entry)
