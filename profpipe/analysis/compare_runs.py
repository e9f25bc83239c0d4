"""Compare the times of two runs, case by case, and judge them against a gate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pandas as pd

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

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.after_ns / self.before_ns - 1) * 100

    def is_slower_by(self, percent: float) -> bool:
        """Return True if the case is slower by more than ``percent``, and by more than its uncertainty."""
        return self.percent > percent and self.intervals is not Intervals.OVERLAP


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


@dataclass(frozen=True)
class GateFailure:
    """Why B does not pass a gate, and the names of the cases."""

    cause: GateCause
    cases: tuple[str, ...] = ()


def compare_runs(a: Tables, b: Tables, manifest_a: Manifest, manifest_b: Manifest) -> Comparison:
    """Compare the cases of A that have a time with those of B, and the machines of both runs.

    A case without stored parameters, such as one of a file that was ingested, counts as one with the same parameters.
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
            changes.append(Change(name, before.median_ns, after.median_ns, before.intervals_with(after), where))
    gpus = _gpu_names(manifest_a), _gpu_names(manifest_b)
    differ = gpus if all(gpus) and gpus[0] != gpus[1] else None
    unfinished = manifest_b.is_run and not manifest_b.ended
    return Comparison(tuple(changes), tuple(lost), tuple(absent), tuple(changed_params), differ, unfinished)


@dataclass(frozen=True)
class _TimedCase:
    """The median time in ns without a profiler and its confidence interval, which may be missing."""

    median_ns: float
    ci_low: float
    ci_high: float
    params: Mapping[str, Any]
    is_inaccurate: bool

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
    return {
        key: _TimedCase(median, low, high, params.get(key, {}), key in inaccurate)
        for key, (median, low, high) in zip(_keys(times), numbers, strict=True)
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
    return None if found.changes else GateFailure(GateCause.NOTHING_TO_JUDGE)
