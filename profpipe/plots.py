"""Findings -> pictures: time, TFLOP/s and bandwidth over the sequence length, and where the time of a call goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profpipe import bars
from profpipe.canvas import (
    COLOURS,
    GREY,
    INK,
    MARKERS,
    RC,
    STROKES,
    Plot,
    figure_of,
    fixed,
    head,
    path_of,
    save,
    spread,
)
from profpipe.findings import Axes, Findings, Point, WorkloadFindings
from profpipe.points import in_words, running_axis, without
from profpipe.quantities import number

#: Panels of one picture, and how many stand side by side.
_PANELS = 9
_COLUMNS = {1: 1, 2: 2, 4: 2}


@dataclass(frozen=True)
class Dot:
    """One case in a picture; ``hollow`` ones carry a mark of their own."""

    x: float
    y: float
    low: float | None
    high: float | None
    hollow: bool

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
class Quantity:
    """What is plotted: ``value`` of a case, None where it has none; ``tick`` writes a value at the axis."""

    name: str
    title: str
    value: Callable[[Point], float | None]
    spread: Callable[[Point], tuple[float | None, float | None]]
    tick: Callable[[float], str]
    unit: str = ""
    peak: float | None = None
    #: A value that divides the good from the bad.
    level: float | None = None


def draw(findings: Findings, folder: Path) -> dict[str, list[Plot]]:
    """Draws what each workload has data for into ``folder/plots``; workload name to its pictures."""
    return {workload.name: list(_of(workload, findings, folder)) for workload in findings.workloads}


def _of(workload: WorkloadFindings, findings: Findings, folder: Path) -> Iterator[Plot]:
    axis = running_axis(point.shape for point in workload.points if point.time)
    for quantity in _quantities(workload):
        if axis is not None:
            yield from _over(workload, findings, axis, quantity, folder)
    if workload.compare and (shape := workload.largest) and len([p for p in shape.points if p.split]) > 1:
        yield bars.shares(workload, shape, folder)


def _quantities(workload: WorkloadFindings) -> Iterator[Quantity]:
    basis = workload.basis
    titles = {"time": "Median time of a call", "wall": "Wall time", "cpu_op": "Self time of CPU operators per call"}
    title = titles.get(basis.quantity, f"Kernel time per call ({basis.profiler})") if basis else ""
    if workload.compare and any(point.speedup not in (None, 1.0) for point in workload.points):
        bases = {point.variant for point in workload.points if point.is_baseline}
        over = f"How many times as fast as {min(bases) if len(bases) == 1 else 'the baseline'}"
        yield Quantity("speedup", over, lambda p: p.speedup, _none, "{:.4g}x".format, level=1.0)
    yield Quantity("time", title, lambda p: p.time.ns if p.time else None, _tenths, _time_tick)
    peak = _peak((point.tflops, point.of_peak_flops) for point in workload.points)
    yield Quantity("tflops", "Rate of computation", lambda p: p.tflops, _none, "{:.4g}".format, "TFLOP/s", peak)
    peak = _peak((point.gbytes_per_s, point.of_peak_bytes) for point in workload.points)
    yield Quantity(
        "bandwidth",
        "Rate of the bytes that a call must move",
        lambda p: p.gbytes_per_s,
        _none,
        "{:.4g}".format,
        "GB/s",
        peak,
    )


def _time_tick(ns: float) -> str:
    """``500 us``, then ``1 ms``: a scale changes its unit at a thousand, unlike a column."""
    name, size = next((n, s) for n, s in (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)) if ns >= s or s == 1.0)
    return f"{ns / size:.4g} {name}" if ns else "0"


def _tenths(point: Point) -> tuple[float | None, float | None]:
    return (point.time.p10, point.time.p90) if point.time else (None, None)


def _none(_: Point) -> tuple[None, None]:
    return None, None


def _peak(rates: Iterable[tuple[float | None, float | None]]) -> float | None:
    """The machine's limit, where all cases share it: it depends on the data type."""
    peaks = [rate / share for rate, share in rates if rate and share]
    return peaks[0] if peaks and max(peaks) - min(peaks) < 1e-6 * max(peaks) else None


