"""The document: everything that a page says, as values. Renderers turn it into Markdown, text or HTML.

A ``Document`` holds sections, a section holds blocks. Text is a sequence of inlines, in which a plain ``str`` is text
that a renderer escapes. Numbers stay numbers with their unit until a renderer formats them. Renderers own escaping,
number formats, folding and links.

The short page (SUMMARY.md) shows the blocks whose ``placement`` is ``SUMMARY``; ``details.md`` shows those with
``DETAILS``. The page without a length limit (report.html) shows every block, and a page per case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TypeAlias, TypeVar

from profpipe.analysis.timeline import Lane
from profpipe.report.units import COUNT, MISSING, NO_UNIT, PERCENT, PLUS_MINUS, RATIO, SIGNED_PERCENT, Unit

_Item = TypeVar("_Item")


# --- text ------------------------------------------------------------------------------------------------------------


class OnPage(str, Enum):
    """Which page shows a block. ``report.html`` shows all of them."""

    SUMMARY = "summary"
    DETAILS = "details"
    HTML = "html"  # report.html alone


@dataclass(frozen=True)
class Code:
    """A name from a program or a file, set in a fixed-width font."""

    text: str


@dataclass(frozen=True)
class Strong:
    """Emphasised text."""

    content: Text


#: The pages of a report.
SUMMARY, DETAILS = "SUMMARY.md", "details.md"


@dataclass(frozen=True)
class Link:
    """A link to a section of the same workload or of the run (``#id``), to a file of the run's folder, or to a case.

    ``case`` is the id of one of the same workload. Only a page that has the case in full links to it.
    """

    content: Text
    target: str = ""
    case: str | None = None


def case_link(content: Text, case: str) -> Link:
    """Return the name of a case, which leads to it."""
    return Link(content, case=case)


@dataclass(frozen=True)
class Amount:
    """A number in its stored unit (ns, byte, share, ...), written in ``unit``, whose name follows it."""

    value: float | None
    unit: Unit = NO_UNIT


Inline: TypeAlias = "str | Code | Strong | Link | Amount"
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
    joined: list[Inline] = []
    for i, part in enumerate(given):
        if i:
            joined.append(last if i == len(given) - 1 else separator)
        joined.extend(inlines(part))
    return tuple(joined)


def plain(text: Text) -> str:
    """Return the text without markup and without formatting numbers; for tests, anchors and titles of files."""
    parts = []
    for inline in inlines(text):
        if isinstance(inline, (Strong, Link)):
            parts.append(plain(inline.content))
        elif isinstance(inline, Code):
            parts.append(inline.text)
        elif isinstance(inline, Amount):
            parts.append("" if inline.value is None else f"{inline.value:g}")
        else:
            parts.append(inline)
    return "".join(parts)


# --- charts ----------------------------------------------------------------------------------------------------------


class ChartKind(str, Enum):
    LINES = "lines"
    STACKED_BARS = "stacked_bars"
    #: Stacked amounts over an axis. All series have the same positions; the note of a mark is its phase.
    AREAS = "areas"
    #: A point for each label of the x axis, with its interval.
    INTERVALS = "intervals"
    #: Points over their number: samples or steps.
    STRIP = "strip"
    #: Points over FLOP per byte, below the machine's rates.
    ROOFLINE = "roofline"
    #: Times over runs, each with the band of the noise around its level; in it ``low`` and ``high`` are its ends.
    TREND = "course"
    #: Ratios with their intervals, and the difference that counts.
    FOREST = "forest"


@dataclass(frozen=True)
class Axis:
    """An axis of a chart: its title and unit, or the names of its positions.

    ``quantity`` is the stored unit of its values (ns, byte, x, share, change, or empty): ticks are written by it.
    ``cases`` are the ids of the cases that the labels name; empty where they name something else. Values of an axis
    that ``is_measured`` have many digits: its ticks are round numbers, and not the positions of marks.
    """

    title: str
    unit: Unit | None = None
    is_log: bool = False
    labels: tuple[str, ...] = ()
    quantity: str = ""
    cases: tuple[str, ...] = ()
    is_measured: bool = False


@dataclass(frozen=True)
class Mark:
    """A point of a series in stored units, with the 10th and 90th percentile where they are known, and its flags.

    In a chart of intervals ``low`` and ``high`` are the ends of the interval. ``case`` is the id of the case. ``floor``
    is the smallest difference from zero that counts. ``note`` is a remark that a reader sees beside the point.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    flags: tuple[str, ...] = ()
    case: str = ""
    floor: float | None = None
    note: str = ""

    @property
    def has_visible_range(self) -> bool:
        """Return True if the percentiles lie more than 5 % apart."""
        return self.low is not None and self.high is not None and self.high > 1.05 * self.low


@dataclass(frozen=True)
class Series:
    """A line, or one colour of stacked bars. ``key`` chooses the colour, so that a name has one colour everywhere.

    ``is_rejected``: most of its results are inaccurate.
    """

    name: str
    key: str
    marks: tuple[Mark, ...]
    is_baseline: bool = False
    is_rejected: bool = False


class ReferenceKind(str, Enum):
    LEVEL = "level"  # a value that divides good from bad
    LIMIT = "limit"  # the largest or smallest value that is allowed; named beside the lines
    PEAK = "peak"  # the machine's limit; drawn where it is near the data
    ROOF = "roof"  # the machine's limit over FLOP per byte: slanted up to the ridge, then level


@dataclass(frozen=True)
class Reference:
    """A horizontal line of every panel. A roof is slanted up to ``ridge``, a position of the x axis."""

    kind: ReferenceKind
    value: float
    name: str = ""
    ridge: float | None = None


#: Positions of a trend, at least.
_TREND = 30


#: Stacked bars up to which the legend has the shares of each.
MOST_SHARES = 3


@dataclass(frozen=True)
class Chart:
    """A chart as its series. ``id`` is the stem of its file.

    ``panels`` are the series of each plot by its title; they share both axes.
    ``keys`` are the keys of all series that the workload or the study may have, in the order of the palette.
    """

    id: str
    title: str
    kind: ChartKind
    x: Axis
    y: Axis
    panels: Mapping[str, tuple[Series, ...]]
    caption: Text = ""
    placement: OnPage = OnPage.SUMMARY
    subtitle: str = ""
    keys: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def series(self) -> tuple[Series, ...]:
        """All series of all panels."""
        return tuple(series for panel in self.panels.values() for series in panel)

    @property
    def every_key(self) -> tuple[str, ...]:
        """The keys of the series in the order of the palette."""
        return tuple(dict.fromkeys((*self.keys, *(series.key for series in self.series))))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All marks of all panels."""
        return tuple(mark for series in self.series for mark in series.marks)

    @property
    def is_trend(self) -> bool:
        """True with so many positions that a mark at each would hide the line."""
        return self.kind is ChartKind.LINES and not self.x.is_log and len({mark.x for mark in self.marks}) >= _TREND

    @property
    def has_round_ticks(self) -> bool:
        """True where the ticks of x are round numbers, and not the positions of marks."""
        return self.is_trend or (self.x.is_measured and not self.x.is_log)


@dataclass(frozen=True)
class TimelineChart:
    """What ran when: lanes over the time of one steady step, or of the first part of a capture.

    A lane has the name of its group (a rank and its device), whose lanes stand together, and its title. The key of an
    event chooses its colour: a kernel class, or the cause of idle time as ``step_idle_launch``. ``labels`` are the
    names of the keys, in the order of the legend. ``numbered`` are the lane and the start (ns) of the gaps that get a
    number, in the order of the table beside the picture.
    """

    id: str
    title: Text
    lanes: tuple[tuple[str, str, Lane], ...]
    duration_ns: float
    labels: Mapping[str, str]
    numbered: tuple[tuple[int, float], ...] = ()
    caption: Text = ""
    case: str = ""
    placement: OnPage = OnPage.HTML


# --- blocks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. ``id`` names it for programs, ``title`` for people; the unit follows the title.

    Columns of labels name the row and stay even where they are empty. Labels and words are aligned left, numbers right.
    """

    id: str
    title: Text
    unit: Unit | None = None
    is_label: bool = False
    is_words: bool = False

    @property
    def is_numeric(self) -> bool:
        return not (self.is_label or self.is_words)

    @property
    def unit_name(self) -> str:
        """The name of the unit, which follows the title; empty without a unit."""
        return self.unit.name if self.unit else ""


def number(id: str, title: Text | None = None, unit: Unit | None = None, **kind: bool) -> TableColumn:
    """Return a column of numbers; its title is its id where none is given."""
    return TableColumn(id, id if title is None else title, unit, **kind)


#: Columns by what their cells are: names of the rows, other text, and numbers by how they are written.
label, words = partial(number, is_label=True), partial(number, is_words=True)
count, ratio = partial(number, unit=COUNT), partial(number, unit=RATIO)
percent, signed_percent = partial(number, unit=PERCENT), partial(number, unit=SIGNED_PERCENT)
plus_minus = partial(number, unit=PLUS_MINUS)


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: a number in its stored unit or text, its flags, or what stands for a missing number.

    ``unit`` replaces that of the column. ``note`` follows the number, such as an interval.
    """

    value: float | None = None
    text: Text = ""
    flags: tuple[str, ...] = ()
    is_strong: bool = False
    missing: str = ""
    unit: Unit | None = None
    note: Text = ""

    @property
    def is_empty(self) -> bool:
        return self.value is None and not self.text and not self.flags and not self.note

    def number(self, column: TableColumn) -> str:
        """Return the number, or the word that stands for a missing one; empty for a cell of text."""
        if self.missing or self.value is None:
            return self.missing
        return (self.unit or column.unit or NO_UNIT).of(self.value)


#: What a cell may be given as.
Content: TypeAlias = "TableCell | Text | float | None"

#: Columns of a table, each with the function that returns the cell of an item.
Columns: TypeAlias = "Sequence[tuple[TableColumn, Callable[[_Item], Content]]]"


def cell(content: Content) -> TableCell:
    """Return ``content`` as a cell; ``None`` is a number that was not measured."""
    if isinstance(content, TableCell):
        return content
    if content is None:
        return TableCell(missing=MISSING)
    if isinstance(content, (int, float)):
        return TableCell(value=float(content))
    return TableCell(text=content)


@dataclass(frozen=True)
class Paragraph:
    content: Text
    placement: OnPage = OnPage.SUMMARY


@dataclass(frozen=True)
class Bullets:
    """Sentences of a list. The terminal leaves out those that its bar of a step shows too: ``drawn``."""

    items: tuple[Text, ...]
    placement: OnPage = OnPage.SUMMARY
    drawn: tuple[Text, ...] = ()


@dataclass(frozen=True)
class CodeBlock:
    text: str
    language: str = "sh"
    placement: OnPage = OnPage.SUMMARY


#: A table with more flags in its cells shows each as a letter, which a line below the table explains.
_MOST_WORDS = 4


@dataclass(frozen=True)
class TableBlock:
    """A table. ``id`` is unique in its section. One that is not divisible stays whole: its last rows are sums."""

    id: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    title: Text = ""
    placement: OnPage = OnPage.SUMMARY
    is_divisible: bool = True

    def flag_letters(self) -> dict[str, str]:
        """Return the letter of each flag of a table with many flags, or an empty dict.

        A flag has its first letter. Flags that begin alike have the first letters that differ, such as ``th`` and
        ``to``.
        """
        flags = [flag for row in self.rows for cell in row for flag in cell.flags]
        if len(flags) <= _MOST_WORDS:
            return {}
        names = sorted(set(flags))
        return {name: next(name[:n] for n in range(1, len(name) + 1) if [f[:n] for f in names].count(name[:n]) == 1
                           or n == len(name)) for name in names}  # fmt: skip

    def without(self, *ids: str) -> TableBlock:
        """Return the table without the columns ``ids``."""
        kept = [i for i, column in enumerate(self.columns) if column.id not in ids]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        columns = tuple(self.columns[i] for i in kept)
        return TableBlock(self.id, columns, rows, self.title, self.placement, self.is_divisible)


def make_table(
    id: str,
    columns: Sequence[TableColumn],
    rows: Iterable[Sequence[Content]],
    title: Text = "",
    placement: OnPage = OnPage.SUMMARY,
    is_divisible: bool = True,
) -> TableBlock:
    """Return a table without empty columns of numbers; the contents of ``rows`` become cells."""
    cells = [tuple(map(cell, row)) for row in rows]
    kept = [i for i, column in enumerate(columns) if column.is_label or any(not row[i].is_empty for row in cells)]
    shown = tuple(tuple(row[i] for i in kept) for row in cells)
    return TableBlock(id, tuple(columns[i] for i in kept), shown, title, placement, is_divisible)


def table_of(
    id: str,
    items: Iterable[_Item],
    columns: Columns[_Item],
    title: Text = "",
    placement: OnPage = OnPage.SUMMARY,
) -> TableBlock:
    """Return a table with a row for each of ``items``: each column stands with the function of its cells."""
    rows = ([content(item) for _, content in columns] for item in items)
    return make_table(id, [column for column, _ in columns], rows, title, placement)


@dataclass(frozen=True)
class Details:
    """Blocks that stay folded until a reader opens them."""

    summary: Text
    blocks: tuple[Block, ...]
    placement: OnPage = OnPage.DETAILS


@dataclass(frozen=True)
class ViewChoice:
    """Views of which a reader sees one. SUMMARY.md shows the first, and details.md the others, unless it is for HTML.

    ``dimensions`` are the questions, such as metric and profiler. ``options`` are the blocks by the answers.
    """

    id: str
    dimensions: tuple[str, ...]
    options: Mapping[tuple[str, ...], tuple[Block, ...]]
    placement: OnPage = OnPage.HTML

    def views(self) -> Iterator[Block]:
        """Yield the blocks of all options, those after the first for details.md; none of a choice for HTML alone."""
        if self.placement is not OnPage.HTML:
            for i, blocks in enumerate(self.options.values()):
                yield from (replace(block, placement=OnPage.DETAILS) if i else block for block in blocks)


def choose_table(id: str, dimension: str, tables: Sequence[TableBlock]) -> Block | None:
    """Return tables with rows as a choice by their titles; a single one as it is."""
    options: dict[tuple[str, ...], tuple[Block, ...]] = {(plain(t.title),): (t,) for t in tables if t.rows}
    if len(options) > 1:
        return ViewChoice(id, (dimension,), options, placement=OnPage.SUMMARY)
    return next((block for (block,) in options.values()), None)


#: Tables longer than this are folded.
LONG_TABLE = 24


def fold_if_long(table: TableBlock) -> Details | TableBlock:
    """Return ``table``, folded below its title where it is long. The short page cuts a table instead of folding it."""
    if len(table.rows) <= LONG_TABLE or not table.title or table.placement is OnPage.SUMMARY:
        return table
    return Details(table.title, (replace(table, title=""),), table.placement)


Block: TypeAlias = "Paragraph | Bullets | CodeBlock | TableBlock | Chart | Details | ViewChoice | TimelineChart"


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

    def walk(self, with_subsections: bool = True) -> Iterator[Block]:
        """Yield every block, those of details included."""
        yield from _walk(self.blocks)
        for section in self.sections if with_subsections else ():
            yield from section.walk()


def _walk(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        yield from _walk(_inside(block))


def _inside(block: Block) -> Iterable[Block]:
    """Return the blocks that ``block`` holds."""
    if isinstance(block, ViewChoice):
        return (inner for blocks in block.options.values() for inner in blocks)
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
        fold_if_long(block) if folds_long_tables and isinstance(block, TableBlock) else block
        for block in blocks
        if block is not None and _holds_something(block)
    )
    return Section(id, title, kept, summary, workload) if kept else Section(id, "", workload=workload)


def _holds_something(block: Block) -> bool:
    match block:
        case TableBlock(rows=content) | Bullets(items=content) | Paragraph(content=content):
            return bool(content)
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

    def without(self, placement: OnPage) -> Document:
        """Return the document without the blocks of ``placement`` and the sections that hold no others."""
        return Document(self.title, _drop_placement(self.sections, placement), self.cases, self.flags)


def _drop_placement(sections: Iterable[Section], placement: OnPage) -> tuple[Section, ...]:
    kept = []
    for section in sections:
        blocks = tuple(block for block in section.blocks if block.placement is not placement)
        children = _drop_placement(section.sections, placement)
        if blocks or children or not (section.blocks or section.sections):
            kept.append(Section(section.id, section.title, blocks, section.summary, section.workload, children))
    return tuple(kept)
