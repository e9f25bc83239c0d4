"""Read Chrome traces of torch.profiler (Kineto), plain or gzipped, from torch 1.8 on, of CUDA, ROCm and CPUs.

Traces of jax.profiler of a GPU are read as if Kineto had written them (``profpipe.ingest.torch.xla``).

The format is Kineto's ``output_json.cpp``: ``ts`` and ``dur`` are microseconds, whatever ``displayTimeUnit`` is. A GPU
event has the correlation id of the runtime or driver call that launched it, and the ``External id`` of the operator
around that call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import (
    attribution,
    bounds,
    foreign_files,
    groupby,
    json_stream,
    kernel_classes,
    launch_tables,
    operations,
)
from profpipe.ingest.operations import Recording
from profpipe.ingest.steps import reconcile, search
from profpipe.ingest.torch import events
from profpipe.results import schema

FORMATS = (
    "torch.profiler Chrome trace (.json, .json.gz)",
    "Chrome trace of jax.profiler, of a GPU (.trace.json.gz)",
)

_STEP = re.compile(r"^ProfilerStep#\d+$")
_CONV = kernel_classes.CONVOLUTION
#: Operators of PyTorch and its backends that compute a convolution: aten::convolution, aten::cudnn_convolution_relu,
#: aten::miopen_convolution, aten::convolution_backward, aten::slow_conv2d_forward, aten::conv1d, ...
_CONVOLUTION = re.compile(r"aten::\w*conv(olution|\d|_(transpose|depthwise|tbc))\w*")
#: Those of them that launch kernels themselves.
_BACKEND = re.compile(r"aten::(?!convolution$|_convolution$|conv\d|conv_)")
_LAUNCH = re.compile(r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch")
_RECORD_SOMETHING = "Check that the profiled region ran between start and stop, with no other profiler on the GPU."
_OF_ANOTHER_TOOL = (
    "profpipe reads no Chrome traces of other tools. Record with torch.profiler, or with nsys: "
    "nsys profile -t cuda,nvtx -o OUT COMMAND."
)


def sniff(path: Path) -> bool:
    """Return True for JSON that begins as a Chrome trace and is not one of rocprof."""
    head = json_stream.read_head(path)
    if not head.startswith((b"{", b"[")) or any(mark in head for mark in (b'"BeginNs"', b'"rocprofiler-sdk-tool"')):
        return False
    kineto = b'"schemaVersion"' in head or b'"deviceProperties"' in head
    return b'"traceEvents"' in head or kineto or (head.startswith(b"[") and b'"ph"' in head)


def parse(path: Path, step_range: str = "") -> schema.Tables:
    """Read kernels, ranges and steps; CPU operators by self time where the trace has no GPU events.

    ``step_range`` is a regular expression for the ranges that are steps. Raises ``UnreadableFile`` for a damaged trace
    and for one without GPU events, operators and ranges.
    """
    trace = events.read(path)
    tool = _tool(trace)
    launches = _launches(trace)
    on_gpu = not launches.empty
    if not on_gpu:
        # Operators in the shape of launches; ``dur`` is their self time.
        ops = trace.frame("op")
        ops["dur"], ops["time"] = _self_times(ops), ops["start"]
        of_no_gpu = {"device": events.MISSING, "stream": events.MISSING}
        launches = ops.assign(kind="cpu_op", **of_no_gpu, by_operator=False, is_shared=False, convolves=False)
    ranges = _ranges(trace)
    if launches.empty and not len(ranges.start):
        foreign_files.refuse(path)
        if not {"schemaVersion", "deviceProperties"} & trace.top.keys():
            raise UnreadableFile(path, "a Chrome trace without an event of torch.profiler or JAX", _OF_ANOTHER_TOOL)
        raise UnreadableFile(path, "a Chrome trace without GPU events, operators or ranges", _RECORD_SOMETHING)
    calls = _calls(trace, launches)
    placed = attribution.attribute(ranges, calls)
    rows = _rows(trace, launches, placed)
    start, pids = _ns(launches["start"]), _known_pids(trace)
    range_rows = launch_tables.range_rows(ranges, calls, placed, start, start + _ns(launches["dur"]), pids, on_gpu)
    metrics = schema.empty(schema.METRICS)
    if on_gpu:
        given = _gpu_operations(trace, launches, placed.in_case)
        # A trace is of one process, and the process of a kernel is known only with its launch.
        metrics = launch_tables.overlap_rows(given, placed, np.zeros_like, range_rows)
        steps = search.find(given, ranges, _waits(trace), pids, own=step_range)
    elif lost := list(_lost_kernels(trace)):
        lost = [{**check, "process": pids(np.array([check["process"]]))[0]} for check in lost]
        steps = schema.Tables(step_figures=schema.frame(schema.STEP_FIGURES, lost))
    else:
        steps = search.find_on_host(ranges, pids, own=step_range)
    # The rank that torch.distributed gave the process.
    group = trace.top.get("distributedInfo")
    rank = group.get("rank") if isinstance(group, dict) else None
    steps = steps.with_columns(rank=rank if type(rank) is int and rank >= 0 else pd.NA)
    if merged := {int(pids(np.array([code]))[0]): rank for code, rank in trace.process_ranks.items()}:
        ranked = {name: getattr(steps, name) for name in ("steps", "timeline")}
        steps = replace(
            steps,
            **{name: own.assign(rank=own["process"].map(merged).astype("Int64")) for name, own in ranked.items()},
        )
    return replace(
        steps,
        kernels=kernel_classes.annotate(launch_tables.kernel_rows(rows)),
        ranges=range_rows,
        metrics=metrics,
        origin=_origin(trace, launches, rows, placed),
    ).with_columns(profiler=tool)


def launches(path: Path) -> pd.DataFrame:
    """Read single launches (``launch_tables.COLUMNS``), none without grids. Raises ``UnreadableFile``."""
    trace = events.read(path)
    found = _launches(trace)
    rows = np.flatnonzero(found["kind"] == "kernel")
    shapes = np.array([*trace.shapes, ("", "")], dtype=object)[found["shape"].to_numpy()[rows].astype(int)]
    if not shapes.all():
        return launch_tables.no_launches()
    ranges, calls = _ranges(trace), _calls(trace, found)
    names = np.array([kernel_classes.normalise(name) for name in trace.texts], dtype=object)
    seen = pd.DataFrame(
        {
            "kernel": names[found["name"].to_numpy()[rows].astype(int)],
            "grid": shapes[:, 0],
            "block": shapes[:, 1],
            "duration_ns": _ns(found["dur"])[rows],
        }
    )
    placed = attribution.attribute(ranges, calls)
    return launch_tables.in_order(ranges, calls, placed, rows, seen, _ns(found["start"])[rows])


def recording(path: Path) -> Recording:
    """Read the single events of a trace. Raises ``UnreadableFile``, also for a trace without GPU events."""
    trace = events.read(path)
    launches = _launches(trace)
    if launches.empty:
        remedy = (
            "Open this trace in ui.perfetto.dev as it is, or record with ProfilerActivity.CUDA on a machine with a GPU."
        )
        raise UnreadableFile(path, "a Chrome trace without GPU events", remedy)
    ranges = _ranges(trace)
    placed = attribution.attribute(ranges, _calls(trace, launches))
    calls = _sorted_calls(trace)
    start, thread = _ns(calls["start"]), calls["thread"].to_numpy().astype(int)
    place = trace.process_codes[thread], trace.tids[thread]
    return Recording(
        _gpu_operations(trace, launches, placed.in_case),
        placed,
        launches["call"].to_numpy().astype(int),
        operations.Calls(start, start + _ns(calls["dur"]), *place, calls["name"].to_numpy().astype(int), trace.texts),
        ranges,
        _waits(trace),
        _known_pids(trace),
        lambda threads: trace.tids[threads],
        offset_ns=trace.offset_ns,
    )


# --- launches --------------------------------------------------------------------------------------------------------


def _launches(trace: events.Trace) -> pd.DataFrame:
    """Return the GPU's events with ``thread`` and ``time`` of their launch, NaN where unknown.

    The launch is the call with the same correlation id, else the operator with the same External id (``by_operator``).
    Ids that several processes of a merged trace use (``is_shared``) are not joined.
    """
    gpu, calls = trace.frame("gpu"), _sorted_calls(trace)
    operators = pd.concat([trace.frame("op"), trace.frame("range")], ignore_index=True)
    gpu["is_shared"] = gpu["correlation"].isin(_shared(trace, calls, "correlation"))
    by_call = _by_id(trace, calls, "correlation").reindex(gpu["correlation"].to_numpy())
    by_operator = _by_id(trace, operators, "external").reindex(gpu["external"].to_numpy())
    called = by_call["thread"].notna().to_numpy()
    gpu["thread"] = np.where(called, by_call["thread"], by_operator["thread"])
    gpu["time"] = np.where(called, by_call["start"], by_operator["start"])
    gpu["time_dur"] = np.where(called, by_call["dur"], by_operator["dur"])
    gpu["call"] = by_call["row"].fillna(-1).to_numpy()
    gpu["by_operator"] = ~called & gpu["thread"].notna()
    gpu["kind"] = np.array(events.KINDS, dtype=object)[gpu["kind"].astype(int)]
    gpu["convolves"] = (gpu["kind"] == "kernel") & _are_in_convolutions(trace, gpu, by_call, by_operator)
    gpu["removed"] = _correct_late_ends(trace, gpu)
    return gpu


def _correct_late_ends(trace: events.Trace, gpu: pd.DataFrame) -> np.ndarray:
    """Correct ends of kernels that are recorded too late, in place, and return the ns removed from each."""
    rows = np.flatnonzero(gpu["kind"] == "kernel")
    kernels = gpu.iloc[rows]
    thread, device, stream, launch = (
        kernels[name].fillna(-1).to_numpy().astype(np.int64) for name in ("thread", "device", "stream", "correlation")
    )
    start = _ns(kernels["start"])
    place = trace.process_codes[thread], device, stream
    late, ns = reconcile.clip_late_ends(start, start + _ns(kernels["dur"]), place, launch)
    removed = np.zeros(len(gpu), dtype=np.int64)
    removed[rows[late]] = ns
    gpu["dur"] -= removed / 1000
    return removed


def _sorted_calls(trace: events.Trace) -> pd.DataFrame:
    """Return the calls by their start, with the number ``row`` of each."""
    calls = trace.frame("call").sort_values("start", kind="stable", ignore_index=True)
    return calls.assign(row=np.arange(len(calls)))


def _are_in_convolutions(
    trace: events.Trace, gpu: pd.DataFrame, by_call: pd.DataFrame, by_operator: pd.DataFrame
) -> np.ndarray:
    """Return which GPU events an operator of a convolution launched: the innermost one around the launch.

    It is the operator with the External id of the event or of its call. Without ids it is the one around the call.
    """
    convolutions = [code for code, name in enumerate(trace.texts) if _CONVOLUTION.fullmatch(name)]
    if not convolutions:
        return np.zeros(len(gpu), dtype=bool)
    operators = trace.frame("op")
    through_call = _by_id(trace, operators, "external").reindex(by_call["external"].to_numpy())
    name = by_operator["name"].fillna(pd.Series(through_call["name"].to_numpy(), index=by_operator.index)).to_numpy()
    found: np.ndarray = np.isin(name, convolutions)
    unknown = np.flatnonzero(np.isnan(name) & gpu["thread"].notna().to_numpy())
    backends = [code for code in convolutions if _BACKEND.match(trace.texts[code])]
    around = operators[operators["name"].isin(backends)]
    for thread, rows in groupby.groups(gpu["thread"].to_numpy()[unknown].astype(np.int64)):
        own = around[around["thread"] == thread]
        start = _ns(own["start"])
        time = _ns(gpu["time"].iloc[unknown[rows]])
        found[unknown[rows]] = groupby.Union(start, start + _ns(own["dur"])).contains(time)
    return found


def _shared(trace: events.Trace, rows: pd.DataFrame, key: str) -> pd.Series[Any]:
    """Return the ids in column ``key`` that several processes of a merged trace use.

    Ranks in containers may have one process id: then calls of one name repeat an id of launches.
    """
    rows = rows[rows[key] > 0]
    process = trace.process_codes[rows["thread"].astype(int)]
    used = pd.DataFrame({"id": rows[key], "process": process, "name": rows["name"]})
    repeated = used[used.duplicated()] if key == "correlation" else used[:0]
    used = used.drop_duplicates(["id", "process"])
    return pd.concat([repeated["id"], used.loc[used["id"].duplicated(), "id"]])


def _by_id(trace: events.Trace, rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return the first event of each id that only one process uses, by that id."""
    alone = rows[(rows[key] > 0) & ~rows[key].isin(_shared(trace, rows, key))]
    return alone.drop_duplicates(key).set_index(key)


