"""Lines over an axis, a picture for each panel; and points below the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.markup import cut, element, empty, flat, join
from profpipe.report.svg.palette import line_classes, series_class
from profpipe.report.svg.scales import LINE, Drawing, Scale, position, spread, text_width, tick, value_grid, value_range
from profpipe.report.svg.tips import tip

#: Width and height of a panel that stands alone, of one of two in a row, and of one of three.
_SIZES = {1: (760, 360), 2: (440, 270), 3: (330, 250)}
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 40
#: Letters of a name behind its line.
_NAME = 40

#: A peak further above the marks would press the lines flat.
_NEAR = 1.4


def picture(chart: doc.Chart, panel: Sequence[doc.Series], columns: int = 2) -> Drawing:
    """Return the picture of a panel, one of ``columns`` in a row unless it stands alone."""
    width, height = _SIZES[1 if len(chart.panels) == 1 else columns]
    names = [cut(flat(series.name), _NAME) for series in panel]
    has_names = names_lines(chart)
    if has_names:
        height = max(height, _TOP + _BOTTOM + LINE * len(names))
    right = max(map(text_width, names)) + 38 if has_names else _RIGHT
    x, y = _scales(chart, width - right, height)
    parts = [_grid(chart, x, y), _references(chart, x, y), *_roofs(chart, x, y)]
    classes = line_classes(chart)
    ordered = sorted(panel, key=lambda series: (not series.is_rejected, series.is_baseline))
    parts += [_series(each, classes, chart, x, y) for each in ordered]
    if has_names:
        parts.append(_end_labels(panel, classes, x, y))
    return Drawing(join(parts), width, height)


def names_lines(chart: doc.Chart) -> bool:
    """Return True if the names of the lines stand at their ends."""
    return chart.kind is doc.ChartKind.LINES and len(chart.panels) == 1 and any(each.name for each in chart.series)


def _scales(chart: doc.Chart, right: float, height: float) -> tuple[Scale, Scale]:
    xs = [mark.x for mark in chart.marks]
    if chart.kind is doc.ChartKind.ROOFLINE:
        return _scales_of_roofline(chart, xs, right, height)
    low, high = value_range(chart)
    peaks = [each.value for each in chart.references if each.kind is doc.ReferenceKind.PEAK]
    high = max([high, *(1.04 * peak for peak in peaks if peak <= _NEAR * high)])
    return (
        Scale(min(xs), max(xs), _LEFT + 12, right - 12, chart.x.is_log),
        Scale(low, high, height - _BOTTOM, _TOP, chart.y.is_log),
    )


def _scales_of_roofline(chart: doc.Chart, xs: Sequence[float], right: float, height: float) -> tuple[Scale, Scale]:
    """Return scales with room for the ridges beside the marks."""
    every = [*xs, *(each.ridge for each in chart.references if each.ridge)]
    ys = [mark.y for mark in chart.marks]
    top = max([*ys, *(each.value for each in chart.references)])
    return (
        Scale(min(every) / 2, max(every) * 2, _LEFT + 12, right - 12, True),
        Scale(min(ys) / 2, 1.6 * top, height - _BOTTOM, _TOP, True),
    )


def _roofs(chart: doc.Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the roofs: the bandwidth's line up to the ridge, then the level of the peak."""
    above = -math.inf
    for each in sorted(chart.references, key=lambda each: -each.value):
        if each.kind is doc.ReferenceKind.ROOF and each.ridge:
            # From where the bandwidth's line enters the plot.
            left = max(x.low, y.low * each.ridge / each.value)
            start, ridge = (x(left), y(each.value * left / each.ridge)), (x(each.ridge), y(each.value))
            d = f"M{start[0]:g} {start[1]:g}L{ridge[0]:g} {ridge[1]:g}H{x.end + 12:g}"
            yield empty("path", d=d, class_="roof")
            # Below the line where the next line above is near.
            apart, above = (14 if ridge[1] - above < 2 * LINE else -6), ridge[1]
            yield element("text", cut(flat(each.name), 40), x=x.end + 8, y=ridge[1] + apart, class_="tick end")


