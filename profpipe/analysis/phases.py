"""Find the cost of the workload's ranges: host time where no kernel ran, kernel time of declared work, and memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from profpipe.analysis.case_index import MetricRow
from profpipe.analysis.findings import CaseResult
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import Phase, by_preference, rows
from profpipe.analysis.roofline import FAR_BELOW, OF_TYPE, flops_rate
from profpipe.results.manifest import PeakRates

_WORK = ("flops", "bytes_moved")
_FIGURES = ("range", "instances", "wall_ns")


def find_host_phases(ranges: pd.DataFrame, cases: Collection[str]) -> Iterator[Phase]:
    """Yield the ranges of ``cases`` that one profiler timed, summed over processes.

    A profiler on a machine without a GPU records ranges and no kernel.
    """
    timed = ranges[ranges["wall_ns"].notna() & ranges["case"].isin(cases)]
    sums = timed.groupby(["case", "profiler", "range"], sort=False)[["instances", "wall_ns"]].sum().reset_index()
    for case, case_rows in sums.groupby("case", sort=False):
        seen = set(case_rows.loc[case_rows["range"] != "", "profiler"])
        profiler = next(iter(by_preference(seen)), "")
        figures = {path: (n, ns) for path, n, ns in rows(case_rows[case_rows["profiler"] == profiler], *_FIGURES)}
        calls, call_ns = figures.pop("", (0, 0.0))
        for path, (instances, wall) in figures.items():
            share, per = wall / call_ns if call_ns else None, calls or 1
            yield Phase(str(case), path, instances / per, wall / per, share, profiler, is_per_call=bool(calls))


def find_phase_work(
    numbers: Mapping[tuple[str, str, str], Mapping[str, MetricRow]],
    cases: Mapping[str, CaseResult],
    phases: Mapping[str, Sequence[Phase]],
    rates: PeakRates,
) -> Iterator[Phase]:
    """Yield the ``phases`` of ``cases`` whose work is declared.

    `plain` writes the work of ranges; under other profilers a subject is a kernel's name.
    """
    declared = grouped(
        (case, (path, {name: n.value for name, n in metrics.items() if name in _WORK or name.startswith(OF_TYPE)}))
        for (case, profiler, path), metrics in numbers.items()
        if profiler == "plain" and path and case in cases
    )
    for case, works in declared.items():
        yield from _work_of_case(cases[case], {path: work for path, work in works if work}, phases.get(case, ()), rates)


def _work_of_case(
    point: CaseResult, work: Mapping[str, Mapping[str, float]], phases: Iterable[Phase], rates: PeakRates
) -> Iterator[Phase]:
    """Yield the ``phases`` of one profiler that have ``work``; none where the number of calls is unknown."""
    if point.breakdown is None or point.breakdown.iterations is None:
        return
    timed = [phase for phase in phases if phase.phase in work and phase.ns > 0]
    time, all_flops = sum(phase.ns for phase in timed), sum(work[phase.phase].get("flops", 0.0) for phase in timed)
    bandwidth = rates.bytes_per_s
    for phase in timed:
        peak, (flops, moved) = flops_rate(rates, point.params, work[phase.phase]), map(work[phase.phase].get, _WORK)
        of_flops = flops * 1e9 / phase.ns / peak if flops and peak else None
        of_bandwidth = moved * 1e9 / phase.ns / bandwidth if moved and bandwidth else None
        ridge = peak / bandwidth if peak and bandwidth else None
        limited_by = ""
        # As for whole calls: a phase far below both rates does something else than its declared work.
        if flops and moved and ridge and max(of_flops or 0.0, of_bandwidth or 0.0) >= FAR_BELOW:
            limited_by = "compute" if flops / moved > ridge else "memory"
        yield replace(
            phase,
            flops=flops,
            bytes_moved=moved,
            of_time=phase.ns / time,
            of_work=flops / all_flops if flops and all_flops else None,
            of_flops=of_flops,
            of_bandwidth=of_bandwidth,
            ridge=ridge,
            limited_by=limited_by,
        )
