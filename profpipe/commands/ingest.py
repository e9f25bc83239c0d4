"""``profpipe ingest``: read, store and report files of profilers. Only an export of nsys may be started."""

from __future__ import annotations

import argparse
from pathlib import Path

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe ingest capture.nsys-rep                       # print what the file holds
  profpipe ingest *.sqlite report.ncu-rep --out tables   # tables and SUMMARY.md in tables/
  profpipe ingest capture.sqlite --step-range 'train_step.*' --out tables"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that receives the tables and SUMMARY.md")
    parser.add_argument("--step-range", type=arguments.regex, metavar="REGEX", help=arguments.STEP_RANGE)
    arguments.add_csv(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import reading

    return reading.read_files(args.files, args.out, args.step_range or "", csv=args.csv)
