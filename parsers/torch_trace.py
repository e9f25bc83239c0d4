"""Read Chrome traces of torch.profiler (Kineto), plain or gzipped, from torch 1.8 on, of CUDA, ROCm and CPUs.

Traces of jax.profiler of a GPU are read as if Kineto had written them (``profpipe.ingest.torch_events``).

The format is Kineto's ``output_json.cpp``: ``ts`` and ``dur`` are microseconds, whatever ``displayTimeUnit`` is. A GPU
event has the correlation id of the runtime or driver call that launched it, and the ``External id`` of the operator
around that call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import (
    attribution,
    foreign_files,
    groupby,
    host,
    json_stream,
    kernel_classes,
    modules,
    operations,
    recording as events,
    torch_events,
)
from profpipe.ingest.groupby import Ints
from profpipe.ingest.steps import reconcile
from profpipe.ingest.torch_events import Trace
from profpipe.results import schema

FORMATS = (
    "torch.profiler Chrome trace (.json, .json.gz)",
    "Chrome trace of jax.profiler, of a GPU (.trace.json.gz)",
)

_STEP = re.compile(r"^ProfilerStep#\d+$")
#: Operators of PyTorch and its backends that compute a convolution: aten::convolution, aten::cudnn_convolution_relu,
#: aten::miopen_convolution, aten::convolution_backward, aten::slow_conv2d_forward, aten::conv1d, ...
_CONVOLUTION = re.compile(r"aten::\w*conv(olution|\d|_(transpose|depthwise|tbc))\w*")
#: Those of them that launch kernels themselves.
_BACKEND = re.compile(rf"(?!aten::(convolution$|_convolution$|conv\d|conv_)){_CONVOLUTION.pattern}")
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


def parse(path: Path, step_range: str | None = "") -> schema.Tables:
    """Read kernels, ranges and steps; CPU operators by self time where the trace has no GPU events.

    ``step_range`` is a regular expression for the ranges that are steps. Raises ``UnreadableFile`` for a damaged trace
    and for one without GPU events, operators and ranges.
    """
    trace = torch_events.read(path)
    recording = _read(trace)
    if not len(recording.operations.start) and not len(recording.ranges.start):
        foreign_files.refuse(path)
        if not {"schemaVersion", "deviceProperties"} & trace.top.keys():
            raise UnreadableFile(path, "a Chrome trace without an event of torch.profiler or JAX", _OF_ANOTHER_TOOL)
        raise UnreadableFile(path, "a Chrome trace without GPU events, operators or ranges", _RECORD_SOMETHING)
    tables = events.tables(recording, step_range, path.parent)
    module_rows = tables.modules
    if trace.of_modules is not None:
        module_rows = modules.rows(_read(trace.of_modules), trace.of_modules).assign(profiler=tables.origin.tool)
    return _fill_ranks(tables, module_rows, trace)


def launches(path: Path) -> pd.DataFrame:
    """Read single launches (``launch_tables.COLUMNS``), none without grids. Raises ``UnreadableFile``."""
    return events.launches(_read(torch_events.read(path)))


def recording(path: Path) -> events.Recording:
    """Read the single events of a trace. Raises ``UnreadableFile``, also for a trace without GPU events."""
    recorded = _read(torch_events.read(path))
    if not recorded.on_gpu:
        remedy = (
            "Open this trace in ui.perfetto.dev as it is, or record with ProfilerActivity.CUDA on a machine with a GPU."
        )
        raise UnreadableFile(path, "a Chrome trace without GPU events", remedy)
    return events.traced(recorded)


def _fill_ranks(tables: schema.Tables, module_rows: pd.DataFrame, trace: Trace) -> schema.Tables:
    """Return ``tables`` with `modules`, and with the rank that torch.distributed gave, or those of a merged trace."""
    group = trace.top.get("distributedInfo")
    rank = group.get("rank") if isinstance(group, dict) else None
    stated_rank: Any = rank if type(rank) is int and 0 <= rank < 2**31 else pd.NA
    size = group.get("world_size") if isinstance(group, dict) else None
    rank_of = (stated_rank, size) if stated_rank is not pd.NA and type(size) is int and stated_rank < size else None
    merged = {int(trace.pids(code)): rank for code, rank in trace.process_ranks.items()}
    changed = {}
    for name in ("steps", "timeline"):
        frame = getattr(tables, name)
        ranks = frame["process"].map(merged) if merged else pd.Series(stated_rank, index=frame.index)
        changed[name] = frame.assign(rank=ranks.astype("Int64"))
    return replace(tables, **changed, modules=module_rows, rank_of=rank_of)


def _read(trace: Trace) -> events.Recording:
    """Return the work of the GPU; without one the operators, which last their self time."""
    calls = trace.frame("call").sort_values("start", kind="stable", ignore_index=True)
    work = _launches(trace, calls)
    on_gpu = not work.empty
    if not on_gpu:
        work = trace.frame("op").assign(kind="cpu_op", device=-1, stream=-1, by_operator=False, is_shared=False)
        work = work.assign(dur=_self_times(work), time=work["start"], time_dur=0.0, convolves=False, call=-1)
        work = work.assign(bytes=0.0, shape=-1, graph=torch_events.MISSING)
    start, ranges = _ns(work["start"]), _ranges(trace)
    called = work["thread"].notna().to_numpy()
    thread = work["thread"].fillna(-1).to_numpy().astype(int)
    time = np.where(called, _ns(work["time"].fillna(0.0)), operations.UNKNOWN)
    process = trace.process_codes[thread]
    # A thread that calls inside its range also returns inside it, but times are rounded: a call is an instant.
    launched = attribution.Launches(
        time,
        time,
        np.where(called, thread, attribution.NO_THREAD),
        np.where(called, process, attribution.NO_THREAD),
        (work["kind"] == "kernel").to_numpy(),
    )
    if called.any() and not called.all():
        # An operation without a call ran for the process that launched most.
        process = np.where(called, process, np.bincount(process[called]).argmax())
    # An operator around the launch may last much longer than its call.
    returned = _ns(work["time"].fillna(0.0) + work["time_dur"].where(~work["by_operator"], 0.0).fillna(0.0))
    name, names, classes = _names(trace, work)
    given = operations.Operations(
        kind=work["kind"].map({kind: code for code, kind in enumerate(schema.KINDS)}).to_numpy(dtype=np.int64),
        start=start,
        end=start + _ns(work["dur"]),
        launched=time,
        process=process,
        device=work["device"].fillna(-1).to_numpy().astype(np.int64),
        name=name,
        names=names,
        classes=classes,
        stream=work["stream"].fillna(-1).to_numpy().astype(np.int64),
        correlation=work["correlation"].fillna(-1).to_numpy().astype(np.int64),
        read_calls=lambda rows: (returned[rows], trace.tids[thread[rows]]),
        grid=work["shape"].to_numpy().astype(int),
        read_sizes=lambda: work["bytes"].fillna(0).to_numpy().astype(np.int64),
        checks=_checks(trace, work, calls),
    )
    recording = events.Recording(
        given,
        launched,
        ranges,
        _calls(trace, calls[calls["name"].isin(trace.named(operations.is_waiting_call))]),
        trace.pids,
        lambda threads: trace.tids[threads],
        _origin(trace, work, calls, on_gpu),
        functools.partial(_count_placements, work),
        on_gpu=on_gpu,
        offset_ns=trace.offset_ns,
        read_host=functools.partial(_read_host, trace, calls),
        read_shapes=functools.partial(_shapes, trace, work),
        read_calls=lambda: (_calls(trace, calls), work["call"].to_numpy().astype(int)),
    )
    return events.corrected(recording)


def _names(trace: Trace, work: pd.DataFrame) -> tuple[Ints, list[str], list[str]]:
    """Return (numbers of the names, names, their classes where the trace states one).

    A kernel that a convolution launched has another class than other launches of its name.
    """
    name, used = pd.factorize(work["name"].to_numpy().astype(int))
    names = [trace.texts[code] for code in used]
    convolves = work["convolves"].to_numpy(dtype=bool)
    if not convolves.any():
        return name, names, []
    classes = [*[""] * len(names), *[kernel_classes.CONVOLUTION] * len(names)]
    return np.where(convolves, name + len(names), name), [*names, *names], classes


def _shapes(trace: Trace, work: pd.DataFrame) -> pd.DataFrame | None:
    kernels = work[work["kind"] == "kernel"]
    shapes = np.array([*trace.shapes, ("", "")], dtype=object)[kernels["shape"].to_numpy().astype(int)]
    return pd.DataFrame(shapes, columns=["grid", "block"]) if shapes.all() else None


def _calls(trace: Trace, calls: pd.DataFrame) -> operations.Spans:
    start, thread = _ns(calls["start"]), calls["thread"].to_numpy().astype(int)
    place = trace.tids[thread], trace.process_codes[thread]
    name = calls["name"].to_numpy().astype(int)
    return operations.Spans(start, start + _ns(calls["dur"]), *place, name, trace.texts)


# --- launches --------------------------------------------------------------------------------------------------------


def _launches(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the GPU's events with ``thread`` and ``time`` of their launch, NaN where unknown.

    The launch is the call with the same correlation id, else the operator with the same External id (``by_operator``).
    Ids that several processes of a merged trace use (``is_shared``) are not joined.
    """
    gpu = trace.frame("gpu")
    operators = pd.concat([trace.frame("op"), trace.frame("range")], ignore_index=True)
    gpu["is_shared"] = gpu["correlation"].isin(_shared(trace, calls, "correlation"))
    by_call = _look_up_ids(trace, calls.assign(row=calls.index), "correlation", gpu["correlation"])
    by_operator = _look_up_ids(trace, operators, "external", gpu["external"])
    called = by_call["thread"].notna().to_numpy()
    for name, column in (("thread", "thread"), ("time", "start"), ("time_dur", "dur")):
        gpu[name] = np.where(called, by_call[column], by_operator[column])
    gpu["call"] = by_call["row"].fillna(-1).to_numpy()
    gpu["by_operator"] = ~called & gpu["thread"].notna()
    gpu["kind"] = np.array(torch_events.KINDS, dtype=object)[gpu["kind"].astype(int)]
    gpu["convolves"] = (gpu["kind"] == "kernel") & _are_in_convolutions(trace, gpu, by_call, by_operator)
    return gpu


