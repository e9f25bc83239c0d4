"""``profpipe compare``: the times of two runs, with a gate for CI; or the parts of two recordings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profpipe import errors
from profpipe.commands import api, arguments
from profpipe.errors import ConfigError

if TYPE_CHECKING:
    from profpipe.analysis.compare_recordings import RecordingComparison
    from profpipe.analysis.compare_runs import RunComparison
    from profpipe.results.manifest import Manifest

EXAMPLES = """\
  profpipe compare 20261120T120000Z-attention latest
  profpipe compare out/before out/after --gate 5    # exit code 4 if a case is more than 5 % slower
  profpipe compare before.nsys-rep after.nsys-rep   # two recordings: parts of a step, and kernels
  profpipe compare out/before latest --html ab.html # both on one page"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "profpipe compare [OPTIONS] A B"
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="A, the run to compare with, and B, the run to judge: a folder, a name below --out, latest, or a file of a"
        " profiler",
    )
    parser.add_argument(
        "--gate",
        type=arguments.percentage,
        metavar="PERCENT",
        help="exit with 4 if a case of B is slower by more, with 5 if that is undecided",
    )
    page = "write bars, cases and kernels of both on one page"
    parser.add_argument("--html", type=arguments.html_file, metavar="FILE", help=page)
    arguments.add_json_file(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.analysis.compare_recordings import compare_recordings
    from profpipe.analysis.compare_runs import RunComparison

    if args.json and not arguments.prints_json(args):
        arguments.check_output_file("--json", Path(args.json))
    if args.html:
        arguments.check_output_file("--html", args.html)
    if args.program is not None or len(args.runs) > 2:
        what = "compares one run A with one run B."
        raise ConfigError("profpipe compare", what, "`profpipe ab` decides over several runs of A and B.")
    if len(args.runs) < 2:
        raise ConfigError("profpipe compare", "needs two runs, and 1 is given.", "Name A and B.")
    differences = api.compare(*args.runs, out=args.out)
    if not isinstance(differences.comparison, RunComparison):
        return _end_recordings(args, differences.comparison)
    a, b = differences.sides
    if args.html:
        _write_html(args, differences.comparison, compare_recordings((a.tables, a.manifest), (b.tables, b.manifest)))
    return _end(args, differences.comparison, b.manifest)


def _write_html(
    args: argparse.Namespace, compared: RunComparison | RecordingComparison, recorded: RecordingComparison
) -> None:
    from profpipe.commands import rendering
    from profpipe.report import comparison, html_page

    page = comparison.page(compared, args.runs, recorded)
    arguments.write_output_file("--html", args.html, html_page.render(page, rendering.find_templates()))


def _end_recordings(args: argparse.Namespace, compared: RecordingComparison) -> int:
    """Print the comparison of recordings, or write it as JSON. Raises ConfigError for a gate."""
    from profpipe.report import comparison

    if args.gate is not None:
        what = "needs times of both sides without a profiler; single recordings cannot tell a difference from noise."
        raise ConfigError("--gate", what, f"Measure: `profpipe ab --gate {args.gate:g} --a git:REVISION -- PROGRAM`.")
    if args.html:
        _write_html(args, compared, compared)
    _print(args, compared, lambda: comparison.recordings_document(compared, args.runs))
    return errors.OK


def _print(
    args: argparse.Namespace,
    compared: RunComparison | RecordingComparison,
    full: Callable[[], dict[str, Any]],
    exit_code: int = errors.OK,
) -> None:
    """Print the comparison, or print or write it as JSON."""
    from profpipe.report import answer_json, comparison

    arguments.print_json(args, lambda: answer_json.select_comparison(compared, full(), exit_code), full)
    if not arguments.prints_json(args):
        print(comparison.text(compared))


def _end(args: argparse.Namespace, compared: RunComparison, run: Manifest) -> int:
    """Print the comparison, or write it as JSON, and end as the gate demands."""
    from profpipe.analysis.changes import choose_exit_code
    from profpipe.report import comparison

    gate = None if args.gate is None else compared.judge_gate(args.gate)
    code = choose_exit_code(gate)
    _print(args, compared, lambda: comparison.document(compared, args.runs, run, gate, code), code)
    if gate and code != errors.OK:
        raise errors.GateNotPassed(comparison.gate_text(compared, gate), code)
    if gate and not arguments.prints_json(args):
        print(f"B passes the gate: no case is more than {args.gate:g} % slower and beyond the noise.")
    return code
