"""What a command prints: without control characters, secrets and commands of CI, and however the terminal ends.

The results of a run are its files, so a terminal that has gone ends nothing.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from profpipe import masking

_NULL = Path(os.devnull)

#: Characters that would change how the text around them is shown, and those that no font shows or no file holds:
#: control characters and Unicode's Default_Ignorable_Code_Point. Tags (U+E0000) can hold a text that only programs see.
INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]"
)
#: GitHub Actions and Azure Pipelines execute a line that begins with ``::command`` or has ``##[command]`` anywhere. The
#: last character of each match is written out. GitHub, "Workflow commands", and ActionCommand.cs of its runner.
_COMMAND = re.compile(r"(^[^\S\n]*:):|(##(?:vso)?)\[", re.MULTILINE | re.IGNORECASE)
#: As much of a line as one of these needs to be recognised.
_MOST_BEFORE = len("##vso")
#: What rich writes to draw a line again: colours, and moves of the cursor.
_DRAWING = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)")


def visible(text: object) -> str:
    """Return ``text`` with control and invisible characters, those of writing direction included, as ``<U+202E>``."""
    return INVISIBLE.sub(lambda match: f"<U+{ord(match[0]):04X}>", str(text))


def visible_line(text: object) -> str:
    """Return ``text`` in one line, with line ends written out too: a name must not look like a line of this program."""
    return visible(text).replace("\n", "<U+000A>")


def visible_values(value: Any) -> Any:
    """Return a document with the texts and names in it as ``visible`` shows them: an agent reads what a person sees."""
    if isinstance(value, dict):
        return {visible(key) if isinstance(key, str) else key: visible_values(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_values(child) for child in value]
    return visible(value) if isinstance(value, str) else value


def as_json(value: object) -> str:
    """Return ``value`` as one line of JSON without invisible characters and commands of CI: it is printed as it is."""
    return re.sub(r"(?i)(##(?:vso)?)\[", r"\1\\u005b", json.dumps(visible_values(value)))


def open_closed_streams() -> None:
    """Open the streams that are closed at the start (``2>&-``, ``>&-``), and let each take any character.

    Otherwise the next file that is opened would get the number of the stream, and the output of a library.
    """
    sys.stdout = sys.stdout or _NULL.open("w")
    sys.stderr = sys.stderr or _NULL.open("w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names are in any alphabet, and the stream may be in ASCII.
        sys.stdout.reconfigure(errors="backslashreplace")


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
    """A stream that writes no secret, control character or command of CI: names and texts come from anybody's files.

    ``gives_commands`` is for lines that are commands.
    """

    def __init__(self, stream: TextIO, *, is_drawn_on: bool = False, gives_commands: bool = False) -> None:
        self._stream, self._is_drawn_on, self._gives_commands = stream, is_drawn_on, gives_commands
        #: What the next text continues.
        self._line = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        masked = masking.mask_printed(text)
        parts = _DRAWING.split(masked) if self._is_drawn_on else [masked]
        shown = "".join(part if i % 2 else visible(part) for i, part in enumerate(parts))
        self._stream.write(shown if self._gives_commands else self._escape_commands(shown))
        return len(text)

    def _escape_commands(self, text: str) -> str:
        def write_out(match: re.Match[str]) -> str:
            return f"{match[1] or match[2]}<U+{ord(match[0][-1]):04X}>"

        before = self._line
        whole = _COMMAND.sub(write_out, before + text)
        line = whole.rpartition("\n")[2]
        # A line with more than this has begun with something else.
        self._line = line if len(line.lstrip()) <= _MOST_BEFORE else f"-{line[-_MOST_BEFORE:]}"
        return whole[len(before) :]


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
    outer: Any = stream
    return cast(TextIO, TolerantStream(outer._stream if isinstance(outer, MaskingStream) else outer, is_drawn_on=True))


def for_commands(stream: TextIO) -> TextIO:
    """Return a stream to the same place for lines that are commands of CI. What they hold must be encoded."""
    outer: Any = stream
    place = outer._stream if isinstance(outer, MaskingStream) else outer
    return cast(TextIO, TolerantStream(place, gives_commands=True))


def discard_if_broken(stream: TextIO) -> None:
    """Point ``stream`` at /dev/null if it cannot be written, or Python fails again when it flushes at its end."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError), _NULL.open("w") as null:
            os.dup2(null.fileno(), stream.fileno())
