"""The last runs, and how each case's time moved over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from profpipe.job import readable

Row = Mapping[str, Any]


def text(runs: Sequence[Row], times: Sequence[Row]) -> str:
    """``runs``, newest first, and ``times`` (ns), by case and oldest first, as ``store.history`` gives them."""
    return "\n".join([*_runs(runs), *(["", *_times(times)] if times else [])])


def _runs(runs: Sequence[Row]) -> Iterator[str]:
    width = max((len(row["run"]) for row in runs), default=3)
    yield f"{'run':{width}}  {'started':25}  cases ok"
    for row in runs:
        state = "" if row["ended"] else "  unfinished"
        yield f"{row['run']:{width}}  {row['started']:25}  {row['ok'] or 0} of {row['cases'] or 0}{state}"


def _times(times: Sequence[Row]) -> Iterator[str]:
    groups = [
        (key, list(rows)) for key, rows in groupby(times, key=lambda row: f"{row['workload']}/{readable(row['case'])}")
    ]
    width = max(len(name) for name, _ in groups)
    yield f"{'median time in us, oldest first':{width}}"
    for name, rows in groups:
        values = [row["value"] / 1e3 for row in rows]
        moved = f"  {(values[-1] / values[-2] - 1) * 100:+.1f}% since the run before" if len(values) > 1 else ""
        yield f"{name:{width}}  {'  '.join(f'{value:.2f}' for value in values)}{moved}"
