"""Chrome traces of torch.profiler (Kineto), plain or gzipped, from CUDA and ROCm, with and without GPU events.

The format is Kineto's ``output_json.cpp``: ``ts`` and ``dur`` are microseconds whatever ``displayTimeUnit`` says. A GPU
event carries the correlation id of the runtime or driver call that launched it, and the ``External id`` of the operator
around that call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pandas as pd

from profpipe import kernels, load, tables
from profpipe.errors import Refused
from profpipe.formats import attribution, grouping, jsonstream, launch_order, overlap, range_sums

if TYPE_CHECKING:
    import _torch_events
else:
    _torch_events = load.module(Path(__file__).with_name("_torch_events.py"))

FORMATS = ("torch.profiler Chrome trace (.json, .json.gz)",)

_STEP = re.compile(r"^ProfilerStep#\d+$")
_LAUNCH = re.compile(r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch")
_RECORD_SOMETHING = "Check that the profiled region ran between start and stop, with no other profiler on the GPU."


def sniff(path: Path) -> bool:
    """True for JSON that begins as a Chrome trace does and is none of rocprof's."""
    if not path.is_file():
        return False
    head = jsonstream.head(path)
    if not head.startswith((b"{", b"[")) or any(mark in head for mark in (b'"BeginNs"', b'"rocprofiler-sdk-tool"')):
        return False
    kineto = b'"schemaVersion"' in head or b'"deviceProperties"' in head
    return b'"traceEvents"' in head or kineto or (head.startswith(b"[") and b'"ph"' in head)


def parse(path: Path) -> tables.Tables:
    """Kernels and ranges of a trace; CPU operators by self time where it holds no GPU events.

    Raises ``Refused`` for a damaged trace and for one without GPU events, operators and ranges.
    """
    trace = _torch_events.read(path)
    launches = _launches(trace)
    if launches.empty:
        launches = _operators(trace)
    ranges = _ranges(trace)
    if launches.empty and not len(ranges.start):
        raise Refused(path, "a Chrome trace without GPU events, operators or ranges", _RECORD_SOMETHING)
    calls = _calls(trace, launches)
    placed = attribution.attribute(ranges, calls)
    rows = _rows(trace, launches, placed)
    range_rows = _range_table(trace, ranges, calls, placed, launches)
    metrics = overlap.metrics(_kernels(trace, launches, rows), overlap.iterations(range_rows))
    return tables.Tables(
        kernels=kernels.annotate(tables.summarise(rows)).assign(profiler="torch"),
        ranges=range_rows.assign(profiler="torch"),
        metrics=tables.frame(tables.METRICS, metrics).assign(profiler="torch"),
        origin=_origin(trace, launches, rows, placed),
    )


def launches(path: Path) -> pd.DataFrame:
    """Each kernel's launch, as ``launch_order.COLUMNS``; none of a trace without grids. Raises ``Refused``."""
    trace = _torch_events.read(path)
    found = _launches(trace)
    rows = np.flatnonzero(found["kind"] == "kernel")
    shapes = np.array([*trace.shapes, ("", "")], dtype=object)[found["shape"].to_numpy()[rows].astype(int)]
    if not shapes.all():
        return launch_order.empty()
    ranges, calls = _ranges(trace), _calls(trace, found)
    names = np.array([kernels.normalise(name) for name in trace.texts], dtype=object)
    seen = pd.DataFrame(
        {
            "kernel": names[found["name"].to_numpy()[rows].astype(int)],
            "grid": shapes[:, 0],
            "block": shapes[:, 1],
            "duration_ns": _ns(found["dur"])[rows],
        }
    )
    placed = attribution.attribute(ranges, calls)
    return launch_order.table(ranges, calls, placed, rows, seen, _ns(found["start"])[rows])


# --- launches --------------------------------------------------------------------------------------------------------


