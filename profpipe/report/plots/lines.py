"""Lines: panels side by side, and the names of the lines at their right ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.plots.style import COLOURS, DPI, GREY, INK, MARKERS, RC, STROKES, spread
from profpipe.report.units import Unit, number

#: From this share of a panel's width on a line ends at its right.
_AT_THE_RIGHT = 0.9

#: Inches: the width of a panel by how many stand side by side, its least height, the margins around the panels, and
#: the space between two rows and two columns: half of a tick label of each panel.
_WIDTHS = {1: 5.9, 2: 3.75, 3: 3.0}
_HEIGHT, _LEFT, _BELOW, _BETWEEN, _APART = 2.6, 0.72, 0.55, 0.62, 0.36

_LIMIT = {"color": GREY, "linestyle": (0, (4, 3)), "linewidth": 0.9, "marker": "", "zorder": 1}

Style = Mapping[str, Any]


def figure(chart: doc.Chart) -> Any:
    """Return the figure of a chart: panels with common scales."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels, styles = _with_limits(chart), _styles(chart)
    columns = _columns(panels)
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    labels = {series.name for panel in panels for series in panel.series}
    names = {name for row in rows for name in _names(row).values()}
    size = 8.5 if len(labels) <= 14 else 7.5
    height = max(_HEIGHT * (1.25 if columns == 1 else 1), len(labels) * _line_height(size))
    right = 0.075 * size / 8.5 * max((len(name) for name in names), default=0) + 0.5 if any(names) else 0.2
    above = 0.95 if len(panels) > 1 else 0.68
    width = _LEFT + columns * _WIDTHS[columns] + (columns - 1) * _APART + right
    total = above + len(rows) * height + (len(rows) - 1) * _BETWEEN + _BELOW
    with matplotlib.rc_context(RC):
        # Without pyplot's global state, which needs no display.
        made = Figure(figsize=(width, total), dpi=DPI)
        FigureCanvasAgg(made)
        grid = made.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
        made.subplots_adjust(
            left=_LEFT / width, right=1 - right / width, top=1 - above / total, bottom=_BELOW / total,
            hspace=_BETWEEN / height, wspace=_APART / _WIDTHS[columns],
        )  # fmt: skip
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel, chart, styles)
            axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
        _label_columns(grid, len(panels), chart.x.title)
        unit = f", {chart.y.unit.name}" if chart.y.unit and chart.y.unit.name else ""
        made.text(0.02, 1 - 0.1 / total, chart.title + unit, fontsize=11, fontweight="bold", color=INK, va="top")
        made.text(0.02, 1 - 0.32 / total, chart.subtitle, fontsize=8.5, color=GREY, va="top")
        for axes, row in zip(grid, rows, strict=True):
            _label_lines(axes[len(row) - 1], row, styles, size)
    return made


def _styles(chart: doc.Chart) -> Mapping[str, Style]:
    """Return the style of each series by its name: the baseline is black, rejected series are grey."""
    every = chart.series
    baselines = {series.key for series in every if series.is_baseline}
    found: dict[str, Style] = {key: {"color": INK, "linestyle": "-", "marker": "o", "zorder": 3} for key in baselines}
    for i, key in enumerate(key for key in chart.every_key if key not in baselines):
        turn = i // len(COLOURS)
        found[key] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": STROKES[turn % len(STROKES)],
            "marker": MARKERS[(i + turn + 1) % len(MARKERS)],
            "zorder": 2,
        }
    grey = {"color": GREY, "zorder": 1}
    styles = {series.name: {**found[series.key], **(grey if series.is_rejected else {})} for series in every}
    return styles | {each.name: _LIMIT for each in chart.references if each.kind is doc.ReferenceKind.LIMIT}


def _with_limits(chart: doc.Chart) -> tuple[doc.Panel, ...]:
    """Return the panels with a line for each value that is allowed at most or at least."""
    xs = [mark.x for mark in chart.marks]
    limits = tuple(
        doc.Series(each.name, "", tuple(doc.Mark(x, each.value) for x in (min(xs), max(xs))))
        for each in chart.references
        if each.kind is doc.ReferenceKind.LIMIT
    )
    return tuple(doc.Panel(panel.title, (*panel.series, *limits)) for panel in chart.panels)


