"""Scrub the exports of a job before they are read, and list the private files of a run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest import registry
from profpipe.scrub import exports

#: Reports of nsys, the recordings behind them, and reports of ncu. Nothing can be removed from these.
_REPORT_SUFFIXES = {".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep"}


def scrub_exports(files: Iterable[Path], pipeline_dir: Path | None) -> dict[Path, bool]:
    """Scrub the exports among ``files`` and return for each whether it is scrubbed. A damaged one stays as it was."""
    parsers = registry.parsers(pipeline_dir)
    scrubbed = {}
    for path in files:
        try:
            parser = registry.name_of(registry.choose(path, parsers))
        except UnreadableFile:
            continue  # the reader reports a file that cannot be read
        if parser in exports.PARSERS:
            with suppress(UnreadableFile):
                scrubbed[path] = False
                if not exports.is_scrubbed(path):
                    exports.scrub(path, parser)
                scrubbed[path] = True
    return scrubbed


def find_private_files(run_folder: Path) -> list[str]:
    """Return the files of a run that may hold private data: reports, and exports and traces that are not scrubbed."""
    files = (path for path in (run_folder / "raw").rglob("*") if path.is_file())
    found = (path for path in files if path.suffix in _REPORT_SUFFIXES or exports.may_be_private(path))
    return sorted(str(path.relative_to(run_folder)) for path in found)
