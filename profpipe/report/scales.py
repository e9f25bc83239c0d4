"""What the drawings of charts share: scales, ticks, room for texts, the words beside a point, colours and markers."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from profpipe import plugins
from profpipe.report import document as doc
from profpipe.report.markup import cut, element, empty, flat
from profpipe.report.screen import display_width
from profpipe.report.units import NO_UNIT, SIZES, TIMES, Unit, unit_of

#: Ticks that an axis has at most, of a linear scale.
_TICKS = 6
#: The width of a letter in pixels, on average, and the height of a line of text.
LETTER, LINE = 6.8, 15


@dataclass(frozen=True)
class Scale:
    """Maps values from ``low`` to ``high`` to positions from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            math.log10(max(number, 1e-300)) if self.is_log else number for number in (self.low, self.high, value)
        )
        share = (value - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, quantity: str = "") -> list[float]:
        """Return round values between the ends."""
        if quantity == "byte":
            return round_sizes(self.low, self.high, self.is_log)
        return _log_ticks(self.low, self.high) if self.is_log else _linear_ticks(self.low, self.high)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS
    if not rough > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 2.5 else (1,)
    apart = max(1, math.ceil(decades / 9))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers if power % apart == 0 for factor in factors]
    return [value for value in ticks if low * 0.999 <= value <= high * 1.001]


