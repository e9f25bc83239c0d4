"""Findings -> pictures: time, TFLOP/s and bandwidth over the sequence length, and the kernel time of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profpipe.findings import Axes, Findings, Point, WorkloadFindings
from profpipe.page import bars, excerpt
from profpipe.page.canvas import COLOURS, Plot, fixed, path_of
from profpipe.page.lines import Dot, Panel, Picture, Series, caption, not_shown, rejected, styles
from profpipe.page.lines import draw as draw_lines
from profpipe.page.markdown import escape
from profpipe.points import in_words, running_axis, shown
from profpipe.tolerance import INACCURATE

#: From this speed-up on a linear scale would press the others together.
_WIDE = 8.0

#: From this share of the memory bandwidth on it says something of a case.
_TELLING = 0.1


@dataclass(frozen=True)
class Quantity:
    """What is plotted: ``value`` of a case, None where it has none; ``tick`` writes a value at the axis."""

    name: str
    title: str
    value: Callable[[Point], float | None]
    spread: Callable[[Point], tuple[float | None, float | None]]
    tick: Callable[[float], str]
    decades: bool = False
    unit: str = ""
    peak: float | None = None
    #: A value that divides the good from the bad.
    level: float | None = None
    #: Whether only those within the tolerance have it.
    judged: bool = False


def draw(findings: Findings, folder: Path) -> dict[str, list[Plot]]:
    """Draws what each workload has data for into ``folder/plots``; workload name to its pictures."""
    return {workload.name: list(_of(workload, folder)) for workload in findings.workloads}


def _of(workload: WorkloadFindings, folder: Path) -> Iterator[Plot]:
    axis = running_axis(point.shape for point in workload.points if point.time)
    for quantity in _quantities(workload):
        if axis is not None:
            yield from _over(workload, axis, quantity, folder)
    if workload.compare and (shape := workload.largest) and len([p for p in shape.points if p.split]) > 1:
        yield bars.shares(workload, shape, folder)


def _quantities(workload: WorkloadFindings) -> Iterator[Quantity]:
    basis = workload.basis
    titles = {"time": "Median time of a call", "wall": "Wall time", "cpu_op": "Self time of CPU operators per call"}
    title = titles.get(basis.quantity, f"Kernel time per call ({basis.profiler})") if basis else ""
    if workload.compare and any(point.speedup not in (None, 1.0) for point in workload.points):
        bases = {point.variant for point in workload.points if point.is_baseline}
        over = f"How many times as fast as {min(bases) if len(bases) == 1 else 'the baseline'}"
        wide = max(point.speedup or 0.0 for point in workload.points) > _WIDE
        yield Quantity("speedup", over, lambda p: p.speedup, _none, "{:.4g}x".format, decades=wide, level=1.0,
                       judged=True)  # fmt: skip
    yield Quantity("time", title, lambda p: p.time.ns if p.time else None, _tenths, time_tick, decades=True)
    dense = [point for point in workload.points if "flops_effective" not in point.values]
    peak = _peak((point.tflops, point.of_peak_flops) for point in dense)
    yield Quantity("tflops", "Rate of computation", lambda p: p.tflops, _none, _plain, unit="TFLOP/s", peak=peak)
    reached = [point.of_peak_bytes for point in workload.points if point.gbytes_per_s is not None]
    if all(share is not None and share < _TELLING for share in reached):
        return
    peak = _peak((point.gbytes_per_s, point.of_peak_bytes) for point in workload.points)
    moved = "Rate of the bytes that a call must move"
    yield Quantity("bandwidth", moved, lambda p: p.gbytes_per_s, _none, _plain, unit="GB/s", peak=peak)


def _plain(value: float) -> str:
    return f"{value:.4g}"


def time_tick(ns: float) -> str:
    """``500 us``, then ``1 ms``: a scale changes its unit at a thousand, unlike a column."""
    name, size = next((n, s) for n, s in (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)) if ns >= s or s == 1.0)
    return f"{ns / size:.4g} {name}" if ns else "0"


def _tenths(point: Point) -> tuple[float | None, float | None]:
    return (point.time.p10, point.time.p90) if point.time else (None, None)


def _none(_: Point) -> tuple[None, None]:
    return None, None


def _peak(rates: Iterable[tuple[float | None, float | None]]) -> float | None:
    """The machine's limit, where all cases share it: it depends on the data type."""
    peaks = [rate / share for rate, share in rates if rate and share]
    return peaks[0] if peaks and max(peaks) - min(peaks) < 1e-6 * max(peaks) else None


