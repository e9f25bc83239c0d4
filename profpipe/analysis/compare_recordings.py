"""Compare one recording of each side: where a step, or the whole recording, differs.

A single recording has no spread, so nothing here is a verdict. Times of different profilers are never compared. All
times are multiples of 2^-10 ns, so the parts of a difference add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum

from profpipe.analysis import kernel_differences, steps
from profpipe.analysis.case_index import CaseIndex
from profpipe.analysis.compare_runs import Key, Run
from profpipe.analysis.findings.steps import CaseSteps, StepFindings, StepPart, StepParts
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_breakdown import PREFERENCE
from profpipe.analysis.kernel_differences import Capture, KernelDifference, Work, on_grid
from profpipe.analysis.kernel_totals import COPIES, KernelTotals, rows
from profpipe.job import readable
from profpipe.results.manifest import Manifest
from profpipe.results.schema import ALL, KernelChange, StepRule, StepState, Tables


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


@dataclass(frozen=True)
class Side:
    """One case of a recording: the parts and the kernels of an extent, as means over ranks; times in ns.

    ``launches`` and ``kernel_ns`` are of the whole recording. ``ranks`` is empty where only sums are known.
    """

    workload: str
    case: str
    profiler: str
    launches: float
    kernel_ns: float
    parts: StepParts
    kernels: Mapping[str, Work]
    ranks: Mapping[int, StepParts]
    #: How many steps are steady, of how many, and what says where they begin.
    steady: int = 0
    steps: int = 0
    rule: StepRule | None = None


@dataclass(frozen=True)
class RecordingChange:
    """A case of both recordings. ``without`` are the sides for which there is no better extent: ``A``, ``B``."""

    a: Side
    b: Side
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
                {name: replace(work, ns=0.0) for name, work in own.items() if work.kernel_class not in COPIES}
                for own in (a, b)
            )
        found = kernel_differences.compare(self.difference_ns, [Capture(0, a)], [Capture(0, b)])
        assert found is not None
        return tuple(sorted(found.kernels, key=lambda own: (-abs(own.part_ns), -abs(own.b.calls - own.a.calls))))

    @property
    def is_same(self) -> bool:
        """True if no part and no kernel differs in time or launches."""
        is_alike = self.has_times and self.a.parts == self.b.parts
        return is_alike and self.a.kernels == self.b.kernels and self.a.ranks == self.b.ranks

    @property
    def renamed_classes(self) -> Iterator[tuple[str, float, float]]:
        """Yield (class, ns on A, ns on B) of classes with other kernels on both sides that take about the same time."""
        for name, own in grouped((kernel.kernel_class, kernel) for kernel in self.kernels).items():
            changes = {kernel.change for kernel in own}
            a_ns, b_ns = sum(kernel.a.ns for kernel in own), sum(kernel.b.ns for kernel in own)
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


#: Up to this share of its time, a class of kernels takes about as long on both sides.
_ABOUT_EQUAL = 0.05


def compare_recordings(a: Run, b: Run) -> RecordingComparison:
    """Compare each case of A whose kernels were recorded with the case of B of the same name.

    The only file that is left on each side is compared with the other whatever their names, and so is the only case
    that is left of a file.
    """
    recorded_a, recorded_b = _profilers(a[0]), _profilers(b[0])
    pairs = list(_match(recorded_a, recorded_b))
    changes = []
    for key_a, key_b in pairs:
        on_a, on_b = ([name for name in PREFERENCE if name in own] for own in (recorded_a[key_a], recorded_b[key_b]))
        shared = next((name for name in on_a if name in on_b), None)
        changes.append(_compare(_recorded(a, key_a, shared or on_a[0]), _recorded(b, key_b, shared or on_b[0])))
    alone = {
        "A": tuple(name_of(*key) for key in recorded_a if key not in [pair[0] for pair in pairs]),
        "B": tuple(name_of(*key) for key in recorded_b if key not in [pair[1] for pair in pairs]),
    }
    gpus = _gpu_names(a[1]), _gpu_names(b[1])
    return RecordingComparison(tuple(changes), alone, gpus if all(gpus) and gpus[0] != gpus[1] else None)


def name_of(workload: str, case: str) -> str:
    """Return the name of a file, followed by the name of its case if it has one."""
    return f"{workload}/{readable(case)}" if case else workload


def _profilers(data: Tables) -> dict[Key, set[str]]:
    """Return the profilers that recorded kernels or copies with their times, by workload and case."""
    own = data.kernels
    timed = own[own["total_ns"].notna() & own["profiler"].isin(PREFERENCE) & (own["kind"] != "cpu_op")]
    found = timed[["workload", "case", "profiler"]].drop_duplicates()
    return {
        key: set(own)
        for key, own in grouped(
            ((workload, case), profiler) for workload, case, profiler in rows(found, "workload", "case", "profiler")
        ).items()
    }


def _match(a: Iterable[Key], b: Iterable[Key]) -> Iterator[tuple[Key, Key]]:
    cases_a, cases_b = grouped(a), grouped(b)
    for workload_a, workload_b in _partners(cases_a, cases_b):
        for case_a, case_b in _partners(cases_a[workload_a], cases_b[workload_b]):
            yield (workload_a, case_a), (workload_b, case_b)


def _partners(a: Iterable[str], b: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that both have, and the names that are left where that is one of each."""
    left_a, left_b = ([name for name in own if name not in other] for own, other in ((a, b), (b, a)))
    last = [(left_a[0], left_b[0])] if len(left_a) == len(left_b) == 1 else []
    return [*((name, name) for name in a if name in b), *last]


