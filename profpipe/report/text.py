"""Write the document as plain text, for the text files beside SUMMARY.md and the terminal; and shorten long texts.

Names of a megabyte would make every page as slow as a huge file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from profpipe.report import document as doc
from profpipe.report.screen import display_width
from profpipe.results import budget, schema
from profpipe.results.schema import Tables
from profpipe.stdio import visible, visible_line

#: Characters of a cell that the analysis sees, and of a text on a page. The files keep all of them.
LONGEST: Final = 10_000
#: Columns that hold JSON: their texts are shortened one by one.
_JSON: Final = ("params", "flags")
#: Columns of plain text are aligned up to this width: one longer cell would make every row as long.
_WIDEST: Final = 200


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return ``text``; of a longer one than any honest name its beginning and its length."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def column_width(cells: Iterable[str]) -> int:
    """Return the width to which the cells of a column are padded. A very long cell is wider, and widens no other."""
    return min(max(map(display_width, cells), default=0), _WIDEST)


def write_text(text: doc.Text, longest: int = LONGEST) -> str:
    """Return inlines without markup, their numbers formatted, and names of at most ``longest`` characters."""
    parts = []
    for inline in doc.inlines(text):
        if isinstance(inline, doc.Strong):
            parts.append(write_text(inline.content, longest))
        elif isinstance(inline, doc.Link):
            # A terminal cannot follow a link to a section.
            parts.append(
                write_text(inline.content, longest) + (f" in {doc.SUMMARY}" if inline.target.startswith("#") else "")
            )
        elif isinstance(inline, doc.Amount):
            parts.append(inline.unit.with_name(inline.value))
        else:
            parts.append(
                visible(shortened(inline.text, longest) if isinstance(inline, doc.Code) else shortened(inline))
            )
    return "".join(parts)


def write_table(table: doc.TableBlock) -> str:
    """Return aligned columns below the title and above the legend of the flags; empty without rows."""
    if not table.rows:
        return ""
    letters = table.flag_letters()
    head, rows = write_cells(table)
    rule = ["-" * column_width(column) for column in zip(head, *rows, strict=True)]
    lines = align([head, rule, *rows], [column.is_numeric for column in table.columns])
    title = write_text(table.title)
    legend = visible_line(", ".join(f"{letter}: {flag}" for flag, letter in letters.items()))
    return "\n".join([*([title, ""] if title else []), *lines, *(["", legend] if legend else [])])


def write_cells(table: doc.TableBlock) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns with their units, and the rows."""
    letters = table.flag_letters()
    head = [" ".join(filter(None, [write_text(column.title), column.unit_name])) for column in table.columns]
    rows = [[write_cell(cell, column, letters) for cell, column in zip(row, table.columns, strict=True)]
            for row in table.rows]  # fmt: skip
    return head, rows


def align(rows: Sequence[Sequence[str]], are_numeric: Sequence[bool]) -> list[str]:
    """Return the rows as lines whose cells stand below each other: numbers to the right, words to the left."""
    widths = [column_width(column) for column in zip(*rows, strict=True)]
    place = [str.rjust if is_numeric else str.ljust for is_numeric in are_numeric]
    return [
        "  ".join(
            put(cell, width + len(cell) - display_width(cell))
            for put, cell, width in zip(place, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def write_cell(cell: doc.TableCell, column: doc.TableColumn, letters: Mapping[str, str]) -> str:
    """Return the number or the text of a cell, its note, and its flags, for which ``letters`` may stand."""
    content = cell.number(column) or write_text(cell.text)
    flags = f"({', '.join(letters.get(flag) or flag for flag in cell.flags)})" if cell.flags else ""
    return visible_line(" ".join(filter(None, [content, write_text(cell.note), flags])))


def write_block(block: doc.Block) -> str:
    match block:
        case doc.Paragraph():
            return write_text(block.content)
        case doc.Bullets():
            return "\n".join(f"- {write_text(item)}" for item in block.items)
        case doc.CodeBlock():
            return "\n".join(f"    {visible(line)}" for line in block.text.splitlines())
        case doc.TableBlock():
            return write_table(block)
        case doc.Chart() | doc.TimelineChart():
            return ""
        case doc.ViewChoice():
            return "\n\n".join(map(write_block, block.views()))
        case doc.Details():
            return "\n\n".join(filter(None, [write_text(block.summary), *map(write_block, block.blocks)]))


def write_section(section: doc.Section, workload: str = "") -> str:
    """Return a section below its title, which names ``workload`` where there is one."""
    title = write_text(section.title) + (f": {visible(workload)}" if workload and section.title else "")
    parts = [f"{title}\n{'=' * len(title)}" if title else "", write_text(section.summary)]
    parts += map(write_block, section.blocks)
    parts += map(write_section, section.sections)
    return "\n\n".join(part for part in parts if part)


# --- long texts ------------------------------------------------------------------------------------------------------


def shorten_tables(data: Tables) -> Tables:
    """Return the tables with the beginning of each longer text, which stays different from other texts."""
    frames = {table.name: _shorten_frame(getattr(data, table.name), table) for table in schema.ALL}
    changed: dict[str, Any] = {name: frame for name, frame in frames.items() if frame is not getattr(data, name)}
    return replace(data, **changed) if changed else data


def _shorten_frame(frame: pd.DataFrame, table: schema.Table) -> pd.DataFrame:
    texts = [column.name for column in table.columns if column.dtype == "str"]
    long = [name for name in texts if _longest(frame[name]) > LONGEST]
    if not long:
        return frame
    return frame.assign(**{name: frame[name].map(_shorten_json if name in _JSON else _shorten_text) for name in long})


def _longest(texts: pd.Series[Any]) -> int:
    if not len(texts):
        return 0
    if isinstance(texts.dtype, pd.StringDtype):
        # Each text of such a column is made anew, which takes a hundred times as long as to measure it in place.
        return int(texts.str.len().max())
    # Distinct texts are few.
    return max(map(len, set(texts.to_numpy().tolist())))


def _shorten_text(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    checksum = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    end = f"… ({len(text):,} characters, {checksum})"
    return f"{text[: LONGEST - len(end)]}{end}"


def _shorten_json(text: str) -> str:
    return text if len(text) <= LONGEST else json.dumps(_node(budget.load_json(text)))


def _node(node: Any) -> Any:
    if isinstance(node, dict):
        return {_shorten_text(key): _node(value) for key, value in node.items()}
    if isinstance(node, list):
        return list(map(_node, node))
    return _shorten_text(node) if isinstance(node, str) else node
