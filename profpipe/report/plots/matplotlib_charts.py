"""Draw the charts of a document as PNG files: lines by matplotlib, bars by Pillow.

matplotlib is imported when lines are drawn: importing it takes longer than the rest of a report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from profpipe.report.document import Chart, ChartKind, Document, Placement
from profpipe.report.html.markup import cut, flat
from profpipe.report.markdown import plot_path

#: Characters of a text in a picture: a name of thousands would make it metres wide.
_LONGEST = 100


def draw_charts(document: Document, folder: Path) -> None:
    """Draw the charts of SUMMARY.md and details.md into ``folder``/plots."""
    for section in document.without(Placement.HTML).sections:
        for block in section.walk():
            if isinstance(block, Chart):
                draw(block, folder / plot_path(block))


def draw(chart: Chart, path: Path) -> None:
    from profpipe.report.plots import bars, lines, style

    chart = _with_short_texts(chart)
    is_bars = chart.kind is ChartKind.STACKED_BARS
    style.save(bars.picture(chart) if is_bars else style.rasterise(lines.figure(chart)), path)


def _with_short_texts(chart: Chart) -> Chart:
    """Return the chart with its texts in one line each, without control characters and at most ``_LONGEST`` long."""
    names = _short_names(series.name for series in chart.series)
    labels = _short_names(chart.x.labels)
    panels = tuple(
        replace(panel, title=_short(panel.title),
                series=tuple(replace(series, name=names[series.name]) for series in panel.series))
        for panel in chart.panels
    )  # fmt: skip
    return replace(
        chart,
        title=_short(chart.title),
        subtitle=_short(chart.subtitle, 2 * _LONGEST),
        x=replace(chart.x, title=_short(chart.x.title), labels=tuple(labels[label] for label in chart.x.labels)),
        y=replace(chart.y, title=_short(chart.y.title)),
        panels=panels,
        references=tuple(replace(each, name=_short(each.name)) for each in chart.references),
    )


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short text for each name; two names never share one."""
    short: dict[str, str] = {}
    for name in dict.fromkeys(names):
        own = _short(name)
        same = sum(text.partition(" (")[0] == own for text in short.values()) if len(own) == _LONGEST else 0
        short[name] = f"{own} ({same + 1})" if same else own
    return short


def _short(text: str, most: int = _LONGEST) -> str:
    return cut(flat(text), most)
