"""Sum up the launches inside each range: rows of the table `ranges`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.attribution import Attribution, Launches, Paths, Ranges
from profpipe.ingest.groupby import Int64s, Ints, combine, union
from profpipe.results import schema

_NEVER = np.iinfo(np.int64).max


def table(
    ranges: Ranges,
    launches: Launches,
    placed: Attribution,
    start_ns: Int64s,
    end_ns: Int64s,
    pids: Callable[[Int64s], Any],
    on_gpu: bool = True,
) -> pd.DataFrame:
    """Return the table `ranges`. ``pids`` turns numbers of processes into process ids, negative where unknown.

    Without ``on_gpu`` the times of the GPU, which was not recorded, are missing.
    """
    rows = summarise(ranges, launches, placed, start_ns, end_ns)
    process = pd.Series(pd.array(pids(rows["process"].to_numpy()), dtype="Int64"))
    rows["process"] = process.where(process >= 0)
    if not on_gpu:
        rows[["kernel_ns", "kernels", "busy_ns", "span_ns"]] = pd.NA
    return schema.frame(schema.RANGES, rows)


def summarise(
    ranges: Ranges, launches: Launches, placed: Attribution, start_ns: Int64s, end_ns: Int64s
) -> pd.DataFrame:
    """Return rows of ``ranges`` (without run, workload, profiler and source), ordered by their first instance.

    ``start_ns`` and ``end_ns`` are when each launch ran on the GPU. Only kernels and whole graphs count; a graph that
    was traced as one counts as one kernel.
    """
    rows = _Rows(placed.paths)
    opened = rows.of_ranges(ranges, placed.range_path)
    kernels = np.flatnonzero(launches.is_kernel & (placed.path != 0))
    # Not in the order of their starts, in which the kernels of several processes alternate.
    combination, levels = rows.around(launches.process[kernels], placed.path[kernels])
    # In few bytes, and without arrays that nothing needs any more: with ten million kernels each takes 80 MB.
    combination = combination.astype(np.min_scalar_type(max(levels.shape[1], 1)))
    order = np.argsort(start_ns[kernels], kind="stable")
    kernels, combination = kernels[order], combination[order]
    del order
    start_ns, end_ns = start_ns[kernels], end_ns[kernels]
    frame = rows.frame()
    frame["instances"] = np.bincount(opened, minlength=len(rows))
    frame["wall_ns"] = np.bincount(opened, weights=ranges.end - ranges.start, minlength=len(rows))
    frame["kernel_ns"] = _sum_levels(np.bincount(combination, weights=end_ns - start_ns), levels, len(rows))
    frame["kernels"] = _sum_levels(np.bincount(combination), levels, len(rows)).astype(np.int64)
    frame["busy_ns"] = _busy(combination, levels, start_ns, end_ns, len(rows))
    cases = np.flatnonzero((frame["case"] != "") & (frame["range"] == ""))
    span_ns = np.full(len(rows), np.nan)
    for level in levels[np.isin(levels, cases).any(axis=1)]:
        called = launches.start[kernels]
        found = _spans(len(rows), cases, level[combination], called, start_ns, end_ns, opened, ranges.start)
        span_ns = np.where(np.isnan(span_ns), found, span_ns)
    frame["span_ns"] = span_ns
    first = np.full(len(rows), _NEVER)
    np.minimum.at(first, opened, ranges.start)
    return frame.iloc[np.lexsort((np.arange(len(rows)), first))].reset_index(drop=True)


def _sum_levels(values: Ints, levels: Ints, rows: int) -> npt.NDArray[np.float64]:
    """Add the value of each combination to all rows around it."""
    total = np.zeros(rows)
    for level in levels:
        inside = level >= 0
        total += np.bincount(level[inside], weights=values[inside], minlength=rows)
    return total


def _busy(combination: Ints, levels: Ints, start_ns: Int64s, end_ns: Int64s, rows: int) -> npt.NDArray[np.float64]:
    """Return the union of the intervals of each row's launches; launches are ordered by start."""
    # A row that stands at several depths needs the launches of all of them in one union.
    is_at_one_depth = sum(len(np.unique(level[level >= 0])) for level in levels) == len(np.unique(levels[levels >= 0]))
    busy_ns = np.zeros(rows)
    parts: list[tuple[Ints, Int64s, Int64s]] = []
    for level in levels:
        row, start, end = level[combination], start_ns, end_ns
        if (level < 0).any():
            known = np.flatnonzero(row >= 0)
            row, start, end = row[known], start[known], end[known]
        if is_at_one_depth:
            busy_ns += union(row, start, end, rows)
        else:
            parts.append((row, start, end))
    if not parts:
        return busy_ns
    row, start, end = (np.concatenate(values) for values in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return union(row[order], start[order], end[order], rows)


def _spans(
    rows: int, cases: Ints, row: Ints, called: Int64s, start_ns: Int64s, end_ns: Int64s, opened: Ints, opened_ns: Int64s
) -> npt.NDArray[np.float64]:
    """Sum up the time from the first kernel's start to the last one's end over the instances of each of ``cases``.

    ``row`` and ``called`` are those of each launch, ``opened`` and ``opened_ns`` those of each range. Instances of a
    case never overlap, so a launch belongs to the last one opened before it. NaN: a row without a kernel.
    """
    found = np.full(rows, np.nan)
    launches, instances = np.argsort(row, kind="stable"), np.lexsort((opened_ns, opened))
    sorted_rows, sorted_opened = row[launches], opened[instances]
    for case in cases:
        mine = launches[slice(*np.searchsorted(sorted_rows, (case, case + 1)))]
        begun = opened_ns[instances[slice(*np.searchsorted(sorted_opened, (case, case + 1)))]]
        instance = np.searchsorted(begun, called[mine], side="right") - 1
        mine, instance = mine[instance >= 0], instance[instance >= 0]
        if len(mine):
            first, last = np.full(len(begun), _NEVER), np.zeros(len(begun), np.int64)
            np.minimum.at(first, instance, start_ns[mine])
            np.maximum.at(last, instance, end_ns[mine])
            found[case] = float((last - first)[first != _NEVER].sum())
    return found


class _Rows:
    """Number the rows (process, case, path inside the case) of a table of ranges."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._row: dict[tuple[int, str, str], int] = {}
        self._label: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._row)

    def _number(self, process: int, node: int) -> int:
        if node not in self._label:
            self._label[node] = schema.split_path(self._paths.names_of(node))
        return self._row.setdefault((process, *self._label[node]), len(self._row))

    def of_ranges(self, ranges: Ranges, range_path: Ints) -> Ints:
        """Return the row of each range instance."""
        combination, firsts = combine(ranges.process, range_path)
        rows = [self._number(int(ranges.process[i]), int(range_path[i])) for i in firsts]
        return np.array(rows, dtype=np.int64)[combination]

    def around(self, process: Int64s, path: Ints) -> tuple[Ints, Ints]:
        """Return (number of each launch's combination of process and path, rows around each combination).

        The second array is depth x combinations, -1 where a combination has fewer ranges around it.
        """
        combination, firsts = combine(process, path)
        chains = []
        for i in firsts:
            rows = [self._number(int(process[i]), node) for node in self._paths.ancestors(int(path[i]))]
            # A case nested in itself is one row, and counts a launch once.
            chains.append(list(dict.fromkeys(rows)))
        levels = np.full((max(map(len, chains), default=0), len(chains)), -1, dtype=np.int32)
        for c, chain in enumerate(chains):
            levels[: len(chain), c] = chain
        return combination, levels

    def frame(self) -> pd.DataFrame:
        process, case, name = zip(*self._row, strict=True) if self._row else ((), (), ())
        return pd.DataFrame({"process": np.array(process, dtype=np.int64), "case": list(case), "range": list(name)})
