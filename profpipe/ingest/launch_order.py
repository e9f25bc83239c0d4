"""List single launches in the order of their calls, so that another tool can profile one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest.attribution import NO_THREAD, Attribution, Launches, Ranges
from profpipe.ingest.groupby import Int64s, Ints, groups
from profpipe.ingest.steps import windows
from profpipe.results.schema import StepRule

#: The rules of steps that profpipe marks in the program itself.
_MARKED: Final = (StepRule.MARKER, StepRule.OPTIMIZER, StepRule.FORWARD)

#: ``iteration`` counts from 0 within case and process; outside every case it is the step, -1 between steps. ``grid``
#: and ``block`` are ``32x2x16``.
COLUMNS: Final = ("case", "process", "iteration", "kernel", "grid", "block", "start_ns", "duration_ns")


def empty() -> pd.DataFrame:
    """Return the table of a file without single launches, or without their shapes."""
    return pd.DataFrame({name: [] for name in COLUMNS})


def shape(sizes: Sequence[Any]) -> str:
    """Return ``32x2x16`` of the sizes in x, y and z, empty where they are not three numbers."""
    try:
        return "x".join(str(int(size)) for size in sizes) if len(sizes) == 3 else ""
    except (TypeError, ValueError):
        return ""


def table(
    ranges: Ranges, calls: Launches, placed: Attribution, rows: Ints, seen: pd.DataFrame, start_ns: Int64s
) -> pd.DataFrame:
    """Return the launches ``rows`` in the order of their calls, as ``COLUMNS``.

    ``seen`` has the columns ``kernel``, ``grid``, ``block`` and ``duration_ns`` of those rows. ``start_ns``, when they
    ran, replaces the time of a missing call, and orders the kernels of one call (a graph).
    """
    path, paths = pd.factorize(placed.path[rows])
    cases, _ = placed.cases_and_phases(paths)
    process = calls.process[rows]
    when = np.where(calls.thread[rows] == NO_THREAD, start_ns, calls.start[rows])
    case = np.array(cases, dtype=object)[path]
    frame = seen.assign(case=case, process=process, start_ns=when)
    frame["iteration"] = _iterations(ranges, placed, case, process, when)
    order = np.lexsort((start_ns, when))
    return frame[list(COLUMNS)].iloc[order].reset_index(drop=True)


def _iterations(ranges: Ranges, placed: Attribution, case: Ints, process: Int64s, when: Int64s) -> Int64s:
    """Return the instance of its case's range that each launch lies in: the last one that its process opened."""
    code, nodes = pd.factorize(placed.range_path)
    cases, phases = placed.cases_and_phases(nodes)
    own = ["" if inside else name for name, inside in zip(cases, phases, strict=True)]
    case_of_range = np.array([*own, ""], dtype=object)[code]
    found = np.zeros(len(when), dtype=np.int64)
    for name in set(own) - {""}:
        instances = np.flatnonzero(case_of_range == name)
        opened = {pid: np.sort(ranges.start[instances[of]]) for pid, of in groups(ranges.process[instances])}
        mine = np.flatnonzero(case == name)
        for pid, of in groups(process[mine]):
            if pid in opened:
                found[mine[of]] = np.searchsorted(opened[pid], when[mine[of]], side="right") - 1
    found = found.clip(min=0)
    outside = np.flatnonzero(case == "")
    found[outside] = _steps(ranges, process[outside], when[outside])
    return found


def _steps(ranges: Ranges, process: Int64s, when: Int64s) -> Int64s:
    """Return the step of a command in which each launch lies, -1 between steps; 0 for a process without steps.

    Only the steps count around which the start-up hook or a mark of the program opened a range: ncu records these.
    """
    found = np.zeros(len(when), dtype=np.int64)
    for pid, by_sort in windows.find(ranges).items():
        own = next((sort for sort in by_sort if sort.rule in _MARKED), None)
        mine = np.flatnonzero(process == pid)
        if own is not None and len(mine) and len(own.begin):
            at = own.place(when[mine])
            found[mine] = np.where(at >= 0, own.step[at], -1)
    return found
