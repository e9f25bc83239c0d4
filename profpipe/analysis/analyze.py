"""Turn the tables of a run into findings.

Times of different profilers never meet in one ratio: each workload has one basis for its times, and one profiler whose
kernels give its shares.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.analysis import (
    cluster,
    phases,
    profiler_agreement,
    roofline,
    steps,
    study_tables,
    timeline,
    validity,
)
from profpipe.analysis.case_index import CPU_ROWS, CaseIndex, find_ranks
from profpipe.analysis.case_results import (
    are_comparable,
    baseline_of,
    case_results,
    choose_time_source,
    judge_win,
    with_grades,
)
from profpipe.analysis.cases import find_axes, order
from profpipe.analysis.findings import (
    CaseResult,
    DoubtCause,
    Findings,
    Iteration,
    Shape,
    WorkloadFindings,
)
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import SwitchCost, by_preference, find_phases, switch_cost, top_kernels
from profpipe.measure.flags import Flag
from profpipe.results.manifest import Manifest
from profpipe.results.schema import ALL, Tables

#: Kernels of a case that a report can show, unless the pipeline file asks for another number.
TOP = 10


def analyze(tables: Tables, run: Manifest) -> Findings:
    """Return all findings."""
    names = dict.fromkeys(name for table in ALL for name in getattr(tables, table.name)["workload"].unique())
    expectations = validity.expectations(tables, run)
    workloads = [_workload_data(tables, str(name), run) for name in names]
    results_on = functools.partial(case_results, run=run)
    studies, plots = (
        study_tables.fill_studies(entries, workloads, results_on)
        for entries in ((run.pipeline.tables, run.pipeline.plots) if run.pipeline else ((), ()))
    )
    duplicates = validity.find_duplicates(workloads)
    unreliable = {(e.workload, e.case): DoubtCause.WRONG_KERNELS for e in expectations if not e.is_met}
    unreliable |= {(timed.workload, timed.case): DoubtCause.CONTRADICTED for pair in duplicates for timed in pair}
    return Findings(
        workloads=tuple(
            _workload(
                data, run, {case: why for (name, case), why in unreliable.items() if name == data.name}, len(workloads)
            )
            for data in workloads
        ),
        studies=studies,
        plots=plots,
        not_run=validity.not_run(tables, run),
        pending=validity.pending(tables, run),
        has_ended=run.ended is not None,
        expectations=expectations,
        coverage=validity.coverage(tables, run),
        unattributed=validity.unattributed(tables, run),
        unseen=validity.unseen(tables),
        launch_counts=tuple(counts for data in workloads for counts in profiler_agreement.compare_launches(data)),
        duplicates=duplicates,
    )


def _workload_data(tables: Tables, name: str, run: Manifest) -> WorkloadFindings:
    declared = run.workload(name)
    frames = {table.name: getattr(tables, table.name) for table in ALL}
    workload_tables = Tables(**{table: frame[frame["workload"] == name] for table, frame in frames.items()})
    planned = [case for job in run.jobs_of(name) for case in job.cases]
    is_command = run.is_command(name)
    index = CaseIndex.of(workload_tables, is_command)
    jobs, refused = run.jobs_of(name), {file.source for file in run.refused}
    # A span of a program is no iteration of it.
    is_whole = not (declared and declared.capture) and not any(job.span for job in jobs)
    breakdowns = index.breakdowns(once=is_command and is_whole)
    source = choose_time_source(index, breakdowns)
    profiler = validity.preferred(workload_tables.kernels)
    if index.step_totals and profiler not in {name for _, name in index.step_totals}:
        with_steps = {name for _, name in index.step_totals}
        profiler = next(iter(by_preference(with_steps)), profiler)
    layout = vars(find_axes(workload_tables, declared, planned))
    peaks, rates = roofline.rates_of(name, run)
    of_profiler = (file for file in run.files if profiler in (file.tool, *Path(file.source).parts[2:3]))
    cpu_rows = next((file.rows for file in of_profiler if file.rows), CPU_ROWS)
    return WorkloadFindings(
        **layout,
        name=name,
        declared=declared,
        # A job whose file could not be read says nothing of what the program used.
        jobs=[job for job in jobs if refused.isdisjoint(file.path for file in job.files)],
        has_no_gpu=run.machine.gpus == (),
        recorded=index,
        breakdowns=breakdowns,
        time_source=source and replace(source, rows=cpu_rows),
        kernel_profiler=profiler,
        nodes=cluster.read_nodes(workload_tables, run, name, source.profiler if source else ""),
        peaks=peaks,
        rates=rates,
        cpu_rows=cpu_rows,
    )


def _workload(
    data: WorkloadFindings, run: Manifest, unreliable: Mapping[str, DoubtCause], workloads: int
) -> WorkloadFindings:
    name, declared, index = data.name, data.declared, data.recorded
    kernels = index.tables.kernels
    counters = roofline.collect_counters(index, data.params, dict(declared.ncu.targets) if declared else {})
    cases = case_results(data, data.time_source, run)
    cases = {id: replace(c, limit=roofline.limit(index, c, data.rates, counters[id])) for id, c in cases.items()}
    divided = [
        (c.id, c.breakdown.iterations, index.totals[c.id, c.breakdown.profiler]) for c in cases.values() if c.breakdown
    ]
    with_steps = _cases_that_may_have_steps(data, cases)
    own_steps = steps.find_steps(index, with_steps, data.params, declared, run.jobs_of(name))
    targets = {name: target for name, target in (declared.targets if declared else ()) if target}
    cases = {id: with_grades(case, targets, counters[id], own_steps.of(id)) for id, case in cases.items()}
    # The ranges of a program are of the whole recording, also where its kernels are those of a step.
    whole = {id: index.capture_totals[id, case.breakdown.profiler] for id, case in cases.items() if case.breakdown}
    kernel_phases = {
        id: find_phases(whole[id], id, count, joins_steps=own_steps.of(id) is not None) for id, count, _ in divided
    }
    # The maximum SM clock of the GPUs that the workload's jobs ran on, where they share it.
    devices = {entry.device for job in run.jobs_of(name) for entry in job.devices}
    clocks = {gpu.max_sm_clock_hz for gpu in run.machine.gpus or () if not devices or gpu.name in devices}
    highest_clock = clocks.pop() if len(clocks) == 1 else None
    conditions = profiler_agreement.Conditions(data, run, counters, highest_clock)
    agreements = (
        profiler_agreement.compare_profilers(case, data.breakdowns.get(id, {}), conditions, counters[id])
        for id, case in cases.items()
        if own_steps.of(id) is None
    )
    requested = run.pipeline.report.top_kernels if run.pipeline else None
    top = (top_kernels(totals, id, count, requested or TOP) for id, count, totals in divided)
    plain_folder = next((job.folder for job in run.jobs_of(name) if job.profiler == "plain"), "")
    return replace(
        data,
        shapes=tuple(_shapes(cases, data, unreliable)),
        variants=tuple(dict.fromkeys(case.variant for case in cases.values())),
        launches=_count_launches(kernels, "profiler"),
        untimed=_count_launches(kernels[kernels["total_ns"].isna()], ["case", "profiler"]),
        top=tuple(itertools.chain.from_iterable(top)),
        phases=tuple(itertools.chain.from_iterable(kernel_phases.values())),
        phase_work=tuple(phases.find_phase_work(index.numbers, cases, kernel_phases, data.rates)),
        host_phases=tuple(phases.find_host_phases(index.tables.ranges, cases.keys() - data.breakdowns.keys())),
        # The ranks of a program with steps are among its steps.
        ranks=tuple(find_ranks(index, [id for id in data.params if own_steps.of(id) is None])),
        steps=own_steps,
        timelines=timeline.find_timelines(
            index.tables.timeline,
            index.tables.steps,
            sorted(cases, key=lambda id: not cases[id].is_baseline),
            workloads,
        ),
        memory=tuple(phases.read_memory(index.numbers, data.params, plain_folder)),
        agreements=tuple(filter(None, agreements)),
        top_kernels=requested,
        counters=tuple(itertools.chain.from_iterable(counters.values())),
        targets=targets,
        highest_clock=highest_clock,
        data_sheet=roofline.data_sheet_of(name, run),
        price=run.pipeline.report.price if run.pipeline else None,
    )


def _cases_that_may_have_steps(data: WorkloadFindings, cases: Mapping[str, CaseResult]) -> list[str]:
    """Return the cases without those that the harness measured: their times are of calls, and they have no steps."""
    with_steps = set(data.recorded.tables.steps["case"])
    calls = {id for id, case in cases.items() if case.breakdown and case.breakdown.iterations and not data.is_command}
    return [id for id in cases if id in with_steps or id not in calls]


def _count_launches(kernels: pd.DataFrame, by: str | list[str]) -> dict[Any, int]:
    """Count kernel launches by the columns ``by``; copies and sets are none."""
    launched = kernels[kernels["kind"].isin(["kernel", "graph"])]
    return {key: int(calls) for key, calls in launched.groupby(by, sort=False)["calls"].sum().items()}


def _shapes(
    cases: Mapping[str, CaseResult], data: WorkloadFindings, unreliable: Mapping[str, DoubtCause]
) -> Iterator[Shape]:
    by_shape = grouped((case.shape, case) for case in cases.values())
    for axes in order(by_shape):
        shape_cases = sorted(by_shape[axes], key=lambda case: case.time.ns if case.time else math.inf)
        win = judge_win(shape_cases, unreliable, data.nodes)
        yield Shape(axes, tuple(shape_cases), tuple(_switch_costs(shape_cases, cases, data)), win)


def _switch_costs(
    shape_cases: Iterable[CaseResult], cases: Mapping[str, CaseResult], data: WorkloadFindings
) -> Iterator[SwitchCost]:
    for case in shape_cases:
        base = baseline_of(case, cases, data)
        is_unlike = Flag.UNLIKE_NODES in case.flags
        if base is None or case.is_baseline or is_unlike or not are_comparable(base, case):
            continue
        assert base.breakdown and case.breakdown
        accuracy = {one.accuracy.flag for one in (base, case) if one.accuracy}
        # Without a check the kernel times are still shown, with the flag.
        if Flag.INACCURATE not in accuracy:
            # Kernels of a whole process are not compared with its steps.
            of_steps = data.timed_quantity == "step"
            is_alike = of_steps == (data.iteration is Iteration.STEP)
            measured = case.speedup if is_alike and "time" in case.values and "time" in base.values else None
            flag = str(Flag.UNCHECKED) if Flag.UNCHECKED in accuracy else ""
            yield switch_cost(case.variant, base.breakdown, case.breakdown, measured, flag)
