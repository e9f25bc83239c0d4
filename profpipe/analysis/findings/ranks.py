"""Findings on the processes that ran a workload's cases together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankResult:
    """One process of a case. ``name`` is its rank, and the number of its GPU.

    ``numbers`` are by metric, in ns, bytes and %: time, memory and errors without a profiler, and the communication
    and its overlap with computation under ``profiler``.
    """

    case: str
    name: str
    numbers: Mapping[str, float]
    profiler: str = ""
