"""Points: strips of samples or steps, values with their intervals, and the course of a time over runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.markup import cut, element, empty, flat, join
from profpipe.report.svg.lines import marker
from profpipe.report.svg.palette import line_classes
from profpipe.report.svg.scales import LETTER, Drawing, Scale, text_width, tick, value_grid
from profpipe.report.svg.tips import quantity, tip

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 66, 16, 12, 40
#: Heights of the plots.
_STRIP, _COURSE = 210, 190
#: Labels below a course at most.
_LABELS = 6

#: Intervals of a forest plot that are longer than this many times the largest difference are cut.
_WIDE = 2.5

#: Points of a strip beyond which each pixel shows its least and its largest value.
_MOST_POINTS = 1500

_ROW, _BAR, _NAMES, _VALUES = 30, 18, 300, 150


def strip(chart: doc.Chart, panel: Sequence[doc.Series]) -> Drawing:
    """Return the values of a panel over their number, as points."""
    marks = [mark for series in panel for mark in series.marks]
    ys = [mark.y for mark in marks] + [each.value for each in chart.references]
    low, high = min(ys), max(ys)
    # From zero where the values are spread widely; a narrow band would be a line.
    low, high = (0.0, 1.05 * high) if high > 2 * low else (low - 0.15 * (high - low), high + 0.15 * (high - low))
    if high <= low:
        low, high = 0.98 * low, 1.02 * high or 1.0
    bottom = _TOP + _STRIP
    x = Scale(min(m.x for m in marks), max(m.x for m in marks), _LEFT + 8, _WIDTH - _RIGHT - 8)
    y = Scale(low, high, bottom, _TOP)
    parts = list(value_grid(chart.y, y, _LEFT, _WIDTH - _RIGHT))
    for value in x.ticks():
        parts.append(element("text", f"{value:g}", x=x(value), y=bottom + 17, class_="tick middle"))
    for each in chart.references:
        parts.append(
            empty("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(each.value), y2=y(each.value), class_="ref level")
        )
    parts.append(element("text", _short(chart.x.title), x=(_LEFT + _WIDTH) / 2, y=bottom + 35, class_="label middle"))
    classes = line_classes(chart)
    for series in panel:
        colour, shape = classes[series.key]
        own = [marker(shape, x(m.x), y(m.y), bool(m.flags), tip(m, chart), m.case)
               for m in ends_of_pixels(series.marks, x)]  # fmt: skip
        parts.append(_group(series, own, colour))
    for each in chart.references:
        parts.append(element("text", _short(each.name), x=_WIDTH - _RIGHT, y=y(each.value) - 5, class_="tick end halo"))
    return Drawing(join(parts), _WIDTH, bottom + _BOTTOM)


def ends_of_pixels(marks: Sequence[doc.Mark], x: Scale) -> Iterator[doc.Mark]:
    """Yield the marks; of many those with the least and the largest value at each pixel, in their order."""
    if len(marks) <= _MOST_POINTS:
        yield from marks
        return
    for own in grouped((round(x(mark.x)), mark) for mark in marks).values():
        ends = min(own, key=lambda m: m.y), max(own, key=lambda m: m.y)
        # Not a set: the order of its marks differs from run to run.
        yield from sorted(dict.fromkeys(ends), key=lambda m: m.x)


def intervals(chart: doc.Chart, panel: Sequence[doc.Series]) -> Drawing:
    """Return a row for each label of the x axis: the value, its interval, and both in words."""
    names = [flat(name) for name in chart.x.labels]
    left = min(_NAMES, max(map(text_width, names), default=0) + 20)
    marks = [mark for series in panel for mark in series.marks]
    low, high = _ends(chart, marks)
    bottom = _TOP + _ROW * len(names)
    x = Scale(low, high, left, _WIDTH - _VALUES, chart.y.is_log)
    parts: list[Markup] = []
    for value in x.ticks(chart.y.quantity):
        parts.append(empty("line", x1=x(value), x2=x(value), y1=_TOP, y2=bottom, class_="grid"))
        parts.append(element("text", tick(value, chart.y), x=x(value), y=bottom + 17, class_="tick middle"))
    parts += _bands(chart, x, bottom)
    parts.append(element("text", _short(chart.y.title), x=(left + x.end) / 2, y=bottom + 35, class_="label middle"))
    classes = line_classes(chart)
    for series in panel:
        colour, shape = classes[series.key]
        rows = [_row(chart, series, mark, names, x, shape) for mark in series.marks]
        parts.append(_group(series, rows, colour))
    return Drawing(join(parts), _WIDTH, bottom + _BOTTOM)


def _ends(chart: doc.Chart, marks: Sequence[doc.Mark]) -> tuple[float, float]:
    """Return the ends of the scale. Wide intervals of a forest plot lead out of it, as do ends below a log scale."""
    values = [mark.y for mark in marks] + [each.value for each in chart.references]
    intervals = [end for mark in marks for end in (mark.low, mark.high) if end is not None]
    if chart.y.is_log:
        # The interval of few and noisy processes may begin below zero.
        intervals = [end for end in intervals if end > 0]
    if chart.kind is doc.ChartKind.FOREST:
        values += [end for mark in marks if mark.floor is not None for end in (-1.5 * mark.floor, 1.5 * mark.floor)]
        limit = _WIDE * max(map(abs, values))
        intervals = [min(max(end, -limit), limit) for end in intervals]
    low, high = min([*values, *intervals]), max([*values, *intervals])
    if chart.y.is_log:
        room = (high / low) ** 0.06
        return low / room, high * room
    if chart.kind is doc.ChartKind.INTERVALS:
        return min(low, 0.0), 1.02 * high
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _bands(chart: doc.Chart, x: Scale, bottom: float) -> Iterator[Markup]:
    """Yield the lines of the references; two limits are the ends of a band."""
    limits = [each.value for each in chart.references if each.kind is doc.ReferenceKind.LIMIT]
    if len(limits) == 2:
        left, right = sorted(map(x, limits))
        yield empty("rect", x=left, y=_TOP, width=right - left, height=bottom - _TOP, class_="band")
    for each in chart.references:
        if each.kind is doc.ReferenceKind.LEVEL:
            yield empty("line", x1=x(each.value), x2=x(each.value), y1=_TOP, y2=bottom, class_="ref level")


def _row(chart: doc.Chart, series: doc.Series, mark: doc.Mark, names: Sequence[str], x: Scale, shape: str) -> Markup:
    y = _TOP + _ROW * (mark.x + 0.5)
    most = int(_NAMES / LETTER) - 3
    name = names[int(mark.x)]
    title = element("title", cut(name, 2000)) if len(name) > most else ""
    parts = [element("text", title, cut(name, most), x=x.start - 10, y=y + 4, class_="name end",
                     data_case=mark.case or None)]  # fmt: skip
    if mark.floor is not None:
        left, right = x(max(-mark.floor, x.low)), x(min(mark.floor, x.high))
        parts.append(empty("rect", x=left, y=y - 11, width=max(right - left, 0), height=22, class_="band"))
    if chart.kind is doc.ChartKind.INTERVALS:
        height = _BAR if not chart.y.is_log else 1
        box = empty(
            "rect", x=x.start, y=y - height / 2, width=max(x(mark.y) - x.start, 0), height=height, class_="value"
        )
        parts.append(box)
    if mark.low is not None and mark.high is not None:
        parts.append(_whisker(x, y, mark.low, mark.high))
    parts.append(marker(shape, x(mark.y), y, bool(mark.flags), tip(mark, chart), mark.case))
    parts.append(element("text", quantity(mark.y, chart.y), x=x.end + 14, y=y + 4, class_="sum"))
    return element("g", *parts)


def _whisker(x: Scale, y: float, low: float, high: float) -> Markup:
    """Return the interval; an end that leads out of the scale is an arrow."""
    left, right = x(max(low, x.low)), x(min(high, x.high))
    first = f"M{left:g} {y - 5:g}v10m0-5" if low >= x.low else f"M{left + 6:g} {y - 5:g}l-6 5l6 5M{left:g} {y:g}"
    last = "m0-5v10" if high <= x.high else "m-6-5l6 5l-6 5"
    return empty("path", d=f"{first}H{right:g}{last}", class_="whisker")


def _group(series: doc.Series, parts: Sequence[Markup], colour: str) -> Markup:
    return element("g", *parts, class_=f"series {colour}", data_series=series.key,
                   data_name=_short(series.name) or None)  # fmt: skip


def _short(text: str, most: int = 70) -> str:
    return cut(flat(text), most)


# --- courses ------------------------------------------------------------------------------------------------------


def course(chart: doc.Chart, panel: Sequence[doc.Series]) -> Drawing:
    """Return the times of a case over runs, with the band of the noise around their level.

    All marks have the same ``low`` and ``high``, the ends of the band.
    """
    marks = [mark for series in panel for mark in series.marks]
    ends = [value for mark in marks for value in (mark.y, mark.low, mark.high) if value is not None]
    room = 0.12 * (max(ends) - min(ends)) or 0.02 * max(ends) or 1.0
    y = Scale(max(min(ends) - room, 0.0), max(ends) + room, _TOP + _COURSE, _TOP)
    x = Scale(marks[0].x, max(marks[-1].x, marks[0].x + 1), _LEFT + 14, _WIDTH - _RIGHT - 32)
    parts = [*_course_grid(chart, marks, x, y), *_level(marks, x, y)]
    colour, _ = line_classes(chart)[panel[0].key]
    path = "M" + "L".join(f"{x(mark.x):g} {y(mark.y):g}" for mark in marks)
    own = [empty("path", d=path, class_="line")]
    own += [marker("circle", x(mark.x), y(mark.y), bool(mark.flags), tip(mark, chart)) for mark in marks]
    parts.append(element("g", *own, class_=f"series {colour}"))
    return Drawing(join(parts), _WIDTH, _TOP + _COURSE + _BOTTOM)


def _course_grid(chart: doc.Chart, marks: Sequence[doc.Mark], x: Scale, y: Scale) -> Iterator[Markup]:
    yield from value_grid(chart.y, y, _LEFT, _WIDTH - _RIGHT)
    step = -(-len(marks) // _LABELS)
    for mark in marks[::-1][::step]:
        # The label is the date and the run.
        text = cut(flat(chart.x.labels[int(mark.x)].partition(" ")[0]), 16)
        yield element("text", text, x=x(mark.x), y=y.start + 17, class_="tick middle")


def _level(marks: Sequence[doc.Mark], x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the band and the level in its middle."""
    low, high = marks[0].low, marks[0].high
    if low is None or high is None:
        return
    half = (x(marks[1].x) - x(marks[0].x)) / 2 if len(marks) > 1 else 14
    left, right, level = x(marks[0].x) - half, x(marks[-1].x) + half, (low * high) ** 0.5
    yield empty("rect", x=left, y=y(high), width=right - left, height=y(low) - y(high), class_="band")
    yield empty("line", x1=left, x2=right, y1=y(level), y2=y(level), class_="ref level")
