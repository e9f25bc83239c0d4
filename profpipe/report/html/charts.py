"""Charts: a figure with its legend, its pictures and the table of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.html import bars, course, lines, points
from profpipe.report.html.markup import element, empty, short
from profpipe.report.html.palette import key_class, line_classes, series_class

#: The id of the element of a case; empty where the case has no page.
Target = Callable[[str], str]

#: What draws a panel of a chart.
_PICTURES: Mapping[doc.ChartKind, Callable[[doc.Chart, doc.Panel], Markup]] = {
    doc.ChartKind.LINES: lines.picture,
    doc.ChartKind.ROOFLINE: lines.picture,
    doc.ChartKind.STACKED_BARS: bars.picture,
    doc.ChartKind.COURSE: course.picture,
    doc.ChartKind.STRIP: points.strip,
    doc.ChartKind.INTERVALS: points.intervals,
    doc.ChartKind.FOREST: points.intervals,
}


def figure(chart: doc.Chart, id: str, caption: Markup, table: Markup, target: Target) -> Markup:
    """Return the chart with its title, its legend and ``table``, which holds its values."""
    linked = _with_targets(chart, target)
    is_over_axis = chart.kind in (doc.ChartKind.LINES, doc.ChartKind.ROOFLINE)
    unit = f", {chart.y.unit.name}" if is_over_axis and chart.y.unit and chart.y.unit.name else ""
    head = element(
        "figcaption",
        element("h3", short(chart.title + unit), id=f"{id}-title"),
        element("p", short(chart.subtitle), class_="subtitle") if chart.subtitle else "",
    )
    panels = [
        element("div", element("h4", short(panel.title)) if panel.title else "", _PICTURES[chart.kind](linked, panel),
                class_="panel")
        for panel in linked.panels
    ]  # fmt: skip
    grid = element("div", *panels, class_="panels several" if len(panels) > 1 else "panels")
    below = element("p", caption, class_="caption") if caption else ""
    values = element("details", element("summary", "Table of the values"), table, class_="values")
    return element("figure", head, _legend(chart), grid, below, values, class_=f"chart {chart.kind.value}", id=id,
                   aria_labelledby=f"{id}-title")  # fmt: skip


def _with_targets(chart: doc.Chart, target: Target) -> doc.Chart:
    """Return the chart with the id of the element of each case instead of the case; empty where it has no page."""
    panels = tuple(
        replace(panel, series=tuple(
            replace(series, marks=tuple(replace(mark, case=target(mark.case)) for mark in series.marks))
            for series in panel.series
        ))
        for panel in chart.panels
    )  # fmt: skip
    return replace(chart, panels=panels, x=replace(chart.x, cases=tuple(map(target, chart.x.cases))))


def _legend(chart: doc.Chart) -> Markup:
    """Return a button for each series; one of them alone needs no legend."""
    every = {series.key: series for series in chart.series if series.name}
    if len(every) < 2:
        return Markup("")
    classes = line_classes(chart)
    buttons = []
    for key, series in every.items():
        if chart.kind is doc.ChartKind.STACKED_BARS:
            box = empty("rect", x=1, y=3, width=14, height=10, rx=2, class_="piece")
            colour = key_class(key)
            mark = element("svg", box, viewBox="0 0 16 16", class_="swatch patch", aria_hidden="true")
        else:
            colour, shape = classes[key]
            mark = lines.swatch(shape, chart.kind is doc.ChartKind.LINES)
        buttons.append(element("button", mark, short(series.name, 60), type="button", aria_pressed="false",
                               class_=series_class(series, colour), data_series=key))  # fmt: skip
    return element("div", *buttons, class_="legend", role="group", aria_label="Series")