def _are_in_convolutions(trace: Trace, gpu: pd.DataFrame, by_call: pd.DataFrame, by_operator: pd.DataFrame) -> Ints:
    """Return which GPU events an operator of a convolution launched: the innermost one around the launch.

    It is the operator with the External id of the event or of its call. Without ids it is the one around the call.
    """
    convolutions = trace.named(_CONVOLUTION.fullmatch)
    if not convolutions:
        return np.zeros(len(gpu), dtype=bool)
    operators = trace.frame("op")
    through_call = _look_up_ids(trace, operators, "external", by_call["external"])
    name = by_operator["name"].fillna(through_call["name"]).to_numpy()
    convolves: Ints = np.isin(name, convolutions)
    unknown = np.flatnonzero(np.isnan(name) & gpu["thread"].notna().to_numpy())
    around = operators[operators["name"].isin(trace.named(_BACKEND.fullmatch))]
    for thread, rows in groupby.groups(gpu["thread"].to_numpy()[unknown].astype(np.int64)):
        thread_operators = around[around["thread"] == thread]
        start = _ns(thread_operators["start"])
        time = _ns(gpu["time"].iloc[unknown[rows]])
        convolves[unknown[rows]] = groupby.Union(start, start + _ns(thread_operators["dur"])).contains(time)
    return convolves


