"""Divide a document into SUMMARY.md and details.md, keep SUMMARY.md short, and write both.

Every block stands on one of the two pages. What does not fit on SUMMARY.md moves to details.md, the least important
sections first; a table that is too long leaves its first rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from profpipe.errors import ProfpipeError, one_line
from profpipe.report import charts, document as doc
from profpipe.report.document import DETAILS, SUMMARY, Section
from profpipe.report.labels import plural
from profpipe.report.markdown import Markdown, anchors
from profpipe.results import atomic

#: The longest SUMMARY.md, in lines.
MOST_LINES = 150

#: Sections by importance, which is not the order on the page. Others follow in the order of the document.
IMPORTANCE = (
    "answers", "recordings", "headline", "targets", "commands", "times", "flags", "warnings", "failures", "unfinished",
    "first_studies", "failed_captures", "studies", "study_plots", "skipped", "requests", "steps", "waits", "recording",
    "step_costs", "step_ranks", "step_outliers", "step_times", "classification", "kernel_share", "switch_cost",
    "limits", "accuracy", "plots", "agreement", "cases", "phases", "kernels", "memory", "ranks",
)  # fmt: skip

#: Sections whose sentences are a finding: these stay on SUMMARY.md where their tables move.
FINDINGS = ("accuracy", "agreement", "classification")

#: The rows of a table where the page is too short for all: tried in this order until every block finds room.
_ROWS = (None, 24, 12)

#: A table that leaves fewer rows than these moves as a whole.
_LEAST_ROWS = 3

#: The lines of the title and of the links to details.md.
_FRAME = 4

_PLOT = re.compile(r"!\[[^\]]*\]\((plots/[\w.-]+)\)")


# --- dividing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Divided:
    """A section's parts for the two pages, the lines of the first, and whether a block found no room there."""

    kept: Section
    moved: Section
    lines: int
    overflows: bool


def paginate(document: doc.Document, most_lines: int = MOST_LINES) -> tuple[doc.Document, doc.Document]:
    """Return SUMMARY.md with at most ``most_lines`` lines, and details.md with everything else.

    SUMMARY.md ends with the titles of the sections in details.md. Blocks for report.html alone are on neither page.
    """
    document = document.without(doc.OnPage.HTML)
    for most_rows in _ROWS:
        divided = _divide_all(document.sections, most_lines - _FRAME, most_rows)
        if not any(part.overflows for part in divided):
            break
    summary = tuple(part.kept for part in divided if part.kept)
    details = tuple(part.moved for part in divided if part.moved)
    if details:
        # One line with the titles of the sections of details.md.
        titles = {section.id: section for section in reversed(details) if section.title}
        links = doc.join(doc.Link(titles[id].title, f"{DETAILS}#{id}") for id in reversed(titles))
        more = doc.concat("More in ", doc.Link(DETAILS, DETAILS), ": ", links, ".")
        summary = (*summary, Section("details", "", summary=more))
    return replace(document, sections=summary), replace(document, sections=details)


def _divide_all(sections: Sequence[Section], room: int, most_rows: int | None) -> list[_Divided]:
    """Divide the sections, which take their lines in the order of their importance."""
    rank = {id: i for i, id in enumerate(IMPORTANCE)}
    if any(section.id == "answers" for section in sections):
        # The answers have the best time of each workload: the requested tables come before the others.
        rank["times"] = rank["study_plots"]
    divided: dict[int, _Divided] = {}
    for i in sorted(range(len(sections)), key=lambda i: (rank.get(sections[i].id, len(rank)), i)):
        divided[i] = _divide(sections[i], room, most_rows)
        room -= divided[i].lines
    return [divided[i] for i in range(len(sections))]


def _divide(section: Section, room: int, most_rows: int | None) -> _Divided:
    """Keep blocks of ``section`` while there is room; after the first that does not fit, all others move."""
    head = 2 * bool(section.title) + 2 * bool(section.summary)
    kept: list[doc.Block] = []
    moved: list[doc.Block] = []
    used, overflows = head, False
    views = (block.views() if isinstance(block, doc.ViewChoice) else (block,) for block in section.blocks)
    for block in itertools.chain.from_iterable(views):
        if isinstance(block, doc.TableBlock) and not block.rows:
            continue
        if overflows or block.placement is doc.OnPage.DETAILS or isinstance(block, doc.Details):
            moved.append(block)
            continue
        first, rest = _cut(block, room - used, most_rows, section.id)
        kept += first
        moved += rest
        used += sum(map(_lines, first))
        overflows = not first
    parts: list[_Divided] = []
    for child in section.sections:
        parts.append(_divide(child, 0 if overflows else room - used, most_rows))
        used += parts[-1].lines
        overflows = overflows or parts[-1].overflows
    short = tuple(part.kept for part in parts if part.kept)
    is_of_table = any(isinstance(block, doc.TableBlock) for block in moved)
    if (
        is_of_table
        and not short
        and section.id not in FINDINGS
        and all(isinstance(block, doc.Paragraph) for block in kept)
    ):
        # What explains a table stands beside it.
        kept, moved, used = [], [*kept, *moved], head
    long = tuple(part.moved for part in parts if part.moved)
    is_alone = section.id in FINDINGS or not (moved or long)
    is_kept = bool(kept or short) or (bool(section.summary) and is_alone and head <= room)
    id, title, workload = section.id, section.title, section.workload
    return _Divided(
        kept=Section(id, title, tuple(kept), section.summary, workload, short)
        if is_kept
        else Section(id, title, workload=workload),
        moved=Section(id, title, tuple(moved), "" if is_kept else section.summary, workload, long),
        lines=used if is_kept else 0,
        overflows=overflows or (bool(section) and not is_kept and head > room),
    )


