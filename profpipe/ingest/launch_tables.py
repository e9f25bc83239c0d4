"""Sum up and list single launches: the rows of `kernels` and `ranges`, the overlap of communication, and the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.attribution import NO_THREAD, Attribution, Launches, Paths, Ranges
from profpipe.ingest.groupby import Bools, Int64s, Ints, combine, groups, union
from profpipe.ingest.operations import Operations
from profpipe.ingest.steps import windows
from profpipe.results import schema
from profpipe.results.schema import StepRule

#: The columns that identify a row of `kernels` within one file. A class follows from the name, if the file does not say
#: more: a launch with a class is one row with others of its class only.
LAUNCH_KEYS: Final = ("case", "process", "device", "stream", "phase", "kind", "kernel", "kernel_class")


def kernel_rows(launches: pd.DataFrame) -> pd.DataFrame:
    """Return rows of ``kernels`` (without class and family) from single launches.

    ``launches`` has one row for each launch: ``duration_ns`` and any of ``LAUNCH_KEYS``. Categorical keys are the
    fastest. A key that is absent is missing in the result. ``stddev_ns`` uses n - 1.
    """
    if launches.empty:
        return schema.empty(schema.KERNELS)
    keys = [key for key in LAUNCH_KEYS if key in launches.columns]
    codes, first_rows = _combinations([launches[key] for key in keys], len(launches))
    duration = launches["duration_ns"].to_numpy(dtype=np.float64)
    result = launches[keys].iloc[first_rows].reset_index(drop=True)
    # The launches of a caller that keeps no name for them are freed before the sort: of a million 16 MB.
    del launches
    codes, duration = _sorted_within(codes, duration)
    start = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    count = np.diff(np.r_[start, len(codes)])
    total = np.add.reduceat(duration, start)
    mean = total / count
    for key in keys:
        if isinstance(result[key].dtype, pd.CategoricalDtype):
            result[key] = result[key].astype(object)
    result["calls"] = count
    result["total_ns"], result["mean_ns"] = total, mean
    result["median_ns"] = (duration[start + (count - 1) // 2] + duration[start + count // 2]) / 2
    result["min_ns"], result["max_ns"] = duration[start], duration[start + count - 1]
    # In place: with ten million launches each copy takes 80 MB.
    duration -= np.repeat(mean, count)
    squares = np.add.reduceat(np.square(duration, out=duration), start)
    result["stddev_ns"] = np.sqrt(squares / np.maximum(count - 1, 1))
    result.loc[count < 2, "stddev_ns"] = np.nan
    return schema.frame(schema.KERNELS, result)


def _combinations(keys: list[pd.Series[Any]], rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the number of each row's combination of keys, in order of appearance, and each one's first row."""
    codes, size = np.zeros(rows, dtype=np.int64), 1
    for key in keys:
        if isinstance(key.dtype, pd.CategoricalDtype):
            # The code of a missing value is -1.
            code, values, first = key.cat.codes.to_numpy(), len(key.cat.categories) + 1, -1
        else:
            code, found = pd.factorize(key, use_na_sentinel=False)
            values, first = len(found), 0
        if size * values > 2**62:
            codes, kept = pd.factorize(codes)
            size = len(kept)
        codes *= values
        codes += code
        codes -= first
        size *= values
    codes, kept = pd.factorize(codes)
    first_rows = np.zeros(len(kept), dtype=np.int64)
    first_rows[codes[::-1]] = np.arange(rows - 1, -1, -1)
    return codes, first_rows


def _sorted_within(
    codes: np.ndarray[Any, Any], duration: np.ndarray[Any, np.dtype[np.float64]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return both arrays ordered by code, then by duration. ``codes`` is used for the result."""
    low, high = float(duration.min()), float(duration.max())
    bits = int(codes.max()).bit_length()
    if low >= 0 and high < 2.0 ** (62 - bits) and np.array_equal(duration, np.rint(duration)):
        # Whole ns in the low bits of an integer, the code above: ten times as fast as a sort by two keys.
        shift = 62 - bits
        packed = np.left_shift(codes, shift, out=codes)
        packed |= duration.astype(np.int64)
        packed.sort()
        codes = (packed >> shift).astype(np.int32)
        packed &= (1 << shift) - 1
        return codes, packed.astype(np.float64)
    order = np.lexsort((duration, codes))
    return codes[order], duration[order]


_NEVER = np.iinfo(np.int64).max


def range_rows(
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
    rows = sum_ranges(ranges, launches, placed, start_ns, end_ns)
    process = pd.Series(pd.array(pids(rows["process"].to_numpy()), dtype="Int64"))
    rows["process"] = process.where(process >= 0)
    if not on_gpu:
        rows[["kernel_ns", "kernels", "busy_ns", "span_ns"]] = pd.NA
    return schema.frame(schema.RANGES, rows)


def sum_ranges(
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
        found += [row for subject, busy in rows for row in _overlap_rows(case, subject, busy, n)]
    return found


def _overlap_rows(case: str, subject: str, busy_ns: Sequence[float], n: int | None) -> Iterator[dict[str, Any]]:
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


#: The rules of steps that profpipe marks in the program itself.
_MARKED: Final = (StepRule.MARKER, StepRule.OPTIMIZER, StepRule.FORWARD)

#: ``iteration`` counts from 0 within case and process; outside every case it is the step, -1 between steps. ``grid``
#: and ``block`` are ``32x2x16``.
COLUMNS: Final = ("case", "process", "iteration", "kernel", "grid", "block", "start_ns", "duration_ns")


def no_launches() -> pd.DataFrame:
    """Return the table of a file without single launches, or without their shapes."""
    return pd.DataFrame({name: [] for name in COLUMNS})


def shape(sizes: Sequence[Any]) -> str:
    """Return ``32x2x16`` of the sizes in x, y and z, empty where they are not three numbers."""
    try:
        return "x".join(str(int(size)) for size in sizes) if len(sizes) == 3 else ""
    except (TypeError, ValueError):
        return ""


def in_order(
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