def _grid(chart: doc.Chart, x: Scale, y: Scale) -> Markup:
    left, right, bottom = x.start - 12, x.end + 12, y.start
    parts = list(value_grid(chart.y, y, left, right))
    xs = sorted({mark.x for mark in chart.marks})
    room = max(text_width(position(value, chart.x)) for value in xs) + 12
    # The largest is always named.
    step = math.ceil(len(xs) * room / (x.end - x.start))
    is_round = chart.has_round_ticks or chart.kind is doc.ChartKind.ROOFLINE
    for value in x.ticks() if is_round else xs[::-1][::step]:
        text = position(value, chart.x)
        parts.append(empty("line", x1=x(value), x2=x(value), y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(element("text", text, x=x(value), y=bottom + 17, class_="tick middle"))
    parts.append(empty("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    title = cut(flat(chart.x.title), 60)
    parts.append(element("text", title, x=(left + right) / 2, y=bottom + 34, class_="label middle"))
    return element("g", *parts)


def _references(chart: doc.Chart, x: Scale, y: Scale) -> Markup:
    parts = []
    left, right = x.start - 12, x.end + 12
    for each in chart.references:
        if each.kind is doc.ReferenceKind.ROOF or not y.low <= each.value <= y.high:
            continue
        kind = each.kind.value
        parts.append(empty("line", x1=left, x2=right, y1=y(each.value), y2=y(each.value), class_=f"ref {kind}"))
        name = each.name or (f"peak {tick(each.value, chart.y)}" if each.kind is doc.ReferenceKind.PEAK else "")
        if name:
            parts.append(element("text", cut(flat(name), 40), x=left + 6, y=y(each.value) - 5, class_="tick"))
    return element("g", *parts)


def _series(series: doc.Series, classes: Mapping[str, tuple[str, str]], chart: doc.Chart, x: Scale, y: Scale) -> Markup:
    colour, shape = classes[series.key]
    is_course = chart.is_course and len(series.marks) > 1
    points = [(x(mark.x), y(mark.y)) for mark in series.marks]
    path = "M" + "L".join(f"{px:g} {py:g}" for px, py in points)
    parts: list[Markup] = []
    for mark, (px, _) in zip(series.marks, points, strict=True):
        if mark.has_visible_range and mark.low is not None and mark.high is not None:
            parts.append(empty("line", x1=px, x2=px, y1=y(mark.low), y2=y(mark.high), class_="range"))
    line = [] if chart.kind is doc.ChartKind.ROOFLINE else [empty("path", d=path, class_="line")]
    marks = [
        marker("dot" if is_course and not mark.flags else shape, px, py, bool(mark.flags), tip(mark, chart), mark.case)
        for mark, (px, py) in zip(series.marks, points, strict=True)
    ]
    parts += [*marks, *line] if chart.is_course else [*line, *marks]
    name = cut(flat(series.name), 200)
    return element("g", *parts, class_=series_class(series, colour), data_series=series.key, data_name=name)


def marker(shape: str, x: float, y: float, is_hollow: bool, text: str, case: str = "") -> Markup:
    """Return the mark of a point; its text is shown beside a pointer."""
    kind = "mark hollow" if is_hollow else "mark"
    return empty("path", d=f"M{x:g} {y:g}{_SHAPES[shape]}", class_=kind, data_tip=text or None,
                 data_case=case or None)  # fmt: skip


#: Paths around a point.
_SHAPES = {
    "dot": "m-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z",
    "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "m-3.6-3.6h7.2v7.2h-7.2z",
    "triangle": "m0-4.8l4.5 8h-9z",
    "diamond": "m0-5l4.4 5l-4.4 5l-4.4-5z",
    "down": "m0 4.8l4.5-8h-9z",
    "plus": "m-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
    "cross": "m-4.6-2.6l2-2l2.6 2.6l2.6-2.6l2 2l-2.6 2.6l2.6 2.6l-2 2l-2.6-2.6l-2.6 2.6l-2-2l2.6-2.6z",
}


def swatch(shape: str, has_line: bool = True) -> Markup:
    """Return the mark of a series for the legend, 24 pixels wide and 16 high."""
    line = empty("path", d="M1 8h22", class_="line") if has_line else ""
    return join([line, marker(shape, 12, 8, False, "")])


def _end_labels(every: Sequence[doc.Series], classes: Mapping[str, tuple[str, str]], x: Scale, y: Scale) -> Markup:
    """Return the names of the lines at their right ends, in the order in which the lines end.

    Colours repeat from nine lines on, and markers do not.
    """
    heights = spread([y(series.marks[-1].y) for series in every], LINE, y.end + 4, y.start)
    parts = []
    for series, height in zip(every, heights, strict=True):
        if not series.name:
            continue
        colour, shape = classes[series.key]
        mark = series.marks[-1]
        tie = ""
        # A tie from further left would cross other lines.
        if x(mark.x) >= x.end - 1:
            d = f"M{x(mark.x) + 6:g} {y(mark.y):g}L{x.end + 14:g} {height:g}h3"
            tie = empty("path", d=d, class_="tie")
        text = element("text", cut(flat(series.name), _NAME), x=x.end + 32, y=height + 4, class_="end-label")
        own = tie, marker(shape, x.end + 23, height, False, ""), text
        parts.append(element("g", *own, class_=series_class(series, colour), data_series=series.key))
    return join(parts)
