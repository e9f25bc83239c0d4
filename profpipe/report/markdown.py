"""Write the document as GitHub's Markdown: escaped text, code spans, tables, links."""

from __future__ import annotations

import functools
import html
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from profpipe.report import document as doc
from profpipe.report.document import DETAILS, SUMMARY
from profpipe.report.text import shortened
from profpipe.stdio import visible

#: An underscore inside a word is no markup (GFM 6.2), so parameter names stay as they are.
_URL = re.compile(r":(?=//)|(?<=www)\.")
#: What may begin an entity or a tag (CommonMark 2.5, 6.6), also with the text that follows, and a block quote.
_MARKUP = re.compile(r"&(?=[#\w]|$)|<(?![\s\d=])|^>")
_SPECIAL = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))")
#: A list item, a heading or its underline starts with this (GFM 4.2, 4.3, 5.2).
_BLOCK_START = re.compile(r"(\d{1,9}(?=[.)](?:\s|$))|(?=[-+](?:\s|$)|#{1,6}(?:\s|$)|[-=]+\s*$))")


def escape(text: object) -> str:
    """Plain text that no renderer takes for markup: signs of HTML as entities, those of Markdown with a backslash.

    A sign that begins no tag and no entity stays, as in ``< 0.1 %``, ``a > b`` and ``a && b``. A bare
    address becomes no link. Control characters are written as ``<U+001B>``.
    """
    flat = visible(" ".join(shortened(str(text)).split()))
    flat = _MARKUP.sub(lambda match: html.escape(match[0]), flat)
    return _URL.sub(r"\\\g<0>", _SPECIAL.sub(r"\\\1", flat))


def code(text: object) -> str:
    """A code span, also inside a table: a pipe would end its cell even there (GFM 4.10), a backtick the span."""
    flat = visible(" ".join(shortened(str(text)).split())).replace("|", "\\|")
    if not flat:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- the document ----------------------------------------------------------------------------------------------------

#: Characters of the name of a picture without its ending; file systems allow 255 bytes.
_LONGEST_STEM = 120