def _over(
    workload: WorkloadFindings, findings: Findings, axis: str, quantity: Quantity, folder: Path
) -> Iterator[Plot]:
    """A picture for each nine panels; a panel for each combination of the other axes."""
    panels = list(_panels(workload, axis, quantity))
    for start in range(0, len(panels), _PANELS):
        part = f"-{start // _PANELS + 1}" if len(panels) > _PANELS else ""
        path = path_of(workload, f"{quantity.name}{part}")
        shown = panels[start : start + _PANELS]
        _picture(workload, axis, quantity, shown, folder / path)
        yield Plot(f"{quantity.title} over {axis}", path.as_posix(), _caption(workload, findings, quantity, shown))


def _panels(workload: WorkloadFindings, axis: str, quantity: Quantity) -> Iterator[Panel]:
    styles = _styles(workload)
    groups: dict[Axes, list[Point]] = {}
    for point in workload.points:
        groups.setdefault(without(point.shape, axis), []).append(point)
    for others, points in groups.items():
        lines = [_series(name, style, points, axis, quantity) for name, style in styles.items()]
        if kept := tuple(line for line in lines if line.dots):
            yield Panel(others, kept)


def _series(name: str, style: Mapping[str, Any], points: Sequence[Point], axis: str, quantity: Quantity) -> Series:
    dots = []
    for point in points:
        if point.variant == name and (value := quantity.value(point)):
            dots.append(
                Dot(float(dict(point.shape)[axis]), value, *quantity.spread(point), hollow=bool(point.own_marks))
            )
    return Series(name, style, tuple(sorted(dots, key=lambda dot: dot.x)))


def _styles(workload: WorkloadFindings) -> dict[str, dict[str, Any]]:
    """Each implementation's look, the same in every picture; the baseline is black."""
    baselines = {point.variant for point in workload.points if point.is_baseline}
    styles: dict[str, dict[str, Any]] = {}
    if len(baselines) == 1:
        styles[baselines.pop()] = {"color": INK, "linestyle": "-", "marker": "o", "zorder": 3}
    for i, name in enumerate(name for name in workload.variants if name not in styles):
        turn = i // len(COLOURS)
        styles[name] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": STROKES[turn % len(STROKES)],
            "marker": MARKERS[(i + turn + 1) % len(MARKERS)],
            "zorder": 2,
        }
    return styles


def _caption(workload: WorkloadFindings, findings: Findings, quantity: Quantity, panels: Sequence[Panel]) -> str:
    said = []
    if quantity.peak is not None:
        said.append(f"The machine's peak is {number(quantity.peak)} {quantity.unit}.")
    if any(dot.hollow for panel in panels for line in panel.lines for dot in line.dots):
        said.append("Hollow: the case carries a mark.")
    if any(dot.spreads for panel in panels for line in panel.lines for dot in line.dots):
        said.append("Bars: 10th to 90th percentile.")
    return " ".join(said)


# --- drawing ---------------------------------------------------------------------------------------------------------


