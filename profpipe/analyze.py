"""Tables -> findings: shares, speed-ups, the cost of a swap, the agreement of profilers.

Times of different profilers are never mixed in one ratio: each workload has one basis for its times and one profiler
whose kernels stand for its shares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from profpipe import agreement, doubts, shares
from profpipe.findings import (
    Agreement,
    Axes,
    Basis,
    Counters,
    Findings,
    Measure,
    Point,
    Shape,
    Split,
    WorkloadFindings,
)  # fmt: skip
from profpipe.points import Layout, lay_out, order
from profpipe.tables import ALL, Tables

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
    layout = lay_out(tables, name, declared)
    # A command's process is its one iteration.
    once = 1 if declared.get("command") else None
    splits = {case: _splits(tables, case, once) for case in layout.params}
    basis = _basis(tables, splits, "wall" if once else "time")
    profiler = doubts.preferred(tables.kernels)
    peaks = (run.get("machine") or {}).get("peaks") or {}
    points = _points(tables, layout, splits, basis, profiler, declared, peaks)
    shared = _shared_marks(points.values())
    points = {c: replace(p, own_marks=tuple(m for m in p.marks if m not in shared)) for c, p in points.items()}
    shapes = tuple(_shape(axes, points, layout) for axes in order(point.shape for point in points.values()))
    return WorkloadFindings(
        name=name,
        fixed=layout.fixed,
        varying=layout.varying,
        compare=layout.compare,
        baseline=layout.baseline,
        basis=basis,
        kernel_profiler=profiler,
        shapes=shapes,
        variants=tuple(dict.fromkeys(point.variant for point in points.values())),
        shared_marks=shared,
        launches={str(name): int(rows["calls"].sum()) for name, rows in tables.kernels.groupby("profiler", sort=False)},
        asked_samples=declared.get("repeats"),
        top=tuple(row for point in points.values() for row in _top(tables, point)),
        phases=tuple(row for point in points.values() for row in _phases(tables, point)),
        agreements=tuple(_agreements(tables, points, splits, _setting(run, name))),
        counters=tuple(row for case in points for row in _counters(tables, case)),
    )


# --- times -----------------------------------------------------------------------------------------------------------


def _splits(tables: Tables, case: str, at_least: int | None) -> dict[str, Split]:
    """The case's kernel time by profiler; ``at_least`` iterations where neither ranges nor the harness say how many."""
    rows = tables.kernels[tables.kernels["case"] == case]
    found = {}
    for profiler, own in rows.groupby("profiler", sort=False):
        ranges = tables.ranges[(tables.ranges["case"] == case) & (tables.ranges["profiler"] == profiler)]
        count = shares.iterations(tables.ranges, tables.metrics, case, str(profiler)) or at_least
        if divided := shares.split(own, count, ranges[ranges["range"] == ""]):
            found[str(profiler)] = divided
    return found


def _basis(tables: Tables, splits: Mapping[str, Mapping[str, Split]], timed_as: str) -> Basis | None:
    """Timed calls, unless another profiler has at least twice as many cases; then sums of kernels, nsys's first."""
    m = tables.metrics
    timed = m[(m["metric"] == "time") & (m["profiler"] == "plain") & (m["subject"] == "")]
    cover = {Basis("plain", timed_as): timed["case"].nunique()}
    for profiler in shares.PREFERENCE:
        seen = [own[profiler] for own in splits.values() if profiler in own]
        if seen:
            cover[Basis(profiler, seen[0].kind)] = len(seen)
    return next((basis for basis, count in cover.items() if count and 2 * count > max(cover.values())), None)


def _measure(case: str, tables: Tables, splits: Mapping[str, Split], basis: Basis | None) -> Measure | None:
    if basis is None:
        return None
    if not basis.timed:
        own = splits.get(basis.profiler)
        return Measure(own.total.ns, own.iterations) if own and own.total.ns > 0 else None
    rows = _case_metrics(tables, case, basis.profiler)
    ns = _value(rows, "time")
    if ns is None:
        return None
    count = _number(rows.at["time", "n"])
    return Measure(
        ns=ns,
        n=None if count is None else int(count),
        ci_low=_number(rows.at["time", "ci_low"]),
        ci_high=_number(rows.at["time", "ci_high"]),
        p10=_value(rows, "time_p10"),
        p90=_value(rows, "time_p90"),
        cv_percent=_value(rows, "time_cv"),
    )


def _case_metrics(tables: Tables, case: str, profiler: str) -> pd.DataFrame:
    """The numbers of a case under a profiler, by name; of a number recorded twice (a resumed run) the last."""
    m = tables.metrics
    rows = m[(m["case"] == case) & (m["profiler"] == profiler) & (m["subject"] == "")]
    return rows.drop_duplicates("metric", keep="last").set_index("metric")


def _value(rows: pd.DataFrame, metric: str) -> float | None:
    return _number(rows.at[metric, "value"]) if metric in rows.index else None


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


# --- points ----------------------------------------------------------------------------------------------------------


