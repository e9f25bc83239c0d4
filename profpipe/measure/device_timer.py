"""The timer of a device. The methods here do nothing: that is right for a CPU, and a GPU overrides them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from profpipe.measure.distributed import SINGLE_PROCESS, Ranks
from profpipe.measure.launch_profile import LaunchProfile, PriorMeasurement


class DeviceTimer(ABC):
    """A clock with cache flush, memory counters and launch queue; a context around one measurement."""

    clock: str
    #: 0 where the caches are not flushed.
    flush_bytes: int
    #: Whether ``prepare`` loaded a GPU for long enough to bring its clock down.
    fully_loaded = False

    @abstractmethod
    def __enter__(self) -> DeviceTimer: ...

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Flush the caches; on a GPU, also give the host time to queue the call."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def take_times_ns(self) -> list[float]:
        """Synchronise; return the samples since the last call in order, and drop them."""

    def prepare(
        self, fn: Callable[[], object], ranks: Ranks, prior: PriorMeasurement, longest_s: float
    ) -> LaunchProfile | None:
        """Profile the launch of ``fn`` and load a GPU until its times are stable, for at most ``longest_s``."""
        return None

    def launch_profile(self) -> LaunchProfile | None:
        """Return the profile of ``prepare``, refined by the samples since then."""
        return None

    def apply_load(  # noqa: B027 (a CPU needs no load)
        self, fn: Callable[[], object], ranks: Ranks = SINGLE_PROCESS, clock_hz: float | None = None
    ) -> None:
        """Bring a GPU to the clock that it keeps under ``fn``; ``clock_hz`` is the highest SM clock seen so far."""

    def synchronize(self) -> None:  # noqa: B027
        """Wait until the device is idle."""

    def extend_hold(self, ranks: Ranks = SINGLE_PROCESS) -> bool:
        """Return True if the last batch was launched too late in any process; the hold is then longer for the next.

        In a collective call, a process with a shorter hold would wait for the others, and its time includes the wait.
        """
        return False

    def record_clock(self) -> None:  # noqa: B027
        """Queue kernels that measure the SM clock at this point of the stream."""

    def clocks_hz(self) -> list[float]:
        """Return the SM clock of each ``record_clock`` in order; empty where the clock cannot be measured."""
        return []

    def reset_peak_memory(self) -> None:  # noqa: B027
        """Start to measure the peak of ``peak_memory``."""

    def peak_memory(self) -> tuple[int | None, int | None]:
        """Return the bytes (allocated, reserved) at their peak since ``reset_peak_memory``."""
        return None, None

    def notes(self) -> list[str]:
        """Return the facts of the measurement for the record."""
        return []