def _picture(workload: WorkloadFindings, axis: str, quantity: Quantity, panels: Sequence[Panel], path: Path) -> None:
    import matplotlib

    columns = _COLUMNS.get(len(panels), 3)
    rows = -(-len(panels) // columns)
    names = {line.label: line.style for panel in panels for line in panel.lines if line.label}
    alone = len(panels) == 1
    with matplotlib.rc_context(RC):
        legend_rows = -(-len(names) // 5)
        height = max(4.2, 0.19 * len(names) + 1.6) if alone else 2.6 * rows + 1.1 + 0.22 * legend_rows
        figure = figure_of(7.6 if alone else 3.2 * columns + 0.9, height)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel, panels, quantity)
            axes.set_title(in_words(panel.others), loc="left", fontsize=9, color=INK)
        _label_columns(grid, len(panels), axis)
        head(figure, f"{quantity.title} over {axis}" + (f", {quantity.unit}" if quantity.unit else ""), fixed(workload))
        if alone:
            longest = max((len(name) for name in names), default=0)
            right = 1 - (0.073 * longest + 0.45) / 7.6 if names else 0.97
            figure.subplots_adjust(left=0.095, right=right, top=1 - 0.68 / height, bottom=0.55 / height)
            _label_lines(grid[0][0], panels[0].lines)
        else:
            width = figure.get_figwidth()
            bottom = (0.62 + 0.24 * legend_rows) / height
            figure.subplots_adjust(
                left=0.8 / width, right=0.985, top=1 - 0.9 / height, bottom=bottom, hspace=0.3, wspace=0.08
            )
            _legend(figure, names)
        save(figure, path)


def _label_columns(grid: Any, used: int, axis: str) -> None:
    """The lowest panel of each column names the axis; panels without a case vanish."""
    _, columns = grid.shape
    for i, axes in enumerate(grid.flat):
        if i >= used:
            axes.set_visible(False)
        elif i + columns >= used:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(axis)


def _draw_panel(axes: Any, panel: Panel, panels: Sequence[Panel], quantity: Quantity) -> None:
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
    _scale(axes, [dot for each in panels for line in each.lines for dot in line.dots], quantity, alone=len(panels) == 1)
    if quantity.level is not None:
        axes.axhline(quantity.level, color=GREY, linewidth=1, zorder=1)
    _peak_line(axes, quantity)


def _scale(axes: Any, dots: Sequence[Dot], quantity: Quantity, alone: bool) -> None:
    """One scale for all panels; logarithmic where a linear one would hide the small values."""
    from matplotlib import ticker

    xs, ys = sorted({dot.x for dot in dots}), [dot.y for dot in dots]
    step = -(-len(xs) // (12 if alone else 6))
    axes.set_xscale("log" if xs[0] > 0 and xs[-1] / xs[0] >= 4 else "linear")
    axes.xaxis.set_major_locator(ticker.FixedLocator(xs[::-1][::step]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}" if x < 1e6 else f"{x:.3g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    if max(ys) / min(ys) >= 20:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if max(ys) / min(ys) < 300 else (1,)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: quantity.tick(y)))
    axes.grid(axis="y")


def _peak_line(axes: Any, quantity: Quantity) -> None:
    """The machine's limit, where it is near enough to be in the picture without pressing the lines flat."""
    top = axes.get_ylim()[1]
    if quantity.peak is None or quantity.peak > 1.8 * top:
        return
    axes.axhline(quantity.peak, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    axes.set_ylim(top=max(top, 1.06 * quantity.peak))
    axes.annotate(f"peak {number(quantity.peak)}", (0.01, quantity.peak), xycoords=("axes fraction", "data"),
                  xytext=(0, 3), textcoords="offset points", color=GREY, fontsize=8)  # fmt: skip


def _label_lines(axes: Any, lines: Sequence[Series]) -> None:
    """Names at the lines' right ends, pushed apart where they would overlap, tied to their ends by a thin line."""
    named = [line for line in lines if line.label]
    size = 8.5 if len(named) <= 14 else 7.5
    axes.margins(x=0.03)
    axes.figure.canvas.draw()
    ends = {line.label: axes.transData.transform((line.dots[-1].x, line.dots[-1].y)) for line in named}
    box = axes.get_window_extent()
    gap = size * axes.figure.dpi / 72 * 1.22
    heights = spread([ends[line.label][1] for line in named], gap, box.y0, box.y1)
    for line, height in zip(named, heights, strict=True):
        to = axes.transAxes.inverted().transform((box.x1, height))
        end = axes.transAxes.inverted().transform(ends[line.label])
        colour = line.style["color"]
        axes.plot([end[0] + 0.008, 1.012, 1.028], [end[1], to[1], to[1]], transform=axes.transAxes, clip_on=False,
                  color=colour, linewidth=0.6, alpha=0.7, zorder=1)  # fmt: skip
        axes.text(1.035, to[1], line.label, transform=axes.transAxes, va="center_baseline", color=colour, fontsize=size)


def _legend(figure: Any, names: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, markeredgecolor="white", **style) for label, style in names.items()]
    if handles:
        figure.legend(handles=handles, loc="lower left", ncols=min(5, len(handles)), frameon=False, fontsize=8.5,
                      bbox_to_anchor=(0.02, 0.0), handlelength=2.6, columnspacing=1.6, labelcolor=INK)  # fmt: skip
