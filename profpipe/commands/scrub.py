"""``profpipe scrub``: remove private data from exports, in place."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from profpipe import errors
from profpipe.errors import UnreadableFile
from profpipe.stdio import visible_line

EXAMPLES = """\
  profpipe scrub capture.sqlite trace.json.gz
  profpipe scrub out/latest/raw/*/nsys/*.sqlite"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)


def main(args: argparse.Namespace) -> int:
    """Scrub each file and print how many entries were removed, never their text."""
    from profpipe.ingest import reader
    from profpipe.profilers import nsys
    from profpipe.scrub import exports

    parsers, code = reader.parsers(), errors.OK
    for path in args.files:
        try:
            if nsys.is_report(path) or nsys.is_recording(path):
                raise UnreadableFile(
                    path, "is nsys's own report, which cannot be changed", "Share an export of it instead."
                )
            removed = exports.scrub(path, reader.name_of(reader.choose(path, parsers)))
        except (UnreadableFile, OSError) as refused:
            print(f"profpipe: {visible_line(refused)}", file=sys.stderr)
            code = errors.SOME_FAILED
        else:
            counts = ", ".join(f"{count} of {where}" for where, count in removed.items())
            print(f"{visible_line(path)}: {f'removed {counts}' if counts else 'nothing to remove'}")
    return code
