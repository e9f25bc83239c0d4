"""Write the document as plain text: for the text files beside SUMMARY.md and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.report import document as doc, pages
from profpipe.report.formatting import (
    column_width,
    display_width,
    flag_letters,
    format_cell,
    format_head,
    shortened,
)
from profpipe.report.markdown import SUMMARY
from profpipe.stdio import visible, visible_line

#: The sections that a run prints when it ends.
FIRST_SCREEN = ("first_studies", "overview", "headline", "times", "flags", "warnings")


def write_text(text: doc.Text) -> str:
    """Return inlines without markup, their numbers formatted."""
    parts = []
    for inline in doc.inlines(text):
        if isinstance(inline, doc.Strong):
            parts.append(write_text(inline.content))
        elif isinstance(inline, doc.Link):
            # A terminal cannot follow a link to a section.
            parts.append(write_text(inline.content) + (f" in {SUMMARY}" if inline.target.startswith("#") else ""))
        elif isinstance(inline, doc.Number):
            parts.append(inline.unit.with_name(inline.value))
        else:
            parts.append(visible(shortened(inline.text if isinstance(inline, doc.Code) else inline)))
    return "".join(parts)


def write_table(table: doc.Table) -> str:
    """Return aligned columns below the title and above the legend of the flags; empty without rows."""
    if not table.rows:
        return ""
    letters = flag_letters(table)
    head = [" ".join(filter(None, [write_text(column.title), format_head(column)])) for column in table.columns]
    rows = [[_cell(cell, column, letters) for cell, column in zip(row, table.columns, strict=True)]
            for row in table.rows]  # fmt: skip
    rule = ["-" * column_width(column) for column in zip(head, *rows, strict=True)]
    lines = align([head, rule, *rows], [column.is_numeric for column in table.columns])
    title = write_text(table.title)
    legend = visible_line(", ".join(f"{letter}: {flag}" for flag, letter in letters.items()))
    return "\n".join([*([title, ""] if title else []), *lines, *(["", legend] if legend else [])])


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


def _cell(cell: doc.Cell, column: doc.Column, letters: Mapping[str, str]) -> str:
    content = format_cell(cell, column) or write_text(cell.text)
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
        case doc.Table():
            return write_table(block)
        case doc.Chart() | doc.Choice() | doc.Timeline():
            return ""
        case doc.Details():
            return "\n\n".join(filter(None, [write_text(block.summary), *map(write_block, block.blocks)]))


def write_section(section: doc.Section, workload: str = "") -> str:
    """Return a section below its title, which names ``workload`` where there is one."""
    title = write_text(section.title) + (f": {visible(workload)}" if workload and section.title else "")
    parts = [f"{title}\n{'=' * len(title)}" if title else "", write_text(section.summary)]
    parts += map(write_block, section.blocks)
    parts += map(write_section, section.sections)
    return "\n\n".join(part for part in parts if part)


def first_screen(document: doc.Document) -> str:
    """Return what SUMMARY.md begins with, for the terminal: tables asked for first, headline, times and warnings."""
    summary, _ = pages.paginate(document)
    shown = [section for section in summary.sections if section.id in FIRST_SCREEN]
    several = len(document.workloads) > 1
    return "\n\n".join(filter(None, (write_section(s, s.workload if several else "") for s in shown)))
