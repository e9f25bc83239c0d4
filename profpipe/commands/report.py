"""``profpipe report``: render the report of a stored run again."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from profpipe.commands import arguments, rendering
from profpipe.job import JOURNAL
from profpipe.results import folders, store
from profpipe.runner.request import REQUEST_FILE, RunRequest

EXAMPLES = """\
  profpipe report out/latest
  profpipe report 20261120T120000Z-attention --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or its name below --out")
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    folder = folders.find(args.run, args.out)
    data, manifest = store.load(folder)
    pipeline_dir = RunRequest.load(folder).pipeline_dir if (folder / REQUEST_FILE).exists() else None
    started = _started_jobs(folder, {job.folder for job in manifest.jobs})
    planned = (replace(job, cut_off=(job.workload, job.profiler) in started) for job in manifest.planned)
    result = rendering.write_report(folder, data, replace(manifest, planned=tuple(planned)), pipeline_dir)
    rendering.print_result(result, args)
    return result.exit_code


def _started_jobs(folder: Path, stored: set[str]) -> set[tuple[str, ...]]:
    """Return (workload, profiler) of the jobs that were started and not stored, because the runner was killed."""
    folders = (path.parent.relative_to(folder) for path in (folder / "raw").rglob(JOURNAL))
    return {place.parts[1:3] for place in folders if str(place) not in stored}
