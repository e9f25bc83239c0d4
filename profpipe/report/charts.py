"""The pictures of charts as SVG: a drawing per panel, on report.html or together in a file."""

from __future__ import annotations

import functools
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from markupsafe import Markup

from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.markdown import plot_path
from profpipe.report.markup import cut, element, empty, flat, join
from profpipe.report.scales import (
    LETTER,
    LINE,
    Scale,
    key_class,
    level,
    line_classes,
    marker,
    quantity,
    series_class,
    spread,
    style_sheet,
    text_width,
    tick,
    upright,
    value_grid,
    word,
)
from profpipe.report.units import NO_UNIT, percent
from profpipe.results import atomic


class Drawing(NamedTuple):
    """The elements of a picture, and its size in pixels."""

    content: Markup
    width: float
    height: float


Panel: TypeAlias = Sequence[doc.Series]

#: The width of a drawing that stands alone in its row, also on a phone, and the room above and below its plot.
_WIDTH, _TOP, _BOTTOM = 560, 12, 40


def draw(chart: doc.Chart, panel: Panel, columns: int = 2) -> Drawing:
    """Return the drawing of a panel, of which ``columns`` stand in a row."""
    return lines(chart, panel, columns) if _is_over_axis(chart) else _DRAWINGS[chart.kind](chart, panel)


def _is_over_axis(chart: doc.Chart) -> bool:
    return chart.kind in (doc.ChartKind.LINES, doc.ChartKind.ROOFLINE)


def _marks(panel: Panel) -> list[doc.Mark]:
    return [mark for series in panel for mark in series.marks]


def _group(series: doc.Series, parts: Sequence[Markup], classes: str, most: int = 70) -> Markup:
    return element("g", *parts, class_=classes, data_series=series.key,
                   data_name=cut(flat(series.name), most) or None)  # fmt: skip


# --- lines over an axis, and points below the roofline ---------------------------------------------------------------

#: Width and height of a panel that stands alone, of one of two in a row, and of one of three.
_SIZES = {1: (_WIDTH, 320), 2: (440, 270), 3: (330, 250)}
#: Letters of a name behind its line.
_NAME = 40
#: A peak further above the marks would press the lines flat.
_NEAR = 1.4


def lines(chart: doc.Chart, panel: Panel, columns: int = 2) -> Drawing:
    """Return the lines of a panel, one of ``columns`` in a row unless it stands alone."""
    width, height = _SIZES[1 if len(chart.panels) == 1 else columns]
    # The names of points have no end of a line to stand at.
    height += 140 * (chart.kind is doc.ChartKind.ROOFLINE)
    names = [cut(flat(series.name), _NAME) for series in panel]
    has_names = names_lines(chart)
    if has_names:
        height = max(height, _TOP + _BOTTOM + LINE * len(names))
    x, y = _scales(chart, width - (max(map(text_width, names)) + 38 if has_names else 14), height)
    classes = line_classes(chart)
    ordered = sorted(panel, key=lambda series: (not series.is_rejected, series.is_baseline))
    parts = [_grid(chart, x, y), _references(chart, x, y), *_roofs(chart, x, y)]
    parts += [_line(series, *classes[series.key], chart, x, y) for series in ordered]
    if has_names:
        parts += _end_labels(panel, classes, x, y)
    if chart.kind is doc.ChartKind.ROOFLINE:
        parts += _point_names(chart, panel, x, y)
    return Drawing(join(parts), width, height)


def names_lines(chart: doc.Chart) -> bool:
    """Return True if the names of the lines stand at their ends."""
    return chart.kind is doc.ChartKind.LINES and len(chart.panels) == 1 and any(series.name for series in chart.series)


def _scales(chart: doc.Chart, right: float, height: float) -> tuple[Scale, Scale]:
    """Return the common scales. That of a roofline has room for the ridges beside the marks."""
    xs, values = [mark.x for mark in chart.marks], [reference.value for reference in chart.references]
    left, right, bottom = 74, right - 12, height - _BOTTOM
    if chart.kind is doc.ChartKind.ROOFLINE:
        xs += [reference.ridge for reference in chart.references if reference.ridge]
        ys = [mark.y for mark in chart.marks]
        return (Scale(min(xs) / 2, max(xs) * 2, left, right, True),
                Scale(min(ys) / 2, 1.6 * max(ys + values), bottom, _TOP, True))  # fmt: skip
    low, high = value_range(chart)
    peaks = [reference.value for reference in chart.references if reference.kind is doc.ReferenceKind.PEAK]
    high = max([high, *(1.04 * peak for peak in peaks if peak <= _NEAR * high)])
    return Scale(min(xs), max(xs), left, right, chart.x.is_log), Scale(low, high, bottom, _TOP, chart.y.is_log)


