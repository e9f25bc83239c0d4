"""Write report.html: one file with its style and its scripts, and no request to anywhere.

The elements around tables, charts and timelines are macros of templates/report.blocks.j2.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from profpipe import plugins
from profpipe.analysis.timeline import Event
from profpipe.report import charts, document as doc
from profpipe.report.document import DETAILS, SUMMARY
from profpipe.report.markup import anchor, attributes, cut, element, finalize, flat, join, short
from profpipe.report.pages import fill_template
from profpipe.report.scales import STYLE, key_class, place, unit_on
from profpipe.report.text import write_text
from profpipe.report.units import time_unit
from profpipe.results import atomic
from profpipe.results.schema import EventKind
from profpipe.stdio import visible

#: The name of the page.
REPORT = "report.html"

#: The files that make the page.
_TEMPLATE, _STYLES, _SCRIPTS = "report.html.j2", (STYLE, "report.css"), ("report.js", "timeline.js")
FILES = (_TEMPLATE, *_STYLES, *_SCRIPTS)

#: Sections that a reader sees at once; the others are folded below their titles.
_OPEN = ("answers", "headline", "targets", "timeline", "first_studies", "times", "recordings", "requests", "warnings",
         "failures", "memory_peak", "unfinished", "forest", "verdicts", "changes", "not_tried")  # fmt: skip


def write(document: doc.Document, folder: Path, files: Mapping[str, Path], name: str = REPORT) -> None:
    """Write the page ``name`` into ``folder``, whole or not at all. ``files`` are those of ``FILES`` by name."""
    atomic.write_text(folder / name, render(document, files, lambda path: (folder / path).exists()))


def render(
    document: doc.Document, files: Mapping[str, Path], exists: Callable[[str], bool] = lambda path: False
) -> str:
    """Return the page. Raise ProfpipeError where a template of the user is wrong or out of date."""
    # The charts of the plots are among those to choose from.
    chosen = {section.workload for section in document.sections if section.id == "explorer"}
    shown_sections = [s for s in document.sections if not (s.id == "plots" and s.workload in chosen)]
    sections = list(_section_ids(shown_sections))
    anchors = {(section.workload, section.id): id for section, id in reversed(list(_all_ids(sections)))}
    cases = {(case.workload, case.id): anchor("case", case.workload, case.id) for case in document.cases}
    html = Html(
        anchors=anchors,
        cases=cases,
        contents={key: f"c{i}" for i, key in enumerate(cases)},
        flags={flag: write_text(text) for flag, text in document.flags.items()},
        exists=exists,
        names_workloads=len(document.workloads) > 1,
    )
    # What stands inside a page of a case has short ids: nothing leads there.
    alone = replace(html, cases={}, contents={})

    def entry(writer: Html, section: doc.Section, id: str, content_id: str, is_folded: bool = False) -> dict[str, str]:
        names = {"id": id, "workload": flat(section.workload), "title": flat(write_text(section.title))}
        return {**names, "content": writer.section(section, content_id, is_folded=is_folded)}

    entries = [
        entry(html, section, id, id, bool(section.title) and section.id not in _OPEN) for section, id in sections
    ]
    keys = [(case.workload, case.id) for case in document.cases]
    pages = [entry(alone, case, cases[key], html.contents[key])
             for case, key in zip(document.cases, keys, strict=True)]  # fmt: skip
    shown = "".join(entry["content"] for entry in (*entries, *pages))
    legend = [(id, flat(flag), flat(text)) for flag, text in html.flags.items()
              if f'"{(id := anchor("flag", flag))}"' in shown]  # fmt: skip
    style, script = (_joined(files[name] for name in names) for names in (_STYLES, _SCRIPTS))
    name, *facts = map(short, write_text(document.title).split(" · "))
    return fill_template(files[_TEMPLATE], {
        "policy": policy(style, script), "style": Markup(style), "script": Markup(script), "name": name, "facts": facts,
        "workloads": list(map(flat, document.workloads)), "sections": entries, "cases": pages, "flags": legend,
    }, autoescape=True)  # fmt: skip


def policy(style: str, script: str) -> str:
    """Return the content security policy: this style and this script, and no request."""
    words = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src {}; script-src {}"
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    return words.format(*(f"'sha256-{digest}'" for digest in hashes))


def _joined(paths: Iterable[Path]) -> str:
    """Return the files one after the other. No text in them may end the element that holds them."""
    return "\n".join(path.read_text(encoding="utf-8") for path in paths).replace("\r", "").replace("</", "<\\/")


# --- the values of a document ----------------------------------------------------------------------------------------

#: Characters of a name, whose title has the whole name; of text that is no name, such as the end of a log; and of a
#: name in the timeline, since templates of kernels can have thousands.
_MOST_CHARACTERS, _MOST_TEXT, _MOST_IN_TIMELINE = 90, 4_000, 500
#: Rows of a table on the page, whose file has the others.
MOST_ROWS = 400
#: Columns of a table that is never wider than the page.
_NARROW = 2
#: Letters of a word that may break in its cell: more than the least width of such a cell in report.css.
_LONG_WORD = 24
#: Points of a strip or of areas up to which the table of its values lists each of them.
_MOST_LISTED = 100
#: The files that have all rows of a section's tables; those of others are in metrics.
_FILES = {"kernels": "kernels", "every_step": "steps", "step_outliers": "steps", "phases": "ranges", "cases": "cases"}
#: Sections that the style sheet shows in their own way.
_STYLED = ("answers", "headline", "warnings")


@dataclass(frozen=True)
class Html:
    """Writes a document's values as HTML.

    ``anchors`` has the id of the element of each section, by workload and section. ``cases`` has those of the pages of
    cases, by workload and case, and ``contents`` the short ones of what is inside. ``exists`` says whether a file of
    the run's folder is there. ``place`` is the element that contains what is written: ids inside begin with its own.
    ``given`` counts how often each id was given.
    """

    anchors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cases: Mapping[tuple[str, str], str] = field(default_factory=dict)
    contents: Mapping[tuple[str, str], str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    exists: Callable[[str], bool] = lambda path: False
    names_workloads: bool = False
    workload: str = ""
    place: str = ""
    section_id: str = ""
    given: dict[str, int] = field(default_factory=dict)

    # --- inlines -----------------------------------------------------------------------------------------------------

    def text(self, text: doc.Text) -> Markup:
        return join(map(self._inline, doc.inlines(text)))

    def _inline(self, inline: doc.Inline) -> Markup:
        match inline:
            case doc.Code():
                code = flat(inline.text)
                title = code if len(code) > _MOST_CHARACTERS else None
                return element("code", cut(code, _MOST_CHARACTERS), title=title)
            case doc.Strong():
                return element("strong", self.text(inline.content))
            case doc.Link():
                content, target = self.text(inline.content), self._target(inline)
                rel = "noreferrer" if "://" in target else None
                return element("a", content, href=target, rel=rel) if target else content
            case doc.Amount():
                return Markup.escape(inline.unit.with_name(inline.value))
            case _:
                return short(inline, _MOST_TEXT)

    def _target(self, link: doc.Link) -> str:
        """Return the address of a link; empty where there is nothing to link to."""
        target = link.target
        if link.case is not None:
            id = self._page_of(link.case)
            return f"#{id}" if id else ""
        if target.startswith(("https://", "http://")):
            return target
        path, _, id = target.partition("#")
        if path in ("", SUMMARY, DETAILS):
            section_anchor = self.anchors.get((self.workload, id)) or self.anchors.get(("", id))
            return f"#{section_anchor}" if section_anchor else ""
        return path if ":" not in path and self.exists(path) else ""

    def _page_of(self, case: str) -> str:
        """Return the id of the page of a case of this workload; empty where the case has no page."""
        return self.cases.get((self.workload, case), "") if case else ""

    def drop_links(self) -> Html:
        """Return a writer for text inside a button or a summary, which may hold no link."""
        return replace(self, anchors={}, cases={}, exists=lambda path: False)

    def id_of(self, *names: str, place: str = "") -> str:
        """Return the id of an element of this place, or of another, which no other element has."""
        id = anchor(place or self.place, *names)
        self.given[id] = number = self.given.get(id, 0) + 1
        return id if number == 1 else f"{id}.{number}"

    # --- sections and blocks -----------------------------------------------------------------------------------------

    def section(self, section: doc.Section, id: str, level: int = 2, is_folded: bool = False) -> Markup:
        """Return the section with its heading, which alone is seen of a folded one; empty where it holds nothing."""
        if not section:
            return Markup("")
        writer = replace(self, workload=section.workload or self.workload, place=id, section_id=section.id)
        is_named = section.workload and self.names_workloads and level == 2
        heading = join([self.text(section.title), f": {cut(flat(section.workload), 60)}" if is_named else ""])
        classes = " ".join(("section", *(id for id in _STYLED if id == section.id)))
        children = _children_ids(section, id)
        return _write("section", writer, section, id, level, classes, heading, children, is_folded)

    def block(self, block: doc.Block) -> Markup:
        match block:
            case doc.Paragraph():
                return element("p", self.text(block.content))
            case doc.Bullets():
                return element("ul", *(element("li", self.text(item)) for item in block.items))
            case doc.CodeBlock():
                text = "\n".join(map(visible, block.text.splitlines()))
                return element("pre", element("code", text), tabindex="0", class_="block")
            case doc.TableBlock():
                return self.table(block)
            case doc.Chart():
                return self._chart(block)
            case doc.Details():
                inner = element("div", *map(self.block, block.blocks))
                return element("details", element("summary", self.drop_links().text(block.summary)), inner)
            case doc.ViewChoice():
                return _write("choice", self, block, self.id_of("choice", block.id))
            case doc.TimelineChart():
                return self._timeline(block)

    # --- tables ------------------------------------------------------------------------------------------------------

    def table(self, table: doc.TableBlock, place: str = "", is_sortable: bool = True) -> Markup:
        """Return a table with its first rows; empty without rows. The default of ``place`` is that of the writer."""
        id, rows = self.id_of("table", table.id, place=place), table.rows[:MOST_ROWS]
        if not rows:
            return Markup("")
        # The last rows of a table that is not divisible are sums.
        can_sort = is_sortable and table.is_divisible and len(rows) > 1
        head = join(self.drop_links()._head(column, can_sort) for column in table.columns)
        cells = ((self._cell(*pair, can_sort) for pair in zip(row, table.columns, strict=True)) for row in rows)
        body = join(element("tr", *row) for row in cells)
        is_wide, file = len(table.columns) > _NARROW, ""
        name = cut(flat(doc.plain(table.title)) or "Table", 200) if is_wide else ""
        if len(rows) < len(table.rows):
            file = _FILES.get(self.section_id, "metrics")
            file = f"{file}.{'csv' if self.exists(f'{file}.csv') else 'parquet'}"
        return _write("table", self, table, id, len(rows), head, body, can_sort, name, file)

    def _head(self, column: doc.TableColumn, can_sort: bool) -> Markup:
        unit = element("span", column.unit_name, class_="unit") if column.unit_name else ""
        words = join([self.text(column.title), unit], " ")
        # A head without words names nothing that could be sorted.
        content = element("button", words) if words and can_sort else words
        kind = "n" if column.is_numeric else None
        return element("th" if words else "td", content, scope="col" if words else None, class_=kind)

    def _cell(self, cell: doc.TableCell, column: doc.TableColumn, can_sort: bool) -> Markup:
        number = cell.number(column)
        content = Markup.escape(number) if number else self.text(cell.text)
        if not number and column.id == "flags":
            content = self._explain_words(content)
        if cell.is_strong and content:
            content = element("strong", content)
        note = element("span", self.text(cell.note), class_="note") if cell.note else ""
        inner = join([content, note, *map(self._explain, cell.flags)], " ")
        value = f"{cell.value:.6g}" if cell.value is not None and can_sort else None
        has_long_word = any(len(word) > _LONG_WORD for word in doc.plain(cell.text).split())
        kind = "n" if column.is_numeric else "long" if has_long_word else None
        # A label that stands in a row above is left out.
        name, scope = ("th", "row") if column.is_label and inner else ("td", None)
        return element(name, inner, scope=scope, class_=kind, data_v=value)

    def _explain(self, flag: str) -> Markup:
        """Return a flag that leads to its meaning in the legend; the script shows it where the flag stands."""
        is_explained = flag in self.flags
        return element("abbr", cut(flat(flag), 60), class_="flag", tabindex="0" if is_explained else None,
                       aria_describedby=anchor("flag", flag) if is_explained else None)  # fmt: skip

    def _explain_words(self, content: Markup) -> Markup:
        """Return ``content``, in which words that are flags have their meaning."""
        if not self.flags:
            return content
        words = "|".join(map(re.escape, sorted(self.flags, key=len, reverse=True)))
        flag_pattern = re.compile(rf"\b({words})\b(?![^<]*>)")
        return Markup(flag_pattern.sub(lambda match: str(self._explain(match[1])), str(content)))

    # --- figures -----------------------------------------------------------------------------------------------------

    def _chart(self, chart: doc.Chart) -> Markup:
        """Return the chart with its title, its legend and the table of its values."""
        id = self.id_of("chart", chart.id)
        table = self.table(value_table(chart), id, is_sortable=False)
        linked = self._add_targets(chart)
        panels = {title: charts.draw(linked, series) for title, series in linked.panels.items()}
        return _write("chart", self, chart, id, charts.heading(chart), list(charts.legend(chart)), panels, table)

    def _add_targets(self, chart: doc.Chart) -> doc.Chart:
        """Return the chart with the short id of each case's content instead of the case; empty where it has no page."""

        def target(case: str) -> str:
            return self.contents.get((self.workload, case), "") if case else ""

        panels = {
            title: tuple(
                replace(series, marks=tuple(replace(mark, case=target(mark.case)) for mark in series.marks))
                for series in panel
            )
            for title, panel in chart.panels.items()
        }
        return replace(chart, panels=panels, x=replace(chart.x, cases=tuple(map(target, chart.x.cases))))

    def _timeline(self, timeline: doc.TimelineChart) -> Markup:
        """Return the timeline as data that timeline.js draws, and a table with the time of each lane."""
        id = self.id_of("timeline", timeline.id)
        table = self.table(_lane_table(timeline), id)
        # Code has its own lane, and its line stands in each box.
        keys = (key for key in timeline.labels if key != EventKind.LINE.value)
        buttons = [(flat(key), timeline.labels[key], key_class(key)) for key in keys]
        return _write("timeline", self, timeline, id, _json(timeline), buttons, self._page_of(timeline.case), table)


