"""The peaks of a process's memory, in bytes."""

from __future__ import annotations

import sys
from typing import Any, Dict

from profpipe.hook import clock


def of_torch() -> Dict[str, int]:
    """Return the device of this thread and the peaks of torch's memory on it; nothing without a GPU."""
    library = clock.cuda()
    return {} if library is None else _peaks(library, library.current_device())


def of_torch_on_any_device() -> Dict[str, int]:
    """Return the device with the highest peak, for a thread that does not know which device the others use."""
    library = clock.cuda()
    if library is None:
        return {}
    return _peaks(library, max(range(library.device_count()), key=library.max_memory_allocated))


def _peaks(library: Any, device: int) -> Dict[str, int]:
    return {
        "device": device,
        "peak_allocated": library.max_memory_allocated(device),
        "peak_reserved": library.max_memory_reserved(device),
    }


def of_host() -> Dict[str, int]:
    """Return the peak of the memory that the process held on the host (resident set size)."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage(2) counts KiB on Linux and bytes on macOS.
    return {"peak_host": peak if sys.platform == "darwin" else peak * 1024}
