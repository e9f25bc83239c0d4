"""Runs inside the workload's process: its cases, one after the other, whatever the profiler.

``python -m profpipe.harness raw/<workload>/<profiler>/cases.json``. Each iteration of a case stands in a range
``profpipe:<case id>``, and all of them between cudaProfilerStart and cudaProfilerStop, so that every profiler sees the
same region. What happened is appended to ``events.jsonl`` beside the specification, line by line: what finished before
a crash is never lost.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from profpipe import load, ranges, sizes, timing

#: Exit code of a process that could not go on after a CUDA error.
CONTEXT_LOST = 70

CASE_PREFIX = "profpipe:"  # as tables.CASE_PREFIX, which this process does not import: it would bring pandas


class Events:
    """``events.jsonl``, one JSON object a line, on disk before the next thing happens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        self._stream.flush()

    def metric(self, case: str, metric: str, value: float | None, unit: str) -> None:
        if value is not None:
            self.write("metric", case=case, subject="", metric=metric, value=value, unit=unit, n=1)

    def of(self, case: str) -> Callable[..., None]:
        """``write`` for one case."""
        return functools.partial(self.write, case=case)


def main(argv: list[str]) -> int:
    """Runs the specification ``argv[0]``; 0 when every case was tried, whatever became of it."""
    spec_path = Path(argv[0])
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    with (spec_path.parent / "events.jsonl").open("a", encoding="utf-8") as stream:
        events = Events(stream)
        events.write("started", profiler=spec["profiler"], ranges=ranges.use(spec["profiler"]), **_process())
        desk = _Desk(load.module(Path(spec["script"])), spec, events, _device())
        if spec["profiler"] == "plain":
            for case in spec["cases"]:
                _run_case(desk, case, functools.partial(_time, desk, case["id"]))
        else:
            _profile_cases(desk, spec_path.parent)
        events.write("finished", time=time.time())
    return 0


def _torch() -> Any:
    """torch, or None: a workload need not use it."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def _device() -> str:
    torch = _torch()
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


def _process() -> dict[str, Any]:
    """What only this process knows: its torch, and the device that torch sees."""
    torch = _torch()
    seen: dict[str, Any] = {"pid": os.getpid(), "time": time.time(), "machine": {"device": "cpu"}}
    if torch is not None:
        seen |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    if _device() == "cuda":
        properties = torch.cuda.get_device_properties(0)
        seen["machine"] = {
            "device": properties.name,
            "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
        }
    return seen


# --- one case --------------------------------------------------------------------------------------------------------


@dataclass
class _Desk:
    """What every case needs, and what earlier ones left: the parameters that ran out of memory."""

    workload: Any
    spec: Mapping[str, Any]
    events: Events
    device: str
    out_of_memory: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _End:
    """How a case ended."""

    status: str
    reason: str = ""
    flags: Sequence[str] = ()


def _run_case(desk: _Desk, case: Mapping[str, Any], do: Callable[[dict[str, Any]], _End]) -> None:
    """Tries one case and writes down what became of it. A case that fails does not end those after it."""
    name, params, begin = case["id"], _complete(desk.workload, case["params"]), time.time()
    desk.events.write("case_started", case=name, params=params, time=begin)
    try:
        end = _unwanted(desk, name, params) or do(params)
    except Exception as error:  # whatever a workload raises is its case's result, never the end of the sweep
        end = _End("oom" if _out_of_memory(error) else "failed", _one_line(error))
        desk.events.write("error", case=name, traceback=traceback.format_exc())
    if end.status == "oom":
        desk.out_of_memory.append(params)
    lost = _clean_up()
    if lost:
        end = _End("crashed", f"{end.reason or 'CUDA error'}; the CUDA context is lost")
    desk.events.write("case_ended", case=name, **vars(end), seconds=time.time() - begin)
    if lost:
        # Every later call would fail in this process; the runner goes on with the next case in a new one.
        sys.exit(CONTEXT_LOST)


def _complete(workload: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the workload's defaults for those that the pipeline does not set."""
    return {**getattr(workload, "PARAMS", {}), **params}


def _optional(workload: Any, name: str, params: Mapping[str, Any]) -> Any:
    function = getattr(workload, name, None)
    return function(params) if function else None


def _unwanted(desk: _Desk, name: str, params: Mapping[str, Any]) -> _End | None:
    """Why the case is not tried, if there is a reason; writes the kernels that it should run."""
    desk.events.write("expects", case=name, family=_optional(desk.workload, "expects", params) or "")
    if desk.spec["options"].get("skip_larger_after_oom", True):
        for smaller in desk.out_of_memory:
            if sizes.larger(params, smaller):
                return _End("skipped", "larger in every dimension than a case that ran out of memory")
    reason = _optional(desk.workload, "available", params)
    return _End("skipped", reason) if reason else None


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _clean_up() -> bool:
    """Gives the case's memory back before the next one; True when the CUDA context did not survive the case."""
    gc.collect()
    if _device() == "cuda":
        torch = _torch()
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            return True
    return False


# --- without a profiler ----------------------------------------------------------------------------------------------


