"""Sum up and list single launches: the rows of `kernels` and `ranges`, the overlap of communication, and the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.attribution import NO_THREAD, Attribution, Launches
from profpipe.ingest.groupby import Bools, Int64s, Ints, combine, combine_columns, groups, union
from profpipe.ingest.operations import Operations, Spans
from profpipe.ingest.steps import windows
from profpipe.results import schema
from profpipe.results.schema import StepRule

#: The columns that identify a row of `kernels` within one file. A class follows from the name, if the file does not say
#: more: a launch with a class is one row with others of its class only.
LAUNCH_KEYS: Final = ("case", "process", "device", "stream", "phase", "kind", "kernel", "kernel_class")

#: The columns of single launches. ``iteration`` counts from 0 within case and process; outside all cases it is the
#: step, -1 between steps. ``grid`` and ``block`` are ``32x2x16``.
COLUMNS: Final = ("case", "process", "iteration", "kernel", "grid", "block", "start_ns", "duration_ns")

#: The rules of steps that profpipe marks in the program itself.
_MARKED: Final = (StepRule.MARKER, StepRule.OPTIMIZER, StepRule.FORWARD)
#: Kernels, and launch configurations of a recording, up to which their times are kept: a benchmark has few.
MOST_CONFIGURED: Final = 64
_NEVER: Final = np.iinfo(np.int64).max


# --- kernels ---------------------------------------------------------------------------------------------------------


def kernel_rows(launches: pd.DataFrame) -> pd.DataFrame:
    """Return rows of ``kernels`` (without class and family) from single launches.

    ``launches`` has a row for a launch: ``duration_ns`` and any of ``LAUNCH_KEYS``. Categorical keys are the
    fastest. A key that is absent is missing in the result. ``stddev_ns`` uses n - 1.
    """
    if launches.empty:
        return schema.empty(schema.KERNELS)
    keys = [key for key in LAUNCH_KEYS if key in launches.columns]
    codes, first_rows = combine_columns(launches, keys)
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
    # In place: with ten million launches a copy takes 80 MB.
    duration -= np.repeat(mean, count)
    squares = np.add.reduceat(np.square(duration, out=duration), start)
    result["stddev_ns"] = np.sqrt(squares / np.maximum(count - 1, 1))
    result.loc[count < 2, "stddev_ns"] = np.nan
    return schema.frame(schema.KERNELS, result)


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


# --- ranges ----------------------------------------------------------------------------------------------------------


def range_rows(
    ranges: Spans,
    launches: Launches,
    placed: Attribution,
    start_ns: Int64s,
    end_ns: Int64s,
    pids: Callable[[Int64s], Any],
    on_gpu: bool = True,
) -> pd.DataFrame:
    """Return the table `ranges`, ordered by the first instances of the ranges.

    ``start_ns`` and ``end_ns`` are when the launches ran on the GPU. Only kernels and whole graphs count; a graph that
    was traced as one counts as one kernel. ``pids`` turns numbers of processes into process ids, negative where
    unknown. Without ``on_gpu`` the times of the GPU, which was not recorded, are missing.
    """
    paths, number = placed.paths, _Numbers()

    def row_of(process: int, node: int) -> int:
        return number[process, paths.case[node], paths.phase[node]]

    combination, firsts = combine(ranges.process, placed.range_path)
    rows = [row_of(int(ranges.process[i]), int(placed.range_path[i])) for i in firsts]
    opened = np.array(rows, dtype=np.int64)[combination]
    kernels = np.flatnonzero(launches.is_kernel & (placed.path != 0))
    # Not in the order of their starts, in which the kernels of several processes alternate.
    process, path = launches.process[kernels], placed.path[kernels]
    combination, firsts = combine(process, path)
    chains = [[row_of(int(process[i]), node) for node in paths.ancestors(int(path[i]))] for i in firsts]
    levels = _levels(chains)
    # In few bytes, and without arrays that nothing needs any more: with ten million kernels one takes 80 MB.
    combination = combination.astype(np.min_scalar_type(max(len(chains), 1)))
    order = np.argsort(start_ns[kernels], kind="stable")
    kernels, combination = kernels[order], combination[order]
    del order, process, path
    start_ns, end_ns = start_ns[kernels], end_ns[kernels]
    frame = pd.DataFrame(list(number), columns=["process", "case", "range"])
    frame["instances"] = np.bincount(opened, minlength=len(frame))
    frame["wall_ns"] = np.bincount(opened, weights=ranges.end - ranges.start, minlength=len(frame))
    if on_gpu:
        durations = np.bincount(combination, weights=end_ns - start_ns)
        frame["kernel_ns"] = _sum_levels(durations, levels, len(frame))
        frame["kernels"] = _sum_levels(np.bincount(combination), levels, len(frame)).astype(np.int64)
        frame["busy_ns"] = _busy(combination, levels, start_ns, end_ns, len(frame))
        cases = np.flatnonzero((frame["case"] != "") & (frame["range"] == ""))
        span_ns = np.full(len(frame), np.nan)
        for level in levels[np.isin(levels, cases).any(axis=1)]:
            called = launches.start[kernels]
            spans = _spans(len(frame), cases, level[combination], called, start_ns, end_ns, opened, ranges.start)
            span_ns = np.where(np.isnan(span_ns), spans, span_ns)
        frame["span_ns"] = span_ns
    first = np.full(len(frame), _NEVER)
    np.minimum.at(first, opened, ranges.start)
    pid = pd.Series(pd.array(pids(frame["process"].to_numpy(dtype=np.int64)), dtype="Int64"))
    frame["process"] = pid.where(pid >= 0)
    return schema.frame(schema.RANGES, frame.iloc[np.argsort(first, kind="stable")].reset_index(drop=True))


class _Numbers(dict[tuple[int, str, str], int]):
    """Number keys in the order of their first use."""

    def __missing__(self, key: tuple[int, str, str]) -> int:
        self[key] = len(self)
        return self[key]


def _levels(chains: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return the rows around the combinations, depth x combinations; -1 where one has fewer ranges around it."""
    # A case nested in itself is one row, and counts a launch once.
    distinct = [list(dict.fromkeys(chain)) for chain in chains]
    levels = np.full((max(map(len, distinct), default=0), len(distinct)), -1, dtype=np.int32)
    for column, chain in enumerate(distinct):
        levels[: len(chain), column] = chain
    return levels


