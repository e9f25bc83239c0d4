"""Findings -> the table of the processes that ran cases together: time, memory, error and communication of each."""

from __future__ import annotations

from collections.abc import Sequence

from profpipe.findings import Point, WorkloadFindings
from profpipe.page.markdown import Sheet
from profpipe.page.quantities import MISSING, Unit, number, size_unit, time_unit
from profpipe.page.wording import case_label
from profpipe.rank_findings import OfRank

_ERRORS = {
    "error_rel_l1": "rel. L1 error",
    "error_rel_l1_dq": "of dQ",
    "error_rel_l1_dk": "of dK",
    "error_rel_l1_dv": "of dV",
}


def ranks(workload: WorkloadFindings, among: Sequence[Point]) -> Sheet:
    """A row a process, below its case; columns in which nothing was measured are left out."""
    told = [(point, own) for point in among for own in workload.ranks if own.case == point.id]
    time, memory = _unit(told, "time"), _unit(told, "peak_allocated")
    busy = _unit(told, "communication_busy")
    rows, before = [], ""
    for point, own in told:
        cells = [
            *(unit.of(own.numbers.get(metric)) for unit, metric in ((time, "time"), (memory, "peak_allocated"),
                                                                    (memory, "peak_reserved"))),
            *(_error(own.numbers.get(metric)) for metric in _ERRORS),
            *(busy.of(own.numbers.get(metric)) for metric in ("communication_busy", "compute_busy")),
            _percent(own.numbers.get("communication_overlap")),
        ]  # fmt: skip
        rows.append([case_label(point) if own.case != before else "", own.name, *cells])
        before = own.case
    head = ["case", "rank", f"time {time.name}", f"peak memory {memory.name}", f"reserved {memory.name}",
            *_ERRORS.values(), f"communicates {busy.name}", f"computes {busy.name}", "hidden %"]  # fmt: skip
    return Sheet(head, rows, labels=2).without_empty()


def means(workload: WorkloadFindings) -> str:
    """That kernel times are means over the GPUs, with waiting in them; empty where those of one GPU alone are known."""
    told = (own for own in workload.ranks if own.profiler == workload.kernel_profiler)
    seen = [own.case for own in told if "communication_busy" in own.numbers]
    if len(seen) == len(set(seen)):
        return ""
    return "Kernel times of several GPUs are means over them; communication has waiting for the others in it."


def explained(workload: WorkloadFindings) -> str:
    """What the columns are."""
    if not workload.ranks:
        return ""
    said = [means(workload)] if means(workload) else []
    if any("time" in own.numbers for own in workload.ranks):
        said.append(
            "Each case was run by several processes together. Everywhere else a case's time is that of the slowest "
            "of them in each call; of memory and errors the worst is told."
        )
    if profilers := {own.profiler for own in workload.ranks if "communication_overlap" in own.numbers}:
        said.append(
            f"Per call, from single launches ({', '.join(sorted(profilers))}): the time in which a GPU runs a kernel "
            "that communicates, waiting for the others included, and one that computes; hidden is the part of the "
            "former in which the latter ran too."
        )
    return " ".join(said)


def _unit(told: Sequence[tuple[Point, OfRank]], metric: str) -> Unit:
    values = [own.numbers.get(metric) for _, own in told]
    return size_unit(values) if metric.startswith("peak") else time_unit(values)


def _error(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2g}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else number(value)
