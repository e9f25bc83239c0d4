"""Draw the charts of a document as PNG files.

matplotlib is imported when a chart is drawn: importing it takes longer than the rest of a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from profpipe.report.document import Block, Chart, ChartKind, Details, Document, Section
from profpipe.report.markdown import plot_path


def draw_charts(document: Document, folder: Path) -> None:
    """Draw every chart of ``document`` into ``folder``/plots."""
    for chart in charts(document.sections):
        draw(chart, folder / plot_path(chart))


def draw(chart: Chart, path: Path) -> None:
    from profpipe.report.plots import bars, lines, style

    figure = (bars if chart.kind is ChartKind.STACKED_BARS else lines).figure(chart)
    style.save(figure, path)


def charts(sections: Iterable[Section]) -> Iterator[Chart]:
    """Yield the charts of sections, those of subsections included."""
    for section in sections:
        yield from _charts(section.blocks)
        yield from charts(section.sections)


def _charts(blocks: Iterable[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Chart):
            yield block
        elif isinstance(block, Details):
            yield from _charts(block.blocks)