def _self_times(ops: pd.DataFrame) -> np.ndarray:
    """Return the microseconds of each operator outside the operators inside it on its thread."""
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


def _ranges(trace: events.Trace) -> attribution.Ranges:
    ranges = trace.frame("range")
    thread, start = ranges["thread"].to_numpy().astype(np.int64), _ns(ranges["start"])
    recorded = [_decoded(text) for text in trace.texts]
    names = [trace.rows.step_names.get(text) or _range_name(text) for text in recorded]
    name, process = ranges["name"].astype(int).to_numpy(), trace.process_codes[thread]
    return attribution.Ranges(start, start + _ns(ranges["dur"]), thread, process, name, names, recorded)


def _decoded(text: str) -> str:
    return unquote(text.removeprefix(schema.ENCODED_PREFIX)) if text.startswith(schema.ENCODED_PREFIX) else text


def _range_name(text: str) -> str:
    # Otherwise each step would be another range.
    if text.startswith(schema.STEP_PREFIX):
        return schema.range_name(text)
    return "ProfilerStep#*" if _STEP.match(text) else text


def _calls(trace: events.Trace, launches: pd.DataFrame) -> attribution.Launches:
    """Return each launch as an instant: a thread that calls inside its range also returns inside it."""
    known = launches["thread"].notna().to_numpy()
    code = launches["thread"].fillna(0).astype(int).to_numpy()
    time = _ns(launches["time"].fillna(0.0))
    thread = np.where(known, code, attribution.NO_THREAD)
    process = np.where(known, trace.process_codes[code], attribution.NO_THREAD)
    return attribution.Launches(time, time, thread, process, (launches["kind"] == "kernel").to_numpy())


