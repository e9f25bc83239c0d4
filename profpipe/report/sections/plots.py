"""Charts of a workload: time, speed-up and rates over the running axis, and the kernel time of a call by category.

Of report.html a reader chooses a chart by quantity, profiler and view, and sees the cases below the machine's rates.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from profpipe.analysis.cases import Axes, in_words, running_axis, without
from profpipe.analysis.findings import CaseResult, Shape, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import KernelBreakdown
from profpipe.job import as_text, count_cases
from profpipe.measure.flags import Flag
from profpipe.report import document as doc, selection
from profpipe.report.labels import case_text, quantity as time_words
from profpipe.report.sections.kernel_share import class_name, other_classes
from profpipe.report.units import Unit, number, time_unit

#: From this speed-up on a linear scale would press the other lines together.
_WIDE = 8.0

#: From this share of the memory bandwidth on the bandwidth of a case is of interest.
_LEAST_BANDWIDTH = 0.1

#: From this ratio of the largest to the smallest value on a linear scale would hide the small ones.
DECADES = 20

#: The time of a call without a profiler.
_CALL = "Median time of a call"

#: Lines of a chart without a comparison.
_LINES = 8

#: From this share of a bar on a piece is visible; smaller pieces are added to the last one.
_VISIBLE = 0.005


def plots(workload: WorkloadFindings) -> doc.Section:
    """Return the charts for which the workload has data."""
    axis = running_axis(case.shape for case in workload.cases if case.time)
    charts = [chart for quantity in quantities(workload) if axis and (chart := over(workload, axis, quantity))]
    # Of a program with steps, bars show the whole step.
    shape = workload.largest if workload.compare and not workload.steps else None
    # Launches of a kernel are compared by their medians, and not by their number.
    if shape and not workload.launch_times and sum(case.breakdown is not None for case in shape.timed) > 1:
        charts.append(breakdown(workload, shape))
    return doc.Section("plots", "Plots", tuple(charts), workload=workload.name)


def chart_id(*names: str) -> str:
    """Return the stem of a picture's file."""
    return "-".join(re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "workload" for name in names)


def fixed(workload: WorkloadFindings) -> str:
    """Return the workload and the parameters that all cases share."""
    return workload.name + (f": {in_words(workload.fixed)}" if workload.fixed else "")


# --- lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """A quantity of a case over the running axis. ``spans_decades``: its scale may be logarithmic.

    ``needs_accuracy``: cases outside the tolerance have no value.
    """

    name: str
    title: str
    value: Callable[[CaseResult], float | None]
    axis: doc.Axis
    spans_decades: bool = False
    references: tuple[doc.Reference, ...] = ()
    needs_accuracy: bool = False


def quantities(workload: WorkloadFindings) -> Iterator[Quantity]:
    """Yield the quantities that the workload has."""
    source, cases = workload.time_source, workload.cases
    titles = {
        "time": _CALL,
        "wall": "Process wall time",
        "cpu_op": f"Self time of {workload.cpu_rows} per call",
    }
    title = titles.get(source.quantity, f"Kernel time per call ({source.profiler})") if source else ""
    if workload.compare and any(case.speedup not in (None, 1.0) for case in cases):
        bases = {case.variant for case in cases if case.is_baseline}
        name = min(bases) if len(bases) == 1 else "the baseline"
        is_wide = max(case.speedup or 0.0 for case in cases) > _WIDE
        even = doc.Reference(doc.ReferenceKind.LEVEL, 1.0)
        yield Quantity("speedup", f"Speed-up over {name}", lambda case: case.speedup,
                       doc.Axis("speed-up", quantity="x"), is_wide, (even,), needs_accuracy=True)  # fmt: skip
    yield Quantity("time", title, lambda case: case.ns, doc.Axis("time", quantity="ns"), True)
    dense = [case for case in cases if not case.is_sparse]
    peak = _peak((case.tflops, case.of_peak_flops) for case in dense)
    yield Quantity("tflops", "Rate of computation", lambda case: case.tflops, doc.Axis("rate", Unit("TFLOP/s", 1.0)),
                   references=peak)  # fmt: skip
    reached = [case.of_peak_bytes for case in cases if case.gbytes_per_s is not None]
    if not all(share is not None and share < _LEAST_BANDWIDTH for share in reached):
        peak = _peak((case.gbytes_per_s, case.of_peak_bytes) for case in cases)
        yield Quantity("bandwidth", "Rate of the bytes that a call must move", lambda case: case.gbytes_per_s,
                       doc.Axis("rate", Unit("GB/s", 1.0)), references=peak)  # fmt: skip


def _peak(rates: Iterable[tuple[float | None, float | None]]) -> tuple[doc.Reference, ...]:
    """Return the machine's limit where all cases share it: the limit depends on the data type."""
    peaks = [rate / share for rate, share in rates if rate and share]
    is_shared = bool(peaks) and max(peaks) - min(peaks) < 1e-6 * max(peaks)
    return (doc.Reference(doc.ReferenceKind.PEAK, peaks[0]),) if is_shared else ()


