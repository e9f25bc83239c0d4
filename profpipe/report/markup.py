"""Escaped text and elements of HTML and SVG."""

from __future__ import annotations

import functools
import re
import unicodedata
import zlib
from collections.abc import Iterable
from html import escape as escape_text

from markupsafe import Markup, escape

from profpipe.report.text import shortened
from profpipe.stdio import visible

#: Attributes whose names are words of Python.
_NAMES = {"class_": "class", "for_": "for"}
_BLANKS = re.compile(r" {2,}")
#: Words of tables and charts that are kept: the same classes, units and names stand in hundreds of cells.
_MOST_CACHED = 4096


def flat(text: object) -> str:
    """Return ``text`` in one line, and a blank at either end where it has one."""
    return _flat(str(text))


@functools.lru_cache(maxsize=_MOST_CACHED)
def _flat(text: str) -> str:
    line = visible(shortened(text).replace("\n", " ").replace("\r", " ").replace("\t", " "))
    return _BLANKS.sub(" ", line)


def element(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element with its attributes."""
    return Markup(f"<{name}{_written(attributes)}>{''.join(map(_escaped, content))}</{name}>")


def empty(name: str, **attributes: object) -> Markup:
    """Return an element of SVG or HTML that has no content."""
    return Markup(f"<{name}{_written(attributes)}/>")


def join(parts: Iterable[object], separator: str = "") -> Markup:
    """Return the parts, those that are no markup escaped, without empty ones."""
    return Markup(separator.join(escaped for part in parts if (escaped := _escaped(part))))


def _escaped(part: object) -> str:
    """Return a part as text of HTML. Making a Markup of each would take most of the time of a page."""
    if type(part) is Markup:
        return part
    return "" if part is None else escape_text(str(part))


def finalize(part: object) -> Markup:
    """Return a value of a template as text of HTML."""
    return part if type(part) is Markup else Markup(_escaped(part))


def attributes(**values: object) -> Markup:
    """Return attributes, each after a blank. One that is None or False is left out; True is one without a value."""
    return Markup(_written(values))


def _written(attributes: dict[str, object]) -> str:
    words = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = _NAMES.get(key) or key.replace("_", "-")
        words.append(f" {shown}" if value is True else f' {shown}="{_value(value)}"')
    return "".join(words)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    return _attribute(str(value))


@functools.lru_cache(maxsize=_MOST_CACHED)
def _attribute(text: str) -> str:
    return escape_text(visible(text))


def cut(text: str, most: int) -> str:
    """Return at most ``most`` characters of ``text``."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short(text: str, most: int = 160) -> Markup:
    """Return a name in one line; a long one is cut, and its title has the whole name."""
    name = flat(text)
    return escape(name) if len(name) <= most else element("span", cut(name, most), title=name)


def anchor(*names: str) -> str:
    """Return an id for an element. Names that differ in other characters than letters and digits have other ids."""
    name = "-".join(filter(None, names))
    slug = re.sub(r"[^a-z0-9_.,=-]+", "-", unicodedata.normalize("NFKD", name).lower()).strip("-")[:80]
    return slug if slug == name.lower() else f"{slug or 'x'}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
