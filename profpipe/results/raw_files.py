"""What report.html shows of the raw files of a run: the samples of each case, and the ends of the output of its jobs.

A run may come from somebody else, so a path that leads out of its folder is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from profpipe.job import LOG
from profpipe.measure import event_lines
from profpipe.measure.event_lines import Damage
from profpipe.results.manifest import JobEntry, Manifest

#: In the folder of a job: the end of its output without secrets. The log itself is private.
OUTPUT = "output.txt"
#: Begins the line of a log with the names of variables. Reports leave it out.
LEFT_OUT = "# variables that the program does not get: "

#: The end of the output that is kept: lines, and bytes.
_LINES, _BYTES = 40, 4_000


#: Samples by workload and case, as (round, ns) in the order in which they were taken; logs by the job's folder.
RawFiles: TypeAlias = "tuple[Mapping[tuple[str, str], tuple[tuple[int, float], ...]], Mapping[str, str]]"


def read(folder: Path, run: Manifest) -> RawFiles:
    """Return what is left of the raw files; without ``raw/`` both parts are empty."""
    samples: dict[tuple[str, str], list[tuple[int, float]]] = {}
    logs = {}
    for job in run.jobs:
        place = _inside(folder, job.folder)
        if place is None:
            continue
        if text := _end_of(place / OUTPUT, folder):
            logs[job.folder] = text
        # Older runs have the events of the process in a file with this name.
        log = next((path for path in (place / LOG, place / "events.jsonl") if path.is_file()), None)
        for case, values in _samples(log, job) if log and job.profiler == "plain" else ():
            samples.setdefault((job.workload, case), []).extend(values)
    return {key: tuple(values) for key, values in samples.items()}, logs


def _inside(folder: Path, name: str) -> Path | None:
    """Return the folder of a job; None where it is not a folder below ``folder``."""
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError):  # no path, or a link to itself
        return None
    return path if name and path.is_dir() and path.is_relative_to(folder.resolve()) else None


def _samples(path: Path, job: JobEntry) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yield the samples of the time of a call by round; a round that was measured again counts once."""
    rounds: dict[tuple[str, int], list[float]] = {}
    for event in _events(path):
        if event["event"] == "samples" and event.get("metric") == "time" and event["case"] in job.cases:
            # As in the tables: a damaged file may hold a number beyond any float.
            finite = [value for value in map(float, event["values"]) if math.isfinite(value)]
            rounds[event["case"], event.get("round") or 1] = finite
    for (case, number), values in rounds.items():
        yield case, [(number, value) for value in values]


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events; a line that a library printed between them is none."""
    if not path.is_file() or path.is_symlink():
        return
    with path.open("rb") as stream:
        for line in stream:
            # Parsing the other lines, which are many, would take most of the time.
            if b'"samples"' not in line[:40]:
                continue
            event = event_lines.parse(line)
            if not isinstance(event, Damage):
                yield event


def _end_of(path: Path, folder: Path) -> str:
    """Return the last lines of an output, without the commands in it, and with relative paths."""
    if not path.is_file() or path.is_symlink():
        return ""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _BYTES))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    # The first line is cut where the log is longer.
    lines = lines[1:] if size > _BYTES else lines
    kept = [line.replace(f"{folder.resolve()}/", "") for line in lines if not line.startswith(("$ ", LEFT_OUT))]
    return "\n".join(kept[-_LINES:])
