"""A simulated torch with a GPU, for machines without one: its two clocks are exact.

``time.perf_counter`` reads the host's clock. A launch takes host time and adds work to the GPU, which starts after the
work before it. The launch queue has a limited size; when it is full the host waits, as with CUDA.
"""

import warnings
from collections import deque
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

from profpipe.measure.timers import CLOCK_CYCLES

MIB = 2**20


def pretend_cuda(monkeypatch, capability=(9, 0), memory=2**40):
    """Mock the properties of a device for the workloads: no kernel can run behind it."""
    import torch

    from profpipe.workload_lib import attention_config, requirements

    monkeypatch.setattr(attention_config, "device", lambda: "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(requirements, "memory_bytes", lambda device: memory)


class StandInGpu:
    """``now_ns`` is the host's clock, ``free_ns`` when the GPU will have done what it was given."""

    def __init__(self, l2_bytes=50 * MIB, launch_ns=5_000, queue=1024):
        self.seen: list[str] = []
        self.now_ns, self.free_ns = 0, 0
        self.launch_ns, self.queue = launch_ns, queue
        self.flush_ns = 60_000
        self.flush_bytes = 0
        self.held_ns: list[int] = []
        self.events = self.most_events = 0
        self.hz = 2e9
        self.version = SimpleNamespace(hip=None)
        self._pending: deque[int] = deque()
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.sync_mode = 0
        self.int32, self.empty = "int32", self._empty
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: _Event(self),
            Stream=lambda: _Stream(self),
            CUDAGraph=lambda: _Graph(self),
            graph=self.capture,
            stream=lambda stream: nullcontext(),
            current_stream=lambda: _Stream(self),
            current_device=lambda: 0,
            is_available=lambda: True,
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=l2_bytes),
            synchronize=self.synchronize,
            get_sync_debug_mode=lambda: self.sync_mode,
            set_sync_debug_mode=self.set_sync_mode,
            _sleep=self.sleep,
            empty_cache=self.empty_cache,
            memory_allocated=lambda: self.allocated,
            memory_reserved=lambda: self.reserved,
            reset_peak_memory_stats=self.reset_peaks,
            max_memory_allocated=lambda: self.peak_allocated,
            max_memory_reserved=lambda: self.peak_reserved,
        )

    # --- time -------------------------------------------------------------------------------------------------------

    def launch(self, ns, cost_ns=None):
        while self._pending and self._pending[0] <= self.now_ns:
            self._pending.popleft()
        if len(self._pending) >= self.queue:
            self.now_ns = self._pending.popleft()
        self.now_ns += self.launch_ns if cost_ns is None else cost_ns
        self.free_ns = max(self.free_ns, self.now_ns) + ns
        self._pending.append(self.free_ns)

    def call(self):
        """A call of one kernel of 100 us."""
        self.seen.append("call")
        self.launch(100_000)

    def think(self, ns):
        """Let host time pass without a launch."""
        self.now_ns += ns

    def item(self, is_noticed=True):
        """Read a result on the host; ``is_noticed``: torch's sync debug mode reports it."""
        if is_noticed and self.sync_mode:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        self.now_ns = max(self.now_ns, self.free_ns)

    def synchronize(self):
        self.seen.append("synchronize")
        self.now_ns = max(self.now_ns, self.free_ns)

    def sleep(self, cycles):
        ns = round(cycles / self.hz * 1e9)
        if cycles not in CLOCK_CYCLES:
            self.held_ns.append(ns)
        self.launch(ns)

    def set_sync_mode(self, mode):
        self.sync_mode = {"warn": 1}.get(mode, 0) if isinstance(mode, str) else mode

    # --- graphs -----------------------------------------------------------------------------------------------------

    @contextmanager
    def capture(self, graph, stream):
        before = self.free_ns
        yield
        graph.ns = self.free_ns - max(before, 0)

    # --- memory -----------------------------------------------------------------------------------------------------

    def _empty(self, count, dtype, device):
        self.flush_bytes = 4 * count
        self.allocate(self.flush_bytes)
        return _Buffer(self)

    def allocate(self, size):
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def empty_cache(self):
        self.reserved = self.allocated

    def reset_peaks(self):
        self.seen.append("reset")
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    @contextmanager
    def annotate(self, name):
        self.seen.append(f"push {name}")
        yield
        self.seen.append("pop")


class _Event:
    def __init__(self, gpu):
        self.gpu = gpu
        gpu.events += 1
        gpu.most_events = max(gpu.most_events, gpu.events)

    def __del__(self):
        self.gpu.events -= 1

    def record(self):
        self.gpu.seen.append("event")
        self.at_ns = max(self.gpu.now_ns, self.gpu.free_ns)

    def query(self):
        return self.at_ns <= self.gpu.now_ns

    def synchronize(self):
        self.gpu.now_ns = max(self.gpu.now_ns, self.at_ns)

    def elapsed_time(self, end):
        return (end.at_ns - self.at_ns) / 1e6


class _Stream:
    def __init__(self, gpu):
        self.gpu = gpu

    def query(self):
        return self.gpu.free_ns <= self.gpu.now_ns

    def wait_stream(self, other):
        pass


class _Graph:
    def __init__(self, gpu):
        self.gpu, self.ns = gpu, 0

    def replay(self):
        self.gpu.seen.append("replay")
        self.gpu.launch(self.ns)


class _Buffer:
    def __init__(self, gpu):
        self.gpu = gpu

    def zero_(self):
        self.gpu.seen.append("flush")
        self.gpu.launch(self.gpu.flush_ns)

    def __del__(self):
        self.gpu.allocate(-self.gpu.flush_bytes)


def kernels(gpu, count, ns, launch_ns=None):
    """A call of ``count`` kernels of ``ns`` each."""

    def call():
        for _ in range(count):
            gpu.launch(ns, launch_ns)

    return call
