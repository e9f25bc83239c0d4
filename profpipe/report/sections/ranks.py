"""The processes that ran cases together: time, memory, error and communication of each."""

from __future__ import annotations

from collections.abc import Sequence

from profpipe.analysis.findings.workloads import WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.labels import case_text
from profpipe.report.units import size_unit, time_unit

#: Endings of the metrics of errors, and the tensors that they are of.
_TENSORS = {"": "output", "_dq": "dQ", "_dk": "dK", "_dv": "dV"}
_DIFFERENCES = {"error_max": "max", "error_mean": "mean"}
_ERRORS = {
    "error_rel_l1": "rel. L1 error",
    "error_rel_l1_dq": "of dQ",
    "error_rel_l1_dk": "of dK",
    "error_rel_l1_dv": "of dV",
}


def ranks(workload: WorkloadFindings) -> doc.Section:
    """Return the figures of each process and its differences from the reference; empty without several processes."""
    own = {case.id: [rank for rank in workload.ranks if rank.case == case.id] for case in workload.cases}
    rows = [(case, rank, i == 0) for case in workload.cases for i, rank in enumerate(own[case.id])]

    def numbers(metric: str) -> list[float | None]:
        return [rank.numbers.get(metric) for _, rank, _ in rows]

    memory, busy = size_unit(numbers("peak_allocated")), time_unit(numbers("communication_busy"))
    metrics = [
        doc.Column("time", "time", time_unit(numbers("time"))),
        doc.Column("peak_allocated", "peak memory", memory),
        doc.Column("peak_reserved", "reserved", memory),
        *(doc.Column(metric, title) for metric, title in _ERRORS.items()),
        doc.Column("communication_busy", "communicates", busy),
        doc.Column("compute_busy", "computes", busy),
        doc.Column("communication_overlap", "hidden %"),
    ]
    differences = [
        doc.Column(f"{error}{ending}", f"{tensor}: {title}")
        for ending, tensor in _TENSORS.items()
        for error, title in _DIFFERENCES.items()
    ]

    def table(id: str, title: str, numbers: Sequence[doc.Column]) -> doc.Table:
        cells = [
            [case_text(case) if is_first else "", rank.name, *(rank.numbers.get(column.id) for column in numbers)]
            for case, rank, is_first in rows
            if any(column.id in rank.numbers for column in numbers)
        ]
        return doc.make_table(id, [doc.label("case"), doc.label("rank"), *numbers], cells, title, doc.Placement.DETAILS)

    tables = [
        table("processes", "Each process", metrics),
        table("differences", "Largest and mean difference of each process from the reference", differences),
    ]
    notes = [means_note(workload)]
    if any("time" in rank.numbers for rank in workload.ranks):
        notes.append(
            "Several processes ran each case together. Elsewhere the time of a case is that of its slowest process in"
            " each call, and its memory and errors are the worst ones."
        )
    if profilers := {rank.profiler for rank in workload.ranks if "communication_overlap" in rank.numbers}:
        notes.append(
            f"Per call, from single launches ({', '.join(sorted(profilers))}): communicates and computes are the times"
            " in which a GPU runs a kernel of either kind, waiting included; hidden is the part of the communication"
            " during which the GPU computes too."
        )
    title, summary = "Processes and GPUs", " ".join(filter(None, notes))
    return doc.make_section("ranks", title, tables, summary, workload.name, folds_long_tables=True)


def means_note(workload: WorkloadFindings) -> str:
    """Return that kernel times are means over the GPUs; empty where those of one GPU alone are known."""
    if (most := max((case.breakdown.ranks for case in workload.cases if case.breakdown), default=1)) > 1:
        what = "GPUs" if any(len(own.ranks) > own.processes for own in workload.steps.cases) else "ranks"
        return f"Kernel times are means over {most} {what}; communication includes waiting for the others."
    own = (rank for rank in workload.ranks if rank.profiler == workload.kernel_profiler)
    seen = [rank.case for rank in own if "communication_busy" in rank.numbers]
    if len(seen) == len(set(seen)):
        return ""
    return "Kernel times of several GPUs are means over them; communication includes waiting for the others."
