"""The workload's own ranges: kernel time, host time where no kernel ran, and time beside the declared work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.kernels import Phase
from profpipe.analysis.findings.phases import PhaseWork
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.job import count_cases
from profpipe.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Format,
    Inline,
    Placement,
    Section,
    Table,
    Text,
    fold_if_long,
    inlines,
    join,
    make_table,
    plain,
)
from profpipe.report.labels import case_text
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


def phases(workload: WorkloadFindings) -> Section:
    """Return the kernel time of each range."""
    largest, others = main_cases(workload)
    has_phases = {case for case, own in _by_case(workload.phases).items() if len(own) > 1}
    if workload.compare and not any(case.id in has_phases for case in largest):
        shapes = [shape for shape in workload.shapes if any(case.id in has_phases for case in shape.cases)]
        largest = list(max(shapes, key=lambda shape: shape.size).cases) if shapes else []
        others = [case for case in workload.cases if case not in largest]
    work = "Self time of operators" if _is_cpu(workload.cases) else "Time of kernels"
    whole = "the call" if workload.is_per_call else "the whole"
    nested = f"nested ranges included ({workload.kernel_profiler})"
    summary = f"{work} launched in each range, {nested}, and its share of {whole}."
    tables = [replace(kernel_phases(workload, largest), id="phases"), _moved(kernel_phases(workload, others))]
    return _section("phases", "By phase", workload, summary, tables)


def host_phases(workload: WorkloadFindings) -> Section:
    """Return the host's time in each range of the cases without kernels."""
    largest, others = main_cases(workload)
    profilers = plain(join(list(dict.fromkeys(phase.profiler for phase in workload.host_phases))))
    summary = (
        f"Time on the host's clock in each range, nested ranges included ({profilers}). No kernel was recorded, so this"
        " is not the time of a GPU's work."
    )
    tables = [phases_on_host(workload, largest), _moved(phases_on_host(workload, others))]
    return _section("host_phases", "By phase, on the host", workload, summary, tables)


def phase_work(workload: WorkloadFindings) -> Section:
    """Return what each range computes, moves and reaches."""
    largest, others = main_cases(workload)
    tables = [_moved(work(workload, largest), "Work by phase"), _moved(work(workload, others))]
    section = _section("phase_work", "Work by phase", workload, _work_note(workload), tables)
    if sentences := disproportions(workload):
        return replace(section, blocks=(Bullets(tuple(sentences)), *section.blocks))
    return section


def _section(id: str, title: str, workload: WorkloadFindings, summary: Text, tables: Sequence[Table]) -> Section:
    blocks: tuple[Block, ...] = tuple(fold_if_long(table) for table in tables if table.rows)
    return Section(id, title, blocks, summary, workload.name) if blocks else Section(id, "", workload=workload.name)


def _moved(table: Table, title: str = "The other cases") -> Table:
    return replace(table, id=f"{table.id}-details", title=title, placement=Placement.DETAILS)


def _by_case(rows: Iterable[Phase]) -> dict[str, dict[str, Phase]]:
    found: dict[str, dict[str, Phase]] = {}
    for phase in rows:
        found.setdefault(phase.case, {})[phase.phase] = phase
    return found


def kernel_phases(workload: WorkloadFindings, among: Iterable[CaseResult]) -> Table:
    """Return cases as rows and phases as columns; deeper phases where they fit.

    A case that is one phase from end to end is left out: its time stands elsewhere. The phases of a single case, or
    more than fit side by side, are listed.
    """
    own = {case: found for case, found in _by_case(workload.phases).items() if len(found) > 1}
    points = [case for case in among if case.id in own]
    names = list(dict.fromkeys(name for case in points for name in own[case.id]))
    if len(names) > _PHASES:
        names = [name for name in names if PATH_SEPARATOR not in name]
    unit = _per_call(time_unit(phase.ns for case in points for phase in own[case.id].values()), workload.is_per_call)
    case_column = [Column("case", "case", is_label=True)] if len(workload.cases) > 1 else []
    if len(workload.cases) == 1 or len(names) > _PHASES:
        per = "/call" if workload.is_per_call else ""
        columns = [
            *case_column,
            Column("phase", "phase", is_label=True),
            Column("calls", f"{'calls' if _is_cpu(points) else 'launches'}{per}", format=Format.COUNT),
            Column("ns", "", unit),
            Column("share", "", format=Format.PERCENT),
        ]
        rows = [
            [*([case_text(case)] if case_column else []), p.phase, p.calls, p.ns, p.share]
            for case in points
            for p in own[case.id].values()
            if not _is_its_child(p, own[case.id].values())
        ]
        return make_table("phases", columns, rows)
    columns = [*case_column, *(Column(name, name, unit) for name in names)]
    wide = [[case_text(case), *(_with_share(own[case.id].get(name)) for name in names)] for case in points]
    return make_table("phases", columns, wide)


