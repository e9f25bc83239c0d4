"""Read what tools print for people: any encoding, numbers with grouped digits and the decimal mark of a locale."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

_NUMERAL = re.compile(r"[+-]?\d[\d.,]*(?:[eE][+-]?\d+)?$")
#: Fewer digits than a float can hold.
_MOST_DIGITS = 61
_FLOAT = re.compile(r"[+-]?[0-9]{1,60}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?$")
#: Blanks and apostrophes only ever group digits.
_GROUPING = re.compile(r"(?<=\d)['\u2019\u00a0\u2009\u202f ](?=\d{3})")
_OTHER = {".": ",", ",": "."}


def decode(content: bytes) -> str:
    # PowerShell writes redirected output as UTF-16.
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig", errors="replace")


def decimal_mark(texts: Iterable[str]) -> str:
    """Return the decimal mark, ``.`` or ``,``, that most of ``texts`` prove; ``.`` where none proves any.

    ``64.000`` alone may be 64 or 64000; ``0.5``, ``1.25``, ``1,234.5`` and ``27.595.520`` prove their mark.
    """
    votes = {".": 0, ",": 0}
    for text in texts:
        token = _GROUPING.sub("", text)
        if _NUMERAL.match(token) and (mark := _proven_mark(token)):
            votes[mark] += 1
    return "," if votes[","] > votes["."] else "."


def _proven_mark(token: str) -> str:
    """Return the decimal mark that this numeral proves, empty where it proves none."""
    marks = [c for c in token if c in ".,"]
    if not marks:
        return ""
    if len(set(marks)) == 2:
        return marks[-1]
    if len(marks) > 1:
        return _OTHER[marks[0]]
    before, after = re.split("[.,]", token)
    whole = before.lstrip("+-")
    return "" if len(after) == 3 and len(whole) <= 3 and whole != "0" else marks[0]


def number(text: str, mark: str) -> float | None:
    """Parse ``text`` with the decimal mark ``mark``; None where it is no number."""
    if len(text) < _MOST_DIGITS and text.isascii() and text.isdigit():
        return float(text)
    token = _GROUPING.sub("", text).replace(_OTHER[mark], "").replace(mark, ".")
    return float(token) if _FLOAT.match(token) else None
