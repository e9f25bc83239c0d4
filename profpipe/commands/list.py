"""``profpipe list``: the workloads of a pipeline and their cases, or the studies that profpipe brings along."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from profpipe import errors, plugins
from profpipe.job import count_cases, readable

EXAMPLES = """\
  profpipe list              # the workloads of pipeline.yaml
  profpipe list studies      # the studies that profpipe brings along
  profpipe list accuracy     # the workloads of one of them, or of a file"""

#: The first sentence of the comment at the top of a study.
_QUESTION = re.compile(r"#\n# (.+?[?.])(?=\s)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "pipeline file or study (default: pipeline.yaml); `studies` lists the studies"
    parser.add_argument("pipeline", nargs="?", help=what)


def main(args: argparse.Namespace) -> int:
    if args.pipeline == "studies" and not Path("studies").exists():
        return _list_studies()
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


def _list_studies() -> int:
    """Print the name of each study and the question that it answers."""
    for path in plugins.files("pipelines", "*.yaml"):
        question = _QUESTION.search(path.read_text(encoding="utf-8"))
        print(f"{path.stem:18} {question[1].replace(f'{chr(10)}#', '') if question else ''}".rstrip())
    print("\nStart one: profpipe run NAME. Print its cases: profpipe list NAME.")
    return errors.OK
