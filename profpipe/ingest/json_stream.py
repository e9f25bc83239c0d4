"""Read a large JSON text value by value: a million trace events would be a gigabyte of Python objects.

ijson 3.6 with its C backend takes 4.8 s for a trace of a million events (347 MB), this module 2.8 s.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from profpipe.ingest import bounds

_CHUNK = 8 << 20
#: Longer than any event or metadata value: a value without an end by then is damaged.
_LONGEST_VALUE = 4 * _CHUNK

_ZIPPED = b"\x1f\x8b"

#: What reading a text or zip that is cut or damaged can raise.
FAILURES = (EOFError, gzip.BadGzipFile, zlib.error, ValueError, RecursionError)


def read_head(path: Path, most: int = 1 << 20) -> bytes:
    """Return the first bytes of a JSON file, unzipped, at most ``most``; fewer where the zip is cut."""
    with path.open("rb") as file:
        begin = file.read(most // 4)
    if begin.startswith(_ZIPPED):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(begin, most)
        except zlib.error:
            return b""
    return begin.removeprefix(b"\xef\xbb\xbf").lstrip()


def is_zipped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_ZIPPED)) == _ZIPPED


def open_bytes(path: Path) -> Any:
    """Open a file, plain or gzipped. Reading a damaged zip raises EOFError or zlib.error."""
    return _Zip(path) if is_zipped(path) else path.open("rb")


def open_text(path: Path) -> TextIO:
    """Open a JSON file as text, as ``open_bytes``."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors="replace")


class _Zip(gzip.GzipFile):
    """A gzip file that raises ``TooLarge`` where it holds far more than its size lets expect."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._zipped, self._unzipped = path.stat().st_size, 0

    def _counted(self, data: bytes) -> bytes:
        self._unzipped += len(data)
        bounds.check_unzipped(self._unzipped, self._zipped)
        return data

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = bounds.most_unzipped(self._zipped) + 1
        return self._counted(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self._counted(super().read1(size))


#: What some writers put into JSON: backslashes of paths that begin no escape (PyTorch before 2.1 on Windows), and C's
#: words for no number. An escape is matched whole, so that its second backslash begins no other one.
_ESCAPE = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_FLAWS = re.compile(
    rf"{_ESCAPE}|(?P<stray>\\)|(?:(?<=[:,\[])|\A)(?P<blank>\s*)(?P<number>[-+]?(?i:nan|inf)(?:\(\w*\))?)(?=\s*[,\]}}])"
)
#: A part of the text that ends so may be cut inside a flaw, or inside an escape. No flaw is longer.
_BEGUN, _LONGEST_FLAW = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?|[:,\[]\s*[-+]?[a-zA-Z()]*\s*)\Z"), 32

_BLANK = " \t\r\n"
_BLANKS = re.compile(r"[ \t\r\n]+")


def items(stream: TextIO, unroll: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the object in ``stream``, in order.

    The array under the key ``unroll``, or an array in place of the object, gives one ``(unroll, element)`` for an
    element. Raises ``ValueError`` at the place where the text is no JSON or ends early.
    """
    text = _Text(stream)
    if text.peek() == "[":
        yield from text.elements(unroll)
    else:
        text.expect("{")
        while text.peek() != "}":
            key = text.value()
            text.expect(":")
            if key == unroll and text.peek() == "[":
                yield from text.elements(unroll)
            else:
                yield key, text.value()
            text.separate("}")
        text.expect("}")
    if text.peek():
        raise ValueError("there is more text after the end")


class _Text:
    """The current part of the text, and the place in it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text, self._at = stream, "", 0
        self._is_flawed = False
        # A name may hold a line end or another control character as it is.
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def elements(self, key: str) -> Iterator[tuple[str, Any]]:
        self.expect("[")
        while self.peek() != "]":
            yield key, self.value()
            self.separate("]")
        self.expect("]")

    def separate(self, closer: str) -> None:
        peeked = self.peek()
        if peeked == ",":
            self._at += 1
        elif peeked != closer:
            raise ValueError(f"',' or {closer!r} expected, {peeked!r} found")

    def value(self) -> Any:
        while True:
            self.peek()
            place = 0
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError as error:
                end = len(self._text)
                place = getattr(error, "pos", self._at) - self._at
                if self._at + place + _LONGEST_FLAW <= end and self._mends(place):
                    continue
            # A value at the end of this part may go on in the next one, such as a number.
            if end < len(self._text):
                self._at = end
                return value
            if len(self._text) - self._at > _LONGEST_VALUE or not (self._more() or self._mends(place)):
                raise ValueError("the text is cut or damaged in the middle of a value")

    def _mends(self, place: int) -> bool:
        """Mend the text from here on where the decoder stopped at a flaw, ``place`` characters from here."""
        rest = self._text[self._at :]
        # The decoder points at a stray backslash, behind that of a ``\\u``, and at a number behind its blanks.
        flaws = (_FLAWS.match(rest, at) for at in (place, max(0, place - 1), len(rest[:place].rstrip(_BLANK))))
        if self._is_flawed or not any(flaw and (flaw["stray"] or flaw["number"]) for flaw in flaws):
            return False
        self._is_flawed = True
        self._text, self._at = self._mended(rest), 0
        return True

    def _mended(self, text: str) -> str:
        while _BEGUN.search(text, max(0, len(text) - _LONGEST_FLAW)) and (more := self._stream.read(_LONGEST_FLAW)):
            text += more
        return _FLAWS.sub(_mend, text)

    def peek(self) -> str:
        """Return the next character that is no blank, empty at the end."""
        while True:
            text, at, length = self._text, self._at, len(self._text)
            if at < length and text[at] in _BLANK:
                # One by one, a hundred megabytes of blanks would take ten seconds.
                at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            self._at = at
            if at < length:
                return text[at]
            if not self._more():
                return ""

    def expect(self, char: str) -> None:
        peeked = self.peek()
        if peeked != char:
            raise ValueError(f"{char!r} expected, {peeked!r} found" if peeked else f"the text ends before its {char!r}")
        self._at += 1

    def _more(self) -> bool:
        chunk = self._stream.read(_CHUNK)
        if self._is_flawed and chunk:
            chunk = self._mended(chunk)
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)


def _mend(flaw: re.Match[str]) -> str:
    if flaw["stray"]:
        return "\\\\"
    number = flaw["number"]
    return f"{flaw['blank']}NaN" if number else flaw[0]
