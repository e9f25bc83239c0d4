"""Sum up single launches: the rows of `kernels`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.results import schema

#: The columns that identify a row of `kernels` within one file. A class follows from the name, if the file does not say
#: more: a launch with a class is one row with others of its class only.
LAUNCH_KEYS: Final = ("case", "process", "device", "stream", "phase", "kind", "kernel", "kernel_class")


def summarise(launches: pd.DataFrame) -> pd.DataFrame:
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
