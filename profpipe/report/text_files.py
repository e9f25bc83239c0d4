"""The short text files beside SUMMARY.md: the same numbers for a terminal, a diff or a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Findings, WorkloadFindings
from profpipe.job import as_text
from profpipe.report import labels, selection
from profpipe.report.document import TableColumn, label, make_table
from profpipe.report.sections import agreement, cases, kernel_share, kernels, phases, roofline, studies
from profpipe.report.text import write_section, write_table
from profpipe.report.units import Unit, number, size_unit
from profpipe.results.manifest import Manifest, PeakRates
from profpipe.results.schema import Tables
from profpipe.stdio import visible


def texts(findings: Findings, tables: Tables, run: Manifest) -> dict[str, str]:
    """Return the contents by file name; a file without content is left out."""
    compared = [write_section(studies.study_table(study)) for study in findings.studies]
    compared.append(_join_workloads(findings, lambda workload: _comparison(workload, findings)))
    made = {
        "gpu_info.txt": _gpu_info(run),
        # Without a baseline, every case.
        "baseline_benchmark.txt": _join_workloads(
            findings, lambda w: _cases(w, [case for case in w.cases if case.is_baseline or not w.baseline])
        ),
        "comparison_results.txt": "\n\n".join(compared),
        "nsys_stats.txt": _nsys(tables),
        "ncu_memory_metrics.txt": _join_workloads(findings, lambda w: _ncu(w, kernels.MEMORY_FIGURES)),
        "ncu_compute_metrics.txt": _join_workloads(findings, lambda w: _ncu(w, kernels.COMPUTE_FIGURES)),
    }
    return {name: visible(text.rstrip()) + "\n" for name, text in made.items() if text.strip()}


def _join_workloads(findings: Findings, text_of: Callable[[WorkloadFindings], str]) -> str:
    parts = []
    for workload in findings.workloads:
        fixed = ", ".join(f"{axis} {as_text(value)}" for axis, value in workload.fixed)
        if text := text_of(workload):
            parts.append(f"{workload.name}{f' ({fixed})' if fixed else ''}\n\n{text}")
    return "\n\n".join(parts)


# --- the machine -----------------------------------------------------------------------------------------------------


def _gpu_info(run: Manifest) -> str:
    machine = run.machine
    lines = []
    for i, gpu in enumerate(machine.gpus or ()):
        lines.append(f"GPU {i}")
        lines += ["  " + _fact(name, value) for name, value in asdict(gpu).items() if value not in (None, "")]
    if machine.gpus == ():
        lines.append("no NVIDIA GPU")
    rates = {"peak rates": machine.peaks, "measured rates": machine.ceilings}
    rates |= {f"peak rates of {job.workload} under {job.profiler}": job.peaks for job in run.jobs}
    for title, peaks in rates.items():
        if peaks:
            lines += [title, *(f"  {line}" for line in _rates(peaks))]
    facts = {"cpu": machine.cpu, "cpu_count": machine.cpu_count, "os": machine.os, "python": machine.python}
    return "\n".join([*lines, *(f"{name}: {fact}" for name, fact in facts.items() if fact)])


def _fact(name: str, value: Any) -> str:
    """Return ``max sm clock: 1980 MHz``: a field of run.json in words, with its unit behind the number."""
    words, _, stored = name.rpartition("_")
    units = {"bytes": lambda v: size_unit([v]).with_name(v), "hz": lambda v: f"{v / 1e6:.0f} MHz",
             "w": lambda v: f"{v:.0f} W"}  # fmt: skip
    if words and stored in units:
        return f"{words.replace('_', ' ')}: {units[stored](value)}"
    text = ".".join(map(str, value)) if name == "compute_capability" and value else as_text(value)
    return f"{name.replace('_', ' ')}: {text}"


def _rates(rates: PeakRates) -> Iterator[str]:
    if rates.device:
        yield f"device: {rates.device}"
    yield from (f"{dtype}: {number(rate / 1e12)} TFLOP/s" for dtype, rate in rates.flops.items() if rate)
    if rates.bytes_per_s:
        yield f"memory: {number(rates.bytes_per_s / 1e9)} GB/s"
    if rates.source:
        yield f"source: {rates.source}"


# --- cases -----------------------------------------------------------------------------------------------------------


def _cases(workload: WorkloadFindings, chosen: Sequence[CaseResult]) -> str:
    title = f"Every number by case. Time: {labels.quantity(workload.time_source)}."
    return write_table(cases.make_case_table(workload, chosen, title))


def _comparison(workload: WorkloadFindings, findings: Findings) -> str:
    """Return the tables of every case; the pages show those of some shapes where there are many."""
    timed = [case for case in workload.cases if case.time]
    is_shortened = selection.select(workload, findings.workloads) is not workload
    if not timed or not (workload.compare or is_shortened):
        return ""
    parts = [_cases(workload, timed)]
    for shape in workload.shapes:
        place = f", {in_words(shape.axes)}" if shape.axes else ""
        title = f"Kernel share ({workload.kernel_profiler}){place}"
        parts.append(write_table(kernel_share.make_share_table(shape, labels.per_iteration(workload), title)))
        if shape.switch_costs:
            title = f"{kernel_share.TITLE}{place}"
            parts.append(write_table(kernel_share.table(shape, labels.iteration(workload), title)))
    if is_shortened:
        parts.append(write_table(roofline.table(workload, timed, False, "What limits it")))
        parts.append(write_table(phases.kernel_phases(workload, timed, "By phase")))
        parts += [write_table(table) for table in (agreement.differences(workload), agreement.all_figures(workload))]
    return "\n\n".join(part for part in parts if part)


# --- kernels ---------------------------------------------------------------------------------------------------------


def _nsys(tables: Tables) -> str:
    """Return the kernels of all cases by time, as ``nsys stats`` lists them; from nsys only.

    Set-up, warm-up and the cache flush are in no case. A workload without cases, such as a command, counts as a whole.
    """
    captured = tables.kernels[tables.kernels["profiler"] == "nsys"]
    in_case = captured["case"] != ""
    rows = captured[in_case | ~in_case.groupby(captured["workload"]).transform("any")]
    if rows.empty:
        return ""
    sums = rows.groupby(["kernel_class", "kind", "kernel"], sort=False)[["calls", "total_ns"]].sum().reset_index()
    sums = sums.sort_values("total_ns", ascending=False, kind="stable")
    all_ns = float(sums["total_ns"].sum())
    columns = (
        TableColumn("share", "%"),
        TableColumn("total_ns", "total", Unit("ns", 1.0)),
        TableColumn("launches", "launches"),
        TableColumn("mean_ns", "mean", Unit("ns", 1.0)),
        *map(label, ("class", "kind", "name")),
    )
    written = [
        (f"{100 * total / all_ns:.1f}", f"{total:.0f}", f"{calls}", f"{total / calls:.0f}", *map(str, names))
        for *names, calls, total in sums.itertuples(index=False, name=None)
    ]
    return write_table(make_table("nsys", columns, written, "Kernels, copies and sets over all cases (nsys)"))


def _ncu(workload: WorkloadFindings, figures: kernels.Figures) -> str:
    table = kernels.ncu_table(workload.kernels.counters, workload.cases, figures)
    return write_table(table) if len(table.columns) > 3 else ""
