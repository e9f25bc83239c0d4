"""Read the GPU events, calls, operators and ranges of a Chrome trace as columns of numbers.

The trace is read event by event: a million of them take a gigabyte as Python objects.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import bounds, foreign_files, json_stream, launch_tables
from profpipe.ingest.torch import xla
from profpipe.results import schema

MISSING: Final = float("nan")
#: Ids of processes and threads are below it. As a double, 2**63 - 1 does not fit into 64 bits.
_LARGEST_ID: Final = 2**62
#: Ids of the ranks of a merged trace are made unique by it. CUPTI counts ids in 32 bits, and a double has 53.
_IDS_OF_A_RANK: Final = 2**36
#: A process of a merged trace: its rank before or after the number that the process has in the trace of its rank.
_OF_RANK: Final = re.compile(r"(?P<before>.*\D)(?P<pid>\d+)|(?P<own>\d+)(?P<after>\D.*)")
#: Microseconds (a year): events further apart are damaged.
_FOREVER: Final = 3.2e13

KINDS: Final = ("kernel", "memcpy", "memset")
#: Categories of Kineto, in lower case: torch 1.8 capitalises them and has no "gpu_" before its copies. Left out are
#: gpu_user_annotation, which spans kernels of the trace, flows, and the Python stack.
_SORTS: Final = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset",
    "cpu_op": "op", "operator": "op", "user_annotation": "range",
    "cuda_runtime": "call", "runtime": "call", "cuda_driver": "call", "driver": "call",
}  # fmt: skip
_RECORD_AGAIN = "Record the trace again and let export_chrome_trace return before the process ends."

_FIELDS: Final = {
    "gpu": ("name", "kind", "device", "stream", "start", "dur", "correlation", "external", "shape", "bytes", "graph"),
    "call": ("name", "thread", "start", "dur", "correlation", "external"),
    "op": ("name", "thread", "start", "dur", "external"),
    "range": ("name", "thread", "start", "dur", "external"),
}


@dataclass
class Trace:
    """Events as flat columns: names and threads are codes, times microseconds.

    Times count from the epoch until ``settle`` moves their origin.
    """

    columns: dict[str, array[float]] = field(default_factory=lambda: {sort: array("d") for sort in _FIELDS})
    names: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    #: (grid, block) of the kernels, each ``32x2x16``; the column ``shape`` numbers them.
    shapes: dict[tuple[str, str], int] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    #: The ranks of a merged trace, by what its processes are named.
    ranks: dict[str, int] = field(default_factory=dict)
    #: What the metadata says of devices and hosts, in a trace of XLA's profiler.
    rows: xla.Rows = field(default_factory=xla.Rows)
    dropped: int = 0
    folded: int = 0
    #: ns to add to the times for the clock of the machine, which traces of several processes share.
    offset_ns: int = 0

    def add(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        if category is None or event.get("ph") != "X":
            if event.get("ph") == "M":
                self.rows.note(event)
            return
        sort = _SORTS.get(category) or _SORTS.get(str(category).lower())
        if sort is None:
            return
        if category == "Operator" and event["name"].startswith(("ProfilerStep#", schema.CASE_PREFIX)):
            sort = "range"  # torch 1.8 has no category for annotations
        start, dur = float(event["ts"]), float(event["dur"])
        if not (0 <= dur < _FOREVER and math.isfinite(start)):
            self.dropped += 1
            return
        args = event.get("args") or {}
        rank = self._rank_of(event.get("pid"))
        external = number(args.get("External id", args.get("external id"))) + rank * _IDS_OF_A_RANK
        name = self.names.setdefault(str(event["name"]), len(self.names))
        if sort in KINDS:
            self._add_gpu(event, args, (name, KINDS.index(sort), start, dur, external), rank)
            return
        thread = self.threads.setdefault((event.get("pid"), event.get("tid")), len(self.threads))
        values: tuple[float, ...]
        if sort == "call":
            values = (name, thread, start, dur, number(args.get("correlation")) + rank * _IDS_OF_A_RANK, external)
        else:
            values = (name, thread, start, dur, external)
        self.columns[sort].extend(values)

    def add_of_xla(self, event: dict[str, Any]) -> None:
        if (translated := self.rows.translate(event)) is not None:
            self.add(translated)

    def _add_gpu(self, event: dict[str, Any], args: dict[str, Any], seen: tuple[float, ...], rank: int) -> None:
        name, kind, start, dur, external = seen
        # Kineto draws a GPU as a process and a stream as its thread.
        device, stream = (args.get(key, event.get(own)) for key, own in (("device", "pid"), ("stream", "tid")))
        place = (number(device), number(stream))
        grid, block = (launch_tables.shape(args.get(key) or ()) for key in ("grid", "block"))
        shape = self.shapes.setdefault((grid, block), len(self.shapes))
        ids = (number(args.get("correlation")) + rank * _IDS_OF_A_RANK, external)
        size = number(args["bytes"]) if "bytes" in args else MISSING
        graph = number(args.get("graph id")) if args.get("graph id") else MISSING
        self.columns["gpu"].extend((name, kind, *place, start, dur, *ids, shape, size, graph))

    def _rank_of(self, pid: Any) -> int:
        """Return the number of the rank that a merger of traces put beside the process, from 0; 0 without one.

        SGLang writes ``[TP00-DP00-PP00-EP00] 5000``. Ids and numbers of devices repeat over ranks.
        """
        if not isinstance(pid, str) or (found := _OF_RANK.fullmatch(pid)) is None:
            return 0
        return self.ranks.setdefault(found["before"] or found["after"], len(self.ranks))

    def settle(self) -> None:
        """Drop the events that lie far from the others, and count time from one of the rest.

        A double of epoch microseconds, as in old traces, has too few digits for nanoseconds.
        """
        times = {sort: self._values(sort)[:, names.index("start")] for sort, names in _FIELDS.items()}
        starts = np.concatenate(list(times.values()))
        if not len(starts):
            return
        # The first event may be damaged, and a mean of two need not be a whole nanosecond.
        origin = np.partition(starts, len(starts) // 2)[len(starts) // 2]
        base = number(self.top.get("baseTimeNanoseconds"))
        self.offset_ns = round(float(origin) * 1000) + (0 if math.isnan(base) else int(base))
        for sort, start in times.items():
            start -= origin
            possible = np.abs(start) < _FOREVER
            if not possible.all():
                self.dropped += int((~possible).sum())
                self.columns[sort] = array("d", self._values(sort)[possible].tobytes())

    def fold_names(self) -> None:
        """Give the names beyond ``bounds.MOST_NAMES`` of GPU events, and of operators, one name; drop unused ones."""
        given = list(self.names)
        for sort in ("gpu", "op"):
            values = self._values(sort)
            used, codes = np.unique(values[:, 0].astype(np.int64), return_inverse=True)
            names, durations = [given[code] for code in used], values[:, _FIELDS[sort].index("dur")]
            codes, names, folded = bounds.fold_names(codes, names, durations)
            if folded:
                numbers = [self.names.setdefault(name, len(self.names)) for name in names]
                values[:, 0] = np.array(numbers)[codes]
                self.folded += folded
        if self.folded:
            given = list(self.names)
            used = np.unique(np.concatenate([self._values(sort)[:, 0] for sort in _FIELDS])).astype(np.int64)
            number = np.zeros(len(given))
            number[used] = np.arange(len(used))
            for sort in _FIELDS:
                values = self._values(sort)
                values[:, 0] = number[values[:, 0].astype(np.int64)]
            self.names = {given[code]: place for place, code in enumerate(used)}

    @cached_property
    def texts(self) -> list[str]:
        """Return the names by their codes, without halves of surrogate pairs, which Arrow cannot store."""
        return [name.encode("utf-8", "replace").decode() for name in self.names]

    @cached_property
    def pids(self) -> pd.Series[Any]:
        """Return the process of each thread where it is a number."""
        return pd.Series([_id(_pid(process)) for process, _ in self.threads], dtype="Float64")

    @cached_property
    def process_ranks(self) -> dict[int, int]:
        """Return the ranks of a merged trace by the numbers of its processes, in the order of their names."""
        order = {name: rank for rank, name in enumerate(sorted(self.ranks, key=_natural))}
        codes = zip(self.process_codes, self.threads, strict=False)
        named = {int(code): _OF_RANK.fullmatch(str(process)) for code, (process, _) in codes}
        found = {code: match["before"] or match["after"] for code, match in named.items() if match}
        return {code: order[name] for code, name in found.items() if name in order} if len(order) > 1 else {}

    @cached_property
    def tids(self) -> np.ndarray:
        """Return the number of each thread, -1 where it is none, and for the unknown thread at the end."""
        known = [_id(thread) for _, thread in self.threads]
        return np.array([*(-1 if math.isnan(tid) else int(tid) for tid in known), -1], dtype=np.int64)

    @cached_property
    def process_codes(self) -> np.ndarray:
        """Number the process of each thread; the last number is for the unknown thread of an empty trace."""
        return pd.factorize(np.array([str(process) for process, _ in [*self.threads, (None, None)]], dtype=object))[0]

    def frame(self, sort: str) -> pd.DataFrame:
        return pd.DataFrame(self._values(sort), columns=list(_FIELDS[sort]))

    def _values(self, sort: str) -> np.ndarray:
        """Return the events of a sort, one row each: a view of the column."""
        return np.frombuffer(self.columns[sort], dtype=np.float64).reshape(-1, len(_FIELDS[sort]))


def number(value: Any) -> float:
    """Return ``value`` as a number, NaN where it is none. torch 1.8 quotes its ids."""
    if type(value) is int:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return MISSING


def _pid(value: Any) -> Any:
    """Return the number of a process of a merged trace without the name of its rank."""
    found = _OF_RANK.fullmatch(value) if isinstance(value, str) else None
    return (found["pid"] or found["own"]) if found else value


def _natural(name: str) -> list[Any]:
    """Return a key that sorts ``rank10`` after ``rank2``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _id(value: Any) -> float:
    """Return the number of a process or a thread, NaN where ``value`` is no whole number of 64 bits."""
    found = number(value)
    return found if abs(found) < _LARGEST_ID and found == int(found) else MISSING


