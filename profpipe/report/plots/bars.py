"""Stacked bars: a bar for each label of the chart's x axis, a colour for each series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profpipe.report.document import Chart, Series
from profpipe.report.plots.style import INK, RC, figure_of, head
from profpipe.report.units import Unit, number

#: Colours by the key of a series: attention stands out, and the kernels that it needs around it are warm.
_COLOURS = {
    "attention": "#0072B2", "helpers": "#56B4E9", "direct_copy": "#D55E00", "add": "#E69F00", "gemm": "#009E73",
    "softmax": "#CC79A7", "copy": "#EDB08F", "elementwise": "#9C8FBF", "reduction": "#7FA3B5", "norm": "#B99B7A",
    "optimizer": "#A3AC6B", "conv": "#86C5AF", "communication": "#5B5F8A", "fused": "#D9C277", "graph": "#7F858C",
    # Parts of a step in which nothing computes. Idle time is pale.
    "step_communication": "#5B5F8A", "step_copy": "#8A5A44", "step_idle_launch": "#F3C1BC",
    "step_idle_blocked": "#F5DFAE", "step_idle_other": "#E3E5E8",
}  # fmt: skip
_OTHER = "#B4B8BD"

#: Inches: the width of the figure; in the legend a letter, the space around a name, and the height of a row.
_WIDTH, _LETTER, _AROUND, _ROW = 7.6, 0.075, 0.42, 0.2


def figure(chart: Chart) -> Any:
    """Return the figure of a chart with one panel. A bar that dwarfs the others has its own scale.

    A series without a name is part of the bars and not of the legend.
    """
    import matplotlib

    names, series = chart.x.labels, chart.panels[0].series
    left = min(0.35, (0.078 * max(map(len, names)) + 0.15) / _WIDTH)
    named = [each for each in series if each.name]
    columns = legend_columns([each.name for each in named], (1 - left) * _WIDTH)
    above = 0.85 + _ROW * (-(-len(named) // columns) - 1)
    height = 0.34 * len(names) + 0.7 + above
    with matplotlib.rc_context(RC):
        made = figure_of(_WIDTH, height)
        axes = made.subplots()
        _draw_bars(axes, series, len(names), chart.y.unit or Unit("", 1.0))
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="x")
        axes.set_xlabel(chart.y.title)
        made.subplots_adjust(left=left, right=0.97, top=1 - above / height, bottom=0.5 / height)
        head(made, chart.title, chart.subtitle)
        _draw_legend(made, named, columns, (left - 0.01, 1 - 0.5 / height))
    return made


def _draw_bars(axes: Any, series: Sequence[Series], rows: int, unit: Unit) -> None:
    widths = [{mark.x: mark.y / unit.size for mark in each.marks} for each in series]
    totals = [sum(width.get(row, 0.0) for width in widths) for row in range(rows)]
    # Of two bars the longer one: neither dwarfs the other.
    middle = sorted(totals)[len(totals) // 2]
    limit = max(total for total in totals if total <= 3 * middle)
    for row, total in enumerate(totals):
        has_own_scale = total > 1.02 * limit
        left, scale = 0.0, limit / total if has_own_scale else 1.0
        for each, width in zip(series, widths, strict=True):
            if length := width.get(row, 0.0) * scale:
                axes.barh(row, length, left=left, height=0.66, color=_COLOURS.get(each.key, _OTHER), edgecolor="white",
                          linewidth=0.5, alpha=0.55 if has_own_scale else 1.0)  # fmt: skip
                left += length
        label = f"{number(total)}, own scale" if has_own_scale else number(total)
        axes.annotate(label, (left, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5,
                      color=INK)  # fmt: skip
    axes.set_xlim(0, 1.25 * limit)
    axes.set_ylim(rows - 0.45, -0.6)


def legend_columns(names: Sequence[str], inches: float) -> int:
    """Return how many columns of a legend fit; a column is as wide as its longest name."""
    for columns in range(len(names), 1, -1):
        longest = [max(map(len, names[i::columns])) for i in range(columns)]
        if sum(_LETTER * letters + _AROUND for letters in longest) <= inches:
            return columns
    return 1


def _draw_legend(figure: Any, series: Sequence[Series], columns: int, corner: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    # matplotlib fills columns; people read rows.
    ordered = [each for i in range(columns) for each in series[i::columns]]
    handles = [Patch(color=_COLOURS.get(each.key, _OTHER), label=each.name) for each in ordered]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, ncols=columns, frameon=False, fontsize=8.5,
                  handlelength=0.9, handleheight=0.9, columnspacing=1.2, handletextpad=0.4,
                  labelcolor=INK)  # fmt: skip
