"""Check that a resumed run measures the same code and settings, for one table must not mix times of different code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from profpipe import profilers
from profpipe.errors import ConfigError
from profpipe.job import Job, Missing
from profpipe.results import atomic
from profpipe.runner import environment, guided_ncu, job_cache
from profpipe.runner.request import REQUEST_FILE, readable

#: The dependencies of each job at the start of the run. Private, for the hashes have no salt.
FILE: Final = Path("raw") / "basis.json"

#: How many changes are named for each workload.
_MAX_NAMED: Final = 4


def save(folder: Path, planned: Iterable[Job], below: Path, machine: Mapping[str, Any]) -> None:
    """Record in the run's ``folder`` the dependencies of jobs whose folders are planned below ``below``."""
    known = {str(job.folder.relative_to(below)): _digests(job, machine) for job in planned}
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    atomic.write_private(folder / FILE, json.dumps(known).encode())


def check(folder: Path, planned: Sequence[Job], machine: Mapping[str, Any]) -> None:
    """Raise ConfigError if the dependencies of a job have changed since the run in ``folder`` began.

    A job whose tool is missing, now or then, is not checked.
    """
    with readable(folder, FILE) as document:
        known = {str(name): dict(digests) for name, digests in document.items()}
    files = (path for path in (folder / "raw").rglob("*") if path.is_file())
    began = (folder / REQUEST_FILE).stat().st_mtime
    ended = max(path.stat().st_mtime for path in (folder / "run.json", *files))
    changes: dict[str, list[str]] = {}
    for job in planned:
        before, now = known.get(str(job.folder.relative_to(folder))), _digests(job, machine)
        if before and now:
            outputs = job_cache.possible_outputs(job, began, ended)
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            changes.setdefault(job.workload, []).extend(name for name in changed if name not in outputs)
    if text := "; ".join(f"{workload} ({_listed(names)})" for workload, names in changes.items() if names):
        what = f"was started with other code or settings, whose times cannot be compared with today's: {text}."
        remedy = "Undo that change and resume the run, or start a new run. The measurements of this run are kept."
        raise ConfigError(str(folder), what, remedy)


def _listed(names: Iterable[str]) -> str:
    once = sorted(set(names))
    more = [f"{len(once) - _MAX_NAMED} more"] if len(once) > _MAX_NAMED else []
    return ", ".join([*once[:_MAX_NAMED], *more])


def _digests(job: Job, machine: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(job.tool, Missing):
        return {}
    # The kernels of a guided job are not known before the run.
    commands = profilers.ALL[job.profiler].commands(guided_ncu.preview(job))
    # A rented machine may return with another build of the operating system.
    variables = environment.filter_variables(os.environ)
    return job_cache.digests(job_cache.dependencies(job, commands, {**machine, "os": ""}, variables))
