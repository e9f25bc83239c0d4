"""Read exports of Nsight Systems: SQLite of all schemas since 2020, and folders of Parquet files.

Both hold the same tables. The exporter leaves out tables without rows, and columns changed with the versions. Times are
ns since the start of the capture. Ids of threads carry the thread in bits 0 to 23 and the pid in bits 24 to 47. Source:
exports of nsys 2020 to 2026, and the "SQLite Schema Reference" in the documentation of Nsight Systems.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe import errors
from profpipe.ingest import attribution, bounds, host, launch_tables, operations, recording as events
from profpipe.ingest.groupby import Int64s, Ints, combine, factorize, groups
from profpipe.ingest.nsys_export import (
    FAILURES,
    GRID,
    Database,
    ParquetFolder,
    Source,
    Strings,
    null,
    read_lookup,
    read_numbers,
    read_rows,
    read_texts,
)
from profpipe.ingest.operations import Operations
from profpipe.ingest.steps import reconcile
from profpipe.results import schema

READS_FOLDERS = True
FORMATS = ("nsys SQLite export (schemas of 2020 to 2026)", "nsys Parquet export (directory of TABLE.parquet)")

_EXPORT_AGAIN: Final = "Export it again: nsys export --type sqlite --force-overwrite true -o OUT.sqlite REPORT.nsys-rep"
_PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
#: Any of these says that nsys made the file; an interrupted export may lack the others.
_MARKS: Final = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "ENUM_NSYS_EVENT_TYPE")
_NULL: Final = null(np.int64)
#: The thread in the id of a thread. The 24 bits above it are the pid, in the ids of processes too.
_THREAD_BITS: Final = 0xFFFFFF

Bools = npt.NDArray[np.bool_]


class _Damaged(Exception):
    """The export cannot be read; the message says what is wrong with it."""


def sniff(path: Path) -> bool:
    if path.is_dir():
        return any(_is_ours(file.stem) for file in path.glob("*.parquet"))
    if _lacks_first_page(path):
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if not head.startswith(bounds.SQLITE_HEAD):
        return False
    try:
        tables = Database(path).tables()
        # nvprof has tables of the same names, and another one of texts.
        return "StringTable" not in tables and any(map(_is_ours, tables))
    except FAILURES:
        # The first page of a damaged file still holds the schema's text; `parse` says what is wrong.
        return any(mark.encode() in head for mark in (*_MARKS, _PREFIX))


def _lacks_first_page(path: Path) -> bool:
    """Return True where the exporter was killed: nsys 2022.4 writes the first page last, over zeros."""
    with path.open("rb") as file:
        if any(file.read(512)):
            return False
        begin = file.read(1 << 22)
    return b"CREATE TABLE" in begin and any(mark.encode() in begin for mark in (*_MARKS, _PREFIX))


def _is_ours(table: str) -> bool:
    return table in _MARKS or table.startswith(_PREFIX)


def parse(path: Path, step_range: str | None = "") -> schema.Tables:
    """Read an export. ``step_range`` is a regular expression for the ranges that are steps."""
    with _refusing(path):
        return events.tables(_read(path), step_range, path.parent)


def launches(path: Path) -> pd.DataFrame:
    """Read single launches (``launch_tables.COLUMNS``), none without grids. Raises ``UnreadableFile``."""
    with _refusing(path):
        return events.launches(_read(path))


def recording(path: Path) -> events.Recording:
    """Read the single events of an export. Raises ``UnreadableFile``."""
    with _refusing(path):
        return events.traced(_read(path))


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise ``UnreadableFile`` for an export that is damaged, or was interrupted."""
    try:
        yield
    except _Damaged as damage:
        raise errors.UnreadableFile(path, str(damage), _EXPORT_AGAIN) from damage
    except FAILURES as failure:
        reason = "".join(c if c.isprintable() else "?" for c in " ".join(str(failure).split()))
        what = f"damaged or cut short, cannot be read ({reason[:200]})"
        raise errors.UnreadableFile(path, what, _EXPORT_AGAIN) from failure


def _opened(path: Path) -> tuple[Source, Strings]:
    for leftover in ("-journal", "-wal"):
        beside = path.with_name(path.name + leftover)
        if beside.is_file() and beside.stat().st_size:
            raise _Damaged(f"its export was interrupted, or still runs: {beside.name} lies beside it")
    if path.is_file() and _lacks_first_page(path):
        raise _Damaged("its export was interrupted: the first page, which is written last, is empty")
    export: Source = ParquetFolder(path) if path.is_dir() else Database(path)
    if not {"id", "value"} <= set(export.columns("StringIds")):
        raise _Damaged("its export was interrupted: the table StringIds with all names is missing")
    return export, Strings(export)


