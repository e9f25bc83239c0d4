"""Metrics of steps: what a steady step costs by kernel, and what outliers have that steady steps have not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest.groupby import Bools, Ints, combine, groups
from profpipe.ingest.operations import Operations, Timeline
from profpipe.ingest.steps.accounting import Accounts, spread, unify_states, walls_by_rank
from profpipe.measure import statistics
from profpipe.results import schema
from profpipe.results.schema import StepRule, StepState

#: The steps that the launches recur in, where ranges say that there are more or fewer.
COUNT_BY_PATTERN: Final = "step_count_by_pattern"

#: The prefix of the metrics of a recording without steps, and its parts, which add up to its duration.
_RECORDING: Final = "capture_"
_PARTS: Final = ("compute", "communication", "copy", "idle_launch", "idle_blocked", "idle_other")

_CHECKS: Final = frozenset(check.value for check in schema.Check)

#: An interval of fewer steps would say more than they can.
_FEWEST_OF_INTERVAL: Final = 5

_CASE: Final = ["workload", "profiler", "case"]
_PROCESS: Final = ["source", "process"]
_PLACE: Final = [*_PROCESS, "device"]

#: What an outlier can have more of -> the column of `steps`.
_OUTLIER_PARTS: Final = {
    "idle_launch": "idle_launch_ns",
    "idle_blocked": "idle_blocked_ns",
    "idle_other": "idle_other_ns",
    "copies": "copy_ns",
    "communication": "communication_ns",
}

# --- of one device: rows of schema.STEP_FIGURES ----------------------------------------------------------------------


def measure_device(
    operations: Operations, accounts: Accounts, steps: pd.DataFrame, origin: int
) -> list[dict[str, Any]]:
    """Return the figures of one device. ``steps`` are its rows of the table `steps`, with the states of all ranks."""
    line = accounts.line
    duration = line.end - line.start
    names, number = operations.table_names
    name = number[line.name]
    is_steady = (steps["state"] == StepState.STEADY.value).to_numpy()
    steady = np.append(is_steady, False)[accounts.row]
    n = int(is_steady.sum())
    kernels = line.is_kernel
    in_steps = kernels & np.append(steps["state"] != StepState.OTHER.value, False)[accounts.row]
    coverage = 100 * duration[in_steps].sum() / max(int(duration[kernels].sum()), 1)
    figures: list[dict[str, Any]] = [{"metric": "step_coverage", "value": float(coverage), "unit": "%"}]
    if not n:
        return figures
    calls = np.bincount(name[steady], minlength=len(names)) / n
    total = np.bincount(name[steady], weights=duration[steady], minlength=len(names)) / n
    copied = _copied(operations, line, name, steady, len(names)) / n
    for code in np.flatnonzero(calls).tolist():
        of = {"subject": names[code], "n": n}
        figures.append({**of, "metric": "step_kernel_time", "value": float(total[code]), "unit": "ns"})
        figures.append({**of, "metric": "step_launches", "value": float(calls[code]), "unit": "1"})
        if copied[code]:
            figures.append({**of, "metric": "step_copy_bytes", "value": float(copied[code]), "unit": "byte"})
    figures += _transfer(operations, line, steady, n)
    figures += _sum_other_calls(accounts, steps, name, names)
    ended = origin + int((steps["start_ns"] + steps["wall_ns"]).max())
    after = kernels & (accounts.row < 0) & (line.start >= ended)
    if after.any():
        rest = {schema.STEP_AFTER: int(line.end.max()) - ended, schema.STEP_AFTER_KERNELS: int(duration[after].sum())}
        figures += [{"metric": metric, "value": float(ns), "unit": "ns", "n": 1} for metric, ns in rest.items()]
    time = np.where(kernels, duration, 0)
    steady_time = np.bincount(name[steady], weights=time[steady], minlength=len(names)) / n
    figures += _outliers(accounts, steps, name, time, steady_time, calls > 0)
    return figures


#: Kernels of NCCL and RCCL that send to one peer and receive from one.
_POINT_TO_POINT: Final = re.compile("send_?recv", re.IGNORECASE)


def _transfer(operations: Operations, line: Timeline, steady: Bools, n: int) -> Iterator[dict[str, Any]]:
    """Yield what the transfer of a step takes at most, where kernels send from one rank to another.

    In these a rank waits for its peer. The shortest of those with one name and grid hardly waits, and bounds the rest.
    """
    rows = np.flatnonzero(steady & line.communicates)
    is_sent = np.array([_POINT_TO_POINT.search(text) is not None for text in operations.names], dtype=bool)[line.name]
    if not is_sent[rows].any():
        return
    grid = line.name if operations.grid is None else operations.grid[line.rows]
    duration = line.end - line.start
    alike = [rows[same] for _, same in groups(combine(line.name[rows], grid[rows])[0])]
    total = sum(len(same) * duration[same].min() if is_sent[same[0]] else duration[same].sum() for same in alike)
    yield {"metric": schema.STEP_TRANSFER, "value": float(total / n), "unit": "ns", "n": n}


#: Kernels of a call that is no step, those with the most time.
_MOST_KERNELS: Final = 5


def _sum_other_calls(
    accounts: Accounts, steps: pd.DataFrame, name: Ints, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the largest kernels of the calls that are no steps, by kind: ``prefill > kernel``."""
    line = accounts.line
    time = np.where(line.is_kernel, line.end - line.start, 0)
    for kind, of_kind in steps.reset_index(drop=True).groupby("kind"):
        n = len(of_kind)
        if kind and (of_kind["state"] == StepState.OTHER.value).all():
            inside = np.isin(accounts.row, of_kind.index)
            total = np.bincount(name[inside], weights=time[inside], minlength=len(names)) / n
            for code in np.argsort(-total, kind="stable")[:_MOST_KERNELS].tolist():
                if total[code]:
                    of = {"subject": f"{kind}{schema.PATH_SEPARATOR}{names[code]}", "value": float(total[code]), "n": n}
                    yield {**of, "metric": schema.CALL_KERNEL_TIME, "unit": "ns"}