def _write(macro: str, *values: object) -> Markup:
    """Return the elements that a macro of ``report.blocks.j2`` makes of ``values``."""
    written: Markup = getattr(_macros(), macro)(*values)
    return written


@functools.cache
def _macros() -> object:
    source = (plugins.builtin_folder("templates") / "report.blocks.j2").read_text(encoding="utf-8")
    # Texts of the document are values of the macros, and never a template.
    jinja = jinja2.Environment(autoescape=True, finalize=finalize, undefined=jinja2.StrictUndefined)
    jinja.filters |= {"flat": flat, "cut": cut, "short": short, "json": json.dumps}
    jinja.globals["attributes"] = attributes
    return jinja.from_string("".join(map(str.strip, source.splitlines()))).module


# --- ids -------------------------------------------------------------------------------------------------------------


def _children_ids(section: doc.Section, id: str) -> Iterator[tuple[doc.Section, str]]:
    """Yield the sections in ``section``, whose element is ``id``, each with the id of its element."""
    return ((child, anchor(id, child.id, str(i))) for i, child in enumerate(section.sections))


def _all_ids(sections: Iterable[tuple[doc.Section, str]]) -> Iterator[tuple[doc.Section, str]]:
    """Yield the sections and those inside them, each with the id of its element."""
    for section, id in sections:
        yield section, id
        yield from _all_ids(_children_ids(section, id))


