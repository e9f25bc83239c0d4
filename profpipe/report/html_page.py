"""Write report.html: one file with its style and its scripts, and no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.charts import STYLE
from profpipe.report.html import Html, all_ids, section_ids
from profpipe.report.markup import anchor, flat, short
from profpipe.report.pages import fill_template
from profpipe.report.text import write_text
from profpipe.results import atomic

#: The name of the page.
REPORT = "report.html"

#: The files that make the page.
_TEMPLATE, _STYLES, _SCRIPTS = "report.html.j2", (STYLE, "report.css"), ("report.js", "timeline.js")
FILES = (_TEMPLATE, *_STYLES, *_SCRIPTS)

#: Sections that stand first, whatever their place in the document.
_FIRST = ("overview", "warnings")


def write(document: doc.Document, folder: Path, files: Mapping[str, Path], name: str = REPORT) -> None:
    """Write the page ``name`` into ``folder``, whole or not at all. ``files`` are those of ``FILES`` by name."""
    atomic.write_text(folder / name, render(document, files, lambda path: (folder / path).exists()))


def render(
    document: doc.Document, files: Mapping[str, Path], exists: Callable[[str], bool] = lambda path: False
) -> str:
    """Return the page. Raise ProfpipeError where a template of the user is wrong or out of date."""
    sections = list(section_ids(_ordered(document)))
    anchors = {(section.workload, section.id): id for section, id in reversed(list(all_ids(sections)))}
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

    def entry(writer: Html, section: doc.Section, id: str, content_id: str) -> dict[str, str]:
        names = {"id": id, "workload": flat(section.workload), "title": flat(write_text(section.title))}
        return {**names, "content": writer.section(section, content_id)}

    entries = [entry(html, section, id, id) for section, id in sections]
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


def _ordered(document: doc.Document) -> list[doc.Section]:
    """Return the sections with the answer and the warnings first."""
    # The charts of the plots are among those to choose from.
    chosen = {section.workload for section in document.sections if section.id == "explorer"}
    sections = [s for s in document.sections if not (s.id == "plots" and s.workload in chosen)]
    lone = () if any(section.id == "overview" for section in document.sections) else ("headline",)
    ranks = {id: i for i, id in enumerate((*lone, *_FIRST))}
    return sorted(sections, key=lambda section: ranks.get(section.id, len(ranks)))


def policy(style: str, script: str) -> str:
    """Return the content security policy: this style and this script, and no request."""
    words = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src {}; script-src {}"
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    return words.format(*(f"'sha256-{own}'" for own in hashes))


def _joined(paths: Iterable[Path]) -> str:
    """Return the files one after the other. No text in them may end the element that holds them."""
    return "\n".join(path.read_text(encoding="utf-8") for path in paths).replace("\r", "").replace("</", "<\\/")
