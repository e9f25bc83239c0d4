"""Stacked bars: a bar for each label of the chart's x axis, a colour for each series.

Pillow draws them: matplotlib would take longer to import than `profpipe ingest` takes to write the rest of its report.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe.report.document import Chart, Series
from profpipe.report.html.markup import flat
from profpipe.report.html.scales import Scale
from profpipe.report.plots.style import DPI, FAINT, GREY, INK
from profpipe.report.units import Unit, number

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

#: Colours by the key of a series: attention stands out, and the kernels that it needs around it are warm.
_COLOURS = {
    "attention": "#0072B2", "helpers": "#56B4E9", "direct_copy": "#D55E00", "add": "#E69F00", "gemm": "#009E73",
    "softmax": "#CC79A7", "copy": "#EDB08F", "elementwise": "#9C8FBF", "reduction": "#7FA3B5", "norm": "#B99B7A",
    "optimizer": "#A3AC6B", "conv": "#86C5AF", "sparse": "#6E9E3F", "communication": "#5B5F8A", "fused": "#D9C277",
    "graph": "#7F858C",
    # Parts of a step in which nothing computes. Idle time is pale.
    "step_communication": "#5B5F8A", "step_copy": "#8A5A44", "step_idle_launch": "#F3C1BC",
    "step_idle_blocked": "#F5DFAE", "step_idle_other": "#E3E5E8",
}  # fmt: skip
_OTHER, _EDGE = "#B4B8BD", "#9AA0A6"
#: The share of its colour that a bar with its own scale keeps.
_PALE = 0.55

#: Inches: the width of the picture; in the legend a letter, the space around a name, and the height of a row.
_WIDTH, _LETTER, _AROUND, _ROW = 7.6, 0.075, 0.42, 0.2
#: Inches: from one bar to the next, the height of a bar, and the room below the bars and at the right of them.
_APART, _BAR, _BELOW, _RIGHT = 0.34, 0.224, 0.5, 0.23


def picture(chart: Chart) -> Image.Image:
    """Return the picture of a chart with one panel. A bar that dwarfs the others has its own scale.

    A series without a name is part of the bars and not of the legend.
    """
    from PIL import Image, ImageDraw

    series = chart.panels[0].series
    names = [flat(name) for name in chart.x.labels]
    left = min(0.35 * _WIDTH, 0.078 * max(map(len, names)) + 0.15)
    named = [each for each in series if each.name]
    columns = legend_columns([each.name for each in named], _WIDTH - left)
    top = 0.85 + _ROW * (-(-len(named) // columns) - 1)
    bottom = top + _APART * len(names) + 0.1
    image = Image.new("RGB", (_pixels(_WIDTH), _pixels(bottom + _BELOW)), "white")
    draw = ImageDraw.Draw(image)
    draw.text((_pixels(0.15), _pixels(0.1)), flat(chart.title), INK, _font(11, "-Bold"))
    draw.text((_pixels(0.15), _pixels(0.31)), flat(chart.subtitle), GREY, _font(8.5))
    _draw_legend(draw, named, columns, (left, 0.55))
    limit = common_limit(bar_totals(chart))
    x = Scale(0.0, 1.25 * limit, _pixels(left), _pixels(_WIDTH - _RIGHT))
    _draw_axis(draw, chart, x, (_pixels(top), _pixels(bottom)))
    for row, (total, name, label) in enumerate(zip(bar_totals(chart), names, bar_labels(chart), strict=True)):
        middle = _pixels(top + 0.05 + _APART * (row + 0.5))
        scale = x if fits(total, limit) else Scale(0.0, 1.25 * total, x.start, x.end)
        _draw_bar(draw, series, row, scale, middle, 1.0 if fits(total, limit) else _PALE)
        draw.text((x.start - 8, middle), name, INK, _font(9), anchor="rm")
        draw.text((scale(total) + 8, middle), label, INK, _font(8.5), anchor="lm")
    return image


def bar_labels(chart: Chart) -> list[str]:
    """Return the sum that stands behind each bar."""
    size, limit = (chart.y.unit or Unit("", 1.0)).size, common_limit(bar_totals(chart))
    return [number(total / size) + ("" if fits(total, limit) else ", own scale") for total in bar_totals(chart)]


def bar_totals(chart: Chart) -> list[float]:
    marks = [mark for each in chart.panels[0].series for mark in each.marks]
    return [sum(mark.y for mark in marks if mark.x == row) for row in range(len(chart.x.labels))]


def common_limit(totals: Sequence[float]) -> float:
    """Return the longest bar of the common scale."""
    # Of two bars the longer one: neither dwarfs the other.
    middle = sorted(totals)[len(totals) // 2]
    return max(total for total in totals if total <= 3 * middle) or 1.0


def fits(total: float, limit: float) -> bool:
    return total <= 1.02 * limit


def _pixels(inches: float) -> int:
    return round(inches * DPI)


@functools.cache
def _font(points: float, variant: str = "") -> ImageFont.FreeTypeFont:
    """Return the font of matplotlib's pictures, which matplotlib brings along."""
    from PIL import ImageFont

    found = importlib.util.find_spec("matplotlib")
    assert found is not None and found.origin is not None
    file = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / f"DejaVuSans{variant}.ttf"
    # Without the optional engine for complex scripts a picture is the same on every machine.
    return ImageFont.truetype(str(file), points * DPI / 72, layout_engine=ImageFont.Layout.BASIC)


