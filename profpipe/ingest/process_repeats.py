"""Merge the numbers of the processes that repeat a command into those of its case.

Each process is one sample: what a process measures many times, such as its steps, shares the memory layout and the
clocks of that process. So the interval of a case comes from the values of its processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from profpipe.measure.statistics import interval_of_processes
from profpipe.results import schema
from profpipe.results.schema import METRICS, PROCESS_PREFIX, PROCESS_WALL, Tables

#: Outliers are steps of one process: the same number names another step in the next process.
_OF_ONE_PROCESS = "step_outlier"


def merge(stored: Tables, fresh: Tables, number: int, count: int) -> Tables:
    """Return ``fresh``, the tables of one process, with the numbers of its case over all processes so far.

    ``stored`` holds the other processes. Process ``number`` of ``count`` has its own numbers under the subject
    ``process 2``; the case has their medians.
    """
    (workload, profiler, case), *_ = zip(*(fresh.cases[key] for key in ("workload", "profiler", "case")), strict=True)
    own_prefix = f"{PROCESS_PREFIX}{number}"
    own = fresh.metrics.assign(subject=(own_prefix + " " + fresh.metrics["subject"]).str.rstrip())
    known = stored.metrics
    same = (known["workload"] == workload) & (known["profiler"] == profiler) & (known["case"] == case)
    others = known[same & known["subject"].str.startswith(PROCESS_PREFIX)]
    others = others[others["subject"].str.split().str[1] != str(number)]
    every = pd.concat([others, own], ignore_index=True) if len(others) else own
    merged = schema.frame(METRICS, [_merge_rows(rows) for rows in _group(every)])
    walls = every[(every["metric"] == PROCESS_WALL) & (every["value"].notna())]
    cases = fresh.cases.assign(
        reason=[f"process {number} of {count}: {reason}" if reason else "" for reason in fresh.cases["reason"]],
        seconds=float(walls["value"].sum()) / 1e9 if len(walls) else fresh.cases["seconds"],
    )
    return replace(fresh, cases=cases, metrics=pd.concat([merged, every], ignore_index=True))


def _group(every: pd.DataFrame) -> Iterable[list[dict[str, Any]]]:
    """Yield the rows of each metric and subject, one of each process."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    records: list[dict[str, Any]] = every.to_dict("records")  # type: ignore[assignment]
    for row in records:
        subject = " ".join(row["subject"].split(" ")[2:])
        if not row["metric"].startswith(_OF_ONE_PROCESS):
            groups.setdefault((row["metric"], subject), []).append({**row, "subject": subject})
    return groups.values()


def _merge_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median over the processes, and the interval of that median. ``n`` counts the samples of all."""
    values = [float(row["value"]) for row in rows if pd.notna(row["value"])]
    low, high = interval_of_processes(values) or _envelope(rows)
    counts = [int(row["n"]) for row in rows if pd.notna(row["n"])]
    value = statistics.median(values) if values else None
    return {**rows[0], "value": value, "n": sum(counts) if counts else None, "ci_low": low, "ci_high": high}


def _envelope(rows: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Return the interval that holds those of all processes; nothing where a process has none."""
    ends = [(row["ci_low"], row["ci_high"]) for row in rows]
    if any(pd.isna(end) for pair in ends for end in pair):
        return None, None
    return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)