def over(
    workload: WorkloadFindings, axis: str, quantity: Quantity, placement: doc.OnPage = doc.OnPage.SUMMARY
) -> doc.Chart | None:
    """Return a chart with a panel per combination of the other axes, of at most eight."""
    lines = _line_axis(workload, axis)
    points = []
    for case in workload.cases:
        if value := quantity.value(case):
            low, high = (case.time.p10, case.time.p90) if case.time and quantity.name == "time" else (None, None)
            mark = doc.Mark(float(dict(case.shape)[axis]), value, low, high, case.unshared_flags, case.id)
            # A speed-up is of accurate cases only.
            is_wrong = Flag.INACCURATE in case.flags and not quantity.needs_accuracy
            points.append(Point(without(case.shape, axis, lines), _name(case, lines), mark, is_wrong))
    # Where nothing is compared, lines are the values of an axis.
    names = [*([] if lines else workload.variants), *(_name(case, lines) for case in workload.cases)]
    baselines = {case.variant for case in workload.cases if case.is_baseline} if lines is None else set()
    total = len({without(shape.axes, axis, lines) for shape in workload.shapes})
    shown_groups = selection.groups(workload, axis, lines)
    drawn = len({point.panel for point in points} & set(shown_groups))
    return line_chart(
        chart_id(workload.name, quantity.name),
        f"{quantity.title} by {axis}",
        doc.Axis(axis),
        quantity.axis,
        points,
        tuple(dict.fromkeys(names)),
        panels=shown_groups,
        baseline=min(baselines) if len(baselines) == 1 else None,
        spans_decades=quantity.spans_decades,
        subtitle=fixed(workload),
        references=quantity.references,
        placement=placement,
        notes=(
            f"{drawn} of {total} combinations of the other axes." if total > selection.GROUPS else "",
            _count_missing_speedups(workload, axis) if quantity.needs_accuracy else "",
        ),
    )


@dataclass(frozen=True)
class Point:
    """A number of a line chart: the axes of its panel, its line, its mark, and whether its case is inaccurate."""

    panel: Axes
    line: str
    mark: doc.Mark
    is_inaccurate: bool = False


def line_chart(
    id: str, title: str, x: doc.Axis, y: doc.Axis, points: Sequence[Point], lines: tuple[str, ...], *,
    spans_decades: bool, panels: Iterable[Axes] = ((),), baseline: str | None = None, subtitle: str = "",
    references: tuple[doc.Reference, ...] = (), notes: Iterable[str] = (),
    placement: doc.OnPage = doc.OnPage.SUMMARY,
) -> doc.Chart | None:  # fmt: skip
    """Return a chart whose axes are logarithmic where a linear scale would hide small values; None without a mark.

    ``panels`` are drawn in this order. ``lines`` are all lines in the order of the palette. A line is rejected where
    most of its numbers are of inaccurate cases, so that no wrong line leads. The caption explains the signs that occur.
    """
    by_line = {name: [point for point in points if point.line == name] for name in lines}
    rejected = {
        name
        for name, line_points in by_line.items()
        if 2 * sum(point.is_inaccurate for point in line_points) > len(line_points)
    }
    drawn: dict[str, tuple[doc.Series, ...]] = {}
    for others in panels:
        of_panel = {
            name: tuple(sorted((p.mark for p in line_points if p.panel == others), key=lambda mark: mark.x))
            for name, line_points in by_line.items()
        }
        series = tuple(
            doc.Series(f"{n} (inaccurate)" if n in rejected else n, n, marks, n == baseline, n in rejected)
            for n, marks in of_panel.items()
            if marks
        )
        drawn |= {in_words(others): series} if series else {}
    marks = [mark for panel in drawn.values() for series in panel for mark in series.marks]
    if not marks:
        return None
    ys, peaks = [mark.y for mark in marks], [r.value for r in references if r.kind is doc.ReferenceKind.PEAK]
    is_log = spans_decades and min(ys) > 0 and max(ys) / min(ys) >= DECADES
    signs = [
        f"The machine's peak is {number(peaks[0])} {y.unit.name}." if peaks and y.unit else "",
        _hollow(marks),
        "Bars: 10th to 90th percentile." if any(mark.has_visible_range for mark in marks) else "",
    ]
    return doc.Chart(
        id,
        title,
        doc.ChartKind.LINES,
        replace(x, is_log=has_factors(sorted({mark.x for mark in marks}))),
        replace(y, is_log=is_log),
        drawn,
        " ".join(part for part in (*signs, *notes) if part),
        placement,
        subtitle=subtitle,
        keys=lines,
        references=references,
    )


