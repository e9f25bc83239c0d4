"""Nsight Systems exports: SQLite of every schema since 2020, and directories of Parquet files with the same tables.

Tables and columns are found by name and may be absent: the exporter leaves out tables without rows, and columns came
and went with the versions. Times are ns since the start of the capture. Ids of threads and processes carry the pid in
bits 24 to 47 and the thread in the lowest 24.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe import attribution, errors, kernels, overlap, range_sums, tables
from profpipe.columns import (
    FAILURES,
    SQLITE_HEAD,
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
from profpipe.grouping import combine, groups

FORMATS = ("nsys SQLite export (schemas of 2020 to 2026)", "nsys Parquet export (directory of TABLE.parquet)")

_EXPORT_AGAIN: Final = "Export it again: nsys export --type sqlite --force-overwrite true -o OUT.sqlite REPORT.nsys-rep"
_NULL: Final = null(np.int64)
_THREAD_BITS: Final = 0xFFFFFF
#: Any of these says that nsys made the file; an interrupted export may lack the others.
_MARKS: Final = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "ENUM_NSYS_EVENT_TYPE")
_ACTIVITY: Final = "CUPTI_ACTIVITY_KIND_"
_KINDS: Final = {"KERNEL": "kernel", "GRAPH_TRACE": "graph", "MEMCPY": "memcpy", "MEMSET": "memset"}
#: ENUM_CUDA_MEMCPY_OPER; spelt as nsys 2023 and later print it.
_COPIES: Final = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
#: Push/pop and start/end ranges, and the same two imported from NVTX text files.
_RANGE_EVENTS: Final = (59, 60, 70, 71)
_DOMAIN_EVENTS: Final = (75, 76)
#: Not found, not ready, peer access already enabled: answers that programs ask for, no failures.
_HARMLESS_RESULTS: Final = (500, 600, 704)

#: Beyond these no clock of a capture goes; sums and differences of such times would overflow.
_LONGEST_NS: Final = 2**53
_LATEST_NS: Final = 2**61
_UNNAMED: Final = "(unnamed)"
_NOTHING: Final = np.zeros(0, dtype=np.int64)

Int64s = npt.NDArray[np.int64]


class _Damaged(Exception):
    """What is wrong with the file, for the line that refuses it."""


def sniff(path: Path) -> bool:
    if path.is_dir():
        return any(_is_ours(file.stem) for file in path.glob("*.parquet"))
    if _lacks_first_page(path):
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if not head.startswith(SQLITE_HEAD):
        return False
    try:
        return any(_is_ours(table) for table in Database(path).tables())
    except FAILURES:
        # Truncated or damaged, but the first page still holds the schema's text; `parse` says what is wrong.
        return any(mark.encode() in head for mark in (*_MARKS, _ACTIVITY))


def _lacks_first_page(path: Path) -> bool:
    """Whether the exporter was killed: nsys 2022.4 writes the first page last, over zeros."""
    with path.open("rb") as file:
        if any(file.read(512)):
            return False
        begin = file.read(1 << 22)
    return b"CREATE TABLE" in begin and any(mark.encode() in begin for mark in (*_MARKS, _ACTIVITY))


def _is_ours(table: str) -> bool:
    return table in _MARKS or table.startswith(_ACTIVITY)


def parse(path: Path) -> tables.Tables:
    try:
        return _parse(path)
    except _Damaged as damage:
        raise errors.Refused(path, str(damage), _EXPORT_AGAIN) from damage
    except FAILURES as failure:
        reason = "".join(c if c.isprintable() else "?" for c in " ".join(str(failure).split()))
        raise errors.Refused(path, f"damaged or cut short, cannot be read ({reason[:200]})", _EXPORT_AGAIN) from failure


def _parse(path: Path) -> tables.Tables:
    for leftover in ("-journal", "-wal"):
        beside = path.with_name(path.name + leftover)
        if beside.is_file() and beside.stat().st_size:
            raise _Damaged(f"its export was interrupted, or still runs: {beside.name} lies beside it")
    if path.is_file() and _lacks_first_page(path):
        raise _Damaged("its export was interrupted: the first page, which is written last, is empty")
    export: Source = ParquetFolder(path) if path.is_dir() else Database(path)
    if not export.columns("StringIds"):
        raise _Damaged("its export was interrupted: the table StringIds with all names is missing")
    strings = Strings(export, "StringIds", "id", "value")
    work, calls = _read_both(export, strings)
    ranges, notes = _read_ranges(export, strings, _latest(work, calls))
    launches = _launches(work, calls)
    notes += [*_notes_of_work(work, launches), *_notes_of_calls(work, calls), *_diagnostics(export, work)]
    # With ten million kernels a gigabyte that nothing needs any more, here and behind the placing.
    del calls
    placed = attribution.attribute(ranges, launches)
    launches = replace(launches, start=_NOTHING, end=_NOTHING, thread=_NOTHING)
    range_rows = range_sums.summarise(ranges, launches, placed, work.start, work.end)
    range_rows["process"] = pd.array(_pids(range_rows["process"]), dtype="Int64")
    metrics = overlap.metrics(_kernels(work, placed), overlap.iterations(range_rows))
    frame = _launch_frame(work, placed)
    return tables.Tables(
        kernels=kernels.annotate(tables.summarise(frame)).assign(profiler="nsys"),
        ranges=tables.frame(tables.RANGES, range_rows).assign(profiler="nsys"),
        metrics=tables.frame(tables.METRICS, metrics).assign(profiler="nsys"),
        origin=_origin(export, work, frame, placed, tuple(notes)),
    )


def _read_both(export: Source, strings: Strings) -> tuple[_Work, _Calls]:
    """The two large tables at once: they take about equally long, and their reader needs no interpreter lock."""
    with ThreadPoolExecutor(max_workers=1) as helper:
        calls = helper.submit(_read_calls, export, strings)
        work = _read_work(export, strings)
        return work, calls.result()


# --- what ran on the GPU, and the calls that launched it -------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """Everything that ran on the GPU, one row an activity, in ns; ``name`` indexes ``names``, ``kind`` tables.KINDS."""

    kind: npt.NDArray[np.int8]
    start: Int64s
    end: Int64s
    process: Int64s
    device: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.uint32]
    name: npt.NDArray[np.int32]
    names: list[str]
    dropped: int

    def is_kind(self, *kinds: str) -> npt.NDArray[np.bool_]:
        return np.isin(self.kind, [tables.KINDS.index(kind) for kind in kinds])


@dataclass(frozen=True)
class _Calls:
    """CUDA API calls; ``graphs`` are the rows of those that launch graphs, ``failed`` counts by (name, result)."""

    start: Int64s
    end: Int64s
    thread: Int64s
    correlation: npt.NDArray[np.uint32]
    graphs: npt.NDArray[np.intp]
    failed: Counter[tuple[str, int]]

    @property
    def process(self) -> Int64s:
        return self.thread & ~_THREAD_BITS


def _read_work(export: Source, strings: Strings) -> _Work:
    parts = [_read_activity(export, table, kind, strings) for table, kind in _KINDS.items()]
    names = list(dict.fromkeys(name for _, labels in parts for name in labels))
    number = {name: code for code, name in enumerate(names)}
    for columns, labels in parts:
        columns["name"] = np.array([number[label] for label in labels], dtype=np.int32)[columns["name"]]
    # Emptied while it is joined: with ten million kernels two copies of everything would not fit.
    joined = {key: np.concatenate([columns.pop(key) for columns, _ in parts]) for key in list(parts[0][0])}
    sane = (joined["start"] != _NULL) & (joined["end"] > joined["start"])
    dropped = int(len(sane) - sane.sum())
    if dropped:
        joined = {key: values[sane] for key, values in joined.items()}
    start, end = joined["start"], joined["end"]
    if len(start) and int(end.max()) - int(start.min()) > _LONGEST_NS:
        raise _Damaged("its times span more than 100 days: the file is damaged")
    return _Work(**joined, names=names, dropped=dropped)


def _read_activity(
    export: Source, table: str, kind: str, strings: Strings
) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Columns of one table of activities, and the names that its column ``name`` indexes."""
    named_by = {"kernel": ("demangledName", "shortName", "mangledName"), "graph": ("graphId", "graphExecId")}
    candidates = named_by.get(kind, ("copyKind",) if kind == "memcpy" else ())
    label = next((name for name in candidates if name in export.columns(_ACTIVITY + table)), "label")
    columns = read_numbers(
        export,
        _ACTIVITY + table,
        {
            "start": np.int64, "end": np.int64, "globalPid": np.int64, "deviceId": np.int32, "streamId": np.int32,
            "correlationId": np.uint32, label: np.int32,
        },
    )  # fmt: skip
    codes, labels = pd.factorize(columns.pop(label))
    renamed = {"globalPid": "process", "deviceId": "device", "streamId": "stream", "correlationId": "correlation"}
    columns = {renamed.get(name, name): values for name, values in columns.items()}
    columns["kind"] = np.full(len(codes), tables.KINDS.index(kind), dtype=np.int8)
    columns["name"] = codes.astype(np.int32)
    return columns, _names_of(kind, labels, strings)


