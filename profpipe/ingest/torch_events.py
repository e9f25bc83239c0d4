"""Read the GPU events, calls, operators and ranges of a Chrome trace as columns of numbers.

The trace is read event by event: a million of them take a gigabyte as Python objects. Events of XLA's profiler, which
jax.profiler and TensorFlow write, are read as events of Kineto.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
import sys
from array import array
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import bounds, foreign_files, json_stream, launch_tables
from profpipe.ingest.groupby import Ints
from profpipe.results import schema

Event = dict[str, Any]

MISSING: Final = float("nan")
#: Ids of processes and threads are below it. As a double, 2**63 - 1 does not fit into 64 bits.
_LARGEST_ID: Final = 2**62
#: Ids of the ranks of a merged trace are made unique by it. CUPTI counts ids in 32 bits, and a double has 53.
_IDS_OF_A_RANK: Final = 2**36
#: A process of a merged trace: its rank before or after the number that the process has in the trace of its rank.
_OF_RANK: Final = re.compile(r"(?P<before>.*\D)(?P<pid>\d+)|(?P<first_pid>\d+)(?P<after>\D.*)")
#: Microseconds (a year): events further apart are damaged.
_FOREVER: Final = 3.2e13

KINDS: Final = ("kernel", "memcpy", "memset")
#: Categories of Kineto, in lower case: torch 1.8 capitalises them and has no "gpu_" before its copies. Left out are
#: gpu_user_annotation, which spans kernels of the trace, and flows.
_SORTS: Final = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset",
    "cpu_op": "op", "operator": "op", "user_annotation": "range",
    "cuda_runtime": "call", "runtime": "call", "cuda_driver": "call", "driver": "call", "python_function": "line",
}  # fmt: skip
_RECORD_AGAIN = "Record the trace again and let export_chrome_trace return before the process ends."

_ON_HOST: Final = ("name", "thread", "start", "dur", "correlation", "external")
_FIELDS: Final = {
    "gpu": ("name", "kind", "device", "stream", "start", "dur", "correlation", "external", "shape", "bytes", "graph"),
    "call": _ON_HOST,
    "op": _ON_HOST,
    "range": _ON_HOST,
    "line": _ON_HOST,
    "module": _ON_HOST,
    "autograd": ("name", "thread", "start", "dur", "sequence", "forward"),
}
#: Events without a sequence number that say where a kernel belongs: a node of the backward pass that accumulates a
#: gradient, and the calls of compiled functions.
_OF_AUTOGRAD: Final = re.compile(r"autograd::engine::evaluate_function: |Torch-Compiled Region|Optimizer\.step#")
#: A function of Python: its file without the folder of ``sys.path``, its first line, its name. None of torch, nor of
#: code that it wrote.
_FUNCTION: Final = re.compile(
    r"(?!(?:.*[/\\])?(?:torch|triton|torchinductor_[^/]*)[/\\])(?:.*-packages[/\\])?([^<>]+\.py)\((\d+)\): (.+)"
)
#: Functions of Python in which a program waits.
_WAITS: Final = re.compile(r"run_backward|function collect>|serialization\.py\(\d+\): save")
#: Modules of Python by whose names programs have files too.
_STANDARD: Final = sys.stdlib_module_names - {"code", "profile", "test"}


@functools.lru_cache(maxsize=1 << 16)
def name_line(text: str) -> str:
    """Return ``moe.py:14 forward`` for a function of the program or of a library; empty for others."""
    match = _FUNCTION.fullmatch(text)
    is_ours = match and re.split(r"[/\\.]", match[1])[0] not in _STANDARD and "/lib/python3" not in match[1]
    return f"{match[1]}:{match[2]} {match[3]}" if match and is_ours else ""


class Trace:
    """Events as flat columns: names and threads are codes, times microseconds.

    Times count from the epoch until ``settle`` moves their origin.
    """

    def __init__(self) -> None:
        self._columns = {sort: array("d") for sort in _FIELDS}
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        #: (grid, block) of the kernels, such as ``32x2x16``; the column ``shape`` numbers them.
        self.shapes: dict[tuple[str, str], int] = {}
        self.top: Event = {}
        #: The ranks of a merged trace, by what its processes are named.
        self._ranks: dict[str, int] = {}
        #: What the metadata says of devices and hosts, in a trace of XLA's profiler.
        self.rows = _TraceMetadata()
        self.dropped = 0
        #: What was launched in the steps with ranges of modules; None without such steps.
        self.of_modules: Trace | None = None
        #: ns to add to the times for the clock of the machine, which traces of several processes share.
        self.offset_ns = 0

    def add(self, event: Event) -> None:
        category = event.get("cat")
        if category is None or event.get("ph") != "X":
            if event.get("ph") == "M":
                self.rows.note(event)
            return
        sort = _SORTS.get(category) or _SORTS.get(str(category).lower())
        if sort is None:
            return
        is_on_host = sort in ("op", "range")
        if category == "Operator" and event["name"].startswith(("ProfilerStep#", schema.CASE_PREFIX)):
            sort = "range"  # torch 1.8 has no category for annotations
        if sort == "op" and schema.MODULE_PREFIX in event["name"]:
            sort = "module"
        if sort == "line" and not (name_line(event["name"]) or _WAITS.search(event["name"])):
            return
        start, dur = float(event["ts"]), float(event["dur"])
        if not (0 <= dur < _FOREVER and math.isfinite(start)):
            self.dropped += 1
            return
        args = event.get("args") or {}
        first_id = self._rank_of(event.get("pid")) * _IDS_OF_A_RANK
        external = number(args.get("External id", args.get("external id"))) + first_id
        ids = (number(args.get("correlation")) + first_id, external)
        name = self._names.setdefault(str(event["name"]), len(self._names))
        if sort not in KINDS:
            thread = self._threads.setdefault((event.get("pid"), event.get("tid")), len(self._threads))
            self._columns[sort].extend((name, thread, start, dur, *ids))
            if is_on_host and ("Sequence number" in args or _OF_AUTOGRAD.match(str(event["name"]))):
                # It joins the kernels of a backward pass to the calls of modules.
                sequence, forward_thread = number(args.get("Sequence number")), number(args.get("Fwd thread id"))
                self._columns["autograd"].extend((name, thread, start, dur, sequence, forward_thread))
            return
        # Kineto draws a GPU as a process and a stream as its thread.
        device, stream = (
            args.get(key, event.get(event_key)) for key, event_key in (("device", "pid"), ("stream", "tid"))
        )
        place = (KINDS.index(sort), number(device), number(stream))
        grid, block = (launch_tables.shape(args.get(key) or ()) for key in ("grid", "block"))
        shape = self.shapes.setdefault((grid, block), len(self.shapes))
        size = number(args["bytes"]) if "bytes" in args else MISSING
        graph = number(args.get("graph id")) if args.get("graph id") else MISSING
        self._columns["gpu"].extend((name, *place, start, dur, *ids, shape, size, graph))

    def add_of_xla(self, event: Event) -> None:
        if (translated := self.rows.translate(event)) is not None:
            self.add(translated)

    def _rank_of(self, pid: Any) -> int:
        """Return the number of the rank that a merger of traces put beside the process, from 0; 0 without one.

        SGLang writes ``[TP00-DP00-PP00-EP00] 5000``. Ids and numbers of devices repeat over ranks.
        """
        if not isinstance(pid, str) or (match := _OF_RANK.fullmatch(pid)) is None:
            return 0
        return self._ranks.setdefault(match["before"] or match["after"], len(self._ranks))

    def settle(self) -> None:
        """Drop the events that lie far from the others, and count time from one of the rest.

        A double of epoch microseconds, as in old traces, has too few digits for nanoseconds.
        """
        if not self.has_modules:
            del self._columns["autograd"][:]
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
                self._columns[sort] = array("d", self._values(sort)[possible].tobytes())

    @cached_property
    def texts(self) -> list[str]:
        """Return the names by their codes, without halves of surrogate pairs, which Arrow cannot store."""
        return [name.encode("utf-8", "replace").decode() for name in self._names]

    def named(self, chosen: Callable[[str], Any]) -> list[int]:
        """Return the codes of the ``chosen`` names."""
        return [code for code, name in enumerate(self.texts) if chosen(name)]

    @cached_property
    def process_codes(self) -> Ints:
        """Number the processes of the threads; the last number is for the unknown thread of an empty trace."""
        processes = [str(process) for process, _ in [*self._threads, (None, None)]]
        return pd.factorize(np.array(processes, dtype=object))[0]

    @cached_property
    def tids(self) -> Ints:
        """Return the numbers of the threads, -1 where it is none, and for the unknown thread at the end."""
        return np.array([*(_id(thread) for _, thread in self._threads), -1], dtype=np.int64)

    @cached_property
    def process_ranks(self) -> dict[int, int]:
        """Return the ranks of a merged trace by the numbers of its processes, in the order of their names."""
        order = {name: rank for rank, name in enumerate(sorted(self._ranks, key=_natural))}
        codes = zip(self.process_codes, self._threads, strict=False)
        named = {int(code): _OF_RANK.fullmatch(str(process)) for code, (process, _) in codes}
        rank_names = {code: match["before"] or match["after"] for code, match in named.items() if match}
        return {code: order[name] for code, name in rank_names.items() if name in order} if len(order) > 1 else {}

    def pids(self, codes: Any) -> Ints:
        """Return the process ids of the numbers of processes, -1 where they are unknown."""
        return self._pids[np.where(np.asarray(codes) >= 0, codes, -1)]

    @cached_property
    def _pids(self) -> Ints:
        pids = dict(
            zip(self.process_codes.tolist(), (_id(_pid(process)) for process, _ in self._threads), strict=False)
        )
        if len({pids[code] for code in self.process_ranks}) < len(self.process_ranks):
            # Ranks in containers have one process id.
            pids |= self.process_ranks
        return np.array([*(pids.get(code, -1) for code in range(len(self.process_codes))), -1], dtype=np.int64)

    def frame(self, sort: str) -> pd.DataFrame:
        return pd.DataFrame(self._values(sort), columns=list(_FIELDS[sort]))

    @property
    def has_modules(self) -> bool:
        return bool(self._columns["module"])

    def split(self) -> None:
        """Move what was launched from the first step with ranges of modules on into ``of_modules``."""
        steps = self.frame("range")
        starts = steps.loc[
            steps["name"].isin(self.named(lambda name: schema.decoded(name).startswith(schema.MODULES_PREFIX))), "start"
        ]
        if not len(starts):
            return
        self.of_modules = copy.copy(self)
        self.of_modules._columns = {}
        calls, first = self.frame("call"), starts.min()
        later_calls = calls.loc[calls["start"] >= first, "correlation"]
        for sort, names in _FIELDS.items():
            values = self._values(sort)
            is_later = values[:, names.index("start")] >= first
            if sort == "gpu":
                launch = values[:, names.index("correlation")]
                is_later = np.where(np.isin(launch, calls["correlation"]), np.isin(launch, later_calls), is_later)
            self.of_modules._columns[sort] = array("d", values[is_later].tobytes())
            self._columns[sort] = array("d", values[~is_later].tobytes())

    def is_empty(self) -> bool:
        return not any(self._columns.values())

    def _values(self, sort: str) -> Ints:
        """Return the events of a sort, one a row: a view of the column."""
        return np.frombuffer(self._columns[sort], dtype=np.float64).reshape(-1, len(_FIELDS[sort]))


def number(value: Any) -> float:
    """Return ``value`` as a number, NaN where it is none below ``_LARGEST_ID``. torch 1.8 quotes its ids."""
    if type(value) is int and -_LARGEST_ID < value < _LARGEST_ID:
        return value
    try:
        read = float(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return read if abs(read) < _LARGEST_ID else MISSING


def _pid(value: Any) -> Any:
    """Return the number of a process of a merged trace without the name of its rank."""
    match = _OF_RANK.fullmatch(value) if isinstance(value, str) else None
    return (match["pid"] or match["first_pid"]) if match else value


def _natural(name: str) -> list[Any]:
    """Return a key that sorts ``rank10`` after ``rank2``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _id(value: Any) -> int:
    """Return the number of a process or a thread, -1 where ``value`` is no whole number of 64 bits."""
    parsed = number(value)
    return int(parsed) if parsed % 1 == 0 else -1


