"""Tables -> findings: shares, speed-ups, the cost of a swap, the agreement of profilers.

Times of different profilers are never mixed in one ratio: each workload has one basis for its times and one profiler
whose kernels stand for its shares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from profpipe.analysis import (
    agreement,
    by_rank,
    doubts,
    host_phases,
    limits,
    memory,
    ncu_figures,
    phase_work,
    same_launches,
    shares,
    studies,
    twice,
    wins,
)
from profpipe.analysis.limits import Rates
from profpipe.analysis.recorded import OF_ITS_PROCESS, Number, Recorded
from profpipe.analysis.study_cases import Material
from profpipe.findings import (
    Axes,
    Basis,
    Findings,
    Limit,
    Measure,
    Overhead,
    Point,
    Shape,
    Split,
    Swap,
    WorkloadFindings,
)
from profpipe.kernel_findings import Counters, KernelRow, Phase
from profpipe.phase_findings import PhaseWork
from profpipe.points import Layout, lay_out, order
from profpipe.study_findings import Study
from profpipe.tables import ALL, FAILED, Tables
from profpipe.tolerance import INACCURATE, UNCHECKED, Verdict, judge, limit_of, worst

#: Kernels listed for a case.
TOP = 8

Run = Mapping[str, Any]
Splits = Mapping[str, Mapping[str, Split]]


def analyze(tables: Tables, run: Run) -> Findings:
    """Everything the report says. ``run`` is the content of run.json; any key of it may be absent."""
    names = dict.fromkeys(name for table in ALL for name in getattr(tables, table.name)["workload"])
    expectations = doubts.expectations(tables, run)
    unseen = doubts.unseen(tables)
    doubted = {(u.workload, case): f"{u.profiler} saw nothing of it run" for u in unseen for case in u.cases}
    unmet = [(e.workload, e.case) for e in expectations if not e.met]
    doubted |= dict.fromkeys(unmet, "it did not run the kernels that were asked for")
    materials = [_material(_only(tables, name), str(name), run) for name in names]
    unlike = twice.found(materials)
    visits = [visit for pair in unlike for visit in (pair.longer, pair.shorter)]
    doubted |= {(visit.workload, visit.case): "it took another time in another workload" for visit in visits}
    return Findings(
        workloads=tuple(
            _workload(m, run, {case: why for (workload, case), why in doubted.items() if workload == m.name})
            for m in materials
        ),
        studies=_studies("tables", materials, run),
        plots=_studies("plots", materials, run),
        not_run=doubts.not_run(tables, run),
        expectations=expectations,
        coverage=doubts.coverage(tables, run),
        unattributed=doubts.unattributed(tables, run),
        unseen=unseen,
        launches=tuple(found for m in materials for found in same_launches.counted(m)),
        twice=unlike,
    )


def _studies(part: str, materials: Sequence[Material], run: Run) -> tuple[Study, ...]:
    """What the pipeline file asks for under ``part``."""
    entries = (run.get("pipeline") or {}).get(part) or ()
    return studies.tabulate(entries, materials, functools.partial(_points_on, run=run))


def _only(tables: Tables, workload: str) -> Tables:
    frames = {table.name: getattr(tables, table.name) for table in ALL}
    return Tables(**{name: frame[frame["workload"] == workload] for name, frame in frames.items()})


def _material(tables: Tables, name: str, run: Run) -> Material:
    declared = ((run.get("pipeline") or {}).get("workloads") or {}).get(name) or {}
    planned = [case for job in run.get("jobs") or () if job.get("workload") == name for case in job.get("cases") or ()]
    layout, recorded = lay_out(tables, name, declared, planned), Recorded.of(tables)
    is_command = bool(declared.get("command"))
    splits = recorded.splits(once=is_command)
    basis = _basis(recorded, splits, "wall" if is_command else "time")
    return Material(name, declared, layout, recorded, splits, basis, doubts.preferred(tables.kernels))


def _points_on(material: Material, basis: Basis | None, run: Run) -> dict[str, Point]:
    """The cases of a workload with their times, rates and marks on ``basis``."""
    points = _points(material, basis, Rates.of_workload(material.name, run)[0])
    return _marked(points, limits.overheads(material.recorded.numbers), basis)


def _workload(material: Material, run: Run, doubted: Mapping[str, str]) -> WorkloadFindings:
    name, declared, layout, recorded = material.name, material.declared, material.layout, material.recorded
    splits, basis = material.splits, material.basis
    tables = recorded.tables
    targets = (declared.get("ncu") or {}).get("targets") or {}
    counters = {case: ncu_figures.of_case(recorded, case, targets) for case in layout.params}
    overheads = tuple(limits.overheads(recorded.numbers))
    peaks, rates = Rates.of_workload(name, run)
    points = _points_on(material, basis, run)
    points = {c: replace(p, limit=_limit(recorded, p, rates, counters[c])) for c, p in points.items()}
    highest_clock = _highest_clock(run, name)
    setting = agreement.Setting.of(run, name, counters, recorded, highest_clock)
    phases = {case: _phases(recorded, point) for case, point in points.items()}
    return WorkloadFindings(
        name=name,
        fixed=layout.fixed,
        varying=layout.varying,
        compare=layout.compare,
        baseline=layout.baseline,
        basis=basis,
        kernel_profiler=material.profiler,
        shapes=tuple(_shape(axes, points, layout, doubted) for axes in order(p.shape for p in points.values())),
        variants=tuple(dict.fromkeys(point.variant for point in points.values())),
        shared_marks=_shared_marks(points.values()),
        launches=_launches(tables.kernels, "profiler"),
        untimed=_launches(tables.kernels[tables.kernels["total_ns"].isna()], ["case", "profiler"]),
        asked_samples=declared.get("repeats"),
        top=tuple(row for point in points.values() for row in _top(recorded, point)),
        phases=tuple(phase for own in phases.values() for phase in own),
        phase_work=tuple(_phase_work(recorded, points, phases, rates)),
        host_phases=tuple(host_phases.found(tables.ranges, points.keys() - splits.keys())),
        ranks=tuple(by_rank.found(recorded, layout.params)),
        memory=tuple(memory.records(recorded.numbers, layout.params, _plain_folder(run, name))),
        agreements=tuple(
            found
            for case, point in points.items()
            if (found := agreement.agree(point, splits.get(case, {}), recorded.tallies, setting, counters[case]))
        ),
        overheads=overheads,
        counters=tuple(row for rows in counters.values() for row in rows),
        targets=targets if any(counters.values()) else {},
        ridges=rates.ridges,
        rates_from=rates.source,
        rates_measured=rates is not peaks,
        highest_clock=highest_clock,
        tolerance=declared.get("tolerance") or {},
    )


def _marked(points: Mapping[str, Point], overheads: Iterable[Overhead], basis: Basis | None) -> dict[str, Point]:
    """The points with profiler_overhead, where their times are that profiler's, and the marks that are their own."""
    slowed = {o.case for o in overheads if basis and o.profiler == basis.profiler and o.marked}
    marked = {c: replace(p, marks=(*p.marks, "profiler_overhead")) if c in slowed else p for c, p in points.items()}
    shared = _shared_marks(marked.values())
    return {c: replace(p, own_marks=tuple(m for m in p.marks if m not in shared)) for c, p in marked.items()}


