"""Make rows of ``ranges`` from the NVTX reports of ``nsys stats``. Only traces say how ranges nest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pandas as pd

from profpipe.ingest import attribution
from profpipe.ingest.nsys import stats_output
from profpipe.results import schema

_KEYS: Final = ["process", "case", "range"]
_INSIDE: Final = ["kernels", "kernel_ns"]
_VALUES: Final = ["instances", "wall_ns", *_INSIDE]


def read(found: Sequence[stats_output.Table]) -> pd.DataFrame:
    """Return the sum of each range over all captures; a value that one capture lacks is missing."""
    captures = dict.fromkeys(table.made_from for table in found)
    parts = [_of_capture([table for table in found if table.made_from == capture]) for capture in captures]
    if not (parts := [part for part in parts if len(part)]):
        return schema.empty(schema.RANGES)
    rows = pd.concat(parts).reindex(columns=[*_KEYS, *_VALUES])
    summed = rows.groupby(_KEYS, sort=False, dropna=False).agg(lambda values: values.sum(skipna=False))
    return schema.frame(schema.RANGES, summed.reset_index())


def _of_capture(found: Sequence[stats_output.Table]) -> pd.DataFrame:
    """Return wall times from traces, else from sums; with the kernels where a report has them."""
    traces = [_of_trace(table) for table in found if table.kind == "range_trace"]
    sums = [_of_sum(table) for table in found if table.kind == "range_sum"]
    inside = [table for table in found if table.kind == "range_kernels"]
    # Several reports hold the same ranges, and each may have been printed twice, by its old name and its new one.
    walls = _together(traces or sums).drop_duplicates(_KEYS)
    kernels = _together(_once(inside))
    if walls.empty:
        return kernels.groupby(_KEYS, sort=False, dropna=False)[_INSIDE].sum().reset_index()
    keys = ["process", "name"] if walls["process"].notna().all() else ["name"]
    joined = walls.drop(columns=_INSIDE).join(kernels.groupby(keys, sort=False)[_INSIDE].sum(), on=keys)
    # A sum by name cannot be divided among several ranges of this name.
    joined.loc[walls.duplicated(keys, keep=False), _INSIDE] = float("nan")
    return joined


def _once(inside: Iterable[stats_output.Table]) -> list[pd.DataFrame]:
    """Return the rows of each report once, at its finest resolution."""
    keys = ["process", "name", "kernels"]
    kept: list[tuple[float, pd.DataFrame]] = []
    for table in sorted(inside, key=lambda table: table.resolution_ns("total time")):
        resolution_ns, frame = table.resolution_ns("total time"), _of_kernels(table)
        frame = frame.sort_values([*keys, "kernel_ns"], ignore_index=True)
        for finer_ns, other in kept:
            rounded = 0.0 if finer_ns == resolution_ns else (finer_ns + resolution_ns) / 2
            if frame[keys].equals(other[keys]) and ((frame["kernel_ns"] - other["kernel_ns"]).abs() <= rounded).all():
                break
        else:
            kept.append((resolution_ns, frame))
    return [frame for _, frame in kept]


def _together(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Join frames to the columns ``_KEYS``, ``_VALUES`` and ``name``, the range without those around it."""
    given = list(frames)
    return (pd.concat(given) if given else pd.DataFrame()).reindex(columns=[*_KEYS, "name", *_VALUES])


def _of_sum(table: stats_output.Table) -> pd.DataFrame:
    frame = _bare(table.column("range"))
    frame["instances"] = table.whole_numbers("instances")
    frame["wall_ns"] = table.times("total time")
    return frame.groupby(["case", "range", "name"], sort=False).sum().reset_index()


def _of_kernels(table: stats_output.Table) -> pd.DataFrame:
    """Return kernels by range from nvtx_kern_sum, which counts a kernel in every range around it, as our tables do."""
    frame = _bare(table.column("nvtx range"))
    frame["process"] = table.whole_numbers("pid") if table.has("pid") else float("nan")
    frame["kernels"] = table.whole_numbers("kern inst")
    frame["kernel_ns"] = table.times("total time")
    return frame[[not stats_output.is_missing(text) for text in table.column("nvtx range")]]


def _of_trace(table: stats_output.Table) -> pd.DataFrame:
    paths = _paths(table)
    frame = pd.DataFrame([schema.split_path(path) for path in paths], columns=["case", "range"])
    frame["name"] = [path[-1] for path in paths]
    frame["process"] = table.whole_numbers("pid") if table.has("pid") else float("nan")
    frame["wall_ns"] = table.times("duration")
    grouped = frame.groupby([*_KEYS, "name"], sort=False, dropna=False)["wall_ns"]
    return grouped.agg(instances="count", wall_ns="sum").reset_index()


def _name(text: str) -> str:
    """Remove the colon behind the empty name of the default domain (nsys 2024)."""
    return schema.range_name(text.removeprefix(":"))


def _bare(texts: list[str]) -> pd.DataFrame:
    """Return ``name``, ``case`` and ``range`` of ranges without known parents."""
    names = [_name(text) for text in texts]
    frame = pd.DataFrame([schema.split_path([name]) for name in names], columns=["case", "range"])
    return frame.assign(name=names)


def _paths(table: stats_output.Table) -> list[list[str]]:
    """Return the names of each row's range and the ranges around it, outermost first."""
    parents = dict(zip(table.column("rangeid"), table.column("parentid"), strict=True))
    names = dict(zip(table.column("rangeid"), table.column("name"), strict=True))
    paths = attribution.Paths()
    node: dict[str, int] = {}
    for number in names:
        chain = [number]
        while chain[-1] not in node and (parent := parents.get(chain[-1])) in names and parent not in chain:
            chain.append(parent)
        for link in reversed(chain):
            if link not in node:
                node[link] = paths.child(node.get(parents[link], 0), _name(names[link]))
    return [paths.names_of(node[number]) for number in table.column("rangeid")]
