"""The last runs, and how each case's time moved over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from profpipe.job import readable

Row = Mapping[str, Any]


def text(runs: Sequence[Row], times: Sequence[Row]) -> str:
    """``runs``, newest first, and ``times`` (ns), by case and oldest first, as ``store.history`` gives them."""
    oldest_first = [str(row["run"]) for row in reversed(runs)]
    return "\n".join([*_runs(runs), *(["", *_times(times, oldest_first)] if times else [])])


def _runs(runs: Sequence[Row]) -> Iterator[str]:
    width = max((len(row["run"]) for row in runs), default=3)
    yield f"{'run':{width}}  {'started':25}  cases ok"
    for row in runs:
        state = "" if row["ended"] else "  unfinished"
        yield f"{row['run']:{width}}  {row['started']:25}  {row['ok'] or 0} of {row['cases'] or 0}{state}"


def _times(times: Sequence[Row], runs: Sequence[str]) -> Iterator[str]:
    """A column for each of ``runs`` of which there is any time."""
    timed = {str(row["run"]) for row in times}
    shown = [run for run in runs if run in timed]
    groups = [
        (key, list(rows)) for key, rows in groupby(times, key=lambda row: f"{row['workload']}/{readable(row['case'])}")
    ]
    width = max(len(name) for name, _ in groups)
    found = {name: {str(row["run"]): row["value"] / 1e3 for row in rows} for name, rows in groups}
    written = {name: [f"{own[run]:.2f}" if run in own else "-" for run in shown] for name, own in found.items()}
    wide = [max(map(len, column)) for column in zip(*written.values(), strict=True)]
    yield f"{'median time in us, a column for each of these runs with times, oldest first':{width}}"
    for name, texts in written.items():
        values = [found[name].get(run) for run in shown[-2:]]
        moved = (
            f"  {(values[1] / values[0] - 1) * 100:+.1f}% since the run before"
            if len(values) == 2 and values[0] and values[1]
            else ""
        )
        columns = "  ".join(f"{text:>{length}}" for text, length in zip(texts, wide, strict=True))
        yield f"{name:{width}}  {columns}{moved}"