def measure_recording(whole: Accounts | None) -> list[dict[str, Any]]:
    """Return the parts of a whole recording without a step: ``capture_compute`` and the others, in ns."""
    if whole is None:
        return []
    row = whole.frame.iloc[0]
    return [
        {"metric": f"{_RECORDING}{part}", "value": float(row[f"{part}_ns"]), "unit": "ns", "n": 1} for part in _PARTS
    ]


def _copied(operations: Operations, line: Timeline, name: Any, steady: Bools, names: int) -> Any:
    """Return the bytes that the steady steps copied or set, by name."""
    if not (copies := steady & line.copies).any() or operations.sizes is None:
        return np.zeros(names)
    return np.bincount(name[copies], weights=operations.sizes[line.rows[copies]], minlength=names)


def _outliers(
    accounts: Accounts, steps: pd.DataFrame, name: Any, time: Any, steady_time: Any, in_steady: Bools
) -> Iterator[dict[str, Any]]:
    """Yield what outliers have over the median steady step; of kernels, over the mean one."""
    medians = steps.loc[steps["state"] == StepState.STEADY.value, list(_OUTLIER_PARTS.values())].median()
    outliers = np.flatnonzero(steps["state"] == StepState.OUTLIER.value)
    order = np.searchsorted(outliers, accounts.row)
    is_outlier = np.isin(accounts.row, outliers)
    names = len(steady_time)
    code = order[is_outlier] * names + name[is_outlier]
    by_name = np.bincount(code, weights=time[is_outlier], minlength=len(outliers) * names).reshape(-1, names)
    for at, row in enumerate(outliers.tolist()):
        step = int(steps["step"].iloc[row])
        more = {what: steps[column].iloc[row] - medians[column] for what, column in _OUTLIER_PARTS.items()}
        more["kernels"] = (by_name[at] - steady_time)[in_steady].sum()
        more["other_kernels"] = by_name[at][~in_steady].sum()
        for what, value in more.items():
            if value:
                yield {"step": step, "metric": f"step_outlier_{what}", "value": float(value), "unit": "ns", "n": 1}


# --- of a job --------------------------------------------------------------------------------------------------------