def _shared(trace: Trace, rows: pd.DataFrame, key: str) -> pd.Series[Any]:
    """Return the ids in column ``key`` that several processes of a merged trace use.

    Ranks in containers may have one process id: then calls of one name repeat an id of launches.
    """
    rows = rows[rows[key] > 0]
    process = trace.process_codes[rows["thread"].astype(int)]
    used = pd.DataFrame({"id": rows[key], "process": process, "name": rows["name"]})
    repeated = used[used.duplicated()] if key == "correlation" else used[:0]
    used = used.drop_duplicates(["id", "process"])
    return pd.concat([repeated["id"], used.loc[used["id"].duplicated(), "id"]])


def _look_up_ids(trace: Trace, rows: pd.DataFrame, key: str, ids: pd.Series[Any]) -> pd.DataFrame:
    """Return the first events of the ``ids`` that only one process uses, NaN without one."""
    alone = rows[(rows[key] > 0) & ~rows[key].isin(_shared(trace, rows, key))]
    return alone.drop_duplicates(key).set_index(key, drop=False).reindex(ids.to_numpy()).reset_index(drop=True)


def _self_times(ops: pd.DataFrame) -> Ints:
    """Return the microseconds of an operator outside the operators inside it on its thread."""
    order = np.lexsort((-ops["dur"], ops["start"], ops["thread"]))
    columns = (ops["thread"], ops["start"], ops["start"] + ops["dur"], ops["dur"])
    thread, start, end, self_us = (column.to_numpy()[order].tolist() for column in columns)
    stack: list[int] = []
    for i in range(len(order)):
        while stack and (thread[stack[-1]] != thread[i] or end[stack[-1]] <= start[i]):
            stack.pop()
        if stack:
            self_us[stack[-1]] -= min(end[i], end[stack[-1]]) - start[i]
        stack.append(i)
    result = np.empty(len(order))
    result[order] = np.maximum(self_us, 0.0)
    return result


