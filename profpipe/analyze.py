"""Tables -> findings: shares, speed-ups, the cost of a swap, the agreement of profilers.

Times of different profilers are never mixed in one ratio: each workload has one basis for its times and one profiler
whose kernels stand for its shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from profpipe import agreement, doubts, shares
from profpipe.findings import (
    Axes,
    Basis,
    Counters,
    Findings,
    KernelRow,
    Measure,
    Phase,
    Point,
    Shape,
    Split,
    Swap,
    WorkloadFindings,
)
from profpipe.points import Layout, lay_out, order
from profpipe.recorded import Number, Recorded
from profpipe.tables import ALL, Tables
from profpipe.tallies import Tally

#: Kernels listed for a case.
TOP = 8

#: More idle time than this inside a case's range, and its launches rather than its kernels are what one waits for.
_HOST_BOUND = 0.5

#: Spellings of data types in parameters, to those of the machine's peaks.
_DTYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32", "float64": "fp64"}


def analyze(tables: Tables, run: Mapping[str, Any]) -> Findings:
    """Everything the report says. ``run`` is the content of run.json; any key of it may be absent."""
    names = dict.fromkeys(name for table in ALL for name in getattr(tables, table.name)["workload"])
    return Findings(
        workloads=tuple(_workload(_only(tables, name), str(name), run) for name in names),
        not_run=doubts.not_run(tables, run),
        expectations=doubts.expectations(tables, run),
        coverage=doubts.coverage(tables, run),
        unattributed=doubts.unattributed(tables),
    )


def _only(tables: Tables, workload: str) -> Tables:
    frames = {table.name: getattr(tables, table.name) for table in ALL}
    return Tables(**{name: frame[frame["workload"] == workload] for name, frame in frames.items()})


def _workload(tables: Tables, name: str, run: Mapping[str, Any]) -> WorkloadFindings:
    declared = ((run.get("pipeline") or {}).get("workloads") or {}).get(name) or {}
    layout, recorded = lay_out(tables, name, declared), Recorded.of(tables)
    is_command = bool(declared.get("command"))
    splits = recorded.splits(once=is_command)
    basis = _basis(recorded, splits, "wall" if is_command else "time")
    profiler = doubts.preferred(tables.kernels)
    peaks = (run.get("machine") or {}).get("peaks") or {}
    points = _points(recorded, layout, splits, basis, profiler, declared, peaks)
    shared = _shared_marks(points.values())
    points = {c: replace(p, own_marks=tuple(m for m in p.marks if m not in shared)) for c, p in points.items()}
    setting = _setting(run, name)
    return WorkloadFindings(
        name=name,
        fixed=layout.fixed,
        varying=layout.varying,
        compare=layout.compare,
        baseline=layout.baseline,
        basis=basis,
        kernel_profiler=profiler,
        shapes=tuple(_shape(axes, points, layout) for axes in order(point.shape for point in points.values())),
        variants=tuple(dict.fromkeys(point.variant for point in points.values())),
        shared_marks=shared,
        launches={str(name): int(rows["calls"].sum()) for name, rows in tables.kernels.groupby("profiler", sort=False)},
        asked_samples=declared.get("repeats"),
        top=tuple(row for point in points.values() for row in _top(recorded, point)),
        phases=tuple(_phases(recorded, points)),
        agreements=tuple(
            found
            for case, point in points.items()
            if (found := agreement.agree(point, splits.get(case, {}), recorded.tallies, setting))
        ),
        counters=tuple(row for case in points for row in _counters(recorded, case)),
    )


# --- times -----------------------------------------------------------------------------------------------------------


def _basis(recorded: Recorded, splits: Mapping[str, Mapping[str, Split]], timed_as: str) -> Basis | None:
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


def _points(
    recorded: Recorded,
    layout: Layout,
    splits: Mapping[str, Mapping[str, Split]],
    basis: Basis | None,
    profiler: str | None,
    declared: Mapping[str, Any],
    peaks: Mapping[str, Any],
) -> dict[str, Point]:
    """Each case with its time, its rates and, once all are known, its speed-up over the baseline."""
    points = {}
    for case, params in layout.params.items():
        numbers = recorded.numbers.get((case, basis.profiler if basis else "", ""), {})
        time = _measure(numbers, splits.get(case, {}), basis)
        point = Point(
            id=case,
            params=params,
            variant=layout.variant(case),
            shape=layout.shape(case),
            fate="" if time else _fate(recorded.statuses.get(case, {}), basis),
            time=time,
            split=splits.get(case, {}).get(profiler or ""),
            values=_values(recorded, case),
            is_baseline=layout.baseline_of(case) == case,
        )
        point = _with_rates(point, peaks)
        points[case] = replace(point, marks=_marks(recorded, point, basis, declared))
    return {case: _with_speedup(point, _baseline(point, points, layout)) for case, point in points.items()}


def _baseline(point: Point, points: Mapping[str, Point], layout: Layout) -> Point | None:
    name = layout.baseline_of(point.id)
    return None if name is None else points.get(name)


def _fate(statuses: Mapping[str, str], basis: Basis | None) -> str:
    """Why a case has no time: its status under the profiler that times the others, else under any."""
    first = statuses.get(basis.profiler, "ok") if basis else "ok"
    return next((status for status in (first, *statuses.values()) if status != "ok"), "")


def _values(recorded: Recorded, case: str) -> dict[str, float]:
    """Every number that `plain` and, where it is silent, other profilers' processes recorded for the case itself."""
    found: dict[str, float] = {}
    for profiler in ("plain", *shares.PREFERENCE):
        for metric, number in recorded.numbers.get((case, profiler, ""), {}).items():
            # Times under a profiler are that profiler's; taken for the case's own they would mix.
            if profiler == "plain" or not metric.startswith(("time", "iterations")):
                found.setdefault(metric, number.value)
    return found