def read(path: Path) -> Trace:
    """Read the whole trace. Raises ``UnreadableFile`` where the text or the zip ends early, or is no trace."""
    trace = Trace()
    _read_events(path, trace, trace.add)
    if trace.rows and not any(trace.columns.values()):
        # Its events have no category: the rows, which the metadata names, say what each is.
        trace.rows.check(path)
        _read_events(path, trace, trace.add_of_xla)
        for step in trace.rows.steps():
            trace.add(step)
    trace.settle()
    if len(trace.names) > bounds.MOST_NAMES:
        trace.fold_names()
    return trace


def _read_events(path: Path, trace: Trace, add: Callable[[dict[str, Any]], None]) -> None:
    others = 0
    try:
        with json_stream.open_text(path) as stream:
            for key, value in json_stream.items(stream, unroll="traceEvents"):
                if key != "traceEvents":
                    trace.top[key] = value
                elif isinstance(value, dict) and "ph" in value:
                    add(value)
                else:
                    others += 1
                    if others > bounds.MOST_OTHER_ENTRIES:
                        raise bounds.TooLarge(f"it has more than {bounds.MOST_OTHER_ENTRIES:,} entries without a phase")
    except json_stream.FAILURES as error:
        foreign_files.refuse(path)
        size = f"{path.stat().st_size:,} bytes"
        raise UnreadableFile(path, f"a Chrome trace that is cut or damaged ({size}; {error})", _RECORD_AGAIN) from error
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UnreadableFile(path, f"a Chrome trace with a malformed event ({error!r})", _RECORD_AGAIN) from error
