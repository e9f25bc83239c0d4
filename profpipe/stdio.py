"""Keep a command running when its output cannot be written: the results of a run are its files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from profpipe import masking

_NULL = Path(os.devnull)


def open_closed_streams() -> None:
    """Open the streams that are closed at the start (``2>&-``, ``>&-``), which Python leaves out.

    Otherwise the next file that is opened would get the number of the stream, and the output of a library.
    """
    sys.stdout = sys.stdout or _NULL.open("w")
    sys.stderr = sys.stderr or _NULL.open("w")


@contextmanager
def ignore_output_errors() -> Iterator[None]:
    """Ignore errors while writing to the terminal."""
    out, error = TolerantStream(sys.stdout), TolerantStream(sys.stderr)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, error)):
        try:
            yield
        finally:
            out.flush()
            error.flush()


@contextmanager
def mask_output() -> Iterator[None]:
    """Mask secrets in what is written to the terminal. Errors of writing are those of the terminal."""
    out, error = (cast(TextIO, MaskingStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(error):
        yield


class MaskingStream:
    """A stream that writes no secret."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(masking.mask_printed(text))
        return len(text)


class TolerantStream:
    """A stream whose reader, terminal or disk space may disappear. What it writes has no secret."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(masking.mask_printed(text))
            return len(text)
        except OSError:
            discard_if_broken(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            discard_if_broken(self._stream)


def discard_if_broken(stream: TextIO) -> None:
    """Point ``stream`` at /dev/null if it cannot be written, or Python fails again when it flushes at its end."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError), _NULL.open("w") as null:
            os.dup2(null.fileno(), stream.fileno())