def _columns(panels: Sequence[doc.Panel]) -> int:
    """Return 2, so that both values of the last axis stand side by side, or 3 where the axis has three values."""
    if len(panels) == 1:
        return 1
    last = {panel.title.rpartition(", ")[2] for panel in panels}
    return 3 if len(last) == 3 and len(panels) % 3 == 0 else 2


def _label_columns(grid: Any, used: int, axis: str) -> None:
    """Name the axis below the lowest panel of each column, and hide unused panels."""
    _, columns = grid.shape
    for i, axes in enumerate(grid.flat):
        if i >= used:
            axes.set_visible(False)
        elif i + columns >= used:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(axis)


def _draw_panel(axes: Any, panel: doc.Panel, chart: doc.Chart, styles: Mapping[str, Style]) -> None:
    for series in panel.series:
        style, marks = styles[series.name], series.marks
        size = 0.0 if chart.is_course and len(marks) > 1 else None
        axes.plot([mark.x for mark in marks], [mark.y for mark in marks], label=series.name, markeredgecolor="white",
                  markeredgewidth=0.6, markersize=size, **style)  # fmt: skip
        # A band between the marks would show sizes that were not measured.
        for mark in marks:
            if mark.has_visible_range:
                axes.plot([mark.x, mark.x], [mark.low, mark.high], color=style["color"], linewidth=3.2, alpha=0.3,
                          solid_capstyle="butt", zorder=1)  # fmt: skip
        hollow = [mark for mark in marks if mark.flags]
        axes.plot([mark.x for mark in hollow], [mark.y for mark in hollow], linestyle="none", marker=style["marker"],
                  markerfacecolor="white", markeredgecolor=style["color"], zorder=4)  # fmt: skip
    _set_scales(axes, chart)
    for reference in chart.references:
        if reference.kind is doc.ReferenceKind.LEVEL:
            axes.axhline(reference.value, color=GREY, linewidth=1, zorder=1)
        elif reference.kind is doc.ReferenceKind.PEAK:
            _draw_peak(axes, reference.value)


def _set_scales(axes: Any, chart: doc.Chart) -> None:
    """Set the same scales for all panels."""
    from matplotlib import ticker

    xs = sorted({mark.x for mark in chart.marks})
    step = -(-len(xs) // (12 if len(chart.panels) == 1 else 6))
    axes.set_xscale("log" if chart.x.is_log else "linear")
    fixed = ticker.FixedLocator(xs[::-1][::step])
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6) if chart.has_round_ticks else fixed)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: position(x, chart.x)))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    if chart.y.is_log:
        ys = [mark.y for mark in chart.marks]
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if max(ys) / min(ys) < 300 else (1,)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    ends = value_range(chart)
    axes.set_ylim(*ends)
    if chart.y.quantity == "byte":
        axes.yaxis.set_major_locator(ticker.FixedLocator(round_sizes(*ends, chart.y.is_log)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: tick(y, chart.y.quantity, chart.y.unit)))
    axes.grid(axis="y")
    axes.margins(x=0.03)


def value_range(chart: doc.Chart) -> tuple[float, float]:
    """Return the ends of the common y scale, with room around the marks; a linear scale of positive values has 0.

    matplotlib stops to fit a shared axis when one of its limits is set, so the limits are computed here.
    """
    drawn = [mark.y for mark in chart.marks]
    drawn += [end for mark in chart.marks if mark.has_visible_range for end in (mark.low, mark.high) if end]
    drawn += [each.value for each in chart.references if each.kind is not doc.ReferenceKind.PEAK]
    low, high = min(drawn), max(drawn)
    if chart.y.is_log:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = 0.05 * ((high - min(low, 0.0)) or 1.0)
    return (0.0 if low >= 0 else low - room), high + room


def round_sizes(low: float, high: float, is_log: bool) -> list[float]:
    """Return at most about nine sizes between ``low`` and ``high`` bytes that are whole in KiB, MiB or GiB."""
    if is_log:
        step = next((bits for bits in (1, 2) if high / low < 2 ** (8 * bits)), 4)
        first, last = math.ceil(math.log2(low) / step), math.floor(math.log2(high) / step)
        return [2.0 ** (step * i) for i in range(first, last + 1)]
    apart = 2.0 ** max(math.ceil(math.log2(max(high - low, 1.0) / 8)), 0)
    return [apart * i for i in range(math.ceil(low / apart), math.floor(high / apart) + 1)]


