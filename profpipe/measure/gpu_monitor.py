"""Reads the conditions of a GPU through NVML, every 20 ms while a case is measured.

A reading takes the driver some 100 us without the interpreter's lock. Samples are queued ahead of the GPU
(``cuda_timer``), so a host that waits for that lock does not affect a sample.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from profpipe.measure.conditions import Conditions, Reading

_INTERVAL_S: Final = 0.02

#: ``is_slowed`` looks at so many readings, 0.3 s. The first 0.1 s of them may still show the case before.
_RECENT: Final = 15

#: Readings this close to an idle one saw the clock rise or fall.
_NEAR_IDLE: Final = 2


class GpuMonitor:
    """The readings of a GPU, in order, with those of an idle GPU."""

    def __init__(self, gpu: NvmlGpu | None) -> None:
        self._gpu = gpu
        self._other_processes: list[int] = []
        self.readings: list[Reading] = []
        # Not cleared with the readings: a load before the measurement shows what the measurement will meet.
        self._recent: deque[Reading] = deque(maxlen=_RECENT)

    @property
    def is_slowed(self) -> bool:
        """Return True if power or heat lowered the clock in a reading of the last 0.3 s."""
        return any(reading.is_slowed for reading in tuple(self._recent))

    def conditions(self) -> Conditions:
        """Return the readings under load so far: neither idle nor next to idle, where the clock was changing."""
        idle = [number for number, reading in enumerate(self.readings) if reading.is_idle]
        near = {number + step for number in idle for step in range(-_NEAR_IDLE, _NEAR_IDLE + 1)}
        loaded = tuple(reading for number, reading in enumerate(self.readings) if number not in near)
        return Conditions(loaded, max(self._other_processes, default=None))

    def clear(self) -> None:
        self.readings.clear()

    def read(self) -> None:
        if self._gpu is not None:
            self.readings.append(reading := self._gpu.reading())
            self._recent.append(reading)

    def count_other_processes(self) -> None:
        if self._gpu is not None and (count := self._gpu.other_processes()) is not None:
            self._other_processes.append(count)


@contextmanager
def monitor_gpu(device: int | str | None = None) -> Iterator[GpuMonitor]:
    """Read a GPU while the block runs; ``device`` is CUDA's ordinal, a UUID, or None for torch's current device.

    Without NVML, or where NVML does not know the device (MIG, AMD), there are no readings.
    """
    gpu = open_gpu(_nvml_identity(device))
    monitor, stopped = GpuMonitor(gpu), threading.Event()
    if gpu is None:
        yield monitor
        return

    def read_until_stopped() -> None:
        while not stopped.wait(_INTERVAL_S):
            monitor.read()

    monitor.count_other_processes()
    thread = threading.Thread(target=read_until_stopped, name="profpipe-conditions", daemon=True)
    thread.start()
    try:
        yield monitor
    finally:
        stopped.set()
        thread.join()
    # The load has just ended and the clock has not changed yet; a case of 10 ms has no other reading.
    monitor.read()
    monitor.count_other_processes()


def monitor_device(device: str) -> AbstractContextManager[GpuMonitor]:
    """Monitor the GPU for a measurement on ``cuda``. A measurement on the CPU has no readings."""
    return monitor_gpu() if device == "cuda" else nullcontext(GpuMonitor(None))


def _nvml_identity(device: int | str | None) -> int | str | None:
    """Return the UUID of the device, else its index in NVML; None where this process does not see the device.

    CUDA counts the visible devices, by default the fastest first; NVML counts all, by PCI bus. Only the UUID, which
    torch has from 2.4 on, identifies the same device in both.
    """
    if isinstance(device, str):
        return device
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        device = torch.cuda.current_device() if device is None else device
        if uuid := getattr(torch.cuda.get_device_properties(device), "uuid", None):
            return str(uuid)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return device or 0
    listed = [entry.strip() for entry in visible.split(",")]
    entry = listed[device or 0] if (device or 0) < len(listed) else ""
    return int(entry) if entry.isdecimal() else entry if entry.startswith("GPU-") else None


@functools.lru_cache(maxsize=8)  # opening NVML takes a second with eight GPUs
def open_gpu(identity: int | str | None) -> NvmlGpu | None:
    """Return the device with this index or UUID in NVML; None where NVML does not know it."""
    if identity is None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = _find_handle(pynvml, identity)
    except Exception:  # ImportError, NVMLError, OSError: without NVML there is nothing to read
        return None
    return NvmlGpu(pynvml, handle) if handle is not None else None


def _find_handle(library: Any, identity: int | str) -> Any:
    if isinstance(identity, int):
        return library.nvmlDeviceGetHandleByIndex(identity)
    wanted = identity.lower().removeprefix("gpu-")
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        # CUDA_VISIBLE_DEVICES may hold the beginning of a UUID.
        if library.nvmlDeviceGetUUID(handle).lower().removeprefix("gpu-").startswith(wanted):
            return handle
    return None


class NvmlGpu:
    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml, self._handle = library, handle
        highest = self._query(lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM))
        self._highest_hz = None if highest is None else highest * 1e6

    def reading(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        clock = self._query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        return Reading(
            sm_clock_hz=None if clock is None else clock * 1e6,
            power_w=self._query(self._instant_power_w)
            or self._query(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            temperature_c=self._query(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            reasons=self._query(self._reasons),
            highest_hz=self._highest_hz,
        )

    def _instant_power_w(self) -> float | None:
        """nvmlDeviceGetPowerUsage is the mean of the last second on Ampere and later; this field is not."""
        field = self._nvml.NVML_FI_DEV_POWER_INSTANT
        value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])[0]
        return value.value.uiVal / 1e3 if value.nvmlReturn == 0 else None

    def _reasons(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except (self._nvml.NVMLError, AttributeError):  # drivers and bindings before 535 have only the older name
            return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def other_processes(self) -> int | None:
        """Return the number of other processes with a context on the GPU; None where NVML shows none at all.

        In a container NVML lists the process ids of the host, or nothing. So where this process has a context and its
        id is not listed, one of the listed ids counts as this process.
        """
        listed = self._query(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if listed is None:
            return None
        pids, torch = {process.pid for process in listed}, sys.modules.get("torch")
        has_context = os.getpid() in pids or bool(torch is not None and torch.cuda.is_initialized())
        return None if has_context and not pids else len(pids) - has_context

    def _query(self, question: Callable[[], Any]) -> Any:
        """Return the answer; None where this GPU, driver or container does not give it."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return None
