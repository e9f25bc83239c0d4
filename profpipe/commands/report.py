"""``profpipe report``: render the report of a stored run again."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from profpipe import errors
from profpipe.commands import arguments
from profpipe.errors import ConfigError
from profpipe.job import LOG
from profpipe.results import answer

EXAMPLES = """\
  profpipe report out/latest
  profpipe report 20261120T120000Z-attention --json
  profpipe report out/latest --template my/SUMMARY.md.j2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or its name below --out")
    parser.add_argument(
        "--template",
        type=Path,
        metavar="FILE",
        help="template of SUMMARY.md (default: templates/SUMMARY.md.j2 in the current folder, or profpipe's)",
    )
    arguments.add_output_format(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    # Without templates of the user's, the pages that `ingest` has written are those that would be written now.
    has_templates = args.template is not None or Path("templates").exists()
    given = Path(args.run).resolve()
    if not has_templates and not args.csv and (kept := answer.find(given)):
        arguments.print_kept(args, given, kept)
        return errors.OK
    from profpipe.commands import rendering
    from profpipe.results import folders, store

    folder = folders.find(args.run, args.out)
    data, manifest = store.load(folder)
    # The run may come from somebody else. A template that it brings along is not used.
    templates = rendering.find_templates(Path.cwd(), not_below=folder)
    if args.template is not None:
        templates[rendering.TEMPLATE] = args.template
    if not (template := templates[rendering.TEMPLATE]).is_file():
        what = f"{template} is no file."
        raise ConfigError("--template", what, "Name a template such as templates/SUMMARY.md.j2.")
    # (workload, profiler) of the jobs that were started and not stored, because the runner was killed.
    places = (path.parent.relative_to(folder) for path in (folder / "raw").rglob(LOG))
    stored = {job.folder for job in manifest.jobs}
    started = {place.parts[1:3] for place in places if str(place) not in stored}
    planned = (replace(job, cut_off=(job.workload, job.profiler) in started) for job in manifest.planned)
    if args.csv:
        store.save_csv(folder, data)
    result = rendering.write_report(folder, data, replace(manifest, planned=tuple(planned)), templates)
    rendering.print_result(result, args, is_measured=False)
    return result.exit_code
