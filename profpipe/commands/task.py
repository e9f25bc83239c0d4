"""``profpipe task``: carry out one index of a run on a cluster. The batch script of the run starts it."""

from __future__ import annotations

import argparse
from pathlib import Path

from profpipe import errors
from profpipe.results.tasks import TaskState

EXAMPLES = """\
  profpipe task out/20261120T120000Z-attention 7      # the batch script slurm/job.sh of the run does this"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("index", type=int, help="the index in slurm/plan.json")


def main(args: argparse.Namespace) -> int:
    from profpipe.analysis import pairs
    from profpipe.runner.progress import Display
    from profpipe.runner.slurm import task

    with Display() as display:
        state = task.run(args.run.resolve(), args.index, display, pairs.choose_again)
    return errors.OK if state is TaskState.DONE else errors.SOME_FAILED
