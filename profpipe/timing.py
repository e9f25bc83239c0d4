"""How a callable is timed: warm-up, cache flush, one sample an iteration, memory, and whether the host was the brake.

``measure`` times; ``repeat`` runs the same iterations without a clock, for profilers that bring their own. Both drop
what the callable returns at once. Neither needs numpy, and torch only for ``device="cuda"``.

The caches are flushed before each sample, outside the range and the clock. Without that a tensor that fits the L2 is
read from it, and memory-bound kernels have been seen to come out 1.6 times too fast. On a GPU the flush also gives the
host time to queue the sample's kernels, so that their launch is not part of the time.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

MIB: Final = 2**20

#: Least size of the flush on a GPU, that of Triton's ``do_bench``: 56 us at 4.8 TB/s, in which a sample is queued.
_LEAST_GPU_FLUSH_BYTES: Final = 256 * MIB
_CPU_FLUSH_BYTES: Final = 64 * MIB
_CPU_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")

#: Warm-up calls that are issued into an idle GPU, to learn what issuing one costs the host.
_ISSUES: Final = 5

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Samples:
    """One time an iteration, in order, and what is known about them.

    ``clock`` is ``cuda_event`` or ``perf_counter``. The peaks are bytes of torch's GPU allocator, inputs included and
    the flush buffer not; None on a CPU. ``host_bound`` is None where it was not looked for.
    """

    values_ns: list[float]
    clock: str
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    host_bound: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """The validity marks of a case measured so."""
        return ["host_bound"] if self.host_bound else []


def measure(
    fn: Callable[[], object], *, device: str, warmup: int, repeats: int, range_name: str, annotate: Annotate
) -> Samples:
    """``repeats`` samples of ``fn`` after ``warmup`` calls that are not measured and stand in no range.

    On ``device="cuda"``: a pair of events around each call, all recorded before the one synchronisation at the end, on
    the current stream, so work on other streams counts only as far as that stream waits for it.

    Host-bound means that the host takes longer to issue a call (median of the last warm-up calls, up to 5 and never the
    first, each into an idle GPU) than the GPU takes for it (median of the samples): outside this loop, where no flush
    keeps the GPU busy meanwhile, it waits for launches. With fewer than 2 warm-up calls it is not known.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    issues = min(_ISSUES, max(0, warmup - 1))
    with _WATCHES[device]() as watch:
        warm_up(fn, warmup - issues, device=device)
        issue_ns = watch.issue_ns(fn, issues)
        watch.forget_peaks()
        _iterate(fn, range(repeats), watch, range_name, annotate)
        values_ns = watch.values_ns()
        allocated, reserved = watch.peaks()
        notes = [f"{watch.flush_bytes} bytes written between samples to flush the caches"]
    median_ns = statistics.median(values_ns)
    host_bound = None if issue_ns is None else issue_ns > median_ns
    if host_bound:
        notes.append(f"issuing a call takes the host {issue_ns:.0f} ns, running it takes the GPU {median_ns:.0f} ns")
    return Samples(values_ns, watch.clock, allocated, reserved, host_bound, tuple(notes))


def warm_up(fn: Callable[[], object], n: int, *, device: str) -> None:
    """Calls ``fn`` ``n`` times and waits for the device: compilation, autotuning, the allocator, clocks."""
    for _ in range(n):
        fn()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def repeat(fn: Callable[[], object], n: int, *, device: str, range_name: str, annotate: Annotate) -> None:
    """The iterations of ``measure``, flush and range included, without its clock, and waits for the device."""
    with _WATCHES[device](timed=False) as watch:
        _iterate(fn, range(n), watch, range_name, annotate)
        watch.values_ns()


def _iterate(
    fn: Callable[[], object], iterations: Iterable[int], watch: _Watch, range_name: str, annotate: Annotate
) -> None:
    for _ in iterations:
        watch.flush()
        with annotate(range_name):
            watch.start()
            fn()
            watch.stop()


