"""``profpipe doctor``: check the tools of this machine, and measure its peak rates."""

from __future__ import annotations

import argparse

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe doctor
  profpipe doctor --measure-peaks    # later runs with the same --out compare their rates with these"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure-peaks",
        action="store_true",
        help="measure the highest rates of this GPU; later runs with the same --out compare their results with them",
    )
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import examination

    return examination.show(args)
