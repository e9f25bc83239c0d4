"""Rows of rocprof's CSV files that are one launch each, whatever generation wrote them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from profpipe import kernels, tables
from profpipe.errors import Refused
from profpipe.formats import recording
from profpipe.formats.csvfile import Sheet

TRACE_AGAIN: Final = "Record again with `rocprofv3 --kernel-trace --marker-trace --hip-trace -f csv -- COMMAND`."

#: What describes a launch but enters no table: left unread, for a trace has a million rows.
UNUSED = {
    "Queue_Id", "Kernel_Id", "Private_Segment_Size", "Group_Segment_Size", "LDS_Block_Size", "Scratch_Size",
    "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size", "Grid_Size", "Guid", "queue-id", "queue-index",
    "grd", "wgr", "lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", "Percentage",
    *(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"),
}  # fmt: skip


def refused(sheet: Sheet, what: str, remedy: str) -> Refused:
    return Refused(sheet.path, "; ".join([what, *sheet.notes]), remedy)


def launches(sheet: Sheet, **place: Any) -> pd.DataFrame:
    """The launches of rocprofv2 and v3, which name and time them alike; ``place`` is where they ran, by column."""
    if not len(sheet):
        raise refused(sheet, "no kernels were recorded", "Pass --kernel-trace, and see that the program used the GPU.")
    named = {"name": sheet.columns["Kernel_Name"], "kind": "kernel"}
    times = {"start": sheet.numbers("Start_Timestamp"), "end": sheet.numbers("End_Timestamp")}
    return numbered(recording.records(recording.LAUNCH, {**named, **times, **place}))


def numbered(launches: pd.DataFrame) -> pd.DataFrame:
    """With ``launch``, by which counters find theirs: each row is one."""
    return launches.assign(launch=pd.array(range(len(launches)), dtype="Int64"))


def annotated(placed: recording.Placed, sheet: Sheet) -> tables.Tables:
    found = placed.tables
    if not len(found.kernels) and not len(found.ranges):
        raise refused(sheet, "no row of it is whole", TRACE_AGAIN)
    return replace(found, kernels=kernels.annotate(found.kernels))


def counters(sheet: Sheet, launches: pd.DataFrame, known: Collection[str]) -> pd.DataFrame:
    """``launch``, ``subject``, ``metric`` and ``value`` of the counters, which are the columns that are not ``known``.

    ``launches`` has the rows of the sheet.
    """
    names = [name for name in sheet.columns if name not in known]
    values = pd.DataFrame({name: pd.to_numeric(pd.Series(sheet.columns[name]), errors="coerce") for name in names})
    told = values.assign(launch=launches["launch"], subject=launches["name"].map(kernels.normalise))
    return told.melt(["launch", "subject"], var_name="metric")


def with_counters(
    sheet: Sheet, everything: recording.Recording, values: pd.DataFrame, origin: tables.Origin
) -> tables.Tables:
    """Tables of launches with or without times, and of their counters' ``values``, told by ``launch``."""
    launches = everything.launches
    if launches["start"].isna().all():
        found = recording.count_only(launches, origin)
        return replace(found, kernels=kernels.annotate(found.kernels), metrics=recording.counters(values))
    placed = recording.place(everything, origin)
    case_of = placed.launches.dropna(subset=["launch"]).set_index("launch")["case"]
    cases = values["launch"].map(case_of.to_dict()).fillna("")
    return replace(annotated(placed, sheet), metrics=recording.counters(values.assign(case=cases)))
