"""Lines over an axis, drawn: a panel for each combination of the other axes, names at the right ends of the lines."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profpipe.findings import Axes
from profpipe.page.canvas import COLOURS, GREY, INK, MARKERS, RC, STROKES, figure_of, head, save, spread
from profpipe.page.markdown import listed
from profpipe.page.quantities import number
from profpipe.page.wording import cases
from profpipe.points import in_words

#: From this share of a panel's width on a line ends at its right.
_AT_THE_RIGHT = 0.9

#: Inches: the width of a panel by how many stand side by side, its least height, what stands around the panels, and
#: what lies between two of a row: half of a label of each axis, which stands under its end.
_WIDTHS = {1: 5.9, 2: 3.75, 3: 3.0}
_HEIGHT, _LEFT, _BELOW, _BETWEEN, _APART = 2.6, 0.72, 0.55, 0.62, 0.36


@dataclass(frozen=True)
class Dot:
    """One case in a picture; ``hollow`` ones carry a mark of their own."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False

    @property
    def spreads(self) -> bool:
        """Whether it is worth drawing how far the samples lie apart."""
        return self.low is not None and self.high is not None and self.high > 1.05 * self.low


@dataclass(frozen=True)
class Series:
    """One line: what it is called, how it looks, and its dots from left to right."""

    label: str
    style: Mapping[str, Any]
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the values that the other axes have in it, and its lines."""

    others: Axes
    lines: tuple[Series, ...]


@dataclass(frozen=True)
class Picture:
    """What a picture says around its lines; ``tick`` writes a value at the axis.

    ``decades``: whether its values may span several, as times do. ``binary``: whether they are bytes, whose units are
    powers of two. ``peak`` is the machine's limit, ``level`` a value that divides the good from the bad.
    """

    title: str
    below: str
    axis: str
    tick: Callable[[float], str]
    decades: bool
    unit: str = ""
    peak: float | None = None
    level: float | None = None
    binary: bool = False


def styles(names: Iterable[str], baseline: str | None = None) -> dict[str, dict[str, Any]]:
    """A look for each name, the same in every picture that is given them in this order; the baseline is black."""
    found: dict[str, dict[str, Any]] = {}
    if baseline is not None:
        found[baseline] = {"color": INK, "linestyle": "-", "marker": "o", "zorder": 3}
    for i, name in enumerate(name for name in names if name not in found):
        turn = i // len(COLOURS)
        found[name] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": STROKES[turn % len(STROKES)],
            "marker": MARKERS[(i + turn + 1) % len(MARKERS)],
            "zorder": 2,
        }
    return found


def rejected(looks: Mapping[str, Mapping[str, Any]], wrong: Mapping[str, Sequence[bool]]) -> dict[str, tuple[str, Any]]:
    """(label, look) by name: grey and called inaccurate where most of its cases are, so that no wrong line leads.

    ``wrong`` says of each name's cases whether they are.
    """
    return {
        name: (f"{name} (inaccurate)", {**look, "color": GREY, "zorder": 1})
        if 2 * sum(cases) > len(cases)
        else (name, look)
        for name, look in looks.items()
        for cases in [wrong.get(name, ())]
    }


def caption(picture: Picture, panels: Sequence[Panel]) -> str:
    """What the signs in a picture mean, those that occur in it."""
    said, dots = [], [dot for panel in panels for line in panel.lines for dot in line.dots]
    if picture.peak is not None:
        said.append(f"The machine's peak is {number(picture.peak)} {picture.unit}.")
    if any(dot.hollow for dot in dots):
        said.append("Hollow: the case carries a mark.")
    if any(dot.spreads for dot in dots):
        said.append("Bars: 10th to 90th percentile.")
    return " ".join(said)


def not_shown(left_out: Mapping[str, Sequence[str]]) -> str:
    """How many cases have no dot for what they compute: why to the lines of those."""
    said = []
    for why, own in left_out.items():
        names = listed(filter(None, dict.fromkeys(own)))
        said.append(f"{cases(len(own))} {why}{f' ({names})' if names else ''}")
    return f"Not shown: {listed(said)}." if said else ""


def draw(picture: Picture, panels: Sequence[Panel], path: Path) -> None:
    """Draws ``panels`` into ``path``, all with the same scales."""
    import matplotlib

    columns = _side_by_side(panels)
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    labels = {line.label for panel in panels for line in panel.lines}
    names = {name for row in rows for name in _names(row).values()}
    size = 8.5 if len(labels) <= 14 else 7.5
    height = max(_HEIGHT * (1.25 if columns == 1 else 1), len(labels) * _line_height(size))
    right = 0.075 * size / 8.5 * max((len(name) for name in names), default=0) + 0.5 if any(names) else 0.2
    above = 0.95 if len(panels) > 1 else 0.68
    width = _LEFT + columns * _WIDTHS[columns] + (columns - 1) * _APART + right
    total = above + len(rows) * height + (len(rows) - 1) * _BETWEEN + _BELOW
    with matplotlib.rc_context(RC):
        figure = figure_of(width, total)
        grid = figure.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
        figure.subplots_adjust(
            left=_LEFT / width, right=1 - right / width, top=1 - above / total, bottom=_BELOW / total,
            hspace=_BETWEEN / height, wspace=_APART / _WIDTHS[columns],
        )  # fmt: skip
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel, panels, picture)
            axes.set_title(in_words(panel.others), loc="left", fontsize=9, color=INK)
        _label_columns(grid, len(panels), picture.axis)
        head(figure, picture.title + (f", {picture.unit}" if picture.unit else ""), picture.below)
        for axes, row in zip(grid, rows, strict=True):
            _label_lines(axes[len(row) - 1], row, size)
        save(figure, path)


def _side_by_side(panels: Sequence[Panel]) -> int:
    """Two panels, so that the two values of the last axis stand beside each other; three where it has three."""
    if len(panels) == 1:
        return 1
    last = [panel.others[-1] for panel in panels if panel.others]
    return 3 if len({str(value) for _, value in last}) == 3 and len(panels) % 3 == 0 else 2


def _label_columns(grid: Any, used: int, axis: str) -> None:
    """The lowest panel of each column names the axis; panels without a case vanish."""
    _, columns = grid.shape
    for i, axes in enumerate(grid.flat):
        if i >= used:
            axes.set_visible(False)
        elif i + columns >= used:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(axis)


def _draw_panel(axes: Any, panel: Panel, panels: Sequence[Panel], picture: Picture) -> None:
    for line in panel.lines:
        xs, ys = [dot.x for dot in line.dots], [dot.y for dot in line.dots]
        axes.plot(xs, ys, label=line.label, markeredgecolor="white", markeredgewidth=0.6, **line.style)
        # A band between points would tell of sizes that nobody measured.
        for dot in line.dots:
            if dot.spreads:
                axes.plot([dot.x, dot.x], [dot.low, dot.high], color=line.style["color"], linewidth=3.2, alpha=0.3,
                          solid_capstyle="butt", zorder=1)  # fmt: skip
        hollow = [dot for dot in line.dots if dot.hollow]
        axes.plot([dot.x for dot in hollow], [dot.y for dot in hollow], linestyle="none", marker=line.style["marker"],
                  markerfacecolor="white", markeredgecolor=line.style["color"], zorder=4)  # fmt: skip
    _scale(axes, [dot for each in panels for line in each.lines for dot in line.dots], picture, alone=len(panels) == 1)
    if picture.level is not None:
        axes.axhline(picture.level, color=GREY, linewidth=1, zorder=1)
    _peak_line(axes, picture)


def _scale(axes: Any, dots: Sequence[Dot], picture: Picture, alone: bool) -> None:
    """One scale for all panels; logarithmic where a linear one would hide small values that matter."""
    from matplotlib import ticker

    xs, ys = sorted({dot.x for dot in dots}), [dot.y for dot in dots]
    step = -(-len(xs) // (12 if alone else 6))
    axes.set_xscale("log" if doubles(xs) else "linear")
    axes.xaxis.set_major_locator(ticker.FixedLocator(xs[::-1][::step]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}" if x < 1e6 else f"{x:.3g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    if picture.decades and min(ys) > 0 and max(ys) / min(ys) >= 20:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if max(ys) / min(ys) < 300 else (1,)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    ends = limits(dots, picture.level, axes.get_yscale() == "log")
    axes.set_ylim(*ends)
    if picture.binary:
        axes.yaxis.set_major_locator(ticker.FixedLocator(round_sizes(*ends, axes.get_yscale() == "log")))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: picture.tick(y)))
    axes.grid(axis="y")
    axes.margins(x=0.03)


def limits(dots: Sequence[Dot], level: float | None, logarithmic: bool) -> tuple[float, float]:
    """The ends of the scale of y that all panels share, with room around what is drawn; 0 is one end where it can be.

    Set rather than left to matplotlib, which stops to fit a shared axis once any of its limits was set.
    """
    drawn = [dot.y for dot in dots] + [end for dot in dots if dot.spreads for end in (dot.low, dot.high) if end]
    drawn += [] if level is None else [level]
    low, high = min(drawn), max(drawn)
    if logarithmic:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = 0.05 * ((high - min(low, 0.0)) or 1.0)
    return (0.0 if low >= 0 else low - room), high + room


def round_sizes(low: float, high: float, logarithmic: bool) -> list[float]:
    """Numbers of bytes between the two, nine or so at most, that are whole in KiB, MiB or GiB."""
    if logarithmic:
        step = next((bits for bits in (1, 2) if high / low < 2 ** (8 * bits)), 4)
        first, last = math.ceil(math.log2(low) / step), math.floor(math.log2(high) / step)
        return [2.0 ** (step * i) for i in range(first, last + 1)]
    apart = 2.0 ** max(math.ceil(math.log2((high - low) / 8)), 0)
    return [apart * i for i in range(math.ceil(low / apart), math.floor(high / apart) + 1)]


def doubles(values: Sequence[float]) -> bool:
    """Whether sorted ``values`` are spaced by factors rather than by differences."""
    if len(values) < 2 or values[0] <= 0 or values[-1] / values[0] < 4:
        return False
    if len(values) == 2:
        return True
    steps = list(itertools.pairwise(values))
    return _unevenness([b / a - 1 for a, b in steps]) < _unevenness([b - a for a, b in steps])


def _unevenness(steps: Sequence[float]) -> float:
    return statistics.pstdev(steps) / statistics.fmean(steps)


def _peak_line(axes: Any, picture: Picture) -> None:
    """The machine's limit, where it is near enough to be in the picture without pressing the lines flat."""
    top = axes.get_ylim()[1]
    if picture.peak is None or picture.peak > 1.4 * top:
        return
    axes.axhline(picture.peak, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    axes.set_ylim(top=max(top, 1.04 * picture.peak))
    axes.annotate(f"peak {number(picture.peak)}", (0.01, picture.peak), xycoords=("axes fraction", "data"),
                  xytext=(0, -3), textcoords="offset points", va="top", color=GREY, fontsize=8)  # fmt: skip


# --- the names of the lines ------------------------------------------------------------------------------------------


def _line_height(size: float) -> float:
    """Of text in points, in inches."""
    return size / 72 * 1.24


def _names(row: Sequence[Panel]) -> dict[str, str]:
    """What is written for each label of a row: beside a panel without its line, also in which panel that is."""
    places = ("left", "middle", "right") if len(row) == 3 else ("left", "right")
    found: dict[str, list[str]] = {}
    for place, panel in zip(places, row, strict=False):
        for label in dict.fromkeys(line.label for line in panel.lines):
            found.setdefault(label, []).append(place)
    return {
        label: label if not label or places[len(row) - 1] in own or len(row) == 1 else f"{label} ({listed(own)} only)"
        for label, own in found.items()
    }


def _label_lines(axes: Any, row: Sequence[Panel], size: float) -> None:
    """Names to the right of the last panel of a row, as its lines end, pushed apart where they would overlap.

    A thin line ties a name to its end, where that is at the right: from further left it would cross the others.
    """
    own = {line.label: line for panel in row for line in panel.lines if line.label}
    tied, names = {line.label for line in row[-1].lines}, _names(row)
    # The limits follow from the lines only when they are asked for; to draw all for it takes as long as the picture.
    axes.get_xlim()
    ends = {name: axes.transData.transform((line.dots[-1].x, line.dots[-1].y)) for name, line in own.items()}
    box = axes.get_window_extent()
    heights = spread([end[1] for end in ends.values()], _line_height(size) * axes.figure.dpi, box.y0, box.y1)
    inches = box.width / axes.figure.dpi
    for (name, line), height in zip(own.items(), heights, strict=True):
        to = axes.transAxes.inverted().transform((box.x1, height))
        end = axes.transAxes.inverted().transform(ends[name])
        colour = line.style["color"]
        if name in tied and end[0] > _AT_THE_RIGHT:
            axes.plot([end[0] + 0.05 / inches, 1 + 0.07 / inches, 1 + 0.17 / inches], [end[1], to[1], to[1]],
                      transform=axes.transAxes, clip_on=False, color=colour, linewidth=0.6, alpha=0.7,
                      zorder=1)  # fmt: skip
        # Colours repeat from nine lines on; the marker does not.
        axes.plot([1 + 0.22 / inches], [to[1]], transform=axes.transAxes, clip_on=False, marker=line.style["marker"],
                  color=colour, markeredgecolor="white", markeredgewidth=0.5, markersize=4)  # fmt: skip
        axes.text(1 + 0.29 / inches, to[1], names[name], transform=axes.transAxes, va="center_baseline", color=colour,
                  fontsize=size)  # fmt: skip
