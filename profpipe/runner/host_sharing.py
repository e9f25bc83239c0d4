"""Measure once what running side by side does to a case: one case alone, and then beside another process.

Cases on different GPUs share the host: its cores, caches, memory bandwidth and power. That changes the times of calls
that the host limits. The result is kept in the results folder, and later runs of the case on this machine use it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe import profilers
from profpipe.ingest import reader
from profpipe.job import Job, JobOutcome, Missing, ProgressListener, Status
from profpipe.results import atomic, manifest, schema
from profpipe.results.manifest import HostSharing
from profpipe.runner import process, side_by_side
from profpipe.runner.lanes import Lanes

#: In the results folder.
FILE: Final = "host_sharing.json"
#: Below the folder of the workload.
FOLDER: Final = "host-sharing"

#: Seconds of sampling of the case, and of the process beside it, which starts with it and must not end first.
_SAMPLING_S: Final = 1.5
_BESIDE_S: Final = 6.0

#: The times that are compared, the first that both processes have: on a GPU a plain loop, which shows the host.
_OF_GPU: Final = ("loop_wall", "time", schema.PROCESS_WALL)
_OF_CPU: Final = ("time", schema.PROCESS_WALL)


def choose(jobs: Sequence[Job]) -> tuple[Job, Job] | None:
    """Return the case to measure and what runs beside it, as jobs of one case; None where no plain job is parallel.

    Beside a script runs the same case, whose start takes as long. Beside a command runs a case of another group: two
    processes of one case might write to the same files.
    """
    plain = [job for job in jobs if job.group and job.profiler == "plain" and not isinstance(job.tool, Missing)]
    first = next(iter(plain), None)
    if first is None:
        return None
    other = first if first.script else next((job for job in plain if job.group != first.group), None)
    return (_short(first, _SAMPLING_S), _short(other, _BESIDE_S)) if other else None


def _short(job: Job, sampling_s: float) -> Job:
    """Return the job with its first case, sampled for a given time; of a program with steps, the steps to measure."""
    timing = {"budget_s": sampling_s, "rounds": 1, "target": 1e-9, "most": 10_000_000, "slowed_s": 0.0}
    changed: dict[str, Any] = {"timing": {**job.options.get("timing", {}), **timing}}
    if job.is_hooked:
        changed = {"steps": {**job.options["steps"], "stop": True}}
    options = {**job.options, **changed}
    return replace(job, cases=job.cases[:1], options=options, repeat=1, captures=1, interleaved=())


def measure(
    chosen: tuple[Job, Job], lanes: Lanes, run_folder: Path, plugins: Path | None, listener: ProgressListener
) -> HostSharing | None:
    """Run the case alone, and beside the other job; None where one of the processes failed.

    Raises errors.Interrupted where the user stops the run.
    """
    case, other = chosen
    folder = run_folder / "raw" / case.workload / FOLDER
    _clear(folder)
    ends: dict[str, JobOutcome] = {}
    for name, beside in (("alone", ()), ("beside", (replace(other, folder=folder / "other", group="other"),))):
        jobs = [replace(case, folder=folder / name, group="case"), *beside]
        apart = Lanes(lanes.every, {"case": 0, "other": 1})
        for ended in side_by_side.run(jobs, profilers.ALL, _Silent(listener), apart):
            ends[ended.job.folder.name] = ended
    if any(ended.status is not Status.OK for ended in ends.values()):
        return None  # the logs stay
    alone, shared = (_times(ends[name], run_folder, plugins) for name in ("alone", "beside"))
    on_gpu = any(device.get("device") != "cpu" for device in reader.read_devices(ends["alone"].job.records))
    metric = next((name for name in (_OF_GPU if on_gpu else _OF_CPU) if name in alone and name in shared), None)
    _clear(folder)
    if metric is None:
        return None
    return HostSharing(case.workload, case.cases[0].id, metric, alone[metric], shared[metric], len(lanes.every))


def _clear(folder: Path) -> None:
    """Remove what an earlier measurement left, after its processes."""
    for place in folder.glob("*"):
        process.kill_leftovers(place, process.GRACE.kill_s)
    if folder.exists():
        shutil.rmtree(folder)


def _times(ended: JobOutcome, run_folder: Path, plugins: Path | None) -> dict[str, float]:
    """Return the times of the case in ns, by metric."""
    sources = reader.sources_of_job(ended, run_folder)
    read = [one.tables for one in reader.ingest(sources, plugins, None) if not isinstance(one, reader.Refusal)]
    fresh = reader.add_process_wall(reader.combine(read), ended, run_folder.name)
    own = fresh.metrics[(fresh.metrics["subject"].fillna("") == "") & (fresh.metrics["unit"] == "ns")]
    pairs = zip(own["metric"], own["value"], strict=True)
    return {str(name): float(value) for name, value in pairs if not pd.isna(value)}


def save(out: Path, key: str, found: HostSharing) -> None:
    """Keep the result in the results folder; ``key`` identifies the case, its code and the machine."""
    atomic.write_text(out / FILE, json.dumps({"key": key, "measured": asdict(found)}, indent=1))


def load(out: Path, key: str) -> HostSharing | None:
    """Return the result that the results folder has for ``key``; None for another one and a damaged file."""
    try:
        document = json.loads(atomic.read_regular(out / FILE).decode())
        return manifest.parse(HostSharing, document["measured"]) if key and document["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


class _Silent(ProgressListener):
    """A listener for processes that are no jobs of the run: it shows messages only."""

    def __init__(self, listener: ProgressListener) -> None:
        self.message = listener.message  # type: ignore[method-assign]
