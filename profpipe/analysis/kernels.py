"""The kernels of a case: their totals, what a call or a step consists of, their counters, and the ranges around them.

Times are nanoseconds, sizes bytes, shares between 0 and 1. None: not measured.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from profpipe.config.quantities import CATEGORIES, category
from profpipe.results.schema import PATH_SEPARATOR, STEP_PREFIX

#: (case, profiler)
Key = tuple[str, str]

#: From this relative standard deviation on, the launches of a kernel do different work: one does not represent all.
_HIGH_VARIATION = 0.05

#: Kinds that are no kernels.
COPIES = ("memcpy", "memset")

#: A process and device with less than this share of the busiest one's kernel time is no rank: one process of torchrun
#: may touch the device of another.
_LEAST_RANK = 0.01


class Kernel(NamedTuple):
    """A kernel as the tables name it; ``kind`` is kernel, graph, cpu_op, memcpy or memset."""

    name: str
    kernel_class: str
    family: str
    kind: str


@dataclass(frozen=True)
class ClassTotal:
    """Launches and their time: of a kernel, of a class or a category of kernels, or of copies and their bytes.

    Of one kernel, ``squares`` is the sum of the squared times of its launches in ns^2, and ``least`` and ``most`` are
    its shortest and longest launch in ns: infinite where an export has only sums.
    """

    calls: float = 0.0
    ns: float = 0.0
    kernel_class: str = ""
    bytes: float | None = None
    squares: float = 0.0
    least: float = -math.inf
    most: float = math.inf

    def __add__(self, other: ClassTotal) -> ClassTotal:
        return ClassTotal(
            self.calls + other.calls,
            self.ns + other.ns,
            squares=self.squares + other.squares,
            least=min(self.least, other.least),
            most=max(self.most, other.most),
        )

    def __truediv__(self, number: float) -> ClassTotal:
        """Return the mean of ``number`` ranks or iterations."""
        return replace(self, calls=self.calls / number, ns=self.ns / number, squares=self.squares / number)

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.ns * 1e9 if self.bytes is not None and self.ns else None

    @property
    def mean_ns(self) -> float:
        return self.ns / self.calls

    @property
    def has_high_variance(self) -> bool:
        """True if a few launches of the kernel do not represent all of them."""
        return self.ns > 0 and self.squares * self.calls / self.ns**2 - 1 > _HIGH_VARIATION**2

    @property
    def typical_range(self) -> tuple[float, float]:
        """Two standard deviations to either side of the mean launch of the kernel, in ns."""
        around = 2 * math.sqrt(max(0.0, self.squares - self.ns * self.mean_ns) / max(1.0, self.calls - 1))
        return self.mean_ns - around, self.mean_ns + around


@dataclass
class KernelTotals:
    """The launches of one case under one profiler by kernel, over all iterations; copies and sets are among them."""

    sums: dict[Kernel, ClassTotal] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    #: Of kernels and operators by phase, nested phases excluded.
    phases: dict[str, ClassTotal] = field(default_factory=dict)

    @functools.cached_property
    def kernels(self) -> Mapping[Kernel, ClassTotal]:
        """Kernels and whole graphs. Cached like all that follows, so read it when the sums are complete."""
        return {kernel: total for kernel, total in self.sums.items() if kernel.kind not in (*COPIES, "cpu_op")}

    @functools.cached_property
    def work(self) -> Mapping[Kernel, ClassTotal]:
        """Kernels and whole graphs; without any, the CPU operators."""
        return self.kernels or {kernel: total for kernel, total in self.sums.items() if kernel.kind == "cpu_op"}

    @functools.cached_property
    def by_name(self) -> Mapping[str, ClassTotal]:
        """``work`` by name of kernel."""
        return _sum_by((kernel.name, total) for kernel, total in self.work.items())

    @functools.cached_property
    def by_copy(self) -> Mapping[str, ClassTotal]:
        """Copies and sets by name."""
        return _sum_by((kernel.name, total) for kernel, total in self.sums.items() if kernel.kind in COPIES)

    @property
    def total_ns(self) -> float:
        return sum(total.ns for total in self.work.values())

    @property
    def by_class(self) -> dict[str, float]:
        """The ns of kernels by class."""
        times = _sum_by((kernel.kernel_class, total) for kernel, total in self.work.items())
        return {name: total.ns for name, total in times.items()}

    def divided_by(self, number: float) -> KernelTotals:
        """Return the totals of one of ``number`` ranks or iterations: their mean."""
        sums = {kernel: total / number for kernel, total in self.sums.items()}
        return KernelTotals(sums, self.streams, {phase: total / number for phase, total in self.phases.items()})


def _sum_by(pairs: Iterable[tuple[str, ClassTotal]]) -> dict[str, ClassTotal]:
    sums: dict[str, ClassTotal] = {}
    for name, total in pairs:
        sums[name] = sums[name] + total if name in sums else total
    return sums


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
    totals = {(case, profiler): KernelTotals() for case, profiler in rows(timed.drop_duplicates(key), *key)}
    # By kernel and by phase apart: a capture of a million launches has 60,000 combinations of the two.
    how = {"calls": "sum", "total_ns": "sum", "squares": "sum", "least": "min", "most": "max"}
    sums = timed.groupby([*key, *named], sort=False, dropna=False).agg(how).reset_index()
    for case, profiler, name, cls, family, kind, calls, ns, squares, least, most in rows(sums, *key, *named, *how):
        total = ClassTotal(calls, ns, squares=squares, least=least, most=most)
        totals[case, profiler].sums[Kernel(name, cls, family, kind)] = total
    work = timed[~timed["kind"].isin(COPIES)]
    sums = work.groupby([*key, "phase"], sort=False, dropna=False)[["calls", "total_ns"]].sum().reset_index()
    for case, profiler, phase, calls, ns in rows(sums, *key, "phase", "calls", "total_ns"):
        totals[case, profiler].phases[phase] = ClassTotal(calls, ns)
    streams = work[[*key, "stream"]].dropna().drop_duplicates()
    for case, profiler, stream in rows(streams, *key, "stream"):
        totals[case, profiler].streams.add(int(stream))
    return totals


def count_ranks(kernels: pd.DataFrame) -> dict[Key, int]:
    """Count the processes and devices that ran the kernels of each case under each profiler.

    ncu may run a program several times, so only its devices count. Processes under `lines` are not alike.
    """
    key = ["case", "profiler"]
    kernel_rows = kernels[kernels["total_ns"].notna() & ~kernels["kind"].isin(COPIES)]
    apart = ~kernel_rows["profiler"].isin(["ncu", "lines"])
    kernel_rows = kernel_rows.assign(
        source=kernel_rows["source"].where(apart, ""), process=kernel_rows["process"].where(apart)
    )
    sums = kernel_rows.groupby([*key, "source", "process", "device"], sort=False, dropna=False)["total_ns"].sum()
    largest = sums.groupby(key).transform("max")
    counts = sums[sums >= _LEAST_RANK * largest].groupby(key, sort=False).size()
    return {(str(case), str(profiler)): int(n) for (case, profiler), n in counts.items()}


def case_ranges(ranges: pd.DataFrame) -> dict[Key, CaseRange]:
    """Return the range of each case; several processes are summed."""
    names, values = ["case", "profiler"], ["instances", "wall_ns", "busy_ns", "span_ns"]
    case_rows = ranges[(ranges["range"] == "") & (ranges["case"] != "")]
    # A wall time without a busy time gives no idle share, and the reverse.
    is_partial = case_rows["wall_ns"].isna() | case_rows["busy_ns"].isna()
    case_rows = case_rows.assign(
        wall_ns=case_rows["wall_ns"].mask(is_partial), busy_ns=case_rows["busy_ns"].mask(is_partial)
    )
    sums = case_rows.groupby(names, sort=False)[values].sum().reset_index()
    return {(case, profiler): CaseRange(*numbers) for case, profiler, *numbers in rows(sums, *names, *values)}


def rows(frame: pd.DataFrame, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the columns ``names`` of each row as plain values."""
    return zip(*(frame[name].tolist() for name in names), strict=True)


