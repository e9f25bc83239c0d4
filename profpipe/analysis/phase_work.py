"""The time of phases beside the work that their workload declares: what each reaches, and what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from profpipe.analysis.limits import FAR_BELOW, OF_TYPE, Rates
from profpipe.analysis.recorded import Number
from profpipe.findings import Point
from profpipe.kernel_findings import Phase
from profpipe.phase_findings import PhaseWork

#: case -> path of the range -> its FLOPs and bytes
Declared = Mapping[str, Mapping[str, Mapping[str, float]]]

_WORK = ("flops", "bytes_moved")


def declared(numbers: Mapping[tuple[str, str, str], Mapping[str, Number]]) -> Declared:
    """The work of phases, which `plain` writes; under other profilers a subject is the name of a kernel."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (case, profiler, subject), own in numbers.items():
        work = {name: number.value for name, number in own.items() if name in _WORK or name.startswith(OF_TYPE)}
        if profiler == "plain" and subject and work:
            found.setdefault(case, {})[subject] = work
    return found


def of_case(
    point: Point, work: Mapping[str, Mapping[str, float]], phases: Iterable[Phase], rates: Rates
) -> Iterator[PhaseWork]:
    """Those of ``phases`` (of one profiler) that have ``work``; nothing where nobody knows how often the case ran."""
    if point.split is None or point.split.iterations is None:
        return
    timed = [phase for phase in phases if phase.phase in work and phase.ns > 0]
    time, flops = sum(phase.ns for phase in timed), sum(work[phase.phase].get("flops", 0.0) for phase in timed)
    memory = rates.bytes_per_s
    for phase in timed:
        peak = rates.flops_of(point.params, work[phase.phase])
        own, moved = work[phase.phase].get("flops"), work[phase.phase].get("bytes_moved")
        of_flops = own * 1e9 / phase.ns / peak if own and peak else None
        of_bandwidth = moved * 1e9 / phase.ns / memory if moved and memory else None
        ridge = peak / memory if peak and memory else None
        binds = ""
        # As for whole calls: what stays far below both rates does something else than what is declared.
        if own and moved and ridge and max(of_flops or 0.0, of_bandwidth or 0.0) >= FAR_BELOW:
            binds = "compute" if own / moved > ridge else "memory"
        yield PhaseWork(
            point.id,
            phase.phase,
            phase.ns,
            own,
            moved,
            of_time=phase.ns / time,
            of_work=own / flops if own and flops else None,
            of_flops=of_flops,
            of_bandwidth=of_bandwidth,
            ridge=ridge,
            binds=binds,
        )
