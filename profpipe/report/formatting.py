"""Numbers and cells of the document as text without markup. All renderers share these formats."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from profpipe.report import document as doc
from profpipe.report.units import NO_UNIT

#: A table with more flags in its cells shows each as a letter, which a line below the table explains.
_MOST_WORDS = 4

#: Characters of a text on a page. The tables hold longer names in full.
LONGEST_TEXT: Final = 10_000
#: Columns of plain text are aligned up to this width: one longer cell would make every row as long.
_WIDEST: Final = 200


def shortened(text: str) -> str:
    """Return ``text``; of a longer one than any honest name its beginning and its length."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"


def column_width(cells: Iterable[str]) -> int:
    """Return the width to which the cells of a column are padded. A very long cell is wider, and widens no other."""
    return min(max(map(display_width, cells), default=0), _WIDEST)


def display_width(text: str) -> int:
    """Return the columns of a terminal that ``text`` takes: two for a letter of Chinese, none for a combining mark."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.category(char) in ("Mn", "Me") for char in text)


def format_head(column: doc.Column) -> str:
    """Return the name of the unit that follows a column's title; empty without a unit."""
    return column.unit.name if column.unit else ""


def format_cell(cell: doc.Cell, column: doc.Column) -> str:
    """Return a cell's number, or the word that stands for a missing one; empty for a cell of text."""
    if cell.missing or cell.value is None:
        return cell.missing
    return (cell.unit or column.unit or NO_UNIT).of(cell.value)


def flag_letters(table: doc.Table) -> dict[str, str]:
    """Return the letter of each flag of a table with many flags, or an empty dict.

    A flag has its first letter. Flags that begin alike have the first letters that differ, such as ``th`` and ``to``.
    """
    flags = [flag for row in table.rows for cell in row for flag in cell.flags]
    if len(flags) <= _MOST_WORDS:
        return {}
    names = sorted(set(flags))
    return {name: next(name[:n] for n in range(1, len(name) + 1) if [f[:n] for f in names].count(name[:n]) == 1
                       or n == len(name)) for name in names}  # fmt: skip
