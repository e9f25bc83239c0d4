"""``profpipe resume``: finish a run that was interrupted, killed or stopped by a full disk."""

from __future__ import annotations

import argparse

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe resume                                   # the latest run in out/ that is not finished
  profpipe resume out/20261120T120000Z-attention
  profpipe resume out/latest --wait -- --time=2:00:00   # on a cluster: submit what is missing, with a longer limit
  profpipe resume out/latest --more 20              # of a run of `ab`: further pairs of the cases that are undecided
  profpipe resume their-run --trust                 # a run that somebody else made: it starts what the run names"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the latest that is not finished)")
    parser.add_argument(
        "--trust", action="store_true", help="resume a run that this user did not make on this machine without asking"
    )
    arguments.add_more(parser, None)
    arguments.add_wait(parser, "for a run on a cluster")
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import resumption

    return resumption.resume(args)