def _lines(block: doc.Block) -> int:
    """Return the lines of ``block`` on the page, the blank line after it included."""
    if isinstance(block, doc.TableBlock):
        return len(block.rows) + 3 + 2 * (bool(block.title) + bool(block.flag_letters())) if block.rows else 0
    text = Markdown().block(block)
    return text.count("\n") + 2 if text else 0


def _cut(block: doc.Block, room: int, most_rows: int | None, id: str) -> tuple[list[doc.Block], list[doc.Block]]:
    """Return the blocks that stay and those that move."""
    most = most_rows or room
    if isinstance(block, doc.TableBlock) and block.is_divisible and (len(block.rows) > most or _lines(block) > room):
        fitting = min(most, room - (_lines(block) - len(block.rows)) - 2)
        if fitting < _LEAST_ROWS:
            return [], [block]
        more = doc.Paragraph(_more(len(block.rows) - fitting, "row", id))
        return [replace(block, rows=block.rows[:fitting]), more], [replace(block, rows=block.rows[fitting:])]
    if isinstance(block, doc.Bullets) and room >= 3:
        fitting = min(room - 2, most)
        if len(block.items) > fitting + 1:
            more_items = _more(len(block.items) - fitting, "item", id)
            parts = (*block.items[:fitting], more_items), block.items[fitting:]
            first, rest = (doc.Bullets(items, block.placement, block.drawn) for items in parts)
            return [first], [rest]
    return ([block], []) if _lines(block) <= room else ([], [block])


def _more(number: int, noun: str, id: str) -> doc.Text:
    return f"{plural(number, f'more {noun}')}: ", doc.Link(DETAILS, f"{DETAILS}#{id}")


# --- writing ---------------------------------------------------------------------------------------------------------


def write(document: doc.Document, folder: Path, template: Path) -> None:
    """Write SUMMARY.md, details.md and the plots, each file whole or not at all.

    Raise ProfpipeError where a template of the user is wrong or out of date.
    """
    pages = dict(zip((SUMMARY, DETAILS), paginate(document), strict=True))
    has_names = len(document.workloads) > 1
    linked = anchors(pages, has_names)
    texts = {
        name: _fill(template, page, Markdown(name, linked, lambda path: (folder / path).exists(), has_names))
        for name, page in pages.items()
        if page.sections or name == SUMMARY
    }
    # A user may have edited the pages.
    shown = [folder / name for name in pages if (folder / name).is_file()]
    former = {plot for page in shown for plot in _PLOT.findall(atomic.read_regular(page).decode(errors="replace"))}
    charts.write_files(document, folder)
    if DETAILS not in texts:
        atomic.remove(folder / DETAILS)
    for name in sorted(texts, reverse=True):
        atomic.write_text(folder / name, texts[name])
    # Other pictures in the folder belong to the user.
    for plot in former - set(_PLOT.findall("".join(texts.values()))):
        atomic.remove(folder / plot)


def _fill(template: Path, document: doc.Document, writer: Markdown) -> str:
    """Return the page that ``template`` makes of the document, with one blank line between blocks."""
    values = {"document": document, "page": writer.page}
    text = fill_template(
        template, values, markdown=lambda v: writer.section(v) if isinstance(v, Section) else writer.text(v)
    )
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


def fill_template(
    template: Path, values: Mapping[str, object], autoescape: bool = False, **filters: Callable[[Any], str]
) -> str:
    """Return the text that ``template`` makes of ``values``.

    Raises ProfpipeError where a template of the user is wrong or out of date.
    """
    # A template may come from somebody else: in the sandbox it reads the values and reaches nothing else.
    jinja = jinja2.sandbox.SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    jinja.filters.update(filters)
    try:
        return jinja.get_template(template.name).render(values)
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        remedy = "Compare it with the template of this version of profpipe; the tables are written."
        raise ProfpipeError(f"{template}{line}: {error.message}. {remedy}") from error
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:  # of an expression in it
        raise ProfpipeError(f"{template}: {one_line(error)}. Correct the template; the tables are written.") from error