def read(path: Path) -> Trace:
    """Read the whole trace. Raises ``UnreadableFile`` where the text or the zip ends early, or is no trace."""
    trace = Trace()
    _read_events(path, trace, trace.add)
    if trace.rows and trace.is_empty():
        # Its events have no category: the rows, which the metadata names, say what they are.
        trace.rows.check(path)
        _read_events(path, trace, trace.add_of_xla)
        for step in trace.rows.steps():
            trace.add(step)
    trace.settle()
    if trace.has_modules:
        trace.split()
    return trace


def _read_events(path: Path, trace: Trace, add: Callable[[Event], None]) -> None:
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


# --- XLA -------------------------------------------------------------------------------------------------------------

# A process of the trace is a device (``/device:GPU:0``) or the host. What ran on a GPU is in its rows ``Stream #...``.
# Its other rows (``XLA Modules``, ``XLA Ops``, ``Steps``, ``Framework Ops``, ...) repeat it. Sources: openxla/xla,
# backends/profiler/gpu/cupti_collector.cc and tsl/profiler/utils/xplane_schema.cc.
_PLACE = re.compile(r"(?:^|\s)(/(device|host):(\w+)(?::(\d+))?)")
_STREAM = re.compile(r"\bStream #(\d+)")
#: A step whose number is in its name; StepTraceAnnotation gives it as ``step_num``.
_NUMBERED = re.compile(r"(\w*(?:train|step|iter|eval)\w*)[ _#](\d+)", re.IGNORECASE)
_COPY = re.compile(r"^Memcpy([HDAP])2([HDAP])$")
_BYTES = re.compile(r"\bsize:(\d+)")
_SHAPE = {name: re.compile(rf"\b{name}:(\d+),(\d+),(\d+)") for name in ("grid", "block")}
#: Allocations are no work of the GPU.
_ALLOCATIONS = {"memalloc_details", "memfree_details", "memoryresidency_details"}
_NSYS = "nsys profile -t cuda,nvtx -o OUT python PROGRAM"