def _highest_clock(run: Run, workload: str) -> float | None:
    """Of the GPUs that its jobs say they ran on, of all where none says; None where these differ in it."""
    jobs = (job for job in run.get("jobs") or () if job.get("workload") == workload)
    names = {one.get("device") for job in jobs for one in job.get("devices") or ()}
    gpus = [gpu for gpu in (run.get("machine") or {}).get("gpus") or () if not names or gpu.get("name") in names]
    clocks = {gpu.get("max_sm_clock_hz") for gpu in gpus}
    return clocks.pop() if len(clocks) == 1 else None


def _limit(recorded: Recorded, point: Point, rates: Rates, counters: Iterable[Counters]) -> Limit:
    split, moved = point.split, None
    if split is not None and split.iterations:
        own = recorded.tallies[point.id, split.profiler]
        launches = {name: calls / split.iterations for name, (calls, _) in own.by_name.items()}
        # ncu may have taken one launch of many, which tells nothing of others that do unlike work.
        told = [row for row in counters if row.calls >= launches.get(row.kernel, 0.0) or not own.unlike(row.kernel)]
        moved = limits.dram(point, told, launches)
    return limits.limit(point, rates, *(moved or (None, None)))


# --- times -----------------------------------------------------------------------------------------------------------


def _basis(recorded: Recorded, splits: Splits, timed_as: str) -> Basis | None:
    """Timed calls, unless another profiler has at least twice as many cases; then sums of kernels, nsys's first."""
    timed = [key for key, own in recorded.numbers.items() if key[1:] == ("plain", "") and "time" in own]
    cover = {Basis("plain", timed_as): len(timed)}
    for profiler in shares.PREFERENCE:
        seen = [own[profiler] for own in splits.values() if profiler in own]
        if seen:
            cover[Basis(profiler, seen[0].kind)] = len(seen)
    return next((basis for basis, count in cover.items() if count and 2 * count > max(cover.values())), None)


