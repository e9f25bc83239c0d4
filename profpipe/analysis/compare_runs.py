"""Compare the times of two runs, case by case.

Processes of the same code differ by more than the intervals of their samples, and one of the two runs came first: a
drift of the machine looks like a difference. So a difference counts only where the spread between runs is known for
that case, GPU and driver. The spread of the processes of one session shows only that a difference is noise.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from profpipe.analysis.case_index import Measure
from profpipe.analysis.changes import Change, Failure, GateResult, judge_gate
from profpipe.analysis.kernels import rows
from profpipe.analysis.verdict import LEAST_FLOOR, quantile
from profpipe.job import IncidentKind
from profpipe.measure.flags import Flag
from profpipe.results.manifest import Manifest, Undecided
from profpipe.results.noise import Model, Noise
from profpipe.results.schema import FAILED, PROCESS_PREFIX, PROCESS_WALL, TIMES, Tables

#: The least and the largest time. A table may be damaged, and hold 0, a negative number, infinity or NaN.
POSSIBLE_NS: Final = (1e-9, 1e30)

#: (workload, case id).
Key = tuple[str, str]
Run = tuple[Tables, Manifest]


@dataclass(frozen=True)
class RunComparison:
    """The run B compared with A: the cases of A with a time, those that are compared first."""

    changes: tuple[Change, ...]
    #: The GPUs of A and of B, where they differ.
    gpus: tuple[str, str] | None = None
    is_b_unfinished: bool = False

    @property
    def timed(self) -> list[Change]:
        return [change for change in self.changes if not math.isnan(change.ratio)]

    @property
    def lost(self) -> list[Change]:
        """The cases that failed in B."""
        return [change for change in self.changes if change.failure]

    @property
    def changed_params(self) -> list[Change]:
        """The cases with other parameters in B."""
        return [change for change in self.changes if change.differing_params]

    @property
    def absent(self) -> list[Change]:
        """The cases without times of the same kind above 0 for another reason."""
        untimed = (change for change in self.changes if math.isnan(change.ratio))
        return [change for change in untimed if not change.failure and not change.differing_params]

    def judge_gate(self, percent: float) -> GateResult:
        """Return the result of a gate of ``percent``. If B has not ended, cases that it lacks count as failed."""
        undecided = Undecided.FAIL if self.is_b_unfinished else Undecided.REPORT
        return judge_gate(self.changes, percent, undecided, is_complete=not self.is_b_unfinished)


def compare_runs(
    a: Tables, b: Tables, manifest_a: Manifest, manifest_b: Manifest, noise: Model = MappingProxyType({})
) -> RunComparison:
    """Compare the cases of A that have a time with those of B, and the machines of both runs.

    A case is lost if it failed in B, and absent if B lacks its time, or has that of the process alone where A has that
    of the steps, or a time of either is none, or is the wall time of a process that a signal ended. It is not compared
    if its parameters differ. One without stored
    parameters, such as one of a file that was ingested, counts as one with the same parameters. ``noise`` has by
    workload and case how far processes of the same code lie apart on this machine.
    """
    times_b, failed_b = _read_times(b), failed_cases(b)
    params_a, params_b = _read_params(a), _read_params(b)
    processes_a, processes_b = plain_processes(a), plain_processes(b)
    inaccurate = {"A": _find_inaccurate(a), "B": _find_inaccurate(b)}
    timed, lost, absent, changed = [], [], [], []
    was_ended = _ended_cases(manifest_a) | _ended_cases(manifest_b)
    for key, (metric, before) in _read_times(a).items():
        (workload, case), (metric_b, after) = key, times_b.get(key, ("", before))
        of_a, of_b = params_a.get(key), params_b.get(key)
        if key in failed_b:
            lost.append(Change(workload=workload, case=case, failure=failed_b[key]))
        elif metric != metric_b or not all(POSSIBLE_NS[0] <= time.ns <= POSSIBLE_NS[1] for time in (before, after)):
            absent.append(Change(workload=workload, case=case))
        elif metric == PROCESS_WALL and key in was_ended:
            absent.append(Change(workload=workload, case=case, was_ended=True))
        elif of_a and of_b and of_a != of_b:
            changed.append(Change(workload=workload, case=case, differing_params=_differences(of_a, of_b)))
        else:
            case_noise = None if _are_devices_different(key, manifest_a, manifest_b) else noise.get(key, Noise())
            processes = processes_a.get(key, ()), processes_b.get(key, ())
            timed.append(
                Change(
                    workload=workload,
                    case=case,
                    a_ns=before.ns,
                    b_ns=after.ns,
                    is_beyond_noise=_is_beyond_noise(before, after, processes, case_noise),
                    inaccurate_in=tuple(side for side, keys in inaccurate.items() if key in keys),
                )
            )
    gpus = (_gpu_names(manifest_a), _gpu_names(manifest_b))
    return RunComparison(
        (*timed, *lost, *absent, *changed),
        gpus=gpus if all(gpus) and gpus[0] != gpus[1] else None,
        is_b_unfinished=manifest_b.is_run and not manifest_b.ended,
    )


def _is_beyond_noise(
    before: Measure, after: Measure, processes: tuple[Sequence[float], Sequence[float]], noise: Noise | None
) -> bool | None:
    """Return True if a difference is more than chance; None where the data do not tell.

    ``noise`` is None for a case that ran on two devices. Without the spread between runs, a drift of the machine may be
    the difference. Intervals that overlap show that it is noise.
    """
    limit = None if noise is None else _limit(*processes, noise)
    if before.overlaps(after) or (limit is not None and abs(math.log(after.ns / before.ns)) <= limit):
        return False
    return True if limit is not None and noise and noise.between else None


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


def _read_times(data: Tables) -> dict[Key, tuple[str, Measure]]:
    """Return the metric and the time of the cases that did not fail without a profiler, in the order of their times.

    Where the interval of a time is missing its ends are NaN, with which none overlaps.
    """
    times, failed = plain_times(data.metrics), failed_cases(data)
    numbers = times[["value", "ci_low", "ci_high"]].astype(float).to_numpy().tolist()
    return {
        key: (metric, Measure(median, None, low, high))
        for key, metric, (median, low, high) in zip(_keys(times), times["metric"], numbers, strict=True)
        if key not in failed
    }


def _read_params(data: Tables) -> dict[Key, dict[str, Any]]:
    stored = data.cases[(data.cases["profiler"] == "plain") & (data.cases["params"] != "")]
    return dict(zip(_keys(stored), map(json.loads, stored["params"]), strict=True))


def _find_inaccurate(data: Tables) -> set[Key]:
    return set(_keys(data.cases[data.cases["flags"].str.contains(f'"{Flag.INACCURATE}"', regex=False)]))


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
