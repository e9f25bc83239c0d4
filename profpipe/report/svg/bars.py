"""Stacked bars: a bar for each label of the x axis, a colour for each series."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.markup import cut, element, empty, flat, join
from profpipe.report.svg.palette import key_class
from profpipe.report.svg.scales import LETTER, Drawing, Scale, text_width
from profpipe.report.svg.tips import quantity
from profpipe.report.units import Unit, number, percent

_WIDTH, _ROW, _BAR, _TOP, _BOTTOM = 860, 40, 26, 8, 44
#: The most room for the names of the bars, and their letters in it.
_LEFT = 260
_MOST = int(_LEFT / LETTER) - 2
#: A piece from this width on has its share written into it.
_WRITTEN = 44


def picture(chart: doc.Chart, panel: Sequence[doc.Series]) -> Drawing:
    """Return the bars of the only panel. A bar that dwarfs the others has its own scale."""
    names, totals, sums = list(map(flat, chart.x.labels)), _totals(chart), bar_labels(chart)
    left = min(_LEFT, max(map(text_width, names)) + 16)
    bottom = _TOP + _ROW * len(names)
    x = Scale(0.0, _common_limit(totals), left, _WIDTH - max(map(text_width, sums)) - 16)
    bars = [_bar(chart, panel, row, x, total, text) for row, (total, text) in enumerate(zip(totals, sums, strict=True))]
    return Drawing(join([_axis(chart, x, bottom), *bars]), _WIDTH, bottom + _BOTTOM)


def bar_labels(chart: doc.Chart) -> list[str]:
    """Return the sum that stands behind each bar."""
    totals, size = _totals(chart), (chart.y.unit or Unit("", 1.0)).size
    limit = _common_limit(totals)
    return [number(total / size) + ("" if _fits(total, limit) else ", own scale") for total in totals]


def _totals(chart: doc.Chart) -> list[float]:
    marks = chart.marks
    return [sum(mark.y for mark in marks if mark.x == row) for row in range(len(chart.x.labels))]


def _common_limit(totals: Sequence[float]) -> float:
    """Return the longest bar of the common scale."""
    # Of two bars the longer one: neither dwarfs the other.
    middle = sorted(totals)[len(totals) // 2]
    return max(total for total in totals if total <= 3 * middle) or 1.0


def _fits(total: float, limit: float) -> bool:
    return total <= 1.02 * limit


def _axis(chart: doc.Chart, x: Scale, bottom: float) -> Markup:
    unit = chart.y.unit or Unit("", 1.0)
    scaled = Scale(0.0, x.high / unit.size, x.start, x.end)
    parts = []
    for value in scaled.ticks():
        at = scaled(value)
        parts.append(empty("line", x1=at, x2=at, y1=_TOP, y2=bottom, class_="grid"))
        parts.append(element("text", f"{value:g}", x=at, y=bottom + 17, class_="tick middle"))
    title = element("text", cut(flat(chart.y.title), 80), x=(x.start + x.end) / 2, y=bottom + 36, class_="label middle")
    return element("g", *parts, title)


def _bar(chart: doc.Chart, panel: Sequence[doc.Series], row: int, x: Scale, total: float, sum_text: str) -> Markup:
    name, top = flat(chart.x.labels[row]), _TOP + row * _ROW + (_ROW - _BAR) / 2
    case = chart.x.cases[row] if chart.x.cases else ""
    has_own_scale = not _fits(total, x.high)
    scale = Scale(0.0, total, x.start, x.end) if has_own_scale else x
    title = element("title", cut(name, 2000)) if len(name) > _MOST else ""
    parts: list[Markup] = [
        element("text", title, cut(name, _MOST), x=x.start - 8, y=top + _BAR / 2 + 4, class_="name end",
                data_case=case or None)
    ]  # fmt: skip
    start = 0.0
    for each in panel:
        value = sum(mark.y for mark in each.marks if mark.x == row)
        if value > 0:
            parts.append(_piece(chart, each, name, case, (start, value, total), scale, top))
            start += value
    parts.append(element("text", sum_text, x=scale(start) + 6, y=top + _BAR / 2 + 4, class_="sum"))
    return element("g", *parts, class_="bar own-scale" if has_own_scale else "bar")


def _piece(
    chart: doc.Chart, series: doc.Series, name: str, case: str, of: tuple[float, float, float], x: Scale, top: float
) -> Markup:
    start, value, total = of
    left, width = x(start), x(start + value) - x(start)
    kind = flat(series.name) or "everything else"
    share = f"{percent(value / total)} %" if total else ""
    text = f"{kind}\n{name}\n{quantity(value, chart.y)} ({share})"
    box = empty("rect", x=left, y=top, width=max(width, 0.2), height=_BAR, data_tip=text, data_case=case or None,
                class_="piece")  # fmt: skip
    words = (
        element("text", share, x=left + width / 2, y=top + _BAR / 2 + 4, class_="inside") if width > _WRITTEN else ""
    )
    return element("g", box, words, class_=f"series {key_class(series.key)}", data_series=series.key)
