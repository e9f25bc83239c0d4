"""Compare the times of two runs, case by case, and judge them against a gate.

Processes of the same code differ by more than the intervals of their samples, and one of the two runs came first: a
drift of the machine looks like a difference. So a difference counts only where the spread between runs is known for
that case, GPU and driver. The spread of the processes of one session shows only that a difference is noise.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from profpipe.analysis.case_index import Measure
from profpipe.analysis.kernels import rows
from profpipe.analysis.verdict import LEAST_FLOOR, Gate, quantile
from profpipe.job import IncidentKind, readable
from profpipe.measure.flags import Flag
from profpipe.results.manifest import Manifest
from profpipe.results.noise import Model, Noise
from profpipe.results.schema import FAILED, PROCESS_PREFIX, PROCESS_WALL, TIMES, Tables

#: The least and the largest time. A table may be damaged, and hold 0, a negative number, infinity or NaN.
POSSIBLE_NS: Final = (1e-9, 1e30)

#: (workload, case id).
Key = tuple[str, str]
Run = tuple[Tables, Manifest]


@dataclass(frozen=True)
class Change:
    """One case in both runs. Times are medians in ns, measured by events without a profiler."""

    name: str
    a_ns: float
    b_ns: float
    #: Whether both runs have a confidence interval and the two overlap.
    overlaps: bool
    #: The runs in which the result was outside the tolerance: ``A``, ``B`` or both.
    inaccurate_in: tuple[str, ...] = ()
    #: The log of the ratio that processes of the same code stay below in 99 %; None where that is not known.
    noise: float | None = None
    #: Whether ``noise`` holds what changes from run to run. Without it a drift of the machine may be the difference.
    holds_drift: bool = False

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the difference is more than chance; None where the spread between runs is needed and not known."""
        if self.overlaps:
            return False
        if self.noise is not None and abs(math.log(self.b_ns / self.a_ns)) <= self.noise:
            return False
        return True if self.noise is not None and self.holds_drift else None

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.b_ns / self.a_ns - 1) * 100

    def judge_gate(self, percent: float) -> Gate:
        """Return what the case means for a gate of ``percent``."""
        is_slower = self.is_beyond_noise if self.percent > percent else False
        if is_slower or self.inaccurate_in == ("B",):
            return Gate.FAILED
        return Gate.PASSED if is_slower is False else Gate.UNDECIDED


@dataclass(frozen=True)
class Failure:
    """A case that did not run well. ``is_of_b_alone``: a process of B failed, and none of A."""

    status: str
    reason: str
    is_of_b_alone: bool = True


class GateCause(Enum):
    """Why B does not pass a gate."""

    UNFINISHED = "unfinished"
    SLOWER = "slower"
    NEWLY_INACCURATE = "newly_inaccurate"
    LOST = "lost"
    CHANGED_PARAMS = "changed_params"
    #: Cases may be slower, and whether that is chance or drift is not known.
    UNDECIDED = "undecided"
    #: Cases of A whose times cannot be compared with those of B.
    ABSENT = "absent"
    #: Cases whose process a signal ended in A or B: the wall time is that of the signal.
    ENDED = "ended"
    NOTHING_TO_JUDGE = "nothing_to_judge"

    @property
    def is_open(self) -> bool:
        """Return True if the gate neither passes nor fails."""
        return self in (GateCause.UNDECIDED, GateCause.ABSENT, GateCause.ENDED, GateCause.NOTHING_TO_JUDGE)


@dataclass(frozen=True)
class Comparison:
    """The run B compared with A. Cases are given by name."""

    changes: tuple[Change, ...]
    #: Cases with a time in A that failed in B, and those without times of the same kind above 0 for another reason.
    lost: Mapping[str, Failure] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    #: Cases without steps whose process a signal ended in A or B.
    ended: tuple[str, ...] = ()
    #: Cases with other parameters in B: for each parameter that differs the values of A and B, None without one. These
    #: parameters are not part of the case's name.
    changed_params: Mapping[str, Mapping[str, tuple[str | None, ...]]] = field(default_factory=dict)
    #: The GPUs of A and of B, where they differ.
    gpus: tuple[str, str] | None = None
    is_b_unfinished: bool = False

    def find_gate_causes(self, percent: float) -> dict[GateCause, tuple[str, ...]]:
        """Return why B does not pass a gate of ``percent``, with the cases of each cause; empty if it passes."""
        if self.is_b_unfinished:
            return {GateCause.UNFINISHED: ()}
        inaccurate = [change.name for change in self.changes if change.inaccurate_in == ("B",)]
        failed, undecided = (
            tuple(change.name for change in self.changes if change.judge_gate(percent) is gate)
            for gate in (Gate.FAILED, Gate.UNDECIDED)
        )
        causes = {
            GateCause.SLOWER: [name for name in failed if name not in inaccurate],
            GateCause.NEWLY_INACCURATE: inaccurate,
            GateCause.LOST: self.lost,
            GateCause.CHANGED_PARAMS: self.changed_params,
        }
        # A case that fails the gate decides it, whatever is not known of the others.
        unknown = {GateCause.UNDECIDED: undecided, GateCause.ABSENT: self.absent, GateCause.ENDED: self.ended}
        for names_by_cause in (causes, unknown):
            if decisive := {cause: tuple(names) for cause, names in names_by_cause.items() if names}:
                return decisive
        return {} if self.changes else {GateCause.NOTHING_TO_JUDGE: ()}

    def judge_gate(self, percent: float) -> Gate:
        """Return the result of a gate of ``percent``."""
        causes = self.find_gate_causes(percent).keys()
        if not causes:
            return Gate.PASSED
        return Gate.UNDECIDED if all(cause.is_open for cause in causes) else Gate.FAILED


