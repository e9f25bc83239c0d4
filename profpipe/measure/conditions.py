"""The conditions of a GPU during a measurement: clocks, power, temperature, throttling and other processes.

They are read through NVML every 20 ms while a case is measured. A reading takes the driver some 100 us without the
interpreter's lock. Samples are queued ahead of the GPU (``timers``), so a host that waits for that lock does not affect
a sample.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, Final

from profpipe.measure.case_order import is_number
from profpipe.measure.flags import Flag

#: ``nvmlClocksEventReason...``, up to driver 535 ``nvmlClocksThrottleReason...``: the bits are the same (nvml.h).
_IDLE: Final = 0x1
#: The reasons that slow the clock and are no user's setting.
_THROTTLES: Final = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}

#: A reason counts from this share of the readings on: one reading in a hundred does not change a median.
_LEAST_SHARE: Final = 0.05
#: Clocks that differ by more, relative to the highest, set the flag ``clock_spread``.
_CLOCK_SPREAD: Final = 0.05
#: A short drop of the clock by less does not change a time noticeably: an H200 near its power limit reports "software
#: power cap" at 1965 of 1980 MHz.
_THROTTLED_SHARE: Final = 0.02
#: A drop of the median of many counts by this share does: the median time follows, and ten runs of one case must agree
#: within 1 % or say why not. A single count is no more exact than that, half of the counts are.
_THROTTLED_MEDIAN_SHARE: Final = 0.01
#: Accuracy of a counted clock.
_COUNT_TOLERANCE: Final = 0.01


@dataclass(frozen=True)
class Reading:
    """One reading of a GPU; None where the driver does not report a value. ``reasons`` are NVML's bits.

    ``highest_hz`` is the highest SM clock of this GPU.
    """

    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: int | None = None
    highest_hz: float | None = None

    @property
    def is_idle(self) -> bool:
        return bool((self.reasons or 0) & _IDLE)

    @property
    def is_slowed(self) -> bool:
        """Return True if power or heat noticeably lowered the clock, as NVML reports both."""
        slows = any((self.reasons or 0) & bit for bit in _THROTTLES)
        if not slows or self.sm_clock_hz is None or self.highest_hz is None:
            return False
        return self.sm_clock_hz < (1 - _THROTTLED_SHARE) * self.highest_hz


@dataclass(frozen=True)
class GpuConditions:
    """The readings of a GPU under load, and the largest number of other processes on it; None: unknown.

    ``counted_hz`` are SM clocks that the GPU itself counted (``CudaTimer.record_clock``). They replace the clocks of
    NVML, which are up to some 100 ms old.
    """

    readings: tuple[Reading, ...] = ()
    other_processes: int | None = None
    counted_hz: tuple[float, ...] = ()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> GpuConditions:
        """Return the conditions that ``dataclasses.asdict`` and JSON stored; missing fields are unknown.

        Fields of a later version, and values that are no numbers, count as missing.
        """
        readings = tuple(
            Reading(**{field.name: value for field in fields(Reading) if is_number(value := reading.get(field.name))})
            for reading in record.get("readings") or ()
            if isinstance(reading, Mapping)
        )
        others = record.get("other_processes")
        return cls(
            readings, others if is_number(others) else None, tuple(filter(is_number, record.get("counted_hz") or ()))
        )

    @property
    def sm_clock_hz(self) -> float | None:
        return _aggregate(statistics.median, self._clocks)

    @property
    def sm_clock_min_hz(self) -> float | None:
        """The lowest, without the lowest twentieth: a drop that short does not change a median."""
        return _aggregate(lambda clocks: sorted(clocks)[int(_LEAST_SHARE * len(clocks))], self._clocks)

    @property
    def sm_clock_max_hz(self) -> float | None:
        """The highest, without the highest twentieth: the clock is at its peak until power reaches its limit."""
        return _aggregate(lambda clocks: sorted(clocks)[-1 - int(_LEAST_SHARE * len(clocks))], self._clocks)

    @property
    def _clocks(self) -> list[float]:
        return self._counted or self._known("sm_clock_hz")

    @property
    def _highest_hz(self) -> float:
        return max(self._known("highest_hz"), default=math.inf)

    @property
    def _counted(self) -> list[float]:
        """The counted clocks that this GPU can have: a clock that changes during the count gives a wrong result."""
        return [clock for clock in self.counted_hz if clock <= (1 + _COUNT_TOLERANCE) * self._highest_hz]

    @property
    def kept_highest_clock(self) -> bool:
        """Return True if the median of the counted clocks is the highest clock; False where either is unknown."""
        counted_hz = self.counted_clock_hz
        kept = counted_hz is not None and counted_hz >= (1 - _COUNT_TOLERANCE) * self._highest_hz
        return kept and not self.throttles

    @property
    def counted_clock_hz(self) -> float | None:
        """The median of the counted clocks, the lower of two, at most the GPU's highest clock: counts are inexact."""
        return _aggregate(lambda counted: min(statistics.median_low(counted), self._highest_hz), self._counted)

    @property
    def power_w(self) -> float | None:
        return _aggregate(statistics.fmean, self._known("power_w"))

    @property
    def temperature_c(self) -> float | None:
        return _aggregate(max, self._known("temperature_c"))

    @property
    def throttles(self) -> dict[str, float]:
        """The reasons that slowed the clock and are no user's setting, with their shares of the readings."""
        readings = [reading for reading in self.readings if reading.reasons is not None]
        slowed = [reading.reasons or 0 for reading in readings if self._is_slowed(reading)]
        shares = {
            name: sum(bool(bits & bit) for bits in slowed) / len(readings)
            for bit, name in _THROTTLES.items()
            if readings
        }
        return {name: share for name, share in shares.items() if share >= _LEAST_SHARE}

    def _is_slowed(self, reading: Reading) -> bool:
        """Return True if the clock was noticeably below the highest, by the counts, else by the reading; or unknown."""
        lowest, median, highest = self.sm_clock_min_hz, self.sm_clock_hz, reading.highest_hz
        if highest is None:
            return True
        if self._counted and lowest is not None and median is not None:
            return lowest < (1 - _THROTTLED_SHARE) * highest or median < (1 - _THROTTLED_MEDIAN_SHARE) * highest
        return reading.sm_clock_hz is None or reading.sm_clock_hz < (1 - _THROTTLED_SHARE) * highest

    def _known(self, name: str) -> list[float]:
        return [value for reading in self.readings if (value := getattr(reading, name)) is not None]

    @property
    def findings(self) -> dict[Flag, str]:
        """The flags that are set, with the numbers behind it."""
        low, high, median = self.sm_clock_min_hz, self.sm_clock_max_hz, self.sm_clock_hz or 0.0
        findings = {}
        if throttles := self.throttles:
            causes = ", ".join(f"{name} in {100 * share:.0f} %" for name, share in throttles.items())
            findings[Flag.THROTTLED] = f"throttled: {causes} of {len(self.readings)} readings"
        if low is not None and high is not None and high - low > _CLOCK_SPREAD * high:
            clocks = f"between {low / 1e6:.0f} and {high / 1e6:.0f} MHz, median {median / 1e6:.0f} MHz"
            findings[Flag.CLOCK_SPREAD] = f"SM clock {clocks}"
        if self.other_processes:
            findings[Flag.OTHER_PROCESS] = f"other processes on the GPU: {self.other_processes}"
        return findings

    def metrics(self) -> dict[str, tuple[float, str]]:
        """Return the rows of the metrics table, name -> (value, unit), without unknown values."""
        rows = {
            "sm_clock": (self.sm_clock_hz, "Hz"),
            "sm_clock_min": (self.sm_clock_min_hz, "Hz"),
            "sm_clock_max": (self.sm_clock_max_hz, "Hz"),
            "power": (self.power_w, "W"),
            "power_max": (_aggregate(max, self._known("power_w")), "W"),
            "temperature": (self.temperature_c, "degC"),
        }
        return {name: (value, unit) for name, (value, unit) in rows.items() if value is not None}


def combine(many: Iterable[GpuConditions]) -> GpuConditions:
    """Return the conditions of a case over all its visits."""
    visits = list(many)
    return GpuConditions(
        tuple(chain.from_iterable(visit.readings for visit in visits)),
        max((visit.other_processes for visit in visits if visit.other_processes is not None), default=None),
        tuple(chain.from_iterable(visit.counted_hz for visit in visits)),
    )


def _aggregate(statistic: Callable[[list[float]], float], values: list[float]) -> float | None:
    return statistic(values) if values else None


# --- NVML ------------------------------------------------------------------------------------------------------------

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

    def conditions(self, counted_hz: tuple[float, ...] = ()) -> GpuConditions:
        """Return ``counted_hz`` and the readings under load so far.

        These are neither idle nor next to idle, where the clock was changing.
        """
        idle = [number for number, reading in enumerate(self.readings) if reading.is_idle]
        near = {number + step for number in idle for step in range(-_NEAR_IDLE, _NEAR_IDLE + 1)}
        loaded = tuple(reading for number, reading in enumerate(self.readings) if number not in near)
        return GpuConditions(loaded, max(self._other_processes, default=None), counted_hz)

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
