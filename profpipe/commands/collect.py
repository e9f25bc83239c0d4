"""``profpipe collect``: read what the tasks of a run on a cluster have finished so far, and write the report."""

from __future__ import annotations

import argparse

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe collect out/latest            # at any time; the report says what is missing, and why
  profpipe collect out/latest --wait     # follow the queue first, until no task is left in it"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or its name below --out")
    parser.add_argument("--wait", action="store_true", help="follow the queue until no task is left in it")
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import cluster
    from profpipe.results import folders

    folder = folders.find(args.run, args.out)
    if args.wait:
        cluster.follow(folder, is_quiet=args.quiet)
    return cluster.collect(folder, args)