def _with_share(phase: Phase | None) -> Cell:
    return Cell(phase.ns, note=f"({percent(phase.share)} %)") if phase else Cell()


def _per_call(unit: Unit, is_per_call: bool) -> Unit:
    return replace(unit, name=f"{unit.name}/call") if is_per_call else unit


def _is_cpu(among: Iterable[CaseResult]) -> bool:
    return any(case.breakdown and case.breakdown.kind == "cpu_op" for case in among)


def _is_its_child(phase: Phase, others: Iterable[Phase]) -> bool:
    """Return True if a range inside ``phase`` holds all that it does, and so stands for it."""
    inside = f"{phase.phase}{PATH_SEPARATOR}"
    return any(o.phase.startswith(inside) and (o.calls, o.ns) == (phase.calls, phase.ns) for o in others)


def phases_on_host(workload: WorkloadFindings, among: Iterable[CaseResult]) -> Table:
    """Return a row a phase of the cases without kernels: how often the host entered it, and its time inside."""
    pairs = [(case, own) for case in among if (own := [p for p in workload.host_phases if p.case == case.id])]
    found = [phase for _, own in pairs for phase in own]
    is_per_call = any(phase.is_per_call for phase in found)
    columns = [
        Column("case", "case", is_label=True),
        Column("phase", "phase", is_label=True),
        Column("instances", f"entered{'/call' if is_per_call else ''}", format=Format.COUNT),
        Column("ns", "host", _per_call(time_unit(phase.ns for phase in found), is_per_call)),
        Column("share", "of the call", format=Format.PERCENT),
    ]
    rows = [
        [case_text(case) if i == 0 else "", phase.phase, phase.instances, phase.ns, phase.share]
        for case, own in pairs
        for i, phase in enumerate(own)
    ]
    return make_table("host_phases", columns, rows)


# --- work ------------------------------------------------------------------------------------------------------------


def work(workload: WorkloadFindings, among: Iterable[CaseResult]) -> Table:
    """Return a row a phase: its time and shares, its work, the rates that it reaches, and which of them limits it."""
    pairs = [(case, own) for case in among if (own := [p for p in workload.phase_work if p.case == case.id])]
    found = [phase for _, own in pairs for phase in own]
    rate, names = "ceiling" if workload.rates_measured else "peak", _short_names({p.phase for p in workload.phase_work})
    tera = Unit("", 1e12)
    columns = [
        Column("case", "case", is_label=True),
        Column("phase", "phase", is_label=True),
        Column("ns", "", _per_call(time_unit(phase.ns for phase in found), True)),
        Column("of_time", "of their time", format=Format.PERCENT),
        Column("flops", "", Unit("GFLOP", 1e9)),
        Column("of_work", "of their FLOP", format=Format.PERCENT),
        Column("bytes_moved", "must move", size_unit(phase.bytes_moved for phase in found)),
        Column("intensity", "FLOP/byte"),
        Column("flops_per_s", "TFLOP/s", tera),
        Column("of_flops", f"of {rate} FLOP/s", format=Format.PERCENT),
        Column("bytes_per_s", "TB/s", tera),
        Column("of_bandwidth", f"of {rate} bytes/s", format=Format.PERCENT),
        Column("limited_by", "limited by", is_words=True),
    ]
    rows = [
        [case_text(case) if i == 0 else "", names[p.phase], p.ns, p.of_time, p.flops or None, p.of_work, p.bytes_moved,
         p.intensity, p.flops_per_s, _of_rate(p.of_flops), p.bytes_per_s, _of_rate(p.of_bandwidth),
         _BINDS.get(p.limited_by) or Cell()]
        for case, own in pairs
        for i, p in enumerate(own)
    ]  # fmt: skip
    table = make_table("phase_work", columns, rows)
    return table.without("of_time", "of_work") if all(len(own) == 1 for _, own in pairs) else table


def _of_rate(share: float | None) -> Cell | float | None:
    return Cell(share, is_strong=True, note="above") if share is not None and share > 1 else share


def _short_names(paths: Collection[str]) -> dict[str, str]:
    """Return each path by its last range, unless two end alike."""
    last = {path: path.split(PATH_SEPARATOR)[-1] for path in paths}
    return last if len(set(last.values())) == len(last) else {path: path for path in paths}


