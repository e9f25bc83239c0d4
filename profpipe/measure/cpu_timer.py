"""Times calls on the CPU."""

from __future__ import annotations

import ctypes
import functools
import time
from pathlib import Path
from typing import Final

from profpipe.measure.device_timer import DeviceTimer

MIB: Final = 2**20

#: Flush size where the cache size is unknown, and the largest. A server reports the cache of all its cores as one, up
#: to 512 MiB. Overwriting twice that takes 0.2 s before each sample, and a process on a few cores holds a part of it.
_DEFAULT_FLUSH_BYTES: Final = 64 * MIB
_LARGEST_FLUSH_BYTES: Final = 256 * MIB
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


class CpuTimer(DeviceTimer):
    """``perf_counter_ns``. The flush evicts the shared cache; private caches of other cores may keep their contents."""

    clock = "perf_counter"

    def __init__(self, timed: bool = True, flush: bool = True) -> None:
        self._begin_ns = 0
        self._times_ns: list[float] = []
        size = min(2 * (last_level_cache_bytes() or 0), _LARGEST_FLUSH_BYTES) or _DEFAULT_FLUSH_BYTES
        self.flush_bytes = size if flush else 0

    def __enter__(self) -> CpuTimer:
        self._buffer = _flush_buffer(self.flush_bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Keep the buffer for the next case."""

    def flush(self) -> None:
        ctypes.memset(self._buffer, 0, self.flush_bytes)

    def start(self) -> None:
        self._begin_ns = time.perf_counter_ns()

    def stop(self) -> None:
        self._times_ns.append(float(time.perf_counter_ns() - self._begin_ns))

    def take_times_ns(self) -> list[float]:
        times, self._times_ns = self._times_ns, []
        return times


@functools.cache
def _flush_buffer(size: int) -> ctypes.Array[ctypes.c_char]:
    """Return the buffer of this process: a new one for each case would cost a page fault for every 4 KiB."""
    return ctypes.create_string_buffer(size)


def last_level_cache_bytes(caches: Path = _CACHES) -> int | None:
    """Return the size of the largest cache that Linux reports for the first core (``32768K``), or None."""
    units = {"K": 2**10, "M": MIB, "G": 2**30}
    sizes = [path.read_text(encoding="ascii").strip() for path in caches.glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=None)
