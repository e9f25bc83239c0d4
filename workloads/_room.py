"""How much memory there is, and what is said of a case that needs more."""

from __future__ import annotations

import os

import torch


def lacking(least: int, device: str, needs: str, remedy: str) -> str | None:
    """Why a case that needs ``least`` bytes cannot run, or None. ``needs`` says so, with ``{}`` for how much."""
    have = memory_bytes(device)
    if least <= have:
        return None
    place = "this GPU" if device == "cuda" else "this machine"
    return f"{needs.format(_gib(least))}, and {place} has {_gib(have)}. {remedy}"


def memory_bytes(device: str) -> int:
    """Of the GPU, else of the machine."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