def value_range(chart: doc.Chart) -> tuple[float, float]:
    """Return the ends of the common y scale, with room around the marks; a linear scale of positive values has 0."""
    drawn = [mark.y for mark in chart.marks]
    drawn += [end for mark in chart.marks if mark.has_visible_range for end in (mark.low, mark.high) if end]
    drawn += [reference.value for reference in chart.references if reference.kind is not doc.ReferenceKind.PEAK]
    low, high = min(drawn), max(drawn)
    if chart.y.is_log:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = 0.05 * ((high - min(low, 0.0)) or 1.0)
    return (0.0 if low >= 0 else low - room), high + room


def _grid(chart: doc.Chart, x: Scale, y: Scale) -> Markup:
    left, right, bottom = x.start - 12, x.end + 12, y.start
    parts = list(value_grid(chart.y, y, left, right))
    xs = sorted({mark.x for mark in chart.marks})
    room = max(text_width(_position(value, chart.x)) for value in xs) + 12
    # The largest is always named.
    step = math.ceil(len(xs) * room / (x.end - x.start))
    is_round = chart.has_round_ticks or chart.kind is doc.ChartKind.ROOFLINE
    for value in x.ticks() if is_round else xs[::-1][::step]:
        parts.append(upright(x(value), bottom, bottom + 4, "axis"))
        parts.append(word(_position(value, chart.x), x(value), bottom + 17, "tick middle"))
    parts.append(level(bottom, left, right, "axis"))
    return element("g", *parts, word(chart.x.title, (left + right) / 2, bottom + 34, "label middle", 60))


def _position(x: float, axis: doc.Axis) -> str:
    """Return the label of a tick of the horizontal axis."""
    if axis.quantity:
        return tick(x, axis)
    return f"{x:g}" if x < 1e6 else f"{x:.3g}"


def _references(chart: doc.Chart, x: Scale, y: Scale) -> Markup:
    parts = []
    for reference in chart.references:
        if reference.kind is not doc.ReferenceKind.ROOF and y.low <= reference.value <= y.high:
            parts.append(level(y(reference.value), x.start - 12, x.end + 12, f"ref {reference.kind.value}"))
            peak = f"peak {tick(reference.value, chart.y)}" if reference.kind is doc.ReferenceKind.PEAK else ""
            if name := reference.name or peak:
                parts.append(word(name, x.start - 6, y(reference.value) - 5, "tick", 40))
    return element("g", *parts)


