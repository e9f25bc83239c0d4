"""One workload's tables, layout and kernel breakdowns: what every analysis of the workload reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profpipe.analysis.case_index import CaseIndex
from profpipe.analysis.cases import Layout
from profpipe.analysis.findings.workloads import Basis, KernelBreakdown


@dataclass(frozen=True)
class WorkloadData:
    """The tables of one workload, indexed by case. ``profiler`` names the one whose kernel times represent it."""

    name: str
    declared: Mapping[str, Any]
    layout: Layout
    recorded: CaseIndex
    breakdowns: Mapping[str, Mapping[str, KernelBreakdown]]
    basis: Basis | None
    profiler: str | None
