"""Sum kernels and ranges by case and profiler in one pass: a sweep has hundreds of cases with a few kernels each."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from profpipe.analysis.grouping import grouped

#: (case, profiler)
Key = tuple[str, str]

#: From this relative standard deviation on, the launches of a kernel do different work: one does not represent all.
_HIGH_VARIATION = 0.05

#: Kinds that are no kernels.
COPIES = ("memcpy", "memset")

#: A process and device with less than this share of the busiest one's kernel time is no rank: one process of torchrun
#: may touch the device of another.
_LEAST_RANK = 0.01


@dataclass(frozen=True)
class Kernel:
    """A kernel as the tables name it; ``kind`` is kernel, graph or cpu_op."""

    name: str
    kernel_class: str
    family: str
    kind: str


@dataclass
class KernelTotals:
    """(launches, ns) by kernel of one case under one profiler, over all iterations; copies and sets separately."""

    kernels: dict[Kernel, tuple[float, float]] = field(default_factory=dict)
    operators: dict[Kernel, tuple[float, float]] = field(default_factory=dict)
    #: (launches, ns) of copies and sets by name.
    by_copy: dict[str, tuple[float, float]] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    #: (launches, ns) of kernels and operators by phase, nested phases excluded.
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: Sum of the squared times of a kernel's launches in ns^2, by name.
    squares: dict[str, float] = field(default_factory=dict)
    #: Shortest and longest launch of a kernel in ns, by name; infinite where an export has only sums.
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def work(self) -> Mapping[Kernel, tuple[float, float]]:
        """Kernels and whole graphs; without any, the CPU operators."""
        return self.kernels or self.operators

    @property
    def total_ns(self) -> float:
        return sum(ns for _, ns in self.work.values())

    @property
    def by_class(self) -> dict[str, float]:
        """The ns of kernels by class."""
        times = grouped((kernel.kernel_class, ns) for kernel, (_, ns) in self.work.items())
        return {name: sum(own) for name, own in times.items()}

    @functools.cached_property
    def by_name(self) -> Mapping[str, tuple[float, float]]:
        """(launches, ns) by name of kernel, over all iterations. Cached, so read it after the last ``add``."""
        found: dict[str, tuple[float, float]] = {}
        for kernel, (calls, ns) in self.work.items():
            before = found.get(kernel.name, (0.0, 0.0))
            found[kernel.name] = before[0] + calls, before[1] + ns
        return found

    def has_high_variance(self, name: str) -> bool:
        """Return True if a few launches of a kernel do not represent all of them."""
        calls, ns = self.by_name.get(name, (0.0, 0.0))
        return ns > 0 and self.squares.get(name, 0.0) * calls / ns**2 - 1 > _HIGH_VARIATION**2

    def time_range(self, name: str) -> tuple[float, float] | None:
        """Return the shortest and the longest launch of a kernel in ns; None where some launches are unknown."""
        ends = self.ends.get(name, (-math.inf, math.inf))
        return ends if all(map(math.isfinite, ends)) else None

    def typical_range(self, name: str) -> tuple[float, float]:
        """Return two standard deviations to either side of the mean launch of a kernel, in ns."""
        calls, ns = self.by_name[name]
        around = 2 * math.sqrt(max(0.0, self.squares[name] - ns**2 / calls) / max(1.0, calls - 1))
        return ns / calls - around, ns / calls + around

    def divided_by(self, number: float) -> KernelTotals:
        """Return the totals of one of ``number`` ranks or iterations: their mean."""

        def divide(sums: Mapping[Any, tuple[float, float]]) -> dict[Any, tuple[float, float]]:
            return {key: (calls / number, ns / number) for key, (calls, ns) in sums.items()}

        return replace(
            self,
            kernels=divide(self.kernels),
            operators=divide(self.operators),
            by_copy=divide(self.by_copy),
            phases=divide(self.phases),
            squares={name: square / number for name, square in self.squares.items()},
        )

    def add(
        self, kernel: Kernel, calls: float, ns: float, squares: float, least: float = -math.inf, most: float = math.inf
    ) -> None:
        into = self.operators if kernel.kind == "cpu_op" else self.kernels
        before = into.get(kernel, (0.0, 0.0))
        into[kernel] = before[0] + calls, before[1] + ns
        self.squares[kernel.name] = self.squares.get(kernel.name, 0.0) + squares
        ends = self.ends.get(kernel.name, (least, most))
        self.ends[kernel.name] = min(ends[0], least), max(ends[1], most)


@dataclass
class CaseRange:
    """The range of a case under one profiler, over all its instances."""

    instances: int = 0
    wall_ns: float = 0.0
    busy_ns: float = 0.0
    span_ns: float = 0.0

    @property
    def idle_share(self) -> float | None:
        """The share of the range in which no kernel ran; None where that is unknown.

        Launches run ahead of the GPU, so a range may end before its kernels. Then it is a share of the time from the
        first kernel's start to the last one's end, where the export has it.
        """
        extent = max(self.wall_ns, self.span_ns)
        return 1 - self.busy_ns / extent if extent >= self.busy_ns > 0 else None

    def per_call(self, ns: float) -> float | None:
        return ns / self.instances if self.instances and ns else None


def sum_kernels(kernels: pd.DataFrame) -> dict[Key, KernelTotals]:
    """Sum the rows of `kernels` by case and profiler; rows without a time are left out."""
    timed = kernels[kernels["total_ns"].notna()]
    calls = timed["calls"].clip(lower=1).astype("Float64")
    single = timed["total_ns"].where(timed["calls"] == 1)
    timed = timed.assign(
        # With only sums in an export, as if all launches of a row were equal.
        squares=timed["total_ns"] ** 2 / calls + (calls - 1) * timed["stddev_ns"].fillna(0.0) ** 2,
        least=timed["min_ns"].fillna(single).fillna(-math.inf),
        most=timed["max_ns"].fillna(single).fillna(math.inf),
    )
    key, named = ["case", "profiler"], ["kernel", "kernel_class", "kernel_family", "kind"]
    found = {(case, profiler): KernelTotals() for case, profiler in rows(timed.drop_duplicates(key), *key)}
    # By kernel and by phase apart: a capture of a million launches has 60,000 combinations of the two.
    how = {"calls": "sum", "total_ns": "sum", "squares": "sum", "least": "min", "most": "max"}
    sums = timed.groupby([*key, *named], sort=False, dropna=False).agg(how).reset_index()
    for case, profiler, name, cls, family, kind, *numbers in rows(sums, *key, *named, *how):
        own = found[case, profiler]
        if kind in COPIES:
            before = own.by_copy.get(name, (0.0, 0.0))
            own.by_copy[name] = before[0] + numbers[0], before[1] + numbers[1]
        else:
            own.add(Kernel(name, cls, family, kind), *numbers)
    work = timed[~timed["kind"].isin(COPIES)]
    sums = work.groupby([*key, "phase"], sort=False, dropna=False)[["calls", "total_ns"]].sum().reset_index()
    for case, profiler, phase, calls, ns in rows(sums, *key, "phase", "calls", "total_ns"):
        found[case, profiler].phases[phase] = (calls, ns)
    streams = work[[*key, "stream"]].dropna().drop_duplicates()
    for case, profiler, stream in rows(streams, *key, "stream"):
        found[case, profiler].streams.add(int(stream))
    return found


def count_ranks(kernels: pd.DataFrame) -> dict[Key, int]:
    """Count the processes and devices that ran the kernels of each case under each profiler.

    ncu may run a program several times, so only its devices count.
    """
    key = ["case", "profiler"]
    own = kernels[kernels["total_ns"].notna() & ~kernels["kind"].isin(COPIES)]
    # Only the device of ncu's launches distinguishes ranks.
    apart = own["profiler"] != "ncu"
    own = own.assign(source=own["source"].where(apart, ""), process=own["process"].where(apart))
    sums = own.groupby([*key, "source", "process", "device"], sort=False, dropna=False)["total_ns"].sum()
    largest = sums.groupby(key).transform("max")
    counts = sums[sums >= _LEAST_RANK * largest].groupby(key, sort=False).size()
    return {(str(case), str(profiler)): int(n) for (case, profiler), n in counts.items()}


def case_ranges(ranges: pd.DataFrame) -> dict[Key, CaseRange]:
    """Return the range of each case; several processes are summed."""
    names, values = ["case", "profiler"], ["instances", "wall_ns", "busy_ns", "span_ns"]
    own = ranges[(ranges["range"] == "") & (ranges["case"] != "")]
    # A wall time without a busy time gives no idle share, and the reverse.
    is_partial = own["wall_ns"].isna() | own["busy_ns"].isna()
    own = own.assign(wall_ns=own["wall_ns"].mask(is_partial), busy_ns=own["busy_ns"].mask(is_partial))
    sums = own.groupby(names, sort=False)[values].sum().reset_index()
    return {(case, profiler): CaseRange(*numbers) for case, profiler, *numbers in rows(sums, *names, *values)}


def rows(frame: pd.DataFrame, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the columns ``names`` of each row as plain values."""
    return zip(*(frame[name].tolist() for name in names), strict=True)