def has_factors(values: Sequence[float]) -> bool:
    """Return True if sorted ``values`` are spaced by factors rather than by differences."""
    if len(values) < 2 or values[0] <= 0 or values[-1] / values[0] < 4:
        return False
    steps = list(itertools.pairwise(values))
    kinds = [b / a - 1 for a, b in steps], [b - a for a, b in steps]
    factors, differences = (statistics.pstdev(gaps) / statistics.fmean(gaps) for gaps in kinds)
    return len(values) == 2 or factors < differences


def not_shown(missing: Mapping[str, Sequence[str]]) -> str:
    """Return how many cases have no mark: a reason to the names of their lines."""
    parts = []
    for reason, lines in missing.items():
        names = doc.plain(doc.join(filter(None, dict.fromkeys(lines)), most=8))
        parts.append(f"{count_cases(len(lines))} {reason}{f' ({names})' if names else ''}")
    return f"Not shown: {doc.plain(doc.join(parts))}." if parts else ""


def _count_missing_speedups(workload: WorkloadFindings, axis: str) -> str:
    """Return the drawn cases that have a time and no speed-up, because they or their baseline are inaccurate."""
    missing: dict[str, list[str]] = {}
    drawn = selection.groups(workload, axis)
    for case in workload.cases:
        if case.time and case.speedup is None and without(case.shape, axis) in drawn:
            reason = f"marked {case.accuracy.flag}" if case.is_disqualified and case.accuracy else ""
            if case.baseline_flag == Flag.UNLIKE_NODES:
                reason = reason or "whose baseline ran on an unlike node"
            reason = reason or (f"whose baseline is {case.baseline_flag}" if case.baseline_flag else "")
            missing.setdefault(reason, []).append(case.variant)
    return not_shown({reason: names for reason, names in missing.items() if reason})


def _line_axis(workload: WorkloadFindings, axis: str) -> str | None:
    """Return the axis whose values are the lines where nothing is compared: the one with the most of at most eight."""
    if workload.compare:
        return None
    counts = {name: len({as_text(dict(shape.axes)[name]) for shape in workload.shapes})
              for name in workload.varying_shape if name != axis}  # fmt: skip
    return max((name for name in counts if counts[name] <= _LINES), key=lambda name: counts[name], default=None)


def _name(case: CaseResult, lines: str | None) -> str:
    if lines is None:
        return case.variant
    value = dict(case.shape)[lines]
    return as_text(value) if isinstance(value, str) else in_words(((lines, value),))


# --- stacked bars ----------------------------------------------------------------------------------------------------


_CATEGORIES = ("attention", "helpers", "direct_copy", "add", "gemm", "softmax")
_CLASSES = ("copy", "elementwise", "reduction", "norm", "optimizer", "conv", "sparse", "communication", "fused")


