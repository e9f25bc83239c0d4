"""``profpipe history``: the last runs, the time of each case in them and its noise."""

from __future__ import annotations

import argparse
from pathlib import Path

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe history
  profpipe history -n 3 --out results
  profpipe history --json > history.json
  profpipe history --page history.md
  profpipe history --html                # out/profpipe.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=arguments.positive_count, default=10, help="how many runs to list (default: 10)")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print the courses as one JSON object")
    formats.add_argument("--page", type=Path, metavar="FILE", help="write the courses to a Markdown page")
    formats.add_argument(
        "--html", nargs="?", type=Path, const=arguments.IN_RESULTS, metavar="FILE",
        help="write a page with the runs, the courses and links to the reports"
        f" (default: DIR/{arguments.HISTORY_PAGE})",
    )  # fmt: skip
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import courses

    return courses.show(args)