def _names_of(kind: str, labels: npt.NDArray[Any], strings: Strings) -> list[str]:
    if kind == "kernel":
        found = strings.of(labels)
        if found and not any(found):
            raise _Damaged("its export was interrupted: no kernel's name is in the table StringIds")
        return [name or _UNNAMED for name in found]
    if kind == "graph":
        # Ids are given in the order of creation, so they name the same graph in the next run of the program.
        return [f"[CUDA graph {label}]" for label in labels]
    if kind == "memcpy":
        return [f"[CUDA memcpy {_COPIES.get(int(label), 'Unknown')}]" for label in labels]
    return ["[CUDA memset]"] * len(labels)


def _read_calls(export: Source, strings: Strings) -> _Calls:
    columns = read_numbers(
        export,
        _ACTIVITY + "RUNTIME",
        {
            "start": np.int64, "end": np.int64, "globalTid": np.int64, "correlationId": np.uint32,
            "nameId": np.int32, "returnValue": np.int32,
        },
    )  # fmt: skip
    graphs = np.flatnonzero(np.isin(columns["nameId"], strings.ids_with("GraphLaunch")))
    wrong = np.flatnonzero(columns["returnValue"])
    wrong = wrong[~np.isin(columns["returnValue"][wrong], [*_HARMLESS_RESULTS, np.iinfo(np.int32).min])]
    names = strings.of(columns["nameId"][wrong])
    failed = Counter((_call_name(n), int(r)) for n, r in zip(names, columns["returnValue"][wrong], strict=True))
    return _Calls(columns["start"], columns["end"], columns["globalTid"], columns["correlationId"], graphs, failed)


