"""Make the tables from the launches, ranges and calls of one recording, of any file of rocprof.

A parser gives three frames. This module finds the case and phase of each launch, and sums up ranges and the origin.
Times are whole nanoseconds on one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import attribution, bounds, kernel_classes, launch_tables, operations
from profpipe.ingest.groupby import combine
from profpipe.ingest.steps import reconcile, search
from profpipe.results import schema

#: ``start`` and ``end`` are on the GPU, ``thread`` launched it, ``dispatched`` is when the host queued it. ``space``
#: numbers the containers or hosts whose processes may share a pid. All but the first four are NA where unknown.
LAUNCH: Final = (
    "name", "kind", "start", "end", "space", "process", "thread", "device", "stream", "correlation", "dispatched",
)  # fmt: skip
RANGE: Final = ("name", "start", "end", "space", "process", "thread")
CALL: Final = ("name", "start", "end", "space", "process", "thread", "correlation")
#: The columns that identify a process.
_PROCESS: Final = ["space", "process"]

#: The thread of a range around the whole process (start/stop ranges of roctx).
WHOLE_PROCESS: Final = 0

_TEXTS = {"name", "kind"}

#: The domain of roctx's ranges from ROCm 7 on; the calls that open and close them are in MARKER_CORE_API.
_RANGE_DOMAIN: Final = "MARKER_CORE_RANGE_API"
_NO_RANGE: Final = r"roctx(Mark|Get|Name|Profiler|RangePop|RangeStop)"

#: Timers that overflow or are damaged give times years apart.
_LONGEST_NS = 100 * 86_400 * 10**9


def records(columns: Iterable[str], data: Mapping[str, Any]) -> pd.DataFrame:
    """Make a frame of ``columns`` from ``data``: lists of one length, or single values. Absent columns are NA."""
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
    """Return the ranges among rocprofv3's ``markers``: ``RANGE``, ``domain`` and ``operation`` (or the message).

    A mark begins and ends at once. Up to ROCm 6 a range is a record of the domain MARKER_CORE_API. Later it is one of
    MARKER_CORE_RANGE_API, and MARKER_CORE_API repeats its calls.
    """
    domain = markers["domain"].fillna("").astype(str)
    inside = domain == _RANGE_DOMAIN if (domain == _RANGE_DOMAIN).any() else ~domain.str.contains("CONTROL|NAME")
    is_range = ~markers["operation"].fillna("").astype(str).str.match(_NO_RANGE)
    lasts = (markers["end"] != markers["start"]).fillna(False).astype(bool)
    kept = markers[inside & is_range & lasts].copy()
    kept.loc[kept["operation"].isin(["roctxProcessRangeA", "roctxRangeStartA"]), "thread"] = WHOLE_PROCESS
    return kept[list(RANGE)].reset_index(drop=True)


@dataclass(frozen=True)
class Recording:
    """Frames of ``LAUNCH``, ``RANGE`` and ``CALL``.

    ``step_range`` is the user's regular expression for ranges that are steps. With ``has_counters`` the kernels ran one
    by one, so that the time between them says nothing about the program: there are no steps.
    """

    launches: pd.DataFrame = field(default_factory=lambda: records(LAUNCH, {}))
    ranges: pd.DataFrame = field(default_factory=lambda: records(RANGE, {}))
    calls: pd.DataFrame = field(default_factory=lambda: records(CALL, {}))
    step_range: str = ""
    has_counters: bool = False


@dataclass(frozen=True)
class Placed:
    """The tables, and their launches (names as recorded) with ``case`` and ``phase``."""

    tables: schema.Tables
    launches: pd.DataFrame


def place(recording: Recording, origin: schema.Origin) -> Placed:
    """Place the launches in the ranges and sum up both; complete ``origin`` with the sums.

    A launch belongs where its API call was made (joined by process and correlation id), else where it was dispatched,
    else where it ran. The origin says how many were placed in which way.
    """
    launches, impossible = _drop_impossible(recording.launches)
    ranges, impossible_ranges = _drop_impossible(recording.ranges)
    numbers, names = pd.factorize(launches["name"])
    launches, checks = _correct_late_ends(launches, numbers, list(names))
    duration = (launches["end"] - launches["start"]).to_numpy(dtype=np.float64)
    numbers, kept, folded = bounds.fold_names(numbers, list(names), duration)
    launches = launches.assign(name=np.array(kept, dtype=object)[numbers])
    launches, how = _join_calls(launches, recording.calls)
    codes = _Codes(launches, ranges)
    given_ranges = codes.ranges(ranges)
    given = codes.launches(launches)
    placed = attribution.attribute(given_ranges, given)
    launches["case"] = np.array(placed.paths.case, dtype=object)[placed.path]
    launches["phase"] = np.array(placed.paths.phase, dtype=object)[placed.path]
    launches["duration_ns"] = (launches["end"] - launches["start"]).astype("int64")
    start, end = (launches[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    range_rows = launch_tables.range_rows(given_ranges, given, placed, start, end, codes.find_pids, len(launches) > 0)
    steps = schema.Tables()
    if len(launches) and not recording.has_counters:
        known = (how != schema.Placement.RUN_TIME).to_numpy()
        called = replace(given, start=np.where(known, given.start, operations.UNKNOWN))
        done = replace(_operations(launches, called, placed.in_case), checks=checks)
        waits = codes.waits(recording.calls)
        steps = search.find(done, given_ranges, waits, codes.find_pids, own=recording.step_range)
    counted = {"launches": impossible, "ranges": impossible_ranges}
    notes = [f"{count} {what} with an impossible time left out" for what, count in counted.items() if count]
    notes += [bounds.note_of_names(folded)] if folded else []
    notes += placed.paths.notes()
    return Placed(
        replace(
            steps,
            kernels=kernel_classes.annotate(launch_tables.kernel_rows(launches.rename(columns={"name": "kernel"}))),
            ranges=range_rows,
            origin=replace(_with_sums(origin, launches, how, placed), notes=(*origin.notes, *notes)),
        ),
        launches,
    )


def finish(found: schema.Tables, path: Path) -> schema.Tables:
    """Fill in the profiler. Raises ``UnreadableFile`` for tables without kernels and ranges."""
    if not len(found.kernels) and not len(found.ranges):
        remedy = "Pass --kernel-trace, and check that the program used the GPU."
        raise UnreadableFile(path, "no kernels were recorded", remedy)
    return found.with_columns(profiler="rocprof")


def kind_of_copy(name: str) -> str:
    """Distinguish memset from memcpy by the name in a section of copies of rocprof v1."""
    return "memset" if name.startswith(("Fill", "Memset")) else "memcpy"


def count_only(launches: pd.DataFrame, origin: schema.Origin) -> schema.Tables:
    """Return tables of dispatches without times: only their number is known."""
    keys = ["process", "device", "stream", "kind", "kernel"]
    rows = launches.rename(columns={"name": "kernel"}).groupby(keys, dropna=False, sort=False).size()
    note = "counters were collected without time stamps: launches are counted, their times are missing"
    return schema.Tables(
        kernels=kernel_classes.annotate(schema.frame(schema.KERNELS, rows.rename("calls").reset_index())),
        origin=replace(origin, launches=len(launches), notes=(*origin.notes, note)),
    )


def counters(values: pd.DataFrame) -> pd.DataFrame:
    """Return rows of ``metrics``: the mean of each counter over the launches of a kernel.

    ``values`` has one row for each launch and counter: ``subject`` (the kernel's name as in the tables), ``metric``,
    ``value``; ``case`` and ``unit`` where they are known.
    """
    known = values.assign(value=pd.to_numeric(values["value"], errors="coerce")).dropna(subset=["value"])
    known = known.assign(**{name: "" for name in ("case", "unit") if name not in known})
    grouped = known.groupby(["case", "subject", "metric", "unit"], sort=False)["value"]
    rows = grouped.agg(value="mean", n="size").reset_index()
    return schema.frame(schema.METRICS, rows.assign(unit=rows["unit"].where(rows["unit"] != "", "1")))


def _drop_impossible(records: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the records that end after they begin, near the others; and how many were dropped."""
    known = records[["start", "end"]].notna().all(axis=1)
    kept = records[known & (records["start"] >= 0) & (records["end"] >= records["start"])]
    if "kind" in kept:
        # The time stamps of a dispatch that were never written are 0, or equal.
        kept = kept[kept["end"] > kept["start"]]
    if len(kept):
        kept = kept[(kept["end"] - int(kept["start"].median())).abs() < _LONGEST_NS]
    return kept.reset_index(drop=True), len(records) - len(kept)


def _join_calls(launches: pd.DataFrame, calls: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Add ``called``, ``returned`` and the calling ``thread`` to ``launches``; and return the placement of each."""
    keys = [*_PROCESS, "correlation"]
    calls = calls.drop(columns="name").dropna(subset=["start", "end", "correlation"]).drop_duplicates(keys)
    renamed = calls.rename(columns={"start": "called", "end": "returned", "thread": "caller"})
    joined = launches.merge(renamed, on=keys, how="left", validate="many_to_one")
    by_call = joined["called"].notna() & (joined["correlation"] > 0).fillna(False)
    by_dispatch = ~by_call & joined["dispatched"].notna()
    # rocprofv2 gives the thread with the launch, not with the call.
    joined["thread"] = joined["caller"].where(by_call & joined["caller"].notna(), joined["thread"])
    moment = joined["dispatched"].where(by_dispatch, joined["start"])
    joined["called"] = joined["called"].where(by_call, moment)
    joined["returned"] = joined["returned"].where(by_call, moment)
    how = pd.Series(schema.Placement.RUN_TIME, index=joined.index, dtype=object)
    how[by_dispatch] = schema.Placement.DISPATCH
    how[by_call] = schema.Placement.API_CALL
    return joined, how


class _Codes:
    """Numbers of processes and threads for ``attribution``, which needs other threads in each process."""

    def __init__(self, launches: pd.DataFrame, ranges: pd.DataFrame) -> None:
        self._launches = len(launches)
        columns = [*_PROCESS, "thread"]
        both = pd.concat([launches[columns], ranges[columns]], ignore_index=True)
        spaces, processes = (pd.factorize(both[name], use_na_sentinel=False)[0] for name in _PROCESS)
        self._process, firsts = combine(spaces, processes)
        self._pids = both["process"].iloc[firsts].fillna(-1).to_numpy(dtype=np.int64)
        # An unknown thread (NA) counts as a thread without ranges.
        thread, _ = pd.factorize(both["thread"], use_na_sentinel=False)
        self._thread, _ = combine(self._process, thread)
        keys = both[_PROCESS].iloc[firsts].itertuples(index=False, name=None)
        self._code_of = {key: code for code, key in enumerate(keys)}

    def find_pids(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the process id of each code, -1 where it is unknown."""
        found: np.ndarray[Any, Any] = self._pids[codes]
        return found

    def waits(self, calls: pd.DataFrame) -> operations.Calls:
        """Return the calls in which a process that launched something waited."""
        waiting = calls[calls["name"].map(operations.is_waiting_call).astype(bool)].dropna(subset=["start", "end"])
        keys = waiting[_PROCESS].itertuples(index=False, name=None)
        codes = np.array([self._code_of.get(key, -1) for key in keys], dtype=np.int64)
        waiting, codes = waiting[codes >= 0], codes[codes >= 0]
        start, end = (waiting[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        thread = waiting["thread"].fillna(-1).to_numpy(dtype=np.int64)
        name, names = pd.factorize(waiting["name"])
        return operations.Calls(start, end, codes, thread, name, [str(text) for text in names])

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


def _correct_late_ends(
    launches: pd.DataFrame, name: np.ndarray[Any, Any], names: list[Any]
) -> tuple[pd.DataFrame, list[reconcile.Row]]:
    """Return the launches with the ends corrected that are recorded too late, and what was removed."""
    rows = np.flatnonzero(launches["kind"] == "kernel")
    kernels = launches.iloc[rows]
    # A missing value is -1.
    place = [pd.factorize(kernels[key])[0] for key in (*_PROCESS, "device", "stream")]
    start, end = (kernels[key].to_numpy(dtype=np.int64) for key in ("start", "end"))
    launch = kernels["correlation"].fillna(-1).to_numpy(dtype=np.int64)
    late, removed = reconcile.clip_late_ends(start, end, place, launch)
    found = list(reconcile.of_late_ends(removed, name[rows[late]], [str(each) for each in names]))
    ends = launches["end"].to_numpy(dtype=np.int64).copy()
    ends[rows[late]] = end[late]
    return (launches.assign(end=pd.array(ends, dtype="Int64")) if found else launches), found


def _operations(
    launches: pd.DataFrame, called: attribution.Launches, in_case: np.ndarray[Any, Any]
) -> operations.Operations:
    """Return the launches as operations; the start of an unknown call in ``called`` is ``operations.UNKNOWN``."""
    thread = launches["thread"].fillna(-1).to_numpy(dtype=np.int64)
    name, names = pd.factorize(launches["name"])
    return operations.Operations(
        kind=launches["kind"].map({kind: code for code, kind in enumerate(schema.KINDS)}).to_numpy(),
        start=launches["start"].to_numpy(dtype=np.int64),
        end=launches["end"].to_numpy(dtype=np.int64),
        launched=called.start,
        process=called.process,
        device=launches["device"].fillna(-1).to_numpy(dtype=np.int64),
        name=name,
        names=[str(text) for text in names],
        classes=kernel_classes.classes([str(text) for text in names]),
        in_case=in_case,
        stream=launches["stream"].fillna(-1).to_numpy(dtype=np.int64),
        read_calls=lambda rows: (called.end[rows], thread[rows]),
    )


def _with_sums(
    origin: schema.Origin, launches: pd.DataFrame, how: pd.Series[Any], placed: attribution.Attribution
) -> schema.Origin:
    inside = pd.Series(placed.path != 0, index=launches.index)
    counts = {
        **how[inside].value_counts(),
        schema.Placement.OF_OTHER_THREAD: placed.by_time.sum(),
        schema.Placement.NO_RANGE: (~inside).sum(),
    }
    if not placed.range_path.size:
        counts = {schema.Placement.NO_RANGES: len(launches)}
    origin = replace(origin, attribution={placement: int(count) for placement, count in counts.items() if count})
    kernels = launches[launches["kind"] == "kernel"]
    return origin.with_sums(kernels["duration_ns"], kernels["case"] != "") if len(kernels) else origin