def pieces(breakdowns: Sequence[KernelBreakdown]) -> list[tuple[str, str, list[float]]]:
    """Return the pieces of bars from left to right, divided like the table of kernel shares: name, key, ns of each bar.

    The last piece is everything else; it has no name where it is too small to see.
    """
    is_cpu = any(split.kind == "cpu_op" for split in breakdowns)

    def is_visible(times: Sequence[float]) -> bool:
        return any(ns >= _VISIBLE * split.total.ns for ns, split in zip(times, breakdowns, strict=True))

    names = {name: "copy" if is_cpu and name == "direct_copy" else name for name in _CATEGORIES}
    candidates = [(title, name, [split.category(name).ns for split in breakdowns]) for name, title in names.items()]
    candidates += [(class_name(name), name, [split.other_class(name).ns for split in breakdowns])
              for name in other_classes(breakdowns) if name in _CLASSES]  # fmt: skip
    candidates.append(("graph", "graph", [split.category("graph").ns for split in breakdowns]))
    kept = [piece for piece in candidates if is_visible(piece[2])]
    left = [split.total.ns - sum(times[i] for *_, times in kept) for i, split in enumerate(breakdowns)]
    return [*kept, ("everything else" if is_visible(left) else "", "rest", left)]


def breakdown(
    workload: WorkloadFindings, shape: Shape, placement: doc.OnPage = doc.OnPage.SUMMARY, is_of_page: bool = False
) -> doc.Chart:
    """Return stacked bars of the time of a call by kernel class, the fastest implementation first.

    The bars are as long as the times that the headline compares. Where a profiler's kernels take longer than the call
    without it, they are shortened alike. Without a time of calls, the bars are of the kernel time. The chart that
    ``is_of_page`` of a case has no subtitle, which the page has.
    """
    shown = [case for case in shape.cases if case.breakdown]
    timed = (
        [case for case in shown if case.time]
        if workload.time_source and workload.time_source.quantity == "time"
        else []
    )
    bars = sorted(((case, case.breakdown, case.ns or 0.0) if timed else (case, case.breakdown, case.breakdown.total.ns)
                   for case in timed or shown if case.breakdown), key=lambda bar: bar[-1])  # fmt: skip
    unit = time_unit(ns for *_, ns in bars)
    is_cpu = any(split.kind == "cpu_op" for _, split, _ in bars)
    factors = [min(1.0, ns / (split.total.ns or 1.0)) for _, split, ns in bars]
    left = [max(ns - split.total.ns, 0.0) for _, split, ns in bars]
    parts = [(name, key, [factor * ns for factor, ns in zip(factors, times, strict=True)])
             for name, key, times in pieces([split for _, split, _ in bars])]  # fmt: skip
    is_visible = any(ns >= _VISIBLE * wall_ns for ns, (*_, wall_ns) in zip(left, bars, strict=True))
    gap = "outside of operators" if is_cpu else "no kernel runs"
    parts.append((gap if is_visible else "", "step_idle_other", left))
    series = tuple(
        doc.Series(name, key, tuple(doc.Mark(i, ns) for i, ns in enumerate(times)))
        for name, key, times in (parts if any(left) else parts[:-1])
    )
    time = f"Self time of {workload.cpu_rows}" if is_cpu else "Kernel time"
    of = "a call" if workload.is_per_call else "the whole recording"
    title = f"{_CALL} by {'operators' if is_cpu else 'kernels'}" if timed else f"{time} of {of}"
    names = tuple(case.variant + (" (baseline)" if case.is_baseline else "") for case, *_ in bars)
    ids = {case.id for case, *_ in bars}
    gpus = len({rank.name for rank in workload.ranks if rank.case in ids})
    several = f"A bar is the mean of the {gpus} GPUs that ran the case; where two kernels overlap, both count."
    return doc.Chart(
        "classes" if is_of_page else chart_id(workload.name, "share"),
        ", ".join(filter(None, [title, in_words(shape.axes)])),
        doc.ChartKind.STACKED_BARS,
        doc.Axis(workload.compare or "", labels=names, cases=tuple(case.id for case, *_ in bars)),
        doc.Axis(f"{unit.name} per call ({workload.kernel_profiler})", unit, quantity="ns"),
        {"": series},
        caption=several if gpus > 1 and not is_cpu else "",
        placement=placement,
        subtitle="" if is_of_page else fixed(workload),
    )


# --- every quantity, of which a reader chooses one --------------------------------------------------------------------

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
    choice = doc.ViewChoice("view", ("quantity", "profiler", "view"), views)
    return doc.make_section("explorer", "Charts", [choice] if len(views) > 1 else [], workload=workload.name)


