"""Find what a step of a program costs: from the table `steps` and the metrics `step_*`, which ingestion makes.

A figure of a case is the mean over its GPUs. The parts of a step are means over the steady steps, so that they add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.analysis.case_index import CaseIndex, Number
from profpipe.analysis.cluster import differences_of_job
from profpipe.analysis.findings.steps import (
    IDLE_PARTS,
    CaseSteps,
    Contradiction,
    CopyTraffic,
    Measure,
    OutlierCause,
    RankSteps,
    Recording,
    SameSteps,
    StepFindings,
    StepOutlier,
    StepPart,
    StepParts,
    StepRow,
    UnevenSteps,
)
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_breakdown import PREFERENCE
from profpipe.analysis.kernel_totals import KernelTotals, rows
from profpipe.config.items import items_of
from profpipe.measure.statistics import mean_interval
from profpipe.results.manifest import Manifest
from profpipe.results.schema import (
    DEVICE_PREFIX,
    RANK_PREFIX,
    STEP_RANGE,
    STEP_STRIDE,
    UNEVEN_STEPS,
    Check,
    StepRule,
    StepState,
)

#: The class of the kernels that are the part ``communication``.
_COMMUNICATION = "communication"

_COLUMNS = {part: f"{part.value}_ns" for part in StepPart}

#: The metrics of a recording without steps.
_CAPTURED = tuple(f"capture_{part.value}" for part in StepPart)

_OUTLIER = re.compile(rf"{RANK_PREFIX}(\d+)(?: {DEVICE_PREFIX}(\d+))? step (\d+)")
_OUTLIER_METRIC = "step_outlier_"

_Place: TypeAlias = "tuple[int, int]"
Floats = npt.NDArray[np.float64]

#: A rank and a device of it, which is -1 where the rank has one.
_PLACE = ["rank", "place"]
_ONE_DEVICE = -1

#: Ranks differ in a step from this share of its time on.
_DIFFERENT = 0.01
#: What is at least this share of the waiting explains it.
_EXPLAINS = 0.5


def find_steps(
    index: CaseIndex,
    cases: Sequence[str],
    params: Mapping[str, Mapping[str, Any]],
    declared: Mapping[str, Any],
    run: Manifest,
    workload: str,
) -> StepFindings:
    """Return the steps of those of ``cases`` that have any, and the items of a step or call of every case.

    ``params`` are the parameters of every case, ``declared`` is the workload's entry of the pipeline,
    whose name ``workload`` is.
    """
    by_case = {str(case): own for case, own in index.tables.steps.groupby("case", sort=False)}
    # The profiler whose partition is shown: that of the most cases, of equals the most trusted.
    with_parts = index.tables.steps[index.tables.steps["compute_ns"].notna()]
    counts = with_parts.groupby("profiler", sort=False)["case"].nunique()
    profiler = max((name for name in PREFERENCE if name in counts), key=lambda name: counts[name], default="")
    nodes = {(case, job.profiler): job.rank_nodes or {} for job in run.jobs_of(workload) for case in job.cases}
    found = {case: _Case(index, case, profiler, by_case[case], nodes).read() for case in cases if case in by_case}
    items = {case: items_of(declared.get("items_per_step"), own) for case, own in params.items()}
    unlike = {case: differences_of_job(run, job) for job in run.jobs_of(workload) for case in job.cases}
    kept = tuple(replace(own, unlike_nodes=unlike.get(own.case, ())) for own in found.values() if own)
    without = tuple(case for case in cases if not found.get(case))
    recordings = tuple(recording for case in without for recording in _recordings(index, case))
    # The most trusted profiler that recorded the kernels of a case.
    recorders = {case: next((p for p in PREFERENCE if (case, p) in index.capture_totals), "") for case in without}
    totals = {case: index.capture_totals.get((case, own), KernelTotals()) for case, own in recorders.items()}
    return StepFindings(
        cases=kept,
        without_steps=tuple(case for case in without if totals[case].total_ns),
        recordings=recordings,
        copies={
            case: tuple(CopyTraffic(name, *sums) for name, sums in sorted(own.by_copy.items(), key=lambda x: -x[1][1]))
            for case, own in totals.items()
            if own.by_copy
        },
        has_launches=bool(recordings),
        # Kernels have numbers of rocprof only where it read counters.
        one_by_one=any(subject and recorders.get(case) == own == "rocprof" for case, own, subject in index.numbers),
        items={case: number for case, number in items.items() if number is not None},
        item_name=str(declared.get("item_name") or "items"),
        contradictions=tuple(_contradictions(index, cases)),
    )


def _contradictions(index: CaseIndex, cases: Sequence[str]) -> Iterator[Contradiction]:
    """Yield what the recordings of the cases contradict themselves in."""
    for (case, profiler), numbers in index.step_numbers.items():
        for check in Check:
            for subject, number in numbers.get(check.value, {}).items() if case in cases else ():
                yield Contradiction(case, profiler, check, subject, number.value, int(number.n))


def _recordings(index: CaseIndex, case: str) -> Iterator[Recording]:
    """Yield the parts of a recording without steps, by rank."""
    profiler = next((name for name in PREFERENCE if _CAPTURED[0] in index.step_numbers.get((case, name), {})), "")
    numbers = index.step_numbers.get((case, profiler), {})
    for rank in numbers.get(_CAPTURED[0], {}):
        found = (numbers.get(metric, {}).get(rank) for metric in _CAPTURED)
        parts = dict(zip(StepPart, (number.value if number else 0.0 for number in found), strict=True))
        yield Recording(case, _readable(rank), StepParts(parts))


def _readable(subject: str) -> str:
    """Return ``1`` for ``rank 1``, and ``0, GPU 1`` for ``rank 0 device 1``."""
    rank, has_device, device = subject.removeprefix(RANK_PREFIX).partition(f" {DEVICE_PREFIX}")
    return f"{rank}, GPU {device}" if has_device else rank


@dataclass(frozen=True)
class _Case:
    """The steps of one case. ``profiler`` is the one whose partition is shown."""

    index: CaseIndex
    id: str
    profiler: str
    steps: pd.DataFrame
    #: The node of each rank, by case and profiler.
    nodes: Mapping[tuple[str, str], Mapping[int, str]]

    def read(self) -> CaseSteps | None:
        """Return the steps; None where only work between steps is known."""
        # The times without a profiler come first.
        every, times = ("plain", *PREFERENCE), self.index.step_times
        seen = set(self.steps.loc[self.steps["state"] != StepState.OTHER.value, "profiler"])
        profiler = next((name for name in (self.profiler, *every) if name in seen), None)
        if profiler is None:
            return None
        own = self.steps[self.steps["profiler"] == profiler]
        # A single process may not know its rank.
        own = _with_places(own)
        steady = own[own["state"] == StepState.STEADY.value]
        numbers = self.index.step_numbers.get((self.id, profiler), {})
        by_rank = own.groupby(_PLACE)["state"].value_counts().unstack(fill_value=0)
        uneven = dict(self._uneven(every))
        waits = _waiting(steady)
        parts = _parts_by_place(steady, waits)
        return CaseSteps(
            case=self.id,
            profiler=profiler,
            rule=StepRule(own["rule"].iloc[0]),
            times={name: times[self.id, name].time for name in every if (self.id, name) in times},
            counts={
                state: (int(by_rank[state.value].min()), int(by_rank[state.value].max()))
                for state in StepState
                if state.value in by_rank
            },
            steps=int(by_rank.drop(columns=StepState.OTHER.value, errors="ignore").sum(axis=1).max()),
            all_steps=self._all_steps(),
            coverage=None if (percent := _of_case(numbers, "step_coverage")) is None else percent / 100,
            pattern_count=None if (count := _of_case(numbers, "step_count_by_pattern")) is None else round(count),
            uneven=uneven,
            same_steps=self._same_steps() if uneven else {},
            parts=self._mean_parts(parts),
            copies=tuple(self._copies(numbers)),
            ranks=tuple(self._ranks(profiler, steady, parts, waits, numbers.get("step_time", {}))),
            wait_cause=_wait_cause(own, waits),
            outliers=tuple(_outliers(own, steady, numbers)),
            rows=tuple(_rows(own, waits)),
            range_name=next(iter(numbers.get(STEP_RANGE, {})), ""),
            stride=round(_of_case(numbers, STEP_STRIDE) or 1),
        )

    def _all_steps(self) -> dict[str, int]:
        """Count the different steps under each profiler, whatever their state."""
        steps = self.steps[self.steps["state"] != StepState.OTHER.value]
        return {str(name): int(n) for name, n in steps.groupby("profiler")["step"].nunique().items()}

    def _uneven(self, profilers: Iterable[str]) -> Iterator[tuple[str, UnevenSteps]]:
        """Yield the profilers under which steady steps are uneven."""
        steady = self.steps[(self.steps["state"] == StepState.STEADY.value) & self.steps["wall_ns"].notna()]
        for name in profilers:
            spread = _of_case(self.index.step_numbers.get((self.id, name), {}), "step_spread")
            own = steady[steady["profiler"] == name]
            if spread and spread > UNEVEN_STEPS and len(own):
                walls = own.astype({"wall_ns": float}).groupby("step")["wall_ns"].mean()
                yield name, UnevenSteps(spread / 100, walls.median(), int(walls.idxmax()), walls.max())

    def _same_steps(self) -> dict[str, SameSteps]:
        """Return the steady steps of each profiler beside the same steps without a profiler.

        A profiler is left out where another rule found its steps, or where ``plain`` lacks one of them.
        """
        key = ["rank", "step"]
        steps = self.steps[(self.steps["state"] != StepState.OTHER.value) & self.steps["wall_ns"].notna()]
        steps = steps.assign(rank=steps["rank"].fillna(0))
        plain = steps[steps["profiler"] == "plain"]
        steady = steps[(steps["profiler"] != "plain") & (steps["state"] == StepState.STEADY.value)]
        found: dict[str, SameSteps] = {}
        for name, own in steady.groupby("profiler", sort=False):
            both = own.merge(plain, on=[*key, "rule"], suffixes=("", "_plain"))
            if len(both) == len(own):
                ns, without_ns = both["wall_ns"].astype(float), both["wall_ns_plain"].astype(float)
                ends = mean_interval((ns - without_ns).tolist())
                differs = ends is not None and not ends[0] <= 0 <= ends[1]
                found[str(name)] = SameSteps(float(ns.mean()), float(without_ns.mean()), differs)
        return found

    def _mean_parts(self, places: Mapping[_Place, StepParts]) -> StepParts | None:
        """Return the mean over ranks and devices of the means over their steady steps."""
        if not places:
            return None
        mean = {part: _mean([own.ns[part] for own in places.values()]) for part in StepPart}
        total = _mean([own.communication_total_ns or 0.0 for own in places.values()])
        waits = [own.waiting_ns for own in places.values() if own.waiting_ns is not None]
        return StepParts(mean, self._classes(mean[StepPart.COMPUTE]), total, _mean(waits) if waits else None)

    def _classes(self, compute_ns: float) -> dict[str, float]:
        """Divide the time in which the GPU computes by the kernels' sums, the largest class first."""
        own = self.index.step_totals.get((self.id, self.profiler), KernelTotals()).kernels
        times = grouped((kernel.kernel_class, ns) for kernel, (_, ns) in own.items())
        return divide_compute({name: sum(each) for name, each in times.items()}, compute_ns)

    def _copies(self, numbers: Mapping[str, Mapping[str, Number]]) -> Iterator[CopyTraffic]:
        """Yield the copies and sets of a step, those with the most time first."""
        launches, moved = (numbers.get(name, {}) for name in ("step_launches", "step_copy_bytes"))
        times = numbers.get("step_kernel_time", {})
        for name in sorted(times, key=lambda name: -times[name].value):
            if name in self.index.copies:
                size = moved[name].value if name in moved else None
                yield CopyTraffic(name, launches[name].value if name in launches else 0.0, times[name].value, size)

    def _ranks(
        self,
        profiler: str,
        steady: pd.DataFrame,
        parts: Mapping[_Place, StepParts],
        waits: pd.DataFrame,
        times: Mapping[str, Number],
    ) -> Iterator[RankSteps]:
        nodes = self.nodes.get((self.id, profiler), {})
        waited_for, slowest = _waited_for(steady, waits).value_counts(), _slowest(steady).value_counts()
        ranks: set[int] = set()
        for rank, device in rows(steady[_PLACE].drop_duplicates(), *_PLACE):
            own = steady[(steady["rank"] == rank) & (steady["place"] == device)]
            name, is_lone = f"{RANK_PREFIX}{rank}", device == _ONE_DEVICE
            yield RankSteps(
                rank=rank,
                device=_device(device),
                time=times[name].time if is_lone and name in times else Measure(own["wall_ns"].median(), len(own)),
                parts=parts.get((rank, device)),
                waited_for=int(waited_for.get((rank, device), 0)),
                slowest_in=int(slowest.get((rank, device), 0)),
                # Of a process with several devices, the memory of all of them stands beside the first.
                peak_memory=None if rank in ranks else self._peak_memory(rank),
                node=nodes.get(rank, ""),
            )
            ranks.add(rank)

    def _peak_memory(self, rank: int) -> float | None:
        """Return the peak of the memory that torch allocated in the process ``rank`` without a profiler."""
        own = self.index.by_rank.get((self.id, "plain"), {}).get(f"{RANK_PREFIX}{rank}", {})
        if not own and rank == 0:
            own = self.index.numbers.get((self.id, "plain", ""), {})
        return own["peak_allocated"].value if "peak_allocated" in own else None


