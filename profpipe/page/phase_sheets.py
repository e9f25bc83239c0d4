"""Findings -> the table of what phases do beside what they cost, and why one costs so much."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from profpipe.findings import Point, WorkloadFindings
from profpipe.page.limit_sheets import ROOF
from profpipe.page.markdown import Sheet, escape, listed
from profpipe.page.quantities import MISSING, count, number, percent, size_unit, time_unit
from profpipe.page.wording import case_label, cases
from profpipe.phase_findings import HostPhase, PhaseWork
from profpipe.points import in_words
from profpipe.tables import PATH_SEPARATOR

#: A phase is spoken of whose share of the time is this many times its share of the FLOPs, and a tenth of the time.
_FAR_ABOVE, _LEAST = 3.0, 0.1

#: Numbers of several cases are one range up to this factor.
_SPREAD = 2.0


def work(workload: WorkloadFindings, among: Sequence[Point]) -> Sheet:
    """A row a phase: its time and shares, what it computes and moves, the rates that it reaches, and which binds."""
    own: dict[str, list[PhaseWork]] = {}
    for one in workload.phase_work:
        own.setdefault(one.case, []).append(one)
    points = [point for point in among if point.id in own]
    shown = [one for point in points for one in own[point.id]]
    times, sizes = time_unit(one.ns for one in shown), size_unit(one.moved for one in shown)
    rate, names = "ceiling" if workload.rates_measured else "peak", _short({one.phase for one in workload.phase_work})
    columns: list[tuple[str, Callable[[PhaseWork], str]]] = [
        (f"{times.name}/call", lambda p: times.of(p.ns)),
        ("% of their time", lambda p: percent(p.of_time)),
        ("GFLOP", lambda p: number(p.flops / 1e9) if p.flops else MISSING),
        ("% of their FLOP", lambda p: percent(p.of_work)),
        (f"must move {sizes.name}", lambda p: sizes.of(p.moved)),
        ("FLOP/byte", lambda p: number(p.intensity)),
        ("TFLOP/s", lambda p: _per_s(p.flops_per_s)),
        (f"% of {rate} FLOP/s", lambda p: _of_rate(p.of_flops)),
        ("TB/s", lambda p: _per_s(p.bytes_per_s)),
        (f"% of {rate} bytes/s", lambda p: _of_rate(p.of_bandwidth)),
        ("limited by", lambda p: _BINDS.get(p.binds, MISSING)),
    ]
    rows = [
        [case_label(point) if i == 0 else "", escape(names[one.phase]), *(cell(one) for _, cell in columns)]
        for point in points
        for i, one in enumerate(own[point.id])
    ]
    head = ["case", "phase", *(title for title, _ in columns)]
    sheet = Sheet(head, rows, labels=2, words=frozenset({"limited by"})).without_empty()
    alone = all(len(own[point.id]) == 1 for point in points)
    return sheet.without("% of their time", "% of their FLOP") if alone else sheet


def on_host(workload: WorkloadFindings, among: Sequence[Point]) -> Sheet:
    """A row a phase of the cases without kernels: how often the host entered it, and how long it was inside."""
    own: dict[str, list[HostPhase]] = {}
    for one in workload.host_phases:
        own.setdefault(one.case, []).append(one)
    points = [point for point in among if point.id in own]
    shown = [one for point in points for one in own[point.id]]
    unit, per = time_unit(one.ns for one in shown), "/call" if any(one.per_call for one in shown) else ""
    rows = [
        [case_label(point) if i == 0 else "", escape(p.phase), count(p.entered), unit.of(p.ns), percent(p.share)]
        for point in points
        for i, p in enumerate(own[point.id])
    ]
    head = ["case", "phase", f"entered{per}", f"host {unit.name}{per}", "% of the call"]
    return Sheet(head, rows, labels=2).without_empty()


def said_on_host(workload: WorkloadFindings) -> str:
    profilers = listed(dict.fromkeys(one.profiler for one in workload.host_phases))
    return (
        f"Time on the host's clock inside each range of the workload's own, nested ranges included ({profilers}). No"
        " kernel was recorded, so it is not the time of a GPU's work."
    )


def _short(paths: Collection[str]) -> dict[str, str]:
    """Each path by its last range, where no two end alike."""
    last = {path: path.split(PATH_SEPARATOR)[-1] for path in paths}
    return last if len(set(last.values())) == len(last) else {path: path for path in paths}


_BINDS = {"compute": "arithmetic", "memory": "memory"}


def _per_s(rate: float | None) -> str:
    return MISSING if rate is None else number(rate / 1e12)


def _of_rate(share: float | None) -> str:
    return MISSING if share is None else f"**{100 * share:.0f}, above**" if share > 1 else percent(share)


def explained(workload: WorkloadFindings) -> list[str]:
    """What the columns are, and a sentence for each phase that takes far more of the time than of the FLOPs."""
    if not workload.phase_work:
        return []
    said = ["FLOPs and bytes are those that the workload declares: each operand read once, each result written once."]
    if any(one.binds for one in workload.phase_work):
        said.append(f"Limited by: {ROOF}.")
    if any((one.of_bandwidth or 0) > 1 for one in workload.phase_work):
        said.append("Bytes above the memory's rate came from a cache.")
    by_phase: dict[str, list[PhaseWork]] = {}
    for one in workload.phase_work:
        by_phase.setdefault(one.phase, []).append(one)
    names, points = _short(by_phase), {point.id: point for point in workload.points}
    return [
        " ".join(said),
        *(
            sentence
            for phase, own in by_phase.items()
            for among, group in _groups(own, points)
            for sentence in _disproportion(f"{escape(names[phase])}{among}", group, points)
        ),
    ]


def _groups(own: Sequence[PhaseWork], points: Mapping[str, Point]) -> list[tuple[str, list[PhaseWork]]]:
    """``own`` by the values of an axis, each as ``" at precision bf16"``, where no one range holds them and theirs do.

    A range over fp32 and bf16 tells of neither: what the numbers of a phase have in common is within a factor of two.
    """
    whole = [("", list(own))]
    if _alike(own):
        return whole
    for axis in dict.fromkeys(axis for one in own for axis in points[one.case].params):
        groups: dict[str, list[PhaseWork]] = {}
        for one in own:
            value = points[one.case].params.get(axis)
            groups.setdefault(escape(in_words(((axis, value),))), []).append(one)
        if len(groups) < len(own) and all(_alike(group) for group in groups.values()):
            return [(f" at {value}", group) for value, group in groups.items()]
    return whole


def _is_far(p: PhaseWork) -> bool:
    return bool(p.of_time and p.of_work and p.of_time > max(_LEAST, _FAR_ABOVE * p.of_work))


def _alike(own: Sequence[PhaseWork]) -> bool:
    """Whether one range tells of all cases that are spoken of: of their shares of the time, and of the bandwidth."""
    far = [p for p in own if _is_far(p)]
    shares = [[s for s in each if s] for each in ([p.of_time for p in far], [p.of_bandwidth for p in far])]
    return all(max(each) <= _SPREAD * min(each) for each in shares if each)


def _disproportion(name: str, own: Sequence[PhaseWork], points: Mapping[str, Point]) -> Iterator[str]:
    """``softmax takes 41 % of the time of these phases for 3 % of their FLOPs: ...``"""
    far = [p for p in own if _is_far(p)]
    if not far:
        return
    where = "" if len(far) == len(own) else f" (in {cases(len(far))} of {len(own)})"
    times = _span([100 * (p.of_time or 0) for p in far])
    flops = _span([100 * (p.of_work or 0) for p in far])
    sentence = f"{name} takes {times} % of the time of these phases for {flops} % of their FLOPs{where}"
    intensities = [p.intensity for p in far if p.intensity]
    ridges = [p.ridge for p in far if p.ridge]
    if intensities and ridges:
        sentence += f": it does {_span(intensities)} FLOP for each byte, where the machine could do {_span(ridges)}"
        if all(p.binds == "memory" for p in far):
            sentence += f", so memory is the nearer roof, of whose bandwidth it reaches {_of_bandwidth(far, points)}"
    elif intensities:
        sentence += f": it does {_span(intensities)} FLOP for each byte"
    yield sentence + "."


def _of_bandwidth(own: Sequence[PhaseWork], points: Mapping[str, Point]) -> str:
    """``16 %``; where cases differ the lowest and the highest are named: ``15 % (size small) to 17 % (size large)``."""
    known = sorted((p for p in own if p.of_bandwidth), key=lambda p: p.of_bandwidth or 0)
    low, high = (f"{_span([100 * (p.of_bandwidth or 0)])} %" for p in (known[0], known[-1]))
    if low == high:
        return low
    return f"{low} ({case_label(points[known[0].case])}) to {high} ({case_label(points[known[-1].case])})"


def _span(values: Sequence[float]) -> str:
    """``41``, ``31 to 45``: rounded to what a sentence needs."""
    low, high = (number(edge) if edge < 10 else f"{edge:.0f}" for edge in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
