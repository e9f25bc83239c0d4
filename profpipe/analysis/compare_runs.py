"""Compare the times of two runs, case by case, and judge them against a gate.

Each run measured a case in one process. Processes of the same code differ by more than the intervals of their samples,
so a difference counts only where the spread between processes is known for that case, GPU and driver.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from profpipe.analysis.verdict import LEAST_FLOOR
from profpipe.job import readable
from profpipe.measure.flags import Flag
from profpipe.results.manifest import Manifest
from profpipe.results.schema import FAILED, PROCESS_WALL, Tables

#: (workload, case id).
_Key = tuple[str, str]


class Intervals(Enum):
    """Whether the confidence intervals of two medians overlap."""

    APART = "apart"
    OVERLAP = "overlap"
    #: A run has no interval.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Change:
    """One case in both runs. Times are medians in ns, measured by events without a profiler."""

    name: str
    before_ns: float
    after_ns: float
    intervals: Intervals
    #: The runs in which the result was outside the tolerance: ``A``, ``B`` or both.
    inaccurate_in: tuple[str, ...] = ()
    #: The log of the ratio that processes of the same code stay below in 99 %; None where that is not known.
    noise: float | None = None

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the difference is more than chance; None where the spread between processes is not known."""
        if self.intervals is Intervals.OVERLAP:
            return False
        return None if self.noise is None else abs(math.log(self.after_ns / self.before_ns)) > self.noise

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.after_ns / self.before_ns - 1) * 100

    def is_slower_by(self, percent: float) -> bool | None:
        """Whether the case is slower by more than ``percent`` and by more than chance; None where that is not known."""
        return self.is_beyond_noise if self.percent > percent else False


@dataclass(frozen=True)
class ChangedCase:
    """A case that has one name in both runs, and different parameters: name to the values of A and B.

    These parameters are not part of the case's name. A value is None where the run has no such parameter.
    """

    name: str
    differences: Mapping[str, tuple[str | None, ...]]


@dataclass(frozen=True)
class Comparison:
    """Run B compared with run A. Cases are given by name."""

    changes: tuple[Change, ...]
    #: Cases with a time in A that failed in B, and those that have no time in B for another reason.
    lost: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    changed_params: tuple[ChangedCase, ...] = ()
    #: The GPUs of A and of B, where they differ.
    gpus: tuple[str, str] | None = None
    is_b_unfinished: bool = False


class GateCause(Enum):
    """Why B does not pass a gate."""

    UNFINISHED = "unfinished"
    SLOWER = "slower"
    NEWLY_INACCURATE = "newly_inaccurate"
    LOST = "lost"
    CHANGED_PARAMS = "changed_params"
    NOTHING_TO_JUDGE = "nothing_to_judge"
    #: Cases are slower, and whether that is chance is not known.
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class GateFailure:
    """Why B does not pass a gate, and the names of the cases."""

    cause: GateCause
    cases: tuple[str, ...] = ()