def _work_note(workload: WorkloadFindings) -> str:
    notes = ["FLOPs and bytes are those that the workload declares: each operand read once, each result written once."]
    if any(phase.limited_by for phase in workload.phase_work):
        notes.append("Limited by: the nearer of the two limits of the roofline.")
    if any((phase.of_bandwidth or 0) > 1 for phase in workload.phase_work):
        notes.append("Bytes above the memory's rate came from a cache.")
    return " ".join(notes)


def disproportions(workload: WorkloadFindings) -> list[Text]:
    """Return a sentence for each phase that takes far more of the time than of the FLOPs."""
    by_phase: dict[str, list[PhaseWork]] = {}
    for phase in workload.phase_work:
        by_phase.setdefault(phase.phase, []).append(phase)
    names, points = _short_names(by_phase), {case.id: case for case in workload.cases}
    return [
        sentence
        for path, own in by_phase.items()
        for among, group in _groups(own, points)
        for sentence in _disproportion(f"{names[path]}{among}", group, points)
    ]


def _groups(own: Sequence[PhaseWork], points: Mapping[str, CaseResult]) -> list[tuple[str, list[PhaseWork]]]:
    """Divide ``own`` by the values of an axis where one range does not describe all cases and theirs do.

    A range over fp32 and bf16 describes neither: the numbers of a phase must be within a factor of two.
    """
    whole = [("", list(own))]
    if _is_alike(own):
        return whole
    for axis in dict.fromkeys(axis for phase in own for axis in points[phase.case].params):
        groups: dict[str, list[PhaseWork]] = {}
        for phase in own:
            value = points[phase.case].params.get(axis)
            groups.setdefault(in_words(((axis, value),)), []).append(phase)
        if len(groups) < len(own) and all(_is_alike(group) for group in groups.values()):
            return [(f" at {value}", group) for value, group in groups.items()]
    return whole


def _is_far(phase: PhaseWork) -> bool:
    return bool(phase.of_time and phase.of_work and phase.of_time > max(_LEAST, _FAR_ABOVE * phase.of_work))


def _is_alike(own: Sequence[PhaseWork]) -> bool:
    """Return True if one range describes the time shares and bandwidths of all disproportionate cases."""
    far = [phase for phase in own if _is_far(phase)]
    shares = [[s for s in each if s] for each in ([p.of_time for p in far], [p.of_bandwidth for p in far])]
    return all(max(each) <= _SPREAD * min(each) for each in shares if each)


def _disproportion(name: str, own: Sequence[PhaseWork], points: Mapping[str, CaseResult]) -> Iterator[Text]:
    """Yield ``softmax takes 41 % of the time of these phases for 3 % of their FLOPs: ...``."""
    far = [phase for phase in own if _is_far(phase)]
    if not far:
        return
    where = "" if len(far) == len(own) else f" (in {count_cases(len(far))} of {len(own)})"
    times, flops = (_span([100 * (getattr(phase, name) or 0) for phase in far]) for name in ("of_time", "of_work"))
    sentence = f"{name} takes {times} % of the time of these phases for {flops} % of their FLOPs{where}"
    intensities = [phase.intensity for phase in far if phase.intensity]
    ridges = [phase.ridge for phase in far if phase.ridge]
    if intensities:
        sentence += f": it does {_span(intensities)} FLOP per byte"
    if intensities and ridges:
        sentence += f", and the machine could do {_span(ridges)}"
        if all(phase.limited_by == "memory" for phase in far):
            yield (f"{sentence}. Memory limits it: it reaches ", *_bandwidth_range(far, points), " of the bandwidth.")
            return
    yield f"{sentence}."


def _bandwidth_range(own: Sequence[PhaseWork], points: Mapping[str, CaseResult]) -> tuple[Inline, ...]:
    """Return ``16 %``, or the lowest and the highest with their cases where cases differ."""
    known = sorted((phase for phase in own if phase.of_bandwidth), key=lambda phase: phase.of_bandwidth or 0)
    low, high = (f"{_span([100 * (phase.of_bandwidth or 0)])} %" for phase in (known[0], known[-1]))
    if low == high:
        return (low,)
    lowest, highest = (inlines(case_text(points[phase.case])) for phase in (known[0], known[-1]))
    return (f"{low} (", *lowest, f") to {high} (", *highest, ")")


def _span(values: Sequence[float]) -> str:
    """Return ``41`` or ``31 to 45``, rounded to what a sentence needs."""
    low, high = (number(edge) if edge < 10 else f"{edge:.0f}" for edge in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
