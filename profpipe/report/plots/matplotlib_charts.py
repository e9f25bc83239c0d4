"""Draw the charts of a document as PNG files: lines by matplotlib, bars by Pillow.

matplotlib is imported when lines are drawn: importing it takes longer than the rest of a report.
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

    is_bars = chart.kind is ChartKind.STACKED_BARS
    style.save(bars.picture(chart) if is_bars else style.rasterise(lines.figure(chart)), path)