def drop_chart(blocks: Iterable[doc.Block], chart: doc.Chart) -> Iterator[doc.Block]:
    """Yield ``blocks`` without ``chart``, also where it is one of those to choose from."""
    for block in blocks:
        if isinstance(block, doc.ViewChoice):
            options = {key: tuple(drop_chart(shown, chart)) for key, shown in block.options.items()}
            yield replace(block, options={key: shown for key, shown in options.items() if shown})
        elif not (isinstance(block, doc.Chart) and block.id == chart.id):
            yield block


def _views(workload: WorkloadFindings) -> Iterator[_View]:
    """Yield each chart with the values that choose it."""
    axis = running_axis(case.shape for case in workload.cases if case.time)
    timed_by = workload.time_source.profiler if workload.time_source else ""
    names = {"speedup": "speed-up", "time": "time", "tflops": "TFLOP/s", "bandwidth": "GB/s"}
    for quantity in quantities(workload):
        yield from _both(workload, axis, quantity, names[quantity.name], timed_by)
    yield from _make_profiler_views(workload, axis)
    if len(workload.cases) <= _FEW:
        for metric, title, stored, unit in _RECORDED:
            value = functools.partial(_value, metric=metric)
            shown = doc.Axis(title, unit, quantity=stored)
            recorded = Quantity(metric, title.capitalize(), value, shown, metric == "error_max")
            yield from _both(workload, axis, recorded, title, timed_by)
    shape = workload.largest
    if shape and not workload.steps and sum(case.breakdown is not None for case in shape.timed) > 1:
        chart = breakdown(workload, shape, doc.OnPage.HTML)
        yield ("time by kernel class", workload.kernel_profiler or "", "largest shape"), (chart,)


def _value(case: CaseResult, metric: str) -> float | None:
    """Return a recorded metric. A value without a place on an axis, as an infinite error, is none."""
    recorded = case.values.get(metric)
    return recorded if recorded is not None and math.isfinite(recorded) else None


def _time(case: CaseResult, times: Mapping[str, float]) -> float | None:
    return times.get(case.id)


def _make_profiler_views(workload: WorkloadFindings, axis: str | None) -> Iterator[_View]:
    """Yield the times of the cases under each profiler that recorded kernels."""
    figures = ((time.profiler, (case, time.ns)) for case, times in workload.agreements.items() for time in times)
    for profiler, times in grouped(figures).items():
        if workload.time_source is None or profiler != workload.time_source.profiler:
            value, name = functools.partial(_time, times=dict(times)), f"Kernel time per call ({profiler})"
            kernel_time = Quantity(f"kernels-{profiler}", name, value, doc.Axis("time", quantity="ns"), True)
            yield from _both(workload, axis, kernel_time, "kernel time", profiler)


def _both(
    workload: WorkloadFindings, axis: str | None, quantity: Quantity, name: str, profiler: str
) -> Iterator[_View]:
    """Yield the quantity over the running axis, and of the cases of the largest shape."""
    if axis and (chart := over(workload, axis, quantity, doc.OnPage.HTML)):
        yield (name, profiler, f"over {axis}"), (chart,)
    if chart := ranking(workload, quantity):
        yield (name, profiler, "largest shape" if workload.compare else "all cases"), (chart,)


def ranking(workload: WorkloadFindings, quantity: Quantity) -> doc.Chart | None:
    """Return the cases of the largest shape in the order of the quantity, the best first; None for fewer than two."""
    shape = workload.largest
    cases = list(shape.cases) if workload.compare and shape else list(workload.cases)
    measured = [(case, value) for case in cases if (value := quantity.value(case)) is not None]
    if len(measured) < 2:
        return None
    is_rate = quantity.name in ("speedup", "tflops", "bandwidth")
    measured.sort(key=lambda pair: -pair[1] if is_rate else pair[1])
    measured = measured[:_MOST_ROWS]
    marks = tuple(_mark(i, case, value, quantity) for i, (case, value) in enumerate(measured))
    names = tuple(_row_name(workload, case) for case, _ in measured)
    others = len(cases) - len(measured)
    place, values = in_words(shape.axes) if workload.compare and shape else "", [value for _, value in measured]
    # A linear scale would hide the small values.
    spans_decades = min(values) > 0 and max(values) / min(values) >= DECADES
    is_time = quantity.name == "time" and workload.time_source is not None
    title = time_words(workload.time_source).capitalize() if is_time else quantity.title
    return doc.Chart(
        chart_id(workload.name, quantity.name, "cases"),
        ", ".join(filter(None, [title, place])),
        doc.ChartKind.INTERVALS,
        doc.Axis("", labels=names, cases=tuple(case.id for case, _ in measured)),
        replace(quantity.axis, is_log=spans_decades),
        {"": (doc.Series("", "", marks),)},
        f"{others} cases have no value, or are beyond the first {_MOST_ROWS}." if others else "",
        doc.OnPage.HTML,
        subtitle=fixed(workload),
        references=tuple(reference for reference in quantity.references if reference.kind is doc.ReferenceKind.LEVEL),
    )


