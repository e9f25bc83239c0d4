"""The context around the measured iterations of a case that makes a profiler record them and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from profpipe.measure import process_info
from profpipe.measure.distributed import Ranks

#: Makes the context around the iterations; calls its argument, which loads the GPU, as late as possible before them.
Region = Callable[[Callable[[], None]], AbstractContextManager[None]]


@contextmanager
def single_threaded_autograd() -> Iterator[None]:
    """Run backward passes on the calling thread instead of autograd's thread.

    ncu assigns each kernel to the ranges of the thread that launched it, and has no times to assign it by, so kernels
    of a backward pass would belong to no case. The kernels are the same.
    """
    torch = process_info.torch()
    with torch.autograd.set_multithreading_enabled(False) if torch is not None else nullcontext():
        yield


@contextmanager
def capture_cases(spec: Mapping[str, Any], folder: Path, ranks: Ranks) -> Iterator[Region]:
    """Yield the function that makes the context around a case's measured iterations.

    nsys ends its capture at the first cudaProfilerStop, so all cases share one capture. With several processes it
    records everything, and the ranges show what is measured. ncu takes any number of start/stop pairs. torch.profiler
    keeps its records in memory until the export, so each case has its own trace: a later crash loses nothing.
    """
    profiler = spec["profiler"]
    if profiler == "nsys" and not ranks.is_distributed:
        with _cuda_profiler():
            yield _load_only
    elif profiler == "ncu":
        yield lambda load: _cuda_profiler()  # ncu replays every kernel with pauses between, so a load has no effect
    elif profiler == "torch":
        stem = ranks.file_name(spec["stem"])
        traces = (folder / f"{stem}.{number}.pt.trace.json.gz" for number in itertools.count(1))
        yield lambda load: _torch_profiler(next(traces), load)
    else:
        yield _load_only


@contextmanager
def _load_only(load: Callable[[], None]) -> Iterator[None]:
    load()
    yield


@contextmanager
def _cuda_profiler() -> Iterator[None]:
    if process_info.device() == "cpu":
        yield
        return
    torch = process_info.torch()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


@contextmanager
def _torch_profiler(trace: Path, load: Callable[[], None]) -> Iterator[None]:
    """Record the block. Setting up the recorder takes milliseconds, in which a GPU idles, so ``load`` runs after it."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = process_info.device() == "cuda"
    recorder = profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu)
    recorder.prepare_trace()
    load()
    recorder.start_trace()
    try:
        yield
        if on_gpu:
            process_info.torch().cuda.synchronize()
    finally:
        recorder.stop_trace()
    # Renamed when complete, so that the trace of a killed process is not read.
    partial = trace.with_name(f"partial-{trace.name}")
    recorder.export_chrome_trace(str(partial))
    partial.replace(trace)
