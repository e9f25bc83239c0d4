"""Find what a step of a program costs and where its time goes: from the table `steps` and the metrics `step_*`.

A rank is a process. A figure of a case is the mean over its GPUs, never their sum. The parts of a step are means over
the steady steps, so that they add up. Times are nanoseconds, sizes bytes, shares between 0 and 1; None: not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pandas as pd

from profpipe.analysis.case_index import CaseIndex, Measure, MetricRow
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import ClassTotal, KernelTotals, by_preference, rows
from profpipe.config.quantities import items_of
from profpipe.measure.statistics import mean_interval
from profpipe.results.manifest import JobEntry
from profpipe.results.schema import (
    CALL_KERNEL_TIME,
    CAPTURE_WAIT,
    DEVICE_PREFIX,
    LEAST_REST,
    PREFILL,
    RANK_PREFIX,
    STEP_AFTER,
    STEP_AFTER_KERNELS,
    STEP_DECODES,
    STEP_PART,
    STEP_RANGE,
    STEP_STRIDE,
    STEP_TRANSFER,
    UNEVEN_STEPS,
    Check,
    StepRule,
    StepState,
)

if TYPE_CHECKING:
    from profpipe.config.models import Workload

#: The class of the kernels that are the part ``communication``.
_COMMUNICATION: Final = "communication"

_PLACE: Final = re.compile(rf"{RANK_PREFIX}(\d{{1,19}})(?: {DEVICE_PREFIX}(\d{{1,19}}))?")
_OUTLIER: Final = re.compile(rf"{_PLACE.pattern} step (\d{{1,19}})")

#: A rank and a device of it, which is -1 where the rank has one.
PLACE: Final = ["rank", "place"]
ONE_DEVICE: Final = -1
#: A rank and its GPU, which is ``ONE_DEVICE`` where the rank uses no other.
Place: TypeAlias = "tuple[int, int]"

#: Ranks differ in a step from this share of its time on.
_DIFFERENT: Final = 0.01
#: What is at least this share of the waiting explains it.
_EXPLAINS: Final = 0.5
#: A profiler's overhead is known to this share of a step.
_NEAR: Final = 0.02

#: Calls that take together so many times as long as the time in which they are made overlap.
_OVERLAP: Final = 1.3

#: Metric to subject to its row in `metrics`, of one case under one profiler.
_Numbers: TypeAlias = "Mapping[str, Mapping[str, MetricRow]]"


class StepPart(str, Enum):
    """A part of a step. The parts of a step add up to its time."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"  # while nothing computes
    COPY = "copy"  # while no kernel runs
    IDLE_LAUNCH = "idle_launch"  # the host launched too late
    IDLE_BLOCKED = "idle_blocked"  # the host waited for the GPU when the idle time began
    IDLE_OTHER = "idle_other"  # a dependency, or not recorded

    @property
    def column(self) -> str:
        """The column of `steps`."""
        return f"{self.value}_ns"


IDLE_PARTS = (StepPart.IDLE_LAUNCH, StepPart.IDLE_BLOCKED, StepPart.IDLE_OTHER)

COLUMNS: Final = [part.column for part in StepPart]


@dataclass(frozen=True)
class StepParts:
    """The mean of steady steps by part. Unlike medians, means of the parts add up to the mean of the whole.

    ``classes`` divides the part ``COMPUTE`` by kernel class; where kernels overlap, each class has its share.
    """

    ns: Mapping[StepPart, float]
    classes: Mapping[str, float] = field(default_factory=dict)
    #: The time in which communication runs, that beside computation included.
    communication_total_ns: float | None = None
    #: The part of ``COMMUNICATION`` that other ranks or GPUs do not have in the same step: waiting for them. None where
    #: one GPU alone is known. The rest is the transfer, at most.
    waiting_ns: float | None = None

    @property
    def wall_ns(self) -> float:
        return sum(self.ns.values())

    @property
    def idle_ns(self) -> float:
        return sum(self.ns[part] for part in IDLE_PARTS)

    @property
    def transfer_ns(self) -> float:
        return self.ns[StepPart.COMMUNICATION] - (self.waiting_ns or 0.0)

    def share(self, ns: float) -> float:
        """Return ``ns`` as a share of the step."""
        return ns / self.wall_ns if self.wall_ns else 0.0

    def speedup_without(self, ns: float) -> float:
        """Return how many times as fast a step would be at most if ``ns`` of it took no time.

        Amdahl's law with an infinite speed-up of the share f = ns / wall: 1 / (1 - f). It is an upper bound, because
        what runs beside that part may appear in its place.
        """
        return self.wall_ns / max(self.wall_ns - ns, 1.0)

    def at(self, step_ns: float) -> StepParts:
        """Return the parts of a step that takes ``step_ns`` without the profiler; the same ones if that is impossible.

        Kernels and copies take the same time under a profiler, while the host launches later, and other ranks wait for
        it. So late launches and waiting lose time in proportion, then other idle time does. A small rest is taken from
        communication and copies: less of them is exposed where the kernels beside them are launched in time. By what
        the step is a little shorter under the profiler, other idle time is longer.
        """
        if self.wall_ns < (1 - _NEAR) * step_ns:
            return self
        ns, waiting = dict(self.ns), self.waiting_ns or 0.0
        added = max(self.wall_ns - step_ns, 0.0)
        ns[StepPart.IDLE_OTHER] += max(round(step_ns - self.wall_ns), 0)
        late = ns[StepPart.IDLE_LAUNCH] + waiting
        taken = min(late, added)
        of_waiting = taken * waiting / late if late else 0.0
        ns[StepPart.COMMUNICATION] -= of_waiting
        ns[StepPart.IDLE_LAUNCH] -= taken - of_waiting
        added -= taken
        if added - sum(ns[part] for part in IDLE_PARTS[1:]) > _NEAR * step_ns:
            return self
        for part in (*IDLE_PARTS[1:], StepPart.COMMUNICATION, StepPart.COPY):
            taken = min(ns[part], added)
            ns[part], added = ns[part] - taken, added - taken
        return replace(self, ns=ns, waiting_ns=self.waiting_ns and waiting - of_waiting)


