"""Scales of charts: values to positions, and their ticks; and the picture around them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.html.markup import cut, element, empty, flat
from profpipe.report.plots.lines import round_sizes, tick

#: Ticks that an axis has at most, of a linear scale.
_TICKS = 6


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


def svg(parts: Iterable[object], width: float, height: float, name: str, kind: str) -> Markup:
    """Return a picture named ``name``; ``kind`` is its class in report.css."""
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=cut(flat(name), 300),
                   class_=f"plot {kind}")  # fmt: skip


def value_grid(axis: doc.Axis, y: Scale, left: float, right: float) -> Iterator[Markup]:
    """Yield a line and a label for each tick of the y axis."""
    for value in y.ticks(axis.quantity):
        yield empty("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid")
        yield element("text", label(value, axis), x=left - 8, y=y(value) + 4, class_="tick end")


def label(value: float, axis: doc.Axis) -> str:
    """Return the label of a tick."""
    return f"{100 * value:+.4g} %" if axis.quantity == "change" and value else tick(value, axis.quantity, axis.unit)
