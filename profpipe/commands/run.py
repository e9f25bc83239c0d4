"""``profpipe run``: run a pipeline, or a program as it is, and write the report."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from profpipe import errors, masking, plugins
from profpipe.commands import arguments

if TYPE_CHECKING:
    from profpipe.runner.request import RunRequest

EXAMPLES = """\
  profpipe run                                              # pipeline.yaml, all workloads and profilers
  profpipe run -w attention -p plain,nsys                   # one workload under two profilers
  profpipe run accuracy                                     # a study of `profpipe list studies`
  profpipe run study.yaml --set seqlen=1024,4096 --set repeats=50
  profpipe run --case-processes 5                           # five processes of each case: times with their spread
  profpipe run --gpus 2                                     # cases side by side, one on each of two GPUs
  profpipe run --dry-run                                    # print how long it takes and the commands, run nothing
  profpipe run --budget 10m                                 # what fits into ten minutes
  profpipe run --json > result.json

on a Slurm cluster; words after -- are options of sbatch:
  profpipe run --slurm --dry-run                            # print the batch script and the tasks
  profpipe run --slurm --wait -- --partition=gpu --gres=gpu:1

a program as it is, without a pipeline file; the run's folder gets one that repeats the run:
  profpipe run -- python train.py --batch 8
  profpipe run -p plain,nsys --set repeats=5 -- ./simulate input.dat   # five processes under plain
  profpipe run --measure-steps 20 --stop -- python train.py            # a long training takes a minute
  profpipe run --set batch=8,16 -- python train.py --batch {batch}     # two cases
  profpipe run --env DATA_DIR=/data --env HF_TOKEN -- torchrun --nproc-per-node 2 train.py"""


USUAL = ("-w", "-p", "--set", "--measure-steps", "--stop", "--dry-run", "--budget", "--json", "--quiet", "--out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_pipeline(parser, "profpipe run")
    parser.usage = f"{parser.usage}\n       profpipe run --slurm [OPTIONS] [PIPELINE] [-- SBATCH OPTIONS]"
    parser.add_argument("-p", "--profiler", help="only these profilers (repeatable)", **arguments.NAMES)
    # The name of this option until 1.0; `ab --captures` is something else.
    parser.add_argument("--captures", type=arguments.positive_count, help=argparse.SUPPRESS)
    parser.add_argument(
        "--case-processes",
        dest="captures",
        type=arguments.positive_count,
        metavar="N",
        help="processes of each case under plain, interleaved over the cases; the time is the median of the processes",
    )
    parser.add_argument(
        "--gpus",
        type=arguments.gpu_count,
        metavar="N|all",
        help="run cases side by side on N GPUs, or on all visible ones, one on each, long cases first; cases that the "
        "report compares stay on one GPU",
    )
    parser.add_argument(
        "--price",
        type=arguments.price,
        metavar="EUR_PER_HOUR",
        help="EUR for an hour of one GPU: what steps and tokens cost",
    )
    parser.add_argument(
        "--budget",
        type=arguments.budget,
        metavar="TIME",
        help="run what fits into TIME (90s, 10m, 1h), by the estimate of --dry-run: first each case under plain, then "
        "the cheapest other profilers, then repeats",
    )
    text = "let ncu count the kernels of all cases of a script, not of the largest shape alone"
    parser.add_argument("--ncu-all", action="store_true", help=text)
    parser.add_argument("--reuse", action="store_true", help="reuse unchanged jobs of an earlier run in --out")
    parser.add_argument(
        "--dry-run", action="store_true", help="print every job with its time and its exact command, run nothing"
    )
    parser.add_argument("--slurm", action="store_true", help="submit the cases to a Slurm cluster as one array")
    parser.set_defaults(project_profilers=arguments.read_project(parser).get("profilers", []))
    arguments.add_wait(parser, "with --slurm")
    arguments.add_output_format(parser)
    arguments.add_verbose(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.config import loader, program

    args.profiler = args.profiler or args.project_profilers
    options_of_sbatch = arguments.read_slurm(args)
    arguments.check_program(args, "profpipe run")
    if args.gpus == "all":
        from profpipe.measure import machine
        from profpipe.runner import slots

        args.gpus = slots.count_visible(machine.nvidia_gpus(), os.environ)
    if args.gpus:
        args.set += [f"gpus={args.gpus}", "parallel=true"]
    if args.ncu_all:
        args.set += ["ncu.shapes=all"]
    if args.price:
        args.set += [f"report.price={args.price}"]
    if args.program is None:
        path = plugins.pipeline_path(args.pipeline)
        pipeline, user_program = loader.load_pipeline(path, args.set), None
        used = (name for name in loader.variables(path) if os.environ.get(name) and not masking.is_secret_name(name))
        variables = [f"{name}={os.environ[name]}" for name in used]
        command = [*(["env", *variables] if variables else []), "profpipe", *(sys.argv[1:] or ["run"])]
    else:
        # The pipeline file of a program goes into the folder of the run.
        path = arguments.program_file(args.out)
        given = {"overrides": args.set, "variables": args.env, "name": args.name, "settings": arguments.settings(args)}
        user_program = program.read_program(args.program, path, profilers=args.profiler, **given)
        pipeline = user_program.pipeline
        words = ["--", *options_of_sbatch] if options_of_sbatch else []
        command = ["profpipe", *args.words, *words, "--", *user_program.masked]
    # After the pipeline is checked: to import pandas takes longer than everything before.
    from profpipe.commands import execution
    from profpipe.results import folders
    from profpipe.runner.request import RunRequest

    # The profilers of a program are in its pipeline.
    profilers = args.profiler if user_program is None else []
    salt = folders.find_salt if args.dry_run else folders.make_salt
    common = args.workload, profilers, args.reuse, args.captures, salt
    request = execution.choose_ncu_cases(RunRequest.create(pipeline, path, args.out, *common, user_program))
    if args.slurm:
        return _submit(request, options_of_sbatch, command, args)
    request, left_out = execution.group_cases(request), ""
    if args.budget:
        request, left_out = execution.fit(request, args.budget)
    if args.dry_run:
        execution.print_jobs(request, left_out)
        return errors.OK
    return execution.start(request, command, args, left_out)


def _submit(request: RunRequest, options: list[str], command: list[str], args: argparse.Namespace) -> int:
    """Submit the run to the cluster, or print what would be submitted."""
    from profpipe.commands import cluster

    request = cluster.add_options(request, options, "profpipe run --slurm")
    if args.dry_run:
        cluster.print_plan(request)
        return errors.OK
    return cluster.start(request, command, args)
