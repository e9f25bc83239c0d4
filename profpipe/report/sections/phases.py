"""The workload's ranges: kernel time, host time where no kernel ran, time relative to the declared work, and memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Iteration, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import Phase
from profpipe.job import count_cases
from profpipe.report import document as doc
from profpipe.report.labels import case_text, span
from profpipe.report.selection import main_cases
from profpipe.report.units import Unit, number, percent, size_unit, time_unit
from profpipe.results.schema import PATH_SEPARATOR

#: Phases that stand side by side; more are listed.
_PHASES = 6

#: A phase is worth a sentence if its share of the time is this many times its share of the FLOPs, and at least a tenth.
_FAR_ABOVE, _LEAST = 3.0, 0.1

#: Numbers of several cases are one range up to this factor.
_SPREAD = 2.0

_BINDS = {"compute": "arithmetic", "memory": "memory"}


def phases(workload: WorkloadFindings) -> doc.Section:
    """Return the kernel time of each range."""
    largest, others = main_cases(workload)
    has_phases = {case for case, case_phases in _group_by_case(workload.phases.kernels).items() if len(case_phases) > 1}
    if workload.compare and not any(case.id in has_phases for case in largest):
        shapes = [shape for shape in workload.shapes if any(case.id in has_phases for case in shape.cases)]
        largest = list(max(shapes, key=lambda shape: shape.size).cases) if shapes else []
        others = [case for case in workload.cases if case not in largest]
    work = "Self time of operators" if workload.is_on_cpu else "Time of kernels"
    is_step = workload.iteration is Iteration.STEP
    whole = "the call" if workload.is_per_call else "the whole recording" if is_step else "the whole"
    nested = f"nested ranges included ({workload.kernel_profiler})"
    summary = f"{work} launched in each range, {nested}, and its share of {whole}."
    tables = [kernel_phases(workload, largest), _moved(kernel_phases(workload, others))]
    if is_step:
        tables[0] = _moved(tables[0], "Ranges of the whole recording, steps and all else")
    return doc.make_section("phases", "By phase", tables, summary, workload.name, folds_long_tables=True)


def host_phases(workload: WorkloadFindings) -> doc.Section:
    """Return the host's time in each range of the cases without kernels."""
    largest, others = main_cases(workload)
    profilers = doc.plain(doc.join(list(dict.fromkeys(phase.profiler for phase in workload.phases.host))))
    summary = (
        f"Time on the host's clock in each range, nested ranges included ({profilers}). No kernel was recorded, so this"
        " is not the time of a GPU's work."
    )
    tables = [phases_on_host(workload, largest), _moved(phases_on_host(workload, others))]
    title = "By phase, on the host"
    return doc.make_section("host_phases", title, tables, summary, workload.name, folds_long_tables=True)


def phase_work(workload: WorkloadFindings) -> doc.Section:
    """Return what each range computes, moves and reaches."""
    largest, others = main_cases(workload)
    tables = [_moved(work(workload, largest), "Work by phase"), _moved(work(workload, others))]
    blocks: list[doc.Block] = [doc.Bullets(tuple(disproportions(workload))), *tables]
    note = "FLOPs and bytes are those that the workload declares: each operand read once, each result written once."
    if any(phase.limited_by for phase in workload.phases.work):
        note += " Limited by: the nearer of the two limits of the roofline."
    if any((phase.of_bandwidth or 0) > 1 for phase in workload.phases.work):
        note += " Bytes above the memory's rate came from a cache."
    return doc.make_section("phase_work", "Work by phase", blocks, note, workload.name, folds_long_tables=True)


def _moved(table: doc.TableBlock, title: str = "The other cases") -> doc.TableBlock:
    return replace(table, id=f"{table.id}-details", title=title, placement=doc.OnPage.DETAILS)


def _group_by_case(rows: Iterable[Phase]) -> dict[str, dict[str, Phase]]:
    by_case = grouped((row.case, (row.phase, row)) for row in rows)
    return {case: dict(pairs) for case, pairs in by_case.items()}


def _innermost(phases: Collection[Phase]) -> list[Phase]:
    """Leave out the phases for which a range inside them stands, because it holds all that they do."""
    held = {
        (outer, phase.calls, phase.ns)
        for phase in phases
        for outer in itertools.accumulate(
            phase.phase.split(PATH_SEPARATOR)[:-1], lambda *path: PATH_SEPARATOR.join(path)
        )
    }
    return [phase for phase in phases if (phase.phase, phase.calls, phase.ns) not in held]


