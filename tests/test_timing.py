"""How samples are taken: what is called, in which order, and what is counted.

No test asserts how fast anything is. The GPU's side runs against a stand-in for torch, a mock for want of a GPU: its
clock and its allocator do exactly what they are told.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profpipe import timing

MIB = 2**20


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def call(self) -> None:
        self.seen.append("call")

    @contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        self.seen.append(f"push {name}")
        yield
        self.seen.append("pop")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log that also sees the flush of the CPU's caches."""
    log = Log()
    monkeypatch.setattr(timing.ctypes, "memset", lambda *_: log.seen.append("flush"))
    return log


# --- on a CPU --------------------------------------------------------------------------------------------------------


def test_each_sample_is_flush_then_range_and_the_warm_up_has_neither(log: Log) -> None:
    samples = timing.measure(log.call, device="cpu", warmup=3, repeats=2, range_name="r", annotate=log.annotate)
    assert log.seen == ["call"] * 3 + ["flush", "push r", "call", "pop"] * 2
    assert len(samples.values_ns) == 2


def test_a_sample_is_the_time_of_the_callable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0)

    def advance(by: int) -> None:
        clock.now += by

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        advance(1)
        yield
        advance(1)

    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(timing.ctypes, "memset", lambda *_: advance(1_000_000))
    durations = iter([7, 500, 20, 30])
    samples = timing.measure(
        lambda: advance(next(durations)), device="cpu", warmup=1, repeats=3, range_name="r", annotate=annotate
    )
    assert samples.values_ns == [500.0, 20.0, 30.0]


def test_a_callable_of_known_duration_takes_at_least_that_long() -> None:
    samples = timing.measure(
        lambda: time.sleep(0.002), device="cpu", warmup=1, repeats=3, range_name="r", annotate=Log().annotate
    )
    assert samples.clock == "perf_counter"
    assert all(value >= 2_000_000 for value in samples.values_ns)


def test_a_cpu_has_no_gpu_memory_and_is_never_host_bound(log: Log) -> None:
    samples = timing.measure(log.call, device="cpu", warmup=0, repeats=1, range_name="r", annotate=log.annotate)
    assert (samples.peak_allocated, samples.peak_reserved, samples.host_bound) == (None, None, None)
    assert samples.flags == []
    (note,) = samples.notes
    assert "to flush the caches" in note


def test_under_a_profiler_the_same_iterations_run_without_a_clock(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    timing.repeat(log.call, 2, device="cpu", range_name="profpipe:a=1", annotate=log.annotate)
    assert log.seen == ["flush", "push profpipe:a=1", "call", "pop"] * 2


def test_warming_up_calls_as_often_as_told(log: Log) -> None:
    timing.warm_up(log.call, 4, device="cpu")
    assert log.seen == ["call"] * 4


def test_no_sample_at_all_is_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="repeats must be at least 1, not 0"):
        timing.measure(log.call, device="cpu", warmup=0, repeats=0, range_name="r", annotate=log.annotate)
    assert log.seen == []


def test_the_range_is_closed_and_the_error_goes_on_when_the_callable_fails() -> None:
    open_ranges: list[str] = []

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        open_ranges.append(name)
        try:
            yield
        finally:
            open_ranges.pop()

    def fail() -> None:
        raise KeyError("what the workload said")

    with pytest.raises(KeyError, match="what the workload said"):
        timing.measure(fail, device="cpu", warmup=0, repeats=1, range_name="r", annotate=annotate)
    assert open_ranges == []


