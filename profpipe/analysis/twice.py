"""The same case in two workloads of a run: two measurements of one thing, so each is a check of the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from profpipe.analysis import by_rank
from profpipe.analysis.recorded import Number
from profpipe.analysis.study_cases import Material
from profpipe.concerns import Twice, Visit

#: Times whose intervals do not overlap, and which are this much apart, are not of one thing: clocks alone explain less.
_APART = 1.15


def found(materials: Sequence[Material]) -> tuple[Twice, ...]:
    """The timed cases with the same script and parameters in several workloads whose times differ, largest first."""
    visits: dict[str, list[tuple[Visit, Number]]] = {}
    for material in materials:
        for key, visit, time in _timed(material):
            visits.setdefault(key, []).append((visit, time))
    unlike = [
        Twice(*sorted((one[0], other[0]), key=lambda visit: -visit.ns))
        for same in visits.values()
        for one, other in itertools.combinations(same, 2)
        if one[0].workload != other[0].workload and _differ(one[1], other[1])
    ]
    return tuple(sorted(unlike, key=lambda pair: -pair.factor))


def _timed(material: Material) -> Iterator[tuple[str, Visit, Number]]:
    script, layout, recorded = material.declared.get("script"), material.layout, material.recorded
    setting = [script, _how(material)]
    for case, params in layout.params.items():
        time = recorded.numbers.get((case, "plain", ""), {}).get("time")
        # What is known not to be a case's own time casts no doubt on another measurement.
        own = "other_process" not in recorded.flags.get((case, "plain"), ()) and not by_rank.waited(recorded, case)
        if script and own and time is not None and time.value > 0:
            axes = tuple((axis, params[axis]) for axis in layout.varying if axis in params)
            key = json.dumps([*setting, params], sort_keys=True, default=str)
            yield key, Visit(material.name, case, time.value, axes), time


def _how(material: Material) -> list[Any]:
    """What else makes two cases different ones: the processes, eager or as a CUDA graph, the environment.

    A run keeps the names of a workload's variables and not their values, so each that has any is unlike every other.
    """
    declared = material.declared
    mode = (declared.get("timing") or {}).get("mode") or "eager"
    return [declared.get("processes") or 1, mode, material.name if declared.get("env") else ""]


def _differ(one: Number, other: Number) -> bool:
    short, long = sorted((one, other), key=lambda number: number.value)
    known = not (pd.isna(short.ci_high) or pd.isna(long.ci_low))
    return known and short.ci_high < long.ci_low and long.value > _APART * short.value
