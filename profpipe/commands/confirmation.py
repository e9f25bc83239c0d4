"""Ask before a run is resumed that this user did not make on this machine: resuming starts what the run names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from profpipe import profilers
from profpipe.config.yaml import shown
from profpipe.errors import ConfigError
from profpipe.job import Missing
from profpipe.results.manifest import Manifest
from profpipe.runner import guided_ncu, session, sides
from profpipe.runner.request import Machine, RunRequest
from profpipe.runner.slurm import submit
from profpipe.runner.slurm.plan import ClusterPlan, is_cluster_run

#: Commands that are shown; more are counted.
_MOST: Final = 20


def confirm(folder: Path, doubt: str, *, is_trusted: bool) -> None:
    """Show what the run in ``folder`` starts, and ask whether to resume it, except with ``--trust``.

    Raises ConfigError where the user says no or cannot be asked.
    """
    where, why = shown(folder), f"was not made by this user on this machine: {doubt}."
    print(f"profpipe: {where} {why} To resume it starts, with your rights:", file=sys.stderr)
    for line in _describe(folder):
        # Control characters could hide a command on the terminal.
        shown_line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        print(f"  {shown_line}", file=sys.stderr)
    if is_trusted:
        return
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        remedy = f"If you trust it, add --trust: profpipe resume {where} --trust"
        raise ConfigError(where, why, remedy)
    print("Resume it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(where, "was not resumed.", "To keep its measurements, `profpipe report` needs no trust.")


def _describe(folder: Path) -> Iterator[str]:
    """Yield the commands of the run, once each, with their folders and variables, and where code is loaded from."""
    request = RunRequest.load(folder)
    requests = [request]
    if Manifest.load(folder).ab is not None:
        both = sides.load(folder)
        requests = [side.request for side in both]
        for side in both:
            checkout = f", commit {side.commit} of {side.repository}" if side.repository else ""
            yield f"side {side.label}: {side.python}{checkout}"
    lines = dict.fromkeys(line for each in requests for line in _commands(each, folder))
    yield from list(lines)[:_MOST]
    if len(lines) > _MOST:
        yield f"and {len(lines) - _MOST} more"
    if is_cluster_run(folder):
        yield "on nodes of a cluster, by this batch script:"
        yield from submit.write_script(request, folder, len(ClusterPlan.load(folder).tasks)).splitlines()
    if request.plugin_dir:
        yield f"Python files are loaded from {request.plugin_dir}: workloads, and those in its folder parsers/"


def _commands(request: RunRequest, folder: Path) -> Iterator[str]:
    for job in session.plan_jobs(request, Machine.examine(request), folder):
        if isinstance(job.tool, Missing):
            continue
        variables = "".join(f"{name}={value} " for name, value in job.env.items() if name != "PYTHONPATH")
        program = f" (runs {job.script})" if job.script else ""
        for command in profilers.ALL[job.profiler].commands(guided_ncu.preview(job)):
            if command.runs_workload:
                yield f"in {job.cwd}: {job.masked(variables)}{job.shown(command)}{program}"