def _draw_axis(draw: ImageDraw.ImageDraw, chart: Chart, x: Scale, span: tuple[int, int]) -> None:
    """Draw the axis, its ticks and the grid; ``span`` is where the bars begin and end from the top."""
    top, bottom = span
    size = (chart.y.unit or Unit("", 1.0)).size
    scaled = Scale(0.0, x.high / size, x.start, x.end)
    for value in scaled.ticks():
        at = round(scaled(value))
        draw.line((at, top, at, bottom), FAINT, 2)
        draw.line((at, bottom, at, bottom + 7), GREY, 2)
        draw.text((at, bottom + 12), f"{value:.6g}", GREY, _font(9), anchor="ma")
    draw.line((x.start, bottom, x.end, bottom), _EDGE, 2)
    draw.line((x.start, top, x.start, bottom), _EDGE, 2)
    draw.text(((x.start + x.end) / 2, bottom + 40), flat(chart.y.title), GREY, _font(9), anchor="ma")


def _draw_bar(
    draw: ImageDraw.ImageDraw, series: Sequence[Series], row: int, x: Scale, middle: int, strength: float
) -> None:
    start, half = 0.0, _pixels(_BAR) // 2
    for each in series:
        # Mixed with white by its strength.
        colour = tuple(round(255 - strength * (255 - part)) for part in bytes.fromhex(_colour(each)[1:]))
        length = sum(mark.y for mark in each.marks if mark.x == row)
        left, right = round(x(start)), round(x(start + length))
        # A white line divides two pieces, unless it would hide one of them.
        right -= right - left > 2
        if length > 0 and right > left:
            draw.rectangle((left, middle - half, right - 1, middle + half), colour)
        start += length


def _colour(series: Series) -> str:
    return _COLOURS.get(series.key, _OTHER)


def legend_columns(names: Sequence[str], inches: float) -> int:
    """Return how many columns of a legend fit; a column is as wide as its longest name."""
    for columns in range(len(names), 1, -1):
        longest = [max(map(len, names[i::columns])) for i in range(columns)]
        if sum(_LETTER * letters + _AROUND for letters in longest) <= inches:
            return columns
    return 1


def _draw_legend(
    draw: ImageDraw.ImageDraw, series: Sequence[Series], columns: int, corner: tuple[float, float]
) -> None:
    font, (left, top) = _font(8.5), corner
    for column in range(columns):
        rows = series[column::columns]
        for row, each in enumerate(rows):
            x, y = _pixels(left), _pixels(top + _ROW * row)
            draw.rectangle((x, y, x + 16, y + 16), _colour(each))
            draw.text((x + 24, y + 8), flat(each.name), INK, font, anchor="lm")
        left += max((draw.textlength(flat(each.name), font) for each in rows), default=0) / DPI + _AROUND
