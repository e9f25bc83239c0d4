"""Tables: sortable columns, rows that can be filtered, flags with their meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.formatting import format_cell, format_head
from profpipe.report.markup import anchor, cut, element, empty, flat, join

#: Rows of a table on the page; the file has the others.
MOST_ROWS = 400

#: Tables from this number of rows on have a field to filter them.
_FILTERED = 9

#: Columns of a table that is never wider than the page.
_NARROW = 2

#: Letters of a word that may break in its cell: more than the least width of such a cell in report.css.
_LONG_WORD = 24

#: Writes text, with links and without.
Writer = Callable[[doc.Text], Markup]
Writers = tuple[Writer, Writer]


def table(
    table: doc.Table, id: str, writers: Writers, flags: Mapping[str, str], rest: str = "", is_sortable: bool = True
) -> Markup:
    """Return a table; empty without rows. ``rest`` names the file that has the rows which are left out."""
    if not table.rows:
        return Markup("")
    write, write_head = writers
    shown = replace(table, rows=table.rows[:MOST_ROWS])
    # The last rows of a table that is not divisible are sums.
    can_sort = is_sortable and table.is_divisible and len(shown.rows) > 1
    head = [_head(column, write_head, can_sort) for column in shown.columns]
    body = [
        element(
            "tr",
            *(_cell(cell, column, write, flags, can_sort) for cell, column in zip(row, shown.columns, strict=True)),
        )
        for row in shown.rows
    ]
    title = element("caption", write(table.title)) if table.title else ""
    grid = element("table", title, element("thead", element("tr", *head)), element("tbody", *body),
                   id=id if can_sort else None, class_="sortable" if can_sort else None)  # fmt: skip
    own_name = flat(doc.plain(table.title)) or "Table"
    scroll = grid
    if len(table.columns) > _NARROW:
        scroll = element("div", grid, class_="scroll", tabindex="0", role="region", aria_label=cut(own_name, 200))
    has_filter = can_sort and len(shown.rows) >= _FILTERED
    field = empty("input", type="search", data_filter=id, placeholder="text in a row")
    label = element("label", "Filter ", field, class_="filter", hidden=True) if has_filter else ""
    return element("div", label, scroll, _rest_note(table, shown, rest), class_="table")


def _rest_note(table: doc.Table, shown: doc.Table, rest: str) -> Markup:
    """Return how many rows are shown, and the file that has all of them; empty where none is left out."""
    if len(shown.rows) == len(table.rows):
        return Markup("")
    file = [" All of them: ", element("code", rest)] if rest else []
    return element("p", f"The first {len(shown.rows)} of {len(table.rows)} rows.", *file, class_="more")


def _head(column: doc.Column, write: Writer, can_sort: bool) -> Markup:
    unit = format_head(column)
    words = join([write(column.title), element("span", unit, class_="unit") if unit else ""], " ")
    # A head without words names nothing that could be sorted.
    content = element("button", words, type="button") if words and can_sort else words
    kind = "n" if column.is_numeric else None
    return element("th" if words else "td", content, scope="col" if words else None, class_=kind)


def _cell(cell: doc.Cell, column: doc.Column, write: Writer, flags: Mapping[str, str], can_sort: bool) -> Markup:
    number = format_cell(cell, column)
    content = Markup.escape(number) if number else write(cell.text)
    if not number and column.id == "flags":
        content = explain_words(content, flags)
    if cell.is_strong and content:
        content = element("strong", content)
    note = element("span", write(cell.note), class_="note") if cell.note else ""
    own_flags = [explain(flag, flags) for flag in cell.flags]
    value = f"{cell.value:.6g}" if cell.value is not None and can_sort else None
    inner = join([content, note, *own_flags], " ")
    kind = "n" if column.is_numeric else "long" if _has_long_word(cell.text) else None
    if column.is_label:
        return element("th", inner, scope="row", class_=kind, data_v=value)
    return element("td", inner, class_=kind, data_v=value)


def _has_long_word(text: doc.Text) -> bool:
    plain = doc.plain(text)
    return len(plain) > _LONG_WORD and any(len(word) > _LONG_WORD for word in plain.split())


def explain(flag: str, flags: Mapping[str, str]) -> Markup:
    """Return a flag that leads to its meaning in the legend; the script shows it where the flag stands."""
    known = flag in flags
    return element("abbr", cut(flat(flag), 60), class_="flag", tabindex="0" if known else None,
                   aria_describedby=anchor("flag", flag) if known else None)  # fmt: skip


def explain_words(content: Markup, flags: Mapping[str, str]) -> Markup:
    """Return ``content``, in which words that are flags have their meaning."""
    if not flags:
        return content
    known = re.compile(rf"\b({'|'.join(map(re.escape, sorted(flags, key=len, reverse=True)))})\b(?![^<]*>)")
    return Markup(known.sub(lambda found: str(explain(found[1], flags)), str(content)))
