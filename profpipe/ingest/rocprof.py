"""What the files of all generations of rocprof have in common: their events as frames, and columns of CSV files.

A parser gives frames of launches, ranges and calls. This module makes a recording of them. Times are whole nanoseconds
on one clock.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import attribution, kernel_classes, operations, recording as events
from profpipe.ingest.groupby import Ints
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
_TEXTS: Final = {"name", "kind"}

#: The tables of a database of rocprofv3 have names that end in the GUID of a process.
GUID: Final = re.compile(r"_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}$")

#: The thread of a range around the whole process (start/stop ranges of roctx).
WHOLE_PROCESS: Final = 0
UNNAMED: Final = "[kernel without a name]"

#: The domain of roctx's ranges from ROCm 7 on; the calls that open and close them are in MARKER_CORE_API.
_RANGE_DOMAIN: Final = "MARKER_CORE_RANGE_API"
_NO_RANGE: Final = r"roctx(Mark|Get|Name|Profiler|RangePop|RangeStop)"

#: Timers that overflow or are damaged give times years apart.
_LONGEST_NS: Final = 100 * 86_400 * 10**9


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


def kind_of_copy(name: str) -> str:
    """Distinguish memset from memcpy by the name in a section of copies of rocprof v1."""
    return "memset" if name.startswith(("Fill", "Memset")) else "memcpy"


def tables(
    origin: schema.Origin,
    launches: pd.DataFrame,
    ranges: pd.DataFrame | None = None,
    calls: pd.DataFrame | None = None,
    step_range: str = "",
    counted: pd.DataFrame | None = None,
    key: Collection[str] = (),
) -> schema.Tables:
    """Return the tables of frames of ``LAUNCH``, ``RANGE`` and ``CALL``, with the sums of the origin.

    A launch belongs where its API call was made (joined by process and correlation id), else where it was dispatched,
    else where it ran. The origin says how many were placed in which way.

    ``counted`` are the counters of launches, which ``counters`` describes, with the columns ``key`` of their launch.
    With counters the kernels ran one by one, so that the time between them says nothing about the program: there are no
    steps.
    """
    has_counters = counted is not None and len(counted) > 0
    launches, impossible = _possible(launches)
    known_ranges, impossible_ranges = _possible(records(RANGE, {}) if ranges is None else ranges)
    dropped = {"launches": impossible, "ranges": impossible_ranges}
    notes = [f"{count} {what} with an impossible time left out" for what, count in dropped.items() if count]
    origin = replace(origin, notes=(*origin.notes, *notes))
    known_calls = records(CALL, {}) if calls is None else calls
    joined, how = _join_calls(launches, known_calls)
    recording = _recording(joined, known_ranges, known_calls, how, origin, not has_counters)
    parsed = events.tables(recording, step_range)
    origin, metrics = parsed.origin, parsed.metrics
    if not (recording.operations.kind == schema.KINDS.index("kernel")).any():
        origin = replace(origin, total_ns=None, attributed_ns=None, unattributed_ns=None)
    if counted is not None and has_counters:
        cases = np.array(recording.placed.paths.case, dtype=object)[recording.placed.path]
        case_of_launch = joined[list(key)].assign(case=cases).drop_duplicates(list(key))
        placed = counted.merge(case_of_launch, on=list(key), how="left")
        metrics = counters(placed.assign(case=placed["case"].fillna("")))
    return replace(parsed, origin=origin, metrics=metrics)


def refuse_empty(parsed: schema.Tables, path: Path) -> schema.Tables:
    """Return the tables. Raises ``UnreadableFile`` where they have no kernels and no ranges."""
    if not len(parsed.kernels) and not len(parsed.ranges):
        remedy = "Pass --kernel-trace, and check that the program used the GPU."
        raise UnreadableFile(path, "no kernels were recorded", remedy)
    return parsed


def count_only(launches: pd.DataFrame, origin: schema.Origin, counted: pd.DataFrame | None = None) -> schema.Tables:
    """Return tables of dispatches without times: only with their number and their counters."""
    keys = ["process", "device", "stream", "kind", "kernel"]
    rows = launches.rename(columns={"name": "kernel"}).groupby(keys, dropna=False, sort=False).size()
    note = "counters were collected without time stamps: launches are counted, their times are missing"
    return schema.Tables(
        kernels=kernel_classes.annotate(schema.frame(schema.KERNELS, rows.rename("calls").reset_index())),
        metrics=schema.empty(schema.METRICS) if counted is None else counters(counted),
        origin=replace(origin, launches=len(launches), notes=(*origin.notes, note)),
    ).set_columns(profiler="rocprof")


def counters(values: pd.DataFrame) -> pd.DataFrame:
    """Return rows of ``metrics``: the mean of a counter over the launches of a kernel.

    ``values`` has one row for a launch and counter: ``subject`` (the kernel's name as in the tables), ``metric``,
    ``value``; ``case`` and ``unit`` where the file states them.
    """
    readings = values.assign(value=pd.to_numeric(values["value"], errors="coerce")).dropna(subset=["value"])
    readings = readings.assign(**{name: "" for name in ("case", "unit") if name not in readings})
    grouped = readings.groupby(["case", "subject", "metric", "unit"], sort=False)["value"]
    rows = grouped.agg(value="mean", n="size").reset_index()
    rows = rows.assign(unit=rows["unit"].where(rows["unit"] != "", "1"), profiler="rocprof")
    return schema.frame(schema.METRICS, rows)


def _possible(records: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the records that end after they begin, near the others; and how many were dropped."""
    has_times = records[["start", "end"]].notna().all(axis=1)
    kept = records[has_times & (records["start"] >= 0) & (records["end"] >= records["start"])]
    if "kind" in kept:
        # The time stamps of a dispatch that were never written are 0, or equal.
        kept = kept[kept["end"] > kept["start"]]
    if len(kept):
        kept = kept[(kept["end"] - int(kept["start"].median())).abs() < _LONGEST_NS]
    return kept.reset_index(drop=True), len(records) - len(kept)


def _join_calls(launches: pd.DataFrame, calls: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Add ``called``, ``returned`` and the calling ``thread`` to ``launches``; and return their placements."""
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


def _recording(
    launches: pd.DataFrame,
    ranges: pd.DataFrame,
    calls: pd.DataFrame,
    how: pd.Series[Any],
    origin: schema.Origin,
    finds_steps: bool,
) -> events.Recording:
    waits = calls[calls["name"].map(operations.is_waiting_call).astype(bool)].dropna(subset=["start", "end"])
    together = pd.concat([frame[[*_PROCESS, "thread"]] for frame in (launches, ranges, waits)], ignore_index=True)
    # Numbers for processes and threads; other threads in each process. An unknown one (NA) is a thread without ranges.
    process = together.groupby(_PROCESS, dropna=False, sort=False).ngroup().to_numpy()
    thread = together.groupby([*_PROCESS, "thread"], dropna=False, sort=False).ngroup().to_numpy()
    pids = together.assign(code=process).drop_duplicates("code")["process"].fillna(-1).to_numpy(dtype=np.int64)
    ends = np.cumsum([len(launches), len(ranges)])
    process_of, thread_of = (np.split(codes, ends) for codes in (process, thread))
    called, returned, start, end = (_whole(launches[name]) for name in ("called", "returned", "start", "end"))
    name, names = pd.factorize(launches["name"])
    caller = _whole(launches["thread"])
    work = operations.Operations(
        kind=launches["kind"].map({kind: code for code, kind in enumerate(schema.KINDS)}).to_numpy(dtype=np.int64),
        start=start,
        end=end,
        launched=np.where(how != schema.Placement.RUN_TIME, called, operations.UNKNOWN),
        process=process_of[0],
        device=_whole(launches["device"]),
        name=name,
        names=[str(text) for text in names],
        stream=_whole(launches["stream"]),
        correlation=_whole(launches["correlation"]),
        read_calls=lambda rows: (returned[rows], caller[rows]),
    )
    is_kernel = (launches["kind"] == "kernel").to_numpy(dtype=bool)
    recording = events.Recording(
        work,
        attribution.Launches(called, returned, thread_of[0], process_of[0], is_kernel),
        _spans(ranges, thread_of[1], process_of[1]),
        _spans(waits, _whole(waits["thread"]), process_of[2]),
        lambda codes: pids[codes],
        lambda threads: threads,
        origin,
        lambda placed: _count_placements(placed, how),
        on_gpu=len(launches) > 0,
        finds_steps=finds_steps and len(launches) > 0,
    )
    return events.corrected(recording)


def _whole(column: pd.Series[Any]) -> Any:
    """Return whole numbers, -1 for NA, in an array that may be changed."""
    return column.fillna(-1).to_numpy(dtype=np.int64).copy()


def _spans(frame: pd.DataFrame, thread: Ints, process: Ints) -> operations.Spans:
    name, names = pd.factorize(frame["name"])
    times = _whole(frame["start"]), _whole(frame["end"])
    return operations.Spans(*times, thread, process, name, [str(text) for text in names])


def _count_placements(placed: attribution.Attribution, how: pd.Series[Any]) -> dict[schema.Placement, int]:
    if not placed.range_path.size:
        return {schema.Placement.NO_RANGES: len(how)} if len(how) else {}
    inside = placed.path != 0
    counts = {
        **how[inside].value_counts(),
        schema.Placement.OF_OTHER_THREAD: placed.by_time.sum(),
        schema.Placement.NO_RANGE: (~inside).sum(),
    }
    return {placement: int(count) for placement, count in counts.items() if count}


# --- CSV -------------------------------------------------------------------------------------------------------------

#: rocprof-compute averages the time stamps of its passes: ``41551790928449.54``.
_FRACTION = re.compile(r"(\d+)\.(\d)\d*", re.ASCII)
_TOO_LARGE = 2**63


@dataclass
class CsvTable:
    """A CSV file: a list of texts for a column, all of one length. ``damaged`` counts the rows left out."""

    path: Path
    columns: dict[str, list[str]]
    damaged: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def has(self, *names: str) -> bool:
        return all(name in self.columns for name in names)

    def first(self, *names: str) -> list[str] | None:
        """Return the first of the columns ``names`` that the file has."""
        return next((self.columns[name] for name in names if name in self.columns), None)

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self.damaged} row{'s' * (self.damaged > 1)} cut or torn, left out",) if self.damaged else ()

    def unreadable(self, what: str, remedy: str) -> UnreadableFile:
        return UnreadableFile(self.path, "; ".join([what, *self.notes]), remedy)

    def numbers(self, *names: str) -> Any:
        """Return that column as Int64, NA where it has none; ``Agent 4`` and ``GPU 4`` are 4, ``17.54`` is 18."""
        texts = self.first(*names)
        if texts is None:
            return pd.array([pd.NA] * len(self), dtype="Int64")
        try:
            return pd.array(np.array(texts, dtype=str).astype(np.int64), dtype="Int64")
        except (ValueError, OverflowError):
            return pd.array([_whole_number(text) for text in texts], dtype="Int64")

    def all_numbers(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the columns of numbers that ``names`` (our name -> the file's) lists."""
        return {ours: self.numbers(theirs) for ours, theirs in names.items()}


def _whole_number(text: str) -> Any:
    text = text.removeprefix("Agent ").removeprefix("GPU ")
    if parts := _FRACTION.fullmatch(text):
        # A float has too few digits for the ns of an epoch.
        return _whole_number(str(int(parts[1][:20]) + (parts[2] >= "5")))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else _TOO_LARGE
    return number if number < _TOO_LARGE else pd.NA


def read_header(path: Path) -> list[str]:
    """Return the columns in the first line of ``path``, none where the line is no text."""
    with path.open("rb") as file:
        line = file.readline(1 << 16).removeprefix(b"\xef\xbb\xbf")
    if b"\0" in line:
        return []
    try:
        return next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
    except csv.Error:
        return []


def read_csv(path: Path, unused: Collection[str] = ()) -> CsvTable:
    """Read the file without the columns ``unused``. A row with another number of cells than the first is damaged.

    The csv module resumes behind a torn row. pyarrow 26 reads a kernel_trace of 1 million rows in 1.6 s instead of
    6.1 s, but can fail for a whole file with one quote that is never closed ("straddling object").
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        # Up to Python 3.10 the csv module gives up at a NUL.
        rows = csv.reader(line.replace("\0", "") for line in file)
        try:
            names = next(rows, [])
        except csv.Error:
            names = []
        columns: dict[str, list[str]] = {name: [] for name in names if name not in unused}
        places = [(names.index(name), values.append) for name, values in columns.items()]
        # A million rows repeat a few names and numbers: keep one text of them.
        once: dict[str, str] = {}
        whole = damaged = 0
        for row in _resumed(rows):
            if row is None:
                damaged = rows.line_num - 1 - whole
            elif len(row) == len(names):
                whole += 1
                for place, append in places:
                    append(once.setdefault(row[place], row[place]))
            elif row:
                damaged += 1 + sum(cell.count("\n") for cell in row)
    return CsvTable(path, columns, damaged)


def _resumed(rows: Iterator[list[str]]) -> Iterator[list[str] | None]:
    """Yield ``rows``, and None for a row that the csv module gave up.

    A quote that is never closed takes the lines behind it into its cell, until the cell is too long for the module.
    """
    while True:
        try:
            yield from rows
            return
        except csv.Error:
            yield None
