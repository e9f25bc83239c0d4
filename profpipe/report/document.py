"""The document: everything that a page says, as values. Renderers turn it into Markdown, text or HTML.

A ``Document`` holds sections, a section holds blocks. Text is a sequence of inlines, in which a plain ``str`` is text
that a renderer escapes. Numbers stay numbers with their unit until a renderer formats them. Renderers own escaping,
number formats, folding and links.

The short page (SUMMARY.md) shows the blocks whose ``placement`` is ``SUMMARY``; ``details.md`` shows those with
``DETAILS``. The page without a length limit (report.html) shows every block, and a page for each case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

# Sections and renderers take all values of a document from here.
from profpipe.report.chart_values import (
    Axis as Axis,
    Chart as Chart,
    ChartKind as ChartKind,
    Lane as Lane,
    Mark as Mark,
    Panel as Panel,
    Reference as Reference,
    ReferenceKind as ReferenceKind,
    Series as Series,
    Timeline as Timeline,
)
from profpipe.report.inline_values import (
    NO_UNIT as NO_UNIT,
    CaseLink as CaseLink,
    Code as Code,
    Format as Format,
    Inline as Inline,
    Link as Link,
    Missing as Missing,
    Number as Number,
    Placement as Placement,
    Strong as Strong,
    Text as Text,
    concat as concat,
    inlines as inlines,
    join as join,
    plain as plain,
)
from profpipe.report.units import Unit

_Item = TypeVar("_Item")


# --- blocks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a table. ``id`` names it for programs, ``title`` for people; the unit follows the title.

    Columns of labels name the row and stay even where they are empty. Labels and words are aligned left, numbers right.
    """

    id: str
    title: Text
    unit: Unit | None = None
    format: Format = Format.NUMBER
    is_label: bool = False
    is_words: bool = False

    @property
    def is_numeric(self) -> bool:
        return not (self.is_label or self.is_words)


def _titled(id: str, title: Text | None = None, **kind: Any) -> Column:
    """Return a column; its title is its id where none is given."""
    return Column(id, id if title is None else title, **kind)


#: Columns by what their cells are: names of the rows, other text, and numbers by their formats.
label, words = partial(_titled, is_label=True), partial(_titled, is_words=True)
count, ratio = partial(_titled, format=Format.COUNT), partial(_titled, format=Format.RATIO)
percent, signed_percent = partial(_titled, format=Format.PERCENT), partial(_titled, format=Format.SIGNED_PERCENT)
plus_minus = partial(_titled, format=Format.PLUS_MINUS)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a number in its stored unit or text, its flags, or why it is missing.

    ``unit`` and ``format`` replace those of the column. ``note`` follows the number, such as an interval.
    """

    value: float | None = None
    text: Text = ""
    flags: tuple[str, ...] = ()
    is_strong: bool = False
    missing: Missing | None = None
    unit: Unit | None = None
    format: Format | None = None
    note: Text = ""

    @property
    def is_empty(self) -> bool:
        return self.value is None and not self.text and not self.flags and not self.note


#: What a cell may be given as.
Content: TypeAlias = "Cell | Text | float | None"

#: Columns of a table, each with the function that returns the cell of an item.
Columns: TypeAlias = "Sequence[tuple[Column, Callable[[_Item], Content]]]"


def cell(content: Content) -> Cell:
    """Return ``content`` as a cell; ``None`` is a number that was not measured."""
    if isinstance(content, Cell):
        return content
    if content is None:
        return Cell(missing=Missing.NOT_MEASURED)
    if isinstance(content, (int, float)):
        return Cell(value=float(content))
    return Cell(text=content)


@dataclass(frozen=True)
class Paragraph:
    content: Text
    placement: Placement = Placement.SUMMARY


@dataclass(frozen=True)
class Bullets:
    items: tuple[Text, ...]
    placement: Placement = Placement.SUMMARY


@dataclass(frozen=True)
class CodeBlock:
    text: str
    language: str = "sh"
    placement: Placement = Placement.SUMMARY


@dataclass(frozen=True)
class Table:
    """A table. ``id`` is unique in its section. One that is not divisible stays whole: its last rows are sums."""

    id: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: Text = ""
    placement: Placement = Placement.SUMMARY
    is_divisible: bool = True

    def without_empty_columns(self) -> Table:
        """Return the table without the number columns in which every cell is empty."""
        kept = [i for i, c in enumerate(self.columns) if c.is_label or any(not row[i].is_empty for row in self.rows)]
        return self._with_columns(kept)

    def without(self, *ids: str) -> Table:
        """Return the table without the columns ``ids``."""
        return self._with_columns([i for i, column in enumerate(self.columns) if column.id not in ids])

    def _with_columns(self, kept: Sequence[int]) -> Table:
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)


def make_table(
    id: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Content]],
    title: Text = "",
    placement: Placement = Placement.SUMMARY,
) -> Table:
    """Return a table without empty columns of numbers; the contents of ``rows`` become cells."""
    cells = tuple(tuple(map(cell, row)) for row in rows)
    return Table(id, tuple(columns), cells, title, placement).without_empty_columns()


def table_of(
    id: str,
    items: Iterable[_Item],
    columns: Columns[_Item],
    title: Text = "",
    placement: Placement = Placement.SUMMARY,
) -> Table:
    """Return a table with a row for each of ``items``: each column stands with the function of its cells."""
    rows = ([content(item) for _, content in columns] for item in items)
    return make_table(id, [column for column, _ in columns], rows, title, placement)


@dataclass(frozen=True)
class Details:
    """Blocks that stay folded until a reader opens them."""

    summary: Text
    blocks: tuple[Block, ...]
    placement: Placement = Placement.DETAILS


@dataclass(frozen=True)
class Option:
    """One of several views: a value for each of the dimensions, and the blocks that it shows."""

    values: tuple[str, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Choice:
    """Views of which a reader sees one: ``dimensions`` are the questions, such as metric and profiler."""

    id: str
    dimensions: tuple[str, ...]
    options: tuple[Option, ...]
    title: Text = ""
    placement: Placement = Placement.HTML


#: Tables longer than this are folded.
LONG_TABLE = 24


def fold_if_long(table: Table) -> Details | Table:
    """Return ``table``, folded below its title where it is long. The short page cuts a table instead of folding it."""
    if len(table.rows) <= LONG_TABLE or not table.title or table.placement is Placement.SUMMARY:
        return table
    return Details(table.title, (replace(table, title=""),), table.placement)


Block: TypeAlias = "Paragraph | Bullets | CodeBlock | Table | Chart | Details | Choice | Timeline"


# --- sections --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A section of a workload, or of the whole run where ``workload`` is empty. ``summary`` is its first sentence."""

    id: str
    title: Text
    blocks: tuple[Block, ...] = ()
    summary: Text = ""
    workload: str = ""
    sections: tuple[Section, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.blocks or self.summary or self.sections)

    def walk(self) -> Iterator[Block]:
        """Yield every block, those of details and of subsections included."""
        yield from _walk(self.blocks)
        for section in self.sections:
            yield from section.walk()

    def tables(self) -> Iterator[Table]:
        """Yield every table of the section and of its subsections."""
        return (block for block in self.walk() if isinstance(block, Table))