def _call_name(name: str | None) -> str:
    """``cudaLaunchKernel_v7000`` without the version of its signature."""
    return re.sub(r"_v\d+$", "", name or "a call")


def _latest(work: _Work, calls: _Calls) -> int:
    return max(int(work.end.max(initial=_NULL)), int(calls.end.max(initial=_NULL)))


def _launches(work: _Work, calls: _Calls) -> attribution.Launches:
    """The call behind each activity: the same process and correlation id, for each process counts its own."""
    call = _join(work, calls)
    known = np.flatnonzero(call >= 0)
    start, end = np.zeros(len(call), np.int64), np.zeros(len(call), np.int64)
    thread = np.full(len(call), attribution.NO_THREAD)
    for column, values in ((start, calls.start), (end, calls.end), (thread, calls.thread)):
        column[known] = values[call[known]]
    return attribution.Launches(start, end, thread, work.process, work.is_kind("kernel", "graph"))


def _join(work: _Work, calls: _Calls) -> npt.NDArray[np.int64]:
    """For each activity the row of its call, -1 where the file has none."""
    call = np.full(len(work.start), -1, dtype=np.int64)
    of_calls = dict(groups(calls.process))
    for process, rows in groups(work.process):
        if process in of_calls:
            call[rows] = _find(work.correlation[rows], calls, of_calls[process])
    call[work.correlation == 0] = -1
    return call