def _measure(own: Mapping[str, Number], splits: Mapping[str, Split], basis: Basis | None) -> Measure | None:
    """The time of a case on ``basis``; ``own`` are its numbers under that profiler."""
    if basis is None:
        return None
    if not basis.timed:
        split = splits.get(basis.profiler)
        return Measure(split.total.ns, split.iterations) if split else None
    if (time := own.get("time")) is None:
        return None
    p10, p90, cv = (own[name].value if name in own else None for name in ("time_p10", "time_p90", "time_cv"))
    n = None if pd.isna(time.n) else int(time.n)
    return Measure(time.value, n, _known(time.ci_low), _known(time.ci_high), p10, p90, cv)


def _known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


# --- points ----------------------------------------------------------------------------------------------------------


def _launches(kernels: pd.DataFrame, by: str | list[str]) -> dict[Any, int]:
    """By the columns ``by``; copies and sets are none."""
    launched = kernels[kernels["kind"].isin(["kernel", "graph"])]
    return {key: int(calls) for key, calls in launched.groupby(by, sort=False)["calls"].sum().items()}


def _points(material: Material, basis: Basis | None, peaks: Rates) -> dict[str, Point]:
    """Each case with its time, its rates and, once all are known, its speed-up over the baseline."""
    points = {}
    layout, recorded, splits, declared = material.layout, material.recorded, material.splits, material.declared
    for case, params in layout.params.items():
        numbers = recorded.numbers.get((case, basis.profiler if basis else "", ""), {})
        # Of one that was interrupted what there is is shown: it has not failed.
        became = recorded.statuses.get(case, {}).get(basis.profiler, "ok") if basis else "ok"
        time = None if became in FAILED else _measure(numbers, splits.get(case, {}), basis)
        point = Point(
            id=case,
            params=params,
            variant=layout.variant(case),
            shape=layout.shape(case),
            fate="" if time else _fate(recorded.statuses.get(case, {}), basis),
            time=time,
            split=splits.get(case, {}).get(material.profiler or ""),
            values=_values(recorded, case),
            is_baseline=layout.baseline_of(case) == case,
        )
        point = replace(_with_rates(point, peaks), accuracy=_accuracy(recorded, point, declared))
        point = replace(point, marks=_marks(recorded, point, basis, declared, peaks))
        own = "host_bound" not in point.marks and basis is not None and basis.timed and limits.starves(point)
        points[case] = replace(point, marks=(*point.marks, "host_bound")) if own else point
    return {case: _with_speedup(point, _baseline(point, points, layout)) for case, point in points.items()}


