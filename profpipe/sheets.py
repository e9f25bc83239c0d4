"""Findings -> the tables of SUMMARY.md, which the text files share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from profpipe.findings import Agreement, Counters, KernelRow, Point, Shape, Split, Swap, WorkloadFindings
from profpipe.markdown import Sheet, code, escape, short_names
from profpipe.points import shown
from profpipe.quantities import MISSING, Unit, count, number, percent, ratio, signed_percent, size_unit, time_unit
from profpipe.wording import PART_NAMES, axes, trust

#: ncu's figures in the order in which they are read: title, and the metrics that may hold it, newest spelling first.
MEMORY_FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("memory %", ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",)),
    ("DRAM %", ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed")),
    ("DRAM GB/s", ("dram__bytes.sum.per_second",)),
    ("DRAM MB", ("dram__bytes.sum",)),
    ("L1 hit %", ("l1tex__t_sector_hit_rate.pct",)),
    ("L2 hit %", ("lts__t_sector_hit_rate.pct",)),
    ("L2 %", ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)),
)
COMPUTE_FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SM %", ("sm__throughput.avg.pct_of_peak_sustained_elapsed",)),
    ("tensor %", (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "TPC.TriageCompute.sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed",
    )),
    ("occupancy %", ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    ("most possible %", ("sm__maximum_warps_per_active_cycle_pct",)),
    ("registers", ("launch__registers_per_thread",)),
    ("waves", ("launch__waves_per_multiprocessor",)),
    ("IPC", ("sm__inst_executed.avg.per_cycle_active",)),
    ("SM GHz", ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")),
)  # fmt: skip

_SCALE = {"DRAM GB/s": 1e9, "DRAM MB": 1e6, "SM GHz": 1e9}

#: Prefixes that ncu puts before its units.
_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def answers(workload: WorkloadFindings) -> Sheet:
    """A row a shape: the fastest, by how much, and whether to believe it."""
    head = [escape(", ".join(workload.varying_shape)) or "shape", "fastest", "time", "over baseline", "trust"]
    unit = time_unit(shape.fastest.time.ns for shape in workload.shapes if shape.fastest and shape.fastest.time)
    rows = []
    for shape in workload.shapes:
        best = shape.fastest
        if best is not None and best.time is not None:
            base = shape.baseline
            doubts = trust(workload, best)
            if base is not None and base is not best and base.marks and set(base.marks) != set(best.marks):
                doubts += f"; baseline: {trust(workload, base)}"
            over = ratio(best.speedup) if best.speedup is not None else MISSING
            rows.append([axes(shape.axes) or "all", code(best.variant), unit.with_name(best.time.ns), over, doubts])
    return Sheet(head, rows, labels=2, words=frozenset({"trust"})).without_empty()


# --- kernel shares ---------------------------------------------------------------------------------------------------


def kernel_share(shape: Shape, iterated: bool = True) -> Sheet:
    """Implementations as columns, what their kernels do as rows; the baseline first, then the fastest."""
    points = sorted((p for p in shape.points if p.split), key=lambda p: (not p.is_baseline, p.split.total.ns if p.split else 0))
    splits = [point.split for point in points if point.split]
    if not splits:
        return Sheet([], [])
    unit = time_unit(part.ns for split in splits for name, part in split.parts.items() if name != "rest")
    unit = unit if any(split.fused for split in splits) else time_unit(split.total.ns for split in splits)
    head = [""] + [code(p.variant or p.id or "whole capture") + (" (baseline)" if p.is_baseline else "") for p in points]
    rows = list(_share_rows(splits, unit, f"{unit.name}/call" if iterated else unit.name))
    if any(point.kernel_speedup is not None for point in points) and len(points) > 1:
        rows.append(["over baseline", *(ratio(point.kernel_speedup) for point in points)])
    return Sheet(head, rows)


def _share_rows(splits: Sequence[Split], unit: Unit, per: str) -> Iterable[list[str]]:
    cpu = splits[0].kind == "cpu_op"
    copy = "copy" if cpu else "direct_copy"

    def times(*parts: str) -> list[str]:
        sums = [sum(split.part(part).ns for part in parts) for split in splits]
        return [unit.of(ns) if ns else "" for ns in sums]

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
    yield from _where_any([f"everything else {per}", *times("rest")])
    yield from _where_any([f"whole graphs {per}", *times("graph")])
    yield [f"**Total {per}**", *(f"**{unit.of(split.total.ns)}**" for split in splits)]


def _attention_share(split: Split) -> str:
    if split.fused:
        return percent(split.part("attention").ns / split.total.ns)
    return "unfused: gemm + softmax" if split.part("softmax").ns else MISSING


def _where_any(row: list[str]) -> Iterable[list[str]]:
    if any(row[1:]):
        yield row


def classes(points: Sequence[Point]) -> Sheet:
    """Share of each kernel class, cases as columns: for workloads that compare no implementations."""
    splits = [point.split for point in points if point.split]
    names = sorted({name for s in splits for name in s.classes}, key=lambda name: -max(s.classes[name].ns for s in splits if name in s.classes))
    if not names:
        return Sheet([], [])
    unit = time_unit(split.total.ns for split in splits)
    head = ["class"]
    for point in points:
        title = axes(point.shape) or code(point.variant or point.id or "whole capture")
        head += [f"{title}: {unit.name}", "%", "calls"]
    rows = []
    for name in names:
        row = [escape(name)]
        for split in splits:
            part = split.classes.get(name)
            row += [unit.of(part.ns), percent(part.ns / split.total.ns), count(part.calls)] if part else ["", "", ""]
        rows.append(row)
    rows.append(["**total**"] + [cell for s in splits for cell in (f"**{unit.of(s.total.ns)}**", "", count(s.total.calls))])
    return Sheet(head, rows)


def swaps(shape: Shape) -> Sheet:
    """What each implementation gives as a kernel, with its helpers, and as a whole call."""
    base = shape.baseline
    name = code(base.variant) if base else "the baseline"
    head = [f"instead of {name}", "attention kernel", "with its helpers", "all kernels of a call", "measured call",
            "most it could give (Amdahl)", "what else changes, per call"]  # fmt: skip
    rows = [
        [code(s.variant), ratio(s.attention), ratio(s.with_helpers), ratio(s.call), ratio(s.measured_call),
         ratio(s.limit) if s.attention is not None else MISSING, _changes(s)]
        for s in sorted(shape.swaps, key=lambda s: -s.call)
    ]  # fmt: skip
    return Sheet(head, rows, words=frozenset({head[-1]})).without_empty()


def _changes(swap: Swap) -> str:
    unit = time_unit(ns for _, ns, _ in swap.changes)
    told = []
    for part, ns, calls in swap.changes[:3]:
        launches = f" ({calls:+.0f} launch{'es' if abs(calls) >= 1.5 else ''})" if abs(calls) >= 0.5 else ""
        told.append(f"{PART_NAMES[part]} {'+' if ns > 0 else '−'}{unit.with_name(abs(ns))}{launches}")
    return ", ".join(told)


# --- times -----------------------------------------------------------------------------------------------------------


def cases(workload: WorkloadFindings, points: Sequence[Point]) -> Sheet:
    """Time with its spread, rates, memory and error by case."""
    timed = [point for point in points if point.time]
    unit = time_unit(point.time.ns for point in timed if point.time)
    reserved = size_unit(point.values.get("peak_allocated") for point in timed)
    columns: list[tuple[str, Callable[[Point], str]]] = [
        (f"time {unit.name}", lambda p: unit.of(p.time.ns) if p.time else MISSING),
        ("95 % interval", lambda p: _between(unit, p.time.ci_low, p.time.ci_high) if p.time else MISSING),
        ("p10 to p90", lambda p: _between(unit, p.time.p10, p.time.p90) if p.time else MISSING),
        ("n", lambda p: str(p.time.n) if p.time and p.time.n is not None else MISSING),
        ("over baseline", lambda p: ratio(p.speedup)),
        ("TFLOP/s", lambda p: number(p.tflops)),
        ("% of peak", lambda p: _of_peak(p.of_peak_flops)),
        ("GB/s", lambda p: number(p.gbytes_per_s)),
        ("% of bandwidth", lambda p: _of_peak(p.of_peak_bytes)),
        (f"peak {reserved.name}", lambda p: reserved.of(p.values.get("peak_allocated"))),
        ("max error", lambda p: number(p.values.get("error_max"))),
        ("mean error", lambda p: number(p.values.get("error_mean"))),
        ("marks", lambda p: escape(", ".join(mark.replace("_", "-") for mark in p.marks))),
    ]
    labels = [*workload.varying_shape, *([workload.compare] if workload.compare else [])] or ["case"]
    head = [escape(label) for label in labels] + [title for title, _ in columns]
    rows = [_labels(point, workload) + [cell(point) for _, cell in columns] for point in timed]
    return Sheet(head, rows, labels=len(labels), words=frozenset({"marks"})).without_empty()


def _labels(point: Point, workload: WorkloadFindings) -> list[str]:
    shape = [escape(shown(value)) for _, value in point.shape]
    named = [code(point.variant) + (" (baseline)" if point.is_baseline else "")] if workload.compare else []
    return shape + named or [code(point.id) or "whole capture"]


def _between(unit: Unit, low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"{unit.of(low)} to {unit.of(high)}"


def _of_peak(share: float | None) -> str:
    if share is None:
        return MISSING
    return f"**{100 * share:.0f}, above peak**" if share > 1 else percent(share)


def agreements(found: Sequence[Agreement], workload: WorkloadFindings) -> Sheet:
    """The figures of each profiler for the same call, a row each."""
    unit = time_unit(figure.ns for agreement in found for figure in agreement.figures)
    rows = []
    for agreement in found:
        for i, figure in enumerate(agreement.figures):
            name = case_label(agreement.point) if i == 0 else ""
            because = escape(figure.reason) or ("**no known reason**" if figure.flagged else "")
            told = _profiler_words(figure.profiler, agreement.point)
            rows.append([name, told, unit.of(figure.ns), signed_percent(figure.difference) if i else "", because])
    reference = found[0].reference if found else ""
    head = ["case", "as timed by", f"{unit.name}/call", f"against {reference}", "because"]
    return Sheet(head, rows, labels=2, words=frozenset({"because"}))


def _profiler_words(profiler: str, point: Point) -> str:
    if profiler == "plain":
        return "perf_counter, median" if point.split and point.split.kind == "cpu_op" else "CUDA events, median"
    if point.split and point.split.kind == "cpu_op":
        return f"{profiler}, sum of operators"
    return f"{profiler}, sum of kernels"


def case_label(point: Point) -> str:
    """``seqlen 512, `flash` ``: a case in words."""
    words = [part for part in (axes(point.shape), code(point.variant)) if part]
    return ", ".join(words) or code(point.id) or "whole capture"


# --- kernels ---------------------------------------------------------------------------------------------------------


def top(rows: Sequence[KernelRow], points: Sequence[Point], *, limit: int, iterated: bool) -> Sheet:
    """The kernels with the most time of each of ``points``; names are shortened, each to a name of its own."""
    by_case = {point.id: [row for row in rows if row.case == point.id][:limit] for point in points}
    kept = [row for own in by_case.values() for row in own]
    if not kept:
        return Sheet([], [])
    short = short_names(row.kernel for row in kept)
    unit = time_unit(row.ns for row in kept)
    per = "/call" if iterated else ""
    written = []
    for point in points:
        for i, row in enumerate(by_case[point.id]):
            family = f" ({escape(row.family)})" if row.family else ""
            written.append([case_label(point) if i == 0 else "", code(short[row.kernel]), escape(row.kernel_class) + family,
                            count(row.calls), unit.of(row.ns), percent(row.share)])  # fmt: skip
    head = ["case", "kernel", "class", f"launches{per}", f"{unit.name}{per}", "%"]
    return Sheet(head, written, labels=3)


def full_names(rows: Iterable[KernelRow]) -> Sheet:
    """Short name to full name."""
    short = short_names(row.kernel for row in rows)
    return Sheet(["short", "full"], [[code(s), code(name)] for name, s in short.items() if s != name], labels=2)


def phases(workload: WorkloadFindings) -> Sheet:
    """Kernel time of the user's own ranges, nested ranges included."""
    points = {point.id: point for point in workload.points}
    unit = time_unit(phase.ns for phase in workload.phases)
    rows = [
        [case_label(points[p.case]), escape(p.phase), count(p.instances), count(p.kernels), unit.of(p.ns), percent(p.share)]
        for p in workload.phases
    ]
    return Sheet(["case", "phase", "times entered", "launches/call", f"{unit.name}/call", "%"], rows, labels=2)