def _read(path: Path) -> events.Recording:
    export, strings = _opened(path)
    with ThreadPoolExecutor(max_workers=1) as executor:
        # The reader of the two large tables needs no interpreter lock.
        reading = executor.submit(_read_calls, export, strings)
        work, dropped = _read_work(export, strings)
        calls = reading.result()
    work = replace(work, process=_fill_processes(work, calls))
    latest = max(int(work.end.max(initial=_NULL)), int(calls.end.max(initial=_NULL)))
    ranges, notes = _read_ranges(export, strings, latest)
    launched = _launches(work, calls)
    warnings, details = _messages(export, work)
    process, device, shared = _merge_shared_gpus(export, work)
    # Without the other columns of the launches: one of ten million kernels is 80 MB.
    end, thread = launched.end, (launched.thread & _THREAD_BITS).astype(np.int32)
    done = replace(
        work,
        process=process,
        device=device,
        launched=launched.start,
        read_calls=lambda rows: (end[rows], thread[rows]),
        read_sizes=functools.partial(_read_sizes, export, work.kind),
        checks=_checks(export, work, calls, launched),
    )
    recording = events.Recording(
        done,
        launched,
        ranges,
        calls.called(calls.named(operations.is_waiting_call)),
        _pids,
        lambda threads: threads & _THREAD_BITS,
        _origin(export, work, (*notes, *shared, *_notes(work, dropped, calls, launched), *warnings), tuple(details)),
        functools.partial(_count_placements, work, len(ranges.start)),
        latest,
        read_host=functools.partial(_read_host, export, strings, ranges, calls.called(calls.named(host.name_wait))),
        read_shapes=functools.partial(_read_shapes, export),
        # Not the calls themselves: a gigabyte of ten million kernels, which the tables do not need.
        read_calls=functools.partial(_read_all_calls, export, strings, work.process, work.correlation),
    )
    return events.corrected(recording)


def _pids(ids: Int64s) -> Int64s:
    """Return the pids in ids of processes, -1 where the id is NULL."""
    return np.where(ids == _NULL, -1, (ids >> 24) & _THREAD_BITS)


# --- the work of the GPU ---------------------------------------------------------------------------------------------

_KINDS: Final = {"KERNEL": "kernel", "GRAPH_TRACE": "graph", "MEMCPY": "memcpy", "MEMSET": "memset"}
#: ENUM_CUDA_MEMCPY_OPER, in the spelling of nsys 2023 and later.
_COPIES: Final = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
#: The columns that name the activities of a kind; the first one of a row that is not NULL names it.
_NAMED_BY: Final = {
    "kernel": ("demangledName", "shortName", "mangledName"),
    "graph": ("graphId", "graphExecId"),
    "memcpy": ("copyKind",),
    "memset": (),
}
#: Longer captures are damaged: sums and differences of their times would overflow.
_LONGEST_NS: Final = 2**53
_UNNAMED: Final = "(unnamed)"


def _read_work(export: Source, strings: Strings) -> tuple[Operations, int]:
    """Return the activities of the GPU without their launches, and how many records had an impossible time."""
    number: dict[str, int] = {}
    parts = [_read_activity(export, table, kind, strings, number) for table, kind in _KINDS.items()]
    filled = [columns for columns in parts if len(columns["start"])] or parts[:1]
    # Each column is freed once it is joined: with ten million kernels two copies of all of them would not fit.
    joined: dict[str, Any] = {}
    for key in list(filled[0]):
        first, *others = (columns.pop(key) for columns in filled)
        joined[key] = np.concatenate([first, *others]) if others else first
    sane = _are_possible(joined)
    dropped = int(len(sane) - sane.sum())
    if dropped:
        joined = {key: values[sane] for key, values in joined.items()}
    start, end = joined["start"], joined["end"]
    if len(start) and int(end.max()) - int(start.min()) > _LONGEST_NS:
        raise _Damaged("its times span more than 100 days: the file is damaged")
    return Operations(**joined, names=list(number)), dropped


def _are_possible(columns: dict[str, Ints]) -> Bools:
    possible: Bools = (columns["start"] != _NULL) & (columns["end"] > columns["start"])
    return possible


