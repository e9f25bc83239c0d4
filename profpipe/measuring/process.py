"""The workload's own process: its torch, if it has one, and the device that torch sees."""

from __future__ import annotations

import os
import time
from typing import Any


def torch() -> Any:
    """torch, or None: a workload need not use it."""
    try:
        import torch as found
    except ImportError:
        return None
    return found


def device() -> str:
    """``cuda`` (ROCm too) or ``cpu``."""
    library = torch()
    return "cuda" if library is not None and library.cuda.is_available() else "cpu"


def _address(properties: Any) -> str | None:
    """Domain, bus and device by PCI, which tell the GPUs of one machine apart; None of a torch that does not say."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return None if None in parts else ":".join(f"{part:02x}" for part in parts)


def described() -> dict[str, Any]:
    """What only this process knows, for the first line of its events."""
    library = torch()
    seen: dict[str, Any] = {"pid": os.getpid(), "time": time.time(), "machine": {"device": "cpu"}}
    if library is not None:
        seen |= {"torch": library.__version__, "cuda": library.version.cuda}
    if device() == "cuda":
        properties = library.cuda.get_device_properties(library.cuda.current_device())
        seen["machine"] = {
            "device": properties.name,
            "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "pci": _address(properties),
        }
    return seen
