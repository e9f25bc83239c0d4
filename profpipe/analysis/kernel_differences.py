"""Divide the difference between A and B of a case among its kernels.

Captures of both sides give the launches and the time of each kernel by iteration. The difference of the case comes from
processes without a profiler. A separate row holds what the kernels do not explain: idle time, launch gaps and the error
of the profiler. All times are multiples of 2^-10 ns, so the parts add up to the difference exactly, in any order.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from profpipe.analysis import verdict
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_totals import COPIES
from profpipe.analysis.verdict import Judgement
from profpipe.results.schema import KernelChange

#: Launches by iteration are whole numbers up to this error, or means over steps of which each launches others.
_WHOLE: Final = 0.005
#: Means of launches that differ by a smaller share are the same.
_LEAST_CALLS: Final = 0.01
#: Sums of such multiples of a ns are exact below 2^43 ns, which is two hours.
_GRID: Final = 1024.0
#: Classes of kernels that may do quite different work.
VAGUE_CLASSES: Final = ("other", "elementwise", "fused", "graph", "")
#: What distinguishes the names of two kernels that do the same: architecture, tiles, stages, types.
_VARIANT: Final = re.compile(r"sm_?\d+|ampere|volta|turing|hopper|blackwell|\d+")


@dataclass(frozen=True)
class Work:
    """What a kernel costs in one iteration: its launches and their time in ns."""

    calls: float
    ns: float
    kernel_class: str


_NONE: Final = Work(0.0, 0.0, "")


@dataclass(frozen=True)
class Capture:
    """The kernels of an iteration by name, as a process of the pair ``pair`` launched them under a profiler."""

    pair: int
    kernels: Mapping[str, Work]


@dataclass(frozen=True)
class KernelDifference:
    """A kernel on both sides. Calls and times are of one iteration: medians over the captures of a side.

    ``b_name`` is the name on B; it differs from ``name`` for a kernel that is exchanged. ``low_ns`` and ``high_ns`` are
    the smallest and the largest B - A of a pair of captures. ``judgement`` needs 8 pairs of captures.
    """

    name: str
    b_name: str
    change: KernelChange
    a: Work
    b: Work
    captures: int
    low_ns: float
    high_ns: float
    judgement: Judgement | None = None

    @property
    def part_ns(self) -> float:
        return self.b.ns - self.a.ns

    @property
    def kernel_class(self) -> str:
        return self.a.kernel_class or self.b.kernel_class

    @property
    def is_other(self) -> bool:
        """True for a kernel that one side does not launch, or launches more often."""
        return self.change not in (KernelChange.TIME, KernelChange.UNCHANGED)


@dataclass(frozen=True)
class KernelSet:
    """The launches by kernel that ``processes`` processes of a side have in common, where sets differ."""

    processes: int
    launches: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SetVariation:
    """Processes of the side ``side`` launch different kernels; the most common set comes first."""

    side: str
    sets: tuple[KernelSet, ...]

    @property
    def processes(self) -> int:
        return sum(each.processes for each in self.sets)


@dataclass(frozen=True)
class KernelComparison:
    """The difference of a case by kernel, the largest part first."""

    difference_ns: float
    kernels: tuple[KernelDifference, ...]
    variations: tuple[SetVariation, ...] = ()

    @property
    def not_in_kernels_ns(self) -> float:
        return self.difference_ns - sum(kernel.part_ns for kernel in self.kernels)

    @property
    def has_other_kernels(self) -> bool:
        """Return True if the sides launch other kernels, or a kernel a different number of times."""
        return any(kernel.is_other for kernel in self.kernels)


def compare(difference_ns: float, a: Sequence[Capture], b: Sequence[Capture]) -> KernelComparison | None:
    """Divide ``difference_ns``, B - A of a case without a profiler; None where a side has no capture."""
    if not a or not b:
        return None
    names = dict.fromkeys(name for capture in (*a, *b) for name in capture.kernels)
    sides = {name: (_typical(name, a), _typical(name, b)) for name in names}
    places = [(name, name) for name, (on_a, on_b) in sides.items() if on_a.calls and on_b.calls]
    vanished = {name: on_a for name, (on_a, on_b) in sides.items() if on_a.calls and not on_b.calls}
    appeared = {name: on_b for name, (on_a, on_b) in sides.items() if on_b.calls and not on_a.calls}
    exchanged = dict(_exchanged(vanished, appeared))
    places += exchanged.items()
    places += [(name, "") for name in vanished if name not in exchanged]
    places += [("", name) for name in appeared if name not in exchanged.values()]
    found = [_difference(on_a, on_b, a, b) for on_a, on_b in places]
    ordered = sorted(found, key=lambda kernel: (-abs(kernel.part_ns), kernel.name))
    variations = [v for side, captures in (("A", a), ("B", b)) if (v := vary(side, captures))]
    return KernelComparison(on_grid(difference_ns), tuple(ordered), tuple(variations))


def on_grid(ns: float) -> float:
    """Return the time rounded to a multiple of 2^-10 ns."""
    return round(ns * _GRID) / _GRID


def _typical(name: str, captures: Sequence[Capture]) -> Work:
    """Return the medians of a kernel over captures; one that does not launch it counts as none."""
    works = [capture.kernels.get(name, _NONE) for capture in captures]
    calls, ns = statistics.median(w.calls for w in works), on_grid(statistics.median(w.ns for w in works))
    return Work(calls, ns, next((w.kernel_class for w in works if w.calls), "")) if calls else _NONE


def _difference(name: str, b_name: str, a: Sequence[Capture], b: Sequence[Capture]) -> KernelDifference:
    """Return the difference in the place of a kernel; an empty name stands for no kernel on that side."""
    on_a, on_b = _typical(name, a), _typical(b_name, b)
    first = {capture.pair: capture.kernels.get(name, _NONE) for capture in a}
    pairs = [(first[c.pair], c.kernels.get(b_name, _NONE)) for c in b if c.pair in first]
    differences = [after.ns - before.ns for before, after in pairs] or [on_b.ns - on_a.ns]
    ratios = [math.log(after.ns / before.ns) for before, after in pairs if before.ns > 0 and after.ns > 0]
    found = KernelDifference(
        name or b_name,
        b_name or name,
        KernelChange.UNCHANGED,
        on_a,
        on_b,
        captures=min(len(a), len(b)),
        low_ns=on_grid(min(differences)),
        high_ns=on_grid(max(differences)),
        # By the rule of cases, where there are enough pairs of captures to decide.
        judgement=verdict.judge(ratios) if len(ratios) == len(pairs) >= verdict.FEWEST_PAIRS else None,
    )
    times = tuple([c.kernels.get(own, _NONE).ns for c in side] for own, side in ((name, a), (b_name, b)))
    return replace(found, change=_change(found, *times))


def _change(found: KernelDifference, a_ns: Sequence[float], b_ns: Sequence[float]) -> KernelChange:
    """Return what differs. The time does if no capture of a side is within those of the other, and beyond the floor."""
    if not found.a.calls or not found.b.calls:
        return KernelChange.VANISHED if found.a.calls else KernelChange.APPEARED
    if found.name != found.b_name:
        return KernelChange.EXCHANGED
    if found.a.kernel_class != found.b.kernel_class:
        return KernelChange.CLASS
    if not are_as_many(found.a.calls, found.b.calls):
        return KernelChange.LAUNCHES
    is_apart = max(a_ns) < min(b_ns) or max(b_ns) < min(a_ns)
    is_large = abs(found.part_ns) > verdict.LEAST_FLOOR * min(found.a.ns, found.b.ns)
    return KernelChange.TIME if is_apart and is_large else KernelChange.UNCHANGED


def are_as_many(calls: float, others: float) -> bool:
    """Return True if two numbers of launches by iteration are the same: whole ones exactly, means within 1 %."""
    if all(abs(number - round(number)) <= _WHOLE for number in (calls, others)):
        return round(calls) == round(others)
    return abs(calls - others) <= _LEAST_CALLS * max(calls, others)


# --- kernels in the same place ---------------------------------------------------------------------------------------


def _exchanged(vanished: Mapping[str, Work], appeared: Mapping[str, Work]) -> Iterator[tuple[str, str]]:
    """Yield (name on A, name on B) of kernels that are clearly in the same place.

    They have the same class and as many launches, and no other kernel has. Of several, and of a class that says little,
    those belong together whose names differ in numbers and architectures only, if there is one on each side.
    """
    left, right = dict(vanished), dict(appeared)
    for key, without in ((_variant_key, COPIES), (_place_key, (*COPIES, *VAGUE_CLASSES))):
        for ours, theirs in list(_matches(left, right, key)):
            if left[ours].kernel_class not in without:
                yield ours, theirs
                del left[ours], right[theirs]


def _matches(
    left: Mapping[str, Work], right: Mapping[str, Work], key: Callable[[str, Work], tuple[object, ...]]
) -> Iterator[tuple[str, str]]:
    on_a, on_b = (grouped((key(name, work), name) for name, work in side.items()) for side in (left, right))
    for each, names in on_a.items():
        others = on_b.get(each, [])
        if len(names) == len(others) == 1:
            yield names[0], others[0]


def _place_key(name: str, work: Work) -> tuple[object, ...]:
    return work.kernel_class, round(work.calls, 2)


def _variant_key(name: str, work: Work) -> tuple[object, ...]:
    return (*_place_key(name, work), _VARIANT.sub("#", name))


# --- processes of one side -------------------------------------------------------------------------------------------


def vary(side: str, captures: Sequence[Capture]) -> SetVariation | None:
    """Return how the sets of kernels differ between processes of a side; None where all launch the same ones."""
    names = dict.fromkeys(name for capture in captures for name in capture.kernels)
    counts = [[c.kernels.get(name, _NONE).calls for c in captures] for name in names]
    differing = [
        name for name, (first, *others) in zip(names, counts, strict=True)
        if not all(are_as_many(first, other) for other in others)
    ]  # fmt: skip
    if not differing:
        return None

    def is_alike(one: Capture, other: Capture) -> bool:
        return all(are_as_many(*(c.kernels.get(name, _NONE).calls for c in (one, other))) for name in differing)

    groups: list[list[Capture]] = []
    for capture in captures:
        own = next((group for group in groups if is_alike(group[0], capture)), None)
        if own is None:
            groups.append([capture])
        else:
            own.append(capture)
    sets = [
        KernelSet(len(group), tuple((n, group[0].kernels[n].calls) for n in differing if n in group[0].kernels))
        for group in groups
    ]
    return SetVariation(side, tuple(sorted(sets, key=lambda each: -each.processes)))
