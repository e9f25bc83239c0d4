"""``profpipe history``: the last runs, the time of each case in them and its noise."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profpipe import errors, stdio
from profpipe.commands import arguments
from profpipe.errors import ConfigError

if TYPE_CHECKING:
    from profpipe.analysis.history import PipelineHistory

EXAMPLES = """\
  profpipe history
  profpipe history -n 3 --out results
  profpipe history --json > history.json
  profpipe history --page history.md
  profpipe history --html                # out/profpipe.html"""

Row = Mapping[str, Any]

#: The runs whose times make a trend.
_MOST_RUNS: Final = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=arguments.positive_count, default=10, help="how many runs to list (default: 10)")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print the courses as one JSON object")
    formats.add_argument("--page", type=Path, metavar="FILE", help="write the courses to a Markdown page")
    formats.add_argument(
        "--html", nargs="?", type=Path, const=arguments.IN_RESULTS, metavar="FILE",
        help="write a page with the runs, the courses and links to the reports"
        f" (default: DIR/{arguments.HISTORY_PAGE})",
    )  # fmt: skip
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.analysis import history
    from profpipe.commands import recording
    from profpipe.report.sections import history as pages
    from profpipe.results import atomic, database, noise

    recording.record_missing(args.out)
    runs, times = database.read_history(args.out, max(args.n, _MOST_RUNS))
    histories = history.analyze(runs, times, functools.partial(noise.read_of, args.out))
    if args.json:
        print(
            stdio.as_json(
                {
                    "pipelines": [
                        {"name": p.name, "runs": p.runs, "courses": [*map(asdict, p.trends)]} for p in histories
                    ]
                }
            )
        )
    elif args.html:
        print(_write_html(args, histories))
    elif args.page:
        atomic.write_text(args.page, pages.markdown(histories))
        print(args.page)
    else:
        shown = {row["run"] for row in runs[: args.n]}
        is_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
        print(text(runs[: args.n], [row for row in times if row["run"] in shown], histories, is_ascii=is_ascii))
    return errors.OK


def _write_html(args: argparse.Namespace, histories: Sequence[PipelineHistory]) -> Path:
    """Write the page of the results folder, and return its path."""
    from profpipe.commands import rendering
    from profpipe.report import html_page
    from profpipe.report.document import SUMMARY
    from profpipe.report.sections import history as section

    target: Path = args.out / arguments.HISTORY_PAGE if args.html == arguments.IN_RESULTS else args.html
    if target.is_dir():
        raise ConfigError(str(target), "is a folder.", f"Name a file: --html {target / arguments.HISTORY_PAGE}.")
    reports = (html_page.REPORT, SUMMARY)

    def report(run: str) -> str:
        existing = next((args.out / run / name for name in reports if (args.out / run / name).is_file()), None)
        return "" if existing is None else os.path.relpath(existing, target.parent)

    document = section.document(histories, args.out.resolve().name, report)
    html_page.write(document, target.parent, rendering.find_templates(), target.name)
    return target


def text(
    runs: Sequence[Row], times: Sequence[Row], histories: Sequence[PipelineHistory] = (), *, is_ascii: bool = False
) -> str:
    """Return the runs, a table of times and the trends for each pipeline.

    ``runs`` are the newest first; ``times`` (ns) are sorted by case, and within a case the oldest first. ``histories``
    has the trends, which may cover more runs.
    """
    from profpipe.report.sections import history as pages

    trends = {pipeline.name: pipeline.trends for pipeline in histories}
    parts = []
    for name in dict.fromkeys(str(row["name"]) for row in runs):
        pipeline_runs = [row for row in runs if row["name"] == name]
        ids = [str(row["run"]) for row in reversed(pipeline_runs)]
        lines = [f"Pipeline {name}", *_run_lines(pipeline_runs)]
        if own_times := [row for row in times if row["run"] in ids]:
            lines += ["", *_time_lines(own_times, ids)]
        if trend_lines := list(pages.lines(trends.get(name, ()), is_ascii=is_ascii)):
            lines += ["", *trend_lines]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "No runs."


def _run_lines(runs: Sequence[Row]) -> Iterator[str]:
    from profpipe.report.text import column_width

    width = column_width(row["run"] for row in runs)
    yield f"{'run':{width}}  {'started':25}  cases ok"
    for row in runs:
        state = "" if row["ended"] else "  unfinished"
        yield f"{row['run']:{width}}  {row['started']:25}  {row['ok'] or 0} of {row['cases'] or 0}{state}"


def _time_lines(times: Sequence[Row], runs: Sequence[str]) -> Iterator[str]:
    """Yield a line for each case, with a column for each of ``runs`` that has a time."""
    from profpipe.job import readable
    from profpipe.report.text import column_width
    from profpipe.report.units import time_unit

    timed = {str(row["run"]) for row in times}
    shown = [run for run in runs if run in timed]
    grouped = groupby(times, key=lambda row: f"{row['workload']}/{readable(row['case'])}")
    values = {name: {str(row["run"]): float(row["value"]) for row in rows} for name, rows in grouped}
    unit = time_unit([row["value"] for row in times])
    cells = {name: [unit.of(by_run[run]) if run in by_run else "-" for run in shown] for name, by_run in values.items()}
    widths = [column_width(column) for column in zip(*cells.values(), strict=True)]
    width = column_width(cells)
    yield f"median time in {unit.name}, one column for each run with times, the oldest first"
    for name, row in cells.items():
        columns = "  ".join(f"{cell:>{length}}" for cell, length in zip(row, widths, strict=True))
        yield f"{name:{width}}  {columns}{_change(*(values[name].get(run) for run in shown[-2:]))}"


def _change(before: float | None, after: float | None = None) -> str:
    if not (before and after):
        return ""
    return f"  {(after / before - 1) * 100:+.1f}% since the run before"