def _time(desk: _Desk, name: str, params: dict[str, Any]) -> _End:
    """Times the case by CUDA events, or by the host's clock on a CPU."""
    samples = timing.measure(
        desk.workload.build(params),
        device=desk.device,
        warmup=desk.spec["warmup"],
        repeats=desk.spec["repeats"],
        range_name=CASE_PREFIX + name,
        annotate=ranges.annotate,
    )
    desk.events.write("samples", case=name, unit="ns", clock=samples.clock, values=samples.values_ns)
    for note in samples.notes:
        desk.events.write("note", case=name, text=note)
    desk.events.metric(name, "peak_allocated", samples.peak_allocated, "byte")
    desk.events.metric(name, "peak_reserved", samples.peak_reserved, "byte")
    return _End("ok", flags=[*samples.flags, *_facts(desk, name, params)])


def _facts(desk: _Desk, name: str, params: Mapping[str, Any]) -> list[str]:
    """What is true of the case whoever measures it: its work, and how far its result is from the reference.

    The times stand even where the reference does not fit the memory; the case then carries the mark `unchecked`.
    """
    desk.events.metric(name, "flops", _optional(desk.workload, "flops", params), "flop")
    desk.events.metric(name, "bytes_moved", _optional(desk.workload, "bytes_moved", params), "byte")
    try:
        checked = _optional(desk.workload, "check", params) or {}
    except Exception as error:  # as for the case itself: recorded, and not the end
        what = {"during": "check", "reason": _one_line(error), "traceback": traceback.format_exc()}
        desk.events.write("error", case=name, **what)
        return ["unchecked"]
    for metric, value in checked.items():
        desk.events.metric(name, metric, value, "1")
    _keep_snapshot(desk, name, params)
    return []


def _keep_snapshot(desk: _Desk, name: str, params: Mapping[str, Any]) -> None:
    """Files that the workload wants kept of the case (``snapshot``), in ``snapshots/<case id>`` beside the record."""
    snapshot = getattr(desk.workload, "snapshot", None)
    if snapshot is None:
        return
    folder = Path(desk.spec["folder"], "snapshots", name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in snapshot(params, folder):
            desk.events.write("note", case=name, text=f"kept: snapshots/{name}/{file.name}")
        if not any(folder.iterdir()):
            folder.rmdir()
    except Exception as error:  # as for the check: the times stand
        what = {"during": "snapshot", "reason": _one_line(error), "traceback": traceback.format_exc()}
        desk.events.write("error", case=name, **what)


# --- under a profiler ------------------------------------------------------------------------------------------------

Region = Callable[[], AbstractContextManager[None]]


def _profile_cases(desk: _Desk, folder: Path) -> None:
    with _captured(desk.spec, folder) as region:
        for case in desk.spec["cases"]:
            _run_case(desk, case, functools.partial(_profile, desk, case["id"], region))


def _profile(desk: _Desk, name: str, region: Region, params: dict[str, Any]) -> _End:
    fn, repeats, range_name = desk.workload.build(params), desk.spec["repeats"], CASE_PREFIX + name
    timing.warm_up(fn, desk.spec["warmup"], device=desk.device)
    if desk.spec["profiler"] == "ncu":
        repeats = 1  # ncu replays each kernel for every group of counters, so one iteration has them all
        with region(), _on_one_thread(), ranges.annotate(range_name):
            fn()
    else:
        with region():
            timing.repeat(fn, repeats, device=desk.device, range_name=range_name, annotate=ranges.annotate)
    desk.events.metric(name, "iterations", repeats, "1")
    return _End("ok")


@contextmanager
def _on_one_thread() -> Iterator[None]:
    """Backward passes on the calling thread instead of autograd's own.

    ncu gives each kernel the ranges of the thread that launched it and no time to place it by, so kernels of a backward
    pass would be in no case. The kernels are the same.
    """
    torch = _torch()
    if torch is None:
        yield
        return
    with torch.autograd.set_multithreading_enabled(False):
        yield


@contextmanager
def _captured(spec: Mapping[str, Any], folder: Path) -> Iterator[Region]:
    """Yields the context to enter around a case's measured iterations.

    nsys ends its capture at the first cudaProfilerStop, so there it is one for all cases. ncu takes any number of
    start/stop pairs, and kernels outside them cost nothing. torch.profiler keeps its records in memory until it is
    asked for them, so each case has a trace of its own: a later crash takes nothing away.
    """
    profiler = spec["profiler"]
    if profiler == "nsys":
        with _cuda_profiler():
            yield _open
    elif profiler == "ncu":
        yield _cuda_profiler
    elif profiler == "torch":
        traces = (folder / f"{spec['stem']}.{number}.pt.trace.json.gz" for number in itertools.count(1))
        yield lambda: _torch_profiler(next(traces))
    else:
        yield _open


@contextmanager
def _open() -> Iterator[None]:
    yield


@contextmanager
def _cuda_profiler() -> Iterator[None]:
    if _device() == "cpu":
        yield
        return
    torch = _torch()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


@contextmanager
def _torch_profiler(trace: Path) -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if _device() == "cuda" else [])
    with profile(activities=activities) as recorded:
        yield
        if _device() == "cuda":
            _torch().cuda.synchronize()
    # Renamed when whole: a trace that was being written when the process was killed is not taken for one.
    partial = trace.with_name(f"partial-{trace.name}")
    recorded.export_chrome_trace(str(partial))
    partial.replace(trace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