def _over(workload: WorkloadFindings, axis: str, quantity: Quantity, folder: Path) -> Iterator[Plot]:
    """A picture with a panel for each combination of the other axes that the page tells of."""
    panels = list(_panels(workload, axis, quantity))
    if not panels:
        return
    path = path_of(workload, quantity.name)
    title = f"{quantity.title} over {axis}"
    picture = Picture(title, fixed(workload), axis, quantity.tick, quantity.decades, quantity.unit, quantity.peak,
                      quantity.level)  # fmt: skip
    draw_lines(picture, panels, folder / path)
    every = len({excerpt.besides(shape.axes, (axis, _line_axis(workload, axis))) for shape in workload.shapes})
    left_out = f" {len(panels)} of {every} combinations of the other axes." if every > excerpt.GROUPS else ""
    said = [caption(picture, panels) + left_out, escape(_barred(workload, axis)) if quantity.judged else ""]
    yield Plot(title, path.as_posix(), " ".join(part.strip() for part in said if part))


def _barred(workload: WorkloadFindings, axis: str) -> str:
    """The cases of these panels that have a time and no speed-up, for what they or their baseline compute."""
    left_out: dict[str, list[str]] = {}
    drawn = excerpt.groups(workload, axis)
    for point in workload.points:
        if point.time and point.speedup is None and excerpt.besides(point.shape, (axis,)) in drawn:
            own = f"marked {point.accuracy.mark}" if point.barred and point.accuracy else ""
            why = own or (f"whose baseline is {point.baseline_mark}" if point.baseline_mark else "")
            left_out.setdefault(why, []).append(point.variant)
    return not_shown({why: names for why, names in left_out.items() if why})


def _panels(workload: WorkloadFindings, axis: str, quantity: Quantity) -> Iterator[Panel]:
    lines = _line_axis(workload, axis)
    looks = _styles(workload) if lines is None else styles(dict.fromkeys(_label(p, lines) for p in workload.points))
    wrong: dict[str, list[bool]] = {}
    for point in workload.points:
        if point.time:
            wrong.setdefault(_label(point, lines), []).append(INACCURATE in point.marks)
    # Those of its cases that have a speed-up are not the inaccurate ones.
    named = rejected(looks, {} if quantity.judged else wrong)
    groups: dict[Axes, list[Point]] = {others: [] for others in excerpt.groups(workload, axis, lines)}
    for point in workload.points:
        if (others := excerpt.besides(point.shape, (axis, lines))) in groups:
            groups[others].append(point)
    for others, points in groups.items():
        own = [(name, [p for p in points if _label(p, lines) == name]) for name in looks]
        series = [_series(*named[name], line, axis, quantity) for name, line in own]
        if kept := tuple(one for one in series if one.dots):
            yield Panel(others, kept)


def _line_axis(workload: WorkloadFindings, axis: str) -> str | None:
    """Where nothing is compared: the axis whose values are the lines, that with the most of those that fit."""
    if workload.compare:
        return None
    counts = {name: len({shown(dict(shape.axes)[name]) for shape in workload.shapes})
              for name in workload.varying_shape if name != axis}  # fmt: skip
    return max((name for name in counts if counts[name] <= len(COLOURS)), key=lambda name: counts[name], default=None)


def _label(point: Point, lines: str | None) -> str:
    if lines is None:
        return point.variant
    value = dict(point.shape)[lines]
    return shown(value) if isinstance(value, str) else in_words(((lines, value),))


def _series(name: str, style: Mapping[str, Any], points: Sequence[Point], axis: str, quantity: Quantity) -> Series:
    dots = [
        Dot(float(dict(point.shape)[axis]), value, *quantity.spread(point), hollow=bool(point.own_marks))
        for point in points
        if (value := quantity.value(point))
    ]
    return Series(name, style, tuple(sorted(dots, key=lambda dot: dot.x)))


def _styles(workload: WorkloadFindings) -> dict[str, dict[str, Any]]:
    """Each implementation's look, the same in every picture."""
    baselines = {point.variant for point in workload.points if point.is_baseline}
    return styles(workload.variants, baselines.pop() if len(baselines) == 1 else None)