#: (page, workload, section id) to the anchor of its heading.
Anchors = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True)
class Markdown:
    """Writes a document's values as GitHub's Markdown.

    ``page`` is the page that is written and ``anchors`` the headings of all pages. ``exists`` says whether a file of
    the run's folder is there: a link to one that is not becomes text. ``names_workloads`` puts a section's workload
    into its heading.
    """

    page: str = SUMMARY
    anchors: Anchors = field(default_factory=dict)
    exists: Callable[[str], bool] = lambda path: True
    names_workloads: bool = False
    workload: str = ""

    def text(self, text: doc.Text, in_table: bool = False) -> str:
        return "".join(self._inline(inline, in_table) for inline in doc.inlines(text))

    def paragraph(self, text: doc.Text) -> str:
        """Return text that starts a line. A name such as ``1) a`` makes no list there."""
        line = self.text(text).lstrip(" ")
        return f"{match[0]}\\{line[match.end() :]}" if (match := _BLOCK_START.match(line)) else line

    def _inline(self, inline: doc.Inline, in_table: bool) -> str:
        if isinstance(inline, doc.Code):
            # Only a table needs a backslash before a pipe (GFM 4.10).
            return code(inline.text) if in_table else code(inline.text).replace("\\|", "|")
        if isinstance(inline, doc.Strong):
            strong = self.text(inline.content, in_table)
            # Four asterisks alone would be a line across the page.
            return f"**{strong}**" if strong.strip() else strong
        if isinstance(inline, doc.Link):
            content = self.text(inline.content, in_table)
            target = self._target(inline.target) if inline.case is None else ""
            return f"[{content}]({target})" if target else content
        return escape_inline(inline.unit.with_name(inline.value) if isinstance(inline, doc.Amount) else inline)

    def _target(self, target: str) -> str:
        """Return the address of a link; empty where there is nothing to link to."""
        if target.startswith(("https://", "http://")):
            return quote(target, safe=":/?#@!$&'*+,;=%~", errors="replace")
        path, _, id = target.partition("#")
        if path not in ("", SUMMARY, DETAILS):
            return quote(target, safe="/#=,+", errors="replace") if self.exists(path) else ""
        for page in (path,) if path else (SUMMARY, DETAILS):
            for workload in (self.workload, ""):
                if anchor := self.anchors.get((page, workload, id)):
                    return f"{'' if page == self.page else page}#{anchor}"
        return path if not id and path != self.page else ""

    def heading(self, section: doc.Section) -> str:
        workload = f": {escape_inline(section.workload)}" if self.names_workloads and section.workload else ""
        return f"{self.text(section.title)}{workload}"

    def section(self, section: doc.Section, level: int = 2) -> str:
        """Return the section with its heading; empty where the section holds nothing."""
        if not section:
            return ""
        writer = replace(self, workload=section.workload)
        parts = [f"{'#' * level} {self.heading(section)}" if section.title else "", writer.paragraph(section.summary)]
        parts += map(writer.block, section.blocks)
        parts += (writer.section(replace(child, workload=""), level + 1) for child in section.sections)
        return "\n\n".join(part for part in parts if part)

    def block(self, block: doc.Block) -> str:
        match block:
            case doc.Paragraph():
                return self.paragraph(block.content)
            case doc.Bullets():
                return "\n".join(f"- {self.paragraph(item)}" for item in block.items)
            case doc.CodeBlock():
                longest = max((len(run) for run in re.findall(r"`{3,}", block.text)), default=2)
                fence = "`" * (longest + 1)
                return f"{fence}{block.language}\n{visible(block.text)}\n{fence}"
            case doc.TableBlock():
                return self.table(block)
            case doc.Chart():
                path = quote(plot_path(block), errors="replace")
                picture = f"![{escape_inline(block.title)}]({path})"
                return "\n\n".join(filter(None, [picture, self.paragraph(block.caption)]))
            case doc.Details():
                inner = "\n\n".join(map(self.block, block.blocks))
                return f"<details><summary>{self.text(block.summary)}</summary>\n\n{inner}\n\n</details>"
            case doc.ViewChoice():
                return "\n\n".join(map(self.block, block.views()))
            case doc.TimelineChart():
                return ""

    def table(self, table: doc.TableBlock) -> str:
        """Return the table below its title; empty without rows."""
        if not table.rows:
            return ""
        head = [
            " ".join(filter(None, [self.text(column.title, in_table=True), escape_inline(column.unit_name)]))
            for column in table.columns
        ]
        align = ["---:" if column.is_numeric else "---" for column in table.columns]
        letters = table.flag_letters()
        rows = [[self._cell(cell, column, letters) for cell, column in zip(row, table.columns, strict=True)]
                for row in table.rows]  # fmt: skip
        lines = "\n".join("| " + " | ".join(row) + " |" for row in [head, align, *rows])
        title = self._inline(doc.Strong(table.title), in_table=False) if table.title else ""
        legend = ", ".join(f"*{letter}*: {escape(flag)}" for flag, letter in letters.items())
        return "\n\n".join(filter(None, [title, lines, legend]))

    def _cell(self, cell: doc.TableCell, column: doc.TableColumn, letters: Mapping[str, str]) -> str:
        content = escape_inline(cell.number(column)) or self.text(cell.text, in_table=True)
        content = f"**{content}**" if cell.is_strong and content else content
        flags = f"*{', '.join(letters.get(flag) or escape(flag) for flag in cell.flags)}*" if cell.flags else ""
        return " ".join(filter(None, [content, self.text(cell.note, in_table=True), flags]))


@functools.lru_cache(maxsize=4096)
def escape_inline(text: str) -> str:
    """Escape text, and keep a blank at either end."""
    flat = escape(text)
    return f"{' ' * (text[:1].isspace())}{flat}{' ' * (text[-1:].isspace() and bool(flat))}"


def plot_path(chart: doc.Chart) -> str:
    """Return the path of a chart's picture, relative to the page. A long id ends in a checksum: it names a file."""
    id = chart.id
    if len(id) > _LONGEST_STEM:
        id = f"{id[: _LONGEST_STEM - 9]}-{zlib.crc32(id.encode('utf-8', 'replace')):08x}"
    return f"plots/{id}.svg"


def anchors(pages: Mapping[str, doc.Document], names_workloads: bool) -> Anchors:
    """Return the anchor of each section's heading as GitHub derives it; a repeated heading gets a number."""
    section_anchors: dict[tuple[str, str, str], str] = {}
    writer = Markdown(names_workloads=names_workloads)
    for page, document in pages.items():
        seen: dict[str, int] = {}
        for section, workload in _walk(document.sections):
            if section.title:
                anchor = slug(html.unescape(writer.heading(section).replace("\\", "")))
                number = seen[anchor] = seen.get(anchor, -1) + 1
                section_anchors[page, workload, section.id] = f"{anchor}-{number}" if number else anchor
    return section_anchors


def _walk(sections: Sequence[doc.Section], workload: str = "") -> Iterator[tuple[doc.Section, str]]:
    """Yield each section that is not empty, with the workload that it belongs to."""
    for section in sections:
        if section:
            yield (replace(section, workload="") if workload else section), section.workload or workload
            yield from _walk(section.sections, section.workload or workload)