def _points(
    tables: Tables,
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
        point = Point(
            id=case,
            params=params,
            variant=layout.variant(case),
            shape=layout.shape(case),
            time=_measure(case, tables, splits[case], basis),
            split=splits[case].get(profiler or ""),
            values=_values(tables, case),
            is_baseline=layout.baseline_of(case) == case,
        )
        point = _with_rates(point if point.time else replace(point, fate=_fate(tables, case, basis)), peaks)
        points[case] = replace(point, marks=_marks(tables, point, basis, declared))
    return {case: _with_speedup(point, _baseline(point, points, layout)) for case, point in points.items()}


def _baseline(point: Point, points: Mapping[str, Point], layout: Layout) -> Point | None:
    name = layout.baseline_of(point.id)
    return None if name is None else points.get(name)


def _fate(tables: Tables, case: str, basis: Basis | None) -> str:
    """Why a case has no time: its status under the profiler that times the others, else under any."""
    cases = tables.cases[(tables.cases["case"] == case) & (tables.cases["status"] != "ok")]
    under = cases[cases["profiler"] == basis.profiler] if basis else cases
    return next((str(status) for status in [*under["status"], *cases["status"]]), "")


def _values(tables: Tables, case: str) -> dict[str, float]:
    """Every number that `plain` and, where it is silent, other profilers' processes recorded for the case itself."""
    found: dict[str, float] = {}
    for profiler in ("plain", *shares.PREFERENCE):
        rows = _case_metrics(tables, case, profiler)
        for metric in rows.index:
            # Times under a profiler are that profiler's; taken for the case's own they would mix.
            if profiler == "plain" or not str(metric).startswith(("time", "iterations")):
                value = _value(rows, metric)
                if value is not None:
                    found.setdefault(str(metric), value)
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


def _marks(tables: Tables, point: Point, basis: Basis | None, declared: Mapping[str, Any]) -> tuple[str, ...]:
    """The harness's marks for the basis, and those that only the whole run shows."""
    if basis is None:
        return ()
    cases = tables.cases[(tables.cases["case"] == point.id) & (tables.cases["profiler"] == basis.profiler)]
    marks = [str(mark).replace("_", "-") for text in cases["flags"] if text for mark in json.loads(text)]
    asked, time = declared.get("repeats"), point.time
    if asked and time and time.n is not None and time.n < asked and not declared.get("command"):
        marks.append("too-few-samples")
    if basis.quantity == "kernel" and point.split and point.split.idle and point.split.idle > _HOST_BOUND:
        marks.append("host-bound")
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


def _swaps(own: Iterable[Point], points: Mapping[str, Point], layout: Layout) -> Iterable[shares.Swap]:
    for point in own:
        base = _baseline(point, points, layout)
        if base is not None and base.split and point.split and not point.is_baseline:
            measured = point.speedup if "time" in point.values and "time" in base.values else None
            yield shares.swap(point.variant, base.split, point.split, measured)


# --- the rest --------------------------------------------------------------------------------------------------------


def _top(tables: Tables, point: Point) -> list[shares.KernelRow]:
    if point.split is None:
        return []
    k = tables.kernels
    rows = k[(k["case"] == point.id) & (k["profiler"] == point.split.profiler)]
    return shares.top_kernels(rows, point.id, point.split.iterations, TOP)


def _phases(tables: Tables, point: Point) -> list[shares.Phase]:
    if point.split is None:
        return []
    r = tables.ranges
    rows = r[(r["case"] == point.id) & (r["profiler"] == point.split.profiler)]
    return shares.phases(rows, point.id, point.split.iterations, point.split.total.ns)


def _setting(run: Mapping[str, Any], workload: str) -> agreement.Setting:
    argv = [
        str(argument)
        for job in run.get("jobs") or ()
        if job.get("profiler") == "ncu" and job.get("workload") == workload
        for command in job.get("argv") or ()
        for argument in command
    ]
    return agreement.Setting(tuple(argv))


def _agreements(
    tables: Tables, points: Mapping[str, Point], splits: Mapping[str, Mapping[str, Split]], setting: agreement.Setting
) -> Iterable[Agreement]:
    for case, point in points.items():
        rows = tables.kernels[tables.kernels["case"] == case]
        if found := agreement.agree(point, splits[case], rows, setting):
            yield found


def _counters(tables: Tables, case: str) -> list[Counters]:
    """ncu's metrics of each kernel of ``case``, most time first."""
    m, k = tables.metrics, tables.kernels
    mine = m[(m["case"] == case) & (m["profiler"] == "ncu") & (m["subject"] != "")].dropna(subset=["value"])
    kernels = k[(k["case"] == case) & (k["profiler"] == "ncu")]
    found = []
    for kernel, rows in mine.groupby("subject", sort=False):
        launches = kernels[kernels["kernel"] == kernel]
        calls = int(launches["calls"].sum())
        mean = float(launches["total_ns"].sum()) / calls if calls else None
        cls = str(launches["kernel_class"].iloc[0]) if calls else ""
        numbers = zip(rows["metric"], rows["value"], rows["unit"], strict=True)
        values = {str(metric): (float(value), str(unit)) for metric, value, unit in numbers}
        found.append(Counters(case, str(kernel), cls, calls, mean, values))
    return sorted(found, key=lambda row: -(row.mean_ns or 0) * row.calls)