def _gpu_names(manifest: Manifest) -> str:
    """Return the models of GPUs that the files name, else those of the machine; empty where neither names one."""
    names = [file.device for file in manifest.files] if not manifest.is_run else []
    return ", ".join(filter(None, dict.fromkeys(names or [gpu.name for gpu in manifest.machine.gpus or ()])))


# --- one side --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recorded:
    """A case under one profiler: its tables, and its steps."""

    workload: str
    case: str
    profiler: str
    index: CaseIndex
    steps: StepFindings

    def measure(self, extent: Extent, shared: Set[int] = frozenset()) -> Side | None:
        """Return what the recording holds of ``extent``; None where it does not have that.

        The parts are means over the ranks ``shared``, or over all of them.
        """
        key = self.case, self.profiler
        whole = self.index.capture_totals[key].divided_by(1 / self.index.rank_counts.get(key, 1))
        calls = [calls for calls, _ in whole.work.values()]
        side = Side(self.workload, self.case, self.profiler, sum(calls), whole.total_ns, StepParts({}), {}, {})
        own = self.steps.of(self.case)
        match extent:
            case Extent.STEP if own and own.parts and key in self.index.step_totals:
                ranks = {each.rank: each.parts for each in own.ranks if each.parts}
                side = replace(side, steady=own.count(StepState.STEADY)[1], steps=own.steps, rule=own.rule)
                return self._with_parts(side, self.index.step_totals[key], ranks, shared)
            case Extent.CALL if (number := self.index.iterations(*key)) and not own:
                return self._with_parts(side, whole.divided_by(number), {})
            case Extent.RECORDING if ranks := self._whole_ranks(own):
                return self._with_parts(side, whole.divided_by(len(ranks)), ranks, shared)
            case Extent.KERNELS:
                return self._with_parts(side, whole, {})
        return None

    def _whole_ranks(self, own: CaseSteps | None) -> dict[int, StepParts]:
        """Return the parts of the whole recording by rank: with steps, the sums of all steps and what is between."""
        if own is None:
            return {int(each.rank): each.parts for each in self.steps.recordings if each.case == self.case}
        by_rank = grouped((row.rank, row.parts) for row in own.rows)
        return {
            rank: StepParts({part: sum(each.ns[part] for each in known) for part in StepPart})
            for rank, parts in by_rank.items()
            if len(known := list(filter(None, parts))) == len(parts)
        }

    def _with_parts(
        self, side: Side, totals: KernelTotals, ranks: Mapping[int, StepParts], shared: Set[int] = frozenset()
    ) -> Side:
        """Return the side with the mean over ranks; without them, with the sums of the kernels by class."""
        times = grouped((kernel.kernel_class, ns) for kernel, (_, ns) in totals.work.items())
        sums = {name: sum(own) for name, own in times.items()}
        known = [ranks[rank] for rank in shared or ranks]
        mean = {part: sum(own.ns[part] for own in known) / max(len(known), 1) for part in StepPart}
        classes = steps.divide_compute(sums, mean[StepPart.COMPUTE]) if ranks else sums
        ns = {part: on_grid(own) for part, own in mean.items()}
        if not ranks:
            ns[StepPart.COMPUTE] = on_grid(sum(sums.values()))
        exact = {name: on_grid(own) for name, own in classes.items()}
        if exact:
            # The largest class takes what rounding left.
            exact[max(exact, key=exact.__getitem__)] += ns[StepPart.COMPUTE] - sum(exact.values())
        return replace(side, parts=StepParts(ns, exact), kernels=self._works(totals), ranks=ranks)

    def _works(self, totals: KernelTotals) -> dict[str, Work]:
        """Return the kernels by name, and the copies and sets, whose class is their kind."""
        found: dict[str, Work] = {}
        for kernel, (calls, ns) in sorted(totals.work.items(), key=lambda item: -item[1][1]):
            before = found.get(kernel.name, Work(0.0, 0.0, kernel.kernel_class))
            found[kernel.name] = replace(before, calls=before.calls + calls, ns=before.ns + ns)
        kinds = dict(rows(self.index.tables.kernels, "kernel", "kind"))
        return found | {name: Work(calls, ns, kinds[name]) for name, (calls, ns) in totals.by_copy.items()}


def _recorded(run: Run, key: Key, profiler: str) -> _Recorded:
    (data, manifest), (workload, case) = run, key
    frames = {table.name: getattr(data, table.name) for table in ALL}
    own = {n: frame[(frame["workload"] == workload) & (frame["profiler"] == profiler)] for n, frame in frames.items()}
    declared = manifest.workload(workload)
    index = CaseIndex.of(Tables(**own), declared is not None and declared.is_command)
    found = steps.find_steps(index, [case], {}, declared, manifest, workload)
    return _Recorded(workload, case, profiler, index, found)


def _compare(a: _Recorded, b: _Recorded) -> RecordingChange:
    lacking: tuple[str, ...] = ()
    for extent in Extent:
        on_a, on_b = a.measure(extent), b.measure(extent)
        if on_a and on_b:
            shared = on_a.ranks.keys() & on_b.ranks.keys()
            on_a, on_b = a.measure(extent, shared) or on_a, b.measure(extent, shared) or on_b
            return RecordingChange(on_a, on_b, extent, lacking)
        if extent is not Extent.CALL:
            lacking = tuple(name for name, side in (("A", on_a), ("B", on_b)) if side is None)
    raise AssertionError("every recording has the sums of its kernels")
