"""Divide a call's kernel time into categories, and compare the categories of two implementations."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from profpipe.analysis.findings.kernels import KernelRow, Phase
from profpipe.analysis.kernel_totals import CaseRange, KernelTotals
from profpipe.config.quantities import CATEGORIES, category
from profpipe.results.schema import PATH_SEPARATOR, STEP_PREFIX

#: Profilers by preference: nsys records every launch at the lowest cost, ncu runs each kernel alone.
PREFERENCE = ("nsys", "rocprof", "torch", "jax", "ncu")

#: SageAttention and SpargeAttn subtract the mean of K before quantising it. PyTorch computes that mean in a kernel
#: with a general name (sageattention/core.py, ``smooth_k``).
_SMOOTHING_FAMILIES, _SMOOTHING = ("sage", "sparge"), "MeanOps"


#: The least change of a category that is reported, as a share of the call.
CHANGE = 0.02


@dataclass(frozen=True)
class ClassTotal:
    """Launches and their time: of a kernel, of a class or a category of kernels, or of copies and their bytes."""

    calls: float = 0.0
    ns: float = 0.0
    kernel_class: str = ""
    bytes: float | None = None

    def __add__(self, other: ClassTotal) -> ClassTotal:
        return ClassTotal(self.calls + other.calls, self.ns + other.ns)

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.ns * 1e9 if self.bytes is not None and self.ns else None


@dataclass(frozen=True)
class KernelBreakdown:
    """The kernel time of one case under one profiler, by category and by class.

    ``iterations`` is None where it is unknown: then all numbers are sums over all of them. ``kind`` is ``kernel``, or
    ``cpu_op`` for the self time of CPU operators. ``idle_share`` is the share of the case's range, or of the time from
    its first kernel to the last if that is longer, in which no kernel ran.
    """

    profiler: str
    kind: str
    iterations: int | None
    categories: Mapping[str, ClassTotal]
    total: ClassTotal
    #: The same time by kernel class.
    classes: Mapping[str, ClassTotal] = field(default_factory=dict)
    idle_share: float | None = None
    #: Per call: the time in which some kernel ran, and the time of the case's range on the host.
    busy_ns: float | None = None
    range_ns: float | None = None
    #: Kernels without a category, by class.
    other_classes: Mapping[str, ClassTotal] = field(default_factory=dict)
    #: Per call: from the first kernel's start to the last one's end, gaps included.
    span_ns: float | None = None
    #: memcpy and memset, which are not in ``total``.
    copies: ClassTotal = ClassTotal()
    #: The ranks whose mean the numbers are.
    ranks: int = 1

    def category(self, name: str) -> ClassTotal:
        return self.categories.get(name, ClassTotal())

    def least_change(self, other: KernelBreakdown) -> float:
        """Return the least change of a category in ns that is reported: a share of the shorter call."""
        return CHANGE * min(self.total.ns, other.total.ns)

    @property
    def is_fused(self) -> bool:
        """True if an attention kernel ran, not gemm, softmax and gemm."""
        return self.category("attention").ns > 0


@dataclass(frozen=True)
class SwitchCost:
    """The effect of replacing the baseline by ``variant``; ratios above 1 are faster.

    All but ``measured_call`` come from one profiler's kernels. ``amdahl_limit`` is the speed-up of the call if the
    attention kernel took no time. ``changes`` are (category, difference in ns per call, in calls); the category
    ``copies`` is in no ratio. ``mark`` is ``unchecked`` if the pipeline sets a tolerance and a result was not compared.
    """

    variant: str
    attention: float | None
    with_helpers: float | None
    call: float
    measured_call: float | None
    amdahl_limit: float | None
    changes: tuple[tuple[str, float, float], ...] = ()
    mark: str = ""

    @property
    def faster_kernel_slower_call(self) -> bool:
        """True if the kernel is over 1 % faster and the call over 1 % slower."""
        call = self.measured_call if self.measured_call is not None else self.call
        return self.attention is not None and self.attention > 1.01 and call < 0.99


def device_rows(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels and whole graphs; without any, the CPU operators. Copies and sets are left out.

    So are launches without a time: some section sets of ncu record no durations.
    """
    kernels = kernels[kernels["total_ns"].notna()]
    device = kernels[kernels["kind"].isin(["kernel", "graph"])]
    return device if len(device) else kernels[kernels["kind"] == "cpu_op"]