_TICK_UNITS = {
    "ns": (Unit("s", 1e9), Unit("ms", 1e6), Unit("us", 1e3), Unit("ns", 1.0)),
    "byte": (Unit("GiB", 2.0**30), Unit("MiB", 2.0**20), Unit("KiB", 2.0**10), Unit("byte", 1.0)),
}


def position(x: float, axis: doc.Axis) -> str:
    """Return the label of a tick of the horizontal axis."""
    if axis.quantity:
        return tick(x, axis.quantity)
    return f"{x:g}" if x < 1e6 else f"{x:.3g}"


def tick(value: float, quantity: str, unit: Unit | None = None) -> str:
    """Return the label of a tick: ``500 us``, then ``1 ms``; unlike a column, a scale changes its unit."""
    if quantity in _TICK_UNITS:
        chosen = next((u for u in _TICK_UNITS[quantity] if abs(value) >= u.size), _TICK_UNITS[quantity][-1])
        return f"{value / chosen.size:.4g} {chosen.name}" if value else "0"
    if quantity == "share":
        return f"{100 * value:.4g}"
    return f"{value / (unit.size if unit else 1.0):.4g}{'x' if quantity == 'x' else ''}"


def _draw_peak(axes: Any, peak: float) -> None:
    """Draw the machine's limit where it is near the data: a far limit would press the lines flat."""
    top = axes.get_ylim()[1]
    if peak > 1.4 * top:
        return
    axes.axhline(peak, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    axes.set_ylim(top=max(top, 1.04 * peak))
    axes.annotate(f"peak {number(peak)}", (0.01, peak), xycoords=("axes fraction", "data"), xytext=(0, -3),
                  textcoords="offset points", va="top", color=GREY, fontsize=8)  # fmt: skip


# --- the names of the lines ------------------------------------------------------------------------------------------


def _line_height(points: float) -> float:
    """Return the height of a line of text in inches."""
    return points / 72 * 1.24


def _names(row: Sequence[doc.Panel]) -> dict[str, str]:
    """Return the label of each series of a row; it names the panels of a series that the last panel lacks."""
    places = ("left", "middle", "right") if len(row) == 3 else ("left", "right")
    found = grouped(
        (name, place)
        for place, panel in zip(places, row, strict=False)
        for name in dict.fromkeys(series.name for series in panel.series)
    )
    last = places[len(row) - 1]
    return {
        name: name if not name or last in own or len(row) == 1 else f"{name} ({' and '.join(own)} only)"
        for name, own in found.items()
    }


def _label_lines(axes: Any, row: Sequence[doc.Panel], styles: Mapping[str, Style], size: float) -> None:
    """Write the names of a row's lines to the right of its last panel, in the order in which the lines end.

    A thin line ties a name to an end at the right; from further left it would cross other lines.
    """
    own = {series.name: series for panel in row for series in panel.series if series.name}
    tied, names = {series.name for series in row[-1].series}, _names(row)
    # matplotlib computes the limits when they are read.
    axes.get_xlim()
    ends = {name: axes.transData.transform((each.marks[-1].x, each.marks[-1].y)) for name, each in own.items()}
    box = axes.get_window_extent()
    heights = spread([end[1] for end in ends.values()], _line_height(size) * axes.figure.dpi, box.y0, box.y1)
    inches = box.width / axes.figure.dpi
    for name, height in zip(own, heights, strict=True):
        to = axes.transAxes.inverted().transform((box.x1, height))
        end = axes.transAxes.inverted().transform(ends[name])
        style = styles[name]
        if name in tied and end[0] > _AT_THE_RIGHT:
            axes.plot([end[0] + 0.05 / inches, 1 + 0.07 / inches, 1 + 0.17 / inches], [end[1], to[1], to[1]],
                      transform=axes.transAxes, clip_on=False, color=style["color"], linewidth=0.6, alpha=0.7,
                      zorder=1)  # fmt: skip
        # Colours repeat from nine lines on; markers do not.
        axes.plot([1 + 0.22 / inches], [to[1]], transform=axes.transAxes, clip_on=False, marker=style["marker"],
                  color=style["color"], markeredgecolor="white", markeredgewidth=0.5, markersize=4)  # fmt: skip
        axes.text(1 + 0.29 / inches, to[1], names[name], transform=axes.transAxes, va="center_baseline",
                  color=style["color"], fontsize=size)  # fmt: skip
