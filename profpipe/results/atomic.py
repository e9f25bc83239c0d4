"""Write files whole or not at all: under a random temporary name in the same folder, which is then renamed.

A results folder may come from somebody else. So a temporary file is always a new one, and the folder that receives it
is opened without following a link: no write leaves the folder (``O_EXCL`` and ``O_NOFOLLOW`` of open(2)). Renaming
replaces a link at the target and does not follow it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from profpipe.errors import ConfigError

#: What distinguishes temporary files from the files of users.
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial", re.DOTALL)

_REMEDY = "Remove the link, or copy the folder that it leads to into its place."
_NO_FILE = "is a link or no regular file, and profpipe writes into none."


def write(path: Path, fill: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Call ``fill`` with a new file, open for writing, and rename the file to ``path``.

    ``mode`` is the mode of the file, which the umask narrows. Raises ConfigError where the folder of ``path`` is a
    link.
    """
    with _opened_folder(path.parent) as folder:
        temporary = temporary_name(path.name)
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder
        )
        try:
            with os.fdopen(descriptor, "wb") as stream:
                fill(stream)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    write(path, lambda stream: stream.write(content), mode)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read at any time."""
    write_bytes(path, content, 0o600)


def create_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, unless ``path`` exists: of two processes the first one wins."""
    if path.exists():
        return
    temporary = path.with_name(temporary_name(path.name))
    try:
        write_private(temporary, content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def open_to_append(path: Path, mode: int = 0o666) -> BinaryIO:
    """Open the file ``path`` for appending, or make it. Raises ConfigError where it is a link or no regular file."""
    # Without O_NONBLOCK, a pipe without a reader would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _opened_folder(path.parent) as folder:
        try:
            descriptor = os.open(path.name, flags, mode, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise ConfigError(str(path), _NO_FILE, "Remove it.") from None
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(str(path), _NO_FILE, "Remove it.")
    return os.fdopen(descriptor, "ab")


def check_regular(path: Path) -> None:
    """Raise ConfigError where ``path``, which a library will open for writing, is a link or no regular file."""
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise ConfigError(str(path), _NO_FILE, "Remove it.")


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file, empty where it has no size. Raises OSError as ``open_regular``."""
    with open_regular(path) as stream:
        return stream.read() if os.fstat(stream.fileno()).st_size else b""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. Raises OSError for another one: a pipe would be waited for, for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def remove(path: Path) -> None:
    """Remove the file or link ``path``, where there is one, unless its folder is a link."""
    if path.parent.is_dir():
        with _opened_folder(path.parent) as folder, suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)


def make_folder(path: Path) -> None:
    """Make the folder ``path`` in an existing one. Raises ConfigError where it is a link or a file."""
    with suppress(FileExistsError):
        path.mkdir()
    with _opened_folder(path):
        return


def temporary_name(name: str) -> str:
    """Return an unpredictable name, at most 255 bytes long as file systems demand."""
    return f".{name[:40]}.{secrets.token_hex(8)}.partial"


def is_temporary(path: Path) -> bool:
    """Return True for a name that ``temporary_name`` gives."""
    return _PARTIAL.fullmatch(path.name) is not None


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run's folder and in the folders of its jobs."""
    for place in (folder, *(path for path in (folder / "raw").rglob("*") if path.is_dir() and not path.is_symlink())):
        for path in place.glob(".*.partial"):
            if is_temporary(path) and not path.is_dir():
                path.unlink()


def remove_partial_folders(place: Path) -> None:
    """Remove the folders with a temporary name that a killed process left below ``place``."""
    for path in list(place.rglob(".*.partial")):
        if is_temporary(path) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and path.is_symlink():
            raise ConfigError(str(path), "is a link, and profpipe writes through none.", _REMEDY) from None
        raise
    try:
        yield descriptor
    except OSError as error:
        if error.errno is None or (isinstance(error.filename, str) and Path(error.filename).is_absolute()):
            raise
        # A call on an open folder names the last part alone, and the user knows the whole path.
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
    finally:
        os.close(descriptor)
