"""The timers of a CPU and of a GPU.

A GPU is timed by CUDA events. The whole call must be queued before the GPU starts it, or the sample includes launch
time. The cache flush keeps the GPU busy for some 60 us meanwhile; where launching takes longer, a kernel that spins for
a fixed time holds the GPU before the flush. (nvbench's ``blocking_kernel`` spins until the host releases it, which
deadlocks when the call synchronises.) Behind a sample that has not started yet, the hold is shorter by the work of that
sample: a GPU that idles for a tenth of the loop has power to spare, and reaches a clock that it does not keep under
load.
"""

from __future__ import annotations

import ctypes
import functools
import math
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from profpipe.measure.distributed import SINGLE_PROCESS, Ranks
from profpipe.measure.launch_profile import (
    LAUNCH_QUEUE,
    LONGEST_HOLD_NS,
    LaunchProfile,
    LaunchProfiler,
    PriorMeasurement,
)
from profpipe.measure.statistics import GROUP_NS, GROUPS, is_stable

MIB: Final = 2**20

# --- the CPU ---------------------------------------------------------------------------------------------------------

#: Flush size where the cache size is unknown, and the largest. A server reports the cache of all its cores as one, up
#: to 512 MiB. Overwriting twice that takes 0.2 s before a sample, and a process on a few cores holds a part of it.
_DEFAULT_FLUSH_BYTES: Final = 64 * MIB
_LARGEST_FLUSH_BYTES: Final = 256 * MIB
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