def _rows(trace: events.Trace, launches: pd.DataFrame, placed: attribution.Attribution) -> pd.DataFrame:
    """Return one row a launch, as ``launch_tables.kernel_rows`` takes them."""
    return pd.DataFrame(
        {
            "case": groupby.labelled(placed.path, placed.paths.case),
            "process": launches["thread"].map(trace.pids).astype("Float64").astype("Int64"),
            "device": launches["device"].astype("Float64").astype("Int64"),
            "stream": launches["stream"].astype("Float64").astype("Int64"),
            "phase": groupby.labelled(placed.path, placed.paths.phase),
            "kind": launches["kind"],
            "kernel": groupby.labelled(launches["name"].astype(int).to_numpy(), trace.texts),
            "kernel_class": groupby.labelled(launches["convolves"].to_numpy().astype(int), ["", _CONV]),
            "duration_ns": _ns(launches["dur"]),
        }
    )


# --- steps -----------------------------------------------------------------------------------------------------------


def _known_pids(trace: events.Trace) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from numbers of processes to process ids, -1 where they are unknown."""
    # `fillna` would not replace a missing number by NaN.
    pids = dict(zip(trace.process_codes, trace.pids.to_numpy(float, na_value=events.MISSING), strict=False))
    if len({pids[code] for code in trace.process_ranks}) < len(trace.process_ranks):
        # Ranks in containers have one process id.
        pids |= trace.process_ranks
    return lambda codes: np.array(
        [int(pid) if np.isfinite(pid := pids.get(code, events.MISSING)) else -1 for code in codes], dtype=np.int64
    )


def _gpu_operations(trace: events.Trace, launches: pd.DataFrame, in_case: np.ndarray) -> operations.Operations:
    start = _ns(launches["start"])
    called = launches["thread"].notna().to_numpy()
    name, names, classes = launches["name"].to_numpy().astype(int), trace.texts, kernel_classes.classes(trace.texts)
    if (convolves := launches["convolves"].to_numpy(dtype=bool)).any():
        # A kernel that a convolution launched has another class than other launches of its name.
        name = np.where(convolves, name + len(names), name)
        names, classes = [*names, *names], [*classes, *[_CONV] * len(names)]
    process = trace.process_codes[launches["thread"].fillna(-1).to_numpy().astype(int)]
    if called.any() and not called.all():
        # An operation without a call ran for the process that launched most.
        process = np.where(called, process, np.bincount(process[called]).argmax())
    return operations.Operations(
        kind=launches["kind"].map({kind: code for code, kind in enumerate(schema.KINDS)}).to_numpy(),
        start=start,
        end=start + _ns(launches["dur"]),
        launched=np.where(called, _ns(launches["time"].fillna(0.0)), operations.UNKNOWN),
        process=process,
        device=launches["device"].fillna(-1).to_numpy().astype(np.int64),
        name=name,
        names=names,
        classes=classes,
        in_case=in_case,
        stream=launches["stream"].fillna(-1).to_numpy().astype(np.int64),
        read_calls=lambda rows: _calls_of(trace, launches, rows),
        grid=launches["shape"].to_numpy().astype(int),
        read_sizes=lambda: launches["bytes"].fillna(0).to_numpy().astype(np.int64),
        checks=_checks(trace, launches),
    )


def _checks(trace: events.Trace, launches: pd.DataFrame) -> list[reconcile.Row]:
    """Return the kernels whose end was corrected, those that are lost, and those whose process is unknown."""
    removed, kernels = launches["removed"].to_numpy(), launches[launches["kind"] == "kernel"]
    late = np.flatnonzero(removed)
    found = list(reconcile.of_late_ends(removed[late], launches["name"].to_numpy().astype(int)[late], trace.texts))
    found += reconcile.of_shared_ids(int(kernels["is_shared"].sum()), len(kernels))
    found += _lost_kernels(trace)
    launch = kernels["correlation"].fillna(-1).to_numpy().astype(np.int64)
    graph = kernels["graph"].fillna(-1).to_numpy().astype(np.int64)
    found += reconcile.of_replays(graph, np.where(launch > 0, launch, -1), kernels["name"].to_numpy().astype(int))
    return found


def _lost_kernels(trace: events.Trace) -> Iterator[reconcile.Row]:
    """Yield by process how many launches have no kernel in the trace."""
    calls = trace.frame("call")
    thread, time = calls["thread"].to_numpy().astype(int), calls["start"].to_numpy()
    named = {
        pattern: np.isin(calls["name"], [code for code, name in enumerate(trace.texts) if re.search(pattern, name)])
        for pattern in (_LAUNCH.pattern, "StreamBeginCapture", "StreamEndCapture")
    }
    launching, *marks = (np.flatnonzero(rows) for rows in named.values())
    begins, ends = ((thread[each], time[each]) for each in marks)
    launching = launching[~reconcile.are_captured(thread[launching], time[launching], begins, ends)]
    has_kernel = np.isin(calls["correlation"].to_numpy()[launching], trace.frame("gpu")["correlation"])
    for each, rows in groupby.groups(trace.process_codes[thread[launching]]):
        lost = reconcile.of_lost_kernels(len(rows), int(has_kernel[rows].sum()))
        yield from ({**check, "process": int(each)} for check in lost)


def _calls_of(trace: events.Trace, launches: pd.DataFrame, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the calls that launched ``rows``, and their threads."""
    launched = launches.iloc[rows]
    thread = trace.tids[launched["thread"].fillna(-1).to_numpy().astype(int)]
    return _ns(launched["time"].fillna(0.0) + launched["time_dur"].fillna(0.0)), thread


