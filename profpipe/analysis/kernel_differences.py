"""Divide the difference between A and B of a case among its kernels, of captures of an `ab` run or of recordings.

Captures of both sides give the launches and the time of each kernel by iteration. The difference of the case comes from
processes without a profiler. A separate row holds what the kernels do not explain: idle time, launch gaps and the error
of the profiler. All times are multiples of 2^-10 ns, so the parts add up to the difference exactly, in any order.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pandas as pd

from profpipe.analysis import verdict
from profpipe.analysis.case_index import CaseIndex
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import COPIES, ClassTotal, KernelTotals
from profpipe.analysis.verdict import Judgement
from profpipe.job import Status
from profpipe.results import schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import PROCESS_WALL, KernelChange, Tables

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

#: The rows of a capture are known by the folder of their file, ``raw/<workload>/pair-01/A-nsys``; its metrics by their
#: subject, ``pair 1 A`` or ``pair 1 A <kernel>``.
_SOURCE: Final = re.compile(r"^raw/.+?/pair-(?P<pair>\d+)/(?P<side>[AB])-\w+/")
_SUBJECT: Final = re.compile(rf"^{schema.PAIR_PREFIX}(?P<pair>\d+) (?P<side>[AB])(?: (?P<subject>.*))?$", re.DOTALL)

#: What the kernels of an iteration cost, by name; and those that the process of each pair launched under a profiler.
Kernels: TypeAlias = "Mapping[str, ClassTotal]"
Captures: TypeAlias = "Mapping[int, Kernels]"
#: The number of processes of a side that launch the same kernels, and the launches by kernel where such sets differ.
KernelSet: TypeAlias = "tuple[int, Mapping[str, float]]"
#: (workload, case)
_Key = tuple[str, str]

_NONE: Final = ClassTotal()


@dataclass(frozen=True)
class KernelDifference:
    """A kernel on both sides. Calls and times are of one iteration: medians over the captures of a side.

    ``b_name`` is the name on B; it differs from ``name`` for a kernel that is exchanged. ``low_ns`` and ``high_ns`` are
    the smallest and the largest B - A of a pair of captures. ``judgement`` needs 8 pairs of captures.
    """

    name: str
    b_name: str
    change: KernelChange
    a: ClassTotal
    b: ClassTotal
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
class KernelComparison:
    """The difference of a case by kernel, the largest part first.

    ``variations`` are by side, where its processes launch different kernels; the most common set comes first.
    """

    difference_ns: float
    kernels: tuple[KernelDifference, ...]
    variations: Mapping[str, Sequence[KernelSet]] = field(default_factory=dict)

    @property
    def not_in_kernels_ns(self) -> float:
        return self.difference_ns - sum(kernel.part_ns for kernel in self.kernels)

    @property
    def has_other_kernels(self) -> bool:
        """Return True if the sides launch other kernels, or a kernel a different number of times."""
        return any(kernel.is_other for kernel in self.kernels)


def compare(difference_ns: float, a: Captures, b: Captures) -> KernelComparison | None:
    """Divide ``difference_ns``, B - A of a case without a profiler; None where a side has no capture."""
    if not a or not b:
        return None
    names = dict.fromkeys(name for kernels in (*a.values(), *b.values()) for name in kernels)
    on_a, on_b = ({name: work for name in names if (work := _typical(name, side)).calls} for side in (a, b))
    vanished = {name: work for name, work in on_a.items() if name not in on_b}
    appeared = {name: work for name, work in on_b.items() if name not in on_a}
    places = {name: name for name in on_a if name in on_b} | dict(_exchanged(vanished, appeared))
    pairs = [*places.items(), *((name, "") for name in vanished if name not in places)]
    pairs += [("", name) for name in appeared if name not in places.values()]
    differences = [_difference(name, b_name, a, b) for name, b_name in pairs]
    ordered = sorted(differences, key=lambda kernel: (-abs(kernel.part_ns), kernel.name))
    variations = {side: sets for side, captures in (("A", a), ("B", b)) if (sets := vary(captures))}
    return KernelComparison(on_grid(difference_ns), tuple(ordered), variations)


def on_grid(ns: float) -> float:
    """Return the time rounded to a multiple of 2^-10 ns."""
    return round(ns * _GRID) / _GRID


def _typical(name: str, captures: Captures) -> ClassTotal:
    """Return the medians of a kernel over captures; one that does not launch it counts as none."""
    works = [kernels.get(name, _NONE) for kernels in captures.values()]
    calls, ns = statistics.median(w.calls for w in works), on_grid(statistics.median(w.ns for w in works))
    return ClassTotal(calls, ns, next((w.kernel_class for w in works if w.calls), "")) if calls else _NONE


def _difference(name: str, b_name: str, a: Captures, b: Captures) -> KernelDifference:
    """Return the difference in the place of a kernel; an empty name stands for no kernel on that side."""
    on_a, on_b = _typical(name, a), _typical(b_name, b)
    a_ns, b_ns = ({pair: kernels.get(kernel_name, _NONE).ns for pair, kernels in side.items()}
                  for kernel_name, side in ((name, a), (b_name, b)))  # fmt: skip
    pairs = [(a_ns[pair], ns) for pair, ns in b_ns.items() if pair in a_ns]
    differences = [after - before for before, after in pairs] or [on_b.ns - on_a.ns]
    ratios = [math.log(after / before) for before, after in pairs if before > 0 and after > 0]
    is_apart = max(a_ns.values()) < min(b_ns.values()) or max(b_ns.values()) < min(a_ns.values())
    is_large = abs(on_b.ns - on_a.ns) > verdict.LEAST_FLOOR * min(on_a.ns, on_b.ns)
    return KernelDifference(
        name or b_name,
        b_name or name,
        # The time differs if no capture of a side is within those of the other, and by more than the floor.
        _find_change(name, b_name, on_a, on_b, KernelChange.TIME if is_apart and is_large else KernelChange.UNCHANGED),
        on_a,
        on_b,
        captures=min(len(a), len(b)),
        low_ns=on_grid(min(differences)),
        high_ns=on_grid(max(differences)),
        # By the rule of cases, where there are enough pairs of captures to decide.
        judgement=verdict.judge(ratios) if len(ratios) == len(pairs) >= verdict.FEWEST_PAIRS else None,
    )


def _find_change(name: str, b_name: str, a: ClassTotal, b: ClassTotal, change_of_time: KernelChange) -> KernelChange:
    if not a.calls or not b.calls:
        return KernelChange.VANISHED if a.calls else KernelChange.APPEARED
    if name != b_name:
        return KernelChange.EXCHANGED
    if a.kernel_class != b.kernel_class:
        return KernelChange.CLASS
    return change_of_time if are_as_many(a.calls, b.calls) else KernelChange.LAUNCHES


def are_as_many(calls: float, others: float) -> bool:
    """Return True if two numbers of launches by iteration are the same: whole ones exactly, means within 1 %."""
    if all(abs(number - round(number)) <= _WHOLE for number in (calls, others)):
        return round(calls) == round(others)
    return abs(calls - others) <= _LEAST_CALLS * max(calls, others)


# --- kernels in the same place ---------------------------------------------------------------------------------------


def _exchanged(vanished: Kernels, appeared: Kernels) -> Iterator[tuple[str, str]]:
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
    left: Kernels, right: Kernels, key: Callable[[str, ClassTotal], tuple[object, ...]]
) -> Iterator[tuple[str, str]]:
    on_a, on_b = (grouped((key(name, work), name) for name, work in side.items()) for side in (left, right))
    for match_key, names in on_a.items():
        others = on_b.get(match_key, [])
        if len(names) == len(others) == 1:
            yield names[0], others[0]


def _place_key(name: str, work: ClassTotal) -> tuple[object, ...]:
    return work.kernel_class, round(work.calls, 2)


def _variant_key(name: str, work: ClassTotal) -> tuple[object, ...]:
    return (*_place_key(name, work), _VARIANT.sub("#", name))


# --- processes of one side -------------------------------------------------------------------------------------------


def vary(captures: Captures) -> list[KernelSet]:
    """Return the sets of kernels that the processes of a side launch; empty where all launch the same ones."""
    names = dict.fromkeys(name for kernels in captures.values() for name in kernels)
    launches = [{name: kernels.get(name, _NONE).calls for name in names} for kernels in captures.values()]
    differing = [name for name in names if not all(are_as_many(launches[0][name], calls[name]) for calls in launches)]
    groups: list[list[dict[str, float]]] = []
    for calls in launches if differing else ():
        alike = (g for g in groups if all(are_as_many(g[0][name], calls[name]) for name in differing))
        group = next(alike, None)
        if group is None:
            groups.append([calls])
        else:
            group.append(calls)
    sets = [(len(group), {name: group[0][name] for name in differing if group[0][name]}) for group in groups]
    return sorted(sets, key=lambda kernel_set: -kernel_set[0])


# --- captures of an `ab` run -----------------------------------------------------------------------------------------


def is_of_capture(source: str) -> bool:
    """Return True for the path of a file, relative to the run's folder, that a capture left."""
    return _SOURCE.search(source) is not None