def _find(wanted: npt.NDArray[np.uint32], calls: _Calls, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Rows of one process's calls by correlation id; of several with one id that which began first."""
    rows = rows[np.argsort(-calls.start[rows], kind="stable")]
    ids = calls.correlation[rows].astype(np.int64)
    low, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if span <= 8 * (len(ids) + len(wanted)):
        # CUPTI counts upwards, so that a table with a place for each id is small.
        place = np.full(span + 1, -1, dtype=np.int64)
        place[ids - low] = rows
        at = wanted.astype(np.int64) - low
        return place[np.where((at >= 0) & (at < span), at, span)]
    known, last = np.unique(ids[::-1], return_index=True)
    at = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[at] == wanted, rows[::-1][last[at]], -1)


# --- ranges ----------------------------------------------------------------------------------------------------------


def _read_ranges(export: Source, strings: Strings, latest: int) -> tuple[attribution.Ranges, list[str]]:
    """NVTX ranges of single threads, and what a reader must know of the others."""
    events = pd.DataFrame(
        read_numbers(
            export,
            "NVTX_EVENTS",
            {
                "start": np.int64, "end": np.int64, "globalTid": np.int64, "endGlobalTid": np.int64,
                "eventType": np.int32, "domainId": np.int32, "textId": np.int32,
            },
        )
    )  # fmt: skip
    text, texts = read_texts(export, "NVTX_EVENTS", "text", len(events))
    events["name"], names = _range_names(events, text, texts, strings)
    found = events[events["eventType"].isin(_RANGE_EVENTS)]
    notes = []
    if found.empty and events["eventType"].isin(_DOMAIN_EVENTS).any():
        notes.append(
            "NVTX domains were made but no range was recorded: nsys 2022 and 2023 do not see the Python package nvtx "
            "from 0.2.12 on; annotate with torch.cuda.nvtx, or install nvtx<0.2.12"
        )
    sane = (found["start"] > -_LATEST_NS) & (found["end"] < _LATEST_NS)
    unended = sane & (found["end"] == _NULL)
    found = found.assign(end=found["end"].where(~unended, max(latest, int(found["start"].max() if len(found) else 0))))
    sane &= found["end"] >= found["start"]
    one_thread = found["endGlobalTid"].isin([_NULL]) | (found["endGlobalTid"] == found["globalTid"])
    notes += _counted(int((unended & sane).sum()), "ranges have no end and are taken to last until the capture's end")
    notes += _counted(int((~sane).sum()), "ranges end before they begin and were left out")
    notes += _counted(
        int((sane & ~one_thread).sum()),
        "ranges end in another thread than they began in; they belong to no thread and were left out, as nsys does",
    )
    found = found[sane & one_thread]
    thread = found["globalTid"].to_numpy()
    ranges = attribution.Ranges(
        start=found["start"].to_numpy(),
        end=found["end"].to_numpy(),
        thread=thread,
        process=thread & ~_THREAD_BITS,
        name=found["name"].to_numpy(),
        names=names,
    )
    return ranges, notes