def _section_ids(sections: Sequence[doc.Section]) -> Iterator[tuple[doc.Section, str]]:
    """Yield each section that holds something with the id of its element, which no other section has."""
    seen: dict[str, int] = {}
    for section in sections:
        if section:
            id = anchor(section.workload, section.id)
            seen[id] = number = seen.get(id, 0) + 1
            yield section, id if number == 1 else f"{id}-{number}"


# --- the values of a chart -------------------------------------------------------------------------------------------


def value_table(chart: doc.Chart) -> doc.TableBlock:
    """Return the values of a chart: a row per position of the x axis, a column per series.

    A strip of many points, and areas over many, have a row per series.
    """
    if chart.kind in (doc.ChartKind.STRIP, doc.ChartKind.AREAS) and len(chart.marks) > _MOST_LISTED:
        return _ends(chart)
    names = list(dict.fromkeys(series.name for series in chart.series))
    columns = [doc.label("panel", "")] if len(chart.panels) > 1 else []
    columns.append(doc.label("x", chart.x.title or ""))
    unit = unit_on(chart.y, [mark.y for mark in chart.marks])
    columns += [doc.number(f"series {i}", name or "everything else", unit) for i, name in enumerate(names)]
    rows = []
    for title, panel in chart.panels.items():
        values = {(series.name, mark.x): mark for series in panel for mark in series.marks}
        for x in sorted({x for _, x in values}):
            marks = [values.get((name, x)) for name in names]
            cells = [doc.TableCell(mark.y, flags=mark.flags) if mark else doc.TableCell() for mark in marks]
            labels = [doc.TableCell(text=title)] if len(chart.panels) > 1 else []
            rows.append((*labels, doc.TableCell(text=_label(chart, x)), *cells))
    return doc.TableBlock("values", tuple(columns), tuple(rows))