def failed_captures(data: Tables) -> tuple[Any, ...]:
    """Return the rows of `cases` of which a process under the profiler did not end well."""
    failed_rows = data.cases[(data.cases["profiler"] != "plain") & (data.cases["status"] != Status.OK.value)]
    return tuple(failed_rows.itertuples(index=False))


def read_captures(data: Tables, run: Manifest, times: Mapping[_Key, str]) -> dict[_Key, dict[str, Captures]]:
    """Return the captures of each case by side. ``times`` is the metric by which each case is compared.

    A command that is compared by its step time has the kernels of a steady step, one that is compared by the time of
    its process has those of the whole recording. A capture of the other kind is left out.
    """
    captures: dict[_Key, dict[str, Captures]] = {}
    for (workload, pair, side), process_tables in _processes(data):
        is_command = run.is_command(workload)
        index = CaseIndex.of(process_tables, is_command)
        for case, profiler in index.capture_totals:
            totals = _totals(index, case, profiler, is_command, times.get((workload, case), ""))
            if totals is not None and (kernels := sum_kernels(totals)):
                sides = captures.setdefault((workload, case), {"A": {}, "B": {}})
                sides[side] = {**sides[side], pair: kernels}
    return captures


def _processes(data: Tables) -> Iterator[tuple[tuple[str, int, str], Tables]]:
    """Yield the tables of each process that was captured, its metrics without the pair and the side."""
    kernels, ranges = (
        dict(_split_by_process(frame, frame["source"], _SOURCE)) for frame in (data.kernels, data.ranges)
    )
    captured = data.metrics[data.metrics["metric"].isin(schema.CAPTURED_METRICS)]
    metrics = dict(_split_by_process(captured, captured["subject"], _SUBJECT))
    for process, kernel_rows in kernels.items():
        numbers = metrics.get(process, data.metrics[:0])
        subjects = numbers["subject"].str.extract(_SUBJECT.pattern, flags=re.DOTALL)["subject"].fillna("")
        yield (
            process,
            Tables(
                kernels=kernel_rows,
                ranges=ranges.get(process, data.ranges[:0]),
                metrics=numbers.assign(subject=subjects),
            ),
        )


