"""JSON answers of a bounded size: the short document of ``--json``, and the pages of ``profpipe mcp``.

Texts lose secrets and control characters. A folder that was written before is answered with these functions alone, so
nothing that loads pandas is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from profpipe import masking
from profpipe.errors import ConfigError
from profpipe.stdio import as_json, visible_line

#: Bytes of the short document, and of a text and a path in it. In a list of texts the first ones stand.
MOST: Final = 8_000
_LONGEST_TEXT: Final = 600
_LONGEST_PATH: Final = 4_000
_MOST_TEXTS: Final = 20
#: Its lists. Where there is no room, the longest one loses its last entry; the bytes of some count less.
_LISTS: Final = {"cases": 1.0, "files": 1.0, "findings": 0.5, "warnings": 0.5}

#: Characters of a page: fewer than 2,000 tokens of four characters. Its frame needs some.
MOST_OF_PAGE: Final = 7_500
_FRAME: Final = 700
#: Characters of a row of a page, and the least of a text in it.
_MOST_ROW, _LEAST_TEXT = 3_000, 40


def number(value: float | None) -> float | int | None:
    """Return a whole number as it is, another one with seven digits; None for what JSON cannot hold."""
    if value is None or not math.isfinite(value):
        return None
    short = value if float(value).is_integer() else float(f"{value:.7g}")
    return int(short) if float(short).is_integer() and abs(short) < 2**53 else short


def round_all(values: Iterable[Any]) -> list[Any]:
    """Return the values, the floating-point numbers among them as ``number`` does."""
    return [number(value) if isinstance(value, float) else value for value in values]


def fit(document: dict[str, Any], most: int = MOST) -> dict[str, Any]:
    """Return the document in at most ``most`` bytes of JSON. ``left_out`` has the number of entries without room."""
    kept: dict[str, Any] = {
        name: [clean(entry, most_texts=_MOST_TEXTS) for entry in value]
        if name in _LISTS
        else clean(value, _LONGEST_PATH if name == "folder" else _LONGEST_TEXT, _MOST_TEXTS)
        for name, value in document.items()
    }
    left: dict[str, Any] = kept.pop("left_out", {})
    # `left_out` itself needs room.
    excess = len(as_json(kept)) - most + 120
    sizes = {name: [len(as_json(entry)) + 2 for entry in kept[name]] for name in _LISTS if name in kept}
    totals = {name: _LISTS[name] * sum(lengths) for name, lengths in sizes.items()}
    while excess > 0 and any(sizes.values()):
        name = max(totals, key=lambda name: totals[name])
        size = sizes[name].pop()
        excess, totals[name] = excess - size, totals[name] - _LISTS[name] * size
        kept[name].pop()
        left[name] = left.get(name, 0) + 1
    return {**kept, "left_out": {**left, "in": "--json=full"}} if left else kept


def add_folder(document: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the document with the path of its results folder, to which the places in it are relative."""
    return fit({**document, "folder": folder})


def make_page(content: Iterable[dict[str, Any]], number: int, **about: str) -> dict[str, Any]:
    """Return one page of the content: rows of a table share its columns. ``left`` says how much follows."""
    head = {name: clean_text(text, _LONGEST_TEXT) for name, text in about.items()}
    room = MOST_OF_PAGE - _FRAME - len(as_json(head))
    pages: list[list[dict[str, Any]]] = [[]]
    counts, used = [0], 0
    for item in map(_shorten, content):
        of_table = {key: item[key] for key in ("table", "columns") if "row" in item}
        continues = pages[-1] and of_table and all(pages[-1][-1].get(key) == value for key, value in of_table.items())
        size = len(as_json(item["row"] if continues else item)) + 12
        if used + size > room and pages[-1]:
            pages.append([])
            counts.append(0)
            used, continues = 0, False
            size = len(as_json(item)) + 12
        if continues:
            pages[-1][-1]["rows"].append(item["row"])
        else:
            pages[-1].append({**of_table, "rows": [item["row"]]} if of_table else item)
        counts[-1] += 1
        used += size
    if not 1 <= number <= len(pages):
        raise ConfigError("page", f"{number} is none of {len(pages)}.", f"Ask for a page from 1 to {len(pages)}.")
    following = {"next_page": number + 1, "left": sum(counts[number:])} if number < len(pages) else {}
    return {**head, "page": number, "pages": len(pages), **following, "content": pages[number - 1]}


def _shorten(item: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with texts so short that it fits into a page; of very many columns the first ones."""
    most = _LONGEST_TEXT
    cleaned = clean(item, most)
    while len(as_json(cleaned)) > _MOST_ROW and most > _LEAST_TEXT:
        most //= 2
        cleaned = clean(item, most)
    while len(as_json(cleaned)) > _MOST_ROW and "row" in cleaned:
        half = len(cleaned["row"]) // 2
        cleaned = {**cleaned, "columns": cleaned["columns"][:half], "row": cleaned["row"][:half]}
    return cleaned


def clean(value: Any, most: int = _LONGEST_TEXT, most_texts: int | None = None) -> Any:
    """Return ``value`` without secrets, control characters and long texts."""
    if isinstance(value, dict):
        return {visible_line(key): clean(child, most, most_texts) for key, child in value.items()}
    if isinstance(value, list):
        return [clean(child, most, most_texts) for child in value[:most_texts]]
    return clean_text(value, most) if isinstance(value, str) else value


def clean_text(text: str, most: int) -> str:
    """Return ``text`` without secrets and control characters, in at most ``most`` bytes of JSON."""
    # Of a megabyte, only the beginning is looked at.
    shown = visible_line(masking.mask_printed(text[: 4 * most]))
    while len(as_json(shown)) > most:
        shown = f"{shown[: min(len(shown) * 3 // 4, most)]}…"
    return shown
