"""Charts: a figure with its legend, its pictures and the table of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.markup import cut, element, flat, short
from profpipe.report.svg.charts import draw, heading, legend

#: The id of the element of a case; empty where the case has no page.
Target = Callable[[str], str]


def figure(chart: doc.Chart, id: str, caption: Markup, table: Markup, target: Target) -> Markup:
    """Return the chart with its title, its legend and ``table``, which holds its values."""
    linked = _with_targets(chart, target)
    head = element(
        "figcaption",
        element("h3", short(heading(chart)), id=f"{id}-title"),
        element("p", short(chart.subtitle), class_="subtitle") if chart.subtitle else "",
    )
    panels = [
        element("div", element("h4", short(title)) if title else "", _picture(linked, title), class_="panel")
        for title in linked.panels
    ]  # fmt: skip
    grid = element("div", *panels, class_="panels several" if len(panels) > 1 else "panels")
    below = element("p", caption, class_="caption") if caption else ""
    values = element("details", element("summary", "Table of the values"), table, class_="values")
    return element("figure", head, _legend(chart), grid, below, values, class_=f"chart {chart.kind.value}", id=id,
                   aria_labelledby=f"{id}-title")  # fmt: skip


def _with_targets(chart: doc.Chart, target: Target) -> doc.Chart:
    """Return the chart with the id of the element of each case instead of the case; empty where it has no page."""
    panels = {
        title: tuple(
            replace(series, marks=tuple(replace(mark, case=target(mark.case)) for mark in series.marks))
            for series in panel
        )
        for title, panel in chart.panels.items()
    }
    return replace(chart, panels=panels, x=replace(chart.x, cases=tuple(map(target, chart.x.cases))))


def _picture(chart: doc.Chart, title: str) -> Markup:
    content, width, height = draw(chart, chart.panels[title])
    name = f"{chart.title}, {title}" if title else chart.title
    return element("svg", content, viewBox=f"0 0 {width:g} {height:g}", role="img",
                   aria_label=cut(flat(name), 300), class_=f"plot {chart.kind.value}")  # fmt: skip


def _legend(chart: doc.Chart) -> Markup:
    """Return a button for each series; one of them alone needs no legend."""
    buttons = []
    for series, classes, (sign, width, height) in legend(chart):
        mark = element("svg", sign, viewBox=f"0 0 {width} {height}", width=width, height=height, class_="swatch",
                       aria_hidden="true")  # fmt: skip
        buttons.append(element("button", mark, short(series.name, 60), type="button", aria_pressed="false",
                               class_=classes, data_series=series.key))  # fmt: skip
    return element("div", *buttons, class_="legend", role="group", aria_label="Series") if buttons else Markup("")