def compare_runs(
    a: Tables,
    b: Tables,
    manifest_a: Manifest,
    manifest_b: Manifest,
    spreads: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> Comparison:
    """Compare the cases of A that have a time with those of B, and the machines of both runs.

    ``spreads`` has by workload and case how far pairs of processes of the same code lie apart, as a ratio minus 1. A
    case without stored parameters, such as one of a file that was ingested, counts as one with the same parameters.
    """
    changes: list[Change] = []
    changed_params: list[ChangedCase] = []
    lost: list[str] = []
    absent: list[str] = []
    times_b, failed_in_b = _timed_cases(b), _failed_cases(b)
    for key, before in _timed_cases(a).items():
        name = f"{key[0]}/{readable(key[1])}"
        after = times_b.get(key)
        if after is None:
            (lost if key in failed_in_b else absent).append(name)
        elif before.params and after.params and before.params != after.params:
            changed_params.append(_changed_case(name, before.params, after.params))
        else:
            where = tuple(run for run, case in (("A", before), ("B", after)) if case.is_inaccurate)
            noise = _noise(before, after, spreads.get(key[0], {}).get(key[1]))
            changes.append(Change(name, before.median_ns, after.median_ns, before.intervals_with(after), where, noise))
    gpus = _gpu_names(manifest_a), _gpu_names(manifest_b)
    differ = gpus if all(gpus) and gpus[0] != gpus[1] else None
    unfinished = manifest_b.is_run and not manifest_b.ended
    return Comparison(tuple(changes), tuple(lost), tuple(absent), tuple(changed_params), differ, unfinished)


def _noise(before: _TimedCase, after: _TimedCase, spread: float | None) -> float | None:
    """Return the log ratio that one process each of the same code exceeds in 1 % of comparisons.

    ``spread`` is the standard deviation between pairs of processes; the floor of a verdict is the least. The interval
    of repeated processes holds their spread already.
    """
    if before.is_of_processes and after.is_of_processes and before.intervals_with(after) is not Intervals.UNKNOWN:
        return 0.0
    return None if spread is None else max(math.log1p(LEAST_FLOOR), _QUANTILE * math.log1p(spread))


#: 99 % of a normal distribution lie within so many standard deviations.
_QUANTILE: Final = statistics.NormalDist().inv_cdf(0.995)


@dataclass(frozen=True)
class _TimedCase:
    """The median time in ns without a profiler and its confidence interval, which may be missing.

    ``is_of_processes``: the interval is one of several processes and not of the samples of one.
    """

    median_ns: float
    ci_low: float
    ci_high: float
    params: Mapping[str, Any]
    is_inaccurate: bool
    is_of_processes: bool = False

    def intervals_with(self, after: _TimedCase) -> Intervals:
        if any(map(math.isnan, (self.ci_low, self.ci_high, after.ci_low, after.ci_high))):
            return Intervals.UNKNOWN
        is_apart = self.ci_high < after.ci_low or after.ci_high < self.ci_low
        return Intervals.APART if is_apart else Intervals.OVERLAP


def plain_times(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the row of `metrics` with the time of each case without a profiler.

    That is the time of its calls or steps; for a command without steps the wall time of its process.
    """
    own = metrics[(metrics["profiler"] == "plain") & (metrics["subject"] == "")]
    times, walls = own[own["metric"] == "time"], own[own["metric"] == PROCESS_WALL]
    timed = set(_keys(times))
    return pd.concat([times, walls[[key not in timed for key in _keys(walls)]]]) if len(walls) else times


def _timed_cases(data: Tables) -> dict[_Key, _TimedCase]:
    """Return the cases that were timed without a profiler and did not fail, in the order of their times."""
    metrics, cases = data.metrics, data.cases
    times = plain_times(metrics)
    with_params = cases[(cases["profiler"] == "plain") & (cases["params"] != "")]
    params = dict(zip(_keys(with_params), map(json.loads, with_params["params"]), strict=True))
    inaccurate = _keys(cases[cases["flags"].str.contains(f'"{Flag.INACCURATE}"', regex=False)])
    failed = _failed_cases(data)
    numbers = times[["value", "ci_low", "ci_high"]].astype(float).to_numpy().tolist()
    repeated = times["metric"] == PROCESS_WALL
    return {
        key: _TimedCase(median, low, high, params.get(key, {}), key in inaccurate, is_repeated)
        for key, (median, low, high), is_repeated in zip(_keys(times), numbers, repeated, strict=True)
        if key not in failed and not math.isnan(median)
    }


def _failed_cases(data: Tables) -> set[_Key]:
    return set(_keys(data.cases[(data.cases["profiler"] == "plain") & data.cases["status"].isin(FAILED)]))


def _keys(rows: pd.DataFrame) -> list[_Key]:
    return list(zip(rows["workload"], rows["case"], strict=True))


def _changed_case(name: str, *params: Mapping[str, Any]) -> ChangedCase:
    """Return which parameters differ, as text in both runs."""
    texts = [{key: v if isinstance(v, str) else json.dumps(v) for key, v in own.items()} for own in params]
    keys = dict.fromkeys(key for own in params for key in own)
    differing = [key for key in keys if any(key not in own for own in params) or params[0][key] != params[1][key]]
    return ChangedCase(name, {key: tuple(text.get(key) for text in texts) for key in differing})


def _gpu_names(manifest: Manifest) -> str:
    """Return the GPUs of a run; empty where its record does not name them."""
    gpus = manifest.machine.gpus
    return "" if gpus is None else ", ".join(gpu.name for gpu in gpus) or "no GPU"


def find_gate_failure(found: Comparison, percent: float) -> GateFailure | None:
    """Return why B does not pass a gate of ``percent``; None if it passes."""
    if found.is_b_unfinished:
        return GateFailure(GateCause.UNFINISHED)
    causes = {
        GateCause.SLOWER: [change.name for change in found.changes if change.is_slower_by(percent)],
        GateCause.NEWLY_INACCURATE: [change.name for change in found.changes if change.inaccurate_in == ("B",)],
        GateCause.LOST: found.lost,
        GateCause.CHANGED_PARAMS: [case.name for case in found.changed_params],
    }
    for cause, cases in causes.items():
        if cases:
            return GateFailure(cause, tuple(cases))
    if unknown := [change.name for change in found.changes if change.is_slower_by(percent) is None]:
        return GateFailure(GateCause.UNDECIDED, tuple(unknown))
    return None if found.changes else GateFailure(GateCause.NOTHING_TO_JUDGE)