def _ns(microseconds: pd.Series[Any]) -> Any:
    return np.rint(microseconds.to_numpy() * 1000).astype(np.int64)


# --- ranges ----------------------------------------------------------------------------------------------------------


def _ranges(trace: Trace) -> operations.Spans:
    ranges = trace.frame("range")
    thread, start = ranges["thread"].to_numpy().astype(np.int64), _ns(ranges["start"])
    recorded = [schema.decoded(text) for text in trace.texts]
    names = [trace.rows.step_names.get(text) or _range_name(text) for text in recorded]
    name, process = ranges["name"].astype(int).to_numpy(), trace.process_codes[thread]
    return operations.Spans(start, start + _ns(ranges["dur"]), thread, process, name, names, recorded)


def _range_name(text: str) -> str:
    # Otherwise a step would be another range.
    if text.startswith(schema.STEP_PREFIX):
        return schema.range_name(text)
    return "ProfilerStep#*" if _STEP.match(text) else text


# --- what the host did -----------------------------------------------------------------------------------------------


def _read_host(trace: Trace, calls: pd.DataFrame) -> tuple[operations.Spans, operations.Spans, operations.Spans]:
    """Return events that may be waits, nothing of the operating system, and places.

    Places are functions of Python where the trace has them, else the ranges and the outermost operators.
    """
    ranges, ops, lines = (trace.frame(sort) for sort in ("range", "op", "line"))
    ops = ops.sort_values(["thread", "start", "dur"], ascending=[True, True, False], kind="stable")
    end = ops["start"] + ops["dur"]
    reached = end.groupby(ops["thread"]).cummax().groupby(ops["thread"]).shift(fill_value=-np.inf)
    texts = [schema.decoded(text).removeprefix("autograd::engine::evaluate_function: ") for text in trace.texts]
    places = _calls(trace, pd.concat([ranges, ops[ops["start"] >= reached]]))
    if len(lines):
        texts, places = _lines(trace, lines)
    named = _calls(trace, pd.concat([ranges, ops, lines, calls]))
    return named, operations.Spans.none(), replace(places, names=texts)


def _lines(trace: Trace, lines: pd.DataFrame) -> tuple[list[str], operations.Spans]:
    """Return (places, the functions of Python, whose names index them).

    A function of a package has that of the script before it: ``train.py:9 main > models/moe.py:14 forward``.
    Of a function that was open when the recording began the trace has the line at which it stood, which is left out.
    """
    functions = [torch_events.name_line(text) for text in trace.texts]
    spans = _calls(trace, lines[lines["name"].isin(trace.named(torch_events.name_line))])
    was_open = spans.start == spans.start.min(initial=np.iinfo(np.int64).max)
    spans = replace(spans, name=np.where(was_open, spans.name + len(functions), spans.name))
    functions += [re.sub(r":\d+ ", " ", text, count=1) for text in functions]
    is_script = np.array([not re.search(r"[/\\]", text) for text in functions], dtype=bool)[spans.name]
    outer = np.full(len(spans.start), -1)
    for _, rows in groupby.groups(spans.thread):
        of_scripts = host.tile(spans.of(rows[is_script[rows]]))
        outer[rows] = np.where(is_script[rows], -1, host.look_up(of_scripts, spans.start[rows] + 1))
    code, firsts = groupby.combine(outer, spans.name)
    pairs = zip(outer[firsts].tolist(), spans.name[firsts].tolist(), strict=True)
    texts = [schema.PATH_SEPARATOR.join([*([functions[o]] if o >= 0 else []), functions[i]]) for o, i in pairs]
    return texts, replace(spans, name=code, names=texts)


# --- checks and origin -----------------------------------------------------------------------------------------------


def _checks(trace: Trace, work: pd.DataFrame, calls: pd.DataFrame) -> list[reconcile.Row]:
    """Return the kernels that are lost, those whose process is unknown, and the replays that lack some."""
    kernels = work[work["kind"] == "kernel"]
    checks = list(reconcile.of_shared_ids(int(kernels["is_shared"].sum()), len(kernels)))
    checks += _lost_kernels(trace, work, calls)
    launch = kernels["correlation"].fillna(-1).to_numpy().astype(np.int64)
    graph = kernels["graph"].fillna(-1).to_numpy().astype(np.int64)
    checks += reconcile.of_replays(graph, np.where(launch > 0, launch, -1), kernels["name"].to_numpy().astype(int))
    return checks