def _waits(trace: events.Trace) -> operations.Calls:
    calls = trace.frame("call")
    waiting = [code for code, name in enumerate(trace.texts) if operations.is_waiting_call(name)]
    calls = calls[calls["name"].isin(waiting)]
    start, thread = _ns(calls["start"]), calls["thread"].to_numpy().astype(int)
    name = calls["name"].to_numpy().astype(int)
    place = trace.process_codes[thread], trace.tids[thread]
    return operations.Calls(start, start + _ns(calls["dur"]), *place, name, trace.texts)


# --- origin ----------------------------------------------------------------------------------------------------------


def _origin(
    trace: events.Trace, launches: pd.DataFrame, rows: pd.DataFrame, placed: attribution.Attribution
) -> schema.Origin:
    kernels = rows[rows["kind"] == "kernel"]
    on_cpu = bool((launches["kind"] == "cpu_op").any())
    is_rocm = any(key.startswith(("hip_", "roctracer")) for key in trace.top)
    # The GPUs that ran something; on ROCm, whose numbers are no indices, all GPUs.
    listed = [d for d in trace.top.get("deviceProperties") or [] if isinstance(d, dict)]
    used = set(launches["device"].dropna())
    listed = [device for device in listed if device.get("id") in used] or listed
    names = dict.fromkeys(str(device["name"]) for device in listed if device.get("name"))
    return schema.Origin(
        format=FORMATS[bool(trace.rows)],
        tool=_tool(trace),
        attribution=_count_placements(launches, placed),
        device=", ".join(names).encode("utf-8", "replace").decode(),
        notes=(*_notes(trace, launches), *placed.paths.notes()),
        details=("ROCm: device numbers are HSA agent ids, which count CPUs too",) if is_rocm else (),
        without_kernels="no GPU events: CPU operators, each with its self time" if on_cpu else "",
    ).with_sums(kernels["duration_ns"], kernels["case"] != "")


