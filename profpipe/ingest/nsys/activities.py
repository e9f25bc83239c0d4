"""Read the GPU's work and the CUDA calls of an nsys export as columns of numbers."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest import attribution, bounds, launch_tables, operations
from profpipe.ingest.groupby import Int64s, combine, factorize, groups
from profpipe.ingest.nsys.columns import Source, Strings, null, read_numbers
from profpipe.ingest.steps import reconcile
from profpipe.results import schema

PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
NULL: Final = null(np.int64)
#: The thread in the id of a thread. The 24 bits above it are the pid, in the ids of processes too.
THREAD_BITS: Final = 0xFFFFFF

_KINDS: Final = {"KERNEL": "kernel", "GRAPH_TRACE": "graph", "MEMCPY": "memcpy", "MEMSET": "memset"}
_GRID: Final = ("gridX", "gridY", "gridZ")
#: ENUM_CUDA_MEMCPY_OPER, in the spelling of nsys 2023 and later.
_COPIES: Final = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
#: Not found, not ready, peer access already enabled: programs ask for these answers.
_HARMLESS_RESULTS: Final = (500, 600, 704)
#: Longer captures are damaged: sums and differences of their times would overflow.
_LONGEST_NS: Final = 2**53
UNNAMED: Final = "(unnamed)"


class Damaged(Exception):
    """The export cannot be read; the message says what is wrong with it."""


def pids(ids: Int64s) -> Int64s:
    """Return the pid in each id of a process, -1 where the id is NULL."""
    return np.where(ids == NULL, -1, (ids >> 24) & THREAD_BITS)


@dataclass(frozen=True)
class Work:
    """Activities of the GPU, one row each, times in ns; ``name`` indexes ``names``, ``kind`` indexes schema.KINDS.

    ``grid`` is a number for the grid of a kernel, 0 for what is no kernel.
    ``dropped`` records had an impossible time, ``folded`` names are one (``bounds.OTHER_KERNELS``). ``late_ends`` are
    the kernels whose end was corrected, and the ns removed from them.
    """

    kind: npt.NDArray[np.int8]
    start: Int64s
    end: Int64s
    process: Int64s
    device: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.uint32]
    grid: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    names: list[str]
    dropped: int
    folded: int = 0
    late_ends: tuple[npt.NDArray[np.intp], Int64s] = (np.zeros(0, np.intp), np.zeros(0, np.int64))

    def is_kind(self, *kinds: str) -> npt.NDArray[np.bool_]:
        return np.isin(self.kind, [schema.KINDS.index(kind) for kind in kinds])


@dataclass(frozen=True)
class Calls:
    """CUDA API calls, times in ns; ``failed``: counts by (name, result).

    ``graphs`` are the rows that launch graphs, ``launches`` those that launch a kernel, ``waits`` those in which the
    host waits for the GPU; ``wait_name`` indexes their ``wait_names``.
    """

    start: Int64s
    end: Int64s
    thread: Int64s
    correlation: npt.NDArray[np.uint32]
    graphs: npt.NDArray[np.intp]
    launches: npt.NDArray[np.intp]
    waits: npt.NDArray[np.intp]
    wait_name: npt.NDArray[np.intp]
    wait_names: list[str]
    failed: Counter[tuple[str, int]]

    @property
    def process(self) -> Int64s:
        return self.thread & ~THREAD_BITS


def read(export: Source, strings: Strings) -> tuple[Work, Calls]:
    """Read the two large tables at the same time: their reader needs no interpreter lock."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        calls = executor.submit(_read_calls, export, strings)
        work = _read_work(export, strings)
        return work, calls.result()


