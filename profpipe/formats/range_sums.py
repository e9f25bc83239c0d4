"""What the launches inside each range add up to: rows of the table `ranges`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe import tables
from profpipe.formats.attribution import Attribution, Launches, Paths, Ranges
from profpipe.formats.grouping import Int64s, Ints, combine, union

_NEVER = np.iinfo(np.int64).max


def summarise(
    ranges: Ranges, launches: Launches, placed: Attribution, start_ns: Int64s, end_ns: Int64s
) -> pd.DataFrame:
    """Rows of ``ranges`` (without run, workload, profiler and source) with the kernels inside them.

    ``start_ns`` and ``end_ns`` are when each launch's kernel ran on the GPU. Copies and sets do not count; a whole
    graph traced as one counts as one kernel with its whole time, for that time is its kernels'.
    """
    kernels = np.flatnonzero(launches.is_kernel & (placed.path != 0))
    kernels = kernels[np.argsort(start_ns[kernels], kind="stable")]
    start_ns, end_ns = start_ns[kernels], end_ns[kernels]
    rows = _Rows(placed.paths)
    opened = rows.of_ranges(ranges, placed.range_path)
    combination, levels = rows.around(launches.process[kernels], placed.path[kernels])
    count, kernel_ns, busy_ns = np.zeros(len(rows), np.int64), np.zeros(len(rows)), np.zeros(len(rows))
    # A row that stands at one depth around some launches and at another around others: its time is one union.
    apart = sum(len(np.unique(level[level >= 0])) for level in levels) == len(np.unique(levels[levels >= 0]))
    seen: list[tuple[Int64s, Int64s, Int64s]] = []
    for level in levels:
        row, start, end = level[combination], start_ns, end_ns
        if (level < 0).any():
            known = np.flatnonzero(row >= 0)
            row, start, end = row[known], start[known], end[known]
        count += np.bincount(row, minlength=len(rows))
        kernel_ns += np.bincount(row, weights=end - start, minlength=len(rows))
        if apart:
            busy_ns += union(row, start, end, len(rows))
        else:
            seen.append((row, start, end))
    if seen:
        row, start, end = (np.concatenate(values) for values in zip(*seen, strict=True))
        order = np.argsort(start, kind="stable")
        busy_ns = union(row[order], start[order], end[order], len(rows))
    frame = rows.frame()
    frame["instances"] = np.bincount(opened, minlength=len(rows))
    frame["wall_ns"] = np.bincount(opened, weights=ranges.end - ranges.start, minlength=len(rows))
    frame["kernel_ns"], frame["kernels"], frame["busy_ns"] = kernel_ns, count, busy_ns
    own = np.flatnonzero((frame["case"] != "") & (frame["range"] == ""))
    span_ns = np.full(len(rows), np.nan)
    for level in levels:
        launched = launches.start[kernels]
        found = _spans(len(rows), own, level[combination], launched, start_ns, end_ns, opened, ranges.start)
        span_ns = np.where(np.isnan(span_ns), found, span_ns)
    frame["span_ns"] = span_ns
    first = np.full(len(rows), _NEVER)
    np.minimum.at(first, opened, ranges.start)
    order = np.lexsort((np.arange(len(rows)), first))
    return frame.iloc[order].reset_index(drop=True)


def _spans(
    rows: int, own: Ints, row: Ints, launched: Int64s, start_ns: Int64s, end_ns: Int64s, opened: Ints, opened_ns: Int64s
) -> npt.NDArray[np.float64]:
    """From the first kernel's start to the last one's end, summed over a row's instances, of the rows ``own``.

    ``row`` and ``launched`` are those of each launch, ``opened`` and ``opened_ns`` those of each range: a row's
    instances follow one another, so a launch is of the last one opened before it. NaN for rows without a kernel here.
    """
    found = np.full(rows, np.nan)
    launches, instances = np.argsort(row, kind="stable"), np.lexsort((opened_ns, opened))
    sorted_rows, sorted_opened = row[launches], opened[instances]
    for each in own:
        mine = launches[slice(*np.searchsorted(sorted_rows, (each, each + 1)))]
        begun = opened_ns[instances[slice(*np.searchsorted(sorted_opened, (each, each + 1)))]]
        instance = np.searchsorted(begun, launched[mine], side="right") - 1
        mine, instance = mine[instance >= 0], instance[instance >= 0]
        if len(mine):
            first, last = np.full(len(begun), _NEVER), np.zeros(len(begun), np.int64)
            np.minimum.at(first, instance, start_ns[mine])
            np.maximum.at(last, instance, end_ns[mine])
            found[each] = float((last - first)[first != _NEVER].sum())
    return found


class _Rows:
    """Numbers the rows (process, case, path inside it) of a table of ranges."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._row: dict[tuple[int, str, str], int] = {}
        self._label: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._row)

    def _of(self, process: int, node: int) -> int:
        if node not in self._label:
            self._label[node] = tables.split_path(self._paths.names_of(node))
        key = (process, *self._label[node])
        return self._row.setdefault(key, len(self._row))

    def of_ranges(self, ranges: Ranges, range_path: Ints) -> Ints:
        """The row of each range instance."""
        combination, firsts = combine(ranges.process, range_path)
        rows = [self._of(int(ranges.process[i]), int(range_path[i])) for i in firsts]
        return np.array(rows, dtype=np.int64)[combination]

    def around(self, process: Int64s, path: Ints) -> tuple[Ints, Ints]:
        """(number of each launch's combination of process and path, table depth x combination of rows, -1 for none)."""
        combination, firsts = combine(process, path)
        chains = []
        for i in firsts:
            rows = [self._of(int(process[i]), node) for node in self._paths.ancestors(int(path[i]))]
            # A case nested in itself is one row, and counts a launch once.
            chains.append(list(dict.fromkeys(rows)))
        levels = np.full((max(map(len, chains), default=0), len(chains)), -1, dtype=np.int32)
        for c, chain in enumerate(chains):
            levels[: len(chain), c] = chain
        return combination, levels

    def frame(self) -> pd.DataFrame:
        process, case, name = zip(*self._row, strict=True) if self._row else ((), (), ())
        return pd.DataFrame({"process": np.array(process, dtype=np.int64), "case": list(case), "range": list(name)})
