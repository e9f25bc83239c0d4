"""What the drawings of charts share: scales, ticks and their labels, and the room that texts take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.formatting import display_width
from profpipe.report.markup import element, empty
from profpipe.report.units import Unit

#: Ticks that an axis has at most, of a linear scale.
_TICKS = 6
#: The width of a letter in pixels, on average, and the height of a line of text.
LETTER, LINE = 6.8, 15


class Drawing(NamedTuple):
    """The elements of a picture, and its size in pixels."""

    content: Markup
    width: float
    height: float


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
            math.log10(max(each, 1e-300)) if self.is_log else each for each in (self.low, self.high, value)
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
    every = [factor * 10.0**power for power in powers if power % apart == 0 for factor in factors]
    return [value for value in every if low * 0.999 <= value <= high * 1.001]


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
    return f"{value / (axis.unit.size if axis.unit else 1.0):.4g}{'x' if axis.quantity == 'x' else ''}"


def position(x: float, axis: doc.Axis) -> str:
    """Return the label of a tick of the horizontal axis."""
    if axis.quantity:
        return tick(x, axis)
    return f"{x:g}" if x < 1e6 else f"{x:.3g}"


def value_range(chart: doc.Chart) -> tuple[float, float]:
    """Return the ends of the common y scale, with room around the marks; a linear scale of positive values has 0."""
    drawn = [mark.y for mark in chart.marks]
    drawn += [end for mark in chart.marks if mark.has_visible_range for end in (mark.low, mark.high) if end]
    drawn += [each.value for each in chart.references if each.kind is not doc.ReferenceKind.PEAK]
    low, high = min(drawn), max(drawn)
    if chart.y.is_log:
        room = (high / low) ** 0.05
        return low / room, high * room
    room = 0.05 * ((high - min(low, 0.0)) or 1.0)
    return (0.0 if low >= 0 else low - room), high + room


def value_grid(axis: doc.Axis, y: Scale, left: float, right: float) -> Iterator[Markup]:
    """Yield a line and a label for each tick of the y axis."""
    for value in y.ticks(axis.quantity):
        yield empty("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid")
        yield element("text", tick(value, axis), x=left - 8, y=y(value) + 4, class_="tick end")


def text_width(text: str) -> float:
    """Return about how wide a text is, in pixels."""
    return LETTER * display_width(text)


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
