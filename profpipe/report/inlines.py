"""Make the inlines of sentences: numbers with their units, names of cases and shapes, lists."""

from __future__ import annotations

from collections.abc import Sequence

from profpipe.report.document import Cell, Code, Format, Inline, Number, Text, inlines, join
from profpipe.report.units import Unit, time_unit


def fill(template: str, *parts: Text) -> tuple[Inline, ...]:
    """Return ``template`` with each ``{}`` replaced by the next of ``parts``."""
    first, *texts = template.split("{}")
    found: list[Inline] = [first]
    for part, text in zip(parts, texts, strict=True):
        found += [*inlines(part), text]
    return tuple(inline for inline in found if inline != "")


def duration(ns: float | None, unit: Unit | None = None) -> Number:
    """Return a time in ``unit``, or in the unit in which it reads best."""
    return Number(ns, unit or time_unit([ns]))


def ratio(value: float | None) -> Number:
    return Number(value, format=Format.RATIO)


def percent(share: float | None) -> Number:
    return Number(share, format=Format.PERCENT)


def margin(share: float | None) -> Number:
    return Number(share, format=Format.PLUS_MINUS)


def share_cell(share: float | None, flag: str | None = None) -> Cell | None:
    """Return a share as a percentage for a column whose title holds the sign."""
    return None if share is None else Cell(share, format=Format.PERCENT, flags=(flag,) if flag else ())


def names(words: Sequence[str], most: int = 8) -> tuple[Inline, ...]:
    """Return names as ``a, b and c``; of more than ``most`` the first and how many others there are."""
    return join([Code(word) for word in words], most=most)


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return ``1 case`` or ``3 cases``."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
