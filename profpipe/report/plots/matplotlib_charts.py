"""Draw the charts of a document as PNG files.

matplotlib is imported when a chart is drawn: importing it takes longer than the rest of a report.
"""

from __future__ import annotations

from pathlib import Path

from profpipe.report.document import Chart, ChartKind, Document, Placement
from profpipe.report.markdown import plot_path


def draw_charts(document: Document, folder: Path) -> None:
    """Draw the charts of SUMMARY.md and details.md into ``folder``/plots."""
    for section in document.without(Placement.HTML).sections:
        for block in section.walk():
            if isinstance(block, Chart):
                draw(block, folder / plot_path(block))


def draw(chart: Chart, path: Path) -> None:
    from profpipe.report.plots import bars, lines, style

    figure = (bars if chart.kind is ChartKind.STACKED_BARS else lines).figure(chart)
    style.save(figure, path)
