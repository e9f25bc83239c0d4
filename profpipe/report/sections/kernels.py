"""The kernels with the most time in each case, what ncu measured of them, and which kernels have a class."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from profpipe.analysis.case_index import CPU_ROWS
from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, ClassCoverage, Expectation, Findings, WorkloadFindings
from profpipe.analysis.kernels import Counters, KernelRow
from profpipe.config.quantities import is_own
from profpipe.report import document as doc
from profpipe.report.labels import case_text, case_texts, means_note, per_iteration, short_names
from profpipe.report.selection import main_cases
from profpipe.report.units import COUNT, number, percent, time_unit
from profpipe.results.schema import PYTHON_LINES

#: Kernels of a lone case, of each case of the largest shape, and of the others, from this share of the time on. The
#: first two give way to `report.top_kernels` of the pipeline file. kernels.parquet has every kernel.
_LONE_CASE, _FIRST, _OTHERS, _LEAST_SHARE = 10, 3, 2, 0.1

Figures: TypeAlias = "tuple[tuple[str, tuple[str, ...]], ...]"

#: ncu's figures in the order in which they are read: title, and the metrics that may hold it, newest spelling first.
MEMORY_FIGURES: Figures = (
    ("memory %", ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",)),
    ("DRAM %", ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                "dram__throughput.avg.pct_of_peak_sustained_elapsed")),
    ("DRAM GB/s", ("dram__bytes.sum.per_second",)),
    ("DRAM MB", ("dram__bytes.sum",)),
    ("L1 hit %", ("l1tex__t_sector_hit_rate.pct",)),
    ("L2 hit %", ("lts__t_sector_hit_rate.pct",)),
    ("L2 %", ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)),
)  # fmt: skip
COMPUTE_FIGURES: Figures = (
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
    # ncu calls either the SM's frequency, each in its releases. The clock of NVML may be another one.
    ("GPC GHz", ("gpc__cycles_elapsed.avg.per_second",)),
    ("SM GHz", ("smsp__cycles_elapsed.avg.per_second",)),
)  # fmt: skip

#: What joins the row of a kernel among the others, and the rest of it.
ROW_FIGURES = (MEMORY_FIGURES[0], *COMPUTE_FIGURES[:3])
FURTHER_FIGURES = (*MEMORY_FIGURES[1:], *COMPUTE_FIGURES[3:])

#: By title the size of the unit that the title names.
_SCALE = {"DRAM GB/s": 1e9, "DRAM MB": 1e6, "GPC GHz": 1e9, "SM GHz": 1e9}

#: Of either family that ncu has for a stall reason; ``selected`` is a warp that was issued, no stall.
_STALL = re.compile(
    r"^smsp__average_warps?_(?:latency_)?issue_stalled_(?!selected)(\w+?)(?:_per_issue_active)?(?:\.ratio)?$"
)

_CLOCK_NOTE = (
    "GPC GHz is a clock that ncu counts itself, not the SM clock. The two are not comparable: on an H200 it is 1.79 in"
    " attention kernels that take as long at an SM clock of 1.98."
)

#: NVIDIA's NvRules API on the two types of estimates, in short.
_LOCAL = "(local)"
_LOCAL_NOTE = (
    "(local) marks an estimate of better use of the hardware in that respect alone; the others are of the run time."
)


def kernels(workload: WorkloadFindings, names_shape: bool = True) -> doc.Section:
    """Return the kernels with the most time, and what ncu measured of the first ones.

    ``names_shape``: the heading of a comparison names the shape whose kernels stand first.
    """
    largest, others = main_cases(workload)
    is_lone = len(workload.cases) == 1
    limit = workload.kernels.shown or (_LONE_CASE if is_lone else _FIRST)
    noun = workload.cpu_rows.removeprefix("CPU ") if workload.is_on_cpu else "kernels"
    first = top_kernels(workload, largest, limit, placement=doc.OnPage.SUMMARY if is_lone else doc.OnPage.DETAILS)
    if not first.rows:
        return doc.Section("kernels", "", workload=workload.name)
    title = f"The first {_OTHERS} {noun} of each other case, from 10 % on"
    rest = top_kernels(workload, others, _OTHERS, _LEAST_SHARE, title).without("top stall", "misses")
    names, ncu = full_names(workload, [first, rest]), _ncu(workload, largest, limit)
    summary = " ".join(filter(None, [means_note(workload), _ncu_note(workload)]))
    heading = f"Top {workload.cpu_rows}" if workload.is_on_cpu else "Top kernels"
    if names_shape and workload.compare and workload.largest and workload.largest.axes:
        heading += f", {in_words(workload.largest.axes)}"
    return doc.make_section("kernels", heading, [first, _fold(rest), _fold(names), *ncu], summary, workload.name)


def _fold(table: doc.TableBlock, note: str = "") -> doc.Details | None:
    notes = [doc.Paragraph(note)] if note else []
    return doc.Details(table.title, (*notes, replace(table, title=""))) if table.rows else None


def _ncu_note(workload: WorkloadFindings) -> str:
    if not workload.kernels.counters:
        return ""
    wanted = dict(workload.declared.ncu.targets) if workload.declared else {}
    targets = ", ".join(f"{_target_name(name)} {at:g} %" for name, at in wanted.items())
    below = f"; a kernel misses a target below {targets}" if targets else ""
    uncounted = workload.kernels.uncounted
    every = "every counted case" if uncounted else "every case"
    files = f"Every kernel of {every}: kernels.parquet, ncu_memory_metrics.txt, ncu_compute_metrics.txt."
    cases = "1 case of a smaller shape" if uncounted == 1 else f"{uncounted} cases of smaller shapes"
    more = f" {cases} not counted by ncu: --ncu-all counts them." if uncounted else ""
    return f"The last columns are ncu's, in % of what the hardware sustains{below}. {files}{more}"


def _target_name(target: str) -> str:
    return {"sm": "SM"}.get(target, target)


def top_kernels(
    workload: WorkloadFindings,
    cases: Sequence[CaseResult],
    limit: int,
    least_share: float = 0.0,
    title: str = "",
    placement: doc.OnPage = doc.OnPage.DETAILS,
) -> doc.TableBlock:
    """Return the ``limit`` kernels with the most time of each of ``cases``, with ncu's figures; names are short."""
    first_rows = {case.id: [row for row in workload.kernels.top if row.case == case.id][:limit] for case in cases}
    listed = [(case, [row for row in first_rows[case.id] if row.share >= least_share]) for case in cases]
    rows = [(case_text(case) if i == 0 else "", row) for case, kept in listed for i, row in enumerate(kept)]
    short = short_names(row.kernel for row in workload.kernels.top)
    counters = {(row.case, row.kernel): row for row in workload.kernels.counters}
    is_cpu, per = any(case.is_on_cpu for case in cases), per_iteration(workload)
    is_lines = workload.cpu_rows == PYTHON_LINES
    noun = ("line" if is_lines else "operator") if is_cpu else "kernel"
    counted = ("samples" if is_lines else "calls") if is_cpu else "launches"
    columns = [
        (doc.label("case"), lambda row: row[0]),
        (doc.label("kernel", noun), lambda row: doc.Code(short[row[1].kernel])),
        (doc.label("class"),
         lambda row: f"{row[1].kernel_class} ({row[1].family})" if row[1].family else _class(row[1], is_cpu)),
        (doc.count("calls", f"{counted}{per}"), lambda row: row[1].calls),
        (doc.number("ns", "", time_unit(row.ns for _, row in rows).per(per)), lambda row: row[1].ns),
        (doc.percent("share", "of kernel time" if not is_cpu else ""), lambda row: row[1].share),
    ][len(cases) == 1 :]  # fmt: skip
    heads = [column for column, _ in columns] + [doc.number(name, name) for name, _ in ROW_FIGURES]
    cells = [[*(of(row) for _, of in columns), *_ncu_cells(counters.get((row[1].case, row[1].kernel)))] for row in rows]
    heads += [doc.words("top stall", "top stall, cycles/instruction"), doc.words("misses")]
    return doc.make_table("top_kernels", heads, cells, title, placement)