def _baseline(point: Point, points: Mapping[str, Point], layout: Layout) -> Point | None:
    name = layout.baseline_of(point.id)
    return None if name is None else points.get(name)


def _fate(statuses: Mapping[str, str], basis: Basis | None) -> str:
    """Why a case has no time: its status under the profiler that times the others, else under any."""
    first = statuses.get(basis.profiler, "ok") if basis else "ok"
    return next((status for status in (first, *statuses.values()) if status != "ok"), "")


def _values(recorded: Recorded, case: str) -> dict[str, float]:
    """Every number that `plain` and, where it is silent, other profilers' processes recorded for the case itself.

    Of errors and memory of several processes the worst. The host issues a call no more slowly than the loop ran that
    profilers see, which runs of before 0.2 did not hold it to.
    """
    found: dict[str, float] = {}
    for profiler in ("plain", *shares.PREFERENCE):
        for metric, number in recorded.numbers.get((case, profiler, ""), {}).items():
            if profiler == "plain" or not metric.startswith(OF_ITS_PROCESS):
                found.setdefault(metric, number.value)
    if "issue" in found:
        found["issue"] = min(found["issue"], found.get("loop_wall", math.inf))
    return found | by_rank.worst(recorded, case)


def _with_rates(point: Point, peaks: Rates) -> Point:
    """FLOP/s and bytes/s of a call, and their share of what the machine can give at most.

    A sum over an unknown number of calls (``n`` missing) gives no rate.
    """
    if point.time is None or point.time.ns <= 0 or point.time.n is None:
        return point
    flops, moved = point.values.get("flops"), point.values.get("bytes_moved")
    # Of sparse work only what is done can be held against a peak; its dense equivalent may well lie above.
    done = point.values.get("flops_effective", flops)
    peak_flops, peak_bytes, per_s = peaks.flops_of(point.params, point.values), peaks.bytes_per_s, 1e9 / point.time.ns
    return replace(
        point,
        tflops=flops * per_s / 1e12 if flops else None,
        gbytes_per_s=moved * per_s / 1e9 if moved else None,
        of_peak_flops=done * per_s / peak_flops if done and peak_flops else None,
        of_peak_bytes=moved * per_s / peak_bytes if moved and peak_bytes else None,
    )


def _marks(
    recorded: Recorded, point: Point, basis: Basis | None, declared: Mapping[str, Any], peaks: Rates
) -> tuple[str, ...]:
    """The harness's marks for the basis, and those that only the whole run shows."""
    if basis is None:
        return ()
    marks = list(recorded.flags.get((point.id, basis.profiler), ()))
    asked, time = declared.get("repeats"), point.time
    if asked and time and time.n is not None and time.n < asked and not declared.get("command"):
        marks.append("too_few_samples")
    if basis.quantity == "kernel" and point.split and point.split.idle and point.split.idle > limits.HOST_BOUND:
        marks.append("host_bound")
    if basis.timed and by_rank.waited(recorded, point.id):
        marks.append("waited")
    of_most = (point.of_peak_flops or 0) / peaks.headroom(point.params, point.values)
    if max(of_most, point.of_peak_bytes or 0) > 1:
        marks.append("above_peak")
    if point.accuracy is not None:
        # What the pipeline of this run says of its numbers goes before what a process had written.
        marks = [m for m in marks if m != INACCURATE] + [m for m in [point.accuracy.mark] if m]
    return tuple(dict.fromkeys(marks))


