"""Findings -> the tables of single kernels: the top of each case, phases, and what ncu measured."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from profpipe.findings import Counters, KernelRow, Point, WorkloadFindings
from profpipe.markdown import Sheet, code, escape, short_names
from profpipe.quantities import MISSING, count, number, percent, time_unit
from profpipe.sheets import case_label

#: ncu's figures in the order in which they are read: title, and the metrics that may hold it, newest spelling first.
MEMORY_FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("memory %", ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",)),
    (
        "DRAM %",
        (
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
    ),
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


def top(rows: Sequence[KernelRow], points: Sequence[Point], *, limit: int, iterated: bool) -> Sheet:
    """The kernels with the most time of each of ``points``; names are shortened, each to a name of its own.

    Points of one shape are named by their implementation alone.
    """
    by_case = {point.id: [row for row in rows if row.case == point.id][:limit] for point in points}
    kept = [row for own in by_case.values() for row in own]
    if not kept:
        return Sheet([], [])
    short = short_names(row.kernel for row in rows)
    unit = time_unit(row.ns for row in kept)
    label = (lambda p: code(p.variant) or case_label(p)) if len({p.shape for p in points}) == 1 else case_label
    per = "/call" if iterated else ""
    written = []
    for point in points:
        for i, row in enumerate(by_case[point.id]):
            family = f" ({escape(row.family)})" if row.family else ""
            written.append([label(point) if i == 0 else "", code(short[row.kernel]), escape(row.kernel_class) + family,
                            count(row.calls), unit.of(row.ns), percent(row.share)])  # fmt: skip
    cpu = any(point.split and point.split.kind == "cpu_op" for point in points)
    nouns = ("operator", "calls") if cpu else ("kernel", "launches")
    head = ["case", nouns[0], "class", f"{nouns[1]}{per}", f"{unit.name}{per}", "%"]
    return _without_only_case(Sheet(head, written, labels=3), points)


def full_names(rows: Iterable[KernelRow]) -> Sheet:
    """Short name to full name."""
    short = short_names(row.kernel for row in rows)
    return Sheet(["short", "full"], [[code(s), code(name)] for name, s in short.items() if s != name], labels=2)


def phases(workload: WorkloadFindings) -> Sheet:
    """Kernel time of the user's own ranges, nested ranges included."""
    points = {point.id: point for point in workload.points}
    unit = time_unit(phase.ns for phase in workload.phases)
    per = "/call" if workload.iterated else ""
    rows = [
        [
            case_label(points[phase.case]),
            escape(phase.phase),
            count(phase.instances),
            count(phase.kernels),
            unit.of(phase.ns),
            percent(phase.share),
        ]
        for phase in workload.phases
    ]
    head = ["case", "phase", "times entered", f"launches{per}", f"{unit.name}{per}", "%"]
    return _without_only_case(Sheet(head, rows, labels=2), points.values()).without_empty()


def _without_only_case(sheet: Sheet, points: Collection[Point]) -> Sheet:
    """The same without its first column where there is only one case to name."""
    if len(points) > 1:
        return sheet
    return Sheet(sheet.head[1:], [row[1:] for row in sheet.rows], sheet.labels - 1, sheet.words)


def counters(
    rows: Sequence[Counters], points: Sequence[Point], figures: tuple[tuple[str, tuple[str, ...]], ...]
) -> Sheet:
    """ncu's figures of each kernel; those that the chip or the chosen set does not have are left out."""
    short = short_names(row.kernel for row in rows)
    unit = time_unit(row.mean_ns for row in rows)
    labels = {point.id: case_label(point) for point in points}
    written = [
        [labels.get(row.case, code(row.case)), code(short[row.kernel]), unit.of(row.mean_ns),
         *(_figure(row, title, names) for title, names in figures)]
        for row in rows
    ]  # fmt: skip
    return Sheet(
        ["case", "kernel", f"{unit.name}", *(title for title, _ in figures)], written, labels=2
    ).without_empty()


def _figure(row: Counters, title: str, names: Sequence[str]) -> str:
    found: tuple[float, str] | None = next((row.values[name] for name in names if name in row.values), None)
    if found is None:
        return MISSING
    value, unit = found
    if title == "registers":
        return count(value)
    return number(value * _factor(unit) / _SCALE[title]) if title in _SCALE else number(value)


def _factor(unit: str) -> float:
    """ncu scales its units by itself: ``Gbyte/s``, ``Mbyte``, ``cycle/nsecond``."""
    if unit.endswith(("/nsecond", "/ns")):
        return 1e9
    if unit.endswith(("/usecond", "/us")):
        return 1e6
    base = unit.split("/")[0]
    for word in ("byte", "hz", "Hz"):
        if base.endswith(word):
            return _PREFIX.get(base[: -len(word)], 1.0)
    return 1.0