def _class(row: KernelRow, is_cpu: bool) -> str:
    is_theirs = row.kernel_class == "other" and is_own(row.kernel, "cpu_op" if is_cpu else "kernel")
    return "own" if is_theirs else row.kernel_class


def _ncu_cells(row: Counters | None) -> list[doc.Content]:
    if row is None:
        return [""] * (len(ROW_FIGURES) + 2)
    stalls = {match[1]: value for name, (value, _) in row.values.items() if (match := _STALL.match(name))}
    worst = max(stalls, key=lambda name: stalls[name], default="")
    stall = f"{worst} {number(stalls[worst])}" if worst else None
    return [*_figures(row, ROW_FIGURES), stall, ", ".join(map(_target_name, row.missed))]


def _figures(row: Counters, figures: Figures) -> list[doc.Content]:
    cells: list[doc.Content] = []
    for title, names in figures:
        value = next((row.values[name][0] for name in names if name in row.values), None)
        unit = COUNT if title == "registers" else None
        cells.append(None if value is None else doc.TableCell(value / _SCALE.get(title, 1.0), unit=unit))
    return cells


def full_names(workload: WorkloadFindings, tables: Sequence[doc.TableBlock]) -> doc.TableBlock:
    """Return the full names of the shortened kernels that ``tables`` show."""
    shown = {cell.text for table in tables for row in table.rows for cell in row}
    short = short_names(row.kernel for row in workload.kernels.top)
    columns = [doc.label("short"), doc.label("full")]
    rows = [[doc.Code(s), doc.Code(name)] for name, s in short.items() if s != name and doc.Code(s) in shown]
    return doc.make_table("full_names", columns, rows, "Full names", doc.OnPage.DETAILS)


