"""The runs of a results folder to the course of each case: its noise, and the runs at which it changed."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from profpipe.analysis import change_points
from profpipe.analysis.grouping import grouped
from profpipe.analysis.verdict import LEAST_FLOOR
from profpipe.job import readable
from profpipe.results.noise import Model, Noise, Source

#: 99 % of a normal distribution lie within so many standard deviations.
_BAND: Final = statistics.NormalDist().inv_cdf(0.995)


#: What may change with a time, and the field of a ``Point`` that holds it.
_CONDITIONS: Final = {"code": "fingerprint", "commit": "commit", "torch": "torch", "driver": "driver"}


@dataclass(frozen=True)
class RunEntry:
    """A run in the history. ``ok`` of ``cases`` rows of its cases ended well."""

    run: str
    started: str
    is_ended: bool
    cases: int
    ok: int
    commit: str = ""


@dataclass(frozen=True)
class Point:
    """The time of a case in one run, in ns. ``fingerprint`` is a hash of the code that it measured; it may be empty."""

    run: str
    time_ns: float
    commit: str = ""
    torch: str = ""
    driver: str = ""
    fingerprint: str = ""
    #: The median from the last change before to the next one.
    level_ns: float = 0.0
    #: The time is outside the noise band of its level.
    is_outside: bool = False


@dataclass(frozen=True)
class ChangePoint:
    """The run at which the time changed and stayed changed. ``ratio`` is that of the medians after and before.

    ``differs`` names what changed with it: ``code``, ``commit``, ``torch``, ``driver``.
    """

    run: str
    position: int
    ratio: float
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """A case on one device over the runs, the oldest first.

    ``band`` is the noise as a ratio minus 1: 99 % of the runs of the same code lie within it around their level. It is
    None where it is not known. ``sources`` says what it comes from; empty: from the neighbours of this course alone.
    """

    workload: str
    case: str
    device: str
    points: tuple[Point, ...]
    band: float | None
    sources: Mapping[Source, int]
    changes: tuple[ChangePoint, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.workload}/{readable(self.case)}"

    @property
    def level_ns(self) -> float:
        """The median since the last change."""
        return self.points[-1].level_ns


@dataclass(frozen=True)
class PipelineHistory:
    """The runs of one pipeline, the newest first, and the courses of its cases."""

    name: str
    runs: tuple[RunEntry, ...]
    courses: tuple[Course, ...]


@dataclass(frozen=True)
class HistoryFindings:
    pipelines: tuple[PipelineHistory, ...]


#: The noise of a pipeline on a device with a driver.
FindNoise = Callable[[str, str, str], Model]


def analyze(
    runs: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]], find_noise: FindNoise
) -> HistoryFindings:
    """Return the courses of the cases of each pipeline.

    ``runs`` are the newest first; ``times`` are sorted by case and within a case the oldest first. Times on different
    devices are different courses; a driver or a torch may change within a course.
    """
    names = dict.fromkeys(str(row["name"]) for row in runs)
    return HistoryFindings(tuple(_pipeline(name, runs, times, find_noise) for name in names))


def _pipeline(
    name: str, runs: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]], find_noise: FindNoise
) -> PipelineHistory:
    own = [
        RunEntry(row["run"], row["started"], bool(row["ended"]), row["cases"] or 0, row["ok"] or 0,
                 row.get("git_commit") or "")
        for row in runs if row["name"] == name
    ]  # fmt: skip
    ids = {entry.run for entry in own}
    timed = (row for row in times if row["run"] in ids and row["value"] and row["value"] > 0)
    groups = grouped(((row["workload"], row["case"], row.get("device") or ""), row) for row in timed)
    known: dict[tuple[str, str], Model] = {}
    courses = []
    for (workload, case, device), rows in groups.items():
        driver = rows[-1].get("driver") or ""
        model = known.setdefault((device, driver), find_noise(name, device, driver))
        noise = model.get((workload, str(rows[-1].get("case_id", case))), Noise())
        logs = [math.log(row["value"]) for row in rows]
        sigma, sources = _sigma(logs, noise)
        found = [] if sigma is None else change_points.find(logs, sigma, math.log1p(LEAST_FLOOR))
        band = None if sigma is None else max(LEAST_FLOOR, math.expm1(_BAND * sigma))
        points = _points(rows, found, band)
        courses.append(Course(workload, case, device, points, band, sources, tuple(_changes(points, found))))
    return PipelineHistory(name, tuple(own), tuple(courses))


def _sigma(logs: Sequence[float], noise: Noise) -> tuple[float | None, Mapping[Source, int]]:
    """Return the standard deviation of one run around its level, and what it comes from.

    The spread between runs of the same code comes first. Without it the larger one of the spread within a session,
    which holds no change from day to day, and of the distances of neighbours in the course.
    """
    if noise.between:
        return math.log1p(noise.between.spread) / math.sqrt(2), noise.between.counts
    own = change_points.estimate_sigma(logs)
    if noise.within is None:
        return own, {}
    within = math.log1p(noise.within.spread) / math.sqrt(2)
    return (within, noise.within.counts) if own is None or own < within else (own, {})


def _points(rows: Sequence[Mapping[str, Any]], found: Sequence[int], band: float | None) -> tuple[Point, ...]:
    times = [float(row["value"]) for row in rows]
    ends = [0, *found, len(times)]
    levels = [level for a, b in itertools.pairwise(ends) for level in [statistics.median(times[a:b])] * (b - a)]
    return tuple(
        Point(
            row["run"], time, row.get("git_commit") or "", row.get("torch") or "",
            row.get("driver") or "", row.get("fingerprint") or "",
            level_ns=level,
            is_outside=band is not None and abs(math.log(time / level)) > math.log1p(band),
        )
        for row, time, level in zip(rows, times, levels, strict=True)
    )  # fmt: skip


def _changes(points: Sequence[Point], found: Sequence[int]) -> Iterator[ChangePoint]:
    for position in found:
        before, after = points[position - 1], points[position]
        pairs = {name: (getattr(before, field), getattr(after, field)) for name, field in _CONDITIONS.items()}
        differs = tuple(name for name, (old, new) in pairs.items() if old and new and old != new)
        yield ChangePoint(after.run, position, after.level_ns / before.level_ns, differs)