def _tool(trace: events.Trace) -> str:
    return "jax" if trace.rows else "torch"


def _count_placements(launches: pd.DataFrame, placed: attribution.Attribution) -> dict[schema.Placement, int]:
    counted = ~launches["kind"].isin(("memcpy", "memset")).to_numpy()
    launches, found, by_time = launches[counted], placed.path[counted] != 0, placed.by_time[counted]
    lost, shared = launches["thread"].isna(), launches["is_shared"]
    counts = {
        schema.Placement.THREAD: found & ~by_time,
        schema.Placement.OTHER_THREAD: found & by_time,
        schema.Placement.NO_RANGE: ~found & launches["thread"].notna(),
        schema.Placement.SHARED_ID: lost & shared,
        schema.Placement.NO_CALL: lost & ~shared,
        schema.Placement.OF_EXTERNAL_ID: launches["by_operator"],
    }
    return {how: int(rows.sum()) for how, rows in counts.items() if rows.any()}


def _notes(trace: events.Trace, launches: pd.DataFrame) -> Iterator[str]:
    kernels_only = launches[launches["kind"] == "kernel"]
    if len(kernels_only):
        # Kernels that two processes launched under one id are no graph.
        of_one_process = kernels_only.loc[~kernels_only["is_shared"], "correlation"]
        counts = of_one_process[of_one_process > 0].value_counts()
        if (of_graphs := counts[counts > 1]).any():
            yield (
                f"{of_graphs.sum()} kernels come from {len(of_graphs)} graph launches; they belong to where the graph "
                "was launched, for ranges inside a graph are not replayed"
            )
    if trace.folded:
        yield bounds.note_of_names(trace.folded)
    yield from _uneven_steps(trace, kernels_only)
    calls = trace.frame("call")
    launching = [code for name, code in trace.names.items() if _LAUNCH.search(name)]
    calls = calls[calls["name"].isin(launching)]
    if len(launches) and (lost := int((~calls["correlation"].isin(launches.get("correlation", []))).sum())):
        yield f"{lost} of {len(calls)} launches have no kernel in the trace: its GPU time is not all there"
    if trace.dropped:
        yield f"{trace.dropped} events with an impossible time dropped"


def _uneven_steps(trace: events.Trace, launched: pd.DataFrame) -> Iterator[str]:
    """Warn of steps with missing kernels, which their common row hides: the first steps of a trace can lack some."""
    is_step = np.array([_STEP.match(name) is not None for name in trace.texts], dtype=bool)
    steps = trace.frame("range").sort_values("start", kind="stable")
    steps = steps[is_step[steps["name"].astype(int)]]
    launched = launched[launched["thread"].notna()]
    process_of_launch = trace.process_codes[launched["thread"].astype(int)]
    for process, rows in groupby.groups(trace.process_codes[steps["thread"].astype(int)]):
        start, end = (steps["start"].iloc[rows].to_numpy(), (steps["start"] + steps["dur"]).iloc[rows].to_numpy())
        time = launched["time"].to_numpy()[process_of_launch == process]
        step = np.searchsorted(start, time, side="right") - 1
        inside = (step >= 0) & (time <= end[step])
        counts = np.bincount(step[inside], minlength=len(rows))
        if counts.min() < counts.max():
            yield (
                f"the {len(rows)} steps of the profiler launched different numbers of kernels, from {counts.min()} to "
                f"{counts.max()}: their common row is no typical step, and the first ones of a trace can lack kernels"
            )
