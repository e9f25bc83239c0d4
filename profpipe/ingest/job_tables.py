"""The tables of a job from its outcome and its files, and their place among the tables of a run."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.ingest.reader import InputFile
from profpipe.job import JobOutcome
from profpipe.measure import event_lines
from profpipe.measure.statistics import interval_of_processes, worse_of
from profpipe.results import schema
from profpipe.results.schema import CASES, METRICS, PROCESS_PREFIX, PROCESS_WALL, Tables


def sources_of_job(outcome: JobOutcome, run_folder: Path) -> list[InputFile]:
    """Return the files of a job, named relative to the run's folder."""
    job = outcome.job
    whole = job.cases[0].id if job.script is None else ""
    again, key = outcome.attempted_again, (run_folder.name, job.workload, job.profiler)
    # In a span of a server, identical layers of a model are alike as steps are.
    is_span = job.settings.capture is not None and not job.settings.capture.is_chosen
    step_range = None if is_span else job.settings.steps.range or ""
    return [
        InputFile(
            path, str(path.relative_to(run_folder)), *key, whole or case, again.get(path, frozenset()), step_range
        )
        for path, case in outcome.files.items()
        if path.exists() and not _is_false_start(path, outcome)
    ]


def _is_false_start(path: Path, outcome: JobOutcome) -> bool:
    """Return True for the record of a process that died before its first case; the outcome has the reason."""
    if outcome.status == "ok" or path not in outcome.job.records or outcome.job.script is None:
        return False
    return not any(event["event"] == "case_started" for event in event_lines.read(path)[0])


def case_rows(outcome: JobOutcome, run: str, written: pd.DataFrame) -> Tables:
    """Return rows for the cases whose end the workload's process could not write.

    ``written`` are the `cases` rows of the log of the job; a crash or timeout that the runner saw replaces
    them. A case that was never reached has the outcome of the job.
    """
    job, written_cases = outcome.job, set(written["case"])
    ended = {case: (end.status.value, end.reason) for case, end in outcome.case_outcomes.items()}
    # With the defaults of PARAMS, where the process got that far.
    begun = {
        event["case"]: event["params"]
        for event in event_lines.read(job.log)[0]
        if event["event"] == "case_started" and isinstance(event.get("params"), dict)
    }
    rows = []
    for case in job.cases:
        if case.id in written_cases and case.id not in ended:
            continue
        status, reason = ended.get(case.id, (outcome.status.value, outcome.reason))
        if status == "ok" and job.script is not None:
            status, reason = "failed", "the workload's process ended well without trying this case"
        seconds = outcome.last_s if job.script is None and status != "skipped" else None
        row = {"case": case.id, "status": status, "reason": reason, "seconds": seconds, "flags": "[]"}
        rows.append({**row, "params": json.dumps(begun.get(case.id) or dict(case.params))})
    return Tables(cases=schema.frame(CASES, rows)).set_columns(run=run, workload=job.workload, profiler=job.profiler)


def add_process_wall(fresh: Tables, outcome: JobOutcome, run: str) -> Tables:
    """Add the wall time of a command's process under plain to the numbers that its steps have.

    With it go the CPU time of all its processes, and the peak of the host memory of one. A process that ran until the
    end of its span has none of these: the user chose that time.
    """
    job = outcome.job
    if job.script is not None or outcome.status != "ok" or job.profiler != "plain" or job.settings.capture:
        return fresh
    key = {"run": run, "workload": job.workload, "case": job.cases[0].id, "profiler": job.profiler, "n": 1}
    values = {schema.PROCESS_WALL: (outcome.last_s * 1e9, "ns")}
    if outcome.used:
        values |= {"process_cpu": (outcome.used[0] * 1e9, "ns"), "peak_host": (outcome.used[1], "byte")}
    rows = [{**key, "metric": metric, "value": value, "unit": unit} for metric, (value, unit) in values.items()]
    return replace(fresh, metrics=_append(fresh.metrics, schema.frame(METRICS, rows)))


def expected_families(events: Path) -> dict[str, str]:
    """Return by case the kernel family that it should run, from the workload's ``expects`` in the log of the job."""
    expects = (event for event in event_lines.read(events)[0] if event["event"] == "expects")
    return {event["case"]: event["family"] for event in expects if event.get("family")}