def sum_steps(tables: schema.Tables) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return, of all files of a job together: `steps` with ranks, their metrics, and `timeline` with ranks.

    Each process is a rank, and its devices share its steps. Steps have the same state on all ranks. The step time of a
    case is that of the mean over its ranks by step; its other figures are means over its devices.
    """
    if tables.steps.empty and tables.step_figures.empty:
        # Cases of the harness have no steps.
        ranked = _number_ranks(tables.timeline) if len(tables.timeline) else tables.timeline
        return tables.steps, schema.empty(schema.METRICS), ranked
    steps = _number_ranks(_drop_model_calls(tables.steps))
    by_case = [(_named(key), group) for key, group in steps.groupby(_CASE, sort=False)]
    if by_case:
        steps = steps.assign(state=pd.concat([unify_states(group) for _, group in by_case]))
    figures = tables.step_figures[~tables.step_figures["metric"].isin(_CHECKS)]
    rows = [*_checks(tables.step_figures), *_recordings(figures, steps)]
    rows += [row for of, group in by_case for row in _step_times(of, steps.loc[group.index])]
    places = steps[[*_CASE, *_PLACE, "rank"]].drop_duplicates()
    placed = figures.merge(places.assign(rank=_subjects(places, _CASE)), on=[*_CASE, *_PLACE])
    devices = places.groupby(_CASE, sort=False).size()
    for key, group in placed.groupby(_CASE, sort=False):
        rows += _means(_named(key), group, int(devices[key]))
    run = {"run": (tables.step_figures if tables.steps.empty else tables.steps)["run"].iloc[0]}
    step_metrics = schema.frame(schema.METRICS, [{**row, **run} for row in rows])
    return steps, step_metrics, _ranked_timeline(tables.timeline, steps)


def _drop_model_calls(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps without calls of a model in processes beside one that trains: actors, or a data loader."""
    is_call = steps["rule"] == StepRule.FORWARD.value
    trains = steps["rule"].isin([StepRule.MARKER.value, StepRule.OPTIMIZER.value])
    if not (is_call.any() and trains.any()):
        return steps
    return steps[~(is_call & trains.groupby([steps[name] for name in _CASE]).transform("any"))]