def _roofs(chart: doc.Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the roofs: the bandwidth's line up to the ridge, then the level of the peak."""
    above = -math.inf
    for reference in sorted(chart.references, key=lambda reference: -reference.value):
        if reference.kind is doc.ReferenceKind.ROOF and reference.ridge:
            # From where the bandwidth's line enters the plot.
            left = max(x.low, y.low * reference.ridge / reference.value)
            start, top = y(reference.value * left / reference.ridge), y(reference.value)
            yield empty(
                "path", d=f"M{x(left):g} {start:g}L{x(reference.ridge):g} {top:g}H{x.end + 12:g}", class_="roof"
            )
            # Below the line where the next line above is near.
            apart, above = (14 if top - above < 2 * LINE else -6), top
            yield word(reference.name, x.end + 8, top + apart, "tick end", 40)


def _line(series: doc.Series, colour: str, shape: str, chart: doc.Chart, x: Scale, y: Scale) -> Markup:
    is_trend = chart.is_trend and len(series.marks) > 1
    ranges = [
        upright(x(mark.x), y(mark.low), y(mark.high), "range")
        for mark in series.marks
        if mark.has_visible_range and mark.low is not None and mark.high is not None
    ]
    line = [] if chart.kind is doc.ChartKind.ROOFLINE else [_path(series.marks, x, y)]
    marks = [
        marker("dot" if is_trend and not mark.flags else shape, x(mark.x), y(mark.y), mark, chart)
        for mark in series.marks
    ]
    parts = [*ranges, *marks, *line] if chart.is_trend else [*ranges, *line, *marks]
    return element("g", *parts, class_=series_class(series, colour), data_series=series.key,
                   data_name=cut(flat(series.name), 200))  # fmt: skip


def _path(marks: Sequence[doc.Mark], x: Scale, y: Scale) -> Markup:
    return empty("path", d="M" + "L".join(f"{x(mark.x):g} {y(mark.y):g}" for mark in marks), class_="line")


def _end_labels(panel: Panel, classes: Mapping[str, tuple[str, str]], x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the names of the lines at their right ends, in the order in which the lines end.

    Colours repeat from nine lines on, and markers do not.
    """
    heights = spread([y(series.marks[-1].y) for series in panel], LINE, y.end + 4, y.start)
    for series, height in zip(panel, heights, strict=True):
        if series.name:
            (colour, shape), mark, tie = classes[series.key], series.marks[-1], Markup("")
            # A tie from further left would cross other lines.
            if x(mark.x) >= x.end - 1:
                d = f"M{x(mark.x) + 6:g} {y(mark.y):g}L{x.end + 14:g} {height:g}h3"
                tie = empty("path", d=d, class_="tie")
            text = word(series.name, x.end + 32, height + 4, "end-label", _NAME)
            yield element("g", tie, marker(shape, x.end + 23, height), text, class_=series_class(series, colour),
                          data_series=series.key)  # fmt: skip


def _point_names(chart: doc.Chart, panel: Panel, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the name of each series beside its highest point with room for it; of an only series, that of each point.

    The room is what points, roofs and other names leave.
    """
    taken = [(x(mark.x) - 6, y(mark.y) - 6, x(mark.x) + 6, y(mark.y) + 6) for mark in _marks(panel)]
    for reference in chart.references:
        height = y(reference.value)
        taken.append((x.end - text_width(reference.name), height - LINE, x.end + 12, height + LINE))
        taken.append((x(reference.ridge or x.low), height - 3, x.end + 12, height + 3))
        slope = (10 ** (-n / 20) for n in range(60))
        taken += [(x(share * (reference.ridge or 0)) - 3, y(share * reference.value) - 3,
                   x(share * (reference.ridge or 0)) + 3, y(share * reference.value) + 3)
                  for share in slope]  # fmt: skip

    def place(mark: doc.Mark, text: str) -> tuple[float, float] | None:
        right, top, width = x(mark.x) + 9, y(mark.y) - LINE / 2, text_width(text)
        centre = x(mark.x) - width / 2
        for left, upper in ((right, top), (right - width - 18, top), (centre, top - LINE), (centre, top + LINE)):
            box = left, upper, left + width, upper + LINE
            is_inside = x.start - 12 <= left and box[2] <= x.end + 12 and y.end <= upper and box[3] <= y.start
            if is_inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                return left, upper + 12
        return None

    for series in panel:
        of_series = sorted(series.marks, key=lambda mark: -mark.y)
        wanted = ((mark, cut(flat(series.name if len(panel) > 1 else mark.note), _NAME)) for mark in of_series)
        placed = ((text, at) for mark, text in wanted if (at := place(mark, text)))
        for text, at in itertools.islice(placed, 1 if len(panel) > 1 else None):
            yield element("g", word(text, *at, "tick halo", _NAME), data_series=series.key)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


# --- stacked bars ----------------------------------------------------------------------------------------------------

#: The length of the bars, which a phone shows unscaled, and the heights of a row and of a bar.
_LENGTH, _BAR_ROW, _BAR = 360, 58, 28
#: A file shows them larger, for a page of another width.
_ENLARGED = 1.5


def bars(chart: doc.Chart, panel: Panel) -> Drawing:
    """Return a bar per label of the x axis, below its name. All bars have one scale, that of the longest."""
    totals, sums = _totals(chart), bar_labels(chart)
    scale = Scale(0.0, max(totals, default=0.0) or 1.0, 0, _LENGTH)
    drawn = (_bar(chart, panel, row, scale, *bar) for row, bar in enumerate(zip(totals, sums, strict=True)))
    return Drawing(join(drawn), _LENGTH, _BAR_ROW * len(totals))


def bar_labels(chart: doc.Chart) -> list[str]:
    """Return the sum that stands at the end of the name of each bar."""
    return [(chart.y.unit or NO_UNIT).with_name(total) for total in _totals(chart)]


def _totals(chart: doc.Chart) -> list[float]:
    return [sum(mark.y for mark in chart.marks if mark.x == row) for row in range(len(chart.x.labels))]


def _bar(chart: doc.Chart, panel: Panel, row: int, scale: Scale, total: float, sum_text: str) -> Markup:
    name, top, case = flat(chart.x.labels[row]), row * _BAR_ROW, chart.x.cases[row] if chart.x.cases else ""
    parts, start = [_row_name(name, int((_LENGTH - text_width(sum_text)) / LETTER) - 2, 0, top + 18, case, "name")], 0.0
    parts.append(word(sum_text, _LENGTH, top + 18, "sum end"))
    for series in panel:
        value = sum(mark.y for mark in series.marks if mark.x == row)
        if value > 0:
            left, width = scale(start), scale(start + value) - scale(start)
            share = f"{percent(value / total)} %" if total else ""
            text = f"{flat(series.name) or 'everything else'}\n{name}\n{quantity(value, chart.y)} ({share})"
            box = empty("rect", x=left, y=top + 25, width=max(width, 0.2), height=_BAR, data_tip=text,
                        data_case=case or None, class_="piece")  # fmt: skip
            fits = [label for label in (share, share.replace(" ", "")) if 1.15 * text_width(label) < width]
            inside = word(fits[0], left + width / 2, top + 25 + _BAR / 2 + 4, "inside") if fits else ""
            parts.append(element("g", box, inside, class_=f"series {key_class(series.key)}", data_series=series.key))
            start += value
    return element("g", *parts, class_="bar")


# --- areas -----------------------------------------------------------------------------------------------------------


def areas(chart: doc.Chart, panel: Panel) -> Drawing:
    """Return stacked amounts over an axis, with a line and a name where the phase changes."""
    marks, values = panel[0].marks, ([mark.y for mark in series.marks] for series in panel)
    sums = list(itertools.accumulate(values, lambda *pair: [sum(both) for both in zip(*pair, strict=True)]))
    x = Scale(marks[0].x, marks[-1].x, _LEFT, _RIGHT)
    y = Scale(0.0, 1.05 * max(sums[-1]) or 1.0, _TOP + LINE + _STRIP, _TOP + LINE)
    parts = list(value_grid(chart.y, y, _LEFT, _RIGHT))
    parts += [word(f"{value:g}", x(value), y.start + 17, "tick middle") for value in x.ticks()]
    for series, below, above in zip(panel, [[0.0] * len(marks), *sums], sums, strict=False):
        # An amount holds until the next one.
        steps = list(zip(marks, [*marks[1:], marks[-1]], above, below, strict=True))
        ends = [(mark, high) for one, next_one, high, _ in steps for mark in (one, next_one)]
        ends += [(mark, low) for one, next_one, _, low in steps[::-1] for mark in (next_one, one)]
        corners = [(f"{x(mark.x):.0f}", f"{y(value):.0f}") for mark, value in ends]
        # Level and upright sides, to the pixel. Of level ones in a row the last one is enough.
        sides = (f"H{to[0]}" if to[1] == of[1] else f"V{to[1]}" for of, to in itertools.pairwise(corners))
        d = f"M{' '.join(corners[0])}{re.sub(r'(?:H[0-9.]+)+(?=H)', '', ''.join(sides))}z"
        tip = f"{flat(series.name)}\nat most {quantity(max(mark.y for mark in series.marks), chart.y)}"
        shape = empty("path", d=d, class_="piece", data_tip=tip)
        parts.append(element("g", shape, class_=f"series {key_class(series.key)}", data_series=series.key))
    free = float(_LEFT)
    for note, group in itertools.groupby(marks, key=lambda mark: mark.note):
        left = x(next(group).x)
        if note and free <= left <= _WIDTH - text_width(note):
            parts.append(upright(left, _TOP - 4, y.start, "ref"))
            parts.append(word(note, left + 4, _TOP + 6, "tick"))
            free = left + text_width(note) + 8
    parts.append(word(chart.x.title, (_LEFT + _WIDTH) / 2, y.start + 35, "label middle"))
    return Drawing(join(parts), _WIDTH, y.start + _BOTTOM)


def _append_shares(chart: doc.Chart, series: doc.Series) -> str:
    """Return the name of a piece in the legend, with its share of each of few bars: small pieces have no room."""
    totals = _totals(chart)
    values = [sum(mark.y for piece in chart.series if piece.key == series.key for mark in piece.marks if mark.x == row)
              for row in range(len(totals))]  # fmt: skip
    shares = [percent(value / total) for value, total in zip(values, totals, strict=True) if total]
    return f"{flat(series.name)} {', '.join(shares)} %" if 0 < len(shares) <= doc.MOST_SHARES else series.name


def _row_name(name: str, most: int, x: float, y: float, case: str, kind: str = "name end") -> Markup:
    """Return the name of a row, which leads to its case; a long one is cut, and its title has the whole name."""
    title = element("title", cut(name, 2000)) if len(name) > most else ""
    return element("text", title, cut(name, most), x=x, y=y, class_=kind, data_case=case or None)


# --- intervals -------------------------------------------------------------------------------------------------------

#: Of the intervals: the height of a row and of the bar of a value, and the most room for the names.
_ROW, _VALUE, _NAMES = 30, 18, 200
#: Intervals of a forest plot that are longer than this many times the largest difference are cut.
_WIDE = 2.5


def intervals(chart: doc.Chart, panel: Panel) -> Drawing:
    """Return a row per label of the x axis: the value, its interval, and both in words."""
    names = [flat(name) for name in chart.x.labels]
    left, bottom = min(_NAMES, max(map(text_width, names), default=0) + 20), _TOP + _ROW * len(names)
    x = Scale(*_ends(chart, _marks(panel)), left, _WIDTH - 90, chart.y.is_log)
    parts: list[Markup] = []
    for value in x.ticks(chart.y.quantity):
        parts.append(upright(x(value), _TOP, bottom, "grid"))
        parts.append(word(tick(value, chart.y), x(value), bottom + 17, "tick middle"))
    limits = sorted(x(reference.value) for reference in chart.references if reference.kind is doc.ReferenceKind.LIMIT)
    # Two limits are the ends of a band.
    if len(limits) == 2:
        parts.append(_band(limits[0], limits[1], _TOP, bottom - _TOP))
    levels = (reference.value for reference in chart.references if reference.kind is doc.ReferenceKind.LEVEL)
    parts += [upright(x(value), _TOP, bottom, "ref level") for value in levels]
    parts.append(word(chart.y.title, (left + x.end) / 2, bottom + 35, "label middle"))
    for series in panel:
        colour, shape = line_classes(chart)[series.key]
        rows = [_row(chart, mark, names[int(mark.x)], x, shape) for mark in series.marks]
        parts.append(_group(series, rows, f"series {colour}"))
    return Drawing(join(parts), _WIDTH, bottom + _BOTTOM)


def _ends(chart: doc.Chart, marks: Sequence[doc.Mark]) -> tuple[float, float]:
    """Return the ends of the scale. Wide intervals of a forest plot lead out of it, as do ends below a log scale."""
    values = [mark.y for mark in marks] + [reference.value for reference in chart.references]
    ends = [end for mark in marks for end in (mark.low, mark.high) if end is not None]
    if chart.y.is_log:
        # The interval of few and noisy processes may begin below zero.
        ends = [end for end in ends if end > 0]
    if chart.kind is doc.ChartKind.FOREST:
        values += [end for mark in marks if mark.floor is not None for end in (-1.5 * mark.floor, 1.5 * mark.floor)]
        limit = _WIDE * max(map(abs, values))
        ends = [min(max(end, -limit), limit) for end in ends]
    low, high = min([*values, *ends]), max([*values, *ends])
    if chart.y.is_log:
        room = (high / low) ** 0.06
        return low / room, high * room
    if chart.kind is doc.ChartKind.INTERVALS:
        return min(low, 0.0), 1.02 * high
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _row(chart: doc.Chart, mark: doc.Mark, name: str, x: Scale, shape: str) -> Markup:
    y = _TOP + _ROW * (mark.x + 0.5)
    parts = [_row_name(name, int(_NAMES / LETTER) - 3, x.start - 10, y + 4, mark.case)]
    if mark.floor is not None:
        parts.append(_band(x(max(-mark.floor, x.low)), x(min(mark.floor, x.high)), y - 11, 22))
    if chart.kind is doc.ChartKind.INTERVALS:
        height = _VALUE if not chart.y.is_log else 1
        parts.append(empty("rect", x=x.start, y=y - height / 2, width=max(x(mark.y) - x.start, 0), height=height,
                           class_="value"))  # fmt: skip
    if mark.low is not None and mark.high is not None:
        # An end that leads out of the scale is an arrow.
        left, right = x(max(mark.low, x.low)), x(min(mark.high, x.high))
        arrow = f"M{left + 6:g} {y - 5:g}l-6 5l6 5M{left:g} {y:g}"
        first = f"M{left:g} {y - 5:g}v10m0-5" if mark.low >= x.low else arrow
        last = "m0-5v10" if mark.high <= x.high else "m-6-5l6 5l-6 5"
        parts.append(empty("path", d=f"{first}H{right:g}{last}", class_="whisker"))
    parts.append(marker(shape, x(mark.y), y, mark, chart))
    return element("g", *parts, word(quantity(mark.y, chart.y), x.end + 14, y + 4, "sum"))


def _band(left: float, right: float, y: float, height: float) -> Markup:
    return empty("rect", x=left, y=y, width=max(right - left, 0), height=height, class_="band")


# --- strips and trends -----------------------------------------------------------------------------------------------

_LEFT, _RIGHT = 66, _WIDTH - 16
#: Heights of the plots.
_STRIP, _TREND = 210, 190
#: Points of a strip beyond which each pixel shows its least and its largest value.
_MOST_POINTS = 1500


def strip(chart: doc.Chart, panel: Panel) -> Drawing:
    """Return the values of a panel over their number, as points."""
    marks = _marks(panel)
    ys = [mark.y for mark in marks] + [reference.value for reference in chart.references]
    low, high = min(ys), max(ys)
    # From zero where the values are spread widely; a narrow band would be a line.
    low, high = (0.0, 1.05 * high) if high > 2 * low else (low - 0.15 * (high - low), high + 0.15 * (high - low))
    if high <= low:
        low, high = 0.98 * low, 1.02 * high or 1.0
    bottom = _TOP + _STRIP
    x = Scale(min(m.x for m in marks), max(m.x for m in marks), _LEFT + 8, _RIGHT - 8)
    y = Scale(low, high, bottom, _TOP)
    parts = list(value_grid(chart.y, y, _LEFT, _RIGHT))
    parts += [word(f"{value:g}", x(value), bottom + 17, "tick middle") for value in x.ticks()]
    parts += [level(y(reference.value), _LEFT, _RIGHT, "ref level") for reference in chart.references]
    parts.append(word(chart.x.title, (_LEFT + _WIDTH) / 2, bottom + 35, "label middle"))
    for series in panel:
        colour, shape = line_classes(chart)[series.key]
        markers = [marker(shape, x(m.x), y(m.y), m, chart) for m in ends_of_pixels(series.marks, x)]
        parts.append(_group(series, markers, f"series {colour}"))
    parts += [word(reference.name, _RIGHT, y(reference.value) - 5, "tick end halo") for reference in chart.references]
    return Drawing(join(parts), _WIDTH, bottom + _BOTTOM)


def ends_of_pixels(marks: Sequence[doc.Mark], x: Scale) -> Iterator[doc.Mark]:
    """Yield the marks; of many those with the least and the largest value at each pixel, in their order."""
    if len(marks) <= _MOST_POINTS:
        yield from marks
        return
    for pixel_marks in grouped((round(x(mark.x)), mark) for mark in marks).values():
        ends = min(pixel_marks, key=lambda m: m.y), max(pixel_marks, key=lambda m: m.y)
        # Not a set: the order of its marks differs from run to run.
        yield from sorted(dict.fromkeys(ends), key=lambda m: m.x)


def draw_trend(chart: doc.Chart, panel: Panel) -> Drawing:
    """Return the times of a case over runs, with the band of the noise around their level.

    All marks have the same ``low`` and ``high``, the ends of the band.
    """
    marks = _marks(panel)
    ends = [value for mark in marks for value in (mark.y, mark.low, mark.high) if value is not None]
    room = 0.12 * (max(ends) - min(ends)) or 0.02 * max(ends) or 1.0
    y = Scale(max(min(ends) - room, 0.0), max(ends) + room, _TOP + _TREND, _TOP)
    x = Scale(marks[0].x, max(marks[-1].x, marks[0].x + 1), _LEFT + 14, _RIGHT - 32)
    parts = list(value_grid(chart.y, y, _LEFT, _RIGHT))
    # Six labels at most: the date, which stands before the name of the run.
    for mark in marks[::-1][:: -(-len(marks) // 6)]:
        parts.append(word(chart.x.labels[int(mark.x)].partition(" ")[0], x(mark.x), y.start + 17, "tick middle", 16))
    low, high = marks[0].low, marks[0].high
    if low is not None and high is not None:
        half = (x(marks[1].x) - x(marks[0].x)) / 2 if len(marks) > 1 else 14
        left, right = x(marks[0].x) - half, x(marks[-1].x) + half
        parts.append(_band(left, right, y(high), y(low) - y(high)))
        parts.append(level(y((low * high) ** 0.5), left, right, "ref level"))
    line_parts = [_path(marks, x, y), *(marker("circle", x(mark.x), y(mark.y), mark, chart) for mark in marks)]
    colour, _ = line_classes(chart)[panel[0].key]
    return Drawing(
        join([*parts, element("g", *line_parts, class_=f"series {colour}")]), _WIDTH, _TOP + _TREND + _BOTTOM
    )


_DRAWINGS: Mapping[doc.ChartKind, Callable[[doc.Chart, Panel], Drawing]] = {
    doc.ChartKind.STACKED_BARS: bars,
    doc.ChartKind.AREAS: areas,
    doc.ChartKind.TREND: draw_trend,
    doc.ChartKind.STRIP: strip,
    doc.ChartKind.INTERVALS: intervals,
    doc.ChartKind.FOREST: intervals,
}


# --- titles and legends ----------------------------------------------------------------------------------------------


def heading(chart: doc.Chart) -> str:
    """Return the title, with the unit where no axis names it."""
    unit = chart.y.unit.name if _is_over_axis(chart) and chart.y.unit else ""
    return ", ".join(filter(None, [chart.title, unit]))


def legend(chart: doc.Chart) -> Iterator[tuple[doc.Series, str, Drawing]]:
    """Yield each named series of a chart with several: its classes and its sign."""
    named_series = {series.key: series for series in chart.series if series.name}
    classes = line_classes(chart)
    for key, series in named_series.items() if len(named_series) > 1 else ():
        if chart.kind in (doc.ChartKind.STACKED_BARS, doc.ChartKind.AREAS):
            box = empty("path", d="M1 2h13v13H1z", class_="piece")
            named = doc.Series(_append_shares(chart, series), key, (), series.is_baseline, series.is_rejected)
            yield named, series_class(series, key_class(key)), Drawing(box, 16, 16)
        else:
            colour, shape = classes[key]
            line = empty("path", d="M1 8h22", class_="line") if chart.kind is doc.ChartKind.LINES else ""
            yield series, series_class(series, colour), Drawing(join([line, marker(shape, 12, 8)]), 24, 16)


# --- files -----------------------------------------------------------------------------------------------------------

#: Pixels around what a file holds and of a row of its legend, and letters of a name there.
_AROUND, _LEGEND_ROW, _LEGEND_NAME = 14, 20, 60
#: What only a page can use, whose script shows and selects points.
_OF_SCRIPT = re.compile(r' data-[a-z]+="[^"]*"')
_LIGHT_DARK, _FIRST, _SECOND = re.compile(r"light-dark\(([^,]+), ([^)]+)\)"), r"\1", r"\2"


def write_files(document: doc.Document, folder: Path) -> None:
    """Write the charts of SUMMARY.md and details.md into ``folder``/plots."""
    for section in document.without(doc.OnPage.HTML).sections:
        for block in section.walk():
            if isinstance(block, doc.Chart):
                path = folder / plot_path(block)
                atomic.make_folder(path.parent)
                atomic.write_text(path, picture(block))


def picture(chart: doc.Chart) -> str:
    """Return a file that needs no other: its style is inside, for a light and a dark page."""
    columns = _columns(chart)
    drawings = {title: draw(chart, panel, columns) for title, panel in chart.panels.items()}
    width = columns * (max(drawing.width for drawing in drawings.values()) + _AROUND) + _AROUND
    most = int((width - 2 * _AROUND) / LETTER)
    title, y, parts = flat(heading(chart)), 10.0, []
    for text, kind, letters, height in ((title, "title", int(most * 0.8), 19), (chart.subtitle, "label", most, LINE)):
        for line in textwrap.wrap(flat(text), letters, max_lines=2, placeholder="…"):
            y += height
            parts.append(element("text", line, x=_AROUND, y=y, class_=kind))
    y += LINE
    is_bars = chart.kind is doc.ChartKind.STACKED_BARS
    # The names of the only lines stand at their ends, those of the pieces of bars below them.
    if not is_bars and not names_lines(chart):
        legend_parts, y = _legend_below(chart, y, width)
        parts += legend_parts
    for i, (name, drawing) in enumerate(drawings.items()):
        x, top = _AROUND + i % columns * (drawing.width + _AROUND), y + (20 if name else 0)
        if name:
            parts.append(word(name, x, y + 14, "panel-title", int(drawing.width / LETTER)))
        parts.append(element("g", drawing.content, transform=f"translate({x:g} {top:g})"))
        if i % columns == columns - 1 or i == len(drawings) - 1:
            y = top + drawing.height + _AROUND / 2
    if is_bars:
        legend_parts, y = _legend_below(chart, y, width)
        parts += legend_parts
    ground = empty("rect", width=width, height=y, rx=8, class_="ground")
    body = _OF_SCRIPT.sub("", element("g", ground, *parts, class_="picture"))
    style, size = element("style", Markup(_style_of(body))), _ENLARGED if is_bars else 1.0
    return element("svg", style, Markup(body), xmlns="http://www.w3.org/2000/svg", width=size * width,
                   height=size * y, viewBox=f"0 0 {width:g} {y:g}", role="img", aria_label=title) + "\n"  # fmt: skip


def _legend_below(chart: doc.Chart, y: float, width: float) -> tuple[list[Markup], float]:
    """Return the names of the series in rows from ``y`` on, and where the rows end."""
    parts, x = [], float(_AROUND)
    for series, classes, sign in legend(chart):
        name = cut(flat(series.name), _LEGEND_NAME)
        room = sign.width + text_width(name) + 2 * _AROUND
        if x > _AROUND and x + room > width:
            x, y = float(_AROUND), y + _LEGEND_ROW
        text = element("text", name, x=sign.width + 6, y=12)
        parts.append(element("g", sign.content, text, transform=f"translate({x:g} {y:g})", class_=classes))
        x += room
    return parts, y + _LEGEND_ROW + 4 if parts else y


def _columns(chart: doc.Chart) -> int:
    """Return 2, so that both values of the last axis stand side by side, or 3 where the axis has three values."""
    if len(chart.panels) == 1:
        return 1
    last = {title.rpartition(", ")[2] for title in chart.panels}
    return 3 if len(last) == 3 and len(chart.panels) % 3 == 0 else 2


def _style_of(body: str) -> str:
    """Return the rules for the classes in ``body``, for viewers that know neither variables nor ``light-dark()``."""
    used = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    light, dark = [], []
    for selector, declarations in _rules():
        if used.issuperset(re.findall(r"\.([\w-]+)", selector)):
            light.append(f"{selector}{{{_LIGHT_DARK.sub(_FIRST, declarations)}}}")
            if differing := ";".join(part for part in declarations.split(";") if "light-dark" in part):
                dark.append(f"{selector}{{{_LIGHT_DARK.sub(_SECOND, differing)}}}")
    return f"{''.join(light)}@media (prefers-color-scheme:dark){{{''.join(dark)}}}"


@functools.cache
def _rules() -> list[tuple[str, str]]:
    """Return the selectors of the style sheet with their declarations, without variables."""
    sheet = " ".join(re.sub(r"/\*.*?\*/", "", style_sheet(), flags=re.DOTALL).split())
    # The only variable that differs from element to element is its colour.
    sheet = sheet.replace("--c:", "color:").replace("var(--c)", "currentColor")
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", sheet))
    sheet = re.sub(r"var\(--([\w-]+)\)", lambda match: values[match[1]], sheet)
    return [
        (selector.strip(), declarations.strip())
        for selectors, declarations in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet)
        for selector in selectors.split(",")
        if ":root" not in selector
    ]
