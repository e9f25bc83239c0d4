"""Find what limits the trust in a run.

Missing cases, unexpected or unknown kernels, unattributed time, and cases with different times in two workloads do.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

import pandas as pd

from profpipe.analysis import cluster
from profpipe.analysis.case_index import MetricRow, has_waited
from profpipe.analysis.findings import ClassCoverage, DuplicateCase, Expectation, NotRun, RecordedWorkload, Unattributed
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import by_preference, device_rows, rows, unclassified
from profpipe.job import Status
from profpipe.measure.flags import Flag
from profpipe.results.manifest import JobEntry, Manifest
from profpipe.results.schema import Tables

#: The expectation of a workload that runs gemm, softmax and gemm instead of one attention kernel.
_UNFUSED = ("unfused", "math", "none")

#: Kernels of the harness: the cache flush between samples (``zero_`` of an int32 buffer), and ``torch.cuda._sleep``,
#: which measures the clock.
_HARNESS_KERNELS = r"FillFunctor<int>|spin_kernel"

#: Profilers that the harness starts for the measured iterations only: they record no set-up and no warm-up.
_ITERATIONS_ONLY = ("torch", "ncu")

#: (name, family, ns)
_AttentionKernel = tuple[str, str, float]


def not_run(tables: Tables, run: Manifest) -> tuple[NotRun, ...]:
    """Return the cases that did not end well, grouped by how they ended, and the jobs of which no case says so.

    Cases that ran out of memory are one group, although their allocations differ.
    """
    #: By workload and case, the profilers with a row.
    tried: dict[str, dict[str, set[str]]] = {}
    ended: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    names = ("workload", "case", "profiler", "status", "reason")
    # Such a case is among those that `pending` returns.
    unfinished = {(task.workload, case) for task in cluster.open_tasks(run) for case in task.cases}
    for workload, case, profiler, status, reason in rows(tables.cases, *names):
        tried.setdefault(workload, {}).setdefault(case, set()).add(profiler)
        is_pending = status == Status.INTERRUPTED and (workload, case) in unfinished
        if status not in ("ok", "") and not is_pending:
            key = workload, status, "" if status == Status.OOM else reason
            ended.setdefault(key, {}).setdefault(case, {}).setdefault(profiler, reason)
    groups: dict[tuple[tuple[str, str, str], frozenset[str]], dict[str, dict[str, str]]] = {}
    for key, cases in ended.items():
        for case, reasons in cases.items():
            # By the profilers under which it ended otherwise: one that was not to measure the case makes no difference.
            groups.setdefault((key, frozenset(tried[key[0]][case] - reasons.keys())), {})[case] = reasons
    named = {(key[0], profiler) for key, cases in ended.items() for reasons in cases.values() for profiler in reasons}
    seen = set(rows(tables.cases, "workload", "profiler"))
    jobs = [job for job in run.jobs if not (job.interrupted and not unfinished.isdisjoint(_cases_of(job)))]
    return (
        *(_group(key[0], Status(key[1]), reasons, tried[key[0]], run) for (key, _), reasons in groups.items()),
        *(
            NotRun(job.workload, job.status, job.reason, (job.profiler,), (), True, tuple(filter(None, [job.log])),
                   is_after_cases=_key(job) in seen)
            for job in jobs
            if job.status is not Status.OK and _key(job) not in named
        ),
    )  # fmt: skip


def _group(
    workload: str,
    status: Status,
    reasons: Mapping[str, Mapping[str, str]],
    tried: Mapping[str, Set[str]],
    run: Manifest,
) -> NotRun:
    """Return the cases of a group; ``reasons`` are by case and profiler, ``tried`` the profilers of each case."""
    profilers, reason = zip(*max(reasons.values(), key=len).items(), strict=True)
    jobs = [job for job in run.jobs_of(workload) if job.profiler in profilers and job.log]
    logs = tuple(dict.fromkeys(job.log for job in jobs if not job.cases or not reasons.keys().isdisjoint(job.cases)))
    is_whole = reasons.keys() == {case for case, names in tried.items() if not names.isdisjoint(profilers)}
    return NotRun(workload, status, reason[0], profilers, tuple(reasons), is_whole, logs)


def _cases_of(job: JobEntry) -> set[tuple[str, str]]:
    return {(job.workload, case) for case in job.cases}


def _key(job: JobEntry) -> tuple[str, str]:
    return job.workload, job.profiler


def pending(tables: Tables, run: Manifest) -> tuple[NotRun, ...]:
    """Return the planned cases that no job has, of a run that has not ended."""
    if run.ended:
        return ()
    if run.tasks:
        return cluster.find_unfinished(tables, run)
    done: dict[tuple[str, str], set[str]] = {}
    for job in run.jobs:
        done.setdefault(_key(job), set()).update(job.cases)
    groups: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
    for planned in run.planned:
        done_cases = done.get((planned.workload, planned.profiler))
        absent = () if done_cases is None else tuple(case for case in planned.cases if case not in done_cases)
        if done_cases is None or absent:
            groups.setdefault((planned.workload, absent, planned.cut_off), []).append(planned.profiler)
    return tuple(
        NotRun(workload, Status.INTERRUPTED, "", tuple(profilers), cases, is_whole_workload=not cases, is_cut_off=cut)
        for (workload, cases, cut), profilers in groups.items()
    )


def preferred(kernels: pd.DataFrame) -> str | None:
    """Return the profiler whose kernels represent a workload."""
    present = set(device_rows(kernels)["profiler"].unique())
    return next(iter(by_preference(present)), None)


def expectations(tables: Tables, run: Manifest) -> tuple[Expectation, ...]:
    """Return for each case that requests a kernel family, and of which kernels were recorded, whether the family ran.

    An expectation is about the names of GPU kernels: CPU operators do not count, launches without a time do.
    """
    names = ["workload", "case", "profiler", "kernel", "kernel_class", "kernel_family"]
    kernels = tables.kernels[(tables.kernels["kind"] == "kernel") & tables.kernels["workload"].isin(run.expects)]
    sums = kernels.groupby(names, sort=False)["total_ns"].sum().reset_index()
    recorded: dict[tuple[str, str], dict[str, list[_AttentionKernel]]] = {}
    for workload, case, profiler, kernel, kernel_class, family, ns in rows(sums, *names, "total_ns"):
        attention_kernels = recorded.setdefault((workload, case), {}).setdefault(profiler, [])
        if kernel_class == "attention":
            attention_kernels.append((kernel, family or "unnamed", ns))
    return tuple(
        _expectation(workload, case, family, next((seen[name] for name in by_preference(seen)), []))
        for workload, requested in run.expects.items()
        for case, family in requested.items()
        if family and (seen := recorded.get((workload, case)))
    )


def _expectation(workload: str, case: str, requested: str, attention: Collection[_AttentionKernel]) -> Expectation:
    by_family = grouped((family, ns) for _, family, ns in attention)
    families = tuple(sorted(by_family, key=lambda family: (-sum(by_family[family]), family)))
    # `sage2|sparge`: any of the two is requested, or the kernel's name fits both.
    wanted = set(requested.split("|"))
    is_met = not families if requested in _UNFUSED else any(wanted & set(family.split("|")) for family in families)
    is_copy = "fa2" in wanted and any("pytorch_flash" in kernel for kernel, *_ in attention)
    return Expectation(workload, case, requested, families, is_met, is_copy)


def coverage(tables: Tables, run: Manifest) -> tuple[ClassCoverage, ...]:
    """Return the classified share of each workload's kernel time, from the profiler that represents it."""
    minimum = run.pipeline.coverage.min_classified if run.pipeline else None
    coverages = []
    for workload, recorded in tables.kernels.groupby("workload", sort=False):
        if (profiler := preferred(recorded)) is not None:
            profiler_rows = recorded[recorded["profiler"] == profiler]
            inside = profiler_rows[profiler_rows["case"] != ""]
            # An ingested file may have no case at all.
            profiler_rows = device_rows(inside if len(inside) else profiler_rows)
            kind = str(profiler_rows["kind"].iloc[0])
            # Only a switch of attention's implementation rests on attention's share.
            is_compared = any(
                family and family not in _UNFUSED for family in run.expects.get(str(workload), {}).values()
            )
            attention = float(profiler_rows.loc[profiler_rows["kernel_class"] == "attention", "total_ns"].sum())
            share = attention / (float(profiler_rows["total_ns"].sum()) or 1.0) if is_compared else None
            coverages.append(
                ClassCoverage(str(workload), profiler, kind, *unclassified(profiler_rows, limit=5), minimum, share)
            )
    return tuple(coverages)


