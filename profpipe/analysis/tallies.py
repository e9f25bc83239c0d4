"""What the tables hold, by case and profiler, in one pass: a sweep has hundreds of cases with a few kernels each."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

#: (case, profiler)
Key = tuple[str, str]


#: From this standard deviation on, relative to the mean, launches of one kernel do unlike work: no one stands for all.
_UNLIKE = 0.05

_UNKNOWN = (-math.inf, math.inf)

#: Kinds that are no kernels.
_COPIES = ("memcpy", "memset")


@dataclass(frozen=True)
class Kernel:
    """A kernel as the tables name it, and what the recording tool took it for (kernel, graph or cpu_op)."""

    name: str
    kernel_class: str
    family: str
    kind: str


@dataclass
class Tally:
    """One case under one profiler, over all its iterations: (launches, ns) by kernel; copies and sets apart."""

    kernels: dict[Kernel, tuple[float, float]] = field(default_factory=dict)
    operators: dict[Kernel, tuple[float, float]] = field(default_factory=dict)
    copies_ns: float = 0.0
    copies: float = 0.0
    streams: set[int] = field(default_factory=set)
    #: (launches, ns) of kernels and operators by the phase that they were launched in, itself only.
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: By name of kernel the sum of the squares of its launches' times, in ns^2.
    squares: dict[str, float] = field(default_factory=dict)
    #: By name of kernel its shortest and its longest launch, in ns; infinite where an export does not tell of all.
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def work(self) -> Mapping[Kernel, tuple[float, float]]:
        """The device's work proper: kernels and whole graphs, else CPU operators."""
        return self.kernels or self.operators

    @property
    def total_ns(self) -> float:
        return sum(ns for _, ns in self.work.values())

    @functools.cached_property
    def by_name(self) -> Mapping[str, tuple[float, float]]:
        """(launches, ns) by name of kernel, over all iterations; for when all has been added."""
        found: dict[str, tuple[float, float]] = {}
        for kernel, (calls, ns) in self.work.items():
            before = found.get(kernel.name, (0.0, 0.0))
            found[kernel.name] = before[0] + calls, before[1] + ns
        return found

    def unlike(self, name: str) -> bool:
        """Whether the launches of a kernel take times so different that a few of them do not stand for all."""
        calls, ns = self.by_name.get(name, (0.0, 0.0))
        return ns > 0 and self.squares.get(name, 0.0) * calls / ns**2 - 1 > _UNLIKE**2

    def span(self, name: str) -> tuple[float, float] | None:
        """The shortest and the longest launch of a kernel, in ns; None where they are not known of all its launches."""
        ends = self.ends.get(name, _UNKNOWN)
        return ends if all(map(math.isfinite, ends)) else None

    def usual(self, name: str) -> tuple[float, float]:
        """Two standard deviations to either side of the mean launch of a kernel, in ns."""
        calls, ns = self.by_name[name]
        around = 2 * math.sqrt(max(0.0, self.squares[name] - ns**2 / calls) / max(1.0, calls - 1))
        return ns / calls - around, ns / calls + around

    def add(
        self,
        kernel: Kernel,
        phase: str,
        calls: float,
        ns: float,
        squares: float,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> None:
        into = self.operators if kernel.kind == "cpu_op" else self.kernels
        before, in_phase = into.get(kernel, (0.0, 0.0)), self.phases.get(phase, (0.0, 0.0))
        into[kernel] = before[0] + calls, before[1] + ns
        self.phases[phase] = in_phase[0] + calls, in_phase[1] + ns
        self.squares[kernel.name] = self.squares.get(kernel.name, 0.0) + squares
        ends = self.ends.get(kernel.name, (least, most))
        self.ends[kernel.name] = min(ends[0], least), max(ends[1], most)


@dataclass
class OwnRange:
    """The range of a case under one profiler, over all its instances."""

    instances: int = 0
    wall_ns: float = 0.0
    busy_ns: float = 0.0
    span_ns: float = 0.0

    @property
    def idle(self) -> float | None:
        """The part of the range in which no kernel ran; None where that is not known.

        Launches run ahead of the GPU, so a range may end before its kernels do. Then it is a part of the time from the
        first kernel's start to the last one's end, where the export tells that.
        """
        extent = max(self.wall_ns, self.span_ns)
        return 1 - self.busy_ns / extent if extent >= self.busy_ns > 0 else None

    def per_call(self, ns: float) -> float | None:
        return ns / self.instances if self.instances and ns else None


def tally(kernels: pd.DataFrame) -> dict[Key, Tally]:
    """The rows of `kernels` by case and profiler; those without a time are no zeros, and are left out."""
    found: dict[Key, Tally] = {}
    timed = kernels[kernels["total_ns"].notna()]
    timed = timed.assign(squares=_squares(timed), **_ends(timed))
    key = ["case", "profiler", "kernel", "kernel_class", "kernel_family", "kind", "phase"]
    # Summed over processes, devices and streams first: of a large capture that leaves a fraction of the rows.
    how = {"calls": "sum", "total_ns": "sum", "squares": "sum", "least": "min", "most": "max"}
    sums = timed.groupby(key, sort=False, dropna=False).agg(how).reset_index()
    for case, profiler, name, cls, family, kind, phase, *numbers in rows(sums, *key, *how):
        own = found.setdefault((case, profiler), Tally())
        if kind in _COPIES:
            own.copies, own.copies_ns = own.copies + numbers[0], own.copies_ns + numbers[1]
        else:
            own.add(Kernel(name, cls, family, kind), phase, *numbers)
    streams = timed[timed["stream"].notna() & ~timed["kind"].isin(_COPIES)]
    for case, profiler, stream in rows(
        streams.drop_duplicates(["case", "profiler", "stream"]), "case", "profiler", "stream"
    ):
        found[case, profiler].streams.add(int(stream))
    return found


def _squares(timed: pd.DataFrame) -> pd.Series[Any]:
    """By row the sum of the squares of its launches' times; as if all were alike where an export has only sums."""
    calls = timed["calls"].clip(lower=1).astype("Float64")
    return timed["total_ns"] ** 2 / calls + (calls - 1) * timed["stddev_ns"].fillna(0.0) ** 2


def _ends(timed: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    """By row its shortest and its longest launch: a single one is both; infinite where an export does not tell."""
    single = timed["total_ns"].where(timed["calls"] == 1)
    least, most = (timed[name].fillna(single) for name in ("min_ns", "max_ns"))
    return {"least": least.fillna(-math.inf), "most": most.fillna(math.inf)}


def own_ranges(ranges: pd.DataFrame) -> dict[Key, OwnRange]:
    """The cases' own ranges; of several processes the sum."""
    found: dict[Key, OwnRange] = {}
    own = ranges[(ranges["range"] == "") & (ranges["case"] != "")]
    names = ("case", "profiler", "instances", "wall_ns", "busy_ns", "span_ns")
    for case, profiler, instances, wall, busy, span in rows(own, *names):
        into = found.setdefault((case, profiler), OwnRange())
        into.instances += 0 if pd.isna(instances) else int(instances)
        if not pd.isna(wall) and not pd.isna(busy):
            into.wall_ns += wall
            into.busy_ns += busy
        into.span_ns += 0.0 if pd.isna(span) else span
    return found


def rows(frame: pd.DataFrame, *names: str) -> Iterator[tuple[Any, ...]]:
    """The columns ``names`` of each row as plain values."""
    return zip(*(frame[name].tolist() for name in names), strict=True)
