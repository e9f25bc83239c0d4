"""Charts: a figure with its legend, its pictures and the table of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.html import bars, course, lines, points
from profpipe.report.html.markup import element, empty, short
from profpipe.report.html.palette import key_class, line_classes

#: The id of the element of a case; empty where the case has no page.
Target = Callable[[str], str]


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
        element("div", element("h4", short(title)) if title else "", picture, class_="panel")
        for title, picture in _pictures(linked)
    ]
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


def _pictures(chart: doc.Chart) -> list[tuple[str, Markup]]:
    match chart.kind:
        case doc.ChartKind.LINES | doc.ChartKind.ROOFLINE:
            return lines.pictures(chart)
        case doc.ChartKind.STACKED_BARS:
            return [("", bars.picture(chart))]
        case doc.ChartKind.COURSE:
            return [(panel.title, course.picture(chart, panel)) for panel in chart.panels]
        case doc.ChartKind.STRIP:
            return [(panel.title, points.strip(chart, panel)) for panel in chart.panels]
        case doc.ChartKind.INTERVALS | doc.ChartKind.FOREST:
            return [(panel.title, points.intervals(chart, panel)) for panel in chart.panels]


def _legend(chart: doc.Chart) -> Markup:
    """Return a button for each series; one of them alone needs no legend."""
    every = {series.key: series for panel in chart.panels for series in panel.series if series.name}
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
        rejected = " rejected" if series.is_rejected else ""
        buttons.append(element("button", mark, short(series.name, 60), type="button", aria_pressed="false",
                               class_=f"series {colour}{rejected}", data_series=key))  # fmt: skip
    return element("div", *buttons, class_="legend", role="group", aria_label="Series")
