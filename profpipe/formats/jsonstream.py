"""A large JSON text read value by value: a million trace events are a gigabyte of Python objects, one is nothing."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_CHUNK = 8 << 20
#: Longer than any event or metadata value: whoever finds no end to one by then reads a damaged text.
_LONGEST_VALUE = 4 * _CHUNK

_ZIPPED = b"\x1f\x8b"


def head(path: Path, most: int = 1 << 20) -> bytes:
    """The first bytes of a JSON file, unzipped, ``most`` or fewer; as many as there are where the zip is cut."""
    with path.open("rb") as file:
        begin = file.read(most // 4)
    if begin.startswith(_ZIPPED):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(begin, most)
        except zlib.error:
            return b""
    return begin.removeprefix(b"\xef\xbb\xbf").lstrip()


def opened(path: Path) -> TextIO:
    """The text of a JSON file, plain or gzipped. Reading raises EOFError or zlib.error where the zip is damaged."""
    with path.open("rb") as file:
        zipped = file.read(len(_ZIPPED)) == _ZIPPED
    opener: Any = gzip.open if zipped else open
    text: TextIO = opener(path, "rt", encoding="utf-8-sig", errors="replace")
    return text


_BLANK = " \t\r\n"


def items(stream: TextIO, unroll: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of the object in ``stream``, in order.

    The array under the key ``unroll``, or an array in place of the object, comes as one ``(unroll, element)`` for each
    element. Raises ``ValueError`` where the text is no JSON or ends early, after what comes before that place.
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
    """The part of the text that is being read, and the place in it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text, self._at = stream, "", 0
        self._decode = json.JSONDecoder().raw_decode

    def elements(self, key: str) -> Iterator[tuple[str, Any]]:
        self.expect("[")
        while self.peek() != "]":
            yield key, self.value()
            self.separate("]")
        self.expect("]")

    def separate(self, closer: str) -> None:
        found = self.peek()
        if found == ",":
            self._at += 1
        elif found != closer:
            raise ValueError(f"',' or {closer!r} expected, {found!r} found")

    def value(self) -> Any:
        while True:
            self.peek()
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError:
                end = len(self._text)
            # What ends with the part that was read may go on in the next one, be it only a number's last digits.
            if end < len(self._text):
                self._at = end
                return value
            if len(self._text) - self._at > _LONGEST_VALUE or not self._more():
                raise ValueError("the text is cut or damaged in the middle of a value")

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            text, at, length = self._text, self._at, len(self._text)
            while at < length and text[at] in _BLANK:
                at += 1
            self._at = at
            if at < length:
                return text[at]
            if not self._more():
                return ""

    def expect(self, char: str) -> None:
        found = self.peek()
        if found != char:
            raise ValueError(f"{char!r} expected, {found!r} found" if found else f"the text ends before its {char!r}")
        self._at += 1

    def _more(self) -> bool:
        chunk = self._stream.read(_CHUNK)
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)
