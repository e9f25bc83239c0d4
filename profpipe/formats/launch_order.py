"""Single launches in the order of their calls, for who must tell another tool which of them is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.formats.attribution import NO_THREAD, Attribution, Launches, Ranges
from profpipe.formats.grouping import Int64s, Ints, groups

#: Those of a table of launches: ``iteration`` counts from 0 within case and process, ``grid`` is ``32x2x16``.
COLUMNS: Final = ("case", "process", "iteration", "kernel", "grid", "block", "start_ns", "duration_ns")


def empty() -> pd.DataFrame:
    """The table of a file that does not tell its launches apart, or not their shapes."""
    return pd.DataFrame({name: [] for name in COLUMNS})


def shape(sizes: Sequence[Any]) -> str:
    """``32x2x16`` of the sizes in x, y and z; empty where they are no three numbers."""
    try:
        return "x".join(str(int(size)) for size in sizes) if len(sizes) == 3 else ""
    except (TypeError, ValueError):
        return ""


def table(
    ranges: Ranges, calls: Launches, placed: Attribution, rows: Ints, seen: pd.DataFrame, start_ns: Int64s
) -> pd.DataFrame:
    """The launches ``rows`` in the order of their calls, as ``COLUMNS``.

    ``seen`` has the columns ``kernel``, ``grid``, ``block`` and ``duration_ns`` of those rows. ``start_ns`` is when
    they ran: it stands in for a call that is not in the file, and orders what one call launched (a graph).
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
    """Which instance of its case's own range each launch lies in, by time: that of the process that was opened last."""
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
    return found.clip(min=0)