def _with_rates(point: Point, peaks: Mapping[str, Any]) -> Point:
    """FLOP/s and bytes/s of a call, and their share of what the machine can give at most.

    A sum over an unknown number of calls (``n`` missing) gives no rate.
    """
    if point.time is None or point.time.ns <= 0 or point.time.n is None:
        return point
    flops, moved = point.values.get("flops"), point.values.get("bytes_moved")
    dtype = str(point.params.get("dtype", "")).lower()
    peak_flops = (peaks.get("flops") or peaks).get(_DTYPES.get(dtype, dtype))
    peak_bytes = peaks.get("bytes_per_s")
    per_s = 1e9 / point.time.ns
    return replace(
        point,
        tflops=flops * per_s / 1e12 if flops else None,
        gbytes_per_s=moved * per_s / 1e9 if moved else None,
        of_peak_flops=flops * per_s / peak_flops if flops and peak_flops else None,
        of_peak_bytes=moved * per_s / peak_bytes if moved and peak_bytes else None,
    )


def _marks(recorded: Recorded, point: Point, basis: Basis | None, declared: Mapping[str, Any]) -> tuple[str, ...]:
    """The harness's marks for the basis, and those that only the whole run shows."""
    if basis is None:
        return ()
    marks = list(recorded.flags.get((point.id, basis.profiler), ()))
    asked, time = declared.get("repeats"), point.time
    if asked and time and time.n is not None and time.n < asked and not declared.get("command"):
        marks.append("too-few-samples")
    if basis.quantity == "kernel" and point.split and point.split.idle and point.split.idle > _HOST_BOUND:
        marks.append("host_bound")
    if max(point.of_peak_flops or 0, point.of_peak_bytes or 0) > 1:
        marks.append("above-peak")
    return tuple(dict.fromkeys(marks))


def _shared_marks(points: Iterable[Point]) -> tuple[str, ...]:
    timed = [point.marks for point in points if point.time]
    return tuple(mark for mark in timed[0] if all(mark in marks for marks in timed)) if len(timed) > 1 else ()


def _with_speedup(point: Point, base: Point | None) -> Point:
    if base is None:
        return point
    kernel = call = None
    if base.time and point.time:
        call = base.time.ns / point.time.ns
    if base.split and point.split:
        kernel = base.split.total.ns / point.split.total.ns
    return replace(point, speedup=call, kernel_speedup=kernel)


def _shape(axes: Axes, points: Mapping[str, Point], layout: Layout) -> Shape:
    own = [point for point in points.values() if point.shape == axes]
    own.sort(key=lambda point: point.time.ns if point.time else float("inf"))
    return Shape(axes, tuple(own), tuple(_swaps(own, points, layout)))


def _swaps(own: Iterable[Point], points: Mapping[str, Point], layout: Layout) -> Iterator[Swap]:
    for point in own:
        base = _baseline(point, points, layout)
        if base is not None and base.split and point.split and not point.is_baseline:
            measured = point.speedup if "time" in point.values and "time" in base.values else None
            yield shares.swap(point.variant, base.split, point.split, measured)


# --- the rest --------------------------------------------------------------------------------------------------------


def _top(recorded: Recorded, point: Point) -> list[KernelRow]:
    if point.split is None:
        return []
    own = recorded.tallies[point.id, point.split.profiler]
    return shares.top_kernels(own, point.id, point.split.iterations, TOP)


def _phases(recorded: Recorded, points: Mapping[str, Point]) -> Iterator[Phase]:
    ranges = recorded.tables.ranges
    for (case, profiler), own in ranges[ranges["range"] != ""].groupby(["case", "profiler"], sort=False):
        point = points.get(str(case))
        if point and point.split and point.split.profiler == profiler:
            yield from shares.phases(own, point.id, point.split.iterations, point.split.total.ns)


def _setting(run: Mapping[str, Any], workload: str) -> agreement.Setting:
    argv = [
        str(argument)
        for job in run.get("jobs") or ()
        if job.get("profiler") == "ncu" and job.get("workload") == workload
        for command in job.get("argv") or ()
        for argument in command
    ]
    return agreement.Setting(tuple(argv))


def _counters(recorded: Recorded, case: str) -> list[Counters]:
    """ncu's metrics of each kernel of ``case``, most time first."""
    timed = recorded.tallies.get((case, "ncu"), Tally()).work
    sums = {kernel.name: (kernel.kernel_class, calls, ns) for kernel, (calls, ns) in timed.items()}
    found = []
    for (of_case, profiler, kernel), numbers in recorded.numbers.items():
        if of_case == case and profiler == "ncu" and kernel:
            cls, calls, ns = sums.get(kernel, ("", 0, 0.0))
            values = {metric: (number.value, number.unit) for metric, number in numbers.items()}
            found.append(Counters(case, kernel, cls, int(calls), ns / calls if calls else None, values))
    return sorted(found, key=lambda row: -(row.mean_ns or 0) * row.calls)
