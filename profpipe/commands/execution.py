"""Carry out a run and report it: the common part of ``run`` and ``resume``."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from profpipe import profilers
from profpipe.analysis import pairs
from profpipe.analysis.cases import comparisons, select_largest
from profpipe.commands import recording, rendering, screening
from profpipe.commands.rendering import RunReport
from profpipe.config import yaml
from profpipe.errors import Interrupted, ProfpipeError, explain_disk_full
from profpipe.job import Incident, IncidentKind, Job, Missing, count_cases, readable
from profpipe.results import folders, manifest, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables
from profpipe.runner import estimate, guided_ncu, plan, session
from profpipe.runner.estimate import Estimates
from profpipe.runner.progress import Display, duration
from profpipe.runner.request import ExaminedMachine, RunRequest, plan_jobs
from profpipe.runner.session import Session

#: How long a run that the user has stopped may take for its report.
_REPORT_S: Final = 3


def group_cases(request: RunRequest) -> RunRequest:
    """Return the request with the groups of cases that stay on one GPU, where cases run side by side."""
    if request.pipeline.gpus == 1:
        return request
    chosen = {name: workload for name, workload in request.pipeline.workloads.items() if workload.is_parallel}
    return replace(
        request,
        comparisons={name: tuple(comparisons(plan.cases(workload), workload)) for name, workload in chosen.items()},
    )


def choose_ncu_cases(request: RunRequest) -> RunRequest:
    """Return the request with the cases whose kernels ncu counts, where these are the largest ones."""
    chosen = {
        name: workload
        for name, workload in request.pipeline.workloads.items()
        if workload.ncu.shapes == "largest" and not workload.is_command
    }
    return replace(request, ncu_cases={name: select_largest(plan.cases(w), w) for name, w in chosen.items()})


def print_jobs(request: RunRequest, left_out: str = "") -> None:
    """Print every job with its time and its exact commands. Nothing is started or written."""
    session.load_rules(request)
    folder = request.out / folders.folder_name(request.pipeline.name, manifest.utc_now())
    machine = ExaminedMachine.examine(request)
    jobs, estimates = plan_jobs(request, machine, folder), Estimates.read(request, machine)
    print(f"# {describe(request, jobs, estimates)}")
    print(f"# of this, profpipe itself with tables and report: about {duration(estimates.own_s(jobs))}")
    if left_out:
        print(f"# left out, as it does not fit into the budget: {left_out}")
    for job in jobs:
        place = f", side by side with others (group {job.group})" if job.group else ""
        seconds = None if isinstance(job.tool, Missing) else estimates.seconds(job)
        time_text = "" if seconds is None else f", about {duration(seconds)}"
        size = f"{count_cases(len(job.cases))}{time_text}"
        print(f"# {job.workload} under {job.profiler}: {size}, in {job.launch.cwd}{place}")
        for case in job.cases:
            print(f"#   {readable(case.id)}")
        if isinstance(job.tool, Missing):
            print(f"# skipped: {job.tool}")
            continue
        for command in profilers.ALL[job.profiler].commands(guided_ncu.preview(job)):
            print(job.shown(command))


def describe(request: RunRequest, jobs: Sequence[Job], estimates: Estimates) -> str:
    """Return the size of a run and its wall time: ``6 cases in 2 jobs, about 37 s (4 cases measured before)``."""
    is_known: dict[tuple[str, str], bool] = {}
    # A job without its tool takes no time, whatever was measured before.
    able = [job for job in jobs if not isinstance(job.tool, Missing)] or jobs
    measured = [(job.workload, case.id, estimates.is_measured(job, case)) for job in able for case in job.cases]
    for workload, name, is_measured in measured:
        is_known[workload, name] = is_known.get((workload, name), True) and is_measured
    size = f"{count_cases(len(is_known))} in {len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    total_s = estimates.total_s(jobs, request.pipeline.gpus if request.comparisons else 1)
    if total_s is None:
        new = ", ".join(dict.fromkeys(job.workload for job in jobs if estimates.seconds(job) is None))
        return f"{size}; no estimate: {new} has never run here"
    measured_count = sum(is_known.values())
    if measured_count == len(is_known):
        before = "measured before"
    elif measured_count:
        before = f"{count_cases(measured_count)} measured before"
    else:
        is_part = any(is_measured for *_, is_measured in measured)
        before = "measured before in part" if is_part else "no case measured before: a rough figure"
    total = duration(total_s)
    time_text = f"at most {total}, if no job is reused" if request.reuse else f"about {total}"
    return f"{size}, {time_text} ({before})"


def fit(request: RunRequest, budget_s: float) -> tuple[RunRequest, str]:
    """Return the part of the request that fits into the budget, and what is left out: ``nsys, ncu``."""
    machine = ExaminedMachine.examine(request)
    estimates = Estimates.read(request, machine)

    def total_s(part: RunRequest) -> float | None:
        return estimates.total_s(plan_jobs(part, machine, part.out), part.pipeline.gpus if part.comparisons else 1)

    part, left = estimate.fit(request, budget_s, total_s)
    return part, ", ".join(left)


def start(request: RunRequest, words: list[str], args: argparse.Namespace, left_out: str = "") -> int:
    """Carry out a new run; the ``words`` of the command are kept in its record, and what a budget ``left_out``."""
    run = session.create(request, words)
    with folders.lock(run.folder):
        if left_out:
            left = Incident(IncidentKind.LEFT_OUT, _remove_budget(run.manifest.command), left_out)
            run.manifest = run.manifest.with_incidents([left])
            run.manifest.save(run.folder)
        return carry_out(run, args).exit_code


def _remove_budget(words: Sequence[str]) -> str:
    """Return the command that measures the rest of a run too."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for before, word in zip(("", *words), words[:end], strict=False) if "--budget" not in (before, word)]
    kept = [word for word in kept if not word.startswith("--budget=")]
    return shlex.join([*kept, *([] if "--reuse" in kept else ["--reuse"]), *words[end:]])