def _launches(trace: _torch_events.Trace) -> pd.DataFrame:
    """The GPU's events with ``thread`` and ``time`` of their launch (NaN: unknown), and whether an operator told them.

    By correlation id, unless processes of a merged trace share it (``is_shared``), for each counts from the same
    beginning; else by the operator with the same External id, which must be one process's alone too.
    """
    gpu, calls = trace.frame("gpu"), trace.frame("call").sort_values("start", kind="stable")
    operators = pd.concat([trace.frame("op"), trace.frame("range")], ignore_index=True)
    gpu["is_shared"] = gpu["correlation"].isin(_shared(trace, calls, "correlation"))
    by_call = _by_id(trace, calls, "correlation").reindex(gpu["correlation"].to_numpy())
    by_operator = _by_id(trace, operators, "external").reindex(gpu["external"].to_numpy())
    called = by_call["thread"].notna().to_numpy()
    gpu["thread"] = np.where(called, by_call["thread"], by_operator["thread"])
    gpu["time"] = np.where(called, by_call["start"], by_operator["start"])
    gpu["by_operator"] = ~called & gpu["thread"].notna()
    gpu["kind"] = np.array(_torch_events.KINDS, dtype=object)[gpu["kind"].astype(int)]
    return gpu


def _shared(trace: _torch_events.Trace, events: pd.DataFrame, key: str) -> pd.Series[Any]:
    """The ids in column ``key`` that several processes of a merged trace use."""
    events = events[events[key] > 0]
    given = pd.DataFrame({"id": events[key], "process": trace.process_codes[events["thread"].astype(int)]})
    given = given.drop_duplicates()
    return given.loc[given["id"].duplicated(), "id"]


def _by_id(trace: _torch_events.Trace, events: pd.DataFrame, key: str) -> pd.DataFrame:
    """The first event of each id that is one process's alone, by that id."""
    alone = events[(events[key] > 0) & ~events[key].isin(_shared(trace, events, key))]
    return alone.drop_duplicates(key).set_index(key)


def _operators(trace: _torch_events.Trace) -> pd.DataFrame:
    """Operators in the shape of ``_launches``, ``dur`` being self time: less the operators directly inside."""
    ops = trace.frame("op")
    ops["dur"], ops["time"] = _self_times(ops), ops["start"]
    of_no_gpu = {"device": _torch_events.MISSING, "stream": _torch_events.MISSING}
    return ops.assign(kind="cpu_op", **of_no_gpu, by_operator=False, is_shared=False)


def _self_times(ops: pd.DataFrame) -> np.ndarray:
    """Microseconds of each operator that none of those inside it on its thread used."""
    order = np.lexsort((-ops["dur"], ops["start"], ops["thread"]))
    columns = (ops["thread"], ops["start"], ops["start"] + ops["dur"], ops["dur"])
    thread, start, end, own = (column.to_numpy()[order].tolist() for column in columns)
    stack: list[int] = []
    for i in range(len(order)):
        while stack and (thread[stack[-1]] != thread[i] or end[stack[-1]] <= start[i]):
            stack.pop()
        if stack:
            own[stack[-1]] -= min(end[i], end[stack[-1]]) - start[i]
        stack.append(i)
    result = np.empty(len(order))
    result[order] = np.maximum(own, 0.0)
    return result


def _ns(microseconds: pd.Series[Any]) -> Any:
    return np.rint(microseconds.to_numpy() * 1000).astype(np.int64)


# --- tables ----------------------------------------------------------------------------------------------------------


def _ranges(trace: _torch_events.Trace) -> attribution.Ranges:
    ranges = trace.frame("range")
    thread, start = ranges["thread"].to_numpy().astype(np.int64), _ns(ranges["start"])
    names = [_range_name(text) for text in trace.texts]
    name = ranges["name"].astype(int).to_numpy()
    return attribution.Ranges(start, start + _ns(ranges["dur"]), thread, trace.process_codes[thread], name, names)


def _range_name(text: str) -> str:
    if text.startswith(tables.ENCODED_PREFIX):
        return unquote(text.removeprefix(tables.ENCODED_PREFIX))
    # Each step would otherwise be a range of its own.
    return "ProfilerStep#*" if _STEP.match(text) else text


