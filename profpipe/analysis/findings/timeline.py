"""Findings on what ran when: the events of one step of a case, by lanes. Times are nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class LaneKind(str, Enum):
    """What a lane shows."""

    HOST = "host"  # launches and waits of a thread
    STREAM = "stream"  # operations of the GPU
    IDLE = "idle"  # the time in which nothing runs on the device


@dataclass(frozen=True)
class Event:
    """An operation, a call of the host, or idle time.

    ``key`` is the kernel class; of a launch, of the kernel that it launches; of a call that waits and of idle time, the
    kind of the event. ``launched_ns`` is when the launch call of an operation began. ``count`` events were merged,
    since they are too short to be seen; ``busy_ns`` is then the sum of their times.
    """

    start_ns: float
    duration_ns: float
    name: str
    key: str
    launched_ns: float | None = None
    bytes: float | None = None
    count: int = 1
    busy_ns: float = 0.0


@dataclass(frozen=True)
class Lane:
    """Events in the order of their start. ``number`` is the thread or stream, None where it is unknown.

    ``others`` is how many streams with little work share the lane. ``totals`` are the number of events and the sum of
    their times by key, whatever was merged.
    """

    kind: LaneKind
    number: int | None
    events: tuple[Event, ...]
    others: int = 0
    totals: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gap:
    """Idle time, and the operations around it. ``cause`` is ``idle_launch``, ``idle_blocked`` or ``idle_other``.

    ``wait`` is the call in which the host waited as the gap began.
    """

    start_ns: float
    duration_ns: float
    cause: str
    after: str = ""
    before: str = ""
    wait: str = ""


@dataclass(frozen=True)
class RankTimeline:
    """The lanes of one process and device: the threads of the host first, then idle time and streams.

    ``step`` is the number of the step or of the iteration. The window is the time that is shown.
    """

    rank: int
    process: int | None
    device: int | None
    step: int | None
    start_ns: float
    duration_ns: float
    lanes: tuple[Lane, ...]
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class CaseTimeline:
    """What ran when in one case, as ``profiler`` recorded it. Times count from the start of the first window.

    ``kind`` is ``step``, ``iteration`` or ``beginning``. ``step_ns`` is the whole time of the step where the window
    shows its beginning only. Without ``has_one_clock`` each rank begins at 0, since each rank was recorded in
    another file. Events shorter than ``merged_below_ns`` were merged with their neighbours; 0: none.
    """

    case: str
    profiler: str
    kind: str
    duration_ns: float
    ranks: tuple[RankTimeline, ...]
    step_ns: float | None = None
    has_one_clock: bool = True
    merged_below_ns: float = 0.0
