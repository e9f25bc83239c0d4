"""Scrub the exports of a job before they are read, and list the private files of a run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.scrub import exports, secret_files

#: The output of the processes of a job: it may hold whatever a program prints.
LOG = "log.txt"

#: Reports of nsys, the recordings behind them, and reports of ncu. Nothing can be removed from these.
_REPORT_SUFFIXES = {".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep"}


def scrub_exports(files: Iterable[Path], pipeline_dir: Path | None) -> dict[Path, bool]:
    """Scrub the exports among ``files`` and return for each whether it is scrubbed. A damaged one stays as it was."""
    parsers = reader.parsers(pipeline_dir)
    scrubbed = {}
    for path in files:
        try:
            parser = reader.name_of(reader.choose(path, parsers))
        except UnreadableFile:
            continue  # the reader reports a file that cannot be read
        if parser in exports.PARSERS:
            with suppress(UnreadableFile):
                scrubbed[path] = False
                if not exports.is_scrubbed(path):
                    exports.scrub(path, parser)
                scrubbed[path] = True
    return scrubbed


def find_private_files(run_folder: Path, below: Path, secrets: Iterable[str] = ()) -> list[str]:
    """Return the files in the folder ``below`` of a run that may hold private data, and let only their owner read them.

    These are logs, reports, exports and traces that are not scrubbed, and files that hold one of ``secrets``.
    """
    texts = list(secrets)
    files = (path for path in below.rglob("*") if path.is_file() and not path.is_symlink())
    found = [path for path in files if _is_private(path) or secret_files.holds_any(path, texts)]
    for path in found:
        path.chmod(0o600)
    return sorted(str(path.relative_to(run_folder)) for path in found)


def _is_private(path: Path) -> bool:
    return path.name == LOG or path.suffix in _REPORT_SUFFIXES or exports.may_be_private(path)