def _read_activity(
    export: Source, table: str, kind: str, strings: Strings, number: dict[str, int]
) -> dict[str, npt.NDArray[Any]]:
    """Return columns of ``Operations`` from one table; ``number`` has the numbers of the names, and gets new ones."""
    columns = export.columns(_PREFIX + table)
    label, *others = [name for name in _NAMED_BY[kind] if name in columns] or ["label"]
    read = read_numbers(
        export,
        _PREFIX + table,
        {
            "start": np.int64, "end": np.int64, "globalPid": np.int64, "deviceId": np.int32, "streamId": np.int32,
            "correlationId": np.uint32, label: np.int32, **({GRID: np.int64} if kind == "kernel" else {}),
        },
    )  # fmt: skip
    labels = read.pop(label)
    for name in others:
        if (unknown := labels == null(np.int32)).any():
            # Read with the start: SQLite may give a column that has an index in the order of that index.
            more = read_numbers(export, _PREFIX + table, {"start": np.int64, name: np.int32})
            labels = np.where(unknown, more[name], labels)
    codes, used = pd.factorize(labels)
    names = _names_of(kind, used, strings)
    rows = len(codes)
    return {
        "kind": np.full(rows, schema.KINDS.index(kind), dtype=np.int8),
        "start": read["start"],
        "end": read["end"],
        "process": read["globalPid"],
        "device": read["deviceId"],
        "stream": read["streamId"],
        "correlation": read["correlationId"],
        "grid": (factorize(read.pop(GRID))[0] if kind == "kernel" else np.zeros(rows)).astype(np.int32),
        "name": np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int32)[codes],
    }


def _names_of(kind: str, labels: Ints, strings: Strings) -> list[str]:
    if kind == "kernel":
        texts = strings.of(labels)
        if texts and not any(texts):
            raise _Damaged("its export was interrupted: no kernel's name is in the table StringIds")
        return [name or _UNNAMED for name in texts]
    if kind == "graph":
        # Ids count in the order of creation, so an id means the same graph in the next run of the program.
        return ["[CUDA graph]" if label == null(np.int32) else f"[CUDA graph {label}]" for label in labels]
    if kind == "memcpy":
        return [f"[CUDA memcpy {_COPIES.get(int(label), 'Unknown')}]" for label in labels]
    return ["[CUDA memset]"] * len(labels)


def _read_more(export: Source, table: str, *names: str) -> dict[str, Int64s]:
    """Return more columns of the rows of ``table`` whose time is possible."""
    # Read with the times, which say what is possible and count the rows of a table without a column.
    columns = read_numbers(export, _PREFIX + table, dict.fromkeys(("start", "end", *names), np.int64))
    possible = _are_possible(columns)
    return {name: columns[name][possible] for name in names}