def unattributed(tables: Tables, run: Manifest) -> tuple[Unattributed, ...]:
    """Return the kernel time outside every case, of captures that have cases."""
    ours = {_key(job) for job in run.jobs if job.cases}
    outside_times = []
    for (workload, profiler), recorded in tables.kernels.groupby(["workload", "profiler"], sort=False):
        kernel_rows = device_rows(recorded)
        outside = kernel_rows[kernel_rows["case"] == ""]
        ns = float(outside["total_ns"].sum())
        if ns and len(outside) < len(kernel_rows):
            flush = float(outside.loc[outside["kernel"].str.contains(_HARNESS_KERNELS), "total_ns"].sum())
            share = ns / float(kernel_rows["total_ns"].sum())
            has_setup = (workload, profiler) in ours and profiler not in _ITERATIONS_ONLY
            outside_times.append(Unattributed(str(workload), str(profiler), ns, share, flush, has_setup))
    return tuple(outside_times)


def unseen(tables: Tables) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return by workload and profiler the cases that ended well without a kernel, where other cases have kernels.

    ncu does not count: it profiles selected kernels.
    """
    key = ["workload", "profiler"]
    seen = {pair: set(cases) - {""} for pair, cases in tables.kernels.groupby(key)["case"].unique().items()}
    ended = tables.cases[(tables.cases["status"] == "ok") & (tables.cases["profiler"] != "ncu")]
    missing_cases = {}
    for pair, cases in ended.groupby(key, sort=False)["case"]:
        missing = tuple(case for case in cases if case not in seen.get(pair, ()))
        if seen.get(pair) and missing:
            missing_cases[str(pair[0]), str(pair[1])] = missing
    return missing_cases


# --- duplicate cases --------------------------------------------------------------------------------------------------

#: From this ratio on times with disjoint intervals differ: clocks alone explain less.
_LEAST_RATIO = 1.15


def find_duplicates(workloads: Sequence[RecordedWorkload]) -> tuple[tuple[DuplicateCase, DuplicateCase], ...]:
    """Return the pairs of equal cases of two workloads whose times differ, the largest ratio first."""
    several = workloads if len(workloads) > 1 else ()
    unlike = []
    for same in grouped((key, (case, time)) for data in several for key, case, time in _timed(data)).values():
        for pair in itertools.combinations(sorted(same, key=lambda timed: -timed[0].ns), 2):
            (longer, long), (shorter, short) = pair
            is_apart = not (pd.isna(short.ci_high) or pd.isna(long.ci_low)) and short.ci_high < long.ci_low
            if longer.workload != shorter.workload and is_apart and longer.ns > _LEAST_RATIO * shorter.ns:
                unlike.append((longer, shorter))
    return tuple(sorted(unlike, key=lambda pair: -pair[0].ns / pair[1].ns))


def _timed(data: RecordedWorkload) -> Iterator[tuple[str, DuplicateCase, MetricRow]]:
    """Yield each timed case with a key that equal cases of other workloads share.

    A run records the names of environment variables without values, so a workload with variables equals no other.
    """
    declared, index = data.declared, data.recorded
    if declared is None or declared.script is None:
        return
    setting = [declared.script, declared.processes, declared.timing.mode, data.name if declared.env else ""]
    for case, params in data.params.items():
        time = index.numbers.get((case, "plain", ""), {}).get("time")
        # A time that includes other work, or that scatters, says nothing about the other workload's time.
        is_doubtful = not {Flag.OTHER_PROCESS, Flag.NOISY}.isdisjoint(index.flags.get((case, "plain"), ()))
        if time is not None and time.value > 0 and not is_doubtful and not has_waited(index, case):
            axes = tuple((axis, params[axis]) for axis in data.varying if axis in params)
            key = json.dumps([*setting, params], sort_keys=True, default=str)
            yield key, DuplicateCase(data.name, case, time.value, axes), time
