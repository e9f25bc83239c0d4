"""Findings -> the tables of single kernels: the top of each case, phases, and what ncu measured."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from profpipe.findings import Point, WorkloadFindings
from profpipe.kernel_findings import Counters, Phase, Rule
from profpipe.page.markdown import Sheet, code, escape, short_names
from profpipe.page.quantities import MISSING, count, number, percent, time_unit
from profpipe.page.wording import case_label
from profpipe.tables import PATH_SEPARATOR

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
    # ncu calls either the SM's frequency, each in its releases. What NVML and events tell need not be that of the GPCs.
    ("GPC GHz", ("gpc__cycles_elapsed.avg.per_second",)),
    ("SM GHz", ("smsp__cycles_elapsed.avg.per_second",)),
)  # fmt: skip

#: What joins the row of a kernel among the others, and the rest of it.
ROW_FIGURES = (MEMORY_FIGURES[0], *COMPUTE_FIGURES[:3])
FURTHER_FIGURES = (*MEMORY_FIGURES[1:], *COMPUTE_FIGURES[3:])

_SCALE = {"DRAM GB/s": 1e9, "DRAM MB": 1e6, "GPC GHz": 1e9, "SM GHz": 1e9}

#: Of either family that ncu has for a stall reason; ``selected`` is a warp that was issued, no stall.
_STALL = re.compile(
    r"^smsp__average_warps?_(?:latency_)?issue_stalled_(?!selected)(\w+?)(?:_per_issue_active)?(?:\.ratio)?$"
)

#: The column of a clock that ncu counts and that is not the SM clock.
_GPC = "GPC GHz"

Figures = tuple[tuple[str, tuple[str, ...]], ...]


def top(
    workload: WorkloadFindings, points: Sequence[Point], *, limit: int, one_shape: bool, least: float = 0.0
) -> Sheet:
    """The ``limit`` kernels with the most time of each of ``points``, down to the share ``least``, with ncu's figures.

    Names are shortened, each to a name of its own. Points of ``one_shape``, that of the heading, are named by their
    implementation alone.
    """
    rows = workload.top
    by_case = {p.id: [row for row in rows if row.case == p.id and row.share >= least][:limit] for p in points}
    kept = [row for own in by_case.values() for row in own]
    if not kept:
        return Sheet([], [])
    short, measured = short_names(row.kernel for row in rows), {(c.case, c.kernel): c for c in workload.counters}
    unit = time_unit(row.ns for row in kept)
    label = (lambda p: code(p.variant) or case_label(p)) if one_shape else case_label
    written = []
    for point in points:
        for i, row in enumerate(by_case[point.id]):
            family = f" ({escape(row.family)})" if row.family else ""
            ncu = measured.get((row.case, row.kernel))
            written.append([label(point) if i == 0 else "", code(short[row.kernel]), escape(row.kernel_class) + family,
                            count(row.calls), unit.of(row.ns), percent(row.share), *_joined(ncu)])  # fmt: skip
    cpu = any(point.split and point.split.kind == "cpu_op" for point in points)
    nouns, per = ("operator", "calls") if cpu else ("kernel", "launches"), "/call" if workload.iterated else ""
    head = ["case", nouns[0], "class", f"{nouns[1]}{per}", f"{unit.name}{per}", "%",
            *(title for title, _ in ROW_FIGURES), "top stall", "misses"]  # fmt: skip
    words = frozenset({"top stall", "misses"})
    return _without_only_case(Sheet(head, written, labels=3, words=words).without_empty(), points)


def _joined(row: Counters | None) -> list[str]:
    if row is None:
        return [""] * (len(ROW_FIGURES) + 2)
    figures = [_figure(row, title, names) for title, names in ROW_FIGURES]
    return [*figures, _top_stall(row), escape(", ".join(map(target_named, row.missed)))]


def target_named(target: str) -> str:
    """As the columns call it."""
    return {"sm": "SM"}.get(target, target)


def _top_stall(row: Counters) -> str:
    """What its warps wait for longest, and for how many cycles of each instruction."""
    stalls = {found[1]: value for name, (value, _) in row.values.items() if (found := _STALL.match(name))}
    worst = max(stalls, key=lambda name: stalls[name], default="")
    return f"{escape(worst)} {number(stalls[worst])}" if worst else MISSING


def full_names(workload: WorkloadFindings, sheets: Iterable[Sheet]) -> Sheet:
    """Short name to full name, of those that ``sheets`` show."""
    short = short_names(row.kernel for row in workload.top)
    shown = {cell for sheet in sheets for row in sheet.rows for cell in row}
    rows = [[code(s), code(name)] for name, s in short.items() if s != name and code(s) in shown]
    return Sheet(["short", "full"], rows, labels=2)


#: Phases that stand side by side; more are listed.
_PHASES = 6


def phases(workload: WorkloadFindings, among: Sequence[Point]) -> Sheet:
    """Kernel time of the user's own ranges: cases as rows, phases as columns; deeper ones where they fit.

    A case that is one phase from end to end is left out: its time stands elsewhere. The phases of a single case, or
    more than fit side by side, are listed.
    """
    own: dict[str, dict[str, Phase]] = {}
    for phase in workload.phases:
        own.setdefault(phase.case, {})[phase.phase] = phase
    told = {case: found for case, found in own.items() if len(found) > 1}
    points = [point for point in among if point.id in told]
    names = list(dict.fromkeys(name for point in points for name in told[point.id]))
    if len(names) > _PHASES:
        names = [name for name in names if PATH_SEPARATOR not in name]
    unit = time_unit(phase.ns for point in points for phase in told[point.id].values())
    per = "/call" if workload.iterated else ""
    if len(workload.points) == 1 or len(names) > _PHASES:
        listed = [
            [case_label(point), escape(p.phase), count(p.calls), unit.of(p.ns), percent(p.share)]
            for point in points
            for p in told[point.id].values()
            if not _is_its_child(p, told[point.id].values())
        ]
        cpu = any(point.split and point.split.kind == "cpu_op" for point in points)
        head = ["case", "phase", f"{'calls' if cpu else 'launches'}{per}", f"{unit.name}{per}", "%"]
        return _without_only_case(Sheet(head, listed, labels=2), workload.points)
    rows = []
    for point in points:
        cells = [told[point.id].get(name) for name in names]
        rows.append([case_label(point), *(f"{unit.of(c.ns)} ({percent(c.share)} %)" if c else "" for c in cells)])
    return Sheet(["case", *(f"{escape(name)} {unit.name}{per}" for name in names)], rows).without_empty()


def _is_its_child(phase: Phase, others: Iterable[Phase]) -> bool:
    """Whether a range inside it holds all that it does, and so stands for it, with its name in its own."""
    inside = f"{phase.phase}{PATH_SEPARATOR}"
    return any(o.phase.startswith(inside) and (o.calls, o.ns) == (phase.calls, phase.ns) for o in others)


def _without_only_case(sheet: Sheet, points: Collection[Point]) -> Sheet:
    """The same without its first column where there is only one case to name."""
    if len(points) > 1:
        return sheet
    return Sheet(sheet.head[1:], [row[1:] for row in sheet.rows], sheet.labels - 1, sheet.words)


def counters(rows: Sequence[Counters], points: Sequence[Point], figures: Figures) -> Sheet:
    """ncu's figures of each kernel; those that the chip or the chosen set does not have are left out."""
    short = short_names(row.kernel for row in rows)
    unit = time_unit(row.mean_ns for row in rows)
    labels = {point.id: case_label(point) for point in points}
    written = [
        [labels.get(row.case, code(row.case)), code(short[row.kernel]), unit.of(row.mean_ns),
         *(_figure(row, title, names) for title, names in figures)]
        for row in rows
    ]  # fmt: skip
    head = ["case", "kernel", f"{unit.name}", *(title for title, _ in figures)]
    return Sheet(head, written, labels=2).without_empty()


