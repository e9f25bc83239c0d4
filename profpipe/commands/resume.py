"""``profpipe resume``: finish a run that was interrupted, killed or stopped by a full disk."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profpipe.commands import arguments
from profpipe.errors import ConfigError

if TYPE_CHECKING:
    from profpipe.runner.request import RunRequest
    from profpipe.runner.session import Session

EXAMPLES = """\
  profpipe resume                                   # the latest run in out/ that is not finished
  profpipe resume out/20261120T120000Z-attention
  profpipe resume out/latest --wait -- --time=2:00:00   # on a cluster: submit what is missing, with a longer limit
  profpipe resume out/latest --more 20              # of a run of `ab`: further pairs of the cases that are undecided
  profpipe resume their-run --trust                 # a run that somebody else made: it starts what the run names"""

#: Commands that are shown of a run that somebody else made; more are counted.
_MOST: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the latest that is not finished)")
    parser.add_argument(
        "--trust", action="store_true", help="resume a run that this user did not make on this machine without asking"
    )
    arguments.add_more(parser, None)
    arguments.add_wait(parser, "for a run on a cluster")
    arguments.add_output_format(parser)
    arguments.add_verbose(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.results import folders
    from profpipe.runner import fingerprint

    args.sbatch, program = arguments.split_sbatch(args.program)
    if program is not None:
        raise ConfigError("profpipe resume --", "takes options of sbatch only.", "For example: -- --time=2:00:00")
    if args.more is not None:
        arguments.check_more(args.more)
    if args.run is None:
        return finish(_find_own(args), args)
    folder = folders.find(args.run, args.out)
    if link := fingerprint.find_link(folder):
        what = "leads out of the folder of the run, or is no regular file, and resume would write into it."
        raise ConfigError(str(link), what, "Copy what it leads to into its place, or remove it.")
    if doubt := fingerprint.find_doubt(folder):
        confirm(folder, doubt, is_trusted=args.trust)
    return finish(folder, args)


def _find_own(args: argparse.Namespace) -> Path:
    """Return the latest unfinished run of this user. Those of others must be named."""
    from profpipe.config.yaml import shown
    from profpipe.results import folders
    from profpipe.runner import fingerprint

    if args.trust:
        raise ConfigError("--trust", "is for a run that you name.", "profpipe resume RUN --trust")
    others: list[Path] = []
    for folder in folders.list_unfinished(args.out):
        if not fingerprint.find_doubt(folder) and fingerprint.find_link(folder) is None:
            for other in others:
                print(f"profpipe: left out {shown(other)}, which this user did not make here.", file=sys.stderr)
            return folder
        others.append(folder)
    if others:
        what = f"holds no unfinished run that this user made on this machine. Made elsewhere: {shown(others[0])}."
        raise ConfigError(str(args.out), what, f"Name it to resume it: profpipe resume {shown(others[0])}")
    hint = "`profpipe history` lists the runs."
    if args.more is not None:
        hint = f"Name a run that has ended: profpipe resume RUN --more {args.more}"
    raise ConfigError(str(args.out), "holds no unfinished run.", hint)


def confirm(folder: Path, doubt: str, *, is_trusted: bool) -> None:
    """Show what the run in ``folder`` starts, and ask whether to resume it, except with ``--trust``.

    Raises ConfigError where the user says no or cannot be asked.
    """
    from profpipe.config.yaml import shown

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
    from profpipe.results.manifest import Manifest
    from profpipe.runner import sides
    from profpipe.runner.request import RunRequest
    from profpipe.runner.slurm import records, submit

    request = RunRequest.load(folder)
    requests = [request]
    run = Manifest.load(folder)
    if run.ab is not None or run.bisect is not None:
        both = sides.load(folder)
        requests = [side.request for side in both]
        for side in both:
            checkout = f", commit {side.commit} of {side.repository}" if side.repository else ""
            build = f", built by: {side.build}" if side.build else ""
            yield f"side {side.label}: {side.python}{checkout}{build}"
    lines = dict.fromkeys(line for saved in requests for line in _commands(saved, folder))
    yield from list(lines)[:_MOST]
    if len(lines) > _MOST:
        yield f"and {len(lines) - _MOST} more"
    if records.is_cluster_run(folder):
        yield "on nodes of a cluster, by this batch script:"
        yield from submit.write_script(request, folder, len(records.load_plan(folder))).splitlines()
    if request.plugin_dir:
        yield f"Python files are loaded from {request.plugin_dir}: workloads, and those in its folder parsers/"


def _commands(request: RunRequest, folder: Path) -> Iterator[str]:
    from profpipe import profilers
    from profpipe.job import Missing
    from profpipe.runner import guided_ncu
    from profpipe.runner.request import ExaminedMachine, plan_jobs

    for job in plan_jobs(request, ExaminedMachine.examine(request), folder):
        if isinstance(job.tool, Missing):
            continue
        variables = "".join(f"{name}={value} " for name, value in job.launch.env.items() if name != "PYTHONPATH")
        program = f" (runs {job.script})" if job.script else ""
        for command in profilers.ALL[job.profiler].commands(guided_ncu.preview(job)):
            if command.runs_workload:
                yield f"in {job.launch.cwd}: {job.masked(variables)}{job.shown(command)}{program}"


def _allow_further_pairs(run: Session, most: int) -> None:
    """Allow the run ``most`` further pairs. A run that has ended is opened again where a case is undecided.

    Raises ConfigError where the run has no pairs.
    """
    from profpipe.analysis import pairs
    from profpipe.results import pair_blocks

    settings = run.manifest.ab
    if settings is None:
        raise ConfigError("--more", f"is for a run of `profpipe ab`, and {run.folder.name} is none.")
    is_complete = run.is_complete
    run.manifest = replace(run.manifest, ab=replace(settings, more=max(settings.more, most)))
    has_more_looks = len(pair_blocks.looks(most)) > len(pair_blocks.looks(settings.more))
    undecided = pairs.choose_again(run.data, run.manifest, pair_blocks.PairBlock.FURTHER)
    if is_complete and has_more_looks and undecided:
        run.manifest = replace(run.manifest, ended=None)


def _why_no_pairs(run: Session) -> str:
    """Return why a run that has ended gets no further pairs."""
    from profpipe.analysis import pairs
    from profpipe.results import pair_blocks

    settings = run.manifest.ab
    undecided = pairs.choose_again(run.data, run.manifest, pair_blocks.PairBlock.FURTHER) if settings else ()
    if settings is None or not undecided:
        return "No case needs further pairs."
    last = pair_blocks.looks(settings.more)[-1]
    cases, least = "1 case is" if len(undecided) == 1 else f"{len(undecided)} cases are", last + pair_blocks.LOOK_EVERY
    return f"{cases} undecided after {last} further pairs. --more counts these too: ask for at least {least}."


def finish(folder: Path, args: argparse.Namespace) -> int:
    """Carry out the jobs that are left; return the exit code of the whole run."""
    from profpipe.commands import bisect, cluster, execution, recording, rendering
    from profpipe.report import text
    from profpipe.results import folders, store
    from profpipe.runner import session
    from profpipe.runner.request import RunRequest
    from profpipe.runner.slurm import records

    request = RunRequest.load(folder)
    if records.is_cluster_run(folder):
        if args.more is not None:
            remedy = "Start a run with it: profpipe ab --slurm --more N"
            raise ConfigError("--more", "adds pairs to a run on one machine, and this run is on a cluster.", remedy)
        cluster.add_options(request, args.sbatch, "profpipe resume")
        return cluster.resume(folder, request, args.sbatch, args)
    if args.wait or args.sbatch:
        raise ConfigError("--wait" if args.wait else "--", "is for a run on a cluster, and this run has one machine.")
    with folders.lock(folder):
        run = session.load(folder, request)
        if args.more is not None:
            _allow_further_pairs(run, args.more)
        if not run.is_complete:
            if run.manifest.bisect is not None:
                run.check_machine()
                return bisect.Search(folder, request, run.manifest, args).carry_out()
            run.reopen()
            return execution.carry_out(run, args).exit_code
        recording.record_missing(args.out)
        if args.csv:
            store.save_csv(folder, run.data)
        result = rendering.judge(folder, text.shorten_tables(run.data), run.manifest)
        if args.json or args.quiet:
            rendering.print_result(result, args, is_measured=False)
        else:
            print(f"{folder.name} has nothing left to do.")
            if args.more is not None:
                print(_why_no_pairs(run))
        return result.exit_code
