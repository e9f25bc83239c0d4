"""What limits each case: the host, arithmetic or memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from profpipe.analysis.case_index import OVERHEAD
from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Limiter, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.measure.flags import Flag
from profpipe.report import document as doc
from profpipe.report.labels import (
    case_text,
    fill,
    literal,
    means_note,
    names,
    percent,
    plural,
    share_cell,
    variant_text,
)
from profpipe.report.selection import main_cases
from profpipe.report.units import MISSING, number, size_unit, time_unit

_LIMITERS = {Limiter.HOST: "the host", Limiter.COMPUTE: "arithmetic", Limiter.MEMORY: "memory"}

#: Metrics that a limit needs: what is missing, the other limit, the rate that is known.
_UNDECLARED = (("bytes", "memory", "FLOP/s"), ("FLOPs", "arithmetic", "bytes/s"))


def limits(workload: WorkloadFindings, part: WorkloadFindings) -> doc.Section:
    """Return the limits of ``part``, the shapes that are shown in full: the largest shape's on the short page."""
    largest, _ = main_cases(workload)
    largest_ids = {case.id for case in largest}
    others = [case for case in part.cases if case.id not in largest_ids]
    is_one_shape = len({case.shape for case in largest}) == 1
    title = in_words(largest[0].shape) if is_one_shape and workload.compare else ""
    first = table(part, largest, is_one_shape, title)
    second = table(part, others, False, "other cases" if first.rows else "", "other_limits", doc.OnPage.DETAILS)
    notes = doc.Bullets(tuple(explanations(part)), doc.OnPage.DETAILS)
    rates = f"Rates of the machine: {workload.gpu.rates.source}." if workload.gpu.rates.source else ""
    blocks = (first, second, notes, doc.Paragraph(rates, doc.OnPage.DETAILS))
    shown = blocks if first.rows or second.rows else ()
    return doc.make_section("limits", "What limits it", shown, _definition(workload, largest), workload.name)


def table(
    workload: WorkloadFindings,
    cases: Sequence[CaseResult],
    is_one_shape: bool,
    title: str = "",
    id: str = "limits",
    placement: doc.OnPage = doc.OnPage.SUMMARY,
) -> doc.TableBlock:
    """Return a row per case whose limit is known, or unknown for want of declared FLOPs or bytes.

    The table is empty where no limit of the workload is known.
    """
    has_limits = any(case.limit.limited_by for case in workload.cases)
    limited = [case for case in cases if has_limits and (case.limit.limited_by or _undeclared(case))]
    rate = "ceiling" if workload.gpu.rates_measured else "peak"
    slowed = workload.recorded.slowed_cases(workload.kernel_profiler)
    times = time_unit(ns for case in limited for ns in (case.limit.gpu_ns, case.limit.issue_ns) if ns)
    sizes = size_unit(case.limit.dram_bytes for case in limited)
    tflops = "effective TFLOP/s" if any(case.is_sparse for case in limited) else "TFLOP/s"
    columns = [
        (doc.label("case", workload.compare or "case"),
         lambda c: variant_text(c) if is_one_shape and c.variant else case_text(c)),
        (doc.number("gpu", "GPU time", times),
         lambda c: doc.TableCell(c.limit.gpu_ns, note="at most" if _includes_gaps(c) else "")),
        (doc.number("issue", "host issues in", times), lambda c: c.limit.issue_ns),
        (doc.number("idle", "GPU idle %"),
         lambda c: share_cell(c.idle_share, Flag.PROFILER_OVERHEAD if c.id in slowed else None)),
        (doc.ratio("graph", "as CUDA graph"), _graph_speedup),
        (doc.number("intensity", "FLOP/byte"), lambda c: c.limit.intensity),
        (doc.number("tflops", tflops), lambda c: c.tflops_done),
        (doc.number("flops_share", f"% of {rate} FLOP/s"), lambda c: share_cell(c.limit.flops_share)),
        (doc.number("dram", "DRAM", sizes), lambda c: c.limit.dram_bytes),
        (doc.number("moved", "must move", sizes),
         lambda c: c.values.get("bytes_moved") if c.limit.dram_bytes else None),
        (doc.number("bandwidth_share", f"% of {rate} bytes/s"), lambda c: share_cell(c.limit.bandwidth_share)),
        (doc.label("limiter", "limited by"), lambda c: _LIMITERS.get(c.limit.limited_by, MISSING)),
    ]  # fmt: skip
    return doc.table_of(id, limited, columns, title, placement)