def _walk(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        yield from _walk(_inside(block))


def _inside(block: Block) -> Iterable[Block]:
    """Return the blocks that ``block`` holds."""
    if isinstance(block, Choice):
        return (inner for option in block.options for inner in option.blocks)
    return block.blocks if isinstance(block, Details) else ()


def make_section(
    id: str,
    title: Text,
    blocks: Iterable[Block | None],
    summary: Text = "",
    workload: str = "",
    folds_long_tables: bool = False,
) -> Section:
    """Return a section without the blocks that hold nothing; it is empty where no block is left."""
    kept = tuple(
        fold_if_long(block) if folds_long_tables and isinstance(block, Table) else block
        for block in blocks
        if block is not None and _holds_something(block)
    )
    return Section(id, title, kept, summary, workload) if kept else Section(id, "", workload=workload)


def _holds_something(block: Block) -> bool:
    match block:
        case Table():
            return bool(block.rows)
        case Bullets():
            return bool(block.items)
        case Paragraph():
            return bool(block.content)
    return True


@dataclass(frozen=True)
class Document:
    """A report: its title and its sections in order.

    ``cases`` are the pages of single cases, which report.html opens: the section's id is that of the case.
    ``flags`` explain the validity flags that occur.
    """

    title: Text
    sections: tuple[Section, ...] = field(default=())
    cases: tuple[Section, ...] = ()
    flags: Mapping[str, Text] = field(default_factory=dict)

    def section(self, id: str, workload: str = "") -> Section | None:
        """Return the section ``id`` of ``workload``, or None."""
        return next((s for s in self.sections if s.id == id and s.workload == workload), None)

    @property
    def workloads(self) -> tuple[str, ...]:
        """The workloads that have sections, in order."""
        return tuple(dict.fromkeys(section.workload for section in self.sections if section.workload))

    def tables(self) -> Iterator[Table]:
        """Yield every table of the document."""
        return (table for section in self.sections for table in section.tables())

    def without(self, placement: Placement) -> Document:
        """Return the document without the blocks of ``placement`` and the sections that hold no others."""
        return replace(self, sections=_without(self.sections, placement))


def _without(sections: Iterable[Section], placement: Placement) -> tuple[Section, ...]:
    found = []
    for section in sections:
        blocks = tuple(block for block in section.blocks if block.placement is not placement)
        children = _without(section.sections, placement)
        if blocks or children or not (section.blocks or section.sections):
            found.append(replace(section, blocks=blocks, sections=children))
    return tuple(found)
