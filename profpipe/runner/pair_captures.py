"""The captures of an `ab` run: processes under a profiler, which show what the kernels of a difference are.

A capture is a process beside the timed ones of a pair. Its times are never compared with theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pandas as pd

from profpipe.errors import ToolMissing
from profpipe.ingest import job_tables
from profpipe.job import Job, Missing, Tool
from profpipe.results import schema
from profpipe.results.manifest import NoCaptures, PairsEntry
from profpipe.results.schema import Tables
from profpipe.runner.request import Machine, RunRequest

#: The profilers that record every launch, the one of the lowest cost first.
PROFILERS: Final = ("nsys", "torch")


def prepare(request: RunRequest, settings: PairsEntry) -> tuple[Machine, PairsEntry]:
    """Return the machine with the profilers of a new `ab` run, and the settings with that of the captures."""
    machine = examine(request, settings)
    has_commands = any(workload.command for workload in request.pipeline.workloads.values())
    settings = choose(settings, machine, has_commands)
    used = ("plain", settings.profiler)
    return replace(machine, tools={name: tool for name, tool in machine.tools.items() if name in used}), settings


def examine(request: RunRequest, settings: PairsEntry) -> Machine:
    """Return the machine with the profiler of the captures, or with those to choose from."""
    wanted = () if settings.no_captures else (settings.profiler,) if settings.profiler else PROFILERS
    return Machine.examine(replace(request, profilers=("plain", *wanted)))


def choose(settings: PairsEntry, machine: Machine, pipeline_has_commands: bool) -> PairsEntry:
    """Return the settings with the profiler of the captures, or why there are none.

    Without a GPU no kernels run. The Python of a command may have torch where that of profpipe has none. Raises
    ToolMissing for a profiler that the user names and that is missing.
    """
    if settings.no_captures:
        return replace(settings, captures=0, profiler="")
    if settings.profiler:
        tool = machine.tools[settings.profiler]
        if isinstance(tool, Missing) and not (tool.name == "torch" and pipeline_has_commands):
            raise ToolMissing(str(tool))
        return settings
    if not machine.described["gpus"]:
        return replace(settings, captures=0, no_captures=NoCaptures.NO_GPU)
    if isinstance(machine.tools["nsys"], Tool):
        return replace(settings, profiler="nsys")
    if isinstance(machine.tools["torch"], Tool) or pipeline_has_commands:
        return replace(settings, profiler="torch")
    return replace(settings, captures=0, no_captures=NoCaptures.NO_PROFILER)


def merge(stored: Tables, fresh: Tables, job: Job, folder: str, names: Mapping[str, str]) -> Tables:
    """Return ``stored`` with the kernels of a capture in place of those of an earlier try; `cases` stays.

    ``folder`` is that of the job, relative to the run's, and ``names`` are the names of its cases on both sides.
    """
    kept = job_tables.drop_folder(stored, folder)
    of_case = fresh.ranges["range"] == ""
    numbers = fresh.metrics[fresh.metrics["metric"].isin(schema.CAPTURED_METRICS)]
    numbers = numbers.assign(subject=(f"{job.label} " + numbers["subject"]).str.rstrip(" "))
    return replace(
        kept,
        kernels=schema.concat_rows(schema.KERNELS, [kept.kernels, _renamed(fresh.kernels, names)]),
        ranges=schema.concat_rows(schema.RANGES, [kept.ranges, _renamed(fresh.ranges[of_case], names)]),
        metrics=schema.concat_rows(schema.METRICS, [_without(kept.metrics, job, names), _renamed(numbers, names)]),
    )


def _renamed(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    own = rows[rows["case"].isin(names)]
    return own.assign(case=own["case"].map(names))


def _without(metrics: pd.DataFrame, job: Job, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the metrics without those of an earlier try of the job."""
    mine = (metrics["workload"] == job.workload) & (metrics["profiler"] == job.profiler)
    mine &= metrics["case"].isin([names[case.id] for case in job.cases])
    mine &= (metrics["subject"] == job.label) | metrics["subject"].str.startswith(f"{job.label} ")
    return metrics[~mine]
