"""The short text files beside SUMMARY.md: the same numbers for a terminal, a diff or a grep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profpipe.findings import Findings, Point, WorkloadFindings
from profpipe.page import agreement_sheets, excerpt, kernel_sheets, limit_sheets, sheets, study_sheets, wording
from profpipe.page.markdown import Sheet
from profpipe.page.quantities import number, size_unit
from profpipe.points import shown
from profpipe.tables import Tables

Run = Mapping[str, Any]


def texts(findings: Findings, tables: Tables, run: Run) -> dict[str, str]:
    """File name to content, for those files that have something to say."""
    made = {
        "gpu_info.txt": _gpu_info(run),
        "baseline_benchmark.txt": _by_workload(findings, _baseline),
        "comparison_results.txt": "\n\n".join(
            [
                *map(study_sheets.plain, findings.studies),
                _by_workload(findings, lambda workload: _comparison(workload, findings)),
            ]
        ),
        "nsys_stats.txt": _nsys(findings, tables),
        "ncu_memory_metrics.txt": _by_workload(findings, lambda w: _ncu(w, kernel_sheets.MEMORY_FIGURES)),
        "ncu_compute_metrics.txt": _by_workload(findings, lambda w: _ncu(w, kernel_sheets.COMPUTE_FIGURES)),
    }
    return {name: text.rstrip() + "\n" for name, text in made.items() if text.strip()}


def _by_workload(findings: Findings, text_of: Any) -> str:
    parts = [(workload, text_of(workload)) for workload in findings.workloads]
    return "\n\n".join(f"{w.name}{_fixed(w)}\n\n{text}" for w, text in parts if text)


def _fixed(workload: WorkloadFindings) -> str:
    words = ", ".join(f"{axis} {shown(value)}" for axis, value in workload.fixed)
    return f" ({words})" if words else ""


def _gpu_info(run: Run) -> str:
    machine = run.get("machine") or {}
    lines = []
    for i, gpu in enumerate(machine.get("gpus") or ()):
        lines.append(f"GPU {i}")
        lines += ["  " + _fact(name, value) for name, value in gpu.items() if value not in (None, "")]
    if "gpus" in machine and not machine["gpus"]:
        lines.append("no NVIDIA GPU")
    jobs = [job for job in run.get("jobs") or () if "peaks" in job]
    rates = {"peak rates": machine.get("peaks"), "measured rates": machine.get("ceilings")}
    rates |= {f"peak rates of {job['workload']} under {job['profiler']}": job["peaks"] for job in jobs}
    for title, peaks in rates.items():
        if peaks:
            lines += [title, *(f"  {line}" for line in _rates(peaks))]
    lines += [f"{name}: {machine[name]}" for name in ("cpu", "cpu_count", "os", "python") if machine.get(name)]
    return "\n".join(lines)


def _fact(name: str, value: Any) -> str:
    """``max sm clock: 1980 MHz``: a field of run.json as people say it, its unit behind the number."""
    words, _, stored = name.rpartition("_")
    units = {"bytes": lambda v: size_unit([v]).with_name(v), "hz": lambda v: f"{v / 1e6:.0f} MHz",
             "w": lambda v: f"{v:.0f} W"}  # fmt: skip
    if words and stored in units:
        return f"{words.replace('_', ' ')}: {units[stored](value)}"
    said = ".".join(map(str, value)) if name == "compute_capability" and isinstance(value, list) else shown(value)
    return f"{name.replace('_', ' ')}: {said}"


def _rates(stated: Mapping[str, Any]) -> Iterator[str]:
    """``fp16: 1071 TFLOP/s``, the memory's rate and whatever else is stated with them."""
    for name, value in stated.items():
        if name == "flops":
            yield from (f"{dtype}: {number(rate / 1e12)} TFLOP/s" for dtype, rate in value.items() if rate)
        elif name == "bytes_per_s" and value:
            yield f"memory: {number(value / 1e9)} GB/s"
        elif value is not None and not isinstance(value, Mapping):
            yield f"{name.replace('_', ' ')}: {f'{value:.4g}' if isinstance(value, float) else value}"


def _baseline(workload: WorkloadFindings) -> str:
    """The baseline's cases; without a baseline, every case, for there is nothing to compare."""
    points = [point for point in workload.points if point.time and (point.is_baseline or not workload.baseline)]
    return _cases(workload, points) if points else ""


def _comparison(workload: WorkloadFindings, findings: Findings) -> str:
    points = [point for point in workload.points if point.time]
    shortened = excerpt.of(workload, findings.workloads) is not workload
    if not points or not (workload.compare or shortened):
        return ""
    parts = [_cases(workload, points)]
    for shape in workload.shapes:
        share, place = f"Kernel share ({workload.kernel_profiler})", _plain(wording.axes(shape.axes))
        tables = {share: sheets.kernel_share(shape, workload.iterated), wording.SWAP_HEADING: sheets.swaps(shape)}
        titles = {title: f"{title}, {place}" if place else title for title in tables}
        parts += [f"{titles[title]}\n\n{table.plain()}" for title, table in tables.items() if table]
    if shortened:
        everything = {
            "What limits it": limit_sheets.limits(workload, points, one_shape=False),
            "By phase": kernel_sheets.phases(workload, points),
            "Differences between profilers": agreement_sheets.apart(workload),
            "Every figure of every profiler": agreement_sheets.everything(workload),
        }
        parts += [f"{title}\n\n{table.plain()}" for title, table in everything.items() if table]
    return "\n\n".join(parts)


def _cases(workload: WorkloadFindings, points: Sequence[Point]) -> str:
    table = sheets.cases(workload, points)
    said = f"Times are the {wording.quantity(workload.basis)}. {sheets.said_of_cases([table])}".strip()
    return f"{said}\n\n{table.plain()}"


def _plain(markdown: str) -> str:
    return Sheet([markdown], []).plain().splitlines()[0] if markdown else ""


def _nsys(findings: Findings, tables: Tables) -> str:
    """Kernels by time over all cases, as `nsys stats` lists them; from nsys alone.

    Set-up, warm-up and the flush between samples are in no case. A workload without any, as a command may be, is one.
    """
    captured = tables.kernels[tables.kernels["profiler"] == "nsys"]
    in_case = captured["case"] != ""
    rows = captured[in_case | ~in_case.groupby(captured["workload"]).transform("any")]
    if rows.empty:
        return ""
    sums = rows.groupby(["kernel_class", "kind", "kernel"], sort=False)[["calls", "total_ns"]].sum().reset_index()
    sums = sums.sort_values("total_ns", ascending=False, kind="stable")
    all_ns = float(sums["total_ns"].sum())
    written = [
        [f"{100 * total / all_ns:.1f}", f"{total:.0f}", str(calls), f"{total / calls:.0f}", *map(str, name)]
        for *name, calls, total in sums.itertuples(index=False, name=None)
    ]
    head = ["%", "total ns", "launches", "mean ns", "class", "kind", "name"]
    return "Kernels, copies and sets over all cases (nsys)\n\n" + _aligned(head, written)


def _aligned(head: list[str], rows: list[list[str]]) -> str:
    return Sheet(head, rows, labels=0, words=frozenset({"class", "kind", "name"})).plain()


def _ncu(workload: WorkloadFindings, figures: Any) -> str:
    sheet = kernel_sheets.counters(workload.counters, workload.points, figures)
    return sheet.plain() if workload.counters and len(sheet.head) > 3 - (len(workload.points) == 1) else ""