def counters(rows: Sequence[Counters], points: Sequence[Point], figures: tuple[tuple[str, tuple[str, ...]], ...]) -> Sheet:
    """ncu's figures of each kernel; those that the chip or the chosen set does not have are left out."""
    short = short_names(row.kernel for row in rows)
    unit = time_unit(row.mean_ns for row in rows)
    labels = {point.id: case_label(point) for point in points}
    written = [
        [labels.get(row.case, code(row.case)), code(short[row.kernel]), unit.of(row.mean_ns),
         *(_figure(row, title, names) for title, names in figures)]
        for row in rows
    ]  # fmt: skip
    return Sheet(["case", "kernel", f"{unit.name}", *(title for title, _ in figures)], written, labels=2).without_empty()


def _figure(row: Counters, title: str, names: Sequence[str]) -> str:
    found: tuple[float, str] | None = next((row.values[name] for name in names if name in row.values), None)
    if found is None:
        return MISSING
    value, unit = found
    return number(value * _factor(unit) / _SCALE[title]) if title in _SCALE else number(value)


def _factor(unit: str) -> float:
    """ncu scales its units by itself: ``Gbyte/s``, ``Mbyte``, ``cycle/nsecond``."""
    if unit.endswith("/nsecond") or unit.endswith("/ns"):
        return 1e9
    if unit.endswith("/usecond") or unit.endswith("/us"):
        return 1e6
    base = unit.split("/")[0]
    for word in ("byte", "hz", "Hz"):
        if base.endswith(word):
            return _PREFIX.get(base[: -len(word)], 1.0)
    return 1.0


def plain_values(values: Iterable[tuple[str, Any]]) -> Sheet:
    """Two columns of what is known; nothing of what is not."""
    rows = [[escape(name), escape(value)] for name, value in values if value not in (None, "", [], {})]
    return Sheet(["", ""], rows, labels=2)