# --- what a call or a step consists of --------------------------------------------------------------------------------

#: nsys records every launch at the lowest cost, ncu runs each kernel alone.
_PREFERENCE = ("nsys", "rocprof", "torch", "jax", "ncu")


def by_preference(profilers: Iterable[str]) -> list[str]:
    """Return the profilers that record kernels, those of packages last. The first represents a case."""
    names = set(profilers) - {"plain", ""}
    return [*(name for name in _PREFERENCE if name in names), *sorted(names.difference(_PREFERENCE))]


#: SageAttention and SpargeAttn subtract the mean of K before quantising it. PyTorch computes that mean in a kernel
#: with a general name (sageattention/core.py, ``smooth_k``).
_SMOOTHING_FAMILIES, _SMOOTHING = ("sage", "sparge"), "MeanOps"


#: The least change of a category that is reported, as a share of the call.
CHANGE = 0.02


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

    def other_class(self, name: str) -> ClassTotal:
        """Return the kernels of class ``name`` without a category."""
        return self.other_classes.get(name, ClassTotal())

    def other_classes_without(self, names: Sequence[str]) -> ClassTotal:
        """Return the kernels without a category whose class is not in ``names``."""
        return sum((part for name, part in self.other_classes.items() if name not in names), ClassTotal())

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
    ``copies`` is in no ratio. ``flag`` is ``unchecked`` if the pipeline sets a tolerance and a result was not compared.
    """

    variant: str
    attention: float | None
    with_helpers: float | None
    call: float
    measured_call: float | None
    amdahl_limit: float | None
    changes: tuple[tuple[str, float, float], ...] = ()
    flag: str = ""

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


def break_down(profiler: str, totals: KernelTotals, count: int | None, own_range: CaseRange) -> KernelBreakdown | None:
    """Divide the kernel time of one case, per call where ``count`` iterations are known; None without any time."""
    if not totals.total_ns > 0:
        return None
    families = {kernel.family for kernel in totals.work if kernel.kernel_class == "attention"}
    smooths = any(family.startswith(_SMOOTHING_FAMILIES) for family in families)
    runs, none = count or 1, ClassTotal()
    parts: list[tuple[str, str, ClassTotal]] = []
    for kernel, launches in totals.work.items():
        is_helper = smooths and _SMOOTHING in kernel.name
        name = "helpers" if is_helper else _category(kernel.name, kernel.kernel_class, kernel.kind)
        parts.append((name, kernel.kernel_class, ClassTotal(launches.calls / runs, launches.ns / runs)))
    # The operators of a CPU stand in for kernels that were lost, and with them the time between them.
    known_range = own_range if totals.kernels else CaseRange()
    return KernelBreakdown(
        profiler,
        "kernel" if totals.kernels else "cpu_op",
        count,
        categories=_sum_by((name, part) for name, _, part in parts),
        total=sum((part for *_, part in parts), none),
        classes=_sum_by((kernel_class, part) for _, kernel_class, part in parts),
        idle_share=known_range.idle_share,
        busy_ns=known_range.per_call(known_range.busy_ns),
        range_ns=known_range.per_call(known_range.wall_ns),
        span_ns=known_range.per_call(known_range.span_ns),
        other_classes=_sum_by((kernel_class, part) for name, kernel_class, part in parts if name == "rest"),
        copies=sum(totals.by_copy.values(), none) / runs if totals.kernels else none,
    )


_category = functools.lru_cache(maxsize=4096)(category)


def switch_cost(
    variant: str, base: KernelBreakdown, other: KernelBreakdown, measured: float | None, flag: str = ""
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
    return SwitchCost(variant, attention, with_helpers, call, measured, limit, _changes(base, other), flag)


def _changes(base: KernelBreakdown, other: KernelBreakdown) -> tuple[tuple[str, float, float], ...]:
    """Return the categories except attention whose time changes by 2 % of the shorter call, largest first.

    Copies and sets count, because a call contains them: cuDNN sets memory for 0.8 us before a kernel of 9 us.
    """
    pairs = [(name, base.category(name), other.category(name)) for name in CATEGORIES[1:]]
    pairs.append(("copies", base.copies, other.copies))
    changes = ((name, after.ns - before.ns, after.calls - before.calls) for name, before, after in pairs)
    reported = (change for change in changes if abs(change[1]) >= base.least_change(other))
    return tuple(sorted(reported, key=lambda change: -abs(change[1])))


def top_kernels(totals: KernelTotals, case: str, count: int | None, limit: int) -> list[KernelRow]:
    """Return the ``limit`` kernels of ``case`` with the most time, over all phases and streams."""
    total, runs = totals.total_ns, count or 1
    ordered = sorted(totals.work.items(), key=lambda item: (-item[1].ns, item[0].name))
    return [
        KernelRow(case, *kernel[:3], launches.calls / runs, launches.ns / runs, launches.ns / total)
        for kernel, launches in ordered[:limit]
    ]


#: The name of a kernel in no namespace, and its words: `transpose` and `Naive`, `reduce` and `0`.
_OWN_NAME, _WORDS = re.compile(r"(?:void )?(\w+)\s*(?:[<(]|$)"), re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: First words that no variants of one kernel share: of libraries, of compilers, and of any kernel.
_COMMON_WORDS = frozenset({
    "ampere", "cudnn", "cutlass", "elementwise", "fusion", "input", "kernel", "loop", "nccl", "nvjet", "triton",
    "turing", "unrolled", "vectorized", "volta", "wrapped",
})  # fmt: skip
#: Words that say which work a kernel does: its direction, the type of its numbers, the layout or the shape of a tile.
_OTHER_WORK = re.compile(
    r"(?<![a-z])(?:forward|backward|fwd|bwd|[dw]?grad|[fb]prop|d[qkvxw]|inv(?:erse)?|[rcdz]2[rcdz]|[nt]{1,3}|[nt]sp|encode|decode"
    r"|prefill|gather|scatter|(?:un)?pack|(?:de)?quantize|(?:__)?half2?|float|double|char|int|(?:b?float|bf|fp|tf|u?int|[fsu])"
    r"(?:8|16|32|64)\w*|\d+x\d+[x\d]*)(?![a-z0-9])"
)
#: A first word as short as ``vec`` or ``mat`` counts together with the second one.
_SHORTEST_WORD = 4
#: After the first word, a name of more words is that of a part of a library: ``split_embedding_..._long_segments``.
_MOST_WORDS = 4


def find_variants(totals: KernelTotals) -> list[list[tuple[str, ClassTotal]]]:
    """Return the groups of kernels that are variants of one, the fastest of a group first.

    Their names begin with the same word, as ``transposeNaive`` and ``transposeCoalesced``, and none is launched more
    than twice as often as another. Kernels that differ in a word of ``_OTHER_WORK`` are no variants.
    """
    groups: dict[tuple[str, ...], list[tuple[str, ClassTotal]]] = {}
    for kernel, launches in totals.kernels.items():
        match = _OWN_NAME.match(kernel.name)
        words = [word.lower() for word in _WORDS.findall(match[1])] if match else []
        is_short = 0 < len(words) <= 1 + _MOST_WORDS
        if is_short and words[0] not in _COMMON_WORDS and launches.calls and launches.ns:
            stem = words[0] if len(words[0]) >= _SHORTEST_WORD else "".join(words[:2])
            work = sorted(_OTHER_WORK.findall(_CAMEL.sub("_", kernel.name).lower()))
            groups.setdefault((stem, *work), []).append((kernel.name, launches))
    calls = {stem: [launches.calls for _, launches in group] for stem, group in groups.items()}
    return [
        sorted(group, key=lambda variant: variant[1].ns / variant[1].calls)
        for stem, group in groups.items()
        if len({name for name, _ in group}) > 1 and max(calls[stem]) <= 2 * min(calls[stem])
    ]


#: The number at the end of a range that is opened for each step: ``ProfilerStep#105``, ``step_2``.
_STEP_NUMBER = re.compile(r"\d+$")


def find_phases(totals: KernelTotals, case: str, count: int | None, joins_steps: bool = False) -> list[Phase]:
    """Return the launches and the kernel time of each user range in ``case``, nested ranges included.

    ``joins_steps``: outermost ranges that differ in the number at their end are one: ``ProfilerStep#N``.
    """
    sums: dict[str, ClassTotal] = {}
    for path, launches in totals.phases.items():
        steps = path.split(PATH_SEPARATOR) if path else []
        # The ranges of profpipe's own steps hold all that a program does.
        steps = steps[1:] if path.startswith(STEP_PREFIX) else steps
        if joins_steps and steps:
            steps[0] = _STEP_NUMBER.sub("N", steps[0])
        for name in itertools.accumulate(steps, lambda outer, inner: f"{outer}{PATH_SEPARATOR}{inner}"):
            sums[name] = sums.get(name, ClassTotal()) + launches
    total, runs = totals.total_ns, count or 1
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


# --- kernels, their counters, and ranges ------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelRow:
    """One kernel of one case. Calls and time are per call; ``share`` is of the case's kernel time."""

    case: str
    kernel: str
    kernel_class: str
    family: str
    calls: float
    ns: float
    share: float