def _includes_gaps(case: CaseResult) -> bool:
    """Return True if the GPU time is the time of the call, in which the GPU may wait for the host."""
    gpu_ns = case.limit.gpu_ns
    return gpu_ns is not None and gpu_ns == case.values.get("time") and case.limit.limited_by is Limiter.HOST


def _graph_speedup(case: CaseResult) -> float | None:
    graph, eager = case.values.get("time_cuda_graph"), case.values.get("time")
    return eager / graph if graph and eager else None


def _undeclared(case: CaseResult) -> str:
    """Return what a workload does not declare, ``bytes`` or ``FLOPs``, without which the limit is unknown."""
    if case.limit.limited_by:
        return ""
    if case.limit.flops_share and "bytes_moved" not in case.values:
        return "bytes"
    return "FLOPs" if case.limit.bandwidth_share and "flops" not in case.values else ""


# --- explanations ----------------------------------------------------------------------------------------------------


def _definition(workload: WorkloadFindings, cases: Sequence[CaseResult]) -> str:
    """Return what the words of the last column mean in the rows of ``cases``."""
    limiters = {case.limit.limited_by for case in workload.cases}
    parts = []
    if limiters & {Limiter.COMPUTE, Limiter.MEMORY}:
        ridges = ", ".join(f"{ridge} for {types}" for types, ridge in _ridges(workload))
        rates = "measured ceilings" if workload.gpu.rates_measured else "peak rates"
        parts.append(
            f"Roofline with the machine's {rates}: arithmetic limits a call with more FLOP per byte than the ridge"
            f"{f' ({ridges})' if ridges else ''}, memory a call with less."
        )
    if Limiter.HOST in limiters:
        parts.append("The host limits a call where launching takes over 5 % longer than running.")
    if missing := sorted(set(filter(None, map(_undeclared, cases)))):
        parts.append(f"{MISSING}: the workload does not declare the {' and '.join(missing)} of a call.")
    return " ".join(parts)


