"""Make tables from rocprof's CSV files with one launch a row, of any generation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from profpipe.ingest import kernel_classes
from profpipe.ingest.rocprof import trace
from profpipe.ingest.rocprof.csv_file import CsvTable
from profpipe.results import schema

TRACE_AGAIN: Final = "Record again with `rocprofv3 --kernel-trace --marker-trace --hip-trace -f csv -- COMMAND`."

#: Columns that enter no table. They are not read, for a trace has a million rows.
UNUSED: Final = {
    "Kernel_Id", "Private_Segment_Size", "Group_Segment_Size", "LDS_Block_Size", "Scratch_Size",
    "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size", "Grid_Size", "Guid", "queue-index",
    "grd", "wgr", "lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", "Percentage",
    *(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"),
}  # fmt: skip


def read(table: CsvTable, **place: Any) -> pd.DataFrame:
    """Return the launches of rocprofv2 or v3 as ``trace.LAUNCH``; ``place``: the columns that say where they ran."""
    if not len(table):
        raise table.unreadable("no kernels were recorded", "Pass --kernel-trace, and check that the GPU was used.")
    named = {"name": table.columns["Kernel_Name"], "kind": "kernel"}
    times = {"start": table.numbers("Start_Timestamp"), "end": table.numbers("End_Timestamp")}
    return numbered(trace.records(trace.LAUNCH, {**named, **times, **place}))


def numbered(launches: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``launch``, to which counters refer: each row is one."""
    return launches.assign(launch=pd.array(range(len(launches)), dtype="Int64"))


def place(recording: trace.Recording, origin: schema.Origin, table: CsvTable) -> trace.Placed:
    """Place the launches in ranges. Raises ``UnreadableFile`` where nothing is left."""
    placed = trace.place(replace(recording, step_range=table.step_range), origin)
    if not len(placed.tables.kernels) and not len(placed.tables.ranges):
        raise table.unreadable("no row of it is whole", TRACE_AGAIN)
    return placed


def read_counters(table: CsvTable, launches: pd.DataFrame, known: Collection[str]) -> pd.DataFrame:
    """Return ``launch``, ``subject``, ``metric`` and ``value``: each column that is not ``known`` is a counter.

    ``launches`` has the rows of the table.
    """
    names = [name for name in table.columns if name not in known]
    values = pd.DataFrame({name: pd.to_numeric(pd.Series(table.columns[name]), errors="coerce") for name in names})
    values = values.assign(launch=launches["launch"], subject=launches["name"].map(kernel_classes.normalise))
    return values.melt(["launch", "subject"], var_name="metric")


def place_with_counters(
    recording: trace.Recording, values: pd.DataFrame, origin: schema.Origin, table: CsvTable
) -> schema.Tables:
    """Return tables of launches, with or without times, and of the counters ``values`` of each ``launch``."""
    if recording.launches["start"].isna().all():
        found = trace.count_only(recording.launches, origin)
        return replace(found, metrics=trace.counters(values))
    placed = place(replace(recording, has_counters=len(values) > 0), origin, table)
    case_of = placed.launches.dropna(subset=["launch"]).set_index("launch")["case"]
    cases = values["launch"].map(case_of.to_dict()).fillna("")
    return replace(placed.tables, metrics=trace.counters(values.assign(case=cases)))
