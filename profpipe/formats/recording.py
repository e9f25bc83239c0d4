"""Launches, ranges and calls of one recording -> the tables, whatever file they were read from.

A parser of a format with plain records (rocprof's) gives what it read as three frames; the cases and phases of the
launches, the ranges' sums and the two sums of the origin are worked out here. Times are whole nanoseconds on one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe import tables
from profpipe.formats import attribution, range_sums
from profpipe.formats.grouping import combine

#: What a launch is: ``name``, ``kind``, ``start`` and ``end`` on the GPU. ``process``, ``thread`` (that launched it),
#: ``device``, ``stream``, ``correlation`` and ``dispatched`` (when the host queued it) are NA where the tool is silent.
#: ``space`` tells processes of one pid apart, as those of two containers or hosts are; NA where none need be.
LAUNCH: Final = (
    "name", "kind", "start", "end", "space", "process", "thread", "device", "stream", "correlation", "dispatched",
)  # fmt: skip
RANGE: Final = ("name", "start", "end", "space", "process", "thread")
CALL: Final = ("start", "end", "space", "process", "thread", "correlation")
#: What a process is known by.
_PROCESS: Final = ["space", "process"]

#: The thread of a range that its whole process is in (start/stop ranges of roctx).
WHOLE_PROCESS: Final = 0

_TEXTS = {"name", "kind"}

#: Where it is there, roctx's ranges stand in this domain, and the calls that open and close them in MARKER_CORE_API.
_RANGE_DOMAIN: Final = "MARKER_CORE_RANGE_API"
_NO_RANGE: Final = r"roctx(Mark|Get|Name|Profiler|RangePop|RangeStop)"

#: Timers that overflow or are damaged give times years apart; no recording spans a hundred days.
_LONGEST_NS = 100 * 86_400 * 10**9


def records(columns: Iterable[str], data: Mapping[str, Any]) -> pd.DataFrame:
    """``data`` (lists of one length, or single values) as a frame of ``columns``; what is absent is missing."""
    index = pd.RangeIndex(
        max((len(values) for values in data.values() if pd.api.types.is_list_like(values)), default=0)
    )
    return pd.DataFrame({name: _column(name, data.get(name, pd.NA), index) for name in columns}, index=index)


def _column(name: str, values: Any, index: pd.RangeIndex) -> pd.Series[Any]:
    if not pd.api.types.is_list_like(values):
        if name not in _TEXTS:
            return pd.Series(values, index=index, dtype="Int64")
        values = [values] * len(index)
    if name in _TEXTS:
        texts = [value if isinstance(value, str) else "" if value is None else str(value) for value in values]
        return pd.Series(texts, index=index, dtype=object)
    return pd.Series(pd.array(values, dtype="Int64"), index=index)


def marker_ranges(markers: pd.DataFrame) -> pd.DataFrame:
    """The ranges among rocprofv3's markers: columns of ``RANGE``, ``domain`` and ``operation`` (or the message).

    Marks begin and end at once. Up to ROCm 6 a range is a record of the domain MARKER_CORE_API; later it is one of
    MARKER_CORE_RANGE_API, and the other domain, if it is there, repeats the calls.
    """
    domain = markers["domain"].fillna("").astype(str)
    inside = domain == _RANGE_DOMAIN if (domain == _RANGE_DOMAIN).any() else ~domain.str.contains("CONTROL|NAME")
    is_range = ~markers["operation"].fillna("").astype(str).str.match(_NO_RANGE)
    lasts = (markers["end"] != markers["start"]).fillna(False).astype(bool)
    kept = markers[inside & is_range & lasts].copy()
    kept.loc[kept["operation"].isin(["roctxProcessRangeA", "roctxRangeStartA"]), "thread"] = WHOLE_PROCESS
    return kept[list(RANGE)].reset_index(drop=True)


def no_launches() -> pd.DataFrame:
    return records(LAUNCH, {})


def no_ranges() -> pd.DataFrame:
    return records(RANGE, {})


def no_calls() -> pd.DataFrame:
    return records(CALL, {})


@dataclass(frozen=True)
class Recording:
    """What a file (and the files that belong to it) recorded: frames of ``LAUNCH``, ``RANGE`` and ``CALL``."""

    launches: pd.DataFrame = field(default_factory=no_launches)
    ranges: pd.DataFrame = field(default_factory=no_ranges)
    calls: pd.DataFrame = field(default_factory=no_calls)


@dataclass(frozen=True)
class Placed:
    """The tables (names as recorded, classes empty), and the launches that are in them with ``case`` and ``phase``."""

    tables: tables.Tables
    launches: pd.DataFrame


def place(recording: Recording, origin: tables.Origin) -> Placed:
    """Attributes the launches to the ranges and sums both up; ``origin`` is completed with the sums.

    A launch stands where its API call was made (by process and correlation id); without its call, where it was
    dispatched; else by the time at which it ran. The origin says how many were placed in which way.
    """
    launches, impossible = _possible(recording.launches)
    ranges, odd = _possible(recording.ranges)
    launches, how = _located(launches, recording.calls)
    codes = _Codes(launches, ranges)
    given_ranges = codes.ranges(ranges)
    given = codes.launches(launches)
    placed = attribution.attribute(given_ranges, given)
    cases, phases = placed.cases_and_phases(np.arange(len(placed.paths)))
    launches["case"] = np.array(cases, dtype=object)[placed.path]
    launches["phase"] = np.array(phases, dtype=object)[placed.path]
    launches["duration_ns"] = (launches["end"] - launches["start"]).astype("int64")
    start, end = (launches[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    sums = range_sums.summarise(given_ranges, given, placed, start, end)
    notes = _counted(impossible, "launches with an impossible time left out") + _counted(
        odd, "ranges with an impossible time left out"
    )
    return Placed(
        tables.Tables(
            kernels=tables.summarise(launches.rename(columns={"name": "kernel"})),
            ranges=_range_table(sums, codes, anything=len(launches) > 0),
            origin=_origin(origin, launches, how, placed, notes),
        ),
        launches,
    )


def count_only(launches: pd.DataFrame, origin: tables.Origin) -> tables.Tables:
    """Tables of dispatches without times: how often each kernel ran is all that is known of it."""
    keys = ["process", "device", "stream", "kind", "kernel"]
    rows = launches.rename(columns={"name": "kernel"}).groupby(keys, dropna=False, sort=False).size()
    note = "counters were collected without time stamps: launches are counted, their times are missing"
    return tables.Tables(
        kernels=tables.frame(tables.KERNELS, rows.rename("calls").reset_index()),
        origin=replace(origin, launches=len(launches), notes=(*origin.notes, note)),
    )


def counters(values: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``metrics``: the mean of each counter over the launches of a kernel.

    ``values`` has one row for each launch and counter: ``subject`` (the kernel's name as in the tables), ``metric``,
    ``value``; ``case`` and ``unit`` where they are known.
    """
    known = values.assign(value=pd.to_numeric(values["value"], errors="coerce")).dropna(subset=["value"])
    known = known.assign(**{name: "" for name in ("case", "unit") if name not in known})
    grouped = known.groupby(["case", "subject", "metric", "unit"], sort=False)["value"]
    rows = grouped.agg(value="mean", n="size").reset_index()
    return tables.frame(tables.METRICS, rows.assign(unit=rows["unit"].where(rows["unit"] != "", "1")))