def _range_names(
    events: pd.DataFrame, text: npt.NDArray[np.int64], texts: list[str], strings: Strings
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """(number of each event's name, the names): `domain:name` outside the default domain, as nsys prints it."""
    process = events["globalTid"].to_numpy() & ~_THREAD_BITS
    text_id, domain = events["textId"].to_numpy(), events["domainId"].to_numpy()
    codes, firsts = combine(text, text_id, domain, process)
    registered = strings.of(text_id[firsts])
    plain = [texts[t] or r or "" for t, r in zip(text[firsts].tolist(), registered, strict=True)]
    created = np.flatnonzero(events["eventType"].to_numpy() == _DOMAIN_EVENTS[0])
    domains = {(process[i], domain[i]): plain[codes[i]] for i in created}
    names: dict[str, int] = {}
    number = []
    for i, name in zip(firsts, plain, strict=True):
        prefix = domains.get((process[i], domain[i]), "") if domain[i] > 0 else ""
        number.append(names.setdefault(_range_name(prefix, name), len(names)))
    return np.array(number, dtype=np.int32)[codes], list(names)


def _range_name(domain: str, name: str) -> str:
    if name.startswith(tables.CASE_PREFIX):
        return name
    return f"{domain}:{tables.range_name(name)}" if domain else tables.range_name(name)


# --- the tables ------------------------------------------------------------------------------------------------------


def _launch_frame(work: _Work, placed: attribution.Attribution) -> pd.DataFrame:
    """One row a launch, as ``tables.summarise`` takes it."""
    path, paths = pd.factorize(placed.path)
    cases, phases = placed.cases_and_phases(paths)
    process, processes = pd.factorize(work.process)
    device, devices = pd.factorize(work.device)
    stream, streams = pd.factorize(work.stream)
    return pd.DataFrame(
        {
            "case": _labelled(path, cases),
            "process": _labelled(process, _pids(processes)),
            "device": _labelled(device, _ordinals(devices)),
            "stream": _labelled(stream, _ordinals(streams)),
            "phase": _labelled(path, phases),
            "kind": _labelled(work.kind, tables.KINDS),
            "kernel": _labelled(work.name, work.names),
            "duration_ns": work.end - work.start,
        },
        copy=False,
    )


def _kernels(work: _Work, placed: attribution.Attribution) -> overlap.Kernels:
    communicates = overlap.communicate(kernels.classify(name)[0] for name in work.names)
    # Most files have no communication, and with ten million kernels each column is 80 MB.
    rows = np.flatnonzero(work.is_kind("kernel", "graph")) if communicates.any() else _NOTHING
    path, paths = pd.factorize(placed.path[rows])
    cases, _ = placed.cases_and_phases(paths)
    names, process = work.name[rows], work.process[rows]
    return overlap.Kernels(
        *overlap.numbered(path, cases),
        np.where(process == _NULL, -1, (process >> 24) & _THREAD_BITS),
        work.device[rows],
        work.start[rows],
        work.end[rows],
        communicates[names] & (work.kind[rows] == tables.KINDS.index("kernel")),
    )


def _labelled(codes: npt.NDArray[Any], labels: Sequence[Any]) -> pd.Categorical[Any]:
    """A categorical from codes whose labels may repeat or be missing."""
    code, categories = pd.factorize(np.array(labels, dtype=object))
    return pd.Categorical.from_codes(code.astype(np.int32)[codes], pd.Index(categories))


def _pids(processes: Any) -> list[int | None]:
    return [None if p == _NULL else (int(p) >> 24) & _THREAD_BITS for p in processes]


def _ordinals(ids: Any) -> list[int | None]:
    return [int(i) if i >= 0 else None for i in ids]


def _origin(
    export: Source, work: _Work, frame: pd.DataFrame, placed: attribution.Attribution, notes: tuple[str, ...]
) -> tables.Origin:
    is_kernel = work.is_kind("kernel")
    duration = frame["duration_ns"].to_numpy()
    in_case = is_kernel & (frame["case"].to_numpy() != "")
    total, attributed = int(duration[is_kernel].sum()), int(duration[in_case].sum())
    meta = read_lookup(export, "META_DATA_EXPORT", "name", "value")
    meta |= read_lookup(export, "EXPORT_META_DATA", "name", "value")
    return tables.Origin(
        format=f"nsys export, schema {meta.get('EXPORT_SCHEMA_VERSION') or 'without a version (before 2022)'}",
        tool="nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION", ""),
        launches=int(is_kernel.sum()),
        total_ns=float(total),
        attributed_ns=float(attributed),
        unattributed_ns=float(duration[is_kernel & ~in_case].sum()),
        attribution=_attribution_in_words(placed),
        device=_device(export, work),
        notes=notes,
    )


def _attribution_in_words(placed: attribution.Attribution) -> str:
    if not len(placed.range_path):
        return "none: the file holds no ranges"
    words = "by the thread that launched (NVTX ranges)"
    if placed.by_time.any():
        words += f"; {placed.by_time.sum()} of {len(placed.path)} launches by time, inside a range of another thread"
    return words