def _sum_levels(values: Ints, levels: Ints, rows: int) -> npt.NDArray[np.float64]:
    """Add the value of a combination to all rows around it."""
    total = np.zeros(rows)
    for level in levels:
        inside = level >= 0
        total += np.bincount(level[inside], weights=values[inside], minlength=rows)
    return total


def _busy(combination: Ints, levels: Ints, start_ns: Int64s, end_ns: Int64s, rows: int) -> npt.NDArray[np.float64]:
    """Return the union of the intervals of a row's launches; launches are ordered by start."""
    # A row that stands at several depths needs the launches of all of them in one union.
    is_at_one_depth = sum(len(np.unique(level[level >= 0])) for level in levels) == len(np.unique(levels[levels >= 0]))
    busy_ns = np.zeros(rows)
    parts: list[tuple[Ints, Int64s, Int64s]] = []
    for level in levels:
        row, start, end = level[combination], start_ns, end_ns
        if (level < 0).any():
            placed = np.flatnonzero(row >= 0)
            row, start, end = row[placed], start[placed], end[placed]
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

    ``row`` and ``called`` are those of the launches, ``opened`` and ``opened_ns`` those of the ranges. Instances of a
    case never overlap, so a launch belongs to the last one opened before it. NaN: a row without a kernel.
    """
    span_ns = np.full(rows, np.nan)
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
            span_ns[case] = float((last - first)[first != _NEVER].sum())
    return span_ns


# --- communication ---------------------------------------------------------------------------------------------------


def overlap_rows(
    done: Operations, placed: Attribution, pids: Callable[[Ints], Ints], ranges: pd.DataFrame
) -> pd.DataFrame:
    """Return rows of `metrics` for cases and devices with communication.

    A communication kernel (NCCL, RCCL) runs from when its process is ready until the other processes have sent: its
    time is work and waiting. A compute kernel on the same device hides that time. ``communication_busy`` and
    ``compute_busy`` (ns) are the time in which at least one kernel of that sort ran: in one iteration where ``ranges``,
    the table, has the case, else in the whole file. ``communication_overlap`` (%) is the part of
    ``communication_busy`` in which a compute kernel ran too. Several devices also get a row with their mean. A whole
    graph that was traced as one computes. ``pids`` tells devices of one number apart.
    """
    if not done.are_collective.any():
        return schema.empty(schema.METRICS)
    kernel, graph = map(schema.KINDS.index, ("kernel", "graph"))
    rows = np.flatnonzero((done.kind == kernel) | (done.kind == graph))
    rows = rows[np.argsort(done.start[rows], kind="stable")]
    communicates = done.are_collective[done.name[rows]] & (done.kind[rows] == kernel)
    if not communicates.any():
        return schema.empty(schema.METRICS)
    case_of_node, cases = pd.factorize(np.array(placed.paths.case, dtype=object))
    case, process, device = case_of_node[placed.path[rows]], pids(done.process[rows]), done.device[rows]
    place, firsts = combine(case, process, device)

    def busy(chosen: Bools) -> Any:
        return union(place[chosen], done.start[rows[chosen]], done.end[rows[chosen]], len(firsts))

    one, other, either = busy(communicates), busy(~communicates), busy(np.ones(len(rows), dtype=bool))
    columns = {"communicates": one, "computes": other, "both": one + other - either}
    of = {"case": cases[case[firsts]], "device": device[firsts], "process": process[firsts]}
    device_rows = pd.DataFrame({**of, **columns}).query("communicates > 0")
    case_ranges = ranges[(ranges["range"] == "") & (ranges["case"] != "")]
    iterations = case_ranges.groupby("case")["instances"].max().to_dict()
    metrics = (
        row
        for name, devices in device_rows.groupby("case", sort=False)
        for row in _overlap_rows(str(name), devices.sort_values(["device", "process"]), iterations.get(name) or None)
    )
    return schema.frame(schema.METRICS, metrics)


def wait_rows(waits: Spans) -> pd.DataFrame:
    """Return rows of `metrics`: the time (ns) that the host waited in a function of CUDA or HIP, and its calls."""
    codes = waits.name.astype(np.int64)
    calls = np.bincount(codes, minlength=len(waits.names))
    time_ns = np.bincount(codes, weights=waits.end - waits.start, minlength=len(waits.names))
    rows = [
        {"subject": name, "metric": schema.CAPTURE_WAIT, "value": float(ns), "unit": "ns", "n": int(n)}
        for name, n, ns in zip(waits.names, calls, time_ns, strict=True)
        if n
    ]
    return schema.frame(schema.METRICS, rows)


def configuration_rows(names: Any, duration_ns: Int64s, shapes: pd.DataFrame | None) -> pd.DataFrame:
    """Return rows of `metrics`: the median time (ns) of the launches of a kernel with one grid and block.

    ``names`` are those of the launches, and ``shapes`` their ``grid`` and ``block``. Of very many there are no rows.
    """
    if shapes is None:
        return schema.empty(schema.METRICS)
    seen = shapes.assign(kernel=names, ns=duration_ns)
    sums = seen.groupby(["kernel", "grid", "block"], sort=False)["ns"].agg(["median", "size"])
    rows = [
        {
            "subject": f"{kernel}<<<{grid}, {block}>>>",
            "metric": schema.CAPTURE_LAUNCH,
            "value": ns,
            "unit": "ns",
            "n": n,
        }
        for (kernel, grid, block), ns, n in sums.itertuples(name=None)
    ]
    return schema.frame(schema.METRICS, rows if len(rows) <= MOST_CONFIGURED else [])


def _overlap_rows(case: str, devices: pd.DataFrame, n: int | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a case. Where processes give one number to different devices, names hold the process."""
    number = devices["device"].astype(str).where(devices["device"] >= 0, "?")
    of_process = number + " of process " + devices["process"].astype(str)
    names = schema.DEVICE_PREFIX + number.where(~devices["device"].duplicated(keep=False), of_process)
    times = devices[["communicates", "computes", "both"]]
    if len(devices) > 1:
        times, names = pd.concat([times, times.mean().to_frame().T]), pd.concat([names, pd.Series([""])])
    for subject, (communicates, computes, both) in zip(names, times.to_numpy().tolist(), strict=True):
        of = {"case": case, "subject": subject, "n": n}
        yield {**of, "metric": "communication_busy", "value": communicates / (n or 1), "unit": "ns"}
        yield {**of, "metric": "compute_busy", "value": computes / (n or 1), "unit": "ns"}
        yield {**of, "metric": "communication_overlap", "value": both / communicates * 100, "unit": "%"}


