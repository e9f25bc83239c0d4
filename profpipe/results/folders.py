"""The results folder: one folder per run, a link to the latest run, locks, and the salt of the hashes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

from profpipe.errors import ConfigError, did_you_mean
from profpipe.results import atomic
from profpipe.results.manifest import FILE, Manifest, utc_now

#: Only its owner may read it: with the salt, others could guess what is hashed into the manifests.
_SALT = ".salt"
#: The largest number of runs of one name that may start in one second.
_MAX_FOLDERS = 999
#: Some file systems of clusters have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
#: From this age on a temporary file or folder is left over.
_OLD_S = 3600.0
#: Where they lie.
_PARTIAL = (".*.partial", "[!.]*/.*.partial", "[!.]*/*/.*.partial", "[!.]*/raw/*/*/.*.partial")
#: How far the clocks of machines that share a results folder may lie apart.
_CLOCK_ERROR = timedelta(days=1)


def folder_name(name: str, now: datetime) -> str:
    return f"{now:%Y%m%dT%H%M%SZ}-{name}"


def run_name(run: Manifest) -> str:
    """Return the name of a run that its folder is called after."""
    if run.bisect:
        return f"{run.name}-bisect"
    suffix = "" if run.ab is None else "-ab" if run.ab.tried is None else "-try"
    return f"{run.name}{suffix}"


def create(out: Path, name: str, now: datetime, fill: Callable[[Path], object]) -> Path:
    """Create ``out/<UTC time>-<name>/`` with the files that ``fill`` writes, and point ``out/latest`` at it.

    The folder appears with its content or not at all, so that every run in the results folder can be resumed.
    """
    _check_latest(out)
    stem = folder_name(name, now)
    temporary = out / atomic.temporary_name(stem)
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        fill(temporary)
        return _rename(temporary, out, stem)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        what = f"cannot hold results: {error.strerror or error}."
        raise ConfigError(str(out), what, "Nothing was run. Choose another --out.") from None


def _rename(temporary: Path, out: Path, stem: str) -> Path:
    for number in range(1, _MAX_FOLDERS + 1):
        folder = out / (stem if number == 1 else f"{stem}-{number}")
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            continue  # a run of the same name started in the same second
        _point(out / "latest", folder)
        return folder
    raise ConfigError(str(out), f"holds {_MAX_FOLDERS} runs named {stem}.", "Choose another --out.")


def remove_litter(out: Path) -> None:
    """Remove the temporary files and folders that killed processes left in the results folder and in its runs."""
    for path in {path for pattern in _PARTIAL for path in out.glob(pattern)}:
        is_inside = path.parent.resolve().is_relative_to(out.resolve())
        with suppress(FileNotFoundError):
            # Another process may still write a young one.
            if not is_inside or not atomic.is_temporary(path) or time.time() - path.lstat().st_mtime < _OLD_S:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def discard(folder: Path) -> None:
    """Remove a run that measured nothing, and point ``latest`` at the newest of the others."""
    shutil.rmtree(folder, ignore_errors=True)
    if next(list_runs(folder.parent), None):
        point_latest(folder.parent)
    else:
        (folder.parent / "latest").unlink(missing_ok=True)


def point_latest(out: Path) -> None:
    """Point ``out/latest`` at the newest run."""
    _check_latest(out)
    _point(out / "latest", next(list_runs(out))[0])


def _check_latest(out: Path) -> None:
    latest = out / "latest"
    if latest.is_dir() and not latest.is_symlink():  # as after `cp -rL`: no link can replace a folder
        remedy = "Rename it, or remove it if it is a copy of a run beside it."
        raise ConfigError(str(latest), "is a folder, but must be a link to the newest run.", remedy)


def _point(link: Path, folder: Path) -> None:
    temporary = link.with_name(atomic.temporary_name(link.name))
    temporary.symlink_to(folder.name, target_is_directory=True)
    temporary.replace(link)


def list_runs(out: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield the runs in the results folder with their manifests, the newest first.

    A run with a damaged manifest is left out. So are folders that ``profpipe ingest`` wrote.
    """
    runs: list[tuple[Path, Manifest]] = []
    # A name with a dot belongs to a folder that was never finished.
    for folder in (path.parent for path in out.glob(f"[!.]*/{FILE}") if not path.parent.is_symlink()):
        with suppress(ConfigError):
            runs.append((folder, Manifest.load(folder)))
    yield from sorted((run for run in runs if run[1].is_run), key=_sort_key, reverse=True)


def _sort_key(run: tuple[Path, Manifest]) -> tuple[str, bool, int, str]:
    """Return the start of a run, then the number that separates runs of one second.

    A copy of a run under another name counts as older than the run.
    """
    folder, manifest = run
    # A date in the future is wrong, and must not make a run the newest one for ever.
    started = manifest.started if manifest.started <= (utc_now() + _CLOCK_ERROR).isoformat() else ""
    time, _, name = folder.name.partition("-")
    number = re.search(r"-(\d+)$", name)
    return started, bool(re.fullmatch(r"\d{8}T\d{6}Z", time)), int(number[1]) if number else 1, folder.name


def find(name: str | None, out: Path) -> Path:
    """Return the folder of a run by its path or by its name below ``out``; for None that of the latest run."""
    candidates = [out / "latest"] if name is None else [Path(name), out / name]
    for candidate in candidates:
        if (candidate / FILE).is_file():
            return candidate.resolve()
    remedy = did_you_mean(candidates[0].name, [folder.name for folder in out.glob("*")])
    if not remedy.startswith("Did you mean"):
        remedy = "`profpipe history` lists the runs."
    what = "is not the folder of a run." if any(map(Path.exists, candidates)) else "does not exist."
    raise ConfigError(str(candidates[0]), what, remedy)


def list_unfinished(out: Path) -> Iterator[Path]:
    """Yield the folders of the runs that have not ended, the newest first."""
    return (folder.resolve() for folder, manifest in list_runs(out) if not manifest.ended)


class InUse(ConfigError):
    """Another process works on the run."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes from working on the run. Raises InUse where another one already does.

    The operating system releases the lock when this process ends, also after a crash.
    """
    with atomic.open_to_append(folder / "raw" / "lock") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another profpipe is working on this run."
            raise InUse(str(folder), what, "Wait until it ends.") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield


def make_salt(out: Path) -> bytes:
    """Return ``read_salt`` of a results folder that need not exist yet; other random bytes if that is not possible."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return read_salt(out) or secrets.token_bytes(32)
    except OSError as error:
        what = f"cannot hold results: {error.strerror or error}."
        raise ConfigError(str(out), what, "Nothing was run. Choose another --out.") from None


def find_salt(out: Path) -> bytes:
    """Return the random bytes of the results folder if it has some, and write nothing."""
    path = out / _SALT
    return atomic.read_regular(path) if path.is_file() and os.access(path, os.R_OK) else secrets.token_bytes(32)


def read_salt(out: Path) -> bytes:
    """Return the random bytes of the results folder, which the first call creates.

    Return no bytes if the salt belongs to another user and may not be read.
    """
    path = out.resolve() / _SALT
    try:
        if not path.is_symlink():
            atomic.create_private(path, secrets.token_bytes(32))
        return atomic.read_regular(path) if path.is_file() else b""
    except PermissionError:
        return b""
