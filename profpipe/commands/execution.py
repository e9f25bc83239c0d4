"""Carry out a run and report it: the common part of ``run`` and ``resume``."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from profpipe import profilers
from profpipe.analysis import pairs
from profpipe.analysis.cases import comparisons
from profpipe.commands import recording, rendering
from profpipe.commands.rendering import Result
from profpipe.config import yaml
from profpipe.errors import Interrupted, ProfpipeError, explain_disk_full
from profpipe.job import Missing, count_cases, readable
from profpipe.results import folders, manifest, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables
from profpipe.runner import guided_ncu, plan, session
from profpipe.runner.progress import Display
from profpipe.runner.request import Machine, RunRequest, plan_jobs
from profpipe.runner.session import Session

#: How long a run that the user has stopped may take for its report.
_REPORT_S: Final = 3


def with_comparisons(request: RunRequest) -> RunRequest:
    """Return the request with the groups of cases that stay on one GPU, where cases run side by side."""
    if request.pipeline.gpus == 1:
        return request
    chosen = {name: own for name, own in request.pipeline.workloads.items() if own.is_parallel}
    return replace(
        request, comparisons={name: tuple(comparisons(plan.cases(own), own)) for name, own in chosen.items()}
    )


def print_jobs(request: RunRequest) -> None:
    """Print every job with its exact commands. Nothing is started or written."""
    session.load_rules(request)
    folder = request.out / folders.folder_name(request.pipeline.name, manifest.utc_now())
    for job in plan_jobs(request, Machine.examine(request), folder):
        place = f", side by side with others (group {job.group})" if job.group else ""
        print(f"# {job.workload} under {job.profiler}: {count_cases(len(job.cases))}, in {job.cwd}{place}")
        for case in job.cases:
            print(f"#   {readable(case.id)}")
        if isinstance(job.tool, Missing):
            print(f"# skipped: {job.tool}")
            continue
        for command in profilers.ALL[job.profiler].commands(guided_ncu.preview(job)):
            print(job.shown(command))


def start(request: RunRequest, words: list[str], args: argparse.Namespace) -> int:
    """Carry out a new run; the ``words`` of the command are kept in its record."""
    run = session.create(request, words)
    with folders.lock(run.folder):
        return carry_out(run, args).exit_code


def carry_out(run: Session, args: argparse.Namespace) -> Result:
    """Run the jobs that are left, write the report and print it."""
    try:
        return _carry_out(run, args)
    except KeyboardInterrupt:
        # While jobs run, interrupts are counted and not raised. This one came while the report was written.
        what = "Interrupted before SUMMARY.md was written. The measurements are kept."
        remedy = f"To write the report: `{command('report', run.folder)}`."
        raise Interrupted(f"{what} {remedy} To continue: {command('resume', run.folder)}") from None


def _carry_out(run: Session, args: argparse.Namespace) -> Result:
    stop: ProfpipeError | None = None
    with (
        Path(os.devnull).open("w") as null,
        Display(null if args.quiet else None, is_verbose=args.verbose) as display,
    ):
        try:
            run.carry_out(display, pairs.choose_again)
        except Interrupted as interrupt:
            stop = Interrupted(f"{interrupt} To continue: {command('resume', run.folder)}")
    if stop is None and (failed := len(run.disk_full_cases)):
        what, remedy = explain_disk_full(" ".join(run.data.cases["reason"]))
        then = f"{remedy}, then continue: {command('resume', run.folder)}"
        stop = ProfpipeError(f"{count_cases(failed)} failed because {what}. {then}")
    if stop is None:
        run.end()
    elif isinstance(stop, Interrupted):
        # Who ends a run, such as a batch system, does not wait for the report of thousands of cases.
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(_REPORT_S)
    result = write_results(run.folder, run.request, run.data, run.manifest, run.data, csv=args.csv)
    signal.alarm(0)
    if stop is None:
        run.manifest.save(run.folder)
    rendering.print_result(result, args, stop.exit_code if stop else None)
    if stop:
        raise stop
    return result


def write_results(
    folder: Path,
    request: RunRequest,
    data: Tables,
    run: Manifest,
    stored: Tables | None = None,
    templates: rendering.Templates | None = None,
    *,
    csv: bool,
) -> Result:
    """Write the tables of a run, its report and its entry in the history. ``stored`` are tables that are on disk.

    The default are the templates of the pipeline's folder. The caller saves the manifest with the end of the run last:
    the run is then done.
    """
    found = pairs.analyze(data, run) if run.ab is not None else None
    if found is not None:
        data = replace(data, verdicts=pairs.verdict_rows(found, folder.name))
    store.save(folder, data, replace(run, ended=None), stored)
    if csv:
        store.save_csv(folder, data)
    templates = templates or rendering.find_templates(request.plugin_dir)
    result = rendering.write_report(folder, data, run, templates, found)
    recording.record(request.out, folder, data, run, found)
    return result


def command(name: str, folder: Path) -> str:
    """Return a command for a run as the user can type it. auto_profile.sh does not put profpipe on PATH."""
    program = ["profpipe"] if shutil.which("profpipe") else [sys.executable, "-m", "profpipe"]
    return shlex.join([*program, name, yaml.shown(folder)])