# --- single launches, of which another tool profiles one -------------------------------------------------------------


def no_launches() -> pd.DataFrame:
    """Return the table of a file without single launches, or without their shapes."""
    return pd.DataFrame({name: [] for name in COLUMNS})


def shape(sizes: Sequence[Any]) -> str:
    """Return ``32x2x16`` of the sizes in x, y and z, empty where they are not three numbers."""
    try:
        return "x".join(str(int(size)) for size in sizes) if len(sizes) == 3 else ""
    except (TypeError, ValueError):
        return ""


def order_launches(
    ranges: Spans, calls: Launches, placed: Attribution, rows: Ints, seen: pd.DataFrame, start_ns: Int64s
) -> pd.DataFrame:
    """Return the launches ``rows`` in the order of their calls, as ``COLUMNS``.

    ``seen`` has the columns ``kernel``, ``grid``, ``block`` and ``duration_ns`` of those rows. ``start_ns``, when they
    ran, replaces the time of a missing call, and orders the kernels of one call (a graph).
    """
    process, case = calls.process[rows], np.array(placed.paths.case, dtype=object)[placed.path[rows]]
    when = np.where(calls.thread[rows] == NO_THREAD, start_ns, calls.start[rows])
    frame = seen.assign(case=case, process=process, start_ns=when)
    frame["iteration"] = _iterations(ranges, placed, case, process, when)
    order = np.lexsort((start_ns, when))
    return frame[list(COLUMNS)].iloc[order].reset_index(drop=True)