#: A rule of ncu that applies to a kernel, the speed-up in % that ncu estimates, if any, and whether it is local.
#: ``SpeedupType`` of the NvRules API: a global estimate is the reduction of the run time, a local one the increase of
#: one unit's efficiency.
Rule: TypeAlias = "tuple[str, float | None, bool]"


@dataclass(frozen=True)
class Counters:
    """The metrics that ncu measured of one kernel of one case: name to (value, unit).

    ``rules`` are the rules of ncu that apply. ``missed`` are the targets of the pipeline file that it does not reach.
    """

    case: str
    kernel: str
    calls: int
    mean_ns: float | None
    values: Mapping[str, tuple[float, str]]
    rules: tuple[Rule, ...] = ()
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phase:
    """A range of a case, nested ranges included: its kernels, or the host's time in it where there are none.

    ``calls`` are launches of kernels, or entries by the host under ``profiler``. These and ``ns`` are per call if
    ``is_per_call``, else of the whole process. ``share`` is of the call.

    The other numbers are of the work that its workload declares. ``bytes_moved`` is the least that the phase must move.
    ``of_time`` and ``of_work`` are shares of the time and of the FLOPs of all such phases of the case. ``of_flops`` and
    ``of_bandwidth`` are shares of the machine's rates. Above ``ridge`` FLOP per byte, arithmetic is the limit.
    ``limited_by`` is ``compute``, ``memory``, or empty (unknown).
    """

    case: str
    phase: str
    calls: float
    ns: float
    share: float | None
    profiler: str = ""
    is_per_call: bool = True
    flops: float | None = None
    bytes_moved: float | None = None
    of_time: float | None = None
    of_work: float | None = None
    of_flops: float | None = None
    of_bandwidth: float | None = None
    ridge: float | None = None
    limited_by: str = ""

    @property
    def intensity(self) -> float | None:
        """FLOP per byte."""
        return self.flops / self.bytes_moved if self.flops and self.bytes_moved else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops * 1e9 / self.ns if self.flops else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes_moved * 1e9 / self.ns if self.bytes_moved else None