def compare_runs(
    a: Tables, b: Tables, manifest_a: Manifest, manifest_b: Manifest, noise: Model = MappingProxyType({})
) -> Comparison:
    """Compare the cases of A that have a time with those of B, and the machines of both runs.

    A case is lost if it failed in B, and absent if B lacks its time, or has that of the process alone where A has that
    of the steps, or a time of either is none. It is not compared if its parameters differ, or if a signal ended its
    process and the time is that of the process. One without stored
    parameters, such as one of a file that was ingested, counts as one with the same parameters. ``noise`` has by
    workload and case how far processes of the same code lie apart on this machine.
    """
    times_b, failed = timed_cases(b), failed_cases(b)
    processes_a, processes_b = plain_processes(a), plain_processes(b)
    changes: list[Change] = []
    lost: dict[str, Failure] = {}
    absent: list[str] = []
    ended: list[str] = []
    was_ended = _ended_cases(manifest_a) | _ended_cases(manifest_b)
    changed: dict[str, Mapping[str, tuple[str | None, ...]]] = {}
    for key, before in timed_cases(a).items():
        name, after = f"{key[0]}/{readable(key[1])}", times_b.get(key)
        if key in failed:
            lost[name] = failed[key]
        elif after is None or after.metric != before.metric or not (before.is_possible and after.is_possible):
            absent.append(name)
        elif before.metric == PROCESS_WALL and key in was_ended:
            ended.append(name)
        elif before.params and after.params and before.params != after.params:
            changed[name] = _differences(before.params, after.params)
        else:
            is_one_device = not _are_devices_different(key, manifest_a, manifest_b)
            case_noise = noise.get(key, Noise()) if is_one_device else Noise()
            limit = _limit(processes_a.get(key, ()), processes_b.get(key, ()), case_noise) if is_one_device else None
            inaccurate = tuple(side for side, timed in (("A", before), ("B", after)) if timed.is_inaccurate)
            overlaps, holds_drift = before.time.overlaps(after.time), case_noise.between is not None
            changes.append(Change(name, before.time.ns, after.time.ns, overlaps, inaccurate, limit, holds_drift))
    gpus = (_gpu_names(manifest_a), _gpu_names(manifest_b))
    return Comparison(
        tuple(changes),
        lost,
        tuple(absent),
        tuple(ended),
        changed_params=changed,
        gpus=gpus if all(gpus) and gpus[0] != gpus[1] else None,
        is_b_unfinished=manifest_b.is_run and not manifest_b.ended,
    )


def _limit(before: Sequence[float], after: Sequence[float], noise: Noise) -> float | None:
    """Return the log ratio that one process each of the same code exceeds in 1 % of comparisons; None: not known.

    ``before`` and ``after`` are the times of the processes of each run, where several repeat the case. They show the
    spread too. The medians of several processes get no smaller limit: what a run has in common stays in them.
    """
    spreads = [(recorded.spread, recorded.degrees) for recorded in (noise.run_spread,) if recorded]
    if within := spread_within(before, after):
        spreads.append(within)
    if not spreads:
        return None
    limits = (quantile(_WITHIN, degrees) * math.log1p(spread) for spread, degrees in spreads)
    return max(math.log1p(LEAST_FLOOR), *limits)


def spread_within(*sides: Sequence[float]) -> tuple[float, float] | None:
    """Return the spread of two processes by the processes of each side, as a ratio minus 1, and degrees of freedom.

    It is the standard deviation of the log times around the mean of their side. None without two processes on a side.
    """
    logs = [[math.log(time) for time in side] for side in sides if len(side) > 1]
    degrees = sum(len(side) - 1 for side in logs)
    if not degrees:
        return None
    variance = sum(statistics.variance(side) * (len(side) - 1) for side in logs) / degrees
    return math.expm1(math.sqrt(2 * variance)), float(degrees)


#: 99 % of a symmetric distribution lie below this quantile of its sizes.
_WITHIN: Final = 0.995


@dataclass(frozen=True)
class TimedCase:
    """The median time without a profiler. Where its interval is missing its ends are NaN, with which none overlaps."""

    time: Measure
    params: Mapping[str, Any]
    is_inaccurate: bool
    #: Name of the time in the table `metrics`.
    metric: str

    @property
    def is_possible(self) -> bool:
        return POSSIBLE_NS[0] <= self.time.ns <= POSSIBLE_NS[1]


