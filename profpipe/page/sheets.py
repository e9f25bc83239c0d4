"""Findings -> the tables of SUMMARY.md, which the text files share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from profpipe.findings import CHANGE, Axes, Part, Point, Shape, Split, Swap, Win, WorkloadFindings
from profpipe.page import excerpt, remainder
from profpipe.page.answers import level
from profpipe.page.markdown import Sheet, code, escape, listed
from profpipe.page.marks import beside, told
from profpipe.page.quantities import (
    MISSING,
    NOT_ASKED,
    Unit,
    count,
    number,
    percent,
    plus_minus,
    ratio,
    size_unit,
    time_unit,
)
from profpipe.page.wording import PART_NAMES, axes, case_id, case_label
from profpipe.points import running_axis, shown, without

#: Columns of a table of times; more are plotted, and listed by case.
_COLUMNS = 10
#: The column of the power in watts.
_POWER = "W"
#: Changes of a swap that are named; more are counted.
_CHANGES = 3
#: Names that share their marks in a cell; more are counted.
_NAMED = 2


def answers(workload: WorkloadFindings) -> Sheet:
    """A row a shape: the fastest, its time and how well that is known, its lead, and marks. One unit for all times."""
    names = workload.varying_shape
    unit = time_unit(shape.win.best.time.ns for shape in workload.shapes if shape.win and shape.win.best.time)
    head = [*map(escape, names), "fastest", f"time {unit.name}", "95 % interval", "over baseline", "marks"]
    rows = []
    for shape in workload.shapes:
        if shape.win is not None and shape.win.best.time is not None:
            best = shape.win.best
            values = [escape(shown(value)) for _, value in shape.axes]
            rows.append([*values, _first(shape.win), unit.of(best.time.ns if best.time else None), _margin(best),
                         ratio(best.speedup), _marks_of(workload, shape)])  # fmt: skip
    return Sheet(head, rows, labels=len(names) + 1, words=frozenset({"marks"})).without_empty()


def _first(win: Win) -> str:
    if win.verdict == "level":
        return f"level: {level(win)}"
    return code(win.best.variant) + {"void": ", in doubt", "only": ", alone"}.get(win.verdict, "")


def _margin(point: Point) -> str:
    margin = point.time.margin if point.time else None
    return MISSING if margin is None else plus_minus(margin)


def _marks_of(workload: WorkloadFindings, shape: Shape) -> str:
    """Those of the winner, of what it is held against, and of what took less time and takes no part.

    It is held against the baseline, and where it is that itself, against the next. One may be in doubt without a mark.
    """
    best, base = shape.win.best if shape.win else None, shape.baseline
    own = told(best, workload.shared_marks) if best else ""
    barred = shape.win.barred if shape.win else ()
    others = told(base, workload.shared_marks) if base is not None and base is not best and base not in barred else ""
    # Where others are level with them, "both" would be any two.
    alone = shape.win is not None and all(point is best or point is base for point in shape.win.level)
    both = alone and others and others == own
    parts = [f"both: {own}"] if both else [own, f"baseline: {others}" if others else ""]
    second = shape.win.second if shape.win and best is base else None
    named = [point for point in (second, *barred) if point is not None]
    alike: dict[str, list[str]] = {}
    for point in named:
        alike.setdefault(told(point, workload.shared_marks), []).append(code(point.variant))
    parts += [f"{listed(names, most=_NAMED)}: {marks}" for marks, names in alike.items() if marks]
    parts += [f"in doubt: {shape.win.why}"] if shape.win and shape.win.verdict == "void" else []
    return "; ".join(part for part in parts if part)


def samples(workload: WorkloadFindings) -> str:
    """How many samples the times are medians of, in words: ``30``, ``34 to 146``; empty where nobody counted."""
    counts = [point.time.n for point in workload.points if point.time and point.time.n is not None]
    return "" if not counts else str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


# --- kernel shares ---------------------------------------------------------------------------------------------------


def kernel_share(shape: Shape, iterated: bool = True) -> Sheet:
    """Implementations as columns, what their kernels do as rows; the baseline first, then the fastest."""
    points = sorted(
        (p for p in shape.points if p.split), key=lambda p: (not p.is_baseline, p.split.total.ns if p.split else 0)
    )
    splits = [point.split for point in points if point.split]
    if not splits:
        return Sheet([], [])
    unit = time_unit(part.ns for split in splits for name, part in split.parts.items() if name != "rest")
    unit = unit if any(split.fused for split in splits) else time_unit(split.total.ns for split in splits)
    head = [""] + [
        code(p.variant or p.id or "whole capture") + (" (baseline)" if p.is_baseline else "") for p in points
    ]
    rows = list(_share_rows(splits, unit, f"{unit.name}/call" if iterated else unit.name))
    if any(point.kernel_speedup is not None for point in points) and len(points) > 1:
        rows.append(["over baseline", *(ratio(point.kernel_speedup) for point in points)])
    return Sheet(head, rows)


def _share_rows(splits: Sequence[Split], unit: Unit, per: str) -> Iterable[list[str]]:
    cpu = splits[0].kind == "cpu_op"
    copy = "copy" if cpu else "direct_copy"

    def written(parts: Iterable[Part]) -> list[str]:
        return [unit.of(part.ns) if part.ns else "" for part in parts]

    def times(name: str) -> list[str]:
        return written(split.part(name) for split in splits)

    def calls(part: str) -> list[str]:
        return [count(split.part(part).calls) for split in splits]

    if any(split.fused for split in splits):
        yield ["Attn %", *(_attention_share(split) for split in splits)]
        yield [f"Attn {per}", *times("attention")]
        yield from _where_any([f"Attn helpers {per}", *times("helpers")])
    yield from _where_any([f"gemm {per}", *times("gemm")])
    yield from _where_any([f"softmax {per}", *times("softmax")])
    yield [f"{copy} calls", *calls("direct_copy")]
    yield [f"{copy} {per}", *times("direct_copy")]
    yield ["add calls", *calls("add")]
    yield [f"add {per}", *times("add")]
    names = remainder.classes(splits)
    for name in names:
        yield [f"{escape(remainder.named(name))} {per}", *written(remainder.of(split, name) for split in splits)]
    yield from _where_any([f"everything else {per}", *written(remainder.left(split, names) for split in splits)])
    yield from _where_any([f"whole graphs {per}", *times("graph")])
    yield [f"**Total {per}**", *(f"**{unit.of(split.total.ns)}**" for split in splits)]


def _attention_share(split: Split) -> str:
    if split.fused:
        return percent(split.part("attention").ns / split.total.ns)
    return "unfused" if split.part("softmax").ns else MISSING


def _where_any(row: list[str]) -> Iterable[list[str]]:
    if any(row[1:]):
        yield row


def classes(points: Sequence[Point]) -> Sheet:
    """Share of each kernel class, cases as columns: for workloads that compare no implementations."""
    splits = [point.split for point in points if point.split]
    names = sorted(
        {name for s in splits for name in s.classes},
        key=lambda name: -max(s.classes[name].ns for s in splits if name in s.classes),
    )
    if not names:
        return Sheet([], [])
    unit = time_unit(split.total.ns for split in splits)
    labels = [case_label(point) for point in points if point.split]
    head = ["class", *(f"{label}: {unit.name}" if len(labels) > 1 else unit.name for label in labels)]
    rows = []
    for name in names:
        found = [(split.classes.get(name), split.total.ns) for split in splits]
        rows.append(
            [escape(name), *(f"{unit.of(p.ns)} ({percent(p.ns / total)} %)" if p else "" for p, total in found)]
        )
    rows.append(["**total**", *(f"**{unit.of(split.total.ns)}**" for split in splits)])
    rows.append(
        ["launches" if splits[0].kind == "kernel" else "calls", *(count(split.total.calls) for split in splits)]
    )
    return Sheet(head, rows)


_ELSE = "what else changes, per call"


def swaps(shape: Shape) -> Sheet:
    """What each implementation gives as a kernel, with its helpers, and as a whole call."""
    base = shape.baseline
    cpu = any(point.split and point.split.kind == "cpu_op" for point in shape.points)
    noun = "operator" if cpu else "kernel"
    splits = {point.variant: point.split for point in shape.points if point.split}
    unfused = {variant for variant, split in splits.items() if not split.fused and split.part("softmax").ns}
    head = [
        f"instead of {code(base.variant) if base else 'its baseline'}",
        f"attention {noun}",
        "with its helpers",
        f"all {noun}s of a call",
        "measured call",
        "if attention took no time",
        _ELSE,
    ]
    rows = [
        [
            code(swap.variant) + (f" *{swap.mark}*" if swap.mark else ""),
            ratio(swap.attention) if swap.variant not in unfused else "unfused",
            ratio(swap.with_helpers) if swap.variant not in unfused else "",
            ratio(swap.call),
            ratio(swap.measured_call),
            ratio(swap.limit) if swap.attention is not None else MISSING,
            _changes(_told_apart(swap, base, splits), cpu),
        ]
        for swap in sorted(shape.swaps, key=lambda swap: -swap.call)
    ]
    return Sheet(head, rows, words=frozenset({head[-1]})).without_empty()


def _told_apart(swap: Swap, base: Point | None, splits: Mapping[str, Split]) -> list[tuple[str, float, float]]:
    """(part, ns, calls) of its changes, largest first; everything else by class, as the table of shares has it."""
    changes = [(PART_NAMES[part], ns, calls) for part, ns, calls in swap.changes]
    names = remainder.classes(list(splits.values()))
    if base is None or not base.split or not names:
        return changes
    own, before = splits[swap.variant], base.split
    pairs = [(remainder.named(name), remainder.of(own, name), remainder.of(before, name)) for name in names]
    pairs.append((PART_NAMES["rest"], remainder.left(own, names), remainder.left(before, names)))
    changes = [change for change in changes if change[0] != PART_NAMES["rest"]]
    changes += [
        (name, after.ns - former.ns, after.calls - former.calls)
        for name, after, former in pairs
        if abs(after.ns - former.ns) >= before.least_change(own)
    ]
    return sorted(changes, key=lambda change: -abs(change[1]))


def _changes(changes: Sequence[tuple[str, float, float]], cpu: bool) -> str:
    """The largest differences of its other parts, with the launches that they are made of; how many more there are."""
    unit = time_unit(ns for _, ns, _ in changes)
    told = []
    for part, ns, calls in changes[:_CHANGES]:
        noun = ("call" if cpu else "launch") + ("" if abs(calls) < 1.5 else "s" if cpu else "es")
        more = f" ({abs(calls):.0f} {'more' if calls > 0 else 'fewer'} {noun})" if abs(calls) >= 0.5 else ""
        told.append(f"{escape(part)} {'+' if ns > 0 else '-'}{unit.with_name(abs(ns))}{more}")
    left = len(changes) - len(told)
    return ", ".join(told) + (f" and {left} smaller" if left else "")


def changes_said(tables: Iterable[Sheet]) -> str:
    """By which rule ``tables`` of swaps name what else changes, where one does."""
    cells = [row[-1] for sheet in tables if _ELSE in sheet.head for row in sheet.rows]
    if not cells:
        return ""
    said = (
        f"What else changes are differences of {100 * CHANGE:g} % of the shorter of the two calls and more, the "
        f"{_CHANGES} largest by name."
    )
    outside = f"{PART_NAMES['copies']} are memcpy and memset, which are not among all kernels of a call."
    copies = any(PART_NAMES["copies"] in cell for cell in cells)
    return f"{said} {outside[0].upper()}{outside[1:]}" if copies else said


# --- times -----------------------------------------------------------------------------------------------------------


def pivots(workload: WorkloadFindings) -> list[tuple[str, Sheet]]:
    """(title, table) with implementations as rows and the running axis as columns; the largest shape's group first.

    One table of times and, where FLOPs are known, one of TFLOP/s for each combination of the other axes. A column has
    its own unit, its fastest is bold, marks stand beside the number, and what has no time says what became of it.
    """
    axis = running_axis(shape.axes for shape in workload.shapes)
    if axis is None or not workload.compare:
        return []
    groups: dict[Axes, list[Shape]] = {}
    for shape in workload.shapes:
        groups.setdefault(without(shape.axes, axis), []).append(shape)
    if max(map(len, groups.values())) > _COLUMNS:
        return []
    groups = {others: groups[others] for others in excerpt.groups(workload, axis)}
    first = without(workload.largest.axes, axis) if workload.largest else ()
    ordered = sorted(groups.items(), key=lambda group: group[0] != first)
    return [
        (", ".join(part for part in (title, axes(others)) if part), _pivot(workload, axis, shapes, rate))
        for others, shapes in ordered
        for title, rate in (("time", False), ("TFLOP/s", True))
        if not rate or any(point.tflops for shape in shapes for point in shape.points)
    ]


def _pivot(workload: WorkloadFindings, axis: str, shapes: Sequence[Shape], rate: bool) -> Sheet:
    units = [time_unit(p.time.ns for p in shape.timed if p.time) for shape in shapes]
    values = [shown(dict(shape.axes)[axis]) for shape in shapes]
    columns = [{point.variant: point for point in shape.points} for shape in shapes]
    named = [v if rate else f"{v}: {unit.name}" for v, unit in zip(values, units, strict=True)]
    head = [escape(workload.compare or ""), *(escape(f"{axis} {named[0]}"), *map(escape, named[1:]))]
    rows = []
    for variant in workload.variants:
        # The first screen says why it was skipped; of what the pipeline file excludes there is nothing to say.
        if {column[variant].fate for column in columns if variant in column} <= {"skipped"}:
            continue
        cells = []
        for shape, unit, column in zip(shapes, units, columns, strict=True):
            cells.append(_cell(column.get(variant), shape, unit, rate))
        baseline = any(column[variant].is_baseline for column in columns if variant in column)
        rows.append([code(variant) + (" (baseline)" if baseline else ""), *cells])
    return Sheet(head, rows)


def _cell(point: Point | None, shape: Shape, unit: Unit, rate: bool) -> str:
    if point is None:
        return NOT_ASKED
    if point.time is None:
        return escape(point.fate) or MISSING
    text = number(point.tflops) if rate else unit.of(point.time.ns)
    text = f"**{text}**" if shape.fastest is not None and point.id == shape.fastest.id else text
    return text + beside(point)


def cases(workload: WorkloadFindings, points: Sequence[Point]) -> Sheet:
    """Time with its spread, rates, memory and error by case."""
    timed = [point for point in points if point.time]
    unit = time_unit(point.time.ns for point in timed if point.time)
    allocated = size_unit(point.values.get("peak_allocated") for point in timed)
    # How many samples they are, where they are all as many, is said once.
    as_many = len(timed) > 1 and len({point.time.n for point in timed if point.time}) == 1
    counted = "samples" if workload.basis is None or workload.basis.timed else "iterations"
    columns: list[tuple[str, Callable[[Point], str]]] = [
        (f"time {unit.name}", lambda p: unit.of(p.time.ns) if p.time else MISSING),
        ("95 % interval", lambda p: _between(unit, p.time.ci_low, p.time.ci_high) if p.time else MISSING),
        ("p10 to p90", lambda p: _between(unit, p.time.p10, p.time.p90) if p.time else MISSING),
        (counted, lambda p: str(p.time.n) if p.time and p.time.n is not None and not as_many else MISSING),
        ("over baseline", lambda p: ratio(p.speedup)),
        ("TFLOP/s", lambda p: number(p.tflops)),
        ("effective TFLOP/s", lambda p: number(p.tflops_done) if p.is_sparse else MISSING),
        ("% of peak", lambda p: _of_peak(p.of_peak_flops)),
        ("GB/s", lambda p: number(p.gbytes_per_s)),
        ("% of bandwidth", lambda p: _of_peak(p.of_peak_bytes)),
        (f"peak {allocated.name}", lambda p: allocated.of(p.values.get("peak_allocated"))),
        ("max error of output", lambda p: number(p.values.get("error_max"))),
        ("mean error of output", lambda p: number(p.values.get("error_mean"))),
        ("as CUDA graph", lambda p: unit.of(p.values.get("time_cuda_graph"))),
        ("SM MHz", lambda p: _clock(p)),
        (_POWER, lambda p: number(p.values.get("power"))),
        ("degC", lambda p: number(p.values.get("temperature"))),
        ("marks", lambda p: escape(", ".join(p.own_marks))),
    ]
    labels = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    head = [escape(label) for label in labels] + [title for title, _ in columns]
    rows = [_labels(point, workload) + [cell(point) for _, cell in columns] for point in timed]
    return Sheet(head, rows, labels=len(labels), words=frozenset({"marks"})).without_empty()


def said_of_cases(tables: Iterable[Sheet]) -> str:
    """What one must know of the columns of ``cases``; empty where they have none of these."""
    if not any(_POWER in sheet.head for sheet in tables):
        return ""
    return (
        f"{_POWER}: what the driver tells lags by 100 ms or more, so that of a short case carries the load of the case "
        "before."
    )


def _clock(point: Point) -> str:
    """The median, and how far it went where that is more than 5 %, or the reason for a mark."""
    clock, low, high = (point.values.get(f"sm_clock{end}") for end in ("", "_min", "_max"))
    if clock is None:
        return MISSING
    span = ""
    if low and high and high > low and ("throttled" in point.marks or high - low > 0.05 * high):
        span = f" ({low / 1e6:.0f} to {high / 1e6:.0f})"
    return f"{clock / 1e6:.0f}{span}"


def _labels(point: Point, workload: WorkloadFindings) -> list[str]:
    shape = [escape(shown(value)) for _, value in point.shape]
    named = [code(point.variant) + (" (baseline)" if point.is_baseline else "")] if workload.compare else []
    return shape + named or [case_id(point.id) or "whole capture"]


def _between(unit: Unit, low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"{unit.of(low)} to {unit.of(high)}"


def _of_peak(share: float | None) -> str:
    if share is None:
        return MISSING
    return f"**{100 * share:.0f}, above peak**" if share > 1 else percent(share)
