"""Know the runs that this user made on this machine: `resume` starts what a run names.

A file in the state folder of the user lists the hashes of what each run starts. A results folder holds nothing of it,
so that the folder alone does not suffice to make or change a run of this user. The hash covers no path: a folder that
its user moves stays known. The owners of the files are checked too, because a folder may lie where others write.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from profpipe.results import atomic
from profpipe.runner import fingerprint, sides
from profpipe.runner.request import REQUEST_FILE

#: What a run starts, and the hashes of the code that it started with.
_HASHED: Final = (REQUEST_FILE, sides.SIDES_FILE, fingerprint.FILE)


def add(folder: Path) -> None:
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
    parts = [(folder / name).read_bytes() if (folder / name).is_file() else b"" for name in _HASHED]
    return hashlib.sha256(b"\n".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _list_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "profpipe" / "runs"
