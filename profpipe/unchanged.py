"""Whether what a run measures is still what it was when the run began: no table must hold times of different code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from profpipe import environment, guide, profilers, reuse, store
from profpipe.errors import ConfigError
from profpipe.job import Job, Missing
from profpipe.order import ORDER

#: By job: what it depended on when the run began. As private as the order beside it, for its hashes have no salt.
FILE: Final = Path("raw") / "basis.json"

_REMEDY: Final = "Put that back and resume it, or start a new run; what this one has measured stays as it is."

#: So many differences are named of each workload.
_NAMED: Final = 4


def save(folder: Path, planned: Iterable[Job], below: Path, machine: Mapping[str, Any]) -> None:
    """Notes in the run's ``folder`` what the jobs depend on that were ``planned`` to leave their files ``below``."""
    known = {str(job.folder.relative_to(below)): reuse.digests(_basis(job, machine)) for job in planned}
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    store.write_private(folder / FILE, json.dumps(known).encode())


def check(folder: Path, planned: Sequence[Job], machine: Mapping[str, Any]) -> None:
    """Raises ConfigError where a job that the run in ``folder`` began with would not be the same one today.

    A run that was begun before profpipe noted this is not checked, and neither is a job whose tool is missing.
    """
    try:
        known = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    at_work = _at_work(folder)
    changes: dict[str, list[str]] = {}
    for job in planned:
        before, now = known.get(str(job.folder.relative_to(folder))), reuse.digests(_basis(job, machine))
        if before and now:
            own = reuse.may_have_written(job, *at_work)
            found = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in own]
            changes.setdefault(job.workload, []).extend(found)
    told = "; ".join(f"{workload} ({_listed(names)})" for workload, names in changes.items() if names)
    if told:
        what = f"was begun with other code or settings, whose times cannot be compared with today's: {told}."
        raise ConfigError(str(folder), what, _REMEDY)


def _listed(names: Iterable[str]) -> str:
    once = sorted(set(names))
    more = [f"{len(once) - _NAMED} more"] if len(once) > _NAMED else []
    return ", ".join([*once[:_NAMED], *more])


def _basis(job: Job, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Of a job that waits for the captures of others, as far as it is known before them."""
    if isinstance(job.tool, Missing):
        return {}
    commands = profilers.ALL[job.profiler].commands(guide.preview(job))
    # A rented machine comes back with another build of the operating system, which is no other machine.
    return reuse.basis(job, commands, {**machine, "os": ""}, environment.passed_on(os.environ))


def _at_work(folder: Path) -> tuple[float, float]:
    """When the run began, and when it last wrote anything, in seconds as files have them."""
    files = (path for path in (folder / "raw").rglob("*") if path.is_file())
    return (folder / ORDER).stat().st_mtime, max(path.stat().st_mtime for path in (folder / "run.json", *files))
