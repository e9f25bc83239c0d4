"""``profpipe resume``: finish a run that was interrupted, killed or stopped by a full disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from profpipe.analysis import pairs
from profpipe.commands import arguments, execution, rendering
from profpipe.results import folders
from profpipe.results.manifest import Manifest
from profpipe.runner import pair_session, session
from profpipe.runner.request import RunRequest
from profpipe.runner.session import Session

EXAMPLES = """\
  profpipe resume                                   # the latest run in out/ that is not finished
  profpipe resume out/20261120T120000Z-attention"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the latest that is not finished)")
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    folder = folders.find_unfinished(args.out) if args.run is None else folders.find(args.run, args.out)
    return finish(folder, args)


def _load(folder: Path, request: RunRequest) -> Session:
    if Manifest.load(folder).ab is None:
        return session.load(folder, request)
    known = pair_session.load(folder, request)
    known.choose_again = pairs.choose_again
    return known


def finish(folder: Path, args: argparse.Namespace) -> int:
    """Carry out the jobs that are left; return the exit code of the whole run."""
    request = RunRequest.load(folder)
    with folders.lock(folder):
        known = _load(folder, request)
        if not known.is_complete:
            known.reopen()
            return execution.carry_out(known, args)
        result = rendering.judge(folder, known.data, known.manifest)
        if args.json or args.quiet:
            rendering.print_result(result, args)
        else:
            print(f"{folder.name} has nothing left to do.")
        return result.exit_code
