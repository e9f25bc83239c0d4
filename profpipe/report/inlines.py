"""Make the inlines of sentences: numbers with their units, names of cases and shapes, lists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from profpipe.report import document as doc
from profpipe.report.units import Unit, time_unit

#: Stands for ``{}`` in a name until the template around it is filled.
_BRACES: Final = "{\ue000}"


def literal(name: str) -> str:
    """Return a name from outside as it may stand in a template."""
    return name.replace("{}", _BRACES)


def fill(template: str, *parts: doc.Text) -> tuple[doc.Inline, ...]:
    """Return ``template`` with each ``{}`` replaced by the next of ``parts``. Names in it are ``literal``."""
    first, *texts = (text.replace(_BRACES, "{}") for text in template.split("{}", len(parts)))
    found: list[doc.Inline] = [first]
    for part, text in zip(parts, texts, strict=True):
        found += [*doc.inlines(part), text]
    return tuple(inline for inline in found if inline != "")


def duration(ns: float | None, unit: Unit | None = None) -> doc.Number:
    """Return a time in ``unit``, or in the unit in which it reads best."""
    return doc.Number(ns, unit or time_unit([ns]))


#: Numbers without a unit, by their format.
ratio = partial(doc.Number, format=doc.Format.RATIO)
percent = partial(doc.Number, format=doc.Format.PERCENT)
margin = partial(doc.Number, format=doc.Format.PLUS_MINUS)


def share_cell(share: float | None, flag: str | None = None) -> doc.Cell | None:
    """Return a share as a percentage for a column whose title holds the sign."""
    return None if share is None else doc.Cell(share, format=doc.Format.PERCENT, flags=(flag,) if flag else ())


def with_share(ns: float, share: float, unit: Unit | None = None, is_strong: bool = False) -> doc.Cell:
    """Return a time followed by its share of the whole."""
    return doc.Cell(ns, unit=unit, is_strong=is_strong, note=fill("({})", percent(share)))


def names(words: Sequence[str], most: int = 8) -> tuple[doc.Inline, ...]:
    """Return names as ``a, b and c``; of more than ``most`` the first and how many others there are."""
    return doc.join([doc.Code(word) for word in words], most=most)


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return ``1 case`` or ``3 cases``."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
