"""Charts and timelines as values: series and lanes, which a renderer draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from profpipe.analysis.findings.timeline import Event, LaneKind
from profpipe.report.inline_values import Placement, Text
from profpipe.report.units import Unit


class ChartKind(str, Enum):
    LINES = "lines"
    STACKED_BARS = "stacked_bars"
    #: A point for each label of the x axis, with its interval.
    INTERVALS = "intervals"
    #: Points over their number: samples or steps.
    STRIP = "strip"
    #: Points over FLOP per byte, below the machine's rates.
    ROOFLINE = "roofline"
    #: Times over runs, each with the band of the noise around its level; in it ``low`` and ``high`` are its ends.
    COURSE = "course"
    #: Ratios with their intervals, and the difference that counts.
    FOREST = "forest"


@dataclass(frozen=True)
class Axis:
    """An axis of a chart: its title and unit, or the names of its positions.

    ``quantity`` is the stored unit of its values (ns, byte, x, share, change, or empty): ticks are written by it.
    ``cases`` are the ids of the cases that the labels name; empty where they name something else.
    """

    title: str
    unit: Unit | None = None
    is_log: bool = False
    labels: tuple[str, ...] = ()
    quantity: str = ""
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A point of a series in stored units, with the 10th and 90th percentile where they are known, and its flags.

    In a chart of intervals ``low`` and ``high`` are the ends of the interval. ``case`` is the id of the case. ``floor``
    is the smallest difference from zero that counts. ``note`` is a remark that a reader sees beside the point.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    flags: tuple[str, ...] = ()
    case: str = ""
    floor: float | None = None
    note: str = ""

    @property
    def has_visible_range(self) -> bool:
        """Return True if the percentiles lie more than 5 % apart."""
        return self.low is not None and self.high is not None and self.high > 1.05 * self.low


@dataclass(frozen=True)
class Series:
    """A line, or one colour of stacked bars. ``key`` chooses the colour, so that a name has one colour everywhere.

    ``is_rejected``: most of its results are inaccurate.
    """

    name: str
    key: str
    marks: tuple[Mark, ...]
    is_baseline: bool = False
    is_rejected: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot of a chart. Several panels share both axes."""

    title: str
    series: tuple[Series, ...]

    def name_in(self, chart: Chart) -> str:
        return f"{chart.title}, {self.title}" if self.title else chart.title


class ReferenceKind(str, Enum):
    LEVEL = "level"  # a value that divides good from bad
    LIMIT = "limit"  # the largest or smallest value that is allowed; named beside the lines
    PEAK = "peak"  # the machine's limit; drawn where it is near the data
    ROOF = "roof"  # the machine's limit over FLOP per byte: slanted up to the ridge, then level


@dataclass(frozen=True)
class Reference:
    """A horizontal line of every panel. A roof is slanted up to ``ridge``, a position of the x axis."""

    kind: ReferenceKind
    value: float
    name: str = ""
    ridge: float | None = None


#: Positions of a course.
_COURSE = 30


@dataclass(frozen=True)
class Chart:
    """A chart as its series. ``id`` is the stem of its file.

    ``keys`` are the keys of all series that the workload or the study may have, in the order of the palette.
    """

    id: str
    title: str
    kind: ChartKind
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]
    caption: Text = ""
    placement: Placement = Placement.SUMMARY
    subtitle: str = ""
    keys: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def series(self) -> tuple[Series, ...]:
        """All series of all panels."""
        return tuple(series for panel in self.panels for series in panel.series)

    @property
    def every_key(self) -> tuple[str, ...]:
        """The keys of the series in the order of the palette."""
        return tuple(dict.fromkeys((*self.keys, *(series.key for series in self.series))))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All marks of all panels."""
        return tuple(mark for series in self.series for mark in series.marks)

    @property
    def is_course(self) -> bool:
        """True with so many positions that a mark at each would hide the line: ticks are round numbers then."""
        return self.kind is ChartKind.LINES and not self.x.is_log and len({mark.x for mark in self.marks}) >= _COURSE


@dataclass(frozen=True)
class Lane:
    """A lane of a timeline. Lanes of one ``group`` (a rank and its device) stand together.

    The key of a box chooses its colour: a kernel class, or the cause of idle time as ``step_idle_launch``. ``totals``
    are the number of events and the sum of their times by key, whatever was merged.
    """

    title: str
    boxes: tuple[Event, ...]
    kind: LaneKind
    group: str = ""
    totals: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """What ran when: lanes over the time of one steady step, or of the first part of a capture.

    ``labels`` are the names of the keys, in the order of the legend. ``numbered`` are the lane and the start (ns) of
    the gaps that get a number, in the order of the table beside the picture.
    """

    id: str
    title: Text
    lanes: tuple[Lane, ...]
    duration_ns: float
    labels: Mapping[str, str]
    numbered: tuple[tuple[int, float], ...] = ()
    caption: Text = ""
    case: str = ""
    placement: Placement = Placement.HTML
