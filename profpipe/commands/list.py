"""``profpipe list``: the workloads of a pipeline and their cases, or the studies and changes that profpipe has."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from profpipe import errors, plugins
from profpipe.job import count_cases, readable

EXAMPLES = """\
  profpipe list              # the workloads of pipeline.yaml
  profpipe list studies      # the studies that profpipe brings along
  profpipe list changes      # what `profpipe ab --b change:NAME` can change in a program from outside
  profpipe list accuracy     # the workloads of one of them, or of a file"""

#: The first sentence of the comment at the top of a study.
_QUESTION = re.compile(r"#\n# (.+?[?.])(?=\s)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "pipeline file or study (default: pipeline.yaml); `studies` and `changes` list those"
    parser.add_argument("pipeline", nargs="?", help=what)


def main(args: argparse.Namespace) -> int:
    if args.pipeline == "studies" and not Path("studies").exists():
        return _list_studies()
    if args.pipeline == "changes" and not Path("changes").is_file():
        return _list_changes()
    from profpipe.config import loader
    from profpipe.results import folders
    from profpipe.runner import plan, secret_values

    path = plugins.pipeline_path(args.pipeline)
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


def _list_changes() -> int:
    """Print the name of each change, what it does, and what to write into the program instead."""
    for path in plugins.files("changes", "*.py"):
        change = plugins.load_module(path)
        numerics = " Alters numerics." if change.ALTERS_NUMERICS else ""
        print(f"{path.stem:20} {(change.__doc__ or '').strip()}{numerics}\n{'':20} {change.CODE}")
    print("\nMeasure one: profpipe ab --b change:NAME -- python train.py")
    return errors.OK


def _list_studies() -> int:
    """Print the name of each study and the question that it answers."""
    for path in plugins.files("pipelines", "*.yaml"):
        question = _QUESTION.search(path.read_text(encoding="utf-8"))
        print(f"{path.stem:18} {question[1].replace(f'{chr(10)}#', '') if question else ''}".rstrip())
    print("\nStart one: profpipe run NAME. Print its cases: profpipe list NAME.")
    return errors.OK