def round_sizes(low: float, high: float, is_log: bool) -> list[float]:
    """Return at most about nine sizes between ``low`` and ``high`` bytes that are whole in KiB, MiB or GiB."""
    if is_log:
        step = next((bits for bits in (1, 2) if high / low < 2 ** (8 * bits)), 4)
        first, last = math.ceil(math.log2(low) / step), math.floor(math.log2(high) / step)
        return [2.0 ** (step * i) for i in range(first, last + 1)]
    apart = 2.0 ** max(math.ceil(math.log2(max(high - low, 1.0) / 8)), 0)
    return [apart * i for i in range(math.ceil(low / apart), math.floor(high / apart) + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near to ``wanted`` as they can be at least ``gap`` apart, in the same order, inside the bounds.

    Where there is no room for ``gap`` they share what there is.
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (centre, members): labels that touch move together
    for i in order:
        centre, size = wanted[i], 1
        while blocks and blocks[-1][0] + gap * (blocks[-1][1] + size) / 2 > centre:
            other, members = blocks.pop()
            centre, size = (other * members + centre * size) / (members + size), members + size
        blocks.append((centre, size))
    placed = [centre + gap * (k - (size - 1) / 2) for centre, size in blocks for k in range(size)]
    for k, place in enumerate(placed):
        placed[k] = max(place, low + k * gap, placed[k - 1] + gap if k else low)
    for k in range(len(placed) - 1, -1, -1):
        placed[k] = min(placed[k], high - (len(placed) - 1 - k) * gap)
    return [place for _, place in sorted(zip(order, placed, strict=True))]


# --- words -----------------------------------------------------------------------------------------------------------

_TICK_UNITS = {"ns": TIMES[::-1], "byte": SIZES[::-1]}
#: Stored units that decide how a number is written, whatever the unit of the axis.
_CHOSEN = ("ns", "byte", "x", "share", "change")


def tick(value: float, axis: doc.Axis) -> str:
    """Return the label of a tick: ``500 us``, then ``1 ms``; unlike a column, a scale changes its unit."""
    if axis.quantity in _TICK_UNITS:
        units = _TICK_UNITS[axis.quantity]
        chosen = next((unit for unit in units if abs(value) >= unit.size), units[-1])
        return f"{value / chosen.size:.4g} {chosen.name}" if value else "0"
    if axis.quantity == "share":
        return f"{100 * value:.4g}"
    if axis.quantity == "change" and value:
        return f"{100 * value:+.4g} %"
    return f"{value / (axis.unit or NO_UNIT).size:.4g}{'x' if axis.quantity == 'x' else ''}"


def unit_on(axis: doc.Axis, values: Iterable[float]) -> Unit | None:
    """Return the unit in which values of the axis are written."""
    return unit_of(axis.quantity, values) if axis.quantity in _CHOSEN else axis.unit


def quantity(value: float, axis: doc.Axis) -> str:
    """Return a value of an axis with its unit."""
    return (unit_on(axis, [value]) or NO_UNIT).with_name(value)


def place(x: float, axis: doc.Axis) -> str:
    """Return a position of the horizontal axis."""
    return quantity(x, axis) if axis.quantity or axis.unit else f"{x:g}"


def tip(mark: doc.Mark, chart: doc.Chart) -> str:
    """Return the lines beside the pointer below the name of the series: place, value, range, flags and the note."""
    where = chart.x.labels[int(mark.x)] if chart.x.labels else f"{chart.x.title} {place(mark.x, chart.x)}"
    lines = [cut(flat(where), 200), quantity(mark.y, chart.y)]
    if mark.low is not None and mark.high is not None:
        is_interval = chart.kind in (doc.ChartKind.INTERVALS, doc.ChartKind.FOREST)
        words = "interval" if is_interval else "band" if chart.kind is doc.ChartKind.TREND else "10 to 90 %"
        lines.append(f"{words}: {quantity(mark.low, chart.y)} to {quantity(mark.high, chart.y)}")
    lines += [", ".join(mark.flags), cut(flat(mark.note), 300)]
    return "\n".join(dict.fromkeys(filter(None, lines)))


# --- pieces of drawings ----------------------------------------------------------------------------------------------


def text_width(text: str) -> float:
    """Return about how wide a text is, in pixels."""
    return LETTER * display_width(text)


def word(text: str, x: float, y: float, kind: str, most: int = 70) -> Markup:
    """Return a text of a drawing in one line; a long one is cut."""
    return element("text", cut(flat(text), most), x=x, y=y, class_=kind)


def level(y: float, left: float, right: float, kind: str) -> Markup:
    """Return a horizontal line."""
    return empty("line", x1=left, x2=right, y1=y, y2=y, class_=kind)


def upright(x: float, top: float, bottom: float, kind: str) -> Markup:
    """Return a vertical line."""
    return empty("line", x1=x, x2=x, y1=top, y2=bottom, class_=kind)


def value_grid(axis: doc.Axis, y: Scale, left: float, right: float) -> Iterator[Markup]:
    """Yield a line and a label per tick of the y axis."""
    for value in y.ticks(axis.quantity):
        yield level(y(value), left, right, "grid")
        yield word(tick(value, axis), left - 8, y(value) + 4, "tick end")


#: Paths around a point.
_SHAPES = {
    "dot": "m-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z",
    "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "m-3.6-3.6h7.2v7.2h-7.2z",
    "triangle": "m0-4.8l4.5 8h-9z",
    "diamond": "m0-5l4.4 5l-4.4 5l-4.4-5z",
    "down": "m0 4.8l4.5-8h-9z",
    "plus": "m-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
    "cross": "m-4.6-2.6l2-2l2.6 2.6l2.6-2.6l2 2l-2.6 2.6l2.6 2.6l-2 2l-2.6-2.6l-2.6 2.6l-2-2l2.6-2.6z",
}


def marker(shape: str, x: float, y: float, mark: doc.Mark | None = None, chart: doc.Chart | None = None) -> Markup:
    """Return the sign of a point, hollow where its mark has a flag. What a reader sees beside it is of ``mark``."""
    is_hollow, case = (bool(mark.flags), mark.case) if mark else (False, "")
    text = tip(mark, chart) if mark and chart else ""
    kind = "mark hollow" if is_hollow else "mark"
    return empty("path", d=f"M{x:g} {y:g}{_SHAPES[shape]}", class_=kind, data_tip=text or None,
                 data_case=case or None)  # fmt: skip


# --- classes of the style sheet --------------------------------------------------------------------------------------

#: Colours of lines in chart.css: ``s0`` to ``s7``. More lines than colours have another stroke.
COLOURS = 8
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")

#: Verdicts, whose colours chart.css names, and their markers.
VERDICTS = {"slower": "circle", "faster": "square", "inconclusive": "diamond", "same": "triangle"}

#: The style of the drawings, light and dark: the one table of colours.
STYLE = "chart.css"


@functools.cache
def style_sheet() -> str:
    """Return the style sheet of the drawings."""
    return (plugins.builtin_folder("templates") / STYLE).read_text(encoding="utf-8")


@functools.cache
def coloured_keys() -> frozenset[str]:
    """Return the kernel classes and the parts of a step that have a colour."""
    return frozenset(re.findall(r"\.k-(\w+)", style_sheet()))


def key_class(key: str) -> str:
    """Return the class of a kernel class or of a part of a step."""
    return f"k-{key}" if key in coloured_keys() else "k-rest"


def series_class(series: doc.Series, colour: str) -> str:
    """Return the classes of the element of a series."""
    return f"series {colour}{' rejected' if series.is_rejected else ''}"


def line_classes(chart: doc.Chart) -> Mapping[str, tuple[str, str]]:
    """Return the class and the marker of each series by its key. The baseline has the colour of the text."""
    if chart.kind is doc.ChartKind.FOREST:
        return {key: (f"v-{key}", VERDICTS[key]) if key in VERDICTS else ("s-base", "circle")
                for key in (series.key for series in chart.series)}  # fmt: skip
    baselines = {series.key for series in chart.series if series.is_baseline}
    classes = dict.fromkeys(baselines, ("s-base", "circle"))
    for i, key in enumerate(key for key in chart.every_key if key not in baselines):
        turn = i // COLOURS
        classes[key] = f"s{i % COLOURS}{f' t{min(turn, 2)}' if turn else ''}", MARKERS[(i + turn + 1) % len(MARKERS)]
    return classes