def _read_work(export: Source, strings: Strings) -> Work:
    parts = [_read_activity(export, table, kind, strings) for table, kind in _KINDS.items()]
    names = list(dict.fromkeys(name for _, labels in parts for name in labels))
    number = {name: code for code, name in enumerate(names)}
    for columns, labels in parts:
        columns["name"] = np.array([number[label] for label in labels], dtype=np.int32)[columns["name"]]
    filled = [columns for columns, _ in parts if len(columns["start"])] or [parts[0][0]]
    # Each column is freed once it is joined: with ten million kernels two copies of all of them would not fit.
    joined = {}
    for key in list(filled[0]):
        first, *others = (columns.pop(key) for columns in filled)
        joined[key] = np.concatenate([first, *others]) if others else first
    sane = _sane(joined["start"], joined["end"])
    dropped = int(len(sane) - sane.sum())
    if dropped:
        joined = {key: values[sane] for key, values in joined.items()}
    start, end = joined["start"], joined["end"]
    if len(start) and int(end.max()) - int(start.min()) > _LONGEST_NS:
        raise Damaged("its times span more than 100 days: the file is damaged")
    late_ends = _correct_late_ends(joined)
    joined["name"], names, folded = bounds.fold_names(joined["name"], names, end - start)
    return Work(**joined, names=names, dropped=dropped, folded=folded, late_ends=late_ends)


def _correct_late_ends(columns: dict[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], Int64s]:
    """Correct the ends of kernels that are recorded too late, in place; return their rows and the ns removed."""
    rows = np.flatnonzero(columns["kind"] == schema.KINDS.index("kernel"))
    place = [columns[name][rows] for name in ("process", "device", "stream")]
    end = columns["end"][rows]
    late, removed = reconcile.clip_late_ends(
        columns["start"][rows], end, place, columns["correlation"][rows].astype(np.int64)
    )
    columns["end"][rows[late]] = end[late]
    return rows[late], removed


def _sane(start: Int64s, end: Int64s) -> npt.NDArray[np.bool_]:
    return (start != NULL) & (end > start)


