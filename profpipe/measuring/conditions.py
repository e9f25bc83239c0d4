"""What the GPU was doing while a case was timed: clocks, power, heat, what held it back, and who else was on it.

NVML is read every 20 ms by a thread of its own, and never told anything. A reading takes the driver some 100 us without
the interpreter's lock; as samples are queued ahead of the GPU (``watches``), even a host that waits for that lock does
not reach into a sample. NVML is opened once a process: with eight GPUs that can take a second.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

_INTERVAL_S: Final = 0.02

#: ``nvmlClocksEventReason...``, up to driver 535 ``nvmlClocksThrottleReason...``: the bits are the same (nvml.h).
_IDLE: Final = 0x1
_REASONS: Final = {
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
_THROTTLES: Final = (0x4, 0x8, 0x20, 0x40, 0x80)

#: A reason counts from this share of the readings on: one reading in a hundred does not move a median.
_LEAST_SHARE: Final = 0.05
#: As far as clocks may lie apart, relative to the highest.
_CLOCK_SPREAD: Final = 0.05
#: What holds the clock back by less than this share of its highest for a short while does not move a time that anyone
#: would notice: an H200 near its power limit says "software power cap" at 1965 of 1980 MHz.
_HELD_BACK: Final = 0.02
#: In the median of many counts it does from here on: the median time follows, and ten runs of one case are to agree
#: within 1 % or say why they do not. A single count is no more exact than that, half of them are.
_HELD_BACK_MOSTLY: Final = 0.01
#: As exactly as a clock is counted.
_COUNTED_WITHIN: Final = 0.01
#: Readings this near to an idle one saw the clock on its way up or down.
_NEAR_IDLE: Final = 2


@dataclass(frozen=True)
class Reading:
    """One look at a GPU; None where the driver does not say. ``reasons`` are NVML's bits.

    ``highest_hz`` is the highest SM clock that this GPU has at all.
    """

    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: int | None = None
    highest_hz: float | None = None

    @property
    def idle(self) -> bool:
        return bool((self.reasons or 0) & _IDLE)

    @property
    def slowed(self) -> bool:
        """Whether the clock is noticeably below its highest; True where that is not known."""
        if self.sm_clock_hz is None or self.highest_hz is None:
            return True
        return self.sm_clock_hz < (1 - _HELD_BACK) * self.highest_hz


@dataclass(frozen=True)
class Conditions:
    """The readings of a GPU under load, and the most processes besides this one that held it; None: not known.

    ``counted_hz`` are SM clocks that the GPU itself counted (``watches.Gpu.probe``). Where there are any they are the
    clocks: NVML tells one that is up to some 100 ms old.
    """

    readings: tuple[Reading, ...] = ()
    other_processes: int | None = None
    counted_hz: tuple[float, ...] = ()

    @property
    def sm_clock_hz(self) -> float | None:
        """The median."""
        return _over(statistics.median, self._clocks)

    @property
    def sm_clock_min_hz(self) -> float | None:
        """The lowest, without the lowest twentieth of the readings: as few do not move a median time."""
        return _over(lambda clocks: sorted(clocks)[int(_LEAST_SHARE * len(clocks))], self._clocks)

    @property
    def sm_clock_max_hz(self) -> float | None:
        """The highest, without the highest twentieth: until power runs into its cap the clock is at its peak."""
        return _over(lambda clocks: sorted(clocks)[-1 - int(_LEAST_SHARE * len(clocks))], self._clocks)

    @property
    def _clocks(self) -> list[float]:
        return self._counted or self._known("sm_clock_hz")

    @property
    def _counted(self) -> list[float]:
        """Without those that this GPU cannot have: a clock that changes between the two kernels is counted wrong."""
        highest = max(self._known("highest_hz"), default=math.inf)
        return [clock for clock in self.counted_hz if clock <= (1 + _COUNTED_WITHIN) * highest]

    @property
    def kept_highest_clock(self) -> bool:
        """Whether the GPU counted its highest clock, in the median of many; False where not both are known."""
        highest, counted_hz = max(self._known("highest_hz"), default=math.inf), self.counted_clock_hz
        kept = counted_hz is not None and counted_hz >= (1 - _COUNTED_WITHIN) * highest
        return kept and not self.throttles

    @property
    def counted_clock_hz(self) -> float | None:
        """The median of the clocks that the GPU counted, the lower one of two; None where it counted none.

        No more than the highest that it has, though the counts are only so exact: the most of many would be too much.
        """
        highest = max(self._known("highest_hz"), default=math.inf)
        return _over(lambda counted: min(statistics.median_low(counted), highest), self._counted)

    @property
    def power_w(self) -> float | None:
        """The mean."""
        return _over(statistics.fmean, self._known("power_w"))

    @property
    def power_max_w(self) -> float | None:
        return _over(max, self._known("power_w"))

    @property
    def temperature_c(self) -> float | None:
        """The highest."""
        return _over(max, self._known("temperature_c"))

    @property
    def reasons(self) -> dict[str, float]:
        """What kept the clock below its highest, with its share of the readings."""
        known = self._known("reasons")
        counts = {name: sum(bool(int(bits) & bit) for bits in known) for bit, name in _REASONS.items()}
        return {name: count / len(known) for name, count in counts.items() if count}

    @property
    def throttles(self) -> dict[str, float]:
        """The reasons that no one asked for and that slowed the clock, with their share of the readings."""
        known = [reading for reading in self.readings if reading.reasons is not None]
        shares = {
            _REASONS[bit]: sum(bool((reading.reasons or 0) & bit) and self._slowed(reading) for reading in known)
            / len(known)
            for bit in _THROTTLES
            if known
        }
        return {name: share for name, share in shares.items() if share >= _LEAST_SHARE}

    def _slowed(self, reading: Reading) -> bool:
        """Whether the clock was noticeably below its highest: as counted, else as the reading has it."""
        lowest, median, highest = self.sm_clock_min_hz, self.sm_clock_hz, reading.highest_hz
        if self._counted and lowest is not None and median is not None and highest is not None:
            return lowest < (1 - _HELD_BACK) * highest or median < (1 - _HELD_BACK_MOSTLY) * highest
        return reading.slowed

    def _known(self, name: str) -> list[float]:
        return [value for reading in self.readings if (value := getattr(reading, name)) is not None]


def from_record(record: Mapping[str, Any]) -> Conditions:
    """What ``dataclasses.asdict`` made of conditions, back from JSON; of what is not in it nothing is known."""
    readings = tuple(Reading(**reading) for reading in record.get("readings", ()))
    return Conditions(readings, record.get("other_processes"), tuple(record.get("counted_hz", ())))


def _over(statistic: Callable[[list[float]], float], values: list[float]) -> float | None:
    return statistic(values) if values else None


def combined(many: Iterable[Conditions]) -> Conditions:
    """The conditions of a case over all its visits."""
    visits = list(many)
    others = [visit.other_processes for visit in visits if visit.other_processes is not None]
    return Conditions(
        tuple(reading for visit in visits for reading in visit.readings),
        max(others, default=None),
        tuple(clock for visit in visits for clock in visit.counted_hz),
    )


def marks(conditions: Conditions) -> list[str]:
    """The validity marks: ``throttled``, ``clock_spread``, ``other_process``."""
    low, high = conditions.sm_clock_min_hz, conditions.sm_clock_max_hz
    found = {
        "throttled": bool(conditions.throttles),
        "clock_spread": low is not None and high is not None and high - low > _CLOCK_SPREAD * high,
        "other_process": bool(conditions.other_processes),
    }
    return [mark for mark, holds in found.items() if holds]


def notes(conditions: Conditions) -> list[str]:
    """What stands behind each mark, in words."""
    n, found = len(conditions.readings), marks(conditions)
    said = []
    if "throttled" in found:
        causes = ", ".join(f"{name} in {share:.0%}" for name, share in conditions.throttles.items())
        said.append(f"throttled: {causes} of {n} readings".replace("%", " %"))
    if "clock_spread" in found:
        mhz = [f"{(hz or 0) / 1e6:.0f}" for hz in (conditions.sm_clock_min_hz, conditions.sm_clock_max_hz)]
        said.append(f"SM clock between {mhz[0]} and {mhz[1]} MHz, median {(conditions.sm_clock_hz or 0) / 1e6:.0f} MHz")
    if "other_process" in found:
        said.append(f"other processes on the GPU: {conditions.other_processes}")
    return said


def as_metrics(conditions: Conditions) -> dict[str, tuple[float, str]]:
    """Rows for the metrics table: name -> (value, unit); what is not known is absent."""
    rows = {
        "sm_clock": (conditions.sm_clock_hz, "Hz"),
        "sm_clock_min": (conditions.sm_clock_min_hz, "Hz"),
        "sm_clock_max": (conditions.sm_clock_max_hz, "Hz"),
        "power": (conditions.power_w, "W"),
        "power_max": (conditions.power_max_w, "W"),
        "temperature": (conditions.temperature_c, "degC"),
    }
    return {name: (value, unit) for name, (value, unit) in rows.items() if value is not None}


# --- watching --------------------------------------------------------------------------------------------------------


class Watched:
    """A GPU that is being read. ``readings`` are all of them, idle ones too, in order."""

    def __init__(self, gpu: _Gpu | None) -> None:
        self._gpu = gpu
        self._others: list[int] = []
        self.readings: list[Reading] = []

    def summary(self) -> Conditions:
        """The readings under load so far: not idle, and not next to idle, where the clock was on its way."""
        idle = [number for number, reading in enumerate(self.readings) if reading.idle]
        near = {number + step for number in idle for step in range(-_NEAR_IDLE, _NEAR_IDLE + 1)}
        loaded = tuple(reading for number, reading in enumerate(self.readings) if number not in near)
        return Conditions(loaded, max(self._others, default=None))

    def forget(self) -> None:
        """What was read so far was before what is measured."""
        self.readings.clear()

    def read(self) -> None:
        if self._gpu is not None:
            self.readings.append(self._gpu.reading())

    def count_others(self) -> None:
        if self._gpu is not None and (count := self._gpu.other_processes()) is not None:
            self._others.append(count)


@contextmanager
def watching(device: int | str | None = None) -> Iterator[Watched]:
    """Reads a GPU while the block runs: CUDA's ordinal, a UUID, or torch's current device.

    Without NVML, or where it does not know the device (MIG, AMD), nothing is read and all is None.
    """
    gpu = _open(_identity(device))
    watched, over = Watched(gpu), threading.Event()
    if gpu is None:
        yield watched
        return

    def read_on() -> None:
        while not over.wait(_INTERVAL_S):
            watched.read()

    watched.count_others()
    thread = threading.Thread(target=read_on, name="profpipe-conditions", daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        over.set()
        thread.join()
    # The load is just over and the clock still what it was; a case of 10 ms has no other reading.
    watched.read()
    watched.count_others()


def watching_on(device: str) -> AbstractContextManager[Watched]:
    """``watching`` for what is measured on ``cuda``. Of what is measured on a CPU no GPU can tell anything."""
    return watching() if device == "cuda" else nullcontext(Watched(None))


def _identity(device: int | str | None) -> int | str | None:
    """The device as NVML can find it: a UUID, else an index of NVML's; None where this process sees no such device.

    CUDA counts the visible devices, by default the fastest first; NVML counts all, by PCI bus. Only the UUID, which
    torch tells from 2.4 on, is sure to name the same one in both.
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


