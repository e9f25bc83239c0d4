"""Compare the launches that profilers recorded. A profiler may lose events, and warns only that it might have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from profpipe.analysis.case_index import WorkloadData
from profpipe.analysis.findings import LaunchCounts
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import PREFERENCE, Key, rows

#: Launches by kernel.
_Counts = Mapping[str, int]


def compare(data: WorkloadData) -> Iterator[LaunchCounts]:
    """Compare each profiler that records every launch with the first of them."""
    counts, ncu = _counts(data), data.declared.ncu if data.declared else None
    seen = {profiler for _, profiler in counts}
    # ncu profiles selected kernels, unless the pipeline file asks for all.
    complete = [name for name in PREFERENCE if name in seen and (name != "ncu" or (ncu and ncu.kernels == "all"))]
    for other in complete[1:]:
        excluded = ncu.exclude if ncu and other == "ncu" else ""
        if found := _compare_pair((complete[0], other), counts, data, excluded):
            yield found


def _counts(data: WorkloadData) -> dict[Key, _Counts]:
    """Return launches by kernel, without cases that have whole graphs: a graph hides the number of its kernels."""
    key, table = ["case", "profiler", "kernel"], data.recorded.tables.kernels
    table = table[table["case"] != ""]
    sums = table[table["kind"] == "kernel"].groupby(key, sort=False)["calls"].sum().reset_index()
    found = grouped((tuple(pair), (kernel, int(calls))) for *pair, kernel, calls in rows(sums, *key, "calls"))
    graphs = set(rows(table[table["kind"] == "graph"], "case", "profiler"))
    return {pair: dict(own) for pair, own in found.items() if pair not in graphs}


def _compare_pair(
    pair: tuple[str, str], counts: Mapping[Key, _Counts], data: WorkloadData, excluded: str
) -> LaunchCounts | None:
    """Compare the cases that both captured with known iterations, without the kernels whose name fits ``excluded``."""
    runs: dict[str, tuple[int, int]] = {}
    # Profilers record different parts of a program with steps.
    with_steps = {case for case, _ in data.recorded.step_totals}
    for case, breakdowns in ((id, own) for id, own in data.breakdowns.items() if id not in with_steps):
        n, m = (breakdowns[name].iterations if name in breakdowns else None for name in pair)
        if n and m and all((case, name) in counts for name in pair):
            runs[case] = n, m
    is_per_iteration = any(n != m for n, m in runs.values())
    number, same_by_kernel, differing = 0.0, 0, []
    for case, (n, m) in runs.items():
        ours, theirs = (
            {kernel: calls for kernel, calls in counts[case, name].items()
             if not (excluded and re.search(excluded, kernel))}
            for name in pair
        )  # fmt: skip
        first, second = sum(ours.values()), sum(theirs.values())
        shown = (first / n, second / m) if is_per_iteration else (first, second)
        number += shown[0]
        # Times the other's iterations, the counts are whole numbers that can be compared.
        same_by_kernel += {k: m * calls for k, calls in ours.items()} == {k: n * calls for k, calls in theirs.items()}
        if m * first != n * second:
            differing.append((case, *shown))
    if not runs:
        return None
    return LaunchCounts(data.name, pair, number, is_per_iteration, len(runs), same_by_kernel, tuple(differing))
