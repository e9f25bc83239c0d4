"""Add the items per second of each case: what one step processes, which the pipeline file states, over its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from profpipe.results.schema import METRICS, Tables


def add(fresh: Tables, items: Mapping[str, float]) -> Tables:
    """Return ``fresh`` with the metric ``items_per_second`` for each case in ``items`` with a time of calls or steps.

    The interval is that of the time: the shortest time gives the highest rate.
    """
    own = fresh.metrics
    is_time = own["metric"].isin(["step_time", "time"]) & (own["profiler"] == "plain") & (own["subject"] == "")
    times = own[is_time & own["case"].isin(items.keys()) & (own["value"] > 0)]
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
    return replace(fresh, metrics=pd.concat([own, rates[list(METRICS.names)]], ignore_index=True))
