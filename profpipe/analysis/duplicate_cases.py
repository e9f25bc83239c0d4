"""Compare the times of a case that two workloads of a run measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

import pandas as pd

from profpipe.analysis import ranks
from profpipe.analysis.case_index import Number, WorkloadData
from profpipe.analysis.findings.warnings import DuplicateTimes, TimedCase
from profpipe.analysis.grouping import grouped
from profpipe.measure.flags import Flag

#: From this ratio on times with disjoint intervals differ: clocks alone explain less.
_LEAST_RATIO = 1.15


def find_duplicates(workloads: Sequence[WorkloadData]) -> tuple[DuplicateTimes, ...]:
    """Return the pairs of equal cases of two workloads whose times differ, the largest ratio first."""
    several = workloads if len(workloads) > 1 else ()
    unlike = []
    for same in grouped((key, (case, time)) for data in several for key, case, time in _timed(data)).values():
        for pair in itertools.combinations(sorted(same, key=lambda found: -found[0].ns), 2):
            (longer, long), (shorter, short) = pair
            is_apart = not (pd.isna(short.ci_high) or pd.isna(long.ci_low)) and short.ci_high < long.ci_low
            if longer.workload != shorter.workload and is_apart and longer.ns > _LEAST_RATIO * shorter.ns:
                unlike.append(DuplicateTimes(longer, shorter))
    return tuple(sorted(unlike, key=lambda pair: -pair.longer.ns / pair.shorter.ns))


def _timed(data: WorkloadData) -> Iterator[tuple[str, TimedCase, Number]]:
    """Yield each timed case with a key that equal cases of other workloads share.

    A run records the names of environment variables without values, so a workload with variables equals no other.
    """
    declared, index = data.declared, data.recorded
    if declared is None or declared.script is None:
        return
    setting = [declared.script, declared.processes, declared.timing.mode, data.name if declared.env else ""]
    for case, params in data.layout.params.items():
        time = index.numbers.get((case, "plain", ""), {}).get("time")
        # A time that includes other work says nothing about the other workload's time.
        is_shared = Flag.OTHER_PROCESS in index.flags.get((case, "plain"), ()) or ranks.has_waited(index, case)
        if time is not None and time.value > 0 and not is_shared:
            axes = tuple((axis, params[axis]) for axis in data.layout.varying if axis in params)
            key = json.dumps([*setting, params], sort_keys=True, default=str)
            yield key, TimedCase(data.name, case, time.value, axes), time