# --- ncu -------------------------------------------------------------------------------------------------------------


def _ncu(workload: WorkloadFindings, cases: Sequence[CaseResult], limit: int) -> list[doc.Details | None]:
    """Return ncu's further figures and its rules, for the first kernels of ``cases``."""
    position = {case.id: i for i, case in enumerate(cases)}
    first = {(c.id, row.kernel) for c in cases for row in [r for r in workload.kernels.top if r.case == c.id][:limit]}
    rows = sorted((r for r in workload.kernels.counters if (r.case, r.kernel) in first), key=lambda r: position[r.case])
    further, own_rules = ncu_table(rows, cases, FURTHER_FIGURES, "Further figures of ncu"), rules(rows, cases)
    is_local = any(_LOCAL in doc.plain(row[-1].text) for row in own_rules.rows)
    has_clock = any(column.id == "GPC GHz" for column in further.columns)
    figures = _fold(further, _CLOCK_NOTE if has_clock else "") if len(further.columns) > 3 else None
    return [figures, _fold(own_rules, _LOCAL_NOTE if is_local else "")]


def ncu_table(
    rows: Sequence[Counters], cases: Collection[CaseResult], figures: Figures, title: doc.Text = ""
) -> doc.TableBlock:
    """Return ncu's figures of each kernel, without those that the chip or the chosen set does not have."""
    mean = doc.number("mean_ns", "", time_unit(row.mean_ns for row in rows))
    columns = [doc.label("case"), doc.label("kernel"), mean, *(doc.number(name, name) for name, _ in figures)]
    labels = zip(_labels(rows, cases), rows, strict=True)
    cells = [[*names, row.mean_ns, *_figures(row, figures)] for names, row in labels]
    return doc.make_table("ncu_figures", columns, cells, title, doc.OnPage.DETAILS)


def _labels(rows: Sequence[Counters], cases: Collection[CaseResult]) -> list[tuple[doc.Text, doc.Text]]:
    """Return the names of each row's case and kernel."""
    short, names = short_names(row.kernel for row in rows), case_texts(cases)
    return [(names.get(row.case, doc.Code(row.case)), doc.Code(short[row.kernel])) for row in rows]


def rules(rows: Sequence[Counters], cases: Collection[CaseResult]) -> doc.TableBlock:
    """Return ncu's own rules by kernel: their names, and the speed-up that they estimate where they do."""

    def text(name: str, speedup: float | None, is_local: bool) -> doc.Text:
        estimate = "" if speedup is None else f" {number(speedup)} %{f' {_LOCAL}' if is_local else ''}"
        return (doc.Code(name), estimate) if estimate else doc.Code(name)

    cells = []
    for names, row in zip(_labels(rows, cases), rows, strict=True):
        ordered = sorted(row.rules, key=lambda rule: (rule[1] is None, rule[2], -(rule[1] or 0.0)))
        if ordered:
            cells.append([*names, doc.join([text(*rule) for rule in ordered], last=", ")])
    title = "rules of ncu, and the speed-up that they estimate"
    columns = [doc.label("case"), doc.label("kernel"), doc.label("rules", title)]
    return doc.make_table("ncu_rules", columns, cells, "What ncu's own rules say", doc.OnPage.DETAILS)


# --- classification ---------------------------------------------------------------------------------------------------

#: From this classified share on, SUMMARY.md says nothing of it.
_COVERED = 0.99

#: Names of kernels without a class in a sentence.
_NAMED = 3


def classification(findings: Findings) -> doc.Section:
    """Return the classified share, the families that ran as requested, and the kernels of the program itself."""
    sentences = doc.join([*_covered(findings), *_families(findings)], " ", " ")
    rows = [
        (coverage.workload, doc.Code(name), share) for coverage in findings.coverage for name, share in coverage.largest
    ]
    noun = "kernel" if any(coverage.kind == "kernel" for coverage in findings.coverage) else "operator"
    columns = (doc.label("workload"), doc.label("name", noun), doc.percent("share", "of the workload's time"))
    are_theirs = all(is_own(name, coverage.kind) for coverage in findings.coverage for name, _ in coverage.largest)
    what, them = ("The program's own kernels", "them a class") if are_theirs else ("Without a class", "one")
    title = (f"{what}; a rule under ", doc.Code("kernel_classes"), f" in the pipeline file gives {them}")
    table = doc.make_table("unclassified", columns, rows, title, doc.OnPage.DETAILS)
    table = table if len(findings.workloads) > 1 else table.without("workload")
    # Where almost every kernel has a class, the reader learns nothing that changes a number. Families that did not run,
    # and a coverage that limits a conclusion, are warnings.
    has_news = any(coverage.classified < _COVERED for coverage in findings.coverage if _is_enough(coverage))
    placement = doc.OnPage.SUMMARY if has_news else doc.OnPage.DETAILS
    return doc.make_section("classification", "Classification", [doc.Paragraph(sentences, placement), table])


