"""Rows of ``ranges`` from the NVTX reports of ``nsys stats``; only traces say how they nest, sums give bare names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from profpipe import load, tables
from profpipe.formats import attribution

if TYPE_CHECKING:
    import _nsys_printed
else:
    _nsys_printed = load.module(Path(__file__).with_name("_nsys_printed.py"))

_KEYS: Final = ["process", "case", "range"]
_INSIDE: Final = ["kernels", "kernel_ns"]
_VALUES: Final = ["instances", "wall_ns", *_INSIDE]


def read(found: Sequence[_nsys_printed.Table]) -> pd.DataFrame:
    """Of several captures each range's sum; a value that one of them does not tell is missing."""
    captures = dict.fromkeys(table.made_from for table in found)
    parts = [_of_capture([table for table in found if table.made_from == capture]) for capture in captures]
    if not (parts := [part for part in parts if len(part)]):
        return tables.empty(tables.RANGES)
    rows = pd.concat(parts).reindex(columns=[*_KEYS, *_VALUES])
    summed = rows.groupby(_KEYS, sort=False, dropna=False).agg(_whole_sum)
    return tables.frame(tables.RANGES, summed.reset_index())


def _whole_sum(values: pd.Series[Any]) -> Any:
    return values.sum(skipna=False)


def _of_capture(found: Sequence[_nsys_printed.Table]) -> pd.DataFrame:
    """Wall times from traces where there are some, else from sums; with the kernels where a report tells them."""
    traces = [_of_trace(table) for table in found if table.kind == "range_trace"]
    sums = [_of_sum(table) for table in found if table.kind == "range_sum"]
    inside = [table for table in found if table.kind == "range_kernels"]
    # Several reports tell the same ranges, and each may have been printed twice, by its old name and its new one.
    walls = _together(traces or sums).drop_duplicates(_KEYS)
    kernels = _together(_once(inside))
    if walls.empty:
        return kernels.groupby(_KEYS, sort=False, dropna=False)[_INSIDE].sum().reset_index()
    keys = ["process", "name"] if walls["process"].notna().all() else ["name"]
    joined = walls.drop(columns=_INSIDE).join(kernels.groupby(keys, sort=False)[_INSIDE].sum(), on=keys)
    # What is told by name alone cannot be divided among the places that a range of this name stands in.
    joined.loc[walls.duplicated(keys, keep=False), _INSIDE] = float("nan")
    return joined


def _once(inside: Iterable[_nsys_printed.Table]) -> list[pd.DataFrame]:
    """Their rows, without those of a report that was printed before as finely, with the same times, or more finely."""
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
    """Columns of ``_KEYS`` and ``_VALUES``, and ``name``: that of the range without those around it."""
    given = list(frames)
    return (pd.concat(given) if given else pd.DataFrame()).reindex(columns=[*_KEYS, "name", *_VALUES])


def _of_sum(table: _nsys_printed.Table) -> pd.DataFrame:
    frame = _bare([_name(text) for text in table.column("range")])
    frame["instances"] = table.numbers("instances")
    frame["wall_ns"] = table.times("total time")
    return frame.groupby(["case", "range", "name"], sort=False).sum().reset_index()


def _of_kernels(table: _nsys_printed.Table) -> pd.DataFrame:
    """Kernels by range from nvtx_kern_sum, which credits a kernel to every range around it: inclusive, as here."""
    frame = _bare([_name(text) for text in table.column("nvtx range")])
    frame["process"] = table.numbers("pid") if table.has("pid") else float("nan")
    frame["kernels"] = table.numbers("kern inst")
    frame["kernel_ns"] = table.times("total time")
    return frame[[not _nsys_printed.is_missing(text) for text in table.column("nvtx range")]]


def _of_trace(table: _nsys_printed.Table) -> pd.DataFrame:
    paths = _paths(table)
    frame = pd.DataFrame([tables.split_path(path) for path in paths], columns=["case", "range"])
    frame["name"] = [path[-1] for path in paths]
    frame["process"] = table.numbers("pid") if table.has("pid") else float("nan")
    frame["wall_ns"] = table.times("duration")
    grouped = frame.groupby([*_KEYS, "name"], sort=False, dropna=False)["wall_ns"]
    return grouped.agg(instances="count", wall_ns="sum").reset_index()


def _name(text: str) -> str:
    """nsys 2024 puts the empty name of the default domain before a colon."""
    return tables.range_name(text.removeprefix(":"))


def _bare(names: list[str]) -> pd.DataFrame:
    """``name``, ``case`` and ``range`` of ranges of which nobody says what is around them."""
    frame = pd.DataFrame([tables.split_path([name]) for name in names], columns=["case", "range"])
    return frame.assign(name=names)


def _paths(table: _nsys_printed.Table) -> list[list[str]]:
    """The names around each row's range and its own, outermost first."""
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
