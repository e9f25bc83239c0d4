"""Compare one recording of each side: where a step, or the whole recording, differs.

A single recording has no spread, so nothing here is a verdict. Times of different profilers are never compared. All
times are multiples of 2^-10 ns, so the parts of a difference add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import pandas as pd

from profpipe.analysis import kernel_differences, steps
from profpipe.analysis.case_index import CaseIndex
from profpipe.analysis.compare_runs import Key, Run
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_differences import KernelDifference, Kernels, on_grid
from profpipe.analysis.kernels import COPIES, ClassTotal, KernelTotals, by_preference, rows
from profpipe.analysis.memory import find_memory
from profpipe.analysis.steps import COLUMNS, ONE_DEVICE, PLACE, CaseSteps, Place, StepPart, StepParts
from profpipe.job import readable
from profpipe.results.manifest import Manifest
from profpipe.results.schema import ALL, KernelChange, Tables

#: Up to this share of its time, a class of kernels takes about as long on both sides.
_ABOUT_EQUAL = 0.05


class Extent(str, Enum):
    """What the times of two recordings are of: the first of these that both have."""

    #: The mean steady step.
    STEP = "step"
    #: A measured call: the sum of its kernels.
    CALL = "call"
    #: From the first operation of a GPU to its last one.
    RECORDING = "recording"
    #: The sum of all kernels, where a file does not have the times of single launches.
    KERNELS = "kernels"


#: The better extent that a side lacks where the times are of this one.
_BETTER = {Extent.CALL: Extent.STEP, Extent.RECORDING: Extent.STEP, Extent.KERNELS: Extent.RECORDING}

#: The parts by rank, or by GPU of a rank with several.
_Ranks: TypeAlias = "Mapping[Place, StepParts]"
#: The kernels of the whole; of each extent that it holds the kernels, and the parts by rank, if known; and the steps.
_Recording: TypeAlias = "tuple[KernelTotals, Mapping[Extent, tuple[KernelTotals, _Ranks]], CaseSteps | None]"


@dataclass(frozen=True)
class RecordedCase:
    """One case of a recording: the parts and the kernels of an extent, as means over ranks; times in ns.

    ``launches`` and ``kernel_ns`` are of the whole recording. ``ranks`` is in the order of their numbers, and empty
    where only sums are known. ``steps`` is None where the times are not of a step.
    """

    workload: str
    case: str
    profiler: str
    launches: float
    kernel_ns: float
    parts: StepParts
    kernels: Kernels
    ranks: _Ranks
    steps: CaseSteps | None

    @property
    def name(self) -> str:
        return name_case(self.workload, self.case)


@dataclass(frozen=True)
class RecordingChange:
    """A case of both recordings. ``without`` are the sides for which there is no better extent: ``A``, ``B``."""

    a: RecordedCase
    b: RecordedCase
    extent: Extent
    without: tuple[str, ...] = ()

    @property
    def has_times(self) -> bool:
        """False where the recordings are of different profilers."""
        return self.a.profiler == self.b.profiler

    @property
    def difference_ns(self) -> float:
        return self.b.parts.wall_ns - self.a.parts.wall_ns

    @property
    def kernels(self) -> tuple[KernelDifference, ...]:
        """The kernels and copies of both sides: those with the largest difference of their times or launches first.

        Without times there are no copies, for each profiler has other names for them.
        """
        a, b = self.a.kernels, self.b.kernels
        if not self.has_times:
            a, b = (
                {
                    name: ClassTotal(work.calls, 0.0, work.kernel_class)
                    for name, work in kernels.items()
                    if work.kernel_class not in COPIES
                }
                for kernels in (a, b)
            )
        comparison = kernel_differences.compare(self.difference_ns, {0: a}, {0: b})
        assert comparison is not None
        return tuple(
            sorted(comparison.kernels, key=lambda kernel: (-abs(kernel.part_ns), -abs(kernel.b.calls - kernel.a.calls)))
        )

    @property
    def is_same(self) -> bool:
        """True if no part and no kernel differs in time or launches."""
        is_alike = self.has_times and self.a.parts == self.b.parts
        return is_alike and self.a.kernels == self.b.kernels and self.a.ranks == self.b.ranks

    @property
    def renamed_classes(self) -> Iterator[tuple[str, float, float]]:
        """Yield (class, ns on A, ns on B) of classes with other kernels on both sides that take about the same time."""
        for name, kernels in grouped((kernel.kernel_class, kernel) for kernel in self.kernels).items():
            changes = {kernel.change for kernel in kernels}
            a_ns, b_ns = sum(kernel.a.ns for kernel in kernels), sum(kernel.b.ns for kernel in kernels)
            is_renamed = KernelChange.EXCHANGED in changes or changes >= {KernelChange.APPEARED, KernelChange.VANISHED}
            if is_renamed and abs(b_ns - a_ns) <= _ABOUT_EQUAL * max(a_ns, b_ns):
                yield name, a_ns, b_ns


@dataclass(frozen=True)
class RecordingComparison:
    """The cases of both recordings, and the names of those that only one side has, by side."""

    changes: tuple[RecordingChange, ...]
    alone: Mapping[str, tuple[str, ...]]
    #: The GPUs of A and of B, where they differ.
    gpus: tuple[str, str] | None = None
    #: By name, the bytes by part of the peak of the memory on both sides, in the columns ``a`` and ``b``.
    memory: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def compare_recordings(a: Run, b: Run) -> RecordingComparison:
    """Compare each case of A whose kernels were recorded with the case of B of the same name.

    The only file that is left on each side is compared with the other whatever their names, and so is the only case
    that is left of a file.
    """
    recorded_a, recorded_b = _profilers(a[0]), _profilers(b[0])
    pairs = dict(_match(recorded_a, recorded_b))
    changes = []
    for key_a, key_b in pairs.items():
        on_a, on_b = by_preference(recorded_a[key_a]), by_preference(recorded_b[key_b])
        shared = next((name for name in on_a if name in on_b), None)
        changes.append(_compare((a, key_a, shared or on_a[0]), (b, key_b, shared or on_b[0])))
    alone = {
        "A": tuple(name_case(*key) for key in recorded_a if key not in pairs),
        "B": tuple(name_case(*key) for key in recorded_b if key not in pairs.values()),
    }
    gpus = _gpu_names(a[1]), _gpu_names(b[1])
    differing = gpus if all(gpus) and gpus[0] != gpus[1] else None
    return RecordingComparison(tuple(changes), alone, differing, dict(_compare_memory(a[0].memory, b[0].memory)))


def _compare_memory(a: pd.DataFrame, b: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the peaks of the cases that both tables have, by the name on A."""
    key = ["workload", "case"]
    for pair in _match(*(list(rows(table[key].drop_duplicates(), *key)) for table in (a, b))):
        sides = (
            find_memory(table[table["workload"] == of], case) for table, (of, case) in zip((a, b), pair, strict=True)
        )
        sums = {side: memory.sum_parts("peak") for side, memory in zip("ab", sides, strict=True) if memory}
        if len(sums) == 2:
            yield name_case(*pair[0]), pd.DataFrame(sums).astype(float).fillna(0.0)