def test_the_largest_cache_that_linux_reports_is_flushed_twice_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert timing.last_level_cache_bytes(tmp_path) is None
    for index, size in enumerate(("48K", "32K", "2048K", "105M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert timing.last_level_cache_bytes(tmp_path) == 105 * MIB
    monkeypatch.setattr(timing, "last_level_cache_bytes", lambda: 105 * MIB)
    assert timing._Cpu().flush_bytes == 210 * MIB
    monkeypatch.setattr(timing, "last_level_cache_bytes", lambda: None)
    assert timing._Cpu().flush_bytes == 64 * MIB


# --- on a GPU, against a stand-in for torch --------------------------------------------------------------------------


class FakeGpu:
    """Stands in for torch: an allocator with the counters of torch's, and events that read a clock we set."""

    def __init__(self, log: Log, l2_bytes: int) -> None:
        self.log, self.l2_bytes = log, l2_bytes
        self.now_ms = 0.0
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                gpu.log.seen.append("event")
                self.at_ms = gpu.now_ms

            def elapsed_time(self, end: Event) -> float:
                return end.at_ms - self.at_ms

        class Buffer:
            def zero_(self) -> None:
                gpu.log.seen.append("flush")

            def __del__(self) -> None:
                gpu.allocate(-gpu.flush_bytes)

        def empty(count: int, dtype: str, device: str) -> Buffer:
            self.flush_bytes = 4 * count
            self.allocate(self.flush_bytes)
            return Buffer()

        self.int32, self.empty = "int32", empty
        self.cuda = SimpleNamespace(
            Event=Event,
            current_device=lambda: 0,
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=l2_bytes),
            synchronize=lambda: log.seen.append("synchronize"),
            empty_cache=self.empty_cache,
            memory_allocated=lambda: self.allocated,
            memory_reserved=lambda: self.reserved,
            reset_peak_memory_stats=self.reset_peaks,
            max_memory_allocated=lambda: self.peak_allocated,
            max_memory_reserved=lambda: self.peak_reserved,
        )

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def empty_cache(self) -> None:
        self.reserved = self.allocated

    def reset_peaks(self) -> None:
        self.log.seen.append("reset")
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu(Log(), l2_bytes=50 * MIB)
    monkeypatch.setitem(sys.modules, "torch", gpu)
    return gpu


def _measure(gpu: FakeGpu, fn: Any, warmup: int = 2, repeats: int = 2) -> timing.Samples:
    return timing.measure(fn, device="cuda", warmup=warmup, repeats=repeats, range_name="r", annotate=gpu.log.annotate)


def test_events_stand_inside_the_range_around_the_call_and_one_synchronisation_ends_all(gpu: FakeGpu) -> None:
    _measure(gpu, gpu.log.call)
    sample = ["flush", "push r", "event", "call", "event", "pop"]
    assert gpu.log.seen == ["call", "synchronize", "call", "synchronize", "reset", *sample, *sample, "synchronize"]


def test_samples_are_the_times_between_the_events_in_nanoseconds(gpu: FakeGpu) -> None:
    durations_ms = iter([9.0, 9.0, 0.25, 0.5])

    def call() -> None:
        gpu.now_ms += next(durations_ms)

    samples = _measure(gpu, call)
    assert samples.clock == "cuda_event"
    assert samples.values_ns == [250_000.0, 500_000.0]


def test_warm_up_calls_are_counted_once_however_many_are_timed_on_the_host(gpu: FakeGpu) -> None:
    for warmup in (0, 1, 2, 5, 6, 20):
        gpu.log.seen.clear()
        _measure(gpu, gpu.log.call, warmup=warmup, repeats=1)
        assert gpu.log.seen[: gpu.log.seen.index("reset")].count("call") == warmup


def test_peak_memory_is_that_of_the_samples_without_warm_up_and_flush_buffer(gpu: FakeGpu) -> None:
    inputs, extra = 1000 * MIB, iter([5000 * MIB, 3000 * MIB, 300 * MIB, 200 * MIB])
    gpu.allocate(inputs)
    gpu.allocate(7000 * MIB)  # what making the inputs needed, free again before the first call
    gpu.allocate(-7000 * MIB)

    def call() -> None:
        size = next(extra)
        gpu.allocate(size)
        gpu.allocate(-size)

    samples = _measure(gpu, call)
    assert samples.peak_allocated == inputs + 300 * MIB
    # The allocator still holds what the warm-up needed, as it does in a real loop; nothing of what came before.
    assert samples.peak_reserved == inputs + 5000 * MIB
    assert gpu.allocated == gpu.reserved == inputs


@pytest.mark.parametrize(("l2_bytes", "flush_bytes"), [(50 * MIB, 256 * MIB), (0, 256 * MIB), (200 * MIB, 400 * MIB)])
def test_the_flush_is_at_least_twice_the_l2(gpu: FakeGpu, l2_bytes: int, flush_bytes: int) -> None:
    gpu.cuda.get_device_properties = lambda _: SimpleNamespace(L2_cache_size=l2_bytes)
    _measure(gpu, gpu.log.call)
    assert gpu.flush_bytes == flush_bytes


@pytest.mark.parametrize(("issue_ns", "host_bound"), [(40_000, True), (4_000, False)])
def test_a_call_that_takes_longer_to_issue_than_to_run_is_host_bound(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, issue_ns: int, host_bound: bool
) -> None:
    clock = SimpleNamespace(now=0)
    first_costs_more = iter([10_000_000])
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: clock.now)

    def call() -> None:
        clock.now += next(first_costs_more, issue_ns)
        gpu.now_ms += 0.010

    samples = _measure(gpu, call, warmup=2)
    assert samples.host_bound is host_bound
    assert samples.flags == (["host_bound"] if host_bound else [])
    assert any("issuing a call takes the host 40000 ns" in note for note in samples.notes) is host_bound


def test_without_a_warm_up_nothing_is_known_of_the_host(gpu: FakeGpu) -> None:
    assert _measure(gpu, gpu.log.call, warmup=1).host_bound is None


def test_under_a_profiler_no_event_is_recorded_on_the_gpu(gpu: FakeGpu) -> None:
    timing.repeat(gpu.log.call, 2, device="cuda", range_name="r", annotate=gpu.log.annotate)
    assert gpu.log.seen == ["flush", "push r", "call", "pop"] * 2 + ["synchronize"]


def test_an_error_of_the_gpu_is_not_hidden_by_the_clean_up(gpu: FakeGpu) -> None:
    def fail() -> None:
        def broken() -> None:
            raise RuntimeError("CUDA error: and the context is lost")

        gpu.cuda.empty_cache = broken
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        _measure(gpu, fail)
    assert gpu.allocated == 0
