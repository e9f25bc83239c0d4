"""The course of a time over runs: its points, its level and the band of its noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.html.lines import marker
from profpipe.report.html.markup import cut, element, empty, flat
from profpipe.report.html.palette import line_classes
from profpipe.report.html.scales import Scale, svg, value_grid
from profpipe.report.html.tips import tip

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 190, 66, 34, 22, 40
#: Labels below the points at most.
_LABELS = 6


def picture(chart: doc.Chart, panel: doc.Panel) -> Markup:
    """Return the picture. All marks have the same ``low`` and ``high``, the ends of the band."""
    marks = [mark for series in panel.series for mark in series.marks]
    ends = [value for mark in marks for value in (mark.y, mark.low, mark.high) if value is not None]
    room = 0.12 * (max(ends) - min(ends)) or 0.02 * max(ends) or 1.0
    y = Scale(max(min(ends) - room, 0.0), max(ends) + room, _TOP + _HEIGHT, _TOP)
    x = Scale(marks[0].x, max(marks[-1].x, marks[0].x + 1), _LEFT + 14, _WIDTH - _RIGHT - 14)
    parts = [*_grid(chart, marks, x, y), *_level(marks, x, y)]
    colour, _ = line_classes(chart)[panel.series[0].key]
    path = "M" + "L".join(f"{x(mark.x):g} {y(mark.y):g}" for mark in marks)
    own = [empty("path", d=path, class_="line")]
    own += [marker("circle", x(mark.x), y(mark.y), bool(mark.flags), tip(mark, chart)) for mark in marks]
    parts.append(element("g", *own, class_=f"series {colour}"))
    return svg(parts, _WIDTH, _TOP + _HEIGHT + _BOTTOM, chart.title, "course")


def _grid(chart: doc.Chart, marks: Sequence[doc.Mark], x: Scale, y: Scale) -> Iterator[Markup]:
    bottom = _TOP + _HEIGHT
    yield from value_grid(chart.y, y, _LEFT, _WIDTH - _RIGHT)
    step = -(-len(marks) // _LABELS)
    for mark in marks[::-1][::step]:
        # The label is the date and the run.
        text = cut(flat(chart.x.labels[int(mark.x)].partition(" ")[0]), 16)
        yield element("text", text, x=x(mark.x), y=bottom + 17, class_="tick middle")


def _level(marks: Sequence[doc.Mark], x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the band and the level in its middle."""
    low, high = marks[0].low, marks[0].high
    if low is None or high is None:
        return
    half = (x(marks[1].x) - x(marks[0].x)) / 2 if len(marks) > 1 else 14
    left, right, level = x(marks[0].x) - half, x(marks[-1].x) + half, (low * high) ** 0.5
    yield empty("rect", x=left, y=y(high), width=right - left, height=y(low) - y(high), class_="band")
    yield empty("line", x1=left, x2=right, y1=y(level), y2=y(level), class_="ref level")