def read_devices(records: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the kinds of devices that a job's processes describe in ``records``.

    ``count`` is the number of a kind, where all processes state their device's PCI address. A process without torch
    describes no device.
    """
    started = (event for path in records for event in event_lines.read(path)[0] if event["event"] == "started")
    machines = [dict(event["machine"]) for event in started if event.get("torch") and event.get("machine")]
    addresses = [machine.pop("pci", None) for machine in machines]
    kinds = [machine for number, machine in enumerate(machines) if machine not in machines[:number]]
    of_kind = [{address for one, address in zip(machines, addresses, strict=True) if one == kind} for kind in kinds]
    return [
        kind if None in pci_addresses else {**kind, "count": len(pci_addresses)}
        for kind, pci_addresses in zip(kinds, of_kind, strict=True)
    ]


def read_rank_nodes(records: Iterable[Path]) -> dict[int, str]:
    """Return the nodes by rank, from the first lines of the records of the start-up hook."""
    node_of_rank: dict[int, str] = {}
    for path in records:
        with path.open(encoding="utf-8", errors="replace") as stream:
            line = stream.readline()
        try:
            about = json.loads(line)
            rank, node = about.get("rank"), about.get("node")
        except (ValueError, AttributeError):  # a killed process has not written its first line
            continue
        if type(rank) is int and isinstance(node, str) and node:
            node_of_rank[rank] = node
    return dict(sorted(node_of_rank.items()))


def replace_cases(stored: Tables, fresh: Tables) -> Tables:
    """Replace the rows of ``stored`` by those of ``fresh`` with the same workload, profiler and case.

    A table without a change stays the same object.
    """

    def change(table: schema.Table, old: pd.DataFrame) -> pd.DataFrame:
        new = getattr(fresh, table.name)
        key = ["workload", "profiler", "case"] + (["source"] if "source" in table.names else [])
        return _append(_drop(old, _has_key_of(old, new, key)), new)

    return _change(stored, change)


def add_kernels(stored: Tables, fresh: Tables) -> Tables:
    """Add the kernels of ``fresh`` and their metrics to ``stored``; its other rows of the same cases are left out."""
    numbers = fresh.metrics[fresh.metrics["subject"] != ""]
    key = ["workload", "profiler", "case", "subject"]
    kernels = _drop(stored.kernels, stored.kernels["source"].isin(fresh.kernels["source"].unique()))
    metrics = _append(_drop(stored.metrics, _has_key_of(stored.metrics, numbers, key)), numbers)
    return replace(stored, kernels=_append(kernels, fresh.kernels), metrics=metrics)


def drop_folder(stored: Tables, folder: str, of: tuple[str, str, Collection[str]] | None = None) -> Tables:
    """Drop the rows of the files in ``folder``, a path below the run's folder.

    ``of`` are the workload, the profiler and the cases whose rows without a file go too: those of a job.
    """

    def change(table: schema.Table, old: pd.DataFrame) -> pd.DataFrame:
        if "source" in table.names:
            return _drop(old, old["source"].str.startswith(f"{folder}/"))
        if of is None:
            return old
        workload, profiler, cases = of
        return _drop(old, (old["workload"] == workload) & (old["profiler"] == profiler) & old["case"].isin(cases))

    return _change(stored, change)


def _change(stored: Tables, change: Callable[[schema.Table, pd.DataFrame], pd.DataFrame]) -> Tables:
    """Return ``stored`` with a change to all tables that have rows, or gets some."""
    changed: dict[str, Any] = {table.name: change(table, getattr(stored, table.name)) for table in schema.ALL}
    return Tables(**changed, origin=stored.origin)


def _has_key_of(old: pd.DataFrame, new: pd.DataFrame, key: list[str]) -> Any:
    """Return which rows of ``old`` have a key that ``new`` has too."""
    if not len(old) or not len(new):
        return np.zeros(len(old), dtype=bool)
    return pd.MultiIndex.from_frame(old[key]).isin(pd.MultiIndex.from_frame(new[key]))


def _drop(old: pd.DataFrame, dropped: Any) -> pd.DataFrame:
    return old[~dropped] if dropped.any() else old


def _append(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if not len(new):
        return old
    return pd.concat([old, new], ignore_index=True) if len(old) else new.reset_index(drop=True)


def add_item_rates(fresh: Tables, items: Mapping[str, float]) -> Tables:
    """Return ``fresh`` with the metric ``items_per_second`` for cases in ``items`` with a time of calls or steps.

    The interval is that of the time: the shortest time gives the highest rate.
    """
    rows = fresh.metrics
    is_time = rows["metric"].isin(["step_time", "time"]) & (rows["profiler"] == "plain") & (rows["subject"] == "")
    times = rows[is_time & rows["case"].isin(items.keys()) & (rows["value"] > 0)]
    times = times.sort_values("metric", kind="stable").drop_duplicates("case", keep="last")
    if not len(times):
        return fresh
    per_s = times["case"].map(items).astype(float) * 1e9
    rates = times.assign(
        metric="items_per_second",
        unit="1/s",
        value=per_s / times["value"],
        ci_low=per_s / times["ci_high"],
        ci_high=per_s / times["ci_low"],
    )
    return replace(fresh, metrics=pd.concat([rows, rates[list(METRICS.names)]], ignore_index=True))


def add_up_costs(fresh: Tables) -> Tables:
    """Return ``fresh`` with the GPUs of a case, their energy and FLOPs in place of those of its processes.

    The energy of a step needs that of all processes with a GPU. Tokens are those of one process: where
    several have GPUs, which of them works on a token is unknown.
    """
    metrics = fresh.metrics
    of_energy = metrics["metric"].isin([schema.GPUS, schema.ENERGY_WINDOW, *schema.ENERGIES])
    costs = metrics[of_energy | metrics["metric"].str.startswith(schema.FLOPS)]
    if not len(costs):
        return fresh
    summed_rows = []
    for _, rows in costs.groupby(_KEY, sort=False):
        processes = int((rows["metric"] == schema.GPUS).sum())
        for metric, metric_rows in rows.groupby("metric", sort=False):
            value = metric_rows["value"].min() if metric == schema.ENERGY_WINDOW else metric_rows["value"].sum()
            is_whole = len(metric_rows) == processes and (metric != schema.ENERGIES[0] or processes == 1)
            if is_whole or str(metric).startswith((schema.GPUS, schema.FLOPS)):
                summed_rows.append({**metric_rows.iloc[0].to_dict(), "subject": "", "value": float(value)})
    return replace(fresh, metrics=_append(metrics.drop(costs.index), schema.frame(METRICS, summed_rows)))


#: Outliers are steps of one process: the same number names another step in the next process.
_OF_ONE_PROCESS = "step_outlier"

_KEY: Final = ["workload", "profiler", "case"]


def merge_processes(stored: Tables, fresh: Tables, number: int, count: int) -> Tables:
    """Return ``fresh``, the tables of one process, with the numbers of its cases over all processes so far.

    ``stored`` holds the other processes. Process ``number`` of ``count`` has numbers under the subject
    ``process 2``; a case has the medians of its processes, and the worst of their errors and memory peaks.
    """
    prefix = f"{PROCESS_PREFIX}{number}"
    fresh_rows = fresh.metrics.assign(subject=(prefix + " " + fresh.metrics["subject"]).str.rstrip())
    keys = pd.MultiIndex.from_frame(pd.concat([fresh.cases[_KEY], fresh.metrics[_KEY]]))
    stored_rows = stored.metrics[stored.metrics["subject"].str.startswith(PROCESS_PREFIX)]
    others = stored_rows[pd.MultiIndex.from_frame(stored_rows[_KEY]).isin(keys)]
    others = others[others["subject"].str.split().str[1] != str(number)]
    both = pd.concat([others, fresh_rows], ignore_index=True) if len(others) else fresh_rows
    merged = schema.frame(METRICS, [_merge_rows(rows) for rows in _group(both)])
    walls = both[(both["metric"] == PROCESS_WALL) & (both["value"].notna())].groupby("case")["value"].sum() / 1e9
    cases = fresh.cases.assign(
        reason=[f"process {number} of {count}: {reason}" if reason else "" for reason in fresh.cases["reason"]],
        seconds=fresh.cases["case"].map(walls).astype("Float64").fillna(fresh.cases["seconds"]),
        flags=_merge_flags(stored.cases, fresh.cases),
    )
    return replace(fresh, cases=cases, metrics=pd.concat([merged, both], ignore_index=True))


def _merge_flags(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return the flags of all processes of a case so far, by case."""
    flags: dict[tuple[str, ...], list[str]] = {}
    for frame in (stored, fresh):
        for *key, text in frame[[*_KEY, "flags"]].itertuples(index=False):
            flags.setdefault(tuple(key), []).extend(json.loads(text or "[]"))
    return [json.dumps(list(dict.fromkeys(flags[key]))) for key in fresh[_KEY].itertuples(index=False, name=None)]


def _group(rows: pd.DataFrame) -> Iterable[list[dict[str, Any]]]:
    """Yield the rows of a case, metric and subject, one for a process."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    records: list[dict[str, Any]] = rows.to_dict("records")  # type: ignore[assignment]
    for row in records:
        subject = " ".join(row["subject"].split(" ")[2:])
        if not row["metric"].startswith(_OF_ONE_PROCESS):
            groups.setdefault((row["case"], row["metric"], subject), []).append({**row, "subject": subject})
    return groups.values()


def _merge_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median over the processes, and the interval of that median. ``n`` counts the samples of all."""
    values = [float(row["value"]) for row in rows if pd.notna(row["value"])]
    counts = [int(row["n"]) for row in rows if pd.notna(row["n"])]
    merged = {**rows[0], "n": sum(counts) if counts else None}
    if values and (worse := worse_of(rows[0]["metric"])):
        return {**merged, "value": functools.reduce(worse, values), "ci_low": None, "ci_high": None}
    low, high = interval_of_processes(values) or _envelope(rows)
    return {**merged, "value": statistics.median(values) if values else None, "ci_low": low, "ci_high": high}


def _envelope(rows: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Return the interval that holds those of all processes; nothing where a process has none."""
    ends = [(row["ci_low"], row["ci_high"]) for row in rows]
    if any(pd.isna(end) for pair in ends for end in pair):
        return None, None
    return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)