def carry_out(run: Session, args: argparse.Namespace) -> RunReport:
    """Run the jobs that are left, write the report and print it."""
    try:
        return _carry_out(run, args)
    except KeyboardInterrupt:
        # While jobs run, interrupts are counted and not raised. This one came while the report was written.
        what = "Interrupted before SUMMARY.md was written. The measurements are kept."
        remedy = f"To write the report: `{command('report', run.folder)}`."
        raise Interrupted(f"{what} {remedy} To continue: {command('resume', run.folder)}") from None


def _carry_out(run: Session, args: argparse.Namespace) -> RunReport:
    stop: ProfpipeError | None = None
    began, spent_s = time.monotonic(), run.manifest.seconds or 0.0
    with (
        Path(os.devnull).open("w") as null,
        Display(null if args.quiet else None, is_verbose=args.verbose) as display,
    ):
        if not args.quiet and (left := run.left()):
            display.print(describe(run.request, left, run.estimates))
        for left_out in (incident for incident in run.manifest.incidents if incident.kind is IncidentKind.LEFT_OUT):
            what = f"left out, as it does not fit into the budget: {left_out.details}"
            display.print(f"{what}. To measure it too: {left_out.source}")
        is_try = run.manifest.ab is not None and run.manifest.ab.tried is not None
        try:
            if is_try:
                screening.choose_changes(run, display)
            run.carry_out(display, pairs.choose_again)
            if is_try:
                screening.judge_losses(run)
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
        run.manifest = replace(run.manifest, seconds=round(spent_s + time.monotonic() - began, 3))
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
    templates: Mapping[str, Path] | None = None,
    *,
    csv: bool,
) -> RunReport:
    """Write the tables of a run, its report and its entry in the history. ``stored`` are tables that are on disk.

    The default are the templates of the pipeline's folder. The caller saves the manifest with the end of the run last:
    the run is then done.
    """
    pair_findings = pairs.analyze(data, run) if run.ab is not None else None
    if pair_findings is not None:
        data = replace(data, verdicts=pairs.verdict_rows(pair_findings, folder.name))
    store.save(folder, data, replace(run, ended=None), stored)
    if csv:
        store.save_csv(folder, data)
    templates = templates or rendering.find_templates(request.plugin_dir)
    result = rendering.write_report(folder, data, run, templates, pair_findings)
    recording.record(request.out, folder, data, run, pair_findings)
    return result


def command(name: str, folder: Path) -> str:
    """Return a command for a run as the user can type it. auto_profile.sh does not put profpipe on PATH."""
    program = ["profpipe"] if shutil.which("profpipe") else [sys.executable, "-m", "profpipe"]
    return shlex.join([*program, name, yaml.shown(folder)])