def _read_shapes(export: Source) -> pd.DataFrame | None:
    """Return ``grid`` and ``block`` (``32x2x16``) of the kernels, None where the export lacks them."""
    sizes = [f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"]
    if not set(sizes) <= set(export.columns(f"{_PREFIX}KERNEL")):
        return None
    columns = [*_read_more(export, "KERNEL", *sizes).values()]
    code, firsts = combine(*columns)
    # One text for a shape: captures have millions of launches and dozens of shapes.
    distinct = np.stack([column[firsts] for column in columns], axis=1).tolist()
    texts = {"grid": [launch_tables.shape(row[:3]) for row in distinct]}
    texts["block"] = [launch_tables.shape(row[3:]) for row in distinct]
    return pd.DataFrame({what: np.array(values, dtype=object)[code] for what, values in texts.items()})


def _read_graphs(export: Source, kernels: int) -> Int64s:
    """Return a number for the graph of a kernel, negative for none and where the file has no graphs."""
    names = export.columns(f"{_PREFIX}KERNEL")
    # The number of a node has that of its graph above bit 32.
    for name, shift in (("graphNodeId", 32), ("graphId", 0)):
        if name in names:
            graph = _read_more(export, "KERNEL", name)[name]
            return np.where(graph > 0, graph >> shift, -1)
    return np.full(kernels, -1)


def _read_sizes(export: Source, kind: Ints) -> Int64s:
    """Return the bytes of a row of a ``kind`` that copies or sets memory, 0 for the others and where unknown."""
    sizes = np.zeros(len(kind), dtype=np.int64)
    for table in ("MEMCPY", "MEMSET"):
        sizes[kind == schema.KINDS.index(_KINDS[table])] = _read_more(export, table, "bytes")["bytes"]
    return np.maximum(sizes, 0)


# --- calls of CUDA ---------------------------------------------------------------------------------------------------

#: Missing, not ready, peer access already enabled: programs ask for these answers.
_HARMLESS_RESULTS: Final = (500, 600, 704)


@dataclass(frozen=True)
class _ApiCalls:
    """CUDA API calls, times in ns; ``name`` indexes ``names``, which lack the version of the signature."""

    start: Int64s
    end: Int64s
    thread: Int64s
    correlation: npt.NDArray[np.uint32]
    result: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    names: list[str]

    @property
    def process(self) -> Int64s:
        return self.thread & ~_THREAD_BITS

    def named(self, chosen: Any) -> npt.NDArray[np.intp]:
        """Return the rows of the calls whose names are ``chosen``."""
        return np.flatnonzero(np.array([bool(chosen(name)) for name in self.names], dtype=bool)[self.name])

    def called(self, rows: Any) -> operations.Spans:
        thread = self.thread[rows]
        place = thread & _THREAD_BITS, thread & ~_THREAD_BITS
        return operations.Spans(self.start[rows], self.end[rows], *place, self.name[rows], self.names)


def _read_calls(export: Source, strings: Strings) -> _ApiCalls:
    columns = read_numbers(
        export,
        f"{_PREFIX}RUNTIME",
        {
            "start": np.int64, "end": np.int64, "globalTid": np.int64, "correlationId": np.uint32,
            "returnValue": np.int32, "nameId": np.int32,
        },
    )  # fmt: skip
    name, ids = pd.factorize(columns.pop("nameId"))
    # ``cudaLaunchKernel`` of ``cudaLaunchKernel_v7000``
    names = [re.sub(r"_v\d+$", "", text or "a call") for text in strings.of(ids)]
    return _ApiCalls(
        columns["start"],
        columns["end"],
        columns["globalTid"],
        columns["correlationId"],
        columns["returnValue"],
        name.astype(np.int32),
        names,
    )


def _read_all_calls(export: Source, strings: Strings, process: Int64s, correlation: Ints) -> tuple[Any, Any]:
    calls = _read_calls(export, strings)
    return calls.called(slice(None)), _join(process, correlation, calls)


def _launches(work: Operations, calls: _ApiCalls) -> attribution.Launches:
    """Return the calls behind the activities; without one its start is ``operations.UNKNOWN``."""
    call = _join(work.process, work.correlation, calls)
    unknown = np.flatnonzero(call < 0)

    def take_calls(values: Int64s, missing: int) -> Int64s:
        gathered = values[call] if len(values) else np.empty(len(call), np.int64)
        gathered[unknown] = missing
        return gathered

    start, end = take_calls(calls.start, operations.UNKNOWN), take_calls(calls.end, 0)
    thread = take_calls(calls.thread, attribution.NO_THREAD)
    return attribution.Launches(start, end, thread, work.process, work.is_kind("kernel", "graph"))


def _read_host(export: Source, strings: Strings, ranges: operations.Spans, calls: operations.Spans) -> Any:
    """Return calls and ranges that may be waits, the calls of the operating system, and the ranges."""
    wanted = {"start": np.int64, "end": np.int64, "globalTid": np.int64, "nameId": np.int32}
    start, end, tid, name = read_numbers(export, "OSRT_API", wanted).values()
    code, ids = pd.factorize(name)
    texts = [text or "a call" for text in strings.of(ids)]
    thread, process = tid & _THREAD_BITS, tid & ~_THREAD_BITS
    system = operations.Spans(start, end, thread, process, code, texts).of(np.flatnonzero(end > start))
    named = replace(ranges, thread=ranges.thread & _THREAD_BITS, names=ranges.recorded)
    return operations.Spans.join(calls, named), system, operations.Spans.join(named, _read_samples(export, strings))


def _read_samples(export: Source, strings: Strings) -> operations.Spans:
    """Return the samples of the CPU, each with the time half-way to its neighbours: the inner function of the program.

    The program is the module with `main`. That of Python says nothing of the code that it runs.
    """
    samples = pd.DataFrame(
        read_numbers(export, "COMPOSITE_EVENTS", dict.fromkeys(("id", "start", "globalTid"), np.int64))
    )
    columns = dict.fromkeys(("id", "symbol", "module", "stackDepth"), np.int64)
    frames = pd.DataFrame(read_numbers(export, "SAMPLING_CALLCHAINS", columns))
    (symbol, symbols), (module, modules) = (pd.factorize(frames[name]) for name in ("symbol", "module"))
    functions, files = ([text or "" for text in strings.of(np.asarray(ids))] for ids in (symbols, modules))
    mains = np.unique(module[np.isin(symbol, [code for code, text in enumerate(functions) if text == "main"])])
    program = [code for code in mains.tolist() if not Path(files[code]).name.startswith("python")]
    frames = frames.assign(symbol=symbol)[np.isin(module, program)].sort_values("stackDepth").drop_duplicates("id")
    samples = samples.merge(frames, on="id").sort_values(["globalTid", "start"])
    thread, start = samples["globalTid"].to_numpy(), samples["start"].to_numpy()
    apart = np.diff(start)[np.diff(thread) == 0]
    if not (apart > 0).any():
        return operations.Spans.none()
    half = int(np.median(apart[apart > 0])) // 2
    place = thread & _THREAD_BITS, thread & ~_THREAD_BITS
    return operations.Spans(start - half, start + half, *place, samples["symbol"].to_numpy(), functions)


def _join(process: Int64s, correlation: Ints, calls: _ApiCalls) -> Int64s:
    """Return the rows of the activities' calls, -1 where the file has none.

    They are joined by process and correlation id: ids are unique in a process only.
    """
    call = np.full(len(process), -1, dtype=np.int64)
    of_calls = dict(groups(calls.process))
    for number, rows in groups(process):
        if number in of_calls:
            call[rows] = _find(correlation[rows], calls, of_calls[number])
    call[correlation == 0] = -1
    return call


def _fill_processes(work: Operations, calls: _ApiCalls) -> Int64s:
    """Return the processes of the activities. Exports of some versions lack it: then it is the caller's.

    The caller is the only process that calls, or the only one that uses the correlation id.
    """
    unknown = np.flatnonzero(work.process == _NULL)
    if not len(unknown) or not len(calls.start):
        return work.process
    process = work.process.copy()
    _, firsts = combine(calls.correlation, calls.process)
    ids, at, times = np.unique(calls.correlation[firsts], return_index=True, return_counts=True)
    place = np.searchsorted(ids, work.correlation[unknown]).clip(max=len(ids) - 1)
    is_known = (ids[place] == work.correlation[unknown]) & (times[place] == 1)
    process[unknown] = np.where(is_known, calls.process[firsts[at[place]]], _NULL)
    if (calls.process == calls.process[0]).all():
        process[unknown] = calls.process[0]
    return process


def _find(wanted: Ints, calls: _ApiCalls, rows: Ints) -> Int64s:
    """Find the rows of one process's calls by correlation id; of several with one id the first to begin."""
    rows = rows[np.argsort(-calls.start[rows], kind="stable")]
    ids = calls.correlation[rows].astype(np.int64)
    low, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if span <= 8 * (len(ids) + len(wanted)):
        # CUPTI counts upwards, so a table with a place for an id is small.
        place = np.full(span + 1, -1, dtype=np.int64)
        place[ids - low] = rows
        at = wanted.astype(np.int64) - low
        return place[np.where((at >= 0) & (at < span), at, span)]
    distinct, last = np.unique(ids[::-1], return_index=True)
    at = np.searchsorted(distinct, wanted).clip(max=len(distinct) - 1)
    return np.where(distinct[at] == wanted, rows[::-1][last[at]], -1)


# --- ranges of NVTX --------------------------------------------------------------------------------------------------

#: Push/pop and start/end ranges, and both kinds imported from NVTX text files.
_RANGE_EVENTS: Final = (59, 60, 70, 71)
_DOMAIN_EVENTS: Final = (75, 76)
#: Later times are damaged: their sums and differences would overflow.
_LATEST_NS: Final = 2**61


def _read_ranges(export: Source, strings: Strings, latest: int) -> tuple[operations.Spans, list[str]]:
    """Return the ranges of single threads, and notes about the others.

    A range without an end lasts to ``latest``, or to its start where this is later.
    """
    marks = pd.DataFrame(
        read_numbers(
            export,
            "NVTX_EVENTS",
            {
                "start": np.int64, "end": np.int64, "globalTid": np.int64, "endGlobalTid": np.int64,
                "eventType": np.int32, "domainId": np.int32, "textId": np.int32,
            },
        )
    )  # fmt: skip
    text, texts = read_texts(export, "NVTX_EVENTS", "text", len(marks))
    marks["name"], recorded = _range_names(marks, text, texts, strings)
    ranges = marks[marks["eventType"].isin(_RANGE_EVENTS)]
    notes = []
    if ranges.empty and marks["eventType"].isin(_DOMAIN_EVENTS).any():
        notes.append(
            "NVTX domains were made but no range was recorded: nsys 2022 and 2023 do not see the Python package nvtx "
            "from 0.2.12 on; annotate with torch.cuda.nvtx, or install nvtx<0.2.12"
        )
    sane = (ranges["start"] > -_LATEST_NS) & (ranges["end"] < _LATEST_NS)
    unended = sane & (ranges["end"] == _NULL)
    ranges = ranges.assign(end=ranges["end"].where(~unended, ranges["start"].clip(lower=latest)))
    sane &= ranges["end"] >= ranges["start"]
    one_thread = ranges["endGlobalTid"].isin([_NULL]) | (ranges["endGlobalTid"] == ranges["globalTid"])
    counted = {
        "ranges have no end and are taken to last until the capture's end": unended & sane,
        "ranges end before they begin and were left out": ~sane,
        "ranges end in another thread than they began in; they belong to no thread and were left out, as nsys does": (
            sane & ~one_thread
        ),
    }
    notes += [f"{rows.sum()} {what}" for what, rows in counted.items() if rows.any()]
    ranges = ranges[sane & one_thread]
    start, end, thread, name = (ranges[column].to_numpy() for column in ("start", "end", "globalTid", "name"))
    names = [schema.range_name(label) for label in recorded]
    return operations.Spans(start, end, thread, thread & ~_THREAD_BITS, name, names, recorded), notes


def _range_names(
    marks: pd.DataFrame, text: Int64s, texts: list[str], strings: Strings
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return (numbers of the events' names, names). Outside the default domain nsys prints ``domain:name``.

    Counters are removed, but for the numbers of steps.
    """
    process = marks["globalTid"].to_numpy() & ~_THREAD_BITS
    text_id, domain = marks["textId"].to_numpy(), marks["domainId"].to_numpy()
    codes, firsts = combine(text, text_id, domain, process)
    registered = strings.of(text_id[firsts])
    plain = [texts[t] or r or "" for t, r in zip(text[firsts].tolist(), registered, strict=True)]
    created = np.flatnonzero(marks["eventType"].to_numpy() == _DOMAIN_EVENTS[0])
    domains = {(process[i], domain[i]): plain[codes[i]] for i in created}
    names: dict[str, int] = {}
    number = []
    for i, name in zip(firsts, plain, strict=True):
        prefix = domains.get((process[i], domain[i]), "") if domain[i] > 0 else ""
        number.append(names.setdefault(_range_name(prefix, name), len(names)))
    return np.array(number, dtype=np.int32)[codes], list(names)


def _range_name(domain: str, name: str) -> str:
    if name.startswith((schema.CASE_PREFIX, schema.STEP_PREFIX)):
        return name
    return f"{domain}:{schema.range_name(name)}" if domain else schema.range_name(name)


# --- what the export hides, lacks and complains of -------------------------------------------------------------------

#: nsys 2022 to 2026 say this of a capture that a range ends.
_HARMLESS = re.compile(r"might (not )?have |events were lost\? no")
_RELEVANT = re.compile(r"CUDA|CUPTI|NVTX|GPU|lost|dropped|driver|permission|privilege", re.IGNORECASE)
#: Why nothing was recorded: the causes come before what follows from them, and NVTX last.
_CAUSES = (
    re.compile(r"(?!.*(?:metrics|sampling|switch)).*(?:permission|privilege|NVGPUCTRPERM)", re.IGNORECASE),
    re.compile(r".*(?:driver|CUPTI|CUDA\b.*not supported)", re.IGNORECASE),
    re.compile(r"(?!No |Not all ).*CUDA"),
    re.compile(r".*CUDA"),
    re.compile(""),
)


def _notes(work: Operations, dropped: int, calls: _ApiCalls, called: attribution.Launches) -> list[str]:
    """Return the reasons for doubt in kernels and CUDA calls."""
    graph = work.is_kind("graph")
    lost = work.is_kind("kernel") & (called.thread == attribution.NO_THREAD)
    unowned = lost & (work.process == _NULL) & (work.correlation > 0)
    lost &= ~unowned
    unnamed = list(work.names).index(_UNNAMED) if _UNNAMED in work.names else -1
    graph_ms, lost_ms = ((work.end[rows] - work.start[rows]).sum() / 1e6 for rows in (graph, lost))
    counted = {
        f"records are whole CUDA graphs ({graph_ms:.3f} ms) and hide the kernels in them; record with "
        "--cuda-graph-trace=node to see these": graph.sum(),
        f"kernels ({lost_ms:.3f} ms) have no launch call in the file and lie in no range: they were "
        "launched before the capture, or this slice of it, began": lost.sum(),
        "kernels lie in no range: the file does not say which of its processes ran them": unowned.sum(),
        "records end before they begin, or have no time, and were left out": dropped,
        "kernels have no name in the file": (work.name == unnamed).sum(),
        "launches of CUDA graphs left no kernel in the file (nsys before 2024 does not export whole graphs), so their "
        "GPU time is missing; record with --cuda-graph-trace=node": _count_lost_graphs(work, calls),
    }
    notes = [f"{count} {what}" for what, count in counted.items() if count]
    wrong = np.flatnonzero(calls.result)
    wrong = wrong[~np.isin(calls.result[wrong], [*_HARMLESS_RESULTS, null(np.int32)])]
    if len(wrong):
        results = zip(calls.name[wrong].tolist(), calls.result[wrong].tolist(), strict=True)
        failed = Counter((calls.names[name], result) for name, result in results)
        worst = ", ".join(f"{name} returned {result} ({n}x)" for (name, result), n in failed.most_common(3))
        notes.append(f"{len(wrong)} CUDA calls failed: {worst}")
    return notes


def _count_lost_graphs(work: Operations, calls: _ApiCalls) -> int:
    rows = calls.named(lambda name: "GraphLaunch" in name)
    if not len(rows):
        return 0
    called = pd.MultiIndex.from_arrays([calls.process[rows], calls.correlation[rows]])
    near = np.isin(work.correlation, calls.correlation[rows])
    return int((~called.isin(pd.MultiIndex.from_arrays([work.process[near], work.correlation[near]]))).sum())


def _messages(export: Source, work: Operations) -> tuple[list[str], list[str]]:
    """Return nsys's warnings about CUDA and NVTX: (reasons for doubt, harmless ones).

    A helper process without CUDA leaves messages too ("No CUDA events collected", "CUDA profiling might have not
    been started correctly"). They are dropped where another process used the GPU. Where none did, they are reasons for
    doubt, and the one that explains most comes first.
    """
    texts: Counter[str] = Counter()
    at_work = {str(process) for process in np.unique(work.process)}
    process_column = [name for name in ("globalPid",) if name in export.columns("DIAGNOSTIC_EVENT")]
    for severity, text, *of in read_rows(export, "DIAGNOSTIC_EVENT", "severity", "text", *process_column):
        line, process = " ".join(text.split()), "".join(of)
        is_helper = process.isdigit() and process != "0" and process not in at_work
        is_idle = bool(at_work) and (is_helper or line.startswith("No "))
        if severity in ("2", "3") and _RELEVANT.search(line) and not is_idle:
            texts[line[:200]] += 1
    lines = [f"nsys: {text}" + (f" ({count}x)" if count > 1 else "") for text, count in texts.items()]
    if not at_work:
        ranks = [next(rank for rank, cause in enumerate(_CAUSES) if cause.match(text)) for text in texts]
        return [line for _, line in sorted(zip(ranks, lines, strict=True), key=lambda pair: pair[0])], []
    return [line for line in lines if not _HARMLESS.search(line)], [line for line in lines if _HARMLESS.search(line)]


def _checks(export: Source, work: Operations, calls: _ApiCalls, called: attribution.Launches) -> list[reconcile.Row]:
    """Return the launches without a kernel, and the replays of graphs that lack some."""
    checks: list[reconcile.Row] = []
    of_work = dict(groups(work.process))
    launching = _launching(calls)
    for process, of_process in groups(calls.process[launching]):
        # nsys may record a call twice, under its name with and without a version.
        launched, firsts = np.unique(calls.correlation[launching[of_process]], return_index=True)
        # An activity without a process may be this one's.
        rows = np.concatenate([np.zeros(0, np.int64), *(of_work[pid] for pid in (process, _NULL) if pid in of_work)])
        ran = np.isin(launched, work.correlation[rows])
        rows = rows[called.start[rows] != operations.UNKNOWN]
        time = calls.start[launching[of_process[firsts]]]
        kept = ran | ~reconcile.may_run_later(time, work.start[rows], called.start[rows])
        lost = reconcile.of_lost_kernels(int(kept.sum()), int(ran.sum()))
        checks += [{**check, "process": process} for check in lost]
    has_graphs = any("GraphLaunch" in name for name in calls.names)
    if has_graphs:
        kernels = np.flatnonzero(work.is_kind("kernel"))
        graph = _read_graphs(export, len(kernels))
        for process, of_process in groups(work.process[kernels]):
            owned = kernels[of_process]
            launch = np.where(work.correlation[owned] == 0, -1, work.correlation[owned].astype(np.int64))
            replays = reconcile.of_replays(graph[of_process], launch, work.name[owned])
            checks += [{**check, "process": process} for check in replays]
    return checks


def _launching(calls: _ApiCalls) -> npt.NDArray[np.intp]:
    """Return the rows of the calls that launched a kernel, without those that failed or built a graph."""
    rows = calls.named(re.compile(r"(cuda|cu)Launch\w*Kernel").match)
    rows = rows[calls.result[rows] <= 0]
    marks = (calls.named(re.compile(rf"(cuda|cu)Stream{what}Capture").match) for what in ("Begin", "End"))
    begins, ends = ((calls.thread[mark], calls.start[mark]) for mark in marks)
    return rows[~reconcile.are_captured(calls.thread[rows], calls.start[rows], begins, ends)]


# --- origin ----------------------------------------------------------------------------------------------------------


def _origin(export: Source, work: Operations, notes: tuple[str, ...], details: tuple[str, ...]) -> schema.Origin:
    meta = read_lookup(export, "META_DATA_EXPORT", "name", "value")
    meta |= read_lookup(export, "EXPORT_META_DATA", "name", "value")
    others = int(work.is_kind("memcpy", "memset").sum())
    only = f", only {others} {'copy or set' if others == 1 else 'copies and sets'}" if others else ""
    return schema.Origin(
        format=f"nsys export, schema {meta.get('EXPORT_SCHEMA_VERSION') or 'without a version (before 2022)'}",
        tool="nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION", ""),
        device=_device(export, work),
        notes=notes,
        details=details,
        without_kernels="" if work.is_kind("kernel").any() else f"no kernels in this file{only}",
    )


#: NCCL and RCCL refuse two ranks on one GPU, so that GPUs of one number are different ones.
_RANKS = re.compile("nccl|rccl", re.IGNORECASE)


def _merge_shared_gpus(export: Source, work: Operations) -> tuple[Int64s, Ints, list[str]]:
    """Return process and device of the activities, and notes: on a GPU that processes share, those of the first one.

    Its idle time is where none of them runs anything. CUDA's ordinals count what a process sees, from 0 in each
    container: a GPU is its UUID, else its place on the bus of its machine.
    """
    process, device = work.process.copy(), work.device.copy()
    notes: list[str] = []
    code, firsts = combine(process, device)
    if len(np.unique(process)) < 2 or any(map(_RANKS.search, work.names)):
        return process, device, notes
    by_id, by_ordinal, mapped = {}, {}, {}
    for row in _rows_of(export, "TARGET_INFO_GPU", "vmId", "id", "cuDevice", "uuid", "busLocation"):
        gpu = row["uuid"] or f"{row['vmId']} {row['busLocation'] or row['id']}"
        by_id[row["vmId"], row["id"]] = by_ordinal[row["vmId"], row["cuDevice"]] = gpu
    for row in _rows_of(export, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId", "uuid"):
        mapped[row["pid"], row["cudaId"]] = row
    users: dict[str, list[int]] = {}
    for number, at in enumerate(firsts.tolist()):
        # The id of a process begins with that of its machine, which some exports leave out.
        machines, ordinal = (str(int(process[at]) >> 48 << 48), ""), str(device[at])
        row = mapped.get((str(_pids(process[at])), ordinal), {})
        units = [row.get("uuid"), *(by_id.get((machine, row.get("gpuId", "-"))) for machine in machines)]
        units += [by_ordinal.get((machine, ordinal)) for machine in machines] if not row else []
        if unit := next(filter(None, units), None):
            users.setdefault(unit, []).append(number)
    for numbers in users.values():
        if len(pids := np.unique(_pids(work.process[firsts[numbers]]))) > 1:
            here = np.isin(code, numbers)
            process[here], device[here] = process[firsts[numbers[0]]], device[firsts[numbers[0]]]
            notes.append(
                f"{len(pids)} processes share a GPU ({', '.join(map(str, pids))}): they are no ranks, and the GPU "
                "is idle where none of them runs anything"
            )
    return process, device, notes


def _rows_of(export: Source, table: str, *names: str) -> list[dict[str, str]]:
    """Return the rows of a small table, with an empty text for columns that it lacks."""
    shared = [name for name in names if name in export.columns(table)]
    rows = read_rows(export, table, *shared) if shared else ()
    return [dict.fromkeys(names, "") | dict(zip(shared, row, strict=True)) for row in rows]


def _count_placements(work: Operations, ranges: int, placed: attribution.Attribution) -> dict[schema.Placement, int]:
    is_kernel = work.is_kind("kernel")
    return events.count_kernels(placed, is_kernel) if ranges else {schema.Placement.NO_RANGES: int(is_kernel.sum())}


def _device(export: Source, work: Operations) -> str:
    """Return the names of the GPUs that ran something, empty where the file does not say."""
    _, firsts = combine(work.process, work.device)
    pids = _pids(work.process[firsts])
    ran = {(str(pid), str(device)) for pid, device in zip(pids, work.device[firsts], strict=True)}
    by_id = read_lookup(export, "TARGET_INFO_GPU", "id", "name")
    # `id` numbers the GPUs by bus, a kernel's deviceId is CUDA's ordinal. On a four-GPU node the two may count in
    # opposite order, and processes may see other GPUs.
    mapped = read_rows(export, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    names = {by_id.get(gpu, "") for pid, ordinal, gpu in mapped if (pid, ordinal) in ran}
    by_ordinal = read_lookup(export, "TARGET_INFO_GPU", "cuDevice", "name")
    by_ordinal |= read_lookup(export, "TARGET_INFO_CUDA_GPU", "deviceId", "name")
    names = names or {by_ordinal.get(ordinal, "") for _, ordinal in ran}
    installed = {name for (name,) in read_rows(export, "TARGET_INFO_GPU", "name")}
    return ", ".join(sorted(names - {""}) or (installed if ran and len(installed) == 1 else []))