@dataclass(frozen=True)
class RankSteps:
    """The steady steps of one rank, or of one device of a rank with several.

    They are their median time, the mean of their parts, and the peak memory in bytes. ``device`` is None where the rank
    has one.
    """

    rank: int
    device: int | None
    time: Measure
    parts: StepParts | None
    #: In how many of the steady steps others wait for this one; and in how many it is the slowest: the one that takes
    #: the longest without exposed communication.
    waited_for: int
    slowest_in: int
    peak_memory: float | None
    #: The node of a cluster on which the rank ran; empty on one machine.
    node: str = ""

    @property
    def own_ns(self) -> float | None:
        """The mean step without exposed communication, which contains the wait for slower ranks."""
        return self.parts.wall_ns - self.parts.ns[StepPart.COMMUNICATION] if self.parts else None


class OutlierCause(str, Enum):
    """What an outlier has more of than the median steady step; the metric is ``step_outlier_<cause>``."""

    IDLE_LAUNCH = "idle_launch"
    IDLE_BLOCKED = "idle_blocked"
    IDLE_OTHER = "idle_other"
    COPIES = "copies"
    COMMUNICATION = "communication"
    KERNELS = "kernels"  # the same kernels took longer
    OTHER_KERNELS = "other_kernels"  # kernels that no steady step has


@dataclass(frozen=True)
class StepOutlier:
    """A step beyond three median absolute deviations. ``excess`` is in ns over the median steady step, by cause."""

    rank: int
    device: int | None
    step: int
    wall_ns: float
    median_ns: float
    excess: Mapping[OutlierCause, float]

    @property
    def causes(self) -> tuple[OutlierCause, ...]:
        """The causes that are at least a fifth of the excess, the largest first."""
        least = 0.2 * abs(self.wall_ns - self.median_ns)
        return tuple(sorted((c for c in self.excess if self.excess[c] >= least), key=lambda c: -self.excess[c]))