def _recordings(figures: pd.DataFrame, steps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the parts of the recordings of cases without any step, by rank and device."""
    figures = figures[figures["metric"].str.startswith(_RECORDING)]
    with_steps = set(steps[_CASE].itertuples(index=False, name=None))
    for key, group in figures.groupby(_CASE, sort=False):
        if key not in with_steps:
            places = _sort_places(group[_PLACE].drop_duplicates())
            places = places.assign(rank=_combinations(places, _PROCESS)[0])
            ranked = group.drop(columns="subject").merge(places.assign(subject=_subjects(places)), on=_PLACE)
            yield from map(_select_metric, ranked.to_dict("records"))


def _subjects(places: pd.DataFrame, of: Sequence[str] = ()) -> pd.Series[Any]:
    """Return ``rank 1`` for a place, ``rank 1 device 0`` where the rank ``of`` a case has several devices."""
    several = places.duplicated([*of, "rank"], keep=False) & places["device"].notna()
    names = schema.RANK_PREFIX + places["rank"].astype(str)
    return names.mask(several, names + f" {schema.DEVICE_PREFIX}" + places["device"].astype(str))


def _select_metric(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the row of a metric from one of ``schema.STEP_FIGURES``."""
    return {name: row[name] for name in (*_CASE, "subject", "metric", "value", "unit", "n")}


def _checks(figures: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield what recordings contradict themselves in; the subject is a name of a kernel, or the process."""
    for row in figures[figures["metric"].isin(_CHECKS)].to_dict("records"):
        process = "" if pd.isna(row["process"]) else f"process {row['process']}"
        yield {**_select_metric(row), "subject": row["subject"] or process}


def _named(key: Any) -> dict[str, str]:
    return dict(zip(_CASE, key, strict=True))


def _ranked_timeline(timeline: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the timeline with ranks. Where a case has steps, devices without steps are left out."""
    with_steps = set(steps[_CASE].drop_duplicates().itertuples(index=False, name=None))
    code, firsts = _combinations(timeline, _CASE)
    cases = timeline[_CASE].iloc[firsts].itertuples(index=False, name=None)
    has_steps = np.array([case in with_steps for case in cases], dtype=bool)
    kept = timeline["step"].notna().to_numpy() | ~has_steps[code]
    if not kept.all():
        timeline = timeline[kept]
    return _number_ranks(timeline)


def _combinations(frame: pd.DataFrame, names: list[str]) -> tuple[Ints, Ints]:
    """Return (numbers of the rows' values in these columns, their first rows), numbered in order of appearance."""
    return combine(*(pd.factorize(frame[name], use_na_sentinel=False)[0] for name in names))


#: The number of a task of srun in the name of its file: ``capture.node1.task12.sqlite``.
_TASK: Final = re.compile(r"\.task(\d+)\.\w+$")


def _sort_places(places: pd.DataFrame) -> pd.DataFrame:
    """Sort places by the task of srun that their file is of, then by device and process."""
    tasks = [int(task[1]) if (task := _TASK.search(str(source))) else 0 for source in places["source"]]
    ordered = places.assign(_task=tasks).sort_values(["_task", "device", "process", "source"], kind="stable")
    return ordered.drop(columns="_task")


def _number_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Number the processes of a case: by the ranks that the files state, else by device and process."""
    # A merge over the texts of ten thousand rows takes ten times as long as a number for a row.
    code, firsts = _combinations(rows, [*_CASE, *_PLACE, "rank"])
    places = rows[[*_CASE, *_PLACE, "rank"]].iloc[firsts].reset_index(drop=True)
    places = places.assign(number=_combinations(places, [*_CASE, *_PROCESS])[0])
    if (places.groupby("number")["rank"].nunique(dropna=False) > 1).any():
        raise ValueError("a process of a case has two ranks")
    processes = _sort_places(places).drop_duplicates("number").set_index("number")
    is_stated = (
        processes.groupby(_CASE)["rank"].transform(lambda ranks: ranks.notna().all() and ranks.is_unique).astype(bool)
    )
    rank = processes.groupby(_CASE).cumcount().astype("Int64").where(~is_stated, processes["rank"])
    return rows.reset_index(drop=True).assign(rank=rank[places["number"]].array[code])


def _step_times(of: Mapping[str, str], steps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the step time of a case, and of its ranks where there are several."""
    walls = walls_by_rank(steps)
    walls = walls[walls.index.isin(steps.loc[steps["state"] == StepState.STEADY.value, "step"])]
    if walls.empty:
        return
    of = {**of, "unit": "ns"}
    if len(walls.columns) > 1:
        for rank in walls:
            time, _ = typical(walls[rank])
            yield {**of, "metric": "step_time", "subject": f"{schema.RANK_PREFIX}{rank}", **time}
    time, spread = typical(walls.mean(axis=1))
    yield {**of, "metric": "step_time", "subject": "", **time}
    yield {**of, "metric": "step_spread", "unit": "%", "subject": "", "value": spread, "n": time["n"]}
    if of["profiler"] == "plain":
        # What a call is to a workload of the harness, a step is to a program: winners and ties follow from it.
        yield {**of, "metric": "time", "subject": "", **time}


def typical(wall_ns: Iterable[float]) -> tuple[dict[str, Any], float]:
    """Return the median of steps with its interval, and their spread in percent.

    Of uneven steps it is the mean, which is what the program takes a step: of steps that take 9 and 84 ms in turn, the
    median is one or the other. The spread is the scaled median absolute deviation, or the distance of the mean from the
    median where that is larger: with more short steps than long ones the deviation is that of the short ones.
    """
    ordered = sorted(map(float, wall_ns))
    median, deviation = spread(np.array(ordered))
    spread_pct = 100 * max(deviation, abs(float(np.mean(ordered)) - median)) / median if median else 0.0
    is_uneven = spread_pct > schema.UNEVEN_STEPS
    interval = statistics.mean_interval if is_uneven else statistics.median_interval
    low, high = (interval(ordered) if len(ordered) >= _FEWEST_OF_INTERVAL else None) or (None, None)
    value = float(np.mean(ordered)) if is_uneven else median
    return {"n": len(ordered), "value": value, "ci_low": low, "ci_high": high}, spread_pct


def _means(of: Mapping[str, str], figures: pd.DataFrame, devices: int) -> Iterator[dict[str, Any]]:
    """Yield the mean of a figure over the devices, and the figures of single steps with their rank.

    A kernel that a device never runs counts as none there. Of several devices the causes of idle time are yielded for
    each of them too: ``rank 1 > DataLoader > train.py:12``.
    """
    of_steps = figures[figures["step"].notna()]
    for row in of_steps.to_dict("records"):
        yield {**_select_metric(row), "subject": f"{row['rank']} step {row['step']}"}
    of_ranks = figures[figures["step"].isna()]
    if devices > 1:
        for row in of_ranks[of_ranks["metric"] == schema.WAIT_IDLE].to_dict("records"):
            yield {**_select_metric(row), "subject": f"{row['rank']}{schema.PATH_SEPARATOR}{row['subject']}"}
    keys = ["metric", "subject", "unit"]
    code, firsts = combine(*(of_ranks[key].to_numpy(dtype=object) for key in keys))
    # A recording has hundreds of kernels: sums by pandas for all of them would take longer than the rest.
    values = of_ranks["value"].to_numpy(dtype=np.float64)
    totals = [values[rows].sum() for _, rows in groups(code)]
    counts = np.bincount(code)
    least = of_ranks["n"].groupby(code).min().tolist()
    for (metric, subject, unit), total, count, n in zip(
        of_ranks[keys].iloc[firsts].itertuples(index=False), totals, counts.tolist(), least, strict=True
    ):
        divisor = count if metric == COUNT_BY_PATTERN else devices
        yield {**of, "metric": metric, "subject": subject, "unit": unit, "value": total / divisor, "n": n}