def _accuracy(recorded: Recorded, point: Point, declared: Mapping[str, Any]) -> Verdict | None:
    """Of a case with a time, by the numbers that its check gave; where the tolerance is not known, by its mark."""
    if point.time is None:
        return None
    limits = declared.get("tolerance") or {}
    verdict, found_so = judge(point.values, limits), INACCURATE in recorded.flags.get((point.id, "plain"), ())
    # A NaN is stored as the worst value of its measure, which says no more of one that has no limit.
    nans = [m for m, value in point.values.items() if value == worst(m) and limit_of(m, limits) is None]
    if found_so and not verdict.mark and (nans or not limits):
        return Verdict(INACCURATE, f"no number: {', '.join(nans)}" if nans else "")
    return verdict if limits or verdict.mark else None


def _shared_marks(points: Iterable[Point]) -> tuple[str, ...]:
    timed = [point.marks for point in points if point.time]
    return tuple(mark for mark in timed[0] if all(mark in marks for marks in timed)) if len(timed) > 1 else ()


def _with_speedup(point: Point, base: Point | None) -> Point:
    """A result outside the tolerance has no speed-up, nor one over it: they are two computations."""
    if base is None or point.barred:
        return point
    if base.barred:
        return replace(point, baseline_mark=base.accuracy.mark if base.accuracy else "")
    kernel = call = None
    # A table from elsewhere may hold a time of 0.
    if base.time and point.time and point.time.ns > 0:
        call = base.time.ns / point.time.ns
    if _alike(base, point) and base.split and point.split and point.split.total.ns > 0:
        kernel = base.split.total.ns / point.split.total.ns
    return replace(point, speedup=call, kernel_speedup=kernel)


def _alike(base: Point, point: Point) -> bool:
    """Whether both are sums of the same: where a capture has lost a case's kernels, its CPU operators stand alone."""
    return bool(base.split and point.split and base.split.kind == point.split.kind)


def _shape(axes: Axes, points: Mapping[str, Point], layout: Layout, doubted: Mapping[str, str]) -> Shape:
    own = [point for point in points.values() if point.shape == axes]
    own.sort(key=lambda point: point.time.ns if point.time else float("inf"))
    return Shape(axes, tuple(own), tuple(_swaps(own, points, layout)), wins.judge(own, doubted))


def _swaps(own: Iterable[Point], points: Mapping[str, Point], layout: Layout) -> Iterator[Swap]:
    for point in own:
        base = _baseline(point, points, layout)
        if base is None or point.is_baseline or not base.split or not point.split or not _alike(base, point):
            continue
        doubts = {one.accuracy.mark for one in (base, point) if one.accuracy}
        # Where nobody compared the results the kernels' times are all that there is, and say so.
        if INACCURATE not in doubts:
            measured = point.speedup if "time" in point.values and "time" in base.values else None
            found = shares.swap(point.variant, base.split, point.split, measured)
            yield replace(found, mark=UNCHECKED) if UNCHECKED in doubts else found


# --- the rest --------------------------------------------------------------------------------------------------------


def _top(recorded: Recorded, point: Point) -> list[KernelRow]:
    if point.split is None:
        return []
    own = recorded.tallies[point.id, point.split.profiler]
    return shares.top_kernels(own, point.id, point.split.iterations, TOP)


def _phases(recorded: Recorded, point: Point) -> list[Phase]:
    if point.split is None:
        return []
    return shares.phases(recorded.tallies[point.id, point.split.profiler], point.id, point.split.iterations)


def _phase_work(
    recorded: Recorded, points: Mapping[str, Point], phases: Mapping[str, list[Phase]], rates: Rates
) -> Iterator[PhaseWork]:
    for case, work in phase_work.declared(recorded.numbers).items():
        if case in points:
            yield from phase_work.of_case(points[case], work, phases[case], rates)


def _plain_folder(run: Run, workload: str) -> str:
    """Where the files lie that the workload kept, in the run's folder."""
    jobs = (j for j in run.get("jobs") or () if j.get("workload") == workload and j.get("profiler") == "plain")
    return next((str(job.get("folder") or "") for job in jobs), "")