def low_coverage(findings: Findings) -> Iterator[doc.Text]:
    """Yield a warning per workload of which kernels without a class limit a conclusion or the required share."""
    return (_coverage(coverage, findings) for coverage in findings.coverage if not _is_enough(coverage))


def _is_enough(coverage: ClassCoverage) -> bool:
    return not (coverage.is_too_low or coverage.blurs_attention)


def _covered(findings: Findings) -> Iterator[doc.Text]:
    """Yield the classified share; one sentence for several workloads."""
    enough = [coverage for coverage in findings.coverage if _is_enough(coverage)]
    if len(enough) < 2:
        yield from (_coverage(coverage, findings) for coverage in enough)
        return
    others = " other" if len(enough) < len(findings.coverage) else ""
    least = percent(min(coverage.classified for coverage in enough))
    share = least if least == percent(1) else f"at least {least}"
    yield f"Classified: {share} % of the kernel time of each of {len(enough)}{others} workloads."


def _coverage(coverage: ClassCoverage, findings: Findings) -> doc.Text:
    cpu_rows = next(
        (workload.cpu_rows for workload in findings.workloads if workload.name == coverage.workload), CPU_ROWS
    )
    noun = f"{cpu_rows}' self time" if coverage.kind == "cpu_op" else "kernel time"
    short = short_names(name for name, _ in coverage.largest)
    minimum = doc.Strong(f"below the required {percent(coverage.minimum or 0.0)} %")
    attention = coverage.attention or 0.0
    most = percent(attention + 1 - coverage.classified)
    blur = f"; attention's share, {percent(attention)} %, is up to {most} % if the rest is attention too"
    return doc.concat(
        f"Classified: {percent(coverage.classified)} % of {noun}",
        (" of ", doc.Code(coverage.workload)) if len(findings.workloads) > 1 else "",
        f" ({coverage.profiler})",
        (", ", minimum) if coverage.is_too_low else "",
        blur if coverage.blurs_attention else "",
        *_name_unclassified(coverage, short),
        ".",
    )


def _name_unclassified(coverage: ClassCoverage, short: Mapping[str, str]) -> Iterator[doc.Text]:
    """Yield the largest kernels of the program itself, then those of libraries, and operators, that no rule knows."""
    named = coverage.largest[:_NAMED]
    for words, is_theirs in (("own kernels", True), ("without a class", False)):
        kept = [(name, share) for name, share in named if is_own(name, coverage.kind) is is_theirs]
        if kept:
            yield f"; {words}: ", *doc.join(doc.concat(doc.Code(short[n]), f" ({percent(s)} %)") for n, s in kept)


def _families(findings: Findings) -> Iterator[doc.Text]:
    """Yield how many cases ran the kernel family that they requested."""
    met = [expectation for expectation in findings.expectations if expectation.is_met]
    total = len(findings.expectations)
    if met:
        which = "All" if len(met) == total else f"{len(met)} of"
        cases = f"{which} {total} case{'' if total == 1 else 's'}" if total > 1 else "The case"
        yield doc.concat(f"{cases} with a requested kernel family ran it", _pytorch_copies(met, findings), ".")
    blind = [w for w in findings.workloads if w.kernel_profiler is None and any(case.time for case in w.cases)]
    if met and blind:
        names = doc.join(doc.Code(workload.name) for workload in blind)
        yield doc.concat("No profiler recorded kernels of ", names, ", so their kernels are unknown.")


def _pytorch_copies(met: Iterable[Expectation], findings: Findings) -> doc.Text:
    """Return which variants ran PyTorch's build of FlashAttention-2, which has the family of the package."""
    copies = {(expectation.workload, expectation.case) for expectation in met if expectation.is_pytorch_copy}
    if not copies:
        return ""
    cases = ((w.name, case) for w in findings.workloads for case in w.cases)
    variants = dict.fromkeys(case.variant for name, case in cases if (name, case.id) in copies and case.variant)
    which: doc.Text = (*doc.join(map(doc.Code, variants)), " ran ") if variants else ""
    return doc.concat(" (", which, "PyTorch's copy of ", doc.Code("fa2"), ")")