class CpuTimer:
    """A clock with cache flush, memory counters and launch queue; a context around one measurement.

    This one is ``perf_counter_ns``. The flush evicts the shared cache; private caches of other cores may keep their
    contents. A CPU needs no load and no hold, and has no clock and no memory that can be counted.
    """

    clock = "perf_counter"
    #: Whether ``prepare`` loaded a GPU for long enough to bring its clock down.
    fully_loaded = False

    def __init__(self, timed: bool = True, flush: bool = True) -> None:
        self._begin_ns = 0
        self._times_ns: list[float] = []
        size = min(2 * (last_level_cache_bytes() or 0), _LARGEST_FLUSH_BYTES) or _DEFAULT_FLUSH_BYTES
        #: 0 where the caches are not flushed.
        self.flush_bytes = size if flush else 0

    def __enter__(self) -> CpuTimer:
        self._buffer: Any = _flush_buffer(self.flush_bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Keep the buffer for the next case."""

    def flush(self) -> None:
        """Flush the caches; on a GPU, also give the host time to queue the call."""
        ctypes.memset(self._buffer, 0, self.flush_bytes)

    def start(self) -> None:
        self._begin_ns = time.perf_counter_ns()

    def stop(self) -> None:
        self._times_ns.append(float(time.perf_counter_ns() - self._begin_ns))

    def take_times_ns(self) -> list[float]:
        """Synchronise; return the samples since the last call in order, and drop them."""
        times, self._times_ns = self._times_ns, []
        return times

    def prepare(
        self, fn: Callable[[], object], ranks: Ranks, prior: PriorMeasurement, longest_s: float
    ) -> LaunchProfile | None:
        """Profile the launch of ``fn`` and load a GPU until its times are stable, for at most ``longest_s``."""
        return None

    def launch_profile(self) -> LaunchProfile | None:
        """Return the profile of ``prepare``, refined by the samples since then."""
        return None

    def apply_load(
        self, fn: Callable[[], object], ranks: Ranks = SINGLE_PROCESS, clock_hz: float | None = None
    ) -> None:
        """Bring a GPU to the clock that it keeps under ``fn``; ``clock_hz`` is the highest SM clock seen so far."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def extend_hold(self, ranks: Ranks = SINGLE_PROCESS) -> bool:
        """Return True if the last batch was launched too late in any process; the hold is then longer for the next.

        In a collective call, a process with a shorter hold would wait for the others, and its time includes the wait.
        """
        return False

    def record_clock(self) -> None:
        """Queue kernels that measure the SM clock at this point of the stream."""

    def clocks_hz(self) -> list[float]:
        """Return the SM clocks of ``record_clock`` in order; empty where the clock cannot be measured."""
        return []

    def reset_peak_memory(self) -> None:
        """Start to measure the peak of ``peak_memory``."""

    def peak_memory(self) -> tuple[int | None, int | None]:
        """Return the bytes (allocated, reserved) at their peak since ``reset_peak_memory``."""
        return None, None

    def notes(self) -> list[str]:
        """Return the facts of the measurement for the record."""
        return []


@functools.cache
def _flush_buffer(size: int) -> ctypes.Array[ctypes.c_char]:
    """Return the buffer of this process: a new one for each case would cost a page fault per 4 KiB."""
    return ctypes.create_string_buffer(size)


def last_level_cache_bytes(caches: Path = _CACHES) -> int | None:
    """Return the size of the largest cache that Linux reports for the first core (``32768K``), or None."""
    units = {"K": 2**10, "M": MIB, "G": 2**30}
    sizes = [path.read_text(encoding="ascii").strip() for path in caches.glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=None)


# --- a GPU -----------------------------------------------------------------------------------------------------------


#: Smallest flush, that of Triton's ``do_bench``: 56 us at 4.8 TB/s.
_SMALLEST_FLUSH_BYTES: Final = 256 * MIB

#: The GPU is held for 1.5 times the launch time, and 30 us for the flush and the events.
_HOLD_FACTOR: Final = 1.5
_HOLD_EXTRA_NS: Final = 30e3
#: The launch profile of an earlier visit stands for calls from this length on: profiling a training step again would
#: take half a second.
_SHORT_CALL_NS: Final = 1e6

#: Before the first sample of a batch the hold is twice as long, plus 150 us: after a synchronisation, and the host's
#: work between batches, the first call was queued up to 0.15 ms later than others. One late sample would lengthen the
#: hold of all later ones, and samples of short calls then took half as long again.
FIRST_HOLD_FACTOR: Final = 2
FIRST_HOLD_EXTRA_NS: Final = 150e3

#: The loop of samples runs for this long before the first sample, about the default warm-up of ``do_bench``; longer
#: where the call fills most of the loop. An H200 at its power limit lowered its clock, and slowed FlashAttention by 3
#: to 5 %, 60 to 70 ms after the load began. A call that keeps the highest clock needs the short load only.
_LOAD_NS: Final = 30e6
_FULL_LOAD_NS: Final = 100e6
#: The load continues until the times are stable (``is_stable``), but no longer than this.
_LONGEST_LOAD_NS: Final = 500e6
#: Shorter where an earlier visit to the case gives the expected time.
_REPEATED_LOAD_NS: Final = 10e6
_REPEATED_GROUP_NS: Final = 5e6
_LONGEST_REPEATED_LOAD_NS: Final = 100e6

#: A call that does not lower the clock is not measured at the clock that a heavier case left behind: an H200 at 700 W
#: took 20 to 60 ms to rise again, by up to 3 %. It also stays one step of 15 MHz below its highest clock for long.
_CLOCK_TOLERANCE: Final = 0.01
_LONGEST_CLOCK_WAIT_NS: Final = 100e6

#: Cycles of the two kernels that measure the clock, 50 and 250 us; the difference of their times has no launch in it.
CLOCK_CYCLES: Final = (100_000, 500_000)


class CudaTimer(CpuTimer):
    """CUDA events (on ROCm, HIP events under the same name), and torch's caching allocator.

    The flush buffer exists from before the first call until after the last sample, in a separate segment. So
    subtracting its bytes from the peaks is exact. The callable has that much less memory.
    """

    clock = "cuda_event"

    def __init__(self, timed: bool = True, flush: bool = True) -> None:
        import torch

        self._torch, self._timed = torch, timed
        self._events: list[tuple[Any, Any]] = []
        self._clock_events: list[tuple[Any, ...]] = []
        self._hold_ns = self._clear_ns = self._cycles_per_ns = 0.0
        self._host_ns: list[int] = []
        self._call_began_ns = 0
        self._taken = self._late = self._late_in_total = 0
        self._launch: LaunchProfile | None = None
        l2_bytes = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)
        self._buffer_bytes = max(2 * l2_bytes, _SMALLEST_FLUSH_BYTES)
        self.flush_bytes = self._buffer_bytes if flush else 0
        if not timed and not flush:
            self._buffer_bytes = 0  # it would stand in a recording of the memory

    def __enter__(self) -> CudaTimer:
        cuda = self._torch.cuda
        if self._timed:  # without samples no peaks are read, and an emptied cache would put cudaMalloc into a trace
            cuda.empty_cache()
        before = cuda.memory_allocated(), cuda.memory_reserved()
        # In a pool of torch 2.5 and later the buffer cannot split a large free block that the callable needs whole.
        self._pool: Any = cuda.MemPool() if hasattr(cuda, "MemPool") else None
        with cuda.use_mem_pool(self._pool) if self._pool else nullcontext():
            self._buffer = self._torch.empty(self._buffer_bytes // 4, dtype=self._torch.int32, device="cuda")
        self._timer_bytes = cuda.memory_allocated() - before[0], cuda.memory_reserved() - before[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._buffer = self._pool = None
        if kind is None:  # after a CUDA error this call fails too, and would hide the error
            self._torch.cuda.empty_cache()

    # --- before the first sample -------------------------------------------------------------------------------------

    def prepare(
        self, fn: Callable[[], object], ranks: Ranks, prior: PriorMeasurement, longest_s: float
    ) -> LaunchProfile:
        """Profile the launch of ``fn``, choose the hold before a sample, and load the GPU until times are stable."""
        self.synchronize()
        self._clear_ns = self._duration_ns(self._clear)
        if hasattr(self._torch.cuda, "_sleep"):
            cycles = 200_000
            self._cycles_per_ns = cycles / self._duration_ns(lambda: self._torch.cuda._sleep(cycles))
        prior_launch = prior.launch if prior.launch and prior.launch.call_ns >= _SHORT_CALL_NS else None
        self._launch = launch = prior_launch or LaunchProfiler(self._torch, self._hold, ranks).profile(fn)
        if not launch.synchronises:
            hold_ns = _HOLD_FACTOR * launch.host_ns + _HOLD_EXTRA_NS - self._flush_ns
            # Equal to the nanosecond in all processes, because later decisions depend on it.
            self._hold_ns = ranks.all_max(min(LONGEST_HOLD_NS, max(0.0, hold_ns)))
        began_ns = time.perf_counter_ns()
        if ranks.is_distributed or launch.call_ns + self._overhead_ns > GROUP_NS:
            self._load_for_fixed_time(fn, launch.call_ns, ranks, prior.keeps_clock)
        else:
            self._load_until_stable(fn, launch.call_ns, prior, longest_s * 1e9)
        if not ranks.is_distributed:
            until_ns = began_ns + min(_LONGEST_CLOCK_WAIT_NS, longest_s * 1e9)
            self._wait_for_clock(fn, launch.call_ns, prior.clock_hz, until_ns)
        self._late = 0
        self._host_ns.clear()
        return launch

    def launch_profile(self) -> LaunchProfile | None:
        """Return the profile of ``prepare`` with the launch time among samples, where that is shorter.

        The few calls after a pause took up to six times as long to launch. Among samples, launch times include waits
        for the GPU or for the launch queue. So the smaller of the two counts.
        """
        if self._launch is None or not self._host_ns:
            return self._launch
        return self._launch.limit_host_time(statistics.median(self._host_ns))

    def apply_load(
        self, fn: Callable[[], object], ranks: Ranks = SINGLE_PROCESS, clock_hz: float | None = None
    ) -> None:
        self.synchronize()
        self._clear_ns = self._duration_ns(self._clear)
        began_ns = time.perf_counter_ns()
        fn()
        self.synchronize()
        call_ns = ranks.all_max(float(time.perf_counter_ns() - began_ns))
        self._load_for_fixed_time(fn, call_ns, ranks)
        if not ranks.is_distributed:
            self._wait_for_clock(fn, call_ns, clock_hz, began_ns + _LONGEST_CLOCK_WAIT_NS)

    @property
    def _flush_ns(self) -> float:
        return self._clear_ns if self.flush_bytes else 0.0

    @property
    def _overhead_ns(self) -> float:
        """GPU time of the sample loop without the call."""
        return self._flush_ns + self._steady_hold_ns

    def _load_for_fixed_time(
        self, fn: Callable[[], object], call_ns: float, ranks: Ranks, keeps_clock: bool = False
    ) -> None:
        """Run the loop of samples without recording; ``call_ns`` is the approximate time of a call."""
        self.fully_loaded = call_ns > self._overhead_ns and not keeps_clock
        load_ns = _FULL_LOAD_NS if self.fully_loaded else _LOAD_NS
        # Each process measures its flush, and all must make the same calls.
        self._run_unrecorded(fn, int(ranks.all_max(load_ns / (call_ns + self._overhead_ns))))
        self.take_times_ns()

    def _load_until_stable(
        self, fn: Callable[[], object], call_ns: float, prior: PriorMeasurement, longest_ns: float
    ) -> None:
        """Run the loop of samples without recording until the times by events are stable; for short calls.

        While more groups are certain to follow, one group is read while the GPU runs the next, so it never idles.
        """
        expected = [prior.median_ns] * (GROUPS - 1) if prior.median_ns is not None else []
        group_ns, least_ns = (_REPEATED_GROUP_NS, _REPEATED_LOAD_NS) if expected else (GROUP_NS, _LOAD_NS)
        longest_ns = min(longest_ns, _LONGEST_REPEATED_LOAD_NS if expected else _LONGEST_LOAD_NS)
        medians: list[float] = []
        each_ns, done, spent_ns, load_ns = call_ns + self._overhead_ns, 0, 0.0, least_ns
        began_ns = time.perf_counter_ns()
        group = self._run_unrecorded(fn, math.ceil(group_ns / each_ns))
        while group:
            ahead = spent_ns + 2 * group_ns <= load_ns
            following = self._run_unrecorded(fn, math.ceil(group_ns / each_ns)) if ahead else []
            group[-1][1].synchronize()
            medians.append(statistics.median(begin.elapsed_time(end) * 1e6 for begin, end in group))
            done += len(group)
            spent_ns = time.perf_counter_ns() - began_ns
            each_ns = spent_ns / done
            self._events = list(following)
            self.fully_loaded = medians[-1] > self._overhead_ns and not prior.keeps_clock
            load_ns = _FULL_LOAD_NS if self.fully_loaded else least_ns
            loaded = spent_ns >= load_ns - group_ns / 2  # to the nearest group
            if not following and not (loaded and (is_stable(medians, expected) or spent_ns >= longest_ns)):
                following = self._run_unrecorded(fn, math.ceil(group_ns / each_ns))
            group = following
        self.take_times_ns()

    def _wait_for_clock(
        self, fn: Callable[[], object], call_ns: float, clock_hz: float | None, until_ns: float
    ) -> None:
        """Continue the loop until the GPU is back at its clock, or until ``until_ns``.

        Times at a clock that is still low are stable as well. A clock that the call itself lowers does not rise again.
        """
        if clock_hz is None or self.fully_loaded:
            return
        group = math.ceil(_REPEATED_GROUP_NS / (call_ns + self._overhead_ns))
        while time.perf_counter_ns() < until_ns and self._current_clock_hz() < (1 - _CLOCK_TOLERANCE) * clock_hz:
            self._run_unrecorded(fn, group)
            self.take_times_ns()

    def _current_clock_hz(self) -> float:
        """Return infinity where the clock cannot be measured."""
        self.record_clock()
        clocks = self.clocks_hz()
        self._clock_events.clear()
        return clocks[-1] if clocks else math.inf

    def _run_unrecorded(self, fn: Callable[[], object], n: int) -> list[tuple[Any, Any]]:
        """Queue ``n`` samples that are not kept; return their events."""
        before = len(self._events)
        for _ in range(n):
            self.flush()
            self.start()
            fn()
            self.stop()
        return self._events[before:]

    def _duration_ns(self, action: Callable[[], object]) -> float:
        """Return the GPU time of ``action``, queued behind another one so that its launch is not in the time."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        action()
        begin.record()
        action()
        end.record()
        self.synchronize()
        return max(begin.elapsed_time(end) * 1e6, 1.0)

    # --- the hold ----------------------------------------------------------------------------------------------------

    def _hold(self, ns: float) -> None:
        if self._cycles_per_ns and ns > 0:
            self._torch.cuda._sleep(int(ns * self._cycles_per_ns))
        else:
            for _ in range(math.ceil(ns / self._clear_ns) if ns > 0 else 0):
                self._clear()

    @property
    def _first_hold_ns(self) -> float:
        if self._launch is None or self._launch.synchronises:
            return 0.0
        return min(LONGEST_HOLD_NS, FIRST_HOLD_FACTOR * self._hold_ns + FIRST_HOLD_EXTRA_NS)

    @property
    def _steady_hold_ns(self) -> float:
        """The hold before a sample behind one that has not started yet.

        Without a jump: a call that takes the GPU about as long as its hold would be held for all of that time in one
        process and not at all in the next, and a GPU at its power limit then differed by 5 %.
        """
        return max(0.0, self._hold_ns - (self._launch.gpu_tail_ns if self._launch else 0.0))

    def extend_hold(self, ranks: Ranks = SINGLE_PROCESS) -> bool:
        """Where more than one sample in ten was late, double the hold; the batch must be taken again."""
        late, self._late = int(ranks.all_max(self._late)), 0
        if late * 10 <= self._taken or self._hold_ns >= LONGEST_HOLD_NS:
            self._late_in_total += late
            return False
        self._hold_ns = min(LONGEST_HOLD_NS, 2 * self._hold_ns + _HOLD_EXTRA_NS)
        return True

    # --- one sample --------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._buffer.zero_()

    def flush(self) -> None:
        if not self._events:
            self._hold(self._first_hold_ns)
        elif self._steady_hold_ns < self._hold_ns and not self._events[-1][0].query():
            self._hold(self._steady_hold_ns)
        else:
            self._hold(self._hold_ns)
        if self.flush_bytes:
            self._clear()

    def start(self) -> None:
        if self._timed:
            begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._events.append((begin, end))
            begin.record()
            self._call_began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        if self._timed:
            self._host_ns.append(time.perf_counter_ns() - self._call_began_ns)
            begin, end = self._events[-1]
            end.record()
            # Late: the GPU started the call before all of it was queued. A call that waits for the GPU always is.
            if self._launch and not self._launch.host_waits and begin.query():
                self._late += 1

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def take_times_ns(self) -> list[float]:
        self.synchronize()
        events, self._events = self._events, []
        self._taken = len(events)
        return [begin.elapsed_time(end) * 1e6 for begin, end in events]

    # --- clock and memory --------------------------------------------------------------------------------------------

    def record_clock(self) -> None:
        # On ROCm the same function counts another clock than that of the compute units.
        if hasattr(self._torch.cuda, "_sleep") and getattr(self._torch.version, "hip", None) is None:
            events = [self._torch.cuda.Event(enable_timing=True) for _ in range(len(CLOCK_CYCLES) + 1)]
            # An idle GPU would wait for the first launch between the events, and a GPU that comes from full load runs
            # more slowly for its first 0.1 ms.
            self._torch.cuda._sleep(CLOCK_CYCLES[1])
            events[0].record()
            for cycles, event in zip(CLOCK_CYCLES, events[1:], strict=True):
                self._torch.cuda._sleep(cycles)
                event.record()
            self._clock_events.append(tuple(events))

    def clocks_hz(self) -> list[float]:
        self.synchronize()
        short_long = [(a.elapsed_time(b) / 1e3, b.elapsed_time(c) / 1e3) for a, b, c in self._clock_events]
        return [(CLOCK_CYCLES[1] - CLOCK_CYCLES[0]) / (long - short) for short, long in short_long if long > short]

    def reset_peak_memory(self) -> None:
        self._torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> tuple[int, int]:
        cuda, (allocated, reserved) = self._torch.cuda, self._timer_bytes
        return cuda.max_memory_allocated() - allocated, cuda.max_memory_reserved() - reserved

    def notes(self) -> list[str]:
        notes, launch = [], self._launch
        if launch and launch.synchronises:
            notes.append("the call synchronises, so the host waits for the GPU inside it, and samples have launch time")
        if launch and launch.fills_queue:
            notes.append(
                f"the host waits inside the call: it launches more than the queue holds (about {LAUNCH_QUEUE}) or"
                " synchronises in a way that torch does not report, so part of the launch time is in the sample"
            )
        if self._hold_ns:
            occasion = "each sample" if self._steady_hold_ns else "each sample that finds it idle"
            hold_us, first_us = (self._steady_hold_ns or self._hold_ns) / 1e3, self._first_hold_ns / 1e3
            notes.append(f"the GPU is held for {hold_us:.0f} us before {occasion}, {first_us:.0f} us before a batch")
        if launch and not launch.host_waits and self._launches_too_long(launch.host_ns):
            notes.append(
                f"launching a call takes the host {launch.host_ns / 1e6:.0f} ms, longer than the GPU is held, so part"
                " of the launch time may be in the sample"
            )
        if self._late_in_total:
            samples = "1 sample" if self._late_in_total == 1 else f"{self._late_in_total} samples"
            notes.append(f"{samples} started before the whole call was queued")
        return notes

    def _launches_too_long(self, host_ns: float) -> bool:
        return _HOLD_FACTOR * host_ns + _HOLD_EXTRA_NS > LONGEST_HOLD_NS + self._flush_ns