def _ends(chart: doc.Chart) -> doc.TableBlock:
    """Return the number of points of each series that are drawn, and the least and the largest of them.

    Quantiles of the points that are drawn are not those of all values, of which a strip may leave out some.
    """
    unit = unit_on(chart.y, [mark.y for mark in chart.marks])
    columns: doc.Columns[doc.Series] = [
        (doc.label("series", ""), lambda series: series.name),
        (doc.count("points"), lambda series: len(series.marks)),
        (doc.number("least", "least", unit), lambda series: min(mark.y for mark in series.marks)),
        (doc.number("largest", "largest", unit), lambda series: max(mark.y for mark in series.marks)),
    ]
    return doc.table_of("values", chart.series, columns)


def _label(chart: doc.Chart, x: float) -> doc.Text:
    if not chart.x.labels:
        return place(x, chart.x)
    text, case = chart.x.labels[int(x)], chart.x.cases[int(x)] if chart.x.cases else ""
    return doc.case_link(text, case) if case else text


# --- the timeline ----------------------------------------------------------------------------------------------------


def _json(timeline: doc.TimelineChart) -> Markup:
    """Return the lanes for timeline.js: names and keys once, boxes as numbers in ns."""
    names = list(dict.fromkeys(box.name for *_, lane in timeline.lanes for box in lane.events))
    keys = list(timeline.labels)
    name_at, key_at = ({text: i for i, text in enumerate(texts)} for texts in (names, keys))
    lanes = [
        {
            "title": flat(title),
            "group": flat(group),
            "kind": lane.kind.value,
            "boxes": [_box(box, name_at[box.name], key_at[box.key]) for box in lane.events],
        }
        for group, title, lane in timeline.lanes
    ]
    document = {
        "duration": round(timeline.duration_ns),
        "names": [cut(flat(name), _MOST_IN_TIMELINE) for name in names],
        "keys": list(map(flat, keys)),
        "numbered": [[lane, round(start)] for lane, start in timeline.numbered],
        "labels": list(map(flat, timeline.labels.values())),
        "classes": list(map(key_class, keys)),
        "lanes": lanes,
    }
    # No text may end the element of the script.
    return Markup(json.dumps(document, separators=(",", ":")).replace("<", "\\u003c"))


def _box(box: Event, name: int, key: int) -> list[Any]:
    """Return the numbers of a box, as timeline.js names them; without those at the end that are unknown."""
    more = [box.count, box.busy_ns if box.count > 1 else None, box.launched_ns, box.bytes]
    while more and more[-1] is None:
        more.pop()
    numbers = [round(box.start_ns), round(box.duration_ns), name, key, *(more if more != [1] else [])]
    return [None if value is None else round(value) for value in numbers]


def _lane_table(timeline: doc.TimelineChart) -> doc.TableBlock:
    """Return the operations and the time of each lane by key."""
    rows = [
        (group, title, timeline.labels[key], float(count), ns)
        for group, title, lane in timeline.lanes
        for key, (count, ns) in lane.totals.items()
    ]
    columns = [doc.label("group", "GPU"), doc.label("lane"), doc.label("class"), doc.count("operations"),
               doc.number("ns", "time", time_unit(row[-1] for row in rows))]  # fmt: skip
    return doc.make_table("lanes", columns, rows)
