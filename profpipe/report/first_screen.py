"""Choose what the terminal shows of a document, and build the document of a recording whose report is not written.

The order is that of a reader's questions: what is the answer, where does the time go, in which kernels or cases, and
what makes a number doubtful.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from profpipe.analysis.findings import Findings
from profpipe.report import document as doc
from profpipe.report.screen import Screen
from profpipe.report.sections import headline, kernels, steps, times, warnings
from profpipe.report.text import write_cells, write_text
from profpipe.report.units import NO_UNIT
from profpipe.results.manifest import Manifest

#: Rows of a table, and characters of a name in a sentence.
_ROWS, _LONGEST = 10, 160
#: Columns that leave a table only where the terminal is too narrow for them: the last ones stay the longest.
#: What ncu counted says more than the launches, and the time of a kernel more than its share.
_IMPORTANT = ("memory", "interval", "calls", "b", "a", "share", "occupancy %", "tensor %", "SM %", "memory %", "flags",
              "speedup", "part", "time", "ns", "verdict")  # fmt: skip


def show_recordings(findings: Findings, run: Manifest) -> Screen:
    """Return the first screen of ingested files from those sections alone that it shows."""
    sections = [
        section
        for workload in findings.workloads
        for section in (
            headline.headline(workload),
            steps.steps(workload),
            times.times(workload),
            kernels.kernels(workload),
        )
    ]
    answers = headline.answers(findings.workloads)
    return show_document(doc.Document("", tuple(filter(None, (answers, *sections, warnings.warnings(findings, run))))))


def show_document(document: doc.Document) -> Screen:
    """Return the answers, the bars of a step, the table of times or of the kernels, tables asked for, and warnings.

    Of several workloads only the answers are shown.
    """
    return [part for part in _parts(document.without(doc.OnPage.HTML)) if part[-1]]


def _parts(document: doc.Document) -> Iterator[list[Any]]:
    answers = document.section("answers")
    bars = [] if answers else _bars(document)
    for answer in [answers] if answers else [section for section in document.sections if section.id == "headline"][:1]:
        blocks = [block for block in answer.blocks if isinstance(block, doc.Bullets)]
        yield from show_section(answer, without=tuple(item for block in blocks for item in block.drawn) if bars else ())
    for section in document.sections:
        if section.id == "first_studies":
            yield from map(_cut, show_section(section))
    yield from map(_write_bars, bars[:1])
    for id in () if answers else ("changes", "times", "verdicts", "kernels"):
        all_blocks = [block for section in document.sections if section.id == id for block in section.walk()]
        summary_blocks = [block for block in all_blocks if block.placement is doc.OnPage.SUMMARY]
        if tables := [block for block in summary_blocks if isinstance(block, doc.TableBlock)]:
            yield _cut(_write_table(tables[0]))
            # What the flags of the table mean.
            yield from (_write_items("", block.items) for block in summary_blocks if isinstance(block, doc.Bullets))
            break
    for id in ("flags", "warnings"):
        if closing := document.section(id):
            yield from show_section(closing)


def _bars(document: doc.Document) -> list[doc.Chart]:
    charts = [block for section in document.sections for block in section.walk() if isinstance(block, doc.Chart)]
    return [chart for chart in charts if chart.kind is doc.ChartKind.STACKED_BARS and chart.id.endswith("-step")]


def show_section(section: doc.Section, without: tuple[doc.Text, ...] = (), has_bars: bool = False) -> Screen:
    """Return the sentences and tables of a section, and its bars; not the sentences ``without``, which a bar shows."""
    title, parts = write_text(section.title), list[list[Any]]()
    if section.summary:
        parts.append(["text", write_text(section.summary, _LONGEST)])
    for block in section.blocks:
        match block:
            case doc.Paragraph():
                parts.append(["text", write_text(block.content, _LONGEST)])
            case doc.Bullets():
                parts.append(_write_items(title, [item for item in block.items if item not in without]))
            case doc.CodeBlock():
                parts.append(_write_items("", block.text.splitlines()))
            case doc.TableBlock():
                parts.append(_write_table(block))
            case doc.Chart(kind=doc.ChartKind.STACKED_BARS) if has_bars:
                parts.append(_write_bars(block))
    for child in section.sections:
        parts += show_section(child, has_bars=has_bars)
    return parts


def _write_items(title: str, items: Iterable[doc.Text]) -> list[Any]:
    return ["items", f"{title}:" if title else "", [write_text(item, _LONGEST) for item in items]]


def _cut(part: list[Any]) -> list[Any]:
    """Return a table with its first rows, and the number of the others."""
    if part[0] != "table":
        return part
    *about, more, rows = part
    return [*about, more + len(rows[_ROWS:]), rows[:_ROWS]]


def _write_table(table: doc.TableBlock) -> list[Any]:
    head, rows = write_cells(table)
    columns = [
        [title, column.is_numeric, _importance(column)] for title, column in zip(head, table.columns, strict=True)
    ]
    return ["table", write_text(table.title), columns, 0, rows]


def _importance(column: doc.TableColumn) -> int:
    """Return the rank of a column. Labels say what a row is and stay the longest; a kernel's name says its class."""
    if column.is_label and column.id != "class":
        return len(_IMPORTANT) + 1
    return 1 + _IMPORTANT.index(column.id) if column.id in _IMPORTANT else 0


def _write_bars(chart: doc.Chart) -> list[Any]:
    """Return the bars as shares of the longest one, with their times."""
    unit, labels = chart.y.unit or NO_UNIT, chart.x.labels
    totals = [
        sum(mark.y for series in chart.series for mark in series.marks if mark.x == i) for i in range(len(labels))
    ]
    most = max(totals, default=0.0) or 1.0
    bars = [
        [labels[i] if len(labels) > 1 else "", unit.with_name(totals[i]) if len(labels) > 1 else "",
         [[series.key, series.name, mark.y / most] for series in chart.series for mark in series.marks if mark.x == i]]
        for i in range(min(len(labels), _ROWS))
    ]  # fmt: skip
    return ["bars", f"{chart.title}:", max(len(labels) - _ROWS, 0), bars]
