"""``profpipe run``: run a pipeline, or a program as it is, and write the report."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from profpipe import errors
from profpipe.commands import arguments
from profpipe.config import loader, program
from profpipe.errors import ConfigError
from profpipe.runner import environment

EXAMPLES = """\
  profpipe run                                              # pipeline.yaml, all workloads and profilers
  profpipe run -w attention -p plain,nsys                   # one workload under two profilers
  profpipe run study.yaml --set seqlen=1024,4096 --set repeats=50
  profpipe run --dry-run                                    # print the commands, run nothing
  profpipe run --json > result.json

a program as it is, without a pipeline file; the run's folder gets one that repeats the run:
  profpipe run -- python train.py --batch 8
  profpipe run -p plain,nsys --set repeats=5 -- ./simulate input.dat   # five processes under plain
  profpipe run --measure-steps 20 --stop -- python train.py            # a long training takes a minute
  profpipe run --set batch=8,16 -- python train.py --batch {batch}     # two cases
  profpipe run --env DATA_DIR=/data --env HF_TOKEN -- torchrun --nproc-per-node 2 train.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "profpipe run [OPTIONS] [PIPELINE]\n       profpipe run [OPTIONS] -- PROGRAM [ARGUMENTS]"
    parser.add_argument("pipeline", nargs="?", help="pipeline file (default: pipeline.yaml)")
    choice: dict[str, Any] = {"action": "extend", "type": arguments.names, "default": [], "metavar": "NAME[,NAME]"}
    parser.add_argument("-w", "--workload", help="only these workloads (repeatable)", **choice)
    parser.add_argument("-p", "--profiler", help="only these profilers (repeatable)", **choice)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a value of the pipeline file"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable that the program after -- gets; without it, it gets those of known tools only",
    )
    steps = parser.add_argument_group("steps of a program after --")
    steps.add_argument(
        "--warmup-steps", type=arguments.count, metavar="N", help="first steps, which are not recorded (default: 5)"
    )
    steps.add_argument(
        "--measure-steps", type=arguments.positive_count, metavar="N", help="steps that profilers record (default: 20)"
    )
    steps.add_argument("--stop", action="store_true", help="end the program after these steps, with exit code 0")
    parser.add_argument("--reuse", action="store_true", help="reuse unchanged jobs of an earlier run in --out")
    parser.add_argument("--dry-run", action="store_true", help="print every job with its exact command, run nothing")
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    if args.program is not None:
        return _run_program(args)
    if args.env:
        raise ConfigError("--env", "is for a program after '--'.", "In a pipeline file, write env: {NAME: VALUE}.")
    if steps := _steps(args):
        what = f"--{'stop' if 'stop' in steps else f'{next(iter(steps))}-steps'}"
        raise ConfigError(what, "is for a program after '--'.", "In a pipeline file, write steps: {measure: 20, ...}.")
    path = Path(args.pipeline or "pipeline.yaml")
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


def _steps(args: argparse.Namespace) -> dict[str, int | bool]:
    """Return the key ``steps`` of a pipeline file, with what the options give."""
    given = {"warmup": args.warmup_steps, "measure": args.measure_steps, "stop": args.stop or None}
    return {name: value for name, value in given.items() if value is not None}


def _run_program(args: argparse.Namespace) -> int:
    """Run the program after ``--``. Its pipeline file goes into the folder of the run."""
    if args.pipeline is not None:
        what = f"both a pipeline file, '{args.pipeline}', and a program after '--'."
        raise ConfigError("profpipe run", what, "Leave out one of them.")
    if args.workload:
        raise ConfigError("-w", "chooses workloads of a pipeline file; a program is one workload.", "Leave it out.")
    # A folder as deep as that of the run, which has no name yet.
    path = args.out.resolve() / "run" / "pipeline.yaml"
    found = program.read_program(
        args.program,
        path,
        profilers=args.profiler,
        overrides=args.set,
        variables=args.env,
        settings={"steps": steps} if (steps := _steps(args)) else None,
        is_secret=environment.is_secret,
    )
    from profpipe.commands import execution
    from profpipe.runner.request import RunRequest

    request = RunRequest.of_program(found, path, args.out, args.reuse)
    if args.dry_run:
        execution.print_jobs(request)
        return errors.OK
    options = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else ["run"]
    return execution.start(request, ["profpipe", *options, "--", *found.masked], args)