def _iterations(ranges: Spans, placed: Attribution, case: Ints, process: Int64s, when: Int64s) -> Int64s:
    """Return the instances of their cases' ranges that launches lie in: the last one that its process opened."""
    paths = placed.paths
    case_of_path = [name if not phase else "" for name, phase in zip(paths.case, paths.phase, strict=True)]
    case_of_range = np.array(case_of_path, dtype=object)[placed.range_path]
    iterations = np.zeros(len(when), dtype=np.int64)
    for name in set(case_of_path) - {""}:
        instances = np.flatnonzero(case_of_range == name)
        opened = {pid: np.sort(ranges.start[instances[of]]) for pid, of in groups(ranges.process[instances])}
        mine = np.flatnonzero(case == name)
        for pid, of in groups(process[mine]):
            if pid in opened:
                iterations[mine[of]] = np.searchsorted(opened[pid], when[mine[of]], side="right") - 1
    iterations = iterations.clip(min=0)
    outside = np.flatnonzero(case == "")
    iterations[outside] = _steps(ranges, process[outside], when[outside])
    return iterations


def _steps(ranges: Spans, process: Int64s, when: Int64s) -> Int64s:
    """Return the steps of a command in which launches lie, -1 between steps; 0 for a process without steps.

    Only the steps count around which the start-up hook or a mark of the program opened a range: ncu records these.
    """
    steps = np.zeros(len(when), dtype=np.int64)
    for pid, by_sort in windows.find(ranges).items():
        marked_steps = next((sort for sort in by_sort if sort.rule in _MARKED), None)
        mine = np.flatnonzero(process == pid)
        if marked_steps is not None and len(mine) and len(marked_steps.begin):
            at = marked_steps.place(when[mine])
            steps[mine] = np.where(at >= 0, marked_steps.step[at], -1)
    return steps