def _calls(trace: _torch_events.Trace, launches: pd.DataFrame) -> attribution.Launches:
    """Each launch as an instant: a thread that calls inside its range also returns inside it, rounding apart."""
    known = launches["thread"].notna().to_numpy()
    code = launches["thread"].fillna(0).astype(int).to_numpy()
    time = _ns(launches["time"].fillna(0.0))
    thread = np.where(known, code, attribution.NO_THREAD)
    process = np.where(known, trace.process_codes[code], attribution.NO_THREAD)
    return attribution.Launches(time, time, thread, process, (launches["kind"] == "kernel").to_numpy())


def _rows(trace: _torch_events.Trace, launches: pd.DataFrame, placed: attribution.Attribution) -> pd.DataFrame:
    """One row a launch, as ``tables.summarise`` takes them."""
    cases, phases = placed.cases_and_phases(np.arange(len(placed.paths)))
    return pd.DataFrame(
        {
            "case": _categories(cases, placed.path),
            "process": launches["thread"].map(trace.pids).astype("Float64").astype("Int64"),
            "device": launches["device"].astype("Float64").astype("Int64"),
            "stream": launches["stream"].astype("Float64").astype("Int64"),
            "phase": _categories(phases, placed.path),
            "kind": launches["kind"],
            "kernel": _categories(trace.texts, launches["name"].astype(int).to_numpy()),
            "duration_ns": _ns(launches["dur"]),
        }
    )


def _kernels(trace: _torch_events.Trace, launches: pd.DataFrame, rows: pd.DataFrame) -> overlap.Kernels:
    of_kernels = (launches["kind"] == "kernel").to_numpy()
    launches, rows = launches[of_kernels], rows[of_kernels]
    start, communicates = _ns(launches["start"]), overlap.communicate(kernels.classify(n)[0] for n in trace.texts)
    return overlap.Kernels(
        *overlap.numbered(rows["case"].cat.codes.to_numpy(), rows["case"].cat.categories.tolist()),
        # A trace is one process's, and that of a kernel is known only where its launch is.
        np.zeros(len(rows), dtype=np.int64),
        rows["device"].fillna(-1).to_numpy(dtype=np.int64),
        start,
        start + rows["duration_ns"].to_numpy(),
        communicates[launches["name"].astype(int).to_numpy()],
    )


def _categories(texts: list[str], codes: np.ndarray) -> pd.Categorical:
    inverse, unique = pd.factorize(np.array(texts, dtype=object))
    return pd.Categorical.from_codes(inverse[codes], categories=pd.Index(unique))


def _range_table(
    trace: _torch_events.Trace,
    ranges: attribution.Ranges,
    calls: attribution.Launches,
    placed: attribution.Attribution,
    launches: pd.DataFrame,
) -> pd.DataFrame:
    start = _ns(launches["start"])
    rows = range_sums.summarise(ranges, calls, placed, start, start + _ns(launches["dur"]))
    pids = dict(zip(trace.process_codes, trace.pids, strict=False))
    rows["process"] = rows["process"].map(pids).astype("Float64").astype("Int64")
    if not (launches["kind"] != "cpu_op").any():
        # Nothing on a GPU was recorded, so nothing can be said of it.
        rows[["kernel_ns", "kernels", "busy_ns", "span_ns"]] = pd.NA
    return tables.frame(tables.RANGES, rows)


# --- origin ----------------------------------------------------------------------------------------------------------


def _origin(
    trace: _torch_events.Trace, launches: pd.DataFrame, rows: pd.DataFrame, placed: attribution.Attribution
) -> tables.Origin:
    is_kernel = (rows["kind"] == "kernel").to_numpy()
    durations = rows["duration_ns"].to_numpy()
    attributed = float(durations[is_kernel & (rows["case"] != "").to_numpy()].sum())
    total = float(durations[is_kernel].sum())
    return tables.Origin(
        format=FORMATS[0],
        tool="torch",
        launches=int(is_kernel.sum()),
        total_ns=total,
        attributed_ns=attributed,
        unattributed_ns=total - attributed,
        attribution=_in_words(launches, placed),
        device=_device(trace, launches),
        notes=tuple(_notes(trace, launches)),
    )