def _possible(records: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The records with a time, which ends after it begins and lies near the others'; and how many are not."""
    known = records[["start", "end"]].notna().all(axis=1)
    kept = records[known & (records["start"] >= 0) & (records["end"] >= records["start"])]
    if "kind" in kept:
        # A dispatch whose time stamps were never written has 0 or twice the same.
        kept = kept[kept["end"] > kept["start"]]
    if len(kept):
        kept = kept[(kept["end"] - int(kept["start"].median())).abs() < _LONGEST_NS]
    return kept.reset_index(drop=True), len(records) - len(kept)


def _located(launches: pd.DataFrame, calls: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series[str]]:
    """``launches`` with ``called`` and ``returned``, where and when each was made; and in words how that is known."""
    keys = [*_PROCESS, "correlation"]
    calls = calls.dropna(subset=["start", "end", "correlation"]).drop_duplicates(keys)
    renamed = calls.rename(columns={"start": "called", "end": "returned", "thread": "caller"})
    joined = launches.merge(renamed, on=keys, how="left", validate="many_to_one")
    by_call = joined["called"].notna() & (joined["correlation"] > 0).fillna(False)
    by_dispatch = ~by_call & joined["dispatched"].notna()
    # rocprofv2's calls do not say their thread; its launches do.
    joined["thread"] = joined["caller"].where(by_call & joined["caller"].notna(), joined["thread"])
    moment = joined["dispatched"].where(by_dispatch, joined["start"])
    joined["called"] = joined["called"].where(by_call, moment)
    joined["returned"] = joined["returned"].where(by_call, moment)
    how = pd.Series("by the time at which they ran", index=joined.index)
    how[by_dispatch] = "by the thread and the time of their dispatch"
    how[by_call] = "by the thread and the time of their API call (correlation id)"
    return joined, how


class _Codes:
    """Numbers for processes and threads, as ``attribution`` wants them: a thread's differs from any other process's."""

    def __init__(self, launches: pd.DataFrame, ranges: pd.DataFrame) -> None:
        self._launches = len(launches)
        columns = [*_PROCESS, "thread"]
        both = pd.concat([launches[columns], ranges[columns]], ignore_index=True)
        spaces, processes = (pd.factorize(both[name], use_na_sentinel=False)[0] for name in _PROCESS)
        self._process, firsts = combine(spaces, processes)
        self.pids = both["process"].iloc[firsts].array
        # NA, a launch whose thread is not known, is a thread of its own: one without ranges.
        thread, _ = pd.factorize(both["thread"], use_na_sentinel=False)
        self._thread, _ = combine(self._process, thread)

    def launches(self, launches: pd.DataFrame) -> attribution.Launches:
        part = slice(0, self._launches)
        return attribution.Launches(
            launches["called"].to_numpy(dtype=np.int64),
            launches["returned"].to_numpy(dtype=np.int64),
            self._thread[part].astype(np.int64),
            self._process[part].astype(np.int64),
            (launches["kind"] == "kernel").to_numpy(),
        )

    def ranges(self, ranges: pd.DataFrame) -> attribution.Ranges:
        part = slice(self._launches, None)
        name, names = pd.factorize(ranges["name"])
        return attribution.Ranges(
            ranges["start"].to_numpy(dtype=np.int64),
            ranges["end"].to_numpy(dtype=np.int64),
            self._thread[part].astype(np.int64),
            self._process[part].astype(np.int64),
            name,
            [str(text) for text in names],
        )


def _range_table(sums: pd.DataFrame, codes: _Codes, anything: bool) -> pd.DataFrame:
    sums["process"] = pd.array([codes.pids[code] for code in sums["process"]], dtype="Int64")
    if not anything:
        # A file of ranges alone says nothing of the GPU.
        sums[["kernel_ns", "kernels", "busy_ns", "span_ns"]] = pd.NA
    return tables.frame(tables.RANGES, sums)


def _origin(
    origin: tables.Origin,
    launches: pd.DataFrame,
    how: pd.Series[str],
    placed: attribution.Attribution,
    notes: tuple[str, ...],
) -> tables.Origin:
    kernels = launches["kind"] == "kernel"
    inside = pd.Series(placed.path != 0, index=launches.index)
    total = float(launches.loc[kernels, "duration_ns"].sum()) if kernels.any() else None
    attributed = float(launches.loc[kernels & (launches["case"] != ""), "duration_ns"].sum()) if kernels.any() else None
    words = [f"{count} {text}" for text, count in how[inside].value_counts().items()]
    moved = int(placed.by_time.sum())
    words += [f"{moved} of them in a range of another thread"] if moved else []
    words += [f"{int((~inside).sum())} in no range"] if (~inside).any() else []
    return replace(
        origin,
        launches=int(kernels.sum()),
        total_ns=total,
        attributed_ns=attributed,
        unattributed_ns=None if total is None or attributed is None else total - attributed,
        attribution="; ".join(words) if placed.range_path.size else "no ranges were recorded",
        notes=(*origin.notes, *notes),
    )


def _counted(count: int, what: str) -> tuple[str, ...]:
    return (f"{count} {what}",) if count else ()