def read_shapes(export: Source) -> pd.DataFrame | None:
    """Return ``grid`` and ``block`` (``32x2x16``) of the kernels in ``Work``, None where the export lacks them."""
    table, sizes = f"{PREFIX}KERNEL", [f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"]
    if not set(sizes) <= set(export.columns(table)):
        return None
    columns = read_numbers(export, table, dict.fromkeys(("start", "end", *sizes), np.int64))
    sane = _sane(columns["start"], columns["end"])
    code, firsts = combine(*(columns[size][sane] for size in sizes))
    # One text for each shape: captures have millions of launches and dozens of shapes.
    distinct = np.stack([columns[size][sane][firsts] for size in sizes], axis=1).tolist()
    texts = {"grid": [launch_tables.shape(row[:3]) for row in distinct]}
    texts["block"] = [launch_tables.shape(row[3:]) for row in distinct]
    return pd.DataFrame({what: np.array(values, dtype=object)[code] for what, values in texts.items()})


def read_graphs(export: Source, work: Work) -> Int64s | None:
    """Return a number for the graph of each row of ``work``, negative for others; None where the file has no graphs."""
    table = f"{PREFIX}KERNEL"
    name = next((name for name in ("graphNodeId", "graphId") if name in export.columns(table)), None)
    if name is None:
        return None
    columns = read_numbers(export, table, {"start": np.int64, "end": np.int64, name: np.int64})
    graph = columns[name][_sane(columns["start"], columns["end"])]
    # The number of a node has that of its graph above bit 32.
    graph = np.where(graph > 0, graph >> (32 if name == "graphNodeId" else 0), -1)
    found = np.full(len(work.start), -1, dtype=np.int64)
    found[work.is_kind("kernel")] = graph
    return found


def read_sizes(export: Source, work: Work) -> Int64s:
    """Return the bytes of each row of ``work`` that copies or sets memory, 0 for the others and where unknown."""
    found = np.zeros(len(work.start), dtype=np.int64)
    for table, kind in _KINDS.items():
        if kind in ("memcpy", "memset"):
            # Read with the times, which say what is in ``work`` and count the rows of a table without sizes.
            columns = read_numbers(export, PREFIX + table, dict.fromkeys(("start", "end", "bytes"), np.int64))
            found[work.is_kind(kind)] = columns["bytes"][_sane(columns["start"], columns["end"])]
    return np.maximum(found, 0)


def _read_activity(
    export: Source, table: str, kind: str, strings: Strings
) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Return the columns of one table of activities, and the names that its column ``name`` indexes."""
    named_by = {"kernel": ("demangledName", "shortName", "mangledName"), "graph": ("graphId", "graphExecId")}
    candidates = named_by.get(kind, ("copyKind",) if kind == "memcpy" else ())
    label, *others = [name for name in candidates if name in export.columns(PREFIX + table)] or ["label"]
    columns = read_numbers(
        export,
        PREFIX + table,
        {
            "start": np.int64, "end": np.int64, "globalPid": np.int64, "deviceId": np.int32, "streamId": np.int32,
            "correlationId": np.uint32, label: np.int32, **({_GRID: np.int64} if kind == "kernel" else {}),
        },
    )  # fmt: skip
    codes, labels = pd.factorize(_first_known(export, PREFIX + table, columns.pop(label), others))
    renamed = {"globalPid": "process", "deviceId": "device", "streamId": "stream", "correlationId": "correlation"}
    columns = {renamed.get(name, name): values for name, values in columns.items()}
    grid = factorize(columns.pop(_GRID))[0] if _GRID in columns else np.zeros(len(codes))
    columns["grid"] = grid.astype(np.int32)
    columns["kind"] = np.full(len(codes), schema.KINDS.index(kind), dtype=np.int8)
    columns["name"] = codes.astype(np.int32)
    return columns, _names_of(kind, labels, strings)


def _first_known(export: Source, table: str, labels: npt.NDArray[Any], others: list[str]) -> npt.NDArray[Any]:
    """Fill the missing ``labels`` from the first of the columns ``others`` that has one."""
    for name in others:
        unknown = labels == null(np.int32)
        if not unknown.any():
            break
        # Read with the start: SQLite may give a column that has an index in the order of that index.
        columns = read_numbers(export, table, {"start": np.int64, name: np.int32})
        labels = np.where(unknown, columns[name], labels)
    return labels


def _names_of(kind: str, labels: npt.NDArray[Any], strings: Strings) -> list[str]:
    if kind == "kernel":
        found = strings.of(labels)
        if found and not any(found):
            raise Damaged("its export was interrupted: no kernel's name is in the table StringIds")
        return [name or UNNAMED for name in found]
    if kind == "graph":
        # Ids count in the order of creation, so an id means the same graph in the next run of the program.
        return ["[CUDA graph]" if label == null(np.int32) else f"[CUDA graph {label}]" for label in labels]
    if kind == "memcpy":
        return [f"[CUDA memcpy {_COPIES.get(int(label), 'Unknown')}]" for label in labels]
    return ["[CUDA memset]"] * len(labels)


def _read_calls(export: Source, strings: Strings) -> Calls:
    columns = read_numbers(
        export,
        PREFIX + "RUNTIME",
        {
            "start": np.int64, "end": np.int64, "globalTid": np.int64, "correlationId": np.uint32,
            "nameId": np.int32, "returnValue": np.int32,
        },
    )  # fmt: skip
    used = pd.unique(columns["nameId"])
    used_names = [name or "" for name in strings.of(used)]
    graphs = _calls_named(columns["nameId"], used, ["GraphLaunch" in name for name in used_names])
    launches = _launching(columns, used, used_names)
    waits = _calls_named(columns["nameId"], used, [operations.is_waiting_call(name) for name in used_names])
    wrong = np.flatnonzero(columns["returnValue"])
    wrong = wrong[~np.isin(columns["returnValue"][wrong], [*_HARMLESS_RESULTS, np.iinfo(np.int32).min])]
    names = strings.of(columns["nameId"][wrong])
    plain = [_plain_call(name) for name in names]
    failed = Counter((name, int(r)) for name, r in zip(plain, columns["returnValue"][wrong], strict=True))
    wait_name, wait_ids = pd.factorize(columns["nameId"][waits])
    wait_names = [_plain_call(name) for name in strings.of(wait_ids)]
    times = columns["start"], columns["end"], columns["globalTid"], columns["correlationId"]
    return Calls(*times, graphs, launches, waits, wait_name, wait_names, failed)


def _launching(columns: dict[Any, npt.NDArray[Any]], used: npt.NDArray[Any], names: list[str]) -> npt.NDArray[np.intp]:
    """Return the rows of the calls that launched a kernel, without those that failed or built a graph."""

    def named(pattern: str) -> npt.NDArray[np.intp]:
        return _calls_named(columns["nameId"], used, [re.match(pattern, name) is not None for name in names])

    rows = named(r"(cuda|cu)Launch\w*Kernel")
    rows = rows[columns["returnValue"][rows] <= 0]
    marks = (named(rf"(cuda|cu)Stream{what}Capture") for what in ("Begin", "End"))
    thread, start = columns["globalTid"], columns["start"]
    begins, ends = ((thread[each], start[each]) for each in marks)
    return rows[~reconcile.are_captured(thread[rows], start[rows], begins, ends)]


def read_call_names(export: Source, strings: Strings) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Return the number of each call's name, in the order of ``Calls``, and the names."""
    # Read with the start, since SQLite may give a column that has an index in the order of that index.
    columns = read_numbers(export, PREFIX + "RUNTIME", {"start": np.int64, "nameId": np.int32})
    code, ids = pd.factorize(columns["nameId"])
    return code, [_plain_call(name) for name in strings.of(ids)]


def _plain_call(name: str | None) -> str:
    """Return the name without the version of the signature: ``cudaLaunchKernel`` of ``cudaLaunchKernel_v7000``."""
    return re.sub(r"_v\d+$", "", name or "a call")


def _calls_named(name_ids: npt.NDArray[Any], used: npt.NDArray[Any], chosen: list[bool]) -> npt.NDArray[np.intp]:
    """Return the rows of the calls whose names are chosen among those that are ``used``."""
    return np.flatnonzero(np.isin(name_ids, used[np.array(chosen, dtype=bool)]))


def launches(work: Work, calls: Calls) -> attribution.Launches:
    """Return the call behind each activity; without one its start is ``operations.UNKNOWN``."""
    call = join(work, calls)
    unknown = np.flatnonzero(call < 0)

    def of_calls(values: Int64s, missing: int) -> Int64s:
        found = values[call] if len(values) else np.empty(len(call), np.int64)
        found[unknown] = missing
        return found

    start, end = of_calls(calls.start, operations.UNKNOWN), of_calls(calls.end, 0)
    thread = of_calls(calls.thread, attribution.NO_THREAD)
    return attribution.Launches(start, end, thread, work.process, work.is_kind("kernel", "graph"))


def join(work: Work, calls: Calls) -> npt.NDArray[np.int64]:
    """Return the row of each activity's call, -1 where the file has none.

    They are joined by process and correlation id: ids are unique in a process only.
    """
    call = np.full(len(work.start), -1, dtype=np.int64)
    of_calls = dict(groups(calls.process))
    for process, rows in groups(work.process):
        if process in of_calls:
            call[rows] = _find(work.correlation[rows], calls, of_calls[process])
    call[work.correlation == 0] = -1
    return call


def _find(wanted: npt.NDArray[np.uint32], calls: Calls, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Find the rows of one process's calls by correlation id; of several with one id the first to begin."""
    rows = rows[np.argsort(-calls.start[rows], kind="stable")]
    ids = calls.correlation[rows].astype(np.int64)
    low, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if span <= 8 * (len(ids) + len(wanted)):
        # CUPTI counts upwards, so a table with a place for each id is small.
        place = np.full(span + 1, -1, dtype=np.int64)
        place[ids - low] = rows
        at = wanted.astype(np.int64) - low
        return place[np.where((at >= 0) & (at < span), at, span)]
    known, last = np.unique(ids[::-1], return_index=True)
    at = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[at] == wanted, rows[::-1][last[at]], -1)