@dataclass(frozen=True)
class CaseSteps:
    """The steps of one case. ``profiler`` recorded the parts; it is ``plain`` where no profiler did.

    ``table`` has the rows of `steps` of the case under every profiler, with their ``place``.
    """

    case: str
    profiler: str
    table: pd.DataFrame
    #: The median step by profiler, those without a profiler first.
    times: Mapping[str, Measure]
    #: The spread of steady steps as a share of their median, by profiler, where they are uneven under one.
    uneven: Mapping[str, float]
    coverage: float | None
    #: The number of steps that the recurring launches show.
    pattern_count: int | None
    parts: StepParts | None
    #: Copies and sets of a steady step by the profiler's name, those with the most time first.
    copies: Mapping[str, ClassTotal]
    ranks: tuple[RankSteps, ...]
    #: Why others wait for a rank in most of the time that they wait; None where that is unknown.
    wait_cause: StepPart | None
    outliers: tuple[StepOutlier, ...]
    #: The program's own range that is the step; empty by another rule.
    range_name: str
    #: The recurrences of a sequence of launches that are one step; or the steps of an optimizer that are one iteration,
    #: and then ns of one of them.
    stride: int
    part_ns: float | None
    #: ns that a profiler recorded after the last step, and the kernel time in them.
    after: Mapping[str, tuple[float, float]]
    #: Whether calls that are steps decode a token of each sequence.
    decodes: bool
    #: By a kind of ``other_calls`` and the name of a kernel, as in ``prefill > kernel``: ns of a call.
    call_kernels: Mapping[str, MetricRow]
    #: What the transfer takes at most, where ranks send to each other and wait at other times than their peers.
    transfer_ns: float | None

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The steps of ``profiler`` by place, and the time that each steady one waits for others, ``waiting_ns``."""
        profiler_rows = self.table[self.table["profiler"] == self.profiler]
        waits = _waiting(_steady(profiler_rows), self.transfer_ns).unstack().rename("waiting_ns")
        if waits.empty:
            return profiler_rows.assign(waiting_ns=np.nan)
        joined = profiler_rows.join(waits, on=[*PLACE, "step"])
        return joined.assign(waiting_ns=joined["waiting_ns"].where(joined["state"] == StepState.STEADY.value))

    @property
    def rule(self) -> StepRule:
        return StepRule(self.rows["rule"].iloc[0])

    @property
    def module(self) -> str:
        """The class of the module whose calls are the steps; empty by other rules."""
        return next(iter(_steady(self.rows)["kind"]), "")

    @cached_property
    def other_calls(self) -> Mapping[str, tuple[int, StepParts]]:
        """The calls that are no steps, by kind: their number on all ranks, and their mean."""
        is_other = self.rows["state"] == StepState.OTHER.value
        kinds = self.rows[is_other & self.rows["compute_ns"].notna()].groupby("kind", sort=False)
        steps = {"", *self.rows.loc[~is_other, "kind"]}
        return {
            str(kind): (len(calls), StepParts(dict(zip(StepPart, calls[COLUMNS].mean().astype(float), strict=True))))
            for kind, calls in kinds
            if kind not in steps
        }

    def has_steady(self, profiler: str) -> bool:
        """Return True where steady steps under ``profiler`` have times."""
        return not self.steady_walls(profiler).empty

    def _rows_of_one(self, profiler: str) -> pd.DataFrame:
        """Return the rows of the first rank and device in the order of time."""
        profiler_rows = self.table[self.table["profiler"] == profiler]
        return profiler_rows[profiler_rows[PLACE].eq(profiler_rows[PLACE].iloc[0]).all(axis=1)].sort_values(
            "start_ns", kind="stable"
        )

    def shares(self, profiler: str) -> pd.DataFrame:
        """Return what a rank does from its first steady step on: the number ``n``, the median ``ns`` and two shares.

        ``wall`` is the share of the time, ``kernels`` that of the kernel time, missing where it is unknown. Of outliers
        they are of what is longer than a steady step. The index is the kind of calls that are no steps, else
        ``steady``, ``outlier`` or ``other``.
        """
        rank_rows = self._rows_of_one(profiler)
        rank_rows = rank_rows.iloc[int((rank_rows["state"] == StepState.STEADY.value).to_numpy().argmax()) :]
        steps = set(_steady(rank_rows)["kind"])
        label = rank_rows["state"].where(
            ~rank_rows["state"].isin([StepState.LAST.value, StepState.UNMATCHED.value]), "steady"
        )
        label = label.where(
            (rank_rows["state"] != StepState.OTHER.value) | (rank_rows["kind"] == ""), rank_rows["kind"]
        )
        label = label.where(
            ~rank_rows["kind"].isin(steps - {""}) | (rank_rows["state"] == StepState.OUTLIER.value), "steady"
        )
        wall, kernels = rank_rows["wall_ns"].astype(float), rank_rows["kernel_ns"].astype(float)
        shares = wall.groupby(label, sort=False).agg(n="size", ns="median", wall="sum")
        shares["kernels"] = kernels.groupby(label, sort=False).sum(min_count=1)
        if (outliers := StepState.OUTLIER.value) in shares.index:
            # What an outlier has of a steady step is no rest.
            usual = pd.Series(
                {"wall": wall[label == "steady"].median(), "kernels": kernels[label == "steady"].median()}
            )
            in_steps = shares.loc[outliers, usual.index].clip(upper=shares.loc[outliers, "n"] * usual)
            shares.loc["steady", usual.index] += in_steps
            shares.loc[outliers, usual.index] -= in_steps
        rest_ns, kernels_ns = self.after[profiler]
        if profiler == "plain" and rank_rows["rule"].iloc[0] == StepRule.MARKER.value:
            # Only marked steps have pauses between them. Recordings have rows of what lies there.
            rest_ns += max(float((rank_rows["start_ns"] + wall).max() - rank_rows["start_ns"].min()) - wall.sum(), 0.0)
        between = {"n": 1, "wall": rest_ns, "kernels": kernels_ns}
        shares = shares.add(pd.DataFrame(between, index=[StepState.OTHER.value]), fill_value=0)
        return shares.assign(
            wall=shares["wall"] / shares["wall"].sum(), kernels=shares["kernels"] / shares["kernels"].sum()
        )

    def calls_before(self, profiler: str) -> Mapping[str, int]:
        """Return how many calls, by their kind, a rank makes before the first step."""
        rank_rows = self._rows_of_one(profiler)
        kinds = rank_rows["kind"].iloc[: int((rank_rows["state"] != StepState.OTHER.value).to_numpy().argmax())]
        return dict(kinds[~kinds.isin(["", PREFILL])].value_counts())

    def request(self, profiler: str) -> tuple[float, int, Mapping[str, tuple[int, float]]] | None:
        """Return ns from one request to the next, their number, and by kind the calls in one and ns of one.

        A request begins with the last call before a run of steps, which is always of one kind, such as an encoder or a
        prefill. Unless the steps decode, it holds equal numbers of calls. None without two requests that are whole, and
        where calls of several threads overlap.
        """
        rank_rows = self._rows_of_one(profiler)
        rank_rows = rank_rows[rank_rows["kind"] != ""]
        is_step = rank_rows["kind"].isin(set(_steady(rank_rows)["kind"])).to_numpy()
        rank_rows = rank_rows.assign(kind=rank_rows["kind"].mask(is_step, self.module))
        begins = np.flatnonzero(~is_step[:-1] & is_step[1:])
        # Those of the warm-up are left out where three begin after it.
        after = begins[begins > np.flatnonzero(np.append(True, rank_rows["state"] == StepState.WARMUP.value))[-1] - 1]
        begins = after if len(after) > 2 else begins
        if len(begins) < 3 or rank_rows["kind"].iloc[begins].nunique() > 1:
            return None
        wall_ns, start_ns = rank_rows["wall_ns"].to_numpy(dtype=float), rank_rows["start_ns"].to_numpy(dtype=float)
        if wall_ns.sum() > _OVERLAP * ((start_ns + wall_ns).max() - start_ns.min()):
            return None
        whole = rank_rows.iloc[begins[0] : begins[-1]]
        number = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        counts = pd.crosstab(number, whole["kind"].to_numpy())
        usual = counts.median().round().astype(int)
        if not self.decodes and (counts != usual).any(axis=1).mean() > LEAST_REST:
            return None
        ns = whole.groupby("kind", sort=False)["wall_ns"].median().astype(float)
        wall = float(np.median(np.add.reduceat(wall_ns, begins)[:-1]))
        return wall, len(counts), {str(name): (int(usual[name]), float(ns[name])) for name in ns.index if usual[name]}

    @cached_property
    def _counts(self) -> pd.DataFrame:
        return self.rows.groupby(PLACE)["state"].value_counts().unstack(fill_value=0)

    def count(self, state: StepState) -> tuple[int, int]:
        """Return the fewest and the most steps in ``state`` of a rank."""
        counts = self._counts.get(state.value)
        return (0, 0) if counts is None else (int(counts.min()), int(counts.max()))

    @property
    def steps(self) -> int:
        """The number of steps of the rank with the most: all but work between steps."""
        return int(self._counts.drop(columns=StepState.OTHER.value, errors="ignore").sum(axis=1).max())

    def all_steps(self, profiler: str) -> int:
        """Return the number of different steps under ``profiler``, whatever their state."""
        step_rows = self.table[(self.table["profiler"] == profiler) & (self.table["state"] != StepState.OTHER.value)]
        return int(step_rows["step"].nunique())

    def steady_walls(self, profiler: str) -> pd.Series[float]:
        """Return the times of the steady steps under ``profiler`` by their number, each the mean over the ranks."""
        steady_rows = _steady(self.table[self.table["profiler"] == profiler]).dropna(subset="wall_ns")
        return steady_rows.groupby("step")["wall_ns"].mean().astype(float)

    @property
    def is_on_gpu(self) -> bool:
        """Whether a GPU ran the steps. A collective on a CPU gives parts too."""
        return self.parts is not None and bool(self.rows["kernels"].notna().any())

    @property
    def processes(self) -> int:
        """The number of ranks."""
        return len({rank.rank for rank in self.ranks})

    @property
    def parts_without_profiler(self) -> StepParts | None:
        """Return ``parts`` without the time that the profiler adds, where the step without a profiler is known."""
        without = self._find_plain_ns(self.profiler)
        return self.parts if self.parts is None or without is None else self.parts.at(without)

    @property
    def kernels(self) -> float:
        """The kernels of a mean steady step; NaN where they are not recorded."""
        return float(_steady(self.rows)["kernels"].astype(float).mean())

    @property
    def has_unplaced_overhead(self) -> bool:
        """Whether the profiler adds more to a step than late launches and waiting take: all of it may be its."""
        return self.parts is self.parts_without_profiler and self.overheads.get(self.profiler, 0.0) > 0

    @property
    def overheads(self) -> dict[str, float]:
        """Return what each profiler adds to a step, as a share of the step without a profiler."""
        without = {name: self._find_plain_ns(name) for name in self.times if name != "plain"}
        return {
            name: (self.same_steps[name][0] if self.uneven else self.times[name].ns) / ns - 1
            for name, ns in without.items()
            if ns
        }

    def has_measured_overhead(self, profiler: str) -> bool:
        """Return True where a step under ``profiler`` differs from one without it by more than the uncertainty."""
        if self.uneven:
            return profiler in self.same_steps and self.same_steps[profiler][2]
        return "plain" in self.times and not self.times["plain"].overlaps(self.times[profiler])

    def _find_plain_ns(self, profiler: str) -> float | None:
        """Return the time in ns, without a profiler, of steps like those that ``profiler`` recorded, if it is known.

        Even steps are all alike. Uneven steps are not: the first ones of a program may be short.
        """
        if self.uneven:
            return self.same_steps[profiler][1] if profiler in self.same_steps else None
        return self.times["plain"].ns if "plain" in self.times else None

    @cached_property
    def same_steps(self) -> Mapping[str, tuple[float, float, bool]]:
        """The mean ns of steady steps by profiler, that of the same steps without one, and whether these differ.

        They do not where Student's 95 % interval of the mean difference contains 0.

        A profiler is left out where another rule found its steps, or where ``plain`` lacks one of them.
        """
        timed_steps = self.table[(self.table["state"] != StepState.OTHER.value) & self.table["wall_ns"].notna()]
        is_plain = timed_steps["profiler"] == "plain"
        by_profiler = {}
        for name, steady_rows in _steady(timed_steps[~is_plain]).groupby("profiler", sort=False):
            both = steady_rows.merge(timed_steps[is_plain], on=["rank", "step", "rule"], suffixes=("", "_plain"))
            if len(both) == len(steady_rows):
                ns, without_ns = both["wall_ns"].astype(float), both["wall_ns_plain"].astype(float)
                ends = mean_interval((ns - without_ns).tolist())
                differs = ends is not None and not ends[0] <= 0 <= ends[1]
                by_profiler[str(name)] = (float(ns.mean()), float(without_ns.mean()), differs)
        return by_profiler


#: What the recording of a profiler contradicts itself in: case, profiler, check, kernel or process, a number, of how
#: many.
Contradiction: TypeAlias = "tuple[str, str, Check, str, float, int]"


@dataclass(frozen=True)
class StepFindings:
    """The steps of one workload, and the recordings in which none was found.

    ``without_steps`` are the cases that a profiler recorded and in which no step was found. ``copies`` are theirs by
    case and name, as the mean over ranks of a command, else as sums. ``one_by_one``: the launches ran so, for the
    profiler to read its counters.
    """

    cases: tuple[CaseSteps, ...] = ()
    without_steps: tuple[str, ...] = ()
    #: By case and rank, or GPU of a rank (``0, GPU 1``): the parts of the whole recording, from the first operation of
    #: the GPU to its last. Empty where a file has sums only, and where its launches ran ``one_by_one``.
    recordings: Mapping[str, Mapping[Place, StepParts]] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, ClassTotal]] = field(default_factory=dict)
    one_by_one: bool = False
    #: Items of a step, as the pipeline file states them, by case; and their name in the plural: tokens.
    items: Mapping[str, float] = field(default_factory=dict)
    item_name: str = ""
    #: By case without steps: the calls of CUDA or HIP in which the host waited, and their time.
    waits: Mapping[str, Mapping[str, ClassTotal]] = field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()

    def of(self, case: str) -> CaseSteps | None:
        return next((case_steps for case_steps in self.cases if case_steps.case == case), None)

    def __bool__(self) -> bool:
        return bool(self.cases)


def find_steps(
    index: CaseIndex,
    cases: Sequence[str],
    params: Mapping[str, Mapping[str, Any]],
    declared: Workload | None,
    jobs: Iterable[JobEntry] = (),
) -> StepFindings:
    """Return the steps of those of ``cases`` that have any, and the items of a step or call of every case.

    ``params`` are the parameters of every case, ``declared`` is the workload's entry of the pipeline, and ``jobs`` are
    its jobs.
    """
    table = _add_places(index.tables.steps)
    # The profiler whose partition is shown: that of the most cases, of equals the most trusted.
    counts = table[table["compute_ns"].notna()].groupby("profiler", sort=False)["case"].nunique()
    profiler = max(by_preference(counts.index), key=lambda name: counts[name], default="")
    nodes = {(case, job.profiler): job.rank_nodes or {} for job in jobs for case in job.cases}
    by_case = {str(case): case_rows for case, case_rows in table.groupby("case", sort=False)}
    steps_by_case: dict[str, CaseSteps] = {}
    for case in (name for name in cases if name in by_case):
        # The times without a profiler come first.
        seen = set(by_case[case].loc[by_case[case]["state"] != StepState.OTHER.value, "profiler"])
        if shown := next((name for name in (profiler, "plain", *index.profilers) if name in seen), ""):
            steps_by_case[case] = _read(index, case, shown, by_case[case], nodes.get((case, shown), {}))
    without = [case for case in cases if case not in steps_by_case]
    recordings = {case: parts_by_place for case in without if (parts_by_place := dict(_recordings(index, case)))}
    # The most trusted profiler that recorded the kernels of a case.
    recorders = {case: next((p for p in index.profilers if (case, p) in index.capture_totals), "") for case in without}
    totals = {case: index.capture_totals.get((case, recorder), KernelTotals()) for case, recorder in recorders.items()}
    items = {case: items_of(declared.items_per_step if declared else None, point) for case, point in params.items()}
    strides = {case: case_steps.stride for case, case_steps in steps_by_case.items() if case_steps.part_ns}
    return StepFindings(
        cases=tuple(steps_by_case.values()),
        without_steps=tuple(case for case in without if totals[case].total_ns),
        recordings=recordings,
        copies={
            case: _order_copies(case_totals.by_copy, {}) for case, case_totals in totals.items() if case_totals.by_copy
        },
        # Kernels have numbers of rocprof only where it read counters.
        one_by_one=any(
            subject and recorders.get(case) == recorder == "rocprof" for case, recorder, subject in index.numbers
        ),
        items={case: number * strides.get(case, 1) for case, number in items.items() if number is not None},
        item_name=declared.item_name if declared else "items",
        waits={
            case: _order_waits(index.step_numbers.get((case, recorder), {}).get(CAPTURE_WAIT, {}))
            for case, recorder in recorders.items()
        },
        contradictions=tuple(
            (case, name, check, subject, number.value, int(number.n))
            for (case, name), numbers in index.step_numbers.items()
            if case in cases
            for check in Check
            for subject, number in numbers.get(check.value, {}).items()
        ),
    )


def _order_waits(waits: Mapping[str, MetricRow]) -> dict[str, ClassTotal]:
    """Return the calls in which the host waited, by name, and their time: the longest first."""
    ordered = sorted(waits.items(), key=lambda item: -item[1].value)
    return {name: ClassTotal(float(number.n), number.value) for name, number in ordered}


def place_name(place: Place) -> str:
    """Return ``1``, or ``1, GPU 0`` where the rank uses several GPUs."""
    rank, device = place
    return str(rank) if device == ONE_DEVICE else f"{rank}, GPU {device}"


def _recordings(index: CaseIndex, case: str) -> Iterator[tuple[Place, StepParts]]:
    """Yield each rank of a recording without steps, or each GPU of a rank with several, and its parts."""
    metrics = [f"capture_{part.value}" for part in StepPart]
    profiler = next((name for name in index.profilers if metrics[0] in index.step_numbers.get((case, name), {})), "")
    numbers = index.step_numbers.get((case, profiler), {})
    for subject in numbers.get(metrics[0], {}):
        part_numbers = (numbers.get(metric, {}).get(subject) for metric in metrics)
        parts = dict(zip(StepPart, (number.value if number else 0.0 for number in part_numbers), strict=True))
        if place := _PLACE.fullmatch(subject):
            yield (int(place[1]), int(place[2] or ONE_DEVICE)), StepParts(parts)


def _read(index: CaseIndex, case: str, profiler: str, table: pd.DataFrame, nodes: Mapping[int, str]) -> CaseSteps:
    """Return the steps of one case, of which ``table`` has the rows and ``profiler`` recorded the parts."""
    profilers, times = ("plain", *index.profilers), index.step_times
    profiler_rows = table[table["profiler"] == profiler]
    steady, numbers = _steady(profiler_rows), index.step_numbers.get((case, profiler), {})
    # Where plain finds iterations, the hook marks them for the other profilers.
    of_parts = index.step_numbers.get((case, "plain"), {}) if "plain" in set(table["profiler"]) else numbers
    transfer_ns = _read_number(numbers, STEP_TRANSFER)
    waits = _waiting(steady, transfer_ns)
    # In a pipeline each rank waits for others in turn.
    of_late = waits if transfer_ns is None else pd.DataFrame()
    parts, totals = _parts_by_place(steady, waits), index.step_totals.get((case, profiler), KernelTotals())
    has_steady = set(_steady(table).dropna(subset="wall_ns")["profiler"])
    spreads = {
        name: _read_number(index.step_numbers.get((case, name), {}), "step_spread")
        for name in profilers
        if name in has_steady
    }
    coverage, pattern_count = (_read_number(numbers, name) for name in ("step_coverage", "step_count_by_pattern"))
    return CaseSteps(
        case=case,
        profiler=profiler,
        table=table,
        times={name: times[case, name].time for name in profilers if (case, name) in times},
        uneven={name: spread / 100 for name, spread in spreads.items() if spread and spread > UNEVEN_STEPS},
        coverage=None if coverage is None else coverage / 100,
        pattern_count=None if pattern_count is None else round(pattern_count),
        parts=_mean_parts(parts, totals),
        copies=_order_copies(totals.by_copy, numbers.get("step_copy_bytes", {})),
        ranks=tuple(_ranks(index, case, steady, parts, of_late, numbers.get("step_time", {}), nodes)),
        wait_cause=_wait_cause(profiler_rows, of_late),
        outliers=tuple(_outliers(profiler_rows, numbers)),
        range_name=next(iter(numbers.get(STEP_RANGE, {})), ""),
        stride=round(_read_number(of_parts, STEP_STRIDE) or 1),
        part_ns=_read_number(of_parts, STEP_PART),
        after={name: _after(index.step_numbers.get((case, name), {})) for name in profilers},
        decodes=STEP_DECODES in of_parts or bool((table["kind"] == PREFILL).any()),
        call_kernels=numbers.get(CALL_KERNEL_TIME, {}),
        transfer_ns=transfer_ns,
    )


def _after(numbers: _Numbers) -> tuple[float, float]:
    """Return the ns after the last step, and the kernel time in them."""
    return _read_number(numbers, STEP_AFTER) or 0.0, _read_number(numbers, STEP_AFTER_KERNELS) or 0.0


def _read_number(numbers: _Numbers, metric: str) -> float | None:
    number = numbers.get(metric, {}).get("")
    return None if number is None else number.value


def _add_places(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns ``PLACE``, by place and in the order of time.

    A process that does not know its rank is rank 0. Idle time without a cause is ``idle_other``, whether or not the
    tool recorded the host.
    """
    placed = steps.assign(rank=steps["rank"].fillna(0).astype(int))
    has_several = placed.groupby(["case", "profiler", "rank"])["device"].transform("nunique") > 1
    causes = placed[[part.column for part in IDLE_PARTS[:-1]]].fillna(0.0)
    placed = placed.assign(
        place=placed["device"].where(has_several).fillna(ONE_DEVICE).astype(int),
        **causes,
        idle_other_ns=placed["idle_ns"] - causes.sum(axis=1),
    )
    return placed.sort_values([*PLACE, "start_ns", "step"], kind="stable")