@functools.lru_cache(maxsize=8)
def _open(identity: int | str | None) -> _Gpu | None:
    if identity is None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = _handle(pynvml, identity)
    except Exception:  # any failure means the same here: there is nothing to read (ImportError, NVMLError, OSError)
        return None
    return _Gpu(pynvml, handle) if handle is not None else None


def _handle(library: Any, identity: int | str) -> Any:
    if isinstance(identity, int):
        return library.nvmlDeviceGetHandleByIndex(identity)
    wanted = _bare(identity)
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        # CUDA_VISIBLE_DEVICES may hold the beginning of a UUID.
        if _bare(library.nvmlDeviceGetUUID(handle)).startswith(wanted):
            return handle
    return None


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


class _Gpu:
    """One device of NVML."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml, self._handle = library, handle
        highest = self._ask(lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM))
        self._highest_hz = None if highest is None else highest * 1e6

    def reading(self) -> Reading:
        nvml = self._nvml
        clock = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        return Reading(
            sm_clock_hz=None if clock is None else clock * 1e6,
            power_w=self._ask(self._power_now_w) or self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3),
            temperature_c=self._ask(lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)),
            reasons=self._ask(self._reasons),
            highest_hz=self._highest_hz,
        )

    def _power_now_w(self) -> float | None:
        """nvmlDeviceGetPowerUsage is the mean of the last second on Ampere and later; this field is not."""
        field = getattr(self._nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        if field is None:
            return None
        value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])[0]
        return value.value.uiVal / 1e3 if value.nvmlReturn == 0 else None

    def _reasons(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except (self._nvml.NVMLError, AttributeError):  # the driver, or the binding, has it under its older name
            return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def other_processes(self) -> int | None:
        """Processes with a context on the GPU besides this one.

        In a container NVML lists the host's process ids, or none at all. So where this process has a context and is
        not listed under its own id, one of those listed is taken to be this one; where none is listed, none can be
        seen.
        """
        listed = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if listed is None:
            return None
        pids, torch = {process.pid for process in listed}, sys.modules.get("torch")
        here = os.getpid() in pids or bool(torch is not None and torch.cuda.is_initialized())
        if here and not pids:
            return None
        return len(pids) - here

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer; None where this GPU, driver or container does not give it."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return None