def _split_by_process(
    frame: pd.DataFrame, texts: pd.Series[str], pattern: re.Pattern[str]
) -> Iterator[tuple[tuple[str, int, str], pd.DataFrame]]:
    """Yield the rows of each workload, pair and side, as ``pattern`` finds them in ``texts``."""
    matched = texts.str.extract(pattern.pattern, flags=pattern.flags & re.DOTALL)
    groups = frame.groupby([frame["workload"], matched["pair"], matched["side"]], sort=False)
    for (workload, pair, side), process_rows in groups:
        yield (str(workload), int(str(pair)), str(side)), process_rows


def _totals(index: CaseIndex, case: str, profiler: str, is_command: bool, metric: str) -> KernelTotals | None:
    """Return the kernels of one iteration, or None where the capture does not have those that the time is of."""
    key = case, profiler
    if not is_command:
        count = index.iterations(case, profiler)
        return index.totals[key].divided_by(count) if count and key in index.totals else None
    if metric == PROCESS_WALL:
        return None if key in index.step_totals else index.capture_totals[key]
    return index.step_totals.get(key)


def sum_kernels(totals: KernelTotals) -> dict[str, ClassTotal]:
    """Return the kernels by name, and copies and sets, whose class is their kind.

    A name with several classes has the one of the most time.
    """
    classes: dict[str, str] = {}
    for kernel in sorted(totals.work, key=lambda kernel: -totals.work[kernel].ns):
        classes.setdefault(kernel.name, kernel.kernel_class)
    copies = {kernel.name: kernel.kind for kernel in totals.sums if kernel.kind in COPIES}
    return {
        name: ClassTotal(total.calls, total.ns, kinds[name])
        for launches, kinds in ((totals.by_name, classes), (totals.by_copy, copies))
        for name, total in launches.items()
    }
