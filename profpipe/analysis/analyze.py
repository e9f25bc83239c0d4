"""Turn the tables of a run into findings.

Times of different profilers never meet in one ratio: each workload has one basis for its times, and one profiler whose
kernels give its shares.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

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
    KernelFindings,
    PhaseFindings,
    RecordedWorkload,
    Shape,
    WorkloadFindings,
    WorkloadGpu,
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
    workloads = [_read_workload(tables, str(name), run) for name in names]
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
            _analyze_workload(
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


def _read_workload(tables: Tables, name: str, run: Manifest) -> RecordedWorkload:
    declared = run.workload(name)
    frames = {table.name: getattr(tables, table.name) for table in ALL}
    workload_tables = Tables(**{table: frame[frame["workload"] == name] for table, frame in frames.items()})
    jobs, refused = run.jobs_of(name), {file.source for file in run.refused}
    is_command = run.is_command(name)
    # A span of a program is no iteration of it.
    is_whole = not (declared and declared.capture) and not any(job.span for job in jobs)
    index = CaseIndex.of(workload_tables, is_command, is_command and is_whole)
    source = choose_time_source(index)
    profiler = validity.preferred(workload_tables.kernels)
    if index.step_totals and profiler not in {name for _, name in index.step_totals}:
        with_steps = {name for _, name in index.step_totals}
        profiler = next(iter(by_preference(with_steps)), profiler)
    of_profiler = (file for file in run.files if profiler in (file.tool, *Path(file.source).parts[2:3]))
    cpu_rows = next((file.rows for file in of_profiler if file.rows), CPU_ROWS)
    return RecordedWorkload(
        **vars(find_axes(workload_tables, declared, [case for job in jobs for case in job.cases])),
        name=name,
        declared=declared,
        # A job whose file could not be read says nothing of what the program used.
        jobs=[job for job in jobs if refused.isdisjoint(file.path for file in job.files)],
        recorded=index,
        time_source=source and replace(source, rows=cpu_rows),
        kernel_profiler=profiler,
        nodes=cluster.read_nodes(workload_tables, run, name, source.profiler if source else ""),
        gpu=_describe_gpu(name, run),
    )


def _count_uncounted(data: RecordedWorkload, run: Manifest) -> int:
    """Return how many cases that could be measured ncu left out, as it was to count the largest shape only."""
    if run.ended is None or data.declared is None or data.declared.ncu.shapes == "all":
        return 0
    case_rows = data.recorded.tables.cases
    measured, counted = (
        case_rows["case"][is_so] for is_so in (case_rows["status"] == "ok", case_rows["profiler"] == "ncu")
    )
    return len({*measured} - {*counted})


def _describe_gpu(name: str, run: Manifest) -> WorkloadGpu:
    # The maximum SM clock of the GPUs that the workload's jobs ran on, where they share it.
    devices = {entry.device for job in run.jobs_of(name) for entry in job.devices}
    clocks = {gpu.max_sm_clock_hz for gpu in run.machine.gpus or () if not devices or gpu.name in devices}
    return WorkloadGpu(
        *roofline.rates_of(name, run),
        roofline.data_sheet_of(name, run),
        highest_clock=clocks.pop() if len(clocks) == 1 else None,
        price=run.pipeline.report.price if run.pipeline else None,
        is_absent=run.machine.gpus == (),
    )


def _analyze_workload(
    data: RecordedWorkload, run: Manifest, unreliable: Mapping[str, DoubtCause], workloads: int
) -> WorkloadFindings:
    name, declared, index = data.name, data.declared, data.recorded
    counters = roofline.collect_counters(index, data.params, dict(declared.ncu.targets) if declared else {})
    cases = case_results(data, data.time_source, run)
    cases = {id: replace(c, limit=roofline.limit(index, c, data.gpu.rates, counters[id])) for id, c in cases.items()}
    divided = [
        (c.id, c.breakdown.iterations, index.totals[c.id, c.breakdown.profiler]) for c in cases.values() if c.breakdown
    ]
    with_steps = _cases_that_may_have_steps(data, cases)
    workload_steps = steps.find_steps(index, with_steps, data.params, declared, run.jobs_of(name))
    cases = {id: with_grades(case, data.targets, counters[id], workload_steps.of(id)) for id, case in cases.items()}
    # The ranges of a program are of the whole recording, also where its kernels are those of a step.
    whole = {id: index.capture_totals[id, case.breakdown.profiler] for id, case in cases.items() if case.breakdown}
    kernel_phases = {
        id: find_phases(whole[id], id, count, joins_steps=workload_steps.of(id) is not None) for id, count, _ in divided
    }
    without_steps = [id for id in cases if workload_steps.of(id) is None]
    conditions = profiler_agreement.ProfilerConditions(data, run, counters)
    agreements = (
        (id, profiler_agreement.compare_profilers(cases[id], data.breakdowns.get(id, {}), conditions, counters[id]))
        for id in without_steps
    )
    requested = run.pipeline.report.top_kernels if run.pipeline else None
    top = (top_kernels(totals, id, count, requested or TOP) for id, count, totals in divided)
    return WorkloadFindings(
        **{field.name: getattr(data, field.name) for field in fields(data)},
        shapes=tuple(_shapes(cases, data, unreliable)),
        kernels=KernelFindings(
            tuple(itertools.chain.from_iterable(top)),
            tuple(itertools.chain.from_iterable(counters.values())),
            requested,
            _count_uncounted(data, run),
        ),
        phases=PhaseFindings(
            kernels=tuple(itertools.chain.from_iterable(kernel_phases.values())),
            work=tuple(phases.find_phase_work(index.numbers, cases, kernel_phases, data.gpu.rates)),
            host=tuple(phases.find_host_phases(index.tables.ranges, cases.keys() - data.breakdowns.keys())),
        ),
        # The ranks of a program with steps are among its steps.
        ranks=tuple(find_ranks(index, without_steps)),
        steps=workload_steps,
        timelines=timeline.find_timelines(
            index.tables.timeline,
            index.tables.steps,
            sorted(cases, key=lambda id: not cases[id].is_baseline),
            workloads,
        ),
        agreements={id: times for id, times in agreements if times},
    )


def _cases_that_may_have_steps(data: RecordedWorkload, cases: Mapping[str, CaseResult]) -> list[str]:
    """Return the cases without those that the harness measured: their times are of calls, and they have no steps."""
    with_steps = set(data.recorded.tables.steps["case"])
    calls = {id for id, case in cases.items() if case.breakdown and case.breakdown.iterations and not data.is_command}
    return [id for id in cases if id in with_steps or id not in calls]


def _shapes(
    cases: Mapping[str, CaseResult], data: RecordedWorkload, unreliable: Mapping[str, DoubtCause]
) -> Iterator[Shape]:
    by_shape = grouped((case.shape, case) for case in cases.values())
    for axes in order(by_shape):
        shape_cases = sorted(by_shape[axes], key=lambda case: case.time.ns if case.time else math.inf)
        win = judge_win(shape_cases, unreliable, data.nodes)
        yield Shape(axes, tuple(shape_cases), tuple(_switch_costs(shape_cases, cases, data)), win)


def _switch_costs(
    shape_cases: Iterable[CaseResult], cases: Mapping[str, CaseResult], data: RecordedWorkload
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
