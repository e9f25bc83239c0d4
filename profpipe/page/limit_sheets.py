"""Findings -> the table of what limits each case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from profpipe.findings import OVERHEAD, Limit, Point, WorkloadFindings
from profpipe.page import rank_sheets
from profpipe.page.markdown import Sheet, code, listed
from profpipe.page.quantities import MISSING, number, percent, ratio, size_unit, time_unit
from profpipe.page.wording import axes, case_label, cases

#: What arithmetic and memory are as limits. A call may stay far below it for reasons of its own kernels.
ROOF = "the nearer of the roofline's two roofs"

#: The column of what the GPU waits, and what follows a share that is too high.
_IDLE, _SLOWED = "GPU idle %", " *profiler_overhead*"


def limits(workload: WorkloadFindings, points: Sequence[Point], *, one_shape: bool) -> Sheet:
    """A row a case: the host's time against the GPU's, idle share, the roofline's two axes, and which of them binds.

    Left out are those that stay far below both rates; where no limit is known at all there is no table.
    """
    known = [p for p in points if p.limit.binds or _lacks(p)] if any(p.limit.binds for p in workload.points) else []
    rate = "ceiling" if workload.rates_measured else "peak"
    done = "effective" if any(p.is_sparse for p in known) else ""
    times = time_unit(ns for p in known for ns in (p.limit.gpu_ns, p.limit.issue_ns) if ns)
    sizes = size_unit(p.limit.traffic for p in known)
    slowed = {o.case for o in workload.overheads if o.marked and o.profiler == workload.kernel_profiler}
    columns: list[tuple[str, Callable[[Point], str]]] = [
        (f"GPU {times.name}", lambda p: ("≤ " if _has_gaps(p) else "") + times.of(p.limit.gpu_ns)),
        (f"host issues in {times.name}", lambda p: times.of(p.limit.issue_ns)),
        (_IDLE, lambda p: _idle(p, p.id in slowed)),
        ("as CUDA graph", lambda p: ratio(_graph(p))),
        ("FLOP/byte", lambda p: number(p.limit.intensity)),
        (f"{done} TFLOP/s".strip(), lambda p: number(p.tflops_done)),
        (f"% of {rate} FLOP/s", lambda p: percent(p.limit.of_flops)),
        (f"DRAM {sizes.name}", lambda p: sizes.of(p.limit.traffic)),
        (f"must move {sizes.name}", lambda p: sizes.of(p.values.get("bytes_moved") if p.limit.traffic else None)),
        (f"% of {rate} bytes/s", lambda p: percent(p.limit.of_bandwidth)),
        ("limited by", lambda p: _words(p.limit)),
    ]
    label = (lambda p: code(p.variant) or case_label(p)) if one_shape else case_label
    rows = [[label(p), *(cell(p) for _, cell in columns)] for p in known]
    head = [workload.compare or "case", *(title for title, _ in columns)]
    return Sheet(head, rows, words=frozenset({"limited by"})).without_empty()


def _idle(point: Point, slowed: bool) -> str:
    if point.split is None or point.split.idle is None:
        return MISSING
    return percent(point.split.idle) + (_SLOWED if slowed else "")


def _has_gaps(point: Point) -> bool:
    """Whether its GPU time is that of the call, for want of kernels, in which the GPU may wait for the host."""
    known = point.limit.gpu_ns is not None and point.limit.gpu_ns == point.values.get("time")
    return known and point.limit.binds == "host"


def _graph(point: Point) -> float | None:
    graph, eager = point.values.get("time_cuda_graph"), point.values.get("time")
    return eager / graph if graph and eager else None


def _words(limit: Limit) -> str:
    return {"host": "the host", "compute": "arithmetic", "memory": "memory"}.get(limit.binds, MISSING)


def explained(workload: WorkloadFindings, tables: Sequence[Sheet] = ()) -> str:
    """What stands behind the words of the last column, and the signs in ``tables``; without these, in that of all."""
    tables = tables or [limits(workload, workload.points, one_shape=False)]
    means = rank_sheets.means(workload)
    said = [f"{means} So the GPU's time is that of the call here."] if means else []
    known = [point.limit for point in workload.points if point.limit.binds]
    if any(one.binds in ("compute", "memory") for one in known):
        rate = "measured ceilings" if workload.rates_measured else "peaks"
        ridges = [f"{ridge} for {name}" for name, ridge in _ridges(workload)]
        said.append(
            f"By the roofline: the nearer of its two roofs is named, arithmetic for a call with more FLOP per byte than"
            f" the machine's {rate} have"
            + (f" ({', '.join(ridges)})" if ridges else "")
            + ", memory for one with less. How far it stays below both is up to its kernels."
        )
    said += _other_types(point for point in workload.points if point.limit.binds)
    said += _one_rate(workload, MISSING in _column(tables, "limited by"))
    said += _far_below(workload)
    if any(one.traffic for one in known):
        said.append(
            "What ncu saw a call move at the DRAM decides; where it did not look, what a call must move, "
            "and nothing where that would leave it below a tenth of either peak."
        )
    elif any(one.binds == "compute" for one in known):
        said.append(
            "FLOP/byte are of the bytes that a call must move at least. An unfused call moves many times as many: "
            "memory may be the nearer roof where arithmetic is named."
        )
    if any(one.binds == "host" for one in known):
        said.append("The host is the limit where it takes over 5 % longer to issue a call than the GPU to run it.")
    if any(_has_gaps(point) for point in workload.points):
        why = "its kernels were not captured" + (", or have waiting for other GPUs in them" if means else "")
        said.append(f"≤: {why}, so this is the time of the call, in which the GPU may wait too.")
    if any(cell != MISSING for cell in _column(tables, _IDLE)):
        said.append("Idle is the part of a call's range, or of its first kernel to its last, in which no kernel runs.")
    if any(_SLOWED in cell for cell in _column(tables, _IDLE)):
        slower = f"the profiler made the loop more than {100 * OVERHEAD:.0f} % slower"
        said.append(f"profiler_overhead: {slower}, so idle comes out too high.")
    return " ".join(said)


def _column(tables: Iterable[Sheet], title: str) -> list[str]:
    """What stands in the column of that title, in those of ``tables`` that have it."""
    return [row[sheet.head.index(title)] for sheet in tables if title in sheet.head for row in sheet.rows]


def _lacks(point: Point) -> str:
    """What is not declared of a call (``bytes`` or ``FLOPs``), without which its one rate does not tell its limit."""
    if point.limit.of_flops and "bytes_moved" not in point.values and not point.limit.binds:
        return "bytes"
    lacks_flops = point.limit.of_bandwidth and "flops" not in point.values and not point.limit.binds
    return "FLOPs" if lacks_flops else ""


def _one_rate(workload: WorkloadFindings, has_gaps: bool) -> Iterator[str]:
    """That cases have no limit for want of what their workload does not declare: a gap, if their column has others."""
    rate = "measured ceiling" if workload.rates_measured else "peak"
    for lacks, other, has in (("bytes", "memory", "FLOP/s"), ("FLOPs", "arithmetic", "bytes/s")):
        shares = [p.limit.of_flops or p.limit.of_bandwidth or 0.0 for p in workload.points if _lacks(p) == lacks]
        if shares:
            subject = f"{MISSING}: the {lacks}" if has_gaps else f"The {lacks}"
            low, high = percent(min(shares)), percent(max(shares))
            reached = low if low == high else f"{low} to {high}"
            yield (
                f"{subject} of the call are not declared, so whether {other} would limit it is not known "
                f"({cases(len(shares))}, {reached} % of the {rate} {has})."
            )


def _far_below(workload: WorkloadFindings) -> Iterator[str]:
    """That cases are missing from the table, of which nothing is said."""
    silent = [point.limit for point in workload.points if not (point.limit.binds or _lacks(point))]
    rated = [limit for limit in silent if limit.of_flops or limit.of_bandwidth]
    left = sum(bool(limit.of_flops and limit.of_bandwidth) for limit in rated)
    for unrated, why in (
        (sum(not limit.of_flops for limit in rated), "of data types whose peak is not known"),
        (sum(not limit.of_bandwidth for limit in rated), "of a GPU whose memory bandwidth is not known"),
    ):
        if unrated:
            yield f"{cases(unrated)} {why} {'is' if unrated == 1 else 'are'} left out."
    if left:
        rate = "measured ceilings" if workload.rates_measured else "peaks"
        stay, them = ("case is left out: it stays", "it") if left == 1 else ("cases are left out: they stay", "them")
        yield f"{left} {stay} below a tenth of both {rate}, and what limits {them} is not known."


def _ridges(workload: WorkloadFindings) -> Iterator[tuple[str, str]]:
    """Data types that are computed in, and the FLOP per byte above which arithmetic limits, where cases agree on it."""
    own = [point for point in workload.points if not point.limit.dtypes]
    named = {str(point.params.get("dtype") or point.params.get("precision") or "") for point in own}
    yield from ((name, number(ridge)) for name, ridge in workload.ridges.items() if name in named)
    others: dict[str, set[str]] = {}
    for limit in (point.limit for point in workload.points if point.limit.dtypes and point.limit.ridge):
        others.setdefault(listed(limit.dtypes), set()).add(number(limit.ridge))
    yield from ((types, min(ridges)) for types, ridges in others.items() if len(ridges) == 1)


def _other_types(points: Iterable[Point]) -> Iterator[str]:
    """``sage2 computes in int8 and fp8, ...``: a sentence for each set of types."""
    names: dict[tuple[str, ...], dict[str, None]] = {}
    for point in points:
        if point.limit.dtypes:
            names.setdefault(point.limit.dtypes, {})[code(point.variant) or case_label(point)] = None
    for types, called in names.items():
        does, held = ("computes", "is held") if len(called) == 1 else ("compute", "are held")
        against = "the rate of that" if len(types) == 1 else "the rates of these, one after the other"
        yield f"{listed(called)} {does} in {listed(types)}, and {held} against {against}."


def in_words(workload: WorkloadFindings) -> str:
    """What the fastest case of the largest shape reaches, and what limits it; empty where that is unknown."""
    best = workload.largest.fastest if workload.largest else None
    if best is None or not best.limit.binds:
        return ""
    there = _there(workload)
    limit, rate = best.limit, "measured ceiling" if workload.rates_measured else "peak"
    if limit.binds == "host":
        return f"{there} the host limits {code(best.variant)}: it takes longer to issue a call than the GPU to run it."
    if limit.binds == "compute" and best.tflops and limit.of_flops:
        types = f"{listed(limit.dtypes)} " if limit.dtypes else ""
        dense = f" of the work that it does ({number(best.tflops)} of the dense work)" if best.is_sparse else ""
        reached = (
            f"{number(best.tflops_done)} TFLOP/s{dense}, {percent(limit.of_flops)} % of the {rate} of {types}arithmetic"
        )
        return f"{there} {code(best.variant)} reaches {reached}; {_by_what(limit)}that is {ROOF}."
    if limit.of_bandwidth:
        reached = f"{percent(limit.of_bandwidth)} % of the {rate} of memory bandwidth"
        return f"{there} {code(best.variant)} reaches {reached}; that is {ROOF}."
    return ""


def _by_what(limit: Limit) -> str:
    """The least bytes prove that memory is the nearer roof; that arithmetic is, only measured traffic does."""
    return "by the bytes that it must move at least, " if limit.traffic is None else ""


def _there(workload: WorkloadFindings) -> str:
    """The largest shape: "there" where the headline ends with it, which it does when one wins everywhere."""
    wins = [shape.win for shape in workload.shapes if shape.win]
    everywhere = {(win.best.variant, win.verdict == "clear") for win in wins}
    if len(wins) == 1 or (len(everywhere) == 1 and wins[0].verdict == "clear"):
        return "There"
    return f"At {axes(workload.largest.axes)}," if workload.largest else "There"