def divide_compute(sums: Mapping[str, float], compute_ns: float) -> dict[str, float]:
    """Divide the time in which a GPU computes by the kernels' sums by class, the largest first."""
    computing = {name: ns for name, ns in sums.items() if ns and name != _COMMUNICATION}
    total = sum(computing.values())
    return {name: ns / total * compute_ns for name, ns in sorted(computing.items(), key=lambda item: -item[1])}


def _of_case(numbers: Mapping[str, Mapping[str, Number]], metric: str) -> float | None:
    number = numbers.get(metric, {}).get("")
    return None if number is None else number.value


def _with_idle_other(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps with the idle time that no cause explains, whether or not the tool recorded the host."""
    causes = steps[[_COLUMNS[part] for part in IDLE_PARTS[:-1]]].fillna(0.0)
    return steps.assign(**causes, idle_other_ns=steps["idle_ns"] - causes.sum(axis=1))


def _with_places(own: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns ``_PLACE``, by place and in the order of time."""
    # A single process may not know its rank.
    own = own.assign(rank=own["rank"].fillna(0).astype(int))
    has_several = own.groupby("rank")["device"].transform("nunique") > 1
    own = own.assign(place=own["device"].where(has_several).fillna(_ONE_DEVICE).astype(int))
    return own.sort_values([*_PLACE, "start_ns", "step"], kind="stable")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _parts_by_place(steady: pd.DataFrame, waits: pd.DataFrame) -> dict[_Place, StepParts]:
    """Return the mean of the steady steps of each rank and device; empty where no profiler recorded the parts."""
    known = _with_idle_other(steady[steady["compute_ns"].notna()])
    names = [*_COLUMNS.values(), "communication_total_ns"]
    means = known.groupby(_PLACE, sort=True)[names].mean().astype(float).reset_index()
    waiting = waits.mean()
    return {
        (rank, device): StepParts(
            dict(zip(StepPart, parts, strict=True)), {}, total, float(waiting[rank, device]) if len(waits) else None
        )
        for rank, device, *parts, total in rows(means, *_PLACE, *names)
    }


# --- several ranks ---------------------------------------------------------------------------------------------------


def _by_place(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the values of the steps that all places have: a row for each step, a column for each place."""
    return steps.pivot_table(index="step", columns=_PLACE, values=column, aggfunc="mean").astype(float).dropna()


def _waiting(steady: pd.DataFrame) -> pd.DataFrame:
    """Return the exposed communication of each step and place over the least one of that step, which is the transfer.

    It is empty where one place alone is known, and where nothing communicates.
    """
    if steady["communication_ns"].isna().any() or not steady["communication_ns"].any():
        return pd.DataFrame()
    exposed = _by_place(steady, "communication_ns")
    return exposed.sub(exposed.min(axis=1), axis=0) if len(exposed.columns) > 1 else pd.DataFrame()


def _waited_for(steady: pd.DataFrame, waits: pd.DataFrame) -> pd.Series[Any]:
    """Return the place that others wait for in a step, by step; steps without such a place are left out."""
    if waits.empty:
        return pd.Series(dtype=object)
    least = _DIFFERENT * steady["wall_ns"].mean()
    return waits[waits.max(axis=1) > least].idxmin(axis=1)


def _slowest(steady: pd.DataFrame) -> pd.Series[Any]:
    """Return the place that takes the longest by step, without exposed communication where the parts are known."""
    own = steady["wall_ns"] - steady["communication_ns"].fillna(0)
    times = _by_place(steady.assign(own_ns=own), "own_ns")
    if len(times.columns) < 2:
        return pd.Series(dtype=object)
    differs = times.max(axis=1) - times.min(axis=1) > _DIFFERENT * steady["wall_ns"].mean()
    return times[differs].idxmax(axis=1)


def _wait_cause(own: pd.DataFrame, waits: pd.DataFrame) -> StepPart | None:
    """Return what explains at least half of the time that ranks wait for others.

    The place that is waited for computes or copies longer than the others by at least half of what they wait. Else its
    host was late or blocked for at least half of that time, in this step or before its first operation, which is idle
    time at the end of the step before.
    """
    late = _waited_for(steady := own[own["state"] == StepState.STEADY.value], waits)
    if late.empty:
        return None
    idle = [_COLUMNS[part] for part in IDLE_PARTS[:2]]
    filled = _with_idle_other(own)
    filled[idle] += filled.groupby(_PLACE)[idle].shift(1).fillna(0.0)
    others = len(waits.columns) - 1
    waited = (waits.loc[late.index].sum(axis=1) / others).to_numpy()
    at = np.arange(len(late)), waits.columns.get_indexer(pd.Index(late))

    def of_late(part: StepPart) -> Floats:
        """Return the time of the place that is waited for, of work over the mean of the others, by step."""
        by_place = _by_place(filled.loc[steady.index], _COLUMNS[part]).loc[late.index, waits.columns].to_numpy()
        own_ns: Floats = by_place[at]
        return own_ns if part in IDLE_PARTS else own_ns - (by_place.sum(axis=1) - own_ns) / others

    explained = np.zeros(len(late), dtype=bool)
    time: dict[StepPart, float] = {}
    for parts in ((StepPart.COMPUTE, StepPart.COPY), IDLE_PARTS[:2]):
        found = np.stack([of_late(part) for part in parts])
        enough = (found.max(axis=0) >= _EXPLAINS * waited) & ~explained
        time |= {part: waited[enough & (found.argmax(axis=0) == i)].sum() for i, part in enumerate(parts)}
        explained |= enough
    cause = max(time, key=lambda part: time[part])
    return cause if time[cause] >= _EXPLAINS * waited.sum() else None


def _outliers(
    own: pd.DataFrame, steady: pd.DataFrame, numbers: Mapping[str, Mapping[str, Number]]
) -> Iterator[StepOutlier]:
    """Yield the outliers, the longest first, without the ranks that took no other time than in steady steps."""
    typical = steady.groupby(_PLACE)["wall_ns"].agg(["min", "median", "max"]).astype(float)
    excess: dict[tuple[_Place, int], dict[OutlierCause, float]] = {}
    for cause in OutlierCause:
        for subject, number in numbers.get(f"{_OUTLIER_METRIC}{cause.value}", {}).items():
            if match := _OUTLIER.fullmatch(subject):
                place = int(match[1]), int(match[2] or _ONE_DEVICE)
                excess.setdefault((place, int(match[3])), {})[cause] = number.value
    outliers = own[own["state"] == StepState.OUTLIER.value].sort_values("wall_ns", ascending=False)
    for rank, device, step, wall in rows(outliers, *_PLACE, "step", "wall_ns"):
        if (rank, device) not in typical.index:
            continue
        least, median, most = typical.loc[(rank, device)].tolist()
        if not least <= wall <= most:
            causes = excess.get(((rank, device), int(step)), {})
            yield StepOutlier(rank, int(step), wall, median, causes, _device(device))


def _device(place: int) -> int | None:
    return None if place == _ONE_DEVICE else place


def _rows(own: pd.DataFrame, waits: pd.DataFrame) -> Iterator[StepRow]:
    """Yield every step and the work between steps."""
    filled = _with_idle_other(own)
    names = (*_PLACE, "step", "state", "wall_ns", "kernels", *_COLUMNS.values())
    are_known = filled[list(_COLUMNS.values())].notna().all(axis=1).tolist()
    waiting = {(step, place): ns for place in waits for step, ns in waits[place].items()}
    for has_parts, row in zip(are_known, rows(filled, *names), strict=True):
        rank, device, step, state, wall, kernels, *parts = row
        own_waiting = waiting.get((step, (rank, device))) if state == StepState.STEADY.value else None
        yield StepRow(
            rank=rank,
            device=_device(device),
            step=int(step),
            state=StepState(state),
            wall_ns=wall,
            kernels=None if pd.isna(kernels) else int(kernels),
            parts=StepParts(dict(zip(StepPart, parts, strict=True)), waiting_ns=own_waiting) if has_parts else None,
        )
