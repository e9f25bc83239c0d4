"""Finish a run that was interrupted, killed or stopped by a full disk."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from profpipe.analysis import pairs
from profpipe.commands import arguments, cluster, confirmation, execution, recording, rendering
from profpipe.config.yaml import shown
from profpipe.errors import ConfigError
from profpipe.results import folders, long_texts, pair_blocks, store
from profpipe.results.manifest import Manifest
from profpipe.results.pair_blocks import Block
from profpipe.runner import own_runs, pair_session, session
from profpipe.runner.request import RunRequest
from profpipe.runner.session import Session
from profpipe.runner.slurm import plan as cluster_plan


def resume(args: argparse.Namespace) -> int:
    """Finish the run of ``profpipe resume``; return its exit code."""
    args.sbatch, program = arguments.split_sbatch(args.program)
    if program is not None:
        raise ConfigError("profpipe resume --", "takes options of sbatch only.", "For example: -- --time=2:00:00")
    if args.more is not None:
        arguments.check_more(args.more)
    if args.run is None:
        return finish(_find_own(args), args)
    folder = folders.find(args.run, args.out)
    if link := own_runs.find_link(folder):
        what = "leads out of the folder of the run, or is no regular file, and resume would write into it."
        raise ConfigError(str(link), what, "Copy what it leads to into its place, or remove it.")
    if doubt := own_runs.find_doubt(folder):
        confirmation.confirm(folder, doubt, is_trusted=args.trust)
    return finish(folder, args)


def _find_own(args: argparse.Namespace) -> Path:
    """Return the latest unfinished run of this user. Those of others must be named."""
    if args.trust:
        raise ConfigError("--trust", "is for a run that you name.", "profpipe resume RUN --trust")
    others: list[Path] = []
    for folder in folders.list_unfinished(args.out):
        if not own_runs.find_doubt(folder) and own_runs.find_link(folder) is None:
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


def _load(folder: Path, request: RunRequest) -> Session:
    if Manifest.load(folder).ab is None:
        return session.load(folder, request)
    known = pair_session.load(folder, request)
    known.choose_again = pairs.choose_again
    return known


def _allow_further_pairs(known: Session, most: int) -> None:
    """Allow the run ``most`` further pairs. A run that has ended is opened again where a case is undecided.

    Raises ConfigError where the run has no pairs.
    """
    settings = known.manifest.ab
    if settings is None:
        raise ConfigError("--more", f"is for a run of `profpipe ab`, and {known.folder.name} is none.")
    allowed = replace(known.manifest, ab=replace(settings, more=max(settings.more, most)))
    is_open = bool(pairs.choose_again(known.data, allowed, Block.FURTHER)) and _is_longer(settings.more, most)
    known.manifest = replace(allowed, ended=None) if known.is_complete and is_open else allowed


def _is_longer(before: int, most: int) -> bool:
    return len(pair_blocks.looks(most)) > len(pair_blocks.looks(before))


def _why_no_pairs(known: Session) -> str:
    """Return why a run that has ended gets no further pairs."""
    settings = known.manifest.ab
    undecided = pairs.choose_again(known.data, known.manifest, Block.FURTHER) if settings else ()
    if settings is None or not undecided:
        return "No case needs further pairs."
    last = pair_blocks.looks(settings.more)[-1]
    cases, least = "1 case is" if len(undecided) == 1 else f"{len(undecided)} cases are", last + pair_blocks.LOOK_EVERY
    return f"{cases} undecided after {last} further pairs. --more counts these too: ask for at least {least}."


def finish(folder: Path, args: argparse.Namespace) -> int:
    """Carry out the jobs that are left; return the exit code of the whole run."""
    request = RunRequest.load(folder)
    if cluster_plan.is_cluster_run(folder):
        if args.more is not None:
            remedy = "Start a run with it: profpipe ab --slurm --more N"
            raise ConfigError("--more", "adds pairs to a run on one machine, and this run is on a cluster.", remedy)
        cluster.with_options(request, args.sbatch)
        return cluster.resume(folder, request, args.sbatch, args)
    if args.wait or args.sbatch:
        raise ConfigError("--wait" if args.wait else "--", "is for a run on a cluster, and this run has one machine.")
    with folders.lock(folder):
        known = _load(folder, request)
        if args.more is not None:
            _allow_further_pairs(known, args.more)
        if not known.is_complete:
            known.reopen()
            return execution.carry_out(known, args).exit_code
        recording.record_missing(args.out)
        if args.csv:
            store.save_csv(folder, known.data)
        result = rendering.judge(folder, long_texts.shorten(known.data), known.manifest)
        if args.json or args.quiet:
            rendering.print_result(result, args)
        else:
            print(f"{folder.name} has nothing left to do.")
            if args.more is not None:
                print(_why_no_pairs(known))
        return result.exit_code
