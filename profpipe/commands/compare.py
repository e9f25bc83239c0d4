"""``profpipe compare``: the times of two runs or groups of runs, with a gate for CI; or the parts of two recordings."""

from __future__ import annotations

import argparse

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe compare 20261120T120000Z-attention latest
  profpipe compare out/before out/after --gate 5    # exit code 4 if a case is more than 5 % slower
  profpipe compare before.nsys-rep after.nsys-rep   # two recordings: parts of a step, and kernels
  profpipe compare A1 A2 A3 A4 A5 A6 -- B1 B2 B3 B4 B5 B6    # groups of runs that took turns"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "profpipe compare [OPTIONS] A B\n       profpipe compare [OPTIONS] A [A ...] -- B [B ...]"
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="A, the run to compare with, and B, the run to judge: a folder, a name below --out, latest, or a file of a"
        " profiler; with --, the runs of each side",
    )
    parser.add_argument(
        "--gate",
        type=arguments.percentage,
        metavar="PERCENT",
        help="exit with 4 if a case of B is slower by more, with 5 if that is undecided",
    )
    arguments.add_json_file(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import comparison

    return comparison.show(args)
