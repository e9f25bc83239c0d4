"""What was found of each of several processes that ran a workload's cases together, and of the GPU that it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OfRank:
    """One process of a case: ``name`` is its rank, which is also the number of its GPU.

    ``numbers`` by metric, in ns, bytes and %: its own time, memory and errors without a profiler, and how much of its
    communication it hid, as ``profiler`` saw it.
    """

    case: str
    name: str
    numbers: Mapping[str, float]
    profiler: str = ""
