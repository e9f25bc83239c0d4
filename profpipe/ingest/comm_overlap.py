"""Measure how much of its communication time a GPU also computes, from single launches.

A communication kernel (NCCL, RCCL) runs from when its process is ready until the other processes have sent: its time is
work and waiting. A compute kernel on the same device hides that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profpipe.ingest.attribution import Attribution
from profpipe.ingest.groupby import Bools, Ints, combine, union
from profpipe.ingest.steps.operations import Operations
from profpipe.results import schema

#: Time in ns in which a device communicates, computes, and does both.
_Busy = tuple[float, float, float]


@dataclass(frozen=True)
class Kernels:
    """Kernels, one row each, times in ns; ``case`` indexes ``cases``. A whole graph traced as one computes.

    ``process`` and ``device`` are the tool's numbers, -1 where unknown.
    """

    case: Ints
    cases: Sequence[str]
    process: Ints
    device: Ints
    start: Ints
    end: Ints
    communicates: Bools


def kernels(done: Operations, placed: Attribution, pids: Callable[[Ints], Ints]) -> Kernels:
    """Return the kernels and whole graphs among the operations; none where no kernel communicates.

    ``pids`` turns numbers of processes into those that distinguish devices of one number.
    """
    kernel, graph = map(schema.KINDS.index, ("kernel", "graph"))
    # Most files have no communication, and a column of ten million kernels is 80 MB.
    has_any = done.are_collective.any()
    rows = np.flatnonzero(np.isin(done.kind, (kernel, graph))) if has_any else np.zeros(0, dtype=np.int64)
    path, paths = pd.factorize(placed.path[rows])
    cases, _ = placed.cases_and_phases(paths)
    number, different = pd.factorize(np.array(cases, dtype=object))
    return Kernels(
        number[path] if len(rows) else path,
        list(different),
        pids(done.process[rows]),
        done.device[rows],
        done.start[rows],
        done.end[rows],
        done.are_collective[done.name[rows]] & (done.kind[rows] == kernel),
    )


def count_iterations(ranges: pd.DataFrame) -> dict[str, int]:
    """Count how often each case ran in one process: the instances of the case's range."""
    own = ranges[(ranges["range"] == "") & (ranges["case"] != "")]
    return {case: int(count) for case, count in own.groupby("case")["instances"].max().items()}


def metrics(launched: Kernels, iterations: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return rows of `metrics` for each case and device with communication.

    ``communication_busy`` and ``compute_busy`` (ns) are the time in which at least one kernel of that sort ran: in one
    iteration where ``iterations`` has the case, else in the whole file. ``communication_overlap`` (%) is the part of
    ``communication_busy`` in which a compute kernel ran too. Several devices also get a row with their mean.
    """
    found = []
    for case, devices in _by_case(launched).items():
        n = iterations.get(case) or None
        every = np.array([busy for _, busy in devices])
        rows = [(f"{schema.DEVICE_PREFIX}{name}", busy) for name, busy in devices]
        if len(devices) > 1:
            rows.append(("", every.mean(axis=0)))
        found += [row for subject, busy in rows for row in _rows(case, subject, busy, n)]
    return found


def _rows(case: str, subject: str, busy_ns: Sequence[float], n: int | None) -> Iterator[dict[str, Any]]:
    communicates, computes, both = busy_ns
    of = {"case": case, "subject": subject, "n": n}
    yield {**of, "metric": "communication_busy", "value": communicates / (n or 1), "unit": "ns"}
    yield {**of, "metric": "compute_busy", "value": computes / (n or 1), "unit": "ns"}
    yield {**of, "metric": "communication_overlap", "value": both / communicates * 100, "unit": "%"}


def _by_case(launched: Kernels) -> dict[str, list[tuple[str, _Busy]]]:
    """Return by case the devices that communicate and their busy times."""
    if not launched.communicates.any():
        return {}
    order = np.argsort(launched.start, kind="stable")
    place, firsts = combine(launched.case[order], launched.process[order], launched.device[order])
    start, end, communicates = launched.start[order], launched.end[order], launched.communicates[order]

    def busy(rows: Bools) -> Any:
        return union(place[rows], start[rows], end[rows], len(firsts))

    one, other, any_of_them = busy(communicates), busy(~communicates), busy(np.ones(len(order), dtype=bool))
    found: dict[str, dict[tuple[int, int], _Busy]] = {}
    for at, row in enumerate(order[firsts]):
        if one[at] > 0:
            times = (float(one[at]), float(other[at]), float(one[at] + other[at] - any_of_them[at]))
            place_of = int(launched.device[row]), int(launched.process[row])
            found.setdefault(launched.cases[launched.case[row]], {})[place_of] = times
    return {case: _named(places) for case, places in found.items()}


def _named(places: Mapping[tuple[int, int], _Busy]) -> list[tuple[str, _Busy]]:
    """Name devices by number, with the process where two processes give one number to different devices."""
    numbers = [device for device, _ in places]
    found = []
    for (device, process), busy in sorted(places.items()):
        name = str(device) if device >= 0 else "?"
        found.append((name if numbers.count(device) == 1 else f"{name} of process {process}", busy))
    return found
