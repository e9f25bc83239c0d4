"""Numbers as people read them: three or four significant digits, and one unit for a whole column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: The text of a cell without a measurement.
MISSING = "–"

#: The text of a cell for which the pipeline file has no case.
NO_CASE = "no case"


def number(value: float | None) -> str:
    """Three significant digits, four from 100 on, whole from 1000 on."""
    if value is None or math.isnan(value):
        return MISSING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001 or size >= 1e7:
        return f"{value:.3g}"
    if size >= 999.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3g}"


def count(value: float) -> str:
    """Launches per call: whole where they are."""
    return f"{value:.0f}" if math.isfinite(value) and abs(value - round(value)) < 0.005 else number(value)


def ratio(value: float) -> str:
    """``1.42x``; above 1 is faster."""
    return f"{value:.0f}x" if value >= 99.5 else f"{value:.1f}x" if value >= 9.95 else f"{value:.2f}x"


def percent(share: float) -> str:
    """A share as a percentage: ``81.3``. A share just short of all is not rounded up to it."""
    if 0.9995 <= share < 1:
        return "99.9" if share < 0.99995 else "> 99.9"
    if share in (0, 1):
        return f"{100 * share:.0f}"
    return f"{100 * share:.1f}" if share >= 0.0005 else "< 0.1"


def plus_minus(share: float) -> str:
    """The larger side of an interval as a percentage: ``±2.3 %``."""
    return f"±{percent(share) if share < 1 else number(100 * share)} %"


def signed(value: float) -> str:
    """A difference with its sign and as many digits as other numbers: ``+44.0``."""
    return number(value) if not value or value < 0 else f"+{number(value)}"


def rounded(value: float) -> str:
    """A difference in a sentence, with two digits where it is small: ``+44``, ``-3.1``."""
    if abs(value) >= 9.95:
        return f"{value:+.0f}"
    return f"{value:+.1f}" if abs(value) >= 0.05 else f"{value:+.1g}" if value else "0"


def signed_percent(difference: float) -> str:
    return f"{100 * difference:+.1f} %" if abs(difference) < 9.995 else f"{100 * difference:+.0f} %"


@dataclass(frozen=True)
class Unit:
    """A unit: its name, how many of the stored one (ns, byte, share, ...) it is, and how a number of it is written."""

    name: str = ""
    size: float = 1.0
    write: Callable[[float], str] = number

    def of(self, value: float | None) -> str:
        """Return ``value`` in this unit, without the unit's name, which stands in the column's head."""
        return MISSING if value is None else self.write(value / self.size)

    def with_name(self, value: float | None) -> str:
        """Return ``value`` followed by the unit's name, as in a sentence."""
        return f"{self.of(value)} {self.name}" if self.name and value is not None else self.of(value)

    def per(self, iteration: str) -> Unit:
        """Return ``us/call`` for ``/call``."""
        return Unit(f"{self.name}{iteration}", self.size, self.write)

    def signed(self) -> Unit:
        """Return the unit of a difference: ``+44.0``."""
        return Unit(self.name, self.size, signed)


#: Numbers that need no unit, and counts: whole where they are whole.
NO_UNIT, COUNT = Unit(), Unit(write=count)
#: Shares and ratios: ``1.42x``, ``81.3`` in a column of %, ``+8.0 %``, ``±0.2 %``.
RATIO, PERCENT = Unit(write=ratio), Unit("%", write=percent)
SIGNED_PERCENT, PLUS_MINUS = Unit(write=signed_percent), Unit(write=plus_minus)

TIMES = (Unit("ns", 1.0), Unit("us", 1e3), Unit("ms", 1e6), Unit("s", 1e9))
SIZES = (Unit("byte", 1.0), Unit("KiB", 2.0**10), Unit("MiB", 2.0**20), Unit("GiB", 2.0**30))


def time_unit(values_ns: Iterable[float | None]) -> Unit:
    """The unit in which these times read best: their median between 1 and 10 000; ns only where all are below 1 us."""
    return unit_of("ns", values_ns)


def step_unit(values_ns: Iterable[float | None]) -> Unit:
    """The unit in which times of steps read best: as other times, but ms from 1 ms on."""
    sorted_ns = sorted(value for value in values_ns if value)
    unit = time_unit(sorted_ns)
    return TIMES[2] if sorted_ns and unit is TIMES[1] and sorted_ns[-1] >= TIMES[2].size else unit


def size_unit(values: Iterable[float | None]) -> Unit:
    return unit_of("byte", values)


#: By stored unit the units to choose from, the value from which the next one is used, and the place of the first that
#: is not for values all of which are small.
_CHOICES = {
    "ns": (TIMES, 9_999.5, 1),
    "byte": (SIZES, 9_999.5, 1),
    "1": ((Unit("", 1.0), Unit("million", 1e6), Unit("billion", 1e9)), 999_999.5, 0),
    "byte/s": ((Unit("byte/s", 1.0), Unit("GB/s", 1e9), Unit("TB/s", 1e12)), 9_999.5, 0),
    "flop": ((Unit("flop", 1.0), Unit("MFLOP", 1e6), Unit("GFLOP", 1e9), Unit("TFLOP", 1e12)), 9_999.5, 0),
}

#: Stored units that are written in one way, and those that a title has already.
_FIXED = {"share": PERCENT, "change": SIGNED_PERCENT, "x": RATIO, "calls": COUNT}
_SAID = ("kernel", "TFLOP/s", "GB/s", "1/s")


def unit_of(stored: str, values: Iterable[float | None]) -> Unit:
    """The unit in which values that are stored in ``stored`` read best; one that is not known stays what it is."""
    if stored not in _CHOICES:
        return _FIXED.get(stored) or Unit("" if stored in _SAID else stored)
    units, most, first = _CHOICES[stored]
    magnitudes = sorted(abs(value) for value in values if value)
    if first and magnitudes and magnitudes[-1] < units[first].size:
        return units[0]
    middle = magnitudes[len(magnitudes) // 2] if magnitudes else 0.0
    return next((unit for unit in units[first:] if middle / unit.size < most), units[-1])
