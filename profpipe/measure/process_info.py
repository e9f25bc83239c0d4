"""The workload's own process: torch, if it is installed, and the device that torch sees."""

from __future__ import annotations

import os
import time
from typing import Any


def torch() -> Any:
    """Return the module torch, or None: a workload may do without it."""
    try:
        import torch as found
    except ImportError:
        return None
    return found


def device() -> str:
    """Return ``cuda`` (also on ROCm) or ``cpu``."""
    library = torch()
    return "cuda" if library is not None and library.cuda.is_available() else "cpu"


def describe() -> dict[str, Any]:
    """Return the facts of this process for the first line of its events."""
    library = torch()
    described: dict[str, Any] = {"pid": os.getpid(), "time": time.time(), "machine": {"device": "cpu"}}
    if library is not None:
        described |= {"torch": library.__version__, "cuda": library.version.cuda}
    if device() == "cuda":
        properties = library.cuda.get_device_properties(library.cuda.current_device())
        pci = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        described["machine"] = {
            "device": properties.name,
            "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            # Domain, bus and device identify a GPU of the machine; some releases of torch have no address.
            "pci": None if None in pci else ":".join(f"{part:02x}" for part in pci),
        }
    return described
