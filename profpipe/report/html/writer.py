"""Write the document's values as HTML: text, blocks, sections."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.html import charts, tables, timeline
from profpipe.report.markdown import DETAILS, SUMMARY
from profpipe.report.markup import anchor, cut, element, flat, join, short
from profpipe.report.svg.tips import value_table
from profpipe.stdio import visible

#: Characters of a name, whose title has the whole name.
_MOST_CHARACTERS = 90

#: Characters of text that is no name, such as the end of a log or a reason.
_MOST_TEXT = 4_000

#: The files that have all rows of a section's tables; those of others are in metrics.
_FILES = {"kernels": "kernels", "every_step": "steps", "step_outliers": "steps", "phases": "ranges", "cases": "cases"}


#: The level of the headings of sections.
_TOP = 2

#: Sections that the style sheet shows in their own way.
_STYLED = ("headline", "warnings")


@dataclass(frozen=True)
class Html:
    """Writes a document's values as HTML.

    ``anchors`` has the id of the element of each section, by workload and section. ``cases`` has those of the pages of
    cases, by workload and case, and ``contents`` the short ones of what is inside. ``exists`` says whether a file of
    the run's folder is there.
    """

    anchors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cases: Mapping[tuple[str, str], str] = field(default_factory=dict)
    contents: Mapping[tuple[str, str], str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    exists: Callable[[str], bool] = lambda path: False
    names_workloads: bool = False
    workload: str = ""
    #: The element that contains what is written: ids inside begin with its own.
    place: str = ""
    section_id: str = ""
    #: How often each id was given.
    given: dict[str, int] = field(default_factory=dict)

    # --- inlines -----------------------------------------------------------------------------------------------------

    def text(self, text: doc.Text) -> Markup:
        return join(map(self._inline, doc.inlines(text)))

    def _inline(self, inline: doc.Inline) -> Markup:
        match inline:
            case doc.Code():
                return code(inline.text)
            case doc.Strong():
                return element("strong", self.text(inline.content))
            case doc.Link():
                content, target = self.text(inline.content), self._target(inline)
                rel = "noreferrer" if "://" in target else None
                return element("a", content, href=target, rel=rel) if target else content
            case doc.Number():
                return Markup.escape(inline.unit.with_name(inline.value))
            case _:
                return short(inline, _MOST_TEXT)

    def _target(self, link: doc.Link) -> str:
        """Return the address of a link; empty where there is nothing to link to."""
        if link.case is not None:
            id = self._case_id(link.case)
            return f"#{id}" if id else ""
        target = link.target
        if target.startswith(("https://", "http://")):
            return target
        path, _, id = target.partition("#")
        if path in ("", SUMMARY, DETAILS):
            found = self.anchors.get((self.workload, id)) or self.anchors.get(("", id))
            return f"#{found}" if found else ""
        return path if ":" not in path and self.exists(path) else ""

    # --- blocks ------------------------------------------------------------------------------------------------------

    def block(self, block: doc.Block) -> Markup:
        match block:
            case doc.Paragraph():
                return element("p", self.text(block.content))
            case doc.Bullets():
                return element("ul", *(element("li", self.text(item)) for item in block.items))
            case doc.CodeBlock():
                text = "\n".join(map(visible, block.text.splitlines()))
                return element("pre", element("code", text), tabindex="0", class_="block")
            case doc.Table():
                return self.table(block)
            case doc.Chart():
                id = self.id_of("chart", block.id)
                values = replace(self, place=id).table(value_table(block), is_sortable=False)
                return charts.figure(block, id, self.text(block.caption), values, self._content_id)
            case doc.Details():
                inner = element("div", *map(self.block, block.blocks))
                return element("details", element("summary", self.without_links().text(block.summary)), inner)
            case doc.Choice():
                return self._choice(block)
            case doc.Timeline():
                id = self.id_of("timeline", block.id)
                lanes = replace(self, place=id).table(timeline.lane_table(block))
                texts = self.text(block.title), self.text(block.caption)
                return timeline.figure(block, id, *texts, lanes, self._case_id(block.case))

    def table(self, table: doc.Table, is_sortable: bool = True) -> Markup:
        id, name = self.id_of("table", table.id), _FILES.get(self.section_id, "metrics")
        ending = "csv" if self.exists(f"{name}.csv") else "parquet"
        writers = self.text, self.without_links().text
        return tables.table(table, id, writers, self.flags, f"{name}.{ending}", is_sortable)

    def without_links(self) -> Html:
        """Return a writer for text inside a button or a summary, which may hold no link."""
        return replace(self, anchors={}, cases={}, exists=lambda path: False)

    def _case_id(self, case: str) -> str:
        """Return the id of the element of a case of this workload; empty where the case has no page."""
        return self.cases.get((self.workload, case), "") if case else ""

    def id_of(self, *names: str) -> str:
        """Return the id of an element of this place, which no other element has."""
        id = anchor(self.place, *names)
        self.given[id] = number = self.given.get(id, 0) + 1
        return id if number == 1 else f"{id}.{number}"

    def _choice(self, choice: doc.Choice) -> Markup:
        id = self.id_of("choice", choice.id)
        controls = []
        for i, dimension in enumerate(choice.dimensions):
            values = dict.fromkeys(answers[i] for answers in choice.options)
            options = [element("option", cut(flat(value), 60), value=value) for value in values]
            # A dimension with one value is no choice.
            if len(values) > 1:
                select = element("select", *options, data_dimension=i)
                controls.append(element("label", cut(flat(dimension), 60), " ", select))
        views = [
            element("div", *map(self.block, blocks), class_="option", data_values=json.dumps(answers))
            for answers, blocks in choice.options.items()
        ]
        title = element("h3", self.text(choice.title)) if choice.title else ""
        return element(
            "div", title, element("div", *controls, class_="controls", hidden=True), *views, class_="choice", id=id
        )

    def _content_id(self, case: str) -> str:
        """Return the short id, which is inside the page of a case: a chart has many of them."""
        return self.contents.get((self.workload, case), "") if case else ""

    # --- sections ----------------------------------------------------------------------------------------------------

    def heading(self, section: doc.Section) -> Markup:
        named = section.workload and self.names_workloads
        return join([self.text(section.title), f": {cut(flat(section.workload), 60)}" if named else ""])

    def section(self, section: doc.Section, id: str, level: int = _TOP) -> Markup:
        """Return the section with its heading; empty where the section holds nothing."""
        if not section:
            return Markup("")
        own = replace(self, workload=section.workload or self.workload, place=id, section_id=section.id)
        title_id = f"{id}-title" if section.title and level == _TOP else None
        title = element(f"h{min(level, 6)}", self.heading(section), id=title_id) if section.title else ""
        summary = element("p", own.text(section.summary), class_="summary") if section.summary else ""
        inner = replace(own, names_workloads=False)
        children = [inner.section(child, child_id, level + 1) for child, child_id in children_ids(section, id)]
        return element(
            "section", title, summary, *map(own.block, section.blocks), *children,
            id=id, class_=" ".join(("section", *(id for id in _STYLED if id == section.id))),
            data_workload=flat(section.workload) or None if level == _TOP else None,
            aria_labelledby=title_id,
        )  # fmt: skip


def code(text: str) -> Markup:
    """Return a name; a long one is cut, and its title has the whole name."""
    own = flat(text)
    is_long = len(own) > _MOST_CHARACTERS
    return element("code", cut(own, _MOST_CHARACTERS), title=own if is_long else None)


def children_ids(section: doc.Section, id: str) -> Iterator[tuple[doc.Section, str]]:
    """Yield the sections in ``section``, whose element is ``id``, each with the id of its element."""
    return ((child, anchor(id, child.id, str(i))) for i, child in enumerate(section.sections))


def all_ids(sections: Iterable[tuple[doc.Section, str]]) -> Iterator[tuple[doc.Section, str]]:
    """Yield the sections and those inside them, each with the id of its element."""
    for section, id in sections:
        yield section, id
        yield from all_ids(children_ids(section, id))


def section_ids(sections: Sequence[doc.Section]) -> Iterator[tuple[doc.Section, str]]:
    """Yield each section that holds something with the id of its element, which no other section has."""
    seen: dict[str, int] = {}
    for section in sections:
        if section:
            id = anchor(section.workload, section.id)
            seen[id] = number = seen.get(id, 0) + 1
            yield section, id if number == 1 else f"{id}-{number}"
