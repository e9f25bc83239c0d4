"""Check before a run is resumed that it is the user's own, and that it measures the same code and settings.

One table must not mix times of different code. And `resume` starts what a run names, so this user must have made the
run on this machine: a file in the state folder of the user lists the hashes of what each run starts. A results folder
holds nothing of it, so that the folder alone does not suffice to make or change a run of this user. The hash covers no
path: a folder that its user moves stays known. The owners of the files are checked too, because a folder may lie where
others write.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from profpipe import profilers
from profpipe.errors import ConfigError
from profpipe.job import Job, Missing
from profpipe.results import atomic
from profpipe.runner import guided_ncu, job_cache, process, sides
from profpipe.runner.request import REQUEST_FILE, find_saved, readable

#: The dependencies of each job at the start of the run. Private, for the hashes have no salt.
FILE: Final = Path("raw") / "fingerprint.json"

#: How many changes are named for each workload.
_MAX_NAMED: Final = 4


def save(folder: Path, planned: Iterable[Job], below: Path, machine: Mapping[str, Any]) -> None:
    """Record in the run's ``folder`` the dependencies of jobs whose folders are planned below ``below``."""
    _write(folder, {str(job.folder.relative_to(below)): _digests(job, machine) for job in planned})


def check(folder: Path, planned: Sequence[Job], machine: Mapping[str, Any]) -> None:
    """Raise ConfigError if the dependencies of a job have changed since the run in ``folder`` began.

    A job whose tool is missing, now or then, is not checked.
    """
    saved = _read(folder)
    files = (path for path in (folder / "raw").rglob("*") if path.is_file())
    began = find_saved(folder, REQUEST_FILE).stat().st_mtime
    ended = max(path.stat().st_mtime for path in (folder / "run.json", *files))
    changes: dict[str, list[str]] = {}
    for job in planned:
        before, now = saved.get(str(job.folder.relative_to(folder))), _digests(job, machine)
        if before and now:
            outputs = job_cache.possible_outputs(job, began, ended)
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            changes.setdefault(job.workload, []).extend(name for name in changed if name not in outputs)
    _refuse(folder, "was started with other code or settings", changes)


def save_sources(folder: Path, planned: Iterable[Job]) -> None:
    """Record in the run's ``folder`` the files that the jobs run: a node of a cluster is another machine."""
    _write(folder, _sources(planned))


def check_sources(folder: Path, planned: Sequence[Job], find_begin: Callable[[], float]) -> None:
    """Raise ConfigError if a file that the jobs run has changed since ``save_sources``.

    A data file in a command may be written by other tasks. ``find_begin`` returns when the first one of them began, in
    seconds as files have them.
    """
    saved = _read(folder)
    for workload, digests in _sources(planned).items():
        # Another case of the workload may name other files.
        changed = {name for name, digest in digests.items() if saved.get(workload, {}).get(name, digest) != digest}
        began, now = find_begin() if changed else 0.0, time.time()
        jobs = planned if changed else ()
        outputs = {name for job in jobs for name in job_cache.possible_outputs(job, began, now)}
        _refuse(folder, "was submitted with other code", {workload: changed - outputs})


def _sources(planned: Iterable[Job]) -> dict[str, dict[str, str]]:
    """Return by workload the digest of each file that its jobs run. A container has other programs on PATH."""
    digests: dict[str, dict[str, str]] = {}
    for job in planned:
        words = ("", *job.command[1:]) if job.command and os.sep not in job.command[0] else job.command
        files = job_cache.hash_sources(replace(job, command=words), job.launch.env)
        digests.setdefault(job.workload, {}).update(job_cache.digests(files))
    return digests


def _write(folder: Path, digests: Mapping[str, Mapping[str, str]]) -> None:
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    atomic.write_private(folder / FILE, json.dumps(digests).encode())


def _read(folder: Path) -> dict[str, dict[str, str]]:
    with readable(folder, FILE) as document:
        return {str(name): dict(digests) for name, digests in document.items()}


def _refuse(folder: Path, what: str, changes: Mapping[str, Iterable[str]]) -> None:
    """Raise ConfigError if there are changes, by workload."""
    if text := "; ".join(f"{workload} ({_listed(names)})" for workload, names in changes.items() if names):
        what = f"{what}, whose times cannot be compared with today's: {text}."
        remedy = "Undo that change and resume the run, or start a new run. The measurements of this run are kept."
        raise ConfigError(str(folder), what, remedy)


def _listed(names: Iterable[str]) -> str:
    once = sorted(set(names))
    more = [f"{len(once) - _MAX_NAMED} more"] if len(once) > _MAX_NAMED else []
    return ", ".join([*once[:_MAX_NAMED], *more])


def _digests(job: Job, machine: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(job.tool, Missing):
        return {}
    # The kernels of a guided job are not known before the run.
    commands = profilers.ALL[job.profiler].commands(guided_ncu.preview(job))
    # A rented machine may return with another build of the operating system.
    variables = process.filter_variables(os.environ)
    return job_cache.digests(job_cache.dependencies(job, commands, {**machine, "os": ""}, variables))


# --- the runs of this user --------------------------------------------------------------------------------------------

#: What a run starts, and the hashes of the code that it started with.
_HASHED: Final = (REQUEST_FILE, sides.SIDES_FILE, FILE)


def remember(folder: Path) -> None:
    """Add the run in ``folder`` to the list. Without a state folder that can be written the run stays unknown."""
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        path = _list_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic.open_to_append(path.parent.resolve() / path.name, mode=0o600) as stream:
            stream.write(f"{_digest(folder)}\n".encode())


def find_doubt(folder: Path) -> str:
    """Return why the run in ``folder`` is not one that this user made on this machine; "" for one that is."""
    us = (os.geteuid(), 0)  # root may do everything anyway
    if any(about.st_uid not in us for _, about in _walk(folder)):
        return "another user owns a file in it"
    with suppress(OSError, RuntimeError):
        path = _list_file()
        about = path.stat()
        is_private = about.st_uid in us and not about.st_mode & 0o022
        if is_private and _digest(folder).encode() in atomic.read_regular(path).split():
            return ""
    return "it is not in the list of your runs, or its request was changed"


def find_link(folder: Path) -> Path | None:
    """Return a link in the run's ``folder`` that leads out of it, or a pipe or a device; None where there is none.

    The processes of a resumed run would write there. Checkouts and the library of a run are made again.
    """
    made_anew = [folder / place for place in sides.MADE_ANEW]
    for path, about in _walk(folder):
        kind = about.st_mode
        is_made_anew = any(path.is_relative_to(place) for place in made_anew)
        is_ordinary = stat.S_ISREG(kind) or stat.S_ISDIR(kind) or (stat.S_ISLNK(kind) and _leads_inside(path, folder))
        if not is_made_anew and not is_ordinary:
            return path
    return None


def _leads_inside(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a link to itself
        return False


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the folder and everything below it, without following links."""
    yield folder, folder.lstat()
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # a task has renamed its temporary file meanwhile
                about = path.lstat()
                yield path, about


def _digest(folder: Path) -> str:
    """Return the hash of the files that say what the run starts."""
    paths = [find_saved(folder, name) for name in _HASHED]
    parts = [path.read_bytes() if path.is_file() else b"" for path in paths]
    return hashlib.sha256(b"\n".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _list_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "profpipe" / "runs"
