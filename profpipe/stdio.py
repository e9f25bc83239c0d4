"""What a command prints: without control characters and secrets, and without an end where it cannot be written.

The results of a run are its files, so a terminal that has gone ends nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from profpipe import masking

_NULL = Path(os.devnull)

#: Characters that would change how the text around them is shown, and those that no font shows or no file holds.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
#: What rich writes to draw a line again: colours, and moves of the cursor.
_DRAWING = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)")


def visible(text: object) -> str:
    """Return ``text`` with control characters, those of writing direction included, as ``<U+202E>``."""
    return _INVISIBLE.sub(lambda found: f"<U+{ord(found[0]):04X}>", str(text))


def visible_line(text: object) -> str:
    """Return ``text`` in one line, with line ends written out too: a name must not look like a line of this program."""
    return visible(text).replace("\n", "<U+000A>")


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
    """Mask secrets and control characters in what is written. Errors of writing are those of the terminal."""
    out, error = (cast(TextIO, MaskingStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(error):
        yield


class MaskingStream:
    """A stream that writes neither a secret nor a control character: names and texts come from anybody's files."""

    def __init__(self, stream: TextIO, *, is_drawn_on: bool = False) -> None:
        self._stream, self._is_drawn_on = stream, is_drawn_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        masked = masking.mask_printed(text)
        parts = _DRAWING.split(masked) if self._is_drawn_on else [masked]
        self._stream.write("".join(part if i % 2 else visible(part) for i, part in enumerate(parts)))
        return len(text)


class TolerantStream(MaskingStream):
    """A stream whose reader, terminal or disk space may disappear."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            discard_if_broken(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            discard_if_broken(self._stream)


def for_drawing(stream: TextIO) -> TextIO:
    """Return a stream to the same terminal that also writes colours and moves of the cursor."""
    own: Any = stream
    return cast(TextIO, TolerantStream(own._stream if isinstance(own, MaskingStream) else own, is_drawn_on=True))


def discard_if_broken(stream: TextIO) -> None:
    """Point ``stream`` at /dev/null if it cannot be written, or Python fails again when it flushes at its end."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError), _NULL.open("w") as null:
            os.dup2(null.fileno(), stream.fileno())
