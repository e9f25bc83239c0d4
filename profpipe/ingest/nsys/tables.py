"""The tables of an nsys export that hold the work of the GPU and the calls of CUDA, and what is read of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from profpipe.ingest.nsys.columns import Dtypes, Source

PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
KERNELS, GRAPHS, COPIES, SETS, CALLS = (
    f"{PREFIX}{kind}" for kind in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET", "RUNTIME")
)

#: Three columns that are read as one number.
GRID: Final = ("gridX", "gridY", "gridZ")
_NAMED_BY: Final = {
    KERNELS: ("demangledName", "shortName", "mangledName"), GRAPHS: ("graphId", "graphExecId"), COPIES: ("copyKind",),
}  # fmt: skip


def labels(export: Source, table: str) -> list[str]:
    """Return the columns that name the rows of a table of activities, the best one first."""
    return [name for name in _NAMED_BY.get(table, ()) if name in export.columns(table)] or ["label"]


def wanted(export: Source, table: str) -> Dtypes:
    """Return the columns to read."""
    found: dict[Any, type[np.integer[Any]]] = {"start": np.int64, "end": np.int64}
    if table == CALLS:
        found |= {"globalTid": np.int64, "correlationId": np.uint32, "nameId": np.int32, "returnValue": np.int32}
        return found
    found |= {"globalPid": np.int64, "deviceId": np.int32, "streamId": np.int32, "correlationId": np.uint32}
    found[labels(export, table)[0]] = np.int32
    if table == KERNELS:
        found[GRID] = np.int64
    return found
