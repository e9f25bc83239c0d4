"""Times of step boundaries, and peaks of memory.

Times cost microseconds and make nothing wait: CUDA events, ``perf_counter_ns`` on a CPU.
"""

from __future__ import annotations

import sys
import threading
import types
from time import monotonic, perf_counter_ns, sleep, time_ns
from typing import Any, Dict, List, Optional, Sequence, Tuple

#: How long the end of a process waits for its last steps. A GPU that hangs never finishes them.
_WAIT_S, _POLL_S = 60.0, 0.001
#: (number, ns since the epoch of its start on the host, ns of its duration)
Row = Tuple[int, int, float]


def cuda() -> Any:
    """Return ``torch.cuda`` where this process uses it, else None. No context is created for a time."""
    torch = sys.modules.get("torch")
    library = getattr(torch, "cuda", None)
    return library if library is not None and library.is_initialized() else None


def synchronize_all() -> None:
    """Wait for all devices that this process uses: a new thread does not know the device of the others."""
    library = cuda()
    for device in range(library.device_count() if library is not None else 0):
        if library.max_memory_reserved(device):
            library.synchronize(device)


class _Open(threading.local):
    """The step that began last in this thread, and the event of the end before it."""

    begin: Any = None
    boundary: Any = None


class _Clock:
    def __init__(self) -> None:
        self._open: Any = _Open()

    def share_between_threads(self) -> None:
        """Let one thread end the step that another one began."""
        self._open = types.SimpleNamespace(begin=None, boundary=None)


class HostClock(_Clock):
    """Times on a CPU, where a step is over when its last call returns."""

    name = "perf_counter"

    #: The number of the last step that has ended, where it has no time yet.
    unfinished = None

    def begin(self, number: int) -> None:
        self._open.begin = (number, time_ns(), perf_counter_ns())

    def end(self) -> Sequence[Row]:
        """Return the step that ends."""
        number, start_ns, begin = self._open.begin
        return ((number, start_ns, perf_counter_ns() - begin),)

    def finish(self) -> Sequence[Row]:
        return ()


class EventClock(_Clock):
    """Times between CUDA events on the program's stream, read when the GPU has passed them.

    The end of a step and the begin of the next one are one event, so that no time is lost between the two.
    """

    name = "cuda_event"

    def __init__(self, library: Any) -> None:
        super().__init__()
        self._cuda = library
        self._free: List[Any] = []
        #: (number, start on the host, event of the begin, event of the end), the oldest first
        self._steps: List[Tuple[int, int, Any, Any]] = []

    def begin(self, number: int) -> None:
        opened = self._open
        event = opened.boundary if opened.boundary is not None else self._record()
        opened.begin, opened.boundary = (number, time_ns(), event), None

    def end(self) -> Sequence[Row]:
        """Return the steps that the GPU has finished since the last call. One query makes nothing wait."""
        opened = self._open
        if opened.begin is not None:
            opened.boundary = self._record()
            self._steps.append((*opened.begin, opened.boundary))
            opened.begin = None
        return self._read()

    def pause(self) -> None:
        """Forget the last end: the next step does not begin where the last one ended."""
        self._open.boundary = None

    @property
    def unfinished(self) -> Optional[int]:
        return self._steps[-1][0] if self._steps else None

    def finish(self) -> Sequence[Row]:
        """Wait for all steps, and return those that the GPU has finished. Each thread has a separate stream."""
        until_s = monotonic() + _WAIT_S
        while not all(end.query() for *_, end in self._steps) and monotonic() < until_s:
            sleep(_POLL_S)
        return self._read()

    def _read(self) -> List[Row]:
        rows: List[Row] = []
        while self._steps and self._steps[0][3].query():
            number, start_ns, begin, end = self._steps.pop(0)
            rows.append((number, start_ns, begin.elapsed_time(end) * 1e6))
            # Its end may be the begin of the next step.
            self._free.append(begin)
        return rows

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event


# --- memory ----------------------------------------------------------------------------------------------------------


def peaks_of_torch() -> Dict[str, int]:
    """Return the device of this thread and the peaks of torch's memory on it; nothing without a GPU."""
    library = cuda()
    return {} if library is None else _peaks(library, library.current_device())


def peaks_on_any_device() -> Dict[str, int]:
    """Return the device with the highest peak, for a thread that does not know which device the others use."""
    library = cuda()
    if library is None:
        return {}
    return _peaks(library, max(range(library.device_count()), key=library.max_memory_allocated))


def _peaks(library: Any, device: int) -> Dict[str, int]:
    return {
        "device": device,
        "peak_allocated": library.max_memory_allocated(device),
        "peak_reserved": library.max_memory_reserved(device),
    }


def peak_of_host() -> Dict[str, int]:
    """Return the peak of the memory that the process held on the host (resident set size)."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage(2) counts KiB on Linux and bytes on macOS.
    return {"peak_host": peak if sys.platform == "darwin" else peak * 1024}