def _in_words(launches: pd.DataFrame, placed: attribution.Attribution) -> str:
    """How launches were placed, without copies and sets: of what the file's launches, or operators, are counted by."""
    counted = ~launches["kind"].isin(("memcpy", "memset")).to_numpy()
    launches, found, by_time = launches[counted], placed.path[counted] != 0, placed.by_time[counted]
    lost, shared = launches["thread"].isna(), launches["is_shared"]
    counts = {
        "by the launching thread's ranges": (found & ~by_time).sum(),
        "by time, launched from another thread": (found & by_time).sum(),
        "in no range": (~found & launches["thread"].notna()).sum(),
        "launched by one of several processes that used the same id": (lost & shared).sum(),
        "without a recorded launch": (lost & ~shared).sum(),
    }
    words = [f"{count} {how}" for how, count in counts.items() if count]
    if told := int(launches["by_operator"].sum()):
        words.append(f"{told} of them joined to their operator by External id for want of a correlation id")
    return "; ".join(words)


def _device(trace: _torch_events.Trace, launches: pd.DataFrame) -> str:
    """Names of the GPUs that ran something; on ROCm, whose device numbers are not indices, of all that are listed."""
    listed = [d for d in trace.top.get("deviceProperties") or [] if isinstance(d, dict)]
    used = set(launches["device"].dropna())
    listed = [device for device in listed if device.get("id") in used] or listed
    names = dict.fromkeys(str(device["name"]) for device in listed if device.get("name"))
    return ", ".join(names).encode("utf-8", "replace").decode()


def _notes(trace: _torch_events.Trace, launches: pd.DataFrame) -> Iterator[str]:
    kernels_only = launches[launches["kind"] == "kernel"]
    if (launches["kind"] == "cpu_op").any():
        yield "no GPU events: CPU operators, each with its self time"
    if len(kernels_only):
        # What two processes launched under one id was not launched at once.
        of_one_process = kernels_only.loc[~kernels_only["is_shared"], "correlation"]
        counts = of_one_process[of_one_process > 0].value_counts()
        if (of_graphs := counts[counts > 1]).any():
            yield (
                f"{of_graphs.sum()} kernels come from {len(of_graphs)} graph launches; they belong to where the graph "
                "was launched, for ranges inside a graph are not replayed"
            )
    yield from _uneven_steps(trace, kernels_only)
    calls = trace.frame("call")
    launching = [code for name, code in trace.names.items() if _LAUNCH.search(name)]
    calls = calls[calls["name"].isin(launching)]
    if len(launches) and (lost := int((~calls["correlation"].isin(launches.get("correlation", []))).sum())):
        yield f"{lost} of {len(calls)} launches have no kernel in the trace: its GPU time is not all there"
    if any(key.startswith(("hip_", "roctracer")) for key in trace.top):
        yield "ROCm: device numbers are HSA agent ids, which count CPUs too"
    if trace.dropped:
        yield f"{trace.dropped} events with an impossible time dropped"


def _uneven_steps(trace: _torch_events.Trace, launched: pd.DataFrame) -> Iterator[str]:
    """Steps share one row, which hides that the first of them lost kernels, as torch.profiler's first ones can."""
    is_step = np.array([_STEP.match(name) is not None for name in trace.texts], dtype=bool)
    steps = trace.frame("range").sort_values("start", kind="stable")
    steps = steps[is_step[steps["name"].astype(int)]]
    launched = launched[launched["thread"].notna()]
    process_of_launch = trace.process_codes[launched["thread"].astype(int)]
    for process, rows in grouping.groups(trace.process_codes[steps["thread"].astype(int)]):
        start, end = (steps["start"].iloc[rows].to_numpy(), (steps["start"] + steps["dur"]).iloc[rows].to_numpy())
        time = launched["time"].to_numpy()[process_of_launch == process]
        step = np.searchsorted(start, time, side="right") - 1
        inside = (step >= 0) & (time <= end[step])
        counts = np.bincount(step[inside], minlength=len(rows))
        if counts.min() < counts.max():
            yield (
                f"the {len(rows)} steps of the profiler launched unlike numbers of kernels, from {counts.min()} to "
                f"{counts.max()}: their common row is no typical step, and the first ones of a trace can lack kernels"
            )