def name_case(workload: str, case: str) -> str:
    """Return the name of a file, followed by the name of its case if it has one."""
    return f"{workload}/{readable(case)}" if case else workload


def _profilers(data: Tables) -> dict[Key, list[str]]:
    """Return the profilers that recorded kernels or copies with their times, by workload and case."""
    kernels = data.kernels
    timed = kernels[kernels["total_ns"].notna() & (kernels["profiler"] != "") & (kernels["kind"] != "cpu_op")]
    recorded = timed[["workload", "case", "profiler"]].drop_duplicates()
    return grouped(((workload, case), name) for workload, case, name in rows(recorded, "workload", "case", "profiler"))


def _match(a: Iterable[Key], b: Iterable[Key]) -> Iterator[tuple[Key, Key]]:
    cases_a, cases_b = grouped(a), grouped(b)
    for workload_a, workload_b in _partners(cases_a, cases_b):
        for case_a, case_b in _partners(cases_a[workload_a], cases_b[workload_b]):
            yield (workload_a, case_a), (workload_b, case_b)


def _partners(a: Iterable[str], b: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that both have, and the names that are left where that is one of each."""
    left_a, left_b = ([name for name in names if name not in other] for names, other in ((a, b), (b, a)))
    last = [(left_a[0], left_b[0])] if len(left_a) == len(left_b) == 1 else []
    return [*((name, name) for name in a if name in b), *last]


def _gpu_names(manifest: Manifest) -> str:
    """Return the models of GPUs that the files name, else those of the machine; empty where neither names one."""
    names = [file.device for file in manifest.files] if not manifest.is_run else []
    return ", ".join(filter(None, dict.fromkeys(names or [gpu.name for gpu in manifest.machine.gpus or ()])))


# --- one side --------------------------------------------------------------------------------------------------------


def _read(run: Run, key: Key, profiler: str) -> _Recording:
    (data, manifest), (workload, case) = run, key
    frames = {table.name: getattr(data, table.name) for table in ALL}
    selected_frames = {
        name: frame[(frame["workload"] == workload) & (frame["profiler"] == profiler)] for name, frame in frames.items()
    }
    declared = manifest.workload(workload)
    index = CaseIndex.of(Tables(**selected_frames), manifest.is_command(workload))
    step_findings = steps.find_steps(index, [case], {}, declared)
    place = case, profiler
    whole = index.capture_totals[place].divided_by(1 / index.rank_counts.get(place, 1))
    case_steps = step_findings.of(case)
    held: dict[Extent, tuple[KernelTotals, _Ranks]] = {Extent.KERNELS: (whole, {})}
    ranks = step_findings.recordings.get(case, {})
    if case_steps:
        ranks = dict(_sum_ranks(case_steps))
        if case_steps.parts and place in index.step_totals:
            step_ranks = {
                (rank.rank, ONE_DEVICE if rank.device is None else rank.device): rank.parts
                for rank in case_steps.ranks
                if rank.parts
            }
            held[Extent.STEP] = index.step_totals[place], step_ranks
    elif number := index.iterations(case, profiler):
        held[Extent.CALL] = whole.divided_by(number), {}
    if ranks:
        held[Extent.RECORDING] = whole.divided_by(len(ranks)), ranks
    return whole, held, case_steps


def _sum_ranks(case_steps: CaseSteps) -> Iterator[tuple[Place, StepParts]]:
    """Yield the parts of the whole recording by rank: the sums of all steps and of what is between."""
    for rank, place in rows(case_steps.rows[PLACE].drop_duplicates(), *PLACE):
        parts = case_steps.rows.loc[(case_steps.rows["rank"] == rank) & (case_steps.rows["place"] == place), COLUMNS]
        if parts.notna().all(axis=None):
            sums = parts.sum()
            yield (rank, place), StepParts({part: float(sums[part.column]) for part in StepPart})


def _compare(a: tuple[Run, Key, str], b: tuple[Run, Key, str]) -> RecordingChange:
    """Compare what both sides hold of the best extent, over the ranks that both have."""
    recording_a, recording_b = _read(*a), _read(*b)
    held_a, held_b = recording_a[1], recording_b[1]
    extent = next(extent for extent in Extent if extent in held_a and extent in held_b)
    ranks_a, ranks_b = held_a[extent][1].keys(), held_b[extent][1].keys()
    shared = ranks_a & ranks_b
    better = _BETTER.get(extent)
    without = tuple(name for name, held in (("A", held_a), ("B", held_b)) if better and better not in held)
    # The kernels are those of all ranks of a side: they do not divide the compute time of some of them.
    is_divided = not shared or ranks_a == ranks_b
    on_a, on_b = (
        _measure(key, profiler, recording, extent, shared, is_divided)
        for (_, key, profiler), recording in ((a, recording_a), (b, recording_b))
    )
    return RecordingChange(on_a, on_b, extent, without)


def _measure(
    key: Key, profiler: str, recording: _Recording, extent: Extent, shared: Set[Place], is_divided: bool
) -> RecordedCase:
    """Return the case with the mean over the ranks ``shared``, or over all; without ranks, with the sums of kernels.

    Where ``is_divided`` is true, the compute time has the classes of the kernels.
    """
    whole, held, case_steps = recording
    totals, ranks = held[extent]
    rank_parts = [ranks[rank] for rank in shared or ranks]
    mean = {part: sum(parts.ns[part] for parts in rank_parts) / max(len(rank_parts), 1) for part in StepPart}
    if not ranks:
        mean[StepPart.COMPUTE] = sum(totals.by_class.values())
    ns = {part: on_grid(part_ns) for part, part_ns in mean.items()}
    classes = steps.divide_compute(totals.by_class, mean[StepPart.COMPUTE]) if ranks else totals.by_class
    exact = {name: on_grid(class_ns) for name, class_ns in classes.items() if is_divided}
    if exact:
        # The largest class takes what rounding left.
        exact[max(exact, key=exact.__getitem__)] += ns[StepPart.COMPUTE] - sum(exact.values())
    return RecordedCase(
        *key,
        profiler,
        launches=sum(work.calls for work in whole.work.values()),
        kernel_ns=whole.total_ns,
        parts=StepParts(ns, exact),
        kernels=kernel_differences.sum_kernels(totals),
        ranks=dict(sorted(ranks.items())),
        steps=case_steps if extent is Extent.STEP else None,
    )
