"""Every quantity of a workload's cases as a chart, of which a reader chooses one by quantity, profiler and view."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from profpipe.analysis.cases import in_words, running_axis
from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.labels import quantity as time_words
from profpipe.report.sections import plots
from profpipe.report.sections.plots import Quantity
from profpipe.report.units import Unit

#: Cases up to which every recorded quantity has charts. A chart of a larger workload is large itself.
_FEW = 100

#: Rows of a chart of cases.
_MOST_ROWS = 40

#: Quantities without a profiler, where they were recorded: metric, title, stored unit, unit.
_RECORDED: tuple[tuple[str, str, str, Unit | None], ...] = (
    ("peak_allocated", "peak memory", "byte", None),
    ("power", "power", "", Unit("W", 1.0)),
    ("sm_clock", "SM clock", "", Unit("MHz", 1e6)),
    ("temperature", "temperature", "", Unit("degC", 1.0)),
    ("time_cuda_graph", "time as CUDA graph", "ns", None),
    ("error_max", "largest error of the output", "", None),
)

#: The answers that choose a chart, and the chart.
_View: TypeAlias = "tuple[tuple[str, ...], tuple[doc.Block, ...]]"


def explorer(workload: WorkloadFindings) -> doc.Section:
    """Return the charts of the workload, for report.html; empty where there is nothing to choose."""
    views = dict(_views(workload))
    choice = doc.Choice("view", ("quantity", "profiler", "view"), views)
    return doc.make_section("explorer", "Charts", [choice] if len(views) > 1 else [], workload=workload.name)


def _views(workload: WorkloadFindings) -> Iterator[_View]:
    """Yield each chart with the values that choose it."""
    axis = running_axis(case.shape for case in workload.cases if case.time)
    basis = workload.basis.profiler if workload.basis else ""
    names = {"speedup": "speed-up", "time": "time", "tflops": "TFLOP/s", "bandwidth": "GB/s"}
    for quantity in plots.quantities(workload):
        yield from _both(workload, axis, quantity, names[quantity.name], basis)
    yield from _by_profiler(workload, axis)
    if len(workload.cases) <= _FEW:
        for metric, title, stored, unit in _RECORDED:
            value = functools.partial(_value, metric=metric)
            shown = doc.Axis(title, unit, quantity=stored)
            recorded = Quantity(metric, title.capitalize(), value, shown, metric == "error_max")
            yield from _both(workload, axis, recorded, title, basis)
    shape = workload.largest
    if shape and not workload.steps and sum(case.breakdown is not None for case in shape.cases) > 1:
        chart = replace(plots.breakdown(workload, shape), placement=doc.Placement.HTML)
        yield ("kernel time by class", workload.kernel_profiler or "", "largest shape"), (chart,)


def _value(case: CaseResult, metric: str) -> float | None:
    """Return a recorded metric. A value without a place on an axis, as an infinite error, is none."""
    found = case.values.get(metric)
    return found if found is not None and math.isfinite(found) else None


def _time(case: CaseResult, times: Mapping[str, float]) -> float | None:
    return times.get(case.id)


def _by_profiler(workload: WorkloadFindings, axis: str | None) -> Iterator[_View]:
    """Yield the times of the cases under each profiler that recorded kernels."""
    figures = ((figure.profiler, (each.case, figure.ns)) for each in workload.agreements for figure in each.figures)
    for profiler, times in grouped(figures).items():
        if workload.basis is None or profiler != workload.basis.profiler:
            value, name = functools.partial(_time, times=dict(times)), f"Kernel time per call ({profiler})"
            found = Quantity(f"kernels-{profiler}", name, value, doc.Axis("time", quantity="ns"), True)
            yield from _both(workload, axis, found, "kernel time", profiler)


def _both(
    workload: WorkloadFindings, axis: str | None, quantity: Quantity, name: str, profiler: str
) -> Iterator[_View]:
    """Yield the quantity over the running axis, and of the cases of the largest shape."""
    if axis and (chart := plots.over(workload, axis, quantity)):
        yield (name, profiler, f"over {axis}"), (replace(chart, placement=doc.Placement.HTML),)
    if chart := ranking(workload, quantity):
        yield (name, profiler, "largest shape" if workload.compare else "all cases"), (chart,)


def ranking(workload: WorkloadFindings, quantity: Quantity) -> doc.Chart | None:
    """Return the cases of the largest shape in the order of the quantity, the best first; None for fewer than two."""
    shape = workload.largest
    cases = list(shape.cases) if workload.compare and shape else list(workload.cases)
    known = [(case, value) for case in cases if (value := quantity.value(case)) is not None]
    if len(known) < 2:
        return None
    is_rate = quantity.name in ("speedup", "tflops", "bandwidth")
    known.sort(key=lambda pair: -pair[1] if is_rate else pair[1])
    known = known[:_MOST_ROWS]
    marks = tuple(_mark(i, case, value, quantity) for i, (case, value) in enumerate(known))
    names = tuple(_name(workload, case) for case, _ in known)
    others = len(cases) - len(known)
    place, values = in_words(shape.axes) if workload.compare and shape else "", [value for _, value in known]
    # A linear scale would hide the small values.
    spans_decades = min(values) > 0 and max(values) / min(values) >= plots.DECADES
    is_time = quantity.name == "time" and workload.basis is not None
    title = time_words(workload.basis).capitalize() if is_time else quantity.title
    return doc.Chart(
        plots.chart_id(workload.name, quantity.name, "cases"),
        ", ".join(filter(None, [title, place])),
        doc.ChartKind.INTERVALS,
        doc.Axis("", labels=names, cases=tuple(case.id for case, _ in known)),
        replace(quantity.axis, is_log=spans_decades),
        {"": (doc.Series("", "", marks),)},
        f"{others} cases have no value, or are beyond the first {_MOST_ROWS}." if others else "",
        doc.Placement.HTML,
        subtitle=plots.fixed(workload),
        references=tuple(each for each in quantity.references if each.kind is doc.ReferenceKind.LEVEL),
    )


def _mark(row: int, case: CaseResult, value: float, quantity: Quantity) -> doc.Mark:
    low, high = case.time.interval or (None, None) if quantity.name == "time" and case.time else (None, None)
    return doc.Mark(float(row), value, low, high, case.unshared_marks, case.id)


def _name(workload: WorkloadFindings, case: CaseResult) -> str:
    words = case.variant if workload.compare else in_words(case.shape) or case.id or workload.name
    return f"{words} (baseline)" if case.is_baseline else words


# --- roofline --------------------------------------------------------------------------------------------------------


def roofline(workload: WorkloadFindings) -> doc.Section:
    """Return the cases below the machine's rates, for report.html; empty where a rate is unknown."""
    known = [(case, case.limit.intensity, case.tflops_done, ridge, peak)
             for case in workload.cases
             if case.limit.intensity and case.tflops_done
             for ridge, peak in [_roof(workload, case)] if ridge and peak]  # fmt: skip
    if not known:
        return doc.Section("roofline", "", workload=workload.name)
    names = list(workload.variants) if workload.compare else [""]
    series = []
    for name in names:
        marks = tuple(doc.Mark(x, y, flags=case.unshared_marks, case=case.id)
                      for case, x, y, *_ in known if name in ("", case.variant))  # fmt: skip
        is_baseline = bool(name) and any(case.is_baseline for case, *_ in known if case.variant == name)
        series += [doc.Series(name or "case", name or "case", marks, is_baseline)] if marks else []
    roofs = grouped(((round(ridge, 3), round(peak, 3)), _name(workload, case)) for case, *_, ridge, peak in known)
    chart = doc.Chart(
        plots.chart_id(workload.name, "roofline"),
        "Roofline",
        doc.ChartKind.ROOFLINE,
        doc.Axis("FLOP per byte", is_log=True),
        doc.Axis("rate", Unit("TFLOP/s", 1.0), is_log=True),
        {"": tuple(series)},
        "Below the slanted line memory is the limit, below the level one arithmetic. Hollow: the case has a flag."
        + (" The peak depends on the types that a case computes in." if len(roofs) > 1 else ""),
        doc.Placement.HTML,
        subtitle=plots.fixed(workload),
        keys=tuple(names),
        references=tuple(doc.Reference(doc.ReferenceKind.ROOF, peak, _roof_name(peak, below, len(roofs)), ridge)
                         for (ridge, peak), below in roofs.items()),
    )  # fmt: skip
    return doc.Section("roofline", "Roofline", (chart,), workload=workload.name)


def _roof_name(peak: float, below: Sequence[str], roofs: int) -> str:
    """Return the peak, and with several roofs the cases below this one: they compute in different types."""
    rate = f"{peak:.0f} TFLOP/s"
    return f"{rate}: {doc.plain(doc.join(dict.fromkeys(below), most=1))}" if roofs > 1 else rate


def _roof(workload: WorkloadFindings, case: CaseResult) -> tuple[float | None, float | None]:
    """Return the FLOP per byte of the ridge of a case, and its peak in TFLOP/s."""
    dtype = str(case.params.get("dtype") or case.params.get("precision") or "")
    ridge = case.limit.ridge or workload.ridges.get(dtype)
    share = case.limit.flops_share
    return ridge, case.tflops_done / share if share and case.tflops_done else None
