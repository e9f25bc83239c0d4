"""``profpipe run``: run a pipeline and write its report."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from profpipe import errors
from profpipe.commands import arguments
from profpipe.config import loader
from profpipe.runner import environment

EXAMPLES = """\
  profpipe run                                              # pipeline.yaml, all workloads and profilers
  profpipe run -w attention -p plain,nsys                   # one workload under two profilers
  profpipe run study.yaml --set seqlen=1024,4096 --set repeats=50
  profpipe run --dry-run                                    # print the commands, run nothing
  profpipe run --json > result.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", nargs="?", default="pipeline.yaml", help="pipeline file (default: pipeline.yaml)")
    choice: dict[str, Any] = {"action": "extend", "type": arguments.names, "default": [], "metavar": "NAME[,NAME]"}
    parser.add_argument("-w", "--workload", help="only these workloads (repeatable)", **choice)
    parser.add_argument("-p", "--profiler", help="only these profilers (repeatable)", **choice)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a value of the pipeline file"
    )
    parser.add_argument("--reuse", action="store_true", help="reuse unchanged jobs of an earlier run in --out")
    parser.add_argument("--dry-run", action="store_true", help="print every job with its exact command, run nothing")
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    path = Path(args.pipeline)
    pipeline = loader.load_pipeline(path, args.set)
    # After the pipeline is checked: to import pandas takes longer than everything before.
    from profpipe.commands import execution
    from profpipe.runner.request import RunRequest

    request = RunRequest.create(pipeline, path, args.out, args.workload, args.profiler, args.reuse)
    if args.dry_run:
        execution.print_jobs(request)
        return errors.OK
    used = (name for name in loader.variables(path) if os.environ.get(name) and not environment.is_secret(name))
    variables = [f"{name}={os.environ[name]}" for name in used]
    command = [*(["env", *variables] if variables else []), "profpipe", *(sys.argv[1:] or ["run"])]
    return execution.start(request, command, args)
