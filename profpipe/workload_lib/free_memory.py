"""Compares the memory that a case needs with the memory of the machine."""

from __future__ import annotations

import os

import torch


def shortage(least: int, device: str, needs: str, remedy: str) -> str | None:
    """Return why a case that needs ``least`` bytes cannot run, or None. ``needs`` has ``{}`` for the size."""
    available = memory_bytes(device)
    if least <= available:
        return None
    place = "this GPU" if device == "cuda" else "this machine"
    return f"{needs.format(_gib(least))}, and {place} has {_gib(available)}. {remedy}"


def memory_bytes(device: str) -> int:
    """Return the memory of the GPU, or of the machine."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
