"""Merge the numbers of the processes that repeat a case into those of the case.

Each process is one sample: what a process measures many times, such as its calls or steps, shares the memory layout and
the clocks of that process. So the interval of a case comes from the values of its processes.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from profpipe.measure.statistics import interval_of_processes, worse_of
from profpipe.results import schema
from profpipe.results.schema import METRICS, PROCESS_PREFIX, PROCESS_WALL, Tables

#: Outliers are steps of one process: the same number names another step in the next process.
_OF_ONE_PROCESS = "step_outlier"

_KEY: Final = ["workload", "profiler", "case"]


def merge(stored: Tables, fresh: Tables, number: int, count: int) -> Tables:
    """Return ``fresh``, the tables of one process, with the numbers of its cases over all processes so far.

    ``stored`` holds the other processes. Process ``number`` of ``count`` has its own numbers under the subject
    ``process 2``; each case has the medians of its processes, and the worst of their errors and memory peaks.
    """
    own_prefix = f"{PROCESS_PREFIX}{number}"
    own = fresh.metrics.assign(subject=(own_prefix + " " + fresh.metrics["subject"]).str.rstrip())
    keys = pd.MultiIndex.from_frame(pd.concat([fresh.cases[_KEY], fresh.metrics[_KEY]]))
    known = stored.metrics[stored.metrics["subject"].str.startswith(PROCESS_PREFIX)]
    others = known[pd.MultiIndex.from_frame(known[_KEY]).isin(keys)]
    others = others[others["subject"].str.split().str[1] != str(number)]
    every = pd.concat([others, own], ignore_index=True) if len(others) else own
    merged = schema.frame(METRICS, [_merge_rows(rows) for rows in _group(every)])
    walls = every[(every["metric"] == PROCESS_WALL) & (every["value"].notna())].groupby("case")["value"].sum() / 1e9
    cases = fresh.cases.assign(
        reason=[f"process {number} of {count}: {reason}" if reason else "" for reason in fresh.cases["reason"]],
        seconds=fresh.cases["case"].map(walls).astype("Float64").fillna(fresh.cases["seconds"]),
        flags=_merge_flags(stored.cases, fresh.cases),
    )
    return replace(fresh, cases=cases, metrics=pd.concat([merged, every], ignore_index=True))


def _merge_flags(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return for each case the flags of all its processes so far."""
    found: dict[tuple[str, ...], list[str]] = {}
    for frame in (stored, fresh):
        for *key, text in frame[[*_KEY, "flags"]].itertuples(index=False):
            found.setdefault(tuple(key), []).extend(json.loads(text or "[]"))
    return [json.dumps(list(dict.fromkeys(found[key]))) for key in fresh[_KEY].itertuples(index=False, name=None)]


def _group(every: pd.DataFrame) -> Iterable[list[dict[str, Any]]]:
    """Yield the rows of each case, metric and subject, one of each process."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    records: list[dict[str, Any]] = every.to_dict("records")  # type: ignore[assignment]
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
