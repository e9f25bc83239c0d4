"""``profpipe trace``: write what was recorded as a trace for ui.perfetto.dev."""

from __future__ import annotations

import argparse
from pathlib import Path

from profpipe.commands import arguments

EXAMPLES = """\
  profpipe trace out/latest                              # everything that was recorded
  profpipe trace out/latest --case compile=true --step steady
  profpipe trace tables --out step.json.gz               # JSON in place of Perfetto's format"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or its name below the results folder; or a folder of `ingest`")
    parser.add_argument("--case", metavar="CASE", help="one case (default: all)")
    parser.add_argument("--profiler", choices=arguments.TRACED, help="whose recording (default: nsys, else torch)")
    parser.add_argument(
        "--step",
        type=lambda text: text if text == arguments.STEADY else arguments.count(text),
        metavar="N",
        help=f"one step, or `{arguments.STEADY}` for a typical one (default: all)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the trace (default: trace.pftrace in the folder); .json: as JSON"
    )


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import tracing

    return tracing.write(args)
