"""Rows of ``ranges`` from the NVTX reports of ``nsys stats``; only traces say how they nest, sums give bare names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from profpipe import attribution, load, tables

if TYPE_CHECKING:
    import _nsys_printed
else:
    _nsys_printed = load.module(Path(__file__).with_name("_nsys_printed.py"))


def read(found: Sequence[_nsys_printed.Table]) -> pd.DataFrame:
    """Wall times from traces where there are some, else from sums; with the kernels where a report tells them."""
    traces = [_of_trace(table) for table in found if table.kind == "range_trace"]
    sums = [_of_sum(table) for table in found if table.kind == "range_sum"]
    inside = [_of_kernels(table) for table in found if table.kind == "range_kernels"]
    walls = pd.concat(traces or sums or [tables.empty(tables.RANGES)])
    if not inside:
        return tables.frame(tables.RANGES, walls.drop_duplicates(["case", "process", "range"]))
    kernel_columns = pd.concat(inside).groupby(["case", "range"], sort=False)[["kernels", "kernel_ns"]].sum()
    if walls.empty:
        return tables.frame(tables.RANGES, kernel_columns.reset_index())
    walls = walls.drop(columns=["kernels", "kernel_ns"]).drop_duplicates(["case", "range"])
    return tables.frame(tables.RANGES, walls.join(kernel_columns, on=["case", "range"], how="left"))


def _split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(case, range) of ranges by name alone; nsys 2024 puts the empty name of the default domain before a colon."""
    split = [tables.split_path([name.removeprefix(":")]) for name in names]
    return [case for case, _ in split], [rest for _, rest in split]


def _of_sum(table: _nsys_printed.Table) -> pd.DataFrame:
    cases, names = _split(table.column("range"))
    frame = pd.DataFrame({"case": cases, "range": names})
    frame["instances"] = table.numbers("instances")
    frame["wall_ns"] = table.times("total time")
    summed = frame.groupby(["case", "range"], sort=False).sum().reset_index()
    return tables.frame(tables.RANGES, summed)


def _of_kernels(table: _nsys_printed.Table) -> pd.DataFrame:
    """Kernels by range from nvtx_kern_sum, which credits a kernel to every range around it: inclusive, as here."""
    cases, names = _split(table.column("nvtx range"))
    frame = pd.DataFrame({"case": cases, "range": names, "kernels": table.numbers("kern inst")})
    frame["kernel_ns"] = table.times("total time")
    return frame[[not _nsys_printed.is_missing(text) for text in table.column("nvtx range")]]


def _of_trace(table: _nsys_printed.Table) -> pd.DataFrame:
    split = [tables.split_path(path) for path in _paths(table)]
    frame = pd.DataFrame(split, columns=["case", "range"])
    frame["process"] = table.numbers("pid") if table.has("pid") else np.nan
    frame["wall_ns"] = table.times("duration")
    grouped = frame.groupby(["process", "case", "range"], sort=False, dropna=False)["wall_ns"]
    return tables.frame(tables.RANGES, grouped.agg(instances="count", wall_ns="sum").reset_index())


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
                node[link] = paths.child(node.get(parents[link], 0), tables.range_name(names[link].removeprefix(":")))
    return [paths.names_of(node[number]) for number in table.column("rangeid")]