def plain_times(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the row of `metrics` with the time of each case without a profiler.

    That is the time of its calls or steps; for a command without steps the wall time of its process.
    """
    plain_rows = metrics[(metrics["profiler"] == "plain") & (metrics["subject"] == "")]
    times, walls = plain_rows[plain_rows["metric"] == "time"], plain_rows[plain_rows["metric"] == PROCESS_WALL]
    timed = set(_keys(times))
    return pd.concat([times, walls[[key not in timed for key in _keys(walls)]]]) if len(walls) else times


def plain_processes(data: Tables) -> dict[Key, list[float]]:
    """Return the times in ns of the single processes of cases that several processes repeated and that did not fail.

    They are in the order in which the processes ran.
    """
    metrics, failed = data.metrics, failed_cases(data)
    of_plain = (metrics["profiler"] == "plain") & metrics["metric"].isin(TIMES)
    is_single = metrics["subject"].str.fullmatch(rf"{PROCESS_PREFIX}\d{{1,19}}")
    single = metrics[of_plain & is_single & metrics["value"].between(*POSSIBLE_NS)]
    times: dict[Key, dict[str, dict[int, float]]] = {}
    for workload, case, metric, subject, value in rows(single, "workload", "case", "metric", "subject", "value"):
        if (workload, case) not in failed:
            by_metric = times.setdefault((workload, case), {}).setdefault(metric, {})
            by_metric[int(subject.removeprefix(PROCESS_PREFIX))] = float(value)
    best = {key: next(by_metric[name] for name in TIMES if name in by_metric) for key, by_metric in times.items()}
    return {key: [by_number[number] for number in sorted(by_number)] for key, by_number in best.items()}


def timed_cases(data: Tables) -> dict[Key, TimedCase]:
    """Return the cases that were timed without a profiler and did not fail, in the order of their times."""
    metrics, cases = data.metrics, data.cases
    times = plain_times(metrics)
    with_params = cases[(cases["profiler"] == "plain") & (cases["params"] != "")]
    params = dict(zip(_keys(with_params), map(json.loads, with_params["params"]), strict=True))
    inaccurate = _keys(cases[cases["flags"].str.contains(f'"{Flag.INACCURATE}"', regex=False)])
    failed = failed_cases(data)
    numbers = times[["value", "ci_low", "ci_high"]].astype(float).to_numpy().tolist()
    return {
        key: TimedCase(Measure(median, None, low, high), params.get(key, {}), key in inaccurate, metric)
        for key, metric, (median, low, high) in zip(_keys(times), times["metric"], numbers, strict=True)
        if key not in failed
    }


def failed_cases(data: Tables) -> dict[Key, Failure]:
    """Return how the cases ended that failed without a profiler."""
    failed = data.cases[(data.cases["profiler"] == "plain") & data.cases["status"].isin(FAILED)]
    return dict(zip(_keys(failed), map(Failure, failed["status"], failed["reason"]), strict=True))


def _ended_cases(run: Manifest) -> set[Key]:
    """Return the cases whose process a signal ended under plain."""
    folders = {incident.source.rpartition("/")[0] for incident in run.incidents if incident.kind == IncidentKind.ENDED}
    jobs = [job for job in run.jobs if job.profiler == "plain" and job.folder in folders]
    return {(job.workload, case) for job in jobs for case in job.cases}


def _keys(frame: pd.DataFrame) -> list[Key]:
    return list(zip(frame["workload"], frame["case"], strict=True))


def _differences(*params: Mapping[str, Any]) -> dict[str, tuple[str | None, ...]]:
    """Return which parameters differ, as text in both runs."""
    texts = [{key: v if isinstance(v, str) else json.dumps(v) for key, v in point.items()} for point in params]
    keys = dict.fromkeys(key for point in params for key in point)
    differing = [key for key in keys if any(key not in point for point in params) or params[0][key] != params[1][key]]
    return {key: tuple(text.get(key) for text in texts) for key in differing}


def _are_devices_different(key: Key, *runs: Manifest) -> bool:
    """Return True if a case ran on other devices in one of the runs than in the other.

    The machine may have several models of GPUs, and what is known of its noise is of one of them. Where no run has
    recorded the device of the case, as for a program without torch, the GPUs of the machines count.
    """
    jobs = [[job for job in run.jobs_of(key[0]) if job.profiler == "plain" and key[1] in job.cases] for run in runs]
    recorded = {frozenset(device.device for job in run_jobs for device in job.devices) for run_jobs in jobs} - {
        frozenset()
    }
    used = recorded or {frozenset(gpu.name for gpu in run.machine.gpus or ()) for run in runs} - {frozenset()}
    return len(used) > 1


def _gpu_names(manifest: Manifest) -> str:
    """Return the GPUs of a run; empty where its record does not name them."""
    gpus = manifest.machine.gpus
    return "" if gpus is None else ", ".join(gpu.name for gpu in gpus) or "no GPU"
