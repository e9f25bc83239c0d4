"""Recognise the runs that this user made on this machine: `resume` starts what a run names.

A run is sealed by an HMAC over the files that decide what is started. The key lies in the state folder of the user and
never in a results folder, so the folder alone does not suffice to make or change a sealed run. The HMAC covers no path:
a folder that its user moves stays sealed. The owners of the files are checked too, because a sealed folder may lie
where others write.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from profpipe.results import atomic
from profpipe.runner import fingerprint, sides
from profpipe.runner.request import REQUEST_FILE

#: Beside the files that it covers.
FILE: Final = Path("raw") / "seal"
#: What a run starts, and the hashes of the code that it started with.
_SEALED: Final = (REQUEST_FILE, sides.SIDES_FILE, fingerprint.FILE)
_KEY_BYTES: Final = 32
#: The version of what the HMAC covers.
_PURPOSE: Final = b"profpipe run 1"


class Doubt(Enum):
    """Why a run counts as made by somebody else."""

    NO_SEAL = "it has no seal of this user"
    OTHER_SEAL = "its seal is of another user or machine, or its request was changed"
    OTHER_OWNER = "another user owns a file in it"


def save(folder: Path) -> None:
    """Seal the run in ``folder``. Without a state folder that can be written the run stays without a seal."""
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        if key := _read_key(make=True):
            atomic.write_private(folder / FILE, _digest(folder, key).encode())


def find_doubt(folder: Path) -> Doubt | None:
    """Return why the run in ``folder`` is not one that this user made on this machine; None for one that is."""
    us = (os.geteuid(), 0)  # root may do everything anyway
    if any(about.st_uid not in us for _, about in _walk(folder)):
        return Doubt.OTHER_OWNER
    try:
        seal, key = atomic.read_regular(folder / FILE), _read_key(make=False)
    except (OSError, RuntimeError):
        return Doubt.NO_SEAL
    return None if key and hmac.compare_digest(seal, _digest(folder, key).encode()) else Doubt.OTHER_SEAL


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


def _digest(folder: Path, key: bytes) -> str:
    """Return the HMAC over the names and contents of the sealed files, of which one may be absent."""
    parts = [_PURPOSE]
    for name in _SEALED:
        path = folder / name
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"
        parts.append(f"{name.as_posix()} {content}".encode())
    return hmac.digest(key, b"\n".join(parts), "sha256").hex()


def _read_key(make: bool) -> bytes:
    """Return the user's key; no bytes where it is readable for others or not the user's. Raises OSError."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    path = base / "profpipe" / "key"
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic.create_private(path.parent.resolve() / path.name, secrets.token_bytes(_KEY_BYTES))
    with path.open("rb") as stream:
        about, key = os.fstat(stream.fileno()), stream.read(_KEY_BYTES + 1)
    is_private = stat.S_ISREG(about.st_mode) and not about.st_mode & 0o077 and about.st_uid == os.geteuid()
    return key if is_private and len(key) == _KEY_BYTES else b""