def break_down(profiler: str, own: KernelTotals, count: int | None, own_range: CaseRange) -> KernelBreakdown | None:
    """Divide the kernel time of one case, per call where ``count`` iterations are known; None without any time."""
    if not own.total_ns > 0:
        return None
    families = {kernel.family for kernel in own.work if kernel.kernel_class == "attention"}
    smooths = any(family.startswith(_SMOOTHING_FAMILIES) for family in families)
    none = ClassTotal()
    categories: dict[str, ClassTotal] = {}
    classes: dict[str, ClassTotal] = {}
    rest: dict[str, ClassTotal] = {}
    total, runs = none, count or 1
    for kernel, (calls, ns) in own.work.items():
        added = ClassTotal(calls / runs, ns / runs)
        is_helper = smooths and _SMOOTHING in kernel.name
        name = "helpers" if is_helper else _category(kernel.name, kernel.kernel_class, kernel.kind)
        categories[name] = categories.get(name, none) + added
        for sums in (classes, rest) if name == "rest" else (classes,):
            sums[kernel.kernel_class] = sums.get(kernel.kernel_class, none) + added
        total += added
    kind = "kernel" if own.kernels else "cpu_op"
    found = KernelBreakdown(profiler, kind, count, categories, total, classes, other_classes=rest)
    if not own.kernels:
        return found
    copies = ClassTotal(sum(calls for calls, _ in own.by_copy.values()), sum(ns for _, ns in own.by_copy.values()))
    return replace(
        found,
        idle_share=own_range.idle_share,
        busy_ns=own_range.per_call(own_range.busy_ns),
        range_ns=own_range.per_call(own_range.wall_ns),
        span_ns=own_range.per_call(own_range.span_ns),
        copies=ClassTotal(copies.calls / runs, copies.ns / runs),
    )


_category = functools.lru_cache(maxsize=4096)(category)


def switch_cost(
    variant: str, base: KernelBreakdown, other: KernelBreakdown, measured: float | None, mark: str = ""
) -> SwitchCost:
    """Compare ``variant`` with the baseline by one profiler's kernels. ``measured`` is the speed-up of timed calls."""
    attention = with_helpers = limit = None
    before, after = base.category("attention").ns, other.category("attention").ns
    if base.is_fused and other.is_fused:
        attention = before / after
        with_helpers = (before + base.category("helpers").ns) / (after + other.category("helpers").ns)
    share = before / base.total.ns
    if base.is_fused and share < 1:
        limit = 1 / (1 - share)
    call = base.total.ns / other.total.ns
    return SwitchCost(variant, attention, with_helpers, call, measured, limit, _changes(base, other), mark)


def _changes(base: KernelBreakdown, other: KernelBreakdown) -> tuple[tuple[str, float, float], ...]:
    """Return the categories except attention whose time changes by 2 % of the shorter call, largest first.

    Copies and sets count, because a call contains them: cuDNN sets memory for 0.8 us before a kernel of 9 us.
    """
    pairs = [(name, base.category(name), other.category(name)) for name in CATEGORIES[1:]]
    pairs.append(("copies", base.copies, other.copies))
    changes = ((name, after.ns - before.ns, after.calls - before.calls) for name, before, after in pairs)
    reported = (change for change in changes if abs(change[1]) >= base.least_change(other))
    return tuple(sorted(reported, key=lambda change: -abs(change[1])))


def top_kernels(own: KernelTotals, case: str, count: int | None, limit: int) -> list[KernelRow]:
    """Return the ``limit`` kernels of ``case`` with the most time, over all phases and streams."""
    total, runs = own.total_ns, count or 1
    ordered = sorted(own.work.items(), key=lambda item: (-item[1][1], item[0].name))
    return [
        KernelRow(case, kernel.name, kernel.kernel_class, kernel.family, calls / runs, ns / runs, ns / total)
        for kernel, (calls, ns) in ordered[:limit]
    ]


#: The number at the end of a range that is opened for each step: ``ProfilerStep#105``, ``step_2``.
_STEP_NUMBER = re.compile(r"\d+$")


def phases(own: KernelTotals, case: str, count: int | None, joins_steps: bool = False) -> list[Phase]:
    """Return the launches and the kernel time of each user range in ``case``, nested ranges included.

    ``joins_steps``: outermost ranges that differ in the number at their end are one: ``ProfilerStep#N``.
    """
    sums: dict[str, ClassTotal] = {}
    for path, (calls, ns) in own.phases.items():
        steps = path.split(PATH_SEPARATOR) if path else []
        # The ranges of profpipe's own steps hold all that a program does.
        steps = steps[1:] if path.startswith(STEP_PREFIX) else steps
        if joins_steps and steps:
            steps[0] = _STEP_NUMBER.sub("N", steps[0])
        for name in itertools.accumulate(steps, lambda outer, inner: f"{outer}{PATH_SEPARATOR}{inner}"):
            sums[name] = sums.get(name, ClassTotal()) + ClassTotal(calls, ns)
    total, runs = own.total_ns, count or 1
    return [Phase(case, name, s.calls / runs, s.ns / runs, s.ns / total) for name, s in sums.items() if s.ns > 0]


def unclassified(rows: pd.DataFrame, limit: int) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Return the classified share, and the largest kernels without a class as (name, share)."""
    rows = device_rows(rows)
    total = float(rows["total_ns"].sum())
    if not total:
        return 1.0, ()
    other = rows[rows["kernel_class"] == "other"].groupby("kernel")["total_ns"].sum().sort_values(ascending=False)
    largest = tuple((str(name), float(ns) / total) for name, ns in other.head(limit).items())
    return 1 - float(other.sum()) / total, largest