def _steady(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[steps["state"] == StepState.STEADY.value]


def _parts_by_place(steady: pd.DataFrame, waits: pd.DataFrame) -> dict[tuple[int, int], StepParts]:
    """Return the mean of the steady steps of each rank and device; empty where no profiler recorded the parts."""
    names = [*COLUMNS, "communication_total_ns"]
    means = steady[steady["compute_ns"].notna()].groupby(PLACE)[names].mean().astype(float).reset_index()
    waiting = waits.mean()
    return {
        (rank, place): StepParts(
            dict(zip(StepPart, parts, strict=True)), {}, total, float(waiting[rank, place]) if len(waits) else None
        )
        for rank, place, *parts, total in rows(means, *PLACE, *names)
    }


def _mean_parts(places: Mapping[tuple[int, int], StepParts], kernels: KernelTotals) -> StepParts | None:
    """Return the mean over ranks and devices, with the time in which a GPU computes divided by the kernels' classes."""
    if not places:
        return None
    place_parts = list(places.values())
    ns = {part: sum(parts.ns[part] for parts in place_parts) / len(place_parts) for part in StepPart}
    waits = [parts.waiting_ns for parts in place_parts if parts.waiting_ns is not None]
    return StepParts(
        ns,
        divide_compute(kernels.by_class, ns[StepPart.COMPUTE]) if kernels.kernels else {},
        sum(parts.communication_total_ns or 0.0 for parts in place_parts) / len(place_parts),
        sum(waits) / len(waits) if waits else None,
    )


def divide_compute(sums: Mapping[str, float], compute_ns: float) -> dict[str, float]:
    """Divide the time in which a GPU computes by the kernels' sums by class, the largest first."""
    computing = {name: ns for name, ns in sums.items() if ns and name != _COMMUNICATION}
    total = sum(computing.values())
    return {name: ns / total * compute_ns for name, ns in sorted(computing.items(), key=lambda item: -item[1])}


def _order_copies(copies: Mapping[str, ClassTotal], sizes: Mapping[str, MetricRow]) -> dict[str, ClassTotal]:
    """Return copies and sets with their bytes, those with the most time first."""
    return {
        name: replace(total, bytes=sizes[name].value if name in sizes else None)
        for name, total in sorted(copies.items(), key=lambda copy: -copy[1].ns)
    }


def _outliers(profiler_rows: pd.DataFrame, numbers: _Numbers) -> Iterator[StepOutlier]:
    """Yield the outliers, the longest first, without the ranks that took no other time than in steady steps."""
    typical = _steady(profiler_rows).groupby(PLACE)["wall_ns"].agg(["min", "median", "max"]).astype(float)
    excess = grouped(
        ((int(match[1]), int(match[2] or ONE_DEVICE), int(match[3])), (cause, number.value))
        for cause in OutlierCause
        for subject, number in numbers.get(f"step_outlier_{cause.value}", {}).items()
        if (match := _OUTLIER.fullmatch(subject))
    )
    outliers = profiler_rows[profiler_rows["state"] == StepState.OUTLIER.value].sort_values("wall_ns", ascending=False)
    for rank, place, step, wall in rows(outliers, *PLACE, "step", "wall_ns"):
        if (rank, place) in typical.index:
            least, median, most = typical.loc[(rank, place)].tolist()
            if not least <= wall <= most:
                causes = dict(excess.get((rank, place, int(step)), ()))
                yield StepOutlier(rank, _device(place), int(step), wall, median, causes)


def _device(place: int) -> int | None:
    return None if place == ONE_DEVICE else place


# --- several ranks ---------------------------------------------------------------------------------------------------


def _ranks(
    index: CaseIndex,
    case: str,
    steady: pd.DataFrame,
    parts: Mapping[tuple[int, int], StepParts],
    waits: pd.DataFrame,
    times: Mapping[str, MetricRow],
    nodes: Mapping[int, str],
) -> Iterator[RankSteps]:
    waited_for, slowest = _waited_for(steady, waits).value_counts(), _slowest(steady).value_counts()
    seen: set[int] = set()
    for rank, place in rows(steady[PLACE].drop_duplicates(), *PLACE):
        rank_rows = steady[(steady["rank"] == rank) & (steady["place"] == place)]
        name, at = f"{RANK_PREFIX}{rank}", (rank, place)
        is_lone = place == ONE_DEVICE and name in times
        yield RankSteps(
            rank=rank,
            device=_device(place),
            time=times[name].time if is_lone else Measure(rank_rows["wall_ns"].median(), len(rank_rows)),
            parts=parts.get(at),
            waited_for=int(waited_for.get(at, 0)),
            slowest_in=int(slowest.get(at, 0)),
            # Of a process with several devices, the memory of all of them stands beside the first.
            peak_memory=None if rank in seen else _peak_memory(index, case, rank),
            node=nodes.get(rank, ""),
        )
        seen.add(rank)


def _peak_memory(index: CaseIndex, case: str, rank: int) -> float | None:
    """Return the peak of the memory that torch allocated in the process ``rank`` without a profiler."""
    numbers = index.by_rank.get((case, "plain"), {}).get(f"{RANK_PREFIX}{rank}", {})
    if not numbers and rank == 0:
        numbers = index.numbers.get((case, "plain", ""), {})
    return numbers["peak_allocated"].value if "peak_allocated" in numbers else None


def _pivot_by_place(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the values of the steps that all places have: a row for each step, a column for each place."""
    return steps.pivot_table(index="step", columns=PLACE, values=column, aggfunc="mean").astype(float).dropna()


def _waiting(steady: pd.DataFrame, transfer_ns: float | None) -> pd.DataFrame:
    """Return the exposed communication of each step and place over the least one of that step, which is the transfer.

    The transfer is ``transfer_ns`` at most, where that is known. Else the frame is empty where one place alone is
    known. It is empty too where nothing communicates.
    """
    if steady["communication_ns"].isna().any() or not steady["communication_ns"].any():
        return pd.DataFrame()
    exposed = _pivot_by_place(steady, "communication_ns")
    if len(exposed.columns) < 2 and transfer_ns is None:
        return pd.DataFrame()
    return exposed.sub(exposed.min(axis=1).clip(upper=transfer_ns), axis=0)


def _waited_for(steady: pd.DataFrame, waits: pd.DataFrame) -> pd.Series[Any]:
    """Return the place that others wait for in a step, by step; steps without such a place are left out."""
    if waits.empty:
        return pd.Series(dtype=object)
    least = _DIFFERENT * steady["wall_ns"].mean()
    return waits[waits.max(axis=1) > least].idxmin(axis=1)


def _slowest(steady: pd.DataFrame) -> pd.Series[Any]:
    """Return the place that takes the longest by step, without exposed communication where the parts are known."""
    busy_ns = steady["wall_ns"] - steady["communication_ns"].fillna(0)
    times = _pivot_by_place(steady.assign(busy_ns=busy_ns), "busy_ns")
    if len(times.columns) < 2:
        return pd.Series(dtype=object)
    differs = times.max(axis=1) - times.min(axis=1) > _DIFFERENT * steady["wall_ns"].mean()
    return times[differs].idxmax(axis=1)


def _wait_cause(profiler_rows: pd.DataFrame, waits: pd.DataFrame) -> StepPart | None:
    """Return what explains at least half of the time that ranks wait for others.

    The place that is waited for computes or copies longer than the others by at least half of what they wait. Else its
    host was late or blocked for at least half of that time, in this step or before its first operation, which is idle
    time at the end of the step before. Without a GPU all idle time is the host's.
    """
    late = _waited_for(_steady(profiler_rows), waits)
    if late.empty:
        return None
    of_host = IDLE_PARTS[:2] if profiler_rows["kernels"].notna().any() else IDLE_PARTS
    idle = [part.column for part in of_host]
    # The idle time of the step before counts too.
    before = profiler_rows.groupby(PLACE)[idle].shift(1).fillna(0.0)
    steady = _steady(profiler_rows.assign(**(profiler_rows[idle] + before)))
    others = len(waits.columns) - 1
    waited = (waits.loc[late.index].sum(axis=1) / others).to_numpy()
    at = np.arange(len(late)), waits.columns.get_indexer(pd.Index(late))
    explained = np.zeros(len(late), dtype=bool)
    time: dict[StepPart, float] = {}
    for parts in ((StepPart.COMPUTE, StepPart.COPY), of_host):
        # By part, the time of the place that is waited for, of work over the mean of the others, by step.
        tables = (_pivot_by_place(steady, part.column).loc[late.index, waits.columns].to_numpy() for part in parts)
        of_late = np.stack([
            table[at] if parts[0] in IDLE_PARTS else table[at] - (table.sum(axis=1) - table[at]) / others
            for table in tables
        ])  # fmt: skip
        enough = (of_late.max(axis=0) >= _EXPLAINS * waited) & ~explained
        time |= {part: waited[enough & (of_late.argmax(axis=0) == i)].sum() for i, part in enumerate(parts)}
        explained |= enough
    cause = max(time, key=lambda part: time[part])
    return cause if time[cause] >= _EXPLAINS * waited.sum() else None
