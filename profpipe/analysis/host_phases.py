"""The host's time of phases, where that is all there is: a profiler without a GPU records ranges and no kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pandas as pd

from profpipe.analysis.shares import PREFERENCE
from profpipe.analysis.tallies import rows
from profpipe.phase_findings import HostPhase


def found(ranges: pd.DataFrame, cases: Collection[str]) -> Iterator[HostPhase]:
    """Of each of ``cases`` the phases that one profiler timed; of several processes the sum."""
    timed = ranges[ranges["wall_ns"].notna() & ranges["case"].isin(cases)]
    names = ["case", "profiler", "range"]
    sums = timed.groupby(names, sort=False)[["instances", "wall_ns"]].sum().reset_index()
    by_case: dict[str, dict[str, dict[str, tuple[int, float]]]] = {}
    for case, profiler, path, instances, wall in rows(sums, *names, "instances", "wall_ns"):
        by_case.setdefault(case, {}).setdefault(profiler, {})[path] = instances, wall
    for case, by_profiler in by_case.items():
        profiler = next((name for name in PREFERENCE if by_profiler.get(name, {}).keys() - {""}), "")
        own = by_profiler.get(profiler, {})
        calls, call_ns = own.get("", (0, 0.0))
        for path, (instances, wall) in own.items():
            if path:
                count, share = calls or 1, wall / call_ns if call_ns else None
                yield HostPhase(case, path, profiler, instances / count, wall / count, share, per_call=bool(calls))
