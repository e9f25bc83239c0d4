"""What surrounds the measured iterations of a case, so that a profiler sees them and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from profpipe.measuring import process
from profpipe.measuring.ranks import Ranks

#: Takes what brings the GPU to the clock that it keeps under load, and calls it as near to the iterations as it can.
Region = Callable[[Callable[[], None]], AbstractContextManager[None]]


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Backward passes on the calling thread instead of autograd's own.

    ncu gives each kernel the ranges of the thread that launched it and no time to place it by, so kernels of a backward
    pass would be in no case. The kernels are the same.
    """
    torch = process.torch()
    if torch is None:
        yield
        return
    with torch.autograd.set_multithreading_enabled(False):
        yield


@contextmanager
def captured(spec: Mapping[str, Any], folder: Path, ranks: Ranks) -> Iterator[Region]:
    """Yields the context to enter around a case's measured iterations.

    nsys ends its capture at the first cudaProfilerStop, so there it is one for all cases. ncu takes any number of
    start/stop pairs, and kernels outside them cost nothing. torch.profiler keeps its records in memory until it is
    asked for them, so each case has a trace of its own: a later crash takes nothing away.

    Of several processes nsys records everything, and the ranges tell what is measured (``profilers/nsys.py``).
    """
    profiler = spec["profiler"]
    if profiler == "nsys" and not ranks.several:
        with _cuda_profiler():
            yield _open
    elif profiler == "ncu":
        yield lambda load: _cuda_profiler()  # every kernel is replayed, with rests between
    elif profiler == "torch":
        stem = ranks.named(spec["stem"])
        traces = (folder / f"{stem}.{number}.pt.trace.json.gz" for number in itertools.count(1))
        yield lambda load: _torch_profiler(next(traces), load)
    else:
        yield _open


@contextmanager
def _open(load: Callable[[], None]) -> Iterator[None]:
    load()
    yield


@contextmanager
def _cuda_profiler() -> Iterator[None]:
    if process.device() == "cpu":
        yield
        return
    torch = process.torch()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


@contextmanager
def _torch_profiler(trace: Path, load: Callable[[], None]) -> Iterator[None]:
    """Records the block. To set the recording up takes milliseconds, in which a GPU rests: so ``load`` runs after."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if process.device() == "cuda" else [])
    recorder = profile(activities=activities)
    recorder.prepare_trace()
    load()
    recorder.start_trace()
    try:
        yield
        if process.device() == "cuda":
            process.torch().cuda.synchronize()
    finally:
        recorder.stop_trace()
    # Renamed when whole: a trace that was being written when the process was killed is not taken for one.
    partial = trace.with_name(f"partial-{trace.name}")
    recorder.export_chrome_trace(str(partial))
    partial.replace(trace)