def _lost_kernels(trace: Trace, work: pd.DataFrame, calls: pd.DataFrame) -> Iterator[reconcile.Row]:
    """Yield by process how many launches have no kernel in the trace."""
    thread, time = calls["thread"].to_numpy().astype(int), calls["start"].to_numpy()
    patterns = (_LAUNCH, re.compile("StreamBeginCapture"), re.compile("StreamEndCapture"))
    launching, *marks = (np.flatnonzero(calls["name"].isin(trace.named(pattern.search))) for pattern in patterns)
    begins, ends = ((thread[mark], time[mark]) for mark in marks)
    launching = launching[~reconcile.are_captured(thread[launching], time[launching], begins, ends)]
    has_kernel = np.isin(calls["correlation"].to_numpy()[launching], trace.frame("gpu")["correlation"])
    launched = work[work["time"].notna()]
    later = reconcile.may_run_later(time[launching], launched["start"].to_numpy(), launched["time"].to_numpy())
    kept = np.flatnonzero(has_kernel | ~later)
    for process, of_process in groupby.groups(trace.process_codes[thread[launching[kept]]]):
        rows = kept[of_process]
        lost = reconcile.of_lost_kernels(len(rows), int(has_kernel[rows].sum()))
        yield from ({**check, "process": int(process)} for check in lost)


def _origin(trace: Trace, work: pd.DataFrame, calls: pd.DataFrame, on_gpu: bool) -> schema.Origin:
    # The GPUs that ran something; on ROCm, whose numbers are no indices, all GPUs.
    given = trace.top.get("deviceProperties")
    listed = [d for d in given if isinstance(d, dict)] if isinstance(given, list) else []
    used = work["device"].dropna().unique().tolist()
    listed = [device for device in listed if device.get("id") in used] or listed
    names = dict.fromkeys(str(device["name"]) for device in listed if device.get("name"))
    is_rocm = any(key.startswith(("hip_", "roctracer")) for key in trace.top)
    has_operators = not on_gpu and len(work) > 0
    return schema.Origin(
        format=FORMATS[bool(trace.rows)],
        tool="jax" if trace.rows else "torch",
        device=", ".join(names).encode("utf-8", "replace").decode(),
        notes=tuple(_notes(trace, work, calls)),
        details=("ROCm: device numbers are HSA agent ids, which count CPUs too",) if is_rocm else (),
        without_kernels="no GPU events: CPU operators, each with its self time" if has_operators else "",
    )


def _count_placements(work: pd.DataFrame, placed: attribution.Attribution) -> dict[schema.Placement, int]:
    counted = ~work["kind"].isin(("memcpy", "memset")).to_numpy()
    work, is_placed, by_time = work[counted], placed.path[counted] != 0, placed.by_time[counted]
    lost, shared = work["thread"].isna(), work["is_shared"]
    counts = {
        schema.Placement.THREAD: is_placed & ~by_time,
        schema.Placement.OTHER_THREAD: is_placed & by_time,
        schema.Placement.NO_RANGE: ~is_placed & work["thread"].notna(),
        schema.Placement.SHARED_ID: lost & shared,
        schema.Placement.NO_CALL: lost & ~shared,
        schema.Placement.OF_EXTERNAL_ID: work["by_operator"],
    }
    return {how: int(rows.sum()) for how, rows in counts.items() if rows.any()}


def _notes(trace: Trace, work: pd.DataFrame, calls: pd.DataFrame) -> Iterator[str]:
    kernels_only = work[work["kind"] == "kernel"]
    if len(kernels_only):
        # Kernels that two processes launched under one id are no graph.
        of_one_process = kernels_only.loc[~kernels_only["is_shared"], "correlation"]
        counts = of_one_process[of_one_process > 0].value_counts()
        if (of_graphs := counts[counts > 1]).any():
            yield (
                f"{of_graphs.sum()} kernels come from {len(of_graphs)} graph launches; they belong to where the graph "
                "was launched, for ranges inside a graph are not replayed"
            )
    yield from _uneven_steps(trace, kernels_only)
    calls = calls[calls["name"].isin(trace.named(_LAUNCH.search))]
    if len(work) and (lost := int((~calls["correlation"].isin(trace.frame("gpu")["correlation"])).sum())):
        yield (
            f"{lost} of {len(calls)} launches have no kernel in the trace: its GPU time is not all there, or they ran "
            "after the end of the trace"
        )
    if trace.dropped:
        yield f"{trace.dropped} events with an impossible time dropped"


def _uneven_steps(trace: Trace, launched: pd.DataFrame) -> Iterator[str]:
    """Warn of steps with missing kernels, which their common row hides: the first steps of a trace can lack some."""
    steps = trace.frame("range").sort_values("start", kind="stable")
    steps = steps[steps["name"].isin(trace.named(_STEP.match))]
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