class _Watch(Protocol):
    """A device's clock, caches and memory, for the time of one measurement."""

    clock: str
    flush_bytes: int

    def __enter__(self) -> _Watch: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def flush(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def values_ns(self) -> list[float]:
        """Waits until everything is done; the samples, in order."""

    def issue_ns(self, fn: Callable[[], object], n: int) -> float | None:
        """What it costs the host to issue ``fn``, from ``n`` calls; None where that is not known."""

    def forget_peaks(self) -> None: ...

    def peaks(self) -> tuple[int | None, int | None]:
        """(allocated, reserved) since ``forget_peaks``, in bytes."""


class _Gpu:
    """CUDA events (on ROCm, HIP's under the same name), and torch's caching allocator.

    The flush buffer lives from before the warm-up until after the last sample, in a segment of its own because the
    cache is emptied first. So it adds the same number of bytes to the allocator's counters at every moment between,
    and taking that number off the peaks is exact. What it cannot give back is the room: the callable has that much
    less memory to grow into.
    """

    clock = "cuda_event"

    def __init__(self, timed: bool = True) -> None:
        import torch

        self._torch, self._timed = torch, timed
        self._events: list[tuple[Any, Any]] = []
        l2_bytes = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)
        self.flush_bytes = max(2 * l2_bytes, _LEAST_GPU_FLUSH_BYTES)

    def __enter__(self) -> _Gpu:
        cuda = self._torch.cuda
        cuda.empty_cache()
        before = cuda.memory_allocated(), cuda.memory_reserved()
        self._buffer: Any = self._torch.empty(self.flush_bytes // 4, dtype=self._torch.int32, device="cuda")
        self._own_bytes = cuda.memory_allocated() - before[0], cuda.memory_reserved() - before[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._buffer = None
        if kind is None:  # after a CUDA error this call fails too, and would hide the error
            self._torch.cuda.empty_cache()

    def flush(self) -> None:
        self._buffer.zero_()

    def start(self) -> None:
        if self._timed:
            begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._events.append((begin, end))
            begin.record()

    def stop(self) -> None:
        if self._timed:
            self._events[-1][1].record()

    def values_ns(self) -> list[float]:
        self._torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e6 for begin, end in self._events]

    def issue_ns(self, fn: Callable[[], object], n: int) -> float | None:
        issued = []
        for _ in range(n):
            begin = time.perf_counter_ns()
            fn()
            issued.append(time.perf_counter_ns() - begin)
            self._torch.cuda.synchronize()
        return statistics.median(issued) if issued else None

    def forget_peaks(self) -> None:
        self._torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> tuple[int, int]:
        cuda, (allocated, reserved) = self._torch.cuda, self._own_bytes
        return cuda.max_memory_allocated() - allocated, cuda.max_memory_reserved() - reserved


class _Cpu:
    """``perf_counter_ns``. The flush evicts the shared cache; private caches of other cores may keep what they hold."""

    clock = "perf_counter"

    def __init__(self, timed: bool = True) -> None:
        self._begin_ns = 0
        self._values_ns: list[float] = []
        self.flush_bytes = 2 * (last_level_cache_bytes() or 0) or _CPU_FLUSH_BYTES

    def __enter__(self) -> _Cpu:
        self._buffer = ctypes.create_string_buffer(self.flush_bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        del self._buffer

    def flush(self) -> None:
        ctypes.memset(self._buffer, 0, self.flush_bytes)

    def start(self) -> None:
        self._begin_ns = time.perf_counter_ns()

    def stop(self) -> None:
        self._values_ns.append(float(time.perf_counter_ns() - self._begin_ns))

    def values_ns(self) -> list[float]:
        return self._values_ns

    def issue_ns(self, fn: Callable[[], object], n: int) -> None:
        warm_up(fn, n, device="cpu")

    def forget_peaks(self) -> None:
        return None

    def peaks(self) -> tuple[None, None]:
        return None, None


_WATCHES: Final[dict[str, Callable[..., _Watch]]] = {"cuda": _Gpu, "cpu": _Cpu}


def last_level_cache_bytes(caches: Path = _CPU_CACHES) -> int | None:
    """Size of the largest cache that Linux reports for the first core (``32768K``); None where it reports none."""
    units = {"K": 2**10, "M": MIB, "G": 2**30}
    sizes = [path.read_text(encoding="ascii").strip() for path in caches.glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=None)
