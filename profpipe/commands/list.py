"""``profpipe list``: the workloads of a pipeline and their cases."""

from __future__ import annotations

import argparse
from pathlib import Path

from profpipe import errors
from profpipe.job import count_cases, readable

EXAMPLES = """\
  profpipe list                                    # those of pipeline.yaml
  profpipe list pipelines/attention_scaling.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", nargs="?", default="pipeline.yaml", help="pipeline file (default: pipeline.yaml)")


def main(args: argparse.Namespace) -> int:
    from profpipe.config import loader
    from profpipe.results import folders
    from profpipe.runner import plan, secret_values

    path = Path(args.pipeline)
    pipeline = loader.load_pipeline(path)
    pipeline, _ = secret_values.hide(pipeline, secret_values.of_variables(path), lambda: folders.find_salt(Path("out")))
    masked = secret_values.mask_commands(pipeline, path)
    for name, workload in pipeline.workloads.items():
        cases = plan.cases(workload)
        program = workload.script or " ".join(masked.get(name, workload).command or ())
        print(f"{name}: {program}, {count_cases(len(cases))} under {', '.join(workload.profilers)}")
        for case in cases:
            print(f"  {readable(case.id)}")
    return errors.OK
