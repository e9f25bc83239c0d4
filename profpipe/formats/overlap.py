"""How much of the time that a GPU spends on communication it also computes: from single launches.

A communication kernel (NCCL's, RCCL's) runs from when its process is ready until the others have sent, so its time is
work and waiting. While a kernel that computes runs on the same device that time is hidden; for the rest the device does
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe import tables
from profpipe.formats.grouping import Bools, Ints, combine, union

_CLASS: Final = "communication"

#: Time in ns in which a device communicates, in which it computes, and in which it does both.
_Busy = tuple[float, float, float]


@dataclass(frozen=True)
class Kernels:
    """Kernels, one row each, in ns; ``case`` indexes ``cases``. A whole graph traced as one computes.

    ``process`` and ``device`` are as the tool numbers them, -1 where it does not say.
    """

    case: Ints
    cases: Sequence[str]
    process: Ints
    device: Ints
    start: Ints
    end: Ints
    communicates: Bools


def communicate(classes: Iterable[str]) -> Bools:
    """Which of the kernels' classes are that of communication."""
    return np.array([each == _CLASS for each in classes], dtype=bool)


def numbered(codes: Ints, cases: Sequence[str]) -> tuple[Ints, list[str]]:
    """``codes`` into ``cases``, of which several may be alike, as codes into different ones."""
    number, different = pd.factorize(np.array(cases, dtype=object))
    return number[codes] if len(cases) else codes, list(different)


def iterations(ranges: pd.DataFrame) -> dict[str, int]:
    """How often each case ran in one process: the instances of its own range."""
    own = ranges[(ranges["range"] == "") & (ranges["case"] != "")]
    return {case: int(count) for case, count in own.groupby("case")["instances"].max().items()}


def metrics(launched: Kernels, iterations: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of `metrics` for each case and device with communication; none where there is none.

    ``communication_busy`` and ``compute_busy`` (ns) are the time in which at least one kernel of that sort ran, of one
    iteration where ``iterations``, those of one process by case, has them, else of everything.
    ``communication_overlap`` (%) is the part of the former in which the latter ran too. Where a file holds several
    devices they are also told together, the times as the mean of them.
    """
    found = []
    for case, devices in _by_case(launched).items():
        n = iterations.get(case) or None
        every = np.array([busy for _, busy in devices])
        rows = [(f"{tables.DEVICE_PREFIX}{name}", busy) for name, busy in devices]
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
    """By case: each device that communicates, with its busy times (communication, compute, both at once)."""
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
    """By the device's number, and the process too where two of them see different devices under one number."""
    numbers = [device for device, _ in places]
    found = []
    for (device, process), busy in sorted(places.items()):
        name = str(device) if device >= 0 else "?"
        found.append((name if numbers.count(device) == 1 else f"{name} of process {process}", busy))
    return found