def _mark(row: int, case: CaseResult, value: float, quantity: Quantity) -> doc.Mark:
    low, high = case.time.interval or (None, None) if quantity.name == "time" and case.time else (None, None)
    return doc.Mark(float(row), value, low, high, case.unshared_flags, case.id)


def _row_name(workload: WorkloadFindings, case: CaseResult) -> str:
    words = case.variant if workload.compare else in_words(case.shape) or case.id or workload.name
    return f"{words} (baseline)" if case.is_baseline else words


# --- roofline --------------------------------------------------------------------------------------------------------


def roofline(workload: WorkloadFindings) -> doc.Section:
    """Return the cases below the machine's rates, for report.html; empty where a rate is unknown."""
    points = [(case, case.limit.intensity, case.tflops_done, ridge, peak)
             for case in workload.cases
             if case.limit.intensity and case.tflops_done
             for ridge, peak in [_roof(workload, case)] if ridge and peak]  # fmt: skip
    if not points:
        return doc.Section("roofline", "", workload=workload.name)
    names = list(workload.variants) if workload.compare else [""]
    series = []
    for name in names:
        marks = tuple(doc.Mark(x, y, flags=case.unshared_flags, case=case.id, note=doc.plain(case_text(case)))
                      for case, x, y, *_ in points if name in ("", case.variant))  # fmt: skip
        is_baseline = bool(name) and any(case.is_baseline for case, *_ in points if case.variant == name)
        series += [doc.Series(name or "case", name or "case", marks, is_baseline)] if marks else []
    roofs = grouped(((round(ridge, 3), round(peak, 3)), _row_name(workload, case)) for case, *_, ridge, peak in points)
    notes = [
        "Below the slanted line memory is the limit, below the level one arithmetic.",
        _hollow([mark for line in series for mark in line.marks]),
        "The peak depends on the types that a case computes in." if len(roofs) > 1 else "",
    ]
    chart = doc.Chart(
        chart_id(workload.name, "roofline"),
        "Roofline",
        doc.ChartKind.ROOFLINE,
        doc.Axis("FLOP per byte", is_log=True),
        doc.Axis("rate", Unit("TFLOP/s", 1.0), is_log=True),
        {"": tuple(series)},
        " ".join(filter(None, notes)),
        doc.OnPage.HTML,
        subtitle=fixed(workload),
        keys=tuple(names),
        references=tuple(doc.Reference(doc.ReferenceKind.ROOF, peak, _roof_name(peak, below, len(roofs)), ridge)
                         for (ridge, peak), below in roofs.items()),
    )  # fmt: skip
    return doc.Section("roofline", "Roofline", (chart,), workload=workload.name)


def _hollow(marks: Iterable[doc.Mark]) -> str:
    """Return what hollow points mean, with the flags of ``marks``; empty where none has any."""
    flags = sorted({flag for mark in marks for flag in mark.flags})
    return f"Hollow markers: measured with a flag ({', '.join(flags)})." if flags else ""


def _roof_name(peak: float, below: Sequence[str], roofs: int) -> str:
    """Return the peak, and with several roofs the cases below this one: they compute in different types."""
    rate = f"{peak:.0f} TFLOP/s"
    return f"{rate}: {doc.plain(doc.join(dict.fromkeys(below), most=1))}" if roofs > 1 else rate


def _roof(workload: WorkloadFindings, case: CaseResult) -> tuple[float | None, float | None]:
    """Return the FLOP per byte of the ridge of a case, and its peak in TFLOP/s."""
    dtype = str(case.params.get("dtype") or case.params.get("precision") or "")
    ridge = case.limit.ridge or workload.gpu.ridges.get(dtype)
    share = case.limit.flops_share
    return ridge, case.tflops_done / share if share and case.tflops_done else None