def _device(export: Source, work: _Work) -> str:
    """Names of the GPUs that ran something; empty where the file does not say."""
    _, firsts = combine(work.process, work.device)
    ran = {(str(pid), str(work.device[i])) for pid, i in zip(_pids(work.process[firsts]), firsts, strict=True)}
    by_id = read_lookup(export, "TARGET_INFO_GPU", "id", "name")
    # `id` numbers the GPUs by bus, the kernels' deviceId is CUDA's ordinal: on a four-GPU node they may run in opposite
    # order, and each process may see another choice of them.
    mapped = read_rows(export, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    names = {by_id.get(gpu, "") for pid, ordinal, gpu in mapped if (pid, ordinal) in ran}
    by_ordinal = read_lookup(export, "TARGET_INFO_GPU", "cuDevice", "name")
    by_ordinal |= read_lookup(export, "TARGET_INFO_CUDA_GPU", "deviceId", "name")
    names = names or {by_ordinal.get(ordinal, "") for _, ordinal in ran}
    installed = {name for (name,) in read_rows(export, "TARGET_INFO_GPU", "name")}
    return ", ".join(sorted(names - {""}) or (installed if ran and len(installed) == 1 else []))


# --- what a reader must know -----------------------------------------------------------------------------------------


def _counted(count: int, what: str) -> list[str]:
    return [f"{count} {what}"] if count else []


def _milliseconds(work: _Work, rows: npt.NDArray[np.bool_]) -> str:
    return f"{(work.end[rows] - work.start[rows]).sum() / 1e6:.3f} ms"


def _notes_of_work(work: _Work, launches: attribution.Launches) -> list[str]:
    kernel, graph = work.is_kind("kernel"), work.is_kind("graph")
    notes = [] if kernel.any() else ["no kernels in this file"]
    if graph.any():
        notes.append(
            f"{graph.sum()} records are whole CUDA graphs ({_milliseconds(work, graph)}) and hide the "
            "kernels in them; record with --cuda-graph-trace=node to see these"
        )
    lost = kernel & (launches.thread == attribution.NO_THREAD)
    notes += _counted(
        int(lost.sum()),
        f"kernels ({_milliseconds(work, lost)}) have no launch call in the file and lie in no range: they "
        "were launched before the capture began",
    )
    notes += _counted(work.dropped, "records end before they begin, or have no time, and were left out")
    unnamed = work.name == work.names.index(_UNNAMED) if _UNNAMED in work.names else np.zeros(1)
    return notes + _counted(int(unnamed.sum()), "kernels have no name in the file")


def _notes_of_calls(work: _Work, calls: _Calls) -> list[str]:
    called = pd.MultiIndex.from_arrays([calls.process[calls.graphs], calls.correlation[calls.graphs]])
    notes = []
    if len(called):
        near = np.isin(work.correlation, calls.correlation[calls.graphs])
        lost = ~called.isin(pd.MultiIndex.from_arrays([work.process[near], work.correlation[near]]))
        notes += _counted(
            int(lost.sum()),
            "launches of CUDA graphs left no kernel in the file (nsys before 2024 does not export whole graphs), so "
            "their GPU time is missing; record with --cuda-graph-trace=node",
        )
    if calls.failed:
        worst = ", ".join(f"{name} returned {result} ({n}x)" for (name, result), n in calls.failed.most_common(3))
        notes.append(f"{sum(calls.failed.values())} CUDA calls failed: {worst}")
    return notes


def _diagnostics(export: Source, work: _Work) -> list[str]:
    """Warnings and errors of nsys about CUDA and NVTX; those about CPU sampling say nothing of kernels.

    Each helper process without CUDA gives copies of its own ("No CUDA events collected", "CUDA profiling might have not
    been started correctly"): beside a process that did work they say nothing.
    """
    texts: Counter[str] = Counter()
    at_work = {str(process) for process in np.unique(work.process)}
    whose = [name for name in ("globalPid",) if name in export.columns("DIAGNOSTIC_EVENT")]
    for severity, text, *of in read_rows(export, "DIAGNOSTIC_EVENT", "severity", "text", *whose):
        line, process = " ".join(text.split()), "".join(of)
        helper = process.isdigit() and process != "0" and process not in at_work
        idle = bool(at_work) and (helper or line.startswith("No "))
        if severity in ("2", "3") and re.search(r"CUDA|CUPTI|NVTX|GPU|lost|dropped", line) and not idle:
            texts[line[:200]] += 1
    return [f"nsys: {text}" + (f" ({count}x)" if count > 1 else "") for text, count in texts.items()]