def explanations(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield the conditions and the gaps of the tables."""
    means = means_note(workload)
    if means:
        yield fill("{} The GPU time is therefore that of the call.", means)
    limited = [case for case in workload.cases if case.limit.limited_by]
    yield from _other_types(limited)
    yield from _missing_declarations(workload)
    yield from _left_out(workload)
    if any(case.limit.dram_bytes for case in limited):
        yield "FLOP/byte uses the DRAM traffic that ncu measured; without it, the bytes that a call must move."
    elif any(case.limit.limited_by is Limiter.COMPUTE for case in limited):
        yield "FLOP/byte uses the bytes that a call must move. Unfused calls move more, so memory may limit them."
    if any(_includes_gaps(case) for case in workload.cases):
        why = " or wait for other GPUs" if means else ""
        yield f"at most: the kernels were not captured{why}, so this is the time of the call."
    if any(case.idle_share is not None for case in limited):
        yield "GPU idle: share of a call's range, or of its first to last kernel, in which no kernel runs."
    if workload.recorded.slowed_cases(workload.kernel_profiler):
        yield f"profiler_overhead: the profiler slowed the loop by over {100 * OVERHEAD:.0f} %: idle shares are high."


def _missing_declarations(workload: WorkloadFindings) -> Iterator[doc.Text]:
    rate = "measured ceiling" if workload.gpu.rates_measured else "peak"
    for undeclared, other, unit in _UNDECLARED:
        cases = [case for case in workload.cases if _undeclared(case) == undeclared]
        if shares := [case.limit.flops_share or case.limit.bandwidth_share or 0.0 for case in cases]:
            low, high = percent(min(shares)), percent(max(shares))
            reached = fill("{} to {}", low, high) if min(shares) < max(shares) else low
            yield fill(
                f"{plural(len(cases), 'case')} at {{}} of the {rate} {unit}: {undeclared} are not declared, so it is"
                f" unknown whether {other} is the limit.",
                reached,
            )


def _left_out(workload: WorkloadFindings) -> Iterator[str]:
    """Yield how many cases have no row, and why."""
    limits = [case.limit for case in workload.cases if not (case.limit.limited_by or _undeclared(case))]
    rated = [limit for limit in limits if limit.flops_share or limit.bandwidth_share]
    low = sum(bool(limit.flops_share and limit.bandwidth_share) for limit in rated)
    for count, why in (
        (sum(not limit.flops_share for limit in rated), "the peak of the data type is unknown"),
        (sum(not limit.bandwidth_share for limit in rated), "the GPU's memory bandwidth is unknown"),
        (low, f"the rates are below 10 % of both {'measured ceilings' if workload.gpu.rates_measured else 'peaks'}"),
    ):
        if count:
            yield f"Without a row: {plural(count, 'case')}, because {why}."


def _ridges(workload: WorkloadFindings) -> Iterator[tuple[str, str]]:
    """Yield data types and the FLOP per byte of the ridge, where all cases of a type agree on it."""
    untyped_cases = [case for case in workload.cases if not case.limit.dtypes]
    named = {str(case.params.get("dtype") or case.params.get("precision") or "") for case in untyped_cases}
    yield from ((name, number(ridge)) for name, ridge in workload.gpu.ridges.items() if name in named)
    limits = (case.limit for case in workload.cases if case.limit.dtypes and case.limit.ridge)
    others = grouped((" and ".join(limit.dtypes), number(limit.ridge)) for limit in limits)
    yield from ((types, ridges[0]) for types, ridges in others.items() if len(set(ridges)) == 1)


def _other_types(cases: Iterable[CaseResult]) -> Iterator[doc.Text]:
    """Yield which variants compute in other data types than the one that the case names."""
    for types, case_variants in grouped((case.limit.dtypes, case.variant or case.id) for case in cases).items():
        if types:
            variants = list(dict.fromkeys(case_variants))
            verb = "uses" if len(variants) == 1 else "use"
            peaks = "peak of this type" if len(types) == 1 else "peaks of these types"
            yield fill(f"{{}} {verb} {' and '.join(types)}: compared with the {peaks}.", names(variants))


def summary(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield what the fastest case of the largest shape reaches, and what limits it."""
    shape = workload.largest
    case = shape.fastest if shape else None
    if shape is None or case is None or case.limit.limited_by is None:
        return
    limit, rate = case.limit, "measured ceiling" if workload.gpu.rates_measured else "peak"
    place = f" at {literal(in_words(shape.axes))}" if shape.axes else ""
    if limit.limited_by is Limiter.HOST:
        yield fill(f"{{}} is host-bound{place}: launching takes longer than running.", doc.Code(case.variant))
    elif limit.limited_by is Limiter.COMPUTE and case.tflops and limit.flops_share:
        types = f"{' and '.join(limit.dtypes)} " if limit.dtypes else ""
        dense = f" ({number(case.tflops)} of dense work)" if case.is_sparse else ""
        rates = f"{number(case.tflops_done)} TFLOP/s{dense}"
        sentence = f"{{}} reaches {rates}{place}, {{}} of the {types}{rate}: arithmetic is the nearer limit."
        yield fill(sentence, doc.Code(case.variant), percent(limit.flops_share))
    elif limit.bandwidth_share:
        sentence = f"{{}} reaches {{}} of the memory bandwidth's {rate}{place}: memory is the nearer limit."
        yield fill(sentence, doc.Code(case.variant), percent(limit.bandwidth_share))