def clocks_said(sheet: Sheet) -> str:
    """Why the clock that ncu counts is none to hold against the page's others, where ``sheet`` shows it.

    On an H200 it is 1.79 GHz where the SM clock is 1.98, and the kernels take as long: ``agreement``'s ``_Clocks``.
    """
    if _GPC not in sheet.head:
        return ""
    below = "on an H200 it is 1.79 in attention kernels that take as long at an SM clock of 1.98"
    return f"{_GPC} is a clock that ncu counts itself, not the SM clock: {below}, so the two are not to be compared."


_LOCAL = "(local)"

#: NVIDIA's NvRules API on the two types of estimates, in short.
_LOCAL_SAID = (
    f"{_LOCAL} marks an estimate of the problem that the rule looks at, taken by itself: how much better the hardware "
    "would be used there, not how much faster the kernel would be; one without it is of the kernel's run time."
)


def rules(rows: Sequence[Counters], points: Sequence[Point]) -> Sheet:
    """What ncu's own rules say of each kernel: their names, and the speed-up that they estimate where they do."""
    short, labels = short_names(row.kernel for row in rows), {point.id: case_label(point) for point in points}
    written = []
    for row in rows:
        said = sorted(row.rules, key=lambda rule: (rule.speedup is None, rule.local, -(rule.speedup or 0.0)))
        if said:
            told = ", ".join(map(_rule, said))
            written.append([labels.get(row.case, code(row.case)), code(short[row.kernel]), told])
    return Sheet(["case", "kernel", "rules of ncu, and the speed-up that they estimate"], written, labels=3)


def rules_said(sheet: Sheet) -> str:
    """What its marks mean, where ``sheet`` has any."""
    return _LOCAL_SAID if any(_LOCAL in row[-1] for row in sheet.rows) else ""


def _rule(rule: Rule) -> str:
    if rule.speedup is None:
        return code(rule.name)
    return f"{code(rule.name)} {number(rule.speedup)} %{f' {_LOCAL}' if rule.local else ''}"


def _figure(row: Counters, title: str, names: Sequence[str]) -> str:
    found = next((row.values[name] for name in names if name in row.values), None)
    if found is None:
        return MISSING
    value = found[0]
    return count(value) if title == "registers" else number(value / _SCALE.get(title, 1.0))
