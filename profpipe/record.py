"""``run.json``: what ran, where, with what, and what became of it, as one plain mapping that anyone may publish.

Values of environment variables that may be secrets are not in it, and paths below the pipeline's folder are relative to
that folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from profpipe.job import Ask, Command, Job, Missing, Outcome, Tool
from profpipe.tables import SCHEMA_VERSION, Origin

if TYPE_CHECKING:
    from profpipe.pipeline import Pipeline

#: ``--set workloads.training.env.HF_TOKEN=...``: its value is as private as one in the file.
_SET_ENV = re.compile(r"^((?:--\w+=)?(?:[^=]+\.)?env\.[^=]+=).+", re.DOTALL)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def begun(
    pipeline: Pipeline,
    *,
    now: datetime,
    machine: Mapping[str, Any],
    packages: Mapping[str, str],
    tools: Mapping[str, Tool | Missing],
    git: Mapping[str, Any],
    command: Sequence[str],
    planned: Iterable[Job] = (),
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The record of a run that starts now; `ended`, `jobs` and `files` are filled as it goes.

    ``planned``: what it is to do, by which a report knows what it lacks while it has not ended.
    ``secrets``: words of commands that nobody else may see, and what stands in their place.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "name": pipeline.name,
        "started": now.isoformat(timespec="seconds"),
        "ended": None,
        "command": [_SET_ENV.sub(r"\1...", word) for word in command],
        "pipeline": published(pipeline, secrets),
        "machine": dict(machine),
        "packages": dict(packages),
        "tools": {name: _tool(tool) for name, tool in tools.items()},
        "git": dict(git),
        "planned": _planned(planned),
        "jobs": [],
        "files": [],
        "refused": [],
        "private_files": [],
        "expects": {},
    }


def _planned(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Each workload and profiler once, in the order in which they run, with all cases of its jobs."""
    pairs: dict[tuple[str, str], dict[str, None]] = {}
    for job in jobs:
        pairs.setdefault((job.workload, job.profiler), {}).update(dict.fromkeys(case.id for case in job.cases))
    return [{"workload": name, "profiler": profiler, "cases": list(of)} for (name, profiler), of in pairs.items()]


def published(pipeline: Pipeline, secrets: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """The resolved pipeline without the values of environment variables, which may be secrets."""
    document = pipeline.model_dump(mode="json", by_alias=True)
    for settings in (document["defaults"], *document["workloads"].values()):
        settings["env"] = dict.fromkeys(settings["env"])
    for settings in document["workloads"].values():
        settings["command"] = settings["command"] and [secrets.get(word, word) for word in settings["command"]]
    return document


def _tool(tool: Tool | Missing) -> dict[str, str]:
    """Without the path, which tells more of the machine than of the result."""
    if isinstance(tool, Missing):
        return {"missing": tool.reason, "remedy": tool.remedy}
    return {"version": tool.version, "variant": tool.variant}


def job(
    outcome: Outcome,
    commands: Iterable[Command],
    run_folder: Path,
    key: str,
    reused_from: str,
    rates: Mapping[str, Any],
) -> dict[str, Any]:
    """What is kept of an outcome. ``argv`` is as it was started from the pipeline's folder, but for secrets.

    ``key`` is what a later run may recognise the job by (empty: never), ``reused_from`` the run that measured it where
    that is another. ``rates`` are ``devices``, what its processes ran on as far as they say, and ``peaks``, where those
    are not the machine's.
    """
    done = outcome.job
    return {
        "workload": done.workload,
        "profiler": done.profiler,
        "cases": [case.id for case in done.cases],
        "status": outcome.status,
        "reason": outcome.reason,
        **rates,
        "interrupted": outcome.interrupted,
        "key": key,
        "reused_from": reused_from,
        "seconds": round(outcome.seconds, 3),
        "returncode": outcome.returncode,
        "argv": [[done.secrets.get(word) or done.portable(word) for word in command.argv] for command in commands],
        "folder": str(done.folder.relative_to(run_folder)),
        "log": str((done.folder / "log.txt").relative_to(run_folder)),
        "files": [
            {"path": str(path.relative_to(run_folder)), "bytes": path.stat().st_size}
            for path in outcome.files
            if path.exists()
        ],
    }


def put(entries: list[dict[str, Any]], entry: dict[str, Any], name: str) -> None:
    """Appends ``entry`` in place of one with the same value under ``name``, which an earlier try left."""
    entries[:] = [known for known in entries if known[name] != entry[name]]
    entries.append(entry)


def file(source: str, parser: str, origin: Origin, scrubbed: bool | None = None) -> dict[str, Any]:
    """What is kept of a file that was read: the two sums that prove that nothing was lost.

    ``scrubbed`` is whether environment and command lines were removed from it; None where its format has none.
    """
    return {"source": source, "parser": parser, "scrubbed": scrubbed, **asdict(origin), "notes": list(origin.notes)}


def git_state(ask: Ask, folder: Path) -> dict[str, Any]:
    """Commit and cleanliness of the checkout that holds the pipeline; empty where it is none."""
    commit = ask(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None or len(commit.split()) != 1:
        return {}
    changed = ask(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit.strip(), "dirty": bool((changed or "").strip())}
