"""The tables' schema, and the statistics of launches against a slow reference."""

import math
import statistics
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from profpipe.ingest import launch_tables
from profpipe.results import schema

LAUNCHES = st.lists(
    st.fixed_dictionaries(
        {
            "case": st.sampled_from(["", "a", "b"]),
            "device": st.sampled_from([None, 0, 1]),
            "kernel": st.sampled_from(["k", "l"]),
            "duration_ns": st.one_of(st.integers(0, 50), st.integers(0, 2**55), st.just(0.5)),
        }
    ),
    min_size=1,
    max_size=40,
)


def slow(launches):
    """calls, total, mean, median, minimum, maximum, standard deviation by (case, device, kernel)."""
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for launch in launches:
        groups[launch["case"], launch["device"], launch["kernel"]].append(float(launch["duration_ns"]))
    return {
        key: [
            len(ns), math.fsum(ns), statistics.fmean(ns), statistics.median(ns), min(ns), max(ns),
            statistics.stdev(ns) if len(ns) > 1 else math.nan,
        ]
        for key, ns in groups.items()
    }  # fmt: skip


@settings(max_examples=60)
@given(launches=LAUNCHES, categorical=st.booleans())
def test_statistics_equal_those_of_a_loop_over_the_launches(launches, categorical):
    frame = pd.DataFrame(launches)
    frame["device"] = pd.array(frame["device"].tolist(), dtype="Int64")
    if categorical:
        frame = frame.astype({"case": "category", "device": "category", "kernel": "category"})
    found = launch_tables.kernel_rows(frame)
    expected = slow(launches)
    assert list(found.columns) == schema.KERNELS.names
    assert len(found) == len(expected)
    for row in found.to_dict("records"):
        device = None if pd.isna(row["device"]) else int(row["device"])
        columns = ("calls", "total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "stddev_ns")
        numbers = [math.nan if pd.isna(row[column]) else float(row[column]) for column in columns]
        reference = expected[row["case"], device, row["kernel"]]
        assert numbers == pytest.approx(reference, rel=1e-9, abs=1e-6, nan_ok=True)


def test_combinations_of_keys_beyond_64_bits_stay_apart():
    many = [f"v{i}" for i in range(3000)]
    launches = pd.DataFrame(
        {
            key: pd.Categorical(many[:4], categories=many)
            for key in launch_tables.LAUNCH_KEYS
            if key not in ("process", "device", "stream")
        }
    )
    for key in ("process", "device", "stream"):
        launches[key] = pd.Categorical(range(4), categories=range(100_000))
    launches["duration_ns"] = [1, 2, 3, 4]
    assert launch_tables.kernel_rows(launches)["total_ns"].tolist() == [1, 2, 3, 4]


def test_rows_come_in_the_order_in_which_the_launches_did():
    launches = pd.DataFrame({"kernel": ["late", "early", "late"], "duration_ns": [3, 1, 2]})
    assert launch_tables.kernel_rows(launches)["kernel"].tolist() == ["late", "early"]


def test_no_launches_are_an_empty_table():
    assert launch_tables.kernel_rows(pd.DataFrame({"kernel": [], "duration_ns": np.array([], dtype=float)})).empty