class _TraceMetadata:
    """The devices, streams and hosts that the metadata of a trace name, and the steps that its hosts mark."""

    def __init__(self) -> None:
        self._places: dict[str, re.Match[str]] = {}
        self._streams: dict[tuple[str, str], int] = {}
        self._steps: list[Event] = []
        #: The names of the steps without their numbers, by the names that they have in the trace.
        self.step_names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def note(self, event: Event) -> None:
        """Note the name of a process or a thread."""
        given = event.get("args")
        name = str(given.get("name")) if isinstance(given, dict) else ""
        if event.get("name") == "process_name" and (place := _PLACE.search(name)):
            self._places[str(event.get("pid"))] = place
        elif event.get("name") == "thread_name" and (stream := _STREAM.search(name)):
            self._streams[str(event.get("pid")), str(event.get("tid"))] = int(stream[1])

    def check(self, path: Path) -> None:
        """Raise ``UnreadableFile`` for a trace without a stream of a GPU."""
        kinds = {place[3].upper(): place[1] for place in self._places.values() if place[2] == "device"}
        if "TPU" in kinds:
            what = f"a JAX trace of a TPU ({kinds['TPU']})"
            remedy = (
                "profpipe reads recordings of GPUs. Open this one with XProf: pip install xprof; xprof --logdir FOLDER."
            )
        elif "GPU" not in kinds:
            of = f"a JAX trace of {', '.join(kinds.values())}" if kinds else "a JAX trace of the host alone"
            what = f"{of}, without a GPU"
            remedy = f"Run the program where jax.devices() lists a GPU, or record it with nsys: {_NSYS}."
        elif not self._streams:
            what = f"a JAX trace in which nothing ran on {kinds['GPU']}"
            remedy = f"End other profilers of the GPU and record again, or record with nsys: {_NSYS}."
        else:
            return
        raise UnreadableFile(path, what, remedy)

    def translate(self, event: Event) -> Event | None:
        """Return work of a GPU, or the call that launched it, as Kineto writes it; None for another event."""
        place = self._places.get(str(event.get("pid")))
        if place is None or event.get("ph") != "X":
            return None
        args = event.get("args") or {}
        ids = {"correlation": args.get("correlation_id"), "External id": _group(args)}
        name = str(event["name"])
        common = {"ph": "X", "ts": event["ts"], "dur": event.get("dur", 0), "name": name, "args": ids}
        if place[2] == "device":
            stream = self._streams.get((str(event["pid"]), str(event.get("tid"))))
            if place[3].upper() != "GPU" or stream is None or not _ALLOCATIONS.isdisjoint(map(str.lower, args)):
                return None
            name, category, more = _work(name, args)
            where = {"device": int(place[4] or 0), "stream": stream}
            return {**common, "cat": category, "name": name, "args": {**ids, **where, **more}}
        # XLA numbers the hosts itself. The numbers are no process ids.
        common["tid"] = event.get("tid")
        match = _NUMBERED.fullmatch(name)
        step = args.get("step_num", match and match[2])
        if step is None:
            return {**common, "cat": "cuda_driver"} if ids["correlation"] else None
        # The search for steps knows a step by this name. A colon would end the domain before it.
        label = match[1] if match else name.replace(":", " ") or "step"
        numbered = f"{label}:step {step}"
        self.step_names[numbered] = label
        self._steps.append({**common, "cat": "user_annotation", "name": numbered})
        return None

    def steps(self) -> Iterator[Event]:
        """Yield the steps. One ends where the next one of its thread begins, if not before."""
        steps = sorted(self._steps, key=lambda step: (str(step["tid"]), float(step["ts"])))
        for step, following in itertools.zip_longest(steps, steps[1:]):
            longest = math.inf
            if following and following["tid"] == step["tid"]:
                longest = float(following["ts"]) - float(step["ts"])
            yield {**step, "dur": min(float(step["dur"]), longest)}


def _group(args: Event) -> int | None:
    """Return the number of the step that XLA grouped an event with, from 1."""
    text = str(args.get("group_id"))
    return int(text) + 1 if text.isdecimal() and len(text) < 16 else None


def _work(name: str, args: Event) -> tuple[str, str, Event]:
    """Return the name of work on a GPU, its category and its sizes, as Kineto writes them."""
    details = " ".join(str(value) for key, value in args.items() if str(key).endswith("_details"))
    if copy := _COPY.match(name):
        name = f"Memcpy {copy[1]}to{copy[2]}"
    category = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
    sizes: Event = {
        key: [int(size) for size in match.groups()]
        for key, pattern in _SHAPE.items()
        if (match := pattern.search(details))
    }
    if size := _BYTES.search(details):
        sizes["bytes"] = int(size[1])
    return name, category, sizes
