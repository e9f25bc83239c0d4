"""Text of the document as values, how numbers are written, and on which page a block stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from profpipe.report.units import Unit

#: The unit of a plain number.
NO_UNIT = Unit("", 1.0)


class Placement(str, Enum):
    """Which page shows a block. ``report.html`` shows all of them."""

    SUMMARY = "summary"
    DETAILS = "details"
    HTML = "html"  # report.html alone


class Format(str, Enum):
    """How a number is written."""

    NUMBER = "number"  # three or four significant digits, in a unit: 81.7
    COUNT = "count"  # whole where it is whole: 3
    RATIO = "ratio"  # 1.42x
    PERCENT = "percent"  # a share as a percentage, without the sign: 81.3
    SIGNED = "signed"  # a difference in a unit: +44.0
    SIGNED_PERCENT = "signed_percent"  # a difference: +8.0 %
    PLUS_MINUS = "plus_minus"  # half the width of an interval as a share: ±0.2 %


class Missing(str, Enum):
    """Why a cell holds no number."""

    NOT_MEASURED = "not_measured"
    NOT_REQUESTED = "not_requested"  # the pipeline file has no such case


@dataclass(frozen=True)
class Code:
    """A name from a program or a file, set in a fixed-width font."""

    text: str


@dataclass(frozen=True)
class Strong:
    """Emphasised text."""

    content: Text


@dataclass(frozen=True)
class Link:
    """A link to a section of the same workload or of the run (``#id``), or to a file of the run's folder."""

    content: Text
    target: str


@dataclass(frozen=True)
class CaseLink:
    """The name of a case of the same workload. A page that has the case in full links to it."""

    content: Text
    case: str


@dataclass(frozen=True)
class Number:
    """A number in its stored unit (ns, byte, share, ...), written in ``unit`` by ``format``.

    In a sentence the unit's name follows the number. In a table the column's head holds the unit's name.
    """

    value: float | None
    unit: Unit = NO_UNIT
    format: Format = Format.NUMBER


Inline: TypeAlias = "str | Code | Strong | Link | CaseLink | Number"
#: A line of text. ``("fastest is ", Code("fa2"))``; a single inline may stand alone.
Text: TypeAlias = "Inline | tuple[Inline, ...]"


def inlines(text: Text) -> tuple[Inline, ...]:
    """Return the inlines of ``text``."""
    return text if isinstance(text, tuple) else (text,)


def concat(*parts: Text) -> tuple[Inline, ...]:
    """Return the parts as one line of text."""
    return tuple(inline for part in parts for inline in inlines(part))


def join(
    parts: Iterable[Text], separator: str = ", ", last: str = " and ", most: int | None = None
) -> tuple[Inline, ...]:
    """Return ``a, b and c``; of more than ``most`` parts the first ones and how many follow."""
    given = list(parts)
    if most is not None and len(given) > most:
        given = [*given[:most], f"{len(given) - most} more"]
    found: list[Inline] = []
    for i, part in enumerate(given):
        if i:
            found.append(last if i == len(given) - 1 else separator)
        found.extend(inlines(part))
    return tuple(found)


def plain(text: Text) -> str:
    """Return the text without markup and without formatting numbers; for tests, anchors and titles of files."""
    parts = []
    for inline in inlines(text):
        if isinstance(inline, (Strong, Link, CaseLink)):
            parts.append(plain(inline.content))
        elif isinstance(inline, Code):
            parts.append(inline.text)
        elif isinstance(inline, Number):
            parts.append("" if inline.value is None else f"{inline.value:g}")
        else:
            parts.append(inline)
    return "".join(parts)
