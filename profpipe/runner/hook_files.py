"""The start-up hook of a command: the variables that it reads, and why its files hold no steps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from profpipe import ranges
from profpipe.job import Job
from profpipe.results import atomic

_PACKAGE = Path(__file__).resolve().parents[1]
STARTUP = _PACKAGE / "hook" / "startup"

#: Begins the line of a job's log that says why no step was recorded.
NO_STEPS = "no step was recorded: "


def variables(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the processes of a job, which have ``environment`` otherwise.

    PYTHONPATH begins with the folder of the hook. The folder of profpipe is taken out: it may hold the packages of
    another Python. The hook finds profpipe without it.
    """
    found = {ranges.PROFILER_VARIABLE: job.profiler}
    if not job.is_hooked:
        return found
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    others = paths[1:] if paths[0] == str(_PACKAGE.parent) else paths
    settings = {
        "folder": str(job.folder),
        "stem": job.stem,
        "profiler": job.profiler,
        **{name: job.options.get(name) for name in ("steps", "torch", "collect")},
    }
    return {
        **found,
        "PROFPIPE_HOOK": json.dumps(settings),
        "PROFPIPE_HOOK_LOADED": str(_loaded(job)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(STARTUP), *others])),
    }


def _loaded(job: Job) -> Path:
    return job.folder / f"hook.{job.stem}.loaded"


def explain_missing_steps(job: Job) -> str:
    """Return why the ended processes of a job recorded no step, empty if they did or have no hook.

    The reason is also written where the parser of the hook's files finds it.
    """
    if not job.is_hooked:
        return ""
    why = _explain(job)
    if not why:
        return ""
    text = f"{NO_STEPS}{why}"
    lines = [{"hook": "started", "profiler": job.profiler, "rank": None}, {"hook": "note", "text": text}]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    atomic.write_text(job.folder / f"hook.{job.stem}.none.jsonl", content)
    return text


def _explain(job: Job) -> str:
    by_hand = "Mark the steps with profpipe.step(), or name a range that is opened in each: steps: {range: REGEX}."
    if not _loaded(job).exists():
        return (
            "the start-up hook was not loaded. The command starts no Python, or starts it with -I, -E or -S, or "
            "replaces PYTHONPATH."
        )
    counts = [count for path in job.records if (count := _count_steps(path)) is not None]
    if not counts and not (job.folder / f"hook.{job.stem}.torch").exists():
        return f"no process imported torch. {by_hand}"
    if not counts and job.options["steps"]["forward"]:
        return f"no module of torch was called. {by_hand}"
    if not counts:
        return f"no optimizer of torch stepped. {by_hand} For inference: steps: {{forward: true}}."
    most, warmup = max(counts), job.options["steps"]["warmup"]
    if most <= (0 if job.profiler == "plain" else warmup):
        which = f"and the first {warmup} are warm-up. Set steps.warmup lower" if most else "which did not end"
        return f"the program made {most or 'one'} step{'s' * (most > 1)}, {which}."
    return ""


def _count_steps(path: Path) -> int | None:
    """Return the number of steps that ended in a process; None where none began. Crashed processes count as endless."""
    count: int | None = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith('{"hook": "recording"'):
            count = 1 << 30
        elif line.startswith('{"hook": "finished"'):
            count = int(json.loads(line)["steps"])
    return count
