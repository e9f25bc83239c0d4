"""What a chart shows of a point beside the pointer, and the table of its values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from profpipe.report import document as doc
from profpipe.report.markup import cut, flat
from profpipe.report.units import NO_UNIT, Unit, unit_of

#: Points of a strip up to which the table lists each of them.
_MOST_LISTED = 100

#: Stored units that decide how a number is written, whatever the unit of the axis.
_CHOSEN = ("ns", "byte", "x", "share", "change")


def column(axis: doc.Axis, values: Iterable[float], title: doc.Text, id: str) -> doc.Column:
    """Return the column of a quantity of a chart."""
    return doc.Column(id, title, _unit(axis, values))


def _unit(axis: doc.Axis, values: Iterable[float]) -> Unit | None:
    return unit_of(axis.quantity, values) if axis.quantity in _CHOSEN else axis.unit


def quantity(value: float, axis: doc.Axis) -> str:
    """Return a value of an axis with its unit."""
    return (_unit(axis, [value]) or NO_UNIT).with_name(value)


def tip(mark: doc.Mark, chart: doc.Chart) -> str:
    """Return the lines beside the pointer below the name of the series: place, value, range, flags and the note."""
    place = chart.x.labels[int(mark.x)] if chart.x.labels else f"{chart.x.title} {_place(mark.x, chart.x)}"
    lines = [cut(flat(place), 200), quantity(mark.y, chart.y)]
    if mark.low is not None and mark.high is not None:
        is_interval = chart.kind in (doc.ChartKind.INTERVALS, doc.ChartKind.FOREST)
        words = "interval" if is_interval else "band" if chart.kind is doc.ChartKind.COURSE else "10 to 90 %"
        lines.append(f"{words}: {quantity(mark.low, chart.y)} to {quantity(mark.high, chart.y)}")
    lines += [", ".join(mark.flags), cut(flat(mark.note), 300)]
    return "\n".join(dict.fromkeys(filter(None, lines)))


def _place(x: float, axis: doc.Axis) -> str:
    return quantity(x, axis) if axis.quantity or axis.unit else f"{x:g}"


def value_table(chart: doc.Chart) -> doc.Table:
    """Return the values of a chart: a row for each position of the x axis, a column for each series.

    A strip of many points has a row for each series.
    """
    if chart.kind is doc.ChartKind.STRIP and len(chart.marks) > _MOST_LISTED:
        return _ends(chart)
    has_panels = len(chart.panels) > 1
    names = list(dict.fromkeys(series.name for series in chart.series))
    by_name = {name: [m.y for s in chart.series if s.name == name for m in s.marks]
               for name in names}  # fmt: skip
    every = [value for values in by_name.values() for value in values]
    one = column(chart.y, every, "", "")
    columns = [
        *([doc.label("panel", "")] if has_panels else []),
        doc.label("x", chart.x.title or ""),
        *(replace(one, id=f"series {i}", title=name or "everything else") for i, name in enumerate(names)),
    ]
    rows = []
    for title, panel in chart.panels.items():
        values = {(series.name, mark.x): mark for series in panel for mark in series.marks}
        for x in sorted({x for _, x in values}):
            marks = [values.get((name, x)) for name in names]
            cells = [doc.Cell(mark.y, flags=mark.flags) if mark else doc.Cell() for mark in marks]
            rows.append((*([doc.Cell(text=title)] if has_panels else []), _label(chart, x, values, names), *cells))
    return doc.Table("values", tuple(columns), tuple(rows))


def _ends(chart: doc.Chart) -> doc.Table:
    """Return the number of points of each series that are drawn, and the least and the largest of them.

    Quantiles of the points that are drawn are not those of all values, of which a strip may leave out some.
    """
    every = chart.series
    values = [mark.y for series in every for mark in series.marks]
    columns = [doc.label("series", ""), doc.count("points"), column(chart.y, values, "least", "least"),
               column(chart.y, values, "largest", "largest")]  # fmt: skip
    rows: list[list[doc.Text | float]] = []
    for series in every:
        own = [mark.y for mark in series.marks]
        rows.append([series.name, float(len(own)), min(own), max(own)])
    return doc.make_table("values", columns, rows)


def _label(chart: doc.Chart, x: float, values: dict[tuple[str, float], doc.Mark], names: Iterable[str]) -> doc.Cell:
    if not chart.x.labels:
        return doc.Cell(text=_place(x, chart.x))
    text, case = chart.x.labels[int(x)], chart.x.cases[int(x)] if chart.x.cases else ""
    return doc.Cell(text=doc.case_link(text, case) if case else text)