def kernel_phases(workload: WorkloadFindings, among: Iterable[CaseResult], title: str = "") -> doc.TableBlock:
    """Return cases as rows and phases as columns; deeper phases where they fit.

    A case that is one phase from end to end is left out: its time stands elsewhere. The phases of a single case, or
    more than fit side by side, are listed.
    """
    by_case = _group_by_case(workload.phases.kernels)
    phases_by_case = {case: case_phases for case, case_phases in by_case.items() if len(case_phases) > 1}
    points = [case for case in among if case.id in phases_by_case]
    is_one_case, per = len(workload.cases) == 1, "/call" if workload.is_per_call else ""
    names = list(dict.fromkeys(name for case in points for name in phases_by_case[case.id]))
    if len(names) > _PHASES:
        names = [name for name in names if PATH_SEPARATOR not in name]
    unit = time_unit(p.ns for case in points for p in phases_by_case[case.id].values()).per(per)
    if is_one_case or len(names) > _PHASES:
        calls = f"{'calls' if workload.is_on_cpu else 'launches'}{per}"
        listed = [(case, phase) for case in points for phase in _innermost(phases_by_case[case.id].values())]
        columns = [
            (doc.label("case"), lambda pair: case_text(pair[0])),
            (doc.label("phase"), lambda pair: pair[1].phase),
            (doc.count("calls", calls), lambda pair: pair[1].calls),
            (doc.number("ns", "", unit), lambda pair: pair[1].ns),
            (doc.percent("share", ""), lambda pair: pair[1].share),
        ]
        return doc.table_of("phases", listed, columns[is_one_case:], title)

    def cell(phase: Phase | None) -> doc.TableCell:
        return doc.TableCell(phase.ns, note=f"({percent(phase.share or 0.0)} %)") if phase else doc.TableCell()

    wide = [[case_text(case), *(cell(phases_by_case[case.id].get(name)) for name in names)] for case in points]
    heads = [doc.label("case"), *(doc.number(name, name, unit) for name in names)]
    return doc.make_table("phases", heads, wide, title)


def phases_on_host(workload: WorkloadFindings, among: Iterable[CaseResult]) -> doc.TableBlock:
    """Return a row a phase of the cases without kernels: how often the host entered it, and its time inside."""
    rows = _rows(among, workload.phases.host)
    per = "/call" if any(phase.is_per_call for _, phase in rows) else ""
    columns = [
        (doc.label("case"), lambda row: row[0]),
        (doc.label("phase"), lambda row: row[1].phase),
        (doc.count("instances", f"entered{per}"), lambda row: row[1].calls),
        (doc.number("ns", "host", time_unit(p.ns for _, p in rows).per(per)), lambda row: row[1].ns),
        (doc.percent("share", "of the call"), lambda row: row[1].share),
    ]
    return doc.table_of("host_phases", rows, columns)


def _rows(among: Iterable[CaseResult], phases: Sequence[Phase]) -> list[tuple[doc.Text, Phase]]:
    """Return the phases of the cases in ``among``; the first of a case with the case's name."""
    by_case = [(case, [phase for phase in phases if phase.case == case.id]) for case in among]
    return [
        (case_text(case) if i == 0 else "", phase)
        for case, case_phases in by_case
        for i, phase in enumerate(case_phases)
    ]


# --- work ------------------------------------------------------------------------------------------------------------


def work(workload: WorkloadFindings, among: Iterable[CaseResult]) -> doc.TableBlock:
    """Return a row a phase: its time and shares, its work, the rates that it reaches, and which of them limits it."""
    rows, names = _rows(among, workload.phases.work), _short_names({p.phase for p in workload.phases.work})
    rate, tera = "ceiling" if workload.gpu.rates_measured else "peak", Unit("", 1e12)

    def write_share(share: float | None) -> doc.TableCell | float | None:
        return doc.TableCell(share, is_strong=True, note="above") if share is not None and share > 1 else share

    columns = [
        (doc.label("case"), lambda row: row[0]),
        (doc.label("phase"), lambda row: names[row[1].phase]),
        (doc.number("ns", "", time_unit(p.ns for _, p in rows).per("/call")), lambda row: row[1].ns),
        (doc.percent("of_time", "of their time"), lambda row: row[1].of_time),
        (doc.number("flops", "", Unit("GFLOP", 1e9)), lambda row: row[1].flops or None),
        (doc.percent("of_work", "of their FLOP"), lambda row: row[1].of_work),
        (
            doc.number("moved", "must move", size_unit(p.bytes_moved for _, p in rows)),
            lambda row: row[1].bytes_moved,
        ),
        (doc.number("intensity", "FLOP/byte"), lambda row: row[1].intensity),
        (doc.number("flops_per_s", "TFLOP/s", tera), lambda row: row[1].flops_per_s),
        (doc.percent("of_flops", f"of {rate} FLOP/s"), lambda row: write_share(row[1].of_flops)),
        (doc.number("bytes_per_s", "TB/s", tera), lambda row: row[1].bytes_per_s),
        (doc.percent("of_bandwidth", f"of {rate} bytes/s"), lambda row: write_share(row[1].of_bandwidth)),
        (doc.words("limited_by", "limited by"), lambda row: _BINDS.get(row[1].limited_by) or doc.TableCell()),
    ]
    table = doc.table_of("phase_work", rows, columns)
    is_one_each = len({phase.case for _, phase in rows}) == len(rows)
    return table.without("of_time", "of_work") if is_one_each else table


def _short_names(paths: Collection[str]) -> dict[str, str]:
    """Return each path by its last range, unless two end alike."""
    last = {path: path.split(PATH_SEPARATOR)[-1] for path in paths}
    return last if len(set(last.values())) == len(last) else {path: path for path in paths}


def disproportions(workload: WorkloadFindings) -> list[doc.Text]:
    """Return a sentence for each phase that takes far more of the time than of the FLOPs."""
    by_phase = grouped((phase.phase, phase) for phase in workload.phases.work)
    names, points = _short_names(by_phase), {case.id: case for case in workload.cases}
    return [
        sentence
        for path, path_phases in by_phase.items()
        for among, group in _groups(path_phases, points)
        for sentence in _disproportion(f"{names[path]}{among}", group, points)
    ]


def _groups(phases: Sequence[Phase], points: Mapping[str, CaseResult]) -> list[tuple[str, list[Phase]]]:
    """Divide ``phases`` by the values of an axis where one range does not describe all cases and theirs do.

    A range over fp32 and bf16 describes neither: the numbers of a phase must be within a factor of two.
    """
    whole = [("", list(phases))]
    if _is_alike(phases):
        return whole
    for axis in dict.fromkeys(axis for phase in phases for axis in points[phase.case].params):
        groups = grouped((in_words(((axis, points[phase.case].params.get(axis)),)), phase) for phase in phases)
        if len(groups) < len(phases) and all(_is_alike(group) for group in groups.values()):
            return [(f" at {value}", group) for value, group in groups.items()]
    return whole


def _is_far(phase: Phase) -> bool:
    return bool(phase.of_time and phase.of_work and phase.of_time > max(_LEAST, _FAR_ABOVE * phase.of_work))


def _is_alike(phases: Sequence[Phase]) -> bool:
    """Return True if one range describes the time shares and bandwidths of all disproportionate cases."""
    far = [phase for phase in phases if _is_far(phase)]
    shares = [[s for s in numbers if s] for numbers in ([p.of_time for p in far], [p.of_bandwidth for p in far])]
    return all(max(numbers) <= _SPREAD * min(numbers) for numbers in shares if numbers)


def _disproportion(name: str, phases: Sequence[Phase], points: Mapping[str, CaseResult]) -> Iterator[doc.Text]:
    """Yield ``softmax takes 41 % of the time of these phases for 3 % of their FLOPs: ...``."""
    far = [phase for phase in phases if _is_far(phase)]
    if not far:
        return
    where = "" if len(far) == len(phases) else f" (in {count_cases(len(far))} of {len(phases)})"
    times, flops = (
        span([100 * (getattr(phase, name) or 0) for phase in far], _rounded) for name in ("of_time", "of_work")
    )
    sentence = f"{name} takes {times} % of the time of these phases for {flops} % of their FLOPs{where}"
    intensities = [phase.intensity for phase in far if phase.intensity]
    ridges = [phase.ridge for phase in far if phase.ridge]
    if intensities:
        sentence += f": it does {span(intensities, _rounded)} FLOP per byte"
    if intensities and ridges:
        sentence += f", and the machine could do {span(ridges, _rounded)}"
        if all(phase.limited_by == "memory" for phase in far):
            yield (f"{sentence}. Memory limits it: it reaches ", *_bandwidth_range(far, points), " of the bandwidth.")
            return
    yield f"{sentence}."


def _bandwidth_range(phases: Sequence[Phase], points: Mapping[str, CaseResult]) -> tuple[doc.Inline, ...]:
    """Return ``16 %``, or the lowest and the highest with their cases where cases differ."""
    ordered = sorted((phase for phase in phases if phase.of_bandwidth), key=lambda phase: phase.of_bandwidth or 0)
    low, high = (f"{_rounded(100 * (phase.of_bandwidth or 0))} %" for phase in (ordered[0], ordered[-1]))
    if low == high:
        return (low,)
    lowest, highest = (doc.inlines(case_text(points[phase.case])) for phase in (ordered[0], ordered[-1]))
    return (f"{low} (", *lowest, f") to {high} (", *highest, ")")


def _rounded(value: float) -> str:
    """Round to what a sentence needs."""
    return number(value) if value < 10 else f"{value:.0f}"
